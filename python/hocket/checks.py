# SPDX-License-Identifier: Apache-2.0
"""Options that hocket.AdamW refuses, each by its name."""

from __future__ import annotations

from typing import Any, Mapping

import torch

from . import _abi
from .binding import Settings, hyper
from .errors import HocketUsageError


def check_settings(settings: Settings) -> None:
    """Refuses what hocket.AdamW's arguments must not ask for."""
    if settings.overlap not in _abi.OVERLAPS:
        raise HocketUsageError(f"overlap={settings.overlap!r}: it is 'none', 'forward' or 'both'")
    if settings.backend not in (None, "cuda", "host"):
        raise HocketUsageError(f"backend={settings.backend!r}: it is 'cuda', 'host' or None")
    if settings.max_norm is not None and not settings.max_norm > 0:
        raise HocketUsageError(
            f"max_norm={settings.max_norm}: it is above 0, or None for no clipping"
        )
    if settings.clip not in _abi.CLIPS:
        raise HocketUsageError(f"clip={settings.clip!r}: it is 'norm' or 'block'")
    if settings.clip == "block" and settings.max_norm is None:
        raise HocketUsageError("clip='block' needs max_norm, the largest norm of each block")
    share = settings.clip_share
    if share is not None and not (isinstance(share, (int, float)) and 0 <= share <= 1):
        raise HocketUsageError(f"clip_share={share!r}: it is a share of steps, 0 to 1, or None")
    if share is not None and settings.plan != "auto":
        raise HocketUsageError('clip_share is for plan="auto": other plans have chosen')
    if settings.state is not None and settings.state not in _abi.STATES:
        raise HocketUsageError(
            f"state={settings.state!r}: it is {', '.join(map(repr, _abi.STATES))}, or None for "
            "what the plan says"
        )
    if not isinstance(settings.seed, int) or not 0 <= settings.seed < 1 << 64:
        raise HocketUsageError(f"seed={settings.seed!r}: it is a whole number of 64 bits")
    if settings.accumulate not in (None, torch.float32):
        raise HocketUsageError(
            f"accumulate={settings.accumulate}: it is torch.float32, or None for the gradient's "
            "own type"
        )
    for name in ("cpu_threads", "host_memory", "gpu_memory", "accumulation_steps"):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise HocketUsageError(f"{name}={value!r}: it is a whole number from 1, or None")


def check_group(group: Mapping[str, Any]) -> None:
    """Refuses what a param group must not ask for, by name."""
    for option in ("amsgrad", "maximize", "capturable", "differentiable"):
        if group.get(option):
            raise HocketUsageError(f"{option}=True is not supported by hocket.AdamW: leave it out")
    lr, beta1, beta2, eps, weight_decay = hyper(group)
    for name, value, low, high in (
        ("lr", lr, 0.0, float("inf")),
        ("eps", eps, 0.0, float("inf")),
        ("weight_decay", weight_decay, 0.0, float("inf")),
        ("betas[0]", beta1, 0.0, 1.0),
        ("betas[1]", beta2, 0.0, 1.0),
    ):
        if not low <= value < high:
            raise HocketUsageError(f"{name}={value}: it is at least {low:g}, and below {high:g}")
    for param in group["params"]:
        if param.is_complex():
            raise HocketUsageError("a complex parameter: hocket.AdamW takes real ones only")
