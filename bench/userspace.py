#!/usr/bin/env python3
"""Click configurations as native code beside FastClick, from memory: time a packet, both in turns.

    bench/userspace.py [--peer PATH] [--millstream PATH] [--routes FILE.gz] [--case NAME ...] [--rounds N] [--output FILE]

Both read the same frames into memory once and send them through the graph over and over: the peer by ReplayUnqueue, whose clones are
copied where an element first writes, Millstream by copying each frame into a buffer. Theirs is the processor time
of a whole run less that of a short one, a packet; ours the time from the first to the last packet, since code is made before. `io` is that of a
graph which only writes one byte of each packet, `net` what is left without it, `program` ours without copying. Ratios are the peer's time over ours;
that of `net` is the one to look at, since the peer's way to packets in memory is the more expensive one. Medians over rounds. Without
--peer ours are measured alone. Without --routes the case of the whole table of the Internet (prefixes, one a line) is left out. The last case is the NAT on one and on two
cores (PacketMill, Figure 10): there all times are of the clock, the frames have no bytes in front, ours are spread by flow, the peer's two threads
have half of the flows each.
"""
import argparse, gzip, ipaddress, json, pathlib, random, resource, statistics, struct, subprocess, sys, tempfile, time

import record

HEAD = """
c :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
{source} -> c;
c[0] -> ARPResponder(10.0.0.1 1:1:1:1:1:1) -> Discard;
c[1] -> Discard;
c[3] -> Discard;
rt :: {table};
c[2] -> Paint(1) -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> {check};
sink :: {sink};
"""
# What is behind an output of the table.
PORT = """
rt[{at}] -> o{at} :: IPOutputCombo({color}, 10.{at}.0.1, 1500);
o{at}[0] -> EtherEncap(0x0800, 1:1:1:1:1:{at}, 2:2:2:2:2:{at}) -> {tag} sink;
o{at}[1] -> ICMPError(10.{at}.0.1, redirect, host) -> Discard;
o{at}[2] -> ICMPError(10.{at}.0.1, parameterproblem) -> Discard;
o{at}[3] -> ICMPError(10.{at}.0.1, timeexceeded) -> Discard;
o{at}[4] -> ICMPError(10.{at}.0.1, unreachable, needfrag) -> Discard;
"""
IDS = """
kinds[0] -> CheckTCPHeader(CHECKSUM false) -> rt;
kinds[1] -> CheckUDPHeader(CHECKSUM false) -> rt;
kinds[2] -> CheckICMPHeader -> rt;
"""
NAT = """
{source} -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> kinds :: IPClassifier(tcp or udp, -);
rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0, MAPPING_CAPACITY 65536);
kinds[0] -> rw -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> {sink};
kinds[1] -> Discard;
"""
IO = "{source} -> StoreData(0, \\<02>) -> {sink};"


def router(table, ports, check="rt", tag="", more=""):
    """A router's graph, but for source and sink."""
    parts = [HEAD.replace("{table}", table).replace("{check}", check)]
    parts += [PORT.format(at=at, color=at + 2, tag=tag) for at in range(ports)]
    return "".join(parts) + more


def frames(count, address, size=64, seed=1):
    """UDP packets of so many bytes with their frame check sequence, which is not there; one flow each. In front
    of each are 16 bytes that are stripped, so that the peer has room for headers."""
    payload = size - 46
    rng = random.Random(seed)
    for at in range(count):
        source, destination = 0x0A000000 | rng.randrange(1 << 22), address(rng)
        ip = struct.pack(">BBHHHBBHII", 0x45, 0, 28 + payload, at & 0xFFFF, 0, 64, 17, 0, source, destination)
        total = sum(struct.unpack(">10H", ip))
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        ip = ip[:10] + struct.pack(">H", total ^ 0xFFFF) + ip[12:]
        udp = struct.pack(">HHHH", 1024 + at % 60000, 53, 8 + payload, 0)
        yield bytes(16) + bytes.fromhex("0200000000010200000000020800") + ip + udp + bytes(payload)


def capture(path, packets):
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for data in packets:
            out.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


def made_up(count):
    """Routes of mixed lengths, with a default."""
    rng = random.Random(7)
    routes = {(0, 0)}
    while len(routes) < count:
        bits = rng.choices([12, 16, 20, 22, 24], [1, 4, 6, 8, 20])[0]
        routes.add((rng.randrange(0x01000000, 0xDF000000) >> (32 - bits) << (32 - bits), bits))
    return sorted(routes)


def listed(path):
    text = gzip.decompress(path.read_bytes()).decode().split()
    nets = (ipaddress.ip_network(p) for p in text if ":" not in p)
    return [(int(net.network_address), net.prefixlen) for net in nets] + [(0, 0)]


def table(routes):
    lines = (f"{ipaddress.ip_address(a)}/{bits} 10.0.0.{a // 256 % 16 + 1} {a // 256 % 2}" for a, bits in routes)
    return "DirectIPLookup(" + ", ".join(lines) + ")"


def anywhere(routes):
    """An address in one of the routes, all alike."""
    def address(rng):
        base, bits = rng.choice(routes)
        return base | rng.randrange(1 << (32 - bits)) if bits else rng.randrange(0x01000000, 0xDF000000)
    return address


