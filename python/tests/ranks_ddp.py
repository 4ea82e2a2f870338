# SPDX-License-Identifier: Apache-2.0
"""Cases of ranks in DistributedDataParallel."""

from __future__ import annotations

import contextlib

import torch

import hocket
from models import make
from ranks_setup import (
    DEVICE,
    FOLDER,
    RANK,
    STEPS,
    WORLD,
    case,
    compare,
    compare_scales,
    data,
    exact,
    go_on_with_another,
    groups,
    load_distributed,
    refused,
    save_distributed,
    shard,
    slow,
    start,
    train,
    with_small_tensors,
)


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
    """Gradients in DDP's own memory, small buckets, fp32, another model, zeros instead of None,
    clipping by torch."""
    options = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}
    exact(kind="ddp", overlap="both", sharding=options, max_norm=2.0, model="llama")
    exact(kind="ddp", overlap="forward", dtype=torch.float32, accumulate=torch.float32)
    exact(kind="ddp", overlap="both", training={"set_to_none": False})
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
