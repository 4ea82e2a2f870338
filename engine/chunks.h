/* SPDX-License-Identifier: Apache-2.0 */
/* How a team shares out one piece of work: chunks of `most` first, then, over what keeps the team
 * busy twice more, ever smaller ones, so that all members end at about the same time (factoring:
 * Hummel, Schonberg, Flynn, Communications of the ACM 35, 1992). Equal chunks would leave members
 * idle for most of the last one, which for small work is most of the time. */
#ifndef HK_ENGINE_CHUNKS_H
#define HK_ENGINE_CHUNKS_H

#include <stdint.h>

/* Chunks begin at multiples of this: whole cache lines of bf16, fp32 and gradients alike. */
#define HK_CHUNK_ALIGN 64
/* No chunk but the last is smaller: taking one costs a cache line's way between two cores. */
#define HK_CHUNK_LEAST 4096
/* `most` / HK_CHUNK_LEAST halvings and the first; `most` up to 2^32 units. */
#define HK_CHUNK_ROUNDS 24

typedef struct {
  int64_t n;     /* units of work */
  int64_t count; /* chunks */
  int rounds;
  struct {
    int64_t chunk, begin, size; /* the round's first chunk, where it begins, units of each */
  } round[HK_CHUNK_ROUNDS];
} hk_chunks;

/* n >= 0, most >= 1, threads >= 1. */
hk_chunks hk_chunks_of(int64_t n, int64_t most, int threads);
/* Where chunk c begins; n for c = count. */
int64_t hk_chunk_begin(const hk_chunks *chunks, int64_t c);

#endif
