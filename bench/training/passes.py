#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Times forward and backward of one model over and over, in turns: by itself with the process on
all CPUs, on three and on one; as hocket.profile does; beside a CPU team that updates, on all CPUs
("beside") and with the team on all CPUs but three and the rest of the process on these ("apart");
attached to hocket.AdamW. At small micro-batches the host's launches limit both passes, and the
table shows by how much they vary while nothing changes. Quartiles in ms; host: until the host has
queued the pass; team: parameters that it updated, G a second.

  python3 bench/training/passes.py --size toy                         any CPU, seconds
  python3 bench/training/passes.py --size 3g --micro-batch 1 --out passes.json
  python3 bench/training/passes.py --size 3g --launches 15            about a minute

With --launches it prints the share of their rate that launches keep beside each part of an update
(hocket.profile measures those with copies), then backward alone and beside real updates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any, Dict, Iterable, List, Optional, Set

import torch

import hocket
import workload
from hocket import profiling
from hocket.busy import BusyTeam
from hocket.describe import described
from measure import Clock, wait

WARM = 2
"""Iterations before those that count."""


def quartiles(values: List[float]) -> List[float]:
    """Lower quartile, median, upper quartile."""
    return [round(x, 1) for x in statistics.quantiles(values, n=4, method="inclusive")]


class Passes:
    """A model whose passes are timed.

    Attributes:
        found: the results so far, a dict for each turn.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.clock = Clock(self.device)
        self.shape = workload.shape(options.size, options.layers)
        self.model = workload.build(self.shape, self.device)
        self.batches = workload.batches(self.shape, options.micro_batch, self.device)
        self.found: List[Dict[str, Any]] = []

    def turn(self, what: str, optimizer: Optional[hocket.AdamW] = None,
             team: Optional[BusyTeam] = None) -> None:
        """Times iterations, each begun with an idle device; a team updates meanwhile."""
        if team is not None:
            team.update()
            before, begun = team.updated, time.perf_counter()
        times: Dict[str, List[float]] = {key: [] for key in ("fwd", "bwd", "host_fwd", "host_bwd")}
        for number in range(WARM + self.options.iterations):
            wait(self.device)
            begin, begin_host = self.clock.now(), time.perf_counter()
            loss = workload.loss_of(self.model, self.batches[number % len(self.batches)], 1 / 64)
            middle, middle_host = self.clock.now(), time.perf_counter()
            loss.backward()
            end, end_host = self.clock.now(), time.perf_counter()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
                optimizer.synchronize()
            else:
                self.model.zero_grad(set_to_none=True)
            wait(self.device)
            if number >= WARM:
                times["fwd"].append(self.clock.ms(begin, middle))
                times["bwd"].append(self.clock.ms(middle, end))
                times["host_fwd"].append((middle_host - begin_host) * 1e3)
                times["host_bwd"].append((end_host - middle_host) * 1e3)
        found = {key: quartiles(values) for key, values in times.items()}
        if team is not None:
            seconds = time.perf_counter() - begun
            found["team"] = [round((team.updated - before) / 1e9 / seconds, 2)]
            team.pause()
        self.say(what, found)

    def profile(self) -> None:
        """The passes as hocket.profile times them."""
        tokens = self.batches[0]
        document = hocket.profile(
            self.model, {"input_ids": tokens, "labels": tokens, "use_cache": False})
        measured = document["measured"]
        names = {"fwd": "forward_ms", "bwd": "backward_ms", "host_fwd": "forward_launch_ms",
                 "host_bwd": "backward_launch_ms"}
        self.say("profile", {key: [round(x, 1) for x in measured[name]]
                             for key, name in names.items() if name in measured})

    def launches(self, seconds: float) -> List[int]:
        """The share that launches keep beside teams and copies, each by itself and together, in
        turns: quartiles. Returns the teams' sizes."""
        tokens = self.batches[0]
        batch = {"input_ids": tokens, "labels": tokens, "use_cache": False}
        _, blocks = described(self.model, batch, None)
        run = profiling._Run(self.model, batch, None, blocks)
        run.observed(profiling.Watch())
        with profiling.updates(self.device, None) as updates:
            beside = {"copies": profiling.Update(Idle(), updates[0].copies)}
            for update in updates:
                beside[f"{update.team.threads} threads"] = update._replace(copies=Idle())
                beside[f"{update.team.threads} and copies"] = update
            _, shares = profiling._launches(
                run, profiling.Gpu(self.device), 1, seconds, list(beside.values()))
            sizes = [update.team.threads for update in updates]
        for what, share in zip(beside, shares):
            found = [round(x, 2) for x in share["quartiles"]]
            self.found.append({"what": what, "share": found})
            print(f"{what:<16} launches keep {found}", flush=True)
        return sizes

    def say(self, what: str, result: Dict[str, List[float]]) -> None:
        """Prints and keeps a result."""
        self.found.append({"what": what, **result})
        print(f"{what:<16}" + "".join(f" {key} {'/'.join(f'{x:.1f}' for x in values):>18}"
                                      for key, values in result.items()), flush=True)


