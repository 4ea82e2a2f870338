/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Checkpoints: state is loaded under another plan and format; a file with one wrong bit is refused
 * and leaves the engine unchanged. */
#include <sys/stat.h>
#include <xxhash.h>

#include "tests/fixture_checkpoint.h"

/* -- Engines ----------------------------------------------------------------------------------- */

/* A few hundred parameters: a file whose every byte can be tried. */
static hk_plan tiny_plan(void) {
  static const char config[] =
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 8, "
      "\"intermediate_size\": 8, \"num_attention_heads\": 1, \"num_key_value_heads\": 1, "
      "\"vocab_size\": 8, \"max_position_embeddings\": 64}";
  hk_error err = {0};
  hk_model model = model_of(config, "tiny");
  hk_plan plan;
  must(hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 200, &plan, &err),
       &err);
  hk_model_free(&model);
  plan.cpu_threads = 1;
  plan.piece_numel = 100;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = (hk_route)(s % HK_ROUTE_COUNT);
  }
  return plan;
}
/* -- Round trips ------------------------------------------------------------------------------- */

static void note_progress(void *arg, hk_bytes done, hk_bytes all) {
  hk_bytes *last = arg;
  assert_true(done > *last && done <= all);
  *last = done;
}

/* Saved under one plan, loaded under another, and stepped: plain AdamW's bits throughout, in each
 * format. The file's hyperparameters and seed replace the engine's. */
static void state_moves_to_another_plan(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 16; number++) {
    random_stream r = {500 + number};
    hk_error err = {0};
    hk_plan plans[2] = {random_engine_plan(&r)};
    do {
      if (plans[1].subgroups != NULL) hk_plan_free(&plans[1]);
      plans[1] = random_engine_plan(&r);
    } while (numel_of(&plans[0]) != numel_of(&plans[1]));
    for (int i = 0; i < 2; i++) plans[i].optimizer = optimizer_of((hk_format)(number % HK_FORMATS));
    plain_adamw a = plain_start(&r, numel_of(&plans[0]), HK_GRAD_BF16);
    plain_in_format_of(&a, &plans[0]);
    a.seed = number + 1;
    hk_engine_options options = unpinned;
    options.seed = a.seed;
    hk_engine *engine = engine_like(&plans[0], &a, &options);
    step_both(engine, &a, &r);
    step_both(engine, &a, &r);
    a.groups[0].hyper.lr *= 0.5;
    must(hk_engine_set_group(engine, 0, &a.groups[0].hyper, &err), &err);
    hk_bytes saved = 0, loaded = 0;
    must(hk_engine_save(engine, path, note_progress, &saved, &err), &err);
    assert_int_equal(saved, 12 * a.n);
    char before[33], after[33];
    must(hk_engine_checksum(engine, before, &err), &err);
    end_engine(engine);

    const double lr = a.groups[0].hyper.lr;
    a.groups[0].hyper.lr = 1; /* the file's lr replaces it */
    engine = new_engine(&plans[1], &a, &unpinned);
    a.groups[0].hyper.lr = lr;
    must(hk_engine_load(engine, path, note_progress, &loaded, &err), &err);
    assert_int_equal(loaded, 24 * a.n);
    must(hk_engine_checksum(engine, after, &err), &err);
    assert_string_equal(before, after);
    assert_int_equal(hk_engine_step_number(engine), 2);
    hk_adamw group;
    must(hk_engine_get_group(engine, 0, &group, &err), &err);
    assert_true(group.lr == lr);
    step_both(engine, &a, &r);
    assert_same_bits(engine, &a);
    end_engine(engine);
    plain_stop(&a);
    hk_plan_free(&plans[0]);
    hk_plan_free(&plans[1]);
  }
}

/* Makes the file one of version 1, as of 'hocket run' until 2026-11: without tensors. */
static void drop_tensors(const char *name) {
  enum { HEAD = 32, GROUP = 48, TENSOR = 32 };
  contents c = read_file(name);
  const uint32_t version = 1;
  uint32_t groups = 0;
  int64_t tensors = 0;
  memcpy(c.bytes + 8, &version, sizeof version);
  memcpy(&groups, c.bytes + 12, sizeof groups);
  size_t at = HEAD;
  uint64_t sum = XXH3_64bits(c.bytes, HEAD);
  for (uint32_t g = 0; g < groups; g++, at += GROUP) {
    sum = XXH3_64bits_withSeed(c.bytes + at, GROUP, sum);
  }
  memcpy(&tensors, c.bytes + at, sizeof tensors);
  const size_t gone = 8 + (size_t)tensors * TENSOR, blocks = at + gone + 8;
  memcpy(c.bytes + at, &sum, sizeof sum);
  memmove(c.bytes + at + 8, c.bytes + blocks, c.n - blocks);
  write_file(name, c.bytes, c.n - gone);
  free(c.bytes);
}

