/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on a CUDA stream, by cuBLAS. The library is loaded at the first call, so that
 * hocket runs without it; only probes of calibration use it. */
#ifndef HK_ENGINE_DEVICE_MATMUL_CUDA_H
#define HK_ENGINE_DEVICE_MATMUL_CUDA_H

#include <cuda_runtime.h>

#include "engine/device/backend.h"

typedef struct hk_cuda_matmul hk_cuda_matmul;

/* Prepares a stream of the current device for products, device memory included, so that queueing
 * allocates nothing. HK_INPUT: cuBLAS is not installed. */
hk_status hk_cuda_matmul_open(cudaStream_t stream, hk_cuda_matmul **out, hk_error *err);
void hk_cuda_matmul_close(hk_cuda_matmul *matmul); /* waits for the device; NULL is allowed */
hk_status hk_cuda_matmul_queue(hk_cuda_matmul *matmul, const hk_kernel *kernel, hk_error *err);

#endif
