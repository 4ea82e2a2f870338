/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Splits a log into lines of plain text of bounded length. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/infile.h"
#include "traces/import_deepspeed_internal.h"

/* Escape sequences (ECMA-48): ESC [ ... final byte; ESC ] ... BEL; ESC and one byte. */
enum { TEXT, ESCAPE, SEQUENCE, STRING };

hk_status hk_log_open(hk_log *log, const char *path, hk_error *err) {
  log->block_n = log->at = log->n = 0;
  log->escape = TEXT;
  log->file = stdin;
  if (strcmp(path, "-") != 0) return hk_infile_stream(path, "the log of a run", &log->file, err);
  struct stat info;
  if (fstat(STDIN_FILENO, &info) == 0 && S_ISDIR(info.st_mode))
    return hk_fail(err, HK_INPUT, "is a directory; expected the log of a run");
  return hk_infile_check(STDIN_FILENO, err);
}

void hk_log_close(hk_log *log) {
  if (log->file && log->file != stdin) fclose(log->file);
  log->file = NULL;
}

static hk_status fill(hk_log *log, hk_import_report *report, hk_error *err) {
  log->at = 0;
  errno = 0;
  log->block_n = fread(log->block, 1, sizeof log->block, log->file);
  report->bytes += (long long)log->block_n;
  return ferror(log->file) ? hk_infile_fail("cannot be read", err) : HK_OK;
}

static void skip_escape(hk_log *log, unsigned char byte) {
  switch (log->escape) {
    case ESCAPE:
      log->escape = byte == '[' ? SEQUENCE : byte == ']' ? STRING : TEXT;
      break;
    case SEQUENCE:
      if (byte >= 0x40 && byte <= 0x7e) log->escape = TEXT;
      break;
    default:
      if (byte == '\a') log->escape = TEXT;
      if (byte == 0x1b) log->escape = ESCAPE; /* ESC \ also ends a string */
      break;
  }
}

static void take(hk_log *log, unsigned char byte, hk_import_report *report) {
  if (byte == 0)
    report->nul_bytes++;
  else if (log->escape != TEXT)
    skip_escape(log, byte);
  else if (byte == 0x1b)
    log->escape = ESCAPE;
  else if (log->n < sizeof log->text - 1)
    log->text[log->n++] = (char)byte;
  else
    log->overlong = true;
}

/* Removes the last word of a line that was cut: it may be half a number. */
static void cut_after_blank(hk_log *log) {
  while (log->n > 0 && log->text[log->n - 1] != ' ') log->n--;
}

static void finish(hk_log *log, hk_import_report *report) {
  if (log->overlong) {
    report->long_lines++;
    cut_after_blank(log);
  }
  report->cut_end |= log->cut;
  log->text[log->n] = '\0';
}

hk_status hk_log_next(hk_log *log, hk_import_report *report, bool *more, hk_error *err) {
  log->n = 0;
  log->escape = TEXT;
  log->cut = log->overlong = false;
  *more = true;
  for (bool any = false;; any = true) {
    if (log->at == log->block_n) HK_TRY(fill(log, report, err));
    if (log->block_n == 0) {
      *more = log->cut = any;
      report->lines += any;
      break;
    }
    unsigned char byte = (unsigned char)log->block[log->at++];
    report->lines += byte == '\n';
    if (byte == '\n' || byte == '\r') break;
    take(log, byte, report);
  }
  finish(log, report);
  return HK_OK;
}
