/* SPDX-License-Identifier: Apache-2.0 */
/* Creates, copies, checks and sums up plans. Jobs are in job.c, the JSON form in plan_json.c. */
#include "core/graph/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"

const char *const hk_route_names[HK_ROUTE_COUNT] = {"cpu", "staged", "mapped", "resident"};
const char *const hk_runtime_names[2] = {"hocket", "deepspeed"};

const char *const hk_overlap_names[HK_OVERLAP_COUNT] = {"none", "forward", "both"};

const char *const hk_accumulate_names[HK_ACCUMULATE_COUNT] = {"gpu", "host"};
const char *const hk_clip_names[HK_CLIP_COUNT] = {"norm", "block"};

const char *hk_route_name(hk_route route) {
  return hk_route_names[route];
}
const char *hk_runtime_name(hk_runtime runtime) {
  return hk_runtime_names[runtime];
}

#define DEFAULT_BUFFERS 4

/* Default size of a piece: 1/256 of the rank's parameters, 1 M to 20 M.
 * Upper limit: the staging pipeline fills with one piece and drains with one. With 256 pieces that
 * is below 1 % of an update. On an H200 pieces of 5 M reached 0.975 to 0.98 of the duplex limit,
 * pieces of 20 M 0.963, and pieces of 100 M were 6 % slower.
 * Lower limit: below 1 M parameters, launch latencies become visible. */
#define PIECES      256
#define MILLION     1000000LL
#define LEAST_PIECE (1 * MILLION)
#define MOST_PIECE  (20 * MILLION)

static int64_t default_piece(const hk_plan *plan) {
  int64_t parameters = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) parameters += plan->subgroups[i].numel;
  int64_t piece = (parameters / PIECES + MILLION / 2) / MILLION * MILLION;
  if (piece < LEAST_PIECE) piece = LEAST_PIECE;
  if (piece > MOST_PIECE) piece = MOST_PIECE;
  return piece < plan->subgroup_numel ? piece : plan->subgroup_numel;
}

static hk_status check_runtime(hk_runtime runtime, const hk_job *job, const hk_model *model,
                               hk_error *err) {
  if (runtime != HK_RUNTIME_DEEPSPEED) return HK_OK;
  if (model->arch == HK_ARCH_LISTED) {
    return hk_fail(err, HK_INPUT,
                   "%s is a list of tensors: hocket knows what DeepSpeed does for transformers "
                   "only; use runtime hocket",
                   model->name);
  }
  if (model->frozen != NULL) {
    return hk_fail(err, HK_INPUT,
                   "%s has frozen parameters: hocket knows what DeepSpeed does if all are trained; "
                   "leave out --lora or --trainable, or use runtime hocket",
                   model->name);
  }
  if (hk_job_pp(job) > 1 || job->sequence_parallel) {
    return hk_fail(err, HK_INPUT,
                   "pp %d%s: ZeRO-3 offload of DeepSpeed has no pipeline and no sequence "
                   "parallelism; use runtime hocket",
                   hk_job_pp(job), job->sequence_parallel ? ", sequence parallel" : "");
  }
  if (hk_job_ep(job) > 1) {
    return hk_fail(err, HK_INPUT,
                   "ep %d: ZeRO-3 offload of DeepSpeed divides experts as other parameters; use "
                   "runtime hocket",
                   job->ep);
  }
  if (job->loss_chunks > 1) {
    return hk_fail(err, HK_INPUT,
                   "loss_chunks %d: under DeepSpeed hocket knows Megatron's loss, which takes all "
                   "tokens at once; use runtime hocket",
                   job->loss_chunks);
  }
  return HK_OK;
}

