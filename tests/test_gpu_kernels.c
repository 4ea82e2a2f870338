/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The kernels of the CUDA backend, compared with the scalar reference bit by bit. Skipped (77),
 * with the reason, without a device.
 *
 *   test_gpu_kernels --backend host   the same checks where there is no GPU */
#include <pthread.h>

#include "tests/fixture.h"
#include "tests/fixture_gpu.h"

/* -- AdamW ------------------------------------------------------------------------------------- */

typedef struct {
  hk_grad_type type;
  int64_t numel, first, n;
  int grad_at, w_at; /* elements between an aligned address and the first */
  bool in_place, mapped, no_weights;
  bool patterns; /* 16-bit gradients are 0, 1, 2, ... as bits, fp32 gradients random bits */
} adamw_case;

static const hk_adamw HYPER[] = {
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01},
    {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-5, .weight_decay = 0.1},
    {.lr = 0.7, .beta1 = 0.0, .beta2 = 0.5, .eps = 0.0, .weight_decay = 0.0},
};

typedef struct {
  hk_slab_shape shape;
  hk_bytes state_bytes, grad_bytes, w_bytes;
  char *from, *to, *grad, *w; /* input and expected output, in plain memory */
  char *at_from, *at_to;      /* the kernel's slabs */
  char *at_grad, *at_w;       /* its arrays, in device memory */
} adamw_data;

static void make_state(char *state, const hk_slab_shape *shape, int64_t slabs, random_stream *r) {
  memset(state, 0xa5, (size_t)(slabs * shape->bytes));
  const hk_bytes part[3] = {0, shape->m, shape->v};
  for (int64_t s = 0; s < slabs; s++) {
    for (int k = 0; k < 3; k++) {
      float *x = (float *)(state + s * shape->bytes + part[k]);
      for (int64_t i = 0; i < shape->numel; i++) x[i] = state_value(r, k);
    }
  }
}

static void make_grads(char *grad, const adamw_case *c, random_stream *r) {
  for (int64_t i = 0; i < c->n; i++) {
    const float normal = (float)((uniform(r) - 0.5) * 0.1);
    uint32_t bits;
    memcpy(&bits, &normal, sizeof bits);
    if (c->type != HK_GRAD_FP32) bits >>= c->type == HK_GRAD_BF16 ? 16 : 15;
    if (c->patterns) bits = c->type == HK_GRAD_FP32 ? (uint32_t)next(r) : (uint32_t)i;
    const size_t size = hk_grad_size(c->type);
    memcpy(grad + (size_t)(c->grad_at + i) * size, &bits, size); /* little-endian */
  }
}

/* The reference, slab by slab, on d->to and d->w. */
static void update_expected(const adamw_case *c, const hk_adamw_step *step, adamw_data *d) {
  const hk_bytes part[3] = {0, d->shape.m, d->shape.v};
  for (int64_t done = 0, n = 0; done < c->n; done += n) {
    const int64_t at = (c->first + done) % c->numel;
    const hk_bytes slab = (c->first + done) / c->numel * d->shape.bytes;
    n = c->n - done < c->numel - at ? c->n - done : c->numel - at;
    float *x[3];
    for (int k = 0; k < 3; k++) {
      const hk_bytes place = slab + part[k] + at * 4;
      x[k] = (float *)(d->to + place);
      memmove(x[k], d->from + place, (size_t)n * 4);
    }
    uint16_t *w = c->no_weights ? NULL : (uint16_t *)d->w + c->w_at + done;
    hk_adamw_scalar(step, c->type, n, x[0], x[1], x[2],
                    d->grad + (size_t)(c->grad_at + done) * hk_grad_size(c->type), w);
  }
}

