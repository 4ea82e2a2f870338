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
  double max_norm; /* largest global norm; 0: no clipping */
  bool check;      /* takes 16 more bytes of host memory a parameter */
} hk_trial_options;

/* Creates an engine for trials of a plan without an overlap. Its tensors have 2^23 parameters each
 * (the last one has the rest), bf16 weights and gradients, and the same hyperparameters. */
hk_status hk_trial_engine(const hk_plan *plan, const hk_engine_options *options, hk_engine **engine,
                          hk_error *err);
/* Computes what such an engine takes, its tensors' weights included. */
hk_status hk_trial_measure(const hk_plan *plan, hk_engine_memory *memory, hk_error *err);

/* Allocates the tensors' weights. Fills them and the master weights, unless the engine has taken
 * steps (a checkpoint was loaded). The engine belongs to the caller and must outlive the trial. */
hk_status hk_trial_open(hk_engine *engine, const hk_trial_options *options, hk_trial **trial,
                        hk_error *err);
void hk_trial_close(hk_trial *trial);
/* Bytes of device memory: of the tensors' weights, and of the trial's own buffer. */
hk_bytes hk_trial_weight_bytes(const hk_trial *trial);
hk_bytes hk_trial_buffer_bytes(const hk_trial *trial);

/* Takes one step with new gradients, which are given from device memory as after a real backward.
 * With `check`: HK_NO if any bit differs; the message names the first such element. */
hk_status hk_trial_step(hk_trial *trial, hk_timeline *timeline, hk_step_report *report,
                        hk_error *err);
/* The first part of a step alone: gives the next step's gradients. */
hk_status hk_trial_gradients(hk_trial *trial, hk_error *err);

#endif
