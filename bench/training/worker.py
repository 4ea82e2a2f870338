#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs rows one after the other in this process and adds a JSON line to a file after each. train.py
starts it; see there for the options."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import pathlib
import signal
import sys
import time
import traceback
from argparse import Namespace
from typing import Any, Dict, List, NamedTuple, Optional

import torch

import rows
import workload
from measure import GIB, Clock, Collections, Memory, collect, cpu_seconds, median, wait

WARM = 2
WARM_CLIP = 6
"""More of them after a change of --clip: the engine learns from the norms of earlier steps."""
LEAST_ITERATIONS = 4
ALONE_ITERATIONS = 4
LEAST_S = 12.0
"""A row is not begun with less time left than this."""


class Reporter:
    """The file of results."""

    def __init__(self, path: str) -> None:
        self.path = path

    def say(self, **entry: Any) -> None:
        """Adds a line."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


class Case(NamedTuple):
    """What a row is timed at: sequences of a micro-step, micro-steps of an iteration, and --clip."""

    micro_batch: int
    accumulate: int = 1
    clip: str = "natural"

    def iterations(self, asked: int) -> int:
        """How many are timed: the fewer, the longer they are."""
        return asked if self.accumulate == 1 else max(LEAST_ITERATIONS, asked // self.accumulate)


def iterate(row: rows.Row, job: rows.Job, case: Case, count: int, warm: int,
            deadline: float, memory: Optional[Memory] = None) -> Dict[str, Any]:
    """Times `count` iterations after `warm` ones, without waiting for the device between them.

    Returns wall_ms, the mean time of an iteration including the final drain; median_ms and the
    medians of forward, backward and step from events on the stream (of several micro-steps, forward
    of the first, and the rest); medians of the first micro-step, of those between, beside which no
    update runs, and of the last; losses and norms of all iterations; gc_ms of Collections.
    """
    batches = job.batches(case.micro_batch)
    clock = Clock(job.device)
    losses: List[Any] = []
    norms: List[Any] = []
    marks: List[List[Any]] = []
    micros: List[List[Any]] = []
    held: List[Optional[float]] = []
    begin = used = 0.0
    garbage = None

    def note(number: int) -> None:
        if memory is not None and number == warm - 1:
            held.append(memory.allocated())

    for number in range(warm + count):
        if number == warm:
            row.drain()
            garbage = Collections()
            begin, used = time.perf_counter(), cpu_seconds()
        if number >= warm + 3 and time.time() > deadline:
            break
        factor = workload.loss_factor(case.clip, number) / case.accumulate
        note(number)
        moments = [clock.now()]
        micro_moments = moments[:]
        for micro in range(case.accumulate):
            at = number * case.accumulate + micro
            loss = row.forward(batches[at % len(batches)], factor)
            if micro == 0:
                note(number)
                moments.append(clock.now())
            row.backward(loss)
            if micro < case.accumulate - 1:
                micro_moments.append(clock.now())
        note(number)
        moments.append(clock.now())
        norm = row.step()
        note(number)
        moments.append(clock.now())
        losses.append((loss.detach(), factor))
        norms.append((norm, factor * case.accumulate))
        del loss
        if number >= warm:
            marks.append(moments)
            micros.append([*micro_moments, moments[2]])
    row.drain()
    wall = time.perf_counter() - begin
    end = clock.now()
    wait(job.device)
    starts = [moments[0] for moments in marks] + [end]
    each = [clock.ms(a, b) for a, b in zip(starts, starts[1:])]
    phases = {name: median([clock.ms(moments[i], moments[i + 1]) for moments in marks])
              for i, name in enumerate(("forward", "backward", "step"))}
    spans = [[clock.ms(a, b) for a, b in zip(ends, ends[1:])] for ends in micros]
    parts = {"first": slice(1), "between": slice(1, -1), "last": slice(-1, None)}
    return {
        "micro_steps_ms": {name: median([ms for span in spans for ms in span[part]])
                           for name, part in parts.items()} if case.accumulate > 2 else {},
        "gpu_allocated_gib": dict(zip(("before_forward", "after_forward", "after_backward",
                                       "after_update"), held)),
        "iterations": len(marks), "wall_ms": round(wall * 1e3 / len(marks), 3),
        "median_ms": median(each), "each_ms": [round(ms, 2) for ms in each], "phases_ms": phases,
        "gc_ms": garbage.end() if garbage else {},
        "cpu_s": round((cpu_seconds() - used) / len(marks), 4),
        "losses": [round(float(loss) / factor, 5) for loss, factor in losses],
        "norms": [None if norm is None else round(float(norm) / factor, 5)
                  for norm, factor in norms],
    }


def update_alone(row: rows.Hocket, job: rows.Job, micro_batch: int, count: int,
                 deadline: float) -> Optional[Dict[str, Any]]:
    """Times hocket's step with an idle GPU and gradients on the host."""
    batches = job.batches(micro_batch)
    seconds: List[float] = []
    for number in range(count + 1):
        if time.time() > deadline:
            break
        factor = workload.loss_factor(job.options.clip, number)
        seconds.append(row.update_alone(batches[number % len(batches)], factor))
    if len(seconds) < 2:
        return None
    return {"median_ms": median([s * 1e3 for s in seconds[1:]]),
            "each_ms": [round(s * 1e3, 2) for s in seconds]}


