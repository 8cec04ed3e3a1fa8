#!/usr/bin/env python3
"""How far predicted cycles can be trusted: against an independent analyser of machine code, and against measured time.

usage: bench/cost.py PREDICT MILLSTREAM DIRECTORY... [--seconds N] [--goal GOAL] [--json FILE] [--rows FILE]

PREDICT is the example `predict` of millstream-lab (`cargo build --release -p millstream-lab --example predict`), MILLSTREAM the
command. Every object below the directories is optimized, and every program of both forms is predicted. llvm-mca (19) gets the machine code
that the kernel's JIT made, block by block, knowing nothing of BPF nor of our table; its cycles are weighted with the same
frequencies. XDP programs that can be repeated on one packet are measured beside one another, too.

Spearman and Pearson over programs, and over pairs (original, optimized) for the ratio of one to the other.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import record

ANALYSER = ["llvm-mca-19", "-mtriple=x86_64", "-json", "-skip-unsupported-instructions=any", "-call-latency=1"]
ASSEMBLER = ["llvm-mc-19", "--disassemble", "-triple=x86_64"]


def ranks(values):
    """Ranks from 1, ties shared."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out = [0.0] * len(values)
    i = 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in range(i, j + 1):
            out[order[k]] = (i + j) / 2 + 1
        i = j + 1
    return out


def pearson(xs, ys):
    n = len(xs)
    if n < 3:
        return None
    mx, my = sum(xs) / n, sum(ys) / n
    sxy = sum((x - mx) * (y - my) for x, y in zip(xs, ys))
    sxx, syy = sum((x - mx) ** 2 for x in xs), sum((y - my) ** 2 for y in ys)
    return None if sxx == 0 or syy == 0 else sxy / math.sqrt(sxx * syy)


def correlation(pairs):
    xs, ys = [p[0] for p in pairs], [p[1] for p in pairs]
    show = lambda v: None if v is None else round(v, 4)
    return {"n": len(pairs), "spearman": show(pearson(ranks(xs), ranks(ys))), "pearson": show(pearson(xs, ys))}


def disassembled(blocks):
    """The text of each block, from hexadecimal."""
    marked = "\n".join(" ".join(f"0x{b[i:i + 2]}" for i in range(0, len(b), 2)) + "\n0x0f 0x1f 0x80 0x78 0x56 0x34 0x12"
                       for b in blocks)
    done = subprocess.run(ASSEMBLER, input=marked, capture_output=True, text=True)
    texts, here = [], []
    for line in done.stdout.splitlines():
        # A no-op with a displacement that no JIT emits ends each block.
        if "305419896" in line:
            texts.append("\n".join(here))
            here = []
        elif line.strip() and not line.strip().startswith("."):
            here.append(line.strip())
    return texts


def analysed(blocks, cpu):
    """Cycles of each block: of one run by itself, and of one of many in a row."""
    codes = sorted({b for b in blocks if b})
    if not codes:
        return {"": (0.0, 0.0)}
    texts = disassembled(codes)
    if len(texts) != len(codes):
        raise RuntimeError(f"{len(texts)} of {len(codes)} blocks disassembled")
    text = "".join(f"# LLVM-MCA-BEGIN b{n}\n{t}\n# LLVM-MCA-END\n" for n, t in enumerate(texts))
    out = {"": (0.0, 0.0)}
    found = []
    for iterations in (1, 100):
        command = ANALYSER + [f"-mcpu={cpu}", f"-iterations={iterations}"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[0])
        regions = json.loads(done.stdout)["CodeRegions"]
        found.append({r["Name"]: r["SummaryView"]["TotalCycles"] / iterations for r in regions if "SummaryView" in r})
    for n, code in enumerate(codes):
        if f"b{n}" in found[0] and f"b{n}" in found[1]:
            out[code] = (found[0][f"b{n}"], found[1][f"b{n}"])
    return out


def mca(program, cycles, counts=None):
    """A program's cycles by the analyser: [by itself, in a row]; None if it did not take a block that runs."""
    total = [0.0, 0.0]
    for f, function in enumerate(program["functions"]):
        for b, block in enumerate(function["blocks"]):
            count = (block["count"] if counts is None else counts[f][b][0]) / 1024
            if count and block["code"] not in cycles:
                return None
            if count:
                total = [t + count * c for t, c in zip(total, cycles[block["code"]])]
    return total


def calls(program, counts=None):
    """Calls of helpers for one run."""
    return sum((block["count"] if counts is None else counts[f][b][0]) / 1024 * block["calls"]
               for f, function in enumerate(program["functions"]) for b, block in enumerate(function["blocks"]))


