/* SPDX-License-Identifier: Apache-2.0 */
/* The lock, and calls on gradients and tensors between the hand-over and the step: flush, discard,
 * scale, sums of squares, the weights and step counts of tensors, and GPU memory. */
#include <math.h>

#include "engine/train/training_private.h"

void hk_engine_lock(hk_engine *e) {
  pthread_mutex_lock(&e->training->lock);
}

void hk_engine_unlock(hk_engine *e) {
  pthread_mutex_unlock(&e->training->lock);
}

/* After a device failure it is unknown which gradients have been taken: the engine has failed. */
static hk_status note_failure(hk_engine *e, hk_status status) {
  if (status == HK_ENVIRONMENT) e->failed = true;
  return status;
}

hk_status hk_engine_flush(hk_engine *e, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  pthread_mutex_lock(&e->training->lock);
  const hk_status status = note_failure(e, hk_handover_end_visits(e, err));
  pthread_mutex_unlock(&e->training->lock);
  return status;
}

static hk_status check_param(const hk_engine *e, int64_t param, hk_error *err) {
  if (param >= -1 && param < (int64_t)e->n_params) return HK_OK;
  return hk_fail(err, HK_INPUT, "no tensor %lld: there are %zu, counted from 0", (long long)param,
                 e->n_params);
}

/* Forgets one tensor's gradient. Nothing is queued: a tensor without a gradient is neither updated
 * nor in the norm, and its bins are zeroed before other squares are summed in them. */
static void forget_one(hk_engine *e, int64_t param) {
  struct hk_training *t = e->training;
  if (t->given[param] == 0) return;
  t->violated = true;
  const bool complete = t->expected[param] > 0 && t->given[param] >= t->expected[param];
  for (int32_t s = t->segments[param]; s < t->segments[param + 1]; s++) {
    hk_image_state *image = &t->images[e->state.segments[s].image];
    image->missing += complete;
    if (complete) hk_clip_blocks_forget(e, (int32_t)param);
    image->behind += t->given[param] == image->most;
  }
  if (t->bins_state[param] == HK_BINS_COUNTED) t->bins_state[param] = HK_BINS_STALE;
  t->unlearnt[param] = true;
  t->given[param] = 0;
  t->n_given--;
}

hk_status hk_engine_discard(hk_engine *e, int64_t param, hk_error *err) {
  struct hk_training *t = e->training;
  HK_TRY(hk_engine_refuse_failed(e, err));
  HK_TRY(check_param(e, param, err));
  pthread_mutex_lock(&t->lock);
  hk_status status = HK_OK;
  if (param >= 0) {
    forget_one(e, param);
  } else {
    const bool begun = hk_training_state_of(e) == HK_BEGUN;
    if (begun) status = hk_training_end_run(e, err);
    if (status == HK_OK && (begun || t->n_given > 0)) status = hk_handover_reset(e, err);
    t->factor = 1;
  }
  note_failure(e, status);
  pthread_mutex_unlock(&t->lock);
  return status;
}

void hk_engine_held(const hk_engine *e, uint8_t *held) {
  for (size_t p = 0; p < e->n_params; p++) held[p] = e->training->given[p] > 0;
}

hk_status hk_engine_expect(hk_engine *e, int32_t n, hk_error *err) {
  struct hk_training *t = e->training;
  if (n < 0) {
    return hk_fail(err, HK_INPUT,
                   "%d gradients of each tensor are expected: give their number, or 0 for as many "
                   "as the step before had",
                   (int)n);
  }
  pthread_mutex_lock(&t->lock);
  t->promised = n;
  if (n > 0 && t->n_given == 0 && hk_training_state_of(e) != HK_BEGUN) {
    for (size_t p = 0; p < e->n_params; p++) {
      if (t->expected[p] > 0) t->expected[p] = n;
    }
    hk_handover_expect(e);
  }
  pthread_mutex_unlock(&t->lock);
  return HK_OK;
}

