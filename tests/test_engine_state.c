/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The layout of state, over random plans: each parameter is in one place, no two slabs overlap,
 * and no write-back overwrites the only copy of a subgroup that a failure might still need. */
#include "engine/default_plan.h"
#include "engine/state/state.h"

#include <stdlib.h>

#include "tests/fixture_engine.h"

/* Addresses without memory: this test does not access slabs. */
#define HOST   ((char *)(1ull << 40))
#define DEVICE ((char *)(1ull << 44))

static int by_address(const void *a, const void *b) {
  const char *const *x = a, *const *y = b;
  return (*x > *y) - (*x < *y);
}

static int64_t slabs_of(const hk_state *state) {
  int64_t n = 0;
  for (size_t s = 0; s < state->n_subgroups; s++) n += state->subgroups[s].slabs;
  return n;
}

static bool is_slab(const hk_state *state, const char *at, const char *base, int64_t n) {
  const hk_bytes bytes = state->shape.bytes;
  return at >= base && (at - base) % bytes == 0 && (at - base) / bytes < n;
}

/* Homes and spares together are all slabs of the layout, each once. */
static void assert_apart(const hk_state *state) {
  const int64_t homes = slabs_of(state);
  const int64_t all = state->host_slabs + state->device_slabs;
  const char **slabs = must_have((size_t)all, sizeof *slabs);
  int64_t n = 0;
  for (; n < homes; n++) slabs[n] = state->home[n];
  const hk_spares *spares[] = {&state->staged, &state->mapped};
  for (int k = 0; k < 2; k++) {
    assert_int_equal(spares[k]->count, spares[k]->n);
    for (int64_t i = 0; i < spares[k]->n; i++) {
      assert_true(n < all);
      slabs[n++] = spares[k]->free[(spares[k]->head + i) % spares[k]->n];
    }
  }
  assert_int_equal(n, all);
  qsort(slabs, (size_t)n, sizeof *slabs, by_address);
  for (int64_t i = 0; i < n; i++) {
    const bool on_host = is_slab(state, slabs[i], HOST, state->host_slabs);
    assert_true(on_host || is_slab(state, slabs[i], DEVICE, state->device_slabs));
    if (i > 0) assert_true(slabs[i - 1] < slabs[i]);
  }
  free(slabs);
}

static void assert_routes(const hk_state *state) {
  for (size_t s = 0; s < state->n_subgroups; s++) {
    const hk_state_subgroup *sub = &state->subgroups[s];
    for (int64_t k = sub->first; k < sub->first + sub->slabs; k++) {
      const bool device = is_slab(state, state->home[k], DEVICE, state->device_slabs);
      assert_int_equal(device, sub->route == HK_ROUTE_RESIDENT);
      /* Kernels treat state on the device as one piece. */
      if (device && k > sub->first) {
        assert_ptr_equal(state->home[k], (char *)state->home[k - 1] + state->shape.bytes);
      }
    }
  }
}

static void assert_shape(const hk_state *state) {
  const hk_slab_shape *shape = &state->shape;
  assert_true(shape->numel >= 1 && shape->numel <= (1 << 20) + 64);
  assert_true(shape->m >= 4 * shape->numel && shape->v >= shape->m + 4 * shape->numel);
  assert_true(shape->bytes >= shape->v + 4 * shape->numel);
  assert_int_equal(shape->bytes % 128, 0);
  assert_int_equal(shape->m % 16 + shape->v % 16, 0);
}

/* Runs of a subgroup from `begin` on cover it without holes or overlaps, each inside one slab and
 * one piece. */
static void assert_runs(const hk_state *state, size_t s, int64_t begin) {
  const hk_state_subgroup *sub = &state->subgroups[s];
  int64_t last_slab = -1, last_end = 0;
  for (int64_t at = begin; at < sub->numel;) {
    const hk_slab_run run = hk_state_run(state, s, at, sub->numel);
    assert_int_equal(run.offset, at);
    assert_true(run.n >= 1 && run.at >= 0 && run.at + run.n <= state->shape.numel);
    assert_true(run.slab >= sub->first && run.slab < sub->first + sub->slabs);
    assert_int_equal(run.offset / sub->piece, (run.offset + run.n - 1) / sub->piece);
    if (at > begin) {
      assert_true(run.slab > last_slab || (run.slab == last_slab && run.at >= last_end));
      assert_int_equal(run.at, 0);
    }
    last_slab = run.slab;
    last_end = run.at + run.n;
    at += run.n;
    /* An earlier end shortens the run and changes nothing else. */
    const hk_slab_run cut = hk_state_run(state, s, run.offset, run.offset + (run.n + 1) / 2);
    assert_true(cut.slab == run.slab && cut.at == run.at && cut.n == (run.n + 1) / 2);
  }
}

