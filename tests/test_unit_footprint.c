/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Memory footprint of a job without a machine: parts add up, counts are exact, more tokens never
 * need less, and the simulator's peaks lie within the footprint's range. */
#include <stdio.h>

#include "sim/footprint.h"
#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/fixture.h"

static hk_model load(const char *name) {
  hk_model model;
  hk_error err = {0};
  must(hk_model_load(name, &model, &err), &err);
  return model;
}

static hk_job job_of(int gpus) {
  return (hk_job){.gpus = gpus,
                  .nodes = 1,
                  .tp = 1,
                  .micro_batch = 1,
                  .grad_accum = 1,
                  .seq = 1024,
                  .checkpoint_activations = true};
}

static void make(const hk_model *model, const hk_job *job, hk_footprint *ways) {
  hk_error err = {0};
  must(hk_footprint_make(model, job, HK_OPTIMIZER_FP32, HK_ACCUMULATE_GPU, ways, &err), &err);
  for (int way = 0; way < HK_WAY_COUNT; way++) {
    const hk_footprint *f = &ways[way];
    assert_true(f->rest > 0);
    assert_int_equal(f->gpu, f->weights + f->gradients + f->optimizer + f->rest);
    assert_int_equal(f->ranks, hk_way_is_divided((hk_way)way) ? hk_job_dp(job) : 1);
  }
}

/* GPT-2 has 124,439,808 parameters: 2 bytes of weight, 2 of gradient, 12 of state each. */
static void counts_are_exact(void **state) {
  (void)state;
  const int64_t n = 124439808;
  hk_model model = load("gpt2");
  hk_job job = job_of(4);
  hk_footprint ways[HK_WAY_COUNT];
  make(&model, &job, ways);
  assert_int_equal(ways[HK_WAY_GPU].weights, 2 * n);
  assert_int_equal(ways[HK_WAY_GPU].gradients, 2 * n);
  assert_int_equal(ways[HK_WAY_GPU].optimizer, 12 * n);
  assert_int_equal(ways[HK_WAY_GPU].host, 0);
  /* State, gradients that arrive, and new weights. */
  assert_int_equal(ways[HK_WAY_OFFLOAD].host, 16 * n);
  assert_int_equal(ways[HK_WAY_OFFLOAD].weights, 2 * n);
  assert_int_equal(ways[HK_WAY_OFFLOAD].optimizer + ways[HK_WAY_OFFLOAD].gradients, 0);
  /* Shares are rounded up, tensor by tensor: at most a parameter of each of 148 tensors. */
  const hk_bytes share = ways[HK_WAY_ZERO3].optimizer - 12 * n / 4;
  assert_true(share >= 0 && share < 12 * 148);
  assert_int_equal(ways[HK_WAY_ZERO1].weights, 2 * n);
  assert_int_equal(ways[HK_WAY_ZERO1].gradients, 2 * n);
  assert_int_equal(ways[HK_WAY_ZERO1].gpu,
                   ways[HK_WAY_GPU].gpu - 12 * n + ways[HK_WAY_ZERO3].optimizer);
  assert_int_equal(ways[HK_WAY_ZERO2].gradients, ways[HK_WAY_ZERO3].gradients);
  hk_model_free(&model);
}

/* 64 tokens: two layers keep their input of 64 values of 2 bytes; the head keeps two such inputs
 * and fp32 logits of a vocabulary of 256. */
static void activations_by_hand(void **state) {
  (void)state;
  hk_model model = tiny_model(2);
  hk_job job = job_of(1);
  job.seq = 64;
  const hk_activations a = hk_activations_of(&model, &job);
  assert_int_equal(a.saved, 64 * (2 * 2 * 64 + 2 * 2 * 64 + 4 * 256));
  assert_true(a.workspace > 0);
  job.checkpoint_activations = false;
  assert_true(hk_activations_of(&model, &job).saved > a.saved);
  hk_model_free(&model);
}

static void dividing_more_needs_less(void **state) {
  (void)state;
  hk_model model = load("llama-2-7b");
  hk_footprint ways[HK_WAY_COUNT], more[HK_WAY_COUNT];
  hk_job job = job_of(8);
  make(&model, &job, ways);
  assert_true(ways[HK_WAY_GPU].gpu > ways[HK_WAY_ZERO1].gpu);
  assert_true(ways[HK_WAY_ZERO1].gpu > ways[HK_WAY_ZERO2].gpu);
  assert_true(ways[HK_WAY_ZERO2].gpu > ways[HK_WAY_ZERO3].gpu);
  assert_true(ways[HK_WAY_ZERO3].gpu > ways[HK_WAY_ZERO3_OFFLOAD].gpu);
  job.gpus = 16;
  make(&model, &job, more);
  for (int way = 0; way < HK_WAY_COUNT; way++) {
    if (hk_way_is_divided((hk_way)way))
      assert_true(more[way].gpu < ways[way].gpu);
    else
      assert_int_equal(more[way].gpu, ways[way].gpu);
  }
  /* One rank has nothing to divide. */
  job.gpus = 1;
  make(&model, &job, ways);
  assert_int_equal(ways[HK_WAY_ZERO1].gpu, ways[HK_WAY_GPU].gpu);
  assert_int_equal(ways[HK_WAY_ZERO2].gpu, ways[HK_WAY_GPU].gpu);
  assert_int_equal(ways[HK_WAY_ZERO3].gpu, ways[HK_WAY_GPU].gpu);
  hk_model_free(&model);
}

