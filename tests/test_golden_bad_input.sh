#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Bad input of every sort: the exit code, one line on stderr that names the problem, nothing on
# stdout, no crash, and no incomplete file.
# Usage: test_golden_bad_input.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

# -- Model files -------------------------------------------------------------------------------

llama='{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
"intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
"max_position_embeddings": 128, "tie_word_embeddings": false}'
echo "$llama" >good.json
"$hocket" model show ./good.json >out 2>err || fail "the good model: $(cat err)"

# model PATTERN TEXT: the text as a file, read by every command that takes a model.
model() {
  printf '%s' "$2" >bad.json
  expect 2 "^hocket model show: \./bad\.json: .*$1" model show ./bad.json
  expect 2 "^hocket plan: \./bad\.json: .*$1" plan --model ./bad.json --machine h200-16c
}

# with KEY VALUE PATTERN: the good model with another value.
with() {
  model "$3" "$(sed -E "s/(\"$1\": )(\[[^]]*\]|[^,}]*)/\1$2/" <<<"$llama")"
}

model "empty; expected a JSON object" ""
model "empty" $' \t\n'
model "line 1, column 2" "this is no JSON"
model "line 1, column 1" "<html>"
model "expected an object" "[]"
model "expected an object" "7"
model "line [23], column" "${llama%\}}"
model "line 1, column" "${llama:0:40}"
model "line [23], column" "$llama }"
model "line 4, key 'vocab_size' appears more than once" "${llama%\}},"$'\n'"\"vocab_size\": 7}"
model "line 1, column" '{"hidden_size": "a'
model "line 1, column" '{"hidden_size": 01}'
model "line 1, column" "{'hidden_size': 1}"
model "line 1, column" $'{"a\x01": 1}'
model "line 1, column" $'{"\xff": 1}'
model "line 1, column" "$(printf '[%.0s' {1..5000})"

printf '{"vocab_size": 1\0}' >nul.json
expect 2 "nul\.json: line 1, column" model show ./nul.json

for key in architectures num_hidden_layers hidden_size intermediate_size num_attention_heads \
  vocab_size; do
  model "key '$key': missing" "${llama/\"$key\"/\"other\"}"
  with $key '{}' "key '$key': expected"
done
for key in num_hidden_layers hidden_size intermediate_size num_attention_heads \
  num_key_value_heads vocab_size max_position_embeddings; do
  for value in 0 -4 1.5 '"4"' true '[4]' 99999999999 1e300; do
    with $key "$value" "key '$key': expected a whole number from 1"
  done
  for value in 1e400 -1e400; do with $key "$value" "column [0-9]+: a number too large"; done
  for value in NaN nan Infinity +1 0x10 .5; do with $key "$value" "line [123], column"; done
done
with tie_word_embeddings 1 "key 'tie_word_embeddings': expected true or false"
with num_attention_heads 6 "'hidden_size' and 'num_attention_heads': 64 is not a multiple of 6"
with num_key_value_heads 3 "key 'num_key_value_heads': expected a divisor of .*got 3"
with architectures '["BertModel"]' "'architectures': \"BertModel\" is not a kind of model that hocket knows. Known: llama, "
with architectures '["BertModel"]' "'python3 -m hocket describe' fails \("
with architectures '[]' "key 'architectures'"
with architectures '[7]' "key 'architectures'"
with hidden_size 9999999 "key 'hidden_size': expected a whole number from 1 to 1048576"
with architectures "[\"$(printf 'x%.0s' {1..3000})\"]" "key 'architectures'"

expect 2 "nowhere\.json: .*No such file" model show ./nowhere.json
expect 2 "'\.' is a folder without a config\.json" model show ./
expect 2 "'\.' is a folder without a config\.json" model show .
mkdir folder.json
expect 2 "'\./folder\.json' is a folder without a config\.json" model show ./folder.json
expect 2 "good\.json/x\.json: .*Not a directory" model show ./good.json/x.json
echo "$llama" >secret.json
chmod 000 secret.json
if [ ! -r secret.json ]; then
  expect 2 "secret\.json: .*Permission denied" model show ./secret.json
