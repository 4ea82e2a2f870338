#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# libhocket as an installed library: it exports the functions of hocket.h only, the header compiles
# as C and C++ under strict warnings, the programs of tests/abi build with header and library alone,
# and the losses of the example fall and are the same for every overlap.
set -euo pipefail
hocket=$1
library=$(dirname "$hocket")
root=$(dirname "$HOCKET_SHARE")
[[ -e $library/libhocket.so ]] || { echo "FAIL: no libhocket.so beside $hocket" && exit 1; }
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here"

fail() {
  echo "FAIL: $*"
  exit 1
}

nm -D --defined-only "$library/libhocket.so" | awk '{print $3}' | sort >exported
grep -oE '\bhocket_[a-z_]+\(' "$root/engine/hocket.h" | tr -d '(' | sort -u >declared
diff declared exported || fail "exported symbols (>) differ from hocket.h's functions (<)"

# A program that loads a library with a sanitizer must be built with that sanitizer.
flags=()
symbols=$(nm -D "$library/libhocket.so")
[[ $symbols != *__asan_init* ]] || flags=("-fsanitize=address,undefined")
[[ $symbols != *__tsan_init* ]] || flags=("-fsanitize=thread")
cc=${CC:-cc}
command -v "$cc" >/dev/null || { echo "no C compiler: skipped" && exit 77; }
strict=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I "$root/engine")
echo '#include <hocket.h>' >alone.c
for standard in c99 c11; do
  "$cc" -std=$standard "${strict[@]}" -fsyntax-only alone.c || fail "hocket.h is not $standard"
done
if command -v "${CXX:-c++}" >/dev/null; then
  cat >alone.cpp <<'EOF'
#include <hocket.h>
int main() {
  hocket_engine *engine = NULL;
  char message[HOCKET_MESSAGE];
  hocket_group group = {1e-3, 0.9, 0.999, 1e-8, 0.0};
  hocket_tensor tensor = hocket_tensor();
  hocket_options options = hocket_options();
  int status = hocket_create("no plan", &tensor, 1, &group, 1, &options, &engine, message);
  hocket_destroy(engine);
  return status;
}
EOF
  for standard in c++98 c++17; do
    "${CXX:-c++}" -std=$standard "${strict[@]}" -Wno-long-long -fsyntax-only alone.cpp ||
      fail "hocket.h is not $standard"
  done
fi

# The library's soname has the number of its ABI.
abi=$(sed -n 's/^#define HOCKET_ABI *\([0-9]*\).*/\1/p' "$root/engine/hocket.h")
if command -v readelf >/dev/null; then
  readelf -d "$library/libhocket.so" | grep -q "SONAME.*\[libhocket\.so\.$abi\]" ||
    fail "the library's soname is not libhocket.so.$abi"
fi

# build SOURCE: builds the program here, with the library and the header only.
build() {
  "$cc" -std=c11 -O1 -g -ffp-contract=off -D_GNU_SOURCE "${strict[@]}" "${flags[@]}" "$root/$1" \
    -o "$(basename "$1" .c)" -L "$library" -lhocket -lm -pthread -Wl,-rpath,"$library"
}

# goes LAST PROGRAM ARGUMENTS...: the program exits 0 and its last line matches LAST.
goes() {
  timeout 500 "./$2" "${@:3}" >"$2.out" 2>"$2.err" || fail "$2: exit $?: $(tail -n 40 "$2.err")"
  tail -n 1 "$2.out" | grep -q -- "$1" || fail "$2 said '$(tail -n 1 "$2.out")'"
}

# Plans for $parameters parameters; the tensors of tests/abi/world.h are made to have as many.
cat >tiny.json <<'EOF'
{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64,
 "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
 "max_position_embeddings": 4096}
EOF
"$hocket" simulate --model tiny.json --machine h200-16c --policy twinflow --ratio 0.5 \
  --subgroup 5000 --cpu-threads 1 -o twinflow.json --quiet >/dev/null
"$hocket" simulate --model tiny.json --machine h200-16c --policy streamed \
  --subgroup 5000 --cpu-threads 1 -o streamed.json --quiet >/dev/null
parameters=$("$hocket" model show tiny.json --json | grep -oE '"parameters":[[:space:]]*[0-9]+' |
  grep -oE '[0-9]+$')
for program in training misuse threads busy adamw; do build tests/abi/$program.c; done
goes "all went well" training "$parameters" twinflow.json streamed.json
goes "all went well" misuse 30000
goes "all went well" threads 30000
goes "all went well" busy
goes "all went well" adamw
if [[ ${HOCKET_TEST_FULL:-} == 1 && ${#flags[@]} == 0 ]]; then
  build tests/abi/large.c
  goes "all went well" large
fi
if command -v python3 >/dev/null; then
  python3 "$root/tests/abi/check_words.py" <threads.out || fail "report or timeline is wrong"
fi

build examples/train_step.c
for overlap in none forward both; do
  goes '^checksum of the state: [0-9a-f]\{32\}$' train_step $overlap 0 400
  mv train_step.out $overlap.out
  cmp none.out $overlap.out || fail "overlap $overlap has losses of its own"
  goes '^checksum' train_step $overlap 0 150 half.ck
  mv train_step.out begun.out
  goes '^checksum' train_step both 150 400 half.ck
  { grep '^step' begun.out && cat train_step.out; } | cmp - none.out || fail "$overlap: resumed"
done
grep -c '^step ' none.out | grep -qx 400 || fail "the example took other than 400 steps"
awk '/^step / {loss = $4 + 0; if (first == "") first = loss; if (loss > most) most = loss}
     END {exit !(first > 0.1 && most < 2 * first && loss < first / 50)}' none.out ||
  fail "no learning: $(tail -n 2 none.out)"
status=0
./train_step both 5 9 no-such.ck 2>said || status=$?
[[ $status == 2 && $(cat said) == *no-such.ck* ]] || fail "a missing checkpoint: $status, $(cat said)"
status=0
./train_step none 1 2 2>said || status=$?
[[ $status == 2 && $(cat said) == usage* ]] || fail "no checkpoint to resume from: $status"
