# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer: it passes closures, clips, accumulates, saves, and rebuilds mappings of
state."""

import pytest
import torch
from torch import nn

import hocket
from hocket import attach
from hocket.checkpoint import StateView

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
pytestmark = pytest.mark.full


class Module(lightning.LightningModule):
    def __init__(self, overlap, dtype, manual=False):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)).to(dtype)
        self.overlap, self.automatic_optimization = overlap, not manual

    def training_step(self, batch, number):
        loss = self.net(batch[0].to(self.net[0].weight.dtype)).pow(2).mean()
        if not self.automatic_optimization:
            opt = self.optimizers()
            self.manual_backward(loss)
            opt.step()
            self.lr_schedulers().step()
            opt.zero_grad()
        return loss

    def configure_optimizers(self):
        attached = self.overlap != "drop-in"
        self.optimizer = hocket.AdamW(
            self.parameters(), lr=1e-2, cpu_threads=1, overlap=self.overlap if attached else "none"
        )
        if attached:
            self.optimizer.attach(self)
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        return [self.optimizer], [{"scheduler": schedule, "interval": "step"}]


def trained(overlap, folder, epochs=2, dtype=torch.float32, resume=None, manual=False, **options):
    """The checksum of the state after some epochs, and the file of the first one."""
    torch.manual_seed(2)
    data = torch.utils.data.TensorDataset(10 * torch.randn(40, 16))
    module = Module(overlap, dtype, manual)
    saving = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        logger=False,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        **options,
    )
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer.fit(module, loader, ckpt_path=resume)
    optimizer = module.optimizer
    # The teardown has moved all state, and left views.
    assert {type(state) for state in optimizer.state.values()} == {StateView}
    steps = 10 * epochs // options.get("accumulate_grad_batches", 1)
    assert all(int(state["step"]) == steps for state in optimizer.state.values())
    return optimizer.checksum(), folder / "epoch=0.ckpt"


@pytest.fixture(autouse=True)
def _small_tensors_have_hooks(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


CLIPS = [
    {},
    {"gradient_clip_val": 0.5},
    {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
]


@pytest.mark.parametrize("clip", CLIPS, ids=["unclipped", "norm", "value"])
@pytest.mark.parametrize(
    "precision, dtype",
    [
        ("32-true", torch.float32),
        ("bf16-true", torch.bfloat16),
        ("bf16-mixed", torch.float32),
    ],
)
@pytest.mark.filterwarnings("ignore:hocket. aten.clamp_")
def test_every_way_of_attaching_ends_with_the_same_state(precision, dtype, clip, tmp_path):
    options = {"precision": precision, "dtype": dtype, "accumulate_grad_batches": 2, **clip}
    sums = {}
    for overlap in ("drop-in", "none", "forward", "both"):
        folder = tmp_path / overlap
        sums[overlap], saved = trained(overlap, folder, **options)
        resumed, _ = trained(overlap, folder / "again", resume=saved, **options)
        assert resumed == sums[overlap], overlap
    if clip == CLIPS[1]:
        del sums["drop-in"]  # the norm is rounded to the gradients' type
    assert len(set(sums.values())) == 1


def test_manual_optimization_is_the_same(tmp_path):
    automatic, _ = trained("both", tmp_path / "automatic")
    assert trained("both", tmp_path / "manual", manual=True)[0] == automatic
