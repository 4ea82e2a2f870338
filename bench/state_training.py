#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small language model trained with each format of state, by hocket.AdamW on the host backend.

    bench/state_training.py [--steps 2000] [--seeds 3] [--jobs 1] [--out FILE.json]

A transformer with bf16 weights predicts the characters of Python's own language reference
(pydoc_data.topics, which ships with Python). The learning rate rises for 100 steps and falls to 0
along a cosine, so that the loss ends on a plateau. A seed sets the initial weights, the order of
the data and the random rounding; formats share it. A format and that with `split` have the same
bits: the script compares their checksums over 20 steps, and trains one of each. Prints the loss on
text that was held out, and writes the curves."""

import argparse
import concurrent.futures
import json
import math
import pydoc_data.topics
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
import hocket  # noqa: E402

WIDTH, LAYERS, HEADS, LENGTH, BATCH = 96, 2, 4, 64, 12
LR, WARM_UP, EVERY, HELD_OUT = 3e-3, 100, 100, 40
STATES = ("fp32", "bf16", "8bit")


def text():
    """All topics as character numbers, the number of characters, and where the held-out end begins."""
    whole = "".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
    letters = sorted(set(whole))
    number = {c: i for i, c in enumerate(letters)}
    data = torch.tensor([number[c] for c in whole])
    return data, len(letters), len(data) * 9 // 10


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(torch.nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.token, self.place = (
            torch.nn.Embedding(letters, WIDTH),
            torch.nn.Embedding(LENGTH, WIDTH),
        )
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, letters)

    def loss(self, data, starts):
        at = starts[:, None] + torch.arange(LENGTH + 1)
        batch = data[at]
        x = self.token(batch[:, :-1]) + self.place.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out(model, data, begin):
    """Mean loss over fixed places behind `begin`."""
    generator = torch.Generator().manual_seed(99)
    high = len(data) - LENGTH - 1
    batches = [torch.randint(begin, high, (4 * BATCH,), generator=generator) for _ in range(HELD_OUT)]
    return statistics.fmean(float(model.loss(data, starts)) for starts in batches)


def rate(step, steps):
    part = max(0.0, (step - WARM_UP) / max(1, steps - WARM_UP))
    return LR * min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * part))


def train(state, seed, steps, stop, corpus):
    """Curves of one run; `stop`: the step after which it ends."""
    data, letters, begin = corpus
    torch.manual_seed(seed)
    model = Model(letters).to(torch.bfloat16)
    opt = hocket.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.1,
                       max_norm=1.0, state=state, seed=seed, backend="host", cpu_threads=1)
    generator = torch.Generator().manual_seed(seed)
    losses, curve = [], []
    for step in range(stop):
        opt.param_groups[0]["lr"] = rate(step, steps)
        loss = model.loss(data, torch.randint(0, begin - LENGTH - 1, (BATCH,), generator=generator))
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        if (step + 1) % EVERY == 0:
            curve.append(statistics.fmean(losses[-EVERY:]))
    return {"train": curve, "held_out": held_out(model, data, begin), "checksum": opt.checksum()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    corpus = text()
    for state in STATES:
        with_split = "split" if state == "fp32" else state + "+split"
        sums = [train(s, 1, given.steps, 20, corpus)["checksum"] for s in (state, with_split)]
        if sums[0] != sums[1]:
            sys.exit(f"{with_split} does not have the bits of {state}")
    runs = {state: [None] * given.seeds for state in STATES}
    with concurrent.futures.ProcessPoolExecutor(given.jobs, initializer=torch.set_num_threads,
                                                initargs=(1,)) as pool:
        waiting = {pool.submit(train, state, seed, given.steps, given.steps, corpus): (state, seed)
                   for seed in range(1, given.seeds + 1) for state in STATES}
        for done in concurrent.futures.as_completed(waiting):
            state, seed = waiting[done]
            runs[state][seed - 1] = done.result()
            print(f"seed {seed}, {state}: held out {done.result()['held_out']:.4f}",
                  file=sys.stderr, flush=True)
            if given.out:
                given.out.write_text(json.dumps({"steps": given.steps, "every": EVERY,
                                                 "characters": len(corpus[0]), "runs": runs},
                                                indent=1) + "\n", encoding="utf-8")
    print("| state | held-out loss, each seed | mean | less fp32's |")
    print("|---|---|---:|---:|")
    for state, all_of in runs.items():
        ends = [run["held_out"] for run in all_of]
        off = [end - run["held_out"] for end, run in zip(ends, runs["fp32"])]
        error = statistics.stdev(off) / math.sqrt(len(off)) if len(off) > 1 else math.nan
        print(f"| {state} | {', '.join(f'{x:.4f}' for x in ends)} | {statistics.fmean(ends):.4f} | "
              f"{statistics.fmean(off):+.4f} +- {error:.4f} |")


if __name__ == "__main__":
    main()
