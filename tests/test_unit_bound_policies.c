/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lower bounds, and certificates, are below what the simulator makes of every policy on random
 * nodes, and close to some. */
#include "sim/certificate.h"
#include "sim/rank.h"
#include "tests/random.h"

/* What clipping adds to the barrier of torch's plan. The bound does not have it. */
static hk_ns clipping_ns(const hk_graph *graph, const hk_machine *machine) {
  size_t i = 0;
  while (graph->ops[i].kind != HK_OP_BARRIER) i++;
  hk_op bare = graph->ops[i];
  bare.copied = 0;
  return hk_demand_of(graph, &graph->ops[i], machine).latency -
         hk_demand_of(graph, &bare, machine).latency;
}

/* What casts add to forward and backward of torch's plan, one after the other. */
static hk_ns casts_ns(const hk_graph *graph, const hk_machine *machine) {
  hk_ns sum = 0;
  for (size_t i = 0; i < graph->n_ops; i++) {
    if (graph->ops[i].cast == 0) continue;
    const hk_op bare = hk_op_of_any_plan(graph->ops[i]);
    sum += hk_bound_least(graph, &graph->ops[i], machine) - hk_bound_least(graph, &bare, machine);
  }
  return sum;
}

static void below_every_policy(void **state) {
  (void)state;
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  hk_model model = tiny_model(2);
  const double parameters = (double)model.parameters;
  int fitting = 0, tight = 0, certified = 0, close = 0;
  for (uint64_t seed = 0; seed < 600; seed++) {
    random_stream r = {seed};
    hk_machine m = random_node(&r);
    const int gpus = (int)m.gpus.value;
    m.gpu_launch.value = pick(&r, 0, 100);
    m.h2d_latency.value = m.d2h_latency.value = m.gpu_launch.value;
    if (seed % 2 == 0) price_copies(&r, &m);
    if (seed % 3 == 0) delay_memory(&r, &m);
    m.cpu_adamw_fp32.value = m.cpu_adamw.value * scale(&r, 0.5, 2);
    m.cpu_unscale.value = m.cpu_cast.value = m.cpu_adamw.value * scale(&r, 1, 4);
    m.cpu_adamw_threads.value = scale(&r, 1, 40);
    m.cpu_adamw_fp32_threads.value = pick(&r, 0, 40);
    m.cores.value = gpus * pick(&r, 1, 16);
    m.gpu_memory.value = parameters * scale(&r, 4, 40);
    m.host_memory.value = parameters * scale(&r, 4, 60);
    const hk_job job = {.gpus = gpus,
                        .nodes = pick(&r, 1, 2),
                        .tp = 1,
                        .micro_batch = 1,
                        .grad_accum = 1,
                        .seq = 1,
                        .checkpoint_activations = true};
    const hk_plan_settings settings = {.subgroup_numel = pick(&r, 2000, 20000)};
    for (size_t i = 0; i < 2 * n; i++) {
      const hk_policy *policy = policies[i / 2];
      const hk_runtime runtime = i % 2 ? HK_RUNTIME_DEEPSPEED : HK_RUNTIME_HOCKET;
      if (runtime == HK_RUNTIME_DEEPSPEED && !policy->deepspeed) continue;
      const hk_candidate candidate = {policy, HK_POLICY_OPTIONS_NONE, runtime};
      hk_error err = {0};
      hk_plan plan;
      hk_forecast f;
      hk_machine roomy = m; /* DeepSpeed's bucket alone has 1 GB, whatever the model */
      if (runtime == HK_RUNTIME_DEEPSPEED) roomy.gpu_memory.value += 1.5e9;
      must(hk_candidate_plan(&candidate, &model, &roomy, &job, &settings, &plan, &err), &err);
      must(hk_forecast_make(&plan, &roomy, NULL, &f, &err), &err);
      if (f.graph_bound.update_ns > f.update_ns) {
        fail_msg("seed %d, %s: bound %lld ns (%s), update %lld ns", (int)seed, policy->name,
                 (long long)f.graph_bound.update_ns, f.graph_bound.binding, (long long)f.update_ns);
      }
      if (f.feasible) {
        /* Both bounds sum the same terms and may round to neighbouring nanoseconds. */
        if (!f.physical.feasible || f.physical.update_ns > f.graph_bound.update_ns + 1) {
          fail_msg("seed %d, %s: physical bound %lld ns, of the graph %lld", (int)seed,
                   policy->name, (long long)f.physical.update_ns,
                   (long long)f.graph_bound.update_ns);
        }
        hk_certificate certificate; /* fails if its bound is above the iteration */
        must(hk_certify(&f, &roomy, &certificate, &err), &err);
        assert_int_equal(certificate.made, runtime == HK_RUNTIME_HOCKET);
        certified += certificate.made;
        const hk_ns clipping = clipping_ns(&f.graph, &roomy);
        const hk_ns common = f.iteration_ns - clipping - casts_ns(&f.graph, &roomy);
        close += certificate.made && (double)common < 1.1 * (double)certificate.bound_ns;
        fitting++;
        tight += (double)(f.update_ns - clipping) < 1.1 * (double)f.physical.update_ns;
      }
      hk_forecast_free(&f);
    }
  }
  hk_model_free(&model);
  assert_true(fitting > 1000 && certified > 600 && close > 30);
  assert_true(tight > 30); /* cases in which a policy is within 10 % of the physical bound */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(below_every_policy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
