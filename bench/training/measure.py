# SPDX-License-Identifier: GPL-3.0-or-later
"""Clocks and memory readings."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from typing import Any, Dict, List, Optional, Sequence

import torch

GIB = float(1 << 30)


class Clock:
    """Time stamps: CUDA events on the current stream, without waiting, or the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def now(self) -> Any:
        """A time stamp."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms(self, begin: Any, end: Any) -> float:
        """Milliseconds between two time stamps that have been reached."""
        return float(begin.elapsed_time(end)) if self.cuda else (end - begin) * 1e3


def wait(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def cpu_seconds() -> float:
    """CPU time of this process so far: user and system, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _fields(path: str, names: Sequence[str]) -> Dict[str, float]:
    found: Dict[str, float] = {}
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                key, _, rest = line.partition(":")
                if key in names:
                    found[key] = float(rest.split()[0]) * 1024
    except OSError:
        pass
    return found


class Memory:
    """Memory taken since a base, in GiB. GPU: torch's memory and, as `gpu_other`, memory that torch
    has not reserved. The machine's total may grow with its use, so `used` compares total less
    available memory at the base and now."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.base = self._now()

    def _now(self) -> Dict[str, float]:
        status = _fields("/proc/self/status", ("VmRSS", "VmHWM", "VmPin", "VmLck", "RssAnon"))
        system = _fields("/proc/meminfo", ("MemTotal", "MemAvailable", "MemFree", "Shmem"))
        found = {
            "rss": status.get("VmRSS", 0.0),
            "pinned": status.get("VmPin", 0.0) + status.get("VmLck", 0.0),
            "used": system.get("MemTotal", 0.0) - system.get("MemAvailable", 0.0),
            "total": system.get("MemTotal", 0.0),
        }
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info()
            found["gpu_used"] = float(total - free)
            found["gpu_allocated"] = float(torch.cuda.memory_allocated())
            found["gpu_reserved"] = float(torch.cuda.memory_reserved())
            host = getattr(torch.cuda, "host_memory_stats", None)
            if host is not None:
                try:
                    found["torch_pinned"] = float(host().get("allocated_bytes.current", 0))
                except RuntimeError:
                    pass
        return found

    def reset_peak(self) -> None:
        """Restarts the GPU's peak."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def allocated(self) -> Optional[float]:
        """GiB that torch has allocated on the GPU at this point of the program, less the base."""
        if self.device.type != "cuda":
            return None
        return round((torch.cuda.memory_allocated() - self.base["gpu_allocated"]) / GIB, 3)

    def since(self) -> Dict[str, float]:
        """GiB taken since the base, and the GPU's peak: torch's peak and the other memory."""
        now = self._now()
        found = {key: (now[key] - self.base[key]) / GIB for key in now
                 if key in self.base and key != "total"}
        if self.device.type == "cuda":
            found["gpu_other"] = found["gpu_used"] - found["gpu_reserved"]
            found["gpu_torch_peak"] = (
                torch.cuda.max_memory_allocated() - self.base["gpu_allocated"]) / GIB
            found["gpu_peak"] = found["gpu_torch_peak"] + max(0.0, found["gpu_other"])
        return {key: round(value, 3) for key, value in found.items()}


class Collections:
    """Collects Python's garbage, then notes its collections until end(). These leave out the
    objects that exist now. Torch and transformers have 0.4 million, and a collection of generation
    2 that looks at all takes 0.2 to 0.3 s. In an iteration that is time for which other ranks wait.
    """

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        self._began = 0.0
        self._ms: Dict[str, float] = {}
        gc.callbacks.append(self._note)

    def _note(self, phase: str, about: Dict[str, int]) -> None:
        now, name = time.perf_counter(), str(about["generation"])
        if phase == "stop":
            self._ms[name] = self._ms.get(name, 0.0) + 1e3 * (now - self._began)
        self._began = now

    def end(self) -> Dict[str, float]:
        """Milliseconds of all by generation."""
        gc.callbacks.remove(self._note)
        gc.unfreeze()
        return {name: round(ms, 2) for name, ms in sorted(self._ms.items())}


def collect(device: torch.device) -> None:
    """Frees unreferenced objects and torch's cache, also after Collections without an end()."""
    gc.unfreeze()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def median(values: Sequence[float]) -> Optional[float]:
    """The median, to 3 digits after the point; None of nothing."""
    return round(statistics.median(values), 3) if values else None


def threads() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


__all__: List[str] = ["Clock", "Collections", "Memory", "collect", "cpu_seconds", "median",
                      "threads", "wait"]
