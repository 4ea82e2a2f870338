#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# --set on the commands that take a machine: reports, plan files, refused texts.
# test_unit_machine_set.c tests the syntax and derived quantities.
# Usage: test_golden_set.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

small=(--model gpt2 --machine workstation-rtx4090-ddr5 --policy zero-offload --subgroup 10M)

# value FILE EXPRESSION: a figure of a JSON answer.
value() {
  python3 -c "import json, sys; d = json.load(open(sys.argv[1])); print($2)" "$1"
}

# -- simulate: reports the change; derived quantities with --explain and in JSON ---------------

ok simulate "${small[@]}" --set pcie.h2d*=2
prints '^machine changed: pcie\.h2d_bytes_per_s 55\.26 GB/s \(was 27\.63 GB/s\); 10 other'
ok simulate "${small[@]}" --set pcie.h2d*=2 --explain --wide
prints '^pcie\.duplex_bytes_per_s +49\.6[0-9]* GB/s +99\.[0-9]* GB/s +2 x, follows pcie\.h2d_bytes_per_s$'
ok simulate "${small[@]}" --set dram*=2 --set gpu.launch=1us --json
cp out doubled
[ "$(value doubled '[c["value"] for c in d["machine_changes"] if c["quantity"] == "gpu.launch_ns"]')" \
  = '[1000]' ] || fail "machine_changes: $(grep -A9 machine_changes doubled | head -30)"
ok simulate "${small[@]}" --json
! grep -q machine_changes out || fail "changes without --set"
faster=$(value doubled "d['update_ms'] < 0.75 * json.load(open('out'))['update_ms']")
[ "$faster" = True ] || fail "an update on the CPU is no faster with twice the host memory bandwidth"

# -- A plan file keeps the machine that it was made with ---------------------------------------

ok plan "${small[@]}" --set dram*=2 --quiet --json -o plan.json
cp out planned
ok simulate plan.json --json
[ "$(value planned 'd["schedules"][0]["iteration_ms"]')" = "$(value out 'd["iteration_ms"]')" ] ||
  fail "a plan under --set is simulated on another machine"
ok machine show workstation-rtx4090-ddr5 --json
profile=$(value out 'd["quantities"]["dram.bytes_per_s"]["value"]')
ok simulate plan.json --set dram*=2 --json # four times the profile's dram
[ "$(value out '[c["before"] for c in d["machine_changes"] if c["quantity"] == "dram.bytes_per_s"]')" \
  = "[$profile]" ] || fail "the profile's value before the first --set is lost"
ok simulate plan.json --machine workstation-rtx4090-ddr5 --json
! grep -q machine_changes out || fail "--machine does not replace the changed machine"

# -- machine show: a document that --machine reads ---------------------------------------------

ok machine show workstation-rtx4090-ddr5 --set dram*=2 --json
cp out changed.json
ok simulate "${small[@]}" --set dram*=2 --json
cp out set.json
ok simulate --model gpt2 --machine ./changed.json --policy zero-offload --subgroup 10M --json
[ "$(value out 'd["update_ms"]')" = "$(value set.json 'd["update_ms"]')" ] ||
  fail "a document of the changed machine predicts another update than --set"
prints '"origin":	"derived"'

# -- Other commands ----------------------------------------------------------------------------

ok trace export "${small[@]}" --set dram*=2 -o trace.json
head -n 3 "$tests/data/published-runs.csv" >runs.csv
ok validate runs runs.csv --json
cp out plain
ok validate runs runs.csv --set dram*=2 --json
[ "$(value plain "d['rows'][0]['step_ms']['predicted'] > \
  1.2 * json.load(open('out'))['rows'][0]['step_ms']['predicted']")" = True ] ||
  fail "validate runs does not predict with the changed machine"
for name in plan simulate fit "machine show" "validate runs" "validate engine" "validate ranking" \
  "validate again" "validate training" "trace export"; do
  # shellcheck disable=SC2086
  "$hocket" help $name >help
  grep -q -- '--set KEY=VALUE' help || fail "no --set in the help of $name"
done

# -- Refused texts -----------------------------------------------------------------------------

expect 2 "pcie\.h2dd.*did you mean 'pcie\.h2d_bytes_per_s'" plan --model gpt2 --machine h200-16c \
  --set pcie.h2dd=1G
expect 2 "set twice" plan --model gpt2 --machine h200-16c --set dram=1T --set dram*=2
expect 2 "after --set: .*may be at most 'pcie\.duplex" machine show h200-16c \
  --set pcie.duplex=1G --set pcie.h2d=20G
expect 2 "option '--set' needs a value: KEY=VALUE" plan --model gpt2 --machine h200-16c --set
many=()
for i in {1..65}; do many+=(--set "dram=${i}G"); done
expect 2 "'--set' is given more than 64 times" machine show h200-16c "${many[@]}"

# -- machine export: the changed machine as a profile of its own -------------------------------

ok machine export workstation-rtx4090-ddr5 --set dram*=2 --name twice -o twice.json
ok simulate --model gpt2 --machine twice.json --policy zero-offload --subgroup 10M --json
[ "$(value set.json 'd["iteration_ms"]')" = "$(value out 'd["iteration_ms"]')" ] ||
  fail "the exported machine is not the one under --set"
ok machine show twice.json
prints '^twice: '
prints '^dram\.bytes_per_s +67\.39 GB/s +134\.8 GB/s +--set dram\*=2$'
! grep -q '^compared with' out || fail "a changed machine has the residuals of the profile"
expect 2 "--set makes another machine: --name NAME is needed" machine export h200-16c --set dram*=2
expect 2 "--name needs --set" machine export h200-16c --name other
expect 2 "'dgx-h100-8x80gb' ships with hocket" \
  machine export h200-16c --set dram*=2 --name dgx-h100-8x80gb

# -- A plan that fills GPU memory says what to reserve, and that leaves the room --------------------

tight="--model llama-2-13b --machine polaris-a100-4x40gb"
# shellcheck disable=SC2086
"$hocket" plan $tight >out 2>err || fail "plan that fills memory: $(cat err)"
room=$(tr '\n' ' ' <out | grep -o -- '--set gpu.reserved_bytes=[0-9.]*GiB leaves') || fail "not called tight"
# shellcheck disable=SC2086
"$hocket" plan $tight ${room% leaves} >out 2>err || fail "${room% leaves}: $(cat err)"
grep -q "^tight" out && fail "tight although memory is reserved"
peak=$(sed -n 's/.*GPU memory \([0-9.]*\) of .*/\1/p' out)
awk -v p="$peak" 'BEGIN { exit !(p * 1.025 <= 38.01) }' || fail "$room: peak $peak GiB of 38.0"

finish "--set"
