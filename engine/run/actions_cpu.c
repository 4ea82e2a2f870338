/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW by the CPU team. */
#include <string.h>

#include "engine/run/actions_private.h"

/* Most parameters that a thread takes at a time: 1 MiB of p, m, v, gradients and weights. */
#define MOST_CHUNK ((int64_t)1 << 16)

typedef struct {
  const hk_engine *e;
  const hk_state_subgroup *sub;
  size_t s;
  int64_t begin; /* inside the subgroup; no piece's end lies inside the work */
  hk_chunks chunks;
  const hk_adamw_step *steps; /* [param] */
  uint16_t *to;               /* weights of parameters `begin` and on; NULL: the state has them */
} team_work;

/* Copies the state of a tensor without a gradient from `home` to `other`, unchanged. */
static void keep_run(const hk_engine *e, const hk_slab_run *run, int64_t done, int64_t n) {
  hk_slab_array arrays[HK_SLAB_ARRAYS];
  const int n_arrays = hk_slab_arrays(&e->state.shape, arrays);
  for (int a = 0; a < n_arrays; a++) {
    const hk_bytes at = hk_slab_array_at(&arrays[a], run->at + done);
    memcpy((char *)e->state.other[run->slab] + at, (const char *)e->state.home[run->slab] + at,
           (size_t)hk_slab_array_bytes(&arrays[a], n));
  }
}

/* AdamW on n parameters of one segment, from index `done` of the run on. */
static void adamw_segment(const team_work *w, const hk_slab_run *run, int64_t done, int64_t n,
                          const hk_param_run *r, const void *grad, uint16_t *to) {
  const hk_engine *e = w->e;
  const hk_slab_shape *shape = &e->state.shape;
  const int32_t param = r->segment->param;
  const hk_state_at from = hk_slab_at(shape, e->state.home[run->slab], run->at + done);
  const hk_state_at into =
      hk_slab_at(shape, hk_state_written(&e->state, w->sub)[run->slab], run->at + done);
  const int64_t flat = w->sub->offset + run->offset + done;
  e->kernels->update(shape->format, &w->steps[param], r->param->grad_type, n, from, into, grad, to,
                     hk_engine_index_in_tensor(e, param, flat));
}

static void adamw_run(const team_work *w, const hk_slab_run *run) {
  const hk_engine *e = w->e;
  const int64_t flat = w->sub->offset + run->offset;
  for (int64_t done = 0; done < run->n;) {
    const hk_param_run r = hk_param_run_at(e, flat + done, flat + run->n);
    const bool rounded = r.param->weight_type == HK_GRAD_BF16 && w->to != NULL;
    if (e->active[r.segment->param]) {
      adamw_segment(w, run, done, r.n, &r, hk_param_run_grad(e, &r, flat + done),
                    rounded ? w->to + run->offset - w->begin + done : NULL);
    } else if (w->sub->ahead && !e->state.in_place) {
      keep_run(e, run, done, r.n);
    }
    done += r.places;
  }
}

static void adamw_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const team_work *w = arg;
  const int64_t first = hk_chunk_begin(&w->chunks, chunk);
  const int64_t end = w->begin + hk_chunk_begin(&w->chunks, chunk + 1);
  for (int64_t at = w->begin + first; at < end;) {
    const hk_slab_run run = hk_state_run(&w->e->state, w->s, at, end);
    adamw_run(w, &run);
    at += run.n;
  }
}

void hk_engine_update_on_cpu(hk_engine *e, const hk_op *op, const hk_adamw_step *steps) {
  team_work w = {.e = e,
                 .sub = hk_engine_subgroup(e, op),
                 .s = (size_t)op->subgroup,
                 .begin = op->offset,
                 .chunks = hk_chunks_of(op->work, MOST_CHUNK, hk_team_threads(e->team)),
                 .steps = steps,
                 .to = hk_engine_host_weights(e, op)};
  hk_team_run(e->team, w.chunks.count, adamw_chunk, &w);
}
