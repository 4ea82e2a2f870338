/* SPDX-License-Identifier: Apache-2.0 */
/* The AdamW kernels, for every format of state. Arithmetic as in kernels_cuda.cu. */
#include "engine/device/kernels_cuda.h"
#include "engine/device/quads_cuda.h"

enum {
  THREADS = HK_CUDA_THREADS,
  MAPPED_BLOCKS = 12, /* enough bytes in flight to saturate PCIe; more blocks would be no faster,
                         and would take a larger share of the link from copies and pulls */
};

typedef struct {
  hk_adamw_step step;
  const char *from; /* first slab of the run */
  char *to;
  hk_bytes bytes, low, m, v, windows;
  const void *grad;
  uint16_t *w;
  int64_t n;
  int64_t numel, first; /* parameters per slab; index of the first parameter in the first slab */
  int64_t index;        /* of the run's first parameter in its tensor */
  /* Quads are counted through all slabs, `quads` a slab. A thread goes from one to the next of its
   * own, `stride` away, without a division. */
  int64_t quads, begin, end;
  int64_t stride, stride_slabs, stride_quads;
  bool wide; /* quads are aligned in gradients and weights */
} adamw_job;

static __device__ __forceinline__ void adamw_element(const hk_adamw_step &s, float grad, float &p,
                                                     float &m, float &v) {
  const float g = __fmul_rn(s.scale, grad);
  p = __fmul_rn(p, s.decay);
  m = __fmaf_rn(s.rest1, __fsub_rn(g, m), m);
  v = __fmaf_rn(__fmul_rn(s.rest2, g), g, __fmul_rn(v, s.beta2));
  const float d = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), s.root2), s.eps);
  p = __fsub_rn(p, __fdiv_rn(__fmul_rn(s.size, m), d));
  p = canonical(p), m = canonical(m), v = canonical(v);
}

/* -- Elements in memory: a quad of 32 or of 16 bits in `x`, low .. high - 1 of it. */

static __device__ __forceinline__ void load_words(const char *at, int64_t i, int low, int high,
                                                  uint32_t x[QUAD]) {
  const uint32_t *from = (const uint32_t *)at + i;
  if (high - low == QUAD) {
    const uint4 quad = __ldcs((const uint4 *)from);
    x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
  } else {
#pragma unroll
    for (int j = 0; j < QUAD; j++) x[j] = j >= low && j < high ? from[j] : 0;
  }
}

static __device__ __forceinline__ void store_words(char *at, int64_t i, int low, int high,
                                                   const uint32_t x[QUAD]) {
  uint32_t *to = (uint32_t *)at + i;
  if (high - low == QUAD) {
    __stcs((uint4 *)to, make_uint4(x[0], x[1], x[2], x[3]));
  } else {
#pragma unroll
    for (int j = 0; j < QUAD; j++) {
      if (j >= low && j < high) to[j] = x[j];
    }
  }
}

static __device__ __forceinline__ void load_halves(const char *at, int64_t i, int low, int high,
                                                   uint32_t x[QUAD]) {
  const uint16_t *from = (const uint16_t *)at + i;
  if (high - low == QUAD) {
    const uint2 words = __ldcs((const uint2 *)from);
    x[0] = words.x & 0xffffu, x[1] = words.x >> 16;
    x[2] = words.y & 0xffffu, x[3] = words.y >> 16;
  } else {
#pragma unroll
    for (int j = 0; j < QUAD; j++) x[j] = j >= low && j < high ? from[j] : 0;
  }
}

/* `x`: values of 16 bits. */
static __device__ __forceinline__ void store_halves(char *at, int64_t i, int low, int high,
                                                    const uint32_t x[QUAD]) {
  uint16_t *to = (uint16_t *)at + i;
  if (high - low == QUAD) {
    __stcs((uint2 *)to, make_uint2(x[0] | x[1] << 16, x[2] | x[3] << 16));
  } else {
#pragma unroll
    for (int j = 0; j < QUAD; j++) {
      if (j >= low && j < high) to[j] = (uint16_t)x[j];
    }
  }
}

