/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums of squares of floating-point values, in integers. */
#include "engine/adamw/squares.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
  LOWEST = -298,   /* value of the lowest bit of words[0]: 2^LOWEST */
  EXPONENTS = 256, /* number of biased exponents of bf16 and fp32; fp16 has 32 */
  BY_BIN = 8,      /* exponents per bin of bf16 and fp16 */
  PIECE = 32,      /* word i + 1 of an fp32 set is worth 2^PIECE times word i */
  BLOCK = 1 << 16, /* number of squares of 48 bits whose sum fits in 64 bits */
  WAYS =
      4, /* sums used in turn, so that an addition need not wait for the store of the one before */
  BATCH = 256, /* number of values split at a time; their parts fit in the L1 cache */
};

/* value = significand x 2^(biased exponent + base) */
typedef struct {
  int bytes, fraction_bits, exponents, base;
} format;

static const format bf16 = {2, 7, 256, -134}, fp16 = {2, 10, 32, -25}, fp32 = {4, 23, 256, -150};

int hk_squares_bin_words(hk_grad_type type) {
  return (type == HK_GRAD_FP32 ? HK_SQUARES_FP32_BINS : HK_SQUARES_BINS) + 1;
}

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
    add_shifted(sum->words, bins[b], 2 * (b * BY_BIN + f->base) - LOWEST);
  }
}

void hk_squares_add_set(hk_squares *sum, hk_grad_type type, const uint64_t *set) {
  sum->nonfinite += set[hk_squares_bin_words(type) - 1];
  if (type != HK_GRAD_FP32) {
    hk_squares_add_bins(sum, type, set);
    return;
  }
  for (int i = 0; i < HK_SQUARES_FP32_BINS; i++) add_shifted(sum->words, set[i], PIECE * i);
}

/* Splits n <= BATCH values into exponents and squares of significands; returns how many values are
 * not finite. It has no branches, so that compilers can vectorize it. */
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

/* The same for fp32. */
static inline uint64_t split_wide(int n, const char *grad, uint16_t exponent[BATCH],
                                  uint64_t square[BATCH]) {
  const uint32_t hidden = 1u << 23, infinity = 0x7f800000u;
  uint32_t bits[BATCH];
  memcpy(bits, grad, sizeof bits[0] * (size_t)n);
  unsigned nonfinite = 0;
  for (int i = 0; i < n; i++) {
    const uint32_t magnitude = bits[i] & 0x7fffffffu;
    const uint32_t s = (magnitude & (hidden - 1)) | (magnitude >= hidden ? hidden : 0);
    exponent[i] = (uint16_t)(magnitude >> 23);
    square[i] = (uint64_t)s * s;
    nonfinite += magnitude >= infinity;
  }
  return nonfinite;
}

/* Adds the squares of at most BLOCK values to sums by exponent, without shifts, so that a square
 * has at most 48 bits. Values that are not finite are counted, and added to the last exponent's
 * sum, which is not used. */
static inline uint64_t tally(format f, int64_t n, const char *grad,
                             uint64_t sums[WAYS][EXPONENTS]) {
  uint64_t nonfinite = 0;
  for (int64_t i = 0; i < n; i += BATCH) {
    const int batch = n - i < BATCH ? (int)(n - i) : BATCH;
    uint16_t exponent[BATCH];
    uint32_t narrow[BATCH];
    uint64_t wide[BATCH];
    const bool is_wide = f.bytes == 4;
    nonfinite += is_wide ? split_wide(batch, grad + f.bytes * i, exponent, wide)
                         : split(f, batch, grad + f.bytes * i, exponent, narrow);
    int k = 0;
    for (; k + WAYS <= batch; k += WAYS) {
      for (int way = 0; way < WAYS; way++) {
        sums[way][exponent[k + way]] += is_wide ? wide[k + way] : narrow[k + way];
      }
    }
    for (; k < batch; k++) sums[0][exponent[k]] += is_wide ? wide[k] : narrow[k];
  }
  return nonfinite;
}

