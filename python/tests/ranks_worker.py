# SPDX-License-Identifier: Apache-2.0
"""One of the ranks that test_ranks.py starts: python ranks_worker.py RANK WORLD FOLDER [DEVICE].

Reads names of cases from standard input, with their arguments, and runs each, together with the
other ranks. Answers with one line: "ok", or the traceback as JSON. DEVICE: cpu (gloo, host backend;
the default), or cuda (NCCL, one GPU a rank). With HOCKET_TEST_MEET, an address of torch's, the
ranks meet there, each on a host of its own. Cases of DDP and of tensor parallelism are in files of
their own.
"""

from __future__ import annotations

import copy
import datetime
import itertools
import json
import os
import pathlib
import re
import signal
import sys
import traceback
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[at]) for at in (0, 1)]

import hocket  # noqa: E402
import ranks_ddp  # noqa: E402, F401  (its cases)
import ranks_tp  # noqa: E402, F401
from models import make  # noqa: E402
from ranks_setup import (  # noqa: E402
    APART,
    CASES,
    DEVICE,
    FOLDER,
    RANK,
    STEPS,
    TIMEOUT_S,
    WORLD,
    case,
    compare,
    compare_scales,
    data,
    exact,
    go_on_with_another,
    load_distributed,
    mesh,
    refused,
    save_distributed,
    shard,
    slow,
    start,
    train,
    with_small_tensors,
)
from reference import same_bits  # noqa: E402

# -- Not attached ---------------------------------------------------------------------------------


@case
def drop_in():
    exact()


@slow
def drop_in_clips():
    opt, _, _ = exact(max_norm=2.0)
    assert opt.last_step.grad_scale < 1


@slow
def drop_in_fp32():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    exact(dtype=torch.float32, sharding={"mp_policy": policy}, max_norm=2.0)


@case
def drop_in_hsdp():
    exact(kind="hsdp", max_norm=2.0)


@case
def tensors_smaller_than_the_world():
    """Some ranks have no element of some tensors."""

    opt, model, _ = exact(change=with_small_tensors, max_norm=2.0)
    empty = [p for p in model.parameters() if p.requires_grad and not p._local_tensor.numel()]
    assert bool(empty) == (RANK > 0)
    assert all(float(opt.state[p]["step"]) == STEPS for p in empty)


@case
def clipping_by_torch():
    """clip_grad_norm_ on DTensors rounds the norm to the gradients' type, but the same on all."""
    opt, model, reference = start()
    train(opt, model, reference, steps=3, clip=2.0)
    compare_scales(opt, model, model.norm.weight)


# -- Attached -------------------------------------------------------------------------------------


@case
def attached():
    """Each overlap, with updates that run ahead, steps that are clipped, and others."""
    for overlap, limit in (("none", 2.0), ("forward", None), ("both", None), ("both", 3.6)):
        opt, _, _ = exact(overlap=overlap, max_norm=limit)
        assert opt.last_step.step == STEPS


@slow
def attached_for_longer():
    for overlap in ("none", "forward", "both"):
        for limit in (None, 2.0, 3.0, 3.6):
            exact(overlap=overlap, max_norm=limit, training={"steps": 15})


@case
def attached_before_sharding():
    exact(overlap="both", first="attach")


@slow
def attached_fp32():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    exact(overlap="both", dtype=torch.float32, sharding={"mp_policy": policy}, max_norm=2.0)


@case
def attached_hsdp():
    exact(overlap="both", kind="hsdp", max_norm=2.0)


@slow
def attached_llama():
    exact(overlap="both", model="llama", max_norm=0.5)


@case
def accumulation():
    """With and without a reduction after each backward."""
    for overlap, sync_each in ((None, False), ("both", False), ("both", True)):
        exact(overlap=overlap, training={"micro": 2, "sync_each": sync_each, "steps": 3})


@slow
def attached_clipping_by_torch():
    opt, model, reference = start(overlap="forward")
    train(opt, model, reference, steps=3, clip=2.0)
    assert opt.last_step.grad_scale < 1
    compare_scales(opt, model, model.norm.weight)


