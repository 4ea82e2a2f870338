#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Profiles in the store: import, list, show, use, export, diff, delete, and their error messages.
# test_engine_calibrate_cli.sh has calibrations.
# Usage: test_golden_machine_store.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
cp "$tests/data/calibrated-node.json" node.json

# edited NEW SED...: writes node.json, edited by sed, to NEW.
edited() {
  sed -E "${@:2}" node.json >"$1"
  ! cmp -s node.json "$1" || fail "the edits for $1 change nothing"
}

# -- Before anything is stored -------------------------------------------------------------------

expect 2 "no profile 'made-up-node' to delete: nothing has been stored yet" \
  machine delete made-up-node
ok machine list --wide
prints "^h200-16c +1 +ships +- +- +One H200"
[ ! -e kept ] || fail "looking has made a store"

# -- Import, list, show, use ---------------------------------------------------------------------

ok machine import node.json
prints "^imported 'made-up-node' into .*/kept/store\.db$"
ok machine list --wide
prints "^made-up-node +2 +import +2026-11-20 +1\.5 % +Two GPUs that nobody has"
prints "^h200-16c +1 +ships"
ok machine list --json
prints '"name":[[:space:]]*"made-up-node"'
prints '"from":[[:space:]]*"import"'
prints '"median_abs_error_pct":[[:space:]]*1\.5'

ok machine show made-up-node
prints "^calibrated 2026-11-20T08:00:00Z by hocket 0\.1\.0, 300 s of all probes, accepted: simulation errors"
prints "errors 1\.5 % \(median\), 6\.0 % \(90th percentile\), 9\.0 % \(worst\)"
prints "^measured on: backend cuda, cpu Made-up Processor, gpu Made-up GPU, driver 500\.1, gpus 2"
prints "^pcie\.h2d_bytes_per_s +25 GB/s +24\.8 to 25\.2 GB/s +fitted"
prints "^nvlink\.bytes_per_s +100 GB/s +- +data sheet"
ok machine show made-up-node --json
prints '"calibration"'

ok plan --model gpt2 --machine made-up-node --explain
prints "^pcie\.h2d_bytes_per_s .*25\.2 GB/s"
ok simulate --model gpt2 --machine made-up-node --policy zero-offload --quiet -o plan.json
ok simulate plan.json
ok trace export plan.json -o trace.json

# A plan made with a machine file carries the profile: it is simulated again without the file.
edited mine.json 's/"made-up-node"/"mine"/'
ok plan --model gpt2 --machine mine.json --quiet -o plan.json
ok simulate --model gpt2 --machine mine.json --policy streamed --quiet -o streamed.json
ok simulate streamed.json --machine mine.json --json
mv out with
mv mine.json gone.json
ok simulate plan.json
ok simulate streamed.json --json
cmp -s with out || fail "a plan made with a file is simulated otherwise without it"
ok simulate streamed.json -o again.json --quiet
cmp -s streamed.json again.json || fail "a plan that is written again loses its profile"
ok trace export streamed.json -o trace.json
# A file with the name of a stored profile but other rates: the plan carries the file's profile.
edited faster.json 's/("pcie.h2d_bytes_per_s": +\{"value": )25e9/\130e9/'
ok simulate --model gpt2 --machine faster.json --policy streamed --quiet --json -o faster-plan.json
mv out with
ok simulate faster-plan.json --json
cmp -s with out || fail "a plan made with a file is simulated on the stored machine of its name"
ok simulate --model gpt2 --machine node.json --policy streamed --quiet -o plan.json
! grep -q '"profile"' plan.json || fail "a plan for a stored machine carries its profile"
sed 's/"hocket.machine\/1"/"hocket.machine\/9"/' streamed.json >bad.json
expect 2 "bad\.json: profile: key 'schema'" simulate bad.json

# A profile that its calibration did not accept gets a warning wherever it is used.
edited rejected.json 's/"made-up-node"/"noisy-node"/; s/"accepted": true/"accepted": false/; s/"median": 1.5, "p90": 6/"median": 7.5, "p90": 21/'
trouble="the calibration of noisy-node was not accepted: its own probes are predicted with errors "
trouble+="of 7\.5 % \(median\) and 21\.0 % \(nine in ten\)"
for command in "plan --model gpt2" "simulate --model gpt2 --policy streamed"; do
  ok $command --machine rejected.json --wide
  prints "^warning: $trouble"
  ok $command --machine rejected.json --json
  prints "\"$trouble"
done
ok plan --model gpt2 --machine made-up-node
! grep -q "was not accepted" out || fail "an accepted profile: $(grep accepted out)"
ok simulate --model gpt2 --machine rejected.json --policy streamed -o plan.json --quiet
ok simulate plan.json --wide
prints "^warning: $trouble"
sed "s/polaris-a100-4x40gb/noisy-node/" "$tests/data/published-runs.csv" | head -3 >runs.csv
"$hocket" validate runs runs.csv --machine rejected.json >out 2>err || fail "validate runs: $(cat err)"
grep -q "^hocket validate runs: note: $(tr -d '\\' <<<"$trouble")" err || fail "validate runs: '$(cat err)'"
ok validate runs runs.csv --machine rejected.json --quiet

