/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Profiles from parts: the tables are complete, every GPU and CPU makes a machine, and parts that
 * do not go together are refused with a message that says what would. */
#include "tests/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "calib/parts/parts.h"

static hk_parts tables(void) {
  hk_parts parts;
  hk_error err = {0};
  must(hk_parts_load(&parts, &err), &err);
  return parts;
}

static hk_machine make(const hk_parts *parts, const hk_parts_request *request,
                       hk_parts_notes *notes) {
  hk_machine machine;
  hk_error err = {0};
  must(hk_parts_machine(parts, request, &machine, notes, &err), &err);
  return machine;
}

/* The request is refused with a message that has each of `texts` (ends with NULL). */
static void refused(const hk_parts_request *request, const char *const *texts) {
  hk_parts parts = tables();
  hk_parts_notes notes;
  hk_machine machine;
  hk_error err = {0};
  assert_int_equal(hk_parts_machine(&parts, request, &machine, &notes, &err), HK_INPUT);
  for (; *texts; texts++)
    if (!strstr(err.message, *texts)) fail_msg("no '%s' in '%s'", *texts, err.message);
  hk_parts_free(&parts);
}

#define REFUSED(request, ...) refused(request, (const char *const[]){__VA_ARGS__, NULL})

static bool noted(const hk_parts_notes *notes, const char *text) {
  for (int i = 0; i < notes->n; i++)
    if (strstr(notes->lines[i], text)) return true;
  return false;
}

/* -- The tables -------------------------------------------------------------------------------- */

static void the_tables_have_common_parts(void **state) {
  (void)state;
  static const char *const gpus[] = {"rtx-3090",       "rtx-4090",
                                     "rtx-5090",       "a6000",
                                     "rtx-6000-ada",   "a10",
                                     "a10g",           "l4",
                                     "l40s",           "v100",
                                     "a100-sxm-40gb",  "a100-sxm-80gb",
                                     "a100-pcie-40gb", "a100-pcie-80gb",
                                     "h100-pcie",      "h100-sxm",
                                     "h200",           "gh200",
                                     "b200",           "mi250x",
                                     "mi300x"};
  static const char *const links[] = {"pcie-3", "pcie-4", "pcie-5", "pcie-6", "nvlink-c2c"};
  static const char *const memory[] = {"ddr4-3200", "ddr5-4800", "ddr5-5600", "lpddr5x-8000"};
  hk_parts parts = tables();
  hk_error err = {0};
  const cJSON *part;
  for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
    must(hk_part_find(&parts, HK_PART_GPU, gpus[i], &part, &err), &err);
  for (size_t i = 0; i < sizeof links / sizeof *links; i++)
    must(hk_part_find(&parts, HK_PART_LINK, links[i], &part, &err), &err);
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
    must(hk_part_find(&parts, HK_PART_MEMORY, memory[i], &part, &err), &err);
  for (int kind = 0; kind < HK_PART_KINDS; kind++) {
    cJSON_ArrayForEach(part, hk_parts_of(&parts, (hk_part_kind)kind)) {
      const char *sheet = NULL;
      must(hk_json_string(part, "sheet", &sheet, &err), &err);
      assert_true(strlen(sheet) > 5);
    }
  }
  hk_parts_free(&parts);
}

/* bytes/s = transfers/s (in the name, rounded down from rates such as 2133.33 MT/s) x width of a
 * channel: 8 bytes, LPDDR 4 bytes. */
static void memory_rates_are_those_of_the_names(void **state) {
  (void)state;
  hk_parts parts = tables();
  const cJSON *part;
  cJSON_ArrayForEach(part, hk_parts_of(&parts, HK_PART_MEMORY)) {
    hk_error err = {0};
    const double transfers = strtod(strrchr(part->string, '-') + 1, NULL) * 1e6;
    const double expected = transfers * (strncmp(part->string, "lpddr", 5) == 0 ? 4 : 8);
    double rate = 0;
    must(hk_json_double(part, "bytes_per_s", 1e9, 1e12, &rate, &err), &err);
    if (!(rate >= expected && rate < 1.0005 * expected))
      fail_msg("%s: %g bytes/s, the name says %g", part->string, rate, expected);
  }
  hk_parts_free(&parts);
}

/* Bytes/s of all channels of a CPU, in the fastest memory that it takes. Machines from parts reach
 * 0.7019 of it. */
static double memory_rate_of(const hk_parts *parts, const char *name) {
  hk_parts_notes notes;
  hk_machine m = make(parts, &(hk_parts_request){.name = "m", .gpu = "l4", .cpu = name}, &notes);
  const double rate = m.dram.value / 0.7019;
  hk_machine_free(&m);
  return rate;
}

