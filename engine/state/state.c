/* SPDX-License-Identifier: Apache-2.0 */
/* Layout of state and gradients, addresses of slabs, and their exchange in a step. */
#include "engine/state/state.h"

#include <stdlib.h>
#include <string.h>

/* Most parameters of a slab. Copies of 12 MiB reach the full PCIe rate, and the last slab of a
 * subgroup leaves at most 12 MiB unused. */
#define MOST_SLAB ((int64_t)1 << 20)

static int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

/* Bytes by which p, m and v of a slab are shifted against each other, so that a kernel's streams do
 * not use the same cache sets. */
#define SKEW 1152

/* Subgroups, and on the host pieces, begin at multiples of this in the arrays of gradients and
 * weights, which are cache lines; so do pieces of early weights. The CPU's AdamW can then write
 * weights by streaming stores, which saves reading the lines first (2 of 30 bytes a parameter), and
 * the GPU's kernels read gradients in words of 16 bytes. */
#define ALIGN_NUMEL 128

static hk_slab_shape shape_for(hk_format format, int64_t numel) {
  const hk_bytes skew = round_up(4 * numel, 128) >= 65536 ? SKEW : 0;
  hk_slab_shape shape = {.numel = numel, .format = format};
  hk_bytes end = round_up(hk_format_size(format, 0) * numel, 128);
  if (hk_format_is_split(format)) {
    shape.low = end + skew;
    end = shape.low + round_up(2 * numel, 128);
  }
  const hk_bytes moment = round_up(hk_format_size(format, 1) * numel, 128);
  shape.m = end + skew;
  shape.v = shape.m + moment + skew;
  shape.bytes = shape.v + moment;
  if (hk_format_is_coded(format)) {
    shape.windows = shape.bytes;
    shape.bytes += round_up(2 * numel / HK_CODE_BLOCK, 128);
  }
  return shape;
}

hk_format hk_state_format(const hk_plan *plan) {
  switch (plan->optimizer) {
    case HK_OPTIMIZER_FP32:
      return HK_FORMAT_FP32;
    case HK_OPTIMIZER_SPLIT:
      return HK_FORMAT_SPLIT;
    case HK_OPTIMIZER_BF16:
      return HK_FORMAT_BF16;
    case HK_OPTIMIZER_BF16_SPLIT:
      return HK_FORMAT_BF16_SPLIT;
    case HK_OPTIMIZER_8BIT:
      return HK_FORMAT_8BIT;
    case HK_OPTIMIZER_8BIT_SPLIT:
      return HK_FORMAT_8BIT_SPLIT;
    default:
      return HK_FORMATS;
  }
}

int hk_slab_arrays(const hk_slab_shape *shape, hk_slab_array arrays[HK_SLAB_ARRAYS]) {
  int n = 0;
  arrays[n++] = (hk_slab_array){0, hk_format_size(shape->format, 0), 1};
  if (hk_format_is_split(shape->format)) arrays[n++] = (hk_slab_array){shape->low, 2, 1};
  arrays[n++] = (hk_slab_array){shape->m, hk_format_size(shape->format, 1), 1};
  arrays[n++] = (hk_slab_array){shape->v, hk_format_size(shape->format, 2), 1};
  if (hk_format_is_coded(shape->format))
    arrays[n++] = (hk_slab_array){shape->windows, 2, HK_CODE_BLOCK};
  return n;
}

/* Number of slabs for `numel` consecutive parameters. */
static int64_t slabs_for(const hk_state *state, int64_t numel) {
  return (numel + state->shape.numel - 1) / state->shape.numel;
}

/* The size of pieces, so that no gap adds one to a subgroup. */
static int64_t piece_in_places(const hk_plan *plan, const hk_state *state) {
  int64_t piece = plan->piece_numel;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    const int64_t numel = plan->subgroups[s].numel;
    const int64_t pieces = hk_max(1, numel / plan->piece_numel + (numel % plan->piece_numel != 0));
    piece = hk_max(piece, (state->subgroups[s].numel + pieces - 1) / pieces);
  }
  return round_up(piece, state->unit);
}

