/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Random plans with an overlap on random machines, with the simulator's checks on. Every
 * invariant holds during the simulation. The period is the sum of its parts and, to 0.1 %, at least
 * its bound. Ranks simulated one by one agree with one rank that stands for all. A second
 * simulation, without checks and counters, gives the same spans. Previews are what forecasts say,
 * and no iteration that repeats is shorter than hk_turn_least. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/certificate.h"
#include "sim/preview.h"
#include "sim/turn.h"
#include "tests/random.h"

#define CASES    150
#define PREVIEWS 1500 /* the second iteration is not as the later ones in one of 850 */

/* Blocks of any size, any of them, also the first, without parameters or computation; some of fp32,
 * some measured. One model in 8 has a single tensor, of one parameter or more. */
static hk_model random_model(random_stream *r) {
  hk_error err = {0};
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "hocket.model/1");
  cJSON *blocks = cJSON_AddArrayToObject(root, "blocks");
  cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
  const int n = pick(r, 1, 9);
  const int full = pick(r, 0, n - 1); /* this block has parameters */
  const bool alone = pick(r, 0, 7) == 0;
  for (int b = 0; b < n; b++) {
    cJSON *block = cJSON_CreateObject();
    cJSON_AddItemToArray(blocks, block);
    cJSON_AddStringToObject(block, "name", "b");
    cJSON_AddNumberToObject(block, "forward_flops", pick(r, 0, 3) ? floor(scale(r, 1e6, 1e13)) : 0);
    cJSON_AddNumberToObject(block, "activation_bytes", pick(r, 0, 1000000));
    cJSON_AddNumberToObject(block, "workspace_bytes", pick(r, 0, 1000000));
    if (pick(r, 0, 1)) cJSON_AddNumberToObject(block, "forward_ms", scale(r, 1e-3, 10));
    if (pick(r, 0, 1)) cJSON_AddNumberToObject(block, "backward_ms", scale(r, 1e-3, 10));
    const int least = b == full, most = alone ? least : 3;
    for (int t = pick(r, least, most); t > 0; t--) {
      cJSON *tensor = cJSON_CreateObject();
      cJSON_AddItemToArray(tensors, tensor);
      cJSON_AddStringToObject(tensor, "name", "w");
      cJSON_AddNumberToObject(tensor, "numel",
                              alone && pick(r, 0, 1) ? 1 : floor(scale(r, 1, 1e6)));
      cJSON_AddNumberToObject(tensor, "block", b);
      cJSON_AddStringToObject(tensor, "weight_type", pick(r, 0, 3) ? "bf16" : "fp32");
      cJSON_AddStringToObject(tensor, "grad_type", pick(r, 0, 3) ? "fp16" : "fp32");
    }
  }
  hk_model model;
  must(hk_model_from_config(root, "random", &model, &err), &err);
  cJSON_Delete(root);
  return model;
}

static hk_plan random_plan_of(hk_model model, int tp, random_stream *r, const hk_machine *m) {
  hk_error err = {0};
  const hk_job job = {.gpus = pick(r, 0, 1) ? tp : (int)m->gpus.value,
                      .nodes = 1,
                      .tp = tp,
                      .micro_batch = pick(r, 1, 4),
                      .grad_accum = pick(r, 1, 3),
                      .seq = pick(r, 1, 512),
                      .checkpoint_activations = pick(r, 0, 1)};
  const hk_subgroup_rule rules[] = {HK_SUBGROUP_BLOCKS, HK_SUBGROUP_SOFT, HK_SUBGROUP_EXACT};
  hk_plan plan = {0};
  must(hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, rules[pick(r, 0, 2)],
                      pick(r, 20000, 2000000), &plan, &err),
       &err);
  plan.buffers = pick(r, 1, 5);
  plan.piece_numel = pick(r, 5000, 90000);
  plan.cpu_threads = pick(r, 1, 80);
  plan.cores_bound = pick(r, 0, 1);
  hk_plan_set_overlap(&plan, pick(r, 0, 2) ? HK_OVERLAP_BOTH : HK_OVERLAP_FORWARD);
  static const hk_route known[] = {HK_ROUTE_CPU,      HK_ROUTE_CPU,    HK_ROUTE_STAGED,
                                   HK_ROUTE_RESIDENT, HK_ROUTE_MAPPED, HK_ROUTE_CPU};
  const int routes = pick(r, 0, 2) ? 5 : 1;
  for (size_t i = 0; i < plan.n_subgroups; i++) {
    plan.subgroups[i].route = known[pick(r, 0, routes)];
    plan.subgroups[i].ahead = plan.overlap == HK_OVERLAP_BOTH &&
                              plan.subgroups[i].route == HK_ROUTE_CPU && pick(r, 0, 3) > 0;
  }
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static hk_plan random_plan(random_stream *r, const hk_machine *m) {
  return random_plan_of(pick(r, 0, 2) ? random_model(r) : tiny_model(pick(r, 1, 6)), 1, r, m);
}

