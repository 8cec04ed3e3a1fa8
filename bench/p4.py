#!/usr/bin/env python3
"""The evaluation of APSys'17 (P4 programs, batching, sub-batching, prefetching; a performance model), on our P4 programs.

    bench/p4.py [--parts PART,...] [--full] [--routes FILE[.gz]] [--millstream PATH] [--output DIRECTORY] [--seconds S]
                [--rounds N] [--flows N] [--largest N] [--again]

Parts, each with a file p4-PART.json and a plot p4-PART.svg in DIRECTORY (bench/results):

    figure-4   five applications: one packet at once, batches, batches with sub-batches and prefetching
    figure-5   L2 forwarding by B, for several sizes of its tables; b = 1 and b = B
    figure-6   L2 forwarding by b, for several sizes of its tables; B = 128
    figure-7   four applications beside loops written by hand (bench/p4_peers.c): in the order of G-Opt, and with DPDK's tables
    figure-8   packets per second by the number of workers
    latency    section 3.8: latency by offered load, one packet at once and in batches
    trie       section 4: 20,000 prefixes of 48 bits in a multibit trie and in a compressed one
    model      B and b that the model chooses, beside an exhaustive search

Programs are in programs/p4, packets come from memory, and sent packets are counted. IPv4 has the prefixes of FILE (lines that
begin with one); otherwise as many generated ones as the paper's table here has, 512,621. --full takes all sizes and points; the
default is about ten minutes. --largest bounds the entries of tables, for machines with little memory; with 2^24 entries the
tables of L2 forwarding take 1.5 GiB. What was measured with the same settings on this processor is kept: a run that was ended goes on
where it was; --again measures anew.

Forms of a program take turns in rounds. A gain is the mean of the logarithms of the ratios of each round without the highest and
the lowest tenth, with a 99 % interval by bootstrap over rounds. Run it alone: figures of a busy machine say nothing.
"""

import argparse
import gzip
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import record
from axes import COLOURS, HEIGHT, BOTTOM, LEFT, WIDTH, Picture, bars

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / "programs/p4"
PEERS = pathlib.Path(__file__).resolve().parent / "p4_peers.c"
# Schedules: what the paper's vanilla compiler does, batching alone, and both (section 3.2).
ONE = "batch=1,pattern=packets,headers=0,fetch=nothing,trials=off"
USUAL_BATCH = 32


def plain(batch):
    """b = 1: batching alone."""
    return f"batch={batch},pattern=packets,headers=0,fetch=nothing,trials=off"


def whole(batch):
    """b = B: each batch is one sub-batch."""
    return f"batch={batch},pattern=groups,sub-batch=all,headers=0,from=256,trials=off"


def grouped(batch, sub_batch):
    """Sub-batches, stage by stage; b = 1 does not prefetch."""
    if sub_batch == 1:
        return plain(batch)
    return f"batch={batch},pattern=groups,sub-batch={sub_batch},headers=0,from=256,trials=off"


# The paper's gains over its compiler without them, in per cent: batching alone, and with sub-batching (sections 3.2 and 3.6).
# It has no number where there is None.
PAPER_GAINS = {"l2": (20, 48), "ipv4": (None, 55), "ipv6": (None, 57), "ndn": (20, 46), "l2_crypto": (None, None)}
BARS = {"l2": 1.48, "ipv4": 1.55, "ipv6": 1.57, "ndn": 1.46}
# Gains over G-Opt (section 3.6), and over DPDK's code written by hand (Figure 7), with the project's bars.
PAPER_PEERS = {
    "switching": {"l2": (1.20, 1.20), "ipv4": (1.15, 1.15), "ipv6": (1.17, 1.17), "ndn": (1.59, 1.60)},
    "dpdk": {"ipv4": (0.96, 1.05), "ipv6": (1.20, 1.20)},
}
PEER_NAMES = {"plain": "one packet after the other", "switching": "G-Opt's order", "dpdk": "DPDK's tables"}
# Section 3.7: where four ports saturate; section 4: the gain of a compressed trie, and the accesses that it saves.
PAPER_PORTS_MPPS = 44
PAPER_TRIE = {"gain": 1.16, "accesses": 1.25}
ETHERTYPE_NDN = 0x8624


