/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Jobs around a job, ranked one after the other. A budget in simulated operations bounds the work:
 * the time of a ranking grows with the micro-steps of an iteration. */
#include "sim/advice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/checkpoints.h"
#include "sim/largest.h"
#include "sim/nvme.h"

#define LEAST_GAIN   1.02    /* of a move of the search */
#define WORTH_SAYING 1.03    /* of a suggestion */
#define MOST_VISITED 24      /* jobs that are ranked */
#define MOST_OPS     1000000 /* simulated operations: at most those of the first ranking + this, */
#define MOST_FIRST   4000000 /* ... of which count at most so many */
#define OVERLAP_OPS  8       /* operations of a ranking with overlap / without, about */
#define MOST_NODES   64      /* that are suggested */
#define LORA_RANK    16      /* that is suggested */
#define LOSS_CHUNKS  16      /* that are suggested */

typedef struct {
  hk_job job;
  bool fits;
  hk_alternative found;
} visit;

typedef struct {
  const hk_model *model;
  const hk_machine *machine;
  const hk_job *job;
  const hk_plan_settings *settings;
  const hk_ranking_options *options;
  double ops_per_step; /* operations of a ranking per micro-step */
  double budget;
  visit visited[MOST_VISITED];
  int n;
  hk_advice *advice;
} search;

static double batch_of(const hk_job *job) {
  return (double)job->micro_batch * job->grad_accum * hk_job_dp(job);
}

static bool same_job(const hk_job *a, const hk_job *b) {
  return a->gpus == b->gpus && a->nodes == b->nodes && a->tp == b->tp &&
         a->micro_batch == b->micro_batch && a->grad_accum == b->grad_accum &&
         a->checkpoint_activations == b->checkpoint_activations && a->loss_chunks == b->loss_chunks;
}

static double operations(const hk_ranking *ranking) {
  double n = 0;
  for (size_t i = 0; i < ranking->n; i++) n += (double)ranking->forecasts[i].graph.n_ops;
  return n + (double)ranking->simulations * (double)ranking->forecasts[0].graph.n_ops;
}

/* -- Visits ------------------------------------------------------------------------------------ */

static void describe(const search *s, const hk_job *job, hk_overlap overlap,
                     const hk_forecast *best, hk_alternative *a) {
  *a = (hk_alternative){.job = *job,
                        .overlap = overlap,
                        .state = best->plan.optimizer,
                        .runtime = best->plan.runtime,
                        .batch = batch_of(job) / batch_of(s->job),
                        .iteration_ns = best->iteration_ns,
                        .tokens_per_s = best->tokens_per_s};
  hk_forecast_title(best, a->schedule, sizeof a->schedule);
  hk_alternative_options(a, s->job, s->settings->overlap);
}

/* A quick ranking. *ranking has no forecast if that is impossible (a model that cannot be split so,
 * say) or beyond the budget. */
static hk_status rank_quickly(search *s, const hk_model *model, const hk_machine *machine,
                              const hk_job *job, const hk_plan_settings *settings,
                              hk_ranking_options options, hk_ranking *ranking, hk_error *err) {
  hk_error problem = {0};
  *ranking = (hk_ranking){0};
  if (s->ops_per_step * job->grad_accum > s->budget) return HK_OK;
  options.quick = true;
  const hk_status status = hk_rank(model, machine, job, settings, &options, ranking, &problem);
  if (status == HK_ENVIRONMENT) return hk_fail(err, status, "%s", problem.message);
  if (status == HK_OK) s->budget -= operations(ranking), s->advice->rankings++;
  return HK_OK;
}

/* Ranks a job. `made` is NULL if rank_quickly does not; else it says whether the job fits and how
 * fast it is. */
