/* SPDX-License-Identifier: GPL-3.0-or-later */
/* State on a node's NVMe drives: what DeepSpeed's ZeRO-Infinity would give for a job whose state
 * host memory cannot hold. hocket's engine does not run it, and nothing is simulated: a closed form
 * on top of the forecast of ZeRO-Offload, made as if host memory sufficed. With N parameters that
 * the node's ranks update, r and w the drives' rates alone:
 *
 *   backward = max(forecast's, 4 N / w)             fp32 gradients are written
 *   update   = max(forecast's, 16 N / r + 12 N / w) state and gradients in, state out
 *
 * Reads and writes are added although DeepSpeed runs them at once: a drive that does both shares
 * its link and its flash between them. In five published runs (tests/data/nvme-runs.csv) both
 * directions together reach 5.3 to 7.1 GB/s, what one drive reaches in one direction; by the larger
 * of the two terms the updates would be predicted 39 to 55 % too short. The drives' rates of these
 * runs are not known to us: with the defaults of a profile, which lie in their middle, updates are
 * 12 % too short to 19 % too long, iterations -9 to +21 %, and backward 17 to 57 % too long.
 * Perhaps the page cache and the update take some of its writes; the runs do not tell.
 *
 * Example: 40 G parameters, 7 and 5 GB/s: 640 GB in, 91.4 s, and 480 GB out, 96 s: 187.4 s. */
#ifndef HK_SIM_NVME_H
#define HK_SIM_NVME_H

#include "sim/rank.h"

typedef struct {
  bool fits;          /* GPU memory, and host memory without state but with the buffers */
  double read, wrote; /* bytes a node in an update */
  double stored;      /* bytes a node on the drives */
  hk_bytes host;      /* bytes a node: bf16 gradients, and three subgroups in buffers a rank */
  hk_ns backward_ns, update_ns, iteration_ns;
} hk_nvme;

/* Of a forecast of ZeRO-Offload under runtime deepspeed with AdamW in fp32. */
hk_nvme hk_nvme_of(const hk_forecast *offload, const hk_machine *machine);

/* Makes that forecast, whatever the size of host memory. HK_INPUT: no such plan. Free *offload with
 * hk_forecast_free if this succeeds. */
hk_status hk_nvme_forecast(const hk_model *model, const hk_machine *machine, const hk_job *job,
                           const hk_plan_settings *settings, hk_forecast *offload, hk_nvme *nvme,
                           hk_error *err);

#endif
