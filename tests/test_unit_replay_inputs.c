/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A quantity that a replay does not declare as an input does not change its rates, to the last
 * bit: each probe of a calibration against each quantity that the fits vary. */
#include "calib/probes/replay.h"

#include "tests/fixture_campaign.h"

/* A quantity that fits vary, and counts over the probes of this test. */
typedef struct {
  const char *name;
  size_t offset;
  bool always;         /* it is declared as an input of every replay */
  int unused, changed; /* replays that declare it unused; replays whose rates it changes */
} varied;

#define VARIED(field) .name = #field, .offset = offsetof(hk_machine, field)

static hk_quantity *quantity_of(hk_machine *m, const varied *v) {
  return (hk_quantity *)((char *)m + v->offset);
}

static void inputs_of(const hk_probe *p, const hk_machine *m, const varied *v, double *inputs) {
  const hk_quantity *quantity = quantity_of((hk_machine *)m, v);
  hk_replay_inputs(p, m, &quantity, 1, inputs);
}

static bool are_equal(const double *a, const double *b, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (a[i] != b[i]) return false;
  return true;
}

static void vary(const hk_probe *p, const hk_machine *m, varied *v, double factor) {
  double before[HK_PROBE_LOADS], after[HK_PROBE_LOADS];
  double inputs[2][HK_REPLAY_INPUTS];
  hk_machine other = *m;
  quantity_of(&other, v)->value *= factor;
  inputs_of(p, m, v, inputs[0]);
  inputs_of(p, &other, v, inputs[1]);
  truth_of(p, m, before);
  truth_of(p, &other, after);
  const bool same = are_equal(before, after, (size_t)p->n_loads);
  v->changed += !same;
  if (!are_equal(inputs[0], inputs[1], HK_REPLAY_INPUTS)) return;
  v->unused++;
  if (!same)
    fail_msg("%s: %s is declared unused, but times %g it changes rates", p->name, v->name, factor);
}

static void vary_all(const hk_machine *m, varied *list, size_t n_varied) {
  hk_error err = {0};
  hk_probe *probes;
  size_t n;
  const hk_probe_scope scope = {.gpus = (int)m->gpus.value,
                                .cores = (int)m->cores.value,
                                .host_bytes = 16LL << 30,
                                .device_bytes = 16LL << 30,
                                .peers = true};
  must(hk_probes_list(&scope, &probes, &n, &err), &err);
  for (size_t i = 0; i < n; i++) {
    if (!hk_replay_can(&probes[i])) continue;
    for (size_t k = 0; k < n_varied; k++) {
      vary(&probes[i], m, &list[k], 0.7);
      vary(&probes[i], m, &list[k], 1.4);
    }
  }
  free(probes);
}

/* One GPU and two, host memory that limits copies and host memory that does not. */
static void test_unused_is_unused(void **state) {
  (void)state;
  varied list[] = {
      {VARIED(dram_with_dma)},  {VARIED(d2h_cost)},
      {VARIED(dma_weight)},     {VARIED(d2h_priority)},
      {VARIED(h2d_loaded)},     {VARIED(h2d_load_from)},
      {VARIED(cpu_beside_h2d)}, {VARIED(cpu_beside_d2h)},
      {VARIED(shared_reads)},   {VARIED(duplex)},
      {VARIED(fabric_h2d)},     {VARIED(fabric_d2h)},
      {VARIED(fabric_duplex)},  {VARIED(cores), .always = true},
  };
  const size_t n = sizeof list / sizeof *list;
  hk_machine m = h200();
  m.d2h_beside_reads.value = m.h2d_beside_reads.value = 0.5;
  vary_all(&m, list, n);
  m.d2h_cost.value = m.h2d_cost.value = 1;
  vary_all(&m, list, n);
  m.gpus.value = 2;
  m.d2h_cost.value = 1.3;
  m.fabric_h2d.value = m.fabric_d2h.value = 80e9;
  m.fabric_duplex.value = 120e9;
  m.dram.value = 100e9;
  m.dram_with_dma.value = 90e9;
  vary_all(&m, list, n);
  for (size_t k = 0; k < n; k++) {
    print_message("%s: %d unused, %d changed\n", list[k].name, list[k].unused, list[k].changed);
    /* Each quantity was unused in some replay and changed some other: the test covers it. */
    assert_true(list[k].always ? list[k].unused == 0 : list[k].unused > 0);
    assert_true(list[k].always || list[k].changed > 0);
  }
  hk_machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_unused_is_unused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
