/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The JSON object of --json. The hk_put_* functions set *ok to false when out of memory, so that a
 * caller builds a whole object and checks once (hk_emit_print). */
#ifndef HK_CLI_PRINT_EMIT_H
#define HK_CLI_PRINT_EMIT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "core/base/error.h"

void hk_put_number(cJSON *object, const char *key, double value, bool *ok);
void hk_put_string(cJSON *object, const char *key, const char *value, bool *ok);
void hk_put_bool(cJSON *object, const char *key, bool value, bool *ok);
/* Add a new member and return it; NULL, which all functions here accept, when out of memory. */
cJSON *hk_put_object(cJSON *object, const char *key, bool *ok);
cJSON *hk_put_array(cJSON *object, const char *key, bool *ok);
/* Takes ownership of `item`; NULL counts as out of memory. */
void hk_put_item(cJSON *object, const char *key, cJSON *item, bool *ok);
/* Takes over `item`; both may be NULL. Whether it is in `array`. */
bool hk_append_item(cJSON *array, cJSON *item, bool *ok);
/* Appends a new object to `array`, and returns it. */
cJSON *hk_put_element(cJSON *array, bool *ok);

/* A new object with the member "schema". */
cJSON *hk_emit_begin(const char *schema, bool *ok);
/* Prints `root` to stdout and deletes it. */
hk_status hk_emit_print(cJSON *root, bool ok, hk_error *err);

/* Flushes stdout. Needed before a note on stderr (the order on a terminal) and before a file is
 * written (no file without its report). */
hk_status hk_emit_flush(hk_error *err);

/* Fails if the file cannot be written. For checks before long work. Pipes, devices and NULL pass
 * untested. */
hk_status hk_emit_check_output(const char *path, hk_error *err);

/* '-o -': the document goes to stdout instead of the report (hk_command's `dash`). */
bool hk_emit_instead(const char *output);

#endif
