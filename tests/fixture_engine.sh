# SPDX-License-Identifier: GPL-3.0-or-later
# Shared by test scripts of the engine, on top of fixture.sh. Source it first, with the program as
# $1. It writes tiny.json. Checks build on each other, so the first failure ends the script.
# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2034
. "$(dirname "${BASH_SOURCE[0]}")/fixture.sh"
set -eo pipefail
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
checker=$tests/check_trace.py

tiny_model

fail() {
  echo "FAIL: $*"
  exit 1
}

# plan NAME OPTIONS...: writes a plan for tiny.json to NAME.json.
plan() {
  "$hocket" simulate --model tiny.json --machine h200-16c --gpus 1 --subgroup 7000 \
    --cpu-threads 2 -o "$1.json" --quiet "${@:2}" >simulated 2>&1 || { cat simulated && fail "$1"; }
}

# get FILE KEY: the first value of KEY in a JSON file.
get() {
  grep -oE "\"$2\":[[:space:]]*[^,]+" "$1" | head -1 | sed -E 's/^[^:]*:[[:space:]]*//; s/"//g'
}

# ends CODE PATTERN ARGUMENTS...: hocket exits with CODE, and stderr matches PATTERN ("": anything).
ends() {
  local status=0
  "$hocket" "${@:3}" >out 2>err || status=$?
  [[ $status == "$1" ]] || fail "hocket ${*:3}: exit $status, not $1: $(cat err)"
  grep -qE -- "$2" err || [[ -z $2 ]] || fail "hocket ${*:3}: said '$(cat err)', expected /$2/"
}

# catches NUMBER: waits until the process $running runs hocket and catches the signal. The copy of the
# shell that becomes hocket catches signals too, so only the program's own handlers count.
catches() {
  local mask program
  program=$(readlink -f "$hocket")
  for _ in $(seq 500); do
    if [[ $(readlink /proc/$running/exe) == "$program" ]]; then
      mask=$(awk '/^SigCgt/ {print $2}' /proc/$running/status)
      (((0x$mask >> ($1 - 1) & 1) == 0)) || return 0
    fi
    kill -0 $running 2>/dev/null || return 0 # it has ended: the caller looks at its exit code
    sleep 0.02
  done
  fail "signal $1 has no handler after 10 s: $(cat err)"
}

# launch ARGUMENTS...: starts hocket in the background, sets `running` to its process, and returns
# when hocket catches SIGINT.
launch() {
  set -m # a job of its own: a background job of a script ignores SIGINT otherwise
  "$hocket" "$@" >out 2>err &
  running=$!
  set +m
  catches 2
}

# ended: waits for what was launched and sets `status`.
ended() {
  status=0
  wait $running || status=$?
}

# too_short: the last calibration's budget was too short for one sample of each probe, as on a busy
# machine.
too_short() {
  grep -q "needs these probes, .*; continue with calibrate --resume and a larger --budget" err
}

# interrupt SECONDS ARGUMENTS...: sends SIGINT to hocket SECONDS after it began to catch it.
interrupt() {
  launch "${@:2}"
  sleep "$1"
  kill -INT $running
  ended
  [[ $status == 1 ]] || fail "hocket ${*:2}: interrupted: exit $status, not 1: $(cat err)"
  grep -q "interrupted after" err || fail "hocket ${*:2}: interrupted: $(cat err)"
}
