# SPDX-License-Identifier: Apache-2.0
"""Several backwards a step, the way that each framework does it: weights and state have the bits of
a plain loop with the reference optimizer."""

import contextlib

import pytest
import torch
from torch import nn

import hocket
from hocket import _abi, attach
from models import batches, make, two_groups
from reference import assert_same
from runs import Case, reference, shape

CASE = Case("gpt", "sometimes, of three", accumulation=3, steps=8)


def data():
    return batches(CASE.steps * CASE.accumulation)


def made(overlap):
    """The case's model, its optimizer, and the schedule of the learning rate."""
    model = make(CASE.model, CASE.dtype)
    attached = overlap != "drop-in"
    opt = hocket.AdamW(
        two_groups(model),
        lr=2e-3,
        max_norm=CASE.max_norm,
        overlap=overlap if attached else "none",
        cpu_threads=2,
    )
    if attached:
        opt.attach(model)
    return model, opt, torch.optim.lr_scheduler.LambdaLR(opt, shape)


def with_accelerate(overlap, folder):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=CASE.accumulation)
    model, opt, schedule = made(overlap)
    prepared, optimizer = accelerator.prepare(model, opt)
    for batch in data():
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(batch))
            optimizer.step()
            if accelerator.sync_gradients:
                schedule.step()
            optimizer.zero_grad()
    return model, opt