static const format *format_of(hk_grad_type type) {
  static const format *const formats[HK_GRAD_TYPES] = {&bf16, &fp16, &fp32};
  return formats[type];
}

/* Computes the sums of at most BLOCK values by exponent; subnormals count as exponent 1. Returns
 * how many values are not finite. */
static uint64_t sum_block(hk_grad_type type, int64_t n, const char *grad,
                          uint64_t sums[EXPONENTS]) {
  uint64_t ways[WAYS][EXPONENTS] = {{0}};
  const uint64_t nonfinite = type == HK_GRAD_BF16   ? tally(bf16, n, grad, ways)
                             : type == HK_GRAD_FP16 ? tally(fp16, n, grad, ways)
                                                    : tally(fp32, n, grad, ways);
  for (int e = 0; e < EXPONENTS; e++) {
    sums[e] = 0;
    for (int way = 0; way < WAYS; way++) sums[e] += ways[way][e];
  }
  sums[1] += sums[0];
  sums[0] = sums[format_of(type)->exponents - 1] = 0;
  return nonfinite;
}

void hk_squares_add(hk_squares *sum, hk_grad_type type, int64_t n, const void *grad) {
  const format *f = format_of(type);
  for (int64_t i = 0; i < n; i += BLOCK) {
    uint64_t sums[EXPONENTS];
    const int64_t block = n - i < BLOCK ? n - i : BLOCK;
    sum->nonfinite += sum_block(type, block, (const char *)grad + f->bytes * i, sums);
    for (int e = 1; e < f->exponents; e++) {
      if (sums[e] != 0) add_shifted(sum->words, sums[e], 2 * (e + f->base) - LOWEST);
    }
  }
}

/* Adds a sum of squares of exponent e to an fp32 set, in pieces of 32 bits. 64 bits shifted by up
 * to 30 bits make three pieces. */
static void add_pieces(uint64_t *set, int e, uint64_t sum) {
  const int shift = 2 * ((e - 1) % 16);
  uint64_t *word = set + (e - 1) / 16;
  const uint64_t low = (sum & UINT32_MAX) << shift, high = (sum >> PIECE << shift) + (low >> PIECE);
  word[0] += low & UINT32_MAX;
  word[1] += high & UINT32_MAX;
  word[2] += high >> PIECE;
}

/* Adds the sum of squares of exponent e to a set. */
static void add_to_set(uint64_t *set, hk_grad_type type, int e, uint64_t sum) {
  if (type == HK_GRAD_FP32) {
    add_pieces(set, e, sum);
  } else {
    set[e / BY_BIN] += sum << 2 * (e % BY_BIN);
  }
}

/* The sums of n <= BATCH values by exponent, for exponents *low .. *high of those that occur; sums
 * of other exponents are not written. Short runs, such as a bias or a norm's weight, would spend
 * most of their time on exponents that do not occur. Returns how many values are not finite. */
static inline uint64_t tally_short(format f, int n, const char *grad, uint64_t sums[EXPONENTS],
                                   int *low, int *high) {
  uint16_t exponent[BATCH];
  uint32_t narrow[BATCH];
  uint64_t wide[BATCH], ways[WAYS][EXPONENTS];
  const bool is_wide = f.bytes == 4;
  const uint64_t nonfinite =
      is_wide ? split_wide(n, grad, exponent, wide) : split(f, n, grad, exponent, narrow);
  uint16_t least = UINT16_MAX, most = 0;
  for (int i = 0; i < n; i++) {
    least = exponent[i] < least ? exponent[i] : least;
    most = exponent[i] > most ? exponent[i] : most;
  }
  for (int way = 0; way < WAYS; way++) {
    memset(ways[way] + least, 0, sizeof(uint64_t) * (size_t)(most - least + 1));
  }
  for (int i = 0; i < n; i++) ways[i % WAYS][exponent[i]] += is_wide ? wide[i] : narrow[i];
  for (int e = least; e <= most; e++) {
    sums[e] = ways[0][e] + ways[1][e] + ways[2][e] + ways[3][e];
  }
  *low = least;
  *high = most;
  return nonfinite;
}

