/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines as bytes for the store. A number has 8 bytes, little-endian. A text is its length and
 * its characters. A blob ends in the XXH3-64 of everything before.
 *
 *   spans      count, then for each operation: ready, start, end (ns)
 *   counters   count, then for each: name, unit, capacity (IEEE double), number of samples, and
 *              for each sample: time (ns), value (IEEE double) */
#define XXH_INLINE_ALL
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/base/memory_text.h"
#include "traces/timelines_internal.h"

/* -- Writing ----------------------------------------------------------------------------------- */

typedef struct {
  FILE *stream; /* open_memstream; its error flag is checked at the end */
  char *bytes;
  size_t size;
} writer;

static hk_status begin(writer *w, hk_error *err) {
  *w = (writer){0};
  w->stream = open_memstream(&w->bytes, &w->size);
  return w->stream ? HK_OK : hk_fail_memory(err, BUFSIZ, "a timeline's bytes");
}

static void put_number(writer *w, int64_t value) {
  const uint64_t bits = htole64((uint64_t)value);
  fwrite(&bits, sizeof bits, 1, w->stream);
}

static void put_double(writer *w, double value) {
  int64_t bits;
  memcpy(&bits, &value, sizeof bits);
  put_number(w, bits);
}

static void put_text(writer *w, const char *text) {
  const size_t length = strlen(text);
  put_number(w, (int64_t)length);
  fwrite(text, 1, length, w->stream);
}

/* Appends the checksum and moves the bytes to `out`. */
static hk_status finish(writer *w, hk_blob *out, hk_error *err) {
  bool failed = fflush(w->stream) != 0 || ferror(w->stream);
  if (!failed) put_number(w, (int64_t)XXH3_64bits(w->bytes, w->size));
  HK_TRY(hk_memory_text_close(w->stream, &w->bytes, "a timeline's bytes", err));
  if (failed) {
    free(w->bytes);
    return hk_fail_memory(err, w->size, "a timeline's bytes");
  }
  *out = (hk_blob){w->bytes, w->size};
  return HK_OK;
}

hk_status hk_spans_encode(const hk_timeline *timeline, hk_blob *out, hk_error *err) {
  for (size_t i = 0; i < timeline->n_spans; i++)
    if (timeline->spans[i].end > HK_MOST_NS)
      return hk_fail(err, HK_INPUT,
                     "operation %zu ends after %.3g years; the store keeps timelines of up to 9", i,
                     hk_s(timeline->spans[i].end) / (365.25 * 86400));
  writer w;
  HK_TRY(begin(&w, err));
  put_number(&w, (int64_t)timeline->n_spans);
  for (size_t i = 0; i < timeline->n_spans; i++) {
    put_number(&w, timeline->spans[i].ready);
    put_number(&w, timeline->spans[i].start);
    put_number(&w, timeline->spans[i].end);
  }
  return finish(&w, out, err);
}

/* The known unit equal to `unit`, as a constant string (a timeline does not own units); NULL: none.
 */
static const char *unit_like(const char *unit) {
  static const char *const units[] = {"bytes", "bytes_per_s", "seconds_per_s"};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (strcmp(unit, units[i]) == 0) return units[i];
  return NULL;
}

static void put_counter(writer *w, const hk_counter *counter) {
  put_text(w, counter->name);
  put_text(w, counter->unit);
  put_double(w, counter->capacity);
  put_number(w, (int64_t)counter->n);
  for (size_t i = 0; i < counter->n; i++) {
    put_number(w, counter->samples[i].time);
    put_double(w, counter->samples[i].value);
  }
}

hk_status hk_counters_encode(const hk_timeline *timeline, hk_blob *out, hk_error *err) {
  for (size_t i = 0; i < timeline->n_counters; i++)
    if (!unit_like(timeline->counters[i].unit))
      return hk_fail(err, HK_INPUT,
                     "counter '%s' is in %s; the store keeps bytes, bytes_per_s and seconds_per_s",
                     timeline->counters[i].name, timeline->counters[i].unit);
  writer w;
  HK_TRY(begin(&w, err));
  put_number(&w, (int64_t)timeline->n_counters);
  for (size_t i = 0; i < timeline->n_counters; i++) put_counter(&w, &timeline->counters[i]);
  return finish(&w, out, err);
}

