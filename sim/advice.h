/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Advice: which changes of the job make a model fit or train faster, each simulated.
 *
 * If the job fits, the search climbs: it simulates the neighbours of the job (activations kept or
 * recomputed; half or twice the micro-batch, the tensor-parallel degree), all with the same number
 * of sequences per iteration, moves to the fastest while that gains 2 % or more, and suggests where
 * it ends. Beyond that it suggests a larger batch, a smaller one if accumulation takes the memory
 * that state could have, and the overlap of update and backward. These rankings are quick
 * (sim/rank.h): longer ones may find faster schedules. If the job does not fit, it suggests as many
 * of several jobs at once (hk_job.jobs) as fit, the fastest job of the same batch that fits, a
 * smaller batch, and more GPUs: their number is doubled until the job fits. Of the engine's formats
 * of state it suggests those that are faster, or the most exact one in which the job fits, else 8
 * bits; adapters come before more GPUs. Last come two closed forms of what hocket's engine does not
 * run: layer inputs in host memory (sim/checkpoints.h) and, under DeepSpeed, state on the drives
 * (sim/nvme.h). */
#ifndef HK_SIM_ADVICE_H
#define HK_SIM_ADVICE_H

#include "sim/forecast.h"
#include "sim/rank.h"

#define HK_MOST_ADVICE 7

typedef struct {
  hk_job job;
  hk_overlap overlap;
  hk_optimizer state;
  int lora;          /* rank of adapters, if all else is frozen; 0: the job's model */
  bool rounds;       /* that state rounds momentum and variance, and the job's does not */
  bool closed_form;  /* what hocket's engine does not run */
  char options[128]; /* what to type: "--micro-batch 4 --grad-accum 2" */
  char schedule[96]; /* title of its best schedule */
  hk_runtime runtime;
  double batch; /* sequences per iteration / those of the job */
  hk_ns iteration_ns;
  double tokens_per_s;
  double gain; /* tokens per second / those of the job's best schedule; 0: the job does not fit */
} hk_alternative;

typedef struct {
  hk_alternative list[HK_MOST_ADVICE]; /* the first is the most useful */
  int n;
  int rankings; /* that were made */
} hk_advice;

/* `ranking` is that of `job` with these settings and options. Deterministic. */
hk_status hk_advise(const hk_model *model, const hk_machine *machine, const hk_job *job,
                    const hk_plan_settings *settings, const hk_ranking_options *options,
                    const hk_ranking *ranking, hk_advice *advice, hk_error *err);

/* Sets alternative->options: what leads from a job and its overlap to those of the alternative. */
void hk_alternative_options(hk_alternative *alternative, const hk_job *from, hk_overlap overlap);

/* "--micro-batch 4 (2 x the batch): 57,886 tokens/s, 1.30 x as fast or more (SCHEDULE)"; without
 * the first parentheses if the batch is the same. Returns `buffer`; longer text is cut at `size`.
 */
const char *hk_alternative_text(const hk_alternative *alternative, char *buffer, size_t size);

#endif
