#!/usr/bin/env python3
"""How long `millstream opt` takes, the whole process, for every object below a directory.

    bench/compiler.py DIRECTORY [--millstream PATH] [--output FILE] [--rows FILE]

Each object is optimized five times, without `--stats`; its time is the median. The summary, which goes to
standard output and to --output, has the objects of about 100 slots, the larger ones, and the largest; --rows keeps a row for each object.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import record

RUNS = 5


def optimize(program, path, out):
    started = time.perf_counter()
    done = subprocess.run([program, "opt", str(path), "-o", out, "--json"], capture_output=True, text=True)
    seconds = time.perf_counter() - started
    return (seconds, json.loads(done.stdout)) if done.returncode == 0 and done.stdout else None


def row(program, path, name, out):
    runs = [optimize(program, path, out) for _ in range(RUNS)]
    if not all(runs):
        return None
    milliseconds = statistics.median(seconds for seconds, _ in runs) * 1e3
    slots = sum(f["before"] for f in runs[0][1]["functions"])
    return {"object": name, "slots": slots, "ms": round(milliseconds, 2)}


def group(rows):
    if not rows:
        return None
    times = sorted(r["ms"] for r in rows)
    return {"objects": len(rows), "median_ms": statistics.median(times), "worst_ms": times[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--rows", type=pathlib.Path)
    args = parser.parse_args()

    rows, not_optimized = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path in record.objects(args.directory):
            found = row(args.millstream, path, name, str(pathlib.Path(folder, "out.o")))
            rows += [found] if found else []
            not_optimized += not found
    rows.sort(key=lambda r: r["slots"])
    summary = {
        **record.head("bench/compiler.py DIRECTORY"),
        "runs": RUNS,
        "objects": len(rows),
        "not_optimized": not_optimized,
        "of_80_to_120_slots": group([r for r in rows if 80 <= r["slots"] <= 120]),
        "of_2000_to_5000_slots": group([r for r in rows if 2000 <= r["slots"] <= 5000]),
        "largest": rows[-5:],
    }
    record.keep(summary, args.output)
    if args.rows:
        record.write(args.rows, rows)


if __name__ == "__main__":
    main()
