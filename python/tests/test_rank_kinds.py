# SPDX-License-Identifier: Apache-2.0
"""bench/training/rank_kinds.py: sums of kernels by phase and kind; what else may delay a rank."""

import gc
import importlib.util
import time

import pytest
import torch


def module(root, name):
    path = root / "bench" / "training" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def kinds(root):
    return module(root, "rank_kinds")


class Event:
    def __init__(self, name, begin, end, stream, device):
        self.name, self.device_resource_id, self.device_type = name, stream, device
        self.time_range = type("", (), {"start": 1e3 * begin, "end": 1e3 * end})


def test_idle_time_beside_a_collective_is_told_from_the_rest(kinds):
    gpu, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    seen = [
        Event("nvjet_tst", 142, 145, 7, gpu),
        Event("the anchor", 100, 101, 7, gpu),
        Event("ncclDevKernel_AllGather_RING", 144, 149, 20, gpu),
        Event("split_with_sizes_copy_out", 149.5, 150, 7, gpu),
        Event("multi_tensor_apply_kernel<Copy>", 143, 143.5, 13, gpu),
        Event("cutlass flash_fwd", 150, 156, 7, gpu),
        Event("cudaLaunchKernel", 90, 91, 1, cpu),
    ]
    profile = type("", (), {"events": lambda self: seen})()
    ends = [[0, 10, 30, 32, 40], [41, 51, 70, 72, 80]]
    found = kinds.by_kind(kinds.activities_of(profile), ends)
    assert found["forward"] == {
        "products": 3.0,
        "all-gather": 5.0,
        "copies, FSDP": 0.5,
        "attention": 2.0,
        "beside: foreach": 0.5,
        "idle": 4.5,
        "idle, collective": 4.0,
        "busy": 5.5,
    }
    assert found["backward"] == {"attention": 4.0, "busy": 4.0}
    assert kinds.phases(ends) == {
        "forward": 10,
        "backward": 19.5,
        "clip": 2,
        "step": 8,
        "between": 1,
    }


def test_a_thread_that_waits_has_not_run(kinds):
    marks = kinds.Marks(torch.device("cpu"))
    for _ in range(2):
        marks.begin()
        time.sleep(0.05)
        marks.mark()
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        marks.mark()
        marks.mark()
        marks.mark()
    ran, host = marks.thread()["ran_ms"], kinds.phases(marks.host_ms())
    assert ran["forward"] < 25 < 45 < host["forward"]
    assert 45 < ran["backward"] <= host["backward"] + 5
    assert marks.thread()["lost_core"]["forward"] >= 0


def test_phases_of_the_slowest_iteration(kinds):
    marks = kinds.Marks(torch.device("cpu"))
    marks.host = [[0, 1, 2, 3, 4], [5, 6, 8.5, 9, 9.5], [10, 11, 12, 13, 90]]
    marks.threads = [[(0.5 * at, 0, 2 * at) for at in each] for each in marks.host]
    found = kinds.slowest(marks)
    phases = {"forward": 1e3, "backward": 1e3, "clip": 1e3, "step": 1e3, "between": 1e3}
    assert found.pop("iteration") == 0  # the last one's end is not known
    assert found.pop("gpu_ms") == found.pop("host_ms") == phases
    assert found.pop("ran_ms") == {name: ms / 2 for name, ms in phases.items()}
    assert found == {"all_threads_ms": {name: 2 * ms for name, ms in phases.items()}}
    marks.host[1] = [5, 6, 108, 109, 109.5]
    marks.host[2][0] = 110
    assert kinds.slowest(marks)["iteration"] == 1
    assert kinds.slowest(marks)["host_ms"]["backward"] == 102e3
    assert kinds.slowest(kinds.Marks(torch.device("cpu"))) == {}


def test_collections_are_noted_until_the_end(root):
    found = module(root, "measure").Collections()
    before = len(gc.callbacks)
    assert gc.get_freeze_count() > 10_000 and len(gc.get_objects()) < 1000
    gc.collect()
    gc.collect(1)
    noted = found.end()
    assert {"1", "2"} <= set(noted) and all(ms >= 0 for ms in noted.values())
    assert len(gc.callbacks) == before - 1 and gc.get_freeze_count() == 0