static void more_tokens_never_need_less(void **state) {
  (void)state;
  hk_model model = load("qwen2.5-7b");
  hk_footprint last[HK_WAY_COUNT] = {0}, ways[HK_WAY_COUNT];
  for (int micro_batch = 1; micro_batch <= 64; micro_batch *= 2) {
    for (int seq = 512; seq <= 8192; seq *= 4) {
      hk_job job = job_of(2);
      job.micro_batch = micro_batch;
      job.seq = seq;
      make(&model, &job, ways);
      for (int way = 0; way < HK_WAY_COUNT && seq > 512; way++)
        assert_true(ways[way].gpu >= last[way].gpu && ways[way].host == last[way].host);
      memcpy(last, ways, sizeof last);
      job.checkpoint_activations = false;
      make(&model, &job, ways);
      for (int way = 0; way < HK_WAY_COUNT; way++) assert_true(ways[way].gpu >= last[way].gpu);
    }
  }
  hk_model_free(&model);
}

static hk_memory_report simulated_with(const hk_model *model, const hk_machine *machine,
                                       const hk_job *job, const hk_policy *policy,
                                       const hk_accumulate *accumulate) {
  hk_error err = {0};
  hk_plan plan;
  hk_forecast forecast;
  const hk_plan_settings settings = {.accumulate = accumulate};
  const hk_candidate candidate = {policy, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&candidate, model, machine, job, &settings, &plan, &err), &err);
  must(hk_forecast_make(&plan, machine, NULL, &forecast, &err), &err);
  const hk_memory_report memory = forecast.result.memory;
  hk_forecast_free(&forecast);
  return memory;
}

static hk_memory_report simulated(const hk_model *model, const hk_machine *machine,
                                  const hk_job *job, const hk_policy *policy) {
  return simulated_with(model, machine, job, policy, NULL);
}

static int64_t largest_block(const hk_model *model) {
  int64_t largest = 0;
  for (int block = HK_BLOCK_EMBED; block <= (int)model->layers; block++)
    largest = hk_max(largest, hk_model_block_parameters(model, block, 1));
  return largest;
}

/* Simulated on one and eight H100s: equal host memory, GPU peaks within the footprint's range. On
 * one GPU whose gradients stay (gpu-only, streamed) the peak equals the upper end. On eight, a
 * block may be gathered later than the footprint's lower end assumes. */
static void the_simulator_agrees(void **state) {
  (void)state;
  static const char *const names[] = {"gpt2", "llama-2-7b", "qwen2.5-7b", "dos-20b"};
  static const struct {
    const hk_policy *policy;
    hk_way alone, divided;
  } cases[] = {{&hk_policy_gpu_only, HK_WAY_GPU, HK_WAY_ZERO3},
               {&hk_policy_zero_offload, HK_WAY_OFFLOAD, HK_WAY_ZERO3_OFFLOAD},
               {&hk_policy_streamed, HK_WAY_STREAM, HK_WAY_ZERO3_STREAM}};
  hk_error err = {0};
  hk_machine machine;
  must(hk_machine_load("dgx-h100-8x80gb", &machine, &err), &err);
  for (size_t i = 0; i < 4 * 2 * 3; i++) {
    hk_model model = load(names[i / 6]);
    const int gpus = i / 3 % 2 ? 8 : 1;
    hk_job job = job_of(gpus);
    hk_footprint ways[HK_WAY_COUNT];
    make(&model, &job, ways);
    const hk_memory_report m = simulated(&model, &machine, &job, cases[i % 3].policy);
    const hk_footprint *f = &ways[gpus > 1 ? cases[i % 3].divided : cases[i % 3].alone];
    print_message("%s on %d, %s: %.2f to %.2f GiB, simulated %.2f\n", names[i / 6], gpus,
                  cases[i % 3].policy->name, (double)f->gpu_least / 0x1p30, (double)f->gpu / 0x1p30,
                  (double)m.peak / 0x1p30);
    const hk_bytes early = gpus > 1 ? 2 * largest_block(&model) : 0;
    assert_true(m.peak >= f->gpu_least - early && m.peak <= f->gpu);
    assert_int_equal(f->host, m.host_peak);
    if (gpus == 1 && i % 3 != 1) assert_int_equal(f->gpu, m.peak);
    hk_model_free(&model);
  }
  hk_machine_free(&machine);
}