class Bench:
    """Commands, settings, and the points that are known."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.packet = folder / "interest"
        self.packet.write_bytes(bytes([2] * 12) + ETHERTYPE_NDN.to_bytes(2, "big") + bytes(50))
        self.routes = None
        if args.routes:
            opened = gzip.open if args.routes.suffix == ".gz" else open
            self.routes = folder / "routes"
            with opened(args.routes, "rt") as lines:
                self.routes.write_text(lines.read())
        self.settings = dict(largest=args.largest, seconds=args.seconds, rounds=args.rounds, flows=args.flows, cpu=record.processor())

    def subject(self, application, entries):
        """Arguments that name a program, its tables and its packets."""
        words = [PROGRAMS / f"{application}.p4"]
        if application == "l2_crypto":
            return words
        if application == "ipv4" and self.routes:
            return [*words, "--entries", f"routes={self.routes}", "--flows", self.args.flows]
        entries = min(entries, self.args.largest)
        size = max(entries, 16)
        words += [f"ENTRIES={size}", "--entries", entries, "--flows", self.args.flows]
        return words + (["--packet", self.packet] if application == "ndn" else [])

    def prefixes(self, application, entries):
        """A file of prefixes: those of the routes, or random ones of /48 to /64 (IPv6) and of /8 to /24."""
        if application == "ipv4" and self.routes:
            return self.routes
        path = self.folder / f"prefixes-{application}-{entries}"
        if not path.exists():
            rng = random.Random(entries)
            groups = lambda: ":".join(f"{rng.randrange(1 << 16):x}" for _ in range(4))
            bytes4 = lambda: ".".join(str(rng.randrange(1, 224)) for _ in range(4))
            make = {"ipv6": lambda: f"{groups()}::/{rng.randint(48, 64)}", "ipv4": lambda: f"{bytes4()}/{rng.choice((16, 20, 22, 24, 24, 24))}"}[application]
            path.write_text("".join(f"{make()}\n" for _ in range(entries)))
        return path

    def peers(self):
        """The program of loops written by hand, and its forms: with DPDK's tables if its libraries are here."""
        path = self.folder / "peers"
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-O3", "-march=native", "-o", path, PEERS]
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libdpdk"], capture_output=True, text=True)
        if flags.returncode == 0:
            with_dpdk = subprocess.run([*command[:1], "-DWITH_DPDK", *command[1:], *flags.stdout.split()])
            if with_dpdk.returncode == 0:
                return path, ["plain", "switching", "dpdk"]
        subprocess.run(command, check=True)
        return path, ["plain", "switching"]

    def run(self, *words):
        return self.run_command(self.args.millstream, *words)

    def run_command(self, *words):
        command = [str(word) for word in words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, 3):
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
        return json.loads(done.stdout)

    def schedules(self, application, entries, schedules):
        """Rows of schedules, the first of which is the base of gains."""
        found = self.schedules_of(self.subject(application, entries), schedules)
        base = found["rows"][0]["ns_rounds"]
        rows = [{**row, **gain(base, row["ns_rounds"])} for row in found["rows"]]
        for row in rows:
            del row["ns_rounds"]
        return dict(packets=found["packets"], rows=rows)

    def schedules_of(self, subject, schedules):
        """Rows of schedules, with the times of their rounds."""
        first, *others = schedules
        words = ["--parts", "schedules", "--schedule", first, "--schedules", ";".join(others), "--json"]
        found = self.run("bench-user", *subject, *words, "--seconds", self.args.seconds, "--rounds", self.args.rounds)
        keep = lambda schedule, row: dict(schedule=schedule, ns=row["ns_per_packet"], ns_min=row["ns_min"], mpps=1e3 / row["ns_per_packet"], sent=row["sent"] / max(row["received"], 1), ns_rounds=row["ns_rounds"])
        return dict(packets=found["packets"], rows=[keep(schedule, row) for schedule, row in zip(schedules, found["by_schedule"])])


