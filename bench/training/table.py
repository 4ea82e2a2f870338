# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of results, and the comparison of the rows."""

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
    """Time of computation alone: the mean of the measurements before and after this row."""
    found = [ms for ms in entry.get("compute_alone_ms") or [] if ms]
    return sum(found) / len(found) if found else None


def table(entries: Iterable[Dict[str, Any]]) -> str:
    """All rows, then those that did not run."""
    entries = list(entries)
    measured = [entry for entry in entries if entry["event"] == "row" and "wall_ms" in entry]
    lines = []
    width = max([15] + [len(entry["row"]) for entry in measured])
    if measured:
        lines.append(f"{'row':{width}} {'mb':>2} {'acc':>3} {'wall':>7} {'median':>7} {'fwd':>6} {'bwd':>6} "
                     f"{'step':>6} {'CPU s':>6} {'alone':>6} {'GPU':>6} {'host':>6} {'ahead':>5} "
                     f"{'clip':>4} loss")
    for entry in measured:
        phases, memory = entry["phases_ms"], entry["memory_gib"]
        lines.append(
            f"{entry['row']:{width}} {entry['micro_batch']:2} {entry.get('accumulate', 1):3} "
            f"{_number(entry['wall_ms'], 1):>7} "
            f"{_number(entry['median_ms'], 1):>7} {_number(phases['forward']):>6} "
            f"{_number(phases['backward']):>6} {_number(phases['step']):>6} "
            f"{_number(entry['cpu_s'], 2):>6} {_number(_alone(entry)):>6} "
            f"{_number(memory.get('gpu_peak'), 1):>6} {_number(memory.get('used'), 1):>6} "
            f"{_ahead(entry):>5} {_number(entry.get('clipped_steps')):>4} {_loss(entry)}")
    lines.extend(_leaks(entries))
    lines.extend(_bits(measured))
    lines.extend(_state(measured))
    lines.extend(_predictions(measured))
    lines.extend(_drift(entries))
    lines.extend(_updates(entries))
    first = [entry for entry in measured if _condition(entry) == _condition(measured[0])]
    lines.extend(_curves(first))
    lines.extend(judge(first, entries))
    lines.extend(_excess(measured))
    for entry in entries:
        if entry["event"] in ("failed", "skipped", "killed"):
            where = f" at {entry['micro_batch']}" if "micro_batch" in entry else ""
            lines.append(f"{entry['row']}{where}: {entry['event']}: {entry['why']}")
    return "\n".join(lines)


def _condition(entry: Dict[str, Any]) -> Tuple[int, Optional[str]]:
    return entry.get("accumulate", 1), entry.get("clip")


def _excess(measured: List[Dict[str, Any]]) -> List[str]:
    """How much longer an iteration takes than with everything on the GPU, by number of micro-steps;
    and the limit for several: the excess of one, and 0.5 % of the iteration on the GPU."""
    gpu = {(entry["micro_batch"], entry.get("clip"), entry.get("accumulate", 1)): steady(entry)
           for entry in measured if entry["row"] == "gpu"}
    found: Dict[Tuple[str, int, Optional[str]], Dict[int, float]] = {}
    for entry in measured:
        key = (entry["micro_batch"], entry.get("clip"), entry.get("accumulate", 1))
        if entry["row"].startswith("hocket") and key in gpu:
            found.setdefault((entry["row"], *key[:2]), {})[key[2]] = steady(entry) - gpu[key]
    lines = []
    for (row, micro_batch, clip), by in found.items():
        if len(by) < 2:
            continue
        parts = []
        for number in sorted(by):
            whole = gpu[(micro_batch, clip, number)]
            limit = (f", limit {by[1] + 0.005 * whole:+.1f}" if number > 1 and 1 in by else "")
            parts.append(f"{number}: {by[number]:+.1f} ms to {whole:.1f}{limit}")
        lines.append(f"{row} at {micro_batch}, clip {clip}, excess over gpu by micro-steps: "
                     + "; ".join(parts))
    return lines


LEAK_KEYS = ("rss", "used", "pinned", "torch_pinned", "engine_pinned", "gpu_used", "gpu_allocated",
             "engine_gpu")
"""Host memory of the process and of the machine, pinned memory, GPU memory."""


