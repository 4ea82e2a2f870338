# SPDX-License-Identifier: Apache-2.0
"""Saving and loading state: dictionaries, also of torch.optim.AdamW, files, kills, pickles,
frameworks."""

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

import hocket
from hocket import HocketError, attach
from models import batches, make, two_groups
from reference import assert_same, same_bits
from runs import Case, continue_run, plan_file, reference, shape, train

CASE = Case("gpt", steps=10)


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)


def fresh(case=CASE, attached=True, **options):
    options.setdefault("overlap", "forward" if attached else "none")
    model = make(case.model, case.dtype, seed=99)
    opt = hocket.AdamW(two_groups(model), lr=2e-3, max_norm=case.max_norm, cpu_threads=2, **options)
    if attached:
        opt.attach(model)
    return model, opt, torch.optim.lr_scheduler.LambdaLR(opt, shape)


def finish(case, model, opt, schedule, first):
    other, expected, losses, _ = reference(case)
    assert continue_run(case, model, opt, schedule, first, case.steps) == losses[first:]
    assert_same(opt, model, expected, other)


WAYS = [(False, "none"), (True, "none"), (True, "forward"), (True, "both")]


@pytest.mark.parametrize("attached,overlap", WAYS)
@pytest.mark.parametrize("order", ["model first", "optimizer first"])
def test_state_dict_resumes_bit_for_bit(attached, overlap, order):
    model, opt, schedule, _ = train(CASE, attached, steps=6, overlap=overlap)
    saved = [copy.deepcopy(x.state_dict()) for x in (model, opt, schedule)]
    model, opt, schedule = fresh(attached=attached, overlap=overlap)
    for thing, state in list(zip((model, opt, schedule), saved))[
        :: 1 if order == "model first" else -1
    ]:
        thing.load_state_dict(state)
    assert not opt.state
    finish(CASE, model, opt, schedule, 6)


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_state_dict_loads_into_an_optimizer_that_has_run(overlap):
    model, opt, schedule, _ = train(CASE, True, steps=6, overlap=overlap)
    saved = [copy.deepcopy(x.state_dict()) for x in (model, opt, schedule)]
    model, opt, schedule, _ = train(CASE, True, steps=8, overlap=overlap)
    for thing, state in zip((model, opt, schedule), saved):
        thing.load_state_dict(state)
    finish(CASE, model, opt, schedule, 6)


def test_state_dict_looks_like_torch_s():
    model, opt, _, _ = train(CASE, True, steps=2)
    other = make("gpt")
    theirs = torch.optim.AdamW(two_groups(other), lr=2e-3)
    other(batches(1)[0]).backward()
    theirs.step()
    mine, its = opt.state_dict(), theirs.state_dict()
    assert set(mine["state"]) == set(its["state"])
    assert [g["params"] for g in mine["param_groups"]] == [g["params"] for g in its["param_groups"]]
    for key, entry in mine["state"].items():
        assert set(entry) == {"step", "exp_avg", "exp_avg_sq", "master_weight"}
        for part in ("exp_avg", "exp_avg_sq", "master_weight"):
            assert entry[part].shape == its["state"][key]["exp_avg"].shape
            assert entry[part].dtype is torch.float32 and entry[part].device.type == "cpu"
        assert entry["step"].dtype is torch.float32 and float(entry["step"]) == 2


