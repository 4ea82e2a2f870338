/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search of pace.h. A faster part of a machine can take host memory or the link from another
 * one; a plan that limits the faster part does at least as well as the slower machine. */
#include "sim/pace.h"

#include <math.h>
#include <string.h>

#include "core/graph/bytes.h"

/* -- gradients that wait on the GPU ------------------------------------------------------- */

/* How many gradients may be on the GPU: blocks (0: any number), and the order of collectives. */
typedef struct {
  hk_flush mode;
  int blocks;
  bool reduce_first;
} flush_limit;

static hk_status with_limit(const hk_plan *plan, flush_limit limit, const hk_machine *machine,
                            hk_forecast *out, hk_error *err) {
  hk_plan other;
  HK_TRY(hk_plan_copy(plan, &other, err));
  other.pace.flush = limit.blocks;
  other.pace.reduce_first = limit.reduce_first;
  other.flush = limit.mode;
  if (limit.mode == HK_FLUSH_SYNC) other.flush_bytes_per_param = 2;
  return hk_forecast_make(&other, machine, NULL, out, err);
}

/* Puts the plan with the limit in *found if it fits. *fits: whether it does. */
static hk_status try_limit(const hk_plan *plan, flush_limit limit, const hk_machine *machine,
                           hk_forecast *found, bool *fits, hk_error *err) {
  hk_forecast other;
  HK_TRY(with_limit(plan, limit, machine, &other, err));
  *fits = other.feasible;
  hk_forecast_free(*fits ? found : &other);
  if (*fits) *found = other;
  return HK_OK;
}

/* The plan with the most blocks whose gradients may wait that fits; *found stays as it is if none
 * does. */
static hk_status most_blocks(const hk_plan *plan, bool reduce_first, const hk_machine *machine,
                             hk_forecast *found, hk_error *err) {
  int least = 0, most = (int)plan->model.layers + 2; /* the answer is least .. most - 1 */
  while (most - least > 1) {
    const int middle = least == 0 ? 1 : least + (most - least) / 2;
    const flush_limit limit = {HK_FLUSH_ASYNC, middle, reduce_first};
    bool fits = false;
    HK_TRY(try_limit(plan, limit, machine, found, &fits, err));
    if (fits)
      least = middle;
    else
      most = middle;
  }
  return HK_OK;
}

/* Tries the order of collectives that needs less memory, with any number of blocks and, if
 * gradients may wait, with the most that fit. */
static hk_status reduce_first(const hk_plan *plan, bool may_wait, const hk_machine *machine,
                              hk_forecast *found, hk_error *err) {
  const flush_limit limit = {HK_FLUSH_ASYNC, 0, true};
  bool fits = false;
  if (hk_job_dp(&plan->job) == 1) return HK_OK;
  HK_TRY(try_limit(plan, limit, machine, found, &fits, err));
  return fits || !may_wait ? HK_OK : most_blocks(plan, true, machine, found, err);
}

static hk_status limit_flush(const hk_plan *plan, bool may_wait, const hk_machine *machine,
                             hk_forecast *found, hk_error *err) {
  hk_forecast first = {0};
  bool fits = false;
  hk_status status = HK_OK;
  if (may_wait) status = most_blocks(plan, false, machine, found, err);
  if (status == HK_OK) status = reduce_first(plan, may_wait, machine, &first, err);
  if (first.feasible && (!found->feasible || first.iteration_ns <= found->iteration_ns)) {
    hk_forecast_free(found);
    *found = first;
  } else {
    hk_forecast_free(&first);
  }
  if (status != HK_OK || found->feasible || !may_wait) return status;
  return try_limit(plan, (flush_limit){HK_FLUSH_SYNC, 0, false}, machine, found, &fits, err);
}

hk_status hk_pace_flush(hk_forecast *forecast, bool may_wait, const hk_machine *machine,
                        hk_error *err) {
  const hk_plan *plan = &forecast->plan;
  hk_forecast found = {0};
  if (forecast->feasible || forecast->gpu_short == 0 || forecast->host_short > 0 ||
      plan->runtime != HK_RUNTIME_HOCKET || plan->flush != HK_FLUSH_ASYNC)
    return HK_OK;
  /* What is there before the first operation does not depend on the flush. */
  if (forecast->graph.gpu_base > forecast->result.memory.capacity) return HK_OK;
  if (plan->overlap != HK_OVERLAP_NONE) may_wait = false;
  const hk_status status = limit_flush(plan, may_wait, machine, &found, err);
  if (status != HK_OK || !found.feasible) {
    hk_forecast_free(&found);
    return status;
  }
  hk_forecast_free(forecast);
  *forecast = found;
  return HK_OK;
}

