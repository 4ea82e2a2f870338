#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Sweeps: rows equal those of `plan` and `simulate`; refused specs; the same rows at any number of
# threads, after a kill, and from merged shards; questions.
# Usage: test_golden_sweep.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
tiny_model

# -- A small sweep --------------------------------------------------------------------------------

cat >spec.json <<'END'
{
  "model": ["llama-2-7b", "qwen2.5-14b"],
  "machine": ["polaris-a100-4x40gb=9/h", "h200-node-16c"],
  "policy": ["interleave", "gpu-only"],
  "ratio": [null, 0.4],
  "micro-batch": {"from": 1, "to": 4, "factor": 2},
  "set": {"dram*": [1, 2]}
}
END
ok sweep spec.json --csv rows.csv --quiet
prints "^96 rows in spec.db: [0-9]+ fit, [0-9]+ do not, 24 are not possible$"
prints "^cheapest of llama-2-7b: "
[ "$(head -n 1 rows.csv)" = "id,machine,set.dram*,model,policy,ratio,micro-batch,fits,reason,\
schedule,offload,world,tokens,update_ms,iteration_ms,tokens_per_s,gpu_bytes,host_bytes,limited_by,\
price_per_hour,cost_per_mtok,pareto_memory,pareto_money" ] || fail "columns: $(head -n 1 rows.csv)"
[ "$(wc -l <rows.csv)" -eq 97 ] || fail "rows.csv has $(wc -l <rows.csv) lines"
grep -q "^[0-9]*,.*,gpu-only,0.4,1,,policy 'gpu-only' takes no --ratio,,,,,,,,,,,,,," rows.csv ||
  fail "no row of a ratio that is not taken: $(grep gpu-only,0.4 rows.csv | head -n 1)"

# number KEY: the first value of the key in `out`.
number() {
  sed -nE "s/^[[:space:]]*\"$1\":[[:space:]]*([0-9.eE+-]+),?$/\1/p" out | head -n 1
}
# row PATTERN COLUMN: a value of the one row that matches.
row() {
  local line
  line=$(grep -E "$1" "${3:-rows.csv}")
  [ "$(wc -l <<<"$line")" -eq 1 ] || fail "/$1/: not one row: $line"
  # fields of these rows have no commas
  cut -d, -f"$2" <<<"$line"
}
same() { # WHAT A B
  awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(b != 0 && d * d <= 1e-18 * b * b) }' ||
    fail "$1: $2, not $3"
}

ok simulate --model llama-2-7b --machine polaris-a100-4x40gb --policy interleave --ratio 0.4 \
  --micro-batch 2 --set 'dram*=2' --json
same iteration "$(row 'polaris.*,2,llama.*,interleave,0.4,2,' 15)" "$(number iteration_ms)"
same update "$(row 'polaris.*,2,llama.*,interleave,0.4,2,' 14)" "$(number update_ms)"
same tokens "$(row 'polaris.*,2,llama.*,interleave,0.4,2,' 16)" "$(number tokens_per_s)"
same GPU "$(row 'polaris.*,2,llama.*,interleave,0.4,2,' 17)" "$(number peak_bytes)"
same host "$(row 'polaris.*,2,llama.*,interleave,0.4,2,' 18)" "$(number host_peak_bytes)"
same cost "$(row 'polaris.*,2,llama.*,interleave,0.4,2,' 21)" \
  "$(awk -v t="$(number tokens_per_s)" 'BEGIN { printf "%.15g", 9 / 3600 / t * 1e6 }')"

# Without a policy and with policy plan: what `plan` finds, or better without what it searches.
echo '{"model": "llama-2-7b", "machine": "h200-16c", "policy": ["best", "plan"], "seq": "1k"}' >p.json
ok sweep p.json --csv p.csv --quiet
ok plan --model llama-2-7b --machine h200-16c --seq 1k --json
same plan "$(row ',plan,1024,' 13 p.csv)" "$(number iteration_ms)"
awk -v a="$(row ',best,1024,' 13 p.csv)" -v b="$(row ',plan,1024,' 13 p.csv)" \
  'BEGIN { exit !(a >= b && a < 1.2 * b) }' || fail "policy best: $(cat p.csv)"

