#!/usr/bin/env python3
"""Click configurations on DPDK's virtual devices beside DPDK's own programs: millions of packets per second of the worker's processor time.

    bench/dpdk.py [--millstream PATH] [--case NAME ...] [--rounds N] [--seconds S] [--output FILE]

Needs a millstream with feature `dpdk`. Peers that are missing are left out, with a word: `dpdk-testpmd`; DPDK's examples l2fwd and l3fwd, named by L2FWD and L3FWD in the
environment (l3fwd as published, but that it asks ports for no checksums, which these have none of); FastClick with DPDK, named by FASTCLICK_DPDK. FASTCLICK_EMBEDDED names a
folder with FastClick after PacketMill's source passes, one program for each case, CASE and CASE.config, as these passes make them of the configurations that `--write FOLDER` writes. Frames of 64 bytes come from `net_pcap` with `infinite_rx`, 1,024 flows, and
go to `net_null`; worker and device are on one processor, without hugepages. Every side is a process that is looked at while it runs: packets are those that DPDK's
telemetry counts at the port by which they leave, time is the processor time of the busiest thread, both between the same two moments. Sides run in turns, in
random order. Ratios are ours over theirs, of medians, with a 99 % bootstrap interval over rounds. `copy` is ours with `--metadata copy`.
"""
import argparse, glob, json, os, pathlib, random, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

import record
import userspace

FRAMES, ROUTES = 1024, 500
# Seconds: from the start until packets flow, at most; from then on until they are counted.
PATIENCE, WARM = 30, 0.3
RESAMPLES = 4000
RUNTIME = "/var/run/dpdk"
EAL = "--no-huge -m 512 --no-shconf --iova-mode=va --log-level=warning --file-prefix={prefix}"
MIRROR = "{source} -> EtherMirror -> {sink};"
OURS = "FromDevice(in)", "ToDPDKDevice(out)"
# What FastClick has beside IPRewriter.
FLOW_NAT = """
{source} -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> kinds :: IPClassifier(tcp or udp, -);
kinds[0] -> FlowIPManagerIMP(CAPACITY 65536) -> FlowIPNAT(SIP 192.0.2.1) -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> {sink};
kinds[1] -> Discard;
"""
FASTCLICK = "FromDPDKDevice(0, BURST {burst})", "ToDPDKDevice(1, BURST {burst})"


class Silent(Exception):
    """A side forwards nothing."""


