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

# interrupt SECONDS ARGUMENTS...: sends SIGINT to hocket SECONDS after it began to catch it.
interrupt() {
  set -m # a job of its own: a background job of a script ignores SIGINT otherwise
  "$hocket" "${@:2}" >out 2>err &
  local running=$! status=0 mask
  set +m
  for _ in $(seq 200); do
    mask=$(awk '/^SigCgt/ {print $2}' /proc/$running/status)
    (((0x$mask & 2) == 0)) || break
    sleep 0.05
  done
  sleep "$1"
  kill -INT $running
  wait $running || status=$?
  [[ $status == 1 ]] || fail "hocket ${*:2}: interrupted: exit $status, not 1: $(cat err)"
  grep -q "interrupted after" err || fail "hocket ${*:2}: interrupted: $(cat err)"
}
