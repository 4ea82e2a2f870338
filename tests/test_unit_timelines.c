/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines in the store: they are read back as stored; pairs; concurrent writers; stores of an
 * earlier version; and messages about a timeline that is damaged or whose plan would now expand
 * to another graph. */
#include "traces/timelines.h"

#include <sys/wait.h>

#include "tests/fixture_graph.h"
#include "tests/fixture_profiles.h"
#include "traces/store_schema.h"
#include "traces/timelines_internal.h"

/* -- A simulated update ------------------------------------------------------------------------ */

typedef struct {
  hk_plan plan;
  hk_graph graph;
  hk_result result;
  cJSON *profile;
} simulated;

static simulated simulate(const char *policy, unsigned phases) {
  hk_error err = {0};
  simulated s = {0};
  const hk_policy *found = NULL;
  hk_machine machine;
  const hk_sim_options options = {.counters = true};
  const hk_policy_options wishes = {.stride = 2, .ratio = -1};
  must(hk_policy_find(policy, &found, &err), &err);
  must(hk_machine_load(HK_TEST_SHARE "/machines/h200-16c.json", &machine, &err), &err);
  s.plan =
      planned(found, found->takes & HK_TAKES_STRIDE ? wishes : (hk_policy_options){.ratio = -1},
              HK_RUNTIME_HOCKET, &ALONE, HK_FLUSH_ASYNC);
  s.graph = built(&s.plan, phases, true);
  must(hk_simulate(&s.graph, &machine, &options, &s.result, &err), &err);
  s.profile = hk_machine_to_json(&machine);
  if (!s.profile || !s.result.timeline.spans || !s.result.timeline.counters) abort();
  hk_machine_free(&machine);
  return s;
}

static void free_simulated(simulated *s) {
  hk_plan_free(&s->plan);
  hk_graph_free(&s->graph);
  hk_result_free(&s->result);
  cJSON_Delete(s->profile);
}

static hk_timeline_to_store kept_as(const simulated *s, bool measured, unsigned phases,
                                    int64_t pair) {
  return (hk_timeline_to_store){.measured = measured,
                                .phases = phases,
                                .pair = pair,
                                .plan = &s->plan,
                                .graph = &s->graph,
                                .timeline = &s->result.timeline,
                                .profile = measured ? NULL : s->profile,
                                .version = "1.2.3"};
}

/* Stores `s` as a timeline of whole iterations and returns its id. */
static int64_t keep(hk_store *store, const simulated *s, bool measured, int64_t pair) {
  hk_error err = {0};
  int64_t id = 0;
  const hk_timeline_to_store what = kept_as(s, measured, HK_EXPAND_ALL, pair);
  must(hk_timelines_store(store, &what, &id, &err), &err);
  assert_true(id > 0);
  return id;
}

static hk_loaded_timeline load(hk_store *store, int64_t id) {
  hk_error err = {0};
  hk_loaded_timeline loaded;
  must(hk_timelines_load(store, id, &loaded, &err), &err);
  return loaded;
}

static int64_t pair_of(hk_store *store, int64_t id) {
  hk_loaded_timeline loaded = load(store, id);
  const int64_t pair = loaded.kept.pair;
  hk_loaded_timeline_free(&loaded);
  return pair;
}

static void refuses(hk_store *store, int64_t id, hk_status expected, const char *what) {
  hk_error err = {0};
  hk_loaded_timeline loaded;
  if (hk_timelines_load(store, id, &loaded, &err) != expected)
    fail_msg("status %d, expected %d: %s", (int)err.status, (int)expected, err.message);
  says(&err, what);
  says(&err, path);
  hk_loaded_timeline_free(&loaded);
}

/* -- In and out -------------------------------------------------------------------------------- */

static void same_counters(const hk_timeline *a, const hk_timeline *b) {
  assert_int_equal(a->n_counters, b->n_counters);
  for (size_t i = 0; i < a->n_counters; i++) {
    const hk_counter *x = &a->counters[i], *y = hk_timeline_find(b, x->name);
    if (!y) {
      fail_msg("no counter '%s'", x->name);
      return;
    }
    assert_string_equal(x->unit, y->unit);
    assert_memory_equal(&x->capacity, &y->capacity, sizeof x->capacity);
    assert_int_equal(x->n, y->n);
    for (size_t k = 0; k < x->n; k++)
      assert_true(x->samples[k].time == y->samples[k].time &&
                  x->samples[k].value == y->samples[k].value);
  }
}

