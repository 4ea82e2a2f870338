/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to the simulator: the state of a simulation at one moment of virtual time. */
#ifndef HK_SIM_STATE_H
#define HK_SIM_STATE_H

#include <math.h>

#include "core/graph/pick.h"
#include "sim/share.h"
#include "sim/sim.h"

/* The operation that a lane has taken. It passes through these parts, most through two:
 *   standing by  until the hop from another queue of its GPU is over
 *   latency      fixed time, shares nothing
 *   waiting      for its turn at a copy engine (sim/copy_turns.c)
 *   fluid        its work progresses at a rate that depends on the other operations */
typedef struct {
  int32_t op;
  bool standing_by;
  bool waiting;
  bool fluid;
  hk_ns due;        /* when the current part ends at the present rates; INT64_MAX: not known */
  double remaining; /* work units left at time `hk_sim_state.since` */

  /* Demand (hk_demand_of), kept for the next operation of the lane if that has the same. */
  int32_t demanded; /* 1 + an operation whose demand this is; 0: none */
  uint8_t number;   /* of the demand in the cache of rates; 0: none */
  int32_t rank;
  hk_ns latency;
  unsigned traffic, engine;  /* HK_TRAFFIC_* */
  unsigned had;              /* traffic of all operations of the lane so far */
  bool fetches;              /* its start is delayed by traffic on the link (hk_demand.fetched) */
  bool slowed;               /* its rate is lower beside copies (hk_demand.slowed) */
  bool computes;             /* forward or backward */
  bool updates;              /* belongs to the update phase */
  bool sums;                 /* copies in sums of several micro-steps that the engine keeps */
  double beside_compute;     /* share of its cap that is kept while its rank computes */
  double launched, computed; /* see hk_demand */
  double launches_kept;      /* the same: `beside` */
  int among;                 /* the same */
  double beside[8]; /* caps of forward or backward so far, by what is beside; 0: not known */
  double host_wish; /* CPU kernel: host memory traffic at its cap, bytes/s; others: 0 */
  double cap, weight, weight_crowded;
  hk_share_use uses[HK_DEMAND_USES];

  bool fetched; /* latency part only: the delay of its start is still to be added */
  bool turning; /* a copy out that follows a copy in on its lane: it first takes an empty turn at
                   the engine for copies in, as measured streams do */
  hk_activity activity; /* the demand under contention (hk_contend), and the rate */
} hk_active_op;

/* A copy engine: one for each GPU and direction. */
typedef struct {
  int copies;   /* in progress */
  hk_ns came;   /* when the copy that last got a turn had joined the queue; -1: none yet */
  int32_t lead; /* lane of the first copy that got a turn among those that had joined at that
                   time; -1: none yet */
  int32_t user; /* lane of all copies so far; -1: none yet, -2: several lanes */
} hk_copy_engine;

/* The framework's host thread and the CPU team of a rank, at one moment. */
typedef struct {
  bool team;        /* the team updates */
  bool full;        /* and leaves the framework too few cores */
  double launching; /* share of time in which the host thread launches; < 0: not known */
} hk_host_use;

/* Rates of an earlier moment at which operations with the same demands were fluid
 * (sim/rate_cache.c). */
#define HK_RATE_CACHE_LANES   8   /* sets of more operations are not remembered */
#define HK_RATE_CACHE_DEMANDS 64  /* different demands; further ones are not remembered */
#define HK_RATE_CACHE_SLOTS   256 /* a power of two */
#define HK_LATEST_DEMANDS     256 /* the same */

typedef struct {
  uint64_t fluid; /* key: numbers of demands in the order of `running`, 8 bits each; 0: empty */
  double rates[HK_RATE_CACHE_LANES];
} hk_cached_rates;

/* The states in which iterations end (sim/repeat.c). */
typedef struct {
  size_t each, words;     /* operations of an iteration; length of a state, of which the last part
                             matters only for some lanes (same_past) */
  hk_ns *state, *before;  /* of the last iteration that has ended, of the one before */
  hk_ns turned, period;   /* when it ended; the time from the end of the one before */
  bool repeatable, found; /* all iterations so far ended as the proof needs it; they repeat */
} hk_repeat;

