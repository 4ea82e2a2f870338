# SPDX-License-Identifier: Apache-2.0
"""Gradients between backward and step: handles, clipping, GradScaler, zero_grad."""

import copy
import gc

import pytest
import torch
from torch import nn

import hocket
from hocket import GradientHandle, HocketUsageError, attach
from models import batches, make
from reference import ReferenceAdamW, assert_same, same_bits


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)


def pair(model="gpt", dtype=torch.bfloat16, overlap="forward", attached=True, **options):
    mine, other = make(model, dtype), make(model, dtype)
    opt = hocket.AdamW(
        mine.parameters(), cpu_threads=2, overlap=overlap if attached else "none", **options
    )
    if attached:
        opt.attach(mine)
    return mine, opt, other, ReferenceAdamW(other.parameters())


def backward(*models, batch=0):
    for model in models:
        model(batches(batch + 1)[batch]).backward()


def handles(model):
    return {n: p for n, p in model.named_parameters() if isinstance(p.grad, GradientHandle)}


def test_large_gradients_are_handed_over_and_handles_have_their_values():
    mine, opt, other, _ = pair()
    backward(mine, other)
    held = handles(mine)
    assert {"tokens.weight", "layers.0.up.weight", "norm.weight"} <= set(held)
    expected = dict(other.named_parameters())
    for name, p in held.items():
        assert p.grad.shape == p.shape and p.grad.dtype == p.dtype and p.grad.device == p.device
        assert same_bits(opt.read_gradient(p), expected[name].grad)
        norm = expected[name].grad.double().norm()
        assert torch.allclose(p.grad.norm().double(), norm, rtol=1e-6)
        assert torch.allclose(torch.linalg.vector_norm(p.grad.detach()).double(), norm, rtol=1e-6)
        assert torch.allclose(p.grad.data.norm(2).double(), norm, rtol=1e-6)
        assert bool(torch.isfinite(p.grad).all()) and not bool(p.grad.isnan().any())
    assert "held" in repr(held["tokens.weight"].grad)


READERS = {
    "abs": lambda g: g.abs(),
    "add": lambda g: g + 1,
    "add_ to a tensor": lambda g: torch.zeros_like(g).add_(g, alpha=0.5),
    "clone": lambda g: g.clone(),
    "float": lambda g: g.float().cpu(),
    "infinity norm": lambda g: g.norm(float("inf")),
    "1-norm": lambda g: torch.linalg.vector_norm(g, 1),
    "item": lambda g: torch.tensor(g.sum().item()),
    "numpy": lambda g: torch.from_numpy(g.float().numpy()),
    "tolist": lambda g: torch.tensor(g.tolist()),
    "norm of rows": lambda g: torch.linalg.vector_norm(g, dim=[0]),
    "product of two": lambda g: g * g,
    "histogram": lambda g: torch.histc(g.float(), 16),
    "flat": lambda g: g.view(-1).max(),
    "rows": lambda g: g[0, 1:5].float().mean(),
    "deepcopy": lambda g: copy.deepcopy(g),
    "equal": lambda g: (g == g.clone()).float(),
}


@pytest.mark.parametrize("name", READERS)
def test_operations_that_need_the_values_read_them_and_warn_once(name):
    mine, opt, other, expected = pair()
    backward(mine, other)
    with pytest.warns(UserWarning, match="reads the gradient of .*tokens.weight") as caught:
        for _ in range(2):
            found = READERS[name](mine.tokens.weight.grad)
            mine.tokens.weight.grad.relu()
    assert len(caught) == 1
    assert type(found) is torch.Tensor
    assert same_bits(found, READERS[name](other.tokens.weight.grad))
    opt.step()
    expected.step()
    assert_same(opt, mine, expected, other)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("overlap", ["none", "both"])
def test_moving_a_module_to_where_it_is_reads_no_gradient(overlap):
    """module.to() assigns p.grad.data; Lightning does so after the last step."""
    mine, opt, other, expected = pair(overlap=overlap)
    for step in range(2):
        backward(mine, other, batch=step)
        mine.to("cpu")
        assert isinstance(mine.tokens.weight.grad, GradientHandle)
        assert same_bits(opt.read_gradient(mine.tokens.weight), other.tokens.weight.grad)
        opt.step()
        expected.step()
        mine.to("cpu")
        opt.zero_grad()
        expected.zero_grad()
    assert_same(opt, mine, expected, other)
    backward(mine)
    del opt
    gc.collect()
    mine.to("cpu")


