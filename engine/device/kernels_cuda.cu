/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA kernels, all limited by memory bandwidth. A grid has as many blocks as the device runs at
 * once; its threads process quads of four elements, neighbouring threads neighbouring quads.
 * Arithmetic uses intrinsics that the compiler does not contract, so that results have the bits of
 * adamw.h. The AdamW kernels are in adamw_cuda.cu. */
#include "engine/device/kernels_cuda.h"
#include "engine/device/quads_cuda.h"

enum {
  THREADS = 256,
  PULLS = 4,          /* 16-byte words that a thread has in flight */
  CASTS = 4,          /* quads that a thread has in flight */
  SQUARES_UNROLL = 2, /* groups of 8 values that a thread has in flight */
};

/* ---- Casts ---------------------------------------------------------------------------------- */

typedef struct {
  const void *grad;
  float *out;
  int64_t n;
  bool wide;
} cast_job;

template <hk_grad_type type>
static __device__ __forceinline__ void store_cast(const cast_job &job, int64_t i,
                                                  const uint32_t raw[QUAD]) {
  float x[QUAD];
  widen<type>(raw, x);
#pragma unroll
  for (int j = 0; j < QUAD; j++) x[j] = canonical(x[j]);
  if (job.wide && i + QUAD <= job.n) {
    store_quad(job.out + i, x);
  } else {
#pragma unroll
    for (int j = 0; j < QUAD; j++) {
      if (i + j < job.n) job.out[i + j] = x[j];
    }
  }
}

template <hk_grad_type type>
static __global__ void __launch_bounds__(THREADS) cast_up(const __grid_constant__ cast_job job) {
  const int64_t step = (int64_t)THREADS * QUAD;
  int64_t i = (int64_t)blockIdx.x * step * CASTS + threadIdx.x * QUAD;
  for (; i < job.n; i += (int64_t)gridDim.x * step * CASTS) {
    uint32_t raw[CASTS][QUAD];
#pragma unroll
    for (int k = 0; k < CASTS; k++) {
      const int high = (int)max((int64_t)0, min((int64_t)QUAD, job.n - i - k * step));
      fetch<type>(job.grad, i + k * step, 0, high, job.wide, raw[k]);
    }
#pragma unroll
    for (int k = 0; k < CASTS; k++) store_cast<type>(job, i + k * step, raw[k]);
  }
}

/* ---- Squares -------------------------------------------------------------------------------- */

typedef struct {
  const uint16_t *grad;
  int64_t n;
  uint64_t *bins;
  bool wide;
} squares_job;

/* Values i .. i + 7; values from n on are 0. */
static __device__ __forceinline__ uint4 load_eight(const squares_job &job, int64_t i) {
  if (job.wide && i + 8 <= job.n) return __ldcs((const uint4 *)(job.grad + i));
  uint32_t pairs[4];
  for (int k = 0; k < 4; k++) {
    const int64_t at = i + 2 * k;
    const uint32_t low = at < job.n ? job.grad[at] : 0;
    const uint32_t high = at + 1 < job.n ? job.grad[at + 1] : 0;
    pairs[k] = low | high << 16;
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

template <hk_grad_type type>
static __device__ __forceinline__ uint32_t add_eight(uint64_t (*bins)[SQUARES_THREADS],
                                                     uint4 values) {
  const uint32_t pairs[4] = {values.x, values.y, values.z, values.w};
  uint32_t nonfinite = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    nonfinite += add_square<type>(bins, pairs[k] & 0xffffu);
    nonfinite += add_square<type>(bins, pairs[k] >> 16);
  }
  return nonfinite;
}

template <hk_grad_type type>
static __global__ void __launch_bounds__(SQUARES_THREADS)
    squares(const __grid_constant__ squares_job job) {
  __shared__ uint64_t bins[layout<type>::bins][SQUARES_THREADS];
  for (int b = 0; b < layout<type>::bins; b++) bins[b][threadIdx.x] = 0;

  const int64_t step = (int64_t)SQUARES_THREADS * 8;
  int64_t i = (int64_t)blockIdx.x * step * SQUARES_UNROLL + threadIdx.x * 8;
  uint32_t nonfinite = 0;
  for (; i < job.n; i += (int64_t)gridDim.x * step * SQUARES_UNROLL) {
    uint4 values[SQUARES_UNROLL];
#pragma unroll
    for (int k = 0; k < SQUARES_UNROLL; k++) values[k] = load_eight(job, i + k * step);
#pragma unroll
    for (int k = 0; k < SQUARES_UNROLL; k++) nonfinite += add_eight<type>(bins, values[k]);
  }

  __syncthreads();
  add_columns<type>(bins, job.bins);
  add_to_total(&job.bins[HK_SQUARES_BINS], nonfinite);
}

/* ---- Pull ----------------------------------------------------------------------------------- */

typedef struct {
  const uint16_t *from;
  uint16_t *to;
  int64_t n;
  int64_t head; /* elements before the first 16-byte word of `from` */
  bool wide;    /* words of `to` are aligned, too */
} pull_job;

/* Stores eight weights, by single stores if they are not aligned to words: `to` is device memory,
 * whose cache merges them. (Single reads over PCIe would take eight times as long.) */
static __device__ __forceinline__ void store_eight(uint16_t *to, uint4 word, bool wide) {
  if (wide) {
    __stcs((uint4 *)to, word);
    return;
  }
  const uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    to[2 * j] = (uint16_t)pairs[j];
    to[2 * j + 1] = (uint16_t)(pairs[j] >> 16);
  }
}

