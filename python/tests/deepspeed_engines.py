# SPDX-License-Identifier: Apache-2.0
"""Engines of DeepSpeed for deepspeed_client.py and deepspeed_installed.py: their configurations,
training, and what they hold. GPUs and NCCL if there are any, otherwise the CPU and gloo."""

from __future__ import annotations

import datetime
import os
import sys

import deepspeed
import deepspeed.comm
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from models import batches, make

ON_GPU = torch.cuda.is_available()
STEPS = 3
CPU = {"offload_optimizer": {"device": "cpu"}}
THREE = {"stage3_param_persistence_threshold": 0, "sub_group_size": 5000}
# Name: ZeRO's options, type, other options, param groups. In ZeRO-3 a rank has several subgroups.
CASES = {
    "ZeRO-0 bf16": ({"stage": 0}, torch.bfloat16, {}, 1),
    "ZeRO-1 bf16 clipped": ({"stage": 1}, torch.bfloat16, {"gradient_clipping": 0.1}, 1),
    "ZeRO-2 fp32 offload, two groups": ({"stage": 2, **CPU}, torch.float32, {}, 2),
    "ZeRO-3 fp32": ({"stage": 3, **THREE}, torch.float32, {}, 1),
    "ZeRO-3 bf16 offload, accumulated, clipped, two groups": (
        {"stage": 3, **THREE, **CPU},
        torch.bfloat16,
        {"gradient_clipping": 0.1, "gradient_accumulation_steps": 2},
        2,
    ),
}


def begin() -> None:
    """Starts this rank."""
    torch.set_num_threads(1)
    # Otherwise it compiles a faster all-reduce first, for minutes.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    if ON_GPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(
        dist_backend="nccl" if ON_GPU else "gloo", timeout=datetime.timedelta(seconds=50)
    )


def started(kind, zero, dtype, more, groups, schedule=None, **options):
    """The engine, and the client optimizer that it has. schedule: makes its scheduler."""
    model = make("gpt", torch.float32)
    params = [param for param in model.parameters() if param.requires_grad]
    given = params
    if groups == 2:
        matrices = [param for param in params if param.dim() > 1]
        vectors = [param for param in params if param.dim() < 2]
        given = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    opt = kind(given, lr=2e-3, **options)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "bf16": {"enabled": dtype is torch.bfloat16},
        **more,
    }
    scheduler = schedule and schedule(opt)
    engine = deepspeed.initialize(
        model=model, optimizer=opt, lr_scheduler=scheduler, config=config
    )[0]
    return engine, opt


def train(engine, steps):
    """Returns the losses."""
    losses = []
    for step in steps:
        for micro in range(engine.gradient_accumulation_steps()):
            number = 1000 * step + 10 * micro + int(os.environ["RANK"])
            loss = engine(batches(1, seed=number)[0].to(engine.device))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
    return losses


def trainable(engine):
    return [param for param in engine.module.parameters() if param.requires_grad]


def values(engine, states):
    """Full weights of all parameters, and with `states` momentum and variance."""
    found = []
    for param in trainable(engine):
        weight = safe_get_full_fp32_param(param)
        found.append((param.detach().float() if weight is None else weight).clone())
        for key in ("exp_avg", "exp_avg_sq") if states else ():
            found.append(safe_get_full_optimizer_state(param, key).clone())
    return found
