/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Campaigns with the values that probes of a given machine would give (simulated rates plus noise),
 * and profiles fitted to them. */
#ifndef HK_TESTS_FIXTURE_CAMPAIGN_H
#define HK_TESTS_FIXTURE_CAMPAIGN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "calib/fit/probe_fit.h"
#include "calib/probes/replay.h"
#include "tests/random.h"

#define ROUNDS 7

static inline void check_near(const char *what, double value, double expected, double share) {
  if (!(fabs(value / expected - 1) <= share))
    fail_msg("%s: %.6g is %.3g %% off %.6g", what, value, 100 * (value / expected - 1), expected);
}

/* Approximately standard normal: a sum of 12 uniform numbers, less 6. */
static inline double noise(random_stream *r) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += uniform(r);
  return sum;
}

/* Values of loads that the simulator has no operation for. */
static inline double direct(const hk_machine *m, hk_load_kind kind) {
  switch (kind) {
    case HK_LOAD_MEMORY:
      return m->gpu_memory.value;
    case HK_LOAD_MATMUL:
      return m->gpu_flops.value;
    case HK_LOAD_LAUNCH:
      return 1e9 / m->gpu_launch.value;
    case HK_LOAD_LAUNCH_LOOP:
      return 240e3;
    case HK_LOAD_HOP:
      return fmax(m->gpu_hop.value, 1);
    case HK_LOAD_PEER:
      return m->nvlink.value;
    case HK_LOAD_TURNS:
      return fmin(m->copies_at_once.value, 4);
    default:
      return 1e10;
  }
}

/* Values of the probe's loads on machine `m`, without noise. */
static inline void truth_of(const hk_probe *p, const hk_machine *m, double *values) {
  hk_error err = {0};
  double guess[HK_PROBE_LOADS];
  for (int i = 0; i < p->n_loads; i++) {
    values[i] = direct(m, p->loads[i].kind);
    if (p->loads[i].kind == HK_LOAD_MATMUL && p->n_loads > 1)
      values[i] *= m->compute_beside_update.value;
    if (p->loads[i].kind == HK_LOAD_LAUNCH_LOOP && p->n_loads > 1)
      values[i] *= m->launch_beside_update.value;
  }
  if (!hk_replay_can(p)) return;
  for (int i = 0; i < p->n_loads; i++)
    guess[i] = hk_load_is(p->loads[i].kind, HK_TRAIT_CPU) || p->loads[i].kind == HK_LOAD_MAPPED
                   ? 3e9
                   : 40e9;
  must(hk_replay(p, m, guess, values, &err), &err);
}

static inline void add_rounds(hk_campaign *c, const hk_probe *p, const double *values,
                              double scatter, random_stream *r) {
  hk_error err = {0};
  double noisy[HK_PROBE_LOADS];
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < p->n_loads; i++) noisy[i] = values[i] * (1 + scatter * noise(r));
    must(hk_campaign_add(c, p->name, noisy, p->n_loads, &err), &err);
  }
}

static inline hk_campaign seeded_campaign(const hk_machine *m, bool quick, double scatter,
                                          uint64_t seed) {
  hk_error err = {0};
  hk_campaign c;
  hk_probe *probes;
  size_t n;
  random_stream r = {seed};
  const hk_probe_scope scope = {.gpus = (int)m->gpus.value,
                                .cores = (int)m->cores.value,
                                .host_bytes = 16LL << 30,
                                .device_bytes = 16LL << 30,
                                .peers = true,
                                .quick = quick};
  must(hk_probes_list(&scope, &probes, &n, &err), &err);
  must(hk_campaign_open(probes, n, &c, &err), &err);
  for (size_t i = 0; i < n; i++) {
    double values[HK_PROBE_LOADS];
    truth_of(&probes[i], m, values);
    add_rounds(&c, &probes[i], values, scatter, &r);
  }
  free(probes);
  return c;
}

static inline hk_campaign campaign_of(const hk_machine *m, bool quick, double scatter) {
  return seeded_campaign(m, quick, scatter, 1);
}

