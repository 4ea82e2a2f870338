/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: device memory for gradients of route cpu on their way to the host. handover.c defines the
 * terms and writes to the slots; here images take slots, leave them for the host, and come back.
 * handover_accumulation.c decides which do so when.
 *
 * Homes: the room in which a piece's early weights wait for the norm is not used from when they
 * have been placed, before the next gradient comes, until the piece has been updated, for which its
 * gradients must be on the host. So it is a slot of its own for the piece's image. An image with a
 * home stays there, over several backwards, until it is whole, and uses no other slot.
 *
 * Streams: copies to the host are on the flush stream, copies from the host on the fetch stream, so
 * that both directions of the link are used at once. The event `left` of a slot orders each use
 * of it behind the one before. An image's sums are on the host when the `left` of its departure has
 * happened; later records of the same event are behind it, because departures are all on the flush
 * stream. */
#include <stdlib.h>

#include "engine/train/training_private.h"

/* Finds the operation GRAD_D2H of each image; -1: it has none. */
static void find_ops(hk_engine *e) {
  struct hk_training *t = e->training;
  const hk_state *state = &e->state;
  for (int32_t i = 0; i < state->n_images; i++) {
    t->images[i] = (hk_image_state){.slot = -1, .home = -1, .op = -1, .before = -1, .after = -1};
  }
  for (size_t o = 0; o < e->graph.n_ops; o++) {
    const hk_op *op = &e->graph.ops[o];
    if (op->kind != HK_OP_GRAD_D2H) continue;
    const int64_t flat = state->subgroups[op->subgroup].offset + op->offset;
    const int32_t segment = hk_state_segment(state, flat);
    t->images[state->segments[segment].image].op = (int32_t)o;
  }
}

static int32_t find_homes(hk_engine *e) {
  struct hk_training *t = e->training;
  for (int32_t i = 0; i < e->state.n_images; i++) {
    const hk_grad_image *image = &e->state.images[i];
    if (image->early_at < 0) continue;
    t->images[i].home = t->n_slots + t->n_homes++;
    t->home_bytes += image->bytes;
  }
  return t->n_homes;
}

hk_status hk_handover_open_slots(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  find_ops(e);
  const hk_slot_layout layout = hk_slots_of(&e->plan, &e->state);
  t->slot_bytes = layout.bytes;
  t->n_slots = layout.n;
  t->n_passing = layout.images;
  t->n_keeping = (int32_t)hk_grad_kept(layout.images, layout.bytes, layout.n);
  const int32_t n = t->n_slots + find_homes(e);
  t->slots = calloc((size_t)n + 1, sizeof *t->slots);
  if (t->slots == NULL) return hk_fail_memory(err, (size_t)n * sizeof *t->slots, "slots");
  for (int32_t i = 0; i < e->state.n_images; i++) {
    if (t->images[i].home >= 0) t->slots[t->images[i].home].at = e->state.images[i].early_at;
  }
  for (int32_t i = 0; i < n; i++) {
    if (i < t->n_slots) t->slots[i].at = e->device.early + i * t->slot_bytes;
    t->slots[i].image = -1;
    HK_TRY(ops->event_open(e->backend, false, &t->slots[i].loaded, err));
    HK_TRY(ops->event_open(e->backend, false, &t->slots[i].left, err));
  }
  return HK_OK;
}

void hk_handover_close_slots(hk_engine *e) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend != NULL ? e->backend->ops : NULL;
  for (int32_t i = 0; ops != NULL && t->slots != NULL && i < t->n_slots + t->n_homes; i++) {
    if (t->slots[i].loaded != NULL) ops->event_close(t->slots[i].loaded);
    if (t->slots[i].left != NULL) ops->event_close(t->slots[i].left);
  }
  free(t->slots);
}

char *hk_handover_slot_memory(const hk_engine *e, int32_t slot) {
  return (char *)e->early + e->training->slots[slot].at;
}

/* Queues the copy of an image out of its slot to the host, or back into it. */
static hk_status copy_image(hk_engine *e, int32_t image, bool out, hk_stream *stream,
                            hk_error *err) {
  const hk_grad_image *i = &e->state.images[image];
  char *host = (char *)e->grads + i->at;
  char *slot = hk_handover_slot_memory(e, e->training->images[image].slot);
  return out ? e->backend->ops->copy(stream, host, slot, i->bytes, err)
             : e->backend->ops->copy(stream, slot, host, i->bytes, err);
}

