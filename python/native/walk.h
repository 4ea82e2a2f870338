/* SPDX-License-Identifier: Apache-2.0 */
/* libhocket_walk: looks at many parameters of PyTorch by one call, for python/hocket/direct.py.
 *
 * It calls torch's own functions, which the caller finds in libc10 and libtorch_cpu at run time, so
 * it is built without torch. `impl` is a c10::TensorImpl *, `tensor` an at::Tensor *, which is a
 * pointer to a c10::TensorImpl * (torch's C interface calls it AtenTensorHandle). Functions of type
 * int32_t return 0 for success. The caller must keep the tensors alive and unchanged during a call:
 * in Python it holds the GIL. */
#ifndef HK_PYTHON_WALK_H
#define HK_PYTHON_WALK_H

#include "engine/hocket.h"

typedef struct {
  const void *(*grad)(const void *impl);                       /* c10::TensorImpl::grad() const */
  unsigned char (*requires_grad)(const void *impl);            /* ::requires_grad() const */
  int64_t (*version)(const void *tensor);                      /* at::TensorBase::_version() */
  int32_t (*data_ptr)(const void *tensor, const void **data);  /* aoti_torch_get_data_ptr */
  int32_t (*dtype)(const void *tensor, int32_t *dtype);        /* aoti_torch_get_dtype */
  int32_t (*dim)(const void *tensor, int64_t *dim);            /* aoti_torch_get_dim */
  int32_t (*sizes)(const void *tensor, const int64_t **sizes); /* aoti_torch_get_sizes */
  int32_t (*strides)(const void *tensor, const int64_t **strides); /* aoti_torch_get_strides */
  const void *undefined; /* the c10::TensorImpl of tensors that are not defined */
} hk_torch;

/* 1 if the memory of each of n tensors begins at data[i] and its version is versions[i]; else 0. */
HOCKET_API int32_t hk_walk_unchanged(const hk_torch *torch, const void *const *impls, size_t n,
                                     const void *const *data, const int64_t *versions);
/* Writes the version of tensor i to versions[i], for n tensors. */
HOCKET_API void hk_walk_versions(const hk_torch *torch, const void *const *impls, size_t n,
                                 int64_t *versions);
/* Makes the list for hocket_gradients of the gradients that n parameters have; `list` has room for
 * n. numbers[i]: the engine's number of parameter i. held[i]: 1 if it has a gradient, else 0.
 * A gradient whose impl is handles[i] does not count: it stands for one that was handed over.
 * grads[i]: at first NULL, then what this function wrote there the last time (used for
 * prefetching). Returns the length of the list, or -1 if a gradient cannot be handed over as it is:
 * its type is not dtypes[i] (torch's number), it does not have numel[i] elements, it is not
 * contiguous, it has no memory, or it requires a gradient itself. */
HOCKET_API int64_t hk_walk_gradients(const hk_torch *torch, const void *const *impls, size_t n,
                                     const int64_t *numbers, const int32_t *dtypes,
                                     const int64_t *numel, const void *const *handles,
                                     const void **grads, hocket_gradient *list, uint8_t *held);

#endif
