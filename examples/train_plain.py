#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain training loop with hocket: a small GPT that learns to predict the bytes of a text.

python examples/train_plain.py --text README.md --steps 200 --overlap forward
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hocket


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.bytes.weight

    def forward(self, text: Tensor) -> Tensor:
        """Mean loss of predicting each byte of text (batch, length + 1) from those before it."""
        x, labels = text[:, :-1], text[:, 1:]
        h = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(self.norm(h)).float().flatten(0, 1), labels.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default="README.md", help="a file")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1, help="backwards a step")
    parser.add_argument("--overlap", choices=("none", "forward", "both"), default="forward")
    parser.add_argument("--plan", help="a plan file, or auto")
    parser.add_argument("--checkpoint", help="write the optimizer's state to this file at the end")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with open(args.text, "rb") as file:
        text = torch.tensor(list(file.read()))
    heads = max(1, args.width // 32)
    model = GPT(args.width, args.layers, heads, args.length).to(device, torch.bfloat16)

    opt = hocket.AdamW(
        model.parameters(),
        lr=1e-3,
        weight_decay=0.1,
        max_norm=1.0,
        overlap=args.overlap,
        plan=args.plan,
    )
    opt.attach(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)

    begin = time.perf_counter()
    for step in range(args.steps):
        total = 0.0
        for _ in range(args.accumulate):
            starts = torch.randint(len(text) - args.length, (args.batch,)).tolist()
            batch = torch.stack([text[at : at + args.length + 1] for at in starts]).to(device)
            loss = model(batch) / args.accumulate
            loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        schedule.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {total:.3f}  gradient norm {opt.grad_norm:.3f}")
    opt.synchronize()
    print(f"{(time.perf_counter() - begin) / args.steps * 1e3:.1f} ms a step")
    print(opt.explain(), end="")
    print("checksum", opt.checksum())
    if args.checkpoint:
        opt.save(args.checkpoint)


if __name__ == "__main__":
    main()
