/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Values parsed from command lines. test_golden_cli_help.sh tests refused command lines and their
 * messages with the whole program. */
#include "cli/args.c"

#include <setjmp.h>
#include <stdarg.h>
/* cmocka wants the above first */
#include <cmocka.h>

#include "core/graph/plan.h"

#define EVERYTHING ((hk_option_set)-1)

/* Parses a line of words separated by single spaces; `line` outlives the result. */
static hk_status parse(char *line, hk_option_set accepted, hk_args *args, hk_error *err) {
  static char *argv[32];
  int argc = 0;
  for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
  argv[argc] = NULL;
  return hk_args_parse(argc, argv, accepted, args, err);
}

typedef struct {
  const char *text;
  int64_t value; /* 0: refused */
} count;

/* Gives one option each of the texts. */
static void expect_counts(hk_option_id id, const count *rows, size_t n) {
  const hk_option *option = hk_option_info(id);
  for (size_t i = 0; i < n; i++) {
    char line[64];
    hk_args args;
    snprintf(line, sizeof line, "plan --%s %s", option->name, rows[i].text);
    const hk_status status = parse(line, EVERYTHING, &args, NULL);
    if (status != (rows[i].value > 0 ? HK_OK : HK_INPUT)) fail_msg("%s", rows[i].text);
    const int64_t *value = (const void *)((const char *)&args + option->offset);
    if (status == HK_OK) assert_int_equal(*value, rows[i].value);
  }
}

#define EXPECT_COUNTS(id, rows) expect_counts(id, rows, sizeof(rows) / sizeof(rows)[0])

static void defaults(void **state) {
  (void)state;
  char line[] = "plan";
  hk_args args;
  assert_int_equal(parse(line, EVERYTHING, &args, NULL), HK_OK);
  assert_int_equal(args.given, 0);
  assert_null(args.model);
  assert_int_equal(args.gpus, 0);
  assert_int_equal(args.nodes * args.tp * args.micro_batch * args.grad_accum, 1);
  assert_int_equal(args.subgroup, 100000000);
  assert_true(args.ratio < 0);
  assert_int_equal(args.checkpoint, 0);
  assert_int_equal(args.runtime, HK_RUNTIME_HOCKET);
  assert_int_equal(args.n_operands, 0);
}

static void values(void **state) {
  (void)state;
  char line[] =
      "plan --ratio 0 --stride=auto --subgroup 3G --runtime deepspeed --flush sync "
      "--checkpoint-activations no --json -o out.json --gpus 64 --seq 16777216";
  hk_args args;
  assert_int_equal(parse(line, EVERYTHING, &args, NULL), HK_OK);
  assert_true(args.ratio == 0);
  assert_int_equal(args.stride, HK_STRIDE_AUTO);
  assert_int_equal(args.subgroup, 3000000000);
  assert_int_equal(args.runtime, HK_RUNTIME_DEEPSPEED);
  assert_int_equal(args.flush, HK_FLUSH_SYNC);
  assert_int_equal(args.checkpoint, 1);
  assert_true(args.json);
  assert_false(args.quiet);
  assert_string_equal(args.output, "out.json");
  assert_int_equal(args.gpus, 64);
  assert_int_equal(args.seq, 1 << 24);
  assert_int_equal(args.given, HK_OPTION(RATIO) | HK_OPTION(STRIDE) | HK_OPTION(SUBGROUP) |
                                   HK_OPTION(RUNTIME) | HK_OPTION(FLUSH) | HK_OPTION(CHECKPOINT) |
                                   HK_OPTION(JSON) | HK_OPTION(OUTPUT) | HK_OPTION(GPUS) |
                                   HK_OPTION(SEQ));
}

static void largest_counts_are_exact(void **state) {
  (void)state;
  static const count rows[] = {
      {"1", 1},        {"12k", 12000},        {"999999999999", 999999999999},
      {"7M", 7000000}, {"8.14G", 8140000000}, {"1000G", 1000000000000}};
  EXPECT_COUNTS(HK_OPT_SUBGROUP, rows);
}

static void sizes_are_rounded_to_bytes(void **state) {
  (void)state;
  static const count rows[] = {
      {"9.5G", 9500000000}, {"8.14GB", 8140000000},     {"8.8GiB", 9448928051}, /* 9448928051.2 */
      {"0.7kB", 700},       {"9500000000", 9500000000}, {"700.5", 0},           {"700.5B", 0},
      {"8.8Gb", 0}};
  EXPECT_COUNTS(HK_OPT_GPU_MEMORY, rows);
}

static void amounts(void **state) {
  (void)state;
  static const count rows[] = {{"7G", 7000000000},
                               {"7B", 7000000000},
                               {"6.7G", 6700000000},
                               {"0.125G", 125000000},
                               {"8.14G", 8140000000},
                               {"16.1G", 16100000000},
                               {"300000", 300000},
                               {"300000.5", 0},
                               {"1.0000001M", 0},
                               {"7T", 0},
                               {"7e9", 0},
                               {"-7G", 0},
                               {".", 0},
                               {"1.2.3G", 0},
                               {"7GB", 0},
                               {"1k", 0},
                               {"nan", 0}};
  EXPECT_COUNTS(HK_OPT_PARAMS, rows);
}

