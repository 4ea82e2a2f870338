# SPDX-License-Identifier: Apache-2.0
"""Trains a small model that FSDP2 has sharded over ranks, with optimizer state in host memory.

    torchrun --nproc-per-node 2 examples/fsdp2.py [--steps N] [--checkpoint FOLDER]

Each rank uses a GPU of its own; without GPUs ranks use the CPU, with gloo. With --checkpoint it
saves at the end, into FOLDER/step-N, and goes on from the last step that is there, also if another
number of ranks has saved it. A checkpoint is never overwritten: one whose writing has been
interrupted lacks the file .metadata, and those before it are whole.
"""

import argparse
import datetime
import os
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

import hocket

VOCABULARY, WIDTH, LENGTH = 256, 128, 64


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device)
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, src_mask=mask.to(x.dtype))
        logits = self.head(x).float()
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def saved_steps(folder: pathlib.Path) -> int:
    """The last step that the folder holds whole; 0 if there is none."""
    return max((int(file.parent.name[5:]) for file in folder.glob("step-*/.metadata")), default=0)


@record  # torchrun shows the message of the rank that fails first
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--checkpoint", type=pathlib.Path)
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # State lies in host memory, so that checkpoints need a backend for the CPU, too.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=datetime.timedelta(seconds=50)
    )
    device = torch.device("cuda" if gpu else "cpu")

    torch.manual_seed(0)  # the same weights on all ranks
    model = Model(arguments.layers).to(device, torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = hocket.AdamW(model.parameters(), lr=1e-3, max_norm=1.0, overlap="both")
    opt.attach(model)
    done = saved_steps(arguments.checkpoint) if arguments.checkpoint else 0
    if done:
        weights, state = get_state_dict(model, opt)
        loaded = {"model": weights, "optimizer": state}
        dcp.load(loaded, checkpoint_id=arguments.checkpoint / f"step-{done}")
        set_state_dict(
            model, opt, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
        )

    torch.manual_seed(dist.get_rank())  # batches of its own
    last = done + arguments.steps - 1
    for step in range(done, last + 1):
        begin = torch.randint(0, VOCABULARY, (8, 1), device=device)
        ids = (begin + torch.arange(LENGTH, device=device)) % VOCABULARY
        loss = model(ids)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 5 == 0 or step == last:
            mean = loss.detach()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                mean = mean / dist.get_world_size()
                print(f"step {step}: loss {mean:.4f}, gradient norm {opt.grad_norm:.4f}")
    if arguments.checkpoint:
        weights, state = get_state_dict(model, opt)
        dcp.save(
            {"model": weights, "optimizer": state},
            checkpoint_id=arguments.checkpoint / f"step-{last + 1}",
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
