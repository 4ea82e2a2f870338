# SPDX-License-Identifier: Apache-2.0
"""Many small tensors: the library examines their gradients, with the result of Python alone."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import hocket
from hocket import _abi, attach, direct
from hocket.gates import GatedParameters
from models import batches, make, two_groups
from reference import ReferenceAdamW, assert_same, same_bits
from runs import Case, compare


def test_many_small_tensors_are_handed_over_in_one_call(monkeypatch):
    """What a step costs is measured by bench/training/hand_over.py."""
    assert direct.functions() is not None
    calls = []
    for name in ("gradient_list", "gradients"):
        method = getattr(_abi.Engine, name)
        monkeypatch.setattr(
            _abi.Engine,
            name,
            lambda engine, *given, name=name, method=method: (
                calls.append(name),
                method(engine, *given),
            )[1],
        )
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(1000)))
    opt = hocket.AdamW(model.parameters(), cpu_threads=1, overlap="none")
    opt.attach(model)
    for _ in range(3):
        calls.clear()
        model(torch.randn(4, 8)).square().mean().backward()
        opt.step()
        opt.zero_grad()
    assert calls == ["gradient_list"]


def test_without_overlap_a_model_is_as_it_was_after_the_first_step():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    opt = hocket.AdamW(model.parameters())
    opt.attach(model)
    assert type(model[0]._parameters) is GatedParameters
    model(torch.randn(2, 8)).square().mean().backward()
    opt.step()
    assert type(model[0]._parameters) is dict and not model[0]._forward_pre_hooks


@pytest.mark.parametrize("attached,overlap", [(False, "none"), (True, "none"), (True, "forward")])
def test_python_alone_does_the_same(attached, overlap, monkeypatch):
    monkeypatch.setattr(direct, "functions", lambda: None)
    _, opt = compare(Case("gpt", accumulation=2), attached, overlap=overlap)
    assert opt.binding().direct is None


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_many_small_tensors_beside_large_ones(overlap, monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    monkeypatch.setattr(attach, "SWEEP_MOST", 3)
    _, opt = compare(Case("gpt", accumulation=2), True, overlap=overlap)
    assert (opt.handover()._direct is None) == (overlap == "both")


class Odd(nn.Module):
    """A parameter that is not contiguous, one that is not always used, one of another type."""

    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.randn(6, 4).t())
        self.seldom = nn.Parameter(torch.randn(4, 6))
        self.short = nn.Parameter(torch.randn(5, dtype=torch.bfloat16))

    def forward(self, step):
        w = self.turned if step % 2 else self.turned + self.seldom
        return w.square().mean() + self.short.square().mean()


@pytest.mark.parametrize("with_turned", [False, True])
@pytest.mark.parametrize("attached", [False, True])
def test_odd_gradients(attached, with_turned):
    """Gradients that are missing, have another layout, or were assigned by the program."""
    states = []
    for use in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not use:
                patch.setattr(direct, "functions", lambda: None)
            torch.manual_seed(3)
            model = Odd()
            if not with_turned:
                model.turned.requires_grad_(False)
            params = [p for p in model.parameters() if p.requires_grad]
            opt = hocket.AdamW(params, lr=0.1, cpu_threads=1)
            if attached:
                opt.attach(model)
            for step in range(6):
                model(step).backward()
                if step == 3:
                    model.seldom.grad = torch.randn(6, 4).t()
                if step == 4:
                    with torch.no_grad():
                        model.seldom.add_(1.0)
                opt.step()
                assert opt.last_step.tensors == len([p for p in params if p.grad is not None])
                opt.zero_grad()
            states.append([p.detach().clone() for p in params])
    assert all(same_bits(a, b) for a, b in zip(*states))


def test_a_moved_small_parameter_is_refused():
    model = nn.Linear(4, 4)
    opt = hocket.AdamW(model.parameters())
    for moved in (False, True):
        if moved:
            model.bias.data = torch.zeros(4)
        model(torch.randn(2, 4)).square().mean().backward()
        if moved:
            with pytest.raises(hocket.HocketUsageError, match="has been given other memory"):
                opt.step()
        else:
            opt.step()


def test_parameters_are_freed_with_the_optimizer():
    model = nn.Linear(4, 4)
    opt = hocket.AdamW(model.parameters())
    model(torch.randn(2, 4)).square().mean().backward()
    opt.step()
    assert opt.binding().direct is not None
    parameter = weakref.ref(model.weight)
    del model, opt
    gc.collect()
    assert parameter() is None


@pytest.mark.parametrize("together", [1, 5000, 1 << 27])
def test_gradients_of_a_block_leave_together(together, monkeypatch):
    """By one call a block, or one for each `together` bytes, on the stream that they came on. Fewer
    bytes wait, apart from tensors without a hook."""
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)
    monkeypatch.setattr(attach, "TOGETHER_BYTES", together)
    mine, other = make("llama"), make("llama")
    opt = hocket.AdamW(two_groups(mine), cpu_threads=1, overlap="both")
    expected = ReferenceAdamW(two_groups(other))
    opt.attach(mine)
    large = [p for p in mine.parameters() if p.numel() >= 512]
    calls, waiting, stream = [], [], [7]

    def passes():
        for model in (mine, other):
            model(batches(1)[0]).backward()
        opt.step()
        expected.step()
        opt.zero_grad()
        expected.zero_grad()

    passes()
    give = opt.binding().engine.gradient_list

    def gradient_list(pairs, n, own):
        calls.append((own, n))
        give(pairs, n, own)

    def arrived(param):
        left = [p for p in large if p.grad is not None and type(p.grad) is Tensor]
        waiting.append(sum(2 * p.numel() for p in left))
        if param is mine.layers[1].up.weight:
            stream[0] = 8

    monkeypatch.setattr(opt.binding().engine, "gradient_list", gradient_list)
    monkeypatch.setattr(opt._attachment, "_stream_now", lambda: stream[0])
    for param in large:
        param.register_post_accumulate_grad_hook(arrived)
    passes()
    blocks = {opt.binding().blocks[opt.binding().index[id(p)]] for p in large}
    assert max(waiting) < together
    assert sum(n for _, n in calls) == len(opt.binding().params)
    assert calls[0][0] == 7 and calls[-1][0] == 8
    assert [own for own, _ in calls] == sorted(own for own, _ in calls)
    if together == 1:
        assert len(calls) >= len(large)
    else:
        assert len(blocks) <= len(calls) <= len(blocks) + (2 if together == 1 << 27 else len(large))
    assert_same(opt, mine, expected, other)
