/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Trials: made-up training for `hocket run`. */
#include "engine/trial.h"

#include <stdlib.h>
#include <string.h>

#include "engine/private.h"

/* Parameters made, given and compared at a time, and the part of them that a thread takes. */
#define SPAN  ((int64_t)1 << 24)
#define CHUNK ((int64_t)1 << 16)

struct hk_trial {
  hk_engine *engine;
  hk_trial_options options;
  int64_t numel;
  hk_team *team;   /* the engine's, between steps */
  uint16_t *grads; /* [SPAN] */
  void *device;    /* [SPAN] gradients on the device */
  float *span;     /* [SPAN] of state, on the way in or out */
  float *plain[3]; /* p, m, v of plain AdamW */
  uint16_t *plain_w;
  uint16_t *all_grads;  /* [numel], when checking */
  hk_squares *squares;  /* [team threads] */
  hk_adamw_step *steps; /* [group] */
};

/* SplitMix64's mixing function of a counter: the same value whoever asks in whatever order. */
static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static uint64_t draw(const hk_trial *t, uint64_t stream, int64_t i) {
  return mix(mix(t->options.seed + 0x9e3779b97f4a7c15u * (stream + 1)) +
             0x9e3779b97f4a7c15u * (uint64_t)i);
}

/* Weights: evenly between -0.05 and 0.05. */
static float weight(const hk_trial *t, int64_t i) {
  return ((float)(draw(t, 0, i) >> 40) * 0x1p-24f - 0.5f) * 0.1f;
}

/* Gradients: either sign, all significands, magnitudes over eight powers of two around 2^-11. */
static uint16_t gradient(const hk_trial *t, int64_t step, int64_t i) {
  const uint64_t z = draw(t, (uint64_t)step, i);
  if (t->engine->options.grad_type == HK_GRAD_BF16) {
    return (uint16_t)((z & 0x807f) | ((112 + ((z >> 32) & 7)) << 7));
  }
  return (uint16_t)((z & 0x83ff) | ((1 + ((z >> 32) & 7)) << 10));
}

/* -- Work shared out over the engine's team ---------------------------------------------------- */

typedef struct {
  hk_trial *trial;
  int64_t begin, n, step;
} span_work;

static void make_weights(void *arg, int64_t c, int thread) {
  (void)thread;
  const span_work *w = arg;
  for (int64_t i = c * CHUNK; i < (c + 1) * CHUNK && i < w->n; i++) {
    w->trial->span[i] = weight(w->trial, w->begin + i);
  }
}

static void make_gradients(void *arg, int64_t c, int thread) {
  (void)thread;
  const span_work *w = arg;
  for (int64_t i = c * CHUNK; i < (c + 1) * CHUNK && i < w->n; i++) {
    w->trial->grads[i] = gradient(w->trial, w->step, w->begin + i);
  }
}

/* Plain AdamW on one chunk of the flat arrays, by the reference kernel. */
static void plain_chunk(void *arg, int64_t c, int thread) {
  (void)thread;
  const span_work *w = arg;
  hk_trial *t = w->trial;
  hk_engine *e = t->engine;
  const int64_t stop = (c + 1) * CHUNK < w->n ? (c + 1) * CHUNK : w->n;
  for (int64_t at = c * CHUNK; at < stop;) {
    const hk_group_run g = hk_engine_group_run(e, at, stop);
    hk_adamw_scalar(&t->steps[g.group], e->options.grad_type, g.end - at, t->plain[0] + at,
                    t->plain[1] + at, t->plain[2] + at, t->all_grads + at, t->plain_w + at);
    at = g.end;
  }
}

static void square_chunk(void *arg, int64_t c, int thread) {
  const span_work *w = arg;
  hk_trial *t = w->trial;
  const int64_t begin = c * CHUNK, n = w->n - begin < CHUNK ? w->n - begin : CHUNK;
  hk_squares_add(&t->squares[thread], t->engine->options.grad_type, n, t->all_grads + begin);
}

static void share_out(hk_trial *t, hk_team_work work, span_work *w) {
  w->trial = t;
  hk_team_run(t->team, (w->n + CHUNK - 1) / CHUNK, work, w);
}

/* -- Opening and closing ----------------------------------------------------------------------- */

