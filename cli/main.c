/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket: finds the subcommand, runs it, prints the message of a failure. Only main exits. */
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/print/screen.h"
#include "core/base/names.h"
#include "core/base/outfile.h"

/* Fails with the reason why argv[0..argc) names no command. */
static hk_status fail_command(int argc, char **argv, hk_error *err) {
  hk_command_word words[HK_MOST_WORDS];
  const char *names[HK_MOST_WORDS];
  size_t n = hk_command_words(argv[0], words);
  const char *kind = n > 0 ? "action" : "command", *typed = n > 0 ? argv[argc > 1] : argv[0];
  if (n > 0 && argc < 2)
    return hk_fail(err, HK_INPUT, "'%s' needs an action; 'hocket help %s' lists them", argv[0],
                   argv[0]);
  if (n == 0) n = hk_command_words(NULL, words);
  for (size_t i = 0; i < n; i++) names[i] = words[i].text;
  const char *nearest = hk_nearest(typed, names, n);
  if (nearest)
    return hk_fail(err, HK_INPUT, "unknown %s '%s'; did you mean '%s'?", kind, typed, nearest);
  return hk_fail(err, HK_INPUT, "unknown %s '%s'; 'hocket --help' lists all commands", kind, typed);
}

static bool is_group(const char *word) {
  hk_command_word words[HK_MOST_WORDS];
  return hk_command_words(word, words) > 0;
}

static bool is_help(const char *word) {
  return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* hocket help --man | --completion SHELL */
static hk_status help_format(int argc, char **argv, hk_error *err) {
  const bool man = strcmp(argv[0], "--man") == 0;
  if (argc > (man ? 1 : 2))
    return hk_fail(err, HK_INPUT, "'help %s' takes nothing more, got '%s'", argv[0],
                   argv[man ? 1 : 2]);
  if (!man) return hk_help_completion(argc > 1 ? argv[1] : NULL, err);
  hk_help_man();
  return HK_OK;
}

/* hocket help [COMMAND] */
static hk_status help(int argc, char **argv, hk_error *err) {
  if (argc > 0 && (strcmp(argv[0], "--man") == 0 || strcmp(argv[0], "--completion") == 0))
    return help_format(argc, argv, err);
  if (argc > 0 && strcmp(argv[0], "--complete") == 0) {
    hk_help_complete(argc - 1, argv + 1);
    return HK_OK;
  }
  int words = 0;
  const hk_command *command = hk_command_find(argc, argv, &words);
  if (argc == 0)
    hk_help_program();
  else if (command && words == argc)
    hk_help_command(command);
  else if (argc == 1 && is_group(argv[0]))
    hk_help_group(argv[0]);
  else if (command)
    return hk_fail(err, HK_INPUT, "'help %s' takes nothing more, got '%s'", command->name,
                   argv[words]);
  else
    return fail_command(argc, argv, err);
  return HK_OK;
}

static hk_status check_operands(const hk_command *command, const hk_args *args, hk_error *err) {
  if (args->n_operands < command->least_operands)
    return hk_fail(err, HK_INPUT, "too few arguments; usage: hocket %s %s", command->name,
                   command->usage);
  if (args->n_operands > command->most_operands)
    return hk_fail(err, HK_INPUT, "unexpected argument '%s'; usage: hocket %s %s",
                   args->operands[command->most_operands], command->name, command->usage);
  return HK_OK;
}

static bool is_dash(const char *path) {
  return path && strcmp(path, "-") == 0;
}

/* "-" as a file name: standard output, for commands that allow it. */
static hk_status check_dash(const hk_command *command, hk_args *args, hk_error *err) {
  static const char refused[] =
      "option '--%s': '-' is standard output, which has the report%s; expected a file name ('./-' "
      "for a file called '-')";
  if (is_dash(args->timeline)) return hk_fail(err, HK_INPUT, refused, "timeline", "");
  if (is_dash(args->table)) return hk_fail(err, HK_INPUT, refused, "csv", "");
  if (is_dash(args->checkpoint_file)) return hk_fail(err, HK_INPUT, refused, "checkpoint", "");
  if (!is_dash(args->output)) return HK_OK;
  if (command->dash == HK_DASH_REFUSED)
    return hk_fail(err, HK_INPUT, refused, "output", " (--json prints all of it there)");
  if (args->json) return hk_fail(err, HK_INPUT, "'-o -' and '--json' both go to standard output");
  args->output = command->dash == HK_DASH_SAME ? NULL : HK_STDOUT;
  return HK_OK;
}

/* argv[0] is the last word of the command's name. */
static hk_status run_command(const hk_command *command, int argc, char **argv, hk_error *err) {
  hk_args args;
  HK_TRY(hk_args_parse(argc, argv, command->options, &args, err));
  if (args.help) {
    hk_help_command(command);
    return HK_OK;
  }
  HK_TRY(check_operands(command, &args, err));
  HK_TRY(check_dash(command, &args, err));
  hk_screen_wide(args.wide);
  return command->run(&args, err);
}

/* *name: set to the command's name, which messages begin with. */
static hk_status dispatch(int argc, char **argv, const char **name, hk_error *err) {
  if (argc == 0)
    return hk_fail(err, HK_INPUT, "no command given; 'hocket --help' lists all commands");
  if (is_help(argv[0])) return help(0, argv, err);
  if (strcmp(argv[0], "help") == 0) return help(argc - 1, argv + 1, err);
  if (strcmp(argv[0], "--version") == 0) {
    puts("hocket " HK_VERSION);
    return HK_OK;
  }
  if (argv[0][0] == '-')
    return hk_fail(err, HK_INPUT, "options come after the command, got '%s' first", argv[0]);
  int words = 0;
  const hk_command *command = hk_command_find(argc, argv, &words);
  if (command) {
    *name = command->name;
    return run_command(command, argc - words + 1, argv + words - 1, err);
  }
  bool wants_group = argc == 2 && is_help(argv[1]) && is_group(argv[0]);
  return wants_group ? help(1, argv, err) : fail_command(argc, argv, err);
}

/* Reports output that could not be written: a full disk shows only when the buffer is flushed. */
static hk_status close_stdout(hk_error *err) {
  errno = 0;
  bool failed = ferror(stdout) != 0;
  if (fclose(stdout) != 0) failed = true;
  if (hk_screen_failed()) return hk_fail(err, HK_ENVIRONMENT, "out of memory for a line of text");
  if (!failed) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "cannot write to standard output: %s",
                 errno ? strerror(errno) : "an earlier write failed");
}

