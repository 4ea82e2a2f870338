/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Chrome traces: written from graphs made by hand and from random ones, read back with cJSON,
 * and checked by check_trace.py. */
#include <math.h>

#include "core/base/json.h"
#include "tests/fixture_trace.h"
#include "traces/chrome.h"

static void ok(hk_status status, const hk_error *err) {
  if (status != HK_OK) fail_msg("status %d: %s", (int)status, err->message);
}

/* -- Graphs ------------------------------------------------------------------------------------*/

typedef struct {
  hk_graph graph;
  hk_timeline timeline;
} fixture;

static int32_t add(fixture *f, hk_lane_kind lane, int rank, hk_op op, const int32_t *deps,
                   size_t n_deps) {
  hk_error err = {0};
  op.rank = rank;
  op.lane = hk_graph_lane(&f->graph, lane, rank, &err);
  assert_true(op.lane >= 0);
  int32_t id = hk_graph_add(&f->graph, &op, deps, n_deps, &err);
  assert_true(id >= 0);
  return id;
}

/* Two ranks: a staged subgroup, a CPU subgroup, the next copy in, then a barrier of duration 0 and
 * forward of a block. */
enum { STATE_IN, ADAMW_GPU, STATE_OUT, ADAMW_CPU, NEXT_IN, WEIGHT_UP, BARRIER, BLOCK, N_OPS };

static void make_example(fixture *f) {
  *f = (fixture){.graph = {.ranks = 2}};
  const hk_op none = {
      .phase = HK_PHASE_UPDATE, .block = HK_BLOCK_NONE, .subgroup = -1, .piece = -1};
  hk_op op = none;
  op.kind = HK_OP_STATE_H2D, op.subgroup = 0, op.piece = 3, op.work = 1200000000;
  add(f, HK_LANE_H2D, 0, op, NULL, 0);
  op.kind = HK_OP_ADAMW_GPU, op.work = 100000000;
  add(f, HK_LANE_UPDATE, 0, op, (int32_t[]){STATE_IN}, 1);
  op.kind = HK_OP_STATE_D2H, op.work = 1200000000;
  add(f, HK_LANE_D2H, 0, op, (int32_t[]){ADAMW_GPU}, 1);
  op = none;
  op.kind = HK_OP_ADAMW_CPU, op.subgroup = 1, op.threads = 8, op.work = 100000000;
  add(f, HK_LANE_CPU, 0, op, NULL, 0);
  op = none;
  op.kind = HK_OP_STATE_H2D, op.subgroup = 2, op.piece = 0;
  add(f, HK_LANE_H2D, 0, op, (int32_t[]){STATE_IN, ADAMW_GPU}, 2);
  op = none;
  op.kind = HK_OP_WEIGHT_H2D, op.subgroup = 1;
  add(f, HK_LANE_UP, 1, op, (int32_t[]){ADAMW_CPU}, 1);
  op = none;
  op.kind = HK_OP_BARRIER;
  add(f, HK_LANE_HOST, 0, op, (int32_t[]){STATE_OUT, WEIGHT_UP}, 2);
  op = none;
  op.kind = HK_OP_FORWARD, op.phase = HK_PHASE_FORWARD, op.block = 7;
  add(f, HK_LANE_GPU, 0, op, (int32_t[]){BARRIER}, 1);

  hk_error err = {0};
  ok(hk_timeline_init(&f->graph, &f->timeline, &err), &err);
  hk_span *spans = f->timeline.spans;
  spans[STATE_IN] = (hk_span){0, 0, 1000001};
  spans[ADAMW_GPU] = (hk_span){1000001, 1000001, 1500000};
  spans[STATE_OUT] = (hk_span){1500000, 1500000, 2500009};
  spans[ADAMW_CPU] = (hk_span){0, 0, 2000000};
  spans[NEXT_IN] = (hk_span){1500000, 1500700, 1500701};
  spans[WEIGHT_UP] = (hk_span){2000000, 2000000, 2000010};
  spans[BARRIER] = (hk_span){2500009, 2500009, 2500009};
  spans[BLOCK] = (hk_span){2500009, 2500009, 3600000000001};
}

