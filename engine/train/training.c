/* SPDX-License-Identifier: Apache-2.0 */
/* Training: opening and closing, steps, and waits for weights. runs.c begins and ends runs of the
 * graph; handover.c takes gradients; training_calls.c has what a caller may ask between them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/owner.h"
#include "engine/train/training_private.h"

/* -- Opening and closing ----------------------------------------------------------------------- */

hk_status hk_training_allocate(hk_engine *e, hk_error *err) {
  struct hk_training *t = calloc(1, sizeof *t);
  if (t == NULL) return hk_fail_memory(err, sizeof *t, "training");
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&t->lock, &recursive);
  pthread_mutexattr_destroy(&recursive);
  pthread_rwlock_init(&t->waiters, NULL);
  t->factor = 1;
  t->gate = -1;
  t->kind = HK_STEP_KINDS;
  t->clip.planned = e->plan.guess;
  e->training = t;
  const size_t n = e->n_params;
  t->given = calloc(n, sizeof *t->given);
  t->expected = calloc(n, sizeof *t->expected);
  t->assumed = calloc(n, sizeof *t->assumed);
  t->wanted = calloc(n, sizeof *t->wanted);
  t->assumed_steps = calloc(n, sizeof *t->assumed_steps);
  t->wanted_steps = calloc(n, sizeof *t->wanted_steps);
  if (t->given == NULL || t->expected == NULL || t->assumed == NULL || t->wanted == NULL ||
      t->assumed_steps == NULL || t->wanted_steps == NULL) {
    return hk_fail_memory(err, n * sizeof *t->wanted_steps, "the tensors' counts");
  }
  for (size_t p = 0; p < n; p++) t->expected[p] = e->plan.job.grad_accum;
  return HK_OK;
}

unsigned hk_training_external_lanes(const hk_engine *e) {
  if (!hk_training_overlaps(e)) return 0;
  return 1u << HK_LANE_HOST | 1u << HK_LANE_FLUSH;
}

/* *begin .. *end - 1: the parameters, in flat order, whose new weights the operation writes to the
 * tensors. False: it writes none. */
static bool weights_of(const hk_engine *e, const hk_op *op, int64_t *begin, int64_t *end) {
  const bool last = op->kind == HK_OP_WEIGHT_PLACE || op->kind == HK_OP_ADAMW_GPU ||
                    op->kind == HK_OP_ADAMW_MAPPED ||
                    (op->kind == HK_OP_WEIGHT_H2D && !e->state.subgroups[op->subgroup].early);
  if (!last) return false;
  *begin = e->state.subgroups[op->subgroup].offset + op->offset;
  *end = *begin + hk_engine_op_numel(e, op);
  return true;
}

/* The blocks *first .. *last whose weights the operation writes; false: it writes none. */
static bool blocks_of(const hk_engine *e, const hk_op *op, int32_t *first, int32_t *last) {
  int64_t begin = 0, end = 0;
  if (!weights_of(e, op, &begin, &end)) return false;
  const hk_param_segment *segments = e->state.segments;
  *first = e->params[segments[hk_state_segment(&e->state, begin)].param].block;
  *last = e->params[segments[hk_state_segment(&e->state, end - 1)].param].block;
  return true;
}

static hk_status list_blocks(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  t->n_blocks = e->params[e->n_params - 1].block + 1;
  t->block_begin = calloc((size_t)t->n_blocks + 2, sizeof *t->block_begin);
  if (t->block_begin == NULL) {
    return hk_fail_memory(err, (size_t)t->n_blocks * sizeof *t->block_begin, "the list of blocks");
  }
  for (int pass = 0; pass < 2; pass++) { /* counts, then fills */
    for (size_t i = 0; i < e->graph.n_ops; i++) {
      int32_t first = 0, last = -1;
      if (e->graph.ops[i].kind == HK_OP_BARRIER) t->gate = (int32_t)i;
      if (!blocks_of(e, &e->graph.ops[i], &first, &last)) continue;
      for (int32_t b = first; b <= last; b++) {
        if (pass == 0) {
          t->block_begin[b + 2]++;
        } else {
          t->block_ops[t->block_begin[b + 1]++] = (int32_t)i;
        }
      }
    }
    if (pass == 1) break;
    for (int32_t b = 2; b < t->n_blocks + 2; b++) t->block_begin[b] += t->block_begin[b - 1];
    const size_t n = (size_t)t->block_begin[t->n_blocks + 1];
    t->block_ops = calloc(n + 1, sizeof *t->block_ops);
    if (t->block_ops == NULL) {
      return hk_fail_memory(err, n * sizeof *t->block_ops, "the blocks' operations");
    }
  }
  return HK_OK;
}

