#!/usr/bin/env python3
"""Click configurations on DPDK's virtual devices beside DPDK's own programs: millions of packets a second of the worker's processor time.

    bench/dpdk.py [--millstream PATH] [--case NAME ...] [--rounds N] [--seconds S] [--output FILE]

Needs a millstream with feature `dpdk`, and `dpdk-testpmd`. L3FWD in the environment names DPDK's example l3fwd, without which its case is left out; it is
built as published, but that it asks ports for no checksums, which these have none of. Frames of 64 bytes come from `net_pcap` with `infinite_rx`, 1,024 flows, and
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
MIRROR = "FromDevice(in) -> EtherMirror -> ToDPDKDevice(out);"


class Side:
    """A process that forwards from port 0 to port 1. In its command {prefix} is the name of its telemetry, {cpu} its processor."""

    def __init__(self, args, folder, name, command):
        self.args, self.name, self.command = args, name, [str(word) for word in command]
        self.said = folder / f"{name}.txt"

    def run(self, prefix):
        """Millions of packets a second of the processor, and what part of them leaves."""
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
                sys.exit(f"{self.name} forwards nothing:\n{self.said.read_text(errors='replace')[-3000:]}")
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
    conf.write_text(graph)
    command = [args.millstream, "click", conf, "--io", "dpdk:" + ";".join(devices(trace)), "--eal", EAL, "--metadata", metadata]
    return Side(args, folder, metadata, [*command, "--batch", args.burst, *args.flag])


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


def cases(args, folder):
    """Name, sides."""
    routes = userspace.made_up(ROUTES)
    traces = {}
    for name, address in (("mirror", userspace.uniform), ("router", userspace.anywhere(routes))):
        traces[name] = folder / f"{name}.pcap"
        # Without the bytes in front that the graphs of userspace.py strip.
        userspace.capture(traces[name], [frame[16:] for frame in userspace.frames(FRAMES, address)])

    def both(name, graph):
        part = folder / name
        part.mkdir()
        return [ours(args, part, graph, traces[name], metadata) for metadata in ("overlay", "copy")]

    mirror = both("mirror", MIRROR)
    yield "mirror", [*mirror, testpmd(args, folder, "macswap", traces["mirror"])]
    graph = userspace.filled(userspace.router(userspace.table(routes), 2), "FromDevice(in)", "ToDPDKDevice(out)")
    router = both("router", graph)
    if args.l3fwd:
        yield f"router, {ROUTES} routes", [*router, l3fwd(args, folder, routes, traces["router"])]
    else:
        print("L3FWD is not set: the case of l3fwd is left out", file=sys.stderr)


def interval(our, their):
    """Of the ratio of medians, at 99 %."""
    rng = random.Random(1)
    draw = lambda values: statistics.median(rng.choices(values, k=len(values)))
    ratios = sorted(draw(our) / draw(their) for _ in range(RESAMPLES))
    return [round(ratios[at], 3) for at in (RESAMPLES // 200, -RESAMPLES // 200 - 1)]


def measure(args, name, sides):
    paces, shares = {side.name: [] for side in sides}, {}
    for at in range(args.rounds):
        for side in random.sample(sides, len(sides)):
            pace, shares[side.name] = side.run(f"ms-{os.getpid()}-{at}-{sides.index(side)}")
            paces[side.name].append(pace)
    theirs = paces[sides[-1].name]
    ratio = lambda values: round(statistics.median(values) / statistics.median(theirs), 3)
    return {
        "case": name,
        "peer": sides[-1].name,
        "mpps": {key: round(statistics.median(values), 2) for key, values in paces.items()},
        "ratio": {key: ratio(paces[key]) for key in ("overlay", "copy")},
        "interval": {key: interval(paces[key], theirs) for key in ("overlay", "copy")},
        "sent": {key: round(share, 4) for key, share in shares.items()},
        "all": {key: [round(value, 2) for value in values] for key, values in paces.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--case", action="append", help="cases whose names begin so; all without")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each look at each side")
    parser.add_argument("--burst", type=int, default=32, help="packets at once, of testpmd and of ours")
    parser.add_argument("--cpu", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help="a further argument of millstream click")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    args.l3fwd = os.environ.get("L3FWD")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, sides in cases(args, pathlib.Path(folder)):
            if not args.case or any(name.startswith(wanted) for wanted in args.case):
                rows.append(measure(args, name, sides))
                print(json.dumps(rows[-1]), file=sys.stderr)
    found = {**record.head("bench/dpdk.py"), "rounds": args.rounds, "seconds": args.seconds, "burst": args.burst, "cases": rows}
    record.keep(found, args.output)


if __name__ == "__main__":
    main()
