/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Completion for bash, zsh and fish: `hocket help --completion SHELL` prints a script that asks
 * `hocket help --complete WORDS...` each time the user presses the key. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "sim/policy.h"

/* -- Answers ----------------------------------------------------------------------------------- */

/* Prints the first `length` characters of a word if it begins as typed. */
static void offer(const char *typed, const char *word, size_t length, const char *about) {
  const size_t n = strlen(typed);
  if (n <= length && strncmp(word, typed, n) == 0) printf("%.*s\t%s\n", (int)length, word, about);
}

/* "yes|no". */
static void offer_choices(const char *typed, const char *choices) {
  for (size_t n; *choices != '\0'; choices += n + (choices[n] == '|')) {
    n = strcspn(choices, "|");
    offer(typed, choices, n, "");
  }
}

static void offer_policies(const char *typed) {
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  for (size_t i = 0; i < n; i++)
    offer(typed, policies[i]->name, strlen(policies[i]->name), policies[i]->summary);
}

static size_t offer_words(const char *typed, const char *group) {
  hk_command_word words[HK_MOST_WORDS];
  const size_t n = hk_command_words(group, words);
  for (size_t i = 0; i < n; i++) offer(typed, words[i].text, strlen(words[i].text), words[i].about);
  return n;
}

static void offer_options(const char *typed, const hk_command *command) {
  for (int id = 0; id < HK_OPT_COUNT; id++) {
    char option[40];
    snprintf(option, sizeof option, "--%s", hk_option_info((hk_option_id)id)->name);
    const char *help = hk_command_help(command, (hk_option_id)id);
    if (help) offer(typed, option, strlen(option), help);
  }
}

/* If `word` is an option that takes a value: what the value may be. */
static bool offer_values(const char *typed, const char *word) {
  int id = 0;
  for (; id < HK_OPT_COUNT; id++) {
    const hk_option *option = hk_option_info((hk_option_id)id);
    const bool letter = word[0] == '-' && option->letter && word[1] == option->letter && !word[2];
    if (letter || (strncmp(word, "--", 2) == 0 && strcmp(word + 2, option->name) == 0)) break;
  }
  const hk_option *option = id < HK_OPT_COUNT ? hk_option_info((hk_option_id)id) : NULL;
  if (!option || !option->value) return false;
  if (option->kind == HK_CHOICE)
    offer_choices(typed, option->value);
  else if (id == HK_OPT_POLICY)
    offer_policies(typed);
  else if (id == HK_OPT_MODEL)
    puts(":model\n:files");
  else if (id == HK_OPT_MACHINE)
    puts(":machine\n:files");
  else if (strcmp(option->value, "FILE") == 0)
    puts(":files");
  return true;
}

static void offer_operand(const hk_command *command) {
  if (command->most_operands == 0) return;
  if (strcmp(command->name, "model show") == 0) puts(":model");
  if (strncmp(command->name, "machine ", 8) == 0) puts(":machine");
  puts(":files");
}

void hk_help_complete(int n, char **words) {
  if (n == 0) return;
  const char *typed = words[n - 1];
  const bool help = n > 1 && strcmp(words[0], "help") == 0;
  if (help) words++, n--;
  if (n == 1) {
    offer_words(typed, NULL);
    offer_choices(typed, help ? "--man|--completion" : "help");
    return;
  }
  if (help && strcmp(words[0], "--completion") == 0) offer_choices(typed, "bash|zsh|fish");
  int of_name = 0;
  const hk_command *command = hk_command_find(n - 1, words, &of_name);
  if (!command && n == 2) offer_words(typed, words[0]);
  if (!command || help) return;
  if (n - 1 > of_name && offer_values(typed, words[n - 2])) return;
  if (*typed == '-')
    offer_options(typed, command);
  else
    offer_operand(command);
}

/* -- Scripts ----------------------------------------------------------------------------------- */

/* $1 of the names: model or machine. */
#define NAMES " list --wide 2>/dev/null | awk 'NR > 1 && NF > 1 { print $1 }'"

static const char bash[] =
    "# bash completion of hocket; made by 'hocket help --completion bash'\n"
    "_hocket() {\n"
    "  local line current=${COMP_WORDS[COMP_CWORD]} words=()\n"
    "  COMPREPLY=()\n"
    "  while IFS=$'\\t' read -r line _; do\n"
    "    words=()\n"
    "    case $line in\n"
    "      :files) mapfile -t words < <(compgen -f -- \"$current\") ;;\n"
    "      :*) mapfile -t words < <(compgen -W \"$(\"${COMP_WORDS[0]}\" \"${line#:}\"" NAMES
    ")\" -- \"$current\") ;;\n"
    "      *) words=(\"$line\") ;;\n"
    "    esac\n"
    "    COMPREPLY+=(\"${words[@]}\")\n"
    "  done < <(\"${COMP_WORDS[0]}\" help --complete \"${COMP_WORDS[@]:1:COMP_CWORD}\" "
    "2>/dev/null)\n"
    "}\n"
    "complete -o filenames -F _hocket hocket\n";

static const char zsh[] =
    "#compdef hocket\n"
    "# zsh completion of hocket; made by 'hocket help --completion zsh'\n"
    "_hocket() {\n"
    "  local line tab=$'\\t'\n"
    "  local -a described\n"
    "  for line in \"${(@f)$(hocket help --complete \"${(@)words[2,CURRENT]}\" 2>/dev/null)}\"; "
    "do\n"
    "    case $line in\n"
    "      '') ;;\n"
    "      :files) _files ;;\n"
    "      :*) compadd -- ${(f)\"$(hocket ${line#:}" NAMES
    ")\"} ;;\n"
    "      *) described+=(\"${${line%%$tab*}//:/\\\\:}:${line#*$tab}\") ;;\n"
    "    esac\n"
    "  done\n"
    "  (($#described == 0)) || _describe hocket described\n"
    "}\n"
    "if [[ ${funcstack[1]} == _hocket ]]; then _hocket \"$@\"; else compdef _hocket hocket; fi\n";

static const char fish[] =
    "# fish completion of hocket; made by 'hocket help --completion fish'\n"
    "function __hocket_complete\n"
    "  set -l words (commandline -opc)\n"
    "  set -l current (commandline -ct)\n"
    "  for line in (hocket help --complete $words[2..] \"$current\" 2>/dev/null)\n"
    "    switch $line\n"
    "      case :files\n"
    "        __fish_complete_path \"$current\"\n"
    "      case ':*'\n"
    "        hocket (string sub -s 2 $line)" NAMES
    "\n"
    "      case '*'\n"
    "        echo $line\n"
    "    end\n"
    "  end\n"
    "end\n"
    "complete -c hocket -f -a '(__hocket_complete)'\n";

hk_status hk_help_completion(const char *shell, hk_error *err) {
  static const char *const names[] = {"bash", "zsh", "fish"}, *const scripts[] = {bash, zsh, fish};
  for (size_t i = 0; shell && i < sizeof names / sizeof *names; i++) {
    if (strcmp(shell, names[i]) != 0) continue;
    fputs(scripts[i], stdout);
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "help --completion: expected bash, zsh or fish, got %s%s%s",
                 shell ? "'" : "", shell ? shell : "nothing", shell ? "'" : "");
}
