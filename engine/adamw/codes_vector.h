/* SPDX-License-Identifier: Apache-2.0 */
/* The update of one block of codes of 8 bits, written once for all instruction sets: a part of
 * formats_vector.h, which includes it. */
#ifndef HK_ENGINE_ADAMW_CODES_VECTOR_H
#define HK_ENGINE_ADAMW_CODES_VECTOR_H

/* Codes are decoded and encoded in the upper halves of fp32: lanes of 16 bits, in the order of
 * memory. A first pass over a block updates m and v and finds the windows; before it ends nothing
 * is stored. The second one stores codes and p. */
enum { PAIRS = HK_CODE_BLOCK / PAIR, SHARING = 32 / PAIR };

typedef struct {
  hk_format format;
  hk_grad_type type;
  constants c;
  uint32_t key[2]; /* of random numbers */
  int ahead;       /* as in hk_adamw_tuning */
  bool stream, stream_weights;
  bool keeps_v; /* a v that was not 0, and so is at least 2^-126, does not become 0 */
} code_update;

/* One block: addresses of its first element, the windows before the update, and the numbers of its
 * first random words. */
typedef struct {
  hk_state_at from, to;
  const char *grad;
  char *w;
  uint32_t before[2], number;
} code_block;

INLINE upair halves_apart(hvec x) {
  const uvec both = (uvec)x;
  return (upair){{both << 16, both & uvec_set(0xffff0000u)}};
}

INLINE hvec halves_together(uvec even, uvec odd) {
  return (hvec)(even >> 16 | (odd & uvec_set(0xffff0000u)));
}

/* Prefetches `size` bytes an element of a pair, each line once. Pair by pair: the fill buffers hold
 * fewer lines than a block has. */
INLINE void prefetch_pair(const code_update *u, const char *at, int k, int size) {
  const int begin = k * PAIR * size;
  if (u->ahead > 0 && begin % LINE == 0) prefetch(at + begin, u->ahead * size / 4, PAIR * size);
}

/* What the codes of a block hold: infinity or NaN, the two largest codes, then the reference
 * updates it; or a v of 0. */
typedef struct {
  bool special, zero_v;
} code_kinds;

INLINE code_kinds kinds_of_codes(hk_state_at at) {
  hvec most = hvec_set(0), least = ~most;
  for (int i = 0; i < HK_CODE_BLOCK; i += 4 * LANES) {
    const hvec v = (hvec)load_bits(at.v + i);
    most = hvec_most_bytes(most, (hvec)load_bits(at.m + i) | 0x8080);
    most = hvec_most_bytes(most, v);
    least = hvec_least_bytes(least, v);
  }
  return (code_kinds){hvec_any_byte_from(most, HK_CODES_V + 1), hvec_any_byte_0(least)};
}

INLINE void load_moments(hk_state_at at, const uint32_t window[2], pair *m, pair *v) {
  const hvec codes_m = hvec_signed_bytes(at.m) << 4 & 0x87f0, codes_v = hvec_bytes(at.v) << 4;
  const upair bits_m =
      halves_apart(hvec_add_where(codes_m, 0x7f0, hvec_set((int)(8 * window[0] - 1) << 4)));
  const upair bits_v =
      halves_apart(hvec_add_where(codes_v, 0xff0, hvec_set((int)(8 * window[1] - 1) << 4)));
  for (int k = 0; k < 2; k++) m->x[k] = (vec)bits_m.x[k], v->x[k] = (vec)bits_v.x[k];
}

/* m and v of pair k after the update; NaN is not canonical. */
INLINE void begin_pair(const code_update *u, const code_block *b, int k, pair *m, pair *v) {
  const pair grads = load_grads(u->type, b->grad + k * PAIR * (int)hk_grad_size(u->type));
  load_moments(hk_state_at_element(u->format, b->from, k * PAIR), b->before, m, v);
  for (int j = 0; j < 2; j++) update_moments(&u->c, grads.x[j], &m->x[j], &v->x[j]);
}

/* x / root2, rounded once, without a division: the first quotient is less than one unit in the last
 * place off, its remainder is exact, and the inverse rounded to nearest, so that the second one is
 * the nearest (Markstein, IBM Journal of Research and Development 34, 1990). x must be
 * finite, root2 not 0. */
INLINE vec over_root2(const constants *c, vec x) {
  const vec q = vec_fma(x, c->inverse, x * c->inverse_low);
  return vec_fma(vec_fma(q, c->minus_root2, x), c->inverse, q);
}

