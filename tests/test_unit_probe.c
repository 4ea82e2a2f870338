/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rates in the common window of concurrent loads against values by hand; the list of probes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "calib/probes/probe.h"
#include "tests/fixture.h"

/* -- Rates ------------------------------------------------------------------------------------- */

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void assert_near(double got, double wanted) {
  if (!(fabs(got - wanted) <= 1e-12 * wanted)) fail_msg("%.17g, not %.17g", got, wanted);
}

static hk_status rates_of_two(hk_probe_mode mode, const hk_stretch *a, size_t n_a,
                              const hk_stretch *b, size_t n_b, double rates[2]) {
  hk_error err = {0};
  return hk_probe_rates(mode, (const hk_stretch *const[]){a, b}, (const size_t[]){n_a, n_b}, 2,
                        rates, &err);
}

static void test_one_load(void **state) {
  (void)state;
  const hk_stretch s[] = {{100, 300, 4, 0}, {300, 500, 8, 0}};
  double rate = 0;
  hk_error err = {0};
  must(hk_probe_rates(HK_PROBE_WINDOW, (const hk_stretch *const[]){s}, (const size_t[]){2}, 1,
                      &rate, &err),
       &err);
  assert_near(rate, 12 / 400e-9);
}

/* Load a does 10 units a ns in [0, 100) and 20 in [100, 200), load b 5 in [50, 150). The window is
 * [50, 150), which has half of each of a's stretches: 1500 units in 100 ns. */
static void test_overlap(void **state) {
  (void)state;
  const hk_stretch a[] = {{0, 100, 1000, 0}, {100, 200, 2000, 0}}, b[] = {{50, 150, 500, 0}};
  double rates[2];
  assert_int_equal(rates_of_two(HK_PROBE_WINDOW, a, COUNT(a), b, COUNT(b), rates), HK_OK);
  assert_near(rates[0], 15e9);
  assert_near(rates[1], 5e9);
}

/* Idle time of a lane within the window counts; stretches outside the window do not. */
static void test_gaps(void **state) {
  (void)state;
  const hk_stretch a[] = {{0, 10, 100, 0}, {20, 30, 100, 0}, {90, 100, 100, 0}, {100, 200, 1e6, 0}};
  const hk_stretch b[] = {{0, 100, 300, 0}};
  double rates[2];
  assert_int_equal(rates_of_two(HK_PROBE_WINDOW, a, COUNT(a), b, COUNT(b), rates), HK_OK);
  assert_near(rates[0], 3e9);
  assert_near(rates[1], 3e9);
}

/* The work of a stretch of duration 0 (coarse clock) counts. */
static void test_instant_stretch(void **state) {
  (void)state;
  const hk_stretch a[] = {{0, 50, 1, 0}, {50, 50, 6, 0}, {50, 100, 1, 0}}, b[] = {{0, 100, 2, 0}};
  double rates[2];
  assert_int_equal(rates_of_two(HK_PROBE_WINDOW, a, COUNT(a), b, COUNT(b), rates), HK_OK);
  assert_near(rates[0], 8 / 100e-9);
}

/* Load a waits for 60 of its first 100 ns and for 20 of the second. The window [50, 200) has half
 * of the first stretch and all of the second: 5 + 40 units in 150 - 30 - 20 ns. */
static void test_idle(void **state) {
  (void)state;
  const hk_stretch a[] = {{0, 100, 10, 60}, {100, 200, 40, 20}}, b[] = {{50, 250, 300, 0}};
  double rates[2];
  assert_int_equal(rates_of_two(HK_PROBE_WINDOW, a, COUNT(a), b, COUNT(b), rates), HK_OK);
  assert_near(rates[0], 45 / 100e-9);
  assert_near(rates[1], 1.5e9);
}

/* HK_PROBE_WHOLE: each load's work over the time from the first start to the last end of all. */
static void test_whole(void **state) {
  (void)state;
  const hk_stretch a[] = {{10, 60, 500, 0}}, b[] = {{0, 100, 1000, 0}, {100, 210, 1000, 0}};
  double rates[2];
  assert_int_equal(rates_of_two(HK_PROBE_WHOLE, a, COUNT(a), b, COUNT(b), rates), HK_OK);
  assert_near(rates[0], 500 / 210e-9);
  assert_near(rates[1], 2000 / 210e-9);
}

static void test_no_window(void **state) {
  (void)state;
  const hk_stretch a[] = {{0, 100, 1, 0}}, b[] = {{100, 200, 1, 0}};
  double rates[2];
  assert_int_equal(rates_of_two(HK_PROBE_WINDOW, a, 1, b, 1, rates), HK_NO);
  assert_int_equal(rates_of_two(HK_PROBE_WHOLE, a, 1, b, 1, rates), HK_OK);
  assert_int_equal(rates_of_two(HK_PROBE_WHOLE, a, 1, b, 0, rates), HK_NO);
}