hk_status hk_plan_create(hk_model *model, const hk_job *job, hk_runtime runtime,
                         hk_subgroup_rule rule, int64_t subgroup_numel, hk_plan *plan,
                         hk_error *err) {
  memset(plan, 0, sizeof *plan);
  HK_TRY(hk_job_check(job, model, err));
  HK_TRY(check_runtime(runtime, job, model, err));
  hk_subgroup *subgroups = NULL;
  size_t n = 0;
  HK_TRY(hk_model_subgroups(model, job->tp, hk_job_dp(job), rule, subgroup_numel, &subgroups, &n,
                            err));
  plan->subgroups = calloc(n, sizeof *plan->subgroups);
  plan->order = calloc(n, sizeof *plan->order);
  if (plan->subgroups == NULL || plan->order == NULL) {
    free(subgroups);
    hk_plan_free(plan);
    return hk_fail_memory(err, n * sizeof *plan->subgroups, "the plan's subgroups");
  }
  for (size_t i = 0; i < n; i++) {
    plan->subgroups[i] = (hk_plan_subgroup){.numel = subgroups[i].numel};
    plan->order[i] = (int32_t)i;
  }
  free(subgroups);

  plan->model = *model;
  memset(model, 0, sizeof *model);
  plan->job = *job;
  plan->runtime = runtime;
  plan->ratio = 1;
  plan->flush = HK_FLUSH_ASYNC;
  plan->flush_bytes_per_param = runtime == HK_RUNTIME_DEEPSPEED ? 4 : 2;
  plan->buffers = DEFAULT_BUFFERS;
  plan->cpu_threads = 1;
  plan->cores_bound = true;
  plan->subgroup_rule = rule;
  plan->subgroup_numel = subgroup_numel;
  plan->n_subgroups = n;
  plan->piece_numel = default_piece(plan);
  return HK_OK;
}

static void clear_marks(hk_plan_subgroup *subgroup) {
  subgroup->ahead = subgroup->early = subgroup->held_staged = false;
}

void hk_plan_set_overlap(hk_plan *plan, hk_overlap overlap) {
  plan->overlap = overlap;
  plan->steals = plan->steals && overlap != HK_OVERLAP_NONE;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    clear_marks(&plan->subgroups[i]);
    if (overlap != HK_OVERLAP_NONE) plan->order[i] = (int32_t)i;
  }
}

hk_status hk_plan_copy(const hk_plan *from, hk_plan *to, hk_error *err) {
  *to = *from;
  memset(&to->model, 0, sizeof to->model);
  const size_t n = from->n_subgroups;
  to->subgroups = malloc(n * sizeof *to->subgroups);
  to->order = malloc(n * sizeof *to->order);
  if (to->subgroups == NULL || to->order == NULL) {
    hk_plan_free(to);
    return hk_fail_memory(err, n * sizeof *to->subgroups, "a copy of the plan");
  }
  memcpy(to->subgroups, from->subgroups, n * sizeof *to->subgroups);
  memcpy(to->order, from->order, n * sizeof *to->order);
  hk_status status = hk_model_copy(&from->model, &to->model, err);
  if (status != HK_OK) hk_plan_free(to);
  return status;
}

void hk_plan_free(hk_plan *plan) {
  hk_model_free(&plan->model);
  free(plan->subgroups);
  free(plan->order);
  memset(plan, 0, sizeof *plan);
}

/* What an overlap requires of a plan. */
static hk_status check_overlap(const hk_plan *plan, hk_error *err) {
  const char *name = hk_overlap_names[plan->overlap];
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[i];
    if (subgroup->ahead && (plan->overlap != HK_OVERLAP_BOTH || subgroup->route != HK_ROUTE_CPU)) {
      return hk_fail(err, HK_INPUT,
                     "subgroups[%zu]: runs ahead of the norm, which needs overlap 'both' and route "
                     "'cpu', but has overlap '%s' and route '%s'",
                     i, name, hk_route_name(subgroup->route));
    }
    if (subgroup->early && !subgroup->ahead) {
      return hk_fail(err, HK_INPUT,
                     "subgroups[%zu]: its weights are early, but it does not run ahead of the norm",
                     i);
    }
    if (subgroup->held_staged && !subgroup->ahead) {
      return hk_fail(
          err, HK_INPUT,
          "subgroups[%zu]: is staged in steps in which nothing runs ahead (held_staged), "
          "but does not run ahead of the norm in others",
          i);
    }
    if (plan->overlap != HK_OVERLAP_NONE && plan->order[i] != (int32_t)i) {
      return hk_fail(err, HK_INPUT,
                     "order[%zu] is %d: with overlap '%s' subgroups are updated in forward order",
                     i, (int)plan->order[i], name);
    }
  }
  if (plan->overlap == HK_OVERLAP_NONE) return HK_OK;
  if (plan->runtime != HK_RUNTIME_HOCKET) {
    return hk_fail(err, HK_INPUT, "overlap '%s' needs runtime hocket, got %s", name,
                   hk_runtime_name(plan->runtime));
  }
  if (plan->flush != HK_FLUSH_ASYNC || plan->flush_bytes_per_param != 2) {
    return hk_fail(err, HK_INPUT,
                   "overlap '%s' needs gradients that leave beside backward in their own type: "
                   "flush async, 2 bytes a parameter",
                   name);
  }
  return HK_OK;
}

