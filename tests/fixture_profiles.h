/* SPDX-License-Identifier: GPL-3.0-or-later */
/* For tests of profiles: each test has a store of its own and a campaign to store in it. */
#ifndef HK_TESTS_FIXTURE_PROFILES_H
#define HK_TESTS_FIXTURE_PROFILES_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "calib/profiles/profiles.h"
#include "tests/fixture.h"

/* -- A store of its own for every test --------------------------------------------------------- */

static char folder[] = "hk-profiles-XXXXXX";
static char path[64];

static inline int enter_folder(void **state) {
  (void)state;
  strcpy(folder + sizeof folder - 7, "XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/store.db", folder);
  return setenv("HOCKET_STORE", path, 1);
}

static inline int leave_folder(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

static inline hk_store *open_store(void) {
  hk_error err = {0};
  hk_store *store = NULL;
  must(hk_store_open(NULL, false, &store, &err), &err);
  return store;
}

static inline void says(const hk_error *err, const char *what) {
  if (!strstr(err->message, what)) fail_msg("'%s' does not say '%s'", err->message, what);
}

static const hk_fingerprint here = {.backend = "host",
                                    .cpu = "Xeon A",
                                    .isa = "avx512",
                                    .gpu = "host",
                                    .driver = "none",
                                    .pcie = "unknown",
                                    .kernel = "6.1",
                                    .huge_pages = "madvise",
                                    .version = "0.1.0",
                                    .gpus = 1,
                                    .cores = 16,
                                    .numa = 1,
                                    .memory = (int64_t)1 << 37};

static inline int64_t begin(hk_store *store, const char *name) {
  hk_error err = {0};
  int64_t id = 0;
  must(hk_calibration_run_begin(store, name, true, &here, &id, &err), &err);
  assert_true(id > 0);
  return id;
}

/* -- A campaign of three probes ---------------------------------------------------------------- */

static const hk_probe probes[] = {
    {.name = "h2d 64 KiB", .n_loads = 1, .loads = {{.kind = HK_LOAD_H2D, .chunk = 65536}}},
    {.name = "h2d gpu1 | adamw_cpu 4 threads",
     .n_loads = 2,
     .loads = {{.kind = HK_LOAD_H2D, .gpu = 1, .chunk = 1 << 24},
               {.kind = HK_LOAD_ADAMW_CPU, .threads = 4, .chunk = 65536}}},
    {.name = "hop", .n_loads = 1, .loads = {{.kind = HK_LOAD_HOP}}},
};

static inline void open_campaign(hk_campaign *campaign) {
  hk_error err = {0};
  must(hk_campaign_open(probes, 3, campaign, &err), &err);
}

/* Value of a load in a round; no two are equal. */
static inline double value_of(int probe, size_t round, int load) {
  return 1e9 * (probe + 1) + 1000.25 * (double)round + load;
}

/* Stores rounds first .. first + n - 1 of the first two probes. */
static inline void keep_rounds(hk_store *store, int64_t id, size_t first, size_t n) {
  hk_error err = {0};
  for (size_t round = first; round < first + n; round++)
    for (int i = 0; i < 2; i++) {
      const double values[] = {value_of(i, round, 0), value_of(i, round, 1)};
      must(hk_calibration_run_add_sample(store, id, probes[i].name, round, probes[i].n_loads,
                                         values, (double)round, &err),
           &err);
    }
}

static inline int64_t number(hk_store *store, const char *sql) {
  hk_error err = {0};
  sqlite3_stmt *statement = NULL;
  bool row = false;
  must(hk_store_query(store, &statement, &err, sql, ""), &err);
  must(hk_store_step(store, statement, &row, &err), &err);
  const int64_t value = sqlite3_column_int64(statement, 0);
  hk_store_finish(statement);
  return value;
}

#endif
