/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The closed forms of what users would otherwise run. */
#include "sim/others.h"

#include <math.h>

#include "core/graph/bytes.h"

#define TORCH     0.765 /* of the bandwidth that AdamW's traffic alone reaches */
#define DEEPSPEED 0.794
#define BF16      0.40 /* torch's bf16 kernel on a thread, of hocket's fp32 */
#define WORKER    0.9  /* SuperOffload: share of the cores, and of the parameters */

/* tests/test_golden_others.sh predicts the runs of the evidence again. */
const hk_other_info hk_other_infos[HK_OTHER_COUNT] = {
    [HK_OTHER_FSDP] = {"FSDP2 CPU offload", "torch 2.15",
                       "CPUOffloadPolicy, OMP_NUM_THREADS = cores / ranks. Ranks started without "
                       "the variable took 5520 ms (2 x H100) for the work of the evidence",
                       -15.6,
                       "1807 ms: 3.0 G, micro-batch 4, 2 x H200; 2 x H100: 1845 ms (-10.7 %)"},
    [HK_OTHER_FSDP_ONE_THREAD] = {"FSDP2 CPU offload, torchrun's threads", "torch 2.15",
                                  "the same; torchrun sets OMP_NUM_THREADS=1", -46.0,
                                  "5937 ms: 3.0 G, micro-batch 4, 2 x H100"},
    [HK_OTHER_TORCHAO] = {"torchao CPU offload, no fp32 weights", "torchao 0.19",
                          "CPUOffloadOptimizer with bf16 parameters and moments, another "
                          "algorithm; one GPU, no clipping",
                          -55.7,
                          "1255 ms: 3.0 G, micro-batch 4, H100, torchao 0.18; another "
                          "node, H200: 808 ms (-12.0 %)"},
    [HK_OTHER_8BIT] = {"8-bit AdamW on the GPU, no fp32 weights", "bitsandbytes, torchao 0.19",
                       "bf16 parameters and 8-bit moments, another algorithm; the update is "
                       "assumed to be limited by GPU memory",
                       -26.0,
                       "569 ms: bitsandbytes 0.50.2, 3.0 G, micro-batch 4, H100; torchao "
                       "0.18: 633 ms (-33.4 %). Memory: 18.0 GiB, as predicted; 39.3 GB "
                       "published for 7B, 37.9 GiB predicted"},
    [HK_OTHER_SUPEROFFLOAD] = {"SuperOffload", "DeepSpeed 0.19.6",
                               "made for superchips: pinned copies are assumed. With --max-norm "
                               "it updates nothing beside backward. On an H200 with 16 cores it "
                               "ended in its own time-out",
                               42.7,
                               "3593 ms at the best: 'up to 600 TFLOPS', 14B, 4 x 4096 tokens, "
                               "GH200"},
};

/* -- Times ------------------------------------------------------------------------------------- */

/* Rates that a rank gets. */
typedef struct {
  double dram, adam, unscale, cast; /* bytes/s; parameters/s of a thread */
  double h2d, d2h, duplex;
} rates;

static double of_thread(const hk_quantity *limit, const hk_quantity *scale, const hk_machine *m) {
  return limit->value / (scale->value > 0 ? scale->value : m->cpu_adamw_threads.value);
}

static rates rates_of(const hk_others_job *job, const hk_machine *m) {
  const double r = job->ranks, bound = r > 1 ? m->dram_unbound.value : 1;
  return (rates){.dram = fmin(m->dram.value / r * bound, m->dram_process.value),
                 .adam = of_thread(&m->cpu_adamw, &m->cpu_adamw_threads, m),
                 .unscale = of_thread(&m->cpu_unscale, &m->cpu_unscale_threads, m),
                 .cast = of_thread(&m->cpu_cast, &m->cpu_cast_threads, m),
                 .h2d = fmin(m->h2d.value, m->fabric_h2d.value / r),
                 .d2h = fmin(m->d2h.value, m->fabric_d2h.value / r),
                 .duplex = fmin(m->duplex.value, m->fabric_duplex.value / r)};
}

/* Seconds. */
static double pass(double n, double bytes, double threads, const rates *at) {
  return n * bytes / fmin(TORCH * at->dram, threads * at->unscale * HK_BYTES_UNSCALE);
}
static double adam(double n, double bytes, double share, double threads, const rates *at) {
  return n / fmin(share * at->dram / bytes, threads * at->adam);
}

static void fsdp(const hk_others_job *job, int threads, const hk_machine *m, hk_other *row) {
  const rates at = rates_of(job, m);
  const double n = job->n, g = job->micro_steps, fp32 = HK_BYTES_FP32 * n;
  const double again = fp32 / m->d2h_pageable.value + pass(n, 3 * HK_BYTES_FP32, threads, &at);
  const double copies = fmax(fp32 / fmin(at.h2d, at.d2h), 2 * fp32 / at.duplex);
  row->forward_ns = hk_max(job->forward, hk_ns_of(g * fp32 / at.h2d));
  row->backward_ns = hk_max(job->backward, hk_ns_of(g * copies)) + hk_ns_of((g - 1) * again);
  row->update_ns =
      hk_ns_of(pass(n, HK_BYTES_FP32, threads, &at) + pass(n, HK_BYTES_UNSCALE, threads, &at) +
               adam(n, HK_BYTES_ADAMW_FP32, TORCH, threads, &at));
}