/* Chooses the sizes of pieces and slabs. */
static void choose_shape(const hk_plan *plan, hk_state *state) {
  int64_t piece = 1;
  for (size_t s = 0; s < state->n_subgroups; s++) piece = hk_max(piece, state->subgroups[s].numel);
  piece = hk_min(piece, piece_in_places(plan, state));
  const int64_t slabs = (piece + MOST_SLAB - 1) / MOST_SLAB;
  state->piece = piece;
  state->apart = round_up(piece, ALIGN_NUMEL);
  state->shape = shape_for(hk_state_format(plan),
                           round_up((piece + slabs - 1) / slabs, hk_max(state->unit, 64)));
  state->slabs_a_piece = slabs_for(state, piece);
}

static int64_t slabs_of(const hk_state *state, const hk_state_subgroup *sub) {
  return sub->numel / sub->piece * slabs_for(state, sub->piece) +
         slabs_for(state, sub->numel % sub->piece);
}

static hk_status make_spares(hk_spares *spares, int64_t n, hk_error *err) {
  if (n == 0) return HK_OK;
  spares->free = calloc((size_t)n, sizeof *spares->free);
  if (spares->free == NULL) {
    return hk_fail_memory(err, (size_t)n * sizeof *spares->free, "the list of spare slabs");
  }
  spares->n = n;
  return HK_OK;
}

/* -- Gradients --------------------------------------------------------------------------------- */

/* Bytes: alignment of images, and of a segment whose type differs from the one before. */
#define IMAGE_ALIGN 256
#define TYPE_ALIGN  64

/* Returns the number of images; unless `out` is NULL, describes them there in flat order. */
static int32_t each_image(const hk_state *state, hk_grad_image *out) {
  int32_t count = 0;
  for (size_t s = 0; s < state->n_subgroups; s++) {
    const hk_state_subgroup *sub = &state->subgroups[s];
    const bool on_device = sub->route != HK_ROUTE_CPU;
    const int64_t most = on_device ? sub->numel : state->piece;
    for (int64_t offset = 0; offset < sub->numel; offset += most, count++) {
      if (out == NULL) continue;
      out[count] = (hk_grad_image){.offset = sub->offset + offset,
                                   .n = hk_min(most, sub->numel - offset),
                                   .subgroup = (int32_t)s,
                                   .piece = (int32_t)(offset / most),
                                   .on_device = on_device};
    }
  }
  return count;
}

/* Cuts tensors into segments at the images' ends, and into no more values than a bin set of squares
 * takes. Returns their number; unless `out` is NULL, writes them there. */
static int32_t each_segment(const hk_state *state, const hk_param *params, size_t n_params,
                            hk_param_segment *out) {
  int32_t count = 0, image = 0;
  int64_t begin = 0;
  for (size_t p = 0; p < n_params; p++) {
    const int64_t end = begin + params[p].numel;
    for (int64_t at = begin; at < end; count++) {
      while (state->images[image].offset + state->images[image].n <= at) image++;
      const hk_grad_image *i = &state->images[image];
      const int64_t stop = hk_min(at + HK_SQUARES_MOST, hk_min(end, i->offset + i->n));
      if (out != NULL) {
        out[count] =
            (hk_param_segment){.offset = at, .n = stop - at, .param = (int32_t)p, .image = image};
      }
      at = stop;
    }
    begin = hk_state_after(state, end);
  }
  return count;
}

/* Gradients of 16 bits fit where the piece's new weights will wait for the norm. */
static hk_bytes early_room(const hk_state *state, const hk_grad_image *image) {
  const hk_state_subgroup *sub = &state->subgroups[image->subgroup];
  const hk_bytes room = 2 * round_up(image->n, ALIGN_NUMEL);
  if (!sub->early || image->bytes > room) return -1;
  return 2 * hk_state_early_at(state, sub, image->offset - sub->offset);
}

/* Sets the offsets of images and segments in their arrays. */
static void place_gradients(hk_state *state, const hk_param *params) {
  int32_t s = 0;
  for (int32_t i = 0; i < state->n_images; i++) {
    hk_grad_image *image = &state->images[i];
    hk_bytes *all = image->on_device ? &state->device_grad_bytes : &state->host_grad_bytes;
    hk_bytes at = image->at = *all;
    hk_grad_type type = HK_GRAD_TYPES;
    image->segments_begin = s;
    for (; s < state->n_segments && state->segments[s].image == i; s++) {
      const hk_grad_type own = params[state->segments[s].param].grad_type;
      if (own != type) at = round_up(at, TYPE_ALIGN);
      type = own;
      state->segments[s].at = at;
      at += state->segments[s].n * (hk_bytes)hk_grad_size(own);
    }
    image->segments_end = s;
    *all = round_up(at, IMAGE_ALIGN);
    image->bytes = at - image->at;
    image->early_at = early_room(state, image);
    const hk_state_subgroup *sub = &state->subgroups[image->subgroup];
    if (sub->held_staged || sub->stealable)
      state->staged_grad_bytes =
          hk_max(state->staged_grad_bytes, round_up(image->bytes, IMAGE_ALIGN));
  }
}