static void same_timeline(const hk_timeline *a, const hk_timeline *b) {
  assert_int_equal(a->n_spans, b->n_spans);
  for (size_t i = 0; i < a->n_spans; i++)
    assert_memory_equal(&a->spans[i], &b->spans[i], sizeof a->spans[i]);
  assert_true(a->makespan == b->makespan);
  assert_memory_equal(a->phase_begin, b->phase_begin, sizeof a->phase_begin);
  assert_memory_equal(a->phase_end, b->phase_end, sizeof a->phase_end);
  same_counters(a, b);
}

static void a_stored_timeline_is_read_back_unchanged(void **state) {
  (void)state;
  static const unsigned phases[] = {HK_EXPAND_ALL, HK_EXPAND_UPDATE, HK_EXPAND_TRAINING};
  hk_store *store = open_store();
  for (int i = 0; i < 3; i++) {
    hk_error err = {0};
    simulated s = simulate("interleave", phases[i]);
    assert_true(s.result.timeline.n_counters > 3); /* every unit occurs */
    hk_timeline_to_store what = kept_as(&s, i == 1, phases[i], 0);
    what.fingerprint = i == 1 ? hk_fingerprint_to_json(&here) : NULL;
    int64_t id = 0;
    must(hk_timelines_store(store, &what, &id, &err), &err);
    hk_loaded_timeline loaded = load(store, id);
    assert_true(loaded.kept.id == id && loaded.kept.pair == 0);
    assert_true(loaded.kept.measured == (i == 1));
    assert_int_equal(loaded.kept.phases, phases[i]);
    assert_int_equal(loaded.kept.operations, s.graph.n_ops);
    assert_true(loaded.kept.makespan == s.result.timeline.makespan);
    assert_string_equal(loaded.kept.label, "interleave k=2, tiny");
    assert_string_equal(loaded.kept.machine, i == 1 ? "host" : "h200-16c");
    assert_string_equal(loaded.kept.version, "1.2.3");
    assert_int_equal(strlen(loaded.kept.made), strlen("2026-11-21T09:30:00Z"));
    same_timeline(&loaded.timeline, &s.result.timeline);
    assert_int_equal(loaded.plan.n_subgroups, s.plan.n_subgroups);
    assert_true(cJSON_Compare(loaded.profile, what.profile, true) == (i != 1));
    assert_true(cJSON_Compare(loaded.fingerprint, what.fingerprint, true) == (i == 1));
    hk_loaded_timeline_free(&loaded);
    hk_loaded_timeline_free(&loaded);
    cJSON_Delete((cJSON *)(uintptr_t)what.fingerprint);
    free_simulated(&s);
  }
  hk_store_close(store);
}

static void the_latest_is_listed_first(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  hk_stored_timeline *list = NULL;
  size_t n = 1;
  must(hk_timelines_list(store, &list, &n, &err), &err);
  assert_true(n == 0 && list == NULL);
  simulated a = simulate("interleave", HK_EXPAND_ALL), b = simulate("streamed", HK_EXPAND_ALL);
  keep(store, &a, false, 0);
  keep(store, &b, false, 0);
  keep(store, &b, true, 2);
  must(hk_timelines_list(store, &list, &n, &err), &err);
  assert_int_equal(n, 3);
  for (int i = 0; i < 3; i++) assert_true(list[i].id == 3 - i);
  assert_true(list[0].pair == 2 && list[1].pair == 3 && list[2].pair == 0);
  assert_true(list[0].measured && !list[1].measured);
  assert_string_equal(list[0].label, "streamed, tiny");
  assert_int_equal(list[2].operations, a.graph.n_ops);
  free(list);
  free_simulated(&a);
  free_simulated(&b);
  hk_store_close(store);
}

static void tables_have_a_row_an_operation(void **state) {
  (void)state;
  simulated s = simulate("interleave", HK_EXPAND_UPDATE);
  char *text = NULL;
  size_t size = 0, rows = 0;
  FILE *stream = open_memstream(&text, &size);
  hk_timelines_write_csv(&s.graph, &s.result.timeline, &s.result.timeline, stream);
  assert_int_equal(fclose(stream), 0);
  static const char header[] =
      "id,kind,lane,rank,subgroup,piece,work,unit,gpu_alloc_bytes,gpu_free_bytes,start_ns,end_ns,"
      "predicted_start_ns,predicted_end_ns\n";
  assert_memory_equal(text, header, sizeof header - 1);
  for (const char *c = text + sizeof header - 1; *c; c = strchr(c, '\n') + 1) {
    const hk_op *op = &s.graph.ops[rows];
    const hk_span *span = &s.result.timeline.spans[rows];
    char subgroup[16] = "", piece[16] = "", row[256];
    if (op->subgroup >= 0) snprintf(subgroup, sizeof subgroup, "%d", (int)op->subgroup);
    if (op->piece >= 0) snprintf(piece, sizeof piece, "%d", (int)op->piece);
    snprintf(row, sizeof row, "%zu,%s,%s,0,%s,%s,%lld,%s,%lld,%lld,%lld,%lld,%lld,%lld\n", rows,
             hk_op_kind_name(op->kind), s.graph.lanes[op->lane].name, subgroup, piece,
             (long long)op->work, hk_op_kind_unit(op->kind), (long long)op->gpu_alloc,
             (long long)op->gpu_free, (long long)span->start, (long long)span->end,
             (long long)span->start, (long long)span->end);
    assert_memory_equal(c, row, strlen(row));
    rows++;
  }
  assert_int_equal(rows, s.graph.n_ops);
  free(text);
  free_simulated(&s);
}

