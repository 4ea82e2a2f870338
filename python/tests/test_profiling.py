# SPDX-License-Identifier: Apache-2.0
"""Times of blocks, measured with a simulated device and clock, so that exact times are known."""

import contextlib
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hocket import HocketError, _abi, profiling
from hocket.blocks import find_blocks
from hocket.busy import BusyTeam
from hocket.describe import trace_order

PARTS = 4  # kernels of a block


class Device:
    """The host's clock and a device that works through a queue; times in seconds."""

    def __init__(self):
        self.host = self.idle = self.copying = 0.0
        self.beside_copies = 1.0
        self.slow = lambda now: 1.0

    def launch(self, host_ms, device_ms):
        for _ in range(PARTS):
            kept = self.beside_copies if self.host < self.copying else 1.0
            self.host += host_ms / PARTS / 1e3 * self.slow(self.host) / kept
            self.idle = max(self.idle, self.host) + device_ms / PARTS / 1e3

    def perf_counter(self):
        return self.host

    # profiling.Gpu
    def wait(self):
        self.host = max(self.host, self.idle)

    def now(self):
        return max(self.host, self.idle)

    def ms(self, begin, end):
        return (end - begin) * 1e3

    def pause(self, ms):
        self.idle = self.now() + ms / 1e3


class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, block):
        ctx.block = block
        block.device[0].launch(*block.forward_ms)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        ctx.block.device[0].launch(*ctx.block.backward_ms)
        return grad, grad.sum(), None


class Block(nn.Module):
    """forward_ms and backward_ms: milliseconds of the host and of the device."""

    def __init__(self, device, forward_ms, backward_ms):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.device, self.forward_ms, self.backward_ms = [device], forward_ms, backward_ms

    def forward(self, x):
        return Work.apply(x, self.weight * 1, self)


@pytest.fixture(name="device")
def _device(monkeypatch):
    device = Device()
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=device.perf_counter))
    return device


class Team:
    """Slows the host while it updates."""

    def __init__(self, device, kept, threads=4):
        self.device, self.kept, self.threads = device, kept, threads

    def update(self):
        self.device.slow = lambda now: 1 / self.kept

    def pause(self):
        self.device.slow = lambda now: 1.0


class Copies:
    """Slow the host while they run, 3 ms for each time that some are queued."""

    def __init__(self, device, kept=1.0):
        self.device, self.kept, self.sizes = device, kept, []

    def queue(self, size):
        self.sizes.append(size)
        self.device.copying = max(self.device.copying, self.device.host) + 0.003
        self.device.beside_copies = self.kept

    def wait(self):
        self.device.host = max(self.device.host, self.device.copying)


def measured(device, *times, steps=3, seconds=0.5, beside=(), beside_seconds=0.0):
    model = nn.ModuleList(Block(device, *of) for of in times)
    layers = nn.Sequential(*model)
    x = torch.ones(2, requires_grad=True)
    device.host += 1  # describing the model
    names = [name for name, _ in layers.named_parameters()]
    blocks = find_blocks(layers, names, trace_order(layers, x))
    assert len(blocks) == len(times)
    device.host = device.idle = device.copying = 0.0
    run = profiling._Run(layers, x, None, blocks)
    updates = [profiling.Update(team, copies) for team, copies in beside]
    return profiling._on_gpu(run, device, steps, seconds, updates, beside_seconds)


def longer(found, key):
    return sum(map(max, found.blocks[f"{key}_ms"], found.blocks[f"{key}_launch_ms"]))


@pytest.mark.parametrize("times", [((4, 1), (8, 2)), ((1, 5), (2, 9)), ((3, 2.9), (6, 5.9))])
def test_host_and_device_are_told_apart(device, times):
    """The host, the device, or both limit the time."""
    found = measured(device, *[times] * 4)
    for key, (launch, kernel) in zip(("forward", "backward"), times):
        # The first launch or the last kernel adds up to 7 % to the whole pass, which scales each.
        assert found.blocks[f"{key}_launch_ms"] == pytest.approx([launch] * 4, rel=0.07)
        assert found.blocks[f"{key}_ms"] == pytest.approx([kernel] * 4, rel=0.07)
        assert longer(found, key) == pytest.approx(found.quartiles[f"{key}_ms"][0], rel=0.03)


