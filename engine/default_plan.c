/* SPDX-License-Identifier: Apache-2.0 */
/* The plan for tensors whose owner gives none. */
#include "engine/default_plan.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/graph/bytes.h"
#include "core/graph/graph.h"
#include "core/machine/team.h"
#include "engine/device/cpu_quota.h"

/* Most parameters of a subgroup; larger blocks are cut. */
#define SUBGROUP_NUMEL ((int64_t)1 << 30)

/* A model of more blocks than this has subgroups of several blocks each. Each subgroup costs some
 * twenty microseconds an iteration, however small it is. */
#define MOST_BLOCKS 256

/* Most parameters of a piece, the unit of copies and updates. Smaller pieces cost more time,
 * because the team's threads wait for each other at the end of each. Larger ones delay the first
 * update and need larger slots. */
#define MOST_PIECE ((int64_t)24000000)

/* -- Threads ----------------------------------------------------------------------------------- */

int hk_default_threads(hk_overlap overlap) {
  cpu_set_t allowed;
  int cpus = 1;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) cpus = CPU_COUNT(&allowed);
  const int quota = hk_cpu_quota("");
  if (quota > 0 && quota < cpus) cpus = quota;
  return hk_training_threads(overlap, cpus);
}

/* -- The plan ---------------------------------------------------------------------------------- */

/* Size of pieces that cuts the most common size of subgroup, a model's layers, into equal parts. */
static int64_t even_piece(const hk_plan *plan) {
  int64_t piece = 1, most = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    const int64_t size = plan->subgroups[s].numel;
    int64_t same = 0; /* parameters in subgroups of this size among the next 64 */
    for (size_t i = s; i < plan->n_subgroups && i < s + 64; i++) {
      if (plan->subgroups[i].numel == size) same += size;
    }
    if (same <= most) continue;
    most = same;
    const int64_t pieces = (size + MOST_PIECE - 1) / MOST_PIECE;
    piece = (size + pieces - 1) / pieces;
  }
  return piece;
}

/* Sets the tensors' blocks for the plan. Up to MOST_BLOCKS blocks are kept. If there are more,
 * consecutive blocks are merged until each has at least 1 / MOST_BLOCKS of all parameters. Returns
 * the number of blocks. */
static int merge_blocks(const hk_param *params, size_t n, hk_tensor *tensors) {
  const int blocks = (int)params[n - 1].block + 1;
  int64_t numel = 0, in_merged = 0;
  int merged = 0;
  for (size_t p = 0; p < n; p++) numel += params[p].numel;
  for (size_t p = 0; p < n; p++) {
    const bool begins = p > 0 && params[p].block != params[p - 1].block;
    if (begins && in_merged >= numel / MOST_BLOCKS) {
      merged++;
      in_merged = 0;
    }
    in_merged += params[p].numel;
    tensors[p].block = blocks <= MOST_BLOCKS ? (int)params[p].block : merged;
  }
  return blocks <= MOST_BLOCKS ? blocks : merged + 1;
}

hk_status hk_default_plan(const hk_param *params, size_t n, int threads, hk_plan *plan,
                          hk_error *err) {
  hk_tensor *tensors = calloc(n, sizeof *tensors);
  if (tensors == NULL) return hk_fail_memory(err, n * sizeof *tensors, "the model's tensors");
  for (size_t p = 0; p < n; p++) {
    snprintf(tensors[p].name, sizeof tensors[p].name, "tensor %zu", p);
    tensors[p].numel = params[p].numel;
    tensors[p].weight_type = (hk_dtype)params[p].weight_type;
    tensors[p].grad_type = (hk_dtype)params[p].grad_type;
  }
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 1};
  hk_model model = {0};
  const int blocks = merge_blocks(params, n, tensors);
  hk_status status = hk_model_from_tensors("model", tensors, n, blocks, &model, err);
  if (status == HK_OK) {
    status = hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, SUBGROUP_NUMEL,
                            plan, err);
  }
  hk_model_free(&model);
  free(tensors);
  if (status != HK_OK) return status;
  plan->piece_numel = even_piece(plan);
  snprintf(plan->policy, sizeof plan->policy, "zero-offload");
  plan->cpu_threads = threads > 0 ? threads : hk_default_threads(HK_OVERLAP_NONE);
  return HK_OK;
}

/* -- What runs ahead, and what stays on the GPU ------------------------------------------------ */

/* GPU memory of a resident subgroup beside its gradients: its state, and at
 * most one slab that is not filled. */
#define SLAB_WASTE (12 * HK_MIB)

/* The tensors that a plan is for. */
typedef struct {
  const hk_param *params;
  size_t n;
} tensor_list;

/* Parameters of the block whose gradients arrive last. When they have, the norm is known, so that
 * nothing of that block can run ahead of it. */
