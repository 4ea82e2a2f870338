/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "bench/ceilings.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sorted.h"
#include "engine/device/arena.h"

#define MOST_ROUNDS 64
#define CHUNK       ((int64_t)65536) /* parameters a thread takes at a time */
#define AHEAD       2048             /* bytes of prefetch */
#define SEGMENTS    32               /* parts of a sequence of copies that are timed */

struct ceilings {
  hk_backend *backend;
  int most_threads;
  hk_team *toucher;
  hk_arena arena;
  int64_t params;
  float *p, *m, *v;
  uint16_t *grad, *w;
  char *device;
  hk_bytes device_bytes;
  hk_stream *in, *out;
  hk_event *in_marks[SEGMENTS + 1], *out_marks[SEGMENTS + 1];
};

static ceiling summarise(double *rates, int n) {
  sort_ascending(rates, n);
  return (ceiling){median_of_sorted(rates, n), rates[0], rates[n - 1]};
}

/* -- Opening ----------------------------------------------------------------------------------- */

static hk_status open_streams(ceilings *c, hk_error *err) {
  const hk_backend_ops *ops = c->backend->ops;
  HK_TRY(ops->stream_open(c->backend, false, &c->in, err));
  HK_TRY(ops->stream_open(c->backend, false, &c->out, err));
  for (int i = 0; i <= SEGMENTS; i++) {
    HK_TRY(ops->event_open(c->backend, true, &c->in_marks[i], err));
    HK_TRY(ops->event_open(c->backend, true, &c->out_marks[i], err));
  }
  return HK_OK;
}

/* Not zeros: processors drop stores of zeros over zeros, and memory would appear too fast. */
static void fill_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const ceilings *c = arg;
  for (int64_t i = chunk * CHUNK; i < (chunk + 1) * CHUNK; i++) {
    c->p[i] = 1 + (float)i * 0x1p-32f;
    c->m[i] = 2 + (float)i * 0x1p-32f;
    c->v[i] = 3 + (float)i * 0x1p-32f;
    c->grad[i] = c->w[i] = (uint16_t)(i | 1);
  }
}

static hk_status open_memory(ceilings *c, hk_bytes host, hk_error *err) {
  hk_device_info info;
  HK_TRY(c->backend->ops->info(c->backend, &info, err));
  const hk_team_options options = {.threads = c->most_threads, .pin = true, .pci = info.pci};
  HK_TRY(hk_team_open(&options, &c->toucher, err));
  HK_TRY(hk_arena_open(host, c->toucher, info.pci, &c->arena, err));
  HK_TRY(hk_arena_register(&c->arena, c->backend, err));
  c->params = host / 17 / CHUNK * CHUNK; /* 16 bytes a parameter and room for alignment */
  const hk_bytes skew = 1152;
  char *at = c->arena.base;
  c->p = (float *)at;
  c->m = (float *)(at += 4 * c->params + skew);
  c->v = (float *)(at += 4 * c->params + skew);
  c->grad = (uint16_t *)(at += 4 * c->params + skew);
  c->w = (uint16_t *)(at + 2 * c->params + skew);
  void *device = NULL;
  HK_TRY(c->backend->ops->alloc(c->backend, c->device_bytes, &device, err));
  c->device = device;
  hk_team_run(c->toucher, c->params / CHUNK, fill_chunk, c);
  return HK_OK;
}

/* Like fill_chunk: copies out write to memory that the team works on. */
static hk_status fill_device(ceilings *c, hk_error *err) {
  const hk_backend_ops *ops = c->backend->ops;
  const hk_bytes most = 4 * c->params;
  for (hk_bytes at = 0; at < c->device_bytes; at += most) {
    const hk_bytes rest = c->device_bytes - at;
    HK_TRY(ops->copy(c->in, c->device + at, c->p, rest < most ? rest : most, err));
  }
  HK_TRY(ops->record(c->in, c->in_marks[0], err));
  return ops->event_sync(c->in_marks[0], err);
}

hk_status ceilings_open(hk_backend *backend, hk_bytes host, hk_bytes device, int most_threads,
                        ceilings **out, hk_error *err) {
  ceilings *c = calloc(1, sizeof *c);
  if (c == NULL) return hk_fail_memory(err, sizeof *c, "probes");
  c->backend = backend;
  c->most_threads = most_threads;
  c->device_bytes = device;
  hk_status status = open_memory(c, host, err);
  if (status == HK_OK) status = open_streams(c, err);
  if (status == HK_OK) status = fill_device(c, err);
  if (status != HK_OK) {
    ceilings_close(c);
    return status;
  }
  *out = c;
  return HK_OK;
}

