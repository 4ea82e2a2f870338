/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/flush.h"

#include <math.h>

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

/* What is asked of a plan, and the answer. */
typedef struct {
  const hk_plan *plan;
  const hk_machine *machine;
  bool may_wait, any; /* any: the first that fits will do */
  hk_bytes spare;     /* GPU memory that the last trial left; negative: that it lacked */
  hk_error *err;
} question;

/* Puts the plan with the limit in *found if it fits. *fits: whether it does. */
static hk_status try_limit(question *q, flush_limit limit, hk_forecast *found, bool *fits) {
  hk_forecast other;
  HK_TRY(with_limit(q->plan, limit, q->machine, &other, q->err));
  q->spare = other.result.memory.capacity - other.result.memory.peak;
  *fits = other.feasible;
  hk_forecast_free(*fits ? found : &other);
  if (*fits) *found = other;
  return HK_OK;
}

/* Bytes of a layer's gradients on one rank. */
static double layer_gradients(const hk_plan *plan) {
  const int tp = plan->job.tp, dp = hk_job_dp(&plan->job);
  int64_t begin, end;
  hk_model_block_interval(&plan->model, 0, tp, dp, &begin, &end);
  return fmax(1, (double)hk_model_grad_bytes(&plan->model, tp, dp, begin, end));
}

/* The plan with the most blocks whose gradients may wait that fits; *found stays as it is if none
 * does. One block first, which says whether any fits. The peak of GPU memory is nearly linear in
 * the blocks, which gives the next number; each third trial halves the rest. */
static hk_status most_blocks(question *q, bool reduce_first, hk_forecast *found) {
  const double each = layer_gradients(q->plan);
  int least = 0, most = (int)q->plan->model.layers + 2; /* the answer is least .. most - 1 */
  for (int i = 0, last = 1; most - least > 1 && !(q->any && least > 0); i++) {
    int middle = least == 0 ? 1 : least + (most - least) / 2;
    if (least > 0 && i % 3 != 0) {
      const double guess = last + floor((double)q->spare / each);
      middle = (int)fmin(fmax(guess, least + 1), most - 1);
    }
    bool fits = false;
    HK_TRY(try_limit(q, (flush_limit){HK_FLUSH_ASYNC, middle, reduce_first}, found, &fits));
    *(fits ? &least : &most) = last = middle;
  }
  return HK_OK;
}

/* Tries the order of collectives that needs less memory, with any number of blocks and, if
 * gradients may wait, with the most that fit. */
static hk_status reduce_first(question *q, hk_forecast *found) {
  bool fits = false;
  if (hk_job_dp(&q->plan->job) == 1) return HK_OK;
  HK_TRY(try_limit(q, (flush_limit){HK_FLUSH_ASYNC, 0, true}, found, &fits));
  return fits || !q->may_wait ? HK_OK : most_blocks(q, true, found);
}

static hk_status limit_flush(question *q, hk_forecast *found) {
  hk_forecast first = {0};
  bool fits = false;
  hk_status status = HK_OK;
  if (q->may_wait) status = most_blocks(q, false, found);
  if (q->any && found->feasible) return status;
  if (status == HK_OK) status = reduce_first(q, &first);
  if (first.feasible && (!found->feasible || first.iteration_ns <= found->iteration_ns)) {
    hk_forecast_free(found);
    *found = first;
  } else {
    hk_forecast_free(&first);
  }
  if (status != HK_OK || found->feasible || !q->may_wait) return status;
  return try_limit(q, (flush_limit){HK_FLUSH_SYNC, 0, false}, found, &fits);
}

static hk_status fit(hk_forecast *forecast, bool may_wait, bool any, const hk_machine *machine,
                     hk_error *err) {
  const hk_plan *plan = &forecast->plan;
  hk_forecast found = {0};
  if (forecast->feasible || forecast->gpu_short == 0 || forecast->host_short > 0 ||
      plan->runtime != HK_RUNTIME_HOCKET || plan->flush != HK_FLUSH_ASYNC)
    return HK_OK;
  /* What is there before the first operation does not depend on the flush. */
  if (forecast->graph.gpu_base > forecast->result.memory.capacity) return HK_OK;
  question q = {.plan = plan, .machine = machine, .any = any, .err = err};
  q.may_wait = may_wait && plan->overlap == HK_OVERLAP_NONE;
  const hk_status status = limit_flush(&q, &found);
  if (status != HK_OK || !found.feasible) {
    hk_forecast_free(&found);
    return status;
  }
  hk_forecast_free(forecast);
  *forecast = found;
  return HK_OK;
}

hk_status hk_flush_fit(hk_forecast *forecast, bool may_wait, const hk_machine *machine,
                       hk_error *err) {
  return fit(forecast, may_wait, false, machine, err);
}

hk_status hk_flush_fit_any(hk_forecast *forecast, bool may_wait, const hk_machine *machine,
                           hk_error *err) {
  return fit(forecast, may_wait, true, machine, err);
}