def plot(pairs, across, up, width=64, height=18):
    """Points as text, both axes logarithmic."""
    if not pairs:
        return "nothing to plot"
    logs = [(math.log(max(x, 1e-3)), math.log(max(y, 1e-3))) for x, y in pairs]
    low, high = ([f(p[i] for p in logs) for i in (0, 1)] for f in (min, max))
    field = [[" "] * width for _ in range(height)]
    for p in logs:
        at = [round((p[i] - low[i]) / ((high[i] - low[i]) or 1) * (n - 1)) for i, n in ((0, width), (1, height))]
        cell = field[height - 1 - at[1]]
        cell[at[0]] = {" ": ".", ".": "o"}.get(cell[at[0]], "O")
    span = lambda i: f"{math.exp(low[i]):.1f} to {math.exp(high[i]):.1f}"
    return "\n".join([f"{up}: {span(1)}"] + ["|" + "".join(row) for row in field]
                     + ["+" + "-" * width, f"{across}: {span(0)}"])


def optimized(millstream, objects, into, goal):
    """Objects with what `opt` makes of them: [(name, original, optimized)]."""
    out = []
    for name, path in objects:
        result = into / (re.sub(r"[^\w.-]", "_", name.removesuffix(".o")) + ".opt.o")
        command = [millstream, "opt", str(path), "-o", str(result)] + (["--goal", goal] if goal else [])
        if subprocess.run(command, capture_output=True, text=True).returncode == 0 and result.exists():
            out.append((name, path, result))
    return out


def predicted(predict, pairs, seconds=None):
    """What PREDICT says of programs, by (name of the object, program, whether optimized)."""
    names = {}
    for name, before, after in pairs:
        names[str(before)], names[str(after)] = (name, False), (name, True)
    command = [predict] + (["--seconds", str(seconds)] if seconds else []) + list(names)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, {}, [f"{pairs[0][0]}: {done.stderr.strip()}"]
    document = json.loads(done.stdout)
    found = {(*names[p["object"]], p["program"]): p for p in document["programs"]}
    left_out = []
    for at, why in document["left_out"]:
        path = at.rsplit(":", 1)[0]
        left_out.append(f"{names[path][0]}: {why.replace(path, names[path][0])}")
    return document, found, left_out


def static(args, pairs):
    """Programs against the analyser: one process an object, so that one that cannot be read does not matter to others."""
    rows, left_out = [], []
    for name, before, after in pairs:
        _, found, why = predicted(args.predict, [(name, before, after)])
        left_out += why
        blocks = [b["code"] for p in found.values() for f in p["functions"] for b in f["blocks"]]
        cycles = analysed(blocks, args.cpu)
        for (_, is_after, program), p in sorted(found.items()):
            by = mca(p, cycles)
            if by is None:
                left_out.append(f"{name}: {program}: the analyser does not know all its instructions")
                continue
            rows.append({"object": name, "program": program, "optimized": is_after, "slots": p["slots"],
                         "image": p["image"], "jited": p["jited"], "cycles": p["cycles"] / 1000,
                         "code_cycles": p["code_cycles"] / 1000, "mca": round(by[0], 2), "mca_in_a_row": round(by[1], 2), "calls": round(calls(p), 2)})
    return rows, left_out


def ratios(rows, key):
    """Optimized over original of those that differ."""
    by = {}
    for r in rows:
        by.setdefault((r["object"], r["program"]), {})[r["optimized"]] = r
    both = [(p[False], p[True]) for p in by.values() if len(p) == 2 and p[False][key] and p[False]["code_cycles"]]
    changed = [(a, b) for a, b in both if (a["slots"], a["image"]) != (b["slots"], b["image"])]
    return [(b["code_cycles"] / a["code_cycles"], b[key] / a[key]) for a, b in changed]


def measured(args, pairs):
    """XDP programs, on one packet, as many as fit beside one another."""
    document, found, left_out = predicted(args.predict, pairs, args.seconds)
    if document is None:
        return None, [], left_out
    rows = []
    for (name, is_after, program), p in sorted(found.items()):
        on = p["on_the_packet"]
        if on is None or on["ns"] is None:
            continue
        cycles = analysed([b["code"] for f in p["functions"] for b in f["blocks"]], args.cpu)
        by = mca(p, cycles, on["blocks"])
        rows.append({"object": name, "program": program, "optimized": is_after, "slots": p["slots"], "image": p["image"],
                     "cycles": on["cycles"] / 1000, "code_cycles": on["code_cycles"] / 1000, "ns": round(on["ns"], 3), "scatter_ns": round(on["scatter_ns"], 3),
                     "mca": by and round(by[0], 2), "mca_in_a_row": by and round(by[1], 2), "verdict": on["verdict"],
                     "calls": round(calls(p, on["blocks"]), 2)})
    about = {k: document[k] for k in ("environment", "empty_ns", "generations", "disturbed")}
    about["environment"] = {k: v for k, v in about["environment"].items() if k != "command"}
    return about, rows, left_out


