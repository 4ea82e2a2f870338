#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Names and descriptions in files may contain control characters. They are printed as visible
# escapes, never as they are.
# Usage: test_golden_escapes.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

escape='\\u001b[31m\\u009b2J\\u007f\\u0007'

# clean ARGUMENTS...: neither stream has a control character except line feeds and tabs.
clean() {
  timeout "$limit" "$hocket" "$@" >out 2>err
  for stream in out err; do
    ! LC_ALL=C grep -aqP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' "$stream" ||
      fail "hocket $*: control characters on std$stream: $(grep -aoP '.{20}[\x00-\x08\x0b-\x1f\x7f]' "$stream" | cat -v | head -2)"
  done
}

tiny_model
sed "s/Two GPUs that nobody has/Two GPUs $escape red/; s/\"500\.1\"/\"$escape\"/" \
  "$tests/data/calibrated-node.json" >node.json
grep -q u001b node.json || fail "nothing was put into the profile"
clean machine import node.json
for command in "machine list" "machine list --wide" "machine show made-up-node" "machine show ./node.json" \
  "machine show ./node.json --json" "machine export ./node.json" "machine diff node.json h200-16c" \
  "plan --model gpt2 --machine ./node.json --explain" "plan --model gpt2 --machine ./node.json --json"; do
  clean $command
  [ -s out ] || fail "hocket $command: prints nothing: $(cat -v err)"
done
clean machine show ./node.json
prints 'Two GPUs \\x1b\[31m\\xc2\\x9b2J\\x7f\\x07 red'

# JSON keeps the text, with its control characters as escapes.
clean machine export ./node.json
if command -v python3 >/dev/null 2>&1; then
  python3 -c 'import json
a, b = json.load(open("out")), json.load(open("node.json"))
assert a["description"] == b["description"], a["description"]
assert "\x1b[31m\x9b2J\x7f\x07" in a["description"]' || fail "an exported description is another"
fi

# Plans: labels, names of models and machines.
"$hocket" simulate --model tiny.json --machine h200-16c --policy interleave --stride 2 --subgroup 20k \
  --cpu-threads 2 -o plan.json --quiet >out
sed "s/\"interleave\"/\"x$escape\"/; s/\"tiny\"/\"t$escape\"/; s/\"h200-16c\"/\"h$escape\"/" plan.json >named.json
grep -q u001b named.json || fail "nothing was put into the plan"
for command in "simulate named.json --machine h200-16c --keep" "simulate named.json" \
  "simulate named.json --machine h200-16c --json" "trace export named.json --machine h200-16c --csv" \
  "trace export named.json --machine h200-16c -o -" "run named.json --backend host --steps 1 --keep" \
  "trace list" "trace show 1" "trace show 1 --json" "trace diff 1 2" "validate engine named.json --backend host \
  --machine made-up-node --steps 1"; do
  clean $command
  [ -s out ] || [ -s err ] || fail "hocket $command: prints nothing"
done

# Names of files.
odd=$'o\e[31md\xc2\x9b.json'
cp tiny.json "$odd"
clean model show "./$odd"
clean model show "./no$odd"
clean plan --model "./$odd" --machine h200-16c
clean simulate "$odd"
clean trace import deepspeed "$odd"
printf '\e[31mred\e[0m\n%s\n' "$(cat "$tests/data/logs/7b-a100-dp4-interleave-k2.log")" >$'l\e.log'
clean trace import deepspeed $'l\e.log'

finish escapes
