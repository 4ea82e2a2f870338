/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The certificate of a plan is that of its job: all plans of the job have the same, and none is
 * faster. Random jobs on random machines, several random plans of each. */
#include "sim/certificate.h"
#include "tests/random.h"

#define PLANS 6

typedef struct {
  bool fits;
  bool torchs; /* casts are in its passes */
  hk_ns iteration, unsteady, bound;
} outcome;

/* Copies take a share of the time of all else; some nodes have fast links, some slow GPU memory. */
static hk_machine random_machine(random_stream *r) {
  hk_machine m = random_node(r);
  m.gpu_hbm.value *= scale(r, 0.01, 1);
  m.gpu_flops.value = scale(r, 1e11, 1e14);
  m.nvlink.value = scale(r, 1e10, 1e12);
  m.net.value = scale(r, 1e9, 1e11);
  m.layer_launch.value = pick(r, 0, 1) ? scale(r, 1e2, 1e5) : 0;
  m.fsdp_launches.value = scale(r, 0.3, 1);
  m.gpu_launch.value = m.h2d_latency.value = m.d2h_latency.value = pick(r, 0, 500);
  m.cpu_adamw_threads.value = m.cpu_adamw_fp32_threads.value = scale(r, 1, 40);
  m.cpu_adamw_fp32.value = m.cpu_adamw.value * scale(r, 0.5, 1);
  m.cores.value = m.gpus.value * pick(r, 1, 32);
  m.cpu_adamw_ahead.value = scale(r, 0.3, 1.2);
  m.compute_beside_update.value = pick(r, 0, 1) ? scale(r, 0.5, 1) : 1;
  if (pick(r, 0, 1)) price_copies(r, &m);
  if (pick(r, 0, 2) == 0) delay_memory(r, &m);
  if (pick(r, 0, 1)) m.d2h_beside_reads.value = scale(r, 0.05, 1);
  return m;
}

static hk_job random_job(random_stream *r, const hk_machine *m) {
  const int gpus = (int)m->gpus.value;
  return (hk_job){.gpus = gpus,
                  .nodes = pick(r, 0, 2) ? 1 : 2,
                  .tp = gpus > 1 && pick(r, 0, 3) == 0 ? 2 : 1,
                  .micro_batch = 1,
                  .grad_accum = pick(r, 1, 3),
                  .seq = 1 << pick(r, 0, 6),
                  .checkpoint_activations = pick(r, 0, 1)};
}

/* Most subgroups on one route, and up to all on others. */
static void choose_routes(random_stream *r, hk_plan *plan) {
  const hk_route most = (hk_route)pick(r, 0, HK_ROUTE_COUNT - 1);
  const double others = pick(r, 0, 2) ? scale(r, 0.01, 1) : 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    hk_plan_subgroup *s = &plan->subgroups[i];
    s->route = uniform(r) < others ? (hk_route)pick(r, 0, HK_ROUTE_COUNT - 1) : most;
    s->ahead = plan->overlap == HK_OVERLAP_BOTH && s->route == HK_ROUTE_CPU && pick(r, 0, 3) > 0;
    s->early = s->ahead && pick(r, 0, 2) == 0;
  }
}

static void choose_settings(random_stream *r, hk_plan *plan) {
  plan->buffers = pick(r, 1, 5);
  plan->piece_numel = pick(r, 2000, 90000);
  plan->cpu_threads = pick(r, 1, 40);
  plan->cores_bound = pick(r, 0, 1);
  plan->accumulate = pick(r, 0, 1) ? HK_ACCUMULATE_HOST : HK_ACCUMULATE_GPU;
  plan->reduce_first = pick(r, 0, 1);
  if (plan->overlap != HK_OVERLAP_NONE) return;
  plan->flush = pick(r, 0, 2) ? HK_FLUSH_ASYNC : HK_FLUSH_SYNC;
  if (plan->flush == HK_FLUSH_ASYNC) plan->flush_blocks = pick(r, 0, 3);
}

static bool is_torchs(const hk_plan *plan) {
  return plan->overlap == HK_OVERLAP_NONE && hk_job_dp(&plan->job) > 1 &&
         hk_plan_count(plan, HK_ROUTE_RESIDENT) == plan->n_subgroups;
}

static outcome try_plan(random_stream *r, const hk_plan *first, const hk_machine *m) {
  hk_error err = {0};
  hk_plan plan;
  hk_forecast f;
  hk_certificate c;
  must(hk_plan_copy(first, &plan, &err), &err);
  choose_routes(r, &plan);
  choose_settings(r, &plan);
  must(hk_plan_check(&plan, &err), &err);
  must(hk_forecast_make(&plan, m, NULL, &f, &err), &err);
  must(hk_certify(&f, m, &c, &err), &err);
  const outcome is = {f.feasible && c.made, is_torchs(&f.plan), f.iteration_ns, f.unsteady_ns,
                      c.bound_ns};
  hk_forecast_free(&f);
  return is;
}

