/* SPDX-License-Identifier: Apache-2.0 */
/* Models from a Hugging Face config.json: which family it is, and what is said about it. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/json.h"
#include "core/base/names.h"
#include "core/model/model_shape.h"

/* Tokens that an image of Llama 3.2 vision has where its vision_config does not say: 4 tiles of
 * 560 x 560 pixels, patches of 14, and one token of the class for each tile. */
#define IMAGE_SIDE  560
#define IMAGE_PATCH 14
#define IMAGE_TILES 4

/* -- Family ----------------------------------------------------------------------------------- */

static const char *architecture_of(const cJSON *config) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, "architectures");
  return cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
}

static hk_status fail_unknown(const char *type, const char *architecture, hk_error *err) {
  size_t n = 0;
  const char *const *types = hk_family_types(&n);
  const char *near = type ? hk_nearest(type, types, n) : NULL;
  char known[600], hint[80] = "";
  if (near) snprintf(hint, sizeof hint, "; did you mean \"%s\"?", near);
  return hk_fail(
      err, HK_INPUT,
      "%s \"%.80s\" is not a kind of model that hocket knows%s Known: %s. Any other model "
      "can be given as the document that 'python3 -m hocket describe FOLDER' prints (with torch "
      "and "
      "transformers), or by its size: --params N --layers L --hidden H",
      type ? "key 'model_type':" : "key 'architectures':", type ? type : architecture,
      near ? hint : ".", hk_join(types, n, known, sizeof known));
}

/* The first of `architectures` decides, also on the part of the model that is there; where hocket
 * does not know it, or it is absent, the model_type. */
static hk_status find_family(const cJSON *config, hk_model *model, uint64_t *part, hk_error *err) {
  const char *architecture = architecture_of(config),
             *type = hk_json_text_or(config, "model_type", NULL);
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(config, "architectures");
  if (!architecture && given && !cJSON_IsNull(given))
    return hk_fail(err, HK_INPUT,
                   "key 'architectures': expected a list with the name of an architecture, such as "
                   "[\"LlamaForCausalLM\"]");
  if (!architecture && !type)
    return hk_fail(
        err, HK_INPUT,
        "key 'architectures': missing, and 'model_type', too: one of them must name the "
        "kind of model, such as \"llama\"; a model that is only known by its size can be "
        "given by --params N --layers L --hidden H");
  model->arch = hk_family_find(architecture, type);
  *part = 0;
  if (model->arch == HK_ARCH_LISTED) return fail_unknown(type, architecture, err);
  if (architecture) *part = hk_family_part(hk_family_of(model->arch), architecture);
  if (!architecture || *part != 0 || strcmp(architecture, hk_arch_name(model->arch)) == 0)
    return HK_OK;
  return hk_model_note(model, err,
                       "its architecture %.80s is counted as %s, whose tensors may differ",
                       architecture, hk_arch_name(model->arch));
}

/* -- Layout ----------------------------------------------------------------------------------- */

/* "hocket_layout" is ours: config.json does not say how a training framework stores a model. */
static hk_status read_layout(const cJSON *config, const hk_shape *shape, hk_model *model,
                             hk_error *err) {
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(config, "hocket_layout");
  const char *architecture = architecture_of(config);
  const bool biases = shape->flags & (HK_QKV_BIAS | HK_MLP_BIAS);
  model->layout = HK_LAYOUT_HF;
  if (!given || cJSON_IsNull(given)) return HK_OK;
  const char *layout = NULL;
  HK_TRY(hk_json_string(config, "hocket_layout", &layout, err));
  if (strcmp(layout, "huggingface") == 0) return HK_OK;
  if (strcmp(layout, "megatron") != 0)
    return hk_fail(err, HK_INPUT,
                   "key 'hocket_layout': expected \"huggingface\" or \"megatron\", got \"%s\"",
                   layout);
  if (model->arch != HK_ARCH_LLAMA || biases || shape->flags & HK_BODY)
    return hk_fail(err, HK_INPUT,
                   "key 'hocket_layout': \"megatron\" is known for LlamaForCausalLM without "
                   "biases only; this is %s%s",
                   architecture ? architecture : hk_arch_name(model->arch),
                   biases ? " with biases" : "");
  model->layout = HK_LAYOUT_MEGATRON;
  return HK_OK;
}

