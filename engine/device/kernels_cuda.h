/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA kernels: defined in kernels_cuda.cu and segments_cuda.cu, launched by backend_cuda.cu. */
#ifndef HK_ENGINE_ADAMW_KERNELS_CUDA_H
#define HK_ENGINE_ADAMW_KERNELS_CUDA_H

#include <cuda_runtime.h>

#include "engine/device/backend.h"

/* Number of kinds that are hocket's own kernels: all before MATMUL, which uses cuBLAS
 * (matmul_cuda.h). */
#define HK_KERNEL_KINDS HK_KERNEL_MATMUL

/* Number of thread blocks of each kernel that the device can run at once. */
typedef struct {
  int resident[HK_KERNEL_KINDS][HK_GRAD_TYPES];
  int adamw[HK_FORMATS][HK_GRAD_TYPES];
} hk_cuda_grids;

/* Loads all kernels onto the current device, so that no launch has to load one. */
cudaError_t hk_cuda_kernels_load(int device, hk_cuda_grids *grids);

/* Checks the arguments (HK_INPUT) and launches the kernel; *code: result of the launch. */
hk_status hk_cuda_kernels_launch(cudaStream_t stream, const hk_cuda_grids *grids,
                                 const hk_kernel *kernel, cudaError_t *code, hk_error *err);

/* ADAMW (adamw_cuda.cu): blocks have HK_CUDA_THREADS threads; `resident` blocks run at once. */
#define HK_CUDA_THREADS 256
const void *hk_cuda_adamw_function(hk_grad_type type, hk_format format);
hk_status hk_cuda_adamw_check(const hk_kernel *kernel, hk_error *err);
cudaError_t hk_cuda_adamw_launch(const hk_kernel *kernel, int64_t resident, cudaStream_t stream);

/* GATHER and SCATTER (segments_cuda.cu). The arguments have been checked; `resident`: as in
 * hk_cuda_grids. */
const void *hk_cuda_segments_function(hk_kernel_kind kind);
int hk_cuda_segments_threads(hk_kernel_kind kind);
cudaError_t hk_cuda_segments_launch(const hk_kernel *kernel, int64_t resident, cudaStream_t stream);

#endif