static __global__ void __launch_bounds__(THREADS) pull(const __grid_constant__ pull_job job) {
  const int64_t threads = (int64_t)gridDim.x * THREADS;
  const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  const int64_t words = (job.n - job.head) / 8;
  const uint4 *from = (const uint4 *)(job.from + job.head);
  uint16_t *to = job.to + job.head;
  for (int64_t i = thread; i < words; i += threads * PULLS) {
    uint4 word[PULLS];
#pragma unroll
    for (int k = 0; k < PULLS; k++) {
      if (i + k * threads < words) word[k] = __ldcs(from + i + k * threads);
    }
#pragma unroll
    for (int k = 0; k < PULLS; k++) {
      if (i + k * threads < words) store_eight(to + 8 * (i + k * threads), word[k], job.wide);
    }
  }
  if (thread < job.head) job.to[thread] = job.from[thread];
  const int64_t last = job.head + 8 * words + thread;
  if (last < job.n) job.to[last] = job.from[last];
}

/* ---- Sign ----------------------------------------------------------------------------------- */

typedef struct {
  const int64_t *from;
  int64_t *to;
} sign_job;

static __global__ void __launch_bounds__(THREADS) sign(const __grid_constant__ sign_job job) {
  if (threadIdx.x > 0) return;
  __threadfence_system(); /* so that all observers see earlier kernels' writes first */
  *(volatile int64_t *)job.to = *job.from;
}

/* ---- Launches ------------------------------------------------------------------------------- */

static const void *const functions[HK_KERNEL_KINDS][HK_GRAD_TYPES] = {
    {NULL, NULL, NULL}, /* AdamW: hk_cuda_adamw_function */
    {(const void *)cast_up<HK_GRAD_BF16>, (const void *)cast_up<HK_GRAD_FP16>, NULL},
    {(const void *)squares<HK_GRAD_BF16>, (const void *)squares<HK_GRAD_FP16>, NULL},
    {(const void *)pull, (const void *)pull, NULL},
    {(const void *)sign, NULL, NULL},
};

static bool is_of_segments(hk_kernel_kind kind) {
  return kind == HK_KERNEL_GATHER || kind == HK_KERNEL_SCATTER;
}

/* `format`: of AdamW's state. */
static const void *function_of(hk_kernel_kind kind, hk_grad_type type, hk_format format) {
  if (kind == HK_KERNEL_ADAMW) return hk_cuda_adamw_function(type, format);
  return is_of_segments(kind) ? hk_cuda_segments_function(kind) : functions[kind][type];
}

static int threads_of(hk_kernel_kind kind) {
  if (is_of_segments(kind)) return hk_cuda_segments_threads(kind);
  return kind == HK_KERNEL_SQUARES ? (int)SQUARES_THREADS : (int)THREADS;
}

/* Loads a kernel; *resident: the number of its blocks that the device runs at once. */
static cudaError_t load(const void *function, int threads, int multiprocessors, int *resident) {
  if (function == NULL) return cudaSuccess;
  cudaFuncAttributes attributes;
  cudaError_t code = cudaFuncGetAttributes(&attributes, function); /* this call loads the kernel */
  int blocks = 0;
  if (code == cudaSuccess)
    code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, 0);
  *resident = blocks * multiprocessors;
  return code;
}

cudaError_t hk_cuda_kernels_load(int device, hk_cuda_grids *grids) {
  int multiprocessors = 0;
  cudaError_t code =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  for (int kind = 0; kind < HK_KERNEL_KINDS; kind++) {
    for (int type = 0; type < HK_GRAD_TYPES; type++) {
      for (int format = 0; format < (kind == HK_KERNEL_ADAMW ? HK_FORMATS : 1); format++) {
        if (code != cudaSuccess) return code;
        code = load(
            function_of((hk_kernel_kind)kind, (hk_grad_type)type, (hk_format)format),
            threads_of((hk_kernel_kind)kind), multiprocessors,
            kind == HK_KERNEL_ADAMW ? &grids->adamw[format][type] : &grids->resident[kind][type]);
      }
    }
  }
  return code;
}

/* Number of blocks for `pieces` pieces of work, of which a block does one at a time. */
static int64_t blocks_for(int64_t pieces, int64_t most) {
  return pieces < most ? pieces : most;
}

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static bool aligned(const void *pointer, size_t bytes) {
  return (uintptr_t)pointer % bytes == 0;
}

typedef struct {
  const hk_kernel *kernel;
  int64_t resident; /* blocks */
  const void *function;
  cudaStream_t stream;
} launch;