static bool has_answer; /* main is about to return its own exit status */

/* libgomp ends the program with exit status 1 when it cannot start a thread. Here 1 is an answer
 * ("does not fit"), and the environment's failures are 3. */
static void correct_exit_status(int status, void *unused) {
  (void)unused;
  if (has_answer || status == 0) return;
  fputs(
      "hocket: a library ended the program: no thread or no memory (OMP_NUM_THREADS=1 needs no "
      "threads)\n",
      stderr);
  _exit(HK_ENVIRONMENT);
}

/* Ends the program where the CUDA driver is loaded, without the exit handlers and destructors of
 * CUDA's libraries. All files are closed by now. (Once on an H200 node `calibrate` wrote its
 * profile and then ended with SIGSEGV; a crash there would replace an answer by status 139.) */
static void skip_destructors_of_cuda(int status) {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL) _exit(status);
}

int main(int argc, char **argv) {
  setlocale(LC_CTYPE, ""); /* for widths of table cells; numbers stay in the C locale */
  hk_error err = {0}, late = {0};
  on_exit(correct_exit_status, NULL);
  hk_interrupt_remove_files();
  hk_screen_open();
  const char *name = NULL;
  hk_status status = dispatch(argc - 1, argv + 1, &name, &err);
  bool lost = close_stdout(&late) != HK_OK && status != HK_ENVIRONMENT;
  if (status != HK_OK)
    fprintf(stderr, "hocket%s%s: %s\n", name ? " " : "", name ? name : "", err.message);
  if (lost) fprintf(stderr, "hocket: %s\n", late.message);
  has_answer = true;
  const int answer = (int)(lost ? late.status : status);
  skip_destructors_of_cuda(answer);
  return answer;
}
