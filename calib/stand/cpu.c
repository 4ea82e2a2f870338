/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Loads of the CPU team. Each operation is a pass over a piece of the arrays, divided into chunks
 * as in the engine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/stand/private.h"
#include "engine/adamw/formats.h"
#include "engine/device/chunks.h"
#include "engine/device/topology.h"

#define SAMPLE 1024 /* parameters */

/* One pass over a piece of the arrays, which begins at `begin`. */
typedef struct {
  const hk_stand_arrays *arrays;
  const hk_cpu_kernels *kernels;
  hk_load_kind kind;
  int64_t begin;
  int64_t grads; /* where the gradients of parameter 0 are, in 8 bits */
  int64_t index; /* of parameter 0 in its tensor */
  hk_chunks chunks;
  hk_adamw_step step;
  float scale;
} pass;

static bool in_codes(hk_load_kind kind) {
  return kind == HK_LOAD_ADAMW_8BIT || kind == HK_LOAD_ADAMW_8BIT_SPLIT;
}

static pass pass_of(const hk_stand_job *job, const hk_team *team, int64_t i) {
  const hk_stand_arrays *a = &job->stand->cpu;
  const int64_t piece = hk_stand_piece(job->stand, job->load);
  const int64_t parts = a->params / piece, begin = i % parts * piece;
  pass p = {.arrays = a,
            .kernels = hk_cpu_kernels_best(),
            .kind = job->load->kind,
            .begin = begin,
            .chunks = hk_chunks_of(piece, job->load->chunk, hk_team_threads(team)),
            .step = hk_stand_step(i),
            /* Times 8 and back again: exact any number of times, if pieces stay the same. */
            .scale = fabsf(a->grad32[begin]) < 0x1p-6f ? 8 : 0.125f};
  if (!in_codes(p.kind)) return p;
  /* Each turn has the gradients of another part, so that m becomes a sum of different ones, as in
   * training: some are then near 0, where blocks take longer. */
  p.grads = (i + i / parts) % parts * piece - begin;
  hk_random_key(0, 0, i + 1, p.step.key);
  return p;
}

static void update_codes(const pass *p, int64_t at, int64_t n) {
  const hk_stand_arrays *a = p->arrays;
  const bool split = p->kind == HK_LOAD_ADAMW_8BIT_SPLIT;
  const hk_format format = split ? HK_FORMAT_8BIT_SPLIT : HK_FORMAT_8BIT;
  const hk_state_at all = {split ? (char *)a->w : (char *)a->p, split ? (char *)a->low : NULL,
                           a->codes_m, a->codes_v, a->windows};
  const hk_state_at state = hk_state_at_element(format, all, at);
  p->kernels->update(format, &p->step, HK_GRAD_BF16, n, state, state, a->grad + p->grads + at,
                     split ? NULL : a->w + at, p->index + at);
}

static void work(const pass *p, int64_t at, int64_t n) {
  const hk_stand_arrays *a = p->arrays;
  const hk_cpu_kernels *k = p->kernels;
  switch (p->kind) {
    case HK_LOAD_ADAMW_CPU:
      k->adamw(&p->step, HK_GRAD_BF16, n, a->p + at, a->m + at, a->v + at, a->grad + at, a->w + at);
      break;
    case HK_LOAD_ADAMW_AHEAD:
      k->adamw_to(&p->step, HK_GRAD_BF16, n, a->p + at, a->m + at, a->v + at, a->p_to + at,
                  a->m_to + at, a->v_to + at, a->grad + at, a->w + at);
      break;
    case HK_LOAD_ADAMW_FP32:
      k->adamw(&p->step, HK_GRAD_FP32, n, a->p + at, a->m + at, a->v + at, a->grad32 + at, NULL);
      break;
    case HK_LOAD_ADAMW_8BIT:
    case HK_LOAD_ADAMW_8BIT_SPLIT:
      update_codes(p, at, n);
      break;
    case HK_LOAD_UNSCALE:
      k->unscale(p->scale, n, a->grad32 + at);
      break;
    default:
      k->cast_down(n, a->p + at, a->w + at);
  }
}

static void work_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const pass *p = arg;
  const int64_t at = hk_chunk_begin(&p->chunks, chunk);
  work(p, p->begin + at, hk_chunk_begin(&p->chunks, chunk + 1) - at);
}

static void run_pass(hk_team *team, pass *p) {
  hk_team_run(team, p->chunks.count, work_chunk, p);
}

