/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a machine's document that nobody reads. */
#include <stdio.h>
#include <string.h>

#include "core/base/names.h"
#include "core/machine/machine.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

static const char *const OF_DOCUMENT[] = {"schema",      "name",      "description", "quantities",
                                          "calibration", "fitted_on", "residuals",   "notes"};
static const char *const OF_QUANTITY[] = {"value",          "origin",     "source",    "error",
                                          "standard_error", "before_fit", "before_set"};

typedef struct {
  char *buffer;
  size_t size, used;
} text;

static bool is_in(const char *name, const char *const *names, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(names[i], name) == 0) return true;
  return false;
}

/* Adds whole names only: 'key' or 'quantity: key' in quotes, and the known key that is near. */
static void add_unknown(const cJSON *object, const char *of, const char *const *names, size_t n,
                        text *t) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, object) {
    if (is_in(item->string, names, n)) continue;
    const char *near = hk_nearest(item->string, names, n);
    char one[200];
    snprintf(one, sizeof one, "%s'%.60s%s%.60s'%s%s%s", t->used > 0 ? ", " : "", of,
             *of ? ": " : "", item->string, near ? " (is it '" : "", near ? near : "",
             near ? "'?)" : "");
    const size_t length = strlen(one);
    if (t->used + length >= t->size) return;
    memcpy(t->buffer + t->used, one, length + 1);
    t->used += length;
  }
}

const char *hk_machine_unknown_keys(const cJSON *document, char *buffer, size_t size) {
  text t = {.buffer = buffer, .size = size};
  const cJSON *quantity = NULL;
  buffer[0] = '\0';
  add_unknown(document, "", OF_DOCUMENT, COUNT(OF_DOCUMENT), &t);
  cJSON_ArrayForEach(quantity, cJSON_GetObjectItemCaseSensitive(document, "quantities"))
      add_unknown(quantity, quantity->string, OF_QUANTITY, COUNT(OF_QUANTITY), &t);
  return buffer;
}
