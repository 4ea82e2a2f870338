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

extern const hk_command hk_command_plan, hk_command_estimate, hk_command_simulate, hk_command_run,
    hk_command_calibrate, hk_command_fit, hk_command_validate_runs, hk_command_validate_engine,
    hk_command_validate_ranking, hk_command_validate_again, hk_command_validate_training,
    hk_command_model_list, hk_command_model_show, hk_command_machine_list, hk_command_machine_show,
    hk_command_machine_export, hk_command_machine_import, hk_command_machine_new,
    hk_command_machine_parts, hk_command_machine_diff, hk_command_machine_delete,
    hk_command_trace_list, hk_command_trace_show, hk_command_trace_export, hk_command_trace_diff,
    hk_command_trace_delete, hk_command_trace_import;

/* All subcommands, in the order of --help. */
const hk_command *const *hk_command_list(size_t *n);

/* What the program is for; what its exit status means. Several lines each. */
extern const char hk_help_purpose[], hk_help_exit_status[];

/* The man page, and completion for a shell (bash, zsh, fish), to stdout. Another shell or NULL:
 * HK_INPUT. */
void hk_help_man(void);
hk_status hk_help_completion(const char *shell, hk_error *err);

/* Help texts, to stdout. `group`: first word of two-word commands ("model"). */
void hk_help_program(void);
void hk_help_group(const char *group);
void hk_help_command(const hk_command *command);

#endif
