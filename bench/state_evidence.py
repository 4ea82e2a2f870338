#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the formats of state do to AdamW's numbers, by numpy's reference (python/tests/formats.py).

    bench/state_evidence.py [--steps 100000] [--elements 1024] [--update-steps 3000]

First: v over many steps with beta2 = 0.999, stored as bf16 after each step, rounded to nearest and
at random, and in 8 bits, against fp64. The gradients' size is 1 in the first half of the steps and
0.1 in the second. Prints the mean over the elements of v / v_fp64 - 1, with its standard error.

Second: p after AdamW's updates in each format against AdamW in fp64, with the same gradients:
root mean square of the difference, over that of the change of p since the start."""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python/tests"))
import formats  # noqa: E402

BETA1, BETA2, EPS, LR, DECAY = 0.9, 0.999, 1e-8, 1e-3, 0.01


def mean_and_error(ratio):
    return ratio.mean(), ratio.std(ddof=1) / np.sqrt(len(ratio))


def variance(steps, elements):
    generator = np.random.default_rng(1)
    index = np.arange(elements, dtype=np.uint64)
    beta2, rest2 = np.float32(BETA2), np.float32(1 - BETA2)
    exact = np.zeros(elements)
    kept = {"fp32": np.zeros(elements, np.float32)}
    for name in ("nearest", "random", "8bit"):
        kept[name] = kept["fp32"].copy()
    print("| step | size of gradients | fp32 | bf16, nearest | bf16, random | 8bit |")
    print("|---:|---:|---:|---:|---:|---:|")
    for step in range(1, steps + 1):
        size = np.float32(1 if step <= steps // 2 else 0.1)
        g = generator.standard_normal(elements, np.float32) * size
        exact = exact * float(beta2) + float(rest2) * g.astype(np.float64) ** 2
        for name in kept:
            v = formats.fused(rest2 * g, g, kept[name] * beta2)
            if name == "nearest":
                v = formats.wide(formats.nearest(v))
            elif name == "random":
                r = formats.random_bits(formats.random_key(7, 1, step), index)
                v = formats.wide(((formats.bits(v) + r) >> 16).astype(np.uint16))
            elif name == "8bit":
                r = formats.code_bits(formats.random_key(7, 1, step), index)
                code, window = formats.encode_codes(v, r, formats.CODES_V)
                v = formats.decode_codes(code, window, formats.CODES_V)
            kept[name] = v
        if step % (steps // 10) == 0:
            cells = [mean_and_error(values / exact - 1) for values in kept.values()]
            text = " | ".join(f"{100 * m:+.4f} % +- {100 * e:.4f}" for m, e in cells)
            print(f"| {step} | {size:g} | {text} |", flush=True)


def updates(steps, elements):
    def constants(step):
        return {
            "scale": np.float32(1), "decay": np.float32(1 - LR * DECAY),
            "rest1": np.float32(1 - BETA1), "beta2": np.float32(BETA2),
            "rest2": np.float32(1 - BETA2), "root2": np.float32(np.sqrt(1 - BETA2**step)),
            "eps": np.float32(EPS), "size": np.float32(LR / (1 - BETA1**step)),
        }

    generator = np.random.default_rng(2)
    index = np.arange(elements, dtype=np.uint64)
    start = (generator.standard_normal(elements) * 0.02).astype(np.float32)
    sizes = np.exp(generator.uniform(-12, -2, elements)).astype(np.float32)
    drift = generator.standard_normal(elements).astype(np.float32) * 0.3
    zeros = np.zeros(elements, np.float32)
    kept = {form: formats.encode(form, start, zeros, zeros) for form in formats.FORMATS}
    nearest = formats.encode("bf16", start, zeros, zeros)  # v to nearest, too
    p, m, v = start.astype(np.float64), np.zeros(elements), np.zeros(elements)
    for step in range(1, steps + 1):
        g = (generator.standard_normal(elements).astype(np.float32) + drift) * sizes
        g = formats.wide(formats.nearest(g))
        wide, now, key = g.astype(np.float64), constants(step), formats.random_key(7, 1, step)
        p *= float(now["decay"])
        m += float(now["rest1"]) * (wide - m)
        v = v * float(now["beta2"]) + float(now["rest2"]) * wide**2
        p -= float(now["size"]) * m / (np.sqrt(v) / float(now["root2"]) + float(now["eps"]))
        for form in kept:
            kept[form], _ = formats.update(form, kept[form], now, key, g, index)
        nearest, _ = formats.update("bf16", nearest, now, key, g, index, v_to_nearest=True)
    change = np.sqrt(np.mean((p - start) ** 2))
    print("| state | error of p against fp64, of the change of p |")
    print("|---|---:|")
    rows = [(form, formats.decode(form, kept[form])[0]) for form in kept]
    rows.append(("bf16 with v to nearest", formats.decode("bf16", nearest)[0]))
    rows.append(("bf16 weights rounded from fp32", formats.wide(formats.nearest(rows[0][1]))))
    for name, found in rows:
        print(f"| {name} | {np.sqrt(np.mean((found - p) ** 2)) / change:.2e} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--elements", type=int, default=1024)
    parser.add_argument("--update-steps", type=int, default=3000)
    options = parser.parse_args()
    variance(options.steps, options.elements)
    print()
    updates(options.update_steps, options.elements)


if __name__ == "__main__":
    main()
