/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation of the update phase does: the engine's counterpart of sim/demand.c. */
#include "engine/private.h"

static hk_state_subgroup *subgroup_of(const hk_engine *e, const hk_op *op) {
  return &e->state.subgroups[op->subgroup];
}

hk_group_run hk_engine_group_run(const hk_engine *e, int64_t at, int64_t end) {
  size_t low = 0, high = e->n_groups - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (e->group_end[middle] > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const int64_t stop = e->group_end[low];
  return (hk_group_run){.group = low, .end = stop < end ? stop : end};
}

/* -- Work of the CPU team ---------------------------------------------------------------------- */

/* Parameters that a thread takes at a time, at most: p, m, v, gradient and weight are 1.8 MB. */
#define MOST_CHUNK ((int64_t)1 << 16)

typedef struct team_work team_work;

/* A kernel over a run of parameters inside one slab. */
typedef void (*run_work)(const team_work *w, const hk_slab_run *run);

struct team_work {
  const hk_engine *e;
  run_work work;
  const hk_state_subgroup *sub;
  size_t s;
  int64_t begin; /* inside the subgroup; no piece's end lies inside the work */
  hk_chunks chunks;
  const hk_adamw_step *steps;
  uint16_t *to; /* weights of parameters `begin` and on; NULL: none */
};

static void chunk_by_runs(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const team_work *w = arg;
  const int64_t end = w->begin + hk_chunk_begin(&w->chunks, chunk + 1);
  for (int64_t at = w->begin + hk_chunk_begin(&w->chunks, chunk); at < end;) {
    const hk_slab_run run = hk_state_run(&w->e->state, w->s, at, end);
    w->work(w, &run);
    at += run.n;
  }
}

static void adamw_run(const team_work *w, const hk_slab_run *run) {
  const hk_engine *e = w->e;
  const hk_slab_shape *shape = &e->state.shape;
  const hk_grad_type type =
      e->plan.runtime == HK_RUNTIME_DEEPSPEED ? HK_GRAD_FP32 : e->options.grad_type;
  const int64_t flat = w->sub->offset + run->offset;
  const int64_t host_at = hk_state_host_at(&e->state, w->sub, run->offset);
  for (int64_t done = 0; done < run->n;) {
    const hk_group_run g = hk_engine_group_run(e, flat + done, flat + run->n);
    const int64_t n = g.end - flat - done, at = run->at + done;
    void *slab = e->state.home[run->slab];
    const char *grad = (const char *)e->grads + (size_t)(host_at + done) * hk_grad_size(type);
    e->kernels->adamw(&w->steps[g.group], type, n, hk_slab_part(shape, slab, 0, at),
                      hk_slab_part(shape, slab, 1, at), hk_slab_part(shape, slab, 2, at), grad,
                      w->to != NULL ? w->to + run->offset - w->begin + done : NULL);
    done += n;
  }
}

static void unscale_run(const team_work *w, const hk_slab_run *run) {
  float *grads = (float *)w->e->grads + hk_state_host_at(&w->e->state, w->sub, run->offset);
  w->e->kernels->unscale(w->steps[0].scale, run->n, grads);
}

static void cast_run(const team_work *w, const hk_slab_run *run) {
  const float *p = hk_slab_part(&w->e->state.shape, w->e->state.home[run->slab], 0, run->at);
  w->e->kernels->cast_down(run->n, p, w->to + run->offset - w->begin);
}

/* The operation's part of its subgroup, chunk by chunk; weights go to `to`. */
static void share_out(hk_engine *e, const hk_op *op, run_work work, const hk_adamw_step *steps,
                      uint16_t *to) {
  team_work w = {.e = e,
                 .work = work,
                 .sub = subgroup_of(e, op),
                 .s = (size_t)op->subgroup,
                 .begin = op->offset,
                 .chunks = hk_chunks_of(op->work, MOST_CHUNK, hk_team_threads(e->team)),
                 .steps = steps,
                 .to = to};
  hk_team_run(e->team, w.chunks.count, chunk_by_runs, &w);
}

/* Where the weights of an operation's parameters lie in the host's array. */
static uint16_t *host_weights(const hk_engine *e, const hk_op *op) {
  return e->weights + hk_state_host_at(&e->state, subgroup_of(e, op), op->offset);
}

static void act_on_cpu(hk_engine *e, int32_t id) {
  const hk_op *op = &e->graph.ops[id];
  switch (op->kind) {
    case HK_OP_ADAMW_CPU:
      share_out(e, op, adamw_run, e->steps, host_weights(e, op));
      break;
    case HK_OP_ADAMW_CPU_FP32:
      /* The prototype sends weights that it has not cast; ours must be right. */
      share_out(e, op, adamw_run, e->unscaled, e->weights != NULL ? host_weights(e, op) : NULL);
      break;
    case HK_OP_UNSCALE_CPU:
      share_out(e, op, unscale_run, e->steps, NULL);
      break;
    case HK_OP_CAST_CPU:
      share_out(e, op, cast_run, NULL, e->pageable);
      break;
    default: /* barriers and bookkeeping take no action, and have no subgroup */
      break;
  }
}

/* -- Copies ------------------------------------------------------------------------------------ */

static char *staging_of(const hk_engine *e, int32_t id) {
  return e->staging + e->buffer[id] * e->state.slabs_a_piece * e->state.shape.bytes;
}

/* How many whole slabs from `slab` on lie one after the other, of parameters offset .. end - 1. */
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

/* State of the operation's piece between its slabs and the staging buffer, in as few copies as the
 * slabs' places allow. `part`: one of p, m, v, or -1 for all of them, which lie together. */
static hk_status copy_state(hk_engine *e, int32_t id, int64_t n, int part, bool in,
                            hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  const hk_state *state = &e->state;
  const hk_slab_shape *shape = &state->shape;
  void *const *slabs = in ? state->home : state->next;
  char *staging = staging_of(e, id);
  for (int64_t offset = op->offset, end = op->offset + n; offset < end;) {
    const hk_slab_run run = hk_state_run(state, (size_t)op->subgroup, offset, end);
    const bool whole = part < 0 && run.n == shape->numel;
    const int64_t row = whole ? slabs_in_a_row(state, slabs, &run, end) : 1;
    const int first = part < 0 ? 0 : part, last = part < 0 && !whole ? 2 : first;
    for (int t = first; t <= last; t++) {
      const hk_bytes at = t == 0 ? 0 : t == 1 ? shape->m : shape->v;
      const hk_bytes bytes = whole ? row * shape->bytes : 4 * run.n;
      char *slab = (char *)slabs[run.slab] + at;
      HK_TRY(in ? e->backend->ops->copy(stream, staging + at, slab, bytes, err)
                : e->backend->ops->copy(stream, slab, staging + at, bytes, err));
    }
    staging += row * shape->bytes;
    offset += whole ? row * shape->numel : run.n;
  }
  return HK_OK;
}

/* Where the sign goes that a write-back, or a part of one, has arrived. */
static int64_t *sign_of(const hk_engine *e, const hk_op *op, int part) {
  return (int64_t *)e->arrived + 3 * op->subgroup + part;
}

/* Behind a write-back by copies, on their stream. */
static hk_status sign_by_copy(hk_engine *e, const hk_op *op, int part, hk_stream *stream,
                              hk_error *err) {
  int64_t *arrived = sign_of(e, op, part);
  return e->backend->ops->copy(stream, arrived, e->device_ticket, sizeof *arrived, err);
}

/* Behind an update in place. A copy would wait for all the state on its way out, and the next
 * updates with it. */
static hk_status sign_by_kernel(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  const hk_kernel sign = {
      .kind = HK_KERNEL_SIGN, .n = 1, .from = e->device_ticket, .to = sign_of(e, op, 0)};
  return e->backend->ops->launch(stream, &sign, err);
}

static bool ends_subgroup(const hk_engine *e, const hk_op *op, int64_t n) {
  return op->offset + n == subgroup_of(e, op)->numel;
}

/* Under hocket by a kernel: a copy would wait behind all the state that is queued for the copy
 * engine, and the last weights would go up when everything else is done. */
static hk_status send_weights(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  const hk_state_subgroup *sub = subgroup_of(e, op);
  const uint16_t *from = e->weights != NULL ? host_weights(e, op) : e->pageable;
  uint16_t *to = e->device_weights + sub->offset + op->offset;
  if (e->plan.runtime == HK_RUNTIME_DEEPSPEED) {
    return e->backend->ops->copy(stream, to, from, op->work, err);
  }
  const hk_kernel pull = {
      .kind = HK_KERNEL_PULL, .type = HK_GRAD_BF16, .n = op->work / 2, .grad = from, .w = to};
  return e->backend->ops->launch(stream, &pull, err);
}

/* -- Kernels ----------------------------------------------------------------------------------- */

/* AdamW on parameters first .. first + n - 1 of the slabs at `from`, the first of which is
 * parameter `index` of the subgroup; one launch for every parameter group. */
static hk_status launch_adamw(hk_engine *e, hk_state_subgroup *sub, const void *from, void *to,
                              int64_t first, int64_t index, int64_t n, hk_stream *stream,
                              hk_error *err) {
  const bool deepspeed = e->plan.runtime == HK_RUNTIME_DEEPSPEED;
  const hk_grad_type type = deepspeed ? HK_GRAD_FP32 : e->options.grad_type;
  const char *grads = deepspeed
                          ? (const char *)e->grads32
                          : e->device_grads + (size_t)(sub->device_at + index) * hk_grad_size(type);
  const int64_t flat = sub->offset + index;
  for (int64_t done = 0; done < n;) {
    const hk_group_run g = hk_engine_group_run(e, flat + done, flat + n);
    const hk_kernel kernel = {.kind = HK_KERNEL_ADAMW,
                              .type = type,
                              .n = g.end - flat - done,
                              .grad = grads + (size_t)done * hk_grad_size(type),
                              .step = e->steps[g.group],
                              .shape = e->state.shape,
                              .first = first + done,
                              .from = from,
                              .to = to,
                              .w = e->device_weights + flat + done,
                              .mapped = sub->route == HK_ROUTE_MAPPED};
    HK_TRY(e->backend->ops->launch(stream, &kernel, err));
    if (sub->route == HK_ROUTE_RESIDENT) sub->touched = e->attempt;
    done += kernel.n;
  }
  return HK_OK;
}

/* DeepSpeed's kernel takes fp32 gradients: a copy of the subgroup's. */
static hk_status cast_gradients(hk_engine *e, const hk_state_subgroup *sub, int64_t n,
                                hk_stream *stream, hk_error *err) {
  const hk_kernel cast = {
      .kind = HK_KERNEL_CAST_UP,
      .type = e->options.grad_type,
      .n = n,
      .grad = e->device_grads + (size_t)sub->device_at * hk_grad_size(e->options.grad_type),
      .out = e->grads32};
  return e->backend->ops->launch(stream, &cast, err);
}

static hk_status update_on_gpu(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  hk_state_subgroup *sub = subgroup_of(e, op);
  const int64_t n = op->work;
  if (e->plan.runtime == HK_RUNTIME_DEEPSPEED) HK_TRY(cast_gradients(e, sub, n, stream, err));
  void *slabs = sub->route == HK_ROUTE_STAGED ? staging_of(e, id) : e->state.home[sub->first];
  HK_TRY(launch_adamw(e, sub, slabs, slabs, 0, op->offset, n, stream, err));
  if (sub->route == HK_ROUTE_RESIDENT && ends_subgroup(e, op, n)) {
    return sign_by_kernel(e, op, stream, err);
  }
  return HK_OK;
}

static hk_status update_mapped(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  hk_state_subgroup *sub = subgroup_of(e, op);
  const int64_t end = op->offset + op->work;
  for (int64_t offset = op->offset; offset < end;) {
    const hk_slab_run run = hk_state_run(&e->state, (size_t)op->subgroup, offset, end);
    HK_TRY(launch_adamw(e, sub, e->state.home[run.slab], e->state.next[run.slab], run.at, offset,
                        run.n, stream, err));
    offset += run.n;
  }
  return ends_subgroup(e, op, op->work) ? sign_by_kernel(e, op, stream, err) : HK_OK;
}

static hk_status act_on_device(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  const bool apart = e->plan.runtime == HK_RUNTIME_DEEPSPEED; /* p, m and v each have a lane */
  const int64_t n = op->work / (apart ? 4 : 12);
  const int part = apart ? op->piece : -1;
  switch (op->kind) {
    case HK_OP_WEIGHT_H2D:
    case HK_OP_WEIGHT_H2D_PAGEABLE:
      return send_weights(e, id, stream, err);
    case HK_OP_STATE_H2D:
      return copy_state(e, id, n, part, true, stream, err);
    case HK_OP_STATE_D2H:
      HK_TRY(copy_state(e, id, n, part, false, stream, err));
      return ends_subgroup(e, op, n) ? sign_by_copy(e, op, apart ? part : 0, stream, err) : HK_OK;
    case HK_OP_ADAMW_GPU:
      return update_on_gpu(e, id, stream, err);
    case HK_OP_ADAMW_MAPPED:
      return update_mapped(e, id, stream, err);
    default:
      return hk_fail(err, HK_INPUT, "the engine does not do '%s' in an update",
                     hk_op_kind_name(op->kind));
  }
}

hk_status hk_engine_act(void *arg, int32_t op, hk_stream *stream, hk_error *err) {
  if (stream != NULL) return act_on_device(arg, op, stream, err);
  act_on_cpu(arg, op);
  return HK_OK;
}

void hk_engine_join(void *arg, hk_lane_kind lane) {
  const hk_engine *e = arg;
  if (lane == HK_LANE_CPU) hk_team_join(e->team);
}