hk_status hk_training_open(hk_engine *e, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  t->flush = hk_executor_stream(e->executor, HK_LANE_FLUSH);
  if (t->flush == NULL) {
    t->own_flush = true;
    HK_TRY(ops->stream_open(e->backend, false, &t->flush, err));
  }
  HK_TRY(ops->stream_open(e->backend, false, &t->fetch, err));
  HK_TRY(ops->event_open(e->backend, false, &t->stepped, err));
  HK_TRY(list_blocks(e, err));
  HK_TRY(hk_clip_blocks_open(e, err));
  return hk_handover_open(e, err);
}

void hk_training_close(hk_engine *e) {
  struct hk_training *t = e->training;
  hk_error ignored = {0};
  if (t == NULL) return;
  if (e->executor != NULL) hk_training_end_run(e, &ignored);
  if (t->fetch != NULL) e->backend->ops->stream_close(t->fetch);
  if (t->flush != NULL && t->own_flush) e->backend->ops->stream_close(t->flush);
  hk_recording_close(e);
  hk_clip_blocks_close(e);
  hk_handover_close(e);
  if (t->stepped != NULL) e->backend->ops->event_close(t->stepped);
  pthread_rwlock_destroy(&t->waiters);
  pthread_mutex_destroy(&t->lock);
  free(t->given);
  free(t->expected);
  free(t->assumed);
  free(t->wanted);
  free(t->assumed_steps);
  free(t->wanted_steps);
  free(t->block_begin);
  free(t->block_ops);
  free(t);
  e->training = NULL;
}

/* -- Steps ------------------------------------------------------------------------------------- */

/* What gradients are too large by, the factor of hk_engine_scale included. */
static double whole_loss_scale(const hk_engine *e, const hk_step_options *o) {
  return (o->loss_scale > 0 ? o->loss_scale : 1) / e->training->factor;
}

/* The coefficient without clipping. */
static double unclipped_scale(const hk_engine *e, const hk_step_options *o) {
  return 1 / whole_loss_scale(e, o);
}

static void judge(const hk_engine *e, const hk_step_options *o, const hk_squares *sum,
                  hk_step_report *r) {
  const double loss_scale = whole_loss_scale(e, o);
  const double value = o->sum_of_squares != 0 ? o->sum_of_squares : hk_squares_value(sum);
  r->nonfinite = (int64_t)sum->nonfinite;
  r->skipped = sum->nonfinite > 0 || !isfinite(value);
  r->grad_norm = sqrt(value) / fabs(loss_scale);
  r->grad_scale = hk_grad_scale(value, o->max_norm, loss_scale);
}

/* Chooses which tensors take part and their constants, in t->wanted and t->wanted_steps, because
 * updates that run ahead may be reading e->active and e->steps. True: these are the ones that the
 * run has assumed; with clipping by block, it computes the coefficients itself. */
static bool choose_constants(hk_engine *e, const hk_step_options *o, hk_step_report *r) {
  struct hk_training *t = e->training;
  const bool by_block = t->blocks.n > 0;
  bool same = !t->violated;
  for (size_t p = 0; p < e->n_params; p++) t->wanted[p] = t->given[p] > 0;
  hk_engine_prepare_steps(e, t->wanted, by_block ? unclipped_scale(e, o) : r->grad_scale,
                          t->wanted_steps);
  for (size_t p = 0; p < e->n_params; p++) {
    same = same && t->wanted[p] == t->assumed[p] &&
           (!t->wanted[p] || hk_adamw_step_same(&t->wanted_steps[p], &t->assumed_steps[p]));
  }
  if (!by_block) return same;
  r->grad_scale = unclipped_scale(e, o);
  return hk_clip_blocks_choose(e, o->max_norm, whole_loss_scale(e, o), t->wanted_steps,
                               &r->grad_scale) &&
         same;
}

/* Makes the chosen constants those of the updates that wait for the gate. Those of the run that is
 * kept are there, except coefficients of blocks, which updates that run ahead do not read there. */
static void take_constants(hk_engine *e, bool kept) {
  struct hk_training *t = e->training;
  if (kept && t->blocks.n == 0) return;
  if (!kept) memcpy(e->active, t->wanted, e->n_params * sizeof *e->active);
  memcpy(e->steps, t->wanted_steps, e->n_params * sizeof *e->steps);
}

