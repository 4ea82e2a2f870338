# SPDX-License-Identifier: Apache-2.0
"""hocket validate training: a recorded run of a small model, compared with its prediction."""

import json
import subprocess

import pytest

import hocket
from hocket import attach
from hocket.plan import program
from models import batches, make


def recorded(overlap, path, steps=8, micro_steps=1, **settings):
    model = make("llama")
    opt = hocket.AdamW(model.parameters(), cpu_threads=1, overlap=overlap, **settings)
    opt.attach(model)
    for step, batch in enumerate(batches(steps)):
        if step == 2:
            opt.record()
        for _ in range(micro_steps):
            model(batch).backward()
        opt.step()
        opt.zero_grad()
    timeline = opt.timeline()
    path.write_text(json.dumps(timeline))
    return timeline


def validate(path, *options):
    command = [program(), "validate", "training", str(path), "--machine", "h200-16c", *options]
    return subprocess.run(command, capture_output=True, text=True)


def iterations(timeline, overlap):
    """Durations of the iterations in ms, by step."""
    ends = {}
    for span in timeline["spans"]:
        if overlap == "none" or span["name"].startswith("backward"):
            ends[span["step"]] = max(ends.get(span["step"], 0.0), span["end_ms"])
    return {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}


KINDS = {"forward", "backward", "grad_d2h", "adamw_cpu", "weight_h2d"}


def in_perfetto(path):
    """Kinds of operation in a Chrome trace, for each of its timelines."""
    found = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault(event["args"]["timeline"], set()).add(event["name"].split()[0])
    return found


@pytest.mark.parametrize("overlap", ["none", "both"])
def test_a_recorded_run_is_compared_with_its_prediction(overlap, monkeypatch, tmp_path):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    path = tmp_path / "timeline.json"
    timeline = recorded(overlap, path)
    done = validate(path, "--json", "--timeline", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    shown = in_perfetto(tmp_path / "trace.json")
    # Without overlap the engine's recording has no copies of gradients.
    kinds = KINDS - {"grad_d2h"} if overlap == "none" else KINDS
    assert set(shown) == {"predicted", "measured"} and all(kinds <= k for k in shown.values())
    found = json.loads(done.stdout)
    assert found["schema"] == "hocket.training_validation/1" and found["overlap"] == overlap

    lengths = iterations(timeline, overlap)
    iteration = found["iteration"]
    assert iteration["measured_ms"] == pytest.approx(lengths[iteration["step"]], abs=1e-3)
    assert iteration["measured_ms"] == pytest.approx(
        sorted(lengths.values())[(len(lengths) - 1) // 2], abs=1e-3
    )
    assert iteration["recorded"] == len(lengths) and iteration["predicted_ms"] > 0
    assert found["makespan"]["measured_ms"] == iteration["measured_ms"]

    causes = found["attribution"]
    parts = sum(causes[f"{c}_ms"] for c in ("rate", "latency", "contention", "dependency", "host"))
    difference = iteration["measured_ms"] - iteration["predicted_ms"]
    assert parts == pytest.approx(difference, abs=1e-3) == causes["sum_ms"]

    operations = found["operations"]
    assert operations["forward"]["count"] == 5 and operations["backward"]["count"] >= 3
    assert operations["adamw_cpu"]["count"] >= 5
    assert {"forward", "backward", "update"} <= set(found["phases"])
    assert 0 < len(found["differences"]) <= 10
    assert {"rate", "latency", "contention", "dependency", "host", "wait"} >= {
        item["cause"] for item in found["differences"]
    }
    assert found["block_times"] == "recording" and not found["not_predicted"]

    text = validate(path, "--max-error", "0.0001")
    assert text.stdout.startswith("iteration: predicted ") and "measured" in text.stdout
    assert "differs most" in text.stdout and text.returncode == 1
    assert "more than --max-error 0.0001" in text.stderr


@pytest.mark.parametrize("said", [None, 3])
def test_micro_steps_are_counted_without_a_plan(said, monkeypatch, tmp_path):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    path = tmp_path / "timeline.json"
    timeline = recorded("both", path, micro_steps=3, accumulation_steps=said)
    assert timeline["plan"]["job"]["grad_accum"] == 3
    operations = json.loads(validate(path, "--json").stdout)["operations"]
    assert operations["forward"]["count"] == 3 * 5
    # Three passes are not one that lasts as long as all three micro-steps.
    backward = operations["backward"]
    assert backward["count"] >= 3 * 3
    blocks = [s for s in timeline["spans"] if s["name"].startswith("backward")]
    longest = max(s["end_ms"] - s["start_ms"] for s in blocks)
    assert backward["predicted_ms"] <= longest * backward["count"]


def test_other_documents_are_refused(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text('{"schema": "hocket.spans/1", "spans": []}')
    done = validate(path)
    assert done.returncode == 2 and "plan" in done.stderr and "timeline.json" in done.stderr
