/* SPDX-License-Identifier: GPL-3.0-or-later */
/* v kept as bf16 over 100,000 steps with beta2 = 0.999: rounded at random it has the mean of v in
 * fp64, rounded to nearest it does not. The kernel of this processor runs every step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/adamw/formats.h"

enum { N = 1024, STEPS = 100000, POOL = 1 << 16 };

typedef struct {
  float p[N];
  uint16_t m[N], v[N];
} kept;

static uint64_t state = 1;

static uint64_t next(void) { /* SplitMix64 */
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static float uniform(void) { /* -1 .. 1 */
  return (float)((double)(int64_t)next() * 0x1p-63);
}

/* Mean of v / exact - 1, and its standard error. */
static double bias(const uint16_t *v, const double *exact, double *error) {
  double sum = 0, squares = 0;
  for (int i = 0; i < N; i++) {
    const double off = (double)hk_from_bf16(v[i]) / exact[i] - 1;
    sum += off;
    squares += off * off;
  }
  const double mean = sum / N;
  *error = sqrt((squares / N - mean * mean) / N);
  return mean;
}

static void one_step(int step, const float *grad, kept *random, uint16_t *nearest, double *exact) {
  const hk_adamw hyper = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  const hk_state_at at = {(char *)random->p, NULL, (char *)random->m, (char *)random->v, NULL};
  hk_adamw_step s = hk_adamw_prepare(&hyper, step, 1);
  hk_random_key(7, 1, step, s.key);
  hk_cpu_kernels_best()->update(HK_FORMAT_BF16, &s, HK_GRAD_FP32, N, at, at, grad, NULL, 0);
  for (int i = 0; i < N; i++) {
    const double g = (double)grad[i];
    exact[i] = exact[i] * (double)s.beta2 + (double)s.rest2 * g * g;
    const float old = hk_from_bf16(nearest[i]);
    nearest[i] = hk_round_m(fmaf(s.rest2 * grad[i], grad[i], old * s.beta2));
  }
}

/* Gradients are 10 times smaller in the second half. */
static void test_v_over_many_steps(void **cmocka) {
  (void)cmocka;
  static float pool[2][POOL + N];
  static kept random;
  static uint16_t nearest[N];
  static double exact[N];
  for (int i = 0; i < POOL + N; i++) {
    pool[0][i] = uniform();
    pool[1][i] = 0.1f * pool[0][i];
  }
  for (int step = 1; step <= STEPS; step++) {
    const int small = step > STEPS / 2;
    one_step(step, pool[small] + next() % POOL, &random, nearest, exact);
    if (step % (STEPS / 10) != 0) continue;
    double error, error_of_nearest;
    const double off = bias(random.v, exact, &error);
    const double off_of_nearest = bias(nearest, exact, &error_of_nearest);
    print_message("step %d: random %+.4f %% +- %.4f, nearest %+.2f %% +- %.2f\n", step, 100 * off,
                  100 * error, 100 * off_of_nearest, 100 * error_of_nearest);
    assert_true(fabs(off) < 4 * error);
    assert_true(error < 0.005);
    assert_true(fabs(off_of_nearest) > 0.1);
    if (small) assert_true(off_of_nearest > 50); /* it does not fall */
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_v_over_many_steps)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
