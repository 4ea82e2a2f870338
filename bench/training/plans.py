# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans for hocket's rows: by the hocket program, for the model that is trained."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

POLICIES = ("gpu-only", "zero-offload", "streamed", "mapped", "twinflow", "interleave")


def program() -> str:
    """Path of the hocket program."""
    return os.environ.get("HOCKET_PROGRAM", "hocket")


def machine() -> str:
    """Name of the profile that plans and predictions are made with."""
    return os.environ.get("HOCKET_MACHINE", "h200-16c")


def wanted(row: Any, job: Any) -> str:
    """The plan for a row of hocket: the row's own, its setting, or the command's."""
    return str(row.policy or row.settings.get("plan") or job.options.plan)


def _split(plan: str) -> Tuple[str, List[str]]:
    """POLICY[:OPTION=VALUE...] as the policy and options of the hocket program; "none" is the
    engine's default plan."""
    policy, *settings = ("zero-offload" if plan == "none" else plan).split(":")
    options: List[str] = []
    for setting in settings:
        name, _, value = setting.partition("=")
        options += [f"--{name}", value]
    return policy, options


def resolve(plan: str, model: Any, job: Any, overlap: str,
            cpu_threads: Optional[int]) -> Optional[str]:
    """The `plan` argument for hocket.AdamW.

    Args:
        plan: "none", "auto", the path of a file, or POLICY[:OPTION=VALUE...], e.g.
            "interleave:stride=4".
        model, job, overlap, cpu_threads: of the row.
    """
    if plan == "none":
        return None
    if _split(plan)[0] not in POLICIES:
        return plan
    import hocket

    return written(plan, hocket.describe(model), job, overlap, cpu_threads)


def written(plan: str, document: Dict[str, Any], job: Any, overlap: str,
            cpu_threads: Optional[int]) -> str:
    """A policy's plan for a described model, as JSON text."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        out = os.path.join(folder, "plan.json")
        _simulate(plan, document, folder, job, overlap, cpu_threads, ["-o", out])
        with open(out, encoding="utf-8") as file:
            return file.read()


def _simulate(plan: str, document: Dict[str, Any], folder: str, job: Any, overlap: str,
              cpu_threads: Optional[int], more: List[str]) -> Dict[str, Any]:
    model = os.path.join(folder, "model.json")
    with open(model, "w", encoding="utf-8") as file:
        json.dump(document, file)
    policy, settings = _split(plan)
    given = ["simulate", "--model", model, "--policy", policy, *settings, "--machine", machine(),
             "--gpus", "1"]
    if "micro_batch" not in document:
        given += ["--micro-batch", str(job.options.micro_batches[0]),
                  "--seq", str(job.shape.length)]
    if overlap != "none":
        given += ["--overlap", overlap]
    if cpu_threads:
        given += ["--cpu-threads", str(cpu_threads)]
    return run([*given, *more])


FORECAST = ("period_ms", "iteration_ms", "fwd_ms", "bwd_ms", "update_ms", "exposed_update_ms",
            "ahead_params", "host_peak_bytes", "clipped_ms")


def predict(plan: str, profiled: Dict[str, Any], job: Any, overlap: str,
            cpu_threads: Optional[int],
            memory: Dict[str, int], settings: Dict[str, str]) -> Tuple[Dict[str, Any], Optional[str]]:
    """The simulator's prediction of a row before it runs, and the simulated plan (JSON text); None
    where the plan is a file.

    Args:
        plan: as of resolve; "auto" is chosen by the hocket program here, too.
        profiled: what hocket.profile has measured.
        memory: bytes that the row may take, "gpu_memory" and "host_memory".
        settings: the row's; "machine", "state", "accumulation_steps" and "clip_share" are
            predicted, too.
    """
    simulated: Optional[str] = None
    threads, state = cpu_threads, settings.get("state", "fp32")
    profile = settings.get("machine", machine())
    if plan == "none" and not threads:
        threads = default_threads(overlap)
    micro_steps = (["--grad-accum", settings["accumulation_steps"]]
                   if "accumulation_steps" in settings else [])
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        out = os.path.join(folder, "plan.json")
        if plan == "auto":
            model = os.path.join(folder, "model.json")
            with open(model, "w", encoding="utf-8") as file:
                json.dump(profiled, file)
            given = ["plan", "--model", model, "--machine", profile, "--gpus", "1", "--state",
                     state, "-o", out]
            if overlap != "none":
                given += ["--overlap", overlap]
            given += micro_steps
            if "clip_share" in settings:
                given += ["--clip-share", settings["clip_share"]]
            for name, limit in memory.items():
                given += ["--" + name.replace("_", "-"), str(limit)]
            if threads:
                given += ["--cpu-threads", str(threads)]
            run(given)
            answer = run(["simulate", out])
        elif _split(plan)[0] in POLICIES:
            answer = _simulate(plan, profiled, folder, job, overlap, threads,
                               ["--state", state, *micro_steps, "-o", out])
        else:
            answer = run(["simulate", plan, "--machine", profile])
        if os.path.exists(out):
            with open(out, encoding="utf-8") as file:
                simulated = file.read()
    found = {key: answer[key] for key in FORECAST if key in answer}
    memory = answer.get("gpu_memory", {})
    found["gpu_peak_bytes"] = memory.get("peak_bytes")
    found["gpu_memory"] = {key: value for key, value in memory.items() if key.endswith("_bytes")}
    found["policy"], found["machine"] = answer.get("policy"), profile
    return found, simulated


def period_on(plan: str, name: str) -> float:
    """Predicted milliseconds of an iteration of a plan file with the profile `name`."""
    return period(run(["simulate", plan, "--machine", name]))


def period(forecast: Dict[str, Any]) -> float:
    """Predicted milliseconds of an iteration."""
    return float(forecast.get("period_ms") or forecast["iteration_ms"])


def measured(of: Any, micro_batch: int, device: Any) -> Dict[str, Any]:
    """The document of a workload.Shape's model, as hocket.profile measures it on the device."""
    import hocket
    import workload

    model = workload.build(of, device)
    tokens = workload.batches(of, micro_batch, device)[0]
    found: Dict[str, Any] = hocket.profile(
        model, {"input_ids": tokens, "labels": tokens, "use_cache": False}, steps=4)
    return found


