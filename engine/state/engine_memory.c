/* SPDX-License-Identifier: Apache-2.0 */
/* How much host and device memory an engine needs, and where each part of it lies. */
#include "engine/private.h"

#define HOST_ALIGN   4096
#define DEVICE_ALIGN 512

/* -- Sizes ------------------------------------------------------------------------------------- */

/* Adds a part, rounded up to `align`, to *all; returns its rounded size. */
static hk_bytes part(hk_bytes *all, hk_bytes bytes, hk_bytes align) {
  const hk_bytes rounded = (bytes + align - 1) / align * align;
  *all += rounded;
  return rounded;
}

hk_bytes hk_bin_bytes(const hk_state *state, const hk_param *params) {
  hk_bytes bytes = 0;
  for (int32_t s = 0; s < state->n_segments; s++) {
    const hk_grad_type type = params[state->segments[s].param].grad_type;
    bytes += hk_squares_bin_words(type) * (hk_bytes)sizeof(uint64_t);
  }
  return bytes;
}

static bool passes(const hk_grad_image *image) {
  return !image->on_device && image->early_at < 0;
}

static hk_bytes largest_image(const hk_state *state) {
  hk_bytes bytes = 0;
  for (int32_t i = 0; i < state->n_images; i++) {
    const hk_grad_image *image = &state->images[i];
    if (passes(image) && image->bytes > bytes) bytes = image->bytes;
  }
  return (bytes + 511) / 512 * 512;
}

static int32_t count_images(const hk_state *state) {
  int32_t images = 0;
  for (int32_t i = 0; i < state->n_images; i++) images += passes(&state->images[i]);
  return images;
}

hk_slot_layout hk_slots_of(const hk_plan *plan, const hk_state *state) {
  const int32_t images = count_images(state);
  const hk_bytes bytes = largest_image(state);
  return (hk_slot_layout){.images = images,
                          .n = (int32_t)hk_grad_slots(images, bytes, plan->sum_bytes),
                          .bytes = bytes};
}

hk_bytes hk_slot_bytes(const hk_plan *plan, const hk_state *state) {
  const hk_slot_layout slots = hk_slots_of(plan, state);
  return slots.n * slots.bytes;
}

static hk_host_layout host_layout(const hk_plan *plan, const hk_state *state,
                                  const hk_param *params) {
  hk_host_layout h = {0};
  h.slabs = part(&h.all, state->host_slabs * state->shape.bytes, HOST_ALIGN);
  h.grads = part(&h.all, state->host_grad_bytes, HOST_ALIGN);
  /* Split state has the bf16 weights itself. */
  h.weights =
      part(&h.all, hk_format_is_split(state->shape.format) ? 0 : 2 * state->host_numel, HOST_ALIGN);
  const int64_t signs = (int64_t)state->n_subgroups + state->n_stealable;
  h.arrived = part(&h.all, (hk_bytes)sizeof(int64_t) * signs, HOST_ALIGN);
  h.bins = part(&h.all, hk_bin_bytes(state, params), HOST_ALIGN);
  h.block_bins =
      part(&h.all, plan->clip == HK_CLIP_BLOCK ? hk_bin_bytes(state, params) : 0, HOST_ALIGN);
  h.ticket = part(&h.all, (hk_bytes)sizeof(int64_t), HOST_ALIGN);
  return h;
}

static hk_device_layout device_layout(const hk_plan *plan, const hk_state *state,
                                      const hk_param *params) {
  hk_device_layout d = {0};
  const bool staged = hk_plan_on_route(plan, HK_ROUTE_STAGED) > 0 || state->staged_grad_bytes > 0;
  d.slabs = part(&d.all, state->device_slabs * state->shape.bytes, DEVICE_ALIGN);
  d.staging =
      part(&d.all, staged ? plan->buffers * hk_state_staging_bytes(state) : 0, DEVICE_ALIGN);
  d.grads = part(&d.all, state->device_grad_bytes, DEVICE_ALIGN);
  d.bins = part(&d.all, hk_bin_bytes(state, params), DEVICE_ALIGN);
  d.ticket = part(&d.all, (hk_bytes)sizeof(int64_t), DEVICE_ALIGN);
  d.early = part(&d.all, 2 * state->early_numel, DEVICE_ALIGN);
  d.slots = part(&d.all, hk_slot_bytes(plan, state), DEVICE_ALIGN);
  return d;
}

hk_status hk_engine_measure(const hk_plan *plan, const hk_param *params, size_t n_params,
                            hk_engine_memory *memory, hk_error *err) {
  hk_state state;
  HK_TRY(hk_state_layout(plan, params, n_params, &state, err));
  *memory = (hk_engine_memory){.device = device_layout(plan, &state, params).all,
                               .host_pinned = host_layout(plan, &state, params).all};
  hk_state_free(&state);
  return HK_OK;
}

void hk_engine_lay_out(hk_engine *e) {
  e->host = host_layout(&e->plan, &e->state, e->params);
  e->device = device_layout(&e->plan, &e->state, e->params);
}

/* -- Places ------------------------------------------------------------------------------------ */

static char *place_host(hk_engine *e) {
  const hk_host_layout *h = &e->host;
  char *slabs = hk_arena_take(&e->arena, h->slabs, HOST_ALIGN);
  e->grads = hk_arena_take(&e->arena, h->grads, HOST_ALIGN);
  e->weights = h->weights > 0 ? hk_arena_take(&e->arena, h->weights, HOST_ALIGN) : NULL;
  e->arrived = hk_arena_take(&e->arena, h->arrived, HOST_ALIGN);
  e->bins = hk_arena_take(&e->arena, h->bins, HOST_ALIGN);
  e->block_bins = hk_arena_take(&e->arena, h->block_bins, HOST_ALIGN);
  e->ticket = hk_arena_take(&e->arena, h->ticket, HOST_ALIGN);
  return slabs;
}

void hk_engine_place_work(hk_engine *e) {
  const hk_device_layout *d = &e->device;
  char *at = e->work;
  e->staging = at;
  e->device_grads = at += d->staging;
  at += d->grads;
  e->device_bins = (uint64_t *)at;
  e->device_ticket = (int64_t *)(at += d->bins);
  e->early = (uint16_t *)(at + d->ticket);
}

void hk_engine_place(hk_engine *e) {
  char *slabs = place_host(e);
  hk_state_place(&e->state, slabs, e->memory);
}
