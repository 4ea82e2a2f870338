#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# `plan --emit` and `plan --from`: a written file is read back as the same row, and DeepSpeed's and
# Accelerate's own classes load it if a Python has them.
# Usage: test_golden_config.sh HOCKET
# HOCKET_TEST_PYTHON: a Python with deepspeed; by default .venv-torch's (scripts/test-python)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
python=${HOCKET_TEST_PYTHON:-$tests/../.venv-torch/bin/python}

# number KEY FILE: the first number of that key.
number() { sed -nE "s/^[[:space:]]*\"$1\":[[:space:]]*([-0-9.e+]+),?\$/\1/p" "$2" | head -n 1; }

# -- Written files -------------------------------------------------------------------------------

a100="--model llama-2-7b --machine polaris-a100-4x40gb"
"$hocket" plan $a100 --emit deepspeed --max-norm 0.5 >gpu.json 2>err || fail "--emit: $(cat err)"
grep -qE "^hocket plan: wrote row [0-9]+ as a configuration of DeepSpeed: gpu-only, predicted" err ||
  fail "--emit deepspeed: said '$(cat err)'"
grep -q "cannot express: phases and subgroups" err || fail "--emit: said '$(cat err)'"
grep -q "not *checkpointed" err && fail "--emit: said '$(cat err)'"
[[ $(number stage gpu.json) == 3 && $(number gradient_clipping gpu.json) == 0.5 ]] ||
  fail "--emit deepspeed: $(cat gpu.json)"

# A plan from each row's file has the time of the row.
while read -r name row arguments; do
  "$hocket" plan $arguments --emit deepspeed $row -o "$name.json" --quiet --json >out.json 2>err ||
    fail "$name: $(cat err)"
  sed -n '/"emit":/,$p' out.json >emit.json
  "$hocket" plan $arguments --from "$name.json" --json >from.json 2>err || fail "$name: $(cat err)"
  sed -n '/"yours":/,$p' from.json >yours.json
  wrote=$(number iteration_ms emit.json) read=$(number iteration_ms yours.json)
  [[ -n $wrote && $wrote == "$read" ]] || fail "$name: wrote '$wrote' ms, read '$read' ms"
done <<END
zero --quiet $a100 --policy zero-offload
part --quiet $a100 --policy twinflow --ratio 0.35 --subgroup 50M --grad-accum 2
seventh --row=7 $a100
staged --row=6 --model llama-3-8b --machine h200-node-16c --micro-batch 2
END
grep -qE '"ratio":[[:space:]]*0\.[0-9]+,?$' part.json || fail "no ratio: $(cat part.json)"
grep -qE '"sub_group_size":[[:space:]]*50000000,' part.json || fail "subgroups: $(cat part.json)"

# The table and the JSON mark the rows that stock DeepSpeed runs.
"$hocket" plan $a100 --policy interleave --ratio 0.4 >out 2>err
! grep -q 'interleave .*\* ' out || fail "interleave is marked: $(cat out)"
# Four subgroups, of which stride and ratio leave none to the GPU: still a row of the prototype.
"$hocket" plan --model vit-large --machine aws-g5.2xlarge --quiet >out 2>err
prints '^ *[0-9]+  interleave k=2 r=0\.40 +deepspeed '
! grep -q 'interleave .*\* ' out || fail "interleave without a staged subgroup is marked"
# An error larger than the time is printed as an interval with two ends instead of ±.
prints '^gpu-only fits: [0-9]+ \([0-9]+ to [0-9]+\) ms/iteration, '
"$hocket" plan $a100 --policy zero-offload --json >out
[[ $(grep -c '"stock_deepspeed":[[:space:]]*true' out) == 1 ]] || fail "stock_deepspeed: not one"
"$hocket" plan $a100 >out
prints '^ *[0-9]+  zero-offload\* +deepspeed '
prints '^\* DeepSpeed as it ships runs this'

