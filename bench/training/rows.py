# SPDX-License-Identifier: GPL-3.0-or-later
"""One class per way of training. Each row has its own model, created when its turn comes."""

from __future__ import annotations

import ast
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

import torch
from torch import Tensor

import workload
from measure import wait


class Row:
    """A way of training.

    Attributes:
        model: its model.
        exact: whether masters and state are fp32, and the norm clips as asked.
    """

    exact = True

    def __init__(self, job: "Job", settings: Optional[Mapping[str, str]] = None) -> None:
        self.job = job
        self.settings = dict(settings or {})
        if self.settings and not isinstance(self, Hocket):
            raise ValueError(f"this row takes no settings such as {next(iter(self.settings))}")
        self.model = self._build()

    def _build(self) -> Any:
        return workload.build(self.job.shape, self.job.device, self.job.checkpointing)

    def forward(self, tokens: Tensor, factor: float) -> Tensor:
        """The loss."""
        return workload.loss_of(self.model, tokens, factor)

    def backward(self, loss: Tensor) -> None:
        """Gradients."""
        loss.backward()

    def step(self) -> Optional[Any]:
        """Updates; returns the norm before clipping: a number or a tensor of one."""
        raise NotImplementedError

    def drain(self) -> None:
        """Returns when the last step is complete."""
        wait(self.job.device)

    def after(self) -> Dict[str, Any]:
        """Further results, after a step."""
        return {}

    def close(self) -> None:
        """Called at the end of the row's turn."""
        self.model = None


class Job:
    """Settings and data shared by all rows."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.shape = workload.shape(options.size, options.layers)
        self.checkpointing = True
        self.predictions: Dict[Tuple[str, int], Dict[str, Any]] = {}
        self.spec = ""  # of the row whose turn it is
        self.plans: Dict[str, str] = {}
        """Plans (JSON text) that were chosen with measured block times, of rows by their names."""

    def batches(self, micro_batch: int) -> List[Tensor]:
        """See workload.batches."""
        return workload.batches(self.shape, micro_batch, self.device)


class ModelOnly(Row):
    """Forward and backward; gradients are dropped."""

    def step(self) -> None:
        for param in self.model.parameters():
            param.grad = None


class OnGpu(Row):
    """Everything in GPU memory: fp32 masters, torch's fused AdamW. Gradients are cast to fp32 in
    groups of tensors with CHUNK elements or more."""

    CHUNK = 1 << 28

    def __init__(self, job: Job, settings: Optional[Mapping[str, str]] = None) -> None:
        super().__init__(job, settings)
        self.params = list(self.model.parameters())
        self.masters = [param.detach().float() for param in self.params]
        self.m = [torch.zeros_like(master) for master in self.masters]
        self.v = [torch.zeros_like(master) for master in self.masters]
        self.steps = [torch.zeros((), device=job.device) for _ in self.params]
        self.chunks = self._chunks()

    def _chunks(self) -> List[range]:
        chunks, begin, size = [], 0, 0
        for number, param in enumerate(self.params):
            size += param.numel()
            if size >= self.CHUNK:
                chunks.append(range(begin, number + 1))
                begin, size = number + 1, 0
        if begin < len(self.params):
            chunks.append(range(begin, len(self.params)))
        return chunks

    @torch.no_grad()
    def step(self) -> Tensor:
        grads = [param.grad for param in self.params]
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        # Gradients are divided by grad_scale: 1 / coefficient.
        scale = ((norm + 1e-6) / workload.MAX_NORM).clamp(min=1.0).float()
        torch._foreach_add_(self.steps, 1)
        for chunk in self.chunks:
            masters = [self.masters[i] for i in chunk]
            torch._fused_adamw_(
                masters, [grads[i].float() for i in chunk], [self.m[i] for i in chunk],
                [self.v[i] for i in chunk], [], [self.steps[i] for i in chunk],
                lr=workload.LR, beta1=workload.BETAS[0], beta2=workload.BETAS[1],
                weight_decay=workload.WEIGHT_DECAY, eps=workload.EPS, amsgrad=False,
                maximize=False, grad_scale=scale, found_inf=None)
            torch._foreach_copy_([self.params[i] for i in chunk], masters)
        for param in self.params:
            param.grad = None
        return norm

    def close(self) -> None:
        super().close()
        self.params = self.masters = self.m = self.v = self.steps = []


class Library(Row):
    """An optimizer of a library on bf16 weights: no fp32 masters, no clipping."""

    exact = False

    def __init__(self, job: Job, settings: Optional[Mapping[str, str]] = None) -> None:
        super().__init__(job, settings)
        self.optimizer: Any = self.make(
            self.model.parameters(), lr=workload.LR, betas=workload.BETAS, eps=workload.EPS,
            weight_decay=workload.WEIGHT_DECAY)

    def make(self, params: Any, **settings: Any) -> Any:
        """The optimizer."""
        raise NotImplementedError

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self) -> None:
        super().close()
        self.optimizer = None


class Torchao(Library):
    """torchao's CPUOffloadOptimizer: bf16 state on the host."""

    def make(self, params: Any, **settings: Any) -> Any:
        from torchao.optim import CPUOffloadOptimizer

        return CPUOffloadOptimizer(params, torch.optim.AdamW, fused=True, **settings)


