#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks what a reader of a hocket trace (Chrome trace event JSON) may rely on.

usage: check_trace.py TRACE.json

Prints a line of counts and exits 0; or the first thing that is wrong, and exits 1.

- each process and each thread has a name and a position
- operations (slices and instants) of a thread are sorted and do not overlap
- each arrow has one start and one end, from one thread to another, inside a slice of each, and
  does not go back in time
- counters have numeric values, and times that do not decrease
- where there are several timelines, each has the same operations, in the same processes; a thread
  is of one timeline, and stands next to the same lane's of the others, in the order given; arrows
  stay within a timeline
"""

import bisect
import collections
import decimal
import json
import sys


class Wrong(Exception):
    pass


def require(condition, message, event=None):
    if not condition:
        raise Wrong(message if event is None else f"{message}: {event}")


def reject_constant(text):
    raise Wrong(f"{text} is not a JSON number")


def is_number(value):
    return isinstance(value, (int, decimal.Decimal)) and not isinstance(value, bool)


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            # Decimals: times are compared exactly, to the nanosecond.
            return json.load(file, parse_float=decimal.Decimal, parse_constant=reject_constant)
    except (OSError, ValueError) as error:
        raise Wrong(f"cannot be read as JSON: {error}") from error


def nanoseconds(event, key):
    value = event.get(key)
    require(is_number(value), f"'{key}' is not a number", event)
    scaled = decimal.Decimal(value) * 1000
    require(scaled == int(scaled) and scaled >= 0,
            f"'{key}' is not a whole number of nanoseconds", event)
    return int(scaled)


def check_header(trace):
    require(isinstance(trace, dict), "the top level is not an object")
    other = trace.get("otherData")
    require(isinstance(other, dict), "'otherData' is not an object")
    require(other.get("schema") == "hocket.trace/1", f"schema is {other.get('schema')!r}")
    require(isinstance(other.get("title"), str), "'title' is not a string")
    require(isinstance(trace.get("traceEvents"), list), "'traceEvents' is not a list")
    timelines = other.get("timelines", [None])
    require(isinstance(timelines, list) and timelines and len(set(timelines)) == len(timelines),
            f"'timelines' is not a list of different names: {timelines}")
    return timelines


def by_kind(events):
    kinds = {kind: [] for kind in ("M", "X", "i", "s", "f", "C")}
    for event in events:
        require(isinstance(event, dict), "an event is not an object", event)
        require(event.get("ph") in kinds, "unknown kind of event", event)
        kinds[event["ph"]].append(event)
    return kinds


def track_of(event):
    return event.get("pid"), event.get("tid")


def check_metadata(events, metadata):
    known = collections.defaultdict(set)
    for event in metadata:
        what, _, key = str(event.get("name")).partition("_")
        require(what in ("process", "thread") and key in ("name", "sort_index"),
                "unknown metadata", event)
        require(key in event.get("args", {}), "metadata without its value", event)
        owner = event.get("pid") if what == "process" else track_of(event)
        require(key not in known[owner], "metadata given twice", event)
        known[owner].add(key)
    for event in events:
        if event["ph"] == "M":
            continue
        owners = [event.get("pid")] + ([track_of(event)] if "tid" in event else [])
        for owner in owners:
            require(known[owner] == {"name", "sort_index"},
                    f"no name or no position for process or thread {owner}", event)


def check_operations(operations):
    """Returns {track: ([starts], [ends])} of the slices."""
    slices = collections.defaultdict(lambda: ([], []))
    free_at = collections.defaultdict(int)
    for event in operations:
        track, start = track_of(event), nanoseconds(event, "ts")
        require(None not in track, "an operation on no thread", event)
        require(isinstance(event.get("name"), str) and event["name"], "no name", event)
        require(start >= free_at[track],
                f"starts before the one in front of it on thread {track} has ended", event)
        free_at[track] = start
        if event["ph"] == "X":
            duration = nanoseconds(event, "dur")
            require(duration > 0, "a slice that takes no time", event)
            free_at[track] = start + duration
            slices[track][0].append(start)
            slices[track][1].append(start + duration)
    return slices


def threads_by_position(metadata):
    """Returns {process: [track]}, in the order in which they are shown."""
    threads = collections.defaultdict(list)
    for event in metadata:
        if event.get("name") == "thread_sort_index":
            threads[event["pid"]].append((event["args"]["sort_index"], track_of(event)))
    for process, listed in threads.items():
        listed.sort()
        require(len({index for index, _ in listed}) == len(listed),
                f"two threads of process {process} have one position")
    return {process: [track for _, track in listed] for process, listed in threads.items()}


def check_timelines(timelines, operations, metadata):
    """Returns {track: name of its timeline}."""
    owner, lanes = {}, collections.defaultdict(dict)
    for event in operations:
        args, track = event.get("args", {}), track_of(event)
        name = args.get("timeline")
        require(name in timelines, "an operation of no timeline", event)
        require(owner.setdefault(track, name) == name,
                f"thread {track} is of timeline {owner[track]!r}, too", event)
        require(args.get("id") not in lanes[track], "an operation that is there twice", event)
        lanes[track][args.get("id")] = event["name"]
    for process, tracks in threads_by_position(metadata).items():
        tracks = [track for track in tracks if track in owner]
        for i in range(0, len(tracks), len(timelines)):
            group = tracks[i:i + len(timelines)]
            require([owner[track] for track in group] == timelines,
                    f"process {process}: the timelines of a lane are not one under the other: "
                    f"threads {group}")
            require(all(lanes[track] == lanes[group[0]] for track in group),
                    f"process {process}: threads {group} have different operations")
    return owner


def in_slice(slices, track, time):
    starts, ends = slices.get(track, ([], []))
    i = bisect.bisect_right(starts, time) - 1
    return i >= 0 and time < ends[i]


def check_arrows(tails, heads, slices, owner):
    starts = {event.get("id"): event for event in tails}
    ends = {event.get("id"): event for event in heads}
    require(len(starts) == len(tails) and len(ends) == len(heads), "an arrow's id is used twice")
    require(starts.keys() == ends.keys(),
            f"arrows with one end only: {sorted(starts.keys() ^ ends.keys())[:5]}")
    for key, start in starts.items():
        end = ends[key]
        require((start.get("name"), start.get("cat")) == (end.get("name"), end.get("cat")),
                f"the ends of arrow {key} differ in name or category")
        require(track_of(start) != track_of(end), f"arrow {key} stays on its thread")
        require(owner.get(track_of(start)) == owner.get(track_of(end)),
                f"arrow {key} leaves its timeline")
        require(nanoseconds(start, "ts") <= nanoseconds(end, "ts"),
                f"arrow {key} goes back in time to", end)
        require(end.get("bp") == "e", f"arrow {key} does not bind to the slice around its end")
        for event in (start, end):
            require(in_slice(slices, track_of(event), nanoseconds(event, "ts")),
                    f"arrow {key} begins or ends outside of any slice", event)


def check_counters(samples):
    last = {}
    for event in samples:
        name, time, values = event.get("name"), nanoseconds(event, "ts"), event.get("args")
        require(isinstance(values, dict) and values and all(map(is_number, values.values())),
                "a counter without numeric values", event)
        require(time >= last.get((event.get("pid"), name), 0),
                f"counter '{name}' goes back in time", event)
        last[event.get("pid"), name] = time
    return len(last)


def check(trace):
    timelines = check_header(trace)
    events = trace["traceEvents"]
    kinds = by_kind(events)
    check_metadata(events, kinds["M"])
    operations = [event for event in events if event["ph"] in ("X", "i")]
    slices = check_operations(operations)
    owner = check_timelines(timelines, operations, kinds["M"]) if len(timelines) > 1 else {}
    check_arrows(kinds["s"], kinds["f"], slices, owner)
    counters = check_counters(kinds["C"])
    several = f"{len(timelines)} timelines, " if owner else ""
    return (f"{several}{len(kinds['X'])} slices, {len(kinds['i'])} instants, "
            f"{len(kinds['s'])} arrows, {counters} counters")


def main(arguments):
    if len(arguments) != 2:
        print("usage: check_trace.py TRACE.json", file=sys.stderr)
        return 2
    try:
        print(check(load(arguments[1])))
    except Wrong as wrong:
        print(f"{arguments[1]}: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