fi
truncate -s 65M large.json
expect 2 "large\.json: .*64 MiB" model show ./large.json
rm large.json

# -- Names -------------------------------------------------------------------------------------

expect 2 "'llama-2-7'.*llama-2-7b" model show llama-2-7
expect 2 "'lama-3-8b'.*llama-3-8b" plan --model lama-3-8b --machine h200-16c
expect 2 "'zzzzzzzz'.*hocket model list" model show zzzzzzzz
expect 2 "h200-16x.*h200-16c" machine show h200-16x
expect 2 "'zzzzzzzz'.*hocket machine list" plan --model gpt2 --machine zzzzzzzz
expect 2 "\.\." model show ..
expect 2 "unknown policy 'zero-ofload'; did you mean 'zero-offload'\?" \
  plan --model gpt2 --machine h200-16c --policy zero-ofload
expect 2 "unknown policy 'zzzzzzzz'; known are gpu-only" \
  simulate --model gpt2 --machine h200-16c --policy zzzzzzzz
expect 2 "unknown command 'simulat'; did you mean 'simulate'\?" simulat
expect 2 "unknown action 'exprt'; did you mean 'export'\?" trace exprt
expect 2 "unknown option '--polcy'; did you mean '--policy'\?" plan --polcy streamed

for twice in "--model gpt2 --model gpt2-xl" "--model gpt2 --policy streamed --policy gpu-only"; do
  # shellcheck disable=SC2086
  expect 2 "option '--(model|policy)' is given more than once" simulate $twice --machine h200-16c
done
expect 2 "option '--from' is given more than once, and takes one FILE" \
  plan --from a.json --from b.json --machine h200-16c
ok plan --model gpt2 --machine h200-16c --machine h200-node-16c --seq 64 --seq 128

# -- Machine files -----------------------------------------------------------------------------

"$hocket" machine show h200-16c --json >machine.json 2>err || fail "machine show: $(cat err)"

# machine PATTERN EDIT: the profile, edited by sed as one text.
machine() {
  sed -Ez "$2" machine.json >bad.json
  ! cmp -s machine.json bad.json || fail "the edit $2 changes nothing"
  expect 2 "^hocket machine show: \./bad\.json: .*$1" machine show ./bad.json
  expect 2 "^hocket plan: \./bad\.json: .*$1" plan --model gpt2 --machine ./bad.json
}

# quantity KEY VALUE PATTERN: another value for one quantity.
quantity() {
  machine "$3" "s|(\"$1\":[^}]*\"value\":[[:space:]]*)[^,}]*|\1$2|"
}

entry() {
  printf '%s' "\"$1\":[^}]*\},?"
}
machine "'dram.bytes_per_s' .* is missing and has no default" "s|$(entry dram.bytes_per_s)||"
machine "'gpu.memory_bytes' .* is missing" "s|$(entry gpu.memory_bytes)||"
machine "'dram.bytes_per_sec' is not known; did you mean 'dram.bytes_per_s'\?" \
  's|"dram.bytes_per_s"|"dram.bytes_per_sec"|'
machine "'warp.speed' is not known" 's|("quantities":[[:space:]]*\{)|\1"warp.speed": {},|'
machine "schema" 's|hocket.machine/1|hocket.machine/9|'
machine "key 'name': missing" 's|"name"|"nom"|'
machine "key 'quantities': missing" 's|"quantities"|"qualities"|'
machine "'pcie.h2d_bytes_per_s': key 'origin': .*got \"guessed\"" \
  's|("pcie.h2d_bytes_per_s":[^}]*"origin":[[:space:]]*)"[^"]*"|\1"guessed"|'
machine "'pcie.h2d_bytes_per_s': expected an object" \
  's|("pcie.h2d_bytes_per_s":[[:space:]]*)\{[^}]*\}|\155e9|'
