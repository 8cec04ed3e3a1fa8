#!/usr/bin/env python3
"""Filters of many rules by each template, beside the same rules as control flow: time of a packet, instructions, time to compile.

    bench/classifiers.py [--example PATH] [--instructions KIND:RULES:VARIANT ...] [--output FILE]

PATH is what `cargo build --release -p millstream-click-elements --example classifiers` makes. Variants of one filter run in turns. Instructions are counted by callgrind in the program's batches only.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import record

KINDS = ("access", "firewall", "exact")
RULES = (24, 450, 4500, 10000)
BATCHES, PACKETS = 20, 64


def times(example, kind, rules):
    """What the example says of all variants."""
    done = subprocess.run([example, kind, str(rules)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def instructions(example, kind, rules, variant):
    """Instructions of a packet."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]
    command += ["--toggle-collect=*Engine*::run_graph*", example, kind, rules, variant, str(BATCHES)]
    done = subprocess.run(command, capture_output=True, text=True)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not counted:
        sys.exit(done.stderr)
    return round(int(counted[1]) / (BATCHES * PACKETS), 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--example", default="target/release/examples/classifiers")
    parser.add_argument("--instructions", action="append", default=[], metavar="KIND:RULES:VARIANT")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    found = {
        **record.head("bench/classifiers.py"),
        "filters": {f"{kind} {rules}": times(args.example, kind, rules) for kind in KINDS for rules in RULES},
    }
    for wanted in args.instructions:
        kind, rules, variant = wanted.split(":")
        found["filters"][f"{kind} {rules}"][variant]["instructions"] = instructions(args.example, kind, rules, variant)
    record.keep(found, args.output)


if __name__ == "__main__":
    main()
