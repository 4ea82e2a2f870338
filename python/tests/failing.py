# SPDX-License-Identifier: Apache-2.0
"""A training program that test_launch.py starts: python failing.py HOW FOLDER, with the environment
that torchrun sets. In step 3 the last rank fails as HOW says; each step before has left a
checkpoint."""

from __future__ import annotations

import datetime
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import hocket  # noqa: E402
from models import batches, make  # noqa: E402


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillWriter(dcp.FileSystemWriter):
    """Ends the process when some of its data has been written."""

    def write_data(self, plan, planner):
        super().write_data(plan, planner).wait()
        kill()


def gone(*_) -> None:
    raise hocket.HocketError("the device has gone", 3)


def fail(how: str, model: torch.nn.Module) -> None:
    """What happens in the forward of the third step, or before it."""
    if how == "killed":
        kill()
    if how == "raises":
        raise ValueError("the sea is out of fish")
    if how == "memory":
        model.layers[1].register_forward_pre_hook(lambda module, args: torch.empty(1 << 60))
    if how == "engine":  # in a hook of backward
        hocket._abi.Engine.gradients = gone


@record
def main() -> None:
    how, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=datetime.timedelta(seconds=40)
    )
    model = make("gpt").to("cuda" if gpu else "cpu")
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = hocket.AdamW(model.parameters(), lr=1e-3, max_norm=1.0, overlap="both")
    opt.attach(model)
    last = dist.get_rank() == dist.get_world_size() - 1
    for step, batch in enumerate(batches(4), start=1):
        if step == 3 and last:
            fail(how, model)
        model(batch.to("cuda" if gpu else "cpu")).backward()
        opt.step()
        opt.zero_grad()
        weights, state = get_state_dict(model, opt)
        place = str(folder / f"step-{step}")
        writer = KillWriter if how == "saving" and step == 3 and last else dcp.FileSystemWriter
        dcp.save({"model": weights, "optimizer": state}, storage_writer=writer(place))
    print("trained to the end", file=sys.stderr)


if __name__ == "__main__":
    main()
