/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines as bytes. The input is the spans, then the counters, in the format of
 * traces/timelines_blob.c without checksums, which are added here unless the first byte forbids it.
 * Spans that are read encode to the same bytes, and all readers of timelines accept them. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "sim/policy.h"
#include "tests/fuzz/fuzz.h"
#include "traces/chrome.h"
#include "traces/compare.h"
#include "traces/timelines_internal.h"

/* -- A graph ----------------------------------------------------------------------------------- */

static hk_graph graph;

static void free_graph(void) {
  hk_graph_free(&graph);
}

static void make_graph(void) {
  hk_error err = {0};
  hk_tensor tensors[2] = {{.name = "a", .numel = 6, .block = 0},
                          {.name = "b", .numel = 5, .block = 1}};
  hk_model model = {0};
  hk_plan plan = {0};
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 1};
  hk_status status = hk_model_from_tensors("tiny", tensors, 2, 2, &model, &err);
  if (status == HK_OK)
    status = hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 6, &plan, &err);
  if (status == HK_OK) {
    plan.subgroups[0].route = HK_ROUTE_STAGED;
    status = hk_graph_build(&plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &graph, &err);
  }
  if (status != HK_OK) hk_fuzz_abort(__FILE__, __LINE__, "a graph", err.message);
  hk_model_free(&model);
  hk_plan_free(&plan);
  atexit(free_graph);
}

/* -- Readers of timelines ---------------------------------------------------------------------- */

static void check_same(const hk_blob *wanted, hk_status status, hk_blob *got, const hk_error *err) {
  FUZZ_MUST(hk_fuzz_read(status, err));
  FUZZ_MUST(got->size == wanted->size && memcmp(got->bytes, wanted->bytes, got->size) == 0);
  free(got->bytes);
}

static void check_curves(const hk_timeline *timeline) {
  hk_sample curve[8];
  for (size_t c = 0; c < timeline->n_counters; c++) {
    const hk_counter *counter = &timeline->counters[c];
    FUZZ_MUST(hk_timeline_find(timeline, counter->name) != NULL);
    FUZZ_MUST(hk_counter_curve(counter, curve, 8) <= 8);
  }
}

static void use(hk_timeline *timeline) {
  hk_error err = {0};
  hk_timeline_comparison comparison = {0};
  int32_t *order = malloc(graph.n_ops * sizeof *order);
  FILE *nowhere = fopen("/dev/null", "w");
  FUZZ_MUST(order != NULL && nowhere != NULL);
  hk_timeline_phases(&graph, timeline);
  hk_fuzz_read(hk_timeline_order(&graph, timeline, order, &err), &err);
  for (size_t lane = 0; lane < graph.n_lanes; lane++) {
    hk_lane_busy(&graph, timeline, (int32_t)lane, 0, timeline->makespan);
  }
  hk_fuzz_read(hk_timelines_compare(&graph, timeline, timeline, NULL, &comparison, &err), &err);
  hk_timeline_comparison_free(&comparison);
  hk_timelines_write_csv(&graph, timeline, timeline, nowhere);
  hk_fuzz_read(hk_chrome_write(&graph, timeline, "fuzz", "/dev/null", &err), &err);
  check_curves(timeline);
  fclose(nowhere);
  free(order);
}

/* -- One input --------------------------------------------------------------------------------- */

/* A copy with its checksum behind it, or without. The caller frees its bytes. */
static hk_blob blob_of(const uint8_t *data, size_t size, bool sum) {
  hk_blob blob = {malloc(size + 8), size};
  FUZZ_MUST(blob.bytes != NULL);
  memcpy(blob.bytes, data, size);
  if (sum) {
    const uint64_t hash = XXH3_64bits(data, size);
    memcpy((uint8_t *)blob.bytes + size, &hash, sizeof hash);
    blob.size += sizeof hash;
  }
  return blob;
}

static void read_both(const hk_blob *spans, const hk_blob *counters) {
  hk_error err = {0};
  hk_timeline timeline = {0};
  hk_blob again = {0};
  FUZZ_MUST(hk_fuzz_read(hk_timeline_init(&graph, &timeline, &err), &err));
  const bool have_spans = hk_fuzz_read(hk_spans_decode(spans, &timeline, &err), &err);
  if (have_spans) check_same(spans, hk_spans_encode(&timeline, &again, &err), &again, &err);
  /* Equal and simultaneous samples are dropped, so counters need not encode to the same. */
  if (hk_fuzz_read(hk_counters_decode(counters, &timeline, &err), &err)) {
    FUZZ_MUST(hk_fuzz_read(hk_counters_encode(&timeline, &again, &err), &err));
    FUZZ_MUST(again.size <= counters->size);
    free(again.bytes);
  }
  if (have_spans) use(&timeline);
  hk_timeline_free(&timeline);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (graph.n_ops == 0) make_graph();
  if (size == 0) return 0;
  const size_t wanted = 8 + graph.n_ops * 24;
  const size_t first = size - 1 < wanted ? size - 1 : wanted;
  hk_blob spans = blob_of(data + 1, first, (data[0] & 1) == 0);
  hk_blob counters = blob_of(data + 1 + first, size - 1 - first, (data[0] & 2) == 0);
  read_both(&spans, &counters);
  free(spans.bytes);
  free(counters.bytes);
  return 0;
}