/* A file of each format is loaded in each other one: exactly, except that bf16 and 8bit round m and
 * v to nearest even, and say so. bf16 holds what 8bit holds. */
static void state_moves_to_another_format(void **unused) {
  (void)unused;
  for (int from = 0; from < HK_FORMATS; from++) {
    for (int to = 0; to < HK_FORMATS; to++) {
      random_stream r = {900};
      hk_error err = {0};
      hk_plan plan = tiny_plan();
      plan.optimizer = optimizer_of((hk_format)from);
      plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
      plain_in_format_of(&a, &plan);
      hk_engine *engine = engine_like(&plan, &a, &unpinned);
      step_both(engine, &a, &r);
      must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
      end_engine(engine);
      plan.optimizer = optimizer_of((hk_format)to);
      engine = new_engine(&plan, &a, &unpinned);
      must(hk_engine_load(engine, path, NULL, NULL, &err), &err);
      const bool to_codes = hk_format_is_coded((hk_format)to);
      const bool held =
          hk_format_is_coded((hk_format)from) || (!to_codes && hk_format_is_short((hk_format)from));
      const char *says = to_codes ? "were rounded to 8 bits" : "were rounded to bf16";
      const bool rounds = hk_format_is_random((hk_format)to) && !held;
      assert_int_equal(strstr(hk_engine_notes(engine), says) != NULL, rounds);
      plain_in_format_of(&a, &plan);
      assert_state_bits(engine, &a);
      step_both(engine, &a, &r);
      assert_same_bits(engine, &a);
      end_engine(engine);
      plain_stop(&a);
      hk_plan_free(&plan);
    }
  }
}

/* A file's parts end inside blocks of codes: what a block held before does not count for the window
 * of the first part. */
static void old_values_do_not_coarsen_codes(void **unused) {
  (void)unused;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  if (!is_full_run()) skip(); /* 9 M parameters */
#endif
  random_stream r = {902};
  hk_error err = {0};
  hk_plan plan = wide_plan(2400011);
  plan.optimizer = HK_OPTIMIZER_8BIT;
  plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  plain_in_format_of(&a, &plan);
  hk_engine *engine = engine_like(&plan, &a, &unpinned);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  float *huge = must_have((size_t)a.n, sizeof *huge);
  for (int64_t i = 0; i < a.n; i++) huge[i] = 1e30f;
  must(hk_engine_write(engine, HK_STATE_M, 0, a.n, huge, &err), &err);
  must(hk_engine_write(engine, HK_STATE_V, 0, a.n, huge, &err), &err);
  must(hk_engine_load(engine, path, NULL, NULL, &err), &err);
  assert_state_bits(engine, &a);
  free(huge);
  end_engine(engine);
  plain_stop(&a);
  hk_plan_free(&plan);
}

/* A split format has no place for the sign of v. */
static void negative_variances_are_refused(void **unused) {
  (void)unused;
  static const float wrong[] = {-0.0f, -1};
  for (int i = 0; i < 2; i++) {
    random_stream r = {901};
    hk_error err = {0};
    hk_plan plan = tiny_plan();
    plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
    hk_engine *engine = engine_like(&plan, &a, &unpinned);
    must(hk_engine_write(engine, HK_STATE_V, 17, 1, &wrong[i], &err), &err);
    must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
    end_engine(engine);
    plan.optimizer = HK_OPTIMIZER_SPLIT;
    engine = engine_like(&plan, &a, &unpinned);
    assert_int_equal(hk_engine_write(engine, HK_STATE_V, 17, 1, &wrong[i], &err), HK_INPUT);
    assert_non_null(strstr(err.message, "v of parameter 17 is -"));
    assert_int_equal(hk_engine_load(engine, path, NULL, NULL, &err), HK_INPUT);
    assert_non_null(strstr(err.message, "state 'split' takes no variance that is negative or -0"));
    assert_state_bits(engine, &a);
    step_both(engine, &a, &r);
    assert_same_bits(engine, &a);
    end_engine(engine);
    plain_stop(&a);
    hk_plan_free(&plan);
  }
}

/* A file of version 1 has no tensors: all have its step. */
static void files_without_tensors_are_loaded(void **unused) {
  (void)unused;
  random_stream r = {530};
  hk_error err = {0};
  hk_plan plan = random_engine_plan(&r);
  plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  hk_engine *engine = engine_like(&plan, &a, &unpinned);
  step_both(engine, &a, &r);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  end_engine(engine);
  drop_tensors(path);
  engine = new_engine(&plan, &a, &unpinned);
  must(hk_engine_load(engine, path, NULL, NULL, &err), &err);
  assert_int_equal(hk_engine_step_number(engine), 1);
  step_both(engine, &a, &r);
  assert_same_bits(engine, &a);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  drop_tensors(path);
  const contents c = read_file(path);
  write_file(path, c.bytes, c.n - 1);
  assert_int_equal(hk_engine_load(engine, path, NULL, NULL, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "cut off"));
  free(c.bytes);
  end_engine(engine);
  plain_stop(&a);
  hk_plan_free(&plan);
}