machine "line [0-9]+, column" 's|\}[[:space:]]*$||'
for key in pcie.h2d_bytes_per_s dram.bytes_per_s cpu.adamw_params_per_s; do
  for value in -55e9 0 '"fast"' null true 1e300; do
    quantity $key "$value" "quantity '$key': key 'value': expected a number from"
  done
  for value in NaN 1e400 -Infinity; do quantity $key "$value" "line [0-9]+, column"; done
done
quantity node.gpus 1.5 "'node.gpus': expected a whole number, got 1.5"
quantity node.gpus 65 "quantity 'node.gpus': key 'value': expected a number from 1 to 64, got 65"
quantity pcie.duplex_bytes_per_s 1e14 "'pcie.duplex_bytes_per_s' is 1.*, but may be at most"
quantity node.reserved_bytes 9e12 "'node.reserved_bytes' is 9.*, but must be less than"

# -- Plan files --------------------------------------------------------------------------------

settings="--model gpt2 --machine h200-16c --gpus 1 --subgroup 10M"
"$hocket" simulate $settings --policy interleave --stride 2 -o plan.json >out 2>err ||
  fail "simulate -o: $(cat err)"

# plan PATTERN EDIT
plan() {
  sed -Ez "$2" plan.json >bad.json
  ! cmp -s plan.json bad.json || fail "the edit $2 changes nothing"
  expect 2 "^hocket simulate: bad\.json: .*$1" simulate bad.json
  expect 2 "^hocket trace export: bad\.json: .*$1" trace export bad.json -o trace.json
  [ ! -e trace.json ] || fail "the edit $2: left a trace"
}

plan "line [0-9]+, column" 's|\}[[:space:]]*$||'
plan "schema is 'hocket.plan/9', but this hocket reads plans of 'hocket.plan/1' and 'hocket.plan/2'" \
  's|hocket.plan/1|hocket.plan/9|'
plan "key 'schema': missing" 's|"schema"|"scheme"|'
plan "key 'order': missing" 's|"order"|"ordre"|'
plan "subgroups add up to 124439807 parameters, but one rank of gpt2 has 124439808" \
  's|("numel":[[:space:]]*)4439808|\14439807|'
plan "subgroups\[12\]: 4439809 parameters, but one rank of gpt2 has" \
  's|("numel":[[:space:]]*)4439808|\14439809|'
plan "subgroups\[1\]: key 'route': 'stagd' is not known; did you mean 'staged'" 's|"staged"|"stagd"|'
plan "subgroups\[0\]: DeepSpeed has no route 'mapped'" \
  's|("runtime":[[:space:]]*)"hocket"|\1"deepspeed"|; s|("route":[[:space:]]*)"cpu"|\1"mapped"|'
plan "subgroups\[0\]: key 'numel': expected a whole number from 1" \
  's|("subgroups":[^}]*"numel":[[:space:]]*)[0-9]+|\1-10000000|'
plan "order\[0\] is 1|order\[1\] is 1" 's|("order":[[:space:]]*\[[[:space:]]*)0|\11|'
plan "order\[0\]: expected a whole number from 0 to 12" \
  's|("order":[[:space:]]*\[[[:space:]]*)0|\199|'
plan "key 'ratio': expected a number from 0 to 1, got 2" 's|("ratio":[[:space:]]*)[0-9.]+|\12|'
plan "seq 2048 is longer than the 1024 positions that gpt2" 's|("seq":[[:space:]]*)[0-9]+|\12048|'
plan "model\.config: key 'n_layer': missing" 's|"n_layer"|"n_layers"|'
plan "key 'runtime': 'hockey' is not known; did you mean 'hocket'" \
  's|("runtime":[[:space:]]*)"hocket"|\1"hockey"|'

plan "key 'bufers' in staging is not known; did you mean 'buffers'" \
  's|("staging":[[:space:]]*\{)|\1"bufers": 9,|'
plan "key 'comment' is not known; known are schema, model" 's|"schema"|"comment": "", "schema"|'
plan "key 'rout' in subgroups is not known; did you mean 'route'" 's|"route"|"rout": "cpu", "route"|'
for object in job policy flush cpu subgroup; do
  plan "key 'xyzzy' in $object is not known; known are" "s|(\"$object\":[[:space:]]*\{)|\1\"xyzzy\": 1,|"