static hk_status prepare_case(const adamw_case *c, random_stream *r, adamw_data *d, hk_stream *s,
                              hk_error *err) {
  const int64_t slabs = (c->first + c->n - 1) / c->numel + 1;
  const hk_bytes part = (4 * c->numel + 127) / 128 * 128;
  d->shape = (hk_slab_shape){.numel = c->numel, .bytes = 3 * part, .m = part, .v = 2 * part};
  d->state_bytes = slabs * d->shape.bytes;
  d->grad_bytes = (c->grad_at + c->n) * (hk_bytes)hk_grad_size(c->type);
  d->w_bytes = (c->w_at + c->n + 8) * 2; /* 8 past the end, which must keep their values */
  d->from = plain(d->state_bytes);
  d->to = c->in_place ? d->from : plain(d->state_bytes);
  d->grad = plain(d->grad_bytes);
  d->w = plain(d->w_bytes);
  make_state(d->from, &d->shape, slabs, r);
  make_grads(d->grad, c, r);
  memset(d->w, 0x5a, (size_t)d->w_bytes);
  HK_TRY(c->mapped ? pinned(d->state_bytes, &d->at_from, err)
                   : ops->alloc(gpu, d->state_bytes, (void **)&d->at_from, err));
  d->at_to = d->at_from;
  if (!c->in_place) {
    memset(d->to, 0x77, (size_t)d->state_bytes);
    HK_TRY(c->mapped ? pinned(d->state_bytes, &d->at_to, err)
                     : ops->alloc(gpu, d->state_bytes, (void **)&d->at_to, err));
    HK_TRY(ops->copy(s, d->at_to, d->to, d->state_bytes, err));
  }
  HK_TRY(ops->alloc(gpu, d->grad_bytes, (void **)&d->at_grad, err));
  HK_TRY(ops->alloc(gpu, d->w_bytes, (void **)&d->at_w, err));
  HK_TRY(ops->copy(s, d->at_from, d->from, d->state_bytes, err));
  HK_TRY(ops->copy(s, d->at_grad, d->grad, d->grad_bytes, err));
  return ops->copy(s, d->at_w, d->w, d->w_bytes, err);
}

static void free_case(const adamw_case *c, adamw_data *d) {
  if (!c->in_place) {
    free(d->to);
    if (c->mapped) {
      unpin(d->at_to, d->state_bytes);
    } else {
      ops->release(gpu, d->at_to);
    }
  }
  if (c->mapped) {
    unpin(d->at_from, d->state_bytes);
  } else {
    ops->release(gpu, d->at_from);
  }
  ops->release(gpu, d->at_grad);
  ops->release(gpu, d->at_w);
  free(d->from), free(d->grad), free(d->w);
}

/* Slabs and weights are compared as a whole: elements that are written, and those that must not
 * be. */
static hk_status launch_and_compare(const adamw_case *c, const hk_adamw_step *step, adamw_data *d,
                                    hk_stream *s, hk_error *err) {
  const hk_kernel kernel = {.kind = HK_KERNEL_ADAMW,
                            .type = c->type,
                            .n = c->n,
                            .grad = d->at_grad + (size_t)c->grad_at * hk_grad_size(c->type),
                            .step = *step,
                            .shape = d->shape,
                            .first = c->first,
                            .from = d->at_from,
                            .to = d->at_to,
                            .w = c->no_weights ? NULL : (uint16_t *)d->at_w + c->w_at,
                            .mapped = c->mapped};
  HK_TRY(ops->launch(s, &kernel, err));
  HK_TRY(ops->stream_sync(s, err)); /* the source of the copy must stay unchanged until then */
  update_expected(c, step, d);
  if (!c->in_place) HK_TRY(compare(s, "old state", d->at_from, d->from, d->state_bytes, err));
  HK_TRY(compare(s, "state", d->at_to, d->to, d->state_bytes, err));
  return compare(s, "weights", d->at_w, d->w, d->w_bytes, err);
}