/* Adds 1 .. BATCH values to a set. */
static void fill_short(uint64_t *set, hk_grad_type type, int n, const void *grad) {
  uint64_t sums[EXPONENTS];
  int low = 0, high = 0;
  set[hk_squares_bin_words(type) - 1] +=
      type == HK_GRAD_BF16   ? tally_short(bf16, n, grad, sums, &low, &high)
      : type == HK_GRAD_FP16 ? tally_short(fp16, n, grad, sums, &low, &high)
                             : tally_short(fp32, n, grad, sums, &low, &high);
  /* The last exponent has infinities and NaN; exponent 0, subnormals, is worth as much as 1. */
  for (int e = low; e <= high && e < format_of(type)->exponents - 1; e++) {
    if (sums[e] != 0) add_to_set(set, type, e > 0 ? e : 1, sums[e]);
  }
}

void hk_squares_fill_set(uint64_t *set, hk_grad_type type, int64_t n, const void *grad) {
  const format *f = format_of(type);
  if (n > 0 && n <= BATCH) {
    fill_short(set, type, (int)n, grad);
    return;
  }
  for (int64_t i = 0; i < n; i += BLOCK) {
    uint64_t sums[EXPONENTS];
    const int64_t block = n - i < BLOCK ? n - i : BLOCK;
    set[hk_squares_bin_words(type) - 1] +=
        sum_block(type, block, (const char *)grad + f->bytes * i, sums);
    for (int e = 1; e < f->exponents; e++) add_to_set(set, type, e, sums[e]);
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
  /* The leading 64 bits. If any lower bit is set, the lowest of them is set as well, so that the
   * conversion does not see a tie. */
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

void hk_squares_to_pieces(const hk_squares *sum, int64_t pieces[HK_SQUARES_PIECES]) {
  for (int i = 0; i < HK_SQUARES_WORDS; i++) {
    pieces[2 * i] = (int64_t)(sum->words[i] & UINT32_MAX);
    pieces[2 * i + 1] = (int64_t)(sum->words[i] >> PIECE);
  }
  pieces[HK_SQUARES_PIECES - 1] = (int64_t)sum->nonfinite;
}

hk_status hk_squares_from_pieces(const int64_t pieces[HK_SQUARES_PIECES], hk_squares *sum,
                                 hk_error *err) {
  hk_squares whole = {.nonfinite = (uint64_t)pieces[HK_SQUARES_PIECES - 1]};
  uint64_t carry = 0;
  for (int i = 0; i < HK_SQUARES_PIECES; i++) {
    if (pieces[i] < 0) {
      return hk_fail(err, HK_INPUT,
                     "piece %d of a sum of squares is %lld: it is not negative, and the pieces of "
                     "at most 2^31 ranks may be added",
                     i, (long long)pieces[i]);
    }
    if (i == HK_SQUARES_PIECES - 1) break;
    carry += (uint64_t)pieces[i]; /* below 2^63 + 2^32 */
    whole.words[i / 2] |= (carry & UINT32_MAX) << PIECE * (i % 2);
    carry >>= PIECE;
  }
  if (carry != 0) {
    return hk_fail(err, HK_INPUT,
                   "a sum of squares of more than %d bits: these pieces are not sums of those that "
                   "ranks have returned",
                   64 * HK_SQUARES_WORDS);
  }
  *sum = whole;
  return HK_OK;
}

double hk_grad_scale(double sum_of_squares, double max_norm, double loss_scale) {
  double clip = 1;
  if (max_norm > 0) {
    const double norm = sqrt(sum_of_squares) / loss_scale;
    clip = fmin(1, max_norm / (norm + 1e-6));
  }
  return clip / loss_scale;
}
