# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the reports and timelines that tests/abi/threads.c prints: JSON of the schemas that hocket.h
names, with figures that agree with each other."""
import json
import sys

OVERLAPS = {1: "none", 2: "forward", 3: "both"}
seen = set()


def check_report(overlap, report):
    assert report["schema"] == "hocket.engine/1", report
    assert report["overlap"] == OVERLAPS[overlap] and report["backend"] == "host", report
    assert report["tensors"] == 8 and report["blocks"] == 5 and report["cpu_threads"] == 2, report
    assert report["steps"] == 5 and report["operations"] > 0, report
    routes = ("cpu", "staged", "mapped", "resident")
    assert sum(report["parameters"][route] for route in routes) == 30000, report
    assert (report["parameters"]["ahead"] > 0) == (overlap == 3), report
    times = report["last_steps"]
    # Step 5 may not have ended yet.
    assert [time["step"] for time in times] in ([1, 2, 3, 4], [1, 2, 3, 4, 5]), report
    assert all(0 < time["update_ms"] < 60000 for time in times), report
    memory = report["memory"]
    assert memory["host_pinned_bytes"] >= 12 * 30000, report
    assert (memory["spares_bytes"] > 0) == (overlap == 3), report


def check_timeline(overlap, timeline):
    assert timeline["schema"] == "hocket.spans/1"
    spans = timeline["spans"]
    names = {span["name"].split()[0] for span in spans}
    wanted = {"barrier", "adamw_cpu", "weight_h2d", "forward", "backward"}
    assert names == wanted | ({"grad_d2h"} if overlap > 1 else set()), names
    assert {span["step"] for span in spans} == {3, 4, 5}
    for span in spans:
        assert 0 < span["start_ms"] <= span["end_ms"], span
    for step in (3, 4, 5):
        mine = [span for span in spans if span["step"] == step]
        assert sum(span["name"].startswith("forward B") for span in mine) == 5, mine
        assert sum(span["name"].startswith("backward B") for span in mine) == 5, mine
        norm = next(span["end_ms"] for span in mine if span["name"] == "barrier")
        for span in mine:
            if span["name"].startswith("weight_h2d"):
                assert span["start_ms"] >= norm, (norm, span)
            if span["name"].startswith("grad_d2h"):
                assert span["end_ms"] <= norm, (norm, span)
            if span["name"].startswith("backward"):  # it may end after the norm
                assert span["start_ms"] <= norm, (norm, span)


for line in sys.stdin:
    kind, _, rest = line.partition(" ")
    if kind not in ("report", "timeline"):
        continue
    number, _, text = rest.partition(" ")
    (check_report if kind == "report" else check_timeline)(int(number), json.loads(text))
    seen.add((kind, int(number)))
assert len(seen) == 6, seen
