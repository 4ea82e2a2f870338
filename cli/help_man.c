/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The man page, from the tables that --help prints: `hocket help --man`. Macros of man(7). */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "sim/policy.h"

/* Prints text in which no character is one of roff's requests or escapes. Newlines are kept; a line
 * that begins with a dot or an apostrophe gets a character without width before it. Long lists of
 * values may break after '|'. */
static void put(const char *text) {
  bool begins = true;
  for (; *text != '\0'; text++) {
    if (begins && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
    begins = *text == '\n';
    if (*text == '\\')
      fputs("\\e", stdout);
    else if (*text == '-')
      fputs("\\-", stdout);
    else if (*text == '\'')
      fputs("\\(aq", stdout);
    else if (*text == '`')
      fputs("\\(ga", stdout);
    else if (*text == '^')
      fputs("\\(ha", stdout);
    else if (*text == '~')
      fputs("\\(ti", stdout);
    else if (*text == '|')
      fputs("|\\:", stdout);
    else
      putchar(*text);
  }
}

/* Lines as they are, indented. */
static void put_literal(const char *text) {
  puts(".PP\n.RS 4\n.nf");
  put(text);
  puts("\n.fi\n.RE");
}

static void put_option(const hk_option *option, const char *help) {
  printf(".TP\n");
  if (option->letter) printf("\\fB\\-%c\\fR, ", option->letter);
  printf("\\fB\\-\\-");
  put(option->name);
  printf("\\fR");
  if (option->value) {
    printf(" \\fI");
    put(option->value);
    printf("\\fR");
  }
  putchar('\n');
  put(help);
  putchar('\n');
}

static void put_command(const hk_command *command) {
  char usage[600], example[400];
  snprintf(usage, sizeof usage, "hocket %s %s", command->name, command->usage);
  snprintf(example, sizeof example, "%s", command->example);
  printf(".SS hocket ");
  put(command->name);
  putchar('\n');
  put(command->summary);
  puts(".");
  put_literal(usage);
  puts(".PP");
  put(command->details);
  putchar('\n');
  for (int id = 0; id < HK_OPT_COUNT; id++) {
    const char *help = hk_command_help(command, (hk_option_id)id);
    if (help) put_option(hk_option_info((hk_option_id)id), help);
  }
  puts(".PP\nExample:");
  put_literal(example);
}

static void put_policies(void) {
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  puts(".SH POLICIES");
  for (size_t i = 0; i < n; i++) {
    printf(".TP\n\\fB");
    put(policies[i]->name);
    printf("\\fR\n");
    put(policies[i]->summary);
    putchar('\n');
  }
}

static void put_environment(void) {
  static const char *const variables[][2] = {
      {"HOCKET_STORE",
       "the store of profiles, calibrations and timelines (default: "
       "~/.local/share/hocket/store.db)"},
      {"HOCKET_SHARE", "the folder of presets, with models and machines in it"},
      {"OMP_NUM_THREADS", "number of threads; results do not depend on it"}};
  puts(".SH ENVIRONMENT");
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
    printf(".TP\n\\fB%s\\fR\n", variables[i][0]);
    put(variables[i][1]);
    putchar('\n');
  }
}

void hk_help_man(void) {
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  puts(".TH HOCKET 1 \"\" \"hocket " HK_VERSION
       "\" \"User Commands\"\n"
       ".SH NAME\n"
       "hocket \\- plans, simulates and runs optimizer offloading\n"
       ".SH SYNOPSIS\n"
       ".B hocket\n"
       ".I COMMAND\n"
       ".RI [ OPTIONS ]\n"
       ".SH DESCRIPTION");
  put(hk_help_purpose);
  puts("\n.SH COMMANDS");
  for (size_t i = 0; i < n; i++) put_command(commands[i]);
  put_policies();
  puts(".SH EXIT STATUS");
  put(hk_help_exit_status);
  putchar('\n');
  put_environment();
}
