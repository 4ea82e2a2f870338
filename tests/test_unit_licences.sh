#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The licences of this tree and of libhocket.so, and that check_licences.py finds each kind of
# violation.
# Usage: test_unit_licences.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
build=$(dirname "$hocket")
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }

check() {
  python3 "$tests/check_licences.py" "$@" >out 2>err
}

parts=()
if [[ -e $build/build.ninja ]] && command -v readelf >/dev/null; then parts=("$build"); fi
check "$tests/.." "${parts[@]}" || fail "this tree: $(cat out err)"

# source_file FILE LICENCE [LINE]: writes a file of the small tree.
source_file() {
  printf '/* SPDX-%s: %s */\n%s\n' License-Identifier "$2" "${3-}" >"tree/$1"
}

# A tree without violations; each case below adds one, which check_licences.py must find.
small_tree() {
  rm -rf tree && mkdir -p tree/core tree/sim tree/LICENSES
  cp "$tests/../LICENSE" tree && cp "$tests"/../LICENSES/*.txt tree/LICENSES
  source_file core/plan.h Apache-2.0
  source_file core/plan.c Apache-2.0 '#include "core/plan.h"'
  source_file sim/sim.h GPL-3.0-or-later
  source_file sim/sim.c GPL-3.0-or-later '#include <glpk.h>'
}

# finds PATTERN: the small tree has this one violation.
finds() {
  check tree && fail "found nothing, expected /$1/"
  prints "$1"
  [[ $(wc -l <out) -eq 1 ]] || fail "expected one violation: $(cat out)"
  small_tree
}

small_tree
check tree || fail "a tree without violations: $(cat out err)"
prints '^2 source files under Apache-2.0, 2 under GPL-3.0-or-later, 0 libraries named$'

source_file core/plan.c GPL-3.0-or-later
finds "core/plan.c: .*'GPL-3.0-or-later'.*LICENSE says Apache-2.0"
source_file sim/sim.c Apache-2.0
finds "sim/sim.c: .*'Apache-2.0'.*LICENSE says GPL-3.0-or-later"
echo 'int x;' >tree/core/bare.c
finds 'core/bare.c: .*no licence'
printf '#!/bin/sh\n' >tree/sim/script
finds 'sim/script: .*no licence'
mkdir tree/novel && source_file novel/new.c Apache-2.0
finds 'LICENSE names no licence for novel/'
rm tree/LICENSES/Apache-2.0.txt
finds 'LICENSES/Apache-2.0.txt'
for line in '#include "sim/sim.h"' '#  include <sim/sim.h>  // why' '#include <gsl/gsl_math.h>' \
  '#include <glpk.h>' '#include "../sim/sim.h"' '#include SIM_HEADER'; do
  source_file core/plan.c Apache-2.0 "$line"
  finds 'core/plan.c:2: .*includes'
done

# A build whose library links a GPL library: in the ELF file, then on the link line alone.
if command -v "${CC:-cc}" >/dev/null && command -v readelf >/dev/null; then
  mkdir built && echo 'int hk_x;' >x.c
  link_line() {
    printf 'build libhocket.so.1: LINK x.o\n  LINK_LIBRARIES = %s\n\n' "$1" >built/build.ninja
  }
  shared() {
    "${CC:-cc}" -shared -fPIC -nostdlib x.c -o built/libhocket.so -Wl,--no-as-needed "$@"
  }
  link_line 'libhocket_engine.a  -lm  /usr/lib/libhwloc.so' && shared -lc
  check tree built || fail "a build without violations: $(cat out err)"
  shared -lc -lgsl
  check tree built && fail "libhocket.so that needs GSL"
  prints '^FAIL: libhocket.so: links gsl,'
  shared -lc
  for library in -lglpk /usr/lib/libgsl.so libhocket_sim.a; do
    link_line "libhocket_engine.a $library"
    check tree built && fail "a link line with $library"
    prints '^FAIL: link line of libhocket.so: links (glpk|gsl|hocket_sim),'
  done
  rm built/libhocket.so
  link_line 'libhocket_engine.a'
  check tree built && fail "a build without libhocket.so"
fi
finish "licences"
