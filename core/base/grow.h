/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow. */
#ifndef HK_CORE_BASE_GROW_H
#define HK_CORE_BASE_GROW_H

#include <stddef.h>

#include "core/base/error.h"

/* Makes room for element n of an array that has room for *room elements of `size` bytes: for twice
 * as many, or at least for 16. `items`: address of the pointer to the array. `what` names the
 * elements in the message; `err` may be NULL. */
hk_status hk_grow(void *items, size_t *room, size_t n, size_t size, const char *what,
                  hk_error *err);
/* The same for a pointer and its size_t. */
#define HK_GROW(items, room, n, what, err) hk_grow(&(items), &(room), n, sizeof *(items), what, err)

#endif
