#!/usr/bin/env python3
"""NFMorph's evaluation (HotNets'18): a router, a sketch and a check of TCP's checksum, tuned for two workloads.

    bench/tune.py --routes FILE [--millstream PATH] [--budget TIME] [--packets N] [--flows N] [--rounds N] [--seconds S]
                  [--output FILE]

FILE has routes, one a line that begins with a prefix (the paper: 1,614 of Stanford's). The workloads are those of section 2:
10 million flows of which packets are drawn with Zipf's exponent 0.5, and 100,000 flows of which 1 % have 99 % of the packets. The
pipeline is `RadixIPLookup`, `CountMinSketch` and `CheckTCPHeader`. Each workload gets a plan by `millstream tune`, and each plan is
measured on both, beside the default and beside the naive form (one packet at once, nothing prefetched), which is frozen here.
The steps of Figure 1 are measured one after the other. Points are taken in turns; figures are medians over rounds.

Run it alone: a plan that was found on a busy machine, or a figure that was taken there, says nothing.
"""

import argparse
import json
import pathlib
import random
import statistics
import struct
import sys
import tempfile

import record

# Figure 1, step by step, and what no step has: the schedule of every form.
STEPS = {
    "naive": "batch=1,pattern=packets,headers=0,fetch=nothing,trials=off",
    "batching": "batch=32,pattern=packets,headers=0,fetch=nothing,trials=off",
    "prefetching data": "batch=32,pattern=groups,sub-batch=all,headers=0,from=0,trials=off",
    "prefetching headers": "batch=32,pattern=groups,sub-batch=all,headers=1,from=0,trials=off",
    "loop pattern": "batch=32,pattern=pipelined-groups,sub-batch=4,unroll=4,headers=4,from=0,trials=off",
}
# What the paper has for them, in millions of packets per second.
PAPER = {"naive": 4.4, "batching": 6.2, "prefetching data": 8.2, "prefetching headers": 9.5, "loop pattern": 10.2, "tuned": 13.2}
SERVER, CLIENT = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def configuration(routes):
    """The pipeline: routes go to two outputs, which are one interface."""
    table = ",\n    ".join(f"{prefix} {at % 2}" for at, prefix in enumerate(routes))
    return f"""FromDevice(in) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
  -> rt :: RadixIPLookup(
    {table});
rt[0], rt[1] -> CountMinSketch(0.0001, 0.01) -> CheckTCPHeader -> Unstrip(14) -> ToDPDKDevice(out);
"""


def summed(data):
    """The Internet checksum."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(rng, targets):
    """A TCP packet of 64 bytes to an address with a route."""
    address, length = targets[rng.randrange(len(targets))]
    to = (address | rng.getrandbits(32 - length) if length < 32 else address).to_bytes(4, "big")
    source = rng.getrandbits(32).to_bytes(4, "big")
    ports = struct.pack("!HH", rng.randrange(1024, 65536), 443)
    tcp = ports + struct.pack("!IIBBHHH", rng.getrandbits(32), 0, 0x50, 0x10, 512, 0, 0) + bytes(6)
    pseudo = source + to + struct.pack("!BBH", 0, 6, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", summed(pseudo + tcp)) + tcp[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + to
    header = header[:10] + struct.pack("!H", summed(header)) + header[12:]
    return SERVER + CLIENT + b"\x08\x00" + header + tcp


def heavy_tailed(rng, flows, packets):
    """Numbers of flows by Zipf's rule with exponent 0.5: the inverse of its continuous distribution."""
    return [int(flows * rng.random() ** 2) for _ in range(packets)]


def skewed(rng, flows, packets):
    """Numbers of flows of which 1 % have 99 % of the packets."""
    few = max(flows // 100, 1)
    return [rng.randrange(few) if rng.random() < 0.99 else rng.randrange(few, flows) for _ in range(packets)]


def capture(path, order, targets):
    """A capture of these flows; a flow's packets are equal, and made from its number."""
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        made = {}
        for number in order:
            data = made.get(number)
            if data is None:
                data = made[number] = frame(random.Random(number), targets)
            out.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


def document(*command):
    report, problem, _ = record.run(*command)
    if report is None:
        sys.exit(f"{' '.join(map(str, command))}: {problem}")
    return report


def throughput(args, conf, traffic, form):
    """Millions of packets per second of processor time, of a form that is a schedule or a plan."""
    words = [args.millstream, "bench-user", conf, "--pcap", traffic, *form, "--parts", "workers", "--json"]
    report = document(*words, "--rounds", "1", "--seconds", args.seconds)
    return report["by_workers"][0]["mpps_per_cpu_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routes", type=pathlib.Path, required=True)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--flows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", default="1")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    routes = record.prefixes(args.routes)
    split = [(prefix.partition("/")[0], int(prefix.partition("/")[2])) for prefix in routes]
    targets = [(int.from_bytes(bytes(map(int, address.split("."))), "big"), length) for address, length in split]
    found = record.head("bench/tune.py --routes FILE") | {"routes": len(routes), "paper_mpps": PAPER, "workloads": {}}
    with tempfile.TemporaryDirectory() as name:
        folder, rng = pathlib.Path(name), random.Random(1)
        conf = folder / "pipeline.click"
        conf.write_text(configuration(routes))
        workloads = {"heavy-tailed": heavy_tailed(rng, args.flows, args.packets), "skewed": skewed(rng, 100_000, args.packets)}
        forms = {step: ("--schedule", schedule) for step, schedule in STEPS.items()}
        for workload, order in workloads.items():
            capture(folder / f"{workload}.pcap", order, targets)
            plan = folder / f"{workload}.plan"
            report = document(args.millstream, "tune", conf, "--traffic", folder / f"{workload}.pcap",
                              "--budget", args.budget, "-o", plan, "--json")
            found["workloads"][workload] = {"tuning": report | {"program": conf.name}, "mpps": {}}
            if plan.exists():
                forms[f"tuned for {workload}"] = ("--plan", plan)
        for workload in workloads:
            rounds = {form: [] for form in forms}
            for _ in range(args.rounds):
                for form in rng.sample(list(forms), len(forms)):
                    rounds[form].append(throughput(args, conf, folder / f"{workload}.pcap", forms[form]))
            medians = {form: statistics.median(values) for form, values in rounds.items()}
            found["workloads"][workload]["mpps"] = medians
            found["workloads"][workload]["rounds"] = rounds
    text = json.dumps(found, indent=1) + "\n"
    if args.output:
        args.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
