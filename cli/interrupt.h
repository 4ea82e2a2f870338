/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ctrl-C, timeout(1) and a terminal that is closed, for commands that can stop in good order. */
#ifndef HK_CLI_INTERRUPT_H
#define HK_CLI_INTERRUPT_H

#include <signal.h>

/* From now on the first SIGINT, SIGTERM or SIGHUP sets the flag (to its number), and one that comes
 * a second later or more ends the program as if nobody had asked. */
const volatile sig_atomic_t *hk_interrupt_catch(void);

#endif
