/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Machine profiles as documents: they survive a round trip, and an error is reported with its key.
 * The profiles that ship: test_unit_machine_shipped.c. */
#include "core/machine/machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka needs stdarg, stddef and setjmp before it. */
#include <cmocka.h>

#include "core/base/json.h"

#define BASE HK_TEST_DATA "/probed-node.json" /* round numbers, few contention effects */

static void load(const char *name, hk_machine *m) {
  hk_error err = {0};
  if (hk_machine_load(name, m, &err) != HK_OK) fail_msg("%s", err.message);
}

/* -- The list ---------------------------------------------------------------------------------- */

static void list_reaches_every_field(void **state) {
  (void)state;
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  hk_machine m = {0};
  for (size_t i = 0; i < n; i++) hk_machine_quantity(&m, &list[i])->value = (double)i + 1;
  assert_string_equal(list[0].field, "gpus");
  assert_true(m.gpus.value == 1);
  assert_string_equal(list[n - 1].key, "nvme.write_bytes_per_s");
  assert_true(m.nvme_write.value == (double)n);
  for (size_t i = 0; i < n; i++) {
    assert_true(list[i].least <= list[i].most);
    if (isnan(list[i].fallback)) continue;
    assert_true(list[i].fallback >= list[i].least && list[i].fallback <= list[i].most);
  }
}

static void origins_have_names(void **state) {
  (void)state;
  assert_string_equal(hk_origin_name(HK_ORIGIN_DEFAULT), "default");
  assert_string_equal(hk_origin_name(HK_ORIGIN_DATA_SHEET), "data sheet");
  assert_string_equal(hk_origin_name(HK_ORIGIN_FITTED), "fitted");
  assert_string_equal(hk_origin_name(HK_ORIGIN_MEASURED), "measured");
}

/* -- Editing a good document ------------------------------------------------------------------- */

static cJSON *base_document(void) {
  hk_error err = {0};
  cJSON *root;
  if (hk_json_load(BASE, &root, &err) != HK_OK) fail_msg("%s", err.message);
  return root;
}

static cJSON *quantities_of(cJSON *root) {
  return cJSON_GetObjectItemCaseSensitive(root, "quantities");
}

/* Sets object[key]; NULL removes it. */
static void put(cJSON *object, const char *key, cJSON *value) {
  cJSON_DeleteItemFromObjectCaseSensitive(object, key);
  if (value) assert_true(cJSON_AddItemToObject(object, key, value));
}

static void put_value(cJSON *root, const char *key, double value) {
  put(cJSON_GetObjectItemCaseSensitive(quantities_of(root), key), "value",
      cJSON_CreateNumber(value));
}

/* Reads `root`, which must be refused with all of `words` in the message. Frees `root`. */
static void assert_refused(cJSON *root, const char *const words[], size_t n) {
  hk_machine m;
  hk_error err = {0};
  assert_int_equal(hk_machine_from_json(root, &m, &err), HK_INPUT);
  assert_null(m.document);
  for (size_t i = 0; i < n && words[i]; i++) {
    if (!strstr(err.message, words[i])) fail_msg("no \"%s\" in: %s", words[i], err.message);
  }
  cJSON_Delete(root);
}

/* -- Round trip -------------------------------------------------------------------------------- */

static void assert_same(const hk_machine *a, const hk_machine *b) {
  assert_string_equal(a->name, b->name);
  assert_string_equal(a->description, b->description);
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity *x = hk_machine_quantity_const(a, &list[i]);
    const hk_quantity *y = hk_machine_quantity_const(b, &list[i]);
    assert_memory_equal(&x->value, &y->value, sizeof x->value);
    assert_int_equal(x->origin, y->origin);
    assert_string_equal(x->source, y->source);
    assert_true(x->error == y->error);
  }
}

static void assert_round_trip(const hk_machine *m) {
  hk_error err = {0};
  hk_machine again;
  cJSON *root = hk_machine_to_json(m);
  assert_non_null(root);
  if (hk_machine_from_json(root, &again, &err) != HK_OK) fail_msg("%s", err.message);
  cJSON_Delete(root); /* the machine keeps a copy of its own */
  assert_same(m, &again);
  hk_machine_free(&again);
}

