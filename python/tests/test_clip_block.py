# SPDX-License-Identifier: Apache-2.0
"""clip="block": each block's gradients are clipped by their own norm, so that clipped updates run
ahead of the step."""

import pytest
import torch
from torch import nn

import hocket
from hocket import HocketUsageError, attach
from models import batches, make, two_groups
from reference import ReferenceAdamW, assert_same
from runs import assert_ran_ahead


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


LIMIT = 1e-2  # every block of the models here has a larger norm


def passes(number, *models):
    for model in models:
        model(batches(number + 1)[number]).backward()


def by_block(model, names):
    """The blocks' parameters in another copy of the model."""
    params = dict(model.named_parameters())
    return [[params[name] for name in block] for block in names]


@pytest.mark.parametrize("model", ["gpt", "llama"])
@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
@pytest.mark.parametrize("micros", [1, 3])
def test_bits_are_those_of_clipping_each_block(overlap, model, micros):
    mine, other = make(model), make(model)
    opt = hocket.AdamW(
        two_groups(mine), lr=2e-3, cpu_threads=2, overlap=overlap, max_norm=LIMIT, clip="block"
    )
    opt.attach(mine)
    expected = ReferenceAdamW(two_groups(other), lr=2e-3, max_norm=LIMIT)
    for step in range(4):
        for micro in range(micros):
            passes(step * micros + micro, mine, other)
        opt.step()
        expected.blocks = by_block(other, opt.blocks())
        expected.step()
        assert opt.last_step.grad_scale == min(expected.coefficients) < 1
        opt.zero_grad()
        expected.zero_grad()
    if overlap == "both":
        assert_ran_ahead(opt, mine)
    assert_same(opt, mine, expected, other)


def test_result_is_that_of_a_plain_torch_loop():
    mine, other = make("gpt").float(), make("gpt").float()
    opt = hocket.AdamW(
        mine.parameters(), lr=1e-3, cpu_threads=2, overlap="both", max_norm=LIMIT, clip="block"
    )
    opt.attach(mine)
    plain = torch.optim.AdamW(other.parameters(), lr=1e-3)
    for step in range(5):
        passes(step, mine, other)
        opt.step()
        for block in by_block(other, opt.blocks()):
            nn.utils.clip_grad_norm_(block, LIMIT)
        plain.step()
        opt.zero_grad()
        plain.zero_grad()
    opt.synchronize()
    for p, q in zip(mine.parameters(), other.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=2e-6)


def test_blocks_are_the_models():
    """A tied parameter is of the block that uses it first; nothing is merged."""
    mine = make("gpt")
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, max_norm=LIMIT, clip="block")
    opt.attach(mine)
    passes(0, mine)
    blocks = opt.blocks()
    assert len(blocks) == len(mine.layers) + 2
    assert "tokens.weight" in blocks[0]
    for number, block in enumerate(blocks[1:-1]):
        assert all(name.startswith(f"layers.{number}.") for name in block)
    assert blocks[-1] == ["norm.weight", "norm.bias"]


def test_many_blocks_are_not_merged():
    deep = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(600)))
    counts = {}
    for clip in ("norm", "block"):
        opt = hocket.AdamW(deep.parameters(), cpu_threads=1, max_norm=1.0, clip=clip)
        opt.attach(deep)
        counts[clip] = len(opt.blocks())
        opt.detach()
    assert counts == {"norm": 512, "block": 600}


def test_value_that_is_not_finite_skips_the_step():
    mine = make("gpt")
    opt = hocket.AdamW(
        mine.parameters(), cpu_threads=2, overlap="both", max_norm=LIMIT, clip="block"
    )
    opt.attach(mine)
    for step in range(3):
        passes(step, mine)
        opt.step()
        opt.zero_grad()
    opt.synchronize()
    before = [p.detach().clone() for p in mine.parameters()]
    (mine(batches(4)[3]) * float("inf")).backward()
    with pytest.warns(UserWarning, match="not finite"):
        opt.step()
    opt.synchronize()
    assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), before))


def test_what_is_refused():
    mine = make("gpt")
    with pytest.raises(HocketUsageError, match="'norm' or 'block'"):
        hocket.AdamW(mine.parameters(), max_norm=1.0, clip="layer")
    with pytest.raises(HocketUsageError, match="needs max_norm"):
        hocket.AdamW(mine.parameters(), clip="block")
    opt = hocket.AdamW(mine.parameters(), max_norm=1.0, clip="block")
    passes(0, mine)
    with pytest.raises(HocketUsageError, match="needs opt.attach"):
        opt.step()
