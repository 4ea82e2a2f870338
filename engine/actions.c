/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation of the graph does. sim/demand.c says what it costs. */
#include <string.h>

#include "core/bytes.h"
#include "engine/private.h"

static hk_state_subgroup *subgroup_of(const hk_engine *e, const hk_op *op) {
  return &e->state.subgroups[op->subgroup];
}

int64_t hk_engine_op_numel(const hk_engine *e, const hk_op *op) {
  const hk_state_subgroup *sub = subgroup_of(e, op);
  return hk_min(sub->piece, sub->numel - op->offset);
}

char *hk_engine_segment_grads(const hk_engine *e, const hk_param_segment *segment) {
  const bool on_device = e->state.images[segment->image].on_device;
  return (on_device ? e->device_grads : (char *)e->grads) + segment->at;
}

char *hk_engine_weight_at(const hk_engine *e, int32_t param, int64_t at) {
  const hk_param *p = &e->params[param];
  if (e->training == NULL) return (char *)(e->device_weights + at);
  if (p->weight == NULL) return NULL;
  const int64_t index = at - (e->param_end[param] - p->numel);
  return (char *)p->weight + (size_t)index * hk_grad_size(p->weight_type);
}

/* Consecutive parameters of one segment. */
typedef struct {
  const hk_param_segment *segment;
  const hk_param *param;
  int64_t n;
} param_run;

static param_run param_run_at(const hk_engine *e, int64_t at, int64_t end) {
  const hk_param_segment *s = &e->state.segments[hk_state_segment(&e->state, at)];
  return (param_run){s, &e->params[s->param], hk_min(end, s->offset + s->n) - at};
}

/* Address of the gradient of parameter `at` (flat order) of a run. */
static const char *grad_at(const hk_engine *e, const param_run *run, int64_t at) {
  return hk_engine_segment_grads(e, run->segment) +
         (size_t)(at - run->segment->offset) * hk_grad_size(run->param->grad_type);
}

/* -- Work of the CPU team ---------------------------------------------------------------------- */

/* Most parameters that a thread takes at a time: 1 MiB of p, m, v, gradients and weights. */
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
  uint16_t *to;  /* weights of parameters `begin` and on; NULL: none */
  double rate;   /* most parameters a second; 0: no limit */
  hk_ns started; /* with a limit: parameter `begin` + i is not begun before started + i / rate */
};

static void chunk_by_runs(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const team_work *w = arg;
  const int64_t first = hk_chunk_begin(&w->chunks, chunk);
  const int64_t end = w->begin + hk_chunk_begin(&w->chunks, chunk + 1);
  if (w->rate > 0) hk_engine_sleep_until(w->e, w->started + (hk_ns)((double)first / w->rate * 1e9));
  for (int64_t at = w->begin + first; at < end;) {
    const hk_slab_run run = hk_state_run(&w->e->state, w->s, at, end);
    w->work(w, &run);
    at += run.n;
  }
}

/* Copies the state of a tensor without a gradient from `home` to `other`, unchanged. */
static void keep_run(const hk_engine *e, const hk_slab_run *run, int64_t done, int64_t n) {
  const hk_slab_shape *shape = &e->state.shape;
  for (int part = 0; part < 3; part++) {
    const float *from = hk_slab_part(shape, e->state.home[run->slab], part, run->at + done);
    float *to = hk_slab_part(shape, e->state.other[run->slab], part, run->at + done);
    memcpy(to, from, (size_t)n * sizeof *to);
  }
}

/* AdamW on n parameters of one segment, from index `done` of the run on. */
static void adamw_segment(const team_work *w, const hk_slab_run *run, int64_t done, int64_t n,
                          hk_grad_type type, const void *grad, const hk_adamw_step *step,
                          uint16_t *to) {
  const hk_engine *e = w->e;
  const hk_slab_shape *shape = &e->state.shape;
  void *slab = e->state.home[run->slab];
  const int64_t at = run->at + done;
  float *p = hk_slab_part(shape, slab, 0, at), *m = hk_slab_part(shape, slab, 1, at),
        *v = hk_slab_part(shape, slab, 2, at);
  if (!w->sub->ahead) {
    e->kernels->adamw(step, type, n, p, m, v, grad, to);
    return;
  }
  void *other = e->state.other[run->slab];
  e->kernels->adamw_to(step, type, n, p, m, v, hk_slab_part(shape, other, 0, at),
                       hk_slab_part(shape, other, 1, at), hk_slab_part(shape, other, 2, at), grad,
                       to);
}

