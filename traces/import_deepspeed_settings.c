/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The settings of a run in its log: Megatron's arguments ("hidden_size ..... 4096"), DeepSpeed's
 * configuration (with dots, as repr() of objects, or as JSON), the launcher's command lines, and
 * the subgroups. If a setting appears several times, the first one counts. */
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"
#include "traces/import_deepspeed_internal.h"

typedef enum { COUNT, REAL, SWITCH } kind;

typedef struct {
  const char *key;
  kind kind;
  bool offload; /* counts only within offload_optimizer: elsewhere the key has another meaning */
  size_t offset;
} setting;

#define AT(field) offsetof(hk_log_settings, field)

static const setting settings_table[] = {
    /* Megatron's arguments */
    {"num_layers", COUNT, false, AT(layers)},
    {"hidden_size", COUNT, false, AT(hidden)},
    {"ffn_hidden_size", COUNT, false, AT(ffn)},
    {"num_attention_heads", COUNT, false, AT(heads)},
    {"num_key_value_heads", COUNT, false, AT(kv_heads)},
    {"num_query_groups", COUNT, false, AT(groups)},
    {"group_query_attention", SWITCH, false, AT(grouped)},
    {"seq_length", COUNT, false, AT(seq)},
    {"tensor_model_parallel_size", COUNT, false, AT(tp)},
    {"data_parallel_size", COUNT, false, AT(dp)},
    {"micro_batch_size", COUNT, false, AT(megatron_micro)},
    {"global_batch_size", COUNT, false, AT(megatron_global)},
    {"log_interval", COUNT, false, AT(log_interval)},
    /* a Hugging Face model's configuration, which its trainer prints */
    {"num_hidden_layers", COUNT, false, AT(layers)},
    {"intermediate_size", COUNT, false, AT(ffn)},
    {"vocab_size", COUNT, false, AT(vocab_raw)},
    /* DeepSpeed's launcher and configuration */
    {"nnodes", COUNT, false, AT(nodes)},
    {"dist_world_size", COUNT, false, AT(world)},
    {"train_batch_size", COUNT, false, AT(global)},
    {"train_micro_batch_size_per_gpu", COUNT, false, AT(micro)},
    {"gradient_accumulation_steps", COUNT, false, AT(accum)},
    {"sub_group_size", COUNT, false, AT(subgroup)},
    {"cpu_offload", SWITCH, false, AT(offload)}, /* before 0.3.16 */
    {"ratio", REAL, true, AT(ratio)},
    {"prefetch_optimizer", SWITCH, true, AT(prefetch)},
    {"part_grads_async", SWITCH, true, AT(async)},
    {"prefetch_optimizer_gap", COUNT, true, AT(gap)},
};

static double *slot_of(hk_log_settings *settings, size_t offset) {
  return (double *)(void *)((char *)settings + offset);
}

void hk_log_settings_init(hk_log_settings *settings) {
  *settings = (hk_log_settings){0};
#define SET_UNKNOWN(name) settings->name = NAN;
  HK_LOG_SETTINGS(SET_UNKNOWN)
#undef SET_UNKNOWN
}

void hk_log_settings_free(hk_log_settings *settings) {
  free(settings->subgroups.runs);
  settings->subgroups.runs = NULL;
}

/* -- Keys and values --------------------------------------------------------------------------- */

