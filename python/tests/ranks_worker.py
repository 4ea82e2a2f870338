# SPDX-License-Identifier: Apache-2.0
"""One of the ranks that test_ranks.py starts: python ranks_worker.py RANK WORLD FOLDER [DEVICE].

Reads names of cases from standard input, with their arguments, and runs each, together with the
other ranks. Answers with one line: "ok", or the traceback as JSON. DEVICE: cpu (gloo, host backend;
the default), or cuda (NCCL, one GPU a rank). With HOCKET_TEST_MEET, an address of torch's, the
ranks meet there, each on a host of its own.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import itertools
import json
import os
import pathlib
import re
import signal
import sys
import traceback
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

import hocket  # noqa: E402
from models import batches, make  # noqa: E402
from reference import ReferenceAdamW, same_bits  # noqa: E402

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
    for layer in model.layers:
        fully_shard(layer, mesh=where, **options)
    return fully_shard(model, mesh=where, **options)


def groups(model: nn.Module):
    """Decay for matrices only."""
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0},
    ]


def data(step: int, micro: int = 0):
    """This rank's batch."""
    return next(iter(batches(1, seed=1000 * step + 10 * micro + 7 + RANK * 100))).to(DEVICE)


def whole(tensor):
    """All of a tensor, of which this rank may have a part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Reference:
    """One process with whole parameters: every rank runs it with gradients that torch has reduced.
    Where ranks share nothing but the reduced gradient, it is the arithmetic of one process."""

    def __init__(self, model: nn.Module, twin: nn.Module, **options) -> None:
        self.model, self.twin = model, twin
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
    return opt, mine, Reference(plain, twin, lr=2e-3, max_norm=max_norm)


def train(opt, model, reference, steps=STEPS, first=0, micro=1, sync_each=True, clip=None):
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
                    (each(data(step, part)) / micro).backward()
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
        opt.zero_grad()


def exact(**settings):
    train_settings = settings.pop("training", {})
    opt, model, reference = start(**settings)
    train(opt, model, reference, **train_settings)
    compare(opt, model, reference)
    return opt, model, reference


# -- Not attached ---------------------------------------------------------------------------------


@case
def drop_in():
    exact()


@slow
def drop_in_clips():
    opt, _, _ = exact(max_norm=2.0)
    assert opt.last_step.grad_scale < 1


@slow
def drop_in_fp32():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    exact(dtype=torch.float32, sharding={"mp_policy": policy}, max_norm=2.0)


@case
def drop_in_hsdp():
    exact(kind="hsdp", max_norm=2.0)


@case
def tensors_smaller_than_the_world():
    """Some ranks have no element of some tensors."""

    opt, model, _ = exact(change=with_small_tensors, max_norm=2.0)
    empty = [p for p in model.parameters() if p.requires_grad and not p._local_tensor.numel()]
    assert bool(empty) == (RANK > 0)
    assert all(float(opt.state[p]["step"]) == STEPS for p in empty)


def with_small_tensors(model):
    model.norm = nn.Sequential(model.norm, nn.Linear(32, 1, bias=True), Widen()).bfloat16()


class Widen(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Parameter(torch.linspace(-1, 1, 3 * 32).reshape(3, 32))

    def forward(self, x):
        return (x * self.out.sum(0).to(x.dtype)).contiguous()


@case
def clipping_by_torch():
    """clip_grad_norm_ on DTensors rounds the norm to the gradients' type, but the same on all."""
    opt, model, reference = start()
    train(opt, model, reference, steps=3, clip=2.0)
    compare_scales(opt, model, model.norm.weight)


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


# -- Attached -------------------------------------------------------------------------------------


@case
def attached():
    """Each overlap, with updates that run ahead, steps that are clipped, and others."""
    for overlap, limit in (("none", 2.0), ("forward", None), ("both", None), ("both", 3.6)):
        opt, _, _ = exact(overlap=overlap, max_norm=limit)
        assert opt.last_step.step == STEPS