static void values_out_of_range(void **state) {
  (void)state;
  static const char *const rows[] = {
      "--subgroup 0", "--subgroup 1001G", "--subgroup 12T", "--gpus 0",       "--gpus 65",
      "--ratio 1.01", "--ratio -0.01",    "--ratio nan",    "--ratio 0x1p-1", "--seq 0"};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char line[64], name[16];
    hk_args args;
    hk_error err = {0};
    snprintf(line, sizeof line, "plan %s", rows[i]);
    snprintf(name, sizeof name, "'%.*s'", (int)strcspn(rows[i], " "), rows[i]);
    if (parse(line, EVERYTHING, &args, &err) != HK_INPUT) fail_msg("%s is taken", rows[i]);
    assert_non_null(strstr(err.message, name));
  }
}

static void last_one_wins(void **state) {
  (void)state;
  char line[] = "plan --tp 2 --tp 4 --flush sync --flush async";
  hk_args args;
  assert_int_equal(parse(line, EVERYTHING, &args, NULL), HK_OK);
  assert_int_equal(args.tp, 4);
  assert_int_equal(args.flush, HK_FLUSH_ASYNC);
}

static void a_second_text_is_refused(void **state) {
  (void)state;
  char line[] = "plan --policy mapped --policy streamed";
  char machines[] = "plan --machine a --machine b --set x=1 --set y=2";
  hk_args args;
  hk_error err = {0};
  assert_int_equal(parse(line, EVERYTHING, &args, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "'--policy' is given more than once"));
  assert_int_equal(parse(machines, EVERYTHING, &args, NULL), HK_OK);
  assert_int_equal(args.n_machines, 2);
}

static void operands_stand_anywhere(void **state) {
  (void)state;
  char line[] = "simulate plan.json --json -- --not-an-option";
  hk_args args;
  assert_int_equal(parse(line, HK_OPTION(JSON), &args, NULL), HK_OK);
  assert_int_equal(args.n_operands, 2);
  assert_string_equal(args.operands[0], "plan.json");
  assert_string_equal(args.operands[1], "--not-an-option");
}

static void help_ends_reading(void **state) {
  (void)state;
  char line[] = "plan -h --no-such-option";
  hk_args args;
  assert_int_equal(parse(line, 0, &args, NULL), HK_OK);
  assert_true(args.help);
}

static void only_accepted_options_are_taken(void **state) {
  (void)state;
  char with[] = "show --json", without[] = "show --json", letter[] = "show -o x";
  hk_args args;
  hk_error err = {0};
  assert_int_equal(parse(with, HK_OPTION(JSON), &args, &err), HK_OK);
  assert_int_equal(parse(without, HK_OPTION(TENSORS), &args, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "--json"));
  assert_int_equal(parse(letter, HK_OPTION(JSON), &args, &err), HK_INPUT);
}

static void printed_arguments_parse_to_the_same(void **state) {
  (void)state;
  char line[] =
      "calibrate --quick --backend host --memory 256M --target 0.5 --json --seed 0 --name "
      "/a_b/c.d";
  const hk_option_set which = HK_OPTION(QUICK) | HK_OPTION(BACKEND) | HK_OPTION(MEMORY) |
                              HK_OPTION(TARGET) | HK_OPTION(SEED) | HK_OPTION(NAME) |
                              HK_OPTION(GPUS);
  hk_args args, again;
  assert_int_equal(parse(line, EVERYTHING, &args, NULL), HK_OK);
  char text[200] = "calibrate", short_text[12];
  hk_args_again(&args, which, text + strlen(text), sizeof text - strlen(text));
  assert_string_equal(text,
                      "calibrate --backend host --seed 0 --name /a_b/c.d --quick --target 0.5 "
                      "--memory 256000000");
  assert_int_equal(parse(text, EVERYTHING, &again, NULL), HK_OK);
  assert_int_equal(again.given, args.given & which);
  assert_int_equal(again.backend, 1);
  assert_int_equal(again.memory, 256000000);
  assert_true(again.target == 0.5);
  assert_string_equal(hk_args_again(&args, 0, short_text, sizeof short_text), "");
  assert_string_equal(hk_args_again(&args, which, short_text, sizeof short_text), " --backend ");
}

static void printed_arguments_are_quoted_for_a_shell(void **state) {
  (void)state;
  const hk_args args = {
      .given = HK_OPTION(NAME) | HK_OPTION(STRIDE), .name = "my machine", .stride = HK_STRIDE_AUTO};
  char text[64];
  assert_string_equal(hk_args_again(&args, EVERYTHING, text, sizeof text),
                      " --stride auto --name 'my machine'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults),
      cmocka_unit_test(values),
      cmocka_unit_test(largest_counts_are_exact),
      cmocka_unit_test(sizes_are_rounded_to_bytes),
      cmocka_unit_test(amounts),
      cmocka_unit_test(values_out_of_range),
      cmocka_unit_test(last_one_wins),
      cmocka_unit_test(a_second_text_is_refused),
      cmocka_unit_test(operands_stand_anywhere),
      cmocka_unit_test(help_ends_reading),
      cmocka_unit_test(only_accepted_options_are_taken),
      cmocka_unit_test(printed_arguments_parse_to_the_same),
      cmocka_unit_test(printed_arguments_are_quoted_for_a_shell),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