static void adamw_run(const team_work *w, const hk_slab_run *run) {
  const hk_engine *e = w->e;
  const bool deepspeed = e->plan.runtime == HK_RUNTIME_DEEPSPEED;
  const int64_t flat = w->sub->offset + run->offset;
  for (int64_t done = 0; done < run->n;) {
    const param_run r = param_run_at(e, flat + done, flat + run->n);
    const hk_grad_type type = deepspeed ? HK_GRAD_FP32 : r.param->grad_type;
    const void *grad = deepspeed
                           ? (const char *)((const float *)e->grads +
                                            hk_state_host_at(&e->state, w->sub, run->offset + done))
                           : grad_at(e, &r, flat + done);
    const bool rounded = w->to != NULL && r.param->weight_type == HK_GRAD_BF16;
    if (e->active[r.segment->param]) {
      adamw_segment(w, run, done, r.n, type, grad, &w->steps[r.segment->param],
                    rounded ? w->to + run->offset - w->begin + done : NULL);
    } else if (w->sub->ahead) {
      keep_run(e, run, done, r.n);
    }
    done += r.n;
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

/* Lets the team do `work` on the operation's part of its subgroup; new weights go to `to`. */
static void share_out(hk_engine *e, const hk_op *op, run_work work, const hk_adamw_step *steps,
                      uint16_t *to) {
  team_work w = {.e = e,
                 .work = work,
                 .sub = subgroup_of(e, op),
                 .s = (size_t)op->subgroup,
                 .begin = op->offset,
                 .chunks = hk_chunks_of(op->work, MOST_CHUNK, hk_team_threads(e->team)),
                 .steps = steps,
                 .to = to,
                 .rate = work == adamw_run ? e->plan.pace.cpu : 0};
  if (w.rate > 0) w.started = hk_engine_reserve(&e->paced_cpu, w.rate, op->work);
  hk_team_run(e->team, w.chunks.count, chunk_by_runs, &w);
}

/* Address of the weights of the operation's parameters in the host's array. */
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
      /* DeepSpeed's prototype sends weights that it has not cast; this engine casts them first. */
      share_out(e, op, adamw_run, e->unscaled, e->weights != NULL ? host_weights(e, op) : NULL);
      break;
    case HK_OP_UNSCALE_CPU:
      share_out(e, op, unscale_run, e->steps, NULL);
      break;
    case HK_OP_CAST_CPU:
      share_out(e, op, cast_run, NULL, e->pageable);
      break;
    default: /* barriers and bookkeeping operations do nothing; they have no subgroup */
      break;
  }
}

/* -- Copies ------------------------------------------------------------------------------------ */

static char *staging_of(const hk_engine *e, int32_t id) {
  return e->staging + e->buffer[id] * e->state.slabs_a_piece * e->state.shape.bytes;
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
 * adjacent slabs by one copy. `part`: 0 p, 1 m, 2 v, or -1 for all three. */
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
      HK_TRY(hk_engine_copy_paced(e, stream, in ? staging + at : slab, in ? slab : staging + at,
                                  bytes, in, err));
    }
    staging += row * shape->bytes;
    offset += whole ? row * shape->numel : run.n;
  }
  return HK_OK;
}

/* Address at which the arrival of a write-back, or of one part of it, is noted: the attempt's
 * number is written there. */
static int64_t *sign_of(const hk_engine *e, const hk_op *op, int part) {
  return (int64_t *)e->arrived + 3 * op->subgroup + part;
}

/* Notes the arrival behind a write-back by copies, on the same stream. */
static hk_status sign_by_copy(hk_engine *e, const hk_op *op, int part, hk_stream *stream,
                              hk_error *err) {
  int64_t *arrived = sign_of(e, op, part);
  return e->backend->ops->copy(stream, arrived, e->device_ticket, sizeof *arrived, err);
}

/* Notes the end of an update in place. A copy would wait for all state copies queued before it for
 * the copy engine, and would delay the next updates. */
static hk_status sign_by_kernel(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  const hk_kernel sign = {
      .kind = HK_KERNEL_SIGN, .n = 1, .from = e->device_ticket, .to = sign_of(e, op, 0)};
  return e->backend->ops->launch(stream, &sign, err);
}

static bool ends_subgroup(const hk_engine *e, const hk_op *op, int64_t n) {
  return op->offset + n == subgroup_of(e, op)->numel;
}

/* Segments for one launch of HK_KERNEL_SCATTER. Those that read host memory (`mapped`) are cut into
 * parts if the plan limits copies to the device. */
typedef struct {
  hk_segment segments[HK_SEGMENTS_MOST];
  int n;
  int64_t values;
  bool lent; /* hk_kernel.lent */
} scatter_batch;

