/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from a job's degrees of parallelism, and which jobs are possible. */
#include <math.h>

#include "core/graph/plan.h"

int hk_job_dp(const hk_job *job) {
  return job->gpus * job->nodes / (job->tp * hk_job_pp(job));
}

int hk_job_expert_dp(const hk_job *job) {
  const int dp = hk_job_dp(job), ep = hk_job_ep(job);
  return ep > 1 ? (int)hk_max((int64_t)job->tp * dp / ep, 1) : dp;
}

double hk_job_routed_bytes(const hk_job *job, const hk_model *model, int block) {
  const int ep = hk_job_ep(job);
  if (ep == 1 || !hk_model_block_kind(model, block)->sparse) return 0;
  const double tokens = (double)job->micro_batch * job->seq / job->tp;
  return 2 * tokens * (double)model->experts_per_token * (double)model->hidden * (ep - 1) / ep;
}

double hk_job_fill(const hk_job *job) {
  return 1 + (hk_job_pp(job) - 1.0) / ((double)hk_job_chunks(job) * job->grad_accum);
}

double hk_job_in_flight(const hk_job *job) {
  const int pp = hk_job_pp(job), chunks = hk_job_chunks(job);
  return fmin(job->grad_accum, chunks > 1 ? pp + (pp - 1.0) / chunks : pp);
}

/* What is whole on each tensor-parallel rank is divided with sequence parallelism, so a rank has
 * 1/tp of what a single one has. */
hk_bytes hk_job_activation_bytes(const hk_job *job, const hk_model *model, int block) {
  const int by = job->sequence_parallel ? job->tp : 1;
  return hk_model_activation_bytes(model, block, job->micro_batch, job->seq, job->tp / by,
                                   job->checkpoint_activations) /
         by;
}

hk_bytes hk_job_workspace_bytes(const hk_job *job, const hk_model *model, int block) {
  const int by = job->sequence_parallel ? job->tp : 1;
  return hk_model_backward_workspace_bytes(model, block, job->micro_batch, job->seq, job->tp / by,
                                           job->checkpoint_activations) /
         by;
}

double hk_job_tokens(const hk_job *job) {
  return (double)job->micro_batch * job->grad_accum * job->seq * hk_job_dp(job);
}

static hk_status check_sequence(const hk_job *job, const hk_model *model, hk_error *err) {
  if (model->max_positions > 0 && job->seq > model->max_positions &&
      hk_model_has_position_table(model)) {
    return hk_fail(err, HK_INPUT,
                   "seq %d is longer than the %lld positions that %s was made for: its position "
                   "embeddings are a table with a row for each",
                   job->seq, (long long)model->max_positions, model->name);
  }
  if (job->loss_chunks < 0 || job->loss_chunks > HK_MOST_LOSS_CHUNKS) {
    return hk_fail(err, HK_INPUT, "loss_chunks: expected a whole number from 1 to %d, got %d",
                   HK_MOST_LOSS_CHUNKS, job->loss_chunks);
  }
  if (model->arch == HK_ARCH_LISTED && job->loss_chunks > 1) {
    return hk_fail(err, HK_INPUT,
                   "loss_chunks %d: %s is a list of tensors, which does not say how large its "
                   "logits are; describe the model with a chunked loss instead",
                   job->loss_chunks, model->name);
  }
  return HK_OK;
}

static hk_status check_pipeline(const hk_job *job, const hk_model *model, hk_error *err) {
  const int pp = hk_job_pp(job), chunks = hk_job_chunks(job), world = job->gpus * job->nodes;
  if (job->pp < 0 || job->pp > HK_MODEL_MOST_STAGES || chunks > HK_MODEL_MOST_STAGES)
    return hk_fail(err, HK_INPUT, "pp %d, pp_chunks %d: expected whole numbers from 1 to %d",
                   job->pp, job->chunks, HK_MODEL_MOST_STAGES);
  if (pp != (model->stages > 1 ? model->stages : 1))
    return hk_fail(err, HK_INPUT, "pp %d: %s is cut into %d stages", pp, model->name,
                   model->stages);
  if (world % (job->tp * pp) != 0)
    return hk_fail(err, HK_INPUT, "tp %d x pp %d does not divide the %d GPUs of %d nodes", job->tp,
                   pp, world, job->nodes);
  if (job->sequence_parallel && job->tp < 2)
    return hk_fail(err, HK_INPUT,
                   "sequence parallelism divides what tp leaves whole, and tp is 1; use tp 2 or "
                   "more");
  if (chunks == 1) return HK_OK;
  if (pp == 1 || model->layers % chunks != 0)
    return hk_fail(
        err, HK_INPUT,
        "pp_chunks %d: a stage has %lld layers with pp %d; chunks divide the layers of a "
        "stage, and need pp 2 or more",
        chunks, (long long)model->layers, pp);
  if (job->grad_accum % pp == 0) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "pp_chunks %d: an interleaved pipeline needs micro-steps in groups of pp, and "
                 "grad-accum %d is not a multiple of pp %d",
                 chunks, job->grad_accum, pp);
}

