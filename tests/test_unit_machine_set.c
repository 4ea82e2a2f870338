/* SPDX-License-Identifier: GPL-3.0-or-later */
/* --set: syntax, derived quantities, and the values that the document keeps. */
#include "core/machine/machine_set.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
/* cmocka needs stdarg, stddef and setjmp before it. */
#include <cmocka.h>

#include "core/graph/bytes.h"
#include "core/machine/machine_derive.h"

#define POLARIS "polaris-a100-4x40gb"
#define H200    "h200-node-16c"
#define H200_4  "h200-node-4x-64c"

static hk_machine load(const char *name) {
  hk_machine m;
  hk_error err = {0};
  if (hk_machine_load(name, &m, &err) != HK_OK) fail_msg("%s", err.message);
  return m;
}

/* `texts` is one text, or several with a blank between them. */
static hk_status try_set(hk_machine *m, const char *texts, hk_error *err) {
  char copy[400], *rest = copy;
  const char *list[8];
  size_t n = 0;
  snprintf(copy, sizeof copy, "%s", texts);
  for (char *text; (text = strtok_r(rest, " ", &rest));) list[n++] = text;
  return hk_machine_set(m, list, n, err);
}

static hk_machine changed(const char *name, const char *texts) {
  hk_machine m = load(name);
  hk_error err = {0};
  if (try_set(&m, texts, &err) != HK_OK) fail_msg("%s: %s", texts, err.message);
  return m;
}

static void near(double value, double expected) {
  if (!(fabs(value / expected - 1) < 1e-9)) fail_msg("%.15g, expected %.15g", value, expected);
}

/* -- Texts ------------------------------------------------------------------------------------- */

static void a_text_has_a_key_an_operation_and_a_value(void **state) {
  (void)state;
  hk_machine polaris = load(POLARIS);
  const double before = polaris.dram.value;
  hk_machine_free(&polaris);
  const struct {
    const char *text;
    double value; /* of dram.bytes_per_s */
  } good[] = {
      {"dram.bytes_per_s=200e9", 200e9},
      {"dram=200G", 200e9},
      {"dram=0.2T", 200e9},
      {"dram=200GB/s", 200e9},
      {"dram=100GiB/s", 0x1.9p36},
      {"dram=104857600KiB/s", 0x1.9p36},
      {"dram=104857600kiB/s", 0x1.9p36},
      {"dram*=2", 2 * before},
      {"dram/=2", before / 2},
      {"dram+=59G", before + 59e9},
      {"dram-=41.5G", before - 41.5e9},
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    hk_machine m = changed(POLARIS, good[i].text);
    near(m.dram.value, good[i].value);
    assert_int_equal(m.dram.origin, HK_ORIGIN_SET);
    assert_non_null(strstr(m.dram.source, good[i].text));
    hk_machine_free(&m);
  }
  hk_machine m = changed(POLARIS, "gpu.launch=20us gpu.memory=32GiB cpu.adamw=7GP/s node.cores=64");
  near(m.gpu_launch.value, 20e3);
  near(m.gpu_memory.value, 0x1p35);
  near(m.cpu_adamw.value, 7e9);
  near(m.cores.value, 64);
  hk_machine_free(&m);
}