"$hocket" plan $a100 --emit accelerate -o acc.yaml >out 2>err || fail "accelerate: $(cat err)"
grep -q "names ds_config.json, which the same command writes" err || fail "accelerate: $(cat err)"
"$hocket" plan $a100 --emit fsdp --row 4 >fsdp.yaml 2>err || fail "fsdp: $(cat err)"
grep -q "FSDP offloads all or none" err || fail "fsdp: $(cat err)"
grep -q "fsdp_offload_params: true" fsdp.yaml || fail "fsdp: $(cat fsdp.yaml)"

# A note names each setting that a DeepSpeed configuration cannot express.
"$hocket" plan $a100 --state lion --loss-chunks 4 --emit deepspeed >lion.json 2>err ||
  fail "--state lion: $(cat err)"
grep -q "cannot express: optimizer lion" err || fail "--state lion: $(cat err)"
grep -q "cannot express: a loss in 4 slices" err || fail "--loss-chunks: $(cat err)"
"$hocket" plan $a100 --grad-accum 4 --accumulate host --emit deepspeed >host.json 2>err ||
  fail "--accumulate host: $(cat err)"
grep -q "cannot express: gradients of micro-steps" err || fail "--accumulate: $(cat err)"
"$hocket" plan $a100 --overlap both --emit deepspeed >both.json 2>err || fail "both: $(cat err)"
grep -q "cannot express: an update that overlaps" err || fail "--overlap both: $(cat err)"

# 17 subgroups: int(0.2 x 17) = 3 on the GPU, and 17 - int(0.8 x 17) = 4 before 0.18.
cat >rounds.json <<'END'
{"zero_optimization": {"stage": 3, "sub_group_size": 100000000,
                       "offload_optimizer": {"device": "cpu", "ratio": 0.8}},
 "bf16": {"enabled": true}}
END
"$hocket" plan $a100 --from rounds.json >out 2>err || fail "rounds: $(cat err)"
prints '^note: rounds.json: ratio 0.8 keeps 3 of 17 subgroups on the GPU; '
prints '^yours \(rounds.json\): twinflow r=0.80 under DeepSpeed, '

# -- Read files ----------------------------------------------------------------------------------

