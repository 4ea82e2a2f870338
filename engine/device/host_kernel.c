/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend's kernels: checks of their arguments, and the CPU kernels that they run. */
#include <string.h>

#include "engine/device/host_device.h"

/* Number of elements that a thread of the team takes at a time. */
#define CHUNK ((int64_t)1 << 16)

const char *hk_host_kernel_name(hk_kernel_kind kind) {
  static const char *const names[] = {
      [HK_KERNEL_ADAMW] = "AdamW",     [HK_KERNEL_CAST_UP] = "cast up",
      [HK_KERNEL_SQUARES] = "squares", [HK_KERNEL_PULL] = "pull",
      [HK_KERNEL_SIGN] = "sign",       [HK_KERNEL_GATHER] = "gather",
      [HK_KERNEL_SCATTER] = "scatter", [HK_KERNEL_MATMUL] = "matrix product"};
  return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

/* -- Addresses --------------------------------------------------------------------------------- */

/* Checks the range from the first byte of p to the last byte of m or v in the slabs at `base`. */
static hk_status check_slabs(hk_host_device *device, const hk_kernel *k, const char *what,
                             const void *base, hk_error *err) {
  const hk_slab_shape *shape = &k->shape;
  const int64_t last = k->first + k->n - 1;
  hk_bytes furthest = shape->m > shape->v ? shape->m : shape->v;
  const hk_bytes size_p = hk_format_size(shape->format, 0), size = hk_format_size(shape->format, 2);
  if (hk_format_is_coded(shape->format)) furthest = shape->bytes - shape->numel * size;
  const hk_bytes begin = k->first / shape->numel * shape->bytes + k->first % shape->numel * size_p;
  const hk_bytes end =
      last / shape->numel * shape->bytes + furthest + (last % shape->numel + 1) * size;
  const void *start = (const void *)((uintptr_t)base + (uintptr_t)begin);
  return hk_host_check_range(device, what, start, end - begin, k->mapped, err);
}

/* Whether the arrays can lie in a slab in the order p, lower halves, m, v or p, v, m. */
static bool shape_is_possible(const hk_slab_shape *shape) {
  if (shape->numel < 1 || (unsigned)shape->format >= HK_FORMATS) return false;
  const bool split = hk_format_is_split(shape->format);
  const hk_bytes p = hk_format_size(shape->format, 0) * shape->numel;
  const hk_bytes moments = p + (split ? 2 * shape->numel : 0);
  return (!split || shape->low >= p) && shape->m >= moments && shape->v >= moments &&
         shape->bytes >= hk_format_per_param(shape->format) * shape->numel &&
         (!hk_format_is_coded(shape->format) ||
          (shape->windows >= shape->v + shape->numel &&
           shape->bytes >= shape->windows + 2 * shape->numel / HK_CODE_BLOCK));
}

/* Whether kernels of blocks of codes, which do not look for their begin, begin at one. */
static bool begins_block(const hk_kernel *k) {
  const int64_t unit = hk_format_unit(k->shape.format);
  return k->shape.numel % unit == 0 && k->first % unit == 0 && k->index % unit == 0;
}

static hk_status check_adamw(hk_host_device *device, const hk_kernel *k, hk_error *err) {
  const hk_slab_shape *shape = &k->shape;
  if (!shape_is_possible(shape) || k->first < 0 || !begins_block(k)) {
    return hk_fail(
        err, HK_INPUT,
        "AdamW on slabs of %lld parameters from parameter %lld: the shape of the slabs or "
        "the first parameter is out of range",
        (long long)shape->numel, (long long)k->first);
  }
  HK_TRY(check_slabs(device, k, "AdamW's state to read", k->from, err));
  HK_TRY(check_slabs(device, k, "AdamW's state to write", k->to, err));
  if (k->w == NULL) return HK_OK;
  /* The weights may be a framework's tensor, which can be any host memory here. */
  return hk_host_check_end(device, "AdamW's weights", k->w, k->n * 2, err);
}

static hk_status check_sign(hk_host_device *device, const hk_kernel *k, hk_error *err) {
  if (k->n != 1) {
    return hk_fail(err, HK_INPUT, "a kernel on %lld signs: it writes exactly 1", (long long)k->n);
  }
  if ((uintptr_t)k->from % sizeof(int64_t) != 0 || (uintptr_t)k->to % sizeof(int64_t) != 0) {
    return hk_fail(err, HK_INPUT, "a sign's address is not a multiple of 8 bytes");
  }
  HK_TRY(hk_host_check_range(device, "a sign", k->from, sizeof(int64_t), false, err));
  return hk_host_check_range(device, "the target of a sign", k->to, sizeof(int64_t), true, err);
}

hk_status hk_host_kernel_check(hk_host_device *device, const hk_kernel *k, hk_error *err) {
  if (k->kind == HK_KERNEL_MATMUL) return hk_host_matmul_check(device, k, err);
  if (k->kind == HK_KERNEL_GATHER || k->kind == HK_KERNEL_SCATTER) {
    return hk_host_segments_check(device, k, err);
  }
  if (k->n < 0 || k->n > INT64_MAX / 16 || (unsigned)k->type >= HK_GRAD_TYPES) {
    return hk_fail(err, HK_INPUT,
                   "a kernel on %lld gradients of type %d: the number or the type is out of range",
                   (long long)k->n, (int)k->type);
  }
  if (k->kind != HK_KERNEL_ADAMW && k->type == HK_GRAD_FP32) {
    return hk_fail(err, HK_INPUT, "the kernel %s takes bf16 or fp16 gradients, not fp32",
                   hk_host_kernel_name(k->kind));
  }
  if (k->n == 0) return HK_OK;
  if (k->kind == HK_KERNEL_SIGN) return check_sign(device, k, err);
  HK_TRY(hk_host_check_range(device, "gradients", k->grad, k->n * (hk_bytes)hk_grad_size(k->type),
                             k->kind == HK_KERNEL_PULL, err));
  switch (k->kind) {
    case HK_KERNEL_ADAMW:
      return check_adamw(device, k, err);
    case HK_KERNEL_CAST_UP:
      return hk_host_check_range(device, "fp32 gradients", k->out, k->n * 4, false, err);
    case HK_KERNEL_SQUARES:
      return hk_host_check_range(device, "bins", k->bins, (HK_SQUARES_BINS + 1) * 8, false, err);
    case HK_KERNEL_PULL:
      return hk_host_check_range(device, "values to write", k->w, k->n * 2, false, err);
    case HK_KERNEL_SIGN:
    case HK_KERNEL_GATHER:
    case HK_KERNEL_SCATTER:
    case HK_KERNEL_MATMUL:
      break; /* checked above */
  }
  return hk_fail(err, HK_INPUT, "there is no kernel of kind %d", (int)k->kind);
}

/* -- Work -------------------------------------------------------------------------------------- */

typedef struct {
  const hk_kernel *kernel;
  const hk_cpu_kernels *cpu;
  pthread_mutex_t lock; /* protects the bins */
} job;

/* Address of a chunk's gradients; *n: their number. */
static const char *chunk_of(const hk_kernel *k, int64_t chunk, int64_t *n) {
  *n = hk_min(CHUNK, k->n - chunk * CHUNK);
  return (const char *)k->grad + chunk * CHUNK * (int64_t)hk_grad_size(k->type);
}

static void adamw_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const job *j = arg;
  const hk_kernel *k = j->kernel;
  const hk_slab_shape *shape = &k->shape;
  int64_t left, at = chunk * CHUNK;
  const char *grad = chunk_of(k, chunk, &left);
  while (left > 0) {
    const int64_t inside = (k->first + at) % shape->numel, n = hk_min(left, shape->numel - inside);
    const hk_bytes slab = (k->first + at) / shape->numel * shape->bytes;
    j->cpu->update(shape->format, &k->step, k->type, n,
                   hk_slab_at(shape, (const char *)k->from + slab, inside),
                   hk_slab_at(shape, (const char *)k->to + slab, inside), grad,
                   k->w ? k->w + at : NULL, k->index + at);
    grad += n * (int64_t)hk_grad_size(k->type);
    at += n;
    left -= n;
  }
}

