/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Models given as lists of tensors and blocks, from a document or from arrays: sizes, FLOPs and
 * bytes, and each way in which a document is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/graph/graph.h"
#include "tests/fixture.h"

/* Three blocks: one with two tensors, one without, one with an fp32 tensor. */
static const char DOCUMENT[] =
    "{\"schema\": \"hocket.model/1\", \"name\": \"odd\", \"micro_batch\": 2, \"seq\": 8,"
    " \"launch_beside_update\": 0.7,"
    " \"blocks\": ["
    "  {\"name\": \"in\", \"forward_flops\": 1000, \"activation_bytes\": 160, "
    "   \"workspace_bytes\": 80, \"forward_ms\": 1.5, \"backward_ms\": 4},"
    "  {\"name\": \"pool\", \"forward_flops\": 30, \"activation_bytes\": 16, "
    "   \"workspace_bytes\": 0},"
    "  {\"name\": \"out\", \"forward_flops\": 500, \"backward_flops\": 2000, "
    "   \"activation_bytes\": 0, \"workspace_bytes\": 7}],"
    " \"tensors\": ["
    "  {\"name\": \"w\", \"numel\": 1001, \"block\": 0},"
    "  {\"name\": \"b\", \"numel\": 1, \"block\": 0, \"grad_type\": \"fp32\"},"
    "  {\"name\": \"v\", \"numel\": 37, \"block\": 2, \"weight_type\": \"fp32\", "
    "   \"grad_type\": \"fp32\"}]}";

static const hk_job ALONE = {
    .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 2, .grad_accum = 1, .seq = 8};

static hk_status read_text(const char *text, hk_model *model, hk_error *err) {
  cJSON *root = NULL;
  must(hk_json_parse(text, strlen(text), "test", &root, err), err);
  const hk_status status = hk_model_from_config(root, "file", model, err);
  cJSON_Delete(root);
  return status;
}

static hk_model read_document(void) {
  hk_error err = {0};
  hk_model model;
  must(read_text(DOCUMENT, &model, &err), &err);
  return model;
}

/* -- Contents of a document ------------------------------------------------------------------- */

static void tensors_and_blocks(void **state) {
  (void)state;
  hk_model m = read_document();
  assert_string_equal(m.name, "odd");
  assert_int_equal(m.arch, HK_ARCH_LISTED);
  assert_int_equal(m.layers, 1);
  assert_int_equal(m.parameters, 1039);
  assert_int_equal(m.n_tensors, 3);
  assert_true(hk_launch_share(&m.launch_beside_update, 1) == 0.7);
  assert_true(hk_launch_share(&m.launch_beside_update, 99) == 0.7);
  assert_string_equal(m.tensors[2].name, "v");
  assert_int_equal(m.tensors[2].block, 1);
  assert_int_equal(hk_model_block_parameters(&m, HK_BLOCK_EMBED, 1), 1002);
  assert_int_equal(hk_model_block_parameters(&m, 0, 1), 0);
  assert_int_equal(hk_model_block_parameters(&m, 1, 1), 37);
  assert_int_equal(hk_model_rank_parameters(&m, 1, 1), 1039);
  int64_t begin, end;
  hk_model_block_interval(&m, 1, 1, 2, &begin, &end); /* of two ranks: 501 + 1, 0 and 19 */
  assert_int_equal(begin, 502);
  assert_int_equal(end, 521);
  hk_block_walk walk = {.model = &m, .tp = 1, .dp = 2};
  for (int block = 0; block < 3; block++) hk_block_walk_next(&walk);
  assert_true(walk.begin == 502 && walk.end == 521);
  hk_model_free(&m);
}

