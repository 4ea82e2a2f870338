#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The command line contract: help, its examples, what bad usage says, exit codes, a full disk.
# Usage: test_golden_cli_help.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

# -- Help: on stdout, exit 0, and its examples run -----------------------------------------------

cat >expected <<'END'
Usage: hocket COMMAND [OPTIONS]

Plans, simulates and runs optimizer offloading for the training of large
language models: which parameters are updated on the CPU or the GPU, in which
order, how long an iteration takes, and whether it fits in memory.

Commands:
  plan              Ranks the offload schedules of a model on a machine
  estimate          Estimates the memory that a model needs, without a machine
  simulate          Simulates one iteration of a plan or of a policy
  sweep             Simulates all combinations of models, machines and settings
  report            Makes an HTML page of plans, sweeps, validations, timelines
  run               Runs a plan's optimizer steps on real hardware, timed
  calibrate         Measures this machine and stores a profile of it
  fit               Fits a machine profile to a table of measured runs
  validate runs     Compares predictions with a table of measured training runs
  validate engine   Predicts a plan's update, runs it, explains the difference
  validate ranking  Runs many plans and compares their order with the prediction
  validate again    Compares stored measurements with another profile or version
  validate training Compares a training run's iteration with its prediction
  model list        Lists the model presets that ship with hocket
  model show        Shows a model's shape, parameters and cost per training step
  machine list      Lists the machine profiles: shipped, stored, unfinished
  machine show      Shows every quantity of a machine profile and its origin
  machine new       Makes the profile of a machine from its parts
  machine parts     Lists the GPUs, CPUs, memory and links of 'machine new'
  machine export    Writes a profile and its calibration as a JSON document
  machine import    Stores a profile from a file
  machine diff      Compares two calibrations: which quantities differ
  machine delete    Deletes a stored profile and the samples behind it
  trace list        Lists the stored timelines, simulated and measured
  trace show        Shows a stored timeline and how it was made
  trace export      Writes a timeline as a Chrome trace for Perfetto, or as CSV
  trace diff        Compares two stored timelines of one plan, or two plans
  trace delete      Deletes a stored timeline
  trace import      Converts DeepSpeed and Megatron logs to a run table

  hocket help COMMAND   arguments, options and output of a command
  hocket help --man     the manual page; 'help --completion bash|zsh|fish'
  hocket --version      the version

Example:
  hocket plan --model llama-2-7b --machine polaris-a100-4x40gb

Exit status: 0 success; 1 the answer is no (does not fit, validation failed);
2 wrong usage or input; 3 the environment (no GPU, no memory, disk full).
END
[ -z "$(awk 'length > 80' expected)" ] || fail "hocket --help: more than 80 columns"
for arguments in --help -h help; do
  "$hocket" $arguments >out 2>err || fail "hocket $arguments: exit $?"
  diff -u expected out || fail "hocket $arguments: not the text above"
done

"$hocket" --version >out 2>err || fail "hocket --version: exit $?"
grep -qxE 'hocket [0-9]+\.[0-9]+\.[0-9]+' out || fail "hocket --version: printed '$(cat out)'"

for group in validate model machine trace; do
  for arguments in "$group --help" "help $group"; do
    "$hocket" $arguments >out 2>err || fail "hocket $arguments: exit $?"
    grep -q "^Usage: hocket $group ACTION" out || fail "hocket $arguments: no usage"
  done
done

