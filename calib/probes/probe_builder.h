/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Parts from which probe_list.c and probe_contention.c make probes: names, loads, and sizes that
 * fit the stand's memory. */
#ifndef HK_CALIB_PROBES_PROBE_BUILDER_H
#define HK_CALIB_PROBES_PROBE_BUILDER_H

#include "calib/probes/probe.h"

#define HK_PROBE_MILLION        ((int64_t)1000000)
#define HK_PROBE_CONTENDED_COPY (16 * HK_MIB) /* about one staged piece's p, m or v */
#define HK_PROBE_LAUNCHES       512           /* in a row: fewer than a CUDA stream can hold */

/* A growing list of probes. */
typedef struct {
  const hk_probe_scope *scope;
  hk_probe *probes;
  size_t n, room;
  bool failed; /* out of memory */
} hk_probe_builder;

/* A probe without loads; `format` makes its name. */
__attribute__((format(printf, 3, 4))) hk_probe hk_probe_named(hk_probe_group group, bool quick,
                                                              const char *format, ...);
void hk_probe_load(hk_probe *p, hk_load l);
/* Adds a probe. Two sizes that were reduced can give the same probe, which is added once. */
void hk_probe_add(hk_probe_builder *b, const hk_probe *p);

/* Largest chunk of copies on `gpus` GPUs at once. Each GPU has an equal part of a quarter of host
 * memory, which holds at least two chunks, and a quarter of its own memory, which holds at least
 * one. */
hk_bytes hk_probe_most_copied(const hk_probe_scope *s, int gpus);
/* Most parameters of an update on a GPU: 16 bytes each in half of the device memory. State in
 * mapped host memory: 12 bytes each in a quarter of the host memory. */
int64_t hk_probe_most_updated(const hk_probe_scope *s);
int64_t hk_probe_most_mapped(const hk_probe_scope *s);
/* Whether a product fits. The stand has the factors in the device's `in` and the product in its
 * `out`, with `room` bytes each, and fetches all of them to a quarter of host memory to verify. */
bool hk_probe_product_fits(const hk_probe_builder *b, const hk_load *matmul, hk_bytes room);

/* Parts of a probe's name; they return `text`. */
const char *hk_probe_size_text(hk_bytes bytes, char text[32]); /* "64 KiB", "12345 B": exact */
const char *hk_probe_count_text(int64_t n, char text[32]);     /* "20 M", "64 Ki", "12345" */
const char *hk_probe_threads_text(int threads, char text[32]); /* "1 thread", "12 threads" */

/* Different numbers of threads of the CPU team, in increasing order. */
typedef struct {
  int n, counts[16];
} hk_probe_teams;

/* Adds `count` if it is more than the last. */
void hk_probe_teams_add(hk_probe_teams *t, int count);
/* parts[i] eighths of the cores, rounded down; all cores if that gives none. */
hk_probe_teams hk_probe_teams_of(int cores, const int *parts, size_t n);

/* Directions of copies: a set of bits. */
typedef enum {
  HK_COPIES_IN = 1,  /* to the GPU */
  HK_COPIES_OUT = 2, /* to the host */
  HK_COPIES_BOTH = HK_COPIES_IN | HK_COPIES_OUT
} hk_probe_copies;

/* Adds copies of GPUs 0 to gpus - 1. */
void hk_probe_load_copies(hk_probe *p, hk_probe_copies d, int gpus, hk_bytes chunk);
/* A load of the CPU team. Its piece is the default (0) or, if that does not fit, the largest that
 * does. */
hk_load hk_probe_cpu_load(const hk_probe_builder *b, hk_load_kind kind, int threads);

/* Add probes with several loads (probe_contention.c): on one GPU, on all GPUs of a node, a matrix
 * product beside the loads of an update, and a loop of launches alone and beside AdamW on the CPU.
 * hk_probes_add_layer takes its product from the probes in `b`. */
void hk_probes_add_contention(hk_probe_builder *b);
void hk_probes_add_node(hk_probe_builder *b);
void hk_probes_add_layer(hk_probe_builder *b);
void hk_probes_add_loop(hk_probe_builder *b);

#endif