@slow
def attached_for_longer():
    for overlap in ("none", "forward", "both"):
        for limit in (None, 2.0, 3.0, 3.6):
            exact(overlap=overlap, max_norm=limit, training={"steps": 15})


@case
def attached_before_sharding():
    exact(overlap="both", first="attach")


@slow
def attached_fp32():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    exact(overlap="both", dtype=torch.float32, sharding={"mp_policy": policy}, max_norm=2.0)


@case
def attached_hsdp():
    exact(overlap="both", kind="hsdp", max_norm=2.0)


@slow
def attached_llama():
    exact(overlap="both", model="llama", max_norm=0.5)


@case
def accumulation():
    """With and without a reduction after each backward."""
    for overlap, sync_each in ((None, False), ("both", False), ("both", True)):
        exact(overlap=overlap, training={"micro": 2, "sync_each": sync_each, "steps": 3})


@slow
def attached_clipping_by_torch():
    opt, model, reference = start(overlap="forward")
    train(opt, model, reference, steps=3, clip=2.0)
    assert opt.last_step.grad_scale < 1
    compare_scales(opt, model, model.norm.weight)


@case
def gradients_of_a_block_leave_by_one_call():
    """When the block is over. An interrupt before or after the last call loses none."""
    for handed in (False, True):
        with mock.patch.object(hocket.attach, "HOOK_NUMEL", 1):
            opt, model, reference = start(overlap="both")
        train(opt, model, reference, steps=1)
        binding, calls = opt.binding(), []
        assert all(len(p._post_accumulate_grad_hooks) == 1 for p in binding.params)
        give = binding.engine.gradient_list

        def gradient_list(pairs, n, stream):
            calls.append(sorted(pairs[0 : 2 * n : 2]))
            waiting = [hocket.handle.handle_in(p.grad) is None and p.grad is not None
                       for p in binding.params]
            assert len(set(itertools.compress(binding.blocks, waiting))) == 1
            last = len(calls) == binding.n_blocks
            if handed or not last:
                give(pairs, n, stream)
            if last:
                raise KeyboardInterrupt

        binding.engine.gradient_list = gradient_list
        try:
            model(data(1)).backward()
        except KeyboardInterrupt:
            pass
        binding.engine.gradient_list = give
        assert sorted(calls) == opt._attachment._members, calls
        reference.twin(data(1)).backward()
        opt.step()
        reference.step()
        compare(opt, model, reference)


@case
def prefetched_and_kept():
    """Explicit prefetching, and weights that stay gathered after the forward."""
    opt, model, reference = start(overlap="both", sharding={"reshard_after_forward": False})
    layers = list(model.layers)
    for layer, following in zip(layers, layers[1:]):
        layer.set_modules_to_forward_prefetch([following])
    train(opt, model, reference)
    compare(opt, model, reference)


@case
def forward_waits_for_its_own_block_alone():
    """When a module's shards are gathered, its update has ended; those of others may run."""
    opt, model, reference = start(overlap="forward")
    order = []
    waited = opt._attachment.wait

    def wait(block):
        order.append(opt.binding().block_names[block])
        waited(block)

    train(opt, model, reference, steps=1)
    opt._attachment.wait = wait
    train(opt, model, reference, steps=1, first=1)
    seen = list(dict.fromkeys(order))
    assert seen == ["the root", "layers.0", "layers.1", "layers.2"], seen
    assert opt.blocks()[0][0] == "tokens.weight"


def comms(opt):
    """What FSDP2 calls for collectives; none before torch 2.9."""
    groups = [group for group, _ in opt._attachment.shards._gated]
    names = ("_all_gather_comm", "_reduce_scatter_comm")
    return [getattr(group, name) for group in groups for name in names if hasattr(group, name)]


