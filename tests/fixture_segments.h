/* SPDX-License-Identifier: GPL-3.0-or-later */
/* GATHER and SCATTER of any backend against a second implementation. Each backend has one test
 * that includes this file; fixture_gpu.h defines `ops`, `gpu` and `stream`. */
#ifndef HK_TESTS_FIXTURE_SEGMENTS_H
#define HK_TESTS_FIXTURE_SEGMENTS_H

#include "tests/fixture_gpu.h"

/* -- Conversions, implemented otherwise than in the engine --------------------------------------
 */

static inline double half_value(uint32_t h) {
  const int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * (double)INFINITY : (double)NAN;
  return sign *
         ldexp(exponent == 0 ? fraction : fraction + 1024, exponent == 0 ? -24 : exponent - 25);
}

static inline float value_of(hk_grad_type type, uint32_t bits) {
  float x;
  if (type == HK_GRAD_FP16) return (float)half_value(bits);
  if (type == HK_GRAD_BF16) bits <<= 16;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* fp16 nearest to x: rint of x in units of the last place, ties to even. */
static inline uint32_t nearest_half(float x) {
  if (isnan(x)) return 0x7e00;
  const uint32_t sign = signbit(x) ? 0x8000 : 0;
  const double magnitude = fabs((double)x);
  if (magnitude >= 65520) return sign | 0x7c00; /* half-way from the largest, 65504, to 2^16 */
  int exponent = magnitude < 0x1p-14 ? -14 : ilogb(magnitude);
  double fraction = rint(ldexp(magnitude, 10 - exponent));
  if (fraction == 2048) {
    fraction = 1024;
    exponent++;
  }
  const uint32_t subnormal = fraction < 1024;
  return sign | (uint32_t)((exponent + 15 - (int)subnormal) << 10) | ((uint32_t)fraction & 1023);
}

static inline uint32_t nearest_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) return 0x7fc0;
  const uint32_t rest = bits & 0xffff, kept = bits >> 16;
  return kept + (rest > 0x8000 || (rest == 0x8000 && kept % 2 == 1));
}

