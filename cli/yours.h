/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `plan --from FILE`: the training that a framework's configuration file describes, simulated as it
 * runs today. It is called "yours". */
#ifndef HK_CLI_YOURS_H
#define HK_CLI_YOURS_H

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
} hk_yours;

/* Reads the file that --from names, if any, and sets the options that the file fixes and the user
 * did not type: GPUs, nodes, tp, activations. */
hk_status hk_yours_read(hk_args *args, hk_yours *yours, hk_error *err);
/* Sets micro-batch and accumulation in `setup`, and simulates. */
hk_status hk_yours_simulate(const hk_args *args, hk_setup *setup, hk_yours *yours, hk_error *err);
void hk_yours_free(hk_yours *yours);

/* The interval of the forecast; NULL: not known. */
const hk_row_error *hk_yours_error(const hk_yours *yours);

/* Prints how yours compares with the best row that stock DeepSpeed runs and with the best, and the
 * notes of the file. Prints nothing without --from. */
void hk_yours_print(const hk_yours *yours, const hk_ranking *ranking, bool quiet);
/* Adds "yours" to `root`. */
hk_status hk_yours_json(const hk_yours *yours, const hk_machine *machine, cJSON *root, bool *ok,
                        hk_error *err);

/* The fastest row that fits and that `framework` runs; NULL: none. */
const hk_forecast *hk_best_stock(const hk_ranking *ranking, hk_framework framework);

#endif
