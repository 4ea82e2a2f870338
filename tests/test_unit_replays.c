/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hk_replays, which keeps results of earlier settings, gives the same bits as hk_replay. */
#include "calib/fit/probe_fit_draft.h"
#include "tests/fixture_campaign.h"

enum { SERIES = 3, VARIED = 3, CALLS = 4 };

/* Three probes that use different quantities: copies in alone, copies out beside AdamW, copies both
 * ways beside AdamW. */
static size_t pick_series(const hk_campaign *c, const hk_series **series) {
  bool seen[4] = {false};
  size_t n = 0;
  for (size_t i = 0; i < c->n && n < SERIES; i++) {
    const hk_series *s = &c->series[i];
    const bool in = hk_series_find(s, HK_LOAD_H2D) >= 0, out = hk_series_find(s, HK_LOAD_D2H) >= 0;
    const bool cpu = hk_series_find(s, HK_LOAD_ADAMW_CPU) >= 0;
    const int sort = in && !out && !cpu ? 1 : out && cpu ? 2 + in : 0;
    if (sort == 0 || seen[sort] || !hk_replay_can(&s->probe)) continue;
    seen[sort] = true;
    series[n++] = s;
  }
  return n;
}

static const size_t OFFSETS[VARIED] = {offsetof(hk_machine, d2h_priority),
                                       offsetof(hk_machine, cpu_beside_h2d),
                                       offsetof(hk_machine, dram_with_dma)};

static void set(hk_machine *m, size_t offset, double value) {
  ((hk_quantity *)((char *)m + offset))->value = value;
}

/* Each setting has few values, so that calls repeat earlier settings. There are more combinations
 * than the cache holds. */
static void choose(hk_machine *machines, const hk_machine *like, random_stream *r) {
  for (size_t v = 0; v < HK_MOST_VARIANTS; v++) {
    machines[v] = *like;
    set(&machines[v], OFFSETS[0], 0.5 + 0.1 * floor(10 * uniform(r)));
    set(&machines[v], OFFSETS[1], 0.5 + 0.05 * floor(10 * uniform(r)));
    set(&machines[v], OFFSETS[2], 1e11 + 1e10 * floor(10 * uniform(r)));
  }
}

/* `got` holds log(replayed / measured) as hk_replay gives it. */
static void check_by_itself(const hk_series *s, const hk_machine *m, const double *got) {
  double measured[HK_PROBE_LOADS], rates[HK_PROBE_LOADS];
  hk_error err = {0};
  for (int k = 0; k < s->probe.n_loads; k++) measured[k] = s->summary[k].median;
  must(hk_replay(&s->probe, m, measured, rates, &err), &err);
  for (int k = 0; k < s->probe.n_loads; k++) assert_true(got[k] == log(rates[k] / measured[k]));
}

static void test_same_as_by_themselves(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = h200(), machines[HK_MOST_VARIANTS];
  hk_campaign c = campaign_of(&m, true, 0.01);
  const hk_series *series[SERIES] = {NULL};
  assert_int_equal(pick_series(&c, series), SERIES);
  hk_replays *replays;
  must(hk_replays_open(series, SERIES, OFFSETS, VARIED, &replays, &err), &err);
  static double out[HK_MOST_VARIANTS * SERIES * HK_PROBE_LOADS];
  random_stream r = {7};
  for (int call = 0; call < CALLS; call++) {
    choose(machines, &m, &r);
    must(hk_replays_at(replays, machines, HK_MOST_VARIANTS, out, &err), &err);
    const double *got = out;
    for (size_t v = 0; v < HK_MOST_VARIANTS; v++) {
      for (size_t s = 0; s < SERIES; s++) {
        check_by_itself(series[s], &machines[v], got);
        got += series[s]->probe.n_loads;
      }
    }
  }
  hk_replays_close(replays);
  hk_campaign_free(&c);
  hk_machine_free(&m);
}

/* A failed replay is not kept: it fails again, and succeeds once its input is right. */
static void test_failure_is_not_kept(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = h200();
  hk_campaign c = campaign_of(&m, true, 0.01);
  const hk_series *series[SERIES] = {&c.series[0]};
  assert_int_equal(pick_series(&c, series), SERIES);
  hk_series broken = *series[0];
  const double measured = broken.summary[0].median;
  broken.summary[0].median = -1;
  const hk_series *one = &broken;
  hk_replays *replays;
  must(hk_replays_open(&one, 1, OFFSETS, VARIED, &replays, &err), &err);
  double out[HK_PROBE_LOADS];
  assert_int_equal(hk_replays_at(replays, &m, 1, out, &err), HK_INPUT);
  assert_int_equal(hk_replays_at(replays, &m, 1, out, &err), HK_INPUT);
  broken.summary[0].median = measured;
  must(hk_replays_at(replays, &m, 1, out, &err), &err);
  check_by_itself(&broken, &m, out);
  hk_replays_close(replays);
  hk_campaign_free(&c);
  hk_machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_as_by_themselves),
      cmocka_unit_test(test_failure_is_not_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
