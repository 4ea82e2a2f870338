/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Teams that update beside measurements (hocket_busy_...): they update while they are let, and only
 * then; wrong arguments are refused; a team may be stopped at any time.
 *
 *   busy */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

static void pass_ms(long ms) {
  const struct timespec time = {.tv_nsec = ms * 1000000};
  nanosleep(&time, NULL);
}

/* Waits until the team has updated more than `before` elements; the test's time limit ends it if
 * that never happens. */
static int64_t await_more(const hocket_busy *busy, int64_t before) {
  while (hocket_busy_updated(busy) <= before) pass_ms(1);
  return hocket_busy_updated(busy);
}

static void updates_while_it_is_let(int32_t threads, int64_t elements) {
  hocket_busy *busy = NULL;
  MUST(hocket_busy_start(threads, elements, &busy, message));
  CHECK(threads > 0 ? hocket_busy_threads(busy) == threads : hocket_busy_threads(busy) > 0);
  int64_t done = 0;
  for (int turn = 0; turn < 3; turn++) {
    pass_ms(5);
    CHECK(hocket_busy_updated(busy) == done);
    MUST(hocket_busy_update(busy, 1, message));
    MUST(hocket_busy_update(busy, 1, message));
    done = await_more(busy, done + 3 * elements);
    MUST(hocket_busy_update(busy, 0, message));
    MUST(hocket_busy_update(busy, 0, message));
    done = hocket_busy_updated(busy);
  }
  hocket_busy_stop(busy);
}

/* Two teams at once; both are stopped while they update. */
static void stops_at_any_time(void) {
  hocket_busy *busy[2];
  for (int i = 0; i < 2; i++) {
    MUST(hocket_busy_start(i + 1, 70000, &busy[i], message));
    MUST(hocket_busy_update(busy[i], 1, message));
  }
  for (int i = 0; i < 2; i++) await_more(busy[i], 0);
  for (int i = 0; i < 2; i++) hocket_busy_stop(busy[i]);
}

static void refuses(void) {
  hocket_busy *busy = (hocket_busy *)&busy;
  REFUSED(hocket_busy_start(1, 1, NULL, message), 2, "NULL");
  REFUSED(hocket_busy_start(-1, 1, &busy, message), 2, "threads");
  CHECK(busy == NULL);
  REFUSED(hocket_busy_start(1 << 17, 1, &busy, message), 2, "threads");
  REFUSED(hocket_busy_start(1, 0, &busy, message), 2, "elements");
  REFUSED(hocket_busy_start(1, INT64_MAX, &busy, message), 2, "elements");
  REFUSED(hocket_busy_start(1, (int64_t)1 << 50, &busy, message), 3, "memory");
  CHECK(busy == NULL);
  REFUSED(hocket_busy_update(NULL, 1, message), 2, "NULL");
  CHECK(hocket_busy_updated(NULL) == 0 && hocket_busy_threads(NULL) == 0);
  hocket_busy_stop(NULL);
}

static void a_forked_child_has_none(void) {
  hocket_busy *busy = NULL;
  MUST(hocket_busy_start(2, 1000, &busy, message));
  MUST(hocket_busy_update(busy, 1, message));
  const pid_t child = fork();
  if (child == 0) {
    REFUSED(hocket_busy_update(busy, 0, message), 2, "forked");
    hocket_busy_stop(busy);
    _exit(0);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  MUST(hocket_busy_update(busy, 0, message));
  hocket_busy_stop(busy);
}

int main(void) {
  updates_while_it_is_let(1, 1);
  updates_while_it_is_let(3, 300001);
  updates_while_it_is_let(0, ((int64_t)16 << 20) + 5);
  stops_at_any_time();
  refuses();
  a_forked_child_has_none();
  puts("all went well");
  return 0;
}
