/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `plan --from FILE`: the training that a framework's configuration file describes, simulated as it
 * runs today. Tables, notes and JSON call it "yours". */
#ifndef HK_CLI_BASELINE_H
#define HK_CLI_BASELINE_H

#include <cjson/cJSON.h>

#include "cli/setup.h"
#include "sim/rank.h"
#include "sim/uncertainty.h"
#include "traces/train_config.h"

typedef struct {
  const char *path; /* NULL: no --from; the rest is then empty */
  hk_train_config config;
  hk_forecast forecast;
  hk_uncertainty uncertainty; /* of the forecast, if it fits */
  hk_ns sync_ns; /* iteration time if gradients are copied synchronously; 0: not simulated */
} hk_baseline;

/* Reads the file that --from names, if any, and sets the options that the file fixes and the user
 * did not type: GPUs, nodes, tp, activations. */
hk_status hk_baseline_read(hk_args *args, hk_baseline *baseline, hk_error *err);
/* Sets micro-batch and accumulation in `setup`, and simulates. */
hk_status hk_baseline_simulate(const hk_args *args, hk_setup *setup, hk_baseline *baseline,
                               hk_error *err);
void hk_baseline_free(hk_baseline *baseline);

/* The interval of the forecast; NULL: not known. */
const hk_row_error *hk_baseline_error(const hk_baseline *baseline);

/* Prints how the baseline compares with the best row that stock DeepSpeed runs and with the best,
 * and the notes of the file. Prints nothing without --from. */
void hk_baseline_print(const hk_baseline *baseline, const hk_ranking *ranking, bool quiet);
/* Adds "yours" to `root`. */
hk_status hk_baseline_json(const hk_baseline *baseline, const hk_machine *machine, cJSON *root,
                           bool *ok, hk_error *err);

/* The fastest row that fits and that `framework` runs; NULL: none. */
const hk_forecast *hk_best_stock(const hk_ranking *ranking, hk_framework framework);

#endif