/* What an optimizer requires of a plan. */
static hk_status check_optimizer(const hk_plan *plan, hk_error *err) {
  const hk_optimizer_info *optimizer = hk_optimizer_info_of(plan->optimizer);
  if (plan->runtime == HK_RUNTIME_DEEPSPEED && plan->optimizer != HK_OPTIMIZER_FP32) {
    return hk_fail(err, HK_INPUT,
                   "optimizer '%s': hocket knows DeepSpeed's passes of AdamW with fp32 state only; "
                   "use runtime hocket",
                   optimizer->name);
  }
  if (!optimizer->orthogonal) return HK_OK;
  if (plan->model.arch == HK_ARCH_LISTED) {
    return hk_fail(err, HK_INPUT,
                   "optimizer '%s': %s is a list of tensors, which does not say which are matrices",
                   optimizer->name, plan->model.name);
  }
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_route route = plan->subgroups[i].route;
    if (route == HK_ROUTE_STAGED || route == HK_ROUTE_RESIDENT) continue;
    return hk_fail(err, HK_INPUT,
                   "subgroups[%zu]: optimizer '%s' multiplies matrices, which needs route 'staged' "
                   "or 'resident' (policy streamed, gpu-only, or interleave with stride 1), got "
                   "'%s'",
                   i, optimizer->name, hk_route_name(route));
  }
  return HK_OK;
}

static hk_status check_flush(const hk_plan *plan, hk_error *err) {
  if (plan->flush_blocks < 0 || plan->flush_blocks > HK_MOST_FLUSH)
    return hk_fail(err, HK_INPUT, "flush.blocks: expected a whole number from 1 to %d, got %d",
                   HK_MOST_FLUSH, plan->flush_blocks);
  if (plan->runtime == HK_RUNTIME_DEEPSPEED && (plan->flush_blocks > 0 || plan->reduce_first))
    return hk_fail(err, HK_INPUT,
                   "flush.blocks, flush.reduce_first: DeepSpeed has neither; use runtime hocket");
  if (plan->flush_blocks > 0 && (plan->flush != HK_FLUSH_ASYNC || plan->overlap != HK_OVERLAP_NONE))
    return hk_fail(err, HK_INPUT, "flush.blocks: needs mode async and no overlap of updates");
  return HK_OK;
}

static hk_status check_settings(const hk_plan *plan, hk_error *err) {
  if (!(plan->ratio >= 0 && plan->ratio <= 1)) {
    return hk_fail(err, HK_INPUT, "ratio: expected a number from 0 to 1, got %g", plan->ratio);
  }
  if (plan->flush_bytes_per_param != 2 && plan->flush_bytes_per_param != 4) {
    return hk_fail(err, HK_INPUT, "flush.bytes_per_param: expected 2 (bf16) or 4 (fp32), got %d",
                   plan->flush_bytes_per_param);
  }
  if (plan->runtime == HK_RUNTIME_DEEPSPEED && plan->accumulate != HK_ACCUMULATE_GPU) {
    return hk_fail(err, HK_INPUT,
                   "accumulate '%s': DeepSpeed sums gradients in host memory in its own way; use "
                   "runtime hocket",
                   hk_accumulate_names[plan->accumulate]);
  }
  if (plan->stride < 0 || plan->stride > HK_MOST_STRIDE) {
    return hk_fail(err, HK_INPUT, "stride: expected a whole number from 0 to %d, got %d",
                   HK_MOST_STRIDE, plan->stride);
  }
  if (plan->buffers < 1 || plan->buffers > HK_MOST_BUFFERS) {
    return hk_fail(err, HK_INPUT, "buffers: expected a whole number from 1 to %d, got %d",
                   HK_MOST_BUFFERS, plan->buffers);
  }
  if (plan->steals && (plan->runtime != HK_RUNTIME_HOCKET || plan->overlap == HK_OVERLAP_NONE))
    return hk_fail(err, HK_INPUT, "staging.steals: needs runtime hocket and an overlap");
  if (plan->piece_numel < 1) {
    return hk_fail(err, HK_INPUT, "piece_numel: expected at least 1 parameter, got %lld",
                   (long long)plan->piece_numel);
  }
  if (plan->cpu_threads < 1 || plan->cpu_threads > HK_MOST_CPU_THREADS) {
    return hk_fail(err, HK_INPUT, "cpu.threads: expected a whole number from 1 to %d, got %d",
                   HK_MOST_CPU_THREADS, plan->cpu_threads);
  }
  return check_flush(plan, err);
}

