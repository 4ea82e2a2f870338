/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/print/print_largest.h"

#include <stdio.h>
#include <string.h>

#include "cli/jobs.h"
#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/report_uncertainty.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"

const hk_largest_best *hk_largest_answer(const hk_largest_job *l) {
  return l->best.value > 0 ? &l->best : &l->layers;
}

const char *hk_largest_name(int what) {
  static const char *const names[] = {"batch", "seq", "model"};
  return names[what];
}

/* The smallest size above the answer that does not fit; NULL: none was tried. */
static const hk_largest_row *next_of(const hk_largest_job *l) {
  const bool preset = l->best.value > 0;
  const int64_t value = hk_largest_answer(l)->value;
  const size_t begin = l->what == HK_LARGEST_MODEL && !preset ? l->n_presets : 0;
  const size_t end = l->what == HK_LARGEST_MODEL && preset ? l->n_presets : l->n;
  const hk_largest_row *found = NULL;
  for (size_t i = begin; i < end; i++)
    if (!l->rows[i].fits && l->rows[i].value > value && (!found || l->rows[i].value < found->value))
      found = &l->rows[i];
  return found;
}

/* -- Text -------------------------------------------------------------------------------------- */

/* "24", "8192 tokens", "llama-2-13b (13.0 G parameters)". */
static const char *tell_value(const hk_largest_job *l, const hk_largest_best *best, char *text,
                              size_t size) {
  const hk_model *model = best->value > 0 ? &best->ranking.forecasts[0].plan.model : NULL;
  if (l->what == HK_LARGEST_MODEL)
    snprintf(text, size, "%.100s (%.1f G parameters)", model ? model->name : "none",
             model ? (double)model->parameters / 1e9 : 0);
  else
    snprintf(text, size, "%lld%s", (long long)best->value,
             l->what == HK_LARGEST_SEQ ? " tokens" : "");
  return text;
}

static void print_answer(const hk_largest_job *l) {
  static const char *const what[] = {"micro-batch", "sequence", "model"};
  const hk_largest_best *best = hk_largest_answer(l);
  char value[160], title[96], time[64], each[32];
  hk_jobs_each(&l->setup.job, each, sizeof each);
  if (best->value == 0) {
    hk_print_text(0, 2, "%slargest %s: none fits: %s", each, what[l->what],
                  l->n > 0 ? l->rows[l->n - 1].problem : "");
    return;
  }
  const hk_forecast *f = &best->ranking.forecasts[0];
  hk_print_text(0, 2, "%slargest %s: %s: %.0f tokens/s, %s ms/iteration with %s%s", each,
                what[l->what], tell_value(l, best, value, sizeof value), f->tokens_per_s,
                hk_format_ms(f->iteration_ns, &l->uncertainty.rows[0].iteration, time, sizeof time),
                hk_forecast_title(f, title, sizeof title),
                f->plan.runtime == HK_RUNTIME_DEEPSPEED ? " (deepspeed)" : "");
}

/* The largest micro-batch is not always the fastest, because it may move state to the host. */
static void print_fastest(const hk_largest_job *l) {
  const hk_largest_row *fastest = NULL;
  for (size_t i = 0; i < l->n; i++)
    if (l->rows[i].fits && (!fastest || l->rows[i].tokens_per_s > fastest->tokens_per_s))
      fastest = &l->rows[i];
  if (l->what == HK_LARGEST_BATCH && fastest && fastest->value != l->best.value)
    hk_print_text(0, 0, "the fastest of those tried is %lld: %.0f tokens/s with %s",
                  (long long)fastest->value, fastest->tokens_per_s, fastest->title);
}

static void print_limit(const hk_largest_job *l) {
  const hk_largest_row *next = next_of(l);
  char value[160];
  if (next && l->what == HK_LARGEST_MODEL)
    hk_print_text(0, 0, "%s does not fit: %s", next->name, next->problem);
  else if (next)
    hk_print_text(0, 0, "%lld does not fit: %s", (long long)next->value, next->problem);
  else if (l->what == HK_LARGEST_MODEL)
    hk_print_text(0, 0, "it is the largest preset of its family");
  else
    hk_print_text(0, 0, "no larger one is allowed by %s",
                  l->what == HK_LARGEST_SEQ ? "the model" : "--micro-batch");
  if (l->what == HK_LARGEST_MODEL && l->best.value > 0 && l->layers.value > 0)
    hk_print_text(0, 0, "the shape of %s with the most layers that fit: %s", l->setup.model.name,
                  tell_value(l, &l->layers, value, sizeof value));
}

static void print_why(const hk_largest_job *l) {
  const hk_forecast *f = &hk_largest_answer(l)->ranking.forecasts[0];
  const hk_memory_report *m = &f->result.memory;
  hk_report_heading(&f->plan.model, &l->setup.machine, &f->plan.job);
  hk_print_text(0, 0, "GPU memory %.1f of %.1f GiB, host memory %.1f of %.1f GiB", hk_gib(m->peak),
                hk_gib(m->capacity), hk_gib(m->host_peak), hk_gib(m->host_capacity));
  print_limit(l);
  print_fastest(l);
  hk_price_print(&l->price, f, &l->uncertainty.rows[0].iteration);
  if (!l->args->quiet) hk_report_uncertainty(&l->uncertainty);
}

/* Rows in the order of their values, each search by itself. */
static const hk_largest_row *row_at(const hk_largest_job *l, size_t at, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i++) {
    size_t before = 0;
    for (size_t j = begin; j < end; j++) before += l->rows[j].value < l->rows[i].value;
    if (before == at) return &l->rows[i];
  }
  return NULL;
}

