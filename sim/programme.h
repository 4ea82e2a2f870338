/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to the bounds: what their linear programmes have in common. */
#ifndef HK_SIM_PROGRAMME_H
#define HK_SIM_PROGRAMME_H

#include <glpk.h>

#include "sim/bound.h"
#include "sim/certificate.h"

/* Rows of a programme: resources, then the kernels' own rates, which may be lower than resources
 * allow. */
enum {
  HK_ROW_CPU = HK_RES_COUNT,
  HK_ROW_MAPPED,
  HK_ROW_COUNT,
};

/* Rows contain times instead of uses: uses in bytes and in core seconds differ by nine orders of
 * magnitude, more than the solver's tolerance allows. */
typedef struct {
  double time[HK_ROW_COUNT][HK_ROUTE_COUNT]; /* ns in which one parameter of each rank that shares
                                                the row uses all of its capacity */
  double free_gpu;                           /* bytes that weights leave on a GPU */
  double most_resident;  /* fraction of parameters whose state fits on the GPU */
  double least_resident; /* fraction for which the host has no memory */
} hk_programme;

/* The fields of a graph that hk_demand_of reads: one rank that represents those of its node. */
hk_graph hk_programme_node(const hk_plan *plan);
/* Sets lp->time; adds to it. */
void hk_programme_times(hk_programme *lp, const hk_plan *plan, const hk_machine *machine);
/* Sets the memory limits for a rank of `n` parameters: what weights leave. */
void hk_programme_memory(hk_programme *lp, const hk_plan *plan, const hk_machine *machine,
                         double n);

/* Sets the certificate's limits and before_ns. */
hk_status hk_certificate_limits(hk_certificate *c, const hk_programme *lp, const hk_forecast *f,
                                const hk_machine *machine, hk_error *err);

/* Adds columns, rows and coefficients; reads an optimal solution, without which *solved is false.
 * Both may leave GLPK by its error hook, so they own no memory. */
typedef void (*hk_programme_load)(glp_prob *p, const void *problem);
typedef void (*hk_programme_read)(glp_prob *p, void *problem);
hk_status hk_programme_solve(hk_programme_load fill, hk_programme_read read, void *problem,
                             bool *solved, hk_error *err);

#endif