cat >mine.json <<'END'
{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": "auto"},
 "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                       "offload_optimizer": {"device": "cpu", "pin_memory": true, "ratio": 0.8}}}
END
"$hocket" plan $a100 --from mine.json >out 2>err || fail "--from: $(cat err)"
prints 'micro-batch 4, grad-accum 2, '
grep -q 'pin_memory' out && fail "--from: $(cat out)"
prints '^yours \(mine.json\): zero-offload under DeepSpeed, [0-9]+ ± [0-9]+ ms/iteration'
prints '^  with DeepSpeed before 0.19.5, which copies gradients synchronously: [0-9.]+ ms'
prints '^better by configuration alone \(--emit\): gpu-only \(deepspeed\), '
prints '^best: interleave k=2 r=0\.06 front \(hocket\), [0-9.]+ ms/iteration, [0-9.]+ x as fast'
prints 'ratio 0.8 has no effect: '
prints 'offload_param is not simulated'
prints '^yours  zero-offload\* +deepspeed '

# An absent pin_memory is true, as in DeepSpeed since 0.19.5. If it is false, gradients are copied
# synchronously: the time of the line above.
synchronous=$(sed -nE 's/^  with DeepSpeed before 0.19.5,.*: ([0-9.]+) ms$/\1/p' out)
sed 's/"pin_memory": true, //' mine.json >absent.json
"$hocket" plan $a100 --from absent.json >again 2>err || fail "absent: $(cat err)"
sed 's/mine/absent/' out | diff - again >diff || fail "an absent pin_memory is not true: $(cat diff)"
sed 's/"pin_memory": true/"pin_memory": false/' mine.json >pageable.json
"$hocket" plan $a100 --from pageable.json --json >out 2>err || fail "pageable: $(cat err)"
sed -n '/"yours":/,$p' out >yours.json
[[ -n $synchronous && $(printf '%.1f' "$(number iteration_ms yours.json)") == "$synchronous" ]] ||
  fail "pageable: $(number iteration_ms yours.json) ms, not $synchronous"
grep -q 'pin_memory is false' yours.json || fail "pageable: no note"
"$hocket" plan $a100 --from fsdp.yaml >out 2>err || fail "--from fsdp.yaml: $(cat err)"
prints '^yours \(fsdp.yaml\): zero-offload under FSDP'
cp zero.json ds_config.json
"$hocket" plan $a100 --from acc.yaml >out 2>err || fail "--from acc.yaml: $(cat err)"
prints '^yours \(acc.yaml\): zero-offload under Accelerate'
"$hocket" plan $a100 --state lion --grad-accum 2 --accumulate host --from zero.json >out 2>err || fail "--from, lion: $(cat err)"
prints 'note: zero.json: --state does not hold for yours'
"$hocket" plan $a100 --micro-batch 64 --from zero.json --quiet >out 2>err
[ $? -eq 1 ] || fail "--from, too large: exit is not 1"
prints '^yours \(zero.json\): zero-offload does not fit: GPU memory: '

expect 1 "no row that it runs fits; row 1 as a configuration of DeepSpeed is twinflow .*; try " \
  plan --model llama-2-13b --machine aws-g5.12xlarge --emit deepspeed
expect 2 "^hocket plan: --row needs --emit" plan $a100 --row 3
expect 2 "--row 500: the ranking has [0-9]+ rows" plan $a100 --row 500 --emit deepspeed
expect 2 "train_batch_size 32 is not micro-batch 4 x accumulation 2 x 3 ranks" \
  plan $a100 --gpus 3 --from mine.json
echo '{"zero_optimization": {"stag": 3}}' >bad.json
expect 2 "bad.json: zero_optimization: key 'stag' is not known; did you mean 'stage'" \
  plan $a100 --from bad.json
expect 2 "nowhere.json: " plan $a100 --from nowhere.json

# -- DeepSpeed's and Accelerate's classes --------------------------------------------------------

((failures == 0)) || exit 1
if ! "$python" -c 'import importlib.util as u; exit(u.find_spec("deepspeed") is None)' 2>err; then
  echo "the configurations are as expected; whether DeepSpeed loads them: skipped, no deepspeed"
  exit 77
fi
"$python" - >out 2>err <<'PROGRAM' || fail "DeepSpeed refuses: $(tail -n 3 err)"
from accelerate.commands.config.config_args import load_config_from_file
from deepspeed.runtime.config import DeepSpeedConfig

for name in "gpu", "zero", "part", "seventh", "staged":
    c = DeepSpeedConfig(name + ".json")
    z = c.zero_config
    o = z.offload_optimizer
    assert z.stage == 3 and z.overlap_comm and c.bfloat16_config.enabled
    assert o.device == ("none" if name == "gpu" else "cpu") and o.pin_memory
    assert c.train_batch_size == c.train_micro_batch_size_per_gpu * c.gradient_accumulation_steps
c = DeepSpeedConfig("part.json")
assert c.gradient_accumulation_steps == 2 and c.zero_config.sub_group_size == 50_000_000
assert 0 < c.zero_config.offload_optimizer.ratio < 1
assert DeepSpeedConfig("gpu.json").gradient_clipping == 0.5
assert DeepSpeedConfig("staged.json").train_micro_batch_size_per_gpu == 2
a = load_config_from_file("acc.yaml")
assert a.distributed_type == "DEEPSPEED" and a.num_processes == 4
assert a.deepspeed_config["deepspeed_config_file"] == "ds_config.json"
f = load_config_from_file("fsdp.yaml")
assert f.distributed_type == "FSDP" and f.fsdp_config["fsdp_offload_params"] is True
print("loaded")
PROGRAM
grep -q loaded out || fail "not loaded"
finish "configurations of training frameworks"
