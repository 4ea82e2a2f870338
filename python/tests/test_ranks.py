# SPDX-License-Identifier: Apache-2.0
"""Parameters that ranks share (FSDP2). The cases are in ranks_*.py; ranks on the CPU, with
gloo, run them one after the other, in processes that have torch already (forked.py)."""

import json
import pathlib
import selectors
import subprocess
import time

import pytest
from torch.distributed import fsdp

import reference
from rank_cases import rank_cases

pytestmark = pytest.mark.skipif(
    not hasattr(fsdp, "fully_shard"), reason="FSDP2 is in torch.distributed.fsdp since torch 2.6"
)
WORKER = pathlib.Path(__file__).with_name("ranks_worker.py")
DEATH = "a_rank_that_is_killed"
LIMIT_S = 600
"""After this a case has hung. The longest takes minutes with 4 ranks on two busy cores. A rank that
waits for another ends earlier, by the process group's own limit."""


class World:
    """Ranks that wait for cases."""

    def __init__(self, ranks):
        self.ranks = ranks

    @classmethod
    def of(cls, forked, size, folder):
        reference.library()  # builds it, for all of them
        return cls([forked.start(WORKER, rank, size, folder) for rank in range(size)])

    def run(self, name):
        """Answers of all ranks. One that ends, or hangs, answers None; others are ended then."""
        for rank in self.ranks:
            rank.stdin.write(name + "\n")
            rank.stdin.flush()
        answers = [None] * len(self.ranks)
        selector = selectors.DefaultSelector()
        for number, rank in enumerate(self.ranks):
            selector.register(rank.stdout, selectors.EVENT_READ, number)
        until = time.monotonic() + LIMIT_S
        while selector.get_map() and time.monotonic() < until:
            for key, _ in selector.select(timeout=1):
                answers[key.data] = key.fileobj.readline().strip() or None
                selector.unregister(key.fileobj)
        return answers

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=10)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


class Worlds:
    """One world of each size, started when first used, and anew after a failure."""

    def __init__(self, forked, folders):
        self.forked, self.folders, self.worlds = forked, folders, {}

    def run(self, size, name):
        if size not in self.worlds:
            self.worlds[size] = World.of(self.forked, size, self.folders.mktemp("ranks"))
        answers = self.worlds[size].run(name)
        if answers != ["ok"] * size:
            self.close(size)
        return answers

    def close(self, size):
        self.worlds.pop(size).close()


@pytest.fixture(scope="module")
def worlds(forked, tmp_path_factory):
    found = Worlds(forked, tmp_path_factory)
    yield found
    for size in list(found.worlds):
        found.close(size)


def runs():
    """Each case with 2 ranks and with 4; short ones with 2 are the default."""
    for kind, name in rank_cases():
        for size in (2, 4):
            left = kind == "slow" or size == 4
            yield pytest.param(name, size, marks=pytest.mark.full if left else ())


@pytest.mark.parametrize("name, size", list(runs()))
def test_ranks(worlds, name, size):
    check(worlds.run(size, name))


def check(answers, name=""):
    texts = [
        f"rank {rank}: {json.loads(answer) if answer else 'no answer'}"
        for rank, answer in enumerate(answers)
        if answer != "ok"
    ]
    assert not texts, "\n".join([name, *texts])


@pytest.mark.full
@pytest.mark.parametrize(
    "saved, kind, loaded, other",
    [
        (2, "fsdp", 1, "fsdp"),
        (1, "fsdp", 2, "fsdp"),
        (2, "fsdp", 3, "fsdp"),
        (2, "fsdp", 4, "hsdp"),
        (4, "hsdp", 3, "fsdp"),
        (4, "tp", 2, "fsdp"),
        (3, "fsdp", 4, "tp"),
    ],
)
def test_a_checkpoint_of_another_number_of_ranks(worlds, tmp_path, saved, kind, loaded, other):
    check(worlds.run(saved, f"leaves_a_checkpoint {tmp_path} {kind}"))
    check(worlds.run(loaded, f"other_ranks_go_on {tmp_path} {other}"))


def test_a_rank_that_is_killed(worlds):
    """The others end within a minute, with its name. Last, because it ends the ranks."""
    worlds.run(2, "replicated_elements_count_once")  # they have started
    began = time.monotonic()
    left, killed = worlds.run(2, f"{DEATH} has ended")
    assert time.monotonic() - began < 60
    assert killed is None and left == "ok", left and json.loads(left)
