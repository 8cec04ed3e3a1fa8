#!/usr/bin/env python3
"""K2's 19 programs (SIGCOMM 2021, Table 1): how short they become, whether the kernel takes them, whether it is proven.

    bench/k2.py DIRECTORY [--level O2|super] [--goal GOAL] [--for KERNELS] [--budget TIME]
                          [--only NAME] [--millstream PATH] [--output FILE] [--listings DIRECTORY]

DIRECTORY is the folder of inputs of github.com/smartnic/superopt-input-bm. Each program is optimized from its raw form into
the raw form; what was written is then read again, counted, loaded by the kernel and, unless `opt` proved it, given to
`millstream prove`. Slots are 8 bytes, jumps that do nothing deducted. The figures, as JSON, go to standard output and to --output,
a table to standard error. --listings keeps the instructions of each result. Needs root.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import record

# Name in the paper's Table 1, path, slots after clang -O2, K2's slots. Its last row prints 1,607; the bar is the lower count of the
# same authors.
PROGRAMS = [
    ("xdp_exception", "ebpf_samples/xdp_monitor_kern_tracepoint-xdp-xdp_exception", 18, 16),
    ("xdp_redirect_err", "ebpf_samples/xdp_monitor_kern_tracepoint-xdp-xdp_redirect_err", 18, 16),
    ("xdp_devmap_xmit", "ebpf_samples/xdp_monitor_kern_tracepoint-xdp-xdp_devmap_xmit", 36, 29),
    ("xdp_cpumap_kthread", "ebpf_samples/xdp_monitor_kern_tracepoint-xdp-xdp_cpumap_kthread", 24, 18),
    ("xdp_cpumap_enqueue", "ebpf_samples/xdp_monitor_kern_tracepoint-xdp-xdp_cpumap_enqueue", 26, 21),
    ("sys_enter_open", "ebpf_samples/syscall_tp_kern_tracepoint-syscalls-sys_enter_open", 24, 20),
    ("socket-0", "ebpf_samples/sockex3_kern_socket-0", 29, 27),
    ("socket-1", "ebpf_samples/sockex3_kern_socket-1", 32, 30),
    ("xdp_router_ipv4", "ebpf_samples/xdp_router_ipv4_kern_xdp_router_ipv4", 111, 99),
    ("xdp_redirect", "ebpf_samples/xdp_redirect_kern_xdp_redirect", 43, 35),
    ("xdp1", "ebpf_samples/xdp1_kern_xdp1", 61, 56),
    ("xdp2", "ebpf_samples/xdp2_kern_xdp1", 78, 71),
    ("xdp_fwd", "ebpf_samples/xdp_fwd_kern_xdp_fwd", 155, 128),
    ("xdp_pktcntr", "katran/xdp_pktcntr_xdp-pktcntr", 22, 19),
    ("xdp_fw", "simple_fw/xdp_fw_kern_xdp_fw", 72, 65),
    ("xdp_map_access", "simple_fw/xdp_map_access_kern_xdp_map_acces", 30, 26),
    ("from-network", "cilium/bpf_network_from-network", 39, 29),
    ("recvmsg4", "cilium/bpf_sock_recvmsg4", 94, 81),
    ("xdp-balancer", "katran/ubuntu-18.04/balancer_kern_xdp-balancer", 1811, 1603),
]


def slots(path):
    """Slots of a raw program, without jumps to the next instruction."""
    data = path.read_bytes()
    insns = [data[at : at + 8] for at in range(0, len(data), 8)]
    return len(insns) - sum(i[0] in (0x05, 0x06) and not any(i[2:8]) for i in insns)


def loaded(args, path, section):
    """What the kernel says of a raw program."""
    report, problem, _ = record.run(args.millstream, "verify", path, "--section", section, "--json")
    if report is None or not report["programs"]:
        return {"accepted": False, "why": problem}
    row = report["programs"][0]
    return {
        "accepted": row["verdict"] == "accepted",
        "jited": row.get("jited_bytes"),
        "verified": row.get("verified_insns"),
        **({"why": row["reason"]} if row.get("reason") else {}),
    }


def proof(args, report, before, after):
    """`equivalent`, or what else was found: by `opt` if it says so, else by `prove`."""
    for said in report["programs"]:
        how = said.get("proof")
        if how in ("whole", "unchanged"):
            return "equivalent", "opt"
        if isinstance(how, dict):
            (name, why) = next(iter(how.items()))
            # The original with windows that were each proven is as good as a static form with such; the original is itself.
            return f"{'refuted' if name == 'refuted' else 'composed'}: {name}, {why}", "opt"
    for said in report.get("proofs") or []:
        verdict = said["verdict"]
        if verdict in ("equivalent", "unchanged"):
            return "equivalent", "opt"
        if isinstance(verdict, dict) and "refuted" in verdict:
            return f"refuted: {verdict['refuted']}", "opt"
    found, problem, _ = record.run(args.millstream, "prove", before, after, "--proof-time", args.proof_time, "--json")
    if found is None:
        return problem, "prove"
    row = found["programs"][0]
    return row["verdict"] if row["verdict"] == "equivalent" else f"{row['verdict']}: {row.get('reason')}", "prove"


def listing(args, name, result):
    args.listings.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([str(args.millstream), "inspect", str(result), "--disasm"], capture_output=True, text=True)
    (args.listings / f"{name}.txt").write_text(done.stdout)


def program(args, folder, name, path, clang, k2):
    """The row of one program."""
    source = args.directory / f"{path}.insns"
    # The name says the section, and so does the result's.
    result = folder / source.name
    row = {"program": name, "clang": clang, "k2": k2, "before": slots(source)}
    command = [args.millstream, "opt", source, "-o", result, "--json", *record.opt_flags(args)]
    if args.level == "O2":
        alone = [word for word in command if word != "--stats"]
        row["milliseconds"] = round(min(record.run(*alone)[2] for _ in range(3)) * 1e3, 1)
    report, problem, seconds = record.run(*command)
    row["seconds"] = round(seconds, 2)
    if report is None or not result.exists():
        return row | {"failed": problem}
    row["after"] = slots(result)
    row["reduction"] = round(1 - row["after"] / row["before"], 4)
    (said,) = report["programs"] or [{"section": "xdp"}]
    row["kernel"] = {when: loaded(args, where, said["section"]) for when, where in (("before", source), ("after", result))}
    # -O super says it of each program, -O2 apart from what the kernel says.
    (predicted,) = report.get("costs") or [said]
    cycles = {when: (predicted.get(when) or {}).get("cycles") for when in ("before", "after")}
    if cycles["before"] is not None:
        row["cycles"] = {when: n / 1000 for when, n in cycles.items()}
    row["proof"], row["proven_by"] = proof(args, report, source, result)
    if args.listings:
        listing(args, name, result)
    return row


def ratio(row, figure):
    before, after = (figure(row, when) for when in ("before", "after"))
    return after / before if before and after is not None else None


def summary(rows):
    done = [r for r in rows if "after" in r]
    jited = [x for r in done if (x := ratio(r, lambda r, when: r["kernel"][when].get("jited"))) is not None]
    cycles = [x for r in done if (x := ratio(r, lambda r, when: r.get("cycles", {}).get(when))) is not None]
    small = [r["seconds"] for r in rows if r["program"] != "xdp-balancer"]
    found = {
        "programs": len(rows),
        "counted_as_the_paper": sum(r["before"] == r["clang"] for r in rows),
        "at_most_k2": sum(r["after"] <= r["k2"] for r in done),
        "above_k2": {r["program"]: r["after"] - r["k2"] for r in done if r["after"] > r["k2"]},
        "accepted": sum(r["kernel"]["after"]["accepted"] for r in done),
        "proven": sum(r["proof"].startswith(("equivalent", "composed")) for r in done),
        "proven_as_a_whole": sum(r["proof"] == "equivalent" for r in done),
        "refuted": [r["program"] for r in done if r["proof"].startswith(("refuted", "differs"))],
        "failed": [r["program"] for r in rows if "after" not in r],
        # What failed stays as it was.
        "mean_reduction": round(statistics.fmean(r.get("reduction", 0) for r in rows), 4),
        "seconds": round(sum(r["seconds"] for r in rows), 1),
        "seconds_without_balancer": round(sum(small), 1),
    }
    for name, ratios in (("jited", jited), ("cycles", cycles)):
        if ratios:
            found[name] = {"mean": round(statistics.fmean(ratios), 4), "worst": round(max(ratios), 4), "of": len(ratios)}
    times = [r["milliseconds"] for r in rows if "milliseconds" in r]
    if times:
        found["milliseconds"] = {"median": round(statistics.median(times), 1), "worst": max(times)}
    return found


def table(rows):
    """The rows as lines."""
    yield f"{'program':20} {'clang':>5} {'K2':>5} {'ours':>5} {'to K2':>6} {'jited':>13} {'cycles':>15} {'s':>7}  kernel, proof"
    for r in rows:
        if "after" not in r:
            yield f"{r['program']:20} {r['before']:5} {r['k2']:5}  failed: {r['failed']}"
            continue
        kernel = r["kernel"]
        jited = "{} > {}".format(*(kernel[w].get("jited") for w in ("before", "after")))
        cycles = "{before:.1f} > {after:.1f}".format(**r["cycles"]) if "cycles" in r else "-"
        said = "accepted" if kernel["after"]["accepted"] else f"NOT ACCEPTED: {kernel['after'].get('why')}"
        counts = f"{r['before']:5} {r['k2']:5} {r['after']:5} {r['after'] - r['k2']:+6}"
        yield f"{r['program']:20} {counts} {jited:>13} {cycles:>15} {r['seconds']:7.2f}  {said}, {r['proof'][:90]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    record.opt_arguments(parser)
    parser.add_argument("--proof-time", default="60", help="seconds that `prove` may take for a program")
    parser.add_argument("--only", action="append", help="a program of the table; may be repeated")
    parser.add_argument("--listings", type=pathlib.Path)
    args = parser.parse_args()

    chosen = [p for p in PROGRAMS if not args.only or p[0] in args.only]
    with tempfile.TemporaryDirectory() as folder:
        rows = [program(args, pathlib.Path(folder), *p) for p in chosen]
    found = summary(rows)
    record.keep({**record.head(f"bench/k2.py DIRECTORY {record.opt_words(args)}"), **found, "rows": rows}, args.output)
    print(*table(rows), json.dumps(found), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
