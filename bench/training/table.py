# SPDX-License-Identifier: GPL-3.0-or-later
"""The short table, and how the rows are judged."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

Key = Tuple[str, int]


def _number(value: Optional[float], digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ahead(entry: Dict[str, Any]) -> str:
    shares = entry.get("ahead")
    return "-" if not shares else f"{100 * sum(shares) / len(shares):.0f}%"


def _loss(entry: Dict[str, Any]) -> str:
    losses = entry.get("losses") or []
    return f"{losses[0]:.3f}>{losses[-1]:.3f}" if losses else "-"


def _alone(entry: Dict[str, Any]) -> Optional[float]:
    """Computation alone beside this row: the mean of before and after."""
    found = [ms for ms in entry.get("compute_alone_ms") or [] if ms]
    return sum(found) / len(found) if found else None


def table(entries: Iterable[Dict[str, Any]]) -> str:
    """All rows, then what did not run."""
    entries = list(entries)
    measured = [entry for entry in entries if entry["event"] == "row" and "wall_ms" in entry]
    lines = []
    if measured:
        lines.append(f"{'row':15} {'mb':>2} {'wall':>7} {'median':>7} {'fwd':>6} {'bwd':>6} "
                     f"{'step':>6} {'CPU s':>6} {'alone':>6} {'GPU':>6} {'host':>6} {'ahead':>5} "
                     f"{'clip':>4} loss")
    for entry in measured:
        phases, memory = entry["phases_ms"], entry["memory_gib"]
        lines.append(
            f"{entry['row']:15} {entry['micro_batch']:2} {_number(entry['wall_ms'], 1):>7} "
            f"{_number(entry['median_ms'], 1):>7} {_number(phases['forward']):>6} "
            f"{_number(phases['backward']):>6} {_number(phases['step']):>6} "
            f"{_number(entry['cpu_s'], 2):>6} {_number(_alone(entry)):>6} "
            f"{_number(memory.get('gpu_peak'), 1):>6} {_number(memory.get('used'), 1):>6} "
            f"{_ahead(entry):>5} {_number(entry.get('clipped_steps')):>4} {_loss(entry)}")
    lines.extend(_leaks(entries))
    lines.extend(_bits(measured))
    lines.extend(judge(measured))
    for entry in entries:
        if entry["event"] in ("failed", "skipped", "killed"):
            where = f" at {entry['micro_batch']}" if "micro_batch" in entry else ""
            lines.append(f"{entry['row']}{where}: {entry['event']}: {entry['why']}")
    return "\n".join(lines)


def _leaks(entries: Iterable[Dict[str, Any]]) -> List[str]:
    lines = []
    for entry in entries:
        if "leak" not in entry:
            continue
        samples, grown = entry["leak"]["samples"], entry["leak"]["grown"]
        kept = [key for key in ("rss", "pinned", "torch_pinned", "used", "gpu_used",
                                "gpu_allocated") if key in grown]
        lines.append(f"{entry['row']} at {entry['micro_batch']}: GiB at step "
                     f"{samples[min(1, len(samples) - 1)]['step']} and growth until step "
                     f"{samples[-1]['step']}: " + ", ".join(
                         f"{key} {samples[min(1, len(samples) - 1)][key]:.2f} {grown[key]:+.3f}"
                         for key in kept))
    return lines


def _bits(measured: List[Dict[str, Any]]) -> List[str]:
    """Whether rows of hocket agree to the bit."""
    lines = []
    by_batch: Dict[int, List[Dict[str, Any]]] = {}
    for entry in measured:
        if "checksum" in entry:
            by_batch.setdefault(entry["micro_batch"], []).append(entry)
    for micro_batch, found in by_batch.items():
        kinds: Dict[Tuple[str, str, str], List[str]] = {}
        for entry in found:
            kinds.setdefault((entry["checksum"], entry["weights"], str(entry["losses"])),
                             []).append(entry["row"])
        verdict = "equal to the bit" if len(kinds) == 1 else "DIFFERENT"
        lines.append(f"state, weights and losses at {micro_batch}, {found[0]['iterations']} + 2 "
                     f"steps: {verdict}: " + "; ".join(
                         f"{' '.join(names)} = {key[0][:8]} {key[1][:8]}"
                         for key, names in kinds.items()))
    return lines


def judge(measured: List[Dict[str, Any]]) -> List[str]:
    """Ratios that issues 20 and 21 ask for, of the rows there are."""
    by: Dict[Key, Dict[str, Any]] = {(e["row"], e["micro_batch"]): e for e in measured}
    lines = []
    for micro_batch in sorted({e["micro_batch"] for e in measured}, reverse=True):
        def wall(name: str, at: int = micro_batch) -> Optional[float]:
            entry = by.get((name, at))
            return entry["wall_ms"] if entry else None

        lines.extend(f"mb {micro_batch}: {line}" for line in _ratios(wall, micro_batch, by))
    return lines


def _ratios(wall: Any, micro_batch: int, by: Dict[Key, Dict[str, Any]]) -> List[str]:
    lines = []
    none = by.get(("hocket-none", micro_batch))
    update = ((none or {}).get("update_alone") or {}).get("median_ms")
    readings = [reading for (name, at), entry in by.items() if at == micro_batch
                for reading in entry.get("compute_alone_ms") or [] if reading]
    compute = wall("model-only") or (sum(readings) / len(readings) if readings else None)
    if compute and readings:
        lines.append(f"computation alone {compute:.1f} ms "
                     f"(readings between rows {min(readings):.1f} to {max(readings):.1f})")
    if update and compute:
        limit = max(update, compute)
        lines.append(f"update alone {update:.1f} ms; limit max(computation, update) {limit:.1f}")
        for name in ("hocket-forward", "hocket-both"):
            if wall(name):
                lines.append(f"{name} is {wall(name) / limit:.3f} x the limit")
    if update and wall("hocket-none") and wall("hocket-forward"):
        lines.append(f"forward hides {wall('hocket-none') - wall('hocket-forward'):.1f} ms; "
                     f"{wall('hocket-none') / wall('hocket-forward'):.3f} x none")
    if wall("hocket-both"):
        for name in ("gpu", "hocket-none", "hocket-forward", "torchao", "deepspeed-2",
                     "deepspeed-3"):
            if wall(name):
                lines.append(f"{name} / hocket-both {wall(name) / wall('hocket-both'):.3f}")
    for name in ("deepspeed-2", "deepspeed-3"):
        if wall(name) and wall("hocket-none"):
            lines.append(f"{name} / hocket-none {wall(name) / wall('hocket-none'):.3f}")
    return lines
