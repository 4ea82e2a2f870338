/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Names and traits of loads, and rates from stretches of work. */
#include "calib/probes/probe.h"

#include <math.h>

/* ---- Names ----------------------------------------------------------------------------------- */

typedef struct {
  const char *name, *unit;
  hk_op_kind op;
  unsigned traits;
} load_info;

static const load_info infos[HK_LOAD_KINDS] = {
#define HK_LOAD_INFO(name, text, unit, op, traits, meaning) {text, unit, HK_OP_##op, traits},
    HK_LOADS(HK_LOAD_INFO)
#undef HK_LOAD_INFO
};

static const load_info *info_of(hk_load_kind kind) {
  static const load_info none = {"unknown", "", HK_OP_KIND_COUNT, HK_TRAIT_NONE};
  return (unsigned)kind < HK_LOAD_KINDS ? &infos[kind] : &none;
}

const char *hk_load_name(hk_load_kind kind) {
  return info_of(kind)->name;
}

const char *hk_load_unit(hk_load_kind kind) {
  return info_of(kind)->unit;
}

hk_op_kind hk_load_op(hk_load_kind kind) {
  return info_of(kind)->op;
}

bool hk_load_is(hk_load_kind kind, unsigned traits) {
  return (info_of(kind)->traits & traits) == traits;
}

int64_t hk_load_operation(const hk_load *load) {
  if (!hk_load_is(load->kind, HK_TRAIT_CPU)) return load->chunk;
  return load->piece > 0 ? load->piece : HK_PROBE_CPU_PIECE;
}

/* ---- Rates ----------------------------------------------------------------------------------- */

/* The part of a stretch that falls into [from, to), 0 to 1. */
static double part_within(const hk_stretch *s, hk_ns from, hk_ns to) {
  if (s->end <= s->begin) return s->begin >= from && s->begin < to;
  const hk_ns inside = hk_min(s->end, to) - hk_max(s->begin, from);
  return inside > 0 ? (double)inside / (double)(s->end - s->begin) : 0;
}

hk_status hk_probe_rates(hk_probe_mode mode, const hk_stretch *const *stretches,
                         const size_t *counts, int n_loads, double *rates, hk_error *err) {
  const bool whole = mode == HK_PROBE_WHOLE;
  hk_ns from = whole ? INT64_MAX : INT64_MIN, to = whole ? INT64_MIN : INT64_MAX;
  for (int i = 0; i < n_loads; i++) {
    if (counts[i] == 0) return hk_fail(err, HK_NO, "load %d of the probe completed no work", i);
    const hk_ns begin = stretches[i][0].begin, end = stretches[i][counts[i] - 1].end;
    from = whole ? hk_min(from, begin) : hk_max(from, begin);
    to = whole ? hk_max(to, end) : hk_min(to, end);
  }
  if (n_loads < 1 || to <= from) {
    return hk_fail(err, HK_NO, "the %d loads of the probe did not run at the same time", n_loads);
  }
  for (int i = 0; i < n_loads; i++) {
    double work = 0, idle = 0;
    for (size_t s = 0; s < counts[i]; s++) {
      const double part = part_within(&stretches[i][s], from, to);
      work += stretches[i][s].work * part;
      idle += (double)stretches[i][s].idle * part;
    }
    rates[i] = work * 1e9 / fmax((double)(to - from) - idle, 1);
  }
  return HK_OK;
}
