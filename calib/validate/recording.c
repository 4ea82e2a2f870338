/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Reads recordings of training runs. */
#include "calib/validate/recording.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/probes/statistics.h"
#include "core/base/json.h"

#define MOST_MS   1e12
#define MOST_STEP ((int64_t)1 << 40)

static int compare_int(int64_t a, int64_t b) {
  return (a > b) - (a < b);
}

/* By what an operation is: step, kind, place. */
static int compare_identity(const hk_recorded_op *a, const hk_recorded_op *b) {
  int order = compare_int(a->step, b->step);
  if (order == 0) order = compare_int(a->kind, b->kind);
  if (order == 0) order = compare_int(a->subgroup, b->subgroup);
  if (order == 0) order = compare_int(a->piece, b->piece);
  if (order == 0) order = compare_int(a->block, b->block);
  return order;
}

static int by_identity_and_time(const void *left, const void *right) {
  const hk_recorded_op *a = left, *b = right;
  const int order = compare_identity(a, b);
  return order != 0 ? order : compare_int(a->start, b->start);
}

/* The number at *text, which then points behind it; -1 if there is none or none that is valid. */
static int32_t read_number(const char **text) {
  char *end;
  if (**text < '0' || **text > '9') return -1;
  const long number = strtol(*text, &end, 10);
  *text = end;
  return number < INT32_MAX ? (int32_t)number : -1;
}

/* -- Reading ----------------------------------------------------------------------------------- */

static hk_status read_name(const char *name, hk_recorded_op *op, hk_error *err) {
  const size_t length = strcspn(name, " ");
  int kind = 0;
  while (kind < HK_OP_KIND_COUNT && (strlen(hk_op_kind_name((hk_op_kind)kind)) != length ||
                                     strncmp(hk_op_kind_name((hk_op_kind)kind), name, length) != 0))
    kind++;
  if (kind == HK_OP_KIND_COUNT)
    return hk_fail(err, HK_INPUT, "key 'name': '%.60s' is no operation of a task graph", name);
  op->kind = (hk_op_kind)kind;
  op->subgroup = op->piece = op->block = op->micro = -1;
  if (strncmp(name + length, " sg", 3) != 0) return HK_OK;
  const char *rest = name + length + 3;
  op->subgroup = read_number(&rest);
  if (op->subgroup >= 0 && *rest == '.') {
    rest++;
    op->piece = read_number(&rest);
  }
  return HK_OK;
}

static hk_status read_span(const cJSON *item, hk_recorded_op *op, hk_error *err) {
  const char *name = NULL;
  double start = 0, end = 0;
  int64_t block = -1;
  if (!cJSON_IsObject(item)) return hk_fail(err, HK_INPUT, "key 'spans': expected objects");
  HK_TRY(hk_json_string(item, "name", &name, err));
  HK_TRY(read_name(name, op, err));
  HK_TRY(hk_json_int(item, "step", 0, MOST_STEP, &op->step, err));
  HK_TRY(hk_json_double(item, "start_ms", 0, MOST_MS, &start, err));
  HK_TRY(hk_json_double(item, "end_ms", 0, MOST_MS, &end, err));
  HK_TRY(hk_json_int_or(item, "block", 0, INT32_MAX / 2, -1, &block, err));
  op->block = (int32_t)block;
  op->start = (hk_ns)(1e6 * start);
  op->end = (hk_ns)(1e6 * end);
  if (op->end >= op->start) return HK_OK;
  return hk_fail(err, HK_INPUT, "'%.60s' of step %lld ends before it starts", name,
                 (long long)op->step);
}

/* Whether a backward of the step began between two times. */
static bool backward_between(const hk_recorded *r, int64_t step, hk_ns from, hk_ns to) {
  for (size_t i = 0; i < r->n && r->ops[i].step <= step; i++) {
    const hk_recorded_op *op = &r->ops[i];
    if (op->step == step && op->kind == HK_OP_BACKWARD && op->start >= from && op->start < to)
      return true;
  }
  return false;
}

static bool is_pass(hk_op_kind kind) {
  return kind == HK_OP_FORWARD || kind == HK_OP_BACKWARD;
}

bool hk_recorded_by_block(hk_op_kind kind) {
  return is_pass(kind) || kind == HK_OP_ALL_GATHER || kind == HK_OP_REDUCE_SCATTER;
}

/* Number of records for each pass of a block, out of n records in one step: a block of several
 * modules has one of each module. 1 if they are passes of several micro-steps. */
static size_t records_of_pass(const hk_recorded *r, const hk_recorded_op *first, size_t n,
                              int64_t grad_accum) {
  const size_t passes = (size_t)hk_max(1, grad_accum), each = n / passes;
  if (!is_pass(first->kind)) return 1;
  if (each <= 1 || n % passes != 0) return 1;
  const bool apart = first->kind == HK_OP_FORWARD &&
                     backward_between(r, first->step, first->start, first[each - 1].end);
  return apart ? 1 : each;
}

