#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Intervals and prices of `plan`: text, JSON, and refused options.
# Usage: test_golden_price.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
export LC_ALL=C # the sign of an interval is then +-

seven="--model llama-2-7b --machine polaris-a100-4x40gb"

# number KEY: the first value of the key in `out`.
number() {
  sed -nE "s/^[[:space:]]*\"$1\":[[:space:]]*([0-9.eE+-]+),?$/\1/p" out | head -n 1
}
# near A B: equal to 1e-9 of B.
near() {
  awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(b != 0 && d * d <= 1e-18 * b * b) }'
}

# -- Intervals ------------------------------------------------------------------------------------

ok plan $seven
head -n 1 out | grep -qE "fits: [0-9.]+ \+- [0-9.]+ ms/iteration" || fail "plan: '$(head -n 1 out)'"
prints "^rank .* iter ms +\+- ms"
prints "^ +1=? +gpu-only +hocket .* \+-[0-9.]+ "
prints "^\+-: half of the 95 % interval"
prints "framework.fsdp_step_ns \(default\) [0-9.]+ %"
# The measurement that would narrow it most, and by how much.
tr '\n' ' ' <out | grep -qE "Narrowed most by measuring [a-z0-9._]+ +\('hocket (fit|calibrate)'[a-z ]+\): to +about [0-9]+ % of" ||
  fail "plan does not say what would narrow the interval"
LC_ALL=C.UTF-8 ok plan $seven
prints "fits: [0-9.]+ ± [0-9.]+ ms/iteration"
ok plan $seven --quiet
! grep -q "half of the" out || fail "--quiet prints the note"

ok plan $seven --json
for key in rank iteration_error_pct fwd_low_ms update_high_ms low_tokens_per_s level_pct draws left_pct \
  stated scatter effect_pct; do
  [[ $(number $key) ]] || fail "plan --json: no $key"
done
awk -v low="$(number iteration_low_ms)" -v ms="$(number iteration_ms)" \
  -v high="$(number iteration_high_ms)" 'BEGIN { exit !(0 < low && low < ms && ms < high) }' ||
  fail "the interval does not hold the time"
grep -q '"tied":' out || fail "plan --json: no tied"
cp out first
ok plan $seven --json
cmp -s out first || fail "the interval is not the same twice"

ok simulate $seven --policy zero-offload
prints "^iteration +[0-9.]+ ms \\+-[0-9.]+ +[0-9]+ tokens/s$"
prints "^forward +[0-9.]+ ms \\+-[0-9.]+$"
prints "^\\+-: half of the 95 % interval"
ok simulate $seven --policy zero-offload --json
for key in fwd_low_ms update_high_ms iteration_error_pct effect_pct; do
  [[ $(number $key) ]] || fail "simulate --json: no $key"
done

# 'machine show' has the intervals.
ok machine show polaris-a100-4x40gb
prints "^quantity +value +95 % interval +origin"
prints "^gpu.matmul_efficiency +[0-9.]+ +[0-9.]+ to [0-9.]+ +fitted"
prints "^gpu.hbm_bytes_per_s +[0-9.]+ TB/s +- +data sheet"

# Measured quantities without errors: the interval is unknown. With a stated error for every
# quantity, no scatter of unmeasured ones is assumed.
"$hocket" machine show polaris-a100-4x40gb --json |
  sed -e 's/"origin":[[:space:]]*"[a-z ]*"/"origin": "measured"/' \
    -e 's/^\([[:space:]]*\)"standard_error":.*/\1"x": 0,/' >unknown.json
sed 's/^\([[:space:]]*\)"origin":.*/\1"origin": "measured", "error": 0.02,/' unknown.json >stated.json
ok plan --model llama-2-7b --machine unknown.json
prints "^gpu-only fits: [0-9.]+ ms/iteration"
prints "^interval unknown: the profile states no errors; the time depends on"
ok plan --model llama-2-7b --machine unknown.json --json
grep -q '"uncertainty":[[:space:]]*null' out || fail "unknown interval: not null"
ok plan --model llama-2-7b --machine stated.json
prints "^\+-: half of the 95 % interval .*\([0-9]+ as$"
! grep -q "scatter" out || fail "stated errors: $(grep scatter out)"

