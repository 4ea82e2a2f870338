/* SPDX-License-Identifier: Apache-2.0 */
/* Trials: synthetic training for `hocket run`. */
#include "engine/trial.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/splitmix.h"
#include "engine/private.h"

/* SPAN: number of parameters of a tensor, which are made, given and compared at a time. CHUNK:
 * number that a thread takes. */
#define SPAN  ((int64_t)1 << 23)
#define CHUNK ((int64_t)1 << 16)
/* Number of values made from one random number; each divides CHUNK and SPAN. */
#define GRADS_A_DRAW   4
#define WEIGHTS_A_DRAW 2

struct hk_trial {
  hk_engine *engine;
  hk_trial_options options;
  int64_t numel;
  hk_team *team;       /* the engine's, between steps */
  hk_arena arena;      /* pinned; its memory is `span` or `grads` */
  float *span;         /* [SPAN] of state, on the way in or out */
  uint16_t *grads[2];  /* [SPAN]: one is made while the other is copied */
  hk_event *copied[2]; /* the last one of each */
  hk_stream *stream;   /* the default one, on which gradients are given */
  void *device;        /* [SPAN] gradients on the device */
  uint16_t *weights;   /* [numel] on the device: the tensors' */
  float *plain[3];     /* p, m, v of plain AdamW */
  uint16_t *plain_w;
  uint16_t *all_grads; /* [numel], when checking */
  hk_squares *squares; /* [team threads] */
  hk_adamw_step plain_step;
};

/* Start of a stream of random numbers; number i of it is hk_splitmix_mix(start + HK_SPLITMIX_STEP *
 * i), in whatever order threads compute them. */
static uint64_t stream_start(const hk_trial *t, uint64_t stream) {
  return hk_splitmix_mix(t->options.seed + HK_SPLITMIX_STEP * (stream + 1));
}

/* A weight uniformly distributed from -0.05 to 0.05, made of 32 random bits. */
static float weight(uint32_t bits) {
  return ((float)(int32_t)(bits >> 8) * 0x1p-24f - 0.5f) * 0.1f;
}

/* 16 random bits become a bf16 gradient: (bits & GRAD_KEPT) + GRAD_LEAST. Sign and significand are
 * random, and so are three bits of the exponent, so that magnitudes span eight powers of two,
 * around 2^-11. The addition never carries. */
#define GRAD_KEPT  0x83ff83ff83ff83ffu
#define GRAD_LEAST 0x3800380038003800u /* exponent 112 */

/* -- Work shared out over the engine's team ---------------------------------------------------- */

typedef struct {
  hk_trial *trial;
  int64_t begin, n, step;
  uint16_t *grads;
} span_work;

/* The last random number may make more values than there are parameters; the span has room for
 * them. */
static void make_weights(void *arg, int64_t c, int thread) {
  (void)thread;
  const span_work *w = arg;
  const int64_t end = hk_min((c + 1) * CHUNK, w->n);
  uint64_t counter = stream_start(w->trial, 0) +
                     HK_SPLITMIX_STEP * (uint64_t)((w->begin + c * CHUNK) / WEIGHTS_A_DRAW);
  float *span = w->trial->span;
  for (int64_t i = c * CHUNK; i < end; i += WEIGHTS_A_DRAW, counter += HK_SPLITMIX_STEP) {
    const uint64_t z = hk_splitmix_mix(counter);
    span[i] = weight((uint32_t)z);
    span[i + 1] = weight((uint32_t)(z >> 32));
  }
}

static void make_gradients(void *arg, int64_t c, int thread) {
  (void)thread;
  const span_work *w = arg;
  hk_trial *t = w->trial;
  const int64_t begin = c * CHUNK, end = hk_min(begin + CHUNK, w->n);
  uint64_t counter = stream_start(t, (uint64_t)w->step) +
                     HK_SPLITMIX_STEP * (uint64_t)((w->begin + begin) / GRADS_A_DRAW);
  for (int64_t i = begin; i < end; i += GRADS_A_DRAW, counter += HK_SPLITMIX_STEP) {
    const uint64_t four = (hk_splitmix_mix(counter) & GRAD_KEPT) + GRAD_LEAST;
    memcpy(w->grads + i, &four, sizeof four);
  }
  if (t->options.check) {
    memcpy(t->all_grads + w->begin + begin, w->grads + begin, 2 * (size_t)(end - begin));
  }
}

