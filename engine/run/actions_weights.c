/* SPDX-License-Identifier: Apache-2.0 */
/* New weights: from the host's array, from device memory where they wait for the norm (early
 * weights), or rounded from master weights, to the framework's tensors. */
#include "core/graph/bytes.h"
#include "engine/run/actions_private.h"

/* Segments for one launch of HK_KERNEL_SCATTER. */
typedef struct {
  hk_segment segments[HK_SEGMENTS_MOST];
  int n;
  int64_t values;
} scatter_batch;

static hk_status scatter_now(hk_engine *e, scatter_batch *b, bool mapped, hk_stream *stream,
                             hk_error *err) {
  const hk_kernel scatter = {.kind = HK_KERNEL_SCATTER,
                             .n = b->values,
                             .segments = b->segments,
                             .n_segments = b->n,
                             .mapped = mapped};
  const bool any = b->n > 0;
  b->n = 0;
  b->values = 0;
  return any ? e->backend->ops->launch(stream, &scatter, err) : HK_OK;
}

static hk_status scatter_add(hk_engine *e, scatter_batch *b, const hk_segment *segment, bool mapped,
                             hk_stream *stream, hk_error *err) {
  if (b->n == HK_SEGMENTS_MOST) HK_TRY(scatter_now(e, b, mapped, stream, err));
  b->segments[b->n++] = *segment;
  b->values += segment->n;
  return HK_OK;
}

/* Fewest bytes that are worth a copy of their own, which takes some microseconds to start; smaller
 * parts of tensors share a launch. */
#define LEAST_COPY (256 * HK_KIB)

/* Copies a segment, or adds it to the batch. */
static hk_status send_segment(hk_engine *e, scatter_batch *b, const hk_segment *segment,
                              bool mapped, hk_stream *stream, hk_error *err) {
  const hk_bytes bytes = segment->n * (hk_bytes)hk_grad_size(segment->to_type);
  const bool copied = mapped && !e->graph.weights_pulled && segment->from_type == segment->to_type;
  if (copied && bytes >= LEAST_COPY)
    return e->backend->ops->copy(stream, segment->to, segment->from, bytes, err);
  return scatter_add(e, b, segment, mapped, stream, err);
}

/* Type of the array of p in slabs: master weights, or with a split format bf16 weights. */
static hk_grad_type type_of_p(const hk_engine *e) {
  return hk_format_is_split(e->state.shape.format) ? HK_GRAD_BF16 : HK_GRAD_FP32;
}

/* Adds to the batch: master weights of parameters at .. at + n - 1 (flat order, one tensor), to be
 * rounded to the tensor's type, or bf16 weights. `slabs`: the addresses to read from, `home` or
 * `other` of hk_state. */
static hk_status scatter_masters(hk_engine *e, scatter_batch *b, int32_t param, size_t s,
                                 int64_t at, int64_t n, void *const *slabs, bool mapped,
                                 hk_stream *stream, hk_error *err) {
  const int64_t base = e->state.subgroups[s].offset;
  for (int64_t end = at + n; at < end;) {
    const hk_slab_run run = hk_state_run(&e->state, s, at - base, end - base);
    const hk_segment segment = {.from = hk_slab_at(&e->state.shape, slabs[run.slab], run.at).p,
                                .to = hk_engine_weight_at(e, param, at),
                                .n = run.n,
                                .from_type = type_of_p(e),
                                .to_type = e->params[param].weight_type};
    HK_TRY(send_segment(e, b, &segment, mapped, stream, err));
    at += run.n;
  }
  return HK_OK;
}

/* Address at which the early weights of the operation's piece wait in device memory. */
static uint16_t *early_weights(const hk_engine *e, const hk_op *op) {
  return e->early + hk_state_early_at(&e->state, hk_engine_subgroup(e, op), op->offset);
}

/* The same from the state's own bf16 weights. */
static hk_status send_early_slabs(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  void *const *slabs = hk_state_written(&e->state, hk_engine_subgroup(e, op));
  for (int64_t at = op->offset, end = at + hk_engine_op_numel(e, op); at < end;) {
    const hk_slab_run run = hk_state_run(&e->state, (size_t)op->subgroup, at, end);
    HK_TRY(e->backend->ops->copy(stream, early_weights(e, op) + (at - op->offset),
                                 hk_slab_at(&e->state.shape, slabs[run.slab], run.at).p,
                                 HK_BYTES_BF16 * run.n, err));
    at += run.n;
  }
  return HK_OK;
}