static inline uint32_t nearest(hk_grad_type type, float x) {
  uint32_t bits = 0x7fc00000;
  if (type == HK_GRAD_FP16) return nearest_half(x);
  if (type == HK_GRAD_BF16) return nearest_bf16(x);
  if (!isnan(x)) memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline uint32_t load_bits(hk_grad_type type, const char *array, int64_t i) {
  uint32_t bits = 0;
  memcpy(&bits, array + (size_t)i * hk_grad_size(type), hk_grad_size(type)); /* little-endian */
  return bits;
}

static inline void store_bits(hk_grad_type type, char *array, int64_t i, uint32_t bits) {
  memcpy(array + (size_t)i * hk_grad_size(type), &bits, hk_grad_size(type));
}

/* -- Launches -----------------------------------------------------------------------------------
 */

/* Memory of the framework's side: pinned or plain host memory; 0: device memory. */
enum { SEGMENTS_PINNED = 1, SEGMENTS_PLAIN = 2 };

typedef struct {
  bool gather;
  int kind;     /* of memory. A gather reads it; a scatter reads PINNED (`mapped`), writes PLAIN */
  int n;        /* segments */
  int64_t most; /* values a segment */
  bool odd;     /* arrays begin at any element, not only at multiples of 16 bytes */
  uint64_t seed;
} segments_case;

typedef struct {
  hk_segment segments[HK_SEGMENTS_MOST];
  hk_bytes from_at[HK_SEGMENTS_MOST], to_at[HK_SEGMENTS_MOST];
  int set[HK_SEGMENTS_MOST]; /* -1: no squares */
  hk_bytes from_bytes, to_bytes;
  int64_t n;
  char *from, *to; /* expected contents, in plain memory */
  char *at_from, *at_to;
  uint64_t sets[HK_SEGMENTS_MOST][HK_SQUARES_MOST_WORDS], *at_sets;
  hk_squares squares[HK_SEGMENTS_MOST];
} segments_data;

static inline hk_bytes place_array(hk_bytes *end, int64_t n, hk_grad_type type, bool odd,
                                   random_stream *r) {
  const hk_bytes size = (hk_bytes)hk_grad_size(type);
  const hk_bytes at = (*end + 15) / 16 * 16 + (odd ? pick(r, 0, 8) * size : 0);
  *end = at + n * size + 16;
  return at;
}

/* Random segments. Some neighbours of one type share a set of squares. */
static inline void choose_segments(const segments_case *c, random_stream *r, segments_data *d) {
  for (int i = 0; i < c->n; i++) {
    hk_segment *s = &d->segments[i];
    s->n = pick(r, 0, 7) == 0 ? pick(r, 0, 9) : (int64_t)(uniform(r) * (double)(c->most + 1));
    s->from_type = (hk_grad_type)pick(r, 0, 2);
    s->to_type = s->from_type;
    if (!c->gather && s->from_type == HK_GRAD_FP32) s->to_type = (hk_grad_type)pick(r, 0, 2);
    d->set[i] = -1;
    if (c->gather) {
      s->add = pick(r, 0, 1);
      if (pick(r, 0, 3) > 0) d->set[i] = i;
      const bool same = i > 0 && d->segments[i - 1].to_type == s->to_type;
      if (same && pick(r, 0, 1)) d->set[i] = d->set[i - 1];
    }
    d->from_at[i] = place_array(&d->from_bytes, s->n, s->from_type, c->odd && pick(r, 0, 1), r);
    d->to_at[i] = place_array(&d->to_bytes, s->n, s->to_type, c->odd && pick(r, 0, 1), r);
    d->n += s->n;
  }
}

/* Fills the array with random bits, with values of a gradient's size, or with such values of which
 * a quarter is 0. */
static inline void fill_array(hk_grad_type type, char *array, int64_t n, random_stream *r) {
  const int kind = pick(r, 0, 3);
  for (int64_t i = 0; i < n; i++) {
    const uint32_t any = (uint32_t)next(r);
    const float small = (float)((uniform(r) - 0.5) * (uniform(r) < 1e-3 ? 1e-9 : 1e-2));
    uint32_t bits = kind < 2 ? any : nearest(type, small);
    if (kind == 3 && any % 4 == 0) bits = 0;
    store_bits(type, array, i, bits);
  }
}

static inline void expect_segment(const hk_segment *s, const char *from, char *to,
                                  hk_squares *sum) {
  for (int64_t i = 0; i < s->n; i++) {
    uint32_t bits = load_bits(s->from_type, from, i);
    if (s->add) {
      const float before = value_of(s->to_type, load_bits(s->to_type, to, i));
      bits = nearest(s->to_type, before + value_of(s->from_type, bits));
    } else if (s->from_type != s->to_type) {
      bits = nearest(s->to_type, value_of(HK_GRAD_FP32, bits));
    }
    store_bits(s->to_type, to, i, bits);
  }
  if (sum != NULL) hk_squares_add(sum, s->to_type, s->n, to);
}

static inline hk_status open_segments(const segments_case *c, segments_data *d, hk_error *err) {
  const bool plain_from = c->kind == SEGMENTS_PLAIN && c->gather;
  const bool plain_to = c->kind == SEGMENTS_PLAIN && !c->gather;
  d->from = plain(d->from_bytes), d->to = plain(d->to_bytes);
  if (plain_from) {
    d->at_from = plain(d->from_bytes);
  } else if (c->kind == SEGMENTS_PINNED) {
    HK_TRY(pinned(d->from_bytes, &d->at_from, err));
  } else {
    HK_TRY(ops->alloc(gpu, d->from_bytes, (void **)&d->at_from, err));
  }
  if (plain_to) {
    d->at_to = plain(d->to_bytes);
  } else {
    HK_TRY(ops->alloc(gpu, d->to_bytes, (void **)&d->at_to, err));
  }
  return ops->alloc(gpu, sizeof d->sets, (void **)&d->at_sets, err);
}

static inline void close_segments(const segments_case *c, segments_data *d) {
  if (c->kind == SEGMENTS_PLAIN && c->gather) {
    free(d->at_from);
  } else if (c->kind == SEGMENTS_PINNED) {
    unpin(d->at_from, d->from_bytes);
  } else {
    ops->release(gpu, d->at_from);
  }
  if (c->kind == SEGMENTS_PLAIN && !c->gather) {
    free(d->at_to);
  } else {
    ops->release(gpu, d->at_to);
  }
  ops->release(gpu, d->at_sets);
  free(d->from), free(d->to), free(d);
}

static inline hk_status upload_segments(const segments_case *c, random_stream *r, segments_data *d,
                                        hk_error *err) {
  for (hk_bytes i = 0; i < d->to_bytes; i++) d->to[i] = (char)(i * 7);
  memset(d->from, 0x11, (size_t)d->from_bytes);
  for (int i = 0; i < c->n; i++) {
    hk_segment *s = &d->segments[i];
    fill_array(s->from_type, d->from + d->from_at[i], s->n, r);
    if (s->add) fill_array(s->to_type, d->to + d->to_at[i], s->n, r);
    s->from = d->at_from + d->from_at[i];
    s->to = d->at_to + d->to_at[i];
    if (d->set[i] >= 0) s->bins = d->at_sets + d->set[i] * HK_SQUARES_MOST_WORDS;
  }
  HK_TRY(ops->copy(stream, d->at_from, d->from, d->from_bytes, err));
  HK_TRY(ops->copy(stream, d->at_to, d->to, d->to_bytes, err));
  HK_TRY(ops->copy(stream, d->at_sets, d->sets, sizeof d->sets, err));
  return ops->stream_sync(stream, err);
}

static inline hk_status compare_segments(const segments_case *c, segments_data *d, hk_error *err) {
  for (int i = 0; i < c->n; i++) {
    expect_segment(&d->segments[i], d->from + d->from_at[i], d->to + d->to_at[i],
                   d->set[i] < 0 ? NULL : &d->squares[d->set[i]]);
  }
  HK_TRY(compare(stream, "what was written", d->at_to, d->to, d->to_bytes, err));
  HK_TRY(compare(stream, "what was read", d->at_from, d->from, d->from_bytes, err));
  HK_TRY(ops->copy(stream, d->sets, d->at_sets, sizeof d->sets, err));
  HK_TRY(ops->stream_sync(stream, err));
  for (int i = 0; i < c->n; i++) {
    if (d->set[i] < 0) continue;
    hk_squares got = {0};
    hk_squares_add_set(&got, d->segments[i].to_type, d->sets[d->set[i]]);
    if (memcmp(&got, &d->squares[d->set[i]], sizeof got) != 0) {
      return hk_fail(err, HK_NO,
                     "squares of segment %d: %.17g and %llu not finite, expected %.17g "
                     "and %llu",
                     i, hk_squares_value(&got), (unsigned long long)got.nonfinite,
                     hk_squares_value(&d->squares[d->set[i]]),
                     (unsigned long long)d->squares[d->set[i]].nonfinite);
    }
  }
  return HK_OK;
}

static inline hk_status launch_segments(const segments_case *c, segments_data *d, hk_error *err) {
  hk_segment given[HK_SEGMENTS_MOST];
  memcpy(given, d->segments, sizeof given);
  const hk_kernel kernel = {.kind = c->gather ? HK_KERNEL_GATHER : HK_KERNEL_SCATTER,
                            .n = d->n,
                            .mapped = c->kind == SEGMENTS_PINNED,
                            .segments = given,
                            .n_segments = c->n};
  HK_TRY(ops->launch(stream, &kernel, err));
  memset(given, 0xff, sizeof given); /* launch() must not read it after it returns */
  return ops->stream_sync(stream, err);
}

static inline void check_segments(const segments_case *c) {
  hk_error err = {0};
  random_stream r = {c->seed};
  segments_data *d = calloc(1, sizeof *d);
  assert_non_null(d);
  if (d == NULL) return; /* for the analyser */
  choose_segments(c, &r, d);
  d->from_bytes += 16, d->to_bytes += 16;
  hk_status status = open_segments(c, d, &err);
  if (status == HK_OK) status = upload_segments(c, &r, d, &err);
  if (status == HK_OK) status = launch_segments(c, d, &err);
  if (status == HK_OK) status = compare_segments(c, d, &err);
  close_segments(c, d);
  if (status == HK_OK) return;
  hk_fail_prefix(&err, "%s, seed %llu, %d segments of up to %lld, memory %d%s",
                 c->gather ? "gather" : "scatter", (unsigned long long)c->seed, c->n,
                 (long long)c->most, c->kind, c->odd ? ", odd places" : "");
  must(status, &err);
}

/* `plain`: the backend accepts plain host memory on the framework's side. */
static inline void check_many_segments(bool gather, bool plain) {
  static const int counts[] = {1, 2, 3, 17, HK_SEGMENTS_MOST};
  static const int64_t sizes[] = {0, 9, 100, 3000, 9000};
  random_stream r = {gather ? 1 : 2};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
      for (int odd = 0; odd < 3; odd++) {
        int kind = pick(&r, 0, 1) * (gather ? SEGMENTS_PLAIN : pick(&r, 1, 2));
        if (kind == SEGMENTS_PLAIN && !plain) kind = 0;
        check_segments(&(segments_case){.gather = gather,
                                        .kind = kind,
                                        .n = counts[i],
                                        .most = sizes[j],
                                        .odd = odd > 0,
                                        .seed = next(&r)});
      }
    }
  }
}

