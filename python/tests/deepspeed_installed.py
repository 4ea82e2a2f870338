# SPDX-License-Identifier: Apache-2.0
"""hocket.deepspeed.install: with the bits of the plain step, whatever happens between a step and the
next forward; that the update runs beside forward; that forward waits. deepspeed_client.py calls it."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from unittest import mock

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
)

import hocket
from deepspeed_engines import CPU, THREE, started, train, trainable, values
from hocket import partitions
from models import batches

PARAMETERS = {"offload_param": {"device": "cpu"}}
# As CASES of deepspeed_engines.py. Without a threshold, DeepSpeed keeps all of this small model
# gathered; without a size of subgroups, there is one in each param group.
INSTALLED = {
    "bf16, accumulated, clipped, two groups": (
        {"stage": 3, **THREE, **CPU},
        torch.bfloat16,
        {"gradient_clipping": 0.1, "gradient_accumulation_steps": 2},
        2,
    ),
    "fp32": ({"stage": 3, **THREE, **CPU}, torch.float32, {}, 1),
    "bf16, weights kept gathered": (
        {"stage": 3, "sub_group_size": 3000, **CPU},
        torch.bfloat16,
        {"gradient_clipping": 0.1},
        1,
    ),
    "bf16, one subgroup": ({"stage": 3, **CPU}, torch.bfloat16, {}, 1),
    "bf16, weights on the CPU": (
        {"stage": 3, **THREE, **CPU, **PARAMETERS},
        torch.bfloat16,
        {"gradient_clipping": 0.1},
        2,
    ),
}
FIRST = next(iter(INSTALLED))


def halved(opt):
    """A scheduler: what it sets after a step must not reach the update of that step."""
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.5**step)


def both(name=FIRST, **changes):
    """The same engine without and with install()."""
    zero, dtype, more, groups = INSTALLED[name]
    engines = []
    for installs in (False, True):
        case = (copy.deepcopy({**zero, **changes}), dtype, more, groups)
        engine, opt = started(hocket.AdamW, *case, schedule=halved, cpu_threads=1)
        if installs:
            hocket.deepspeed.install(engine)
        engines.append((engine, opt))
    return engines


def equal(mine, its) -> bool:
    return len(mine) == len(its) and all(map(torch.equal, mine, its))


def end(engines) -> None:
    for engine, _ in engines:
        engine.destroy()


@contextlib.contextmanager
def updates(call):
    """Calls `call` with the number of each update, before it."""
    update, count = partitions._update, iter(range(10**9))

    def counted(*args):
        call(next(count))
        update(*args)

    with mock.patch.object(partitions, "_update", counted):
        yield


def slowly():
    return updates(lambda number: time.sleep(0.02))


def same_bits(name) -> None:
    """Losses, weights, states, and the gradients that the step has left."""
    answers = []
    engines = both(name)
    for engine, _ in engines:
        with slowly():
            losses = train(engine, range(4))
        grads = [safe_get_full_grad(param) for param in trainable(engine)]
        answers.append([*losses, *values(engine, True), *grads])
    assert equal(*answers), name
    end(engines)
    print(f"same bits: {name}")


def evaluated(engine):
    engine.eval()
    with torch.no_grad():
        loss = engine(batches(1, seed=77)[0].to(engine.device))
    engine.train()
    return [loss]


def gathered(engine):
    params = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(params):
        return [param.detach().clone() for param in params]


def fragments(engine):
    """Reads and writes between a step and the next forward."""
    param = trainable(engine)[-1]
    weight = safe_get_full_fp32_param(param)
    found = [weight.clone(), safe_get_full_optimizer_state(param, "exp_avg")]
    safe_set_full_fp32_param(param, weight + 1)
    return found


def scaled(engine):
    """A step that overflows."""
    loss = engine(batches(1, seed=5)[0].to(engine.device))
    while True:
        engine.backward(loss * float("inf"))
        boundary = engine.is_gradient_accumulation_boundary()
        engine.step()
        if boundary:
            break
        loss = engine(batches(1, seed=6)[0].to(engine.device))
    assert engine.skipped_steps == 1
    return []


def own_state(engine):
    opt = engine.optimizer.optimizer
    opt.synchronize()
    return [entry["exp_avg_sq"].clone() for entry in opt.state.values()]


BETWEEN = {
    "evaluation": evaluated,
    "gathered": gathered,
    "fragments": fragments,
    "overflow": scaled,
    "synchronize": own_state,
    "state": lambda engine: [e["exp_avg"].clone() for e in engine.optimizer.state.values()],
    "16-bit weights": lambda engine: [
        value.clone()
        for value in (engine._zero3_consolidated_16bit_state_dict() or {}).values()
    ],
}


def between(name) -> None:
    """Something between a step and the next forward."""
    answers = []
    engines = both()
    for engine, _ in engines:
        with slowly():
            found = train(engine, range(2))
            found += BETWEEN[name](engine)
            found += train(engine, range(2, 4))
        answers.append([*found, *values(engine, True)])
    assert equal(*answers), name
    end(engines)
    print(f"between steps: {name}")


def checkpoints(folder) -> None:
    """A checkpoint directly after a step, which both kinds of engine go on from."""
    engines = both()
    expected = []
    for number, (engine, _) in enumerate(engines):
        with slowly():
            train(engine, range(2))
            engine.save_checkpoint(str(folder / f"installed{number}"))
            losses = train(engine, range(2, 4))
        expected.append([*losses, *values(engine, True)])
    end(engines)
    assert equal(*expected)
    for number, (engine, _) in enumerate(engines := both()):
        with slowly():
            train(engine, range(1))  # what is loaded comes over an update that runs
            engine.load_checkpoint(str(folder / f"installed{1 - number}"))
            losses = train(engine, range(2, 4))
        assert equal([*losses, *values(engine, True)], expected[0])
    end(engines)
    print("resumed with install()")


def overlaps() -> None:
    """The last subgroup is updated when the first layer has run, not before."""
    engines = both(stage3_prefetch_bucket_size=0)
    engine, _ = engines[1]
    train(engine, range(1))
    engine.optimizer._hocket_update.finish()
    count = len(engine.optimizer.fp16_groups)
    ran, seen = threading.Event(), []

    def hold(number):
        if number % count == 0:  # which the first layer waits for
            ran.clear()
        if number % count == count - 1:
            seen.append(ran.wait(40))

    hook = engine.module.layers[0].register_forward_hook(lambda *_: ran.set())
    with updates(hold):
        train(engine, range(1, 3))
        evaluated(engine)
        engine.optimizer._hocket_update.finish()
    hook.remove()
    assert seen == [True, True], seen
    end(engines)
    print("update beside forward")


def waits() -> None:
    """Without the waits of gathers, forward takes old weights; without the others, what is read
    between steps is of an update half way."""
    engines = both()
    losses = []
    for engine, _ in engines:
        wait = mock.patch.object(hocket.deepspeed.Update, "wait", lambda *_: None)
        with slowly(), wait:
            losses.append(train(engine, range(3)))
    assert not equal(*losses)
    end(engines)
    for name in ("fragments", "state"):
        found = []
        for engine, _ in (engines := both()):
            with slowly():
                train(engine, range(2))
                with mock.patch.object(hocket.deepspeed.Update, "finish", lambda *_: None):
                    found.append(BETWEEN[name](engine))
        assert not equal(*found), name
        end(engines)
    print("without waits: other values")


def fails() -> None:
    """What the thread raises comes out of the next forward, and of all that follows."""
    engines = both()
    engine, _ = engines[1]
    train(engine, range(1))

    def fail(number):
        if number == 2:
            raise OSError("the sea is out of fish")

    with updates(fail):
        engine.optimizer._hocket_update.finish()
        train(engine, range(1, 2))
        for call in (
            lambda: train(engine, range(2, 3)),
            lambda: values(engine, True),
            engine.optimizer.step,
            engine.destroy,
        ):
            try:
                call()
            except OSError as error:
                names = traced(error)
                assert "fail" in names and "_run" in names, names
            else:
                raise AssertionError(call)
    engines[0][0].destroy()
    print("raises what the thread has raised")


def traced(error):
    names, frame = [], error.__traceback__
    while frame is not None:
        names.append(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    return names


def refuses() -> None:
    zero, dtype, more, groups = INSTALLED[FIRST]
    engines = [
        started(hocket.AdamW, zero, dtype, more, groups, cpu_threads=1),
        started(hocket.AdamW, {"stage": 2, **CPU}, dtype, more, groups, cpu_threads=1),
        started(hocket.AdamW, {"stage": 3, **THREE}, dtype, more, groups, cpu_threads=1),
        started(torch.optim.AdamW, zero, dtype, more, groups),
    ]
    (good, _), (stage2, _), (not_offloaded, _), (of_torch, _) = engines
    with mock.patch.object(deepspeed, "__version__", "0.20.1"):
        refused(good, "DeepSpeed 0.20.1")
    hocket.deepspeed.install(good)
    refused(good, "called already")
    refused(stage2, "zero_optimization.stage to 3")
    refused(not_offloaded, '{"device": "cpu"}')
    refused(of_torch, "hocket.AdamW")
    of_torch.optimizer.optimizer = engines[0][1]
    for name, value, message in (
        ("dtype", torch.float16, "bf16"),
        ("zenflow", True, "zenflow"),
        ("swap_optimizer", True, '{"device": "cpu"}'),
    ):
        with mock.patch.object(of_torch.optimizer, name, value):
            refused(of_torch, message)
    end(engines)
    print("install() refuses")


def refused(engine, message) -> None:
    before = type(engine.optimizer)
    try:
        hocket.deepspeed.install(engine)
    except hocket.HocketUsageError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
    assert type(engine.optimizer) is before


def run(folder) -> None:
    for name in INSTALLED:
        same_bits(name)
    for name in BETWEEN:
        between(name)
    checkpoints(folder)
    overlaps()
    waits()
    fails()
    refuses()
