/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend's GATHER and SCATTER. The framework's tensors may lie in any host memory. */
#include <string.h>

#include "engine/adamw/adamw_kernels.h"
#include "engine/device/host_device.h"

static hk_status check_gather(hk_host_device *device, const hk_segment *s, hk_error *err) {
  const hk_bytes bytes = s->n * (hk_bytes)hk_grad_size(s->from_type);
  HK_TRY(hk_host_check_end(device, "gradients", s->from, bytes, err));
  HK_TRY(hk_host_check_range(device, "a place for gradients", s->to, bytes, false, err));
  if (s->bins == NULL) return HK_OK;
  return hk_host_check_range(device, "bins", s->bins, 8 * hk_squares_bin_words(s->to_type), false,
                             err);
}

static hk_status check_scatter(hk_host_device *device, const hk_segment *s, const hk_kernel *k,
                               hk_error *err) {
  const hk_bytes from = s->n * (hk_bytes)hk_grad_size(s->from_type);
  HK_TRY(hk_host_check_range(device, "new weights", s->from, from, k->mapped, err));
  return hk_host_check_end(device, "a place for weights", s->to,
                           s->n * (hk_bytes)hk_grad_size(s->to_type), err);
}

hk_status hk_host_segments_check(hk_host_device *device, const hk_kernel *k, hk_error *err) {
  HK_TRY(hk_segments_check(k, err));
  for (int i = 0; i < k->n_segments; i++) {
    const hk_segment *s = &k->segments[i];
    if (s->n == 0) continue;
    const hk_status status = k->kind == HK_KERNEL_GATHER ? check_gather(device, s, err)
                                                         : check_scatter(device, s, k, err);
    if (status != HK_OK) return hk_fail_prefix(err, "segment %d", i);
  }
  return HK_OK;
}

/* Not inlined, because compilers move arithmetic past writes of the floating-point control
 * register. */
static __attribute__((noinline)) void add(hk_grad_type type, int64_t n, const void *from,
                                          void *to) {
  if (type == HK_GRAD_FP32) {
    const float *x = from;
    float *sum = to;
    for (int64_t i = 0; i < n; i++) sum[i] = hk_canonical(sum[i] + x[i]);
    return;
  }
  const uint16_t *x = from;
  uint16_t *sum = to;
  if (type == HK_GRAD_BF16) {
    for (int64_t i = 0; i < n; i++) sum[i] = hk_to_bf16(hk_from_bf16(sum[i]) + hk_from_bf16(x[i]));
  } else {
    for (int64_t i = 0; i < n; i++) sum[i] = hk_to_fp16(hk_from_fp16(sum[i]) + hk_from_fp16(x[i]));
  }
}

static void gather(const hk_segment *s, int64_t at, int64_t n, pthread_mutex_t *lock) {
  const size_t size = hk_grad_size(s->from_type);
  const char *from = (const char *)s->from + at * (int64_t)size;
  char *to = (char *)s->to + at * (int64_t)size;
  if (s->add) {
    const unsigned before = hk_float_enter();
    add(s->to_type, n, from, to);
    hk_float_leave(before);
  } else if (to != from) {
    memcpy(to, from, (size_t)n * size);
  }
  if (s->bins == NULL) return;
  uint64_t set[HK_SQUARES_MOST_WORDS] = {0};
  hk_squares_fill_set(set, s->to_type, n, to);
  pthread_mutex_lock(lock);
  for (int i = 0; i < hk_squares_bin_words(s->to_type); i++) s->bins[i] += set[i];
  pthread_mutex_unlock(lock);
}

static void scatter(const hk_segment *s, int64_t at, int64_t n, const hk_cpu_kernels *cpu) {
  const int64_t from_size = (int64_t)hk_grad_size(s->from_type);
  const char *from = (const char *)s->from + at * from_size;
  char *to = (char *)s->to + at * (int64_t)hk_grad_size(s->to_type);
  if (s->from_type == s->to_type) {
    memcpy(to, from, (size_t)(n * from_size));
    return;
  }
  const float *x = (const float *)(const void *)from;
  uint16_t *h = (uint16_t *)(void *)to;
  if (s->to_type == HK_GRAD_BF16) {
    cpu->cast_down(n, x, h);
  } else {
    for (int64_t i = 0; i < n; i++) h[i] = hk_to_fp16(x[i]);
  }
}

void hk_host_segments_run(const hk_kernel *k, const hk_cpu_kernels *cpu, int64_t first, int64_t n,
                          pthread_mutex_t *lock) {
  for (int i = 0; i < k->n_segments && n > 0; i++) {
    const hk_segment *s = &k->segments[i];
    if (first < s->n) {
      const int64_t here = hk_min(n, s->n - first);
      if (k->kind == HK_KERNEL_GATHER) {
        gather(s, first, here, lock);
      } else {
        scatter(s, first, here, cpu);
      }
      n -= here;
      first = 0;
    } else {
      first -= s->n;
    }
  }
}
