/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stand is what probes run on: opened devices, host and device memory, thread teams and
 * streams. It can verify results: copies move a pattern that is compared at the target, and samples
 * of the kernels' results are compared with a reference. */
#ifndef HK_CALIB_STAND_STAND_H
#define HK_CALIB_STAND_STAND_H

#include <signal.h>

#include "calib/probes/probe.h"
#include "engine/device/backend.h"
#include "engine/device/team.h"

typedef struct hk_stand hk_stand;

typedef struct {
  const hk_backend_ops *ops;
  int first_device, gpus; /* gpus 0: all, at most 8; with the host backend 1 */
  int cores;              /* most threads of a team; 0: the cores that this process may use */
  hk_bytes host_bytes; /* 0: 32 GiB, more if the last-level cache is large, at most a quarter of the
                          available memory. Bandwidth differs between pages, so that little memory
                          is not representative */
  double fill_s; /* if host_bytes is 0: longest time to pin and fill host memory; less is taken if a
                    trial with a small part predicts a longer time. 0: no limit */
  hk_bytes device_bytes; /* of each GPU; 0: 4 GiB, at most a quarter of its free memory */
  const volatile sig_atomic_t *stop; /* once it is not 0, opening ends early; NULL: never */
  hk_backend_options host;           /* for the host backend */
} hk_stand_options;

/* HK_ENVIRONMENT: no CUDA device, or too little memory. HK_NO: stopped. */
hk_status hk_stand_open(const hk_stand_options *options, hk_stand **stand, hk_error *err);
void hk_stand_close(hk_stand *stand);

/* GPUs, cores, memory and features of the stand, from which hk_probes_list makes its list. */
void hk_stand_scope(const hk_stand *stand, hk_probe_scope *scope);
hk_backend *hk_stand_backend(hk_stand *stand, int gpu);
/* Requests that the system refused (huge pages, pinned threads) and other remarks; "" for none. */
const char *hk_stand_note(const hk_stand *stand);

/* Runs a probe once. Each load gets work for about `wish` nanoseconds beside the others, by the
 * rates of the probe's earlier runs; the first run is its warm-up and may be much shorter or
 * longer. values[i]: value of load i, in its unit. `verify` also checks the data, outside the
 * measured time. HK_INPUT: the probe cannot run here. HK_NO: data was wrong (the message says
 * which), or the loads did not run at the same time. HK_ENVIRONMENT: a device failed. */
hk_status hk_stand_run(hk_stand *stand, const hk_probe *probe, hk_ns wish, bool verify,
                       double *values, hk_error *err);

#endif
