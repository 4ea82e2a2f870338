/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of a step, and the list of CPU kernels. */
#include "engine/adamw/adamw.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/adamw/adamw_kernels.h"

hk_adamw_step hk_adamw_prepare(const hk_adamw *hyper, int64_t step, double grad_scale) {
  const double t = (double)step;
  return (hk_adamw_step){
      .scale = (float)grad_scale,
      .decay = (float)(1 - hyper->lr * hyper->weight_decay),
      .rest1 = (float)(1 - hyper->beta1),
      .beta2 = (float)hyper->beta2,
      .rest2 = (float)(1 - hyper->beta2),
      .root2 = (float)sqrt(1 - pow(hyper->beta2, t)),
      .eps = (float)hyper->eps,
      .size = (float)(hyper->lr / (1 - pow(hyper->beta1, t))),
  };
}

#ifdef HK_X86
#include <cpuid.h>

/* Older versions of clang do not accept this name in __builtin_cpu_supports. */
static bool has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static hk_cpu_kernels list[3];
static size_t list_length;
static const hk_cpu_kernels *best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void add(const hk_cpu_kernels *kernels, bool supported) {
  list[list_length] = *kernels;
  list[list_length].supported = supported;
  list_length++;
}

static void choose(void) {
  add(&hk_kernels_scalar, true);
#ifdef HK_X86
  __builtin_cpu_init();
  add(&hk_kernels_avx2,
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c());
  add(&hk_kernels_avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"));
#elif defined(HK_ARM64)
  add(&hk_kernels_neon, true);
#endif
  const char *wish = getenv("HOCKET_ISA");
  const hk_cpu_kernels *wished = NULL;
  for (size_t i = 0; i < list_length; i++) {
    if (!list[i].supported) continue;
    best = &list[i];
    if (wish != NULL && strcmp(wish, list[i].name) == 0) wished = &list[i];
  }
  if (wished != NULL) best = wished;
}

const hk_cpu_kernels *hk_cpu_kernels_list(size_t *n) {
  pthread_once(&once, choose);
  *n = list_length;
  return list;
}

const hk_cpu_kernels *hk_cpu_kernels_best(void) {
  pthread_once(&once, choose);
  return best;
}
