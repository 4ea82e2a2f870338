# SPDX-License-Identifier: Apache-2.0
"""GPU memory is given back between steps, as in reinforcement learning while a model generates."""

import gc
import weakref

import pytest
import torch

import hocket
from hocket import HocketUsageError, attach
from runs import spread


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_releasing_between_steps_changes_no_bit(overlap):
    sums = []
    for releases in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
        opt = hocket.AdamW(model.parameters(), lr=1e-2, overlap=overlap, cpu_threads=1)
        opt.attach(model)
        assert opt.gpu_bytes() == opt.release_gpu() == 0
        for batch in torch.randn(6, 4, 256):
            model(batch).square().mean().backward()
            held = opt.gpu_bytes()
            assert held > 0
            if releases:
                with pytest.raises(hocket.HocketError, match="no step has used"):
                    opt.release_gpu()
            opt.step()
            opt.zero_grad()
            if releases:
                assert opt.release_gpu() == held and opt.gpu_bytes() == 0
                opt.zero_grad()
                model.eval()(batch)  # generation reads the new weights
                model.train()
        sums.append(opt.checksum())
    assert sums[0] == sums[1]


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "mode, at, keeps_model",
    spread(
        lambda mode, at, keeps_model: keeps_model == (mode + at) % 2,
        ["drop-in", "none", "forward", "both"],
        ["backward", "step", "zero_grad", "saved"],
        [False, True],
    ),
)
def test_the_state_goes_with_the_optimizer(mode, at, keeps_model, no_collector, monkeypatch, tmp_path):
    """At once: without the garbage collector, which may not run for a long time."""
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    opt = hocket.AdamW(
        model.parameters(), cpu_threads=1, overlap="none" if mode == "drop-in" else mode
    )
    if mode != "drop-in":
        opt.attach(model)
    for number in range(3):
        model(torch.ones(2, 64)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if number == 2 and at == "backward":
            break
        opt.step()
        if number == 2 and at == "step":
            break
        opt.zero_grad()
    if at == "saved":
        opt.save(tmp_path / "state")
        opt.load(tmp_path / "state")
        opt.state_dict()
        opt.stats()
    engine = weakref.ref(opt.binding().engine)
    if keeps_model:
        del opt
    else:
        del opt, model
    assert engine() is None
    if keeps_model:
        # The model can be trained on, by another optimizer, when old gradients are gone.
        model.zero_grad()
        other = hocket.AdamW(model.parameters(), cpu_threads=1)
        other.attach(model)
        model(torch.ones(2, 64)).square().mean().backward()
        other.step()
        assert other.last_step.step == 1


def test_a_gradient_of_an_optimizer_that_is_gone_says_so():
    model = torch.nn.Linear(256, 256)
    opt = hocket.AdamW(model.parameters(), cpu_threads=1)
    opt.attach(model)
    model(torch.ones(2, 256)).sum().backward()
    grad = model.weight.grad
    del opt
    for use in (grad.norm, lambda: grad.mul_(2), lambda: model(torch.ones(2, 256)).sum().backward()):
        with pytest.raises(HocketUsageError, match="is gone.*zero_grad"):
            use()
    assert "is gone" in repr(grad)
    model.zero_grad()
    model(torch.ones(2, 256)).sum().backward()
    assert type(model.weight.grad) is torch.Tensor