WRITERS = {
    "clamp_": lambda g: g.clamp_(-1e-3, 1e-3),
    "add_ of itself": lambda g: g.add_(g.clone(), alpha=0.25),
    "mul_ by a tensor": lambda g: g.mul_(torch.linspace(0, 1, g.numel()).view(g.shape).to(g)),
    "copy_": lambda g: g.copy_(torch.ones(g.shape)),
    "add_ of another type": lambda g: g.add_(torch.full(g.shape, 1e-3, dtype=torch.float64)),
    "data": lambda g: setattr(g, "data", torch.full(g.shape[::-1], 0.01).t().to(g)),
    "data, of itself": lambda g: setattr(g, "data", g * 0.5),
    "item assignment": lambda g: g.__setitem__(0, 0.5),
    "mul_, then nan_to_num_": lambda g: g.mul_(0.3).nan_to_num_(),
    "zero_, then fill_": lambda g: (g.zero_(), g.fill_(0.01)),
}


@pytest.mark.filterwarnings("ignore:hocket.*reads the gradient")
@pytest.mark.parametrize("overlap", ["none", "both"])
@pytest.mark.parametrize("name", WRITERS)
def test_operations_in_place_change_what_the_engine_holds(name, overlap):
    mine, opt, other, expected = pair(overlap=overlap)
    for step in range(3):
        backward(mine, other, batch=step)
        with torch.no_grad():
            for model in (mine, other):
                WRITERS[name](model.tokens.weight.grad)
        assert isinstance(mine.tokens.weight.grad, GradientHandle)
        opt.step()
        expected.step()
        opt.zero_grad()
        expected.zero_grad()
    assert_same(opt, mine, expected, other)


@pytest.mark.filterwarnings("ignore:hocket.*reads the gradient")
@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("how", ["value", "infinity"])
def test_torch_s_clipping_by_value_and_by_the_largest_value(how, foreach):
    mine, opt, other, expected = pair(overlap="both")
    for step in range(3):
        backward(mine, other, batch=step)
        for model in (mine, other):
            if how == "value":
                nn.utils.clip_grad_value_(model.parameters(), 1e-3, foreach=foreach)
                continue
            norm = nn.utils.clip_grad_norm_(
                model.parameters(), 1e-2, norm_type=float("inf"), foreach=foreach
            )
            if model is mine:
                largest = norm
        if how == "infinity":
            assert same_bits(norm, largest)
            # A handle's factor is applied in fp32 by the update, torch's to the gradient's type.
            for p, q in zip(mine.parameters(), other.parameters()):
                if q.grad is not None:
                    assert torch.allclose(opt.read_gradient(p), q.grad, rtol=1e-2)
            opt.zero_grad()
            expected.zero_grad()
            continue
        opt.step()
        expected.step()
        opt.zero_grad()
        expected.zero_grad()
    if how == "value":
        assert_same(opt, mine, expected, other)


@pytest.mark.filterwarnings("ignore:hocket.*reads the gradient")
def test_a_view_of_a_handle_cannot_be_written():
    mine, opt, other, expected = pair()
    backward(mine, other)
    grad = mine.tokens.weight.grad
    for write in (
        lambda: grad.view(-1).mul_(2),
        lambda: grad[0].zero_(),
        lambda: grad.t()[0].__setitem__(0, 1.0),
        lambda: grad.view(-1)[3:].data.add_(1),
        lambda: grad.view(-1)[2:4].clamp_(0, 1),
        lambda: torch.add(torch.ones(()), 1, out=grad.view(-1)[:1]),
    ):
        with pytest.raises(HocketUsageError, match="writes to a view of a gradient.*copy"):
            write()
    with pytest.raises(HocketUsageError, match="tokens.weight.*cannot give it shape"):
        grad.t_()
    for data in (torch.zeros(3).to(grad), torch.zeros(grad.shape, dtype=torch.float64)):
        with pytest.raises(HocketUsageError, match="p.grad.data of shape .*: set p.grad instead"):
            grad.data = data
    opt.step()
    expected.step()
    assert_same(opt, mine, expected, other)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_torch_s_clipping_works_on_handles(foreach):
    mine, opt, other, expected = pair()
    for step in range(4):
        backward(mine, other, batch=step)
        norm = torch.nn.utils.clip_grad_norm_(mine.parameters(), 2.0, foreach=foreach)
        exact = ReferenceAdamW._norm([p.grad for p in other.parameters() if p.grad is not None])
        assert abs(float(norm) - exact) < 5e-3 * exact
        coefficient = min(1.0, float(torch.tensor(2.0) / (norm + 1e-6)))
        for p, q in zip(mine.parameters(), other.parameters()):
            if isinstance(p.grad, GradientHandle):
                assert torch.allclose(
                    opt.read_gradient(p).float(), q.grad.float() * coefficient, rtol=1e-2
                )
        opt.step()
        opt.zero_grad()
        expected.zero_grad()
        assert 1.9 < opt.grad_norm < 2.1
        for p, q in zip(mine.parameters(), other.parameters()):
            q.data.copy_(p.detach())