static bool is_word(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

/* Skips what joins a key to its value: "=", ":", dots, or two blanks (after a key too long for
 * dots). NULL: no value follows. */
static const char *skip_joint(const char *text) {
  if (*text == '"' || *text == '\'') text++;
  size_t blanks = strspn(text, " \t");
  const char *at = text + blanks;
  size_t dots = strspn(at, ".");
  if (*at == '=' || *at == ':')
    at++;
  else if (dots > 0)
    at += dots;
  else if (blanks < 2)
    return NULL;
  return at + strspn(at, " \t\"'");
}

/* The value of `key` within text[0 .. end), or NULL. A key at the start of the text does not count:
 * it may be the end of a longer one in a file that was cut off. No log begins a line with a key. */
static const char *find_value(const char *text, const char *end, const char *key) {
  size_t length = strlen(key);
  for (const char *at = text; (at = strstr(at, key)) && at < end; at += length) {
    if (at == text || is_word(at[-1]) || is_word(at[length])) continue;
    const char *value = skip_joint(at + length);
    if (value) return value;
  }
  return NULL;
}

static hk_number read_switch(const char *text, double *value) {
  if (strncasecmp(text, "true", 4) == 0 || (*text == '1' && !is_word(text[1])))
    *value = 1;
  else if (strncasecmp(text, "false", 5) == 0 || (*text == '0' && !is_word(text[1])))
    *value = 0;
  else
    return HK_NUMBER_NONE;
  return HK_NUMBER_OK;
}

static void take_setting(hk_log_settings *settings, const setting *s, const char *text,
                         const char *end, int *bad) {
  double value = NAN, *slot = slot_of(settings, s->offset);
  const char *at = isnan(*slot) ? find_value(text, end, s->key) : NULL;
  if (!at) return;
  hk_number got = s->kind == COUNT  ? hk_log_count(&at, &value)
                  : s->kind == REAL ? hk_log_real(&at, &value)
                                    : read_switch(at, &value);
  if (got == HK_NUMBER_OK) *slot = value;
  *bad += got == HK_NUMBER_BAD;
}

static void take_settings(hk_log_settings *settings, const char *text, const char *end,
                          bool offload, int *bad) {
  for (size_t i = 0; i < sizeof settings_table / sizeof *settings_table; i++)
    if (settings_table[i].offload == offload)
      take_setting(settings, &settings_table[i], text, end, bad);
}

/* offload_optimizer is None, or an object on one or several lines. */
static void take_offload(hk_log_settings *settings, const char *line, int *bad) {
  const char *end = line + strlen(line), *from = line;
  if (strstr(line, "] [INFO] [")) settings->in_offload = false; /* its end was lost */
  if (!settings->in_offload) {
    from = find_value(line, end, "offload_optimizer");
    if (!from) return;
    if (strncasecmp(from, "none", 4) == 0 || strncmp(from, "null", 4) == 0) {
      if (isnan(settings->offload)) settings->offload = 0;
      return;
    }
    from += strcspn(from, "({");
    settings->in_offload = *from != '\0';
    if (!settings->in_offload) return;
  }
  const char *close = strpbrk(from, ")}");
  const char *device = find_value(from, close ? close : end, "device");
  if (device && strncmp(device, "cpu", 3) == 0) settings->offload = 1;
  if (device && strncmp(device, "none", 4) == 0) settings->offload = 0;
  take_settings(settings, from, close ? close : end, true, bad);
  settings->in_offload = close == NULL;
}

/* A quick test that excludes most lines of a log from the search for settings. */
static bool may_hold_settings(const char *line) {
  return strstr(line, ".. ") || strstr(line, ":print") || strstr(line, "\": ") ||
         strstr(line, "nnodes=") || strstr(line, "dist_world_size=");
}

/* -- Other lines ------------------------------------------------------------------------------- */

static void take_count(const char *text, double *slot, int *bad) {
  double value;
  hk_number got = isnan(*slot) ? hk_log_count(&text, &value) : HK_NUMBER_NONE;
  if (got == HK_NUMBER_OK) *slot = value;
  *bad += got == HK_NUMBER_BAD;
}

/* "> padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)" and
 * "> number of parameters on (tensor, pipeline) model parallel rank (0, 0): 15326663680" */
static void take_sizes(hk_log_settings *settings, const char *line, int *bad) {
  const char *at = strstr(line, "(new size: ");
  if (at) take_count(at + strlen("(new size: "), &settings->vocab, bad);
  at = strstr(line, "number of parameters on ");
  if (at) at = strstr(at, " rank ");
  if (at) at = strstr(at, ": ");
  if (at) take_count(at + 2, &settings->params, bad);
}

static void take_build(hk_log_settings *settings, const char *line) {
  if (*settings->build) return;
  const char *at = strstr(line, "DeepSpeed info: version=");
  if (at)
    at += strlen("DeepSpeed info: version=");
  else if ((at = strstr(line, "deepspeed info ..")))
    at = skip_joint(at + strlen("deepspeed info"));
  if (at) snprintf(settings->build, sizeof settings->build, "%.*s", (int)strcspn(at, ", "), at);
}

/* Number of hardware threads in a list such as "0-6,32-38"; NAN: not a list. */
static double count_cores(const char *list) {
  double cores = 0;
  for (char *end;; list = end + 1) {
    if (!isdigit((unsigned char)*list)) return NAN;
    long first = strtol(list, &end, 10), last = first;
    if (*end == '-') {
      if (!isdigit((unsigned char)end[1])) return NAN;
      last = strtol(end + 1, &end, 10);
    }
    if (last < first || last > 65535) return NAN;
    cores += (double)(last - first + 1);
    if (*end != ',') return cores;
  }
}

/* "spawned with command: ['numactl', '-m', '0', '-C', '0-45', ... '--local_rank=0', ...]" */
static void take_cores(hk_log_settings *settings, const char *line) {
  if (!strstr(line, "spawned with command") || !strstr(line, "--local_rank=0'")) return;
  const char *at = strstr(line, "'numactl'");
  if (at) at = strstr(at, "'-C', '");
  if (at && isnan(settings->cores)) settings->cores = count_cores(at + strlen("'-C', '"));
}

/* -- Subgroups --------------------------------------------------------------------------------- */

static hk_status add_subgroup(struct hk_log_subgroups *groups, long long numel, hk_error *err) {
  groups->total++;
  if (groups->n > 0 && groups->runs[groups->n - 1].numel == numel) {
    groups->runs[groups->n - 1].count++;
    return HK_OK;
  }
  HK_TRY(HK_GROW(groups->runs, groups->room, groups->n, "subgroups", err));
  groups->runs[groups->n].numel = numel;
  groups->runs[groups->n++].count = 1;
  return HK_OK;
}

#define MOST_SUBGROUPS 65536

/* "[Rank 0] ========== Param group 0, Subgroup 3, numel: 145002240"; ranks may share a line. */
static hk_status take_subgroups(hk_log_settings *settings, const char *line, int *bad,
                                hk_error *err) {
  struct hk_log_subgroups *groups = &settings->subgroups;
  for (const char *at = line; (at = strstr(at, "[Rank 0] ==")); at++) {
    const char *index = strstr(at, ", Subgroup "), *numel = strstr(at, ", numel: ");
    double i, n;
    if (!index || !numel || index > numel) continue;
    index += strlen(", Subgroup ");
    numel += strlen(", numel: ");
    bool read =
        hk_log_count(&index, &i) == HK_NUMBER_OK && hk_log_count(&numel, &n) == HK_NUMBER_OK;
    if (!read) ++*bad;
    if (!read || (long long)i != groups->total || groups->total == MOST_SUBGROUPS)
      groups->broken = true;
    else
      HK_TRY(add_subgroup(groups, (long long)n, err));
  }
  const char *at = strstr(line, "After creating fp16 partitions: ");
  double total;
  if (!at) return HK_OK;
  at += strlen("After creating fp16 partitions: ");
  if (hk_log_count(&at, &total) == HK_NUMBER_OK && groups->total != (long long)total)
    groups->broken = true;
  return HK_OK;
}

hk_status hk_log_settings_read(hk_log_settings *settings, const char *line, int *bad,
                               hk_error *err) {
  if (settings->in_offload || may_hold_settings(line)) {
    take_settings(settings, line, line + strlen(line), false, bad);
    take_offload(settings, line, bad);
    take_build(settings, line);
  } else {
    take_build(settings, line);
    take_sizes(settings, line, bad);
    take_cores(settings, line);
  }
  return take_subgroups(settings, line, bad, err);
}
