#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The commands of docs/questions.md print the answers that the page promises, and questions.py finds
# each kind of wrong promise.
# Usage: test_golden_questions.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
page=$tests/../docs/questions.md

python3 "$tests/questions.py" "$hocket" "$page" >out 2>err || { fail "$(cat out err)"; exit 1; }
prints '^[4-9][0-9] questions, [0-9]+ of them skipped, 0 failures$'

# On a page of two questions each changed promise is found.
sed -n '1,/^### 3/p' "$page" | sed '$d' >two.md
python3 "$tests/questions.py" "$hocket" two.md >out 2>err || fail "two questions: $(cat out err)"
for change in 's/needs 1051.4 GiB/needs 1051.5 GiB/' 's/with and without/& it. Exit status 1./' \
  's/^### 2\./### 3./' 's/^Prints `param/Writes `param/' 's/llama-3-70b$/llama-3-71b/'; do
  sed "$change" two.md >changed.md
  cmp -s two.md changed.md && fail "'$change' changes nothing"
  python3 "$tests/questions.py" "$hocket" changed.md >out 2>err && fail "'$change' is not found"
  grep -q "^FAIL: " out || fail "'$change': $(cat out err)"
done
finish "questions"