static hk_status scatter_now(hk_engine *e, scatter_batch *b, bool mapped, hk_stream *stream,
                             hk_error *err) {
  const hk_kernel scatter = {.kind = HK_KERNEL_SCATTER,
                             .n = b->values,
                             .segments = b->segments,
                             .n_segments = b->n,
                             .mapped = mapped,
                             .lent = b->lent};
  const bool any = b->n > 0;
  if (any && mapped) hk_engine_pace(e, HK_BYTES_BF16 * b->values, true);
  b->n = 0;
  b->values = 0;
  return any ? e->backend->ops->launch(stream, &scatter, err) : HK_OK;
}

static hk_status scatter_add(hk_engine *e, scatter_batch *b, const hk_segment *segment, bool mapped,
                             hk_stream *stream, hk_error *err) {
  const int64_t most = mapped ? hk_engine_paced_part(e, true) / (hk_bytes)HK_BYTES_BF16 : INT64_MAX;
  for (int64_t done = 0, n; done < segment->n; done += n) {
    n = hk_min(segment->n - done, most);
    if (b->n == HK_SEGMENTS_MOST || (b->n > 0 && b->values > most - n))
      HK_TRY(scatter_now(e, b, mapped, stream, err));
    hk_segment *part = &b->segments[b->n++];
    *part = *segment;
    part->from = (const char *)segment->from + (size_t)done * hk_grad_size(segment->from_type);
    part->to = (char *)segment->to + (size_t)done * hk_grad_size(segment->to_type);
    part->n = n;
    b->values += n;
  }
  return HK_OK;
}

/* Adds to the batch: master weights of parameters at .. at + n - 1 (flat order, one tensor), to be
 * rounded to the tensor's type. `slabs`: the addresses to read from, `home` or `other` of hk_state.
 */
static hk_status scatter_masters(hk_engine *e, scatter_batch *b, int32_t param, size_t s,
                                 int64_t at, int64_t n, void *const *slabs, bool mapped,
                                 hk_stream *stream, hk_error *err) {
  const int64_t base = e->state.subgroups[s].offset;
  for (int64_t end = at + n; at < end;) {
    const hk_slab_run run = hk_state_run(&e->state, s, at - base, end - base);
    const hk_segment segment = {.from = hk_slab_part(&e->state.shape, slabs[run.slab], 0, run.at),
                                .to = hk_engine_weight_at(e, param, at),
                                .n = run.n,
                                .from_type = HK_GRAD_FP32,
                                .to_type = e->params[param].weight_type};
    HK_TRY(scatter_add(e, b, &segment, mapped, stream, err));
    at += run.n;
  }
  return HK_OK;
}

/* Fewest bytes that are worth a copy of their own, which takes some microseconds to start; smaller
 * parts of tensors share a launch. */
#define LEAST_COPY (256 * HK_KIB)

/* Address at which the early weights of the operation's piece wait in device memory. */
static uint16_t *early_weights(const hk_engine *e, const hk_op *op) {
  return e->early + subgroup_of(e, op)->early_at + op->offset;
}

/* Copies the bf16 weights of a whole piece to device memory, if there is some for it. Those of
 * tensors of other types are meaningless and are not used. Always a copy: most early weights go up
 * during backward, when no state is copied. */
static hk_status send_early(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  void *to = early_weights(e, op);
  if (subgroup_of(e, op)->lent) HK_TRY(hk_lent_take(e, id, stream, &to, err));
  if (to == NULL) return HK_OK;
  return hk_engine_copy_paced(e, stream, to, host_weights(e, op),
                              HK_BYTES_BF16 * hk_engine_op_numel(e, op), true, err);
}

/* Which of a piece's weights are written to the tensors. */
typedef enum { WEIGHTS_ALL, WEIGHTS_BF16, WEIGHTS_NOT_BF16 } weights_part;

/* Writes new weights of a piece of route cpu to the tensors. bf16 weights come from `weights`, in
 * registered host memory if `mapped`, else in device memory. Weights of other types are rounded
 * from the master weights. */
