/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A timeline as CSV, for notebooks and spreadsheets. */
#include <inttypes.h>
#include <stdio.h>

#include "traces/timelines.h"

/* Writes an index and a comma; nothing before the comma if the operation has no such index. */
static void write_index(FILE *stream, int32_t index) {
  if (index >= 0) fprintf(stream, "%d", index);
  fputc(',', stream);
}

static void write_row(FILE *stream, const hk_graph *graph, int32_t id, const hk_span *span,
                      const hk_span *predicted) {
  const hk_op *op = &graph->ops[id];
  fprintf(stream, "%d,%s,%s,%d,", id, hk_op_kind_name(op->kind), graph->lanes[op->lane].name,
          op->rank);
  write_index(stream, op->subgroup);
  write_index(stream, op->piece);
  fprintf(stream, "%" PRId64 ",%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64, op->work,
          hk_op_kind_unit(op->kind), op->gpu_alloc, op->gpu_free, span->start, span->end);
  if (predicted) fprintf(stream, ",%" PRId64 ",%" PRId64, predicted->start, predicted->end);
  fputc('\n', stream);
}

void hk_timelines_write_csv(const hk_graph *graph, const hk_timeline *timeline,
                            const hk_timeline *predicted, FILE *stream) {
  fprintf(stream,
          "id,kind,lane,rank,subgroup,piece,work,unit,gpu_alloc_bytes,gpu_free_bytes,"
          "start_ns,end_ns%s\n",
          predicted ? ",predicted_start_ns,predicted_end_ns" : "");
  for (int32_t id = 0; id < (int32_t)graph->n_ops; id++)
    write_row(stream, graph, id, &timeline->spans[id], predicted ? &predicted->spans[id] : NULL);
}