static hk_status rank(search *s, const hk_job *job, const visit **made, hk_error *err) {
  *made = NULL;
  for (int i = 0; i < s->n; i++) {
    if (!same_job(&s->visited[i].job, job)) continue;
    *made = &s->visited[i];
    return HK_OK;
  }
  hk_error problem = {0};
  hk_ranking ranking;
  if (s->n == MOST_VISITED || hk_job_check(job, s->model, &problem) != HK_OK) return HK_OK;
  HK_TRY(rank_quickly(s, s->model, s->machine, job, s->settings, *s->options, &ranking, err));
  if (ranking.n == 0) return HK_OK;
  visit *v = &s->visited[s->n++];
  *v = (visit){.job = *job, .fits = ranking.n_fit > 0};
  describe(s, job, s->settings->overlap, &ranking.forecasts[0], &v->found);
  hk_ranking_free(&ranking);
  *made = v;
  return HK_OK;
}

/* Suggests an alternative; `now`: tokens per second of the job, 0 if it does not fit. */
static void suggest(search *s, const hk_alternative *a, double now) {
  hk_advice *advice = s->advice;
  if (advice->n == HK_MOST_ADVICE) return;
  for (int i = 0; i < advice->n; i++)
    if (strcmp(advice->list[i].options, a->options) == 0) return;
  advice->list[advice->n] = *a;
  advice->list[advice->n++].gain = now > 0 ? a->tokens_per_s / now : 0;
}

/* -- Formats of state -------------------------------------------------------------------------- */

/* Host bytes a parameter, the bf16 weight included; 0: not AdamW. */
static double bytes_in_format(hk_optimizer state) {
  const hk_optimizer_info *info = hk_optimizer_info_of(state);
  const bool adamw = info->engine || state == HK_OPTIMIZER_ADAMW8BIT;
  return adamw ? hk_state_per_param(state) + (info->weight ? 0 : HK_BYTES_BF16) : 0;
}

static bool is_rounded(hk_optimizer state) {
  return state >= HK_OPTIMIZER_BF16 && state <= HK_OPTIMIZER_8BIT_SPLIT;
}

/* Whether all memory of the job's nodes would hold the state; if not, no simulation is needed. */
static bool may_hold(const search *s, hk_optimizer state) {
  const hk_machine *m = s->machine;
  const double host = m->host_memory.value / hk_job_jobs(s->job);
  const double memory = s->job->nodes * (host + s->job->gpus * m->gpu_memory.value);
  return hk_state_per_param(state) * (double)s->model->parameters <= memory;
}

/* Ranks the job with another state that takes less memory. *fits is false if there is none, if the
 * model's weights are not bf16, or beyond the budget. */
static hk_status rank_state(search *s, hk_optimizer state, hk_alternative *found, bool *fits,
                            hk_error *err) {
  const hk_optimizer now = s->settings->optimizer;
  hk_plan_settings settings = *s->settings;
  hk_ranking ranking;
  *fits = false;
  if (bytes_in_format(state) >= bytes_in_format(now) || !may_hold(s, state)) return HK_OK;
  settings.optimizer = state;
  HK_TRY(rank_quickly(s, s->model, s->machine, s->job, &settings, *s->options, &ranking, err));
  if (ranking.n == 0) return HK_OK;
  *fits = ranking.n_fit > 0;
  describe(s, s->job, s->settings->overlap, &ranking.forecasts[0], found);
  found->rounds = is_rounded(state) && !is_rounded(now);
  snprintf(found->options, sizeof found->options, "--state %s", hk_optimizer_names[state]);
  hk_ranking_free(&ranking);
  return HK_OK;
}

/* The most exact state in which the job fits, without a master weight if none of the engine's is
 * small enough. (8bit takes no less host memory than bf16+split.) */
static hk_status try_smaller_state(search *s, hk_error *err) {
  static const hk_optimizer states[] = {HK_OPTIMIZER_SPLIT, HK_OPTIMIZER_BF16,
                                        HK_OPTIMIZER_BF16_SPLIT, HK_OPTIMIZER_8BIT_SPLIT,
                                        HK_OPTIMIZER_ADAMW8BIT};
  for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
    hk_alternative found;
    bool fits = false;
    HK_TRY(rank_state(s, states[i], &found, &fits, err));
    if (!fits) continue;
    suggest(s, &found, 0);
    break;
  }
  return HK_OK;
}

