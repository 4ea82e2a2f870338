# SPDX-License-Identifier: Apache-2.0
"""The formats of state: numpy against the C reference, bit for bit, over several updates."""

import ctypes

import formats
import numpy as np
import pytest
import reference


class At(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("p", "low", "m", "v", "windows")]


N, STEPS, FIRST = 20011, 6, (1 << 32) - 6912  # a multiple of 128: FIRST begins a block


def values(generator: np.random.Generator) -> np.ndarray:
    """Ordinary numbers, ties of bf16, subnormals and special values."""
    x = generator.integers(0, 1 << 32, N, np.uint32)
    ordinary = (x & 0x807FFFFF) | generator.integers(103, 135, N).astype(np.uint32) << 23
    kind = generator.integers(0, 8, N)
    special = np.array(
        [0, 1 << 31, 1, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7F8000], np.uint32
    )
    b = np.select(
        [kind == 0, kind == 1, kind == 2],
        [special[generator.integers(0, 8, N)], (x & 0xFFFF0000) | 0x8000, x & 0x807FFFFF],
        ordinary,
    ).astype(np.uint32)
    return formats.canonical(b.view(np.float32))


def at(s: formats.State) -> At:
    low = s.low.ctypes.data if s.low is not None else None
    windows = s.windows.ctypes.data if s.windows is not None else None
    return At(s.p.ctypes.data, low, s.m.ctypes.data, s.v.ctypes.data, windows)


@pytest.mark.parametrize("form", formats.FORMATS)
def test_numpy_is_the_reference(form):
    library = reference.library()
    number = formats.FORMATS.index(form)
    generator = np.random.default_rng(number)
    v = np.abs(values(generator))
    state = formats.encode(form, values(generator), values(generator), v)
    mine = formats.State(*(x.copy() if x is not None else None for x in vars(state).values()))
    index = np.arange(FIRST, FIRST + N, dtype=np.uint64)
    for number_of_step in range(1, STEPS + 1):
        hyper = reference.Hyper(1e-3, 0.9, 0.95, 1e-8, 0.1)
        step = library.hk_adamw_prepare(ctypes.byref(hyper), number_of_step, 0.731)
        key = formats.random_key(7, 99, number_of_step)
        c_key = (ctypes.c_uint32 * 2)()
        library.hk_random_key(
            ctypes.c_uint64(7), ctypes.c_uint64(99), ctypes.c_int64(number_of_step), c_key
        )
        assert tuple(c_key) == key
        step.key = c_key
        names = ("scale", "decay", "rest1", "beta2", "rest2", "root2", "eps", "size")
        constants = {name: np.float32(getattr(step, name)) for name in names}
        grad, w = values(generator), np.zeros(N, np.uint16)
        library.hk_update_scalar(
            number,
            ctypes.byref(step),
            reference.TYPES[reference.torch.float32],
            ctypes.c_int64(N),
            at(state),
            at(state),
            ctypes.c_void_p(grad.ctypes.data),
            ctypes.c_void_p(w.ctypes.data),
            ctypes.c_int64(FIRST),
        )
        mine, my_w = formats.update(form, mine, constants, key, grad, index)
        assert np.array_equal(w, my_w)
        for name in ("p", "low", "m", "v", "windows"):
            a, b = getattr(state, name), getattr(mine, name)
            if a is not None:
                kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[a.itemsize]
                assert np.array_equal(a.view(kind), b.view(kind)), name
        # Without this the last steps would be of NaN alone.
        assert np.isfinite(formats.decode(form, mine)[0]).mean() > 0.3
