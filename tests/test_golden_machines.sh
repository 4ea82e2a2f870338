#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The profiles from parts in share/machines are those that scripts/make_machines makes, each can
# plan, and at least 25 ship.
# Usage: test_golden_machines.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
share=$tests/../share/machines

mkdir made
"$tests/../scripts/make_machines" "$hocket" made || fail "scripts/make_machines: exit $?"
for made in made/*.json; do
  diff -u "$share/$(basename "$made")" "$made" >difference ||
    fail "run scripts/make_machines: $(head -20 difference)"
done
[ "$(ls "$share" | wc -l)" -ge 25 ] || fail "fewer than 25 machines ship"

# What rents or buys decides: bigger is not slower.
update() {
  "$hocket" simulate --model llama-2-7b --machine "$1" --gpus 1 --policy zero-offload --json |
    sed -n 's/^.*"update_ms":[[:space:]]*\([0-9]*\).*/\1/p' | head -1
}
[ "$(update aws-p5e.48xlarge)" -le "$(update aws-p4d.24xlarge)" ] ||
  fail "an update on p5e takes longer than on p4d"
finish "machines from parts"
