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

# drawn NAME [OPTION]: loads NAME.html, and leaves its elements in NAME.dom.
drawn() {
  [ "$(stat -c %s "$1.html")" -lt 10000000 ] || fail "$1.html: 10 MB or more"
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$folder/profile" \
    --virtual-time-budget=20000 --log-net-log="$folder/net.json" ${2:+"$2"} --dump-dom "file://$folder/$1.html" \
    >"$1.dom" 2>err || fail "$1.html: $browser: exit $?"
  grep -q '<body data-state="drawn"' "$1.dom" ||
    fail "$1.html: $(grep -o '<body[^>]*>' "$1.dom"), $(tail -n 3 err)"
}

# requested: the addresses outside of this folder that the page loaded last has asked for. Chromium's
# own requests, for updates and the like, have "not an origin" as their initiator.
requested() {
  python3 - net.json <<'END'
import json
import sys

log = json.load(open(sys.argv[1]))
started = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
for event in log["events"]:
    params = event.get("params", {})
    if event["type"] == started and params.get("initiator", "not an origin") != "not an origin":
        if not params["url"].startswith(("file:", "data:", "blob:", "about:", "chrome")):
            print(params["url"])
END
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
[ -z "$(requested)" ] || fail "plan.html requests $(requested)"
# Zoomed, the bars that were one are the operations again.
sed 's|</body>|<script>const wait = setInterval(() => { if (!document.body.dataset.state) return;\
clearInterval(wait); const box = document.getElementById("timelines"), all = box.data[0].x.length;\
Plotly.relayout(box, { "xaxis.range": [10, 40] }).then(() => { document.body.dataset.zoomed =\
box.data[0].customdata.every(c => !/operations, first/.test(c[0])) \&\& box.data[0].x.length < all; }); }, 50);\
</script></body>|' plan.html >zoomed.html
drawn zoomed
has zoomed 1 'data-zoomed="true"'

# -- On a phone, and in print from there ------------------------------------------------------------

# Rows of quantities are at most six lines high, and legends end above what they name.
sed 's|</body>|<script>const wait = setInterval(() => { if (!document.body.dataset.state) return;\
clearInterval(wait); const rows = [...document.querySelectorAll("td.wide")];\
document.body.dataset.low = rows.length > 50 \&\& rows.every(r => r.offsetHeight < 130);\
dispatchEvent(new Event("beforeprint")); setTimeout(() => { const legends = [...document.querySelectorAll(".plot")]\
.map(p => [p.querySelector(".legend .bg"), p]).filter(l => l[0]); document.body.dataset.apart = legends.length > 2 \&\&\
legends.every(([l, p]) => l.getBoundingClientRect().bottom <= p.getBoundingClientRect().top + p._fullLayout._size.t + 1); }); }, 50);\
</script></body>|' plan.html >phone.html
drawn phone --window-size=390,800
has phone 1 'data-low="true"'
has phone 1 'data-apart="true"'

# -- Other inputs -----------------------------------------------------------------------------------

cat >spec.json <<'END'
{"model": ["llama-2-7b", "qwen2.5-14b"], "machine": ["h200-16c=4/h", "gh200-96gb=2/h"],
 "micro-batch": {"from": 1, "to": 16, "factor": 2}}
END
"$hocket" sweep spec.json --quiet >out 2>err || fail "sweep: $(cat err)"
"$hocket" validate runs "$tests/data/published-runs.csv" --json >runs.json 2>err || fail "runs: $(cat err)"
cp "$tests/data/rankings/node-27.json" ranking.json
# A recording of two steps, and a validation with errors by cause.
python3 - plan.json <<'END'
import json
import sys

kinds = (("forward B0", "gpu", 0, 4), ("backward B0", "gpu", 4, 9), ("grad_d2h sg0.0", "flush", 7, 9), ("adamw_cpu sg0.0", "cpu", 9, 12))
spans = [{"name": n, "lane": l, "step": s, "start_ms": 1e7 + 12 * s + a, "end_ms": 1e7 + 12 * s + b}
         for s in range(3) for n, l, a, b in kinds]
json.dump({"schema": "hocket.spans/1", "plan": json.load(open(sys.argv[1])), "spans": spans}, open("spans.json", "w"))
pair = {"predicted_ms": 10.5, "measured_ms": 12, "error_pct": -12.5}
json.dump({"schema": "hocket.training_validation/1", "plan": "zero-offload", "model": "m", "overlap": "none",
           "machine": "h", "iteration": pair | {"step": 2, "recorded": 1, "min_ms": 12, "max_ms": 12},
           "makespan": pair, "phases": {"update": pair}, "lanes": {"cpu": {"busy": pair}},
           "operations": {"adamw_cpu": pair | {"count": 3, "median_abs_error_pct": 12, "worst_abs_error_pct": 13}},
           "attribution": {"rate_ms": 1, "host_ms": 0.5, "sum_ms": 1.5, "main": "rate"}, "summary": "slower",
           "differences": [{"operation": "adamw_cpu sg0.0", "lane": "cpu", "duration": pair, "wait": pair, "cause": "rate"}],
           "passed": True}, open("training.json", "w"))
END
"$hocket" plan --model llama-2-7b --machine h200-16c --machine gh200-96gb --json --quiet >machines.json 2>err ||
  fail "machines: $(cat err)"
"$hocket" simulate --model gpt2 --machine dgx-h100-8x80gb --jobs 4 --policy zero-offload -o jobs.json --quiet >out 2>err ||
  fail "jobs: $(cat err)"
ok report spec.db machines.json runs.json ranking.json spans.json training.json jobs.json -o others.html
drawn others
has others 1 'llama-2-7b on 2 machines'
has others 3 'id="(pareto_memory|pareto_money|errors|attribution)-'
has others 8 '<g class="point"><path'
has others 1 'for a million tokens'
has others 1 '4 equal jobs at once on each node, in step, each on 2 GPUs'
has others 1 'Errors by cause: training.json'
has others 1 'a recorded training run'

# A page that requests something is noticed.
echo '<body data-state="drawn"><img src="http://localhost:9/x.png">' >asks.html
drawn asks
[ "$(requested)" = http://localhost:9/x.png ] || fail "a request is not noticed: $(requested)"

# A page whose script fails is noticed.
sed 's/"hocket.plan_ranking\/1": {/"hocket.other\/1": {/' plan.html >broken.html
cmp -s plan.html broken.html && fail "broken.html is not broken"
( drawn broken ) >noticed
grep -q 'data-state="failed' noticed || fail "a page that fails is not noticed"
finish "report in a browser"
