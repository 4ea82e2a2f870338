/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the backends share. */
#include "engine/device/backend.h"

#include <limits.h>

hk_status hk_event_check_awaited(const hk_event *e, hk_error *err) {
  if (e->awaited) return HK_OK;
  return hk_fail(err, HK_INPUT, "a thread waits for an event that was opened for streams only");
}

bool hk_grad_is_aligned(const void *array, hk_grad_type type) {
  return (uintptr_t)array % hk_grad_size(type) == 0;
}

static hk_status check_segment(const hk_segment *s, bool gather, hk_error *err) {
  if (s->n < 0 || s->n > INT64_MAX / 1024 || (unsigned)s->from_type >= HK_GRAD_TYPES ||
      (unsigned)s->to_type >= HK_GRAD_TYPES) {
    return hk_fail(err, HK_INPUT,
                   "%lld values of type %d to type %d: the number or a type is out of range",
                   (long long)s->n, (int)s->from_type, (int)s->to_type);
  }
  const bool same = s->from_type == s->to_type;
  if (!same && (gather || s->from_type != HK_GRAD_FP32)) {
    return hk_fail(err, HK_INPUT, "values of type %d are not converted to type %d: %s",
                   (int)s->from_type, (int)s->to_type,
                   gather ? "a gather keeps the type" : "only fp32 is rounded to bf16 or fp16");
  }
  if (!gather && (s->add || s->bins != NULL)) {
    return hk_fail(err, HK_INPUT,
                   "a scatter with an addition or a sum of squares: only a gather has these");
  }
  if (s->bins != NULL && s->n > HK_SQUARES_MOST) {
    return hk_fail(err, HK_INPUT, "squares of %lld gradients at once: bins take at most %lld",
                   (long long)s->n, (long long)HK_SQUARES_MOST);
  }
  if (!hk_grad_is_aligned(s->from, s->from_type) || !hk_grad_is_aligned(s->to, s->to_type) ||
      (uintptr_t)s->bins % sizeof *s->bins != 0) {
    return hk_fail(err, HK_INPUT, "an array's address is not a multiple of its elements' size");
  }
  return HK_OK;
}

hk_status hk_segments_check(const hk_kernel *k, hk_error *err) {
  if (k->n_segments < 1 || k->n_segments > HK_SEGMENTS_MOST || k->segments == NULL) {
    return hk_fail(err, HK_INPUT, "a kernel on %d segments: it takes 1 to %d", k->n_segments,
                   HK_SEGMENTS_MOST);
  }
  int64_t n = 0;
  for (int i = 0; i < k->n_segments; i++) {
    if (check_segment(&k->segments[i], k->kind == HK_KERNEL_GATHER, err) != HK_OK) {
      return hk_fail_prefix(err, "segment %d", i);
    }
    n += k->segments[i].n;
  }
  if (n == k->n) return HK_OK;
  return hk_fail(err, HK_INPUT, "a kernel on %lld values: its segments have %lld", (long long)k->n,
                 (long long)n);
}

static bool is_size(int64_t n) {
  return n >= 1 && n <= INT_MAX;
}

hk_status hk_matmul_check_sizes(const hk_kernel *k, hk_error *err) {
  if (is_size(k->rows) && is_size(k->columns) && is_size(k->depth)) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "a matrix product of %lld rows, %lld columns and depth %lld: each must be 1 to %d",
                 (long long)k->rows, (long long)k->columns, (long long)k->depth, INT_MAX);
}
