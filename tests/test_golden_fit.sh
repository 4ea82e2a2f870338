#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# `hocket fit` and `hocket validate runs`: what they print and write, the errors of predictions of
# the published runs, and messages about bad tables.
# Usage: test_golden_fit.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
cp "$tests/data/published-runs.csv" runs.csv

# at_most LIMIT WHAT VALUE
at_most() {
  awk -v v="$3" -v l="$1" 'BEGIN { exit !(v != "" && v <= l) }' || fail "$2 is '$3', above $1"
}

# medians PROFILE FWD BWD STEP ITER: limits in per cent of the median absolute errors of its
# predictions of its machine's runs, close to what is reached.
medians() {
  local profile=$1 figure
  shift
  "$hocket" validate runs runs.csv --machine "$profile" >out 2>err || fail "validate: $(cat err)"
  for figure in fwd_ms bwd_ms step_ms iter_ms; do
    at_most "$1" "$profile: $figure" \
      "$(sed -nE "s/^median absolute error:.*[ ,]$figure ([0-9.]+) %.*/\1/p" out)"
    shift
  done
}

# tau LEAST: Kendall's tau that `validate runs` has printed to `out` is at least LEAST.
tau() {
  local got
  got=$(sed -nE "s/^Kendall's tau of step_ms: ([0-9.-]+) over.*/\1/p" out)
  awk -v t="$got" -v l="$1" 'BEGIN { exit !(t != "" && t >= l) }' ||
    fail "Kendall's tau is '$got', below $1"
}

# -- Fit, then validate --------------------------------------------------------------------------

free=gpu.matmul_efficiency,gpu.backward_efficiency,framework.layer_launch_ns
free=$free,pcie.d2h_pageable_bytes_per_s,cpu.adamw_params_per_s
"$hocket" fit runs.csv --machine jlse-h100-4x80gb --free $free --wide -o fitted.json >out 2>err ||
  fail "fit: $(cat err)"
grep -q "^jlse-h100-4x80gb: 12 rows of runs.csv, 48 times" out || fail "fit: no heading"
grep -qE "^cpu.adamw_params_per_s .* not determined by the runs: start value" out ||
  fail "fit: does not name what is not determined"
grep -q "fitted the 12 rows of jlse-h100-4x80gb; skipped 63 rows of other machines" err ||
  fail "fit: does not say which rows"
grep -q '"fitted_on"' fitted.json || fail "fit: no fitted_on"
grep -q '"standard_error"' fitted.json || fail "fit: no standard errors"
! grep -q "$folder" fitted.json || fail "fit: the profile tells folders of this machine"
"$hocket" machine show fitted.json --json >again.json || fail "the fitted profile does not load"
cmp -s fitted.json again.json || fail "the fitted profile is not the same when read back"

"$hocket" fit runs.csv --machine jlse-h100-4x80gb --free $free --cross-validate --wide \
  -o twice.json >out 2>err || fail "fit --cross-validate: $(cat err)"
cmp -s fitted.json twice.json || fail "two fits differ"
[ "$(grep -c '^without act-output' out)" -eq 3 ] || fail "fit --cross-validate: not three folds"
read -r fwd bwd step iter < <(
  awk '/^each source from the others/ { print $(NF - 7), $(NF - 5), $(NF - 3), $(NF - 1) }' out)
at_most 7.3 "fwd_ms left out" "$fwd"
at_most 5.2 "bwd_ms left out" "$bwd"
at_most 16.0 "step_ms left out" "$step"
at_most 7.2 "iter_ms left out" "$iter"

"$hocket" fit runs.csv --machine jlse-h100-4x80gb --free gpu.matmul_efficiency,framework.report_ns \
  --json --quiet >fit.json 2>err ||
  fail "fit --json"
[ ! -s err ] || fail "fit --quiet: wrote '$(cat err)'"
for key in schema machine rows scatter_pct parameters correlation profile median_abs_error_pct; do
  grep -q "\"$key\":" fit.json || fail "fit --json: no $key"
done

grep -qE '"flush_unknown":' fit.json || fail "fit --json: no flush_unknown"

# Two rows without flush_async: the fit prints which flush it assumed, and the errors with either.
awk -F, -v OFS=, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "flush_async") c = i }
  NR == 1 || (/^jlse/ && n++ < 2) { if (NR > 1) $c = ""; print }' runs.csv >unknown.csv
"$hocket" fit unknown.csv --machine jlse-h100-4x80gb --free gpu.matmul_efficiency --wide >out 2>err ||
  fail "fit without flush_async: $(cat err)"
grep -qE "^2 rows without flush_async are taken as asynchronous: bwd_ms [0-9.]+ %, iter_ms [0-9.]+ %; as blocking: bwd_ms [0-9.]+ %" out ||
  fail "fit: silent about rows without flush_async"

"$hocket" validate runs runs.csv --wide >out 2>err || fail "validate runs: $(cat err)"
[ "$(grep -cE '^ *[0-9]+ +act-output' out)" -eq 75 ] || fail "validate runs: not 75 rows"
tau 0.91
grep -qE "^8 rows without flush_async are taken as asynchronous: bwd_ms [0-9.]+ %, iter_ms [0-9.]+ %; as blocking: bwd_ms [0-9.]+ %" out ||
  fail "validate runs: does not say how rows without flush_async were predicted"
