#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Links, paths and names in the pages and comments of this tree are valid, and check_docs.py finds
# each kind of invalid one.
# Usage: test_unit_docs.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }

check() {
  python3 "$tests/check_docs.py" "$@" >out 2>err
}

check "$tests/.." || fail "this tree: $(cat out err)"

# A tree without violations; each case below adds one, which check_docs.py must find.
small_tree() {
  rm -rf tree && mkdir -p tree/core tree/docs/notes
  printf '/* docs/page.md says why. */\nvoid hk_plan_free(void);\n' >tree/core/plan.h
  cat >tree/docs/page.md <<'END'
# A page: `plan` & more

[itself](#a-page-plan--more), [the other](../README.md#what-it-does), [there](https://example.org/x),
<img alt="x" src="../docs/page.md">, `core/plan.h`, `plan.h`, `core/`, `core/*.h`, `core/NAME.h`,
`hk_plan_free`, `hk_plan_*`, `a / b`, `and/or`

```sh
# not a heading
cat core/absent.h hk_absent
```
END
  printf '# Readme\n## What it does\n' >tree/README.md
  echo '`core/old.h` and `hk_old` were here' >tree/docs/notes/2026.md
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
prints '^3 pages, 3 links, 7 quoted names, 1 paths in other files$'

page() {
  printf '%s\n' "$1" >>tree/docs/page.md
}

page '[gone](gone.md)'
finds 'docs/page.md: links to gone.md, which'
page '[gone](#not-a-heading)'
finds 'docs/page.md: links to #not-a-heading, but'
page '[gone](../README.md#readme-2)'
finds 'links to ../README.md#readme-2, but'
page '<img src="gone.svg">'
finds 'links to gone.svg, which'
# shellcheck disable=SC2016
for quoted in '`core/gone.h`' '`gone.c`' '`core/gone/`' '`core/*.cu`' '`./core/gone.h`'; do
  page "$quoted"
  finds 'docs/page.md: names .*, which is not there'
done
# shellcheck disable=SC2016
page 'it calls `hk_plan_gone(1)`'
finds 'names hk_plan_gone, which no source has'
echo '[gone](gone.md)' >>tree/docs/notes/2026.md
finds 'docs/notes/2026.md: links to gone.md'
echo '/* see DESIGN.md */' >>tree/core/plan.h
finds 'core/plan.h: refers to DESIGN.md, which'
echo '# as core/gone.h has it' >tree/core/run.sh
finds 'core/run.sh: refers to core/gone.h, which'
status=0
check || status=$?
[[ $status -eq 2 ]] || fail "without a tree: exit $status, expected 2"
finish "links, paths and names in docs"
