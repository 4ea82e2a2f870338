/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on recordings: begin and end, marks of the caller, and the recording as text. */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/grow.h"
#include "core/base/json_write.h"
#include "engine/train/recording.h"

hk_status hk_engine_record(hk_engine *e, bool on, hk_error *err) {
  bool there = false;
  HK_TRY(hk_engine_drain(e, -1, &there, err));
  pthread_mutex_lock(&e->training->lock);
  hk_status status = HK_OK;
  hk_recording_close(e);
  if (on) {
    e->training->recording = calloc(1, sizeof *e->training->recording);
    status =
        e->training->recording != NULL
            ? e->backend->ops->clock_align(e->backend, &e->training->recording->clock_error, err)
            : hk_fail_memory(err, sizeof *e->training->recording, "a recording");
  }
  pthread_mutex_unlock(&e->training->lock);
  return status;
}

/* *out: for an end, the block's last mark of this kind if it has no end yet, else NULL; for a
 * start, a new mark, or NULL if the recording is full. */
static hk_status find_mark(hk_engine *e, int32_t kind, int32_t block, bool end, hk_mark **out,
                           hk_error *err) {
  struct hk_recording *r = e->training->recording;
  *out = NULL;
  for (size_t i = r->n_marks; end && i-- > 0;) {
    hk_mark *m = &r->marks[i];
    if (m->kind != kind || m->block != block) continue;
    if (!m->has_end) *out = m;
    return HK_OK;
  }
  if (end || r->n_marks == HK_MOST_MARKS) return HK_OK;
  HK_TRY(HK_GROW(r->marks, r->room_marks, r->n_marks, "a recording", err));
  hk_mark *m = &r->marks[r->n_marks];
  *m = (hk_mark){.kind = kind, .block = block, .step = hk_engine_step_number(e) + 1};
  HK_TRY(e->backend->ops->event_open(e->backend, false, &m->start, err));
  r->n_marks++;
  HK_TRY(e->backend->ops->event_open(e->backend, false, &m->end, err));
  *out = m;
  return HK_OK;
}

hk_status hk_engine_mark(hk_engine *e, int32_t kind, int32_t block, bool end, void *native,
                         hk_error *err) {
  struct hk_training *t = e->training;
  if (t->recording == NULL) return HK_OK;
  if (kind < 0 || kind >= HK_MARK_COUNT || block < 0 || block >= t->n_blocks) {
    return hk_fail(err, HK_INPUT,
                   "phase %d of block %d: phases are 0 (forward), 1 (backward), 2 (all-gather) and "
                   "3 (reduce-scatter), blocks 0 to %d",
                   (int)kind, (int)block, (int)t->n_blocks - 1);
  }
  pthread_mutex_lock(&t->lock);
  hk_callers_stream *stream = NULL;
  hk_mark *m = NULL;
  hk_status status = hk_handover_stream(e, native, &stream, err);
  if (status == HK_OK) status = find_mark(e, kind, block, end, &m, err);
  if (status == HK_OK && m != NULL) {
    status = e->backend->ops->record(stream->stream, end ? m->end : m->start, err);
    if (end) {
      m->has_end = status == HK_OK;
    } else {
      m->has_start = status == HK_OK;
    }
  }
  pthread_mutex_unlock(&t->lock);
  return status;
}

/* -- As text ----------------------------------------------------------------------------------- */

static cJSON *add_span(cJSON *spans, const char *name, const char *lane, int64_t step, hk_ns start,
                       hk_ns end, bool *ok) {
  cJSON *span = hk_put_element(spans, ok);
  hk_put_string(span, "name", name, ok);
  hk_put_string(span, "lane", lane, ok);
  hk_put_number(span, "step", (double)step, ok);
  hk_put_number(span, "start_ms", hk_ms(start), ok);
  hk_put_number(span, "end_ms", hk_ms(end), ok);
  return span;
}

static void add_operations(const hk_engine *e, cJSON *spans, bool *ok) {
  const struct hk_recording *r = e->training->recording;
  for (size_t i = 0; i < r->n_spans && *ok; i++) {
    const hk_kept_span *s = &r->spans[i];
    const hk_op *op = &e->graph.ops[s->op];
    char label[64];
    hk_op_label(&e->graph, s->op, label, sizeof label);
    cJSON *span =
        add_span(spans, label, e->graph.lanes[op->lane].name, s->step, s->start, s->end, ok);
    hk_put_number(span, "op", s->op, ok);
    hk_put_number(span, "subgroup", op->subgroup, ok);
  }
}

static void add_marks(hk_engine *e, cJSON *spans, bool *ok) {
  const struct hk_recording *r = e->training->recording;
  for (size_t i = 0; i < r->n_marks && *ok; i++) {
    const hk_mark *m = &r->marks[i];
    hk_ns start = 0, end = 0;
    hk_error ignored = {0};
    if (!m->has_start || !m->has_end ||
        e->backend->ops->event_time(m->start, &start, &ignored) != HK_OK ||
        e->backend->ops->event_time(m->end, &end, &ignored) != HK_OK) {
      continue;
    }
    static const hk_op_kind kinds[] = {HK_OP_FORWARD, HK_OP_BACKWARD, HK_OP_ALL_GATHER,
                                       HK_OP_REDUCE_SCATTER};
    char name[64];
    snprintf(name, sizeof name, "%s B%d", hk_op_kind_name(kinds[m->kind]), (int)m->block);
    const char *lane = m->kind < HK_MARK_ALL_GATHER ? "gpu" : "net";
    cJSON *span = add_span(spans, name, lane, m->step, start, end, ok);
    hk_put_number(span, "block", m->block, ok);
  }
}

/* The plan with the number of micro-steps that the engine expects: readers of a recording tell the
 * passes of a block in one step apart by it. */
static cJSON *plan_as_run(const hk_engine *e) {
  hk_plan plan = e->plan; /* its arrays stay the engine's */
  plan.job.grad_accum = (int)hk_min(e->training->rounds, HK_MOST_GRAD_ACCUM);
  return hk_plan_to_json(&plan);
}

static bool put_timeline(hk_engine *e, cJSON *root) {
  if (root == NULL) return false;
  bool ok = true;
  hk_put_string(root, "schema", "hocket.spans/1", &ok);
  hk_put_number(root, "clock_error_ms", hk_ms(e->training->recording->clock_error), &ok);
  cJSON *spans = hk_put_array(root, "spans", &ok);
  hk_put_item(root, "plan", plan_as_run(e), &ok);
  if (ok) add_operations(e, spans, &ok);
  if (ok) add_marks(e, spans, &ok);
  return ok;
}

hk_status hk_engine_timeline(hk_engine *e, char **text, hk_error *err) {
  bool there = false;
  hk_error ignored = {0};
  hk_engine_drain(e, -1, &there, &ignored);
  if (e->training->recording == NULL) {
    return hk_fail(err, HK_NO, "nothing is recorded: start a recording first");
  }
  cJSON *root = cJSON_CreateObject();
  *text = put_timeline(e, root) ? cJSON_PrintUnformatted(root) : NULL;
  cJSON_Delete(root);
  return *text != NULL ? HK_OK : hk_fail(err, HK_ENVIRONMENT, "out of memory for the timeline");
}
