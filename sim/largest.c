/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/largest.h"

#include "core/base/units.h"

#define MOST_TRIED 256 /* doubling and halving of 63 bits, and numbers above */

typedef struct {
  const hk_largest_search *search;
  int64_t low, high; /* low fits, or is 0; high does not, or is most + 1 */
  int made;
  int64_t tried[MOST_TRIED];
  bool fitted[MOST_TRIED];
} state;

/* Halvings of the interval that are left, and the numbers that are tried at the end. */
static int remaining(const state *s) {
  int n = 3;
  for (int64_t width = s->high - s->low; width > 1; width /= 2) n++;
  return n;
}

static hk_status attempt(state *s, int64_t n, bool *fits, hk_error *err) {
  const hk_largest_search *search = s->search;
  for (int i = 0; i < s->made; i++) {
    if (s->tried[i] != n) continue;
    *fits = s->fitted[i];
    return HK_OK;
  }
  if (s->made == MOST_TRIED)
    return hk_fail(err, HK_NO, "the search for the largest that fits tried %d numbers", MOST_TRIED);
  if (search->progress) search->progress(search->context, s->made, remaining(s));
  HK_TRY(search->attempt(search->context, n, fits, err));
  s->tried[s->made] = n;
  s->fitted[s->made++] = *fits;
  return HK_OK;
}

/* Tries n and moves an end of the interval there. */
static hk_status narrow(state *s, int64_t n, hk_error *err) {
  bool fits = false;
  HK_TRY(attempt(s, n, &fits, err));
  if (fits)
    s->low = n;
  else
    s->high = n;
  return HK_OK;
}

/* Doubles from `low` until a number does not fit, then bisects. */
static hk_status bisect(state *s, hk_error *err) {
  const int64_t most = s->search->most;
  while (s->high > most && s->low < most)
    HK_TRY(narrow(s, hk_min(most, hk_max(1, 2 * s->low)), err));
  while (s->high - s->low > 1) HK_TRY(narrow(s, s->low + (s->high - s->low) / 2, err));
  return HK_OK;
}

/* Tries numbers above the largest so far. *found: one of them fits, and is now the lower end. */
static hk_status look_above(state *s, bool *found, hk_error *err) {
  const int64_t low = s->low, high = s->high, most = s->search->most;
  const int64_t above[] = {low + low / 8 + 2, low + low / 2 + 3, 3 * low + 5};
  *found = false;
  for (int i = 0; i < 3 && low > 0 && above[i] <= most && !*found; i++) {
    if (above[i] <= high) continue;
    HK_TRY(attempt(s, above[i], found, err));
    if (*found) s->low = above[i];
  }
  if (*found) s->high = most + 1;
  return HK_OK;
}

hk_status hk_largest(const hk_largest_search *search, int64_t *largest, hk_error *err) {
  state s = {.search = search, .high = search->most + 1};
  *largest = 0;
  for (bool found = true; found;) {
    HK_TRY(bisect(&s, err));
    HK_TRY(look_above(&s, &found, err));
  }
  *largest = s.low;
  return HK_OK;
}
