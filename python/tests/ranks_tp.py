# SPDX-License-Identifier: Apache-2.0
"""Cases of FSDP2 over ranks that also split matrices among themselves (tensor parallelism)."""

from __future__ import annotations

import torch
from torch import nn

import hocket
from ranks_setup import (
    DEVICE,
    FOLDER,
    RANK,
    WORLD,
    case,
    compare,
    exact,
    load_distributed,
    mesh,
    save_distributed,
    slow,
    start,
    train,
)


@case
def tp():
    """Matrices with two shardings, biases that the ranks of a matrix repeat, tensors of which they
    know nothing: bits are the reference's, and the norm counts each element once."""
    for settings in ({}, {"overlap": "both"}):
        opt, model, _ = exact(kind="tp", max_norm=2.0, **settings)
        assert opt.last_step.grad_scale < 1
        kinds = {str(p.placements) for p in model.parameters()}
        assert len(kinds) >= 3, kinds


@slow
def tp_otherwise():
    """Updates ahead of the norm, sums of several micro-steps, fp32, untied weights."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    exact(kind="tp", overlap="both")
    exact(kind="tp", overlap="forward", max_norm=3.6, training={"micro": 2, "steps": 3})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    exact(kind="tp", overlap="both", dtype=torch.float32, sharding={"mp_policy": policy})
    exact(kind="tp", overlap="both", model="llama", max_norm=0.5)


@slow
def tp_resumes():
    """A checkpoint goes into a model that is sharded alone, and back."""
    opt, model, reference = start(kind="tp", max_norm=2.0, overlap="both")
    train(opt, model, reference, steps=2)
    for kind in ("fsdp", "tp"):
        opt.synchronize()
        save_distributed(FOLDER / f"before-{kind}", opt, model)
        opt, model, new = start(kind=kind, max_norm=2.0, overlap="both")
        load_distributed(FOLDER / f"before-{kind}", opt, model)
        opt.bind()
        compare(opt, model, reference)
    new.take(*reference.found())
    train(opt, model, new, steps=2, first=2)
    compare(opt, model, new)


@case
def parts_of_whole_tensors():
    """As torch cuts them, also where two dimensions of the mesh split one of the tensor unevenly."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    where = mesh("tp")
    for shape in ((12, 8), (7, 5), (3,)):
        value = torch.arange(float(torch.Size(shape).numel()), device=DEVICE).reshape(shape)
        for placements in ([Shard(0), Shard(0)], [Replicate(), Shard(0)], [Shard(0), Replicate()]):
            param = nn.Parameter(distribute_tensor(value, where, placements))
            found = hocket.ranks.part_of(param, value)
            assert torch.equal(found, param._local_tensor), (shape, placements, RANK, WORLD)
