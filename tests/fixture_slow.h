/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A CPU team that is slower than the GPU, which then takes pieces from it. */
#ifndef HK_TESTS_FIXTURE_SLOW_H
#define HK_TESTS_FIXTURE_SLOW_H

#include <stdatomic.h>
#include <time.h>

#include "engine/private.h"

static const hk_cpu_kernels *usual_kernels;
static long slow_ns = 300000;
static _Atomic int64_t updated_slowly; /* parameters */

static inline void slow_update(hk_format format, const hk_adamw_step *step, hk_grad_type type,
                               int64_t n, hk_state_at from, hk_state_at to, const void *grad,
                               uint16_t *w, int64_t index) {
  nanosleep(&(struct timespec){.tv_nsec = slow_ns}, NULL);
  atomic_fetch_add(&updated_slowly, n);
  usual_kernels->update(format, step, type, n, from, to, grad, w, index);
}

/* From now on each call of the engine's AdamW on the CPU takes slow_ns longer. */
static inline void slow_down(hk_engine *e) {
  static hk_cpu_kernels slow;
  if (usual_kernels == NULL) usual_kernels = e->kernels;
  slow = *usual_kernels;
  slow.update = slow_update;
  e->kernels = &slow;
}

#endif
