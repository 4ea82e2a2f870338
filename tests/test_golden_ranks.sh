#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# `hocket validate training` with the recordings of two ranks: each rank's sums are those of its
# recording, waits for ranks those between the two, and the prediction has the collectives of both.
# Usage: test_golden_ranks.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh" "$1"
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
ranks=("$tests/data/ranks/rank0.json" "$tests/data/ranks/rank1.json")

ok validate training "${ranks[1]}" "${ranks[0]}" --machine h200-16c --json
python3 - out "${ranks[@]}" <<'END' || fail "validate training of two ranks"
import json
import sys

found, *recordings = (json.load(open(path)) for path in sys.argv[1:])
assert found["schema"] == "hocket.ranks_validation/1" and found["passed"], found
assert len(found["ranks"]) == 2
step = found["ranks"][0]["iteration"]["step"]
named = [{(s["step"], s["name"], n): (s["start_ms"], s["end_ms"])
          for n, s in enumerate(r["spans"])} for r in recordings]


def spans(rank, kind, of):
    """Spans of a kind in a step, in order of time."""
    return sorted((name, *times) for (at, name, _), times in named[rank].items()
                  if at == of and name.split()[0] == kind)


ends = [[max(s[2] for s in spans(rank, "backward", of)) for of in (step - 1, step)]
        for rank in (0, 1)]
for rank, got in enumerate(found["ranks"]):
    begin, end = ends[rank]
    near = lambda a, b: abs(a - b) < 1e-3
    assert got["iteration"]["step"] == step
    assert near(got["iteration"]["measured_ms"], end - begin), (rank, got["iteration"])
    assert near(got["ends_later_ms"], end - ends[0][1]), (rank, got["ends_later_ms"])
    gathers = [s for s in spans(rank, "all_gather", step) if s[2] <= end]
    operations = got["operations"]
    # Each block once in forward, and in backward all but the root, whose weights stay.
    assert operations["all_gather"]["count"] == len(gathers) == 7, operations["all_gather"]
    assert near(operations["all_gather"]["measured_ms"], sum(e - b for _, b, e in gathers))
    assert operations["all_gather"]["predicted_ms"] > 0 < operations["reduce_scatter"]["predicted_ms"]
    # The root's forward encloses the others': it counts until the first of them begins.
    root, *others = spans(rank, "forward", step)
    busy = min(s[1] for s in others) - root[1] + sum(e - b for _, b, e in others)
    assert near(operations["forward"]["measured_ms"], busy), (operations["forward"], busy)
    waits = 0.0
    for kind in ("all_gather", "reduce_scatter"):
        for mine, other in zip(spans(rank, kind, step), spans(1 - rank, kind, step)):
            waits += max(0.0, min(mine[2], other[1]) - mine[1])
    assert near(got["waits_for_ranks_ms"], waits), (rank, waits, got["waits_for_ranks_ms"])
worst = found["worst"]
for key, of in (("iteration", lambda r: r["iteration"]), ("adamw_cpu", lambda r: r["operations"]["adamw_cpu"])):
    error = [abs(of(r)["measured_ms"] - of(r)["predicted_ms"]) for r in found["ranks"]]
    assert worst[key]["rank"] == error.index(max(error)), (key, worst[key], error)
END

ok validate training "${ranks[@]}" --machine h200-16c --timeline trace.json --quiet
prints '^iteration: predicted [0-9.]+ ms, measured [0-9.]+ to [0-9.]+ ms, error '
prints '^ms +predicted +rank 0 +rank 1 +error, worst$'
prints '^all_gather '
prints '^wait for ranks '
python3 "$tests/check_trace.py" trace.json >checked || fail "the trace: $(cat checked)"
grep -q '^3 timelines' checked || fail "the trace has not three timelines: $(cat checked)"

expect 2 'rank 0 of 2: expected the recordings of all ranks, got 1' \
  validate training "${ranks[0]}" --machine h200-16c
expect 2 'two recordings of rank 0' \
  validate training "${ranks[0]}" "${ranks[0]}" --machine h200-16c
sed 's/"host":"host"/"host":"other"/' "${ranks[1]}" >other.json
expect 2 "hosts 'host' and 'other' have no common clock" \
  validate training "${ranks[0]}" other.json --machine h200-16c
timeout 60 "$hocket" validate training "${ranks[@]}" --machine h200-16c --max-error 1 >out 2>err
said 1 'more than --max-error 1' "--max-error" $?
finish "ranks"
