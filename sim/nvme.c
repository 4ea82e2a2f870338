/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The closed form of state on NVMe. */
#include "sim/nvme.h"

#include <math.h>

#include "core/graph/bytes.h"

#define STORED  (HK_BYTES_STATE + HK_BYTES_FP32) /* 16: state and fp32 gradient */
#define BUFFERS 3 /* subgroups of a rank: one is read, one updated, one written */

hk_nvme hk_nvme_of(const hk_forecast *offload, const hk_machine *m) {
  const hk_plan *plan = &offload->plan;
  const double of_rank = (double)hk_plan_on_route(plan, HK_ROUTE_CPU),
               ranks = hk_job_ranks(&plan->job);
  const double n = of_rank * ranks;
  const double buffers = BUFFERS * STORED * fmin((double)plan->subgroup_numel, of_rank) * ranks;
  hk_nvme nvme = {.read = STORED * n, .wrote = HK_BYTES_STATE * n, .stored = STORED * n};
  nvme.host = offload->result.memory.host_peak - (hk_bytes)(STORED * n) + (hk_bytes)buffers;
  nvme.fits = offload->gpu_short == 0 && nvme.host <= offload->result.memory.host_capacity;
  nvme.backward_ns =
      hk_max(offload->backward_ns, hk_ns_of(HK_BYTES_FP32 * n / m->nvme_write.value));
  nvme.update_ns = hk_max(offload->update_ns, hk_ns_of(nvme.read / m->nvme_read.value +
                                                       nvme.wrote / m->nvme_write.value));
  nvme.iteration_ns = offload->iteration_ns + (nvme.backward_ns - offload->backward_ns) +
                      (nvme.update_ns - offload->update_ns);
  return nvme;
}

hk_status hk_nvme_forecast(const hk_model *model, const hk_machine *machine, const hk_job *job,
                           const hk_plan_settings *settings, hk_forecast *offload, hk_nvme *nvme,
                           hk_error *err) {
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_DEEPSPEED};
  hk_plan_settings deepspeed = *settings;
  hk_plan plan = {0};
  deepspeed.overlap = HK_OVERLAP_NONE;
  deepspeed.accumulate = NULL;
  HK_TRY(hk_candidate_plan(&candidate, model, machine, job, &deepspeed, &plan, err));
  HK_TRY(hk_forecast_make(&plan, machine, NULL, offload, err));
  *nvme = hk_nvme_of(offload, machine);
  return HK_OK;
}