@case
def gradients_of_a_block_leave_by_one_call():
    """When the block is over. An interrupt before or after the last call loses none."""
    for handed in (False, True):
        with mock.patch.object(hocket.attach, "HOOK_NUMEL", 1):
            opt, model, reference = start(overlap="both")
        train(opt, model, reference, steps=1)
        binding, calls = opt.binding(), []
        assert all(len(p._post_accumulate_grad_hooks) == 1 for p in binding.params)
        give = binding.engine.gradient_list

        def gradient_list(pairs, n, stream):
            calls.append(sorted(pairs[0 : 2 * n : 2]))
            waiting = [hocket.handle.handle_in(p.grad) is None and p.grad is not None
                       for p in binding.params]
            assert len(set(itertools.compress(binding.blocks, waiting))) == 1
            last = len(calls) == binding.n_blocks
            if handed or not last:
                give(pairs, n, stream)
            if last:
                raise KeyboardInterrupt

        binding.engine.gradient_list = gradient_list
        try:
            model(data(1)).backward()
        except KeyboardInterrupt:
            pass
        binding.engine.gradient_list = give
        assert sorted(calls) == opt._attachment._members, calls
        reference.twin(data(1)).backward()
        opt.step()
        reference.step()
        compare(opt, model, reference)


@case
def prefetched_and_kept():
    """Explicit prefetching, and weights that stay gathered after the forward."""
    opt, model, reference = start(overlap="both", sharding={"reshard_after_forward": False})
    layers = list(model.layers)
    for layer, following in zip(layers, layers[1:]):
        layer.set_modules_to_forward_prefetch([following])
    train(opt, model, reference)
    compare(opt, model, reference)


@case
def forward_waits_for_its_own_block_alone():
    """When a module's shards are gathered, its update has ended; those of others may run."""
    opt, model, reference = start(overlap="forward")
    order = []
    waited = opt._attachment.wait

    def wait(block):
        order.append(opt.binding().block_names[block])
        waited(block)

    train(opt, model, reference, steps=1)
    opt._attachment.wait = wait
    train(opt, model, reference, steps=1, first=1)
    seen = list(dict.fromkeys(order))
    assert seen == ["the root", "layers.0", "layers.1", "layers.2"], seen
    assert opt.blocks()[0][0] == "tokens.weight"


def comms(opt):
    """What FSDP2 calls for collectives; none before torch 2.9."""
    groups = [group for group, _ in opt._attachment.shards._gated]
    names = ("_all_gather_comm", "_reduce_scatter_comm")
    return [getattr(group, name) for group in groups for name in names if hasattr(group, name)]


@case
def recorded():
    """Each rank records the same steps, on the clock of the host, with collectives; recording
    changes no bit."""
    opt, model, reference = start(overlap="both")
    train(opt, model, reference, steps=1)
    before = comms(opt)
    opt.record()
    train(opt, model, reference, steps=3, first=1)
    found = opt.timeline()
    compare(opt, model, reference)
    (FOLDER / f"recorded-{WORLD}-rank{RANK}.json").write_text(json.dumps(found))
    assert (found["rank"], found["ranks"]) == (RANK, WORLD) and found["host"]
    assert 0 <= found["clock_error_ms"] < 1
    seen = [(span["step"], *span["name"].split()) for span in found["spans"]]
    blocks = len(model.layers) + 1
    for step in (3, 4) if before else ():
        for block in range(blocks):
            gathers = seen.count((step, "all_gather", f"B{block}"))
            # In backward once more, but for the root, whose weights stay.
            assert gathers == (1 if block == 0 else 2), (step, block, gathers)
            assert seen.count((step, "reduce_scatter", f"B{block}")) == 1, (step, block)
    # What is summed ends on all ranks after the last of them has begun.
    edges = {name[1:]: (s["start_ms"], s["end_ms"]) for name, s in zip(seen, found["spans"])
             if name[:2] == (4, "reduce_scatter")}
    every = [None] * WORLD
    dist.all_gather_object(every, edges)
    for name, (_, end) in edges.items():
        assert end > max(other[name][0] for other in every), (name, every)
    opt.record(False)
    assert comms(opt) == before


@case
def without_torch_s_private_parts():
    """Where FSDP2 is not as expected, each forward waits for all, and the bits are the same."""
    from hocket import sharded

    known, sharded._groups = sharded._groups, lambda module: None
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            exact(overlap="both", max_norm=2.0)
        assert sum("is not known to this version" in str(w.message) for w in said) == 1
    finally:
        sharded._groups = known


@case
def detached():
    opt, model, reference = start(overlap="forward")
    train(opt, model, reference, steps=2)
    opt.detach()
    go_on_with_another(opt, model, reference, "forward")