static hk_status scatter_from(hk_engine *e, const hk_op *op, weights_part which,
                              const uint16_t *weights, bool mapped, hk_stream *stream,
                              hk_error *err) {
  const hk_state_subgroup *sub = subgroup_of(e, op);
  const int64_t begin = sub->offset + op->offset, end = begin + hk_engine_op_numel(e, op);
  void *const *slabs = sub->ahead ? e->state.other : e->state.home;
  scatter_batch batch = {.lent = which == WEIGHTS_BF16}, masters = {.n = 0};
  for (int64_t at = begin; at < end;) {
    const param_run r = param_run_at(e, at, end);
    const int32_t param = r.segment->param;
    const int64_t from = at;
    at += r.n;
    const bool bf16 = r.param->weight_type == HK_GRAD_BF16;
    if (!e->active[param] || r.param->weight == NULL) continue;
    if (which == (bf16 ? WEIGHTS_NOT_BF16 : WEIGHTS_BF16)) continue;
    if (!bf16) {
      HK_TRY(scatter_masters(e, &masters, param, (size_t)op->subgroup, from, r.n, slabs, true,
                             stream, err));
      continue;
    }
    const hk_segment segment = {
        .from = weights + (from - begin), .to = hk_engine_weight_at(e, param, from), .n = r.n};
    const hk_bytes bytes = HK_BYTES_BF16 * r.n;
    if (mapped && !e->graph.weights_pulled && bytes >= LEAST_COPY) {
      HK_TRY(hk_engine_copy_paced(e, stream, segment.to, segment.from, bytes, true, err));
    } else {
      HK_TRY(scatter_add(e, &batch, &segment, mapped, stream, err));
    }
  }
  HK_TRY(scatter_now(e, &masters, true, stream, err));
  return scatter_now(e, &batch, mapped, stream, err);
}

/* New weights come from the host's array, where AdamW has written them, or, if early, from device
 * memory. */
static hk_status scatter_weights(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err) {
  const hk_state_subgroup *sub = subgroup_of(e, op);
  if (sub->early && !sub->lent) {
    return scatter_from(e, op, WEIGHTS_ALL, early_weights(e, op), false, stream, err);
  }
  const bool placed = sub->lent && hk_lent_has(e, op); /* hk_engine_place_lent has written them */
  return scatter_from(e, op, placed ? WEIGHTS_NOT_BF16 : WEIGHTS_ALL, host_weights(e, op), true,
                      stream, err);
}

hk_status hk_engine_place_lent(hk_engine *e, const hk_op *op, const void *weights,
                               hk_stream *stream, hk_error *err) {
  return scatter_from(e, op, WEIGHTS_BF16, weights, false, stream, err);
}

/* hocket's runtime uses a kernel, unless graph.weights_pulled is false. A copy would wait behind
 * all state copies queued for the copy engine, so that the last weights would arrive after
 * everything else. */
static hk_status send_weights(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err) {
  const hk_op *op = &e->graph.ops[id];
  if (e->training != NULL && subgroup_of(e, op)->early) return send_early(e, id, stream, err);
  if (e->training != NULL) return scatter_weights(e, op, stream, err);
  const hk_state_subgroup *sub = subgroup_of(e, op);
  const uint16_t *from = e->weights != NULL ? host_weights(e, op) : e->pageable;
  uint16_t *to = e->device_weights + sub->offset + op->offset;
  if (e->plan.runtime == HK_RUNTIME_DEEPSPEED) {
    return e->backend->ops->copy(stream, to, from, op->work, err);
  }
  const int64_t n = op->work / 2, most = hk_engine_paced_part(e, true) / 2;
  for (int64_t done = 0, part; done < n; done += part) {
    part = hk_min(n - done, most);
    const hk_kernel pull = {.kind = HK_KERNEL_PULL,
                            .type = HK_GRAD_BF16,
                            .n = part,
                            .grad = from + done,
                            .w = to + done};
    hk_engine_pace(e, 2 * part, true);
    HK_TRY(e->backend->ops->launch(stream, &pull, err));
  }
  return HK_OK;
}

/* -- Kernels ----------------------------------------------------------------------------------- */

/* Copies the state of a mapped subgroup's tensor without a gradient to its new place, unchanged. */
static hk_status keep_mapped(hk_engine *e, const void *from, void *to, int64_t first, int64_t n,
                             hk_stream *stream, hk_error *err) {
  const hk_slab_shape *shape = &e->state.shape;
  const hk_bytes parts[3] = {0, shape->m, shape->v};
  for (int part = 0; part < 3; part++) {
    const hk_bytes at = parts[part] + 4 * first;
    HK_TRY(e->backend->ops->copy(stream, (char *)to + at, (const char *)from + at, 4 * n, err));
  }
  return HK_OK;
}

/* Whether two neighbouring runs can be one launch: their constants are equal, and their gradients
 * and weights are adjacent in memory. */
