#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Timelines in the store: stored by simulate and run, listed, shown, exported, compared, deleted,
# and error messages. test_unit_timelines.c has pairs of prediction and measurement.
# Usage: test_golden_trace_store.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

# sound FILE COUNTS: check_trace.py accepts the trace, and its summary matches COUNTS.
sound() {
  command -v python3 >/dev/null 2>&1 || return
  python3 "$tests/check_trace.py" "$1" >checked 2>&1 || fail "$1: $(cat checked)"
  grep -qE -- "$2" checked || fail "$1: '$(cat checked)', expected /$2/"
}

tiny_model
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' tiny.json >other.json
plan="--machine h200-16c --subgroup 20k --cpu-threads 2"
interleave="--model tiny.json $plan --policy interleave --stride 2"

# -- Before anything is stored -------------------------------------------------------------------

ok trace list
prints "^no timelines are stored: "
ok trace list --json
prints '"timelines":[[:space:]]*\[\]'
expect 2 "nothing has been stored yet" trace show 1
expect 2 "nothing has been stored yet" trace delete 1
expect 2 "nothing has been stored yet" trace diff 1 2
expect 2 "nothing has been stored yet" trace export 1 -o out.json
[ ! -e kept ] || fail "looking has made a store"

# -- Keep ----------------------------------------------------------------------------------------

ok simulate $interleave -o plan.json --quiet
cp out plain
ok simulate $interleave --keep --quiet
prints '^stored as timeline 1$'
grep -v '^stored as' out | cmp -s plain - || fail "--keep changes what simulate prints"
ok simulate plan.json --machine workstation-rtx4090-ddr5 --keep --json
prints '"timeline":[[:space:]]*2$'
ok run plan.json --backend host --steps 2 --keep --quiet
prints '^stored +the last step, as timeline 3$'
ok run plan.json --backend host --steps 2 --keep --json
prints '"timeline":[[:space:]]*4$'
ok simulate --model other.json $plan --policy interleave --stride 2 --keep # 5
ok simulate --model tiny.json $plan --policy interleave --stride 3 --keep  # 6
ok simulate --model tiny.json $plan --policy streamed --keep               # 7
ok simulate --model tiny.json --machine h200-16c --subgroup 9k --cpu-threads 2 \
  --policy interleave --stride 2 --keep # 8
ok simulate --model tiny.json $plan --policy interleave --stride 2 --micro-batch 2 --keep # 9

# -- List and show -------------------------------------------------------------------------------

made='20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z'
ok trace list --wide
prints "^ *id +pair +made +kind +plan +machine +operations +makespan ms$"
prints "^ *1 +- +$made +predicted +interleave k=2, tiny +h200-16c +[0-9]+ +[0-9.]+$"
prints "^ *2 +- +$made +predicted +interleave k=2, tiny +workstation-rtx4090-ddr5 "
prints "^ *3 +- +$made +measured +interleave k=2, tiny +host "
[ "$(sed -n 2p out | awk '{print $1}')" = 9 ] || fail "the latest is not listed first"
ok trace list --json
prints '"schema":[[:space:]]*"hocket.trace_list/1"'
prints '"pair":[[:space:]]*null'
prints '"kind":[[:space:]]*"measured"'

ok trace show 1
prints "^timeline 1: predicted, interleave k=2, tiny$"
prints "^made $made by hocket [0-9.]+"
grep -A 1 "^plan:" out | tr -s '\n ' ' ' | # on two lines
  grep -qE "^plan: hocket runtime; a rank of 1 has [0-9,]+ parameters in 6 subgroups, 2 CPU threads" ||
  fail "no plan in '$(head -c 600 out)'"
prints "^graph: [0-9]+ operations, [0-9]+ lanes, hash [0-9a-f]{16}$"
prints "^profile: h200-16c, One H200"
prints "^forward +[0-9.]+$"
prints "^update +[0-9.]+$"
prints "^makespan +[0-9.]+$"
prints "^h2d +3 +[0-9.]+ +[0-9.]+ %$"
prints "^adamw_cpu +3 "
! grep -q "^fingerprint" out || fail "a simulation has a fingerprint"
ok trace show 3
prints "^timeline 3: measured,"
prints "^fingerprint: backend host, cpu .+, gpu host, .+ cores [0-9]+"
! grep -qE "^(forward|profile)" out || fail "a run of the update alone shows more"

