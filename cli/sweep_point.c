/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/sweep_point.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "calib/profiles/profiles.h"
#include "core/machine/machine_set.h"
#include "sim/held.h"
#include "sim/sweep.h"

/* -- Models and machines ----------------------------------------------------------------------- */

static hk_status load_machine(const char *text, hk_sweep_machine *machine, hk_error *err) {
  char name[4096];
  HK_TRY(hk_price_split(text, name, sizeof name, &machine->price, err));
  return hk_profiles_machine(name, &machine->machine, err);
}

static hk_status load_machines(hk_sweep_bench *b, hk_error *err) {
  const hk_sweep_axis *axis = hk_sweep_axis_of(b->spec, HK_OPT_MACHINE);
  if (!axis)
    return hk_fail(err, HK_INPUT,
                   "key 'machine' is needed; 'hocket machine list' lists the profiles");
  b->machines = calloc(axis->n, sizeof *b->machines);
  if (!b->machines) return hk_fail_memory(err, axis->n * sizeof *b->machines, "machines");
  for (; b->n_machines < axis->n; b->n_machines++)
    if (load_machine(axis->texts[b->n_machines], &b->machines[b->n_machines], err) != HK_OK)
      return hk_sweep_fail_axis(axis, err);
  return HK_OK;
}

/* Sets the options of axes begin .. end - 1 to those of a point. */
static hk_status give(const hk_sweep_spec *spec, size_t begin, size_t end, int64_t id,
                      hk_args *args, hk_error *err) {
  for (size_t a = begin; a < end; a++) {
    const hk_sweep_axis *axis = &spec->axes[a];
    const size_t value = hk_sweep_value(spec, a, id);
    if (!axis->cells[value].null) HK_TRY(hk_args_set(axis->id, axis->texts[value], args, err));
  }
  return HK_OK;
}

static hk_status load_model(const hk_sweep_spec *spec, int64_t id, hk_model *model, hk_error *err) {
  hk_args args = hk_args_none();
  HK_TRY(give(spec, spec->n_machine, spec->n_machine + spec->n_model, id, &args, err));
  hk_status status = hk_setup_model(&args, model, err);
  if (status == HK_OK) status = hk_setup_freeze(&args, model, err);
  return status;
}

static hk_status load_models(hk_sweep_bench *b, hk_error *err) {
  const size_t n = (size_t)hk_sweep_models(b->spec);
  if (n > 10000) return hk_fail(err, HK_INPUT, "%zu models, more than 10000", n);
  b->models = calloc(n, sizeof *b->models);
  if (!b->models) return hk_fail_memory(err, n * sizeof *b->models, "models");
  const hk_sweep_axis *axis = hk_sweep_axis_of(b->spec, HK_OPT_MODEL);
  for (; b->n_models < n; b->n_models++) {
    const int64_t id = (int64_t)b->n_models * hk_sweep_model_step(b->spec);
    const hk_status status = load_model(b->spec, id, &b->models[b->n_models], err);
    if (status != HK_OK)
      return axis && b->spec->n_model == 1 ? hk_sweep_fail_axis(axis, err) : status;
  }
  return HK_OK;
}

hk_status hk_sweep_bench_open(const hk_sweep_spec *spec, hk_sweep_bench *b, hk_error *err) {
  *b = (hk_sweep_bench){.spec = spec, .n_threads = hk_sweep_threads()};
  b->threads = calloc((size_t)b->n_threads, sizeof *b->threads);
  if (!b->threads) return hk_fail_memory(err, sizeof *b->threads, "threads");
  for (int i = 0; i < b->n_threads; i++) b->threads[i].variant = -1;
  HK_TRY(load_machines(b, err));
  return load_models(b, err);
}

void hk_sweep_bench_close(hk_sweep_bench *b) {
  for (int i = 0; b->threads && i < b->n_threads; i++) hk_machine_free(&b->threads[i].machine);
  for (size_t i = 0; b->machines && i < b->n_machines; i++)
    hk_machine_free(&b->machines[i].machine);
  for (size_t i = 0; b->models && i < b->n_models; i++) hk_model_free(&b->models[i]);
  free(b->threads);
  free(b->machines);
  free(b->models);
}

static hk_status add_document(uint64_t *hash, cJSON *document, hk_error *err) {
  char *text = document ? cJSON_PrintUnformatted(document) : NULL;
  if (!text) return hk_fail_memory(err, 4096, "a sweep");
  *hash = XXH3_64bits_withSeed(text, strlen(text), *hash);
  cJSON_free(text);
  return HK_OK;
}

hk_status hk_sweep_bench_hash(const hk_sweep_bench *b, char hex[17], hk_error *err) {
  uint64_t hash = 0;
  for (size_t i = 0; i < b->n_machines; i++) {
    cJSON *document = hk_machine_to_json(&b->machines[i].machine);
    const hk_status status = add_document(&hash, document, err);
    cJSON_Delete(document);
    HK_TRY(status);
  }
  for (size_t i = 0; i < b->n_models; i++)
    if (b->models[i].config) HK_TRY(add_document(&hash, b->models[i].config, err));
  snprintf(hex, 17, "%016" PRIx64, hash);
  return HK_OK;
}

