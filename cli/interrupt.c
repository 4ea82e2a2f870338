/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The one signal handler of the program. */
#include "cli/interrupt.h"

#include <stdatomic.h>
#include <stddef.h>

#include "core/units.h"

#define INSISTING_NS HK_NS_PER_S /* after the first signal, another one means it */

static volatile sig_atomic_t interrupted;
static _Atomic hk_ns first_at; /* hk_now; 0: not yet */

/* A signal that comes again at once is the same one: timeout(1) sends its own to the command, and
 * then to the command's process group. Threads may be in here together. */
static void on_interrupt(int number) {
  const hk_ns now = hk_now(); /* clock_gettime alone, which a handler may call */
  hk_ns first = 0;
  if (atomic_compare_exchange_strong(&first_at, &first, now)) {
    interrupted = number;
  } else if (now - first >= INSISTING_NS) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

/* Without SA_RESTART: what sleeps in a system call wakes up and sees the flag. A signal that the
 * program was started without (nohup, a background job) stays ignored. */
const volatile sig_atomic_t *hk_interrupt_catch(void) {
  struct sigaction action = {.sa_handler = on_interrupt};
  sigemptyset(&action.sa_mask);
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    struct sigaction before;
    if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      sigaction(numbers[i], &action, NULL);
  }
  return &interrupted;
}