/* Linear between two sizes of the team. */
static void launches_depend_on_the_team(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model m;
  must(read_text("{\"schema\": \"hocket.model/1\", \"launch_beside_update\": ["
                 " {\"threads\": 4, \"share\": 0.9},"
                 " {\"threads\": 9, \"share\": 0.8, \"quartiles\": [0.7, 0.8, 0.9]},"
                 " {\"threads\": 13, \"share\": 0.6}],"
                 " \"blocks\": [{\"name\": \"b\", \"forward_flops\": 1,"
                 "  \"activation_bytes\": 1, \"workspace_bytes\": 1}],"
                 " \"tensors\": [{\"name\": \"w\", \"numel\": 1, \"block\": 0}]}",
                 &m, &err),
       &err);
  const struct {
    int threads;
    double share;
  } expected[] = {{1, 0.9}, {4, 0.9}, {9, 0.8}, {10, 0.75}, {12, 0.65}, {13, 0.6}, {99, 0.6}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
    assert_float_equal(hk_launch_share(&m.launch_beside_update, expected[i].threads),
                       expected[i].share, 1e-12);
  const hk_launch_shares none = {0};
  assert_true(hk_launch_share(&none, 4) == 0);
  hk_model_free(&m);
}

static void costs_are_in_proportion_to_tokens(void **state) {
  (void)state;
  hk_model m = read_document();
  assert_true(hk_model_forward_flops(&m, HK_BLOCK_EMBED, 2, 8, 1) == 1000);
  assert_true(hk_model_forward_flops(&m, HK_BLOCK_EMBED, 6, 8, 1) == 3000);
  assert_true(hk_model_backward_flops(&m, HK_BLOCK_EMBED, 2, 8, 1, true) == 2000);
  assert_true(hk_model_backward_flops(&m, 0, 2, 8, 1, false) == 60);
  assert_true(hk_model_backward_flops(&m, 0, 2, 8, 1, true) == 90);
  assert_true(hk_model_backward_flops(&m, 1, 1, 8, 1, true) == 1000); /* as stated, halved */
  assert_int_equal(hk_model_measured_ns(&m, HK_BLOCK_EMBED, false, 2, 8), 1500000);
  assert_int_equal(hk_model_measured_ns(&m, HK_BLOCK_EMBED, true, 1, 8), 2000000);
  assert_int_equal(hk_model_measured_ns(&m, 1, true, 2, 8), 0);
  assert_int_equal(hk_model_activation_bytes(&m, HK_BLOCK_EMBED, 4, 8, 1, true), 320);
  assert_int_equal(hk_model_backward_workspace_bytes(&m, 1, 1, 8, 1, false), 4); /* 3.5, up */
  hk_model_free(&m);
}

static void bytes_follow_the_types(void **state) {
  (void)state;
  hk_model m = read_document();
  assert_true(m.mixed_types);
  assert_int_equal(hk_model_weight_bytes(&m, 1, 1, 0, 1039), 2 * 1002 + 4 * 37);
  assert_int_equal(hk_model_grad_bytes(&m, 1, 1, 0, 1039), 2 * 1001 + 4 * 38);
  assert_int_equal(hk_model_grad_bytes(&m, 1, 1, 1000, 1004), 2 + 4 * 3);
  assert_int_equal(hk_model_grad_bytes(&m, 1, 1, 500, 500), 0);
  hk_model_free(&m);
}

/* The graph's copies have the bytes of each tensor's own types. */
static void graph_of_mixed_types(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model m = read_document();
  hk_plan plan;
  hk_graph graph;
  must(hk_plan_create(&m, &ALONE, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 400, &plan, &err), &err);
  assert_int_equal(plan.n_subgroups, 4); /* 334, 334, 334 and 37 */
  hk_plan_set_overlap(&plan, HK_OVERLAP_FORWARD);
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ENGINE, .folded = true}, &graph, &err), &err);
  assert_int_equal(graph.ops[0].kind, HK_OP_GRAD_D2H); /* backward begins with the last block */
  assert_int_equal(graph.ops[0].subgroup, 3);
  assert_int_equal(graph.ops[0].work, 4 * 37);
  hk_bytes flushed = 0, uploaded = 0;
  for (size_t i = 0; i < graph.n_ops; i++) {
    if (graph.ops[i].kind == HK_OP_GRAD_D2H) flushed += graph.ops[i].work;
    if (graph.ops[i].kind == HK_OP_WEIGHT_H2D) uploaded += graph.ops[i].work;
  }
  assert_int_equal(flushed, 2 * 1001 + 4 * 38);
  assert_int_equal(uploaded, 2 * 1002 + 4 * 37);
  assert_int_equal(graph.gpu_base, flushed + uploaded);
  assert_int_equal(graph.host_base, 12 * 1039 + flushed + uploaded);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* A plan holds the whole document. */
static void plans_are_self_contained(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model m = read_document();
  hk_plan plan, again, copy;
  must(hk_plan_create(&m, &ALONE, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 400, &plan, &err), &err);
  cJSON *document = hk_plan_to_json(&plan);
  must(hk_plan_from_json(document, &again, &err), &err);
  must(hk_plan_copy(&again, &copy, &err), &err);
  assert_string_equal(copy.model.name, "odd");
  assert_int_equal(copy.model.parameters, 1039);
  assert_true(copy.model.mixed_types);
  assert_true(copy.model.blocks[0].forward_ms == 1.5);
  cJSON_Delete(document);
  hk_plan_free(&plan);
  hk_plan_free(&again);
  hk_plan_free(&copy);
}

