/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Forecasts: the simulation of a plan, its phases, memory and limits. */
#include "sim/forecast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"

void hk_phase_durations(const hk_graph *g, const hk_timeline *t, hk_ns phases[HK_PHASE_COUNT]) {
  memset(phases, 0, HK_PHASE_COUNT * sizeof *phases);
  hk_ns begin = 0; /* end of the previous part */
  size_t i = 0;
  while (i < g->n_ops) {
    /* Operations are stored part by part: forward 0, backward 0, forward 1, ..., update. Operations
     * that belong to no phase are between these parts. */
    const hk_phase phase = g->ops[i].phase;
    const bool between = hk_op_is_between_phases(g->ops[i].kind);
    hk_ns end = begin;
    for (; i < g->n_ops && g->ops[i].phase == phase &&
           hk_op_is_between_phases(g->ops[i].kind) == between;
         i++) {
      if (t->spans[i].end > end) end = t->spans[i].end;
    }
    if (!between) phases[phase] += end - begin;
    begin = end;
  }
}

static void measure_phases(hk_forecast *f) {
  hk_ns phases[HK_PHASE_COUNT];
  hk_phase_durations(&f->graph, &f->result.timeline, phases);
  f->forward_ns = phases[HK_PHASE_FORWARD];
  f->backward_ns = phases[HK_PHASE_BACKWARD];
  f->update_ns = f->exposed_update_ns = phases[HK_PHASE_UPDATE];
  f->iteration_ns = f->result.timeline.makespan;
}

static void measure_period(hk_forecast *f, const hk_period *p) {
  f->forward_ns = p->forward;
  f->backward_ns = p->backward;
  f->update_ns = p->update;
  f->exposed_update_ns = p->exposed_update;
  f->iteration_ns = p->end - p->begin;
  f->begin_ns = p->begin;
  f->unsteady_ns = llabs(f->iteration_ns - p->before);
  memcpy(f->result.used, f->result.last.used, sizeof f->result.used);
}

/* Finds the busiest resource of an interval of length `time`, in which used[r] of resource r was
 * used. */
static void find_busiest(const hk_forecast *f, const hk_machine *machine, const double *used,
                         hk_ns time, hk_resource *busiest, double *utilization) {
  for (int r = 0; r < HK_RES_COUNT && time > 0; r++) {
    const int sharers = hk_resource_is_node((hk_resource)r) ? 1 : f->graph.ranks;
    const double capacity = hk_resource_capacity(machine, (hk_resource)r, false);
    const double share = used[r] / (capacity * ((double)time / 1e9)) / sharers;
    if (share <= *utilization) continue;
    *utilization = share;
    *busiest = (hk_resource)r;
  }
}

/* Of the update phase, and of forward and backward; with an overlap, of the iteration. */
static void find_limiter(hk_forecast *f, const hk_machine *machine) {
  double training[HK_RES_COUNT];
  if (f->plan.overlap != HK_OVERLAP_NONE) {
    find_busiest(f, machine, f->result.used, f->iteration_ns, &f->limiter, &f->limiter_utilization);
    return;
  }
  find_busiest(f, machine, f->result.used_phase[HK_PHASE_UPDATE], f->update_ns, &f->limiter,
               &f->limiter_utilization);
  for (int r = 0; r < HK_RES_COUNT; r++)
    training[r] =
        f->result.used_phase[HK_PHASE_FORWARD][r] + f->result.used_phase[HK_PHASE_BACKWARD][r];
  find_busiest(f, machine, training, f->forward_ns + f->backward_ns, &f->training_limiter,
               &f->training_utilization);
}

/* -- what does not fit --------------------------------------------------------------------- */

/* "host memory: 291 GiB missing in backward (needs 788 GiB, has 497 GiB)"; "missing throughout" if
 * it is missing before the first operation. */
static void add_problem(hk_forecast *f, const char *what, hk_bytes missing, hk_bytes needed,
                        hk_bytes there, hk_bytes base, hk_phase phase) {
  char m[16], n[16], t[16];
  const size_t used = strlen(f->problem);
  snprintf(f->problem + used, sizeof f->problem - used, "%s%s: %s missing %s%s (needs %s, has %s)",
           used > 0 ? "; " : "", what, hk_format_bytes(missing, m, sizeof m),
           base > there ? "throughout" : "in ", base > there ? "" : hk_phase_name(phase),
           hk_format_bytes(needed, n, sizeof n), hk_format_bytes(there, t, sizeof t));
}

