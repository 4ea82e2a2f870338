/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Advice: each suggested job, ranked anew, fits and is as fast as the advice says. Advice finds
 * recomputation although all activations would fit, and sums of gradients that do not fit. */
#include "tests/fixture.h"

#include <math.h>
#include <stdio.h>

#include "sim/advice.h"
#include "sim/checkpoints.h"
#include "sim/nvme.h"
#include "sim/rank.h"

typedef struct {
  hk_model model;
  hk_machine machine;
  hk_job job;
  hk_plan_settings settings;
  hk_ranking_options options;
  hk_ranking ranking;
  hk_advice advice;
} world;

static void rank_state(const world *w, const hk_job *job, hk_optimizer state, hk_overlap overlap,
                       hk_ranking *ranking) {
  hk_error err = {0};
  hk_plan_settings settings = w->settings;
  settings.optimizer = state;
  hk_ranking_options options = w->options;
  settings.overlap = overlap;
  options.quick = true; /* as advice does */
  if (hk_rank(&w->model, &w->machine, job, &settings, &options, ranking, &err) != HK_OK)
    fail_msg("%s", err.message);
}

static void rank_job(const world *w, const hk_job *job, hk_overlap overlap, hk_ranking *ranking) {
  rank_state(w, job, w->settings.optimizer, overlap, ranking);
}

static void load(world *w, const char *model, const char *machine, int micro, int accum) {
  hk_error err = {0};
  char path[512];
  memset(w, 0, sizeof *w);
  snprintf(path, sizeof path, HK_TEST_SHARE "/models/%s.json", model);
  if (hk_model_load(path, &w->model, &err) != HK_OK) fail_msg("%s", err.message);
  snprintf(path, sizeof path, HK_TEST_SHARE "/machines/%s.json", machine);
  if (hk_machine_load(path, &w->machine, &err) != HK_OK) fail_msg("%s", err.message);
  w->options.fixed = HK_POLICY_OPTIONS_NONE;
  w->job = (hk_job){.gpus = (int)w->machine.gpus.value,
                    .nodes = 1,
                    .tp = 1,
                    .micro_batch = micro,
                    .grad_accum = accum,
                    .seq = 1024,
                    .checkpoint_activations = true};
}

static void advise(world *w) {
  hk_error err = {0};
  rank_job(w, &w->job, w->settings.overlap, &w->ranking);
  if (hk_advise(&w->model, &w->machine, &w->job, &w->settings, &w->options, &w->ranking, &w->advice,
                &err) != HK_OK)
    fail_msg("%s", err.message);
}

static void drop(world *w) {
  hk_ranking_free(&w->ranking);
  hk_model_free(&w->model);
  hk_machine_free(&w->machine);
}

/* State on the drives is DeepSpeed's, and a closed form (tests/test_unit_nvme.c). */
static void check_drives(const world *w, const hk_alternative *a) {
  hk_error err = {0};
  hk_forecast forecast;
  hk_nvme nvme;
  if (hk_nvme_forecast(&w->model, &w->machine, &w->job, &w->settings, &forecast, &nvme, &err) !=
      HK_OK)
    fail_msg("%s", err.message);
  assert_true(nvme.fits && forecast.host_short > 0);
  assert_int_equal(a->iteration_ns, nvme.iteration_ns);
  hk_forecast_free(&forecast);
}

/* Layer inputs in host memory are a closed form, too (tests/test_unit_checkpoints.c). */
static void check_inputs(const world *w, const hk_alternative *a) {
  world other = *w;
  hk_ranking ranking = {0};
  other.machine =
      hk_checkpoints_machine(&w->machine, &a->job, hk_checkpoints_moved(&w->model, &a->job));
  rank_job(&other, &a->job, w->settings.overlap, &ranking);
  assert_true(ranking.n_fit > 0);
  const hk_checkpoints c = hk_checkpoints_of(&ranking.forecasts[0], &w->machine);
  assert_int_equal(a->iteration_ns, c.iteration_ns);
  assert_true(c.iteration_ns >= ranking.forecasts[0].iteration_ns);
  hk_ranking_free(&ranking);
}