@case
def recorded():
    """Each rank records the same steps, on the clock of the host, with collectives; recording
    changes no bit."""
    opt, model, reference = start(overlap="both")
    train(opt, model, reference, steps=1)
    before = comms(opt)
    opt.record()
    train(opt, model, reference, steps=3, first=1)
    found = opt.timeline()
    compare(opt, model, reference)
    (FOLDER / f"recorded-{WORLD}-rank{RANK}.json").write_text(json.dumps(found))
    assert (found["rank"], found["ranks"]) == (RANK, WORLD) and found["host"]
    assert 0 <= found["clock_error_ms"] < 1
    seen = [(span["step"], *span["name"].split()) for span in found["spans"]]
    blocks = len(model.layers) + 1
    for step in (3, 4) if before else ():
        for block in range(blocks):
            gathers = seen.count((step, "all_gather", f"B{block}"))
            # In backward once more, but for the root, whose weights stay.
            assert gathers == (1 if block == 0 else 2), (step, block, gathers)
            assert seen.count((step, "reduce_scatter", f"B{block}")) == 1, (step, block)
    # What is summed ends on all ranks after the last of them has begun.
    edges = {name[1:]: (s["start_ms"], s["end_ms"]) for name, s in zip(seen, found["spans"])
             if name[:2] == (4, "reduce_scatter")}
    every = [None] * WORLD
    dist.all_gather_object(every, edges)
    for name, (_, end) in edges.items():
        assert end > max(other[name][0] for other in every), (name, every)
    opt.record(False)
    assert comms(opt) == before


@case
def without_torch_s_private_parts():
    """Where FSDP2 is not as expected, each forward waits for all, and the bits are the same."""
    from hocket import sharded

    known, sharded._groups = sharded._groups, lambda module: None
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            exact(overlap="both", max_norm=2.0)
        assert sum("is not known to this version" in str(w.message) for w in said) == 1
    finally:
        sharded._groups = known


def go_on_with_another(opt, model, reference, overlap):
    """Two steps more with an optimizer that has loaded the state of `opt`, which is detached."""
    again = hocket.AdamW(groups(model), lr=2e-3, overlap=overlap)
    again.load_state_dict(opt.state_dict())
    again.attach(model)
    train(again, model, reference, steps=2, first=2)
    compare(again, model, reference)


@case
def detached():
    opt, model, reference = start(overlap="forward")
    train(opt, model, reference, steps=2)
    opt.detach()
    go_on_with_another(opt, model, reference, "forward")


@slow
def one_plan_for_all():
    """The first rank asks the planner, all follow; where shards differ, none does."""
    from hocket import plan

    os.environ["HOCKET_MACHINE"] = "h200-16c"
    asked, run = [], plan.run
    plan.run = lambda arguments: asked.append(arguments) or run(arguments)
    try:
        for kind, change in (("fsdp", None), ("ddp", None), ("fsdp", with_small_tensors)):
            asked.clear()
            opt, _, _ = exact(kind=kind, overlap="both", max_norm=2.0, plan="auto", change=change)
            ranked = [arguments for arguments in asked if arguments[0] == "plan"]
            assert len(ranked) == (RANK == 0), ranked
            assert RANK or (f"dram*={1 / WORLD}" in ranked[0]) != APART
            answers = [None] * WORLD
            dist.all_gather_object(answers, opt.explain().partition("chose: ")[2].splitlines()[0])
            assert len(set(answers)) == 1 and answers[0], answers
            assert ("differ in size" in answers[0]) == (change is not None), answers
            assert opt._attachment._call is None  # no batch is kept, also where others planned
        for text, answer in (("no such machine", run), ("no answer", lambda _: {}["no answer"])):
            os.environ["HOCKET_MACHINE"], plan.run = "no such machine", answer
            opt, model, _ = start(overlap="both", plan="auto")
            try:
                model(data(0)).backward()
            except (hocket.HocketError, KeyError) as error:  # whatever fails, all ranks hear of it
                assert text in str(error), error
                assert str(error).startswith("rank 0 (") == (RANK > 0), error
            else:
                raise AssertionError("no error")
    finally:
        plan.run = run


# -- DDP ------------------------------------------------------------------------------------------


