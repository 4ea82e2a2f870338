/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by most tests: cmocka, a tiny model, machines of round numbers. */
#ifndef HK_TESTS_FIXTURE_H
#define HK_TESTS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/machine/machine.h"
#include "core/model/model.h"

/* Whether `scripts/test --full` runs the test, rather than `scripts/test`. */
static inline bool is_full_run(void) {
  return getenv("HOCKET_TEST_FULL") != NULL;
}

/* Whether a sanitizer is built in. For numeric work that the release build does, and in which more
 * cases show no other use of memory: under AddressSanitizer it takes ten times as long. */
static inline bool is_sanitized(void) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return true;
#else
  return false;
#endif
}

/* Whether `scripts/test --full` runs the test in the release build. */
static inline bool is_full_release(void) {
  return is_full_run() && !is_sanitized();
}

/* Number of random cases, by build: optimized, AddressSanitizer, ThreadSanitizer. */
typedef struct {
  uint64_t release, address, thread;
} case_counts;

/* The number for this build. `scripts/test --full` takes it from `full`. */
static inline uint64_t case_count(case_counts usual, case_counts full) {
  const case_counts *counts = is_full_run() ? &full : &usual;
#if defined(__SANITIZE_THREAD__)
  return counts->thread;
#elif defined(__SANITIZE_ADDRESS__)
  return counts->address;
#else
  return counts->release;
#endif
}

static inline void must(hk_status status, const hk_error *err) {
  if (status != HK_OK) fail_msg("status %d: %s", (int)status, err->message);
}

/* The model of a config.json. */
static inline hk_model model_of(const char *config, const char *name) {
  hk_error err = {0};
  cJSON *root = NULL;
  hk_model model = {0};
  must(hk_json_parse(config, strlen(config), name, &root, &err), &err);
  must(hk_model_from_config(root, name, &model, &err), &err);
  cJSON_Delete(root);
  return model;
}

/* A Llama of `layers` layers, hidden 64, SwiGLU 128, 4 heads, vocabulary 256, untied. */
static inline hk_model tiny_model(int layers) {
  char text[400];
  snprintf(text, sizeof text,
           "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": %d, "
           "\"hidden_size\": 64, \"intermediate_size\": 128, \"num_attention_heads\": 4, "
           "\"num_key_value_heads\": 4, \"vocab_size\": 256, \"max_position_embeddings\": 4096}",
           layers);
  return model_of(text, "tiny");
}

/* A machine without limits, until a test sets some: no latencies; rates and capacities of 1e15 a
 * second. One thread reaches the full CPU rate. */
static inline hk_machine ideal_machine(void) {
  hk_machine m = {0};
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    hk_quantity *q = hk_machine_quantity(&m, &info[i]);
    const char *unit = info[i].unit;
    *q = (hk_quantity){.origin = HK_ORIGIN_DEFAULT, .source = "test"};
    q->value = strcmp(unit, "ns") == 0 ? 0 : strcmp(unit, "1") == 0 ? 1 : 1e15;
  }
  m.gpu_reserved.value = m.host_reserved.value = 0;
  m.cores.value = 1024;
  m.h2d_load_from.value = 0.5;
  m.copies_at_once.value = 1e6;
  m.d2h_beside_reads.value = 1;
  m.h2d_beside_reads.value = 1;
  m.shared_reads.value = 1;
  m.h2d_cached.value = m.cached.value = 0;
  m.launch_spread.value = m.spread_beside.value = 0;
  m.cpu_adamw_threads.value = 0.01; /* 1 - exp(-1 / 0.01) is 1 to the last bit */
  m.cpu_adamw_8bit.value = m.cpu_adamw_8bit_split.value = 0;
  m.cpu_unscale_threads.value = m.cpu_adamw_fp32_threads.value = m.cpu_cast_threads.value = 0;
  return m;
}

/* Round rates for calculations by hand: 1 GB/s is 1 B/ns. PCIe 10 B/ns each way and 16 both
 * ways; CPU AdamW 1 parameter/ns; GPU AdamW 10 parameters/ns; mapped 12 B/ns; host memory
 * unlimited. */
static inline hk_machine schoolbook_machine(void) {
  hk_machine m = ideal_machine();
  m.h2d.value = m.d2h.value = 10e9;
  m.duplex.value = 16e9;
  m.mapped.value = 12e9;
  m.gpu_hbm.value = 280e9;
  m.cpu_adamw.value = 1e9;
  return m;
}

#endif
