/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-over of gradients: from the framework's tensors to where the update reads them. Terms:
 *
 * Image: consecutive gradients in memory, those of one piece of a subgroup on route cpu, or those
 * of a whole subgroup on another route.
 *
 * Segment: the part of one tensor in one image. It has its own bins of squares. When another
 * gradient is added to it, the squares of the sum replace the old squares.
 *
 * Counted: the bins hold the squares of the tensor's sum as it stands. Before the last gradient
 * that a tensor is expected to bring, squares are not summed: nobody needs them, they take time,
 * and the bins would have to be zeroed. What is asked for nevertheless is counted from the sums.
 *
 * Slot: device memory for one image on its way to the host (handover_slots.c).
 *
 * A kernel on the caller's stream gathers tensors into images and may sum the squares of the values
 * that it writes. Images of subgroups that the device updates have memory of their own on the
 * device. Images of route cpu share slots. An image takes a slot with its first gradient. It is
 * copied to the host and gives up its slot when all expected gradients have been given, or when
 * another image needs the slot. Between several backwards it stays, or leaves and is fetched back
 * before the next gradient comes (handover_accumulation.c). Images of pieces with early weights
 * have slots of their own, which no other image needs. The caller's stream waits for the copy out
 * of a slot, or into it, only before it writes to the slot.
 *
 * Cost for many small tensors: one call gathers up to HK_SEGMENTS_MOST segments a launch, as long
 * as no image must enter or leave a slot between them. */
#include <stdlib.h>
#include <string.h>

#include "engine/train/training_private.h"

/* -- Opening and closing ----------------------------------------------------------------------- */

/* All bins are zero, and nobody has given anything. */
static void forget_bins(hk_engine *e) {
  struct hk_training *t = e->training;
  memset(t->bins_state, HK_BINS_ZERO, e->n_params * sizeof *t->bins_state);
  for (size_t p = 0; p < e->n_params; p++) t->giver[p] = -1;
}

hk_status hk_handover_open(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  const size_t n_images = (size_t)e->state.n_images, n_segments = (size_t)e->state.n_segments;
  t->images = calloc(n_images, sizeof *t->images);
  t->bins_at = calloc(n_segments + 1, sizeof *t->bins_at);
  t->giver = calloc(e->n_params, sizeof *t->giver);
  t->bins_state = calloc(e->n_params, sizeof *t->bins_state);
  t->unlearnt = calloc(e->n_params, sizeof *t->unlearnt);
  t->segments = calloc(e->n_params + 1, sizeof *t->segments);
  if (t->images == NULL || t->bins_at == NULL || t->giver == NULL || t->bins_state == NULL ||
      t->unlearnt == NULL || t->segments == NULL) {
    return hk_fail_memory(err, n_images * sizeof *t->images, "the gradients' places");
  }
  forget_bins(e);
  for (size_t s = 0; s < n_segments; s++) {
    const hk_grad_type type = e->params[e->state.segments[s].param].grad_type;
    t->bins_at[s + 1] = t->bins_at[s] + hk_squares_bin_words(type) * (hk_bytes)sizeof(uint64_t);
    t->segments[e->state.segments[s].param + 1] = (int32_t)s + 1;
  }
  HK_TRY(hk_handover_open_slots(e, err));
  hk_handover_order_images(e);
  hk_handover_expect(e);
  return HK_OK;
}

void hk_handover_close(hk_engine *e) {
  struct hk_training *t = e->training;
  hk_handover_close_slots(e);
  const hk_backend_ops *ops = e->backend != NULL ? e->backend->ops : NULL;
  for (size_t i = 0; ops != NULL && i < t->n_streams; i++) {
    if (t->streams[i].last != NULL) ops->event_close(t->streams[i].last);
    if (t->streams[i].stream != NULL) ops->stream_close(t->streams[i].stream);
  }
  free(t->streams);
  free(t->images);
  free(t->bins_at);
  free(t->giver);
  free(t->bins_state);
  free(t->unlearnt);
  free(t->segments);
}

/* -- Handing over ------------------------------------------------------------------------------ */

/* MOST_ENDING: images whose visits end by one launch. Each launch costs the host and the device,
 * and so does the event behind it, for which the flush stream waits: more while copies run. But
 * copies of the images begin only behind the launch. */