/* Copies share tensors and blocks and outlive each other; so do copies of a transformer. */
static void copies_outlive_each_other(void **state) {
  (void)state;
  hk_error err = {0};
  for (int i = 0; i < 2; i++) {
    hk_model m = i == 0 ? read_document() : tiny_model(2), copies[3];
    for (int c = 0; c < 3; c++)
      must(hk_model_copy(c == 0 ? &m : &copies[c - 1], &copies[c], &err), &err);
    assert_ptr_equal(copies[2].tensors, m.tensors);
    hk_model_free(&copies[1]);
    hk_model_free(&m);
    assert_int_equal(copies[2].n_tensors, copies[0].n_tensors);
    assert_int_equal(hk_model_rank_parameters(&copies[2], 1, 1), copies[0].parameters);
    hk_model_free(&copies[0]);
    assert_non_null(copies[2].config);
    hk_model_free(&copies[2]);
    hk_model_free(&copies[2]);
  }
}

static void loads_from_a_file(void **state) {
  (void)state;
  hk_error err = {0};
  char path[] = "/tmp/hocket-listed-XXXXXX.json";
  const int fd = mkstemps(path, 5);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, DOCUMENT, sizeof DOCUMENT - 1), sizeof DOCUMENT - 1);
  close(fd);
  hk_model m;
  must(hk_model_load(path, &m, &err), &err);
  assert_string_equal(m.name, "odd");
  hk_model_free(&m);
  unlink(path);
}

/* -- From arrays ------------------------------------------------------------------------------ */

static void one_block_is_enough(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_tensor tensors[] = {{.name = "a", .numel = 3}, {.name = "b", .numel = 5}};
  hk_model m;
  must(hk_model_from_tensors("two", tensors, 2, 1, &m, &err), &err);
  assert_int_equal(m.layers, -1);
  assert_int_equal(m.parameters, 8);
  hk_plan plan;
  must(hk_plan_create(&m, &ALONE, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 100, &plan, &err), &err);
  assert_int_equal(plan.n_subgroups, 1);
  must(hk_plan_check(&plan, &err), &err);
  for (int overlap = 0; overlap < HK_OVERLAP_COUNT; overlap++) {
    hk_graph graph;
    hk_plan_set_overlap(&plan, (hk_overlap)overlap);
    must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
    int forwards = 0;
    for (size_t i = 0; i < graph.n_ops; i++) forwards += graph.ops[i].kind == HK_OP_FORWARD;
    assert_int_equal(forwards, 1);
    hk_graph_free(&graph);
  }
  hk_plan_free(&plan);
}

static void arrays_make_the_same_as_documents(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_tensor tensors[] = {
      {.name = "w", .numel = 1001},
      {.name = "b", .numel = 1, .grad_type = HK_DTYPE_FP32},
      {.name = "v",
       .numel = 37,
       .block = 2,
       .weight_type = HK_DTYPE_FP32,
       .grad_type = HK_DTYPE_FP32},
  };
  hk_model a, b = read_document();
  must(hk_model_from_tensors("odd", tensors, 3, 3, &a, &err), &err);
  assert_int_equal(a.n_tensors, b.n_tensors);
  for (size_t i = 0; i < 3; i++) {
    assert_string_equal(a.tensors[i].name, b.tensors[i].name);
    assert_int_equal(a.tensors[i].numel, b.tensors[i].numel);
    assert_int_equal(a.tensors[i].block, b.tensors[i].block);
    assert_int_equal(a.tensors[i].weight_type, b.tensors[i].weight_type);
    assert_int_equal(a.tensors[i].grad_type, b.tensors[i].grad_type);
  }
  hk_model_free(&a);
  hk_model_free(&b);
}

static void wrong_arrays_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model m;
  const hk_tensor back[] = {{.name = "a", .numel = 3, .block = 1}, {.name = "b", .numel = 5}};
  assert_int_equal(hk_model_from_tensors("x", back, 2, 2, &m, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "tensors[1]: block 0: expected 1 to 1"));
  assert_int_equal(hk_model_from_tensors("x", back, 1, 1, &m, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "tensors[0]: block 1: expected 0 to 0"));
  assert_int_equal(hk_model_from_tensors("x", back, 0, 1, &m, &err), HK_INPUT);
  assert_int_equal(hk_model_from_tensors("x", back, 2, 0, &m, &err), HK_INPUT);
}

