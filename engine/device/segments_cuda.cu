/* SPDX-License-Identifier: Apache-2.0 */
/* GATHER and SCATTER. A launch handles up to HK_SEGMENTS_MOST segments, which the kernel's
 * parameters describe. Segments are cut into chunks of 16-byte words, and each block gets
 * consecutive chunks, of one segment or of several. So small segments share a grid, and a block
 * adds its bins to each set once. */
#include "engine/adamw/elements_cuda.h"
#include "engine/device/kernels_cuda.h"

enum {
  GATHER_THREADS = SQUARES_THREADS,
  SCATTER_THREADS = 256,
  WORDS = 4, /* words of 16 bytes that a thread has in flight */
  GATHER_CHUNK = GATHER_THREADS * WORDS,
  SCATTER_CHUNK = SCATTER_THREADS * WORDS,
};

typedef struct {
  const char *from;
  char *to;
  uint64_t *bins;
  int64_t n;
  int64_t first; /* first chunk, counted through all segments */
  int head;      /* elements before the first aligned word of `to` (gather) or `from` (scatter) */
  unsigned char from_type, to_type;
  bool add;
  bool wide; /* the words of the other array are aligned, too */
} piece;

typedef struct {
  piece pieces[HK_SEGMENTS_MOST];
  int64_t chunks;
  int n_pieces;
} segments_job;

static_assert(sizeof(segments_job) <= 4096, "a kernel takes 4 KiB of parameters");

