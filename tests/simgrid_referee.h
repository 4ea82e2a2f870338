/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The referee: SimGrid runs the same task graph on an equivalent platform.
 *
 * How hocket's terms map onto SimGrid's, with its network model CM02 and its max-min solver:
 *
 *   operation   its latency as an exec on a clock, then its work as a comm; edges of the graph and
 *               lane order as dependencies between them
 *   resource    of bytes: a link of that bandwidth, which a comm's route crosses as often as a byte
 *               of it is counted there. Of time (GPU, cores): a Wi-Fi access point, SimGrid's one
 *               constraint that is shared by time, where each source has a bit rate of its own
 *   cap         a link on the route that every comm has to itself (FATPIPE)
 *   weight      that link's latency, whose inverse CM02 takes for a weight; paid it is not, as
 *               network/latency-factor makes it vanish
 *   mixture     DRAM has another capacity for copies and CPU kernels together: a NONLINEAR link
 *   folding     a node's capacities are divided by the ranks that one stands for
 *
 * This covers all of hk_demand. Rounding differs: SimGrid's time is a double, hocket's whole
 * nanoseconds, rounded up once per operation. Demands that the mapping cannot express are refused
 * with an error: uses of bytes whose ratios are not those of small whole numbers, two resources of
 * time, weights or caps that change when copies and CPU kernels run together. Teams that are slower
 * beside forward and backward (hk_demand.beside_compute) are not refused and give a difference:
 * callers must avoid them.
 *
 * SimGrid's model of parallel tasks (ptask_L07) does not fit: it shares a resource's capacity
 * equally among tasks (its solvers are bottleneck-fair; it refuses the max-min solver), while
 * hocket shares rates by weight. */
#ifndef HK_TESTS_SIMGRID_REFEREE_H
#define HK_TESTS_SIMGRID_REFEREE_H

#include "sim/sim.h"

typedef struct {
  double hocket_s, simgrid_s; /* makespans */
  double hocket_ms;           /* of the processor, for hk_simulate: set-up, run, report */
  double simgrid_run_ms;      /* of Engine::run alone */
  double simgrid_ms;          /* with the activities' creation */
  double platform_ms;         /* once: the engine, its hosts, links and routes */
  int64_t operations, activities;
} hk_comparison;

/* Switches off what the mapping cannot express: rates that depend on what runs beside an operation,
 * and weights that depend on the direction of a copy. Calibrated profiles have them. */
static inline void hk_referee_leave_out(hk_machine *m) {
  m->cpu_beside_h2d.value = m->cpu_beside_d2h.value = 1;
  m->h2d_loaded.value = 0;
  m->d2h_priority.value = m->pcie_d2h_priority.value = 1;
  m->h2d_beside_reads.value = m->d2h_beside_reads.value = m->shared_reads.value = 1;
  m->h2d_cost.value = m->d2h_cost.value = 1;
  m->gpu_hop.value = 0;
  m->launch_beside_copies.value = m->launch_beside_pulls.value = m->launch_beside_reads.value = 0;
  m->gpu_beside_h2d.value = m->gpu_beside_d2h.value = m->compute_beside_update.value = 1;
  m->copies_at_once.value = 1e6;
  m->dram_with_dma.value =
      m->dram_with_dma.value < m->dram.value ? m->dram_with_dma.value : m->dram.value;
}

/* Runs `graph` on `machine` in both, `repeats` times by turns, and reports medians of time; the
 * first turn, in which caches are cold, counts only if it is the only one. In a process of its own,
 * as a SimGrid engine exists once a process. */
hk_status hk_referee_compare(const hk_graph *graph, const hk_machine *machine, int repeats,
                             hk_comparison *comparison, hk_error *err);

#endif
