/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient norm, exactly: the sum of squares of bf16 or fp16 gradients as one wide integer, so
 * that it does not depend on the order, the threads, the plan or the device.
 *
 * A bf16 value is an integer below 2^8 times 2^e (fp16: 2^11), so its square is an integer times
 * 2^(2e). Kernels add those integers into 64-bit bins, one for every 8 exponents; bins are added
 * into a fixed-point number whose lowest bit is worth 2^-266, the square of the least bf16. */
#ifndef HK_ENGINE_SQUARES_H
#define HK_ENGINE_SQUARES_H

#include "engine/adamw.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HK_SQUARES_WORDS 10 /* 640 bits: 2^256 (bf16's largest square) times 2^118 values */
#define HK_SQUARES_BINS                                                     \
  32 /* bin b holds squares of biased exponents 8 b .. 8 b + 7, in units of \
        the least of them; see hk_squares_add_bins */
/* As many values as 64-bit bins take without overflow: fp16's 22-bit squares shifted by 14. */
#define HK_SQUARES_MOST ((int64_t)1 << 28)

typedef struct {
  uint64_t words[HK_SQUARES_WORDS]; /* little-endian */
  uint64_t nonfinite;               /* infinities and NaN met; they are not in the sum */
} hk_squares;

/* Adds n values (bf16 or fp16, not fp32). */
void hk_squares_add(hk_squares *sum, hk_grad_type type, int64_t n, const void *grad);
/* Adds bins that a kernel filled from at most HK_SQUARES_MOST values: for a value with biased
 * exponent e (subnormals: 1) and integer significand s, bin e / 8 received s^2 << 2 (e % 8). */
void hk_squares_add_bins(hk_squares *sum, hk_grad_type type, const uint64_t bins[HK_SQUARES_BINS]);
void hk_squares_merge(hk_squares *sum, const hk_squares *other);
/* The sum rounded once, to nearest even. */
double hk_squares_value(const hk_squares *sum);

/* What gradients are multiplied by: 1 / loss_scale, and max_norm / (norm + 1e-6) where that is
 * below 1 (torch.nn.utils.clip_grad_norm_), with norm = sqrt(sum) / loss_scale. `max_norm` <= 0:
 * no clipping. */
double hk_grad_scale(double sum_of_squares, double max_norm, double loss_scale);

#ifdef __cplusplus
}
#endif
#endif
