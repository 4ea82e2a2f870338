/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/print/emit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/json.h"
#include "core/base/outfile.h"

cJSON *hk_emit_begin(const char *schema, bool *ok) {
  *ok = true;
  cJSON *root = cJSON_CreateObject();
  hk_put_string(root, "schema", schema, ok);
  return root;
}

hk_status hk_emit_print(cJSON *root, bool ok, hk_error *err) {
  hk_status status = ok ? hk_json_print(root, stdout, err)
                        : hk_fail(err, HK_ENVIRONMENT, "out of memory for the JSON report");
  cJSON_Delete(root);
  return status;
}

hk_status hk_emit_flush(hk_error *err) {
  if (fflush(stdout) == 0) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "cannot write to standard output: %s", strerror(errno));
}

bool hk_emit_instead(const char *output) {
  return output && strcmp(output, HK_STDOUT) == 0;
}

hk_status hk_emit_check_output(const char *path, hk_error *err) {
  struct stat status;
  hk_outfile *file = NULL;
  if (!path) return HK_OK;
  /* Closing a pipe would be the end of the file for its reader. */
  if (stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
    return HK_OK;
  HK_TRY(hk_outfile_open(path, &file, err));
  hk_outfile_abort(file);
  return HK_OK;
}

static bool same_file(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
         x.st_ino == y.st_ino;
}

hk_status hk_emit_check_input(const char *path, char *const *inputs, int n, hk_error *err) {
  for (int i = 0; path && i < n; i++)
    if (same_file(path, inputs[i]))
      return hk_fail(err, HK_INPUT, "'%s' is an input and would be replaced; name another file",
                     path);
  return HK_OK;
}
