#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# docs/timeline.svg, which README.md shows, equals what scripts/draw_timeline draws from this
# program's simulations, byte for byte.
# Usage: test_golden_timeline.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
drawn=$tests/../docs/timeline.svg

"$tests/../scripts/draw_timeline" "$hocket" >drawn.svg || fail "draw_timeline: exit $?"
cmp drawn.svg "$drawn" || {
  diff "$drawn" drawn.svg | cut -c1-200 | head -20
  fail "docs/timeline.svg is not what this program simulates: run scripts/draw_timeline >docs/timeline.svg"
}
python3 - drawn.svg <<'E2' || fail "docs/timeline.svg is not well-formed, or lacks what README.md says it shows"
import sys
import xml.etree.ElementTree

text = "\n".join(t for t in xml.etree.ElementTree.parse(sys.argv[1]).getroot().itertext())
for words in ("zero-offload", "GPU", "CPU", "copies in", "copies out", "forward", "backward", "update"):
    assert words in text, words
E2
# README.md's text alternative names two times, which the picture must show.
while IFS= read -r time; do
  grep -q ": $time<" drawn.svg || fail "README.md says $time of docs/timeline.svg, which does not"
  times=$((${times:-0} + 1))
done < <(grep -oE '<img alt="[^"]*"' "$tests/../README.md" | grep -oE '[0-9]+ ms')
[[ ${times:-0} -eq 2 ]] || fail "README.md's text for docs/timeline.svg has ${times:-0} times, not 2"
finish "timeline"