# The plan that is kept is the plan that was simulated.
ok trace show 1 --json
prints '"schema":[[:space:]]*"hocket.trace_show/1"'
prints '"utilization":'
prints '"fingerprint":[[:space:]]*null'
if command -v python3 >/dev/null 2>&1; then
  python3 - <<'END' || fail "trace show --json has another plan"
import json
shown = json.load(open("out"))
assert shown["plan"] == json.load(open("plan.json"))
assert shown["profile"]["schema"] == "hocket.machine/1"
lanes = shown["lanes"].values()
assert sum(l["operations"] for l in lanes) == shown["operations"]
assert abs(sum(l["busy_ms"] for l in lanes) - sum(k["busy_ms"] for k in shown["kinds"].values())) < 1e-6
END
fi

# -- Export --------------------------------------------------------------------------------------

# A stored simulation and its plan give the same trace, except for the title.
ok trace export plan.json --machine h200-16c -o plan-trace.json
ok trace export 1 -o kept-trace.json
prints "^kept-trace\.json: [0-9]+ operations on [0-9]+ lanes, [0-9.]+ ms; open it in"
cmp -s <(sed 2d plan-trace.json) <(sed 2d kept-trace.json) || fail "export of 1 is not that of its plan"
sound kept-trace.json "^[0-9]+ slices, .* [1-9][0-9]* counters"
ok trace export 3 -o measured.json --json
prints '"kind":[[:space:]]*"measured"'
sound measured.json "slices"

ok trace export 1 -o one.csv
prints "^one\.csv: ([0-9]+) operations on [0-9]+ lanes, [0-9.]+ ms; one row per operation$"
columns=id,kind,lane,rank,subgroup,piece,work,unit,gpu_alloc_bytes,gpu_free_bytes,start_ns,end_ns
[ "$(head -n 1 one.csv)" = "$columns" ] ||
  fail "header of a CSV: $(head -n 1 one.csv)"
[ "$(wc -l <one.csv)" -eq $(($(grep -oE ' [0-9]+ operations' out | tr -dc 0-9) + 1)) ] ||
  fail "a CSV with $(wc -l <one.csv) lines: $(cat out)"
awk -F, 'NF != 12 || (NR > 1 && $11 > $12) {exit 1}' one.csv || fail "rows of a CSV"
ok trace export 1 --csv
cmp -s out one.csv || fail "--csv to standard output is not what goes to a file"
ok trace export plan.json --machine h200-16c --csv -o table
cmp -s table one.csv || fail "--csv of a plan is not that of its timeline"

# A pair, made by editing the store, because 'validate engine' needs a calibration. Timelines 3 and
# 4 ran the same graph.
if command -v python3 >/dev/null 2>&1; then
  python3 - "$HOCKET_STORE" <<'END' || fail "cannot tie a pair"
import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
with store:
    store.execute("UPDATE timeline SET pair = 4, measured = 0 WHERE id = 3")
    store.execute("UPDATE timeline SET pair = 3 WHERE id = 4")
END
  for id in 3 4; do
    ok trace export $id -o pair$id.json
    sound pair$id.json "^2 timelines, [0-9]+ slices"
    ok trace export $id -o pair$id.csv
    awk -F, 'NF != 14 {exit 1}' pair$id.csv || fail "rows of a pair's CSV"
    ok trace export $id --alone -o alone$id.csv
    awk -F, 'NF != 12 {exit 1}' alone$id.csv || fail "rows of a CSV of one alone"
  done
  cmp -s <(sed 2d pair3.json) <(sed 2d pair4.json) || fail "a pair depends on which one is named"
  cmp -s pair3.csv pair4.csv || fail "a pair's table depends on which one is named"
  cmp -s <(cut -d, -f11,12 pair3.csv) <(cut -d, -f11,12 alone4.csv) || fail "start and end: measured"
  cmp -s <(tail -n +2 pair3.csv | cut -d, -f13,14) <(tail -n +2 alone3.csv | cut -d, -f11,12) ||
    fail "predicted start and end"
  ok trace show 3
  prints "; its measured pair is timeline 4$"
  ok trace list --wide
  prints "^ *4 +3 "
  # A pair of two measurements, which an edited store can have.
  cp "$HOCKET_STORE" alike.db
  python3 -c 'import sqlite3
