/* SPDX-License-Identifier: Apache-2.0 */
/* The AdamW update and its CPU kernels. Every kernel (scalar, AVX2, AVX-512, CUDA) gives the bits
 * of the following operations, in this order, in fp32 with IEEE 754 rounding to nearest even,
 * without flush to zero, with fused multiply-adds only where fma() is written:
 *
 *   g = scale * float(grad)
 *   p = p * decay                                  decay = 1 - lr * weight_decay
 *   m = fma(rest1, g - m, m)                       rest1 = 1 - beta1
 *   v = fma(rest2 * g, g, v * beta2)               rest2 = 1 - beta2
 *   d = (sqrt(v) / root2) + eps                    root2 = sqrt(1 - beta2^t)
 *   p = p - ((size * m) / d)                       size = lr / (1 - beta1^t)
 *   w = bf16(p)                                    round to nearest even
 *
 * A NaN in p, m or v is stored as 0x7fc00000 (in w: 0x7fc0), because processors produce different
 * bits for NaN. The constants on the right are computed in double and rounded once. Kernels run in
 * the floating-point environment that a C program starts with, and restore the caller's.
 *
 * This is torch.optim.AdamW (decoupled weight decay: Loshchilov and Hutter, arXiv 1711.05101; bias
 * correction: Kingma and Ba, arXiv 1412.6980). With beta1 > 0.5 and scale 1 the bits equal, except
 * for NaN, those of torch 2.15's fused CPU form on AVX2 or AVX-512, but not in the last elements of
 * a tensor that do not fill a vector, where torch fuses differently. They also equal those of its
 * single-tensor form, except p where MKL's square root is one ulp off. */
#ifndef HK_ENGINE_ADAMW_ADAMW_H
#define HK_ENGINE_ADAMW_ADAMW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { HK_GRAD_BF16, HK_GRAD_FP16, HK_GRAD_FP32, HK_GRAD_TYPES } hk_grad_type;

static inline size_t hk_grad_size(hk_grad_type type) { /* bytes */
  return type == HK_GRAD_FP32 ? 4 : 2;
}

/* Hyperparameters, as in torch.optim.AdamW. */
typedef struct {
  double lr, beta1, beta2, eps, weight_decay;
} hk_adamw;

/* Constants of one step, as kernels take them. */
typedef struct {
  float scale, decay, rest1, beta2, rest2, root2, eps, size;
  uint32_t key[2]; /* of the random bits that round v (formats.h); 0 for formats without */
} hk_adamw_step;

/* Formats of state in memory: formats.h. */
typedef enum {
  HK_FORMAT_FP32,
  HK_FORMAT_SPLIT,
  HK_FORMAT_BF16,
  HK_FORMAT_BF16_SPLIT,
  HK_FORMAT_8BIT,
  HK_FORMAT_8BIT_SPLIT,
  HK_FORMATS
} hk_format;

static inline bool hk_format_is_split(hk_format format) {
  return format == HK_FORMAT_SPLIT || format == HK_FORMAT_BF16_SPLIT ||
         format == HK_FORMAT_8BIT_SPLIT;
}
/* m and v are bf16. */
static inline bool hk_format_is_short(hk_format format) {
  return format == HK_FORMAT_BF16 || format == HK_FORMAT_BF16_SPLIT;
}
/* m and v are codes of 8 bits, in blocks that share their windows. */
static inline bool hk_format_is_coded(hk_format format) {
  return format == HK_FORMAT_8BIT || format == HK_FORMAT_8BIT_SPLIT;
}
/* Updates round at random. */
static inline bool hk_format_is_random(hk_format format) {
  return hk_format_is_short(format) || hk_format_is_coded(format);
}

/* Parameters of a block of codes. Blocks begin at the tensor; its last one may have fewer. */
#define HK_CODE_BLOCK 128

/* Addresses of consecutive parameters' state. p: fp32 master weights, or with a split format bf16
 * weights, whose lower halves are at `low` (else NULL). m, v: fp32, bf16 or codes. `windows`: of
 * each block of codes two bytes, the window of m and that of v (else NULL). */
typedef struct {
  char *p, *low, *m, *v, *windows;
} hk_state_at;

/* Constants of step number `step` (from 1). `grad_scale`: factor that gradients are multiplied by,
 * clipping coefficient / loss scale. */
hk_adamw_step hk_adamw_prepare(const hk_adamw *hyper, int64_t step, double grad_scale);

static inline bool hk_adamw_step_same(const hk_adamw_step *a, const hk_adamw_step *b) {
  return a->scale == b->scale && a->decay == b->decay && a->rest1 == b->rest1 &&
         a->beta2 == b->beta2 && a->rest2 == b->rest2 && a->root2 == b->root2 && a->eps == b->eps &&
         a->size == b->size && a->key[0] == b->key[0] && a->key[1] == b->key[1];
}

/* Updates n elements in place and writes the rounded weights to `w` (NULL: does not). Arrays need
 * no alignment and must not overlap. */
typedef void (*hk_adamw_kernel)(const hk_adamw_step *step, hk_grad_type type, int64_t n, float *p,
                                float *m, float *v, const void *grad, uint16_t *w);

/* The reference, in plain C. Its fmaf() rounds once on every processor; without an instruction for
 * it, it is slow. */
void hk_adamw_scalar(const hk_adamw_step *step, hk_grad_type type, int64_t n, float *p, float *m,
                     float *v, const void *grad, uint16_t *w);

/* The CPU kernels of one instruction set. */
typedef struct {
  const char *name; /* "scalar", "avx2", "avx512" */
  bool supported;   /* this processor can run it */
  hk_adamw_kernel adamw;
  /* The same update out of place, with the same bits: reads p, m and v, writes p_to, m_to and v_to.
   * No two arrays may overlap. */
  void (*adamw_to)(const hk_adamw_step *step, hk_grad_type type, int64_t n, const float *p,
                   const float *m, const float *v, float *p_to, float *m_to, float *v_to,
                   const void *grad, uint16_t *w);
  /* The update of state in any format (formats.h), from `from` to `to`, which are equal or do not
   * overlap. `index`: of the first of the n elements in its tensor; with codes it begins a block,
   * and n ends one, or the tensor. `w`: a further copy of the bf16 weights; NULL: none. */
  void (*update)(hk_format format, const hk_adamw_step *step, hk_grad_type type, int64_t n,
                 hk_state_at from, hk_state_at to, const void *grad, uint16_t *w, int64_t index);
  /* g *= scale, fp32 in place, NaN to 0x7fc00000: the separate unscale pass of DeepSpeed. */
  void (*unscale)(float scale, int64_t n, float *g);
  /* fp32 to bf16, round to nearest even, NaN to 0x7fc0. */
  void (*cast_down)(int64_t n, const float *p, uint16_t *w);
  /* bf16 or fp16 to fp32, exact, NaN to 0x7fc00000; fp32 is copied. */
  void (*cast_up)(hk_grad_type type, int64_t n, const void *grad, float *g);
} hk_cpu_kernels;

/* All kernel sets of this build, slowest first; *n: their number. */
const hk_cpu_kernels *hk_cpu_kernels_list(size_t *n);
/* The fastest kernel set that this processor supports, chosen once. For tests, the environment
 * variable HOCKET_ISA names another ("scalar", "avx2"); an unknown or unsupported name is ignored.
 */
const hk_cpu_kernels *hk_cpu_kernels_best(void);

#ifdef __cplusplus
}
#endif
#endif
