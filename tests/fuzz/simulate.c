/* SPDX-License-Identifier: GPL-3.0-or-later */
/* For fuzz targets: simulates an accepted plan and checks every invariant. */
#include <stdio.h>
#include <string.h>

#include "sim/forecast.h"
#include "sim/warnings.h"
#include "tests/fuzz/fuzz.h"

bool hk_fuzz_is_small(const hk_plan *plan) {
  const hk_job *job = &plan->job;
  return plan->model.layers * job->grad_accum <= 300 && plan->n_subgroups <= 200 &&
         plan->piece_numel >= plan->model.parameters / 200;
}

/* A failure of a forecast is a broken invariant, unless the plan or the machine was refused. */
static void must_be_refused(hk_status status, const hk_error *err) {
  if (status == HK_OK) return;
  FUZZ_MUST(err->status == status && *err->message);
  if (status != HK_INPUT) hk_fuzz_abort(__FILE__, __LINE__, "a sound simulation", err->message);
}

static void check_forecast(const hk_forecast *f) {
  FUZZ_MUST(f->iteration_ns >= 0 && f->update_ns >= 0);
  FUZZ_MUST(f->graph_bound.update_ns <= f->update_ns);
  if (f->feasible) {
    FUZZ_MUST(f->physical.feasible);
    FUZZ_MUST(f->physical.update_ns <= f->update_ns);
  } else {
    FUZZ_MUST(*f->problem != '\0');
  }
}

static void check_warnings(const hk_plan *plan, const hk_machine *machine) {
  hk_error err = {0};
  char **warnings = NULL;
  if (!hk_fuzz_read(hk_forecast_warnings(plan, machine, &warnings, &err), &err)) return;
  for (size_t i = 0; warnings[i] != NULL; i++) FUZZ_MUST(*warnings[i] != '\0');
  hk_warnings_free(warnings);
}

void hk_fuzz_simulate(hk_plan *plan, const hk_machine *machine) {
  const hk_sim_options options = {.check = true, .counters = true};
  hk_forecast forecast = {0};
  hk_error err = {0};
  char title[64];
  check_warnings(plan, machine);
  const hk_status status = hk_forecast_make(plan, machine, &options, &forecast, &err);
  must_be_refused(status, &err);
  if (status != HK_OK) return;
  check_forecast(&forecast);
  FUZZ_MUST(*hk_forecast_title(&forecast, title, sizeof title) != '\0');
  hk_forecast_free(&forecast);
}
