# SPDX-License-Identifier: GPL-3.0-or-later
# What scripts of the engine share, on top of fixture.sh. Source it first, with the program as $1:
# it leaves tiny_model's tiny.json. Checks build on each other, so that the first failure, expected or
# not, ends the script.
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

# plan NAME OPTIONS...: a plan for that model to NAME.json.
plan() {
  "$hocket" simulate --model tiny.json --machine h200-16c --gpus 1 --subgroup 7000 \
    --cpu-threads 2 -o "$1.json" --quiet "${@:2}" >simulated 2>&1 || { cat simulated && fail "$1"; }
}

# get FILE KEY: a value of a JSON file, its first.
get() {
  grep -oE "\"$2\":[[:space:]]*[^,]+" "$1" | head -1 | sed -E 's/^[^:]*:[[:space:]]*//; s/"//g'
}

# ends CODE PATTERN ARGUMENTS...: exits so, whatever it prints, and stderr has the pattern.
ends() {
  local status=0
  "$hocket" "${@:3}" >out 2>err || status=$?
  [[ $status == "$1" ]] || fail "hocket ${*:3}: exit $status, not $1: $(cat err)"
  grep -qE -- "$2" err || [[ -z $2 ]] || fail "hocket ${*:3}: said '$(cat err)', expected /$2/"
}

# interrupt SECONDS ARGUMENTS...: SIGINT once it catches signals and so much time has passed.
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