/* -- strides and paces -------------------------------------------------------------------- */

#define STARTS 5 /* plans whose limits are tuned; one may have its resident state in front */
#define ROUNDS 4
#define LEAST_SHARE \
  500 /* work that takes less than 1/500 of the update at its full rate is not limited */
#define MOST_OPS \
  4e6 /* simulated operations, after which nothing more is tried: about 3 s on one core */
#define FLUSH_TRIALS 6 /* simulations of hk_pace_flush, about */
#define RATIOS       2 /* shares of state on the host that are tried with other strides */

typedef struct {
  const hk_machine *machine;
  hk_forecast *best;    /* the fastest plan so far; zeroed: none was faster than `time` */
  hk_ns time;           /* a plan with a shorter iteration becomes `best` and sets it */
  hk_ns update;         /* of the plan tried last */
  bool short_of_memory; /* it does not fit, or only if backward waits */
  double ops;           /* simulated so far */
  hk_error *err;
} pace_search;

/* Simulates the plan, which is copied. *time: INT64_MAX if it does not fit. */
static hk_status try_plan(pace_search *s, const hk_plan *plan, hk_ns *time) {
  hk_plan copy;
  hk_forecast forecast;
  *time = INT64_MAX;
  s->short_of_memory = false;
  if (s->ops > MOST_OPS) return HK_OK;
  HK_TRY(hk_plan_copy(plan, &copy, s->err));
  HK_TRY(hk_forecast_make(&copy, s->machine, NULL, &forecast, s->err));
  s->ops += (forecast.feasible ? 1 : FLUSH_TRIALS) * (double)forecast.graph.n_ops;
  const hk_status status = hk_pace_flush(&forecast, true, s->machine, s->err);
  if (status != HK_OK) {
    hk_forecast_free(&forecast);
    return status;
  }
  *time = forecast.feasible ? forecast.iteration_ns : INT64_MAX;
  s->update = forecast.update_ns;
  s->short_of_memory =
      !forecast.feasible || forecast.plan.pace.flush > 0 || forecast.plan.pace.reduce_first;
  if (*time < s->time) {
    hk_forecast_free(s->best);
    *s->best = forecast;
    s->time = *time;
  } else {
    hk_forecast_free(&forecast);
  }
  return HK_OK;
}

/* Limits one rate of a plan. */
typedef void (*pace_knob)(hk_plan *plan, double rate);

static void limit_in(hk_plan *plan, double rate) {
  plan->pace.in = rate;
}

static void limit_out(hk_plan *plan, double rate) {
  plan->pace.out = rate;
}

static void limit_both(hk_plan *plan, double rate) {
  plan->pace.in = plan->pace.out = rate;
}

static void limit_cpu(hk_plan *plan, double rate) {
  plan->pace.cpu = rate;
}

/* Sets the limit of *plan, whose time is *time. Tries multiples of `need`, the rate at which the
 * work would take the whole update, that are below `full`, the rate without a limit; then narrows
 * the interval around the best one by golden sections. */