hk_status hk_state_fail_sizes(int64_t in_tensors, int64_t in_plan, hk_error *err) {
  return hk_fail(err, HK_INPUT,
                 "the tensors have %lld parameters, the plan's subgroups %lld: they must be of one "
                 "model and one rank",
                 (long long)in_tensors, (long long)in_plan);
}

static hk_status lay_out_gradients(const hk_param *params, size_t n_params, hk_state *state,
                                   hk_error *err) {
  state->n_images = each_image(state, NULL);
  state->images = calloc((size_t)state->n_images, sizeof *state->images);
  if (state->images == NULL)
    return hk_fail_memory(err, (size_t)state->n_images * sizeof *state->images,
                          "the gradients' layout");
  each_image(state, state->images);
  state->n_segments = each_segment(state, params, n_params, NULL);
  state->segments = calloc((size_t)state->n_segments, sizeof *state->segments);
  if (state->segments == NULL)
    return hk_fail_memory(err, (size_t)state->n_segments * sizeof *state->segments,
                          "the gradients' layout");
  each_segment(state, params, n_params, state->segments);
  place_gradients(state, params);
  return HK_OK;
}

/* -- Slabs ------------------------------------------------------------------------------------- */

static bool runs_ahead(const hk_plan *plan, size_t s) {
  return plan->overlap == HK_OVERLAP_BOTH && plan->subgroups[s].ahead;
}

/* Places of the plan's subgroups: each cut is moved down to the next multiple of `unit` in its
 * tensor. */
static hk_status cut_subgroups(const hk_plan *plan, const hk_param *params, size_t n_params,
                               hk_state *state, hk_error *err) {
  int64_t in_plan = 0, in_tensors = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) in_plan += plan->subgroups[s].numel;
  for (size_t p = 0; p < n_params; p++) in_tensors += params[p].numel;
  if (in_plan != in_tensors) return hk_state_fail_sizes(in_tensors, in_plan, err);
  int64_t begin = 0, at = 0, flat = 0; /* of tensor p: its place, its first parameter */
  size_t p = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    at += plan->subgroups[s].numel;
    for (; p < n_params && flat + params[p].numel <= at; flat += params[p++].numel)
      begin = hk_state_after(state, begin + params[p].numel);
    const int64_t end = begin + (at - flat) / state->unit * state->unit;
    hk_state_subgroup *sub = &state->subgroups[s];
    sub->offset = state->numel;
    sub->numel = end - state->numel;
    state->numel = end;
    if (sub->numel >= 1) continue;
    return hk_fail(err, HK_INPUT,
                   "subgroups[%zu] has %lld parameters: in state '%s' a subgroup has at least %lld",
                   s, (long long)plan->subgroups[s].numel, hk_optimizer_names[plan->optimizer],
                   (long long)state->unit);
  }
  return HK_OK;
}

hk_status hk_state_places(const hk_plan *plan, const hk_state *state, hk_plan *places,
                          hk_error *err) {
  HK_TRY(hk_plan_copy(plan, places, err));
  for (size_t s = 0; s < places->n_subgroups; s++)
    places->subgroups[s].numel = state->subgroups[s].numel;
  if (state->unit > 1) places->piece_numel = state->piece;
  return HK_OK;
}