typedef struct {
  const hk_graph *graph;
  const hk_machine *machine;
  hk_sim_options options;
  hk_repeat *repeat; /* NULL: a whole simulation */
  int32_t turn; /* last backward of the iteration in progress, whose end is looked at; -1: none */
  bool turns;   /* it has ended at `now` */
  hk_result *result;
  hk_error *err;

  hk_ns now, since; /* `since`: when the operations' progress was last booked */
  hk_ns booked;     /* when the use of resources was */
  hk_phase phase;   /* that resource use is booked on: the phase of the latest forward or backward
                       operation; update from the barrier on */
  bool dirty;       /* the set of fluid operations has changed: rates must be computed again */

  hk_active_op *active; /* [lane] */
  int32_t *running;     /* lanes with an operation in progress, in no particular order */
  int n_running;

  int32_t *pending;   /* [operation] dependencies and lane predecessors that have not ended */
  hk_picker *pickers; /* [lane] ready operations, if the lane picks */
  bool *busy;         /* [lane] that picks: has an operation that has not ended */
  int32_t last_begin, last_end; /* operations whose ends bound the last iteration; -1: none */
  bool in_last;                 /* now is between these ends */
  int32_t *next_begin, *next;   /* successors of operation i: next[next_begin[i] ..
                                   next_begin[i + 1] - 1] */
  int32_t *ready, *ended;       /* operations that have become ready, or ended, at `now` */
  int n_ready, n_ended;

  hk_bytes *gpu_memory; /* [rank] in use */

  hk_copy_engine *engines; /* [rank][in, out] */
  int n_waiting;           /* operations that wait for a turn */

  /* Scratch of hk_contend: the fluid operations of each rank. */
  unsigned *traffic; /* [rank] union of their HK_TRAFFIC_* */
  int *readers;      /* [rank] number of kernels that read host memory */
  bool *computing;   /* [rank] forward or backward is in progress */
  bool *slowing;     /* [rank] any of them belongs to the update or copies sums in */
  hk_host_use *host; /* [rank] */

  hk_activity **activities;         /* the fluid operations, for hk_share */
  int32_t *open;                    /* scratch of hk_share */
  double *capacity, *used, *growth; /* [rank][resource]; resources of the node are at rank 0 */
  int n_resources;
  hk_active_op *numbered; /* [HK_RATE_CACHE_DEMANDS] the different demands so far */
  int n_numbered;
  uint8_t latest[HK_LATEST_DEMANDS]; /* number of the latest demand, by kind and amount of work;
                                        0: none */
  hk_cached_rates *rate_cache;       /* [HK_RATE_CACHE_SLOTS] */
  double *rate_cache_used;           /* [slot][resource] */
  int *rate_counters;   /* [rank][resource] index of the timeline's counter; -1: none */
  int *memory_counters; /* [rank], then the host's */
} hk_sim_state;

/* Index of a rank's resource in the arrays [rank][resource]. */
static inline int hk_slot(int rank, hk_resource resource) {
  return (hk_resource_is_node(resource) ? 0 : rank * HK_RES_COUNT) + (int)resource;
}

/* Virtual time ends after about 30 years: a longer iteration means a wrong number in the input. */
#define HK_END_OF_TIME 1000000000000000000LL

/* Time for `work` units at `rate` units a second: whole nanoseconds, rounded up, so that no
 * operation ends before its work is done. Rounding errors of doubles are far below 1e-3 ns: a time
 * that exceeds a whole number by less is that number. */
static inline hk_ns hk_time_for(double work, double rate) {
  const double ns = work / rate * 1e9;
  if (ns <= 1e-3) return 0;
  return ns < (double)HK_END_OF_TIME ? (hk_ns)ceil(ns - 1e-3) : HK_END_OF_TIME;
}

/* From now on the operation shares resources until `work` units are done. */
static inline void hk_become_fluid(hk_sim_state *s, hk_active_op *active, double work) {
  active->fluid = true;
  active->remaining = work;
  active->due = INT64_MAX;
  s->dirty = true;
}

/* sim/contention.c: collects the fluid operations in s->activities, and sets their caps and weights
 * and the capacities of resources under contention. Returns the number of these operations. */
int hk_contend(hk_sim_state *s);
/* How much longer the start of `kernel` takes beside what now uses its GPU's link. */
hk_ns hk_start_delay(const hk_sim_state *s, const hk_active_op *kernel);

/* sim/copy_turns.c. The engine (HK_TRAFFIC_IN, _OUT or 0: none) at which an operation that asks for
 * `wanted` has to wait for its turn: 0 if there are never more copies than turns. */
unsigned hk_turns_engine(const hk_sim_state *s, unsigned wanted);
/* The operation, which has spent its latency, joins the queue of its engine. */
void hk_turns_wait(hk_sim_state *s, hk_active_op *active);
/* Engines that are free begin the copies that came first. */
void hk_turns_give(hk_sim_state *s);
/* A fluid operation has ended: its engine, if it has one, is free for another. */
void hk_turns_end(hk_sim_state *s, const hk_active_op *active);

/* sim/state.c: allocates and initialises everything from `graph` and `machine`. Close also after a
 * failure. */
hk_status hk_sim_state_open(hk_sim_state *s);
void hk_sim_state_close(hk_sim_state *s);

/* sim/repeat.c. Open before the first event; close also after a failure. */
hk_status hk_repeat_open(hk_sim_state *s);
void hk_repeat_close(hk_repeat *repeat);
/* The last backward of an iteration has ended: sets s->repeat->found and ->period. */
void hk_repeat_turn(hk_sim_state *s);

/* sim/rate_cache.c: remembers the rates of sets of fluid operations. */
uint8_t hk_rate_cache_number(hk_sim_state *s, const hk_active_op *active); /* of its demand */
uint64_t hk_rate_cache_key(const hk_sim_state *s); /* of the present set; 0: too large */
/* Sets `used` and the rates from memory; false if the set is not remembered. */
bool hk_rate_cache_get(hk_sim_state *s, uint64_t key);
void hk_rate_cache_put(hk_sim_state *s, uint64_t key);
/* Whether remembered rates, if any, equal the present ones to the last bit. */
bool hk_rate_cache_agrees(const hk_sim_state *s, uint64_t key);

/* sim/memory.c: memory in use, as operations allocate and free it. */
hk_status hk_memory_begin(hk_sim_state *s);
hk_status hk_memory_take(hk_sim_state *s, const hk_op *op);
hk_status hk_memory_give(hk_sim_state *s, const hk_op *op);
void hk_memory_end(hk_sim_state *s);

/* sim/check.c: invariants. HK_NO and a message if one is violated. */
hk_status hk_check_rates(const hk_sim_state *s, int n_activities);
hk_status hk_check_result(const hk_sim_state *s);

#endif