static inline hk_fingerprint fingerprint_of(const hk_machine *m) {
  hk_fingerprint f = {.backend = "cuda", .cpu = "a CPU", .gpu = "a GPU"};
  f.gpus = (int64_t)m->gpus.value;
  f.cores = (int64_t)m->cores.value;
  f.memory = (int64_t)m->host_memory.value;
  return f;
}

static inline hk_status try_fit(const hk_campaign *c, const hk_machine *m, hk_profile_fit *fit,
                                hk_error *err) {
  const hk_fingerprint f = fingerprint_of(m);
  const hk_profile_fit_options options = {.name = "test", .date = "2026-11-21"};
  return hk_profile_fit_make(c, &f, &options, fit, err);
}

static inline hk_profile_fit fitted(const hk_campaign *c, const hk_machine *m) {
  hk_error err = {0};
  hk_profile_fit fit;
  must(try_fit(c, m, &fit, &err), &err);
  return fit;
}

/* A node like an H200's in which every contention effect occurs. */
static inline hk_machine h200(void) {
  hk_machine m;
  hk_error err = {0};
  must(hk_machine_load(HK_TEST_DATA "/probed-node.json", &m, &err), &err);
  m.dram.value = 140e9; /* AdamW on all 16 cores saturates it */
  m.dram_with_dma.value = 165e9;
  m.h2d_loaded.value = 24e9;
  m.h2d_load_from.value = 0.35;
  m.d2h_cost.value = 1.3;
  m.dma_weight.value = 1.3;
  m.d2h_priority.value = 1.4;
  m.pcie_d2h_priority.value = 1.15;
  m.cpu_beside_h2d.value = 0.85;
  m.cpu_beside_d2h.value = 0.92;
  m.cpu_unscale_threads.value = 5;
  m.cpu_adamw_fp32_threads.value = 8;
  m.cpu_cast_threads.value = 4;
  m.cpu_adamw_8bit.value = 11e9; /* memory does not limit it: 140e9 / 16.03 = 8.7e9 */
  m.cpu_adamw_8bit_threads.value = 12;
  m.cpu_adamw_8bit_split.value = 14e9;
  m.cpu_adamw_8bit_split_threads.value = 16;
  m.h2d_latency.value = 3500;
  m.d2h_latency.value = 2500;
  m.gpu_launch.value = 4000;
  m.gpu_hop.value = 11e3;
  m.launch_beside_copies.value = 6e3;
  m.launch_beside_pulls.value = 9e3;
  m.launch_beside_reads.value = 21e3;
  m.gpu_beside_h2d.value = 0.95;
  m.gpu_beside_d2h.value = 0.97;
  m.h2d_pageable_latency.value = 20e3;
  m.d2h_pageable_latency.value = 30e3;
  m.pull.value = 38e9;
  m.h2d_cached.value = 12e9;
  m.cached.value = 47.45e6; /* between 32 and 64 MiB */
  m.copies_at_once.value = 1;
  m.d2h_beside_reads.value = 0.3;
  m.h2d_beside_reads.value = 0.75;
  m.shared_reads.value = 0.9;
  m.cpu_operation.value = 12e3;
  m.cpu_adamw_ahead.value = 0.86;
  m.launch_beside_update.value = 0.4;
  return m;
}

static inline const hk_calibrated *calibrated(const hk_profile_fit *fit, const char *key) {
  for (size_t i = 0; i < fit->n_quantities; i++)
    if (strcmp(fit->quantities[i].info->key, key) == 0) return &fit->quantities[i];
  return NULL;
}

static inline void print_worst(const hk_profile_fit *fit) {
  for (size_t i = 0; i < fit->n_replays; i++)
    if (fabs(fit->replays[i].error_pct) > 5)
      print_message("%s [%d]: %.2f %%\n", fit->replays[i].probe, fit->replays[i].load,
                    fit->replays[i].error_pct);
}

#endif
