#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# --overlap on the command line: the three phases add up to the steady iteration, a plan file keeps
# its overlap, a model document works like a preset, contradictory options are refused.
# shellcheck source=fixture.sh
source "$(dirname "$0")/fixture.sh"

# get KEY: a number or string of the JSON object in `out`; nested keys by dots.
get() {
  python3 -c 'import json,sys
v = json.load(open("out"))
for k in sys.argv[1].split("."): v = v[k]
print(v)' "$1"
}

# holds EXPRESSION over the keys of `out`.
holds() {
  python3 -c 'import json,sys
r = json.load(open("out"))
sys.exit(0 if eval(sys.argv[1], {"abs": abs, **r}) else 1)' "$1" || fail "not so: $1"
}

machine=(--machine h200-16c)
policy=(--policy zero-offload --model llama-2-7b --micro-batch 4)

# -- Phases and keys ----------------------------------------------------------------------------
declare -A period
for overlap in none forward both; do
  ok simulate "${policy[@]}" "${machine[@]}" --overlap $overlap --check --json
  holds "settings['overlap'] == '$overlap'"
  holds "period_ms == iteration_ms"
  period[$overlap]=$(get period_ms)
  if [[ $overlap == none ]]; then
    holds "exposed_update_ms == update_ms and ahead_params == 0"
  else
    holds "abs(fwd_ms + exposed_update_ms + bwd_ms - iteration_ms) < 1e-6"
    holds "period_bound['period_ms'] <= iteration_ms"
  fi
  [[ $overlap != both ]] || holds "0 < ahead_params < 6738415616"
  [[ $overlap == both ]] || holds "ahead_params == 0"
done

# -- Clipping without its share -----------------------------------------------------------------
job=(--model llama-2-7b --micro-batch 4 "${machine[@]}" --overlap both)
ok plan "${job[@]}" --max-norm 1.0
prints "^clipped: [0-9.]+ ms an iteration in which clipping acts"
prints "^--max-norm without --clip-share: schedules are compared as if clipping acted"
ok plan "${job[@]}" --max-norm 1.0 --clip-share 0.5 --json
holds "'Nothing runs ahead of the norm, so that there are no spares.' in reason"
ok plan "${job[@]}" --max-norm 1.0 --clip-share 0.5 --gpu-memory 8G
prints "^mean: [0-9.]+ ms if clipping acts in 50 % of the steps"
! grep -q "without --clip-share" out || fail "--clip-share is ignored"
cp out text
ok plan "${job[@]}" --max-norm 1.0 --clip-share 0.5 --gpu-memory 8G --price 2/h --json
holds "clip_share == 0.5 and schedules[0]['clipped_ms'] > schedules[0]['iteration_ms']"
python3 - <<'EOF' || fail "--clip-share: the text says other times than the JSON: '$(head -3 text)'"
import json, re
text = open("text").read()
rows = [row for row in json.load(open("out"))["schedules"] if row["feasible"]]
answer = " ".join(text.split("\n\n")[0].split())
mean, clipped = re.search(r"fits: mean (\S+) ms/iteration \([0-9].*, clipped (\S+)\), ", answer).groups()
assert mean == f"{rows[0]['mean_ms']:.1f}" and clipped == f"{rows[0]['clipped_ms']:.1f}"
assert abs(2 * rows[0]["mean_ms"] - rows[0]["iteration_ms"] - rows[0]["clipped_ms"]) < 1e-4
assert re.search(r"^rank .* mean ms", text, re.M)
for row in rows: # tokens/s and the price are of the mean
    assert abs(row["tokens_per_s"] * row["mean_ms"] / 1e3 / (4 * 2048) - 1) < 1e-6, row
    assert abs(row["cost"]["cost_per_million_tokens"] * row["tokens_per_s"] * 3600 / 1e6 / 2 - 1) < 1e-6, row
assert f"{rows[0]['tokens_per_s']:.0f} tokens/s; GPU memory" in text
assert [row["mean_ms"] for row in rows] == sorted(row["mean_ms"] for row in rows)
EOF
python3 -c "import sys; sys.exit(not ${period[both]} < ${period[forward]} < ${period[none]})" ||
  fail "periods: none ${period[none]}, forward ${period[forward]}, both ${period[both]}"

