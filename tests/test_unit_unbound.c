/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Unbound ranks: much of their traffic in host memory is remote. Copies and CPU kernels count
 * alike, their bytes divided by dram.unbound_efficiency. */
#include <math.h>

#include "sim/sim.h"
#include "tests/fixture_graph.h"

/* Bytes of host memory for a unit of the first operation of this kind. */
static double host_bytes(hk_op_kind kind, bool unbound, double efficiency) {
  hk_job job = ALONE;
  hk_plan plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_DEEPSPEED,
                         &job, HK_FLUSH_ASYNC);
  plan.cores_bound = !unbound;
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  hk_machine m = ideal_machine();
  m.dram_unbound.value = efficiency;
  double bytes = NAN;
  for (size_t i = 0; i < graph.n_ops && isnan(bytes); i++) {
    if (graph.ops[i].kind != kind) continue;
    const hk_demand d = hk_demand_of(&graph, &graph.ops[i], &m);
    for (int u = 0; u < d.n_uses; u++)
      if (d.uses[u].resource == HK_RES_DRAM) bytes = d.uses[u].per_unit;
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return bytes;
}

static void copies_count_as_kernels_do(void **state) {
  (void)state;
  static const hk_op_kind kinds[] = {HK_OP_ADAMW_CPU_FP32, HK_OP_GRAD_SUM_D2H, HK_OP_GRAD_SUM_H2D};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    const double bound = host_bytes(kinds[i], false, 0.5);
    assert_true(bound > 0);
    assert_true(fabs(host_bytes(kinds[i], true, 0.5) - 2 * bound) < 1e-12 * bound);
    assert_true(fabs(host_bytes(kinds[i], true, 1) - bound) < 1e-12 * bound);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies_count_as_kernels_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
