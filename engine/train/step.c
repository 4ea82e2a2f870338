/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of a step: its constants, its commit, and after a failure what state each subgroup is
 * left with. */
#include <stdio.h>
#include <string.h>

#include "engine/run/owner.h"
#include "engine/train/training_private.h"

/* -- After a failure --------------------------------------------------------------------------- */

static bool is_cpu_update(const hk_engine *e, size_t op, size_t s) {
  return e->graph.ops[op].kind == HK_OP_ADAMW_CPU && e->graph.ops[op].subgroup == (int32_t)s;
}

/* Whether the new state of the piece of CPU update `op` is in host memory. */
static bool piece_done(const hk_engine *e, size_t op) {
  if (hk_owner_of(e, &e->graph.ops[op]) != HK_OWNER_GPU)
    return hk_executor_done(e->executor, (int32_t)op);
  return e->arrived[hk_engine_piece_sign(e, &e->graph.ops[op])] == e->attempt;
}

/* Whether subgroup s has its new state. CPU lanes complete a subgroup that they have begun. If the
 * GPU has taken pieces of it, and only some pieces have their new state, in place, then the CPU
 * updates the others now: their old state is whole, because the GPU writes to spare memory. */
static bool complete(hk_engine *e, size_t s) {
  const hk_state_subgroup *sub = &e->state.subgroups[s];
  size_t n_old = 0, n_new = 0;
  for (size_t i = 0; i < e->graph.n_ops; i++)
    if (is_cpu_update(e, i, s)) *(piece_done(e, i) ? &n_new : &n_old) += 1;
  if (n_old == 0) return true;
  const bool in_place = hk_state_written(&e->state, sub) == e->state.home;
  if (n_new == 0 || !sub->stealable || !in_place) return false;
  for (size_t i = 0; i < e->graph.n_ops; i++) {
    const hk_op *op = &e->graph.ops[i];
    if (!is_cpu_update(e, i, s) || piece_done(e, i)) continue;
    hk_state_untake(&e->state, s, op->offset, op->work);
    hk_engine_update_on_cpu(e, op, hk_engine_cpu_steps(e, op));
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
  const bool by_cpu = sub->route == HK_ROUTE_CPU && !hk_state_stages(&e->state, sub);
  const bool new = by_cpu ? complete(e, s) : has_arrived(e, s);
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

/* -- Constants and commit ---------------------------------------------------------------------- */

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
      steps[p] = hk_adamw_prepare(&e->groups[group], step + 1, scale);
    }
    last = &steps[p];
    if (hk_format_is_random(e->state.shape.format)) {
      const uint64_t tensor = e->params[p].key != 0 ? e->params[p].key : p;
      hk_random_key(e->options.seed, tensor, step + 1, steps[p].key);
    }
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
