#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# hocket calibrate on the host backend: it measures and stores a profile, which other commands use;
# Ctrl-C and kill -9 lose no sample; error messages. Precision depends on the load of this machine,
# so exit 1 (the expected error is too large) is accepted like 0.
# Usage: test_engine_calibrate_cli.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture_engine.sh"

quick=(--backend host --quick --memory 256M)
refused=("${quick[@]}" --quiet) # without a note if something else calibrates on this machine
limit=10 # seconds; refusals come at once

# calibrate ARGUMENTS...: precise or not. If the budget was too short for one sample of each probe,
# as on a busy machine, it goes on with a minute more, as the message says. The time limits end a
# command that hangs; on a busy machine a budget of a minute took more than two.
calibrate() {
  local status=0
  timeout 250 "$hocket" calibrate "$@" >out 2>err || status=$?
  if too_short; then
    status=0
    timeout 250 "$hocket" calibrate "$@" --resume --budget 60 >out 2>err || status=$?
  fi
  ((status <= 1)) || fail "calibrate $*: exit $status: $(cat err)"
  if ((status == 1)); then
    grep -q "is stored, but it is not accurate enough: " err || fail "exit 1: $(cat err)"
  else
    [[ ! -s err ]] || grep -q "note: " err || fail "exit 0, and yet: $(cat err)"
  fi
}

# -- Refusals --------------------------------------------------------------------------------------

expect 2 "no unfinished calibration" calibrate "${refused[@]}" --resume
expect 2 "no unfinished calibration under 'other'" calibrate "${refused[@]}" --resume --name other
expect 2 "'a/b' cannot be the name" calibrate "${refused[@]}" --name a/b
expect 2 "h200-16c" calibrate "${refused[@]}" --name h200-16c
expect 2 "nowhere" calibrate "${refused[@]}" --name here -o nowhere/profile.json
expect 2 "'--budget': expected a number" calibrate "${refused[@]}" --budget 0
expect 2 "'--target': expected a number" calibrate "${refused[@]}" --target 0
expect 2 "'--memory': expected a whole number" calibrate "${refused[@]}" --memory much
expect 2 "unexpected argument" calibrate "${refused[@]}" here
expect 2 "--nvme 'nowhere': No such file" calibrate "${refused[@]}" --nvme nowhere
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  # Built without nvcc it cannot even look for one.
  none="no CUDA device"
  expect 3 "$none" calibrate --backend cuda --quiet # on a busy machine there is a note, too
  expect 3 "$none" calibrate --quick --quiet
fi

# -- Measured, stored, used ----------------------------------------------------------------------

calibrate "${quick[@]}" --name here --budget 4 --nvme . -o here.json
[[ -z $(find . -name '.hocket-nvme-*') ]] || fail "--nvme left its file"
grep -qE "^nvme\.read_bytes_per_s +[0-9.]+ .?B/s +[0-9.]+( .?B/s)? to " out || fail "no drives: $(cat out)"
grep -Eq "^here: (not )?accepted: nine in ten predicted updates are expected to be within" out &&
  grep -q "^quick calibration of 1 x host" out || fail "no heading: $(head -3 out)"
grep -qE "^pcie\.h2d_bytes_per_s +[0-9.]+ .B/s +[0-9.]+( .B/s)? to " out || fail "no table of quantities"
grep -qE "^simulation of [0-9]+ measured values: errors [0-9.]+ % \(median\)" out || fail "no accuracy"
grep -qE "^[0-9]+ probes, [0-9]+ rounds, measured for [0-9]+ s; stored as 'here'" out || fail "no summary"
grep -q "^next: hocket plan --model llama-2-7b --machine here$" out || fail "no next step"

ends 0 "" machine list
grep -qE "^here +1 +calibrate +20[0-9-]+ +[0-9.]+ %, quick" out || fail "not listed: $(cat out)"
ends 0 "" machine show here
grep -q "^calibrated .*quick probes" out || fail "show: no calibration"
grep -q "^measured on: backend host, " out || fail "show: no fingerprint"
ends 0 "" machine export here
cmp -s out here.json || fail "calibrate -o and machine export differ"
ends 0 "" plan --model gpt2 --machine here
ends 0 "" simulate --model gpt2 --machine here --policy zero-offload
ends 0 "" machine diff here here.json
grep -qE "^([0-9]+) of \1 quantities agree" out || fail "diff with itself: $(tail -1 out)"
ends 0 "" machine delete here
ends 0 "" machine import here.json
ends 0 "" plan --model gpt2 --machine here
expect 2 "has a profile 'here' already" calibrate "${refused[@]}" --name here

# -- Interrupted and resumed --------------------------------------------------------------------------

samples() {
  python3 -c 'import os, sqlite3
print(sqlite3.connect(os.environ["HOCKET_STORE"]).execute("SELECT count(*) FROM sample").fetchone()[0])'
}

# start ARGUMENTS...: in the background, until it has kept some samples.
start() {
  local before
  before=$(samples)
  launch calibrate "$@"
  for _ in $(seq 100); do
    (($(samples) < before + 10)) || return 0
    sleep 0.2
  done
  fail "calibrate $*: no samples after 20 s: $(cat err)"
}