@slow
def one_plan_for_all():
    """The first rank asks the planner, all follow; where shards differ, none does."""
    from hocket import plan

    os.environ["HOCKET_MACHINE"] = "h200-16c"
    asked, run = [], plan.run
    plan.run = lambda arguments: asked.append(arguments) or run(arguments)
    try:
        for kind, change in (("fsdp", None), ("ddp", None), ("fsdp", with_small_tensors)):
            asked.clear()
            opt, _, _ = exact(kind=kind, overlap="both", max_norm=2.0, plan="auto", change=change)
            ranked = [arguments for arguments in asked if arguments[0] == "plan"]
            assert len(ranked) == (RANK == 0), ranked
            assert RANK or (f"dram*={1 / WORLD}" in ranked[0]) != APART
            answers = [None] * WORLD
            dist.all_gather_object(answers, opt.explain().partition("chose: ")[2].splitlines()[0])
            assert len(set(answers)) == 1 and answers[0], answers
            assert ("differ in size" in answers[0]) == (change is not None), answers
            assert opt._attachment._call is None  # no batch is kept, also where others planned
        for text, answer in (("no such machine", run), ("no answer", lambda _: {}["no answer"])):
            os.environ["HOCKET_MACHINE"], plan.run = "no such machine", answer
            opt, model, _ = start(overlap="both", plan="auto")
            try:
                model(data(0)).backward()
            except (hocket.HocketError, KeyError) as error:  # whatever fails, all ranks hear of it
                assert text in str(error), error
                assert str(error).startswith("rank 0 (") == (RANK > 0), error
            else:
                raise AssertionError("no error")
    finally:
        plan.run = run


# -- Checkpoints ----------------------------------------------------------------------------------


@case
def resume():
    """A checkpoint in the middle, loaded into a new model and optimizer, changes no bit."""
    for settings in ({}, {"overlap": "both"}):
        opt, model, reference = start(max_norm=2.0, **settings)
        train(opt, model, reference, steps=2)
        folder = FOLDER / f"resume-{len(settings)}"
        save_distributed(folder, opt, model)
        again, other, _ = start(max_norm=2.0, **settings)
        load_distributed(folder, again, other)
        train(again, other, reference, steps=2, first=2)
        compare(again, other, reference)


def leaves_a_checkpoint(folder, kind):
    """For other_ranks_go_on(), with the whole tensors of its reference beside it."""
    opt, model, reference = start(
        kind=kind, change=with_small_tensors, max_norm=2.0, overlap="both"
    )
    train(opt, model, reference, steps=2)
    save_distributed(folder, opt, model)
    if RANK == 0:
        torch.save(reference.found(), f"{folder}/reference")


def other_ranks_go_on(folder, kind):
    """State and weights have the same bits in another number of ranks, and so has what follows."""
    opt, model, reference = start(
        kind=kind, change=with_small_tensors, max_norm=2.0, overlap="both"
    )
    load_distributed(folder, opt, model)
    reference.take(*torch.load(f"{folder}/reference"))
    opt.bind()
    compare(opt, model, reference)
    train(opt, model, reference, steps=2, first=2)
    compare(opt, model, reference)


CASES.update({each.__name__: each for each in (leaves_a_checkpoint, other_ranks_go_on)})


@slow
def full_state_dict():
    """Whole tensors, as they are saved for one process, on rank 0; each rank loads its part."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        get_state_dict,
        set_optimizer_state_dict,
        set_state_dict,
    )

    opt, model, reference = start()
    train(opt, model, reference, steps=2)
    whole = get_optimizer_state_dict(
        model, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if RANK == 0:
        for name, q in reference.model.named_parameters():
            if q in reference.opt.state:
                found = whole["state"][name]["exp_avg"]
                assert same_bits(found, reference.opt.state[q]["exp_avg"]), name
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_optimizer_state_dict(model, opt, whole, options=options)
    compare(opt, model, reference)

    # set_state_dict loads the model's weights after the optimizer's state. Masters are exact.
    options = StateDictOptions(full_state_dict=True)
    weights, state = copy.deepcopy(get_state_dict(model, opt, options=options))
    then = copy.deepcopy(reference.found())
    train(opt, model, reference, steps=1, first=2)
    set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state, options=options)
    reference.take(*then)
    compare(opt, model, reference)


# -- Failures -------------------------------------------------------------------------------------


@case
def values_that_are_not_finite():
    """One rank's shard has them: no rank takes the step, and the warning names the rank."""
    opt, model, reference = start(max_norm=2.0)
    train(opt, model, reference, steps=2)
    model(data(5)).backward()
    param = model.layers[0].up.weight
    if RANK == WORLD - 1:
        param.grad._local_tensor.view(-1)[0] = float("nan")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        opt.step()
    assert [str(w.message) for w in said] == [
        "hocket: 1 gradient values are not finite, the first of them in a shard of rank "
        f"{WORLD - 1}: step() changed nothing on any rank"
    ]
    assert opt.last_step.skipped and opt.last_step.step == 2
    opt.zero_grad()
    train(opt, model, reference, steps=2, first=2)
    compare(opt, model, reference)