cp "$tests/data/logs/7b-a100-dp4-interleave-k2.log" run.log
# Five runs of one machine: `hocket fit` takes 10 s for all of them.
grep -e '^machine,' -e '^jlse-' "$tests/data/published-runs.csv" | head -6 >published-runs.csv
sed 's/"made-up-node"/"this-node"/' "$tests/data/calibrated-node.json" >this-node.json
tiny_model
commands=$(sed -n '/^Commands:/,/^$/s/^  \(.*[^ ]\)   *[A-Z].*/\1/p' expected)
[ "$(wc -l <<<"$commands")" -eq 28 ] || fail "expected 28 commands, got: $commands"
while read -r command; do
  "$hocket" $command --help >out 2>err || fail "hocket $command --help: exit $?"
  "$hocket" help $command >other || fail "hocket help $command: exit $?"
  cmp -s out other || fail "hocket help $command: differs from --help"
  [ ! -s err ] || fail "hocket $command --help: wrote to stderr"
  grep -q "^Usage: hocket $command" out || fail "hocket $command --help: no usage"
  # Usage, examples and the names of an option's values are not wrapped.
  wide=$(grep -vE '^(Usage:|      ) hocket |^  (hocket|--)' out | awk 'length > 80' | head -1)
  [ -z "$wide" ] || fail "hocket $command --help: more than 80 columns: $wide"
  example=$(sed -n '/^Example:/{n;s/^  hocket //p}' out)
  [ -n "$example" ] || fail "hocket $command --help: no example"
  if [ "$command" = sweep ]; then
    echo '{"model": "llama-2-7b", "machine": "h200-16c", "policy": "zero-offload"}' >spec.json
  fi
  if [ "$command" = run ]; then # the plan that the example of plan has written is too large for it
    [ -s plan.json ] || fail "the example of plan wrote no plan.json"
    "$hocket" simulate --model tiny.json --machine h200-16c --policy streamed --cpu-threads 2 --quiet \
      -o plan.json >out || fail "no small plan for hocket run"
  fi
  if [ "$command" = "trace list" ]; then # nothing is stored yet
    for kept in 1 2; do
      "$hocket" simulate plan.json --keep >out || fail "no timeline $kept for hocket trace"
    done
  fi
  [ "$command" = calibrate ] && continue # takes minutes and a GPU; see test_engine_calibrate_cli.sh
  # These need the node's calibration and what ran on it; see test_engine_validate_cli.sh.
  [[ $command == validate\ @(engine|ranking|again) ]] && continue
  # scripts/plotly gets the plotting library; see test_golden_report.sh.
  [[ $command == report && ! -e $HOCKET_SHARE/report/plotly.min.js ]] && continue
  "$hocket" $example >out 2>err || fail "the example of $command: $(cat err)"
  [ -s out ] || fail "the example of $command prints nothing"
done <<<"$commands"
[ -s trace.json ] || fail "the example of trace export wrote no trace.json"
[ -s runs.csv ] || fail "the example of trace import wrote no runs.csv"

# -- Bad usage: exit 2, the nearest name, what would be right -----------------------------------

expect 2 "no command given" # nothing at all
expect 2 "unknown command 'plna'; did you mean 'plan'\?" plna
expect 2 "unknown command 'xyzzy'; 'hocket --help'" xyzzy
expect 2 "unknown action 'shwo'; did you mean 'show'\?" model shwo
expect 2 "'machine' needs an action" machine
expect 2 "unknown command 'plna'; did you mean 'plan'\?" help plna
expect 2 "options come after the command" --json plan
expect 2 "^hocket plan: unknown option '--modle'; did you mean '--model'\?" plan --modle gpt2
expect 2 "unknown option '-x'" plan -x
expect 2 "'--tensors' is not an option of this command" plan --tensors
expect 2 "option '--s' is short for more than one" plan --s 3
expect 2 "option '--model' needs a value: NAME\|FILE" plan --model
expect 2 "option '--json' takes no value" plan --json=yes
expect 2 "unexpected argument 'extra'" plan extra
expect 2 "too few arguments; usage: hocket model show" model show
expect 2 "--model NAME\|FILE is needed" plan --machine h200-16c
expect 2 "--machine NAME\|FILE is needed" plan --model gpt2
expect 2 "unknown action 'exprt'; did you mean 'export'\?" machine exprt
expect 2 "'--quick' is not an option of this command" plan --quick
expect 2 "a PLAN.json or --policy NAME is needed" simulate --model gpt2 --machine h200-16c
expect 2 "-o FILE is needed" trace export plan.json
expect 2 "-o FILE is needed" trace export 1
expect 2 "'--gpus' cannot be given with a plan file" simulate plan.json --gpus 2
expect 2 "llama-2-7b" model show llama-2-7
expect 2 "h200-16c" plan --model gpt2 --machine h200-16

