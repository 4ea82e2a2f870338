/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the C ABI share. */
#ifndef HK_ENGINE_ABI_PRIVATE_H
#define HK_ENGINE_ABI_PRIVATE_H

#include <unistd.h>

#include "core/base/error.h"
#include "engine/engine.h"
#include "engine/hocket.h"

/* Copies the error's text to `message` ("" for HK_OK; NULL: does not) and returns the status. */
int hk_abi_answer(hk_status status, const hk_error *err, char *message);

/* HK_INPUT if `pointer` is NULL; `what` names the argument. */
static inline hk_status hk_abi_given(const void *pointer, const char *what, hk_error *err) {
  if (pointer != NULL) return HK_OK;
  return hk_fail(err, HK_INPUT, "%s: the pointer is NULL", what);
}

/* HK_INPUT if `owner`, the process that created a `what`, is not this one; NULL: the caller gave a
 * NULL pointer instead of a `what`. */
static inline hk_status hk_abi_check_owner(const pid_t *owner, const char *what, hk_error *err) {
  if (owner == NULL) return hk_fail(err, HK_INPUT, "no %s: the pointer is NULL", what);
  if (*owner == getpid()) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "this %s belongs to process %ld; a forked child cannot use it: create the %s "
                 "after forking",
                 what, (long)*owner, what);
}

/* A group's hyperparameters as AdamW's. */
hk_adamw hk_abi_hyper(const hocket_group *g);

/* Checks the arguments of hocket_create, converts them and opens the engine. *engine is the
 * caller's (hk_engine_destroy); it is set only if the result is HK_OK. HK_INPUT: an argument or the
 * plan is refused. */
hk_status hk_abi_open(const char *plan, const hocket_tensor *tensors, size_t n,
                      const hocket_group *groups, size_t n_groups, const hocket_options *options,
                      hk_engine **engine, hk_error *err);

#endif
