/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A forecast as text, and the figures that text and JSON share. */
#include "cli/print/report.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/report_state.h"
#include "cli/print/report_uncertainty.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "sim/warnings.h"

/* -- Figures --------------------------------------------------------------------------------- */

double hk_gib(hk_bytes n) {
  return (double)n / (double)HK_GIB;
}

static double over(hk_ns time, hk_ns bound) {
  return bound > 0 ? (double)time / (double)bound : 0;
}

double hk_report_update_ratio(const hk_forecast *forecast) {
  return over(forecast->update_ns, forecast->physical.update_ns);
}

double hk_report_bound_ratio(const hk_forecast *forecast) {
  if (forecast->plan.overlap == HK_OVERLAP_NONE) return hk_report_update_ratio(forecast);
  return over(forecast->iteration_ns, forecast->period_bound.period_ns);
}

hk_lane_use hk_report_lane(const hk_forecast *forecast, int32_t lane) {
  const hk_graph *graph = &forecast->graph;
  hk_lane_use use = {0};
  use.busy = hk_lane_busy(graph, &forecast->result.timeline, lane, forecast->begin_ns,
                          forecast->begin_ns + forecast->iteration_ns);
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].lane == lane && strcmp(hk_op_kind_unit(graph->ops[i].kind), "bytes") == 0)
      use.bytes += graph->ops[i].work;
  if (graph->iterations > 1) use.bytes /= graph->iterations;
  if (forecast->iteration_ns > 0)
    use.utilization = (double)use.busy / (double)forecast->iteration_ns;
  return use;
}

double hk_report_utilization(const hk_forecast *forecast, const hk_machine *machine,
                             hk_resource resource) {
  double possible = hk_resource_capacity(machine, resource, false) *
                    ((double)forecast->iteration_ns / (double)HK_NS_PER_S);
  return possible > 0 ? forecast->result.used[resource] / possible : 0;
}

/* -- Lines ----------------------------------------------------------------------------------- */

const char *hk_tell_pipeline(const hk_job *job, char *buffer, size_t size) {
  char chunks[32] = "", stages[64] = "", experts[24] = "";
  if (hk_job_chunks(job) > 1) snprintf(chunks, sizeof chunks, " in %d chunks", job->chunks);
  if (hk_job_pp(job) > 1) snprintf(stages, sizeof stages, ", pp %d%s", job->pp, chunks);
  if (hk_job_ep(job) > 1) snprintf(experts, sizeof experts, ", ep %d", job->ep);
  snprintf(buffer, size, "%s%s%s", job->sequence_parallel ? " and sequences" : "", stages, experts);
  return buffer;
}

void hk_put_pipeline(const hk_job *job, cJSON *object, bool *ok) {
  if (hk_job_pp(job) > 1) hk_put_number(object, "pp", job->pp, ok);
  if (hk_job_chunks(job) > 1) hk_put_number(object, "pp_chunks", job->chunks, ok);
  if (job->sequence_parallel) hk_put_bool(object, "sequence_parallel", true, ok);
  if (hk_job_ep(job) > 1) hk_put_number(object, "ep", job->ep, ok);
  if (hk_job_jobs(job) > 1) hk_put_number(object, "jobs", job->jobs, ok);
}

void hk_report_heading(const hk_model *model, const hk_machine *machine, const hk_job *job) {
  char count[32], used[32], nodes[32] = "", loss[40] = "", part[64] = "", pipeline[96],
                            jobs[32] = "";
  if (hk_job_jobs(job) > 1) snprintf(jobs, sizeof jobs, "%d jobs of ", job->jobs);
  if (job->nodes > 1) snprintf(nodes, sizeof nodes, "%d nodes of ", job->nodes);
  if (model->frozen_parameters > 0)
    snprintf(part, sizeof part, " trained, %s frozen",
             hk_format_count(model->frozen_parameters, used, sizeof used));
  else if (model->experts > 0)
    snprintf(part, sizeof part, ", %s of them active",
             hk_format_count(model->active, used, sizeof used));
  if (job->loss_chunks > 1) snprintf(loss, sizeof loss, ", loss in %d slices", job->loss_chunks);
  hk_print_text(0, 0,
                "%s (%s parameters%s) on %s: %s%s%d GPU%s, tp %d%s, dp %d, micro-batch %d, "
                "grad-accum %d, seq %d, activations %s%s",
                model->name, hk_format_count(model->parameters, count, 32), part, machine->name,
                jobs, nodes, job->gpus, job->gpus == 1 ? "" : "s", job->tp,
                hk_tell_pipeline(job, pipeline, sizeof pipeline), hk_job_dp(job), job->micro_batch,
                job->grad_accum, job->seq, job->checkpoint_activations ? "checkpointed" : "kept",
                loss);
  hk_explain_changes_text(machine);
}

