"""The figures of PacketMill's evaluation (ASPLOS'21, section 4) with ours beside them; `bench/plots.py` writes them.

Each function reads result files by `load` and gives rows and a plot. Ours are held against FastClick on this machine where the paper holds PacketMill against it: ratios
stand beside ratios. The paper's values: medians of the five runs in its repository's `paper-results`, of Table 1 from its text.
"""

import statistics

from axes import COLOURS, Picture, bars, labels

# Millions of packets per second at 3 GHz.
TABLE_1 = {"vanilla": 8.66, "devirtualised": 9.05, "constants": 9.12, "static graph": 10.16, "all": 10.41}
# Millions of packets per second offered, microseconds of the 99th percentile, at 2.3 GHz.
FIGURE_1 = {
    "FastClick": [(1.26, 74), (2.53, 60.5), (3.79, 184), (5.03, 328.75), (6.01, 360.5), (6.17, 455.25)],
    "PacketMill": [(1.26, 64), (2.53, 48.75), (3.8, 45.25), (5.05, 56.75), (6.29, 161.25), (7.61, 236), (8.83, 288.25), (9.97, 321.25), (10.46, 347.75)],
}
# Forwarding at 2.2 GHz.
FIGURE_5 = {"copy": 7.72, "overlay": 8.81, "exchange": 10.25}
# The router, by bytes of packets: FastClick, PacketMill. Those of 256 bytes and 1,024 stand for its 192 and 1,088.
FIGURE_6 = {64: (8.52, 12.88), 256: (8.51, 13.04), 1024: (8.48, 10.14), 1472: (7.82, 7.83)}
# At 2.2 GHz: FastClick, PacketMill.
FIGURE_8 = (4.87, 5.95)
# By cores.
FIGURE_10 = {1: (2.96, 3.62), 2: (5.76, 6.94)}
# Forwarding 64 bytes at 1.2 GHz.
FIGURE_11 = {"FastClick": 8.32, "overlay": 17.26, "l2fwd": 14.05}

# Sides of our Table 1, as `bench/optimisations.py` names them. Nothing is virtual here that could be devirtualised.
STAGES = {"vanilla": "general", "devirtualised": None, "constants": "only constants", "static graph": "only static-graph", "all": "all"}
ROUTER = "router, one route"


def row(document, name):
    """The case of this name."""
    found = next((r for r in document["cases"] if r["case"] == name), None)
    if found is None:
        raise FileNotFoundError(2, "not measured", f"the case `{name}`")
    return found


def mpps(ns):
    return None if ns is None else 1e3 / ns


def latency(load):
    """Loads over what the general side does at most, latencies over its at the lowest load: so knees stand beside knees."""
    found = load("userspace-latency")["sides"]
    sides = {f"ours, {name}": [(r["offered_mpps"], r["p99_ns"] / 1e3) for r in rows if "p99_ns" in r] for name, rows in found.items()}
    most = max(r.get("achieved_mpps") or r["done_mpps"] for r in found["general"])
    scale = {name: (most, sides["ours, general"][0][1]) for name in sides}
    for name, points in FIGURE_1.items():
        sides[f"the paper's {name}"] = points
        scale[f"the paper's {name}"] = (FIGURE_1["FastClick"][-1][0], FIGURE_1["FastClick"][0][1])
    relative = {name: [(x / scale[name][0], y / scale[name][1]) for x, y in points] for name, points in sides.items()}
    rows = [
        dict(side=name, offered_mpps=x, p99_us=y, load=rx, latency=ry)
        for name, points in sides.items() for (x, y), (rx, ry) in zip(points, relative[name])
    ]
    longest = max(x for points in relative.values() for x, _ in points)
    # Beyond the knee a full ring is all there is to see.
    highest = 1.08 * max(y for name, points in relative.items() if name.startswith("the paper") for _, y in points)
    unit = "99th percentile over that of the general form at its lowest load, by offered load over what that form does at most"
    picture = Picture("Figure 1: latency by offered load, the router", unit, highest)
    for (name, points), colour in zip(relative.items(), COLOURS):
        picture.line([(x, min(y, highest)) for x, y in points], colour, longest)
    labels(picture, longest, "{:.1f}")
    picture.legend(list(relative), False)
    return rows, picture.done()


def stages(load):
    """Table 1: what a framework may know, one by one."""
    variants = load("userspace-code")["cases"][ROUTER]
    rows, groups = [], []
    for stage, name in STAGES.items():
        side = variants.get(name, {}) if name else {}
        gain = side and variants["general"]["ns"] / side["ns"]
        paper = TABLE_1[stage] / TABLE_1["vanilla"]
        rows.append(dict(stage=stage, instructions=side.get("instructions"), mpps=side.get("mpps"), gain=gain or None, paper_mpps=TABLE_1[stage], paper_gain=paper))
        groups.append((stage, [(gain or None, paper)]))
    title = "Table 1: what the compiler may know of the configuration, one by one (router)"
    return rows, bars(title, "packets per second, over those of the general form", groups, ["ours"])


def ablation(load):
    """Each of our optimisations left out by itself."""
    rows, groups, names = [], [], []
    for case, variants in load("userspace-code")["cases"].items():
        whole, pairs = variants["all"], []
        for name, side in variants.items():
            more = side["instructions"] - whole["instructions"] if side["instructions"] and whole["instructions"] else None
            rows.append(dict(case=case, variant=name, more_instructions=more, time=side["program_ns"] / whole["program_ns"], **side))
            if name.startswith("without ") and "," not in name:
                pairs.append((side["program_ns"] / whole["program_ns"], None))
                names += [name] if name not in names else []
        groups.append((case, pairs))
    return rows, bars("Each optimisation left out by itself: time in the program", "over that with all of them", groups, names)


