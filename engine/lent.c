/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory that the framework lends for one iteration (hocket_lend), for new weights that wait
 * for the norm.
 *
 * While the run is open, each WEIGHT_H2D operation of a lent subgroup takes a place in a span of
 * lent memory and copies its piece there. If no span has room, it does nothing. When the step is
 * taken, the run is closed, and the weights that are in lent memory are placed on the caller's
 * stream, which makes the memory the caller's again for all work that comes later there. The
 * WEIGHT_PLACE operation of a piece that had no place copies the weights from host memory, as it
 * would without early weights. So which memory is lent, and when, changes no bit.
 *
 * If what ran ahead is given up, the run is cancelled, which waits for the copies under way; the
 * places are then forgotten. */
#include <stdlib.h>

#include "core/bytes.h"
#include "engine/training_private.h"

enum { PLACE_ALIGN = 512, SPAN_ALIGN = 16 };

static hk_bytes piece_bytes(const hk_engine *e, const hk_op *op) {
  const hk_bytes bytes = HK_BYTES_BF16 * hk_engine_op_numel(e, op);
  return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static bool is_lent_copy(const hk_engine *e, const hk_op *op) {
  return op->kind == HK_OP_WEIGHT_H2D && op->subgroup >= 0 && e->state.subgroups[op->subgroup].lent;
}

/* -- Opening and closing ----------------------------------------------------------------------- */

hk_status hk_lent_open(hk_engine *e, hk_error *err) {
  hk_lent *l = &e->training->lent;
  for (size_t i = 0; i < e->graph.n_ops; i++) {
    const hk_op *op = &e->graph.ops[i];
    if (!is_lent_copy(e, op)) continue;
    l->all += piece_bytes(e, op);
    l->largest = hk_max(l->largest, piece_bytes(e, op));
    l->n_pieces++;
  }
  if (l->n_pieces == 0) return HK_OK;
  l->place = calloc(e->graph.n_ops, sizeof *l->place);
  l->taken = calloc((size_t)l->n_pieces, sizeof *l->taken);
  if (l->place != NULL && l->taken != NULL) return HK_OK;
  return hk_fail_memory(err, e->graph.n_ops * sizeof *l->place, "the list of lent memory");
}

void hk_lent_close(hk_engine *e) {
  hk_lent *l = &e->training->lent;
  for (size_t i = 0; i < l->n_events; i++) e->backend->ops->event_close(l->spans[i].ready);
  free(l->spans);
  free(l->place);
  free(l->taken);
  *l = (hk_lent){.lock = l->lock};
}

/* -- During a run ------------------------------------------------------------------------------ */

static void forget_spans(hk_lent *l) {
  l->n_spans = 0;
  l->lent = l->used = 0;
}

void hk_lent_begin(hk_engine *e, bool open) {
  hk_lent *l = &e->training->lent;
  if (l->n_pieces == 0) return;
  pthread_mutex_lock(&l->lock);
  for (int32_t i = 0; i < l->n_taken; i++) l->place[l->taken[i]] = NULL;
  l->n_taken = 0;
  forget_spans(l);
  l->left = open ? l->all : 0;
  l->open = open;
  pthread_mutex_unlock(&l->lock);
}

/* The first span that has room for `bytes`; NULL: none has. */
static hk_lent_span *span_for(hk_lent *l, hk_bytes bytes) {
  for (size_t i = 0; i < l->n_spans; i++) {
    if (l->spans[i].bytes - l->spans[i].used >= bytes) return &l->spans[i];
  }
  return NULL;
}

hk_status hk_lent_take(hk_engine *e, int32_t id, hk_stream *stream, void **place, hk_error *err) {
  hk_lent *l = &e->training->lent;
  const hk_bytes bytes = piece_bytes(e, &e->graph.ops[id]);
  hk_status status = HK_OK;
  *place = NULL;
  pthread_mutex_lock(&l->lock);
  hk_lent_span *span = l->open ? span_for(l, bytes) : NULL;
  if (l->open) l->left -= bytes;
  if (span != NULL && !span->awaited) status = e->backend->ops->wait(stream, span->ready, err);
  if (span != NULL && status == HK_OK) {
    span->awaited = true;
    *place = l->place[id] = span->memory + span->used;
    span->used += bytes;
    l->used += bytes;
    l->most_used = hk_max(l->most_used, l->used);
    l->taken[l->n_taken++] = id;
  }
  pthread_mutex_unlock(&l->lock);
  return status;
}

/* The WEIGHT_H2D operation that a WEIGHT_PLACE operation depends on. */
static int32_t copy_before(const hk_engine *e, const hk_op *place) {
  for (int32_t d = place->deps_begin; d < place->deps_end; d++) {
    if (e->graph.ops[e->graph.deps[d]].kind == HK_OP_WEIGHT_H2D) return e->graph.deps[d];
  }
  return -1;
}

bool hk_lent_has(hk_engine *e, const hk_op *place) {
  const hk_lent *l = &e->training->lent;
  return l->n_pieces > 0 && l->place[copy_before(e, place)] != NULL;
}

/* -- Giving back ------------------------------------------------------------------------------- */

/* After this no operation takes a place. Waits until the copies of those that have taken one are
 * queued, and makes `stream` wait for them. */
static hk_status stop_taking(hk_engine *e, hk_stream *stream, hk_error *err) {
  hk_lent *l = &e->training->lent;
  bool there = false;
  pthread_mutex_lock(&l->lock);
  l->open = false;
  l->left = 0;
  pthread_mutex_unlock(&l->lock);
  if (l->n_taken == 0) return HK_OK;
  /* They were queued one after the other on the stream of one lane. */
  const int32_t last = l->taken[l->n_taken - 1];
  HK_TRY(hk_executor_await(e->executor, last, -1, &there, err));
  return hk_executor_follow(e->executor, last, stream, err);
}

/* Makes the streams on which memory was lent and `stream` wait for each other, and forgets the
 * memory. Where the engine has used the memory, `stream` comes after its copies, which came after
 * the lender's work. */
static hk_status give_back(hk_engine *e, hk_callers_stream *stream, hk_error *err) {
  struct hk_training *t = e->training;
  hk_lent *l = &t->lent;
  bool recorded = false;
  for (size_t i = 0; i < l->n_spans; i++) {
    hk_callers_stream *lender = &t->streams[l->spans[i].stream];
    if (lender == stream) continue;
    if (l->spans[i].used == 0) {
      HK_TRY(e->backend->ops->wait(stream->stream, l->spans[i].ready, err));
      continue;
    }
    if (!recorded) HK_TRY(e->backend->ops->record(stream->stream, stream->last, err));
    recorded = true;
    HK_TRY(e->backend->ops->wait(lender->stream, stream->last, err));
  }
  forget_spans(l);
  return HK_OK;
}

hk_status hk_lent_place(hk_engine *e, hk_callers_stream *stream, hk_error *err) {
  hk_lent *l = &e->training->lent;
  if (l->n_pieces == 0) return HK_OK;
  HK_TRY(stop_taking(e, stream->stream, err));
  for (int32_t i = 0; i < l->n_taken; i++) {
    const int32_t id = l->taken[i];
    HK_TRY(hk_engine_place_lent(e, &e->graph.ops[id], l->place[id], stream->stream, err));
  }
  return give_back(e, stream, err);
}

hk_status hk_lent_return(hk_engine *e, void *native, hk_error *err) {
  struct hk_training *t = e->training;
  hk_lent *l = &t->lent;
  hk_callers_stream *stream = NULL;
  if (l->n_spans == 0) return HK_OK;
  HK_TRY(hk_handover_stream(e, native, &stream, err));
  HK_TRY(stop_taking(e, stream->stream, err));
  for (int32_t i = 0; i < l->n_taken; i++) l->place[l->taken[i]] = NULL;
  l->n_taken = 0;
  HK_TRY(give_back(e, stream, err));
  return hk_training_is_host(e) ? e->backend->ops->stream_sync(stream->stream, err) : HK_OK;
}

/* -- Calls ------------------------------------------------------------------------------------- */

/* Makes room for one more span and opens its event. If that fails, nothing has changed. */
static hk_status make_room(hk_engine *e, hk_error *err) {
  hk_lent *l = &e->training->lent;
  if (l->n_spans < l->n_events) return HK_OK;
  pthread_mutex_lock(&l->lock); /* a worker may be reading the array */
  hk_lent_span *more = realloc(l->spans, (l->n_events + 1) * sizeof *more);
  if (more != NULL) l->spans = more;
  pthread_mutex_unlock(&l->lock);
  if (more == NULL) return hk_fail_memory(err, sizeof *more, "a span of lent memory");
  HK_TRY(e->backend->ops->event_open(e->backend, false, &more[l->n_events].ready, err));
  l->n_events++;
  return HK_OK;
}

/* Adds a span for which there is room. A failure of the device ends the engine. */
static hk_status add_span(hk_engine *e, void *memory, hk_bytes bytes,
                          const hk_callers_stream *stream, hk_error *err) {
  struct hk_training *t = e->training;
  hk_lent *l = &t->lent;
  hk_event *ready = l->spans[l->n_spans].ready;
  const hk_status status = e->backend->ops->record(stream->stream, ready, err);
  if (status != HK_OK) {
    e->failed = true;
    return status;
  }
  pthread_mutex_lock(&l->lock);
  l->spans[l->n_spans++] = (hk_lent_span){
      .memory = memory, .bytes = bytes, .stream = (int32_t)(stream - t->streams), .ready = ready};
  l->lent += bytes;
  l->most_lent = hk_max(l->most_lent, l->lent);
  pthread_mutex_unlock(&l->lock);
  return HK_OK;
}

static hk_status lend(hk_engine *e, void *memory, hk_bytes bytes, void *native, hk_error *err) {
  hk_callers_stream *stream = NULL;
  hk_error why = {0};
  hk_status status = hk_handover_stream(e, native, &stream, &why);
  if (status == HK_OK) status = make_room(e, &why);
  if (status != HK_OK) return hk_fail(err, HK_NO, "no memory has been lent: %s", why.message);
  return add_span(e, memory, bytes, stream, err);
}

hk_status hk_training_lend(hk_engine *e, void *memory, hk_bytes bytes, void *native,
                           hk_error *err) {
  struct hk_training *t = e->training;
  HK_TRY(hk_engine_refuse_failed(e, err));
  if (memory == NULL || (uintptr_t)memory % SPAN_ALIGN != 0 || bytes < 1) {
    return hk_fail(err, HK_INPUT,
                   "lent memory at %p of %lld bytes: it needs an address that is a multiple of %d, "
                   "and at least 1 byte",
                   memory, (long long)bytes, (int)SPAN_ALIGN);
  }
  pthread_mutex_lock(&t->lock);
  hk_status status = HK_OK;
  if (atomic_load(&t->state) != HK_BEGUN) {
    status = hk_fail(err, HK_INPUT,
                     "memory is lent between the first gradient of an iteration and its step, with "
                     "overlap 'both'");
  } else if (t->lent.n_pieces > 0) {
    status = lend(e, memory, bytes, native, err);
  }
  pthread_mutex_unlock(&t->lock);
  return status;
}

hk_status hk_training_reclaim(hk_engine *e, void *native, hk_error *err) {
  struct hk_training *t = e->training;
  pthread_mutex_lock(&t->lock);
  hk_status status = HK_OK;
  if (atomic_load(&t->state) == HK_BEGUN) {
    if (e->failed) {
      hk_training_end_begun(e);
    } else {
      status = hk_lent_return(e, native, err);
      if (status != HK_OK) e->failed = true;
    }
  }
  pthread_mutex_unlock(&t->lock);
  return status;
}

void hk_training_lending(hk_engine *e, hk_lending *out) {
  struct hk_training *t = e->training;
  hk_lent *l = &t->lent;
  pthread_mutex_lock(&t->lock);
  pthread_mutex_lock(&l->lock);
  hk_bytes room = 0;
  for (size_t i = 0; i < l->n_spans; i++) room += l->spans[i].bytes - l->spans[i].used;
  const bool open = l->open && atomic_load(&t->state) == HK_BEGUN && !e->failed;
  *out = (hk_lending){.wanted = open ? hk_max(0, l->left - room) : 0,
                      .piece = l->largest,
                      .lent = l->lent,
                      .used = l->used,
                      .most_lent = l->most_lent,
                      .most_used = l->most_used};
  pthread_mutex_unlock(&l->lock);
  pthread_mutex_unlock(&t->lock);
}