hk_status hk_plan_check(const hk_plan *plan, hk_error *err) {
  HK_TRY(hk_job_check(&plan->job, &plan->model, err));
  HK_TRY(check_runtime(plan->runtime, &plan->job, &plan->model, err));
  HK_TRY(check_settings(plan, err));

  const int64_t end = hk_model_rank_parameters(&plan->model, plan->job.tp, hk_job_dp(&plan->job));
  int64_t total = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    if (plan->subgroups[i].numel < 1 || plan->subgroups[i].numel > end - total) {
      return hk_fail(err, HK_INPUT,
                     "subgroups[%zu]: %lld parameters, but one rank of %s has %lld in all, %lld of "
                     "them before this subgroup",
                     i, (long long)plan->subgroups[i].numel, plan->model.name, (long long)end,
                     (long long)total);
    }
    if (plan->runtime == HK_RUNTIME_DEEPSPEED && plan->subgroups[i].route == HK_ROUTE_MAPPED) {
      return hk_fail(err, HK_INPUT,
                     "subgroups[%zu]: DeepSpeed has no route 'mapped'; use runtime hocket", i);
    }
    total += plan->subgroups[i].numel;
  }
  if (total != end) {
    return hk_fail(err, HK_INPUT,
                   "subgroups add up to %lld parameters, but one rank of %s has %lld",
                   (long long)total, plan->model.name, (long long)end);
  }

  unsigned char *seen = calloc(plan->n_subgroups, 1);
  if (seen == NULL) return hk_fail_memory(err, plan->n_subgroups, "the check of a plan");
  hk_status status = HK_OK;
  for (size_t i = 0; i < plan->n_subgroups && status == HK_OK; i++) {
    const int32_t s = plan->order[i];
    if (s < 0 || (size_t)s >= plan->n_subgroups || seen[s]) {
      status = hk_fail(err, HK_INPUT,
                       "order[%zu] is %d: expected each subgroup from 0 to %zu exactly once", i,
                       (int)s, plan->n_subgroups - 1);
    } else {
      seen[s] = 1;
    }
  }
  free(seen);
  if (status == HK_OK) status = check_overlap(plan, err);
  return status == HK_OK ? check_optimizer(plan, err) : status;
}

void hk_plan_subgroup_blocks(const hk_plan *plan, int32_t *first, int32_t *last) {
  const int blocks = (int)plan->model.layers + 2;
  hk_block_walk walk = {.model = &plan->model, .tp = plan->job.tp, .dp = hk_job_dp(&plan->job)};
  int64_t at = 0;
  hk_block_walk_next(&walk);
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    const int64_t end = at + plan->subgroups[s].numel;
    while (walk.end <= at && walk.next < blocks) hk_block_walk_next(&walk);
    first[s] = walk.next - 1;
    while (walk.end < end && walk.next < blocks) hk_block_walk_next(&walk);
    last[s] = walk.next - 1;
    at = end;
  }
}

int64_t hk_grad_slots(int64_t pieces, hk_bytes largest, hk_bytes sum_bytes) {
  enum { MOST_SLOTS = 8 };
  const hk_bytes most_bytes = 512 * HK_MIB;
  const int64_t fit = largest > 0 ? most_bytes / largest : 0;
  const int64_t keep = largest > 0 ? sum_bytes / largest : 0;
  return hk_min(pieces, hk_max(2, hk_min(MOST_SLOTS, fit)) + keep);
}

int64_t hk_grad_kept(int64_t pieces, hk_bytes largest, int64_t slots) {
  return slots == pieces ? pieces : slots - hk_grad_slots(pieces, largest, 0);
}

bool hk_plan_grads_wait_early(const hk_plan *plan, size_t s, int64_t begin) {
  const hk_plan_subgroup *subgroup = &plan->subgroups[s];
  if (plan->overlap != HK_OVERLAP_BOTH || !subgroup->early) return false;
  const int64_t n = subgroup->numel;
  return hk_model_grad_bytes(&plan->model, plan->job.tp, hk_job_dp(&plan->job), begin, begin + n) <=
         HK_BYTES_BF16 * n;
}

