/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A subcommand: name, arguments, help text, function. */
#ifndef HK_CLI_COMMAND_H
#define HK_CLI_COMMAND_H

#include "cli/args.h"

typedef struct {
  const char *name;    /* "plan", or two words: "model show" */
  const char *summary; /* one line */
  const char *usage;   /* what follows "hocket NAME " */
  const char *details; /* lines of at most 80 columns */
  const char *example; /* whole command line */
  const char *output;  /* help of -o FILE; NULL: no -o */
  hk_option_set options;
  int least_operands, most_operands;
  bool lists_policies; /* --help ends with the list of policies */
  /* '-o -': refused, because standard output has the report; the document goes there instead of
   * the report; the same as no -o. */
  enum { HK_DASH_REFUSED, HK_DASH_INSTEAD, HK_DASH_SAME } dash;
  /* Prints the answer to stdout. main prints the message of a failure. */
  hk_status (*run)(const hk_args *args, hk_error *err);
} hk_command;

/* All subcommands, in the order of --help. */
#define HK_COMMANDS(X) \
  X(plan)              \
  X(estimate)          \
  X(simulate)          \
  X(sweep)             \
  X(report)            \
  X(run)               \
  X(calibrate)         \
  X(fit)               \
  X(validate_runs)     \
  X(validate_engine)   \
  X(validate_ranking)  \
  X(validate_again)    \
  X(validate_training) \
  X(model_list)        \
  X(model_show)        \
  X(machine_list)      \
  X(machine_show)      \
  X(machine_new)       \
  X(machine_parts)     \
  X(machine_export)    \
  X(machine_import)    \
  X(machine_diff)      \
  X(machine_delete)    \
  X(trace_list)        \
  X(trace_show)        \
  X(trace_export)      \
  X(trace_diff)        \
  X(trace_delete)      \
  X(trace_import)

#define HK_COMMAND_DECLARE(id) extern const hk_command hk_command_##id;
HK_COMMANDS(HK_COMMAND_DECLARE)
#undef HK_COMMAND_DECLARE

const hk_command *const *hk_command_list(size_t *n);
/* The command that argv[0..argc) begins with; *words: number of words of its name. NULL: none. */
const hk_command *hk_command_find(int argc, char **argv, int *words);
/* A word that may be typed, and what it stands for. */
typedef struct {
  char text[24];
  const char *about;
} hk_command_word;

#define HK_MOST_WORDS 40
/* The first words of all commands or, with `group`, the words that may follow it. Each once.
 * Returns their number; 0: no such group. */
size_t hk_command_words(const char *group, hk_command_word words[HK_MOST_WORDS]);
/* The option's help for this command; NULL: it does not take it. */
const char *hk_command_help(const hk_command *command, hk_option_id id);

/* What the program is for; what its exit status means. Several lines each. */
extern const char hk_help_purpose[], hk_help_exit_status[];

void hk_help_man(void); /* the man page, to stdout */

/* The script that completes command lines in a shell (bash, zsh, fish), to stdout. Another shell or
 * NULL: HK_INPUT. */
hk_status hk_help_completion(const char *shell, hk_error *err);
/* What the script asks for: all that completes the last of the words after "hocket", a line each,
 * "WORD<tab>DESCRIPTION". ":files": also paths; ":model" and ":machine": also names that `hocket
 * model list` and `hocket machine list` print. */
void hk_help_complete(int n, char **words);

/* Help texts, to stdout. `group`: first word of two-word commands ("model"). */
void hk_help_program(void);
void hk_help_group(const char *group);
void hk_help_command(const hk_command *command);

#endif