# Values are strict, and the message names the option and its range.
for value in 0 65 -1 +4 " 4" 4.0 4x 0x4 "" nan 99999999999999999999; do
  expect 2 "option '--gpus': expected a whole number from 1 to 64, got" plan --gpus="$value"
done
for value in -0.1 1.1 nan inf 0x1 "" 0.5x " 0.5" 1e400; do
  expect 2 "option '--ratio': expected a number from 0 to 1, got" plan --ratio="$value"
done
for value in 0 k 1K 1MM 1.5 1.0001k -1k 1.1T 1MiB 1001G 9223372036854775807G; do
  expect 2 "option '--subgroup': expected a whole number .* k, M, G or T" plan --subgroup="$value"
done
for value in 0.5 86401 nan "" 40s; do
  expect 2 "option '--budget': expected a number from 1 to 86400, got" calibrate --budget="$value"
done
for value in 0 0.01 51 -1 5%; do
  expect 2 "option '--target': expected a number from 0.1 to 50, got" calibrate --target="$value"
done
for value in 0 999999 1.5 8Gib 8GiBs 8iB 10000000G; do
  expect 2 "option '--memory': expected a whole number from 1000000 to" calibrate --memory="$value"
done
expect 2 "option '--quick' takes no value" calibrate --quick=yes
expect 2 "option '--unbound' takes no value" simulate --unbound=yes
expect 2 "option '--stride': expected .* or 'auto', got 'Auto'" plan --stride Auto
expect 2 "option '--runtime': expected hocket\|deepspeed, got 'deep'" plan --runtime deep
expect 2 "option '--flush': expected async\|sync, got ''" plan --flush ""
expect 2 "option '--checkpoint-activations': expected yes\|no" plan --checkpoint-activations maybe

# -- Good usage ----------------------------------------------------------------------------------

# The last of repeated options wins; suffixes are powers of ten.
"$hocket" model show gpt2 --subgroup 7 --subgroup 2M --seq 9 --seq 64 --json >out
grep -qE '"numel":[[:space:]]*2000000,' out || fail "--subgroup 2M: $(cat out)"
grep -qE '"seq":[[:space:]]*64,' out || fail "--seq 64: $(cat out)"
"$hocket" model show llama-2-7b --seq 4k --json >out || fail "--seq 4k"
grep -qE '"seq":[[:space:]]*4096,' out || fail "--seq 4k is not 4096: $(cat out)"
"$hocket" model show gpt2 --json >out
grep -qE '"parameters":[[:space:]]*124439808,' out || fail "gpt2's parameters: $(cat out)"

# A printed profile reads back as the same profile.
"$hocket" machine show h200-16c --json >machine.json
"$hocket" machine show machine.json --json >again.json || fail "machine show does not read back"
cmp -s machine.json again.json || fail "machine show --json: not the same when read back"
HOCKET_STORE=$folder/none.db "$hocket" plan --model gpt2 --machine h200-16c >out
[ ! -e none.db ] || fail "a command that only looks has made a store"

# A plan file gives the same forecast as the policy that it was made with.
policy="--model gpt2 --machine h200-16c --policy interleave --stride 2 --subgroup 10M"
"$hocket" simulate $policy --json --check --quiet -o p.json >first 2>err || fail "simulate: $(cat err)"
[ ! -s err ] || fail "simulate --quiet: wrote '$(cat err)'"
"$hocket" simulate p.json --json >second || fail "simulate p.json"
cmp -s first second || fail "a plan file does not give the forecast of its policy"

