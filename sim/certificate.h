/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A lower bound of the iteration over all divisions of the update among routes, with a certificate
 * that scripts/check-certificate verifies in exact arithmetic.
 *
 * Summary: at each moment some of three works are done: the CPU updates parameters, bytes go to the
 * GPU, bytes come from it. A set of works that are done at the same time is a mode. In a mode
 * resources have the capacity that contention leaves them (sim/contention.h): a CPU kernel is
 * slower beside copies, host memory carries less. An iteration with an overlap has parts, one after
 * the other, which differ in the works that may be done:
 *
 *   updates     barrier to the last block's forward, which waits for all updates: any; all updates
 *               on the GPU are here, as they wait for the barrier
 *   no updates  last block's forward to the barrier; with overlap `both` to the end of its last
 *               backward, which makes the first gradients: only copies from the GPU
 *   updates ahead of the norm
 *               with `both`, from there to the barrier: those of the CPU, at their own rate, and
 *               all copies. State does not go to the GPU: that waits for the barrier.
 *
 * With f the share of the P parameters on each route, d the time in each mode of each part, w the
 * work done in it, all per parameter:
 *
 *   minimise sum d   subject to
 *     sum f_route = 1, least <= f_resident <= most                   memory
 *     sum w(work, mode) >= sum work(route) f_route                   for every work
 *     sum w(in, mode of "updates") >= sum state(route) f_route
 *     d_mode >= sum uses(work) / capacity x w(work, mode)            for every limit of a mode
 *     sum r d of a part >= fixed / P + sum time(route) f_route       for every limit of the part
 *     sum r d >= fixed / P + sum time(route) f_route                 for every limit of all modes
 *
 * r is 1, or while the CPU updates the share of their rate that passes of blocks keep.
 *
 * Iteration >= P x sum d, with an overlap. Without one, forward and backward come before and count
 * as they are in any plan of the job: their longest chain and the barrier. There is one part then.
 *
 * The certificate is a price of each limit, a share of each second: those of the iteration, of any
 * one part and of any one of its modes, times r, sum to at most 1. Then a unit of work costs at
 * least the least price that a mode has for it, a parameter at least the least that a route costs,
 * and the iteration at least that x P. The prices are GLPK's dual values; the bound is computed
 * here from the prices, so it holds whatever they are.
 *
 * It holds for runtime hocket and GPUs of a node that run the same schedule. */
#ifndef HK_SIM_CERTIFICATE_H
#define HK_SIM_CERTIFICATE_H

#include "sim/forecast.h"

typedef enum { HK_WORK_CPU, HK_WORK_IN, HK_WORK_OUT, HK_WORK_COUNT } hk_work;
extern const char *const hk_work_names[HK_WORK_COUNT]; /* "cpu", "in", "out" */

#define HK_MODES        7 /* sets of works that are not empty */
#define HK_MODE_LIMITS  12
#define HK_FIXED_LIMITS 24
#define HK_PARTS        3
#define HK_PART_LIMITS  8

static inline bool hk_mode_has(int mode, int work) {
  return ((mode + 1) >> work & 1) != 0;
}

/* Parameters a second, or bytes a second, that works in one mode share. */
typedef struct {
  char name[40];
  double capacity;
  double uses[HK_WORK_COUNT]; /* of a parameter that the CPU updates, of a byte in, of a byte out */
  double price;
} hk_mode_limit;

/* Time that one iteration, or a part of it, needs of something, whatever the mode. */
typedef struct {
  char name[40];
  double fixed_ns;             /* by forward and backward */
  double time[HK_ROUTE_COUNT]; /* ns a parameter on each route */
  double beside;               /* share of its rate while the CPU updates */
  double price;
} hk_fixed_limit;

typedef struct {
  char name[40];
  bool has[HK_WORK_COUNT]; /* what may be done in it; "out" always */
  bool state;              /* of bytes to the GPU, those of state, too */
  hk_mode_limit limits[HK_MODES][HK_MODE_LIMITS];
  int n_limits[HK_MODES];
  hk_fixed_limit fixed[HK_PART_LIMITS]; /* of its own time */
  int n_fixed;
} hk_certificate_part;

static inline double hk_limit_rate(const hk_fixed_limit *limit, int mode) {
  return hk_mode_has(mode, HK_WORK_CPU) ? limit->beside : 1;
}

static inline bool hk_part_has_mode(const hk_certificate_part *part, int mode) {
  for (int w = 0; w < HK_WORK_COUNT; w++)
    if (hk_mode_has(mode, w) && !part->has[w]) return false;
  return true;
}

typedef struct {
  bool made;         /* false: nothing below is set */
  bool unsolved;     /* not made: GLPK did not solve the programme */
  double parameters; /* of a rank */
  double before_ns;  /* without an overlap: forward, backward and the barrier */
  double work[HK_ROUTE_COUNT][HK_WORK_COUNT]; /* a parameter */
  double state_in[HK_ROUTE_COUNT];            /* bytes of state to the GPU, besides */
  double least_resident, most_resident;       /* share of parameters whose state is on the GPU */
  double resident_bytes; /* GPU memory that one more such parameter takes where it is scarcest */
  hk_certificate_part parts[HK_PARTS];
  int n_parts;
  hk_fixed_limit fixed[HK_FIXED_LIMITS]; /* of the whole iteration */
  int n_fixed;
  hk_ns bound_ns, iteration_ns;
  /* What binds most, and what a little more of it is worth (the shadow price). */
  char binding[40];
  double binding_share; /* of the time after before_ns */
  char unit[24];    /* "GB/s", "G parameters/s"; "%" of the time that an iteration needs of it */
  double worth_ns;  /* of one unit more; of 1 % less time */
  double memory_ns; /* of 1 GiB more of GPU memory; 0: it does not bind */
} hk_certificate;

/* Iteration / bound - 1. */
double hk_certificate_gap(const hk_certificate *certificate);

/* Of a feasible forecast. Not made under DeepSpeed, or where no division fits in memory. */
hk_status hk_certify(const hk_forecast *forecast, const hk_machine *machine,
                     hk_certificate *certificate, hk_error *err);
/* The same of a plan with these routes and another overlap, in which nothing runs ahead. */
hk_status hk_certify_with(const hk_forecast *forecast, hk_overlap overlap,
                          const hk_machine *machine, hk_certificate *certificate, hk_error *err);

#endif