static void shipped_profiles_round_trip(void **state) {
  (void)state;
  static const char *const names[] = {
      "hgx-h200-8x141gb", "aws-g5.12xlarge",          "h200-16c",       "polaris-a100-4x40gb",
      "jlse-h100-4x80gb", "workstation-rtx4090-ddr5", "dgx-h100-8x80gb"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    hk_machine m;
    load(names[i], &m);
    assert_round_trip(&m);
    cJSON *root = hk_machine_to_json(&m);
    assert_true(cJSON_Compare(root, m.document, true));

    /* And through JSON text, as in a file. */
    char *text = cJSON_Print(root);
    cJSON *parsed;
    hk_machine again;
    hk_error err = {0};
    assert_int_equal(hk_json_parse(text, strlen(text), "text", &parsed, &err), HK_OK);
    assert_int_equal(hk_machine_from_json(parsed, &again, &err), HK_OK);
    assert_same(&m, &again);
    hk_machine_free(&again);
    cJSON_Delete(parsed);
    free(text);
    cJSON_Delete(root);
    hk_machine_free(&m);
  }
}

static void awkward_values_round_trip(void **state) {
  (void)state;
  hk_machine m;
  load(BASE, &m);
  m.gpu_efficiency.value = 0.1 + 0.2;
  m.dma_weight.value = 10.0 / 3;
  m.dram.value = nextafter(200e9, 201e9);
  m.gpu_launch.value = 0;
  m.dram.source = "quotes \" and \\ and \xC3\xA9";
  assert_round_trip(&m);
  hk_machine_free(&m);
}

/* -- Standard errors --------------------------------------------------------------------------- */

static cJSON *quantity_of(cJSON *root, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(quantities_of(root), key);
}

/* The error of gpu.hbm_bytes_per_s (4.3e12) in `root`, which is freed. */
static double error_in(cJSON *root) {
  hk_machine m;
  hk_error err = {0};
  if (hk_machine_from_json(root, &m, &err) != HK_OK) fail_msg("%s", err.message);
  const double error = m.gpu_hbm.error;
  assert_round_trip(&m);
  hk_machine_free(&m);
  cJSON_Delete(root);
  return error;
}

static cJSON *with(const char *error, const char *standard_error, const char *calibration) {
  static const char key[] = "gpu.hbm_bytes_per_s";
  cJSON *root = base_document();
  if (error) put(quantity_of(root, key), "error", cJSON_Parse(error));
  if (standard_error) put(quantity_of(root, key), "standard_error", cJSON_Parse(standard_error));
  if (calibration) put(root, "calibration", cJSON_Parse(calibration));
  return root;
}

#define INTERVAL(low, high) \
  "{\"quantities\": {\"gpu.hbm_bytes_per_s\": {\"low\": " low ", \"high\": " high "}}}"

/* The forms of core/machine/machine_error.h; "error" counts before the others, the interval last.
 */
static void errors_are_read(void **state) {
  (void)state;
  static const char interval[] = INTERVAL("4.0e12", "4.6e12");
  assert_true(error_in(with(NULL, NULL, NULL)) == 0);
  assert_true(error_in(with("0.014", NULL, NULL)) == 0.014);
  assert_true(error_in(with(NULL, "43e9", NULL)) == 0.01);
  assert_true(fabs(error_in(with(NULL, NULL, interval)) - log(4.6 / 4.0) / 3.92) < 1e-12);
  assert_true(error_in(with("0.014", "43e9", interval)) == 0.014);
  assert_true(error_in(with(NULL, "43e9", interval)) == 0.01);
}

/* An invalid standard_error or interval, which calibrate and fit write, counts as absent. An
 * invalid "error", which a person writes, is refused. */
