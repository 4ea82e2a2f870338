#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# hocket run: the same bits whatever policy and runtime, the JSON that tools rely on, timelines,
# resuming, Ctrl-C, and what it says when it cannot.
set -euo pipefail
hocket=$1
checker=$(dirname "$HOCKET_SHARE")/tests/check_trace.py
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here"

fail() {
  echo "FAIL: $*"
  exit 1
}

# get FILE KEY: a value of a JSON file
get() {
  grep -oE "\"$2\":[[:space:]]*[^,]+" "$1" | sed -E 's/^[^:]*:[[:space:]]*//; s/"//g'
}

# What tools rely on, in one run's JSON.
cat >check.py <<'EOF'
import json
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    run = json.load(file)
times = run["update_ms"]
assert run["schema"] == "hocket.run/1", run
assert run["bitwise_equal"] is True and run["interrupted"] is False, run
assert re.fullmatch("[0-9a-f]{32}", run["checksum"]), run
assert run["steps"] == run["step"] == 3 and run["parameters"] == 115008, run
assert run["backend"] == "host" and run["runtime"] in ("hocket", "deepspeed"), run
assert 0 < times["min"] <= times["median"] <= times["max"], run
assert abs(run["update_params_per_s"] * times["median"] / 1e3 / run["parameters"] - 1) < 1e-6, run
assert run["gpu_memory_bytes"] > 0 and run["host_memory_bytes"] > 0, run
EOF

cat >tiny.json <<'EOF'
{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
 "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
 "max_position_embeddings": 4096}
EOF
plan() { # NAME OPTIONS...
  "$hocket" simulate --model tiny.json --machine h200-16c --gpus 1 --subgroup 7000 \
    --cpu-threads 2 -o "$1.json" --quiet "${@:2}" >simulated 2>&1 || { cat simulated && fail "$1"; }
}

plan gpu-only --policy gpu-only
plan zero-offload --policy zero-offload
plan streamed --policy streamed --buffers 2
plan mapped --policy mapped
plan twinflow --policy twinflow --ratio 0.4
plan interleave --policy interleave --stride 3
plan interleave-part --policy interleave --stride 2 --ratio 0.7 --buffers 3
plan ds-gpu-only --policy gpu-only --runtime deepspeed
plan ds-zero-offload --policy zero-offload --runtime deepspeed
plan ds-twinflow --policy twinflow --ratio 0.4 --runtime deepspeed
plan ds-interleave --policy interleave --stride 2 --runtime deepspeed
plans=(gpu-only zero-offload streamed mapped twinflow interleave interleave-part ds-gpu-only
  ds-zero-offload ds-twinflow ds-interleave)

# Every policy gives the same bits as plain AdamW and as every other.
for name in "${plans[@]}"; do
  "$hocket" run "$name.json" --backend host --steps 3 --check --json --timeline trace.json --quiet \
    >out.json 2>err || fail "$name: exit $?: $(cat err)"
  [[ ! -s err ]] || fail "$name: --quiet, and yet: $(cat err)"
  python3 check.py out.json || fail "$name: the JSON is not as promised"
  [[ ${checksum:=$(get out.json checksum)} == "$(get out.json checksum)" ]] ||
    fail "$name: another checksum"
  python3 "$checker" trace.json >/dev/null || fail "$name: the timeline is not valid"
done

# Another seed, another state; a table for people; clipping changes something.
# Without /sys, as in a bare chroot, nobody complains behind our back.
mkdir empty
HWLOC_FSROOT=$here/empty "$hocket" run mapped.json --backend host --steps 1 --quiet >out 2>err
[[ ! -s err ]] || fail "without /sys: $(cat err)"

"$hocket" run mapped.json --backend host --steps 3 --seed 2 --json --quiet >out.json
[[ $(get out.json checksum) != "$checksum" ]] || fail "the seed does not matter"
"$hocket" run mapped.json --backend host --steps 3 --max-norm 0.001 --check --json --quiet >out.json
[[ $(get out.json checksum) != "$checksum" ]] || fail "clipping does not matter"
"$hocket" run mapped.json --backend host --steps 3 --check >out 2>err
grep -q "$checksum" out || fail "the table lacks the checksum"
grep -q "bit for bit" out || fail "the table does not say what was checked"