/* Number of elements whose update had ended before the norm was known. */
static int64_t count_ahead(const hk_engine *e) {
  int64_t n = 0;
  for (size_t i = 0; i < e->graph.n_ops; i++) {
    const hk_op *op = &e->graph.ops[i];
    const bool done = op->kind == HK_OP_ADAMW_CPU && hk_executor_done(e->executor, (int32_t)i);
    if (done) n += op->work;
  }
  return n;
}

/* Releases the updates that wait for the norm. Lanes that write weights first wait for the work
 * that the caller has queued on `stream`. `timeline`: as in the step's options. */
static hk_status open_gate(hk_engine *e, hk_callers_stream *stream, hk_timeline *timeline,
                           hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  HK_TRY(ops->record(stream->stream, t->stepped, err));
  HK_TRY(hk_engine_send_ticket(e, err));
  hk_state_relocate(&e->plan, &e->state);
  t->stepping = e->step + 1;
  t->opened_at = hk_now();
  if (!hk_training_overlaps(e)) {
    HK_TRY(ops->stream_sync(t->flush, err));
    HK_TRY(hk_executor_hold_back(e->executor, HK_LANE_UP, t->stepped, err));
    HK_TRY(hk_executor_hold_back(e->executor, HK_LANE_UPDATE, t->stepped, err));
    t->timeline = timeline;
    HK_TRY(hk_training_begin_run(e, false, err));
    hk_training_set_state(e, HK_STEPPED);
    return HK_OK;
  }
  HK_TRY(hk_executor_await_lane(e->executor, HK_LANE_FLUSH, err));
  /* Images that received gradients after their operation was queued were copied again, behind it.
   */
  HK_TRY(ops->stream_sync(t->flush, err));
  HK_TRY(hk_executor_hold_back(e->executor, HK_LANE_UP, t->stepped, err));
  HK_TRY(hk_executor_hold_back(e->executor, HK_LANE_UPDATE, t->stepped, err));
  hk_training_set_state(e, HK_STEPPED);
  hk_executor_done_outside(e->executor, t->gate);
  return HK_OK;
}

/* Ends the iteration without a step, because gradients are infinite or NaN. */
static hk_status skip(hk_engine *e, hk_error *err) {
  HK_TRY(hk_training_end_run(e, err));
  return hk_handover_reset(e, err);
}

/* Notes, to forecast whether the next step is clipped, the norm that this one would have had with
 * the coefficient that is assumed for the next one, and the norm to which such gradients are
 * clipped. A caller who clips by hk_engine_scale does not name it: it is what a clipped step's
 * norm became, until a larger norm is not clipped. `before`: last_scale of the step before. */
static void note_norm(struct hk_training *t, const hk_step_options *o, const hk_step_report *r,
                      double before) {
  const double norm = r->grad_norm * (t->last_scale / t->last_unclipped);
  const bool by_block = t->blocks.n > 0; /* then clipping by max_norm is no obstacle */
  const double scale = by_block ? t->last_unclipped : r->grad_scale;
  if (before != t->last_scale) hk_clip_forget(&t->clip); /* norms are in other units */
  double most = norm <= t->clip.most ? t->clip.most : 0;
  if (scale != t->last_scale) most = norm * (scale / t->last_scale);
  if (!by_block && o->max_norm > 0 && (most == 0 || most > o->max_norm)) most = o->max_norm;
  hk_clip_note_norm(&t->clip, norm, most);
}

/* Notes what the next step will probably multiply gradients by. With the factor of
 * hk_engine_scale it is factor / loss scale if the last two steps had the same: torch's
 * GradScaler passes the same factor in every step. Else it is 1 / loss scale: a caller who clips
 * passes another factor in each step that is clipped. */
static void remember(hk_engine *e, const hk_step_options *o, const hk_step_report *r) {
  struct hk_training *t = e->training;
  const double unclipped = unclipped_scale(e, o);
  const bool again = unclipped == t->last_unclipped;
  const double before = t->last_scale;
  t->last_unclipped = unclipped;
  t->last_max_norm = o->max_norm;
  t->last_loss_scale = again ? whole_loss_scale(e, o) : o->loss_scale > 0 ? o->loss_scale : 1;
  t->last_scale = 1 / t->last_loss_scale;
  note_norm(t, o, r, before);
  hk_handover_learn(e);
}

