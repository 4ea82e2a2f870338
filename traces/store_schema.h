/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Inside traces and tests only: the steps of the store's schema, and opening a store as an earlier
 * hocket would. */
#ifndef HK_TRACES_STORE_SCHEMA_H
#define HK_TRACES_STORE_SCHEMA_H

#include "traces/store.h"

/* PRAGMA application_id: "hckt". Tells our files from every other SQLite database (file(1), too).
 */
#define HK_STORE_APPLICATION 0x68636b74

/* PRAGMA user_version of a store counts the steps that made it. Step i brings version i to i + 1.
 */
extern const char *const hk_store_steps[];
extern const int hk_store_version; /* of this hocket: how many steps there are */

/* hk_store_open by a hocket whose schema has only the first `version` steps, and that waits
 * `patience_ms` for another writer. */
hk_status hk_store_open_as(const char *path, bool must_exist, int version, int patience_ms,
                           hk_store **store, hk_error *err);

#endif