/* Numbers the passes of each block in a step, and joins the records of a pass. */
static void number_passes(hk_recorded *r, int64_t grad_accum) {
  size_t kept = 0;
  for (size_t i = 0; i < r->n;) {
    size_t n = 1;
    while (i + n < r->n && compare_identity(&r->ops[i], &r->ops[i + n]) == 0) n++;
    const bool pass = r->ops[i].block >= 0;
    const size_t each = pass ? records_of_pass(r, &r->ops[i], n, grad_accum) : 1;
    for (size_t k = 0; k < n; k++) {
      const hk_recorded_op from = r->ops[i + k];
      if (k % each == 0) {
        r->ops[kept] = from;
        r->ops[kept++].micro = pass ? (int32_t)(k / each) : -1;
      } else {
        r->ops[kept - 1].end = hk_max(r->ops[kept - 1].end, from.end);
      }
    }
    i += n;
  }
  r->n = kept;
}

static int by_kind_and_start(const void *left, const void *right) {
  const hk_recorded_op *a = left, *b = right;
  const int order = compare_int(a->kind, b->kind);
  return order != 0 ? order : compare_int(a->start, b->start);
}

/* The pass of a block with other blocks inside, such as the root of a sharded model, ends where the
 * first of them begins. */
static void cut_enclosing(hk_recorded *r) {
  qsort(r->ops, r->n, sizeof *r->ops, by_kind_and_start);
  for (size_t i = 0; i + 1 < r->n; i++) {
    hk_recorded_op *op = &r->ops[i], *next = &r->ops[i + 1];
    if (is_pass(op->kind) && next->kind == op->kind && next->block != op->block)
      op->end = hk_min(op->end, next->start);
  }
}

static hk_status read_spans(const cJSON *root, int64_t grad_accum, hk_recorded *out,
                            hk_error *err) {
  const cJSON *spans = NULL, *item = NULL;
  HK_TRY(hk_json_array(root, "spans", &spans, err));
  const size_t n = (size_t)cJSON_GetArraySize(spans);
  out->ops = calloc(n + 1, sizeof *out->ops);
  if (out->ops == NULL) return hk_fail_memory(err, n * sizeof *out->ops, "a recording");
  cJSON_ArrayForEach(item, spans) {
    if (read_span(item, &out->ops[out->n], err) != HK_OK)
      return hk_fail_prefix(err, "span %zu", out->n);
    out->n++;
  }
  cut_enclosing(out);
  qsort(out->ops, out->n, sizeof *out->ops, by_identity_and_time);
  number_passes(out, grad_accum);
  return HK_OK;
}

/* -- Ranks ------------------------------------------------------------------------------------- */

static hk_status read_rank(const cJSON *root, hk_recorded *out, hk_error *err) {
  int64_t rank = 0, ranks = 1;
  out->rank = 0, out->ranks = 1;
  if (cJSON_GetObjectItemCaseSensitive(root, "ranks") == NULL) return HK_OK;
  HK_TRY(hk_json_int(root, "ranks", 1, INT32_MAX, &ranks, err));
  HK_TRY(hk_json_int(root, "rank", 0, ranks - 1, &rank, err));
  HK_TRY(hk_json_text(root, "host", 0, out->host, sizeof out->host, err));
  out->rank = (int)rank, out->ranks = (int)ranks;
  return HK_OK;
}

/* The plan of one rank's shards as that of all ranks. Shards of the first rank count for all: those
 * of others may have a row less. */
static hk_status spread(cJSON *plan, int ranks, hk_error *err) {
  const cJSON *job = NULL, *model = NULL, *config = NULL, *tensors = NULL;
  HK_TRY(hk_json_object(plan, "job", &job, err));
  cJSON *gpus = cJSON_GetObjectItemCaseSensitive(job, "gpus");
  if (!cJSON_IsNumber(gpus) || gpus->valuedouble != 1) return HK_OK; /* is of all ranks */
  HK_TRY(hk_json_object(plan, "model", &model, err));
  HK_TRY(hk_json_object(model, "config", &config, err));
  if (cJSON_GetObjectItemCaseSensitive(config, "tensors") == NULL)
    return hk_fail(err, HK_INPUT, "the plan of one rank of %d has a model without tensors", ranks);
  HK_TRY(hk_json_array(config, "tensors", &tensors, err));
  cJSON_SetNumberValue(gpus, ranks);
  cJSON *tensor = NULL;
  cJSON_ArrayForEach(tensor, tensors) {
    cJSON *numel = cJSON_GetObjectItemCaseSensitive(tensor, "numel");
    if (cJSON_IsNumber(numel)) cJSON_SetNumberHelper(numel, numel->valuedouble * ranks);
  }
  return HK_OK;
}

static hk_status read_plan(const cJSON *document, int ranks, hk_plan *plan, hk_error *err) {
  if (ranks == 1) return hk_plan_from_json(document, plan, err);
  cJSON *copy = cJSON_Duplicate(document, true);
  if (copy == NULL) return hk_fail_memory(err, sizeof *copy, "a plan");
  hk_status status = spread(copy, ranks, err);
  if (status == HK_OK) status = hk_plan_from_json(copy, plan, err);
  cJSON_Delete(copy);
  return status;
}

