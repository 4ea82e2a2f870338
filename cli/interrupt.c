/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The one signal handler of the program. */
#include "cli/interrupt.h"

#include <stddef.h>

static volatile sig_atomic_t interrupted;

/* One more of either kind ends the program. */
static void on_interrupt(int number) {
  interrupted = number;
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

/* Without SA_RESTART: what sleeps in a system call wakes up and sees the flag. */
const volatile sig_atomic_t *hk_interrupt_catch(void) {
  struct sigaction action = {.sa_handler = on_interrupt};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  return &interrupted;
}