/* Takes the step. At least one tensor has a gradient. */
static hk_status take_step(hk_engine *e, const hk_step_options *o, hk_step_report *r,
                           hk_callers_stream *stream, hk_error *err) {
  struct hk_training *t = e->training;
  hk_squares sum;
  HK_TRY(hk_handover_count(e, -1, err));
  HK_TRY(hk_clip_blocks_end(e, err));
  HK_TRY(hk_handover_leave(e, err));
  HK_TRY(hk_handover_squares(e, -1, &sum, err));
  judge(e, o, &sum, r);
  if (r->skipped) return skip(e, err);
  const bool same = choose_constants(e, o, r), kept = hk_training_overlaps(e) && !t->hold && same;
  t->kind = kept ? HK_STEP_KEPT : t->tried ? HK_STEP_REDONE : HK_STEP_HELD;
  if (kept) r->ahead = count_ahead(e);
  t->most_ahead = hk_max(t->most_ahead, r->ahead);
  if (hk_training_overlaps(e) && !t->hold && !kept) HK_TRY(hk_training_begin_again(e, err));
  take_constants(e, kept);
  HK_TRY(open_gate(e, stream, o->timeline, err));
  remember(e, o, r);
  r->step = t->stepping;
  return hk_handover_reset(e, err);
}

/* Accounts for a failure during the step. In state BEGUN only spare memory has been written. */
static hk_status fail_step(hk_engine *e, hk_error *err) {
  const bool begun = hk_training_state_of(e) == HK_STEPPED;
  hk_error ended = {0};
  if (hk_training_end_run(e, &ended) != HK_OK) { /* it has accounted for the failure */
    *err = ended;
    return err->status;
  }
  return hk_engine_account_for_failure(e, e->training->stepping, begun, err);
}

static hk_status check_step(const hk_engine *e, const hk_step_options *o, hk_error *err) {
  if (o->timeline != NULL && hk_training_overlaps(e))
    return hk_fail(err, HK_INPUT,
                   "a step's timeline: the plan must have no overlap; with one, record");
  if (e->training->blocks.n > 0 && o->sum_of_squares != 0 && isfinite(o->sum_of_squares)) {
    return hk_fail(err, HK_INPUT,
                   "a step with sum_of_squares %g on an engine that clips by block: each block's "
                   "own norm counts, so it must be 0",
                   o->sum_of_squares);
  }
  const bool right =
      o->max_norm >= 0 && o->loss_scale >= 0 && isfinite(o->loss_scale) && !(o->sum_of_squares < 0);
  if (right) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "a step with max_norm %g, loss_scale %g, sum_of_squares %g: none may be "
                 "negative; 0 means no clipping, a loss scale of 1, this engine's own sum",
                 o->max_norm, o->loss_scale, o->sum_of_squares);
}

hk_status hk_engine_step(hk_engine *e, const hk_step_options *options, hk_step_report *report,
                         void *native, hk_error *err) {
  static const hk_step_options none = {0};
  struct hk_training *t = e->training;
  if (options == NULL) options = &none;
  *report = (hk_step_report){.step = hk_engine_step_number(e), .grad_scale = 1};
  HK_TRY(check_step(e, options, err));
  HK_TRY(hk_engine_refuse_failed(e, err));
  pthread_mutex_lock(&t->lock);
  hk_callers_stream *stream = NULL;
  hk_status status = hk_training_settle(e, err);
  report->step = e->step;
  report->params = t->n_given;
  if (status == HK_OK && report->params > 0) {
    status = hk_handover_stream(e, native, &stream, err);
    if (status == HK_OK) status = hk_training_begin(e, err);
    t->stepping = e->step + 1;
    if (status == HK_OK) status = take_step(e, options, report, stream, err);
    if (status != HK_OK) status = fail_step(e, err);
    if (status == HK_OK && !hk_training_overlaps(e) && !report->skipped) {
      status = hk_training_settle(e, err);
      report->update = t->elapsed;
    }
  }
  t->factor = 1;
  pthread_mutex_unlock(&t->lock);
  return status;
}

/* -- Waiting ----------------------------------------------------------------------------------- */

/* Time, as of hk_now, at which a wait of timeout_ms that begins now times out; -1: never. */
static hk_ns deadline_of(int32_t timeout_ms) {
  return timeout_ms < 0 ? -1 : hk_now() + (hk_ns)timeout_ms * 1000000;
}

static int32_t time_left_ms(hk_ns deadline) {
  if (deadline < 0) return -1;
  return (int32_t)(hk_max(0, deadline - hk_now() + 999999) / 1000000);
}

/* Whether a wait for a block's weights includes operation `op`, one that writes them, if it looks
 * at the GPU's updates of stolen pieces or at all others. */