/* "DRAM-bound", "bound by the critical path". */
static const char *tell_binding(const char *binding, char *buffer, size_t size) {
  snprintf(buffer, size, strchr(binding, ' ') ? "bound by the %s" : "%s-bound", binding);
  if (!strchr(binding, ' '))
    for (char *c = buffer; *c != '-' && *c != '\0'; c++) *c = (char)toupper((unsigned char)*c);
  return buffer;
}

void hk_report_bound_line(const hk_forecast *forecast) {
  const hk_bound *physical = &forecast->physical;
  char binding[64];
  if (forecast->plan.overlap != HK_OVERLAP_NONE) {
    const hk_period_bound *period = &forecast->period_bound;
    hk_print_text(0, 0, "lower bound of the iteration: %.1f ms, %s", hk_ms(period->period_ns),
                  tell_binding(period->binding, binding, sizeof binding));
    return;
  }
  if (!physical->feasible) {
    hk_print_text(
        0, 0,
        "lower bound of the update: none, because no division of the state between GPU and "
        "host fits in memory");
    return;
  }
  hk_print_text(
      0, 0, "lower bound of the update: %.1f ms, %s (linear programme + dual certificate)",
      hk_ms(physical->update_ns), tell_binding(physical->binding, binding, sizeof binding));
}

hk_status hk_report_warnings(const hk_plan *plan, const hk_machine *machine, hk_error *err) {
  char **warnings = NULL;
  HK_TRY(hk_forecast_warnings(plan, machine, &warnings, err));
  for (size_t i = 0; warnings[i]; i++) hk_print_text(0, 0, "warning: %s", warnings[i]);
  hk_warnings_free(warnings);
  return HK_OK;
}

/* -- The report ------------------------------------------------------------------------------ */

static void print_settings(const hk_forecast *forecast, const hk_machine *machine) {
  const hk_plan *plan = &forecast->plan;
  char title[96], count[32];
  printf("policy %s, runtime %s\n", hk_forecast_title(forecast, title, sizeof title),
         hk_runtime_name(plan->runtime));
  hk_print_text(0, 0,
                "per rank: %zu subgroups of %s%s parameters, %d CPU threads; gradient flush %s, %d "
                "bytes per parameter",
                plan->n_subgroups, plan->subgroup_rule == HK_SUBGROUP_SOFT ? "at least " : "",
                hk_format_count(plan->subgroup_numel, count, sizeof count), plan->cpu_threads,
                plan->flush == HK_FLUSH_ASYNC ? "async" : "sync", plan->flush_bytes_per_param);
  int64_t totals[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, totals);
  hk_report_optimizer(plan, machine, false);
  hk_report_sums(plan);
  char routes[160] = "";
  for (int route = 0; route < HK_ROUTE_COUNT; route++) {
    const size_t used = strlen(routes);
    if (totals[route] > 0)
      snprintf(routes + used, sizeof routes - used, " %s %s", hk_route_name((hk_route)route),
               hk_format_count(totals[route], count, sizeof count));
  }
  hk_print_text(0, 2, "parameters per rank by route:%s", routes);
  putchar('\n');
}

static void print_period(const hk_forecast *forecast) {
  char count[32];
  printf("exposed    %10.1f ms   of the update, while forward waits for weights\n",
         hk_ms(forecast->exposed_update_ns));
  if (forecast->plan.overlap == HK_OVERLAP_BOTH)
    printf("ahead      %10s      parameters updated before the norm is known\n",
           hk_format_count(hk_plan_ahead(&forecast->plan), count, sizeof count));
  if (forecast->held_ns > 0)
    printf("clipped    %10.1f ms   iteration in which clipping acts: nothing runs ahead\n",
           hk_ms(forecast->held_ns));
  if (!forecast->settled)
    printf("unsettled  %10.1f ms   over the last of %d iterations: work piles up\n",
           hk_ms(forecast->unsteady_ns), forecast->graph.iterations);
  else if (forecast->unsteady_ns > forecast->iteration_ns / 1000)
    printf("unsteady   %10.1f ms   difference between the last two iterations\n",
           hk_ms(forecast->unsteady_ns));
}