def test_blocks_that_differ(device):
    """The second block's kernels are queued while the device computes the first block."""
    found = measured(device, ((1, 6), (4, 2)), ((4, 4), (2, 7)))
    assert found.quartiles["forward_ms"][0] == pytest.approx(10, rel=0.03)
    assert found.blocks["forward_ms"] == pytest.approx([6, 4], rel=0.03)
    assert found.blocks["backward_ms"] == pytest.approx([2, 7], rel=0.03)
    assert longer(found, "backward") == pytest.approx(9, rel=0.07)


def test_a_slow_moment_of_the_host_does_not_count(device):
    """For the first two seconds the host is three times as slow."""
    device.slow = lambda now: 3.0 if now < 2 else 1.0
    found = measured(device, *[((4, 1), (8, 2))] * 4, steps=2, seconds=2)
    low, middle, high = found.quartiles["forward_ms"]
    assert (low, middle) == pytest.approx((16.25, 16.25)) and high > 24
    assert found.blocks["forward_launch_ms"] == pytest.approx([4] * 4, rel=0.03)
    assert found.blocks["backward_launch_ms"] == pytest.approx([8] * 4, rel=0.03)
    assert found.blocks["forward_ms"] == pytest.approx([1] * 4, rel=1e-6)


@pytest.mark.parametrize("kept, expected", [(0.6, 0.6), (2.0, 1.0), (0.001, 0.01)])
@pytest.mark.parametrize("times", [((4, 1), (8, 2)), ((1, 5), (2, 9))])
def test_launches_beside_a_team(device, times, kept, expected):
    """Also where the device limits: the host launches to an idle device. Other times do not
    change."""
    beside = [(Team(device, kept, 13), Copies(device)), (Team(device, 0.9, 9), Copies(device))]
    found = measured(device, *[times] * 4, beside=beside)
    assert [share["threads"] for share in found.shares] == [13, 9]
    for share, kept_there in zip(found.shares, (expected, 0.9)):
        assert share["share"] == share["quartiles"][1]
        assert share["quartiles"] == pytest.approx([kept_there] * 3, rel=0.01)
    alone = measured(device, *[times] * 4)
    for key, blocks in alone.blocks.items():
        assert found.blocks[key] == pytest.approx(blocks)
    assert found.quartiles.keys() == alone.quartiles.keys() and not alone.shares


def test_launches_beside_copies(device):
    """In an iteration all weights go in and all gradients out, here 16 bytes in eight parts. Copies
    of 3 ms end before the block's launches do: 4 ms alone, 5 beside the team, and in the first 3 ms
    one part of four takes 2.5 instead of 1.25 ms, and a second one, too."""
    copies = Copies(device, 0.5)
    found = measured(device, *[((4, 1), (4, 1))] * 4, steps=1, beside=[(Team(device, 0.8), copies)])
    assert copies.sizes == [2] * 9
    assert found.shares[0]["share"] == pytest.approx(4 / 7.5)


def test_shares_are_of_the_quick_moments_alone(device):
    """The document's launches are those of quick moments, and so is their share: of seven turns
    alone three are slow by a half; beside the team all are slow, by a quarter more."""
    team = Team(device, 1.0)
    turns = iter(range(1000))

    class Turns:
        n_blocks, bytes = 1, 2

        def observed(self, watch):
            beside = isinstance(watch, profiling.CopyWatch)
            number = next(turns) // 2
            ms = 80.0 if beside else 60.0 if number % 2 else 40.0
            return [ms], [ms]

    (forwards, backwards), shares = profiling._launches(
        Turns(), device, 7, 0.0, [profiling.Update(team, Copies(device))]
    )
    assert forwards == backwards == [40.0]
    assert shares[0]["share"] == 0.5