/* Plain AdamW on one chunk of the flat arrays, by the reference kernel. */
static void plain_chunk(void *arg, int64_t c, int thread) {
  (void)thread;
  const span_work *w = arg;
  hk_trial *t = w->trial;
  const int64_t at = c * CHUNK, n = hk_min(CHUNK, w->n - at);
  hk_adamw_scalar(&t->plain_step, HK_GRAD_BF16, n, t->plain[0] + at, t->plain[1] + at,
                  t->plain[2] + at, t->all_grads + at, t->plain_w + at);
  uint32_t key[2]; /* tensors have no names */
  hk_random_key(t->engine->options.seed, (uint64_t)(at / SPAN), t->engine->step, key);
  hk_format_round(t->engine->state.shape.format, key, at % SPAN, n, t->plain[0] + at,
                  t->plain[1] + at, t->plain[2] + at);
}

_Static_assert(SPAN % CHUNK == 0, "a chunk is of one tensor");

static void square_chunk(void *arg, int64_t c, int thread) {
  const span_work *w = arg;
  hk_trial *t = w->trial;
  const int64_t begin = c * CHUNK, n = w->n - begin < CHUNK ? w->n - begin : CHUNK;
  hk_squares_add(&t->squares[thread], HK_GRAD_BF16, n, t->all_grads + begin);
}

static void share_out(hk_trial *t, hk_team_work work, span_work *w) {
  w->trial = t;
  hk_team_run(t->team, (w->n + CHUNK - 1) / CHUNK, work, w);
}

/* -- The engine -------------------------------------------------------------------------------- */

/* The caller frees *params. */
static hk_status list_params(const hk_plan *plan, hk_param **params, size_t *n, hk_error *err) {
  int64_t numel = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) numel += plan->subgroups[s].numel;
  *n = (size_t)((numel + SPAN - 1) / SPAN);
  *params = calloc(*n, sizeof **params);
  if (*params == NULL) return hk_fail_memory(err, *n * sizeof **params, "a trial's tensors");
  for (size_t p = 0; p < *n; p++) {
    (*params)[p] = (hk_param){.numel = hk_min(SPAN, numel - (int64_t)p * SPAN),
                              .weight_type = HK_GRAD_BF16,
                              .grad_type = HK_GRAD_BF16};
  }
  return HK_OK;
}

hk_status hk_trial_measure(const hk_plan *plan, hk_engine_memory *memory, hk_error *err) {
  hk_param *params = NULL;
  size_t n = 0;
  HK_TRY(list_params(plan, &params, &n, err));
  const hk_status status = hk_engine_measure(plan, params, n, memory, err);
  for (size_t p = 0; p < n; p++) memory->device += 2 * params[p].numel;
  free(params);
  return status;
}

