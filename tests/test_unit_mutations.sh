#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Every patch of tests/mutations applies to this tree and names a test. scripts/mutate, which finds
# stale ones, too, runs with --full only.
# Usage: test_unit_mutations.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
command -v git >/dev/null || { echo "no git: skipped" && exit 77; }

# stale PATCH: the patch does not apply.
stale() {
  ! git -C "$tests/.." apply --check "$(realpath "$1")" 2>/dev/null
}

n=0
for patch in "$tests"/mutations/*.patch; do
  ! stale "$patch" || fail "$(basename "$patch") is stale: make it anew"
  grep -q '^Test: test_' "$patch" || fail "$(basename "$patch") names no test"
  n=$((n + 1))
done
((n > 80)) || fail "only $n mutations"

sed 's/^-    /-    something else /' "$tests/mutations/engine-cgroup-caches.patch" >changed.patch
stale changed.patch || fail "a patch whose text is not in the tree applies"
finish "$n mutations"