# stop EXIT SIGNAL...: sends the signals 10 ms apart while it runs; it must exit with EXIT.
stop() {
  local signal
  kill "-$2" $running
  for signal in "${@:3}"; do
    sleep 0.01 # signals that have not arrived yet count as one
    kill "-$signal" $running 2>killed || break
  done
  ended
  [[ $status == "$1" ]] || fail "stopped by ${*:2}: exit $status, not $1: $(cat err)"
}

# On a busy machine there is a note before measuring and one after.
hogs=()
for _ in $(seq $(($(nproc) / 8 + 1))); do
  timeout 60 bash -c 'while :; do :; done' >killed 2>&1 &
  hogs+=($!)
done
HOCKET_STORE=$folder/busy.db ends 1 "" calibrate "${quick[@]}" --budget 1 --name busy
[[ $(grep -c "note: the machine is busy: other processes used\? [0-9.]* of [0-9]* CPUs" err) == 2 ]] ||
  fail "nothing says that the machine is busy: $(cat err)"
HOCKET_STORE=$folder/busy.db ends 1 "" calibrate "${quick[@]}" --budget 1 --name busy --replace --quiet
! grep -q "note:" err || fail "--quiet notes: $(cat err)"
kill "${hogs[@]}"
wait "${hogs[@]}" || true

again=("${quick[@]}" --budget 8 --json)
start "${again[@]}" --name again
stop 1 INT
grep -qE "interrupted; [1-9][0-9]* samples are stored; continue with: hocket calibrate --resume" err ||
  fail "interrupted: $(cat err)"
python3 -m json.tool out >/dev/null || fail "interrupted: no JSON"
command=$(sed -n 's/.*continue with: hocket calibrate //p' err)
[[ $command == "--resume --name again --backend host --quick --budget 8 --memory 256000000" ]] ||
  fail "interrupted: continue with '$command'"
expect 2 "again" calibrate "${refused[@]}" --resume --name other
expect 2 "again" machine show again # there is no profile yet

start --json $command
stop 137 KILL
calibrate --json $command
python3 -m json.tool out >/dev/null || fail "not one JSON object: $(head -3 out)"
cat >check.py <<'END'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    c = json.load(file)
assert c["schema"] == "hocket.calibration/1" and c["name"] == "again", c["schema"]
assert c["resumed"] is True and c["quick"] is True and c["interrupted"] is False
assert c["probes"] > 0 and c["rounds"] >= c["probes"] and c["seconds"] > 0
assert c["replay"]["median_abs_error_pct"] <= c["replay"]["p90_abs_error_pct"]
assert c["replay"]["p90_abs_error_pct"] <= c["replay"]["worst_abs_error_pct"]
expected = c["expected_error"]
assert abs(expected["nine_in_ten_pct"] ** 2 - expected["noise_pct"] ** 2
           - expected["model_pct"] ** 2) < 1e-3 * expected["nine_in_ten_pct"] ** 2, expected
assert expected["model_pct"] == c["replay"]["p90_abs_error_pct"], expected
assert c["accepted"] is (expected["nine_in_ten_pct"] <= 15
                         and expected["probes_measured_once"] == 0), expected
assert all(q["low"] <= q["value"] <= q["high"] for q in c["quantities"]), c["quantities"]
assert all(r["measured"] > 0 and r["predicted"] > 0 for r in c["replays"]), c["replays"]
assert not c["failed"], c["failed"]
assert c["profile"]["schema"] == "hocket.machine/1" and "calibration" in c["profile"]
END
python3 check.py out || fail "the JSON is not as promised"
expect 2 "no unfinished calibration" calibrate "${refused[@]}" --resume
ends 0 "" machine show again
ends 0 "" machine list
grep -q "^again " out && grep -q "^here " out || fail "not both listed: $(cat out)"

# A second calibration at the same time is refused for the same store and gets a note with another
# store. An unfinished run that kill -9 left is listed and can be deleted.
start "${quick[@]}" --budget 600 --name held
expect 3 "in use by another calibration, process $running \(.*calibrate .*\), since 20" \
  calibrate "${refused[@]}" --name other
expect 3 "in use by another calibration" machine delete --unfinished held
HOCKET_STORE=$folder/beside.db timeout 60 "$hocket" calibrate "${quick[@]}" --budget 1 --name beside \
  >out 2>err || true
grep -q "note: another calibration is running on this machine, process $running " err ||
  fail "no word of the other calibration: $(cat err)"
stop 137 KILL
ends 0 "" machine list
grep -qE "^held +20[0-9T:Z-]+ +[1-9][0-9]*$" out || fail "unfinished, but not listed: $(cat out)"
expect 2 "no unfinished calibration 'nothing'" machine delete --unfinished nothing
ends 0 "" machine delete --unfinished held
ends 0 "" machine list
! grep -q "^held" out || fail "deleted, and yet listed: $(cat out)"

# SIGTERM is handled like SIGINT, also repeatedly: timeout sends it to the command and to its group.
start "${quick[@]}" --name third
stop 1 TERM TERM TERM
grep -q "interrupted; [1-9].* --resume --name third" err || fail "terminated: $(cat err)"
"$hocket" machine show here >/dev/null || fail "what was stored is lost"
finish calibrate
