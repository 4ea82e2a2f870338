/* SPDX-License-Identifier: Apache-2.0 */
/* Master weights from the framework's weights and back, outside of steps. */
#include <stdlib.h>

#include "engine/train/training_private.h"

/* Number of values converted at a time, and of them per chunk of the team. */
#define SPAN  ((int64_t)1 << 23)
#define CHUNK ((int64_t)1 << 16)

typedef struct {
  const hk_cpu_kernels *kernels;
  hk_grad_type type;
  int64_t n;
  const char *from;
  float *to;
} widening;

static void widen_chunk(void *arg, int64_t c, int thread) {
  (void)thread;
  const widening *w = arg;
  const int64_t at = c * CHUNK;
  w->kernels->cast_up(w->type, hk_min(CHUNK, w->n - at),
                      w->from + (size_t)at * hk_grad_size(w->type), w->to + at);
}

/* Sets the master weights of one tensor; `raw` and `wide` have room for SPAN values each. */
static hk_status widen_param(hk_engine *e, size_t param, hk_stream *stream, char *raw, float *wide,
                             hk_error *err) {
  const hk_param *p = &e->params[param];
  const int64_t begin = e->flat_end[param] - p->numel;
  const hk_bytes size = (hk_bytes)hk_grad_size(p->weight_type);
  for (int64_t done = 0; done < p->numel; done += SPAN) {
    const int64_t n = hk_min(SPAN, p->numel - done);
    HK_TRY(
        e->backend->ops->copy(stream, raw, (const char *)p->weight + done * size, n * size, err));
    HK_TRY(e->backend->ops->stream_sync(stream, err));
    widening w = {.kernels = e->kernels, .type = p->weight_type, .n = n, .from = raw, .to = wide};
    hk_team_run(e->team, (n + CHUNK - 1) / CHUNK, widen_chunk, &w);
    HK_TRY(hk_engine_write(e, HK_STATE_P, begin + done, n, wide, err));
  }
  return HK_OK;
}

/* *first .. *end - 1: the tensor `param`, or all tensors for -1. */
static hk_status param_range(const hk_engine *e, int64_t param, size_t *first, size_t *end,
                             hk_error *err) {
  if (param < -1 || param >= (int64_t)e->n_params) {
    return hk_fail(err, HK_INPUT, "no tensor %lld: there are %zu, counted from 0", (long long)param,
                   e->n_params);
  }
  *first = param < 0 ? 0 : (size_t)param;
  *end = param < 0 ? e->n_params : (size_t)param + 1;
  return HK_OK;
}

static hk_status check_weights(const hk_engine *e, size_t first, size_t end, hk_error *err) {
  for (size_t p = first; p < end; p++) {
    if (e->params[p].weight != NULL) continue;
    return hk_fail(err, HK_INPUT, "tensor %zu has no weights: give their address first", p);
  }
  return HK_OK;
}

hk_status hk_engine_masters(hk_engine *e, int64_t param, void *native, hk_error *err) {
  struct hk_training *t = e->training;
  size_t first = 0, end = 0;
  HK_TRY(param_range(e, param, &first, &end, err));
  HK_TRY(check_weights(e, first, end, err));
  HK_TRY(hk_training_quiet(e, err));
  HK_TRY(hk_engine_refuse_failed(e, err));
  pthread_mutex_lock(&t->lock);
  int64_t most = 0;
  for (size_t p = first; p < end; p++) most = hk_max(most, hk_min(SPAN, e->params[p].numel));
  char *raw = malloc(4 * (size_t)most);
  float *wide = malloc(4 * (size_t)most);
  hk_callers_stream *stream = NULL;
  hk_status status = raw != NULL && wide != NULL
                         ? hk_handover_stream(e, native, &stream, err)
                         : hk_fail_memory(err, 8 * (size_t)most, "weights to widen");
  for (size_t p = first; stream != NULL && p < end && status == HK_OK; p++) {
    status = widen_param(e, p, stream->stream, raw, wide, err);
  }
  free(raw);
  free(wide);
  if (status != HK_OK) e->failed = true; /* the masters are a mixture */
  pthread_mutex_unlock(&t->lock);
  return status;
}

/* -- Weights from masters ---------------------------------------------------------------------- */

static hk_status round_param(hk_engine *e, size_t param, hk_stream *stream, hk_error *err) {
  const hk_param *p = &e->params[param];
  const int64_t end = e->param_end[param];
  if (p->weight == NULL) return HK_OK;
  for (int64_t at = end - p->numel; at < end;) {
    const size_t s = hk_state_find(&e->state, at);
    const hk_state_subgroup *sub = &e->state.subgroups[s];
    const hk_slab_run run =
        hk_state_run(&e->state, s, at - sub->offset, hk_min(end - sub->offset, sub->numel));
    const hk_segment segment = {
        .from = hk_slab_at(&e->state.shape, e->state.home[run.slab], run.at).p,
        .to = hk_engine_weight_at(e, (int32_t)param, at),
        .n = run.n,
        .from_type = hk_format_is_split(e->state.shape.format) ? HK_GRAD_BF16 : HK_GRAD_FP32,
        .to_type = p->weight_type};
    const hk_kernel scatter = {.kind = HK_KERNEL_SCATTER,
                               .n = run.n,
                               .segments = &segment,
                               .n_segments = 1,
                               .mapped = sub->route != HK_ROUTE_RESIDENT};
    HK_TRY(e->backend->ops->launch(stream, &scatter, err));
    at += run.n;
  }
  return HK_OK;
}

hk_status hk_engine_weights_from_masters(hk_engine *e, int64_t param, void *native, hk_error *err) {
  struct hk_training *t = e->training;
  size_t first = 0, end = 0;
  HK_TRY(param_range(e, param, &first, &end, err));
  HK_TRY(hk_training_quiet(e, err));
  HK_TRY(hk_engine_refuse_failed(e, err));
  pthread_mutex_lock(&t->lock);
  hk_callers_stream *stream = NULL;
  hk_status status = hk_handover_stream(e, native, &stream, err);
  for (size_t p = first; stream != NULL && p < end && status == HK_OK; p++) {
    status = round_param(e, p, stream->stream, err);
  }
  if (stream != NULL && status == HK_OK) {
    status = e->backend->ops->stream_sync(stream->stream, err);
  }
  pthread_mutex_unlock(&t->lock);
  return status;
}