done

# A label that contradicts the routes is warned of; the routes count.
sed 's|"name":[[:space:]]*"interleave"|"name": "zero-offload"|; s|"stride":[[:space:]]*2|"stride": 0|' plan.json >label.json
ok simulate label.json --wide
prints "^warning: the plan is labelled 'zero-offload', which would be cpu 124,439,808; its routes are cpu 64,439,808, staged 60,000,000, and they count"
ok simulate label.json --json
prints "the plan is labelled 'zero-offload'"
sed 's|"stride":[[:space:]]*2|"stride": 3|' plan.json >label.json
ok simulate label.json --wide
prints "^warning: the plan is labelled 'interleave k=3', which would be cpu "
ok simulate plan.json --wide
! grep -q "is labelled" out || fail "a plan as it was written: $(grep 'is labelled' out)"
for policy in gpu-only zero-offload streamed mapped "twinflow --ratio 0.3" "interleave --ratio 0.5" \
  "interleave --stride 1" "interleave --runtime deepspeed --stride 3" "twinflow --runtime deepspeed"; do
  ok simulate $settings --policy $policy --wide
  ! grep -q "is labelled" out || fail "$policy: $(grep 'is labelled' out)"
done

sed 's|"machine":[[:space:]]*"[^"]*"|"machine": "h201-16c"|' plan.json >moved.json
expect 2 "h201-16c.*h200-16c" simulate moved.json
expect 2 "nowhere\.json: .*No such file" simulate nowhere.json
expect 2 "key 'schema'" simulate good.json
expect 2 "schema is 'hocket.machine/1'" simulate machine.json
expect 2 "unexpected argument 'plan\.json'" simulate plan.json plan.json
expect 2 "unexpected argument 'good\.json'" model show gpt2 good.json
expect 2 "'--params': expected a number from 100000 to .*6\.7G, got '7e9'" model show --params 7e9
expect 2 "--model mixtral-8x7b: a run table describes models shaped like Llama" \
  trace import deepspeed --model mixtral-8x7b good.json
expect 2 "--model and --params: one of them" plan --model gpt2 --params 7G --machine h200-16c
expect 2 "--layers describes a model of --params N" plan --layers 7 --machine h200-16c
expect 2 "--params needs --layers and --hidden.*typical shape" estimate --params 7G
expect 2 "'--params' cannot be given with a plan file" simulate plan.json --params 7G
expect 2 "'--policy' cannot be given with a plan file" simulate plan.json --policy streamed

# -- Option values -----------------------------------------------------------------------------

# option NAME PATTERN VALUES...
option() {
  local name=$1 pattern=$2 value
  shift 2
  for value; do
    expect 2 "option '--$name': expected $pattern, got '.*'" plan $settings "--$name=$value"
    expect 2 "option '--$name': expected $pattern" simulate $settings --policy interleave \
      "--$name=$value"
  done
}

whole="a whole number from 1 to [0-9]+"
option gpus "$whole" 0 -1 1e3 9999 1.0 "" nan 99999999999999999999
option nodes "$whole" 0 -1 65537
option tp "$whole" 0 -2 65
option micro-batch "$whole" 0 -1 99999999999999999999
option grad-accum "a whole number from 1 to 4096" 0 4097 99999999999999999999
option seq "$whole, with k for 1024" 0 -2048 2K 2kk k 1.5k 17000k
option buffers "$whole" 0 1025
option cpu-threads "$whole" 0 -1
option stride "$whole or 'auto'" 0 -1 1.5 automatic
option ratio "a number from 0 to 1" 2 -0.5 nan inf half
option subgroup "a whole number .*" 0 -1 1e8 100m
option runtime "hocket\|deepspeed" hockey
option checkpoint-activations "yes\|no" true
option flush "async\|sync" asynchronous

expect 2 "tp 3 does not divide" plan --model llama-2-7b --machine h200-16c --gpus 4 --tp 3
expect 2 "tp 8 does not divide the 12 attention heads of gpt2" \
  plan --model gpt2 --machine h200-16c --gpus 8 --tp 8