/* Ranks every suggestion anew. */
static void check_promises(const world *w) {
  const hk_advice *advice = &w->advice;
  for (int i = 0; i < advice->n; i++) {
    const hk_alternative *a = &advice->list[i];
    hk_ranking again = {0};
    char text[256];
    world other = *w;
    const hk_frozen_spec adapters = {.rank = a->lora, .bytes = 2};
    hk_error err = {0};
    if (a->closed_form) {
      (strstr(a->options, "nvme") ? check_drives : check_inputs)(w, a);
      continue;
    }
    if (a->lora > 0 &&
        (hk_model_from_config(w->model.config, w->model.name, &other.model, &err) != HK_OK ||
         hk_model_freeze(&other.model, &adapters, &err) != HK_OK))
      fail_msg("%s", err.message);
    rank_state(&other, &a->job, a->state, a->overlap, &again);
    if (a->lora > 0) hk_model_free(&other.model);
    assert_true(again.n_fit > 0);
    assert_int_equal(again.forecasts[0].plan.optimizer, a->state);
    assert_true(again.forecasts[0].tokens_per_s == a->tokens_per_s);
    if (w->ranking.n_fit > 0) {
      assert_true(a->gain >= 1.02);
      assert_true(fabs(a->gain - a->tokens_per_s / w->ranking.forecasts[0].tokens_per_s) < 1e-9);
    }
    assert_non_null(strstr(hk_alternative_text(a, text, sizeof text), a->options));
    hk_ranking_free(&again);
  }
}

/* GPU memory has room for all activations. Recomputing them adds one forward pass to the three
 * units of forward and backward: a third. */
static void test_recomputation(void **state) {
  (void)state;
  world w;
  load(&w, "qwen2.5-7b", "h200-node-16c", 1, 4);
  advise(&w);
  assert_true(w.advice.n > 0);
  const hk_alternative *first = &w.advice.list[0];
  assert_non_null(strstr(first->options, "--checkpoint-activations no"));
  assert_true(first->batch == 1 && first->gain > 1.2);
  assert_int_equal(first->job.micro_batch * first->job.grad_accum, 4);
  check_promises(&w);
  drop(&w);
}

/* Without recomputation the job would be over 5 % faster but does not fit; check_promises fails if
 * advice suggests it. */
static void test_room(void **state) {
  (void)state;
  world w;
  load(&w, "qwen2.5-7b", "h200-node-16c", 32, 1);
  w.options.only_policy = &hk_policy_zero_offload;
  w.machine.host_memory.value = 512e9;
  advise(&w);
  assert_true(w.ranking.n_fit > 0);
  hk_ranking kept = {0};
  hk_job job = w.job;
  job.checkpoint_activations = false;
  rank_job(&w, &job, HK_OVERLAP_NONE, &kept);
  assert_true(kept.n_fit == 0);
  assert_true(kept.forecasts[0].tokens_per_s > 1.05 * w.ranking.forecasts[0].tokens_per_s);
  hk_ranking_free(&kept);
  check_promises(&w);
  drop(&w);
}

/* The sums of 8 micro-steps do not fit on the GPU: advice suggests one micro-step before it
 * suggests more nodes. */
static void test_accumulation(void **state) {
  (void)state;
  const hk_accumulate on_gpu = HK_ACCUMULATE_GPU;
  world w;
  load(&w, "llama-3-8b", "workstation-rtx4090-ddr5", 1, 8);
  w.settings.accumulate = &on_gpu;
  advise(&w);
  assert_int_equal(w.ranking.n_fit, 0);
  assert_non_null(strstr(w.ranking.forecasts[0].advice,
                         "--accumulate host or --grad-accum 1 (sums of gradients take 15.0 GiB)"));
  bool fewer = false;
  for (int i = 0; i < w.advice.n; i++) {
    if (strstr(w.advice.list[i].options, "--nodes")) break;
    fewer = fewer || strcmp(w.advice.list[i].options, "--grad-accum 1") == 0;
  }
  assert_true(fewer);
  check_promises(&w);
  drop(&w);
}

