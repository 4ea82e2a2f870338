/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stand's host memory: the arena and its quarters, memory outside the arena, and the pattern
 * that fills them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "calib/stand/private.h"
#include "core/base/splitmix.h"
#include "core/graph/bytes.h"
#include "engine/adamw/formats.h"

#define FILL_CHUNK HK_MIB
/* Bytes between arrays. Without them a parameter has the same offset in a page in every array, and
 * loads wait for stores to other arrays with the same low address bits. */
#define SKEW ((hk_bytes)1152)

#define POSITIVE 0x7fffffff7fffffffu
/* Codes of at most 63, which span eight octaves, and windows in which 63 is about 2^-8 for m and
 * 2^-16 for v: the sizes of gradients and of their squares. */
#define CODES_M  0xbfbfbfbfbfbfbfbfu
#define CODES_V  0x3f3f3f3f3f3f3f3fu
#define WINDOW_M 112
#define WINDOW_V 104

hk_status hk_stand_go_on(const hk_stand *stand, hk_error *err) {
  if (!stand->stop || !*stand->stop) return HK_OK;
  return hk_fail(err, HK_NO, "interrupted while memory was filled: no probe ran");
}

/* ---- Filling --------------------------------------------------------------------------------- */

/* SplitMix64 of seed and index. Signs and low bits are random; exponents are 118 or 119 (bias 127),
 * so that magnitudes lie between 2^-9 and 2^-7. */
uint64_t hk_stand_pattern(uint64_t seed, int64_t i) {
  return (hk_splitmix_mix(seed + (uint64_t)i * HK_SPLITMIX_STEP) & 0x80ff80ff80ff80ffu) |
         0x3b003b003b003b00u;
}

typedef struct {
  char *memory;
  hk_bytes bytes;
  uint64_t mask;
  const volatile sig_atomic_t *stop; /* NULL: none */
} filling;

static void fill_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const filling *f = arg;
  if (f->stop && *f->stop) return;
  const hk_bytes begin = chunk * FILL_CHUNK;
  const hk_bytes end = begin + FILL_CHUNK < f->bytes ? begin + FILL_CHUNK : f->bytes;
  for (hk_bytes at = begin; at < end; at += 8) {
    const uint64_t word = hk_stand_pattern(0, at / 8) & f->mask;
    memcpy(f->memory + at, &word, (size_t)(end - at < 8 ? end - at : 8));
  }
}

static void fill(hk_team *team, filling f) {
  hk_team_run(team, (f.bytes + FILL_CHUNK - 1) / FILL_CHUNK, fill_chunk, &f);
}

void hk_stand_fill(hk_team *team, void *memory, hk_bytes bytes, bool positive) {
  fill(team, (filling){memory, bytes, positive ? POSITIVE : UINT64_MAX, NULL});
}

/* ---- Memory outside the arena ---------------------------------------------------------------- */

hk_status hk_stand_pageable(hk_stand *stand, hk_error *err) {
  if (stand->pageable != NULL) return HK_OK;
  const hk_bytes bytes = stand->arena.bytes / 16;
  hk_team *team;
  HK_TRY(hk_stand_team(stand, stand->cores, &team, err));
  HK_TRY(hk_arena_check_room(bytes, "a probe", err));
  void *base =
      mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return hk_fail(err, HK_ENVIRONMENT, "%lld bytes of host memory for a probe: %s",
                   (long long)bytes, strerror(errno));
  }
  (void)madvise(base, (size_t)bytes, MADV_NOHUGEPAGE); /* refused if there are no huge pages */
  hk_stand_fill(team, base, bytes, false);
  stand->pageable = base;
  stand->pageable_bytes = bytes;
  return HK_OK;
}

/* ---- The arena ------------------------------------------------------------------------------- */

/* `spare`: memory of the same size for results of ADAMW_AHEAD. */
static void lay_out_arrays(hk_stand_arrays *a, char *at, char *spare, hk_bytes bytes) {
  /* 24 bytes a parameter, and two windows of a byte for a block */
  const int64_t blocks = (bytes - 9 * SKEW) / (24 * HK_CODE_BLOCK + 2);
  const int64_t n = blocks * HK_CODE_BLOCK / 4096 * 4096;
  a->params = n;
  a->piece = n < HK_PROBE_CPU_PIECE ? n : HK_PROBE_CPU_PIECE;
  float **const floats[] = {&a->p, &a->m, &a->v, &a->grad32};
  for (int i = 0; i < 4; i++, at += 4 * n + SKEW) *floats[i] = (float *)(void *)at;
  a->grad = (uint16_t *)(void *)at;
  a->w = (uint16_t *)(void *)(at += 2 * n + SKEW);
  a->low = (uint16_t *)(void *)(at += 2 * n + SKEW);
  a->codes_m = at += 2 * n + SKEW;
  a->codes_v = at += n + SKEW;
  a->windows = at + n + SKEW;
  float **const spares[] = {&a->p_to, &a->m_to, &a->v_to};
  for (int i = 0; i < 3; i++, spare += 4 * n + SKEW) *spares[i] = (float *)(void *)spare;
}

static void lay_out(hk_stand *stand) {
  char *base = stand->arena.base;
  const hk_bytes quarter = stand->quarter = stand->arena.bytes / 4;
  stand->in = base;
  stand->out = base + quarter;
  lay_out_arrays(&stand->cpu, base + 2 * quarter, stand->out, quarter);
  stand->mapped = base + 3 * quarter;
  const int64_t n = stand->mapped_params = quarter / 12 / 32 * 32;
  stand->mapped_shape = (hk_slab_shape){
      .numel = n, .bytes = HK_BYTES_STATE * n, .m = HK_BYTES_FP32 * n, .v = 2 * HK_BYTES_FP32 * n};
}

static void fill_codes(hk_team *team, const hk_stand_arrays *a, const volatile sig_atomic_t *stop) {
  fill(team, (filling){a->codes_m, a->params, CODES_M, stop});
  fill(team, (filling){a->codes_v, a->params, CODES_V, stop});
  for (int64_t block = 0; block < a->params / HK_CODE_BLOCK; block++) {
    a->windows[2 * block] = WINDOW_M;
    a->windows[2 * block + 1] = WINDOW_V;
  }
}

hk_status hk_stand_memory_open(hk_stand *stand, hk_bytes host_bytes, hk_error *err) {
  hk_team *team;
  HK_TRY(hk_stand_team(stand, stand->cores, &team, err));
  HK_TRY(hk_arena_open_until(stand->stop, host_bytes, team, stand->gpu[0].pci, &stand->arena, err));
  hk_stand_add_note(stand, stand->arena.note);
  HK_TRY(hk_stand_go_on(stand, err));
  HK_TRY(hk_arena_register(&stand->arena, stand->gpu[0].backend, err));
  lay_out(stand);
  char *v = stand->mapped + stand->mapped_shape.v;
  const volatile sig_atomic_t *stop = stand->stop;
  fill(team, (filling){stand->arena.base, stand->arena.bytes, UINT64_MAX, stop});
  fill(team, (filling){(char *)stand->cpu.v, 4 * stand->cpu.params, POSITIVE, stop});
  fill(team, (filling){v, 4 * stand->mapped_params, POSITIVE, stop});
  fill_codes(team, &stand->cpu, stop);
  return hk_stand_go_on(stand, err);
}

void hk_stand_memory_close(hk_stand *stand) {
  if (stand->gpus == 0) return;
  if (stand->pageable != NULL) munmap(stand->pageable, (size_t)stand->pageable_bytes);
  hk_arena_close(&stand->arena);
}
