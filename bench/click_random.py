#!/usr/bin/env python3
"""Configurations of Click drawn at random, run by Millstream and by a peer, packets held against each other byte by byte.

    bench/click_random.py --millstream PATH --peer PATH --trace FILE.pcap[.gz] [--rounds N] [--seed N] [--packets N] [--keep DIRECTORY] [--options OPTIONS] [--output FILE]

Each round draws a graph (filters by random expressions, patterns of bytes, tables of routes, rewriters, encapsulation, checks and
mirrors, behind one another), and packets: of the trace, one in four of them with bytes changed, cut off or made longer. What the two
write has to be the same packets in the same order (bench/click.py compares). Parts in which the peer is known to do other
things than its documentation says (docs/click.md) are not drawn. The same seed draws the same. A round that differs, or that one of the
two refuses and the other takes, is kept in --keep. Exits with 1 if there is one.
"""
import argparse, collections, gzip, json, pathlib, random, shutil, struct, subprocess, sys, tempfile

import record
from click import difference, outputs, packets

PORTS = [21, 22, 25, 53, 80, 123, 443, 1023, 1024, 8080]
OPERATORS = ["", "== ", "!= ", "< ", "> ", "<= ", ">= "]


class Draw:
    """Draws parts of configurations; addresses are of packets that there are, or near them."""

    def __init__(self, seed, frames):
        self.r = random.Random(seed)
        ip = [f for f in frames if len(f) >= 38 and f[12:14] == b"\x08\x00"]
        self.addresses = [f[at : at + 4] for f in self.r.sample(ip, min(200, len(ip))) for at in (26, 30)]
        self.ports = PORTS + [int.from_bytes(f[34:36], "big") for f in self.r.sample(ip, min(20, len(ip)))]
        self.outputs = 0

    def address(self):
        value = bytearray(self.r.choice(self.addresses))
        if self.r.random() < 0.2:
            value[self.r.randrange(4)] ^= 1 << self.r.randrange(8)
        return ".".join(map(str, value))

    def outside(self):
        """One that no packet has: what is sent to an address of a pattern otherwise is taken for answers to whichever flow."""
        return f"203.0.113.{self.r.randint(1, 254)}"

    def net(self):
        length = self.r.choice([0, 1, 4, 8, 8, 12, 15, 16, 16, 20, 24, 24, 27, 31, 32])
        value = int.from_bytes(bytes(map(int, self.address().split("."))), "big")
        value &= (0xFFFFFFFF << (32 - length)) & 0xFFFFFFFF
        return f"{'.'.join(map(str, value.to_bytes(4, 'big')))}/{length}"

    def sides(self):
        return self.r.choice(["", "src ", "dst ", "src or dst ", "src and dst "])

    def number(self, most):
        return self.r.choice([0, 1, most, self.r.randint(0, most), self.r.randint(0, min(most, 64))])

    def primitive(self):
        r, op = self.r, self.r.choice(OPERATORS)
        equal = r.choice(OPERATORS[:3])
        mask = f"& 0x{r.choice([1, 2, 3, 0xF, 0x40, 0xF0]):x} " if r.random() < 0.2 else ""
        return r.choice(
            [
                lambda: f"{self.sides()}host {equal}{self.address()}",
                lambda: f"{self.sides()}net {self.net()}",
                lambda: f"ip proto {equal}{r.choice(['tcp', 'udp', 'icmp', '6', '17', '1', '47', '2'])}",
                lambda: r.choice(["tcp", "udp", "icmp"]),
                lambda: f"{self.sides()}{r.choice(['tcp ', 'udp ', ''])}port {mask or op}{r.choice(self.ports)}",
                lambda: f"ip ttl {mask or op}{self.number(255)}",
                lambda: f"ip len {mask or op}{r.choice([40, 52, 60, 64, 576, 1500, self.number(65535)])}",
                lambda: f"ip id {mask or op}{self.number(65535)}",
                lambda: f"ip tos {mask or op}{self.number(255)}",
                lambda: f"ip dscp {op}{self.number(63)}",
                lambda: f"ip hl {op}{r.choice([5, 6, 15])}",
                lambda: f"ip vers {equal}4",
                lambda: r.choice(["ip frag", "ip unfrag", "ip ect", "ip ce"]),
                lambda: f"icmp type {mask or op}{r.choice([0, 3, 5, 8, 11, 'echo', 'unreachable'])}",
                lambda: f"tcp opt {r.choice(['syn', 'ack', 'fin', 'rst', 'psh', 'urg'])}",
                lambda: r.choice(["syn", "ack", "fin", "rst"]),
                lambda: f"tcp win {mask or op}{self.number(65535)}",
                lambda: f"ip[{r.choice([0, 1, 2, 6, 8, 9, 12, 16])}:{r.choice([1, 2])}] {mask or op}{self.number(255)}",
            ]
        )()

    def expression(self, depth=3):
        r = self.r
        if depth == 0 or r.random() < 0.35:
            return self.primitive()
        kind = r.randrange(6)
        if kind == 0:
            return f"not ({self.expression(depth - 1)})"
        if kind == 1:
            return f"! {self.primitive()}"
        if kind == 2:
            parts = [self.expression(depth - 1) for _ in range(3)]
            return f"(({parts[0]}) ? ({parts[1]}) : ({parts[2]}))"
        word = r.choice(["and", "or", "&&", "||"])
        return f"({self.expression(depth - 1)}) {word} ({self.expression(depth - 1)})"

    def end(self):
        self.outputs += 1
        return f"ToDump($DIR/{self.outputs}.pcap)"

    def split(self, element, count, depth, cooked=True):
        """An element with so many outputs, and what is behind each."""
        name = f"e{self.r.getrandbits(48):x}"
        self.declared.append(f"{name} :: {element};")
        lines = []
        for output in range(count):
            head, more = self.behind(depth - 1, cooked)
            lines += [f"{name}[{output}] -> {head};"] + more
        return name, lines

    def behind(self, depth, cooked=True):
        """A chain with an end; (its first elements, further lines). Packets begin with an IP header that was checked if `cooked`."""
        r = self.r
        if depth <= 0 or r.random() < 0.15:
            return self.end(), []
        kind = r.choice(["filter", "classify", "bytes", "routes", "line", "line", "rewrite", "switch", "tee"])
        if not cooked and kind in ("filter", "classify", "routes", "rewrite"):
            kind = "bytes"
        if kind == "filter":
            count = r.randint(1, 3)
            many = r.choice([3, 8, 20, 60])
            rules = [f"{r.choice(['allow', 'deny', *map(str, range(count))])} {self.expression()}" for _ in range(many)]
            rules.append(r.choice(["allow all", "deny all"]))
            return self.split(f"IPFilter({', '.join(rules)})", count, depth, cooked)
        if kind == "classify":
            count = r.choice([2, 3, 5, 20])
            patterns = [self.expression() for _ in range(count - 1)] + ["-"]
            return self.split(f"IPClassifier({', '.join(patterns)})", count, depth if count < 9 else 1, cooked)
        if kind == "bytes":
            count = r.choice([2, 4, 20])
            patterns = [" ".join(self.bytes() for _ in range(r.randint(1, 3))) for _ in range(count - 1)] + ["-"]
            return self.split(f"Classifier({', '.join(patterns)})", count, depth if count < 9 else 1, cooked)
        if kind == "routes":
            count = r.randint(1, 4)
            nets = list(dict.fromkeys([self.net() for _ in range(r.choice([3, 30, 300]))] + ["0.0.0.0/0"]))
            routes = [f"{net} {self.address() + ' ' if r.random() < 0.3 else ''}{r.randrange(count)}" for net in nets]
            element = r.choice(["RadixIPLookup", "StaticIPLookup", "LinearIPLookup", "SortedIPLookup"])
            name, lines = self.split(f"{element}({', '.join(routes)})", count, depth, cooked)
            return f"GetIPAddress(16) -> {name}", lines
        if kind == "rewrite":
            low = r.choice([1024, 20000])
            pattern = f"pattern {self.outside()} {low}-65535# - - 0 1"
            name, lines = self.split(f"IPRewriter({pattern})", 2, depth, cooked)
            return f"IPFilter(allow tcp or udp) -> IPFilter(deny ip frag, allow all) -> {name}", lines
        if kind == "switch":
            count = r.randint(2, 4)
            element = r.choice(
                [f"HashSwitch({r.choice([12, 16])}, {r.choice([1, 2, 4])})", "RoundRobinSwitch", "PaintSwitch"]
            )
            name, lines = self.split(element, count, depth, cooked)
            return (f"Paint({r.randrange(count)}) -> {name}" if element == "PaintSwitch" else name), lines
        if kind == "tee":
            count = r.randint(2, 3)
            return self.split(f"Tee({count})", count, min(depth, 2), cooked)
        return self.line(depth, cooked)

    def bytes(self):
        r = self.r
        at, count = r.randint(0, 30), r.choice([1, 2, 4])
        value = "".join(r.choice("0123456789abcdef?" if r.random() < 0.2 else "048") for _ in range(2 * count))
        mask = "%" + "".join(r.choice("0f8") for _ in range(2 * count)) if r.random() < 0.4 else ""
        return f"{r.choice(['', '', '!'])}{at}/{value}{mask}"

    def line(self, depth, cooked):
        r = self.r
        choices = [
            f"StoreData({r.randint(0, 70)}, \\<{r.getrandbits(48):012x}>{r.choice(['', ', GROW true', ', MASK ' + chr(92) + '<0f00f0>'])})",
            f"CheckLength({r.choice([40, 60, 576, 1500])})",
            "Counter",
            f"Paint({r.randint(0, 9)})",
            "Null",
        ]
        if cooked:
            choices += [
                # The peer looks at ports and numbers of segments that are not there.
                "IPFilter(deny ip hl > 5 or ip len < 40, allow all) -> IPMirror",
                "SetIPChecksum",
                "DecIPTTL",
                f"CheckIPHeader(CHECKSUM true, BADSRC {self.address()} {self.address()})",
                f"IPEncap({r.choice(['ipip', 'gre', '99'])}, {self.address()}, {self.address()}, TTL {r.randint(2, 255)})",
                f"UDPIPEncap({self.address()}, {r.randint(1, 65535)}, {self.address()}, {r.randint(1, 65535)}, CHECKSUM true)",
                "IPFilter(allow udp) -> CheckUDPHeader(CHECKSUM false) -> SetUDPChecksum",
                "IPFilter(allow tcp) -> SetTCPChecksum",
                "IPFilter(allow tcp) -> CheckTCPHeader",
                "IPFilter(allow udp) -> CheckUDPHeader",
                "IPFilter(allow icmp) -> CheckICMPHeader",
                f"EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> EtherMirror -> Strip(14)",
                f"DecIPTTL(MULTICAST {r.choice(['true', 'false'])}) -> IPGWOptions({self.address()})",
                f"ICMPError({self.address()}, {r.choice(['timeexceeded, transit', 'unreachable, host', 'redirect, host'])})",
                "IPFilter(deny ip hl > 5, allow all) -> IPFragmenter(576)",
                "StripIPHeader -> Unstrip(20)",
                f"IPFilter(allow icmp type echo) -> ICMPPingResponder",
                f"IPAddrRewriter(pattern {self.outside()} - 0 0)",
                f"IPAddrPairRewriter(pattern {self.outside()} {self.outside()} 0 0)",
                f"CheckIPHeader2",
                f"CheckPaint({r.randrange(3)})",
                f"EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> Pad({r.choice([60, 200])}) -> Strip(14)",
                f"IPFilter(allow icmp) -> ICMPPingRewriter(pattern {self.outside()} 1024-65535# - - 0 0)",
                f"StoreIPAddress({self.address()}, {r.choice([12, 16])})",
                f"StoreIPAddress({r.choice([12, 16, 20])})",
                f"SetIPAddress({self.address()}) -> StoreIPAddress(16)",
                f"EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> VLANEncap(VLAN_ID {r.randint(1, 4094)}, VLAN_PCP {r.randint(0, 7)}) -> VLANDecap -> Strip(14)",
            ]
        else:
            choices += [
                "EtherMirror",
                "Strip(4) -> Unstrip(4)",
                "HostEtherFilter(1:2:3:4:5:6, DROP_OWN true)",
                "EtherRewrite(2:0:0:0:0:1, 2:0:0:0:0:2)",
                f"VLANEncap(VLAN_ID {r.randint(1, 4094)}, VLAN_PCP {r.randint(0, 7)})",
                "VLANDecap",
                f"ARPResponder({self.net()} 1:1:1:1:1:1, {self.address()} 2:2:2:2:2:2)",
                f"Pad({r.choice([60, 100])})",
                "Classifier(12/86dd) -> Strip(14) -> CheckIP6Header -> DecIP6HLIM -> Unstrip(14)",
            ]
        head, lines = self.behind(depth - 1, cooked)
        return f"{r.choice(choices)} -> {head}", lines

    def configuration(self):
        self.outputs, self.declared = 0, []
        if self.r.random() < 0.2:
            head, lines = self.behind(4, cooked=False)
            first = f"FromDump($IN, STOP true, BURST 1) -> Paint(0) -> {head};"
        else:
            head, lines = self.behind(4)
            check = "Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true)"
            first = f"FromDump($IN, STOP true, BURST 1) -> Paint(0) -> {check} -> {head};"
        return "\n".join([*self.declared, *lines, first]) + "\n"


