#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# hocket run: every policy gives the same bits; JSON, timelines, resuming, signals and
# error messages.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture_engine.sh"

# Checks the JSON of one run.
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
assert run["backend"] == "host" and run["runtime"] == "hocket", run
assert 0 < times["min"] <= times["median"] <= times["max"], run
assert abs(run["update_params_per_s"] * times["median"] / 1e3 / run["parameters"] - 1) < 1e-6, run
assert run["gpu_memory_bytes"] > 0 and run["host_memory_bytes"] > 0, run
EOF

plan gpu-only --policy gpu-only
plan zero-offload --policy zero-offload
plan streamed --policy streamed --buffers 2
plan mapped --policy mapped
plan twinflow --policy twinflow --ratio 0.4
plan interleave --policy interleave --stride 3
plan interleave-part --policy interleave --stride 2 --ratio 0.7 --buffers 3
# As `plan` may choose: the resident subgroups in front, and anywhere.
python3 - <<'EOF'
import json

for name, turn in (("front", -5), ("between", 4)):
    with open("interleave-part.json", encoding="utf-8") as file:
        plan = json.load(file)
    routes = [subgroup["route"] for subgroup in plan["subgroups"]]
    assert routes[-5:] == ["resident"] * 5, routes
    for subgroup, route in zip(plan["subgroups"], routes[turn:] + routes[:turn]):
        subgroup["route"] = route
    with open(f"{name}.json", "w", encoding="utf-8") as file:
        json.dump(plan, file)
EOF
plans=(gpu-only zero-offload streamed mapped twinflow interleave interleave-part front between)

# Every policy gives the same bits as plain AdamW and as every other.
for name in "${plans[@]}"; do
  "$hocket" run "$name.json" --backend host --steps 3 --check --json --timeline trace.json --quiet \
    >out.json 2>err || fail "$name: exit $?: $(cat err)"
  [[ ! -s err ]] || fail "$name: --quiet, and yet: $(cat err)"
  python3 check.py out.json || fail "$name: the JSON is wrong"
  [[ ${checksum:=$(get out.json checksum)} == "$(get out.json checksum)" ]] ||
    fail "$name: another checksum"
  python3 "$checker" trace.json >/dev/null || fail "$name: the timeline is not valid"
done

# A label that contradicts the routes gives a note.
sed 's|"name":[[:space:]]*"streamed"|"name": "mapped"|' streamed.json >label.json
"$hocket" run label.json --backend host --steps 1 >out 2>err || fail "a wrong label: $(cat err)"
grep -q "note: the plan is labelled 'mapped', which would be mapped 115,008; its routes are staged" err ||
  fail "a wrong label: $(cat err)"

# Of a plan with an overlap the update runs alone.
plan overlap --policy zero-offload --overlap both
"$hocket" run overlap.json --backend host --steps 3 --check --json >out.json 2>err ||
  fail "an overlap: exit $?: $(cat err)"
grep -q "note: the plan overlaps its update .* the update runs alone" err ||
  fail "an overlap: $(cat err)"
[[ $(get out.json checksum) == "$checksum" ]] || fail "an overlap: another checksum"

# Without /sys, as in a bare chroot, no library prints to stderr.
mkdir empty
HWLOC_FSROOT=$folder/empty "$hocket" run mapped.json --backend host --steps 1 --quiet >out 2>err
[[ ! -s err ]] || fail "without /sys: $(cat err)"

"$hocket" run mapped.json --backend host --steps 3 --seed 2 --json --quiet >out.json
[[ $(get out.json checksum) != "$checksum" ]] || fail "the seed does not matter"
"$hocket" run mapped.json --backend host --steps 3 --max-norm 0.001 --check --json --quiet >out.json
[[ $(get out.json checksum) != "$checksum" ]] || fail "clipping does not matter"
"$hocket" run mapped.json --backend host --steps 3 --check >out 2>err
grep -q "$checksum" out || fail "the table lacks the checksum"
grep -q "bit for bit" out || fail "the table does not say what was checked"

