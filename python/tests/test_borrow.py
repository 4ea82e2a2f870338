# SPDX-License-Identifier: Apache-2.0
"""borrow: weights wait for the norm in memory that backward has freed. Results have the same
bits and the peak of allocated memory is the same as without. If memory cannot be borrowed, training
continues without."""

import json
import time

import pytest
import torch

import hocket
from accounts import Accounts
from hocket import _abi, attach, borrow, plan
from hocket.errors import NO, HocketError
from models import VOCABULARY, make, two_groups
from reference import ReferenceAdamW, assert_same

LENGTH = 12


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)
    monkeypatch.setattr(borrow, "BLOCK", 1)


def batch(number, rows=16):
    generator = torch.Generator().manual_seed(100 + number)
    return torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator)


class Run:
    """A model trained with hocket, whose allocations are counted, and a copy trained with the
    reference."""

    def __init__(self, monkeypatch, lends=True, refuse=None, plan=None, **options):
        self.accounts = Accounts(refuse)
        monkeypatch.setattr(borrow, "memory_of", lambda device: self.accounts)
        self.model, self.other = make("gpt", layers=3), make("gpt", layers=3)
        self.opt = hocket.AdamW(
            two_groups(self.model),
            lr=2e-3,
            cpu_threads=2,
            overlap="both",
            borrow=lends,
            plan=plan,
            **options,
        )
        self.opt.attach(self.model)
        self.reference = ReferenceAdamW(two_groups(self.other), lr=2e-3, **options)
        over = attach.Attachment.backward_over

        def unhurried(attachment):  # a GPU takes longer than the update of a few tensors
            over(attachment)
            engine, end = attachment.optimizer().binding().engine, time.monotonic() + 2
            while engine.lending().lent > engine.lending().used == 0 and time.monotonic() < end:
                time.sleep(0.001)

        monkeypatch.setattr(attach.Attachment, "backward_over", unhurried)

    def passes(self, number, rows=16, count=1):
        for _ in range(count):
            with self.accounts:
                self.model(batch(number, rows)).backward()
            self.other(batch(number, rows)).backward()

    def settle(self):
        self.opt.step()
        self.accounts.now()
        self.reference.step()
        self.opt.zero_grad()
        self.reference.zero_grad()

    def steps(self, *numbers):
        for number in numbers:
            self.passes(number)
            self.settle()
        return self

    def lends(self):
        """Whether memory is borrowed now."""
        return bool(self.opt.borrower._blocks)

    def check(self):
        """Asserts that nothing is borrowed and that all bits are equal; returns stats()."""
        assert not self.opt.borrower or not self.lends()
        assert_same(self.opt, self.model, self.reference, self.other)
        return self.opt.stats()


def test_weights_wait_in_borrowed_memory_without_a_higher_peak(monkeypatch):
    plain = Run(monkeypatch, lends=False).steps(*range(6))
    lending = Run(monkeypatch).steps(*range(6))
    assert "borrowed" not in plain.check() and plain.check()["memory"]["lent_bytes"] == 0
    found = lending.check()
    assert found["borrowed"]["peak_bytes"] > 0 and found["borrowed"]["off"] is None
    assert found["memory"]["lent_used_bytes"] > 0
    assert found["borrowed"]["peak_bytes"] == found["memory"]["lent_bytes"]
    assert lending.accounts.most == plain.accounts.most


@pytest.mark.parametrize("limit", [1e-3, 10.5], ids=["always", "sometimes"])
def test_clipped_steps(monkeypatch, limit):
    run = Run(monkeypatch, max_norm=limit).steps(*range(7))
    found = run.check()
    assert limit < 1 or found["borrowed"]["peak_bytes"] > 0


def test_several_backwards_a_step(monkeypatch):
    """Nothing is borrowed before the last backward pass of an iteration. If there is one pass more
    than in the measured iteration, all is given back when its forward begins."""
    run = Run(monkeypatch)
    for number, count in enumerate((2, 2, 2, 2, 3, 2, 2, 1, 2)):
        run.passes(number, count=count)
        run.settle()
    most = run.accounts.most
    found = run.check()["borrowed"]
    assert found["peak_bytes"] > 0 and found["given_back_early"] > 0
    assert most == found["allocated_peak_bytes"]


def test_discarded_gradients_and_failed_steps_give_memory_back(monkeypatch):
    run = Run(monkeypatch).steps(0, 1)
    for number, forget in enumerate(
        (
            run.opt.zero_grad,
            lambda: run.opt.step(lambda: 0.0),
            lambda: run.model(batch(0)),
            run.opt.synchronize,
        )
    ):
        run.steps(2 + 3 * number, 3 + 3 * number)
        run.passes(4 + 3 * number)
        assert run.lends()
        if number == 1:
            with pytest.raises(hocket.HocketUsageError):
                forget()
        else:
            forget()
        assert not run.lends()
        if number == 0:
            run.reference.zero_grad()
        else:
            run.settle()
    run.check()


def test_larger_batches_are_measured_again(monkeypatch):
    run = Run(monkeypatch).steps(0, 1, 2)
    assert run.opt.stats()["borrowed"]["peak_bytes"] > 0
    run.passes(3, rows=8)  # a smaller batch fits the measurement
    assert run.lends()
    run.settle()
    run.passes(4, rows=40)
    assert not run.lends() and run.opt.stats()["borrowed"]["given_back_early"] == 1
    run.settle()
    run.passes(5, rows=40)
    assert not run.lends()
    run.settle()
    run.passes(6, rows=40)
    assert run.lends()
    run.settle()
    assert run.check()["borrowed"]["allocated_peak_bytes"] == run.accounts.most