static void free_fixture(fixture *f) {
  hk_timeline_free(&f->timeline);
  hk_graph_free(&f->graph);
}

static void add_counter(fixture *f, const char *name, const char *unit, hk_ns time, double first,
                        double second) {
  hk_error err = {0};
  int i = hk_timeline_counter(&f->timeline, name, unit, 0, &err);
  assert_true(i >= 0);
  ok(hk_counter_add(&f->timeline.counters[i], time, first, &err), &err);
  ok(hk_counter_add(&f->timeline.counters[i], time + 1, second, &err), &err);
}

static void write_trace(const fixture *f, const char *title) {
  hk_error err = {0};
  ok(hk_chrome_write(&f->graph, &f->timeline, title, path, &err), &err);
}

/* -- Reading back ------------------------------------------------------------------------------*/

static cJSON *load(void) {
  hk_error err = {0};
  cJSON *root = NULL;
  ok(hk_json_load(path, &root, &err), &err);
  return root;
}

static const char *text(const cJSON *object, const char *key) {
  const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
  return value ? value : "";
}

static double number(const cJSON *object, const char *key) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  assert_true(cJSON_IsNumber(value));
  return value->valuedouble;
}

static const cJSON *args_of(const cJSON *event) {
  return cJSON_GetObjectItemCaseSensitive(event, "args");
}

/* The n-th event of kind `ph`, or NULL. */
static const cJSON *event(const cJSON *root, const char *ph, int n) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "traceEvents")) {
    if (strcmp(text(item, "ph"), ph) == 0 && n-- == 0) return item;
  }
  return NULL;
}

/* The slice or instant of operation `id`. */
static const cJSON *operation(const cJSON *root, int id) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "traceEvents")) {
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(args_of(item), "id");
    if (found && found->valueint == id) return item;
  }
  fail_msg("no event for operation %d", id);
  return NULL;
}

/* Arguments of the metadata `name` of the track on which event `of` lies. */
static const cJSON *metadata(const cJSON *root, const char *name, const cJSON *of) {
  const cJSON *item = NULL;
  for (int i = 0; (item = event(root, "M", i)) != NULL; i++) {
    bool thread = strncmp(name, "thread", 6) == 0;
    if (strcmp(text(item, "name"), name) == 0 && number(item, "pid") == number(of, "pid") &&
        (!thread || number(item, "tid") == number(of, "tid"))) {
      return args_of(item);
    }
  }
  fail_msg("no %s", name);
  return NULL;
}

static void read_file(char *buffer, size_t size) {
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  size_t n = fread(buffer, 1, size - 1, file);
  buffer[n] = '\0';
  assert_int_equal(fclose(file), 0);
}

/* -- The checker -------------------------------------------------------------------------------*/

static void expect_counts(const char *counts) {
  char output[1024];
  int code = run_checker(output);
  if (code != 0) fail_msg("check_trace.py: %s", output);
  output[strcspn(output, "\n")] = '\0';
  assert_string_equal(output, counts);
}

/* -- Tests -------------------------------------------------------------------------------------*/