def test_to_torch_adamw_and_back():
    """With fp32 weights torch continues from hocket's state, and hocket from torch's."""
    case = Case("gpt", "never", dtype=torch.float32, steps=4)
    model, opt, _, _ = train(case, True, steps=4)
    other = make("gpt", torch.float32)
    other.load_state_dict(model.state_dict())
    theirs = torch.optim.AdamW(two_groups(other), lr=1.0)
    theirs.load_state_dict(opt.state_dict())
    assert theirs.param_groups[0]["lr"] == opt.param_groups[0]["lr"]
    for m, o in ((model, opt), (other, theirs)):
        o.zero_grad()
        m(batches(5)[4]).backward()
        o.step()
    opt.synchronize()
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.allclose(p, q, rtol=1e-6, atol=1e-8)
    model2, opt2, _ = fresh(case)
    model2.load_state_dict(other.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # fp32 masters are the weights: no warning
        opt2.load_state_dict(theirs.state_dict())
        for m, o in ((model2, opt2), (other, theirs)):
            o.zero_grad()
            m(batches(6)[5]).backward()
            o.step()
    opt2.synchronize()
    assert {float(entry["step"]) for entry in opt2.state_dict()["state"].values()} == {6.0}
    for p, q in zip(model2.parameters(), other.parameters()):
        assert torch.allclose(p, q, rtol=1e-6, atol=1e-8)


def test_torch_s_bf16_checkpoint_loads_with_a_warning_and_state_stays_fp32():
    other = make("gpt")
    theirs = torch.optim.AdamW(two_groups(other))
    other(batches(1)[0]).backward()
    theirs.step()
    model, opt, _ = fresh()
    model.load_state_dict(other.state_dict())
    opt.load_state_dict(theirs.state_dict())
    with pytest.warns(UserWarning, match="no master_weight.*rounded weights"):
        model(batches(2)[1]).backward()
        opt.step()
    assert opt.state[model.tokens.weight]["exp_avg"].dtype is torch.float32


def test_loading_the_model_only_rebuilds_masters():
    model, opt, schedule, _ = train(CASE, True, steps=3, overlap="forward")
    changed = make("gpt", seed=5)
    model.load_state_dict(changed.state_dict())
    opt.synchronize()
    state = opt.state_dict()["state"]
    for number, p in enumerate(p for g in opt.param_groups for p in g["params"]):
        if number in state:
            assert same_bits(state[number]["master_weight"].to(p.dtype), p)


def test_loading_the_optimizer_only_leaves_weights_and_warns():
    _, opt, _, _ = train(CASE, True, steps=3)
    state = opt.state_dict()
    model, opt2, _ = fresh()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    opt2.load_state_dict(state)
    with pytest.warns(UserWarning, match="do not round to the model's weights"):
        opt2.bind()
    assert all(same_bits(p, before[n]) for n, p in model.named_parameters())


def test_masters_become_weights_that_differ_and_keep_their_low_bits_elsewhere():
    model, opt, _, _ = train(CASE, True, steps=3)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    again, opt2, _ = fresh()
    again.load_state_dict(weights)
    with torch.no_grad():
        again.layers[1].up.weight[3:7, ::2] += 1.0
    opt2.load_state_dict(state)
    with pytest.warns(UserWarning, match="hocket: 64 loaded master weights do not round"):
        opt2.bind()
    low_bits = 0
    for number, p in enumerate(p for group in opt2.param_groups for p in group["params"]):
        if p not in opt2.state:
            continue
        saved, weight = state["state"][number]["master_weight"], p.detach()
        found = opt2.state[p]["master_weight"]
        rounds = saved.to(p.dtype) == weight
        assert same_bits(found, torch.where(rounds, saved, weight.float()))
        low_bits += int((found != weight.float()).sum())
    assert low_bits > 10000


def test_refused_state():
    _, opt, _ = fresh()
    for make_bad, message in (
        (lambda s: s["param_groups"].pop(), "1 param groups, this optimizer 2"),
        (lambda s: s["param_groups"][0]["params"].pop(), "parameters, this optimizer's"),
        (lambda s: s["param_groups"][0].update(amsgrad=True), "amsgrad=True is not supported"),
        (lambda s: s["state"][0].update(max_exp_avg_sq=torch.zeros(1)), "max_exp_avg_sq"),
        (lambda s: s["state"][0].pop("exp_avg"), "no 'exp_avg'"),
        (lambda s: s["state"][0].update(exp_avg=torch.zeros(3)), "shape \\(3,\\)"),
    ):
        state = copy.deepcopy(train_state())
        make_bad(state)
        with pytest.raises(ValueError, match=message):
            opt.load_state_dict(state)


_STATE = {}


def train_state():
    if not _STATE:
        _STATE.update(train(CASE, True, steps=1)[1].state_dict())
    return _STATE


def test_state_dict_without_enough_memory_is_refused(monkeypatch):
    _, opt, _, _ = train(CASE, True, steps=1)
    monkeypatch.setattr(hocket.checkpoint, "_available", lambda: 1000)
    with pytest.raises(HocketError, match="GiB.*opt.save\\(path\\)") as error:
        opt.state_dict()
    assert error.value.code == 1


# -- Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("attached,overlap", WAYS)
def test_files_resume_bit_for_bit(attached, overlap, tmp_path):
    model, opt, schedule, _ = train(CASE, attached, steps=6, overlap=overlap)
    opt.save(tmp_path / "state")
    saved = schedule.state_dict()
    model, opt, schedule = fresh(attached=attached, overlap=overlap)
    # The file has no weights of tensors without state (the frozen one).
    model.positions.weight.data.copy_(make("gpt").positions.weight)
    opt.load(tmp_path / "state")
    schedule.load_state_dict(saved)
    finish(CASE, model, opt, schedule, 6)


@pytest.mark.parametrize("order", ["file", "unknown"])
@pytest.mark.parametrize("overlap", ["none", "both"])
@pytest.mark.parametrize("attached", [True, False])
def test_files_of_attached_runs_resume_in_a_drop_in_and_vice_versa(
    attached, overlap, order, tmp_path
):
    """Their engines order tensors differently: by use, and by param group."""
    model, opt, schedule, _ = train(
        CASE, attached, steps=6, overlap=overlap if attached else "none"
    )
    opt.save(tmp_path / "state")
    names, saved, checksum = opt.binding().names, schedule.state_dict(), opt.checksum()
    shapes = [p.shape for p in opt.binding().params]
    sidecar = json.loads((tmp_path / "state.json").read_text())
    assert sidecar["tensors"] == names
    if order == "unknown":
        del sidecar["tensors"]
        (tmp_path / "state.json").write_text(json.dumps(sidecar))
    model, opt, schedule = fresh(attached=not attached, overlap="none" if attached else overlap)
    model.positions.weight.data.copy_(make("gpt").positions.weight)
    opt.load(tmp_path / "state")
    schedule.load_state_dict(saved)
    assert shapes != [p.shape for p in opt.binding().params]
    assert opt.checksum() == checksum
    finish(CASE, model, opt, schedule, 6)


def test_resume_under_another_plan(tmp_path):
    case = Case("llama", steps=10)
    model, opt, schedule, _ = train(
        case, True, steps=5, overlap="both", plan=plan_file(make("llama"), ["streamed"], tmp_path)
    )
    opt.save(tmp_path / "state")
    saved = schedule.state_dict()
    for policy in (["mapped"], ["gpu-only"], ["interleave", "--stride", "2"]):
        model, opt, schedule = fresh(case, plan=plan_file(make("llama"), policy, tmp_path))
        opt.load(tmp_path / "state")
        schedule.load_state_dict(saved)
        finish(case, model, opt, schedule, 5)


@pytest.mark.full
def test_a_kill_in_a_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "state"
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
import torch, hocket
model = torch.nn.Linear(2000, 4000)
opt = hocket.AdamW(model.parameters(), cpu_threads=1)
x = torch.randn(2, 2000)
while True:
    model(x).square().mean().backward(); opt.step(); opt.zero_grad()
    opt.param_groups[0]["lr"] = 1e-3 / opt.last_step.step
    opt.save({str(path)!r})
    print(opt.checksum(), flush=True)
"""
    for delay in (0.0, 0.05, 0.11):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        )
        sums = [process.stdout.readline().strip()]
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        sums += [line.strip() for line in process.stdout]
        process.wait()
        model = torch.nn.Linear(2000, 4000)
        opt = hocket.AdamW(model.parameters(), cpu_threads=1)
        opt.load(path)
        step = opt.binding().engine.step_number()
        assert step >= len(sums) and opt.param_groups[0]["lr"] == 1e-3 / step
        if step == len(sums):
            assert opt.checksum() == sums[-1]


def saved_twice(path, monkeypatch, dies_before):
    """Saves a step, then another; the second save dies before the rename of this number."""
    model, opt, _, _ = train(CASE, True, steps=1)
    for step in (1, 2):
        opt.param_groups[0]["lr"] = float(step)
        if step == 2:
            model(batches(2)[1]).backward()
            opt.step()
            rename, calls = os.replace, []

            def replace(source, target):
                calls.append(source)
                if len(calls) == dies_before:
                    os.kill(os.getpid(), signal.SIGKILL)
                rename(source, target)

            monkeypatch.setattr(os, "replace", replace)
        opt.save(path)


@pytest.mark.parametrize("dies_before, step", [(1, 1), (2, 2)])
def test_a_kill_between_the_renames_leaves_a_pair_that_belongs_together(
    dies_before, step, tmp_path, monkeypatch
):
    child = os.fork()
    if child == 0:
        try:
            saved_twice(tmp_path / "state", monkeypatch, dies_before)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    _, opt, _ = fresh()
    opt.load(tmp_path / "state")
    assert opt.binding().engine.step_number() == step
    assert opt.param_groups[0]["lr"] == float(step)
    opt.save(tmp_path / "state")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "state.json"]


def test_param_groups_of_another_save_are_refused(tmp_path):
    """Also if both are of the same step."""
    for name, steps in (("one", 1), ("other", 1)):
        _, opt, _, _ = train(CASE._replace(clip="never" if name == "one" else "always"), True, steps)
        opt.save(tmp_path / name)
    before = opt.checksum()
    (tmp_path / "one.json").write_text((tmp_path / "other.json").read_text())
    with pytest.raises(HocketError, match="one.json does not belong to .*one.*of step 1"):
        opt.load(tmp_path / "one")
    assert opt.checksum() == before
    os.remove(tmp_path / "one.json")
    opt.load(tmp_path / "one")
    assert opt.checksum() != before


def test_files_that_are_missing_cut_or_of_another_model(tmp_path):
    _, opt, _, _ = train(CASE, True, steps=1)
    opt.save(tmp_path / "state")
    with pytest.raises(HocketError, match="nowhere"):
        opt.load(tmp_path / "nowhere")
    data = (tmp_path / "state").read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    before = opt.checksum()
    with pytest.raises(HocketError):
        opt.load(tmp_path / "cut")
    with pytest.raises(HocketError):
        train(Case("llama"), True, steps=1)[1].load(tmp_path / "state")
    assert opt.checksum() == before


# -- Copies and frameworks -------------------------------------------------------------------------


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_model_and_optimizer_are_independent(how):
    model, opt, _, _ = train(CASE, True, steps=6, overlap="both")
    twin, copied = how((model, opt))
    assert type(twin._parameters) is dict and not copied.is_bound()
    schedule = torch.optim.lr_scheduler.LambdaLR(copied, shape)
    schedule.last_epoch = 6
    for group in copied.param_groups:
        group["lr"] = group["initial_lr"] * shape(6)
    copied.attach(twin)
    finish(CASE, twin, copied, schedule, 6)
    before = [p.detach().clone() for p in twin.parameters()]
    opt.zero_grad()
    model(batches(1)[0]).backward()
    opt.step()
    opt.synchronize()
    assert all(same_bits(a, b) for a, b in zip(before, twin.parameters()))


def test_distributed_checkpoint(tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, opt, schedule, _ = train(CASE, True, steps=6, overlap="forward")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights, state = get_state_dict(model, opt)
        dcp.save({"model": weights, "opt": state}, checkpoint_id=tmp_path)
        saved = schedule.state_dict()
        model, opt, schedule = fresh()
        weights, state = get_state_dict(model, opt)
        dcp.load({"model": weights, "opt": state}, checkpoint_id=tmp_path)
        set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state)
    schedule.load_state_dict(saved)
    finish(CASE, model, opt, schedule, 6)


@pytest.mark.parametrize("again", [False, True])
def test_set_state_dict_loads_the_optimizer_first(again):
    """torch's set_state_dict loads the model's weights after the optimizer's state: masters are exact
    all the same. `again`: state and weights of another step are replaced."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, opt, schedule, _ = train(CASE, True, steps=6, overlap="forward")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights, state = copy.deepcopy(get_state_dict(model, opt, options=options))
        saved = schedule.state_dict()
        if again:
            model, opt, schedule, _ = train(CASE, True, steps=2, overlap="forward")
        else:
            model, opt, schedule = fresh()
    with pytest.warns(UserWarning, match="unless the model's checkpoint of the same step"):
        set_state_dict(
            model, opt, model_state_dict=weights, optim_state_dict=state, options=options
        )
    schedule.load_state_dict(saved)
    finish(CASE, model, opt, schedule, 6)


def test_masters_without_their_weights_are_forgotten_after_a_step():
    model, opt, schedule, _ = train(CASE, True, steps=6, overlap="forward")
    state = copy.deepcopy(opt.state_dict())
    model, opt, schedule, _ = train(CASE, True, steps=2, overlap="forward")
    with pytest.warns(UserWarning, match="do not round to the model's weights"):
        opt.load_state_dict(state)
    binding = opt.binding()
    assert binding.loaded
    model(batches(1)[0]).backward()
    opt.step()
    assert not binding.loaded


def test_distributed_checkpoint_of_a_plain_state_dict(tmp_path):
    import torch.distributed.checkpoint as dcp

    model, opt, schedule, _ = train(CASE, True, steps=6, overlap="forward")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": model.state_dict(), "opt": opt.state_dict()}, checkpoint_id=tmp_path)
        saved = schedule.state_dict()
        model, opt, schedule, _ = train(CASE, True, steps=1, overlap="forward")
        state = {"model": model.state_dict(), "opt": opt.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    schedule.load_state_dict(saved)
    finish(CASE, model, opt, schedule, 6)


def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    case = Case("gpt", "never", 2, steps=6)
    other, expected, losses, _ = reference(case)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make("gpt")
    opt = hocket.AdamW(two_groups(model), lr=2e-3, cpu_threads=2, overlap="forward")
    opt.attach(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, shape)
    prepared, wrapped, schedule = accelerator.prepare(model, opt, schedule)
    found = []
    for batch in batches(12):
        with accelerator.accumulate(prepared):
            loss = prepared(batch)
            accelerator.backward(loss)
            found.append((loss / 2).item())
            wrapped.step()
            schedule.step()
            wrapped.zero_grad()
    assert found == losses
    assert_same(opt, model, expected, other)
    accelerator.save_state(str(tmp_path / "saved"))
    accelerator.load_state(str(tmp_path / "saved"))
    assert_same(opt, model, expected, other)
