/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of several backwards (gradient accumulation): which images stay in their slots between
 * backwards, and when the others are fetched back. handover.c defines the terms.
 *
 * Each backward visits the images in nearly the same order. So the image whose last visit is the
 * longest ago is needed next, and images in the order of their last visits are a prediction of the
 * next backward. Sums that will be needed next are fetched into free slots, on a stream of their
 * own, while earlier blocks are computed. The caller's stream waits only for a copy that is late.
 *
 * Images with a home stay in it, and are not meant here: "images" are those that share slots.
 *
 * Slots beyond those through which images pass keep images (plan key "sum_bytes"). Kept images do
 * not move until they have all expected gradients. They are spread evenly over the order of visits,
 * so that the copies of the others are spread over the whole backward: were they neighbours, the
 * link would be idle during their part of backward, and would have to copy as fast as backward
 * makes gradients during the rest.
 *
 * An image that expects no more gradients is not fetched, so nothing here concerns steps of one
 * backward. A wrong prediction costs time and changes no bit. */
#include <limits.h>

#include "engine/train/training_private.h"

/* MOST_AHEAD: images fetched ahead, and how far ahead the order of visits is looked at. More would
 * fill the fetch stream's queue (HK_MOST_BESIDE).
 *
 * SLACK: an image that is this many places late will not be visited in this backward.
 *
 * LINGER: a visit ends when more than this many others have begun since its last gradient: some
 * tensor of the image has none in this backward. All but three of the slots that images pass
 * through, if these are more. An image that two tensors share is visited by both, and meanwhile
 * other images of theirs begin. */
enum { MOST_AHEAD = 8, SLACK = 8, LINGER = 2 };

/* -- The order of visits ----------------------------------------------------------------------- */

static void append(struct hk_training *t, int32_t image) {
  hk_image_state *i = &t->images[image];
  i->before = t->last;
  i->after = -1;
  *(t->last >= 0 ? &t->images[t->last].after : &t->first) = image;
  t->last = image;
  i->turn = ++t->turns;
}

static void move_last(struct hk_training *t, int32_t image) {
  const hk_image_state *i = &t->images[image];
  *(i->before >= 0 ? &t->images[i->before].after : &t->first) = i->after;
  *(i->after >= 0 ? &t->images[i->after].before : &t->last) = i->before;
  append(t, image);
}

void hk_handover_order_images(hk_engine *e) {
  struct hk_training *t = e->training;
  t->first = t->last = -1;
  for (int32_t i = e->state.n_images; i-- > 0;) {
    if (!e->state.images[i].on_device && t->images[i].home < 0) append(t, i);
  }
}

void hk_handover_reset_visits(hk_engine *e) {
  struct hk_training *t = e->training;
  t->surprised = false;
  t->n_open = t->keep_credit = 0;
  for (int32_t i = 0; i < e->state.n_images; i++) {
    hk_image_state *image = &t->images[i];
    const bool passes = !e->state.images[i].on_device && image->home < 0;
    image->most = 0;
    image->behind = image->segments;
    image->visited = image->decided = image->kept = false;
    t->n_open += passes && image->expected > 0;
  }
}

bool hk_handover_expects_more(const struct hk_training *t, const hk_image_state *image) {
  if (t->surprised) return image->expected > 0 || image->most > 0;
  return image->most < image->expected;
}

/* -- Visits ------------------------------------------------------------------------------------ */

/* Moves images behind that would have been visited long before the one of this turn. */
static hk_status pass_by(hk_engine *e, int64_t turn, hk_error *err) {
  struct hk_training *t = e->training;
  while (t->images[t->first].turn + SLACK < turn) {
    const int32_t passed = t->first, slot = t->images[passed].slot;
    move_last(t, passed);
    t->images[passed].passed = true;
    const bool unused = slot >= 0 && t->slots[slot].stream < 0;
    if (unused) HK_TRY(hk_handover_leave_slot(e, slot, HK_LEAVE_COPY, err));
  }
  return HK_OK;
}

int64_t hk_handover_linger(const struct hk_training *t) {
  return hk_max(LINGER, t->n_slots - t->n_keeping - 3);
}

