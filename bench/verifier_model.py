#!/usr/bin/env python3
"""The model of the verifier's walk beside the verifier of this kernel.

usage: bench/verifier_model.py EFFORT MILLSTREAM DIRECTORY... [--json FILE]

EFFORT is the example `verification_effort` of millstream-search (`cargo build --release -p millstream-search --example
verification_effort`), MILLSTREAM the command. Every object below the directories is verified by the kernel, and its programs are
predicted. Only programs that the kernel accepts count. Equal objects count once. The model is that of Linux 6.18.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys

import record

# Verified instructions from which on programs count, and factors within which a prediction is good.
CLASSES = (1_000, 10_000)
GENERATION = "6.18"  # of the model: programs that this kernel accepts are compared with it
FACTORS = (1.05, 1.3)


def compare(effort, millstream, path):
    """Verified and predicted instructions of each accepted program."""
    report, _, _ = record.run(millstream, "verify", path, "--json")
    programs = (report or {}).get("programs", [])
    accepted = [p for p in programs if p["verdict"] == "accepted" and (p.get("verified_insns") or 0) > CLASSES[0]]
    if not accepted:
        return []
    lines = subprocess.run([effort, GENERATION, str(path)], capture_output=True, text=True).stdout.splitlines()
    predicted = {(p["section"], p["name"]): p for p in map(json.loads, lines)}
    pairs = [(p, predicted.get((p["section"], p["name"]))) for p in accepted]
    return [(p["name"], p["verified_insns"], q["instructions"]) for p, q in pairs if q]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("effort")
    parser.add_argument("millstream")
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    rows, known = [], set()
    for directory in args.directories:
        for name, path in record.objects(directory):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest in known:
                continue
            known.add(digest)
            rows += [(name, *row) for row in compare(args.effort, args.millstream, path)]
    result = record.head("bench/verifier_model.py EFFORT MILLSTREAM DIRECTORY...")
    result["objects"] = len(known)
    result["classes"] = []
    for least in CLASSES:
        ratios = [predicted / verified for _, _, verified, predicted in rows if verified > least]
        within = {str(f): round(sum(1 / f <= r <= f for r in ratios) / max(1, len(ratios)), 3) for f in FACTORS}
        result["classes"].append({"above": least, "programs": len(ratios), "within": within})
    far = [row for row in rows if not 1 / FACTORS[-1] <= row[3] / row[2] <= FACTORS[-1]]
    far.sort(key=lambda row: -row[2])
    result["farthest"] = [dict(zip(("object", "program", "verified", "predicted"), row)) for row in far[:20]]
    record.keep(result, args.json)
    return 0 if rows else 3


sys.exit(main())