# -- The same rows --------------------------------------------------------------------------------

for threads in 1 3; do
  OMP_NUM_THREADS=$threads ok sweep spec.json -o t.db --csv t.csv --quiet
  cmp -s t.csv rows.csv || fail "$threads threads: other rows"
  rm t.db
done
# Again: nothing is simulated, the table is the same. Another order of the file's keys is another
# sweep, and so is one whose machine has changed.
ok sweep spec.json --csv again.csv --quiet
cmp -s again.csv rows.csv || fail "again: other rows"
ok sweep spec.json --json --quiet
[ "$(number rows) $(number simulated)" = "96 0" ] || fail "again: $(cat out)"
ok sweep spec.db --csv again.csv --quiet
cmp -s again.csv rows.csv || fail "from the database: other rows"
expect 2 "'spec.db' holds the rows of another sweep.*name another file with -o" \
  sweep spec.json --set ratio=0.5 --quiet
"$hocket" machine export h200-16c -o mine.json >out 2>&1
echo '{"model": "tiny.json", "machine": "./mine.json"}' >m.json
ok sweep m.json --quiet
sed -i 's/"description":[[:space:]]*"/&not /' mine.json
expect 2 "when a model or a machine had other content" sweep m.json --quiet

# Shards, in any order and number; --merge says what is missing.
for i in 3 1 4; do ok sweep spec.json -o part$i.db --shard $i/4; done
status=0
"$hocket" sweep --merge -o all.db part1.db part3.db part4.db --quiet >out 2>err || status=$?
said 1 "72 of 96 rows are in 'all.db'" "merge of three" $status
status=0
"$hocket" sweep all.db --query cheapest >out 2>err || status=$?
said 0 "warning: 'all.db' has 72 of 96 rows: its sweep is unfinished, or it is one shard" "query" $status
ok sweep spec.json -o part2.db --shard 2/4 --quiet
ok sweep --merge -o all.db part2.db part4.db --csv merged.csv --quiet
cmp -s merged.csv rows.csv || fail "merged: other rows"
expect 2 "p.db.*cannot be merged.*another sweep" sweep --merge -o all.db p.db

# launch ARGUMENTS...: in the background, as a job of its own, which SIGINT reaches; returns when
# the command has opened its database, before which it catches SIGINT.
launch() {
  set -m
  "$hocket" "$@" >out 2>err &
  running=$!
  set +m
  for _ in $(seq 500); do
    ls -l /proc/$running/fd 2>/dev/null | grep -q killed.db && return
    kill -0 $running 2>/dev/null || return 0
    sleep 0.01
  done
}
ended() {
  status=0
  wait $running || status=$?
}
# kill -9 at several moments, then SIGINT; each time the same command goes on.
cat >long.json <<'END'
{"model": "qwen2.5-32b", "machine": "polaris-a100-4x40gb", "nodes": [2, 4], "policy": "interleave",
 "overlap": "both", "ratio": {"from": 0.1, "to": 1, "step": 0.01}, "stride": [2, 3, 4, 5]}
END
ok sweep long.json -o whole.db --csv whole.csv --quiet
for pause in 0.1 0.3 0.6; do
  launch sweep long.json -o killed.db --csv killed.csv --quiet
  sleep $pause
  kill -KILL $running 2>/dev/null
  ended 2>/dev/null
done
launch sweep long.json -o killed.db --csv killed.csv --quiet
kill -INT $running 2>/dev/null
ended
[ "$status" -eq 0 ] || said 1 "interrupted; [0-9,]+ of 728 rows are stored; the same command" SIGINT $status
ok sweep long.json -o killed.db --csv killed.csv --quiet
cmp -s killed.csv whole.csv || fail "killed and resumed: other rows"

# -- Samples and limits ---------------------------------------------------------------------------