/* -- Refused documents ------------------------------------------------------------------------ */

static void refuse(const char *from, const char *to, const char *says) {
  char text[2 * sizeof DOCUMENT];
  const char *at = strstr(DOCUMENT, from);
  assert_non_null(at);
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - DOCUMENT), DOCUMENT, to, at + strlen(from));
  hk_error err = {0};
  hk_model m;
  assert_int_equal(read_text(text, &m, &err), HK_INPUT);
  if (strstr(err.message, says) == NULL) fail_msg("'%s' does not say '%s'", err.message, says);
  assert_null(m.tensors);
}

static void wrong_documents_are_refused(void **state) {
  (void)state;
  refuse("hocket.model/1", "hocket.model/2", "schema is 'hocket.model/2'");
  refuse("\"blocks\": [", "\"block\": [", "key 'blocks'");
  refuse("\"tensors\": [", "\"tensor\": [", "key 'tensors'");
  refuse("\"micro_batch\": 2", "\"micro_batch\": 0", "key 'micro_batch'");
  refuse("\"seq\": 8", "\"seq\": -1", "key 'seq'");
  refuse("update\": 0.7", "update\": 1.01", "key 'launch_beside_update'");
  refuse("update\": 0.7", "update\": 0.001", "key 'launch_beside_update'");
  refuse("update\": 0.7", "update\": []", "key 'launch_beside_update': expected 1 to 8 entries");
  refuse("update\": 0.7", "update\": [0.7]", "launch_beside_update[0]: expected an object");
  refuse("update\": 0.7", "update\": [{\"threads\": 4}]", "launch_beside_update[0]: key 'share'");
  refuse("update\": 0.7",
         "update\": [{\"threads\": 4, \"share\": 0.7}, {\"threads\": 4, \"share\": 0.7}]",
         "launch_beside_update[1]: key 'threads'");
  refuse("\"forward_flops\": 30", "\"forward_flops\": -1", "blocks[1]: key 'forward_flops'");
  refuse("\"activation_bytes\": 160, ", "", "blocks[0]: key 'activation_bytes'");
  refuse("\"forward_ms\": 1.5", "\"forward_ms\": \"fast\"", "blocks[0]: key 'forward_ms'");
  refuse("\"numel\": 1001", "\"numel\": 0", "tensors[0]: key 'numel'");
  refuse("\"numel\": 37", "\"numel\": 4503599627370496",
         "tensors[2]: numel 4503599627370496: expected at least 1, and fewer than 2^52");
  refuse("\"block\": 2", "\"block\": 3", "tensors[2]: block 3: expected 0 to 2");
  refuse("\"numel\": 1001, \"block\": 0", "\"numel\": 1001, \"block\": 1",
         "tensors[1]: block 0: expected 1 to 2");
  refuse("\"weight_type\": \"fp32\"", "\"weight_type\": \"int8\"",
         "tensors[2]: key 'weight_type': expected \"bf16\", \"fp16\" or \"fp32\", got \"int8\"");
  refuse("\"name\": \"v\", ", "", "tensors[2]: key 'name'");
}

static void tensor_parallelism_and_deepspeed_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model m = read_document();
  hk_job job = ALONE;
  hk_plan plan;
  job.gpus = job.tp = 2;
  assert_int_equal(hk_job_check(&job, &m, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "odd is a list of tensors"));
  assert_int_equal(
      hk_plan_create(&m, &ALONE, HK_RUNTIME_DEEPSPEED, HK_SUBGROUP_SOFT, 400, &plan, &err),
      HK_INPUT);
  assert_non_null(strstr(err.message, "use runtime hocket"));
  hk_model_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_and_blocks),
      cmocka_unit_test(launches_depend_on_the_team),
      cmocka_unit_test(costs_are_in_proportion_to_tokens),
      cmocka_unit_test(bytes_follow_the_types),
      cmocka_unit_test(graph_of_mixed_types),
      cmocka_unit_test(plans_are_self_contained),
      cmocka_unit_test(copies_outlive_each_other),
      cmocka_unit_test(loads_from_a_file),
      cmocka_unit_test(one_block_is_enough),
      cmocka_unit_test(arrays_make_the_same_as_documents),
      cmocka_unit_test(wrong_arrays_are_refused),
      cmocka_unit_test(wrong_documents_are_refused),
      cmocka_unit_test(tensor_parallelism_and_deepspeed_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
