/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The part of YAML that `accelerate config` writes: nested mappings of scalars. */
#ifndef HK_TRACES_PLAIN_YAML_H
#define HK_TRACES_PLAIN_YAML_H

#include <cjson/cJSON.h>

#include "core/base/error.h"

/* Parses `text` to a JSON object that the caller owns (cJSON_Delete). One "KEY: VALUE" a line,
 * indented with spaces; a key without value begins a mapping if deeper lines follow, else it is
 * null. Values: true and false, null and ~, decimal numbers, text with or without quotes, [] and
 * {}. "#" after a blank begins a comment. HK_INPUT with `name` and the line for everything else:
 * lists, several documents, anchors, block text, tabs, a repeated key, mappings of more than 8
 * levels. */
hk_status hk_plain_yaml_parse(const char *text, size_t length, const char *name, cJSON **root,
                              hk_error *err);

#endif
