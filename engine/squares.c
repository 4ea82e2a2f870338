/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of squares in integers. */
#include "engine/squares.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
  LOWEST = -266,   /* words[0]'s lowest bit is worth 2^LOWEST */
  EXPONENTS = 256, /* bf16's; fp16 has 32 */
  BY_BIN = 8,      /* exponents a bin */
  WAYS = 4,        /* sums that take turns, so that one need not wait for the last store to it */
  BATCH = 256,     /* values taken apart before they are added: small enough for the L1 cache */
};

/* value = significand x 2^(biased exponent + base) */
typedef struct {
  int fraction_bits, exponents, base;
} format;

static const format bf16 = {7, 256, -134}, fp16 = {10, 32, -25};

static void add_shifted(uint64_t words[HK_SQUARES_WORDS], uint64_t value, int shift) {
  const int low = shift % 64;
  const uint64_t parts[2] = {value << low, low == 0 ? 0 : value >> (64 - low)};
  uint64_t carry = 0;
  for (int i = 0, word = shift / 64; word < HK_SQUARES_WORDS; i++, word++) {
    const uint64_t part = i < 2 ? parts[i] : 0;
    if (i >= 2 && carry == 0) break;
    const uint64_t sum = words[word] + part;
    words[word] = sum + carry;
    carry = (uint64_t)(sum < part) | (uint64_t)(words[word] < sum);
  }
}

void hk_squares_add_bins(hk_squares *sum, hk_grad_type type, const uint64_t bins[HK_SQUARES_BINS]) {
  const format *f = type == HK_GRAD_BF16 ? &bf16 : &fp16;
  for (int b = 0; b < f->exponents / BY_BIN; b++) {
    const int shift = 2 * (b * BY_BIN + f->base) - LOWEST;
    /* bf16's bin 0 is in units of 2^-268, but nothing has exponent 0: it holds a multiple of 4. */
    if (shift < 0) {
      add_shifted(sum->words, bins[b] >> -shift, 0);
    } else {
      add_shifted(sum->words, bins[b], shift);
    }
  }
}

/* Exponents and squares of n <= BATCH values; returns how many are not finite. Without branches, so
 * that compilers make vector code of it. */
static inline uint64_t split(format f, int n, const char *grad, uint16_t exponent[BATCH],
                             uint32_t square[BATCH]) {
  const unsigned hidden = 1u << f.fraction_bits;
  const unsigned infinity = (unsigned)(f.exponents - 1) << f.fraction_bits;
  uint16_t bits[BATCH];
  memcpy(bits, grad, sizeof bits[0] * (size_t)n);
  unsigned nonfinite = 0;
  for (int i = 0; i < n; i++) {
    const unsigned magnitude = bits[i] & 0x7fffu;
    const unsigned s = (magnitude & (hidden - 1)) | (magnitude >= hidden ? hidden : 0);
    exponent[i] = (uint16_t)(magnitude >> f.fraction_bits);
    square[i] = s * s;
    nonfinite += magnitude >= infinity;
  }
  return nonfinite;
}

/* Sums by exponent of at most HK_SQUARES_MOST values, not yet shifted: 16 bits (fp16: 22) a square.
 * What is not finite goes to the last exponent's, which nobody reads, and is counted. */
static inline uint64_t tally(format f, int64_t n, const char *grad,
                             uint64_t sums[WAYS][EXPONENTS]) {
  uint64_t nonfinite = 0;
  for (int64_t i = 0; i < n; i += BATCH) {
    const int batch = n - i < BATCH ? (int)(n - i) : BATCH;
    uint16_t exponent[BATCH];
    uint32_t square[BATCH];
    nonfinite += split(f, batch, grad + 2 * i, exponent, square);
    int k = 0;
    for (; k + WAYS <= batch; k += WAYS) {
      for (int way = 0; way < WAYS; way++) sums[way][exponent[k + way]] += square[k + way];
    }
    for (; k < batch; k++) sums[0][exponent[k]] += square[k];
  }
  return nonfinite;
}

static void add_block(hk_squares *sum, hk_grad_type type, int64_t n, const char *grad) {
  uint64_t sums[WAYS][EXPONENTS] = {{0}}, bins[HK_SQUARES_BINS] = {0};
  const int last = (type == HK_GRAD_BF16 ? bf16 : fp16).exponents - 1;
  sum->nonfinite += type == HK_GRAD_BF16 ? tally(bf16, n, grad, sums) : tally(fp16, n, grad, sums);
  for (int e = 0; e < last; e++) {
    const int as = e == 0 ? 1 : e; /* subnormals */
    for (int way = 0; way < WAYS; way++) bins[e / BY_BIN] += sums[way][e] << 2 * (as % BY_BIN);
  }
  hk_squares_add_bins(sum, type, bins);
}

void hk_squares_add(hk_squares *sum, hk_grad_type type, int64_t n, const void *grad) {
  assert(type == HK_GRAD_BF16 || type == HK_GRAD_FP16);
  for (int64_t i = 0; i < n; i += HK_SQUARES_MOST) {
    const int64_t rest = n - i;
    add_block(sum, type, rest < HK_SQUARES_MOST ? rest : HK_SQUARES_MOST,
              (const char *)grad + 2 * i);
  }
}

void hk_squares_merge(hk_squares *sum, const hk_squares *other) {
  for (int i = 0; i < HK_SQUARES_WORDS; i++) add_shifted(sum->words, other->words[i], 64 * i);
  sum->nonfinite += other->nonfinite;
}

double hk_squares_value(const hk_squares *sum) {
  int top = HK_SQUARES_WORDS - 1;
  while (top > 0 && sum->words[top] == 0) top--;
  const uint64_t high = sum->words[top];
  if (high == 0) return 0;
  /* The leading 64 bits; if anything is below them, the lowest tells so, being no tie then. */
  const int zeros = __builtin_clzll(high);
  uint64_t leading = high << zeros, below = 0;
  if (top > 0) {
    const uint64_t next = sum->words[top - 1];
    if (zeros > 0) leading |= next >> (64 - zeros);
    below = next << zeros;
  }
  for (int i = 0; i < top - 1; i++) below |= sum->words[i];
  leading |= (uint64_t)(below != 0);
  return ldexp((double)leading, 64 * top - zeros + LOWEST);
}

double hk_grad_scale(double sum_of_squares, double max_norm, double loss_scale) {
  double clip = 1;
  if (max_norm > 0) {
    const double norm = sqrt(sum_of_squares) / loss_scale;
    clip = fmin(1, max_norm / (norm + 1e-6));
  }
  return clip / loss_scale;
}
