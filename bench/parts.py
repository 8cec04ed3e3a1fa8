#!/usr/bin/env python3
"""What each part of the superoptimizer is worth: slots of K2's programs with one part left out at a time, and K2's Table 10.

    bench/parts.py DIRECTORY [--budget TIME] [--rounds N] [--millstream PATH] [--output FILE]

DIRECTORY is that of bench/k2.py; the balancer is left out, as in K2's Table 10. First each part by itself is left out. Then all but the
chains are, static forms too, so that Metropolis-Hastings begins with the original, under K2's six combinations of proposal rules:
exchange of memory operands of type 1 or 2, replacement of two instructions in a row, or none of these; K2's own
slots, after hours, stand beside. With --rounds and time enough the figures do not depend on how fast or busy the machine is. Every result is proven. The figures, as JSON, go to standard output and to --output. Needs root.
"""

import argparse
import pathlib
import tempfile

import k2
import record

PARTS = ["static", "rules", "store", "neighbourhood", "enumeration", "cegis", "chains"]
COUNTS = ("candidates", "passed", "by_form", "asked", "lookups", "hits")
MEM_1, MEM_2, TWO = "exchange-memory-1", "exchange-memory-2", "replace-two"
# What of the three is left out, by the heads of K2's Table 10, and its slots for the first 18 programs.
RULES = {
    "mem 1 and contiguous": ([MEM_2], [16, 16, 29, 18, 21, 21, 27, 30, 99, 35, 56, 71, 128, 19, 65, 26, 30, 81]),
    "mem 2 and contiguous": ([MEM_1], [16, 16, 30, 18, 21, 20, 27, 30, 99, 35, 56, 71, 130, 19, 66, 26, 29, 81]),
    "mem 1 only": ([MEM_2, TWO], [16, 16, 30, 19, 22, 21, 27, 30, 99, 35, 57, 71, 128, 20, 65, 26, 30, 84]),
    "mem 2 only": ([MEM_1, TWO], [16, 16, 30, 21, 22, 21, 27, 30, 99, 35, 57, 71, 130, 20, 67, 26, 30, 85]),
    "contiguous only": ([MEM_1, MEM_2], [16, 16, 30, 19, 22, 21, 27, 30, 105, 39, 57, 75, 144, 20, 66, 26, 30, 85]),
    "none": ([MEM_1, MEM_2, TWO], [16, 16, 30, 19, 22, 21, 27, 30, 106, 39, 57, 75, 145, 20, 66, 26, 30, 87]),
}


def effort(args):
    """How long is searched, as flags of `millstream opt`."""
    return ["--budget", args.budget] + (["--rounds", args.rounds] if args.rounds else [])


def search(args, scratch, without):
    """The row of each program, searched without some parts."""
    rows = {}
    for name, path, clang, _ in k2.PROGRAMS[:18]:
        source = args.directory / f"{path}.insns"
        result = scratch / source.name
        flags = [word for part in without for word in ("--leave-out", part)]
        command = [args.millstream, "opt", source, "-o", result, "-O", "super", "--goal", "size", *effort(args), *flags, "--json"]
        report, problem, seconds = record.run(*command)
        if report is None:
            rows[name] = {"slots": clang, "failed": problem}
            continue
        (said,) = report["programs"]
        tally = said["search"]
        rows[name] = {
            "slots": k2.slots(result),
            "proof": said["proof"] if isinstance(said["proof"], str) else next(iter(said["proof"])),
            "seconds": round(seconds, 2),
            **{key: tally[key] for key in COUNTS},
        }
    return rows


def summary(rows):
    total = {key: sum(r.get(key, 0) for r in rows.values()) for key in ("slots", *COUNTS)}
    # K2's Table 6 counts what need not be put to the solver: here, windows that the store knew, and candidates that came out as the same terms.
    spared = 1 - total["asked"] / total["passed"] if total["passed"] else None
    return {
        **total,
        "store_hit_rate": round(total["hits"] / total["lookups"], 4) if total["lookups"] else None,
        "proofs_without_solver": round(spared, 4) if spared is not None else None,
        "failed": [name for name, r in rows.items() if "failed" in r],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--budget", default="4s", help="of -O super, for each program")
    parser.add_argument("--rounds", help="of -O super, at most; as many as there is time for unless said")
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        parts = {"none": search(args, scratch, [])}
        parts |= {part: search(args, scratch, [part]) for part in PARTS}
        alone = [part for part in PARTS if part != "chains"]
        rules = {head: search(args, scratch, alone + left_out) for head, (left_out, _) in RULES.items()}
    found = {
        **record.head(f"bench/parts.py DIRECTORY {' '.join(effort(args))}"),
        "goal": "size",
        "clang": sum(clang for *_, clang, _ in k2.PROGRAMS[:18]),
        "k2": sum(slots for *_, slots in k2.PROGRAMS[:18]),
        "without": {part: summary(rows) for part, rows in parts.items()},
        "chains_alone": {head: {**summary(rows), "k2_slots": sum(RULES[head][1])} for head, rows in rules.items()},
        "each": {
            "without": parts,
            "chains_alone": {
                head: {name: {**row, "k2_slots": slots} for (name, row), slots in zip(rows.items(), RULES[head][1])}
                for head, rows in rules.items()
            },
        },
    }
    record.keep(found, args.output)


if __name__ == "__main__":
    main()
