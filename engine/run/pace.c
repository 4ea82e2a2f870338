/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that a plan sets itself (hk_pace in core/graph/plan.h). The simulator takes a limited
 * operation as one of constant rate, so the engine spreads it over time: copies in parts, the CPU
 * team's work chunk by chunk. */
#include <time.h>

#include "engine/private.h"

/* A paced copy is cut into parts that last so long at its rate, but not into smaller ones than
 * LEAST_PART, which take about as long to start as to copy. */
#define PART_NS    500000 /* 0.5 ms */
#define LEAST_PART (256 * HK_KIB)
/* Longest sleep before the thread looks whether the run was stopped. */
#define MOST_SLEEP (HK_NS_PER_S / 100)

void hk_engine_sleep_until(const hk_engine *e, hk_ns time) {
  for (hk_ns left; (left = time - hk_now()) > 0 && !hk_executor_is_stopped(e->executor);) {
    const hk_ns until = hk_now() + hk_min(left, MOST_SLEEP);
    const struct timespec t = {.tv_sec = until / HK_NS_PER_S, .tv_nsec = until % HK_NS_PER_S};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
  }
}

hk_ns hk_engine_reserve(_Atomic hk_ns *next, double rate, int64_t amount) {
  const hk_ns length = (hk_ns)((double)amount / rate * HK_NS_PER_S);
  hk_ns at = atomic_load(next), begin;
  do begin = hk_max(at, hk_now());
  while (!atomic_compare_exchange_weak(next, &at, begin + length));
  return begin;
}

void hk_engine_pace(hk_engine *e, hk_bytes bytes, bool in) {
  const double rate = in ? e->plan.pace.in : e->plan.pace.out;
  if (rate == 0) return;
  hk_engine_sleep_until(e, hk_engine_reserve(in ? &e->paced_in : &e->paced_out, rate, bytes));
}

hk_bytes hk_engine_paced_part(const hk_engine *e, bool in) {
  const double rate = in ? e->plan.pace.in : e->plan.pace.out;
  if (rate == 0) return INT64_MAX;
  return hk_max(LEAST_PART, (hk_bytes)(rate * PART_NS / HK_NS_PER_S)) / 64 * 64;
}

hk_status hk_engine_copy_paced(hk_engine *e, hk_stream *stream, void *to, const void *from,
                               hk_bytes bytes, bool in, hk_error *err) {
  const hk_bytes most = hk_engine_paced_part(e, in);
  for (hk_bytes done = 0, part; done < bytes; done += part) {
    part = hk_min(bytes - done, most);
    hk_engine_pace(e, part, in);
    HK_TRY(e->backend->ops->copy(stream, (char *)to + done, (const char *)from + done, part, err));
  }
  return HK_OK;
}