static hk_status run_case(const adamw_case *c, uint64_t seed, hk_stream *s, hk_error *err) {
  random_stream r = {seed};
  adamw_data d = {0};
  const hk_adamw_step step =
      hk_adamw_prepare(&HYPER[seed % 3], 1 + (int64_t)(seed * 37 % 5000), seed % 2 ? 1.0 : 0.37);
  hk_status status = prepare_case(c, &r, &d, s, err);
  if (status == HK_OK) status = launch_and_compare(c, &step, &d, s, err);
  free_case(c, &d);
  if (status == HK_OK) return HK_OK;
  return hk_fail_prefix(
      err, "type %d, slabs of %lld, first %lld, n %lld, gradient at %d, weights at %d%s%s%s",
      (int)c->type, (long long)c->numel, (long long)c->first, (long long)c->n, c->grad_at, c->w_at,
      c->in_place ? ", in place" : "", c->mapped ? ", mapped" : "",
      c->no_weights ? ", no weights" : "");
}

static void adamw_on_all_patterns(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 6; seed++) {
    for (int type = 0; type < HK_GRAD_TYPES; type++) {
      const adamw_case c = {.type = (hk_grad_type)type,
                            .numel = 65536,
                            .n = 65536,
                            .in_place = seed % 2 == 0,
                            .patterns = true};
      hk_error err = {0};
      must(run_case(&c, seed, stream, &err), &err);
    }
  }
}

static void adamw_on_all_shapes(void **state) {
  (void)state;
  static const int64_t numels[] = {1, 3, 4, 7, 64, 1000, 1001, 4096};
  static const int64_t ns[] = {1, 2, 4, 5, 8, 31, 1025, 9001};
  random_stream r = {7};
  for (size_t i = 0; i < sizeof numels / sizeof *numels; i++) {
    for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
      adamw_case c = {.type = (hk_grad_type)pick(&r, 0, 2),
                      .numel = numels[i],
                      .first = pick(&r, 0, 2) ? pick(&r, 0, (int)(3 * numels[i])) : 0,
                      .n = ns[j],
                      .grad_at = pick(&r, 0, 1) * pick(&r, 0, 7),
                      .w_at = pick(&r, 0, 1) * pick(&r, 0, 7),
                      .in_place = pick(&r, 0, 1),
                      .mapped = pick(&r, 0, 1),
                      .no_weights = pick(&r, 0, 5) == 0};
      hk_error err = {0};
      must(run_case(&c, next(&r), stream, &err), &err);
    }
  }
}