with sqlite3.connect("alike.db") as store:
    store.execute("UPDATE timeline SET measured = 1 WHERE id = 3")'
  HOCKET_STORE=$folder/alike.db expect 3 \
    "timelines 3 and 4 are stored as a pair, but both are measured; --alone" trace export 3 -o a.json
  HOCKET_STORE=$folder/alike.db ok trace export 3 --alone -o a.json
fi

# -- Diff ----------------------------------------------------------------------------------------

ok trace diff 1 2
prints "^a: timeline 1, predicted $made on h200-16c: interleave k=2, tiny$"
prints "^makespan +[0-9.]+ +[0-9.]+ +[+-][0-9.]+ %$"
prints "^h2d +[0-9.]+ +[0-9.]+ +-[0-9.]+ %" # PCIe 4 against 5
prints "^state_h2d +3 "
prints "^sum +\+[0-9.]+ .*makespan: b less a$"
prints "^b against a: .*; the makespan is [0-9.]+ [mu]s longer, mostly by [a-z]+ \(\+"
ok trace diff 1 2 --json
prints '"schema":[[:space:]]*"hocket.trace_diff/1"'
prints '"summary":'
if command -v python3 >/dev/null 2>&1; then
  python3 - <<'END' || fail "trace diff --json does not add up"
import json
d = json.load(open("out"))
causes = d["attribution"]
parts = sum(v for k, v in causes.items() if k.endswith("_ms") and k != "sum_ms")
assert abs(parts - causes["sum_ms"]) < 1e-6
assert abs(d["makespan"]["b_ms"] - d["makespan"]["a_ms"] - causes["sum_ms"]) < 1e-6
assert causes["main"] in ("rate", "latency", "contention", "dependency", "host")
END
fi
ok trace diff 1 1
prints "^b against a: no operation differs by more than 2 % of the makespan; the makespans are the same$"
ok trace diff 3 4
prints "^sum "

expect 2 "timelines 1 and 5 are not of the same plan and cannot be joined .*: their models are 'tiny' and 'other'" trace diff 1 5
expect 2 "their policies are 'interleave k=2' and 'interleave k=3'" trace diff 1 6
expect 2 "their policies are 'interleave k=3' and 'streamed'" trace diff 6 7
expect 2 "their numbers of subgroups are '6' and '13'" trace diff 1 8
expect 2 "their graphs .* are '[0-9a-f]{16}' and '[0-9a-f]{16}'" trace diff 1 9
expect 2 "their phases are 'forward, backward, update' and 'update'" trace diff 1 3

# -- Delete --------------------------------------------------------------------------------------

ok trace delete 9
prints "^deleted timeline 9 from .*/kept/store\.db$"
expect 2 "no timeline 9 in the store .*hocket trace list" trace show 9
ok trace delete 4 --json
prints '"id":[[:space:]]*4,'
ok trace list --wide
prints "^ *3 +- "
expect 2 "no timeline 4" trace delete 4

# -- Bad input -----------------------------------------------------------------------------------

for id in 0 00 -1 1x 1.0 "" one 99999999999999999999; do
  expect 2 "expected the id of a timeline, a whole number from 1, got" trace show -- "$id"
  expect 2 "expected the id of a timeline" trace delete -- "$id"
  expect 2 "expected the id of a timeline" trace diff -- 1 "$id"
done
expect 2 "no timeline 77 in the store" trace show 77
expect 2 "no timeline 77 in the store" trace diff 1 77
expect 2 "no timeline 77 in the store" trace export 77 -o never.json
expect 2 "got '0'" trace export 0 -o never.json
expect 2 "'--machine' cannot be given with a stored timeline; .*'\./1'" \
  trace export 1 --machine h200-16c -o never.json