/* p of pair k. A NaN is not canonical, and a tie is rounded up; *usual: neither was met. */
INLINE void finish_pair(const code_update *u, const code_block *b, int k, pair m, pair root,
                        umask *usual) {
  const pair before = load_p(u->format, hk_state_at_element(u->format, b->from, k * PAIR));
  pair d;
  for (int j = 0; j < 2; j++) d.x[j] = over_root2(&u->c, root.x[j]) + u->c.eps;
  const pair x = next_p(u->format, &u->c, before, m, d);
  upair p, high;
  for (int j = 0; j < 2; j++) {
    p.x[j] = (uvec)x.x[j];
    high.x[j] = p.x[j] + uvec_set(0x8000u);
  }
  *usual = vec_usual(*usual, x.x, high.x);
  store_p(u->format, hk_state_at_element(u->format, b->to, k * PAIR), p, high, u->stream,
          b->w != NULL ? b->w + 2 * k * PAIR : NULL, u->stream_weights);
}

/* Random words of pairs, and the numbers of the next ones. */
typedef struct {
  uvec words[SHARING], number;
} randoms;

INLINE randoms randoms_of(const code_block *b) {
  return (randoms){{uvec_set(0)}, uvec_count() + uvec_set(b->number)};
}

/* As hk_code_random, of pair k; pairs are asked for in their order. */
INLINE upair addends(const code_update *u, int k, randoms *r) {
  uvec word = r->words[k % SHARING];
  if (k / SHARING % 2 == 0) {
    word = random_words(u->key, r->number);
    r->number += uvec_set(LANES);
  } else {
    word = word << 8 | word >> 24;
  }
  r->words[k % SHARING] = word;
  return (upair){{(word << 4 & uvec_set(0xffff0u)) | uvec_set(8), word >> 12}};
}

/* Upper halves after rounding. A carry reaches the sign of NaN alone, and then leaves 0 below. */
INLINE hvec rounded_halves(const pair *x, const upair *add) {
  return halves_together((uvec)x->x[0] + add->x[0], (uvec)x->x[1] + add->x[1]);
}

INLINE uvec encode_v(uvec bits, uvec add, uvec window8) {
  const uvec u = (bits + add) >> HK_FINEST, one = uvec_set(1);
  const uvec code = uvec_most(u + one, window8 + one) - window8; /* at least 1 */
  return uvec_where(uvec_differ(bits, uvec_set(0)), code, bits);
}

INLINE uvec encode_m(uvec bits, uvec add, uvec window) {
  const uvec magnitude = bits & uvec_set(0x7fffffffu), exponent = magnitude >> 23;
  const uvec code = ((magnitude + add) >> HK_FINEST) - (window << 3) + uvec_set(1);
  uvec share = (magnitude & uvec_set(0x7fffffu)) | uvec_set(0x800000u);
  share = uvec_shift(share, window - exponent + uvec_set(7));
  share = uvec_where(uvec_differ(exponent, uvec_set(0)), share, uvec_set(0));
  const uvec up = uvec_where(uvec_below(add >> 4, share), uvec_set(1), uvec_set(0));
  return uvec_where(uvec_below(exponent, window), up, code) | (bits >> 24 & uvec_set(0x80u));
}

/* Encodes a block that has values at or below the least of m's window, or v = 0: again from the
 * codes and gradients of before. */
INLINE void encode_block(const code_update *u, const code_block *b, const uint32_t window[2]) {
  hvec last_m = hvec_set(0), last_v = hvec_set(0);
  randoms r = randoms_of(b);
  for (int k = 0; k < PAIRS; k++) {
    const hk_state_at at = hk_state_at_element(u->format, b->to, (k & ~1) * PAIR);
    const upair add = addends(u, k, &r);
    pair m, v;
    uvec code_m[2], code_v[2];
    begin_pair(u, b, k, &m, &v);
    for (int j = 0; j < 2; j++) {
      code_m[j] = encode_m((uvec)m.x[j], add.x[j], uvec_set(window[0]));
      code_v[j] = encode_v((uvec)v.x[j], add.x[j], uvec_set(8 * window[1]));
    }
    const hvec of_m = (hvec)(code_m[0] | code_m[1] << 16);
    const hvec of_v = (hvec)(code_v[0] | code_v[1] << 16);
    if (k % 2 != 0) {
      hvec_store_bytes(at.m, last_m, of_m, u->stream);
      hvec_store_bytes(at.v, last_v, of_v, u->stream);
    }
    last_m = of_m, last_v = of_v;
  }
}

