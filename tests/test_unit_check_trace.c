/* SPDX-License-Identifier: GPL-3.0-or-later */
/* check_trace.py finds each kind of fault in a trace, and none in correct traces. */
#include "tests/fixture_trace.h"

#define META(what, key, pid, tid, value)                                                           \
  "{\"ph\":\"M\",\"name\":\"" what "_" key "\",\"pid\":" #pid ",\"tid\":" #tid ",\"args\":{\"" key \
  "\":" value "}},"
#define THREAD(pid, tid) \
  META("thread", "name", pid, tid, "\"t\"") META("thread", "sort_index", pid, tid, "1")
#define TRACKS                           \
  META("process", "name", 1, 0, "\"p\"") \
  META("process", "sort_index", 1, 0, "1") THREAD(1, 1) THREAD(1, 2)
#define AT(ph, tid, ts) \
  "{\"name\":\"n\",\"cat\":\"c\",\"ph\":\"" ph "\",\"pid\":1,\"tid\":" #tid ",\"ts\":" #ts
#define SLICE(tid, ts, dur) AT("X", tid, ts) ",\"dur\":" #dur "}"
#define TAIL(id, tid, ts)   AT("s", tid, ts) ",\"id\":" #id "}"
#define HEAD(id, tid, ts)   AT("f", tid, ts) ",\"bp\":\"e\",\"id\":" #id "}"
#define COUNT(ts, value) \
  "{\"ph\":\"C\",\"name\":\"m\",\"pid\":1,\"ts\":" #ts ",\"args\":{\"bytes\":" value "}}"
#define TWO_SLICES TRACKS SLICE(1, 0, 5) "," SLICE(2, 5.001, 5)

/* A lane of each of two timelines, at the positions `first` and `second`. */
#define LANE(pid, tid, index) \
  META("thread", "name", pid, tid, "\"t\"") META("thread", "sort_index", pid, tid, #index)
#define LANES(first, second)             \
  META("process", "name", 1, 0, "\"p\"") \
  META("process", "sort_index", 1, 0, "1") LANE(1, 1, first) LANE(1, 2, second)
#define OF(timeline, id, tid, ts) \
  AT("X", tid, ts) ",\"dur\":5,\"args\":{\"timeline\":\"" timeline "\",\"id\":" #id "}}"

static const struct {
  const char *events, *complaint; /* NULL: nothing is wrong */
} layered_samples[] = {
    {LANES(1, 2) OF("a", 0, 1, 0) "," OF("b", 0, 2, 0), NULL},
    {LANES(2, 1) OF("a", 0, 1, 0) "," OF("b", 0, 2, 0), "not one under the other"},
    {LANES(1, 1) OF("a", 0, 1, 0) "," OF("b", 0, 2, 0), "have one position"},
    {LANES(1, 2) OF("a", 0, 1, 0) "," OF("c", 0, 2, 0), "of no timeline"},
    {LANES(1, 2) OF("a", 0, 1, 0) "," SLICE(2, 0, 5), "of no timeline"},
    {LANES(1, 2) OF("a", 0, 1, 0) "," OF("b", 0, 1, 9), "is of timeline 'a', too"},
    {LANES(1, 2) OF("a", 0, 1, 0) "," OF("a", 0, 1, 9), "there twice"},
    {LANES(1, 2) OF("a", 0, 1, 0) "," OF("b", 1, 2, 0), "have different operations"},
    {LANES(1, 2) OF("a", 0, 1, 0), "not one under the other"},
    {LANES(1, 2) OF("a", 0, 1, 0) "," OF("b", 0, 2, 9) "," TAIL(1, 1, 4) "," HEAD(1, 2, 9),
     "leaves its timeline"},
};

static const struct {
  const char *events, *complaint; /* NULL: nothing is wrong */
} samples[] = {
    {TWO_SLICES "," TAIL(1, 1, 4.999) "," HEAD(1, 2, 5.001) "," COUNT(3, "1.5"), NULL},
    {TWO_SLICES ",", "cannot be read as JSON"},
    {TRACKS COUNT(1, "NaN"), "not a JSON number"},
    {TRACKS SLICE(1, 0, 5) "," SLICE(1, 4.999, 5), "in front of it"},
    {TRACKS SLICE(1, 9, 5) "," SLICE(1, 1, 5), "in front of it"},
    {TRACKS SLICE(1, 0, 5) "," AT("i", 1, 3) "}", "in front of it"},
    {TRACKS SLICE(1, 3, 0), "takes no time"},
    {TRACKS SLICE(1, 3.0001, 1), "whole number of nanoseconds"},
    {TRACKS SLICE(3, 0, 5), "no name or no position"},
    {META("process", "name", 1, 0, "\"p\"") COUNT(1, "1"), "no name or no position"},
    {TRACKS THREAD(1, 1) SLICE(1, 0, 5), "given twice"},
    {TWO_SLICES "," TAIL(1, 1, 4), "one end only"},
    {TWO_SLICES "," HEAD(1, 2, 6), "one end only"},
    {TWO_SLICES "," TAIL(1, 1, 4) "," TAIL(1, 1, 4) "," HEAD(1, 2, 6), "used twice"},
    {TWO_SLICES "," TAIL(1, 2, 6) "," HEAD(1, 1, 4), "back in time"},
    {TWO_SLICES "," TAIL(1, 1, 5) "," HEAD(1, 2, 6), "outside of any slice"},
    {TWO_SLICES "," TAIL(1, 1, 4) "," HEAD(1, 2, 5), "outside of any slice"},
    {TWO_SLICES "," TAIL(1, 1, 3) "," HEAD(1, 1, 4), "stays on its thread"},
    {TRACKS COUNT(2, "1") "," COUNT(1, "2"), "back in time"},
    {TRACKS COUNT(2, "\"1\""), "without numeric values"},
    {TRACKS AT("B", 1, 2) "}", "unknown kind"},
};

/* `header`: more members of "otherData". */
static void check_sample(const char *header, const char *events, const char *complaint) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file,
          "{\"otherData\":{\"title\":\"\",\"schema\":\"hocket.trace/1\"%s},"
          "\"traceEvents\":[%s]}",
          header, events);
  assert_int_equal(fclose(file), 0);
  char output[1024];
  int code = run_checker(output);
  bool as_expected = complaint ? code == 1 && strstr(output, complaint) : code == 0;
  if (!as_expected) fail_msg("%s: exit %d, %s", events, code, output);
}

static void test_each_fault_is_found(void **state) {
  (void)state;
  if (!have_python()) skip();
  for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
    check_sample("", samples[i].events, samples[i].complaint);
  for (size_t i = 0; i < sizeof layered_samples / sizeof *layered_samples; i++)
    check_sample(",\"timelines\":[\"a\",\"b\"]", layered_samples[i].events,
                 layered_samples[i].complaint);
  check_sample(",\"timelines\":[\"a\",\"a\"]", layered_samples[0].events, "different names");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_fault_is_found),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