static __device__ __forceinline__ int find_piece(const segments_job &job, int64_t chunk) {
  int low = 0, high = job.n_pieces; /* binary search: the piece is one of low .. high - 1 */
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (job.pieces[middle].first <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

static __device__ __forceinline__ int64_t chunk_after(const segments_job &job, int s) {
  return s + 1 < job.n_pieces ? job.pieces[s + 1].first : job.chunks;
}

/* First chunk of a block's part of all chunks. */
static __device__ __forceinline__ int64_t part_begin(int64_t chunks, int64_t block) {
  return chunks / gridDim.x * block + min(block, chunks % gridDim.x);
}

/* ---- Words ---------------------------------------------------------------------------------- */

template <hk_grad_type type>
struct element {
  static constexpr int size = type == HK_GRAD_FP32 ? 4 : 2;
  static constexpr int per_word = 16 / size;
};

template <hk_grad_type type>
static __device__ __forceinline__ uint32_t load_element(const void *array, int64_t i) {
  return type == HK_GRAD_FP32 ? ((const uint32_t *)array)[i] : ((const uint16_t *)array)[i];
}

template <hk_grad_type type>
static __device__ __forceinline__ void store_element(void *array, int64_t i, uint32_t bits) {
  if (type == HK_GRAD_FP32) {
    ((uint32_t *)array)[i] = bits;
  } else {
    ((uint16_t *)array)[i] = (uint16_t)bits;
  }
}

template <hk_grad_type type>
static __device__ __forceinline__ float widen_element(uint32_t bits) {
  return type == HK_GRAD_FP32   ? __uint_as_float(bits)
         : type == HK_GRAD_BF16 ? __uint_as_float(bits << 16)
                                : __half2float(__ushort_as_half((unsigned short)bits));
}

template <hk_grad_type type>
static __device__ __forceinline__ uint32_t round_element(float x) {
  return type == HK_GRAD_FP32   ? __float_as_uint(canonical(x))
         : type == HK_GRAD_BF16 ? to_bf16(canonical(x))
                                : to_fp16(x);
}

template <hk_grad_type type>
static __device__ __forceinline__ uint32_t add_elements(uint32_t a, uint32_t b) {
  return round_element<type>(__fadd_rn(widen_element<type>(a), widen_element<type>(b)));
}

/* Loads elements from i on of an array whose words are not aligned, by single loads; the cache
 * makes them cheap. */
template <hk_grad_type type>
static __device__ __forceinline__ uint4 load_word(const void *array, int64_t i, bool wide) {
  if (wide) return __ldcs((const uint4 *)((const char *)array + i * element<type>::size));
  uint32_t part[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    part[k] = type == HK_GRAD_FP32 ? load_element<type>(array, i + k)
                                   : load_element<type>(array, i + 2 * k) |
                                         load_element<type>(array, i + 2 * k + 1) << 16;
  }
  return make_uint4(part[0], part[1], part[2], part[3]);
}

template <hk_grad_type type>
static __device__ __forceinline__ void store_word(void *array, int64_t i, uint4 word, bool wide) {
  if (wide) {
    __stcs((uint4 *)((char *)array + i * element<type>::size), word);
    return;
  }
  const uint32_t part[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (type == HK_GRAD_FP32) {
      store_element<type>(array, i + k, part[k]);
    } else {
      store_element<type>(array, i + 2 * k, part[k]);
      store_element<type>(array, i + 2 * k + 1, part[k] >> 16);
    }
  }
}

template <hk_grad_type type>
static __device__ __forceinline__ uint32_t add_part(uint32_t a, uint32_t b) {
  if (type == HK_GRAD_FP32) return add_elements<type>(a, b);
  return add_elements<type>(a & 0xffffu, b & 0xffffu) | add_elements<type>(a >> 16, b >> 16) << 16;
}

template <hk_grad_type type>
static __device__ __forceinline__ uint4 add_words(uint4 a, uint4 b) {
  return make_uint4(add_part<type>(a.x, b.x), add_part<type>(a.y, b.y), add_part<type>(a.z, b.z),
                    add_part<type>(a.w, b.w));
}

/* ---- Squares of fp32 ------------------------------------------------------------------------ */

/* A thread's window: the sum of squares since its last spill, four pieces of 32 bits, which belong
 * to words base .. base + 3 of a set. A square occupies three words. Squares in words base .. base
 * + 2 or base + 1 .. base + 3, which are those of 32 neighbouring exponents, are added to the
 * window. A square there has at most 110 bits, so that 2^18 values fit. */
typedef struct {
  uint64_t low, high;
  int base;
  uint32_t nonfinite;
} window;

enum {
  NOWHERE = -1000 /* a base that matches no square */,
  SPILL = 1 << 15 /* number of words per thread */
};

static __device__ __forceinline__ void add_to_set(uint64_t *set, int word, uint32_t part) {
  if (part != 0) atomicAdd((unsigned long long *)&set[word], (unsigned long long)part);
}

static __device__ void spill(uint64_t *set, window &w) {
  if (w.base != NOWHERE) {
    add_to_set(set, w.base, (uint32_t)w.low);
    add_to_set(set, w.base + 1, (uint32_t)(w.low >> 32));
    add_to_set(set, w.base + 2, (uint32_t)w.high);
    add_to_set(set, w.base + 3, (uint32_t)(w.high >> 32));
  }
  w.low = w.high = 0;
}

/* Most values fit in the window as it is. A larger value moves the window, so that the value lies
 * in its upper three words and smaller ones still fit. A smaller value is added to the set
 * directly. */
static __device__ __forceinline__ void add_wide(uint64_t *set, window &w, uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu, biased = magnitude >> 23;
  if (biased == 255) {
    w.nonfinite++;
    return;
  }
  const uint32_t significand = (magnitude & 0x7fffffu) | (biased != 0 ? 1u << 23 : 0);
  const int place = biased != 0 ? (int)biased - 1 : 0;
  const int word = place / 16, shift = 2 * (place % 16);
  const uint64_t square = (uint64_t)significand * significand;
  const uint32_t low = (uint32_t)square, high = (uint32_t)(square >> 32);
  const uint32_t a = low << shift, b = __funnelshift_l(low, high, shift);
  const uint32_t c = __funnelshift_l(high, 0, shift);
  if ((unsigned)(word - w.base) > 1) {
    if (significand == 0) return;
    if (word < w.base) {
      add_to_set(set, word, a), add_to_set(set, word + 1, b), add_to_set(set, word + 2, c);
      return;
    }
    spill(set, w);
    w.base = max(word - 1, 0);
  }
  const bool second = word != w.base;
  const uint32_t p0 = second ? 0 : a, p1 = second ? a : b, p2 = second ? b : c;
  const uint32_t p3 = second ? c : 0;
  const uint64_t part = (uint64_t)p1 << 32 | p0;
  w.low += part;
  w.high += ((uint64_t)p3 << 32 | p2) + (w.low < part);
}

/* ---- Gather --------------------------------------------------------------------------------- */

/* A block's sums for one bin set. fp32: one set in the first words of `columns`; other types: a
 * column for each thread. */
typedef struct {
  uint64_t (*columns)[SQUARES_THREADS];
  uint64_t *bins; /* NULL: no squares are summed */
  int type;
  window w;
} tally;

static __device__ void open_tally(tally &t, const piece &p) {
  t.bins = p.bins;
  t.type = p.to_type;
  t.w.low = t.w.high = 0, t.w.base = NOWHERE, t.w.nonfinite = 0;
  if (t.bins == NULL) return;
  if (t.type == HK_GRAD_FP32) {
    if (threadIdx.x < HK_SQUARES_FP32_BINS) t.columns[0][threadIdx.x] = 0;
    __syncthreads();
  } else {
    const int bins =
        t.type == HK_GRAD_BF16 ? layout<HK_GRAD_BF16>::bins : layout<HK_GRAD_FP16>::bins;
    for (int b = 0; b < bins; b++) t.columns[b][threadIdx.x] = 0;
  }
}

/* Adds the block's sums to the set. Called by all threads. */
static __device__ void close_tally(tally &t) {
  if (t.bins == NULL) return;
  if (t.type == HK_GRAD_FP32)
    spill(t.columns[0], t.w); /* elements before the first and after the last word */
  __syncthreads();
  if (t.type == HK_GRAD_BF16) {
    add_columns<HK_GRAD_BF16>(t.columns, t.bins);
  } else if (t.type == HK_GRAD_FP16) {
    add_columns<HK_GRAD_FP16>(t.columns, t.bins);
  } else if (threadIdx.x < HK_SQUARES_FP32_BINS && t.columns[0][threadIdx.x] != 0) {
    atomicAdd((unsigned long long *)&t.bins[threadIdx.x],
              (unsigned long long)t.columns[0][threadIdx.x]);
  }
  const int last = t.type == HK_GRAD_FP32 ? HK_SQUARES_FP32_BINS : HK_SQUARES_BINS;
  add_to_total(&t.bins[last], t.w.nonfinite);
  __syncthreads(); /* wait before the columns are used again */
}

template <hk_grad_type type>
static __device__ __forceinline__ void count_element(tally &t, uint32_t bits) {
  if (type == HK_GRAD_FP32) {
    add_wide(t.columns[0], t.w, bits);
  } else {
    t.w.nonfinite += add_square < type == HK_GRAD_FP32 ? HK_GRAD_BF16 : type > (t.columns, bits);
  }
}

template <hk_grad_type type>
static __device__ __forceinline__ void count_word(tally &t, uint4 word) {
  const uint32_t part[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (type == HK_GRAD_FP32) {
      count_element<type>(t, part[k]);
    } else {
      count_element<type>(t, part[k] & 0xffffu);
      count_element<type>(t, part[k] >> 16);
    }
  }
}

template <hk_grad_type type, bool add, bool count>
static __device__ __forceinline__ void gather_element(const piece &p, int64_t i, tally &t) {
  uint32_t bits = load_element<type>(p.from, i);
  if (add) bits = add_elements<type>(load_element<type>(p.to, i), bits);
  store_element<type>(p.to, i, bits);
  if (count) count_element<type>(t, bits);
}

/* Gathers words begin .. end - 1. */
template <hk_grad_type type, bool add, bool count>
static __device__ __forceinline__ void gather_words(const piece &p, int64_t begin, int64_t end,
                                                    tally &t) {
  constexpr int per_word = element<type>::per_word;
  for (int64_t i = begin + threadIdx.x; i < end; i += GATHER_CHUNK) {
    uint4 word[WORDS], before[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
      const int64_t at = i + k * GATHER_THREADS;
      if (at >= end) continue;
      word[k] = load_word<type>(p.from, p.head + at * per_word, p.wide);
      if (add) before[k] = load_word<type>(p.to, p.head + at * per_word, true);
    }
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
      const int64_t at = i + k * GATHER_THREADS;
      if (at >= end) continue;
      if (add) word[k] = add_words<type>(before[k], word[k]);
      store_word<type>(p.to, p.head + at * per_word, word[k], true);
      if (count) count_word<type>(t, word[k]);
    }
  }
}

/* Gathers chunks begin .. end - 1 of the piece; the first chunk includes the elements before the
 * first word, the last one those after the last word. */
template <hk_grad_type type, bool add, bool count>
static __device__ __forceinline__ void gather_run(const piece &p, int64_t begin, int64_t end,
                                                  tally &t) {
  constexpr int per_word = element<type>::per_word;
  const int64_t words = (p.n - p.head) / per_word;
  const int64_t stop = min(end * GATHER_CHUNK, words);
  if (begin == 0 && threadIdx.x < p.head) gather_element<type, add, count>(p, threadIdx.x, t);
  if (stop == words) {
    const int64_t last = p.head + words * per_word + threadIdx.x;
    if (last < p.n) gather_element<type, add, count>(p, last, t);
  }
  const int64_t most = (int64_t)SPILL * GATHER_THREADS;
  for (int64_t at = begin * GATHER_CHUNK; at < stop; at += most) {
    gather_words<type, add, count>(p, at, min(stop, at + most), t);
    if (count && type == HK_GRAD_FP32) spill(t.columns[0], t.w);
  }
}

template <hk_grad_type type>
static __device__ __forceinline__ void gather_piece(const piece &p, int64_t begin, int64_t end,
                                                    tally &t) {
  if (p.bins != NULL) {
    if (p.add) {
      gather_run<type, true, true>(p, begin, end, t);
    } else {
      gather_run<type, false, true>(p, begin, end, t);
    }
  } else if (p.add) {
    gather_run<type, true, false>(p, begin, end, t);
  } else {
    gather_run<type, false, false>(p, begin, end, t);
  }
}

static __global__ void __launch_bounds__(GATHER_THREADS)
    gather(const __grid_constant__ segments_job job) {
  __shared__ uint64_t columns[HK_SQUARES_BINS][SQUARES_THREADS];
  int64_t chunk = part_begin(job.chunks, blockIdx.x);
  const int64_t end = part_begin(job.chunks, blockIdx.x + 1);
  tally t = {columns, NULL, 0, {0, 0, NOWHERE, 0}};
  for (int s = find_piece(job, chunk); chunk < end; s++) {
    const piece &p = job.pieces[s];
    const int64_t stop = min(end, chunk_after(job, s));
    if (p.bins != t.bins || p.to_type != t.type) {
      close_tally(t);
      open_tally(t, p);
    }
    if (p.to_type == HK_GRAD_BF16) {
      gather_piece<HK_GRAD_BF16>(p, chunk - p.first, stop - p.first, t);
    } else if (p.to_type == HK_GRAD_FP16) {
      gather_piece<HK_GRAD_FP16>(p, chunk - p.first, stop - p.first, t);
    } else {
      gather_piece<HK_GRAD_FP32>(p, chunk - p.first, stop - p.first, t);
    }
    chunk = stop;
  }
  close_tally(t);
}

/* ---- Scatter -------------------------------------------------------------------------------- */

/* Rounds four fp32 values to 16 bits each. */
template <hk_grad_type to_type>
static __device__ __forceinline__ void store_rounded(char *to, int64_t i, uint4 word, bool wide) {
  const uint32_t a = round_element<to_type>(__uint_as_float(word.x));
  const uint32_t b = round_element<to_type>(__uint_as_float(word.y));
  const uint32_t c = round_element<to_type>(__uint_as_float(word.z));
  const uint32_t d = round_element<to_type>(__uint_as_float(word.w));
  if (wide) {
    __stcs((uint2 *)(to + 2 * i), make_uint2(a | b << 16, c | d << 16));
  } else {
    uint16_t *at = (uint16_t *)to + i;
    at[0] = (uint16_t)a, at[1] = (uint16_t)b, at[2] = (uint16_t)c, at[3] = (uint16_t)d;
  }
}

template <hk_grad_type from_type, hk_grad_type to_type>
static __device__ __forceinline__ void scatter_word(const piece &p, int64_t i, uint4 word) {
  if (from_type == to_type) {
    store_word<to_type>(p.to, i, word, p.wide);
  } else {
    store_rounded<to_type>(p.to, i, word, p.wide);
  }
}

template <hk_grad_type from_type, hk_grad_type to_type>
static __device__ __forceinline__ void scatter_element(const piece &p, int64_t i) {
  const uint32_t bits = load_element<from_type>(p.from, i);
  store_element<to_type>(
      p.to, i, from_type == to_type ? bits : round_element<to_type>(__uint_as_float(bits)));
}

/* Like gather_run, but reads whole words, because they may come from host memory. */
template <hk_grad_type from_type, hk_grad_type to_type>
static __device__ __forceinline__ void scatter_run(const piece &p, int64_t begin, int64_t end) {
  constexpr int per_word = element<from_type>::per_word;
  const int64_t words = (p.n - p.head) / per_word;
  const int64_t stop = min(end * SCATTER_CHUNK, words);
  for (int64_t i = begin * SCATTER_CHUNK + threadIdx.x; i < stop; i += SCATTER_CHUNK) {
    uint4 word[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
      const int64_t at = i + k * SCATTER_THREADS;
      if (at < stop) word[k] = load_word<from_type>(p.from, p.head + at * per_word, true);
    }
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
      const int64_t at = i + k * SCATTER_THREADS;
      if (at < stop) scatter_word<from_type, to_type>(p, p.head + at * per_word, word[k]);
    }
  }
  if (begin == 0 && threadIdx.x < p.head) scatter_element<from_type, to_type>(p, threadIdx.x);
  if (stop == words) {
    const int64_t last = p.head + words * per_word + threadIdx.x;
    if (last < p.n) scatter_element<from_type, to_type>(p, last);
  }
}