static __device__ __forceinline__ void load_bytes(const char *at, int64_t i, int low, int high,
                                                  uint32_t x[QUAD]) {
  const uint8_t *from = (const uint8_t *)at + i;
  if (high - low == QUAD) {
    const uint32_t word = __ldcs((const uint32_t *)from);
#pragma unroll
    for (int j = 0; j < QUAD; j++) x[j] = word >> 8 * j & 0xffu;
  } else {
#pragma unroll
    for (int j = 0; j < QUAD; j++) x[j] = j >= low && j < high ? from[j] : 0;
  }
}

static __device__ __forceinline__ void store_bytes(char *at, int64_t i, int low, int high,
                                                   const uint32_t x[QUAD]) {
  uint8_t *to = (uint8_t *)at + i;
  if (high - low == QUAD) {
    __stcs((uint32_t *)to, x[0] | x[1] << 8 | x[2] << 16 | x[3] << 24);
  } else {
#pragma unroll
    for (int j = 0; j < QUAD; j++) {
      if (j >= low && j < high) to[j] = (uint8_t)x[j];
    }
  }
}

/* -- Formats (engine/adamw/formats.h) */

template <hk_format format>
struct form {
  static constexpr bool code = format == HK_FORMAT_8BIT || format == HK_FORMAT_8BIT_SPLIT;
  static constexpr bool split =
      format == HK_FORMAT_SPLIT || format == HK_FORMAT_BF16_SPLIT || format == HK_FORMAT_8BIT_SPLIT;
  static constexpr bool half = format == HK_FORMAT_BF16 || format == HK_FORMAT_BF16_SPLIT;
};

/* The word with this number; `index`: of its element. */
static __device__ __forceinline__ uint32_t random_word(const uint32_t key[2], int64_t index,
                                                       uint32_t number) {
  uint32_t x = number + key[0] + (uint32_t)(index >> 33) * 0x9e3779b9u;
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += key[1];
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  return x ^ x >> 14;
}

/* 16 random bits for each element of a quad that begins at an index in the tensor. An odd one
 * begins in the upper half of a pair's word. */
static __device__ __forceinline__ void random_bits(const uint32_t key[2], int64_t index,
                                                   uint32_t random[QUAD]) {
  uint32_t word[3];
#pragma unroll
  for (int k = 0; k < 3; k++) {
    const int64_t at = index + 2 * k;
    word[k] = k < 2 || (index & 1) ? random_word(key, at, (uint32_t)(at >> 1)) : 0;
  }
  if (index & 1) {
    word[0] = __funnelshift_r(word[0], word[1], 16);
    word[1] = __funnelshift_r(word[1], word[2], 16);
  }
#pragma unroll
  for (int j = 0; j < QUAD; j++) random[j] = j & 1 ? word[j / 2] >> 16 : word[j / 2] & 0xffffu;
}

/* What hk_code_random gives for each element of a quad that begins at a multiple of 4. */
static __device__ __forceinline__ void code_addends(const uint32_t key[2], int64_t index,
                                                    uint32_t add[QUAD]) {
#pragma unroll
  for (int j = 0; j < QUAD; j += 2) {
    const uint32_t word = random_word(key, index, hk_code_number(index + j));
    add[j] = hk_code_addend(word, index + j), add[j + 1] = hk_code_addend(word, index + j + 1);
  }
}

static __device__ __forceinline__ uint32_t round_finite(uint32_t bits, uint32_t add) {
  const uint32_t rounded = (bits + add) >> 16;
  const bool too_large = (rounded & 0x7fffu) == 0x7f80u && (bits & 0x7fffffffu) != 0x7f800000u;
  return rounded - too_large;
}

/* One quad of state in registers, as bits of fp32. */
typedef struct {
  uint32_t p[QUAD], m[QUAD], v[QUAD];
} state_quad;

static __device__ __forceinline__ uint32_t special_code(uint32_t code, uint32_t infinity) {
  return code == infinity ? 0x7f800000u : 0x7fc00000u;
}

