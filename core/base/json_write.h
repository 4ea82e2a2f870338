/* SPDX-License-Identifier: Apache-2.0 */
/* Building a JSON document with cJSON. The functions set *ok to false when out of memory, so that a
 * caller builds a whole object and checks once. */
#ifndef HK_CORE_BASE_JSON_WRITE_H
#define HK_CORE_BASE_JSON_WRITE_H

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

#endif