enum { EAGER_STEPS = 16, MOST_ENDING = 4 };

/* An event on a stream, and its number among the events of that stream. */
typedef struct {
  hk_event *event;
  uint64_t at;
} awaited;

/* Segments to be gathered by one launch, the images whose visits end by it, the copies out of and
 * into their slots for which it waits, and the bins to be zeroed before it: their squares are of
 * earlier sums, or of gradients that were discarded. */
typedef struct {
  hk_segment segments[HK_SEGMENTS_MOST];
  int n;
  int64_t values;
  int32_t ending[MOST_ENDING]; /* images that are whole, or that await another backward */
  int n_ending;
  int n_begun;                   /* visits that have begun since the last launch */
  awaited left, loaded;          /* the last copy out, and the last copy in */
  int32_t own;                   /* index of the caller's stream */
  hk_bytes zero_begin, zero_end; /* of the device's bins */
} gather_batch;

static hk_status zero_now(hk_engine *e, gather_batch *b, hk_error *err) {
  const hk_bytes at = b->zero_begin, bytes = b->zero_end - at;
  if (bytes == 0) return HK_OK;
  b->zero_begin = b->zero_end = 0;
  hk_stream *stream = e->training->streams[b->own].stream;
  return e->backend->ops->zero(stream, (char *)e->device_bins + at, bytes, err);
}

static hk_status zero_bins(hk_engine *e, gather_batch *b, int32_t segment, hk_error *err) {
  const hk_bytes begin = e->training->bins_at[segment], end = e->training->bins_at[segment + 1];
  if (begin != b->zero_end && end != b->zero_begin) HK_TRY(zero_now(e, b, err));
  if (b->zero_begin == b->zero_end) {
    b->zero_begin = begin;
    b->zero_end = end;
  } else if (begin == b->zero_end) {
    b->zero_end = end;
  } else {
    b->zero_begin = begin;
  }
  return HK_OK;
}

static void await(awaited *last, hk_event *event, uint64_t at) {
  if (at > last->at) *last = (awaited){event, at};
}

/* The stream waits, unless it has waited for this event or one behind it. *done: the number of the
 * last one. */
static hk_status wait_now(hk_engine *e, hk_stream *stream, awaited *last, uint64_t *done,
                          hk_error *err) {
  const awaited a = *last;
  *last = (awaited){NULL, 0};
  if (a.at <= *done) return HK_OK;
  *done = a.at;
  return e->backend->ops->wait(stream, a.event, err);
}

static hk_status launch_batch(hk_engine *e, gather_batch *b, hk_error *err) {
  hk_callers_stream *stream = &e->training->streams[b->own];
  if (b->n == 0) return HK_OK;
  HK_TRY(wait_now(e, stream->stream, &b->left, &stream->left_at, err));
  HK_TRY(wait_now(e, stream->stream, &b->loaded, &stream->loaded_at, err));
  HK_TRY(zero_now(e, b, err));
  const hk_kernel gather = {
      .kind = HK_KERNEL_GATHER, .n = b->values, .segments = b->segments, .n_segments = b->n};
  b->n = 0;
  b->values = 0;
  stream->dirty = stream->unflushed = true;
  return e->backend->ops->launch(stream->stream, &gather, err);
}

static hk_status gather_now(hk_engine *e, gather_batch *b, hk_error *err) {
  struct hk_training *t = e->training;
  const int n = b->n_ending;
  HK_TRY(launch_batch(e, b, err));
  b->n_ending = b->n_begun = 0;
  for (int i = 0; i < n; i++) {
    const hk_image_state *image = &t->images[b->ending[i]];
    const bool more = hk_handover_expects_more(t, image);
    HK_TRY(more ? hk_handover_end_visit(e, b->ending[i], err)
                : hk_handover_leave_slot(e, image->slot, HK_LEAVE_OPERATION, err));
  }
  return n > 0 ? hk_handover_prefetch(e, err) : HK_OK;
}

/* At most half of the slots through which images pass are left at once, so that gradients can come
 * in while others leave. */
static int64_t most_ending(const struct hk_training *t) {
  const int32_t passing = t->rounds > 1 ? t->n_slots - t->n_keeping : t->n_slots;
  return hk_max(1, hk_min(MOST_ENDING, passing / 2));
}

