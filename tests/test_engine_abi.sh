#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# libhocket as a stranger meets it: nothing exported but hocket_*, a header that C and C++ take
# under strict warnings, and the example built against these two alone, whose loss must fall.
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

# A library that was built with a sanitizer needs it from whoever loads it.
flags=()
if nm -D "$library/libhocket.so" | grep __asan_init >sanitized; then
  flags=("-fsanitize=address,undefined")
fi
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
  hocket_group group = {10, 1e-3, 0.9, 0.999, 1e-8, 0.0};
  int status = hocket_create("no plan", &group, 1, NULL, &engine, message);
  hocket_destroy(engine);
  return status;
}
EOF
  for standard in c++98 c++17; do
    "${CXX:-c++}" -std=$standard "${strict[@]}" -Wno-long-long -fsyntax-only alone.cpp ||
      fail "hocket.h is not $standard"
  done
fi

cat >tiny.json <<'EOF'
{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64,
 "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
 "max_position_embeddings": 4096}
EOF
"$hocket" simulate --model tiny.json --machine h200-16c --policy twinflow --ratio 0.5 \
  --subgroup 5000 --cpu-threads 1 -o plan.json --quiet >/dev/null
parameters=$("$hocket" model show tiny.json --json | grep -oE '"parameters":[[:space:]]*[0-9]+' |
  grep -oE '[0-9]+$')
"$cc" -std=c11 "${strict[@]}" "${flags[@]}" "$root/examples/train_step.c" -o train_step \
  -L "$library" -lhocket -Wl,-rpath,"$library"
./train_step plan.json "$parameters" 40 >trained || fail "the example: exit $?"
grep -c '^step ' trained | grep -qx 40 || fail "the example took other than 40 steps"
awk '/^step / {loss = $4; if (first == "") first = loss}
     END {exit !(first > 0.1 && loss < first / 20)}' trained || { cat trained; fail "no learning"; }
grep -qE '^checksum of the state: [0-9a-f]{32}$' trained || fail "the example prints no checksum"
./train_step plan.json "$((parameters + 1))" 1 2>said && fail "a wrong number of parameters went"
grep -q "parameter groups have" said || fail "what is wrong with the groups is not said"
./train_step no-such-plan.json 1 1 2>said && fail "a plan that is not there went"
grep -q "no-such-plan.json" said || fail "which plan is missing is not said"