/* -- Names ------------------------------------------------------------------------------------- */

static void test_names(void **state) {
  (void)state;
  for (int k = 0; k < HK_LOAD_KINDS; k++) {
    assert_true(*hk_load_unit((hk_load_kind)k) != '\0');
  }
  assert_string_equal(hk_load_name(HK_LOAD_ADAMW_FP32), "adamw_cpu_fp32");
  assert_string_equal(hk_load_unit(HK_LOAD_HOP), "ns");
  assert_int_equal(hk_load_op(HK_LOAD_H2D), HK_OP_STATE_H2D);
  assert_int_equal(hk_load_op(HK_LOAD_MATMUL), HK_OP_KIND_COUNT);
  assert_true(hk_load_is(HK_LOAD_CAST, HK_TRAIT_CPU) && !hk_load_is(HK_LOAD_MAPPED, HK_TRAIT_CPU));
}

/* -- The list ---------------------------------------------------------------------------------- */

static const hk_probe_scope h200 = {
    .gpus = 1, .cores = 16, .host_bytes = 8 * HK_GIB, .device_bytes = 4 * HK_GIB};

static hk_probe *list(hk_probe_scope scope, size_t *n) {
  hk_error err = {0};
  hk_probe *probes = NULL;
  must(hk_probes_list(&scope, &probes, n, &err), &err);
  return probes;
}

static const hk_probe *find(const hk_probe *probes, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++) {
    if (strcmp(probes[i].name, name) == 0) return &probes[i];
  }
  return NULL;
}

static bool same_lane(const hk_load *a, const hk_load *b) {
  return hk_load_is(a->kind, HK_TRAIT_CPU) ? hk_load_is(b->kind, HK_TRAIT_CPU)
                                           : a->kind == b->kind && a->gpu == b->gpu;
}

static void check_load(const hk_probe_scope *s, const hk_probe *p, const hk_load *l) {
  assert_in_range(l->kind, 0, HK_LOAD_KINDS - 1);
  assert_in_range(l->gpu, 0, s->gpus - 1);
  assert_true(l->chunk > 0 && l->chunk <= s->host_bytes / 8);
  assert_true((l->share > 0) == (p->mode == HK_PROBE_WHOLE));
  if (hk_load_is(l->kind, HK_TRAIT_CPU)) {
    assert_in_range(l->threads, 1, s->cores);
  } else {
    assert_int_equal(l->threads, 0);
  }
  assert_true(l->kind != HK_LOAD_MATMUL || (l->n > 0 && l->k > 0));
  /* Limits of the stand's memory layout. */
  assert_true(l->piece >= 0 && l->piece <= s->host_bytes / 4 / 20);
  assert_true(l->piece == 0 || hk_load_is(l->kind, HK_TRAIT_CPU));
  assert_true(l->kind != HK_LOAD_TURNS ||
              (4 * l->chunk <= s->host_bytes / 4 && 4 * l->chunk <= s->device_bytes / 4));
  assert_true(l->kind != HK_LOAD_PULL || l->chunk % 2 == 0);
  assert_true(l->kind != HK_LOAD_PEER || s->peers);
}

static void check_scope(hk_probe_scope scope) {
  size_t n = 0;
  hk_probe *probes = list(scope, &n);
  assert_true(n > 10);
  for (size_t i = 0; i < n; i++) {
    const hk_probe *p = &probes[i];
    assert_true(find(probes, n, p->name) == p); /* unique */
    assert_true(strlen(p->name) + 1 < sizeof p->name);
    assert_in_range(p->n_loads, 1, HK_PROBE_LOADS);
    assert_true(p->quick || !scope.quick);
    assert_true((p->group == HK_PROBE_ALONE) == (p->n_loads == 1));
    for (int a = 0; a < p->n_loads; a++) {
      check_load(&scope, p, &p->loads[a]);
      for (int b = 0; b < a; b++) assert_false(same_lane(&p->loads[a], &p->loads[b]));
    }
  }
  free(probes);
}

static void test_scopes(void **state) {
  (void)state;
  static const int gpus[] = {1, 2, 3, 4, 8}, cores[] = {1, 2, 3, 16, 96};
  for (size_t g = 0; g < COUNT(gpus); g++) {
    for (size_t c = 0; c < COUNT(cores); c++) {
      for (int flags = 0; flags < 4; flags++) {
        for (int small = 0; small < 2; small++) {
          check_scope((hk_probe_scope){.gpus = gpus[g],
                                       .cores = cores[c],
                                       .host_bytes = small ? 32 * HK_MIB : 8 * HK_GIB,
                                       .device_bytes = small ? 16 * HK_MIB : 4 * HK_GIB,
                                       .peers = gpus[g] > 1 && (flags & 1) != 0,
                                       .quick = (flags & 2) != 0});
        }
      }
    }
  }
}