static bool runs_join(const hk_engine *e, const param_run *a, const param_run *b, int64_t at) {
  const int32_t p = a->segment->param, q = b->segment->param;
  if (p == q) return true;
  if (!e->active[p] || !e->active[q] || a->param->grad_type != b->param->grad_type) return false;
  if (!hk_adamw_step_same(&e->steps[p], &e->steps[q])) return false;
  if (e->training == NULL) return true;
  return a->param->weight_type == HK_GRAD_BF16 && b->param->weight_type == HK_GRAD_BF16 &&
         a->segment->image == b->segment->image && a->param->weight != NULL &&
         b->param->weight != NULL && hk_engine_weight_at(e, p, at) == hk_engine_weight_at(e, q, at);
}

/* AdamW on parameters first .. first + n - 1 of the slabs at `from`, the first of which is
 * parameter `index` of the subgroup; one launch for every run of parameters with the same
 * constants. */
static hk_status launch_adamw(hk_engine *e, hk_state_subgroup *sub, const void *from, void *to,
                              int64_t first, int64_t index, int64_t n, hk_stream *stream,
                              hk_error *err) {
  const bool deepspeed = e->plan.runtime == HK_RUNTIME_DEEPSPEED;
  const int64_t flat = sub->offset + index;
  for (int64_t done = 0; done < n;) {
    const param_run r = param_run_at(e, flat + done, flat + n);
    const int32_t param = r.segment->param;
    int64_t length = r.n;
    while (done + length < n) {
      const param_run next = param_run_at(e, flat + done + length, flat + n);
      if (!runs_join(e, &r, &next, flat + done + length)) break;
      length += next.n;
    }
    const bool rounded = r.param->weight_type == HK_GRAD_BF16;
    const hk_kernel kernel = {
        .kind = HK_KERNEL_ADAMW,
        .type = deepspeed ? HK_GRAD_FP32 : r.param->grad_type,
        .n = length,
        .grad = deepspeed ? (const char *)(e->grads32 + done) : grad_at(e, &r, flat + done),
        .step = e->steps[param],
        .shape = e->state.shape,
        .first = first + done,
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
    done += length;
  }
  return HK_OK;
}

/* After the update of parameters index .. index + n - 1 of subgroup s: writes the weights of
 * tensors that are not bf16. Master weights are read from consecutive slabs at `slabs`, or, if that
 * is NULL, from the state's new places. */
static hk_status round_masters(hk_engine *e, size_t s, int64_t index, int64_t n, char *slabs,
                               hk_stream *stream, hk_error *err) {
  if (e->training == NULL) return HK_OK;
  const hk_state_subgroup *sub = &e->state.subgroups[s];
  const hk_slab_shape *shape = &e->state.shape;
  const int64_t begin = sub->offset + index, end = begin + n;
  const bool mapped = sub->route == HK_ROUTE_MAPPED;
  scatter_batch batch = {.n = 0};
  for (int64_t at = begin; at < end;) {
    const param_run r = param_run_at(e, at, end);
    const int32_t param = r.segment->param;
    const int64_t stop = at + r.n;
    const bool any =
        e->active[param] && r.param->weight != NULL && r.param->weight_type != HK_GRAD_BF16;
    while (any && at < stop) {
      const int64_t i = at - begin; /* index in the consecutive slabs */
      const hk_slab_run run = hk_state_run(&e->state, s, at - sub->offset, stop - sub->offset);
      const int64_t inside = i % shape->numel;
      const int64_t part = slabs != NULL ? hk_min(stop - at, shape->numel - inside) : run.n;
      const float *p =
          slabs != NULL ? (const float *)(void *)(slabs + i / shape->numel * shape->bytes) + inside
                        : hk_slab_part(shape, e->state.next[run.slab], 0, run.at);
      const hk_segment segment = {.from = p,
                                  .to = hk_engine_weight_at(e, param, at),
                                  .n = part,
                                  .from_type = HK_GRAD_FP32,
                                  .to_type = r.param->weight_type};
      HK_TRY(scatter_add(e, &batch, &segment, mapped, stream, err));
      at += part;
    }
    at = stop;
  }
  return scatter_now(e, &batch, mapped, stream, err);
}

/* Casts a subgroup's gradients to fp32, which DeepSpeed's kernel takes. */
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
  HK_TRY(round_masters(e, (size_t)op->subgroup, op->offset, n, slabs, stream, err));
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
  HK_TRY(round_masters(e, (size_t)op->subgroup, op->offset, op->work, NULL, stream, err));
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
    case HK_OP_WEIGHT_PLACE:
      return scatter_weights(e, op, stream, err);
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
      if (op->kind == HK_OP_GRAD_D2H) return hk_training_flush_op(e, id, stream, err);
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
