# SPDX-License-Identifier: Apache-2.0
"""The container of docs/integrations.md for torchtitan. Its Trainer needs a GPU; here the container
trains a model by itself, with torchtitan's schedule and its form of checkpoints."""

import copy

import pytest
import torch
from torch import nn

from hocket import attach
from pages import code

optimizer = pytest.importorskip("torchtitan.components.optimizer", reason="no torchtitan here")
pytestmark = pytest.mark.full


def trained(overlap, first=0, saved=None):
    """Eight steps. Returns the checksum, and what was saved after the fourth."""
    made = {}
    exec(code("torchtitan"), made)
    kinds = (("bias|norm", 0.0), (".*", 0.1))
    config = made["HocketContainer"].Config(
        param_groups=[
            optimizer.ParamGroupConfig(
                pattern=pattern,
                optimizer_name="AdamW",
                optimizer_kwargs={"lr": 1e-2, "weight_decay": decay},
            )
            for pattern, decay in kinds
        ],
        optimizer_factory_kwargs_by_name={"AdamW": {"overlap": overlap, "cpu_threads": 1}},
    )
    torch.manual_seed(1)
    data = torch.randn(8, 4, 16, dtype=torch.bfloat16)
    layers = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 16)
    model = nn.Sequential(*layers).to(torch.bfloat16)
    container = config.build(model_parts=[model])
    schedule = optimizer.LRSchedulersContainer.Config(warmup_steps=2).build(
        optimizers=container, training_steps=8
    )
    if saved is not None:
        for part, state in zip((model, container, schedule), saved):
            part.load_state_dict(state)
    for number in range(first, 8):
        container.zero_grad()
        model(data[number]).float().square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        container.step()
        schedule.step()
        if number == 3:
            saved = [copy.deepcopy(p.state_dict()) for p in (model, container, schedule)]
    (opt,) = container
    return opt.checksum(), saved


def test_the_container_has_the_same_bits_and_resumes(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)
    sums = set()
    for overlap in ("none", "forward", "both"):
        whole, saved = trained(overlap)
        resumed, _ = trained(overlap, 4, saved)
        sums |= {whole, resumed}
        assert "state.0.weight.master_weight" in saved[1]
    assert len(sums) == 1
