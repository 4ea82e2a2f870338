/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A forecast as a JSON object. Its keys are an interface: they may be added to, not renamed. */
#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/report_state.h"
#include "sim/warnings.h"

/* Most points of the memory curve. */
#define CURVE_POINTS 512

static void put_settings(const hk_plan *plan, cJSON *object, bool *ok) {
  cJSON *settings = hk_put_object(object, "settings", ok);
  hk_put_number(settings, "stride", plan->stride, ok);
  hk_put_number(settings, "ratio", plan->ratio, ok);
  hk_put_number(settings, "buffers", plan->buffers, ok);
  hk_put_string(settings, "flush", plan->flush == HK_FLUSH_ASYNC ? "async" : "sync", ok);
  hk_put_number(settings, "flush_bytes_per_param", plan->flush_bytes_per_param, ok);
  hk_put_number(settings, "subgroup_numel", (double)plan->subgroup_numel, ok);
  hk_put_number(settings, "subgroups", (double)plan->n_subgroups, ok);
  hk_put_number(settings, "piece_numel", (double)plan->piece_numel, ok);
  hk_put_number(settings, "cpu_threads", plan->cpu_threads, ok);
  hk_put_string(settings, "overlap", hk_overlap_names[plan->overlap], ok);
  hk_report_optimizer_json(plan, settings, ok);
}

/* GPU memory of the first rank over time; nothing if it was not sampled. */
static void put_curve(const hk_timeline *timeline, cJSON *gpu, bool *ok) {
  const hk_counter *counter = hk_timeline_find(timeline, "gpu memory");
  if (counter == NULL) counter = hk_timeline_find(timeline, "rank0 gpu memory");
  if (counter == NULL) return;
  hk_sample samples[CURVE_POINTS];
  const size_t n = hk_counter_curve(counter, samples, CURVE_POINTS);
  cJSON *curve = hk_put_array(gpu, "curve", ok);
  for (size_t i = 0; i < n; i++) {
    cJSON *point = hk_put_element(curve, ok);
    hk_put_number(point, "t_ms", hk_ms(samples[i].time), ok);
    hk_put_number(point, "bytes", samples[i].value, ok);
  }
}

static void put_device(const hk_memory_report *memory, cJSON *gpu, bool *ok) {
  if (memory->device_after[HK_PHASE_UPDATE] == 0) return;
  cJSON *device = hk_put_object(gpu, "device", ok);
  const hk_bytes *after = memory->device_after, *peak = memory->device_peak_of;
  hk_put_number(device, "before_forward_bytes", (double)after[HK_PHASE_UPDATE], ok);
  hk_put_number(device, "end_of_forward_bytes", (double)peak[HK_PHASE_FORWARD], ok);
  hk_put_number(device, "before_backward_bytes", (double)after[HK_PHASE_FORWARD], ok);
  hk_put_number(device, "end_of_backward_bytes", (double)peak[HK_PHASE_BACKWARD], ok);
  hk_put_number(device, "before_update_bytes", (double)after[HK_PHASE_BACKWARD], ok);
  hk_put_number(device, "end_of_update_bytes", (double)peak[HK_PHASE_UPDATE], ok);
}

static void put_memory(const hk_result *result, cJSON *object, bool *ok) {
  const hk_memory_report *memory = &result->memory;
  cJSON *gpu = hk_put_object(object, "gpu_memory", ok);
  hk_put_number(gpu, "before_forward_bytes", (double)memory->before_forward, ok);
  hk_put_number(gpu, "after_forward_bytes", (double)memory->after_forward, ok);
  hk_put_number(gpu, "after_backward_bytes", (double)memory->after_backward, ok);
  hk_put_number(gpu, "after_update_bytes", (double)memory->after_update, ok);
  hk_put_number(gpu, "peak_bytes", (double)memory->peak, ok);
  hk_put_number(gpu, "peak_forward_bytes", (double)memory->peak_of[HK_PHASE_FORWARD], ok);
  hk_put_number(gpu, "peak_backward_bytes", (double)memory->peak_of[HK_PHASE_BACKWARD], ok);
  hk_put_number(gpu, "peak_update_bytes", (double)memory->peak_of[HK_PHASE_UPDATE], ok);
  hk_put_number(gpu, "capacity_bytes", (double)memory->capacity, ok);
  put_device(memory, gpu, ok);
  put_curve(&result->timeline, gpu, ok);
  hk_put_number(object, "host_peak_bytes", (double)memory->host_peak, ok);
  hk_put_number(object, "host_capacity_bytes", (double)memory->host_capacity, ok);
}

static void put_lanes(const hk_forecast *forecast, cJSON *object, bool *ok) {
  cJSON *lanes = hk_put_object(object, "lanes", ok);
  for (size_t i = 0; i < forecast->graph.n_lanes; i++) {
    hk_lane_use use = hk_report_lane(forecast, (int32_t)i);
    cJSON *lane = hk_put_object(lanes, forecast->graph.lanes[i].name, ok);
    hk_put_number(lane, "busy_ms", hk_ms(use.busy), ok);
    hk_put_number(lane, "bytes", (double)use.bytes, ok);
    hk_put_number(lane, "utilization", use.utilization, ok);
  }
}

