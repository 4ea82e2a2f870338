/* SPDX-License-Identifier: Apache-2.0 */
/* Suggestions for mistyped names, and the presets in share/. */
#include "core/base/names.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef HK_INSTALLED_SHARE
#define HK_INSTALLED_SHARE "/usr/local/share/hocket"
#endif

#define MAX_NAME 96 /* longest name that is compared */
#define MAX_PATH 4096

/* -- Nearest name -------------------------------------------------------------------------- */

static bool same_letter(char a, char b) {
  return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static int least_of(int a, int b) {
  return a < b ? a : b;
}

/* Optimal string alignment: insert, delete, substitute, swap neighbours, each at cost 1. Rows of
 * the usual table, of which the swap needs three. */
static int edit_distance(const char *a, const char *b) {
  int rows[3][MAX_NAME + 1];
  int *before = rows[0], *last = rows[1], *row = rows[2];
  int length_a = (int)strlen(a), length_b = (int)strlen(b);
  for (int j = 0; j <= length_b; j++) row[j] = j;
  for (int i = 1; i <= length_a; i++) {
    int *recycled = before;
    before = last;
    last = row;
    row = recycled;
    row[0] = i;
    for (int j = 1; j <= length_b; j++) {
      int cost = same_letter(a[i - 1], b[j - 1]) ? 0 : 1;
      row[j] = least_of(last[j - 1] + cost, least_of(last[j], row[j - 1]) + 1);
      if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1])) {
        row[j] = least_of(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[length_b];
}

const char *hk_nearest(const char *typed, const char *const *names, size_t n) {
  const int length = (int)strnlen(typed, MAX_NAME + 1);
  if (length > MAX_NAME) return NULL;
  const int most = length / 3 > 2 ? length / 3 : 2;
  const char *best = NULL;
  int best_rank = 0;
  for (size_t i = 0; i < n; i++) {
    if (strnlen(names[i], MAX_NAME + 1) > MAX_NAME) continue;
    int distance = edit_distance(typed, names[i]);
    /* A name that contains `typed` is preferred to one of similar spelling. Names that differ in
     * every letter are not similar, however short they are. */
    bool part = length >= 3 && strcasestr(names[i], typed);
    if (!part && (distance > most || distance >= length)) continue;
    int rank = part ? distance : distance + MAX_NAME;
    if (!best || rank < best_rank) {
      best = names[i];
      best_rank = rank;
    }
  }
  return best;
}

bool hk_is_one_of(const char *text, const char *const *words) {
  for (; *words; words++)
    if (strcmp(text, *words) == 0) return true;
  return false;
}

const char *hk_join(const char *const *names, size_t n, char *buffer, size_t size) {
  buffer[0] = '\0';
  for (size_t i = 0, used = 0; i < n && used < size; i++) {
    used += (size_t)snprintf(buffer + used, size - used, "%s%s", i > 0 ? ", " : "", names[i]);
  }
  return buffer;
}

/* -- The share folder ---------------------------------------------------------------------- */

static char found_share[MAX_PATH];

/* Whether BASE/TAIL is a share folder; if so, its path is in found_share. */
static bool try_share(const char *base, const char *tail) {
  char probe[MAX_PATH + 16];
  int length = snprintf(found_share, sizeof found_share, "%s/%s", base, tail);
  if (length < 0 || (size_t)length >= sizeof found_share) return false;
  snprintf(probe, sizeof probe, "%s/machines", found_share);
  struct stat status;
  return stat(probe, &status) == 0 && S_ISDIR(status.st_mode);
}

/* PREFIX/bin/hocket has PREFIX/share/hocket; a program built in the source tree has share/ in one
 * of the folders above it. */
static void find_share(void) {
  char folder[MAX_PATH];
  ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
  folder[length > 0 ? length : 0] = '\0';
  for (int level = 0; level <= 5; level++) {
    char *slash = strrchr(folder, '/');
    if (!slash) break;
    *slash = '\0'; /* level 0: the program's own folder */
    if (level == 1 && try_share(folder, "share/hocket")) return;
    if (level <= 4 && try_share(folder, "share")) return;
  }
  snprintf(found_share, sizeof found_share, "%s", HK_INSTALLED_SHARE);
}

const char *hk_share_dir(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const char *chosen = getenv("HOCKET_SHARE");
  if (chosen && *chosen) return chosen;
  pthread_once(&once, find_share);
  return found_share;
}

/* -- Presets ------------------------------------------------------------------------------- */

static const char suffix[] = ".json";

static bool ends_in_suffix(const char *name) {
  size_t length = strlen(name), tail = sizeof suffix - 1;
  return length > tail && strcmp(name + length - tail, suffix) == 0;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int is_preset(const struct dirent *entry) {
  return entry->d_name[0] != '.' && entry->d_type != DT_DIR && ends_in_suffix(entry->d_name);
}

/* Sorted, without the suffix. */
static hk_status names_of(struct dirent *const *entries, size_t n, char ***names, hk_error *err) {
  /* One more than needed: calloc(0) may return NULL, which is not a lack of memory. */
  char **list = calloc(n + 1, sizeof *list);
  if (!list) return hk_fail_memory(err, (n + 1) * sizeof *list, "a list of presets");
  for (size_t i = 0; i < n; i++) {
    const char *name = entries[i]->d_name;
    list[i] = strndup(name, strlen(name) - (sizeof suffix - 1));
    if (!list[i]) {
      hk_names_free(list, i);
      return hk_fail_memory(err, strlen(name), "a preset's name");
    }
  }
  qsort(list, n, sizeof *list, compare_names);
  *names = list;
  return HK_OK;
}

hk_status hk_share_list(const char *kind, char ***names, size_t *n, hk_error *err) {
  *names = NULL;
  *n = 0;
  char folder[MAX_PATH];
  int length = snprintf(folder, sizeof folder, "%s/%s", hk_share_dir(), kind);
  if (length < 0 || (size_t)length >= sizeof folder) {
    return hk_fail(err, HK_INPUT, "HOCKET_SHARE is too long for a path");
  }
  struct dirent **entries;
  int count = scandir(folder, &entries, is_preset, NULL);
  if (count < 0) {
    return hk_fail(err, HK_ENVIRONMENT,
                   "cannot read the presets in '%s': %s; set HOCKET_SHARE to hocket's share "
                   "directory",
                   folder, strerror(errno));
  }
  hk_status result = names_of(entries, (size_t)count, names, err);
  if (*names) *n = (size_t)count;
  for (int i = 0; i < count; i++) free(entries[i]);
  free(entries);
  return result;
}

void hk_names_free(char **names, size_t n) {
  if (!names) return;
  for (size_t i = 0; i < n; i++) free(names[i]);
  free(names);
}

/* The error for a name that no preset has. */
static hk_status fail_unknown(const char *kind, const char *name, hk_error *err) {
  const int singular = (int)strlen(kind) - 1; /* "models" -> "model", also the subcommand */
  char **names;
  size_t n;
  HK_TRY(hk_share_list(kind, &names, &n, err));
  const char *near = hk_nearest(name, (const char *const *)names, n);
  char hint[MAX_NAME + 24] = "";
  if (near) snprintf(hint, sizeof hint, "; did you mean '%s'?", near);
  if (!near && access(name, F_OK) == 0) {
    snprintf(hint, sizeof hint, "; for the file of that name write './%.64s'", name);
  }
  hk_status result = hk_fail(err, HK_INPUT, "unknown %.*s '%s'%s ('hocket %.*s list' prints all)",
                             singular, kind, name, hint, singular, kind);
  hk_names_free(names, n);
  return result;
}

hk_status hk_share_resolve(const char *kind, const char *name_or_file, char *path, size_t size,
                           hk_error *err) {
  const int singular = (int)strlen(kind) - 1;
  if (!*name_or_file) {
    return hk_fail(err, HK_INPUT, "empty %.*s name ('hocket %.*s list' prints all)", singular, kind,
                   singular, kind);
  }
  bool is_path = strchr(name_or_file, '/') || ends_in_suffix(name_or_file);
  int length = is_path
                   ? snprintf(path, size, "%s", name_or_file)
                   : snprintf(path, size, "%s/%s/%s%s", hk_share_dir(), kind, name_or_file, suffix);
  if (length < 0 || (size_t)length >= size) {
    return hk_fail(err, HK_INPUT, "%.*s name of %zu characters: too long for a path", singular,
                   kind, strlen(name_or_file));
  }
  struct stat status;
  bool known = is_path || (stat(path, &status) == 0 && S_ISREG(status.st_mode));
  return known ? HK_OK : fail_unknown(kind, name_or_file, err);
}
