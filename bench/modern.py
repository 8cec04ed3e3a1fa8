#!/usr/bin/env python3
"""How much shorter programs become that a compiler of today has made, and whether the kernel takes them.

    bench/modern.py DIRECTORY [--level O2|super] [--goal GOAL] [--for KERNELS] [--budget TIME] [--sample N]
                    [--seed N] [--within SECONDS] [--millstream PATH] [--output FILE] [--rows FILE]

Takes the objects below DIRECTORY that clang of at least version 16 has made, by what they say themselves; --sample takes so many of
them, by chance, and --within begins no further one after that time, in an order by chance. Counted is each program of at least 20 slots that the kernel accepts unmodified. --budget is for each program.
Needs root. The summary, as JSON, goes to standard output and to --output; --rows keeps a row for each program.
"""

import argparse
import pathlib
import random
import re
import statistics
import sys

import corpus
import record

OLDEST = 16  # clang


def producer(path):
    """The major version of the clang that made an object, or none."""
    found = re.search(rb"clang version (\d+)\.", path.read_bytes())
    return int(found[1]) if found else None


def chosen(args):
    """The objects, and how many there are of each version of the compiler."""
    objects, versions = [], {}
    for name, path in record.objects(args.directory):
        version = producer(path)
        versions[str(version)] = versions.get(str(version), 0) + 1
        if version and version >= OLDEST:
            objects.append((name, path))
    if args.sample or args.within:
        objects = random.Random(args.seed).sample(objects, min(args.sample or len(objects), len(objects)))
    return objects, dict(sorted(versions.items()))


def figures(rows, field):
    """Ratios after over before, and the mean reduction, of programs of which both are known."""
    found = corpus.ratios([r for r in rows if r["before"].get(field)], field)
    return {**found, "mean_reduction": round(1 - found["mean"], 4)} if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    record.opt_arguments(parser)
    parser.add_argument("--sample", type=int, help="objects to take; all unless said")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, metavar="SECONDS", help="begin no further object after that time")
    parser.add_argument("--rows", type=pathlib.Path)
    args = parser.parse_args()

    objects, versions = chosen(args)
    flags = record.opt_flags(args)
    said = (("sample", args.sample), ("within", args.within), ("seed", args.seed if args.sample or args.within else None))
    sampled = "".join(f" --{key} {value:g}" for key, value in said if value)
    rows, failures, verdicts, seconds = [], {}, {}, []
    for n, (name, path) in enumerate(objects):
        if args.within and sum(seconds) > args.within:
            break
        if sys.stderr.isatty():
            print(f"\r{n + 1}/{len(objects)} {name:60}", end="", file=sys.stderr)
        report, problem, took = record.run(args.millstream, "opt", path, "--json", *flags)
        seconds.append(took)
        if report is None:
            failures[name] = problem
            continue
        predicted = {c["name"]: c for c in report.get("costs", [])}
        for p in report["programs"]:
            verdict = corpus.key(p["verdict"] if "verdict" in p else p["kernel"])
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            loadable = verdict != "not_loadable" and p["before"] and p["after"]
            if loadable and p["before"]["slots"] >= corpus.SMALLEST:
                costs = predicted.get(p["name"], p)
                figures_of = {k: {**p[k], "cycles": costs[k].get("cycles")} for k in ("before", "after")}
                rows.append({"object": name, "program": p["name"], "verdict": verdict, **figures_of})
    summary = {
        **record.head(f"bench/modern.py DIRECTORY {record.opt_words(args)}{sampled}"),
        "producers": versions,
        "objects": len(seconds),
        "objects_failed": failures,
        "programs": len(rows),
        "verdicts": verdicts,
        "slots": figures(rows, "slots"),
        "jited": figures(rows, "jited"),
        "cycles": figures(rows, "cycles"),
        "seconds": round(sum(seconds), 1),
        "seconds_an_object": {"median": round(statistics.median(seconds), 2), "worst": round(max(seconds), 2)} if seconds else None,
    }
    record.keep(summary, args.output)
    if args.rows:
        record.write(args.rows, rows)


if __name__ == "__main__":
    main()