expect 2 "tp 4 x pp 4 does not divide the 8 GPUs" \
  plan --model llama-2-7b --machine h200-16c --gpus 8 --tp 4 --pp 4
expect 2 "flan-t5-xl is not cut into stages, because it has an encoder and a decoder" \
  estimate --model flan-t5-xl --pp 2
expect 2 "sequence parallelism divides what tp leaves whole" estimate --model gpt2 --sequence-parallel
expect 2 "experts of llama-2-7b are not divided, because it has none" estimate --model llama-2-7b --ep 2
expect 2 "ep 16 does not divide the 8 experts" estimate --model mixtral-8x7b --ep 16
expect 2 "ep 8 does not divide the 4 ranks of a stage" \
  plan --model mixtral-8x7b --machine dgx-h100-8x80gb --gpus 4 --ep 8
expect 2 "leave out --ep" plan --model mixtral-8x7b --machine dgx-h100-8x80gb --ep 8 --largest model
expect 2 "leave out --pp" plan --model llama-2-7b --machine dgx-a100-8x80gb --pp 8 --largest model
expect 2 "seq 1025 is longer than the 1024 positions that gpt2" plan $settings --seq 1025
expect 2 "--host-memory: 200000000000 bytes are more .* 137438953472; .* add --set node.memory_bytes=200000000000" \
  plan $settings --host-memory 200G
for policy in interleave zero-offload; do
  expect 2 "a subgroup size of 1 divides .*: choose a size of at least 6427" \
    simulate --model llama-2-7b --machine h200-16c --gpus 1 --policy $policy --subgroup 1
done
expect 2 "policy 'streamed' takes no --ratio" simulate $settings --policy streamed --ratio 0.5
expect 2 "policy 'zero-offload' takes no --stride" simulate $settings --policy zero-offload --stride 2
expect 2 "DeepSpeed has no policy 'mapped'" simulate $settings --policy mapped --runtime deepspeed
expect 2 "--stride 1 needs --runtime hocket" \
  simulate $settings --policy interleave --stride 1 --runtime deepspeed
for name in model machine gpus ratio policy stride output; do
  expect 2 "option '--$name' needs a value" plan --$name
done
expect 2 "option '--output' needs a value" plan -o

# -- A folder of Hugging Face ------------------------------------------------------------------

mkdir -p hub/my-model hub/empty
sed 's/, "tie_word/, "model_type": "llama", "tie_word/' <<<"$llama" >hub/my-model/config.json
for name in hub/my-model hub/my-model/ ./hub/my-model//; do
  ok model show $name
  prints "^my-model: LlamaForCausalLM"
  ok plan --model $name --machine h200-16c --gpus 1 --seq 128 --quiet
done
sed 's/"model_type"/"quantization_config": {"bits": 4}, "model_type"/' hub/my-model/config.json >quantized.json
ok model show ./quantized.json
prints "^note: its quantization_config is ignored: weights and gradients count as bf16"
ok estimate --model ./quantized.json
prints "^note: quantized: its quantization_config is ignored"
ok plan --model ./quantized.json --machine h200-16c --wide
prints "^warning: quantized: its quantization_config is ignored: weights and gradients"
ok simulate --model ./quantized.json --machine h200-16c --policy streamed --seq 64 --json
prints "quantized: its quantization_config"
ok plan --model hub/my-model --machine h200-16c
! grep -q quantization out || fail "a model that is not quantized: $(grep quantization out)"
(cd hub/my-model && "$hocket" model show . >../../out) || fail "model show . in a folder"
expect 2 "'hub/empty' is a folder without a config\.json" model show hub/empty
expect 2 "no-such-folder/.*No such file" model show no-such-folder/

# -- Output files ------------------------------------------------------------------------------

# nothing_left WHAT: no temporary file in any folder here.
nothing_left() {
  local found
  found=$(find . -name '*.tmp' -o -name '.hocket*')
  [ -z "$found" ] || fail "$1: left $found"
}

