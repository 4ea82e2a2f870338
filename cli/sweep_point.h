/* SPDX-License-Identifier: GPL-3.0-or-later */
/* One point of a sweep: its options, its simulation, its row. Models and machines are loaded once
 * for all points. */
#ifndef HK_CLI_SWEEP_POINT_H
#define HK_CLI_SWEEP_POINT_H

#include "cli/price.h"
#include "cli/setup.h"
#include "cli/sweep_spec.h"

/* Columns of a row after those of the axes. X(name, type) */
#define HK_SWEEP_COLUMNS(X) \
  X(fits, INTEGER)          \
  X(reason, TEXT)           \
  X(schedule, TEXT)         \
  X(offload, INTEGER)       \
  X(world, INTEGER)         \
  X(tokens, INTEGER)        \
  X(update_ms, REAL)        \
  X(iteration_ms, REAL)     \
  X(tokens_per_s, REAL)     \
  X(gpu_bytes, INTEGER)     \
  X(host_bytes, INTEGER)    \
  X(limited_by, TEXT)       \
  X(price_per_hour, REAL)   \
  X(cost_per_mtok, REAL)    \
  X(pareto_memory, INTEGER) \
  X(pareto_money, INTEGER)

enum {
#define HK_SWEEP_ENUM(name, type) HK_SWEEP_##name,
  HK_SWEEP_COLUMNS(HK_SWEEP_ENUM)
#undef HK_SWEEP_ENUM
      HK_SWEEP_OUTCOMES
};

typedef struct {
  int64_t id;
  enum { HK_SWEEP_FITS, HK_SWEEP_TOO_LARGE, HK_SWEEP_NOT_POSSIBLE } state;
  char reason[256], schedule[112];
  bool offload;  /* some state is in host memory */
  int world;     /* GPUs of all nodes */
  double tokens; /* of an iteration */
  hk_ns update, iteration;
  double tokens_per_s;
  hk_bytes gpu, host; /* peak of a GPU, of a node */
  const char *limiter;
  double per_hour, per_mtok; /* NaN: no price */
} hk_sweep_outcome;

/* A machine of the spec, and the price that stands behind its name. */
typedef struct {
  hk_machine machine;
  const char *price; /* "" */
} hk_sweep_machine;

/* What a thread keeps from one point to the next. */
typedef struct {
  int64_t variant; /* number of the machine with its quantities; -1: none */
  hk_machine machine;
  hk_error error; /* of making it */
} hk_sweep_thread;

typedef struct {
  const hk_sweep_spec *spec;
  hk_sweep_machine *machines;
  size_t n_machines;
  hk_model *models;
  size_t n_models;
  hk_sweep_thread *threads;
  int n_threads;
} hk_sweep_bench;

/* Loads all models and machines. HK_INPUT: one of them cannot be. Free it, also after a failure. */
hk_status hk_sweep_bench_open(const hk_sweep_spec *spec, hk_sweep_bench *bench, hk_error *err);
void hk_sweep_bench_close(hk_sweep_bench *bench);
/* A text that differs if the content of a model or a machine does. */
hk_status hk_sweep_bench_hash(const hk_sweep_bench *bench, char hex[17], hk_error *err);

/* Simulates a point. HK_ENVIRONMENT alone is a failure: other messages are the row's reason. */
hk_status hk_sweep_simulate(hk_sweep_bench *bench, int64_t id, int thread, hk_sweep_outcome *out,
                            hk_error *err);

/* The columns of the database, axes and outcomes; the caller frees *columns, which points into the
 * spec. */
hk_status hk_sweep_columns(const hk_sweep_spec *spec, hk_sweep_column **columns, size_t *n,
                           hk_error *err);
/* A row's cells, one a column, which point into spec and outcome. */
void hk_sweep_cells(const hk_sweep_spec *spec, const hk_sweep_outcome *out, hk_cell *cells);

#endif
