/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the number of threads while training. tests/test_engine_adapt.c drives it with
 * times of a model. */
#include "engine/train/adapt.h"

#include <math.h>
#include <stdio.h>

/* Weights of a new value in the mean and in the variance; what is known of the scatter at first;
 * and the largest distance from the mean that counts, in standard deviations, so that one long
 * iteration does not hide later changes. */
#define MEAN_WEIGHT     0.125
#define VARIANCE_WEIGHT 0.0625
#define FIRST_SCATTER   0.03
#define LEAST_SCATTER   0.003
#define MOST_DISTANCE   4.0

/* Iterations that are not counted at first, because programs compile and allocate in them; and
 * those that say how long an iteration takes. */
enum { WARM = 3, SETTLED = 8 };

/* An iteration so many times as long as usual has paused, for an evaluation or a checkpoint, and
 * does not count, unless more than MOST_PAUSES follow each other. */
#define PAUSE 3.0
enum { MOST_PAUSES = 3 };

/* So many iterations of another kind in a row are what training consists of now. */
enum { MOST_OTHERS = 4 };

/* A round of tries begins when the median of the last iterations has moved by this share and by so
 * many standard deviations. */
#define LEAST_DRIFT  0.05
#define DRIFT_ERRORS 3.0

#define MOST_MISS 0.1

/* A try ends when its gain is larger or smaller than LEAST_GAIN by so many standard errors, or
 * after MOST_PAIRS pairs. It succeeds after no fewer than LEAST_PAIRS, and with few of them, which
 * say little of their scatter, only by more standard errors: 1 + 1 / pairs times as many. */
#define LEAST_GAIN 0.01
#define ERRORS     2.0
enum { LEAST_PAIRS = 2, MOST_PAIRS = 12 };

/* Iterations without a round after one in which nothing was gained: doubled each time. */
enum { LEAST_REST = 8, MOST_REST = 512 };

/* -- Estimates --------------------------------------------------------------------------------- */

static double scatter_of(const hk_estimate *e) {
  return fmax(sqrt(e->variance), LEAST_SCATTER);
}

void hk_estimate_add(hk_estimate *e, double value) {
  const double x = log(value);
  if (e->n++ == 0) {
    e->mean = x;
    e->variance = FIRST_SCATTER * FIRST_SCATTER;
    return;
  }
  const double most = MOST_DISTANCE * scatter_of(e);
  const double distance = fmin(fmax(x - e->mean, -most), most);
  e->variance +=
      fmax(VARIANCE_WEIGHT, 1.0 / (double)(e->n + 1)) * (distance * distance - e->variance);
  e->mean += fmax(MEAN_WEIGHT, 1.0 / (double)e->n) * distance;
}

double hk_estimate_value(const hk_estimate *e) {
  return e->n > 0 ? exp(e->mean) : 0;
}

double hk_estimate_scatter(const hk_estimate *e) {
  return e->n > 0 ? scatter_of(e) : 0;
}

/* -- Tries ------------------------------------------------------------------------------------- */

/* The next number of threads in this direction, a quarter more or fewer; `from` at the end. */
static int next_threads(const hk_adapt *a, int from, int direction) {
  const int part = from / 4 > 1 ? from / 4 : 1;
  const int to = from + direction * part;
  return to < 1 ? 1 : to > a->most ? a->most : to;
}

static void begin_try(hk_adapt *a, int candidate) {
  a->candidate = a->threads = candidate;
  a->pairs = 0;
  a->sum = a->squares = a->sum_candidate = 0;
  a->tries++;
}

/* Nothing is left to try: goes on with what has proved best. */
static void end_round(hk_adapt *a) {
  a->candidate = 0;
  a->threads = a->kept;
  a->anchor = a->iteration.mean;
  a->anchor_rate = hk_estimate_value(&a->rate);
  a->seen = 0;
  if (a->gained) {
    a->rest = 0;
    a->next_rest = LEAST_REST;
  } else {
    a->rest = a->next_rest;
    a->next_rest = a->next_rest < MOST_REST ? 2 * a->next_rest : MOST_REST;
  }
}

/* Tries the next number in the round's direction, or after a failure in the other one. */
static void go_on(hk_adapt *a) {
  int to = next_threads(a, a->kept, a->direction);
  if (to == a->kept && !a->gained && !a->turned) {
    a->turned = true;
    a->direction = -a->direction;
    to = next_threads(a, a->kept, a->direction);
  }
  if (to == a->kept) {
    end_round(a);
  } else {
    begin_try(a, to);
  }
}

static void begin_round(hk_adapt *a, double level) {
  a->level = a->iteration.mean = level;
  a->turned = a->gained = false;
  a->direction = a->kept > a->planned ? -1 : 1;
  a->rate = (hk_estimate){.n = 0}; /* the team's rate has changed, too */
  go_on(a);
}

static void succeed(hk_adapt *a, int64_t step) {
  a->latest = (hk_adapt_switch){.step = step,
                                .from = a->kept,
                                .to = a->candidate,
                                .gain = 1 - exp(-a->sum / a->pairs),
                                .before = (hk_ns)exp(a->anchor),
                                .now = (hk_ns)exp(a->level),
                                .rate_before = a->anchor_rate,
                                .rate = hk_estimate_value(&a->rate)};
  a->switches++;
  a->gained = true;
  a->kept = a->candidate;
  a->level = a->anchor = a->iteration.mean = a->sum_candidate / a->pairs;
  a->rate = (hk_estimate){.n = 0};
  go_on(a);
}

