/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured of a pass of a block, forward or backward, on the machine where it trains. */
#ifndef HK_CORE_MACHINE_LAUNCH_H
#define HK_CORE_MACHINE_LAUNCH_H

#include "core/base/units.h"

/* A GPU computes while the host queues kernels, and either can be the slower. All 0: nothing was
 * measured. */
typedef struct {
  hk_ns time;     /* on the GPU, when alone; 0: not measured */
  hk_ns launch;   /* the host's time to queue the kernels; 0: not known, `time` includes it */
  int32_t handed; /* backward: gradients that the host hands over one by one meanwhile */
  hk_ns sharded;  /* forward's launches of a block that FSDP2 shards, to which its hooks are in
                     proportion (framework.fsdp_launches); 0: not sharded */
  int32_t layers; /* layers whose launches take framework.layer_launch_ns each, because `launch` is
                     not known; 0 too if a launch operation has them */
} hk_pass_profile;

#endif
