/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI's update of state that the caller keeps. */
#include "core/base/units.h"
#include "engine/abi_private.h"
#include "engine/adamw/adamw.h"
#include "engine/default_plan.h"
#include "engine/device/chunks.h"
#include "engine/device/team.h"

#define CHUNK ((int64_t)1 << 16) /* elements that a thread takes at a time, at most */

/* One update, as its threads see it. */
typedef struct {
  hk_adamw_step step;
  hk_grad_type type;
  float *p, *m, *v;
  const char *grad;
  hk_chunks chunks;
} operation;

static void update_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const operation *op = arg;
  const int64_t at = hk_chunk_begin(&op->chunks, chunk);
  const int64_t n = hk_chunk_begin(&op->chunks, chunk + 1) - at;
  hk_cpu_kernels_best()->adamw(&op->step, op->type, n, op->p + at, op->m + at, op->v + at,
                               op->grad + at * (int64_t)hk_grad_size(op->type), NULL);
}

static hk_status check(const hocket_group *group, int64_t step, int32_t threads,
                       const hocket_state *state, hk_error *err) {
  HK_TRY(hk_abi_given(group, "the group", err));
  const hk_adamw hyper = hk_abi_hyper(group);
  HK_TRY(hk_engine_check_group(&hyper, 0, err));
  HK_TRY(hk_abi_given(state, "the state", err));
  if (step < 1) return hk_fail(err, HK_INPUT, "step %lld: expected at least 1", (long long)step);
  if (threads < 0 || threads > HK_MOST_CPU_THREADS) {
    return hk_fail(err, HK_INPUT, "threads: from 0 (one less than the CPUs) to %d, got %d",
                   HK_MOST_CPU_THREADS, (int)threads);
  }
  if (state->numel < 0 || state->numel > INT64_MAX / 4) {
    return hk_fail(err, HK_INPUT, "%lld elements: expected 0 to 2.3e18", (long long)state->numel);
  }
  if (state->grad_type < HOCKET_BF16 || state->grad_type > HOCKET_FP32) {
    return hk_fail(err, HK_INPUT, "gradients of type %d: expected HOCKET_BF16, _FP16 or _FP32",
                   (int)state->grad_type);
  }
  HK_TRY(hk_abi_given(state->p, "master weights", err));
  HK_TRY(hk_abi_given(state->m, "momentum", err));
  HK_TRY(hk_abi_given(state->v, "variance", err));
  return hk_abi_given(state->gradient, "the gradient", err);
}

static hk_status update(const hocket_group *group, int64_t step, int32_t threads,
                        const hocket_state *state, hk_error *err) {
  const hk_adamw hyper = hk_abi_hyper(group);
  const int64_t wanted = threads > 0 ? threads : hk_default_threads(HK_OVERLAP_NONE);
  const hk_team_options options = {.threads = (int)hk_min(wanted, state->numel / CHUNK + 1)};
  hk_team *team = NULL;
  HK_TRY(hk_team_open(&options, &team, err));
  operation op = {.step = hk_adamw_prepare(&hyper, step, 1),
                  .type = (hk_grad_type)state->grad_type,
                  .p = state->p,
                  .m = state->m,
                  .v = state->v,
                  .grad = state->gradient,
                  .chunks = hk_chunks_of(state->numel, CHUNK, options.threads)};
  hk_team_run(team, op.chunks.count, update_chunk, &op);
  hk_team_close(team);
  return HK_OK;
}

int hocket_adamw(const hocket_group *group, int64_t step, int32_t threads,
                 const hocket_state *state, char *message) {
  hk_error err = {0};
  hk_status status = check(group, step, threads, state, &err);
  if (status == HK_OK) status = update(group, step, threads, state, &err);
  return hk_abi_answer(status, &err, message);
}
