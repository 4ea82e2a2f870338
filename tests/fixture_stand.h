/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by tests of the calibration stand: a small stand, and probes with one or two loads. */
#ifndef HK_TESTS_FIXTURE_STAND_H
#define HK_TESTS_FIXTURE_STAND_H

#include "calib/stand/stand.h"
#include "engine/device/backend_host.h"
#include "tests/fixture.h"

/* Options of a stand with 2 cores and one device of `backend`, which is the host backend or built
 * on it. */
static inline hk_stand_options small_on(const hk_backend_ops *backend) {
  return (hk_stand_options){.ops = backend,
                            .gpus = 1,
                            .cores = 2,
                            .host_bytes = 32 * HK_MIB,
                            .device_bytes = 16 * HK_MIB,
                            .host = {.memory = 32 * HK_MIB}};
}

static inline hk_stand *open_stand(const hk_stand_options *options) {
  hk_error err = {0};
  hk_stand *stand = NULL;
  must(hk_stand_open(options, &stand, &err), &err);
  return stand;
}

/* `b` may be NULL. */
static inline hk_probe probe_of(const char *name, hk_load a, const hk_load *b) {
  hk_probe p = {.n_loads = b == NULL ? 1 : 2};
  snprintf(p.name, sizeof p.name, "%s", name);
  p.loads[0] = a;
  if (b != NULL) p.loads[1] = *b;
  return p;
}

#endif
