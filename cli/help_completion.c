/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Completion for bash, zsh and fish, from the tables that --help prints:
 * `hocket help --completion bash`. Names of models and machines come from `hocket model list` and
 * `hocket machine list` when the user presses the key. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "core/base/names.h"
#include "sim/policy.h"

/* What completes the value of an option, or an operand. */
typedef enum { FREE, WORDS, POLICIES, MODELS, MACHINES, FOLDERS, FILES } completes;

static completes completes_option(int id, const hk_option *option) {
  if (option->kind == HK_CHOICE) return WORDS;
  switch (id) {
    case HK_OPT_POLICY:
      return POLICIES;
    case HK_OPT_MODEL:
      return MODELS;
    case HK_OPT_MACHINE:
      return MACHINES;
    case HK_OPT_DISK:
      return FOLDERS;
    default:
      return option->value && strcmp(option->value, "FILE") == 0 ? FILES : FREE;
  }
}

static bool has_option(const hk_command *command, int id) {
  return id == HK_OPT_HELP || (command->options >> id & 1);
}

static const char *help_of(const hk_command *command, int id) {
  return id == HK_OPT_OUTPUT ? command->output : hk_option_info((hk_option_id)id)->help;
}

/* Length of the command's first word; *second: the second word, or NULL. */
static int first_word(const hk_command *command, const char **second) {
  const char *space = strchr(command->name, ' ');
  *second = space ? space + 1 : NULL;
  return space ? (int)(space - command->name) : (int)strlen(command->name);
}

/* Whether an earlier command has the same first word. */
static bool is_repeated(size_t at) {
  size_t n = 0;
  const char *second;
  const hk_command *const *commands = hk_command_list(&n);
  const int length = first_word(commands[at], &second);
  return at > 0 && strncmp(commands[at - 1]->name, commands[at]->name, (size_t)length + 1) == 0;
}

/* "yes|no" with spaces instead of bars. */
static void put_words(const char *words) {
  for (; *words != '\0'; words++) putchar(*words == '|' ? ' ' : *words);
}

static void put_policy_names(void) {
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  for (size_t i = 0; i < n; i++) printf("%s%s", i > 0 ? " " : "", policies[i]->name);
}

static void put_first_words(void) {
  size_t n = 0;
  const char *second;
  const hk_command *const *commands = hk_command_list(&n);
  for (size_t i = 0; i < n; i++)
    if (!is_repeated(i)) printf("%.*s ", first_word(commands[i], &second), commands[i]->name);
  fputs("help", stdout);
}

/* What completes the operand of a command: names of models, of machines, or files. */
static completes completes_operand(const hk_command *command) {
  if (strcmp(command->name, "model show") == 0) return MODELS;
  return strncmp(command->name, "machine ", 8) == 0 ? MACHINES : FILES;
}

/* -- bash -------------------------------------------------------------------------------------- */

static const char bash_begin[] =
    "# bash completion of hocket; made by 'hocket help --completion bash'\n"
    "_hocket_names() { # model|machine: the names of presets and stored profiles\n"
    "  \"${COMP_WORDS[0]}\" \"$1\" list --wide 2>/dev/null | awk 'NR > 1 && NF > 1 { print $1 }'\n"
    "}\n"
    "_hocket_reply() { # WORDS [files]: those of the words, and files, that begin as typed\n"
    "  mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$current\"; [[ -z ${2-} ]] ||\n"
    "    compgen -f -- \"$current\")\n"
    "}\n"
    "_hocket() {\n"
    "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "  local first=${COMP_WORDS[1]-} second=${COMP_WORDS[2]-} words='' names=''\n"
    "  COMPREPLY=()\n";

static void bash_values(void) {
  puts("  case $previous in\n    --completion) words='bash zsh fish' ;;");
  for (int id = 0; id < HK_OPT_COUNT; id++) {
    const hk_option *option = hk_option_info((hk_option_id)id);
    if (!option->value) continue;
    const completes what = completes_option(id, option);
    if (what == FILES || what == FOLDERS) continue;
    printf("    --%s) ", option->name);
    if (what == WORDS || what == POLICIES) {
      printf("words='");
      if (what == WORDS)
        put_words(option->value);
      else
        put_policy_names();
      printf("' ;;\n");
    } else if (what == MODELS || what == MACHINES) {
      printf("names=%s ;;\n", what == MODELS ? "model" : "machine");
    } else {
      puts("return ;;");
    }
  }
  puts(
      "  esac\n"
      "  if [[ $names ]]; then\n"
      "    _hocket_reply \"$(_hocket_names \"$names\")\" files\n"
      "    return\n"
      "  elif [[ $words ]]; then\n"
      "    _hocket_reply \"$words\"\n"
      "    return\n"
      "  fi");
}

static void bash_actions(void) {
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  const char *second;
  puts("    case $first in");
  for (size_t i = 0; i < n; i++) {
    const int length = first_word(commands[i], &second);
    if (!second) continue;
    if (!is_repeated(i)) printf("      %.*s) words='", length, commands[i]->name);
    const bool ends = i + 1 == n || !is_repeated(i + 1);
    printf("%s%s", second, ends ? "' ;;\n" : " ");
  }
  fputs("      help) words='--man --completion ", stdout);
  put_first_words();
  puts("' ;;\n    esac");
}