static void fail(hk_adapt *a) {
  if (a->gained || a->turned) {
    end_round(a);
    return;
  }
  a->turned = true;
  a->direction = -a->direction;
  go_on(a);
}

/* An iteration with the candidate: compares it with the one before it, of the number in use. */
static void judge(hk_adapt *a, int64_t step, double x) {
  const double difference = a->level - x;
  a->pairs++;
  a->sum += difference;
  a->squares += difference * difference;
  a->sum_candidate += x;
  const double n = a->pairs, mean = a->sum / n, watched = scatter_of(&a->iteration);
  double variance = 2 * watched * watched;
  if (a->pairs > 1) variance = fmax(variance, (a->squares - n * mean * mean) / (n - 1));
  const double error = ERRORS * sqrt(variance / n);
  if (a->pairs >= LEAST_PAIRS && mean - (1 + 1 / n) * error > LEAST_GAIN) {
    succeed(a, step);
  } else if (mean + error < LEAST_GAIN || a->pairs == MOST_PAIRS) {
    fail(a);
  } else {
    a->threads = a->kept;
  }
}

/* -- Watching ---------------------------------------------------------------------------------- */

static double median_of_three(const double *v) {
  return fmax(fmin(v[0], v[1]), fmin(fmax(v[0], v[1]), v[2]));
}

/* Once it is known how long an iteration takes: if the plan predicted another time, this has moved
 * from there. A prediction may be wrong by MOST_MISS. */
static void compare_with_plan(hk_adapt *a) {
  if (a->iteration.n < SETTLED || a->expected == 0) return;
  const double most = fmax(MOST_MISS, DRIFT_ERRORS * scatter_of(&a->iteration));
  if (fabs(a->iteration.mean - a->expected) > most) {
    a->anchor = a->expected;
    a->anchor_rate = 0;
  }
  a->expected = 0;
}

/* Values of a time that has moved, and of pauses, do not count for the scatter. */
static void watch(hk_adapt *a, double x, double rate) {
  const double least = fmax(LEAST_DRIFT, DRIFT_ERRORS * scatter_of(&a->iteration));
  const bool settled = a->iteration.n >= SETTLED;
  a->last[a->seen++ % HK_ADAPT_LAST] = x;
  if (a->rest > 0) a->rest--;
  if (!settled || fabs(x - a->anchor) <= least) {
    hk_estimate_add(&a->iteration, exp(x));
    if (rate > 0) hk_estimate_add(&a->rate, rate);
  }
  if (!settled) {
    a->anchor = a->iteration.mean;
    a->anchor_rate = hk_estimate_value(&a->rate);
    compare_with_plan(a);
  } else if (a->seen >= HK_ADAPT_LAST && a->rest == 0) {
    const double level = median_of_three(a->last);
    if (fabs(level - a->anchor) > least) begin_round(a, level);
  }
}

/* Times so far say nothing about those to come. */
static void forget(hk_adapt *a) {
  a->threads = a->kept;
  a->candidate = 0;
  a->iteration = a->rate = (hk_estimate){.n = 0};
  a->seen = -WARM;
}

void hk_adapt_begin(hk_adapt *a, int threads, int most, hk_ns expected) {
  *a = (hk_adapt){.on = most > 1,
                  .kept = threads,
                  .planned = threads,
                  .most = most,
                  .expected = expected > 0 ? log((double)expected) : 0,
                  .next_rest = LEAST_REST};
  forget(a);
}

/* Whether the iteration is of another kind than those that count. If MOST_OTHERS follow each other,
 * their kind is the one that counts. */
static bool is_other(hk_adapt *a, int kind) {
  a->others = kind != a->kind ? a->others + 1 : 0;
  if (a->others < MOST_OTHERS) return a->others > 0;
  a->kind = kind;
  a->others = 0;
  forget(a);
  return false;
}

static bool is_pause(hk_adapt *a, double x) {
  const bool longer = a->iteration.n > 0 && x > a->iteration.mean + log(PAUSE);
  a->pauses = longer ? a->pauses + 1 : 0;
  return longer && a->pauses <= MOST_PAUSES;
}

void hk_adapt_note(hk_adapt *a, int64_t step, int kind, hk_ns time, double rate) {
  if (!a->on || time <= 0 || is_other(a, kind)) return;
  const double x = log((double)time);
  if (a->seen < 0) {
    a->seen++;
  } else if (is_pause(a, x)) {
    return;
  } else if (a->candidate == 0) {
    watch(a, x, rate);
  } else if (a->threads == a->candidate) {
    judge(a, step, x);
  } else { /* the turn of the number in use */
    a->level = x;
    hk_estimate_add(&a->iteration, (double)time);
    if (rate > 0) hk_estimate_add(&a->rate, rate);
    a->threads = a->candidate;
  }
}

/* -- What is said of it ------------------------------------------------------------------------ */

void hk_adapt_reason(const hk_adapt *a, const char *what, char *text, size_t size) {
  const hk_adapt_switch *s = &a->latest;
  char rates[96] = "";
  text[0] = 0;
  if (a->switches == 0) return;
  if (s->rate > 0 && s->rate_before > 0) {
    snprintf(rates, sizeof rates, " (the CPU updated %.3g elements a second instead of %.3g)",
             s->rate, s->rate_before);
  }
  snprintf(text, size,
           "after step %lld the CPU team has %d threads instead of %d: %s took %.4g ms instead of "
           "%.4g%s, and %.1f %% less with %d threads in turns",
           (long long)s->step, s->to, s->from, what, hk_ms(s->now), hk_ms(s->before), rates,
           100 * s->gain, s->to);
}