class AdamW8bit(Library):
    """bitsandbytes' AdamW8bit: 8-bit moments on the GPU."""

    def make(self, params: Any, **settings: Any) -> Any:
        from bitsandbytes.optim import AdamW8bit as found

        return found(params, **settings)


class AdamW8bitTorchao(Library):
    """torchao's AdamW8bit, which torch.compile makes."""

    def make(self, params: Any, **settings: Any) -> Any:
        from torchao.optim import AdamW8bit as found

        return found(params, **settings)


class DeepSpeed(Row):
    """DeepSpeed ZeRO with the optimizer on the CPU, in pinned memory."""

    stage = 2

    def __init__(self, job: Job, settings: Optional[Mapping[str, str]] = None) -> None:
        for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"),
                            ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29531")):
            os.environ.setdefault(name, value)
        super().__init__(job, settings)
        import deepspeed

        self.engine, *_ = deepspeed.initialize(
            model=self.model, model_parameters=self.model.parameters(),
            config=workload.deepspeed(self.stage, job.options.micro_batches[0]))
        self.model = self.engine

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> Optional[float]:
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        return None if norm is None else float(norm)

    def close(self) -> None:
        super().close()
        self.engine = None


class DeepSpeed3(DeepSpeed):
    """ZeRO-3: weights sharded, too (over one GPU), in subgroups of 100 M parameters."""

    stage = 3


