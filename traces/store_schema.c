/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The store's schema, as steps. A step that was released never changes: a change of the schema is a
 * new step at the end. */
#include "traces/store_schema.h"

const char *const hk_store_steps[] = {
    /* 1: calibrations. A sample is the raw value of one load of a probe in one round. Ids are not
     * reused (AUTOINCREMENT), because a process may still add samples to a run that another process
     * has deleted. */
    "CREATE TABLE run ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  name TEXT NOT NULL," /* of the profile */
    "  started TEXT NOT NULL,"
    "  state TEXT NOT NULL CHECK (state IN ('measuring', 'done')),"
    "  quick INTEGER NOT NULL,"
    "  seconds REAL NOT NULL,"    /* spent measuring */
    "  fingerprint TEXT NOT NULL" /* JSON, calib/stand/fingerprint.h */
    ") STRICT;"
    "CREATE TABLE sample ("
    "  run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,"
    "  probe TEXT NOT NULL,"
    "  round INTEGER NOT NULL,"
    "  load INTEGER NOT NULL,"
    "  value REAL," /* in the load's unit; NULL: not a number */
    "  PRIMARY KEY (run, probe, round, load)"
    ") STRICT, WITHOUT ROWID;",

    /* 2: profiles. `document` is the whole profile with its calibration. The other columns repeat
     * the values that a list shows, so that a list does not parse documents. */
    "CREATE TABLE profile ("
    "  name TEXT PRIMARY KEY,"
    "  description TEXT NOT NULL,"
    "  made TEXT NOT NULL,"
    "  origin TEXT NOT NULL CHECK (origin IN ('calibrate', 'import')),"
    "  gpus INTEGER NOT NULL,"
    "  quick INTEGER NOT NULL,"
    "  accepted INTEGER NOT NULL,"
    "  median_error_pct REAL," /* of the replays; NULL: none */
    "  p90_error_pct REAL,"
    "  run INTEGER REFERENCES run," /* that has its samples; NULL: none here */
    "  document TEXT NOT NULL"      /* JSON, hocket.machine/1 */
    ") STRICT;",

    /* 3: timelines. Plan, profile and fingerprint are stored as whole documents, so that a timeline
     * can be reproduced after the profile of that name has changed. Spans and counters:
     * traces/timelines_blob.c. */
    "CREATE TABLE timeline ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  pair INTEGER REFERENCES timeline ON DELETE SET NULL," /* the other timeline of the pair */
    "  measured INTEGER NOT NULL,"
    "  phases INTEGER NOT NULL," /* as passed to hk_graph_build */
    "  made TEXT NOT NULL,"
    "  label TEXT NOT NULL,"
    "  machine TEXT NOT NULL,"
    "  version TEXT NOT NULL,"
    "  operations INTEGER NOT NULL,"
    "  makespan_ns INTEGER NOT NULL,"
    "  graph TEXT NOT NULL," /* hk_graph_hash */
    "  plan TEXT NOT NULL,"  /* JSON, hocket.plan/1 */
    "  profile TEXT,"        /* JSON, hocket.machine/1 */
    "  fingerprint TEXT,"    /* JSON, calib/stand/fingerprint.h */
    "  spans BLOB NOT NULL,"
    "  counters BLOB NOT NULL"
    ") STRICT;",
};

const int hk_store_version = sizeof hk_store_steps / sizeof *hk_store_steps;