static hk_status allocate(hk_trial *t, hk_error *err) {
  const int64_t span = t->numel < SPAN ? t->numel : SPAN;
  t->grads = malloc(2 * (size_t)span);
  t->span = malloc(4 * (size_t)span);
  hk_bytes wanted = 6 * span;
  bool there = t->grads != NULL && t->span != NULL;
  if (t->options.check) {
    const size_t n = (size_t)t->numel;
    for (int i = 0; i < 3; i++) there = (t->plain[i] = malloc(4 * n)) != NULL && there;
    there = (t->plain_w = malloc(2 * n)) != NULL && there;
    there = (t->all_grads = malloc(2 * n)) != NULL && there;
    t->squares = calloc((size_t)hk_team_threads(t->team), sizeof *t->squares);
    t->steps = calloc(t->engine->n_groups, sizeof *t->steps);
    there = t->squares != NULL && t->steps != NULL && there;
    wanted += 16 * t->numel;
  }
  if (!there) return hk_fail_memory(err, (unsigned long long)wanted, "a trial's arrays");
  hk_backend *b = t->engine->backend;
  return b->ops->alloc(b, 2 * span, &t->device, err);
}

static hk_status fill_weights(hk_trial *t, hk_error *err) {
  for (int64_t at = 0; at < t->numel; at += SPAN) {
    span_work w = {.begin = at, .n = t->numel - at < SPAN ? t->numel - at : SPAN};
    share_out(t, make_weights, &w);
    HK_TRY(hk_engine_write(t->engine, HK_STATE_P, at, w.n, t->span, err));
  }
  return HK_OK;
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
  t->numel = engine->state.numel;
  t->team = engine->team;
  hk_status status = allocate(t, err);
  if (status == HK_OK && engine->step == 0) status = fill_weights(t, err);
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
  if (t->device != NULL) t->engine->backend->ops->release(t->engine->backend, t->device);
  free(t->grads);
  free(t->span);
  for (int i = 0; i < 3; i++) free(t->plain[i]);
  free(t->plain_w);
  free(t->all_grads);
  free(t->squares);
  free(t->steps);
  free(t);
}

/* -- Steps ------------------------------------------------------------------------------------- */

static hk_status give_gradients(hk_trial *t, hk_error *err) {
  hk_engine *e = t->engine;
  for (int64_t at = 0; at < t->numel; at += SPAN) {
    span_work w = {
        .begin = at, .n = t->numel - at < SPAN ? t->numel - at : SPAN, .step = e->step + 1};
    share_out(t, make_gradients, &w);
    if (t->options.check) memcpy(t->all_grads + at, t->grads, 2 * (size_t)w.n);
    HK_TRY(e->backend->ops->copy(e->stream, t->device, t->grads, 2 * w.n, err));
    HK_TRY(hk_engine_gradients(e, at, w.n, t->device, true, true, err));
  }
  return HK_OK;
}

static hk_status compare(hk_trial *t, hk_state_part part, const void *plain, size_t size,
                         hk_error *err) {
  static const char *const names[] = {"p", "m", "v", "w"};
  for (int64_t at = 0; at < t->numel; at += SPAN) {
    const int64_t n = t->numel - at < SPAN ? t->numel - at : SPAN;
    const char *wanted = (const char *)plain + (size_t)at * size;
    HK_TRY(hk_engine_read(t->engine, part, at, n, t->span, err));
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

/* The constants of the step that the engine has just taken, from a norm of our own. */
static void prepare_plain(hk_trial *t) {
  const hk_engine *e = t->engine;
  span_work w = {.n = t->numel};
  hk_squares sum = {0};
  share_out(t, square_chunk, &w);
  for (int i = 0; i < hk_team_threads(t->team); i++) {
    hk_squares_merge(&sum, &t->squares[i]);
    t->squares[i] = (hk_squares){0};
  }
  const double scale = hk_grad_scale(hk_squares_value(&sum), e->options.max_norm, 1);
  for (size_t g = 0; g < e->n_groups; g++) {
    t->steps[g] = hk_adamw_prepare(&e->groups[g].hyper, e->step, scale);
  }
}

static hk_status check_step(hk_trial *t, hk_error *err) {
  span_work w = {.n = t->numel};
  prepare_plain(t);
  share_out(t, plain_chunk, &w);
  for (int i = 0; i < 3; i++) HK_TRY(compare(t, (hk_state_part)i, t->plain[i], 4, err));
  return compare(t, HK_STATE_W, t->plain_w, 2, err);
}

hk_status hk_trial_step(hk_trial *t, hk_timeline *timeline, hk_step_report *report, hk_error *err) {
  HK_TRY(give_gradients(t, err));
  const hk_step_options options = {.timeline = timeline};
  HK_TRY(hk_engine_step(t->engine, &options, report, err));
  return t->options.check ? check_step(t, err) : HK_OK;
}