static void a_wrong_text_is_refused_with_a_sentence(void **state) {
  (void)state;
  static const char *const bad[][2] = {
      {"dram", "expected KEY=VALUE"},
      {"=1", "expected KEY=VALUE"},
      {"pcie.h2dd=1G", "did you mean 'pcie.h2d_bytes_per_s'?"},
      {"nodes.gpus=2", "did you mean 'node.gpus'?"},
      {"dram.bytes_per=2", "did you mean 'dram.bytes_per_s'?"},
      {"dram=", "expected a number of B/s"},
      {"dram=fast", "expected a number of B/s"},
      {"dram=64Q", "got '64Q'"},
      {"dram=0x10", "got '0x10'"},
      {"dram=nan", "got 'nan'"},
      {"dram=inf", "got 'inf'"},
      {"dram*=0", "expected a factor"},
      {"dram*=2G", "expected a factor"},
      {"dram*=-1", "expected a factor"},
      {"gpu.launch=20GB", "such as 20us"},
      {"gpu.collective_share=2", "'gpu.collective_share' may be 0 to 1, not 2"},
      {"dram-=1T", "may be 1e+06 to 1e+15 B/s"},
      {"node.gpus=1.5", "expected a whole number"},
      {"dram=1T dram.bytes_per_s*=2", "'dram.bytes_per_s' is set twice: --set dram=1T and --set"},
      {"pcie.h2d=100G pcie.duplex=90G", "may be at most 'pcie.duplex_bytes_per_s'"},
      {"dram.with_dma*=2", "may be at most 'dram.bytes_per_s'"},
      {"gpu.reserved=100G", "must be less than 'gpu.memory_bytes'"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    hk_machine m = load(POLARIS);
    hk_error err = {0};
    assert_int_equal(try_set(&m, bad[i][0], &err), HK_INPUT);
    if (!strstr(err.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.message);
    hk_machine_free(&m);
  }
}

/* -- Derived quantities ------------------------------------------------------------------------ */

static void h2d_derives_the_rest_of_the_link(void **state) {
  (void)state;
  hk_machine a = load(POLARIS), b = changed(POLARIS, "pcie.h2d*=2");
  near(b.d2h.value, 2 * a.d2h.value);
  near(b.duplex.value, 2 * a.duplex.value);
  near(b.mapped.value, 2 * a.mapped.value);
  near(b.fabric_h2d.value, 2 * a.fabric_h2d.value);
  near(b.fabric_d2h.value, a.fabric_d2h.value); /* limited by the host */
  near(b.fabric_duplex.value, b.fabric_h2d.value + b.fabric_d2h.value);
  assert_true(b.fabric_duplex.value < 2 * a.fabric_duplex.value);
  near(b.h2d_pageable.value, 2 * a.h2d_pageable.value); /* limited by the link */
  near(b.d2h_pageable.value, a.d2h_pageable.value);     /* limited by one CPU thread */
  near(b.nvlink.value, a.nvlink.value);
  assert_int_equal(b.duplex.origin, HK_ORIGIN_DERIVED);
  assert_string_equal(b.duplex.source,
                      "2 x, follows pcie.h2d_bytes_per_s; before: 4.36785e+10, data sheet");
  hk_machine_free(&a);
  hk_machine_free(&b);
}

static void a_given_quantity_does_not_follow(void **state) {
  (void)state;
  hk_machine a = load(POLARIS);
  hk_machine b = changed(POLARIS, "pcie.h2d*=2 pcie.d2h*=1 pcie.mapped=40G");
  near(b.d2h.value, a.d2h.value);
  near(b.duplex.value, 2 * a.h2d.value + a.d2h.value);
  near(b.mapped.value, 40e9);
  hk_machine_free(&b);
  b = changed(POLARIS, "pcie.h2d*=2 pcie.duplex=60G"); /* d2h still doubles, to below 60 */
  near(b.duplex.value, 60e9);
  near(b.d2h.value, 2 * a.d2h.value);
  hk_machine_free(&a);
  hk_machine_free(&b);
}

/* The shares of saturated memory that kernels, copies in and copies out get stay as measured:
 * weights change inversely to demands. */
static void weights_stay_what_they_were(void **state) {
  (void)state;
  hk_machine a = load(H200), b = changed(H200, "pcie.h2d*=2");
  near(b.dma_weight.value * b.h2d.value, a.dma_weight.value * a.h2d.value);
  near(b.d2h_priority.value, a.d2h_priority.value);
  hk_machine_free(&b);
  b = changed(H200, "pcie.d2h*=1.5");
  near(b.dma_weight.value, a.dma_weight.value);
  near(b.d2h_priority.value * b.d2h.value, a.d2h_priority.value * a.d2h.value);
  hk_machine_free(&b);
  b = changed(H200, "cpu.adamw*=3");
  near(b.dma_weight.value / b.cpu_adamw.value, a.dma_weight.value / a.cpu_adamw.value);
  hk_machine_free(&b);
  b = changed(H200, "node.cores*=2");
  near(b.dma_weight.value / hk_cpu_rate(&b, &b.cpu_adamw, &b.cpu_adamw_threads, 32),
       a.dma_weight.value / hk_cpu_rate(&a, &a.cpu_adamw, &a.cpu_adamw_threads, 16));
  hk_machine_free(&b);
  b = changed(H200, "dram*=2");
  near(b.dma_weight.value, a.dma_weight.value);
  hk_machine_free(&a);
  hk_machine_free(&b);
}

/* Without NVLink, GPUs communicate over PCIe, so nvlink follows pcie.h2d. */
static void nvlink_of_gpus_without_it_follows_pcie(void **state) {
  (void)state;
  hk_machine a = load("workstation-rtx4090-ddr5");
  hk_machine b = changed("workstation-rtx4090-ddr5", "pcie.h2d*=2");
  near(b.nvlink.value, 2 * a.nvlink.value);
  hk_machine_free(&a);
  hk_machine_free(&b);
}

/* Four H200s reach 180 of 4 x 55 GB/s to the GPUs (a limit of the host) and 118 from them (their
 * bytes fill host memory). */
static void a_fabric_follows_what_limits_it(void **state) {
  (void)state;
  hk_machine a = load(H200_4), link = changed(H200_4, "pcie.h2d*=2");
  near(link.fabric_h2d.value, a.fabric_h2d.value);
  near(link.fabric_duplex.value, link.duplex.value); /* at least one GPU's link */
  hk_machine memory = changed(H200_4, "dram*=1.5");
  near(memory.fabric_h2d.value, a.fabric_h2d.value);
  near(memory.fabric_d2h.value, 1.5 * a.fabric_d2h.value);
  hk_machine gpus = changed(H200, "node.gpus=4"); /* with one GPU the fabric was its link */
  near(gpus.fabric_h2d.value, 4 * gpus.h2d.value);
  hk_machine_free(&a);
  hk_machine_free(&link);
  hk_machine_free(&memory);
  hk_machine_free(&gpus);
}

static void cpu_kernels_follow_memory_as_far_as_it_limits_them(void **state) {
  (void)state;
  hk_machine a = load(POLARIS), b = changed(POLARIS, "dram*=2");
  near(b.dram_with_dma.value, 2 * a.dram_with_dma.value);
  near(b.dram_process.value, 2 * a.dram_process.value);
  near(b.cpu_adamw.value, 2 * a.cpu_adamw.value); /* 28 B x 6.2 G/s exceed dram.bytes_per_s */
  near(b.cpu_adamw_threads.value, 2 * a.cpu_adamw_threads.value);
  const double share = a.cpu_cast.value * HK_BYTES_CAST / a.dram.value;
  near(b.cpu_cast.value, a.cpu_cast.value / (1 - share + share / 2));
  /* One thread does not reach the memory's limit: its rate is unchanged. */
  near(hk_cpu_rate(&b, &b.cpu_cast, &b.cpu_cast_threads, 1e-12),
       hk_cpu_rate(&a, &a.cpu_cast, &a.cpu_cast_threads, 1e-12));
  /* Not measured: they stay so. */
  assert_true(b.cpu_adamw_8bit.value == 0 && b.cpu_adamw_8bit_threads.value == 0);
  assert_true(hk_cpu_rate(&b, &b.cpu_adamw, &b.cpu_adamw_threads, 16) >
              1.3 * hk_cpu_rate(&a, &a.cpu_adamw, &a.cpu_adamw_threads, 16));
  hk_machine_free(&b);
  b = changed(POLARIS, "dram*=2 cpu.adamw*=1 cpu.adamw_thread_scale=5");
  near(b.cpu_adamw.value, a.cpu_adamw.value);
  near(b.cpu_adamw_threads.value, 5);
  assert_true(b.cpu_cast_threads.value == 0); /* AdamW's, as the user gives it */
  hk_machine_free(&a);
  hk_machine_free(&b);
}

/* Five rates of four machines, times 0.1 to 10: --set accepts them, and reading the result's
 * document finds every quantity within its range and no contradiction. */
static void any_rate_may_change_tenfold(void **state) {
  (void)state;
  static const char *const names[] = {POLARIS, H200, H200_4, "workstation-rtx4090-ddr5"};
  static const char *const keys[] = {"dram", "pcie.h2d", "gpu.hbm", "nvlink", "network"};
  static const double factors[] = {0.1, 0.5, 1, 2, 10};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
      for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        char text[64];
        snprintf(text, sizeof text, "%s*=%g", keys[k], factors[f]);
        hk_machine m = changed(names[i], text), again;
        cJSON *document = hk_machine_to_json(&m);
        hk_error err = {0};
        if (hk_machine_from_json(document, &again, &err) != HK_OK)
          fail_msg("%s, %s: %s", names[i], text, err.message);
        cJSON_Delete(document);
        hk_machine_free(&again);
        hk_machine_free(&m);
      }
}

/* -- Documents --------------------------------------------------------------------------------- */

static double before_of(const hk_machine *m, const hk_quantity *quantity) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  double value = NAN;
  for (size_t i = 0; i < n; i++)
    if (hk_machine_quantity_const(m, &list[i]) == quantity)
      if (!hk_machine_before_set(m, &list[i], &value)) return NAN;
  return value;
}

