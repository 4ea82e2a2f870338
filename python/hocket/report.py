# SPDX-License-Identifier: Apache-2.0
"""The texts and figures of AdamW.stats() and AdamW.explain()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List

import torch

if TYPE_CHECKING:
    from .optim import AdamW


def stats(optimizer: "AdamW") -> Dict[str, Any]:
    """See AdamW.stats."""
    if not optimizer.is_bound():
        return {}
    binding = optimizer.binding()
    report: Dict[str, Any] = dict(binding.engine.report())
    last = optimizer.last_step
    report["last_step"] = last._asdict() if last is not None else None
    report["python"] = {
        "hand_over_s": optimizer.handover().seconds,
        "tensors": len(binding.params),
        "blocks": binding.n_blocks,
        "elements": sum(param.numel() for param in binding.params),
        "device": str(binding.device),
        "backend": binding.backend,
    }
    return report


def explain(optimizer: "AdamW") -> str:
    """See AdamW.explain."""
    if optimizer._replaced:
        return (
            "DeepSpeed, or another framework, keeps fp32 weights itself: there is no engine, and "
            "step() updates momentum and variance in host memory, on the CPU.\n"
        )
    if not optimizer.is_bound():
        return "hocket.AdamW has no engine yet: it is made at the first step.\n"
    binding = optimizer.binding()
    settings = optimizer._settings
    elements = sum(param.numel() for param in binding.params)
    lines: List[str] = [
        f"{elements:,} parameters in {len(binding.params)} tensors and {binding.n_blocks} blocks "
        f"on {binding.device}, backend {binding.backend}, overlap {settings.overlap}"
        + ("" if optimizer._attachment is not None else " (not attached)"),
    ]
    answer = optimizer.steps().answer
    if settings.plan is None:
        lines.append("No plan: the CPU updates the tensors block by block.")
        if settings.gpu_memory:
            lines.append(
                "State of the first blocks and new weights that wait for the norm take up to "
                f"{settings.gpu_memory:,} bytes of GPU memory."
            )
    elif answer is not None:
        lines.append(f'plan="auto" chose: {answer.get("reason", "no reason was given")}')
        lines.extend(_other_states(optimizer, answer))
    report = binding.engine.report()
    lines += other_micro_steps(optimizer, report) + _often_clipped(optimizer, report)
    lines.extend(_buffers(report))
    lines.extend(_unused_spares(report))
    lines.extend(
        f"{key}: {_short(value)}"
        for key, value in report.items()
        if key not in ("schema", "buffers")
    )
    last = optimizer.last_step
    if last is not None:
        lines.append(
            f"step {last.step}: gradient norm {last.grad_norm:.6g}, gradients times "
            f"{last.grad_scale:.6g}, {last.tensors} tensors, {last.ahead:,} elements ahead of it"
        )
    return "\n".join(lines) + "\n"


def other_micro_steps(optimizer: "AdamW", report: Dict[str, Any]) -> List[str]:
    """Whether plan="auto" was made for another number of backwards a step than the engine expects."""
    settings = optimizer._settings
    planned, found = settings.accumulation_steps or 1, int(report["sums"]["gradients_expected"])
    if settings.plan != "auto" or optimizer._attachment is None or found == planned:
        return []
    return [
        f"The plan was made for {planned} backward(s) a step, and steps have {found}: with "
        f"accumulation_steps={found} it would count their times and their sums of gradients."
    ]


def _often_clipped(optimizer: "AdamW", report: Dict[str, Any]) -> List[str]:
    settings = optimizer._settings
    chance = report.get("running_ahead", {}).get("clip_probability", 0)
    if settings.plan != "auto" or settings.clip_share or settings.clip != "norm":
        return []
    if chance <= 0.5 or report["parameters"]["cpu"] == 0:
        return []
    return [
        f"The next step will be clipped with a chance of {chance:.0%}, and the plan was made for "
        "steps that are not: clip_share=1 would give clipped ones routes of their own."
    ]


PURPOSES = {
    "state": "master weights, momentum and variance",
    "spares": "room for the new state of what is updated before the norm is known",
    "gradients": "gradients, until no update can need them again",
    "weights": "rounded weights on their way to the GPU",
    "squares": "sums of squares, for the norm",
    "staging": "state on its way through the GPU",
    "early_weights": "new weights that wait for the norm, and before them gradients",
    "gradient_slots": "gradients on their way to the host, and sums of several backwards",
    "other": "the rest",
}
"""What each buffer of engine.report() is for."""


def _buffers(report: Dict[str, Any]) -> List[str]:
    """Each buffer with its bytes and its purpose."""
    lines = []
    for where, name in (("host", "pinned host memory"), ("device", "device memory")):
        buffers = report["buffers"][where]
        lines.append(f"{name}: {sum(buffers.values()):,} bytes")
        lines.extend(
            f"  {key:15} {size:>15,}  {PURPOSES[key]}" for key, size in buffers.items() if size
        )
    return lines


def _unused_spares(report: Dict[str, Any]) -> List[str]:
    """Whether less memory for spares would have been enough in the steps so far."""
    ahead = report.get("running_ahead")
    if ahead is None or not ahead["kept_steps"]:
        return []
    may, enough = report["parameters"]["ahead"], ahead["enough_host_bytes"]
    if enough >= report["memory"]["host_pinned_bytes"]:
        return []
    return [
        f"Of {may:,} elements that may be updated before the norm is known at most "
        f"{ahead['most_elements']:,} were: host_memory={enough:_} would do."
    ]


def _other_states(optimizer: "AdamW", answer: Dict[str, Any]) -> List[str]:
    """What the planner says of other formats of state. `split` is for bf16 weights."""
    short = all(p.dtype is torch.bfloat16 for g in optimizer.param_groups for p in g["params"])
    lines = []
    for other in answer.get("advice", ()):
        option, _, state = other["options"].partition(" ")
        if option == "--state" and (short or "split" not in state):
            lines.append(f"With state={state!r} it would be {other['gain']:.2f} times as fast.")
    return lines


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_short(item) for item in value[:8]) + (
            f"; and {len(value) - 8} more" if len(value) > 8 else ""
        )
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
