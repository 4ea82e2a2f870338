# SPDX-License-Identifier: Apache-2.0
"""Actions of the program between backward() and step() while updates run ahead of the norm. Weights
and state must keep the reference's bits."""

import copy
import os
import random
import threading
import time

import pytest
import torch
from torch import nn

import hocket
from hocket import GradientHandle, attach
from models import batches, make, two_groups
from reference import ReferenceAdamW, assert_same, same_bits
from runs import assert_ran_ahead, spread

KINDS = ["none", "forward", "both"]
OVERLAPS = pytest.mark.parametrize("overlap", KINDS)


def one_in_three(*places):
    """For spread(): each overlap, and each value of the other axes."""
    return sum(places) % 3 == 2


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


def pair(overlap="both", model="gpt", **options):
    mine, other = make(model), make(model)
    opt = hocket.AdamW(two_groups(mine), lr=2e-3, cpu_threads=2, overlap=overlap, **options)
    opt.attach(mine)
    return mine, opt, other, ReferenceAdamW(two_groups(other), lr=2e-3, **options)


def passes(number, *models):
    """Runs backward of each model with batch `number`."""
    for model in models:
        model(batches(number + 1)[number]).backward()


def settle(opt, expected):
    """Takes a step of both optimizers."""
    opt.step()
    expected.step()
    opt.zero_grad()
    expected.zero_grad()


def test_most_of_an_update_runs_ahead_here():
    """The tests below depend on updates that run ahead."""
    mine, opt, other, expected = pair()
    for step in range(4):
        passes(step, mine, other)
        settle(opt, expected)
    assert_ran_ahead(opt, mine)
    assert_same(opt, mine, expected, other)


def test_an_update_runs_ahead_under_grad_scaler():
    """GradScaler multiplies gradients that are not fp16 by 1 / scale, the same in each step."""
    mine, opt, other, expected = pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(5):
        scaler.scale(mine(batches(step + 1)[step])).backward()
        (other(batches(step + 1)[step]) * 2.0**10).backward()
        expected.factor = 2.0**-10
        scaler.step(opt)
        scaler.update()
        expected.step()
        opt.zero_grad()
        expected.zero_grad()
    assert_ran_ahead(opt, mine)
    assert_same(opt, mine, expected, other)


@pytest.mark.parametrize(
    "overlap, counts",
    spread(one_in_three, KINDS, [[1, 2, 1, 3, 3, 1, 2], [3, 1, 1, 2], [2, 0, 2, 0, 0, 1]]),
)
def test_fewer_and_more_backward_passes_than_in_the_step_before(overlap, counts):
    mine, opt, other, expected = pair(overlap)
    number = 0
    for count in counts:
        for _ in range(count):
            passes(number, mine, other)
            number += 1
        if count:
            settle(opt, expected)
        else:
            opt.step()
            opt.zero_grad()
    assert_same(opt, mine, expected, other)


@pytest.mark.parametrize(
    "overlap, counts, said", spread(one_in_three, KINDS, [[4, 4, 4], [4, 3, 1, 5]], [None, 4])
)
def test_several_backward_passes_in_each_step(overlap, counts, said):
    mine, opt, other, expected = pair(overlap)
    opt.accumulation_steps = said
    number = 0
    for count in counts:
        for _ in range(count):
            passes(number, mine, other)
            number += 1
        settle(opt, expected)
        assert opt.stats()["sums"]["gradients_expected"] == max(count, said or 0)
    assert_same(opt, mine, expected, other)


def test_the_number_of_backward_passes_is_a_positive_number():
    opt = pair()[1]
    with pytest.raises(hocket.HocketUsageError, match="accumulation_steps=0"):
        opt.accumulation_steps = 0
    assert opt.accumulation_steps is None


@pytest.mark.parametrize("said", [None, 3])
def test_the_accelerate_library_accumulates(said):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    mine, opt, other, expected = pair()
    opt.accumulation_steps = said
    model, wrapped = accelerator.prepare(mine, opt)
    for step in range(9):
        with accelerator.accumulate(model):
            accelerator.backward(model(batches(step + 1)[step]))
            wrapped.step()
            wrapped.zero_grad()
        (other(batches(step + 1)[step]) / 3).backward()
        if step % 3 == 2:
            expected.step()
            expected.zero_grad()
    assert opt.last_step.step == 3
    assert opt.stats()["sums"]["gradients_expected"] == 3
    assert_same(opt, mine, expected, other)


@pytest.mark.parametrize(
    "overlap, limits",
    spread(one_in_three, KINDS, [[None, 2.0], [2.0, 1e-3, 1e6], [1e6, 1e6, 2.0, 1e6]]),
)
def test_gradients_clipped_by_torch_now_and_then(overlap, limits, monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1)
    mine, opt, other, expected = pair(overlap)
    for step in range(9):
        passes(step, mine, other)
        limit = limits[step % len(limits)]
        if limit is not None:
            norm = torch.nn.utils.clip_grad_norm_(mine.parameters(), limit)
            expected.factor = float(torch.clamp(limit / (norm + 1e-6), max=1.0))
        settle(opt, expected)
    assert_same(opt, mine, expected, other)


