/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Inside traces and tests only: timelines as bytes. */
#ifndef HK_TRACES_TIMELINES_INTERNAL_H
#define HK_TRACES_TIMELINES_INTERNAL_H

#include "traces/timelines.h"

/* What timelines_blob.c describes. The caller frees out->bytes. HK_INPUT: a counter in a unit that
 * could not be read again. */
hk_status hk_spans_encode(const hk_timeline *timeline, hk_blob *out, hk_error *err);
hk_status hk_counters_encode(const hk_timeline *timeline, hk_blob *out, hk_error *err);

/* Into a timeline that hk_timeline_init has made. HK_INPUT: not what was encoded, or of another
 * number of operations. */
hk_status hk_spans_decode(const hk_blob *blob, hk_timeline *timeline, hk_error *err);
hk_status hk_counters_decode(const hk_blob *blob, hk_timeline *timeline, hk_error *err);

#endif