hk_status hk_recorded_read(const cJSON *root, hk_recorded *out, hk_plan *plan, hk_error *err) {
  const char *schema = NULL;
  const cJSON *document = NULL;
  *out = (hk_recorded){0};
  HK_TRY(hk_json_string(root, "schema", &schema, err));
  if (strcmp(schema, "hocket.spans/1") != 0)
    return hk_fail(err, HK_INPUT, "'%.60s' is not what opt.timeline() returns", schema);
  HK_TRY(hk_json_object(root, "plan", &document, err));
  HK_TRY(read_rank(root, out, err));
  if (read_plan(document, out->ranks, plan, err) != HK_OK) return hk_fail_prefix(err, "key 'plan'");
  out->grad_accum = plan->job.grad_accum;
  return read_spans(root, plan->job.grad_accum, out, err);
}

void hk_recorded_free(hk_recorded *recorded) {
  free(recorded->ops);
  *recorded = (hk_recorded){0};
}

/* -- Looking up -------------------------------------------------------------------------------- */

/* Which of a block's `n` operations of one kind in a step `op` is. Of gathers a block has one in
 * forward and one in backward of each micro-step, or only the first (FSDP2's root). -1: none. */
static int32_t number_of(const hk_op *op, size_t n, int64_t grad_accum) {
  const int32_t micro = (int32_t)hk_max(0, op->micro);
  if (op->kind != HK_OP_ALL_GATHER) return micro;
  const int each = n > (size_t)hk_max(1, grad_accum) ? 2 : 1;
  if (op->phase == HK_PHASE_BACKWARD) return each == 2 ? 2 * micro + 1 : -1;
  return each * micro;
}

const hk_recorded_op *hk_recorded_find(const hk_recorded *r, const hk_op *op, int64_t step) {
  const bool by_block = hk_recorded_by_block(op->kind);
  const hk_recorded_op wanted = {.kind = op->kind,
                                 .subgroup = op->subgroup,
                                 .piece = op->piece,
                                 .block = by_block ? op->block - HK_BLOCK_EMBED : -1,
                                 .step = step};
  size_t low = 0, high = r->n;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (compare_identity(&r->ops[middle], &wanted) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (by_block) {
    size_t n = 0;
    while (low + n < r->n && compare_identity(&r->ops[low + n], &wanted) == 0) n++;
    const int32_t number = number_of(op, n, r->grad_accum);
    if (number < 0) return NULL;
    low += (size_t)number;
  }
  if (low >= r->n || compare_identity(&r->ops[low], &wanted) != 0) return NULL;
  r->ops[low].joined = true;
  return &r->ops[low];
}

hk_ns hk_recorded_end(const hk_recorded *r, int64_t step, bool overlapped) {
  hk_ns end = -1;
  for (size_t i = 0; i < r->n; i++) {
    const hk_recorded_op *op = &r->ops[i];
    if (op->step == step && (!overlapped || op->kind == HK_OP_BACKWARD)) end = hk_max(end, op->end);
  }
  return end;
}

/* Whether the step has backward passes. */
static bool has_backward(const hk_recorded *r, int64_t step) {
  return hk_recorded_end(r, step, true) >= 0;
}

hk_status hk_recorded_periods(const hk_recorded *r, bool overlapped, hk_ns **periods,
                              int64_t **steps, size_t *n, hk_error *err) {
  *n = 0;
  *periods = malloc((r->n + 1) * sizeof **periods);
  *steps = malloc((r->n + 1) * sizeof **steps);
  if (*periods == NULL || *steps == NULL)
    return hk_fail_memory(err, r->n * sizeof **periods, "iterations");
  for (size_t i = 0; i < r->n; i++) {
    const int64_t step = r->ops[i].step;
    if ((i > 0 && r->ops[i - 1].step == step) || !has_backward(r, step)) continue;
    const hk_ns before = hk_recorded_end(r, step - 1, overlapped);
    const hk_ns end = hk_recorded_end(r, step, overlapped);
    if (before < 0 || end <= before) continue;
    (*periods)[*n] = end - before;
    (*steps)[(*n)++] = step;
  }
  if (*n > 0) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "no whole iteration: expected forward and backward of two steps that follow each "
                 "other; attach the optimizer, call opt.record() before at least three steps");
}

hk_status hk_recorded_block_ms(const hk_recorded *r, hk_op_kind kind, int32_t block, double *ms,
                               hk_error *err) {
  double *found = malloc((r->n + 1) * sizeof *found);
  if (found == NULL) return hk_fail_memory(err, r->n * sizeof *found, "times of a block");
  size_t n = 0;
  for (size_t i = 0; i < r->n; i++) {
    const hk_recorded_op *op = &r->ops[i];
    if (op->kind == kind && op->block == block) found[n++] = hk_ms(op->end - op->start);
  }
  *ms = n > 0 ? hk_median(found, n) : 0;
  free(found);
  return HK_OK;
}