@case
def ddp():
    """Each rank updates some rows of all parameters."""
    for overlap, limit in (("none", 2.0), ("forward", None), ("both", 3.6)):
        opt, _, _ = exact(kind="ddp", overlap=overlap, max_norm=limit, change=with_small_tensors)
        assert opt.last_step.step == STEPS
        held = sum(part.numel() for part in opt.binding().parts)
        assert held < 0.6 * sum(p.numel() for p in opt.binding().params) or WORLD == 1


@slow
def ddp_accumulates():
    """In torch without a reduction, and in the engine where each backward reduces."""
    exact(kind="ddp", overlap="both", training={"micro": 2, "sync_each": False, "steps": 3})
    opt, model, _ = start(kind="ddp", overlap="forward")
    model(data(0)).backward()
    try:
        model(data(1)).backward()  # reduced already: the sum would be of one rank
    except RuntimeError as error:
        assert "mixed torch.Tensor and DTensor" in str(error), error
    else:
        raise AssertionError(f"not refused by {opt}")


@slow
def ddp_otherwise():
    """Gradients in DDP's own memory, small buckets, fp32, another model, clipping by torch."""
    options = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}
    exact(kind="ddp", overlap="both", sharding=options, max_norm=2.0, model="llama")
    exact(kind="ddp", overlap="forward", dtype=torch.float32, accumulate=torch.float32)
    opt, model, reference = start(kind="ddp", overlap="forward")
    weight = model.module.norm.weight
    train(opt, model, reference, steps=3, clip=2.0)
    assert opt.last_step.grad_scale < 1
    compare_scales(opt, model, weight)


@slow
def ddp_resumes():
    """State goes through torch.distributed.checkpoint and through a state_dict, also to FSDP2."""
    opt, model, reference = start(kind="ddp", max_norm=2.0, overlap="both")
    train(opt, model, reference, steps=2)
    opt.synchronize()
    save_distributed(FOLDER / "ddp", opt, model)
    for kind in ("ddp", "fsdp"):
        again, other, _ = start(kind=kind, max_norm=2.0, overlap="both")
        load_distributed(FOLDER / "ddp", again, other)
        again.bind()
        compare(again, other, reference)
    train(again, other, reference, steps=2, first=2)
    compare(again, other, reference)


@slow
def ddp_reads_weights_between_steps():
    """One rank alone may read its state at any time, but weights after synchronize() of all."""
    opt, model, reference = start(kind="ddp", overlap="forward")
    train(opt, model, reference, steps=2)
    if RANK == 0:
        opt.state_dict()
        refused("opt.synchronize() on all ranks", model.state_dict)
    opt.synchronize()
    if RANK == 0:
        model.state_dict()
        model.module(data(7)).detach()
    opt.detach()
    again = hocket.AdamW(groups(model), lr=2e-3)
    again.load_state_dict(opt.state_dict())
    model(data(7)).backward()
    refused("attach this one, too", again.step)
    model.zero_grad()
    go_on_with_another(opt, model, reference, "both")


@case
def ddp_forward_that_raises():
    """A program that goes on after the exception: one rank's later look at a weight is refused, as
    between steps, and does not wait for the others."""
    opt, model, reference = start(kind="ddp", overlap="forward")
    train(opt, model, reference, steps=2)

    def fail(module, args):
        raise ValueError("in the middle of the forward")

    failing = model.module.layers[1].register_forward_pre_hook(fail)
    with contextlib.suppress(ValueError):
        model(data(2))
    failing.remove()
    if RANK == 0:
        refused("opt.synchronize() on all ranks", model.state_dict)
    train(opt, model, reference, steps=2, first=2)
    compare(opt, model, reference)


@slow
def ddp_that_attach_does_not_take():
    for option in ("find_unused_parameters", "static_graph"):
        model = shard(make("gpt").to(DEVICE), "ddp", **{option: True})
        refused(option, lambda: hocket.AdamW(model.parameters()).attach(model))  # noqa: B023
    plain = make("gpt").to(DEVICE)
    opt = hocket.AdamW(plain.parameters())
    opt.attach(plain)
    refused("attach DistributedDataParallel(model)", lambda: plain(data(0)).backward() or opt.step())