def test_clipping_all_gradients_is_folded_into_the_update(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1)
    mine, opt, other, expected = pair()
    for step in range(5):
        backward(mine, other, batch=step)
        norm = torch.nn.utils.clip_grad_norm_(mine.parameters(), 2.0)
        expected.factor = float(torch.clamp(2.0 / (norm + 1e-6), max=1.0))
        opt.step()
        expected.step()
        assert_same(opt, mine, expected, other)
        opt.zero_grad()
        expected.zero_grad()


def test_clipping_a_part_multiplies_that_part_as_torch_does(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1)
    mine, opt, other, expected = pair()
    backward(mine, other)
    with torch.no_grad():
        for p in mine.layers.parameters():
            p.grad.mul_(0.37)
        for p in other.layers.parameters():
            p.grad.mul_(0.37)
    opt.step()
    expected.step()
    assert_same(opt, mine, expected, other)


def test_dividing_gradients_and_adding_again_is_what_autograd_does(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1)
    mine, opt, other, expected = pair()
    for model in (mine, other):
        backward(model)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(0.5)
        backward(model, batch=1)
    opt.step()
    expected.step()
    assert_same(opt, mine, expected, other)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("which", ["optimizer", "module"])
@pytest.mark.parametrize("overlap", ["none", "both"])
def test_zero_grad_between_backward_passes_discards_gradients(which, set_to_none, overlap):
    mine, opt, other, expected = pair(overlap=overlap)
    for step in range(3):
        backward(mine, batch=7)
        (opt if which == "optimizer" else mine).zero_grad(set_to_none=set_to_none)
        backward(mine, other, batch=step)
        opt.step()
        expected.step()
        assert_same(opt, mine, expected, other)
        mine.zero_grad(set_to_none=set_to_none)
        expected.zero_grad()


def test_zeros_are_a_gradient_but_none_is_not():
    mine, opt, other, expected = pair()
    for model in (mine, other):
        backward(model)
    opt.step()
    expected.step()
    for o in (opt, expected):
        o.zero_grad()
    backward(mine, other)
    mine.zero_grad(set_to_none=False)
    mine.layers[0].zero_grad(set_to_none=True)
    for p in other.parameters():
        p.grad = torch.zeros_like(p) if p.grad is not None else None
    for p in other.layers[0].parameters():
        p.grad = None
    opt.step()
    expected.step()
    assert_same(opt, mine, expected, other)