def changes(rows):
    """Pairs whose times differ by more than either scatters: how the predicted change goes with the measured one."""
    by = {}
    for r in rows:
        by.setdefault((r["object"], r["program"]), {})[r["optimized"]] = r
    both = [(p[False], p[True]) for p in by.values() if len(p) == 2]
    told = [(a, b) for a, b in both if abs(b["ns"] - a["ns"]) > max(a["scatter_ns"], b["scatter_ns"])]
    moved = [(b["cycles"] - a["cycles"], b["ns"] - a["ns"]) for a, b in told]
    agree = sum((x < 0) == (y < 0) for x, y in moved if x != 0)
    return {"pairs": len(both), "differences": correlation(moved), "same_direction": agree,
            "of": sum(x != 0 for x, _ in moved)}


def fitted(pairs):
    """A straight line through points: slope, and the root of the mean square of what is off it."""
    n = len(pairs)
    mx, my = sum(p[0] for p in pairs) / n, sum(p[1] for p in pairs) / n
    sxx = sum((x - mx) ** 2 for x, _ in pairs) or 1
    slope = sum((x - mx) * (y - my) for x, y in pairs) / sxx
    off = [y - my - slope * (x - mx) for x, y in pairs]
    return round(slope, 4), round(math.sqrt(sum(o * o for o in off) / n), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("predict")
    parser.add_argument("millstream")
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=0, help="measure so long, too")
    parser.add_argument("--goal")
    parser.add_argument("--cpu", default="sapphirerapids", help="the analyser's model of the processor")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rows", type=pathlib.Path, help="the figures of each program, here")
    args = parser.parse_args()
    objects = [(f"{d.name}/{name}", path) for d in args.directories for name, path in record.objects(d)]
    with tempfile.TemporaryDirectory() as into:
        pairs = optimized(args.millstream, objects, pathlib.Path(into), args.goal)
        rows, left_out = static(args, pairs)
        timed = measured(args, [p for p in pairs if any(r["object"] == p[0] for r in rows)]) if args.seconds else None

    found = record.head(f"bench/cost.py PREDICT MILLSTREAM {' '.join(d.name for d in args.directories)}"
                        + (f" --seconds {args.seconds:g}" if args.seconds else "")
                        + (f" --goal {args.goal}" if args.goal else ""))
    bare = [r for r in rows if not r["calls"]]
    found["analyser"] = {"command": " ".join(ANALYSER + [f"-mcpu={args.cpu}"]), "programs": len(rows)}
    for key in ("mca", "mca_in_a_row"):
        found["analyser"][key] = {
            "programs": correlation([(r["code_cycles"], r[key]) for r in rows]),
            "programs_without_calls": correlation([(r["code_cycles"], r[key]) for r in bare]),
            "ratios_of_pairs": correlation(ratios(rows, key)),
            "ratios_of_pairs_without_calls": correlation(ratios(bare, key)),
        }
    found["bytes"] = correlation([(r["jited"], r["image"]) for r in rows])
    print(plot([(r["code_cycles"], r["mca"]) for r in rows], "predicted cycles without helpers", "llvm-mca"), file=sys.stderr)
    if timed and timed[1]:
        about, times, why = timed
        left_out += why
        quiet = [r for r in times if not r["calls"]]
        found["measured"] = about
        for name, some in (("programs", times), ("programs_without_calls", quiet)):
            found["measured"][name] = {"predicted": correlation([(r["cycles"], r["ns"]) for r in some])}
            for key in ("mca", "mca_in_a_row", "slots"):
                known = [r for r in some if r[key] is not None]
                found["measured"][name][key] = correlation([(r[key], r["ns"]) for r in known])
        found["measured"]["ns_a_cycle_and_error"] = fitted([(r["cycles"], r["ns"]) for r in times])
        found["measured"]["pairs_told_apart"] = changes(times)
        print(plot([(r["cycles"], r["ns"]) for r in times], "predicted cycles", "ns"), file=sys.stderr)
    found["left_out"] = sorted(set(left_out))
    record.keep(found, args.json)
    if args.rows:
        record.write(args.rows, {"programs": rows, "measured": timed[1] if timed else []})


if __name__ == "__main__":
    main()