static bool is_ending(const gather_batch *b, int32_t image) {
  for (int i = 0; i < b->n_ending; i++) {
    if (b->ending[i] == image) return true;
  }
  return false;
}

/* Whether the batch writes a segment there. */
static bool has_segment(const gather_batch *b, const char *to) {
  for (int i = 0; i < b->n; i++) {
    if (b->segments[i].to == to) return true;
  }
  return false;
}

/* Makes the batch wait for what the slot's image has been written or fetched by. */
static hk_status take_over(hk_engine *e, gather_batch *b, hk_slot *s, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  const int32_t before = s->stream;
  s->stream = b->own;
  if (before == b->own) return HK_OK;
  if (before < 0) {
    await(&b->loaded, s->loaded, s->loaded_at);
    return HK_OK;
  }
  HK_TRY(ops->record(t->streams[before].stream, t->streams[before].last, err));
  return ops->wait(t->streams[b->own].stream, t->streams[before].last, err);
}

/* Gives the image a slot that the batch may write to, with its earlier gradients. */
static hk_status enter_slot(hk_engine *e, gather_batch *b, int32_t image, hk_error *err) {
  struct hk_training *t = e->training;
  hk_image_state *state = &t->images[image];
  /* An update that runs ahead may be reading the host's copy, which lacks the new gradient. */
  if (state->issued && !t->hold) HK_TRY(hk_training_begin_again(e, err));
  if (state->slot < 0) {
    int32_t slot = state->home >= 0 ? state->home : hk_handover_free_slot(e);
    if (slot < 0) {
      slot = hk_handover_victim(e);
      HK_TRY(hk_handover_leave_slot(e, slot, HK_LEAVE_COPY, err));
    }
    if (!state->on_host) {
      hk_slot *s = &t->slots[slot];
      hk_handover_put_in_slot(t, image, slot, b->own);
      await(&b->left, s->left, s->left_at);
      return HK_OK;
    }
    HK_TRY(hk_handover_fetch(e, image, slot, err));
    t->n_late++;
  }
  return take_over(e, b, &t->slots[state->slot], err);
}

/* Whether what has been gathered must be launched before the image is written to: images that the
 * batch has written may leave else. */
static bool must_launch_first(const hk_engine *e, const gather_batch *b, int32_t image) {
  const struct hk_training *t = e->training;
  const hk_image_state *state = &t->images[image];
  if (is_ending(b, image)) return true;
  if (state->home >= 0 || state->visited) return false;
  const bool needs_slot = t->rounds <= 1 || state->slot < 0;
  if (t->surprised || (needs_slot && hk_handover_free_slot(e) < 0)) return true;
  return t->rounds > 1 && b->n_begun >= hk_min(most_ending(t), hk_handover_linger(t));
}

/* *to: where the segment's gradients are gathered. */
static hk_status find_place(hk_engine *e, gather_batch *b, const hk_param_segment *s, char **to,
                            hk_error *err) {
  const hk_grad_image *image = &e->state.images[s->image];
  *to = hk_engine_segment_grads(e, s);
  if (image->on_device) return HK_OK;
  hk_image_state *state = &e->training->images[s->image];
  if (must_launch_first(e, b, s->image)) HK_TRY(gather_now(e, b, err));
  HK_TRY(enter_slot(e, b, s->image, err));
  b->n_begun += state->home < 0 && !state->visited;
  HK_TRY(hk_handover_visit(e, s->image, e->training->given[s->param] < state->most, err));
  *to = hk_handover_slot_memory(e, state->slot) + (s->at - image->at);
  return HK_OK;
}

/* Whether squares are summed with the tensor's next gradient: it is probably the last one. */
static bool counts_next(const struct hk_training *t, int32_t param) {
  return t->eager > 0 || t->given[param] + 1 >= t->expected[param];
}

/* Adds one segment of a tensor's gradient, at `data`, to the batch; NULL: the segment's sum is
 * counted where it is. Launches the batch before, if the stream must do something else first. */