def turns(names: Callable[[int], List[str]], rounds: int, budget: float) -> Iterator[Tuple[int, str]]:
    """The round and one name after the other, names(round) in a new random order each round. A round
    that would exceed the budget, in seconds, is left out."""
    began, longest, generator = time.monotonic(), 0.0, random.Random(1)
    for turn in range(rounds):
        started = time.monotonic()
        if turn > 0 and started + longest > began + budget:
            print(f"{turn} of {rounds} rounds fit into the budget", file=sys.stderr)
            break
        some = names(turn)
        for name in generator.sample(some, len(some)):
            yield turn, name
        longest = max(longest, time.monotonic() - started)


def default_threads(overlap: str) -> int:
    """The engine's default number of threads (hk_default_threads), without a control group's
    quota."""
    cpus = len(os.sched_getaffinity(0))
    left = max(1, min(3, cpus // 4)) if overlap == "both" else 1
    return max(1, cpus - left)


def run_plan(plan: str, backend: str, max_norm: float, steps: int,
             timeout: float) -> Dict[str, Any]:
    """`hocket run` of a plan given as JSON text: its answer."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        path = os.path.join(folder, "plan.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(plan)
        return run(["run", path, "--backend", backend, "--steps", str(steps), "--max-norm",
                    str(max_norm)], timeout)


def run(given: List[str], timeout: Optional[float] = None) -> Dict[str, Any]:
    """Runs the hocket program with --json; its JSON for exit 0 and 1 (the plan does not fit the
    machine). Raises RuntimeError with its message if it fails, or writes no file though `-o` asks
    for one (no plan fits)."""
    done = subprocess.run([program(), *given, "--json"], capture_output=True, text=True,
                          check=False, timeout=timeout)
    unwritten = "-o" in given and not os.path.exists(given[given.index("-o") + 1])
    if done.returncode not in (0, 1) or not done.stdout.strip() or unwritten:
        raise RuntimeError(f"hocket {' '.join(given)}: {done.stderr.strip()}")
    answer: Dict[str, Any] = json.loads(done.stdout)
    return answer
