/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Published runs of Megatron-LM with tensor, pipeline and sequence parallelism (megatron-runs.csv),
 * and of Megatron-Core with expert parallelism, too (expert-runs.csv).
 * Two rates of a DGX A100 are fitted to the rows of each paper that are not held out and have tp 8:
 * matrix products, and NVLink. The held-out rows with a pipeline are predicted with them. Beside
 * them stand the profile's own rates, and what Calculon says (data/README.md). */
#include "tests/fixture.h"

#include <math.h>
#include <stdio.h>

#include "core/graph/graph.h"
#include "sim/rank.h"
#include "sim/sim.h"

#define ROWS    24
#define PAPERS  2
#define SEQ     2048
#define VOCAB   51200
#define EXPERTS 16       /* rows with experts, of a third paper */
#define PEAK    989.5e12 /* FLOP/s, of which that paper states shares */

typedef struct {
  int row, held_out, paper, layers, hidden, heads, tp, pp, chunks, gpus, batch, micro_batch;
  int full, sequence; /* everything is recomputed; sequence parallel */
  char model[32];     /* with experts; "": GPT */
  int ep;
  double seconds;  /* measured */
  double calculon; /* predicted by Calculon */
} run;

/* A paper states teraFLOP/s a GPU by its equation 3, which counts recomputation (arXiv 2104.04473,
 * section 5.1). */
static double seconds_of(const run *r, double tflops) {
  const double h = r->hidden;
  const double flops = 96.0 * r->batch * SEQ * r->layers * h * h *
                       (1 + SEQ / (6 * h) + VOCAB / (16 * r->layers * h));
  return flops / (tflops * 1e12 * r->gpus);
}

/* A row of megatron-runs.csv. */
static void read_row(const char *line, run *r) {
  char paper[32], recompute[16];
  int at = 0;
  assert_int_equal(
      sscanf(line, "%d,%d,%31[^,],%d,%d,%d,%d,%d,%d,%d,%d,%d,%15[^,],%d,%n", &r->row, &r->held_out,
             paper, &r->layers, &r->hidden, &r->heads, &r->tp, &r->pp, &r->chunks, &r->gpus,
             &r->batch, &r->micro_batch, recompute, &r->sequence, &at),
      14);
  const char *figures = line + at;
  r->paper = strncmp(paper, "2205", 4) == 0;
  r->full = strcmp(recompute, "full") == 0;
  r->seconds = figures[0] == ',' ? atof(figures + 1) : seconds_of(r, atof(figures));
  r->calculon = atof(strrchr(line, ',') + 1);
}

/* A model with experts. G8T8: Mixtral's experts in eight parts each, of which a token takes eight
 * (arXiv 2504.14960, section 4.1). */
static hk_model experts_of(const run *r) {
  hk_error err = {0};
  hk_model model;
  if (strcmp(r->model, "mixtral-8x22b-g8t8") != 0) {
    must(hk_model_load(r->model, &model, &err), &err);
    return model;
  }
  return model_of(
      "{\"architectures\": [\"MixtralForCausalLM\"], \"num_hidden_layers\": 56, "
      "\"hidden_size\": 6144, \"intermediate_size\": 2048, \"num_attention_heads\": 48, "
      "\"num_key_value_heads\": 8, \"vocab_size\": 32768, \"max_position_embeddings\": 65536, "
      "\"tie_word_embeddings\": false, \"num_local_experts\": 64, \"num_experts_per_tok\": 8}",
      r->model);
}

/* MFU counts three times forward's products, attention in full. */
static double seconds_of_share(const run *r, double share) {
  double flops = 0;
  hk_model model = experts_of(r);
  for (int block = HK_BLOCK_EMBED; block <= (int)model.layers; block++)
    flops += 3 * hk_model_forward_flops(&model, block, r->batch, 2 * SEQ, 1);
  hk_model_free(&model);
  return flops / (share * PEAK * r->gpus);
}

/* A row of expert-runs.csv. */
static void read_expert_row(const char *line, run *r) {
  double percent = 0;
  *r = (run){.paper = PAPERS, .micro_batch = 1, .sequence = 1};
  assert_int_equal(
      sscanf(line, "%d,%d,%*[^,],%31[^,],%d,%d,%d,%d,%d,%d,%lf", &r->row, &r->held_out, r->model,
             &r->gpus, &r->batch, &r->tp, &r->pp, &r->ep, &r->chunks, &percent),
      10);
  r->seconds = seconds_of_share(r, percent / 100);
}