/* -- Pairs ------------------------------------------------------------------------------------- */

static void pairs_are_tied_both_ways(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  simulated s = simulate("interleave", HK_EXPAND_ALL), other = simulate("streamed", HK_EXPAND_ALL);
  const int64_t predicted = keep(store, &s, false, 0);
  struct {
    const simulated *of;
    bool measured;
    int64_t pair;
  } wrong[] = {{&s, true, 99}, {&s, false, predicted}, {&other, true, predicted}};
  for (int i = 0; i < 3; i++) {
    int64_t id = 7;
    const hk_timeline_to_store what =
        kept_as(wrong[i].of, wrong[i].measured, HK_EXPAND_ALL, wrong[i].pair);
    assert_int_equal(hk_timelines_store(store, &what, &id, &err), HK_INPUT);
    assert_true(id == 0);
    says(&err, wrong[i].pair == 99 ? "timeline 99" : "timeline 1");
  }
  assert_int_equal(number(store, "SELECT count(*) FROM timeline"), 1);
  const int64_t measured = keep(store, &s, true, predicted);
  assert_true(pair_of(store, predicted) == measured && pair_of(store, measured) == predicted);
  const hk_timeline_to_store third = kept_as(&s, true, HK_EXPAND_ALL, predicted);
  int64_t id;
  assert_int_equal(hk_timelines_store(store, &third, &id, &err), HK_INPUT);
  says(&err, "no pair yet");

  must(hk_timelines_delete(store, measured, &err), &err);
  assert_true(pair_of(store, predicted) == 0);
  const int64_t again = keep(store, &s, true, predicted);
  assert_true(again > measured); /* ids are not reused */
  must(hk_timelines_delete(store, predicted, &err), &err);
  assert_true(pair_of(store, again) == 0);
  assert_int_equal(hk_timelines_delete(store, predicted, &err), HK_INPUT);
  says(&err, "no timeline 1");
  refuses(store, predicted, HK_INPUT, "no timeline 1");
  free_simulated(&s);
  free_simulated(&other);
  hk_store_close(store);
}

static void an_unreadable_timeline_is_not_stored(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  simulated s = simulate("streamed", HK_EXPAND_ALL);
  hk_timeline_to_store what = kept_as(&s, false, HK_EXPAND_ALL, 0);
  int64_t id;
  s.result.timeline.counters[0].unit = "furlongs";
  assert_int_equal(hk_timelines_store(store, &what, &id, &err), HK_INPUT);
  says(&err, "is in furlongs");
  s.result.timeline.n_spans--;
  assert_int_equal(hk_timelines_store(store, &what, &id, &err), HK_INPUT);
  says(&err, "operations");
  assert_int_equal(number(store, "SELECT count(*) FROM timeline"), 0);
  free_simulated(&s);
  hk_store_close(store);
}

/* -- Damage ------------------------------------------------------------------------------------ */

