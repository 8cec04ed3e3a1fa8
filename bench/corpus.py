#!/usr/bin/env python3
"""Optimizes every object below a directory, asks the kernel about each program, and sums up.

    bench/corpus.py DIRECTORY [--millstream PATH] [--old GLOB] [--output FILE] [--rows FILE]

For each program of at least 20 slots that the kernel accepts unmodified: slots, bytes of machine code and verified
instructions after over before. Objects whose path matches --old count as made by compilers before clang 16. Needs root.
The summary, as JSON, goes to standard output and to --output; it names the programs next to a bar, those that were remade or
left as they were, and why. --rows keeps a row for each program.
"""

import argparse
import fnmatch
import json
import pathlib
import statistics
import subprocess
import time

import record

SMALLEST = 20  # slots: below, one slot is several per cent
SHOWN = 5
FIELDS = ("slots", "jited", "verified")


def optimize(program, path, stats=True):
    """The report of `millstream opt` on one object, or what it complained of in the end."""
    command = [program, "opt", str(path), "--json"] + (["--stats"] if stats else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return None, "timeout"
    try:
        return json.loads(done.stdout), None
    except ValueError:
        return None, record.complaint(done)


def key(outcome):
    """A variant's name, whether it carries data or not."""
    return outcome if isinstance(outcome, str) else next(iter(outcome))


def ratios(rows, field):
    values = sorted(r["after"][field] / r["before"][field] for r in rows if r["before"][field])
    if not values:
        return None
    return {
        "programs": len(values),
        "median": round(statistics.median(values), 4),
        "mean": round(statistics.fmean(values), 4),
        "worst": round(values[-1], 4),
        "best": round(values[0], 4),
    }


def short(row):
    """A row in one line: program, then after over before."""
    figures = [f"{field} {row['after'][field]}/{row['before'][field]}" for field in FIELDS if row["after"]]
    return ", ".join([f"{row['object']}: {row['program']}", *figures])


def worst(rows, field):
    longest = sorted((r for r in rows if r["before"][field]), key=lambda r: -r["after"][field] / r["before"][field])
    return [short(r) for r in longest[:SHOWN]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--old", action="append", default=[], help="paths of objects made by clang before 16")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--rows", type=pathlib.Path)
    args = parser.parse_args()

    rows, failures, outcomes, verdicts, not_loadable, reasons = [], {}, {}, {}, 0, {}
    objects, started = 0, time.time()
    for name, path in record.objects(args.directory):
        objects += 1
        report, problem = optimize(args.millstream, path)
        if report is None:
            failures[name] = problem
            continue
        for f in report["functions"]:
            outcomes[key(f["outcome"])] = outcomes.get(key(f["outcome"]), 0) + 1
            if key(f["outcome"]) not in ("rewritten", "removed", "nothing_to_do"):
                reasons[f"{name}: {f['name']}"] = f["outcome"]
        for p in report["programs"]:
            verdict = key(p["verdict"])
            if verdict == "not_loadable":
                not_loadable += 1
                continue
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            if verdict != "accepted":
                reasons[short({"object": name, "program": p["name"], **p})] = p["verdict"]
            if p["after"] and p["before"]["slots"] >= SMALLEST:
                old = any(fnmatch.fnmatch(name, g) for g in args.old)
                rows.append({"object": name, "program": p["name"], "old": old, **{k: p[k] for k in ("before", "after")}})
    groups = {"all": rows, "modern": [r for r in rows if not r["old"]], "old": [r for r in rows if r["old"]]}
    summary = {
        **record.head("bench/corpus.py DIRECTORY " + " ".join(f"--old {g}" for g in args.old)),
        "seconds": round(time.time() - started, 1),
        "objects": objects,
        "objects_failed": failures,
        "programs_not_loadable_before": not_loadable,
        "programs": verdicts,
        "functions": outcomes,
        "not_simply_accepted": reasons,
        "ratios": {g: {f: ratios(r, f) for f in FIELDS} for g, r in groups.items()},
        "worst": {f: worst(rows, f) for f in FIELDS},
    }
    record.keep(summary, args.output)
    if args.rows:
        record.write(args.rows, rows)


if __name__ == "__main__":
    main()
