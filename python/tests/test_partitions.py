# SPDX-License-Identifier: Apache-2.0
"""fp32 tensors of a framework in place of the parameters, as DeepSpeed has them. test_deepspeed.py
does the same with DeepSpeed itself."""

import copy
import gc
from unittest import mock

import pytest
import torch
from torch import nn

import hocket
from hocket import partitions

SIZES = (300, 70_001)
"""Of the partitions; the second takes two threads."""


class Wrapper:
    """Gives the optimizer partitions in place of its parameters, one a step, as ZeRO-3 does.

    Attributes:
        parts: the partitions. With `strided`, as memory that the update cannot reach directly.
    """

    def __init__(self, strided=False, **options):
        torch.manual_seed(3)
        self.opt = hocket.AdamW(nn.Linear(4, 4).parameters(), lr=1e-2, cpu_threads=2, **options)
        step = 2 if strided else 1
        self.parts = [torch.randn(step * size)[::step].requires_grad_() for size in SIZES]
        self.opt.param_groups[0]["params"] = []

    def step(self, number):
        for place, (part, grad) in enumerate(zip(self.parts, gradients(number))):
            part.grad = grad
            self.opt.param_groups[0]["params"] = [part]
            self.opt.step()
            self.opt.param_groups[0]["params"] = []

    def state(self):
        return [[part.detach(), *moments(self.opt.state[part])] for part in self.parts]


def gradients(number):
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(size, generator=generator) for size in SIZES]


def moments(entry):
    return [entry["exp_avg"], entry["exp_avg_sq"], torch.tensor(float(entry["step"]))]


def of_an_engine(parts, state, steps):
    """The same steps by an engine."""
    params = [nn.Parameter(part.detach().clone()) for part in parts]
    opt = hocket.AdamW(params, lr=1e-2, cpu_threads=1)
    if state is not None:
        keys = ("exp_avg", "exp_avg_sq", "step")
        entries = {n: dict(zip(keys, entry[1:])) for n, entry in enumerate(state)}
        groups = opt.state_dict()["param_groups"]
        opt.load_state_dict({"state": entries, "param_groups": groups})
    for number in steps:
        for param, grad in zip(params, gradients(number)):
            param.grad = grad
        opt.step()
    return [[param.detach(), *moments(opt.state[param])] for param in params]


def same(found, expected):
    return all(torch.equal(a, b) for f, e in zip(found, expected) for a, b in zip(f, e))


@pytest.mark.parametrize("strided", (False, True))
def test_bits_are_those_of_an_engine(strided, monkeypatch):
    monkeypatch.setattr(partitions, "PIECE", 20_000)
    wrapper = Wrapper(strided)
    expected = of_an_engine(wrapper.parts, None, range(3))
    for number in range(3):
        wrapper.step(number)
    assert same(wrapper.state(), expected)
    assert not wrapper.opt.is_bound() and "keeps fp32 weights itself" in wrapper.opt.explain()


def test_updates_can_be_made_after_the_step():
    """As hocket.deepspeed.install has them made: with the options that step() has seen."""
    first, second = Wrapper(), Wrapper()
    later = []
    second.opt._later = later.append
    for number in range(2):
        first.step(number)
        before = [part.detach().clone() for part in second.parts]
        second.step(number)
        assert all(map(torch.equal, second.parts, before))
        second.opt.param_groups[0]["lr"] = 1.0
        for update in later:
            update()
        second.opt.param_groups[0]["lr"] = 1e-2
        later.clear()
        assert same(second.state(), first.state())


def test_writes_without_a_trace_count():
    """The framework loads weights through .data, and writes the tensors in opt.state."""
    wrapper = Wrapper()
    wrapper.step(0)
    view = wrapper.opt.state[wrapper.parts[1]]["exp_avg"][7:9]
    for part in wrapper.parts:
        part.data.copy_(torch.full_like(part, 0.5))
        wrapper.opt.state[part]["exp_avg"][7:9] = 3.0
        wrapper.opt.state[part]["exp_avg_sq"] = torch.full_like(part, 2.0)
    expected = of_an_engine(wrapper.parts, wrapper.state(), [1])
    wrapper.step(1)
    assert same(wrapper.state(), expected)
    assert torch.equal(view, wrapper.opt.state[wrapper.parts[1]]["exp_avg"][7:9])


def test_a_state_dict_goes_on():
    first, second = Wrapper(), Wrapper()
    first.step(0)
    for each in first, second:
        each.opt.param_groups[0]["params"] = each.parts
    saved = copy.deepcopy(first.opt.state_dict())
    copied = copy.deepcopy(first.opt)
    second.opt.load_state_dict(saved)
    for mine, its in zip(second.parts, first.parts):
        mine.data.copy_(its.data)
    assert same(second.state(), first.state())
    for each in first, second:
        each.step(1)
    assert same(second.state(), first.state())
    for part, grad in zip(copied.param_groups[0]["params"], gradients(1)):
        part.grad = grad
    copied.step()
    found = [[p.detach(), *moments(copied.state[p])] for p in copied.param_groups[0]["params"]]
    assert same(found, first.state())


