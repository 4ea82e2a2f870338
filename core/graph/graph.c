/* SPDX-License-Identifier: Apache-2.0 */
/* Adds operations, lanes and dependencies to a graph, and names them. */
#include "core/graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"

#define KIND_NAME(name, text, unit, meaning) [HK_OP_##name] = text,
static const char *const kind_names[] = {HK_OP_KINDS(KIND_NAME)};
#define KIND_UNIT(name, text, unit, meaning) [HK_OP_##name] = unit,
static const char *const kind_units[] = {HK_OP_KINDS(KIND_UNIT)};
#define LANE_NAME(name, text, meaning) [HK_LANE_##name] = text,
static const char *const lane_names[] = {HK_LANE_KINDS(LANE_NAME)};

const char *hk_phase_name(hk_phase phase) {
  static const char *const names[HK_PHASE_COUNT] = {"forward", "backward", "update"};
  return names[phase];
}

const char *hk_op_kind_name(hk_op_kind kind) {
  return kind_names[kind];
}
const char *hk_op_kind_unit(hk_op_kind kind) {
  return kind_units[kind];
}
const char *hk_lane_kind_name(hk_lane_kind kind) {
  return lane_names[kind];
}

/* Far above any sensible plan (llama-3-70b: about 3,000); about half a GiB of memory. */
#define MOST_OPS (1 << 22)

static hk_status refuse_size(hk_error *err) {
  return hk_fail(err, HK_INPUT,
                 "the plan expands to more than %d operations; use larger subgroups or pieces",
                 MOST_OPS);
}

int32_t hk_graph_add(hk_graph *graph, const hk_op *op, const int32_t *deps, size_t n_deps,
                     hk_error *err) {
  if (graph->n_ops >= MOST_OPS) {
    refuse_size(err);
    return -1;
  }
  if (HK_GROW(graph->ops, graph->capacity_ops, graph->n_ops, "the task graph", err) != HK_OK ||
      HK_GROW(graph->deps, graph->capacity_deps, graph->n_deps + n_deps, "the task graph", err) !=
          HK_OK)
    return -1;

  const int32_t id = (int32_t)graph->n_ops;
  hk_op *added = &graph->ops[id];
  *added = *op;
  added->deps_begin = (int32_t)graph->n_deps;
  for (size_t i = 0; i < n_deps; i++) {
    if (deps[i] < 0) continue;
    if (deps[i] >= id) {
      hk_fail(err, HK_INPUT, "operation %d depends on the later operation %d", (int)id,
              (int)deps[i]);
      return -1;
    }
    graph->deps[graph->n_deps++] = deps[i];
  }
  added->deps_end = (int32_t)graph->n_deps;
  graph->n_ops++;
  return id;
}

hk_status hk_graph_repeat(hk_graph *graph, size_t first, int times, hk_error *err) {
  if (times <= 0 || first == graph->n_ops) return HK_OK;
  const size_t n = graph->n_ops - first, all = graph->n_ops + n * (size_t)times;
  const size_t n_deps = graph->n_deps - (size_t)graph->ops[first].deps_begin;
  const size_t all_deps = graph->n_deps + n_deps * (size_t)times;
  if (all > MOST_OPS) return refuse_size(err);
  HK_TRY(HK_GROW(graph->ops, graph->capacity_ops, all, "the task graph", err));
  HK_TRY(HK_GROW(graph->deps, graph->capacity_deps, all_deps, "the task graph", err));
  for (; graph->n_ops < all; graph->n_ops++) {
    hk_op *op = &graph->ops[graph->n_ops];
    *op = graph->ops[graph->n_ops - n];
    op->deps_begin += (int32_t)n_deps;
    op->deps_end += (int32_t)n_deps;
  }
  for (; graph->n_deps < all_deps; graph->n_deps++)
    graph->deps[graph->n_deps] = graph->deps[graph->n_deps - n_deps] + (int32_t)n;
  return HK_OK;
}

