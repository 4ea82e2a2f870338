/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Simulates a plan, runs it with the engine, and compares the two timelines. */
#include "calib/validate/validate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calib/probes/statistics.h"
#include "calib/validate/runs.h"
#include "core/base/json.h"
#include "engine/trial.h"

#define DEFAULT_STEPS   7
#define DEFAULT_WARM_UP 2

typedef struct {
  const hk_plan *plan;
  const hk_validate_options *options;
  int steps, warm_up;
  hk_machine machine; /* without_python(); owns nothing */
  hk_graph graph;     /* one_rank() of the validation's graph; owns nothing */
  hk_engine *engine;
  hk_trial *trial;
  hk_backend *watch; /* reads the device's free memory; NULL on the host backend */
  hk_bytes free_before;
  hk_timeline *timelines; /* [steps] */
  hk_ns *update;          /* [steps] */
} session;

/* -- Running ----------------------------------------------------------------------------------- */

/* Free memory of the device. */
static hk_status device_free(const session *s, hk_bytes *bytes, hk_error *err) {
  hk_device_info info;
  HK_TRY(s->options->ops->info(s->watch, &info, err));
  *bytes = info.memory_free;
  return HK_OK;
}

/* Opened before the engine, so that the memory of the process's context is not counted. Each handle
 * of the host backend has memory of its own: one handle cannot observe another's. */
static hk_status open_watch(session *s, hk_error *err) {
  const hk_validate_options *o = s->options;
  if (strcmp(o->ops->name, hk_backend_host.name) == 0) return HK_OK;
  const hk_backend_options options = {0};
  HK_TRY(o->ops->open(o->device, &options, &s->watch, err));
  return device_free(s, &s->free_before, err);
}

static hk_status make_engine(session *s, hk_error *err) {
  const hk_engine_options options = {.backend = s->options->ops,
                                     .device = s->options->device,
                                     .host_memory = s->options->host_memory};
  HK_TRY(hk_trial_engine(s->plan, &options, &s->engine, err));
  const hk_trial_options trial = {.seed = s->options->seed};
  return hk_trial_open(s->engine, &trial, &s->trial, err);
}

static hk_status take_step(session *s, int number, hk_error *err) {
  const hk_validate_options *o = s->options;
  const int all = s->warm_up + s->steps, counted = number - s->warm_up;
  hk_step_report report;
  if (o->stop != NULL && *o->stop)
    return hk_fail(err, HK_NO, "interrupted after %d of %d steps", number, all);
  hk_timeline *timeline = counted >= 0 ? &s->timelines[counted] : NULL;
  if (timeline != NULL) HK_TRY(hk_timeline_init(hk_engine_graph(s->engine), timeline, err));
  HK_TRY(hk_trial_step(s->trial, timeline, &report, err));
  if (counted >= 0) s->update[counted] = report.update;
  if (o->progress != NULL) o->progress(o->context, number + 1, all);
  return HK_OK;
}

static hk_status take_steps(session *s, hk_error *err) {
  const size_t n = (size_t)s->steps;
  s->timelines = calloc(n, sizeof *s->timelines);
  s->update = calloc(n, sizeof *s->update);
  if (s->timelines == NULL || s->update == NULL)
    return hk_fail_memory(err, n * sizeof *s->timelines, "timelines");
  for (int i = 0; i < s->warm_up + s->steps; i++) HK_TRY(take_step(s, i, err));
  return HK_OK;
}

/* -- Results ----------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Moves the times, and the timeline of the step with the median time (the lower one of two), to
 * out. */
static hk_status keep_times(session *s, hk_validation *out, hk_error *err) {
  const size_t n = (size_t)s->steps;
  out->update_ms = malloc(n * sizeof *out->update_ms);
  if (out->update_ms == NULL) return hk_fail_memory(err, n * sizeof *out->update_ms, "step times");
  out->steps = s->steps;
  for (size_t i = 0; i < n; i++) out->update_ms[i] = hk_ms(s->update[i]);
  qsort(out->update_ms, n, sizeof *out->update_ms, by_value);
  size_t median = 0;
  while (by_value(&out->update_ms[(n - 1) / 2], &(double){hk_ms(s->update[median])}) != 0) median++;
  out->measured = s->timelines[median];
  s->timelines[median] = (hk_timeline){0};
  return HK_OK;
}

