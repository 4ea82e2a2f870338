/* SPDX-License-Identifier: Apache-2.0 */
/* Creating and destroying an engine, and the hyperparameters of its groups. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/machine/team.h"
#include "engine/device/topology.h"
#include "engine/private.h"
#include "engine/run/owner.h"

/* -- What the caller gave ---------------------------------------------------------------------- */

hk_status hk_engine_check_group(const hk_adamw *h, size_t group, hk_error *err) {
  const bool right = h->lr >= 0 && h->lr < 1e30 && h->beta1 >= 0 && h->beta1 < 1 && h->beta2 >= 0 &&
                     h->beta2 < 1 && h->eps >= 0 && h->eps < 1e30 && h->weight_decay >= 0 &&
                     h->weight_decay < 1e30;
  if (right) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "parameter group %zu: lr %g, beta1 %g, beta2 %g, eps %g, weight decay %g: betas "
                 "must lie in [0, 1), the others in [0, 1e30)",
                 group, h->lr, h->beta1, h->beta2, h->eps, h->weight_decay);
}

/* Allocates the arrays for groups and tensors. */
static hk_status allocate_params(hk_engine *e, size_t n_groups, size_t n_params, hk_error *err) {
  e->groups = calloc(n_groups, sizeof *e->groups);
  e->group_numel = calloc(n_groups, sizeof *e->group_numel);
  e->params = calloc(n_params, sizeof *e->params);
  e->param_end = calloc(n_params, sizeof *e->param_end);
  e->flat_end = calloc(n_params, sizeof *e->flat_end);
  e->param_step = calloc(n_params, sizeof *e->param_step);
  e->active = calloc(n_params, sizeof *e->active);
  e->steps = calloc(n_params, sizeof *e->steps);
  if (e->groups == NULL || e->group_numel == NULL || e->params == NULL || e->param_end == NULL ||
      e->flat_end == NULL || e->param_step == NULL || e->active == NULL || e->steps == NULL) {
    return hk_fail_memory(err, n_params * sizeof *e->params, "tensors and parameter groups");
  }
  e->n_groups = n_groups;
  e->n_params = n_params;
  return HK_OK;
}

static hk_status check_group_count(size_t n, hk_error *err) {
  if (n >= 1 && n <= HK_MOST_PARAM_GROUPS) return HK_OK;
  return hk_fail(err, HK_INPUT, "an engine takes 1 to %d parameter groups, got %zu",
                 HK_MOST_PARAM_GROUPS, n);
}

static hk_status check_param(const hk_param *p, size_t number, size_t n_groups, int32_t block,
                             int64_t before, hk_error *err) {
  if (p->numel < 1 || p->numel > INT64_MAX / 4 - before) {
    return hk_fail(err, HK_INPUT,
                   "tensor %zu has %lld elements: expected at least 1, and at most 2.3e18 in all",
                   number, (long long)p->numel);
  }
  if (p->group < 0 || (size_t)p->group >= n_groups) {
    return hk_fail(err, HK_INPUT, "tensor %zu is of parameter group %d; there are %zu", number,
                   (int)p->group, n_groups);
  }
  if (p->block < block) {
    return hk_fail(err, HK_INPUT,
                   "tensor %zu is of block %d, the one before it of block %d: tensors come in the "
                   "order of their blocks, which count from 0",
                   number, (int)p->block, (int)block);
  }
  if ((unsigned)p->weight_type < HK_GRAD_TYPES && (unsigned)p->grad_type < HK_GRAD_TYPES)
    return HK_OK;
  return hk_fail(err, HK_INPUT, "tensor %zu: its types must be bf16, fp16 or fp32", number);
}

static const char *without_split(hk_format format) {
  return hk_format_is_coded(format) ? "8bit" : hk_format_is_short(format) ? "bf16" : "fp32";
}

/* A split format keeps bf16 weights. */
static hk_status check_weight_types(const hk_engine *e, hk_error *err) {
  if (!hk_format_is_split(hk_state_format(&e->plan))) return HK_OK;
  for (size_t p = 0; p < e->n_params; p++) {
    if (e->params[p].weight_type == HK_GRAD_BF16) continue;
    return hk_fail(err, HK_INPUT,
                   "state '%s' keeps bf16 weights, and tensor %zu has %s weights: use state '%s'",
                   hk_optimizer_names[e->plan.optimizer], p,
                   e->params[p].weight_type == HK_GRAD_FP16 ? "fp16" : "fp32",
                   without_split(hk_state_format(&e->plan)));
  }
  return HK_OK;
}

