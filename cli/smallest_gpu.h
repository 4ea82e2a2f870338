/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The smallest GPU of share/parts with enough memory. */
#ifndef HK_CLI_SMALLEST_GPU_H
#define HK_CLI_SMALLEST_GPU_H

#include "calib/parts/parts.h"
#include "core/base/units.h"

typedef struct {
  double gib;     /* as vendors name it; 0: no GPU has enough */
  char names[80]; /* "rtx-4090, a10g, ...": up to three GPUs of that size in the order of the table
                   */
} hk_smallest_gpu;

/* Among GPUs with bf16. What a framework can use of a GPU is what ECC leaves of it, 0.985 of that
 * (share/parts/transfer.json: CUDA's context), less the default of gpu.reserved_bytes. */
hk_status hk_smallest_gpu_find(const hk_parts *parts, hk_bytes peak, hk_smallest_gpu *smallest,
                               hk_error *err);

/* "24 GB (rtx-4090, a10g, ...)", "none". Returns `buffer`. */
const char *hk_smallest_gpu_text(const hk_smallest_gpu *smallest, char *buffer, size_t size);

#endif
