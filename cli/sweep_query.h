/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Questions to the rows of a sweep, as text and as "hocket.sweep_answer/1". */
#ifndef HK_CLI_SWEEP_QUERY_H
#define HK_CLI_SWEEP_QUERY_H

#include "cli/sweep_rows.h"

/* In the order of --query. */
typedef enum {
  HK_SWEEP_CHEAPEST,
  HK_SWEEP_BREAK_EVEN,
  HK_SWEEP_PARETO,
  HK_SWEEP_SENSITIVITY
} hk_sweep_question;

hk_status hk_sweep_answer(const hk_args *args, hk_sweep_question question,
                          const hk_sweep_spec *spec, const hk_sweep_rows *rows, hk_error *err);

#endif