def test_memory_that_cannot_be_allocated(monkeypatch):
    run = Run(monkeypatch, refuse=3).steps(*range(6))
    found = run.check()
    assert found["borrowed"]["refused"] == 1 and run.accounts.calls > 3
    free = Run(monkeypatch).steps(*range(6)).check()["borrowed"]["peak_bytes"]
    assert 0 < found["borrowed"]["peak_bytes"] < free


def plans(monkeypatch):
    """Makes plan="auto" choose the policy zero-offload, in which subgroups run ahead of the norm.
    Returns a list to which each plan is appended."""
    made = []
    ask, run = plan._ask, plan.run

    def asked(*arguments):
        answer = ask(*arguments)
        made.append(json.loads(answer[0]))
        return answer

    monkeypatch.setenv("HOCKET_MACHINE", "h200-16c")
    monkeypatch.setattr(plan, "run", lambda args: run([*args, "--policy", "zero-offload"]))
    monkeypatch.setattr(plan, "_ask", asked)
    return made


def test_a_plan_says_what_is_borrowed(monkeypatch):
    """plan="auto" with borrow=True: the same bits and peak, and no more is borrowed after a block
    than the plan says."""
    made, sizes = plans(monkeypatch), []
    plain = Run(monkeypatch, lends=False, plan="auto").steps(*range(4))
    run = Run(monkeypatch, plan="auto")
    event = borrow.Borrower.event

    def noted(borrower, left):
        event(borrower, left)
        sizes.append((borrower._sizes, borrower.limits[left] if left >= 0 else 0))

    monkeypatch.setattr(borrow.Borrower, "event", noted)
    found = run.steps(*range(4)).check()
    after = made[1]["lent_bytes_after_block"]
    assert "lent_bytes_after_block" not in made[0] and "borrowed" not in plain.check()
    assert len(after) == found["python"]["blocks"] and after == sorted(after, reverse=True)
    assert plain.accounts.most == run.accounts.most
    assert found["memory"]["lent_used_bytes"] > 0 and found["borrowed"]["off"] is None
    assert (
        all(size <= limit for size, limit in sizes) and found["borrowed"]["given_back_early"] == 0
    )
    assert max(sizes)[0] == found["borrowed"]["peak_bytes"] <= after[0]
    words = run.opt.explain()
    assert "in memory of at most" in words and f"at most {after[0]:,} bytes as planned" in words
    assert "has freed" not in plain.opt.explain()


def test_a_plan_file_says_what_is_borrowed(monkeypatch, tmp_path):
    """borrow=None does as the file says, False borrows nothing; a smaller limit is respected."""
    made = plans(monkeypatch)
    Run(monkeypatch, plan="auto").steps(0).check()
    after = made[0]["lent_bytes_after_block"]
    for lends, factor in ((None, 1), (None, 0), (False, 1)):
        made[0]["lent_bytes_after_block"] = [factor * size for size in after]
        (tmp_path / "plan.json").write_text(json.dumps(made[0]))
        found = Run(monkeypatch, lends, plan=tmp_path / "plan.json").steps(*range(3)).check()
        assert ("borrowed" in found) == (lends is None)
        assert (found["memory"]["lent_bytes"] > 0) == (lends is None and factor > 0)


def test_an_engine_that_takes_no_memory(monkeypatch):
    """If hocket_lend fails, the block is returned at once and the step is the same as without."""

    def refuse(engine, address, size, stream):
        raise HocketError("no memory has been lent", NO)

    run = Run(monkeypatch).steps(0, 1)
    monkeypatch.setattr(_abi.Engine, "lend", refuse)
    run.passes(2)
    assert not run.lends() and run.accounts.calls == 1
    run.settle()
    found = run.steps(3).check()["borrowed"]
    assert found["peak_bytes"] == 0 and found["refused"] == 2 and found["off"] is None


def test_an_allocator_that_has_to_ask_the_driver(monkeypatch):
    """Fragmented memory. First the driver has none free: less is borrowed. Then the allocator asked
    the driver for more: half is borrowed. Then it had to free its cache: nothing is borrowed."""
    run = Run(monkeypatch).steps(0, 1)
    run.accounts.free = 0
    run.steps(2)
    little = run.opt.stats()["borrowed"]["peak_bytes"]
    run.accounts.free = 1 << 30
    run.passes(3)
    most = run.opt.stats()["borrowed"]["peak_bytes"]
    assert run.lends() and most > little
    run.accounts.extra = 1
    run.settle()
    run.passes(4)
    assert run.lends() and run.opt.borrower._sizes <= most // 2
    run.accounts.retries = 1
    run.settle()
    run.steps(5, 6)
    assert run.accounts.calls and not run.lends()
    assert "free its cache" in run.check()["borrowed"]["off"]


def test_no_borrowing_on_a_cpu_and_invalid_settings():
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap="both", borrow=True)
    opt.attach(model)
    model(batch(0)).backward()
    opt.step()
    assert "borrowed" not in opt.stats()
    with pytest.raises(hocket.HocketUsageError, match="borrow='auto'"):
        hocket.AdamW(model.parameters(), borrow="auto")
