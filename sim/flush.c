/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/flush.h"

/* How many gradients may be on the GPU: blocks (0: any number), and the order of collectives. */
typedef struct {
  hk_flush mode;
  int blocks;
  bool reduce_first;
} flush_limit;

static hk_status with_limit(const hk_plan *plan, flush_limit limit, const hk_machine *machine,
                            hk_forecast *out, hk_error *err) {
  hk_plan other;
  HK_TRY(hk_plan_copy(plan, &other, err));
  other.flush_blocks = limit.blocks;
  other.reduce_first = limit.reduce_first;
  other.flush = limit.mode;
  if (limit.mode == HK_FLUSH_SYNC) other.flush_bytes_per_param = 2;
  return hk_forecast_make(&other, machine, NULL, out, err);
}

/* Puts the plan with the limit in *found if it fits. *fits: whether it does. */
static hk_status try_limit(const hk_plan *plan, flush_limit limit, const hk_machine *machine,
                           hk_forecast *found, bool *fits, hk_error *err) {
  hk_forecast other;
  HK_TRY(with_limit(plan, limit, machine, &other, err));
  *fits = other.feasible;
  hk_forecast_free(*fits ? found : &other);
  if (*fits) *found = other;
  return HK_OK;
}

/* The plan with the most blocks whose gradients may wait that fits; *found stays as it is if none
 * does. */
static hk_status most_blocks(const hk_plan *plan, bool reduce_first, const hk_machine *machine,
                             hk_forecast *found, hk_error *err) {
  int least = 0, most = (int)plan->model.layers + 2; /* the answer is least .. most - 1 */
  while (most - least > 1) {
    const int middle = least == 0 ? 1 : least + (most - least) / 2;
    const flush_limit limit = {HK_FLUSH_ASYNC, middle, reduce_first};
    bool fits = false;
    HK_TRY(try_limit(plan, limit, machine, found, &fits, err));
    if (fits)
      least = middle;
    else
      most = middle;
  }
  return HK_OK;
}

/* Tries the order of collectives that needs less memory, with any number of blocks and, if
 * gradients may wait, with the most that fit. */
static hk_status reduce_first(const hk_plan *plan, bool may_wait, const hk_machine *machine,
                              hk_forecast *found, hk_error *err) {
  const flush_limit limit = {HK_FLUSH_ASYNC, 0, true};
  bool fits = false;
  if (hk_job_dp(&plan->job) == 1) return HK_OK;
  HK_TRY(try_limit(plan, limit, machine, found, &fits, err));
  return fits || !may_wait ? HK_OK : most_blocks(plan, true, machine, found, err);
}

static hk_status limit_flush(const hk_plan *plan, bool may_wait, const hk_machine *machine,
                             hk_forecast *found, hk_error *err) {
  hk_forecast first = {0};
  bool fits = false;
  hk_status status = HK_OK;
  if (may_wait) status = most_blocks(plan, false, machine, found, err);
  if (status == HK_OK) status = reduce_first(plan, may_wait, machine, &first, err);
  if (first.feasible && (!found->feasible || first.iteration_ns <= found->iteration_ns)) {
    hk_forecast_free(found);
    *found = first;
  } else {
    hk_forecast_free(&first);
  }
  if (status != HK_OK || found->feasible || !may_wait) return status;
  return try_limit(plan, (flush_limit){HK_FLUSH_SYNC, 0, false}, machine, found, &fits, err);
}

hk_status hk_flush_fit(hk_forecast *forecast, bool may_wait, const hk_machine *machine,
                       hk_error *err) {
  const hk_plan *plan = &forecast->plan;
  hk_forecast found = {0};
  if (forecast->feasible || forecast->gpu_short == 0 || forecast->host_short > 0 ||
      plan->runtime != HK_RUNTIME_HOCKET || plan->flush != HK_FLUSH_ASYNC)
    return HK_OK;
  /* What is there before the first operation does not depend on the flush. */
  if (forecast->graph.gpu_base > forecast->result.memory.capacity) return HK_OK;
  if (plan->overlap != HK_OVERLAP_NONE) may_wait = false;
  const hk_status status = limit_flush(plan, may_wait, machine, &found, err);
  if (status != HK_OK || !found.feasible) {
    hk_forecast_free(&found);
    return status;
  }
  hk_forecast_free(forecast);
  *forecast = found;
  return HK_OK;
}
