/* SPDX-License-Identifier: GPL-3.0-or-later */
/* How wide lines for people may be, and text that is wrapped to that width. JSON and CSV do not
 * come through here. */
#ifndef HK_CLI_SCREEN_H
#define HK_CLI_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

/* From now on nothing that stdout and stderr are given moves a cursor or sets a colour: control
 * characters, which names in files of others may have, are shown as \x1b. Lines and tabs stay. */
void hk_screen_open(void);

/* What is under way, on a line of stderr that the next one replaces, and its end. */
void hk_screen_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void hk_screen_progress_end(void);

/* --wide: lines as long as their text. */
void hk_screen_wide(bool wide);
/* Columns: those of the terminal if stdout is one, else 80; SIZE_MAX with --wide. */
size_t hk_screen_width(void);

/* Columns that the first `bytes` of a text take; all of it if it is shorter. */
size_t hk_text_width(const char *text, size_t bytes);
/* How many bytes of `text` go on a line of `width` columns: up to the last space that fits, or, of
 * a word that is too long, all of it, or what fits if it may be `cut`. */
size_t hk_text_fit(const char *text, size_t width, bool cut);
/* A copy with control characters shown as \x1b, which is the caller's to free; NULL: no memory. */
char *hk_text_visible(const char *text);

/* A paragraph to stdout, wrapped between words. Every line begins with `indent` spaces, and all but
 * the first with `hang` more. hk_screen_failed says whether memory was short for one. */
void hk_print_text(size_t indent, size_t hang, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

bool hk_screen_failed(void);

#endif
