#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""The largest Llama-shaped model that trains on this machine: predicted, then run.

Usage: largest.py [--overlap both] [--shape 6.7g] [--iterations 5] [--budget 300] [--out OUT]

1. `hocket plan --largest model` predicts the most layers of the shape (llama-2-7b's by default).
2. train.py trains that many layers for --iterations steps after two that are not timed, with a plan
   by `hocket plan` for the profiled model. If that fails, 2.5 % fewer layers are tried, and so on:
   the distance between the first number that trains and the predicted one is the error of the
   prediction.
3. `hocket plan` and hocket.AdamW are run with 10 % more layers than predicted. Both should refuse
   with a message, hocket.AdamW before it trains. The table has their answers; the exit status does
   not depend on them.

$HOCKET_MACHINE names the profile. The last thing printed is a table; OUT/largest.json has it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any, Dict, List

HERE = pathlib.Path(__file__).resolve().parent
PRESETS = {"6.7g": "llama-2-7b", "toy": ""}


def predicted_layers(given: argparse.Namespace) -> int:
    """The most layers of the shape that fit, by the hocket program."""
    import plans

    answer = plans.run(["plan", "--model", PRESETS[given.shape], "--machine", plans.machine(),
                        "--gpus", "1", "--overlap", given.overlap, "--largest", "model"])
    return int(answer["most_layers"]["layers"])


def train(given: argparse.Namespace, layers: int, limit: float, what: str) -> Dict[str, Any]:
    """Trains `layers` layers. Returns the row's result, or the reason of the failure."""
    out = pathlib.Path(given.out) / what
    row = f"hocket-{given.overlap}+plan=auto"
    command = [sys.executable, str(HERE / "train.py"), "--size", given.shape, "--layers",
               str(layers), "--rows", row, "--micro-batches", "1", "--clip", "never",
               "--iterations", str(given.iterations), "--predict", "--no-yardstick", "--budget",
               str(int(limit)), "--out", str(out)]
    begin = time.time()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    entries: List[Dict[str, Any]] = []
    if (out / "results.json").exists():
        entries = json.loads((out / "results.json").read_text())["entries"]
    found: Dict[str, Any] = {"layers": layers, "seconds": round(time.time() - begin, 1)}
    for entry in entries:
        if entry["event"] in ("failed", "killed", "skipped"):
            found["why"] = entry["why"]
        if entry.get("wall_ms"):
            found.update({key: entry[key] for key in
                          ("wall_ms", "memory_gib", "predicted", "losses") if key in entry})
    if "wall_ms" not in found:
        found.setdefault("why", "no result")
    return found


def line(entry: Dict[str, Any]) -> str:
    """A row of the table."""
    head = f"{entry['layers']:6d} layers {entry['seconds']:6.0f} s  "
    if "wall_ms" not in entry:
        return head + "not trained: " + entry["why"][:300]
    memory, predicted = entry["memory_gib"], entry.get("predicted", {})
    text = f"trained: {entry['wall_ms']:.0f} ms"
    if predicted.get("period_ms"):
        text += f" (predicted {predicted['period_ms']:.0f})"
    text += f", GPU {memory.get('gpu_peak', 0):.1f} GiB"
    if predicted.get("gpu_peak_bytes"):
        text += f" (predicted {predicted['gpu_peak_bytes'] / 2**30:.1f})"
    return head + text + f", host {memory.get('used', 0):.1f} GiB"


def refusals(given: argparse.Namespace, layers: int) -> List[str]:
    """Exit status and output of `hocket plan` for so many layers, which should be a refusal."""
    import plans
    import workload

    shape = workload.SHAPES[given.shape]
    done = subprocess.run(
        [plans.program(), "plan", "--params", f"{layers / shape.layers * 6.7:.3f}G", "--layers",
         str(layers), "--hidden", str(shape.hidden), "--machine", plans.machine(), "--gpus", "1",
         "--overlap", given.overlap, "--quiet"], capture_output=True, text=True, check=False)
    return [f"hocket plan, {layers} layers: exit {done.returncode}: "
            + " ".join((done.stdout + done.stderr).split())[:300]]


def main(arguments: List[str]) -> int:
    """Runs; prints the table last."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--overlap", default="both", choices=("none", "forward", "both"))
    parser.add_argument("--shape", default="6.7g", choices=tuple(PRESETS))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--layers", type=int, help="instead of the predicted number")
    parser.add_argument("--budget", type=float, default=300, help="seconds for all")
    parser.add_argument("--out", default="largest-out", help="folder for results")
    given = parser.parse_args(arguments)
    pathlib.Path(given.out).mkdir(parents=True, exist_ok=True)
    deadline = time.time() + given.budget
    most = given.layers or predicted_layers(given)
    print(f"predicted: {most} layers", flush=True)
    tried: List[Dict[str, Any]] = []
    said = refusals(given, round(1.1 * most)) if PRESETS[given.shape] else []
    share = 1.0
    while deadline - time.time() > 60 and share > 0.85:
        tried.append(train(given, round(share * most), deadline - time.time(), f"{share:.3f}"))
        print(line(tried[-1]), flush=True)
        if "wall_ms" in tried[-1]:
            break
        share -= 0.025
    if deadline - time.time() > 40:
        refused = train(given, round(1.1 * most), deadline - time.time(), "refused")
        said.append("hocket.AdamW, " + line(refused).strip())
    (pathlib.Path(given.out) / "largest.json").write_text(json.dumps(
        {"commit": os.environ.get("HOCKET_COMMIT", ""), "overlap": given.overlap,
         "shape": given.shape, "predicted_layers": most, "tried": tried, "refused": said},
        indent=1) + "\n")
    print("\n".join([f"predicted: {most} layers", *map(line, tried), *said]))
    return 0 if tried and "wall_ms" in tried[-1] else 1


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main(sys.argv[1:]))