/* Nodes are advised as few as fit, not twice and four times as many. On three nodes the GPUs hold
 * the part of the state that the hosts do not; all of it in host memory would need five. */
static void test_fewest_nodes(void **state) {
  (void)state;
  world w;
  load(&w, "mixtral-8x7b", "h200-16c", 1, 1);
  advise(&w);
  int nodes = 0;
  for (int i = 0; i < w.advice.n && nodes == 0; i++)
    if (strncmp(w.advice.list[i].options, "--nodes ", 8) == 0) nodes = w.advice.list[i].job.nodes;
  assert_int_equal(nodes, 3);
  check_promises(&w);
  hk_ranking fewer;
  hk_job job = w.job;
  job.nodes = 2;
  rank_job(&w, &job, HK_OVERLAP_NONE, &fewer);
  assert_int_equal(fewer.n_fit, 0);
  hk_ranking_free(&fewer);
  drop(&w);
}

/* Host memory is too small. Tensor parallelism does not change what a node's ranks need together,
 * so the only advice is more nodes. State on the drives would leave 26 GB of weights on 24 GB. */
static void test_more_gpus(void **state) {
  (void)state;
  world w;
  load(&w, "llama-2-13b", "workstation-rtx4090-ddr5", 1, 1);
  advise(&w);
  assert_int_equal(w.ranking.n_fit, 0);
  assert_int_equal(w.advice.n, 1);
  assert_int_equal(strncmp(w.advice.list[0].options, "--nodes ", 8), 0);
  assert_true(w.advice.list[0].gain == 0);
  check_promises(&w);
  /* hk_ranking_set_advice replaces the advice in the reason and in the forecast. */
  hk_ranking_set_advice(&w.ranking, "try this");
  assert_non_null(strstr(w.ranking.reason, "; try this"));
  assert_string_equal(w.ranking.forecasts[0].advice, "try this");
  drop(&w);
}

/* Of eight equal jobs at once the first advice is the most that fit, if not even one does, none. */
static void test_fewer_jobs(void **state) {
  (void)state;
  const double memory[] = {1100e9, 700e9, 500e9, 330e9, 200e9, 150e9};
  int last = 8;
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
    world w;
    load(&w, "llama-2-13b", "dgx-h100-8x80gb", 1, 1);
    w.job.gpus = 1;
    w.job.jobs = 8;
    w.machine.host_memory.value = memory[i];
    w.options.only_policy = &hk_policy_twinflow;
    advise(&w);
    assert_int_equal(w.ranking.n_fit, 0);
    const hk_alternative *first = &w.advice.list[0];
    const int jobs = strncmp(first->options, "--jobs", 6) == 0 ? first->job.jobs : 0;
    char expected[32], text[256];
    snprintf(expected, sizeof expected, "--jobs %d --gpus 1", jobs);
    hk_ranking more = {0};
    hk_job job = w.job;
    job.jobs = jobs + 1;
    rank_job(&w, &job, HK_OVERLAP_NONE, &more);
    assert_int_equal(more.n_fit, 0);
    hk_ranking_free(&more);
    assert_true(jobs < last && (jobs > 0) == (memory[i] > 180e9));
    if (jobs > 0) {
      assert_string_equal(first->options, expected);
      assert_true(first->batch == 1 && first->job.gpus == 1);
      assert_non_null(
          strstr(hk_alternative_text(first, text, sizeof text), " --gpus 1, the most that fit: "));
    }
    last = jobs;
    check_promises(&w);
    drop(&w);
  }
}

/* The first state that fits is the most exact one: those before it do not fit. A state that rounds
 * says so. */
