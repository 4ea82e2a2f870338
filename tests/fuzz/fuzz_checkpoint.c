/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Checkpoints. The first byte selects the checksums that are corrected before (bit 1: the header's,
 * bit 2: those of the blocks and the end), so that inputs pass them, and the engine that loads (bit
 * 3: with bf16 moments instead of fp32). Tensors may have another order in the file, and an older
 * version has no tensors: an engine saves a checkpoint that it has saved and loaded with the same
 * bytes, and by a snapshot, too. After a refusal the engine's state is unchanged. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "engine/engine.h"
#include "tests/fuzz/fuzz.h"

/* As engine/access/checkpoint.c describes a file. */
enum { HEAD = 32, GROUP = 48, FORMAT = 24, VERSION_AT = 8, GROUPS_AT = 12 };
enum { TENSORS = 3, NUMEL = 5 + 1 + 7, GROUPS = 2 };

static const int64_t tensor_numel[TENSORS] = {5, 1, 7};

/* -- Engines ----------------------------------------------------------------------------------- */

static hk_plan tiny_plan(hk_optimizer optimizer) {
  hk_error err = {0};
  hk_tensor tensors[TENSORS] = {
      {.name = "a", .block = 0}, {.name = "b", .block = 1}, {.name = "c", .block = 1}};
  hk_model model = {0};
  hk_plan plan = {0};
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 1};
  for (int i = 0; i < TENSORS; i++) tensors[i].numel = tensor_numel[i];
  hk_status status = hk_model_from_tensors("tiny", tensors, TENSORS, 2, &model, &err);
  if (status == HK_OK) {
    status = hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 4, &plan, &err);
  }
  if (status != HK_OK) hk_fuzz_abort(__FILE__, __LINE__, "a plan", err.message);
  plan.optimizer = optimizer;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = s % 2 == 0 ? HK_ROUTE_CPU : HK_ROUTE_STAGED;
  }
  hk_model_free(&model);
  return plan;
}

static hk_engine *make_engine(hk_optimizer optimizer) {
  static const hk_adamw hyper = {1e-3, 0.9, 0.999, 1e-8, 0.01};
  hk_error err = {0};
  hk_engine *engine = NULL;
  hk_plan plan = tiny_plan(optimizer);
  const hk_engine_options options = {.no_pin_threads = true};
  hk_param params[TENSORS];
  const hk_adamw groups[GROUPS] = {hyper, hyper};
  for (int i = 0; i < TENSORS; i++) {
    params[i] = (hk_param){.numel = tensor_numel[i],
                           .group = i == TENSORS - 1,
                           .block = i > 0,
                           .key = 100 + (uint64_t)i};
  }
  const hk_status status =
      hk_engine_create(&plan, params, TENSORS, groups, GROUPS, &options, &engine, &err);
  if (status != HK_OK) hk_fuzz_abort(__FILE__, __LINE__, "an engine", err.message);
  hk_plan_free(&plan);
  return engine;
}

static hk_engine *made[2];

static void destroy_engines(void) {
  for (int i = 0; i < 2; i++) hk_engine_destroy(made[i]);
}

static hk_engine *the_engine(bool bf16) {
  if (made[0] == NULL && made[1] == NULL) atexit(destroy_engines);
  if (made[bf16] == NULL) made[bf16] = make_engine(bf16 ? HK_OPTIMIZER_BF16 : HK_OPTIMIZER_FP32);
  return made[bf16];
}

/* -- Checksums --------------------------------------------------------------------------------- */

static uint64_t number_at(const uint8_t *bytes, size_t size) {
  uint64_t value = 0;
  memcpy(&value, bytes, size);
  return value;
}

/* The offset of the header's checksum; 0: beyond the end of the file. Corrects it if `mend`. */
static size_t mend_header(uint8_t *file, size_t size, bool mend) {
  if (size < HEAD) return 0;
  const uint64_t version = number_at(file + VERSION_AT, 4), n = number_at(file + GROUPS_AT, 4);
  size_t at = HEAD;
  uint64_t sum = XXH3_64bits(file, HEAD);
  if (n > (size - at) / GROUP) return 0;
  for (uint64_t g = 0; g < n; g++, at += GROUP) {
    sum = XXH3_64bits_withSeed(file + at, GROUP, sum);
  }
  if (version >= 2 && version <= 4) {
    const size_t param = version == 2 ? 24 : 32;
    if (size - at < 8) return 0;
    const uint64_t params = number_at(file + at, 8);
    sum = XXH3_64bits_withSeed(file + at, 8, sum);
    at += 8;
    if (params > (size - at) / param) return 0;
    for (uint64_t p = 0; p < params; p++, at += param) {
      sum = XXH3_64bits_withSeed(file + at, param, sum);
    }
  }
  if (version == 4) {
    if (size - at < FORMAT) return 0;
    sum = XXH3_64bits_withSeed(file + at, FORMAT, sum);
    at += FORMAT;
  }
  if (size - at < 8) return 0;
  if (mend) memcpy(file + at, &sum, sizeof sum);
  return at;
}

