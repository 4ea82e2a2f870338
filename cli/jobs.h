/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What is printed of --jobs N: N equal jobs at once on each node (hk_job.jobs). */
#ifndef HK_CLI_JOBS_H
#define HK_CLI_JOBS_H

#include <cjson/cJSON.h>

#include "sim/forecast.h"

/* The iteration of the forecast's plan while the other jobs are idle. 0: there are none, or the
 * plan does not fit. */
hk_status hk_jobs_alone(const hk_forecast *forecast, const hk_machine *machine, hk_ns *alone,
                        hk_error *err);

/* "each of 4 jobs: ", or "" of one. Returns `buffer`. */
const char *hk_jobs_each(const hk_job *job, char *buffer, size_t size);
/* A sentence: an iteration, what the others take of it, speed and host memory of all jobs. Nothing
 * of one job. */
void hk_jobs_print(const hk_forecast *forecast, hk_ns alone);
/* The same as object "jobs". */
void hk_jobs_json(const hk_forecast *forecast, hk_ns alone, cJSON *root, bool *ok);

#endif