/* Adapters of rank 16 beside frozen weights. */
static hk_status try_adapters(search *s, hk_error *err) {
  const hk_frozen_spec spec = {.rank = LORA_RANK, .bytes = HK_BYTES_BF16};
  hk_error problem = {0};
  hk_ranking ranking = {0};
  hk_model adapted;
  if (s->model->frozen != NULL || s->model->arch == HK_ARCH_LISTED) return HK_OK;
  HK_TRY(hk_model_from_config(s->model->config, s->model->name, &adapted, err));
  hk_status status = hk_model_freeze(&adapted, &spec, &problem);
  if (status == HK_ENVIRONMENT)
    status = hk_fail(err, status, "%s", problem.message);
  else if (status != HK_OK)
    status = HK_OK;
  else
    status = rank_quickly(s, &adapted, s->machine, s->job, s->settings, *s->options, &ranking, err);
  hk_model_free(&adapted);
  HK_TRY(status);
  if (ranking.n_fit > 0) {
    hk_alternative found;
    describe(s, s->job, s->settings->overlap, &ranking.forecasts[0], &found);
    found.lora = LORA_RANK;
    snprintf(found.options, sizeof found.options, "--lora %d", LORA_RANK);
    suggest(s, &found, 0);
  }
  hk_ranking_free(&ranking);
  return HK_OK;
}

/* States that are faster: the exact one, and the smallest one if it is faster still. */
static hk_status try_faster_state(search *s, const hk_forecast *best, hk_error *err) {
  static const hk_optimizer states[] = {HK_OPTIMIZER_SPLIT, HK_OPTIMIZER_BF16_SPLIT};
  double fastest = best->tokens_per_s;
  if (best->plan.runtime != HK_RUNTIME_HOCKET) return HK_OK;
  for (int i = 0; i < 2; i++) {
    hk_alternative found;
    bool fits = false;
    HK_TRY(rank_state(s, states[i], &found, &fits, err));
    if (!fits || found.tokens_per_s <= WORTH_SAYING * fastest) continue;
    fastest = found.tokens_per_s;
    suggest(s, &found, best->tokens_per_s);
  }
  return HK_OK;
}

/* -- Moves that keep the batch ----------------------------------------------------------------- */

enum { TOGGLE_CHECKPOINT, MORE_MICRO, LESS_MICRO, MORE_TP, LESS_TP, N_MOVES };

/* The same sequences in half as many ranks: twice the accumulation. In twice as many: half of the
 * accumulation or of the micro-batch. */
static bool move(hk_job *job, int which, int most_tp) {
  switch (which) {
    case TOGGLE_CHECKPOINT:
      job->checkpoint_activations = !job->checkpoint_activations;
      return true;
    case MORE_MICRO:
      if (job->grad_accum % 2 != 0) return false;
      job->micro_batch *= 2;
      job->grad_accum /= 2;
      return true;
    case LESS_MICRO:
      if (job->micro_batch % 2 != 0 || 2 * job->grad_accum > HK_MOST_GRAD_ACCUM) return false;
      job->micro_batch /= 2;
      job->grad_accum *= 2;
      return true;
    case MORE_TP:
      job->tp *= 2;
      job->grad_accum *= 2;
      return job->tp <= most_tp && job->gpus % job->tp == 0 &&
             job->grad_accum <= HK_MOST_GRAD_ACCUM;
    default:
      if (job->tp % 2 != 0 || (job->grad_accum % 2 != 0 && job->micro_batch % 2 != 0)) return false;
      job->tp /= 2;
      if (job->grad_accum % 2 == 0)
        job->grad_accum /= 2;
      else
        job->micro_batch /= 2;
      return true;
  }
}

