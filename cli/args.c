/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Parses the command line with getopt_long. Values are checked strictly. */
#include "cli/args.h"

#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/names.h"
#include "core/graph/optimizer.h"

/* getopt_long returns LONG_BASE + id for a long option: above all letters. */
#define LONG_BASE 256

static const hk_option options[] = {
#define ROW(id, name, letter, kind, field, value, least, most, help) \
  {name, letter, HK_##kind, offsetof(hk_args, field), value, least, most, help},
    HK_CLI_OPTIONS(ROW)
#undef ROW
};

_Static_assert(HK_OPT_COUNT <= 128, "hk_option_set has 128 bits");

const hk_option *hk_option_info(hk_option_id id) {
  return &options[id];
}

static bool accepts(hk_option_set accepted, int id) {
  return id == HK_OPT_HELP || (accepted >> id & 1);
}

/* -- Values ------------------------------------------------------------------------------------ */

static bool read_digits(const char *text, char **end, int64_t *out) {
  if (!(text[0] >= '0' && text[0] <= '9')) return false;
  errno = 0;
  *out = strtoll(text, end, 10);
  return errno == 0;
}

static hk_status read_whole(const hk_option *option, const char *text, int64_t *out,
                            hk_error *err) {
  char *end = NULL;
  int64_t value = 0;
  bool ok = read_digits(text, &end, &value) && *end == '\0';
  if (ok && (double)value >= option->least && (double)value <= option->most) {
    *out = value;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "option '--%s': expected a whole number from %.0f to %.0f%s, got '%s'",
                 option->name, option->least, option->most,
                 option->kind == HK_STRIDE ? " or 'auto'" : "", text);
}

static bool in_bytes(const hk_option *option) {
  return option->value && strcmp(option->value, "BYTES") == 0;
}

/* The factor of "k", "M", "G" or "T". Of an option in bytes "Ki", "Mi", "Gi" or "Ti" is a power of
 * 1024, and its unit B may be behind. Of an amount "B" is 10^9 as "G" is, and there is no "T". 0:
 * something else. */
static double count_factor(const hk_option *option, const char *suffix) {
  static const char letters[] = "kMGT";
  const bool bytes = in_bytes(option);
  if (option->kind == HK_AMOUNT && strcmp(suffix, "B") == 0) return 1e9;
  if (option->kind == HK_AMOUNT && *suffix == 'T') return 0;
  const char *at = *suffix ? strchr(letters, strncmp(suffix, "Ki", 2) == 0 ? 'k' : *suffix) : NULL;
  if (at) suffix++;
  const bool binary = bytes && at && *suffix == 'i';
  if (binary) suffix++;
  if (bytes && *suffix == 'B') suffix++;
  return *suffix ? 0 : at ? pow(binary ? 1024 : 1000, (double)(at - letters + 1)) : 1;
}

/* A decimal fraction times its factor can miss a whole number by rounding: 8.14 * 10^9 does. */
static bool is_whole(double scaled) {
  return fabs(scaled - round(scaled)) <= 2 * DBL_EPSILON * scaled;
}

/* "15G", "1.5T"; of an option in bytes also "128GiB", and "8.8GiB" is rounded to bytes; of an
 * amount also "6.7B". Digits and point only: no sign, no exponent. */
static hk_status read_count(const hk_option *option, const char *text, int64_t *out,
                            hk_error *err) {
  const bool bytes = in_bytes(option), amount = option->kind == HK_AMOUNT;
  const size_t digits = strspn(text, "0123456789.");
  char *end = NULL;
  const double value = digits > 0 ? strtod(text, &end) : 0;
  const double factor = end == text + digits ? count_factor(option, end) : 0;
  const bool whole = (bytes && factor > 1) || is_whole(value * factor);
  const double scaled = round(value * factor);
  if (factor > 0 && whole && scaled >= option->least && scaled <= option->most) {
    *out = (int64_t)scaled;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "option '--%s': expected a%s number from %.0f to %.0f, %s, got '%s'", option->name,
                 amount ? "" : " whole", option->least, option->most,
                 amount  ? "such as 125M or 6.7G"
                 : bytes ? "such as 64G or 64GiB"
                         : "with k, M, G or T for 10^3 to 10^12",
                 text);
}

/* "8k" is 8192. */
static hk_status read_tokens(const hk_option *option, const char *text, int64_t *out,
                             hk_error *err) {
  char *end = NULL;
  int64_t value = 0;
  bool ok = read_digits(text, &end, &value);
  const int64_t factor = ok && *end == 'k' ? 1024 : 1;
  if (ok) ok = strcmp(end, factor > 1 ? "k" : "") == 0;
  const double scaled = (double)value * (double)factor;
  if (ok && scaled >= option->least && scaled <= option->most) {
    *out = value * factor;
    return HK_OK;
  }
  return hk_fail(
      err, HK_INPUT,
      "option '--%s': expected a whole number from %.0f to %.0f, with k for 1024, got '%s'",
      option->name, option->least, option->most, text);
}

static hk_status read_real(const hk_option *option, const char *text, double *out, hk_error *err) {
  char *end = NULL;
  double value = strtod(text, &end);
  /* strtod also accepts spaces, hexadecimal, "nan" and "inf", which are refused here. */
  bool plain = *text != '\0' && text[strspn(text, "0123456789.eE+-")] == '\0';
  if (plain && *end == '\0' && value >= option->least && value <= option->most) {
    *out = value;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "option '--%s': expected a number from %g to %g, got '%s'",
                 option->name, option->least, option->most, text);
}

/* option->value lists the choices: "yes|no". *out: index of `text` among them. */
static hk_status read_choice(const hk_option *option, const char *text, int *out, hk_error *err) {
  int index = 0;
  if (option->offset == offsetof(hk_args, state)) text = hk_optimizer_name_today(text);
  for (const char *word = option->value; *word != '\0'; index++) {
    size_t length = strcspn(word, "|");
    if (strlen(text) == length && strncmp(text, word, length) == 0) {
      *out = index;
      return HK_OK;
    }
    word += length + (word[length] == '|');
  }
  return hk_fail(err, HK_INPUT, "option '--%s': expected %s, got '%s'", option->name, option->value,
                 text);
}

static hk_status read_text(const hk_option *option, const char *text, const char **out,
                           hk_error *err) {
  if (*text == '\0')
    return hk_fail(err, HK_INPUT, "option '--%s': expected %s, got nothing", option->name,
                   option->value);
  *out = text;
  return HK_OK;
}

static hk_status read_value(const hk_option *option, const char *text, hk_args *args,
                            hk_error *err) {
  void *field = (char *)args + option->offset;
  switch (option->kind) {
    case HK_TEXT:
      return read_text(option, text, field, err);
    case HK_WHOLE:
      return read_whole(option, text, field, err);
    case HK_COUNT:
    case HK_AMOUNT:
      return read_count(option, text, field, err);
    case HK_TOKENS:
      return read_tokens(option, text, field, err);
    case HK_REAL:
      return read_real(option, text, field, err);
    case HK_CHOICE:
      return read_choice(option, text, field, err);
    case HK_STRIDE:
      if (strcmp(text, "auto") != 0) return read_whole(option, text, field, err);
      *(int64_t *)field = HK_STRIDE_AUTO;
      return HK_OK;
    case HK_FLAG:
      *(bool *)field = true;
      return HK_OK;
  }
  return HK_OK;
}

/* -- Errors of getopt ---------------------------------------------------------------------------
 */

static hk_status fail_unknown_long(const char *typed, hk_option_set accepted, hk_error *err) {
  const char *name = typed + strspn(typed, "-");
  size_t length = strcspn(name, "=");
  char word[64];
  snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), name);

  const char *names[HK_OPT_COUNT];
  size_t n = 0, begins = 0;
  for (int id = 0; id < HK_OPT_COUNT; id++) {
    if (!accepts(accepted, id)) {
      if (strcmp(options[id].name, word) == 0)
        return hk_fail(err, HK_INPUT, "'--%s' is not an option of this command; see --help", word);
      continue;
    }
    names[n++] = options[id].name;
    begins += strncmp(options[id].name, word, strlen(word)) == 0;
  }
  if (begins > 1)
    return hk_fail(err, HK_INPUT, "option '--%s' is short for more than one option; see --help",
                   word);
  const char *nearest = hk_nearest(word, names, n);
  if (nearest)
    return hk_fail(err, HK_INPUT, "unknown option '--%s'; did you mean '--%s'?", word, nearest);
  return hk_fail(err, HK_INPUT, "unknown option '--%s'; see --help", word);
}

