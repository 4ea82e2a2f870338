/* SPDX-License-Identifier: Apache-2.0 */
/* Doubling: n additions copy fewer than 2 n elements. */
#include "core/base/grow.h"

#include <stdlib.h>
#include <string.h>

hk_status hk_grow(void *items, size_t *room, size_t n, size_t size, const char *what,
                  hk_error *err) {
  if (n < *room) return HK_OK;
  size_t more = *room < 8 ? 16 : 2 * *room;
  if (more <= n) more = n + 1;
  void *old; /* copied, because its type is not void * */
  memcpy(&old, items, sizeof old);
  void *array = realloc(old, more * size);
  if (array == NULL) return hk_fail_memory(err, more * size, what);
  memcpy(items, &array, sizeof array);
  *room = more;
  return HK_OK;
}
