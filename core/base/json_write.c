/* SPDX-License-Identifier: Apache-2.0 */
/* cJSON, with every allocation checked. */
#include "core/base/json_write.h"

void hk_put_number(cJSON *object, const char *key, double value, bool *ok) {
  if (!cJSON_AddNumberToObject(object, key, value)) *ok = false;
}

void hk_put_string(cJSON *object, const char *key, const char *value, bool *ok) {
  if (!cJSON_AddStringToObject(object, key, value)) *ok = false;
}

void hk_put_bool(cJSON *object, const char *key, bool value, bool *ok) {
  if (!cJSON_AddBoolToObject(object, key, value)) *ok = false;
}

cJSON *hk_put_object(cJSON *object, const char *key, bool *ok) {
  cJSON *member = cJSON_AddObjectToObject(object, key);
  if (!member) *ok = false;
  return member;
}

cJSON *hk_put_array(cJSON *object, const char *key, bool *ok) {
  cJSON *member = cJSON_AddArrayToObject(object, key);
  if (!member) *ok = false;
  return member;
}

void hk_put_item(cJSON *object, const char *key, cJSON *item, bool *ok) {
  if (item && cJSON_AddItemToObject(object, key, item)) return;
  cJSON_Delete(item);
  *ok = false;
}

bool hk_append_item(cJSON *array, cJSON *item, bool *ok) {
  if (item && cJSON_AddItemToArray(array, item)) return true;
  cJSON_Delete(item);
  *ok = false;
  return false;
}

cJSON *hk_put_element(cJSON *array, bool *ok) {
  cJSON *element = cJSON_CreateObject();
  return hk_append_item(array, element, ok) ? element : NULL;
}
