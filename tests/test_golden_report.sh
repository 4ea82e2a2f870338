#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# `hocket report`: what it refuses, and the data that it writes into a page. A few lines stand for the
# plotting library, which test_golden_report_browser.sh uses. Usage: test_golden_report.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
mkdir -p share/report
for part in models machines parts; do ln -s "$HOCKET_SHARE/$part" share; done
cp "$HOCKET_SHARE/report/page.html" share/report
export HOCKET_SHARE=$folder/share

ok plan --model llama-2-7b --machine h200-16c --json --explain --quiet -o plan.json
mv out ranking.json
ok simulate plan.json --keep --quiet

# -- What is missing, what is no input --------------------------------------------------------------

expect 3 "plotly.min.js: .*scripts/plotly gets it" report plan.json -o page.html
echo "const Plotly = 'a library';" >share/report/plotly.min.js
expect 2 "-o FILE is needed" report plan.json
expect 2 "too few arguments" report -o page.html
expect 2 "none.json: .*No such file" report none.json -o page.html
echo '{"schema": "hocket.machine/1"}' >machine.json
expect 2 "machine.json: a document 'hocket.machine/1' has no page; expected a plan" \
  report plan.json machine.json -o page.html
echo '{"hidden_size": 64}' >config.json
expect 2 "config.json: key 'schema'" report config.json -o page.html
sed 's|hocket.plan/1|hocket.plan/9|' plan.json >later.json
expect 2 "later.json: .*hocket.plan/9" report later.json -o page.html
expect 2 "7" report 7 -o page.html
expect 2 "no-folder/page.html" report plan.json -o no-folder/page.html
sed 's|/\* DATA \*/||' "$tests/../share/report/page.html" >share/report/page.html
expect 3 "page.html: not this version's template" report plan.json -o page.html
[ ! -e page.html ] || fail "a failure left page.html"
cp "$tests/../share/report/page.html" share/report

# -- The data of a page -----------------------------------------------------------------------------

cp ranking.json "$folder/a <b>.json"
ok report "a <b>.json" plan.json 1 -o page.html
prints '^page.html: open it'
ok report plan.json -o -
grep -q "^<!DOCTYPE html>" out || fail "'-o -' does not print the page"
python3 - page.html ranking.json <<'END' || fail "page.html does not have the data"
import json
import re
import sys

page, ranking = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
assert "const Plotly = 'a library';" in page
text = re.search(r'type="application/json">(.*?)</script>', page, re.S)[1]
assert "<" not in text, "markup in the data"
data = json.loads(text)
assert data["schema"] == "hocket.page/1" and len(data["inputs"]) == 3
first, plan, stored = data["inputs"]
assert first["name"] == "a <b>.json" and first["document"] == ranking
assert first["document"]["explain"]["node.gpus"]["origin"]
forecast, (timeline,) = plan["document"], plan["timelines"]
assert forecast["iteration_ms"] == ranking["schedules"][0]["iteration_ms"]
assert timeline["makespan_ms"] == forecast["iteration_ms"]
columns = [timeline[key] for key in ("lane", "kind", "label", "begin_ms", "length_ms")]
assert len({len(c) for c in columns}) == 1 and len(columns[0]) > 100
# No lane runs two operations at a time, and each lane's time is that which simulate reports.
for number, lane in enumerate(timeline["lanes"]):
    spans = sorted((b, l) for a, b, l in zip(timeline["lane"], timeline["begin_ms"], timeline["length_ms"]) if a == number)
    assert all(b + l <= c + 1e-6 for (b, l), (c, _) in zip(spans, spans[1:])), lane
    assert abs(sum(l for _, l in spans) - forecast["lanes"][lane]["busy_ms"]) < 1e-3, lane
memory = next(c for c in timeline["counters"] if c["name"] == "gpu memory")
assert max(memory["value"]) == forecast["gpu_memory"]["peak_bytes"]
assert stored["timelines"][0]["label"] == timeline["label"] and stored["timelines"][0]["begin_ms"] == timeline["begin_ms"]
END
finish "report"
