/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lower bounds on the update phase that are proofs.
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
 * and T = t P + the barrier that every update waits for (the global gradient norm), with which any
 * critical path begins (with an overlap without it: there the update is as long as any of its
 * operations runs). GLPK solves it. What is reported is not GLPK's objective but a value
 * computed here from its dual solution: for any y >= 0 (resources, scaled so that sum y capacity <=
 * 1) and z >= 0 (memory), t >= min over routes (sum y u + z) - sum z x limit by weak duality, so
 * that a solver's tolerance, or a solver's bug, can only make the bound weaker, never wrong.
 * Capacities are those of the profile at their best (no loss from mixed traffic; what copies and
 * CPU kernels have together, where that is more), copied bytes count at their costs, which no
 * schedule changes, so no schedule of these operations on this profile can be faster. */
#ifndef HK_SIM_BOUND_H
#define HK_SIM_BOUND_H

#include "core/plan.h"
#include "sim/sim.h"

typedef struct {
  hk_ns update_ns;
  char binding[24];             /* resource name, "cpu kernel", "mapped kernel", "critical path" or
                                   "nothing" */
  bool feasible;                /* false: no assignment of routes fits in memory */
  double share[HK_ROUTE_COUNT]; /* of parameters, in an optimal assignment (GLPK's primal) */
  double price[HK_RES_COUNT];   /* the certificate: y x capacity of each resource */
  double cpu_price, mapped_price; /* of the kernels' own rates; all prices sum to at most 1 */
} hk_bound;

/* Over every assignment of routes: the physical bound of model and machine for the plan's job, by
 * the best kernels, whatever the plan's own routes are. Holds for every plan that fits in memory.
 */
hk_status hk_bound_physical(const hk_plan *plan, const hk_machine *machine, hk_bound *bound,
                            hk_error *err);

/* For the operations that `graph` has in its update phase: routes, runtime and pieces fixed, so
 * that the programme is one variable wide and its solution is the fullest resource or the critical
 * path, whichever is longer. */
hk_status hk_bound_graph(const hk_graph *graph, const hk_machine *machine, hk_bound *bound,
                         hk_error *err);

#endif