static void describe_problem(hk_forecast *f) {
  const hk_memory_report *m = &f->result.memory;
  if (f->host_short > 0) {
    add_problem(f, "host memory", f->host_short, m->host_peak, m->host_capacity, f->graph.host_base,
                HK_PHASE_FORWARD);
  }
  if (f->gpu_short > 0) {
    add_problem(f, "GPU memory", f->gpu_short, m->peak, m->capacity, f->graph.gpu_base,
                m->peak_phase);
  }
}

static void add_advice(hk_forecast *f, const char *text) {
  const size_t used = strlen(f->advice);
  snprintf(f->advice + used, sizeof f->advice - used, "%s%s", used > 0 ? ", " : "try ", text);
}

/* Nodes with which the plan would fit; 0: no number of nodes is known to help. With ZeRO-3 a rank's
 * weights, state and gradients shrink with the number of ranks; activations and gathered weights do
 * not. Ranks that keep their weights between passes, as in a pipeline, keep most of it. */
static int nodes_needed(const hk_forecast *f) {
  const hk_memory_report *m = &f->result.memory;
  int64_t n[HK_ROUTE_COUNT], gradients = 0;
  if (f->gpu_short > 0 && hk_job_keeps_weights(&f->plan.job)) return 0;
  hk_plan_route_totals(&f->plan, n);
  for (int r = 0; r < HK_ROUTE_COUNT; r++) {
    const bool stay =
        f->plan.job.grad_accum > 1 && hk_plan_accumulates(&f->plan) == HK_ACCUMULATE_GPU;
    if (r != HK_ROUTE_CPU || stay) gradients += HK_BYTES_BF16 * n[r];
  }
  const double shared = (double)(f->graph.gpu_base + gradients);
  const double room = (double)m->capacity - fmax(0, (double)m->peak - shared);
  if (room <= 0) return 0;
  const double host = (double)m->host_peak / (double)m->host_capacity;
  const double nodes = ceil(fmax(host, shared / room) * f->plan.job.nodes);
  return nodes <= 65536 ? (int)nodes : 0;
}

/* Sums of several micro-steps' gradients that GPU memory holds for updates by the CPU. */
static void advise_sums(hk_forecast *f, int64_t updated_by_cpu) {
  const hk_plan *plan = &f->plan;
  char text[128], size[16];
  if (plan->job.grad_accum == 1 || updated_by_cpu == 0) return;
  if (hk_plan_accumulates(plan) != HK_ACCUMULATE_GPU) return;
  hk_plan other = *plan; /* shallow, to ask */
  other.accumulate = HK_ACCUMULATE_HOST;
  snprintf(text, sizeof text, "%s--grad-accum 1 (sums of gradients take %s)",
           hk_plan_accumulates(&other) == HK_ACCUMULATE_HOST ? "--accumulate host or " : "",
           hk_format_bytes(HK_BYTES_BF16 * updated_by_cpu, size, sizeof size));
  add_advice(f, text);
}

static bool takes_ratio(const hk_plan *plan) {
  const hk_policy *policy;
  hk_error none;
  return hk_policy_find(plan->policy, &policy, &none) != HK_OK ||
         (policy->takes & HK_TAKES_RATIO) != 0;
}

/* Advice for a plan that does not fit. Each suggestion is about memory that the plan uses. */
static void advise(hk_forecast *f) {
  const hk_plan *plan = &f->plan;
  const hk_memory_report *m = &f->result.memory;
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  char text[128], size[16];
  if (f->gpu_short > 0) {
    const hk_bytes moving = m->peak - m->before_forward;
    if (!plan->job.checkpoint_activations) add_advice(f, "--checkpoint-activations yes");
    if (plan->job.micro_batch > 1 && moving > 0) {
      snprintf(text, sizeof text, "a smaller --micro-batch (activations and gradients take %s)",
               hk_format_bytes(moving, size, sizeof size));
      add_advice(f, text);
    }
    advise_sums(f, n[HK_ROUTE_CPU]);
    if (plan->job.tp < plan->job.gpus && moving > 0)
      add_advice(f, "a larger --tp (GPUs share the weights and activations of a layer)");
    if (n[HK_ROUTE_RESIDENT] > 0) {
      snprintf(text, sizeof text, "%s (state on each GPU takes %s)",
               takes_ratio(plan) ? "a larger offload --ratio" : "another --policy, which offloads",
               hk_format_bytes(hk_plan_gpu_state(plan), size, sizeof size));
      add_advice(f, text);
    }
  }
  const hk_bytes resident_room = m->capacity - m->peak;
  if (f->host_short > 0 && resident_room * hk_job_ranks(&plan->job) > f->host_short)
    add_advice(f, takes_ratio(plan)
                      ? "a smaller offload --ratio (GPU memory has room)"
                      : "another --policy, which offloads less (GPU memory has room)");
  const int nodes = nodes_needed(f);
  if (nodes > plan->job.nodes) {
    snprintf(text, sizeof text, "more GPUs (with this schedule --nodes %d or more)", nodes);
    add_advice(f, text);
  }
  if (f->advice[0] == '\0') add_advice(f, "a machine with more memory");
}