/* -- Text parts ------------------------------------------------------------------------------- */

static hk_status read_image(const cJSON *outer, hk_model *model, hk_error *err) {
  const cJSON *vision = outer ? cJSON_GetObjectItemCaseSensitive(outer, "vision_config") : NULL;
  int64_t side = IMAGE_SIDE, patch = IMAGE_PATCH, tiles = IMAGE_TILES;
  if (cJSON_IsObject(vision)) {
    HK_TRY(hk_json_int_or(vision, "image_size", 1, 1 << 16, side, &side, err));
    HK_TRY(hk_json_int_or(vision, "patch_size", 1, 1 << 12, patch, &patch, err));
    HK_TRY(hk_json_int_or(vision, "max_num_tiles", 1, 1 << 12, tiles, &tiles, err));
  }
  model->other_tokens = tiles * ((side / patch) * (side / patch) + 1);
  return HK_OK;
}

static hk_status note_quantization(const cJSON *config, hk_model *model, hk_error *err) {
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(config, "quantization_config");
  if (!given || cJSON_IsNull(given)) return HK_OK;
  return hk_model_note(model, err,
                       "its quantization_config is ignored: weights and gradients count as bf16, "
                       "and all of them are trained");
}

/* What the tokens of a sequence stand for where it is not plain. */
static hk_status note_assumptions(hk_model *model, uint64_t part, hk_error *err) {
  if (model->arch == HK_ARCH_T5 && !(part & HK_ENCODER))
    return hk_model_note(model, err,
                         "assumed: its decoder has as many tokens as its encoder (--seq)");
  if (model->arch == HK_ARCH_MLLAMA)
    return hk_model_note(
        model, err, "assumed: one image of %lld tokens a sequence; the vision tower is left out",
        (long long)model->other_tokens);
  return HK_OK;
}

/* The part of a multi-modal config.json that describes its language model; else all of it. */
static const cJSON *text_part(const cJSON *config) {
  const cJSON *text = cJSON_GetObjectItemCaseSensitive(config, "text_config");
  return cJSON_IsObject(text) ? text : config;
}

bool hk_model_is_foreign(const cJSON *config) {
  const cJSON *text = text_part(config);
  const char *architecture = architecture_of(text),
             *type = hk_json_text_or(text, "model_type", NULL);
  return !hk_model_is_document(config) && (architecture || type) &&
         hk_family_find(architecture, type) == HK_ARCH_LISTED;
}

const char *hk_model_architecture(const hk_model *model) {
  if (model->arch == HK_ARCH_LISTED) return hk_arch_name(model->arch);
  const char *name = architecture_of(text_part(model->config));
  return name && hk_family_part(hk_family_of(model->arch), name) ? name : hk_arch_name(model->arch);
}

/* -- A model ---------------------------------------------------------------------------------- */

static hk_status read_parts(const cJSON *config, hk_model *model, hk_error *err) {
  const cJSON *text = text_part(config), *outer = text == config ? NULL : config;
  hk_shape shape;
  hk_lists lists = {0};
  uint64_t part = 0;
  if (outer)
    HK_TRY(hk_model_note(model, err, "its text part alone is counted and trained (text_config)"));
  HK_TRY(find_family(text, model, &part, err));
  const hk_family *family = hk_family_of(model->arch);
  HK_TRY(hk_shape_read(text, outer, family, part, &shape, err));
  HK_TRY(read_layout(text, &shape, model, err));
  if (model->layout == HK_LAYOUT_MEGATRON) shape.family = &hk_family_megatron;
  HK_TRY(hk_shape_read_lists(text, &shape, &lists, err));
  if (model->arch == HK_ARCH_MLLAMA) HK_TRY(read_image(outer, model, err));
  HK_TRY(hk_shape_note_unused(text, family, model, err));
  HK_TRY(note_quantization(config, model, err));
  HK_TRY(note_assumptions(model, part, err));
  const char *note =
      hk_json_text_or(config, "hocket_note", NULL); /* hk_model_from_size writes one */
  if (note) HK_TRY(hk_model_note(model, err, "%s", note));
  return hk_model_build(model, &shape, &lists, err);
}

