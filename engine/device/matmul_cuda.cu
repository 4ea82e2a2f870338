/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS, loaded by name at run time. Each stream has its own handle and workspace, because two
 * products must not use one workspace at the same time, and a handle loses its workspace when its
 * stream changes. */
#include "engine/device/matmul_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>

enum { WORKSPACE = 32 << 20 }; /* size that NVIDIA recommends for Hopper; other devices need less */

/* ---- The library ---------------------------------------------------------------------------- */

typedef struct {
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetWorkspace_v2) set_workspace;
  decltype(&cublasSetMathMode) set_math_mode;
  decltype(&cublasGetStatusString) words;
  /* Written out, because in C++ the function has two overloads. */
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                         const void *alpha, const void *a, cudaDataType_t, int, const void *b,
                         cudaDataType_t, int, const void *beta, void *c, cudaDataType_t, int,
                         cublasComputeType_t, cublasGemmAlgo_t);
} cublas_library;

static cublas_library cublas; /* functions of the library, all NULL without it; never unloaded */
static pthread_once_t cublas_once = PTHREAD_ONCE_INIT;

/* Finds a function of the library; false, and *to NULL: it has none of this name. */
template <typename function>
static bool find(void *library, const char *name, function *to) {
  *to = (function)dlsym(library, name);
  return *to != NULL;
}

static bool find_all(void *library, cublas_library *to) {
  return find(library, "cublasCreate_v2", &to->create) &&
         find(library, "cublasDestroy_v2", &to->destroy) &&
         find(library, "cublasSetStream_v2", &to->set_stream) &&
         find(library, "cublasSetWorkspace_v2", &to->set_workspace) &&
         find(library, "cublasSetMathMode", &to->set_math_mode) &&
         find(library, "cublasGetStatusString", &to->words) &&
         find(library, "cublasGemmEx", &to->gemm);
}

static void load_cublas(void) {
  static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                      "libcublas.so"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) continue;
    cublas_library found = {};
    if (find_all(library, &found)) {
      cublas = found;
      return;
    }
    dlclose(library);
  }
}

/* HK_OK, or HK_ENVIRONMENT with "CALL: cuBLAS's words". */
static hk_status check(cublasStatus_t code, hk_error *err, const char *call) {
  if (code == CUBLAS_STATUS_SUCCESS) return HK_OK;
  cudaGetLastError(); /* clears an error that is not sticky, so that it does not appear in a later
                         call */
  return hk_fail(err, HK_ENVIRONMENT, "%s: %s", call, cublas.words(code));
}

/* ---- A stream's ----------------------------------------------------------------------------- */

struct hk_cuda_matmul {
  cublasHandle_t handle;
  void *workspace;
};

void hk_cuda_matmul_close(hk_cuda_matmul *m) {
  if (m == NULL) return;
  if (m->handle != NULL) cublas.destroy(m->handle);
  cudaFree(m->workspace);
  free(m);
}

static hk_status prepare(hk_cuda_matmul *m, cudaStream_t stream, hk_error *err) {
  HK_TRY(check(cublas.create(&m->handle), err, "cublasCreate"));
  if (cudaMalloc(&m->workspace, WORKSPACE) != cudaSuccess) {
    cudaGetLastError();
    return hk_fail(err, HK_ENVIRONMENT, "out of device memory: %d MiB wanted for cuBLAS",
                   WORKSPACE >> 20);
  }
  HK_TRY(check(cublas.set_stream(m->handle, stream), err, "cublasSetStream"));
  HK_TRY(
      check(cublas.set_workspace(m->handle, m->workspace, WORKSPACE), err, "cublasSetWorkspace"));
  /* Otherwise partial sums may be added in bf16. */
  return check(cublas.set_math_mode(m->handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
               err, "cublasSetMathMode");
}

hk_status hk_cuda_matmul_open(cudaStream_t stream, hk_cuda_matmul **out, hk_error *err) {
  *out = NULL;
  pthread_once(&cublas_once, load_cublas);
  if (cublas.create == NULL) {
    return hk_fail(err, HK_INPUT,
                   "no cuBLAS (libcublas.so.13) was found: matrix products cannot be measured");
  }
  hk_cuda_matmul *m = (hk_cuda_matmul *)calloc(1, sizeof *m);
  if (m == NULL) return hk_fail_memory(err, sizeof *m, "matrix products");
  const hk_status status = prepare(m, stream, err);
  if (status == HK_OK) {
    *out = m;
  } else {
    hk_cuda_matmul_close(m);
  }
  return status;
}

hk_status hk_cuda_matmul_queue(hk_cuda_matmul *m, const hk_kernel *k, hk_error *err) {
  HK_TRY(hk_matmul_check_sizes(k, err));
  if (k->a == NULL || k->b == NULL || k->w == NULL ||
      ((uintptr_t)k->a | (uintptr_t)k->b | (uintptr_t)k->w) % sizeof *k->w != 0) {
    return hk_fail(err, HK_INPUT,
                   "a matrix product of %p and %p to %p: expected three aligned arrays of bf16",
                   (const void *)k->a, (const void *)k->b, (void *)k->w);
  }
  /* cuBLAS is column-major: it sees the transposes of all three matrices, and w' = b' a'. */
  const float one = 1, zero = 0;
  const int rows = (int)k->rows, columns = (int)k->columns, depth = (int)k->depth;
  return check(cublas.gemm(m->handle, CUBLAS_OP_N, CUBLAS_OP_N, columns, rows, depth, &one, k->b,
                           CUDA_R_16BF, columns, k->a, CUDA_R_16BF, depth, &zero, k->w, CUDA_R_16BF,
                           columns, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               err, "cublasGemmEx");
}

#else

hk_status hk_cuda_matmul_open(cudaStream_t stream, hk_cuda_matmul **out, hk_error *err) {
  (void)stream;
  *out = NULL;
  return hk_fail(err, HK_INPUT,
                 "built without cuBLAS (cublas_v2.h was not found when hocket was built): matrix "
                 "products cannot be measured");
}

/* Nobody has one. */
void hk_cuda_matmul_close(hk_cuda_matmul *matmul) {
  (void)matmul;
}

hk_status hk_cuda_matmul_queue(hk_cuda_matmul *matmul, const hk_kernel *kernel, hk_error *err) {
  (void)kernel;
  return hk_cuda_matmul_open(NULL, &matmul, err);
}

#endif