static hk_status take_params(hk_engine *e, const hk_param *params, size_t n_params,
                             const hk_adamw *groups, size_t n_groups, hk_error *err) {
  HK_TRY(check_group_count(n_groups, err));
  if (n_params < 1 || n_params > INT32_MAX / 2) {
    return hk_fail(err, HK_INPUT, "an engine takes 1 to %d tensors, got %zu", INT32_MAX / 2,
                   n_params);
  }
  HK_TRY(allocate_params(e, n_groups, n_params, err));
  for (size_t g = 0; g < n_groups; g++) {
    HK_TRY(hk_engine_check_group(&groups[g], g, err));
    e->groups[g] = groups[g];
  }
  const int64_t unit = hk_format_unit(hk_state_format(&e->plan));
  int64_t end = 0, place = 0;
  for (size_t p = 0; p < n_params; p++) {
    HK_TRY(check_param(&params[p], p, n_groups, p > 0 ? params[p - 1].block : 0, end, err));
    e->params[p] = params[p];
    e->group_numel[params[p].group] += params[p].numel;
    e->flat_end[p] = end += params[p].numel;
    e->param_end[p] = place + params[p].numel;
    place = (e->param_end[p] + unit - 1) / unit * unit;
  }
  return check_weight_types(e, err);
}

/* -- Memory ------------------------------------------------------------------------------------ */

/* Checks that there is enough host memory, which includes the host backend's device memory. */
static hk_status check_room(const hk_engine *e, hk_error *err) {
  const bool host = strcmp(e->options.backend->name, hk_backend_host.name) == 0;
  const hk_bytes device = host ? e->device.all : 0;
  const hk_bytes arena = e->options.host_memory == NULL ? e->host.all : 0;
  return hk_arena_check_room(arena + device, "this plan's engine", err);
}

static hk_status open_device(hk_engine *e, hk_error *err) {
  const hk_backend_ops *ops = e->options.backend;
  hk_backend_options options = e->options.backend_options;
  /* Default size of the host backend's device memory: what the plan needs, plus 64 MiB for a
   * caller's gradients. */
  if (options.memory == 0) options.memory = e->device.all + 64 * HK_MIB;
  if (options.threads == 0) options.threads = 1;
  HK_TRY(ops->open(e->options.device, &options, &e->backend, err));
  HK_TRY(ops->info(e->backend, &e->info, err));
  if (e->device.all > e->info.memory_free) {
    char wish[32], free_now[32];
    hk_format_bytes(e->device.all, wish, sizeof wish);
    hk_format_bytes(e->info.memory_free, free_now, sizeof free_now);
    return hk_fail(err, HK_ENVIRONMENT,
                   "%s has %s of memory free, this plan needs %s of it; fewer resident subgroups, "
                   "fewer or smaller staging buffers (--buffers) need less",
                   e->info.name, free_now, wish);
  }
  return ops->stream_open(e->backend, false, &e->stream, err);
}

/* The *n CPUs to which threads are pinned, of which the first options.first_core are skipped; NULL:
 * threads are not pinned. The caller frees the array. */
static int *cpus_to_pin(const hk_engine *e, int *n) {
  int *cpus = NULL;
  hk_error unknown = {0};
  *n = 0;
  if (e->options.no_pin_threads || hk_cpu_order(e->info.pci, &cpus, n, &unknown) != HK_OK)
    return NULL;
  return cpus;
}

static hk_status open_teams(hk_engine *e, hk_error *err) {
  int n = 0;
  free(cpus_to_pin(e, &n));
  _Static_assert(HK_MOST_AHEAD == HK_QUEUED_AHEAD, "what hk_team_size says of the executor");
  const int cores = e->plan.job.gpus > 1 ? n : n - e->options.first_core;
  const int threads = hk_team_size(&e->graph, e->plan.cpu_threads, cores);
  const hk_team_options options = {.threads = threads,
                                   .pin = !e->options.no_pin_threads,
                                   .pci = e->info.pci,
                                   .first_core = e->options.first_core};
  HK_TRY(hk_team_open(&options, &e->team, err));
  hk_engine_add_note(e, hk_team_note(e->team));
  if (threads < e->plan.cpu_threads)
    hk_engine_add_note(e, "one of the team's threads queues copies instead");
  return HK_OK;
}