/* The machine of a point with its quantities, as the thread's last point left it or anew. It shares
 * the sources' texts with the profile. */
static hk_status machine_of(hk_sweep_bench *b, int64_t id, hk_sweep_thread *t, hk_error *err) {
  const hk_sweep_spec *spec = b->spec;
  const char *texts[HK_MOST_SETS];
  size_t n = 0, which = 0;
  const int64_t variant = hk_sweep_machine_of(spec, id);
  if (t->variant != variant) {
    for (size_t a = 0; a < spec->n_machine; a++) {
      const size_t value = hk_sweep_value(spec, a, id);
      if (spec->axes[a].id == HK_OPT_MACHINE)
        which = value;
      else if (!spec->axes[a].cells[value].null && n < HK_MOST_SETS)
        texts[n++] = spec->axes[a].texts[value];
    }
    hk_machine_free(&t->machine);
    t->machine = b->machines[which].machine;
    t->machine.document = NULL;
    t->error = (hk_error){0};
    t->error.status = hk_machine_set(&t->machine, texts, n, &t->error);
    t->variant = variant;
  }
  if (t->error.status == HK_OK) return HK_OK;
  return hk_fail(err, t->error.status, "%s", t->error.message);
}

static const char *price_of(const hk_sweep_bench *b, int64_t id) {
  for (size_t a = 0; a < b->spec->n_machine; a++)
    if (b->spec->axes[a].id == HK_OPT_MACHINE)
      return b->machines[hk_sweep_value(b->spec, a, id)].price;
  return "";
}

/* -- One point --------------------------------------------------------------------------------- */

static void note(const hk_price *price, const hk_forecast *f, hk_sweep_outcome *out) {
  char title[96];
  int64_t n[HK_ROUTE_COUNT];
  const hk_job *job = &f->plan.job;
  const bool training = hk_forecast_is_training(f);
  hk_plan_route_totals(&f->plan, n);
  out->state = f->feasible ? HK_SWEEP_FITS : HK_SWEEP_TOO_LARGE;
  snprintf(out->reason, sizeof out->reason, "%s", f->problem);
  snprintf(out->schedule, sizeof out->schedule, "%s%s", hk_forecast_title(f, title, sizeof title),
           f->plan.runtime == HK_RUNTIME_DEEPSPEED ? " (deepspeed)" : "");
  out->offload = n[HK_ROUTE_CPU] + n[HK_ROUTE_STAGED] + n[HK_ROUTE_MAPPED] > 0;
  out->world = job->gpus * job->nodes;
  out->tokens = hk_job_tokens(job);
  out->update = f->update_ns;
  out->iteration = f->iteration_ns;
  out->tokens_per_s = f->tokens_per_s;
  out->gpu = f->result.memory.peak;
  out->host = f->result.memory.host_peak;
  out->limiter = hk_resource_name(training ? f->training_limiter : f->limiter);
  if (price->per_hour <= 0) return;
  out->per_hour = price->per_hour;
  if (f->feasible) out->per_mtok = 1e6 * hk_price_per_token(price, f);
}

/* The one schedule that the options describe. */
static hk_status simulate_one(const hk_setup *setup, const hk_price *price, hk_sweep_outcome *out,
                              hk_error *err) {
  const hk_candidate candidate = {setup->policy, setup->options, setup->runtime};
  hk_plan plan;
  hk_forecast f = {0};
  HK_TRY(hk_candidate_plan(&candidate, &setup->model, &setup->machine, &setup->job,
                           &setup->settings, &plan, err));
  HK_TRY(hk_forecast_make(&plan, &setup->machine, NULL, &f, err));
  note(price, &f, out);
  hk_forecast_free(&f);
  return HK_OK;
}

/* The best of all policies, or what `plan` finds, which also searches ratios. */
static hk_status simulate_best(const hk_args *args, const hk_setup *setup, const hk_price *price,
                               hk_sweep_outcome *out, hk_error *err) {
  const hk_ranking_options options = {
      .only_runtime = args->given & HK_OPTION(RUNTIME) ? &setup->runtime : NULL,
      .fixed = setup->options,
      .quick = !args->policy || strcmp(args->policy, HK_SWEEP_PLAN) != 0,
      .best_only = true,
  };
  hk_ranking ranking;
  HK_TRY(hk_rank(&setup->model, &setup->machine, &setup->job, &setup->settings, &options, &ranking,
                 err));
  note(price, &ranking.forecasts[0], out);
  hk_ranking_free(&ranking);
  return HK_OK;
}