static void add_rows(const hk_largest_job *l, hk_table *table, size_t begin, size_t end) {
  for (size_t at = 0; at < end - begin; at++) {
    const hk_largest_row *row = row_at(l, at, begin, end);
    if (!row) continue;
    if (l->what == HK_LARGEST_MODEL)
      hk_table_row(table, "%s", row->name);
    else
      hk_table_row(table, "%lld", (long long)row->value);
    hk_table_cell(table, "%s", row->fits ? row->title : "does not fit");
    if (row->fits) {
      hk_table_cell(table, "%.1f\t%.0f", hk_ms(row->iteration_ns), row->tokens_per_s);
    } else {
      hk_table_cell(table, "-\t-");
    }
    hk_table_cell(table, "%.1f\t%.1f", hk_gib(row->gpu_peak), hk_gib(row->host_peak));
  }
}

static hk_status print_rows(const hk_largest_job *l, hk_error *err) {
  const hk_column columns[] = {{l->what == HK_LARGEST_BATCH ? "micro-batch"
                                : l->what == HK_LARGEST_SEQ ? "sequence"
                                                            : "model",
                                l->what == HK_LARGEST_MODEL ? HK_WRAP : HK_RIGHT},
                               {"best schedule", HK_WRAP},
                               {"iter ms", HK_RIGHT},
                               {"tokens/s", HK_RIGHT},
                               {"GPU GiB", HK_RIGHT},
                               {"host GiB", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  if (l->what == HK_LARGEST_MODEL) {
    add_rows(l, &table, 0, l->n_presets);
    add_rows(l, &table, l->n_presets, l->n);
  } else {
    add_rows(l, &table, 0, l->n);
  }
  return hk_table_print(&table, err);
}

static hk_status print_text(const hk_largest_job *l, hk_error *err) {
  const hk_largest_best *best = hk_largest_answer(l);
  print_answer(l);
  putchar('\n');
  if (best->value > 0) {
    print_why(l);
    if (!l->args->quiet)
      HK_TRY(hk_report_warnings(&best->ranking.forecasts[0].plan, &l->setup.machine, err));
    putchar('\n');
  }
  return print_rows(l, err);
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_row(cJSON *array, const hk_largest_job *l, const hk_largest_row *row, bool *ok) {
  cJSON *object = hk_put_element(array, ok);
  if (l->what != HK_LARGEST_MODEL) hk_put_number(object, "value", (double)row->value, ok);
  hk_put_string(object, "model", row->name, ok);
  hk_put_number(object, "parameters", (double)row->parameters, ok);
  hk_put_bool(object, "fits", row->fits, ok);
  hk_put_number(object, "gpu_peak_bytes", (double)row->gpu_peak, ok);
  hk_put_number(object, "host_peak_bytes", (double)row->host_peak, ok);
  hk_put_string(object, "schedule", row->title, ok);
  if (row->fits) {
    hk_put_number(object, "iteration_ms", hk_ms(row->iteration_ns), ok);
    hk_put_number(object, "tokens_per_s", row->tokens_per_s, ok);
  } else {
    hk_put_string(object, "problem", row->problem, ok);
  }
}

static hk_status fill_json(const hk_largest_job *l, cJSON *root, bool *ok, hk_error *err) {
  const hk_largest_best *best = hk_largest_answer(l);
  hk_put_string(root, "what", hk_largest_name((int)l->what), ok);
  hk_put_string(root, "machine", l->setup.machine.name, ok);
  const bool counts = l->what != HK_LARGEST_MODEL && best->value > 0;
  hk_put_item(root, "largest",
              counts ? cJSON_CreateNumber((double)best->value) : cJSON_CreateNull(), ok);
  if (best->value > 0) {
    const hk_forecast *f = &best->ranking.forecasts[0];
    hk_jobs_json(f, 0, root, ok);
    hk_put_string(root, "model", f->plan.model.name, ok);
    hk_put_number(root, "parameters", (double)f->plan.model.parameters, ok);
    cJSON *object = hk_put_object(root, "best", ok);
    hk_put_string(object, "schema", "hocket.forecast/1", ok);
    HK_TRY(hk_report_json(f, &l->setup.machine, object, err));
    hk_report_row_error_json(&l->uncertainty, &l->uncertainty.rows[0], f, false, object, ok);
    hk_price_json(&l->price, f, object, ok);
    hk_report_uncertainty_json(&l->uncertainty, root, ok);
  }
  if (l->what == HK_LARGEST_MODEL && l->layers.value > 0) {
    cJSON *layers = hk_put_object(root, "most_layers", ok);
    hk_put_number(layers, "layers", (double)l->layers.value, ok);
    hk_put_number(layers, "parameters",
                  (double)l->layers.ranking.forecasts[0].plan.model.parameters, ok);
    hk_put_number(layers, "tokens_per_s", l->layers.ranking.forecasts[0].tokens_per_s, ok);
  }
  cJSON *array = hk_put_array(root, "tried", ok);
  for (size_t i = 0; i < l->n; i++) put_row(array, l, &l->rows[i], ok);
  return HK_OK;
}

static hk_status print_json(const hk_largest_job *l, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.plan_largest/1", &ok);
  const hk_status status = fill_json(l, root, &ok, err);
  if (status == HK_OK) return hk_emit_print(root, ok, err);
  cJSON_Delete(root);
  return status;
}

hk_status hk_largest_print(const hk_largest_job *l, hk_error *err) {
  return l->args->json ? print_json(l, err) : print_text(l, err);
}
