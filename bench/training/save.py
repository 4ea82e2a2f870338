#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a checkpoint costs training: opt.save(path), opt.save(path, wait=False), and none.

Trains a stack of linear layers. In each turn it times `--steps` steps alone, the call of save() with
wait, the call without, and the steps beside the writer. Prints medians over the turns, in ms.

    python bench/training/save.py --layers 12 --width 2048 --folder /tmp
"""

import argparse
import json
import os
import statistics
import time

import torch

import hocket


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--overlap", default="both")
    parser.add_argument("--folder", default=".", help="where the files are written")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [torch.nn.Linear(args.width, args.width, bias=False) for _ in range(args.layers)]
    model = torch.nn.Sequential(*layers).to(device, torch.bfloat16)
    opt = hocket.AdamW(model.parameters(), lr=1e-4, overlap=args.overlap)
    opt.attach(model)
    x = torch.randn(args.batch, args.width, device=device, dtype=torch.bfloat16)
    path = os.path.join(args.folder, "hocket-bench.state")

    def step() -> None:
        model(x).float().square().mean().backward()
        opt.step()
        opt.zero_grad()

    def timed(call) -> float:
        opt.synchronize()
        begin = time.perf_counter()
        call()
        opt.synchronize()
        return 1e3 * (time.perf_counter() - begin)

    def steps() -> None:
        for _ in range(args.steps):
            step()

    steps()
    found = {"step": [], "save": [], "call": [], "step_beside": [], "writer": []}
    for _ in range(args.turns):
        found["step"].append(timed(steps) / args.steps)
        found["save"].append(timed(lambda: opt.save(path)))
        begin = time.perf_counter()
        found["call"].append(timed(lambda: opt.save(path, wait=False)))
        beside = []
        while opt._writer is not None and not opt._writer.over():
            beside.append(timed(step))
        opt.finish_save()
        found["writer"].append(1e3 * (time.perf_counter() - begin))
        if beside:
            found["step_beside"].append(statistics.median(beside))
    for name in (path, path + ".json"):
        os.remove(name)
    elements = sum(p.numel() for p in model.parameters())
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name() if device == "cuda" else "host",
                "elements": elements,
                **{f"{key}_ms": round(statistics.median(v), 1) for key, v in found.items() if v},
            }
        )
    )


if __name__ == "__main__":
    main()