/* Whether the image is in a slot with gradients that the host's copy lacks. */
static bool must_be_copied(const struct hk_training *t, int32_t image) {
  const int32_t slot = t->images[image].slot;
  return slot >= 0 && t->slots[slot].stream >= 0;
}

/* If the image need not be copied, it has been, on the same stream; the operation then only records
 * its end event. */
hk_status hk_training_flush_op(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  const int64_t flat = e->state.subgroups[op->subgroup].offset + op->offset;
  const int32_t image = e->state.segments[hk_state_segment(&e->state, flat)].image;
  return must_be_copied(e->training, image) ? copy_image(e, image, true, stream, err) : HK_OK;
}

/* Queues the image's operation GRAD_D2H; if it has none, or it has been queued in this run, queues
 * a copy outside the graph. */
static hk_status send_image(hk_engine *e, int32_t image, bool as_operation, hk_error *err) {
  struct hk_training *t = e->training;
  hk_image_state *state = &t->images[image];
  if (as_operation && state->op >= 0 && !state->issued && atomic_load(&t->state) == HK_BEGUN) {
    state->issued = true;
    return hk_executor_issue(e->executor, state->op, err);
  }
  return must_be_copied(t, image) ? copy_image(e, image, true, t->flush, err) : HK_OK;
}

hk_status hk_handover_queue_left(hk_engine *e, int32_t image, hk_error *err) {
  const hk_image_state *state = &e->training->images[image];
  const bool left = state->on_host && state->slot < 0 && state->missing <= 0;
  return left ? send_image(e, image, true, err) : HK_OK;
}

hk_status hk_handover_leave_slot(hk_engine *e, int32_t slot, hk_leave how, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  hk_slot *s = &t->slots[slot];
  hk_image_state *image = &t->images[s->image];
  HK_TRY(s->stream >= 0 ? hk_handover_flush_behind(e, s->stream, err)
                        : ops->wait(t->flush, s->loaded, err));
  if (how != HK_LEAVE_FORGOTTEN) {
    const bool waits = hk_clip_blocks_wait(e, s->image);
    HK_TRY(send_image(e, s->image, how == HK_LEAVE_OPERATION && !waits, err));
    image->on_host = true;
  }
  HK_TRY(ops->record(t->flush, s->left, err));
  s->left_at = ++t->departures;
  if (s->stream >= 0) {
    image->left_slot = slot;
    image->left_at = s->left_at;
  }
  image->slot = -1;
  image->visited = false;
  s->image = -1;
  return HK_OK;
}

int32_t hk_handover_free_slot(const hk_engine *e) {
  const struct hk_training *t = e->training;
  int32_t found = -1;
  for (int32_t i = 0; i < t->n_slots; i++) {
    if (t->slots[i].image >= 0) continue;
    if (found < 0 || t->slots[i].left_at < t->slots[found].left_at) found = i;
  }
  return found;
}

void hk_handover_put_in_slot(struct hk_training *t, int32_t image, int32_t slot, int32_t own) {
  t->slots[slot].image = image;
  t->slots[slot].stream = own;
  t->images[image].slot = slot;
}

hk_status hk_handover_fetch(hk_engine *e, int32_t image, int32_t slot, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  hk_slot *s = &t->slots[slot];
  /* Of the two departures the later one: the slot must be free, and the sums on the host. */
  const bool own_last = s->left_at >= t->images[image].left_at;
  hk_event *left = own_last ? s->left : t->slots[t->images[image].left_slot].left;
  HK_TRY(ops->wait(t->fetch, left, err));
  hk_handover_put_in_slot(t, image, slot, -1);
  HK_TRY(copy_image(e, image, false, t->fetch, err));
  s->loaded_at = (uint64_t)++t->n_fetched;
  return ops->record(t->fetch, s->loaded, err);
}

hk_status hk_handover_leave(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  for (int32_t i = 0; i < t->n_slots + t->n_homes; i++) {
    if (t->slots[i].image >= 0) HK_TRY(hk_handover_leave_slot(e, i, HK_LEAVE_OPERATION, err));
  }
  for (int32_t i = 0; i < e->state.n_images; i++) {
    if (t->images[i].op >= 0 && !t->images[i].issued) HK_TRY(send_image(e, i, true, err));
  }
  return HK_OK;
}

/* Images that are in a slot again will queue their operation when they leave it. */
hk_status hk_handover_issue_again(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  for (int32_t i = 0; i < e->state.n_images; i++) {
    const bool again = t->images[i].issued && t->images[i].slot < 0;
    t->images[i].issued = false;
    if (again) HK_TRY(send_image(e, i, true, err));
  }
  return HK_OK;
}