/* m and v of a block after the update. */
typedef struct {
  pair m[PAIRS], root[PAIRS];              /* root: of v */
  hvec rounded_m[PAIRS], rounded_v[PAIRS]; /* the upper halves */
  hvec least_m;                            /* the smallest of |m|'s upper halves */
  uint32_t most_m, most_v;                 /* the largest u */
} moments;

INLINE bool has_nan(const moments *x) {
  bool any = false;
  for (int k = 0; k < PAIRS; k++) {
    for (int j = 0; j < 2; j++) any |= vec_any_nan(x->m[k].x[j], x->root[k].x[j]);
  }
  return any;
}

INLINE void update_block_moments(const code_update *u, const code_block *b, moments *x) {
  hvec most_m = hvec_set(0), most_v = most_m;
  x->least_m = ~most_m;
  randoms r = randoms_of(b);
#pragma GCC unroll 16
  for (int k = 0; k < PAIRS; k++) {
    prefetch_pair(u, b->grad, k, (int)hk_grad_size(u->type));
    prefetch_pair(u, b->from.m, k, 1);
    prefetch_pair(u, b->from.v, k, 1);
    pair v;
    begin_pair(u, b, k, &x->m[k], &v);
    for (int j = 0; j < 2; j++) x->root[k].x[j] = vec_sqrt(v.x[j]);
    const upair add = addends(u, k, &r);
    x->rounded_m[k] = rounded_halves(&x->m[k], &add);
    x->rounded_v[k] = rounded_halves(&v, &add);
    const hvec magnitude = x->rounded_m[k] & 0x7fff;
    most_m = hvec_most(most_m, magnitude);
    x->least_m = hvec_least(x->least_m, magnitude);
    most_v = hvec_most(most_v, x->rounded_v[k]);
  }
  x->most_m = hvec_largest(most_m) >> 4;
  x->most_v = hvec_largest(most_v) >> 4;
}

/* Stores codes of pairs k and k + 1. m is above its window, so that its sign stays. */
INLINE void store_codes(const code_update *u, const code_block *b, int k, const moments *x,
                        const uint32_t window[2]) {
  const hk_state_at at = hk_state_at_element(u->format, b->to, k * PAIR);
  hvec m[2], v[2];
  for (int j = 0; j < 2; j++) {
    const hvec signed_m = x->rounded_m[k + j] - hvec_set((int)(8 * window[0] - 1) << 4);
    m[j] = (signed_m << 4 | (signed_m & 0x8000)) >> 8;
    v[j] = (hvec_minus(x->rounded_v[k + j], hvec_set((int)(8 * window[1]) << 4)) >> 4) + 1;
  }
  hvec_store_bytes(at.m, m[0], m[1], u->stream);
  hvec_store_bytes(at.v, v[0], v[1], u->stream);
}

/* Updates one block; false: nothing was stored, because the reference must do it: it has
 * infinities, NaN or the largest values. */
INLINE bool update_code_block(const code_update *u, const code_block *b) {
  moments x;
  const code_kinds kinds = kinds_of_codes(b->from);
  if (__builtin_expect(kinds.special, 0)) return false;
  update_block_moments(u, b, &x);
  if (__builtin_expect(x.most_m > HK_LARGEST || x.most_v > HK_LARGEST, 0)) return false;
  const uint32_t window[2] = {hk_code_window(x.most_m, HK_CODES_M),
                              hk_code_window(x.most_v, HK_CODES_V)};
  /* The least value of the window, u = 8 window, may have been rounded up from below it, where the
   * reference rounds in other steps: such blocks are encoded anew. */
  const bool plain =
      !kinds.zero_v && u->keeps_v && !hvec_any_below(x.least_m, (8 * window[0] + 1) << 4);
  if (__builtin_expect(!plain, 0) && has_nan(&x)) return false;
  umask usual = vec_all();
#pragma GCC unroll 16
  for (int k = 0; k < PAIRS; k++) {
    prefetch_pair(u, b->from.p, k, (int)hk_format_size(u->format, 0));
    if (hk_format_is_split(u->format)) prefetch_pair(u, b->from.low, k, 2);
    finish_pair(u, b, k, x.m[k], x.root[k], &usual);
    if (k % 2 != 0 && plain) store_codes(u, b, k - 1, &x, window);
  }
  if (__builtin_expect(!plain, 0)) encode_block(u, b, window);
  for (int k = 0; k < 2; k++) b->to.windows[k] = (char)(uint8_t)window[k];
  if (__builtin_expect(vec_any_not(usual), 0)) {
    hk_code_mend(u->format, HK_CODE_BLOCK, b->to, (uint16_t *)(void *)b->w);
  }
  return true;
}

#endif
