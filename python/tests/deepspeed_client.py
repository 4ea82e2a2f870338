# SPDX-License-Identifier: Apache-2.0
"""One of the ranks that test_deepspeed.py starts: hocket.AdamW as DeepSpeed's client optimizer,
against torch.optim.AdamW in the same place, and with hocket.deepspeed.install against without.
Usage: deepspeed_client.py FOLDER

Ranks use GPUs and NCCL if there are any, otherwise the CPU and gloo."""

from __future__ import annotations

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from deepspeed.utils import (  # noqa: E402
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)

import hocket  # noqa: E402
import deepspeed_installed  # noqa: E402
from deepspeed_engines import (  # noqa: E402
    CASES,
    ON_GPU,
    STEPS,
    begin,
    started,
    train,
    trainable,
    values,
)


def as_torch(name) -> None:
    """The same bits as torch's fused form on the CPU, but for the last elements of a partition (see
    engine/adamw/adamw.h). Partitions on the GPU are compared with torch's other form, from which
    its fused form differs by up to 0.014 of the largest weight. Reached on GPUs: 0.015 in weights,
    7e-7 in momentum and variance."""
    zero, _, _, groups = case = CASES[name]
    on_gpu = ON_GPU and "offload_optimizer" not in zero
    form, limits = ("foreach", (0.02, 1e-6, 1e-6)) if on_gpu else ("fused", (1e-6, 1e-6, 1e-6))
    # DeepSpeed itself loses the states of the second group where they are fragments.
    states = zero["stage"] == 3 or (zero["stage"] > 0 and groups == 1)
    answers = []
    for kind, options in ((hocket.AdamW, {"cpu_threads": 1}), (torch.optim.AdamW, {form: True})):
        engine, _ = started(kind, *case, **options)
        train(engine, range(STEPS))
        answers.append(values(engine, states))
        engine.destroy()
    for i, (mine, its) in enumerate(zip(*answers)):
        limit = limits[i % 3] if states else limits[0]  # of weights, momentum, variance
        assert float((mine - its).abs().max()) <= limit * float(its.abs().max()), (i, limit)
    print(f"as torch.optim.AdamW: {name}")


def resumes(name, folder) -> None:
    """Training that a checkpoint has interrupted ends with the same bits."""
    place = str(folder / name.split()[0])
    first, _ = started(hocket.AdamW, *CASES[name], cpu_threads=1)
    train(first, range(2))
    first.save_checkpoint(place)
    train(first, range(2, 4))
    expected = values(first, True)
    second, _ = started(hocket.AdamW, *CASES[name], cpu_threads=1)
    second.load_checkpoint(place)
    train(second, range(2, 4))
    assert all(map(torch.equal, values(second, True), expected))
    print(f"resumed: {name}")


def takes_fragments(name) -> None:
    """What DeepSpeed's calls write is there, and the next step starts from it."""
    engines = [started(hocket.AdamW, *CASES[name], cpu_threads=1)[0] for _ in range(2)]
    train(engines[0], range(2))
    train(engines[1], range(1))
    for mine, its in zip(trainable(engines[1]), trainable(engines[0])):
        safe_set_full_fp32_param(mine, safe_get_full_fp32_param(its))
        for key in ("exp_avg", "exp_avg_sq"):
            safe_set_full_optimizer_state(mine, safe_get_full_optimizer_state(its, key), key)
    assert all(map(torch.equal, values(engines[1], True), values(engines[0], True)))
    before = values(engines[1], True)
    for engine in engines:
        train(engine, [2])
    assert not any(map(torch.equal, before, values(engines[1], True)))
    print(f"fragments: {name}")


def refuses() -> None:
    """Each rank raises the sentence."""
    zero = CASES["ZeRO-3 fp32"]
    engine, opt = started(hocket.AdamW, *zero, cpu_threads=1, max_norm=1.0)
    for message, call in (
        ("gradient_clipping", lambda: train(engine, [0])),
        ("DeepSpeed", lambda: opt.attach(engine)),
        ("deepspeed.initialize() and call engine.step()", lambda: alone(engine)),
    ):
        try:
            call()
        except hocket.HocketUsageError as error:
            assert message in str(error), error
        else:
            raise AssertionError(message)
    print("refused")


def alone(engine) -> None:
    """An optimizer of ZeRO-3's parameters that DeepSpeed does not know."""
    opt = hocket.AdamW(trainable(engine), cpu_threads=1)
    opt.bind()


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    begin()
    for name in CASES:
        as_torch(name)
    for name in ("ZeRO-1 bf16 clipped", "ZeRO-3 fp32"):
        resumes(name, folder)
        takes_fragments(name)
    refuses()
    deepspeed_installed.run(folder)


if __name__ == "__main__":
    main()