/* Called while the engine and the trial hold their memory; the trial's buffer does not count. */
static hk_status measure_memory(const session *s, const hk_memory_report *predicted,
                                hk_validation *out, hk_error *err) {
  const hk_engine_memory taken = hk_engine_memory_taken(s->engine);
  hk_bytes device = taken.device + hk_trial_weight_bytes(s->trial);
  if (s->watch != NULL) {
    hk_bytes left = 0;
    HK_TRY(device_free(s, &left, err));
    device = s->free_before - left - hk_trial_buffer_bytes(s->trial);
  }
  /* The engine's slots for gradients count like those of training. */
  out->gpu_memory = hk_pair_of(predicted->peak + hk_plan_grad_room(s->plan).bytes, device);
  out->host_memory = hk_pair_of(predicted->host_peak, taken.host_pinned);
  return HK_OK;
}

/* -- Predicting -------------------------------------------------------------------------------- */

/* Number of the copy engine from 1: each GPU has one for copies in and one for copies out. 0: no
 * copy, or copies do not queue. */
static int32_t engine_of(const hk_graph *graph, const hk_op *op, const hk_machine *machine) {
  const unsigned engine = hk_demand_of(graph, op, machine).engine;
  if (engine == 0 || machine->copies_at_once.value >= 2) return 0;
  return 1 + 2 * op->rank + (engine == HK_TRAFFIC_OUT);
}

hk_status hk_op_costs(const hk_graph *graph, const hk_machine *machine, hk_op_cost **costs,
                      hk_error *err) {
  const size_t n = graph->n_ops;
  *costs = malloc((n + 1) * sizeof **costs);
  if (*costs == NULL) return hk_fail_memory(err, n * sizeof **costs, "the costs of operations");
  for (size_t i = 0; i < n; i++) {
    const hk_op *op = &graph->ops[i];
    hk_op_cost *cost = &(*costs)[i];
    hk_time_alone(graph, op, machine, &cost->latency, &cost->alone);
    cost->engine = engine_of(graph, op, machine);
    /* A copy out first passes the queue of its GPU's engine for copies in (docs/simulator.md). */
    cost->first = cost->engine > 0 && cost->engine % 2 == 0 ? cost->engine - 1 : 0;
  }
  return HK_OK;
}

/* The engine runs the operations of DeepSpeed's step without the overhead of its Python code. */
static hk_machine without_python(const hk_machine *machine) {
  hk_machine m = *machine;
  m.step_overhead.value = m.subgroup_overhead.value = 0;
  return m;
}

/* The engine runs one rank, alone on the machine, whatever job the plan is for. */
static hk_graph one_rank(const hk_graph *graph) {
  hk_graph alone = *graph;
  alone.host_base /= (hk_bytes)graph->ranks * graph->multiplicity;
  alone.multiplicity = alone.world = alone.nodes = alone.tp = 1;
  alone.cores_unbound = false;
  return alone;
}

static hk_status predict(session *s, const hk_machine *machine, hk_validation *out,
                         hk_memory_report *memory, hk_error *err) {
  hk_result result;
  HK_TRY(hk_graph_build(s->plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &out->graph, err));
  s->machine = without_python(machine);
  s->graph = one_rank(&out->graph);
  HK_TRY(hk_simulate(&s->graph, &s->machine, NULL, &result, err));
  out->predicted = result.timeline;
  *memory = result.memory;
  return HK_OK;
}

static hk_status compare(const session *s, const hk_timeline *measured, hk_validation *out,
                         hk_error *err) {
  hk_op_cost *costs = NULL;
  HK_TRY(hk_op_costs(&s->graph, &s->machine, &costs, err));
  const hk_status status =
      hk_timelines_compare(&s->graph, &out->predicted, measured, costs, &out->comparison, err);
  free(costs);
  return status;
}

/* -- Validation -------------------------------------------------------------------------------- */

static hk_status validate(session *s, const hk_machine *machine, hk_validation *out,
                          hk_error *err) {
  hk_memory_report memory;
  HK_TRY(predict(s, machine, out, &memory, err));
  HK_TRY(open_watch(s, err));
  HK_TRY(make_engine(s, err));
  HK_TRY(take_steps(s, err));
  HK_TRY(keep_times(s, out, err));
  HK_TRY(hk_engine_checksum(s->engine, out->checksum, err));
  HK_TRY(measure_memory(s, &memory, out, err));
  return compare(s, &out->measured, out, err);
}

static void end_session(session *s) {
  for (int i = 0; s->timelines != NULL && i < s->steps; i++) hk_timeline_free(&s->timelines[i]);
  free(s->timelines);
  free(s->update);
  hk_trial_close(s->trial);
  hk_engine_destroy(s->engine);
  if (s->watch != NULL) s->options->ops->close(s->watch);
}

