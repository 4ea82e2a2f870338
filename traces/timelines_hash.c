/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The hash of a graph. It is the same on every machine and for every version of hocket that builds
 * the same graph: numbers are hashed as 8 bytes, little-endian, kinds as their names, so that a new
 * kind changes no hash. */
#define XXH_INLINE_ALL /* the state is on the stack: its layout must be that of this header */
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "traces/timelines.h"

static void add_numbers(XXH3_state_t *hash, const int64_t *numbers, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const uint64_t bits = htole64((uint64_t)numbers[i]);
    XXH3_64bits_update(hash, &bits, sizeof bits);
  }
}

#define ADD_NUMBERS(hash, ...)                        \
  add_numbers((hash), (const int64_t[]){__VA_ARGS__}, \
              sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void add_text(XXH3_state_t *hash, const char *text) {
  XXH3_64bits_update(hash, text, strlen(text) + 1);
}

static void add_op(XXH3_state_t *hash, const hk_graph *graph, const hk_op *op) {
  add_text(hash, hk_op_kind_name(op->kind));
  add_text(hash, hk_phase_name(op->phase));
  /* 0, 0: host memory that operations of older graphs took and gave back. */
  ADD_NUMBERS(hash, op->lane, op->rank, op->micro, op->block, op->subgroup, op->piece, op->offset,
              op->work, op->threads, op->gpu_alloc, op->gpu_free, 0, 0,
              op->deps_end - op->deps_begin);
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) ADD_NUMBERS(hash, graph->deps[d]);
  /* Members that older graphs do not have are hashed only if set: older hashes stay valid. */
  const bool known = op->lane >= 0 && (size_t)op->lane < graph->n_lanes;
  if (known && graph->lanes[op->lane].picks) ADD_NUMBERS(hash, op->priority);
  if (op->profile.time != 0) ADD_NUMBERS(hash, op->profile.time);
  if (op->profile.launch != 0) ADD_NUMBERS(hash, op->profile.launch, op->profile.handed);
  if (op->profile.sharded != 0) ADD_NUMBERS(hash, op->profile.sharded);
  if (op->score_bytes != 0) ADD_NUMBERS(hash, op->score_flops, op->score_bytes, op->softmax_bytes);
  if (op->copied != 0) ADD_NUMBERS(hash, op->copied);
  if (op->hooked) ADD_NUMBERS(hash, op->hooked);
  if (op->experts) ADD_NUMBERS(hash, op->experts);
}

void hk_graph_hash(const hk_graph *graph, char hex[17]) {
  XXH3_state_t hash;
  XXH3_INITSTATE(&hash);
  XXH3_64bits_reset(&hash);
  ADD_NUMBERS(&hash, graph->ranks, graph->multiplicity, graph->world, graph->nodes, graph->tp,
              graph->cores_unbound, graph->layers, graph->gpu_base, graph->host_base,
              graph->device.outside);
  if (graph->pp > 1) ADD_NUMBERS(&hash, graph->pp);
  if (graph->ep > 1) ADD_NUMBERS(&hash, graph->ep);
  add_numbers(&hash, graph->device.at_peak, HK_PHASE_COUNT);
  add_numbers(&hash, graph->device.emptied, HK_PHASE_COUNT);
  ADD_NUMBERS(&hash, (int64_t)graph->n_lanes);
  for (size_t i = 0; i < graph->n_lanes; i++) {
    add_text(&hash, hk_lane_kind_name(graph->lanes[i].kind));
    ADD_NUMBERS(&hash, graph->lanes[i].rank);
  }
  ADD_NUMBERS(&hash, (int64_t)graph->n_ops);
  for (size_t i = 0; i < graph->n_ops; i++) add_op(&hash, graph, &graph->ops[i]);
  snprintf(hex, 17, "%016" PRIx64, XXH3_64bits_digest(&hash));
}