static void cast_up_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const job *j = arg;
  int64_t n;
  const char *grad = chunk_of(j->kernel, chunk, &n);
  j->cpu->cast_up(j->kernel->type, n, grad, j->kernel->out + chunk * CHUNK);
}

static void pull_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const job *j = arg;
  int64_t n;
  const char *from = chunk_of(j->kernel, chunk, &n);
  memcpy(j->kernel->w + chunk * CHUNK, from, 2 * (size_t)n);
}

static void sign_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread, (void)chunk;
  const job *j = arg;
  *(volatile int64_t *)j->kernel->to = *(const int64_t *)j->kernel->from;
}

static void matmul_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const job *j = arg;
  hk_host_matmul_tile(j->kernel, j->cpu, chunk);
}

static void segments_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  job *j = arg;
  const int64_t n = hk_min(CHUNK, j->kernel->n - chunk * CHUNK);
  hk_host_segments_run(j->kernel, j->cpu, chunk * CHUNK, n, &j->lock);
}

static void squares_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  job *j = arg;
  int64_t n;
  const char *grad = chunk_of(j->kernel, chunk, &n);
  uint64_t bins[HK_SQUARES_BINS + 1] = {0};
  hk_squares_fill_set(bins, j->kernel->type, n, grad);
  pthread_mutex_lock(&j->lock);
  for (int b = 0; b <= HK_SQUARES_BINS; b++) j->kernel->bins[b] += bins[b];
  pthread_mutex_unlock(&j->lock);
}

void hk_host_kernel_run(hk_host_device *device, const hk_kernel *kernel) {
  static const hk_team_work work[] = {
      [HK_KERNEL_ADAMW] = adamw_chunk,      [HK_KERNEL_CAST_UP] = cast_up_chunk,
      [HK_KERNEL_SQUARES] = squares_chunk,  [HK_KERNEL_PULL] = pull_chunk,
      [HK_KERNEL_SIGN] = sign_chunk,        [HK_KERNEL_GATHER] = segments_chunk,
      [HK_KERNEL_SCATTER] = segments_chunk, [HK_KERNEL_MATMUL] = matmul_chunk};
  job j = {.kernel = kernel, .cpu = hk_cpu_kernels_best(), .lock = PTHREAD_MUTEX_INITIALIZER};
  const int64_t chunks = kernel->kind == HK_KERNEL_MATMUL ? hk_host_matmul_tiles(kernel)
                                                          : (kernel->n + CHUNK - 1) / CHUNK;
  if (device->team != NULL) {
    pthread_mutex_lock(&device->turns);
    hk_team_run(device->team, chunks, work[kernel->kind], &j);
    pthread_mutex_unlock(&device->turns);
  } else {
    for (int64_t chunk = 0; chunk < chunks; chunk++) work[kernel->kind](&j, chunk, 0);
  }
  pthread_mutex_destroy(&j.lock);
}
