#!/usr/bin/env python3
"""What each acceleration of the prover is worth: K2's 19 programs against what `opt` makes of them, with one left out at a time.

    bench/ablation.py DIRECTORY [--millstream PATH] [--time SECONDS] [--output FILE]

DIRECTORY is that of bench/k2.py. For each acceleration: how many are proven within the limit, how many terms were made, how many
questions were put and how many of these had been answered before (no answers are kept from one run to the next), over the programs that
are proven with all accelerations; and the time each takes; those that run out of time count with the limit. The summary, as JSON, goes to standard output and to
--output.
"""

import argparse
import pathlib
import statistics
import tempfile

import k2
import record

# `millstream prove --without`: a list with a name for each of K2's Table 4 that has a counterpart, and ours. K2's V, the caching of
# answers, is told by `hit_rate`: between runs it is off here, so that to leave it out would change nothing.
ACCELERATIONS = {
    "none": "nothing is left out",
    "spaces": "K2's I, memory type concretisation: packet, maps and records in one memory",
    "maps": "K2's II, map type concretisation: the values of all maps in one memory",
    "offsets": "K2's III, memory offset concretisation",
    "regions": "K2's IV, modular verification: large programs as a whole",
    "whole": "step by step from the first",
    "steps": "not step by step: as a whole, or region by region",
    "normal-form": "terms as they are written",
    "choices": "operations are not carried into choices",
    "sweep": "equal terms are not merged before the solver is asked",
}


def prove(args, before, after, without):
    flags = [] if without == "none" else ["--without", without]
    command = [args.millstream, "prove", before, after, "--json", "--proof-time", args.time, "--cache", "off", *flags]
    report, problem, _ = record.run(*command)
    if report is None:
        return {"verdict": "unknown", "milliseconds": args.time * 1e3, "terms": None, "asked": None, "reason": problem}
    (row,) = report["programs"]
    hits = sum((row.get("solvers") or {}).get("cached", {}).values())
    return {**{k: row.get(k) for k in ("verdict", "milliseconds", "terms", "reason")}, "asked": row["queries"], "hits": hits}


def counts(rows, proven):
    """Terms, questions and known answers of these programs together; those whose run said nothing are counted."""
    found = {k: sum(rows[p].get(k) or 0 for p in proven) for k in ("terms", "asked", "hits")}
    rate = round(found["hits"] / found["asked"], 4) if found["asked"] else None
    return {**found, "hit_rate": rate, "without_counts": sum(rows[p]["terms"] is None for p in proven)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--time", type=int, default=20, help="seconds for each pair")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()

    rows = {name: {} for name in ACCELERATIONS}
    with tempfile.TemporaryDirectory() as scratch:
        for name, path, *_ in k2.PROGRAMS:
            before = args.directory / f"{path}.insns"
            after = pathlib.Path(scratch, before.name)
            record.run(args.millstream, "opt", before, "-o", after, "--json")
            for without in ACCELERATIONS:
                rows[without][name] = prove(args, before, after, without)
    full = rows["none"]
    summary = {
        **record.head(f"bench/ablation.py DIRECTORY --time {args.time}"),
        "programs": len(full),
        "without": {},
        "each": {name: {w: rows[w][name] for w in rows} for name in full},
    }
    proven = [p for p in full if full[p]["verdict"] == "equivalent"]
    for name, what in ACCELERATIONS.items():
        times = [min(r["milliseconds"], args.time * 1e3) for r in rows[name].values()]
        slower = [rows[name][p]["milliseconds"] / max(full[p]["milliseconds"], 0.01) for p in full]
        summary["without"][name] = {
            "what": what,
            "proven": sum(r["verdict"] == "equivalent" for r in rows[name].values()),
            **counts(rows[name], proven),
            "milliseconds": {"sum": round(sum(times), 1), "median": round(statistics.median(times), 2), "worst": round(max(times), 1)},
            "slower_by": {"median": round(statistics.median(slower), 2), "worst": round(max(slower), 1)},
        }
    record.keep(summary, args.output)


if __name__ == "__main__":
    main()
