#!/usr/bin/env python3
"""The figures of Morpheus's evaluation (ASPLOS'22, section 6) and of PacketMill's (ASPLOS'21, section 4) with ours beside them.

    bench/plots.py [DIRECTORY]

Reads the files that `bench/run.sh specialize`, `userspace` and `dpdk` write (bench/results unless said), and writes for each figure there are results
for a data file, morpheus-NAME.json or packetmill-NAME.json, in which our values stand beside the paper's, and a plot of it. PacketMill's are in packetmill.py.

Morpheus's values: throughput is that of its repository's results, relative to its baseline; the rest is from its text (6.1 to 6.3, Table 3).
Where its text gives a range for all programs, the range is given. It has no number for what is left out.
"""

import json
import pathlib
import statistics
import sys

import packetmill
from axes import COLOURS, Picture, bars, labels

PLANES = ["router", "switch", "firewall", "nat", "balancer"]
# Packets a second over the baseline's, at high, low and no locality. The balancer is Katran, the firewall BPF-iptables.
THROUGHPUT = {
    "router": [1.94, 1.77, 1.10],
    "switch": [1.53, 1.16, 1.14],
    "firewall": [1.38, 1.32, 1.31],
    "nat": [1.05, 0.94, None],
    "balancer": [1.26, 1.21, 1.11],
}
LOCALITIES = ["high", "low", "none"]
# Milliseconds, best and worst case: t1 + t2, and injection.
TABLE_3 = {
    "switch": ([81 + 62, 140 + 78], [0.5, 0.9]),
    "router": ([87 + 65, 196 + 91], [1.1, 1.3]),
    "firewall": ([95 + 62, 105 + 87], [0.6, 0.5]),
    "balancer": ([287 + 115, 569 + 151], [3.4, 6.1]),
}
# Per cent of throughput: recording all lookups, and as it is adapted.
RECORDING = {"all lookups": [14, 23], "adaptive": [0.9, 9]}


class Points:
    """What `specialize-throughput.json` has."""

    def __init__(self, figures):
        self.figures = figures
        self.programs = [p for p in PLANES if any(f["program"] == p for f in figures)]

    def at(self, program, locality, knows="tables_and_traffic"):
        found = [f for f in self.figures if (f["program"], f["locality"], f["knows"]) == (program, locality, knows)]
        return found[0] if found else None


def gain(point):
    """Packets a second over the original's: 1 where the session left the original at work."""
    if point is None:
        return None
    return 1 / point["times"]["plain"]["ratio"] if point["times"] else 1.0


def throughput(read):
    points = Points(read("specialize-throughput"))
    rows, groups = [], []
    for program in points.programs:
        pairs = []
        for locality, paper in zip(LOCALITIES, THROUGHPUT[program]):
            point = points.at(program, locality)
            net = point and point["times"] and point["times"]["program_time"]["ratio"]
            rows.append(dict(program=program, locality=locality, knows="tables_and_traffic", gain=gain(point), program_time=net, paper=paper))
            pairs.append((gain(point), paper))
        point = points.at(program, "high", "tables")
        # "while it falls back to ESwitch for uniform traffic"
        rows.append(dict(program=program, locality="high", knows="tables", gain=gain(point), paper=THROUGHPUT[program][2]))
        pairs.append((gain(point), THROUGHPUT[program][2]))
        groups.append((program, pairs))
    title = "Figure 4: throughput by locality"
    return rows, bars(title, "packets per second, over the original's", groups, [*LOCALITIES, "tables only (as ESwitch)"])


def code(read):
    points = Points(read("specialize-throughput"))
    kinds = {
        "instructions": lambda c: c["counted"]["executed"],
        "branches": lambda c: c["counted"]["branches"],
        "map calls": lambda c: c["counted"]["map_calls"],
        "machine code": lambda c: c["jited_bytes"],
    }
    rows, groups = [], []
    for program in points.programs:
        for locality in ("high", "none"):
            point = points.at(program, locality)
            if point is None or point["specialised"] is None:
                continue
            pairs = []
            for kind, of in kinds.items():
                before, after = of(point["original"]), of(point["specialised"])
                less = None if not before or after is None else 100 * (1 - after / before)
                rows.append(dict(program=program, locality=locality, of=kind, original=before, specialised=after, decrease_percent=less))
                # "halves the instructions and branches executed per packet", at high locality
                paper = 50 if locality == "high" and kind in ("instructions", "branches") else None
                pairs.append((less, paper))
            groups.append((f"{program}, {locality}", pairs))
    title = "Figure 5: what a packet executes"
    return rows, bars(title, "decrease in per cent (bytes of machine code: of the whole program)", groups, list(kinds))


