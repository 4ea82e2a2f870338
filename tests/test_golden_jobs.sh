#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# --jobs: equal jobs at once on one host share what the host has, and nothing else.
# Usage: test_golden_jobs.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

# value FILE KEY: the first value of the key in a JSON answer.
value() {
  sed -nE "s/^[[:space:]]*\"$2\":[[:space:]]*([0-9.eE+-]+),?$/\1/p" "$1" | head -n 1
}

job=(--params 1.3G --layers 24 --hidden 2048 --machine dgx-h100-8x80gb)
policies=("zero-offload" "streamed" "mapped" "interleave --stride 3" "twinflow --ratio 0.5")

# -- One job is what there was before ------------------------------------------------------------

for command in "plan --policy interleave --quiet" "simulate --policy streamed --json" \
  "simulate --policy zero-offload --runtime deepspeed"; do
  # shellcheck disable=SC2086
  ok $command "${job[@]}" --gpus 1 && cp out one
  # shellcheck disable=SC2086
  ok $command "${job[@]}" --gpus 1 --jobs 1
  cmp -s one out || fail "$command: --jobs 1 changes the answer"
done

# -- Two jobs on a host with twice of all that is shared are one on the host -----------------------

# Rules that count the GPUs which copy at once are off: their links are their own.
alike=(--gpus 1 --set dram.d2h_priority=1 --set dram.cpu_beside_h2d=1 --set dram.cpu_beside_d2h=1
  --set framework.report_crowding=0)
doubled=()
for key in node.cores node.memory node.reserved dram dram.with_dma fabric.h2d fabric.d2h \
  fabric.duplex; do doubled+=(--set "$key*=2"); done
for key in cpu.adamw cpu.adamw_fp32 cpu.unscale cpu.cast dram.dma_weight dram.process \
  cpu.adamw_thread_scale cpu.adamw_fp32_thread_scale cpu.unscale_thread_scale \
  cpu.cast_thread_scale; do doubled+=(--set "$key*=1"); done # they would follow
for policy in "${policies[@]/%/ --overlap both}" "${policies[@]}" \
  "zero-offload --runtime deepspeed"; do
  # shellcheck disable=SC2086
  ok simulate "${job[@]}" "${alike[@]}" --policy $policy --json && cp out one
  # shellcheck disable=SC2086
  ok simulate "${job[@]}" "${alike[@]}" "${doubled[@]}" --jobs 2 --policy $policy --json
  for key in fwd_ms bwd_ms update_ms iteration_ms; do
    [ "$(value one $key)" = "$(value out $key)" ] ||
      fail "$policy: $key $(value out $key) of two jobs, $(value one $key) of one"
  done
  [ "$(value out host_peak_bytes)" = $((2 * $(value one host_peak_bytes))) ] ||
    fail "$policy: two jobs do not need twice the host memory"
done

# -- More jobs are never faster, and four are as four ranks that communicate nothing ---------------

for policy in "${policies[@]}"; do
  last=0
  for jobs in 1 2 8; do
    # shellcheck disable=SC2086
    ok simulate "${job[@]}" --gpus 1 --jobs $jobs --policy $policy --json
    awk -v a="$last" -v b="$(value out update_ms)" 'BEGIN { exit !(a <= b) }' ||
      fail "$policy: an update is faster with $jobs jobs"
    last=$(value out update_ms)
  done
  # shellcheck disable=SC2086
  ok simulate --params 8G --layers 32 --hidden 4096 --machine dgx-h100-8x80gb --gpus 4 \
    --policy $policy --json && cp out sharded # 2.0007 G parameters a rank
  # shellcheck disable=SC2086
  ok simulate --params 2G --layers 32 --hidden 2048 --machine dgx-h100-8x80gb --gpus 1 --jobs 4 \
    --policy $policy --json # 1.9987 G
  awk -v a="$(value sharded update_ms)" -v b="$(value out update_ms)" \
    'BEGIN { exit !(b > 0.995 * a && b < 1.005 * a) }' ||
    fail "$policy: $(value out update_ms) ms, of shards as large $(value sharded update_ms)"
done

# -- Answers -------------------------------------------------------------------------------------

ok plan "${job[@]}" --gpus 1 --jobs 4 --price 24/h
head -n 1 out | grep -q '^each of 4 jobs: .* fits: ' || fail "plan: '$(head -n 1 out)'"
prints '^4 equal jobs of 1 GPU at once on each node, in step: '
prints ' at 6\.000 per hour'
ok plan "${job[@]}" --policy zero-offload --jobs 4 --json -o plan.json --quiet && cp out planned
[ "$(value planned gpus) $(value planned jobs)" = "2 4" ] || fail "4 jobs of 8 GPUs"
awk -v all="$(value planned iteration_ms)" -v alone="$(value planned others_idle_ms)" \
  'BEGIN { exit !(0 < alone && alone < all) }' || fail "the others take nothing"
ok simulate plan.json --json # a plan file names its jobs
[ "$(value planned iteration_ms)" = "$(value out iteration_ms)" ] ||
  fail "the plan file is simulated otherwise"
ok simulate plan.json
head -n 1 out | grep -q '^4 equal jobs of 2 GPUs' || fail "simulate: '$(head -n 1 out)'"
ok estimate "${job[@]:0:6}" --jobs 4 --gpus 1
head -n 1 out | grep -q '^each of 4 jobs: needs ' || fail "estimate: '$(head -n 1 out)'"
ok estimate "${job[@]:0:6}" --jobs 4 --gpus 1 --json && cp out four
ok estimate "${job[@]:0:6}" --gpus 1 --json
host=$(sed -nE 's/^.*"host_bytes":[[:space:]]*([1-9][0-9]*),$/\1/p' out | head -n 1) # with offload
grep -q "\"host_bytes\":[[:space:]]*$((4 * host)),$" four || fail "estimate: host memory of four jobs"
"$hocket" plan "${job[@]}" --gpus 2 --jobs 5 >out 2>err
[ $? = 2 ] || fail "more jobs than GPUs"
grep -q -e '--jobs 5 of 2 GPUs each: dgx-h100-8x80gb has 8$' err || fail "said '$(cat err)'"
ok simulate plan.json --machine polaris-a100-4x40gb
prints '--jobs 4 times --gpus 2 is more than the 4 of polaris-a100-4x40gb: '
"$hocket" plan --params 13G --layers 40 --hidden 5120 --machine dgx-h100-8x80gb --gpus 1 --jobs 8 \
  --set node.memory=700GB --json >out 2>err
[ $? = 1 ] || fail "eight jobs fit into 700 GB"
most=$(sed -nE 's/^.*"options":[[:space:]]*"--jobs ([0-9]+) --gpus 1".*$/\1/p' out)
tr '\n' ' ' <err | grep -q "; try --jobs $most --gpus 1, the most that fit: " || fail "said '$(cat err)'"
for jobs in "$most" $((most + 1)); do
  "$hocket" plan --params 13G --layers 40 --hidden 5120 --machine dgx-h100-8x80gb --gpus 1 \
    --jobs "$jobs" --set node.memory=700GB --quiet >out 2>err
  [ $? = $((jobs > most)) ] || fail "--jobs $jobs of $most that fit: '$(head -n 1 out)'"
done

finish "several jobs on one host"
