/* SPDX-License-Identifier: Apache-2.0 */
/* A trial runs an engine on synthetic weights and gradients. With `check`, plain AdamW runs beside
 * it on arrays of its own, and all bits are compared. Values depend only on seed, step and
 * parameter number, so that all plans for a model get the same values. */
#ifndef HK_ENGINE_TRIAL_H
#define HK_ENGINE_TRIAL_H

#include "engine/engine.h"

typedef struct hk_trial hk_trial;

typedef struct {
  uint64_t seed;
  bool check; /* takes 16 more bytes of host memory a parameter */
} hk_trial_options;

/* Fills the engine's weights, unless it has taken steps (a checkpoint was loaded). The engine
 * belongs to the caller and must outlive the trial. */
hk_status hk_trial_open(hk_engine *engine, const hk_trial_options *options, hk_trial **trial,
                        hk_error *err);
void hk_trial_close(hk_trial *trial);

/* Takes one step with new gradients, which are given from device memory as after a real backward.
 * With `check`: HK_NO if any bit differs; the message names the first such element. */
hk_status hk_trial_step(hk_trial *trial, hk_timeline *timeline, hk_step_report *report,
                        hk_error *err);

#endif