/* Four micro-steps on one GPU: with sums in host memory one block's gradients and sums wait while
 * another block computes, so the GPU needs less than with sums on the GPU. The simulator agrees. */
static void sums_in_host_memory(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine;
  hk_model model = load("llama-2-7b");
  hk_job job = job_of(1);
  hk_footprint gpu[HK_WAY_COUNT], host[HK_WAY_COUNT];
  job.grad_accum = 4;
  must(hk_machine_load("dgx-h100-8x80gb", &machine, &err), &err);
  must(hk_footprint_make(&model, &job, HK_OPTIMIZER_FP32, HK_ACCUMULATE_GPU, gpu, &err), &err);
  must(hk_footprint_make(&model, &job, HK_OPTIMIZER_FP32, HK_ACCUMULATE_HOST, host, &err), &err);
  const hk_footprint *f = &host[HK_WAY_OFFLOAD];
  const hk_accumulate sums = HK_ACCUMULATE_HOST;
  const hk_memory_report m = simulated_with(&model, &machine, &job, &hk_policy_zero_offload, &sums);
  const hk_bytes all = 2 * model.parameters, block = 2 * 2 * largest_block(&model);
  assert_true(f->gpu < gpu[HK_WAY_OFFLOAD].gpu - all / 2);
  assert_true(f->gpu > f->gpu_least && f->gpu <= f->gpu_least + block);
  assert_true(m.peak >= f->gpu_least && m.peak <= f->gpu);
  assert_int_equal(m.host_peak, f->host);
  /* Only route cpu sums in host memory. */
  assert_int_equal(host[HK_WAY_GPU].gpu, gpu[HK_WAY_GPU].gpu);
  assert_int_equal(host[HK_WAY_STREAM].gpu, gpu[HK_WAY_STREAM].gpu);
  hk_machine_free(&machine);
  hk_model_free(&model);
}

/* LoRA of rank 16: 39,976,960 trained parameters with 12 bytes of state each; 6,738,415,616 frozen
 * ones with a weight of half a byte. Of the ways to divide, only ZeRO-3 divides frozen weights. */
static void frozen_weights(void **state) {
  (void)state;
  const int64_t trained = 39976960, frozen = 6738415616;
  hk_error err = {0};
  hk_model model = load("llama-2-7b");
  const hk_frozen_spec spec = {.rank = 16, .bytes = 0.5};
  hk_job job = job_of(4);
  hk_footprint ways[HK_WAY_COUNT];
  must(hk_model_freeze(&model, &spec, &err), &err);
  make(&model, &job, ways);
  assert_int_equal(ways[HK_WAY_GPU].weights, 2 * trained + frozen / 2);
  assert_int_equal(ways[HK_WAY_GPU].gradients, 2 * trained);
  assert_int_equal(ways[HK_WAY_GPU].optimizer, 12 * trained);
  assert_int_equal(ways[HK_WAY_ZERO1].weights, ways[HK_WAY_GPU].weights);
  assert_in_range(ways[HK_WAY_ZERO3].weights, (2 * trained + frozen / 2) / 4,
                  (2 * trained + frozen / 2) / 4 + 4096);
  assert_int_equal(ways[HK_WAY_OFFLOAD].host, 16 * trained);
  hk_model_free(&model);
}

/* Lion: 8 bytes of state. Muon's matrices are updated on GPUs alone. */
static void other_optimizers(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = load("gpt2");
  const hk_job job = job_of(1);
  hk_footprint ways[HK_WAY_COUNT];
  must(hk_footprint_make(&model, &job, HK_OPTIMIZER_LION, HK_ACCUMULATE_GPU, ways, &err), &err);
  assert_int_equal(ways[HK_WAY_GPU].optimizer, 8 * model.parameters);
  assert_int_equal(ways[HK_WAY_OFFLOAD].host, 12 * model.parameters);
  must(hk_footprint_make(&model, &job, HK_OPTIMIZER_MUON, HK_ACCUMULATE_GPU, ways, &err), &err);
  assert_int_equal(ways[HK_WAY_OFFLOAD].ranks, 0);
  assert_int_equal(ways[HK_WAY_ZERO3_OFFLOAD].ranks, 0);
  assert_int_equal(ways[HK_WAY_STREAM].ranks, 1);
  hk_model_free(&model);
}

int main(void) {
  setenv("HOCKET_SHARE", HK_TEST_SHARE, 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_are_exact),         cmocka_unit_test(activations_by_hand),
      cmocka_unit_test(dividing_more_needs_less), cmocka_unit_test(more_tokens_never_need_less),
      cmocka_unit_test(the_simulator_agrees),     cmocka_unit_test(other_optimizers),
      cmocka_unit_test(sums_in_host_memory),      cmocka_unit_test(frozen_weights),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