static void fits_in(double host_memory, hk_optimizer expected) {
  static const hk_optimizer states[] = {HK_OPTIMIZER_SPLIT, HK_OPTIMIZER_BF16,
                                        HK_OPTIMIZER_BF16_SPLIT, HK_OPTIMIZER_8BIT_SPLIT};
  world w;
  load(&w, "llama-2-7b", "h200-node-16c", 1, 1);
  w.options.only_policy = &hk_policy_zero_offload;
  w.machine.host_memory.value = host_memory;
  advise(&w);
  assert_int_equal(w.ranking.n_fit, 0);
  int at = w.advice.n - 1;
  while (at >= 0 && strncmp(w.advice.list[at].options, "--state ", 8) != 0) at--;
  assert_true(at >= 0);
  const hk_alternative *found = &w.advice.list[at];
  assert_int_equal(found->state, expected);
  assert_string_equal(found->options + 8, hk_optimizer_names[expected]);
  char text[256];
  const bool says =
      strstr(hk_alternative_text(found, text, sizeof text),
             expected == HK_OPTIMIZER_8BIT_SPLIT ? "rounded to 8 bits" : "rounded to bf16") != NULL;
  assert_true(says == (expected != HK_OPTIMIZER_SPLIT));
  for (int i = 0; states[i] != expected; i++) {
    hk_ranking other = {0};
    rank_state(&w, &w.job, states[i], w.settings.overlap, &other);
    assert_int_equal(other.n_fit, 0);
    hk_ranking_free(&other);
  }
  check_promises(&w);
  drop(&w);
}

/* 6.74 G parameters with 16, 14, 12, 10 and 8 bytes of state, weight and gradient each: 108, 94,
 * 81, 67 and 54 GB. */
static void test_state_that_fits(void **state) {
  (void)state;
  world w;
  load(&w, "llama-2-7b", "h200-node-16c", 1, 1);
  const double reserved = w.machine.host_reserved.value;
  drop(&w);
  fits_in(reserved + 100e9, HK_OPTIMIZER_SPLIT);
  fits_in(reserved + 88e9, HK_OPTIMIZER_BF16);
  fits_in(reserved + 74e9, HK_OPTIMIZER_BF16_SPLIT);
  fits_in(reserved + 60e9, HK_OPTIMIZER_8BIT_SPLIT);
}

/* All state on the CPU: fewer bytes are faster, and advice says by how much. */
static void test_state_that_is_faster(void **state) {
  (void)state;
  world w;
  load(&w, "qwen2.5-7b", "h200-node-16c", 1, 1);
  w.options.only_policy = &hk_policy_zero_offload;
  w.machine.host_memory.value = 512e9;
  advise(&w);
  assert_true(w.ranking.n_fit > 0);
  bool said = false;
  for (int i = 0; i < w.advice.n; i++)
    said = said || (w.advice.list[i].state == HK_OPTIMIZER_BF16_SPLIT &&
                    w.advice.list[i].gain > 1.1 && w.advice.list[i].rounds);
  assert_true(said);
  check_promises(&w);
  drop(&w);
  /* Nothing smaller is named only because it is faster. */
  load(&w, "qwen2.5-7b", "h200-node-16c", 1, 1);
  w.options.only_policy = &hk_policy_zero_offload;
  w.machine.host_memory.value = 512e9;
  w.settings.optimizer = HK_OPTIMIZER_BF16_SPLIT;
  advise(&w);
  for (int i = 0; i < w.advice.n; i++) {
    assert_null(strstr(w.advice.list[i].options, "--state"));
    assert_int_equal(w.advice.list[i].state, HK_OPTIMIZER_BF16_SPLIT);
  }
  drop(&w);
}

/* 8.2 G parameters, 64 GB of host memory, a GPU of 32 GB: state of 8 bits and adapters fit, and are
 * named before a second machine. */
static void test_small_host(void **state) {
  (void)state;
  world w;
  load(&w, "qwen3-8b", "workstation-rtx5090-ddr5", 1, 1);
  w.machine.host_memory.value = 64e9;
  advise(&w);
  assert_int_equal(w.ranking.n_fit, 0);
  assert_true(w.advice.n >= 3);
  assert_string_equal(w.advice.list[0].options, "--state 8bit+split");
  assert_string_equal(w.advice.list[1].options, "--lora 16");
  assert_string_equal(w.advice.list[2].options, "--nodes 2");
  assert_string_equal(w.advice.list[3].options, "DeepSpeed with offload_optimizer on nvme");
  check_promises(&w);
  drop(&w);
}