static __device__ __forceinline__ void decode(uint32_t windows, state_quad &x) {
#pragma unroll
  for (int j = 0; j < QUAD; j++) {
    const uint32_t m = x.m[j] & 0x7fu, sign = (x.m[j] & 0x80u) << 24, v = x.v[j];
    x.m[j] = sign | (m > HK_CODES_M ? special_code(m, HK_CODES_M + 1)
                                    : hk_code_magnitude(m, windows & 0xffu));
    x.v[j] = v > HK_CODES_V ? special_code(v, HK_CODES_V + 1) : hk_code_magnitude(v, windows >> 8);
  }
}

/* The codes of m and v in place of their bits; returns the windows. A warp has one block: quad l is
 * that of lane l, and lanes behind its end have only zeros. */
static __device__ __forceinline__ uint32_t encode(const uint32_t add[QUAD], state_quad &x) {
  uint32_t most_m = 0, most_v = 0;
#pragma unroll
  for (int j = 0; j < QUAD; j++) {
    const uint32_t m = x.m[j] & 0x7fffffffu;
    if (m < 0x7f800000u) most_m = max(most_m, hk_code_round(m, add[j]));
    if (x.v[j] < 0x7f800000u) most_v = max(most_v, hk_code_round(x.v[j], add[j]));
  }
  most_m = __reduce_max_sync(0xffffffffu, most_m);
  most_v = __reduce_max_sync(0xffffffffu, most_v);
  const uint32_t of_m = hk_code_window(most_m, HK_CODES_M);
  const uint32_t of_v = hk_code_window(most_v, HK_CODES_V);
#pragma unroll
  for (int j = 0; j < QUAD; j++) {
    x.m[j] = hk_code_of_m(x.m[j], of_m, add[j]);
    x.v[j] = hk_code_of_v(x.v[j], of_v, add[j]);
  }
  return of_m | of_v << 8;
}

template <hk_format format>
static __device__ __forceinline__ void load_state(const adamw_job &job, const char *slab, int64_t i,
                                                  int low, int high, state_quad &x) {
  uint32_t lower[QUAD];
  if (form<format>::split) {
    load_halves(slab, i, low, high, x.p);
    load_halves(slab + job.low, i, low, high, lower);
  } else {
    load_words(slab, i, low, high, x.p);
  }
  if (form<format>::code) {
    load_bytes(slab + job.m, i, low, high, x.m), load_bytes(slab + job.v, i, low, high, x.v);
    decode(((const uint16_t *)(slab + job.windows))[i / HK_CODE_BLOCK], x);
  } else if (form<format>::half) {
    load_halves(slab + job.m, i, low, high, x.m), load_halves(slab + job.v, i, low, high, x.v);
  } else {
    load_words(slab + job.m, i, low, high, x.m), load_words(slab + job.v, i, low, high, x.v);
  }
#pragma unroll
  for (int j = 0; j < QUAD; j++) {
    if (form<format>::half) x.m[j] <<= 16, x.v[j] <<= 16;
    if (form<format>::split) {
      const uint32_t difference = (uint32_t)(int32_t)(int16_t)lower[j];
      x.p[j] = (x.p[j] << 16) + difference;
      if (!form<format>::code) x.p[j] += x.v[j] >> 31 << 16, x.v[j] &= 0x7fffffffu;
    }
  }
}