/* Figures of the vendors' documents for four CPUs that the tables once had wrong. */
static void figures_are_those_of_the_documents(void **state) {
  (void)state;
  static const struct {
    const char *cpu;
    double cores, bytes_per_s;
  } cpus[] = {{"epyc-7v12", 64, 204.8e9},
              {"xeon-e5-2686v4", 18, 76.8e9},
              {"grace", 72, 512e9},
              {"grace-480gb", 72, 384e9}};
  hk_parts parts = tables();
  for (size_t i = 0; i < sizeof cpus / sizeof *cpus; i++) {
    hk_error err = {0};
    const cJSON *part;
    double cores = 0;
    must(hk_part_find(&parts, HK_PART_CPU, cpus[i].cpu, &part, &err), &err);
    must(hk_json_double(part, "cores", 1, 4096, &cores, &err), &err);
    assert_true(cores == cpus[i].cores);
    assert_true(fabs(memory_rate_of(&parts, cpus[i].cpu) / cpus[i].bytes_per_s - 1) < 1e-3);
  }
  hk_parts_free(&parts);
}

static void check_source(const char *source, const char *text, bool expected) {
  if (!!strstr(source, text) != expected)
    fail_msg("'%s' in '%s': expected %s", text, source, expected ? "yes" : "no");
}

/* The source of a quantity states whether its figure was compared with the data sheet. */
static void sources_say_what_was_not_checked(void **state) {
  (void)state;
  hk_parts parts = tables();
  hk_parts_notes notes;
  hk_parts_request r = {.name = "m", .gpu = "rtx-4080", .dram = "ddr5-4800x2", .cores = 16};
  hk_machine m = make(&parts, &r, &notes);
  check_source(m.gpu_flops.source, ", not checked)", true);
  check_source(m.gpu_hbm.source, ", not checked)", true);
  check_source(m.h2d.source, "the GPU's link is not checked", true);
  check_source(m.dram.source, "not checked", false);
  hk_machine_free(&m);
  r.gpu = "a40";
  r.pcie = "4x16";
  m = make(&parts, &r, &notes);
  check_source(m.gpu_flops.source, "not checked", false);
  check_source(m.h2d.source, "not checked", false);
  check_source(m.gpu_memory.source, "ECC (share not checked)", true);
  hk_machine_free(&m);
  r = (hk_parts_request){.name = "m", .gpu = "l40s", .cpu = "epyc-9755"};
  m = make(&parts, &r, &notes);
  check_source(m.cores.source, ", not checked)", true);
  check_source(m.dram.source, "the CPU's memory is not checked", true);
  hk_machine_free(&m);
  hk_parts_free(&parts);
}

static void check_sources(const hk_machine *machine) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity *q = hk_machine_quantity_const(machine, &list[i]);
    assert_true(strlen(q->source) > 3 && !strstr(q->source, "the profile does not say"));
  }
}

/* Every GPU and every CPU makes a machine, all of whose quantities have a source. */
static void every_part_makes_a_machine(void **state) {
  (void)state;
  hk_parts parts = tables();
  const cJSON *gpu, *cpu;
  cJSON_ArrayForEach(gpu, hk_parts_of(&parts, HK_PART_GPU)) {
    hk_parts_notes notes;
    hk_machine machine = make(&parts,
                              &(hk_parts_request){.name = "m",
                                                  .gpu = gpu->string,
                                                  .gpus = 4,
                                                  .dram = "ddr5-4800x8",
                                                  .cores = 64,
                                                  .memory_bytes = 512e9},
                              &notes);
    check_sources(&machine);
    hk_machine_free(&machine);
  }
  cJSON_ArrayForEach(cpu, hk_parts_of(&parts, HK_PART_CPU)) {
    hk_parts_notes notes;
    hk_machine machine =
        make(&parts, &(hk_parts_request){.name = "m", .gpu = "l4", .cpu = cpu->string}, &notes);
    assert_true(machine.cores.value >= 10);
    check_sources(&machine);
    hk_machine_free(&machine);
  }
  hk_parts_free(&parts);
}

/* -- The arithmetic ---------------------------------------------------------------------------- */