# refused CODE PATTERN TARGET: simulate, trace export and plan cannot write TARGET.
refused() {
  timeout 60 "$hocket" simulate plan.json --quiet -o "$3" >out 2>err
  said "$1" "^hocket simulate: cannot write '$3': $2" "simulate -o $3" $?
  timeout 60 "$hocket" trace export plan.json --quiet -o "$3" >out 2>err
  said "$1" "^hocket trace export: cannot write '$3': $2" "trace export -o $3" $?
  timeout 60 "$hocket" plan $settings --quiet -o "$3" >out 2>err
  said "$1" "^hocket plan: cannot write '$3': $2" "plan -o $3" $?
  nothing_left "-o $3"
}

# '-o -' writes the document to standard output instead of the report.
"$hocket" simulate plan.json -o copy.json --quiet >out
ok simulate plan.json -o -
cmp -s out copy.json || fail "simulate -o - is not the plan"
"$hocket" plan $settings -o winner.json --quiet >out
ok plan $settings -o -
cmp -s out winner.json || fail "plan -o - is not the winner"
"$hocket" trace export plan.json -o trace-file.json >out
ok trace export plan.json -o -
cmp -s out trace-file.json || fail "trace export -o - is not the trace"
rm trace-file.json
ok machine export h200-16c
mv out exported
ok machine export h200-16c -o -
cmp -s out exported || fail "machine export -o - is not what it prints"
for command in "plan $settings" "simulate plan.json" "trace export plan.json"; do
  expect 2 "'-o -' and '--json' both go to standard output" $command -o - --json
done
cp "$tests/data/published-runs.csv" .
expect 2 "'--output': '-' is standard output, which has the report \(--json" \
  fit published-runs.csv --machine jlse-h100-4x80gb -o -
expect 2 "'--output': '-' is standard output" calibrate --backend host -o -
expect 2 "'--timeline': '-' is standard output" run plan.json --backend host --timeline -
expect 2 "'--checkpoint': '-' is standard output" run plan.json --backend host --checkpoint -
if [ -w /dev/full ]; then
  "$hocket" simulate plan.json -o - >/dev/full 2>err
  said 3 "cannot write '/dev/stdout': No space left" "simulate -o - >/dev/full" $?
fi
"$hocket" simulate plan.json -o - >>copy.json
[ "$(grep -c '"schema"' copy.json)" -eq 2 ] || fail "simulate -o - >>copy.json: not added to it"
[ ! -e - ] || fail "there is a file called '-'"

mkdir there readonly
refused 2 "the directory 'nowhere' does not exist" nowhere/out.json
refused 2 "the directory 'there/nowhere' does not exist" there/nowhere/out.json
refused 2 "it is a directory; expected a file name" there
refused 2 "it is a directory" there/
refused 2 "Not a directory" good.json/out.json
refused 2 "it is a symbolic link to nothing" "$(ln -s nowhere dangling && echo dangling)"
expect 2 "option '--output': expected FILE, got nothing" plan $settings -o ""
chmod 555 readonly
if ! { : >readonly/probe; } 2>/dev/null; then
  refused 2 "Permission denied" readonly/out.json
else
  rm -f readonly/probe # permissions do not apply to root, but a read-only file system does
  if [ -d /proc/sys/kernel ]; then refused 2 ".*" /proc/sys/kernel/out.json; fi
fi
if [ -w /dev/full ]; then refused 3 "No space left on device" /dev/full; fi

# A limit on the size of files: no new file is left, and an old one stays.
limited() {
  (
    trap '' XFSZ
    ulimit -f 1
    exec "$hocket" "$@"
  ) 2>err | cat >out
  return "${PIPESTATUS[0]}"
}
echo "the old plan" >old.json
for target in new.json old.json; do
  for command in "simulate plan.json" "trace export plan.json" "plan $settings"; do
    limited $command --quiet -o $target
    said 3 "cannot write '$target': File too large; nothing was written there" \
      "ulimit -f 1: hocket $command -o $target" $?
    nothing_left "ulimit -f 1: hocket $command"
  done
