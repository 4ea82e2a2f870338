/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A listed model of equal blocks with measured times. Its numbers are round, so that expected
 * values can be worked out by hand. */
#ifndef HK_TESTS_FIXTURE_BLOCKS_H
#define HK_TESTS_FIXTURE_BLOCKS_H

#include "tests/fixture.h"

static const hk_job ONE_RANK = {
    .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 1};

/* `blocks` blocks of `numel` parameters with these times of forward and backward each. */
static inline hk_model equal_blocks(int blocks, int64_t numel, double forward_ms,
                                    double backward_ms) {
  hk_error err = {0};
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "hocket.model/1");
  cJSON *list = cJSON_AddArrayToObject(root, "blocks");
  cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
  for (int b = 0; b < blocks; b++) {
    cJSON *block = cJSON_CreateObject(), *tensor = cJSON_CreateObject();
    cJSON_AddItemToArray(list, block);
    cJSON_AddItemToArray(tensors, tensor);
    cJSON_AddStringToObject(block, "name", "b");
    cJSON_AddNumberToObject(block, "forward_flops", 0);
    cJSON_AddNumberToObject(block, "activation_bytes", 1000);
    cJSON_AddNumberToObject(block, "workspace_bytes", 0);
    cJSON_AddNumberToObject(block, "forward_ms", forward_ms);
    cJSON_AddNumberToObject(block, "backward_ms", backward_ms);
    cJSON_AddStringToObject(tensor, "name", "w");
    cJSON_AddNumberToObject(tensor, "numel", (double)numel);
    cJSON_AddNumberToObject(tensor, "block", b);
  }
  hk_model model;
  must(hk_model_from_config(root, "equal", &model, &err), &err);
  cJSON_Delete(root);
  return model;
}

#endif
