/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON files, getting values from them with errors that a user can act on, and printing
 * JSON. The grammar is in json_syntax.c, output files in outfile.c. */
#include "core/base/json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/infile.h"
#include "core/base/json_syntax.h"
#include "core/base/names.h"
#include "core/base/outfile.h"
#include "core/base/units.h"

#define MAX_FILE (64 * HK_MIB)

/* -- Reading a file ------------------------------------------------------------------------ */

hk_status hk_json_load(const char *path, cJSON **root, hk_error *err) {
  char *text;
  size_t length;
  *root = NULL;
  if (hk_infile_read(path, "a JSON file", (size_t)MAX_FILE, &text, &length, err) != HK_OK)
    return hk_fail_prefix(err, "%s", path);
  const hk_status result = hk_json_parse(text, length, path, root, err);
  free(text);
  return result;
}

/* -- Parsing text -------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Counts in *n the keys up to that of `item`, in the order of the text. False: it is not there. */
static bool count_keys(const cJSON *value, const cJSON *item, size_t *n) {
  *n += value->string != NULL;
  if (value == item) return true;
  for (const cJSON *child = value->child; child; child = child->next)
    if (count_keys(child, item, n)) return true;
  return false;
}

int hk_json_line(const char *text, size_t length, const cJSON *root, const cJSON *item) {
  static const char space[] = " \t\r\n";
  const char *end = text + length;
  size_t keys = 0;
  int line = 1;
  if (!count_keys(root, item, &keys)) return 0;
  for (const char *at = text; at < end; at++) {
    line += *at == '\n';
    if (*at != '"') continue;
    while (*++at != '"') at += *at == '\\';
    const char *next = at + 1;
    while (next < end && memchr(space, *next, sizeof space - 1)) next++;
    if (next < end && *next == ':' && --keys == 0) return line;
  }
  return 0;
}

/* A key that `object` has more than once, the second of it, or NULL. `keys` has room for all. */
static const cJSON *second_of(const cJSON *object, const char **keys) {
  size_t n = 0, i = 1, seen = 0;
  for (const cJSON *child = object->child; child; child = child->next) keys[n++] = child->string;
  qsort(keys, n, sizeof *keys, compare_keys);
  while (i < n && strcmp(keys[i - 1], keys[i]) != 0) i++;
  if (i >= n) return NULL;
  const cJSON *child = object->child;
  for (; child; child = child->next)
    if (strcmp(child->string, keys[i]) == 0 && ++seen == 2) break;
  return child;
}

/* What was read, for messages about it. */
typedef struct {
  const char *name, *text;
  size_t length;
  const cJSON *root;
} document;

static hk_status check_keys_of(const document *read, const cJSON *object, hk_error *err) {
  size_t n = 0;
  for (const cJSON *child = object->child; child; child = child->next) n++;
  if (n < 2) return HK_OK;
  const char **keys = malloc(n * sizeof *keys);
  if (!keys) return hk_fail_memory(err, n * sizeof *keys, "the keys of a JSON object");
  const cJSON *second = second_of(object, keys);
  free(keys);
  if (!second) return HK_OK;
  const int line = hk_json_line(read->text, read->length, read->root, second);
  if (!object->string)
    return hk_fail(err, HK_INPUT, "%s: line %d, key '%s' appears more than once in one object",
                   read->name, line, second->string);
  return hk_fail(err, HK_INPUT, "%s: line %d, key '%s' appears more than once in '%s'", read->name,
                 line, second->string, object->string);
}

/* Duplicate keys are errors: cJSON finds the first of them, other readers the last. The grammar has
 * bounded the depth of this recursion. */
static hk_status check_keys(const document *read, const cJSON *value, hk_error *err) {
  if (cJSON_IsObject(value)) HK_TRY(check_keys_of(read, value, err));
  for (const cJSON *child = value->child; child; child = child->next) {
    HK_TRY(check_keys(read, child, err));
  }
  return HK_OK;
}

