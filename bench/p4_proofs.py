#!/usr/bin/env python3
"""Proves kernel objects of P4 programs equivalent to their lowering without passes.

    bench/p4_proofs.py --millstream target/release/millstream --suite DIR -o bench/results/p4-proofs.json

DIR has STF files beside their programs, such as `testdata/p4_16_samples` of p4c, which is not part of this
repository. For each program of a model that `p4 build` takes, the object is made twice, with and without passes, and
`prove` compares the two. The memory of a packet, map `p4_packet`, is left out of the comparison where its contents
differ after a run: nothing reads what a run leaves there, since each run clears or writes what it reads.

The results depend on the time for a proof, and so on a machine that is not too busy.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

import record


def run(command, limit):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None


def examine(args, program, folder):
    """The result for one program, as a dictionary."""
    row = {"program": program.stem}
    objects = []
    for name, flags in (("with", []), ("without", ["--without", "passes"])):
        path = folder / f"{program.stem}.{name}.o"
        include = [f"-I{path}" for path in args.include]
        made = run([args.millstream, "p4", "build", str(program), "-o", str(path), *include, *flags], 120)
        if made is None or made.returncode != 0:
            lines = (made.stderr if made else "out of time").strip().splitlines()
            row["verdict"] = "not built" if name == "with" else "not built without passes"
            reason = next((line.strip(" ×") for line in lines if line.strip()), "")
            row["reason"] = reason.replace(f"{program.parent}/", "")[:200]
            return row
        objects.append(str(path))
    objects.reverse()
    for flags in ([], ["--scratch", "p4_packet"]):
        command = [args.millstream, "prove", "--json", "--cache", "off", "--proof-time", str(args.proof_time), *flags]
        proof = run([*command, *objects], 10 * args.proof_time)
        try:
            found = json.loads(proof.stdout)["programs"][0]
        except (AttributeError, IndexError, KeyError, ValueError):
            row["verdict"], row["reason"] = "no answer", (proof.stderr[:200] if proof else "out of time")
            continue
        row["verdict"], row["slots"] = found["verdict"], found["slots"]
        row["seconds"] = round(found["milliseconds"] / 1000, 2)
        row["scratch"] = bool(flags)
        row.pop("reason", None)
        if found["verdict"] != "equivalent":
            row["reason"] = (found.get("reason") or "")[:200]
        if found["verdict"] != "differs":
            return row
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millstream", required=True, help="the binary")
    parser.add_argument("--suite", required=True, type=pathlib.Path, help="folder of STF files and programs")
    parser.add_argument("--include", action="append", default=[], help="folder of included files")
    parser.add_argument("--proof-time", type=int, default=60, help="seconds for a proof")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--filter", default="v1model", help="text that a program holds")
    parser.add_argument("-o", "--output", required=True, type=pathlib.Path)
    args = parser.parse_args()
    programs = [stf.with_suffix(".p4") for stf in sorted(args.suite.glob("*.stf"))]
    programs = [p for p in programs if p.exists() and args.filter in p.read_text(errors="replace")]
    rows = []
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda program: examine(args, program, pathlib.Path(name)), programs):
            rows.append(row)
            print(f"{len(rows)}/{len(programs)} {row['program']}: {row['verdict']}", file=sys.stderr)
    verdicts = {}
    for row in rows:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    built = sum(n for verdict, n in verdicts.items() if verdict != "not built")
    command = f"bench/p4_proofs.py --suite testdata/p4_16_samples --filter {args.filter} --proof-time {args.proof_time}"
    report = {
        **record.head(command),
        "programs": len(rows),
        "verdicts": verdicts,
        "equivalent_of_built": round(verdicts.get("equivalent", 0) / max(built, 1), 4),
        "needed_scratch": sum(row["verdict"] == "equivalent" and row["scratch"] for row in rows),
        "rows": rows,
    }
    args.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in ("programs", "verdicts", "equivalent_of_built", "needed_scratch")}))


if __name__ == "__main__":
    main()