/* Ends visits of images that backward has left, although some tensor brought no gradient. */
static hk_status end_stale_visits(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  const int64_t linger = hk_handover_linger(t);
  for (int32_t s = 0; s < t->n_slots; s++) {
    const int32_t image = t->slots[s].image;
    if (image < 0 || !t->images[image].visited) continue;
    const hk_image_state *i = &t->images[image];
    const bool stale = t->visits - i->touched > linger;
    if (stale && hk_handover_expects_more(t, i)) HK_TRY(hk_handover_end_visit(e, image, err));
  }
  return HK_OK;
}

hk_status hk_handover_visit(hk_engine *e, int32_t image, bool again, hk_error *err) {
  struct hk_training *t = e->training;
  hk_image_state *i = &t->images[image];
  if (i->home >= 0) return HK_OK;
  if (i->visited) {
    i->touched = t->visits;
    return HK_OK;
  }
  i->visited = true;
  /* The turn of one that has been passed by is behind all that are still to come. */
  if (!again && !i->passed) HK_TRY(pass_by(e, i->turn, err));
  if (!again) move_last(t, image);
  i->passed = false;
  i->touched = ++t->visits;
  HK_TRY(end_stale_visits(e, err));
  return hk_handover_prefetch(e, err);
}

/* Of the images whose visits end, n_keeping in n_passing are kept, at even distances. */
static void decide(struct hk_training *t, hk_image_state *i) {
  if (i->decided) return;
  i->decided = true;
  t->keep_credit += t->n_keeping;
  i->kept = t->keep_credit >= t->n_passing;
  if (i->kept) t->keep_credit -= t->n_passing;
}

hk_status hk_handover_end_visit(hk_engine *e, int32_t image, hk_error *err) {
  struct hk_training *t = e->training;
  hk_image_state *i = &t->images[image];
  i->visited = false;
  if (!hk_handover_expects_more(t, i)) return HK_OK;
  decide(t, i);
  return i->kept ? HK_OK : hk_handover_leave_slot(e, i->slot, HK_LEAVE_COPY, err);
}

hk_status hk_handover_end_visits(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  for (int32_t s = 0; s < t->n_slots + t->n_homes; s++) {
    const int32_t image = t->slots[s].image;
    if (image < 0) continue;
    if (!hk_handover_expects_more(t, &t->images[image])) {
      HK_TRY(hk_handover_leave_slot(e, s, HK_LEAVE_COPY, err));
    } else if (t->images[image].visited) {
      HK_TRY(hk_handover_end_visit(e, image, err));
    }
  }
  return hk_handover_prefetch(e, err);
}

/* -- Slots ------------------------------------------------------------------------------------- */

hk_status hk_handover_prefetch(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  int32_t n_free = 0, fetched = 0, open = t->surprised ? INT32_MAX : t->n_open;
  if (t->rounds <= 1 && !t->surprised) return HK_OK;
  for (int32_t s = 0; s < t->n_slots; s++) {
    n_free += t->slots[s].image < 0;
    fetched += t->slots[s].image >= 0 && t->slots[s].stream < 0;
  }
  int64_t room = hk_min(n_free, MOST_AHEAD - fetched);
  for (int32_t i = t->first; i >= 0 && room > 0 && open > 0; i = t->images[i].after) {
    if (!hk_handover_expects_more(t, &t->images[i])) continue;
    open--;
    if (t->images[i].slot >= 0) continue;
    room--; /* also for an image that has no sums yet: it will need a slot first */
    if (t->images[i].on_host) HK_TRY(hk_handover_fetch(e, i, hk_handover_free_slot(e), err));
  }
  return HK_OK;
}

/* Whether slot `a` is a better victim than `b`. Fetched images come first, because they need no
 * copy: the one that is needed last. Then the image that was written longest ago, kept ones at the
 * end. */
static bool leaves_before(const struct hk_training *t, const hk_slot *a, const hk_slot *b) {
  const hk_image_state *i = &t->images[a->image], *j = &t->images[b->image];
  if ((a->stream < 0) != (b->stream < 0)) return a->stream < 0;
  if (a->stream < 0) return i->turn > j->turn;
  if (i->kept != j->kept) return j->kept;
  return i->touched < j->touched;
}

int32_t hk_handover_victim(const hk_engine *e) {
  const struct hk_training *t = e->training;
  int32_t victim = 0;
  for (int32_t s = 1; s < t->n_slots; s++) {
    if (leaves_before(t, &t->slots[s], &t->slots[victim])) victim = s;
  }
  return victim;
}