/* `code`: result of getopt_long. ':' a value is missing, '?' another error. */
static hk_status fail_option(int code, const char *typed, hk_option_set accepted, hk_error *err) {
  int id = optopt - LONG_BASE;
  for (int i = 0; i < HK_OPT_COUNT; i++)
    if (options[i].letter && options[i].letter == optopt && accepts(accepted, i)) id = i;
  if (code == ':' && id >= 0)
    return hk_fail(err, HK_INPUT, "option '--%s' needs a value: %s", options[id].name,
                   options[id].value);
  if (optopt == 0) return fail_unknown_long(typed, accepted, err);
  if (id >= 0) return hk_fail(err, HK_INPUT, "option '--%s' takes no value", options[id].name);
  return hk_fail(err, HK_INPUT, "unknown option '-%c'; see --help", optopt);
}

/* -- Parsing ----------------------------------------------------------------------------------- */

/* Fills getopt_long's tables with the accepted options. */
static void describe(hk_option_set accepted, struct option *longs, char *letters) {
  *letters++ = ':';
  for (int id = 0; id < HK_OPT_COUNT; id++) {
    if (!accepts(accepted, id)) continue;
    const hk_option *option = &options[id];
    *longs++ = (struct option){.name = option->name,
                               .has_arg = option->value ? required_argument : no_argument,
                               .val = option->letter ? option->letter : LONG_BASE + id};
    if (option->letter) *letters++ = option->letter;
    if (option->letter && option->value) *letters++ = ':';
  }
  *longs = (struct option){0};
  *letters = '\0';
}

