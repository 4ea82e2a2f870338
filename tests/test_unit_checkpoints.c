/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Layer inputs in host memory: the closed form by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "sim/checkpoints.h"
#include "tests/fixture.h"

/* tiny_model: hidden size 64. A layer's input of 4 x 1000 tokens in bf16 has 512,000 bytes. */
static hk_job job_of(int gpus, int accum) {
  return (hk_job){.gpus = gpus,
                  .nodes = 1,
                  .tp = 1,
                  .micro_batch = 4,
                  .grad_accum = accum,
                  .seq = 1000,
                  .checkpoint_activations = true};
}

/* Of 10 layers the inputs of 8 move: 4,096,000 bytes. */
static void test_bytes(void **state) {
  (void)state;
  hk_model model = tiny_model(10), two = tiny_model(2);
  hk_job job = job_of(2, 1);
  assert_int_equal(hk_checkpoints_moved(&model, &job), 8 * 512000);
  assert_int_equal(hk_checkpoints_moved(&two, &job), 0);
  hk_machine machine = schoolbook_machine();
  machine.gpu_memory.value = 10e6;
  machine.host_memory.value = 20e6;
  const hk_machine roomier = hk_checkpoints_machine(&machine, &job, 4096000);
  assert_true(roomier.gpu_memory.value == 10e6 + 4096000);
  assert_true(roomier.host_memory.value == 20e6 - 2 * 4096000);
  machine.host_memory.value = 1e6; /* too small for two GPUs' inputs */
  assert_true(hk_checkpoints_machine(&machine, &job, 4096000).host_memory.value == 0);
  job.checkpoint_activations = false;
  assert_int_equal(hk_checkpoints_moved(&model, &job), 0);
  hk_model_free(&model);
  hk_model_free(&two);
}

/* 4,096,000 bytes in each of 3 micro-steps are 12,288,000: at 4 B/ns out 3.072 ms, at 8 B/ns in
 * 1.536 ms. Two GPUs share a fabric of 6 B/ns out: 3 B/ns each, 4.096 ms. */
static void test_times(void **state) {
  (void)state;
  hk_machine machine = ideal_machine();
  machine.d2h.value = 4e9;
  machine.h2d.value = 8e9;
  hk_forecast f = {
      .forward_ns = 1000000, .backward_ns = 2000000, .update_ns = 5000000, .iteration_ns = 8000000};
  f.plan.model = tiny_model(10);
  f.plan.job = job_of(2, 3);
  hk_checkpoints c = hk_checkpoints_of(&f, &machine);
  assert_int_equal(c.moved, 4096000);
  assert_int_equal(c.forward_ns, 3072000);
  assert_int_equal(c.backward_ns, 2000000);
  assert_int_equal(c.iteration_ns, 8000000 + 2072000);
  machine.fabric_d2h.value = 6e9;
  c = hk_checkpoints_of(&f, &machine);
  assert_int_equal(c.forward_ns, 4096000);
  f.forward_ns = 5000000; /* copies are hidden */
  c = hk_checkpoints_of(&f, &machine);
  assert_int_equal(c.forward_ns, 5000000);
  assert_int_equal(c.iteration_ns, 8000000);
  hk_model_free(&f.plan.model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bytes),
      cmocka_unit_test(test_times),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
