/* SPDX-License-Identifier: GPL-3.0-or-later */
/* YAML as JSON, by libyaml. */
#ifndef HK_TRACES_YAML_H
#define HK_TRACES_YAML_H

#include <cjson/cJSON.h>

#include "core/base/error.h"

/* Parses `text` to a JSON object that the caller owns (cJSON_Delete). Plain scalars: true and
 * false, null and ~, decimal numbers, else text. HK_INPUT with `name` and the line for what is not
 * YAML, and for what JSON does not have or hocket does not read: anchors, aliases and tags (an
 * alias in an alias can stand for more text than memory holds), a repeated key, a key that is not a
 * scalar, several documents, more than 8 levels. */
hk_status hk_yaml_parse(const char *text, size_t length, const char *name, cJSON **root,
                        hk_error *err);

#endif
