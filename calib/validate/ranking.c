/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ranking: selects plans to run, and judges whether the simulator predicts their order. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/probes/statistics.h"
#include "calib/validate/runs.h"
#include "calib/validate/validate.h"
#include "engine/trial.h"
#include "sim/forecast.h"
#include "sim/rank.h"

/* -- Judging ----------------------------------------------------------------------------------- */

static int order_of(double a, double b) {
  return (a > b) - (a < b);
}

void hk_ranked_plan_fill(const hk_plan *plan, const hk_validation *v, hk_ranked_plan *out) {
  const hk_timeline_comparison *c = &v->comparison;
  out->predicted_ms = hk_ms(c->makespan.predicted);
  out->measured_ms = hk_validation_median_ms(v);
  out->least_ms = v->update_ms[0];
  out->most_ms = v->update_ms[v->steps - 1];
  out->n_lanes = 0;
  for (size_t i = 0; i < c->n_lanes && out->n_lanes < HK_LANE_KIND_COUNT; i++) {
    const hk_pair *busy = &c->lanes[i].busy;
    if ((double)busy->measured < HK_BUSY_LANE * (double)c->makespan.measured) continue;
    out->lanes[out->n_lanes++] = (hk_lane_error){v->graph.lanes[i].kind, busy->error_pct};
  }
  const bool comparable = plan->runtime == HK_RUNTIME_HOCKET;
  out->gpu_memory_error_pct = comparable ? v->gpu_memory.error_pct : NAN;
}

static hk_status judge_lanes(const hk_ranked_plan *plans, size_t n,
                             hk_ranked_plans_verdict *verdict, hk_error *err) {
  size_t lanes = 0;
  double *errors = malloc((n * HK_LANE_KIND_COUNT + 1) * sizeof *errors);
  if (errors == NULL) return hk_fail_memory(err, n * HK_LANE_KIND_COUNT * sizeof *errors, "lanes");
  for (int kind = 0; kind < HK_LANE_KIND_COUNT; kind++) {
    double *const own = errors + lanes; /* of this kind */
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
      for (int k = 0; k < plans[i].n_lanes; k++)
        if ((int)plans[i].lanes[k].kind == kind) own[found++] = fabs(plans[i].lanes[k].error_pct);
    verdict->lane_pct[kind] = found > 0 ? hk_median(own, found) : NAN;
    verdict->lane_plans[kind] = found;
    lanes += found;
  }
  verdict->worst_lane_pct = NAN;
  for (size_t k = 0; k < lanes; k++)
    verdict->worst_lane_pct = fmax(verdict->worst_lane_pct, errors[k]);
  verdict->median_lane_pct = lanes > 0 ? hk_median(errors, lanes) : NAN;
  free(errors);
  return HK_OK;
}

/* Spread of the rounds of one plan: the part of the error that no prediction can avoid. */
static hk_status judge_rounds(const hk_ranked_plan *plans, size_t n,
                              hk_ranked_plans_verdict *verdict, hk_error *err) {
  size_t found = 0;
  double *spreads = malloc(n * sizeof *spreads);
  if (spreads == NULL) return hk_fail_memory(err, n * sizeof *spreads, "a ranking");
  verdict->worst_rounds_pct = NAN;
  for (size_t i = 0; i < n; i++) {
    double least = INFINITY, most = 0;
    for (int r = 0; r < plans[i].rounds; r++) {
      least = fmin(least, plans[i].round_ms[r]);
      most = fmax(most, plans[i].round_ms[r]);
    }
    if (plans[i].rounds < 2) continue;
    spreads[found] = 100 * (most / least - 1);
    verdict->worst_rounds_pct = fmax(verdict->worst_rounds_pct, spreads[found++]);
  }
  verdict->median_rounds_pct = found > 0 ? hk_median(spreads, found) : NAN;
  free(spreads);
  return HK_OK;
}

static hk_status judge_errors(const hk_ranked_plan *plans, size_t n,
                              hk_ranked_plans_verdict *verdict, hk_error *err) {
  double *errors = malloc(n * sizeof *errors);
  if (errors == NULL) return hk_fail_memory(err, n * sizeof *errors, "a ranking");
  for (size_t i = 0; i < n; i++) {
    errors[i] = 100 * fabs(plans[i].predicted_ms / plans[i].measured_ms - 1);
    verdict->worst_error_pct = fmax(verdict->worst_error_pct, errors[i]);
  }
  verdict->median_error_pct = hk_median(errors, n);
  free(errors);
  verdict->worst_gpu_memory_pct = NAN;
  for (size_t i = 0; i < n; i++)
    verdict->worst_gpu_memory_pct =
        fmax(verdict->worst_gpu_memory_pct, fabs(plans[i].gpu_memory_error_pct));
  HK_TRY(judge_lanes(plans, n, verdict, err));
  return judge_rounds(plans, n, verdict, err);
}

