#!/usr/bin/env python3
"""How much shorter programs become that a compiler of today has made, and whether the kernel takes them.

    bench/modern.py DIRECTORY [--level O2|super] [--goal GOAL] [--for KERNELS] [--budget TIME] [--sample N]
                    [--seed N] [--within SECONDS] [--millstream PATH] [--output FILE] [--rows FILE]

Takes the objects below DIRECTORY that clang of at least version 16 has made, by what they say themselves; --sample takes so many of
them: in the order of their instructions they are cut into as many parts of equal length, and chance draws one of each. --within begins no
further one after that time, in an order by chance. Counted is each program of at least 20 slots that the kernel accepts unmodified. --budget is for each program.
What was written is loaded by itself; of -O super each program's proof is told too. Needs root. The summary, as JSON, goes to
standard output and to --output; --rows keeps a row for each program.
"""

import argparse
import collections
import pathlib
import random
import re
import statistics
import struct
import sys
import tempfile

import corpus
import record

OLDEST = 16  # clang
PROGBITS, EXECUTABLE = 1, 4  # of a section of an ELF object


def producer(path):
    """The major version of the clang that made an object, or none."""
    found = re.search(rb"clang version (\d+)\.", path.read_bytes())
    return int(found[1]) if found else None


def instructions(path):
    """How many slots the code of an ELF64 object takes."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    total = 0
    for at in range(table, table + size * count, size):
        _, kind, flags, _, _, length = struct.unpack_from("<IIQQQQ", data, at)
        total += length // 8 if kind == PROGBITS and flags & EXECUTABLE else 0
    return total


def drawn(objects, count, chance):
    """So many objects, one of each of so many parts of equal length in the order of their sizes."""
    by_size = sorted(objects, key=lambda o: (instructions(o[1]), o[0]))
    count = min(count, len(by_size))
    parts = [by_size[n * len(by_size) // count : (n + 1) * len(by_size) // count] for n in range(count)]
    return [chance.choice(part) for part in parts]


def chosen(args):
    """The objects, and how many there are of each version of the compiler."""
    objects, versions = [], {}
    for name, path in record.objects(args.directory):
        version = producer(path)
        versions[str(version)] = versions.get(str(version), 0) + 1
        if version and version >= OLDEST:
            objects.append((name, path))
    chance = random.Random(args.seed)
    if args.sample:
        objects = drawn(objects, args.sample, chance)
    if args.within:
        chance.shuffle(objects)
    return objects, dict(sorted(versions.items()))


def figures(rows, field):
    """Ratios after over before, and the mean reduction, of programs of which both are known."""
    found = corpus.ratios([r for r in rows if r["before"].get(field)], field)
    return {**found, "mean_reduction": round(1 - found["mean"], 4)} if found else None


def line(row):
    """A program in one line: slots and predicted cycles, the kernel, the proof."""
    before, after = row["before"], row["after"]
    slots, cycles = (f"{before[k]} > {after[k]}" for k in ("slots", "cycles"))
    kernel = "accepted" if row["accepted"] else "NOT ACCEPTED"
    return f"{row['object']} {row['program']}: slots {slots}, millicycles {cycles}, {kernel}, {row['proof']}"


def taken(args, result):
    """The programs of an object that the kernel takes."""
    report, _, _ = record.run(args.millstream, "verify", result, "--json")
    return {p["name"] for p in (report or {"programs": []})["programs"] if p["verdict"] == "accepted"}


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
        with tempfile.TemporaryDirectory() as folder:
            result = pathlib.Path(folder) / path.name
            report, problem, took = record.run(args.millstream, "opt", path, "-o", result, "--json", *flags)
            seconds.append(took)
            if report is None:
                failures[name] = problem
                continue
            accepted = taken(args, result)
        predicted = {c["name"]: c for c in report.get("costs", [])}
        for p in report["programs"]:
            verdict = corpus.key(p["verdict"] if "verdict" in p else p["kernel"])
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            loadable = verdict != "not_loadable" and p["before"] and p["after"]
            if loadable and p["before"]["slots"] >= corpus.SMALLEST:
                costs = predicted.get(p["name"], p)
                figures_of = {k: {**p[k], "cycles": costs[k].get("cycles")} for k in ("before", "after")}
                proof = {"proof": corpus.key(p["proof"])} if "proof" in p else {}
                found = {"verdict": verdict, "accepted": p["name"] in accepted, **proof}
                rows.append({"object": name, "program": p["name"], **found, **figures_of})
    summary = {
        **record.head(f"bench/modern.py DIRECTORY {record.opt_words(args)}{sampled}"),
        "producers": versions,
        "objects": len(seconds),
        "objects_failed": failures,
        "programs": len(rows),
        "verdicts": verdicts,
        "accepted": sum(r["accepted"] for r in rows),
        "not_accepted": [f"{r['object']} {r['program']}" for r in rows if not r["accepted"]],
        **({"proofs": dict(collections.Counter(r["proof"] for r in rows))} if args.level == "super" else {}),
        "slots": figures(rows, "slots"),
        "jited": figures(rows, "jited"),
        "cycles": figures(rows, "cycles"),
        "seconds": round(sum(seconds), 1),
        "seconds_an_object": {"median": round(statistics.median(seconds), 2), "worst": round(max(seconds), 2)} if seconds else None,
        **({"each": [line(r) for r in rows]} if args.level == "super" else {}),
    }
    record.keep(summary, args.output)
    if args.rows:
        record.write(args.rows, rows)


if __name__ == "__main__":
    main()
