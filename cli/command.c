/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The table of all subcommands, and what can be looked up in it. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

static const hk_command *const commands[] = {
#define ROW(id) &hk_command_##id,
    HK_COMMANDS(ROW)
#undef ROW
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };
_Static_assert(COMMANDS <= HK_MOST_WORDS, "room for a word of each command");

const hk_command *const *hk_command_list(size_t *n) {
  *n = COMMANDS;
  return commands;
}

/* Length of the first word of `name`; *second: the second word, or NULL. */
static size_t first_word(const char *name, const char **second) {
  const char *space = strchr(name, ' ');
  *second = space ? space + 1 : NULL;
  return space ? (size_t)(space - name) : strlen(name);
}

static bool begins_with(const char *name, size_t length, const char *word) {
  return strlen(word) == length && strncmp(word, name, length) == 0;
}

const hk_command *hk_command_find(int argc, char **argv, int *words) {
  for (size_t i = 0; i < COMMANDS; i++) {
    const char *second;
    const size_t length = first_word(commands[i]->name, &second);
    if (argc < 1 || !begins_with(commands[i]->name, length, argv[0])) continue;
    if (second && (argc < 2 || strcmp(argv[1], second) != 0)) continue;
    *words = second ? 2 : 1;
    return commands[i];
  }
  return NULL;
}

size_t hk_command_words(const char *group, hk_command_word words[HK_MOST_WORDS]) {
  size_t n = 0;
  for (size_t i = 0; i < COMMANDS; i++) {
    const char *name = commands[i]->name, *second;
    const size_t length = first_word(name, &second);
    if (group && (!second || !begins_with(name, length, group))) continue;
    if (!group && n > 0 && begins_with(name, length, words[n - 1].text)) continue;
    snprintf(words[n].text, sizeof words[n].text, "%.*s",
             group ? (int)sizeof words[n].text - 1 : (int)length, group ? second : name);
    words[n++].about = !group && second ? "actions" : commands[i]->summary;
  }
  return n;
}

const char *hk_command_help(const hk_command *command, hk_option_id id) {
  if (id != HK_OPT_HELP && !(command->options >> id & 1)) return NULL;
  return id == HK_OPT_OUTPUT ? command->output : hk_option_info(id)->help;
}