/* Two ranks that divide matrices, of whose first block nothing is trained. */
static hk_plan random_adapters(random_stream *r, const hk_machine *m) {
  hk_error err = {0};
  hk_model model = tiny_model(pick(r, 1, 6));
  must(hk_model_freeze(&model, &(hk_frozen_spec){.rank = 4, .bytes = 2}, &err), &err);
  return random_plan_of(model, 2, r, m);
}

static hk_machine random_machine(random_stream *r) {
  hk_machine m = random_node(r);
  m.gpu_launch.value = scale(r, 1e2, 1e6);
  m.nvlink_latency.value = scale(r, 1e2, 1e6);
  m.gpu_hop.value = pick(r, 0, 1) ? pick(r, 100, 20000) : 0;
  m.layer_launch.value = scale(r, 1e3, 1e6);
  m.pull.value = pick(r, 0, 1) ? m.h2d.value * scale(r, 0.5, 1) : 0;
  m.copies_at_once.value = pick(r, 0, 1) ? pick(r, 1, 3) : 1e6;
  m.cpu_operation.value = pick(r, 0, 1) ? pick(r, 100, 100000) : 0;
  m.gpu_beside_h2d.value = scale(r, 0.7, 1);
  m.cpu_adamw_ahead.value = scale(r, 0.3, 1.2);
  m.compute_beside_update.value = pick(r, 0, 1) ? scale(r, 0.5, 1) : 1;
  m.gpu_beside_d2h.value = scale(r, 0.7, 1);
  return m;
}

static void check_parts(const hk_forecast *f) {
  assert_int_equal(f->forward_ns + f->exposed_update_ns + f->backward_ns, f->iteration_ns);
  assert_true(f->forward_ns >= 0 && f->backward_ns >= 0 && f->exposed_update_ns >= 0);
  assert_true(f->update_ns > 0);
  assert_true(f->period_bound.period_ns <=
              f->iteration_ns + f->unsteady_ns + f->iteration_ns / 1000);
  assert_int_equal(f->begin_ns, f->result.last.begin);
  assert_int_equal(f->begin_ns + f->iteration_ns, f->result.last.end);
}

/* Longest chain from operation `from` of the first iteration to the same one of the second. */
static hk_ns chain_from(const hk_graph *g, size_t from, const hk_ns *times, const hk_machine *m) {
  const size_t each = g->n_ops / (size_t)g->iterations;
  hk_ns *begin = malloc(2 * each * sizeof *begin);
  for (size_t i = 0; i < from; i++) begin[i] = -1;
  begin[from] = 0;
  for (size_t i = from + 1; i <= from + each; i++) {
    begin[i] = -1;
    for (int32_t d = g->ops[i].deps_begin; d < g->ops[i].deps_end; d++) {
      const int32_t on = g->deps[d];
      if (begin[on] < 0) continue;
      begin[i] =
          hk_max(begin[i], begin[on] + times[on % (int32_t)each] + hk_hop(g, m, on, (int32_t)i));
    }
    size_t before = i;
    while (before-- > from && g->ops[before].lane != g->ops[i].lane) continue;
    if (before != from - 1 && begin[before] >= 0 && !g->lanes[g->ops[i].lane].picks)
      begin[i] = hk_max(begin[i], begin[before] + times[before % each]);
  }
  const hk_ns length = begin[from + each];
  free(begin);
  return length;
}

/* The bound is not below the longest of all cycles through a forward, and is one if it says so. */
static void check_cycles(const hk_forecast *f, const hk_machine *m) {
  const hk_graph *g = &f->graph;
  const size_t each = g->n_ops / (size_t)g->iterations;
  hk_ns *times = malloc(each * sizeof *times), longest = 0;
  for (size_t i = 0; i < each; i++) {
    hk_ns latency, work;
    hk_time_alone(g, &g->ops[i], m, &latency, &work);
    times[i] = latency + (work > 0 ? work - 1 : 0);
  }
  for (size_t i = 0; i < each; i++)
    if (g->ops[i].kind == HK_OP_FORWARD && g->ops[i].rank == 0)
      longest = hk_max(longest, chain_from(g, i, times, m));
  const hk_ns whole = (hk_ns)floor((double)longest * (1 - 1e-9));
  assert_true(f->period_bound.period_ns >= whole);
  if (strcmp(f->period_bound.binding, "cycle") == 0)
    assert_int_equal(f->period_bound.period_ns, whole);
  free(times);
}

