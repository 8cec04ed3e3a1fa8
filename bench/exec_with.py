#!/usr/bin/env python3
"""Runs loaders that know nothing of Millstream, alone and under `millstream exec-with`, and compares what they say.

    bench/exec_with.py DIRECTORY [--go-loader PATH] [--tools NAME,...] [--objects N] [--millstream PATH] [--output FILE]

The loaders are `bpftool prog loadall`, `xdp-loader load` (on a veth pair), the tools of bcc that are built on libbpf
(--tools: each runs for some seconds) and, if --go-loader names one, a program that loads the object that it is given by
cilium/ebpf. Each has the first N objects below DIRECTORY, in a fixed random order, that it loads alone. "same" counts
those with the same exit code, output and programs; "optimized" those of which at least one program was loaded in
another form. A tool that cannot attach on this kernel counts, too: its complaints have to be the same. Needs root. Each
attempt has a network namespace and a BPF file system of its own.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import record

ALONE = ["unshare", "--mount", "--net", "sh", "-c", 'mount -t bpf bpf /sys/fs/bpf && exec "$@"', "sh"]
VETH = "ip link add mlsa type veth peer name mlsb && ip link set mlsa up && ip link set mlsb up && "
TOOLS = "execsnoop,opensnoop,exitsnoop,tcpconnect,tcplife,tcpstates,runqlat,runqslower,biolatency,cpudist,softirqs,vfsstat"


def commands(loader, subject, under):
    """The command that loads, and says what it has loaded; `under` goes before the loader itself."""
    text = " ".join
    if loader == "bpftool":
        return ["sh", "-c", text([*under, "bpftool prog loadall", subject, "/sys/fs/bpf/all"]) + " && ls /sys/fs/bpf/all"]
    if loader == "xdp-loader":
        return ["sh", "-c", VETH + text([*under, "xdp-loader load -m skb mlsa", subject]) + " && bpftool -j net show dev mlsa"]
    if loader == "tools":
        return [*under, "timeout", "-s", "INT", "4", subject]
    return [*under, loader, subject]


def attempt(loader, subject, under=()):
    """Exit code and output, without what differs from run to run."""
    command = [*ALONE, *commands(loader, subject, under)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "timeout", ""
    said = re.sub(r"0x[0-9a-f]+|\d+", "N", done.stdout + done.stderr)
    # Tools print what happens on the machine meanwhile: their complaints count.
    return done.returncode, said if loader != "tools" else re.sub(r"0x[0-9a-f]+|\d+", "N", done.stderr)


def loads(loader, subject):
    code, said = attempt(loader, subject)
    return (code, said) if code == 0 or (loader == "tools" and code != "timeout") else None


def compare(loader, subject, before, millstream, folder):
    report = folder / "report"
    report.unlink(missing_ok=True)
    under = [millstream, "exec-with", f"--report={report}", "--json", "--"]
    after = attempt(loader, subject, under)
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    named = [line for line in lines if line["program"]]
    outcomes = {outcome: sum(line["outcome"] == outcome for line in named) for outcome in sorted({line["outcome"] for line in named})}
    return {"same": before == after, "exit_code": [before[0], after[0]], "programs": outcomes, "longest_ms": max((line["micros"] for line in named), default=0) / 1e3}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--go-loader", type=pathlib.Path)
    parser.add_argument("--tools", default=TOOLS)
    parser.add_argument("--objects", type=int, default=10)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    millstream = str(pathlib.Path(args.millstream).resolve())
    objects = [(name, str(path.resolve())) for name, path in record.objects(args.directory)]
    random.Random(1).shuffle(objects)
    tools = [(name, name) for name in args.tools.split(",")]
    loaders = {"bpftool": objects, "xdp-loader": objects, "tools": tools}
    if args.go_loader:
        loaders[str(args.go_loader.resolve())] = objects
    found = record.head("bench/exec_with.py DIRECTORY --go-loader PATH") | {"loaders": {}}
    with tempfile.TemporaryDirectory() as name:
        for loader, subjects in loaders.items():
            rows = {}
            for subject, path in subjects:
                if len(rows) == args.objects:
                    break
                before = loads(loader, path)
                if before is not None:
                    rows[subject] = compare(loader, path, before, millstream, pathlib.Path(name))
            found["loaders"][loader if "/" not in loader else "cilium/ebpf"] = {
                "subjects": len(rows),
                "same": sum(row["same"] for row in rows.values()),
                "optimized": sum("optimized" in row["programs"] for row in rows.values()),
                "each": rows,
            }
    text = json.dumps(found, indent=1) + "\n"
    if args.output:
        args.output.write_text(text)
    print(text, end="")
    sys.exit(any(loader["same"] < loader["subjects"] for loader in found["loaders"].values()))


if __name__ == "__main__":
    main()
