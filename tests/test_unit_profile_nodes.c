/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Profiles fitted to measurements of three nodes with one H200: the rates of AdamW beside copies
 * are reproduced. */
#include "calib/fit/probe_fit.h"

#include "tests/fixture_campaign.h"

#define GB           1e9
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct {
  int threads;
  double cpu, in, out; /* GB/s; no copies in this direction: 0 */
} beside;

typedef struct {
  double h2d, d2h, duplex; /* GB/s of the link */
  const beside *rows;
  size_t n;
  double alone[17]; /* GB/s of CPU traffic by number of threads; 0: not probed */
  /* Most expected error, %. The second node's table has one rate of AdamW alone that was measured;
   * calibrate would ask for more (HK_MOST_EXPECTED_PCT is 15). */
  double expected_pct;
} measured_node;

/* AdamW beside copies in both directions: rows of the table in bench/results/engine/README.md. */
static const beside FIRST[] = {{4, 74.3, 42.6, 52.2},
                               {6, 90.1, 36.9, 52.8},
                               {8, 100.7, 33.0, 53.1},
                               {10, 105.8, 31.2, 53.2},
                               {16, 110, 29.8, 52.5}};
static const beside SECOND[] = {{4, 92.5, 50.1, 50.7}, {6, 117, 46.9, 51.2}, {8, 141, 40.7, 51.3},
                                {12, 172, 37.9, 49.6}, {14, 184, 36.6, 49},  {16, 181, 36, 48.9}};
/* A calibration of the same day (docs/notes/2026-11-22-simulator.md), with copies in, out and both
 * ways. AdamW moves 28 B a parameter. */
static const beside THIRD[] = {
    {4, 28 * 2.80, 51.6, 0},     {8, 28 * 4.08, 42.9, 0},      {12, 28 * 4.71, 36.9, 0},
    {14, 28 * 4.90, 35.0, 0},    {16, 28 * 5.03, 33.4, 0},     {4, 28 * 2.42, 0, 54.9},
    {8, 28 * 3.63, 0, 54.9},     {12, 28 * 3.93, 0, 54.8},     {14, 28 * 4.37, 0, 54.6},
    {16, 28 * 4.16, 0, 54.6},    {4, 28 * 2.08, 40.5, 51.4},   {8, 28 * 3.02, 32.7, 52.0},
    {12, 28 * 3.33, 30.2, 51.8}, {14, 28 * 3.46, 29.95, 51.7}, {16, 28 * 3.56, 29.7, 51.7}};

static bool has(const hk_probe *p, hk_load_kind kind) {
  for (int i = 0; i < p->n_loads; i++)
    if (p->loads[i].kind == kind) return true;
  return false;
}

static const hk_load *last_of(const hk_probe *p) {
  return &p->loads[p->n_loads - 1];
}

/* The row of the node's table that has the probe's threads and directions; NULL: none. */
static const beside *row_of(const hk_probe *p, const measured_node *node) {
  if (p->n_loads < 2 || last_of(p)->kind != HK_LOAD_ADAMW_CPU) return NULL;
  for (size_t k = 0; k < node->n; k++) {
    const beside *row = &node->rows[k];
    if (row->threads == last_of(p)->threads && (row->in > 0) == has(p, HK_LOAD_H2D) &&
        (row->out > 0) == has(p, HK_LOAD_D2H))
      return row;
  }
  return NULL;
}

/* Measured rate in GB/s if the probe is AdamW alone in usual pieces; 0: not measured, or another
 * probe. */
static double alone_of(const hk_probe *p, const measured_node *node) {
  const hk_load *load = &p->loads[0];
  const bool table =
      p->n_loads == 1 && load->kind == HK_LOAD_ADAMW_CPU && load->threads <= 16 && load->piece == 0;
  return table ? node->alone[load->threads] : 0;
}

/* Adds rounds to every series: the table's values where it has the probe, else those that `m`
 * predicts. */