def test_turns_last(device):
    """At least so long as asked: single turns differ by a half on a busy host."""
    turns = []

    class Turns:
        n_blocks, bytes = 1, 2

        def observed(self, watch):
            device.host += 0.125
            turns.append(watch)
            return [1.0], [1.0]

    beside = [profiling.Update(Team(device, 0.5), Copies(device))]
    profiling._launches(Turns(), device, 2, 1.0, beside)
    assert len(turns) == 8
    profiling._launches(Turns(), device, 2, 1.0, [])
    assert len(turns) == 10


def test_the_team_is_paused_when_the_model_fails(device):
    copies = Copies(device)

    class Fails:
        n_blocks, bytes = 1, 2

        def observed(self, watch):
            if device.slow(0) != 1:
                device.copying = 7.0
                raise ValueError("no")
            return [1.0], [1.0]

    with pytest.raises(ValueError):
        profiling._launches(
            Fails(), device, 3, 0.0, [profiling.Update(Team(device, 0.5), copies)]
        )
    assert device.slow(0) == 1 and device.host == 7.0


def test_a_busy_team_updates_only_while_it_is_let():
    team = BusyTeam(300_000, 2)
    assert team.threads == 2
    team.update()
    while team.updated < 1_000_000:
        time.sleep(0.001)
    team.pause()
    before = team.updated
    time.sleep(0.01)
    assert team.updated == before
    team.close()
    with pytest.raises(HocketError, match="NULL"):
        team.update()
    with pytest.raises(HocketError, match="threads") as error:
        BusyTeam(1000, -1)
    assert error.value.code == 2


def test_no_team_without_memory_or_library(monkeypatch):
    def sizes(threads):
        with contextlib.ExitStack() as stack:
            return [team.threads for team in profiling.teams(stack, threads)]

    monkeypatch.setattr(_abi, "host_memory", lambda: 2**32 - 1)
    assert sizes(4) == []
    monkeypatch.setattr(_abi, "host_memory", lambda: 2**32)
    monkeypatch.setattr(profiling, "BUSY_ELEMENTS", 1000)
    assert sizes(4) == [4, 3] and sizes(1) == [1]
    default = sizes(None)[0]
    assert default >= 1 and sizes(default) == sizes(None)
    with pytest.raises(HocketError, match="threads"):
        sizes(-1)

    def missing():
        raise HocketError("libhocket was not found", 3)

    monkeypatch.setattr(_abi, "host_memory", missing)
    assert sizes(1) == []


def test_blocks_agree_with_whole_passes():
    # Launches of 6 ms with observers take 4.5 ms without; the whole pass takes 5 ms.
    kernels, launches = profiling.reconcile([1, 1, 1], [2, 2, 2], 5, 4.5)
    assert kernels == [1, 1, 1] and launches == pytest.approx([5 / 3] * 3)
    # The device limits: the pass takes 0.5 ms more than its blocks.
    kernels, launches = profiling.reconcile([4, 4, 2], [1, 1, 1], 10.5, 9)
    assert kernels == pytest.approx([4.2, 4.2, 2.1]) and launches == [1, 1, 1]
    # The host queues ahead: max(3, 2 x) + max(1, 2 x) = 1.03 * 4.
    kernels, launches = profiling.reconcile([3, 1], [2, 2], 4, 4)
    assert kernels == pytest.approx([3, 1]) and launches == pytest.approx([1.12, 1.12])
    # The device was faster in the whole pass.
    kernels, launches = profiling.reconcile([3, 3], [1, 1], 5, 2)
    assert kernels == pytest.approx([2.575, 2.575]) and launches == pytest.approx([0.5, 0.5])
    assert profiling.reconcile([0, 0], [0, 0], 0, 0) == ([0, 0], [0, 0])


def test_quartiles():
    assert profiling.quartiles([5.0]) == [5.0, 5.0, 5.0]
    assert profiling.quartiles([4, 1, 3, 2, 5]) == [2, 3, 4]
