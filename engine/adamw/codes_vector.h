/* SPDX-License-Identifier: Apache-2.0 */
/* The update of one block of codes of 8 bits, written once for all instruction sets: a part of
 * formats_vector.h, which includes it. */
#ifndef HK_ENGINE_ADAMW_CODES_VECTOR_H
#define HK_ENGINE_ADAMW_CODES_VECTOR_H

/* Stores p and, if `w` is not NULL, weights there, too. */
INLINE void store_p_of_codes(hk_format format, hk_state_at to, const pair *x, bool stream, char *w,
                             bool stream_weights) {
  upair p, high;
  for (int k = 0; k < 2; k++) {
    const uvec bits = (uvec)x->x[k];
    p.x[k] = uvec_add_where((umask)~not_down(bits), bits, uvec_set(0xffffffffu));
    high.x[k] = p.x[k] + uvec_set(0x8000u);
  }
  if (w != NULL) store_halves(w, high, stream_weights);
  if (hk_format_is_split(format)) {
    store_halves(to.p, high, stream);
    store_lower_halves(to.low, p, stream);
  } else {
    store_words(to.p, p, stream);
  }
}

/* Codes are decoded and encoded in the upper halves of fp32: lanes of 16 bits, in the order of
 * memory. p does not depend on the windows, so that one pass updates a block and stores p; it keeps
 * the upper halves of m and v, rounded. */
enum { PAIRS = HK_CODE_BLOCK / PAIR, SHARING = 32 / PAIR };

typedef struct {
  hk_format format;
  hk_grad_type type;
  constants c;
  const hk_adamw_step *step;
  bool stream, stream_weights;
} code_update;

/* One block: addresses of its first element; the windows before and after the update; and the
 * random numbers' key and the numbers of its first words. */
typedef struct {
  hk_state_at from, to;
  const char *grad;
  char *w;
  uint8_t before[2], after[2];
  const uint32_t *key;
  uvec number;
} code_block;

INLINE upair halves_apart(hvec x) {
  const uvec both = (uvec)x;
  return (upair){{both << 16, both & uvec_set(0xffff0000u)}};
}

INLINE hvec halves_together(uvec even, uvec odd) {
  return (hvec)(even >> 16 | (odd & uvec_set(0xffff0000u)));
}

/* Whether a block has codes of infinity or NaN, the two largest: the reference updates it. */
INLINE bool codes_are_special(hk_state_at at) {
  hvec most = hvec_set(0);
  for (int i = 0; i < HK_CODE_BLOCK; i += 4 * LANES) {
    most = hvec_most_bytes(most, (hvec)load_bits(at.m + i) | 0x8080);
    most = hvec_most_bytes(most, (hvec)load_bits(at.v + i));
  }
  return hvec_any_byte_from(most, HK_CODES_V + 1);
}

INLINE void load_moments(hk_state_at at, const uint8_t window[2], pair *m, pair *v) {
  const hvec codes_m = hvec_signed_bytes(at.m) << 4 & 0x87f0, codes_v = hvec_bytes(at.v) << 4;
  const upair bits_m =
      halves_apart(hvec_add_where(codes_m, 0x7f0, hvec_set((8 * window[0] - 1) << 4)));
  const upair bits_v =
      halves_apart(hvec_add_where(codes_v, 0xff0, hvec_set((8 * window[1] - 1) << 4)));
  for (int k = 0; k < 2; k++) m->x[k] = (vec)bits_m.x[k], v->x[k] = (vec)bits_v.x[k];
}

/* m and v of pair k after the update; NaN is not canonical. */
INLINE void begin_pair(const code_update *u, const code_block *b, int k, pair *m, pair *v) {
  const pair grads = load_grads(u->type, b->grad + k * PAIR * (int)hk_grad_size(u->type));
  load_moments(hk_state_at_element(u->format, b->from, k * PAIR), b->before, m, v);
  for (int j = 0; j < 2; j++) update_moments(&u->c, grads.x[j], &m->x[j], &v->x[j]);
}

/* p of pair k; `root`: of v. */
INLINE void finish_pair(const code_update *u, const code_block *b, int k, const pair *m,
                        const pair *root) {
  pair p = load_p(u->format, hk_state_at_element(u->format, b->from, k * PAIR));
  for (int j = 0; j < 2; j++) p.x[j] = next_p(&u->c, p.x[j], m->x[j], root->x[j]);
  if (__builtin_expect(vec_any_nan(p.x[0], p.x[1]), 0)) {
    for (int j = 0; j < 2; j++) p.x[j] = vec_canonical(p.x[j]);
  }
  store_p_of_codes(u->format, hk_state_at_element(u->format, b->to, k * PAIR), &p, u->stream,
                   b->w != NULL ? b->w + 2 * k * PAIR : NULL, u->stream_weights);
}

