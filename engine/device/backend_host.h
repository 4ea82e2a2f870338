/* SPDX-License-Identifier: Apache-2.0 */
/* What the host backend has beyond the interface: injected faults, for tests of how its users
 * handle failures, and a clock. */
#ifndef HK_ENGINE_DEVICE_BACKEND_HOST_H
#define HK_ENGINE_DEVICE_BACKEND_HOST_H

#include "engine/device/backend.h"

typedef enum {
  HK_HOST_ALLOC,    /* alloc fails, as if memory were too small */
  HK_HOST_REGISTER, /* host_register fails */
  HK_HOST_COPY,     /* copy fails when it is queued; the device stays usable */
  HK_HOST_COPYING, /* a running copy stops after half of its bytes, and the device fails for good */
  HK_HOST_LAUNCH,  /* launch or zero fails when it is queued; the device stays usable */
  HK_HOST_KERNEL,  /* a running kernel stops after half of its elements, and the device fails for
                      good */
  HK_HOST_OPEN,    /* stream_open, stream_adopt or event_open fails */
  HK_HOST_RECORD,  /* record fails when it is queued; the device stays usable */
  HK_HOST_WAIT,    /* wait fails when it is queued; the device stays usable */
  HK_HOST_FAULTS
} hk_host_fault;

/* The environment variable HOCKET_HOST_FAULT injects a fault into every device that is opened while
 * it is set. Its value is KIND:AFTER, such as copying:20, with KIND a name of the list above
 * without HK_HOST_, in lower case. Opening fails for other values. */

/* Injects one fault: the call of this kind fails that comes after `after` more successful ones.
 * Negative: none fails. `b` is a device of hk_backend_host. */
void hk_backend_host_fail(hk_backend *b, hk_host_fault what, int64_t after);

/* Processor time that threads have spent in kernels on adopted streams, and on checking their
 * addresses, since the device was opened. A GPU does both itself. `b` is a device of
 * hk_backend_host. */
hk_ns hk_backend_host_callers_kernels(hk_backend *b);

#endif