def changed(frame, r):
    """A frame of which something is other than it was; most IP headers have their right checksum again."""
    frame = bytearray(frame)
    for _ in range(r.randint(1, 3)):
        at = r.randrange(min(len(frame), 60))
        frame[at] = r.choice([frame[at] ^ (1 << r.randrange(8)), r.randrange(256), 0, 255])
    if r.random() < 0.3:
        del frame[r.randint(14, len(frame)) :]
    elif r.random() < 0.2:
        frame += bytes(r.randint(1, 40))
    header = 14 + 4 * (frame[14] & 15 if len(frame) > 14 else 5)
    if r.random() < 0.8 and 34 <= header <= len(frame):
        frame[24:26] = b"\0\0"
        total = sum(struct.unpack(f">{(header - 14) // 2}H", frame[14:header]))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        frame[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(frame)


def unbroken(frame):
    """Not an IPv4 packet that ends within the header of its transport protocol: what filters say of those is the peer's own."""
    if len(frame) < 34 or frame[12:14] != b"\x08\x00" or int.from_bytes(frame[20:22], "big") & 0x1FFF:
        return True
    header = {1: 8, 6: 20, 17: 8}.get(frame[23], 0)
    return min(int.from_bytes(frame[16:18], "big"), len(frame) - 14) >= 4 * (frame[14] & 15) + header


def capture(path, frames):
    data = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for at, frame in enumerate(frames):
        data.append(struct.pack("<IIII", at // 1000, at % 1000 * 1000, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(data))


def run(command):
    """None if it ended well, else the end of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "no end after two minutes"
    if done.returncode < 0:
        return f"signal {-done.returncode}"
    return None if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr[:600]}"


def compare(args, conf, trace, folder):
    """What is different; None if nothing is; `refused` by both, or the peer `crashed`."""
    ours, theirs = folder / "ours", folder / "theirs"
    for path in (ours, theirs):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    here = run([args.millstream, "click", *args.options.split(), conf, f"IN={trace}", f"DIR={ours}"])
    there = run([args.peer, conf, f"IN={trace}", f"DIR={theirs}"])
    if there and there.startswith("signal") and not (here and here.startswith("signal")):
        return "crashed"
    if here and there:
        return "refused"
    if here or there:
        return f"ours: {here}\ntheirs: {there}"
    a, b = outputs(ours), outputs(theirs)
    if a.keys() != b.keys():
        return f"files differ: {sorted(a.keys() ^ b.keys())}"
    found = [f"{name}: {d}" for name in a if (d := difference(a[name], b[name]))]
    return "\n".join(found) or None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millstream", type=pathlib.Path, required=True)
    parser.add_argument("--peer", type=pathlib.Path, required=True)
    parser.add_argument("--trace", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packets", type=int, default=2000)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, help="file of the result, with the machine")
    parser.add_argument("--options", default="", help="of millstream click, in one word: '--schedule batch=7,from=0'")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        whole = folder / "whole.pcap"
        opened = gzip.open if args.trace.suffix == ".gz" else open
        with opened(args.trace, "rb") as source:
            whole.write_bytes(source.read())
        frames = [bytes(data) for data, _ in packets(whole) if len(data) >= 34]
        counts = collections.Counter()
        for seed in range(args.seed, args.seed + args.rounds):
            r = random.Random(seed)
            start = r.randrange(max(1, len(frames) - args.packets))
            chosen = [changed(f, r) if r.random() < 0.25 else f for f in frames[start : start + args.packets]]
            chosen = [f for f in chosen if unbroken(f)]
            trace, conf = folder / "in.pcap", folder / "conf.click"
            capture(trace, chosen)
            conf.write_text(Draw(seed, chosen).configuration())
            found = compare(args, conf, trace, folder)
            if found in (None, "refused", "crashed"):
                counts[found or "same"] += 1
            else:
                counts["different"] += 1
                print(f"seed {seed}: {found}", file=sys.stderr, flush=True)
                if args.keep:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(conf, args.keep / f"{seed}.click")
                    shutil.copy(trace, args.keep / f"{seed}.pcap")
        result = {"rounds": args.rounds, "seed": args.seed, "packets": args.packets}
        result |= {key: counts[key] for key in ("same", "different", "refused", "crashed")}
        print(json.dumps({"schema": 1} | result))
        if args.output:
            command = f"bench/click_random.py --peer PATH --trace {args.trace.name} --rounds {args.rounds} --seed {args.seed}"
            record.write(args.output, record.head(command) | result)
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
