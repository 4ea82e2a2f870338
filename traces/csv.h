/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fields of tables as text (RFC 4180). */
#ifndef HK_TRACES_CSV_H
#define HK_TRACES_CSV_H

#include <stdio.h>

/* Writes a text, in quotes where it needs them. */
void hk_csv_text(const char *text, FILE *out);

#endif
