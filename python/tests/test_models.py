# SPDX-License-Identifier: Apache-2.0
"""Models and loops that use their weights in unusual ways, attached with overlap."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import hocket
from hocket import HocketUsageError, attach
from models import Llama, batches, make
from reference import ReferenceAdamW, assert_same, same_bits


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


def optimizers(mine, other, overlap="forward", **options):
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap, **options)
    opt.attach(mine)
    return opt, ReferenceAdamW(other.parameters(), **options)


def run_both(mine, other, iterate, steps=5, overlap="forward", each=None, **options):
    """Trains a model, then its copy; iterate(model, step) computes a loss. The next forward follows
    the step at once, so that weights are read as early as possible."""
    opt, expected = optimizers(mine, other, overlap, **options)
    for model, o in ((mine, opt), (other, expected)):
        for step in range(steps):
            torch.manual_seed(step)
            iterate(model, step).backward()
            o.step()
            if each is not None:
                each(model, o, step)
            o.zero_grad()
    assert_same(opt, mine, expected, other)
    return opt


OVERLAPS = pytest.mark.parametrize("overlap", ["none", "forward", "both"])


class Race(nn.Module):
    """32 -> many -> 16 -> 64, with the middle layer frozen: forward begins with the weights whose
    update takes longest."""

    def __init__(self, many):
        super().__init__()
        self.first, self.frozen = nn.Linear(32, many), nn.Linear(many, 16)
        self.last = nn.Linear(16, 64)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.last(self.frozen(self.first(x).relu())).square().mean()


@pytest.mark.parametrize(
    "overlap", [pytest.param(o, marks=pytest.mark.full) for o in ("none", "forward")] + ["both"]
)
def test_race_of_a_large_layer(overlap):
    torch.manual_seed(1)
    mine = Race(65536)
    run_both(mine, copy.deepcopy(mine), lambda m, s: m(torch.randn(2, 32)), 4, overlap)


@pytest.mark.full
@OVERLAPS
def test_race_of_torchao(overlap):
    """torchao's test of offloaded optimizers: 32 -> 131072 -> 64 -> 64, the first layer frozen."""
    torch.manual_seed(1)
    mine = nn.Sequential(nn.Linear(32, 131072), nn.Linear(131072, 64), nn.Linear(64, 64))
    mine[0].requires_grad_(False)
    run_both(
        mine,
        copy.deepcopy(mine),
        lambda m, s: m(torch.randn(2, 32)).square().mean(),
        3,
        overlap,
    )


@OVERLAPS
def test_multihead_attention_never_calls_its_out_proj(overlap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(32, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x, x, x, need_weights=False)[0]
            return x.square().mean()

    torch.manual_seed(1)
    mine = Model()
    run_both(mine, copy.deepcopy(mine), lambda m, s: m(torch.randn(5, 2, 32)), 8, overlap)


@OVERLAPS
def test_modules_that_keep_lists_of_their_weights(overlap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.LSTM(32, 32, batch_first=True) for _ in range(2))
            self.rest = nn.GRU(32, 32, batch_first=True)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)[0]
            return self.rest(x)[0].square().mean()

    torch.manual_seed(1)
    mine = Model()
    run_both(mine, copy.deepcopy(mine), lambda m, s: m(torch.randn(2, 5, 32)), 8, overlap)


@OVERLAPS
def test_direct_forward_and_a_fused_loss_fire_no_hooks(overlap):
    def iterate(model, step):
        ids = batches(step + 1)[step]
        x = model.tokens.forward(ids)
        for layer in model.layers:
            x = layer.forward(x)
        logits = F.linear(model.norm.forward(x), model.head.weight).float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    run_both(make("llama"), make("llama"), iterate, 8, overlap)


@OVERLAPS
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_with_a_tied_chunked_head_and_a_shared_layer(overlap, reentrant):
    class Model(Llama):
        def __init__(self):
            super().__init__(layers=2)
            self.head.weight = self.tokens.weight
            self.layers.append(self.layers[0])

        def chunk(self, x, labels):
            return F.cross_entropy(self.head(x).float().flatten(0, 1), labels.flatten())

        def forward(self, ids):
            x = self.tokens(ids)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            x = self.norm(x)
            chunks = zip(x[:, :-1].chunk(3, 1), ids[:, 1:].chunk(3, 1))
            return sum(checkpoint(self.chunk, a, b, use_reentrant=reentrant) for a, b in chunks)

    torch.manual_seed(1)
    mine = Model().to(torch.bfloat16)
    run_both(mine, copy.deepcopy(mine), lambda m, s: m(batches(s + 1)[s]), 6, overlap)