static void bash_options(void) {
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  const char *second;
  puts("  case \"$first $second\" in");
  for (size_t i = 0; i < n; i++) {
    const int length = first_word(commands[i], &second);
    const completes operand = completes_operand(commands[i]);
    printf("    \"%.*s %s\"%s) words='", length, commands[i]->name, second ? second : "",
           second ? "" : "*");
    for (int id = 0; id < HK_OPT_COUNT; id++)
      if (has_option(commands[i], id)) printf("--%s ", hk_option_info((hk_option_id)id)->name);
    printf("'%s ;;\n", operand == MODELS     ? " names=model"
                       : operand == MACHINES ? " names=machine"
                                             : "");
  }
  puts("  esac");
}

static void put_bash(void) {
  fputs(bash_begin, stdout);
  bash_values();
  fputs("  if ((COMP_CWORD == 1)); then\n    words='", stdout);
  put_first_words();
  puts("'\n  elif ((COMP_CWORD == 2)) && [[ $first == help || $current != -* ]]; then");
  bash_actions();
  puts(
      "  fi\n"
      "  if [[ $words ]]; then\n"
      "    _hocket_reply \"$words\"\n"
      "    return\n"
      "  fi");
  bash_options();
  puts(
      "  if [[ $current == -* ]]; then\n"
      "    _hocket_reply \"$words\"\n"
      "  elif [[ $names ]]; then\n"
      "    _hocket_reply \"$(_hocket_names \"$names\")\" files\n"
      "  else\n"
      "    _hocket_reply '' files\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _hocket hocket");
}

/* -- zsh --------------------------------------------------------------------------------------- */

/* Text inside '...' and, for _arguments, inside [...]. */
static void zsh_text(const char *text) {
  for (; *text != '\0'; text++) {
    if (*text == '\'')
      fputs("'\\''", stdout);
    else if (strchr("[]:\\", *text))
      printf("\\%c", *text);
    else
      putchar(*text);
  }
}

static void zsh_action(completes what, const hk_option *option) {
  switch (what) {
    case WORDS:
      putchar('(');
      put_words(option->value);
      putchar(')');
      return;
    case POLICIES:
      putchar('(');
      put_policy_names();
      putchar(')');
      return;
    case MODELS:
      fputs("{_hocket_names model; _files}", stdout);
      return;
    case MACHINES:
      fputs("{_hocket_names machine; _files}", stdout);
      return;
    case FOLDERS:
      fputs("_files -/", stdout);
      return;
    case FILES:
      fputs("_files", stdout);
      return;
    case FREE:
      putchar(' ');
      return;
  }
}

static void zsh_command(const hk_command *command) {
  printf("    '%s')\n      _arguments \\\n", command->name);
  for (int id = 0; id < HK_OPT_COUNT; id++) {
    if (!has_option(command, id)) continue;
    const hk_option *option = hk_option_info((hk_option_id)id);
    const bool repeats = id == HK_OPT_MACHINE;
    printf("        '%s--%s[", repeats ? "*" : "", option->name);
    zsh_text(help_of(command, id));
    putchar(']');
    if (option->value) {
      putchar(':');
      zsh_text(option->value);
      putchar(':');
      zsh_action(completes_option(id, option), option);
    }
    printf("' \\\n");
  }
  printf("        '*:file:");
  zsh_action(completes_operand(command), NULL);
  puts("' ;;");
}

static void zsh_describe(const char *group, bool *any) {
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  for (size_t i = 0; i < n; i++) {
    const char *second;
    const int length = first_word(commands[i], &second);
    if (group && (!second || strncmp(commands[i]->name, group, (size_t)length) != 0 ||
                  group[length] != '\0'))
      continue;
    if (!group && is_repeated(i)) continue;
    printf("%s'", *any ? " " : "");
    *any = true;
    if (group)
      fputs(second, stdout);
    else
      printf("%.*s", length, commands[i]->name);
    putchar(':');
    zsh_text(!group && second ? "actions" : commands[i]->summary);
    putchar('\'');
  }
}

static void zsh_groups(void) {
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  for (size_t i = 0; i < n; i++) {
    const char *second;
    char group[24];
    bool any = false;
    const int length = first_word(commands[i], &second);
    if (!second || is_repeated(i)) continue;
    snprintf(group, sizeof group, "%.*s", length, commands[i]->name);
    printf("      %s) words=(", group);
    zsh_describe(group, &any);
    puts(") ;;");
  }
}

