/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "traces/csv.h"

#include <string.h>

void hk_csv_text(const char *text, FILE *out) {
  if (text[strcspn(text, ",\"\r\n")] == '\0') {
    fputs(text, out);
    return;
  }
  fputc('"', out);
  for (; *text; text++) {
    if (*text == '"') fputc('"', out);
    fputc(*text, out);
  }
  fputc('"', out);
}