static void no_plan_beats_the_bound_of_another(void **state) {
  (void)state;
  const uint64_t cases = case_count((case_counts){300, 100, 100}, (case_counts){3000, 300, 100});
  size_t compared = 0, close = 0, torchs = 0;
  for (uint64_t seed = 1; seed <= cases; seed++) {
    hk_error err = {0};
    random_stream r = {seed * 67867967};
    hk_machine m = random_machine(&r);
    const hk_job job = random_job(&r, &m);
    hk_model model = tiny_model(pick(&r, 1, 4));
    const double parameters = (double)model.parameters;
    m.gpu_memory.value = parameters * scale(&r, 4, 40);
    m.host_memory.value = parameters * scale(&r, 10, 100);
    hk_plan plan;
    must(hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, pick(&r, 1000, 40000),
                        &plan, &err),
         &err);
    hk_plan_set_overlap(&plan, (hk_overlap)pick(&r, 0, HK_OVERLAP_COUNT - 1));
    outcome plans[PLANS];
    for (int i = 0; i < PLANS; i++) plans[i] = try_plan(&r, &plan, &m);
    for (int i = 0; i < PLANS; i++) {
      for (int j = 0; j < PLANS; j++) {
        const outcome *a = &plans[i], *b = &plans[j];
        if (i == j || !a->fits || !b->fits) continue;
        const hk_ns off = plan.overlap == HK_OVERLAP_NONE ? 0 : b->unsteady + b->iteration / 1000;
        if (a->bound != b->bound || a->bound > b->iteration + off)
          fail_msg("seed %d: plan %d proves %lld ns, plan %d %lld and takes %lld", (int)seed, i,
                   (long long)a->bound, j, (long long)b->bound, (long long)b->iteration);
        compared++;
        close += (double)b->iteration < 1.05 * (double)a->bound;
        torchs += a->torchs && !b->torchs;
      }
    }
    hk_plan_free(&plan);
  }
  print_message("%zu pairs, %zu within 5 %%, %zu of torch's plan and another\n", compared, close,
                torchs);
  assert_true(compared > 10 * cases && close > cases && torchs > cases / 10);
}

/* -- The limits of modes ----------------------------------------------------------------------- */

/* Rate, in units a second, of operation k of four that run at once on each GPU: a CPU kernel on all
 * cores of the rank, a copy in, a copy out, and a kernel that pulls weights. */
static double rate_of(const hk_machine *m, int k) {
  hk_error err = {0};
  const int gpus = (int)m->gpus.value;
  hk_graph graph = {.ranks = 1, .multiplicity = gpus, .nodes = 1, .world = gpus, .tp = 1};
  graph.weights_pulled = true;
  const hk_op_kind kinds[] = {HK_OP_ADAMW_CPU, HK_OP_STATE_H2D, HK_OP_STATE_D2H, HK_OP_WEIGHT_H2D};
  const hk_lane_kind lanes[] = {HK_LANE_CPU, HK_LANE_STREAM_P, HK_LANE_STREAM_M, HK_LANE_UP};
  for (int i = 0; i < 4; i++) {
    const hk_op op = {.kind = kinds[i],
                      .threads = (int)(m->cores.value / gpus),
                      .lane = hk_graph_lane(&graph, lanes[i], 0, &err),
                      .work = i == k ? 1000000 : 1000000000000};
    assert_int_equal(hk_graph_add(&graph, &op, NULL, 0, &err), i);
  }
  hk_result result;
  must(hk_simulate(&graph, m, &(hk_sim_options){0}, &result, &err), &err);
  const hk_ns end = result.timeline.spans[k].end;
  hk_result_free(&result);
  hk_graph_free(&graph);
  return 1e15 / (double)end;
}

/* The limits of the mode in which all three works run, of any plan of the machine. */
static hk_certificate_part limits_of(const hk_machine *m) {
  hk_error err = {0};
  const hk_job job = {
      .gpus = (int)m->gpus.value, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 1};
  hk_model model = tiny_model(1);
  hk_plan plan;
  hk_forecast f;
  hk_certificate c;
  must(hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 40000, &plan, &err),
       &err);
  must(hk_forecast_make(&plan, m, NULL, &f, &err), &err);
  must(hk_certify(&f, m, &c, &err), &err);
  assert_true(c.made && c.n_parts == 1);
  hk_forecast_free(&f);
  return c.parts[0];
}

/* Rates that simulation gives four operations at once obey each limit of their mode, and some are
 * at the limit of CPU kernels. */
static void rates_obey_the_limits_of_their_mode(void **state) {
  (void)state;
  enum { ALL = HK_MODES - 1 };
  size_t reached = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    random_stream r = {seed * 86028121};
    hk_machine m = random_machine(&r);
    delay_memory(&r, &m);
    m.h2d_latency.value = m.d2h_latency.value = m.gpu_launch.value = 0;
    const hk_certificate_part part = limits_of(&m);
    const double rates[HK_WORK_COUNT] = {rate_of(&m, 0), rate_of(&m, 1) + rate_of(&m, 3),
                                         rate_of(&m, 2)};
    for (int l = 0; l < part.n_limits[ALL]; l++) {
      const hk_mode_limit *limit = &part.limits[ALL][l];
      double sum = 0;
      for (int w = 0; w < HK_WORK_COUNT; w++) sum += limit->uses[w] * rates[w];
      if (sum > 1.001 * limit->capacity)
        fail_msg("seed %d: %s is used %.4f times", (int)seed, limit->name, sum / limit->capacity);
      reached += strncmp(limit->name, "CPU kernel", 10) == 0 && sum > 0.99 * limit->capacity;
    }
  }
  print_message("%zu at a limit of CPU kernels\n", reached);
  assert_true(reached > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(no_plan_beats_the_bound_of_another),
                                     cmocka_unit_test(rates_obey_the_limits_of_their_mode)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
