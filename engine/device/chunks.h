/* SPDX-License-Identifier: Apache-2.0 */
/* How one piece of work is cut into chunks for a team: first chunks of size `most`, then rounds of
 * smaller and smaller chunks, each round about half of the rest, so that all threads end at about
 * the same time (factoring: Hummel, Schonberg, Flynn, Communications of the ACM 35, 1992). With
 * equal chunks most threads would be idle while the last chunks run, which for small pieces is most
 * of the time. */
#ifndef HK_ENGINE_DEVICE_CHUNKS_H
#define HK_ENGINE_DEVICE_CHUNKS_H

#include <stdint.h>

/* Chunks begin at multiples of so many elements, which are cache lines for bf16, fp32 and codes,
 * and a block of codes (HK_CODE_BLOCK). */
#define HK_CHUNK_ALIGN 128
/* Smallest chunk, except the last one. Taking a chunk moves a cache line from one core to another.
 */
#define HK_CHUNK_LEAST 4096
/* Most rounds: enough to halve from `most` = 2^32 to HK_CHUNK_LEAST. */
#define HK_CHUNK_ROUNDS 24

typedef struct {
  int64_t n;     /* number of elements */
  int64_t count; /* chunks */
  int rounds;
  struct {
    int64_t chunk, begin,
        size; /* number and begin of the round's first chunk, elements per chunk */
  } round[HK_CHUNK_ROUNDS];
} hk_chunks;

/* n >= 0, most >= 1, threads >= 1. */
hk_chunks hk_chunks_of(int64_t n, int64_t most, int threads);
/* First element of chunk c; n for c = count. */
int64_t hk_chunk_begin(const hk_chunks *chunks, int64_t c);

#endif