static void judge_memory(hk_forecast *f) {
  const hk_memory_report *m = &f->result.memory;
  f->gpu_short = m->peak > m->capacity ? m->peak - m->capacity : 0;
  f->host_short = m->host_peak > m->host_capacity ? m->host_peak - m->host_capacity : 0;
  f->feasible = f->gpu_short == 0 && f->host_short == 0;
  if (f->feasible) return;
  describe_problem(f);
  advise(f);
}

/* -- life --------------------------------------------------------------------------------- */

/* The number of simulated iterations grows until two successive periods differ by at most 1/1000.
 * If such a period is below the bound of the average period, work still piles up on a lane for
 * which nothing waits yet, and more iterations are simulated. */
#define LEAST_ITERATIONS 4
#define MOST_ITERATIONS  16

static bool is_below_bound(const hk_forecast *f, const hk_period *period) {
  const hk_ns length = period->end - period->begin, off = llabs(length - period->before);
  return f->period_bound.period_ns > length + off + length / HK_STEADY;
}

/* Work still piles up after HK_MOST_ITERATIONS. Once others wait for it, an iteration takes as long
 * as the work of one: `mean`, over the second half of the iterations, with what was left of them
 * when computation ended. */
static void add_pile(hk_forecast *f, hk_ns mean) {
  const hk_ns missing = hk_max(0, mean - f->iteration_ns);
  f->settled = false;
  f->iteration_ns += missing;
  f->exposed_update_ns += missing;
  f->unsteady_ns = missing;
}

static hk_status simulate_period(hk_forecast *f, const hk_machine *machine,
                                 const hk_sim_options *options, hk_error *err) {
  hk_period period;
  hk_ns end = 0, mean = 0; /* of the simulation; of the iterations that the one before lacked */
  for (int n = LEAST_ITERATIONS;; n *= 2) {
    HK_TRY(hk_graph_build(&f->plan, (hk_expand){HK_EXPAND_ALL, .iterations = n, .folded = true},
                          &f->graph, err));
    if (n == LEAST_ITERATIONS) /* of each iteration: it is the same for all numbers of them */
      HK_TRY(hk_bound_period(&f->graph, machine, &f->period_bound, err));
    HK_TRY(hk_simulate(&f->graph, machine, options, &f->result, err));
    HK_TRY(hk_period_of(&f->graph, &f->result.timeline, &period, err));
    mean = (f->result.timeline.makespan - end) / (n / 2);
    end = f->result.timeline.makespan;
    const hk_ns length = period.end - period.begin;
    const bool steady = llabs(length - period.before) <= length / HK_STEADY;
    const int most = is_below_bound(f, &period) ? HK_MOST_ITERATIONS : MOST_ITERATIONS;
    if (n >= most || (steady && most == MOST_ITERATIONS)) break;
    hk_result_free(&f->result);
    hk_graph_free(&f->graph);
  }
  measure_period(f, &period);
  if (is_below_bound(f, &period)) add_pile(f, mean);
  return HK_OK;
}

static hk_status simulate(hk_forecast *f, const hk_machine *machine, const hk_sim_options *options,
                          hk_error *err) {
  if (f->plan.overlap != HK_OVERLAP_NONE) {
    HK_TRY(simulate_period(f, machine, options, err));
  } else {
    HK_TRY(hk_graph_build(&f->plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &f->graph, err));
    HK_TRY(hk_simulate(&f->graph, machine, options, &f->result, err));
    measure_phases(f);
  }
  HK_TRY(hk_bound_physical(&f->plan, machine, &f->physical, err));
  return hk_bound_graph(&f->graph, machine, &f->graph_bound, err);
}

