# SPDX-License-Identifier: Apache-2.0
"""Programs of several ranks as users start them, and ranks that fail in them. All others end within
a minute. The first is named with its message. The checkpoints of the steps before are whole."""

import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLE = HERE.parent.parent / "examples" / "fsdp2.py"
FAILING = HERE / "failing.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
SAID = {
    "killed": r"rank 1 (process",
    "raises": "ValueError: the sea is out of fish",
    "memory": "RuntimeError: [enforce fail",
    "engine": "HocketError: the device has gone",
    "saving": r"rank 1 (process",
}


def environment(**more):
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **{name: str(value) for name, value in more.items()},
    }


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def alone(*command):
    """Starts two ranks without anything that ends the others. Returns what each has printed."""
    more = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(RANK=rank, LOCAL_RANK=rank, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ranks[1].wait(timeout=120)
        texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode for rank in ranks), texts
    return texts


def is_whole(folder, steps):
    """The last checkpoint of which all is there can be loaded, and it is of this step."""
    import torch.distributed.checkpoint as dcp

    left = sorted(place for place in folder.iterdir() if (place / ".metadata").exists())
    assert [place.name for place in left] == [f"step-{step + 1}" for step in range(steps)]
    entries = dcp.FileSystemReader(str(left[-1])).read_metadata().state_dict_metadata
    loaded = {
        name: torch.full(entry.size, torch.nan, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if hasattr(entry, "properties")
    }
    dcp.load(loaded, checkpoint_id=str(left[-1]), no_dist=True)
    moments = [values for name, values in loaded.items() if name.endswith("exp_avg")]
    assert moments and all(bool(values.isfinite().all()) for values in moments)


@pytest.mark.full
@pytest.mark.parametrize("how", SAID)
def test_a_rank_fails_and_nothing_ends_the_others(how, tmp_path):
    if not dist.is_available():
        pytest.skip("torch has no distributed package")
    left = alone(FAILING, how, tmp_path)[0]
    assert SAID[how] in left and "rank 1 (" in left, left
    assert "trained to the end" not in left
    is_whole(tmp_path, 2)


@pytest.mark.full
def test_a_rank_fails_under_torchrun(tmp_path):
    began = time.monotonic()
    done = subprocess.run(
        [*TORCHRUN, FAILING, "raises", tmp_path],
        capture_output=True,
        text=True,
        env=environment(MASTER_PORT=free_port()),
        timeout=120,
    )
    assert done.returncode and time.monotonic() - began < 60 + 30
    summary = done.stderr.rpartition("Root Cause")[2]
    for text in ("rank      : 1 (", "host      : ", SAID["raises"]):
        assert text in summary, done.stderr
    is_whole(tmp_path, 2)


@pytest.mark.full
def test_the_example_goes_on_with_another_number_of_ranks(tmp_path):
    """What two ranks have saved, one loads; its own checkpoint is beside the first."""
    if not hasattr(dist, "fsdp") or not EXAMPLE.exists():
        pytest.skip("no FSDP2, or no examples here")
    for ranks, steps in ((2, 6), (1, 12)):
        command = [*TORCHRUN[:-1], str(ranks), EXAMPLE, "--steps", "6", "--layers", "1"]
        done = subprocess.run(
            [*command, "--checkpoint", tmp_path],
            capture_output=True,
            text=True,
            env=environment(MASTER_PORT=free_port()),
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert f"step {steps - 1}: loss" in done.stdout, done.stdout
        assert (tmp_path / f"step-{steps}" / ".metadata").exists()
