#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# hocket validate engine and validate ranking on the host backend: their JSON, the stored timelines,
# the profile that is used, and refusals. The one threshold on time is 1,000,000 %.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture_engine.sh"

cat >check_engine.py <<'EOF'
import json
import math
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    v = json.load(file)


def pair(p, unit):
    assert p["measured_" + unit] >= 0 and p["predicted_" + unit] >= 0, p
    if p["measured_" + unit] > 0:
        error = 100 * (p["predicted_" + unit] / p["measured_" + unit] - 1)
        assert math.isclose(p["error_pct"], error, abs_tol=1e-6, rel_tol=1e-6), p


assert v["schema"] == "hocket.engine_validation/1", v
assert v["backend"] == "host" and v["steps"] == 3, v
assert v["profile"]["name"] == sys.argv[2], v["profile"]
assert re.fullmatch("[0-9a-f]{32}", v["checksum"]), v["checksum"]
times = v["update_ms"]
assert 0 < times["min"] <= times["median"] <= times["max"], times
pair(v["makespan"], "ms")
assert list(v["phases"]) == ["update"], v["phases"]
assert v["phases"]["update"] == v["makespan"], v["phases"]
for lane in v["lanes"].values():
    pair(lane["busy"], "ms")
    pair(lane["idle"], "ms")
assert {"cpu", "h2d", "d2h", "up", "update"} <= set(v["lanes"]), v["lanes"].keys()
kinds = v["operations"]
# 115008 parameters in subgroups of 7000, one of three staged, pieces as large.
counts = {"barrier": 1, "adamw_cpu": 12, "weight_h2d": 12, "state_h2d": 5, "state_d2h": 5,
          "adamw_gpu": 5}
assert {k: kinds[k]["count"] for k in kinds} == counts, kinds
for kind in kinds.values():
    median, worst = kind["median_abs_error_pct"], kind["worst_abs_error_pct"]
    assert (median is None and worst is None) or 0 <= median <= worst, kind
busy = sum(lane["busy"]["measured_ms"] for lane in v["lanes"].values())
assert math.isclose(sum(k["measured_ms"] for k in kinds.values()), busy, rel_tol=1e-9), v
causes = {k: x for k, x in v["attribution"].items() if k not in ("sum_ms", "main")}
assert set(causes) == {"rate_ms", "latency_ms", "contention_ms", "dependency_ms", "host_ms"}, causes
error = v["makespan"]["measured_ms"] - v["makespan"]["predicted_ms"]
assert math.isclose(sum(causes.values()), error, abs_tol=1e-6), v["attribution"]
assert math.isclose(v["attribution"]["sum_ms"], error, abs_tol=1e-6), v["attribution"]
assert max(causes, key=lambda k: abs(causes[k])) == v["attribution"]["main"] + "_ms", causes
pair(v["memory"]["gpu"], "bytes")
pair(v["memory"]["host"], "bytes")
assert v["timelines"]["measured"] == v["timelines"]["predicted"] + 1 > 1, v["timelines"]
assert v["summary"].startswith("measured against predicted: "), v["summary"]
assert v["passed"] is True, v
EOF