void ceilings_close(ceilings *c) {
  if (c == NULL) return;
  const hk_backend_ops *ops = c->backend->ops;
  for (int i = 0; i <= SEGMENTS; i++) {
    if (c->in_marks[i] != NULL) ops->event_close(c->in_marks[i]);
    if (c->out_marks[i] != NULL) ops->event_close(c->out_marks[i]);
  }
  if (c->in != NULL) ops->stream_close(c->in);
  if (c->out != NULL) ops->stream_close(c->out);
  if (c->device != NULL) ops->release(c->backend, c->device);
  hk_arena_close(&c->arena);
  hk_team_close(c->toucher);
  free(c);
}

/* -- Host memory ------------------------------------------------------------------------------- */

/* A factor of one that the compiler does not know leaves the values as they are. */
static volatile float unknown = 1;

__attribute__((target("avx512f"))) static void mix_avx512(ceilings *c, int64_t at, int64_t n) {
  const __m512 one = _mm512_set1_ps(unknown);
  float *const streams[] = {c->p, c->m, c->v};
  for (int64_t i = at; i < at + n; i += 32) {
    for (int s = 0; s < 3; s++) {
      float *x = streams[s] + i;
      _mm_prefetch((const char *)x + AHEAD, _MM_HINT_T0);
      _mm_prefetch((const char *)x + AHEAD + 64, _MM_HINT_T0);
      _mm512_storeu_ps(x, _mm512_mul_ps(_mm512_loadu_ps(x), one));
      _mm512_storeu_ps(x + 16, _mm512_mul_ps(_mm512_loadu_ps(x + 16), one));
    }
    _mm_prefetch((const char *)(c->grad + i) + AHEAD / 2, _MM_HINT_T0);
    _mm512_stream_si512((void *)(c->w + i), _mm512_loadu_si512(c->grad + i));
  }
  _mm_sfence();
}

static void mix_plain(ceilings *c, int64_t at, int64_t n) {
  const float one = unknown;
  for (int64_t i = at; i < at + n; i++) {
    c->p[i] *= one;
    c->m[i] *= one;
    c->v[i] *= one;
    c->w[i] = c->grad[i];
  }
}

static void mix_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  ceilings *c = arg;
  if (__builtin_cpu_supports("avx512f")) {
    mix_avx512(c, chunk * CHUNK, CHUNK);
  } else {
    mix_plain(c, chunk * CHUNK, CHUNK);
  }
}

static hk_team *team_of(ceilings *c, int threads) {
  hk_team *team = NULL;
  hk_error err = {0};
  hk_device_info info = {0};
  if (c->backend->ops->info(c->backend, &info, &err) != HK_OK) return NULL;
  const hk_team_options options = {.threads = threads, .pin = true, .pci = info.pci};
  return hk_team_open(&options, &team, &err) == HK_OK ? team : NULL;
}

ceiling ceilings_dram(ceilings *c, int threads, int rounds) {
  double rates[MOST_ROUNDS];
  hk_team *team = team_of(c, threads);
  if (team == NULL) return (ceiling){0};
  hk_team_join(team);
  for (int r = -1; r < rounds; r++) {
    const hk_ns begin = hk_now();
    hk_team_run(team, c->params / CHUNK, mix_chunk, c);
    if (r >= 0) rates[r] = 28.0 * (double)c->params / (double)(hk_now() - begin) * 1e9;
  }
  hk_team_close(team);
  return summarise(rates, rounds);
}

/* -- Copies ------------------------------------------------------------------------------------ */

static hk_bytes whole_segments(hk_bytes bytes, hk_bytes chunk) {
  const hk_bytes n = bytes / (chunk * SEGMENTS);
  return (n > 0 ? n : 1) * chunk * SEGMENTS;
}

/* Queues copies in one direction, with a time stamp after each of SEGMENTS parts. One half of
 * device memory is for copies in, the other for copies out. Copies out write to the host's second
 * half. */