/* Number of runs that are faster. Of equally fast runs, the earlier counts as faster. */
static int rank_of(const hk_ranked_plan *runs, int n, int which) {
  int faster = 0;
  for (int i = 0; i < n; i++) {
    const int order = order_of(runs[i].measured_ms, runs[which].measured_ms);
    faster += order < 0 || (order == 0 && i < which);
  }
  return faster;
}

static double median_of_lane(const hk_ranked_plan *runs, int n, hk_lane_kind kind) {
  double errors[HK_MOST_ROUNDS];
  size_t found = 0;
  for (int i = 0; i < n; i++)
    for (int k = 0; k < runs[i].n_lanes; k++)
      if (runs[i].lanes[k].kind == kind) errors[found++] = runs[i].lanes[k].error_pct;
  return hk_median(errors, found);
}

hk_ranked_plan hk_ranked_plan_median(const hk_ranked_plan *runs, int n) {
  int median = 0;
  while (rank_of(runs, n, median) != (n - 1) / 2) median++;
  hk_ranked_plan out = runs[median];
  out.rounds = n;
  for (int k = 0; k < out.n_lanes; k++)
    out.lanes[k].error_pct = median_of_lane(runs, n, out.lanes[k].kind);
  for (int i = 0; i < n; i++) {
    out.round_ms[i] = runs[i].measured_ms;
    out.least_ms = fmin(out.least_ms, runs[i].least_ms);
    out.most_ms = fmax(out.most_ms, runs[i].most_ms);
  }
  return out;
}

hk_status hk_ranked_plans_judge(const hk_ranked_plan *plans, size_t n,
                                hk_ranked_plans_verdict *verdict, hk_error *err) {
  *verdict = (hk_ranked_plans_verdict){0};
  if (n == 0) return hk_fail(err, HK_INPUT, "there is no plan to rank");
  hk_tau_tally tally = {0};
  for (size_t i = 0; i < n; i++) {
    if (!(plans[i].measured_ms > 0) || !(plans[i].predicted_ms > 0))
      return hk_fail(err, HK_INPUT, "plan %zu (%s): %g ms predicted, %g ms measured", i,
                     plans[i].title, plans[i].predicted_ms, plans[i].measured_ms);
    if (plans[i].predicted_ms < plans[verdict->predicted_best].predicted_ms)
      verdict->predicted_best = i;
    if (plans[i].measured_ms < plans[verdict->measured_best].measured_ms)
      verdict->measured_best = i;
    for (size_t j = 0; j < i; j++)
      hk_tau_count(&tally, order_of(plans[i].measured_ms, plans[j].measured_ms),
                   -hk_order_of_predictions(plans[j].predicted_ms, plans[i].predicted_ms));
  }
  verdict->tau = hk_tau(&tally).tau;
  const double chosen = plans[verdict->predicted_best].measured_ms;
  verdict->regret_pct = 100 * (chosen / plans[verdict->measured_best].measured_ms - 1);
  return judge_errors(plans, n, verdict, err);
}

/* -- Selection of plans ------------------------------------------------------------------------ */

/* How the routes of the subgroups are chosen: by a policy, or, without one, as an even mixture. */
typedef struct {
  const hk_policy *policy;
  int stride; /* -1: auto */
  double ratio;
  double cpu, mapped; /* shares of a mixture; the rest is staged */
  hk_runtime runtime;
} schedule;

