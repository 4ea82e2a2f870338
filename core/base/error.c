/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages: one line each, always terminated, and safe to print on a terminal, whatever name
 * or key they quote. */
#include "core/base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Stores `text` as the message. File names and keys are untrusted: their control characters must
 * not break the line or reach the terminal. */
static void set_message(hk_error *err, const char *text) {
  const size_t room = sizeof err->message - 1;
  size_t length = strlen(text);
  const char *tail = "";
  if (length > room) {
    tail = "...";
    length = room - strlen(tail);
    /* Never end in the middle of a UTF-8 character. */
    while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) length--;
  }
  for (size_t i = 0; i < length; i++) {
    unsigned char c = (unsigned char)text[i];
    bool blank = c == '\n' || c == '\t';
    /* U+0080 to U+009F in UTF-8: a terminal reads U+009B as ESC [. */
    bool c1 = c == 0xC2 && ((unsigned char)text[i + 1] & 0xE0) == 0x80;
    err->message[i] = blank ? ' ' : c < 0x20 || c == 0x7F || c1 ? '?' : text[i];
    if (c1) err->message[++i] = '?';
  }
  memcpy(err->message + length, tail, strlen(tail) + 1);
}

/* The parentheses keep the macros of error.h away. */
hk_status(hk_fail)(hk_error *err, hk_status status, const char *format, ...) {
  if (!err) return status;
  /* Formatted in a buffer of its own, because an argument may be the old message. The buffer has
   * one byte more than the message, so that set_message notices one that is too long. */
  char text[sizeof err->message + 1];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  set_message(err, text);
  err->status = status;
  return status;
}

hk_status(hk_fail_prefix)(hk_error *err, const char *format, ...) {
  /* Without an hk_error there is no status to forward; nearly all prefixed messages are HK_INPUT.
   */
  if (!err) return HK_INPUT;
  char prefix[sizeof err->message];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(prefix, sizeof prefix, format, arguments);
  va_end(arguments);
  char text[sizeof prefix + sizeof err->message + 2];
  snprintf(text, sizeof text, "%s: %s", prefix, err->message);
  set_message(err, text);
  return err->status;
}

hk_status hk_fail_first(const hk_error *errors, size_t n, hk_error *err) {
  for (size_t i = 0; i < n; i++)
    if (errors[i].status != HK_OK) return hk_fail(err, errors[i].status, "%s", errors[i].message);
  return HK_OK;
}

hk_status(hk_fail_memory)(hk_error *err, unsigned long long bytes, const char *what) {
  return hk_fail(err, HK_ENVIRONMENT, "out of memory (%llu bytes for %s)", bytes, what);
}
