/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lower bounds on the update phase that are proofs.
 *
 * The linear programme (per node, rates of the machine profile):
 *   minimise T  over parameters x_route >= 0 of one rank and T
 *   sum of x_route                             = parameters of the rank
 *   sum of x_route x use_route,resource x n    <= capacity_resource x T     every resource
 *   state bytes x x_resident                   <= GPU memory beside weights
 *   state bytes x (sum of others) x ranks      <= host memory
 *   T                                          >= critical path
 * GLPK solves it; what is reported is not GLPK's objective but the value of its dual solution made
 * feasible and evaluated here, which by weak duality no schedule can beat, rounding included. */
#ifndef HK_SIM_BOUND_H
#define HK_SIM_BOUND_H

#include "core/plan.h"
#include "sim/sim.h"

typedef struct {
  hk_ns update_ns;
  char binding[24];             /* resource name, "critical path", "gpu memory" or "none" */
  bool feasible;                /* false: no assignment of routes fits in memory */
  double share[HK_ROUTE_COUNT]; /* of parameters, in an optimal assignment */
  double dual[HK_RES_COUNT];    /* the certificate: weight of each resource, sums to <= 1 */
} hk_bound;

/* Over every assignment of routes: the physical bound of model and machine for that job, by the
 * best kernels. */
hk_status hk_bound_physical(const hk_plan *plan, const hk_machine *machine, hk_bound *bound,
                            hk_error *err);

/* For the operations that `graph` really has in its update phase (routes and runtime fixed). */
hk_status hk_bound_graph(const hk_graph *graph, const hk_machine *machine, hk_bound *bound,
                         hk_error *err);

#endif