static const char *kind_of(const cJSON *value) {
  if (cJSON_IsObject(value)) return "an object";
  if (cJSON_IsArray(value)) return "an array";
  if (cJSON_IsString(value)) return "a string";
  if (cJSON_IsNumber(value)) return "a number";
  if (cJSON_IsNull(value)) return "null";
  return cJSON_IsTrue(value) ? "true" : "false";
}

hk_status hk_json_parse(const char *text, size_t length, const char *name, cJSON **root,
                        hk_error *err) {
  *root = NULL;
  static const char mark[] = "\xEF\xBB\xBF"; /* UTF-8 byte order mark */
  if (length >= 3 && memcmp(text, mark, 3) == 0) {
    text += 3;
    length -= 3;
  }
  size_t space = 0;
  while (space < length && strchr(" \t\r\n", text[space]) && text[space]) space++;
  if (space == length) return hk_fail(err, HK_INPUT, "%s: empty; expected a JSON object", name);
  HK_TRY(hk_json_syntax(text, length, name, err));

  /* The text is valid: only lack of memory can fail now. */
  cJSON *value = cJSON_ParseWithLength(text, length);
  if (!value) return hk_fail_memory(err, length, name);
  hk_status result =
      cJSON_IsObject(value)
          ? check_keys(&(document){name, text, length, value}, value, err)
          : hk_fail(err, HK_INPUT, "%s: the top level is %s; expected an object, { ... }", name,
                    kind_of(value));
  if (result != HK_OK) {
    cJSON_Delete(value);
    return result;
  }
  *root = value;
  return HK_OK;
}

/* -- Getters ------------------------------------------------------------------------------- */

/* "key 'K': expected WHAT, got ..." for a `value` that is not what was wanted, NULL if missing. */
static hk_status unexpected(hk_error *err, const char *key, const cJSON *value, const char *what) {
  if (!value) return hk_fail(err, HK_INPUT, "key '%s': missing; expected %s", key, what);
  if (cJSON_IsNumber(value)) {
    return hk_fail(err, HK_INPUT, "key '%s': expected %s, got %.15g", key, what,
                   value->valuedouble);
  }
  if (cJSON_IsString(value)) {
    return hk_fail(err, HK_INPUT, "key '%s': expected %s, got the string \"%.60s\"", key, what,
                   value->valuestring);
  }
  return hk_fail(err, HK_INPUT, "key '%s': expected %s, got %s", key, what, kind_of(value));
}

/* " from A to B", " of at least A", " of at most B" or nothing. NULL: no bound on that side. */
static void format_range(const char *noun, const char *least, const char *most, char *buffer,
                         size_t size) {
  if (least && most) {
    snprintf(buffer, size, "%s from %s to %s", noun, least, most);
  } else if (least || most) {
    snprintf(buffer, size, "%s of at %s %s", noun, least ? "least" : "most", least ? least : most);
  } else {
    snprintf(buffer, size, "%s", noun);
  }
}

hk_status hk_json_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *out,
                      hk_error *err) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  if (cJSON_IsNumber(value)) {
    double number = value->valuedouble;
    /* 2^63 is exact as a double, INT64_MAX is not. */
    if (number >= -0x1p63 && number < 0x1p63 && trunc(number) == number) {
      int64_t whole = (int64_t)number;
      if (whole >= min && whole <= max) {
        *out = whole;
        return HK_OK;
      }
    }
  }
  char least[24], most[24], what[96];
  snprintf(least, sizeof least, "%lld", (long long)min);
  snprintf(most, sizeof most, "%lld", (long long)max);
  format_range("a whole number", min == INT64_MIN ? NULL : least, max == INT64_MAX ? NULL : most,
               what, sizeof what);
  return unexpected(err, key, value, what);
}