static hk_status tune(pace_search *s, hk_plan *plan, pace_knob knob, double full, double need,
                      hk_ns *time) {
  static const double multiples[] = {0.75, 0.85, 0.93, 1, 1.07, 1.16, 1.3, 1.5, 1.8, 2.3, 3.2};
  enum { N = sizeof multiples / sizeof *multiples, SECTIONS = 8 };
  const double golden = 0.61803398874989485;
  int best = 0;
  if (need * LEAST_SHARE < full || multiples[0] * need < HK_LEAST_PACE) return HK_OK;
  for (int i = 1; i < N && multiples[i] * need < full; i++) {
    hk_plan other = *plan;
    hk_ns t;
    knob(&other, multiples[i] * need);
    HK_TRY(try_plan(s, &other, &t));
    if (t >= *time) continue;
    *time = t;
    best = i;
  }
  if (best == 0) return HK_OK;
  knob(plan, multiples[best] * need);
  double low = multiples[best - 1] * need;
  double high = fmin(full, best + 1 < N ? multiples[best + 1] * need : full);
  double at[2] = {high - golden * (high - low), low + golden * (high - low)};
  hk_ns t[2];
  for (int i = 0; i < 2; i++) {
    hk_plan other = *plan;
    knob(&other, at[i]);
    HK_TRY(try_plan(s, &other, &t[i]));
  }
  for (int i = 0; i < SECTIONS; i++) {
    const int better = t[1] < t[0];
    if (t[better] < *time) {
      *time = t[better];
      knob(plan, at[better]);
    }
    if (better)
      low = at[0], at[0] = at[1], t[0] = t[1], at[1] = low + golden * (high - low);
    else
      high = at[1], at[1] = at[0], t[1] = t[0], at[0] = high - golden * (high - low);
    hk_plan other = *plan;
    knob(&other, at[better]);
    HK_TRY(try_plan(s, &other, &t[better]));
  }
  return HK_OK;
}

/* Tunes all limits of the plan `from`, whose time and update are given. `cpu_first`: in the other
 * order. */
static hk_status tune_all(pace_search *s, const hk_plan *from, hk_ns time, hk_ns update,
                          bool cpu_first) {
  const hk_machine *m = s->machine;
  hk_plan plan = *from; /* shares what `from` points to */
  const double team = hk_update_rate(m, plan.optimizer, (double)plan.cpu_threads);
  const double seconds = (double)hk_max(1, update) / 1e9;
  const double cpu = (double)hk_plan_on_route(&plan, HK_ROUTE_CPU) / seconds;
  const double out =
      (double)hk_state_bytes(plan.optimizer, hk_plan_on_route(&plan, HK_ROUTE_STAGED)) / seconds;
  const double in = out + HK_BYTES_BF16 * cpu;
  for (int round = 0; round < ROUNDS; round++) {
    const hk_ns before = time;
    if (cpu_first) HK_TRY(tune(s, &plan, limit_cpu, team, cpu, &time));
    if (round == 0 && out > 0)
      HK_TRY(tune(s, &plan, limit_both, fmax(m->h2d.value, m->d2h.value), out, &time));
    HK_TRY(tune(s, &plan, limit_in, m->h2d.value, in, &time));
    HK_TRY(tune(s, &plan, limit_out, m->d2h.value, out, &time));
    if (!cpu_first) HK_TRY(tune(s, &plan, limit_cpu, team, cpu, &time));
    if ((double)time > (double)before * (1 - HK_PACE_GAIN / 4)) break;
  }
  return HK_OK;
}

/* -- starts ------------------------------------------------------------------------------- */

/* Plans from which the limits are tuned, the fastest first. */
typedef struct {
  hk_plan plan;
  hk_ns time, update;
} pace_start;

typedef struct {
  pace_start list[STARTS];
  int n;
} pace_starts;

/* Whether two plans have the same amounts of work: as many parameters on each route, and gradients
 * summed at the same place. The same limits suit both, so one of them is enough: strides that send
 * as many subgroups to the GPU would fill the list. */
static bool same_amounts(const hk_plan *a, const hk_plan *b) {
  int64_t n[HK_ROUTE_COUNT], m[HK_ROUTE_COUNT];
  hk_plan_route_totals(a, n);
  hk_plan_route_totals(b, m);
  return memcmp(n, m, sizeof n) == 0 && a->accumulate == b->accumulate;
}

static void drop(pace_starts *starts, int i) {
  hk_plan_free(&starts->list[i].plan);
  starts->n--;
  for (; i < starts->n && i + 1 < STARTS; i++) starts->list[i] = starts->list[i + 1];
}

/* Keeps a copy of the plan if it is one of the fastest, and the fastest with its amounts of work.
 */