# A run resumed under another plan gives the checksum of an uninterrupted run.
"$hocket" run streamed.json --backend host --steps 1 --checkpoint state.ck --quiet >out
"$hocket" run interleave-part.json --backend host --steps 2 --check --checkpoint state.ck --json \
  --quiet >out.json
[[ $(get out.json step) == 3 && $(get out.json steps) == 2 ]] || fail "not resumed after step 1"
[[ $(get out.json checksum) == "$checksum" ]] || fail "resuming gives another checksum"

# saves [NUMBER]: waits until the running process has saved its state in state.ck, NUMBER times if it
# is given. Each save replaces the file, which then has another inode.
saves() {
  local inode before='' left=${1:-1}
  for _ in $(seq 600); do
    inode=$(stat -c %i state.ck 2>/dev/null) || inode=''
    if [[ $inode != "$before" && -s state.ck ]]; then
      before=$inode
      ((--left > 0)) || return 0
    fi
    sleep 0.05
  done
  fail "$left saves are missing after 30 s: $(cat err)"
}

# Ctrl-C between two steps: exit 1, the state is saved, and a run resumes from it.
rm -f state.ck
launch run interleave.json --backend host --steps 1000000 --checkpoint state.ck \
  --checkpoint-every 50 --json
saves
kill -INT $running
ended
[[ $status == 1 ]] || fail "interrupted: exit $status: $(cat err)"
[[ $(get out interrupted) == true ]] || fail "the JSON does not say interrupted"
grep -q "interrupted after .* the state is in state.ck" err || fail "interrupted: $(cat err)"
steps=$(get out step)
interrupted=$(get out checksum)
((steps > 0)) || fail "no step before the interrupt"
"$hocket" run zero-offload.json --backend host --steps 1 --check --checkpoint state.ck --json \
  --quiet >out.json || fail "the state of an interrupted run cannot be resumed"
[[ $(get out.json step) == $((steps + 1)) ]] || fail "resumed after another step than $steps"
"$hocket" run mapped.json --backend host --steps "$steps" --json --quiet >out.json
[[ $(get out.json checksum) == "$interrupted" ]] || fail "the interrupt changed the state"

# An output that cannot be written is an error before the first step.
long=(run streamed.json --backend host --steps 1000000 --quiet)
expect 2 "cannot write 'nowhere/state.ck'" "${long[@]}" --checkpoint nowhere/state.ck
expect 2 "cannot write 'nowhere/trace.json'" "${long[@]}" --timeline nowhere/trace.json
HOCKET_STORE=$folder/streamed.json/store.db expect 3 "streamed.json" "${long[@]}" --keep
expect 2 "--checkpoint-every needs --checkpoint" "${long[@]}" --checkpoint-every 5

# A killed run loses the steps since its last checkpoint: here at most one.
rm -f state.ck
launch "${long[@]}" --checkpoint state.ck --checkpoint-every 1
saves 5
kill -KILL $running
ended 2>killed
[[ $status == 137 ]] || fail "killed: exit $status"
"$hocket" run mapped.json --backend host --steps 1 --check --checkpoint state.ck --json --quiet \
  >out.json || fail "nothing was saved before it was killed"
steps=$(get out.json step) killed=$(get out.json checksum)
((steps > 2)) || fail "only $steps steps were saved"
"$hocket" run mapped.json --backend host --steps "$steps" --json --quiet >out.json
[[ $(get out.json checksum) == "$killed" ]] || fail "the saved state differs from that of $steps steps"

# A checkpoint in use is refused to another run, by any path to it. kill -9 releases it.
rm -f state.ck
launch "${long[@]}" --checkpoint state.ck --checkpoint-every 1
saves
mkdir -p sub
for path in state.ck sub/../state.ck "$PWD/state.ck"; do
  expect 3 "in use by process $running \(.*hocket run streamed.json .*\), since 20" \
    run streamed.json --backend host --steps 1 --checkpoint "$path"