/* Several slabs. In most cases each thread of the kernel takes several parameters. */
static void adamw_on_many(void **state) {
  (void)state;
  static const adamw_case cases[] = {
      {.type = HK_GRAD_BF16, .numel = 1000000, .n = 3000005, .first = 16, .in_place = true},
      {.type = HK_GRAD_BF16, .numel = 1000, .n = 3000005, .first = 999},
      {.type = HK_GRAD_FP16, .numel = 131, .n = 2000003, .first = 5, .grad_at = 1},
      /* Quads are aligned in the first slab, but not in the next. */
      {.type = HK_GRAD_BF16, .numel = 1001, .n = 200003, .first = 4},
      {.type = HK_GRAD_FP32, .numel = 131, .n = 20003, .in_place = true},
      /* State, gradients and weights have the same misalignment: later quads are aligned. */
      {.type = HK_GRAD_BF16, .numel = 4096, .n = 200003, .first = 3, .grad_at = 3, .w_at = 7},
      {.type = HK_GRAD_FP32, .numel = 1 << 20, .n = 2200000, .first = 3, .grad_at = 3, .w_at = 3},
      {.type = HK_GRAD_BF16, .numel = 65536, .n = 1 << 20, .mapped = true, .in_place = true},
      {.type = HK_GRAD_FP16, .numel = 1001, .n = 500009, .first = 77, .mapped = true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    hk_error err = {0};
    must(run_case(&cases[i], 100 + i, stream, &err), &err);
  }
}

/* -- Codes of 8 bits --------------------------------------------------------------------------- */

enum { CODED_SLAB = 1024, CODED_SLABS = 40 };

static hk_slab_shape coded_shape(hk_format format) {
  const hk_bytes p = CODED_SLAB * 4, v = p + CODED_SLAB;
  return (hk_slab_shape){.numel = CODED_SLAB,
                         .bytes = v + CODED_SLAB + 128,
                         .m = p,
                         .v = v,
                         .format = format,
                         .low = hk_format_is_split(format) ? p / 2 : 0,
                         .windows = v + CODED_SLAB};
}

/* Every code, also of infinity and NaN in some blocks; windows as updates make them. */
static void make_coded(char *state, const hk_slab_shape *shape, random_stream *r) {
  for (int s = 0; s < CODED_SLABS; s++) {
    const hk_state_at at = hk_slab_at(shape, state + s * shape->bytes, 0);
    const bool special = next(r) % 8 == 0;
    for (int64_t i = 0; i < CODED_SLAB; i++) {
      const float p = state_value(r, 0);
      hk_format_write(shape->format, 0, i, 1, at, &p);
      at.m[i] = (char)(next(r) % (special ? 128 : HK_CODES_M + 1) + next(r) % 2 * 128);
      at.v[i] = (char)(next(r) % (special ? 256 : HK_CODES_V + 1));
      if (next(r) % 16 == 0) at.m[i] = at.v[i] = 0;
    }
    for (int b = 0; b < 2 * CODED_SLAB / HK_CODE_BLOCK; b++)
      at.windows[b] = (char)(special ? pick(r, 1, 220) : pick(r, 88, 94));
  }
}

static void check_codes(hk_format format, uint64_t seed) {
  hk_error err = {0};
  random_stream r = {seed};
  const adamw_case c = {.type = (hk_grad_type)(seed % HK_GRAD_TYPES),
                        .n = CODED_SLAB * CODED_SLABS - 128 - (int64_t)(seed % 128),
                        .patterns = seed % 4 == 0};
  const hk_slab_shape shape = coded_shape(format);
  const hk_bytes bytes = CODED_SLABS * shape.bytes;
  const hk_bytes grad_bytes = c.n * (hk_bytes)hk_grad_size(c.type);
  char *want = plain(bytes), *grad = plain(grad_bytes), *w = plain(2 * c.n);
  void *at = NULL, *at_grad = NULL, *at_w = NULL;
  hk_adamw_step step = hk_adamw_prepare(&HYPER[seed % 3], 1 + (int64_t)(seed * 37 % 5000), 0.37);
  hk_random_key(seed, 3, 5, step.key);
  memset(want, 0, (size_t)bytes);
  make_coded(want, &shape, &r);
  make_grads(grad, &c, &r);
  must(ops->alloc(gpu, bytes, &at, &err), &err);
  must(ops->alloc(gpu, grad_bytes, &at_grad, &err), &err);
  must(ops->alloc(gpu, 2 * c.n, &at_w, &err), &err);
  must(ops->copy(stream, at, want, bytes, &err), &err);
  must(ops->copy(stream, at_grad, grad, grad_bytes, &err), &err);
  const hk_kernel kernel = {.kind = HK_KERNEL_ADAMW,
                            .type = c.type,
                            .n = c.n,
                            .grad = at_grad,
                            .step = step,
                            .shape = shape,
                            .first = 128,
                            .index = 1280,
                            .from = at,
                            .to = at,
                            .w = at_w};
  must(ops->launch(stream, &kernel, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  for (int64_t done = 0, n = 0; done < c.n; done += n) {
    const int64_t inside = (128 + done) % CODED_SLAB;
    n = c.n - done < CODED_SLAB - inside ? c.n - done : CODED_SLAB - inside;
    const hk_state_at part =
        hk_slab_at(&shape, want + (128 + done) / CODED_SLAB * shape.bytes, inside);
    hk_update_scalar(format, &step, c.type, n, part, part,
                     grad + done * (int64_t)hk_grad_size(c.type),
                     (uint16_t *)(void *)(w + 2 * done), 1280 + done);
  }
  must(compare(stream, "state", at, want, bytes, &err), &err);
  must(compare(stream, "weights", at_w, w, 2 * c.n, &err), &err);
  ops->release(gpu, at);
  ops->release(gpu, at_grad);
  ops->release(gpu, at_w);
  free(want), free(grad), free(w);
}

static void adamw_on_codes(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 24; seed++) {
    check_codes(HK_FORMAT_8BIT, seed);
    check_codes(HK_FORMAT_8BIT_SPLIT, seed);
  }
}

/* -- Casts ------------------------------------------------------------------------------------- */

static void check_cast(hk_grad_type type, int64_t n, int grad_at, int out_at) {
  hk_error err = {0};
  const hk_bytes grad_bytes = (grad_at + n) * 2, out_bytes = (out_at + n + 8) * 4;
  uint16_t *grad = plain(grad_bytes);
  float *out = plain(out_bytes);
  void *at_grad = NULL, *at_out = NULL;
  for (int64_t i = 0; i < grad_at + n; i++) grad[i] = (uint16_t)(i * 40503 + n);
  if (n == 65536) {
    for (int64_t i = 0; i < n; i++) grad[grad_at + i] = (uint16_t)i;
  }
  memset(out, 0x5a, (size_t)out_bytes);
  must(ops->alloc(gpu, grad_bytes, &at_grad, &err), &err);
  must(ops->alloc(gpu, out_bytes, &at_out, &err), &err);
  must(ops->copy(stream, at_grad, grad, grad_bytes, &err), &err);
  must(ops->copy(stream, at_out, out, out_bytes, &err), &err);
  const hk_kernel kernel = {.kind = HK_KERNEL_CAST_UP,
                            .type = type,
                            .n = n,
                            .grad = (uint16_t *)at_grad + grad_at,
                            .out = (float *)at_out + out_at};
  must(ops->launch(stream, &kernel, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  size_t kernels = 0;
  hk_cpu_kernels_list(&kernels)[0].cast_up(type, n, grad + grad_at, out + out_at);
  must(compare(stream, "fp32 gradients", at_out, (char *)out, out_bytes, &err), &err);
  ops->release(gpu, at_grad);
  ops->release(gpu, at_out);
  free(grad), free(out);
}

static void casts(void **state) {
  (void)state;
  for (int type = HK_GRAD_BF16; type <= HK_GRAD_FP16; type++) {
    check_cast((hk_grad_type)type, 65536, 0, 0);
    check_cast((hk_grad_type)type, 3000001, 0, 0);
    for (int i = 0; i < 24; i++) check_cast((hk_grad_type)type, 1 + i * 211 % 37, i % 5, i % 3);
  }
}

/* -- Pulls ------------------------------------------------------------------------------------- */

/* The kernel copies weights from host memory to any offset on the device and writes nothing else.
 */
static void check_pull(char *host, int64_t n, int from_at, int to_at) {
  hk_error err = {0};
  const hk_bytes bytes = (to_at + n + 16) * 2;
  uint16_t *from = (uint16_t *)(void *)host + from_at;
  char *expected = plain(bytes);
  void *device = NULL;
  for (int64_t i = 0; i < n; i++) from[i] = (uint16_t)(i * 40503 + n);
  memset(expected, 0x5a, (size_t)bytes);
  must(ops->alloc(gpu, bytes, &device, &err), &err);
  must(ops->copy(stream, device, expected, bytes, &err), &err);
  memcpy(expected + 2 * to_at, from, 2 * (size_t)n);
  const hk_kernel kernel = {.kind = HK_KERNEL_PULL,
                            .type = HK_GRAD_BF16,
                            .n = n,
                            .grad = from,
                            .w = (uint16_t *)device + to_at};
  must(ops->launch(stream, &kernel, &err), &err);
  must(compare(stream, "weights", device, expected, bytes, &err), &err);
  ops->release(gpu, device);
  free(expected);
}

static void pulls(void **state) {
  (void)state;
  enum { MOST = 3000001 };
  hk_error err = {0};
  char *host = NULL;
  must(pinned(2 * MOST + 4096, &host, &err), &err);
  assert_non_null(host);
  if (host == NULL) return; /* for the analyser */
  check_pull(host, MOST, 0, 0);
  check_pull(host, MOST, 0, 1);
  for (int i = 0; i < 64; i++) check_pull(host, 1 + i * 211 % 97, i % 8, i / 8);
  unpin(host, 2 * MOST + 4096);
}

/* -- Squares ----------------------------------------------------------------------------------- */

/* Two launches add to the same bins. */
static void check_squares(hk_grad_type type, int64_t n, int at) {
  enum { BINS = HK_SQUARES_BINS + 1 };
  hk_error err = {0};
  const hk_bytes bytes = (at + n) * 2;
  uint16_t *grad = plain(bytes);
  uint64_t bins[BINS] = {0};
  void *at_grad = NULL, *at_bins = NULL;
  for (int64_t i = 0; i < at + n; i++) grad[i] = (uint16_t)((i - at) * (n == 65536 ? 1 : 40503));
  must(ops->alloc(gpu, bytes, &at_grad, &err), &err);
  must(ops->alloc(gpu, sizeof bins, &at_bins, &err), &err);
  must(ops->copy(stream, at_grad, grad, bytes, &err), &err);
  must(ops->copy(stream, at_bins, bins, sizeof bins, &err), &err);
  const hk_kernel kernel = {.kind = HK_KERNEL_SQUARES,
                            .type = type,
                            .n = n,
                            .grad = (uint16_t *)at_grad + at,
                            .bins = at_bins};
  hk_squares expected = {0}, got = {0};
  for (int i = 0; i < 2; i++) {
    must(ops->launch(stream, &kernel, &err), &err);
    hk_squares_add(&expected, type, n, grad + at);
  }
  must(ops->copy(stream, bins, at_bins, sizeof bins, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  hk_squares_add_bins(&got, type, bins);
  got.nonfinite += bins[HK_SQUARES_BINS];
  assert_memory_equal(got.words, expected.words, sizeof got.words);
  assert_int_equal(got.nonfinite, expected.nonfinite);
  ops->release(gpu, at_grad);
  ops->release(gpu, at_bins);
  free(grad);
}

static void squares(void **state) {
  (void)state;
  for (int type = HK_GRAD_BF16; type <= HK_GRAD_FP16; type++) {
    check_squares((hk_grad_type)type, 65536, 0);
    check_squares((hk_grad_type)type, 65536, 3);
    check_squares((hk_grad_type)type, 5000011, 0);
    for (int i = 0; i < 24; i++) check_squares((hk_grad_type)type, 1 + i * 211 % 41, i % 9);
  }
}

/* -- Threads ----------------------------------------------------------------------------------- */

typedef struct {
  uint64_t seed;
  hk_status status;
  hk_error err;
} worker;

static void *work(void *arg) {
  worker *w = arg;
  hk_stream *own = NULL;
  w->status = ops->stream_open(gpu, false, &own, &w->err);
  for (int i = 0; i < 8 && w->status == HK_OK; i++) {
    const adamw_case c = {.type = HK_GRAD_BF16, .numel = 1000, .n = 20011, .first = i};
    w->status = run_case(&c, w->seed + (uint64_t)i, own, &w->err);
  }
  if (own != NULL) ops->stream_close(own);
  return NULL;
}

static void threads_side_by_side(void **state) {
  (void)state;
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  worker workers[THREADS] = {0};
  for (int i = 0; i < THREADS; i++) {
    workers[i].seed = 1000 * (uint64_t)i;
    assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < THREADS; i++) must(workers[i].status, &workers[i].err);
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(adamw_on_all_patterns),
    cmocka_unit_test(adamw_on_all_shapes),
    cmocka_unit_test(adamw_on_many),
    cmocka_unit_test(adamw_on_codes),
    cmocka_unit_test(casts),
    cmocka_unit_test(pulls),
    cmocka_unit_test(squares),
    cmocka_unit_test(threads_side_by_side),
};

int main(int argc, char **argv) {
  const int code = find_backend(argc, argv);
  return code != 0 ? code : cmocka_run_group_tests(TESTS, open_gpu, close_gpu);
}