static void test_operations_become_slices(void **state) {
  (void)state;
  fixture f;
  make_example(&f);
  write_trace(&f, "a title");
  cJSON *root = load();
  const cJSON *other = cJSON_GetObjectItemCaseSensitive(root, "otherData");
  assert_string_equal(text(other, "title"), "a title");
  assert_string_equal(text(other, "schema"), "hocket.trace/1");
  assert_string_equal(text(other, "generator"), "hocket");
  assert_string_equal(text(root, "displayTimeUnit"), "ms");

  const cJSON *update = operation(root, ADAMW_GPU);
  char label[64];
  hk_op_label(&f.graph, ADAMW_GPU, label, sizeof label);
  assert_string_equal(text(update, "name"), label);
  assert_string_equal(text(update, "ph"), "X");
  assert_string_equal(text(update, "cat"), "update");
  assert_true(number(update, "ts") == 1000.001 && number(update, "dur") == 499.999);
  const cJSON *args = args_of(update);
  assert_string_equal(text(args, "kind"), "adamw_gpu");
  assert_string_equal(text(args, "unit"), "params");
  assert_true(number(args, "work") == 100000000);
  assert_true(number(args, "subgroup") == 0 && number(args, "piece") == 3);
  assert_false(cJSON_HasObjectItem(args, "block") || cJSON_HasObjectItem(args, "threads"));

  assert_string_equal(text(operation(root, BLOCK), "cat"), "forward");
  assert_true(number(args_of(operation(root, BLOCK)), "block") == 7);
  assert_false(cJSON_HasObjectItem(args_of(operation(root, BLOCK)), "subgroup"));
  assert_true(number(args_of(operation(root, ADAMW_CPU)), "threads") == 8);
  assert_true(number(args_of(operation(root, NEXT_IN)), "wait_ns") == 700);
  assert_true(number(args_of(operation(root, ADAMW_GPU)), "wait_ns") == 0);
  /* A wait begins when the last dependency ends. NEXT_IN's is its second one, BARRIER's its first.
   */
  assert_true(number(args_of(operation(root, BARRIER)), "wait_ns") == 0);
  cJSON_Delete(root);
  free_fixture(&f);
}

static void test_times_are_exact_text(void **state) {
  (void)state;
  fixture f;
  make_example(&f);
  write_trace(&f, "exact");
  char buffer[16384];
  read_file(buffer, sizeof buffer);
  assert_non_null(strstr(buffer, "\"ts\":0.000,\"ph\":\"X\",\"dur\":1000.001,"));
  assert_non_null(strstr(buffer, "\"ts\":2500.009,\"ph\":\"X\",\"dur\":3599997499.992,"));
  free_fixture(&f);
}

static void test_tracks_have_names_and_positions(void **state) {
  (void)state;
  fixture f;
  make_example(&f);
  add_counter(&f, "dram", "bytes_per_s", 10, 1, 2);
  write_trace(&f, "tracks");
  cJSON *root = load();
  const cJSON *in = operation(root, STATE_IN), *up = operation(root, WEIGHT_UP);
  const cJSON *counter = event(root, "C", 0);
  assert_string_equal(text(metadata(root, "process_name", in), "name"), "rank 0");
  assert_string_equal(text(metadata(root, "process_name", up), "name"), "rank 1");
  assert_string_equal(text(metadata(root, "process_name", counter), "name"), "node");
  assert_string_equal(text(metadata(root, "thread_name", in), "name"),
                      "h2d: state copies to the GPU");
  assert_string_equal(text(metadata(root, "thread_name", up), "name"),
                      "up: updated weights to the GPU");
  double ranks[] = {number(metadata(root, "process_sort_index", in), "sort_index"),
                    number(metadata(root, "process_sort_index", up), "sort_index"),
                    number(metadata(root, "process_sort_index", counter), "sort_index")};
  assert_true(ranks[0] < ranks[1] && ranks[1] < ranks[2]);
  const cJSON *update = operation(root, ADAMW_GPU); /* its lane was made after h2d */
  assert_true(number(metadata(root, "thread_sort_index", in), "sort_index") <
              number(metadata(root, "thread_sort_index", update), "sort_index"));
  cJSON_Delete(root);
  free_fixture(&f);
}