# -- Checkpoints ----------------------------------------------------------------------------------


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


@case
def resume():
    """A checkpoint in the middle, loaded into a new model and optimizer, changes no bit."""
    for settings in ({}, {"overlap": "both"}):
        opt, model, reference = start(max_norm=2.0, **settings)
        train(opt, model, reference, steps=2)
        folder = FOLDER / f"resume-{len(settings)}"
        save_distributed(folder, opt, model)
        again, other, _ = start(max_norm=2.0, **settings)
        load_distributed(folder, again, other)
        train(again, other, reference, steps=2, first=2)
        compare(again, other, reference)


def leaves_a_checkpoint(folder, kind):
    """For other_ranks_go_on(), with the whole tensors of its reference beside it."""
    opt, model, reference = start(
        kind=kind, change=with_small_tensors, max_norm=2.0, overlap="both"
    )
    train(opt, model, reference, steps=2)
    save_distributed(folder, opt, model)
    if RANK == 0:
        whole = reference.model.state_dict()
        states = [reference.opt.state.get(p) for p in reference.model.parameters()]
        torch.save((whole, states), f"{folder}/reference")


def other_ranks_go_on(folder, kind):
    """State and weights have the same bits in another number of ranks, and so has what follows."""
    opt, model, reference = start(
        kind=kind, change=with_small_tensors, max_norm=2.0, overlap="both"
    )
    load_distributed(folder, opt, model)
    whole, states = torch.load(f"{folder}/reference")
    reference.model.load_state_dict(whole)
    for p, q, state in zip(
        reference.model.parameters(), reference.twin.parameters(), states
    ):
        if state is not None:
            reference.opt.state[p] = state
        with torch.no_grad():
            q._local_tensor.copy_(hocket.ranks.part_of(q, p))
    opt.bind()
    compare(opt, model, reference)
    train(opt, model, reference, steps=2, first=2)
    compare(opt, model, reference)


CASES.update({each.__name__: each for each in (leaves_a_checkpoint, other_ranks_go_on)})


@slow
def full_state_dict():
    """Whole tensors, as they are saved for one process, on rank 0; each rank loads its part."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    opt, model, reference = start()
    train(opt, model, reference, steps=2)
    whole = get_optimizer_state_dict(
        model, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if RANK == 0:
        for name, q in reference.model.named_parameters():
            if q in reference.opt.state:
                found = whole["state"][name]["exp_avg"]
                assert same_bits(found, reference.opt.state[q]["exp_avg"]), name
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_optimizer_state_dict(model, opt, whole, options=options)
    compare(opt, model, reference)


# -- Failures -------------------------------------------------------------------------------------


@case
def values_that_are_not_finite():
    """One rank's shard has them: no rank takes the step, and the warning names the rank."""
    opt, model, reference = start(max_norm=2.0)
    train(opt, model, reference, steps=2)
    model(data(5)).backward()
    param = model.layers[0].up.weight
    if RANK == WORLD - 1:
        param.grad._local_tensor.view(-1)[0] = float("nan")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        opt.step()
    assert [str(w.message) for w in said] == [
        "hocket: 1 gradient values are not finite, the first of them in a shard of rank "
        f"{WORLD - 1}: step() changed nothing on any rank"
    ]
    assert opt.last_step.skipped and opt.last_step.step == 2
    opt.zero_grad()
    train(opt, model, reference, steps=2, first=2)
    compare(opt, model, reference)


@case
def a_rank_that_fails_in_step():
    """The others raise the same, with its name, before they change anything."""
    opt, model, reference = start()
    train(opt, model, reference, steps=1)
    model(data(5)).backward()
    if RANK == 1:
        weight = model.norm.weight
        weight.grad = torch.zeros(32, dtype=torch.bfloat16, device=weight.device)  # no DTensor
    try:
        opt.step()
    except hocket.HocketError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    assert "the gradient of norm.weight (parameter " in text and "is no DTensor" in text, text
    assert text.startswith("rank 1 (") == (RANK != 1), text
    opt.zero_grad()
    train(opt, model, reference, steps=2, first=1)
    compare(opt, model, reference)


