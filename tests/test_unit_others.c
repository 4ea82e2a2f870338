/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The closed forms of what users would otherwise run, by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "sim/others.h"

#define G  1e9
#define MS 1000000LL

/* Host memory of 280 GB/s, of which AdamW's traffic in torch reaches 0.765: 214.2. A thread updates
 * 1 G parameters/s, scales 2 G and casts 3 G. Copies at 50 GB/s, 80 both ways. */
static hk_machine machine_of(void) {
  return (hk_machine){.dram = {.value = 280 * G},
                      .dram_process = {.value = 1e15},
                      .dram_unbound = {.value = 0.7},
                      .cpu_adamw = {.value = 10 * G},
                      .cpu_adamw_threads = {.value = 10},
                      .cpu_unscale = {.value = 20 * G},
                      .cpu_cast = {.value = 30 * G},
                      .h2d = {.value = 50 * G},
                      .d2h = {.value = 50 * G},
                      .duplex = {.value = 80 * G},
                      .fabric_h2d = {.value = 60 * G},
                      .fabric_d2h = {.value = 60 * G},
                      .fabric_duplex = {.value = 100 * G},
                      .d2h_pageable = {.value = 10 * G}};
}

/* 1 G parameters on one rank of 10 threads; the GPU takes 100 ms forward and 200 backward. */
static hk_others_job job_of(void) {
  return (hk_others_job){.n = G,
                         .last = 0.04 * G,
                         .ranks = 1,
                         .world = 1,
                         .threads = 10,
                         .micro_steps = 1,
                         .forward = 100 * MS,
                         .backward = 200 * MS,
                         .launches = 50 * MS,
                         .update_8bit = 5 * MS};
}

static void near_ms(hk_ns time, double ms) {
  if (fabs(hk_ms(time) - ms) > 0.01) fail_msg("%.3f ms, not %.3f", hk_ms(time), ms);
}

/* AdamW 28 / 214.2 = 130.719 ms (10 threads would do it in 100), the norm 4 and the scaling 8 bytes
 * at 160 GB/s, what 10 threads scale: 25 and 50 ms. Up 80 ms; up and down 100 ms. */
static void test_fsdp(void **state) {
  (void)state;
  const hk_machine m = machine_of();
  hk_others_job job = job_of();
  hk_other row = hk_other_times(HK_OTHER_FSDP, &job, &m);
  near_ms(row.forward_ns, 100);
  near_ms(row.backward_ns, 200);
  near_ms(row.update_ns, 25 + 50 + 130.719);
  near_ms(row.iteration_ns, 300 + 205.719);
  job.forward = 10 * MS, job.backward = 20 * MS;
  row = hk_other_times(HK_OTHER_FSDP, &job, &m);
  near_ms(row.forward_ns, 80);
  near_ms(row.backward_ns, 100);
  /* The second micro-step: 400 ms to pageable memory, 12 bytes added at 160 GB/s. */
  job.micro_steps = 2;
  row = hk_other_times(HK_OTHER_FSDP, &job, &m);
  near_ms(row.forward_ns, 160);
  near_ms(row.backward_ns, 200 + 400 + 75);
}

/* One thread: 1000 ms of AdamW, 12 bytes at 16 GB/s. */
static void test_fsdp_under_torchrun(void **state) {
  (void)state;
  const hk_machine m = machine_of();
  const hk_others_job job = job_of();
  near_ms(hk_other_times(HK_OTHER_FSDP_ONE_THREAD, &job, &m).update_ns, 1750);
}

/* Two ranks that are not bound: each has 0.35 of host memory and 30 GB/s of the fabric. */
static void test_two_ranks(void **state) {
  (void)state;
  const hk_machine m = machine_of();
  hk_others_job job = job_of();
  job.ranks = job.world = 2;
  const hk_other row = hk_other_times(HK_OTHER_FSDP, &job, &m);
  near_ms(row.forward_ns, 4 / 30.0 * 1e3);
  near_ms(row.update_ns, (12 + 28) / (0.765 * 98) * 1e3);
  assert_false(hk_other_times(HK_OTHER_TORCHAO, &job, &m).runs);
}

/* 10 threads update 4 G bf16 parameters/s: 250 ms from 50 ms on, within the GPU's 300, so that only
 * the embedding is left, 10 ms; with slow launches 300 ms from 60 on. */
static void test_torchao(void **state) {
  (void)state;
  const hk_machine m = machine_of();
  hk_others_job job = job_of();
  hk_other row = hk_other_times(HK_OTHER_TORCHAO, &job, &m);
  near_ms(row.update_ns, 10);
  near_ms(row.iteration_ns, 310);
  job.launches = 250 * MS;
  row = hk_other_times(HK_OTHER_TORCHAO, &job, &m);
  near_ms(row.update_ns, 200);
}

static void test_8bit(void **state) {
  (void)state;
  const hk_machine m = machine_of();
  const hk_others_job job = job_of();
  near_ms(hk_other_times(HK_OTHER_8BIT, &job, &m).iteration_ns, 305);
}

/* 0.9 G parameters: 36 bytes at 0.794 x 280 GB/s take 145.733 ms (9 threads would take 100),
 * gradients down 108 ms: within backward. The cast on one thread takes 300 ms, weights up 36.
 * Clipping: 8 bytes at 16 GB/s, 450 ms, and the update after backward. */
static void test_superoffload(void **state) {
  (void)state;
  const hk_machine m = machine_of();
  hk_others_job job = job_of();
  hk_other row = hk_other_times(HK_OTHER_SUPEROFFLOAD, &job, &m);
  near_ms(row.backward_ns, 200);
  near_ms(row.update_ns, 336);
  job.backward = 120 * MS;
  row = hk_other_times(HK_OTHER_SUPEROFFLOAD, &job, &m);
  near_ms(row.backward_ns, 145.733);
  job.clips = true;
  row = hk_other_times(HK_OTHER_SUPEROFFLOAD, &job, &m);
  near_ms(row.backward_ns, 120);
  near_ms(row.update_ns, 336 + 145.733 + 450);
}

static void test_fastest(void **state) {
  (void)state;
  hk_other rows[HK_OTHER_COUNT] = {0};
  assert_int_equal(hk_others_fastest(rows), HK_OTHER_COUNT);
  for (int i = 0; i < HK_OTHER_COUNT; i++)
    rows[i] = (hk_other){.runs = true, .iteration_ns = 9 - i};
  rows[HK_OTHER_SUPEROFFLOAD].host_short = 1;
  rows[HK_OTHER_8BIT].gpu_short = 1;
  assert_int_equal(hk_others_fastest(rows), HK_OTHER_TORCHAO);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fsdp),      cmocka_unit_test(test_fsdp_under_torchrun),
      cmocka_unit_test(test_two_ranks), cmocka_unit_test(test_torchao),
      cmocka_unit_test(test_8bit),      cmocka_unit_test(test_superoffload),
      cmocka_unit_test(test_fastest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