@OVERLAPS
@pytest.mark.parametrize(
    "key,values",
    [
        ("lr", (1e-3, 4e-3)),
        ("betas", ((0.8, 0.99), (0.9, 0.95))),
        ("eps", (1e-6, 1e-8)),
        ("weight_decay", (0.3, 0.0)),
    ],
)
def test_hyperparameters_changed_between_backward_and_step(overlap, key, values):
    mine, opt, other, expected = pair(overlap)
    for step in range(6):
        passes(step, mine, other)
        for o in (opt, expected):
            o.param_groups[step % 2][key] = values[step % 3 % 2]
        settle(opt, expected)
    assert_same(opt, mine, expected, other)


@OVERLAPS
def test_gradients_discarded_without_a_step(overlap):
    mine, opt, other, expected = pair(overlap)
    for step in range(8):
        passes(step, mine)
        if step % 3 != 1:
            passes(step, other)
            settle(opt, expected)
            continue
        if step == 1:
            opt.zero_grad()
        elif step == 4:
            mine.zero_grad(set_to_none=False)
            opt.zero_grad()
        else:
            for p in mine.parameters():
                p.grad = None
    assert_same(opt, mine, expected, other)


@OVERLAPS
def test_parameters_skipped_now_and_then(overlap):
    """The program drops or replaces gradients that were handed over."""
    mine, opt, other, expected = pair(overlap, "llama")
    for step in range(8):
        passes(step, mine, other)
        for model in (mine, other):
            params = dict(model.named_parameters())
            if step % 3 == 1:
                params["layers.1.up.weight"].grad = None
                params["norm.weight"].grad = None
            if step % 4 == 2:
                for p in model.layers[0].parameters():
                    p.grad = None
            if step == 5:
                torch.manual_seed(step)
                params["head.weight"].grad = torch.randn_like(params["head.weight"])
        settle(opt, expected)
    assert float(opt.state[dict(mine.named_parameters())["layers.1.up.weight"]]["step"]) == 5
    assert_same(opt, mine, expected, other)


@OVERLAPS
def test_parameters_that_forward_uses_now_and_then(overlap):
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(4))

        def forward(self, x, used):
            for number in used:
                x = self.layers[number](x).tanh()
            return x.square().mean()

    torch.manual_seed(1)
    mine = Switch()
    other = copy.deepcopy(mine)
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(mine)
    expected = ReferenceAdamW(other.parameters())
    for used in ((0, 1, 2, 3), (0, 2), (3, 1), (0, 1, 2, 3), (1,), (1,), (2, 2, 0)):
        x = torch.randn(4, 48)
        for model in (mine, other):
            model(x, used).backward()
        settle(opt, expected)
    assert_same(opt, mine, expected, other)
    assert [float(opt.state[layer.weight]["step"]) for layer in mine.layers] == [4, 5, 4, 3]


@OVERLAPS
def test_weights_read_and_written_between_backward_and_step(overlap):
    mine, opt, other, expected = pair(overlap)
    for step in range(6):
        before = {n: p.detach().clone() for n, p in mine.named_parameters()}
        passes(step, mine, other)
        time.sleep(0.002 * (step % 3))  # time for updates that run ahead
        copied = copy.deepcopy(mine.state_dict())
        assert all(same_bits(copied[n], value) for n, value in before.items())
        with torch.no_grad():
            assert torch.equal(mine(batches(1)[0]), other(batches(1)[0]))
        for model, o in ((mine, opt), (other, expected)):
            weight = model.layers[step % 3].up.weight
            with torch.no_grad():
                weight.mul_(0.5)
            if o is expected and weight in expected.state:
                expected.state[weight]["master_weight"].copy_(weight)
        settle(opt, expected)
    assert_same(opt, mine, expected, other)


@OVERLAPS
def test_state_read_between_backward_and_step_is_of_the_last_step(overlap):
    mine, opt, other, expected = pair(overlap)
    for step in range(4):
        passes(step, mine, other)
        if step:
            assert_same(opt, mine, expected, other)
        settle(opt, expected)
    assert_same(opt, mine, expected, other)


@OVERLAPS
def test_a_nonfinite_gradient_at_a_random_index(overlap):
    mine, opt, other, expected = pair(overlap)
    for step in range(8):
        passes(step, mine, other)
        if step in (2, 3, 6):
            weight = list(mine.parameters())[3 * step]
            bad = opt.read_gradient(weight).clone()
            bad.view(-1)[step] = (float("nan"), float("inf"))[step % 2]
            weight.grad = bad
            with pytest.warns(UserWarning, match="1 gradient values are not finite"):
                opt.step()
            opt.zero_grad()
            expected.zero_grad()
            continue
        settle(opt, expected)
    assert opt.last_step.step == 5
    assert_same(opt, mine, expected, other)