/* Each piece begins at the next multiple of 128 elements. Returns the end of the last one. */
static int64_t assert_pieces_on_lines(const hk_state *state, const hk_state_subgroup *sub) {
  int64_t free_at = sub->host_at;
  for (int64_t offset = 0; offset < sub->numel; offset += state->piece) {
    const int64_t left = sub->numel - offset, n = left < state->piece ? left : state->piece;
    const int64_t at = hk_state_host_at(state, sub, offset);
    assert_true(at >= free_at && at - free_at < 128 && at % 128 == 0);
    free_at = hk_state_host_at(state, sub, offset + n - 1) + 1;
    assert_int_equal(free_at, at + n);
  }
  return free_at;
}

static void assert_all_parameters_placed(const hk_state *state, random_stream *r) {
  int64_t offset = 0, host = 0, device = 0;
  for (size_t s = 0; s < state->n_subgroups; s++) {
    const hk_state_subgroup *sub = &state->subgroups[s];
    assert_int_equal(sub->offset, offset);
    assert_int_equal(hk_state_find(state, offset), s);
    assert_int_equal(hk_state_find(state, offset + sub->numel - 1), s);
    assert_int_equal(hk_state_find(state, offset + pick(r, 0, (int)sub->numel - 1)), s);
    offset += sub->numel;
    int64_t *free_at = sub->route == HK_ROUTE_CPU ? &host : &device;
    const int64_t at = sub->route == HK_ROUTE_CPU ? sub->host_at : sub->device_at;
    assert_true(at >= *free_at && at % 128 == 0);
    *free_at = sub->route == HK_ROUTE_CPU ? assert_pieces_on_lines(state, sub) : at + sub->numel;
    assert_runs(state, s, 0);
    assert_runs(state, s, pick(r, 0, (int)sub->numel - 1));
  }
  assert_int_equal(offset, state->numel);
  assert_true(host <= state->host_numel && device <= state->device_numel);
}

/* -- Steps ------------------------------------------------------------------------------------- */

static bool within(void *const *list, int64_t n, const void *slab) {
  for (int64_t i = 0; i < n; i++) {
    if (list[i] == slab) return true;
  }
  return false;
}

/* Copies of a lane keep their order: when a subgroup of a route is written back, those before it
 * have arrived on the device. A target must not be the home of a subgroup that has not arrived, or
 * of one on another route. */
static void assert_safe_targets(const hk_plan *plan, const hk_state *state) {
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_state_subgroup *from = &state->subgroups[plan->order[i]];
    size_t arrived = 0; /* subgroups of its route before it */
    for (size_t j = 0; j < i; j++) arrived += state->subgroups[plan->order[j]].route == from->route;
    for (size_t j = 0, same = 0; j < plan->n_subgroups; j++) {
      const hk_state_subgroup *other = &state->subgroups[plan->order[j]];
      const bool in_place = from->route == HK_ROUTE_CPU || from->route == HK_ROUTE_RESIDENT;
      if (in_place && j == i) continue;
      const bool gone = other->route == from->route && same++ < arrived && !in_place;
      for (int64_t k = from->first; k < from->first + from->slabs && !gone; k++) {
        assert_false(within(state->home + other->first, other->slabs, state->next[k]));
      }
      /* Two subgroups never have the same slab as their next target. */
      for (int64_t k = from->first; k < from->first + from->slabs && j != i; k++) {
        assert_false(within(state->next + other->first, other->slabs, state->next[k]));
      }
    }
  }
}

/* For one tensor of bf16 gradients. */
static hk_status lay_out(const hk_plan *plan, hk_state *state, hk_error *err) {
  hk_param all = {.grad_type = HK_GRAD_BF16};
  for (size_t s = 0; s < plan->n_subgroups; s++) all.numel += plan->subgroups[s].numel;
  return hk_state_layout(plan, &all, 1, state, err);
}