def test_other_ranks_of_the_host_have_threads_too(monkeypatch):
    settings = hocket.AdamW(nn.Linear(4, 4).parameters())._settings
    with mock.patch("os.sched_getaffinity", return_value=set(range(12))), mock.patch(
        "hocket.partitions.quota", side_effect=lambda cpus: cpus
    ):
        for name, ranks, threads in (("NOTHING", 1, 11), ("LOCAL_SIZE", 2, 5), ("LOCAL_SIZE", 99, 1)):
            monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
            monkeypatch.setenv(name, str(ranks))
            assert partitions._threads(settings) == threads
    assert partitions._threads(settings._replace(cpu_threads=3)) == 3


REFUSED = [
    ({"max_norm": 1.0}, "max_norm= with DeepSpeed.*gradient_clipping"),
    ({"plan": "auto"}, "plan= with DeepSpeed"),
    ({"gpu_memory": 1}, "gpu_memory= with DeepSpeed"),
    ({"host_memory": 1}, "host_memory= with DeepSpeed"),
    ({"accumulate": torch.float32}, "accumulate= with DeepSpeed"),
    ({"state": "bf16"}, "state='bf16' with DeepSpeed"),
]


@pytest.mark.parametrize("options, message", REFUSED, ids=[next(iter(o)) for o, _ in REFUSED])
def test_what_it_cannot_do_is_refused(options, message):
    wrapper = Wrapper(**options)
    before = wrapper.parts[0].detach().clone()
    for _ in range(2):
        with pytest.raises(hocket.HocketUsageError, match=message):
            wrapper.step(0)
    assert torch.equal(before, wrapper.parts[0])


def test_attach_and_files_are_refused(tmp_path):
    wrapper = Wrapper()
    wrapper.opt.attach(nn.Linear(4, 4))
    with pytest.raises(hocket.HocketUsageError, match="leave attach out; .*FSDP2"):
        wrapper.step(0)
    wrapper = Wrapper()
    wrapper.step(0)
    for call in (lambda: wrapper.opt.save(tmp_path / "state"), wrapper.opt.bind):
        with pytest.raises(hocket.HocketUsageError, match="engine.save_checkpoint"):
            call()
    with pytest.warns(UserWarning, match="no effect with DeepSpeed"):
        Wrapper(overlap="both").step(0)


def test_gradients_and_state_of_other_shapes_are_refused():
    wrapper = Wrapper()
    wrapper.step(0)
    entry = wrapper.opt.state[wrapper.parts[0]]
    whole, entry["exp_avg"] = entry["exp_avg"], torch.zeros(3)
    with pytest.raises(hocket.HocketUsageError, match=r"'exp_avg' of type .* shape \(3,\)"):
        wrapper.step(1)
    entry["exp_avg"] = whole
    part = wrapper.parts[0]
    part.grad = torch.zeros(SIZES[0]).to_sparse()
    wrapper.opt.param_groups[0]["params"] = [part]
    with pytest.raises(hocket.HocketUsageError, match="layout torch.sparse_coo"):
        wrapper.opt.step()


def test_tensors_that_the_program_itself_gave_have_an_engine():
    tensor = torch.randn(5, requires_grad=True)
    opt = hocket.AdamW([tensor], max_norm=1.0, cpu_threads=1)
    tensor.grad = torch.ones(5)
    opt.step()
    assert opt.is_bound() and opt.last_step.step == 1


def test_a_framework_that_comes_after_the_first_step():
    model = nn.Linear(4, 1, bias=False)
    opt = hocket.AdamW(model.parameters(), cpu_threads=1)
    model(torch.ones(1, 4)).sum().backward()
    opt.step()
    opt.param_groups[0]["params"] = [torch.zeros(4, requires_grad=True)]
    with pytest.raises(hocket.HocketUsageError, match="after the first step"):
        opt.step()


def test_objects_that_are_collected_may_still_look_at_state():
    """DeepSpeed does in __del__. The collector ends the engine before."""
    said = []

    class Late:
        def __init__(self):
            self.param = nn.Parameter(torch.ones(3))
            self.opt = hocket.AdamW([self.param], cpu_threads=1)
            self.param.grad = torch.ones(3)
            self.opt.step()
            self.itself = self

        def __del__(self):
            gone = not self.opt.binding().engine._finalizer.alive
            try:
                said.append((gone, self.opt.state[self.param]["exp_avg"]))
            except hocket.HocketError as error:
                said.append((gone, str(error)))

    Late()
    gc.collect()
    (gone, what), = said
    assert not gone or what == "this optimizer's engine has been closed"