static hk_status open_host_memory(hk_engine *e, hk_error *err) {
  const hk_host_layout *h = &e->host;
  if (e->options.host_memory != NULL) {
    HK_TRY(hk_arena_borrow(e->options.host_memory, h->all, e->team, &e->arena, err));
  } else {
    HK_TRY(hk_arena_open(h->all, e->team, e->info.pci, &e->arena, err));
    HK_TRY(hk_arena_register(&e->arena, e->backend, err));
  }
  hk_engine_add_note(e, e->arena.note);
  return HK_OK;
}

/* -- Staging buffers, which pieces go round in ------------------------------------------------- */

static hk_status assign_buffers(hk_engine *e, hk_error *err) {
  const hk_graph *graph = &e->graph;
  e->buffer = calloc(graph->n_ops, sizeof *e->buffer);
  if (e->buffer == NULL) {
    return hk_fail_memory(err, graph->n_ops * sizeof *e->buffer, "the operations' buffers");
  }
  int staging = -1;
  for (size_t i = 0; i < graph->n_ops; i++) {
    switch (graph->ops[i].kind) {
      case HK_OP_STATE_H2D: /* in the graph a piece's copy in, kernel and copy out follow each other
                             */
        staging = (staging + 1) % e->plan.buffers;
        e->buffer[i] = staging;
        break;
      case HK_OP_ADAMW_GPU:
      case HK_OP_STATE_D2H:
        e->buffer[i] = staging;
        break;
      default:
        break;
    }
  }
  return HK_OK;
}

/* -- Making and unmaking ----------------------------------------------------------------------- */

static void team_has_begun(void *arg) {
  hk_executor_begun(arg);
}

/* Opens the executor. Its queueing threads use the cores that the team leaves free. */
static hk_status open_executor(hk_engine *e, hk_error *err) {
  hk_executor_actions actions = {.run = hk_training_act,
                                 .join = hk_training_join,
                                 .arg = e,
                                 .external = hk_training_external_lanes(e)};
  const int used = e->options.first_core + hk_team_threads(e->team);
  int n = 0, *cpus = cpus_to_pin(e, &n);
  if (n > used) {
    actions.cpus = cpus + used;
    actions.n_cpus = n - used;
  }
  const hk_status status = hk_executor_open(&e->graph, e->backend, &actions, &e->executor, err);
  free(cpus);
  if (status == HK_OK) hk_team_when_begun(e->team, team_has_begun, e->executor);
  return status;
}

/* The plan's graph, cut where the state is. */
static hk_status build_graph(hk_engine *e, hk_error *err) {
  hk_plan places;
  HK_TRY(hk_state_places(&e->plan, &e->state, &places, err));
  const hk_status status =
      hk_graph_build(&places, (hk_expand){HK_EXPAND_ENGINE, .folded = true}, &e->graph, err);
  hk_plan_free(&places);
  return status;
}

/* Builds the engine when groups and tensors have been taken. */
static hk_status build(hk_engine *e, hk_error *err) {
  HK_TRY(hk_state_layout(&e->plan, e->params, e->n_params, &e->state, err));
  e->kernels = hk_cpu_kernels_best();
  hk_engine_lay_out(e);
  HK_TRY(build_graph(e, err));
  HK_TRY(assign_buffers(e, err));
  HK_TRY(hk_owners_open(e, err));
  HK_TRY(check_room(e, err));
  HK_TRY(open_device(e, err));
  HK_TRY(open_teams(e, err));
  HK_TRY(open_host_memory(e, err));
  HK_TRY(hk_engine_take_device(e, err));
  hk_engine_place(e);
  return open_executor(e, err);
}

