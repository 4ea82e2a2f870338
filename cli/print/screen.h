/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Text for people: line width, wrapping, progress lines. JSON and CSV are printed without it. */
#ifndef HK_CLI_PRINT_SCREEN_H
#define HK_CLI_PRINT_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

/* From now on stdout and stderr print control characters other than newline and tab as "\x1b",
 * because names from files could contain escape sequences of terminals. */
void hk_screen_open(void);

/* Prints a progress line on stderr, in place of the last one; the second function erases it. */
void hk_screen_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void hk_screen_progress_end(void);

/* --wide: no limit of the line length. */
void hk_screen_wide(bool wide);
/* Line width in columns: the terminal's if stdout is one, else 80; SIZE_MAX with --wide. */
size_t hk_screen_width(void);

/* The sign of an interval, U+00B1, or "+-" if the locale has no such character. */
const char *hk_plus_minus(void);

/* Width in columns of the first `bytes` bytes of `text`, or of all of it if it is shorter. */
size_t hk_text_width(const char *text, size_t bytes);
/* Number of bytes of `text` that are put on a line of `width` columns: up to the last space that
 * fits. If the first word is wider than the line: the whole word, or with `cut` the part that fits.
 */
size_t hk_text_fit(const char *text, size_t width, bool cut);
/* A copy in which control characters are written as "\x1b". The caller frees it. NULL: no memory.
 */
char *hk_text_visible(const char *text);

/* Prints a paragraph to stdout, wrapped between words. Lines are indented by `indent` spaces, all
 * but the first by `hang` more. Out of memory: see hk_screen_failed. */
void hk_print_text(size_t indent, size_t hang, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A paragraph was lost because memory ran out. */
bool hk_screen_failed(void);

#endif
