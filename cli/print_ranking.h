/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What is said of many plans that were predicted and run. */
#ifndef HK_CLI_PRINT_RANKING_H
#define HK_CLI_PRINT_RANKING_H

#include "calib/validate/validate.h"
#include "cli/args.h"

typedef struct {
  const char *model, *profile; /* names */
  const hk_fingerprint *node;  /* that ran them */
  const hk_ranked_plan *plans; /* [n], 1 or more */
  size_t n, chosen;            /* run; meant to be run */
  int rounds;
  bool complete; /* every plan was run in every round */
} hk_measured_ranking;

/* Judges them; prints the answer, and saves the JSON object where -o says. */
hk_status hk_print_ranking(const hk_args *args, const char *command,
                           const hk_measured_ranking *ranked, hk_error *err);

#endif
