/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are read: opened so that no path can make the program wait or read for ever. */
#ifndef HK_CORE_BASE_INFILE_H
#define HK_CORE_BASE_INFILE_H

#include <stdio.h>

#include "core/base/error.h"

/* Opens `path` for reading; the caller closes *fd. Messages do not name the path, the caller does
 * (hk_fail_prefix).
 *   HK_INPUT        no such file, no permission, a directory ("is a directory; expected WHAT"), a
 *                   device without an end (/dev/zero, not a terminal), a FIFO that no process has
 *                   opened for writing for 5 s
 *   HK_ENVIRONMENT  no memory, no file descriptor, an I/O error */
hk_status hk_infile_open(const char *path, const char *what, int *fd, hk_error *err);

/* The same as a stream, for fclose. */
hk_status hk_infile_stream(const char *path, const char *what, FILE **file, hk_error *err);

/* Reads all of a file, at most `most` bytes (HK_INPUT beyond). A NUL follows the `length` bytes.
 * The caller frees *text, which is NULL after a failure. */
hk_status hk_infile_read(const char *path, const char *what, size_t most, char **text,
                         size_t *length, hk_error *err);

/* HK_INPUT if `fd`, which is open already, is a device without an end. */
hk_status hk_infile_check(int fd, hk_error *err);

/* Fails with `what` and the text of errno, which is an input's fault or the environment's. */
hk_status hk_infile_fail(const char *what, hk_error *err);

#endif