cat >huge.json <<'END'
{"model": "tiny.json", "machine": "polaris-a100-4x40gb", "policy": "zero-offload",
 "seq": {"from": 1, "to": 1000, "step": 1}, "micro-batch": {"from": 1, "to": 10000, "step": 1}}
END
expect 2 "huge.json: 10,000,000 points \(seq 1000 x micro-batch 10000\), more than the 1,000,000" \
  sweep huge.json
[ ! -e huge.db ] || fail "a refused sweep left a database"
"$hocket" sweep huge.json --sample 300 --seed 5 --csv a.csv >out 2>err || fail "sample: $(cat err)"
grep -q "^hocket sweep: warning: 300 of 10,000,000 points, drawn at random with seed 5$" err ||
  fail "a sample without warning: $(cat err)"
[ "$(wc -l <a.csv)" -eq 301 ] || fail "a sample of 300: $(wc -l <a.csv)"
[ "$(cut -d, -f1 a.csv | sort -u | wc -l)" -eq 301 ] || fail "a point is there twice"
ok sweep huge.json --sample 300 --seed 5 -o b.db --csv b.csv --quiet
cmp -s a.csv b.csv || fail "one seed, two samples"
ok sweep huge.json --sample 300 --seed 6 -o c.db --csv c.csv --quiet
cmp -s a.csv c.csv && fail "two seeds, one sample"

# -- Refused specs --------------------------------------------------------------------------------

# refuse PATTERN TEXT ARGUMENTS...: the spec, of several lines, is refused before any work.
refuse() {
  printf '%b' "$2" >bad.json
  expect 2 "$1" sweep bad.json "${@:3}"
  [ ! -e bad.db ] || fail "'$2' left a database"
}
good='{"model": "tiny.json",\n"machine": "h200-16c",\n'
refuse "bad.json: line 3, key 'micro-bach': unknown option.*did you mean '--micro-batch'" \
  "$good\"micro-bach\": 1}"
refuse "line 3, key 'json': '--json' is not an option of this command" "$good\"json\": true}"
refuse "line 4, key 'seq': option '--seq': expected a whole number from 1 to 16777216.*'-5'" \
  "$good\"tp\": 1,\n\"seq\": [1024, -5]}"
refuse "line 3, key 'policy': unknown policy 'interlave'; did you mean 'interleave'" \
  "$good\"policy\": \"interlave\"}"
refuse "line 3, key 'state': option '--state': expected fp32" "$good\"state\": \"fp31\"}"
refuse "line 3, key 'price': expected a price such as 2.5/h" "$good\"price\": 3}"
refuse "line 5, key 'drm': .*'drm' is not known; did you mean 'dram.bytes_per_s'" \
  "$good\"set\":\n{\n\"drm\": 1}}"
refuse "line 3, key 'dram': .*did you mean 400GB/s" "$good\"set\": {\"dram\": 400}}"
refuse "line 3, key 'set': expected an object" "$good\"set\": [1]}"
refuse "line 3, key 'seq': .*'2048' is there twice" "$good\"seq\": [2048, \"2k\", 2048]}"
refuse "line 3, key 'seq': the list has no values" "$good\"seq\": []}"
refuse "line 3, key 'seq': expected a number, a text" "$good\"seq\": [[1]]}"
refuse "line 3, key 'ratio': a range has either a step or a factor" \
  "$good\"ratio\": {\"from\": 0, \"to\": 1}}"
refuse "line 3, key 'ratio': .*'stp'.*'step'" "$good\"ratio\": {\"from\": 0, \"to\": 1, \"stp\": 1}}"
refuse "line 3, key 'ratio': key 'to': expected a number from 1" \
  "$good\"ratio\": {\"from\": 1, \"to\": 0, \"step\": 0.1}}"
refuse "line 3, key 'seq': a range with a factor begins above 0" \
  "$good\"seq\": {\"from\": 0, \"to\": 8, \"factor\": 2}}"
refuse "line 3, key 'ratio': more than 10000 values" \
  "$good\"ratio\": {\"from\": 0, \"to\": 1, \"step\": 0.00001}}"
