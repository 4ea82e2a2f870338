#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# scripts/mutate on a project of one line: each verdict, its exit status, that it changes only
# build/, and that it does not repeat earlier verdicts.
# Usage: test_unit_mutate.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
command -v git >/dev/null || exit 77

# -- A project -------------------------------------------------------------------------------------

mkdir -p toy/scripts toy/tests/mutations
cp "$tests/../scripts/mutate" "$tests/../scripts/lib.sh" toy/scripts/
cd toy || exit 1
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git init -q .
echo build/ >.gitignore
echo 'int answer(void) { return 42; }' >answer.c
echo 'int answer(void); int main(void) { return answer() != 42; }' >tests/test_right.c
echo 'int main(void) { return 0; }' >tests/test_blind.c
echo 'int main(void) { return 1; }' >tests/test_red.c
echo 'int main(void) { return 77; }' >tests/test_absent.c
cat >tests/test_long.c <<'END'
#include <stdlib.h>
int answer(void);
int main(void) { return getenv("HOCKET_TEST_FULL") && answer() != 42; }
END
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.22)
project(toy C)
enable_testing()
foreach(name test_right test_blind test_red test_absent test_long)
  add_executable(${name} tests/${name}.c answer.c)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
END

# mutation NAME TESTS BEFORE AFTER: of answer.c.
mutation() {
  cat >"tests/mutations/$1.patch" <<END
Test: $2
Breaks: the answer ($1)

--- a/answer.c
+++ b/answer.c
@@ -1 +1 @@
-int answer(void) { return $3; }
+int answer(void) { return $4; }
END
}

mutation caught test_right 42 43
mutation survives "test_right test_blind" 42 44
mutation stale test_right 41 42
mutation broken test_right 42 forty-two
mutation red test_red 42 43
mutation unknown test_nowhere 42 43
mutation absent test_absent 42 43
unset HOCKET_TEST_FULL

# mutate CODE ARGUMENTS...: stdout to out, stderr to err, both beside the project.
mutate() {
  local code=$1 status=0
  shift
  timeout "$limit" scripts/mutate "$@" >../out 2>../err || status=$?
  [ "$status" -eq "$code" ] || fail "mutate $*: exit $status, expected $code: $(cat ../err)"
}

# shows NAME RESULT
shows() { grep -qE "^$1 +$2 +[0-9]+ " ../out || fail "$1 is not '$2' in: $(cat ../out)"; }

# -- Verdicts --------------------------------------------------------------------------------------

before=$(git status --porcelain && cat answer.c)
mutate 1
shows caught caught
shows survives SURVIVED
shows stale STALE
shows broken 'NO BUILD'
shows red 'NO TEST'
shows unknown 'NO TEST'
shows absent skipped
grep -q '^1 of 7 mutations caught, 1 skipped, 5 not' ../out || fail "no sum in: $(cat ../out)"
[ "$before" = "$(git status --porcelain && cat answer.c)" ] || fail "the tree was changed"

mutate 0 caught absent
mutate 1 survives
mutate 1 --quiet
! grep -q '^caught' ../out || fail "--quiet: printed what is caught"
shows survives SURVIVED
mutate 0 --quiet tests/mutations/caught.patch
[ "$(wc -l <../out)" -eq 1 ] || fail "--quiet: printed more than the sum: $(cat ../out)"
mutate 0 --list
grep -qE '^stale +the answer \(stale\)$' ../out || fail "--list: $(cat ../out)"
mutate 0 --help
grep -q 'Example:' ../out || fail "--help has no example"
mutate 2 nothing
grep -q 'no such mutation: nothing' ../err || fail "unknown name: $(cat ../err)"
mutate 2 --no-such-option

# -- Long forms of tests ---------------------------------------------------------------------------

mutation deep test_long 42 43
mutate 1 deep
shows deep SURVIVED
HOCKET_TEST_FULL=1 mutate 0 deep caught absent
shows deep caught
grep -q '^== deep, long$' build/mutate/mutate.log || fail "deep: its long form did not run"
HOCKET_TEST_FULL=1 mutate 0 --fresh caught
! grep -q '^== caught, long$' build/mutate/mutate.log || fail "caught: its long form ran"
rm tests/mutations/deep.patch

# -- Remembered verdicts ---------------------------------------------------------------------------

judged() { grep -c '^== caught, short$' build/mutate/mutate.log; }
mutate 0 caught
[ "$(judged)" -eq 0 ] || fail "an unchanged mutation was tested again"
mutate 0 --fresh caught
[ "$(judged)" -eq 1 ] || fail "--fresh: not judged again"
echo '/* changed, and not committed */' >>answer.c
mutation caught test_right 42 45
mutate 1 caught # the patch applies to a file of one line only
shows caught STALE
echo 'int answer(void) { return 42; }' >answer.c
# An interrupted run leaves its copy patched.
echo 'int answer(void) { return 45; }' >build/mutate/tree/answer.c
touch build/mutate/tree/gone.c
mutate 0 --fresh caught
[ ! -e build/mutate/tree/gone.c ] || fail "a file that the tree does not have stays in the copy"

finish "mutate"