int32_t hk_graph_lane(hk_graph *graph, hk_lane_kind kind, int rank, hk_error *err) {
  for (size_t i = 0; i < graph->n_lanes; i++) {
    if (graph->lanes[i].kind == kind && graph->lanes[i].rank == rank) return (int32_t)i;
  }
  hk_lane *lanes = realloc(graph->lanes, (graph->n_lanes + 1) * sizeof *lanes);
  if (lanes == NULL) {
    hk_fail_memory(err, (graph->n_lanes + 1) * sizeof *lanes, "the graph's lanes");
    return -1;
  }
  graph->lanes = lanes;
  hk_lane *lane = &lanes[graph->n_lanes];
  *lane = (hk_lane){.kind = kind, .rank = rank};
  if (graph->ranks > 1) {
    snprintf(lane->name, sizeof lane->name, "rank%d.%s", rank, lane_names[kind]);
  } else {
    snprintf(lane->name, sizeof lane->name, "%s", lane_names[kind]);
  }
  return (int32_t)graph->n_lanes++;
}

void hk_graph_free(hk_graph *graph) {
  free(graph->ops);
  free(graph->deps);
  free(graph->lanes);
  memset(graph, 0, sizeof *graph);
}

/* Kinds that occur in forward and in backward. */
static bool is_in_both_passes(hk_op_kind kind) {
  return kind == HK_OP_MEMORY_REPORT || kind == HK_OP_LAUNCH || kind == HK_OP_ALL_GATHER ||
         kind == HK_OP_TP_ALL_REDUCE || kind == HK_OP_STAGE_SEND || kind == HK_OP_ALL_TO_ALL;
}

/* "forward L3 m1", "launch L3 bwd", "memory_report bwd", "step_overhead fwd", "barrier". */
static void label_pass(const hk_graph *graph, const hk_op *o, char *buffer, size_t size) {
  char block[16] = "", micro[16] = "";
  if (o->block != HK_BLOCK_NONE) snprintf(block, sizeof block, " L%d", (int)o->block);
  if (o->micro > 0) snprintf(micro, sizeof micro, " m%d", (int)o->micro);
  const char *where = o->block == HK_BLOCK_EMBED ? " embed" : block;
  if (o->block == graph->layers) where = " head";
  const bool second = o->phase == HK_PHASE_BACKWARD && is_in_both_passes(o->kind);
  const bool first = o->phase == HK_PHASE_FORWARD && o->kind == HK_OP_STEP_OVERHEAD;
  const char *phase = second ? " bwd" : first ? " fwd" : "";
  snprintf(buffer, size, "%s%s%s%s", kind_names[o->kind], where, micro, phase);
}

int32_t hk_op_iteration(const hk_graph *graph, int32_t op) {
  if (graph->iterations <= 1) return 0;
  return op / (int32_t)(graph->n_ops / (size_t)graph->iterations);
}

/* Appends " i2" to operations of iteration 2. */
static void label_iteration(const hk_graph *graph, int32_t op, char *buffer, size_t size) {
  const size_t used = strlen(buffer);
  const int32_t iteration = hk_op_iteration(graph, op);
  if (iteration > 0) snprintf(buffer + used, size - used, " i%d", (int)iteration);
}

const char *hk_op_label(const hk_graph *graph, int32_t op, char *buffer, size_t size) {
  const hk_op *o = &graph->ops[op];
  const char *kind = kind_names[o->kind];
  if (o->subgroup >= 0 && o->piece >= 0) {
    snprintf(buffer, size, "%s sg%d.%d", kind, (int)o->subgroup, (int)o->piece);
  } else if (o->subgroup >= 0) {
    snprintf(buffer, size, "%s sg%d", kind, (int)o->subgroup);
  } else {
    label_pass(graph, o, buffer, size);
  }
  label_iteration(graph, op, buffer, size);
  return buffer;
}
