/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The report of `validate ranking` and `validate again`. */
#ifndef HK_CLI_PRINT_PRINT_RANKING_H
#define HK_CLI_PRINT_PRINT_RANKING_H

#include "calib/validate/validate.h"
#include "cli/args.h"

typedef struct {
  const char *model, *profile; /* names */
  const hk_fingerprint *node;  /* the machine that ran the plans */
  const hk_ranked_plan *plans; /* [n], 1 or more */
  size_t n, chosen;            /* plans that were run; plans that were chosen */
  int rounds;
  bool complete; /* every plan ran in every round */
} hk_measured_ranking;

/* Computes errors, tau and regret; prints them; saves the JSON object to -o FILE. */
hk_status hk_print_ranking(const hk_args *args, const char *command,
                           const hk_measured_ranking *ranked, hk_error *err);

#endif