refuse "key 'machine' is needed" '{"model": "tiny.json"}'
refuse "bad.json: line 2, key 'machine': .*h200-17c" '{"model": "tiny.json",\n"machine": "h200-17c"}'
refuse "bad.json: line 1, key 'model': .*lama-2-7b.*did you mean 'llama-2-7b'" '{"model": "lama-2-7b", "machine": "h200-16c"}'
refuse "bad.json: line 2, column" '{\n"a": }'
refuse "bad.json: line 4, key 'machine' appears more than once" "$good\"tp\": 1,\n\"machine\": []}"
refuse "bad.json: line 4, key 'dram\*' appears more than once in 'set'" \
  "$good\"set\": {\"dram*\": 1,\n\"dram*\": 2}}"
refuse "line 4, key 'seq': option '--seq'" "$good\"set\": {\"dram*\": 1},\n\"\\\\u0073eq\": -5}"
refuse "there is no such key|no such key; did you mean 'micro-batch'" "$good\"tp\": 1}" \
  --set micro-bach=1,2
refuse "--set gpus=0: option '--gpus'" "$good\"tp\": 1}" --set gpus=0
refuse "bad.json: key 'machine': option '--machine': expected a price such as h200-16c=2.5/h" \
  "$good\"tp\": 1}" --set machine=h200-16c=2
refuse "expected KEY=VALUE,VALUE" "$good\"tp\": 1}" --set gpus
refuse "expected I/N with I from 1 to N" "$good\"tp\": 1}" --shard 5/4
expect 2 "missing.json.*No such file" sweep missing.json
expect 2 "one SPEC.json or database at a time" sweep spec.json p.json
expect 2 "'--sample' is for running a SPEC" sweep spec.db --sample 5
expect 2 "--merge needs -o FILE" sweep --merge part1.db

# -- Questions ------------------------------------------------------------------------------------

ok sweep spec.db --query cheapest
prints "^model +point +schedule"
ok sweep spec.db --query pareto --json
grep -q '"schema":.*"hocket.sweep_answer/1"' out || fail "pareto --json: $(head -3 out)"
# The flags of the table are those of all pairs of rows.
awk -F, 'NR > 1 && $8 == 1 { n++; m[n] = $4; t[n] = $13; x[n] = $15; g[n] = $17; f[n] = $22 }
  END { for (i = 1; i <= n; i++) { beaten = 0
    for (k = 1; k <= n; k++) if (m[k] == m[i] && t[k] == t[i] && x[k] <= x[i] && g[k] <= g[i] &&
      (x[k] < x[i] || g[k] < g[i])) beaten = 1
    if (f[i] == beaten) { print "row", i; bad = 1 } flagged += f[i] }
  exit bad || flagged < 6 }' rows.csv || fail "Pareto flags"
flags=$(awk -F, '$22 == 1' rows.csv | wc -l)
[ "$(grep -c '"id":' out)" -eq "$flags" ] || fail "pareto lists other rows than the $flags flagged"
ok sweep spec.db --query sensitivity
prints "^micro-batch +3 +[0-9]+ +[1-9]"
ok sweep spec.db --query break-even
prints "^offload is the cheaper in [0-9]+ of [0-9]+ cases"
ok sweep spec.db --query break-even --json
grep -q '"with_over_without":' out || fail "break-even --json: $(cat out)"
# Nothing fits: exit 1.
echo '{"model": "llama-3.1-405b", "machine": "workstation-rtx4090-ddr5"}' >no.json
refuse "key 'tp': the factor of a range is above 1 .*, not 1" \
  "$good\"tp\": {\"from\": 1, \"to\": 2, \"factor\": 1}}"
expect 2 "'no.json' is an input and would be replaced; name another file" \
  sweep no.json --csv no.json
expect 2 "option '--csv': '-' is standard output" sweep no.json --csv -
status=0
"$hocket" sweep no.json --quiet >out 2>err || status=$?
said 1 "no row fits: 1 do not, 0 are not possible" "nothing fits" $status

finish "sweeps"