/* The fastest neighbour that fits, among those with the same batch; NULL: none. */
static hk_status fastest_neighbour(search *s, const hk_job *from, const visit **best,
                                   hk_error *err) {
  *best = NULL;
  for (int which = 0; which < N_MOVES; which++) {
    hk_job job = *from;
    const visit *v = NULL;
    if (!move(&job, which, (int)s->job->gpus)) continue;
    HK_TRY(rank(s, &job, &v, err));
    if (v && v->fits && (!*best || v->found.tokens_per_s > (*best)->found.tokens_per_s)) *best = v;
  }
  return HK_OK;
}

/* Climbs from *job; *tokens is its speed. Both become those of the place where it ends. */
static hk_status climb(search *s, hk_job *job, double *tokens, hk_alternative *last,
                       hk_error *err) {
  for (;;) {
    const visit *best;
    HK_TRY(fastest_neighbour(s, job, &best, err));
    if (!best || best->found.tokens_per_s < LEAST_GAIN * *tokens) return HK_OK;
    *job = best->job;
    *tokens = best->found.tokens_per_s;
    *last = best->found;
  }
}

/* -- A job that fits --------------------------------------------------------------------------- */

/* Twice the micro-batch, again and again, from where the climb ended. */
static hk_status try_larger_batch(search *s, hk_job job, double tokens, double now, hk_error *err) {
  const visit *best = NULL, *v = NULL;
  for (int i = 0; i < 4 && job.micro_batch <= HK_MOST_MICRO_BATCH / 2; i++) {
    job.micro_batch *= 2;
    HK_TRY(rank(s, &job, &v, err));
    if (!v || !v->fits || v->found.tokens_per_s < LEAST_GAIN * tokens) break;
    tokens = v->found.tokens_per_s;
    best = v;
  }
  if (best) suggest(s, &best->found, now);
  return HK_OK;
}

/* Gradients that accumulate on the GPU take the place of state. */
static hk_status try_no_accumulation(search *s, hk_job job, double tokens, double now,
                                     hk_error *err) {
  const visit *v = NULL;
  if (job.grad_accum == 1) return HK_OK;
  job.grad_accum = 1;
  HK_TRY(rank(s, &job, &v, err));
  if (v && v->fits && v->found.tokens_per_s > WORTH_SAYING * tokens) suggest(s, &v->found, now);
  return HK_OK;
}

/* The job with overlap `both`: the search of `plan --overlap both` if the budget allows it and the
 * user fixed no setting, else one simulation of the best schedule with the overlap. */
static hk_status try_overlap(search *s, const hk_ranking *first, hk_error *err) {
  const hk_forecast *best = &first->forecasts[0];
  const hk_runtime hocket = HK_RUNTIME_HOCKET;
  hk_plan_settings settings = *s->settings;
  hk_ranking ranking;
  const double cost = s->ops_per_step * s->job->grad_accum;
  if (s->settings->overlap != HK_OVERLAP_NONE) return HK_OK;
  if (s->options->only_runtime != NULL && *s->options->only_runtime != hocket) return HK_OK;
  hk_ranking_options options = *s->options;
  options.only_runtime = &hocket;
  const bool all = OVERLAP_OPS * cost <= s->budget;
  if (!all) {
    const hk_policy *policy;
    const hk_forecast *like = hk_ranking_named(first, &policy);
    if (like == NULL || like->plan.runtime != hocket) return HK_OK;
    options.only_policy = policy;
    if (policy->takes & HK_TAKES_STRIDE && like->plan.stride > 0)
      options.fixed.stride = like->plan.stride;
    if (policy->takes & HK_TAKES_RATIO) options.fixed.ratio = like->plan.ratio;
  }
  settings.overlap = HK_OVERLAP_BOTH;
  HK_TRY(rank_quickly(s, s->model, s->machine, s->job, &settings, options, &ranking, err));
  if (ranking.n_fit > 0 && ranking.forecasts[0].tokens_per_s > WORTH_SAYING * best->tokens_per_s) {
    hk_alternative found;
    describe(s, s->job, HK_OVERLAP_BOTH, &ranking.forecasts[0], &found);
    suggest(s, &found, best->tokens_per_s);
  }
  hk_ranking_free(&ranking);
  return HK_OK;
}

