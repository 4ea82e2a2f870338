/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `plan --emit FRAMEWORK`: the configuration nearest to a row of the ranking. */
#ifndef HK_CLI_PRINT_EMIT_CONFIG_H
#define HK_CLI_PRINT_EMIT_CONFIG_H

#include <cjson/cJSON.h>

#include "cli/setup.h"
#include "sim/rank.h"
#include "traces/train_config.h"

typedef struct {
  bool on; /* --emit was given; the rest is empty if not */
  hk_train_config config;
  const hk_forecast *best, *row; /* in the ranking; `row` is the one that was chosen */
  size_t rank;                   /* of `row`, from 1 */
  hk_forecast own;               /* of the configuration, if no row is just that */
  bool has_own;
  char lost[HK_MOST_LOST][160]; /* what the framework cannot express of `row` */
  int n_lost;
} hk_emission;

/* Chooses the row: --row N, else the fastest that the framework runs, else the fastest. Simulates
 * the configuration if it is not a row. HK_NO if the configuration does not fit in memory. Does
 * nothing without --emit or if no row fits. */
hk_status hk_emission_make(const hk_args *args, const hk_setup *setup, const hk_ranking *ranking,
                           hk_emission *emission, hk_error *err);
void hk_emission_free(hk_emission *emission);

/* The forecast of the configuration. */
const hk_forecast *hk_emission_forecast(const hk_emission *emission);

/* Writes the file (HK_STDOUT: to stdout), and says on stderr what it is, what it lacks and what the
 * prediction assumes. */
hk_status hk_emission_write(const hk_emission *emission, const hk_args *args, hk_error *err);
/* Adds "emit" to `root`. */
void hk_emission_json(const hk_emission *emission, cJSON *root, bool *ok);

#endif
