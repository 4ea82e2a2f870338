# SPDX-License-Identifier: Apache-2.0
"""Memory does not grow over 200 steps."""

import gc
import resource

import pytest
import torch
from torch import nn

import hocket
from hocket import attach

WIDTH = 256
AT = (20, 110, 200)
ALLOWED = 3 << 20
"""Growth in bytes from step 110 to 200. A leak of one weight's gradient per step (128 KiB) would be
11 MiB."""


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.full
@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_200_steps_leak_nothing(overlap, monkeypatch):
    """Pinned memory and device memory are equal at steps 20, 110 and 200, and resident memory,
    which includes both on the host backend, hardly grows."""
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).to(torch.bfloat16)
    opt = hocket.AdamW(model.parameters(), overlap=overlap, max_norm=1.0, cpu_threads=2)
    opt.attach(model)
    found = []
    for step in range(1, AT[-1] + 1):
        for _ in range(2):  # accumulation
            model(torch.randn(4, WIDTH, dtype=torch.bfloat16)).square().mean().backward()
        opt.step()
        opt.zero_grad()
        if step in AT:
            opt.synchronize()
            gc.collect()
            memory = opt.stats()["memory"]
            found.append((resident(), memory["host_pinned_bytes"], memory["device_bytes"]))
            print(f"{overlap}, step {step}: host, pinned, device", found[-1])
    assert found[0][1:] == found[1][1:] == found[2][1:]
    assert found[2][0] - found[1][0] < ALLOWED, found
    assert found[2][1] >= 12 * sum(p.numel() for p in model.parameters())