static hk_status advise_faster(search *s, const hk_ranking *ranking, hk_error *err) {
  const hk_forecast *best = &ranking->forecasts[0];
  const double now = best->tokens_per_s;
  double tokens = now;
  hk_job job = *s->job;
  hk_alternative last = {0};
  HK_TRY(climb(s, &job, &tokens, &last, err));
  if (tokens > WORTH_SAYING * now) suggest(s, &last, now);
  HK_TRY(try_faster_state(s, best, err));
  HK_TRY(try_overlap(s, ranking, err));
  HK_TRY(try_larger_batch(s, job, tokens, now, err));
  return try_no_accumulation(s, job, tokens, now, err);
}

/* -- A job that does not fit ------------------------------------------------------------------- */

static void keep_faster(const visit *v, const visit **best) {
  if (v && v->fits && (!*best || v->found.tokens_per_s > (*best)->found.tokens_per_s)) *best = v;
}

typedef struct {
  search *search;
  hk_alternative most; /* of the largest number of jobs that fits so far */
} fewer_jobs;

static hk_status attempt_jobs(void *context, int64_t jobs, bool *fits, hk_error *err) {
  fewer_jobs *fewer = context;
  search *s = fewer->search;
  hk_ranking_options options = *s->options;
  hk_ranking ranking;
  hk_job job = *s->job;
  options.best_only = true;
  job.jobs = (int)jobs;
  HK_TRY(rank_quickly(s, s->model, s->machine, &job, s->settings, options, &ranking, err));
  *fits = ranking.n_fit > 0;
  if (*fits) describe(s, &job, s->settings->overlap, &ranking.forecasts[0], &fewer->most);
  hk_ranking_free(&ranking);
  return HK_OK;
}

/* As many of the equal jobs at once as fit. The few rankings do not count against the budget, which
 * would make the number too small. */
static hk_status try_fewer_jobs(search *s, hk_error *err) {
  const double budget = s->budget;
  fewer_jobs fewer = {.search = s};
  int64_t jobs;
  s->budget = INFINITY;
  HK_TRY(hk_largest(
      &(hk_largest_search){
          .most = hk_job_jobs(s->job) - 1, .attempt = attempt_jobs, .context = &fewer},
      &jobs, err));
  s->budget = budget;
  if (jobs == 0) return HK_OK;
  suggest(s, &fewer.most, 0);
  return HK_OK;
}

/* The loss in slices, where logits take more than what is missing: 4 bytes a logit from forward to
 * backward, and 2 in backward. */
static hk_status try_loss_chunks(search *s, const hk_forecast *nearest, const visit **best,
                                 hk_error *err) {
  const visit *v = NULL;
  hk_job job = *s->job;
  const double logits = 6.0 * (double)s->model->logits / job.tp * job.micro_batch * (double)job.seq;
  if (job.loss_chunks > 1 || logits * (LOSS_CHUNKS - 1) / LOSS_CHUNKS < (double)nearest->gpu_short)
    return HK_OK;
  job.loss_chunks = LOSS_CHUNKS;
  job.checkpoint_activations = true;
  HK_TRY(rank(s, &job, &v, err));
  keep_faster(v, best);
  return HK_OK;
}

/* Recomputed activations, smaller micro-batches, tensor parallelism and the loss in slices, with
 * the same batch. */
static hk_status try_same_batch(search *s, const hk_forecast *nearest, hk_error *err) {
  const visit *best = NULL, *v = NULL;
  HK_TRY(try_loss_chunks(s, nearest, &best, err));
  for (int tp = s->job->tp; tp <= s->job->gpus; tp *= 2) {
    hk_job job = *s->job;
    bool possible = true;
    job.checkpoint_activations = true;
    while (job.tp < tp && possible) possible = move(&job, MORE_TP, tp);
    if (!possible) break;
    do {
      HK_TRY(rank(s, &job, &v, err));
      keep_faster(v, &best);
    } while (!(v && v->fits) && move(&job, LESS_MICRO, tp));
  }
  if (best) suggest(s, &best->found, 0);
  return HK_OK;
}