# -- Prices ---------------------------------------------------------------------------------------

# 10 an hour for the node: 10 / 3600 / tokens/s x 10^6 for a million tokens.
ok plan $seven --price 2.5/gpu/h --tokens 3G --json
tokens=$(number tokens_per_s)
near "$(number cost_per_million_tokens)" "$(awk -v t="$tokens" 'BEGIN { printf "%.15g", 10 / 3600 / t * 1e6 }')" ||
  fail "cost of a million tokens: $(number cost_per_million_tokens) at $tokens tokens/s"
near "$(number run_cost)" "$(awk -v c="$(number cost_per_million_tokens)" 'BEGIN { printf "%.15g", c * 3000 }')" ||
  fail "cost of the run: $(number run_cost)"
near "$(number run_hours)" "$(awk -v t="$tokens" 'BEGIN { printf "%.15g", 3e9 / t / 3600 }')" ||
  fail "hours of the run: $(number run_hours)"
cp out gpu.json
ok plan $seven --price 10/h --tokens 3G --json
cmp -s out gpu.json || fail "10/h is not 4 x 2.5/gpu/h"
ok plan $seven --price 5/node/h --nodes 2 --steps 100 --json
near "$(number price_per_hour)" 10 || fail "two nodes: $(number price_per_hour) an hour"
near "$(number run_tokens)" 1638400 || fail "100 steps of 8 x 2048: $(number run_tokens) tokens"
ok plan $seven --price 10/h --tokens 3G
prints "^costs 0\.[0-9]+ per million tokens at 10\.00 per hour; 3,000,000,000 tokens take"
prints "^95 % interval: 0\.[0-9]+ to [1-9]\.[0-9]+ times that$"
prints "^rank .*cost/Mtok$"
awk 'length > 80 { exit 1 }' out || fail "wider than 80"
ok plan $seven --policy twinflow --runtime hocket --clip-share 0.3 --price 10/h --wide
prints "^rank +policy +runtime .* mean ms .*cost/Mtok$" # 17 columns
ok plan $seven --tokens 3G
prints "^3,000,000,000 tokens take [0-9.]+ (hours|days)$"
! grep -q "cost" out || fail "a cost without a price"

# -- Failures -------------------------------------------------------------------------------------

# llama-2-7b: 12 x 6,738,415,616 bytes at 2 GB/s, two nodes: 20.2152 s. The job fails every 50 hours:
# an interval of sqrt(2 x 20.2152 x 180000) = 2697.67 s. Reading at 7 GB/s 5.7758 s, and 10 minutes:
# 20.2152 / 2697.67 + (2697.67 / 2 + 605.776) / 180000 = 1.83525 %.
failing="$seven --nodes 2 --mtbf 100 --restart 10 --set nvme.write=2GB/s --set nvme.read=7GB/s"
ok plan $seven --nodes 2 --price 10/h --tokens 3G --json
hours=$(number run_hours) cost=$(number run_cost) token=$(number cost_per_million_tokens)
ok plan $failing --price 10/h --tokens 3G --json
lost=$(awk 'BEGIN { w = 40.430493696 / 2; m = 180000; i = sqrt(2 * w * m)
  printf "%.15g", 100 * (w / i + (i / 2 + w * 2 / 7 + 600) / m) }')
near "$(number lost_pct)" "$lost" || fail "lost: $(number lost_pct) %, expected $lost"
near "$(number checkpoint_bytes)" 80860987392 || fail "checkpoint: $(number checkpoint_bytes)"
for pair in "run_hours $hours" "run_cost $cost" "cost_per_million_tokens $token"; do
  read -r key without <<<"$pair"
  near "$(number "$key")" "$(awk -v x="$without" -v l="$lost" 'BEGIN { printf "%.15g", x / (1 - l / 100) }')" ||
    fail "$key: $(number "$key"), without failures $without"
