/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Probes replayed in the simulator: rates agree with closed forms. */
#include "calib/probes/replay.h"

#include <math.h>

#include "tests/fixture.h"

#define LATENCY 10e-6 /* of a copy, in seconds */
#define IN      50e9
#define OUT     40e9
#define BOTH    80e9
#define MIB     (1 << 20)

static hk_machine node(void) {
  hk_machine m = ideal_machine();
  m.h2d.value = IN;
  m.d2h.value = OUT;
  m.duplex.value = BOTH;
  m.h2d_latency.value = m.d2h_latency.value = LATENCY * 1e9;
  m.cpu_adamw.value = 6e9;
  m.cpu_adamw_threads.value = 6;
  m.cpu_cast.value = 12e9;
  m.dram.value = m.dram_with_dma.value = 150e9;
  return m;
}

static hk_probe probe_of(const hk_load *loads, int n) {
  hk_probe p = {.name = "test", .n_loads = n};
  memcpy(p.loads, loads, (size_t)n * sizeof *loads);
  return p;
}

static void check_near(double value, double expected, double share) {
  if (!(fabs(value / expected - 1) <= share))
    fail_msg("%.6g is %.3g %% off %.6g", value, 100 * (value / expected - 1), expected);
}

static void replayed(const hk_probe *probe, const hk_machine *machine, const double *guess,
                     double *rates) {
  hk_error err = {0};
  must(hk_replay(probe, machine, guess, rates, &err), &err);
}

static void test_copy_alone(void **state) {
  (void)state;
  const hk_machine m = node();
  const int64_t sizes[] = {64 << 10, MIB, 64 * MIB};
  for (int i = 0; i < 3; i++) {
    const double c = (double)sizes[i];
    hk_load load = {.kind = HK_LOAD_H2D, .chunk = sizes[i]};
    hk_probe p = probe_of(&load, 1);
    double rate;
    replayed(&p, &m, &(double){IN}, &rate);
    check_near(rate, c / (LATENCY + c / IN), 1e-3);
    p.loads[0].kind = HK_LOAD_D2H;
    replayed(&p, &m, &(double){OUT}, &rate);
    check_near(rate, c / (LATENCY + c / OUT), 1e-3);
  }
}

/* The result does not depend on the first guess of the rate. */
static void test_bad_guess(void **state) {
  (void)state;
  const hk_machine m = node();
  hk_load load = {.kind = HK_LOAD_H2D, .chunk = MIB};
  const hk_probe p = probe_of(&load, 1);
  const double expected = MIB / (LATENCY + MIB / IN);
  const double guesses[] = {1e3, 1e6, 1e9, 1e12};
  for (int i = 0; i < 4; i++) {
    double rate;
    replayed(&p, &m, &guesses[i], &rate);
    check_near(rate, expected, 1e-3);
  }
}

/* Large copies in both directions reach the duplex limit together, each in proportion to its rate
 * alone. */
static void test_duplex(void **state) {
  (void)state;
  const hk_machine m = node();
  const hk_load loads[] = {{.kind = HK_LOAD_H2D, .chunk = 256 * MIB},
                           {.kind = HK_LOAD_D2H, .chunk = 256 * MIB}};
  const hk_probe p = probe_of(loads, 2);
  const double guess[] = {IN * BOTH / (IN + OUT), OUT * BOTH / (IN + OUT)};
  double rates[2];
  replayed(&p, &m, guess, rates);
  check_near(rates[0], guess[0], 0.01);
  check_near(rates[1], guess[1], 0.01);
}

/* Three parts in and one out: both at once until the part out is done, then copies in alone. */
static void test_whole(void **state) {
  (void)state;
  hk_machine m = node();
  m.h2d_latency.value = m.d2h_latency.value = 0;
  const hk_load loads[] = {{.kind = HK_LOAD_H2D, .chunk = MIB, .share = 3},
                           {.kind = HK_LOAD_D2H, .chunk = MIB, .share = 1}};
  hk_probe p = probe_of(loads, 2);
  p.mode = HK_PROBE_WHOLE;
  const double in = IN * BOTH / (IN + OUT), out = OUT * BOTH / (IN + OUT);
  const double first = 1 / out, second = (3 - first * in) / IN; /* seconds a unit of share */
  double rates[2];
  replayed(&p, &m, (double[]){30e9, 10e9}, rates);
  check_near(rates[0], 3 / (first + second), 0.005);
  check_near(rates[1], 1 / (first + second), 0.005);
}