static int64_t first_block(const tensor_list *list) {
  int64_t numel = 0;
  for (size_t p = 0; p < list->n && list->params[p].block == list->params[0].block; p++)
    numel += list->params[p].numel;
  return numel;
}

/* Lets subgroups run ahead from the deepest on, as far as `spares` bytes reach. */
static void run_ahead_within(hk_plan *plan, const tensor_list *list, hk_bytes spares) {
  int64_t left = first_block(list);
  hk_plan_run_ahead_within(plan, spares, plan->n_subgroups - 1);
  for (size_t s = 0; s < plan->n_subgroups && plan->subgroups[s].numel <= left; s++) {
    left -= plan->subgroups[s].numel;
    plan->subgroups[s].ahead = false;
  }
}

/* Lets deep subgroups run ahead, as far as the host memory beside the engine's own holds their
 * spares. */
static hk_status choose_ahead(hk_plan *plan, const tensor_list *list, hk_bytes host_memory,
                              hk_error *err) {
  hk_engine_memory memory;
  run_ahead_within(plan, list, 0);
  HK_TRY(hk_engine_measure(plan, list->params, list->n, &memory, err));
  const hk_bytes left = host_memory - memory.host_pinned;
  run_ahead_within(plan, list, hk_max(left, 0));
  /* Spares are whole slabs, which may be filled in part: measure, and drop the shallowest subgroups
   * until all fits. */
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    if (!plan->subgroups[s].ahead) continue;
    HK_TRY(hk_engine_measure(plan, list->params, list->n, &memory, err));
    if (memory.host_pinned <= host_memory) return HK_OK;
    plan->subgroups[s].ahead = false;
  }
  return HK_OK;
}

/* A position in the flat order of the tensors' elements. */
typedef struct {
  size_t param;
  int64_t used; /* elements of this tensor that lie before the position */
} tensor_cursor;

/* Bytes of the gradients of the next n elements. */
static hk_bytes gradient_bytes(const tensor_list *list, tensor_cursor *at, int64_t n) {
  hk_bytes bytes = 0;
  while (n > 0) {
    const hk_param *p = &list->params[at->param];
    const int64_t here = hk_min(n, p->numel - at->used);
    bytes += here * (hk_bytes)hk_grad_size(p->grad_type);
    n -= here;
    at->used += here;
    if (at->used == p->numel) *at = (tensor_cursor){.param = at->param + 1};
  }
  return bytes;
}

/* Keeps shallow subgroups on the GPU as far as `bytes` hold their state and gradients, because
 * forward waits for their weights first. Returns the bytes that are left. */
static hk_bytes choose_resident(hk_plan *plan, const tensor_list *list, hk_bytes bytes) {
  tensor_cursor at = {0};
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    hk_plan_subgroup *sub = &plan->subgroups[s];
    const hk_bytes needs = hk_state_bytes(plan->optimizer, sub->numel) +
                           gradient_bytes(list, &at, sub->numel) + SLAB_WASTE;
    if (sub->route != HK_ROUTE_CPU) continue;
    if (needs > bytes) break;
    *sub = (hk_plan_subgroup){.numel = sub->numel, .route = HK_ROUTE_RESIDENT};
    bytes -= needs;
  }
  return bytes;
}

/* Lets the new weights of deep subgroups go up before the norm is known, as far as `bytes` hold
 * them: 2 an element. */
static void choose_early(hk_plan *plan, hk_bytes bytes) {
  for (size_t s = plan->n_subgroups; s-- > 0;) {
    hk_plan_subgroup *sub = &plan->subgroups[s];
    sub->early = sub->ahead && 2 * sub->numel <= bytes;
    if (sub->early) bytes -= 2 * sub->numel;
  }
}

hk_status hk_choose_routes(hk_plan *plan, const hk_param *params, size_t n_params,
                           hk_bytes host_memory, hk_bytes gpu_memory, hk_error *err) {
  const tensor_list list = {params, n_params};
  int64_t in_plan = 0, in_tensors = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) in_plan += plan->subgroups[s].numel;
  for (size_t p = 0; p < n_params; p++) in_tensors += params[p].numel;
  if (in_plan != in_tensors) return hk_state_fail_sizes(in_tensors, in_plan, err);
  if (plan->overlap != HK_OVERLAP_BOTH) {
    choose_resident(plan, &list, gpu_memory);
    return HK_OK;
  }
  HK_TRY(choose_ahead(plan, &list, host_memory, err));
  const hk_bytes early = hk_min(2 * hk_plan_ahead(plan), gpu_memory);
  const hk_bytes left = choose_resident(plan, &list, gpu_memory - early);
  /* Again: resident subgroups take no host memory. */
  HK_TRY(choose_ahead(plan, &list, host_memory, err));
  choose_early(plan, early + left);
  return HK_OK;
}