static void damaged_errors(void **state) {
  (void)state;
  static const char *const forms[] = {"\"x\"", "null", "-1", "0", "[]"};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    assert_true(error_in(with(NULL, forms[i], NULL)) == 0);
    assert_refused(with(forms[i], NULL, NULL),
                   (const char *[]){"gpu.hbm_bytes_per_s", "error", "1e-06 to 10"}, 3);
  }
  assert_true(error_in(with(NULL, NULL, "3")) == 0);
  assert_true(error_in(with(NULL, NULL, "{\"quantities\": []}")) == 0);
  assert_true(error_in(with(NULL, NULL, INTERVAL("5e12", "4e12"))) == 0);
  assert_true(error_in(with(NULL, NULL, INTERVAL("null", "4e12"))) == 0);
  assert_true(error_in(with(NULL, NULL, INTERVAL("-1", "4e12"))) == 0);
}

/* -- What is missing --------------------------------------------------------------------------- */

static void missing_quantity_takes_its_default_or_is_named(void **state) {
  (void)state;
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    cJSON *root = base_document();
    put(quantities_of(root), list[i].key, NULL);
    if (isnan(list[i].fallback)) {
      assert_refused(root, (const char *[]){list[i].key, list[i].meaning, "missing"}, 3);
      continue;
    }
    hk_machine m;
    hk_error err = {0};
    if (hk_machine_from_json(root, &m, &err) != HK_OK) fail_msg("%s", err.message);
    const hk_quantity *got = hk_machine_quantity_const(&m, &list[i]);
    assert_true(got->value == list[i].fallback);
    assert_int_equal(got->origin, HK_ORIGIN_DEFAULT);
    assert_true(strlen(got->source) > 0);
    assert_round_trip(&m);
    hk_machine_free(&m);
    cJSON_Delete(root);
  }
}

static void default_needs_no_source(void **state) {
  (void)state;
  cJSON *root = base_document();
  put(quantities_of(root), "gpu.launch_ns",
      cJSON_Parse("{\"value\": 7e3, \"origin\": \"default\"}"));
  hk_machine m;
  hk_error err = {0};
  if (hk_machine_from_json(root, &m, &err) != HK_OK) fail_msg("%s", err.message);
  cJSON_Delete(root);
  assert_true(m.gpu_launch.value == 7e3);
  assert_int_equal(m.gpu_launch.origin, HK_ORIGIN_DEFAULT);
  assert_true(strlen(m.gpu_launch.source) > 0);
  assert_round_trip(&m);
  hk_machine_free(&m);
}

/* -- What is wrong ----------------------------------------------------------------------------- */

static void value_outside_its_range_is_named(void **state) {
  (void)state;
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const double wrong[] = {list[i].least - 1e6, list[i].most * 2, NAN, INFINITY};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
      cJSON *root = base_document();
      put_value(root, list[i].key, wrong[w]);
      assert_refused(root, (const char *[]){list[i].key, "'value'", "expected a number"}, 3);
    }
  }
}

/* One member set to JSON text (NULL: removed), and words that the message must have. `quantity`
 * NULL: a member of the document; `member` NULL: the quantity itself. */
typedef struct {
  const char *quantity, *member, *json;
  const char *words[3];
} mistake;