hk_status hk_json_double(const cJSON *object, const char *key, double min, double max, double *out,
                         hk_error *err) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  if (cJSON_IsNumber(value) && isfinite(value->valuedouble) && value->valuedouble >= min &&
      value->valuedouble <= max) {
    *out = value->valuedouble;
    return HK_OK;
  }
  char least[24], most[24], what[96];
  snprintf(least, sizeof least, "%g", min);
  snprintf(most, sizeof most, "%g", max);
  format_range("a number", min <= -DBL_MAX ? NULL : least, max >= DBL_MAX ? NULL : most, what,
               sizeof what);
  return unexpected(err, key, value, what);
}

hk_status hk_json_bool(const cJSON *object, const char *key, bool *out, hk_error *err) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  if (!cJSON_IsBool(value)) return unexpected(err, key, value, "true or false");
  *out = cJSON_IsTrue(value);
  return HK_OK;
}

hk_status hk_json_string(const cJSON *object, const char *key, const char **out, hk_error *err) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  if (!cJSON_IsString(value)) return unexpected(err, key, value, "a string");
  *out = value->valuestring;
  return HK_OK;
}

hk_status hk_json_text(const cJSON *object, const char *key, size_t least, char *out, size_t size,
                       hk_error *err) {
  const char *text = NULL;
  HK_TRY(hk_json_string(object, key, &text, err));
  const size_t length = strlen(text);
  if (length < least || length >= size)
    return hk_fail(err, HK_INPUT, "key '%s': expected %zu to %zu characters, got %zu", key, least,
                   size - 1, length);
  memcpy(out, text, length + 1);
  return HK_OK;
}

hk_status hk_json_object(const cJSON *object, const char *key, const cJSON **out, hk_error *err) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  if (!cJSON_IsObject(value)) return unexpected(err, key, value, "an object");
  *out = value;
  return HK_OK;
}

hk_status hk_json_array(const cJSON *object, const char *key, const cJSON **out, hk_error *err) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  if (!cJSON_IsArray(value)) return unexpected(err, key, value, "an array");
  *out = value;
  return HK_OK;
}

static bool is_absent(const cJSON *object, const char *key) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
  return !value || cJSON_IsNull(value);
}

hk_status hk_json_int_or(const cJSON *object, const char *key, int64_t min, int64_t max,
                         int64_t fallback, int64_t *out, hk_error *err) {
  if (!is_absent(object, key)) return hk_json_int(object, key, min, max, out, err);
  *out = fallback;
  return HK_OK;
}

hk_status hk_json_double_or(const cJSON *object, const char *key, double min, double max,
                            double fallback, double *out, hk_error *err) {
  if (!is_absent(object, key)) return hk_json_double(object, key, min, max, out, err);
  *out = fallback;
  return HK_OK;
}

hk_status hk_json_bool_or(const cJSON *object, const char *key, bool fallback, bool *out,
                          hk_error *err) {
  if (!is_absent(object, key)) return hk_json_bool(object, key, out, err);
  *out = fallback;
  return HK_OK;
}

/* -- Keys ---------------------------------------------------------------------------------- */

hk_status hk_json_known(const cJSON *object, const char *where, const char *const *keys, size_t n,
                        hk_error *err) {
  const cJSON *member = NULL;
  cJSON_ArrayForEach(member, object) {
    size_t i = 0;
    while (i < n && strcmp(member->string, keys[i]) != 0) i++;
    if (i < n) continue;
    const char *near = hk_nearest(member->string, keys, n), *in = *where ? " in " : "";
    if (near)
      return hk_fail(err, HK_INPUT, "key '%.80s'%s%s is not known; did you mean '%s'?",
                     member->string, in, where, near);
    char known[240];
    return hk_fail(err, HK_INPUT, "key '%.80s'%s%s is not known; known are %s", member->string, in,
                   where, hk_join(keys, n, known, sizeof known));
  }
  return HK_OK;
}