static void run_case(uint64_t number) {
  random_stream r = {number};
  hk_error err = {0};
  hk_plan plan = random_engine_plan(&r);
  hk_state state;
  must(lay_out(&plan, &state, &err), &err);
  hk_state_place(&state, HOST, DEVICE);
  assert_shape(&state);
  assert_all_parameters_placed(&state, &r);
  assert_apart(&state);
  assert_routes(&state);
  for (int64_t step = 1; step <= 12; step++) {
    hk_state_relocate(&plan, &state);
    assert_safe_targets(&plan, &state);
    for (size_t i = 0; i < plan.n_subgroups; i++) {
      hk_state_commit(&state, (size_t)plan.order[i], step);
    }
    assert_apart(&state);
    assert_routes(&state);
    for (size_t s = 0; s < plan.n_subgroups; s++) assert_int_equal(state.subgroups[s].step, step);
  }
  hk_state_free(&state);
  hk_plan_free(&plan);
}

static void state_is_in_exactly_one_place(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 150; number++) run_case(number);
}

/* Pieces longer than the longest slab take several slabs. */
static void long_pieces_have_several_slabs(void **unused) {
  (void)unused;
  hk_plan_subgroup subgroups[] = {{.numel = 5000001, .route = HK_ROUTE_STAGED},
                                  {.numel = 3100000, .route = HK_ROUTE_MAPPED},
                                  {.numel = 2097153, .route = HK_ROUTE_CPU},
                                  {.numel = 2500000, .route = HK_ROUTE_STAGED},
                                  {.numel = 1, .route = HK_ROUTE_RESIDENT}};
  int32_t order[] = {3, 1, 4, 0, 2};
  const hk_plan plan = {.runtime = HK_RUNTIME_HOCKET,
                        .piece_numel = 2100000,
                        .subgroups = subgroups,
                        .n_subgroups = 5,
                        .order = order};
  random_stream r = {1};
  hk_error err = {0};
  hk_state state;
  must(lay_out(&plan, &state, &err), &err);
  assert_true(state.slabs_a_piece > 1);
  hk_state_place(&state, HOST, DEVICE);
  assert_shape(&state);
  assert_all_parameters_placed(&state, &r);
  for (int64_t step = 1; step <= 7; step++) {
    hk_state_relocate(&plan, &state);
    assert_safe_targets(&plan, &state);
    for (size_t s = 0; s < 5; s++) hk_state_commit(&state, s, step);
    assert_apart(&state);
    assert_routes(&state);
  }
  hk_state_free(&state);
}

/* -- Gradients --------------------------------------------------------------------------------- */

/* Images cover all parameters in flat order, one per piece on the CPU's route, else one per
 * subgroup. In their array they do not overlap and begin at multiples of 256 bytes. */
static void assert_images(const hk_state *state) {
  hk_bytes host = 0, device = 0;
  int64_t at = 0;
  for (int32_t i = 0; i < state->n_images; i++) {
    const hk_grad_image *image = &state->images[i];
    const hk_state_subgroup *sub = &state->subgroups[image->subgroup];
    hk_bytes *end = image->on_device ? &device : &host;
    assert_int_equal(image->offset, at);
    assert_int_equal(image->on_device, sub->route != HK_ROUTE_CPU);
    assert_true(image->offset >= sub->offset);
    assert_true(image->offset + image->n <= sub->offset + sub->numel);
    if (image->on_device) {
      assert_int_equal(image->n, sub->numel);
    } else {
      assert_int_equal((image->offset - sub->offset) % state->piece, 0);
      assert_int_equal(image->piece, (image->offset - sub->offset) / state->piece);
      assert_true(image->n <= state->piece);
    }
    assert_true(image->at >= *end && image->at % 256 == 0 && image->bytes > 0);
    *end = image->at + image->bytes;
    at += image->n;
  }
  assert_int_equal(at, state->numel);
  assert_true(host <= state->host_grad_bytes && device <= state->device_grad_bytes);
}

/* Segments cover all tensors and all images. A segment's gradients lie in its image, behind those
 * of the previous segment, and each run of one type begins at a multiple of 64 bytes. */
