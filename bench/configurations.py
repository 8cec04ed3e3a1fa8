#!/usr/bin/env python3
"""Which configurations of Click in a folder compile, and why the others do not.

    bench/configurations.py FOLDER|FILE.npf... [--millstream PATH] [--set NAME=VALUE]... [--expected FILE] [--wired] [--interface NAME]... [--json]

Every FILE.click below a folder goes through `millstream click FILE --ir`, in its own folder, with the variables of --set. Of a test of NPF (PacketMill's
experiments are one) the network functions are put together from its sections as its script does, for each set of tags that CASES names.

--expected names files that must compile, one a line, as they are printed here: `bench/configurations.txt` has those of FastClick's conf/ (with
N, L, S, R and T, which some of its generators need from the command line) and of PacketMill's experiments. Exit code 1 if one of them does not.

--wired does all of it in a network namespace of its own with interfaces eth0 and eth1, of which some configurations take the addresses, and those
of --interface. It needs unshare(1) and ip(8), and either root or user namespaces.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# Tags of PacketMill's functions: forwarding and routing, with what may be put in between, and both ports of two cards.
CASES = [
    ("fwd",), ("fwd", "xchg"), ("fwd", "vlan"), ("fwd", "dual"),
    ("router",), ("router", "ids"), ("router", "nat"), ("router", "wp"), ("router", "xchg"), ("router", "vlan"),
    ("router", "ids", "nat"), ("router", "ids", "vlan", "wp"), ("router", "dual", "ids"), ("router", "nat", "wp", "xchg"),
]
# What its variables stand for, those apart that tags set.
USUAL = {
    "CPU": "1", "BURST": "32", "PAUSE": "none", "CLEAR": "0", "RXDESC": "1024", "TXDESC": "1024", "BLOCKING": "true",
    "CHKSUM": "0", "NAT_CAPA": "10000000", "INITVLAN": "", "SETVLAN": "", "WP": "",
}
VLAN = {"INITVLAN": "-> SetVLANAnno(0)", "SETVLAN": "-> VLANEncap(VLAN_TCI ANNO, VLAN_PCP 0)"}
# Both ends of a line, with addresses.
INTERFACES = """set -e
ip link add eth0 type veth peer name eth1
for n in 0 1; do ip address add 192.0.2.$((n + 1))/24 dev eth$n; ip link set eth$n up; done
n=0
for name in $MORE_INTERFACES; do
    n=$((n + 1))
    ip link add "$name" type veth peer name "more$n"
    ip address add 198.51.100.$n/32 dev "$name"
done
exec "$@"
"""
# What is said of a mistake, on one line or several.
REASON = re.compile(r"^ +× (.*(?:\n +│ .*)*)", re.MULTILINE)
WORK = {"WP": "-> WorkPackage(S 4, N 5, R 0, PAYLOAD false, W 4)"}


def compiled(millstream, path, variables):
    """Whether a configuration compiles, and what is said of it if not."""
    command = [millstream, "click", path.name, *variables, "--ir"]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, timeout=120)
    except subprocess.TimeoutExpired:
        return False, ["it takes more than two minutes"]
    text = done.stderr.decode(errors="replace")
    reasons = [" ".join(found.replace("│", " ").split()) for found in re.findall(REASON, text)]
    return done.returncode == 0, list(dict.fromkeys(reasons)) or text.strip().splitlines()[-1:]


def sections(text):
    """Files of a test: tags that must be there, tags that must not, name and text, in order."""
    for part in re.split(r"^%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        found = re.fullmatch(r"(?:([\w,-]+):)?file@\w+ (\w+)\s*", head)
        if found:
            tags = [tag for tag in (found[1] or "").split(",") if tag]
            yield {t for t in tags if t[0] != "-"}, {t[1:] for t in tags if t[0] == "-"}, found[2], body


def function(text, tags):
    """The configuration of a set of tags: its files one behind the other, variables replaced."""
    files = {}
    for needed, refused, name, body in sections(text):
        if needed <= set(tags) and not refused & set(tags):
            files[name] = body
    device = "DPDKDeviceXCHG" if "xchg" in tags else "DPDKDevice"
    known = {**USUAL, "FD": f"From{device}", "TD": f"To{device}"}
    known.update(VLAN if "vlan" in tags else {})
    known.update(WORK if "wp" in tags else {})
    names = ["IDS", "NAT", "FNT", *(["FNT2"] if "dual" in tags else []), "MCONFIG"]
    whole = "".join(files.get(name, "") for name in names)
    # Addresses and ports of machines, which NPF knows.
    whole = re.sub(r"\$\{\w+:(\d):mac\}", r"02:00:00:00:00:0\1", whole)
    whole = re.sub(r"\$\{\w+:(\d):pci\}", r"\1", whole)
    return re.sub(r"\$(\w+)", lambda found: known.get(found[1], found[0]), whole)


def configurations(place, folder):
    """Names and paths of all configurations of a folder or a test."""
    if place.suffix != ".npf":
        for path in sorted(place.rglob("*.click")):
            yield str(path.relative_to(place)), path
        return
    text = place.read_text()
    for tags in CASES:
        path = folder / f"{place.stem}-{'-'.join(tags)}.click"
        path.write_text(function(text, tags))
        yield path.name, path


def wire(names):
    """Begins again in a namespace with interfaces."""
    os.environ["MORE_INTERFACES"] = " ".join(names)
    again = [sys.executable, *sys.argv, "--no-wired"]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    os.execvp("unshare", ["unshare", "--net", *user, "sh", "-c", INTERFACES, "sh", *again])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("places", nargs="+", type=pathlib.Path, metavar="FOLDER|FILE.npf")
    parser.add_argument("--millstream", default="target/release/millstream", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="variables")
    parser.add_argument("--expected", type=pathlib.Path)
    parser.add_argument("--wired", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--interface", action="append", default=[], metavar="NAME", dest="interfaces")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_intermixed_args()
    if args.wired:
        wire(args.interfaces)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for place in args.places:
            if not place.exists():
                parser.error(f"there is no {place}")
            for name, path in configurations(place, pathlib.Path(folder)):
                fine, why = compiled(args.millstream, path, args.variables)
                rows.append({"configuration": name, "compiles": fine, "reasons": [] if fine else why})
    fine = sum(row["compiles"] for row in rows)
    if args.json:
        print(json.dumps({"schema": 1, "compile": fine, "of": len(rows), "configurations": rows}, indent=1))
    else:
        for row in rows:
            print(f"{'compiles' if row['compiles'] else 'does not'}  {row['configuration']}")
            for why in row["reasons"]:
                print(f"            {why}")
        print(f"{fine} of {len(rows)} compile")
        reasons = collections.Counter(why for row in rows for why in row["reasons"])
        for why, count in reasons.most_common(10):
            print(f"{count:4}  {why}")
    if args.expected:
        there = {row["configuration"]: row["compiles"] for row in rows}
        wanted = [line for line in args.expected.read_text().split("\n") if line and not line.startswith("#")]
        missing = [name for name in wanted if not there.get(name)]
        for name in missing:
            print(f"{name}: {'is not there' if name not in there else 'does not compile'}", file=sys.stderr)
        sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