# Ranks that are not bound to cores are slower. The profile was fitted on bound ranks: a warning.
unbound="--model dos-7b --machine jlse-h100-4x80gb --policy zero-offload --runtime deepspeed --json"
"$hocket" simulate $unbound >bound.json || fail "simulate bound"
"$hocket" simulate $unbound --unbound -o roaming.json --quiet >out || fail "simulate --unbound"
update() { sed -nE 's/^[[:space:]]*"update_ms":[[:space:]]*([0-9.]+),.*/\1/p' "$1" | head -n 1; }
awk -v a="$(update bound.json)" -v b="$(update out)" 'BEGIN { exit !(a > 0 && b > a) }' ||
  fail "--unbound: update of '$(update out)' ms, bound '$(update bound.json)'"
said="extrapolated in launch style: jlse-h100-4x80gb was fitted on bound, this is unbound"
grep -q "$said" out || fail "--unbound: no warning"
cp out roaming.out
"$hocket" simulate roaming.json >out || fail "simulate roaming.json"
grep -q "^warning: " out || fail "simulate roaming.json: no warning in the text"
for command in "simulate roaming.json" "plan --model llama-2-7b --machine polaris-a100-4x40gb"; do
  "$hocket" $command --quiet >out 2>err || fail "$command --quiet"
  ! grep -q "^warning: " out || fail "$command --quiet warns: $(grep ^warning: out)"
done
! grep -q "launch style" bound.json || fail "bound: a warning of launch style"
"$hocket" simulate roaming.json --json >again || fail "simulate roaming.json"
cmp -s roaming.out again || fail "a plan file does not keep --unbound"

# A model that does not fit: exit 1, and the missing bytes on stderr.
toobig="plan --model llama-3-70b --machine polaris-a100-4x40gb"
for json in "" --json; do
  "$hocket" $toobig $json -o never.json >out 2>err
  [ $? -eq 1 ] || fail "hocket $toobig $json: exit is not 1"
  grep -qE "^hocket plan: does not fit: host memory: [0-9.]+ [GT]iB missing throughout \(needs" err ||
    fail "hocket $toobig $json: said '$(cat err)'"
  [ ! -e never.json ] || fail "hocket $toobig $json: wrote a plan that does not fit"
done
grep -q '"best":[[:space:]]*null' out || fail "$toobig --json: best is not null"

# -- A full disk, and a closed output --------------------------------------------------------------

if [ -w /dev/full ]; then
  for arguments in --help --version "model list" "model list --json" "machine show h200-16c" \
    "simulate p.json" "simulate p.json --json"; do
    "$hocket" $arguments >/dev/full 2>err
    [ $? -eq 3 ] || fail "hocket $arguments >/dev/full: exit is not 3"
    grep -q "No space left on device" err || fail "hocket $arguments >/dev/full: said '$(cat err)'"
  done
  # A table that cannot be written is an error, even if nothing fits or a plan file was written.
  for arguments in "plan --model llama-3-70b --machine workstation-rtx4090-ddr5" \
    "plan --model gpt2 --machine h200-16c -o p2.json"; do
    "$hocket" $arguments >/dev/full 2>err
    [ $? -eq 3 ] || fail "hocket $arguments >/dev/full: exit is not 3"
    grep -q "standard output: No space left" err || fail "$arguments >/dev/full: '$(cat err)'"
  done
  "$hocket" simulate p.json -o /dev/full >out 2>err
  [ $? -eq 3 ] || fail "-o /dev/full: exit is not 3"
fi
"$hocket" simulate p.json -o nowhere/p.json >out 2>err
[ $? -ge 2 ] || fail "-o nowhere/p.json: accepted"
grep -q nowhere/p.json err || fail "-o nowhere/p.json: said '$(cat err)'"
"$hocket" --version >&- 2>err
[ $? -eq 3 ] || fail "closed stdout: exit is not 3"

finish "command line"