class TwoExperts(nn.Module):
    """Forward uses the first, or both."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))

    def forward(self, x, used):
        for expert in self.experts[:used]:
            x = expert(x)
        return x.square().sum()


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_zeros_of_a_weight_that_forward_does_not_read(overlap):
    """Its gate has not waited for its update, which step() takes for a mistake only if it has a
    gradient of backward."""
    models = [TwoExperts() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    opt = hocket.AdamW(models[0].parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(models[0])
    expected = ReferenceAdamW(models[1].parameters())
    x = torch.randn(3, 40)
    for used in (2, 1, 2, 1, 1):
        for model, optimizer in zip(models, (opt, expected)):
            model(x, used).backward()
            optimizer.step()
            model.zero_grad(set_to_none=False)
    assert_same(opt, models[0], expected, models[1])


def test_a_tensor_assigned_to_grad_replaces_the_held_gradient():
    mine, opt, other, expected = pair()
    backward(mine, other)
    for model in (mine, other):
        torch.manual_seed(5)
        model.tokens.weight.grad = torch.randn_like(model.tokens.weight)
    opt.step()
    expected.step()
    assert_same(opt, mine, expected, other)


def test_used_up_gradients_are_not_used_again():
    mine, opt, _, _ = pair()
    backward(mine)
    opt.step()
    with pytest.raises(HocketUsageError, match="used up.*zero_grad"):
        opt.step()
    backward(mine)
    with pytest.raises(HocketUsageError, match="used up.*zero_grad"):
        opt.step()
    with pytest.raises(HocketUsageError, match="used up"):
        mine.tokens.weight.grad.norm()
    opt.zero_grad()
    backward(mine)
    opt.step()
    opt.synchronize()


def test_step_without_gradients_does_nothing():
    mine, opt, other, expected = pair()
    opt.step()
    assert not opt.is_bound() and not opt.state and opt.grad_norm is None
    backward(mine, other)
    opt.zero_grad()
    opt.step()
    assert_same(opt, mine, expected, other)


def test_intermittently_unused_parameters_keep_their_step_number():
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(48, 48), nn.Linear(48, 48)

        def forward(self, x, both):
            return (self.b(self.a(x)) if both else self.a(x)).square().mean()

    for attached in (False, True):
        torch.manual_seed(1)
        mine = Switch()
        other = copy.deepcopy(mine)
        opt, expected = (
            hocket.AdamW(mine.parameters(), cpu_threads=2),
            ReferenceAdamW(other.parameters()),
        )
        if attached:
            opt.attach(mine)
        for step in range(6):
            x = torch.randn(4, 48)
            for model in (mine, other):
                model(x, step % 3 == 1).backward()
            opt.step()
            expected.step()
            opt.zero_grad()
            expected.zero_grad()
        assert_same(opt, mine, expected, other)
        assert float(opt.state[mine.b.weight]["step"]) == 2
        assert float(opt.state[mine.a.weight]["step"]) == 6


# -- GradScaler -----------------------------------------------------------------------------------


SCALED = pytest.mark.parametrize(
    "attached,overlap", [(False, "none"), (True, "none"), (True, "forward"), (True, "both")]
)


# With GradScaler an overflow gives no warning.
QUIET = pytest.mark.filterwarnings("error:hocket")


@QUIET
@SCALED
@pytest.mark.parametrize("clipped", [False, True])
def test_grad_scaler_with_an_overflow(attached, overlap, clipped):
    mine, opt, other, _ = pair("llama", torch.float32, attached=attached, overlap=overlap)
    expected = torch.optim.AdamW(other.parameters(), fused=False, foreach=False)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3) for _ in range(2)]
    for step in range(8):
        for model, o, scaler in ((mine, opt, scalers[0]), (other, expected, scalers[1])):
            loss = model(batches(step + 1)[step])
            if step == 3:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if clipped:
                scaler.unscale_(o)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(o)
            scaler.update()
            o.zero_grad()
    opt.synchronize()
    assert scalers[0].get_scale() == scalers[1].get_scale()
    assert all(float(opt.state[p]["step"]) == 7 for p in mine.parameters())
    for p, q in zip(mine.parameters(), other.parameters()):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-5)


@QUIET
@SCALED
def test_grad_scaler_on_fp16_weights_unscales_in_step(attached, overlap):
    mine, opt, other, expected = pair("llama", torch.float16, attached=attached, overlap=overlap)
    assert opt._step_supports_amp_scaling
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(6):
        scale = scaler.get_scale()
        loss = mine(batches(step + 1)[step])
        if step in (1, 4):  # an overflow: nothing changes but the scale
            scaler.scale(loss * float("inf")).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            assert scaler.get_scale() == scale / 2
            assert_same(opt, mine, expected, other)
            continue
        scaler.scale(loss).backward()
        (other(batches(step + 1)[step]) * scale).backward()
        expected.factor = 1 / scale
        scaler.step(opt)
        scaler.update()
        expected.step()
        assert_same(opt, mine, expected, other)
        opt.zero_grad()
        expected.zero_grad()


def test_other_types_leave_unscaling_to_grad_scaler_so_that_lightning_clips():
    _, opt, _, _ = pair("llama", torch.float32)
    assert not opt._step_supports_amp_scaling


@pytest.mark.parametrize("attached,overlap", [(False, "none"), (True, "forward"), (True, "both")])
def test_a_gradient_that_is_not_finite_changes_nothing_and_warns(attached, overlap):
    mine, opt, other, expected = pair(attached=attached, overlap=overlap)
    for step in range(4):
        backward(mine, other, batch=step)
        if step == 2:
            opt.zero_grad()
            (mine(batches(1)[0]) * float("nan")).backward()
            with pytest.warns(UserWarning, match="not finite"):
                opt.step()
        else:
            opt.step()
            expected.step()
        opt.zero_grad()
        expected.zero_grad()
    assert_same(opt, mine, expected, other)


def test_reading_a_gradient_that_was_not_handed_over():
    mine, opt, _, _ = pair(attached=False)
    assert opt.read_gradient(mine.tokens.weight) is None
    backward(mine)
    assert opt.read_gradient(mine.tokens.weight) is mine.tokens.weight.grad


def test_noncontiguous_parameters_and_gradients():
    torch.manual_seed(2)
    start = torch.randn(8, 6, 5, 4)
    for attached in (False, True):
        mine = nn.ParameterList([nn.Parameter(start.clone(memory_format=torch.channels_last))])
        other = nn.ParameterList([nn.Parameter(start.clone(memory_format=torch.contiguous_format))])
        opt, expected = (
            hocket.AdamW(mine.parameters(), cpu_threads=2),
            ReferenceAdamW(other.parameters()),
        )
        if attached:
            attach.HOOK_NUMEL, kept = 1, attach.HOOK_NUMEL
            opt.attach(mine)
            attach.HOOK_NUMEL = kept
        for step in range(3):
            scale = torch.randn(8, 6, 5, 4)
            for model in (mine, other):
                (model[0] * scale).square().sum().backward()
            opt.step()
            expected.step()
            opt.zero_grad()
            expected.zero_grad()
        assert_same(opt, mine, expected, other)
