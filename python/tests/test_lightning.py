# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer: it passes closures, clips, accumulates, and rebuilds mappings of state."""

import pytest
import torch
from torch import nn

import hocket
from hocket import attach

lightning = pytest.importorskip("lightning")


class Module(lightning.LightningModule):
    def __init__(self, overlap):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16))
        self.overlap = overlap

    def training_step(self, batch, number):
        return self.net(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        attached = self.overlap != "drop-in"
        self.optimizer = hocket.AdamW(
            self.parameters(), cpu_threads=1, overlap=self.overlap if attached else "none"
        )
        if attached:
            self.optimizer.attach(self)
        return self.optimizer


def test_every_way_of_attaching_ends_with_the_same_state(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)
    torch.manual_seed(2)
    data = torch.utils.data.TensorDataset(torch.randn(40, 16))
    sums = set()
    for overlap in ("drop-in", "none", "forward", "both"):
        module = Module(overlap)
        trainer = lightning.Trainer(
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            accelerator="cpu",
            accumulate_grad_batches=2,
        )
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
        optimizer = module.optimizer
        optimizer.synchronize()
        assert optimizer.last_step.step == 10
        assert all(type(state) is not dict for state in optimizer.state.values())
        sums.add(optimizer.checksum())
    assert len(sums) == 1