# -- Hooks of the program -------------------------------------------------------------------------


@OVERLAPS
def test_hooks_of_the_program_on_gradients(overlap, monkeypatch):
    """A hook before accumulation can change the gradient. A hook after it, behind hocket's, gets
    the tensor while it waits for others of its block, else the handle; its operations on either
    take effect."""
    seen = []
    if overlap != "none":
        monkeypatch.setattr(attach, "TOGETHER_BYTES", 1)

    def hooked(model, handles):
        params = dict(model.named_parameters())
        params["layers.0.up.weight"].register_hook(lambda grad: grad * 0.5)
        params["layers.1.down.weight"].register_hook(lambda grad: torch.zeros_like(grad))

        def halve(p):
            if handles:
                seen.append(type(p.grad))
            with torch.no_grad():
                p.grad.mul_(0.5)

        params["tokens.weight"].register_post_accumulate_grad_hook(halve)

        def drop(p):
            p.grad = None

        params["head.weight"].register_post_accumulate_grad_hook(drop)
        model.layers[2].register_full_backward_hook(lambda module, gi, go: None)

    mine, opt, other, expected = pair(overlap, "llama")
    hooked(mine, True)
    hooked(other, False)
    for step in range(5):
        passes(step, mine, other)
        settle(opt, expected)
    assert_same(opt, mine, expected, other)
    assert set(seen) == {torch.Tensor if overlap == "none" else GradientHandle}
    assert mine.head.weight not in opt.state


@OVERLAPS
def test_hooks_that_were_there_before_attach(overlap):
    """Hooks registered before attach run first and get a tensor."""
    seen = []

    def clamp(p):
        seen.append(type(p.grad))
        p.grad.clamp_(-1e-3, 1e-3)

    mine, other = make("llama"), make("llama")
    for model in (mine, other):
        model.layers[1].up.weight.register_post_accumulate_grad_hook(clamp)
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(mine)
    expected = ReferenceAdamW(other.parameters())
    for step in range(4):
        passes(step, mine, other)
        settle(opt, expected)
    assert set(seen) == {torch.Tensor}
    assert_same(opt, mine, expected, other)


@OVERLAPS
def test_optimizer_hooks_and_a_step_from_another_thread(overlap):
    mine, opt, other, expected = pair(overlap)
    calls = []
    opt.register_step_pre_hook(lambda *_: calls.append("pre"))
    opt.register_step_post_hook(lambda *_: calls.append("post"))
    for step in range(4):
        passes(step, other)
        if step % 2:
            worker = threading.Thread(target=passes, args=(step, mine))
            worker.start()
            worker.join(60)
            assert not worker.is_alive()
        else:
            passes(step, mine)
        worker = threading.Thread(target=opt.step)
        worker.start()
        worker.join(60)
        assert not worker.is_alive()
        expected.step()
        opt.zero_grad()
        expected.zero_grad()
    assert calls == ["pre", "post"] * 4
    assert_same(opt, mine, expected, other)


# -- Orders ---------------------------------------------------------------------------------------

ORDERS = 200 if os.environ.get("HOCKET_TEST_FULL") else 12


def test_random_delays_at_every_hand_over_and_random_loops(monkeypatch):
    """The engine's calls are delayed at random, from a seed. The program draws its actions at
    random, too: more passes, discarded gradients, clipping, changed learning rates."""
    dice = random.Random(0)
    call = hocket._abi.Engine._call

    def late(engine, name, *arguments):
        if dice.random() < 0.3:
            time.sleep(dice.random() ** 4 * 2e-3)
        status = call(engine, name, *arguments)
        if dice.random() < 0.1:
            time.sleep(dice.random() ** 4 * 1e-3)
        return status

    monkeypatch.setattr(hocket._abi.Engine, "_call", late)
    for order in range(ORDERS):
        dice.seed(order)
        name, overlap = dice.choice(["gpt", "llama"]), dice.choice(["both", "both", "forward"])
        max_norm = dice.choice([None, 10.5 if name == "gpt" else 1.38, 0.1])
        mine, opt, other, expected = pair(overlap, name, max_norm=max_norm)
        number = 0
        for _ in range(4):
            if dice.random() < 0.2:
                passes(number, mine)
                opt.zero_grad(set_to_none=dice.random() < 0.5)
                opt.zero_grad()
            for _ in range(dice.choice([1, 1, 1, 2, 3])):
                passes(number, mine, other)
                number += 1
            if dice.random() < 0.5:
                lr, group = dice.random() * 4e-3, dice.randrange(2)
                for o in (opt, expected):
                    o.param_groups[group]["lr"] = lr
            settle(opt, expected)
            if dice.random() < 0.3:
                opt.synchronize()
        assert_same(opt, mine, expected, other)