static void test_instant_for_an_operation_without_duration(void **state) {
  (void)state;
  fixture f;
  make_example(&f);
  write_trace(&f, "instants");
  cJSON *root = load();
  const cJSON *barrier = operation(root, BARRIER);
  assert_string_equal(text(barrier, "ph"), "i");
  assert_string_equal(text(barrier, "s"), "t");
  assert_true(number(barrier, "ts") == 2500.009);
  assert_false(cJSON_HasObjectItem(barrier, "dur"));
  assert_string_equal(text(args_of(barrier), "kind"), "barrier");
  assert_null(event(root, "i", 1));
  cJSON_Delete(root);
  free_fixture(&f);
}

/* Four dependencies cross lanes between slices: 0 -> 1, 1 -> 2, 1 -> 4, and 3 -> 5 of another
 * rank; not 0 -> 4 (same lane), nor any to or from the barrier. */
static void test_arrows_between_lanes(void **state) {
  (void)state;
  const int from[] = {STATE_IN, ADAMW_GPU, ADAMW_GPU, ADAMW_CPU};
  const int to[] = {ADAMW_GPU, STATE_OUT, NEXT_IN, WEIGHT_UP};
  fixture f;
  make_example(&f);
  write_trace(&f, "arrows");
  cJSON *root = load();
  for (int i = 0; i < 4; i++) {
    const cJSON *start = event(root, "s", i), *end = event(root, "f", i);
    assert_non_null(start);
    assert_non_null(end);
    assert_true(number(start, "id") == number(end, "id"));
    assert_true(number(start, "tid") == number(operation(root, from[i]), "tid"));
    assert_true(number(end, "tid") == number(operation(root, to[i]), "tid"));
    assert_true(number(end, "pid") == number(operation(root, to[i]), "pid"));
    assert_true(number(end, "ts") == number(operation(root, to[i]), "ts"));
    assert_true(number(start, "ts") == (double)(f.timeline.spans[from[i]].end - 1) / 1e3);
    assert_string_equal(text(end, "bp"), "e");
  }
  assert_null(event(root, "s", 4));
  assert_null(event(root, "f", 4));
  cJSON_Delete(root);
  free_fixture(&f);
}

static void test_no_arrow_back_in_time(void **state) {
  (void)state;
  fixture f;
  make_example(&f);
  f.timeline.spans[WEIGHT_UP] =
      (hk_span){1999990, 1999990, 2000010}; /* 10 ns before ADAMW_CPU ends */
  write_trace(&f, "skewed clocks");
  cJSON *root = load();
  assert_null(event(root, "s", 3));
  assert_true(number(args_of(operation(root, WEIGHT_UP)), "wait_ns") == -10);
  cJSON_Delete(root);
  free_fixture(&f);
}

static void test_counters(void **state) {
  (void)state;
  fixture f;
  make_example(&f);
  add_counter(&f, "gpu memory", "bytes", 1234, 140737488355329, 0);
  add_counter(&f, "rank1.h2d", "bytes_per_s", 5, 55.25e9, 0);
  add_counter(&f, "cores", "seconds_per_s", 5, 7.5, 0);
  write_trace(&f, "counters");
  cJSON *root = load();
  const cJSON *memory = event(root, "C", 0), *rate = event(root, "C", 2);
  assert_string_equal(text(memory, "name"), "gpu memory");
  assert_true(number(memory, "ts") == 1.234);
  assert_true(number(args_of(memory), "bytes") == 140737488355329);
  assert_true(number(args_of(event(root, "C", 1)), "bytes") == 0);
  assert_string_equal(text(rate, "name"), "rank1.h2d");
  assert_true(number(args_of(rate), "GB/s") == 55.25);
  assert_true(number(args_of(event(root, "C", 4)), "seconds_per_s") == 7.5);
  assert_null(event(root, "C", 6));
  cJSON_Delete(root);
  free_fixture(&f);
}

