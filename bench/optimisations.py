#!/usr/bin/env python3
"""What each optimisation of configurations is worth: PacketMill's Table 1 and Figure 1 on our compiler, and each of ours left out by itself.

    bench/optimisations.py [--millstream PATH] [--case NAME ...] [--rounds N] [--each-pass] [--code FILE] [--latency FILE]

The configurations of userspace.py, packets of 64 bytes from memory, one worker, as they are and with `--without` one optimisation at a time; `general` is
without the three that a framework cannot have which reads configurations at run time, `only` with one of these. Instructions are those of a packet in the program, counted by callgrind (of
`millstream bench-user`; left out where there is none); times are of runs by turns, in random order, medians over rounds: `ns` a packet with copying in
and out, `program_ns` in the program. `templates` has every table by another template than the one that is chosen. With --each-pass the instructions without
each single pass on the IR, too. `compile` is how long code takes that is made: a router of 40 elements, in process and ahead of time.

--latency has latency by offered load (Figure 1) of the router with one route: as it is, and `general`, by `millstream bench-user`.
"""
import argparse, json, pathlib, random, statistics, subprocess, sys, tempfile, time

import record
import userspace

GENERAL = "static-graph,constants,annotations"
LEFT_OUT = ["static-graph", "constants", "annotations", "passes", "llvm-passes", "passes,llvm-passes", "header-prefetch", "table-prefetch", "lookups"]
# Of the three, one at a time.
ONLY = {what: ",".join(other for other in GENERAL.split(",") if other != what) for what in GENERAL.split(",")}
# Another template for a table than the one it has.
OTHERS = {
    "multibit": "lengths", "packed": "lengths", "lengths": "multibit", "cuckoo": "open", "open": "cuckoo", "robin-hood": "open",
    "open-keys": "open", "robin-hood-keys": "robin-hood", "cuckoo-keys": "cuckoo",
    "open-slots": "open", "robin-hood-slots": "robin-hood", "cuckoo-slots": "cuckoo",
    "linear": "tree", "tree": "linear", "tuples": "tree",
}
FRAMES, BATCH = 1024, 64
LOADS = "10,20,30,40,50,60,70,80,90,95,100,110,130"
COMPILED = pathlib.Path(__file__).parent / "click" / "router.click"


