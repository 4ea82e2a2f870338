# SPDX-License-Identifier: Apache-2.0
"""Names of the cases that several ranks run, without importing them: test_ranks.py runs them here,
bench/training/ranks.py --check on GPUs."""

import pathlib
import re


def rank_cases():
    """Kind ("case", or "slow") and name of each, in the order of their files, ranks_*.py."""
    files = sorted(pathlib.Path(__file__).parent.glob("ranks_*.py"))
    text = "".join(file.read_text() for file in files)
    return re.findall(r"^@(case|slow)\ndef (\w+)", text, flags=re.M)
