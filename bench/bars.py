#!/usr/bin/env python3
"""What the project says of itself, held against the recorded figures.

    bench/bars.py [DIRECTORY]

Reads the files that bench/run.sh writes (bench/results unless said) and prints one line for each bar: its name, the figure,
the bar, and whether it is met. A figure that is not there is said to be missing. Exit code 1 if a bar is not met, or a figure is missing.
"""

import json
import pathlib
import sys


class Results:
    """Files by name, without their ending."""

    def __init__(self, directory):
        self.directory = directory

    def __getitem__(self, name):
        return json.loads(pathlib.Path(self.directory, f"{name}.json").read_text())


def conformance(r):
    results = r["conformance"]["results"]
    return [
        (f"conformance, {way}", results[way]["passed"], ">= 300 of 313", results[way]["passed"] >= 300)
        for way in ("interpreter", "roundtrip", "terms")
    ]


def semantics(r):
    s = r["semantics"]
    figure = f"{s['instructions']} instructions, {s['operand_pairs_each']} pairs each, {s['different']} different"
    met = s["operand_pairs_each"] >= 1_000_000 and s["different"] == 0
    return [("terms against the kernel", figure, ">= 1000000 each, 0", met)]


def mutants(r):
    m = r["mutants"]
    figure = f"{m['mutants']}, {m['refuted']} refuted, {m['wrongly_proven']} wrongly proven"
    met = m["mutants"] >= 10_000 and m["wrongly_proven"] == m["counterexamples_that_do_not_replay"] == 0
    return [("mutants", figure, ">= 10000, 0 wrongly proven", met)]


def equivalence(r):
    for name in ("router", "switch", "firewall", "nat", "balancer"):
        e = r[f"equivalence-{name}"]
        share = e["blocks_reached"] / e["blocks"]
        yield (
            f"round trip and opt, {name}",
            f"{e['packets']} packets, {share:.1%} of the blocks, {e['differences']} differences",
            ">= 1000000, >= 90 %, 0",
            e["packets"] >= 1_000_000 and share >= 0.9 and e["differences"] == 0,
        )


def corpus(r):
    c = r["corpus"]
    for group, slots, jited in (("modern", 0.97, 0.98), ("old", 0.94, 0.96)):
        g = c["ratios"][group]
        if not g["slots"]:
            continue
        for field, median, worst in (("slots", slots, 1.0), ("jited", jited, 1.02), ("verified", 1.0, 2.0)):
            f = g[field]
            yield (
                f"corpus, {group}, {field}",
                f"median {f['median']:.3f}, worst {f['worst']:.3f} of {f['programs']}",
                f"<= {median:.2f}, <= {worst:.2f}",
                f["median"] <= median and f["worst"] <= worst,
            )
    # A program that was remade is optimized, in another way than the first that was tried.
    kept = {k: n for k, n in c["programs"].items() if k not in ("accepted", "remade")}
    kept |= {k: n for k, n in c["functions"].items() if k in ("no_gain", "unsupported", "rejected")}
    yield ("corpus, fallbacks", json.dumps(kept), "none", not kept)


def kernels(r):
    for kernel, k in r["corpus-kernels"]["kernels"].items():
        lost, grown, ratio = len(k["rejected_after"]), len(k["above_growth"]), k["verified_ratio"]
        yield (f"kernels, {kernel}, programs lost", f"{lost} of {k['programs_accepted_before']}", "0", lost == 0)
        yield (f"kernels, {kernel}, programs above 1.2", f"{grown} of {k['large_programs']}", "0", grown == 0)
        yield (f"kernels, {kernel}, verified instructions", f"{ratio}", "<= 1.00", ratio is not None and ratio <= 1)


def loaders(r):
    for name, counts in r["loaders"]["loaders"].items():
        yield (f"loads by {name} as before", f"{counts['before']}, lost {len(counts['lost'])}", "lost 0", not counts["lost"])


def compiler(r):
    c = r["compiler"]
    small, large = c["of_80_to_120_slots"], c["of_2000_to_5000_slots"]
    if small:
        figure = f"median {small['median_ms']:.1f} ms, worst {small['worst_ms']:.1f} ms"
        yield ("opt, about 100 slots", figure, "<= 20 ms", small["worst_ms"] <= 20)
    if large:
        yield ("opt, 2,000 to 5,000 slots", f"worst {large['worst_ms']:.0f} ms", "<= 500 ms", large["worst_ms"] <= 500)


