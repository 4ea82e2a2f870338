/* SPDX-License-Identifier: Apache-2.0 */
/* The backends by name, and what all of them check alike. */
#include "engine/backend.h"

#include <limits.h>
#include <string.h>

hk_status hk_backend_find(const char *name, const hk_backend_ops **ops, hk_error *err) {
  static const hk_backend_ops *const all[] = {&hk_backend_cuda, &hk_backend_host};
  *ops = NULL;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (strcmp(name, all[i]->name) == 0) *ops = all[i];
  }
  if (*ops != NULL) return HK_OK;
  return hk_fail(err, HK_INPUT, "no backend '%s': there are %s and %s", name, all[0]->name,
                 all[1]->name);
}

hk_status hk_event_check_awaited(const hk_event *e, hk_error *err) {
  if (e->awaited) return HK_OK;
  return hk_fail(err, HK_INPUT, "a thread waits for an event that was not opened to be awaited");
}

static bool is_size(int64_t n) {
  return n >= 1 && n <= INT_MAX;
}

hk_status hk_matmul_check_sizes(const hk_kernel *k, hk_error *err) {
  if (is_size(k->rows) && is_size(k->columns) && is_size(k->depth)) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "a matrix product of %lld rows, %lld columns and depth %lld: each is from 1 to %d",
                 (long long)k->rows, (long long)k->columns, (long long)k->depth, INT_MAX);
}
