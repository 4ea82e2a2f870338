#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# `plan --others`: text, JSON, refusals; and the stated errors, by predicting the evidence again.
# Usage: test_golden_others.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

cat >3g.json <<EOF
{"architectures": ["LlamaForCausalLM"], "hidden_size": 3072, "intermediate_size": 8192,
 "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
 "vocab_size": 32000, "max_position_embeddings": 2048}
EOF
three="--model 3g.json --micro-batch 4"

# of ROW KEY: the value of a key of the row of that number in `out`.
of() {
  python3 -c "import json; print(json.load(open('out'))['others'][$1].get('$2'))"
}
# evidence ROW MEASURED [ERROR]: the row's stated error, or that one, is of its prediction in `out`.
evidence() {
  local stated=${3:-$(of "$1" known_error_pct)}
  awk -v ms="$(of "$1" iteration_ms)" -v measured="$2" -v stated="$stated" \
    'BEGIN { d = 100 * (ms / measured - 1) - stated; exit !(d > -0.06 && d < 0.06) }' ||
    fail "row $1: predicted $(of "$1" iteration_ms), measured $2, stated $stated %"
  [[ $(of "$1" evidence) == *"$2 ms${3:+ ($3 %)}"* ]] ||
    fail "row $1: evidence '$(of "$1" evidence)', not $2 ms"
}

# -- The evidence (docs/commands.md) --------------------------------------------------------------

ok plan $three --machine h200-node-4x-64c --gpus 2 --cpu-threads 16 --others --quiet --json
evidence 0 1807
ok plan $three --machine "$tests/data/h100-node-2-gpus.json" --gpus 2 --cpu-threads 16 --others --quiet --json
evidence 0 1845 -10.7
evidence 1 5937
[ "$(of 2 feasible) $(of 2 iteration_ms)" = "False None" ] || fail "torchao on two GPUs"
ok plan $three --machine h200-node-16c --others --quiet --json
evidence 2 808 -12.0
fast=$(of 4 update_ms)
ok plan $three --machine "$tests/data/h100-node.json" --others --quiet --json
evidence 2 1255
evidence 3 569
evidence 3 633 -33.4
ok plan $three --machine h200-node-16c --others --quiet --json
ok plan $three --machine h200-node-16c --others --quiet --json --max-norm 1
awk -v a="$fast" -v b="$(of 4 update_ms)" 'BEGIN { exit !(a < b) }' ||
  fail "SuperOffload updates beside backward although it clips"
ok plan --model qwen3-14b --machine gh200-96gb --micro-batch 4 --seq 4096 --others --quiet --json
evidence 4 3593
ok plan --model llama-2-7b --machine dgx-a100-8x80gb --gpus 1 --seq 512 --others --quiet --json
awk -v n="$(of 3 gpu_peak_bytes)" 'BEGIN { exit !(sprintf("%.1f", n / 2 ^ 30) == "37.9") }' ||
  fail "8-bit AdamW: $(of 3 gpu_peak_bytes) bytes of GPU memory, stated: 37.9 GiB"

# -- Text -----------------------------------------------------------------------------------------

ok plan $three --machine h200-node-16c --others
prints "^others: 8-bit AdamW on the GPU, no fp32 weights, [0-9.]+ ms/iteration, 0\.[0-9]+ x the"
prints "^instead of hocket +iter ms +GPU GiB +host GiB +known error +fits"
prints "^known error: "
head -n 1 out >first
ok plan $three --machine h200-node-16c
cmp -s first <(head -n 1 out) || fail "--others changes the answer"
! grep -qE "^others|instead of hocket" out || fail "rows without --others"
ok plan $three --machine h200-node-16c --others --wide --quiet
prints "^FSDP2 CPU offload +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ .* -15.6 % .* 1807 ms: 3.0 G.* torch 2.15"
! grep -q "^known error" out || fail "--quiet prints what rows assume"

"$hocket" plan --model llama-2-13b --machine workstation-rtx4090-ddr5 --others --wide --quiet >out 2>err
[ $? -eq 1 ] || fail "a job that does not fit: exit status"
prints "^others: none fits"
prints "lacks [0-9.]+ GiB of GPU"
prints "lacks [0-9.]+ GiB of host"

# -- Refused --------------------------------------------------------------------------------------

expect 2 "'--others' needs a single --machine" plan $three --machine h200-16c --machine gh200-96gb --others
expect 2 "'--others' cannot be given with --largest" plan --model 3g.json --machine h200-16c --largest batch --others
expect 2 "without pipeline and expert parallelism: leave out" plan $three --machine h200-16c --lora 16 --others

finish "plan --others"