@OVERLAPS
@pytest.mark.parametrize("which", ["optimizer", "module"])
def test_gan(overlap, which):
    def nets():
        torch.manual_seed(1)
        return nn.ModuleList(
            nn.Sequential(nn.Linear(a, 64), nn.ReLU(), nn.Linear(64, b))
            for a, b in ((16, 32), (32, 1))
        )

    pairs = []
    for kind in ("mine", "reference"):
        g, d = nets()
        if kind == "mine":
            opts = [hocket.AdamW(m.parameters(), cpu_threads=2, overlap=overlap) for m in (g, d)]
            for m, o in zip((g, d), opts):
                o.attach(m)
        else:
            opts = [ReferenceAdamW(m.parameters()) for m in (g, d)]
        pairs.append((g, d, *opts))
        for step in range(6):
            torch.manual_seed(step)
            real, noise = torch.randn(8, 32), torch.randn(8, 16)
            clear = d.zero_grad if which == "module" else opts[1].zero_grad
            clear()
            loss = F.softplus(d(g(noise).detach())).mean() + F.softplus(-d(real)).mean()
            loss.backward()
            opts[1].step()
            (g.zero_grad if which == "module" else opts[0].zero_grad)()
            F.softplus(-d(g(noise))).mean().backward()  # leaves gradients in d, too
            opts[0].step()
    (g, d, og, od), (g2, d2, rg, rd) = pairs
    assert_same(og, g, rg, g2)
    assert_same(od, d, rd, d2)


