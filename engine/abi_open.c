/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI's tensors, groups and options as the engine's (see abi_private.h). */
#include "engine/abi_private.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "engine/default_plan.h"
#include "engine/device/arena.h"

static hk_status load_plan(const char *plan, hk_plan *out, hk_error *err) {
  if (plan[0] != '{') return hk_plan_load(plan, out, err);
  cJSON *root = NULL;
  HK_TRY(hk_json_parse(plan, strlen(plan), "plan", &root, err));
  const hk_status status = hk_plan_from_json(root, out, err);
  cJSON_Delete(root);
  return status;
}

/* The named backend, else CUDA where it has a device. */
static hk_status choose_backend(const char *name, const hk_backend_ops **backend, hk_error *err) {
  if (name != NULL) return hk_backend_find(name, backend, err);
  int devices = 0;
  const bool cuda = hk_backend_cuda.count(&devices, NULL) == HK_OK && devices > 0;
  *backend = cuda ? &hk_backend_cuda : &hk_backend_host;
  return HK_OK;
}

hk_adamw hk_abi_hyper(const hocket_group *g) {
  return (hk_adamw){.lr = g->lr,
                    .beta1 = g->beta1,
                    .beta2 = g->beta2,
                    .eps = g->eps,
                    .weight_decay = g->weight_decay};
}

static hk_param param_of(const hocket_tensor *t) {
  return (hk_param){.numel = t->numel,
                    .group = t->group,
                    .block = t->block,
                    .weight_type = (hk_grad_type)t->weight_type,
                    .grad_type = (hk_grad_type)t->grad_type,
                    .weight = t->weight,
                    .key = t->name != NULL ? hk_checkpoint_key(t->name) : 0};
}

static hk_status check_counts(const hocket_tensor *tensors, size_t n, hk_error *err) {
  int32_t block = 0;
  HK_TRY(hk_abi_given(tensors, "tensors", err));
  if (n < 1 || n > INT32_MAX / 2) {
    return hk_fail(err, HK_INPUT, "an engine takes at least one tensor, and at most %d; got %zu",
                   INT32_MAX / 2, n);
  }
  for (size_t t = 0; t < n; t++) {
    const char *name = tensors[t].name != NULL ? tensors[t].name : "";
    if (tensors[t].numel < 1 || tensors[t].numel > INT64_MAX / 16) {
      return hk_fail(err, HK_INPUT, "tensor %zu %s has %lld elements: expected 1 to 5.7e17", t,
                     name, (long long)tensors[t].numel);
    }
    if (tensors[t].block < block || tensors[t].block > 1 << 20) {
      return hk_fail(err, HK_INPUT,
                     "tensor %zu %s is of block %d, after one of block %d: tensors come in the "
                     "order of their blocks, which count from 0 to %d",
                     t, name, (int)tensors[t].block, (int)block, 1 << 20);
    }
    block = tensors[t].block;
    const int32_t types[2] = {tensors[t].weight_type, tensors[t].grad_type};
    for (int i = 0; i < 2; i++) {
      if (types[i] >= HOCKET_BF16 && types[i] <= HOCKET_FP32) continue;
      return hk_fail(err, HK_INPUT,
                     "tensor %zu %s: type %d is not known: expected 0 (bf16), 1 (fp16) or 2 (fp32)",
                     t, name, (int)types[i]);
    }
  }
  return HK_OK;
}

static hk_status choose_state(const char *name, hk_plan *plan, hk_error *err) {
  if (name == NULL) return HK_OK;
  const char *today = hk_optimizer_name_today(name);
  for (int o = 0; o < HK_OPTIMIZER_COUNT; o++) {
    if (strcmp(today, hk_optimizer_names[o]) != 0) continue;
    plan->optimizer = (hk_optimizer)o;
    return hk_engine_check_plan(plan, err); /* refuses those that are predicted only */
  }
  return hk_fail(
      err, HK_INPUT,
      "state '%.40s' is not known: expected fp32, split, bf16, bf16+split, 8bit or 8bit+split",
      name);
}

