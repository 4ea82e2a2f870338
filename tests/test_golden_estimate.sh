#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# hocket estimate: the answer, the table, the JSON, and mistakes.
# Usage: test_golden_estimate.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"
export LC_ALL=C

# 6,738,415,616 parameters of 16 bytes each are 100.4 GiB: the least that one GPU needs.
ok estimate --model llama-2-7b
head -n 1 out | grep -qE "^needs 100\.[4-9] GiB on one GPU; [0-9.]+ to [0-9.]+ GiB GPU \+ 100\.4 GiB host" ||
  fail "begins with '$(head -n 1 out)'"
prints "^  smallest GPU: 141 GB .h200-sxm, h200-nvl.; with offload: 32 GB .rtx-5090.$"
prints "^zero-3 +[0-9.]+ +0\.0 +1\.6 +1\.6 +9\.4 "
awk 'length > 80 { exit 1 }' out || fail "wider than 80"
ok estimate --model llama-2-7b --gpus 1
! grep -q "zero-3" out || fail "ZeRO on one GPU"

ok estimate --model llama-2-7b --gpus 4 --nodes 2 --json
for key in '"schema":[[:space:]]*"hocket.estimate/1"' '"parameters":[[:space:]]*6738415616' \
  '"dp":[[:space:]]*8' '"optimizer_bytes":[[:space:]]*80860987392' \
  '"weights_bytes":[[:space:]]*13476831232' '"optimizer":[[:space:]]*"fp32"'; do
  grep -q "$key" out || fail "estimate --json: no $key"
done
[ "$(grep -c '"gpu_least_bytes":' out)" -eq 8 ] || fail "ways: $(grep '"way":' out)"
ok estimate --model llama-2-7b --state lion --json
grep -q '"optimizer_bytes":[[:space:]]*53907324928' out || fail "lion: not 8 bytes a parameter"
# The names of before: adamw16 is bf16. Both are 8 bytes a parameter.
ok estimate --model llama-2-7b --state adamw16 --json
grep -q '"optimizer":[[:space:]]*"bf16"' out || fail "adamw16: not bf16"
grep -q '"optimizer_bytes":[[:space:]]*53907324928' out || fail "bf16: not 8 bytes a parameter"
ok estimate --model llama-2-7b --state muon
! grep -q "offload " out || fail "muon on the CPU: $(grep "offload " out)"
ok estimate --params 7G --layers 32 --hidden 4096
prints "^needs 10[0-9]\.[0-9] GiB on one GPU"
ok estimate --model deepseek-v3
prints "smallest GPU: none|GPU: none"

# Sums of eight micro-steps are in host memory unless told: 16 GB of gradients stay off the GPU.
ok estimate --model llama-3-8b --grad-accum 8
prints "grad-accum 8 \(with offload summed in host memory\)"
prints "with offload: 24 GB "
ok estimate --model llama-3-8b --grad-accum 8 --accumulate gpu
prints "with offload: 40 GB "

# 207,093,760 trained parameters x 2 bytes and 70,553,706,496 frozen ones x 0.52 are 34.6 GiB.
ok estimate --model llama-3-70b --lora 16 --frozen-bytes 0.52 --gpus 2
prints "207,093,760 parameters trained, 70,553,706,496 frozen, fp32"
prints "^one GPU +[0-9.]+ +0\.0 +34\.6 +0\.4 +2\.3 "
ok estimate --model llama-3-70b --lora 16 --json
grep -q '"frozen_parameters":[[:space:]]*70553706496' out || fail "--lora --json: no frozen ones"
ok estimate --model llama-2-7b --trainable 0.5

# What was assumed or not used of a config.json is said, as by 'model show' and 'plan'.
llama='"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 99'
note_of() { # JSON WANTED: the note, as text and as JSON
  printf '%s' "$1" >config-of-note.json
  ok estimate --model ./config-of-note.json
  tr '\n' ' ' <out | tr -s ' ' | grep -qF "note: config-of-note: $2" || fail "no note '$2': $(grep note out)"
  ok estimate --model ./config-of-note.json --json
  grep -qF "$2" out || fail "--json: no note '$2'"
}
note_of "{\"architectures\": [\"LlamaForTokenClassification\"], \"model_type\": \"llama\", $llama}" \
  "its architecture LlamaForTokenClassification is counted as LlamaForCausalLM"
t5='"num_layers": 2, "d_model": 64, "d_ff": 96, "d_kv": 16, "num_heads": 4, "vocab_size": 99'
note_of "{\"architectures\": [\"T5ForSequenceClassification\"], \"model_type\": \"t5\", $t5}" \
  "its architecture T5ForSequenceClassification is counted as T5ForConditionalGeneration"
note_of "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\", \"vision_config\": {\"hidden_size\": 8}, \"text_config\": {\"model_type\": \"gemma3_text\", $llama}}" \
  "its text part alone is counted"
note_of "{\"model_type\": \"llama\", \"num_key_value_head\": 2, $llama}" \
  "not used: num_key_value_head (is it num_key_value_heads?)"
note_of "{\"model_type\": \"llama\", \"vision_config\": {\"depth\": 2}, $llama}" "not used: vision_config"
note_of "{\"vision_config\": {}, \"text_config\": {\"model_type\": \"llama\", $llama}}" \
  "its text part alone is counted"
# Parts of models that their architecture names are counted as they are.
part_of() { # CONFIG ARCHITECTURE PARAMETERS
  ok estimate --model "$tests/data/configs/$1.json" --json
  grep -qE "\"parameters\":[[:space:]]*$3," out || fail "$1: not $3 parameters"
  ! grep -q "counted as" out || fail "$1: $(grep "counted as" out)"
  ok model show "$tests/data/configs/$1.json"
  grep -qx "$1: $2" out || fail "$1: $(head -1 out)"
}
part_of t5-v1.1-xxl-encoder T5EncoderModel 4762310656
part_of llama-3-8b-reward LlamaForSequenceClassification 7504928768
part_of mistral-7b-body MistralModel 7110660096
ok estimate --model llama-2-7b
! grep -q note out || fail "notes on a model that is read in full: $(grep note out)"
expect 2 "--frozen-bytes needs --lora RANK or --trainable X" estimate --model gpt2 --frozen-bytes 1
expect 2 "one of them says what is trained" estimate --model gpt2 --lora 8 --trainable 0.1
# A pipeline's stages share the host.
ok estimate --model llama-3-8b --pp 2 --gpus 2
prints "on each of 2 GPUs \(pp\); .* GiB GPU \+ 119\.7 GiB host"
ok estimate --model llama-3-8b --tp 2 --gpus 2
prints "on each of 2 GPUs \(tp\); .* GiB GPU \+ 119\.7 GiB host"

expect 2 "--model NAME\|FILE is needed" estimate
expect 2 "tp 3 does not divide" estimate --model gpt2 --tp 3
expect 2 "'--machine' is not an option of this command" estimate --model gpt2 --machine h200-16c

finish "estimate"