static void damage_names_the_timeline(void **state) {
  (void)state;
  static const char *const edits[] = {
      "UPDATE timeline SET spans = substr(spans, 1, length(spans) - 1)",
      "UPDATE timeline SET spans = substr(spans, 1, length(spans) - 24)",
      "UPDATE timeline SET spans = substr(spans, 25)",
      "UPDATE timeline SET spans = x''",
      "UPDATE timeline SET spans = zeroblob(length(spans))",
      "UPDATE timeline SET spans = counters",
      "UPDATE timeline SET counters = substr(counters, 1, 100)",
      "UPDATE timeline SET counters = x'0011'",
      "UPDATE timeline SET plan = substr(plan, 1, 500)",
      "UPDATE timeline SET plan = '{}'",
      "UPDATE timeline SET plan = ''",
      "UPDATE timeline SET plan = replace(plan, '\"streamed\"', '7')",
      "UPDATE timeline SET profile = '{'",
      "UPDATE timeline SET fingerprint = 'nothing'",
      "UPDATE timeline SET phases = 0",
      "UPDATE timeline SET phases = 8",
  };
  hk_store *store = open_store();
  hk_error err = {0};
  simulated s = simulate("streamed", HK_EXPAND_ALL);
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    const int64_t id = keep(store, &s, false, 0);
    char where[32];
    snprintf(where, sizeof where, "timeline %lld ", (long long)id);
    must(hk_store_do(store, &err, edits[i], ""), &err);
    refuses(store, id, HK_ENVIRONMENT, where);
    refuses(store, id, HK_ENVIRONMENT, "is damaged");
    refuses(store, id, HK_ENVIRONMENT, "hocket trace delete");
    must(hk_timelines_delete(store, id, &err), &err);
  }
  free_simulated(&s);
  hk_store_close(store);
}

/* A flipped bit in any byte and a cut at any byte are refused. */
static void every_change_of_the_bytes_is_found(void **state) {
  (void)state;
  hk_error err = {0};
  simulated s = simulate("streamed", HK_EXPAND_UPDATE);
  hk_blob blobs[2];
  must(hk_spans_encode(&s.result.timeline, &blobs[0], &err), &err);
  must(hk_counters_encode(&s.result.timeline, &blobs[1], &err), &err);
  for (int which = 0; which < 2; which++) {
    hk_status (*decode)(const hk_blob *, hk_timeline *, hk_error *) =
        which == 0 ? hk_spans_decode : hk_counters_decode;
    hk_timeline timeline;
    must(hk_timeline_init(&s.graph, &timeline, &err), &err);
    for (size_t i = 0; i < blobs[which].size; i++) {
      char *byte = (char *)blobs[which].bytes + i;
      *byte ^= (char)(1 << (i % 8));
      assert_int_equal(decode(&blobs[which], &timeline, &err), HK_INPUT);
      *byte ^= (char)(1 << (i % 8));
      const hk_blob shorter = {blobs[which].bytes, i};
      assert_int_equal(decode(&shorter, &timeline, &err), HK_INPUT);
    }
    must(decode(&blobs[which], &timeline, &err), &err);
    assert_int_equal(timeline.n_counters, which == 0 ? 0 : s.result.timeline.n_counters);
    hk_timeline_free(&timeline);
    free(blobs[which].bytes);
  }
  free_simulated(&s);
}

/* An intact blob with the number of spans of another graph. */
static void spans_of_another_number_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  simulated s = simulate("streamed", HK_EXPAND_UPDATE);
  hk_blob blob;
  must(hk_spans_encode(&s.result.timeline, &blob, &err), &err);
  s.result.timeline.n_spans--;
  assert_int_equal(hk_spans_decode(&blob, &s.result.timeline, &err), HK_INPUT);
  says(&err, "spans for a plan of");
  free(blob.bytes);
  free_simulated(&s);
}

static void another_expansion_is_told_with_its_version(void **state) {
  (void)state;
  static const char *const edits[] = {
      "UPDATE timeline SET graph = '0123456789abcdef'",
      "UPDATE timeline SET plan = replace(plan, '\"piece_numel\":2000', '\"piece_numel\":1999')",
      "UPDATE timeline SET phases = 4",
  };
  hk_store *store = open_store();
  hk_error err = {0};
  simulated s = simulate("streamed", HK_EXPAND_ALL);
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    const int64_t id = keep(store, &s, false, 0);
    must(hk_store_do(store, &err, edits[i], ""), &err);
    refuses(store, id, HK_INPUT, "was stored by hocket 1.2.3");
    must(hk_timelines_delete(store, id, &err), &err);
  }
  free_simulated(&s);
  hk_store_close(store);
}

