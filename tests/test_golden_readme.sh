#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs what README.md shows. In its ```console blocks a line "$ hocket ..." is run (the program may
# be given by any path) and must not fail; the lines under it must be in what it prints, as whole
# lines and in that order. "..." stands for lines left out.
# Usage: test_golden_readme.sh HOCKET
set -u
hocket=$(realpath "$1")
readme=$(realpath "$(dirname "$0")/../README.md")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
examples=0 failures=0
: >printed

run() {
  local words
  read -ra words <<<"$1"
  examples=$((examples + 1))
  if [[ ${words[0]##*/} != hocket ]]; then
    echo "FAIL: README.md: not an example of hocket: $1"
    failures=$((failures + 1))
  elif ! "$hocket" "${words[@]:1}" >printed 2>errors; then
    echo "FAIL: README.md: $1: $(cat errors)"
    failures=$((failures + 1))
  fi
  sed -i 's/ *$//' printed
}

# Drops from `printed` everything to the first line that equals $1.
expect() {
  local at
  at=$(grep -nxFm 1 -- "$1" printed | cut -d: -f1)
  if [[ -n $at ]]; then
    sed -i "1,${at}d" printed
  else
    echo "FAIL: README.md shows a line that is not printed, or not there: $1"
    failures=$((failures + 1))
  fi
}

inside=no
while IFS= read -r line; do
  case $inside:$line in
    'no:```console') inside=yes ;;
    'yes:```') inside=no ;;
    'yes:$ '*) run "${line#'$ '}" ;;
    yes: | yes:...) ;;
    yes:*) expect "${line%"${line##*[! ]}"}" ;;
  esac
done <"$readme"

((examples > 0)) || { echo "FAIL: README.md has no example" && failures=1; }
echo "$examples examples, $failures failures"
((failures == 0))