def with_ddp(overlap, folder):
    """One process of a group; DDP reduces after the last backward of a step only."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model, opt, schedule = made(overlap)
        parallel = nn.parallel.DistributedDataParallel(model)
        for number, batch in enumerate(data(), start=1):
            last = number % CASE.accumulation == 0
            with contextlib.nullcontext() if last else parallel.no_sync():
                (parallel(batch) / CASE.accumulation).backward()
            if last:
                opt.step()
                schedule.step()
                opt.zero_grad()
        opt.synchronize()
    finally:
        distributed.destroy_process_group()
    return model, opt


def with_the_trainer(overlap, folder):
    # 4.46 leaves it to an own compute_loss to divide by the number of micro-steps.
    transformers = pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("accelerate")

    class Trainer(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(inputs["ids"])

        def get_train_dataloader(self):
            return torch.utils.data.DataLoader([{"ids": ids} for ids in data()], batch_size=None)

    model, opt, schedule = made(overlap)
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=CASE.steps,
        gradient_accumulation_steps=CASE.accumulation,
        max_grad_norm=0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model, args, train_dataset=data(), optimizers=(opt, schedule)).train()
    return model, opt


def with_lightning(overlap, folder):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.opt, self.schedule = made(overlap)

        def training_step(self, batch, number):
            return self.model(batch)

        def configure_optimizers(self):
            return [self.opt], [{"scheduler": self.schedule, "interval": "step"}]

    module = Module()
    trainer = lightning.Trainer(
        max_steps=CASE.steps,
        accumulate_grad_batches=CASE.accumulation,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=None))
    return module.model, module.opt


def ways():
    for run in (with_accelerate, with_the_trainer, with_lightning):
        for overlap in ("drop-in", "none", "forward", "both"):
            short = overlap == "both" and run is not with_lightning
            marks = () if short else (pytest.mark.full,)
            yield pytest.param(run, overlap, marks=marks, id=f"{run.__name__}-{overlap}")
    yield pytest.param(with_ddp, "drop-in", id="with_ddp-drop-in")


@pytest.mark.parametrize("run, overlap", list(ways()))
def test_the_bits_are_those_of_a_plain_loop(run, overlap, monkeypatch, tmp_path):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)
    other, expected, _, norms = reference(CASE)
    assert min(norms) < CASE.max_norm < max(norms)
    model, opt = run(overlap, tmp_path)
    assert opt.last_step.step == CASE.steps and opt.grad_norm == norms[-1]
    assert_same(opt, model, expected, other)


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
@pytest.mark.parametrize("large", [False, True])
def test_small_gradients_add_in_fp32_too(overlap, large, monkeypatch):
    """autograd would add them in their own type, if they were left to step()."""
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1 << 15)
    torch.manual_seed(1)
    layers = {"small": nn.Linear(64, 64, bias=False)}
    if large:
        layers["large"] = nn.Linear(200, 200, bias=False)
    model = nn.ModuleDict(layers).bfloat16()
    opt = hocket.AdamW(
        model.parameters(), cpu_threads=1, overlap=overlap, accumulate=torch.float32
    )
    opt.attach(model)
    weight, exact = model["small"].weight, torch.zeros(64, 64)
    for seed in range(5):
        torch.manual_seed(seed)
        loss = model["small"](torch.randn(8, 64).bfloat16()).float().square().mean()
        (grad,) = torch.autograd.grad(loss, weight, retain_graph=True)
        exact += grad.float()
        if large:
            loss = loss + model["large"](torch.randn(2, 200).bfloat16()).float().square().mean()
        loss.backward()
    opt.step()
    opt.synchronize()
    assert torch.allclose(opt.state[weight]["exp_avg"], 0.1 * exact, rtol=1e-5, atol=0)


class Reusing(torch.autograd.Function):
    """A matrix product that writes each gradient of a weight to the same memory."""

    @staticmethod
    def forward(ctx, x, weight, buffer):
        ctx.save_for_backward(x, weight)
        ctx.buffer = buffer
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.buffer.copy_(grad.t() @ x)
        return grad @ weight, ctx.buffer, None


class Layer(nn.Module):
    def __init__(self, buffer):
        super().__init__()
        self.buffer = buffer
        self.weights = nn.ParameterList(torch.randn(16, 16) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x):
        for weight in self.weights:
            x = x @ weight if self.buffer is None else Reusing.apply(x, weight, self.buffer)
        return x + self.bias


def layers(buffer=None):
    torch.manual_seed(3)
    return nn.ModuleDict({"layers": nn.ModuleList(Layer(buffer) for _ in range(4))})


def loss(model, seed):
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(seed))
    for layer in model["layers"]:
        x = torch.tanh(layer(x))
    return x.square().sum()


def attached_to(model, monkeypatch):
    """Weights have hooks, biases have none."""
    monkeypatch.setattr(attach, "HOOK_NUMEL", 100)
    opt = hocket.AdamW(model.parameters(), lr=1e-2, overlap="both", cpu_threads=2)
    opt.attach(model)
    loss(model, 0).backward()
    opt.step()
    opt.zero_grad()
    return opt


def test_gradients_of_a_block_leave_by_one_call(monkeypatch):
    """In the first backward of a step and in later ones; without small tensors, which leave with
    the block's in later backwards, and when the first is over."""
    calls = []
    plain = _abi.Engine.gradient_list

    def gradient_list(engine, pairs, n, stream):
        calls.append(sum(numel > 100 for numel in (sizes[number] for number in pairs[: 2 * n : 2])))
        return plain(engine, pairs, n, stream)

    model = layers()
    opt = attached_to(model, monkeypatch)
    sizes = [param.numel() for param in opt.binding().params]
    monkeypatch.setattr(_abi.Engine, "gradient_list", gradient_list)
    for seed in range(3):
        calls.clear()
        loss(model, seed).backward()
        assert [n for n in calls if n] == [3] * len(model["layers"])
    monkeypatch.setattr(attach, "TOGETHER_BYTES", 2 * 16 * 16 * 4)
    calls.clear()
    loss(model, 3).backward()
    assert [n for n in calls if n] == [2, 1] * len(model["layers"])
    opt.step()


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_gradients_that_wait_are_those_of_torch(reused, fails, monkeypatch):
    """Also where the gradients of a layer use one memory, one after the other, and where backward
    fails while some wait."""
    model, plain = (layers(torch.empty(16, 16) if reused else None) for _ in range(2))
    opt = attached_to(model, monkeypatch)
    opt.synchronize()
    plain.load_state_dict(model.state_dict())
    for seed in range(3):
        for one in (plain, model):
            if fails and seed == 2:
                one["layers"][1].weights[1].register_hook(lambda grad: 1 / 0)
            raises = pytest.raises(ZeroDivisionError) if fails and seed == 2 else None
            with raises or contextlib.nullcontext():
                loss(one, seed).backward()
        for param, other in zip(model.parameters(), plain.parameters()):
            assert torch.equal(opt.read_gradient(param), other.grad)
    opt.zero_grad()
    assert all(param.grad is None for param in model.parameters())


def test_gradients_that_wait_are_forgotten(monkeypatch):
    """A backward fails while some wait; zero_grad() forgets these too."""
    model = layers()
    opt = attached_to(model, monkeypatch)
    loss(model, 0).backward()
    hook = model["layers"][1].weights[0].register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss(model, 1).backward()
    hook.remove()
    opt.zero_grad()
    loss(model, 2).backward()
    again = layers()
    again.load_state_dict(model.state_dict())
    loss(again, 2).backward()
    for param, other in zip(model.parameters(), again.parameters()):
        assert torch.equal(opt.read_gradient(param), other.grad)