static void test_threads(void **state) {
  (void)state;
  const hk_machine m = node();
  for (int n = 1; n <= 32; n *= 2) {
    hk_load load = {.kind = HK_LOAD_ADAMW_CPU, .threads = n, .chunk = 65536};
    const hk_probe p = probe_of(&load, 1);
    double rate;
    replayed(&p, &m, &(double){4e9}, &rate);
    check_near(rate, fmin(6e9 * (1 - exp(-n / 6.0)), 150e9 / 28), 1e-4);
  }
}

/* Each operation takes 20 us plus parameters / rate; for a team of one thread without the 20 us. */
static void test_pieces(void **state) {
  (void)state;
  hk_machine m = node();
  m.cpu_operation.value = 20e3;
  const double rate_alone = 6e9 * (1 - exp(-1));
  const int64_t pieces[] = {0, 256 << 10, 4 << 20};
  for (int i = 0; i < 3; i++) {
    hk_load load = {.kind = HK_LOAD_ADAMW_CPU, .threads = 6, .chunk = 65536, .piece = pieces[i]};
    const hk_probe p = probe_of(&load, 1);
    const double n = pieces[i] > 0 ? (double)pieces[i] : HK_PROBE_CPU_PIECE;
    double rate;
    replayed(&p, &m, &(double){4e9}, &rate);
    check_near(rate, n / (20e-6 + n / rate_alone), 1e-3);
  }
  hk_load one = {.kind = HK_LOAD_ADAMW_CPU, .threads = 1, .chunk = 65536, .piece = 256 << 10};
  const hk_probe p = probe_of(&one, 1);
  double rate;
  replayed(&p, &m, &(double){1e9}, &rate);
  check_near(rate, 6e9 * (1 - exp(-1 / 6.0)), 1e-3);
}

/* Weights that a kernel pulls: one launch each, then the lesser of the kernel's and the link's
 * rate; pull = 0: the link's rate. */
static void test_pull(void **state) {
  (void)state;
  hk_machine m = node();
  m.gpu_launch.value = 5e3;
  const double rates[][2] = {{30e9, 30e9}, {IN + 1e9, IN}, {0, IN}}; /* pull, expected rate */
  hk_load load = {.kind = HK_LOAD_PULL, .chunk = MIB};
  const hk_probe p = probe_of(&load, 1);
  for (int i = 0; i < 3; i++) {
    double rate;
    m.pull.value = rates[i][0];
    replayed(&p, &m, &(double){IN}, &rate);
    check_near(rate, MIB / (5e-6 + MIB / rates[i][1]), 1e-3);
  }
}

/* Copies run at the link's rate; AdamW gets the rest of 140 GB/s of host memory. */
static void test_contention(void **state) {
  (void)state;
  hk_machine m = node();
  m.h2d_latency.value = 0;
  m.dram_with_dma.value = 140e9;
  m.dma_weight.value = 100; /* copies come first */
  const hk_load loads[] = {{.kind = HK_LOAD_H2D, .chunk = 16 * MIB},
                           {.kind = HK_LOAD_ADAMW_CPU, .threads = 32, .chunk = 65536}};
  const hk_probe p = probe_of(loads, 2);
  double rates[2];
  replayed(&p, &m, (double[]){IN, 3e9}, rates);
  check_near(rates[0], IN, 0.002);
  check_near(rates[1], (140e9 - IN) / 28, 0.002);
}