done
ok plan $failing
tr '\n' ' ' <out | tr -s ' ' | grep -qF "failures and checkpoints take 1.84 % of the time: the job fails every 50.0 hours; a checkpoint of 80.9 GB takes 20.2 s, best every 45.0 minutes; a restart takes 10.1 minutes" ||
  fail "failures: $(grep -A3 failures out)"
ok plan --model llama-2-7b --machine polaris-a100-4x40gb=10/h --machine h200-16c --tokens 1G --mtbf 100
prints "^Hours and costs include failures and checkpoints"
ok plan $seven --tokens 3G
! grep -q "failures" out || fail "failures that nobody asked for"

# -- Several machines -----------------------------------------------------------------------------

# The order follows the prices. A price given with a machine takes precedence over --price.
several="--model llama-2-7b --machine polaris-a100-4x40gb=10/h --machine h200-16c"
ok plan $several --price 1/h
prints "^cheapest per token: h200-16c at [0-9.]+ per million tokens, [0-9]+ tokens/s with"
prints "^machine .*cost/Mtok"
ok plan $several --price 1000/h --json
grep -m 1 '"machine":' out | grep -q polaris || fail "expected polaris-a100-4x40gb first"
[ "$(grep -c '"cost_per_million_tokens":' out)" -eq 2 ] || fail "costs: $(grep cost_per out)"
grep -q '"order":[[:space:]]*"cost_per_million_tokens"' out || fail "not in the order of cost"
grep -qE '"separated_from_first":[[:space:]]*(true|false)' out || fail "no separated_from_first"
ok plan $several
prints "^fastest: polaris-a100-4x40gb, [0-9]+ tokens/s"
# It says that each machine runs the same job, not its best.
tr '\n' ' ' <out | grep -q "all run micro-batch 1, grad-accum 1; an iteration has 2,048 tokens on h200-16c and 8,192 on polaris-a100-4x40gb. The order can change with the batch" ||
  fail "no note on the jobs of a comparison"
ok plan $several --quiet
! grep -q "best job" out || fail "--quiet prints the note on jobs"
ok plan $several --json
grep -qE '"tokens_per_iteration":[[:space:]]*8192' out || fail "no tokens_per_iteration"
grep -q '"note":.*The order can change with the batch' out || fail "no note in JSON"
ok plan $several --price 1/h --tokens 1G
prints "^machine .*run hours +run cost"
awk 'length > 80 { exit 1 }' out || fail "wider than 80"
ok plan --model gpt2 --machine polaris-a100-4x40gb=10/h
prints "^costs [0-9.]+ per million tokens at 10.00 per hour$"

ok plan --model llama-2-13b --machine workstation-rtx4090-ddr5 --machine polaris-a100-4x40gb
prints "^workstation-rtx4090-ddr5: does not fit: "
"$hocket" plan --model llama-3-70b --machine workstation-rtx4090-ddr5 --machine h200-16c >out 2>err
said 1 "does not fit on any of these machines; on " "two machines that are too small" $?

# -- Mistakes -------------------------------------------------------------------------------------

for price in 2.5 2.5/ 2.5/d -1/h 0/h 1e3/h nan/h inf/h /h "2.5 /h" 2.5/h/gpu; do
  expect 2 "option '--price': expected a price such as 2.5/h \(of a node\) or 2.5/gpu/h, got" \
    plan $seven --price="$price"
done
expect 2 "'--output' needs a single --machine" plan $several -o plan.json
expect 2 "h201-16c.*h200-16c" plan $several --machine h201-16c=3/h
expect 2 "--restart .* needs --mtbf HOURS" plan $seven --restart 3
expect 2 "failures leave less than half of the time: one every 3.6 s of 1 nodes" plan $seven --mtbf 0.001
expect 2 "--tokens and --steps both" plan $seven --tokens 1G --steps 10
expect 2 "option '--tokens': expected a whole number" plan $seven --tokens 0

finish "intervals and prices"