static hk_status find_plan(const char *text, const hk_param *params, size_t n,
                           const hocket_options *o, hk_plan *plan, hk_error *err) {
  if (o->clip != HOCKET_CLIP_NORM && o->clip != HOCKET_CLIP_BLOCK) {
    return hk_fail(err, HK_INPUT, "clip %d is not known: expected 0 (norm) or 1 (block)",
                   (int)o->clip);
  }
  if (o->overlap < HOCKET_OVERLAP_PLAN || o->overlap > HOCKET_OVERLAP_BOTH) {
    return hk_fail(
        err, HK_INPUT,
        "overlap %d is not known: expected 0 (the plan's), 1 (none), 2 (forward) or 3 (both)",
        (int)o->overlap);
  }
  if (o->cpu_threads < 0 || o->cpu_threads > HK_MOST_CPU_THREADS) {
    return hk_fail(err, HK_INPUT, "cpu_threads: from 0 (as planned) to %d, got %d",
                   HK_MOST_CPU_THREADS, (int)o->cpu_threads);
  }
  HK_TRY(text != NULL ? load_plan(text, plan, err)
                      : hk_default_plan(params, n, (int)o->cpu_threads, plan, err));
  if (o->cpu_threads > 0) plan->cpu_threads = (int)o->cpu_threads;
  HK_TRY(choose_state(o->state, plan, err));
  plan->clip = o->clip == HOCKET_CLIP_BLOCK ? HK_CLIP_BLOCK : HK_CLIP_NORM;
  return HK_OK;
}

/* Sets the overlap that the options name, and chooses what follows from it. */
static hk_status choose_overlap(const char *text, const hk_param *params, size_t n,
                                const hocket_options *o, hk_plan *plan, hk_error *err) {
  const bool planned = o->overlap == HOCKET_OVERLAP_PLAN;
  if (planned && text != NULL) return HK_OK;
  const hk_overlap overlap =
      planned ? plan->overlap : (hk_overlap)(o->overlap - HOCKET_OVERLAP_NONE);
  if (text != NULL && plan->overlap == overlap) return HK_OK;
  hk_plan_set_overlap(plan, overlap);
  if (text == NULL && o->cpu_threads == 0) plan->cpu_threads = hk_default_threads(overlap);
  const hk_bytes most =
      o->host_memory > 0 ? hk_min(hk_host_available(), o->host_memory) : hocket_host_memory();
  /* A plan given by the caller has already chosen what stays on the GPU. */
  return hk_choose_routes(plan, params, n, most, text == NULL ? o->gpu_memory : 0, err);
}

int64_t hocket_host_memory(void) {
  const hk_bytes room = hk_host_available();
  return room - room / 16; /* left to the framework: data loading, checkpoints */
}

/* The format of state that fits into `most` bytes of host memory and changes the least: the same
 * bits before others. HK_OPTIMIZER_COUNT: none does. */
static hk_optimizer state_that_fits(const hk_plan *plan, const hk_param *params, size_t n,
                                    hk_bytes most) {
  bool splits = true;
  for (size_t p = 0; p < n; p++) splits = splits && params[p].weight_type == HK_GRAD_BF16;
  for (int o = HK_OPTIMIZER_FP32; o <= HK_OPTIMIZER_8BIT_SPLIT; o++) {
    hk_engine_memory memory;
    hk_error unused = {0};
    hk_plan other = *plan;
    other.optimizer = (hk_optimizer)o;
    if (hk_format_is_split(hk_state_format(&other)) && !splits) continue;
    if (hk_engine_measure(&other, params, n, &memory, &unused) == HK_OK &&
        memory.host_pinned <= most)
      return other.optimizer;
  }
  return HK_OPTIMIZER_COUNT;
}

/* Fails if the engine needs more host memory than `most` bytes allow (0: no limit), or than there
 * is. Says whether fewer spares would do, and names a format of state that would. */