static hk_status gather_segment(hk_engine *e, gather_batch *b, int32_t number, const char *data,
                                hk_error *err) {
  struct hk_training *t = e->training;
  const hk_param_segment *s = &e->state.segments[number];
  const hk_param *param = &e->params[s->param];
  const bool count = data == NULL || counts_next(t, s->param);
  char *to = NULL, *bins = (char *)e->device_bins + t->bins_at[number];
  if (b->n == HK_SEGMENTS_MOST) HK_TRY(gather_now(e, b, err));
  HK_TRY(find_place(e, b, s, &to, err));
  if (has_segment(b, to)) HK_TRY(launch_batch(e, b, err));
  if (count && t->bins_state[s->param] != HK_BINS_ZERO) HK_TRY(zero_bins(e, b, number, err));
  const int64_t first = s->offset - (e->param_end[s->param] - param->numel);
  const size_t at = (size_t)first * hk_grad_size(param->grad_type);
  b->segments[b->n++] = (hk_segment){.from = data != NULL ? data + at : to,
                                     .to = to,
                                     .n = s->n,
                                     .from_type = param->grad_type,
                                     .to_type = param->grad_type,
                                     .bins = count ? (uint64_t *)(void *)bins : NULL,
                                     .add = data != NULL && t->given[s->param] > 0};
  b->values += s->n;
  return HK_OK;
}

/* Counts the n-th gradient of a tensor in an image in a slot. *whole: each of its tensors has
 * brought all that it is expected to bring. *level: each has brought equally many. */
static void count_in_image(struct hk_training *t, hk_image_state *image, int32_t n,
                           int32_t expected, bool *whole, bool *level) {
  if (n > image->most) {
    image->most = n;
    image->behind = image->segments;
    t->n_open -= image->home < 0 && n == image->expected;
  }
  if (n == image->most && expected > 0) image->behind--;
  *level = image->behind <= 0;
  *whole = n == expected && --image->missing <= 0;
}

/* Counts a segment that has been gathered. If all of the image's tensors have brought equally many
 * gradients by it, its visit ends, with those of others. */
static hk_status count_segment(hk_engine *e, gather_batch *b, const hk_param_segment *s,
                               hk_error *err) {
  struct hk_training *t = e->training;
  hk_image_state *image = &t->images[s->image];
  bool whole = false, level = false;
  if (e->state.images[s->image].on_device) return HK_OK;
  count_in_image(t, image, t->given[s->param] + 1, t->expected[s->param], &whole, &level);
  const bool more = level && image->home < 0 && hk_handover_expects_more(t, image);
  if (!more && (!whole || t->surprised)) return HK_OK;
  b->ending[b->n_ending++] = s->image;
  return b->n_ending < most_ending(t) ? HK_OK : gather_now(e, b, err);
}

/* Makes stream `own` wait for what another stream has gathered for the tensor, be it discarded. */
static hk_status follow_giver(hk_engine *e, int32_t param, int32_t own, hk_error *err) {
  struct hk_training *t = e->training;
  const int32_t before = t->giver[param];
  t->giver[param] = own;
  if (before < 0 || before == own) return HK_OK;
  hk_callers_stream *other = &t->streams[before];
  HK_TRY(e->backend->ops->record(other->stream, other->last, err));
  return e->backend->ops->wait(t->streams[own].stream, other->last, err);
}

/* Whether the tensors are in the order of memory, none of them twice. */
static bool ascends(const hk_gradient *list, size_t n) {
  for (size_t i = 1; i < n; i++) {
    if (list[i].param <= list[i - 1].param) return false;
  }
  return true;
}

/* With several backwards tensors that a call gives in the order of memory, and a tensor's segments,
 * are gathered from the end: calls come in about the reverse order, so all tensors of an image that
 * they share visit it in a row. */