static void quantities_are_sheet_times_share(void **state) {
  (void)state;
  hk_parts parts = tables();
  hk_parts_notes notes;
  hk_machine m = make(&parts,
                      &(hk_parts_request){.name = "desk",
                                          .gpu = "a6000",
                                          .gpus = 2,
                                          .pcie = "4x16",
                                          .dram = "ddr4-3200x8",
                                          .cores = 32,
                                          .memory_bytes = 256e9},
                      &notes);
  assert_true(m.gpus.value == 2 && m.cores.value == 32 && m.host_memory.value == 256e9);
  assert_true(fabs(m.gpu_flops.value / (0.803 * 154.8e12) - 1) < 1e-3);
  assert_true(fabs(m.h2d.value / (0.877 * 31.508e9) - 1) < 1e-3);
  assert_true(fabs(m.dram.value / (sqrt(0.692 * 0.712) * 204.8e9) - 1) < 1e-3);
  assert_non_null(strstr(m.h2d.source, "27.63 of 31.51 GB/s, PCIe 4 x16"));
  assert_non_null(strstr(m.h2d.source, "transferred from h200-node-16c (0.876)"));
  assert_int_equal(m.h2d.origin, HK_ORIGIN_DATA_SHEET);
  /* AdamW of one thread does 868 M parameters/s, independent of the memory. */
  assert_true(fabs(m.cpu_adamw.value / m.cpu_adamw_threads.value / 868e6 - 1) < 1e-2);
  assert_true(m.h2d.error > 0.01 && m.h2d.error < 0.2);
  /* Without a bridge, collectives cross the host link. */
  assert_true(m.nvlink.value == m.h2d.value);
  hk_machine_free(&m);
  hk_parts_free(&parts);
}

static void links_of_several_gpus_share_the_host(void **state) {
  (void)state;
  hk_parts parts = tables();
  double per_gpu[9] = {0}, last = 0;
  for (int gpus = 1; gpus <= 8; gpus++) {
    hk_parts_notes notes;
    hk_machine m =
        make(&parts,
             &(hk_parts_request){.name = "m", .gpu = "h100", .gpus = gpus, .cpu = "xeon-8480c:2"},
             &notes);
    assert_true(m.fabric_duplex.value >= last); /* another GPU never takes bandwidth away */
    last = m.fabric_duplex.value;
    per_gpu[gpus] = last / gpus;
    assert_true(gpus > 1 || last == m.duplex.value);
    hk_machine_free(&m);
  }
  assert_true(per_gpu[4] < 0.5 * per_gpu[1]);
  assert_true(fabs(per_gpu[8] / per_gpu[4] - 1) < 1e-3);
  hk_parts_free(&parts);
}

static void a_machine_left_out_contributes_nothing(void **state) {
  (void)state;
  hk_parts parts = tables();
  hk_parts_notes notes;
  const hk_parts_request all = {.name = "p", .gpu = "a100-40gb", .cpu = "epyc-7543p", .numa = 4};
  hk_parts_request rest = all;
  rest.without = "polaris-a100-4x40gb";
  hk_machine with = make(&parts, &all, &notes), without = make(&parts, &rest, &notes);
  assert_non_null(strstr(with.dram.source, "polaris"));
  assert_null(strstr(without.dram.source, "polaris"));
  assert_true(fabs(without.dram.value / (0.712 * 204.8e9) - 1) < 1e-3);
  assert_non_null(strstr(without.dram_process.source, "hocket's guess"));
  hk_machine_free(&with);
  hk_machine_free(&without);
  hk_parts_free(&parts);
}

/* -- Combinations ------------------------------------------------------------------------------ */

static void the_slower_link_counts(void **state) {
  (void)state;
  hk_parts parts = tables();
  hk_parts_notes notes;
  hk_parts_request r = {.name = "m", .gpu = "rtx-5090", .pcie = "3x16", .cpu = "ryzen-7950x"};
  hk_machine m = make(&parts, &r, &notes);
  assert_non_null(strstr(m.h2d.source, "PCIe 3 x16"));
  assert_true(noted(&notes, "PCIe 3 x16 counts"));
  hk_machine_free(&m);
  r.pcie = NULL;
  r.cpu = "epyc-7543p";
  m = make(&parts, &r, &notes);
  assert_non_null(strstr(m.h2d.source, "PCIe 4 x16"));
  assert_true(noted(&notes, "the CPU has PCIe 4 x16"));
  hk_machine_free(&m);
  r.cpu = "ryzen-7950x";
  r.pcie = "5x8";
  m = make(&parts, &r, &notes);
  assert_true(fabs(m.h2d.value / (0.877 * 31.508e9) - 1) < 1e-3);
  hk_machine_free(&m);
  hk_parts_free(&parts);
}

