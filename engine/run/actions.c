/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation of the graph does. sim/demand.c says what it costs. Here: operations on
 * streams. actions_cpu.c has those of the CPU team, actions_weights.c those that write weights. */
#include "core/graph/bytes.h"
#include "engine/run/actions_private.h"

/* -- Copies ------------------------------------------------------------------------------------ */

static char *staging_of(const hk_engine *e, int32_t id) {
  return e->staging + e->buffer[id] * hk_state_staging_bytes(&e->state);
}

/* Where gradients lie in a staging buffer. */
static char *staged_grads(const hk_engine *e, int32_t id) {
  return staging_of(e, id) + e->state.slabs_a_piece * e->state.shape.bytes;
}

/* The image of the operation's piece. */
static const hk_grad_image *image_of(const hk_engine *e, const hk_op *op) {
  const int64_t at = hk_engine_subgroup(e, op)->offset + op->offset;
  return &e->state.images[e->state.segments[hk_state_segment(&e->state, at)].image];
}

/* Number of whole slabs from `slab` on that are adjacent in memory, among those of parameters
 * offset .. end - 1. */
static int64_t slabs_in_a_row(const hk_state *state, void *const *slabs, const hk_slab_run *first,
                              int64_t end) {
  const hk_slab_shape *shape = &state->shape;
  int64_t n = 1;
  while (first->offset + (n + 1) * shape->numel <= end &&
         (char *)slabs[first->slab + n] == (char *)slabs[first->slab] + n * shape->bytes) {
    n++;
  }
  return n;
}

/* Copies the state of the operation's piece from its slabs to the staging buffer (`in`) or back,
 * adjacent slabs by one copy. */
static hk_status copy_state(hk_engine *e, int32_t id, int64_t n, bool in, hk_stream *stream,
                            hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  const hk_state *state = &e->state;
  const hk_slab_shape *shape = &state->shape;
  void *const *slabs = in ? state->home : state->next;
  hk_slab_array arrays[HK_SLAB_ARRAYS];
  const int n_arrays = hk_slab_arrays(shape, arrays);
  char *staging = staging_of(e, id);
  for (int64_t offset = op->offset, end = op->offset + n; offset < end;) {
    const hk_slab_run run = hk_state_run(state, (size_t)op->subgroup, offset, end);
    const bool whole = run.n == shape->numel;
    const int64_t row = whole ? slabs_in_a_row(state, slabs, &run, end) : 1;
    for (int t = 0; t < (whole ? 1 : n_arrays); t++) {
      const hk_bytes at = arrays[t].at;
      const hk_bytes bytes = whole ? row * shape->bytes : hk_slab_array_bytes(&arrays[t], run.n);
      char *slab = (char *)slabs[run.slab] + at;
      HK_TRY(e->backend->ops->copy(stream, in ? staging + at : slab, in ? slab : staging + at,
                                   bytes, err));
    }
    staging += row * shape->bytes;
    offset += whole ? row * shape->numel : run.n;
  }
  return HK_OK;
}

/* Copies what a piece's update needs to its staging buffer: state, and gradients that have been
 * sent to the host. */
static hk_status fetch(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  HK_TRY(copy_state(e, id, hk_engine_op_numel(e, op), true, stream, err));
  if (!hk_when_flushed(op->when)) return HK_OK;
  const hk_grad_image *image = image_of(e, op);
  return e->backend->ops->copy(stream, staged_grads(e, id), (char *)e->grads + image->at,
                               image->bytes, err);
}

/* Address at which the arrival of a write-back is noted: the attempt's number is written there. */
static int64_t *sign_of(const hk_engine *e, const hk_op *op) {
  const bool stolen = op->when == HK_WHEN_STOLEN;
  return (int64_t *)e->arrived + (stolen ? hk_engine_piece_sign(e, op) : op->subgroup);
}

/* Notes the arrival behind a write-back by copies, on the same stream. */
static hk_status sign_by_copy(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  int64_t *arrived = sign_of(e, op);
  return e->backend->ops->copy(stream, arrived, e->device_ticket, sizeof *arrived, err);
}

/* Notes the end of an update in place. A copy would wait for all state copies queued before it for
 * the copy engine, and would delay the next updates. */
static hk_status sign_by_kernel(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  const hk_kernel sign = {
      .kind = HK_KERNEL_SIGN, .n = 1, .from = e->device_ticket, .to = sign_of(e, op)};
  return e->backend->ops->launch(stream, &sign, err);
}

static bool ends_subgroup(const hk_engine *e, const hk_op *op, int64_t n) {
  return op->offset + n == hk_engine_subgroup(e, op)->numel;
}

/* -- Updates ----------------------------------------------------------------------------------- */

/* Copies the state of a mapped subgroup's tensor without a gradient to its new place, unchanged. */
static hk_status keep_mapped(hk_engine *e, const void *from, void *to, int64_t first, int64_t n,
                             hk_stream *stream, hk_error *err) {
  const hk_slab_shape *shape = &e->state.shape;
  hk_slab_array arrays[HK_SLAB_ARRAYS];
  const int n_arrays = hk_slab_arrays(shape, arrays);
  for (int a = 0; a < n_arrays; a++) {
    const hk_bytes at = hk_slab_array_at(&arrays[a], first);
    HK_TRY(e->backend->ops->copy(stream, (char *)to + at, (const char *)from + at,
                                 hk_slab_array_bytes(&arrays[a], n), err));
  }
  return HK_OK;
}

/* Whether two neighbouring runs can be one launch: their constants are equal, and their gradients
 * and weights are adjacent in memory. */
