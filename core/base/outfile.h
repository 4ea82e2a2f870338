/* SPDX-License-Identifier: Apache-2.0 */
/* Output files that are complete or not there.
 *
 * The text goes to an unnamed or a temporary file, which is synced and gets its name when it is
 * closed: a reader sees the old file or the whole new one, also after a crash or on a full disk. */
#ifndef HK_CORE_BASE_OUTFILE_H
#define HK_CORE_BASE_OUTFILE_H

#include <stdio.h>

#include "core/base/error.h"

/* Standard output, as a path. */
#define HK_STDOUT "/dev/stdout"

typedef struct hk_outfile hk_outfile;

/* Opens an output file. A file that is replaced keeps its permissions. Opening removes temporary
 * files that killed processes left in the folder. HK_STDOUT and an existing path that is not a
 * regular file (a device, a pipe) are written directly. Every failure names the path and the
 * reason: HK_INPUT for a path that cannot be written, HK_ENVIRONMENT for a full disk and the like.
 */
hk_status hk_outfile_open(const char *path, hk_outfile **out, hk_error *err);
/* The stream to write to. Its errors need no check: hk_outfile_close reports them. */
FILE *hk_outfile_stream(hk_outfile *out);
/* Puts the file in place and frees `out`, also after a failure. Reports the first failed write. */
hk_status hk_outfile_close(hk_outfile *out, hk_error *err);
/* Discards what was written, except to devices and pipes, and frees `out`. */
void hk_outfile_abort(hk_outfile *out);

/* Removes the temporary files of this process. May be called from a signal handler. */
void hk_outfile_remove_unfinished(void);
/* `prepare` is called when a temporary file has got a name, which happens on few file systems: it
 * may install signal handlers that call hk_outfile_remove_unfinished. */
void hk_outfile_on_unfinished(void (*prepare)(void));

#endif
