/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The simulator: runs a task graph in virtual time on a machine profile.
 *
 * Discrete events in integer nanoseconds. An operation starts when its dependencies have ended
 * (those on another queue of its GPU gpu.hop_ns ago) and it is first in its lane; it spends its
 * latency uncontended (but for a kernel's start beside reads over the link,
 * gpu.launch_beside_*_ns), then progresses at the rate that weighted max-min fairness gives it
 * (sim/share.h) until its work is done. A lane that picks (hk_lane.picks) takes, whenever it is
 * free, the best of what waits for it (core/pick.h). Events at one time are handled in the order
 * (time, priority, sequence) with ends before starts and the operation id as sequence, so the same
 * input gives the same bytes out, whatever the number of threads outside. */
#ifndef HK_SIM_SIM_H
#define HK_SIM_SIM_H

#include <stdbool.h>

#include "core/graph.h"
#include "core/machine.h"
#include "core/timeline.h"

/* What several operations at once must share. Per rank (R) or per node (N). */
#define HK_RESOURCES(X)                                                         \
  X(GPU, "gpu", "seconds_per_s", R, "GPU compute, as time share")               \
  X(HBM, "hbm", "bytes_per_s", R, "GPU memory bandwidth")                       \
  X(H2D, "h2d", "bytes_per_s", R, "PCIe towards the GPU")                       \
  X(D2H, "d2h", "bytes_per_s", R, "PCIe towards the host")                      \
  X(PCIE, "pcie", "bytes_per_s", R, "PCIe, both directions")                    \
  X(NVLINK, "nvlink", "bytes_per_s", R, "between GPUs of the node")             \
  X(PAGES, "pages", "bytes_per_s", R, "memory domains of an unbound process")   \
  X(DRAM, "dram", "bytes_per_s", N, "host memory, copies at their costs")       \
  X(DRAM_CPU, "dram_cpu", "bytes_per_s", N, "host memory, CPU kernels alone")   \
  X(FABRIC_H2D, "fabric_h2d", "bytes_per_s", N, "host fabric towards all GPUs") \
  X(FABRIC_D2H, "fabric_d2h", "bytes_per_s", N, "host fabric towards the host") \
  X(FABRIC, "fabric", "bytes_per_s", N, "host fabric, both directions")         \
  X(CORES, "cores", "seconds_per_s", N, "CPU cores")                            \
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

/* How often one operation's use of a resource counts: an operation of a folded rank stands for
 * those of all ranks of the node, which share the node's resources. */
static inline double hk_use_count(const hk_graph *graph, hk_resource resource) {
  return hk_resource_is_node(resource) ? graph->multiplicity : 1;
}

#define HK_DEMAND_USES 8

/* Whose traffic an operation is in host memory, a set of bits: CPU kernels', to GPUs (in), from
 * GPUs (out); a mapped kernel is both of the latter. Of these two, what copy engines do and what
 * GPU kernels do get in each other's way. */
enum {
  HK_TRAFFIC_CPU = 1,
  HK_TRAFFIC_IN = 2,
  HK_TRAFFIC_OUT = 4,
  HK_TRAFFIC_COPY_IN = 8,
  HK_TRAFFIC_COPY_OUT = 16,
  HK_TRAFFIC_KERNEL_IN = 32,
};

/* Copies and CPU kernels are both among `traffic`. */
static inline bool hk_is_mixed(unsigned traffic) {
  return (traffic & HK_TRAFFIC_CPU) != 0 && (traffic & (HK_TRAFFIC_IN | HK_TRAFFIC_OUT)) != 0;
}

/* A kernel's reads of host memory and a copy to the same GPU are both among `traffic`. */
static inline bool hk_both_read(unsigned traffic) {
  return (traffic & HK_TRAFFIC_COPY_IN) != 0 && (traffic & HK_TRAFFIC_KERNEL_IN) != 0;
}

/* What one operation asks of the machine when it runs alone (sim/demand.c). */
typedef struct {
  hk_ns latency;
  bool fetched;  /* one kernel: its start takes longer beside others' reads over its GPU's link */
  bool slowed;   /* an update of what the GPU has: its rate is less beside that GPU's copies */
  double cap;    /* work units a second when alone; INFINITY: only latency */
  double weight; /* of the rate, in work units a second: see sim/share.h */
  double weight_crowded; /* the same beside traffic of another kind or of another GPU */
  unsigned traffic;      /* HK_TRAFFIC_*; 0: none */
  unsigned engine;       /* HK_TRAFFIC_IN or _OUT: a copy engine's, which may have others to do
                            first (pcie.copies_at_once); 0: none's */
  int n_uses;
  struct {
    hk_resource resource;
    double per_unit; /* of the resource, per unit of work */
  } uses[HK_DEMAND_USES];
} hk_demand;

/* Demand of an operation of `graph` on `machine`. */
hk_demand hk_demand_of(const hk_graph *graph, const hk_op *op, const hk_machine *machine);
/* Whether two operations of one graph have the same demand on any machine. */
bool hk_demand_is_same(const hk_op *a, const hk_op *b);
/* Least time from the end of operation `from` to the start of `to`, which depends on it, in ns:
 * gpu.hop_ns if they are on different queues of one GPU, else 0. */
hk_ns hk_hop(const hk_graph *graph, const hk_machine *machine, int32_t from, int32_t to);

/* Capacity of a resource on `machine`; `mixed` where copies and CPU kernels are both active. Only
 * DRAM differs, and what it has when not mixed is the most that it ever has. (Contention lowers
 * H2D, too: sim/contention.h.) */
double hk_resource_capacity(const hk_machine *machine, hk_resource resource, bool mixed);

typedef struct {
  hk_bytes before_forward, after_forward, after_backward, after_update; /* of one GPU */
  hk_bytes peak, capacity;
  hk_bytes peak_of[HK_PHASE_COUNT]; /* of what the operations of a phase found and took */
  hk_phase peak_phase;
  /* What the node's first GPU shows as used, contexts and the allocator's cache included: at the
   * end of each phase, and once the cache has been emptied then. All 0 where the runtime caches
   * nothing (hocket). */
  hk_bytes device_peak_of[HK_PHASE_COUNT], device_after[HK_PHASE_COUNT];
  hk_bytes host_peak, host_capacity; /* of the node */
  hk_phase host_peak_phase;
} hk_memory_report;

/* Of unrolled iterations (hk_graph_build_iterations): the last whole one, from the end of one
 * backward to the end of the next. All 0 for a graph of one iteration. */
typedef struct {
  hk_ns begin, end;
  double used[HK_RES_COUNT]; /* within, as hk_result.used */
} hk_last_iteration;

typedef struct {
  hk_timeline timeline; /* with counters only when asked for */
  hk_memory_report memory;
  double used[HK_RES_COUNT]; /* over the iteration, per rank or per node, in resource
                                units x seconds (bytes, seconds) */
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

/* What an operation takes with the machine to itself: its latency and then its work, rounded as the
 * simulator rounds. */
void hk_time_alone(const hk_graph *graph, const hk_op *op, const hk_machine *machine,
                   hk_ns *latency, hk_ns *work);

/* Longest path through dependencies and the order of lanes that do not pick, with every operation
 * alone on the machine: no run can be shorter. `phases` as in hk_graph_build. */
hk_ns hk_critical_path(const hk_graph *graph, const hk_machine *machine, unsigned phases,
                       hk_error *err);

#endif
