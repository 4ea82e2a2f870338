#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the commands of docs/questions.md and checks what they answer.

usage: questions.py HOCKET PAGE [--verbose]

Each "### N. Question?" has one ```sh block with one command and a line below it that begins with
"Prints". Quoted text of that line must be in the output (stdout and stderr, with blanks and line
breaks as one space), in any order. "Exit status 1." in the line expects that status, else it is 0.
Commands run in the working directory, in order. Without HOCKET_TEST_FULL, `plan` gets --quiet where
no quoted text needs advice, warnings or notes: advice simulates many jobs. And --largest, which
plans as often, is not run: test_golden_largest.sh does. Of other plans that
write no file every second is run, from the third question on.
"""

import os
import re
import shlex
import subprocess
import sys
import time

QUESTION = re.compile(r"^### (\d+)\. (.+\?)\n\n```sh\n(hocket [^\n]+)\n```\n\n(Prints [^\n]+)$", re.M)
SAID = ("try ", "warning", "wrote", "cannot express", "names ", "as a configuration", "note")
LIMIT = 60  # seconds a command may take


def ask(hocket, command, fragments):
    words = shlex.split(command)[1:]
    if words[0] == "plan" and not os.environ.get("HOCKET_TEST_FULL"):
        if not any(said in fragment for fragment in fragments for said in SAID):
            words.append("--quiet")
    done = subprocess.run([hocket, *words], capture_output=True, text=True, timeout=LIMIT,
                          stdin=subprocess.DEVNULL, check=False)
    return done.returncode, " ".join((done.stdout + " " + done.stderr).split())


def main():
    hocket, page = sys.argv[1:3]
    verbose = "--verbose" in sys.argv[3:]
    with open(page, encoding="utf-8") as file:
        text = file.read()
    questions = QUESTION.findall(text)
    headings = re.findall(r"^### ", text, re.M)
    failures = skipped = plans = 0
    if len(questions) != len(headings) or not questions:
        print(f"FAIL: {len(headings)} headings, {len(questions)} questions of the right form")
        failures += 1
    for place, (number, question, command, line) in enumerate(questions, 1):
        fragments = re.findall(r"`([^`]+)`", line)
        expected = 1 if "Exit status 1." in line else 0
        counts = place > 2 and command.startswith("hocket plan") and " -o " not in command
        plans += counts
        left = "--largest" in command or (counts and plans % 2 == 1)
        if left and not os.environ.get("HOCKET_TEST_FULL"):
            skipped += 1
            continue
        began = time.monotonic()
        status, said = ask(hocket, command, fragments)
        if verbose:
            print(f"{number}. {question} ({time.monotonic() - began:.2f} s)\n   {said[:200]}")
        missing = [f for f in fragments if f not in said]
        if int(number) != place:
            missing.append(f"number {place}")
        if status != expected or missing or not fragments:
            failures += 1
            print(f"FAIL: {number}. {question}\n  {command}\n  exit status {status}, expected "
                  f"{expected}; not printed: {missing}\n  {said[:600]}")
    print(f"{len(questions)} questions, {skipped} of them skipped, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