static void assert_segments(const hk_state *state, const hk_param *params, size_t n,
                            random_stream *r) {
  int64_t at = 0, param_end = 0;
  int32_t param = -1;
  for (int32_t i = 0; i < state->n_images; i++) {
    const hk_grad_image *image = &state->images[i];
    hk_bytes free_at = image->at;
    assert_true(image->segments_begin < image->segments_end);
    assert_int_equal(state->segments[image->segments_begin].offset, image->offset);
    for (int32_t s = image->segments_begin; s < image->segments_end; s++) {
      const hk_param_segment *segment = &state->segments[s];
      if (at == param_end) param_end += params[++param].numel;
      const hk_grad_type type = params[param].grad_type;
      const bool first =
          s == image->segments_begin || params[state->segments[s - 1].param].grad_type != type;
      assert_true(segment->offset == at && segment->n >= 1 && segment->image == i);
      assert_int_equal(segment->param, param);
      assert_true(at + segment->n <= param_end && at + segment->n <= image->offset + image->n);
      assert_true(segment->at >= free_at && segment->at - free_at < 64);
      if (first) assert_int_equal(segment->at % 64, 0);
      if (!first) assert_int_equal(segment->at, free_at);
      assert_int_equal(hk_state_segment(state, at), s);
      assert_int_equal(hk_state_segment(state, at + pick(r, 0, (int)segment->n - 1)), s);
      at += segment->n;
      free_at = segment->at + segment->n * (hk_bytes)hk_grad_size(type);
    }
    assert_int_equal(at, image->offset + image->n);
    assert_int_equal(free_at, image->at + image->bytes);
  }
  assert_int_equal(at, state->numel);
  assert_int_equal(param, (int32_t)n - 1);
  assert_int_equal(state->images[state->n_images - 1].segments_end, state->n_segments);
}

static void gradients_are_in_exactly_one_place(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 300; number++) {
    random_stream r = {number + 4000};
    hk_param params[30] = {0};
    hk_error err = {0};
    hk_state state;
    hk_plan plan = random_engine_plan(&r);
    int64_t left = 0;
    size_t n = 0;
    for (size_t s = 0; s < plan.n_subgroups; s++) left += plan.subgroups[s].numel;
    do { /* tensors are independent of subgroups */
      const int64_t some = hk_min(left, (int64_t)scale(&r, 1, 20000));
      params[n] = (hk_param){.numel = n < 29 ? some : left,
                             .grad_type = (hk_grad_type)pick(&r, 0, HK_GRAD_TYPES - 1)};
      left -= params[n++].numel;
    } while (left > 0);
    must(hk_state_layout(&plan, params, n, &state, &err), &err);
    assert_images(&state);
    assert_segments(&state, params, n, &r);
    hk_state_free(&state);
    params[n - 1].numel++;
    assert_int_equal(hk_state_layout(&plan, params, n, &state, &err), HK_INPUT);
    hk_plan_free(&plan);
  }
}

/* A bin set of squares takes 2^28 values: a tensor of 2^29 + 7 on the device has three segments.
 * (The layout takes no memory for them; tests/abi/large.c trains such a tensor.) */
static void large_tensors_have_several_segments(void **unused) {
  (void)unused;
  const hk_param param = {.numel = 2 * HK_SQUARES_MOST + 7, .grad_type = HK_GRAD_BF16};
  hk_error err = {0};
  hk_plan plan;
  hk_state state;
  must(hk_default_plan(&param, 1, 1, &plan, &err), &err);
  assert_int_equal(plan.n_subgroups, 1);
  plan.subgroups[0].route = HK_ROUTE_RESIDENT;
  must(hk_state_layout(&plan, &param, 1, &state, &err), &err);
  assert_int_equal(state.n_images, 1);
  assert_int_equal(state.n_segments, 3);
  for (int32_t s = 0; s < 3; s++) {
    const hk_param_segment *segment = &state.segments[s];
    assert_int_equal(segment->offset, s * HK_SQUARES_MOST);
    assert_int_equal(segment->n, s < 2 ? HK_SQUARES_MOST : 7);
    assert_int_equal(segment->at, s * 2 * HK_SQUARES_MOST);
  }
  hk_state_free(&state);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(state_is_in_exactly_one_place),
      cmocka_unit_test(long_pieces_have_several_slabs),
      cmocka_unit_test(gradients_are_in_exactly_one_place),
      cmocka_unit_test(large_tensors_have_several_segments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