def latency(read):
    figures = read("specialize-latency")
    rows, groups = [], []
    for figure in figures:
        pairs = []
        for case in ("best", "worst"):
            for side in ("original", "specialised"):
                found = figure[case] and figure[case][side]
                rows.append(dict(program=figure["program"], batch=figure["batch"], case=case, side=side, p50_ns=found and found["p50"], p99_ns=found and found["p99"]))
                pairs.append((found and found["p99"] / 1000, None))
        groups.append((f"{figure['program']} x{figure['batch']}", pairs))
    names = ["original", "specialised, best", "original, uniform traffic", "specialised, worst"]
    return rows, bars("Figure 6: latency, 99th percentile", "microseconds, the rig and the place in the batch (x1, x64) included", groups, names)


def recording(read):
    points = Points(read("specialize-throughput"))
    rows, groups = [], []
    for program in points.programs:
        point = points.at(program, "low") or points.at(program, "high")
        found = point and point["times"] and point["times"]["recording"]
        if found:
            cost = 100 * (1 - 1 / found["ratio"])
            rows.append(dict(program=program, locality=point["locality"], recording="all lookups", cost_percent=cost, paper=RECORDING["all lookups"]))
            groups.append((program, [(cost, sum(RECORDING["all lookups"]) / 2)]))
    adaptive = read("overhead", missing=None)
    if adaptive:
        cost = 100 * (1 - 1 / adaptive["ratio"]["ratio"])
        rows.append(dict(program="router", recording="adaptive", cost_percent=cost, paper=RECORDING["adaptive"]))
        groups.append(("router, in bursts", [(cost, sum(RECORDING["adaptive"]) / 2)]))
    title = "Figure 7: what writing lookups down costs"
    return rows, bars(title, "per cent of the packets per second; of the paper's ranges the middle", groups, ["ours"])