hk_status hk_engine_scale(hk_engine *e, double factor, hk_error *err) {
  if (!(factor > 0) || !isfinite(factor)) {
    return hk_fail(err, HK_INPUT, "gradients times %g: the factor must be positive and finite",
                   factor);
  }
  pthread_mutex_lock(&e->training->lock);
  e->training->factor = factor;
  pthread_mutex_unlock(&e->training->lock);
  return HK_OK;
}

static hk_status sum_squares(hk_engine *e, int64_t param, hk_squares *sum, hk_error *err) {
  hk_status status = hk_handover_count(e, param, err);
  if (status == HK_OK) status = hk_handover_squares(e, param, sum, err);
  return note_failure(e, status);
}

hk_status hk_engine_sum_of_squares(hk_engine *e, int64_t param, hk_squares *sum, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  HK_TRY(check_param(e, param, err));
  pthread_mutex_lock(&e->training->lock);
  const hk_status status = sum_squares(e, param, sum, err);
  pthread_mutex_unlock(&e->training->lock);
  return status;
}

hk_status hk_engine_squares(hk_engine *e, const uint8_t *counts, hk_squares *sum, hk_error *err) {
  struct hk_training *t = e->training;
  HK_TRY(hk_engine_refuse_failed(e, err));
  pthread_mutex_lock(&t->lock);
  const hk_status status = sum_squares(e, -1, sum, err);
  if (status == HK_OK && counts != NULL) {
    *sum = (hk_squares){0};
    for (size_t p = 0; p < e->n_params; p++) {
      hk_squares one;
      if (counts[p] == 0 || t->given[p] == 0) continue;
      hk_handover_sum(e, e->bins, t->segments[p], t->segments[p + 1], NULL, &one);
      hk_squares_merge(sum, &one);
    }
  }
  pthread_mutex_unlock(&t->lock);
  return status;
}

hk_status hk_engine_set_weight(hk_engine *e, size_t param, void *weight, hk_error *err) {
  bool there = false;
  HK_TRY(check_param(e, (int64_t)param, err));
  HK_TRY(hk_engine_drain(e, -1, &there, err));
  e->params[param].weight = weight;
  return HK_OK;
}

hk_status hk_engine_get_tensor_step(hk_engine *e, size_t param, int64_t *step, hk_error *err) {
  HK_TRY(check_param(e, (int64_t)param, err));
  HK_TRY(hk_training_quiet(e, err));
  *step = e->param_step[param];
  return HK_OK;
}

hk_status hk_engine_set_tensor_step(hk_engine *e, size_t param, int64_t step, hk_error *err) {
  bool there = false;
  HK_TRY(check_param(e, (int64_t)param, err));
  HK_TRY(hk_engine_drain(e, -1, &there, err));
  if (step < 0) return hk_fail(err, HK_INPUT, "steps count from 0, got %lld", (long long)step);
  e->param_step[param] = step;
  return HK_OK;
}

hk_bytes hk_engine_gpu_bytes(hk_engine *e) {
  pthread_mutex_lock(&e->training->lock);
  const hk_bytes bytes = hk_engine_device_bytes(e);
  pthread_mutex_unlock(&e->training->lock);
  return bytes;
}

hk_status hk_engine_release_gpu(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  HK_TRY(hk_engine_refuse_failed(e, err));
  pthread_mutex_lock(&t->lock);
  hk_status status = HK_OK;
  if (t->n_given > 0) {
    status = hk_fail(err, HK_INPUT,
                     "%lld tensors have gradients that no step has used: release GPU memory after "
                     "the step, or discard them first",
                     (long long)t->n_given);
  }
  if (status == HK_OK) status = hk_training_end_run(e, err);
  if (status == HK_OK) hk_engine_give_work_back(e);
  pthread_mutex_unlock(&t->lock);
  return status;
}
