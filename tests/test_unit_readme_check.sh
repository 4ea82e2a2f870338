#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# test_golden_readme.sh finds each kind of error in a page.
# Usage: test_unit_readme_check.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"

# A page of these lines, after a correct example.
page() {
  printf '%s\n' '```console' '$ hocket model list' '...' '```' "$@" >page.md
}

# finds PATTERN LINE...: the page has exactly one failure, which matches PATTERN.
finds() {
  local pattern=$1
  shift
  page "$@"
  bash "$tests/test_golden_readme.sh" "$hocket" page.md >out 2>&1 && fail "nothing wrong with: $*"
  prints "^FAIL: .*page.md: $pattern"
  prints ', 1 failures$'
}

page '[here](page.md), [there](https://example.org/x), [a section](#x)' '```sh' \
  'hocket plan --model x --machine y -o z # as always' '```'
bash "$tests/test_golden_readme.sh" "$hocket" page.md >out 2>&1 || fail "a correct page: $(cat out)"
prints '^1 examples, 1 other commands, 1 links, 0 failures$'

finds 'shows a line that is not printed' '```console' '$ hocket model show gpt2' 'gpt2: a cat' '```'
finds '.*no such model|.*gpt9' '```console' '$ hocket model show gpt9' '```'
finds 'not an example of hocket' '```console' '$ ls' '```'
finds '--speed is not in the help' '```sh' 'hocket plan --model x --speed 3' '```'
finds '--alone is not in the help' '```sh' 'hocket trace list --alone' '```'
finds 'no such command' '```sh' 'hocket dance' '```'
finds 'links to missing.md' '[gone](missing.md#part)'
finds 'links to missing.svg' '<img alt="x" src="missing.svg">'
printf 'no example\n' >page.md
bash "$tests/test_golden_readme.sh" "$hocket" page.md >out 2>&1 && fail "a page without examples"
prints 'no page has an example'
finish "the check of README.md"
