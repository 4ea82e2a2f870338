/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Widths are in columns of the terminal. A character takes none, one or two columns. */
#include "cli/print/screen.h"

#include <errno.h>
#include <langinfo.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#define USUAL_WIDTH 80
#define LEAST_WIDTH 40 /* a narrower terminal breaks the lines itself */

static bool is_wide, has_failed;

void hk_screen_wide(bool wide) {
  is_wide = wide;
}

size_t hk_screen_width(void) {
  struct winsize size;
  if (is_wide) return SIZE_MAX;
  if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return USUAL_WIDTH;
  return size.ws_col < LEAST_WIDTH ? LEAST_WIDTH : size.ws_col;
}

bool hk_screen_failed(void) {
  return has_failed;
}

const char *hk_plus_minus(void) {
  return strcmp(nl_langinfo(CODESET), "UTF-8") == 0 ? "\u00b1" : "+-";
}

/* -- Text -------------------------------------------------------------------------------------- */

/* The length of the next character in bytes (at least 1), and its width. */
static size_t next_character(const char *text, size_t *columns) {
  wchar_t character;
  mbstate_t state = {0};
  const size_t length = strnlen(text, MB_LEN_MAX);
  const size_t bytes = mbrtowc(&character, text, length, &state);
  *columns = 1;
  if (bytes == 0 || bytes > length) return 1; /* not a character in this locale */
  const int width = wcwidth(character);
  if (width >= 0) *columns = (size_t)width;
  return bytes;
}

size_t hk_text_width(const char *text, size_t bytes) {
  size_t sum = 0, columns;
  for (size_t at = 0; at < bytes && text[at] != '\0'; sum += columns)
    at += next_character(text + at, &columns);
  return sum;
}

size_t hk_text_fit(const char *text, size_t width, bool cut) {
  size_t used = 0, at = 0, space = 0, columns;
  while (text[at] != '\0') {
    const size_t bytes = next_character(text + at, &columns);
    if (text[at] == ' ' && at > 0) space = at;
    if (used + columns > width && (space > 0 || (cut && at > 0))) return space > 0 ? space : at;
    used += columns;
    at += bytes;
  }
  return at;
}

static bool is_control(const char *text) {
  const unsigned char c = (unsigned char)text[0], next = c ? (unsigned char)text[1] : 0;
  /* U+0080 to U+009F are control characters, too: U+009B is ESC [. */
  return c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);
}

char *hk_text_visible(const char *text) {
  char *copy = malloc(4 * strlen(text) + 1), *end = copy;
  if (copy == NULL) return NULL;
  for (; *text != '\0'; text++) {
    if (!is_control(text)) {
      *end++ = *text;
      continue;
    }
    if ((unsigned char)*text == 0xc2) end += sprintf(end, "\\x%02x", (unsigned char)*text++);
    end += sprintf(end, "\\x%02x", (unsigned char)*text);
  }
  *end = '\0';
  return copy;
}

/* -- Streams ----------------------------------------------------------------------------------- */

/* A filtered stream. `held`: the byte 0xc2 was written and is not printed yet, because the next
 * byte decides whether they are a control character (U+0080 to U+009F). */
typedef struct {
  int fd;
  bool held;
} filter;

static bool write_all(int fd, const char *bytes, size_t n) {
  while (n > 0) {
    const ssize_t wrote = write(fd, bytes, n);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes += wrote;
    n -= (size_t)wrote;
  }
  return true;
}

/* Appends the printed form of one byte, at most 8 characters. Returns its length. */
static size_t show_byte(filter *f, unsigned char c, char *out) {
  size_t n = 0;
  const bool held = f->held, c1 = held && c >= 0x80 && c < 0xa0;
  f->held = false;
  if (held && c1) return (size_t)sprintf(out, "\\xc2\\x%02x", c);
  if (held) out[n++] = (char)0xc2;
  if (c == 0xc2)
    f->held = true;
  else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
    n += (size_t)sprintf(out + n, "\\x%02x", c);
  else
    out[n++] = (char)c;
  return n;
}

/* Write function of fopencookie; 0 is an error. */
static ssize_t write_visibly(void *cookie, const char *bytes, size_t n) {
  filter *f = cookie;
  char shown[4096];
  size_t used = 0;
  for (size_t i = 0; i < n; i++) {
    used += show_byte(f, (unsigned char)bytes[i], shown + used);
    if (used + 16 < sizeof shown && i + 1 < n) continue;
    if (!write_all(f->fd, shown, used)) return 0;
    used = 0;
  }
  return (ssize_t)n;
}

/* `mode`: of setvbuf. Out of memory: the stream as it was. */
static FILE *filtered(FILE *stream, filter *f, int mode) {
  FILE *made = fopencookie(f, "w", (cookie_io_functions_t){.write = write_visibly});
  if (made == NULL) return stream;
  setvbuf(made, NULL, mode, BUFSIZ);
  return made;
}

void hk_screen_open(void) {
  static filter out = {.fd = STDOUT_FILENO}, err = {.fd = STDERR_FILENO};
  stdout = filtered(stdout, &out, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
  stderr = filtered(stderr, &err, _IONBF);
}

/* -- Progress ---------------------------------------------------------------------------------- */

static const char new_line[] = "\r\033[K"; /* to the start of the line, erase it */

void hk_screen_progress(const char *format, ...) {
  char *text = NULL;
  va_list values;
  va_start(values, format);
  const int length = vasprintf(&text, format, values);
  va_end(values);
  if (length < 0) return;
  hk_screen_progress_end();
  fputs(text, stderr);
  free(text);
}

void hk_screen_progress_end(void) {
  (void)write_all(STDERR_FILENO, new_line, sizeof new_line - 1);
}

/* -- Paragraphs -------------------------------------------------------------------------------- */

static void print_wrapped(const char *text, size_t indent, size_t hang) {
  const size_t width = hk_screen_width();
  for (size_t margin = indent; *text != '\0'; margin = indent + hang) {
    const size_t bytes = hk_text_fit(text, width > margin ? width - margin : 1, false);
    printf("%*s%.*s\n", (int)margin, "", (int)bytes, text);
    text += bytes;
    text += strspn(text, " ");
  }
}

void hk_print_text(size_t indent, size_t hang, const char *format, ...) {
  char *text = NULL, *visible = NULL;
  va_list values;
  va_start(values, format);
  const int length = vasprintf(&text, format, values);
  va_end(values);
  if (length >= 0) visible = hk_text_visible(text);
  if (visible != NULL)
    print_wrapped(visible, indent, hang);
  else
    has_failed = true;
  if (length >= 0) free(text);
  free(visible);
}
