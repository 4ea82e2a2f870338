/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing JSON with cJSON. Errors name the key and say what was expected. */
#ifndef HK_CORE_BASE_JSON_H
#define HK_CORE_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base/error.h"

/* Reads and parses a file of at most 64 MiB and 4,194,304 values (a value takes some 100 bytes of
 * memory, however short its text is). On success the caller owns *root (cJSON_Delete).
 * Refused, each with its own message that begins with the path: unreadable, a directory, empty,
 * larger than the limits, a device without an end, not JSON (line and column), truncated, trailing
 * text, duplicate keys in one object (line of the second), a number that is not finite, a top level
 * that is not an object. */
hk_status hk_json_load(const char *path, cJSON **root, hk_error *err);

/* The same from text; `name` stands for the path in messages. */
hk_status hk_json_parse(const char *text, size_t length, const char *name, cJSON **root,
                        hk_error *err);

/* The line, from 1, of the key of `item` in the text that `root` was parsed from. 0: `item` is not
 * in `root`, or has no key. */
int hk_json_line(const char *text, size_t length, const cJSON *root, const cJSON *item);

/* Getters. `object` must be a JSON object. A missing key, a wrong type or a value outside
 * [min, max] is HK_INPUT with a message such as
 *   key 'hidden_size': expected a whole number from 1 to 1048576, got -4
 * They do not name the file: the caller does, with hk_fail_prefix. */
hk_status hk_json_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *out,
                      hk_error *err);
hk_status hk_json_double(const cJSON *object, const char *key, double min, double max, double *out,
                         hk_error *err);
hk_status hk_json_bool(const cJSON *object, const char *key, bool *out, hk_error *err);
/* *out points into `object`. */
hk_status hk_json_string(const cJSON *object, const char *key, const char **out, hk_error *err);
/* Copies a string of least .. size - 1 characters. */
hk_status hk_json_text(const cJSON *object, const char *key, size_t least, char *out, size_t size,
                       hk_error *err);
hk_status hk_json_object(const cJSON *object, const char *key, const cJSON **out, hk_error *err);
hk_status hk_json_array(const cJSON *object, const char *key, const cJSON **out, hk_error *err);

/* HK_INPUT for a member of `object` whose key is none of the `n`, with the nearest that is.
 * `where` names the object: "staging"; "" for the document. */
hk_status hk_json_known(const cJSON *object, const char *where, const char *const *keys, size_t n,
                        hk_error *err);

/* The getters with a default when the key is absent or null. */
hk_status hk_json_int_or(const cJSON *object, const char *key, int64_t min, int64_t max,
                         int64_t fallback, int64_t *out, hk_error *err);
hk_status hk_json_double_or(const cJSON *object, const char *key, double min, double max,
                            double fallback, double *out, hk_error *err);
hk_status hk_json_bool_or(const cJSON *object, const char *key, bool fallback, bool *out,
                          hk_error *err);

/* The member if it is a string or a number, else the fallback. `object` may be NULL. */
const char *hk_json_text_or(const cJSON *object, const char *key, const char *fallback);
double hk_json_number_or(const cJSON *object, const char *key, double fallback);

/* Prints `root` (pretty, final newline) to a file that is complete or not there
 * (core/base/outfile.h). HK_INPUT if hk_json_load would refuse the file for its size. */
hk_status hk_json_save(const cJSON *root, const char *path, hk_error *err);
/* Prints `root` (pretty, final newline) to an open stream and checks the stream. */
hk_status hk_json_print(const cJSON *root, FILE *stream, hk_error *err);

/* Writes `text` as a JSON string with its quotes. */
void hk_json_write_string(FILE *stream, const char *text);

#endif
