/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to the simulator: what is going on at one moment of virtual time. */
#ifndef HK_SIM_STATE_H
#define HK_SIM_STATE_H

#include "core/pick.h"
#include "sim/share.h"
#include "sim/sim.h"

/* An operation under way. */
typedef struct {
  int32_t op;
  bool standing_by; /* it starts when word of an end on another queue of its GPU has come */
  bool fluid;       /* false: standing by, in its latency, or waiting */
  bool fetched;     /* a kernel that has its latency before it: see hk_demand */
  bool slowed;      /* see hk_demand */
  bool computes;    /* forward or backward */
  bool updates;     /* a part of the update */
  bool waiting;     /* for its turn at a copy engine */
  hk_ns due;        /* when this part ends, as things stand */
  double remaining; /* work units at `hk_state.since` */
  int32_t demanded; /* the operation whose demand the rest is, and one more; 0: none's yet */
  hk_ns latency;
  bool fetches;
  unsigned traffic, engine;
  bool turning; /* a copy out behind a copy in on its lane: first it takes its turn, of no length,
                   at the engine that does copies in */
  double host_wish;                   /* a kernel's: bytes a second of host memory; else 0 */
  double cap, weight, weight_crowded; /* as demanded */
  hk_activity activity;               /* what of these holds beside all that is under way */
  hk_share_use uses[HK_DEMAND_USES];
} hk_run;

/* A GPU's, for one direction. */
typedef struct {
  int copies;   /* that it is at */
  hk_ns came;   /* when those came that it last chose among; -1: none have */
  int32_t lead; /* the lane that was the first of them; -1: none */
} hk_copy_engine;

/* How the machine was shared among so many fluid operations or fewer (sim/recall.c). */
#define HK_RECALL_LANES 8
#define HK_RECALL_SLOTS 64 /* a power of two */

typedef struct {
  uint64_t fluid;   /* their lanes in the order of `running`, one more than the lane's number, in 8
                       bits each; 0: an empty slot */
  uint64_t demands; /* hk_state's when it was shared */
  double rates[HK_RECALL_LANES];
} hk_recalled;

typedef struct {
  const hk_graph *graph;
  const hk_machine *machine;
  hk_sim_options options;
  hk_result *result;
  hk_error *err;

  hk_ns now, since; /* `since`: when rates last changed */
  hk_phase phase;   /* of the latest operation on a compute or host lane of rank 0; update from its
                       barrier on */
  bool dirty;       /* the set of fluid operations has changed: rates must be shared anew */

  hk_run *runs;     /* one slot a lane */
  int32_t *running; /* slots in use, in no particular order */
  int n_running;

  int32_t *pending;             /* per operation: dependencies and lane predecessor not yet ended */
  hk_picker *pickers;           /* per lane: what waits for it, where it picks */
  bool *busy;                   /* per lane that picks: it has taken one that has not ended */
  int32_t last_begin, last_end; /* operations whose ends bound the last iteration; -1: none */
  bool in_last;                 /* between these */
  int32_t *next_begin, *next;   /* successors, compressed */
  int32_t *ready, *ended;       /* scratch of one moment */
  int n_ready, n_ended;

  hk_bytes *gpu_memory; /* per rank */
  hk_bytes host_memory;

  hk_copy_engine *engines; /* [rank][in, out] */
  int n_waiting;

  unsigned *traffic; /* per rank: what is fluid; scratch of one sharing */
  int *readers;      /* per rank: its kernels that read host memory; the same */
  bool *updating;    /* per rank: parts of its update are; the same */

  hk_activity **activities; /* scratch of hk_share */
  int32_t *open;
  double *capacity, *used, *growth; /* [rank][resource]; node resources stand at rank 0 */
  int n_resources;
  uint64_t demands;      /* how often what a lane demands has changed */
  hk_recalled *recalled; /* HK_RECALL_SLOTS of them */
  double *recalled_used; /* [slot][resource] */
  int *rate_counters;    /* [rank][resource] -> timeline counter or -1 */
  int *memory_counters;  /* per rank, then the host's */
} hk_state;

/* Where a resource of a rank stands in the arrays above. */
static inline int hk_slot(int rank, hk_resource resource) {
  return (hk_resource_is_node(resource) ? 0 : rank * HK_RES_COUNT) + (int)resource;
}

/* How long `work` takes at a rate: whole nanoseconds, rounded up. */
hk_ns hk_time_for(double work, double rate);

/* sim/sim.c: from now on the operation shares resources until `work` units are done. */
void hk_become_fluid(hk_state *s, hk_run *run, double work);

/* sim/contention.c: collects the fluid operations in s->activities and sets their caps and weights,
 * and the capacities, as they are beside each other. Returns how many there are. */
int hk_contend(hk_state *s);
/* How much longer the start of `kernel` takes beside what now uses its GPU's link. */
hk_ns hk_start_delay(const hk_state *s, const hk_run *kernel);

/* sim/copy_turns.c. The engine (HK_TRAFFIC_IN, _OUT or 0: none) at which an operation that asks for
 * `wanted` has to wait for its turn: 0 if there are never more copies than turns. */
unsigned hk_turns_engine(const hk_state *s, unsigned wanted);
/* The operation, which has spent its latency, joins the queue of its engine. */
void hk_turns_wait(hk_state *s, hk_run *run);
/* Engines that are free begin the copies that came first. */
void hk_turns_give(hk_state *s);
/* A fluid operation has ended: its engine, if it has one, is free for another. */
void hk_turns_end(hk_state *s, const hk_run *run);

/* sim/state.c: everything from `graph` and `machine`; close also after a failure. */
hk_status hk_state_open(hk_state *s);
void hk_state_close(hk_state *s);

/* sim/recall.c: rates that were shared before among the same operations. */
uint64_t hk_recall_key(const hk_state *s); /* 0: too many to be remembered */
bool hk_recall(hk_state *s, uint64_t key); /* sets `used` and the rates of fluid operations */
void hk_recall_keep(hk_state *s, uint64_t key);
/* Whether what is remembered is what has just been shared, to the last bit. */
bool hk_recall_agrees(const hk_state *s, uint64_t key);

/* sim/memory.c: an operation takes and gives back memory. */
hk_status hk_memory_begin(hk_state *s);
hk_status hk_memory_take(hk_state *s, const hk_op *op);
hk_status hk_memory_give(hk_state *s, const hk_op *op);
void hk_memory_end(hk_state *s);

/* sim/check.c: invariants. HK_NO with what is broken. */
hk_status hk_check_rates(const hk_state *s, int n_activities);
hk_status hk_check_result(const hk_state *s);

#endif
