/* SPDX-License-Identifier: Apache-2.0 */
/* Between backend_cuda.cu, which owns devices and streams, and kernels_cuda.cu. */
#ifndef HK_ENGINE_KERNELS_CUDA_H
#define HK_ENGINE_KERNELS_CUDA_H

#include <cuda_runtime.h>

#include "engine/backend.h"

/* Those that are hocket's own: all before MATMUL, which is cuBLAS's (matmul_cuda.h). */
#define HK_KERNEL_KINDS HK_KERNEL_MATMUL

/* How many blocks of each kernel the device holds at once. */
typedef struct {
  int resident[HK_KERNEL_KINDS][HK_GRAD_TYPES];
} hk_cuda_grids;

/* Loads every kernel onto the current device, so that no launch has to. */
cudaError_t hk_cuda_kernels_load(int device, hk_cuda_grids *grids);

/* Checks what kernels cannot: HK_INPUT says what `kernel` asks wrongly. Otherwise queues it, and
 * `code` is what the launch returned. */
hk_status hk_cuda_kernels_launch(cudaStream_t stream, const hk_cuda_grids *grids,
                                 const hk_kernel *kernel, cudaError_t *code, hk_error *err);

/* GATHER's and SCATTER's part of that, in segments_cuda.cu; `resident` as in hk_cuda_grids, and
 * what `kernel` asks has been checked. */
const void *hk_cuda_segments_function(hk_kernel_kind kind);
int hk_cuda_segments_threads(hk_kernel_kind kind);
cudaError_t hk_cuda_segments_launch(const hk_kernel *kernel, int64_t resident, cudaStream_t stream);

#endif