static void a_document_keeps_what_was_before_the_first_set(void **state) {
  (void)state;
  hk_machine a = load(H200), b = changed(H200, "dram=300G gpu.launch=1us"), again;
  hk_error err = {0};
  assert_int_equal(try_set(&b, "dram*=2", &err), HK_OK);
  cJSON *document = hk_machine_to_json(&b);
  assert_int_equal(hk_machine_from_json(document, &again, &err), HK_OK);
  cJSON_Delete(document);
  near(again.dram.value, 600e9);
  assert_int_equal(again.dram.origin, HK_ORIGIN_SET);
  assert_int_equal(again.cpu_adamw.origin, HK_ORIGIN_DERIVED);
  near(before_of(&again, &again.dram), a.dram.value);
  near(before_of(&again, &again.cpu_adamw), a.cpu_adamw.value);
  near(before_of(&again, &again.gpu_launch), a.gpu_launch.value);
  assert_true(isnan(before_of(&again, &again.h2d)));
  hk_machine_free(&a);
  hk_machine_free(&b);
  hk_machine_free(&again);
}

static void a_given_value_is_exact_and_a_multiple_is_not(void **state) {
  (void)state;
  hk_machine a = load(POLARIS), b = changed(POLARIS, "dram=200G network*=2"), again;
  hk_error err = {0};
  assert_true(a.dram.error > 0 && a.net.error > 0);
  cJSON *document = hk_machine_to_json(&b);
  assert_int_equal(hk_machine_from_json(document, &again, &err), HK_OK);
  cJSON_Delete(document);
  assert_true(again.dram.error == 0);
  near(again.net.error, a.net.error);
  hk_machine_free(&a);
  hk_machine_free(&b);
  hk_machine_free(&again);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_text_has_a_key_an_operation_and_a_value),
      cmocka_unit_test(a_wrong_text_is_refused_with_a_sentence),
      cmocka_unit_test(h2d_derives_the_rest_of_the_link),
      cmocka_unit_test(a_given_quantity_does_not_follow),
      cmocka_unit_test(weights_stay_what_they_were),
      cmocka_unit_test(nvlink_of_gpus_without_it_follows_pcie),
      cmocka_unit_test(a_fabric_follows_what_limits_it),
      cmocka_unit_test(cpu_kernels_follow_memory_as_far_as_it_limits_them),
      cmocka_unit_test(any_rate_may_change_tenfold),
      cmocka_unit_test(a_document_keeps_what_was_before_the_first_set),
      cmocka_unit_test(a_given_value_is_exact_and_a_multiple_is_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