hk_grad_room hk_plan_grad_room(const hk_plan *plan) {
  hk_grad_room room = {0};
  int64_t largest = 0, begin = 0;
  for (size_t s = 0; s < plan->n_subgroups; begin += plan->subgroups[s++].numel) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[s];
    if (subgroup->route != HK_ROUTE_CPU || hk_plan_grads_wait_early(plan, s, begin)) continue;
    room.pieces += (subgroup->numel + plan->piece_numel - 1) / plan->piece_numel;
    largest = hk_max(largest, hk_min(subgroup->numel, plan->piece_numel));
  }
  const hk_bytes slot = HK_BYTES_BF16 * largest;
  room.slots = hk_grad_slots(room.pieces, slot, plan->sum_bytes);
  room.kept = hk_grad_kept(room.pieces, slot, room.slots);
  room.bytes = room.slots * slot;
  return room;
}

double hk_plan_passing_share(const hk_plan *plan) {
  if (plan->job.grad_accum <= 1 || !hk_plan_hands_over(plan)) return 0;
  const hk_grad_room room = hk_plan_grad_room(plan);
  int64_t passing = 0, all = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[s];
    const bool waits = hk_plan_grads_wait_early(plan, s, all);
    if (subgroup->route == HK_ROUTE_CPU && !waits) passing += subgroup->numel;
    all += subgroup->numel;
  }
  if (passing == 0) return 0;
  const double leave = (double)(room.pieces - room.kept) / (double)room.pieces;
  return leave * (double)passing / (double)all;
}

int64_t hk_plan_ahead(const hk_plan *plan) {
  int64_t sum = 0;
  if (plan->overlap != HK_OVERLAP_BOTH) return 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    if (plan->subgroups[i].ahead) sum += plan->subgroups[i].numel;
  }
  return sum;
}

int64_t hk_plan_early(const hk_plan *plan) {
  int64_t sum = 0;
  if (plan->overlap != HK_OVERLAP_BOTH) return 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    if (plan->subgroups[i].early) sum += plan->subgroups[i].numel;
  }
  return sum;
}

int64_t hk_plan_held_staged(const hk_plan *plan) {
  int64_t sum = 0;
  if (plan->overlap != HK_OVERLAP_BOTH) return 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    if (plan->subgroups[i].held_staged) sum += plan->subgroups[i].numel;
  }
  return sum;
}

void hk_plan_run_ahead_within(hk_plan *plan, hk_bytes spares, size_t deepest) {
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    clear_marks(&plan->subgroups[s]);
  }
  if (plan->overlap != HK_OVERLAP_BOTH) return;
  for (size_t s = deepest + 1; s-- > 0;) {
    hk_plan_subgroup *subgroup = &plan->subgroups[s];
    if (subgroup->route != HK_ROUTE_CPU) continue;
    spares -= hk_spare_bytes(plan->optimizer, subgroup->numel);
    if (spares < 0) return;
    subgroup->ahead = true;
  }
}

bool hk_plan_hands_over(const hk_plan *plan) {
  const bool wanted = plan->overlap != HK_OVERLAP_NONE || plan->model.arch == HK_ARCH_LISTED;
  return wanted && plan->runtime == HK_RUNTIME_HOCKET && hk_job_dp(&plan->job) == 1;
}

hk_accumulate hk_plan_accumulates(const hk_plan *plan) {
  if (plan->job.grad_accum <= 1) return HK_ACCUMULATE_GPU;
  if (hk_job_keeps_weights(&plan->job) && hk_job_dp(&plan->job) > 1) return HK_ACCUMULATE_GPU;
  if (plan->runtime == HK_RUNTIME_DEEPSPEED) return HK_ACCUMULATE_HOST;
  if (plan->accumulate == HK_ACCUMULATE_GPU && hk_plan_hands_over(plan)) return HK_ACCUMULATE_HOST;
  return plan->accumulate;
}

/* Decimals of a ratio: two, or as many as it has if those are at most five. */
static int digits_of(double ratio) {
  double scaled = 100 * ratio;
  for (int digits = 2; digits <= 5; digits++) {
    if (fabs(scaled - round(scaled)) < 1e-6) return digits;
    scaled *= 10;
  }
  return 2;
}

/* Whether hocket's resident subgroups, of which policies keep the last, are the first. With an
 * overlap they always are. */
static bool is_front(const hk_plan *plan) {
  const size_t resident = hk_plan_count(plan, HK_ROUTE_RESIDENT);
  size_t i = 0;
  while (i < resident && plan->subgroups[i].route == HK_ROUTE_RESIDENT) i++;
  return i == resident && i > 0 && i < plan->n_subgroups && plan->overlap == HK_OVERLAP_NONE &&
         plan->runtime == HK_RUNTIME_HOCKET;
}