# -- Export: an exported profile reads back unchanged ----------------------------------------------

ok machine export made-up-node -o out.json
prints "^out\.json: profile 'made-up-node'$"
"$hocket" machine export made-up-node >again.json
cmp -s out.json again.json || fail "export: -o FILE and standard output differ"
ok machine export out.json -o twice.json
cmp -s out.json twice.json || fail "export of an exported file is not the same"
ok machine show made-up-node
mv out stored
ok machine show ./out.json
cmp -s stored out || fail "an exported profile does not show the same"
ok machine export h200-16c
prints '"name":[[:space:]]*"h200-16c"'

# -- Replace: only when asked ----------------------------------------------------------------------

expect 2 "has a profile 'made-up-node' already.*--replace, or give the new one another name$" \
  machine import out.json
ok machine import out.json --name another-node
prints "^imported 'another-node' into "
ok machine diff made-up-node another-node
prints "^10 of 10 quantities agree within their intervals"
ok machine delete another-node
edited newer.json 's/for tests/for more tests/'
ok machine import newer.json --replace --json
prints '"name":[[:space:]]*"made-up-node"'
ok machine list --wide
prints "for more tests"
[ "$(grep -c made-up-node out)" -eq 1 ] || fail "replaced, but listed twice"

# -- Diff ------------------------------------------------------------------------------------------

