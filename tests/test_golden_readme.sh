#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs what README.md, CONTRIBUTING.md, docs/ and bench/ show. In a ```console block a line
# "$ hocket ..." is run (the program may be given by any path) and must not fail. The lines under it
# must be in its output, as whole lines and in that order. "..." stands for lines left out. In a
# ```sh block the options of each line "hocket ..." must be in that command's help. Each link to a
# file must lead to one.
# Usage: test_golden_readme.sh HOCKET [PAGE]...     the pages default to those of this repository
set -u
export LC_ALL=C.UTF-8 # pages have the sign of an interval
hocket=$(realpath "$1")
root=$(realpath "$(dirname "$0")/..")
shift
if (($# == 0)); then
  shopt -s globstar
  set -- "$root"/{README,CONTRIBUTING}.md "$root"/docs/**/*.md "$root"/bench/**/*.md
fi
mapfile -t pages < <(realpath "$@")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
examples=0 commands=0 links=0 failures=0
: >printed

fail() {
  echo "FAIL: ${page#"$root"/}: $*"
  failures=$((failures + 1))
}

run() {
  local words
  read -ra words <<<"$1"
  examples=$((examples + 1))
  if [[ ${words[0]##*/} != hocket ]]; then
    fail "not an example of hocket: $1"
  elif ! "$hocket" "${words[@]:1}" >printed 2>errors; then
    fail "$1: $(cat errors)"
  fi
  sed -i 's/ *$//' printed
}

# Drops from `printed` everything up to the first line that equals $1; fails without one.
expect() {
  local at
  at=$(grep -nxFm 1 -- "$1" printed | cut -d: -f1)
  if [[ -n $at ]]; then
    sed -i "1,${at}d" printed
  else
    fail "shows a line that is not printed, or not there: $1"
  fi
}

check_options() {
  local words word
  read -ra words <<<"${1%%#*}"
  commands=$((commands + 1))
  "$hocket" "${words[1]}" --help >help 2>errors || { fail "no such command: $1" && return; }
  if grep -q '^Actions:' help; then "$hocket" "${words[1]}" "${words[2]}" --help >help 2>errors; fi
  for word in "${words[@]}"; do
    [[ $word == -* && $word != - ]] || continue
    grep -qE -- "(^|[ ,])$word([ ,]|\$)" help || fail "$word is not in the help of: $1"
  done
}

check_links() {
  local target
  while IFS= read -r target; do
    target=${target%%#*}
    [[ -n $target && $target != *://* ]] || continue
    links=$((links + 1))
    [[ -e $(dirname "$page")/$target ]] || fail "links to $target, which is not there"
  done < <(grep -oE '\]\([^) ]+\)|<img [^>]*src="[^"]+"' "$page" |
    sed -E 's/^\]\((.*)\)$/\1/; s/.*src="(.*)"$/\1/')
}

for page in "${pages[@]}"; do
  inside=no
  while IFS= read -r line; do
    case $inside:$line in
      'no:```console' | 'no:```sh') inside=${line#'```'} ;;
      'no:```'?*) inside=other ;;
      no:*) ;;
      *:'```') inside=no ;;
      'console:$ '*) run "${line#'$ '}" ;;
      console: | console:...) ;;
      console:*) expect "${line%"${line##*[! ]}"}" ;;
      'sh:hocket '*) check_options "$line" ;;
    esac
  done <"$page"
  check_links
done

if ((examples == 0)); then
  page=$root && fail "no page has an example"
fi
echo "$examples examples, $commands other commands, $links links, $failures failures"
((failures == 0))