def times(read):
    points = Points(read("specialize-throughput"))
    rows, groups = [], []
    for program in points.programs:
        installs = {which: point["installs"] for which in ("high", "none") if (point := points.at(program, which))}
        paper = TABLE_3.get(program, ([None] * 2, [None] * 2))
        pairs = []
        for n, (which, case) in enumerate((("high", "best"), ("none", "worst"))):
            for part, parts, theirs in (("compile", ["compile_us"], paper[0][n]), ("install", ["load_us", "swap_us"], paper[1][n])):
                all_ms = sorted(sum(i[p] for p in parts) / 1000 for i in installs.get(which, []))
                ours = all_ms[len(all_ms) // 2] if all_ms else None
                rows.append(dict(program=program, locality=which, part=part, median_ms=ours, most_ms=all_ms[-1] if all_ms else None, paper_case=case, paper_ms=theirs))
                pairs.append((ours, theirs))
        groups.append((program, pairs))
    names = ["compile, high", "install, high", "compile, no locality", "install, no locality"]
    return rows, bars("Table 3: time to compile and to install", "milliseconds", groups, names)


def model(read):
    rows, groups = [], []
    for point in read("specialize-throughput"):
        found = [j for j in point["judged"] if j["gained_ns"] is not None and j["predicted_ns"] is not None]
        for judged in found[:1]:
            name = f"{point['program']}, {point['locality']}" + (" (tables)" if point["knows"] == "tables" else "")
            rows.append(dict(program=point["program"], locality=point["locality"], knows=point["knows"], outcome=judged["outcome"], gained_ns=judged["gained_ns"], predicted_ns=judged["predicted_ns"]))
            if point["knows"] != "tables":
                groups.append((name, [(judged["gained_ns"], None), (judged["predicted_ns"], None)]))
    title = "What variants of new shapes gain, as the judge measured it and as the model predicted it"
    return rows, bars(title, "nanoseconds per packet", groups, ["measured", "predicted"])


def over_time(read, name, what):
    figures = read(f"specialize-{name}")
    sides = {side: [(m["seconds"], m["pps"] / 1e6) for m in figures[side]] for side in ("original", "specialised")}
    rows = [dict(side=side, seconds=s, mpps=y) for side, points in sides.items() for s, y in points]
    longest = max((s for points in sides.values() for s, _ in points), default=1)
    picture = Picture(
        f"Figure {what}",
        f"million packets per second; {figures['each']:.0f} s each",
        1.08 * max((y for points in sides.values() for _, y in points), default=1),
    )
    for points, colour in zip(sides.values(), COLOURS):
        picture.line(points, colour, longest)
    labels(picture, longest, "{:.1f} s")
    picture.legend(list(sides), False)
    return rows, picture.done()


def paired(figure):
    """The median of the pairs' packets per second with a session, over those without."""
    return statistics.median(without / with_ for without, with_ in figure["pairs"])


def profiling(read):
    rows, groups = [], {}
    for point in read("specialize-profiling"):
        gain, pairs = paired(point), point["pairs"]
        rows.append(dict(program=point["program"], recorded_percent=point["recorded_percent"], gain=gain, pairs=len(pairs), low=min(a / b for a, b in pairs), high=max(a / b for a, b in pairs)))
        groups.setdefault(point["program"], []).append((gain, None))
    names = [f"{row['recorded_percent']:g} % recorded" for row in rows if row["program"] == rows[0]["program"]]
    title = "Figure 8: throughput by how much is recorded, low locality, without twins (the paper: best at 5 to 25 %)"
    return rows, bars(title, "packets per second, over the original's", list(groups.items()), names)


def cores(read):
    rows, groups = [], []
    for point in read("specialize-cores"):
        sides = [statistics.median(1e3 / pair[side] for pair in point["pairs"]) for side in (0, 1)]
        rows.append(dict(cores=point["cores"], original_mpps=sides[0], specialised_mpps=sides[1], gain=paired(point), pairs=len(point["pairs"])))
        groups.append((f"{point['cores']} cores", [(side, None) for side in sides]))
    return rows, bars("Figure 10: the router on several cores, low locality", "million packets per second", groups, ["original", "specialised"])


def churn(read):
    figure = read("specialize-churn")
    ratio = figure["ratio"]
    share = figure["deleted"] / 2 / figure["packets"]
    row = dict(connections=figure["connections"], forgotten_a_packet=share, time_ratio=ratio["ratio"], interval=ratio["interval"], generations=figure["generations"], paper=1 / 0.94)
    slices = [(str(n + 1), [(a, None), (b, None)]) for n, (a, b) in enumerate(figure["slices"])]
    title = f"Section 6.5: a NAT that forgets {share:.2f} connections a packet: {ratio['ratio']:.3f} of the time (the paper: 1 / 0.94, low locality)"
    return [row], bars(title, "nanoseconds per packet, slice by slice", slices, ["original", "with a session"])


FIGURES = {
    "figure-4": throughput,
    "figure-5": code,
    "figure-6": latency,
    "figure-7": recording,
    "figure-8": profiling,
    "table-3": times,
    "model": model,
    "figure-9a": lambda read: over_time(read, "over-time", "9a: throughput while all flows are alike, then some hot, then others"),
    "figure-9b": lambda read: over_time(read, "capture", "9b: throughput on a capture, part after part"),
    "figure-10": cores,
    "section-6.5": churn,
}


def write(directory, name, figure, source, environment=None):
    """Data and plot of a figure, if there are results for it; with where these are from, if that is noted."""
    if environment is not None:
        environment.clear()
    try:
        rows, picture = figure(source)
    except FileNotFoundError as error:
        print(f"{name}: {error.filename} is missing")
        return
    stem = directory / name
    stem.with_name(f"{name}.json").write_text(json.dumps(dict(schema=1, **({"environment": environment} if environment else {}), rows=rows), indent=1) + "\n")
    stem.with_name(f"{name}.svg").write_text(picture)
    print(f"{stem}.json, .svg")


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results")
    environment = {}

    def load(name):
        found = json.loads((directory / f"{name}.json").read_text())
        environment[name] = {key: found[key] for key in ("when", "kernel", "cpu", "cpus", "command") if key in found}
        return found

    def read(name, **otherwise):
        if not (directory / f"{name}.json").exists() and "missing" in otherwise:
            return otherwise["missing"]
        return load(name)["figures"]

    for name, figure in FIGURES.items():
        write(directory, f"morpheus-{name}", figure, read)
    for name, figure in packetmill.FIGURES.items():
        write(directory, f"packetmill-{name}", figure, load, environment)


if __name__ == "__main__":
    main()
