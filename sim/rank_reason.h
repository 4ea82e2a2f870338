/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The reason of a ranking (hk_ranking.reason). */
#ifndef HK_SIM_RANK_REASON_H
#define HK_SIM_RANK_REASON_H

#include "sim/overlap.h"
#include "sim/rank.h"

/* Adds why the first forecast, which fits, is the fastest. `searched`: what hk_overlap_search found
 * (simulations 0 if it did not run); NULL: unknown. */
void hk_ranking_say_why(hk_ranking *ranking, const hk_machine *machine,
                        const hk_overlap_search_result *searched);
/* Adds why nothing fits, and what would help. */
void hk_ranking_say_why_not(hk_ranking *ranking);

#endif