static void test_any_name_is_valid_json(void **state) {
  (void)state;
  const char *title = "q\"uote, back\\slash, new\nline, tab\t, bell\a, \xc3\xa9\xe6\xbc\xa2, </x>";
  const char *name = "\"\\\n\x01 \xc3\xa9";
  fixture f;
  make_example(&f);
  add_counter(&f, name, "by\"tes", 0, 1, 2);
  write_trace(&f, title);
  cJSON *root = load();
  assert_string_equal(text(cJSON_GetObjectItemCaseSensitive(root, "otherData"), "title"), title);
  assert_string_equal(text(event(root, "C", 0), "name"), name);
  assert_true(number(args_of(event(root, "C", 0)), "by\"tes") == 1);
  cJSON_Delete(root);
  if (have_python()) expect_counts("7 slices, 1 instants, 4 arrows, 1 counters");
  free_fixture(&f);
}

static void test_empty_graph(void **state) {
  (void)state;
  fixture f = {.graph = {.ranks = 1}};
  write_trace(&f, "");
  cJSON *root = load();
  assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "traceEvents")), 0);
  cJSON_Delete(root);
}

/* A refused timeline leaves the file of that name as it was. */
static void test_refuses_an_invalid_timeline(void **state) {
  (void)state;
  hk_error err = {0};
  fixture f;
  make_example(&f);
  write_trace(&f, "before");
  char before[16384], after[16384];
  read_file(before, sizeof before);

  hk_span *span = &f.timeline.spans[NEXT_IN];
  const hk_span good = *span;
  const hk_span bad[] = {{0, 1000000, 1500000},  /* STATE_IN still has the lane */
                         {0, 1500000, 1499999}}; /* ends before it starts */
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    *span = bad[i];
    assert_int_equal(hk_chrome_write(&f.graph, &f.timeline, "after", path, &err), HK_INPUT);
    assert_non_null(strstr(err.message, "operation 4 (state_h2d sg2.0)"));
    assert_non_null(strstr(err.message, "lane 'rank0.h2d'"));
  }
  *span = good;
  f.timeline.spans[STATE_IN].start = -1;
  assert_int_equal(hk_chrome_write(&f.graph, &f.timeline, "after", path, &err), HK_INPUT);
  f.timeline.spans[STATE_IN].start = 0;
  f.timeline.n_spans--;
  assert_int_equal(hk_chrome_write(&f.graph, &f.timeline, "after", path, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "7 spans for a graph of 8 operations"));
  f.timeline.n_spans++;

  read_file(after, sizeof after);
  assert_string_equal(before, after);
  free_fixture(&f);
}

/* -- Random graphs: list scheduling over random lanes, dependencies and durations --------------*/

typedef struct {
  int slices, instants, arrows;
} tally;

static uint32_t chance(uint32_t *seed, uint32_t below) {
  *seed = *seed * 1664525u + 1013904223u;
  return (*seed >> 8) % below;
}

/* Adds an operation that depends on earlier ones. */
static void add_random(fixture *f, uint32_t *seed) {
  int32_t n = (int32_t)f->graph.n_ops, deps[3];
  for (int i = 0; i < 3; i++) {
    bool given = n > 0 && chance(seed, 2);
    deps[i] = given ? n - 1 - (int32_t)chance(seed, n < 50 ? (uint32_t)n : 50) : -1;
  }
  hk_op op = {.kind = HK_OP_ADAMW_CPU, .phase = HK_PHASE_UPDATE, .block = HK_BLOCK_NONE};
  op.subgroup = n;
  op.piece = -1;
  add(f, (hk_lane_kind)chance(seed, 5), (int)chance(seed, 3), op, deps, 3);
}

