/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of training: times of the engine's operations, under the graph's names, and of forward
 * and backward of blocks, which the caller marks. Times are CLOCK_MONOTONIC. */
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "engine/train/training_private.h"

/* Most spans and marks of a recording; it keeps the first ones. */
#define MOST_SPANS ((size_t)1 << 20)
#define MOST_MARKS ((size_t)1 << 14)

typedef struct {
  int32_t op;
  int64_t step;
  hk_ns start, end;
} kept_span;

/* One pass of a block. */
typedef struct {
  int32_t phase, block;
  int64_t step; /* number of the step at the end of its iteration */
  hk_event *start, *end;
  bool has_start, has_end;
} mark;

struct hk_recording {
  kept_span *spans;
  size_t n_spans, room_spans;
  mark *marks;
  size_t n_marks, room_marks;
};

static void free_recording(hk_engine *e) {
  struct hk_recording *r = e->training->recording;
  if (r == NULL) return;
  for (size_t i = 0; i < r->n_marks; i++) {
    if (r->marks[i].start != NULL) e->backend->ops->event_close(r->marks[i].start);
    if (r->marks[i].end != NULL) e->backend->ops->event_close(r->marks[i].end);
  }
  free(r->spans);
  free(r->marks);
  free(r);
  e->training->recording = NULL;
}

void hk_recording_close(hk_engine *e) {
  free_recording(e);
}

hk_status hk_engine_record(hk_engine *e, bool on, hk_error *err) {
  bool there = false;
  HK_TRY(hk_engine_drain(e, -1, &there, err));
  pthread_mutex_lock(&e->training->lock);
  hk_status status = HK_OK;
  free_recording(e);
  if (on) {
    hk_ns uncertainty = 0;
    e->training->recording = calloc(1, sizeof *e->training->recording);
    status = e->training->recording != NULL
                 ? e->backend->ops->clock_align(e->backend, &uncertainty, err)
                 : hk_fail_memory(err, sizeof *e->training->recording, "a recording");
  }
  pthread_mutex_unlock(&e->training->lock);
  return status;
}

static bool make_room(void **list, size_t *room, size_t n, size_t size) {
  if (n < *room) return true;
  const size_t more = *room * 2 + 256;
  void *larger = realloc(*list, more * size);
  if (larger == NULL) return false;
  *list = larger;
  *room = more;
  return true;
}

static hk_status add_spans(hk_engine *e, const hk_timeline *timeline, hk_error *err) {
  struct hk_recording *r = e->training->recording;
  const hk_ns begun = hk_executor_begun_at(e->executor);
  for (size_t i = 0; i < timeline->n_spans && r->n_spans < MOST_SPANS; i++) {
    if (!make_room((void **)&r->spans, &r->room_spans, r->n_spans, sizeof *r->spans)) {
      return hk_fail_memory(err, r->n_spans * sizeof *r->spans, "a recording");
    }
    r->spans[r->n_spans++] = (kept_span){.op = (int32_t)i,
                                         .step = e->training->stepping,
                                         .start = begun + timeline->spans[i].start,
                                         .end = begun + timeline->spans[i].end};
  }
  return HK_OK;
}

void hk_recording_keep(hk_engine *e) {
  hk_error err = {0};
  hk_timeline timeline = {0};
  hk_status status = hk_timeline_init(&e->graph, &timeline, &err);
  if (status == HK_OK) status = hk_executor_read_times(e->executor, &timeline, &err);
  if (status == HK_OK) status = add_spans(e, &timeline, &err);
  hk_timeline_free(&timeline);
  if (status == HK_OK) return;
  char note[256];
  free_recording(e);
  snprintf(note, sizeof note, "the recording was dropped after step %lld: %.150s",
           (long long)e->training->stepping, err.message);
  if (strstr(e->notes, "the recording was dropped") == NULL) hk_engine_add_note(e, note);
}

/* *out: for an end, the block's last mark of this phase if it has no end yet, else NULL; for a
 * start, a new mark, or NULL if the recording is full. */
