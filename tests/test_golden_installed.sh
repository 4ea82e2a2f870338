#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The installed tree: find_package(hocket) and pkg-config build examples/train_step.c with the
# installed header and library alone, at the place of the installation and after it was moved, and
# the installed program finds its own share folder. Usage: test_golden_installed.sh HOCKET
set -euo pipefail
build=$(dirname "$1")
root=$(dirname "$HOCKET_SHARE")
unset HOCKET_SHARE
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here"

fail() {
  echo "FAIL: $*" >&2
  exit 1
}
for tool in cmake pkg-config "${CC:-cc}"; do
  command -v "$tool" >/dev/null || { echo "no $tool: skipped" && exit 77; }
done
symbols=$(nm -D "$build/libhocket.so")
[[ $symbols != *__[at]san_init* ]] || { echo "a sanitizer's library: skipped" && exit 77; }

for component in library planner; do
  cmake --install "$build" --prefix "$here/first" --component $component >log ||
    fail "installation: $(tail -n 5 log)"
done
[[ $(./first/bin/hocket model list | wc -l) -ge 50 ]] || fail "the program has no models"
if [[ -e $root/share/report/plotly.min.js ]]; then # scripts/plotly
  ./first/bin/hocket plan --model llama-2-7b --machine h200-16c --quiet -o plan.json >log
  ./first/bin/hocket report plan.json -o page.html >log || fail "the program makes no page"
fi

libdir=$(dirname "$(find first -name libhocket.so)")
libdir=${libdir#first/}
cat >CMakeLists.txt <<'EOF'
cmake_minimum_required(VERSION 3.22)
project(example LANGUAGES C)
find_package(hocket 0.2 REQUIRED)
add_executable(train_step ${SOURCE})
target_link_libraries(train_step PRIVATE hocket::hocket m)
EOF

# train_with PROGRAM: 20 steps, whose last line has the checksum.
train_with() {
  "$1" both 0 20 "$here/state.ck" | tail -n 1 | grep '^checksum of the state: [0-9a-f]\{32\}$' ||
    fail "$1 does not train"
}

# build_at PREFIX: the example, built both ways. Prints the checksums.
build_at() {
  rm -rf by-cmake
  cmake -B by-cmake -S . -DCMAKE_PREFIX_PATH="$here/$1" -DSOURCE="$root/examples/train_step.c" \
    >log 2>&1 && cmake --build by-cmake >>log 2>&1 || fail "find_package: $(tail -n 20 log)"
  train_with by-cmake/train_step
  local flags
  flags=$(PKG_CONFIG_PATH=$here/$1/$libdir/pkgconfig pkg-config --cflags --libs hocket)
  [[ $flags == *"$here/$1/"* ]] || fail "pkg-config: $flags"
  # shellcheck disable=SC2086 # words
  "${CC:-cc}" -std=c11 -D_GNU_SOURCE "$root/examples/train_step.c" -o by-pkg-config $flags -lm \
    -Wl,-rpath,"$here/$1/$libdir"
  train_with ./by-pkg-config
}

build_at first >checksums
mv first second
build_at second >>checksums
[[ $(sort -u checksums | wc -l) == 1 && $(wc -l <checksums) == 4 ]] || fail "$(cat checksums)"

sed -i 's/hocket 0.2 /hocket 99 /' CMakeLists.txt
rm -rf by-cmake
! cmake -B by-cmake -S . -DCMAKE_PREFIX_PATH="$here/second" -DSOURCE=none >log 2>&1 ||
  fail "version 99 is found"