/* More values than a launch on a GPU has threads, and segments of very different sizes. */
static inline void check_large_segments(bool gather) {
  for (int i = 0; i < 8; i++) {
    const int kind = !gather && i % 2 ? SEGMENTS_PINNED : 0;
    check_segments(&(segments_case){.gather = gather,
                                    .kind = kind,
                                    .n = i < 4 ? 1 : 5,
                                    .most = i < 4 ? 6000000 : 1000000,
                                    .odd = i % 4 == 3,
                                    .seed = (uint64_t)i + 50});
  }
}

/* -- Refusals -----------------------------------------------------------------------------------
 */

static inline void refuse_segments(const hk_kernel *k, const char *what) {
  hk_error err = {0};
  assert_int_equal(ops->launch(stream, k, &err), HK_INPUT);
  if (strstr(err.message, what) == NULL) fail_msg("'%s' without '%s'", err.message, what);
}

static inline void check_refused_segments(void) {
  hk_error err = {0};
  char *memory = NULL;
  must(ops->alloc(gpu, 4096, (void **)&memory, &err), &err);
  const hk_segment good = {.from = memory, .to = memory + 1024, .n = 8};
  hk_segment s[2] = {good, good};
  hk_kernel k = {.kind = HK_KERNEL_GATHER, .n = 8, .segments = s, .n_segments = 0};
  refuse_segments(&k, "1 to 64");
  k.n_segments = HK_SEGMENTS_MOST + 1;
  refuse_segments(&k, "1 to 64");
  k.n_segments = 2;
  refuse_segments(&k, "its segments have 16");
  k.n = 16;
  s[1].n = -1;
  refuse_segments(&k, "segment 1");
  s[1] = good;
  s[1].to_type = HK_GRAD_FP32;
  refuse_segments(&k, "keeps the type");
  s[1].to_type = HK_GRAD_TYPES;
  refuse_segments(&k, "is out of range");
  s[1] = good;
  s[1].from = memory + 1;
  refuse_segments(&k, "not a multiple of its elements' size");
  s[1] = good;
  s[1].n = HK_SQUARES_MOST + 1;
  s[1].bins = (uint64_t *)(void *)memory;
  refuse_segments(&k, "at most");
  k.kind = HK_KERNEL_SCATTER;
  s[1] = good;
  s[1].to_type = HK_GRAD_FP16;
  refuse_segments(&k, "only fp32");
  s[1] = good;
  s[1].add = true;
  refuse_segments(&k, "only a gather");
  s[1] = good;
  s[0].n = s[1].n = k.n = 0; /* an empty launch succeeds */
  must(ops->launch(stream, &k, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  ops->release(gpu, memory);
}

#endif
