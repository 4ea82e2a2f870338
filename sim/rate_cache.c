/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rates depend only on the demands of the operations that are fluid. The same few sets of demands
 * alternate: of a block's forward beside copies of a piece, of a CPU kernel beside both, and so on.
 * Their rates are computed once and remembered. Demands are numbered; the numbers in the order of
 * the operations are the key, because sums of doubles depend on it. */
#include <string.h>

#include "sim/state.h"

/* Whether contention and sharing treat both alike: all that hk_contend and hk_share read. */
static bool same_demand(const hk_active_op *a, const hk_active_op *b) {
  if (a->cap != b->cap || a->weight != b->weight || a->weight_crowded != b->weight_crowded ||
      a->traffic != b->traffic || a->rank != b->rank || a->slowed != b->slowed ||
      a->computes != b->computes || a->updates != b->updates || a->sums != b->sums ||
      a->beside_compute != b->beside_compute || a->launched != b->launched ||
      a->computed != b->computed || a->launches_kept != b->launches_kept || a->among != b->among ||
      a->host_wish != b->host_wish || a->activity.n_uses != b->activity.n_uses)
    return false;
  for (int32_t u = 0; u < a->activity.n_uses; u++)
    if (a->uses[u].resource != b->uses[u].resource || a->uses[u].per_unit != b->uses[u].per_unit)
      return false;
  return true;
}

uint8_t hk_rate_cache_number(hk_sim_state *s, const hk_active_op *active) {
  int n = 0;
  while (n < s->n_numbered && !same_demand(&s->numbered[n], active)) n++;
  if (n == HK_RATE_CACHE_DEMANDS) return 0;
  if (n < s->n_numbered) return (uint8_t)(n + 1);
  s->numbered[n] = *active;
  s->numbered[n].number = (uint8_t)++s->n_numbered;
  return s->numbered[n].number;
}

uint64_t hk_rate_cache_key(const hk_sim_state *s) {
  uint64_t key = 0;
  int n = 0;
  for (int i = 0; i < s->n_running; i++) {
    const hk_active_op *active = &s->active[s->running[i]];
    if (!active->fluid) continue;
    if (++n > HK_RATE_CACHE_LANES || active->number == 0) return 0;
    key = key << 8 | active->number;
  }
  return key;
}

/* Multiplicative hash (Knuth, The Art of Computer Programming, 6.4): the highest bits of the
 * product with 2^64 / golden ratio, which depend on all bits of the key. */
static size_t slot_of(uint64_t key) {
  _Static_assert(HK_RATE_CACHE_SLOTS == 1 << 8, "as many slots as 64 - 56 bits number");
  return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

static double *used_of(const hk_sim_state *s, uint64_t key) {
  return s->rate_cache_used + slot_of(key) * (size_t)s->n_resources;
}

static const hk_cached_rates *known_of(const hk_sim_state *s, uint64_t key) {
  const hk_cached_rates *known = &s->rate_cache[slot_of(key)];
  return key != 0 && known->fluid == key ? known : NULL;
}

bool hk_rate_cache_get(hk_sim_state *s, uint64_t key) {
  const hk_cached_rates *known = known_of(s, key);
  if (known == NULL) return false;
  int n = 0;
  for (int i = 0; i < s->n_running; i++) {
    hk_active_op *active = &s->active[s->running[i]];
    if (active->fluid) active->activity.rate = known->rates[n++];
  }
  if (s->repeat == NULL) /* else nobody asks what was used */
    memcpy(s->used, used_of(s, key), (size_t)s->n_resources * sizeof *s->used);
  return true;
}

void hk_rate_cache_put(hk_sim_state *s, uint64_t key) {
  if (key == 0) return;
  hk_cached_rates *known = &s->rate_cache[slot_of(key)];
  known->fluid = key;
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
