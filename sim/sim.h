/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The simulator: runs a task graph in virtual time on a machine profile.
 *
 * Summary: discrete events in integer nanoseconds, fluid rates between them.
 *   1. An operation starts when its dependencies have ended and its lane is free; after a
 * dependency on another queue of its GPU, gpu.hop_ns later. A lane that picks (hk_lane.picks) takes
 * the ready operation that is first by priority (core/graph/pick.h).
 *   2. It spends its latency, which shares nothing.
 *   3. Its work progresses at the rate that weighted max-min fairness gives it among all operations
 *      in progress (sim/share.h), with the caps and weights of sim/contention.h. Rates change when
 *      that set of operations changes.
 * At one instant ends are handled before starts, and both in the order of operation ids. So the
 * same input gives the same output, byte for byte, whatever the number of threads that simulate.
 *
 * Example: a copy of 550 MB to the GPU with latency 5 us and 55 GB/s alone ends after 10.005 ms. If
 * a second copy on another lane of that GPU begins 2 ms after the first, both get 27.5 GB/s from
 * then on, and the first one ends after 18.005 ms. (If pcie.copies_at_once is 1, the second copy
 * waits instead: sim/copy_turns.c.) */
#ifndef HK_SIM_SIM_H
#define HK_SIM_SIM_H

#include <math.h>
#include <stdbool.h>

#include "core/graph/graph.h"
#include "core/graph/timeline.h"
#include "core/machine/machine.h"

/* Resources with a capacity, which concurrent operations share: per rank (R) or per node (N). */
#define HK_RESOURCES(X)                                                          \
  X(GPU, "gpu", "seconds_per_s", R, "GPU compute, as fraction of time")          \
  X(HBM, "hbm", "bytes_per_s", R, "GPU memory bandwidth")                        \
  X(H2D, "h2d", "bytes_per_s", R, "PCIe towards the GPU")                        \
  X(D2H, "d2h", "bytes_per_s", R, "PCIe towards the host")                       \
  X(PCIE, "pcie", "bytes_per_s", R, "PCIe, both directions")                     \
  X(NVLINK, "nvlink", "bytes_per_s", R, "between GPUs of the node")              \
  X(PAGES, "pages", "bytes_per_s", R, "memory domains of an unbound rank")       \
  X(DRAM, "dram", "bytes_per_s", N, "host memory, weighted bytes of all")        \
  X(DRAM_CPU, "dram_cpu", "bytes_per_s", N, "host memory, bytes of CPU kernels") \
  X(FABRIC_H2D, "fabric_h2d", "bytes_per_s", N, "host fabric towards all GPUs")  \
  X(FABRIC_D2H, "fabric_d2h", "bytes_per_s", N, "host fabric towards the host")  \
  X(FABRIC, "fabric", "bytes_per_s", N, "host fabric, both directions")          \
  X(CORES, "cores", "seconds_per_s", N, "CPU cores")                             \
  X(NETWORK, "network", "bytes_per_s", N, "between nodes")

typedef enum {
#define HK_RESOURCE_ENUM(name, text, unit, scope, meaning) HK_RES_##name,
  HK_RESOURCES(HK_RESOURCE_ENUM)
#undef HK_RESOURCE_ENUM
      HK_RES_COUNT
} hk_resource;

const char *hk_resource_name(hk_resource resource);
const char *hk_resource_unit(hk_resource resource);
const char *hk_resource_meaning(hk_resource resource);
bool hk_resource_is_node(hk_resource resource);

/* Factor on an operation's use of a resource: an operation of a folded rank represents those of all
 * ranks of the node, which share the node's resources. */
static inline double hk_use_count(const hk_graph *graph, hk_resource resource) {
  return hk_resource_is_node(resource) ? graph->multiplicity : 1;
}

#define HK_DEMAND_USES 8

/* Kinds of host memory traffic, a set of bits. An operation can have several: a mapped kernel has
 * IN, OUT and KERNEL_IN. */