def _leaks(entries: Iterable[Dict[str, Any]]) -> List[str]:
    lines = []
    for entry in entries:
        if "leak" not in entry:
            continue
        samples = entry["leak"]["samples"]
        begin = min(1, len(samples) - 1)
        shown = [samples[begin], samples[(begin + len(samples) - 1) // 2], samples[-1]]
        lines.append(f"{entry['row']} at {entry['micro_batch']}: GiB at steps "
                     + ", ".join(str(sample["step"]) for sample in shown) + ", and growth:")
        for key in LEAK_KEYS:
            if key in shown[0]:
                lines.append(f"  {key:15s}" + "".join(f"{sample[key]:9.3f}" for sample in shown)
                             + f" {shown[-1][key] - shown[0][key]:+9.3f}")
    return lines


def _bits(measured: List[Dict[str, Any]]) -> List[str]:
    """Whether rows of hocket have equal bits."""
    lines = []
    by_batch: Dict[int, List[Dict[str, Any]]] = {}
    for entry in measured:
        if "state" in entry:
            by_batch.setdefault(entry["micro_batch"], []).append(entry)
    for micro_batch, found in by_batch.items():
        kinds: Dict[Tuple[str, str, str], List[str]] = {}
        for entry in found:
            kinds.setdefault((entry["state"], entry["weights"], str(entry["losses"])),
                             []).append(entry["row"])
        verdict = "equal to the bit" if len(kinds) == 1 else "DIFFERENT"
        lines.append(f"state, weights and losses at {micro_batch}, {found[0]['iterations']} + 2 "
                     f"steps: {verdict}: " + "; ".join(
                         f"{' '.join(names)} = {key[0][:8]} {key[1][:8]}"
                         for key, names in kinds.items()))
    return lines


def _state(measured: List[Dict[str, Any]]) -> List[str]:
    """The location of the state in hocket's rows."""
    lines, seen = [], set()
    for entry in measured:
        stats = entry.get("stats") or {}
        where, memory = stats.get("parameters"), stats.get("memory")
        if not where or entry["row"] in seen:
            continue
        seen.add(entry["row"])
        lines.append(
            f"{entry['row']}: {stats.get('policy')}, {stats.get('cpu_threads')} threads; M of "
            "parameters: " + ", ".join(f"{key} {value / 1e6:.0f}" for key, value in where.items()
                                       if value)
            + "; GB: " + ", ".join(f"{key.replace('_bytes', '')} {value / 1e9:.1f}"
                                   for key, value in (memory or {}).items())
            + f"; made in {entry.get('made_s', 0) + entry.get('setup_s', 0):.1f} s")
    return lines


def steady(entry: Dict[str, Any]) -> float:
    """Mean time of an iteration, ms, without the first, which waits for no update, and the last, at
    whose end the update is waited for. The simulator predicts this time."""
    each = entry.get("each_ms") or []
    return sum(each[1:-1]) / (len(each) - 2) if len(each) > 3 else float(entry["wall_ms"])


def _predictions(measured: List[Dict[str, Any]]) -> List[str]:
    """Predicted against measured."""
    lines = []
    for entry in measured:
        found = entry.get("predicted")
        if not found:
            continue
        phases = entry["phases_ms"]
        period = found.get("period_ms") or found.get("iteration_ms")
        if entry.get("clip") == "always":  # the engine soon expects it: nothing runs ahead
            period = found.get("clipped_ms") or period
        parts = [_against("iteration", period, steady(entry))]
        if entry["row"].startswith("hocket-none"):
            parts += [_against("forward", found.get("fwd_ms"), phases["forward"]),
                      _against("backward", found.get("bwd_ms"), phases["backward"]),
                      _against("step", found.get("update_ms"), phases["step"])]
        elif found.get("exposed_update_ms") is not None:
            # The last flush and the norm are in step() here, and exposed update in the prediction.
            parts += [_against("forward with its waits, and step",
                               found["fwd_ms"] + found["exposed_update_ms"],
                               phases["forward"] + phases["step"]),
                      _against("backward", found.get("bwd_ms"), phases["backward"])]
        peak = entry["memory_gib"].get("gpu_peak")
        if peak and found.get("gpu_peak_bytes"):
            parts.append(_against("GPU peak GiB", found["gpu_peak_bytes"] / (1 << 30), peak, 2))
        other = max(0.0, entry["memory_gib"].get("gpu_other", 0.0))
        for name, held in (entry.get("gpu_allocated_gib") or {}).items():
            predicted = (found.get("gpu_memory") or {}).get(f"{name}_bytes")
            if held and predicted:
                parts.append(_against(f"GPU {name.replace('_', ' ')}", predicted / (1 << 30),
                                      held + other, 2))
        lines.append(f"{entry['row']} at {entry['micro_batch']}, predicted/measured: "
                     + "; ".join(parts))
    return lines


def _drift(entries: List[Dict[str, Any]]) -> List[str]:
    """Predictions of the same plans with the profiles calibrated before and after the rows."""
    lines = [f"calibration '{entry['row']}': some probes were noisy"
             for entry in entries if entry["event"] == "calibrated" and entry["status"]]
    for entry in entries:
        if entry["event"] == "drift":
            lines.append(f"{entry['row']} at {entry['micro_batch']}, predicted after/before: "
                         + _against("iteration", entry["after_ms"], entry["before_ms"]))
    return lines


def _curves(measured: List[Dict[str, Any]]) -> List[str]:
    """Losses against those of `gpu`, at the first micro-batch, before which all rows have taken the
    same steps. A second row `gpu` shows the difference between two equal runs."""
    first = measured[0]["micro_batch"] if measured else None
    found = [entry for entry in measured if entry["micro_batch"] == first]
    reference = next((entry for entry in found if entry["row"] == "gpu"), None)
    if reference is None:
        return []
    parts = []
    for entry in found:
        pairs = list(zip(entry["losses"], reference["losses"]))
        if entry is not reference and entry["row"] != "model-only" and pairs:
            parts.append(f"{entry['row']} {max(abs(a - b) for a, b in pairs):.4f}")
    return [f"losses, largest distance from gpu's at {first}: " + ", ".join(parts)] if parts else []


def _updates(entries: List[Dict[str, Any]]) -> List[str]:
    """The update alone, in the package and in the hocket program."""
    lines = []
    alone = [entry for entry in entries if entry["event"] == "update"]
    for entry in alone:
        lines.append(f"{entry['row']}: update alone {entry['median_ms']:.1f} ms "
                     f"({min(entry['each_ms'][1:]):.1f} to {max(entry['each_ms'][1:]):.1f})")
    for entry in entries:
        if entry["event"] == "program":
            ms = entry["update_ms"]
            lines.append(f"{entry['row']}: update {ms['median']:.1f} ms ({ms['min']:.1f} to "
                         f"{ms['max']:.1f}), {entry['policy']}" + "".join(
                             f"; {other['row']} / this {other['median_ms'] / ms['median']:.3f}"
                             for other in alone))
    return lines


def _against(what: str, predicted: Optional[float], measured: float, digits: int = 0) -> str:
    if not predicted or not measured:
        return f"{what} -"
    return (f"{what} {predicted:.{digits}f}/{measured:.{digits}f} "
            f"({100 * (predicted / measured - 1):+.1f} %)")


def judge(measured: List[Dict[str, Any]], entries: List[Dict[str, Any]]) -> List[str]:
    """Ratios of the rows that ran; README.md ("How it is judged") lists them."""
    by: Dict[Key, Dict[str, Any]] = {(e["row"], e["micro_batch"]): e for e in measured}
    updates = {e["row"]: e["median_ms"] for e in entries if e["event"] == "update"}
    lines = []
    for micro_batch in sorted({e["micro_batch"] for e in measured}, reverse=True):
        def wall(name: str, at: int = micro_batch) -> Optional[float]:
            entry = by.get((name, at))
            return entry["wall_ms"] if entry else None

        lines.extend(f"mb {micro_batch}: {line}" for line in _ratios(wall, micro_batch, by, updates))
    return lines


def _ratios(wall: Any, micro_batch: int, by: Dict[Key, Dict[str, Any]],
            updates: Dict[str, float]) -> List[str]:
    lines = []
    update = next(iter(updates.values()), None)
    readings = [reading for (name, at), entry in by.items() if at == micro_batch
                for reading in entry.get("compute_alone_ms") or [] if reading]
    compute = wall("model-only") or (sum(readings) / len(readings) if readings else None)
    if compute and readings:
        lines.append(f"computation alone {compute:.1f} ms "
                     f"(readings between rows {min(readings):.1f} to {max(readings):.1f})")
    if update and compute:
        limit = max(update, compute)
        lines.append(f"update alone {update:.1f} ms; limit max(computation, update) {limit:.1f}")
        for name in [name for name, at in by if at == micro_batch
                     and name.startswith(("hocket-forward", "hocket-both"))]:
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
