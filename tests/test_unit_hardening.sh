#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The program and the library have the hardening of CMakeLists.txt: relocations read-only and bound
# at start, a position-independent program, stack canaries, and, in optimized builds without
# sanitizers, the C library's checks of lengths. Usage: test_unit_hardening.sh HOCKET
set -euo pipefail

library=$(dirname "$1")/libhocket.so
command -v readelf >/dev/null || { echo "skipped: no readelf" && exit 77; }
cache=$(dirname "$1")/CMakeCache.txt

failed=0
# expect FILE WHAT PATTERN COMMAND...: a line of `COMMAND... FILE` matches PATTERN.
expect() {
  local file=$1 what=$2 pattern=$3 output
  shift 3
  output=$("$@" "$file")
  if ! grep -Eq "$pattern" <<<"$output"; then
    echo "$file: $what is missing"
    failed=1
  fi
}

# Only flags that exist on every processor architecture.
for file in "$1" "$library"; do
  expect "$file" "-z relro" GNU_RELRO readelf -lW
  expect "$file" "-z now" 'BIND_NOW|Flags:.* NOW' readelf -dW
  expect "$file" "-fstack-protector-strong" __stack_chk_fail readelf --dyn-syms -W
  if grep -q '^HOCKET_SANITIZE:[A-Z]*=$' "$cache" && grep -Eq '^CMAKE_BUILD_TYPE:[A-Z]*=Rel' "$cache"; then
    expect "$file" "_FORTIFY_SOURCE" '__[a-z]+_chk(@| |$)' readelf --dyn-syms -W # not __stack_chk_fail
  fi
done
expect "$1" "a position-independent program" 'DYN' readelf -hW
exit $failed
