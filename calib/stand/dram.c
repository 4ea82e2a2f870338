/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Host memory bandwidth: loads that read, write or copy with hardly any arithmetic. Vector stores
 * bypass the caches. Sources are in stand->in, targets in stand->out. Reads are verified by the sum
 * of the 64-bit words, which is exact in any order. */
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "calib/stand/private.h"

#define MOST_CHECKED (256 * HK_MIB) /* bytes of a verification, at another place each time */
/* Prefetch distance of copies in bytes. Some processors prefetch too late by themselves, and stores
 * wait: with it copies are 1.17 x as fast on an AMD EPYC. Loops that only read are faster without.
 */
#define AHEAD 4096

typedef struct {
  const char *name;
  uint64_t (*read)(const char *from, hk_bytes bytes);
  void (*write)(char *to, uint64_t word, hk_bytes bytes);
  void (*copy)(char *to, const char *from, hk_bytes bytes);
} kernels;

/* ---- Kernels --------------------------------------------------------------------------------- */

static uint64_t read_plain(const char *from, hk_bytes bytes) {
  uint64_t sums[4] = {0};
  for (hk_bytes at = 0; at < bytes; at += 32) {
    uint64_t words[4];
    memcpy(words, from + at, sizeof words);
    for (int i = 0; i < 4; i++) sums[i] += words[i];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

static void write_plain(char *to, uint64_t word, hk_bytes bytes) {
  for (hk_bytes at = 0; at < bytes; at += 8) memcpy(to + at, &word, sizeof word);
}

static void copy_plain(char *to, const char *from, hk_bytes bytes) {
  memcpy(to, from, (size_t)bytes);
}

#if defined(__x86_64__)

/* Four variables instead of an array, which compilers keep in memory at low optimisation levels. */
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *from, hk_bytes bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (hk_bytes at = 0; at < bytes; at += HK_STAND_DRAM_STEP / 2) {
    const __m256i *words = (const void *)(from + at);
    a = _mm256_add_epi64(a, _mm256_load_si256(words));
    b = _mm256_add_epi64(b, _mm256_load_si256(words + 1));
    c = _mm256_add_epi64(c, _mm256_load_si256(words + 2));
    d = _mm256_add_epi64(d, _mm256_load_si256(words + 3));
  }
  a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  uint64_t lanes[4], sum = 0;
  memcpy(lanes, &a, sizeof lanes);
  for (int i = 0; i < 4; i++) sum += lanes[i];
  return sum;
}

__attribute__((target("avx2"))) static void write_avx2(char *to, uint64_t word, hk_bytes bytes) {
  const __m256i words = _mm256_set1_epi64x((long long)word);
  for (hk_bytes at = 0; at < bytes; at += 32) _mm256_stream_si256((void *)(to + at), words);
  _mm_sfence();
}

__attribute__((target("avx2"))) static void copy_avx2(char *to, const char *from, hk_bytes bytes) {
  for (hk_bytes at = 0; at < bytes; at += HK_STAND_DRAM_STEP) {
    const __m256i *words = (const void *)(from + at);
    __m256i *out = (void *)(to + at);
    for (int i = 0; i < 4; i++) _mm_prefetch(from + at + AHEAD + 64 * i, _MM_HINT_T0);
    for (int i = 0; i < 8; i++) _mm256_stream_si256(out + i, _mm256_load_si256(words + i));
  }
  _mm_sfence();
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *from, hk_bytes bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (hk_bytes at = 0; at < bytes; at += HK_STAND_DRAM_STEP) {
    const __m512i *words = (const void *)(from + at);
    a = _mm512_add_epi64(a, _mm512_load_si512(words));
    b = _mm512_add_epi64(b, _mm512_load_si512(words + 1));
    c = _mm512_add_epi64(c, _mm512_load_si512(words + 2));
    d = _mm512_add_epi64(d, _mm512_load_si512(words + 3));
  }
  a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
  uint64_t lanes[8], sum = 0;
  memcpy(lanes, &a, sizeof lanes);
  for (int i = 0; i < 8; i++) sum += lanes[i];
  return sum;
}

__attribute__((target("avx512f"))) static void write_avx512(char *to, uint64_t word,
                                                            hk_bytes bytes) {
  const __m512i words = _mm512_set1_epi64((long long)word);
  for (hk_bytes at = 0; at < bytes; at += 64) _mm512_stream_si512((void *)(to + at), words);
  _mm_sfence();
}

__attribute__((target("avx512f"))) static void copy_avx512(char *to, const char *from,
                                                           hk_bytes bytes) {
  for (hk_bytes at = 0; at < bytes; at += HK_STAND_DRAM_STEP) {
    const __m512i *words = (const void *)(from + at);
    __m512i *out = (void *)(to + at);
    for (int i = 0; i < 4; i++) _mm_prefetch(from + at + AHEAD + 64 * i, _MM_HINT_T0);
    for (int i = 0; i < 4; i++) _mm512_stream_si512(out + i, _mm512_load_si512(words + i));
  }
  _mm_sfence();
}

#endif

static const kernels *best_kernels(void) {
  static const kernels plain = {"plain", read_plain, write_plain, copy_plain};
#if defined(__x86_64__)
  static const kernels avx2 = {"AVX2", read_avx2, write_avx2, copy_avx2};
  static const kernels avx512 = {"AVX-512", read_avx512, write_avx512, copy_avx512};
  if (__builtin_cpu_supports("avx512f")) return &avx512;
  if (__builtin_cpu_supports("avx2")) return &avx2;
#endif
  return &plain;
}

/* ---- Passes ---------------------------------------------------------------------------------- */

typedef struct {
  const kernels *kernels;
  hk_load_kind kind;
  const char *from;
  char *to;
  hk_bytes bytes, chunk;
  uint64_t word; /* word that DRAM_WRITE writes */
  _Atomic uint64_t sum;
} pass;

static void work_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  pass *p = arg;
  const hk_bytes at = chunk * p->chunk, left = p->bytes - at;
  const hk_bytes n = left < p->chunk ? left : p->chunk;
  switch (p->kind) {
    case HK_LOAD_DRAM_READ:
      atomic_fetch_add_explicit(&p->sum, p->kernels->read(p->from + at, n), memory_order_relaxed);
      break;
    case HK_LOAD_DRAM_WRITE:
      p->kernels->write(p->to + at, p->word, n);
      break;
    default:
      p->kernels->copy(p->to + at, p->from + at, n);
  }
}

