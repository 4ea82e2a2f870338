/* SPDX-License-Identifier: GPL-3.0-or-later */
/* For traces/ and tests only: the steps of the store's schema, and opening a store with fewer of
 * them. */
#ifndef HK_TRACES_STORE_SCHEMA_H
#define HK_TRACES_STORE_SCHEMA_H

#include "traces/store.h"

/* PRAGMA application_id of a store: "hckt". */
#define HK_STORE_APPLICATION 0x68636b74

/* PRAGMA user_version of a store is the number of steps that made it. Step i turns version i into
 * i + 1. */
extern const char *const hk_store_steps[];
extern const int hk_store_version; /* number of steps of this hocket */

/* What a kind of database has of its own; the rest is the same for all. */
typedef struct {
  int application;          /* PRAGMA application_id */
  const char *const *steps; /* of its schema */
  int version;              /* number of steps; not used for the store */
  const char *noun;         /* in messages: "store" */
  const char *elsewhere;    /* "name another file in HOCKET_STORE" */
  const char *afresh;       /* what follows when a damaged one is moved away */
  bool makes_folders;
} hk_store_kind;

/* As hk_store_open, of another kind. `path` is given. */
hk_status hk_store_open_kind(const char *path, const hk_store_kind *kind, bool must_exist,
                             hk_store **store, hk_error *err);

/* hk_store_open with only the first `version` steps of the schema; waits `patience_ms` for another
 * writer. */
hk_status hk_store_open_as(const char *path, bool must_exist, int version, int patience_ms,
                           hk_store **store, hk_error *err);

#endif
