# SPDX-License-Identifier: Apache-2.0
"""The folder of the program ``hocket`` in the wheel hocket-planner: ``bin/hocket``, a program of
its own under the GPL, and ``share/hocket``, the models and machines that it reads."""

import os
import sys


def program() -> str:
    """Path of the program."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "hocket")


def main() -> None:
    """The script ``hocket`` of the environment: becomes the program."""
    os.execv(program(), ["hocket", *sys.argv[1:]])