def alike(r):
    for name in ("aa-test-run", "aa-live"):
        ratio = r[name]["report"]["sides"][1]["against_first"]
        said = ratio["verdict"]
        yield (f"a program against itself, {name[3:]}", said, "no difference", said == "no_difference_measurable")


def runs(r):
    for name in ("router", "switch", "firewall", "nat", "balancer"):
        run = r[f"run-{name}"]
        v = run["verification"]
        yield (
            f"{name} on live frames",
            f"{run['mpps']:.2f} Mpps, lost {run['lost']}, missing {v['missing']}, unexpected {v['unexpected']}",
            "0, 0, 0",
            run["lost"] == v["missing"] == v["unexpected"] == 0,
        )


def peers(r):
    for name in ("router", "router-fib", "switch", "firewall", "nat", "balancer"):
        p = r[f"peer-{name}"]
        yield (f"{p['plane']} by {p['peer']}", f"{p['net_ratio']:.2f}", f"<= {p['bar']:.2f}", p["net_ratio"] <= p["bar"])


def public(r):
    for locality, bar in (("high", 0.70), ("none", 0.85)):
        speed = r[f"public-balancer-{locality}"]["speed"]
        time = speed["program_time"]["ratio"] if speed else 1.0
        yield (f"katran specialised, {locality} locality, time", f"{time:.2f}", f"<= {bar:.2f}", time <= bar)


# Program time, specialised over original, at high, low and no locality.
TIMES = {
    "router": (0.25, 0.35, 0.50),
    "switch": (0.60, 0.75, 0.85),
    "firewall": (0.35, 0.40, 0.50),
    "nat": (0.85, 1.00, 1.01),
    "balancer": (0.50, 0.60, 0.75),
}
# The same for a router with the routes of the Internet.
INTERNET = (0.30, 0.25, 0.15)


def localities(r):
    for point in r["specialize-throughput"]["figures"]:
        program, size, locality = point["program"], point["size"], point["locality"]
        if point["knows"] != "tables_and_traffic":
            continue
        bars = INTERNET if program == "router" and size > 100_000 else TIMES[program]
        bar = bars[("high", "low", "none").index(locality)]
        # Without a variant it is the original that runs.
        time = point["times"]["program_time"] if point["times"] else {"ratio": 1.0, "interval": [1.0, 1.0]}
        figure = "{:.3f} ({:.3f} to {:.3f})".format(time["ratio"], *time["interval"])
        yield (f"{program} {size}, {locality} locality, time", figure, f"<= {bar:.2f}", time["ratio"] <= bar)


def responses(r):
    at = lambda all, part: sorted(all)[min(len(all) - 1, int(len(all) * part))]
    for point in r["specialize-responses"]["figures"]:
        what = f"{point['program']} {point['size']}"
        # In code that was made anew, or in a variant that stood by: either way the first packet finds what was written.
        if anew := point["specialised_us"] + point.get("stood_in_us", []):
            half, most = at(anew, 0.5) / 1e3, at(anew, 0.99) / 1e3
            yield (f"{what}, a write into what is in code", f"{half:.1f} ms, p99 {most:.1f} ms of {len(anew)}", "<= 10 ms, <= 30 ms", half <= 10 and most <= 30)
        if twins := point["in_step_us"]:
            half, most = at(twins, 0.5) / 1e3, at(twins, 0.99) / 1e3
            yield (f"{what}, a write into a twin", f"{half:.2f} ms, p99 {most:.2f} ms of {len(twins)}", "p99 <= 1 ms", most <= 1)
        if new := point["new_shapes_ms"] + point.get("standby_ms", []):
            yield (f"{what}, a new shape, judged first", f"worst {max(new)} ms of {len(new)}", "<= 2000 ms", max(new) <= 2000)