done
kill -KILL $running
ended 2>killed
rm -f state.ck
"$hocket" run mapped.json --backend host --steps 1 --checkpoint state.ck --quiet >out ||
  fail "a killed run holds its checkpoint"

# SIGHUP, as of a terminal that is closed, saves as SIGTERM does.
for signal in HUP TERM; do
  rm -f state.ck
  launch "${long[@]}" --checkpoint state.ck --checkpoint-every 50
  saves
  kill "-$signal" $running
  ended
  [[ $status == 1 && -s state.ck ]] || fail "SIG$signal: exit $status: $(cat err)"
  grep -q "interrupted after .* the state is in state.ck" err || fail "SIG$signal: $(cat err)"
done

# A signal that was ignored at the start, as under nohup, stays ignored.
(
  trap '' HUP
  exec "$hocket" "${long[@]}" >out 2>err
) &
running=$!
catches 15
kill -HUP $running
sleep 0.3
kill -TERM $running || fail "an ignored SIGHUP has ended the run: $(cat err)"
ended
[[ $status == 1 ]] || fail "an ignored SIGHUP: exit $status: $(cat err)"

# Ctrl-C before the first step has a message of its own. The model is wide, so that creating the
# engine takes longer than starting the process.
sed 's/"hidden_size": 64/"hidden_size": 2048/; s/"intermediate_size": 128/"intermediate_size": 4096/' \
  tiny.json >wide.json
"$hocket" simulate --model wide.json --machine h200-16c --gpus 1 --policy zero-offload \
  --cpu-threads 2 -o wide-plan.json --quiet >out
for _ in $(seq 10); do
  launch run wide-plan.json --backend host --steps 100000 --check
  kill -INT $running
  ended
  [[ $status == 1 ]] || fail "interrupted before the first step: exit $status: $(cat err)"
  ! grep -q "before the first of 100000 steps: nothing was changed" err || break
done
grep -q "before the first of 100000 steps" err || fail "interrupted at once: $(cat err)"
[[ ! -s out ]] || fail "interrupted before the first step: printed $(cat out)"

# DeepSpeed's runtime is predicted only.
plan deepspeed --policy interleave --stride 2 --runtime deepspeed
expect 2 "runtime 'deepspeed'.*hocket simulate.*bench/peers" run deepspeed.json --backend host
expect 2 "runtime 'deepspeed'.*hocket simulate.*bench/peers" validate engine deepspeed.json \
  --backend host --machine h200-16c --force

expect 2 no-such-plan.json run no-such-plan.json --backend host
expect 2 tiny.json run tiny.json --backend host
head -c 300 streamed.json >cut.json
expect 2 cut.json run cut.json --backend host
expect 2 state.ck run state.ck --backend host
expect 2 checkpoint run streamed.json --backend host --checkpoint tiny.json
cp streamed.json before.json
expect 2 "not a checkpoint" run streamed.json --backend host --checkpoint streamed.json
cmp streamed.json before.json || fail "a file that is no checkpoint was overwritten"
expect 2 abacus run streamed.json --backend abacus

# 70 billion parameters: 1.1 TB.
"$hocket" simulate --model llama-3-70b --machine h200-16c --gpus 1 --policy zero-offload \
  -o large.json --quiet >/dev/null 2>&1 || true # simulate reports it, too, and writes the plan
[[ -s large.json ]] || fail "simulate wrote no plan"
available=$(awk '/MemAvailable/ {print $2}' /proc/meminfo)
if ((available < 1000000000)); then
  expect 3 "MemAvailable" run large.json --backend host
  grep -qE "needs [0-9.]+ [GT]iB, but only [0-9.]+ [A-Z]+iB" err || fail "no figures: $(cat err)"
fi

# Without a device the default backend says so.
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  expect 3 CUDA run streamed.json --backend cuda
  expect 3 "CUDA" run streamed.json
fi
finish run
