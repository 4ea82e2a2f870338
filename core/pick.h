/* SPDX-License-Identifier: Apache-2.0 */
/* Which operation a lane takes next, where it picks (hk_lane.picks): of those whose dependencies
 * have been met the one with the smallest (priority, id). Simulator and engine use this one
 * function, so that they decide alike.
 *
 *   hk_picker picker;
 *   hk_picker_open(&picker, graph, lane, err);
 *   as dependencies of an operation of that lane are met:  hk_picker_push(&picker, graph, op);
 *   whenever the lane is free:                             op = hk_picker_pop(&picker, graph);
 *
 * Pushing and popping take O(log n) and allocate nothing. It knows nothing of threads. */
#ifndef HK_CORE_PICK_H
#define HK_CORE_PICK_H

#include "core/graph.h"

typedef struct {
  int32_t *heap; /* ids of waiting operations, the next one first */
  int32_t n, room;
} hk_picker;

/* Room for every operation of the lane. Close with hk_picker_close, safe on a zeroed picker. */
hk_status hk_picker_open(hk_picker *picker, const hk_graph *graph, int32_t lane, hk_error *err);
void hk_picker_close(hk_picker *picker);
/* An operation waits at most once at a time. */
void hk_picker_push(hk_picker *picker, const hk_graph *graph, int32_t op);
/* The next operation, which waits no longer; -1: none waits. */
int32_t hk_picker_pop(hk_picker *picker, const hk_graph *graph);
/* The same, and it goes on waiting. */
int32_t hk_picker_peek(const hk_picker *picker);

/* Whether operation `a` goes before `b`. */
static inline bool hk_picks_before(const hk_graph *graph, int32_t a, int32_t b) {
  const int32_t pa = graph->ops[a].priority, pb = graph->ops[b].priority;
  return pa != pb ? pa < pb : a < b;
}

#endif