static hk_status queue(ceilings *c, bool in, hk_bytes total, hk_bytes chunk, hk_error *err) {
  const hk_backend_ops *ops = c->backend->ops;
  hk_stream *stream = in ? c->in : c->out;
  hk_event **marks = in ? c->in_marks : c->out_marks;
  const hk_bytes host_half = c->arena.bytes / 2 / chunk * chunk;
  const hk_bytes device_half = c->device_bytes / 2 / chunk * chunk;
  HK_TRY(ops->record(stream, marks[0], err));
  for (int segment = 0; segment < SEGMENTS; segment++) {
    for (hk_bytes at = total / SEGMENTS * segment; at < total / SEGMENTS * (segment + 1);
         at += chunk) {
      char *host = (char *)c->arena.base + (in ? 0 : c->arena.bytes / 2) + at % host_half;
      char *device = c->device + (in ? 0 : c->device_bytes / 2) + at % device_half;
      HK_TRY(in ? ops->copy(stream, device, host, chunk, err)
                : ops->copy(stream, host, device, chunk, err));
    }
    HK_TRY(ops->record(stream, marks[segment + 1], err));
  }
  return HK_OK;
}

static hk_status times_of(ceilings *c, bool in, hk_ns times[SEGMENTS + 1], hk_error *err) {
  const hk_backend_ops *ops = c->backend->ops;
  hk_event **marks = in ? c->in_marks : c->out_marks;
  HK_TRY(ops->event_sync(marks[SEGMENTS], err));
  for (int i = 0; i <= SEGMENTS; i++) HK_TRY(ops->event_time(marks[i], &times[i], err));
  return HK_OK;
}

/* Bytes moved until `at`, interpolated between two stamps. */
static double moved_by(const hk_ns times[SEGMENTS + 1], hk_bytes total, hk_ns at) {
  const double segment = (double)total / SEGMENTS;
  for (int i = 0; i < SEGMENTS; i++) {
    if (at >= times[i + 1]) continue;
    if (at <= times[i]) return segment * i;
    return segment * (i + (double)(at - times[i]) / (double)(times[i + 1] - times[i]));
  }
  return (double)total;
}

static double rate_between(const hk_ns times[SEGMENTS + 1], hk_bytes total, hk_ns from, hk_ns to) {
  return (moved_by(times, total, to) - moved_by(times, total, from)) / (double)(to - from) * 1e9;
}

hk_status ceilings_copies(ceilings *c, bool in, bool out, hk_bytes chunk, int rounds, ceiling *rate,
                          hk_error *err) {
  const hk_bytes total = whole_segments(c->arena.bytes / 2, chunk);
  double rates[MOST_ROUNDS];
  for (int r = -1; r < rounds; r++) {
    hk_ns unused, ins[SEGMENTS + 1] = {0}, outs[SEGMENTS + 1] = {0};
    HK_TRY(c->backend->ops->clock_align(c->backend, &unused, err));
    if (in) HK_TRY(queue(c, true, total, chunk, err));
    if (out) HK_TRY(queue(c, false, total, chunk, err));
    if (in) HK_TRY(times_of(c, true, ins, err));
    if (out) HK_TRY(times_of(c, false, outs, err));
    const hk_ns *one = in ? ins : outs, *other = out ? outs : ins;
    const hk_ns from = one[0] > other[0] ? one[0] : other[0];
    const hk_ns to = one[SEGMENTS] < other[SEGMENTS] ? one[SEGMENTS] : other[SEGMENTS];
    const double sum = (in ? rate_between(ins, total, from, to) : 0) +
                       (out ? rate_between(outs, total, from, to) : 0);
    if (r >= 0) rates[r] = sum;
  }
  *rate = summarise(rates, rounds);
  return HK_OK;
}

/* -- Both -------------------------------------------------------------------------------------- */

