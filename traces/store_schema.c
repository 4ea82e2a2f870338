/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The store's schema, as the steps that stores in the field went through. A step that was released
 * never changes: what should be different is the next step, added at the end. */
#include "traces/store_schema.h"

const char *const hk_store_steps[] = {
    /* 1: calibrations as they are measured. A sample is the values that all loads of a probe had in
     * one round, raw. Ids are never used twice: a process may still be adding to a run that another
     * one deletes. */
    "CREATE TABLE run ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  name TEXT NOT NULL," /* of the profile that it is for */
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

    /* 2: profiles. The document is the whole of one, calibration included; the other columns repeat
     * what a list of profiles shows, so that a list needs no document, and none that is sound. */
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
    "  run INTEGER REFERENCES run," /* whose samples it rests on; NULL: not measured here */
    "  document TEXT NOT NULL"      /* JSON, hocket.machine/1 */
    ") STRICT;",

    /* 3: timelines. Plan, profile and fingerprint are whole documents, so that a timeline can be
     * made again when the profile of that name is another. Spans and counters:
     * traces/timelines_blob.c. */
    "CREATE TABLE timeline ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  pair INTEGER REFERENCES timeline ON DELETE SET NULL," /* the other; each names the other */
    "  measured INTEGER NOT NULL,"
    "  phases INTEGER NOT NULL," /* bits of hk_phase */
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
