# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies host memory beside every second case of a train.py call, as another job on the host would.

    run neighbour --processes 8 --out neighbour.json training-out &
    run --accumulate 1,1 --out training-out ...

train.py with `--accumulate 1,1` trains each row twice; the copies run beside the second time. They
start and stop by the rows in training-out/rows.jsonl. Interrupt or terminate to end. neighbour.json
has for each time: begin and end in seconds since 1970, and GB/s, read and written.
"""

import argparse
import json
import multiprocessing
import pathlib
import signal
import time

import numpy

BYTES = 256 << 20


def copy(on, moved):
    """Copies between two buffers while `on` is set; `moved` counts bytes read and written."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    first, second = numpy.ones(BYTES, numpy.uint8), numpy.zeros(BYTES, numpy.uint8)
    while True:
        if not on.value:
            time.sleep(0.02)
            continue
        numpy.copyto(second, first)
        numpy.copyto(first, second)
        moved.value += 4 * BYTES


def rows_done(path):
    """Rows that train.py has finished; a line that is being written does not count."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except OSError:
        return 0
    return sum(json.loads(line)["event"] == "row" for line in lines if line.endswith("\n"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("neighbour.json"))
    parser.add_argument("folder", type=pathlib.Path, help="train.py's --out")
    options = parser.parse_args()
    on = multiprocessing.Value("i", 0, lock=False)
    moved = [multiprocessing.Value("q", 0, lock=False) for _ in range(options.processes)]
    stopped = []
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: stopped.append(True))
    for counter in moved:
        multiprocessing.Process(target=copy, args=(on, counter), daemon=True).start()
    times = []
    while not stopped:
        beside = rows_done(options.folder / "rows.jsonl") % 2
        if beside and not on.value:
            begin, before = time.time(), sum(counter.value for counter in moved)
        elif on.value and not beside:
            rate = (sum(counter.value for counter in moved) - before) / (time.time() - begin) / 1e9
            times.append([round(begin, 2), round(time.time(), 2), round(rate, 1)])
            options.out.write_text(json.dumps(times))
        on.value = beside
        time.sleep(0.05)


if __name__ == "__main__":
    main()
