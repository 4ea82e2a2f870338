/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of operation ids. (priority, id) is a total order, so the result does not depend on
 * the order of insertion. */
#include "core/graph/pick.h"

#include <stdlib.h>
#include <string.h>

hk_status hk_picker_open(hk_picker *picker, const hk_graph *graph, int32_t lane, hk_error *err) {
  memset(picker, 0, sizeof *picker);
  for (size_t i = 0; i < graph->n_ops; i++) picker->room += graph->ops[i].lane == lane;
  picker->heap = malloc(((size_t)picker->room + 1) * sizeof *picker->heap);
  return picker->heap != NULL ? HK_OK
                              : hk_fail_memory(err, (size_t)picker->room * sizeof *picker->heap,
                                               "a lane's waiting operations");
}

void hk_picker_close(hk_picker *picker) {
  free(picker->heap);
  memset(picker, 0, sizeof *picker);
}

void hk_picker_push(hk_picker *picker, const hk_graph *graph, int32_t op) {
  int32_t *heap = picker->heap;
  int32_t at = picker->n++;
  while (at > 0 && hk_picks_before(graph, op, heap[(at - 1) / 2])) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = op;
}

int32_t hk_picker_peek(const hk_picker *picker) {
  return picker->n > 0 ? picker->heap[0] : -1;
}

int32_t hk_picker_pop(hk_picker *picker, const hk_graph *graph) {
  if (picker->n == 0) return -1;
  int32_t *heap = picker->heap;
  const int32_t first = heap[0], last = heap[--picker->n];
  int32_t at = 0;
  for (int32_t child = 1; child < picker->n; child = 2 * at + 1) {
    if (child + 1 < picker->n && hk_picks_before(graph, heap[child + 1], heap[child])) child++;
    if (hk_picks_before(graph, last, heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = last;
  return first;
}
