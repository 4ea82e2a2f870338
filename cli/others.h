/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `plan --others`: rows for what users would otherwise run (sim/others.h), below the ranking. */
#ifndef HK_CLI_OTHERS_H
#define HK_CLI_OTHERS_H

#include <cjson/cJSON.h>

#include "sim/others.h"

/* One line: the fastest that fits, beside the ranking's first schedule. */
void hk_others_print_answer(const hk_other rows[HK_OTHER_COUNT], const hk_ranking *ranking);
/* The table, and below it what the rows assume, unless `quiet`. */
hk_status hk_others_print(const hk_other rows[HK_OTHER_COUNT], bool quiet, hk_error *err);
/* Adds "others" to `root`. */
void hk_others_json(const hk_other rows[HK_OTHER_COUNT], cJSON *root, bool *ok);

#endif
