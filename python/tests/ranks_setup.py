# SPDX-License-Identifier: Apache-2.0
"""What cases of several ranks share: the group's models, references, and comparisons. The other
files ranks_*.py have the cases; ranks_worker.py runs them."""

from __future__ import annotations

import contextlib
import copy
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import hocket
from models import batches, make
from reference import ReferenceAdamW, same_bits

RANK, WORLD, FOLDER = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
DEVICE = sys.argv[4] if len(sys.argv) > 4 else "cpu"
APART = "HOCKET_TEST_MEET" in os.environ
"""Each rank has a host of its own."""
TIMEOUT_S = 50
STEPS = 4
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


slow = case  # test_ranks.py runs it with HOCKET_TEST_FULL only


def mesh(kind: str = "fsdp"):
    if kind == "hsdp":
        return dist.init_device_mesh(DEVICE, (2, WORLD // 2), mesh_dim_names=("replica", "shard"))
    if kind == "tp":
        return dist.init_device_mesh(DEVICE, (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
    return dist.init_device_mesh(DEVICE, (WORLD,))


def in_the_same_order(state, bucket):
    """Reduces whole gradients as hocket reduces rows: the order in which ranks are added depends on
    where an element lies, and with NCCL on the collective."""
    grads = bucket.gradients()
    given = hocket.replicas.packed(grads, WORLD).div_(WORLD)
    if DEVICE == "cuda":
        mine = torch.empty_like(given.view(WORLD, -1)[RANK])
        dist.reduce_scatter_tensor(mine, given.view(-1))
        dist.all_gather_into_tensor(given.view(-1), mine)
    else:
        dist.all_reduce(given)
    hocket.replicas.unpacked(given, grads)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def shard(model: nn.Module, kind: str = "fsdp", twin: bool = False, **options) -> nn.Module:
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, **options)
        if twin:
            model.register_comm_hook(None, in_the_same_order)
        return model
    from torch.distributed.fsdp import fully_shard

    where = mesh(kind)
    if kind == "tp":
        split(model, where["tp"])
        where = where["dp"]
    for layer in model.layers:
        fully_shard(layer, mesh=where, **options)
    return fully_shard(model, mesh=where, **options)


def split(model: nn.Module, where) -> None:
    """Splits each layer's large matrices; norms, attention and embeddings stay whole."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    for layer in model.layers:
        plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, where, {name: plan[name] for name in plan if hasattr(layer, name)})


def groups(model: nn.Module):
    """Decay for matrices only."""
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0},
    ]


def data(step: int, micro: int = 0, replica: int = RANK):
    """This rank's batch."""
    return next(iter(batches(1, seed=1000 * step + 10 * micro + 7 + replica * 100))).to(DEVICE)


def whole(tensor):
    """All of a tensor, of which this rank may have a part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Reference:
    """One process with whole parameters: every rank runs it with gradients that torch has reduced.
    Where ranks share nothing but the reduced gradient, it is the arithmetic of one process."""

    def __init__(self, model: nn.Module, twin: nn.Module, kind: str, **options) -> None:
        self.model, self.twin = model, twin
        self.replica = RANK // 2 if kind == "tp" else RANK  # ranks that split a tensor share a batch
        self.opt = ReferenceAdamW(groups(model), **options)

    @torch.no_grad()
    def step(self) -> None:
        for p, q in zip(self.model.parameters(), self.twin.parameters()):
            p.grad = None if q.grad is None else whole(q.grad).cpu()
        self.opt.step()
        self.opt.zero_grad()
        for p, q in zip(self.model.parameters(), self.twin.parameters()):
            if q.requires_grad:
                cut = hocket.ranks.part_of(q, p.detach())
                hocket.ranks.local(q).copy_(cut)
            q.grad = None


    def found(self):
        """Whole weights and states, for take()."""
        return self.model.state_dict(), [self.opt.state.get(p) for p in self.model.parameters()]

    @torch.no_grad()
    def take(self, weights, states) -> None:
        """Goes on with what another reference has found."""
        self.model.load_state_dict(weights)
        for p, q, state in zip(self.model.parameters(), self.twin.parameters(), states):
            if state is not None:
                self.opt.state[p] = state
            hocket.ranks.local(q).copy_(hocket.ranks.part_of(q, p))


def compare(opt, model: nn.Module, reference: Reference) -> None:
    """Weights, state and step counts have the reference's bits."""
    opt.synchronize()
    opt.follow_weights()
    names = [name for name, _ in model.named_parameters()]
    for name, p, q in zip(names, model.parameters(), reference.model.parameters()):
        assert same_bits(whole(p), q), f"weights of {name} differ"
        expected = reference.opt.state.get(q)
        if expected is None:
            assert p not in opt.state, name
            continue
        found = opt.state[p]
        assert float(found["step"]) == expected["step"], f"steps of {name}"
        for key in ("master_weight", "exp_avg", "exp_avg_sq"):
            value = found[key]
            assert value.placements == hocket.ranks._placements(p) and value.shape == p.shape, name
            assert same_bits(gathered(value), expected[key]), f"{key} of {name} differs"


def gathered(value) -> torch.Tensor:
    """The whole of a DTensor whose parts lie in host memory."""
    like = hocket.ranks.shared_as(value, hocket.ranks.local(value).to(DEVICE))
    return like.full_tensor().cpu()


def start(
    kind="fsdp",
    model="gpt",
    dtype=torch.bfloat16,
    max_norm=None,
    overlap=None,
    first="shard",
    sharding=None,
    change=None,
    **options,
):
    """A sharded model with hocket, and its reference. overlap None: not attached."""
    plain = make(model, dtype)
    if change is not None:
        change(plain)
    mine, twin = copy.deepcopy(plain).to(DEVICE), copy.deepcopy(plain).to(DEVICE)
    twin = shard(twin, kind, twin=True, **(sharding or {}))
    attach = overlap is not None
    if attach:
        options["overlap"] = overlap
    if first == "shard":
        mine = shard(mine, kind, **(sharding or {}))
    opt = hocket.AdamW(groups(mine), lr=2e-3, max_norm=max_norm, **options)
    if attach:
        opt.attach(mine)
    if first == "attach":  # as accelerate does: the optimizer gets the sharded parameters later
        mine = shard(mine, kind, **(sharding or {}))
        for group, new in zip(opt.param_groups, groups(mine)):
            group["params"] = new["params"]
    return opt, mine, Reference(plain, twin, kind, lr=2e-3, max_norm=max_norm)


def train(
    opt,
    model,
    reference,
    steps=STEPS,
    first=0,
    micro=1,
    sync_each=True,
    clip=None,
    set_to_none=True,
):
    for step in range(first, first + steps):
        for group in (*opt.param_groups, *reference.opt.param_groups):
            group["lr"] = 2e-3 / (1 + step)
        for each in (model, reference.twin):
            for part in range(micro):
                with contextlib.ExitStack() as unreduced:
                    if sync_each or part == micro - 1:
                        pass
                    elif hasattr(each, "no_sync"):
                        unreduced.enter_context(each.no_sync())
                    if not sync_each and not hasattr(each, "no_sync"):
                        each.set_requires_gradient_sync(part == micro - 1)
                    (each(data(step, part, reference.replica)) / micro).backward()
        if clip is not None:
            found = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            wanted = torch.nn.utils.clip_grad_norm_(reference.twin.parameters(), clip)
            found, wanted = whole(found), whole(wanted)
            assert torch.allclose(found.float(), wanted.float(), rtol=0.02), (found, wanted)
        opt.step()
        reference.step()
        norm = reference.opt.grad_norm
        if opt.last_step is not None and clip is None:
            assert opt.grad_norm == norm, (step, opt.grad_norm, norm)
        opt.zero_grad(set_to_none)


def exact(**settings):
    train_settings = settings.pop("training", {})
    opt, model, reference = start(**settings)
    train(opt, model, reference, **train_settings)
    compare(opt, model, reference)
    return opt, model, reference


def with_small_tensors(model):
    model.norm = nn.Sequential(model.norm, nn.Linear(32, 1, bias=True), Widen()).bfloat16()


class Widen(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Parameter(torch.linspace(-1, 1, 3 * 32).reshape(3, 32))

    def forward(self, x):
        return (x * self.out.sum(0).to(x.dtype)).contiguous()


def compare_scales(opt, model, weight):
    """All ranks have multiplied by the same factor, which is near that of torch."""
    found = [None] * WORLD
    dist.all_gather_object(found, opt.last_step.grad_scale)
    assert len(set(found)) == 1, found
    model(data(9)).backward()
    before = opt.read_gradient(weight).full_tensor().float()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    after = opt.read_gradient(weight).full_tensor().float()
    assert torch.allclose(after, before * min(1.0, 1.0 / norm), rtol=0.02), (before, after, norm)
    opt.zero_grad()


def go_on_with_another(opt, model, reference, overlap):
    """Two steps more with an optimizer that has loaded the state of `opt`, which is detached."""
    again = hocket.AdamW(groups(model), lr=2e-3, overlap=overlap)
    again.load_state_dict(opt.state_dict())
    again.attach(model)
    train(again, model, reference, steps=2, first=2)
    compare(again, model, reference)


def refused(text, action):
    try:
        action()
    except hocket.HocketUsageError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def save_distributed(folder, opt, model):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, state = get_state_dict(model, opt)
    for entry in state["state"].values():
        assert {type(entry[key]).__name__ for key in ("exp_avg", "master_weight")} == {"DTensor"}
        assert hocket.ranks.local(entry["exp_avg"]).device.type == "cpu"
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=str(folder))


def load_distributed(folder, opt, model):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    weights, state = get_state_dict(model, opt)
    loaded = {"model": weights, "optimizer": state}
    dcp.load(loaded, checkpoint_id=str(folder))
    set_state_dict(
        model, opt, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