static hk_status gather(hk_engine *e, const hk_gradient *list, size_t n, int32_t own,
                        hk_error *err) {
  struct hk_training *t = e->training;
  gather_batch batch = {.own = own};
  const bool reversed = t->rounds > 1 && ascends(list, n);
  for (size_t i = 0; i < n; i++) {
    const hk_gradient *given = &list[reversed ? n - 1 - i : i];
    const int32_t param = (int32_t)given->param;
    if (hk_clip_blocks_counted(e, param)) {
      /* Updates that run ahead may have used its squares, which may still be on their way. */
      if (hk_clip_blocks_run_ahead(e)) HK_TRY(hk_training_begin_again(e, err));
      HK_TRY(e->backend->ops->stream_sync(t->flush, err));
    }
    HK_TRY(follow_giver(e, param, own, err));
    if (t->given[param] >= t->rounds && !t->surprised) {
      HK_TRY(gather_now(e, &batch, err));
      t->surprised = true;
    }
    const int32_t begin = t->segments[param], end = t->segments[param + 1];
    for (int32_t k = 0; k < end - begin; k++) {
      const int32_t s = t->rounds > 1 ? end - 1 - k : begin + k;
      HK_TRY(gather_segment(e, &batch, s, given->data, err));
      HK_TRY(count_segment(e, &batch, &e->state.segments[s], err));
    }
    if (counts_next(t, param)) t->bins_state[param] = HK_BINS_COUNTED;
    if (t->given[param]++ == 0) t->n_given++;
    if (t->given[param] != t->expected[param]) continue;
    if (hk_clip_blocks_lacks_one(e, param)) HK_TRY(gather_now(e, &batch, err));
    HK_TRY(hk_clip_blocks_given(e, param, err));
  }
  HK_TRY(gather_now(e, &batch, err));
  return hk_training_is_host(e) ? e->backend->ops->stream_sync(t->streams[own].stream, err) : HK_OK;
}

hk_status hk_handover_count(hk_engine *e, int64_t only, hk_error *err) {
  struct hk_training *t = e->training;
  const int32_t first = only < 0 ? 0 : (int32_t)only;
  const int32_t end = only < 0 ? (int32_t)e->n_params : first + 1;
  gather_batch batch = {.own = -1};
  for (int32_t p = end; p-- > first;) { /* as backward visits them */
    if (t->given[p] == 0 || t->bins_state[p] == HK_BINS_COUNTED) continue;
    if (batch.own != t->giver[p] && batch.own >= 0) HK_TRY(gather_now(e, &batch, err));
    batch.own = t->giver[p];
    for (int32_t s = t->segments[p]; s < t->segments[p + 1]; s++) {
      HK_TRY(gather_segment(e, &batch, s, NULL, err));
    }
    t->bins_state[p] = HK_BINS_COUNTED;
    t->eager = EAGER_STEPS;
  }
  if (batch.own < 0) return HK_OK;
  HK_TRY(gather_now(e, &batch, err));
  hk_stream *stream = t->streams[batch.own].stream;
  return hk_training_is_host(e) ? e->backend->ops->stream_sync(stream, err) : HK_OK;
}

static hk_status check_list(const hk_engine *e, const hk_gradient *list, size_t n, hk_error *err) {
  for (size_t i = 0; i < n; i++) {
    if (list[i].param < 0 || (size_t)list[i].param >= e->n_params) {
      return hk_fail(err, HK_INPUT, "a gradient of tensor %lld: the engine has %zu tensors",
                     (long long)list[i].param, e->n_params);
    }
    if (list[i].data == NULL)
      return hk_fail(err, HK_INPUT, "the gradient of tensor %lld is at address 0",
                     (long long)list[i].param);
    const hk_grad_type type = e->params[list[i].param].grad_type;
    if (!hk_grad_is_aligned(list[i].data, type))
      return hk_fail(err, HK_INPUT,
                     "the gradient of tensor %lld is at %p: its address must be a multiple of its "
                     "elements' size, %zu",
                     (long long)list[i].param, list[i].data, hk_grad_size(type));
  }
  return HK_OK;
}

hk_status hk_engine_gradients(hk_engine *e, const hk_gradient *list, size_t n, void *native,
                              hk_error *err) {
  struct hk_training *t = e->training;
  HK_TRY(hk_engine_refuse_failed(e, err));
  HK_TRY(check_list(e, list, n, err));
  pthread_mutex_lock(&t->lock);
  hk_callers_stream *stream = NULL;
  hk_status status = hk_training_begin(e, err);
  if (status == HK_OK) status = hk_handover_stream(e, native, &stream, err);
  if (status == HK_OK) {
    status = gather(e, list, n, (int32_t)(stream - t->streams), err);
    if (status != HK_OK) e->failed = true; /* what has been given cannot be said */
  }
  pthread_mutex_unlock(&t->lock);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "handing over gradients");
}

/* -- Iterations -------------------------------------------------------------------------------- */

