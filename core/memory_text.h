/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is written to memory with open_memstream. */
#ifndef HK_CORE_MEMORY_TEXT_H
#define HK_CORE_MEMORY_TEXT_H

#include <stdio.h>

#include "core/error.h"

/* Closes a stream of open_memstream, whose text the caller then owns. Out of memory, HK_ENVIRONMENT
 * and *text NULL: fclose says so only of what was written before, and may leave NULL and return 0.
 * `what` is for the message. */
hk_status hk_memory_text_close(FILE *stream, char **text, const char *what, hk_error *err);

#endif
