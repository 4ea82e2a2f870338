/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is written to memory with open_memstream. */
#ifndef HK_CORE_BASE_MEMORY_TEXT_H
#define HK_CORE_BASE_MEMORY_TEXT_H

#include <stdio.h>

#include "core/base/error.h"

/* Closes a stream of open_memstream; the caller then owns *text. If memory ran out, even while the
 * stream was written: HK_ENVIRONMENT, *text is NULL, and the message says that the memory was for
 * `what`. (fclose alone does not report every such failure.) */
hk_status hk_memory_text_close(FILE *stream, char **text, const char *what, hk_error *err);

#endif
