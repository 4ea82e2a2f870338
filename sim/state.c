/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The state of a simulation before its first event. */
#include "sim/state.h"

#include <stdlib.h>
#include <string.h>

/* Sets the successors of each operation and the number of predecessors that have not ended. The
 * previous operation on a lane that does not pick is a predecessor, too. */
static hk_status link_operations(hk_sim_state *s) {
  const hk_graph *g = s->graph;
  int32_t *lane_last = malloc((g->n_lanes + 1) * sizeof *lane_last);
  int32_t *previous = malloc((g->n_ops + 1) * sizeof *previous);
  s->pending = calloc(g->n_ops + 1, sizeof *s->pending);
  s->next_begin = calloc(g->n_ops + 2, sizeof *s->next_begin);
  s->next = malloc((g->n_deps + g->n_ops + 1) * sizeof *s->next);
  if (lane_last == NULL || previous == NULL || s->pending == NULL || s->next_begin == NULL ||
      s->next == NULL) {
    free(lane_last);
    free(previous);
    return hk_fail_memory(s->err, (g->n_deps + 4 * g->n_ops) * sizeof *s->next,
                          "linking the graph");
  }
  memset(lane_last, -1, (g->n_lanes + 1) * sizeof *lane_last);
  for (size_t i = 0; i < g->n_ops; i++) {
    const hk_op *op = &g->ops[i];
    previous[i] = g->lanes[op->lane].picks ? -1 : lane_last[op->lane];
    lane_last[op->lane] = (int32_t)i;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) s->next_begin[g->deps[d] + 1]++;
    if (previous[i] >= 0) s->next_begin[previous[i] + 1]++;
    s->pending[i] = op->deps_end - op->deps_begin + (previous[i] >= 0);
  }
  for (size_t i = 0; i < g->n_ops; i++) s->next_begin[i + 1] += s->next_begin[i];
  /* Counting sort: filling moves each begin forward; then all are shifted back. */
  for (size_t i = 0; i < g->n_ops; i++) {
    const hk_op *op = &g->ops[i];
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
      s->next[s->next_begin[g->deps[d]]++] = (int32_t)i;
    }
    if (previous[i] >= 0) s->next[s->next_begin[previous[i]]++] = (int32_t)i;
  }
  for (size_t i = g->n_ops; i > 0; i--) s->next_begin[i] = s->next_begin[i - 1];
  s->next_begin[0] = 0;
  free(lane_last);
  free(previous);
  return HK_OK;
}

/* The last iteration: from the last backward of the iteration before to that of the last one. */
static void find_last_iteration(hk_sim_state *s) {
  const hk_graph *g = s->graph;
  s->last_begin = s->last_end = -1;
  if (g->iterations <= 1) return;
  for (int32_t i = 0; i < (int32_t)g->n_ops; i++) {
    if (g->ops[i].kind != HK_OP_BACKWARD || g->ops[i].rank != 0) continue;
    if (s->last_end >= 0 && hk_op_iteration(g, i) != hk_op_iteration(g, s->last_end))
      s->last_begin = s->last_end;
    s->last_end = i;
  }
}

hk_status hk_sim_state_open(hk_sim_state *s) {
  const hk_graph *g = s->graph;
  const size_t lanes = g->n_lanes + 1, ranks = (size_t)g->ranks;
  s->n_resources = g->ranks * HK_RES_COUNT;
  const size_t resources = (size_t)s->n_resources;
  s->active = calloc(lanes, sizeof *s->active);
  s->running = malloc(lanes * sizeof *s->running);
  s->engines = malloc(2 * ranks * sizeof *s->engines);
  s->traffic = malloc(ranks * sizeof *s->traffic);
  s->readers = malloc(ranks * sizeof *s->readers);
  s->computing = malloc(ranks * sizeof *s->computing);
  s->slowing = malloc(ranks * sizeof *s->slowing);
  s->host = malloc(ranks * sizeof *s->host);
  s->activities = malloc(lanes * sizeof(hk_activity *));
  s->open = malloc(lanes * sizeof *s->open);
  s->ready = malloc((g->n_ops + 1) * sizeof *s->ready);
  s->ended = malloc(lanes * sizeof *s->ended);
  s->gpu_memory = calloc(ranks, sizeof *s->gpu_memory);
  s->capacity = malloc(resources * sizeof *s->capacity);
  s->used = calloc(resources, sizeof *s->used);
  s->growth = malloc(2 * resources * sizeof *s->growth); /* as hk_share wants it */
  s->numbered = malloc(HK_RATE_CACHE_DEMANDS * sizeof *s->numbered);
  s->rate_cache = calloc(HK_RATE_CACHE_SLOTS, sizeof *s->rate_cache);
  s->rate_cache_used = malloc(HK_RATE_CACHE_SLOTS * resources * sizeof *s->rate_cache_used);
  s->rate_counters = malloc(resources * sizeof *s->rate_counters);
  s->memory_counters = calloc(ranks + 1, sizeof *s->memory_counters);
  s->pickers = calloc(lanes, sizeof *s->pickers);
  s->busy = calloc(lanes, sizeof *s->busy);
  if (s->active == NULL || s->running == NULL || s->engines == NULL || s->traffic == NULL ||
      s->readers == NULL || s->activities == NULL || s->open == NULL || s->ready == NULL ||
      s->ended == NULL || s->gpu_memory == NULL || s->capacity == NULL || s->used == NULL ||
      s->growth == NULL || s->numbered == NULL || s->rate_cache == NULL ||
      s->rate_cache_used == NULL || s->rate_counters == NULL || s->memory_counters == NULL ||
      s->slowing == NULL || s->host == NULL || s->computing == NULL || s->pickers == NULL ||
      s->busy == NULL) {
    return hk_fail_memory(s->err, g->n_ops * sizeof *s->ready, "a simulation");
  }
  for (size_t l = 0; l < g->n_lanes; l++) {
    if (g->lanes[l].picks) HK_TRY(hk_picker_open(&s->pickers[l], g, (int32_t)l, s->err));
  }
  find_last_iteration(s);
  for (int i = 0; i < 2 * g->ranks; i++) s->engines[i] = (hk_copy_engine){0, -1, -1, -1};
  for (int rank = 0; rank < g->ranks; rank++) {
    for (int r = 0; r < HK_RES_COUNT; r++) {
      s->capacity[rank * HK_RES_COUNT + r] =
          hk_resource_capacity(s->machine, (hk_resource)r, false);
      s->rate_counters[rank * HK_RES_COUNT + r] = -1;
    }
  }
  return link_operations(s);
}

void hk_sim_state_close(hk_sim_state *s) {
  for (size_t l = 0; s->pickers != NULL && l < s->graph->n_lanes; l++)
    hk_picker_close(&s->pickers[l]);
  free(s->pickers);
  free(s->busy);
  free(s->active);
  free(s->running);
  free(s->engines);
  free(s->traffic);
  free(s->readers);
  free(s->computing);
  free(s->slowing);
  free(s->host);
  free(s->activities);
  free(s->open);
  free(s->ready);
  free(s->ended);
  free(s->gpu_memory);
  free(s->capacity);
  free(s->used);
  free(s->growth);
  free(s->numbered);
  free(s->rate_cache);
  free(s->rate_cache_used);
  free(s->rate_counters);
  free(s->memory_counters);
  free(s->pending);
  free(s->next_begin);
  free(s->next);
}