static hk_status read_model(const cJSON *config, hk_model *model, hk_error *err) {
  if (!cJSON_IsObject(config))
    return hk_fail(err, HK_INPUT, "expected a JSON object with the keys of a config.json");
  HK_TRY(read_parts(config, model, err));
  model->config = cJSON_Duplicate(config, true);
  if (!model->config) return hk_fail_memory(err, sizeof(cJSON), "a copy of the configuration");
  HK_TRY(hk_model_read_frozen(model, err));
  HK_TRY(hk_model_read_stages(model, err));
  HK_TRY(hk_model_read_expert_ranks(model, err));
  return hk_model_own(model, err);
}

hk_status hk_model_from_config(const cJSON *config, const char *name, hk_model *model,
                               hk_error *err) {
  if (hk_model_is_document(config)) return hk_model_from_document(config, name, model, err);
  *model = (hk_model){0};
  snprintf(model->name, sizeof model->name, "%s", name);
  hk_status status = read_model(config, model, err);
  if (status != HK_OK) hk_model_free(model);
  return status;
}

/* "llama-2-7b" for .../llama-2-7b.json; the folder's name for .../llama-2-7b/config.json, which is
 * how a downloaded checkpoint looks. */
static void name_from_path(const char *path, char *name, size_t size) {
  const char *end = path + strlen(path);
  const char *base = strrchr(path, '/');
  base = base ? base + 1 : path;
  if (strcmp(base, "config.json") == 0 && base > path + 1 && base[-2] != '.') {
    end = base - 1;
    base = end;
    while (base > path && base[-1] != '/') base--;
  } else if (end - base > 5 && strcmp(end - 5, ".json") == 0) {
    end -= 5;
  }
  snprintf(name, size, "%.*s", (int)(end - base), base);
}

/* A folder, such as a downloaded checkpoint, stands for its config.json. */
static hk_status enter_folder(char *path, size_t size, hk_error *err) {
  static const char file[] = "/config.json";
  struct stat status;
  if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) return HK_OK;
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  if (length + sizeof file > size)
    return hk_fail(err, HK_INPUT, "the path of the model's folder is too long");
  memcpy(path + length, file, sizeof file);
  if (stat(path, &status) == 0) return HK_OK;
  path[length] = '\0';
  return hk_fail(err, HK_INPUT, "'%s' is a folder without a config.json", path);
}

/* A name with one slash and no file of that path: probably a repository of Hugging Face. */
static hk_status refuse_repository(const char *path, hk_error *err) {
  const char *slash = strchr(path, '/');
  char name[128] = "", file[4096];
  struct stat status;
  hk_error ignored = {0};
  const bool is_name = slash && slash > path && slash[1] && path[0] != '.' &&
                       !strchr(slash + 1, '/') && !strstr(path, ".json") &&
                       stat(path, &status) != 0 && errno == ENOENT;
  if (!is_name) return HK_OK;
  for (size_t i = 0; slash[i + 1] && i + 1 < sizeof name; i++)
    name[i] = (char)tolower((unsigned char)slash[i + 1]);
  const bool preset = hk_share_resolve("models", name, file, sizeof file, &ignored) == HK_OK;
  return hk_fail(err, HK_INPUT,
                 "'%.80s' is no file, and hocket downloads nothing: give the path of the model's "
                 "config.json, or a preset (%s%s%s)",
                 path, preset ? "'" : "", preset ? name : "'hocket model list' prints all",
                 preset ? "' is one" : "");
}

hk_status hk_model_load(const char *name_or_file, hk_model *model, hk_error *err) {
  char path[4096], name[sizeof model->name];
  cJSON *config = NULL;
  *model = (hk_model){0};
  if (strcmp(name_or_file, ".") == 0 || strcmp(name_or_file, "..") == 0)
    snprintf(path, sizeof path, "%s", name_or_file);
  else
    HK_TRY(hk_share_resolve("models", name_or_file, path, sizeof path, err));
  HK_TRY(refuse_repository(path, err));
  HK_TRY(enter_folder(path, sizeof path, err));
  HK_TRY(hk_json_load(path, &config, err));
  name_from_path(path, name, sizeof name);
  hk_status status = hk_model_from_config(config, name, model, err);
  cJSON_Delete(config);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", path);
}

hk_status hk_model_copy(const hk_model *from, hk_model *to, hk_error *err) {
  if (!from->owners) return hk_model_from_config(from->config, from->name, to, err);
  hk_model_share(from, to);
  return HK_OK;
}