static void every_plan_passes_its_checks(void **state) {
  (void)state;
  int unsteady = 0;
  for (uint64_t seed = 1; seed <= CASES; seed++) {
    hk_error err = {0};
    random_stream r = {seed * 104729};
    const hk_machine m = random_machine(&r);
    hk_plan plan = random_plan(&r, &m), same;
    must(hk_plan_copy(&plan, &same, &err), &err);
    const hk_sim_options options = {.counters = true, .check = true};
    hk_forecast f, again;
    if (hk_forecast_make(&plan, &m, &options, &f, &err) != HK_OK)
      fail_msg("seed %d: %s", (int)seed, err.message);
    check_parts(&f);
    if (seed <= CASES / 3) check_cycles(&f, &m);
    hk_certificate certificate; /* fails if its bound is above the period */
    must(hk_certify(&f, &m, &certificate, &err), &err);
    unsteady += f.unsteady_ns > f.iteration_ns / 1000;
    must(hk_forecast_make(&same, &m, NULL, &again, &err), &err);
    assert_int_equal(f.result.timeline.n_spans, again.result.timeline.n_spans);
    assert_memory_equal(f.result.timeline.spans, again.result.timeline.spans,
                        f.result.timeline.n_spans * sizeof(hk_span));
    hk_forecast_free(&f);
    hk_forecast_free(&again);
  }
  print_message("%d of %d had no steady period in 16 iterations\n", unsteady, CASES);
  assert_true(unsteady <= CASES / 20);
}

/* No rank launches a forward before the norm of the iteration before is known. */
static void check_norms(const hk_graph *g, const hk_timeline *t) {
  hk_ns known = 0;
  for (size_t i = 0; i < g->n_ops; i++) {
    if (g->ops[i].kind == HK_OP_BARRIER) known = t->spans[i].end;
    if (g->ops[i].kind == HK_OP_LAUNCH) assert_true(t->spans[i].start >= known);
  }
}

/* One rank that stands for all ends at the same time as all of them, to 1e-6. */
static void folded_ranks_are_exact(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= CASES / 3; seed++) {
    hk_error err = {0};
    random_stream r = {seed * 15485863};
    hk_machine m = random_machine(&r);
    m.gpus.value = seed % 2 ? 2 : pick(&r, 2, 4);
    hk_plan plan = seed % 2 ? random_adapters(&r, &m) : random_plan(&r, &m);
    hk_ns ends[2];
    for (int folded = 0; folded < 2; folded++) {
      hk_graph graph;
      hk_result result;
      const hk_sim_options options = {.check = true};
      must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .iterations = 3, .folded = folded},
                          &graph, &err),
           &err);
      must(hk_simulate(&graph, &m, &options, &result, &err), &err);
      ends[folded] = result.last.end;
      check_norms(&graph, &result.timeline);
      hk_result_free(&result);
      hk_graph_free(&graph);
    }
    assert_true(llabs(ends[0] - ends[1]) <= 1 + ends[0] / 1000000);
    hk_plan_free(&plan);
  }
}

/* The certified bound is below the period (hk_certify fails if it is not), also where weights are
 * early. It is close to some periods. */
static void certified_bounds_hold(void **state) {
  (void)state;
  int made[2] = {0}, close[2] = {0};
  for (uint64_t seed = 1; seed <= 3 * CASES; seed++) {
    hk_error err = {0};
    random_stream r = {seed * 49979687};
    hk_machine m = random_machine(&r);
    m.cpu_adamw.value *= scale(&r, 0.1, 10);
    m.gpu_hbm.value *= scale(&r, 0.1, 1);
    m.launch_beside_update.value = scale(&r, 0.3, 1);
    m.launch_spread.value = pick(&r, 0, 1) ? scale(&r, 0.05, 0.5) : 0;
    m.spread_beside.value = m.launch_spread.value * scale(&r, 0.3, 3);
    hk_plan plan = random_plan(&r, &m);
    if (pick(&r, 0, 3) == 0) plan.clip = HK_CLIP_BLOCK;
    for (size_t i = 0; i < plan.n_subgroups; i++)
      plan.subgroups[i].early = plan.subgroups[i].ahead && pick(&r, 0, 2) == 0;
    must(hk_plan_check(&plan, &err), &err);
    const int both = plan.overlap == HK_OVERLAP_BOTH;
    hk_certificate certificate;
    hk_forecast f;
    must(hk_forecast_make(&plan, &m, NULL, &f, &err), &err);
    if (hk_certify(&f, &m, &certificate, &err) != HK_OK)
      fail_msg("seed %d: %s", (int)seed, err.message);
    assert_int_equal(certificate.made || certificate.unsolved, f.feasible);
    made[both] += certificate.made;
    close[both] += certificate.made && hk_certificate_gap(&certificate) < 0.05;
    hk_forecast_free(&f);
  }
  print_message("forward, both: %d, %d bounds, gap below 5 %%: %d, %d\n", made[0], made[1],
                close[0], close[1]);
  for (int both = 0; both < 2; both++)
    assert_true(made[both] > CASES / 2 && close[both] > CASES / 10);
}