class Hocket(Row):
    """hocket.AdamW, attached."""

    overlap = "none"
    attached = True
    policy: Optional[str] = None
    """A policy of its own, whatever --plan says."""

    def __init__(self, job: Job, settings: Optional[Mapping[str, str]] = None) -> None:
        super().__init__(job, settings)
        import hocket

        import plans

        begin = time.perf_counter()
        overlap = self.overlap if self.attached else "none"
        given: Dict[str, Any] = {name: literal(value) for name, value in self.settings.items()
                                 if name not in ("plan", "machine")}
        given.setdefault("cpu_threads", job.options.cpu_threads)
        self.plan = job.plans.get(job.spec) or plans.resolve(
            plans.wanted(self, job), self.model, job, overlap, given["cpu_threads"])
        if job.spec in job.plans:
            for name in ("gpu_memory", "host_memory", "clip_share"):
                given.pop(name, None)  # the plan has chosen what it holds
        self.optimizer: Any = hocket.AdamW(
            self.model.parameters(), lr=workload.LR, betas=workload.BETAS, eps=workload.EPS,
            weight_decay=workload.WEIGHT_DECAY, max_norm=workload.MAX_NORM, overlap=overlap,
            plan=self.plan, **given)
        if self.attached:
            self.optimizer.attach(self.model)
        self.made_s = time.perf_counter() - begin
        self.elements = workload.parameters(self.model)
        self.ahead: List[int] = []
        self.scales: List[float] = []
        self.host_s: Dict[str, float] = {"step": 0.0}

    def step(self) -> float:
        begin = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.host_s["step"] += time.perf_counter() - begin
        last = self.optimizer.last_step
        self.ahead.append(last.ahead)
        self.scales.append(last.grad_scale)
        return float(last.grad_norm)

    def drain(self) -> None:
        self.optimizer.synchronize()
        wait(self.job.device)

    def update_alone(self, tokens: Tensor, factor: float) -> float:
        """Seconds from step() until the new weights are on the GPU, with gradients on the host and
        an idle GPU (overlap none)."""
        self.backward(self.forward(tokens, factor))
        wait(self.job.device)
        # No call waits for the last gradients to reach the host: 6.7 G parameters take 0.3 s.
        time.sleep(0.5 if self.job.device.type == "cuda" else 0.0)
        begin = time.perf_counter()
        self.optimizer.step()
        self.drain()
        seconds = time.perf_counter() - begin
        self.optimizer.zero_grad()
        return seconds

    def after(self) -> Dict[str, Any]:
        self.drain()
        said: Dict[str, Any] = {"stats": self.optimizer.stats(),
                                "explain": self.optimizer.explain()}
        if self.ahead:
            said["ahead"] = [round(count / self.elements, 4) for count in self.ahead]
            said["clipped_steps"] = sum(scale != 1.0 for scale in self.scales)
            said["step_call_ms"] = round(self.host_s["step"] / len(self.ahead) * 1e3, 3)
        self.ahead, self.scales, self.host_s = [], [], {"step": 0.0}
        return said

    def close(self) -> None:
        super().close()
        if self.optimizer is not None and self.optimizer.is_bound():
            self.optimizer.binding().engine.close()
        self.optimizer = None


class HocketForward(Hocket):
    """The update runs beside the next forward."""

    overlap = "forward"


class HocketBoth(Hocket):
    """The update runs beside forward and backward, ahead of the norm."""

    overlap = "both"


class HocketDropIn(Hocket):
    """Not attached: p.grad is read in step()."""

    attached = False


class HocketGpu(Hocket):
    """hocket with all state on the GPU, to compare bits."""

    policy = "gpu-only"


ROWS: Dict[str, Type[Row]] = {
    "model-only": ModelOnly,
    "gpu": OnGpu,
    "hocket-none": Hocket,
    "hocket-forward": HocketForward,
    "hocket-both": HocketBoth,
    "hocket-dropin": HocketDropIn,
    "hocket-gpu": HocketGpu,
    "torchao": Torchao,
    "adamw8bit": AdamW8bit,
    "adamw8bit-torchao": AdamW8bitTorchao,
    "deepspeed-2": DeepSpeed,
    "deepspeed-3": DeepSpeed3,
}


def literal(value: str) -> Any:
    """A setting's value: a Python literal, or the text itself."""
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return int(found) if isinstance(found, float) and found.is_integer() else found


def parse(spec: str) -> Tuple[str, Dict[str, str]]:
    """NAME[+SETTING=VALUE...] as the row's name and its settings."""
    name, *parts = spec.replace("+split", "_split").split("+")  # split is no setting
    settings = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"'{part}' in row '{spec}': write SETTING=VALUE")
        settings[key] = value.replace("_split", "+split")
    return name, settings


ALONE = ("torchao", "adamw8bit", "adamw8bit-torchao", "deepspeed-2", "deepspeed-3")
"""Rows that have a process of their own: they leave memory, hooks or process groups behind."""
