/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What failures and checkpoints take of a run's time. Nodes fail by themselves, each at random with
 * a mean time M_n between failures, so a job of N nodes fails every M = M_n / N. A checkpoint holds
 * the optimizer state of the trained parameters and, where the state has no master weight, the
 * weights. Training waits while each node writes its part, w seconds; after a failure the last
 * checkpoint is read, and R passes in all. To first order
 *
 *   interval  tau = sqrt(2 w M)                       (Young, CACM 17(9), 1974)
 *   lost      w / tau + (tau / 2 + R) / M             (Daly, FGCS 22(3), 2006)
 *
 * of the time. Where that is more than a half, the order does not do, and hk_goodput_make refuses.
 *
 * Example: 7.2 G parameters in fp32, 86.4 GB, on 8 nodes that write 2 GB/s each: w = 5.4 s. With
 * M_n = 6000 hours M is 2,700,000 s and tau 5400 s: 0.1 % for writing and 0.1 % for work that is
 * done again. */
#ifndef HK_SIM_GOODPUT_H
#define HK_SIM_GOODPUT_H

#include "core/graph/optimizer.h"
#include "core/graph/plan.h"
#include "core/machine/machine.h"

typedef struct {
  double mtbf_s;  /* of the job; 0: failures are not counted */
  double bytes;   /* of a checkpoint, of all nodes */
  double write_s; /* by all nodes at once, at nvme.write_bytes_per_s */
  double interval_s;
  double restart_s; /* reading the checkpoint at nvme.read_bytes_per_s, and what else is given */
  double lost;      /* share of the time */
} hk_goodput;

/* `node_mtbf_s`: 0 for no failures. `other_s`: of a restart without reading. */
hk_status hk_goodput_make(const hk_model *model, const hk_machine *machine, const hk_job *job,
                          hk_optimizer optimizer, double node_mtbf_s, double other_s,
                          hk_goodput *out, hk_error *err);

#endif