/* Experts are not split by tensor parallelism: the tp ranks of a group have different ones, and
 * each sends its own tokens, so these must be divided (Megatron-Core requires it, too). */
static hk_status check_experts(const hk_job *job, const hk_model *model, hk_error *err) {
  const int ep = hk_job_ep(job), ranks = job->tp * hk_job_dp(job);
  if (job->ep < 0 || job->ep > HK_MODEL_MOST_EXPERT_RANKS)
    return hk_fail(err, HK_INPUT, "ep: expected a whole number from 1 to %d, got %d",
                   HK_MODEL_MOST_EXPERT_RANKS, job->ep);
  if (ep != (model->expert_ranks > 1 ? model->expert_ranks : 1))
    return hk_fail(err, HK_INPUT, "ep %d: the experts of %s are divided among %d ranks", ep,
                   model->name, model->expert_ranks);
  if (ep == 1) return HK_OK;
  if (ep % job->tp != 0)
    return hk_fail(err, HK_INPUT,
                   "ep %d is not a multiple of tp %d: the ranks of a tensor-parallel group have "
                   "different experts",
                   ep, job->tp);
  if (ranks % ep != 0)
    return hk_fail(err, HK_INPUT, "ep %d does not divide the %d ranks of a stage (tp %d x dp %d)",
                   ep, ranks, job->tp, hk_job_dp(job));
  if (job->tp == 1 || job->sequence_parallel) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "ep %d with tp %d: each rank sends its own tokens to the experts, which needs "
                 "sequence parallelism (--sequence-parallel)",
                 ep, job->tp);
}

hk_status hk_job_check(const hk_job *job, const hk_model *model, hk_error *err) {
  const struct {
    const char *name;
    int value, most;
  } fields[] = {
      {"gpus", job->gpus, HK_MOST_GPUS},
      {"nodes", job->nodes, HK_MOST_NODES},
      {"tp", job->tp, HK_MOST_GPUS},
      {"micro_batch", job->micro_batch, HK_MOST_MICRO_BATCH},
      {"grad_accum", job->grad_accum, HK_MOST_GRAD_ACCUM},
      {"seq", job->seq, HK_MOST_SEQ},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value < 1 || fields[i].value > fields[i].most) {
      return hk_fail(err, HK_INPUT, "%s: expected a whole number from 1 to %d, got %d",
                     fields[i].name, fields[i].most, fields[i].value);
    }
  }
  if (job->jobs < 0 || job->jobs > HK_MOST_GPUS / job->gpus)
    return hk_fail(err, HK_INPUT,
                   "jobs: expected 1 to %d jobs of %d GPUs on a node of at most %d, got %d",
                   HK_MOST_GPUS / job->gpus, job->gpus, HK_MOST_GPUS, job->jobs);
  if (job->gpus % job->tp != 0) {
    return hk_fail(err, HK_INPUT,
                   "tp %d does not divide the %d GPUs of a node: tensor parallelism stays within a "
                   "node",
                   job->tp, job->gpus);
  }
  if (model->arch == HK_ARCH_LISTED && job->tp > 1) {
    return hk_fail(
        err, HK_INPUT,
        "tp %d: %s is a list of tensors, which does not say how they are split; use tp 1", job->tp,
        model->name);
  }
  if (model->heads % job->tp != 0) {
    return hk_fail(err, HK_INPUT, "tp %d does not divide the %lld attention heads of %s", job->tp,
                   (long long)model->heads, model->name);
  }
  HK_TRY(check_pipeline(job, model, err));
  HK_TRY(check_experts(job, model, err));
  return check_sequence(job, model, err);
}
