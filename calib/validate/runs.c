/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Makes the plan that a row of a run table describes, and predicts the figures that it measured. */
#include "calib/validate/runs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "sim/rank.h"

/* cores_per_rank counts hardware threads, to which numactl binds: two a core on these CPUs. The
 * second thread of a core does not speed up CPU kernels. */
#define THREADS_A_CORE 2

static const char *const columns[] = {
#define COLUMN(field, column) [HK_RUN_##field] = column,
    HK_RUN_TIMES(COLUMN) HK_RUN_MEMORY(COLUMN)
#undef COLUMN
};

const char *hk_run_figure_column(hk_run_figure figure) {
  return columns[figure];
}

double hk_run_measured(const hk_run *run, hk_run_figure figure) {
  const double measured[] = {
#define MEASURED(field, column) [HK_RUN_##field] = run->field##_ms,
      HK_RUN_TIMES(MEASURED)
#undef MEASURED
          [HK_RUN_before_fwd] = run->alloc_before_fwd_gb,
      [HK_RUN_after_fwd] = run->alloc_after_fwd_gb,
      [HK_RUN_after_bwd] = run->alloc_after_bwd_gb,
      [HK_RUN_peak_bwd] = run->peak_bwd_gb,
      [HK_RUN_after_step] = run->alloc_after_step_gb,
      [HK_RUN_peak_step] = run->peak_step_gb,
  };
  /* Tables have 0 where a figure is missing. */
  return measured[figure] > 0 ? measured[figure] : NAN;
}

/* -- The plan of a row ------------------------------------------------------------------------- */

static hk_status whole(const char *column, double value, double most, int64_t *out, hk_error *err) {
  if (value >= 1 && value <= most && floor(value) == value) {
    *out = (int64_t)value;
    return HK_OK;
  }
  if (isnan(value))
    return hk_fail(err, HK_INPUT, "column '%s': no value, but it is needed", column);
  return hk_fail(err, HK_INPUT, "column '%s': expected a whole number from 1 to %.0f, got %.15g",
                 column, most, value);
}

static hk_status whole_int(const char *column, double value, int most, int *out, hk_error *err) {
  int64_t wide = 0;
  HK_TRY(whole(column, value, most, &wide, err));
  *out = (int)wide;
  return HK_OK;
}

/* Builds the model from the row's shape, written as a config.json. The layout "megatron" has the
 * order in which Megatron-DeepSpeed registers tensors. hk_model_from_config checks the numbers. */
static hk_status model_of(const hk_run *run, hk_model *model, hk_error *err) {
  char text[512];
  snprintf(text, sizeof text,
           "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": %.17g, "
           "\"hidden_size\": %.17g, \"intermediate_size\": %.17g, \"num_attention_heads\": %.17g, "
           "\"num_key_value_heads\": %.17g, \"vocab_size\": %.17g, "
           "\"max_position_embeddings\": %.17g, \"hocket_layout\": \"megatron\"}",
           run->layers, run->hidden, run->ffn, run->heads, run->kv_heads, run->vocab, run->seq);
  cJSON *config = NULL;
  HK_TRY(hk_json_parse(text, strlen(text), "the model's shape", &config, err));
  const hk_status status = hk_model_from_config(config, run->model, model, err);
  cJSON_Delete(config);
  return status;
}

static hk_status job_of(const hk_run *run, hk_job *job, hk_error *err) {
  int dp = 0;
  *job = (hk_job){.checkpoint_activations = true}; /* all published runs do */
  HK_TRY(whole_int("dp", run->dp, HK_MOST_GPUS * HK_MOST_NODES, &dp, err));
  HK_TRY(whole_int("tp", run->tp, HK_MOST_GPUS, &job->tp, err));
  HK_TRY(whole_int("nodes", run->nodes, HK_MOST_NODES, &job->nodes, err));
  HK_TRY(whole_int("micro_batch", run->micro_batch, HK_MOST_MICRO_BATCH, &job->micro_batch, err));
  HK_TRY(whole_int("grad_accum", run->grad_accum, HK_MOST_GRAD_ACCUM, &job->grad_accum, err));
  HK_TRY(whole_int("seq", run->seq, HK_MOST_SEQ, &job->seq, err));
  const int64_t world = (int64_t)dp * job->tp;
  if (world % job->nodes != 0 || world / job->nodes > HK_MOST_GPUS)
    return hk_fail(err, HK_INPUT,
                   "dp %d x tp %d ranks do not divide into %d equal nodes of at most %d GPUs", dp,
                   job->tp, job->nodes, HK_MOST_GPUS);
  job->gpus = (int)(world / job->nodes);
  return HK_OK;
}

