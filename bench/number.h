/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Numbers of the command line. */
#ifndef HK_BENCH_NUMBER_H
#define HK_BENCH_NUMBER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/error.h"

/* Ends the program if the text is no whole number from `least` to `most`. */
static inline int64_t whole_number(const char *text, int64_t least, int64_t most) {
  char *end;
  const long long n = strtoll(text, &end, 10);
  if (end != text && *end == '\0' && n >= least && n <= most) return n;
  fprintf(stderr, "'%s' is no whole number from %lld to %lld\n", text, (long long)least,
          (long long)most);
  exit(HK_INPUT);
}

#endif
