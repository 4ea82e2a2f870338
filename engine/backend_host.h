/* SPDX-License-Identifier: Apache-2.0 */
/* Failures on demand in the host backend, for tests of what users of a device do about them. */
#ifndef HK_ENGINE_BACKEND_HOST_H
#define HK_ENGINE_BACKEND_HOST_H

#include "engine/backend.h"

typedef enum {
  HK_HOST_ALLOC,    /* refused, as for too little memory */
  HK_HOST_REGISTER, /* refused */
  HK_HOST_COPY,     /* refused when queued; the device stays usable */
  HK_HOST_COPYING,  /* half of the bytes arrive, then the device fails for good */
  HK_HOST_LAUNCH,   /* the same for kernels and zeroing */
  HK_HOST_KERNEL,   /* half of the elements are done, then the device fails for good */
  HK_HOST_OPEN,     /* a stream or an event that is to be opened is refused */
  HK_HOST_RECORD,   /* refused when queued, as with the next; the device stays usable */
  HK_HOST_WAIT,     /* of a stream for an event */
  HK_HOST_FAULTS
} hk_host_fault;

/* The variable HOCKET_HOST_FAULT asks for one from outside the process, for every device that is
 * opened while it is set: KIND:AFTER, such as copying:20. KIND is a name of the list above without
 * HK_HOST_, in lower case. Opening fails if it says anything else. */

/* After `after` more of its kind have gone well, the next one fails, once. Negative: none does. `b`
 * is a device of hk_backend_host. */
void hk_backend_host_fail(hk_backend *b, hk_host_fault what, int64_t after);

#endif
