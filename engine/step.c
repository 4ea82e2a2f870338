/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in, their norm, and one optimizer step; after a failure, what state each subgroup is
 * left with. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/private.h"

hk_status hk_engine_refuse_failed(const hk_engine *e, hk_error *err) {
  if (!e->failed) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT,
                 "this engine has failed before: read its state, or make a new engine and load a "
                 "checkpoint");
}

/* -- Gradients on the host --------------------------------------------------------------------- */

/* Number of values that a thread takes at a time. */
#define GRAD_CHUNK ((int64_t)1 << 16)

typedef struct {
  hk_engine *e;
  const char *from;
  char *to; /* NULL: sum squares only */
  int64_t n;
} grad_work;

static void grad_chunk(void *arg, int64_t c, int thread) {
  const grad_work *w = arg;
  const hk_grad_type type = w->e->options.grad_type;
  const int64_t begin = c * GRAD_CHUNK;
  const int64_t n = w->n - begin < GRAD_CHUNK ? w->n - begin : GRAD_CHUNK;
  const char *from = w->from + 2 * begin;
  hk_squares_add(&w->e->thread_squares[thread], type, n, from);
  if (w->to != NULL) memcpy(w->to + 2 * begin, from, 2 * (size_t)n);
}

static void scan_host(hk_engine *e, const void *from, void *to, int64_t n) {
  grad_work w = {.e = e, .from = from, .to = to, .n = n};
  hk_team_run(e->team, (n + GRAD_CHUNK - 1) / GRAD_CHUNK, grad_chunk, &w);
  for (int t = 0; t < hk_team_threads(e->team); t++) {
    hk_squares_merge(&e->squares, &e->thread_squares[t]);
    memset(&e->thread_squares[t], 0, sizeof e->thread_squares[t]);
  }
}

/* -- Gradients on the device ------------------------------------------------------------------- */

/* Adds the device's bins to the sum and clears them; waits for both. After a failure they may have
 * been added without having been cleared, so the engine must not go on. */
static hk_status collect_bins(hk_engine *e, hk_error *err) {
  const hk_backend_ops *ops = e->backend->ops;
  const hk_bytes bytes = (HK_SQUARES_BINS + 1) * (hk_bytes)sizeof *e->bins;
  if (e->in_bins == 0) return HK_OK;
  HK_TRY(ops->copy(e->stream, e->bins, e->device_bins, bytes, err));
  HK_TRY(ops->stream_sync(e->stream, err));
  hk_squares_add_bins(&e->squares, e->options.grad_type, e->bins);
  e->squares.nonfinite += e->bins[HK_SQUARES_BINS];
  memset(e->bins, 0, (size_t)bytes);
  HK_TRY(ops->copy(e->stream, e->device_bins, e->bins, bytes, err));
  HK_TRY(ops->stream_sync(e->stream, err));
  e->in_bins = 0;
  return HK_OK;
}

static hk_status scan_device(hk_engine *e, const char *grad, int64_t n, hk_error *err) {
  while (n > 0) {
    if (e->in_bins == HK_SQUARES_MOST) HK_TRY(collect_bins(e, err));
    const int64_t room = HK_SQUARES_MOST - e->in_bins;
    const hk_kernel squares = {.kind = HK_KERNEL_SQUARES,
                               .type = e->options.grad_type,
                               .n = n < room ? n : room,
                               .grad = grad,
                               .bins = e->device_bins};
    HK_TRY(e->backend->ops->launch(e->stream, &squares, err));
    e->in_bins += squares.n;
    grad += 2 * squares.n;
    n -= squares.n;
  }
  return HK_OK;
}

/* -- Giving gradients -------------------------------------------------------------------------- */

/* Copies gradients of a subgroup's parameters at .. at + n - 1, which are consecutive in memory. */
static hk_status give_run(hk_engine *e, const hk_state_subgroup *sub, int64_t at, int64_t n,
                          const char *grad, bool on_device, hk_error *err) {
  const hk_backend_ops *ops = e->backend->ops;
  if (sub->route != HK_ROUTE_CPU) {
    if (!on_device) scan_host(e, grad, NULL, n);
    return ops->copy(e->stream, e->device_grads + 2 * (sub->device_at + at), grad, 2 * n, err);
  }
  char *to = (char *)e->grads + 2 * hk_state_host_at(&e->state, sub, at);
  if (!on_device) {
    scan_host(e, grad, to, n);
    return HK_OK;
  }
  return ops->copy(e->stream, to, grad, 2 * n, err);
}

/* Number of parameters from `at` on whose gradients are consecutive in memory. */
static int64_t run_from(const hk_engine *e, const hk_state_subgroup *sub, int64_t at) {
  const int64_t left = sub->numel - at, piece = e->state.piece;
  return sub->route == HK_ROUTE_CPU ? hk_min(left, piece - at % piece) : left;
}