static hk_status check_host_memory(const hk_plan *plan, const hk_param *params, size_t n,
                                   hk_bytes most, const hk_backend_ops *backend, hk_error *err) {
  hk_engine_memory memory;
  char needs[32], has[32], instead[128] = "";
  if (most < 0) {
    return hk_fail(err, HK_INPUT, "host_memory: %lld bytes; 0 stands for what is available",
                   (long long)most);
  }
  HK_TRY(hk_engine_check_plan(plan, err));
  HK_TRY(hk_engine_measure(plan, params, n, &memory, err));
  const bool allowed = most == 0 || memory.host_pinned <= most;
  /* The host backend's device memory is host memory, too. */
  const hk_bytes beside = backend == &hk_backend_host ? memory.device : 0;
  hk_error why = {0};
  if (allowed &&
      hk_arena_check_room(memory.host_pinned + beside, "this plan's engine", &why) == HK_OK)
    return HK_OK;
  const hk_bytes room = allowed ? hk_host_available() - beside : most;
  const hk_bytes spares = hk_spare_bytes(plan->optimizer, hk_plan_ahead(plan));
  if (spares > 0 && memory.host_pinned - spares <= room)
    snprintf(instead, sizeof instead, ", or plan with fewer spares (hocket plan --host-memory)");
  const hk_optimizer fits = state_that_fits(plan, params, n, room);
  const size_t used = strlen(instead);
  if (fits != HK_OPTIMIZER_COUNT)
    snprintf(instead + used, sizeof instead - used, ", or use state '%s'",
             hk_optimizer_names[fits]);
  if (allowed) return hk_fail(err, why.status, "%s%s", why.message, instead);
  return hk_fail(err, HK_NO,
                 "the optimizer's state needs %s of host memory, host_memory allows %s: allow "
                 "more, or let more of it stay on the GPU (gpu_memory)%s",
                 hk_format_bytes(memory.host_pinned, needs, sizeof needs),
                 hk_format_bytes(most, has, sizeof has), instead);
}

static hk_status create(const char *text, const hk_param *params, size_t n, const hk_adamw *groups,
                        size_t n_groups, const hocket_options *o, hk_engine **engine,
                        hk_error *err) {
  hk_engine_options inner = {.device = o->device,
                             .no_pin_threads = o->pin_threads == 0,
                             .first_core = o->first_core,
                             .seed = o->seed};
  hk_plan plan = {0};
  HK_TRY(choose_backend(o->backend, &inner.backend, err));
  hk_status status = find_plan(text, params, n, o, &plan, err);
  if (status == HK_OK) status = choose_overlap(text, params, n, o, &plan, err);
  if (status == HK_OK)
    status = check_host_memory(&plan, params, n, o->host_memory, inner.backend, err);
  if (status == HK_OK) {
    status = hk_engine_create(&plan, params, n, groups, n_groups, &inner, engine, err);
  }
  hk_plan_free(&plan);
  return status;
}

/* Converts the ABI's types to the engine's, and creates the engine. */
hk_status hk_abi_open(const char *plan, const hocket_tensor *tensors, size_t n,
                      const hocket_group *groups, size_t n_groups, const hocket_options *options,
                      hk_engine **engine, hk_error *err) {
  HK_TRY(check_counts(tensors, n, err));
  HK_TRY(hk_abi_given(groups, "groups", err));
  if (n_groups < 1 || n_groups > HK_MOST_PARAM_GROUPS) {
    return hk_fail(err, HK_INPUT, "an engine takes 1 to %d parameter groups, got %zu",
                   HK_MOST_PARAM_GROUPS, n_groups);
  }
  hk_param *params = calloc(n, sizeof *params);
  hk_adamw *hyper = calloc(n_groups + 1, sizeof *hyper);
  hk_status status = params != NULL && hyper != NULL
                         ? HK_OK
                         : hk_fail_memory(err, n * sizeof *params, "tensors and groups");
  for (size_t t = 0; params != NULL && t < n; t++) params[t] = param_of(&tensors[t]);
  for (size_t g = 0; hyper != NULL && g < n_groups; g++) hyper[g] = hk_abi_hyper(&groups[g]);
  if (status == HK_OK) {
    status = create(plan, params, n, hyper, n_groups, options, engine, err);
  }
  free(params);
  free(hyper);
  return status;
}