/* Copies the bf16 weights of a whole piece to device memory. Those of tensors of other types are
 * meaningless and are not used. Always a copy: most early weights go up during backward, when no
 * state is copied. */
static hk_status send_early(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  if (e->weights == NULL) return send_early_slabs(e, op, stream, err);
  return e->backend->ops->copy(stream, early_weights(e, op), hk_engine_host_weights(e, op),
                               HK_BYTES_BF16 * hk_engine_op_numel(e, op), err);
}

/* Writes new weights of a piece of route cpu to the tensors. bf16 weights come from `weights`, in
 * registered host memory if `mapped`, else in device memory; NULL: from the state. Weights of other
 * types are rounded from the master weights. */
static hk_status scatter_from(hk_engine *e, const hk_op *op, const uint16_t *weights, bool mapped,
                              hk_stream *stream, hk_error *err) {
  const hk_state_subgroup *sub = hk_engine_subgroup(e, op);
  const int64_t begin = sub->offset + op->offset, end = begin + hk_engine_op_numel(e, op);
  void *const *slabs = hk_state_written(&e->state, sub);
  scatter_batch batch = {.n = 0}, masters = {.n = 0};
  for (int64_t at = begin; at < end;) {
    const hk_param_run r = hk_param_run_at(e, at, end);
    const int32_t param = r.segment->param;
    const int64_t from = at;
    at += r.places;
    if (!e->active[param] || r.param->weight == NULL) continue;
    if (r.param->weight_type != HK_GRAD_BF16 || weights == NULL) {
      HK_TRY(scatter_masters(e, &masters, param, (size_t)op->subgroup, from, r.n, slabs, true,
                             stream, err));
      continue;
    }
    const hk_segment segment = {
        .from = weights + (from - begin), .to = hk_engine_weight_at(e, param, from), .n = r.n};
    HK_TRY(send_segment(e, &batch, &segment, mapped, stream, err));
  }
  HK_TRY(scatter_now(e, &masters, true, stream, err));
  return scatter_now(e, &batch, mapped, stream, err);
}

hk_status hk_engine_place_weights(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  const hk_state_subgroup *sub = hk_engine_subgroup(e, op);
  return scatter_from(e, op, sub->early ? early_weights(e, op) : hk_engine_host_weights(e, op),
                      !sub->early, stream, err);
}

hk_status hk_engine_send_weights(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  if (hk_engine_subgroup(e, op)->early) return send_early(e, op, stream, err);
  return hk_engine_place_weights(e, op, stream, err);
}

hk_status hk_engine_round_masters(hk_engine *e, size_t s, int64_t index, int64_t n, char *slabs,
                                  hk_stream *stream, hk_error *err) {
  const hk_state_subgroup *sub = &e->state.subgroups[s];
  const hk_slab_shape *shape = &e->state.shape;
  const int64_t begin = sub->offset + index, end = begin + n;
  const bool mapped = sub->route == HK_ROUTE_MAPPED;
  scatter_batch batch = {.n = 0};
  for (int64_t at = begin; at < end;) {
    const hk_param_run r = hk_param_run_at(e, at, end);
    const int32_t param = r.segment->param;
    const int64_t stop = at + r.n, next = at + r.places;
    const bool any =
        e->active[param] && r.param->weight != NULL && r.param->weight_type != HK_GRAD_BF16;
    while (any && at < stop) {
      const int64_t i = at - begin; /* index in the consecutive slabs */
      const hk_slab_run run = hk_state_run(&e->state, s, at - sub->offset, stop - sub->offset);
      const int64_t inside = i % shape->numel;
      const int64_t part = slabs != NULL ? hk_min(stop - at, shape->numel - inside) : run.n;
      const char *p = slabs != NULL
                          ? hk_slab_at(shape, slabs + i / shape->numel * shape->bytes, inside).p
                          : hk_slab_at(shape, e->state.next[run.slab], run.at).p;
      const hk_segment segment = {.from = p,
                                  .to = hk_engine_weight_at(e, param, at),
                                  .n = part,
                                  .from_type = HK_GRAD_FP32,
                                  .to_type = r.param->weight_type};
      HK_TRY(scatter_add(e, &batch, &segment, mapped, stream, err));
      at += part;
    }
    at = next;
  }
  return scatter_now(e, &batch, mapped, stream, err);
}