/* Probe names are keys in stores and comparisons, so they must not change. */
static void test_stable_names(void **state) {
  (void)state;
  static const char *const names[] = {
      "h2d 64 KiB",
      "d2h 1 GiB",
      "h2d_pageable 64 MiB",
      "h2d_cached 16 MiB",
      "h2d+d2h 16 MiB",
      "h2d+d2h 2:1 16 MiB",
      "mapped 20 M",
      "adamw_cpu 12 threads",
      "adamw_cpu 16 threads, chunks of 16 Ki",
      "adamw_cpu_ahead 8 threads",
      "adamw_cpu_ahead 14 threads",
      "adamw_cpu 8 threads, pieces of 256 Ki",
      "adamw_cpu 16 threads, pieces of 4 Mi",
      "pull 1 MiB",
      "pull 16 MiB | adamw_cpu 8 threads",
      "copies_at_once",
      "h2d+d2h+pull 16 MiB | adamw_cpu 16 threads",
      "adamw_gpu 100 M",
      "matmul 2048x11008x4096",
      "h2d+d2h 16 MiB | matmul 2048x28672x8192, adamw_cpu 12 threads",
      "launch",
      "launch_loop",
      "launch_loop | adamw_cpu 13 threads",
      "hop",
      "h2d 4 gpus 64 MiB",
      "peer 4 gpus 64 MiB",
      "h2d 16 MiB | adamw_cpu 15 threads",
      "h2d+d2h 4 gpus 16 MiB | adamw_cpu 16 threads",
      "h2d+d2h 16 MiB | adamw_gpu 20 M"};
  hk_probe_scope scope = h200;
  scope.gpus = 4;
  scope.peers = true;
  size_t n = 0;
  hk_probe *probes = list(scope, &n);
  for (size_t i = 0; i < COUNT(names); i++) {
    if (find(probes, n, names[i]) == NULL) fail_msg("no probe \"%s\"", names[i]);
  }
  free(probes);
}

/* Each probe of AdamW to spare memory has one of AdamW in place with as many threads. */
static void test_ahead_has_a_twin(void **state) {
  (void)state;
  static const int cores[] = {1, 2, 3, 7, 16, 64};
  for (size_t c = 0; c < COUNT(cores); c++) {
    hk_probe_scope scope = h200;
    scope.cores = cores[c];
    size_t n = 0, found = 0;
    hk_probe *probes = list(scope, &n);
    for (size_t i = 0; i < n; i++) {
      const hk_load *l = &probes[i].loads[0];
      if (probes[i].n_loads > 1 || l->kind != HK_LOAD_ADAMW_AHEAD) continue;
      char twin[40];
      snprintf(twin, sizeof twin, "adamw_cpu %d thread%s", l->threads, l->threads > 1 ? "s" : "");
      if (find(probes, n, twin) == NULL) fail_msg("no probe \"%s\"", twin);
      found++;
    }
    assert_in_range(found, 1, 4);
    free(probes);
  }
}

/* Threads of the team beside the loop of launches; 0: no such probe. */
static int threads_beside_loop(hk_probe_scope scope) {
  size_t n = 0;
  int threads = 0;
  hk_probe *probes = list(scope, &n);
  for (size_t i = 0; i < n; i++) {
    const hk_probe *p = &probes[i];
    if (p->n_loads < 2 || p->loads[0].kind != HK_LOAD_LAUNCH_LOOP) continue;
    assert_int_equal(threads, 0);
    assert_int_equal(p->loads[1].kind, HK_LOAD_ADAMW_CPU);
    threads = p->loads[1].threads;
  }
  free(probes);
  return threads;
}

/* The team leaves three cores to the framework, a quarter if that is less, and one at least. A
 * quick calibration has no such probe. */
static void test_loop_beside_a_team(void **state) {
  (void)state;
  static const int rows[][2] = {{1, 1}, {2, 1},  {3, 2},   {4, 3},
                                {8, 6}, {12, 9}, {16, 13}, {96, 93}};
  hk_probe_scope scope = h200;
  for (size_t i = 0; i < COUNT(rows); i++) {
    scope.cores = rows[i][0];
    assert_int_equal(threads_beside_loop(scope), rows[i][1]);
  }
  scope.quick = true;
  assert_int_equal(threads_beside_loop(scope), 0);
}

static size_t count_kind(const hk_probe *probes, size_t n, hk_load_kind kind) {
  size_t found = 0;
  for (size_t i = 0; i < n; i++) found += probes[i].n_loads == 1 && probes[i].loads[0].kind == kind;
  return found;
}