static const mistake mistakes[] = {
    {NULL, "schema", NULL, {"'schema'", "missing"}},
    {NULL, "schema", "1", {"'schema'"}},
    {NULL, "schema", "\"hocket.machine/2\"", {"'schema'", "hocket.machine/2", "hocket.machine/1"}},
    {NULL, "schema", "\"hocket.plan/1\"", {"'schema'", "hocket.plan/1", "hocket.machine/1"}},
    {NULL, "name", NULL, {"'name'", "missing"}},
    {NULL, "name", "\"\"", {"'name'", "1 to 95 characters", "got 0"}},
    {NULL, "description", NULL, {"'description'", "missing"}},
    {NULL, "description", "[]", {"'description'", "a string"}},
    {NULL, "quantities", NULL, {"'quantities'", "missing"}},
    {NULL, "quantities", "[]", {"'quantities'", "an object"}},
    {"pcie.h2d_bytes_per_s", NULL, "55e9", {"'pcie.h2d_bytes_per_s'", "expected an object"}},
    {"pcie.h2d_bytes_per_s", NULL, "null", {"'pcie.h2d_bytes_per_s'", "expected an object"}},
    {"pcie.h2d_bytes_per_s", "value", NULL, {"'pcie.h2d_bytes_per_s'", "'value'", "missing"}},
    {"pcie.h2d_bytes_per_s", "value", "\"fast\"", {"'pcie.h2d_bytes_per_s'", "'value'", "fast"}},
    {"pcie.h2d_bytes_per_s", "origin", NULL, {"'pcie.h2d_bytes_per_s'", "'origin'", "missing"}},
    {"pcie.h2d_bytes_per_s",
     "origin",
     "\"guess\"",
     {"'pcie.h2d_bytes_per_s'", "measured", "guess"}},
    {"pcie.h2d_bytes_per_s", "origin", "3", {"'pcie.h2d_bytes_per_s'", "'origin'", "got 3"}},
    {"pcie.h2d_bytes_per_s", "source", NULL, {"'pcie.h2d_bytes_per_s'", "'source'", "missing"}},
    {"pcie.h2d_bytes_per_s", "source", "\"\"", {"'pcie.h2d_bytes_per_s'", "'source'", "1 to 400"}},
    {"gpu.reserved_bytes", "source", "\"\"", {"'gpu.reserved_bytes'", "'source'", "1 to 400"}},
    {"pcie.h2d_bytes_per_s", "source", "\"a\\nb\"", {"'pcie.h2d_bytes_per_s'", "several lines"}},
    {"pcie.h2d_byte_per_s", NULL, "{}", {"'pcie.h2d_byte_per_s'", "'pcie.h2d_bytes_per_s'?"}},
    {"flux_capacitor", NULL, "{}", {"'flux_capacitor'", "not known"}},
};

static void mistakes_are_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    const mistake *bad = &mistakes[i];
    cJSON *root = base_document();
    cJSON *value = bad->json ? cJSON_Parse(bad->json) : NULL;
    assert_true(!bad->json || value);
    if (!bad->quantity) {
      put(root, bad->member, value);
    } else if (!bad->member) {
      put(quantities_of(root), bad->quantity, value);
    } else {
      put(cJSON_GetObjectItemCaseSensitive(quantities_of(root), bad->quantity), bad->member, value);
    }
    assert_refused(root, bad->words, 3);
  }
}

/* Lengths at the limit pass, one more is refused. */
static void lengths_are_limited(void **state) {
  (void)state;
  char text[402];
  memset(text, 'x', sizeof text);
  static const struct {
    const char *key;
    size_t most;
  } limits[] = {{"name", 95}, {"description", 255}, {"source", 400}};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    for (size_t length = limits[i].most; length <= limits[i].most + 1; length++) {
      cJSON *root = base_document();
      cJSON *object = strcmp(limits[i].key, "source") == 0
                          ? cJSON_GetObjectItemCaseSensitive(quantities_of(root), "node.gpus")
                          : root;
      text[length] = '\0';
      put(object, limits[i].key, cJSON_CreateString(text));
      text[length] = 'x';
      if (length > limits[i].most) {
        assert_refused(root, (const char *[]){limits[i].key, "characters"}, 2);
        continue;
      }
      hk_machine m;
      hk_error err = {0};
      if (hk_machine_from_json(root, &m, &err) != HK_OK) fail_msg("%s", err.message);
      hk_machine_free(&m);
      cJSON_Delete(root);
    }
  }
}

