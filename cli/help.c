/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The help texts, from the tables by which the program parses its arguments. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/print/screen.h"
#include "sim/policy.h"

static void print_commands(const char *group) {
  size_t length = group ? strlen(group) : 0;
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  for (size_t i = 0; i < n; i++) {
    const char *name = commands[i]->name;
    if (group && (strncmp(name, group, length) != 0 || name[length] != ' ')) continue;
    printf("  %-17s %s\n", name, commands[i]->summary);
  }
}

const char hk_help_purpose[] =
    "Plans, simulates and runs optimizer offloading for the training of large\n"
    "language models: which parameters are updated on the CPU or the GPU, in which\n"
    "order, how long an iteration takes, and whether it fits in memory.";

const char hk_help_exit_status[] =
    "0 success; 1 the answer is no (does not fit, validation failed);\n"
    "2 wrong usage or input; 3 the environment (no GPU, no memory, disk full).";

void hk_help_program(void) {
  printf("Usage: hocket COMMAND [OPTIONS]\n\n%s\n\nCommands:\n", hk_help_purpose);
  print_commands(NULL);
  printf(
      "\n"
      "  hocket help COMMAND   arguments, options and output of a command\n"
      "  hocket help --man     the manual page; 'help --completion bash|zsh|fish'\n"
      "  hocket --version      the version\n"
      "\n"
      "Example:\n"
      "  hocket plan --model llama-2-7b --machine polaris-a100-4x40gb\n"
      "\n"
      "Exit status: %s\n",
      hk_help_exit_status);
}

void hk_help_group(const char *group) {
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  printf("Usage: hocket %s ACTION [OPTIONS]\n\nActions:\n", group);
  print_commands(group);
  printf("\nExample:\n");
  for (size_t i = 0; i < n; i++)
    if (strncmp(commands[i]->name, group, strlen(group)) == 0)
      printf("  %s\n", commands[i]->example);
}

static void print_option(const hk_option *option, const char *help) {
  char left[128], letter[8] = "";
  if (option->letter) snprintf(letter, sizeof letter, "-%c, ", option->letter);
  snprintf(left, sizeof left, "%s--%s%s%s", letter, option->name, option->value ? " " : "",
           option->value ? option->value : "");
  if (strlen(left) > 31) {
    printf("  %s\n", left);
    hk_print_text(34, 0, "%s", help);
  } else {
    hk_print_text(2, 32, "%-31s %s", left, help);
  }
}

static void print_policies(void) {
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  printf("\nPolicies:\n");
  for (size_t i = 0; i < n; i++) {
    unsigned takes = policies[i]->takes;
    hk_print_text(2, 14, "%-13s %s%s%s%s%s%s", policies[i]->name, policies[i]->summary,
                  takes ? " (takes" : "", takes & HK_TAKES_STRIDE ? " --stride" : "",
                  takes & HK_TAKES_RATIO ? " --ratio" : "",
                  takes & HK_TAKES_BUFFERS ? " --buffers" : "", takes ? ")" : "");
  }
}

void hk_help_command(const hk_command *command) {
  printf("Usage: hocket %s %s\n\n%s.\n%s\n\nOptions:\n", command->name, command->usage,
         command->summary, command->details);
  for (int id = 0; id < HK_OPT_COUNT; id++) {
    const char *help = hk_command_help(command, (hk_option_id)id);
    if (help) print_option(hk_option_info((hk_option_id)id), help);
  }
  if (command->lists_policies) print_policies();
  printf("\nExample:\n  %s\n", command->example);
}
