/* SPDX-License-Identifier: Apache-2.0 */
/* Private to core: the strict grammar check that precedes cJSON. */
#ifndef HK_CORE_BASE_JSON_SYNTAX_H
#define HK_CORE_BASE_JSON_SYNTAX_H

#include <stddef.h>

#include "core/base/error.h"

/* Whether all of `text` is one JSON value (RFC 8259) that cJSON reads without loss: at most 512
 * levels deep, no "\u0000", no number that is infinite or longer than 63 characters, at most
 * 4,194,304 values. HK_INPUT otherwise, with the name, line and column (in characters, from 1). */
hk_status hk_json_syntax(const char *text, size_t length, const char *name, hk_error *err);

/* Length in bytes of the UTF-8 character at the beginning of `text` (`room` > 0 bytes); 0: not
 * UTF-8. */
size_t hk_utf8_length(const char *text, size_t room);

#endif
