#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# docs/reference/header.py, which makes the reference of the C library: each declaration of
# engine/hocket.h has a comment and an entry, and a declaration without a comment is an error that
# names its line. (Warnings of Sphinx fail scripts/docs, a step of scripts/test --full.)
# Usage: test_unit_reference.sh HOCKET
set -u
root=$(realpath "$(dirname "$0")/..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}

convert() { python3 "$root/docs/reference/header.py" "$1" "$folder/page.rst" >"$folder/said" 2>&1; }

header=$root/engine/hocket.h
convert "$header" || fail "engine/hocket.h: $(cat "$folder/said")"
for name in $(grep -oE '^HOCKET_API [^(]*' "$header" | grep -oE '[a-z_]+$') \
  $(grep -oE '^} hocket_[a-z_]+' "$header" | cut -c3-) $(grep -oE '\bHOCKET_(OVERLAP|CLIP)_[A-Z]+\b' "$header" | sort -u); do
  grep -qE "^(\.\.|  +).*\b$name\b" "$folder/page.rst" || fail "$name has no entry"
done

# wants TEXT LINE: the header TEXT is refused, and line LINE is named.
wants() {
  printf '%b' "/* SPDX */\n/* About the header. */\n$1" >"$folder/bad.h"
  convert "$folder/bad.h" && fail "accepts: $1"
  grep -q "bad.h:$2: .* has no comment" "$folder/said" || fail "$1: says $(cat "$folder/said")"
}
wants 'int hocket_undocumented(void);\n' 3
wants '/* Of the first. */\nint hocket_first(void);\n\nint hocket_undocumented(void);\n' 6
wants 'typedef struct {\n  int32_t a; /* the first */\n  int32_t b;\n} hocket_pair;\n' 3
wants '#define HOCKET_SEVEN 7\n' 3
wants 'enum { HOCKET_RED, HOCKET_BLUE };\n' 3

((failures == 0)) && echo "every declaration has an entry"
exit $((failures > 0))
