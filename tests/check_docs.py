#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that what the pages and comments of a tree refer to is there.

usage: check_docs.py TREE

Prints a line for each violation and exits 1; or a line of counts and exits 0.

- in Markdown pages, each link to a file leads to one, and each link to a section to a heading
- in Markdown pages, what stands between backticks and looks like a path of the tree (`core/graph/plan.h`,
  `calib/probes/`, `chunks.c`) or like a name of hocket's (`hk_simulate`, `HOCKET_STORE`) exists.
  A file may be named without its folder. Words in capitals, such as NAME, stand for any text. In
  docs/notes/ and bench/results/, which are dated, only links count
- in all text files, each path of the tree that ends as a source file or page does exists
"""

import os
import pathlib
import re
import sys

PATH = r"[A-Za-z0-9_.*-]+(?:/[A-Za-z0-9_.*-]+)*"
ENDS = r"\.(?:c|h|cu|cuh|cpp|py|sh|cmake|md|ipynb|svg)"
LINK = re.compile(r"\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")
TICKS = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
NAME = re.compile(r"\b(?:hk|HK|hocket|HOCKET)_[A-Za-z0-9_]+\b")
SKIPPED = {"build", "__pycache__", "node_modules"}
TEXT = {".c", ".h", ".cu", ".cpp", ".py", ".sh", ".cmake", ".md", ".txt", ".ipynb", ".toml", ""}
DATED = re.compile(r"docs/notes/|bench/results/")
# Files that refer to what is not there on purpose.
EXEMPT = re.compile(r"tests/(test_unit_(docs|layers|licences|mutate|readme_check)\.sh|mutations/|data/)")
PAGES = {"README", "CONTRIBUTING", "LICENSE", "DESIGN", "TRAINING"}


def files_of(tree):
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("."))
        for name in sorted(files):
            yield (pathlib.Path(folder) / name).relative_to(tree)


def anchor(heading):
    """The anchor that GitHub makes of a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip()).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.M):
        name, n = anchor(heading), 0
        while name + (f"-{n}" if n else "") in found:
            n += 1
        found.add(name + (f"-{n}" if n else ""))
    return found


class Tree:
    def __init__(self, top):
        self.top = top
        self.files = list(files_of(top))
        self.names = {str(f) for f in self.files}
        self.base_names = {f.name for f in self.files}
        self.folders = {str(p) for f in self.files for p in f.parents} - {"."}
        self.roots = {f.parts[0] for f in self.files if len(f.parts) > 1}
        self.texts, self.words = {}, set()
        for file in self.files:
            if file.suffix in TEXT and not str(file).startswith("tests/data/"):
                text = (top / file).read_text(errors="replace")
                self.texts[str(file)] = text
                if file.suffix not in (".md", ".ipynb"):
                    self.words.update(NAME.findall(text))

    def has(self, path, page):
        """Whether a path, which may have stars, is one of a file or a folder of the tree."""
        path = path.rstrip("/")
        if set(re.findall(r"[A-Z]{4,}", path)) - PAGES:
            return True
        if "*" in path:
            return any(f.match(path) for f in self.files)
        if path in self.names or path in self.folders:
            return True
        beside = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if beside in self.names or beside in self.folders:
            return True
        return "/" not in path and path in self.base_names


def check_links(tree, page, text, wrong):
    count = 0
    for match in LINK.finditer(text):
        target, _, section = (match[1] or match[2]).partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        count += 1
        to = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
        if not (tree.top / to).exists():
            wrong.append(f"{page}: links to {target}, which is not there")
        elif section and to in tree.texts and section not in anchors(tree.texts[to]):
            wrong.append(f"{page}: links to {target}#{section}, but there is no such heading")
    return count


def check_ticks(tree, page, text, wrong):
    count = 0
    for quoted in TICKS.findall(FENCE.sub("", text)):
        for name in NAME.findall(quoted):
            count += 1
            if name not in tree.words and not any(w.startswith(name) for w in tree.words):
                wrong.append(f"{page}: names {name}, which no source has")
        path = quoted.removeprefix("./")
        of_tree = re.fullmatch(rf"{PATH}/?", path) and path.split("/")[0] in tree.roots and "/" in path
        if of_tree or re.fullmatch(rf"{PATH}\.(?:c|h|cu|py)", path):
            count += 1
            if not tree.has(path, page):
                wrong.append(f"{page}: names {path}, which is not there")
    return count


def check_comments(tree, file, text, wrong):
    count = 0
    roots = "|".join(sorted(tree.roots))
    for match in re.finditer(rf"(?<![\w./${{}}*-])(?:{roots})/[\w./*-]*{ENDS}\b|\b[A-Z]{{4,}}\.md\b", text):
        count += 1
        if not tree.has(match[0], file):
            wrong.append(f"{file}: refers to {match[0]}, which is not there")
    return count


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    tree, wrong = Tree(pathlib.Path(sys.argv[1]).resolve()), []
    pages = links = names = paths = 0
    for file, text in tree.texts.items():
        if EXEMPT.match(file):
            continue
        if file.endswith(".md"):
            pages += 1
            links += check_links(tree, file, text, wrong)
            if not DATED.match(file):
                names += check_ticks(tree, file, text, wrong)
        elif not DATED.match(file):
            paths += check_comments(tree, file, text, wrong)
    for line in dict.fromkeys(wrong):
        print(f"FAIL: {line}")
    if wrong:
        return 1
    print(f"{pages} pages, {links} links, {names} quoted names, {paths} paths in other files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