static int id_of(int code) {
  if (code >= LONG_BASE) return code - LONG_BASE;
  for (int id = 0; id < HK_OPT_COUNT; id++)
    if (options[id].letter == code) return id;
  return HK_OPT_COUNT;
}

/* For commands that accept several --machine. */
static hk_status keep_machine(hk_args *args, hk_error *err) {
  if (args->n_machines == HK_MOST_MACHINES)
    return hk_fail(err, HK_INPUT, "option '--machine' is given more than %d times",
                   HK_MOST_MACHINES);
  args->machines[args->n_machines++] = args->machine;
  return HK_OK;
}

static hk_status keep_set(hk_args *args, hk_error *err) {
  if (args->n_sets == HK_MOST_SETS)
    return hk_fail(err, HK_INPUT, "option '--set' is given more than %d times", HK_MOST_SETS);
  args->sets[args->n_sets++] = args->set;
  return HK_OK;
}

/* A second number replaces the first, as shell aliases need. A second name or file is a mistake,
 * except where several are meant. */
static hk_status refuse_second(const hk_args *args, int id, hk_error *err) {
  const bool second = args->given >> id & 1;
  const bool several = id == HK_OPT_MACHINE || id == HK_OPT_SET;
  if (!second || several || options[id].kind != HK_TEXT) return HK_OK;
  return hk_fail(err, HK_INPUT, "option '--%s' is given more than once, and takes one %s",
                 options[id].name, options[id].value);
}

hk_args hk_args_none(void) {
  return (hk_args){.jobs = 1,
                   .nodes = 1,
                   .tp = 1,
                   .micro_batch = 1,
                   .grad_accum = 1,
                   .subgroup = 100000000,
                   .ratio = -1};
}

