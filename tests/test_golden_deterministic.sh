#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The same input gives the same bytes: on repeated runs, and with 1, 2 and 4 threads.
set -euo pipefail
hocket=$1
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here"

failures=0
same() {
  cmp "$1" "$2" || { echo "FAIL: $3" && failures=$((failures + 1)); }
}

# `plan` runs candidates in parallel, and short searches from several seeds, which find the best
# plan for `searched`; --nodes 3 makes llama-3-70b fit.
big=(--model llama-3-70b --machine polaris-a100-4x40gb --nodes 3)
searched=(--model llama-2-13b --machine polaris-a100-4x40gb --overlap both)
for options in "--model llama-2-7b --machine h200-16c --explain" "${big[*]}" "${searched[*]}"; do
  for form in "" --json; do
    [[ $form ]] && numbers="1 2 2 4" || numbers="1 4" # text prints what JSON has
    for threads in $numbers; do
      # shellcheck disable=SC2086
      OMP_NUM_THREADS=$threads "$hocket" plan $options $form -o plan.json >out 2>err
      cat plan.json >>out
      if [[ -e "want$form" ]]; then
        same "want$form" out "plan $options $form differs with $threads threads"
      else
        mv out "want$form"
      fi
    done
  done
  if [[ $options == "${searched[*]}" ]] && ! grep -q "^searched " want; then
    echo "FAIL: plan $options has no searched plan" && failures=$((failures + 1))
  fi
  rm -f want*
done

for run in 1 2; do
  "$hocket" simulate plan.json --json --check >"simulate$run"
  "$hocket" trace export plan.json -o "trace$run" --quiet >/dev/null
done
same simulate1 simulate2 "simulate --json differs on a second run"
same trace1 trace2 "trace export differs on a second run"
[[ -s trace1 && -s simulate1 ]] || { echo "FAIL: nothing to compare" && exit 1; }
exit $((failures > 0))
