/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rates depend only on which operations are fluid and on their demands. If lanes repeat the same
 * operation, as in replays of probes, the same few sets of fluid operations alternate. Their rates
 * are computed once and remembered. The order of the operations is part of the key, because sums of
 * doubles depend on it. */
#include <string.h>

#include "sim/state.h"

uint64_t hk_rate_cache_key(const hk_sim_state *s) {
  uint64_t key = 0;
  int n = 0;
  for (int i = 0; i < s->n_running; i++) {
    const int32_t lane = s->running[i];
    if (!s->active[lane].fluid) continue;
    if (++n > HK_RATE_CACHE_LANES || lane >= UINT8_MAX) return 0;
    key = key << 8 | (uint64_t)(lane + 1);
  }
  return key;
}

/* Multiplicative hash (Knuth, The Art of Computer Programming, 6.4): the highest bits of the
 * product with 2^64 / golden ratio, which depend on all bits of the key. */
static size_t slot_of(uint64_t key) {
  _Static_assert(HK_RATE_CACHE_SLOTS == 1 << 6, "as many slots as 64 - 58 bits number");
  return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

static double *used_of(const hk_sim_state *s, uint64_t key) {
  return s->rate_cache_used + slot_of(key) * (size_t)s->n_resources;
}

static const hk_cached_rates *known_of(const hk_sim_state *s, uint64_t key) {
  const hk_cached_rates *known = &s->rate_cache[slot_of(key)];
  return key != 0 && known->fluid == key && known->demands == s->demands ? known : NULL;
}

bool hk_rate_cache_get(hk_sim_state *s, uint64_t key) {
  const hk_cached_rates *known = known_of(s, key);
  if (known == NULL) return false;
  int n = 0;
  for (int i = 0; i < s->n_running; i++) {
    hk_active_op *active = &s->active[s->running[i]];
    if (active->fluid) active->activity.rate = known->rates[n++];
  }
  memcpy(s->used, used_of(s, key), (size_t)s->n_resources * sizeof *s->used);
  return true;
}

void hk_rate_cache_put(hk_sim_state *s, uint64_t key) {
  if (key == 0) return;
  hk_cached_rates *known = &s->rate_cache[slot_of(key)];
  known->fluid = key;
  known->demands = s->demands;
  int n = 0;
  for (int i = 0; i < s->n_running; i++) {
    const hk_active_op *active = &s->active[s->running[i]];
    if (active->fluid) known->rates[n++] = active->activity.rate;
  }
  memcpy(used_of(s, key), s->used, (size_t)s->n_resources * sizeof *s->used);
}

bool hk_rate_cache_agrees(const hk_sim_state *s, uint64_t key) {
  const hk_cached_rates *known = known_of(s, key);
  if (known == NULL) return true;
  int n = 0;
  for (int i = 0; i < s->n_running; i++) {
    const hk_active_op *active = &s->active[s->running[i]];
    if (active->fluid && known->rates[n++] != active->activity.rate) return false;
  }
  return memcmp(used_of(s, key), s->used, (size_t)s->n_resources * sizeof *s->used) == 0;
}