@OVERLAPS
def test_gradient_penalty_differentiates_twice(overlap):
    torch.manual_seed(1)
    mine = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))

    def iterate(model, step):
        x = torch.randn(4, 32, requires_grad=True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.mean() + (grad.norm(dim=1) - 1).square().mean()

    run_both(mine, copy.deepcopy(mine), iterate, 6, overlap)


@OVERLAPS
def test_ema_after_step_through_the_module(overlap):
    averages = {}

    def each(model, opt, step):
        if step == 0:
            averages[id(model)] = copy.deepcopy(model)
        with torch.no_grad():
            for mean, p in zip(averages[id(model)].parameters(), model.parameters()):
                mean.lerp_(p, 0.1)

    mine, other = make("gpt"), make("gpt")
    run_both(mine, other, lambda m, s: m(batches(s + 1)[s]), 6, overlap, each)
    for a, b in zip(averages[id(mine)].parameters(), averages[id(other)].parameters()):
        assert same_bits(a, b)


def test_swa_utils_average_the_new_weights():
    mine, other = make("gpt"), make("gpt")
    means = {}

    def each(model, opt, step):
        if step == 0:
            means[id(model)] = torch.optim.swa_utils.AveragedModel(model)
        means[id(model)].update_parameters(model)

    run_both(mine, other, lambda m, s: m(batches(s + 1)[s]), 6, "both", each)
    for a, b in zip(means[id(mine)].parameters(), means[id(other)].parameters()):
        assert same_bits(a, b)


@OVERLAPS
def test_retained_graph_across_a_step_is_refused_as_by_torch(overlap):
    mine = make("gpt")
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(mine)
    loss = mine(batches(1)[0])
    loss.backward(retain_graph=True)
    opt.step()
    opt.zero_grad()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    opt.zero_grad()
    mine(batches(1)[0]).backward()
    opt.step()
    opt.synchronize()


def test_retained_graph_before_the_step_adds_up():
    def iterate(model, step):
        loss = model(batches(step + 1)[step])
        loss.backward(retain_graph=True)
        return loss

    run_both(make("gpt"), make("gpt"), iterate, 4, "both")


class LoRA(nn.Module):
    """A frozen bf16 layer with an fp32 adapter, a scale in fp16 and a shift in bf16."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Linear(64, 16, bias=False), nn.Linear(16, 64, bias=False)
        self.scale = nn.Parameter(torch.ones(64, dtype=torch.float16))
        self.shift = nn.Parameter(torch.zeros(64, dtype=torch.bfloat16))

    def forward(self, x):
        y = self.base(x.bfloat16()).float() + self.b(self.a(x))
        return y * self.scale.float() + self.shift.float()


@OVERLAPS
def test_lora_with_mixed_types(overlap):
    torch.manual_seed(1)
    mine = nn.Sequential(*(LoRA() for _ in range(3)))
    run_both(
        mine,
        copy.deepcopy(mine),
        lambda m, s: m(torch.randn(4, 64)).square().mean(),
        8,
        overlap,
        max_norm=0.5,
    )


@OVERLAPS
def test_weights_written_by_the_program_are_followed(overlap):
    """The master of a written weight takes its value. Other masters keep their low bits."""

    def clamp(model, opt, step):
        with torch.no_grad():
            for p in model.parameters():
                before = p.detach().clone()
                p.clamp_(-0.05, 0.05)
                if isinstance(opt, ReferenceAdamW) and p in opt.state:
                    master = opt.state[p]["master_weight"]
                    master.copy_(torch.where(p == before, master, p.float()))

    torch.manual_seed(1)
    mine = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).to(torch.bfloat16)
    run_both(
        mine,
        copy.deepcopy(mine),
        lambda m, s: m(torch.randn(4, 64).bfloat16()).float().square().mean(),
        6,
        overlap,
        clamp,
    )


def test_weights_written_between_backward_and_step_count():
    mine, other = make("gpt"), make("gpt")
    opt, expected = optimizers(mine, other, "both")
    for step in range(4):
        for model, o in ((mine, opt), (other, expected)):
            model(batches(step + 1)[step]).backward()
            before = [p.detach().clone() for p in model.parameters()]
            with torch.no_grad():
                model.tokens.weight.mul_(0.5)
            if isinstance(o, ReferenceAdamW) and o.state:
                o.state[model.tokens.weight]["master_weight"].copy_(model.tokens.weight)
            if step == 0:
                assert not same_bits(before[0], model.tokens.weight)
            o.step()
            o.zero_grad()
    assert_same(opt, mine, expected, other)


@OVERLAPS
def test_nothing_changes_before_step(overlap):
    mine = make("gpt")
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(mine)
    for step in range(3):
        before = {n: p.detach().clone() for n, p in mine.named_parameters()}
        mine(batches(step + 1)[step]).backward()
        torch.manual_seed(step)
        assert all(same_bits(before[n], p) for n, p in mine.named_parameters())
        opt.step()
        opt.zero_grad()
        assert not same_bits(before["tokens.weight"], mine.tokens.weight)


@pytest.mark.full
@pytest.mark.parametrize("overlap", ["forward", "both"])
@pytest.mark.parametrize(
    "how",
    [
        "before",
        "before, inner",
        "in place before",
        "after",
        "in place after",
        "layers in place after",
    ],
)
def test_compiled_models(overlap, how):
    mine, other = make("llama"), make("llama")
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap)
    called = mine
    options = {"backend": "aot_eager"}
    if how == "before":
        called = torch.compile(mine, **options)
        called(batches(1)[0])
        opt.attach(called)
    elif how == "before, inner":
        mine.layers[1] = torch.compile(mine.layers[1], **options)
        called(batches(1)[0])
        opt.attach(mine)
    elif how == "in place before":
        mine.compile(**options)
        called(batches(1)[0])
        opt.attach(mine)
    else:
        opt.attach(mine)
        if how == "after":
            called = torch.compile(mine, **options)
        elif how == "in place after":
            mine.compile(**options)
        else:
            for layer in mine.layers:
                layer.compile(**options)
    expected = ReferenceAdamW(other.parameters())
    for step in range(5):
        batch = batches(step + 1)[step]
        called(batch).backward()
        for p, q in zip(mine.parameters(), other.parameters()):
            value = opt.read_gradient(p)
            q.grad = value.clone() if value is not None else None
        opt.step()
        expected.step()
        opt.zero_grad()
        with torch.no_grad():
            loss = called(batch)
        assert torch.equal(loss, called(batch).detach())
    assert_same(opt, mine, expected, other)
    torch._dynamo.reset()


@pytest.mark.full
def test_code_compiled_outside_the_model_is_right_or_refused():
    """The compiled module is not the attached one. It is compiled again, with gates, because the
    tables of parameters have changed, or else the gradients' hooks raise."""
    mine, other = make("llama"), make("llama")
    compiled = torch.compile(mine, backend="aot_eager")
    compiled(batches(1)[0]).backward()
    mine.zero_grad()
    opt, expected = optimizers(mine, other)
    try:
        for batch in batches(4):
            compiled(batch).backward()
            for p, q in zip(mine.parameters(), other.parameters()):
                q.grad = opt.read_gradient(p).clone()
            opt.step()
            expected.step()
            opt.zero_grad()
        assert_same(opt, mine, expected, other)
    except HocketUsageError as error:
        assert "before its update had arrived" in str(error)
    opt.synchronize()
    torch._dynamo.reset()


def test_use_of_tensors_kept_outside_the_model_is_refused():
    mine = make("llama")
    head = mine.head.weight
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap="forward")
    opt.attach(mine)

    def loss(ids):
        x = mine.tokens(ids)
        for layer in mine.layers:
            x = layer(x)
        return F.linear(x, head).float().square().mean() + mine.norm(x).float().mean()

    loss(batches(1)[0]).backward()
    mine.head.weight  # noqa: B018  (this lookup is gated, the next use is not)
    opt.step()
    opt.zero_grad()
    with pytest.raises(HocketUsageError, match="head.weight was used in forward before"):
        loss(batches(1)[0]).backward()
    opt.zero_grad()
    opt.synchronize()
    loss(batches(1)[0]).backward()
    opt.step()
    opt.synchronize()


