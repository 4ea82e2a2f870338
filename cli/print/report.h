/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Prints a forecast: as JSON ("hocket.forecast/1") and as text. */
#ifndef HK_CLI_PRINT_REPORT_H
#define HK_CLI_PRINT_REPORT_H

#include <cjson/cJSON.h>

#include "sim/certificate.h"
#include "sim/uncertainty.h"

/* Adds the members of "hocket.forecast/1", except the schema. */
hk_status hk_report_json(const hk_forecast *forecast, const hk_machine *machine, cJSON *object,
                         hk_error *err);
/* Adds "bound": the physical lower bound of the update time, and update time / bound. */
void hk_report_bound_json(const hk_forecast *forecast, cJSON *object, bool *ok);
/* Adds "warnings". */
hk_status hk_report_warnings_json(const hk_plan *plan, const hk_machine *machine, cJSON *object,
                                  bool *ok, hk_error *err);

/* Prints the whole report to stdout, with the intervals of the first row of `uncertainty`; `quiet`:
 * without warnings and notes. */
hk_status hk_report_text(const hk_forecast *forecast, const hk_machine *machine,
                         const hk_uncertainty *uncertainty, bool quiet, hk_error *err);
/* ", pp 8 in 3 chunks", " and sequences": what follows the tensor-parallel degree. Returns
 * `buffer`, of 96 bytes or more. */
const char *hk_tell_pipeline(const hk_job *job, char *buffer, size_t size);
/* Keys "pp", "pp_chunks", "sequence_parallel", "ep", "jobs", where they are set. */
void hk_put_pipeline(const hk_job *job, cJSON *object, bool *ok);
/* "MODEL (N parameters) on MACHINE: 4 GPUs, ..." */
void hk_report_heading(const hk_model *model, const hk_machine *machine, const hk_job *job);
/* "lower bound of the update: 812.4 ms, DRAM-bound (linear programme + dual certificate)"; with an
 * overlap "lower bound of the iteration: 433.2 ms, bound by the lane cpu". */
void hk_report_bound_line(const hk_forecast *forecast);
/* The bound of the iteration over all divisions of the update, what binds and what more of it is
 * worth. Nothing if the certificate was not made. */
void hk_report_certificate(const hk_certificate *certificate);
/* Adds "certificate" (scripts/check-certificate), or nothing. */
void hk_report_certificate_json(const hk_certificate *certificate, cJSON *object, bool *ok);
/* Prints one line per warning. */
hk_status hk_report_warnings(const hk_plan *plan, const hk_machine *machine, hk_error *err);

/* -- Figures of both forms --------------------------------------------------------------------- */

/* Update time / physical lower bound. With an overlap that bound says nothing: iteration / lower
 * bound of the plan's iteration. 0 if there is no bound. */
double hk_report_bound_ratio(const hk_forecast *forecast);
/* Update time / physical lower bound, whatever the overlap; 0 if there is no bound. */
double hk_report_update_ratio(const hk_forecast *forecast);

/* Use of a lane over the iteration. `bytes`: sum over its operations whose work is bytes. */
typedef struct {
  hk_ns busy;
  hk_bytes bytes;
  double utilization;
} hk_lane_use;
hk_lane_use hk_report_lane(const hk_forecast *forecast, int32_t lane);

/* Work done on the resource over the iteration / (capacity x iteration time). */
double hk_report_utilization(const hk_forecast *forecast, const hk_machine *machine,
                             hk_resource resource);

double hk_gib(hk_bytes n);

#endif
