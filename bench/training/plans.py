# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans for hocket's rows: by the hocket program, for the model that is trained."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any, Dict, List, Optional

POLICIES = ("gpu-only", "zero-offload", "streamed", "mapped", "twinflow", "interleave")


def program() -> str:
    """Path of the hocket program."""
    return os.environ.get("HOCKET_PROGRAM", "hocket")


def machine() -> str:
    """Name of the profile that plans and predictions are made with."""
    return os.environ.get("HOCKET_MACHINE", "h200-node-16c")


def resolve(wanted: Optional[str], model: Any, job: Any, overlap: str) -> Optional[str]:
    """What hocket.AdamW gets as its plan.

    Args:
        wanted: "none", "auto", the path of a file, or POLICY[:OPTION=VALUE...], e.g.
            "interleave:stride=4".
        model, job, overlap: what is trained, and how.
    """
    if wanted in (None, "none"):
        return None
    assert wanted is not None
    policy, *settings = wanted.split(":")
    if policy not in POLICIES:
        return wanted
    import hocket

    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        document = os.path.join(folder, "model.json")
        out = os.path.join(folder, "plan.json")
        with open(document, "w", encoding="utf-8") as file:
            json.dump(hocket.describe(model), file)
        run(["simulate", "--model", document, "--policy", policy, "-o", out,
             *arguments(job, overlap), *[part for setting in settings
                                         for part in _option(setting)]])
        with open(out, encoding="utf-8") as file:
            return file.read()


def _option(setting: str) -> List[str]:
    name, _, value = setting.partition("=")
    return [f"--{name}", value]


def arguments(job: Any, overlap: str) -> List[str]:
    """Options of the hocket program for this job."""
    options = job.options
    given = ["--machine", machine(), "--gpus", "1", "--micro-batch",
             str(options.micro_batches[0]), "--seq", str(job.shape.length)]
    if overlap != "none":
        given += ["--overlap", overlap]
    if options.cpu_threads:
        given += ["--cpu-threads", str(options.cpu_threads)]
    return given


def run(given: List[str]) -> Dict[str, Any]:
    """Runs the hocket program with --json; RuntimeError with what it said if it fails. What it
    answers to a plan that does not fit the machine (1) counts."""
    done = subprocess.run([program(), *given, "--json"], capture_output=True, text=True,
                          check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"hocket {' '.join(given)}: {done.stderr.strip()}")
    answer: Dict[str, Any] = json.loads(done.stdout)
    return answer
