/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting work into chunks of decreasing size. */
#include "engine/device/chunks.h"

#include <stdbool.h>

#include "core/base/units.h"

static int64_t aligned(int64_t n) {
  return (n + HK_CHUNK_ALIGN - 1) / HK_CHUNK_ALIGN * HK_CHUNK_ALIGN;
}

hk_chunks hk_chunks_of(int64_t n, int64_t most, int threads) {
  hk_chunks c = {.n = n};
  const int64_t least = hk_min(HK_CHUNK_LEAST, aligned(most));
  for (int64_t begin = 0; begin < n;) {
    const int64_t left = n - begin;
    const int64_t half = aligned((left + 2 * threads - 1) / (2 * threads));
    const int64_t size = hk_max(least, hk_min(half, aligned(most)));
    const bool last = size == least || c.rounds == HK_CHUNK_ROUNDS - 1;
    /* While chunks have the largest size: as many of them as leave 2 * threads of them for the
     * rounds. */
    const int64_t full = (left - 2 * threads * size) / size;
    int64_t chunks = size < half ? hk_max(full, 1) : threads;
    if (last) chunks = (left + size - 1) / size;
    chunks = hk_min(chunks, (left + size - 1) / size);
    c.round[c.rounds].chunk = c.count;
    c.round[c.rounds].begin = begin;
    c.round[c.rounds].size = size;
    c.rounds++;
    c.count += chunks;
    begin += chunks * size;
  }
  return c;
}

int64_t hk_chunk_begin(const hk_chunks *c, int64_t chunk) {
  if (chunk >= c->count) return c->n;
  int r = c->rounds - 1;
  while (c->round[r].chunk > chunk) r--;
  return c->round[r].begin + (chunk - c->round[r].chunk) * c->round[r].size;
}