void hk_handover_expect(hk_engine *e) {
  struct hk_training *t = e->training;
  t->rounds = 1;
  for (int32_t i = 0; i < e->state.n_images; i++) {
    hk_image_state *image = &t->images[i];
    image->expected = image->missing = 0;
    image->issued = false;
    image->on_host = false;
    const hk_grad_image *place = &e->state.images[i];
    for (int32_t s = place->segments_begin; s < place->segments_end; s++) {
      const int32_t expected = t->expected[e->state.segments[s].param];
      image->missing += expected > 0;
      if (expected > image->expected) image->expected = expected;
    }
    image->segments = image->missing;
    if (image->expected > t->rounds) t->rounds = image->expected;
  }
  hk_handover_reset_visits(e);
  hk_clip_blocks_expect(e);
}

void hk_handover_learn(hk_engine *e) {
  struct hk_training *t = e->training;
  t->eager -= t->eager > 0;
  for (size_t p = 0; p < e->n_params; p++) {
    const int32_t had = t->given[p];
    if (had > 0 && t->unlearnt[p] && t->expected[p] > 0) continue;
    t->expected[p] = had > 0 && had < t->promised ? t->promised : had;
  }
}

/* Images that are in slots are forgotten. */
static hk_status forget_slots(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  for (int32_t s = 0; s < t->n_slots + t->n_homes; s++) {
    if (t->slots[s].image >= 0) HK_TRY(hk_handover_leave_slot(e, s, HK_LEAVE_FORGOTTEN, err));
  }
  return HK_OK;
}

hk_status hk_handover_reset(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  HK_TRY(forget_slots(e, err));
  HK_TRY(hk_handover_await_streams(e, err));
  if (t->blocks.n > 0) HK_TRY(ops->stream_sync(t->flush, err)); /* it may still read the bins */
  if (e->work != NULL) {
    HK_TRY(ops->zero(e->stream, e->device_bins, t->bins_at[e->state.n_segments], err));
  }
  HK_TRY(ops->stream_sync(e->stream, err));
  memset(t->given, 0, e->n_params * sizeof *t->given);
  forget_bins(e);
  memset(t->unlearnt, 0, e->n_params * sizeof *t->unlearnt);
  t->n_given = 0;
  t->violated = false;
  hk_handover_expect(e);
  return HK_OK;
}

/* -- Reading back ------------------------------------------------------------------------------ */

static hk_status read_segment(hk_engine *e, int32_t number, char *to, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_param_segment *s = &e->state.segments[number];
  const hk_bytes bytes = s->n * (hk_bytes)hk_grad_size(e->params[s->param].grad_type);
  const char *from = hk_engine_segment_grads(e, s);
  if (t->images[s->image].slot >= 0) {
    from = hk_handover_slot_memory(e, t->images[s->image].slot) +
           (s->at - e->state.images[s->image].at);
  } else if (!e->state.images[s->image].on_device) {
    memcpy(to, from, (size_t)bytes);
    return HK_OK;
  }
  HK_TRY(e->backend->ops->copy(e->stream, to, from, bytes, err));
  return e->backend->ops->stream_sync(e->stream, err);
}

hk_status hk_engine_read_gradient(hk_engine *e, size_t param, void *data, hk_error *err) {
  struct hk_training *t = e->training;
  HK_TRY(hk_engine_refuse_failed(e, err));
  if (param >= e->n_params || t->given[param] == 0) {
    return hk_fail(err, HK_INPUT, "tensor %zu has been given no gradient since the last step",
                   param);
  }
  pthread_mutex_lock(&t->lock);
  hk_status status = hk_handover_await_streams(e, err);
  if (status == HK_OK) status = e->backend->ops->stream_sync(e->stream, err);
  if (status == HK_OK) status = e->backend->ops->stream_sync(t->flush, err);
  if (status == HK_OK) status = e->backend->ops->stream_sync(t->fetch, err);
  const int64_t begin = e->param_end[param] - e->params[param].numel;
  const size_t size = hk_grad_size(e->params[param].grad_type);
  for (int32_t s = t->segments[param]; status == HK_OK && s < t->segments[param + 1]; s++) {
    const size_t at = (size_t)(e->state.segments[s].offset - begin) * size;
    status = read_segment(e, s, (char *)data + at, err);
  }
  pthread_mutex_unlock(&t->lock);
  return status;
}