/* "forward         224.4 ms +-4.2", then `rest` unless it is empty. */
static void print_time(const char *name, hk_ns t, const hk_interval *interval, const char *rest) {
  char half[64];
  hk_format_half_ms(interval, half, sizeof half);
  if (*rest != '\0')
    hk_print_text(0, 27, "%-10s %10.1f ms %-7s %s", name, hk_ms(t), half, rest);
  else
    hk_print_text(0, 27, "%-10s %10.1f ms%s%s", name, hk_ms(t), *half != '\0' ? " " : "", half);
}

static void print_times(const hk_forecast *forecast, const hk_row_error *row) {
  char text[160], ratio[48] = "";
  const bool overlaps = forecast->plan.overlap != HK_OVERLAP_NONE;
  print_time("forward", forecast->forward_ns, &row->forward, "");
  print_time("backward", forecast->backward_ns, &row->backward, "");
  if (hk_report_bound_ratio(forecast) > 0)
    snprintf(ratio, sizeof ratio, ", %.2f x bound", hk_report_bound_ratio(forecast));
  snprintf(text, sizeof text, "%.2f Gparam/s%s; %s %.0f %% busy",
           forecast->update_params_per_s / 1e9, overlaps ? "" : ratio,
           hk_resource_name(forecast->limiter), 100 * forecast->limiter_utilization);
  print_time("update", forecast->update_ns, &row->update, text);
  snprintf(text, sizeof text, "%.0f tokens/s%s", forecast->tokens_per_s, overlaps ? ratio : "");
  print_time("iteration", forecast->iteration_ns, &row->iteration, text);
  if (overlaps) print_period(forecast);
  hk_report_bound_line(forecast);
  char binding[64];
  printf("lower bound of this plan's update: %.1f ms, %s\n\n",
         hk_ms(forecast->graph_bound.update_ns),
         tell_binding(forecast->graph_bound.binding, binding, sizeof binding));
}

static void print_memory(const hk_memory_report *memory) {
  hk_print_text(0, 22,
                "GPU memory   %8.2f GiB before forward, %.2f after forward, %.2f after backward, "
                "%.2f after update",
                hk_gib(memory->before_forward), hk_gib(memory->after_forward),
                hk_gib(memory->after_backward), hk_gib(memory->after_update));
  printf("       peak  %8.2f GiB of %.2f in %s\n", hk_gib(memory->peak), hk_gib(memory->capacity),
         hk_phase_name(memory->peak_phase));
  printf("host memory  %8.2f GiB of %.2f\n\n", hk_gib(memory->host_peak),
         hk_gib(memory->host_capacity));
}

static hk_status print_lanes(const hk_forecast *forecast, hk_error *err) {
  static const hk_column columns[] = {
      {"lane", HK_LEFT}, {"busy ms", HK_RIGHT}, {"moved GiB", HK_RIGHT}, {"busy %", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < forecast->graph.n_lanes; i++) {
    hk_lane_use use = hk_report_lane(forecast, (int32_t)i);
    hk_table_row(&table, "%s\t%.1f\t%.2f\t%.1f", forecast->graph.lanes[i].name, hk_ms(use.busy),
                 hk_gib(use.bytes), 100 * use.utilization);
  }
  HK_TRY(hk_table_print(&table, err));
  putchar('\n');
  return HK_OK;
}

static hk_status print_resources(const hk_forecast *forecast, const hk_machine *machine,
                                 hk_error *err) {
  static const hk_column columns[] = {
      {"resource", HK_LEFT}, {"used %", HK_RIGHT}, {"meaning", HK_WRAP}};
  hk_table table = HK_TABLE(columns);
  for (int i = 0; i < HK_RES_COUNT; i++) {
    hk_resource resource = (hk_resource)i;
    double share = hk_report_utilization(forecast, machine, resource);
    if (share <= 0) continue;
    hk_table_row(&table, "%s\t%.1f\t%s", hk_resource_name(resource), 100 * share,
                 hk_resource_meaning(resource));
  }
  return hk_table_print(&table, err);
}

hk_status hk_report_text(const hk_forecast *forecast, const hk_machine *machine,
                         const hk_uncertainty *uncertainty, bool quiet, hk_error *err) {
  hk_report_heading(&forecast->plan.model, machine, &forecast->plan.job);
  print_settings(forecast, machine);
  print_times(forecast, &uncertainty->rows[0]);
  if (!quiet) {
    hk_report_uncertainty(uncertainty);
    putchar('\n');
  }
  print_memory(&forecast->result.memory);
  HK_TRY(print_lanes(forecast, err));
  HK_TRY(print_resources(forecast, machine, err));
  return quiet ? HK_OK : hk_report_warnings(&forecast->plan, machine, err);
}
