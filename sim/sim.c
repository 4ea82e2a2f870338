/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The event loop of sim.h: operations become ready, spend their latency, progress, and end. */
#include "sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/state.h"

/* -- rates -------------------------------------------------------------------------------- */

static hk_status add_rate_counter(hk_sim_state *s, int rank, hk_resource r) {
  char name[40];
  if (s->graph->ranks > 1 && !hk_resource_is_node(r)) {
    snprintf(name, sizeof name, "rank%d %s", rank, hk_resource_name(r));
  } else {
    snprintf(name, sizeof name, "%s", hk_resource_name(r));
  }
  const int index = hk_timeline_counter(&s->result->timeline, name, hk_resource_unit(r),
                                        hk_resource_capacity(s->machine, r, false), s->err);
  s->rate_counters[rank * HK_RES_COUNT + (int)r] = index;
  return index < 0 ? s->err->status : HK_OK;
}

static hk_status sample_rates(hk_sim_state *s) {
  if (!s->options.counters) return HK_OK;
  for (int rank = 0; rank < s->graph->ranks; rank++) {
    for (int r = 0; r < HK_RES_COUNT; r++) {
      const int slot = rank * HK_RES_COUNT + r;
      if (rank > 0 && hk_resource_is_node((hk_resource)r)) continue;
      if (s->rate_counters[slot] < 0) {
        if (!(s->used[slot] > 0)) continue; /* resources that are never used have no counter */
        HK_TRY(add_rate_counter(s, rank, (hk_resource)r));
      }
      HK_TRY(hk_counter_add(&s->result->timeline.counters[s->rate_counters[slot]], s->now,
                            s->used[slot], s->err));
    }
  }
  return HK_OK;
}

/* Adds what was used since the last time to the totals of the current phase, for which a simulation
 * until it repeats is not asked. */
static void account(hk_sim_state *s) {
  if (s->repeat != NULL) return;
  const double dt = (double)(s->now - s->booked) / 1e9;
  s->booked = s->now;
  if (dt <= 0) return;
  double *used = s->result->used_phase[s->phase];
  for (int rank = 0; rank < s->graph->ranks; rank++) {
    for (int r = 0; r < HK_RES_COUNT; r++) {
      used[r] += s->used[rank * HK_RES_COUNT + r] * dt;
      if (s->in_last) s->result->last.used[r] += s->used[rank * HK_RES_COUNT + r] * dt;
    }
  }
}

/* Advances every fluid operation to `now` at the present rates. */
static void progress(hk_sim_state *s) {
  account(s);
  const double dt = (double)(s->now - s->since) / 1e9;
  for (int i = 0; i < s->n_running; i++) {
    hk_active_op *active = &s->active[s->running[i]];
    if (active->fluid) active->remaining -= active->activity.rate * dt;
  }
  s->since = s->now;
}

static hk_status share_anew(hk_sim_state *s, uint64_t key) {
  const int n = hk_contend(s);
  hk_share(s->activities, n, s->capacity, s->n_resources, s->used, s->growth, s->open);
  if (s->options.check) {
    HK_TRY(hk_check_rates(s, n));
    if (!hk_rate_cache_agrees(s, key))
      return hk_fail(s->err, HK_NO,
                     "invariant broken: at %lld ns the rates differ from those of the same "
                     "operations before",
                     (long long)s->now);
  }
  hk_rate_cache_put(s, key);
  return HK_OK;
}

/* Sets when fluid operations end at the present rates; returns the first end of any part. */
static hk_ns set_due(hk_sim_state *s) {
  hk_ns due = INT64_MAX;
  for (int i = 0; i < s->n_running; i++) {
    hk_active_op *active = &s->active[s->running[i]];
    if (active->fluid) active->due = s->now + hk_time_for(active->remaining, active->activity.rate);
    if (active->due < due) due = active->due;
  }
  return due;
}

/* Computes the rates of the fluid operations. Progress at the old rates is booked first; operations
 * that have just become fluid have rate 0 until here. *due: the first end of any part. */
static hk_status share(hk_sim_state *s, hk_ns *due) {
  progress(s);
  const uint64_t key = hk_rate_cache_key(s);
  if (s->options.check || !hk_rate_cache_get(s, key)) HK_TRY(share_anew(s, key));
  *due = set_due(s);
  s->dirty = false;
  return sample_rates(s);
}

/* -- events ------------------------------------------------------------------------------- */