static hk_status lay_out_slabs(const hk_plan *plan, const hk_param *params, size_t n_params,
                               hk_state *state, hk_error *err) {
  memset(state, 0, sizeof *state);
  state->unit = hk_format_unit(hk_state_format(plan));
  state->n_subgroups = plan->n_subgroups;
  state->subgroups = calloc(plan->n_subgroups, sizeof *state->subgroups);
  if (state->subgroups == NULL) {
    return hk_fail_memory(err, plan->n_subgroups * sizeof *state->subgroups, "the state's layout");
  }
  HK_TRY(cut_subgroups(plan, params, n_params, state, err));
  choose_shape(plan, state);
  const bool steals = hk_plan_steals(plan);
  int64_t slabs = 0, spare_staged = 0, spare_mapped = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    hk_state_subgroup *sub = &state->subgroups[s];
    sub->route = plan->subgroups[s].route;
    sub->first = slabs;
    sub->piece = sub->route == HK_ROUTE_RESIDENT ? sub->numel : state->piece;
    sub->slabs = slabs_of(state, sub);
    slabs += sub->slabs;
    sub->ahead = runs_ahead(plan, s);
    sub->early = sub->ahead && plan->subgroups[s].early;
    sub->held_staged = sub->ahead && plan->subgroups[s].held_staged;
    sub->stealable = steals && hk_plan_stealable(plan, s);
    sub->owners_at = state->n_stealable;
    if (sub->stealable) state->n_stealable += (sub->numel + sub->piece - 1) / sub->piece;
    sub->early_at = state->early_numel;
    if (sub->early) {
      const int64_t last = hk_state_early_at(state, sub, sub->numel - 1);
      state->early_numel = round_up(last + 1, ALIGN_NUMEL);
    }
    if (sub->route == HK_ROUTE_RESIDENT) {
      state->device_slabs += sub->slabs;
    } else {
      state->host_slabs += sub->ahead ? 2 * sub->slabs : sub->slabs;
    }
    if (sub->route == HK_ROUTE_CPU) {
      sub->host_at = state->host_numel;
      const int64_t last = hk_state_host_at(state, sub, sub->numel - 1);
      state->host_numel = round_up(last + 1, ALIGN_NUMEL);
    } else {
      sub->device_at = state->device_numel;
      state->device_numel += round_up(sub->numel, ALIGN_NUMEL);
    }
    if (sub->route == HK_ROUTE_STAGED) spare_staged = hk_max(spare_staged, sub->slabs);
    if (sub->route == HK_ROUTE_MAPPED) spare_mapped = hk_max(spare_mapped, sub->slabs);
  }
  if (state->n_stealable > 0) spare_staged = hk_max(spare_staged, state->slabs_a_piece);
  state->host_slabs += spare_staged + spare_mapped;

  hk_status status = make_spares(&state->staged, spare_staged, err);
  if (status == HK_OK) status = make_spares(&state->mapped, spare_mapped, err);
  state->home = calloc((size_t)slabs, sizeof *state->home);
  state->next = calloc((size_t)slabs, sizeof *state->next);
  state->other = calloc((size_t)slabs, sizeof *state->other);
  if (status == HK_OK && (state->home == NULL || state->next == NULL || state->other == NULL)) {
    status = hk_fail_memory(err, (size_t)slabs * sizeof *state->home, "the list of slabs");
  }
  return status;
}

hk_status hk_state_layout(const hk_plan *plan, const hk_param *params, size_t n_params,
                          hk_state *state, hk_error *err) {
  hk_status status = lay_out_slabs(plan, params, n_params, state, err);
  if (status == HK_OK) status = lay_out_gradients(params, n_params, state, err);
  if (status != HK_OK) hk_state_free(state);
  return status;
}

void hk_state_free(hk_state *state) {
  free(state->subgroups);
  free(state->home);
  free(state->next);
  free(state->other);
  free(state->images);
  free(state->segments);
  free(state->staged.free);
  free(state->mapped.free);
  memset(state, 0, sizeof *state);
}

static void fill_spares(hk_spares *spares, char **at, hk_bytes bytes) {
  for (int64_t i = 0; i < spares->n; i++, *at += bytes) spares->free[i] = *at;
  spares->head = 0;
  spares->count = spares->n;
}

void hk_state_place(hk_state *state, char *host, char *device) {
  const hk_bytes bytes = state->shape.bytes;
  for (size_t s = 0; s < state->n_subgroups; s++) {
    const hk_state_subgroup *sub = &state->subgroups[s];
    char **at = sub->route == HK_ROUTE_RESIDENT ? &device : &host;
    for (int64_t i = 0; i < sub->slabs; i++, *at += bytes) state->home[sub->first + i] = *at;
    if (!sub->ahead) continue;
    for (int64_t i = 0; i < sub->slabs; i++, *at += bytes) state->other[sub->first + i] = *at;
  }
  fill_spares(&state->staged, &host, bytes);
  fill_spares(&state->mapped, &host, bytes);
}