static __global__ void __launch_bounds__(SCATTER_THREADS)
    scatter(const __grid_constant__ segments_job job) {
  int64_t chunk = part_begin(job.chunks, blockIdx.x);
  const int64_t end = part_begin(job.chunks, blockIdx.x + 1);
  for (int s = find_piece(job, chunk); chunk < end; s++) {
    const piece &p = job.pieces[s];
    const int64_t stop = min(end, chunk_after(job, s));
    const int64_t first = chunk - p.first, last = stop - p.first;
    if (p.from_type != HK_GRAD_FP32) { /* 16-bit types: bits are copied */
      scatter_run<HK_GRAD_BF16, HK_GRAD_BF16>(p, first, last);
    } else if (p.to_type == HK_GRAD_FP32) {
      scatter_run<HK_GRAD_FP32, HK_GRAD_FP32>(p, first, last);
    } else if (p.to_type == HK_GRAD_BF16) {
      scatter_run<HK_GRAD_FP32, HK_GRAD_BF16>(p, first, last);
    } else {
      scatter_run<HK_GRAD_FP32, HK_GRAD_FP16>(p, first, last);
    }
    chunk = stop;
  }
}

/* ---- Launches ------------------------------------------------------------------------------- */

/* Describes a segment for the kernel; returns its number of chunks. */
static int64_t describe(const hk_segment *s, bool gathered, piece *p) {
  const int64_t from_size = (int64_t)hk_grad_size(s->from_type);
  const int64_t to_size = (int64_t)hk_grad_size(s->to_type), per_word = 16 / from_size;
  const uintptr_t aligned = gathered ? (uintptr_t)s->to : (uintptr_t)s->from;
  const int64_t before = (int64_t)(-aligned % 16) / from_size;
  p->from = (const char *)s->from, p->to = (char *)s->to;
  p->bins = s->bins, p->n = s->n, p->add = s->add;
  p->from_type = (unsigned char)s->from_type, p->to_type = (unsigned char)s->to_type;
  p->head = (int)(before < s->n ? before : s->n);
  p->wide = gathered ? ((uintptr_t)s->from + (uintptr_t)(p->head * from_size)) % 16 == 0
                     : ((uintptr_t)s->to + (uintptr_t)(p->head * to_size)) %
                               (uintptr_t)(per_word * to_size) ==
                           0;
  const int64_t words = (p->n - p->head) / per_word;
  const int64_t chunk = gathered ? GATHER_CHUNK : SCATTER_CHUNK;
  return words > 0 ? (words + chunk - 1) / chunk : 1;
}