def uniform(rng):
    return rng.randrange(0x01000000, 0xDF000000)


# Megabytes, reads and random numbers of `WorkPackage`: figure 7 by reads and numbers, figure 9 by megabytes with one read and four numbers.
WORK = [(memory, reads, numbers) for reads in (1, 5) for memory in (1, 16) for numbers in (0, 20)]
WORK += [(memory, 1, 4) for memory in (1, 2, 4, 8, 12, 16, 20)]


def cases(args):
    """Name, graph, how many frames, where they go, bytes of each unless 64."""
    one, many = "RadixIPLookup(0.0.0.0/0 10.0.0.2 0)", made_up(500)
    yield "mirror", "{source} -> EtherMirror -> {sink};", 1024, uniform
    yield "router, one route", router(one, 1), 1024, uniform
    yield "router, 500 routes", router(table(many), 2), 1024, anywhere(many)
    yield "IDS and router", router(one, 1, "kinds :: IPClassifier(tcp, udp, icmp)", "VLANEncap(VLAN_ID 7) ->", IDS), 1024, uniform
    yield "NAT", NAT, 1024, uniform
    # PacketMill's figures 6, 7 and 9: by size of packets, by size of memory and number of reads, by random numbers.
    for size in (256, 1024, 1472):
        yield f"router, {size:,} bytes", router(one, 1), 1024, uniform, size
    for memory, reads, numbers in WORK:
        work = f"WorkPackage(S {memory}, N {reads}, W {numbers})"
        yield f"work, S {memory} N {reads} W {numbers}", f"{{source}} -> {work} -> EtherMirror -> {{sink}};", 1024, uniform
    if args.routes:
        routes = listed(args.routes)
        yield f"router, {len(routes) - 1:,} routes", router(table(routes), 2), args.spread, anywhere(routes)