# One of ten quantities and one of two probes have moved further than their intervals.
edited moved.json '
  s/("pcie.h2d_bytes_per_s": +\{)"low": 24.8e9, "high": 25.2e9/\1"low": 23.8e9, "high": 24.2e9/
  s/("pcie.h2d_bytes_per_s": +\{"value": )25e9/\124e9/
  s/"median": 24.9e9, "mad": 0.1e9, "low": 24.7e9, "high": 25.1e9/"median": 23.9e9, "low": 23.7e9, "high": 24.1e9/
  s/500\.1/501.7/'
ok machine diff node.json moved.json
prints "^quantity +a +b +change +verdict"
prints "^pcie\.h2d_bytes_per_s +25 GB/s +24 GB/s +-4\.0 % +outside"
prints "^pcie\.d2h_bytes_per_s +26 GB/s +26 GB/s +\+0\.0 % +within noise"
prints "^h2d 16 MiB .*outside"
! grep -q "^d2h 16 MiB" out || fail "diff: a probe that has not moved is listed"
prints "driver: 500\.1, here 501\.7"
prints "^9 of 10 quantities agree within their intervals \(90\.0 %\)$"
ok machine diff made-up-node node.json
prints "^10 of 10 quantities agree within their intervals \(100\.0 %\)$"
ok machine diff node.json moved.json --json
prints '"agreeing":[[:space:]]*9,'
prints '"outside":[[:space:]]*true'

# Two of ten quantities differ, more than 10 %: exit 1 after the table.
sed -Ei 's/("pcie.d2h_bytes_per_s": +\{)"low": 25.8e9, "high": 26.2e9/\1"low": 28e9, "high": 29e9/' moved.json
for json in "" --json; do
  "$hocket" machine diff node.json moved.json $json >out 2>err
  [ $? -eq 1 ] || fail "diff of two that differ: exit is not 1"
  grep -q "8 of 10 quantities agree, and 90 % are needed" err || fail "diff: said '$(cat err)'"
  [ -s out ] || fail "diff of two that differ prints nothing"
done

# Profiles that were not calibrated have no intervals: no verdict.
ok machine diff h200-16c node.json
prints "^node\.gpus +1 +2 +\+100\.0 % +no intervals"
prints "no quantity has an interval in both profiles"
ok machine diff h200-16c h200-16c

# -- Shipped names ---------------------------------------------------------------------------------

edited shadow.json 's/"made-up-node"/"h200-16c"/'
expect 2 "'h200-16c' ships with hocket" machine import shadow.json
expect 2 "'h200-16c' ships with hocket" machine import shadow.json --replace
expect 2 "'h200-16c' ships with hocket" machine import node.json --name h200-16c
ok machine import shadow.json --name shadow
ok machine delete shadow
ok machine show h200-16c
prints "One H200"

# -- Delete ----------------------------------------------------------------------------------------

expect 2 "no profile 'made-up-nod'.*did you mean 'made-up-node'\?" machine delete made-up-nod
expect 2 "'h200-16c' ships with hocket; it is not in the store" machine delete h200-16c
ok machine delete made-up-node
prints "^deleted 'made-up-node' from "
ok machine list --wide
! grep -q made-up-node out || fail "deleted, and still there"
expect 2 "made-up-node" machine show made-up-node
ok machine import node.json # and back again

# -- Bad input -------------------------------------------------------------------------------------

expect 2 "unknown machine 'made-up-nodd'; did you mean 'made-up-node'\?" machine show made-up-nodd
expect 2 "unknown machine 'made-up-nodd'; did you mean" plan --model gpt2 --machine made-up-nodd
expect 2 "unknown machine 'made-up-nodd'; did you mean" machine export made-up-nodd
expect 2 "unknown machine 'made-up-nodd'; did you mean" machine diff made-up-node made-up-nodd
expect 2 "zzzzzzzz.*hocket machine list" machine diff zzzzzzzz made-up-node
expect 2 "too few arguments; usage: hocket machine diff" machine diff made-up-node
expect 2 "nowhere\.json: .*No such file" machine import nowhere.json
expect 2 "nowhere: .*No such file" machine import nowhere
expect 2 "cannot write 'nowhere/out\.json'" machine export made-up-node -o nowhere/out.json
expect 2 "'--replace' is not an option of this command" machine export made-up-node --replace

# bad PATTERN SED...: an edited profile is refused with its file name and the reason.
bad() {
  edited bad.json "${@:2}"
  expect 2 "^hocket machine import: \./bad\.json: .*$1" machine import bad.json --replace
  expect 2 "^hocket machine diff: .*bad\.json: .*$1" machine diff ./bad.json node.json
}
bad "schema" 's|hocket.machine/1|hocket.machine/9|'
bad "'nvlink.bytes_per_s' .* is missing" 's|"nvlink.bytes_per_s".*||; s|(cast_cpu"\}),|\1|'
bad "calibration.*'quick'" 's|"quick": false|"quick": "very"|'
bad "calibration.*'median'" 's|"median": 1.5|"median": "small"|'
echo '{"schema": "hocket.plan/1"}' >bad.json
expect 2 "schema" machine import bad.json
edited bad.json 's|"made-up-node"|"a/b"|'
expect 2 "'a/b' cannot be the name of a profile" machine import bad.json

# -- Files that are not stores, and stores that this hocket cannot use -----------------------------

cp "$HOCKET_STORE" good.db
# store CODE PATTERN: every command that reads or writes the store fails like this.
store() {
  expect "$1" "$2" machine list
  expect "$1" "$2" machine show made-up-node
  expect "$1" "$2" machine import node.json
  expect "$1" "$2" machine delete made-up-node
}

HOCKET_STORE=$folder/text.db
echo "this is a text, and no store, and long enough for its header to be looked at by anybody" \
  >"$HOCKET_STORE"
cp "$HOCKET_STORE" before
store 2 "text\.db.*not a (hocket )?store"
cmp -s before "$HOCKET_STORE" || fail "a file that is no store was changed"

# A store of version 1000: bytes 60 to 63 of an SQLite file are its user_version.
HOCKET_STORE=$folder/later.db
cp good.db "$HOCKET_STORE"
printf '\0\0\003\350' | dd of="$HOCKET_STORE" bs=1 seek=60 conv=notrunc status=none
store 2 "later\.db' is of a later hocket: its version is 1000"

HOCKET_STORE=$folder/damaged.db
cp good.db "$HOCKET_STORE"
printf 'x%.0s' {1..3000} | dd of="$HOCKET_STORE" bs=1 seek=1000 conv=notrunc status=none
expect 3 "damaged\.db' is damaged.*move it away" machine list

# Shipped profiles need no store that can be read.
ok machine show "$HOCKET_SHARE/machines/h200-16c.json"
ok machine show h200-16c
ok plan --model gpt2 --machine h200-16c

HOCKET_STORE=$folder/file/store.db
touch file
expect 3 "file" machine import node.json
HOCKET_STORE=$folder/readonly/below/store.db
mkdir -m 555 readonly
if ! mkdir readonly/probe 2>/dev/null; then
  expect 3 "cannot make the folder .*readonly/below.*Permission denied" machine import node.json
else
  HOCKET_STORE=/proc/hocket/store.db # /proc refuses new folders even to root
  expect 3 "cannot make the folder '/proc/hocket'" machine import node.json
fi

# A full disk: stored profiles stay.
HOCKET_STORE=$folder/good.db
(
  trap '' XFSZ
  ulimit -f 1
  exec "$hocket" machine import newer.json --replace
) >out 2>err
[ $? -eq 3 ] || fail "import to a disk that is full: exit is not 3: $(cat err)"
[ "$(wc -l <err)" -eq 1 ] || fail "import to a disk that is full: said '$(cat err)'"
ok machine show made-up-node
ok machine show h200-16c
prints "One H200"

if [ -w /dev/full ]; then
  for arguments in "list" "show made-up-node" "export made-up-node" "diff node.json node.json"; do
    "$hocket" machine $arguments >/dev/full 2>err
    [ $? -eq 3 ] || fail "hocket machine $arguments >/dev/full: exit is not 3"
  done
fi

finish "machine store"
