/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/jobs.h"

#include <stdio.h>

#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/screen.h"

hk_status hk_jobs_alone(const hk_forecast *forecast, const hk_machine *machine, hk_ns *alone,
                        hk_error *err) {
  hk_plan plan = {0};
  hk_forecast f = {0};
  *alone = 0;
  if (hk_job_jobs(&forecast->plan.job) == 1 || !forecast->feasible) return HK_OK;
  HK_TRY(hk_plan_copy(&forecast->plan, &plan, err));
  plan.job.jobs = 1;
  const hk_status status = hk_forecast_make(&plan, machine, NULL, &f, err);
  if (status == HK_OK) *alone = f.iteration_ns;
  hk_forecast_free(&f);
  hk_plan_free(&plan);
  return status;
}

const char *hk_jobs_each(const hk_job *job, char *buffer, size_t size) {
  buffer[0] = '\0';
  if (hk_job_jobs(job) > 1) snprintf(buffer, size, "each of %d jobs: ", job->jobs);
  return buffer;
}

void hk_jobs_print(const hk_forecast *forecast, hk_ns alone) {
  const hk_memory_report *memory = &forecast->result.memory;
  const hk_job *job = &forecast->plan.job;
  char times[200] = "";
  if (hk_job_jobs(job) == 1) return;
  if (alone > 0)
    snprintf(times, sizeof times,
             "%.1f ms/iteration, of which the others take %.1f (%.1f with the others idle); all: "
             "%.0f tokens/s, ",
             hk_ms(forecast->iteration_ns), hk_ms(forecast->iteration_ns - alone), hk_ms(alone),
             job->jobs * forecast->tokens_per_s);
  hk_print_text(0, 2,
                "%d equal jobs of %d GPU%s at once on each node, in step: %shost memory %.1f of "
                "%.1f GiB",
                job->jobs, job->gpus, job->gpus == 1 ? "" : "s", times, hk_gib(memory->host_peak),
                hk_gib(memory->host_capacity));
}

void hk_jobs_json(const hk_forecast *forecast, hk_ns alone, cJSON *root, bool *ok) {
  const hk_job *job = &forecast->plan.job;
  if (hk_job_jobs(job) == 1) return;
  cJSON *object = hk_put_object(root, "jobs", ok);
  hk_put_number(object, "count", job->jobs, ok);
  hk_put_number(object, "gpus", job->gpus, ok);
  if (alone == 0) return;
  hk_put_number(object, "iteration_ms", hk_ms(forecast->iteration_ns), ok);
  hk_put_number(object, "others_idle_ms", hk_ms(alone), ok);
  hk_put_number(object, "tokens_per_s", job->jobs * forecast->tokens_per_s, ok);
}
