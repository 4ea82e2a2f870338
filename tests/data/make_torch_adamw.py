#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes torch-adamw.txt: what both forms of torch.optim.AdamW (fp32, CPU) make of parameters and
gradients that tests/test_engine_adamw_torch.c can make, too. Needs numpy, and a processor with
AVX2: torch's code for less fuses no multiply-adds.

    python3 make_torch_adamw.py > torch-adamw.txt

"KIND ELEMENTS WARMUP LR BETA1 BETA2 EPS WEIGHT_DECAY" begins a set: the fused form runs WARMUP
steps, in which lr rises from 0 in a line, and ten more; the single-tensor form runs those ten from
where the fused one is. One line an element: p, m and v of the fused form (hex, the bits of fp32),
and how many fp32 numbers further from zero the other form's p is. Its m and v are the same.
"""
import copy
import sys
from unittest import mock

import numpy
import torch

STEPS = 10
SCALE = 0xFFFF  # the draw that gives an element the scale of its gradients
TORCH = dict(betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)  # torch's defaults, but for lr
LLAMA = dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-1)  # what most of today's LLMs train with
SETS = [
    # Values and hyperparameters of all sizes.
    ("any", 512, 0, dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)),
    ("any", 512, 0, dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-1)),
    ("any", 512, 0, dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0)),
    ("any", 512, 0, dict(lr=1e-2, betas=(0.8, 0.99), eps=1e-8, weight_decay=1e-2)),
    ("any", 512, 0, dict(lr=6e-5, betas=(0.95, 0.98), eps=1e-5, weight_decay=1e-1)),
    ("any", 512, 0, dict(lr=1.0, betas=(0.6, 0.7), eps=1e-3, weight_decay=0.5)),
    # A transformer's first ten steps, lr high from the first.
    ("weights", 512, 0, dict(lr=3e-4, **LLAMA)),
    ("embeddings", 512, 0, dict(lr=3e-4, **LLAMA)),
    ("norms", 512, 0, dict(lr=3e-4, **LLAMA)),
    # Ten steps in the midst of its training.
    ("weights", 2048, 1000, dict(lr=1e-4, **TORCH)),
    ("weights", 2048, 1000, dict(lr=3e-4, **LLAMA)),
    ("embeddings", 2048, 1000, dict(lr=1e-4, **TORCH)),
    ("embeddings", 2048, 1000, dict(lr=3e-4, **LLAMA)),
    ("norms", 2048, 1000, dict(lr=1e-4, **TORCH)),
    ("norms", 2048, 1000, dict(lr=3e-4, **LLAMA)),
]


def noise(group, elements, draw):
    """SplitMix64's output function on a number of its own for each draw."""
    element = numpy.arange(elements, dtype=numpy.uint64)
    z = (numpy.uint64(group << 40 | draw) | element << 16) * numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> 30) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> 27) * numpy.uint64(0x94D049BB133111EB)
    return z ^ z >> 31


def of_bits(bits):
    return bits.astype(numpy.uint32).view(numpy.float32)


def any_parameter(group, elements):
    """Either sign, 2^-17 to 1; one in 64 is zero."""
    r = noise(group, elements, 0)
    x = of_bits(r & 0x807FFFFF | (110 + (r >> 32) % 17) << 23)
    return numpy.where(r >> 58 == 0, numpy.float32(0), x)


def any_gradient(group, elements, step):
    """bf16: either sign; every element has its own scale, from 2^-27, and varies by 16 about it; one
    in 16 is zero."""
    r = noise(group, elements, 4 * step)
    scale = 100 + noise(group, elements, SCALE) % 23
    x = of_bits((r & 0x807F | (scale + (r >> 16) % 4) << 7) << 16)
    return numpy.where(r >> 60 == 0, numpy.float32(0), x)


def normal(group, elements, step):
    """Nearly normal, in units of 2^-16: a sum of twelve uniform integers."""
    total = numpy.full(elements, -6 * 65535, dtype=numpy.int64)
    for draw in range(4 * step, 4 * step + 3):
        r = noise(group, elements, draw)
        for at in (0, 16, 32, 48):
            total += (r >> at & 0xFFFF).astype(numpy.int64)
    return total


