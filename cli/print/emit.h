/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The JSON object of --json, and what else goes to stdout. */
#ifndef HK_CLI_PRINT_EMIT_H
#define HK_CLI_PRINT_EMIT_H

#include "core/base/json_write.h"

/* A new object with the member "schema". */
cJSON *hk_emit_begin(const char *schema, bool *ok);
/* Prints `root` to stdout and deletes it. */
hk_status hk_emit_print(cJSON *root, bool ok, hk_error *err);

/* Flushes stdout. Needed before a note on stderr (the order on a terminal) and before a file is
 * written (no file without its report). */
hk_status hk_emit_flush(hk_error *err);

/* Fails if the file cannot be written. For checks before long work. Pipes, devices and NULL pass
 * untested. */
hk_status hk_emit_check_output(const char *path, hk_error *err);
/* Fails if the file is one of the n inputs, which it would replace. NULL passes. */
hk_status hk_emit_check_input(const char *path, char *const *inputs, int n, hk_error *err);

/* '-o -': the document goes to stdout instead of the report (hk_command's `dash`). */
bool hk_emit_instead(const char *output);

#endif