const void *hk_cuda_segments_function(hk_kernel_kind kind) {
  return kind == HK_KERNEL_GATHER ? (const void *)gather : (const void *)scatter;
}

int hk_cuda_segments_threads(hk_kernel_kind kind) {
  return kind == HK_KERNEL_GATHER ? GATHER_THREADS : SCATTER_THREADS;
}

cudaError_t hk_cuda_segments_launch(const hk_kernel *k, int64_t resident, cudaStream_t stream) {
  const bool gathered = k->kind == HK_KERNEL_GATHER;
  segments_job job = {};
  for (int i = 0; i < k->n_segments; i++) {
    if (k->segments[i].n == 0) continue;
    piece *p = &job.pieces[job.n_pieces++];
    p->first = job.chunks;
    job.chunks += describe(&k->segments[i], gathered, p);
  }
  int64_t blocks = resident;
  if (!gathered && k->mapped && blocks > PULL_BLOCKS) blocks = PULL_BLOCKS;
  if (blocks > job.chunks) blocks = job.chunks;
  void *arguments[] = {&job};
  return cudaLaunchKernel(hk_cuda_segments_function(k->kind), dim3((unsigned)blocks),
                          dim3((unsigned)hk_cuda_segments_threads(k->kind)), arguments, 0, stream);
}
