/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Whether a simulation of several iterations repeats (hk_simulate_until_repeat): whether two
 * successive iterations end, with their last backward, in the same state but for the time and the
 * number of the iteration. What follows depends on nothing else, so all later iterations are copies
 * of the last one.
 *
 * A state is a list of whole numbers, in which times are distances from now and operations are
 * counted from the iteration that has ended:
 * - of each operation of this iteration and the one before: not begun; begun, and when; ended, and
 *   when, if a hop that follows is not over. If the same operations have ended, the same operations
 *   wait for the same number of others;
 * - what each lane does and how much is left of it, in the order of `running`, in which rates are
 *   added up;
 * - copies at each copy engine; memory in use; the phase;
 * - the past: the traffic of each lane's last operation, and whose turn was last at each copy
 *   engine. In the first iteration there is less of it. */
#include <stdlib.h>
#include <string.h>

#include "sim/state.h"

#define NOT_BEGUN  INT64_MAX
#define ENDED      INT64_MIN
#define JUST_ENDED (INT64_MIN / 2) /* and how long ago */
#define LANE_WORDS 7               /* one of them of its past */
#define RANK_WORDS 7               /* two of them of its engines' past */
#define NODE_WORDS 5

hk_status hk_repeat_open(hk_sim_state *s) {
  const hk_graph *g = s->graph;
  hk_repeat *r = s->repeat;
  r->each = g->n_ops / (size_t)g->iterations;
  r->words = 2 * r->each + LANE_WORDS * g->n_lanes + RANK_WORDS * (size_t)g->ranks + NODE_WORDS;
  r->state = malloc(r->words * sizeof *r->state);
  r->before = malloc(r->words * sizeof *r->before);
  if (r->state == NULL || r->before == NULL)
    return hk_fail_memory(s->err, 2 * r->words * sizeof *r->state, "the state of a simulation");
  for (size_t i = 0; i < r->each; i++)
    if (g->ops[i].kind == HK_OP_BACKWARD && g->ops[i].rank == 0) s->turn = (int32_t)i;
  for (size_t i = 0; i < g->n_ops; i++) s->result->timeline.spans[i].end = NOT_BEGUN;
  return HK_OK;
}

void hk_repeat_close(hk_repeat *r) {
  free(r->state);
  free(r->before);
}

/* Whether operations are begun, and have ended, only where the state says so: none of the next
 * iteration is ready, and all before the last iteration have ended. */
static bool is_whole(const hk_sim_state *s, size_t iteration) {
  const hk_span *spans = s->result->timeline.spans;
  const size_t each = s->repeat->each;
  for (size_t i = 0; i + each < iteration * each; i++)
    if (spans[i].end < 0 || spans[i].end == NOT_BEGUN) return false;
  for (size_t i = (iteration + 1) * each; i < s->graph->n_ops; i++)
    if (s->pending[i] == 0) return false;
  return true;
}

static hk_ns *put_operations(const hk_sim_state *s, size_t iteration, hk_ns *to) {
  const size_t each = s->repeat->each, end = (iteration + 1) * each;
  const hk_ns hop = (hk_ns)fmax(0, s->machine->gpu_hop.value);
  for (size_t i = 0; i < each && iteration == 0; i++) *to++ = ENDED; /* before the first one */
  for (size_t i = iteration == 0 ? 0 : end - 2 * each; i < end; i++) {
    const hk_span *span = &s->result->timeline.spans[i];
    if (span->end == NOT_BEGUN)
      *to++ = NOT_BEGUN;
    else if (span->end < 0)
      *to++ = span->start - s->now;
    else
      *to++ = s->now - span->end < hop ? JUST_ENDED + (s->now - span->end) : ENDED;
  }
  return to;
}