def metadata(load):
    """Figure 5: whose descriptors a driver fills in."""
    found = row(load("dpdk"), "mirror")["mpps"]
    rows, groups = [], []
    for model, paper in FIGURE_5.items():
        ours = found.get(model)
        gain = ours and ours / found["copy"]
        rows.append(dict(model=model, mpps=ours, gain=gain, paper_mpps=paper, paper_gain=paper / FIGURE_5["copy"]))
        groups.append((model, [(gain, paper / FIGURE_5["copy"])]))
    return rows, bars("Figure 5: metadata models, forwarding on DPDK's virtual devices", "packets per second, over those of copying", groups, ["ours"])


def sizes(load):
    found = load("userspace")
    rows, groups = [], []
    for size, (vanilla, paper) in FIGURE_6.items():
        case = row(found, ROUTER if size == 64 else f"router, {size:,} bytes")
        ns, ratio = case["ns"], case["ratio"]
        rows.append(dict(bytes=size, ours_mpps=mpps(ns["ours"]), peer_mpps=mpps(ns.get("peer")), ratio=ratio, paper_mpps=[vanilla, paper], paper_ratio=paper / vanilla))
        groups.append((f"{size} bytes", [(ratio, paper / vanilla)]))
    return rows, bars("Figure 6: the router by size of packets", "packets per second, over FastClick's", groups, ["ours"])


def works(found):
    """Rows of `WorkPackage`: megabytes, reads, numbers, and the case."""
    for case in found["cases"]:
        if case["case"].startswith("work, "):
            _, memory, _, reads, _, numbers = case["case"].removeprefix("work, ").split()
            yield int(memory), int(reads), int(numbers), case


def work(load):
    rows, groups = [], {}
    for memory, reads, numbers, case in works(load("userspace")):
        ns = case["ns"]
        rows.append(dict(megabytes=memory, reads=reads, numbers=numbers, ours_mpps=mpps(ns["ours"]), peer_mpps=mpps(ns.get("peer")), ratio=case["ratio"]))
        if numbers in (0, 20) and memory in (1, 16):
            groups.setdefault(f"{reads} reads, {numbers} numbers", []).append((case["ratio"], None))
    if not groups:
        row(load("userspace"), "work, S 1 N 1 W 0")
    title = "Figure 7: memory and computing (the paper: gains shrink the more there is of either)"
    return rows, bars(title, "packets per second, over FastClick's", list(groups.items()), ["1 MB", "16 MB"])


def memory(load):
    """Figure 9: one read, four numbers, by the size of what is read."""
    chosen = sorted((m, case) for m, reads, numbers, case in works(load("userspace")) if (reads, numbers) == (1, 4))
    if not chosen:
        row(load("userspace"), "work, S 1 N 1 W 4")
    rows = [dict(megabytes=m, ours_mpps=mpps(case["ns"]["ours"]), peer_mpps=mpps(case["ns"].get("peer")), ratio=case["ratio"]) for m, case in chosen]
    groups = [(f"{r['megabytes']} MB", [(r["ours_mpps"], None), (r["peer_mpps"], None)]) for r in rows]
    return rows, bars("Figure 9: one read in a memory of so many megabytes, four random numbers", "million packets per second", groups, ["ours", "FastClick"])


def ids(load):
    case = row(load("userspace"), "IDS and router")
    ns, paper = case["ns"], FIGURE_8[1] / FIGURE_8[0]
    rows = [dict(ours_mpps=mpps(ns["ours"]), peer_mpps=mpps(ns.get("peer")), ratio=case["ratio"], ratio_net=case["ratio_net"], paper_mpps=list(FIGURE_8), paper_ratio=paper)]
    groups = [("IDS and router", [(case["ratio"], paper)]), ("I/O deducted", [(case["ratio_net"], None)])]
    return rows, bars("Figure 8: IDS and router", "packets per second, over FastClick's", groups, ["ours"])


def cores(load):
    case = row(load("userspace"), "NAT on 1 and 2 cores")
    rows, groups = [], []
    for number, (vanilla, paper) in FIGURE_10.items():
        ours, peer = (mpps(case["ns"].get(f"{side}, {number}")) for side in ("ours", "peer"))
        rows.append(dict(cores=number, ours_mpps=ours, peer_mpps=peer, paper_mpps=[vanilla, paper]))
        groups.append((f"{number} cores", [(ours, paper), (peer, vanilla)]))
    return rows, bars("Figure 10: NAT", "million packets per second", groups, ["ours (the paper: PacketMill)", "FastClick"])


def frameworks(load):
    """Figure 11: others that forward, on the same devices."""
    found = row(load("dpdk"), "mirror")["mpps"]
    rows = [dict(side=side, mpps=value, paper_mpps=FIGURE_11.get(side)) for side, value in found.items()]
    scale = found.get("FastClick") and found["FastClick"] / FIGURE_11["FastClick"]
    groups = [(r["side"], [(r["mpps"], scale and r["paper_mpps"] and r["paper_mpps"] * scale)]) for r in rows]
    title = "Figure 11: forwarding by others (the paper's, its FastClick as fast as ours; `overlay` is ours, there PacketMill)"
    return rows, bars(title, "million packets per second of the worker's processor", groups, ["here"])


FIGURES = {
    "figure-1": latency,
    "table-1": stages,
    "ablation": ablation,
    "figure-5": metadata,
    "figure-6": sizes,
    "figure-7": work,
    "figure-8": ids,
    "figure-9": memory,
    "figure-10": cores,
    "figure-11": frameworks,
}