static void run_random(fixture *f, uint32_t *seed, tally *expected) {
  hk_ns free_at[15] = {0};
  for (size_t i = 0; i < f->graph.n_ops; i++) {
    const hk_op *op = &f->graph.ops[i];
    hk_span *spans = f->timeline.spans, *span = &spans[i];
    span->start = free_at[op->lane];
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
      hk_ns end = spans[f->graph.deps[d]].end;
      if (end > span->start) span->start = end;
    }
    span->end = span->start + (chance(seed, 4) ? (hk_ns)chance(seed, 100000) : 0);
    free_at[op->lane] = span->end;
    bool slice = span->end > span->start;
    *(slice ? &expected->slices : &expected->instants) += 1;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
      int32_t from = f->graph.deps[d];
      bool crosses = f->graph.ops[from].lane != op->lane;
      if (slice && crosses && spans[from].end > spans[from].start) expected->arrows++;
    }
  }
}

static void test_random_graphs_pass_the_checker(void **state) {
  (void)state;
  if (!have_python()) skip();
  for (uint32_t seed = 1; seed <= 5; seed++) {
    uint32_t random = seed;
    hk_error err = {0};
    tally expected = {0};
    fixture f = {.graph = {.ranks = 3}};
    for (int i = 0; i < 2000; i++) add_random(&f, &random);
    ok(hk_timeline_init(&f.graph, &f.timeline, &err), &err);
    run_random(&f, &random, &expected);
    add_counter(&f, "gpu memory", "bytes", seed, 1e9, 0.1);
    write_trace(&f, "random");
    char counts[128];
    snprintf(counts, sizeof counts, "%d slices, %d instants, %d arrows, 1 counters",
             expected.slices, expected.instants, expected.arrows);
    expect_counts(counts);
    free_fixture(&f);
  }
}

/* -- Several timelines -------------------------------------------------------------------------*/

/* The example, and the same 1 us later with NEXT_IN 2 us longer. */
static void make_layers(fixture *f, fixture *later, hk_chrome_layer layers[2]) {
  make_example(f);
  make_example(later);
  for (size_t i = 0; i < later->timeline.n_spans; i++) {
    hk_span *span = &later->timeline.spans[i];
    *span = (hk_span){span->ready + 1000, span->start + 1000, span->end + 1000};
  }
  later->timeline.spans[NEXT_IN].end += 2000;
  layers[0] = (hk_chrome_layer){"predicted", &f->timeline};
  layers[1] = (hk_chrome_layer){"measured", &later->timeline};
}

static void write_layers(const fixture *f, const hk_chrome_layer layers[2]) {
  hk_error err = {0};
  ok(hk_chrome_write_layers(&f->graph, layers, 2, "both", path, &err), &err);
}

/* The event of operation `id` in the timeline of that name. */
static const cJSON *operation_in(const cJSON *root, const char *timeline, int id) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "traceEvents")) {
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(args_of(item), "id");
    if (found && found->valueint == id && strcmp(text(args_of(item), "timeline"), timeline) == 0)
      return item;
  }
  fail_msg("no event for operation %d, %s", id, timeline);
  return NULL;
}

static void test_timelines_lie_one_under_the_other(void **state) {
  (void)state;
  fixture f, later;
  hk_chrome_layer layers[2];
  make_layers(&f, &later, layers);
  add_counter(&f, "dram", "bytes_per_s", 10, 1, 2);
  write_layers(&f, layers);
  cJSON *root = load();
  for (int id = 0; id < N_OPS; id++) {
    const cJSON *above = operation_in(root, "predicted", id);
    const cJSON *below = operation_in(root, "measured", id);
    assert_string_equal(text(above, "name"), text(below, "name"));
    assert_true(number(above, "pid") == number(below, "pid"));
    assert_true(number(above, "tid") + 1 == number(below, "tid"));
    assert_true(number(metadata(root, "thread_sort_index", above), "sort_index") + 1 ==
                number(metadata(root, "thread_sort_index", below), "sort_index"));
    assert_true(fabs(number(below, "ts") - number(above, "ts") - 1) < 1e-6);
  }
  const cJSON *in = operation_in(root, "measured", STATE_IN);
  assert_string_equal(text(metadata(root, "thread_name", in), "name"),
                      "h2d, measured: state copies to the GPU");
  assert_string_equal(text(metadata(root, "process_name", in), "name"), "rank 0");
  assert_string_equal(text(metadata(root, "process_name", event(root, "C", 0)), "name"),
                      "node, predicted");
  cJSON_Delete(root);
  if (have_python()) expect_counts("2 timelines, 14 slices, 2 instants, 8 arrows, 1 counters");
  free_fixture(&f);
  free_fixture(&later);
}

