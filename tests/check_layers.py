#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that calls between the C files of a tree go one way only.

usage: check_layers.py TREE BUILD

Reads with nm which functions and data each object file of BUILD defines and uses. Prints a line for
each violation and exits 1; or a line of counts and exits 0.

- no circle: no file uses, over whatever other files, one that uses it
- a file uses files of its own room and of the rooms that LAYERS allows
"""

import pathlib
import subprocess
import sys

# For each folder those that its files may use, besides each other. "engine" and
# the like stand for the files directly in that folder.
CORE = ["core/base", "core/machine", "core/model", "core/graph"]
ENGINE = ["engine/adamw", "engine/device", "engine/state", "engine/run", "engine/train",
          "engine/access", "engine"]
SIM = ["sim", "sim/policies"]
CALIB = ["calib/parts", "calib/probes", "calib/stand", "calib/validate", "calib/fit",
         "calib/profiles", "calib"]
CLI = ["cli/print", "cli/commands", "cli"]
BELOW_CALIB = [*ENGINE, *SIM, "traces"]
LAYERS = {
    **{room: CORE[:i] for i, room in enumerate(CORE)},
    **{room: CORE + ENGINE[:i] for i, room in enumerate(ENGINE)},
    **{room: CORE + SIM for room in SIM},
    "traces": CORE,
    **{room: CORE + BELOW_CALIB + CALIB[:i] for i, room in enumerate(CALIB)},
    **{room: CORE + BELOW_CALIB + CALIB + CLI for room in CLI},
}


def objects(tree, build):
    """(source file, object file) for the product's files; an old object file of a source file
    that was moved is left out."""
    for path in sorted(build.glob("CMakeFiles/*.dir/**/*.o")):
        parts = path.relative_to(build).parts
        source = pathlib.Path(*parts[2:]).with_suffix("")
        if str(source.parent) in LAYERS and (tree / source).is_file():
            yield str(source), path


def symbols(paths):
    """For each object file the names that it defines for others, and those that it uses."""
    found = {str(path): (set(), set()) for path in paths}
    if found:
        nm = ["nm", "-g", "--print-file-name", *found]
        for line in subprocess.run(nm, check=True, capture_output=True, text=True).stdout.splitlines():
            path, row = line.rsplit(":", 1)
            *_, kind, name = row.split()
            found[path][kind in "Uw"].add(name)
    return found


def calls(tree, build):
    """{file: {file that it uses: names}}"""
    defined, used = {}, {}
    files = list(objects(tree, build))
    found = symbols([path for _, path in files])
    for source, path in files:
        defines, used[source] = found[str(path)]
        defined.update(dict.fromkeys(defines - used[source], source))
    graph = {source: {} for source in used}
    for source, names in used.items():
        for name in sorted(names):
            if defined.get(name, source) != source:
                graph[source].setdefault(defined[name], []).append(name)
    return graph


def circles(graph):
    """Sets of files that use each other in a circle (Tarjan's strongly connected components)."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in number:
            visit(node)
    return [files for files in found if len(files) > 1]


def room_of(source):
    return str(pathlib.PurePath(source).parent)


def check(graph):
    for files in circles(graph):
        yield f"{len(files)} files call each other in a circle:"
        for source in files:
            for other, names in graph[source].items():
                if other in files:
                    yield f"  {source} uses {', '.join(names)} of {other}"
    for source, others in graph.items():
        room = room_of(source)
        for other, names in others.items():
            if room_of(other) != room and room_of(other) not in LAYERS[room]:
                yield f"{source} uses {', '.join(names)} of {other}: {room} is below that"


def main(arguments):
    if len(arguments) != 3:
        sys.exit(__doc__)
    sys.setrecursionlimit(10000)
    graph = calls(pathlib.Path(arguments[1]), pathlib.Path(arguments[2]))
    wrong = list(check(graph))
    if not graph:
        wrong.append(f"{arguments[2]} has no object files of the folders in LAYERS")
    print("\n".join(f"FAIL: {line}" for line in wrong) or
          f"{len(graph)} files use {sum(map(len, graph.values()))} others")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