static void *take(hk_spares *spares) {
  void *slab = spares->free[spares->head];
  spares->head = (spares->head + 1) % spares->n;
  spares->count--;
  return slab;
}

static void give(hk_spares *spares, void *slab) {
  spares->free[(spares->head + spares->count) % spares->n] = slab;
  spares->count++;
}

void *const *hk_state_written(const hk_state *state, const hk_state_subgroup *sub) {
  const bool to_spare = !state->in_place || hk_state_stages(state, sub);
  return sub->ahead && to_spare ? state->other : state->home;
}

/* Slabs first .. end - 1 are written to spares, which their old places become. All spares are taken
 * first, so that no slab is written over another of them. */
static void write_to_spares(hk_state *state, hk_spares *spares, int64_t first, int64_t end) {
  for (int64_t k = first; k < end; k++) state->next[k] = take(spares);
  for (int64_t k = first; k < end; k++) give(spares, state->home[k]);
}

/* Slabs first .. end - 1 are written to the places of `to`. */
static void write_to(hk_state *state, void *const *to, int64_t first, int64_t end) {
  for (int64_t k = first; k < end; k++) state->next[k] = to[k];
}

void hk_state_relocate(const hk_plan *plan, hk_state *state) {
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_state_subgroup *sub = &state->subgroups[plan->order[i]];
    hk_spares *spares = sub->route == HK_ROUTE_STAGED   ? &state->staged
                        : sub->route == HK_ROUTE_MAPPED ? &state->mapped
                                                        : NULL;
    const int64_t end = sub->first + sub->slabs;
    if (spares != NULL) {
      write_to_spares(state, spares, sub->first, end);
    } else {
      write_to(state, hk_state_written(state, sub), sub->first, end);
    }
  }
}

/* The slabs *first .. *end - 1 of a piece. */
static void slabs_of_piece(const hk_state *state, size_t s, int64_t offset, int64_t n,
                           int64_t *first, int64_t *end) {
  *first = hk_state_run(state, s, offset, offset + n).slab;
  *end = hk_state_run(state, s, offset + n - 1, offset + n).slab + 1;
}

void hk_state_take(hk_state *state, size_t s, int64_t offset, int64_t n) {
  const hk_state_subgroup *sub = &state->subgroups[s];
  if (hk_state_written(state, sub) != state->home) return;
  int64_t first = 0, end = 0;
  slabs_of_piece(state, s, offset, n, &first, &end);
  if (sub->ahead) {
    write_to(state, state->other, first, end);
  } else {
    write_to_spares(state, &state->staged, first, end);
  }
}

void hk_state_untake(hk_state *state, size_t s, int64_t offset, int64_t n) {
  int64_t first = 0, end = 0;
  slabs_of_piece(state, s, offset, n, &first, &end);
  write_to(state, state->home, first, end);
}

void hk_state_commit(hk_state *state, size_t s, int64_t step) {
  hk_state_subgroup *sub = &state->subgroups[s];
  for (int64_t k = sub->first; sub->ahead && k < sub->first + sub->slabs; k++) {
    if (state->next[k] != state->home[k]) state->other[k] = state->home[k];
  }
  memcpy(state->home + sub->first, state->next + sub->first,
         (size_t)sub->slabs * sizeof *state->home);
  sub->step = step;
}

hk_slab_run hk_state_run(const hk_state *state, size_t s, int64_t offset, int64_t end) {
  const hk_state_subgroup *sub = &state->subgroups[s];
  const int64_t piece = offset / sub->piece, inside = offset % sub->piece;
  const int64_t slab = inside / state->shape.numel, at = inside % state->shape.numel;
  const int64_t stop = hk_min((piece + 1) * sub->piece, end);
  const int64_t n = hk_min(state->shape.numel - at, stop - offset);
  return (hk_slab_run){
      .slab = sub->first + piece * state->slabs_a_piece + slab, .at = at, .n = n, .offset = offset};
}

size_t hk_state_find(const hk_state *state, int64_t offset) {
  size_t low = 0, high = state->n_subgroups;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (state->subgroups[middle].offset <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

int32_t hk_state_segment(const hk_state *state, int64_t offset) {
  int32_t low = 0, high = state->n_segments;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (state->segments[middle].offset <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}
