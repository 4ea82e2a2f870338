/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Advice in words. */
#include <stdio.h>
#include <string.h>

#include "sim/advice.h"

static void add_text(char *text, size_t size, const char *option, const char *value) {
  const size_t used = strlen(text);
  snprintf(text + used, size - used, "%s--%s %s", used > 0 ? " " : "", option, value);
}

static void add_number(char *text, size_t size, const char *option, int value) {
  char number[16];
  snprintf(number, sizeof number, "%d", value);
  add_text(text, size, option, number);
}

void hk_alternative_options(hk_alternative *a, const hk_job *from, hk_overlap overlap) {
  const hk_job *to = &a->job;
  const bool jobs = hk_job_jobs(to) != hk_job_jobs(from);
  char *text = a->options;
  const size_t size = sizeof a->options;
  text[0] = '\0';
  if (jobs) add_number(text, size, "jobs", hk_job_jobs(to));
  if (to->checkpoint_activations != from->checkpoint_activations)
    add_text(text, size, "checkpoint-activations", to->checkpoint_activations ? "yes" : "no");
  if (jobs || to->gpus != from->gpus) add_number(text, size, "gpus", to->gpus);
  if (to->nodes != from->nodes) add_number(text, size, "nodes", to->nodes);
  if (to->tp != from->tp) add_number(text, size, "tp", to->tp);
  if (to->micro_batch != from->micro_batch) add_number(text, size, "micro-batch", to->micro_batch);
  if (to->grad_accum != from->grad_accum) add_number(text, size, "grad-accum", to->grad_accum);
  if (to->loss_chunks != from->loss_chunks) add_number(text, size, "loss-chunks", to->loss_chunks);
  if (a->overlap != overlap) add_text(text, size, "overlap", hk_overlap_names[a->overlap]);
}

const char *hk_alternative_text(const hk_alternative *a, char *buffer, size_t size) {
  char batch[64] = "", tokens[32], gain[48] = "";
  const bool jobs = strncmp(a->options, "--jobs ", 7) == 0;
  const bool codes = a->state == HK_OPTIMIZER_8BIT || a->state == HK_OPTIMIZER_8BIT_SPLIT;
  const char *rounded = !a->rounds ? ""
                        : codes    ? ", momentum and variance rounded to 8 bits"
                                   : ", momentum and variance rounded to bf16";
  if (a->batch != 1) snprintf(batch, sizeof batch, " (%.3g x the batch)", a->batch);
  if (a->gain > 0) snprintf(gain, sizeof gain, ", %.2f x as fast or more", a->gain);
  snprintf(buffer, size, "%s%s%s: %s%s tokens/s%s%s (%s)", a->options, batch,
           jobs ? ", the most that fit" : "", a->closed_form ? "about " : "",
           hk_format_count((int64_t)a->tokens_per_s, tokens, sizeof tokens), gain, rounded,
           a->schedule);
  return buffer;
}