/* `index`: of the quad's first element in its tensor. */
template <hk_format format>
static __device__ __forceinline__ void store_state(const adamw_job &job, char *slab, int64_t i,
                                                   int low, int high, int64_t index,
                                                   const state_quad &x) {
  uint32_t upper[QUAD], lower[QUAD], m[QUAD], v[QUAD], random[QUAD];
  uint32_t windows = 0;
  if (form<format>::half) random_bits(job.step.key, index, random);
  if (form<format>::code) code_addends(job.step.key, index, random);
  state_quad codes = x;
  if (form<format>::code) windows = encode(random, codes);
#pragma unroll
  for (int j = 0; j < QUAD; j++) {
    m[j] = codes.m[j], v[j] = codes.v[j];
    if (form<format>::half) {
      m[j] = round_finite(m[j], 0x7fffu + (m[j] >> 16 & 1u));
      v[j] = round_finite(v[j], random[j]);
    }
    if (form<format>::split) {
      upper[j] = to_bf16(__uint_as_float(x.p[j]));
      lower[j] = x.p[j] & 0xffffu;
      if (!form<format>::code && (x.p[j] & 0x1ffffu) == 0x8000u)
        v[j] |= form<format>::half ? 0x8000u : 0x80000000u;
    }
  }
  if (form<format>::split) {
    store_halves(slab, i, low, high, upper), store_halves(slab + job.low, i, low, high, lower);
  } else {
    store_words(slab, i, low, high, x.p);
  }
  if (form<format>::code) {
    store_bytes(slab + job.m, i, low, high, m), store_bytes(slab + job.v, i, low, high, v);
    if (i % HK_CODE_BLOCK == 0)
      ((uint16_t *)(slab + job.windows))[i / HK_CODE_BLOCK] = (uint16_t)windows;
  } else if (form<format>::half) {
    store_halves(slab + job.m, i, low, high, m), store_halves(slab + job.v, i, low, high, v);
  } else {
    store_words(slab + job.m, i, low, high, m), store_words(slab + job.v, i, low, high, v);
  }
}

/* One quad; its parameters low .. high - 1 belong to the run. */
template <hk_grad_type type, hk_format format>
static __device__ __forceinline__ void adamw_quad(const adamw_job &job, int64_t slab,
                                                  int64_t quad) {
  const int64_t i = slab * job.numel + quad * QUAD - job.first; /* of the run */
  const int64_t in_slab = job.numel - quad * QUAD, in_run = job.n - i;
  const int low = i < 0 ? (int)-i : 0;
  const int high = (int)min((int64_t)QUAD, min(in_slab, in_run));
  uint32_t raw[QUAD];
  float p[QUAD], m[QUAD], v[QUAD], g[QUAD];
  state_quad x;

  load_state<format>(job, job.from + slab * job.bytes, quad * QUAD, low, high, x);
  fetch<type>(job.grad, i, low, high, job.wide, raw);
  widen<type>(raw, g);
#pragma unroll
  for (int j = 0; j < QUAD; j++) {
    p[j] = __uint_as_float(x.p[j]), m[j] = __uint_as_float(x.m[j]), v[j] = __uint_as_float(x.v[j]);
    adamw_element(job.step, g[j], p[j], m[j], v[j]);
    x.p[j] = __float_as_uint(p[j]);
    if (form<format>::code) x.p[j] = hk_code_of_p(x.p[j]);
    x.m[j] = __float_as_uint(m[j]), x.v[j] = __float_as_uint(v[j]);
  }
  store_state<format>(job, job.to + slab * job.bytes, quad * QUAD, low, high, job.index + i, x);
  if (job.w != NULL) store_weights(job.w, i, low, high, job.wide, p);
}

template <hk_grad_type type, hk_format format>
static __global__ void __launch_bounds__(THREADS, 5) adamw(const __grid_constant__ adamw_job job) {
  int64_t at = job.begin + (int64_t)blockIdx.x * THREADS + threadIdx.x;
  int64_t slab = at / job.quads, quad = at % job.quads;
  /* All lanes of a warp encode the last block together, also those behind the end. */
  const int lane = form<format>::code ? threadIdx.x % 32 : 0;
  for (; at - lane < job.end; at += job.stride) {
    adamw_quad<type, format>(job, slab, quad);
    slab += job.stride_slabs;
    quad += job.stride_quads;
    if (quad >= job.quads) {
      quad -= job.quads;
      slab++;
    }
  }
}

/* -- Launches */

#define OF_FORMAT(format)                                                                 \
  {                                                                                       \
    (const void *)adamw<HK_GRAD_BF16, format>, (const void *)adamw<HK_GRAD_FP16, format>, \
        (const void *)adamw<HK_GRAD_FP32, format>                                         \
  }

