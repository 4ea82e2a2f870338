/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lower bounds of the update phase, with a proof.
 *
 * Summary: a linear programme assigns parameters to routes so that the update would be fastest if
 * every resource were used perfectly. No schedule of these updates after the barrier on this
 * profile is faster. Example: with 12 bytes each way per parameter and a link of 55 + 55 GB/s (98
 * GB/s duplex), all-staged is limited by 98e9 / 24 = 4.1 G parameters a second; if the CPU updates
 * a part, the limit is higher.
 *
 * With f the shares of a rank's P parameters on each route, t the time a parameter (T = t P), u the
 * use of a resource per parameter, n the ranks that share it (1, or all of a node):
 *
 *   minimise t   subject to
 *     sum f_route                                  = 1
 *     n x sum u(route, resource) f_route          <= capacity(resource) t     for every resource
 *     f_cpu                                       <= rate of all cores x t
 *     f_mapped                                    <= rate of the mapped kernel x t
 *     12 P f_resident                             <= GPU memory beside the weights
 *     12 P n (1 - f_resident)                     <= host memory
 *
 * and T = t P + the latency of the barrier (the global gradient norm), for which every update
 * waits. With an overlap T = t P: the barrier is then no part of the time in which updates run.
 *
 * GLPK solves the programme. The reported value is not GLPK's objective, but is computed here from
 * its dual solution by weak duality: for any y >= 0 (resources, scaled so that sum y capacity <= 1)
 * and z >= 0 (memory), t >= min over routes (sum y u + z) - sum z x limit. So a solver's tolerance
 * or error can make the bound weaker, but never wrong. Capacities are the largest that the profile
 * allows in any situation, and copied bytes count at their costs, which no schedule changes. */
#ifndef HK_SIM_BOUND_H
#define HK_SIM_BOUND_H

#include "core/graph/plan.h"
#include "sim/sim.h"

typedef struct {
  hk_ns update_ns;
  char binding[24];             /* resource name, "cpu kernel", "mapped kernel", "critical path" or
                                   "nothing" */
  bool feasible;                /* false: no assignment of routes fits in memory */
  double share[HK_ROUTE_COUNT]; /* of parameters, in an optimal assignment (GLPK's primal) */
  double price[HK_RES_COUNT];   /* the certificate: y x capacity of each resource */
  double cpu_price, mapped_price; /* those of the kernels' own rates; all prices sum to at most 1 */
} hk_bound;

/* The bound over all assignments of routes, for the plan's model and job on this machine, with the
 * best kernels. It does not depend on the plan's own routes and holds for every plan that fits in
 * memory. */
hk_status hk_bound_physical(const hk_plan *plan, const hk_machine *machine, hk_bound *bound,
                            hk_error *err);

/* The same for the plan's own shares of parameters on each route, whatever the order, pieces and
 * runtime. Without an overlap. INT64_MAX: these shares do not fit in memory. */
hk_ns hk_bound_shares(const hk_plan *plan, const hk_machine *machine);

/* Least time of forward and backward of any plan with the graph's model, job and runtime. */
hk_ns hk_bound_training(const hk_graph *graph, const hk_machine *machine);

/* The bound for the operations of the graph's update phase: routes, runtime and pieces are fixed.
 * It is the latency of the barrier + the time of the fullest resource, or the critical path,
 * whichever is longer. For a graph of several iterations it is the time of the fullest resource. */
hk_status hk_bound_graph(const hk_graph *graph, const hk_machine *machine, hk_bound *bound,
                         hk_error *err);

/* A bound in whole nanoseconds: rounded down by more than the rounding error of the sums. */
hk_ns hk_bound_floor(double ns);

/* Least time of an operation, rounded down where the simulator rounds up. */
hk_ns hk_bound_least(const hk_graph *graph, const hk_op *op, const hk_machine *machine);

/* Adds to load[resource] what `op`, an operation of rank 0, and its equals on the other ranks that
 * share the resource use of it. Operations without a rate, whose duration is fixed, add nothing. */
void hk_bound_add_load(const hk_graph *graph, const hk_op *op, const hk_machine *machine,
                       double load[HK_RES_COUNT]);

#endif