@case
def a_rank_that_fails_in_step():
    """The others raise the same, with its name, before they change anything."""
    opt, model, reference = start()
    train(opt, model, reference, steps=1)
    model(data(5)).backward()
    if RANK == 1:
        weight = model.norm.weight
        weight.grad = torch.zeros(32, dtype=torch.bfloat16, device=weight.device)  # no DTensor
    try:
        opt.step()
    except hocket.HocketError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    assert "the gradient of norm.weight (parameter " in text and "is no DTensor" in text, text
    assert text.startswith("rank 1 (") == (RANK != 1), text
    opt.zero_grad()
    train(opt, model, reference, steps=2, first=1)
    compare(opt, model, reference)


@case
def a_rank_that_fails_before_the_first_step():
    opt, model, _ = start()
    model(data(0)).backward()
    if RANK == 1:
        opt.param_groups[0]["lr"] = -1.0
    try:
        opt.step()
    except hocket.HocketError as error:
        assert "lr=-1.0" in str(error), error
        assert str(error).startswith("rank 1 (") == (RANK != 1), error
    else:
        raise AssertionError("no error")
    assert not opt.is_bound()
    if RANK == 1:
        opt.param_groups[0]["lr"] = 1e-3
    opt.step()
    assert opt.last_step.step == 1


def a_rank_that_is_killed(*what):
    """A test of its own starts it, because the other ranks cannot go on either. `what` the others
    say of it."""
    opt, model, reference = start(overlap="both")
    train(opt, model, reference, steps=1)
    model(data(5)).backward()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        opt.step()
    except hocket.HocketError as error:
        said = rf"rank 1 \(process \d+ on \S+\) {' '.join(what)}"
        assert re.search(said, str(error)), error
    else:
        raise AssertionError("no error")


CASES["a_rank_that_is_killed"] = a_rank_that_is_killed


# -- Refusals -------------------------------------------------------------------------------------


@case
def what_ranks_cannot_do():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    opt, _, _ = start()
    refused("one file would hold", lambda: opt.save("x"))
    refused("one file would hold", lambda: opt.load("x"))
    opt, model, _ = start(overlap="both", clip="block", max_norm=1.0)
    refused('clip="block"', lambda: model(data(0)))
    plain = make("gpt").to(DEVICE)
    late = hocket.AdamW(plain.parameters())
    late.attach(plain)
    refused("after fully_shard()", lambda: shard(plain)(data(0)))
    where = mesh("hsdp")
    summed = DTensor.from_local(torch.zeros(8, 8, device=DEVICE), where, [Partial(), Shard(0)])
    unsummed = nn.Parameter(summed)
    unsummed.grad = torch.zeros_like(unsummed)
    refused("those that split or replicate", hocket.AdamW([unsummed]).step)
    other = nn.Parameter(distribute_tensor(torch.zeros(8, 8), mesh(), [Replicate()]))
    other.grad = torch.zeros_like(other)
    alike = nn.Parameter(distribute_tensor(torch.zeros(8, 8), where, [Replicate(), Shard(0)]))
    refused("one mesh", hocket.AdamW([other, alike]).step)


@case
def replicated_elements_count_once():
    """The norm, where some tensors are replicated, and one is no DTensor."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    where = mesh("hsdp")
    values = [torch.arange(1.0, 13.0) / 4, torch.arange(5.0, 13.0) / 8, torch.arange(2.0, 7.0)]
    params = [
        nn.Parameter(distribute_tensor(values[0], where, [Replicate(), Shard(0)])),
        nn.Parameter(distribute_tensor(values[1], where, [Replicate(), Replicate()])),
        nn.Parameter(values[2].to(DEVICE)),
    ]
    opt = hocket.AdamW(params)
    squares = sum(float(value.double().square().sum()) for value in values)
    for param in params:
        param.grad = param.detach().clone()
    opt.step()
    assert opt.grad_norm == squares**0.5, (opt.grad_norm, squares**0.5)


# -- Running --------------------------------------------------------------------------------------


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=DEVICE != "cpu")
    if DEVICE == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # equal bits in both models
        torch.cuda.set_device(RANK)
    dist.init_process_group(
        "gloo" if DEVICE == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=os.environ.get("HOCKET_TEST_MEET", f"file://{FOLDER}/meet"),
        rank=RANK,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if DEVICE == "cuda" else "default")
                name, *arguments = line.split()
                CASES[name](*arguments)
            text = "ok"
        except Exception:  # noqa: BLE001
            text = json.dumps(traceback.format_exc())
        answer.write(text + "\n")
        answer.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
