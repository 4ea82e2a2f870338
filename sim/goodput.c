/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/goodput.h"

#include <math.h>

#include "core/graph/bytes.h"

#define MOST_LOST 0.5

hk_status hk_goodput_make(const hk_model *model, const hk_machine *machine, const hk_job *job,
                          hk_optimizer optimizer, double node_mtbf_s, double other_s,
                          hk_goodput *out, hk_error *err) {
  *out = (hk_goodput){0};
  if (node_mtbf_s <= 0) return HK_OK;
  const double n = (double)model->parameters, nodes = job->nodes;
  const double weights = hk_optimizer_info_of(optimizer)->master ? 0 : HK_BYTES_BF16 * n;
  hk_goodput g = {.mtbf_s = node_mtbf_s / nodes,
                  .bytes = (double)hk_state_bytes(optimizer, model->parameters) + weights};
  const double of_node = g.bytes / nodes * hk_job_jobs(job);
  g.write_s = of_node / machine->nvme_write.value;
  g.restart_s = of_node / machine->nvme_read.value + other_s;
  g.interval_s = sqrt(2 * g.write_s * g.mtbf_s);
  g.lost = g.write_s / g.interval_s + (g.interval_s / 2 + g.restart_s) / g.mtbf_s;
  *out = g;
  if (g.lost <= MOST_LOST) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "failures leave less than half of the time: one every %.3g s of %d nodes, where a "
                 "checkpoint takes %.3g s and a restart %.3g s; give a longer --mtbf, or faster "
                 "storage (nvme.write_bytes_per_s)",
                 g.mtbf_s, job->nodes, g.write_s, g.restart_s);
}