cat >check_ranking.py <<'EOF'
import json
import math
import statistics
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    r = json.load(file)
assert r["schema"] == "hocket.ranking/1" and r["complete"] is True, r
assert r["chosen"] == len(r["plans"]) == int(sys.argv[2]), r
names = [p["plan"] for p in r["plans"]]
assert len(set(names)) == len(names), names
for p in r["plans"]:
    assert 0 < p["min_ms"] <= p["measured_ms"] <= p["max_ms"] and p["predicted_ms"] > 0, p
    assert len(p["rounds_ms"]) == r["rounds"] == int(sys.argv[3]), p
    assert sorted(p["rounds_ms"])[(r["rounds"] - 1) // 2] == p["measured_ms"], p
best = min(r["plans"], key=lambda p: p["measured_ms"])
chosen = min(r["plans"], key=lambda p: p["predicted_ms"])
assert r["measured_best"] == best["plan"] and r["predicted_best"] == chosen["plan"], r
regret = 100 * (chosen["measured_ms"] / best["measured_ms"] - 1)
assert abs(r["top1_regret_pct"] - regret) < 1e-6, (r["top1_regret_pct"], regret)
assert -1 <= r["kendall_tau"] <= 1, r
apart = [100 * (max(p["rounds_ms"]) / min(p["rounds_ms"]) - 1) for p in r["plans"]]
if r["rounds"] > 1:
    assert math.isclose(r["median_rounds_apart_pct"], statistics.median(apart), abs_tol=1e-6), r
    assert math.isclose(r["worst_rounds_apart_pct"], max(apart), abs_tol=1e-6), r
else:
    assert "median_rounds_apart_pct" not in r, r
lanes = {}
for p in r["plans"]:
    for lane, error in p["lane_busy_error_pct"].items():
        lanes.setdefault(lane, []).append(abs(error))
assert r["median_abs_error_pct_of_lanes"].keys() == lanes.keys() and "cpu" in lanes, r
for lane, errors in lanes.items():
    median = r["median_abs_error_pct_of_lanes"][lane]
    assert abs(median - statistics.median(errors)) < 1e-6 * (1 + median), (lane, errors, median)
everything = statistics.median(e for errors in lanes.values() for e in errors)
assert abs(r["median_abs_lane_error_pct"] - everything) < 1e-6 * (1 + everything), everything
EOF

plan interleave --policy interleave --stride 3
plan mapped --policy mapped

# calibrates PATTERN ARGUMENTS...: hocket succeeds and says PATTERN. It calibrates for 3 s, or for a
# minute if these are too short for one sample of each probe, as on a busy machine.
calibrates() {
  local status=0
  "$hocket" "${@:2}" --memory 64M --budget 3 >out 2>err || status=$?
  if too_short; then
    ends 0 "$1" "${@:2}" --memory 64M --budget 60
  elif [[ $status != 0 ]] || ! grep -q -- "$1" err; then
    fail "hocket ${*:2}: exit $status, said '$(cat err)', expected 0 and /$1/"
  fi
}

# Without a profile of this node, the command calibrates it first and says so. The second call uses
# the profile.
engine=(validate engine interleave.json --backend host --steps 3)
calibrates "calibrating 'this-node-host-quick'" "${engine[@]}" --json --max-error 1000000 \
  --timeline trace.json
python3 check_engine.py out this-node-host-quick || fail "the JSON is wrong"
python3 "$checker" trace.json >checked || fail "the trace is not valid: $(cat checked)"
cp out first.json
ends 0 "" "${engine[@]}" --json --max-error 1000000 --quiet
[[ ! -s err ]] || fail "--quiet, and yet: $(cat err)"
python3 check_engine.py out this-node-host-quick || fail "again: the JSON is wrong"
[[ $(get out checksum) == "$(get first.json checksum)" ]] || fail "again: another checksum"
[[ $(get out predicted) == 3 ]] || fail "again: other timelines than 3 and 4"

# The table; another plan gives the same checksum.
ends 0 "" validate engine mapped.json --backend host --steps 3 --explain
for word in makespan "GPU memory" adamw_mapped contention "sum" "hocket trace diff" \
  "$(get first.json checksum)" pcie.h2d_bytes_per_s; do
  grep -q -- "$word" out || fail "the table lacks '$word': $(cat out)"
done

# With exit 1 the result is printed, too.
ends 1 "more than --max-error 0" "${engine[@]}" --max-error 0 --json
[[ $(get out passed) == false ]] || fail "--max-error 0: passed"

# Profiles of this node, of another machine, not calibrated, and too old.
"$hocket" machine export this-node-host-quick -o mine.json >exported 2>&1
ends 0 "" "${engine[@]}" --machine mine.json --json
sed -E 's/"cpu":[[:space:]]*"[^"]*"/"cpu": "Difference Engine No. 2"/' mine.json >other.json
expect 2 "of another machine: cpu: Difference Engine No. 2, here" "${engine[@]}" --machine other.json
grep -q -- --force err || fail "nothing says what would help: $(cat err)"
ends 0 "of another machine: cpu: Difference Engine" "${engine[@]}" --machine other.json --force \
  --json
expect 2 "was not calibrated" "${engine[@]}" --machine h200-16c
sleep 1
expect 2 "days ago" "${engine[@]}" --machine mine.json --max-age 0.000001
calibrates "no profile of this node is younger than 1e-06 days" "${engine[@]}" --max-age 0.000001
expect 2 no-such-machine "${engine[@]}" --machine no-such-machine

# Refusals.
expect 2 no-such-plan.json validate engine no-such-plan.json --backend host
head -c 5000 "$HOCKET_STORE" >cut.db
HOCKET_STORE=$folder/cut.db expect 3 cut.db "${engine[@]}"
expect 2 "no-such-folder" "${engine[@]}" --timeline no-such-folder/trace.json
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  expect 3 CUDA validate engine interleave.json
  expect 3 CUDA validate ranking --model tiny.json
fi

# Ranking: table and file, JSON, bad input.
rank=(validate ranking --model tiny.json --backend host)
ends 0 "wrote the JSON object to ranking.json" "${rank[@]}" --plans 6 --steps 2 -o ranking.json
python3 check_ranking.py ranking.json 6 1 || fail "ranking.json is wrong"
grep -q "top-1 regret" out || fail "the table lacks the regret"
ends 0 "" "${rank[@]}" --plans 4 --steps 1 --rounds 3 --json
python3 check_ranking.py out 4 3 || fail "the ranking's JSON is wrong"
# validate again: the same profile gives the same result; two files count as two rounds.
again=(validate again ranking.json --machine this-node-host-quick)
ends 0 "wrote the JSON object to judged.json" "${again[@]}" -o judged.json
python3 check_ranking.py judged.json 6 1 || fail "judged.json is wrong"
cat >check_same.py <<'EOF'
import json
import math


def check(a, b, where):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (where, a, b)
        for key in a.keys() - {"predicted_timeline"}:
            check(a[key], b[key], where + [key])
    elif isinstance(a, list):
        assert len(a) == len(b), (where, a, b)
        for i, each in enumerate(a):
            check(each, b[i], where + [i])
    elif isinstance(a, float) or isinstance(b, float):  # files have 15 digits
        assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9), (where, a, b)
    else:
        assert a == b, (where, a, b)