static hk_status try_smaller_batch(search *s, hk_error *err) {
  const visit *best = NULL, *v = NULL;
  hk_job job = *s->job;
  job.grad_accum = 1;
  for (; job.micro_batch >= 1 && !best; job.micro_batch /= 2) {
    HK_TRY(rank(s, &job, &v, err));
    keep_faster(v, &best);
  }
  job.micro_batch = 1;
  job.checkpoint_activations = true;
  if (!best) HK_TRY(rank(s, &job, &v, err));
  if (!best) keep_faster(v, &best);
  if (best) suggest(s, &best->found, 0);
  return HK_OK;
}

static void double_gpus(const search *s, hk_job *job) {
  if (2 * hk_job_ranks(job) <= (int)s->machine->gpus.value)
    job->gpus *= 2;
  else
    job->nodes *= 2;
}

/* Whether all memory of a job's nodes is too small for what does not depend on the batch: the state
 * in host memory, and GPU memory in use before forward. Another plan may keep more of it on the GPU
 * than the nearest one does. */
static bool lacks_memory(const search *s, const hk_job *job, const hk_forecast *nearest) {
  const hk_memory_report *m = &nearest->result.memory;
  const double needs = (double)m->host_peak + (double)m->before_forward * s->job->gpus;
  const double has = (double)m->host_capacity + (double)m->capacity * job->gpus;
  return needs * s->job->nodes > has * job->nodes;
}

/* Twice the GPUs of the node as far as there are, then twice the nodes, until the job fits; then
 * the fewest nodes that fit. */
static hk_status try_more_gpus(search *s, const hk_forecast *nearest, hk_error *err) {
  const visit *v = NULL;
  hk_job job = *s->job;
  double_gpus(s, &job);
  while (lacks_memory(s, &job, nearest) && job.nodes <= MOST_NODES) double_gpus(s, &job);
  for (; !(v && v->fits) && job.nodes <= MOST_NODES; double_gpus(s, &job))
    HK_TRY(rank(s, &job, &v, err));
  if (!(v && v->fits)) return HK_OK;
  const visit *fewest = v;
  job = v->job;
  int too_few = (int)hk_max(s->job->nodes, fewest->job.nodes / 2);
  while (fewest->job.nodes - too_few > 1) {
    job.nodes = (too_few + fewest->job.nodes) / 2;
    v = NULL;
    if (!lacks_memory(s, &job, nearest)) HK_TRY(rank(s, &job, &v, err));
    if (v && v->fits)
      fewest = v;
    else
      too_few = job.nodes;
  }
  suggest(s, &fewest->found, 0);
  return HK_OK;
}

/* What a closed form on top of a forecast says. */
static hk_alternative closed_form(const search *s, const hk_job *job, const hk_forecast *forecast,
                                  hk_ns iteration) {
  hk_alternative found;
  describe(s, job, forecast->plan.overlap, forecast, &found);
  found.closed_form = true;
  found.iteration_ns = iteration;
  found.tokens_per_s = hk_job_tokens(job) * 1e9 / (double)hk_max(1, iteration);
  return found;
}

