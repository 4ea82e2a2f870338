# SPDX-License-Identifier: Apache-2.0
"""The formats of state (engine/adamw/formats.h) in numpy: arrays are decoded to fp32, updated in the
order of operations of engine/adamw/adamw.h, and encoded again."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Tuple

import numpy as np

NAN = np.uint32(0x7FC00000)
FORMATS = ("fp32", "split", "bf16", "bf16+split")
MASK = (1 << 64) - 1


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def canonical(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), NAN, bits(x)).view(np.float32)


def nearest(x: np.ndarray) -> np.ndarray:
    """bf16, to nearest even."""
    b = bits(canonical(x))
    return ((b + np.uint32(0x7FFF) + (b >> 16 & 1)) >> 16).astype(np.uint16)


def finite_stays(x: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x) & ((h & 0x7FFF) == 0x7F80), h - 1, h).astype(np.uint16)


def wide(h: np.ndarray) -> np.ndarray:
    return (h.astype(np.uint32) << 16).view(np.float32)


# -- Random bits ---------------------------------------------------------------------------------


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def random_key(seed: int, tensor: int, step: int) -> Tuple[int, int]:
    golden = 0x9E3779B97F4A7C15
    z = mix((mix(mix((seed + golden) & MASK) ^ tensor) + step * golden) & MASK)
    return z & 0xFFFFFFFF, z >> 32


def random_bits(key: Tuple[int, int], index: np.ndarray) -> np.ndarray:
    number = index.astype(np.uint64) >> np.uint64(1)
    high = (number >> np.uint64(32)).astype(np.uint32)
    x = number.astype(np.uint32) + np.uint32(key[0]) + high * np.uint32(0x9E3779B9)
    x ^= x >> 17
    x *= np.uint32(0xED5AD4BB)
    x ^= x >> 11
    x += np.uint32(key[1])
    x *= np.uint32(0xAC4C1B51)
    x ^= x >> 15
    x *= np.uint32(0x31848BAB)
    x ^= x >> 14
    return np.where(index % 2 != 0, x >> 16, x & 0xFFFF)


# -- State ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class State:
    """p: fp32 masters, or with split bf16 weights beside `low`; m, v: fp32, or bf16 as uint16."""

    p: np.ndarray
    low: Optional[np.ndarray]
    m: np.ndarray
    v: np.ndarray


def encode(
    form: str, p: np.ndarray, m: np.ndarray, v: np.ndarray, random: Optional[np.ndarray] = None
) -> State:
    """State of these values. `random`: 16 bits for each v; None: v to nearest even."""
    p, m, v = canonical(p), canonical(m), canonical(v)
    low, sign = None, np.zeros(p.shape, np.uint32)
    first: np.ndarray = p
    if "split" in form:
        first = nearest(p)
        difference = bits(p).astype(np.int64) - (first.astype(np.int64) << 16)
        assert difference.min(initial=0) >= -(1 << 15) and difference.max(initial=0) <= 1 << 15
        low = (difference & 0xFFFF).astype(np.uint16)
        sign = (difference == 1 << 15).astype(np.uint32)
    if "bf16" not in form:
        return State(first, low, m, (bits(v) | sign << 31).view(np.float32))
    h = nearest(v) if random is None else ((bits(v) + random) >> 16).astype(np.uint16)
    kept = finite_stays(v, h) | (sign << 15).astype(np.uint16)
    return State(first, low, finite_stays(m, nearest(m)), kept)


def decode(form: str, s: State) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    m, v, p = s.m, s.v, s.p
    if "bf16" in form:
        m, v = wide(m), wide(v)
    if "split" in form:
        assert s.low is not None
        sign = bits(v) >> 31
        v = (bits(v) & np.uint32(0x7FFFFFFF)).view(np.float32)
        difference = s.low.view(np.int16).astype(np.int64) + (sign.astype(np.int64) << 16)
        p = ((s.p.astype(np.int64) << 16) + difference).astype(np.uint32).view(np.float32)
    return p, m, v


# -- The update ----------------------------------------------------------------------------------


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c, rounded once: the product is exact in double, the sum is rounded to odd there
    (Boldo and Melquiond 2008)."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = np.asarray(product + addend)
    of_addend = total - product
    lost = (product - (total - of_addend)) + (addend - of_addend)
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    odd = np.isfinite(total) & (lost != 0) & even
    towards = np.where(lost > 0, np.inf, -np.inf)
    return np.where(odd, np.nextafter(total, towards), total).astype(np.float32)


def update(
    form: str,
    s: State,
    step: Dict[str, np.float32],
    key: Tuple[int, int],
    grad: np.ndarray,
    index: np.ndarray,
    v_to_nearest: bool = False,
) -> Tuple[State, np.ndarray]:
    """One update with fp32 gradients; returns the new state and the bf16 weights. `v_to_nearest`
    stands for what no format does: bf16 without random bits."""
    with np.errstate(all="ignore"):
        p, m, v = decode(form, s)
        g = step["scale"] * grad
        p = p * step["decay"]
        m = fused(np.broadcast_to(step["rest1"], m.shape), g - m, m)
        v = fused(step["rest2"] * g, g, v * step["beta2"])
        d = np.sqrt(v) / step["root2"] + step["eps"]
        p = p - step["size"] * m / d
        random = random_bits(key, index) if "bf16" in form and not v_to_nearest else None
        return encode(form, p, m, v, random), nearest(p)