static void run_operation(const hk_stand_job *job, hk_team *team, int64_t i) {
  pass p = pass_of(job, team, i);
  run_pass(team, &p);
}

/* ---- End of operations ----------------------------------------------------------------------- */

/* In the engine, a thread that queues weight copies sleeps until the CPU has produced the weights.
 * The CPU lane wakes it once its next operation has begun, which costs the team some time. The
 * stand wakes a listener in the same way to include this cost. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t word;
  int64_t ended; /* operations */
  bool over;
  bool owed; /* an end is not signalled yet; used only by the thread that runs operations */
  pthread_t thread;
} listener;

static void *listen(void *argument) {
  listener *l = argument;
  int64_t heard = 0;
  hk_thread_prompt(); /* as the engine's threads that queue */
  pthread_mutex_lock(&l->lock);
  while (!l->over) {
    if (heard == l->ended) pthread_cond_wait(&l->word, &l->lock);
    heard = l->ended;
  }
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

static void end_operation(listener *l, bool last) {
  pthread_mutex_lock(&l->lock);
  l->ended++;
  l->over = last;
  pthread_mutex_unlock(&l->lock);
  l->owed = true;
}

/* Signals the end of an operation, if that is still to be done. Called when the team has begun its
 * next run. */
static void tell(void *arg) {
  listener *l = arg;
  if (l->owed) pthread_cond_signal(&l->word);
  l->owed = false;
}

static void run_operations(hk_stand_job *job, hk_team *team, listener *l) {
  const double work_each = hk_stand_work(job->stand, job->load);
  hk_ns begin = hk_now();
  for (size_t s = 0; s < job->n; s++) {
    const int64_t first = hk_stand_cut(job->ops, job->n, s);
    const int64_t last = hk_stand_cut(job->ops, job->n, s + 1);
    for (int64_t i = first; i < last; i++) {
      run_operation(job, team, job->first + i);
      end_operation(l, false);
    }
    const hk_ns end = hk_now();
    job->stretches[s] = (hk_stretch){begin, end, work_each * (double)(last - first), 0};
    begin = end;
  }
}

void hk_stand_cpu_run(hk_stand_job *job, hk_team *team) {
  listener l = {.lock = PTHREAD_MUTEX_INITIALIZER, .word = PTHREAD_COND_INITIALIZER};
  const int failure = hk_stand_thread(job->stand, hk_team_threads(team), 0, listen, &l, &l.thread);
  if (failure == 0) {
    hk_team_when_begun(team, tell, &l);
    run_operations(job, team, &l);
    hk_team_when_begun(team, NULL, NULL);
    end_operation(&l, true);
    tell(&l);
    pthread_join(l.thread, NULL);
  } else {
    hk_fail(&job->err, HK_ENVIRONMENT, "cannot start the thread that waits for operations: %s",
            strerror(failure));
  }
  pthread_cond_destroy(&l.word);
  pthread_mutex_destroy(&l.lock);
}

/* ---- Verification ---------------------------------------------------------------------------- */

/* Input and output of the reference: the stand's arrays, SAMPLE parameters of each. */
typedef struct {
  float p[SAMPLE], m[SAMPLE], v[SAMPLE], grad32[SAMPLE];
  float p_to[SAMPLE], m_to[SAMPLE], v_to[SAMPLE];
  uint16_t grad[SAMPLE], w[SAMPLE], low[SAMPLE];
  char codes_m[SAMPLE], codes_v[SAMPLE], windows[SAMPLE];
} state_sample;

/* Bytes of the windows of n parameters. */
static size_t windows_of(size_t n) {
  return (n + HK_CODE_BLOCK - 1) / HK_CODE_BLOCK * 2;
}

/* A sample begins a block. */
static const char *windows_at(const hk_stand_arrays *a, int64_t at) {
  return a->windows + at / HK_CODE_BLOCK * 2;
}

static void take_sample(const pass *p, int64_t at, size_t n, state_sample *out) {
  const hk_stand_arrays *a = p->arrays;
  memcpy(out->p, a->p + at, 4 * n);
  memcpy(out->m, a->m + at, 4 * n);
  memcpy(out->v, a->v + at, 4 * n);
  memcpy(out->grad32, a->grad32 + at, 4 * n);
  memcpy(out->p_to, a->p_to + at, 4 * n);
  memcpy(out->m_to, a->m_to + at, 4 * n);
  memcpy(out->v_to, a->v_to + at, 4 * n);
  memcpy(out->grad, a->grad + p->grads + at, 2 * n);
  memcpy(out->w, a->w + at, 2 * n);
  memcpy(out->low, a->low + at, 2 * n);
  memcpy(out->codes_m, a->codes_m + at, n);
  memcpy(out->codes_v, a->codes_v + at, n);
  memcpy(out->windows, windows_at(a, at), windows_of(n));
}

static bool same(const hk_stand_arrays *a, int64_t at, size_t n, const state_sample *wanted) {
  return memcmp(wanted->p, a->p + at, 4 * n) == 0 && memcmp(wanted->m, a->m + at, 4 * n) == 0 &&
         memcmp(wanted->v, a->v + at, 4 * n) == 0 &&
         memcmp(wanted->grad32, a->grad32 + at, 4 * n) == 0 &&
         memcmp(wanted->p_to, a->p_to + at, 4 * n) == 0 &&
         memcmp(wanted->m_to, a->m_to + at, 4 * n) == 0 &&
         memcmp(wanted->v_to, a->v_to + at, 4 * n) == 0 &&
         memcmp(wanted->w, a->w + at, 2 * n) == 0 && memcmp(wanted->low, a->low + at, 2 * n) == 0 &&
         memcmp(wanted->codes_m, a->codes_m + at, n) == 0 &&
         memcmp(wanted->codes_v, a->codes_v + at, n) == 0 &&
         memcmp(wanted->windows, windows_at(a, at), windows_of(n)) == 0;
}

/* Overwrites the results of AdamW into spare memory. Its inputs never change, so that a kernel that
 * writes nothing would leave the expected results of an earlier operation in place. */
static void spoil(const hk_stand_arrays *a, int64_t at, size_t n) {
  float *const arrays[] = {a->p_to, a->m_to, a->v_to};
  for (int i = 0; i < 3; i++) memset(arrays[i] + at, 0x7b, 4 * n);
  memset(a->w + at, 0x7b, 2 * n);
}

/* First parameter of sample s: of the piece's begin, middle and end. */
static int64_t sample_at(const pass *p, int64_t n, int s) {
  return p->begin + (p->chunks.n - n) * s / 2 / HK_CODE_BLOCK * HK_CODE_BLOCK;
}

static hk_status verify_samples(const hk_stand_job *job, hk_team *team, state_sample samples[3],
                                hk_error *err) {
  size_t n_kernels;
  pass p = pass_of(job, team, job->first + job->ops);
  const int64_t n = p.chunks.n < SAMPLE ? p.chunks.n : SAMPLE;
  for (int s = 0; s < 3; s++) {
    const int64_t at = sample_at(&p, n, s);
    if (p.kind == HK_LOAD_ADAMW_AHEAD) spoil(p.arrays, at, (size_t)n);
    take_sample(&p, at, (size_t)n, &samples[s]);
  }
  run_pass(team, &p);
  for (int s = 0; s < 3; s++) {
    state_sample *sample = &samples[s];
    hk_stand_arrays alone = {.p = sample->p,
                             .m = sample->m,
                             .v = sample->v,
                             .grad32 = sample->grad32,
                             .p_to = sample->p_to,
                             .m_to = sample->m_to,
                             .v_to = sample->v_to,
                             .grad = sample->grad,
                             .w = sample->w,
                             .low = sample->low,
                             .codes_m = sample->codes_m,
                             .codes_v = sample->codes_v,
                             .windows = sample->windows};
    pass reference = p;
    const int64_t at = sample_at(&p, n, s);
    reference.arrays = &alone;
    reference.grads = 0;
    reference.index = at;
    reference.kernels = &hk_cpu_kernels_list(&n_kernels)[0]; /* scalar */
    work(&reference, 0, n);
    if (same(p.arrays, at, (size_t)n, sample)) continue;
    return hk_fail(err, HK_NO,
                   "the %s and the scalar kernel differ in the sample at parameter %lld",
                   p.kernels->name, (long long)at);
  }
  return HK_OK;
}

hk_status hk_stand_cpu_verify(const hk_stand_job *job, hk_team *team, hk_error *err) {
  state_sample *samples = malloc(3 * sizeof *samples);
  if (samples == NULL) return hk_fail_memory(err, 3 * sizeof *samples, "checking CPU kernels");
  const hk_status status = verify_samples(job, team, samples, err);
  free(samples);
  return status;
}
