/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Run tables: measured training runs as CSV (RFC 4180), one run per row. `hocket trace import`
 * writes them, `hocket validate runs` and `hocket fit` read them. Columns are identified by name
 * and may be in any order. Unknown columns are ignored. An empty field means "unknown". */
#ifndef HK_TRACES_RUN_TABLE_H
#define HK_TRACES_RUN_TABLE_H

#include <stdbool.h>
#include <stdio.h>

#include "core/base/error.h"

/* X(field, column, required, meaning): text columns, then numeric ones. */
#define HK_RUN_TEXTS(X)                                                  \
  X(machine, "machine", true, "machine profile of the run")              \
  X(source, "source", false, "folder or file of the run")                \
  X(model, "model", true, "name of the model (not used for prediction)") \
  X(build, "build", false, "version of the runtime")                     \
  X(subgroups_rank0, "subgroups_rank0", false, "sizes of rank 0's subgroups, \"NUMELxCOUNT ...\"")

#define HK_RUN_NUMBERS(X)                                                                          \
  X(layers, "layers", true, "transformer layers")                                                  \
  X(hidden, "hidden", true, "hidden size")                                                         \
  X(ffn, "ffn", true, "intermediate size of the MLP")                                              \
  X(heads, "heads", true, "attention heads")                                                       \
  X(kv_heads, "kv_heads", true, "key-value heads")                                                 \
  X(vocab, "vocab", true, "vocabulary, padded")                                                    \
  X(seq, "seq", true, "tokens per sequence")                                                       \
  X(tp, "tp", true, "tensor-parallel degree")                                                      \
  X(dp, "dp", true, "data-parallel degree (ZeRO-3)")                                               \
  X(nodes, "nodes", true, "nodes")                                                                 \
  X(cores_per_rank, "cores_per_rank", false, "hardware threads bound to a rank; empty: not bound") \
  X(micro_batch, "micro_batch", true, "sequences per rank and micro-step")                         \
  X(global_batch, "global_batch", false, "sequences per iteration")                                \
  X(grad_accum, "grad_accum", true, "micro-steps per iteration")                                   \
  X(params_per_tp_rank, "params_per_tp_rank", false,                                               \
    "parameters of a tensor-parallel rank, before ZeRO-3")                                         \
  X(subgroup_numel, "subgroup_numel", true, "DeepSpeed's sub_group_size, in parameters")           \
  X(offload_ratio, "offload_ratio", true, "share of subgroups that the CPU updates")               \
  X(interleave, "interleave", true, "1: Deep Optimizer States")                                    \
  X(flush_async, "flush_async", false, "1: asynchronous gradient flush; 0: blocking")              \
  X(stride, "stride", false, "stride of the interleaving")                                         \
  X(steady_iters, "steady_iters", false, "iterations in the medians")                              \
  X(fwd_ms, "fwd_ms", false, "forward")                                                            \
  X(bwd_ms, "bwd_ms", false, "backward")                                                           \
  X(step_ms, "step_ms", false, "optimizer step, median")                                           \
  X(step_ms_min, "step_ms_min", false, "optimizer step, minimum")                                  \
  X(step_ms_max, "step_ms_max", false, "optimizer step, maximum")                                  \
  X(iter_ms, "iter_ms", false, "whole iteration")                                                  \
  X(alloc_before_fwd_gb, "alloc_before_fwd_gb", false, "allocator, GiB")                           \
  X(alloc_after_fwd_gb, "alloc_after_fwd_gb", false, "allocator, GiB")                             \
  X(alloc_after_bwd_gb, "alloc_after_bwd_gb", false, "allocator, GiB")                             \
  X(peak_bwd_gb, "peak_bwd_gb", false, "allocator's peak within backward, GiB")                    \
  X(alloc_after_step_gb, "alloc_after_step_gb", false, "allocator, GiB")                           \
  X(peak_step_gb, "peak_step_gb", false, "allocator's peak within the step, GiB")

typedef struct {
#define HK_RUN_TEXT(field, column, required, meaning) char *field;
  HK_RUN_TEXTS(HK_RUN_TEXT) /* owned; not NULL; "": unknown */
#undef HK_RUN_TEXT
#define HK_RUN_NUMBER(field, column, required, meaning) double field;
  HK_RUN_NUMBERS(HK_RUN_NUMBER) /* NAN: unknown */
#undef HK_RUN_NUMBER
  int line; /* line of the file, for messages; 0: none */
} hk_run;

typedef struct {
  hk_run *runs;
  size_t n, room;
  char path[512]; /* for messages */
} hk_run_table;

/* Makes an empty run: every text "", every number NAN. HK_ENVIRONMENT: out of memory. */
hk_status hk_run_init(hk_run *run, hk_error *err);
void hk_run_free(hk_run *run);

/* Free with hk_run_table_free, which accepts a zeroed table. Messages name file, line and column.
 */
hk_status hk_run_table_load(const char *path, hk_run_table *table, hk_error *err);
/* Takes ownership of *run and zeroes it, also on failure. */
hk_status hk_run_table_add(hk_run_table *table, hk_run *run, hk_error *err);
/* Writes the header and all columns. Numbers have the fewest digits that read back as the same
 * value. */
hk_status hk_run_table_write(const hk_run_table *table, FILE *out, hk_error *err);
void hk_run_table_free(hk_run_table *table);

#endif
