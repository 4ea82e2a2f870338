# SPDX-License-Identifier: Apache-2.0
"""Two ranks of FSDP2, each on a host of its own: a network namespace with a host name, which a
virtual cable joins. The cases are in ranks_worker.py. Needs the right to make namespaces."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

import reference
from test_ranks import WORKER, World, check

pytestmark = pytest.mark.full
CASES = (
    "attached",
    "accumulation",
    "ddp",
    "one_plan_for_all",
    "resume",
    "values_that_are_not_finite",
    "a_rank_that_fails_in_step",
)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """Two network namespaces and the cable between them, until they are closed."""

    def __init__(self):
        self.names = [f"hk{os.getpid()}{letter}" for letter in "ab"]
        self.made = []
        try:
            for name in self.names:
                ip("netns", "add", name)
                self.made.append(name)
            near, far = self.names
            ip("link", "add", near, "netns", near, "type", "veth", "peer", far, "netns", far)
            for number, name in enumerate(self.names):
                ip("-n", name, "address", "add", f"10.213.77.{number + 1}/24", "dev", name)
                for device in ("lo", name):
                    ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    def close(self):
        for name in self.made:
            ip("netns", "delete", name)

    def world(self, folder):
        """A rank on each, which meet over the network."""
        reference.library()
        return World([self._start(rank, folder) for rank in range(2)])

    def _start(self, rank, folder):
        name = self.names[rank]
        naming = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
        return subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", naming, name]
            + [sys.executable, str(WORKER), str(rank), "2", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "HOCKET_TEST_MEET": "tcp://10.213.77.1:29517",
                "GLOO_SOCKET_IFNAME": name,
                "LOCAL_WORLD_SIZE": "1",
                "OMP_NUM_THREADS": "1",
            },
        )

    def cut(self):
        ip("-n", self.names[0], "link", "set", self.names[0], "down")


@pytest.fixture(scope="module")
def hosts():
    try:
        found = Hosts()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', None) or error}")
    yield found
    found.close()


@pytest.fixture
def world(hosts, tmp_path):
    found = hosts.world(tmp_path)
    yield found
    found.close()


def test_two_hosts(world):
    for name in CASES:
        check(world.run(name), name)


def test_a_host_whose_rank_is_killed(world):
    """The other knows that rank's name, though it cannot see the process."""
    check(world.run("attached"))
    began = time.monotonic()
    left, killed = world.run("a_rank_that_is_killed does not answer")
    assert time.monotonic() - began < 60
    assert killed is None and left == "ok", left and json.loads(left)


def test_a_cable_that_is_cut(hosts, world):
    """Both end within a minute."""
    check(world.run("attached"))
    hosts.cut()
    began = time.monotonic()
    answers = world.run("attached")
    assert time.monotonic() - began < 70
    assert all(answers) and "ok" not in answers, answers
