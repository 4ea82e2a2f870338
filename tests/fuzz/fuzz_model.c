/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Models: a config.json of Hugging Face or a document of hocket. An accepted one has sizes and
 * costs, can be copied and cut into subgroups, and can be read again from the configuration that it
 * keeps. */
#include <math.h>
#include <stdio.h>

#include "core/base/json.h"
#include "tests/fuzz/fuzz.h"

static void check_blocks(const hk_model *model) {
  const int64_t last = model->layers;
  for (int64_t block = HK_BLOCK_EMBED; block <= last; block++) {
    const int b = (int)block;
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
      FUZZ_MUST(hk_model_activation_bytes(model, b, 1 << 20, 1 << 24, 1, checkpoint) >= 0);
      FUZZ_MUST(hk_model_backward_workspace_bytes(model, b, 1, 2048, 1, checkpoint) >= 0);
      FUZZ_MUST(hk_model_backward_flops(model, b, 1, 2048, 1, checkpoint) >= 0);
    }
    FUZZ_MUST(hk_model_forward_flops(model, b, 1 << 20, 1 << 24, 1) >= 0);
    FUZZ_MUST(hk_model_measured_ns(model, b, true, 1 << 20, 1 << 24) >= 0);
    FUZZ_MUST(hk_model_block_parameters(model, b, 1) >= 0);
    if (block == 8 && last > 16) block = last - 4; /* the layers between are alike */
  }
}

static void check_subgroups(const hk_model *model) {
  hk_error err = {0};
  for (int rule = HK_SUBGROUP_SOFT; rule <= HK_SUBGROUP_BLOCKS; rule++) {
    hk_subgroup *subgroups = NULL;
    size_t n = 0;
    const int64_t size = model->parameters / 7 + 1;
    if (!hk_fuzz_read(
            hk_model_subgroups(model, 1, 3, (hk_subgroup_rule)rule, size, &subgroups, &n, &err),
            &err)) {
      continue;
    }
    int64_t end = 0;
    for (size_t i = 0; i < n; i++) {
      FUZZ_MUST(subgroups[i].offset == end && subgroups[i].numel > 0);
      end += subgroups[i].numel;
    }
    if (n > 0) {
      FUZZ_MUST(hk_model_weight_bytes(model, 1, 3, 0, end) >= 2 * end);
      FUZZ_MUST(hk_model_grad_bytes(model, 1, 3, 0, end) >= 2 * end);
    }
    free(subgroups);
  }
}

static void check_again(const hk_model *model) {
  hk_error err = {0};
  hk_model again = {0}, copy = {0};
  hk_fuzz_read(hk_model_from_config(model->config, model->name, &again, &err), &err);
  FUZZ_MUST(again.parameters == model->parameters && again.n_tensors == model->n_tensors);
  FUZZ_MUST(hk_fuzz_read(hk_model_copy(&again, &copy, &err), &err));
  hk_model_free(&again);
  FUZZ_MUST(copy.parameters == model->parameters);
  hk_model_free(&copy);
}

static void check_model(const hk_model *model) {
  FUZZ_MUST(model->parameters > 0 && model->parameters < (int64_t)1 << 53);
  const int64_t of_rank = hk_model_rank_parameters(model, 1, 1);
  FUZZ_MUST(of_rank <= model->parameters &&
            of_rank * hk_max(model->expert_ranks, 1) >= model->parameters);
  FUZZ_MUST(model->active > 0 && model->active <= model->parameters);
  check_blocks(model);
  check_subgroups(model);
  check_again(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  cJSON_Delete(hk_fuzz_json(data, size));
  hk_error err = {0};
  hk_model model = {0};
  if (hk_fuzz_read(hk_model_load(hk_fuzz_file(data, size), &model, &err), &err)) {
    check_model(&model);
  }
  hk_model_free(&model);
  return 0;
}