static void put_resources(const hk_forecast *forecast, const hk_machine *machine, cJSON *object,
                          bool *ok) {
  cJSON *resources = hk_put_object(object, "resources", ok);
  for (int i = 0; i < HK_RES_COUNT; i++) {
    hk_resource resource = (hk_resource)i;
    cJSON *entry = hk_put_object(resources, hk_resource_name(resource), ok);
    hk_put_number(entry, "utilization", hk_report_utilization(forecast, machine, resource), ok);
  }
}

hk_status hk_report_warnings_json(const hk_plan *plan, const hk_machine *machine, cJSON *object,
                                  bool *ok, hk_error *err) {
  char **warnings = NULL;
  HK_TRY(hk_forecast_warnings(plan, machine, &warnings, err));
  cJSON *array = hk_put_array(object, "warnings", ok);
  for (size_t i = 0; warnings[i]; i++) hk_append_item(array, cJSON_CreateString(warnings[i]), ok);
  hk_warnings_free(warnings);
  return HK_OK;
}

void hk_report_bound_json(const hk_forecast *forecast, cJSON *object, bool *ok) {
  cJSON *bound = hk_put_object(object, "bound", ok);
  hk_put_number(bound, "update_ms", hk_ms(forecast->physical.update_ns), ok);
  hk_put_number(bound, "ratio", hk_report_update_ratio(forecast), ok);
  hk_put_string(bound, "binding", forecast->physical.binding, ok);
}

hk_status hk_report_json(const hk_forecast *forecast, const hk_machine *machine, cJSON *object,
                         hk_error *err) {
  bool ok = true;
  hk_put_string(object, "policy", forecast->plan.policy, &ok);
  hk_put_string(object, "runtime", hk_runtime_name(forecast->plan.runtime), &ok);
  put_settings(&forecast->plan, object, &ok);
  hk_put_bool(object, "feasible", forecast->feasible, &ok);
  hk_put_number(object, "fwd_ms", hk_ms(forecast->forward_ns), &ok);
  hk_put_number(object, "bwd_ms", hk_ms(forecast->backward_ns), &ok);
  hk_put_number(object, "update_ms", hk_ms(forecast->update_ns), &ok);
  hk_put_number(object, "iteration_ms", hk_ms(forecast->iteration_ns), &ok);
  hk_put_number(object, "period_ms", hk_ms(forecast->iteration_ns), &ok);
  hk_put_number(object, "exposed_update_ms", hk_ms(forecast->exposed_update_ns), &ok);
  if (forecast->held_ns > 0) {
    hk_put_number(object, "clipped_ms", hk_ms(forecast->held_ns), &ok);
    hk_put_number(object, "clipped_staged_params", (double)hk_plan_held_staged(&forecast->plan),
                  &ok);
  }
  hk_put_number(object, "mean_ms", hk_ms(hk_forecast_mean(forecast)), &ok);
  hk_put_number(object, "ahead_params", (double)hk_plan_ahead(&forecast->plan), &ok);
  hk_put_number(object, "tokens_per_s", forecast->tokens_per_s, &ok);
  hk_put_number(object, "update_params_per_s", forecast->update_params_per_s, &ok);
  put_memory(&forecast->result, object, &ok);
  put_lanes(forecast, object, &ok);
  put_resources(forecast, machine, object, &ok);
  hk_report_bound_json(forecast, object, &ok);
  cJSON *plan_bound = hk_put_object(object, "plan_bound", &ok);
  hk_put_number(plan_bound, "update_ms", hk_ms(forecast->graph_bound.update_ns), &ok);
  hk_put_string(plan_bound, "binding", forecast->graph_bound.binding, &ok);
  if (forecast->plan.overlap != HK_OVERLAP_NONE) {
    cJSON *period = hk_put_object(object, "period_bound", &ok);
    hk_put_number(period, "period_ms", hk_ms(forecast->period_bound.period_ns), &ok);
    hk_put_number(period, "ratio", hk_report_bound_ratio(forecast), &ok);
    hk_put_string(period, "binding", forecast->period_bound.binding, &ok);
    hk_put_number(object, "unsteady_ms", hk_ms(forecast->unsteady_ns), &ok);
    hk_put_bool(object, "settled", forecast->settled, &ok);
  }
  cJSON *missing = hk_put_object(object, "missing", &ok);
  hk_put_number(missing, "gpu_bytes", (double)forecast->gpu_short, &ok);
  hk_put_number(missing, "host_bytes", (double)forecast->host_short, &ok);
  hk_put_string(object, "problem", forecast->problem, &ok);
  hk_put_string(object, "advice", forecast->advice, &ok);
  HK_TRY(hk_report_warnings_json(&forecast->plan, machine, object, &ok, err));
  return ok ? HK_OK : hk_fail(err, HK_ENVIRONMENT, "out of memory for the JSON report");
}