/* Its update is what is left when the GPU has ended backward: at least the embedding. */
static void torchao(const hk_others_job *job, const hk_machine *m, hk_other *row) {
  const rates at = rates_of(job, m);
  const double bytes = hk_update_traffic(HK_OPTIMIZER_ADAM_BF16);
  const double update =
      fmax(adam(job->n, bytes, TORCH, BF16 * job->threads, &at), HK_BYTES_BF16 * job->n / at.h2d);
  row->forward_ns = job->forward;
  row->backward_ns =
      hk_max(job->backward, hk_ns_of(job->micro_steps * HK_BYTES_BF16 * job->n / at.d2h));
  row->update_ns = hk_max(hk_ns_of(adam(job->last, bytes, TORCH, BF16 * job->threads, &at)),
                          job->launches + hk_ns_of(update) - row->forward_ns - row->backward_ns);
}

static void superoffload(const hk_others_job *job, const hk_machine *m, hk_other *row) {
  const rates at = rates_of(job, m);
  const double n = WORKER * job->n, own = (1 - WORKER) * job->threads;
  const double flush = (HK_BYTES_BF16 + HK_BYTES_FP32) * n / at.d2h;
  const double update =
      adam(n, HK_BYTES_ADAMW_FP32 + 2 * HK_BYTES_FP32, DEEPSPEED, WORKER * job->threads, &at);
  const double beside = job->clips ? 0 : update;
  row->forward_ns = job->forward;
  row->backward_ns = hk_max(job->backward, hk_ns_of(fmax(flush, beside)));
  row->update_ns =
      hk_ns_of(n / fmin(at.dram / HK_BYTES_CAST, own * at.cast) + HK_BYTES_BF16 * n / at.h2d);
  if (job->clips) row->update_ns += hk_ns_of(update + pass(n, HK_BYTES_UNSCALE, own, &at));
}

hk_other hk_other_times(hk_other_kind kind, const hk_others_job *job, const hk_machine *machine) {
  hk_other row = {.runs = kind != HK_OTHER_TORCHAO || job->world == 1};
  if (!row.runs) return row;
  switch (kind) {
    case HK_OTHER_FSDP:
      fsdp(job, job->threads, machine, &row);
      break;
    case HK_OTHER_FSDP_ONE_THREAD:
      fsdp(job, 1, machine, &row);
      break;
    case HK_OTHER_TORCHAO:
      torchao(job, machine, &row);
      break;
    case HK_OTHER_SUPEROFFLOAD:
      superoffload(job, machine, &row);
      break;
    default:
      row.forward_ns = job->forward;
      row.backward_ns = job->backward;
      row.update_ns = job->update_8bit;
  }
  row.iteration_ns = row.forward_ns + row.backward_ns + row.update_ns;
  return row;
}

/* -- Memory ------------------------------------------------------------------------------------ */

/* Two simulated plans of the job: all on the CPU in fp32, all on the GPU in 8 bits. */
typedef struct {
  hk_forecast cpu, gpu;
} base;

static hk_bytes largest_block(const hk_plan *plan) {
  int64_t most = 0;
  for (int block = HK_BLOCK_EMBED; block <= (int)plan->model.layers; block++)
    most = hk_max(most, hk_model_block_parameters(&plan->model, block, plan->job.tp));
  return most;
}

/* Beside what the plan counts: fp32 shards of a block before they are cast, flat buffers of two
 * all-gathers and a reduce-scatter. On one rank the plan gathers nothing, FSDP2 has two blocks. */
static hk_bytes fsdp_gpu(const base *of, int64_t n) {
  const hk_plan *plan = &of->cpu.plan;
  const int dp = hk_job_dp(&plan->job);
  const hk_bytes block = largest_block(plan), blocks = dp == 1 ? 5 : 3;
  return of->cpu.result.memory.peak - HK_BYTES_BF16 * n + HK_BYTES_FP32 * block / dp +
         HK_BYTES_BF16 * blocks * block;
}

