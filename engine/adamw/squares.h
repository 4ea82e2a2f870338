/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient norm, computed exactly: the sum of squares is one wide integer, so that it does not
 * depend on order, threads, plan or device.
 *
 * A finite bf16 value is s x 2^e with an integer s below 2^8 (fp16: 2^11, fp32: 2^24), so its
 * square is s^2 x 2^(2e). Kernels add these integers to the words of a bin set; each word collects
 * the squares of a range of exponents. Bin sets are then added to a fixed-point number whose lowest
 * bit is worth 2^-298, the square of the smallest fp32. Example: 1.5 in bf16 is 192 x 2^-7; its
 * square, 36864 x 2^-14 = 2.25, is added exactly. */
#ifndef HK_ENGINE_ADAMW_SQUARES_H
#define HK_ENGINE_ADAMW_SQUARES_H

#include "core/base/error.h"
#include "engine/adamw/adamw.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HK_SQUARES_WORDS 10 /* 640 bits: 2^256 (squares of fp32 and bf16) times 2^86 values */

/* A bin set: 64-bit words, 0 at first. The last word counts values that are not finite; they are in
 * no other word. A value with biased exponent e (subnormals: 1) and integer significand s is added
 * as follows:
 *
 *   bf16, fp16   word e / 8 receives s^2 << 2 (e % 8). It is in units of the square of the least
 *                significand bit at exponent 8 (e / 8).
 *   fp32         word i is worth 2^(32 i - 298). Words (e - 1) / 16 and the next two receive the
 *                pieces of 32 bits of s^2 << 2 ((e - 1) % 16), lowest first.
 *
 * Only the worth of all words together counts: a kernel may add up squares of fp32 first, and then
 * add their sum in pieces of 32 bits.
 *
 * A set takes HK_SQUARES_MOST values of any type without overflow of a word. fp16 adds less than
 * 2^22 << 14 = 2^36 a value to a word, bf16 less than 2^16 << 14 = 2^30; 2^36 x 2^28 = 2^64. fp32
 * adds at most 2^32 - 1 a value, or a sum of values, to a word, so that its set takes 2^32. */
#define HK_SQUARES_BINS       32                    /* for bf16; fp16 uses the first 4 */
#define HK_SQUARES_FP32_BINS  18                    /* covers squares up to 2^256 */
#define HK_SQUARES_MOST_WORDS (HK_SQUARES_BINS + 1) /* words of the largest set */
#define HK_SQUARES_MOST       ((int64_t)1 << 28)
int hk_squares_bin_words(hk_grad_type type); /* with the count */

typedef struct {
  uint64_t words[HK_SQUARES_WORDS]; /* least significant word first */
  uint64_t nonfinite;               /* number of infinities and NaN; they are not in the sum */
} hk_squares;

/* Adds the squares of n values. */
void hk_squares_add(hk_squares *sum, hk_grad_type type, int64_t n, const void *grad);
/* Adds the squares of n values to a bin set. */
void hk_squares_fill_set(uint64_t *set, hk_grad_type type, int64_t n, const void *grad);
/* Adds a bin set and its count; it must hold at most HK_SQUARES_MOST values. */
void hk_squares_add_set(hk_squares *sum, hk_grad_type type, const uint64_t *set);
/* Adds the bins of a bf16 or fp16 set, without the count. */
void hk_squares_add_bins(hk_squares *sum, hk_grad_type type, const uint64_t bins[HK_SQUARES_BINS]);
void hk_squares_merge(hk_squares *sum, const hk_squares *other);
/* The sum, rounded once to nearest even. */
double hk_squares_value(const hk_squares *sum);

/* A sum as integers that ranks may add one by one: its bits in pieces of 32, least significant
 * first, then the number of values that are not finite. Pieces of a sum are below 2^32, so that
 * those of 2^31 ranks may be added before an int64_t overflows. */
#define HK_SQUARES_PIECES (2 * HK_SQUARES_WORDS + 1)
void hk_squares_to_pieces(const hk_squares *sum, int64_t pieces[HK_SQUARES_PIECES]);
/* The inverse, also of sums of pieces, whose carries it adds. HK_INPUT: some piece is negative, or
 * the sum has more bits than hk_squares; *sum is then not changed. */
hk_status hk_squares_from_pieces(const int64_t pieces[HK_SQUARES_PIECES], hk_squares *sum,
                                 hk_error *err);

/* The factor for gradients: min(1, max_norm / (norm + 1e-6)) / loss_scale
 * (torch.nn.utils.clip_grad_norm_), with norm = sqrt(sum) / loss_scale. `max_norm` <= 0: no
 * clipping. */
double hk_grad_scale(double sum_of_squares, double max_norm, double loss_scale);

#ifdef __cplusplus
}
#endif
#endif
