/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Advisory locks between hocket processes of one host. A lock is a Unix socket in the abstract
 * namespace: it leaves no file, and the kernel releases it when its process ends, kill -9 included.
 * It is not seen from other hosts that share a file system, nor from another network namespace. */
#ifndef HK_CLI_LOCK_H
#define HK_CLI_LOCK_H

#include <stdbool.h>

#include "core/base/error.h"

/* Takes the lock on the file that `path` names, which need not exist, and holds it until the
 * process ends. HK_ENVIRONMENT if another process holds it: the message names `path`, the process,
 * its command line and its start. HK_OK without a lock where sockets cannot be made. */
hk_status hk_lock_checkpoint(const char *path, hk_error *err);

/* The same for the database of a sweep. */
hk_status hk_lock_sweep(const char *path, hk_error *err);

/* The same for calibrations that write to the store `path`. A calibration on this host that writes
 * to another store is only noted on stderr, after "hocket COMMAND: note: ", unless `quiet`. */
hk_status hk_lock_calibration(const char *path, const char *command, bool quiet, hk_error *err);

#endif
