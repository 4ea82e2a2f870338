/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Stored attention scores under DeepSpeed: operations and bytes of each pass, and its time, by
 * hand.
 *
 * tiny_model has 4 heads of 16 and hidden size 64. With 64 tokens the scores of a layer are
 * s = 2 x 4 x 64^2 = 32768 bytes, and a product that reads or writes them has 2 x 64^2 x 64 =
 * 524288 floating-point operations. */
#include <math.h>

#include "sim/sim.h"
#include "tests/fixture_graph.h"

#define SCORES  32768
#define PRODUCT 524288
#define MATRIX  (2 * 64 * (4 * 64 * 64 + 3 * 64 * 128)) /* operations of the other products */

static hk_graph graph_of(hk_runtime runtime, bool checkpoint) {
  hk_job job = ALONE;
  job.checkpoint_activations = checkpoint;
  hk_plan plan =
      planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, runtime, &job, HK_FLUSH_ASYNC);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  hk_plan_free(&plan);
  return graph;
}

static const hk_op *pass_of(const hk_graph *graph, hk_op_kind kind, int block) {
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == kind && graph->ops[i].block == block) return &graph->ops[i];
  fail_msg("no such operation");
  return NULL;
}

/* `products`: matrix products that read or write the scores once. `softmax`: passes of the softmax
 * over the scores. */
static void check_pass(const hk_op *op, int products, double softmax) {
  assert_int_equal(op->score_flops, products * PRODUCT);
  assert_int_equal(op->score_bytes, products * SCORES);
  assert_int_equal(op->softmax_bytes, (int64_t)(softmax * SCORES));
}

static void each_pass_has_its_traffic(void **state) {
  (void)state;
  for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
    hk_graph graph = graph_of(HK_RUNTIME_DEEPSPEED, checkpoint);
    for (int block = 0; block < LAYERS; block++) {
      check_pass(pass_of(&graph, HK_OP_FORWARD, block), 2, 1.5);
      check_pass(pass_of(&graph, HK_OP_BACKWARD, block), checkpoint ? 6 : 4, checkpoint ? 3.5 : 2);
    }
    check_pass(pass_of(&graph, HK_OP_FORWARD, LAYERS), 0, 0); /* the head */
    hk_graph_free(&graph);

    graph = graph_of(HK_RUNTIME_HOCKET, checkpoint); /* flash attention */
    check_pass(pass_of(&graph, HK_OP_FORWARD, 0), 0, 0);
    check_pass(pass_of(&graph, HK_OP_BACKWARD, 0), 0, 0);
    hk_graph_free(&graph);
  }
}

/* At 1 TFLOP/s the products of scores take 1.05 us, the others 5.24 us. At 10 GB/s the two passes
 * of the products over the scores take 6.55 us, longer than their computation, and the
 * softmax's 1.5 passes take 4.92 us. At 1 PB/s the computation is longer. */
static void traffic_limits_the_products(void **state) {
  (void)state;
  hk_graph graph = graph_of(HK_RUNTIME_DEEPSPEED, false);
  const hk_op *op = pass_of(&graph, HK_OP_FORWARD, 0);
  assert_int_equal(op->work, MATRIX + 2 * PRODUCT);
  hk_machine m = ideal_machine();
  m.gpu_flops.value = 1e12;
  static const struct {
    double hbm, us;
  } cases[] = {{1e10, 5.24288 + 6.5536 + 4.9152}, {1e15, 5.24288 + 1.048576 + 0.0000491}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    m.gpu_hbm.value = cases[i].hbm;
    const hk_demand d = hk_demand_of(&graph, op, &m);
    assert_true(fabs((double)op->work / d.cap * 1e6 - cases[i].us) < 1e-5 * cases[i].us);
  }
  hk_graph_free(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_pass_has_its_traffic),
      cmocka_unit_test(traffic_limits_the_products),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