static void note_phase(hk_sim_state *s, const hk_op *op) {
  if (op->phase == HK_PHASE_UPDATE) {
    if (op->kind != HK_OP_BARRIER && s->phase != HK_PHASE_UPDATE) return;
  } else if (op->kind != HK_OP_FORWARD && op->kind != HK_OP_BACKWARD) {
    return;
  }
  if (op->phase == s->phase) return;
  progress(s);
  s->phase = op->phase;
}

/* Whether the demand that `active` keeps is also that of `op`, the next operation of the lane. */
static bool demands_the_same(const hk_sim_state *s, const hk_active_op *active, const hk_op *op) {
  if (active->demanded == 0) return false;
  const hk_op *before = &s->graph->ops[active->demanded - 1];
  return hk_demand_is_same(before, op) && before->rank == op->rank && before->phase == op->phase;
}

/* Where the number of the latest demand of such an operation is. */
static uint8_t *latest_of(hk_sim_state *s, const hk_op *op) {
  const uint64_t key = (uint64_t)op->work * HK_OP_KIND_COUNT + (uint64_t)op->kind;
  _Static_assert(HK_LATEST_DEMANDS == 1 << 8, "as many as 64 - 56 bits number");
  return &s->latest[key * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

/* Takes over the demand of the latest such operation, on whatever lane, if it is the same. */
static bool demand_again(hk_sim_state *s, hk_active_op *active, const hk_op *op) {
  const uint8_t number = *latest_of(s, op);
  if (number == 0 || !demands_the_same(s, &s->numbered[number - 1], op)) return false;
  const unsigned had = active->had;
  *active = s->numbered[number - 1];
  active->had = had;
  active->activity.uses = active->uses;
  return true;
}

static void demand(hk_sim_state *s, hk_active_op *active, const hk_op *op) {
  const hk_demand d = hk_demand_of(s->graph, op, s->machine);
  active->demanded = 1 + (int32_t)(op - s->graph->ops);
  active->latency = d.latency;
  active->rank = op->rank;
  active->fetches = d.fetched;
  active->slowed = d.slowed;
  active->computes = op->kind == HK_OP_FORWARD || op->kind == HK_OP_BACKWARD;
  active->beside_compute = d.beside_compute;
  active->launched = d.launched;
  active->computed = d.computed;
  active->launches_kept = d.beside;
  active->among = d.among;
  memset(active->beside, 0, sizeof active->beside);
  active->updates = op->phase == HK_PHASE_UPDATE;
  active->sums = op->kind == HK_OP_GRAD_SUM_H2D && !s->graph->grads_widened;
  active->traffic = d.traffic;
  active->engine = hk_turns_engine(s, d.engine);
  active->cap = d.cap;
  active->host_wish = 0;
  active->weight = d.weight;
  active->weight_crowded = d.weight_crowded;
  active->activity = (hk_activity){.uses = active->uses, .n_uses = d.n_uses};
  for (int u = 0; u < d.n_uses; u++) {
    const hk_resource r = d.uses[u].resource;
    const double times = hk_use_count(s->graph, r);
    active->uses[u] = (hk_share_use){hk_slot(op->rank, r), d.uses[u].per_unit * times};
    if (r == HK_RES_DRAM_CPU) active->host_wish = d.cap * active->uses[u].per_unit;
  }
  active->number = isfinite(d.cap) ? hk_rate_cache_number(s, active) : 0;
  *latest_of(s, op) = active->number;
}

static hk_status start(hk_sim_state *s, int32_t id) {
  const hk_op *op = &s->graph->ops[id];
  hk_active_op *active = &s->active[op->lane];
  note_phase(s, op);
  HK_TRY(hk_memory_take(s, op));
  const unsigned before = active->traffic;
  if (!demands_the_same(s, active, op) && !demand_again(s, active, op)) demand(s, active, op);
  active->had |= active->traffic;
  active->activity.rate = 0; /* until it is shared */
  active->turning =
      (before & HK_TRAFFIC_COPY_IN) != 0 && (active->traffic & HK_TRAFFIC_COPY_OUT) != 0;
  active->op = id;
  active->standing_by = active->fluid = active->waiting = false;
  active->fetched = active->fetches;
  active->due = s->now + active->latency;
  s->running[s->n_running++] = op->lane;
  hk_span *span = &s->result->timeline.spans[id];
  span->start = s->now;
  span->end = -1;
  s->result->events++;
  return HK_OK;
}

/* Occupies the lane of an operation that must wait for a hop; the lane is idle until its start. */
static void stand_by(hk_sim_state *s, int32_t id) {
  const int32_t lane = s->graph->ops[id].lane;
  hk_active_op *active = &s->active[lane];
  active->op = id;
  active->standing_by = true;
  active->fluid = active->waiting = active->fetched = false;
  active->due = s->result->timeline.spans[id].start;
  s->running[s->n_running++] = lane;
}

/* Starts the ready operations in the order of ids, or lets them stand by. */
static hk_status start_ready(hk_sim_state *s) {
  for (int i = 0; i < s->n_ready; i++) {
    const int32_t id = s->ready[i];
    if (s->result->timeline.spans[id].start > s->now) {
      stand_by(s, id);
    } else {
      HK_TRY(start(s, id));
    }
  }
  s->n_ready = 0;
  return HK_OK;
}

static int by_id(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* Few operations end or begin at one moment: then by insertion, without calls. */
static void sort_ids(int32_t *ids, int n) {
  enum { FEW = 16 };
  if (n > FEW) {
    qsort(ids, (size_t)n, sizeof *ids, by_id);
    return;
  }
  for (int i = 1; i < n; i++) {
    const int32_t id = ids[i];
    int at = i;
    for (; at > 0 && ids[at - 1] > id; at--) ids[at] = ids[at - 1];
    ids[at] = id;
  }
}

/* Changes no operation's progress, not even by rounding: operations end at the same times, however
 * many iterations follow. */
static void note_iteration(hk_sim_state *s, int32_t id) {
  if (id == s->turn) s->turns = true;
  if (id != s->last_begin && id != s->last_end) return;
  account(s);
  s->in_last = id == s->last_begin;
  *(s->in_last ? &s->result->last.begin : &s->result->last.end) = s->now;
}

/* Called when all dependencies of an operation have ended and, on a lane that does not pick, the
 * operation before it. */
static void become_ready(hk_sim_state *s, int32_t id) {
  const int32_t lane = s->graph->ops[id].lane;
  if (s->graph->lanes[lane].picks) {
    hk_picker_push(&s->pickers[lane], s->graph, id);
    return;
  }
  s->result->timeline.spans[id].ready = s->now;
  s->ready[s->n_ready++] = id;
}

/* Lanes that pick and are free take their next ready operation. */
static void pick(hk_sim_state *s) {
  for (size_t l = 0; l < s->graph->n_lanes; l++) {
    if (s->pickers[l].n == 0 || s->busy[l]) continue; /* lanes that do not pick have none */
    const int32_t id = hk_picker_pop(&s->pickers[l], s->graph);
    s->busy[l] = true;
    s->result->timeline.spans[id].ready = s->now;
    s->ready[s->n_ready++] = id;
  }
}

/* An operation has ended. Until an operation starts, its span's `start` holds the earliest possible
 * start: the end of the latest hop so far. */
static hk_status end(hk_sim_state *s, int32_t id) {
  hk_span *spans = s->result->timeline.spans;
  spans[id].end = s->now;
  s->result->events++;
  s->busy[s->graph->ops[id].lane] = false;
  note_iteration(s, id);
  HK_TRY(hk_memory_give(s, &s->graph->ops[id]));
  for (int32_t n = s->next_begin[id]; n < s->next_begin[id + 1]; n++) {
    const int32_t next = s->next[n];
    const hk_ns hop = hk_hop(s->graph, s->machine, id, next);
    if (hop > 0) spans[next].start = s->now + hop;
    if (--s->pending[next] == 0) become_ready(s, next);
  }
  return HK_OK;
}

/* Whether traffic on its GPU's link delays the start of a kernel that has spent its latency. */
static bool is_held_up(const hk_sim_state *s, hk_active_op *active) {
  if (!active->fetched) return false;
  active->fetched = false;
  active->due = s->now + hk_start_delay(s, active);
  return active->due > s->now;
}

/* The current part of an operation is over. Returns whether another part follows. */
static bool goes_on(hk_sim_state *s, hk_active_op *active) {
  if (active->standing_by) {
    s->ready[s->n_ready++] = active->op;
    return false;
  }
  if (is_held_up(s, active)) return true;
  const double work = (double)s->graph->ops[active->op].work;
  if (active->fluid || work <= 0 || !isfinite(active->cap)) {
    if (active->fluid) s->dirty = true;
    if (active->fluid) hk_turns_end(s, active);
    s->ended[s->n_ended++] = active->op;
    return false;
  }
  if (active->engine == 0) {
    hk_become_fluid(s, active, work);
  } else {
    hk_turns_wait(s, active);
  }
  return true;
}

/* Handles all parts that are over at `now`: ends before starts, both in the order of ids. */
static hk_status handle_due(hk_sim_state *s) {
  s->n_ended = 0;
  for (int i = 0; i < s->n_running;) {
    hk_active_op *active = &s->active[s->running[i]];
    if (active->due > s->now || goes_on(s, active)) {
      i++;
    } else {
      s->running[i] = s->running[--s->n_running];
    }
  }
  hk_turns_give(s);
  sort_ids(s->ended, s->n_ended);
  for (int i = 0; i < s->n_ended; i++) HK_TRY(end(s, s->ended[i]));
  if (s->n_ended > 0) pick(s);
  sort_ids(s->ready, s->n_ready);
  return start_ready(s);
}

static hk_ns next_due(const hk_sim_state *s) {
  hk_ns due = INT64_MAX;
  for (int i = 0; i < s->n_running; i++) {
    const hk_ns d = s->active[s->running[i]].due;
    if (d < due) due = d;
  }
  return due;
}

/* An iteration has ended. Whether the simulation need not go on. */
static bool is_last_turn(hk_sim_state *s) {
  const hk_memory_report *memory = &s->result->memory;
  s->turns = false;
  hk_repeat_turn(s);
  return s->repeat->found || s->turn >= (int32_t)s->graph->n_ops || memory->peak > memory->capacity;
}

static hk_status run_all(hk_sim_state *s) {
  for (size_t i = 0; i < s->graph->n_ops; i++) {
    if (s->pending[i] == 0) become_ready(s, (int32_t)i);
  }
  pick(s);
  HK_TRY(start_ready(s));
  while (s->n_running > 0) {
    /* Rates are needed only when time advances. */
    hk_ns due = next_due(s);
    if (due > s->now && s->dirty) HK_TRY(share(s, &due));
    if (due == INT64_MAX) {
      return hk_fail(s->err, HK_NO, "invariant broken: nothing progresses at %lld ns",
                     (long long)s->now);
    }
    if (due >= HK_END_OF_TIME) {
      return hk_fail(s->err, HK_INPUT,
                     "the iteration would take more than 30 years; check the job's size and the "
                     "machine's rates");
    }
    s->now = due;
    HK_TRY(handle_due(s));
    if (s->turns && is_last_turn(s)) return HK_OK;
  }
  progress(s);
  memset(s->used, 0, (size_t)s->n_resources * sizeof *s->used);
  return sample_rates(s);
}

/* A simulation whose state is set up but for its options. */
static hk_sim_state state_of(const hk_graph *graph, const hk_machine *machine, hk_result *result,
                             hk_error *err) {
  memset(result, 0, sizeof *result);
  return (hk_sim_state){
      .graph = graph, .machine = machine, .result = result, .err = err, .turn = -1};
}

/* Up to the first event. */
static hk_status begin(hk_sim_state *s) {
  HK_TRY(hk_timeline_init(s->graph, &s->result->timeline, s->err));
  HK_TRY(hk_sim_state_open(s));
  return hk_memory_begin(s);
}

hk_status hk_simulate(const hk_graph *graph, const hk_machine *machine,
                      const hk_sim_options *options, hk_result *result, hk_error *err) {
  hk_error local = {0};
  hk_sim_state s = state_of(graph, machine, result, err != NULL ? err : &local);
  if (options != NULL) s.options = *options;
  hk_status status = begin(&s);
  if (status == HK_OK) status = run_all(&s);
  if (status == HK_OK) {
    hk_memory_end(&s);
    hk_timeline_phases(graph, &result->timeline);
    for (int p = 0; p < HK_PHASE_COUNT; p++) {
      for (int r = 0; r < HK_RES_COUNT; r++) result->used[r] += result->used_phase[p][r];
    }
    if (s.options.check) status = hk_check_result(&s);
  }
  hk_sim_state_close(&s);
  if (status != HK_OK) hk_result_free(result);
  return status;
}

hk_status hk_simulate_until_repeat(const hk_graph *graph, const hk_machine *machine,
                                   hk_repetition *repetition, hk_error *err) {
  hk_result result;
  hk_repeat repeat = {.repeatable = true};
  hk_sim_state s = state_of(graph, machine, &result, err);
  s.repeat = &repeat;
  hk_status status = begin(&s);
  if (status == HK_OK) status = hk_repeat_open(&s);
  if (status == HK_OK) status = run_all(&s);
  *repetition = (hk_repetition){repeat.found, repeat.period, result.memory.peak};
  hk_repeat_close(&repeat);
  hk_sim_state_close(&s);
  hk_result_free(&result);
  return status;
}

void hk_result_free(hk_result *result) {
  hk_timeline_free(&result->timeline);
  memset(result, 0, sizeof *result);
}