def gain(base, other):
    """The gain over the base, and its interval, from rounds."""
    logs = [math.log(before / after) for before, after in zip(base, other) if before > 0 and after > 0]
    if not logs:
        return dict(gain=None, interval=None)
    rng, middle = random.Random(1), lambda values: statistics.fmean(sorted(values)[len(values) // 10 : len(values) - len(values) // 10])
    means = sorted(middle(rng.choices(logs, k=len(logs))) for _ in range(1000))
    return dict(gain=math.exp(middle(logs)), interval=[math.exp(means[5]), math.exp(means[994])])


def figure_4(bench, points):
    """Section 3.2: batching, and batching with sub-batches and prefetching."""
    forms = [ONE, plain(USUAL_BATCH), whole(USUAL_BATCH), "batch=64"]
    sizes = {"l2": 1 << 24, "ipv4": 512_621, "ipv6": 200_000, "ndn": 10_000_000, "l2_crypto": 0}
    for application, entries in sizes.items():
        points(application, lambda: bench.schedules(application, entries, forms))
    rows, groups = [], []
    names = ["one packet at once", f"B = {USUAL_BATCH}, b = 1", f"B = b = {USUAL_BATCH}, prefetching", "by default"]
    for application, found in points.known():
        batching, both = PAPER_GAINS[application]
        papers = [None, batching, both, None]
        for name, paper, row in zip(names, papers, found["rows"]):
            rows.append(dict(application=application, form=name, paper_gain=paper and 1 + paper / 100, bar=BARS.get(application) if paper == both else None, **row))
        pairs = [(row["gain"], paper and 1 + paper / 100) for paper, row in zip(papers[1:], found["rows"][1:])]
        groups.append((application.replace("_", " "), pairs))
    return rows, bars("Figure 4: batching and prefetching", "packets per second, over one packet at once", groups, names[1:])


def sizes_of(bench, few, many):
    return [1 << n for n in (many if bench.args.full else few)]


def figure_5(bench, points):
    """Section 3.3: by B; b = B and b = 1."""
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256] if bench.args.full else [1, 8, 32, 128, 256]
    for entries in sizes_of(bench, (8, 16, 20, 24), (4, 8, 12, 16, 20, 24)):
        forms = [plain(batch) for batch in batches] + [whole(batch) for batch in batches[1:]]
        points(f"{entries}", lambda: bench.schedules("l2", entries, forms))
    rows, lines = [], {}
    for entries, found in points.known():
        for row in found["rows"]:
            settings = dict(part.split("=") for part in row["schedule"].split(","))
            batch, together = int(settings["batch"]), settings["pattern"] == "groups"
            rows.append(dict(entries=int(entries), batch=batch, sub_batch=batch if together else 1, **row))
            lines.setdefault(f"{int(entries):,}{'' if together else ', b = 1'}", []).append((batch, row["mpps"]))
    return rows, curves("Figure 5: L2 forwarding by B, for tables of so many entries; b = B unless said", "B", lines)


def figure_6(bench, points):
    """Section 3.4: by b, with B = 128."""
    sub_batches = [1, 2, 4, 8, 16, 32, 64, 128] if bench.args.full else [1, 4, 16, 32, 128]
    for entries in sizes_of(bench, (8, 16, 20, 24), (4, 8, 12, 16, 20, 24)):
        forms = [grouped(128, b) for b in sub_batches]
        points(f"{entries}", lambda: bench.schedules("l2", entries, forms))
    rows, lines = [], {}
    for entries, found in points.known():
        for b, row in zip(sub_batches, found["rows"]):
            rows.append(dict(entries=int(entries), batch=128, sub_batch=b, **row))
            lines.setdefault(f"{int(entries):,}", []).append((b, row["mpps"]))
    return rows, curves("Figure 6: L2 forwarding by b, for tables of so many entries; B = 128", "b", lines)


def figure_7(bench, points):
    """Section 3.6: beside loops written by hand, with the same packets, entries and look-ups."""
    program, forms = bench.peers()
    sizes = {"l2": 1 << (24 if bench.args.full else 20), "ipv4": 512_621, "ipv6": 200_000, "ndn": 10_000_000 if bench.args.full else 1 << 20}

    def measure(application, entries):
        entries = min(entries, bench.args.largest)
        is_prefixes = application in ("ipv4", "ipv6")
        path = bench.prefixes(application, entries) if is_prefixes else None
        subject = bench.subject(application, entries)
        if is_prefixes:
            subject = [PROGRAMS / f"{application}.p4", f"ENTRIES={max(entries, 1 << 20)}", "--entries", f"routes={path}", "--flows", bench.args.flows]
        ours = bench.schedules_of(subject, [ONE, whole(USUAL_BATCH), "batch=64", "batch=128,pattern=pipelined-groups,sub-batch=4,headers=0,from=256,trials=off"])
        rows = []
        for form in forms:
            if form == "dpdk" and not is_prefixes:
                continue
            for batch in (USUAL_BATCH,) if form != "switching" else (8, 16, 32):
                words = [program, application, form, batch, entries, bench.args.flows, bench.args.seconds / bench.args.rounds, bench.args.rounds]
                found = bench.run_command(*words, *([path] if path else []))
                rows.append(dict(form=form, batch=batch, ns=statistics.median(found["ns_rounds"]), **found))
        return dict(ours=ours, rows=rows)

    for application, entries in sizes.items():
        points(application, lambda: measure(application, entries))
    rows, groups = [], []
    for application, found in points.known():
        ours = min(found["ours"]["rows"], key=lambda row: row["ns"])
        pairs = []
        for form, name in PEER_NAMES.items():
            of_form = [row for row in found["rows"] if row["form"] == form]
            if not of_form:
                pairs.append((None, None))
                continue
            peer = min(of_form, key=lambda row: row["ns"])
            paper, bar = PAPER_PEERS.get(form, {}).get(application, (None, None))
            compared = gain(peer["ns_rounds"], ours["ns_rounds"])
            rows.append(dict(application=application, peer=name, batch=peer["batch"], peer_ns=peer["ns"], peer_sent=peer["sent"], schedule=ours["schedule"], ns=ours["ns"], sent=ours["sent"], paper_gain=paper, bar=bar, **compared))
            pairs.append((compared["gain"], paper))
        groups.append((application, pairs))
    return rows, bars("Figure 7: P4 programs beside loops written by hand", "packets per second, over the loop's", groups, list(PEER_NAMES.values()))


def figure_8(bench, points):
    """Section 3.7: by workers."""
    most = min(os.cpu_count() or 1, 8)
    sizes = {"l2": 1 << (24 if bench.args.full else 20), "ipv4": 512_621, "ipv6": 200_000, "ndn": 10_000_000 if bench.args.full else 1 << 20, "l2_crypto": 0}

    def measure(application, entries):
        words = ["--parts", "workers", "--workers", most, "--schedule", whole(USUAL_BATCH), "--json", "--seconds", bench.args.seconds, "--rounds", bench.args.rounds]
        found = bench.run("bench-user", *bench.subject(application, entries), *words)
        return dict(packets=found["packets"], rows=[dict(workers=row["workers"], mpps=row["mpps"]) for row in found["by_workers"]])

    for application, entries in sizes.items():
        points(application, lambda: measure(application, entries))
    rows, lines = [], {}
    for application, found in points.known():
        for row in found["rows"]:
            rows.append(dict(application=application, paper_ports_mpps=PAPER_PORTS_MPPS, **row))
            lines.setdefault(application.replace("_", " "), []).append((row["workers"], row["mpps"]))
    title = f"Figure 8: by workers (the paper: linear up to {PAPER_PORTS_MPPS} Mpps, where its ports saturate)"
    return rows, curves(title, "workers", lines)


def latency(bench, points):
    """Section 3.8: at most B times that of one packet."""
    entries = 1 << (24 if bench.args.full else 20)

    def measure(schedule):
        words = ["--parts", "latency", "--schedule", schedule, "--json", "--seconds", bench.args.seconds, "--loads", "10,50,90"]
        found = bench.run("bench-user", *bench.subject("l2", entries), *words)
        return dict(packets=found["packets"], max_mpps=found.get("max_mpps"), rows=found["by_load"])

    for name, schedule in (("1", ONE), (f"{USUAL_BATCH}", whole(USUAL_BATCH)), ("128", grouped(128, 16))):
        points(name, lambda: measure(schedule))
    rows, groups = [], []
    for batch, found in points.known():
        for row in found["rows"]:
            rows.append(dict(batch=int(batch), max_mpps=found["max_mpps"], paper="at most B times that of B = 1", **row))
        groups.append((f"B = {batch}", [((row["p99_ns"] or 0) / 1e3, None) for row in found["rows"]]))
    names = [f"at {load} % of the throughput" for load in (10, 50, 90)]
    return rows, bars("Section 3.8: latency of L2 forwarding, 99th percentile", "microseconds, by a Poisson process", groups, names)


def trie(bench, points):
    """Section 4: a compressed trie."""
    rng, path = random.Random(4), bench.folder / "prefixes"
    path.write_text("".join(f"{rng.randrange(1 << 16):x}:{rng.randrange(1 << 16):x}:{rng.randrange(1 << 16):x}::/48\n" for _ in range(20_000)))

    def measure():
        found = {"multibit": [], "packed": []}
        for _ in range(5):
            for template in rng.sample(list(found), 2):
                words = ["--entries", f"routes={path}", "--flows", bench.args.flows, "--template", f"RouterIngress.routes={template}"]
                words += ["--parts", "batches", "--batches", USUAL_BATCH, "--schedule", plain(USUAL_BATCH), "--json", "--seconds", bench.args.seconds / 5, "--rounds", 5]
                row = bench.run("bench-user", PROGRAMS / "ipv6.p4", *words)["by_batch"][0]
                found[template].append(row["ns_per_packet"])
        return dict(rows=[dict(template=template, ns=statistics.median(ns), **gain(found["multibit"], ns)) for template, ns in found.items()])

    points("20000 prefixes of 48 bits", measure)
    rows = [dict(paper=PAPER_TRIE if row["template"] == "packed" else None, **row) for _, found in points.known() for row in found["rows"]]
    groups = [(row["template"], [(row["gain"], PAPER_TRIE["gain"] if row["template"] == "packed" else None)]) for row in rows]
    return rows, bars("Section 4: 20,000 prefixes of 48 bits by the form of the trie", "packets per second, over a multibit trie", groups, ["here"])


def model(bench, points):
    """Section 3.5: what the model chooses, beside an exhaustive search."""
    machine = bench.args.output / "p4-curves.txt"
    if bench.args.again or not machine.exists():
        subprocess.run([bench.args.millstream, "lab", "calibrate", "--curves", "--seconds", "60" if bench.args.full else "30", "--output", str(machine)], check=True, stdout=subprocess.DEVNULL)
    batches, sub_batches = ([1, 8, 32, 64, 128, 256], [1, 2, 4, 8, 16, 32, 64]) if bench.args.full else ([8, 32, 128], [1, 4, 16])
    few, many = (8, 14, 20), range(4, 25, 2)
    cases = [("l2", entries) for entries in sizes_of(bench, few, many)] + [("ndn", entries) for entries in sizes_of(bench, few[1:], many)]
    cases += [("ipv6", entries) for entries in ([1_000, 5_000, 20_000, 50_000, 100_000, 200_000] if bench.args.full else [200_000])]
    if not bench.routes:
        cases += [("ipv4", entries) for entries in ([1_000, 10_000, 50_000, 100_000, 250_000, 512_621] if bench.args.full else [512_621])]

    def measure(application, entries):
        said = bench.run("model", *bench.subject(application, entries), "--curves", machine, "--json")
        best = said["best"]
        searched = [(B, b) for B in batches for b in sub_batches if b <= B]
        chosen = (best["batch"], best["sub_batch"])
        forms = [chosen] + [point for point in searched if point != chosen]
        text = lambda B, b: f"batch={B},pattern=packets,fetch=nothing,trials=off" if b == 1 else f"batch={B},pattern=pipelined-groups,sub-batch={b},from=256,trials=off"
        found = bench.schedules(application, entries, [text(*form) for form in forms])
        rows = [dict(batch=B, sub_batch=b, **row) for (B, b), row in zip(forms, found["rows"])]
        return dict(packets=found["packets"], predicted=best, bound_by=said["bound_by"], rows=rows)

    for application, entries in cases:
        points(f"{application}, {entries}", lambda: measure(application, entries))
    rows, groups = [], []
    for name, found in points.known():
        chosen = found["rows"][0]
        fastest = max(found["rows"], key=lambda row: row["gain"] or 0)
        error = found["predicted"]["mpps"] / chosen["mpps"] - 1
        rows.append(dict(case=name, chosen=[chosen["batch"], chosen["sub_batch"]], fastest=[fastest["batch"], fastest["sub_batch"]], of_fastest=1 / (fastest["gain"] or 1), mpps=chosen["mpps"], predicted_mpps=found["predicted"]["mpps"], prediction_error=error, bound_by=found["bound_by"], searched=found["rows"]))
        groups.append((name, [(1 / (fastest["gain"] or 1), None)]))
    if rows:
        shares = [row["of_fastest"] for row in rows]
        rows.append(dict(case="all", points=len(rows), within_3_percent=sum(share >= 0.97 for share in shares) / len(shares), worst=min(shares), median_prediction_error=statistics.median(abs(row["prediction_error"]) for row in rows)))
    return rows, bars("The model's choice beside an exhaustive search", "packets per second, over the fastest form's", groups, ["the model's choice"])


def curves(title, what, lines):
    """Lines over the logarithm of a number."""
    highest = 1.08 * max((y for points in lines.values() for _, y in points), default=1)
    longest = max([1, *(math.log2(x) for points in lines.values() for x, _ in points)])
    picture = Picture(title, f"million packets per second by {what}", highest)
    for number, (name, points) in enumerate(lines.items()):
        picture.line([(math.log2(x), y) for x, y in points], COLOURS[number % len(COLOURS)], longest)
        x, y = points[-1]
        picture.text(LEFT + math.log2(x) / longest * (WIDTH - 10 - LEFT), picture.y(y) - 4, name, "end")
    for x in sorted({x for points in lines.values() for x, _ in points}):
        picture.text(LEFT + math.log2(x) / longest * (WIDTH - 10 - LEFT), HEIGHT - BOTTOM + 16, f"{x}")
    return picture.done()


class Points:
    """Points of a part: those of the file, and those that are measured now."""

    def __init__(self, bench, part):
        self.bench, self.path = bench, bench.args.output / f"p4-{part}.json"
        self.figures = record.head(f"bench/p4.py --parts {part}" + (" --full" if bench.args.full else ""))
        self.figures.update(settings=bench.settings, points={})
        if self.path.exists() and not bench.args.again:
            before = json.loads(self.path.read_text())
            if before.get("settings") == bench.settings:
                self.figures["points"] = before["points"]

    def __call__(self, name, measure):
        """Measures a point unless it is known."""
        if name not in self.figures["points"]:
            print(f"{self.path.stem}: {name}", file=sys.stderr)
            self.figures["points"][name] = measure()
            record.write(self.path, self.figures)

    def known(self):
        return self.figures["points"].items()


PARTS = {"figure-4": figure_4, "figure-5": figure_5, "figure-6": figure_6, "figure-7": figure_7, "figure-8": figure_8, "latency": latency, "trie": trie, "model": model}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--routes", type=pathlib.Path)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench/results"))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--flows", type=int, default=1 << 20)
    parser.add_argument("--largest", type=int, default=1 << 24)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    unknown = [part for part in args.parts.split(",") if part not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, pathlib.Path(folder))
        for part in args.parts.split(","):
            points = Points(bench, part)
            rows, picture = PARTS[part](bench, points)
            record.write(points.path, {**points.figures, "figures": rows})
            points.path.with_suffix(".svg").write_text(picture)
            print(points.path)


if __name__ == "__main__":
    main()