# Stopped and resumed, under another plan: as if nothing had been.
"$hocket" run streamed.json --backend host --steps 1 --checkpoint state.ck --quiet >out
"$hocket" run ds-interleave.json --backend host --steps 2 --check --checkpoint state.ck --json \
  --quiet >out.json
[[ $(get out.json step) == 3 && $(get out.json steps) == 2 ]] || fail "not resumed after step 1"
[[ $(get out.json checksum) == "$checksum" ]] || fail "resuming gives another checksum"

# Ctrl-C between two steps: exit 1, the state saved, and resumed from there.
rm -f state.ck
set -m # a job of its own: a background job of a script ignores SIGINT otherwise
"$hocket" run interleave.json --backend host --steps 1000000 --checkpoint state.ck --json \
  >out.json 2>err &
running=$!
for _ in $(seq 100); do
  # It has caught signals once it runs.
  mask=$(awk '/^SigCgt/ {print $2}' /proc/$running/status)
  (((0x$mask & 2) != 0)) && break
  sleep 0.05
done
sleep 0.2
kill -INT $running
status=0
wait $running || status=$?
set +m
[[ $status == 1 ]] || fail "interrupted: exit $status, not 1: $(cat err)"
[[ $(get out.json interrupted) == true ]] || fail "interrupted, and does not say so"
grep -q "interrupted after .* the state is in state.ck" err || fail "interrupted: $(cat err)"
steps=$(get out.json step)
interrupted=$(get out.json checksum)
((steps > 0)) || fail "no step before the interrupt"
"$hocket" run zero-offload.json --backend host --steps 1 --check --checkpoint state.ck --json \
  --quiet >out.json || fail "the state of an interrupted run cannot be resumed"
[[ $(get out.json step) == $((steps + 1)) ]] || fail "resumed after another step than $steps"
"$hocket" run mapped.json --backend host --steps "$steps" --json --quiet >out.json
[[ $(get out.json checksum) == "$interrupted" ]] || fail "the interrupt changed the state"

# refuse EXIT WORD COMMAND...
refuse() {
  local status=0
  "${@:3}" >out 2>err || status=$?
  [[ $status == "$1" ]] || fail "${*:3}: exit $status, not $1: $(cat err)"
  grep -q -- "$2" err || fail "${*:3}: '$(cat err)' lacks '$2'"
  [[ ! -s out ]] || fail "${*:3}: $(head -3 out)"
}

refuse 2 no-such-plan.json "$hocket" run no-such-plan.json --backend host
refuse 2 tiny.json "$hocket" run tiny.json --backend host
head -c 300 streamed.json >cut.json
refuse 2 cut.json "$hocket" run cut.json --backend host
refuse 2 state.ck "$hocket" run state.ck --backend host
refuse 2 checkpoint "$hocket" run streamed.json --backend host --checkpoint tiny.json
cp streamed.json before.json
refuse 2 "not a checkpoint" "$hocket" run streamed.json --backend host --checkpoint streamed.json
cmp streamed.json before.json || fail "what is no checkpoint was overwritten"
refuse 2 abacus "$hocket" run streamed.json --backend abacus

# 70 billion parameters: 1.1 TB.
"$hocket" simulate --model llama-3-70b --machine h200-16c --gpus 1 --policy zero-offload \
  -o large.json --quiet >/dev/null 2>&1 || true # which simulate says, too
[[ -s large.json ]] || fail "simulate wrote no plan"
available=$(awk '/MemAvailable/ {print $2}' /proc/meminfo)
if ((available < 1000000000)); then
  refuse 3 "MemAvailable" "$hocket" run large.json --backend host
  grep -qE "needs [0-9.]+ [GT]iB, but only [0-9.]+ [A-Z]+iB" err || fail "no figures: $(cat err)"
fi

# Without a device the default backend says so.
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  refuse 3 CUDA "$hocket" run streamed.json --backend cuda
  refuse 3 "CUDA" "$hocket" run streamed.json
fi
