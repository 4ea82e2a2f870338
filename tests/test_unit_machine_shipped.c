/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The machine profiles that ship: within their vendors' data sheets, consistent with each other,
 * and each quantity with its source. */
#include <stdio.h>

#include "core/base/names.h"
#include "fixture.h"

static void load(const char *name, hk_machine *m) {
  hk_error err = {0};
  must(hk_machine_load(name, m, &err), &err);
}

/* Limits of the vendors' data sheets. `link`: one direction of PCIe x16 after 128b/130b coding. */
typedef struct {
  const char *name;
  double gpus, cores, host_memory, gpu_memory, flops, hbm, link, dram, nvlink, net;
} sheet;

static const sheet sheets[] = {
    {"hgx-h200-8x141gb", 8, 128, 0x1p41, 141 * 0x1p30, 989.5e12, 4.8e12, 63.02e9, 716.8e9, 450e9,
     400e9},
    {"aws-g5.12xlarge", 4, 24, 192 * 0x1p30, 24 * 0x1p30, 70e12, 0.6e12, 31.51e9, 204.8e9, 31.51e9,
     5e9},
    {"h200-16c", 1, 16, 0x1p37, 141 * 0x1p30, 989.5e12, 4.8e12, 63.02e9, 358.4e9, 450e9, 12.5e9},
    {"polaris-a100-4x40gb", 4, 32, 0x1p39, 40 * 0x1p30, 312e12, 1.555e12, 31.51e9, 204.8e9, 300e9,
     50e9},
    {"jlse-h100-4x80gb", 4, 96, 0x1p39, 80 * 0x1p30, 989.5e12, 3.352e12, 63.02e9, 614.4e9, 450e9,
     50e9},
    {"workstation-rtx4090-ddr5", 1, 16, 0x1p37, 24 * 0x1p30, 165.2e12, 1.008e12, 31.51e9, 96e9,
     31.51e9, 12.5e9},
    {"dgx-h100-8x80gb", 8, 112, 0x1p41, 80 * 0x1p30, 989.5e12, 3.352e12, 63.02e9, 614.4e9, 450e9,
     400e9},
};

static void at_most(const char *machine, const char *what, double value, double limit) {
  if (!(value <= limit)) fail_msg("%s: %s is %g, the sheet allows %g", machine, what, value, limit);
}

static void check_against_sheet(const sheet *s, const hk_machine *m) {
  assert_true(m->gpus.value == s->gpus);
  assert_true(m->cores.value == s->cores);
  at_most(s->name, "host memory", m->host_memory.value, s->host_memory);
  at_most(s->name, "GPU memory", m->gpu_memory.value, s->gpu_memory);
  at_most(s->name, "matrix rate", m->gpu_flops.value, s->flops);
  at_most(s->name, "HBM", m->gpu_hbm.value, s->hbm);
  at_most(s->name, "H2D", m->h2d.value, s->link);
  at_most(s->name, "D2H", m->d2h.value, s->link);
  at_most(s->name, "pageable H2D", m->h2d_pageable.value, m->h2d.value);
  at_most(s->name, "pageable D2H", m->d2h_pageable.value, m->d2h.value);
  at_most(s->name, "fabric H2D", m->fabric_h2d.value, s->gpus * s->link);
  at_most(s->name, "fabric D2H", m->fabric_d2h.value, s->gpus * s->link);
  at_most(s->name, "host memory bandwidth", m->dram.value, s->dram);
  at_most(s->name, "NVLink", m->nvlink.value, s->nvlink);
  at_most(s->name, "network", m->net.value, s->net);
}

static void check_physics(const char *name, const hk_machine *m) {
  at_most(name, "one GPU's link beside the fabric, H2D", m->h2d.value, m->fabric_h2d.value);
  at_most(name, "one GPU's link beside the fabric, D2H", m->d2h.value, m->fabric_d2h.value);
  at_most(name, "PCIe beside HBM", m->duplex.value, m->gpu_hbm.value);
  at_most(name, "host memory beside HBM", m->dram.value, m->gpu_hbm.value * m->gpus.value);
  /* PCIe writes are posted: they wait for no answer, so kernels displace them at most by half. */
  assert_true(m->dma_weight.value * m->d2h_priority.value >= 0.5);
  assert_true(m->gpu_reserved.value < 0.1 * m->gpu_memory.value);
  assert_true(m->host_reserved.value < 0.2 * m->host_memory.value);
}

