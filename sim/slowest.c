/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The expected maximum of slowest.h. */
#include "sim/slowest.h"

#include <math.h>

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
double hk_slowest_rate(double computed, double launched, double scatter, int ranks) {
  enum { STEPS = 64 };
  static const double MOST = 8;
  if (ranks <= 1 || scatter <= 0) return fmin(computed, launched);
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