def demo(r):
    d = r["demo"]
    # Schema 1 had other names.
    few, far = d.get("paced_updates") or d["few"], d.get("peer") or d["far_end"]
    for when, speed in (("", d["before"]), (", other flows", d["after"])):
        time, plain = speed["program_time"]["ratio"], 1 / speed["plain"]["ratio"]
        yield (f"specialised router, time{when}", f"{time:.3f}", "<= 0.333", time <= 1 / 3)
        yield (f"specialised router, rate{when}", f"{plain:.2f} x", ">= 1.40 x", plain >= 1.4)
    latency = sorted(d["latencies_ms"])[len(d["latencies_ms"]) // 2]
    share = few["specialised"] / max(few["packets"], 1)
    yield ("from a write to specialised code", f"{latency:.1f} ms", "<= 20 ms", latency <= 20)
    yield ("in specialised code at 10 updates/s", f"{share:.1%}", ">= 90 %", share >= 0.9)
    updates = few["updates"] + d.get("burst_updates", d.get("many"))
    yield ("stale in the demo", f"{far['stale']} after {updates} updates, {d['lost']} lost", "0, 0", far["stale"] == d["lost"] == 0)


def updates(r):
    for name, least in (("flood", 1_000_000), ("twins", 10_000), ("code", 10_000), ("ten-a-second", 2_000)):
        u = r[f"updates-{name}"]["figures"]
        yield (
            f"stale, updates-{name}",
            f"{u['far_end']['stale']} after {u['updates']} updates, {u['lost']} lost",
            f"0, 0 of {least}",
            u["far_end"]["stale"] == 0 and u["lost"] == 0 and u["updates"] >= least,
        )
    # The last of them: ten a second.
    yield ("specialised, updates-ten-a-second", f"{u['specialised']:.1%}", ">= 90 %", u["specialised"] >= 0.9)


def swaps(r):
    s = r["swaps"]["figures"]
    yield ("lost in swaps", f"{s['lost']} in {s['swaps']} swaps", "0 in 10000", s["lost"] == 0 and s["swaps"] >= 10_000)


def shadow(r):
    planes = r["shadow"]["figures"]
    packets, differences = sum(p["packets"] for p in planes), sum(p["differences"] for p in planes)
    met = packets >= 100_000_000 and differences == 0 and len(planes) == 5
    yield ("shadow mode, five programs", f"{packets} packets, {differences} differences", ">= 100000000, 0", met)


def shifts(r):
    s = r["shifts"]["figures"]
    worst = max(s["noticed_ms"])
    met = worst <= 500 and s["shifts"] >= 20
    yield ("shifts of hot flows noticed", f"worst {worst:.0f} ms of {s['shifts']}", "<= 500 ms", met)


def slower(r):
    scenarios = r["slower"]["figures"]
    is_slower = lambda m: m is not None and m["verdict"] == "slower"
    found = sum(is_slower(s["ratio"]) and is_slower(s["again"]) for s in scenarios)
    measured = sum(s["installed"] for s in scenarios)
    figure = f"{found} of {len(scenarios)} scenarios, {measured} with a variant at the end"
    yield ("never slower", figure, "0 of 200", found == 0 and len(scenarios) >= 200)


def offers(r):
    found = [o for o in r["offers"]["figures"] if o["unjudged"] and o["unjudged"]["ratio"] <= 0.9]
    soon = sum(o["at_work"] and o["installed_after_s"] <= 2 for o in found)
    figure = f"{soon} of {len(found)} that gain a tenth, of {len(r['offers']['figures'])} scenarios"
    yield ("what gains is installed within 2 s", figure, ">= 80 % of 50", len(found) >= 50 and soon >= 0.8 * len(found))


def overhead(r):
    o = r["overhead"]["figures"]
    ratio, (low, high) = o["ratio"]["ratio"], o["ratio"]["interval"]
    # In turn, with and without, the machine's drift hides what so little costs: the interval says so. What it is made of is known.
    turns = f"{ratio - 1:.2%} in turn ({low - 1:.2%} to {high - 1:.2%})"
    yield ("cost of looking after a variant", f"{o['accounted']:.2%}, {o['elsewhere']:.2%} of packets; {turns}", "<= 0.5 %", o["accounted"] <= 0.005)


def daemon(r):
    d = r["daemon-cost"]
    own = (d["anonymous_bytes"] + d["file_bytes"]) / 2**20
    yield ("daemon, steady, processor", f"{d['cpu_share']:.2%} of a core over {d['seconds']} s", "<= 3 %", d["cpu_share"] <= 0.03)
    yield ("daemon, memory beside the twins", f"{own:.0f} MiB, {d['anonymous_bytes'] / 2**20:.0f} of them its own data", "<= 64 MiB", own <= 64)


def attacks(r):
    for found in r["attacks"]["figures"]:
        at_once, later = found["at_once_ratio"]["ratio"], found["later_ratio"]["ratio"]
        figure = f"{at_once:.2f} in the first {found['slice_s']:.0f} s, after five {later:.2f}"
        yield (f"attack by {found['attack']}, time", figure, "after five <= 1.05", later <= 1.05)


def kills(r):
    for name, what, least in (("kills", "kills", 0), ("kill-steps", "kills after each step", 300)):
        k = r[name]
        met = k["lost"] == k["far_end"]["stale"] == 0 and k["kills"] >= least
        yield (f"lost and stale in {what}", f"{k['lost']}, {k['far_end']['stale']} in {k['kills']}", "0, 0", met)


def proofs(r):
    p = r["prove"]
    decided = p["sample"] - p["verdicts"].get("unknown", 0)
    figure = f"{decided} of {p['sample']}, refuted {len(p['refuted'])}"
    yield ("prover, pairs decided", figure, ">= 90 %, 0", decided >= 0.9 * p["sample"] and not p["refuted"])


def k2_rules(r):
    k = r["k2-o2"]
    yield ("K2's 19, rules only, mean reduction", f"{k['mean_reduction']:.2%}", ">= 8 %", k["mean_reduction"] >= 0.08)
    t = k["milliseconds"]
    yield ("K2's 19, rules only, time", f"median {t['median']} ms, worst {t['worst']} ms", "<= 50 ms", t["worst"] <= 50)


def k2_super(r):
    for goal, file in (("balanced", "k2-super"), ("size", "k2-super-size")):
        k, what = r[file], f"K2's 19, {goal}"
        all_of = f"{k['at_most_k2']} of 19 at most K2's, {k['accepted']} accepted, {k['proven']} proven"
        yield (f"{what}, each", all_of, "19, 19, 19", k["at_most_k2"] == k["accepted"] == k["proven"] == 19)
        yield (f"{what}, counts as the paper's", k["counted_as_the_paper"], "19", k["counted_as_the_paper"] == 19)
        yield (f"{what}, mean reduction", f"{k['mean_reduction']:.2%}", ">= 18 %", k["mean_reduction"] >= 0.18)
        yield (f"{what}, time for all", f"{k['seconds']} s", "<= 900 s", k["seconds"] <= 900)
        without = k["seconds_without_balancer"]
        yield (f"{what}, time but for the balancer", f"{without} s", "<= 180 s", without <= 180)
        j, c = k["jited"], k["cycles"]
        figure = f"mean {j['mean']:.3f}, worst {j['worst']:.3f}"
        yield (f"{what}, jited bytes", figure, "<= 0.88, <= 1.00", j["mean"] <= 0.88 and j["worst"] <= 1)
        yield (f"{what}, predicted cycles", f"mean {c['mean']:.3f}, worst {c['worst']:.3f}", "worst <= 1.00", c["worst"] <= 1)


def modern(r):
    for level in ("O2", "super"):
        m = r[f"modern-{level.lower()}"]
        reduction, kept = m["slots"]["mean_reduction"], m["verdicts"].get("original", 0)
        figure = f"{reduction:.2%} of {m['programs']}, {kept} originals kept"
        yield (f"clang >= 16, {level}, mean reduction", figure, ">= 8 %", reduction >= 0.08)
        if "accepted" in m:
            figure = f"{m['accepted']} of {m['programs']}"
            yield (f"clang >= 16, {level}, accepted by the kernel", figure, "all", m["accepted"] == m["programs"])


def userspace(r):
    bars = {"router, one route": 1.8, "router, 500 routes": 1.5, "IDS and router": 1.8, "NAT": 2.0}
    for row in r["userspace"]["cases"]:
        name = row["case"]
        bar = bars.get(name, 2.0 if name.startswith("router") and name.endswith("routes") else None)
        if bar and row["ratio"] is not None:
            figure = f"{row['net_ns']['ours']} ns beside {row['net_ns']['peer']}, I/O deducted: {row['ratio_net']}; with it {row['ratio']}"
            yield (f"FastClick, {name}", figure, f">= {bar} in both", min(row["ratio_net"] or 0, row["ratio"]) >= bar)


def code(r):
    """What each optimisation is worth has no bar but that it is said."""
    c = r["userspace-code"]
    for case, variants in c["cases"].items():
        whole, left_out = variants["all"], {n: v for n, v in variants.items() if n.startswith("without ")}
        counted = [v for v in left_out.values() if v["instructions"] is not None]
        worst = max(left_out.items(), key=lambda item: item[1]["ns"])
        figure = f"{whole['instructions']} instructions, {whole['mpps']} Mpps; {worst[0]} {worst[1]['mpps']} Mpps"
        yield (f"optimisations left out, {case}", figure, "each: instructions and Mpps", bool(counted) and len(counted) == len(left_out))
    made = c["compile"]
    yield ("code of a router of 40 elements", f"{made['in_process_ms']} ms", "<= 300 ms", made["in_process_ms"] <= 300)
    yield ("the same ahead of time", f"{made['ahead_of_time_s']} s", "<= 2 s", made["ahead_of_time_s"] <= 2)


# Least ratios of ours over peers on DPDK's virtual devices: over FastClick's best, and over DPDK's own programs.
DPDK_BARS = {
    "mirror": {"testpmd macswap": 0.95},
    "router, one route": {"FastClick": 1.8},
    "router, 500 routes": {"FastClick": 1.5, "l3fwd-lpm": 1.05},
    "IDS and router": {"FastClick": 1.8},
    "NAT": {"FastClick": 2.0},
}


def dpdk(r):
    for row in r["dpdk"]["cases"]:
        peer = row["peer"]
        bar = peer and DPDK_BARS[row["case"]].get(peer.split(",")[0])
        if bar:
            low, high = row["interval"]["overlay"]
            figure = f"{row['ratio']['overlay']} ({low} to {high}); {row['mpps']['overlay']} beside {row['mpps'][peer]} Mpps"
            yield (f"DPDK: {peer}, {row['case']}", figure, f">= {bar}", row["ratio"]["overlay"] >= bar)


def native(r):
    for plane in r["native"]["planes"]:
        figure = f"{plane['native_ns']} ns beside {plane['kernel_ns']}: {plane['ratio']}"
        yield (f"{plane['plane']} in userspace, over the kernel's", figure, "<= 0.60", plane["ratio"] <= 0.60)


def tables(r):
    for name in ("cuckoo", "prefixes"):
        found = r[f"tables-{name}"]
        best = max((row["ratio"], variant) for variant, row in found.items() if isinstance(row, dict))
        figure = f"{best[0]} ({best[1]}), by default {found['by default']['ratio']}"
        yield (f"fetched ahead, {name}", figure, ">= 2.0 of the plain loop", found["by default"]["ratio"] >= 2.0)


def p4(r):
    for row in r["p4-figure-4"]["figures"]:
        if row["bar"]:
            low, high = row["interval"]
            figure = f"{row['gain']:.2f} ({low:.2f} to {high:.2f}) of one packet at once"
            yield (f"P4: {row['application']}, B = b = 32", figure, f">= {row['bar']}", row["gain"] >= row["bar"])
    found = r["p4-model"]["figures"][-1]
    figure = f"{found['within_3_percent']:.0%} of {found['points']} points within 3 %, the worst at {found['worst']:.2f}"
    met = found["within_3_percent"] >= 0.9 and found["worst"] >= 0.92
    yield ("P4: the model's B and b", figure, ">= 90 %, 0.92", met)
    error = found["median_prediction_error"]
    yield ("P4: predicted throughput", f"{error:.0%} off at the median", "<= 15 %", error <= 0.15)


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results")
    results, missed = Results(directory), 0
    for group in (conformance, semantics, mutants, equivalence, corpus, kernels, loaders, compiler, alike, runs, peers, public, localities, responses, demo, updates, swaps, shadow, shifts, slower, offers, overhead, daemon, attacks, kills, proofs, k2_rules, k2_super, modern, userspace, code, dpdk, native, tables, p4):
        try:
            for what, figure, bar, met in group(results):
                missed += not met
                print(f"{'met' if met else 'NOT MET':8} {what:38} {str(figure):62} bar {bar}")
        except FileNotFoundError as e:
            missed += 1
            print(f"{'missing':8} {group.__name__:38} {pathlib.Path(e.filename).name}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
