/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by tests of checkpoints: a folder for two files, their contents, and a step of an engine
 * and of plain AdamW. */
#ifndef HK_TESTS_FIXTURE_CHECKPOINT_H
#define HK_TESTS_FIXTURE_CHECKPOINT_H

#include <stdio.h>
#include <unistd.h>

#include "tests/fixture_engine.h"

static const hk_engine_options unpinned = {.no_pin_threads = true};
static char folder[] = "checkpoint-XXXXXX"; /* in the working directory; every file is in here */
static char path[64], other_path[64];

static inline int enter(void **unused) {
  (void)unused;
  if (mkdtemp(folder) == NULL) return -1;
  snprintf(path, sizeof path, "%s/state.ck", folder);
  snprintf(other_path, sizeof other_path, "%s/other.ck", folder);
  return 0;
}

/* Fails if anything but the two files was left behind. */
static inline int leave(void **unused) {
  (void)unused;
  unlink(path);
  unlink(other_path);
  return rmdir(folder);
}

/* -- Files ------------------------------------------------------------------------------------- */

typedef struct {
  char *bytes;
  size_t n;
} contents;

static inline contents read_file(const char *name) {
  FILE *in = fopen(name, "rb");
  assert_non_null(in);
  assert_int_equal(fseek(in, 0, SEEK_END), 0);
  contents c = {.n = (size_t)ftell(in)};
  rewind(in);
  c.bytes = must_have(c.n + 1, 1);
  assert_int_equal(fread(c.bytes, 1, c.n, in), c.n);
  fclose(in);
  return c;
}

/* Unlinks the file first: some file systems sync a truncated file when it is closed. */
static inline void write_file(const char *name, const char *bytes, size_t n) {
  unlink(name);
  FILE *out = fopen(name, "wb");
  assert_non_null(out);
  assert_int_equal(fwrite(bytes, 1, n, out), n);
  assert_int_equal(fclose(out), 0);
}

static inline void assert_file(const char *name, const contents *wanted) {
  const contents got = read_file(name);
  assert_int_equal(got.n, wanted->n);
  assert_memory_equal(got.bytes, wanted->bytes, wanted->n);
  free(got.bytes);
}
static inline void step_both(hk_engine *engine, plain_adamw *a, random_stream *r) {
  hk_error err = {0};
  hk_step_report report;
  plain_gradients(a, r);
  give_gradients(engine, a, r);
  plain_step(a, 1);
  must(take_step(engine, a, 1, &report, &err), &err);
}

#endif
