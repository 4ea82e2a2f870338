#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Maps of 8 bits for AdamW's momentum and variance, by the error of its updates.

    bench/state_maps.py [--steps 3000] [--elements 8192]

p after AdamW's updates with m and v rounded after each, against AdamW in fp64: root mean square of
the difference, over that of the change of p; and the share of elements whose v was rounded to 0.
Updates are computed in double, so that only the maps differ."""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python/tests"))
import formats  # noqa: E402

BETA1, BETA2, EPS, LR, DECAY = 0.9, 0.999, 1e-8, 1e-3, 0.01


def dynamic_map(signed):
    """bitsandbytes' create_dynamic_map for 8 bits: seven decades, each with half as many values as
    the next larger one."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1)
        middles = 10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2
        values += list(middles) + (list(-middles) if signed else [])
    return np.sort(values)


def largest(x, block):
    most = np.repeat(np.abs(x).reshape(-1, block).max(axis=1), block)
    return np.where(most > 0, most, 1)


def dynamic(m, v, random):
    kept = []
    for x, values in ((m, dynamic_map(True)), (v, dynamic_map(False))):
        scale = largest(x, 256)
        middles = (values[1:] + values[:-1]) / 2
        kept.append(values[np.searchsorted(middles, x / scale)] * scale)
    return kept


def companding(m, v, random):
    scale_m, root = largest(m, 32), np.sqrt(v)
    scale_v = largest(root, 32)
    x = m / scale_m
    y = np.rint(127 * 2 * x / (1 + np.abs(x))) / 127
    return y / (2 - np.abs(y)) * scale_m, (np.rint(255 * root / scale_v) / 255 * scale_v) ** 2


def codes(m, v, random):
    kept = []
    for x, count in ((m, formats.CODES_M), (v, formats.CODES_V)):
        code, window = formats.encode_codes(x.astype(np.float32), random, count)
        kept.append(formats.decode_codes(code, window, count).astype(np.float64))
    return kept


def codes_to_nearest(m, v, random):
    return codes(m, v, None)


MAPS = {
    "dynamic": dynamic, "companding": companding, "8bit": codes,
    "8bit, to nearest": codes_to_nearest,
}


def sizes_of(kind, generator, n):
    if kind == "equal":
        return np.full(n, 1e-3)
    if kind == "each from e^-12 to e^-2":
        return np.exp(generator.uniform(-12, -2, n))
    if kind == "sparse rows":
        return 1e-3 * np.exp(generator.normal(0, 0.5, n))
    rows = np.repeat(np.exp(generator.uniform(-12, -2, n // 1024)), 1024)
    return rows * np.exp(generator.normal(0, 1.5 if "1.5" in kind else 1, n))


KINDS = (
    "equal", "rows, sigma 1", "rows, sigma 1.5", "sparse rows", "each from e^-12 to e^-2",
)


def update(state, g, step):
    p, m, v = state
    m = m + (1 - BETA1) * (g - m)
    v = BETA2 * v + (1 - BETA2) * g * g
    d = np.sqrt(v) / np.sqrt(1 - BETA2**step) + EPS
    return p * (1 - LR * DECAY) - LR / (1 - BETA1**step) * m / d, m, v


def errors(kind, steps, n):
    generator, other = np.random.default_rng(2), np.random.default_rng(77)
    start = generator.standard_normal(n) * 0.02
    sizes = sizes_of(kind, generator, n)
    drift = generator.standard_normal(n) * 0.3
    often = np.exp(generator.uniform(np.log(0.001), 0, n // 128))
    exact = start, np.zeros(n), np.zeros(n)
    kept = {name: exact for name in MAPS}
    for step in range(1, steps + 1):
        g = (generator.standard_normal(n) + drift) * sizes
        if kind == "sparse rows":
            g = g * np.repeat(generator.random(n // 128) < often, 128)
        random = other.integers(0, 1 << 20, n)
        exact = update(exact, g, step)
        for name, keep in MAPS.items():
            p, m, v = update(kept[name], g, step)
            kept[name] = p, *keep(m, v, random)
    change = np.sqrt(np.mean((exact[0] - start) ** 2))
    for name, (p, _, v) in kept.items():
        gone = np.mean((v == 0) & (exact[2] > 0))
        yield name, np.sqrt(np.mean((p - exact[0]) ** 2)) / change, gone


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--elements", type=int, default=8192)
    options = parser.parse_args()
    print("| sizes of gradients | map | error of p, of its change | v rounded to 0 |")
    print("|---|---|---:|---:|")
    for kind in KINDS:
        for name, error, gone in errors(kind, options.steps, options.elements):
            print(f"| {kind} | {name} | {error:.3g} | {100 * gone:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