/* -- Printing ------------------------------------------------------------------------------ */

/* cJSON escapes what JSON requires. DEL and U+0080 to U+009F, which terminals interpret, can occur
 * only in strings and are escaped here. */
static bool print_safely(const char *text, FILE *stream) {
  for (;;) {
    size_t plain = strcspn(text, "\x7f\xc2");
    if (fwrite(text, 1, plain, stream) != plain) return false;
    text += plain;
    const unsigned char c = (unsigned char)text[0], after = c ? (unsigned char)text[1] : 0;
    if (c == 0) return true;
    const bool c1 = c == 0xC2 && after >= 0x80 && after < 0xA0;
    if (c == 0xC2 && !c1) {
      if (fputc(c, stream) == EOF) return false;
      text++;
      continue;
    }
    if (fprintf(stream, "\\u%04x", c1 ? after : c) < 0) return false;
    text += c1 ? 2 : 1;
  }
}

static hk_status print_text(const char *text, FILE *stream, hk_error *err) {
  errno = 0;
  bool good = print_safely(text, stream) && fputc('\n', stream) != EOF && fflush(stream) == 0 &&
              !ferror(stream);
  int number = errno;
  if (good) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "cannot write JSON: %s",
                 number ? strerror(number) : "an earlier write to the same place failed");
}

const char *hk_json_text_or(const cJSON *object, const char *key, const char *fallback) {
  const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
  return text ? text : fallback;
}

double hk_json_number_or(const cJSON *object, const char *key, double fallback) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : fallback;
}

static hk_status make_text(const cJSON *root, char **text, hk_error *err) {
  *text = cJSON_Print(root);
  return *text ? HK_OK : hk_fail(err, HK_ENVIRONMENT, "out of memory (for printing JSON)");
}

hk_status hk_json_print(const cJSON *root, FILE *stream, hk_error *err) {
  char *text;
  HK_TRY(make_text(root, &text, err));
  const hk_status status = print_text(text, stream, err);
  cJSON_free(text);
  return status;
}

static hk_status save_text(const char *text, const char *path, hk_error *err) {
  hk_outfile *file;
  if (strlen(text) >= (size_t)MAX_FILE)
    return hk_fail(
        err, HK_INPUT,
        "cannot write '%s': the document has %zu MiB, and at most 64 MiB are read as JSON", path,
        strlen(text) / (size_t)HK_MIB);
  HK_TRY(hk_outfile_open(path, &file, err));
  const hk_status printed = print_text(text, hk_outfile_stream(file), err);
  if (printed != HK_OK && !ferror(hk_outfile_stream(file))) {
    hk_outfile_abort(file);
    return printed;
  }
  return hk_outfile_close(file, err); /* which says why the stream failed */
}

hk_status hk_json_save(const cJSON *root, const char *path, hk_error *err) {
  char *text;
  HK_TRY(make_text(root, &text, err));
  const hk_status status = save_text(text, path, err);
  cJSON_free(text);
  return status;
}

void hk_json_write_string(FILE *stream, const char *text) {
  fputc('"', stream);
  for (size_t rest = strlen(text); rest > 0;) {
    unsigned char c = (unsigned char)*text;
    size_t length = hk_utf8_length(text, rest);
    if (length == 0) {
      fputs("\\ufffd", stream); /* not UTF-8 (a file name can be): replaced, since JSON is UTF-8 */
      length = 1;
    } else if (c < 0x20 || c == 0x7F) {
      fprintf(stream, "\\u%04x", c);
    } else if (length == 2 && c == 0xC2 && (unsigned char)text[1] < 0xA0) {
      fprintf(stream, "\\u%04x", (unsigned char)text[1]);
    } else {
      if (c == '"' || c == '\\') fputc('\\', stream);
      fwrite(text, 1, length, stream);
    }
    text += length;
    rest -= length;
  }
  fputc('"', stream);
}
