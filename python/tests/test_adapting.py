# SPDX-License-Identifier: Apache-2.0
"""Choosing the number of threads while training: what opt.explain() and the log say of it. The rule
itself is in tests/test_engine_adapt.c."""

import logging

import pytest
import torch
from torch import nn

import hocket
from hocket import _abi


def trained(steps=3, **options):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 4))
    opt = hocket.AdamW(model.parameters(), backend="host", **options)
    for _ in range(steps):
        train(model, opt)
    return model, opt


def train(model, opt):
    model(torch.randn(5, 12)).square().sum().backward()
    opt.step()
    opt.zero_grad()


def test_explain_says_what_is_watched():
    model, opt = trained(steps=14, cpu_threads=2)
    # On a disturbed machine tries may have begun: then the rate is measured anew, and one thread may
    # have proved faster than two.
    for _ in range(500):
        if opt.stats()["adapting"]["elements_per_s"] > 0:
            break
        train(model, opt)
    found, text = opt.stats()["adapting"], opt.explain()
    assert found["planned"] == found["most"] == 2
    assert found["iteration_ms"] > 0
    assert found["elements_per_s"] > 0
    said = f"CPU team: {found['threads']} of 1 to 2 threads, 2 planned. An update takes "
    assert said in text
    assert " The team updates " in text
    assert "adapting" not in text


def test_off():
    _, opt = trained(adapt=False)
    assert "adapting" not in opt.stats()
    assert "The number of the CPU team's threads does not change." in opt.explain()
    with pytest.raises(hocket.HocketUsageError, match="adapt=2"):
        trained(adapt=2)


def test_off_with_several_ranks(monkeypatch):
    monkeypatch.setattr("hocket.ranks.world_size", lambda: 2)
    _, opt = trained()
    assert "adapting" not in opt.stats()
    assert "does not change, because several ranks wait for each other." in opt.explain()


def test_a_switch_is_logged_once(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="hocket")
    model, opt = trained(cpu_threads=2)
    report, last = _abi.Engine.report, _abi.Engine.last_step
    reason = "after step 3 the CPU team has 1 threads instead of 2"
    monkeypatch.setattr(
        _abi.Engine,
        "report",
        lambda self: {**report(self), "adapting": {"reason": reason}},
    )
    monkeypatch.setattr(_abi.Engine, "last_step", lambda self: last(self)._replace(switches=1))
    assert not caplog.records
    train(model, opt)
    train(model, opt)
    assert [record.getMessage() for record in caplog.records] == [f"hocket: {reason}"]