static hk_status find_mark(hk_engine *e, int32_t phase, int32_t block, bool end, mark **out,
                           hk_error *err) {
  struct hk_recording *r = e->training->recording;
  *out = NULL;
  for (size_t i = r->n_marks; end && i-- > 0;) {
    mark *m = &r->marks[i];
    if (m->phase != phase || m->block != block) continue;
    if (!m->has_end) *out = m;
    return HK_OK;
  }
  if (end || r->n_marks == MOST_MARKS) return HK_OK;
  if (!make_room((void **)&r->marks, &r->room_marks, r->n_marks, sizeof *r->marks)) {
    return hk_fail_memory(err, r->n_marks * sizeof *r->marks, "a recording");
  }
  mark *m = &r->marks[r->n_marks];
  *m = (mark){.phase = phase, .block = block, .step = hk_engine_step_number(e) + 1};
  HK_TRY(e->backend->ops->event_open(e->backend, false, &m->start, err));
  r->n_marks++;
  HK_TRY(e->backend->ops->event_open(e->backend, false, &m->end, err));
  *out = m;
  return HK_OK;
}

hk_status hk_engine_mark(hk_engine *e, int32_t phase, int32_t block, bool end, void *native,
                         hk_error *err) {
  struct hk_training *t = e->training;
  if (t->recording == NULL) return HK_OK;
  if (phase < HK_PHASE_FORWARD || phase > HK_PHASE_BACKWARD || block < 0 || block >= t->n_blocks) {
    return hk_fail(err, HK_INPUT,
                   "phase %d of block %d: phases are 0 (forward) and 1 (backward), blocks 0 to %d",
                   (int)phase, (int)block, (int)t->n_blocks - 1);
  }
  pthread_mutex_lock(&t->lock);
  hk_callers_stream *stream = NULL;
  mark *m = NULL;
  hk_status status = hk_handover_stream(e, native, &stream, err);
  if (status == HK_OK) status = find_mark(e, phase, block, end, &m, err);
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
  cJSON *span = cJSON_CreateObject();
  if (span == NULL || !cJSON_AddItemToArray(spans, span)) {
    cJSON_Delete(span);
    *ok = false;
    return NULL;
  }
  *ok = *ok && cJSON_AddStringToObject(span, "name", name) != NULL &&
        cJSON_AddStringToObject(span, "lane", lane) != NULL &&
        cJSON_AddNumberToObject(span, "step", (double)step) != NULL &&
        cJSON_AddNumberToObject(span, "start_ms", hk_ms(start)) != NULL &&
        cJSON_AddNumberToObject(span, "end_ms", hk_ms(end)) != NULL;
  return span;
}

static void add_operations(const hk_engine *e, cJSON *spans, bool *ok) {
  const struct hk_recording *r = e->training->recording;
  for (size_t i = 0; i < r->n_spans && *ok; i++) {
    const kept_span *s = &r->spans[i];
    const hk_op *op = &e->graph.ops[s->op];
    char label[64];
    hk_op_label(&e->graph, s->op, label, sizeof label);
    cJSON *span =
        add_span(spans, label, e->graph.lanes[op->lane].name, s->step, s->start, s->end, ok);
    if (!*ok) return;
    *ok = cJSON_AddNumberToObject(span, "op", s->op) != NULL &&
          cJSON_AddNumberToObject(span, "subgroup", op->subgroup) != NULL;
  }
}

static void add_marks(hk_engine *e, cJSON *spans, bool *ok) {
  const struct hk_recording *r = e->training->recording;
  for (size_t i = 0; i < r->n_marks && *ok; i++) {
    const mark *m = &r->marks[i];
    hk_ns start = 0, end = 0;
    hk_error ignored = {0};
    if (!m->has_start || !m->has_end ||
        e->backend->ops->event_time(m->start, &start, &ignored) != HK_OK ||
        e->backend->ops->event_time(m->end, &end, &ignored) != HK_OK) {
      continue;
    }
    char name[64];
    snprintf(name, sizeof name, "%s B%d", hk_phase_name((hk_phase)m->phase), (int)m->block);
    cJSON *span = add_span(spans, name, "gpu", m->step, start, end, ok);
    if (!*ok) return;
    *ok = cJSON_AddNumberToObject(span, "block", m->block) != NULL;
  }
}

static bool put_timeline(hk_engine *e, cJSON *root) {
  if (root == NULL) return false;
  bool ok = cJSON_AddStringToObject(root, "schema", "hocket.spans/1") != NULL;
  cJSON *spans = cJSON_AddArrayToObject(root, "spans");
  ok = ok && spans != NULL;
  ok = ok && cJSON_AddItemToObject(root, "plan", hk_plan_to_json(&e->plan));
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
