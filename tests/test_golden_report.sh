#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# `hocket report`: what it refuses, and the data that it writes into a page. A few lines stand for the
# plotting library, which test_golden_report_browser.sh uses. Usage: test_golden_report.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
mkdir -p share/report
for part in models machines parts; do ln -s "$HOCKET_SHARE/$part" share; done
cp "$HOCKET_SHARE/report/"{page.html,plots.js,documents.js} share/report
export HOCKET_SHARE=$folder/share

ok plan --model llama-2-7b --machine h200-16c --json --explain --quiet -o plan.json
mv out ranking.json
ok simulate plan.json --keep --quiet
ok simulate --model llama-2-7b --machine h200-16c --policy streamed --subgroup 2M --quiet -o fine.json

# -- What is missing, what is no input --------------------------------------------------------------

expect 3 "plotly.min.js: .*scripts/plotly gets it" report plan.json -o page.html
echo "const Plotly = 'a library';" >share/report/plotly.min.js
expect 2 "-o FILE is needed" report plan.json
expect 2 "too few arguments" report -o page.html
expect 2 "'plan.json' is an input and would be replaced" report plan.json -o plan.json
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
ok report "a <b>.json" plan.json 1 fine.json -o page.html
prints '^page.html: open it'
ok report plan.json -o -
grep -q "^<!DOCTYPE html>" out || fail "'-o -' does not print the page"
python3 - page.html ranking.json <<'END' || fail "page.html does not have the data"
import json
import math
import re
import sys

page, ranking = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
assert "const Plotly = 'a library';" in page
text = re.search(r'type="application/json">(.*?)</script>', page, re.S)[1]
assert "<" not in text, "markup in the data"
data = json.loads(text)
assert data["schema"] == "hocket.page/1" and len(data["inputs"]) == 4
first, plan, stored, fine = data["inputs"]
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
# A long curve is of means: it carries the bytes of the lane.
(long,) = fine["timelines"]
h2d = next(c for c in long["counters"] if c["name"] == "h2d")
assert len(h2d["value"]) == 1500, len(h2d["value"])
moved = sum(h2d["value"]) * long["makespan_ms"] / 1500 / 1e3
lanes = fine["document"]["lanes"]
assert math.isclose(moved, lanes["h2d"]["bytes"], rel_tol=1e-4), (moved, lanes["h2d"])
assert stored["timelines"][0]["label"] == timeline["label"] and stored["timelines"][0]["begin_ms"] == timeline["begin_ms"]
END

# -- A sweep: the best compromises first; what validations and recordings print, as it is -----------

cat >spec.json <<'END'
{"model": ["llama-2-7b", "a</script>.json"], "machine": ["h200-16c=4/h", "gh200-96gb=2/h"],
 "policy": ["streamed", "zero-offload", "gpu-only"], "micro-batch": [1, 64]}
END
tiny_model
mkdir 'a<' && cp tiny.json 'a</script>.json'
"$hocket" sweep spec.json --csv rows.csv --quiet >out 2>err || fail "sweep: $(cat err)"
cp "$tests/data/rankings/node-27.json" ranking-27.json
"$hocket" validate runs "$tests/data/published-runs.csv" --json >runs.json 2>err || fail "runs: $(cat err)"
echo '{"schema": "hocket.spans/1", "plan": {}, "spans": [{"step": 4}, {"step": 5}, {"step": 6}, {"step": 5}]}' >spans.json
ok report spec.db ranking-27.json runs.json spans.json -o page.html
python3 - page.html rows.csv <<'END' || fail "page.html does not have the sweep"
import csv
import json
import math
import re
import sys

page_data = re.search(r'type="application/json">(.*?)</script>', open(sys.argv[1]).read(), re.S)[1]
sweep, *others = (i["document"] for i in json.loads(page_data)["inputs"])
rows = list(csv.DictReader(open(sys.argv[2])))
fit = [r for r in rows if r["fits"] == "1"]
assert 0 < len(fit) < len(rows) == sweep["rows"] == sweep["points"] == 24 and sweep["fit"] == len(fit)
assert sweep["axes"] == ["machine", "model", "policy", "micro-batch"] and sweep["priced"] is True
assert sorted(sweep["columns"]["id"]) == [int(r["id"]) for r in fit]
of = {int(r["id"]): r for r in fit}
for name, values in sweep["columns"].items():
    for row, value in zip(sweep["columns"]["id"], values):
        text = of[row].get(name, str(row))
        same = text == ("" if value is None else str(value)) or math.isclose(float(text), value, rel_tol=1e-12)
        assert same, (name, row, value, text)
best = [m or c for m, c in zip(sweep["columns"]["pareto_memory"], sweep["columns"]["pareto_money"])]
assert best == sorted(best, reverse=True) and 0 < sum(best) < len(best), best
cost = sweep["columns"]["cost_per_mtok"][:sum(best)]
assert cost == sorted(cost) and cost[0] == min(sweep["columns"]["cost_per_mtok"])
recording = json.loads(page_data)["inputs"][3]
assert recording["steps"] == 3 and [s["step"] for s in recording["document"]["spans"]] == [5, 6, 5]
assert [d["schema"][7:] for d in others] == ["ranking/1", "run_comparison/1", "spans/1"]
END
echo '{"schema": "hocket.spans/1", "plan": {}, "spans": [{}]}' >spans.json
expect 2 "spans.json: a span without a step" report spans.json -o page.html
# Of too many operations there are the curves alone; how many is shared by all inputs.
if [[ -n ${HOCKET_TEST_FULL:-} ]]; then # three seconds
  ok report fine.json fine.json fine.json fine.json fine.json fine.json fine.json fine.json fine.json fine.json -o page.html
  grep -q '"begin_ms":\[' page.html && fail "60,000 operations on a page"
  tr , '\n' <page.html | grep -c '"name":"h2d"' | grep -qx 10 || fail "a page without curves"
fi
expect 2 "tiny.db: " report tiny.db -o page.html
head -c 4096 spec.db >broken.db
expect 3 "broken.db. is damaged" report broken.db -o page.html
finish "report"