static hk_status take_gradients(hk_engine *e, int64_t offset, int64_t n, const char *grad,
                                bool on_device, bool wait, hk_error *err) {
  if (on_device) HK_TRY(scan_device(e, grad, n, err));
  for (int64_t done = 0; done < n;) {
    const hk_state_subgroup *sub = &e->state.subgroups[hk_state_find(&e->state, offset + done)];
    const int64_t at = offset + done - sub->offset;
    const int64_t part = hk_min(n - done, run_from(e, sub, at));
    HK_TRY(give_run(e, sub, at, part, grad + 2 * done, on_device, err));
    done += part;
  }
  return wait || !on_device ? e->backend->ops->stream_sync(e->stream, err) : HK_OK;
}

hk_status hk_engine_gradients(hk_engine *e, int64_t offset, int64_t n, const void *grad,
                              bool on_device, bool wait, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  if (offset < 0 || n < 0 || n > e->state.numel - offset) {
    return hk_fail(
        err, HK_INPUT,
        "gradients of %lld parameters from parameter %lld on: the engine has %lld, counted "
        "from 0",
        (long long)n, (long long)offset, (long long)e->state.numel);
  }
  int64_t first = 0;
  if (hk_ranges_meet(&e->given, offset, offset + n, &first)) {
    return hk_fail(
        err, HK_INPUT,
        "gradients of %lld parameters from parameter %lld on: parameter %lld has been given "
        "its gradient; each is given once a step",
        (long long)n, (long long)offset, (long long)first);
  }
  HK_TRY(hk_ranges_add(&e->given, offset, offset + n, err));
  if (take_gradients(e, offset, n, grad, on_device, wait, err) == HK_OK) return HK_OK;
  e->failed = true; /* it is unknown which of them are in the sum of squares */
  return hk_fail_prefix(err, "gradients of %lld parameters from parameter %lld on", (long long)n,
                        (long long)offset);
}

hk_status hk_engine_squares(hk_engine *e, hk_squares *sum, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  const hk_status status = collect_bins(e, err);
  e->failed = status != HK_OK;
  *sum = e->squares;
  return status;
}

hk_status hk_engine_forget_gradients(hk_engine *e, hk_error *err) {
  hk_squares gone;
  HK_TRY(hk_engine_squares(e, &gone, err));
  hk_ranges_clear(&e->given);
  e->squares = (hk_squares){0};
  return HK_OK;
}

/* -- After a failure --------------------------------------------------------------------------- */

/* Whether all CPU updates of the subgroup have ended: CPU lanes complete a subgroup they have
 * begun. */
static bool cpu_done(const hk_engine *e, size_t s) {
  for (size_t i = 0; i < e->graph.n_ops; i++) {
    const hk_op *op = &e->graph.ops[i];
    if (op->kind == HK_OP_ADAMW_CPU && op->subgroup == (int32_t)s &&
        !hk_executor_done(e->executor, (int32_t)i)) {
      return false;
    }
  }
  return true;
}

static bool has_arrived(const hk_engine *e, size_t s) {
  return e->arrived[s] == e->attempt;
}

/* Writes the list of subgroups that hold the state of `step`, "0-3, 7, ..."; returns their number.
 */
static size_t list_subgroups(const hk_engine *e, int64_t step, char *text, size_t size) {
  const hk_state_subgroup *subgroups = e->state.subgroups;
  const size_t most = size - 48; /* room for one more run and the dots */
  size_t count = 0, used = 0, end = 0;
  text[0] = 0;
  for (size_t s = 0; s < e->state.n_subgroups; s = end) {
    end = s + 1;
    if (subgroups[s].step != step) continue;
    while (end < e->state.n_subgroups && subgroups[end].step == step) end++;
    count += end - s;
    if (used > most) continue;
    used += (size_t)snprintf(text + used, size - used, "%s%zu", used > 0 ? ", " : "", s);
    if (end - s > 1) used += (size_t)snprintf(text + used, size - used, "-%zu", end - 1);
    if (used > most) snprintf(text + used, size - used, ", ...");
  }
  return count;
}

/* Determines which state subgroup s holds after the attempt at `step` has failed. */
static void settle(hk_engine *e, size_t s, int64_t step, bool device_lost) {
  hk_state_subgroup *sub = &e->state.subgroups[s];
  const bool new = sub->route == HK_ROUTE_CPU ? cpu_done(e, s) : has_arrived(e, s);
  if (new) hk_state_commit(&e->state, s, step);
  /* State on the device is updated in place. */
  const bool half = !new && sub->touched == e->attempt;
  if (sub->route == HK_ROUTE_RESIDENT && (device_lost || half)) sub->step = -1;
}

