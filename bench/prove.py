#!/usr/bin/env python3
"""Optimizes a fixed sample of the programs below a directory and proves that each does what it did.

    bench/prove.py DIRECTORY [--millstream PATH] [--sample N] [--time SECONDS] [--output FILE] [--rows FILE]

A pair is a program and what `opt` made of it, where that is not the same instructions. The sample is the same every time: pairs in
order of size are cut into strata of equal number, and of each stratum those are taken whose names have the lowest hashes. The
summary, as JSON, goes to standard output and to --output: how many are decided, how long that took, and each that is not, with the
reason. --rows keeps a row for each program.
"""

import argparse
import collections
import hashlib
import pathlib
import subprocess
import tempfile

import record

STRATA = 20


def prove(program, before, after, *flags):
    """Rows of `millstream prove`, or none if the two are no pair."""
    report, _, _ = record.run(program, "prove", before, after, "--json", *flags)
    return report["programs"] if report else []


def pairs(args, scratch):
    """Every program that `opt` changed, with the files of both forms."""
    for name, path in record.objects(args.directory):
        after = scratch / name
        after.parent.mkdir(parents=True, exist_ok=True)
        command = [args.millstream, "opt", str(path), "-o", str(after)]
        if subprocess.run(command, capture_output=True).returncode or not after.exists():
            continue
        for row in prove(args.millstream, path, after, "--dry-run"):
            if not row["identical"] and row["slots"][0]:
                yield {"object": name, "program": row["name"], "slots": row["slots"], "files": (path, after)}


def place(pair):
    return hashlib.sha256(f"{pair['object']} {pair['program']}".encode()).hexdigest()


def sample(found, count):
    """As many pairs from each stratum of sizes, by hash."""
    found = sorted(found, key=lambda p: (p["slots"][0], place(p)))
    strata = [found[len(found) * n // STRATA : len(found) * (n + 1) // STRATA] for n in range(STRATA)]
    taken = []
    for n, stratum in enumerate(strata):
        share = count * (n + 1) // STRATA - count * n // STRATA
        taken += sorted(stratum, key=place)[:share]
    return sorted(taken, key=lambda p: (p["slots"][0], place(p)))


def figures(values):
    values = sorted(values)
    if not values:
        return None
    at = lambda share: round(values[min(len(values) - 1, int(share * len(values)))], 3)
    return {"median": at(0.5), "p90": at(0.9), "worst": at(1)}


def decide(args, pair):
    before, after = pair.pop("files")
    flags = ["--prog", pair["program"], "--proof-time", str(args.time)]
    row = next(iter(prove(args.millstream, before, after, *flags)), None)
    if row is None:
        return {**pair, "verdict": "unknown", "reason": "the prover gave no answer", "seconds": None, "terms": None}
    answer = {"verdict": row["verdict"], "seconds": round(row["milliseconds"] / 1e3, 3), "terms": row["terms"]}
    return {**pair, **answer, "reason": row.get("reason")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--sample", type=int, default=200, help="pairs; 0 for all")
    parser.add_argument("--time", type=int, default=20, help="seconds for each pair")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--rows", type=pathlib.Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        found = list(pairs(args, pathlib.Path(scratch)))
        rows = [decide(args, pair) for pair in sample(found, args.sample or len(found))]
    verdicts = collections.Counter(r["verdict"] for r in rows)
    undecided = [r for r in rows if r["verdict"] == "unknown"]
    summary = {
        **record.head(f"bench/prove.py DIRECTORY --sample {args.sample} --time {args.time}"),
        "pairs_that_differ": len(found),
        "sample": len(rows),
        "slots": figures(r["slots"][0] for r in rows),
        "verdicts": dict(verdicts),
        "refuted": [r for r in rows if r["verdict"] == "differs"],
        "seconds": figures(r["seconds"] for r in rows if r["seconds"] is not None),
        "seconds_of_proven": figures(r["seconds"] for r in rows if r["verdict"] == "equivalent"),
        "reasons": dict(collections.Counter(r["reason"] for r in undecided).most_common()),
        "undecided": undecided,
    }
    record.keep(summary, args.output)
    if args.rows:
        record.write(args.rows, rows)


if __name__ == "__main__":
    main()
