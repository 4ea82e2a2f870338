# SPDX-License-Identifier: Apache-2.0
"""Trains a small model that FSDP2 has sharded over ranks, with optimizer state in host memory.

    torchrun --nproc-per-node 2 examples/fsdp2.py [--steps N] [--checkpoint FOLDER]

Each rank uses a GPU of its own; without GPUs ranks use the CPU, with gloo. With --checkpoint it
goes on from what the folder holds, also if another number of ranks has written it, and saves at the
end.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--checkpoint")
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # State lies in host memory, so that checkpoints need a backend for the CPU, too.
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    device = torch.device("cuda" if gpu else "cpu")

    torch.manual_seed(0)  # the same weights on all ranks
    model = Model(arguments.layers).to(device, torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = hocket.AdamW(model.parameters(), lr=1e-3, max_norm=1.0, overlap="both")
    opt.attach(model)
    if arguments.checkpoint and os.path.exists(os.path.join(arguments.checkpoint, ".metadata")):
        weights, state = get_state_dict(model, opt)
        loaded = {"model": weights, "optimizer": state}
        dcp.load(loaded, checkpoint_id=arguments.checkpoint)
        set_state_dict(
            model, opt, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
        )

    torch.manual_seed(dist.get_rank())  # batches of its own
    for step in range(arguments.steps):
        begin = torch.randint(0, VOCABULARY, (8, 1), device=device)
        ids = (begin + torch.arange(LENGTH, device=device)) % VOCABULARY
        loss = model(ids)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 5 == 0 or step == arguments.steps - 1:
            mean = loss.detach()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                mean = mean / dist.get_world_size()
                print(f"step {step}: loss {mean:.4f}, gradient norm {opt.grad_norm:.4f}")
    if arguments.checkpoint:
        weights, state = get_state_dict(model, opt)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=arguments.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