static void set_pass(const hk_stand_job *job, int64_t i, pass *p) {
  const hk_stand *stand = job->stand;
  p->kernels = best_kernels();
  p->kind = job->load->kind;
  p->from = stand->in;
  p->to = stand->out;
  p->bytes = hk_stand_dram_bytes(stand);
  p->chunk = job->load->chunk;
  p->word = hk_stand_pattern(job->seed, i);
  atomic_init(&p->sum, 0);
}

static void run_pass(hk_team *team, pass *p) {
  hk_team_run(team, (p->bytes + p->chunk - 1) / p->chunk, work_chunk, p);
}

void hk_stand_dram_pass(const hk_stand_job *job, hk_team *team, int64_t i) {
  pass p;
  set_pass(job, i, &p);
  run_pass(team, &p);
}

/* ---- Verification ---------------------------------------------------------------------------- */

static bool is_right(const pass *p) {
  if (p->kind == HK_LOAD_DRAM_READ) return p->sum == read_plain(p->from, p->bytes);
  if (p->kind == HK_LOAD_DRAM_COPY) return memcmp(p->to, p->from, (size_t)p->bytes) == 0;
  for (hk_bytes at = 0; at < p->bytes; at += 8) {
    if (memcmp(p->to + at, &p->word, 8) != 0) return false;
  }
  return true;
}

hk_status hk_stand_dram_verify(const hk_stand_job *job, hk_team *team, hk_error *err) {
  pass p;
  set_pass(job, job->first + job->ops, &p);
  const hk_bytes parts = (p.bytes + MOST_CHECKED - 1) / MOST_CHECKED;
  const hk_bytes at = (job->first + job->ops) % parts * MOST_CHECKED;
  p.bytes = hk_min(p.bytes - at, MOST_CHECKED);
  p.from += at;
  p.to += at;
  run_pass(team, &p);
  if (is_right(&p)) return HK_OK;
  return hk_fail(err, HK_NO, "wrong result on %lld bytes of host memory: %s, %s kernel",
                 (long long)p.bytes, hk_load_name(p.kind), p.kernels->name);
}
