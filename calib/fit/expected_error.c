/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The error that is expected of predictions with a profile (calib/fit/expected_error.h). */
#include "calib/fit/expected_error.h"

#include <math.h>

#include "sim/rank.h"
#include "sim/uncertainty.h"

#define NINE_IN_TEN 1.645 /* standard errors of a normal distribution */

static const hk_model_size reference_size = {
    .parameters = 3000000000, .layers = 25, .hidden = 3072};
static const hk_job reference_job = {
    .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 2048};

static hk_status error_of_forecast(const hk_forecast *forecast, const hk_machine *machine,
                                   double *error, hk_error *err) {
  hk_uncertainty u = {0};
  HK_TRY(hk_uncertainty_make(forecast, 1, machine, &u, err));
  *error = u.rows[0].update.error;
  hk_uncertainty_free(&u);
  return HK_OK;
}

/* Relative standard error of the update under one policy. */
static hk_status error_of_policy(const hk_policy *policy, const hk_model *model,
                                 const hk_machine *machine, double *error, hk_error *err) {
  hk_candidate candidate = {
      .policy = policy, .options = HK_POLICY_OPTIONS_NONE, .runtime = HK_RUNTIME_HOCKET};
  candidate.options.stride_auto = policy == &hk_policy_interleave;
  const hk_plan_settings settings = {0};
  hk_plan plan = {0};
  hk_forecast forecast = {0};
  HK_TRY(hk_candidate_plan(&candidate, model, machine, &reference_job, &settings, &plan, err));
  HK_TRY(hk_forecast_make(&plan, machine, NULL, &forecast, err));
  const hk_status status = error_of_forecast(&forecast, machine, error, err);
  hk_forecast_free(&forecast);
  return status;
}

hk_status hk_expected_error_of(const hk_machine *machine, double model_pct,
                               hk_expected_error *expected, hk_error *err) {
  const hk_policy *const policies[] = {&hk_policy_zero_offload, &hk_policy_interleave,
                                       &hk_policy_streamed};
  *expected = (hk_expected_error){.model_pct = model_pct};
  hk_model model = {0};
  HK_TRY(hk_model_from_size(&reference_size, &model, err));
  hk_status status = HK_OK;
  for (size_t i = 0; status == HK_OK && i < sizeof policies / sizeof policies[0]; i++) {
    double error = 0;
    status = error_of_policy(policies[i], &model, machine, &error, err);
    expected->noise_pct = fmax(expected->noise_pct, 100 * expm1(NINE_IN_TEN * error));
  }
  hk_model_free(&model);
  expected->expected_pct = hypot(expected->noise_pct, model_pct);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "the expected error of the profile");
}

bool hk_expected_error_converged(const hk_expected_error *e) {
  return e->expected_pct <= HK_WORTH * e->model_pct;
}

double hk_expected_error_worth_s(const hk_expected_error *e, double seconds) {
  if (hk_expected_error_converged(e)) return 0;
  /* noise^2 is proportional to 1 / seconds. */
  const double enough = e->model_pct * sqrt(HK_WORTH * HK_WORTH - 1);
  return seconds * (pow(e->noise_pct / enough, 2) - 1);
}