/* `begun`: some of the step's operations may have been done. */
hk_status hk_engine_account_for_failure(hk_engine *e, int64_t step, bool begun, hk_error *err) {
  hk_error gone = {0};
  const bool lost = e->backend->ops->stream_sync(e->stream, &gone) != HK_OK;
  e->failed = true;
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    if (begun) settle(e, s, step, lost);
    if (!begun && lost && e->state.subgroups[s].route == HK_ROUTE_RESIDENT) {
      e->state.subgroups[s].step = -1;
    }
  }
  char in_new[160], in_old[160], in_none[160], text[600];
  const size_t n_new = list_subgroups(e, step, in_new, sizeof in_new);
  const size_t n_old = list_subgroups(e, step - 1, in_old, sizeof in_old);
  const size_t n_none = list_subgroups(e, -1, in_none, sizeof in_none);
  if (n_new == e->state.n_subgroups && e->step != step) { /* the new step is complete */
    for (size_t p = 0; p < e->n_params; p++) e->param_step[p] += e->active[p];
    e->step = step;
  }
  const int used =
      snprintf(text, sizeof text, "%zu subgroups hold step %lld's state%s%s, %zu step %lld's%s%s",
               n_new, (long long)step, n_new > 0 ? ": " : "", in_new, n_old, (long long)(step - 1),
               n_old > 0 ? ": " : "", in_old);
  if (n_none > 0) {
    snprintf(text + used, sizeof text - (size_t)used, "; %zu lost on the device: %s", n_none,
             in_none);
  }
  const hk_error cause = *err;
  return hk_fail(err, HK_ENVIRONMENT,
                 "step %lld failed and must be repeated from the last checkpoint (%s): %s",
                 (long long)step, text, cause.message);
}

/* -- The step ---------------------------------------------------------------------------------- */

/* Computes norm and scale, and whether the step must be skipped. */
static void judge_gradients(const hk_engine *e, const hk_step_options *options,
                            hk_step_report *report) {
  const double loss_scale = options->loss_scale > 0 ? options->loss_scale : 1;
  const double value =
      options->sum_of_squares != 0 ? options->sum_of_squares : hk_squares_value(&e->squares);
  report->nonfinite = (int64_t)e->squares.nonfinite;
  report->skipped = e->squares.nonfinite > 0 || !isfinite(value);
  report->grad_norm = sqrt(value) / loss_scale;
  report->grad_scale = hk_grad_scale(value, e->options.max_norm, loss_scale);
}

void hk_engine_prepare_steps(const hk_engine *e, const bool *active, double scale,
                             hk_adamw_step *steps) {
  const hk_adamw_step *last = NULL;
  int32_t group = -1;
  int64_t step = -1;
  for (size_t p = 0; p < e->n_params; p++) {
    if (!active[p]) continue;
    /* Neighbours mostly have the same group and step number, hence the same constants. */
    if (last != NULL && e->params[p].group == group && e->param_step[p] == step) {
      steps[p] = *last;
    } else {
      group = e->params[p].group;
      step = e->param_step[p];
      steps[p] = hk_adamw_prepare(&e->groups[group].hyper, step + 1, scale);
    }
    last = &steps[p];
  }
}

void hk_engine_commit(hk_engine *e, int64_t step) {
  for (size_t s = 0; s < e->state.n_subgroups; s++) hk_state_commit(&e->state, s, step);
  for (size_t p = 0; p < e->n_params; p++) e->param_step[p] += e->active[p];
  e->step = step;
}

hk_status hk_engine_send_ticket(hk_engine *e, hk_error *err) {
  *e->ticket = ++e->attempt;
  HK_TRY(e->backend->ops->copy(e->stream, e->device_ticket, e->ticket, sizeof *e->ticket, err));
  return e->backend->ops->stream_sync(e->stream, err);
}

/* Waits for all gradients, and computes what the step needs before its first operation. */
static hk_status prepare_step(hk_engine *e, const hk_step_options *options, hk_step_report *report,
                              hk_error *err) {
  HK_TRY(e->backend->ops->stream_sync(e->stream, err));
  HK_TRY(collect_bins(e, err));
  judge_gradients(e, options, report);
  hk_ranges_clear(&e->given);
  e->squares = (hk_squares){0};
  return report->skipped ? HK_OK : hk_engine_send_ticket(e, err);
}

hk_status hk_engine_step(hk_engine *e, const hk_step_options *options, hk_step_report *report,
                         hk_error *err) {
  static const hk_step_options none = {0};
  if (options == NULL) options = &none;
  *report = (hk_step_report){.step = e->step};
  HK_TRY(hk_engine_refuse_failed(e, err));
  if (e->given.total != e->state.numel) {
    return hk_fail(err, HK_INPUT,
                   "gradients for %lld of %lld parameters were given before the step; the first "
                   "that has none is %lld",
                   (long long)e->given.total, (long long)e->state.numel,
                   (long long)hk_ranges_gap(&e->given));
  }
  const int64_t step = e->step + 1;
  if (prepare_step(e, options, report, err) != HK_OK) {
    return hk_engine_account_for_failure(e, step, false, err);
  }
  if (report->skipped) return HK_OK;
  hk_engine_prepare_steps(e, e->active, report->grad_scale, e->steps);
  hk_state_relocate(&e->plan, &e->state);
  if (hk_executor_run(e->executor, options->timeline, &report->update, err) != HK_OK) {
    return hk_engine_account_for_failure(e, step, true, err);
  }
  hk_engine_commit(e, step);
  report->step = step;
  return HK_OK;
}
