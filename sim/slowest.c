/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The expected maximum of slowest.h. */
#include "sim/slowest.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* By squaring: pow() took half of the time of a simulation. */
static double power(double base, int exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

/* With u = ln(t / L) / scatter, by Simpson's rule; beyond 8 standard deviations nothing is left. */
static double integrate(double computed, double launched, double scatter, int ranks) {
  enum { STEPS = 64 };
  static const double MOST = 8;
  const double from = fmax(log(launched / computed) / scatter, -MOST); /* of t = 1 / computed */
  if (from >= MOST) return computed;
  const double step = (MOST - from) / STEPS, least = exp(scatter * from),
               grow = exp(scatter * step);
  double sum = 0, t = least; /* t: of launches, their median is 1 */
  for (int i = 0; i <= STEPS; i++) {
    const double faster = 0.5 * erfc(-(from + i * step) / sqrt(2));
    const double weight = i == 0 || i == STEPS ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * (1 - power(faster, ranks)) * t;
    t *= grow;
  }
  return launched / (least + scatter * sum * step / 3);
}

/* A search asks for the same rates in each of its simulations: the latest answers of a thread, by a
 * hash of the question. */
double hk_slowest_rate(double computed, double launched, double scatter, int ranks) {
  enum { SLOTS = 64 };
  typedef struct {
    double computed, launched, scatter, rate;
    int ranks;
  } answer;
  static _Thread_local answer answers[SLOTS];
  if (ranks <= 1 || scatter <= 0) return fmin(computed, launched);
  uint64_t c, l;
  memcpy(&c, &computed, sizeof c);
  memcpy(&l, &launched, sizeof l);
  answer *a = &answers[(c ^ l << 7) * UINT64_C(0x9e3779b97f4a7c15) >> 58];
  _Static_assert(SLOTS == 1 << 6, "as many slots as 64 - 58 bits number");
  if (a->computed != computed || a->launched != launched || a->scatter != scatter ||
      a->ranks != ranks)
    *a =
        (answer){computed, launched, scatter, integrate(computed, launched, scatter, ranks), ranks};
  return a->rate;
}
