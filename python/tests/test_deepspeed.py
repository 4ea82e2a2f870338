# SPDX-License-Identifier: Apache-2.0
"""hocket.AdamW as DeepSpeed's client optimizer, on two CPU ranks: ZeRO 0 to 3, with and without
offload, checkpoints, tensor fragments, and what is refused; the same with hocket.deepspeed.install."""

import importlib.util
import subprocess

import pytest

from test_launch import HERE, TORCHRUN, environment, free_port

SAYS = {
    "as torch.optim.AdamW: ": 5,
    "resumed: ": 2,
    "fragments: ": 2,
    "refused": 1,
    "same bits: ": 5,
    "between steps: ": 7,
    "resumed with install()": 1,
    "update beside forward": 1,
    "without waits: other values": 1,
    "raises what the thread has raised": 1,
    "install() refuses": 1,
}
"""How often a rank of deepspeed_client.py says so."""


@pytest.mark.full
def test_deepspeed_takes_it_as_client_optimizer(tmp_path):
    if importlib.util.find_spec("deepspeed") is None:  # not imported here, which takes seconds
        pytest.skip("DeepSpeed is not installed")
    done = subprocess.run(
        [*TORCHRUN, HERE / "deepspeed_client.py", tmp_path],
        capture_output=True,
        text=True,
        env=environment(MASTER_PORT=free_port(), DS_ACCELERATOR="cpu", DS_BUILD_OPS=0),
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {text: done.stdout.count(text) // 2 for text in SAYS} == SAYS