/* A quick calibration has the probes that required quantities need. */
static void test_quick_suffices(void **state) {
  (void)state;
  hk_probe_scope scope = h200;
  scope.quick = true;
  size_t n = 0;
  hk_probe *probes = list(scope, &n);
  assert_in_range(n, 20, 37);
  static const hk_load_kind once[] = {HK_LOAD_MAPPED, HK_LOAD_ADAMW_FP32, HK_LOAD_UNSCALE,
                                      HK_LOAD_CAST,   HK_LOAD_ADAMW_GPU,  HK_LOAD_MATMUL,
                                      HK_LOAD_LAUNCH, HK_LOAD_MEMORY,     HK_LOAD_H2D_PAGEABLE,
                                      HK_LOAD_PULL,   HK_LOAD_TURNS,      HK_LOAD_HOP};
  for (size_t i = 0; i < COUNT(once); i++) assert_true(count_kind(probes, n, once[i]) >= 1);
  assert_true(count_kind(probes, n, HK_LOAD_H2D) >= 3);
  assert_true(count_kind(probes, n, HK_LOAD_D2H) >= 3);
  assert_true(count_kind(probes, n, HK_LOAD_ADAMW_CPU) >= 3);
  size_t contention[2] = {0};
  for (size_t i = 0; i < n; i++) {
    if (probes[i].group == HK_PROBE_CONTENTION) contention[probes[i].n_loads > 2]++;
  }
  assert_true(contention[0] >= 2 && contention[1] >= 2);
  free(probes);
}

/* Sets pieces[] to the parameters per operation of each probe of AdamW alone with `threads` threads
 * and the default chunk, in the order of the list. Returns the number of these probes. */
static size_t pieces_of(const hk_probe *probes, size_t n, int threads, int64_t pieces[8]) {
  size_t found = 0;
  for (size_t i = 0; i < n; i++) {
    const hk_load *l = &probes[i].loads[0];
    if (probes[i].n_loads > 1 || l->kind != HK_LOAD_ADAMW_CPU || l->threads != threads) continue;
    if (l->chunk == 65536) pieces[found++] = hk_load_operation(l);
    assert_in_range(found, 0, 7);
  }
  return found;
}

/* Half of the cores and all cores have probes of four pieces: the usual one, then 256 Ki, 1 Mi and
 * 4 Mi parameters. With little memory there are fewer and smaller ones. */
static void test_pieces(void **state) {
  (void)state;
  int64_t pieces[8] = {0};
  size_t n = 0;
  hk_probe_scope scope = h200;
  hk_probe *probes = list(scope, &n);
  for (int threads = 8; threads <= 16; threads += 8) {
    assert_int_equal(pieces_of(probes, n, threads, pieces), 4);
    assert_int_equal(pieces[0], HK_PROBE_CPU_PIECE);
    for (int i = 1; i < 4; i++) assert_int_equal(pieces[i], (256 << 10) << 2 * (i - 1));
  }
  assert_int_equal(pieces_of(probes, n, 12, pieces), 1);
  free(probes);

  scope.host_bytes = 128 * HK_MIB;
  scope.cores = 2;
  probes = list(scope, &n);
  assert_int_equal(pieces_of(probes, n, 1, pieces), 1); /* one thread has no cost an operation */
  assert_int_equal(pieces_of(probes, n, 2, pieces), 2);
  assert_in_range(pieces[0], 1 << 20, 128 * HK_MIB / 80);
  assert_int_equal(pieces[1], 256 << 10);
  free(probes);
}

static void test_bounds(void **state) {
  (void)state;
  hk_probe_scope scope = h200;
  size_t n = 0;
  hk_probe *probes = list(scope, &n);
  assert_non_null(find(probes, n, "h2d 1 GiB"));
  free(probes);
  scope.host_bytes = 64 * HK_MIB;
  probes = list(scope, &n);
  assert_null(find(probes, n, "h2d 16 MiB"));
  assert_non_null(find(probes, n, "h2d 4 MiB"));
  free(probes);
  hk_error err = {0};
  scope.cores = 0;
  assert_int_equal(hk_probes_list(&scope, &probes, &n, &err), HK_INPUT);
  scope = h200;
  scope.gpus = 9;
  assert_int_equal(hk_probes_list(&scope, &probes, &n, &err), HK_INPUT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_load),
      cmocka_unit_test(test_overlap),
      cmocka_unit_test(test_gaps),
      cmocka_unit_test(test_instant_stretch),
      cmocka_unit_test(test_idle),
      cmocka_unit_test(test_whole),
      cmocka_unit_test(test_no_window),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_scopes),
      cmocka_unit_test(test_stable_names),
      cmocka_unit_test(test_quick_suffices),
      cmocka_unit_test(test_ahead_has_a_twin),
      cmocka_unit_test(test_loop_beside_a_team),
      cmocka_unit_test(test_pieces),
      cmocka_unit_test(test_bounds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
