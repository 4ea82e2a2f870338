/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Reads what a page shows. */
#include <math.h>
#include <string.h>

#include "cli/jobs.h"
#include "cli/page.h"
#include "cli/print/explain.h"
#include "cli/print/report.h"
#include "cli/print/report_uncertainty.h"
#include "cli/setup.h"
#include "cli/stored_timeline.h"
#include "core/base/json.h"
#include "core/base/json_write.h"
#include "core/base/names.h"

#define MOST_OPERATIONS 60000 /* on a page: more would make it larger than 10 MB */

/* -- A plan, simulated ------------------------------------------------------------------------- */

typedef struct {
  hk_args args; /* first: hk_setup_forecast hands it to put_forecast */
  cJSON *input;
  size_t most;
} plan_input;

static hk_status put_document(const hk_forecast *forecast, const hk_machine *machine,
                              cJSON *document, bool *ok, hk_error *err) {
  char title[96];
  hk_ns alone;
  hk_uncertainty uncertainty;
  HK_TRY(hk_report_json(forecast, machine, document, err));
  hk_put_string(document, "title", hk_forecast_title(forecast, title, sizeof title), ok);
  hk_put_string(document, "model", forecast->plan.model.name, ok);
  hk_put_string(document, "machine", machine->name, ok);
  HK_TRY(hk_jobs_alone(forecast, machine, &alone, err));
  hk_jobs_json(forecast, alone, document, ok);
  HK_TRY(hk_uncertainty_make(forecast, 1, machine, &uncertainty, err));
  hk_report_forecast_error_json(&uncertainty, forecast, document, ok);
  hk_uncertainty_free(&uncertainty);
  hk_explain_json(machine, &forecast->plan, document, ok);
  return HK_OK;
}

static hk_status put_forecast(const hk_args *args, const hk_forecast *forecast,
                              const hk_machine *machine, hk_error *err) {
  const plan_input *plan = (const plan_input *)(const void *)args;
  cJSON *input = plan->input;
  bool ok = true;
  cJSON *document = hk_put_object(input, "document", &ok);
  hk_put_string(document, "schema", "hocket.forecast/1", &ok);
  HK_TRY(put_document(forecast, machine, document, &ok, err));
  hk_page_timeline(&forecast->graph, &forecast->result.timeline, "predicted", plan->most,
                   hk_put_array(input, "timelines", &ok), &ok);
  return hk_page_check(ok, err);
}

static hk_status read_plan(const hk_args *args, int i, cJSON *input, hk_error *err) {
  plan_input plan = {
      .args = *args, .input = input, .most = MOST_OPERATIONS / (size_t)args->n_operands};
  const hk_sim_options options = {.counters = true};
  plan.args.operands = &args->operands[i];
  plan.args.n_operands = 1;
  return hk_setup_forecast(&plan.args, &options, put_forecast, err);
}

/* -- A stored timeline ------------------------------------------------------------------------- */

static hk_status put_stored(const char *operand, size_t most, cJSON *input, int64_t *pair,
                            hk_error *err) {
  bool ok = true;
  hk_loaded_timeline loaded;
  hk_status status = hk_stored_timeline_load(operand, &loaded, err);
  if (status == HK_OK) {
    const hk_stored_timeline *kept = &loaded.kept;
    cJSON *list = cJSON_GetObjectItemCaseSensitive(input, "timelines");
    if (!list) {
      list = hk_put_array(input, "timelines", &ok);
      hk_put_string(input, "label", kept->label, &ok);
      hk_put_string(input, "machine", kept->machine, &ok);
      hk_put_string(input, "made", kept->made, &ok);
    }
    hk_page_timeline(&loaded.graph, &loaded.timeline, hk_stored_timeline_kind(kept), most, list,
                     &ok);
    *pair = kept->pair;
    status = hk_page_check(ok, err);
  }
  hk_loaded_timeline_free(&loaded);
  return status;
}

static hk_status read_stored(const hk_args *args, int i, cJSON *input, hk_error *err) {
  const size_t most = MOST_OPERATIONS / (2 * (size_t)args->n_operands);
  int64_t pair, first;
  char other[24];
  HK_TRY(put_stored(args->operands[i], most, input, &pair, err));
  if (pair == 0) return HK_OK;
  snprintf(other, sizeof other, "%lld", (long long)pair);
  return put_stored(other, most, input, &first, err);
}

/* -- Documents --------------------------------------------------------------------------------- */

static const char *const shown[] = {"hocket.plan_ranking/1",
                                    "hocket.forecast/1",
                                    "hocket.engine_validation/1",
                                    "hocket.training_validation/1",
                                    "hocket.run_comparison/1",
                                    "hocket.ranking/1",
                                    "hocket.spans/1",
                                    "hocket.plan_comparison/1"};
enum { SHOWN = sizeof shown / sizeof *shown };

static hk_status check_schema(const char *path, const char *schema, hk_error *err) {
  for (int i = 0; i < SHOWN; i++)
    if (strcmp(schema, shown[i]) == 0) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "%s: a document '%.60s' has no page; expected a plan, the --json of 'plan', "
                 "'simulate' or 'validate', a recording, a sweep's database, or a timeline's id",
                 path, schema);
}

/* Leaves the last two steps of a recording, which may have thousands, and their number. */
static hk_status shorten(const char *path, cJSON *root, cJSON *input, hk_error *err) {
  const cJSON *spans;
  bool ok = true;
  double last = 0, first = INFINITY;
  HK_TRY(hk_json_array(root, "spans", &spans, err));
  const cJSON *span;
  cJSON_ArrayForEach(span, spans) {
    const double step = hk_json_number_or(span, "step", NAN);
    if (isnan(step)) return hk_fail(err, HK_INPUT, "%s: a span without a step", path);
    last = fmax(last, step);
    first = fmin(first, step);
  }
  hk_put_number(input, "steps", cJSON_GetArraySize(spans) > 0 ? last - first + 1 : 0, &ok);
  for (cJSON *each = spans->child, *next; each; each = next) {
    next = each->next;
    if (hk_json_number_or(each, "step", 0) < last - 1)
      cJSON_Delete(cJSON_DetachItemViaPointer((cJSON *)(uintptr_t)spans, each));
  }
  return hk_page_check(ok, err);
}

static hk_status read_document(const hk_args *args, int i, cJSON *input, hk_error *err) {
  const char *path = args->operands[i], *schema;
  cJSON *root = NULL;
  bool ok = true;
  HK_TRY(hk_json_load(path, &root, err));
  hk_status status = hk_json_string(root, "schema", &schema, err);
  if (status != HK_OK) hk_fail_prefix(err, "%s", path);
  const bool plan = status == HK_OK && strncmp(schema, "hocket.plan/", 12) == 0;
  if (status == HK_OK && !plan) status = check_schema(path, schema, err);
  if (status == HK_OK && strcmp(schema, "hocket.spans/1") == 0)
    status = shorten(path, root, input, err);
  if (status != HK_OK || plan) {
    cJSON_Delete(root);
    return plan ? read_plan(args, i, input, err) : status;
  }
  hk_put_item(input, "document", root, &ok);
  return hk_page_check(ok, err);
}

hk_status hk_page_read(const hk_args *args, int i, cJSON *input, hk_error *err) {
  const char *operand = args->operands[i];
  bool ok = true;
  hk_put_string(input, "name", operand, &ok);
  HK_TRY(hk_page_check(ok, err));
  if (hk_stored_timeline_is_id(operand)) return read_stored(args, i, input, err);
  if (hk_store_is_database(operand)) return hk_page_sweep(operand, input, err);
  return read_document(args, i, input, err);
}