def state_hash(optimizer: Any) -> str:
    """Hash of steps, masters, momentum and variance, in the order of the param groups. (The
    engine's checksum leaves out steps.)"""
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for param in group["params"]:
            state = optimizer.state[param]
            digest.update(repr(float(state["step"])).encode())
            for name in ("master_weight", "exp_avg", "exp_avg_sq"):
                digest.update(state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def weights_hash(model: Any) -> str:
    """Hash of all weights, in the order of registration."""
    digest = hashlib.sha256()
    for param in model.parameters():
        digest.update(param.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def engine_memory(row: rows.Row) -> Dict[str, float]:
    """GiB that hocket's engine reports; empty for other rows."""
    if not isinstance(row, rows.Hocket):
        return {}
    memory = row.optimizer.stats()["memory"]
    return {"engine_pinned": round(memory["host_pinned_bytes"] / GIB, 3),
            "engine_gpu": round(memory["device_bytes"] / GIB, 3)}


def leak(row: rows.Row, job: rows.Job, micro_batch: int, steps: int,
         memory: Memory, deadline: float) -> Dict[str, Any]:
    """Memory every few steps: GiB more than before the row."""
    batches = job.batches(micro_batch)
    every = max(1, steps // 20)
    samples: List[Dict[str, float]] = []
    losses: List[float] = []
    for number in range(steps):
        factor = workload.loss_factor(job.options.clip, number)
        loss = row.forward(batches[number % len(batches)], factor)
        row.backward(loss)
        row.step()
        if (number + 1) % every == 0:
            row.drain()
            losses.append(round(float(loss) / factor, 5))
            samples.append({"step": number + 1, **memory.since(), **engine_memory(row)})
            if time.time() > deadline:
                break
        del loss
    first, last = samples[min(1, len(samples) - 1)], samples[-1]
    grown = {key: round(last[key] - first[key], 3) for key in first}
    return {"samples": samples, "grown": grown, "losses": losses}


def bare(job: rows.Job, model: rows.Row, micro_batch: int, deadline: float) -> Optional[float]:
    """Milliseconds of an iteration of forward and backward alone."""
    if time.time() > deadline:
        return None
    case = Case(micro_batch, 1, job.options.clip)
    return float(iterate(model, job, case, ALONE_ITERATIONS, 1, deadline)["wall_ms"])


def cases(options: Namespace) -> List[Case]:
    """All cases of a row, in their order."""
    return [Case(micro_batch, accumulate, clip) for micro_batch in options.micro_batches
            for clip in options.clips for accumulate in options.accumulate]


class Turn:
    """One row's turn."""

    def __init__(self, spec: str, job: rows.Job, reporter: Reporter, yardstick: Optional[rows.Row],
                 deadline: float) -> None:
        self.spec, self.job, self.reporter = spec, job, reporter
        self.name, self.settings = rows.parse(spec)
        self.yardstick, self.deadline = yardstick, deadline

    def run(self) -> None:
        """All micro-batches of the row, in one process, with one model."""
        options, job = self.job.options, self.job
        before = {mb: self._bare(mb) for mb in options.micro_batches}
        memory = Memory(job.device)
        begin = time.perf_counter()
        job.spec = self.spec
        row = rows.ROWS[self.name](job, self.settings)
        wait(job.device)
        setup_s = round(time.perf_counter() - begin, 2)
        try:
            former = None
            for case in cases(options):
                if time.time() + LEAST_S > self.deadline:
                    self.reporter.say(event="skipped", row=self.spec,
                                      micro_batch=case.micro_batch, why="no time left for "
                                      f"{case.accumulate} micro-steps, clip {case.clip}")
                    continue
                warm = WARM + (WARM_CLIP if former not in (None, case.clip) else 0)
                self._case(row, case, warm, memory, setup_s, before[case.micro_batch])
                setup_s, former = 0.0, case.clip
            if isinstance(row, rows.Hocket) and not (options.bits or options.leak):
                self._last(row)
        finally:
            row.close()
            del row
            collect(job.device)
        self.reporter.say(event="left", row=self.spec, memory_gib=memory.since())

    def _last(self, row: rows.Hocket) -> None:
        """Measurements that take further steps, after the loss curves."""
        options, job = self.job.options, self.job
        if row.overlap == "none" and row.attached:
            found = update_alone(row, job, min(options.micro_batches), options.update_iterations,
                                 self.deadline)
            if found:
                self.reporter.say(event="update", row=self.spec, **found)
        if options.timeline and time.time() + LEAST_S < self.deadline:
            former = cases(options)[-1]
            for micro_batch in options.micro_batches:
                case = cases(options)[0]._replace(micro_batch=micro_batch)
                self.reporter.say(event="timeline", row=self.spec, **case._asdict(),
                                  timeline=timeline(row, job, case, former, self.deadline))
                former = case

    def _bare(self, micro_batch: int) -> Optional[float]:
        if self.yardstick is None:
            return None
        return bare(self.job, self.yardstick, micro_batch, self.deadline)

    def _case(self, row: rows.Row, case: Case, warm: int, memory: Memory, setup_s: float,
              before: Optional[float]) -> None:
        options, job, micro_batch = self.job.options, self.job, case.micro_batch
        entry: Dict[str, Any] = {
            "event": "row", "row": self.spec, "micro_batch": micro_batch, "size": options.size,
            "accumulate": case.accumulate, "clip": case.clip, "exact": row.exact,
            "setup_s": setup_s}
        memory.reset_peak()
        if options.leak:
            entry["leak"] = leak(row, job, micro_batch, options.leak, memory, self.deadline)
            entry["memory_gib"] = memory.since()
            self.reporter.say(**entry)
            return
        count = options.peer_iterations if self.name in rows.ALONE else options.iterations
        begin = time.perf_counter()
        entry.update(iterate(row, job, case, case.iterations(count), warm, self.deadline, memory))
        entry["memory_gib"] = memory.since()
        entry.update(row.after())
        if isinstance(row, rows.Hocket):
            entry["made_s"] = round(row.made_s, 2)
            if options.bits:
                entry["checksum"] = row.optimizer.checksum()
                entry["state"] = state_hash(row.optimizer)
        predicted = (job.predictions.get((self.spec, micro_batch))
                     if case == cases(options)[0]._replace(micro_batch=micro_batch) else None)
        if predicted:
            entry["predicted"] = predicted
        if options.bits:
            entry["weights"] = weights_hash(row.model)
        entry["compute_alone_ms"] = [before, self._bare(micro_batch)]
        entry["took_s"] = round(time.perf_counter() - begin, 2)
        self.reporter.say(**entry)


def timeline(row: rows.Hocket, job: rows.Job, case: Case, former: Case,
             deadline: float) -> Dict[str, Any]:
    """Records three iterations of a case. If the row ran another one before, the engine first learns
    this one's number of micro-steps and norms."""
    if case != former:
        iterate(row, job, case, 1, WARM_CLIP, deadline)
    row.optimizer.record(True)
    iterate(row, job, case, 3, 0, deadline)
    spans: Dict[str, Any] = row.optimizer.timeline()
    row.optimizer.record(False)
    return spans


def program_run(job: rows.Job, spec: str, reporter: Reporter, deadline: float) -> None:
    """`hocket run` of the plan of hocket's rows, with random gradients: update_alone should take as
    long as its update."""
    import hocket

    import plans

    options = job.options
    _, settings = rows.parse(spec)
    threads = settings.get("cpu_threads") or options.cpu_threads
    with torch.device("meta"):
        model = workload.build(job.shape, torch.device("meta"), job.checkpointing)
    plan = plans.written(settings.get("plan") or options.plan, hocket.describe(model), job, "none",
                         int(threads) if threads else plans.default_threads("none"))
    answer = plans.run_plan(plan, "cuda" if job.device.type == "cuda" else "host",
                            workload.MAX_NORM, options.update_iterations + 1,
                            deadline - time.time())
    reporter.say(event="program", row=spec, **answer)


def forecasts(job: rows.Job, specs: List[str], reporter: Reporter) -> None:
    """Measures the model's block times on this machine and predicts each row of hocket from them,
    before any row runs."""
    import hocket

    import plans

    model = workload.build(job.shape, job.device, job.checkpointing)
    for micro_batch in job.options.micro_batches:
        tokens = job.batches(micro_batch)[0]
        batch = {"input_ids": tokens, "labels": tokens, "use_cache": False}
        profiled = hocket.profile(model, batch, steps=4)
        reporter.say(event="profile", micro_batch=micro_batch, model=profiled)
        for spec in specs:
            name, settings = rows.parse(spec)
            kind = rows.ROWS.get(name, rows.ModelOnly)
            if not issubclass(kind, rows.Hocket) or not kind.attached:
                continue
            plan = kind.policy or settings.get("plan") or job.options.plan
            if plan == "auto" and spec in job.plans:
                continue  # the row runs the plan of the first micro-batch at all of them
            if plan == "none" and {"gpu_memory", "host_memory"} & set(settings):
                continue  # the engine divides this memory itself; the program has no such options
            threads = settings.get("cpu_threads") or job.options.cpu_threads
            memory = {key: int(rows.literal(value)) for key, value in settings.items()
                      if key in ("gpu_memory", "host_memory")}
            memory.setdefault("host_memory", hocket._abi.host_memory())
            try:
                found, simulated = plans.predict(plan, profiled, job, kind.overlap,
                                                 int(threads) if threads else None, memory, settings)
            except (RuntimeError, ValueError, OSError) as error:
                reporter.say(event="failed", row=spec, micro_batch=micro_batch,
                             why=f"prediction: {error}"[:400])
                continue
            job.predictions[(spec, micro_batch)] = found
            if plan == "auto" and simulated is not None:
                job.plans.setdefault(spec, simulated)
            reporter.say(event="predicted", row=spec, micro_batch=micro_batch,
                         file=keep_plan(job, simulated), **found)


def keep_plan(job: rows.Job, simulated: Optional[str]) -> Optional[str]:
    """Writes a simulated plan to the folder of results, to be simulated again with a later profile.
    Returns the file's name."""
    if simulated is None:
        return None
    folder = pathlib.Path(job.options.out) / "plans"
    folder.mkdir(exist_ok=True)
    name = f"{len(job.predictions)}.json"
    (folder / name).write_text(simulated)
    return name


def machine(job: rows.Job) -> Dict[str, Any]:
    """Description of this machine."""
    import platform

    import transformers

    found: Dict[str, Any] = {
        "cpus": len(os.sched_getaffinity(0)), "torch": torch.__version__,
        "transformers": transformers.__version__, "python": platform.python_version()}
    if job.device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["gpu_gib"] = round(torch.cuda.get_device_properties(0).total_memory / GIB, 1)
    return found


def main(arguments: List[str]) -> int:
    """`arguments`: options as JSON, the file of results, when to end (seconds since 1970), rows."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    options = Namespace(**json.loads(arguments[0]))
    reporter, deadline = Reporter(arguments[1]), float(arguments[2])
    names = arguments[3].split(",")
    if options.deterministic:
        workload.deterministic()
    job = rows.Job(options)
    yardstick: Optional[rows.Row] = None
    reporter.say(event="machine", **machine(job))
    if options.predict and any(name.startswith("hocket") for name in names):
        try:
            forecasts(job, names, reporter)
        except Exception as error:  # rows run without predictions
            traceback.print_exc()
            reporter.say(event="failed", row="predictions", why=str(error)[:400])
        collect(job.device)
    for name in names:
        if time.time() + LEAST_S > deadline:
            reporter.say(event="skipped", row=name, why="no time left")
            continue
        reporter.say(event="begin", row=name)
        print(f"-- {name}", file=sys.stderr, flush=True)
        try:
            alone = rows.parse(name)[0] in rows.ALONE or name.startswith("hocket-run")
            if yardstick is None and not (alone or options.bits or options.leak
                                          or options.no_yardstick):
                yardstick = rows.ModelOnly(job)
            if name.startswith("hocket-run"):
                program_run(job, name, reporter, deadline)
            else:
                Turn(name, job, reporter, yardstick, deadline).run()
        except Exception as error:  # the other rows still run
            traceback.print_exc()
            reporter.say(event="failed", row=name,
                         why=f"{type(error).__name__}: {error}".splitlines()[0][:400])
            del error
            collect(job.device)
        reporter.say(event="end", row=name)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # peers may hang at exit