/* -- Damage ------------------------------------------------------------------------------------ */

/* A tiny engine after step 2, and its file of step 1. */
typedef struct {
  hk_plan plan;
  plain_adamw a;
  hk_engine *engine;
  char checksum[33];
  contents good;
} damage;

static damage begin_damage(hk_format format) {
  random_stream r = {600};
  hk_error err = {0};
  damage d = {.plan = tiny_plan()};
  d.plan.optimizer = optimizer_of(format);
  d.a = plain_start(&r, numel_of(&d.plan), HK_GRAD_BF16);
  plain_in_format_of(&d.a, &d.plan);
  d.engine = engine_like(&d.plan, &d.a, &unpinned);
  step_both(d.engine, &d.a, &r);
  must(hk_engine_save(d.engine, path, NULL, NULL, &err), &err);
  d.good = read_file(path);
  step_both(d.engine, &d.a, &r);
  must(hk_engine_checksum(d.engine, d.checksum, &err), &err);
  return d;
}

static void assert_unchanged(const damage *d) {
  hk_error err = {0};
  char checksum[33];
  must(hk_engine_checksum(d->engine, checksum, &err), &err);
  assert_string_equal(checksum, d->checksum);
}

static void end_damage(damage *d) {
  hk_error err = {0};
  assert_unchanged(d);
  /* After all refusals the engine still loads the good file. */
  write_file(path, d->good.bytes, d->good.n);
  must(hk_engine_load(d->engine, path, NULL, NULL, &err), &err);
  assert_int_equal(hk_engine_step_number(d->engine), 1);
  end_engine(d->engine);
  plain_stop(&d->a);
  hk_plan_free(&d->plan);
  free(d->good.bytes);
}

static void assert_refused(const damage *d, const char *name, const char *says) {
  hk_error err = {0};
  hk_adamw group;
  assert_int_equal(hk_engine_load(d->engine, name, NULL, NULL, &err), HK_INPUT);
  if (strstr(err.message, says) == NULL) fail_msg("'%s' lacks '%s'", err.message, says);
  assert_non_null(strstr(err.message, name));
  assert_int_equal(hk_engine_step_number(d->engine), 2);
  must(hk_engine_get_group(d->engine, 0, &group, &err), &err);
  assert_memory_equal(&group, &d->a.groups[0].hyper, sizeof group);
}

static void every_length_is_refused(void **unused) {
  (void)unused;
  damage d = begin_damage(HK_FORMAT_FP32);
  for (size_t n = 0; n < d.good.n; n++) {
    write_file(path, d.good.bytes, n);
    assert_refused(&d, path, "cut off");
    if (n % 50 == 0) assert_unchanged(&d);
  }
  char *longer = must_have(d.good.n + 1, 1);
  memcpy(longer, d.good.bytes, d.good.n);
  write_file(path, longer, d.good.n + 1);
  assert_refused(&d, path, "appended");
  free(longer);
  end_damage(&d);
}

static void every_bit_counts_in(hk_format format) {
  damage d = begin_damage(format);
  for (size_t i = 0; i < d.good.n; i++) {
    const char byte = d.good.bytes[i];
    d.good.bytes[i] = (char)(byte ^ 1 << (i % 8));
    write_file(path, d.good.bytes, d.good.n);
    assert_refused(&d, path, "");
    if (i % 50 == 0) assert_unchanged(&d);
    d.good.bytes[i] = byte;
  }
  end_damage(&d);
}

static void every_bit_counts(void **unused) {
  (void)unused;
  every_bit_counts_in(HK_FORMAT_FP32);
  every_bit_counts_in(HK_FORMAT_BF16_SPLIT);
}

