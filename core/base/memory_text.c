/* SPDX-License-Identifier: Apache-2.0 */
/* Closing streams to memory: glibc then shrinks the buffer, which can fail and leave *text NULL. */
#include "core/base/memory_text.h"

#include <stdbool.h>
#include <stdlib.h>

hk_status hk_memory_text_close(FILE *stream, char **text, const char *what, hk_error *err) {
  bool failed = ferror(stream) != 0;
  failed |= fclose(stream) != 0;
  if (!failed && *text != NULL) return HK_OK;
  free(*text);
  *text = NULL;
  return hk_fail_memory(err, 1, what);
}