# -- Documents ----------------------------------------------------------------------------------
ok simulate "${policy[@]}" "${machine[@]}" --overlap both -o plan.json --quiet --json
before=$(get period_ms)
grep -q '"hocket.plan/2"' plan.json || fail "a plan with an overlap is no hocket.plan/2"
ok simulate plan.json --json
[[ $(get period_ms) == "$before" ]] || fail "plan.json takes $(get period_ms), not $before ms"
ok simulate "${policy[@]}" "${machine[@]}" --overlap none -o plain.json --quiet --json
ok simulate "${policy[@]}" "${machine[@]}" -o default.json --quiet --json
cmp plain.json default.json || fail "overlap none changes the plan"
grep -q '"hocket.plan/1"' plain.json || fail "a plan without an overlap is no hocket.plan/1"

# With clipping by block updates wait for the other gradients of their block, and the plan file says
# so; without updates ahead of the norm it changes nothing.
ok simulate "${policy[@]}" "${machine[@]}" --overlap both --clip block -o block.json --quiet --json
block=$(get period_ms)
python3 -c "import sys; sys.exit(not 0 < abs($block - $before) < 0.02 * $before)" ||
  fail "periods: $before with clipping by the norm of all, $block by block"
grep -q '"clip":[[:space:]]*"block"' block.json || fail "the plan file does not say that blocks are clipped"
ok simulate block.json --json
[[ $(get period_ms) == "$block" ]] || fail "block.json takes $(get period_ms), not $block ms"
ok simulate "${policy[@]}" "${machine[@]}" --overlap forward --clip block --json
[[ $(get period_ms) == "${period[forward]}" ]] || fail "overlap forward depends on --clip"

cat >model.json <<'END'
{"schema": "hocket.model/1", "name": "mlp", "micro_batch": 4, "seq": 16,
 "blocks": [
  {"name": "in", "forward_flops": 4e10, "activation_bytes": 1000000, "workspace_bytes": 0},
  {"name": "out", "forward_flops": 2e10, "activation_bytes": 500000, "workspace_bytes": 0,
   "forward_ms": 2, "backward_ms": 5}],
 "tensors": [
  {"name": "a", "numel": 30000000, "block": 0},
  {"name": "b", "numel": 7000001, "block": 1, "weight_type": "fp32", "grad_type": "fp32"}]}
END
ok simulate --model model.json "${machine[@]}" --policy zero-offload --overlap both --check --json -o mine.json --quiet
holds "ahead_params == 37000001"
sed 's/"seq": 16,/"seq": 16, "launch_beside_update": 0.71,/' model.json >measured.json
explained=(simulate --model measured.json "${machine[@]}" --policy zero-offload --overlap both
  --explain --wide --quiet)
ok "${explained[@]}"
grep -q '^framework.launch_beside_update *0.71 *0.435 to 1 *measured' out || fail "--explain: the model's share"
ok "${explained[@]}" --set framework.launch_beside_update=0.6
grep -q '^framework.launch_beside_update *0.6  *-  *set' out || fail "--explain: the share of --set"
shares='"seq": 16, "launch_beside_update": [{"threads": 9, "share": 0.8}, {"threads": 13, "share": 0.6}],'
sed "s/\"seq\": 16,/$shares/" model.json >measured.json
ok "${explained[@]}" --cpu-threads 10
grep -q '^framework.launch_beside_update *0.75 .*measured' out || fail "--explain: the share beside ten threads"
ok simulate mine.json --check
grep -q 'mlp (37,000,001 parameters).*micro-batch 4' out || fail "mlp: $(head -1 out)"
ok plan --model model.json "${machine[@]}" --overlap forward --json
holds "all(s['runtime'] == 'hocket' and s['settings']['overlap'] == 'forward' for s in schedules)"
ok model show model.json
grep -q 'blocks *2' out || fail "model show: $(cat out)"

# -- Without an overlap -------------------------------------------------------------------------
# Plan bytes (SHA-256) are those of the last commit before overlaps, graph hashes of the one that
# launched a recomputed layer twice in backward; with two micro-steps, of the one that adds their
# gradients. A change of the profile h200-16c may change them, too.
while read -r bytes graph options; do
  rm -rf "$folder/kept"
  # shellcheck disable=SC2086
  ok simulate --model llama-2-7b "${machine[@]}" --gpus 1 --micro-batch 2 --subgroup 150000000 \
    $options --overlap none -o none.json --keep --quiet --json
  found=$(sha256sum <none.json | cut -c1-16)
  [[ $found == "$bytes" ]] || fail "$options: the plan's bytes have changed ($found)"
  ok trace show 1 --json
  [[ $(get graph) == "$graph" ]] || fail "$options: the graph has changed ($(get graph))"
done <<'END'
23eb44a843940d22 47c7e194fdfeda1c --policy streamed --buffers 2
1c0a3b7fd705bb3d b3281bd62d961e47 --policy mapped
b7a0a67f9237b68b 6eadf6a997f2a11d --policy twinflow --ratio 0.4
4edba9c47f1fee8c 647197145bfa82ee --policy interleave --stride 3 --ratio 0.8
5d40cf60f7cfcd70 a909abcb36b40bf1 --policy zero-offload --flush sync --grad-accum 2
END
rm -rf "$folder/kept"

