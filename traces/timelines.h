/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines in the store, simulated and measured, each with the documents from which it can be
 * reproduced. */
#ifndef HK_TRACES_TIMELINES_H
#define HK_TRACES_TIMELINES_H

#include <stdio.h>

#include "core/graph/plan.h"
#include "core/graph/timeline.h"
#include "traces/store.h"

typedef struct {
  int64_t id;   /* counted from 1 */
  int64_t pair; /* id of its measurement or of its prediction; 0: none */
  bool measured;
  unsigned phases;  /* as passed to hk_graph_build (with folded ranks) */
  int iterations;   /* likewise */
  char made[32];    /* UTC */
  char label[160];  /* policy and model: "interleave k=2 r=0.80, llama-2-7b" */
  char machine[96]; /* name of the profile, else the GPU in the fingerprint, else "" */
  char version[64]; /* of hocket */
  size_t operations;
  hk_ns makespan;
} hk_stored_timeline;

typedef struct {
  bool measured;
  unsigned phases;
  int64_t pair; /* id of a stored timeline, with which this one forms a pair; 0: none */
  const hk_plan *plan;
  const hk_graph *graph;       /* of these phases of the plan, with folded ranks */
  const hk_timeline *timeline; /* spans and counters are stored */
  const cJSON *profile;        /* machine document; NULL: none */
  const cJSON *fingerprint;    /* of the machine that ran it; NULL: none */
  const char *version;
} hk_timeline_to_store;

/* HK_INPUT: `pair` does not exist, has a pair already, is of another graph, or both are measured or
 * both predicted. */
hk_status hk_timelines_store(hk_store *store, const hk_timeline_to_store *what, int64_t *id,
                             hk_error *err);
/* Latest first. The caller frees *list. */
hk_status hk_timelines_list(hk_store *store, hk_stored_timeline **list, size_t *n, hk_error *err);

/* A timeline read from the store. Its graph is built from its plan and must have the stored hash.
 * HK_INPUT: this version of hocket builds another graph; the message names the version that stored
 * it. HK_ENVIRONMENT: the stored data is damaged. Free with hk_loaded_timeline_free, which accepts
 * a zeroed one. */
typedef struct {
  hk_stored_timeline kept;
  hk_plan plan;
  hk_graph graph;
  hk_timeline timeline;
  cJSON *profile, *fingerprint; /* NULL: none */
} hk_loaded_timeline;
hk_status hk_timelines_load(hk_store *store, int64_t id, hk_loaded_timeline *out, hk_error *err);
void hk_loaded_timeline_free(hk_loaded_timeline *loaded);
/* The other timeline of its pair stays, without a pair. */
hk_status hk_timelines_delete(hk_store *store, int64_t id, hk_error *err);

/* Hash of a graph (operations, lanes, dependencies, work): 16 hexadecimal digits. */
void hk_graph_hash(const hk_graph *graph, char hex[17]);

/* Writes CSV: a header and one row per operation. Columns: id, kind, lane, rank, subgroup and piece
 * (empty if none), work, unit, gpu_alloc_bytes, gpu_free_bytes, start_ns, end_ns; with `predicted`
 * (NULL: none) also predicted_start_ns, predicted_end_ns. The caller checks the stream for errors.
 */
void hk_timelines_write_csv(const hk_graph *graph, const hk_timeline *timeline,
                            const hk_timeline *predicted, FILE *stream);

#endif
