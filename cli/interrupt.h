/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Signals that end the program, and signals that a long command stops for in good order. */
#ifndef HK_CLI_INTERRUPT_H
#define HK_CLI_INTERRUPT_H

#include <signal.h>

/* To be called once, at the start. A signal that ends the program (SIGINT, SIGTERM, SIGHUP,
 * SIGQUIT, SIGPIPE, SIGXCPU, SIGXFSZ) removes its temporary files first, if there are any with a
 * name. A signal that was ignored when the program started (nohup, a background job) stays ignored.
 */
void hk_interrupt_remove_files(void);

/* From now on the first SIGINT, SIGTERM or SIGHUP only sets the flag to its number. One that comes
 * at least a second later ends the program. */
const volatile sig_atomic_t *hk_interrupt_catch(void);

#endif
