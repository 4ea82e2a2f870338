/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a backend by name. */
#include "engine/device/backend.h"

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
