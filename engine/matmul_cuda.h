/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on a CUDA stream, by cuBLAS. It is looked for when the first one is asked for:
 * who trains has it anyway, and who does not need not install it. */
#ifndef HK_ENGINE_MATMUL_CUDA_H
#define HK_ENGINE_MATMUL_CUDA_H

#include <cuda_runtime.h>

#include "engine/backend.h"

typedef struct hk_cuda_matmul hk_cuda_matmul;

/* What a stream of the current device needs, device memory included: products then allocate
 * nothing. HK_INPUT where there is no cuBLAS. */
hk_status hk_cuda_matmul_open(cudaStream_t stream, hk_cuda_matmul **out, hk_error *err);
void hk_cuda_matmul_close(hk_cuda_matmul *matmul); /* waits for the device; NULL is fine */
hk_status hk_cuda_matmul_queue(hk_cuda_matmul *matmul, const hk_kernel *kernel, hk_error *err);

#endif