done
[ ! -e new.json ] || fail "ulimit -f 1: left new.json"
[ "$(cat old.json)" = "the old plan" ] || fail "ulimit -f 1: spoilt the old file"

if [ -w /dev/full ]; then
  for command in "plan $settings" "plan $settings --json" "simulate plan.json --explain" \
    "simulate plan.json --json" "machine show h200-16c --json" "model show gpt2 --json" help; do
    "$hocket" $command >/dev/full 2>err
    said 3 "No space left on device" "hocket $command >/dev/full" $?
  done
fi

# -- Messages that name the right input --------------------------------------------------------

node="--machine workstation-rtx4090-ddr5"
expect 2 "'meta-llama/Llama-3-8B' is no file, .* or a preset \('llama-3-8b' is one\)" plan --model meta-llama/Llama-3-8B $node
expect 2 "policy gpu-only has no --ratio; these have one: twinflow, interleave" plan --model llama-3-8b $node --policy gpu-only --ratio 0.5
expect 2 "may be .* not 64; did you mean 64GB\?" plan --model llama-3-8b $node --set node.memory=64
expect 2 "b is bits" plan --model llama-3-8b $node --set dram=100Gb/s
expect 2 "KEY\*=1.1 is 10 % more" plan --model llama-3-8b $node --set dram=+10%
for size in 128GB 0.128TB 128000000000B; do
  "$hocket" machine new m --gpu rtx-4090 --dram ddr5-6000x2 --cores 16 --memory $size --json >out 2>err &&
    grep -qE '"value":\s*128000000000,' out || fail "--memory $size: $(cat err)"
done
expect 2 "--memory': expected a whole number .* such as 64G or 64GiB, got '128Gb'" \
  machine new m --gpu rtx-4090 --dram ddr5-6000x2 --cores 16 --memory 128Gb
expect 2 "--tokens': expected a whole number .* k, M, G or T .*, got '1.5X'" \
  plan --model llama-3-8b $node --tokens 1.5X
"$hocket" plan --model llama-3-70b $node --machine aws-g5.12xlarge >out 2>err
grep -q "errors are in" out && fail "a table without a row has a footnote"

# -- The answer is no --------------------------------------------------------------------------

size="[0-9.]+ [GT]iB"
for command in "plan -o never.json" "simulate --policy zero-offload"; do
  "$hocket" $command --model llama-3-70b --machine polaris-a100-4x40gb >out 2>err
  said 1 "does not fit: host memory: $size missing .*\(needs $size, has $size\).*--nodes [0-9]+" \
    "llama-3-70b on polaris, $command" $?
  grep -q "does not fit\|host memory" out || fail "llama-3-70b on polaris, $command: no report"
done
[ ! -e never.json ] || fail "llama-3-70b on polaris: wrote a plan that does not fit"
# Advice names nothing that is refused, or that does not help.
pipeline="--model llama-3-8b --machine dgx-h100-8x80gb --runtime hocket --pp 2 --grad-accum 2"
expect 2 "accumulate 'host': data-parallel ranks that keep their weights .* use 'gpu'" \
  plan $pipeline --accumulate host
"$hocket" plan --model llama-3-70b --machine dgx-a100-8x80gb --pp 4 --grad-accum 8 --runtime hocket \
  --policy gpu-only >out 2>err
! grep -qE -- "--accumulate host|more GPUs" err || fail "advice for a pipeline: $(cat err)"
grep -q "does not fit: GPU memory" err || fail "gpu-only of a pipeline: $(cat err)"
expect_advice() {
  "$hocket" "${@:2}" >out 2>err
  grep -qE -- "$1" err || fail "${*:2}: said '$(cat err)'"
}
expect_advice "another --policy, which offloads \(state" \
  simulate --model llama-2-13b --machine polaris-a100-4x40gb --policy gpu-only
expect_advice "a larger offload --ratio" \
  simulate --model llama-2-13b --machine polaris-a100-4x40gb --policy twinflow --ratio 0.1

finish "bad input"