hk_status hk_trial_engine(const hk_plan *plan, const hk_engine_options *options, hk_engine **engine,
                          hk_error *err) {
  static const hk_adamw hyper = {
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  hk_engine_options own = *options;
  hk_engine_memory memory;
  hk_param *params = NULL;
  size_t n = 0;
  if (plan->overlap != HK_OVERLAP_NONE)
    return hk_fail(err, HK_INPUT,
                   "a trial's plan overlaps updates with computation, which it lacks");
  HK_TRY(hk_trial_measure(plan, &memory, err));
  HK_TRY(list_params(plan, &params, &n, err));
  if (own.backend_options.memory == 0) own.backend_options.memory = memory.device + 64 * HK_MIB;
  const hk_status status = hk_engine_create(plan, params, n, &hyper, 1, &own, engine, err);
  free(params);
  return status;
}

hk_bytes hk_trial_weight_bytes(const hk_trial *t) {
  return 2 * t->numel;
}

/* Gradients that one random number makes may exceed the tensor. */
static int64_t span_of(const hk_trial *t) {
  return (hk_min(t->numel, SPAN) + GRADS_A_DRAW - 1) / GRADS_A_DRAW * GRADS_A_DRAW;
}

hk_bytes hk_trial_buffer_bytes(const hk_trial *t) {
  return 2 * span_of(t);
}

/* -- Opening and closing ----------------------------------------------------------------------- */

/* For --check. */
static hk_status allocate_plain(hk_trial *t, hk_error *err) {
  const size_t n = (size_t)t->numel;
  bool there = (t->plain_w = malloc(2 * n)) != NULL;
  there = (t->all_grads = malloc(2 * n)) != NULL && there;
  for (int i = 0; i < 3; i++) there = (t->plain[i] = malloc(4 * n)) != NULL && there;
  t->squares = calloc((size_t)hk_team_threads(t->team), sizeof *t->squares);
  return there && t->squares != NULL
             ? HK_OK
             : hk_fail_memory(err, 16 * (unsigned long long)n, "a trial's arrays");
}

/* Allocates pinned memory: copies from pageable memory to a GPU take several times as long. */
static hk_status allocate(hk_trial *t, hk_error *err) {
  hk_backend *b = t->engine->backend;
  const int64_t span = span_of(t);
  HK_TRY(hk_arena_open(4 * span, t->team, t->engine->info.pci, &t->arena, err));
  HK_TRY(hk_arena_register(&t->arena, b, err));
  t->span = hk_arena_take(&t->arena, 4 * span, 4096);
  for (int i = 0; i < 2; i++) {
    t->grads[i] = (uint16_t *)t->span + i * span;
    HK_TRY(b->ops->event_open(b, true, &t->copied[i], err));
  }
  HK_TRY(b->ops->stream_adopt(b, NULL, &t->stream, err));
  HK_TRY(b->ops->alloc(b, 2 * span, &t->device, err));
  void *weights = NULL;
  HK_TRY(b->ops->alloc(b, hk_trial_weight_bytes(t), &weights, err));
  t->weights = weights;
  return t->options.check ? allocate_plain(t, err) : HK_OK;
}

/* Fills the master weights. */
static hk_status fill_masters(hk_trial *t, hk_error *err) {
  for (int64_t at = 0; at < t->numel; at += SPAN) {
    span_work w = {.begin = at, .n = hk_min(t->numel - at, SPAN)};
    share_out(t, make_weights, &w);
    HK_TRY(hk_engine_write(t->engine, HK_STATE_P, at, w.n, t->span, err));
  }
  return HK_OK;
}

/* Gives the tensors their weights, rounded from the master weights. */
static hk_status give_weights(hk_trial *t, hk_error *err) {
  for (size_t p = 0; p < hk_engine_params(t->engine); p++) {
    int64_t begin = 0;
    hk_engine_param(t->engine, p, &begin);
    HK_TRY(hk_engine_set_weight(t->engine, p, t->weights + begin, err));
  }
  return hk_engine_weights_from_masters(t->engine, -1, NULL, err);
}

static hk_status copy_state(hk_trial *t, hk_error *err) {
  for (int i = 0; i < 3; i++) {
    HK_TRY(hk_engine_read(t->engine, (hk_state_part)i, 0, t->numel, t->plain[i], err));
  }
  return HK_OK;
}

hk_status hk_trial_open(hk_engine *engine, const hk_trial_options *options, hk_trial **trial,
                        hk_error *err) {
  hk_trial *t = calloc(1, sizeof *t);
  if (t == NULL) return hk_fail_memory(err, sizeof *t, "a trial");
  t->engine = engine;
  t->options = *options;
  t->numel = hk_engine_numel(engine);
  t->team = engine->team;
  hk_status status = allocate(t, err);
  if (status == HK_OK && engine->step == 0) status = fill_masters(t, err);
  if (status == HK_OK) status = give_weights(t, err);
  if (status == HK_OK && options->check) status = copy_state(t, err);
  if (status != HK_OK) {
    hk_trial_close(t);
    return status;
  }
  *trial = t;
  return HK_OK;
}

void hk_trial_close(hk_trial *t) {
  if (t == NULL) return;
  hk_backend *b = t->engine->backend;
  hk_error ignored = {0};
  /* Waits for copies that are still queued after a failure. */
  if (t->stream != NULL) b->ops->stream_sync(t->stream, &ignored);
  if (t->stream != NULL) b->ops->stream_close(t->stream);
  for (int i = 0; i < 2; i++) b->ops->event_close(t->copied[i]);
  if (t->device != NULL) b->ops->release(b, t->device);
  if (t->weights != NULL) b->ops->release(b, t->weights);
  hk_arena_close(&t->arena);
  for (int i = 0; i < 3; i++) free(t->plain[i]);
  free(t->plain_w);
  free(t->all_grads);
  free(t->squares);
  free(t);
}

/* -- Steps ------------------------------------------------------------------------------------- */

/* One half of the host memory is filled while the other is
 * copied; `copied` says when a half may be reused (an event that was never recorded counts as
 * happened). The copy to `device` is ordered behind the last span's work by the stream. */
hk_status hk_trial_gradients(hk_trial *t, hk_error *err) {
  hk_engine *e = t->engine;
  const hk_backend_ops *ops = e->backend->ops;
  for (int64_t at = 0, half = 0; at < t->numel; at += SPAN, half ^= 1) {
    span_work w = {.begin = at,
                   .n = hk_min(t->numel - at, SPAN),
                   .step = e->step + 1,
                   .grads = t->grads[half]};
    HK_TRY(ops->event_sync(t->copied[half], err));
    share_out(t, make_gradients, &w);
    HK_TRY(ops->copy(t->stream, t->device, w.grads, 2 * w.n, err));
    HK_TRY(ops->record(t->stream, t->copied[half], err));
    const hk_gradient gradient = {at / SPAN, t->device};
    HK_TRY(hk_engine_gradients(e, &gradient, 1, NULL, err));
  }
  return HK_OK;
}

/* What is compared besides the parts of the state. */
#define WEIGHTS (HK_STATE_V + 1)

/* Reads parameters at .. at + n - 1 of one part into the span. */
static hk_status read_span(hk_trial *t, int part, int64_t at, int64_t n, hk_error *err) {
  const hk_backend_ops *ops = t->engine->backend->ops;
  if (part != WEIGHTS) return hk_engine_read(t->engine, (hk_state_part)part, at, n, t->span, err);
  HK_TRY(ops->copy(t->stream, t->span, t->weights + at, 2 * n, err));
  return ops->stream_sync(t->stream, err);
}

static hk_status compare(hk_trial *t, int part, const void *plain, size_t size, hk_error *err) {
  static const char *const names[] = {"p", "m", "v", "w"};
  for (int64_t at = 0; at < t->numel; at += SPAN) {
    const int64_t n = hk_min(t->numel - at, SPAN);
    const char *wanted = (const char *)plain + (size_t)at * size;
    HK_TRY(read_span(t, part, at, n, err));
    if (memcmp(t->span, wanted, (size_t)n * size) == 0) continue;
    int64_t i = 0;
    while (memcmp((char *)t->span + (size_t)i * size, wanted + (size_t)i * size, size) == 0) i++;
    uint32_t got = 0, right = 0;
    memcpy(&got, (char *)t->span + (size_t)i * size, size);
    memcpy(&right, wanted + (size_t)i * size, size);
    const int64_t parameter = at + i;
    const size_t s = hk_state_find(&t->engine->state, parameter);
    return hk_fail(
        err, HK_NO,
        "step %lld: %s of parameter %lld (subgroup %zu, route %s) is %#x, plain AdamW has "
        "%#x",
        (long long)t->engine->step, names[part], (long long)parameter, s,
        hk_route_name(t->engine->state.subgroups[s].route), got, right);
  }
  return HK_OK;
}

/* Computes the constants of the step that the engine has just taken, from the trial's own norm. */
static void prepare_plain(hk_trial *t) {
  const hk_engine *e = t->engine;
  span_work w = {.n = t->numel};
  hk_squares sum = {0};
  share_out(t, square_chunk, &w);
  for (int i = 0; i < hk_team_threads(t->team); i++) {
    hk_squares_merge(&sum, &t->squares[i]);
    t->squares[i] = (hk_squares){0};
  }
  const double scale = hk_grad_scale(hk_squares_value(&sum), t->options.max_norm, 1);
  t->plain_step = hk_adamw_prepare(&e->groups[0], e->step, scale);
}

static hk_status check_step(hk_trial *t, hk_error *err) {
  span_work w = {.n = t->numel};
  prepare_plain(t);
  share_out(t, plain_chunk, &w);
  for (int i = 0; i < 3; i++) HK_TRY(compare(t, i, t->plain[i], 4, err));
  return compare(t, WEIGHTS, t->plain_w, 2, err);
}

hk_status hk_trial_step(hk_trial *t, hk_timeline *timeline, hk_step_report *report, hk_error *err) {
  HK_TRY(hk_trial_gradients(t, err));
  const hk_step_options options = {.max_norm = t->options.max_norm, .timeline = timeline};
  HK_TRY(hk_engine_step(t->engine, &options, report, NULL, err));
  return t->options.check ? check_step(t, err) : HK_OK;
}