/* The base has h2d 55.0, d2h 55.2, duplex 99.6, mapped 84, dram 164, with DMA 140 GB/s. */
static const struct {
  const char *key;
  double value;
  const char *words[3];
} contradictions[] = {
    {"node.gpus", 1.5, {"'node.gpus'", "whole number", "1.5"}},
    {"node.cores", 16.25, {"'node.cores'", "whole number", "16.25"}},
    {"node.reserved_bytes", 137438953472.0, {"'node.reserved_bytes'", "'node.memory_bytes'"}},
    {"gpu.reserved_bytes", 150.1e9, {"'gpu.reserved_bytes'", "'gpu.memory_bytes'"}},
    {"pcie.duplex_bytes_per_s",
     110.3e9,
     {"'pcie.duplex_bytes_per_s' is 110300000000",
      "'pcie.h2d_bytes_per_s' + 'pcie.d2h_bytes_per_s' = 110200000000"}},
    {"pcie.h2d_bytes_per_s", 99.7e9, {"'pcie.h2d_bytes_per_s'", "'pcie.duplex_bytes_per_s'"}},
    {"pcie.d2h_bytes_per_s", 99.7e9, {"'pcie.d2h_bytes_per_s'", "'pcie.duplex_bytes_per_s'"}},
    {"pcie.mapped_bytes_per_s", 99.7e9, {"'pcie.mapped_bytes_per_s'", "'pcie.duplex_bytes_per_s'"}},
    {"fabric.duplex_bytes_per_s",
     110.3e9,
     {"'fabric.duplex_bytes_per_s'", "'fabric.h2d_bytes_per_s' + 'fabric.d2h_bytes_per_s'"}},
    {"dram.with_dma_bytes_per_s", 164.1e9, {"'dram.with_dma_bytes_per_s'", "'dram.bytes_per_s'"}},
};

static void contradictions_are_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
    cJSON *root = base_document();
    put_value(root, contradictions[i].key, contradictions[i].value);
    assert_refused(root, contradictions[i].words, 3);
  }
}

/* Equality is no contradiction: full duplex, mapped as fast as copies, DMA that costs nothing. */
static void equal_is_allowed(void **state) {
  (void)state;
  cJSON *root = base_document();
  put_value(root, "pcie.duplex_bytes_per_s", 110.2e9);
  put_value(root, "pcie.mapped_bytes_per_s", 110.2e9);
  put_value(root, "fabric.duplex_bytes_per_s", 110.2e9);
  put_value(root, "dram.with_dma_bytes_per_s", 164e9);
  hk_machine m;
  hk_error err = {0};
  if (hk_machine_from_json(root, &m, &err) != HK_OK) fail_msg("%s", err.message);
  hk_machine_free(&m);
  cJSON_Delete(root);
}

/* With a cost other than 1, dram.with_dma counts weighted bytes and may exceed dram.bytes_per_s. */
static void costs_lift_the_limit_of_with_dma(void **state) {
  (void)state;
  static const char *const costs[] = {"dram.h2d_cost", "dram.d2h_cost"};
  for (int i = 0; i < 2; i++) {
    cJSON *root = base_document();
    put_value(root, "dram.with_dma_bytes_per_s", 510e9);
    put_value(root, costs[i], 9);
    hk_machine m;
    hk_error err = {0};
    if (hk_machine_from_json(root, &m, &err) != HK_OK) fail_msg("%s", err.message);
    assert_true(m.dram_with_dma.value == 510e9 && m.dram.value == 164e9);
    assert_true(isinf(hk_machine_limit(&m, &m.dram_with_dma)));
    assert_round_trip(&m);
    hk_machine_free(&m);
    put_value(root, costs[i], 1);
    assert_refused(root, (const char *[]){"'dram.with_dma_bytes_per_s'", "'dram.bytes_per_s'"}, 2);
  }
}

static void load_names_the_file(void **state) {
  (void)state;
  hk_machine m;
  hk_error err = {0};
  assert_int_equal(hk_machine_load("h200-16d", &m, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "h200-16c"));
  assert_null(m.document);

  char path[] = "machine-XXXXXX.json";
  int fd = mkstemps(path, 5);
  assert_true(fd >= 0);
  assert_true(dprintf(fd, "{\"schema\": \"hocket.machine/9\"}") > 0);
  close(fd);
  assert_int_equal(hk_machine_load(path, &m, &err), HK_INPUT);
  remove(path);
  assert_true(strncmp(err.message, path, strlen(path)) == 0);
  assert_non_null(strstr(err.message, "hocket.machine/9"));
  hk_machine_free(&m);
}

/* -- CPU rates --------------------------------------------------------------------------------- */

