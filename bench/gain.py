#!/usr/bin/env python3
"""What `opt -O super` gains at run time: our data planes, and Katran, beside their originals on live frames.

    bench/gain.py [--goal GOAL] [--budget TIME] [--seconds N] [--millstream PATH] [--output FILE] [--peers PEERS --katran FILE]

Each plane and what `-O super` makes of it run on the same live frames in turn, 10,000 flows of high locality, by `millstream
lab compare --live`; figures are ratios of the time in the program. PEERS is the example `peers` of `millstream-specialize`, FILE Katran's object (bench/README.md):
original and result are each measured beside our balancer, which knows how to fill Katran's maps, and their ratio is that of the two ratios.
The figures, as JSON, go to standard output and to --output. Needs root; measure alone.
"""

import argparse
import pathlib
import tempfile

import record

PLANES = ["router", "switch", "firewall", "nat", "balancer"]


def superoptimized(args, source, result):
    """What `-O super` makes of a program, and what it says of it."""
    flags = ["--goal", args.goal, *(["--budget", args.budget] if args.budget else [])]
    report, problem, seconds = record.run(args.millstream, "opt", source, "-o", result, "-O", "super", *flags, "--json")
    if report is None:
        return {"failed": problem}
    said = report["programs"][0]
    return {
        "seconds": round(seconds, 1),
        "proof": said["proof"],
        **{key: [said[when][key] for when in ("before", "after")] for key in ("slots", "jited", "cycles")},
    }


def plane(args, scratch, name):
    result = scratch / f"{name}.o"
    row = superoptimized(args, f"builtin:{name}", result)
    if "failed" in row:
        return row
    command = [args.millstream, "lab", "compare", f"builtin:{name}", result, "--tables", f"builtin:{name}", "--live"]
    report, problem, _ = record.run(*command, "--seconds", args.seconds, "--json")
    if report is None:
        return row | {"failed": problem}
    first, second = report["report"]["sides"]
    return row | {
        "net_ns": [round(side["net_ns"], 2) for side in (first, second)],
        "net_ratio": round(second["net_ns"] / first["net_ns"], 4),
        # With the harness in it.
        "ratio": second["against_first"]["ratio"],
        "interval": second["against_first"]["interval"],
        "verdict": second["against_first"]["verdict"],
        "answers_differ": second.get("answers_differ"),
        "doubts": report["reliability_warnings"],
    }


def katran(args, scratch):
    result = scratch / "katran.o"
    row = superoptimized(args, args.katran, result)
    if "failed" in row:
        return row
    ours = []
    for path in (args.katran, result):
        report, problem, _ = record.run(args.peers, "balancer", path, "--seconds", args.seconds)
        if report is None:
            return row | {"failed": problem}
        ours.append(report)
    # Our balancer's time by Katran's, original and result.
    before, after = (report["net_ratio"] for report in ours)
    return row | {
        "our_balancer_by_it": [before, after],
        "our_balancer_by_it_intervals": [report["net_interval"] for report in ours],
        "net_ratio": round(before / after, 4),
        "doubts": [doubt for report in ours for doubt in report["doubts"]],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--goal", default="latency")
    parser.add_argument("--budget", help="of -O super, for each program")
    parser.add_argument("--seconds", default="20")
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--katran", type=pathlib.Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        rows = {name: plane(args, scratch, name) for name in PLANES}
        if args.peers and args.katran:
            rows["katran"] = katran(args, scratch)
    words = f"--goal {args.goal} --seconds {args.seconds}" + (f" --budget {args.budget}" if args.budget else "")
    record.keep({**record.head(f"bench/gain.py {words}"), "planes": rows}, args.output)


if __name__ == "__main__":
    main()