enum {
  HK_TRAFFIC_CPU = 1,        /* by a CPU kernel */
  HK_TRAFFIC_IN = 2,         /* to a GPU, by a copy engine or a GPU kernel */
  HK_TRAFFIC_OUT = 4,        /* from a GPU, by either */
  HK_TRAFFIC_COPY_IN = 8,    /* to a GPU, by a copy engine */
  HK_TRAFFIC_COPY_OUT = 16,  /* from a GPU, by a copy engine */
  HK_TRAFFIC_KERNEL_IN = 32, /* read by a GPU kernel */
};

/* Whether `traffic` contains both CPU kernels and traffic to or from a GPU. */
static inline bool hk_is_mixed(unsigned traffic) {
  return (traffic & HK_TRAFFIC_CPU) != 0 && (traffic & (HK_TRAFFIC_IN | HK_TRAFFIC_OUT)) != 0;
}

/* Whether `traffic`, of one GPU, contains both a copy in and a kernel that reads host memory. */
static inline bool hk_both_read(unsigned traffic) {
  return (traffic & HK_TRAFFIC_COPY_IN) != 0 && (traffic & HK_TRAFFIC_KERNEL_IN) != 0;
}

/* What one operation asks of the machine when it runs alone (sim/demand.c). */
typedef struct {
  hk_ns latency;
  bool fetched; /* a single kernel launch, which link traffic delays (hk_launch_delay). False for
                   forward and backward: their kernels are launched ahead */
  bool slowed;  /* an update in GPU memory: its rate is lower beside copies of the same GPU */
  double
      beside_compute; /* share of `cap` that is kept while forward or backward of the rank runs */
  double cap;         /* highest rate, in work units a second; INFINITY: only latency */
  double launched; /* forward and backward: rate at which the host queues its kernels, work units a
                      second; INFINITY: not known. `cap` is not higher */
  double computed; /* the same for the GPU alone, if `launched` is known */
  double beside;   /* most that is kept of `launched` while the CPU updates, a fraction */
  int among;       /* ranks whose launches it waits for, itself one of them */
  double weight;   /* in work units a second, see sim/share.h */
  double weight_crowded; /* weight while copies and CPU kernels mix, or several GPUs copy in one
                            direction */
  unsigned traffic;      /* HK_TRAFFIC_*; 0: none */
  unsigned engine;       /* HK_TRAFFIC_IN or _OUT: the copy engine at which it waits for its turn
                            (pcie.copies_at_once); 0: none */
  int n_uses;
  struct {
    hk_resource resource;
    double per_unit; /* use of the resource per unit of work */
  } uses[HK_DEMAND_USES];
} hk_demand;

/* Parameters a second that a team updates with host memory to itself; at most, by its arithmetic
 * (INFINITY: that does not limit it). In 8 bits the latter is what calibration measured
 * (hk_update_limit: in the limit of many threads) or, without that (NULL), hk_optimizer_info's
 * share of one thread's AdamW for each thread. */
double hk_update_rate(const hk_machine *machine, hk_optimizer optimizer, double threads);
double hk_update_most(const hk_machine *machine, hk_optimizer optimizer, double threads);
const hk_quantity *hk_update_limit(const hk_machine *machine, hk_optimizer optimizer);
/* Demand of an operation of `graph` on `machine`. */
hk_demand hk_demand_of(const hk_graph *graph, const hk_op *op, const hk_machine *machine);
/* Whether two operations of one graph have the same demand on any machine. */
bool hk_demand_is_same(const hk_op *a, const hk_op *b);
/* Demands of the latest operation of each lane (of the lanes whose numbers differ by 16, one),
 * whose next operations often have the same. Zeroed at first; of one graph and machine. */
typedef struct {
  struct {
    const hk_op *op;
    hk_demand demand;
  } slots[16];
} hk_demand_memo;
/* As hk_demand_of; valid until the next call. */
const hk_demand *hk_demand_again(hk_demand_memo *memo, const hk_graph *graph, const hk_op *op,
                                 const hk_machine *machine);