static void test_every_timeline_is_checked(void **state) {
  (void)state;
  fixture f, later;
  hk_error err = {0};
  hk_chrome_layer layers[2];
  make_layers(&f, &later, layers);
  later.timeline.spans[NEXT_IN].start = 0;
  assert_int_equal(hk_chrome_write_layers(&f.graph, layers, 2, "", path, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "measured: timeline: operation 4"));
  free_fixture(&f);
  free_fixture(&later);
}

static void test_random_layers_pass_the_checker(void **state) {
  (void)state;
  if (!have_python()) skip();
  uint32_t random = 7;
  hk_error err = {0};
  tally expected = {0};
  fixture f = {.graph = {.ranks = 3}};
  for (int i = 0; i < 500; i++) add_random(&f, &random);
  hk_timeline timelines[3];
  for (int i = 0; i < 3; i++) {
    ok(hk_timeline_init(&f.graph, &f.timeline, &err), &err);
    run_random(&f, &random, &expected);
    timelines[i] = f.timeline;
  }
  const hk_chrome_layer layers[] = {
      {"a", &timelines[0]}, {"b\"", &timelines[1]}, {"\xc3\xa9", &timelines[2]}};
  ok(hk_chrome_write_layers(&f.graph, layers, 3, "random", path, &err), &err);
  char counts[128];
  snprintf(counts, sizeof counts, "3 timelines, %d slices, %d instants, %d arrows, 0 counters",
           expected.slices, expected.instants, expected.arrows);
  expect_counts(counts);
  for (int i = 0; i < 3; i++) hk_timeline_free(&timelines[i]);
  hk_graph_free(&f.graph);
}

/* One operation: writing fails when the file is closed. 20,000: while it is written. */
static void test_full_disk(void **state) {
  (void)state;
  if (access("/dev/full", W_OK) != 0) skip();
  const int sizes[] = {1, 20000};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    uint32_t seed = 1;
    hk_error err = {0};
    tally unused = {0};
    fixture f = {.graph = {.ranks = 3}};
    for (int n = 0; n < sizes[i]; n++) add_random(&f, &seed);
    ok(hk_timeline_init(&f.graph, &f.timeline, &err), &err);
    run_random(&f, &seed, &unused);
    assert_int_equal(hk_chrome_write(&f.graph, &f.timeline, "full", "/dev/full", &err),
                     HK_ENVIRONMENT);
    assert_non_null(strstr(err.message, "/dev/full"));
    free_fixture(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_operations_become_slices),
      cmocka_unit_test(test_times_are_exact_text),
      cmocka_unit_test(test_tracks_have_names_and_positions),
      cmocka_unit_test(test_instant_for_an_operation_without_duration),
      cmocka_unit_test(test_arrows_between_lanes),
      cmocka_unit_test(test_no_arrow_back_in_time),
      cmocka_unit_test(test_counters),
      cmocka_unit_test(test_any_name_is_valid_json),
      cmocka_unit_test(test_empty_graph),
      cmocka_unit_test(test_refuses_an_invalid_timeline),
      cmocka_unit_test(test_random_graphs_pass_the_checker),
      cmocka_unit_test(test_timelines_lie_one_under_the_other),
      cmocka_unit_test(test_every_timeline_is_checked),
      cmocka_unit_test(test_random_layers_pass_the_checker),
      cmocka_unit_test(test_full_disk),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