with open("ranking.json", encoding="utf-8") as file:
    before = json.load(file)
with open("judged.json", encoding="utf-8") as file:
    check(before, json.load(file), [])
EOF
python3 check_same.py || fail "the same profile gives another result"
ends 0 "" "${rank[@]}" --plans 6 --steps 2 --quiet -o second.json
ends 0 "" "${again[@]}" second.json --json
python3 check_ranking.py out 6 2 || fail "two files are not two rounds"
ends 0 "of another machine: cpu: Difference Engine" validate again ranking.json --machine other.json \
  --force --json
expect 2 "--force accepts it" validate again ranking.json --machine other.json
expect 2 "--machine NAME[|]FILE is needed" validate again ranking.json
expect 2 "no-such.json" validate again no-such.json --machine mine.json
expect 2 "is not what 'validate ranking -o" validate again mine.json --machine mine.json
HOCKET_STORE=$folder/no-store.db expect 2 "there are no timelines" \
  validate again ranking.json --machine mine.json
sed -E 's/("measured_timeline":[[:space:]]*)[0-9]+/\11/' ranking.json >wrong.json
expect 2 "set HOCKET_STORE to the store" validate again wrong.json --machine mine.json
sed -E 's/("measured_timeline":[[:space:]]*)[0-9]+/\1999999/' ranking.json >wrong.json
expect 2 999999 validate again wrong.json --machine mine.json
sed -E 's/"model":[[:space:]]*"[^"]*"/"model": "other"/' ranking.json >wrong.json
expect 2 "of the model" "${again[@]}" wrong.json

expect 2 "--model NAME[|]FILE is needed" validate ranking --backend host
expect 2 no-such-model validate ranking --backend host --model no-such-model
expect 2 "--rounds" "${rank[@]}" --rounds 0
expect 1 "plans of llama-3-70b fit" validate ranking --backend host --model llama-3-70b

# Ctrl-C: the plans measured so far are printed.
interrupt 0.2 validate engine interleave.json --backend host --steps 100000 --json
[[ ! -s out ]] || fail "an interrupted validation prints: $(head -3 out)"
interrupt 3 "${rank[@]}" --plans 300 --steps 60 --json
measured=$(sed -nE 's/.*; ([0-9]+) of 300 plans had been measured/\1/p' err)
if ((measured > 0)); then
  [[ $(get out complete) == false ]] || fail "interrupted, and complete?"
  [[ $(grep -c predicted_ms out) == "$measured" ]] || fail "not the $measured plans of: $(cat out)"
fi
interrupt 3 "${rank[@]}" --plans 3 --steps 2000 --rounds 15 --json
made=$(sed -nE 's/.*; ([0-9]+) of 45 runs had been made/\1/p' err)
if ((made > 0)); then
  [[ $(get out complete) == false ]] || fail "interrupted, and complete?"
  [[ $(grep -c predicted_ms out) == $((made < 3 ? made : 3)) ]] || fail "$made runs, yet: $(cat out)"
fi
finish validate
