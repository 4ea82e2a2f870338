# SPDX-License-Identifier: Apache-2.0
"""The reference optimizer: engine/adamw/adamw_scalar.c, element by element, and the norm as the root of
an exact sum of squares."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import pathlib
import subprocess
import tempfile
from typing import Dict, Iterable, List, Optional

import torch
from torch import Tensor

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}


class Hyper(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]


class Step(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_float)
        for name in ("scale", "decay", "rest1", "beta2", "rest2", "root2", "eps", "size")
    ] + [("key", ctypes.c_uint32 * 2)]


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """Built once for this process and those that it starts; before, where there is no compiler."""
    if "HOCKET_TEST_REFERENCE" not in os.environ:
        os.environ["HOCKET_TEST_REFERENCE"] = _build()
    return _declared(ctypes.CDLL(os.environ["HOCKET_TEST_REFERENCE"]))


def _build() -> str:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hocket-reference-"))
    out = folder / "reference.so"
    folder_of_c = ROOT / "engine/adamw"
    sources = [str(folder_of_c / name) for name in ("adamw.c", "adamw_scalar.c", "formats.c")]
    # The vector kernels take 7 s to compile, and are not called.
    unused = [f"-Wl,--defsym=hk_kernels_{name}=hk_kernels_scalar" for name in ("avx2", "avx512", "neon")]
    subprocess.run(
        [
            os.environ.get("CC", "cc"),
            "-std=c11",
            "-O2",
            "-ffp-contract=off",
            "-fPIC",
            "-shared",
            "-D_GNU_SOURCE",
            f"-I{ROOT}",
            "-o",
            str(out),
            *sources,
            *unused,
            "-lm",
            "-lpthread",
        ],
        check=True,
    )
    return str(out)


def _declared(lib: ctypes.CDLL) -> ctypes.CDLL:
    lib.hk_adamw_prepare.argtypes = [ctypes.POINTER(Hyper), ctypes.c_int64, ctypes.c_double]
    lib.hk_adamw_prepare.restype = Step
    lib.hk_adamw_scalar.argtypes = [ctypes.POINTER(Step), ctypes.c_int, ctypes.c_int64] + [
        ctypes.c_void_p
    ] * 5
    lib.hk_adamw_scalar.restype = None
    return lib


class ReferenceAdamW:
    """The part of torch.optim.AdamW's interface that the tests use, over the scalar reference."""

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas=(0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        max_norm: Optional[float] = None,
    ) -> None:
        params = list(params)
        if not isinstance(params[0], dict):
            params = [{"params": params}]
        self.param_groups: List[Dict] = []
        for group in params:
            group = dict(group)
            group["params"] = list(group["params"])
            for key, value in (
                ("lr", lr),
                ("betas", betas),
                ("eps", eps),
                ("weight_decay", weight_decay),
            ):
                group.setdefault(key, value)
            self.param_groups.append(group)
        self.max_norm = max_norm
        self.factor = 1.0  # gradients are multiplied by this, in addition to clipping
        self.blocks: Optional[List[List[Tensor]]] = None  # each is clipped by its own norm
        self.coefficients: List[float] = []  # of the last step, of each block
        self.state: Dict[Tensor, Dict] = {}
        self.grad_norm = 0.0

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        pairs = [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]
        whole = [p for _, p in pairs]
        self.grad_norm = self._norm([p.grad for p in whole]) * self.factor
        self.coefficients = []
        for block in [whole] if self.blocks is None else self.blocks:
            norm = self.grad_norm
            if self.blocks is not None:
                norm = self._norm([p.grad for p in block if p.grad is not None]) * self.factor
            clip = min(1.0, self.max_norm / (norm + 1e-6)) if self.max_norm else 1.0
            self.coefficients.append(self.factor * clip)
            members = {id(p) for p in block}
            for group, p in pairs:
                if id(p) in members:
                    self._update(group, p, self.factor * clip)
        self.factor = 1.0

    @staticmethod
    def _norm(grads: List[Tensor]) -> float:
        squares = (g.double().flatten().square().tolist() for g in grads)
        return math.sqrt(math.fsum(itertools.chain.from_iterable(squares)))

    def _update(self, group: Dict, p: Tensor, coefficient: float) -> None:
        state = self.state.setdefault(p, {})
        if not state:
            state.update(
                step=0,
                master_weight=p.detach().float().contiguous().clone(),
                exp_avg=torch.zeros(p.shape),
                exp_avg_sq=torch.zeros(p.shape),
            )
        state["step"] += 1
        hyper = Hyper(
            float(group["lr"]),
            *map(float, group["betas"]),
            float(group["eps"]),
            float(group["weight_decay"]),
        )
        lib = library()
        step = lib.hk_adamw_prepare(ctypes.byref(hyper), state["step"], coefficient)
        grad = p.grad.contiguous()
        lib.hk_adamw_scalar(
            ctypes.byref(step),
            TYPES[grad.dtype],
            p.numel(),
            state["master_weight"].data_ptr(),
            state["exp_avg"].data_ptr(),
            state["exp_avg_sq"].data_ptr(),
            grad.data_ptr(),
            None,
        )
        p.copy_(state["master_weight"])


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().cpu().contiguous().view(kind)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool((bits(a) == bits(b)).all())


def assert_same(opt, model, reference, other) -> None:
    """Asserts that p, m, v, steps and weights of opt/model and reference/other have equal bits."""
    opt.synchronize()
    if opt.is_bound():
        opt.follow_weights()
    for (name, p), (_, q) in zip(model.named_parameters(), other.named_parameters()):
        assert same_bits(p, q), f"weights of {name} differ"
        expected = reference.state.get(q)
        found = opt.state.get(p)
        assert (expected is None) == (found is None), f"{name}: state {found} for {expected}"
        if expected is None:
            continue
        assert float(found["step"]) == expected["step"], f"steps of {name}"
        for key in ("master_weight", "exp_avg", "exp_avg_sq"):
            assert same_bits(found[key], expected[key]), f"{key} of {name} differs"
