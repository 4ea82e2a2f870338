/* SPDX-License-Identifier: GPL-3.0-or-later */
/* From the settings of a log to a row of a run table. Values that follow from others by arithmetic
 * are computed; values that would be a guess stay empty. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory_text.h"
#include "traces/import_deepspeed_internal.h"

static hk_status set_text(char **field, const char *text, hk_error *err) {
  char *copy = strdup(text);
  if (!copy) return hk_fail_memory(err, strlen(text) + 1, "a run");
  free(*field);
  *field = copy;
  return HK_OK;
}

/* The first value that is not NAN. */
static double either(double a, double b) {
  return isnan(a) ? b : a;
}

/* a / b if that is a whole number of at least 1, else NAN. */
static double divide(double a, double b) {
  double quotient = a / b;
  return quotient >= 1 && quotient == floor(quotient) ? quotient : NAN;
}

static double kv_heads(const hk_log_settings *s) {
  if (!isnan(s->kv_heads)) return s->kv_heads;
  return s->grouped == 1 ? s->groups : s->heads;
}

static void fill_shape(const hk_log_settings *s, hk_run *run) {
  run->layers = s->layers;
  run->hidden = s->hidden;
  run->ffn = s->ffn;
  run->heads = s->heads;
  run->kv_heads = kv_heads(s);
  run->vocab = either(s->vocab, s->vocab_raw);
  run->seq = s->seq;
  run->params_per_tp_rank = s->params;
}

/* train_batch_size = micro-batch x accumulation x data-parallel degree: three of them give the
 * fourth. */
static void fill_batch(const hk_log_settings *s, hk_run *run) {
  run->micro_batch = either(s->micro, s->megatron_micro);
  run->global_batch = either(s->global, s->megatron_global);
  run->dp = either(s->dp, divide(run->global_batch, run->micro_batch * s->accum));
  run->grad_accum = either(s->accum, divide(run->global_batch, run->micro_batch * run->dp));
  run->global_batch = either(run->global_batch, run->micro_batch * run->grad_accum * run->dp);
  run->tp = either(s->tp, run->dp == s->world ? 1 : NAN);
  run->nodes = s->nodes;
  run->cores_per_rank = s->cores;
}

static void fill_policy(const hk_log_settings *s, hk_run *run) {
  run->subgroup_numel = s->subgroup;
  if (s->offload == 1) run->offload_ratio = either(s->ratio, 1);
  if (s->offload == 0) run->offload_ratio = 0;
  /* A version without the prototype's switches cannot interleave. Its flush is unknown. */
  run->interleave = either(s->prefetch, isnan(s->offload) ? NAN : 0);
  run->flush_async = s->async;
  if (run->interleave == 1) run->stride = s->gap;
}

static hk_status fill_subgroups(const hk_log_settings *s, hk_run *run, hk_error *err) {
  if (s->subgroups.broken || s->subgroups.n == 0) return HK_OK;
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return hk_fail_memory(err, 1, "subgroups");
  for (size_t i = 0; i < s->subgroups.n; i++)
    fprintf(out, "%s%lldx%lld", i > 0 ? " " : "", s->subgroups.runs[i].numel,
            s->subgroups.runs[i].count);
  HK_TRY(hk_memory_text_close(out, &text, "subgroups", err));
  free(run->subgroups_rank0);
  run->subgroups_rank0 = text;
  return HK_OK;
}

/* Logs do not state the model's name: uses its size, or "unknown". */
static hk_status fill_model(const hk_log_settings *s, const hk_run *defaults, hk_run *run,
                            hk_error *err) {
  if (defaults && *defaults->model) return set_text(&run->model, defaults->model, err);
  char name[32] = "unknown";
  double params = s->params * run->tp;
  if (params >= 1e9) snprintf(name, sizeof name, "%.1fB", params / 1e9);
  if (params < 1e9) snprintf(name, sizeof name, "%.0fM", params / 1e6);
  return set_text(&run->model, name, err);
}

static hk_status fill_texts(const hk_log_settings *s, const hk_import_options *options,
                            const char *path, hk_run *run, hk_error *err) {
  const char *slash = strrchr(path, '/');
  HK_TRY(set_text(&run->source, slash ? slash + 1 : path, err));
  HK_TRY(set_text(&run->machine, options->machine ? options->machine : "unknown", err));
  HK_TRY(set_text(&run->build, s->build, err));
  HK_TRY(fill_subgroups(s, run, err));
  return fill_model(s, options->defaults, run, err);
}

hk_status hk_log_row(const hk_log_settings *settings, const hk_import_options *options,
                     const char *path, hk_run *run, hk_error *err) {
  HK_TRY(hk_run_init(run, err));
  fill_shape(settings, run);
  fill_batch(settings, run);
  fill_policy(settings, run);
  if (options->defaults) {
#define FILL(field, column, required, meaning) \
  run->field = either(run->field, options->defaults->field);
    HK_RUN_NUMBERS(FILL)
#undef FILL
  }
  hk_status status = fill_texts(settings, options, path, run, err);
  if (status != HK_OK) hk_run_free(run);
  return status;
}

static void add_missing(hk_import_report *report, const char *column, bool required) {
  size_t n = strlen(report->missing);
  snprintf(report->missing + n, sizeof report->missing - n, "%s%s", n > 0 ? ", " : "", column);
  report->incomplete |= required;
}

void hk_log_missing(const hk_run *run, hk_import_report *report) {
  report->missing[0] = '\0';
  report->incomplete = false;
  /* Two columns may be empty: cores of a rank that is not bound, stride without interleaving. */
  const double *unbound = &run->cores_per_rank;
  const double *no_stride = run->interleave == 1 ? NULL : &run->stride;
#define CHECK(field, column, required, meaning)                                \
  if (isnan(run->field) && &run->field != unbound && &run->field != no_stride) \
    add_missing(report, column, required);
  HK_RUN_NUMBERS(CHECK)
#undef CHECK
}