hk_status hk_validate_plan(const hk_plan *plan, const hk_machine *machine,
                           const hk_validate_options *options, hk_validation *out, hk_error *err) {
  memset(out, 0, sizeof *out);
  session s = {.plan = plan,
               .options = options,
               .steps = options->steps > 0 ? options->steps : DEFAULT_STEPS,
               .warm_up = options->warm_up > 0 ? options->warm_up : DEFAULT_WARM_UP};
  const hk_status status = validate(&s, machine, out, err);
  end_session(&s);
  if (status != HK_OK) hk_validation_free(out);
  return status;
}

static hk_status compare_stored(session *s, const hk_timeline *measured, const hk_machine *machine,
                                hk_validation *out, hk_error *err) {
  hk_memory_report unused;
  HK_TRY(predict(s, machine, out, &unused, err));
  HK_TRY(compare(s, measured, out, err));
  out->update_ms = malloc(sizeof *out->update_ms);
  if (out->update_ms == NULL) return hk_fail_memory(err, sizeof *out->update_ms, "step times");
  out->update_ms[0] = hk_ms(out->comparison.makespan.measured);
  out->steps = 1;
  return HK_OK;
}

hk_status hk_validate_again(const hk_plan *plan, const hk_timeline *measured,
                            const hk_machine *machine, hk_validation *out, hk_error *err) {
  memset(out, 0, sizeof *out);
  session s = {.plan = plan};
  const hk_status status = compare_stored(&s, measured, machine, out, err);
  if (status != HK_OK) hk_validation_free(out);
  return status;
}

hk_status hk_validate_predict(const hk_plan *plan, const hk_machine *machine, hk_ns *update,
                              hk_error *err) {
  session s = {.plan = plan};
  hk_validation v = {0};
  hk_memory_report unused;
  const hk_status status = predict(&s, machine, &v, &unused, err);
  if (status == HK_OK) *update = v.predicted.makespan;
  hk_validation_free(&v);
  return status;
}

void hk_validation_free(hk_validation *validation) {
  hk_timeline_comparison_free(&validation->comparison);
  hk_timeline_free(&validation->predicted);
  hk_timeline_free(&validation->measured);
  hk_graph_free(&validation->graph);
  free(validation->update_ms);
  memset(validation, 0, sizeof *validation);
}

double hk_validation_median_ms(const hk_validation *v) {
  return hk_median(v->update_ms, (size_t)v->steps);
}

/* -- Machine and age of a profile -------------------------------------------------------------- */

static hk_status check_fingerprint(const cJSON *calibration, const char *name,
                                   const hk_fingerprint *here, hk_error *err) {
  const cJSON *object = NULL;
  hk_fingerprint of, mine = *here;
  char differences[600];
  HK_TRY(hk_json_object(calibration, "fingerprint", &object, err));
  HK_TRY(hk_fingerprint_from_json(object, &of, err));
  mine.gpus = -1; /* unknown, so not compared: validation uses one GPU */
  if (hk_fingerprint_compare(&of, &mine, differences, sizeof differences) == 0) return HK_OK;
  return hk_fail(err, HK_INPUT, "profile '%s' is of another machine: %s", name, differences);
}

static hk_status check_age(const cJSON *calibration, const char *name, double max_age_s,
                           hk_error *err) {
  const char *made = NULL;
  struct tm parts = {0};
  HK_TRY(hk_json_string(calibration, "made", &made, err));
  const char *end = strptime(made, "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == NULL || *end != '\0')
    return hk_fail(err, HK_INPUT, "key 'made': expected a time like 2026-11-21T09:30:00Z, got '%s'",
                   made);
  const double age = difftime(time(NULL), timegm(&parts));
  if (age <= max_age_s) return HK_OK;
  return hk_fail(
      err, HK_INPUT,
      "profile '%s' was calibrated on %.10s, %.1f days ago, and may be at most %.1f days "
      "old",
      name, made, age / 86400, max_age_s / 86400);
}

hk_status hk_validate_profile(const cJSON *document, const hk_fingerprint *here, double max_age_s,
                              hk_error *err) {
  const char *name = NULL;
  HK_TRY(hk_json_string(document, "name", &name, err));
  const cJSON *calibration = cJSON_GetObjectItemCaseSensitive(document, "calibration");
  if (!cJSON_IsObject(calibration))
    return hk_fail(
        err, HK_INPUT,
        "profile '%s' was not calibrated: it does not name the machine it was measured on", name);
  hk_status status = check_fingerprint(calibration, name, here, err);
  if (status == HK_OK && max_age_s > 0) status = check_age(calibration, name, max_age_s, err);
  return status;
}
