#!/usr/bin/env python3
"""Our data planes as native code in userspace beside the kernel's JIT: time of the program, on the same tables and packets.

    bench/native.py [--millstream PATH] [--rounds N] [--seconds S] [--tables EXAMPLE [--entries N] [--prefixes FILE.gz]]
                    [--peers EXAMPLE --peer COMPARISON=OBJECT[:PROGRAM] ...] [--output FILE]

The kernel's time is that of `millstream lab run`, on live frames with the harness deducted; ours that of whole batches in the
program, 10th percentile of windows. Both are taken in turn, and the ratio is the median over rounds. Needs root.

EXAMPLE is `cargo build --release -p millstream-native --example tables`: look-ups at random in tables of some hundred MiB and, with FILE
(prefixes, one a line), in a trie of its IPv6 prefixes, by the plain loop over a batch and by those that fetch ahead. `--plane none` leaves the data
planes out.

The EXAMPLE of --peers is `cargo build --release -p millstream-specialize --example peers`. It fills the maps of public programs, of which COMPARISON and
OBJECT are as bench/README.md says (`balancer=katran.o`): in the kernel, where it measures them on live frames, and in files, from which
`millstream native` has the same tables and the same frames in the same order.
"""

import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import record

PLANES = ["router", "switch", "firewall", "nat", "balancer"]


def document(*command):
    report, problem, _ = record.run(*command)
    if report is None:
        sys.exit(f"{' '.join(map(str, command))}: {problem}")
    return report


def measure(args, plane):
    rounds = []
    for _ in range(args.rounds):
        native = document(args.millstream, "native", f"builtin:{plane}", "--packets", args.packets, "--json")
        kernel = document(args.millstream, "lab", "run", f"builtin:{plane}", "--seconds", args.seconds, "--points", "0", "--json")
        rounds.append((native["ns_per_packet_p10"], kernel["throughput"]["sides"][0]["net_ns"], native, kernel["reliability_warnings"]))
    return row(plane, rounds[-1][2]["packets"], rounds)


def foreign(args, which):
    """A public program in userspace beside the kernel, as COMPARISON=OBJECT[:PROGRAM] says."""
    comparison, _, path = which.partition("=")
    path, _, program = path.partition(":")
    chosen = ["--prog", program] if program else []
    peers = [args.peers, comparison, path]
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        written = document(*peers, "--files", folder)
        words = [f"--map={name}={file}" for name, file in written["maps"].items()]
        words += [f"--max-entries={name}={count}" for name, count in written["max_entries"].items()]
        native_words = ["native", path, *chosen, *words, "--pcap", written["frames"], "--packets", args.packets, "--json"]
        for _ in range(args.rounds):
            native = document(args.millstream, *native_words)
            kernel = document(*peers, *chosen, "--seconds", args.seconds)
            theirs = kernel["report"]["sides"][0]["ns"] - kernel["report"]["empty_ns"]
            rounds.append((native["ns_per_packet_p10"], theirs, native, kernel["doubts"]))
    return row(written["peer"], written["workload"], rounds)


def row(name, packets, rounds):
    sent = rounds[-1][2]["sent"] / rounds[-1][2]["received"]
    return {
        "plane": name,
        "packets": packets,
        "native_ns": round(statistics.median(r[0] for r in rounds), 2),
        "kernel_ns": round(statistics.median(r[1] for r in rounds), 2),
        "ratio": round(statistics.median(r[0] / r[1] for r in rounds), 3),
        "ratios": [round(r[0] / r[1], 3) for r in rounds],
        "sent": round(sent, 4),
        "compile_ms": {k: round(v, 1) for k, v in rounds[-1][2]["compiled"].items() if k.endswith("_ms")},
        "doubts": sorted({d for r in rounds for d in r[3]}),
    }


def tables(args):
    """What the example finds, by table."""
    found = {}
    with tempfile.NamedTemporaryFile("w") as plain:
        few = [args.entries] if args.entries else []
        wanted = {"hash": ["hash", *few], "cuckoo": ["cuckoo", *few]}
        if args.prefixes:
            plain.write(gzip.decompress(args.prefixes.read_bytes()).decode())
            plain.flush()
            wanted["IPv6 prefixes"] = ["prefixes", plain.name]
        for name, words in wanted.items():
            done = subprocess.run(["taskset", "-c", "1", args.tables, *words], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            found[name] = json.loads(done.stdout)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--packets", type=int, default=5_000_000)
    parser.add_argument("--plane", action="append", choices=[*PLANES, "none"])
    parser.add_argument("--tables")
    parser.add_argument("--entries", help="of its hash tables; those of some hundred MiB without")
    parser.add_argument("--prefixes", type=pathlib.Path)
    parser.add_argument("--peers", help="the example that fills the maps of public programs")
    parser.add_argument("--peer", action="append", default=[], metavar="COMPARISON=OBJECT[:PROGRAM]", help="needs --peers")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    if args.peer and not args.peers:
        parser.error("--peer needs --peers")
    rows = [measure(args, plane) for plane in args.plane or PLANES if plane != "none"]
    rows += [foreign(args, which) for which in args.peer]
    found = {
        **record.head("bench/native.py"),
        "cpus": os.cpu_count(),
        "planes": rows,
    }
    if args.tables:
        found["tables"] = tables(args)
    record.keep(found, args.output)


if __name__ == "__main__":
    main()