/* Layer inputs in host memory, if the job then fits. */
static hk_status try_checkpoints(search *s, hk_error *err) {
  hk_job job = *s->job;
  hk_ranking ranking;
  char size[16];
  job.checkpoint_activations = true;
  const hk_bytes moved = hk_checkpoints_moved(s->model, &job);
  const hk_machine roomier = hk_checkpoints_machine(s->machine, &job, moved);
  if (moved == 0) return HK_OK;
  HK_TRY(rank_quickly(s, s->model, &roomier, &job, s->settings, *s->options, &ranking, err));
  if (ranking.n_fit > 0) {
    const hk_forecast *best = &ranking.forecasts[0];
    const hk_checkpoints c = hk_checkpoints_of(best, s->machine);
    hk_alternative found = closed_form(s, &job, best, c.iteration_ns);
    snprintf(found.options, sizeof found.options,
             "recomputation with layer inputs in host memory (Unsloth's), %s a GPU",
             hk_format_bytes(moved, size, sizeof size));
    suggest(s, &found, 0);
  }
  hk_ranking_free(&ranking);
  return HK_OK;
}

/* State on the drives, if the job then fits. */
static hk_status try_nvme(search *s, hk_error *err) {
  const hk_runtime *runtime = s->options->only_runtime;
  const hk_machine *m = s->machine;
  hk_forecast forecast;
  hk_error problem = {0};
  hk_nvme nvme;
  char stored[16];
  if ((runtime && *runtime != HK_RUNTIME_DEEPSPEED) ||
      s->settings->optimizer != HK_OPTIMIZER_FP32 || s->job->loss_chunks > 1 ||
      s->ops_per_step * s->job->grad_accum > s->budget)
    return HK_OK;
  const hk_status status =
      hk_nvme_forecast(s->model, m, s->job, s->settings, &forecast, &nvme, &problem);
  if (status == HK_ENVIRONMENT) return hk_fail(err, status, "%s", problem.message);
  if (status != HK_OK) return HK_OK;
  if (nvme.fits) {
    hk_alternative found = closed_form(s, s->job, &forecast, nvme.iteration_ns);
    snprintf(found.options, sizeof found.options, "DeepSpeed with offload_optimizer on nvme");
    snprintf(found.schedule, sizeof found.schedule,
             "%s a node; update %.1f s at %.3g GB/s in, %.3g out: %s",
             hk_format_bytes((hk_bytes)nvme.stored, stored, sizeof stored),
             hk_ms(nvme.update_ns) / 1e3, m->nvme_read.value / 1e9, m->nvme_write.value / 1e9,
             hk_origin_name(m->nvme_write.origin));
    suggest(s, &found, 0);
  }
  hk_forecast_free(&forecast);
  return HK_OK;
}

hk_status hk_advise(const hk_model *model, const hk_machine *machine, const hk_job *job,
                    const hk_plan_settings *settings, const hk_ranking_options *options,
                    const hk_ranking *ranking, hk_advice *advice, hk_error *err) {
  *advice = (hk_advice){0};
  search *s = calloc(1, sizeof *s);
  if (!s) return hk_fail_memory(err, sizeof *s, "advice");
  const double first = operations(ranking);
  *s = (search){.model = model,
                .machine = machine,
                .job = job,
                .settings = settings,
                .options = options,
                .ops_per_step = first / job->grad_accum,
                .budget = fmin(first, MOST_FIRST) + MOST_OPS,
                .advice = advice};
  visit *own = &s->visited[s->n++];
  *own = (visit){.job = *job, .fits = ranking->n_fit > 0};
  describe(s, job, settings->overlap, &ranking->forecasts[0], &own->found);
  hk_status status = HK_OK;
  if (ranking->n_fit > 0) {
    status = advise_faster(s, ranking, err);
  } else {
    status = try_fewer_jobs(s, err);
    if (status == HK_OK) status = try_same_batch(s, &ranking->forecasts[0], err);
    if (status == HK_OK) status = try_smaller_state(s, err);
    if (status == HK_OK) status = try_smaller_batch(s, err);
    if (status == HK_OK) status = try_adapters(s, err);
    if (status == HK_OK) status = try_more_gpus(s, &ranking->forecasts[0], err);
    if (status == HK_OK && ranking->forecasts[0].gpu_short > 0) status = try_checkpoints(s, err);
    if (status == HK_OK) status = try_nvme(s, err);
  }
  free(s);
  return status;
}