/* Sequences of 8k tokens. Only the logits (128,256 x 6 bytes a token) are too large for 24 GB of
 * GPU memory: the loss in slices fits and keeps the batch. */
static void test_loss(void **state) {
  (void)state;
  world w;
  load(&w, "llama-3-8b", "workstation-rtx4090-ddr5", 1, 1);
  w.job.seq = 8192;
  advise(&w);
  assert_int_equal(w.ranking.n_fit, 0);
  assert_true(w.advice.n > 0);
  assert_string_equal(w.advice.list[0].options, "--loss-chunks 16");
  assert_true(w.advice.list[0].batch == 1);
  check_promises(&w);
  drop(&w);
}

/* Sequences of 16k tokens, the loss in slices: 1.9 GiB are missing on 24 GB, and the inputs of 30
 * of 32 layers, 128 MiB each, are 3.75 GiB. */
static void test_layer_inputs(void **state) {
  (void)state;
  world w;
  load(&w, "llama-3-8b", "workstation-rtx4090-ddr5", 1, 1);
  w.job.seq = 16384;
  w.job.loss_chunks = 16;
  advise(&w);
  assert_int_equal(w.ranking.n_fit, 0);
  assert_true(w.advice.n > 0);
  const hk_alternative *last = &w.advice.list[w.advice.n - 1];
  assert_true(last->closed_form && last->batch == 1);
  assert_non_null(strstr(last->options, "layer inputs in host memory (Unsloth's), 3.75 GiB a GPU"));
  check_promises(&w);
  drop(&w);
}

/* A plan that a search found has no policy's name; the overlap is suggested as for others. */
static void test_overlap_after_a_search(void **state) {
  (void)state;
  hk_error err = {0};
  world w;
  bool overlap = false;
  load(&w, "qwen2.5-14b", "h200-16c", 1, 1);
  if (hk_rank(&w.model, &w.machine, &w.job, &w.settings, &w.options, &w.ranking, &err) != HK_OK ||
      hk_advise(&w.model, &w.machine, &w.job, &w.settings, &w.options, &w.ranking, &w.advice,
                &err) != HK_OK)
    fail_msg("%s", err.message);
  assert_string_equal(w.ranking.forecasts[0].plan.policy, "searched");
  for (int i = 0; i < w.advice.n; i++)
    overlap = overlap || w.advice.list[i].overlap == HK_OVERLAP_BOTH;
  assert_true(overlap);
  drop(&w);
}

/* With all state on the host the update dominates: advice suggests larger batches and overlap. */
static void test_batch(void **state) {
  (void)state;
  world w;
  load(&w, "llama-2-7b", "polaris-a100-4x40gb", 1, 1);
  w.settings.gpu_memory = &(hk_bytes){0}; /* no state on the GPU */
  advise(&w);
  bool larger = false, overlap = false;
  for (int i = 0; i < w.advice.n; i++) {
    larger = larger || w.advice.list[i].batch > 1;
    overlap = overlap || w.advice.list[i].overlap == HK_OVERLAP_BOTH;
  }
  assert_true(larger && overlap);
  assert_true(w.advice.rankings > 3 && w.advice.rankings < 26);
  check_promises(&w);
  drop(&w);
}

int main(void) {
  const struct CMUnitTest everywhere[] = {
      cmocka_unit_test(test_layer_inputs),
      cmocka_unit_test(test_small_host),
  };
  const struct CMUnitTest in_release[] = {
      cmocka_unit_test(test_recomputation),
      cmocka_unit_test(test_room),
      cmocka_unit_test(test_accumulation),
      cmocka_unit_test(test_fewest_nodes),
      cmocka_unit_test(test_more_gpus),
      cmocka_unit_test(test_fewer_jobs),
      cmocka_unit_test(test_loss),
      cmocka_unit_test(test_batch),
      cmocka_unit_test(test_overlap_after_a_search),
      cmocka_unit_test(test_state_that_fits),
      cmocka_unit_test(test_state_that_is_faster),
  };
  const int failed = cmocka_run_group_tests(everywhere, NULL, NULL);
  return is_sanitized() ? failed : failed + cmocka_run_group_tests(in_release, NULL, NULL);
}
