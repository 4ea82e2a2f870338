/* SPDX-License-Identifier: GPL-3.0-or-later */
/* For traces/ and tests only: timelines as bytes. The format is described in timelines_blob.c. */
#ifndef HK_TRACES_TIMELINES_INTERNAL_H
#define HK_TRACES_TIMELINES_INTERNAL_H

#include "traces/timelines.h"

/* The caller frees out->bytes. HK_INPUT: a counter in a unit that decoding does not know. */
hk_status hk_spans_encode(const hk_timeline *timeline, hk_blob *out, hk_error *err);
hk_status hk_counters_encode(const hk_timeline *timeline, hk_blob *out, hk_error *err);

/* Fills a timeline that hk_timeline_init has made. HK_INPUT: wrong checksum or format, or another
 * number of operations. */
hk_status hk_spans_decode(const hk_blob *blob, hk_timeline *timeline, hk_error *err);
hk_status hk_counters_decode(const hk_blob *blob, hk_timeline *timeline, hk_error *err);

#endif