static hk_preview preview_of(const hk_plan *plan, const hk_machine *m) {
  hk_error err = {0};
  hk_preview preview;
  must(hk_preview_of(plan, m, &preview, &err), &err);
  return preview;
}

/* The preview is what the forecast says, also where memory suffices just so, and where it lacks a
 * byte. */
static void check_preview(const hk_forecast *f, hk_machine m) {
  hk_error err = {0};
  hk_bytes least;
  hk_preview p = preview_of(&f->plan, &m);
  must(hk_forecast_least_peak(&f->plan, &least, &err), &err);
  assert_true(least <= p.peak);
  assert_true(p.feasible && p.iteration_ns == f->iteration_ns);
  assert_int_equal(p.peak, f->result.memory.peak);
  m.gpu_memory.value = m.gpu_reserved.value + (double)p.peak;
  p = preview_of(&f->plan, &m);
  assert_true(p.feasible && p.iteration_ns == f->iteration_ns);
  m.gpu_memory.value -= 1;
  p = preview_of(&f->plan, &m);
  assert_true(!p.feasible && p.peak <= f->result.memory.peak);
  m.gpu_memory.value += 1;
  m.host_memory.value = m.host_reserved.value + (double)f->graph.host_base - 1;
  p = preview_of(&f->plan, &m);
  assert_true(!p.feasible && p.peak == f->result.memory.peak);
}

/* Whether the plan's second iteration ends as the first one does. */
static bool is_repeated(const hk_plan *plan, const hk_machine *m) {
  hk_error err = {0};
  hk_graph graph;
  hk_repetition all;
  const hk_expand two = {HK_EXPAND_ALL, .iterations = 2, .folded = true};
  must(hk_graph_build(plan, two, &graph, &err), &err);
  must(hk_simulate_until_repeat(&graph, m, &all, &err), &err);
  hk_graph_free(&graph);
  return all.found;
}

static hk_ns least_of(const hk_plan *plan, const hk_machine *m) {
  hk_error err = {0};
  hk_turn turn;
  hk_ns least;
  must(hk_turn_open(plan, m, &turn, &err), &err);
  must(hk_turn_least(&turn, plan, &least, &err), &err);
  hk_turn_close(&turn);
  return least;
}

static void previews_and_their_bounds_hold(void **state) {
  (void)state;
  int repeated = 0, close = 0, settled = 0;
  for (uint64_t seed = 1; seed <= PREVIEWS; seed++) {
    hk_error err = {0};
    random_stream r = {seed * 86028121};
    hk_machine m = random_machine(&r);
    m.cpu_adamw.value *= scale(&r, 0.1, 10);
    m.gpu_hbm.value *= scale(&r, 0.1, 1);
    m.launch_beside_update.value = scale(&r, 0.3, 1);
    m.launch_spread.value = pick(&r, 0, 1) ? scale(&r, 0.05, 0.5) : 0;
    m.spread_beside.value = m.launch_spread.value * scale(&r, 0.3, 3);
    hk_plan plan = random_plan(&r, &m), copy;
    if (pick(&r, 0, 3) == 0) plan.clip = HK_CLIP_BLOCK;
    for (size_t i = 0; i < plan.n_subgroups; i++)
      plan.subgroups[i].early = plan.subgroups[i].ahead && pick(&r, 0, 2) == 0;
    must(hk_plan_check(&plan, &err), &err);
    must(hk_plan_copy(&plan, &copy, &err), &err);
    hk_forecast f;
    must(hk_forecast_make(&copy, &m, NULL, &f, &err), &err);
    assert_true(f.feasible);
    check_preview(&f, m);
    const bool repeats = is_repeated(&plan, &m);
    const hk_ns average = least_of(&plan, &m);
    const hk_ns least = repeats ? average : hk_turn_settled(average);
    if (f.settled && least > f.iteration_ns)
      fail_msg("seed %d: an iteration of %lld ns is shorter than %lld ns", (int)seed,
               (long long)f.iteration_ns, (long long)least);
    settled += f.settled;
    close += f.settled && 1.1 * (double)least > (double)f.iteration_ns;
    repeated += repeats;
    hk_forecast_free(&f);
    hk_plan_free(&plan);
  }
  print_message("of %d plans %d repeat, bounds of %d of %d within 10 %%\n", PREVIEWS, repeated,
                close, settled);
  assert_true(repeated > PREVIEWS * 9 / 10 && close > settled / 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_plan_passes_its_checks),
      cmocka_unit_test(folded_ranks_are_exact),
      cmocka_unit_test(certified_bounds_hold),
      cmocka_unit_test(previews_and_their_bounds_hold),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