static void add_measured(hk_campaign *c, const hk_machine *m, const measured_node *node) {
  random_stream r = {3};
  for (size_t i = 0; i < c->n; i++) {
    const hk_probe *p = &c->series[i].probe;
    const beside *row = row_of(p, node);
    double values[HK_PROBE_LOADS];
    truth_of(p, m, values);
    if (alone_of(p, node) > 0) values[0] = alone_of(p, node) * GB / 28;
    for (int k = 0; row && k < p->n_loads; k++)
      values[k] = p->loads[k].kind == HK_LOAD_H2D   ? row->in * GB
                  : p->loads[k].kind == HK_LOAD_D2H ? row->out * GB
                                                    : row->cpu * GB / 28;
    add_rounds(c, p, values, 0.002, &r);
  }
}

/* The probe of a row, made of the loads of `both`: h2d, d2h and AdamW. */
static hk_probe probe_of_row(const hk_probe *both, const beside *row) {
  hk_probe p = *both;
  p.n_loads = 0;
  if (row->in > 0) p.loads[p.n_loads++] = both->loads[0];
  if (row->out > 0) p.loads[p.n_loads++] = both->loads[1];
  p.loads[p.n_loads] = both->loads[2];
  p.loads[p.n_loads++].threads = row->threads;
  snprintf(p.name, sizeof p.name, "in %g, out %g, %d threads", row->in, row->out, row->threads);
  return p;
}

/* Probes that did not exist when these nodes were measured. */
static bool is_newer(const hk_probe *p) {
  const hk_load_kind kind = p->loads[0].kind;
  return kind == HK_LOAD_PULL || kind == HK_LOAD_TURNS || kind == HK_LOAD_HOP;
}

