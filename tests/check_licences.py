#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that a source tree and its build keep to the licences that its LICENSE names.

usage: check_licences.py TREE [BUILD]

Prints a line for each violation and exits 1; or a line of counts and exits 0.

- LICENSE's table names a licence for each folder of the tree that holds source files, and
  LICENSES/ has the text of each
- each source file has one SPDX line among its first three lines, the one that the table says
- no file under Apache-2.0 includes a header of a folder under the GPL or of a GPL library
- with BUILD, which ninja has built: neither the line that links libhocket.so, with the static
  libraries it is made of, nor libhocket.so itself names a library that is not on the list below
"""

import pathlib
import re
import subprocess
import sys

APACHE, GPL = "Apache-2.0", "GPL-3.0-or-later"
SOURCES = {".c", ".h", ".cpp", ".cu", ".cuh", ".py", ".pyx", ".sh", ".cmake"}
TAG = "SPDX-" + "License-Identifier:"
GPL_HEADERS = re.compile(r"gsl/|glpk\.h$|readline/|fftw3|gmp\.h$")
INCLUDE = re.compile(r"\s*#\s*(?:include|include_next|import)\b\s*(.*)")

# What libhocket.so may link: its own folders, and libraries under licences that Apache-2.0 code can
# use (cJSON MIT, hwloc BSD-3-Clause, xxHash BSD-2-Clause, CUDA's runtime, the system's and the
# compiler's own). Add a library only after reading its licence.
LINKABLE = re.compile(
    r"hocket_core|hocket_engine|cjson|hwloc|xxhash|cudart(_static)?|cudadevrt|cuda|"
    r"c|m|dl|rt|pthread|stdc\+\+|gcc_s|asan|ubsan|tsan|gcov|ld-linux.*"
)
# Of a line such as "build/libcjson.so.1 -lm", and of the name "libcjson.so.1".
LIBRARY = re.compile(r"(?:^|/)(?:lib)?([^/]+?)\.(?:so[.\d]*|a)$|^-l(\S+)$")


def licences(tree, wrong):
    """The table in LICENSE, as {folder or file: licence}."""
    table = {}
    for line in (tree / "LICENSE").read_text().splitlines():
        row = re.fullmatch(r"  (\S.*?) {2,}(\S+)", line)
        for name in row[1].split() if row else ():
            table[name.rstrip("/")] = row[2]
    for licence in sorted({APACHE, GPL, *table.values()}):
        text = tree / "LICENSES" / f"{licence}.txt"
        if not text.is_file() or text.stat().st_size < 10000:
            wrong.append(f"LICENSES/{licence}.txt: not there, or not the whole text")
    return table


def is_source(path):
    if path.suffix in SOURCES or path.name == "CMakeLists.txt":
        return True
    with path.open("rb") as file:
        return path.suffix == "" and file.read(2) == b"#!"


def source_files(tree):
    for path in sorted(tree.rglob("*")):
        parts = path.relative_to(tree).parts
        hidden = any(p.startswith(".") and p != ".ci" for p in parts)
        if not hidden and "build" not in parts and path.is_file() and is_source(path):
            yield path


def check_line(name, lines, licence, wrong):
    said = [line.split(TAG)[1].replace("*/", "").strip() for line in lines[:3] if TAG in line]
    if said != [licence]:
        wrong.append(f"{name}: its first lines say {said or 'no licence'}; LICENSE says {licence}")


def check_includes(name, lines, table, wrong):
    for number, line in enumerate(lines, 1):
        include = INCLUDE.match(line)
        if not include:
            continue
        header = include[1].split("//")[0].split("/*")[0].strip()
        path = header[1:-1]
        if header[:1] not in ('"', "<"):
            wrong.append(f"{name}:{number}: includes {header}: which header that is cannot be read")
        elif ".." in path.split("/"):
            wrong.append(f"{name}:{number}: includes {header}: give the path from the top")
        elif GPL_HEADERS.match(path) or table.get(path.split("/")[0]) == GPL:
            wrong.append(f"{name}:{number}: is under {APACHE} and includes {header}: under the GPL")


def check_library(place, word, wrong):
    library = LIBRARY.search(word)
    name = library and (library[1] or library[2])
    if name and not LINKABLE.fullmatch(name):
        wrong.append(f"{place}: links {name}, which LINKABLE in check_licences.py does not have")
    return bool(name)


def check_build(build, wrong):
    """The number of libraries that the link line and libhocket.so name."""
    rules = re.split(r"(?m)^build ", (build / "build.ninja").read_text())
    rules = [rule for rule in rules if rule.startswith("libhocket.so") and "LINK_LIBRARIES" in rule]
    line = re.search(r"LINK_LIBRARIES = (.*)", rules[0])[1] if len(rules) == 1 else ""
    named = sum(check_library("link line of libhocket.so", word, wrong) for word in line.split())
    elf = subprocess.run(["readelf", "-d", build / "libhocket.so"], capture_output=True, text=True)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", elf.stdout)
    needs = sum(check_library("libhocket.so", word, wrong) for word in needed)
    if not named or not needs:
        wrong.append(f"{build}: no link line of libhocket.so, or no libhocket.so")
    return named + needs


def main(arguments):
    if len(arguments) not in (2, 3):
        sys.exit(__doc__)
    tree, wrong, counts = pathlib.Path(arguments[1]), [], {}
    table = licences(tree, wrong)
    for path in source_files(tree):
        name = str(path.relative_to(tree))
        lines = path.read_text(errors="replace").splitlines()
        folder = name.split("/")[0]
        licence = table.get(folder, None if "/" in name else GPL)
        counts[licence] = counts.get(licence, 0) + 1
        if licence is None:
            wrong.append(f"{name}: LICENSE names no licence for {folder}/")
            continue
        check_line(name, lines, licence, wrong)
        if licence == APACHE:
            check_includes(name, lines, table, wrong)
    libraries = check_build(pathlib.Path(arguments[2]), wrong) if len(arguments) == 3 else 0
    print("\n".join(f"FAIL: {line}" for line in wrong) or
          f"{counts.get(APACHE, 0)} source files under {APACHE}, {counts.get(GPL, 0)} under {GPL}, "
          f"{libraries} libraries named")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