/* 16 of the CPU's 64 cores: others use the same memory, so the measured share is smaller. */
static void a_part_of_a_host_has_neighbours(void **state) {
  (void)state;
  hk_parts parts = tables();
  hk_parts_notes notes;
  hk_parts_request r = {.name = "m", .gpu = "h200", .cpu = "xeon-8592+", .cores = 16};
  hk_machine m = make(&parts, &r, &notes);
  assert_true(fabs(m.dram.value / (0.588 * 358.4e9) - 1) < 1e-3);
  assert_true(noted(&notes, "16 of the host's 64 cores: a part of a host, whose neighbours"));
  hk_machine_free(&m);
  /* They are on one of two sockets, unless --numa says otherwise. */
  for (int numa = 0; numa <= 2; numa++) {
    r = (hk_parts_request){
        .name = "m", .gpu = "h200", .cpu = "xeon-8592+:2", .cores = 16, .numa = numa};
    m = make(&parts, &r, &notes);
    assert_true(fabs(m.dram.value / (0.588 * (numa == 2 ? 2 : 1) * 358.4e9) - 1) < 1e-3);
    assert_int_equal(noted(&notes, "1 of the host's 2 sockets counts, with its memory"), numa < 2);
    assert_true(noted(&notes, "16 of the host's 128 cores: a part of a host"));
    hk_machine_free(&m);
  }
  r.cores = 65, r.numa = 0;
  m = make(&parts, &r, &notes);
  assert_true(fabs(m.dram.value / (0.588 * 2 * 358.4e9) - 1) < 1e-3);
  hk_machine_free(&m);
  /* All 8 GPUs of a board with 96 of 112 cores: host memory bandwidth is the whole node's. Four
   * GPUs with as many cores are a part of a host. */
  for (int gpus = 4; gpus <= 8; gpus += 4) {
    r = (hk_parts_request){.name = "m", .gpu = "h100-sxm", .gpus = gpus, .cpu = "xeon-8480c:2"};
    m = make(&parts, &r, &notes);
    const double whole = m.dram.value;
    hk_machine_free(&m);
    r.cores = 96;
    m = make(&parts, &r, &notes);
    assert_true(m.cores.value == 96);
    assert_int_equal(m.dram.value == whole, gpus == 8);
    assert_int_equal(noted(&notes, "all 8 GPUs of its board: it has no neighbours"), gpus == 8);
    hk_machine_free(&m);
  }
  hk_parts_free(&parts);
}

static void bad_requests_are_refused(void **state) {
  (void)state;
  const hk_parts_request good = {.name = "m", .gpu = "a6000", .dram = "ddr4-3200x8", .cores = 32};
  hk_parts_request r = {.name = "m"};
  REFUSED(&r, "--gpu", "--dram", "--cores", "--cpu");
  r.cores = 4;
  REFUSED(&r, "--gpu", "--dram");
  r = good;
  r.gpu = "rtx-a600";
  REFUSED(&r, "--gpu", "did you mean 'rtx-a6000'?");
  r = good;
  r.dram = "ddr4-3100x8";
  REFUSED(&r, "--dram", "did you mean 'ddr4-3200'?");
  r.dram = "ddr4-3200";
  REFUSED(&r, "TYPExCHANNELS");
  r = good;
  r.cpu = "epyc-7543p";
  r.dram = "ddr4-3200x12";
  REFUSED(&r, "8 memory channels, not 12");
  r.dram = "ddr5-4800x8";
  REFUSED(&r, "takes ddr4-3200");
  r = good;
  r.cpu = "epyc-7543p";
  r.cores = 64;
  REFUSED(&r, "--cores 64", "32 cores");
  r = good;
  r.cpu = "epyc-7543";
  REFUSED(&r, "--cpu", "did you mean 'epyc-7543p'?");
  r = good;
  r.pcie = "4x12";
  REFUSED(&r, "1, 2, 4, 8 or 16 lanes");
  r.pcie = "fast";
  REFUSED(&r, "--pcie", "GENERATIONxLANES");
  r = good;
  r.nvlink = "maybe";
  REFUSED(&r, "yes or no");
  r = good;
  r.gpu = "l4";
  r.nvlink = "yes";
  REFUSED(&r, "no NVLink");
  r = good;
  r.network = "400xports";
  REFUSED(&r, "--network", "400x8");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_tables_have_common_parts),
      cmocka_unit_test(memory_rates_are_those_of_the_names),
      cmocka_unit_test(figures_are_those_of_the_documents),
      cmocka_unit_test(sources_say_what_was_not_checked),
      cmocka_unit_test(every_part_makes_a_machine),
      cmocka_unit_test(quantities_are_sheet_times_share),
      cmocka_unit_test(links_of_several_gpus_share_the_host),
      cmocka_unit_test(a_machine_left_out_contributes_nothing),
      cmocka_unit_test(the_slower_link_counts),
      cmocka_unit_test(a_part_of_a_host_has_neighbours),
      cmocka_unit_test(bad_requests_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