static void shipped_profiles_keep_to_their_sheets(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof sheets / sizeof *sheets; i++) {
    hk_machine m;
    load(sheets[i].name, &m);
    check_against_sheet(&sheets[i], &m);
    hk_machine_free(&m);
  }
}

/* In every profile, calibrated or from a data sheet, efficiencies are fractions of the rate of
 * calibrate's matrix products (gpu.matmul_flops_per_s). This rate of an H200 from its data sheet is
 * within 10 % of the calibrated ones, and no H200 computes more slowly than an H100. */
static void efficiency_means_the_same_in_every_profile(void **state) {
  (void)state;
  static const char *const h100s[] = {"dgx-h100-8x80gb", "jlse-h100-4x80gb"};
  static const char *const h200s[] = {"h200-16c", "h200-node-16c", "h200-node-4x-64c"};
  hk_machine sheet_h200;
  load("hgx-h200-8x141gb", &sheet_h200);
  assert_int_equal(sheet_h200.gpu_flops.origin, HK_ORIGIN_DATA_SHEET);
  for (size_t i = 0; i < sizeof h200s / sizeof *h200s; i++) {
    hk_machine h200;
    load(h200s[i], &h200);
    const double forward = h200.gpu_flops.value * h200.gpu_efficiency.value;
    const double backward = h200.gpu_flops.value * h200.gpu_backward_efficiency.value;
    assert_in_range((int)(100 * sheet_h200.gpu_flops.value / h200.gpu_flops.value), 90, 110);
    for (size_t k = 0; k < sizeof h100s / sizeof *h100s; k++) {
      hk_machine h100;
      load(h100s[k], &h100);
      at_most(h100s[k], "rate of forward beside an H200's",
              h100.gpu_flops.value * h100.gpu_efficiency.value, forward);
      at_most(h100s[k], "rate of backward beside an H200's",
              h100.gpu_flops.value * h100.gpu_backward_efficiency.value, backward);
      hk_machine_free(&h100);
    }
    hk_machine_free(&h200);
  }
  hk_machine_free(&sheet_h200);
}

/* Each profile records errors of its predictions; test_golden_residuals.c checks the figures. */
static void check_residuals(const char *name, const cJSON *document) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(document, "residuals"), *entry = NULL;
  if (cJSON_GetArraySize(list) < 1) fail_msg("%s has no residuals", name);
  cJSON_ArrayForEach(entry, list) {
    const char *against = NULL;
    double median;
    bool held_out;
    hk_error err = {0};
    assert_int_equal(hk_json_string(entry, "against", &against, &err), HK_OK);
    assert_int_equal(hk_json_double(entry, "median_pct", 0, 100, &median, &err), HK_OK);
    assert_int_equal(hk_json_bool(entry, "held_out", &held_out, &err), HK_OK);
  }
}

static void every_shipped_profile_is_complete_and_sane(void **state) {
  (void)state;
  char **names;
  size_t n;
  hk_error err = {0};
  assert_int_equal(hk_share_list("machines", &names, &n, &err), HK_OK);
  assert_true(n >= sizeof sheets / sizeof *sheets);
  for (size_t i = 0; i < n; i++) {
    hk_machine m;
    load(names[i], &m);
    assert_string_equal(m.name, names[i]);
    assert_true(strlen(m.description) > 0);
    check_physics(names[i], &m);
    check_residuals(names[i], m.document);

    size_t count;
    const hk_quantity_info *list = hk_quantity_list(&count);
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(m.document, "quantities");
    for (size_t q = 0; q < count; q++) {
      const cJSON *item = cJSON_GetObjectItemCaseSensitive(given, list[q].key);
      const cJSON *source = cJSON_GetObjectItemCaseSensitive(item, "source");
      if (!cJSON_IsString(source)) fail_msg("%s: %s has no source", names[i], list[q].key);
      assert_string_equal(hk_machine_quantity_const(&m, &list[q])->source, source->valuestring);
    }
    hk_machine_free(&m);
  }
  hk_names_free(names, n);
}

int main(void) {
  setenv("HOCKET_SHARE", HK_TEST_SHARE, 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shipped_profiles_keep_to_their_sheets),
      cmocka_unit_test(efficiency_means_the_same_in_every_profile),
      cmocka_unit_test(every_shipped_profile_is_complete_and_sane),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