/* The setup borrows model and machine. */
static hk_status simulate(hk_sweep_bench *b, hk_args *args, hk_sweep_thread *t,
                          hk_sweep_outcome *out, hk_error *err) {
  const bool best = !args->policy || hk_sweep_is_best(args->policy);
  hk_price price;
  hk_setup setup = {.machine = t->machine};
  setup.model = b->models[hk_sweep_model_of(b->spec, out->id)];
  if (!best) HK_TRY(hk_policy_find(args->policy, &setup.policy, err));
  if (!best && args->given & (HK_OPTION(GPU_MEMORY) | HK_OPTION(CLIP_SHARE)))
    return hk_fail(err, HK_INPUT,
                   "gpu-memory and clip-share are of the policy '" HK_SWEEP_BEST "' alone");
  HK_TRY(hk_setup_fill(args, &setup, err));
  HK_TRY(hk_price_make(args, price_of(b, out->id), &setup, &price, err));
  return best ? simulate_best(args, &setup, &price, out, err)
              : simulate_one(&setup, &price, out, err);
}

hk_status hk_sweep_simulate(hk_sweep_bench *b, int64_t id, int thread, hk_sweep_outcome *out,
                            hk_error *err) {
  const hk_sweep_spec *spec = b->spec;
  hk_sweep_thread *t = &b->threads[thread];
  hk_args args = hk_args_none();
  hk_error own = {0};
  *out = (hk_sweep_outcome){.id = id, .per_hour = NAN, .per_mtok = NAN};
  hk_status status = machine_of(b, id, t, &own);
  if (status == HK_OK) status = give(spec, spec->n_machine, spec->n, id, &args, &own);
  if (status == HK_OK) status = simulate(b, &args, t, out, &own);
  if (status == HK_OK) return HK_OK;
  if (status == HK_ENVIRONMENT) return hk_fail(err, status, "%s", own.message);
  out->state = HK_SWEEP_NOT_POSSIBLE;
  snprintf(out->reason, sizeof out->reason, "%.255s", own.message);
  return HK_OK;
}

/* -- Rows -------------------------------------------------------------------------------------- */

hk_status hk_sweep_columns(const hk_sweep_spec *spec, hk_sweep_column **columns, size_t *n,
                           hk_error *err) {
  static const hk_sweep_column outcomes[] = {
#define HK_SWEEP_COLUMN(name, type) {#name, HK_CELL_##type},
      HK_SWEEP_COLUMNS(HK_SWEEP_COLUMN)
#undef HK_SWEEP_COLUMN
  };
  *n = spec->n + HK_SWEEP_OUTCOMES;
  *columns = calloc(*n, sizeof **columns);
  if (!*columns) return hk_fail_memory(err, *n * sizeof **columns, "a sweep");
  for (size_t a = 0; a < spec->n; a++)
    (*columns)[a] = (hk_sweep_column){spec->axes[a].name, spec->axes[a].type};
  memcpy(*columns + spec->n, outcomes, sizeof outcomes);
  return HK_OK;
}

static void put_numbers(const hk_sweep_outcome *out, hk_cell *cells) {
  cells[HK_SWEEP_offload] = (hk_cell){.integer = out->offload};
  cells[HK_SWEEP_world] = (hk_cell){.integer = out->world};
  cells[HK_SWEEP_tokens] = (hk_cell){.integer = (int64_t)out->tokens};
  cells[HK_SWEEP_gpu_bytes] = (hk_cell){.integer = out->gpu};
  cells[HK_SWEEP_host_bytes] = (hk_cell){.integer = out->host};
  cells[HK_SWEEP_price_per_hour] = (hk_cell){.real = out->per_hour};
}

void hk_sweep_cells(const hk_sweep_spec *spec, const hk_sweep_outcome *out, hk_cell *cells) {
  for (size_t a = 0; a < spec->n; a++)
    cells[a] = spec->axes[a].cells[hk_sweep_value(spec, a, out->id)];
  cells += spec->n;
  for (int i = 0; i < HK_SWEEP_OUTCOMES; i++) cells[i] = (hk_cell){.null = true};
  if (*out->reason) cells[HK_SWEEP_reason] = (hk_cell){.text = out->reason};
  if (out->state == HK_SWEEP_NOT_POSSIBLE) return;
  cells[HK_SWEEP_fits] = (hk_cell){.integer = out->state == HK_SWEEP_FITS};
  cells[HK_SWEEP_schedule] = (hk_cell){.text = out->schedule};
  put_numbers(out, cells);
  if (out->state != HK_SWEEP_FITS) return;
  cells[HK_SWEEP_update_ms] = (hk_cell){.real = hk_ms(out->update)};
  cells[HK_SWEEP_iteration_ms] = (hk_cell){.real = hk_ms(out->iteration)};
  cells[HK_SWEEP_tokens_per_s] = (hk_cell){.real = out->tokens_per_s};
  cells[HK_SWEEP_limited_by] = (hk_cell){.text = out->limiter};
  cells[HK_SWEEP_cost_per_mtok] = (hk_cell){.real = out->per_mtok};
}