/* As hk_code_random, of pair k; pairs are asked for in their order. `words`: kept between. */
INLINE upair addends(code_block *b, int k, uvec words[SHARING]) {
  uvec word = words[k % SHARING];
  if (k / SHARING % 2 == 0) {
    word = random_words(b->key, b->number);
    b->number += uvec_set(LANES);
  } else {
    word = word << 8 | word >> 24;
  }
  words[k % SHARING] = word;
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

INLINE bool has_nan(const code_update *u, const code_block *b) {
  bool any = false;
  for (int k = 0; k < PAIRS; k++) {
    pair m, v;
    begin_pair(u, b, k, &m, &v);
    for (int j = 0; j < 2; j++) any |= vec_any_nan(m.x[j], v.x[j]);
  }
  return any;
}

/* Encodes a block that has values below the window of m, or v = 0: again from the codes and
 * gradients of before. */
INLINE void encode_block(const code_update *u, code_block b) {
  hvec last_m = hvec_set(0), last_v = hvec_set(0);
  uvec words[SHARING] = {uvec_set(0)};
  for (int k = 0; k < PAIRS; k++) {
    const hk_state_at at = hk_state_at_element(u->format, b.to, (k & ~1) * PAIR);
    const upair add = addends(&b, k, words);
    pair m, v;
    uvec code_m[2], code_v[2];
    begin_pair(u, &b, k, &m, &v);
    for (int j = 0; j < 2; j++) {
      code_m[j] = encode_m((uvec)m.x[j], add.x[j], uvec_set(b.after[0]));
      code_v[j] = encode_v((uvec)v.x[j], add.x[j], uvec_set(8u * b.after[1]));
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

/* The reference encodes a block with infinities, NaN or the largest values. */
INLINE void encode_by_reference(const code_update *u, code_block b, int64_t index) {
  float x[2][HK_CODE_BLOCK];
  for (int k = 0; k < PAIRS; k++) {
    pair m, v;
    begin_pair(u, &b, k, &m, &v);
    store_words((char *)(x[0] + k * PAIR), (upair){{(uvec)m.x[0], (uvec)m.x[1]}}, false);
    store_words((char *)(x[1] + k * PAIR), (upair){{(uvec)v.x[0], (uvec)v.x[1]}}, false);
  }
  hk_codes_write(b.to, u->step->key, index, HK_CODE_BLOCK, x[0], x[1]);
}

/* Updates one block, of element `index` on; false: nothing was stored, because the reference must
 * do it. p of a pair is computed beside m and v of the next one: divisions take long. */
INLINE bool update_code_block(const code_update *u, code_block b, int64_t index) {
  const code_block start = b;
  hvec m[PAIRS], v[PAIRS];
  hvec most_m = hvec_set(0), most_v = most_m, least_m = ~most_m, least_v = ~most_m;
  uvec words[SHARING] = {uvec_set(0)};
  pair last_m = {{vec_set(0)}}, last_root = last_m;
  if (__builtin_expect(codes_are_special(b.from), 0)) return false;
#pragma GCC unroll 8
  for (int k = 0; k < PAIRS; k++) {
    pair x, y;
    begin_pair(u, &b, k, &x, &y);
    const pair root = {{vec_sqrt(y.x[0]), vec_sqrt(y.x[1])}};
    const upair add = addends(&b, k, words);
    m[k] = rounded_halves(&x, &add), v[k] = rounded_halves(&y, &add);
    most_m = hvec_most(most_m, m[k] & 0x7fff), least_m = hvec_least(least_m, m[k] & 0x7fff);
    most_v = hvec_most(most_v, v[k]), least_v = hvec_least(least_v, v[k]);
    if (k > 0) finish_pair(u, &b, k - 1, &last_m, &last_root);
    last_m = x, last_root = root;
  }
  const uint32_t u_m = hvec_largest(most_m) >> 4, u_v = hvec_largest(most_v) >> 4;
  finish_pair(u, &b, PAIRS - 1, &last_m, &last_root);
  b = start;
  b.after[0] = (uint8_t)hk_code_window(u_m, HK_CODES_M);
  b.after[1] = (uint8_t)hk_code_window(u_v, HK_CODES_V);
  const uint16_t of_m = (uint16_t)(8 * b.after[0]), of_v = (uint16_t)(8 * b.after[1]);
  const bool large = u_m > HK_LARGEST || u_v > HK_LARGEST;
  b.to.windows[0] = (char)b.after[0], b.to.windows[1] = (char)b.after[1];
  if (__builtin_expect(large || hvec_any_below(least_m, hvec_set((of_m + 1) << 4)) ||
                           hvec_any_below(least_v, hvec_set(1 << 4)),
                       0)) {
    if (large || has_nan(u, &b)) {
      encode_by_reference(u, b, index);
    } else {
      encode_block(u, b);
    }
    return true;
  }
  for (int k = 0; k < PAIRS; k += 2) {
    const hk_state_at at = hk_state_at_element(u->format, b.to, k * PAIR);
    for (int j = k; j < k + 2; j++) {
      const hvec signed_m = m[j] - hvec_set((of_m - 1) << 4);
      m[j] = (signed_m << 4 | (signed_m & 0x8000)) >> 8;
      v[j] = (hvec_minus(v[j], hvec_set(of_v << 4)) >> 4) + 1;
    }
    hvec_store_bytes(at.m, m[k], m[k + 1], u->stream);
    hvec_store_bytes(at.v, v[k], v[k + 1], u->stream);
  }
  return true;
}

#endif