def parameter(kind, group, elements):
    """As transformers are initialised: norms 1, all else with a deviation of 0.02."""
    if kind == "any":
        return any_parameter(group, elements)
    if kind == "norms":
        return numpy.ones(elements, dtype=numpy.float32)
    return (0.02 * normal(group, elements, 0) / 65536).astype(numpy.float32)


def gradient(kind, group, elements, step):
    """bf16: normal, each element with a deviation of its own, 2^-7 to 2^-16. An embedding's is zero
    but where its token occurs: in every batch, or one in 2, 4, ... 128."""
    if kind == "any":
        return any_gradient(group, elements, step)
    scale = noise(group, elements, SCALE)
    deviation = numpy.exp2(-7.0 - (scale % 10).astype(numpy.int64))
    x = (normal(group, elements, step) * deviation / 65536).astype(numpy.float32)
    x = of_bits(x.view(numpy.uint32) & 0xFFFF0000)
    if kind != "embeddings":
        return x
    absent = noise(group, elements, 4 * step + 3) & ((1 << (scale >> 8) % 8) - 1)
    return numpy.where(absent == 0, x, numpy.float32(0))


def root(x):
    """Correctly rounded: a double's is close enough to an fp32's for two roundings to be one."""
    return torch.from_numpy(numpy.sqrt(x.numpy().astype(numpy.float64)).astype(numpy.float32))


class Training:
    def __init__(self, value, hyper, fused):
        self.p = torch.nn.Parameter(torch.tensor(value))
        self.optimizer = torch.optim.AdamW([self.p], foreach=False, fused=fused, **hyper)

    def follow(self, other):
        self.p.data.copy_(other.p.data)
        self.optimizer.state[self.p] = copy.deepcopy(other.optimizer.state[other.p])

    def step(self, lr, grad):
        self.optimizer.param_groups[0]["lr"] = lr
        self.p.grad = torch.tensor(grad)
        self.optimizer.step()

    def bits(self):
        state = self.optimizer.state[self.p]
        columns = (self.p.detach(), state["exp_avg"], state["exp_avg_sq"])
        return numpy.stack([x.numpy().view(numpy.uint32) for x in columns])


def train(group, kind, elements, warmup, hyper):
    """p, m and v of the fused and of the single-tensor form; and of the latter with correctly
    rounded roots instead of MKL's."""
    value = parameter(kind, group, elements)
    fused, single, rounded = (Training(value, hyper, form) for form in (True, False, False))
    for step in range(1, warmup + STEPS + 1):
        if step == warmup + 1:
            single.follow(fused)
            rounded.follow(fused)
        now = hyper["lr"] * min(1, step / max(1, warmup)), gradient(kind, group, elements, step)
        fused.step(*now)
        if step > warmup:
            single.step(*now)
            with mock.patch.object(torch.Tensor, "sqrt", root):
                rounded.step(*now)
    return fused.bits(), single.bits(), rounded.bits()


def main():
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in ("AVX2", "AVX512"):
        sys.exit(f"torch runs its {capability} code here; the golden file is of AVX2 or AVX512.")
    print(f"# make_torch_adamw.py, torch {torch.__version__}, ATEN_CPU_CAPABILITY {capability}")
    for group, (kind, elements, warmup, hyper) in enumerate(SETS):
        figures = hyper["lr"], *hyper["betas"], hyper["eps"], hyper["weight_decay"]
        print(kind, elements, warmup, *figures)
        fused, single, rounded = train(group, kind, elements, warmup, hyper)
        assert (rounded == fused).all(), "the forms differ in more than square roots"
        assert (single[1:] == fused[1:]).all(), "the forms differ in m or v"
        assert ((single[0] ^ fused[0]) >> 31 == 0).all(), "a p has another sign in the other form"
        for (p, m, v), other in zip(fused.T, single[0]):
            print(f"{p:08x} {m:08x} {v:08x} {int(other) - int(p)}")


if __name__ == "__main__":
    main()
