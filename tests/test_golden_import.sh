#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# hocket trace import: two published logs give their rows, also with other line ends, encodings and
# number formats. Other files are refused. 100 MB take at most 50 MB of memory.
# Usage: test_golden_import.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
cp "$tests"/data/logs/*.log .
log=7b-a100-dp4-interleave-k2.log

# import CODE ARGUMENTS...: stdout to `out`, stderr to `err`.
import() {
  local code=$1 got
  shift
  timeout 60 "$hocket" trace import deepspeed "$@" >out 2>err
  got=$?
  [ "$got" -eq "$code" ] || fail "import $*: exit $got, expected $code; said '$(head -c 400 err)'"
  ! LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f]' err || fail "import $*: control characters on stderr"
}

noted() {
  grep -qE -- "$1" err || fail "$2: noted '$(head -c 600 err)', expected /$1/"
}

# same WHAT: `variant.log` gives the same row as the log that it was made of.
same() {
  import 0 variant.log
  sed 's/,variant.log,/,'$log',/' out | cmp -s - expected.csv ||
    fail "$1: $(diff <(tr , '\n' <expected.csv) <(tr , '\n' <out) | head -20)"
}

# -- The published logs ------------------------------------------------------------------------

import 0 20b-h100-dp4-zero-offload.log $log --machine some-node
diff -u "$tests/data/logs/imported-rows.csv" out || fail "the published logs"
[ "$(grep -c 'note: .*: 8 of 10 iterations used$' err)" -eq 2 ] || fail "noted '$(cat err)'"

import 0 $log --quiet -o runs.csv
[ "$(cat out)" = "runs.csv: 1 of 1 logs gave a row" ] || fail "-o: printed '$(cat out)'"
[ ! -s err ] || fail "--quiet: said '$(cat err)'"
import 0 $log --quiet
cmp -s out runs.csv || fail "-o writes something else than stdout"
cp out expected.csv
import 0 - --quiet <$log
sed 's/,stdin,/,'$log',/' out | cmp -s - expected.csv || fail "standard input"
import 0 $log --json
for key in '"schema":\s*"hocket.trace_import/1"' '"step_ms":\s*1337.94' '"steady_iterations":\s*8' \
  '"failed":\s*false' '"cores_per_rank":\s*14' '"complete":\s*true'; do
  grep -q "$key" out || fail "--json: no $key in $(head -c 300 out)"
done
import 0 20b-h100-dp4-zero-offload.log --json
grep -q '"stride":\s*null' out || fail "--json: what is unknown is null"

# -- Variants of a log -------------------------------------------------------------------------

sed '/DeepSpeed info/!s/\([0-9]\)\.\([0-9]\)/\1,\2/g' $log >variant.log
cmp -s variant.log $log && fail "the variant with decimal commas is the log itself"
same "decimal commas"
sed -E '/DeepSpeed info/!{s/([0-9])([0-9]{3})\.([0-9]+)/\1.\2,\3/g; s/sub_group_size=100000000/sub_group_size=100.000.000/}' \
  $log >variant.log
same "points between thousands"
sed -E '/DeepSpeed info/!s/([0-9])([0-9]{3})\.([0-9]+)/\1\xc2\xa0\2,\3/g' $log >variant.log
same "no-break spaces between thousands"
sed -E "/DeepSpeed info/!s/([0-9])([0-9]{3})\.([0-9]+)/\1\xe2\x80\xaf\2.\3/g" $log >variant.log
same "narrow no-break spaces between thousands"
sed 's/$/\r/' $log >variant.log
same "CRLF"
sed -E 's/(fwd|step|MA|numel)/\x1b[1;32m\1\x1b[0m/g; s/^/\x1b]0;title\x07/' $log >variant.log
same "colours"
iconv -f UTF-8 -t UTF-16 $log >variant.log
same "UTF-16"
noted 'skipped [0-9]+ NUL bytes' "UTF-16"
{
  sed 200q $log
  head -c 3000000 /dev/zero | tr '\0' 'x'
  echo
  head -c 100000 /dev/zero
  sed 1,200d $log
} >variant.log
same "a line of 3 MB, then 100 kB of NUL bytes"
noted 'read only the first 64 KiB of 1 long lines; skipped 100000 NUL bytes' "a long line"
sed 's/^\[.*Rank 1\] .*$/worker-3: &/; s/^  \([a-z]\)/worker-0:   \1/' $log >variant.log
same "names of hosts before lines"
awk '/Engine (before|after)/ { printf "[Rank 3] a tqdm bar 50%%|##" } { print }' $log >variant.log
same "two ranks on one line"

# -- Parts ---------------------------------------------------------------------------------------

bytes=$(stat -c %s $log)
head -c $((bytes * 9 / 10)) $log >cut.log
import 0 cut.log
noted '[67] of [89] iterations used; skipped its last line, which is cut off' "a cut log"
sed 1d out | grep -q ',1,4,1,14,1,4,1,5948837888,100000000,1,1,1,2,[67],' || fail "a cut log: $(cat out)"
head -c $((bytes / 2)) $log >half.log
import 2 half.log
noted 'none after the 2 of warm-up|no iteration found' "half a log"

{
  sed '/Engine before forward/{x;s/^/x/;/^x\{5\}$/{x;q};x}' $log
  cat <<'END'
Traceback (most recent call last):
  File "pretrain_gpt.py", line 356, in <module>
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.39 GiB total)
[launch.py:321:sigkill_handler] ['python', 'pretrain_gpt.py'] exits with return code = 1
END
} >failed.log
import 0 failed.log
noted '2 of 4 iterations used; the run failed: torch.cuda.OutOfMemoryError: CUDA out of memory' "a failed run"
import 0 failed.log --json
grep -q '"failed":\s*true' out || fail "a failed run: --json does not say so"
sed '/train_step/,$d' $log >early.log
sed -n '/^Traceback/,$p' failed.log >>early.log
import 2 early.log
noted 'no iteration found|none after the.*OutOfMemoryError' "a run that failed at once"
import 1 $log early.log
noted '^hocket trace import: no row: early.log: .*OutOfMemoryError' "one of two"
noted '^hocket trace import: 1 of 2 logs gave a row$' "one of two"
cmp -s out expected.csv || fail "one of two: not the other's row"

# -- No logs ---------------------------------------------------------------------------------------

: >empty.log
head -c 300000 /dev/urandom >random.log
for file in empty.log random.log "$tests/data/subgroups.csv" "$HOCKET_SHARE/models/llama-2-7b.json"; do
  import 2 "$file"
  noted 'no iteration found' "$file"
  [ "$(wc -l <err)" -eq 1 ] || fail "$file: $(wc -l <err) lines on stderr"
  [ ! -s out ] || fail "$file: printed '$(head -c 200 out)'"
done
import 2 empty.log random.log
noted 'none of the 2 logs gave a row' "two that are none"
import 2 .
noted 'is a directory' "a directory"
import 2 missing.log
noted 'missing.log: cannot be opened: No such file' "a missing file"
if [ "$(id -u)" -ne 0 ]; then
  cp $log secret.log
  chmod 000 secret.log
  import 2 secret.log
  noted 'cannot be opened: Permission denied' "an unreadable file"
fi
import 2 empty.log -o never.csv
[ ! -e never.csv ] || fail "no row, but a table"
"$hocket" trace import megatron $log >out 2>err
[ $? -eq 2 ] || fail "another kind of log: exit code"
noted "unknown kind of log 'megatron'" "another kind of log"

# -- 100 MB: memory is read while the program waits for the end of its input ---------------------

awk '/train_step/ { n++ } n == 5' $log >iteration
mkfifo pipe
SECONDS=0
"$hocket" trace import deepspeed - --quiet <pipe >out 2>err &
import=$!
exec 3>pipe
cat $log >&3
yes "$(cat iteration)" | head -c 100000000 >&3
rss=$(awk '/^VmHWM/ { print $2 }' "/proc/$import/status")
echo "100 MB: $SECONDS s, $rss kB"
exec 3>&-
wait "$import" || fail "100 MB: exit $?: $(cat err)"
[ "$rss" -lt 50000 ] || fail "100 MB took $rss kB of memory"
awk -F, 'NR == 2 && $26 > 20000 { found = 1 } END { exit !found }' out || fail "100 MB: $(cat out)"

# -- validate reads the rows ----------------------------------------------------------------------

import 0 20b-h100-dp4-zero-offload.log --machine jlse-h100-4x80gb -o runs.csv
if "$hocket" --help | grep -q 'validate runs'; then
  "$hocket" validate runs runs.csv --machine jlse-h100-4x80gb --json >out 2>err ||
    fail "validate runs: exit $?: $(head -c 400 err)"
  grep -q '"step_ms"' out || fail "validate runs: $(head -c 400 out)"
fi

# Options complete a log without a model's shape. Values in the log take precedence over options.
{
  echo '[x] [INFO] [launch.py:1:main] nnodes=1, num_local_procs=4'
  sed -n '/train_batch_size \|train_micro\|gradient_acc\|zero_config/p' $log
  echo '[x] [INFO] [launch.py:1:main] dist_world_size=4'
  for _ in 1 2 3; do
    echo '[Rank 0] rank=0 time (ms) | forward: 316.00 | backward: 747.31 | step: 663.59'
  done
} >plain.log
import 0 plain.log
noted 'not in the log: layers, hidden, ffn, .*seq.*see --model' "a plain log"
import 0 plain.log --model llama-2-7b --seq 2048 --nodes 7
grep -q '^unknown,plain.log,llama-2-7b,,,32,4096,11008,32,32,32000,2048,1,4,1,,1,4,1,,100000000,1,1,1,2,1,316,747.31,663.59,' out ||
  fail "completed: $(cat out)"
! grep -q 'run table needs' err || fail "completed: noted '$(cat err)'"

finish "import"