static void put_zsh(void) {
  bool any = false;
  puts(
      "#compdef hocket\n"
      "# zsh completion of hocket; made by 'hocket help --completion zsh'\n"
      "_hocket_names() { # model|machine: the names of presets and stored profiles\n"
      "  compadd -- ${(f)\"$(hocket $1 list --wide 2>/dev/null | awk 'NR > 1 && NF > 1 { print $1 "
      "}')\"}\n"
      "}\n"
      "_hocket() {\n"
      "  local -a words_of\n"
      "  local name=${words[2]}\n"
      "  if ((CURRENT == 2)); then");
  fputs("    words_of=(", stdout);
  zsh_describe(NULL, &any);
  puts(
      " 'help:arguments, options and output of a command')\n"
      "    _describe command words_of\n"
      "    return\n"
      "  fi\n"
      "  if ((CURRENT == 3)); then\n"
      "    local -a words_of=()\n"
      "    _hocket_actions $name && { _describe action words_of; return }\n"
      "  fi\n"
      "  local at=2\n"
      "  _hocket_actions $name && { name=\"$name ${words[3]}\"; at=3 }\n"
      "  shift $((at - 1)) words\n"
      "  ((CURRENT -= at - 1))\n"
      "  case $name in");
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  for (size_t i = 0; i < n; i++) zsh_command(commands[i]);
  puts(
      "  esac\n"
      "}\n"
      "_hocket_actions() { # sets words_of to the actions of a command; fails if it has none\n"
      "  local -a words=()\n"
      "  case $1 in");
  zsh_groups();
  puts(
      "      *) return 1 ;;\n"
      "  esac\n"
      "  words_of=($words)\n"
      "}\n"
      "if [[ ${funcstack[1]} == _hocket ]]; then _hocket \"$@\"; else compdef _hocket hocket; fi");
}

/* -- fish -------------------------------------------------------------------------------------- */

static void fish_text(const char *text) {
  putchar('\'');
  for (; *text != '\0'; text++) {
    if (*text == '\'' || *text == '\\') putchar('\\');
    putchar(*text);
  }
  putchar('\'');
}

static void fish_option(const hk_command *command, int id) {
  const hk_option *option = hk_option_info((hk_option_id)id);
  printf("complete -c hocket -n '__hocket_is %s' -l %s", command->name, option->name);
  if (option->letter) printf(" -s %c", option->letter);
  printf(" -d ");
  fish_text(help_of(command, id));
  if (!option->value) {
    putchar('\n');
    return;
  }
  switch (completes_option(id, option)) {
    case WORDS:
      printf(" -x -a '");
      put_words(option->value);
      puts("'");
      return;
    case POLICIES:
      printf(" -x -a '");
      put_policy_names();
      puts("'");
      return;
    case MODELS:
      puts(" -r -a '(__hocket_names model)'");
      return;
    case MACHINES:
      puts(" -r -a '(__hocket_names machine)'");
      return;
    case FOLDERS:
    case FILES:
      puts(" -r -F");
      return;
    case FREE:
      puts(" -x");
      return;
  }
}

static void fish_command(const hk_command *command, bool repeated) {
  const char *second;
  const int length = first_word(command, &second);
  if (!repeated) {
    printf("complete -c hocket -f -n __fish_use_subcommand -a %.*s -d ", length, command->name);
    fish_text(second ? "actions" : command->summary);
    putchar('\n');
  }
  if (second) {
    printf("complete -c hocket -f -n '__hocket_is_group %.*s' -a %s -d ", length, command->name,
           second);
    fish_text(command->summary);
    putchar('\n');
  }
  const completes operand = completes_operand(command);
  if (command->most_operands > 0 && operand != FILES)
    printf("complete -c hocket -n '__hocket_is %s' -a '(__hocket_names %s)'\n", command->name,
           operand == MODELS ? "model" : "machine");
  for (int id = 0; id < HK_OPT_COUNT; id++)
    if (has_option(command, id)) fish_option(command, id);
}

static void put_fish(void) {
  size_t n = 0;
  const hk_command *const *commands = hk_command_list(&n);
  puts(
      "# fish completion of hocket; made by 'hocket help --completion fish'\n"
      "function __hocket_names # model|machine: the names of presets and stored profiles\n"
      "  hocket $argv[1] list --wide 2>/dev/null | awk 'NR > 1 && NF > 1 { print $1 }'\n"
      "end\n"
      "function __hocket_is # whether the command line begins with these words\n"
      "  set -l typed (commandline -opc)\n"
      "  set -l last (math (count $argv) + 1)\n"
      "  test (count $typed) -ge $last; and test \"$typed[2..$last]\" = \"$argv\"\n"
      "end\n"
      "function __hocket_is_group # whether it is this word and no more\n"
      "  set -l typed (commandline -opc)\n"
      "  test (count $typed) -eq 2; and test \"$typed[2]\" = \"$argv[1]\"\n"
      "end\n"
      "complete -c hocket -f -n __fish_use_subcommand -a help -d 'arguments, options and output of "
      "a command'");
  for (size_t i = 0; i < n; i++) fish_command(commands[i], is_repeated(i));
}

hk_status hk_help_completion(const char *shell, hk_error *err) {
  static const char *const names[] = {"bash", "zsh", "fish"};
  static void (*const put[])(void) = {put_bash, put_zsh, put_fish};
  for (size_t i = 0; shell && i < sizeof names / sizeof *names; i++) {
    if (strcmp(shell, names[i]) != 0) continue;
    put[i]();
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "help --completion: expected bash, zsh or fish, got %s%s%s",
                 shell ? "'" : "", shell ? shell : "nothing", shell ? "'" : "");
}