hk_status hk_args_find(const char *name, hk_option_set accepted, hk_option_id *id, hk_error *err) {
  for (int i = 0; i < HK_OPT_COUNT; i++) {
    *id = (hk_option_id)i;
    if ((accepted >> i & 1) && strcmp(options[i].name, name) == 0) return HK_OK;
  }
  return fail_unknown_long(name, accepted, err);
}

hk_status hk_args_set(hk_option_id id, const char *text, hk_args *args, hk_error *err) {
  const bool flag = options[id].kind == HK_FLAG, no = strcmp(text, "no") == 0;
  if (flag && !no && strcmp(text, "yes") != 0)
    return hk_fail(err, HK_INPUT, "option '--%s': expected yes or no, got '%s'", options[id].name,
                   text);
  if (flag && no) return HK_OK;
  HK_TRY(read_value(&options[id], text, args, err));
  if (id == HK_OPT_SET) HK_TRY(keep_set(args, err));
  args->given |= (hk_option_set)1 << id;
  return HK_OK;
}

hk_status hk_args_parse(int argc, char **argv, hk_option_set accepted, hk_args *args,
                        hk_error *err) {
  struct option longs[HK_OPT_COUNT + 1];
  char letters[2 * HK_OPT_COUNT + 2];
  describe(accepted, longs, letters);
  *args = hk_args_none();

  opterr = 0;
  optind = 0; /* GNU: start afresh, also after an earlier command line */
  for (int code; (code = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
    if (code == '?' || code == ':') return fail_option(code, argv[optind - 1], accepted, err);
    int id = id_of(code);
    HK_TRY(refuse_second(args, id, err));
    HK_TRY(read_value(&options[id], optarg, args, err));
    if (id == HK_OPT_MACHINE) HK_TRY(keep_machine(args, err));
    if (id == HK_OPT_SET) HK_TRY(keep_set(args, err));
    args->given |= (hk_option_set)1 << id;
    if (args->help) return HK_OK;
  }
  args->operands = argv + optind;
  args->n_operands = argc - optind;
  return HK_OK;
}

/* -- Options as text --------------------------------------------------------------------------- */

/* A value, quoted for a shell where needed. */
static void format_text(const char *text, char *out, size_t size) {
  static const char plain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:+";
  snprintf(out, size, text[strspn(text, plain)] == '\0' ? " %s" : " '%s'", text);
}

static void format_value(const hk_option *option, const hk_args *args, char *out, size_t size) {
  const void *field = (const char *)args + option->offset;
  const char *word = option->value;
  switch (option->kind) {
    case HK_TEXT:
      format_text(*(const char *const *)field, out, size);
      return;
    case HK_WHOLE:
    case HK_COUNT:
    case HK_AMOUNT:
    case HK_TOKENS:
    case HK_STRIDE:
      if (option->kind == HK_STRIDE && *(const int64_t *)field == HK_STRIDE_AUTO)
        snprintf(out, size, " auto");
      else
        snprintf(out, size, " %lld", (long long)*(const int64_t *)field);
      return;
    case HK_REAL:
      snprintf(out, size, " %.15g", *(const double *)field);
      return;
    case HK_CHOICE:
      for (int i = *(const int *)field; i > 0; i--) word = strchr(word, '|') + 1;
      snprintf(out, size, " %.*s", (int)strcspn(word, "|"), word);
      return;
    case HK_FLAG:
      *out = '\0';
      return;
  }
}

const char *hk_args_again(const hk_args *args, hk_option_set which, char *buffer, size_t size) {
  size_t length = 0;
  *buffer = '\0';
  for (int id = 0; id < HK_OPT_COUNT && length < size; id++) {
    if (!(args->given & which & (hk_option_set)1 << id)) continue;
    char value[512];
    format_value(&options[id], args, value, sizeof value);
    length += (size_t)snprintf(buffer + length, size - length, " --%s%s", options[id].name, value);
  }
  return buffer;
}
