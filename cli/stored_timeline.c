/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines of the default store, opened by their ids. */
#include "cli/stored_timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool hk_stored_timeline_is_id(const char *operand) {
  return *operand && operand[strspn(operand, "0123456789")] == '\0';
}

hk_status hk_stored_timeline_id(const char *operand, int64_t *id, hk_error *err) {
  errno = 0;
  *id = hk_stored_timeline_is_id(operand) ? strtoll(operand, NULL, 10) : 0;
  if (*id > 0 && errno == 0) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "expected the id of a timeline, a whole number from 1, got '%.80s'; 'hocket trace "
                 "list' lists them",
                 operand);
}

hk_status hk_stored_timeline_open(hk_store **store, hk_error *err) {
  HK_TRY(hk_store_open(NULL, true, store, err));
  if (*store) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "there are no timelines: nothing has been stored yet; 'hocket simulate --keep', "
                 "'hocket run --keep' and 'hocket validate engine' store them");
}

hk_status hk_stored_timeline_load(const char *operand, hk_loaded_timeline *out, hk_error *err) {
  *out = (hk_loaded_timeline){0};
  int64_t id = 0;
  hk_store *store = NULL;
  HK_TRY(hk_stored_timeline_id(operand, &id, err));
  HK_TRY(hk_stored_timeline_open(&store, err));
  hk_status status = hk_timelines_load(store, id, out, err);
  hk_store_close(store);
  return status;
}

hk_status hk_stored_timeline_add(const hk_timeline_to_store *what, int64_t *id, hk_error *err) {
  hk_store *store = NULL;
  HK_TRY(hk_store_open(NULL, false, &store, err));
  hk_status status = hk_timelines_store(store, what, id, err);
  hk_store_close(store);
  return status;
}

const char *hk_stored_timeline_kind(const hk_stored_timeline *kept) {
  return kept->measured ? "measured" : "predicted";
}
