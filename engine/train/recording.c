/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of training: what is kept of each run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/train/recording.h"

#include "core/base/grow.h"
#include "engine/run/owner.h"

void hk_recording_close(hk_engine *e) {
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

static hk_status add_spans(hk_engine *e, const hk_timeline *timeline, hk_error *err) {
  struct hk_recording *r = e->training->recording;
  const hk_ns begun = hk_executor_begun_at(e->executor);
  for (size_t i = 0; i < timeline->n_spans && r->n_spans < HK_MOST_SPANS; i++) {
    if (hk_engine_skips(e, &e->graph.ops[i])) continue;
    HK_TRY(HK_GROW(r->spans, r->room_spans, r->n_spans, "a recording", err));
    r->spans[r->n_spans++] = (hk_kept_span){.op = (int32_t)i,
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
  hk_recording_close(e);
  snprintf(note, sizeof note, "the recording was dropped after step %lld: %.150s",
           (long long)e->training->stepping, err.message);
  if (strstr(e->notes, "the recording was dropped") == NULL) hk_engine_add_note(e, note);
}