const void *hk_cuda_adamw_function(hk_grad_type type, hk_format format) {
  static const void *const functions[HK_FORMATS][HK_GRAD_TYPES] = {
      OF_FORMAT(HK_FORMAT_FP32),       OF_FORMAT(HK_FORMAT_SPLIT), OF_FORMAT(HK_FORMAT_BF16),
      OF_FORMAT(HK_FORMAT_BF16_SPLIT), OF_FORMAT(HK_FORMAT_8BIT),  OF_FORMAT(HK_FORMAT_8BIT_SPLIT)};
  return functions[format][type];
}

static int64_t blocks_for(int64_t pieces, int64_t most) {
  return pieces < most ? pieces : most;
}

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/* Whether quads are aligned in gradients and weights; all are if quad 0 of the first slab is. */
static bool adamw_is_wide(const hk_kernel *k, int64_t first) {
  const size_t size = hk_grad_size(k->type);
  const bool one_slab = first + k->n <= k->shape.numel;
  const uintptr_t grad = (uintptr_t)k->grad - (uintptr_t)first * size;
  const uintptr_t w = (uintptr_t)k->w - (uintptr_t)first * sizeof *k->w;
  return (one_slab || k->shape.numel % QUAD == 0) && grad % (QUAD * size) == 0 &&
         (k->w == NULL || w % (QUAD * sizeof *k->w) == 0);
}

cudaError_t hk_cuda_adamw_launch(const hk_kernel *k, int64_t resident, cudaStream_t stream) {
  const int64_t numel = k->shape.numel, quads = ceil_div(numel, QUAD);
  const int64_t skip = k->first / numel, first = k->first % numel;
  const int64_t last = first + k->n - 1;
  adamw_job job = {};
  job.step = k->step;
  job.from = (const char *)k->from + skip * k->shape.bytes;
  job.to = (char *)k->to + skip * k->shape.bytes;
  job.bytes = k->shape.bytes, job.low = k->shape.low;
  job.m = k->shape.m, job.v = k->shape.v, job.windows = k->shape.windows;
  job.grad = k->grad, job.w = k->w, job.n = k->n;
  job.numel = numel, job.first = first, job.index = k->index;
  job.quads = quads;
  job.begin = first / QUAD;
  job.end = last / numel * quads + last % numel / QUAD + 1;
  const int64_t most = k->mapped ? blocks_for(MAPPED_BLOCKS, resident) : resident;
  const int64_t blocks = blocks_for(ceil_div(job.end - job.begin, THREADS), most);
  job.stride = blocks * THREADS;
  job.stride_slabs = job.stride / quads, job.stride_quads = job.stride % quads;
  job.wide = adamw_is_wide(k, first);
  void *arguments[] = {&job};
  return cudaLaunchKernel(hk_cuda_adamw_function(k->type, k->shape.format), dim3((unsigned)blocks),
                          dim3(THREADS), arguments, 0, stream);
}

hk_status hk_cuda_adamw_check(const hk_kernel *k, hk_error *err) {
  const hk_slab_shape *s = &k->shape;
  if (s->numel < 1 || k->first < 0) {
    return hk_fail(
        err, HK_INPUT,
        "an AdamW kernel on slabs of %lld parameters from parameter %lld: expected at least "
        "1 and at least 0",
        (long long)s->numel, (long long)k->first);
  }
  const int64_t unit = hk_format_unit(s->format);
  if (s->numel % unit != 0 || k->first % unit != 0 || k->index % unit != 0) {
    return hk_fail(err, HK_INPUT,
                   "an AdamW kernel on codes, in slabs of %lld parameters, from parameter %lld: "
                   "both must be multiples of %lld",
                   (long long)s->numel, (long long)k->first, (long long)unit);
  }
  if (s->bytes % 16 == 0 && s->low % 16 == 0 && s->m % 16 == 0 && s->v % 16 == 0 &&
      (uintptr_t)k->from % 16 == 0 && (uintptr_t)k->to % 16 == 0) {
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "an AdamW kernel from slabs at %p to slabs at %p, %lld bytes apart, m at %lld and "
                 "v at %lld: each address and offset must be a multiple of 16 bytes",
                 k->from, k->to, (long long)s->bytes, (long long)s->m, (long long)s->v);
}