/* Corrects the checksums of the three blocks (p, m and v, of this engine's size) behind the
 * header's checksum, and that of the end behind them. */
static void mend_blocks(uint8_t *file, size_t size, size_t header) {
  size_t at = header + 8;
  uint64_t hashes = 0;
  for (int part = 0; part < 3; part++) {
    if (at > size || size - at < 4 * NUMEL + 8) return;
    const uint64_t hash = XXH3_64bits(file + at, 4 * NUMEL);
    memcpy(file + at + 4 * NUMEL, &hash, sizeof hash);
    hashes = XXH3_64bits_withSeed(&hash, sizeof hash, hashes);
    at += 4 * NUMEL + 8;
  }
  if (size - at >= 8) memcpy(file + at, &hashes, sizeof hashes);
}

/* -- One input --------------------------------------------------------------------------------- */

/* The engine's state, steps and hyperparameters: its own checkpoint. The caller frees it. */
static uint8_t *saved_by(hk_engine *engine, size_t *size) {
  const char *path = hk_fuzz_path("saved.ck");
  hk_error err = {0};
  if (!hk_fuzz_read(hk_engine_save(engine, path, NULL, NULL, &err), &err)) {
    hk_fuzz_abort(__FILE__, __LINE__, "an engine's state is saved", err.message);
  }
  return hk_fuzz_contents(path, size);
}

static void count_progress(void *last, hk_bytes done, hk_bytes all) {
  FUZZ_MUST(done >= *(hk_bytes *)last && done <= all);
  *(hk_bytes *)last = done;
}

static bool load(hk_engine *engine, const uint8_t *file, size_t size) {
  hk_error err = {0};
  hk_bytes done = 0;
  const char *path = hk_fuzz_file(file, size);
  return hk_fuzz_read(hk_engine_load(engine, path, count_progress, &done, &err), &err);
}

static void check_saved(hk_engine *engine, const uint8_t *file, size_t size) {
  size_t after_size;
  uint8_t *after = saved_by(engine, &after_size);
  FUZZ_MUST(after_size == size && memcmp(after, file, size) == 0);
  free(after);
}

static void check_snapshot(hk_engine *engine, const uint8_t *file, size_t size) {
  const char *path = hk_fuzz_path("snapshot.ck");
  hk_error err = {0};
  hk_snapshot *snapshot = NULL;
  size_t copied_size;
  FUZZ_MUST(hk_engine_snapshot(engine, &snapshot, &err) == HK_OK);
  FUZZ_MUST(hk_snapshot_save(snapshot, path, &err) == HK_OK);
  hk_snapshot_free(snapshot);
  uint8_t *copied = hk_fuzz_contents(path, &copied_size);
  FUZZ_MUST(copied_size == size && memcmp(copied, file, size) == 0);
  free(copied);
}

static void check_load(hk_engine *engine, const uint8_t *file, size_t size) {
  size_t before_size, again_size;
  uint8_t *before = saved_by(engine, &before_size);
  if (!load(engine, file, size)) {
    check_saved(engine, before, before_size);
  } else {
    uint8_t *again = saved_by(engine, &again_size);
    FUZZ_MUST(load(engine, again, again_size));
    check_saved(engine, again, again_size);
    check_snapshot(engine, again, again_size);
    free(again);
  }
  free(before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  uint8_t *file = malloc(size);
  FUZZ_MUST(file != NULL);
  memcpy(file, data + 1, size - 1);
  const size_t header = mend_header(file, size - 1, (data[0] & 2) != 0);
  if (header > 0 && (data[0] & 4) != 0) mend_blocks(file, size - 1, header);
  check_load(the_engine((data[0] & 8) != 0), file, size - 1);
  free(file);
  return 0;
}
