/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Turns at the copy engines. A GPU has one engine for each direction, which does at most
 * pcie.copies_at_once copies at a time; further copies wait in the order in which they came.
 *
 * Example (copies_at_once 1): three streams queue a copy of 236 MB each at the same time. At
 * 50 GB/s they end after 4.7, 9.4 and 14.2 ms, not all three after 14.2 ms. */
#include "sim/state.h"

/* The engine at which the operation has its next turn. */
static hk_copy_engine *engine_of(const hk_sim_state *s, const hk_active_op *active) {
  const bool out = active->engine == HK_TRAFFIC_OUT && !active->turning;
  return &s->engines[2 * s->graph->ops[active->op].rank + out];
}

static hk_ns came_at(const hk_sim_state *s, const hk_active_op *active) {
  return s->result->timeline.spans[active->op].start;
}

/* Place in the queue among copies that came at the same instant, 0 first. On real hardware their
 * order varies. Here it rotates over the lanes: each time such a group comes, the lane after the
 * previous leader leads, so that every lane is first equally often. */
static int32_t place_of(const hk_sim_state *s, const hk_active_op *active) {
  const hk_copy_engine *engine = engine_of(s, active);
  const int32_t lanes = (int32_t)s->graph->n_lanes, lane = s->graph->ops[active->op].lane;
  const int32_t lead = engine->came == came_at(s, active) ? engine->lead : engine->lead + 1;
  return (lane - lead + lanes) % lanes;
}

static bool came_before(const hk_sim_state *s, const hk_active_op *a, const hk_active_op *b) {
  if (came_at(s, a) != came_at(s, b)) return came_at(s, a) < came_at(s, b);
  if (engine_of(s, a) != engine_of(s, b)) return engine_of(s, a) < engine_of(s, b);
  return place_of(s, a) < place_of(s, b);
}

unsigned hk_turns_engine(const hk_sim_state *s, unsigned wanted) {
  return s->machine->copies_at_once.value < (double)s->graph->n_lanes ? wanted : 0;
}

static void note_user(const hk_sim_state *s, const hk_active_op *active) {
  hk_copy_engine *engine = engine_of(s, active);
  const int32_t lane = s->graph->ops[active->op].lane;
  if (engine->user != lane) engine->user = engine->user == -1 ? lane : -2;
}

void hk_turns_wait(hk_sim_state *s, hk_active_op *active) {
  note_user(s, active);
  active->waiting = true;
  active->due = INT64_MAX;
  s->n_waiting++;
}

void hk_turns_give(hk_sim_state *s) {
  while (s->n_waiting > 0) {
    hk_active_op *first = NULL;
    for (int i = 0; i < s->n_running; i++) {
      hk_active_op *active = &s->active[s->running[i]];
      if (!active->waiting || engine_of(s, active)->copies >= s->machine->copies_at_once.value)
        continue;
      if (first == NULL || came_before(s, active, first)) first = active;
    }
    if (first == NULL) return;
    hk_copy_engine *engine = engine_of(s, first);
    if (engine->came != came_at(s, first)) engine->lead = s->graph->ops[first->op].lane;
    engine->came = came_at(s, first);
    if (first->turning) {
      first->turning = false; /* its turn for copies in is over at once; now the engine for out */
      note_user(s, first);
      continue;
    }
    first->waiting = false;
    s->n_waiting--;
    engine->copies++;
    hk_become_fluid(s, first, (double)s->graph->ops[first->op].work);
  }
}

void hk_turns_end(hk_sim_state *s, const hk_active_op *active) {
  if (active->engine != 0) engine_of(s, active)->copies--;
}
