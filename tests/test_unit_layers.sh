#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Calls between this tree's files go one way, and check_layers.py finds those that do not.
# Usage: test_unit_layers.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
build=$(dirname "$hocket")
for tool in python3 nm "${CC:-cc}"; do
  command -v "$tool" >/dev/null || { echo "no $tool: skipped" && exit 77; }
done

check() {
  python3 "$tests/check_layers.py" "$@" >out 2>err
}

check "$tests/.." "$build" || fail "this tree: $(cat out err)"
prints '^[0-9]+ files use [0-9]+ others$'

# source_file FILE DEFINES [USES]...: a file of the small tree, and its object file.
source_file() {
  local object=built/CMakeFiles/part.dir/$1.o use
  mkdir -p "tree/$(dirname "$1")" "$(dirname "$object")"
  {
    echo "int $2(void);"
    for use in "${@:3}"; do echo "int $use(void);"; done
    echo "int $2(void) { return 0"
    for use in "${@:3}"; do echo "+ $use()"; done
    echo ';}'
  } >"tree/$1"
  "${CC:-cc}" -c "tree/$1" -o "$object" || fail "cc: tree/$1"
}

# finds PATTERN: the small tree has this violation.
finds() {
  check tree built && fail "found nothing, expected /$1/"
  prints "$1"
  small_tree
}

# A tree without violations; each case below adds one, which check_layers.py must find.
small_tree() {
  rm -rf tree built
  source_file engine/device/chunks.c low
  source_file engine/device/team.c high low
  source_file engine/run/step.c top high low elsewhere
}

small_tree
check tree built || fail "a tree without violations: $(cat out err)"
prints '^3 files use 3 others$'

source_file engine/device/chunks.c low top
finds 'engine/device/chunks.c uses top of engine/run/step.c: engine/device is below that'
source_file engine/device/chunks.c low high
finds '^FAIL: 2 files call each other in a circle:'
source_file engine/device/chunks.c low third
source_file engine/device/arena.c third high
finds '^FAIL: 3 files call each other in a circle:'
source_file engine/device/chunks.c low third
source_file engine/device/arena.c third high
rm tree/engine/device/arena.c # moved away; its object file is still there
check tree built || fail "an object file without its source file: $(cat out err)"
rm -r built/CMakeFiles
finds 'no object files'
finish "layers"