/* Each of four GPUs has its own lane and link; the fabric of 120 GB/s limits them to 30 each. */
static void test_several_gpus(void **state) {
  (void)state;
  hk_machine m = node();
  m.gpus.value = 4;
  m.fabric_h2d.value = 120e9;
  hk_load loads[4];
  const double guess[] = {30e9, 30e9, 30e9, 30e9};
  for (int g = 0; g < 4; g++)
    loads[g] = (hk_load){.kind = HK_LOAD_H2D, .gpu = g, .chunk = 64 * MIB};
  const hk_probe p = probe_of(loads, 4);
  double rates[4];
  replayed(&p, &m, guess, rates);
  for (int g = 0; g < 4; g++) check_near(rates[g], 30e9, 0.01);
}

static void test_graph(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_load loads[] = {{.kind = HK_LOAD_D2H, .gpu = 1, .chunk = 1000},
                           {.kind = HK_LOAD_CAST, .threads = 3, .chunk = 64}};
  const hk_probe p = probe_of(loads, 2);
  hk_graph g;
  must(hk_replay_graph(&p, (double[]){2500, HK_PROBE_CPU_PIECE}, &g, &err), &err);
  assert_int_equal(g.ranks, 2);
  assert_int_equal(g.n_ops, 4);
  assert_int_equal(g.n_lanes, 2);
  assert_string_equal(g.lanes[0].name, "rank1.d2h");
  assert_int_equal(g.ops[1].kind, HK_OP_STATE_D2H);
  assert_int_equal(g.ops[1].work, 1000);
  assert_int_equal(g.ops[2].work, 500);
  assert_int_equal(g.ops[3].kind, HK_OP_CAST_CPU);
  assert_int_equal(g.ops[3].work, HK_PROBE_CPU_PIECE);
  assert_int_equal(g.ops[3].threads, 3);
  assert_false(g.weights_pulled);
  hk_graph_free(&g);
}

static void test_pull_graph(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_load loads[] = {{.kind = HK_LOAD_PULL, .chunk = 1000},
                           {.kind = HK_LOAD_ADAMW_CPU, .threads = 3, .chunk = 64, .piece = 300}};
  const hk_probe p = probe_of(loads, 2);
  hk_graph g;
  must(hk_replay_graph(&p, (double[]){2000, 700}, &g, &err), &err);
  assert_true(g.weights_pulled);
  assert_int_equal(g.n_ops, 5);
  assert_string_equal(g.lanes[0].name, "up");
  assert_int_equal(g.ops[1].kind, HK_OP_WEIGHT_H2D);
  assert_int_equal(g.ops[3].work, 300);
  assert_int_equal(g.ops[4].work, 100);
  hk_graph_free(&g);
}

static void test_not_replayable(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph g;
  double rate;
  const hk_machine m = node();
  hk_load load = {.kind = HK_LOAD_MEMORY, .chunk = MIB};
  hk_probe p = probe_of(&load, 1);
  assert_false(hk_replay_can(&p));
  assert_int_equal(hk_replay_graph(&p, (double[]){1}, &g, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "'test'"));
  /* Two loads on one lane would run one after the other. */
  const hk_load twice[] = {{.kind = HK_LOAD_H2D, .chunk = MIB},
                           {.kind = HK_LOAD_H2D, .chunk = MIB}};
  p = probe_of(twice, 2);
  assert_false(hk_replay_can(&p));
  load.kind = HK_LOAD_H2D;
  p = probe_of(&load, 1);
  assert_true(hk_replay_can(&p));
  assert_int_equal(hk_replay(&p, &m, &(double){0}, &rate, &err), HK_INPUT);
  assert_int_equal(hk_replay(&p, &m, &(double){NAN}, &rate, &err), HK_INPUT);
  p.n_loads = 0;
  assert_false(hk_replay_can(&p));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_copy_alone),   cmocka_unit_test(test_bad_guess),
      cmocka_unit_test(test_duplex),       cmocka_unit_test(test_whole),
      cmocka_unit_test(test_threads),      cmocka_unit_test(test_contention),
      cmocka_unit_test(test_several_gpus), cmocka_unit_test(test_graph),
      cmocka_unit_test(test_pieces),       cmocka_unit_test(test_pull),
      cmocka_unit_test(test_pull_graph),   cmocka_unit_test(test_not_replayable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
