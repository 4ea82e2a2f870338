/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines in the store: what was simulated and what was measured, each with all that it takes to
 * make it again. */
#ifndef HK_TRACES_TIMELINES_H
#define HK_TRACES_TIMELINES_H

#include <stdio.h>

#include "core/plan.h"
#include "core/timeline.h"
#include "traces/store.h"

typedef struct {
  int64_t id;   /* counted from 1 */
  int64_t pair; /* the other of a prediction and its measurement; 0: none */
  bool measured;
  unsigned phases;  /* of hk_graph_build; ranks are folded */
  char made[32];    /* UTC */
  char label[160];  /* "interleave k=2 r=0.80, llama-2-7b": made from the plan */
  char machine[96]; /* name of the profile; without one the GPU of the fingerprint, or "" */
  char version[64]; /* of hocket */
  size_t operations;
  hk_ns makespan;
} hk_stored_timeline;

typedef struct {
  bool measured;
  unsigned phases;
  int64_t pair; /* 0: none yet; keeping the second of a pair ties both */
  const hk_plan *plan;
  const hk_graph *graph;       /* of these phases of the plan, folded */
  const hk_timeline *timeline; /* spans and counters are kept */
  const cJSON *profile;        /* machine document; NULL: none */
  const cJSON *fingerprint;    /* of the machine that ran it or that ran the program; NULL: none */
  const char *version;
} hk_timeline_to_store;

/* HK_INPUT: `pair` is not there, has a pair, is of another graph, or is measured as this one is. */
hk_status hk_timelines_store(hk_store *store, const hk_timeline_to_store *what, int64_t *id,
                             hk_error *err);
/* Latest first. The caller frees *list. */
hk_status hk_timelines_list(hk_store *store, hk_stored_timeline **list, size_t *n, hk_error *err);

/* One, whole again: the plan is expanded anew and must give the graph that was kept (its hash);
 * HK_INPUT if this version expands it differently, naming the version that kept it; HK_ENVIRONMENT
 * if what is stored is damaged. Free with hk_loaded_timeline_free, safe on a zeroed one. */
typedef struct {
  hk_stored_timeline kept;
  hk_plan plan;
  hk_graph graph;
  hk_timeline timeline;
  cJSON *profile, *fingerprint; /* NULL: none */
} hk_loaded_timeline;
hk_status hk_timelines_load(hk_store *store, int64_t id, hk_loaded_timeline *out, hk_error *err);
void hk_loaded_timeline_free(hk_loaded_timeline *loaded);
/* Its pair, if it has one, is then without. */
hk_status hk_timelines_delete(hk_store *store, int64_t id, hk_error *err);

/* Hash of all that makes a graph (operations, lanes, dependencies, work): 16 hex digits. */
void hk_graph_hash(const hk_graph *graph, char hex[17]);

/* A header and a row an operation: id, kind, lane, rank, subgroup and piece (empty where there is
 * none), work, unit, gpu_alloc_bytes, gpu_free_bytes, start_ns, end_ns; with `predicted` (NULL:
 * none) also predicted_start_ns and predicted_end_ns. Errors stay with the stream. */
void hk_timelines_write_csv(const hk_graph *graph, const hk_timeline *timeline,
                            const hk_timeline *predicted, FILE *stream);

#endif