def spent(command, cpus="1", clock=False):
    """Processor seconds of a command, or those of the clock, and what it says."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(["taskset", "-c", cpus, *map(str, command)], capture_output=True, text=True)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return end - start if clock else used, done.stdout


def filled(graph, source, sink):
    return graph.replace("{source}", source).replace("{sink}", sink)


class Side:
    """A configuration as one of the two runs it."""

    def __init__(self, args, folder, name, graph, trace, count):
        self.args, self.trace, self.count, self.reported = args, trace, count, {}
        self.conf = folder / f"{name}.click"
        self.write(graph)

    def rounds(self, packets):
        return max(1, packets // self.count)


class Ours(Side):
    def write(self, graph):
        self.conf.write_text(filled(graph, "FromDevice(in) -> Strip(16)", "ToDPDKDevice(out)"))

    def run(self, packets):
        """Nanoseconds a packet, as it says itself."""
        packets = self.rounds(packets) * self.count
        command = [self.args.millstream, "click", self.conf, "--io", f"in=pcap:{self.trace}", "--packets", packets, "--json"]
        self.reported = json.loads(spent(command + self.args.flag)[1])
        return 1e3 / self.reported["mpps"]


class Peer(Side):
    def write(self, graph):
        source = f"FromDump({self.trace}, STOP false) -> ReplayUnqueue(STOP $ROUNDS, QUICK_CLONE false, VERBOSE false) -> Strip(16)"
        self.conf.write_text(filled(graph, source, "Discard"))

    def run(self, packets):
        """Nanoseconds a packet: of a long run less a short one."""
        rounds = self.rounds(packets)
        few = self.rounds(packets // 10)
        (short, _), (long, _) = (spent([self.args.peer, self.conf, f"ROUNDS={n}"]) for n in (few, rounds))
        return 1e9 * (long - short) / max(1, (rounds - few) * self.count)


def measure(args, folder, name, graph, count, address, size=64):
    trace = folder / f"{count}.{name.replace(' ', '_').replace(',', '')}.pcap"
    capture(trace, frames(count, address, size))
    sides = [Ours, Peer] if args.peer else [Ours]
    made = {side.__name__.lower(): side(args, folder, side.__name__, graph, trace, count) for side in sides}
    bare = {side.__name__.lower(): side(args, folder, side.__name__ + "IO", IO, trace, count) for side in sides}
    times = {key: [] for name in made for key in (name, f"{name}_io")} | {"program": []}
    for _ in range(args.rounds):
        for key, side in random.sample(list(made.items()), len(made)):
            times[key].append(side.run(args.packets))
            times[f"{key}_io"].append(bare[key].run(args.packets))
        times["program"].append(made["ours"].reported["ns_per_packet"])
    median = {key: statistics.median(values) for key, values in times.items()}
    net = {key: median[key] - median[f"{key}_io"] for key in made}
    ratios = sorted(round(p / o, 2) for p, o in zip(times.get("peer", []), times["ours"]))
    report = made["ours"].reported
    return {
        "case": name,
        "ns": {key: round(value, 2) for key, value in median.items()},
        "net_ns": {key: round(value, 2) for key, value in net.items()},
        "ratio": round(statistics.median(ratios), 2) if ratios else None,
        # A mirror does no more than what is deducted.
        "ratio_net": round(net["peer"] / net["ours"], 2) if ratios and min(net.values()) > 1 else None,
        "ratios": ratios,
        "sent": round(report["sent"] / report["received"], 4),
        "frames": count,
        "compile_ms": {key: round(value, 1) for key, value in report["compiled"].items() if key.endswith("_ms")},
    }


CPUS = {1: "1", 2: "0,1"}


class OurWorkers(Ours):
    """Ours by several workers."""

    def __init__(self, args, folder, workers, graph, trace, count):
        self.workers = workers
        super().__init__(args, folder, f"OurWorkers{workers}", graph, trace, count)

    def write(self, graph):
        self.conf.write_text(filled(graph, "FromDevice(in)", "ToDPDKDevice(out)"))

    def run(self, packets):
        packets = self.rounds(packets) * self.count
        command = [self.args.millstream, "click", self.conf, "--io", f"in=pcap:{self.trace}", "--packets", packets, "--json"]
        self.reported = json.loads(spent([*command, "--workers", self.workers, *self.args.flag], CPUS[self.workers])[1])
        return 1e3 / self.reported["mpps"]


class PeerThreads(Peer):
    """The peer on several threads, each with packets of its own (of traces[at])."""

    def __init__(self, args, folder, workers, graph, traces, count):
        self.workers = workers
        super().__init__(args, folder, f"PeerThreads{workers}", graph, traces, count)

    def write(self, graph):
        source = "".join(
            f"FromDump({trace}, STOP false) -> replay{at} :: ReplayUnqueue(STOP $ROUNDS, QUICK_CLONE false, VERBOSE false) -> all;\n"
            for at, trace in enumerate(self.trace)
        )
        threads = ", ".join(f"replay{at} {at}" for at in range(self.workers))
        self.conf.write_text(f"all :: Null;\n{source}StaticThreadSched({threads});\n" + filled(graph, "all", "Discard"))

    def run(self, packets):
        rounds, few = self.rounds(packets), self.rounds(packets // 10)
        command = [self.args.peer, "-j", self.workers, self.conf]
        times = [spent([*command, f"ROUNDS={n}"], CPUS[self.workers], clock=True)[0] for n in (few, rounds)]
        return 1e9 * (times[1] - times[0]) / max(1, (rounds - few) * self.count)


def scaling(args, folder):
    """The NAT on one core and on two: nanoseconds of the clock a packet."""
    count = 1024
    packets = [frame[16:] for frame in frames(count, uniform)]
    trace = folder / "nat.pcap"
    capture(trace, packets)
    sides = {}
    for workers in CPUS:
        parts = [folder / f"nat.{at}.of.{workers}.pcap" for at in range(workers)]
        for at, part in enumerate(parts):
            capture(part, packets[at::workers])
        sides["ours", workers] = OurWorkers(args, folder, workers, NAT, trace, count)
        if args.peer:
            sides["peer", workers] = PeerThreads(args, folder, workers, NAT, parts, count)
    times = {key: [] for key in sides}
    for _ in range(args.rounds):
        for key, side in random.sample(list(sides.items()), len(sides)):
            times[key].append(side.run(args.packets))
    median = {key: statistics.median(values) for key, values in times.items()}
    gain = {side: statistics.median(a / b for a, b in zip(times[side, 1], times[side, 2])) for side in {side for side, _ in sides}}
    reports = {workers: sides["ours", workers].reported for workers in CPUS}
    return {
        "case": "NAT on 1 and 2 cores",
        "ns": {f"{side}, {workers}": round(value, 2) for (side, workers), value in median.items()},
        "gain_of_the_second": {side: round(value, 2) for side, value in gain.items()},
        "ratios": {workers: round(statistics.median(p / o for p, o in zip(times["peer", workers], times["ours", workers])), 2) for workers in CPUS if args.peer},
        "sent": {workers: round(report["sent"] / report["received"], 4) for workers, report in reports.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--peer")
    parser.add_argument("--routes", type=pathlib.Path)
    parser.add_argument("--spread", type=int, default=1 << 19, help="frames of the case with the whole table")
    parser.add_argument("--case", action="append", help="cases whose names begin so; all without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packets", type=int, default=3_000_000)
    parser.add_argument("--flag", action="append", default=[], help="a further argument of millstream click")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(args):
            if not args.case or any(case[0].startswith(name) for name in args.case):
                rows.append(measure(args, pathlib.Path(folder), *case))
                print(json.dumps(rows[-1]), file=sys.stderr)
        if not args.case or any("NAT on 1 and 2 cores".startswith(name) for name in args.case):
            rows.append(scaling(args, pathlib.Path(folder)))
            print(json.dumps(rows[-1]), file=sys.stderr)
    found = {**record.head("bench/userspace.py"), "rounds": args.rounds, "packets": args.packets, "cases": rows}
    if args.output and args.output.exists() and args.case:
        kept = [row for row in json.loads(args.output.read_text())["cases"] if row["case"] not in {r["case"] for r in rows}]
        found["cases"] = kept + rows
    record.keep(found, args.output)


if __name__ == "__main__":
    main()
