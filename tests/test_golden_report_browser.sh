#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Pages of `hocket report` in headless Chromium: no script fails, everything is drawn, nothing is
# requested. Skipped without Chromium or without the plotting library (scripts/plotly).
# Usage: test_golden_report_browser.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
for browser in chromium-headless-shell chromium google-chrome ''; do
  command -v "$browser" >/dev/null && break
done
[ -n "$browser" ] || { echo "no Chromium (Debian: chromium-headless-shell): skipped" && exit 77; }
[ -e "$HOCKET_SHARE/report/plotly.min.js" ] || { echo "no plotly.js (scripts/plotly): skipped" && exit 77; }

# drawn NAME: loads NAME.html, and leaves its elements in NAME.dom.
drawn() {
  [ "$(stat -c %s "$1.html")" -lt 10000000 ] || fail "$1.html: 10 MB or more"
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$folder/profile" \
    --virtual-time-budget=20000 --log-net-log="$folder/net.json" --dump-dom "file://$folder/$1.html" \
    >"$1.dom" 2>err || fail "$1.html: $browser: exit $?"
  grep -q '<body data-state="drawn"' "$1.dom" ||
    fail "$1.html: $(grep -o '<body[^>]*>' "$1.dom"), $(tail -n 3 err)"
}

# has NAME N PATTERN: at least N times in the elements.
has() {
  [ "$(grep -oE -- "$3" "$1.dom" | wc -l)" -ge "$2" ] || fail "$1.html: fewer than $2 of /$3/"
}

ok plan --model llama-2-70b --machine hgx-h200-8x141gb --json --explain --quiet -o plan.json
cp out 'a <b>bold.json'
ok simulate plan.json --keep --quiet
ok report 'a <b>bold.json' plan.json 1 -o plan.html
drawn plan
has plan 1 'id="timelines"'
has plan 100 '<g class="point"><path'
has plan 3 '<g class="legend'
has plan 70 '<tr'
has plan 1 'Time against memory: a &lt;b&gt;bold.json'
has plan 1 'Where each quantity comes from'
python3 - net.json <<'END' || fail "plan.html makes a request"
import json
import sys

log = json.load(open(sys.argv[1]))
urls = {e["params"]["url"] for e in log["events"] if "url" in e.get("params", {})}
bad = [u for u in urls if not u.startswith(("file:", "data:", "blob:", "about:", "chrome"))]
assert not bad, bad
END

# A page whose script fails is noticed.
sed 's/"hocket.plan_ranking\/1": {/"hocket.other\/1": {/' plan.html >broken.html
( drawn broken ) >noticed
grep -q 'data-state="failed' noticed || fail "a page that fails is not noticed"
finish "report in a browser"
