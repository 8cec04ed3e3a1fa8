#!/usr/bin/env python3
"""Configurations of Click, run by Millstream and by a peer, packets held against each other byte by byte.

    bench/click.py --millstream PATH --peer PATH --trace FILE.pcap[.gz] [--built] [--output FILE] [CONF ...]

The peer is a `click` binary (FastClick, userlevel). Without CONF all of bench/click/*.click are run. A configuration reads $IN and writes
into $DIR; every file that one of them writes must be written by the other, with the same packets in the same order. A file
whose packets differ is shown with the first packet that does. With --built ours run as executables that were built ahead of time. Times of packets are not compared. Exits with 1 if any differs.
"""
import argparse, gzip, json, pathlib, shutil, struct, subprocess, sys, tempfile

import record

HERE = pathlib.Path(__file__).resolve().parent


def packets(path):
    """(bytes, length on the wire) of every packet of a classic capture file."""
    data = path.read_bytes()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at, found = 24, []
    while at + 16 <= len(data):
        kept, length = struct.unpack(order + "II", data[at + 8 : at + 16])
        found.append((data[at + 16 : at + 16 + kept], length))
        at += 16 + kept
    return found


def outputs(folder):
    return {path.name: packets(path) for path in sorted(folder.iterdir()) if path.suffix == ".pcap"}


def run(command, what):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{what} failed: {' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def difference(ours, theirs):
    """What differs first between two lists of packets; None if nothing does."""
    for at, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            byte = next((i for i, (x, y) in enumerate(zip(a[0], b[0])) if x != y), min(len(a[0]), len(b[0])))
            return f"packet {at} from byte {byte}: ours {a[0][byte:byte + 8].hex()} ({a[1]}), theirs {b[0][byte:byte + 8].hex()} ({b[1]})"
    return None if len(ours) == len(theirs) else f"ours has {len(ours)} packets, theirs {len(theirs)}"


def compare(args, conf, trace, folder):
    ours, theirs = folder / "ours", folder / "theirs"
    for path in (ours, theirs):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    graph = [conf, f"IN={trace}", f"DIR={ours}"]
    if args.built:
        run([args.millstream, "build", *graph, "-o", folder / "built"], "millstream")
        report = json.loads(run([folder / "built", "--json"], "what was built"))
    else:
        report = json.loads(run([args.millstream, "click", *graph, "--json"], "millstream"))
    run([args.peer, conf, f"IN={trace}", f"DIR={theirs}"], "the peer")
    dropped = sum(row["packets"] for row in report["dropped"])
    found = []
    if report["received"] + report["copies"] != report["sent"] + dropped:
        found.append("the account does not add up")
    a, b = outputs(ours), outputs(theirs)
    for name in sorted(set(a) | set(b)):
        why = difference(a.get(name, []), b.get(name, []))
        if why:
            found.append(f"{name}: {why}")
    return found, sum(map(len, a.values())), report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--built", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, help="file of the results, with the machine")
    parser.add_argument("--trace", required=True, type=pathlib.Path)
    parser.add_argument("confs", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    confs = args.confs or sorted((HERE / "click").glob("*.click"))
    bad, rows = 0, []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        trace = args.trace
        if trace.suffix == ".gz":
            trace = folder / "trace.pcap"
            trace.write_bytes(gzip.decompress(args.trace.read_bytes()))
        for conf in confs:
            found, sent, report = compare(args, conf, trace, folder)
            bad += bool(found)
            rows.append({"configuration": conf.stem, "packets": sent, "differences": found})
            ms, ns = report.get("compiled", {"total_ms": 0})["total_ms"], report["ns_per_packet"]
            print(f"{conf.stem:20} {'differs' if found else 'same':8} {sent:8} packets out, {ms:6.1f} ms to compile, {ns:6.2f} ns per packet")
            for line in found:
                print(f"    {line}")
    if args.output:
        command = f"bench/click.py --peer PATH --trace {args.trace.name}"
        summary = {"same": len(confs) - bad, "of": len(confs), "configurations": rows}
        record.write(args.output, record.head(command) | summary)
    print(f"{len(confs) - bad} of {len(confs)} configurations give the same packets")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
