/* SPDX-License-Identifier: GPL-3.0-or-later */
/* From options to model, machine, job and plan, for `plan`, `simulate` and `trace export`. */
#ifndef HK_CLI_SETUP_H
#define HK_CLI_SETUP_H

#include "cli/args.h"
#include "sim/forecast.h"
#include "sim/rank.h"

#define HK_OPTIONS_JOB                                                                             \
  (HK_OPTION(GPUS) | HK_OPTION(JOBS) | HK_OPTION(NODES) | HK_OPTION(TP) | HK_OPTION(MICRO_BATCH) | \
   HK_OPTION(GRAD_ACCUM) | HK_OPTION(SEQ) | HK_OPTION(LOSS_CHUNKS) | HK_OPTION(CHECKPOINT) |       \
   HK_OPTION(PP) | HK_OPTION(PP_CHUNKS) | HK_OPTION(SEQUENCE_PARALLEL) | HK_OPTION(EP))
#define HK_OPTIONS_POLICY                                                                 \
  (HK_OPTION(POLICY) | HK_OPTION(RUNTIME) | HK_OPTION(STRIDE) | HK_OPTION(RATIO) |        \
   HK_OPTION(SUBGROUP) | HK_OPTION(BUFFERS) | HK_OPTION(FLUSH) | HK_OPTION(CPU_THREADS) | \
   HK_OPTION(UNBOUND) | HK_OPTION(STATE) | HK_OPTION(ACCUMULATE) | HK_OPTION(OVERLAP) |   \
   HK_OPTION(CLIP) | HK_OPTION(HOST_MEMORY))
/* Options that choose a model (hk_setup_model). */
#define HK_OPTIONS_SIZE \
  (HK_OPTION(PARAMS) | HK_OPTION(LAYERS) | HK_OPTION(HIDDEN) | HK_OPTION(HEADS) | HK_OPTION(VOCAB))
#define HK_OPTIONS_MODEL (HK_OPTION(MODEL) | HK_OPTIONS_SIZE)
/* Options that freeze a part of the model. */
#define HK_OPTIONS_FROZEN \
  (HK_OPTION(TRAINABLE) | HK_OPTION(LORA) | HK_OPTION(LORA_TARGETS) | HK_OPTION(FROZEN_BYTES))
/* Options that choose a machine and change it (hk_setup_change). */
#define HK_OPTIONS_MACHINE (HK_OPTION(MACHINE) | HK_OPTION(SET))
/* Options that a plan file replaces. */
#define HK_OPTIONS_PLAN (HK_OPTIONS_MODEL | HK_OPTIONS_FROZEN | HK_OPTIONS_JOB | HK_OPTIONS_POLICY)

typedef struct {
  hk_model model;
  hk_machine machine;
  hk_job job;
  hk_plan_settings settings; /* points into this struct, which must not be copied */
  hk_flush flush;
  hk_accumulate accumulate;
  hk_bytes gpu_memory;
  hk_policy_options options;
  const hk_policy *policy; /* NULL: not given */
  hk_runtime runtime;      /* default: hocket */
} hk_setup;

/* Loads all of it by the options. Free with hk_setup_free, also on failure. */
hk_status hk_setup_load(const hk_args *args, hk_setup *setup, hk_error *err);
void hk_setup_free(hk_setup *setup);
/* The part of it after policy, model and machine, which `setup` has. */
hk_status hk_setup_fill(const hk_args *args, hk_setup *setup, hk_error *err);

/* The setup's settings and job without what runtime deepspeed lacks: an overlap, optimizers other
 * than AdamW with fp32 state, a choice of where gradients are summed, a loss in slices. */
void hk_setup_for_deepspeed(const hk_setup *setup, hk_plan_settings *settings, hk_job *job);

/* The model that --model names, or one of --params. HK_INPUT if neither or both are given. */
hk_status hk_setup_model(const hk_args *args, hk_model *model, hk_error *err);

/* Freezes what --trainable, --lora and --frozen-bytes say. Without them it does nothing. */
hk_status hk_setup_freeze(const hk_args *args, hk_model *model, hk_error *err);

/* Applies every --set to a machine that has been loaded (core/machine/machine_set.h). */
hk_status hk_setup_change(const hk_args *args, hk_machine *machine, hk_error *err);

/* Loads the plan file that the operand names, for `command` to run its update, and takes an overlap
 * away. HK_INPUT: the engine does not run it. Prints a note on stderr about an overlap, and if the
 * plan's policy name contradicts its routes. */
hk_status hk_setup_read_plan(const hk_args *args, const char *command, hk_plan *plan,
                             hk_error *err);

/* Writes a plan file. It includes the machine's profile if the machine's name does not lead to the
 * same profile. */
hk_status hk_setup_save_plan(const hk_plan *plan, const hk_machine *machine, const char *path,
                             hk_error *err);

/* Simulates one plan and hands the forecast to `answer`. The plan is the file that the operand
 * names or, without an operand, the one candidate that the options describe. The machine is that of
 * --machine, else the profile in the plan file, else the profile that the plan names. */
hk_status hk_setup_forecast(const hk_args *args, const hk_sim_options *options,
                            hk_status (*answer)(const hk_args *args, const hk_forecast *forecast,
                                                const hk_machine *machine, hk_error *err),
                            hk_error *err);

/* The job that the options describe; `gpus`: GPUs of a node without --gpus. */
hk_job hk_setup_job(const hk_args *args, const hk_model *model, int gpus);

/* Tokens per sequence: --seq, else the sequence length of a listed model's figures, else 2048 or
 * the model's limit if that is lower. */
int hk_setup_seq(const hk_args *args, const hk_model *model);

#endif