const char *hk_plan_title(const hk_plan *plan, char *buffer, size_t size) {
  char stride[24] = "", ratio[24] = "", overlap[24] = "", sums[24] = "", flush[24] = "";
  if (plan->stride > 0) snprintf(stride, sizeof stride, " k=%d", plan->stride);
  if (plan->ratio > 0 && plan->ratio < 1)
    snprintf(ratio, sizeof ratio, " r=%.*f", digits_of(plan->ratio), plan->ratio);
  if (plan->overlap != HK_OVERLAP_NONE)
    snprintf(overlap, sizeof overlap, " overlap %s", hk_overlap_names[plan->overlap]);
  if (plan->accumulate != HK_ACCUMULATE_GPU && plan->job.grad_accum > 1)
    snprintf(sums, sizeof sums, " sums %s", hk_accumulate_names[plan->accumulate]);
  if (plan->flush_blocks > 0)
    snprintf(flush, sizeof flush, " flush %d", plan->flush_blocks);
  else if (plan->runtime == HK_RUNTIME_HOCKET && plan->flush == HK_FLUSH_SYNC)
    snprintf(flush, sizeof flush, " flush sync");
  snprintf(buffer, size, "%s%s%s%s%s%s%s%s", plan->policy, stride, ratio,
           is_front(plan) ? " front" : "", overlap, sums, flush,
           plan->reduce_first ? " reduce first" : "");
  return buffer;
}

void hk_plan_route_totals(const hk_plan *plan, int64_t totals[HK_ROUTE_COUNT]) {
  for (int r = 0; r < HK_ROUTE_COUNT; r++) totals[r] = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    totals[plan->subgroups[i].route] += plan->subgroups[i].numel;
  }
}

size_t hk_plan_count(const hk_plan *plan, hk_route route) {
  size_t n = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) n += plan->subgroups[s].route == route;
  return n;
}

int64_t hk_plan_on_route(const hk_plan *plan, hk_route route) {
  int64_t totals[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, totals);
  return totals[route];
}

bool hk_plan_steals(const hk_plan *plan) {
  return plan->runtime == HK_RUNTIME_HOCKET && plan->overlap != HK_OVERLAP_NONE &&
         (plan->steals || hk_plan_on_route(plan, HK_ROUTE_STAGED) > 0);
}

bool hk_plan_stealable(const hk_plan *plan, size_t s) {
  const hk_plan_subgroup *subgroup = &plan->subgroups[s];
  return subgroup->route == HK_ROUTE_CPU && !subgroup->held_staged &&
         !(plan->clip == HK_CLIP_BLOCK && subgroup->ahead);
}

hk_bytes hk_plan_gpu_state(const hk_plan *plan) {
  return hk_state_bytes(plan->optimizer, hk_plan_on_route(plan, HK_ROUTE_RESIDENT));
}

hk_bytes hk_plan_spare_staging(const hk_plan *plan) {
  const int64_t grads = plan->model.mixed_types ? HK_BYTES_FP32 : HK_BYTES_BF16;
  return plan->buffers *
         (hk_state_bytes(plan->optimizer, plan->piece_numel) + grads * plan->piece_numel);
}

/* Staging buffers that only clipped steps need. */
static hk_bytes held_staging(const hk_plan *plan) {
  if (hk_plan_held_staged(plan) == 0 || hk_plan_on_route(plan, HK_ROUTE_STAGED) > 0) return 0;
  return hk_plan_spare_staging(plan);
}

hk_bytes hk_plan_gpu_kept(const hk_plan *plan) {
  const hk_bytes state = hk_plan_gpu_state(plan);
  if (plan->overlap == HK_OVERLAP_NONE) return state;
  const int64_t resident = hk_plan_on_route(plan, HK_ROUTE_RESIDENT);
  return state + HK_BYTES_BF16 * (resident + hk_plan_early(plan)) + held_staging(plan) +
         plan->sum_bytes;
}

bool hk_plan_keeps_within(const hk_plan *plan, const hk_bytes *limit) {
  return limit == NULL || hk_plan_gpu_kept(plan) <= *limit;
}

bool hk_plan_interleaves(const hk_plan *plan) {
  return plan->stride > 0 || hk_plan_on_route(plan, HK_ROUTE_STAGED) > 0;
}