/* -- Reading ----------------------------------------------------------------------------------- */

typedef struct {
  const char *at;
  size_t left;
  bool failed; /* the data ended too early: all further numbers are 0 */
} reader;

static int64_t get_number(reader *r) {
  uint64_t bits = 0;
  if (r->failed || r->left < sizeof bits) {
    r->failed = true;
    return 0;
  }
  memcpy(&bits, r->at, sizeof bits);
  r->at += sizeof bits;
  r->left -= sizeof bits;
  return (int64_t)le64toh(bits);
}

static double get_double(reader *r) {
  const int64_t bits = get_number(r);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Sets r->failed if the time is beyond HK_MOST_NS. */
static hk_ns get_time(reader *r) {
  const hk_ns time = get_number(r);
  if (time < -HK_MOST_NS || time > HK_MOST_NS) r->failed = true;
  return r->failed ? 0 : time;
}

/* Sets r->failed if the text has `size` bytes or more. */
static void get_text(reader *r, char *text, size_t size) {
  const int64_t length = get_number(r);
  text[0] = '\0';
  if (r->failed || length < 0 || (size_t)length >= size || (size_t)length > r->left) {
    r->failed = true;
    return;
  }
  memcpy(text, r->at, (size_t)length);
  text[length] = '\0';
  r->at += length;
  r->left -= (size_t)length;
}

static hk_status open_blob(const hk_blob *blob, const char *what, reader *r, hk_error *err) {
  const size_t checksum = sizeof(uint64_t);
  *r = (reader){.at = blob->bytes};
  if (blob->size >= checksum) {
    r->left = blob->size - checksum;
    reader end = {r->at + r->left, checksum, false};
    if ((uint64_t)get_number(&end) == XXH3_64bits(r->at, r->left)) return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "its %s, %zu bytes, are not what was stored: the checksum differs",
                 what, blob->size);
}

static hk_status close_blob(const reader *r, const char *what, hk_error *err) {
  if (!r->failed && r->left == 0) return HK_OK;
  return hk_fail(err, HK_INPUT, "its %s have a format that this hocket does not read", what);
}

hk_status hk_spans_decode(const hk_blob *blob, hk_timeline *timeline, hk_error *err) {
  reader r;
  HK_TRY(open_blob(blob, "spans", &r, err));
  const int64_t n = get_number(&r);
  if (n != (int64_t)timeline->n_spans)
    return hk_fail(err, HK_INPUT, "it has %lld spans for a plan of %zu operations", (long long)n,
                   timeline->n_spans);
  for (size_t i = 0; i < timeline->n_spans; i++) {
    hk_span *span = &timeline->spans[i];
    span->ready = get_time(&r);
    span->start = get_time(&r);
    span->end = get_time(&r);
  }
  return close_blob(&r, "spans", err);
}

static hk_status get_counter(reader *r, hk_timeline *timeline, hk_error *err) {
  char name[sizeof timeline->counters->name], unit[32];
  get_text(r, name, sizeof name);
  get_text(r, unit, sizeof unit);
  const double capacity = get_double(r);
  const int64_t n = get_number(r);
  const char *known = unit_like(unit);
  if (r->failed || !known) return close_blob(&(reader){.failed = true}, "counters", err);
  const int index = hk_timeline_counter(timeline, name, known, capacity, err);
  if (index < 0) return err->status;
  for (int64_t i = 0; i < n && !r->failed; i++) {
    const hk_ns time = get_time(r);
    const double value = get_double(r);
    if (!r->failed) HK_TRY(hk_counter_add(&timeline->counters[index], time, value, err));
  }
  return HK_OK;
}

hk_status hk_counters_decode(const hk_blob *blob, hk_timeline *timeline, hk_error *err) {
  reader r;
  HK_TRY(open_blob(blob, "counters", &r, err));
  const int64_t n = get_number(&r);
  for (int64_t i = 0; i < n && !r.failed; i++) HK_TRY(get_counter(&r, timeline, err));
  return close_blob(&r, "counters", err);
}