/* Probes without measurements leave the campaign: only measured values may be fitted. */
static hk_campaign measured_campaign(const hk_machine *m, const measured_node *node) {
  hk_error err = {0};
  hk_probe *probes;
  size_t n = 0, kept = 0;
  hk_campaign c;
  const hk_probe_scope scope = {
      .gpus = 1, .cores = 16, .host_bytes = 16LL << 30, .device_bytes = 16LL << 30};
  must(hk_probes_list(&scope, &probes, &n, &err), &err);
  hk_probe *more = realloc(probes, (n + node->n) * sizeof *probes);
  assert_non_null(more);
  probes = more;
  hk_probe both = {.n_loads = 0};
  for (size_t i = 0; i < n; i++)
    if (probes[i].n_loads == 3 && probes[i].loads[1].kind == HK_LOAD_D2H &&
        last_of(&probes[i])->kind == HK_LOAD_ADAMW_CPU)
      both = probes[i];
  for (size_t i = 0; i < n; i++)
    if (probes[i].group != HK_PROBE_CONTENTION && !is_newer(&probes[i]) &&
        (probes[i].loads[0].kind != HK_LOAD_ADAMW_CPU || alone_of(&probes[i], node) > 0))
      probes[kept++] = probes[i];
  for (size_t k = 0; k < node->n; k++) probes[kept++] = probe_of_row(&both, &node->rows[k]);
  must(hk_campaign_open(probes, kept, &c, &err), &err);
  add_measured(&c, m, node);
  free(probes);
  return c;
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Number of values in the node's table. */
static size_t values_of(const measured_node *node) {
  size_t n = 0;
  for (size_t k = 0; k < node->n; k++) n += 1u + (node->rows[k].in > 0) + (node->rows[k].out > 0);
  for (size_t t = 0; t < COUNT(node->alone); t++) n += node->alone[t] > 0;
  return n;
}

/* With drives of 6.0 and 6.4, and 4.0 and 4.2 GB/s. */
static hk_profile_fit with_drives(const hk_campaign *c, const hk_machine *m) {
  const hk_drive_rates drives = {
      .bytes = 1 << 30, .rounds = 2, .read = {6.0 * GB, 6.4 * GB}, .write = {4.2 * GB, 4.0 * GB}};
  const hk_fingerprint f = fingerprint_of(m);
  const hk_profile_fit_options options = {.name = "test", .date = "2026-11-21", .drives = &drives};
  hk_error err = {0};
  hk_profile_fit fit;
  must(hk_profile_fit_make(c, &f, &options, &fit, &err), &err);
  return fit;
}

static void check_drives(const hk_profile_fit *fit) {
  const hk_quantity *read = &fit->machine.nvme_read, *write = &fit->machine.nvme_write;
  const hk_calibrated *entry = calibrated(fit, "nvme.read_bytes_per_s");
  check_near("reads", read->value, 6.2 * GB, 1e-6);
  check_near("writes", write->value, 4.1 * GB, 1e-6);
  assert_int_equal(read->origin, HK_ORIGIN_MEASURED);
  assert_non_null(strstr(write->source, "median of 2 sequential writes of 1.00 GiB"));
  assert_non_null(entry);
  assert_true(entry->low <= 6.0 * GB && entry->high >= 6.4 * GB);
}

/* Fits a profile to the node's table. Replayed rates of AdamW and copies beside it are within 3 %
 * (median) and 10 % (worst) of the measured ones. */
static void check_node(const measured_node *node) {
  hk_machine m = h200();
  m.h2d.value = m.fabric_h2d.value = node->h2d * GB;
  m.d2h.value = m.fabric_d2h.value = node->d2h * GB;
  m.duplex.value = m.fabric_duplex.value = node->duplex * GB;
  m.h2d_loaded.value = 0;
  m.d2h_cost.value = 1;
  m.dram.value = m.dram_with_dma.value = 400 * GB;
  m.cpu_operation.value = 0; /* small pieces were not probed */
  hk_campaign c = measured_campaign(&m, node);
  hk_profile_fit fit = with_drives(&c, &m);
  double errors[64];
  size_t n = 0;
  for (size_t i = 0; i < fit.n_replays; i++) {
    const hk_replayed *r = &fit.replays[i];
    if (last_of(&hk_campaign_find(&c, r->probe)->probe)->kind == HK_LOAD_ADAMW_CPU)
      errors[n++] = fabs(r->error_pct);
  }
  assert_int_equal(n, values_of(node));
  qsort(errors, n, sizeof *errors, by_size);
  const hk_machine *f = &fit.machine;
  print_message(
      "expected %.1f %%, median %.1f %%, worst %.1f %%; with_dma %.4g, d2h cost %.3g, kept %.3g "
      "%.3g, "
      "loaded %.3g from %.3g, weight %.3g, priority %.3g\n",
      fit.expected.expected_pct, errors[n / 2], errors[n - 1], f->dram_with_dma.value,
      f->d2h_cost.value, f->cpu_beside_h2d.value, f->cpu_beside_d2h.value, f->h2d_loaded.value,
      f->h2d_load_from.value, f->dma_weight.value, f->d2h_priority.value);
  print_worst(&fit);
  assert_true(errors[n / 2] <= 3);
  assert_true(errors[n - 1] <= 10);
  assert_true(fit.expected.expected_pct <= node->expected_pct);
  assert_int_equal(fit.once, 0);
  check_drives(&fit);
  hk_profile_fit_free(&fit);
  hk_campaign_free(&c);
  hk_machine_free(&m);
}

/* Under AddressSanitizer one node covers every branch, and all three take 25 s. */
static bool only_in_release(void) {
  return !is_full_run() && !case_count((case_counts){.release = 1}, (case_counts){0});
}

static void test_first_node(void **state) {
  (void)state;
  const measured_node node = {55, 55, 101.5, FIRST, COUNT(FIRST), {[4] = 88, [8] = 145, [16] = 185},
                              13};
  check_node(&node);
}

/* Alone, only 16 threads were measured. The others are estimates: beside 4 threads copies keep
 * nearly the link's rate, so the kernel's 92.5 is nearly its rate alone (93); beside 8 threads
 * copies lose a tenth, and the kernel is taken to lose a tenth of 156. */
static void test_second_node(void **state) {
  (void)state;
  if (only_in_release()) skip();
  const measured_node node = {
      55, 55, 101.5, SECOND, COUNT(SECOND), {[4] = 93, [8] = 156, [16] = 234}, 17};
  check_node(&node);
}

static void test_third_node(void **state) {
  (void)state;
  if (only_in_release()) skip();
  const measured_node node = {
      55.3,
      55.7,
      100.2,
      THIRD,
      COUNT(THIRD),
      {[4] = 28 * 3.32, [8] = 28 * 4.75, [12] = 28 * 5.51, [14] = 28 * 5.68, [16] = 28 * 5.91},
      5};
  check_node(&node);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_first_node),
      cmocka_unit_test(test_second_node),
      cmocka_unit_test(test_third_node),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
