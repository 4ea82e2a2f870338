/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of the graph: an iteration begins one, a step or a cancellation ends it. */
#include <string.h>

#include "engine/run/owner.h"
#include "engine/train/training_private.h"

/* Waits for the end of the step under way and commits its state, or accounts for its failure. The
 * caller holds t->lock and, for writing, t->waiters. */
static hk_status settle(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_training_state state = hk_training_state_of(e);
  if (state != HK_STEPPED) return HK_OK;
  hk_status status = hk_executor_finish(e->executor, &t->elapsed, err);
  if (status == HK_OK && t->timeline != NULL)
    status = hk_executor_read_times(e->executor, t->timeline, err);
  t->timeline = NULL;
  hk_training_set_state(e, HK_IDLE);
  if (status != HK_OK) return hk_engine_account_for_failure(e, t->stepping, true, err);
  if (t->timed && t->recording != NULL) hk_recording_keep(e);
  t->times[t->n_times++ % HK_KEPT_TIMES] =
      (hk_step_time){.step = t->stepping,
                     .update = hk_executor_ended_at(e->executor) - t->opened_at,
                     .stolen = hk_owners_stolen(e)};
  hk_engine_commit(e, t->stepping);
  return HK_OK;
}

hk_status hk_training_settle(hk_engine *e, hk_error *err) {
  if (hk_training_state_of(e) != HK_STEPPED) return hk_engine_refuse_failed(e, err);
  pthread_rwlock_wrlock(&e->training->waiters);
  const hk_status status = settle(e, err);
  pthread_rwlock_unlock(&e->training->waiters);
  return status;
}

hk_status hk_training_end_run(hk_engine *e, hk_error *err) {
  if (hk_training_state_of(e) == HK_BEGUN) {
    hk_executor_cancel(e->executor);
    hk_training_set_state(e, HK_IDLE);
  }
  return hk_training_state_of(e) == HK_STEPPED ? hk_training_settle(e, err) : HK_OK;
}

/* Whether updates should run ahead: the step's gradients will probably not be clipped. */
static bool may_run_ahead(const hk_engine *e) {
  const struct hk_training *t = e->training;
  return e->plan.overlap == HK_OVERLAP_BOTH && t->last_scale != 0 && hk_clip_runs_ahead(&t->clip);
}

/* A run begins with the first gradient of an iteration: notes how long the last one took. */
static void time_iteration(hk_engine *e) {
  struct hk_training *t = e->training;
  const hk_ns now = hk_now();
  if (t->kind != HK_STEP_KINDS) hk_clip_note_time(&t->clip, t->kind, now - t->begun_at);
  t->begun_at = now;
  t->kind = HK_STEP_KINDS;
}

/* Sets e->active and e->steps for a step with the tensors and the scale of the last one, and keeps
 * a copy to compare the actual step with. */
static void assume(hk_engine *e) {
  struct hk_training *t = e->training;
  for (size_t p = 0; p < e->n_params; p++) e->active[p] = t->expected[p] > 0;
  hk_engine_prepare_steps(e, e->active, t->last_scale, e->steps);
  memcpy(t->assumed, e->active, e->n_params * sizeof *t->assumed);
  memcpy(t->assumed_steps, e->steps, e->n_params * sizeof *t->assumed_steps);
  hk_clip_blocks_assume(e, t->last_max_norm, t->last_loss_scale);
}

hk_status hk_training_begin_run(hk_engine *e, bool hold, hk_error *err) {
  struct hk_training *t = e->training;
  t->timed = t->recording != NULL || t->timeline != NULL;
  hk_owners_clear(e);
  /* Known before the run begins, because an update may start at once. */
  e->state.in_place = hk_training_overlaps(e) && hold;
  return hk_executor_begin(e->executor, t->timed, hold, err);
}

hk_status hk_training_begin(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  if (hk_training_state_of(e) == HK_BEGUN) return HK_OK;
  HK_TRY(hk_training_settle(e, err));
  HK_TRY(hk_engine_take_work(e, err));
  if (!hk_training_overlaps(e)) return HK_OK;
  time_iteration(e);
  t->tried = may_run_ahead(e);
  t->hold = !t->tried;
  if (!t->hold) assume(e);
  HK_TRY(hk_training_begin_run(e, t->hold, err));
  hk_training_set_state(e, HK_BEGUN);
  return HK_OK;
}

hk_status hk_training_begin_again(hk_engine *e, hk_error *err) {
  hk_executor_cancel(e->executor);
  e->training->hold = true;
  HK_TRY(hk_training_begin_run(e, true, err));
  return hk_handover_issue_again(e, err);
}

/* Updates that run ahead use the state and the team, which the caller is going to use. */
hk_status hk_training_quiet(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  pthread_mutex_lock(&t->lock);
  hk_status status = HK_OK;
  if (hk_training_state_of(e) == HK_STEPPED) status = hk_training_settle(e, err);
  if (hk_training_state_of(e) == HK_BEGUN && e->failed) status = hk_training_end_run(e, err);
  if (hk_training_state_of(e) == HK_BEGUN && !t->hold) {
    status = hk_training_begin_again(e, err);
    if (status != HK_OK) e->failed = true;
  }
  pthread_mutex_unlock(&t->lock);
  return status;
}

int64_t hk_engine_step_number(const hk_engine *e) {
  return hk_training_state_of(e) == HK_STEPPED ? e->training->stepping : e->step;
}