static hk_status candidate_of(const hk_run *run, hk_candidate *candidate, hk_error *err) {
  const bool interleaved = run->interleave > 0;
  if (!(run->offload_ratio <= 1))
    return hk_fail(err, HK_INPUT,
                   "column 'offload_ratio': expected a number from 0 to 1, got %.15g",
                   run->offload_ratio);
  *candidate = (hk_candidate){.runtime = HK_RUNTIME_DEEPSPEED, .options = HK_POLICY_OPTIONS_NONE};
  candidate->options.before_0_18 = true; /* as the published runs: 0.13 */
  candidate->policy = interleaved              ? &hk_policy_interleave
                      : run->offload_ratio < 1 ? &hk_policy_twinflow
                                               : &hk_policy_zero_offload;
  if (interleaved)
    HK_TRY(whole_int("stride", run->stride, HK_MOST_STRIDE, &candidate->options.stride, err));
  if (candidate->policy->takes & HK_TAKES_RATIO) candidate->options.ratio = run->offload_ratio;
  return HK_OK;
}

static hk_status plan_of(const hk_run *run, const hk_machine *machine, const hk_model *model,
                         hk_plan *plan, hk_error *err) {
  hk_job job;
  hk_candidate candidate;
  hk_plan_settings settings = {.cores_unbound = !(run->cores_per_rank > 0)};
  const hk_flush flush = run->flush_async == 0 ? HK_FLUSH_SYNC : HK_FLUSH_ASYNC;
  settings.flush = &flush;
  HK_TRY(job_of(run, &job, err));
  HK_TRY(hk_job_check(&job, model, err));
  HK_TRY(candidate_of(run, &candidate, err));
  HK_TRY(whole("subgroup_numel", run->subgroup_numel, 1e15, &settings.subgroup_numel, err));
  if (settings.cores_unbound) {
    settings.cpu_threads = (int)machine->cores.value;
  } else {
    int bound = 0;
    HK_TRY(whole_int("cores_per_rank", run->cores_per_rank, HK_MOST_CPU_THREADS, &bound, err));
    settings.cpu_threads = bound > THREADS_A_CORE ? bound / THREADS_A_CORE : 1;
  }
  return hk_candidate_plan(&candidate, model, machine, &job, &settings, plan, err);
}

hk_status hk_run_plan(const hk_run *run, const hk_machine *machine, hk_plan *plan, hk_error *err) {
  *plan = (hk_plan){0};
  hk_model model = {0};
  hk_status status = model_of(run, &model, err);
  if (status == HK_OK) status = plan_of(run, machine, &model, plan, err);
  hk_model_free(&model);
  if (status == HK_OK) return HK_OK;
  return run->line > 0 ? hk_fail_prefix(err, "line %d", run->line)
                       : hk_fail_prefix(err, "run of %s", run->model);
}

/* -- Prediction -------------------------------------------------------------------------------- */

hk_status hk_run_case_make(const hk_run *run, const hk_machine *machine, hk_run_case *made,
                           hk_error *err) {
  *made = (hk_run_case){.run = run};
  HK_TRY(hk_run_plan(run, machine, &made->plan, err));
  const hk_status status =
      hk_graph_build(&made->plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &made->graph, err);
  if (status != HK_OK) hk_run_case_free(made);
  return status;
}

void hk_run_case_free(hk_run_case *made) {
  hk_plan_free(&made->plan);
  hk_graph_free(&made->graph);
  *made = (hk_run_case){0};
}

static double gib(hk_bytes bytes) {
  return (double)bytes / (double)HK_GIB;
}

hk_status hk_run_case_predict(const hk_run_case *made, const hk_machine *machine,
                              double figures[HK_RUN_FIGURES], hk_error *err) {
  hk_result result = {0};
  HK_TRY(hk_simulate(&made->graph, machine, &(hk_sim_options){0}, &result, err));
  hk_ns phases[HK_PHASE_COUNT];
  hk_phase_durations(&made->graph, &result.timeline, phases);
  const hk_memory_report *m = &result.memory;
  figures[HK_RUN_fwd] = hk_ms(phases[HK_PHASE_FORWARD]);
  figures[HK_RUN_bwd] = hk_ms(phases[HK_PHASE_BACKWARD]);
  figures[HK_RUN_step] = hk_ms(phases[HK_PHASE_UPDATE]);
  figures[HK_RUN_iter] = hk_ms(result.timeline.makespan);
  figures[HK_RUN_before_fwd] = gib(m->before_forward);
  figures[HK_RUN_after_fwd] = gib(m->after_forward);
  figures[HK_RUN_after_bwd] = gib(m->after_backward);
  figures[HK_RUN_after_step] = gib(m->after_update);
  /* The framework reports memory before backward, which resets the allocator's peak. */
  figures[HK_RUN_peak_bwd] = gib(m->peak_of[HK_PHASE_BACKWARD]);
  figures[HK_RUN_peak_step] = gib(m->peak_of[HK_PHASE_UPDATE]);
  hk_result_free(&result);
  return HK_OK;
}
