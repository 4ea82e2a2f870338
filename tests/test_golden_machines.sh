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

# An update on a newer instance (p5e) is not slower than on p4d.
update() {
  "$hocket" simulate --model llama-2-7b --machine "$1" --gpus 1 --policy zero-offload --json |
    sed -n 's/^.*"update_ms":[[:space:]]*\([0-9]*\).*/\1/p' | head -1
}
[ "$(update aws-p5e.48xlarge)" -le "$(update aws-p4d.24xlarge)" ] ||
  fail "an update on p5e takes longer than on p4d"
# -- machine new: to a file, to the store, as JSON; refused parts --------------------------------

desk=(machine new desk --gpu a6000 --gpus 2 --pcie 4x16 --dram ddr4-3200x8 --cores 32)
ok "${desk[@]}" -o desk.json --quiet
ok machine show ./desk.json --json
cp out shown
ok "${desk[@]}" --json
cmp -s out desk.json || fail "--json prints another profile than -o writes"
cmp -s out shown || fail "machine show reads another profile than machine new writes"
ok "${desk[@]}" --store
ok simulate --model gpt2 --machine desk --gpus 1 --policy zero-offload --subgroup 10M --quiet
expect 2 "there is a profile 'desk'|already" "${desk[@]}" --store
ok "${desk[@]}" --store --replace
expect 2 "missing: --gpu NAME .*--dram .*--cores N; --cpu NAME" machine new m
expect 2 "--gpu: gpu 'a600' is not known; did you mean 'a6000'\?" machine new m --gpu a600 --cpu grace
expect 2 "8 memory channels, not 16" machine new m --gpu l4 --cpu epyc-7543p --dram ddr4-3200x16
expect 2 "no parts of the kind 'disk'; the kinds are gpu, cpu" machine parts disk
ok machine parts --json
python3 -c 'import json, sys
parts = json.load(open(sys.argv[1]))
ways = {"document", "copy", "quotation", "formula", "no"}
assert len(parts["gpu"]) >= 20 and all("sheet" in p and p["checked"] in ways
                                       for kind in ("gpu", "cpu", "memory", "link")
                                       for p in parts[kind].values())' out || fail "machine parts --json"

# -- A GPU of a vendor of which none was measured -------------------------------------------------

mi300x=azure-nd96isr-mi300x-v5
note="no GPU of AMD was measured"
ok machine show $mi300x --json
python3 - out <<'END' || fail "$mi300x: errors of quantities"
import json, sys
q = json.load(open(sys.argv[1]))["quantities"]
rate = q["gpu.matmul_flops_per_s"]
assert abs(rate["value"] / 1307.4e12 - 0.542) < 1e-3 and rate["error"] == 0.2, rate
assert "AMD's MI300X (0.542)" in rate["source"], rate
for key in ("gpu.matmul_efficiency", "gpu.backward_efficiency", "gpu.hbm_bytes_per_s"):
    assert q[key]["error"] == 0.31 and "of another vendor" in q[key]["source"], q[key]
assert q["gpu.memory_bytes"]["error"] < 0.05 and q["pcie.h2d_bytes_per_s"]["error"] < 0.1
END
for machines in "--machine $mi300x" "--machine $mi300x --machine hgx-h200-8x141gb"; do
  # shellcheck disable=SC2086
  ok plan --model llama-3-8b $machines
  tr '\n' ' ' <out | tr -s ' ' | grep -q "warning:.*$mi300x: $note" || fail "$machines: no warning"
  # shellcheck disable=SC2086
  ok plan --model llama-3-8b $machines --quiet
  ! grep -q "$note" out || fail "--quiet: $(grep "$note" out)"
done
ok plan --model llama-3-8b --machine hgx-h200-8x141gb
! grep -q "$note" out || fail "a GPU of NVIDIA: $(grep "$note" out)"

# -- Keys that nobody reads ----------------------------------------------------------------------

ok machine export h200-16c -o known.json
ok machine show known.json
! grep -q "keys that are not used" out || fail "an exported profile: $(grep -A2 'keys that' out)"
python3 - <<'END'
import json
profile = json.load(open("known.json"))
profile["residual"] = []
profile["price"] = 3
profile["quantities"]["gpu.launch_ns"]["eror"] = 0.1
json.dump(profile, open("unknown.json", "w"))
END
unknown="keys that are not used: 'residual' (is it 'residuals'?), 'price', 'gpu.launch_ns: eror' (is it 'error'?)"
for command in "machine show" "plan --model gpt2 --machine"; do
  # shellcheck disable=SC2086
  ok $command ./unknown.json
  tr '\n' ' ' <out | tr -s ' ' | grep -qF "$unknown" || fail "$command: $(grep -A2 "not used" out)"
done

# -- How figures were checked: shown; tables without it are refused ------------------------------

ok machine parts gpu --wide
grep -q "A40 data sheet (copy; not checked: ecc_share)" out || fail "machine parts: $(grep A40 out)"
grep -q "Ada GPU architecture white paper (not checked)" out || fail "machine parts: rtx-4080"
# broken FILE PATTERN REPLACEMENT MESSAGE: an edited table is refused.
broken() {
  rm -rf bad
  mkdir bad
  cp -r "$share/../parts" bad/parts
  sed -i "s|$2|$3|" "bad/parts/$1.json"
  HOCKET_SHARE=$PWD/bad expect 2 "$4" machine parts gpu
}
broken gpus '"checked": "copy"' '"checked": "maybe"' \
  "parts/gpus.json: 'a40': key 'checked': 'maybe' is not document, copy, quotation, formula or no"
broken links '"checked": "no"' '"seen": "no"' "parts/links.json: 'c2c-gb200': .*checked"
broken gpus '\["ecc_share"\]' '["ecc"]' \
  "parts/gpus.json: 'a40': key 'unchecked': 'ecc' is no member of the part"

finish "machines from parts"
