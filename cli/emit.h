/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What goes to stdout besides tables: the JSON that --json prints. Each call notes a failed
 * allocation in *ok and goes on, so that a function which builds an object checks once, when it
 * prints. */
#ifndef HK_CLI_EMIT_H
#define HK_CLI_EMIT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "core/error.h"

void hk_put_number(cJSON *object, const char *key, double value, bool *ok);
void hk_put_string(cJSON *object, const char *key, const char *value, bool *ok);
void hk_put_bool(cJSON *object, const char *key, bool value, bool *ok);
/* New members; NULL (which the other calls take) when out of memory. */
cJSON *hk_put_object(cJSON *object, const char *key, bool *ok);
cJSON *hk_put_array(cJSON *object, const char *key, bool *ok);
/* Takes over `item`, which may be NULL. */
void hk_put_item(cJSON *object, const char *key, cJSON *item, bool *ok);
/* Takes over `item`; both may be NULL. Whether it is in `array`. */
bool hk_append_item(cJSON *array, cJSON *item, bool *ok);
/* Appends a new object to `array`, and returns it. */
cJSON *hk_put_element(cJSON *array, bool *ok);

/* A new object that opens with its schema. */
cJSON *hk_emit_begin(const char *schema, bool *ok);
/* Prints to stdout, and deletes. */
hk_status hk_emit_print(cJSON *root, bool ok, hk_error *err);

/* Sends on what stdout still holds: before a note on stderr, which may be the same terminal, and
 * before a plan is written whose table nobody would see. */
hk_status hk_emit_flush(hk_error *err);

/* That a file can be written (pipes and devices are not tried), which is better known before long
 * work than after; NULL can. */
hk_status hk_emit_check_output(const char *path, hk_error *err);

/* Whether '-o -' asks for the document instead of the report (hk_command's dash). */
bool hk_emit_instead(const char *output);

#endif
