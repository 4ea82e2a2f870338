# SPDX-License-Identifier: Apache-2.0
"""Saving beside training, from another thread: each file is of one step, and training keeps its
bits."""

import threading

import pytest
import torch
from torch import nn

import hocket
from hocket import attach

WIDTH = 96
STEPS = 60


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


def make(mode):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))).to(torch.bfloat16)
    opt = hocket.AdamW(
        model.parameters(),
        lr=1e-2,
        max_norm=0.5,
        cpu_threads=1,
        overlap="none" if mode == "drop-in" else mode,
    )
    if mode != "drop-in":
        opt.attach(model)
    return model, opt


def iterate(model, opt, number):
    torch.manual_seed(number)
    model(torch.randn(4, WIDTH).to(torch.bfloat16)).float().pow(2).mean().backward()
    opt.param_groups[0]["lr"] = 1e-2 / (1 + number)
    opt.step()
    opt.zero_grad()


def checksums(mode):
    """Of a run without a second thread, after each step."""
    model, opt = make(mode)
    sums = {}
    for number in range(STEPS):
        iterate(model, opt, number)
        sums[number + 1] = opt.checksum()
    return sums


def state_sum(mode, state):
    """The checksum of an optimizer that has loaded a state_dict, and its step."""
    model, opt = make(mode)
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_(state["state"][number]["master_weight"])
    opt.load_state_dict(state)
    return opt.checksum(), {int(entry["step"]) for entry in state["state"].values()}


@pytest.mark.parametrize("mode", ["drop-in", "none", "forward", "both"])
def test_a_thread_that_saves_gets_one_step_and_changes_none(mode, tmp_path):
    expected = checksums(mode)
    model, opt = make(mode)
    iterate(model, opt, 0)
    paths, states, errors, over = [], [], [], threading.Event()

    def save():
        try:
            while not over.is_set():
                paths.append(tmp_path / str(len(paths)))
                opt.save(paths[-1])
                states.append(opt.state_dict())
                opt.checksum()
        except BaseException as error:
            errors.append(error)

    beside = threading.Thread(target=save)
    beside.start()
    for number in range(1, STEPS):
        iterate(model, opt, number)
    over.set()
    beside.join()
    assert not errors
    assert opt.checksum() == expected[STEPS]
    assert len(paths) > 2
    for path in paths:
        _, loaded = make(mode)
        loaded.load(path)
        step = loaded.binding().engine.step_number()
        assert loaded.checksum() == expected[step]
        # The program changes the learning rate between two steps, before or after the save.
        assert loaded.param_groups[0]["lr"] in (1e-2 / step, 1e-2 / (step + 1))
    for state in states[:: 1 + len(states) // 8]:
        found, steps = state_sum(mode, state)
        assert len(steps) == 1 and found == expected[steps.pop()]