static void load(const char *path, void (*read)(const char *line, run *r), int n, run *rows) {
  char line[256];
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  assert_non_null(fgets(line, sizeof line, f));
  for (int i = 0; i < n; i++) {
    rows[i] = (run){0};
    assert_non_null(fgets(line, sizeof line, f));
    read(line, &rows[i]);
    assert_int_equal(rows[i].row, i + 1);
    assert_int_equal(rows[i].held_out, rows[i].row % 2 == 0); /* the rule, whatever the results */
  }
  assert_null(fgets(line, sizeof line, f));
  fclose(f);
}

/* -- hocket ------------------------------------------------------------------------------------ */

/* An iteration in seconds with products and NVLink `products` and `links` times as slow. */
static double simulate(const run *r, double products, double links) {
  hk_error err = {0};
  hk_machine machine;
  hk_plan plan;
  hk_graph graph;
  hk_result result;
  char config[300];
  snprintf(
      config, sizeof config,
      "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": %d, \"n_embd\": %d, \"n_head\": "
      "%d, \"n_positions\": %d, \"vocab_size\": %d}",
      r->layers, r->hidden, r->heads, SEQ, VOCAB);
  const bool experts = r->ep > 0;
  hk_model model = experts ? experts_of(r) : model_of(config, "gpt");
  must(hk_model_stage(&model, r->pp, &err), &err);
  must(hk_model_divide_experts(&model, r->ep, &err), &err);
  must(hk_machine_load(experts ? "dgx-h100-8x80gb" : "dgx-a100-8x80gb", &machine, &err), &err);
  machine.gpu_efficiency.value /= products;
  machine.gpu_backward_efficiency.value /= products;
  machine.nvlink.value /= links;
  const hk_job job = {.gpus = 8,
                      .nodes = r->gpus / 8,
                      .tp = r->tp,
                      .pp = r->pp,
                      .chunks = r->chunks,
                      .micro_batch = r->micro_batch,
                      .grad_accum = r->batch / (r->gpus / r->tp / r->pp) / r->micro_batch,
                      .seq = experts ? 2 * SEQ : SEQ,
                      .ep = r->ep,
                      .checkpoint_activations = r->full,
                      .sequence_parallel = r->sequence};
  const hk_candidate candidate = {&hk_policy_gpu_only, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {0};
  must(hk_candidate_plan(&candidate, &model, &machine, &job, &settings, &plan, &err), &err);
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
  must(hk_simulate(&graph, &machine, NULL, &result, &err), &err);
  const double seconds = (double)result.timeline.makespan / 1e9;
  hk_result_free(&result);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  hk_machine_free(&machine);
  hk_model_free(&model);
  return seconds;
}

/* Least squares of relative errors. Computation and all-reduces follow each other, so an iteration
 * is linear in how slow each is: a x + b y + c. `without`: of this model no row is used; "": of
 * all. */
static void fit(const run *rows, int n, int paper, const char *without, double *products,
                double *links) {
  double aa = 0, ab = 0, bb = 0, ad = 0, bd = 0;
  for (int i = 0; i < n; i++) {
    const run *r = &rows[i];
    if (r->held_out || r->paper != paper || (r->ep == 0 && r->tp != 8)) continue;
    if (r->ep > 0 && strcmp(r->model, without) == 0) continue;
    const double one = simulate(r, 1, 1);
    const double a = (simulate(r, 2, 1) - one) / r->seconds;
    const double b = (simulate(r, 1, 2) - one) / r->seconds;
    const double d = 1 - (one / r->seconds - a - b);
    aa += a * a, ab += a * b, bb += b * b, ad += a * d, bd += b * d;
  }
  const double det = aa * bb - ab * ab;
  assert_true(det > 0);
  *products = (ad * bb - bd * ab) / det;
  *links = (bd * aa - ad * ab) / det;
  print_message("paper %d: products at %.2f and NVLink at %.2f of the profile's rates\n", paper,
                1 / *products, 1 / *links);
  assert_true(*products > 0 && *links > 0);
}

/* -- The comparison ---------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, by_size);
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void held_out_rows_are_predicted(void **state) {
  (void)state;
  run rows[ROWS];
  double fitted[ROWS], shipped[ROWS], theirs[ROWS], products[PAPERS], links[PAPERS];
  int n = 0;
  load(HK_TEST_DATA "/megatron-runs.csv", read_row, ROWS, rows);
  for (int paper = 0; paper < PAPERS; paper++)
    fit(rows, ROWS, paper, "", &products[paper], &links[paper]);
  for (int i = 0; i < ROWS; i++) {
    const run *r = &rows[i];
    if (!r->held_out) continue;
    const double seconds = simulate(r, products[r->paper], links[r->paper]);
    const double profile = simulate(r, 1, 1);
    print_message(
        "row %2d, hidden %5d, %4d GPUs, tp %d, pp %2d: %6.2f s measured, %6.2f (%+5.1f %%), with "
        "the profile's rates %+5.1f %%, Calculon %+5.1f %%\n",
        r->row, r->hidden, r->gpus, r->tp, r->pp, r->seconds, seconds,
        100 * (seconds / r->seconds - 1), 100 * (profile / r->seconds - 1),
        100 * (r->calculon / r->seconds - 1));
    if (r->pp == 1) continue;
    fitted[n] = 100 * fabs(seconds / r->seconds - 1);
    shipped[n] = 100 * fabs(profile / r->seconds - 1);
    theirs[n++] = 100 * fabs(r->calculon / r->seconds - 1);
  }
  const double middle = median(fitted, n), profile = median(shipped, n), other = median(theirs, n);
  print_message(
      "%d held-out rows with a pipeline, median and worst error: %.1f and %.1f %%; with the "
      "profile's rates %.1f and %.1f %%; Calculon %.1f and %.1f %%\n",
      n, middle, fitted[n - 1], profile, shipped[n - 1], other, theirs[n - 1]);
  /* Half a point above what is reached. */
  assert_int_equal(n, 9);
  assert_true(middle <= 4 && fitted[n - 1] <= 8.9);
}