#define POLICY(name, k, r) \
  { .policy = &hk_policy_##name, .stride = k, .ratio = r }
#define DEEPSPEED(name, k, r) \
  { &hk_policy_##name, k, r, 0, 0, HK_RUNTIME_DEEPSPEED }
#define MIXED(c, m) \
  { .cpu = c, .mapped = m }

/* The first few differ most, for calls that ask for few plans. */
static const schedule schedules[] = {
    POLICY(zero_offload, 0, -1),
    POLICY(streamed, 0, -1),
    POLICY(interleave, -1, -1),
    MIXED(0.75, 0),
    POLICY(mapped, 0, -1),
    POLICY(twinflow, 0, 0.8),
    POLICY(interleave, 2, -1),
    MIXED(0.5, 0.25),
    DEEPSPEED(zero_offload, 0, -1),
    POLICY(interleave, 3, -1),
    MIXED(0.3, 0),
    POLICY(interleave, 2, 0.8),
    POLICY(interleave, 4, 0.9),
    DEEPSPEED(interleave, 2, -1),
    MIXED(0.6, 0.1),
    POLICY(twinflow, 0, 0.6),
    POLICY(interleave, 5, -1),
    MIXED(0.68, 0),
    POLICY(interleave, 6, -1),
    DEEPSPEED(twinflow, 0, 0.8),
    MIXED(0.56, 0),
    POLICY(interleave, 3, 0.7),
    DEEPSPEED(interleave, 3, -1),
    DEEPSPEED(interleave, 2, 0.8),
};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* Sizes are multiples of 4096 parameters, as users' settings are: kernels work on whole cache
 * lines. */
#define ROUND ((int64_t)4096)
static int64_t rounded_up(int64_t n) {
  return (n + ROUND - 1) / ROUND * ROUND;
}

static const int subgroups_of[] = {64, 24, 160}; /* a rank */
static const int pieces_of[] = {4, 1, 16};       /* a subgroup */
static const int buffers_of[] = {4, 2, 8, 3};
static const double cores_of[] = {0.75, 1, 0.5};
enum { SUBGROUPS = 3, PIECES = 3, BUFFERS = 4, CORES = 3 };
/* After so many rounds every schedule has had every value of each setting. */
#define ROUNDS (SUBGROUPS * PIECES * BUFFERS * CORES)

/* Sets the routes in the shares of the mixture, evenly spread over the subgroups. */
static void mix(const schedule *s, hk_plan *plan) {
  snprintf(plan->policy, sizeof plan->policy, "mixed");
  double cpu = 0.5, mapped = 0.25;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    hk_route *route = &plan->subgroups[i].route;
    *route = HK_ROUTE_STAGED;
    cpu += s->cpu;
    mapped += s->mapped;
    if (cpu >= 1) {
      *route = HK_ROUTE_CPU;
      cpu -= 1;
    } else if (mapped >= 1) {
      *route = HK_ROUTE_MAPPED;
      mapped -= 1;
    }
  }
}

/* The plan of a schedule for a turn. Each setting cycles through its values with `turn`, with an
 * offset of its own, so that plans of successive turns differ in most settings. */
static hk_status make_plan(const schedule *s, int turn, const hk_model *model,
                           const hk_machine *machine, hk_plan *plan, hk_error *err) {
  const int64_t subgroup = rounded_up(model->parameters / subgroups_of[turn % SUBGROUPS]);
  const int64_t piece = rounded_up(subgroup / pieces_of[(turn + turn / SUBGROUPS) % PIECES]);
  const int threads = (int)(machine->cores.value * cores_of[(turn + turn / 9) % CORES]);
  const bool positions = model->max_positions > 0 && model->max_positions < 2048;
  const hk_job job = {.gpus = 1,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = positions ? (int)model->max_positions : 2048,
                      .checkpoint_activations = true};
  const hk_plan_settings settings = {
      .subgroup_numel = subgroup, .piece_numel = piece, .cpu_threads = threads > 0 ? threads : 1};
  hk_candidate candidate = {.policy = s->policy != NULL ? s->policy : &hk_policy_streamed,
                            .options = HK_POLICY_OPTIONS_NONE,
                            .runtime = s->runtime};
  if (s->policy != NULL) candidate.options.ratio = s->ratio;
  candidate.options.before_0_18 = true; /* as in the rankings of record */
  candidate.options.stride_auto = s->stride < 0;
  if (s->stride > 0) candidate.options.stride = s->stride;
  HK_TRY(hk_candidate_plan(&candidate, model, machine, &job, &settings, plan, err));
  plan->buffers = buffers_of[turn % BUFFERS];
  if (s->policy == NULL) mix(s, plan);
  return HK_OK;
}

static hk_status check_fit(const hk_plan *plan, const hk_machine *machine, hk_bytes host_bytes,
                           bool *yes, hk_error *err) {
  hk_engine_memory memory;
  HK_TRY(hk_trial_measure(plan, &memory, err));
  *yes = memory.host_pinned <= host_bytes && (double)memory.device <= hk_gpu_capacity(machine);
  return HK_OK;
}

/* Whether two plans do the same work. Settings that neither uses may differ. */
static bool do_same_work(const hk_plan *a, const hk_plan *b) {
  if (a->runtime != b->runtime || a->n_subgroups != b->n_subgroups ||
      hk_plan_interleaves(a) != hk_plan_interleaves(b))
    return false;
  for (size_t i = 0; i < a->n_subgroups; i++)
    if (a->subgroups[i].numel != b->subgroups[i].numel ||
        a->subgroups[i].route != b->subgroups[i].route)
      return false;
  if (hk_plan_on_route(a, HK_ROUTE_CPU) > 0 && a->cpu_threads != b->cpu_threads) return false;
  if (a->runtime == HK_RUNTIME_DEEPSPEED) return true; /* no pieces, one set of buffers */
  return a->piece_numel == b->piece_numel &&
         (hk_plan_on_route(a, HK_ROUTE_STAGED) == 0 || a->buffers == b->buffers);
}

static bool is_listed(const hk_plan *plan, const hk_plan *plans, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (do_same_work(plan, &plans[i])) return true;
  return false;
}

static hk_status select_plans(const hk_model *model, const hk_machine *machine, size_t least,
                              bool runs, hk_bytes host_bytes, hk_plan *plans, size_t *n,
                              hk_error *err) {
  for (int turn = 0; turn < ROUNDS * SCHEDULES && *n < least; turn++) {
    const int s = turn % SCHEDULES, round = turn / SCHEDULES;
    hk_plan *plan = &plans[*n];
    bool good = false;
    if (runs && schedules[s].runtime != HK_RUNTIME_HOCKET) continue;
    HK_TRY(make_plan(&schedules[s], s + round, model, machine, plan, err));
    hk_status status = check_fit(plan, machine, host_bytes, &good, err);
    if (status == HK_OK && good && !is_listed(plan, plans, *n))
      ++*n;
    else
      hk_plan_free(plan);
    HK_TRY(status);
  }
  if (*n == least) return HK_OK;
  char room[16];
  return hk_fail(err, HK_NO,
                 "only %zu plans of %s fit in the GPU of %s and in %s of host memory, of %zu that "
                 "were asked for; try a smaller --model or fewer --plans",
                 *n, model->name, machine->name, hk_format_bytes(host_bytes, room, sizeof room),
                 least);
}

hk_status hk_ranked_plans_choose(const hk_model *model, const hk_machine *machine, size_t least,
                                 bool runs, hk_bytes host_bytes, hk_plan **plans, size_t *n,
                                 hk_error *err) {
  *n = 0;
  *plans = calloc(least + 1, sizeof **plans);
  if (*plans == NULL) return hk_fail_memory(err, least * sizeof **plans, "plans");
  const hk_status status = select_plans(model, machine, least, runs, host_bytes, *plans, n, err);
  if (status == HK_OK) return HK_OK;
  for (size_t i = 0; i < *n; i++) hk_plan_free(&(*plans)[i]);
  free(*plans);
  *plans = NULL;
  *n = 0;
  return status;
}

/* -- Titles ------------------------------------------------------------------------------------ */

/* Appends to a string; text beyond `size` is cut off. */
__attribute__((format(printf, 3, 4))) static void add(char *buffer, size_t size, const char *format,
                                                      ...) {
  const size_t used = strlen(buffer);
  va_list values;
  va_start(values, format);
  vsnprintf(buffer + used, size - used, format, values);
  va_end(values);
}

const char *hk_ranked_plan_title(const hk_plan *plan, char *buffer, size_t size) {
  int64_t totals[HK_ROUTE_COUNT], all = 0;
  hk_plan_route_totals(plan, totals);
  for (int r = 0; r < HK_ROUTE_COUNT; r++) all += totals[r];
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  buffer[0] = '\0';
  add(buffer, size, "%s%s", plan->policy, deepspeed ? " (deepspeed)" : "");
  if (plan->stride > 0) add(buffer, size, " k=%d", plan->stride);
  if (plan->ratio < 1) add(buffer, size, " r=%.2f", plan->ratio);
  if (strcmp(plan->policy, "mixed") == 0)
    for (int r = 0; r < HK_ROUTE_COUNT; r++)
      if (totals[r] > 0)
        add(buffer, size, " %s %.2f", hk_route_name((hk_route)r), (double)totals[r] / (double)all);
  add(buffer, size, ", %zu x %.3gM", plan->n_subgroups, (double)plan->subgroup_numel / 1e6);
  if (!deepspeed) add(buffer, size, ", pieces %.3gM", (double)plan->piece_numel / 1e6);
  if (!deepspeed && totals[HK_ROUTE_STAGED] > 0) add(buffer, size, ", %d buffers", plan->buffers);
  if (totals[HK_ROUTE_CPU] > 0) add(buffer, size, ", %d threads", plan->cpu_threads);
  return buffer;
}
