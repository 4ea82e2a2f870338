/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A lower bound of the period of plans with an overlap, from what lies between backward of a block
 * and its next forward. It needs no graph of the plan, so a search can ask for many.
 *
 * Blocks are numbered in the order of forward, so backward ends with block 0. Forward of block b
 * waits for the updates of blocks 0 .. b. None of these begins before backward of block b has
 * ended: gradients of blocks 0 .. b are not there. In between, each resource and each lane does its
 * part of these updates, whatever their order. From the begin of forward of block b to the end of
 * its backward the GPU computes all blocks behind b. So, with W(b) the longest of these parts,
 *
 *   period >= W(b) + forward of block b and the blocks behind it + their backward
 *
 * The barrier waits for all flushes, those of blocks 0 .. a after backward of block a. With V(b)
 * the same as W(b), but of the updates that wait for the barrier, for every a and b
 *
 *   period >= flushes of blocks 0 .. a + barrier + V(b) + GPU from forward of b to backward of a
 *
 * Nor is it shorter than the time in which a resource or a lane does all of an iteration.
 *
 * Forward and backward are slower while the CPU updates. Of the computation G(b) from forward of
 * block b to its backward let the passes S(b), times alone, keep at most the share k of their rate.
 * Of the CPU's time C, in which it works on all updates, at most W has passed outside, where W is
 * now the real time there. Of the time T that the computation then takes, T >= (G - S) + x + y, x
 * beside updates and y not, with S <= k x + y and y <= T - (C - W). So
 *
 *   T >= k G(b) + (1 - k) (S(b) + C - W),  and W + T grows with W:
 *   period >= W(b) + k G(b) + (1 - k) (S(b) + C - W(b))
 *
 * Example: three blocks, forward 4 ms, backward 8 ms, flush 2 ms each; the CPU updates a block in
 * 10 ms after the barrier. With a = 0 and b = 2 the period is at least 2 + 30 + 4 + 24 = 60 ms. */
#ifndef HK_SIM_TURN_H
#define HK_SIM_TURN_H

#include "core/graph/plan.h"
#include "sim/sim.h"

#define HK_TURN_KEPT 4 /* shares; passes with further ones count as not slowed */

/* What all plans of a model, a job and a machine have in common. */
typedef struct {
  const hk_machine *machine;
  /* [block] Least time on the GPU's lane from the begin of an iteration: to the block's first
   * forward, and through its last backward; ns. */
  double *begin, *end;
  double load[HK_RES_COUNT]; /* use of resources by forward, backward and collectives */
  /* Passes that keep at most the share kept[k] while the CPU updates, if its team has `threads`:
   * what they take of *begin and *end without latencies, slow_begin[k * blocks + block]. */
  int n_kept, threads;
  double kept[HK_TURN_KEPT], *slow_begin, *slow_end;
} hk_turn;

/* `plan`: any of them. Close also after a failure. */
hk_status hk_turn_open(const hk_plan *plan, const hk_machine *machine, hk_turn *turn,
                       hk_error *err);
void hk_turn_close(hk_turn *turn);
/* Sets *least to a time that the average iteration is not shorter than, in any order of the plan's
 * operations: nor is one that all later ones repeat (hk_simulate_until_repeat). */
hk_status hk_turn_least(const hk_turn *turn, const hk_plan *plan, hk_ns *least, hk_error *err);
/* A time that no settled iteration (hk_forecast.settled) of such a plan is shorter than. */
hk_ns hk_turn_settled(hk_ns least);

#endif
