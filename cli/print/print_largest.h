/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What `plan --largest` found, and its print. */
#ifndef HK_CLI_PRINT_PRINT_LARGEST_H
#define HK_CLI_PRINT_PRINT_LARGEST_H

#include "cli/largest.h"
#include "cli/price.h"
#include "cli/setup.h"
#include "sim/rank.h"
#include "sim/uncertainty.h"

#define HK_LARGEST_ROWS 400

/* A size that was tried, with its best schedule by a quick ranking (that of the answer and of the
 * fastest is by a full one), or the nearest if none fits. */
typedef struct {
  int64_t value; /* micro-batch, tokens, number of the preset, layers */
  char name[96]; /* of the model */
  int64_t parameters;
  bool fits;
  hk_ns iteration_ns;
  double tokens_per_s;
  hk_bytes gpu_peak, host_peak;
  char title[96], problem[256];
} hk_largest_row;

/* The largest that fits. */
typedef struct {
  int64_t value; /* 0: none */
  size_t row;    /* of the job's */
  hk_ranking ranking;
} hk_largest_best;

typedef struct {
  const hk_args *args;
  hk_largest_what what;
  char machine[4096]; /* --machine without a price */
  const char *price_text;
  hk_setup setup;
  hk_model *family; /* presets, smallest first */
  size_t n_family;
  int64_t step; /* tokens */
  hk_largest_row rows[HK_LARGEST_ROWS];
  size_t n,
      n_presets; /* n_presets: rows of presets; with --largest model those behind are layers */
  hk_largest_best best, layers; /* layers: with --largest model */
  bool at_limit;                /* the largest number that may be tried fits */
  hk_price price;
  hk_uncertainty uncertainty; /* of the answer */
  bool shows;                 /* progress */
  hk_ns began;
} hk_largest_job;

/* The answer: of models a preset if one fits. */
const hk_largest_best *hk_largest_answer(const hk_largest_job *l);
const char *hk_largest_name(int what); /* "batch", "seq", "model" */
hk_status hk_largest_print(const hk_largest_job *l, hk_error *err);

#endif
