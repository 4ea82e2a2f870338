#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""The update alone (`hocket run`, overlap none) in each format of state, in turns, against fp32.

Usage: formats.py [--size 3g] [--layers N] [--policy zero-offload] [--cpu-threads 15] [--backend cuda]
                  [--rounds 3] [--steps 8] [--budget 150] [--check] [--out OUT]

Each round runs every format once, in a new random order, each in a process of its own; a run's
figure is the median time of its steps. A round that would exceed --budget seconds is left out. The
ratio to fp32 is the median over the rounds. The table has the aims of issue 34 and the host memory
that the engine took. With --check every bit of the first round is compared with plain AdamW, which
takes longer. OUT/formats.json has all times. Exits 1 if an aim is not met, 3 if a run failed."""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any, Dict, List

import plans
import workload

AIMS = {"fp32": 1.0, "split": 0.95, "bf16": 0.74, "bf16+split": 0.67, "8bit": 0.62,
        "8bit+split": None}  # of fp32; None: the issue has none


class Runs:
    """Plans of all formats, and what their runs gave."""

    def __init__(self, given: argparse.Namespace, folder: pathlib.Path) -> None:
        self.given, self.folder = given, folder
        self.times: Dict[str, List[float]] = {state: [] for state in AIMS}
        self.predicted: Dict[str, Any] = {}
        self.host: Dict[str, int] = {}
        model = folder / "model.json"
        model.write_text(json.dumps(
            workload.config(workload.shape(given.size, given.layers))))
        for state in AIMS:
            self.predicted[state] = plans.run(
                ["simulate", "--model", str(model), "--machine", plans.machine(), "--gpus", "1",
                 "--policy", given.policy, "--cpu-threads", str(given.cpu_threads),
                 "--state", state, "-o", str(folder / f"{state}.json")])

    def run(self, state: str, check: bool) -> None:
        """Runs one format's plan."""
        answer = plans.run(
            ["run", str(self.folder / f"{state}.json"), "--backend", self.given.backend,
             "--steps", str(self.given.steps), "--quiet", *(["--check"] if check else [])])
        if not answer.get("bitwise_equal", True):
            raise RuntimeError(f"state {state}: bits differ from plain AdamW's")
        self.times[state].append(answer["update_ms"]["median"])
        self.host[state] = answer["host_memory_bytes"]
        print(f"{state}: {self.times[state][-1]:.2f} ms", file=sys.stderr, flush=True)

    def all(self) -> None:
        """All rounds that fit into the budget."""
        for turn, state in plans.turns(lambda _: list(AIMS), self.given.rounds, self.given.budget):
            self.run(state, self.given.check and turn == 0)

    def table(self) -> bool:
        """Prints the table; whether all aims are met."""
        met = True
        print("| state | ms (least - most) | predicted, ms (error) | of fp32 (least - most) | aim |"
              " met | predicted of fp32 | host GB |")
        print("|---|---:|---:|---:|---:|---|---:|---:|")
        for state, aim in AIMS.items():
            ms = self.times[state]
            ratios = [a / b for a, b in zip(ms, self.times["fp32"])]
            ratio = statistics.median(ratios)
            good = state == "fp32" or aim is None or ratio <= aim
            met = met and good
            median, predicted = statistics.median(ms), self.predicted[state]["update_ms"]
            print(f"| {state} | {median:.1f} ({min(ms):.1f} - {max(ms):.1f}) | "
                  f"{predicted:.1f} ({predicted / median - 1:+.1%}) | "
                  f"{ratio:.3f} ({min(ratios):.3f} - {max(ratios):.3f}) | "
                  f"{'-' if aim is None else aim} | "
                  f"{'-' if aim is None else 'yes' if good else 'no'} | "
                  f"{predicted / self.predicted['fp32']['update_ms']:.3f} | "
                  f"{self.host[state] / 1e9:.1f} |")
        return met


def main(arguments: List[str]) -> int:
    """Runs, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(workload.SHAPES), default="3g")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--policy", default="zero-offload")
    parser.add_argument("--cpu-threads", type=int, default=15)
    parser.add_argument("--backend", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--budget", type=float, default=150)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("formats-out"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        runs = Runs(given, pathlib.Path(folder))
        try:
            runs.all()
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 3
    met = runs.table()
    result = {"schema": "hocket.update-formats/1", "times_ms": runs.times, "host_bytes": runs.host,
              "predicted_update_ms": {k: v["update_ms"] for k, v in runs.predicted.items()},
              "options": {k: str(v) for k, v in vars(given).items() if k != "out"}}
    (given.out / "formats.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