/* Rates that are fitted to all odd rows, and to those of the other two models alone. */
static void held_out_rows_with_experts_are_predicted(void **state) {
  (void)state;
  run rows[EXPERTS];
  double fitted[EXPERTS], others[EXPERTS], shipped[EXPERTS];
  double products, links, other_products = 1, other_links = 1;
  const char *without = "";
  int n = 0;
  load(HK_TEST_DATA "/expert-runs.csv", read_expert_row, EXPERTS, rows);
  fit(rows, EXPERTS, PAPERS, without, &products, &links);
  for (int i = 0; i < EXPERTS; i++) {
    const run *r = &rows[i];
    if (!r->held_out) continue;
    if (strcmp(r->model, without) != 0) {
      without = r->model;
      fit(rows, EXPERTS, PAPERS, without, &other_products, &other_links);
    }
    const double all = simulate(r, products, links) / r->seconds - 1;
    const double two = simulate(r, other_products, other_links) / r->seconds - 1;
    const double profile = simulate(r, 1, 1) / r->seconds - 1;
    print_message(
        "row %2d, %s, %4d GPUs, tp %d, pp %d, ep %d: %5.2f s measured, %+5.1f %%; fitted to other "
        "models %+5.1f %%; with the profile's rates %+5.1f %%\n",
        r->row, r->model, r->gpus, r->tp, r->pp, r->ep, r->seconds, 100 * all, 100 * two,
        100 * profile);
    fitted[n] = 100 * fabs(all);
    others[n] = 100 * fabs(two);
    shipped[n++] = 100 * fabs(profile);
  }
  const double middle = median(fitted, n), two = median(others, n), profile = median(shipped, n);
  print_message(
      "%d held-out rows with experts, median and worst error: %.1f and %.1f %%; fitted to other "
      "models %.1f and %.1f %%; with the profile's rates %.1f and %.1f %%\n",
      n, middle, fitted[n - 1], two, others[n - 1], profile, shipped[n - 1]);
  /* Half a point above what is reached. */
  assert_int_equal(n, EXPERTS / 2);
  assert_true(middle <= 2.2 && fitted[n - 1] <= 3.3);
  assert_true(two <= 3 && others[n - 1] <= 6.7);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(held_out_rows_are_predicted),
                                     cmocka_unit_test(held_out_rows_with_experts_are_predicted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