def run(command):
    """A command's report."""
    done = subprocess.run(["taskset", "-c", "1", *map(str, command)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Configuration:
    """A case, with its packets."""

    def __init__(self, args, folder, name, graph, count, address, size=64):
        self.args, self.name, self.count = args, name, count
        stem = name.replace(" ", "_").replace(",", "")
        self.conf, self.trace = folder / f"{stem}.click", folder / f"{stem}.pcap"
        self.conf.write_text(userspace.filled(graph, "FromDevice(in)", "ToDPDKDevice(out)"))
        # Without the bytes in front that graphs of userspace.py strip.
        userspace.capture(self.trace, [frame[16:] for frame in userspace.frames(count, address, size)])

    def packets(self, flags):
        """What a run of packets says."""
        count = max(1, self.args.packets // self.count) * self.count
        command = [self.args.millstream, "click", self.conf, "--io", f"in=pcap:{self.trace}", "--packets", count, "--schedule", f"batch={BATCH}", "--json"]
        return run(command + flags)

    def instructions(self, flags):
        """Of a packet in the program; none without callgrind."""
        command = [self.args.millstream, "bench-user", self.conf, "--pcap", self.trace, "--schedule", f"batch={BATCH}", "--parts", "instructions", "--json"]
        return run(command + flags).get("instructions_per_packet")

    def latency(self, flags):
        command = [self.args.millstream, "bench-user", self.conf, "--pcap", self.trace, "--parts", "latency", "--loads", LOADS]
        return run([*command, "--seconds", self.args.seconds, "--schedule", "batch=32", "--json", *flags])["by_load"]

    def variants(self):
        """Names and flags."""
        found = {"all": [], "general": ["--without", GENERAL]} | {f"only {what}": ["--without", others] for what, others in ONLY.items()}
        found |= {f"without {what}": ["--without", what] for what in LEFT_OUT}
        chosen = self.packets([])["templates"]
        others = [f"--template={row['table']}={OTHERS[row['template']]}" for row in chosen if row["template"] in OTHERS]
        return found | ({"other templates": others} if others else {})


def measure(args, case):
    """A row for each variant."""
    variants = case.variants()
    times = {name: [] for name in variants}
    for _ in range(args.rounds):
        for name in random.sample(list(variants), len(variants)):
            report = case.packets(variants[name])
            times[name].append((1e3 / report["mpps"], report["ns_per_packet"], report["sent"]))
    rows = {}
    for name, flags in variants.items():
        ns, program, sent = zip(*times[name])
        ns, program = statistics.median(ns), statistics.median(program)
        # Whatever is left out, a program does the same.
        if set(sent) != {times["all"][0][2]}:
            sys.exit(f"{case.name}, {name}: sends {set(sent)} packets, not {times['all'][0][2]}")
        rows[name] = {"instructions": case.instructions(flags), "ns": round(ns, 2), "program_ns": round(program, 2), "mpps": round(1e3 / ns, 2)}
        print(case.name, name, json.dumps(rows[name]), file=sys.stderr)
    return rows


def passes(millstream):
    """Names of passes on the IR."""
    said = subprocess.run([str(millstream), "opt", "--list-passes", "--json"], capture_output=True, text=True, check=True).stdout
    return [row["name"] for row in json.loads(said)["passes"]]


def each_pass(args, case):
    """Instructions without each pass that makes a difference."""
    whole, found = case.instructions([]), {}
    for name in passes(args.millstream):
        command = [args.millstream, "click", case.conf, "--packets", 1, "--without", name]
        if subprocess.run([*map(str, command)], capture_output=True).returncode == 0:
            without = case.instructions(["--without", name])
            if without != whole:
                found[name] = without
    return found


def compiled(args, folder):
    """Milliseconds until code runs, and seconds until an executable is there."""
    (folder / "empty").mkdir()
    trace = folder / "compiled.pcap"
    userspace.capture(trace, [bytes(60)])
    graph = [COMPILED, f"IN={trace}", f"DIR={folder / 'empty'}"]
    inside, ahead = [], []
    for _ in range(args.rounds):
        inside.append(run([args.millstream, "click", *graph, "--json"])["compiled"]["total_ms"])
        start = time.monotonic()
        subprocess.run([*map(str, [args.millstream, "build", *graph, "-o", folder / "built"])], check=True, capture_output=True)
        ahead.append(time.monotonic() - start)
    return {"configuration": COMPILED.name, "in_process_ms": round(statistics.median(inside), 1), "ahead_of_time_s": round(statistics.median(ahead), 2)}


def latencies(args, case):
    """Medians over rounds of each load."""
    found = {}
    variants = {"all": [], "general": ["--without", GENERAL]}
    rounds = {name: [] for name in variants}
    for _ in range(args.rounds):
        for name in random.sample(list(variants), len(variants)):
            rounds[name].append(case.latency(variants[name]))
    for name, all_rounds in rounds.items():
        found[name] = [
            {key: statistics.median(row[key] for row in rows) for key in rows[0] if all(row[key] is not None for row in rows)}
            for rows in zip(*all_rounds)
        ]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--case", action="append", help="cases whose names begin so; the five of 64 bytes without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packets", type=int, default=3_000_000)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each load")
    parser.add_argument("--each-pass", action="store_true")
    parser.add_argument("--code", type=pathlib.Path)
    parser.add_argument("--latency", type=pathlib.Path)
    args = parser.parse_args()
    args.routes = None
    wanted = args.case or ["mirror", "router, one route", "router, 500 routes", "IDS and router", "NAT"]
    head = {**record.head("bench/optimisations.py"), "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        chosen = [case for case in userspace.cases(args) if any(case[0].startswith(name) for name in wanted)]
        made = [Configuration(args, folder, *case) for case in chosen]
        if args.code or not args.latency:
            found = {case.name: measure(args, case) for case in made}
            code = {**head, "packets": args.packets, "cases": found, "compile": compiled(args, folder)}
            if args.each_pass:
                code["instructions_without_pass"] = {case.name: each_pass(args, case) for case in made}
            record.keep(code, args.code)
        if args.latency:
            router = next((case for case in made if case.name == "router, one route"), made[0])
            record.keep({**head, "case": router.name, "seconds": args.seconds, "batch": 32, "sides": latencies(args, router)}, args.latency)


if __name__ == "__main__":
    main()
