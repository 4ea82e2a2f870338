/* SPDX-License-Identifier: Apache-2.0 */
/* The ready operations of a lane that picks (hk_lane.picks), as a priority queue. The lane takes
 * the one with the smallest (priority, id). Simulator and engine both use it, so they choose alike.
 *
 *   hk_picker picker;
 *   hk_picker_open(&picker, graph, lane, err);
 *   hk_picker_push(&picker, graph, op);   when all dependencies of an operation are met
 *   op = hk_picker_pop(&picker, graph);   when the lane is free
 *
 * Push and pop take O(log n) and allocate nothing. Not thread-safe. */
#ifndef HK_CORE_GRAPH_PICK_H
#define HK_CORE_GRAPH_PICK_H

#include "core/graph/graph.h"

typedef struct {
  int32_t *heap; /* ids of ready operations, the next one first */
  int32_t n, room;
} hk_picker;

/* Allocates for every operation of the lane. Close with hk_picker_close, safe on a zeroed picker.
 */
hk_status hk_picker_open(hk_picker *picker, const hk_graph *graph, int32_t lane, hk_error *err);
void hk_picker_close(hk_picker *picker);
/* An operation may be in the queue at most once. */
void hk_picker_push(hk_picker *picker, const hk_graph *graph, int32_t op);
/* Removes and returns the next operation; -1: the queue is empty. */
int32_t hk_picker_pop(hk_picker *picker, const hk_graph *graph);
/* Returns the next operation without removing it; -1: the queue is empty. */
int32_t hk_picker_peek(const hk_picker *picker);

/* Whether operation `a` goes before `b`. */
static inline bool hk_picks_before(const hk_graph *graph, int32_t a, int32_t b) {
  const int32_t pa = graph->ops[a].priority, pb = graph->ops[b].priority;
  return pa != pb ? pa < pb : a < b;
}

#endif
