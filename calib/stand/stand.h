/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stand: opened devices, host and device memory, teams and streams on which probes run. What
 * probes move is checked: copies bring pattern bytes that are compared, kernels leave values that
 * are compared with the reference on a sample. */
#ifndef HK_CALIB_STAND_STAND_H
#define HK_CALIB_STAND_STAND_H

#include "calib/probes/probe.h"
#include "engine/backend.h"
#include "engine/team.h"

typedef struct hk_stand hk_stand;

typedef struct {
  const hk_backend_ops *ops;
  int first_device, gpus;  /* gpus 0: all that there are */
  int cores;               /* most threads of a team; 0: the cores that this process may use */
  hk_bytes host_bytes;     /* 0: 32 GiB, more where caches are large; at most a quarter of what is
                              available. Memory need not be all alike: a little says little */
  double fill_s;           /* take less host memory where pinning and filling it would take longer
                              than this, by a trial of a small part; 0: whatever it takes */
  hk_bytes device_bytes;   /* of each GPU; 0: 4 GiB, at most a quarter */
  const char *disk;        /* a folder; NULL: no disk probes */
  hk_backend_options host; /* for the host backend */
} hk_stand_options;

/* HK_ENVIRONMENT: "no CUDA device", too little memory. */
hk_status hk_stand_open(const hk_stand_options *options, hk_stand **stand, hk_error *err);
void hk_stand_close(hk_stand *stand);

/* What there is to probe here. */
void hk_stand_scope(const hk_stand *stand, hk_probe_scope *scope);
hk_backend *hk_stand_backend(hk_stand *stand, int gpu);
/* What was asked for and not had (huge pages, pinned threads), "" for nothing. */
const char *hk_stand_note(const hk_stand *stand);

/* The host memory between which copies and loops over memory go, `bytes` each, the stand's own. */
void hk_stand_arrays_of(const hk_stand *stand, void **in, void **out, hk_bytes *bytes);

/* Runs a probe once, long enough that each load works for about `wish` nanoseconds beside the
 * others, loops over host memory for a whole pass at least (it learns how much that is from the
 * runs before; the first run of a probe is its warm-up and may be much shorter or longer).
 * values[i]: of load i, in its unit. `verify` also checks what was moved, outside the time
 * measured. HK_NO with what was wrong if data came out wrong; HK_ENVIRONMENT if a device failed. */
hk_status hk_stand_run(hk_stand *stand, const hk_probe *probe, hk_ns wish, bool verify,
                       double *values, hk_error *err);

#endif
