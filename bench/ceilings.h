/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The machine's limits, measured in the same run as the engine: bandwidth of host memory under
 * AdamW's mix of reads and writes, of copies over PCIe, and of both at once. */
#ifndef HK_BENCH_CEILINGS_H
#define HK_BENCH_CEILINGS_H

#include "engine/device/backend.h"
#include "engine/device/team.h"

typedef struct {
  double rate;        /* bytes a second */
  double least, most; /* of the rounds */
} ceiling;

/* Arrays of the measurements: pinned host memory and device memory. */
typedef struct ceilings ceilings;
hk_status ceilings_open(hk_backend *backend, hk_bytes host, hk_bytes device, int most_threads,
                        ceilings **out, hk_error *err);
void ceilings_close(ceilings *c);

/* Bandwidth of host memory under AdamW's traffic with almost no arithmetic: three fp32 streams in
 * place, 2 bytes read, 2 bytes written with streaming stores: 28 bytes a parameter. */
ceiling ceilings_dram(ceilings *c, int threads, int rounds);
/* Copies of `chunk` bytes one after the other; both directions: the sum, in the window in which
 * both run. */
hk_status ceilings_copies(ceilings *c, bool in, bool out, hk_bytes chunk, int rounds, ceiling *rate,
                          hk_error *err);
/* The first while copies go both ways: traffic of host memory in the common window, by the team and
 * by the copies. */
typedef struct {
  int threads;
  ceiling cpu, in, out, all;
} mixed_ceiling;
hk_status ceilings_mixed(ceilings *c, int threads, hk_bytes chunk, int rounds,
                         mixed_ceiling *ceilings_at, hk_error *err);
/* All traffic of an update without dependencies: the team moves AdamW's bytes for `cpu_share` of
 * the parameters; copies move the others' fp32 state, 12 bytes in and 12 out a parameter, and the
 * team's weights, 2 bytes in. rates[rounds]: parameters a second, from the team's start to the end
 * of the last of the three. */
hk_status ceilings_unhindered(ceilings *c, int threads, double cpu_share, hk_bytes chunk,
                              int rounds, double *rates, hk_error *err);

#endif