static cudaError_t start(const launch *l, int64_t blocks, void *job) {
  void *arguments[] = {job};
  return cudaLaunchKernel(l->function, dim3((unsigned)blocks),
                          dim3((unsigned)threads_of(l->kernel->kind)), arguments, 0, l->stream);
}

static cudaError_t launch_pull(const launch *l) {
  const hk_kernel *k = l->kernel;
  pull_job job = {};
  job.from = (const uint16_t *)k->grad, job.to = k->w, job.n = k->n;
  const int64_t before = (int64_t)(-(uintptr_t)k->grad % 16 / 2);
  job.head = before < k->n ? before : k->n;
  job.wide = aligned(job.to + job.head, 16);
  const int64_t blocks = ceil_div(k->n, (int64_t)THREADS * PULLS * 8);
  return start(l, blocks_for(blocks, blocks_for(PULL_BLOCKS, l->resident)), &job);
}

static cudaError_t launch_sign(const launch *l) {
  sign_job job = {};
  job.from = (const int64_t *)l->kernel->from, job.to = (int64_t *)l->kernel->to;
  return start(l, 1, &job);
}

static cudaError_t launch_cast_up(const launch *l) {
  const hk_kernel *k = l->kernel;
  cast_job job = {};
  job.grad = k->grad, job.out = k->out, job.n = k->n;
  job.wide = aligned(k->grad, QUAD * hk_grad_size(k->type)) && aligned(k->out, QUAD * 4);
  return start(l, blocks_for(ceil_div(k->n, THREADS * QUAD * CASTS), l->resident), &job);
}

static cudaError_t launch_squares(const launch *l) {
  const hk_kernel *k = l->kernel;
  squares_job job = {};
  job.grad = (const uint16_t *)k->grad, job.n = k->n, job.bins = k->bins;
  job.wide = aligned(k->grad, 16);
  const int64_t piece = SQUARES_THREADS * 8 * SQUARES_UNROLL;
  return start(l, blocks_for(ceil_div(k->n, piece), l->resident), &job);
}

static bool odd_elements(const hk_kernel *k) {
  return !aligned(k->grad, hk_grad_size(k->type)) || !aligned(k->w, sizeof *k->w) ||
         !aligned(k->out, sizeof *k->out) || !aligned(k->bins, sizeof *k->bins) ||
         (k->kind == HK_KERNEL_SIGN && !(aligned(k->from, 8) && aligned(k->to, 8)));
}

static hk_status check_kernel(const hk_kernel *k, hk_error *err) {
  if ((unsigned)k->kind >= HK_KERNEL_KINDS || (unsigned)k->type >= HK_GRAD_TYPES ||
      (unsigned)k->shape.format >= HK_FORMATS ||
      function_of(k->kind, k->type, k->shape.format) == NULL) {
    return hk_fail(err, HK_INPUT, "there is no kernel of kind %d for gradients of type %d",
                   (int)k->kind, (int)k->type);
  }
  if (is_of_segments(k->kind)) return hk_segments_check(k, err);
  if (k->kind == HK_KERNEL_SQUARES && k->n > HK_SQUARES_MOST) {
    return hk_fail(err, HK_INPUT, "squares of %lld gradients at once: bins take at most %lld",
                   (long long)k->n, (long long)HK_SQUARES_MOST);
  }
  if (k->kind == HK_KERNEL_SIGN && k->n > 1) {
    return hk_fail(err, HK_INPUT, "a kernel on %lld signs: it writes at most 1", (long long)k->n);
  }
  if (odd_elements(k)) {
    return hk_fail(err, HK_INPUT,
                   "the address of a kernel's array is not a multiple of its elements' size");
  }
  return k->kind == HK_KERNEL_ADAMW ? hk_cuda_adamw_check(k, err) : HK_OK;
}

hk_status hk_cuda_kernels_launch(cudaStream_t stream, const hk_cuda_grids *grids,
                                 const hk_kernel *kernel, cudaError_t *code, hk_error *err) {
  *code = cudaSuccess;
  HK_TRY(check_kernel(kernel, err));
  if (kernel->n <= 0) return HK_OK;
  const hk_format format = kernel->shape.format;
  const int resident = kernel->kind == HK_KERNEL_ADAMW
                           ? grids->adamw[format][kernel->type]
                           : grids->resident[kernel->kind][kernel->type];
  const launch l = {kernel, resident, function_of(kernel->kind, kernel->type, format), stream};
  switch (kernel->kind) {
    case HK_KERNEL_ADAMW:
      *code = hk_cuda_adamw_launch(kernel, resident, stream);
      break;
    case HK_KERNEL_CAST_UP:
      *code = launch_cast_up(&l);
      break;
    case HK_KERNEL_SQUARES:
      *code = launch_squares(&l);
      break;
    case HK_KERNEL_PULL:
      *code = launch_pull(&l);
      break;
    case HK_KERNEL_SIGN:
      *code = launch_sign(&l);
      break;
    case HK_KERNEL_GATHER:
    case HK_KERNEL_SCATTER:
      *code = hk_cuda_segments_launch(kernel, l.resident, stream);
      break;
    case HK_KERNEL_MATMUL:
      break; /* refused by check_kernel before */
  }
  return HK_OK;
}
