/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the place of the CUDA backend in builds without nvcc. */
#include "engine/device/backend.h"

#ifndef HK_CUDA

static hk_status absent(hk_error *err) {
  return hk_fail(err, HK_ENVIRONMENT,
                 "no CUDA device: hocket was built without CUDA (no nvcc was found then)");
}

static hk_status count_devices(int *n, hk_error *err) {
  *n = 0;
  return absent(err);
}

static hk_status open_backend(int device, const hk_backend_options *options, hk_backend **out,
                              hk_error *err) {
  (void)device, (void)options;
  *out = NULL;
  return absent(err);
}

/* Other entries stay NULL: they need a device, and `open` always fails. */
const hk_backend_ops hk_backend_cuda = {
    .name = "cuda", .count = count_devices, .open = open_backend};

#endif
