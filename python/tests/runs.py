# SPDX-License-Identifier: Apache-2.0
"""Training runs with hocket and with the reference, compared bit for bit."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import pytest
import torch

import hocket
import hocket.attach
from hocket.plan import program
from models import batches, make, two_groups
from reference import ReferenceAdamW, assert_same, same_bits

STEPS = 30 if os.environ.get("HOCKET_TEST_FULL") else 16
MAX_NORM = {
    "never": None,
    "always": {"gpt": 2.0, "llama": 0.5},
    "sometimes": {"gpt": 10.5, "llama": 1.38},
    "sometimes, of three": {"gpt": 8.3},  # with three micro-steps
}


def shape(step: int) -> float:
    """Factor of the learning rate: warm-up, then decay."""
    return (step + 1) / 5 if step < 5 else 1.0 / (1 + 0.1 * (step - 5))


def spread(keep: Callable[..., bool], *axes: Sequence[Any]) -> List[Any]:
    """Every combination of values, one from each axis; tuples are flattened. `keep` is called with
    the indices on the axes. Combinations for which it is false run with HOCKET_TEST_FULL only."""
    found = []
    for chosen in itertools.product(*map(enumerate, axes)):
        values = [part for _, v in chosen for part in (v if isinstance(v, tuple) else (v,))]
        marks = () if keep(*(place for place, _ in chosen)) else (pytest.mark.full,)
        found.append(pytest.param(*values, marks=marks))
    return found


class Case(NamedTuple):
    model: str = "gpt"
    clip: str = "sometimes"
    accumulation: int = 1
    dtype: torch.dtype = torch.bfloat16
    steps: int = STEPS

    @property
    def max_norm(self) -> Optional[float]:
        limits = MAX_NORM[self.clip]
        return limits and limits[self.model]


@functools.lru_cache(maxsize=None)
def reference(case: Case) -> Tuple[torch.nn.Module, ReferenceAdamW, List[float], List[float]]:
    """The model and optimizer after a run, its losses and its norms."""
    torch.use_deterministic_algorithms(True)
    model = make(case.model, case.dtype)
    opt = ReferenceAdamW(two_groups(model), lr=2e-3, max_norm=case.max_norm)
    base = [group["lr"] for group in opt.param_groups]
    losses, norms = [], []
    data = iter(batches(case.steps * case.accumulation))
    for step in range(case.steps):
        for group, lr in zip(opt.param_groups, base):
            group["lr"] = lr * shape(step)
        for _ in range(case.accumulation):
            loss = model(next(data)) / case.accumulation
            loss.backward()
            losses.append(loss.item())
        opt.step()
        norms.append(opt.grad_norm)
        opt.zero_grad()
    return model, opt, losses, norms


def train(case: Case, attached: bool, steps: Optional[int] = None, **options):
    """The same run with hocket; its model, optimizer, schedule of the learning rate, and losses."""
    model = make(case.model, case.dtype)
    opt = hocket.AdamW(two_groups(model), lr=2e-3, max_norm=case.max_norm, cpu_threads=2, **options)
    if attached:
        opt.attach(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, shape)
    return model, opt, schedule, continue_run(case, model, opt, schedule, 0, steps or case.steps)


def continue_run(case: Case, model, opt, schedule, first: int, last: int) -> List[float]:
    data = iter(batches(case.steps * case.accumulation)[first * case.accumulation :])
    losses = []
    for _ in range(first, last):
        for _ in range(case.accumulation):
            loss = model(next(data)) / case.accumulation
            loss.backward()
            losses.append(loss.item())
        opt.step()
        schedule.step()
        opt.zero_grad()
    return losses


def compare(case: Case, attached: bool, **options):
    """Trains with hocket and with the reference and compares losses, weights and state bit for
    bit."""
    other, expected, losses, norms = reference(case)
    model, opt, _, found = train(case, attached, **options)
    assert found == losses
    assert opt.grad_norm == norms[-1]
    assert_same(opt, model, expected, other)
    return model, opt


def assert_ran_ahead(opt, model):
    """Updates ran ahead of the norm in all steps but the first two (the last is not counted yet), in
    one of them those of most parameters. How many do in a step depends on the load of the machine."""
    opt.synchronize()
    report = opt.stats()
    assert report["running_ahead"]["kept_steps"] >= report["steps"] - 3
    assert report["running_ahead"]["most_elements"] > sum(p.numel() for p in model.parameters()) / 2


def started(overlap: str = "forward", attached: bool = True, steps: int = 2):
    """A small model and its optimizer after some steps; the last update may still run."""
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap=overlap if attached else "none")
    if attached:
        opt.attach(model)
    for batch in batches(steps):
        model(batch).backward()
        opt.step()
        opt.zero_grad()
    return model, opt


def plan_file(model, policy: List[str], path, overlap: str = "none") -> str:
    """Writes a plan for a model under a policy, for one H200 and two threads."""
    document = hocket.describe(model)
    (path / "model.json").write_text(json.dumps(document))
    out = str(path / "plan.json")
    command = [
        program(),
        "simulate",
        "--model",
        str(path / "model.json"),
        "--machine",
        "h200-16c",
        "--gpus",
        "1",
        "--cpu-threads",
        "2",
        "--subgroup",
        "6000",
        "-o",
        out,
        "--quiet",
        *(["--overlap", overlap] if overlap != "none" else []),
        "--policy",
        *policy,
    ]
    subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return out


__all__ = [
    "Case",
    "assert_ran_ahead",
    "compare",
    "continue_run",
    "plan_file",
    "reference",
    "same_bits",
    "spread",
    "train",
]