expect 2 "'--policy' cannot be given with a stored timeline" trace export 1 --policy streamed --csv
expect 2 "'--alone' is for stored timelines" trace export plan.json --alone -o never.json
expect 2 "'--csv' and '--json' both go to standard output" trace export 1 --csv --json
expect 2 "cannot write 'nowhere/t\.csv'" trace export 1 -o nowhere/t.csv
expect 2 "cannot write 'nowhere/t\.json'" trace export 1 -o nowhere/t.json
expect 2 "too few arguments; usage: hocket trace diff" trace diff 1

# -- Two plan files ---------------------------------------------------------------------------------
ok simulate --model gpt2 --machine h200-16c --policy streamed --subgroup 20M -o first.json --quiet
ok simulate --model gpt2 --machine h200-16c --policy interleave --stride 2 --subgroup 20M -o second.json --quiet
ok trace diff first.json second.json
prints "^a: streamed \(hocket\); b: interleave k=2 \(hocket\)$"
prints "^policy.stride +0 +2$"
prints "^parameters, route staged +124,439,808 +60,000,000$"
prints "^subgroups treated differently +0 +4$"
ok trace diff first.json first.json
prints "^the plans are the same: streamed$"
ok trace diff first.json second.json --json
grep -q '"key":[[:space:]]*"policy.stride"' out || fail "trace diff --json: no policy.stride"
expect 2 "expected the id of a timeline" trace diff 1 first.json
expect 2 "missing.json" trace diff first.json missing.json
expect 2 "'--keep' is not an option of this command" plan --keep
[ ! -e never.json ] || fail "what failed wrote a file"

# -- Unusable stores -------------------------------------------------------------------------------

cp "$HOCKET_STORE" good.db
for size in 100 4096 $(($(stat -c %s good.db) / 2)); do
  HOCKET_STORE=$folder/cut.db
  rm -f cut.db*
  head -c "$size" good.db >cut.db
  expect 3 "the store '.*cut\.db' is damaged.*move it away" trace show 1
  expect 3 "cut\.db' is damaged" trace diff 1 2
  expect 3 "cut\.db' is damaged" trace export 1 -o never.json
  expect 3 "cut\.db' is damaged" simulate plan.json --keep
done
expect 3 "cut\.db' is damaged" trace list
HOCKET_STORE=$folder/text.db
echo "this is a text, and no store, and long enough for its header to be looked at by anybody" \
  >"$HOCKET_STORE"
expect 2 "text\.db' is not a hocket store" trace list
expect 2 "text\.db' is not a hocket store" simulate plan.json --keep

# A damaged timeline is named with the remedy; the others stay readable.
HOCKET_STORE=$folder/edited.db
cp good.db edited.db
if command -v python3 >/dev/null 2>&1; then
  python3 - edited.db <<'END' || fail "cannot edit a store"
import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
with store:
    store.execute("UPDATE timeline SET spans = substr(spans, 1, length(spans) - 30) WHERE id = 1")
    store.execute("UPDATE timeline SET graph = '0123456789abcdef', version = '7.7.7' WHERE id = 2")
END
  expect 3 "timeline 1 of the store '.*edited\.db' is damaged: .*'hocket trace delete 1'" trace show 1
  expect 3 "timeline 1 .*is damaged" trace diff 1 2
  expect 2 "timeline 2 .*was stored by hocket 7\.7\.7, which built another graph of its plan" \
    trace show 2
  ok trace show 3
  ok trace list
  ok trace delete 1
  expect 2 "no timeline 1" trace show 1
fi

# -- A full disk -----------------------------------------------------------------------------------

HOCKET_STORE=$folder/good.db
(
  trap '' XFSZ
  ulimit -f 1
  exec "$hocket" simulate plan.json --keep
) >out 2>err
[ $? -eq 3 ] || fail "--keep on a disk that is full: exit is not 3: $(cat err)"
[ ! -s out ] || fail "--keep on a disk that is full prints a forecast"
ok trace list
if [ -w /dev/full ]; then
  for arguments in "list" "show 1" "diff 1 2" "export 1 --csv"; do
    "$hocket" trace $arguments >/dev/full 2>err
    [ $? -eq 3 ] || fail "hocket trace $arguments >/dev/full: exit is not 3"
  done
  "$hocket" trace export 1 --csv -o /dev/full >out 2>err
  [ $? -eq 3 ] || fail "hocket trace export --csv -o /dev/full: exit is not 3"
fi

finish "trace store"
