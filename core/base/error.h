/* SPDX-License-Identifier: Apache-2.0 */
/* How every fallible function in hocket reports failure: it returns an hk_status and, when that
 * is not HK_OK, leaves one complete sentence for the user in the hk_error it was given. */
#ifndef HK_CORE_BASE_ERROR_H
#define HK_CORE_BASE_ERROR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values are the exit codes of the command line contract. */
typedef enum {
  HK_OK = 0,
  HK_NO = 1,          /* the question was understood and the answer is no (does not fit, ...) */
  HK_INPUT = 2,       /* bad usage or bad input: the user can correct it */
  HK_ENVIRONMENT = 3, /* the system failed: no memory, disk full, no GPU */
} hk_status;

/* Initialise with zeros. `message` is always one NUL-terminated line: control characters are
 * replaced, and a message that is too long ends with "...". */
typedef struct {
  hk_status status;
  char message[1024];
} hk_error;

/* Sets the message and returns `status`. `err` may be NULL. */
hk_status hk_fail(hk_error *err, hk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prepends "PREFIX: " to the message and returns err's status: callers add the file, line or key
 * that the failing function does not know. HK_INPUT if err is NULL. */
hk_status hk_fail_prefix(hk_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* For work done in parallel, each part with its own error: copies the first failure of the n to err
 * (it may be NULL) and returns its status. HK_OK if none failed. */
hk_status hk_fail_first(const hk_error *errors, size_t n, hk_error *err);

/* "out of memory (N bytes for WHAT)", HK_ENVIRONMENT. */
hk_status hk_fail_memory(hk_error *err, unsigned long long bytes, const char *what);

/* clang's analyzer does not see what functions of other files return, and would follow a failure as
 * if it were HK_OK. (HK_INPUT stands for whatever failure hk_fail_prefix forwards.) */
#ifdef __clang_analyzer__
#define hk_fail(err, status, ...)        ((void)hk_fail(err, status, __VA_ARGS__), (status))
#define hk_fail_prefix(...)              ((void)hk_fail_prefix(__VA_ARGS__), HK_INPUT)
#define hk_fail_memory(err, bytes, what) ((void)hk_fail_memory(err, bytes, what), HK_ENVIRONMENT)
#endif

/* Forwards a failure. */
#define HK_TRY(expression)                              \
  do {                                                  \
    hk_status hk_try_status_ = (expression);            \
    if (hk_try_status_ != HK_OK) return hk_try_status_; \
  } while (0)

#ifdef __cplusplus
}
#endif
#endif