static bool runs_join(const hk_engine *e, const hk_param_run *a, const hk_param_run *b,
                      int64_t at) {
  const int32_t p = a->segment->param, q = b->segment->param;
  if (p == q) return true;
  if (!e->active[p] || !e->active[q] || a->param->grad_type != b->param->grad_type) return false;
  if (!hk_adamw_step_same(&e->steps[p], &e->steps[q])) return false;
  return a->param->weight_type == HK_GRAD_BF16 && b->param->weight_type == HK_GRAD_BF16 &&
         a->segment->image == b->segment->image && a->param->weight != NULL &&
         b->param->weight != NULL && hk_engine_weight_at(e, p, at) == hk_engine_weight_at(e, q, at);
}

/* AdamW on parameters first .. first + n - 1 of the slabs at `from`, the first of which is
 * parameter `index` of the subgroup; one launch for every run of parameters with the same
 * constants. `grads`: a copy of the gradients of that image; NULL: they are read where they are. */
static hk_status launch_adamw(hk_engine *e, hk_state_subgroup *sub, const void *from, void *to,
                              int64_t first, int64_t index, int64_t n, const char *grads,
                              hk_stream *stream, hk_error *err) {
  const int64_t flat = sub->offset + index;
  for (int64_t done = 0; done < n;) {
    const hk_param_run r = hk_param_run_at(e, flat + done, flat + n);
    const int32_t param = r.segment->param;
    int64_t length = r.n, places = r.places;
    while (done + length < n && length == places) {
      const hk_param_run next = hk_param_run_at(e, flat + done + length, flat + n);
      if (!runs_join(e, &r, &next, flat + done + length)) break;
      length += next.n;
      places += next.places;
    }
    const bool rounded = r.param->weight_type == HK_GRAD_BF16;
    const char *grad = hk_param_run_grad(e, &r, flat + done);
    if (grads != NULL)
      grad = grads + (grad - ((char *)e->grads + e->state.images[r.segment->image].at));
    const hk_kernel kernel = {
        .kind = HK_KERNEL_ADAMW,
        .type = r.param->grad_type,
        .n = length,
        .grad = grad,
        .step = e->steps[param],
        .shape = e->state.shape,
        .first = first + done,
        .index = hk_engine_index_in_tensor(e, param, flat + done),
        .from = from,
        .to = to,
        .w = rounded ? (uint16_t *)(void *)hk_engine_weight_at(e, param, flat + done) : NULL,
        .mapped = sub->route == HK_ROUTE_MAPPED};
    if (e->active[param]) {
      HK_TRY(e->backend->ops->launch(stream, &kernel, err));
      if (sub->route == HK_ROUTE_RESIDENT) sub->touched = e->attempt;
    } else if (from != to) {
      HK_TRY(keep_mapped(e, from, to, first + done, length, stream, err));
    }
    done += places;
  }
  return HK_OK;
}

static hk_status update_on_gpu(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  hk_state_subgroup *sub = hk_engine_subgroup(e, op);
  const int64_t n = op->work;
  void *slabs = sub->route == HK_ROUTE_RESIDENT ? e->state.home[sub->first] : staging_of(e, id);
  const char *grads = hk_when_flushed(op->when) ? staged_grads(e, id) : NULL;
  HK_TRY(launch_adamw(e, sub, slabs, slabs, 0, op->offset, n, grads, stream, err));
  HK_TRY(hk_engine_round_masters(e, (size_t)op->subgroup, op->offset, n, slabs, stream, err));
  if (sub->route == HK_ROUTE_RESIDENT && ends_subgroup(e, op, n)) {
    return sign_by_kernel(e, op, stream, err);
  }
  return HK_OK;
}

static hk_status update_mapped(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  hk_state_subgroup *sub = hk_engine_subgroup(e, op);
  const int64_t end = op->offset + op->work;
  for (int64_t offset = op->offset; offset < end;) {
    const hk_slab_run run = hk_state_run(&e->state, (size_t)op->subgroup, offset, end);
    HK_TRY(launch_adamw(e, sub, e->state.home[run.slab], e->state.next[run.slab], run.at, offset,
                        run.n, NULL, stream, err));
    offset += run.n;
  }
  HK_TRY(hk_engine_round_masters(e, (size_t)op->subgroup, op->offset, op->work, NULL, stream, err));
  return ends_subgroup(e, op, op->work) ? sign_by_kernel(e, op, stream, err) : HK_OK;
}

hk_status hk_engine_act(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  const int64_t n = hk_engine_op_numel(e, op);
  switch (op->kind) {
    case HK_OP_WEIGHT_H2D:
      return hk_engine_send_weights(e, id, stream, err);
    case HK_OP_WEIGHT_PLACE:
      return hk_engine_place_weights(e, op, stream, err);
    case HK_OP_STATE_H2D:
      return fetch(e, id, stream, err);
    case HK_OP_STATE_D2H:
      HK_TRY(copy_state(e, id, n, false, stream, err));
      if (op->when != HK_WHEN_STOLEN && !ends_subgroup(e, op, n)) return HK_OK;
      return sign_by_copy(e, op, stream, err);
    case HK_OP_ADAMW_GPU:
      return update_on_gpu(e, id, stream, err);
    case HK_OP_ADAMW_MAPPED:
      return update_mapped(e, id, stream, err);
    default:
      return hk_fail(err, HK_INPUT, "the engine does not do '%s' in an update",
                     hk_op_kind_name(op->kind));
  }
}