@case
def a_rank_that_fails_before_the_first_step():
    opt, model, _ = start()
    model(data(0)).backward()
    if RANK == 1:
        opt.param_groups[0]["lr"] = -1.0
    try:
        opt.step()
    except hocket.HocketError as error:
        assert "lr=-1.0" in str(error), error
        assert str(error).startswith("rank 1 (") == (RANK != 1), error
    else:
        raise AssertionError("no error")
    assert not opt.is_bound()
    if RANK == 1:
        opt.param_groups[0]["lr"] = 1e-3
    opt.step()
    assert opt.last_step.step == 1


def a_rank_that_is_killed(*what):
    """A test of its own starts it, because the other ranks cannot go on either. `what` the others
    say of it."""
    opt, model, reference = start(overlap="both")
    train(opt, model, reference, steps=1)
    model(data(5)).backward()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        opt.step()
    except hocket.HocketError as error:
        said = rf"rank 1 \(process \d+ on \S+\) {' '.join(what)}"
        assert re.search(said, str(error)), error
    else:
        raise AssertionError("no error")


CASES["a_rank_that_is_killed"] = a_rank_that_is_killed


# -- Refusals -------------------------------------------------------------------------------------


def refused(text, action):
    try:
        action()
    except hocket.HocketUsageError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


@case
def what_ranks_cannot_do():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    opt, _, _ = start()
    refused("one file would hold", lambda: opt.save("x"))
    refused("one file would hold", lambda: opt.load("x"))
    opt, model, _ = start(overlap="both", clip="block", max_norm=1.0)
    refused('clip="block"', lambda: model(data(0)))
    plain = make("gpt").to(DEVICE)
    late = hocket.AdamW(plain.parameters())
    late.attach(plain)
    refused("after fully_shard()", lambda: shard(plain)(data(0)))
    where = mesh("hsdp")
    both = distribute_tensor(torch.zeros(8, 8), where, [Shard(0), Shard(1)])
    both = nn.Parameter(both)
    both.grad = torch.zeros_like(both)
    refused("tensor parallelism", hocket.AdamW([both]).step)
    other = nn.Parameter(distribute_tensor(torch.zeros(8, 8), mesh(), [Replicate()]))
    other.grad = torch.zeros_like(other)
    alike = nn.Parameter(distribute_tensor(torch.zeros(8, 8), where, [Replicate(), Shard(0)]))
    refused("one mesh", hocket.AdamW([other, alike]).step)


@case
def replicated_elements_count_once():
    """The norm, where some tensors are replicated, and one is no DTensor."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    where = mesh("hsdp")
    values = [torch.arange(1.0, 13.0) / 4, torch.arange(5.0, 13.0) / 8, torch.arange(2.0, 7.0)]
    params = [
        nn.Parameter(distribute_tensor(values[0], where, [Replicate(), Shard(0)])),
        nn.Parameter(distribute_tensor(values[1], where, [Replicate(), Replicate()])),
        nn.Parameter(values[2].to(DEVICE)),
    ]
    opt = hocket.AdamW(params)
    squares = sum(float(value.double().square().sum()) for value in values)
    for param in params:
        param.grad = param.detach().clone()
    opt.step()
    assert opt.grad_norm == squares**0.5, (opt.grad_norm, squares**0.5)


# -- Running --------------------------------------------------------------------------------------


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=DEVICE != "cpu")
    if DEVICE == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # equal bits in both models
        torch.cuda.set_device(RANK)
    dist.init_process_group(
        "gloo" if DEVICE == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=os.environ.get("HOCKET_TEST_MEET", f"file://{FOLDER}/meet"),
        rank=RANK,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if DEVICE == "cuda" else "default")
                name, *arguments = line.split()
                CASES[name](*arguments)
            text = "ok"
        except Exception:  # noqa: BLE001
            text = json.dumps(traceback.format_exc())
        answer.write(text + "\n")
        answer.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
