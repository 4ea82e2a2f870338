/* SPDX-License-Identifier: Apache-2.0 */
/* After a backward most of these objects are in no cache. So tensors are read in batches, and what
 * the next pass over a batch reads is fetched in this pass. */
#include <stdbool.h>

#include "python/native/walk.h"

enum {
  BATCH = 16,
  LINE = 64,         /* bytes */
  TENSOR_BYTES = 192 /* size of a c10::TensorImpl, about; used for fetching only */
};

/* The lines need not belong to an object: prefetching never fails. */
static void fetch(const void *impl) {
  for (uintptr_t at = 0; at < TENSOR_BYTES; at += LINE)
    __builtin_prefetch((const void *)((uintptr_t)impl + at));
}

static size_t batch_end(size_t from, size_t n) {
  return n - from < BATCH ? n : from + BATCH;
}

/* Fetches the batch after the one that begins at `from`. */
static void fetch_next(const void *const *impls, size_t from, size_t n) {
  const size_t next = batch_end(from, n);
  for (size_t i = next; i < batch_end(next, n); i++) fetch(impls[i]);
}

int32_t hk_walk_unchanged(const hk_torch *torch, const void *const *impls, size_t n,
                          const void *const *data, const int64_t *versions) {
  for (size_t i = 0; i < n; i++) {
    const void *now = NULL;
    if (i % BATCH == 0) fetch_next(impls, i, n);
    if (torch->version(&impls[i]) != versions[i]) return 0;
    if (torch->data_ptr(&impls[i], &now) != 0 || now != data[i]) return 0;
  }
  return 1;
}

void hk_walk_versions(const hk_torch *torch, const void *const *impls, size_t n,
                      int64_t *versions) {
  for (size_t i = 0; i < n; i++) versions[i] = torch->version(&impls[i]);
}

/* Whether a tensor has numel elements, without gaps and in the order of its dimensions. Strides of
 * dimensions of size 1 do not matter. */
static bool is_contiguous(const hk_torch *torch, const void *tensor, int64_t numel) {
  const int64_t *sizes = NULL, *strides = NULL;
  int64_t dim = 0, expected = 1;
  if (torch->dim(tensor, &dim) != 0 || torch->sizes(tensor, &sizes) != 0 ||
      torch->strides(tensor, &strides) != 0) {
    return false;
  }
  for (int64_t d = dim - 1; d >= 0; d--) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return expected == numel;
}

/* NULL: the gradient cannot be handed over as it is. */
static const void *memory_of(const hk_torch *torch, const void *tensor, int32_t wanted,
                             int64_t numel) {
  int32_t dtype = -1;
  const void *data = NULL;
  if (torch->requires_grad(*(const void *const *)tensor)) return NULL;
  if (torch->dtype(tensor, &dtype) != 0 || dtype != wanted) return NULL;
  if (!is_contiguous(torch, tensor, numel) || torch->data_ptr(tensor, &data) != 0) return NULL;
  return data;
}

/* Fetches what grad() reads for the batch after the one that begins at `from`. */
static void fetch_next_grads(const void *const *impls, const void **grads, size_t from, size_t n) {
  const size_t next = batch_end(from, n);
  for (size_t i = next; i < batch_end(next, n); i++) {
    __builtin_prefetch(impls[i]);
    __builtin_prefetch(grads[i]);
    __builtin_prefetch((const void *)((uintptr_t)grads[i] - LINE)); /* what it belongs to */
  }
}

int64_t hk_walk_gradients(const hk_torch *torch, const void *const *impls, size_t n,
                          const int64_t *numbers, const int32_t *dtypes, const int64_t *numel,
                          const void *const *handles, const void **grads, hocket_gradient *list,
                          uint8_t *held) {
  int64_t found = 0;
  for (size_t i = 0; i < n + BATCH; i++) {
    if (i < n) { /* the gradient of parameter i, which is looked at BATCH parameters later */
      if (i % BATCH == 0) fetch_next_grads(impls, grads, i, n);
      grads[i] = torch->grad(impls[i]);
      const void *impl = *(const void *const *)grads[i];
      held[i] = impl != torch->undefined && impl != handles[i];
      if (held[i]) fetch(impl);
    }
    const size_t then = i - BATCH;
    if (i < BATCH || !held[then]) continue;
    const void *data = memory_of(torch, grads[then], dtypes[then], numel[then]);
    if (data == NULL) return -1;
    list[found++] = (hocket_gradient){.tensor = numbers[then], .data = data};
  }
  return found;
}