# -- The search ---------------------------------------------------------------------------------
ok plan "${policy[@]:2}" "${machine[@]}" --overlap both --gpu-memory 8G --json -o best.json --quiet
holds "0 < search['simulations'] <= 65 and search['gpu_state_limit_bytes'] == 8e9"
holds "schedules[0]['policy'] == 'overlapped' and best == 0"
holds "all(s['feasible'] or 'GiB' in s['problem'] for s in schedules)"
holds "any('--gpu-memory allows' in s['problem'] for s in schedules if s['policy'] == 'gpu-only')"
holds "'--gpu-memory allows' in reason and 'closed form' in reason"
winner=$(python3 -c 'import json; print(json.load(open("out"))["schedules"][0]["period_ms"])')
grep -q '"hocket.plan/2"' best.json || fail "the best overlap is no hocket.plan/2"
ok simulate best.json --json --check
[[ $(get period_ms) == "$winner" ]] || fail "best.json takes $(get period_ms), not $winner ms"
ok plan "${policy[@]:2}" "${machine[@]}" --json
python3 -c 'import json,sys; sys.exit("search" in json.load(open("out")))' ||
  fail "there is a search without an overlap"

# With memory for all of them, sums of several micro-steps stay on the GPU, some of them where early
# weights will be; with less, state displaces some.
ok plan --model llama-2-7b --micro-batch 6 "${machine[@]}" --overlap both --grad-accum 4 --gpu-memory 40G --json -o sums.json --quiet
holds "'Between micro-steps, sums of 100 % of the gradients stay on the GPU.' in reason"
python3 -c 'import json, sys
p = json.load(open("sums.json"))
early = sum(s["numel"] for s in p["subgroups"] if s.get("early"))
state = sum(s["numel"] for s in p["subgroups"] if s["route"] == "resident")
sys.exit(not (p["sum_bytes"] > 0 and early > 0 and 14 * state + 2 * early + p["sum_bytes"] <= 40e9))' ||
  fail "sums.json: the sums take more than is left, or nothing"
ok simulate sums.json --json --check
holds "settings['sums_passing_share'] == 0 and 'h2d' not in lanes"
ok simulate sums.json
grep -q 'between micro-steps 100 % of' out || fail "simulate sums.json: $(grep -A1 summed out)"
ok plan "${policy[@]:2}" "${machine[@]}" --overlap both --grad-accum 4 --gpu-memory 8G --json -o sums.json --quiet
ok simulate sums.json --json
holds "0.5 < settings['sums_passing_share'] < 1 and lanes['h2d']['busy_ms'] > 0"

# -- Traces -------------------------------------------------------------------------------------
ok trace export plan.json -o trace.json --quiet
ok simulate plan.json --keep
ok trace show 1
grep -q operations out || fail "trace show: $(cat out)"
ok trace diff 1 1

# -- Contradictory options ----------------------------------------------------------------------
refused() {
  local says=$1
  shift
  timeout "$limit" "$hocket" "$@" >out 2>err
  [[ $? -eq 2 ]] || fail "hocket $*: not exit 2"
  grep -qF -- "$says" err || fail "hocket $*: '$(cat err)' does not say '$says'"
}
refused "overlap 'both' needs runtime hocket" \
  simulate "${policy[@]}" "${machine[@]}" --overlap both --runtime deepspeed
refused "needs gradients that leave beside backward" \
  simulate "${policy[@]}" "${machine[@]}" --overlap both --flush sync
refused "'--overlap' cannot be given with a plan file" simulate plan.json --overlap forward
refused "tp 2: mlp is a list of tensors" \
  simulate --model model.json --machine polaris-a100-4x40gb --policy zero-offload --tp 2
refused "use runtime hocket" \
  simulate --model model.json "${machine[@]}" --policy zero-offload --runtime deepspeed
refused "expected none|forward|both, got 'all'" \
  simulate "${policy[@]}" "${machine[@]}" --overlap all
# Where accumulation without an overlap is faster, the reason says so.
"$hocket" plan --model llama-3-8b --machine dgx-h100-8x80gb --grad-accum 4 --overlap both --quiet \
  >out 2>err || fail "accumulation with an overlap: $(cat err)"
tr '\n' ' ' <out >joined && mv joined out
prints "[0-9.]+ ms more than without the overlap \([0-9.]+ ms\): leave out --overlap"

finish overlap