def test_several_modules_in_one_optimizer():
    torch.manual_seed(1)
    both = nn.ModuleDict({"encoder": nn.Linear(64, 64), "head": nn.Linear(64, 8)})
    run_both(
        both,
        copy.deepcopy(both),
        lambda m, s: m["head"](m["encoder"](torch.randn(4, 64))).square().mean(),
        5,
        "both",
    )


def test_two_optimizers_on_one_model():
    def split(model):
        return list(model.layers.parameters()), [
            p for n, p in model.named_parameters() if not n.startswith("layers")
        ]

    mine, other = make("llama"), make("llama")
    opts = [hocket.AdamW(p, cpu_threads=2, overlap="forward") for p in split(mine)]
    for opt in opts:
        opt.attach(mine)
    expected = [ReferenceAdamW(p) for p in split(other)]
    for step in range(5):
        for model, group in ((mine, opts), (other, expected)):
            model(batches(step + 1)[step]).backward()
            for opt in group:
                opt.step()
            for opt in group:
                opt.zero_grad()
    for opt in opts:
        opt.synchronize()
    for p, q in zip(mine.parameters(), other.parameters()):
        assert same_bits(p, q)


def test_blocks_are_in_the_order_of_use():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 8)
            self.decoder = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
            self.encoder = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
            self.embed = nn.Linear(64, 64)

        def forward(self, x):
            x = self.embed(x)
            for layer in (*reversed(self.encoder), *self.decoder):
                x = layer(x)
            return self.head(x).square().mean()

    mine = Model()
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap="forward")
    opt.attach(mine)
    mine(torch.randn(2, 64)).backward()
    opt.step()
    assert opt.binding().block_names == [
        "embed",
        "encoder.1",
        "encoder.0",
        "decoder.0",
        "decoder.1",
        "head",
    ]
    assert hocket.describe(mine, torch.randn(2, 64))["tensors"][0]["name"] == "embed.weight"


def test_zero_grad_of_the_module_does_not_wait_and_readers_wait_for_what_they_read():
    mine = make("llama")
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap="forward")
    opt.attach(mine)
    mine(batches(1)[0]).backward()
    opt.step()
    waited = opt._attachment._passed
    mine.zero_grad()
    assert not waited
    next(mine.parameters())  # as model.device and model.dtype of transformers do
    assert sum(map(sum, waited.values())) == 1
    list(mine.parameters())
    assert sum(map(sum, waited.values())) == opt.binding().n_blocks
