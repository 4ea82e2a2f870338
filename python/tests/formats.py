# SPDX-License-Identifier: Apache-2.0
"""The formats of state (engine/adamw/formats.h) in numpy: arrays are decoded to fp32, updated in the
order of operations of engine/adamw/adamw.h, and encoded again."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Tuple

import numpy as np

NAN = np.uint32(0x7FC00000)
FORMATS = ("fp32", "split", "bf16", "bf16+split", "8bit", "8bit+split")
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


def random_words(key: Tuple[int, int], index: np.ndarray, number: np.ndarray) -> np.ndarray:
    high = (index.astype(np.uint64) >> np.uint64(33)).astype(np.uint32)
    x = number.astype(np.uint32) + np.uint32(key[0]) + high * np.uint32(0x9E3779B9)
    x ^= x >> 17
    x *= np.uint32(0xED5AD4BB)
    x ^= x >> 11
    x += np.uint32(key[1])
    x *= np.uint32(0xAC4C1B51)
    x ^= x >> 15
    x *= np.uint32(0x31848BAB)
    x ^= x >> 14
    return x


def random_bits(key: Tuple[int, int], index: np.ndarray) -> np.ndarray:
    """16 bits for each element."""
    x = random_words(key, index, index.astype(np.uint64) >> np.uint64(1))
    return np.where(index % 2 != 0, x >> 16, x & 0xFFFF)


def code_bits(key: Tuple[int, int], index: np.ndarray) -> np.ndarray:
    """20 bits for each element, for codes."""
    i = index.astype(np.uint64)
    number = (i // np.uint64(64) * np.uint64(16)) + i % np.uint64(32) // np.uint64(2)
    x = random_words(key, index, number)
    x = np.where((index & 32) != 0, x << 8 | x >> 24, x)
    return np.where(index % 2 != 0, x >> 12, (x << 4 & 0xFFFF0) | 8)


# -- Codes ---------------------------------------------------------------------------------------

BLOCK, CODES_M, CODES_V = 128, 125, 253


def blocks(x: np.ndarray) -> np.ndarray:
    return np.pad(x, (0, -len(x) % BLOCK)).reshape(-1, BLOCK)


def encode_codes(
    x: np.ndarray, random: Optional[np.ndarray], codes: int
) -> Tuple[np.ndarray, np.ndarray]:
    """Codes of 8 bits (of v: without a sign) and the window of each block."""
    b = blocks(bits(canonical(x)))
    magnitude = (b & np.uint32(0x7FFFFFFF)).astype(np.int64)
    finite = magnitude < 0x7F800000
    add = (1 << 19) - 1 + (magnitude >> 20 & 1)
    if random is not None:
        add = blocks(random.astype(np.int64))
    u = np.minimum((magnitude + add) >> 20, 0x7F7)
    most = np.where(finite, u, 0).max(axis=1)
    window = np.maximum(-((codes - 1 - most) // 8), 1)[:, None]
    code = u - 8 * window + 1
    if codes == CODES_V:
        code = np.where(magnitude == 0, 0, np.maximum(code, 1))
    else:
        # Below the window: the share of the lowest value, in units of 2^-16. Subnormal m are 0.
        shift = np.clip(window - (magnitude >> 23) + 7, 0, 62)
        share = ((magnitude & 0x7FFFFF) | 0x800000) >> shift
        share = np.where(magnitude >> 23 == 0, 0, share)
        code = np.where(magnitude < window << 23, share > add >> 4, code)
    code = np.where(finite, code, np.where(magnitude == 0x7F800000, codes + 1, codes + 2))
    if codes == CODES_M:
        code = code | b.astype(np.int64) >> 24 & 0x80
    return code.reshape(-1)[: len(x)].astype(np.uint8), window[:, 0].astype(np.uint8)


def decode_codes(code: np.ndarray, window: np.ndarray, codes: int) -> np.ndarray:
    c = code.astype(np.int64)
    sign = np.zeros_like(c) if codes == CODES_V else (c & 0x80) << 24
    c = c if codes == CODES_V else c & 0x7F
    first = np.repeat(8 * window.astype(np.int64) - 1, BLOCK)[: len(c)]
    b = np.where(c == 0, 0, (c + first) << 20)
    b = np.where(c == codes + 1, 0x7F800000, np.where(c == codes + 2, int(NAN), b))
    return (b | sign).astype(np.uint32).view(np.float32)


# -- State ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class State:
    """p: fp32 masters, or with split bf16 weights beside `low`; m, v: fp32, bf16 as uint16, or codes
    as uint8 with two `windows` a block."""

    p: np.ndarray
    low: Optional[np.ndarray]
    m: np.ndarray
    v: np.ndarray
    windows: Optional[np.ndarray] = None


def encode(
    form: str, p: np.ndarray, m: np.ndarray, v: np.ndarray, random: Optional[np.ndarray] = None
) -> State:
    """State of these values, which begin a tensor's block. `random`: 16 bits for each v, or with 8bit
    20 bits for each v and m; None: to nearest even."""
    p, m, v = canonical(p), canonical(m), canonical(v)
    low, sign = None, np.zeros(p.shape, np.uint32)
    if "8bit" in form:  # no ties that are rounded down
        p = (bits(p) - ((bits(p) & 0x1FFFF) == 0x8000)).astype(np.uint32).view(np.float32)
    first: np.ndarray = p
    if "split" in form:
        first = nearest(p)
        difference = bits(p).astype(np.int64) - (first.astype(np.int64) << 16)
        assert difference.min(initial=0) >= -(1 << 15) and difference.max(initial=0) <= 1 << 15
        low = (difference & 0xFFFF).astype(np.uint16)
        sign = (difference == 1 << 15).astype(np.uint32)
    if "8bit" in form:
        m_code, m_window = encode_codes(m, random, CODES_M)
        v_code, v_window = encode_codes(v, random, CODES_V)
        return State(first, low, m_code, v_code, np.stack([m_window, v_window], axis=1))
    if "bf16" not in form:
        return State(first, low, m, (bits(v) | sign << 31).view(np.float32))
    h = nearest(v) if random is None else ((bits(v) + random) >> 16).astype(np.uint16)
    kept = finite_stays(v, h) | (sign << 15).astype(np.uint16)
    return State(first, low, finite_stays(m, nearest(m)), kept)


def decode(form: str, s: State) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    m, v, p = s.m, s.v, s.p
    if "8bit" in form:
        assert s.windows is not None
        m = decode_codes(m, s.windows[:, 0], CODES_M)
        v = decode_codes(v, s.windows[:, 1], CODES_V)
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
        random = None
        if not v_to_nearest:
            random = random_bits(key, index) if "bf16" in form else None
            random = code_bits(key, index) if "8bit" in form else random
        return encode(form, p, m, v, random), nearest(p)