/* Least time from the end of operation `from` to the start of `to`, which depends on it, in ns:
 * gpu.hop_ns if they are on different queues of one GPU, else 0. */
static inline hk_ns hk_hop(const hk_graph *graph, const hk_machine *machine, int32_t from,
                           int32_t to) {
  const hk_op *a = &graph->ops[from], *b = &graph->ops[to];
  if (a->lane == b->lane || a->rank != b->rank || hk_lane_on_cpu(graph->lanes[a->lane].kind) ||
      hk_lane_on_cpu(graph->lanes[b->lane].kind))
    return 0;
  return (hk_ns)fmax(0, machine->gpu_hop.value);
}

/* Capacity of a resource on `machine`. `mixed`: copies and CPU kernels are both active. This
 * changes DRAM only, whose capacity is never larger than when not mixed. (Contention lowers H2D,
 * too: sim/contention.h.) */
double hk_resource_capacity(const hk_machine *machine, hk_resource resource, bool mixed);

typedef struct {
  hk_bytes before_forward, after_forward, after_backward, after_update; /* in use on one GPU */
  hk_bytes peak, capacity;
  hk_bytes peak_of[HK_PHASE_COUNT]; /* while operations of a phase started */
  hk_phase peak_phase;
  /* Used memory that the node's first GPU reports, contexts and the allocator's cache included: at
   * each phase's peak, and after the cache has been emptied at its end. All 0 under hocket, which
   * has no cache. */
  hk_bytes device_peak_of[HK_PHASE_COUNT], device_after[HK_PHASE_COUNT];
  hk_bytes host_peak, host_capacity; /* of the node */
} hk_memory_report;

/* With several iterations (hk_expand): the last whole one, from the end of one
 * backward to the end of the next. All 0 for a graph of one iteration. */
typedef struct {
  hk_ns begin, end;
  double used[HK_RES_COUNT]; /* in this interval, as hk_result.used */
} hk_last_iteration;

typedef struct {
  hk_timeline timeline; /* with counters only when asked for */
  hk_memory_report memory;
  double used[HK_RES_COUNT]; /* total use, summed over ranks: bytes, or seconds of GPU or cores */
  double used_phase[HK_PHASE_COUNT][HK_RES_COUNT];
  hk_last_iteration last;
  int64_t events;
} hk_result;

typedef struct {
  bool counters; /* sample memory and rates into timeline.counters */
  bool check;    /* verify every invariant while running (sim/check.c) */
} hk_sim_options;

/* Runs `graph` on `machine`. Memory that does not fit is not an error here: it is in the report.
 * Free with hk_result_free, safe on a zeroed result. */
hk_status hk_simulate(const hk_graph *graph, const hk_machine *machine,
                      const hk_sim_options *options, hk_result *result, hk_error *err);
void hk_result_free(hk_result *result);

/* What all iterations of a simulation have in common, however many there are. */
typedef struct {
  bool found;   /* two iterations of the graph end in the same state. If false, nothing is known but
                   that the peak is at least `peak` */
  hk_ns period; /* from the end of one backward to that of the next, in that iteration and later */
  hk_bytes peak; /* of GPU memory */
} hk_repetition;
/* Runs a graph of at least two iterations until that is known, or the peak is above the capacity: a
 * third of the time of four iterations. */
hk_status hk_simulate_until_repeat(const hk_graph *graph, const hk_machine *machine,
                                   hk_repetition *repetition, hk_error *err);

/* Time of an operation that runs alone: its latency, and then its work, rounded up to nanoseconds
 * as in the simulator. */
void hk_time_alone(const hk_graph *graph, const hk_op *op, const hk_machine *machine,
                   hk_ns *latency, hk_ns *work);

/* Longest path through dependencies and the order of lanes that do not pick, each operation with
 * its time alone: a lower bound of the makespan. `phases` as in hk_graph_build. -1 with err set. */
hk_ns hk_critical_path(const hk_graph *graph, const hk_machine *machine, unsigned phases,
                       hk_error *err);

#endif
