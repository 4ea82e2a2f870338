# SPDX-License-Identifier: Apache-2.0
"""Saving beside training, from another thread: each file is of one step, and training keeps its
bits."""

import functools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

import hocket
from hocket import HocketError, attach, files

WIDTH = 96
STEPS = 40


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


def make(mode):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))).to(torch.bfloat16)
    opt = hocket.AdamW(
        model.parameters(),
        lr=1e-2,
        max_norm=0.5,
        cpu_threads=1,
        overlap="none" if mode == "drop-in" else mode,
    )
    if mode != "drop-in":
        opt.attach(model)
    return model, opt


def iterate(model, opt, number):
    torch.manual_seed(number)
    model(torch.randn(4, WIDTH).to(torch.bfloat16)).float().pow(2).mean().backward()
    opt.param_groups[0]["lr"] = 1e-2 / (1 + number)
    opt.step()
    opt.zero_grad()


@functools.lru_cache(maxsize=None)
def checksums(mode):
    """Of a run without a second thread, after each step."""
    model, opt = make(mode)
    sums = {}
    for number in range(STEPS):
        iterate(model, opt, number)
        sums[number + 1] = opt.checksum()
    return sums


def state_sum(mode, state):
    """The checksum of an optimizer that has loaded a state_dict, and its step."""
    model, opt = make(mode)
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_(state["state"][number]["master_weight"])
    opt.load_state_dict(state)
    return opt.checksum(), {int(entry["step"]) for entry in state["state"].values()}


