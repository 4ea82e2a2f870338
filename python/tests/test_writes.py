# SPDX-License-Identifier: Apache-2.0
"""Weights that the program writes through ``p.data``, which leaves no trace, and the names of
parameters that an optimizer was given without a model."""

import gc
import json
import warnings

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import hocket
from hocket import HocketError, HocketUsageError, attach, samples
from models import batches, make
from reference import same_bits
from runs import spread

MODES = ["drop-in", "none", "forward", "both"]


@pytest.fixture(autouse=True)
def _small_tensors_have_hooks(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


def started(mode, model, **options):
    overlap = "none" if mode == "drop-in" else mode
    opt = hocket.AdamW(model.parameters(), lr=1e-2, overlap=overlap, cpu_threads=1, **options)
    if mode != "drop-in":
        opt.attach(model)
    return opt


def trained(mode, write, steps=6, **options):
    """Layers whose weights are written after each second step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))).to(torch.bfloat16)
    opt = started(mode, model, **options)
    for step, batch in enumerate(torch.randn(steps, 4, 32).bfloat16()):
        for part in batch.split(2):
            (model(part).square().mean() / 2).backward()
        opt.step()
        opt.zero_grad()
        if step % 2:
            for param in model.parameters():
                write(param)
    opt.synchronize()
    return opt.checksum(), [param.detach().clone() for param in model.parameters()]


@torch.no_grad()
def by_the_book(param):
    param.zero_()


@pytest.mark.parametrize("mode", MODES)
def test_a_write_through_data_that_is_seen_counts_for_all_weights(mode):
    expected, weights = trained(mode, by_the_book, steps=5)
    with pytest.warns(UserWarning, match=r"weight.* was written .*p\.data.*torch.no_grad") as said:
        found, same = trained(mode, lambda param: param.data.zero_(), steps=5)
    assert len([one for one in said if "p.data" in str(one.message)]) == 1
    assert found == expected and all(map(same_bits, same, weights))


def test_a_write_is_seen_when_its_tensor_is_looked_at(monkeypatch):
    """In a large model not in each step. The write that is seen counts."""
    monkeypatch.setattr(samples, "TENSORS", 2)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(6)))
    opt = started("drop-in", model)
    seen = 0
    for _ in range(6):
        model(torch.randn(2, 32)).square().mean().backward()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            opt.step()
        seen += len(said)
        if said:
            assert "2.weight" in str(said[0].message)
        opt.zero_grad()
        model[2].weight.data.fill_(1e-3)
    assert seen == 1


@pytest.mark.parametrize(
    "mode, state",
    spread(
        lambda mode, state: (mode + state) % 3 == 0,
        MODES,
        ["fp32", "split", "bf16", "bf16+split", "8bit", "8bit+split"],
    ),
)
def test_training_without_such_writes_warns_of_nothing(mode, state):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(mode, lambda param: None, steps=40, state=state)
        trained(mode, by_the_book, steps=40, state=state)


def test_weights_that_are_not_numbers_are_left_alone():
    model = nn.Linear(8, 8)
    opt = started("drop-in", model)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model.weight.grad = torch.ones(8, 8)
            opt.step()


def test_memory_that_a_parameter_has_left_stays_while_an_update_may_write_to_it():
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))).to(torch.bfloat16)
    opt = started("forward", model)
    params = list(model.parameters())  # no look-up waits for the update
    memory = [StorageWeakRef(param.untyped_storage()) for param in params]
    model(torch.ones(4, 32).bfloat16()).square().mean().backward()
    opt.step()
    for param in params:
        param.data = torch.zeros_like(param)
    assert not any(each.expired() for each in memory)
    opt.zero_grad()
    del opt
    gc.collect()
    assert all(each.expired() for each in memory)


def test_messages_have_the_names_that_modules_know(tmp_path):
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=1)
    model(batches(1)[0]).backward()
    grad = model.layers[1].up.weight.grad
    model.layers[1].up.weight.grad = grad.to_sparse()
    with pytest.raises(HocketUsageError, match=r"^layers.1.up.weight \(parameter \d+\) has a spar"):
        opt.step()
    model.layers[1].up.weight.grad = grad
    opt.step()
    opt.save(tmp_path / "state")
    names = json.loads((tmp_path / "state.json").read_text())["tensors"]
    assert names[0] == "parameter 0"  # files do not depend on what modules there are
    model.layers[2].down.weight.data = torch.zeros_like(model.layers[2].down.weight)
    with pytest.raises(HocketError, match=r"^layers.2.down.weight \(parameter \d+\) has been given"):
        opt.step()
    alone = [nn.Parameter(torch.zeros(4, dtype=torch.float64))]
    with pytest.raises(HocketError, match=r"^parameter 0 has type torch.float64"):
        hocket.AdamW(alone).bind()
    model.positions.weight.requires_grad_(True)
    model.positions.weight.grad = torch.zeros_like(model.positions.weight)
    with pytest.raises(HocketError, match=r"^positions.weight of shape"):
        opt.step()