class Idle:
    """Stands for a team, or for copies, that does nothing."""

    threads = 0

    def update(self) -> None:
        """Nothing."""

    pause = wait = update

    def queue(self, size: int) -> None:
        """Nothing."""


def beside_parts(passes: Passes) -> None:
    """Shares of launches beside parts of an update; then passes alone and attached. Backward runs
    beside hand-over and copies with overlap none, and beside real updates, too, with both."""
    sizes = passes.launches(passes.options.launches)
    passes.turn("alone")
    for overlap, threads in (("none", sizes[0]), *(("both", size) for size in sizes)):
        passes.model = None  # type: ignore[assignment]
        passes.model = workload.build(passes.shape, passes.device)
        optimizer = hocket.AdamW(passes.model.parameters(), lr=workload.LR, overlap=overlap,
                                 state="bf16+split", cpu_threads=threads)
        optimizer.attach(passes.model)
        passes.turn(f"{overlap}, {threads}", optimizer)
        optimizer.binding().engine.close()


def tasks() -> List[str]:
    """The threads of this process."""
    return os.listdir("/proc/self/task")


def confine(cpus: Set[int], threads: Iterable[str]) -> None:
    """Allows the threads these CPUs."""
    for task in threads:
        try:
            os.sched_setaffinity(int(task), cpus)
        except OSError:
            pass  # the thread has ended


def beside_teams(passes: Passes, cpus: Set[int]) -> None:
    """Passes alone, beside a team on all CPUs, and beside one on other CPUs than the framework's
    threads, in turns. A thread begins on the CPUs of the one that starts it."""
    few = max(1, min(3, len(cpus) // 4))
    last, threads = set(sorted(cpus)[-few:]), max(1, len(cpus) - few)
    ours = tasks()
    teams = []
    for places in (cpus, cpus - last or cpus):
        confine(places, ours)
        teams.append(BusyTeam(passes.options.elements, threads))
    for _ in range(passes.options.turns):
        for what, places, team in (("alone", cpus, None), ("beside", cpus, teams[0]),
                                   ("apart", last, teams[1])):
            confine(places, ours)
            passes.turn(what, team=team)
    confine(cpus, ours)
    for team in teams:
        team.close()


def main() -> int:
    """Runs; writes the results if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="toy", choices=tuple(workload.SHAPES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=8, help="that count, in each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--elements", type=int, default=1 << 27,
                        help="parameters that a team updates (16 bytes each)")
    parser.add_argument("--launches", type=float, metavar="SECONDS",
                        help="only shares of launches, for so long, and backward")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="file for the results (JSON)")
    options = parser.parse_args()
    passes = Passes(options)
    if options.launches:
        beside_parts(passes)
        return finish(passes)
    cpus = os.sched_getaffinity(0)
    last = sorted(cpus)[-3:]
    for _ in range(options.turns):
        for what, places in (("all CPUs", cpus), ("three", set(last)), ("one", {last[-1]})):
            confine(places, tasks())
            passes.turn(what)
        confine(cpus, tasks())
        passes.profile()
    beside_teams(passes, cpus)
    # The engine is opened last: its team's threads must not be moved.
    for overlap in ("none", "both"):
        passes.model = workload.build(passes.shape, passes.device)
        optimizer = hocket.AdamW(passes.model.parameters(), lr=workload.LR, overlap=overlap)
        optimizer.attach(passes.model)
        for _ in range(options.turns):
            passes.turn(f"overlap {overlap}", optimizer)
        optimizer.binding().engine.close()
    return finish(passes)


def finish(passes: Passes) -> int:
    """Writes the results if asked."""
    if passes.options.out:
        with open(passes.options.out, "w", encoding="utf-8") as file:
            json.dump(passes.found, file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
