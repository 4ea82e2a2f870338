/* SPDX-License-Identifier: Apache-2.0 */
/* The rule of clip.h. The logarithm of the next norm is taken to be normally distributed, with an
 * exponentially weighted mean of the logarithms so far, and the weighted mean square of the errors
 * of that prediction as its variance. With p the probability of a norm above the limit, running
 * ahead costs p x loss, where loss is how much longer a step takes whose updates are done again
 * than one whose updates wait; waiting costs (1 - p) x gain, where gain is how much shorter a step
 * is whose updates ran ahead. So updates run ahead while p <= gain / (gain + loss). */
#include "engine/train/clip.h"

#include <math.h>
#include <string.h>

/* Weights of the newest norm in the mean, and of its error in the variance; variance before there
 * are errors. On the recorded norms of tests/data/grad-norms.csv the rule loses within 3 % as much
 * time with weights from 0.15 to 0.35 and from 1/32 to 1/8, and 8 % more with 0.5. */
#define MEAN_WEIGHT     0.25
#define VARIANCE_WEIGHT 0.0625
#define FIRST_VARIANCE  0.1

/* loss / gain: without a plan that says it, until enough steps of each kind have been timed; and
 * the bounds of what timed steps and plans may say, because a disturbed measurement must not decide
 * for good, and a simulation knows neither the end nor the new begin of a run. */
#define USUAL_RATIO 0.25
#define LEAST_RATIO 0.0625
#define MOST_RATIO  1.0

/* Fewest timed steps of a kind. The first ones include what a program does once. */
enum { FEWEST_TIMES = 3 };

void hk_clip_note_norm(hk_clip_history *h, double norm, double most) {
  h->most = most;
  if (!(norm > 0) || !isfinite(norm)) return;
  const double error = log(norm) - h->mean;
  if (h->any) {
    h->variance += VARIANCE_WEIGHT * (error * error - h->variance);
    h->mean += MEAN_WEIGHT * error;
    return;
  }
  h->any = true;
  h->mean = log(norm);
  h->variance = FIRST_VARIANCE;
}

void hk_clip_forget(hk_clip_history *h) {
  h->any = false;
  h->mean = h->variance = h->most = 0;
}

void hk_clip_note_time(hk_clip_history *h, hk_step_kind kind, hk_ns time) {
  h->times[kind][h->n_times[kind]++ % HK_CLIP_TIMES] = time;
}

hk_ns hk_clip_time(const hk_clip_history *h, hk_step_kind kind) {
  if (h->n_times[kind] < FEWEST_TIMES) return 0;
  const int n = (int)hk_min(h->n_times[kind], HK_CLIP_TIMES);
  hk_ns sorted[HK_CLIP_TIMES];
  for (int i = 0; i < n; i++) {
    int at = i;
    for (; at > 0 && sorted[at - 1] > h->times[kind][i]; at--) sorted[at] = sorted[at - 1];
    sorted[at] = h->times[kind][i];
  }
  return sorted[n / 2];
}

double hk_clip_chance(const hk_clip_history *h) {
  if (!h->any || !(h->most > 0)) return 0;
  const double above = h->mean - log(h->most);
  if (h->variance <= 0) return above > 0 ? 1 : 0;
  return 0.5 * erfc(-above / sqrt(2 * h->variance));
}

static double ratio_of(double gain, double loss) {
  return gain > 0 ? fmin(fmax(loss / gain, LEAST_RATIO), MOST_RATIO) : MOST_RATIO;
}

double hk_clip_limit(const hk_clip_history *h) {
  const hk_ns held = hk_clip_time(h, HK_STEP_HELD), kept = hk_clip_time(h, HK_STEP_KEPT);
  const hk_ns redone = hk_clip_time(h, HK_STEP_REDONE);
  double ratio = USUAL_RATIO;
  if (held > 0 && kept > 0 && redone > 0) {
    ratio = ratio_of((double)(held - kept), (double)(redone - held));
  } else if (h->planned.gain > 0) {
    ratio = ratio_of((double)h->planned.gain, (double)h->planned.loss);
  }
  return 1 / (1 + ratio);
}
