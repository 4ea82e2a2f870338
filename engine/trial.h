/* SPDX-License-Identifier: Apache-2.0 */
/* A trial: an engine is given made-up weights and gradients, step after step, and, if asked, plain
 * AdamW runs beside it on arrays of its own and every bit is compared. Values depend on seed, step
 * and parameter alone, so that any two plans of one model meet the same. */
#ifndef HK_ENGINE_TRIAL_H
#define HK_ENGINE_TRIAL_H

#include "engine/engine.h"

typedef struct hk_trial hk_trial;

typedef struct {
  uint64_t seed;
  bool check; /* needs 16 more bytes a parameter of host memory */
} hk_trial_options;

/* Fills the engine's weights, unless it is past step 0 (a checkpoint was loaded). The engine stays
 * the caller's. */
hk_status hk_trial_open(hk_engine *engine, const hk_trial_options *options, hk_trial **trial,
                        hk_error *err);
void hk_trial_close(hk_trial *trial);

/* One step with gradients of its own, which come from device memory as after a real backward. With
 * `check`, HK_NO names the first element that differs. */
hk_status hk_trial_step(hk_trial *trial, hk_timeline *timeline, hk_step_report *report,
                        hk_error *err);

#endif