static bool writes_block(const hk_engine *e, const hk_op *op, bool stolen) {
  return (op->when == HK_WHEN_STOLEN) == stolen && !hk_engine_skips(e, op);
}

/* Waits until operations that write a block's weights are queued, and makes `stream` wait for
 * them. *there false: timed out. */
static hk_status follow_operations(hk_engine *e, int32_t block, bool stolen, hk_stream *stream,
                                   hk_ns deadline, bool *there, hk_error *err) {
  const struct hk_training *t = e->training;
  for (int32_t i = t->block_begin[block]; i < t->block_begin[block + 1]; i++) {
    if (!writes_block(e, &e->graph.ops[t->block_ops[i]], stolen)) continue;
    const int32_t left_ms = time_left_ms(deadline);
    HK_TRY(hk_executor_await(e->executor, t->block_ops[i], left_ms, there, err));
    if (!*there) return HK_OK;
  }
  for (int32_t i = t->block_begin[block]; i < t->block_begin[block + 1]; i++) {
    if (!writes_block(e, &e->graph.ops[t->block_ops[i]], stolen)) continue;
    HK_TRY(hk_executor_follow(e->executor, t->block_ops[i], stream, err));
  }
  return HK_OK;
}

/* All of them. When the CPU's operations have been queued, each piece has its owner. */
static hk_status follow_block(hk_engine *e, int32_t block, hk_stream *stream, hk_ns deadline,
                              bool *there, hk_error *err) {
  HK_TRY(follow_operations(e, block, false, stream, deadline, there, err));
  return *there ? follow_operations(e, block, true, stream, deadline, there, err) : HK_OK;
}

/* After a failed wait: accounts for the failed step, unless another thread has done so, and returns
 * the failure. */
static hk_status account(hk_engine *e, hk_error *err) {
  hk_error full = {0};
  pthread_mutex_lock(&e->training->lock);
  if (hk_training_state_of(e) == HK_STEPPED && hk_training_settle(e, &full) != HK_OK) *err = full;
  /* Also if the step is well: a stream that could not be told to wait may read weights too early.
   */
  e->failed = true;
  pthread_mutex_unlock(&e->training->lock);
  return err->status;
}

hk_status hk_engine_wait_weights(hk_engine *e, int32_t block, void *native, int32_t timeout_ms,
                                 bool *there, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_ns deadline = deadline_of(timeout_ms);
  *there = true;
  HK_TRY(hk_engine_refuse_failed(e, err));
  if (block < -1 || block >= t->n_blocks) {
    return hk_fail(err, HK_INPUT, "no block %d: there are %d, counted from 0", (int)block,
                   (int)t->n_blocks);
  }
  if (hk_training_state_of(e) != HK_STEPPED) return HK_OK;
  hk_callers_stream *s = NULL;
  hk_stream *stream = NULL;
  pthread_mutex_lock(&t->lock);
  hk_status status = hk_handover_stream(e, native, &s, err);
  if (status == HK_OK) stream = s->stream; /* without the lock, the array that has s may move */
  pthread_rwlock_rdlock(&t->waiters);
  const bool pending = hk_training_state_of(e) == HK_STEPPED;
  pthread_mutex_unlock(&t->lock);
  const int32_t first = block < 0 ? 0 : block, last = block < 0 ? t->n_blocks - 1 : block;
  for (int32_t b = first; pending && status == HK_OK && *there && b <= last; b++) {
    status = follow_block(e, b, stream, deadline, there, err);
  }
  if (pending && status == HK_OK && *there && hk_training_is_host(e)) {
    status = e->backend->ops->stream_sync(stream, err);
  }
  pthread_rwlock_unlock(&t->waiters);
  return status == HK_ENVIRONMENT ? account(e, err) : status;
}

hk_status hk_engine_drain(hk_engine *e, int32_t timeout_ms, bool *there, hk_error *err) {
  struct hk_training *t = e->training;
  *there = true;
  if (hk_training_state_of(e) == HK_STEPPED) {
    hk_error failed = {0}; /* hk_training_settle reports the failure in full */
    pthread_rwlock_rdlock(&t->waiters);
    const hk_status status = hk_training_state_of(e) == HK_STEPPED
                                 ? hk_executor_await_all(e->executor, timeout_ms, there, &failed)
                                 : HK_OK;
    pthread_rwlock_unlock(&t->waiters);
    if (status == HK_OK && !*there) return HK_OK;
  }
  pthread_mutex_lock(&t->lock);
  const hk_status status = hk_training_settle(e, err);
  pthread_mutex_unlock(&t->lock);
  return status;
}
