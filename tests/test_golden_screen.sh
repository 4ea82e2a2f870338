#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Tables for people fit 80 columns, or the width of the terminal. --wide prints everything.
# Usage: test_golden_screen.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
export LC_ALL=C # the sign of an interval is then +-

# fits WIDTH WHAT: `out` is not empty, and no line is longer than WIDTH.
fits() {
  [ -s out ] || fail "$2: prints nothing"
  awk -v most="$1" 'length > most { print FILENAME ": " length ": " $0; bad = 1 } END { exit bad }' \
    out >long || fail "$2: wider than $1: $(head -3 long)"
}

cp "$tests/data/calibrated-node.json" node.json
cp "$tests/data/published-runs.csv" .
ok machine import node.json
tiny_model
ok simulate --model tiny.json --machine made-up-node --policy interleave --stride 2 --subgroup 20k \
  --cpu-threads 2 -o plan.json --quiet --keep
ok run plan.json --backend host --steps 2 --keep --quiet
ok simulate plan.json --keep
ok validate runs published-runs.csv
head -n 40 out >rows && mv rows out
fits 80 "validate runs"

seven="--model llama-2-7b --machine polaris-a100-4x40gb"
for command in "plan $seven" "plan $seven --explain" "plan --model gpt2 --machine made-up-node" \
  "simulate $seven --policy interleave --stride 2" \
  "simulate --model llama-2-13b --machine polaris-a100-4x40gb --gpus 1 --nodes 2 --policy interleave \
  --stride 3 --ratio 0.9" "trace show 1" "simulate $seven --policy twinflow --ratio 0.4 \
  --runtime deepspeed" "simulate plan.json" "machine list" "machine show h200-16c" \
  "machine show h200-node-4x-64c" "model list" "model show gpt2 --tensors" "trace list" \
  "machine diff h200-16c node.json" "run plan.json --backend host --steps 1"; do
  "$hocket" $command >out 2>err || fail "hocket $command: $(cat err)"
  grep -vE '^(measured on:|calibrated) ' out >tables && mv tables out # sentences, not tables
  fits 80 "hocket $command"
done
for command in "trace diff 1 3"; do
  "$hocket" $command >out 2>err || fail "hocket $command: $(cat err)"
  grep -vE '^(a|b|b against a): ' out >tables && mv tables out
  fits 80 "hocket $command"
done

# The first line has the answer: plan, fit, time, distance from the bound, busiest resource.
ok plan $seven
head -n 1 out | grep -qxE "gpu-only fits: [0-9.]+ \+- [0-9.]+ ms/iteration, update [0-9.]+ x bound, gpu [0-9]+ % busy" ||
  fail "plan: begins with '$(head -n 1 out)'"
# The update is 0.5 % of the iteration: the answer names what limits the rest.
ok plan --model llama-3-8b --machine aws-g5.12xlarge --nodes 2 --quiet
answer=$(awk 'NF == 0 { exit } { printf "%s%s", (NR > 1 ? " " : ""), $0 }' out | tr -s ' ') # wrapped at 80
echo "$answer" | grep -qxE "gpu-only fits: .*, update [0-9.]+ x bound, network 9[0-9] % busy" || fail "plan: begins with '$answer'"
tr '\n' ' ' <out | grep -q "Forward and backward take 9[0-9] % of the iteration and keep network" ||
  fail "plan: does not say that the network is the limit"
ok plan $seven --seq 4096 --micro-batch 16 --policy interleave --ratio 0.8
answer=$(awk 'NF == 0 { exit } { printf "%s%s", (NR > 1 ? " " : ""), $0 }' out | tr -s ' ')
echo "$answer" | grep -qxE "interleave k=[0-9] r=0\.80 reduce first fits: [0-9.]+ \+- [0-9.]+ ms/iteration, .* [0-9]+ % busy" ||
  fail "plan: begins with '$answer'"
"$hocket" plan --model llama-3-70b --machine polaris-a100-4x40gb >out 2>err
head -n 1 out | grep -q "^does not fit: host memory: " || fail "plan: '$(head -n 1 out)'"
fits 80 "a plan that does not fit"

# Columns that are left out are named; --wide has them.
ok plan $seven
prints "^\(--wide also shows: forward ms, backward ms, tokens/s, Gparam/s, x bound, GPU$"
prints "^GiB, host GiB, busy\)$"
ok plan $seven --wide
prints "^rank .* forward ms  backward ms  update ms  iter ms  \+- ms  tokens/s  Gparam/s  x bound  GPU GiB"
! grep -q "also shows" out || fail "plan --wide leaves columns out"
ok machine list --wide
prints "^made-up-node +2 +import +2026-11-20 +1\.5 % +Two GPUs that nobody has.*for tests$"
ok machine list
prints "^    Two GPUs that nobody has.*for tests$"

# A terminal's own width counts.
if command -v python3 >/dev/null 2>&1; then
  cat >terminal.py <<'END'
import fcntl, os, pty, struct, sys, termios

pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
    os.execv(sys.argv[2], sys.argv[2:])
with open("out", "wb") as out:
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:
            break
        if not read:
            break
        out.write(read.replace(b"\r\n", b"\n"))
os.waitpid(pid, 0)
END
  for width in 60 100 160; do
    python3 terminal.py $width "$hocket" plan $seven
    fits $width "plan in a terminal of $width"
    longest=$(awk 'length > most { most = length } END { print most }' out)
    [ "$longest" -gt $((width - 25)) ] || fail "a terminal of $width is used up to $longest"
  done
  prints "^rank .* forward ms "
fi

finish screen