/* A forecast below its lower bound is an error of hocket: it is reported, not printed as a result.
 */
static hk_status check_bounds(const hk_forecast *f, hk_error *err) {
  const hk_bound *worst = &f->graph_bound;
  if (f->feasible && f->physical.feasible && f->physical.update_ns > worst->update_ns) {
    worst = &f->physical;
  }
  if (worst->update_ns > f->update_ns) {
    return hk_fail(err, HK_NO,
                   "invariant broken: the update takes %lld ns, its lower bound (%s) is %lld ns",
                   (long long)f->update_ns, worst->binding, (long long)worst->update_ns);
  }
  /* The bound holds for the average period: a single one may be shorter by as much as periods
   * differ. */
  const hk_ns off = f->settled ? f->unsteady_ns : 0;
  if (f->period_bound.period_ns > f->iteration_ns + off + f->iteration_ns / HK_STEADY) {
    return hk_fail(
        err, HK_NO, "invariant broken: the period is %lld ns, its lower bound (%s) is %lld ns",
        (long long)f->iteration_ns, f->period_bound.binding, (long long)f->period_bound.period_ns);
  }
  return HK_OK;
}

hk_status hk_forecast_make(hk_plan *plan, const hk_machine *machine, const hk_sim_options *options,
                           hk_forecast *forecast, hk_error *err) {
  memset(forecast, 0, sizeof *forecast);
  forecast->plan = *plan;
  forecast->settled = true;
  memset(plan, 0, sizeof *plan);
  hk_status status = simulate(forecast, machine, options, err);
  if (status == HK_OK) {
    find_limiter(forecast, machine);
    judge_memory(forecast);
    forecast->tokens_per_s =
        hk_per_second(hk_job_tokens(&forecast->plan.job), forecast->iteration_ns);
    forecast->update_params_per_s =
        hk_per_second((double)forecast->plan.model.parameters, forecast->update_ns);
    status = check_bounds(forecast, err);
  }
  if (status != HK_OK) hk_forecast_free(forecast);
  return status;
}

hk_status hk_forecast_least_memory(const hk_plan *plan, hk_bytes *gpu, hk_bytes *host,
                                   hk_error *err) {
  hk_graph graph;
  HK_TRY(hk_graph_build(plan, (hk_expand){1u << HK_PHASE_FORWARD, .folded = true}, &graph, err));
  hk_bytes kept = 0;
  for (size_t i = 0; i < graph.n_ops; i++)
    if (graph.ops[i].micro == 0) kept += graph.ops[i].gpu_alloc - graph.ops[i].gpu_free;
  *gpu = graph.gpu_base + hk_max(0, kept);
  *host = graph.host_base;
  hk_graph_free(&graph);
  return HK_OK;
}

hk_status hk_forecast_missing(const hk_plan *plan, const hk_machine *m, hk_bytes *missing,
                              hk_error *err) {
  hk_bytes gpu, host;
  HK_TRY(hk_forecast_least_memory(plan, &gpu, &host, err));
  *missing = hk_node_lacks(host - (hk_bytes)hk_host_capacity(m), gpu - (hk_bytes)hk_gpu_capacity(m),
                           &plan->job);
  return HK_OK;
}

hk_status hk_forecast_all(hk_plan *plans, size_t n, const hk_machine *machine,
                          hk_forecast *forecasts, hk_error *err) {
  hk_error *errors = calloc(n, sizeof *errors);
  if (errors == NULL) return hk_fail_memory(err, n * sizeof *errors, "forecasts");
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < n; i++) {
    errors[i].status = hk_forecast_make(&plans[i], machine, NULL, &forecasts[i], &errors[i]);
  }
  const hk_status status = hk_fail_first(errors, n, err);
  free(errors);
  return status;
}

void hk_forecast_free(hk_forecast *forecast) {
  hk_plan_free(&forecast->plan);
  hk_graph_free(&forecast->graph);
  hk_result_free(&forecast->result);
  memset(forecast, 0, sizeof *forecast);
}

const char *hk_forecast_title(const hk_forecast *forecast, char *buffer, size_t size) {
  return hk_plan_title(&forecast->plan, buffer, size);
}