static void cpu_rate_fits_the_probe(void **state) {
  (void)state;
  hk_machine m;
  load(BASE, &m);
  static const double probe[][2] = {{4, 2.8e9}, {8, 4.3e9}, {12, 5.2e9}, {16, 5.5e9}};
  for (size_t i = 0; i < 4; i++) {
    double rate = hk_cpu_rate(&m, &m.cpu_adamw, &m.cpu_adamw_threads, probe[i][0]);
    assert_true(fabs(rate / probe[i][1] - 1) < 0.03);
  }
  /* DeepSpeedCPUAdam: 3.9 G params/s alone, 2.3 with a cast before and one after it. */
  double adam = hk_cpu_rate(&m, &m.cpu_adamw_fp32, &m.cpu_adamw_fp32_threads, 16);
  double cast = hk_cpu_rate(&m, &m.cpu_cast, &m.cpu_cast_threads, 16);
  assert_true(fabs(adam / 3.9e9 - 1) < 0.03);
  assert_true(fabs(1 / (1 / adam + 2 / cast) / 2.3e9 - 1) < 0.03);
  hk_machine_free(&m);
}

static void cpu_rate_is_monotone_and_bounded(void **state) {
  (void)state;
  const hk_machine m = {.cpu_adamw_threads = {.value = 6.66}};
  const hk_quantity six = {.value = 6e9}, three = {.value = 3e9};
  const hk_quantity *scale = &m.cpu_adamw_threads;
  assert_true(hk_cpu_rate(&m, &six, scale, 0) == 0);
  double last = 0;
  for (int threads = 1; threads <= 128; threads++) {
    double rate = hk_cpu_rate(&m, &six, scale, threads);
    assert_true(rate > last && rate < 6e9);
    assert_true(fabs(rate - 2 * hk_cpu_rate(&m, &three, scale, threads)) < 1);
    last = rate;
  }
  assert_true(hk_cpu_rate(&m, &six, scale, 1e9) == 6e9);
}

/* A thread scale of 0 stands for AdamW's. */
static void cpu_kernels_may_have_thread_scales_of_their_own(void **state) {
  (void)state;
  const hk_machine m = {.cpu_adamw_threads = {.value = 8}};
  const hk_quantity rate = {.value = 6e9}, none = {.value = 0}, two = {.value = 2};
  assert_true(hk_cpu_thread_scale(&m, &none) == 8);
  assert_true(hk_cpu_thread_scale(&m, &two) == 2);
  assert_true(hk_cpu_rate(&m, &rate, &none, 4) == hk_cpu_rate(&m, &rate, &m.cpu_adamw_threads, 4));
  assert_true(hk_cpu_rate(&m, &rate, &two, 4) == hk_cpu_rate(&m, &rate, &none, 16));
}

static void free_is_safe_twice(void **state) {
  (void)state;
  hk_machine m = {0};
  hk_machine_free(&m);
  load(BASE, &m);
  hk_machine_free(&m);
  hk_machine_free(&m);
  assert_null(m.document);
}

int main(void) {
  setenv("HOCKET_SHARE", HK_TEST_SHARE, 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(list_reaches_every_field),
      cmocka_unit_test(origins_have_names),
      cmocka_unit_test(shipped_profiles_round_trip),
      cmocka_unit_test(awkward_values_round_trip),
      cmocka_unit_test(errors_are_read),
      cmocka_unit_test(damaged_errors),
      cmocka_unit_test(missing_quantity_takes_its_default_or_is_named),
      cmocka_unit_test(default_needs_no_source),
      cmocka_unit_test(value_outside_its_range_is_named),
      cmocka_unit_test(mistakes_are_named),
      cmocka_unit_test(lengths_are_limited),
      cmocka_unit_test(contradictions_are_named),
      cmocka_unit_test(equal_is_allowed),
      cmocka_unit_test(costs_lift_the_limit_of_with_dma),
      cmocka_unit_test(load_names_the_file),
      cmocka_unit_test(cpu_rate_fits_the_probe),
      cmocka_unit_test(cpu_rate_is_monotone_and_bounded),
      cmocka_unit_test(cpu_kernels_may_have_thread_scales_of_their_own),
      cmocka_unit_test(free_is_safe_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