static hk_status keep(pace_starts *starts, const hk_plan *plan, hk_ns time, hk_ns update,
                      hk_error *err) {
  hk_plan copy;
  for (int i = 0; i < starts->n; i++) {
    if (!same_amounts(&starts->list[i].plan, plan)) continue;
    if (starts->list[i].time <= time) return HK_OK;
    drop(starts, i);
    break;
  }
  int at = starts->n;
  while (at > 0 && starts->list[at - 1].time > time) at--;
  if (at == STARTS) return HK_OK;
  HK_TRY(hk_plan_copy(plan, &copy, err));
  if (starts->n == STARTS) drop(starts, STARTS - 1);
  for (int i = starts->n++; i > at; i--) starts->list[i] = starts->list[i - 1];
  starts->list[at] = (pace_start){copy, time, update};
  return HK_OK;
}

static void forget(pace_starts *starts) {
  for (int i = 0; i < starts->n; i++) hk_plan_free(&starts->list[i].plan);
  starts->n = 0;
}

static hk_status try_and_keep(pace_search *s, const hk_plan *plan, pace_starts *starts) {
  hk_ns time;
  HK_TRY(try_plan(s, plan, &time));
  return time < INT64_MAX ? keep(starts, plan, time, s->update, s->err) : HK_OK;
}

/* Tries and keeps the plan with another stride, with each way to sum gradients and, if memory is
 * short, with 3, 2 and 1 staging buffers until it suffices. */
static hk_status try_stride(pace_search *s, const hk_plan *from, int stride, pace_starts *starts) {
  const hk_policy_options options = {.stride = stride, .ratio = from->ratio};
  hk_plan plan;
  HK_TRY(hk_plan_copy(from, &plan, s->err));
  const int buffers = plan.buffers;
  plan.pace = (hk_pace){0};
  plan.flush = HK_FLUSH_ASYNC;
  hk_status status = hk_policy_apply(&hk_policy_interleave, &options, s->machine, &plan, s->err);
  for (int a = HK_ACCUMULATE_GPU; a < HK_ACCUMULATE_COUNT && status == HK_OK; a++) {
    if (a > 0 && plan.job.grad_accum == 1) break;
    if (plan.job.grad_accum > 1) plan.accumulate = (hk_accumulate)a;
    status = try_and_keep(s, &plan, starts);
    for (plan.buffers = 3; plan.buffers >= 1 && status == HK_OK && s->short_of_memory;
         plan.buffers--)
      status = try_and_keep(s, &plan, starts);
    plan.buffers = buffers;
  }
  hk_plan_free(&plan);
  return status;
}

static hk_status try_strides(pace_search *s, const hk_plan *from, pace_starts *starts) {
  const int n = (int)from->n_subgroups;
  const int strides[] = {1, 2, 3, 4, 5, 6, 8, (n + 1) / 2, n};
  for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
    if (strides[i] >= 1) HK_TRY(try_stride(s, from, strides[i], starts));
  return HK_OK;
}

/* Of the forecasts under runtime hocket, the one with the smallest ratio above `least`; NULL: none.
 */
static const hk_forecast *next_ratio(const hk_forecast *forecasts, size_t n, double least) {
  const hk_forecast *found = NULL;
  for (size_t i = 0; i < n; i++) {
    const hk_plan *plan = &forecasts[i].plan;
    if (plan->runtime != HK_RUNTIME_HOCKET || plan->ratio <= least) continue;
    if (found == NULL || plan->ratio < found->plan.ratio) found = &forecasts[i];
  }
  return found;
}

/* Collects the starts: the forecasts under runtime hocket; and, with other strides, those with the
 * two smallest shares of state on the host, and the one with all of it there. */
static hk_status find_starts(pace_search *s, const hk_forecast *forecasts, size_t n,
                             pace_starts *starts) {
  double least = 0;
  for (size_t i = 0; i < n; i++) {
    const hk_forecast *f = &forecasts[i];
    if (f->plan.runtime == HK_RUNTIME_HOCKET)
      HK_TRY(keep(starts, &f->plan, f->iteration_ns, f->update_ns, s->err));
  }
  for (int i = 0; i <= RATIOS; i++) {
    if (i == RATIOS) least = fmax(least, 0.95);
    const hk_forecast *f = next_ratio(forecasts, n, least);
    if (f == NULL) continue;
    HK_TRY(try_strides(s, &f->plan, starts));
    least = f->plan.ratio;
  }
  return HK_OK;
}

/* -- search ------------------------------------------------------------------------------- */