hk_status hk_engine_check_plan(const hk_plan *plan, hk_error *err) {
  if (plan->runtime != HK_RUNTIME_HOCKET)
    return hk_fail(err, HK_INPUT,
                   "the plan is for the runtime '%s', which is predicted only: predict it with "
                   "'hocket simulate', measure DeepSpeed itself with bench/peers, or plan with "
                   "--runtime hocket",
                   hk_runtime_name(plan->runtime));
  if (hk_job_pp(&plan->job) > 1 || plan->job.sequence_parallel)
    return hk_fail(err, HK_INPUT,
                   "the plan has %d pipeline stages%s, which are predicted only: the engine trains "
                   "without them",
                   hk_job_pp(&plan->job),
                   plan->job.sequence_parallel ? " and sequence parallelism" : "");
  if (hk_job_ep(&plan->job) > 1)
    return hk_fail(err, HK_INPUT,
                   "the plan divides experts among %d ranks, which is predicted only: the engine "
                   "trains without",
                   plan->job.ep);
  HK_TRY(hk_plan_check(plan, err));
  if (!hk_optimizer_info_of(plan->optimizer)->engine)
    return hk_fail(err, HK_INPUT,
                   "the plan is for state '%s', which is predicted only: the engine implements "
                   "fp32, split, bf16, bf16+split, 8bit and 8bit+split",
                   hk_optimizer_names[plan->optimizer]);
  return HK_OK;
}

/* Creates an engine that has only its options and a copy of the plan. */
static hk_status begin_engine(const hk_plan *plan, const hk_engine_options *options,
                              hk_engine **engine, hk_error *err) {
  HK_TRY(hk_engine_check_plan(plan, err));
  hk_engine *e = calloc(1, sizeof *e);
  if (e == NULL) return hk_fail_memory(err, sizeof *e, "the engine");
  e->options = *options;
  if (e->options.backend == NULL) e->options.backend = &hk_backend_host;
  *engine = e;
  return hk_plan_copy(plan, &e->plan, err);
}

hk_status hk_engine_create(const hk_plan *plan, const hk_param *params, size_t n_params,
                           const hk_adamw *groups, size_t n_groups,
                           const hk_engine_options *options, hk_engine **engine, hk_error *err) {
  hk_engine *e = NULL;
  hk_status status = begin_engine(plan, options, &e, err);
  if (e == NULL) return status;
  if (status == HK_OK) status = take_params(e, params, n_params, groups, n_groups, err);
  if (status == HK_OK) status = hk_training_allocate(e, err);
  if (status == HK_OK) status = build(e, err);
  if (status == HK_OK) status = hk_training_open(e, err);
  if (status == HK_OK) {
    *engine = e;
  } else {
    hk_engine_destroy(e);
  }
  return status;
}

void hk_engine_destroy(hk_engine *e) {
  if (e == NULL) return;
  hk_training_close(e);
  hk_executor_close(e->executor);
  if (e->stream != NULL) e->backend->ops->stream_close(e->stream);
  hk_engine_give_device_back(e);
  hk_arena_close(&e->arena);
  hk_team_close(e->team);
  if (e->backend != NULL) e->backend->ops->close(e->backend);
  hk_graph_free(&e->graph);
  hk_state_free(&e->state);
  hk_plan_free(&e->plan);
  free(e->groups);
  free(e->group_numel);
  free(e->params);
  free(e->param_end);
  free(e->flat_end);
  free(e->param_step);
  free(e->active);
  free(e->steps);
  free(e->buffer);
  hk_owners_close(e);
  free(e);
}

/* -- Groups ------------------------------------------------------------------------------------ */

static hk_status check_group(const hk_engine *e, size_t group, hk_error *err) {
  if (group < e->n_groups) return HK_OK;
  return hk_fail(err, HK_INPUT, "there is no parameter group %zu: the engine has %zu", group,
                 e->n_groups);
}

hk_status hk_engine_set_group(hk_engine *e, size_t group, const hk_adamw *hyper, hk_error *err) {
  HK_TRY(check_group(e, group, err));
  HK_TRY(hk_engine_check_group(hyper, group, err));
  e->groups[group] = *hyper;
  return HK_OK;
}

hk_status hk_engine_get_group(const hk_engine *e, size_t group, hk_adamw *out, hk_error *err) {
  HK_TRY(check_group(e, group, err));
  *out = e->groups[group];
  return HK_OK;
}
