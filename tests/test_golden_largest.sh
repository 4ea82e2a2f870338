#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# plan --largest: `plan` confirms that the largest value fits and the next one does not.
# Usage: test_golden_largest.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
export LC_ALL=C

tight="--model gpt2 --machine workstation-rtx4090-ddr5"

# number KEY: the first value of the key in `out`.
number() {
  sed -nE "s/^[[:space:]]*\"$1\":[[:space:]]*([0-9.eE+-]+),?$/\1/p" out | head -n 1
}

# limits OPTIONS OPTION VALUE NEXT: plan fits with VALUE and not with NEXT.
limits() {
  "$hocket" plan $1 "$2" "$3" --quiet >out 2>err || fail "$2 $3: exit $?: $(cat err)"
  "$hocket" plan $1 "$2" "$4" --quiet >out 2>err
  [ $? -eq 1 ] || fail "$2 $4 fits"
}

ok plan $tight --largest batch --json
batch=$(number largest)
[[ $batch -gt 1 ]] || fail "largest batch: '$batch'"
tokens=$(number tokens_per_s)
grep -q '"schema":[[:space:]]*"hocket.plan_largest/1"' out || fail "no schema"
grep -q '"fits":[[:space:]]*false' out || fail "nothing that does not fit was tried"
limits "$tight" --micro-batch "$batch" $((batch + 1))
ok plan $tight --micro-batch "$batch" --quiet --json
[ "$(number tokens_per_s)" = "$tokens" ] || fail "plan: $(number tokens_per_s), --largest: $tokens"

# The answer is what plan's searches find; while sizes are tried they do not run.
short="--model qwen2.5-7b --machine workstation-rtx4090-ddr5"
ok plan $short --largest batch --json
most=$(number largest) tokens=$(number tokens_per_s)
grep -q '"schedule":[[:space:]]*"searched' out || fail "no searched plan among $short"
ok plan $short --micro-batch "$most" --quiet --json
[ "$(number tokens_per_s)" = "$tokens" ] || fail "plan: $(number tokens_per_s), --largest: $tokens"

ok plan $tight --largest batch -o best.json --price 2/h
head -n 1 out | grep -qE "^largest micro-batch: $batch: [0-9]+ tokens/s, [0-9.]+ \+- [0-9.]+" ||
  fail "begins with '$(head -n 1 out)'"
prints "^$((batch + 1)) does not fit: GPU memory: "
prints "^costs [0-9.]+ per million tokens at 2.000 per hour$"
awk 'length > 80 { exit 1 }' out || fail "wider than 80"
grep -qE "\"micro_batch\":[[:space:]]*$batch," best.json || fail "best.json: another micro-batch"

# gpt2's table of positions limits the sequence; llama's computed positions do not. Steps of 1024.
ok plan $tight --largest seq
prints "^largest sequence: 1024 tokens: "
prints "^no larger one is allowed by the model$"
llama="--model llama-2-7b --machine polaris-a100-4x40gb"
ok plan $llama --largest seq --micro-batch 8 --json
seq=$(number largest)
((seq % 1024 == 0 && seq > 1024)) || fail "largest sequence: $seq"
limits "$llama --micro-batch 8" --seq "$seq" $((seq + 1024))
ok plan $llama --largest seq --micro-batch 65536 --quiet
prints "^largest sequence: [0-9]{1,3} tokens: "

ok plan $llama --largest model
prints "^largest model: llama-2-13b \(13.0 G parameters\): "
prints "^llama-2-70b does not fit: host memory: "
prints "^the shape of llama-2-7b with the most layers that fit: llama-2-7b, [0-9]+ layers$"
if [[ -n ${HOCKET_TEST_FULL:-} ]]; then # two seconds
  tiny_model
  ok plan --model tiny.json --machine workstation-rtx4090-ddr5 --largest model --json -o layers.json
  layers=$(number layers)
  [[ $layers -gt 2 ]] || fail "layers of tiny.json: '$layers'"
  grep -qE "\"num_hidden_layers\":[[:space:]]*$layers," layers.json || fail "layers.json: other layers"
fi

"$hocket" plan --model llama-3-70b --machine h200-16c --largest batch >out 2>err
said 1 "^hocket plan: does not fit: host memory: " "llama-3-70b" $?
prints "^largest micro-batch: none fits: host memory: "
expect 2 "'--micro-batch' cannot be given with --largest batch" plan $tight --largest batch --micro-batch 2
expect 2 "'--seq' cannot be given with --largest seq" plan $tight --largest seq --seq 2
expect 2 "'--emit' cannot be given with --largest model" plan $tight --largest model --emit fsdp
expect 2 "'--largest' needs a single --machine" plan $tight --machine h200-16c --largest seq
expect 2 "option '--largest': expected batch\|seq\|model" plan $tight --largest layers

finish "plan --largest"
