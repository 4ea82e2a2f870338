/* SPDX-License-Identifier: Apache-2.0 */
/* A set is a sorted array of runs. Adjacent runs are joined, so that gradients given in order, from
 * either end, stay one run. */
#include "engine/ranges.h"

#include <stdlib.h>
#include <string.h>

/* The first run that ends after `at`. */
static size_t find(const hk_ranges *set, int64_t at) {
  size_t low = 0, high = set->n;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (set->runs[middle].end > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

bool hk_ranges_meet(const hk_ranges *set, int64_t begin, int64_t end, int64_t *first) {
  const size_t i = find(set, begin);
  if (i == set->n || set->runs[i].begin >= end) return false;
  *first = set->runs[i].begin > begin ? set->runs[i].begin : begin;
  return begin < end;
}

static hk_status make_room(hk_ranges *set, hk_error *err) {
  if (set->n < set->capacity) return HK_OK;
  const size_t capacity = set->capacity > 0 ? 2 * set->capacity : 64;
  hk_range *runs = realloc(set->runs, capacity * sizeof *runs);
  if (runs == NULL) return hk_fail_memory(err, capacity * sizeof *runs, "a list of gradients");
  set->runs = runs;
  set->capacity = capacity;
  return HK_OK;
}

hk_status hk_ranges_add(hk_ranges *set, int64_t begin, int64_t end, hk_error *err) {
  if (begin == end) return HK_OK;
  HK_TRY(make_room(set, err));
  const size_t i = find(set, begin);
  hk_range *at = set->runs + i;
  const bool joins_left = i > 0 && at[-1].end == begin;
  const bool joins_right = i < set->n && at->begin == end;
  if (joins_left && joins_right) {
    at[-1].end = at->end;
    memmove(at, at + 1, (set->n - i - 1) * sizeof *at);
    set->n--;
  } else if (joins_left) {
    at[-1].end = end;
  } else if (joins_right) {
    at->begin = begin;
  } else {
    memmove(at + 1, at, (set->n - i) * sizeof *at);
    *at = (hk_range){begin, end};
    set->n++;
  }
  set->total += end - begin;
  return HK_OK;
}

int64_t hk_ranges_gap(const hk_ranges *set) {
  return set->n > 0 && set->runs[0].begin <= 0 ? set->runs[0].end : 0;
}

void hk_ranges_clear(hk_ranges *set) {
  set->n = 0;
  set->total = 0;
}

void hk_ranges_free(hk_ranges *set) {
  free(set->runs);
  *set = (hk_ranges){0};
}
