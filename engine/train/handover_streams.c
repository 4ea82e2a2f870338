/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's streams: those on which gradients are given and weights awaited. */
#include <stdlib.h>

#include "core/base/grow.h"
#include "engine/train/training_private.h"

hk_status hk_handover_stream(hk_engine *e, void *native, hk_callers_stream **out, hk_error *err) {
  struct hk_training *t = e->training;
  if (hk_training_is_host(e)) native = NULL;
  for (size_t i = 0; i < t->n_streams; i++) {
    *out = &t->streams[i];
    if (t->streams[i].native == native) return HK_OK;
  }
  HK_TRY(HK_GROW(t->streams, t->room_streams, t->n_streams, "the caller's streams", err));
  const hk_backend_ops *ops = e->backend->ops;
  hk_callers_stream *s = &t->streams[t->n_streams];
  *s = (hk_callers_stream){.native = native};
  HK_TRY(ops->event_open(e->backend, false, &s->last, err));
  const hk_status status = ops->stream_adopt(e->backend, native, &s->stream, err);
  if (status != HK_OK) {
    ops->event_close(s->last);
    return status;
  }
  t->n_streams++;
  *out = s;
  return HK_OK;
}

hk_status hk_handover_await_streams(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  for (size_t i = 0; i < t->n_streams; i++) {
    hk_callers_stream *s = &t->streams[i];
    if (!s->dirty) continue;
    HK_TRY(e->backend->ops->record(s->stream, s->last, err));
    HK_TRY(e->backend->ops->wait(e->stream, s->last, err));
    s->dirty = false;
  }
  return HK_OK;
}

hk_status hk_handover_flush_behind(hk_engine *e, int32_t own, hk_error *err) {
  hk_callers_stream *s = &e->training->streams[own];
  if (!s->unflushed) return HK_OK;
  HK_TRY(e->backend->ops->record(s->stream, s->last, err));
  HK_TRY(e->backend->ops->wait(e->training->flush, s->last, err));
  s->unflushed = false;
  return HK_OK;
}