/* Tries other numbers of staging buffers. */
static hk_status try_buffers(pace_search *s, const hk_plan *from) {
  static const int buffers[] = {1, 2, 3, 6, 8};
  hk_status status = HK_OK;
  hk_plan plan;
  HK_TRY(hk_plan_copy(from, &plan, s->err));
  plan.pace.flush = 0;
  plan.pace.reduce_first = false;
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers && status == HK_OK; i++) {
    hk_ns time;
    plan.buffers = buffers[i];
    if (plan.buffers != from->buffers) status = try_plan(s, &plan, &time);
  }
  hk_plan_free(&plan);
  return status;
}

/* Tunes the fastest plan again: from its limits, and from none in the other order. */
static hk_status tune_again(pace_search *s, const hk_forecast *found) {
  hk_plan plan;
  hk_ns time = INT64_MAX;
  const hk_ns update = found->update_ns;
  HK_TRY(hk_plan_copy(&found->plan, &plan, s->err));
  hk_status status = tune_all(s, &plan, found->iteration_ns, update, false);
  plan.pace.in = plan.pace.out = plan.pace.cpu = 0;
  if (status == HK_OK) status = try_plan(s, &plan, &time);
  if (status == HK_OK) status = tune_all(s, &plan, time, update, true);
  hk_plan_free(&plan);
  return status;
}

/* Takes out each limit that gains less than HK_PACE_GAIN / 5. */
static hk_status drop_limits(pace_search *s, const hk_forecast *found) {
  static const pace_knob knobs[] = {limit_in, limit_out, limit_cpu};
  for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
    hk_plan plan;
    hk_ns time;
    HK_TRY(hk_plan_copy(&found->plan, &plan, s->err));
    knobs[i](&plan, 0);
    const bool changes = !hk_same_pace(&found->plan.pace, &plan.pace);
    s->time = 1 + (hk_ns)((double)found->iteration_ns * (1 + HK_PACE_GAIN / 5));
    const hk_status status = changes ? try_plan(s, &plan, &time) : HK_OK;
    hk_plan_free(&plan);
    HK_TRY(status);
  }
  return HK_OK;
}

/* Fills in what the other ways to sum gradients would give. */
static hk_status compare_sums(hk_forecast *found, const hk_machine *machine, hk_error *err) {
  if (found->plan.job.grad_accum == 1 || hk_plan_on_route(&found->plan, HK_ROUTE_CPU) == 0)
    return HK_OK;
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
    hk_plan plan;
    hk_forecast f;
    HK_TRY(hk_plan_copy(&found->plan, &plan, err));
    plan.accumulate = (hk_accumulate)a;
    HK_TRY(hk_forecast_make(&plan, machine, NULL, &f, err));
    const hk_accumulate how = hk_plan_accumulates(&f.plan);
    found->sums[how].tried = true;
    found->sums[how].fits = f.feasible;
    found->sums[how].iteration_ns = f.iteration_ns;
    found->sums[how].gpu_short = f.gpu_short;
    found->sums[how].host_short = f.host_short;
    hk_forecast_free(&f);
  }
  return HK_OK;
}

hk_status hk_pace_search(const hk_forecast *forecasts, size_t n, const hk_machine *machine,
                         hk_forecast *found, hk_error *err) {
  memset(found, 0, sizeof *found);
  if (n == 0) return HK_OK;
  const hk_ns best = (hk_ns)((double)forecasts[0].iteration_ns * (1 - HK_PACE_GAIN));
  pace_search s = {.machine = machine, .best = found, .time = best, .err = err};
  pace_starts starts = {.n = 0};
  hk_status status = find_starts(&s, forecasts, n, &starts);
  for (int i = 0; i < starts.n && status == HK_OK; i++)
    status = tune_all(&s, &starts.list[i].plan, starts.list[i].time, starts.list[i].update, false);
  if (status == HK_OK && found->plan.subgroups != NULL) status = tune_again(&s, found);
  if (status == HK_OK && starts.n > 0)
    status = try_buffers(&s, found->plan.subgroups != NULL ? &found->plan : &starts.list[0].plan);
  forget(&starts);
  if (status == HK_OK && found->plan.subgroups != NULL) status = drop_limits(&s, found);
  if (status == HK_OK && found->plan.subgroups != NULL) status = compare_sums(found, machine, err);
  if (status != HK_OK) hk_forecast_free(found);
  return status;
}
