/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The program's signal handlers. They call only functions that a signal handler may call. */
#include "cli/interrupt.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/base/outfile.h"
#include "core/base/units.h"

#define INSISTING_NS \
  HK_NS_PER_S /* time after the first signal from which another one ends the program */

static volatile sig_atomic_t interrupted;
static _Atomic hk_ns first_at; /* hk_now; 0: not yet */

/* Removes the files, then lets the signal end the program. */
static void end_by(int number) {
  hk_outfile_remove_unfinished();
  signal(number, SIG_DFL);
  raise(number);
}

/* A second signal that comes at once is the same request: timeout(1) signals the command and then
 * the command's process group. Several threads may run this at the same time. */
static void on_interrupt(int number) {
  const hk_ns now = hk_now();
  hk_ns first = 0;
  if (atomic_compare_exchange_strong(&first_at, &first, now))
    interrupted = number;
  else if (now - first >= INSISTING_NS)
    end_by(number);
}

/* Handles those signals that are neither ignored nor, unless `again`, handled already. */
static void handle(const int *numbers, size_t n, void (*handler)(int), bool again) {
  /* Without SA_RESTART: a system call that sleeps returns, and its caller sees the flag. */
  struct sigaction action = {.sa_handler = handler}, before;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < n; i++)
    if (sigaction(numbers[i], NULL, &before) == 0 &&
        (before.sa_handler == SIG_DFL || (again && before.sa_handler != SIG_IGN)))
      sigaction(numbers[i], &action, NULL);
}

static void remove_files_at_end(void) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU, SIGXFSZ};
  handle(numbers, sizeof numbers / sizeof *numbers, end_by, false);
}

void hk_interrupt_remove_files(void) {
  hk_outfile_on_unfinished(remove_files_at_end);
}

const volatile sig_atomic_t *hk_interrupt_catch(void) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  handle(numbers, sizeof numbers / sizeof *numbers, on_interrupt, true);
  return &interrupted;
}
