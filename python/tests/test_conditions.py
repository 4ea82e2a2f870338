# SPDX-License-Identifier: Apache-2.0
"""bench/training/conditions.py on the host backend, with the cases that need no GPU."""

import json
import os
import subprocess
import sys

import pytest

CASES = "plain,launch-blocking,one-connection-queued-launches,interrupt,device-fails"


@pytest.mark.full
def test_interrupts_failures_and_queues_on_the_host(root, tmp_path):
    command = [
        sys.executable,
        str(root / "bench" / "training" / "conditions.py"),
        "--out",
        tmp_path,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, "--device", "cpu", "--cases", CASES, "--budget", "500"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found = json.loads((tmp_path / "conditions.json").read_text())["cases"]
    assert {case["case"]: case["answer"] for case in found} == dict.fromkeys(
        CASES.split(","), "ok"
    ), found