static hk_ns bits_of(double number) {
  hk_ns bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static hk_ns *put_lanes(const hk_sim_state *s, size_t iteration, hk_ns *to) {
  for (int i = 0; i < s->n_running; i++) {
    const hk_active_op *a = &s->active[s->running[i]];
    *to++ = s->running[i];
    *to++ = a->op - (hk_ns)(iteration * s->repeat->each);
    *to++ = a->standing_by | a->waiting << 1 | a->fluid << 2 | a->fetched << 3 | a->turning << 4;
    *to++ = a->due == INT64_MAX ? a->due : a->due - s->now;
    *to++ = a->fluid ? bits_of(a->remaining) : 0;
    *to++ = a->fluid ? bits_of(a->activity.rate) : 0;
  }
  for (size_t i = 6 * (size_t)s->n_running; i < 6 * s->graph->n_lanes; i++) *to++ = 0;
  return to;
}

/* Whether a copy may come that joined the queue when the engine's last one did. */
static bool may_come(const hk_sim_state *s, hk_ns came) {
  bool may = came == s->now;
  for (int i = 0; i < s->n_running; i++)
    may = may || s->result->timeline.spans[s->active[s->running[i]].op].start == came;
  return may;
}

static hk_ns *put_node(const hk_sim_state *s, hk_ns *to) {
  for (int rank = 0; rank < s->graph->ranks; rank++) {
    *to++ = s->gpu_memory[rank];
    for (int e = 2 * rank; e < 2 * rank + 2; e++) {
      *to++ = s->engines[e].copies;
      *to++ = may_come(s, s->engines[e].came) ? s->engines[e].came - s->now : NOT_BEGUN;
    }
  }
  *to++ = s->n_running;
  *to++ = s->n_waiting;
  *to++ = s->phase;
  *to++ = s->dirty;
  *to++ = s->since - s->now;
  return to;
}

static void put_past(const hk_sim_state *s, hk_ns *to) {
  for (size_t l = 0; l < s->graph->n_lanes; l++) *to++ = s->active[l].traffic;
  for (int e = 0; e < 2 * s->graph->ranks; e++) *to++ = s->engines[e].lead;
}

/* Whether the past makes no difference: a lane's last traffic does if the lane copies both ways (
 * hk_active_op.turning), whose turn was last does if several lanes share the engine. `a` and `b`:
 * of now and of an iteration before. All operations of an iteration have begun by now. */
static bool same_past(const hk_sim_state *s, const hk_ns *a, const hk_ns *b) {
  const unsigned ways = HK_TRAFFIC_COPY_IN | HK_TRAFFIC_COPY_OUT;
  const size_t lanes = s->graph->n_lanes, engines = 2 * (size_t)s->graph->ranks;
  for (size_t l = 0; l < lanes; l++)
    if ((s->active[l].had & ways) == ways && a[l] != b[l]) return false;
  for (size_t e = 0; e < engines; e++)
    if (s->engines[e].user == -2 && a[lanes + e] != b[lanes + e]) return false;
  return true;
}

/* Whether what is left of iterations up to `end` may use more GPU memory than any operation so far,
 * once no other iteration follows. */
static bool may_peak(const hk_sim_state *s, size_t end) {
  hk_bytes most = 0;
  for (int rank = 0; rank < s->graph->ranks; rank++) most = hk_max(most, s->gpu_memory[rank]);
  for (size_t i = 0; i < end; i++)
    if (s->result->timeline.spans[i].end == NOT_BEGUN) most += s->graph->ops[i].gpu_alloc;
  return most > s->result->memory.peak;
}

void hk_repeat_turn(hk_sim_state *s) {
  hk_repeat *r = s->repeat;
  const size_t iteration = (size_t)s->turn / r->each;
  hk_ns *before = r->before;
  r->repeatable =
      r->repeatable && is_whole(s, iteration) && s->now < HK_END_OF_TIME / HK_MOST_ITERATIONS / 2;
  r->before = r->state;
  r->state = before;
  const size_t past = r->words - s->graph->n_lanes - 2 * (size_t)s->graph->ranks;
  put_node(s, put_lanes(s, iteration, put_operations(s, iteration, r->state)));
  put_past(s, r->state + past);
  r->found =
      r->repeatable && iteration > 0 && memcmp(r->state, r->before, past * sizeof *r->state) == 0 &&
      same_past(s, r->state + past, r->before + past) && !may_peak(s, (iteration + 1) * r->each);
  r->period = s->now - r->turned;
  r->turned = s->now;
  s->turn += (int32_t)r->each;
}