static void the_hash_is_of_all_that_makes_a_graph(void **state) {
  (void)state;
  simulated s = simulate("interleave", HK_EXPAND_ALL);
  hk_graph again = built(&s.plan, HK_EXPAND_ALL, true);
  char first[17], hash[17];
  hk_graph_hash(&s.graph, first);
  hk_graph_hash(&again, hash);
  assert_string_equal(first, hash);
  hk_op *op = &again.ops[again.n_ops / 2];
  assert_true(again.deps[again.n_deps - 1] > 0);
#define CHANGES(field)                    \
  do {                                    \
    (field)++;                            \
    hk_graph_hash(&again, hash);          \
    assert_string_not_equal(first, hash); \
    (field)--;                            \
    hk_graph_hash(&again, hash);          \
    assert_string_equal(first, hash);     \
  } while (0)
  CHANGES(op->kind);
  CHANGES(op->lane);
  CHANGES(op->work);
  CHANGES(op->subgroup);
  CHANGES(op->piece);
  CHANGES(op->offset);
  CHANGES(op->threads);
  CHANGES(op->gpu_alloc);
  CHANGES(op->deps_begin);
  CHANGES(again.ops[again.n_ops - 1].deps_end);
  CHANGES(again.deps[again.n_deps - 1]);
  CHANGES(again.lanes[0].kind);
  CHANGES(again.multiplicity);
  CHANGES(again.gpu_base);
  again.n_ops--;
  hk_graph_hash(&again, hash);
  assert_string_not_equal(first, hash);
  again.n_ops++;
  hk_graph_free(&again);
  free_simulated(&s);
}

/* -- Several processes, earlier versions ------------------------------------------------------- */

enum { WRITERS = 2, EACH = 20 };

static int write_many(const simulated *s) {
  hk_error err = {0};
  hk_store *store = NULL;
  hk_status status = hk_store_open(NULL, false, &store, &err);
  for (int i = 0; i < EACH && status == HK_OK; i++) {
    int64_t id = 0;
    hk_timeline_to_store what = kept_as(s, false, HK_EXPAND_ALL, 0);
    status = hk_timelines_store(store, &what, &id, &err);
    what = kept_as(s, true, HK_EXPAND_ALL, id);
    if (status == HK_OK) status = hk_timelines_store(store, &what, &id, &err);
  }
  if (status != HK_OK) fprintf(stderr, "%s\n", err.message);
  hk_store_close(store);
  return (int)status;
}

static void two_write_at_once(void **state) {
  (void)state;
  simulated s = simulate("streamed", HK_EXPAND_ALL);
  pid_t children[WRITERS];
  for (int i = 0; i < WRITERS; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i] == 0) _exit(write_many(&s));
  }
  for (int i = 0; i < WRITERS; i++) {
    int code = 0;
    assert_int_equal(waitpid(children[i], &code, 0), children[i]);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
  }
  hk_store *store = open_store();
  assert_int_equal(number(store, "SELECT count(*) FROM timeline"), 2 * WRITERS * EACH);
  for (int64_t id = 1; id <= 2 * WRITERS * EACH; id++) {
    hk_loaded_timeline loaded = load(store, id);
    assert_true(pair_of(store, loaded.kept.pair) == id);
    same_timeline(&loaded.timeline, &s.result.timeline);
    hk_loaded_timeline_free(&loaded);
  }
  free_simulated(&s);
  hk_store_close(store);
}

static void a_store_of_version_2_keeps_its_profiles(void **state) {
  (void)state;
  hk_error err = {0};
  hk_store *store = NULL;
  char name[96];
  cJSON *document = NULL, *back = NULL;
  must(hk_json_load(HK_TEST_DATA "/calibrated-node.json", &document, &err), &err);
  must(hk_store_open_as(path, false, 2, 1000, &store, &err), &err);
  must(hk_profiles_import(store, document, false, name, sizeof name, &err), &err);
  keep_rounds(store, begin(store, "mine"), 0, 3);
  hk_stored_timeline *list;
  size_t n;
  assert_int_equal(hk_timelines_list(store, &list, &n, &err), HK_ENVIRONMENT); /* no such table */
  hk_store_close(store);

  store = open_store();
  assert_int_equal(number(store, "PRAGMA user_version"), hk_store_version);
  must(hk_profiles_document(store, name, &back, &err), &err);
  assert_true(cJSON_Compare(document, back, true));
  assert_int_equal(number(store, "SELECT count(*) FROM sample"), 9);
  simulated s = simulate("streamed", HK_EXPAND_ALL);
  keep(store, &s, false, 0);
  free_simulated(&s);
  cJSON_Delete(back);
  cJSON_Delete(document);
  hk_store_close(store);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)
  const struct CMUnitTest tests[] = {
      TEST(a_stored_timeline_is_read_back_unchanged),
      TEST(the_latest_is_listed_first),
      TEST(tables_have_a_row_an_operation),
      TEST(pairs_are_tied_both_ways),
      TEST(an_unreadable_timeline_is_not_stored),
      TEST(damage_names_the_timeline),
      TEST(every_change_of_the_bytes_is_found),
      TEST(spans_of_another_number_are_refused),
      TEST(another_expansion_is_told_with_its_version),
      TEST(the_hash_is_of_all_that_makes_a_graph),
      TEST(two_write_at_once),
      TEST(a_store_of_version_2_keeps_its_profiles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