grep -qE "^baseline: tau 0\.[0-9]+ with the profiles as they were before they were fitted" out ||
  fail "validate runs: no tau of the profiles before their fit"
"$hocket" validate runs runs.csv --json >out.json || fail "validate runs --json"
! command -v python3 >/dev/null || python3 - out.json <<'END' || fail "validate runs --json: rows without flush_async"
import json, sys
r = json.load(open(sys.argv[1]))
unknown = [x for x in r["rows"] if x["flush_async"] is None]
u = r["flush_unknown"]
errors = sorted(abs(x["bwd_ms"]["error_pct"]) for x in unknown)
assert u["rows"] == len(unknown) == 8, u
assert abs(u["median_abs_error_pct_if_async"]["bwd_ms"] - (errors[3] + errors[4]) / 2) < 1e-6, u
assert u["median_abs_error_pct_if_blocking"]["bwd_ms"] > u["median_abs_error_pct_if_async"]["bwd_ms"]
assert r["kendall_tau"] >= r["kendall_tau_before_fit"] > 0.8, r["kendall_tau_before_fit"]
END
medians polaris-a100-4x40gb 3.1 1.8 2.3 1.7
tau 0.89
medians jlse-h100-4x80gb 2.6 2.0 1.1 1.1
tau 1
medians fitted.json 6.4 5.0 16.0 7.1
tau 1

"$hocket" validate runs runs.csv --machine fitted.json --json >out 2>err || fail "validate: $(cat err)"
grep -q "skipped 63 of 75 rows, which name other machines" err || fail "validate runs: does not say what it left out"
[ "$(grep -c '"step_ms":' out)" -eq 13 ] || fail "validate runs --json: not 12 rows and a median"
"$hocket" validate runs runs.csv --machine fitted.json --machine polaris-a100-4x40gb --json >out ||
  fail "validate runs with two machines"
grep -q '"rows_left_out":[[:space:]]*0,' out || fail "validate runs with two machines: left some out"

# A prediction beyond the range that the profile was fitted on gets a warning.
"$hocket" simulate --model dos-20b --machine fitted.json --policy zero-offload --runtime deepspeed \
  --nodes 16 --json >out || fail "simulate on the fitted profile"
grep -q "extrapolated in nodes: jlse-h100-4x80gb was fitted on 1, this is 16" out ||
  fail "simulate: no warning of extrapolation"

# -- Refused tables ------------------------------------------------------------------------------

header=$(head -n 1 runs.csv)
row=$(sed -n 2p runs.csv)
for command in "fit bad.csv --machine polaris-a100-4x40gb" "validate runs bad.csv"; do
  : >bad.csv
  expect 2 "bad\.csv: the file is empty" $command
  echo "$header" >bad.csv
  expect 2 "bad\.csv: the table has columns but no rows" $command
  printf '%s\n%s\n' "${header/,hidden,/,hiden,}" "$row" >bad.csv
  expect 2 "line 1: column 'hidden' .* is missing; is it 'hiden'\?" $command
  printf '%s\n%s\n' "$header" "${row/,5120,/,wide,}" >bad.csv
  expect 2 "line 2: column 'hidden': expected a number of at least 0 .*, got 'wide'" $command
  printf '%s\n%s\n' "$header" "${row%,*}" >bad.csv
  expect 2 "line 2: 37 fields, but the table has 38 columns" $command
done
printf '%s\n%s\n' "$header" "$row" >bad.csv
expect 2 "one of 1 rows was run on polaris-a100-4x40gb; a fit needs at least two" \
  fit bad.csv --machine polaris-a100-4x40gb
printf '%s\n%s\n' "$header" "${row/polaris-a100-4x40gb/polaris-a100-4x40g}" >bad.csv
expect 2 "line 2: column 'machine': .*polaris-a100-4x40gb" validate runs bad.csv
printf '%s\n%s\n' "$header" "${row/polaris-a100-4x40gb/.\/fitted.json}" >bad.csv
expect 2 "'\./fitted\.json' is not a name" validate runs bad.csv
expect 2 "no row was run on h200-16c" validate runs runs.csv --machine h200-16c
expect 2 "none of 75 rows was run on h200-16c" fit runs.csv --machine h200-16c
expect 2 "two profiles of machine 'jlse-h100-4x80gb'" \
  validate runs runs.csv --machine fitted.json --machine jlse-h100-4x80gb
expect 2 "--machine NAME\|FILE is needed" fit runs.csv
expect 2 "nowhere\.csv: cannot be opened: No such file" fit nowhere.csv --machine h200-16c
expect 2 "free parameter 'pcie\.speed'" fit runs.csv --machine jlse-h100-4x80gb --free pcie.speed
expect 2 "cannot write 'nowhere/f\.json'" fit runs.csv --machine jlse-h100-4x80gb -o nowhere/f.json

# Interrupted, it leaves neither a profile nor a temporary file.
timeout -s INT 0.3 "$hocket" fit runs.csv --machine polaris-a100-4x40gb -o stopped.json >/dev/null 2>&1
[ $? -eq 124 ] || fail "stopped: it was over before it could be"
[ -z "$(find . -name 'stopped.json' -o -name '.hocket*')" ] || fail "stopped: left $(ls -a)"

finish "fit and validate runs"