MODES = [
    "drop-in",
    pytest.param("none", marks=pytest.mark.full),
    pytest.param("forward", marks=pytest.mark.full),
    "both",
]


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_that_saves_gets_one_step_and_changes_none(mode, tmp_path):
    expected = checksums(mode)
    model, opt = make(mode)
    iterate(model, opt, 0)
    paths, states, errors, over = [], [], [], threading.Event()

    def save():
        try:
            while not over.is_set():
                paths.append(tmp_path / str(len(paths)))
                opt.save(paths[-1])
                states.append(opt.state_dict())
                opt.checksum()
        except BaseException as error:
            errors.append(error)

    beside = threading.Thread(target=save)
    beside.start()
    for number in range(1, STEPS):
        iterate(model, opt, number)
    over.set()
    beside.join()
    assert not errors
    assert opt.checksum() == expected[STEPS]
    assert len(paths) > 2
    for path in paths:
        _, loaded = make(mode)
        loaded.load(path)
        step = loaded.binding().engine.step_number()
        assert loaded.checksum() == expected[step]
        # The program changes the learning rate between two steps, before or after the save.
        assert loaded.param_groups[0]["lr"] in (1e-2 / step, 1e-2 / (step + 1))
    for state in states[:: 1 + len(states) // 8]:
        found, steps = state_sum(mode, state)
        assert len(steps) == 1 and found == expected[steps.pop()]


class Slow:
    """Makes each file wait for `go`, then perhaps fail."""

    def __init__(self, monkeypatch):
        self.go, self.fails = threading.Event(), False
        write = files.write_pair

        def held(save, path, groups):
            assert self.go.wait(60)
            if self.fails:
                raise OSError("no such disk")
            write(save, path, groups)

        monkeypatch.setattr(files, "write_pair", held)


@pytest.mark.parametrize("mode", MODES)
def test_a_save_without_wait_has_the_step_that_it_was_called_after(mode, tmp_path, monkeypatch):
    expected = checksums(mode)
    slow = Slow(monkeypatch)
    model, opt = make(mode)
    for number in range(6):
        iterate(model, opt, number)
    opt.save(tmp_path / "state", wait=False)
    for number in range(6, 12):
        iterate(model, opt, number)
    assert not (tmp_path / "state").exists()
    slow.go.set()
    opt.finish_save()
    assert opt.checksum() == expected[12]
    _, loaded = make(mode)
    loaded.load(tmp_path / "state")
    assert loaded.binding().engine.step_number() == 6 and loaded.checksum() == expected[6]
    assert loaded.param_groups[0]["lr"] == 1e-2 / 6
    opt.save(tmp_path / "state", wait=False)
    opt.save(tmp_path / "again", wait=False)  # waits for the file before
    opt.load(tmp_path / "again")
    assert opt.checksum() == expected[12]
    loaded.load(tmp_path / "state")
    assert loaded.checksum() == expected[12]


@pytest.mark.parametrize("how", ["step", "save", "load", "finish_save"])
def test_an_error_of_the_writer_is_raised_once_by_the_next_call(
    how, tmp_path, monkeypatch, caplog
):
    model, opt = make("forward")
    iterate(model, opt, 0)
    opt.save(tmp_path / "state")
    before = opt.checksum()
    slow = Slow(monkeypatch)
    slow.fails = True
    iterate(model, opt, 1)
    opt.save(tmp_path / "state", wait=False)
    model(torch.ones(4, WIDTH).to(torch.bfloat16)).float().sum().backward()
    slow.go.set()
    while not opt._writer.over():
        pass
    slow.fails = False
    calls = {
        "step": opt.step,
        "save": lambda: opt.save(tmp_path / "other"),
        "load": lambda: opt.load(tmp_path / "state"),
        "finish_save": opt.finish_save,
    }
    with pytest.raises(HocketError, match="step 2 was not written to .*state: no such disk") as error:
        calls[how]()
    assert error.value.code == 3 and "was not written" in caplog.text
    assert opt.last_step.step == 2
    opt.step()
    assert opt.last_step.step == 3
    opt.load(tmp_path / "state")
    assert opt.checksum() == before


def test_a_full_disk_leaves_the_old_pair(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    model, opt = make("none")
    iterate(model, opt, 0)
    opt.save(tmp_path / "state")
    before = opt.checksum()
    iterate(model, opt, 1)
    os.symlink("/dev/full", tmp_path / "state.new")
    opt.save(tmp_path / "state", wait=False)
    with pytest.raises(HocketError, match="step 2 was not written.*No space left"):
        opt.finish_save()
    os.symlink("/dev/full", tmp_path / "state.new")
    with pytest.raises(HocketError, match="No space left"):
        opt.save(tmp_path / "state")
    opt.load(tmp_path / "state")
    assert opt.checksum() == before


def test_without_memory_for_the_copy_training_goes_on(forked, tmp_path):
    """In a process of its own: free memory that others have left could hold the copy."""
    program = f"""
import resource, torch, hocket
model = torch.nn.Linear(2000, 2000)
opt = hocket.AdamW(model.parameters(), cpu_threads=1)
def step():
    model(torch.ones(1, 2000)).sum().backward()
    opt.step()
    opt.zero_grad()
step()
limits = resource.getrlimit(resource.RLIMIT_AS)
with open("/proc/self/statm", encoding="ascii") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), limits[1]))
try:
    opt.save({str(tmp_path / "state")!r}, wait=False)
except hocket.HocketError as error:
    print(error.code, error)
resource.setrlimit(resource.RLIMIT_AS, limits)
step()
print(opt.last_step.step)
opt.save({str(tmp_path / "state")!r}, wait=False)
opt.finish_save()
"""
    process = forked.start("-c", program)
    said, steps = process.output().splitlines()
    assert process.returncode == 0
    assert said.startswith("3 out of memory") and "a copy of the state" in said
    assert steps == "2" and (tmp_path / "state").exists()


@pytest.mark.full  # a process of its own: three seconds to import torch
def test_the_file_is_written_although_optimizer_and_program_end(tmp_path):
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
import torch, hocket
model = torch.nn.Linear(2000, 2000)
opt = hocket.AdamW(model.parameters(), cpu_threads=1)
model(torch.ones(1, 2000)).sum().backward()
opt.step()
print(opt.checksum())
opt.save({str(tmp_path / "state")!r}, wait=False)
del opt
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    opt = hocket.AdamW(nn.Linear(2000, 2000).parameters(), cpu_threads=1)
    opt.load(tmp_path / "state")
    assert opt.checksum() == done.stdout.strip()


def test_the_folder_may_change_while_a_file_is_written(tmp_path, monkeypatch):
    layer = nn.Linear(64, 64)
    opt = hocket.AdamW(layer.parameters(), cpu_threads=1)
    layer(torch.ones(2, 64)).sum().backward()
    opt.step()
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    write, moved = files.write_pair, threading.Event()

    def later(*args):
        moved.wait()
        write(*args)

    monkeypatch.setattr(files, "write_pair", later)
    monkeypatch.chdir(here)
    opt.save("state", wait=False)
    monkeypatch.chdir(there)
    moved.set()
    opt.finish_save()
    assert sorted(os.listdir(here)) == ["state", "state.json"] and not os.listdir(there)


def test_options_of_groups_are_saved_as_far_as_json_holds_them(tmp_path):
    def made(**options):
        layer = nn.Linear(4, 4)
        opt = hocket.AdamW([{"params": list(layer.parameters()), **options}], cpu_threads=1)
        layer(torch.ones(2, 4)).sum().backward()
        opt.step()
        return opt

    opt = made(tags=["a", "b"], stages=(None, 1))
    opt.param_groups[0]["lr"] = np.float32(0.25)
    opt.param_groups[0]["weight_decay"] = np.int64(1)
    opt.save(str(tmp_path / "state"))
    other = made()
    other.load(str(tmp_path / "state"))
    assert other.param_groups[0]["lr"] == 0.25 and other.param_groups[0]["weight_decay"] == 1