/* Intact files of another version, kind, size or grouping. */
static void other_files_are_refused(void **unused) {
  (void)unused;
  damage d = begin_damage(HK_FORMAT_FP32);
  hk_error err = {0};
  d.good.bytes[8] = (char)(d.good.bytes[8] + 1); /* the version comes after the magic number */
  write_file(path, d.good.bytes, d.good.n);
  assert_refused(&d, path, ""); /* version 4, whose header is longer */
  d.good.bytes[8] = (char)(d.good.bytes[8] + 1);
  write_file(path, d.good.bytes, d.good.n);
  assert_refused(&d, path, "checkpoint version 5, this hocket reads versions 1 to 4");
  d.good.bytes[8] = (char)(d.good.bytes[8] - 2);
  static const char plan_file[] = "{\"schema\": \"hocket.plan/1\", \"and\": \"no checkpoint\"}";
  write_file(path, plan_file, sizeof plan_file - 1);
  assert_refused(&d, path, "not a checkpoint");

  random_stream r = {601};
  hk_plan plan = random_engine_plan(&r);
  plain_adamw larger = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  hk_engine *engine = new_engine(&plan, &larger, &unpinned);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  end_engine(engine);
  assert_refused(&d, path, "parameters, the engine has");

  plain_adamw other = d.a; /* as many parameters, of other groups */
  const size_t last = d.a.n_groups - 1;
  assert_true(other.groups[last].numel > 2 &&
              last + 1 < sizeof other.groups / sizeof *other.groups);
  other.groups[last + 1] = other.groups[last];
  other.groups[last].numel -= 2;
  other.groups[last + 1].numel = 2;
  other.n_groups = d.a.n_groups + 1;
  engine = new_engine(&d.plan, &other, &unpinned);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  assert_refused(&d, path, "parameter groups, the engine has");
  /* As many groups, cut elsewhere. */
  write_file(path, d.good.bytes, d.good.n);
  end_engine(engine);
  other.n_groups = 2;
  other.groups[0].numel = other.n - (other.groups[1].numel = 2);
  engine = new_engine(&d.plan, &other, &unpinned);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  end_engine(engine);
  other.groups[0].numel = other.n - (other.groups[1].numel = 3);
  engine = new_engine(&d.plan, &other, &unpinned);
  assert_int_equal(hk_engine_load(engine, path, NULL, NULL, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "parameter group 0 has"));
  end_engine(engine);
  plain_stop(&larger);
  hk_plan_free(&plan);
  end_damage(&d);
}

static void unreadable_files_are_refused(void **unused) {
  (void)unused;
  damage d = begin_damage(HK_FORMAT_FP32);
  assert_refused(&d, "no/such/file", "No such file");
  assert_refused(&d, folder, "irectory");
  if (geteuid() != 0) { /* permissions do not apply to root */
    assert_int_equal(chmod(path, 0), 0);
    assert_refused(&d, path, "Permission denied");
    assert_int_equal(chmod(path, 0600), 0);
  }
  end_damage(&d);
}

typedef struct {
  bool done;
  long at;
} sabotage;

/* Flips a bit of the file after all of it has been verified (the first half of the progress). */
static void change_after_verification(void *arg, hk_bytes done, hk_bytes all) {
  sabotage *s = arg;
  if (s->done || done < all / 2) return;
  s->done = true;
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, s->at, SEEK_SET), 0);
  const int byte = fgetc(file);
  assert_int_equal(fseek(file, s->at, SEEK_SET), 0);
  fputc(byte ^ 1, file);
  assert_int_equal(fclose(file), 0);
}

/* Verification cannot exclude a file that changes while it is loaded. The engine then reports that
 * its state is lost. */
static void a_file_that_changes_meanwhile_is_noticed(void **unused) {
  (void)unused;
  random_stream r = {610};
  hk_error err = {0};
  hk_plan plan = random_engine_plan(&r);
  plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  hk_engine *engine = engine_like(&plan, &a, &unpinned);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  step_both(engine, &a, &r);
  sabotage s = {.at = 10 * (long)a.n}; /* in v: p and m will have been applied */
  assert_int_equal(hk_engine_load(engine, path, change_after_verification, &s, &err),
                   HK_ENVIRONMENT);
  assert_true(s.done);
  assert_non_null(strstr(err.message, "the engine's state is lost"));
  assert_int_equal(hk_engine_subgroup_step(engine, 0), -1);
  assert_int_equal(hk_engine_save(engine, path, NULL, NULL, &err), HK_ENVIRONMENT);
  hk_step_report report;
  assert_int_equal(take_step(engine, &a, 1, &report, &err), HK_ENVIRONMENT);
  end_engine(engine);
  plain_stop(&a);
  hk_plan_free(&plan);
}
int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(state_moves_to_another_plan),
      cmocka_unit_test(state_moves_to_another_format),
      cmocka_unit_test(old_values_do_not_coarsen_codes),
      cmocka_unit_test(negative_variances_are_refused),
      cmocka_unit_test(files_without_tensors_are_loaded),
      cmocka_unit_test(every_length_is_refused),
      cmocka_unit_test(every_bit_counts),
      cmocka_unit_test(other_files_are_refused),
      cmocka_unit_test(unreadable_files_are_refused),
      cmocka_unit_test(a_file_that_changes_meanwhile_is_noticed),
  };
  return cmocka_run_group_tests(tests, enter, leave);
}