static void set_memory(hk_other_kind kind, const base *of, int64_t n, hk_other *row) {
  const hk_bytes resident = of->gpu.result.memory.peak;
  const int ranks = hk_job_ranks(&of->cpu.plan.job);
  const double off = WORKER * (double)n;
  switch (kind) {
    case HK_OTHER_FSDP:
    case HK_OTHER_FSDP_ONE_THREAD:
      row->gpu = fsdp_gpu(of, n);
      row->host = (HK_BYTES_STATE + HK_BYTES_FP32) * n * ranks;
      break;
    case HK_OTHER_TORCHAO: /* gradients stay on the GPU; parameter, gradient, moments in bf16 */
      row->gpu = resident - hk_state_bytes(HK_OPTIMIZER_ADAMW8BIT, n);
      row->host = 4 * HK_BYTES_BF16 * n * ranks;
      break;
    case HK_OTHER_SUPEROFFLOAD: /* state, gradients in fp32 and in bf16 */
      row->gpu = of->cpu.result.memory.peak +
                 (hk_bytes)((HK_BYTES_STATE + HK_BYTES_FP32) * ((double)n - off));
      row->host = (hk_bytes)((HK_BYTES_STATE + HK_BYTES_FP32 + HK_BYTES_BF16) * off) * ranks;
      break;
    default:
      row->gpu = resident;
  }
  row->gpu_short = hk_max(0, row->gpu - of->cpu.result.memory.capacity);
  row->host_short = hk_max(0, row->host - of->cpu.result.memory.host_capacity);
}

/* -- Rows -------------------------------------------------------------------------------------- */

static hk_status simulate(const hk_model *model, const hk_machine *machine, const hk_job *job,
                          const hk_plan_settings *given, const hk_policy *policy,
                          hk_optimizer optimizer, hk_forecast *out, hk_error *err) {
  const hk_candidate candidate = {policy, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  hk_plan_settings settings = *given;
  hk_plan plan = {0};
  settings.overlap = HK_OVERLAP_NONE;
  settings.optimizer = optimizer;
  settings.accumulate = NULL;
  settings.flush = NULL;
  HK_TRY(hk_candidate_plan(&candidate, model, machine, job, &settings, &plan, err));
  return hk_forecast_make(&plan, machine, NULL, out, err);
}

/* Time in which the first rank's host thread launches kernels. */
static hk_ns launches_of(const hk_forecast *f) {
  for (int32_t lane = 0; lane < (int32_t)f->graph.n_lanes; lane++)
    if (f->graph.lanes[lane].kind == HK_LANE_HOST)
      return hk_lane_busy(&f->graph, &f->result.timeline, lane, 0, f->result.timeline.makespan);
  return 0;
}

static void fill(const base *of, bool clips, const hk_machine *machine,
                 hk_other rows[HK_OTHER_COUNT]) {
  const hk_plan *plan = &of->cpu.plan;
  const int64_t n = hk_plan_on_route(plan, HK_ROUTE_CPU);
  const hk_others_job job = {
      .n = (double)n,
      .last = (double)hk_model_block_parameters(&plan->model, HK_BLOCK_EMBED, plan->job.tp),
      .ranks = hk_job_ranks(&plan->job),
      .world = plan->job.gpus * plan->job.nodes,
      .threads = plan->cpu_threads,
      .micro_steps = plan->job.grad_accum,
      .clips = clips,
      .forward = of->gpu.forward_ns,
      .backward = of->gpu.backward_ns,
      .launches = launches_of(&of->gpu),
      .update_8bit = of->gpu.update_ns};
  for (int kind = 0; kind < HK_OTHER_COUNT; kind++) {
    hk_other *row = &rows[kind];
    *row = hk_other_times((hk_other_kind)kind, &job, machine);
    if (!row->runs) continue;
    set_memory((hk_other_kind)kind, of, n, row);
    row->tokens_per_s = hk_job_tokens(&plan->job) / hk_s(row->iteration_ns);
  }
}

hk_status hk_others_make(const hk_model *model, const hk_machine *machine, const hk_job *job,
                         const hk_plan_settings *settings, bool clips,
                         hk_other rows[HK_OTHER_COUNT], hk_error *err) {
  if (model->frozen_parameters > 0 || hk_job_pp(job) > 1 || hk_job_ep(job) > 1)
    return hk_fail(err, HK_INPUT,
                   "--others knows whole models without pipeline and expert parallelism: leave "
                   "out --lora, --trainable, --pp and --ep");
  base of = {0};
  HK_TRY(simulate(model, machine, job, settings, &hk_policy_zero_offload, HK_OPTIMIZER_FP32,
                  &of.cpu, err));
  const hk_status status = simulate(model, machine, job, settings, &hk_policy_gpu_only,
                                    HK_OPTIMIZER_ADAMW8BIT, &of.gpu, err);
  if (status == HK_OK) {
    fill(&of, clips, machine, rows);
    hk_forecast_free(&of.gpu);
  }
  hk_forecast_free(&of.cpu);
  return status;
}

hk_other_kind hk_others_fastest(const hk_other rows[HK_OTHER_COUNT]) {
  int best = HK_OTHER_COUNT;
  for (int i = 0; i < HK_OTHER_COUNT; i++)
    if (hk_other_fits(&rows[i]) &&
        (best == HK_OTHER_COUNT || rows[i].iteration_ns < rows[best].iteration_ns))
      best = i;
  return (hk_other_kind)best;
}