class Side:
    """A process that forwards from port 0 to port 1. In its command {prefix} is the name of its telemetry, {cpu} its processor."""

    def __init__(self, args, folder, name, command):
        self.args, self.name, self.command = args, name, [str(word) for word in command]
        self.said = folder / f"{name}.txt"

    def run(self, prefix):
        """Millions of packets per second of the processor, and what part of them leaves."""
        words = [word.replace("{prefix}", prefix).replace("{cpu}", str(self.args.cpu)) for word in self.command]
        with self.said.open("wb") as said:
            process = subprocess.Popen(["taskset", "-c", str(self.args.cpu), *words], stdin=subprocess.PIPE, stdout=said, stderr=said)
            try:
                return self.watch(process, f"{RUNTIME}/{prefix}")
            finally:
                process.send_signal(signal.SIGINT)
                process.stdin.close()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                shutil.rmtree(f"{RUNTIME}/{prefix}", ignore_errors=True)

    def watch(self, process, folder):
        end = time.monotonic() + PATIENCE
        while not (now := look(process, folder)) or now[1] == 0:
            if time.monotonic() > end or process.poll() is not None:
                raise Silent(f"{self.name} forwards nothing:\n{self.said.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        time.sleep(WARM)
        before = look(process, folder)
        time.sleep(self.args.seconds)
        after = look(process, folder)
        received, sent = after[0] - before[0], after[1] - before[1]
        spent = max(ns - before[2].get(thread, 0) for thread, ns in after[2].items())
        return 1e3 * sent / spent, sent / received


def look(process, folder):
    """Packets received by port 0 and sent by port 1, and nanoseconds that each thread has run; nothing before telemetry answers."""
    for path in glob.glob(f"{folder}/dpdk_telemetry.v2*"):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as telemetry:
                telemetry.settimeout(PATIENCE)
                telemetry.connect(path)
                most = json.loads(telemetry.recv(1024))["max_output_len"]
                counts = []
                for port, count in ((0, "ipackets"), (1, "opackets")):
                    telemetry.send(f"/ethdev/stats,{port}".encode())
                    counts.append((json.loads(telemetry.recv(most))["/ethdev/stats"] or {}).get(count, 0))
                threads = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
                return *counts, {thread.name: int((thread / "schedstat").read_text().split()[0]) for thread in threads}
        except OSError:
            pass
    return None


def devices(trace):
    return [f"net_pcap0,rx_pcap={trace},infinite_rx=1", "net_null0,no-rx=1"]


def vdevs(trace):
    return ["--no-pci", *(f"--vdev={device}" for device in devices(trace))]


def ours(args, folder, graph, trace, metadata):
    conf = folder / "ours.click"
    conf.write_text(userspace.filled(graph, *OURS))
    command = [args.millstream, "click", conf, "--io", "dpdk:" + ";".join(devices(trace)), "--eal", EAL, "--metadata", metadata]
    return Side(args, folder, metadata, [*command, "--schedule", f"batch={args.burst}", *args.flag])


def fastclick_graph(args, graph):
    return userspace.filled(graph, *(end.format(burst=args.burst) for end in FASTCLICK))


def fastclick(args, folder, name, graph, trace):
    """As it is, after PacketMill's source passes, and with its other NAT: those of these that are there."""
    sides = []
    conf = folder / "fastclick.click"
    conf.write_text(fastclick_graph(args, graph))
    embedded = pathlib.Path(args.embedded or "/nonexistent") / stem(name)
    wanted = [("FastClick", args.fastclick, conf), ("FastClick, embedded", embedded, f"{embedded}.config")]
    if graph == userspace.NAT:
        flows = folder / "flows.click"
        flows.write_text(fastclick_graph(args, FLOW_NAT))
        wanted.append(("FastClick, FlowIPNAT", args.fastclick, flows))
    for side, program, config in wanted:
        if program and os.access(program, os.X_OK):
            command = [program, "--dpdk", *EAL.split(), "-l", "{cpu}", *vdevs(trace), "--", config]
            sides.append(Side(args, folder, side, command))
    return sides


def stem(name):
    """Of a case, for names of files."""
    return name.replace(", ", "-").replace(" ", "-")


def testpmd(args, folder, mode, trace):
    """Its first thread reads commands, the second forwards."""
    own = [f"--forward-mode={mode}", "--auto-start", "--nb-cores=1", f"--burst={args.burst}", "--total-num-mbufs=16384"]
    eal = [*EAL.split(), "--lcores=(0,1)@{cpu}"]
    return Side(args, folder, f"testpmd {mode}", ["dpdk-testpmd", *eal, *vdevs(trace), "--", *own])


def l3fwd(args, folder, routes, trace):
    rules, others = folder / "routes.cfg", folder / "routes6.cfg"
    # It has no prefixes of no bits: the default is two halves.
    halves = [half for base, bits in routes for half in ([(0, 1), (1 << 31, 1)] if bits == 0 else [(base, bits)])]
    rules.write_text("".join(f"R{userspace.ipaddress.ip_address(base)}/{bits} 1\n" for base, bits in halves))
    others.write_text("R2001:db8::/32 1\n")
    own = ["-p", "0x3", "-P", "--lookup=lpm", "--config=(0,0,{cpu})", "--parse-ptype", f"--rule_ipv4={rules}", f"--rule_ipv6={others}"]
    return Side(args, folder, "l3fwd-lpm", [args.l3fwd, *EAL.split(), "-l", "{cpu}", *vdevs(trace), "--", *own])


def l2fwd(args, folder, trace):
    return Side(args, folder, "l2fwd", [args.l2fwd, *EAL.split(), "-l", "{cpu}", *vdevs(trace), "--", "-p", "0x3", "-q", "2", "-T", "0"])


def graphs():
    """Name, graph, where packets go."""
    one, many = "RadixIPLookup(0.0.0.0/0 10.0.0.2 0)", userspace.made_up(ROUTES)
    return [
        ("mirror", MIRROR, userspace.uniform),
        ("router, one route", userspace.router(one, 1), userspace.uniform),
        (f"router, {ROUTES} routes", userspace.router(userspace.table(many), 2), userspace.anywhere(many)),
        ("IDS and router", userspace.router(one, 1, "kinds :: IPClassifier(tcp, udp, icmp)", "VLANEncap(VLAN_ID 7) ->", userspace.IDS), userspace.uniform),
        ("NAT", userspace.NAT, userspace.uniform),
    ]


def cases(args, folder):
    """Name, ours, peers."""
    for name, graph, address in graphs():
        part = folder / stem(name)
        part.mkdir()
        trace = part / "in.pcap"
        # Without the bytes in front that the graphs of userspace.py strip.
        userspace.capture(trace, [frame[16:] for frame in userspace.frames(FRAMES, address)])
        peers = fastclick(args, part, name, graph, trace)
        if name == "mirror":
            if shutil.which("dpdk-testpmd"):
                peers += [testpmd(args, part, mode, trace) for mode in ("macswap", "io")]
            else:
                print("there is no dpdk-testpmd: it is left out", file=sys.stderr)
            if args.l2fwd:
                peers.append(l2fwd(args, part, trace))
        if name.endswith("routes") and args.l3fwd:
            peers.append(l3fwd(args, part, userspace.made_up(ROUTES), trace))
        yield name, [ours(args, part, graph, trace, metadata) for metadata in args.metadata], peers


def interval(our, their):
    """Of the ratio of medians, at 99 %."""
    rng = random.Random(1)
    draw = lambda values: statistics.median(rng.choices(values, k=len(values)))
    ratios = sorted(draw(our) / draw(their) for _ in range(RESAMPLES))
    return [round(ratios[at], 3) for at in (RESAMPLES // 200, -RESAMPLES // 200 - 1)]


def measure(args, name, own, peers):
    """A row for each peer, of the same rounds; one without if there is none."""
    sides = [*own, *peers]
    paces, shares = {side.name: [] for side in sides}, {}
    for at in range(args.rounds):
        for side in random.sample(sides, len(sides)):
            try:
                pace, shares[side.name] = side.run(f"ms-{os.getpid()}-{at}-{sides.index(side)}")
            except Silent as silent:
                if side in own:
                    sys.exit(str(silent))
                print(f"left out: {silent}", file=sys.stderr)
                continue
            paces[side.name].append(pace)
    # A peer that was silent in any round has no median that could be compared.
    peers = [peer for peer in peers if len(paces[peer.name]) == args.rounds]
    paces = {side.name: paces[side.name] for side in [*own, *peers]}
    shares = {name: shares[name] for name in paces}
    median = {key: statistics.median(values) for key, values in paces.items()}
    common = {
        "mpps": {key: round(value, 2) for key, value in median.items()},
        "sent": {key: round(share, 4) for key, share in shares.items()},
        "all": {key: [round(value, 2) for value in values] for key, values in paces.items()},
    }
    for peer in peers or [None]:
        theirs = peer and paces[peer.name]
        ratios = {side.name: round(median[side.name] / median[peer.name], 3) for side in own} if peer else None
        intervals = {side.name: interval(paces[side.name], theirs) for side in own} if peer else None
        yield {"case": name, "peer": peer and peer.name, "ratio": ratios, "interval": intervals, **common}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--case", action="append", help="cases whose names begin so; all without")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each look at each side")
    parser.add_argument("--burst", type=int, default=32, help="packets at once, of testpmd and of ours")
    parser.add_argument("--cpu", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help="a further argument of millstream click")
    parser.add_argument("--metadata", action="append", help="models of ours; overlay and copy without")
    parser.add_argument("--write", type=pathlib.Path, help="write FastClick's configurations into this folder, and stop")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        for name, graph, _ in graphs():
            (args.write / f"{stem(name)}.click").write_text(fastclick_graph(args, graph))
        return
    args.metadata = args.metadata or ["overlay", "copy"]
    named = {"l2fwd": "L2FWD", "l3fwd": "L3FWD", "fastclick": "FASTCLICK_DPDK", "embedded": "FASTCLICK_EMBEDDED"}
    for field, variable in named.items():
        setattr(args, field, os.environ.get(variable))
        if not getattr(args, field):
            print(f"{variable} is not set: it is left out", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, own, peers in cases(args, pathlib.Path(folder)):
            if not args.case or any(name.startswith(wanted) for wanted in args.case):
                for row in measure(args, name, own, peers):
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr)
    found = {**record.head("bench/dpdk.py"), "rounds": args.rounds, "seconds": args.seconds, "burst": args.burst, "cases": rows}
    record.keep(found, args.output)


if __name__ == "__main__":
    main()
