#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Endless inputs, a hostile store, and OpenMP without threads: hocket exits with the documented
# status in limited time.
# Usage: test_golden_endless.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
limit=20
tiny_model

# -- Inputs ----------------------------------------------------------------------------------------

endless="(is a FIFO that no process|is a device, which has no end)"
mkfifo fifo
timeout "$limit" "$hocket" trace import deepspeed fifo >/dev/null 2>import.err &
timeout "$limit" "$hocket" validate runs fifo >/dev/null 2>runs.err &
expect 2 "fifo: $endless" simulate fifo
wait
for reader in import runs; do
  grep -q "fifo: is a FIFO that no process" $reader.err || fail "$reader: said '$(cat $reader.err)'"
done
for command in "simulate /dev/zero" "validate runs /dev/zero" "trace import deepspeed /dev/zero"; do
  expect 2 "/dev/zero: $endless" $command
done
expect 2 "$endless" trace import deepspeed - </dev/zero

# A FIFO with a writer is read to its end, also if the first byte comes after 6 s.
plan=(simulate --model tiny.json --machine h200-16c --gpus 1 --policy zero-offload)
ok "${plan[@]}" -o plan.json --quiet
(sleep 6 && cat plan.json) | "$hocket" simulate /dev/stdin >out 2>err || fail "a slow pipe: $(cat err)"
(sleep 1 && cat plan.json >fifo) &
"$hocket" simulate fifo >out 2>err || fail "a FIFO: $(cat err)"
wait

# -- A hostile store -------------------------------------------------------------------------------

if command -v python3 >/dev/null; then
  mkdir -p kept
  python3 - kept/store.db <<'END'
import sqlite3
import sys

columns = ("id, NULL AS pair, 0 AS measured, 7 AS phases, 'x' AS made, 'x' AS label, 'x' AS machine, "
           "'x' AS version, 1 AS operations, 1 AS makespan_ns, 'x' AS graph")
db = sqlite3.connect(sys.argv[1])
db.execute(f"CREATE VIEW timeline AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 "
           f"FROM n) SELECT {columns} FROM n")
db.execute("CREATE VIEW profile AS SELECT * FROM timeline")
db.execute(f"PRAGMA application_id = {0x68636b74}")
db.execute("PRAGMA user_version = 3")
END
  expect 3 "store.db" trace list
  rm -r kept
fi

# -- Libraries -------------------------------------------------------------------------------------

# Threads with a stack of 200 TiB cannot be created. That is exit 3; 1 would mean that nothing fits.
OMP_NUM_THREADS=3 OMP_STACKSIZE=204800G timeout "$limit" "$hocket" plan --model tiny.json \
  --machine h200-16c >out 2>err
status=$?
[ "$status" -eq 3 ] || fail "no threads: exit $status: $(cat err)"
grep -q "OMP_NUM_THREADS=1" err || fail "no threads: said '$(cat err)'"

# -- Large output ----------------------------------------------------------------------------------

# 415,000 subgroups: the trace is some 600 MB.
timeout 60 "$hocket" trace export --model gpt2 --machine h200-16c --gpus 1 --subgroup 300 \
  --policy zero-offload -o /dev/null >out 2>err
grep -qE "note: [0-9]+ operations make a file of about [0-9.]+ GB" err ||
  fail "no word of a large trace: '$(cat err)'"
finish endless
