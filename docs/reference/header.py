#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a page for Sphinx of a C header: macros, constants, structs and functions with their comments.

usage: header.py HEADER PAGE

A comment belongs to the declaration below it, and to those that follow without a comment or an
empty line between; a comment at the end of a line to what stands there. A comment "-- Title ---"
begins a section. Exits 1, and names the line, if something that is declared has no comment."""

import re
import sys
from pathlib import Path

TOKEN = re.compile(
    r"(?P<comment>/\*.*?\*/)|(?P<define>#define[^\n]*)|(?P<skip>#[^\n]*|extern \"C\" \{|^\}$)"
    r"|(?P<code>[^\s/#](?:[^;{]|\{[^}]*\})*;)", re.S | re.M)


def prose(comment):
    """reStructuredText of a comment: paragraphs, lists, and lines that are indented as code."""
    lines = comment[2:-2].strip().split("\n")
    if all(line.lstrip().startswith("*") for line in lines[1:]):
        lines = [re.sub(r"^ ?\* ?", "", line) for line in lines]
    else:  # beside a declaration: the lines are one paragraph
        lines = [" ".join(line.strip() for line in lines)]
    blocks, code = [], False
    for line in lines:
        indented = line.startswith("  ")
        if not line.strip():
            blocks.append("")
        elif indented:
            if not code:
                blocks += ["", "::", ""]
            blocks.append("    " + line)
        else:
            if code:
                blocks.append("")
            blocks.append(escape(line.strip()))
        code = indented or (code and not line.strip())
    return "\n".join(blocks)


def escape(text):
    """Code between backticks stays; other characters that reStructuredText reads are escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = "`" + part + "`"
        else:
            part = re.sub(r"([*|\\])", r"\\\1", part)
            parts[i] = re.sub(r"_(?!\w)", r"\\_", part)
    return "".join(parts)


def indent(text):
    return "\n".join("   " + line if line else "" for line in text.split("\n"))


def without_comments(code):
    return " ".join(re.sub(r"/\*.*?\*/", " ", code, flags=re.S).split())


class Page:
    def __init__(self, title):
        self.lines = [title, "=" * len(title), ""]
        self.missing = []

    def add(self, directive, names, text, members=()):
        pad = " " * len(f".. {directive}:: ")
        self.lines += [f".. {directive}:: " + ("\n" + pad).join(names), "", indent(text), ""]
        for kind, name, comment in members:
            self.lines += [f"   .. {kind}:: {name}", "", indent(indent(comment)), ""]


def apart(code):
    """What stands between the braces, with "@i@" in place of comment i; and the comments."""
    comments = []

    def keep(match):
        comments.append(match[0])
        return f"@{len(comments) - 1}@"

    inside = re.sub(r"/\*.*?\*/", keep, code, flags=re.S)
    return inside[inside.index("{") + 1 : inside.rindex("}")], comments


def members_of(code):
    """(declaration, comment) of each member of a struct; a comment stands behind its member."""
    inside, comments = apart(code)
    for match in re.finditer(r"([^;@]+);\s*(?:@(\d+)@)?", inside):
        yield " ".join(match[1].split()), prose(comments[int(match[2])]) if match[2] else ""


def split_declarators(declaration):
    """"double a, b" as "double a" and "double b"."""
    first, *others = declaration.split(",")
    kind = first.strip().rsplit(" ", 1)[0]
    return [first.strip()] + [f"{kind} {other.strip()}" for other in others]


def constants_of(code, comment):
    """(name, comment) of each constant; one without its own comment has the enumeration's."""
    inside, comments = apart(code)
    for match in re.finditer(r"(\w+)\s*(?:=[^,@]*)?,?\s*(?:@(\d+)@)?", inside):
        yield match[1], prose(comments[int(match[2])]) if match[2] else comment


def add_code(page, code, comment, pending, where):
    flat = without_comments(code)
    if flat.startswith("enum"):
        for name, text in constants_of(code, comment):
            page.add("c:macro", [name], text)
            if not text:
                page.missing.append(f"{where}: {name} has no comment")
    elif flat.startswith("typedef struct {"):
        name = flat.rsplit("}", 1)[1].strip(" ;")
        fields = []
        for declaration, text in members_of(code):
            fields += [("c:member", d, text) for d in split_declarators(declaration)]
            if not text and not comment:
                page.missing.append(f"{where}: {name}, {declaration} has no comment")
        page.add("c:struct", [name], comment, fields)
    elif flat.startswith("typedef struct"):
        page.add("c:struct", [flat.split()[2]], comment)
        if not comment:
            page.missing.append(f"{where}: {flat.split()[2]} has no comment")
    else:
        pending.append(re.sub(r"^HOCKET_API ", "", flat).rstrip(";"))
        if not comment:
            page.missing.append(f"{where}: {pending[-1]} has no comment")


def convert(header):
    text = header.read_text()
    page, comment, pending, first = Page("The C library"), "", [], True

    def flush():
        if pending:
            page.add("c:function", list(pending), comment)
            pending.clear()

    position = 0
    for match in TOKEN.finditer(text):
        gap, position = text[position : match.start()], match.end()
        where = f"{header}:{text[: match.start()].count(chr(10)) + 1}"
        beside = "\n" not in gap and match.start() > 0
        if match["comment"]:
            body = match["comment"]
            if "SPDX" in body:
                continue
            title = re.match(r"/\* -- (.*?) -+ \*/", body)
            if first:
                page.lines += [prose(body), ""]
                first = False
            elif title:
                flush()
                page.lines += [title[1], "-" * len(title[1]), ""]
                comment = ""
            elif beside and pending:
                comment = prose(body)
                if page.missing and page.missing[-1].endswith(f"{pending[-1]} has no comment"):
                    page.missing.pop()
                flush()
                comment = ""
            elif beside:
                continue  # read with the declaration that it follows
            else:
                flush()
                comment = prose(body)
        elif match["define"]:
            flush()
            name = match["define"].split()[1]
            at_end = re.search(r"/\*.*?\*/", match["define"])
            if len(match["define"].split()) > 2 and name != "HOCKET_API":
                page.add("c:macro", [name], prose(at_end[0]) if at_end else comment)
                if not at_end and not comment:
                    page.missing.append(f"{where}: {name} has no comment")
        elif match["code"]:
            if "\n\n" in gap and pending:
                flush()
                comment = ""
            at_end = re.match(r" */\*.*?\*/", text[position:])
            flat = match["code"]
            if not flat.lstrip().startswith(("typedef", "enum")):
                add_code(page, flat, comment, pending, where)
            else:
                flush()
                own = prose(at_end[0].strip()) if at_end else comment
                add_code(page, flat, own, pending, where)
                comment = ""
    flush()
    return page


def main():
    if len(sys.argv) != 3:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    page = convert(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text("\n".join(page.lines) + "\n")
    for line in page.missing:
        print(line, file=sys.stderr)
    return 1 if page.missing else 0


if __name__ == "__main__":
    sys.exit(main())