hk_status ceilings_mixed(ceilings *c, int threads, hk_bytes chunk, int rounds,
                         mixed_ceiling *ceilings_at, hk_error *err) {
  /* Copies outlast the team, which goes over its arrays once. */
  const hk_bytes total = whole_segments(c->arena.bytes + c->arena.bytes / 2, chunk);
  double cpu[MOST_ROUNDS], in[MOST_ROUNDS], out[MOST_ROUNDS], all[MOST_ROUNDS];
  hk_team *team = team_of(c, threads);
  if (team == NULL) return hk_fail(err, HK_ENVIRONMENT, "no team of %d threads", threads);
  hk_team_join(team);
  hk_status status = HK_OK;
  for (int r = -1; r < rounds && status == HK_OK; r++) {
    hk_ns unused, ins[SEGMENTS + 1], outs[SEGMENTS + 1];
    status = c->backend->ops->clock_align(c->backend, &unused, err);
    if (status == HK_OK) status = queue(c, true, total, chunk, err);
    if (status == HK_OK) status = queue(c, false, total, chunk, err);
    const hk_ns begin = hk_now();
    hk_team_run(team, c->params / CHUNK, mix_chunk, c);
    const hk_ns end = hk_now();
    if (status == HK_OK) status = times_of(c, true, ins, err);
    if (status == HK_OK) status = times_of(c, false, outs, err);
    if (status != HK_OK || r < 0) continue;
    /* If the team outlasts the copies, its mean rate is too high and so is the ceiling. A bound
     * made of it stays valid. */
    const hk_ns from = begin > outs[0] ? begin : outs[0];
    hk_ns to = end < ins[SEGMENTS] ? end : ins[SEGMENTS];
    if (to > outs[SEGMENTS]) to = outs[SEGMENTS];
    cpu[r] = 28.0 * (double)c->params / (double)(end - begin) * 1e9;
    in[r] = rate_between(ins, total, from, to);
    out[r] = rate_between(outs, total, from, to);
    all[r] = cpu[r] + in[r] + out[r];
  }
  hk_team_close(team);
  if (status == HK_OK) {
    *ceilings_at = (mixed_ceiling){threads, summarise(cpu, rounds), summarise(in, rounds),
                                   summarise(out, rounds), summarise(all, rounds)};
  }
  return status;
}

/* Copies of the same size, `chunk` at most, one or more a segment. */
typedef struct {
  hk_bytes total, chunk;
} sequence;

static sequence divide(double bytes, hk_bytes chunk) {
  const hk_bytes segment = (hk_bytes)(bytes / SEGMENTS), n = (segment + chunk - 1) / chunk;
  const hk_bytes each = n > 0 ? segment / n / 64 * 64 : 0;
  return (sequence){each * n * SEGMENTS, each};
}

static hk_status run_unhindered(ceilings *c, hk_team *team, int64_t chunks, sequence in,
                                sequence out, double *rate, hk_error *err) {
  hk_ns unused, ins[SEGMENTS + 1] = {0}, outs[SEGMENTS + 1] = {0};
  HK_TRY(c->backend->ops->clock_align(c->backend, &unused, err));
  if (in.total > 0) HK_TRY(queue(c, true, in.total, in.chunk, err));
  if (out.total > 0) HK_TRY(queue(c, false, out.total, out.chunk, err));
  const hk_ns begin = hk_now();
  hk_team_run(team, chunks, mix_chunk, c);
  hk_ns end = hk_now();
  if (in.total > 0) HK_TRY(times_of(c, true, ins, err));
  if (out.total > 0) HK_TRY(times_of(c, false, outs, err));
  if (ins[SEGMENTS] > end) end = ins[SEGMENTS];
  if (outs[SEGMENTS] > end) end = outs[SEGMENTS];
  const double params = (double)(chunks * CHUNK) + (double)out.total / 12;
  *rate = params / (double)(end - begin) * 1e9;
  return HK_OK;
}

hk_status ceilings_unhindered(ceilings *c, int threads, double cpu_share, hk_bytes chunk,
                              int rounds, double *rates, hk_error *err) {
  const int64_t all = c->params / CHUNK, chunks = (int64_t)((double)all * cpu_share);
  const double on_cpu = (double)(chunks * CHUNK), staged = (double)c->params - on_cpu;
  const sequence in = divide(2 * on_cpu + 12 * staged, chunk), out = divide(12 * staged, chunk);
  hk_team *team = team_of(c, threads);
  if (team == NULL) return hk_fail(err, HK_ENVIRONMENT, "no team of %d threads", threads);
  hk_team_join(team);
  hk_status status = HK_OK;
  for (int r = -1; r < rounds && status == HK_OK; r++)
    status = run_unhindered(c, team, chunks, in, out, &rates[r < 0 ? 0 : r], err);
  hk_team_close(team);
  return status;
}
