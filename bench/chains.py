#!/usr/bin/env python3
"""Measures chains of XDP programs behind libxdp's dispatcher beside the fused programs that `millstream fuse` makes.

    bench/chains.py DIRECTORY [--kernels 6.1,6.12,7.2] [--millstream PATH] [--repeat N] [--output FILE]

DIRECTORY has `xdp-dispatcher.o` and the filters of xdp-tools (`xdpfilt_alw_*.o`), as Debian's package xdp-tools installs them.
The kernels boot in virtual machines by scripts/vmrun, from MILLSTREAM_KERNELS, which `scripts/kernels --unpack` fills; xdp-loader
is taken from this machine. There it attaches the chain, and bpftool runs dispatcher and fused program on the same packets. The
machine's clock counts instructions, so that a run's duration is instructions; those of a program that only returns are taken off.
"""

import argparse
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import record
from corpus_kernels import commit, release

CHAINS = [("ip", "tcp"), ("eth", "ip", "tcp", "udp")]
RESULT = re.compile(r"Return value: (\d+), duration \(average\): (\d+)ns")

JOB = r"""
export LIBXDP_OBJECT_PATH=/ms
cd /ms
bpftool prog load empty.o /sys/fs/bpf/empty type xdp
while read -r fused components; do
    ip link add mc0 type veth peer name mc1
    xdp-loader load -m skb mc0 $components >&2
    id=$(bpftool prog show | sed -n 's/^\([0-9]*\): xdp  name xdp_dispatcher.*/\1/p' | tail -n 1)
    bpftool prog load "$fused" /sys/fs/bpf/fused type xdp
    for packet in packet-*; do
        for program in "id $id" "pinned /sys/fs/bpf/fused" "pinned /sys/fs/bpf/empty"; do
            echo "$fused $packet ${program%% *} $(bpftool prog run $program data_in "$packet" repeat "$REPEAT")"
        done
    done
    rm /sys/fs/bpf/fused
    xdp-loader unload mc0 --all >&2
    ip link del mc0
done <chains
"""


def packets():
    """Frames by name: TCP and UDP over IPv4, and two that no filter looks into."""

    def frame(ether_type, payload):
        return (bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]) + struct.pack("!H", ether_type) + payload).ljust(64, b"\0")

    def ipv4(protocol, payload):
        addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
        return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0) + addresses + payload

    return {
        "tcp": frame(0x800, ipv4(6, struct.pack("!HHIIBBHHH", 1000, 80, 1, 1, 0x50, 2, 100, 0, 0))),
        "udp": frame(0x800, ipv4(17, struct.pack("!HHHH", 1000, 53, 8, 0))),
        "arp": frame(0x806, b""),
        "other": frame(0x88CC, b""),
    }


def prepare(args, folder):
    """The folder of the machine: objects, fused objects, packets, the list of chains and the job."""
    shutil.copyfile(args.directory / "xdp-dispatcher.o", folder / "xdp-dispatcher.o")
    lines = []
    for chain in CHAINS:
        names = [f"xdpfilt_alw_{part}.o" for part in chain]
        for name in names:
            shutil.copyfile(args.directory / name, folder / name)
        fused = f"fused-{'-'.join(chain)}.o"
        words = [args.millstream, "fuse", "xdp-dispatcher.o", *names, "-o", fused]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        lines.append(f"{fused} {' '.join(names)}\n")
    empty = """__attribute__((section("xdp"))) int empty(void *c) { return 2; }
        char license[] __attribute__((section("license"))) = "GPL";"""
    words = ["clang-19", "-O2", "-g", "-target", "bpf", "-x", "c", "-c", "-", "-o", "empty.o"]
    subprocess.run(words, cwd=folder, input=empty, text=True, check=True)
    for name, data in packets().items():
        (folder / f"packet-{name}").write_bytes(data)
    (folder / "chains").write_text("".join(lines))
    (folder / "job").write_text(JOB)


def measure(args, kernel, folder):
    """Of each chain and packet: verdicts, and instructions of the chain and the fused program."""
    words = [args.vmrun, "-c", "1", "-m", "1024", "-i", f"{folder}:/ms"]
    words += [pathlib.Path(os.environ["MILLSTREAM_KERNELS"]) / kernel, f"export REPEAT={args.repeat}; . /ms/job"]
    settings = {"VMRUN_ICOUNT": "1", "VMRUN_TOOLS": "bash ip bpftool xdp-loader"}
    done = subprocess.run([str(w) for w in words], env=os.environ | settings, capture_output=True, text=True)
    found = {}
    for line in done.stdout.splitlines():
        match = RESULT.search(line)
        if match:
            fused, packet, program = line.split()[:3]
            key = "empty" if "/empty" in line else program
            found.setdefault((fused, packet), []).append((key, int(match[1]), int(match[2])))
    rows = []
    for (fused, packet), ((_, verdict, chain), (_, fused_verdict, one), (_, _, empty)) in found.items():
        rows.append({
            "chain": fused.removeprefix("fused-").removesuffix(".o").split("-"),
            "packet": packet.removeprefix("packet-"),
            "verdicts": [verdict, fused_verdict],
            "instructions": [chain - empty, one - empty],
        })
    if len(rows) != len(CHAINS) * len(packets()):
        sys.exit(f"{kernel}: {done.stderr.strip()}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--kernels", default="6.1,6.12,7.2")
    parser.add_argument("--millstream", default="target/debug/millstream")
    parser.add_argument("--repeat", type=int, default=2000)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    args.millstream = str(pathlib.Path(args.millstream).absolute())
    args.vmrun = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "vmrun"
    kernels = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(args, pathlib.Path(folder))
        for kernel in args.kernels.split(","):
            kernels[kernel] = rows = measure(args, kernel, folder)
            for row in rows:
                chain, one = row["instructions"]
                name = f"{kernel} {'+'.join(row['chain'])} {row['packet']}"
                print(f"{name}: {chain} > {one} ({one / chain:.2f}), verdicts {row['verdicts']}")
    report = {
        **record.head(f"bench/chains.py DIRECTORY --kernels {args.kernels} --repeat {args.repeat}"),
        "commit": commit(),
        "kernels": {name: {"release": release(name), "runs": rows} for name, rows in kernels.items()},
    }
    if args.output:
        record.write(args.output, report)
    sys.exit(0 if all(len(set(row["verdicts"])) == 1 for rows in kernels.values() for row in rows) else 1)


if __name__ == "__main__":
    main()
