#!/usr/bin/env python3
"""P4 programs beside bmv2: the same program, entries and packets, and what leaves by each port.

    bench/p4_bmv2.py --bmv2 BUILD --sources FOLDER [--defined BUILD] [--parts output,throughput] [--programs NAME,...]
                     [--logging BUILD] [--packets N] [--on EXECUTION] [--seed N] [--millstream PATH] [--output FILE] [--keep FOLDER]
    bench/p4_bmv2.py --define SOURCES

BUILD is a build of behavioral-model (simple_switch, thrift; for throughput -O3 without logging macros, event logger and
nanomsg). FOLDER has the repositories of the programs, each as OWNER+NAME, with the JSON that their owners compiled: see
PROGRAMS.

P4 leaves open what fields of invalid headers hold. In bmv2 they have the values of earlier packets; here they are 0.
`--define` changes bmv2's sources so that a packet begins with zeros, and a header that is assigned from an invalid one has
its fields. What still differs from a build of that (`--defined`) is not explained.

    output      N random packets (bench/p4_traffic.py) through both switches, with the same random entries, multicast
                groups, members and mirror sessions. What leaves is compared byte by byte for each port. bmv2's clock
                stands still and its queues are empty when a packet comes (bench/p4_bmv2_pace.c); ours stands still, too.
    throughput  the same entries; packets per second of both. Only on an idle machine.
    trace       steps of each packet in bmv2's log (`--logging`: a defined build with logging macros) and in our trace:
                parser states, tables with key, action and arguments, packets that leave, and lines that drop one
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import p4_traffic
import record

ROOT = pathlib.Path(__file__).resolve().parent.parent
FABRIC = "opennetworkinglab+onos/pipelines/fabric/impl/src/main/resources"
BASIC = "opennetworkinglab+onos/pipelines/basic/src/main/resources"
FABRIC_MACROS = ["TARGET_BMV2", "CPU_PORT=255", "WITH_PORT_COUNTER", "WITH_DEBUG"]


def fabric(name, *macros):
    return (f"{FABRIC}/fabric.p4", f"{FABRIC}/p4c-out/{name}/bmv2/default/bmv2.json", FABRIC_MACROS + list(macros))


INT = ("WITH_INT_SOURCE", "WITH_INT_TRANSIT")
# Source, JSON, macros.
PROGRAMS = {
    "fabric": fabric("fabric"),
    "fabric-bng": fabric("fabric-bng", "WITH_BNG", "WITHOUT_XCONNECT"),
    "fabric-int": fabric("fabric-int", *INT),
    "fabric-spgw": fabric("fabric-spgw", "WITH_SPGW"),
    "fabric-spgw-int": fabric("fabric-spgw-int", "WITH_SPGW", *INT),
    "fabric-full": fabric("fabric-full", "WITH_MULTICAST", "WITH_IPV6", "WITH_SIMPLE_NEXT", "WITH_HASHED_NEXT", "WITH_BNG", "WITH_SPGW", *INT, "WITH_INT_SINK"),
    "onos-basic": (f"{BASIC}/basic.p4", f"{BASIC}/p4c-out/bmv2/basic.json", ["TARGET_BMV2"]),
    "onos-int": (f"{BASIC}/int.p4", f"{BASIC}/p4c-out/bmv2/int.json", ["TARGET_BMV2"]),
    "onos-mytunnel": (
        "opennetworkinglab+onos/apps/p4-tutorial/pipeconf/src/main/resources/mytunnel.p4",
        "opennetworkinglab+onos/apps/p4-tutorial/pipeconf/src/main/resources/mytunnel.json",
        [],
    ),
    "up4": ("omec-project+up4/p4src/main.p4", "omec-project+up4/p4src/build/bmv2.json", []),
    "tassen-bng": ("opennetworkinglab+tassen/p4src/bng.p4", "opennetworkinglab+tassen/p4src/build/bmv2.json", []),
    "redtfg": ("isabelplaza+RedTFG/p4src/main.p4", "isabelplaza+RedTFG/p4src/build/bmv2.json", []),
    "firewall": ("spidywizard+p4-firewall/firewall.p4", "spidywizard+p4-firewall/build/firewall.json", []),
    "basic": ("spidywizard+p4-firewall/basic.p4", "spidywizard+p4-firewall/build/basic.json", []),
    "calc": ("luisaburini+calculadora-p4/calc.p4", "luisaburini+calculadora-p4/build/calc.json", []),
    "ecn": ("chrischou00+CN-Program-Assignment-2/ecn.p4", "chrischou00+CN-Program-Assignment-2/build/ecn.json", []),
    "mri": ("loveTrain444+p4-mri/mri.p4", "loveTrain444+p4-mri/build/mri.json", []),
    "source-routing": ("jasonliu9672+p4_BMV2_Lab2/source_routing.p4", "jasonliu9672+p4_BMV2_Lab2/build/source_routing.json", []),
}
ALL_PORTS = p4_traffic.PORTS + p4_traffic.MIRROR_PORTS + [p4_traffic.CPU_PORT]
# A port that no program uses, so that ours gives controllers nothing.
NO_PORT = 510
# Examples of differences that are kept.
EXAMPLES = 5


def write_capture(path, packets):
    """Packets with the number of each as its time in microseconds."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, data in packets:
            file.write(struct.pack("<IIII", 1 + number // 1_000_000, number % 1_000_000, len(data), len(data)) + data)


def read_capture(path):
    data, at, packets = path.read_bytes(), 24, []
    while at + 16 <= len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        packets.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return packets


def seconds_used(process):
    """Processor time of a process, in seconds."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Case:
    """A program with its entries and packets."""

    def __init__(self, args, name, folder):
        self.args, self.name, self.folder = args, name, folder
        source, compiled, macros = PROGRAMS[name]
        self.source, self.json = args.sources / source, args.sources / compiled
        self.macros = [word for macro in macros for word in ("-D", macro)]
        info = folder / "p4info.json"
        subprocess.run([args.millstream, "p4", "info", *self.macros, "-o", info, self.source], check=True, stderr=subprocess.DEVNULL)
        self.info, self.program = json.loads(info.read_text()), json.loads(self.json.read_text())
        program = self.program
        self.commands, self.packets = p4_traffic.make(args.seed, self.info, program, args.packets)
        # bmv2's command line knows one action of a name; a program that also calls it with constants has two in JSON.
        known = [line for line in self.commands if not twice(program).intersection(line.split()[:3])]
        self.left_out, self.commands = len(self.commands) - len(known), known
        self.reference_commands = reference_commands(self.commands, program)
        (folder / "commands.txt").write_text("\n".join(self.commands) + "\n")
        for port in ALL_PORTS:
            own = ((number, data) for number, (at, data) in enumerate(self.packets) if at == port)
            write_capture(folder / f"p{port}_in.pcap", own)

    def bmv2(self, build, paced, log=None):
        """Runs a build of bmv2; returns its packets by port, the seconds that it took, and answers to commands that were refused."""
        start = self.folder / "start"
        start.unlink(missing_ok=True)
        ends = start.with_suffix(".ends")
        ends.write_bytes(b"")
        ports = [word for port in ALL_PORTS for word in ("-i", f"{port}@{self.folder}/p{port}")]
        logs = ["--log-console", "--log-level", log] if log else []
        words = [build / "targets/simple_switch/simple_switch", *logs, *ports, "--use-files", "0", "--thrift-port", self.args.thrift_port, self.json]
        environment = dict(os.environ, LD_PRELOAD=self.args.pace, PACE_START=str(start), PACE="realtime" if paced else "")
        log = (self.folder / "bmv2.log").open("wb")
        process = subprocess.Popen([str(word) for word in words], env=environment, stdout=log, stderr=log, cwd=self.folder)
        try:
            refused = self.send_commands(build)
            start.write_bytes(b"")
            begun = time.monotonic()
            while ends.stat().st_size < len(ALL_PORTS):
                time.sleep(0.005)
                if process.poll() is not None:
                    raise RuntimeError(f"{self.name}: bmv2 ended: {(self.folder / 'bmv2.log').read_text()[-500:]}")
            ended = self.wait_until_idle(process)
        finally:
            process.kill()
            process.wait()
        return {port: read_capture(self.folder / f"p{port}_out.pcap") for port in ALL_PORTS}, ended - begun, refused

    def send_commands(self, build):
        paths = [build / "tools", build / "tools/bm_runtime", build / "targets/simple_switch", build / "thrift_src/gen-py", build / "targets/simple_switch/gen-py"]
        environment = dict(os.environ, PYTHONPATH=":".join(map(str, paths)))
        script = "import sswitch_CLI; sswitch_CLI.main()"
        text = "\n".join(["set_queue_depth 1000000", *self.reference_commands]) + "\n"
        for _ in range(50):
            words = ["/usr/bin/python3", "-c", script, "--thrift-port", str(self.args.thrift_port), "--pre", "SimplePreLAG"]
            done = subprocess.run(words, input=text, env=environment, capture_output=True, text=True)
            if "Could not connect" not in done.stdout + done.stderr:
                break
            time.sleep(0.2)
        if done.returncode or "Control utility" not in done.stdout:
            raise RuntimeError(f"{self.name}: commands: {done.stdout[-300:]}{done.stderr[-800:]}")
        (self.folder / "bmv2-commands.log").write_text(done.stdout)
        return [line for line in done.stdout.splitlines() if "Invalid" in line or "Error" in line]

    def wait_until_idle(self, process):
        """Waits until the process uses no processor time; returns when it last did."""
        used, last = seconds_used(process), time.monotonic()
        while time.monotonic() - last < 0.5:
            time.sleep(0.005)
            now = seconds_used(process)
            if now > used:
                used, last = now, time.monotonic()
        return last

    def words(self):
        """Command line of ours, without an execution."""
        ports = [word for port in ALL_PORTS for word in ("-i", f"{port}@{self.folder}/p{port}_in.pcap:{self.folder}/m{port}.pcap")]
        words = [self.args.millstream, "p4", "run", self.source, *self.macros, *ports, "--commands", self.folder / "commands.txt"]
        return [str(word) for word in [*words, "--cpu-port", NO_PORT]]

    def millstream(self, execution):
        """Runs ours; returns its packets by port and the seconds that it took."""
        words = self.words() + ["--on", execution]
        environment = dict(os.environ, LD_PRELOAD=self.args.pace, PACE="monotonic")
        started = time.monotonic()
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {done.stderr[-1500:]}")
        (self.folder / "millstream.log").write_text(done.stderr)
        return {port: read_capture(self.folder / f"m{port}.pcap") for port in ALL_PORTS}, time.monotonic() - started


def twice(program):
    """Names of actions that the JSON has several times, with different parameters."""
    counts = collections.defaultdict(set)
    for action in program["actions"]:
        counts[action["name"]].add(len(action["runtime_data"]))
    return {name for name, found in counts.items() if len(found) > 1}


def reference_commands(commands, program):
    """The commands for names and parameters of the JSON: old compilers leave out the control's name."""
    tables = {table["name"] for pipeline in program["pipelines"] for table in pipeline["tables"]}
    counts = {action["name"]: len(action["runtime_data"]) for action in program["actions"]}

    def known(name, names):
        return name if name in names else p4_traffic.short(name)

    lines = []
    for line in commands:
        words = line.split()
        if words[0] in ("table_add", "table_set_default"):
            words[1:3] = known(words[1], tables), known(words[2], counts)
            first = words.index("=>") + 1 if "=>" in words else 3
            has_priority = len(words) - first > counts[words[2]] and words[0] == "table_add" and needs_priority(program, words[1])
            last = words[-1:] if has_priority else []
            words = words[: first + counts[words[2]]] + last
        elif words[0].startswith("table_"):
            words[1] = known(words[1], tables)
        lines.append(" ".join(words))
    return lines


def needs_priority(program, name):
    return any(table["name"] == name and table["match_type"] in ("ternary", "range") for pipeline in program["pipelines"] for table in pipeline["tables"])


def number_of(data):
    """Number of the packet that this is a copy of, if its payload is whole."""
    at = data.rfind(p4_traffic.MAGIC)
    return struct.unpack_from(">I", data, at + 2)[0] if 0 <= at <= len(data) - 6 else None


def differences(case, theirs, ours):
    """Packets that only one of both sent, by port, and how many; packets in another order."""
    found, only_theirs, only_ours, reordered = [], 0, 0, 0
    for port in ALL_PORTS:
        if theirs[port] == ours[port]:
            continue
        left, right = collections.Counter(theirs[port]), collections.Counter(ours[port])
        missing, extra = left - right, right - left
        if not missing and not extra:
            reordered += sum(a != b for a, b in zip(theirs[port], ours[port]))
            continue
        only_theirs, only_ours = only_theirs + missing.total(), only_ours + extra.total()
        by_number = collections.defaultdict(lambda: ([], []))
        for side, packets in enumerate((missing, extra)):
            for data in packets:
                by_number[number_of(data)][side].append(data.hex())
        for number, (bmv2, own) in by_number.items():
            arrived = case.packets[number] if number is not None and number < len(case.packets) else (None, b"")
            found.append(dict(packet=number, came=arrived[0], bytes=arrived[1].hex(), left=port, bmv2=bmv2, ours=own))
    return found, only_theirs, only_ours, reordered


def output(case):
    theirs, _, refused = case.bmv2(case.args.bmv2, paced=True)
    ours, _ = case.millstream(case.args.on)
    found, only_theirs, only_ours, reordered = differences(case, theirs, ours)
    (case.folder / "differences.json").write_text(json.dumps(found, indent=1))
    unexplained, rest = only_theirs + only_ours + reordered, found
    if unexplained and case.args.defined:
        defined, _, _ = case.bmv2(case.args.defined, paced=True)
        rest, left, right, moved = differences(case, defined, ours)
        (case.folder / "unexplained.json").write_text(json.dumps(rest, indent=1))
        unexplained = left + right + moved
    sent = {port: len(theirs[port]) for port in ALL_PORTS}
    entries = sum(line.startswith("table_") for line in case.commands)
    distinct = len({data for packets in theirs.values() for data in packets})
    return dict(packets=len(case.packets), commands=len(case.commands), left_out=case.left_out, entries=entries, sent=sum(sent.values()), sent_by_port=sent, distinct=distinct,
                only_bmv2=only_theirs, only_ours=only_ours, reordered=reordered, unexplained=unexplained, refused_by_bmv2=refused[:EXAMPLES], explained_examples=found[:EXAMPLES] if not unexplained else [], examples=rest[:EXAMPLES])


def throughput(case):
    """Packets per second: bmv2 from its first packet until it is idle, ours from memory."""
    _, seconds, _ = case.bmv2(case.args.bmv2, paced=False)
    words = ["--measure", case.args.seconds, "--json", "--on", case.args.on]
    done = subprocess.run(case.words() + list(map(str, words)), capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    ours = measured["mpps"] * 1e6
    theirs = len(case.packets) / seconds
    return dict(bmv2_pps=theirs, ours_pps=ours, times=ours / theirs, packets=measured["packets"], sent=measured["sent"], seconds=measured["seconds"])


class Steps:
    """What happened to each packet: parser states, tables with key, action and arguments, packets that left, lines that
    dropped one."""

    def __init__(self):
        self.found = collections.defaultdict(collections.Counter)

    def note(self, packet, *step):
        self.found[packet][step] += 1


def logged_steps(log, tables):
    """Steps of bmv2's log. Tables that the compiler made are left out."""
    steps, table, key, hit, dropped = Steps(), {}, {}, {}, {}
    known, reading = set(tables), None
    for line in log.splitlines():
        if reading and line.startswith("* "):
            key[reading].append(int(line.rsplit(":", 1)[1].strip() or "0", 16))
            continue
        found = re.match(r"\[[^]]*\] \[bmv2\] \[.\] \[thread \d+\] \[(\d+)\.(\d+)\] \[cxt \d+\] (.*)", line)
        if not found:
            continue
        packet, copy, text = int(found[1]), (int(found[1]), int(found[2])), found[3]
        reading = None
        if match := re.match(r"Parser '.*' entering state '(.*)'", text):
            steps.note(packet, "state", match[1])
        elif match := re.match(r"Applying table '(.*)'", text):
            table[copy], key[copy] = match[1], []
        elif text.startswith("Looking up key"):
            reading = copy
        elif match := re.match(r"Table '.*': (hit|miss)", text):
            hit[copy] = match[1]
        elif match := re.match(r"Action entry is (.*) - ?(.*)", text):
            name = table.get(copy)
            full = name if name in known else tables_by_end(known, name)
            if full:
                arguments = tuple(int(word, 16) for word in match[2].split(",") if word)
                steps.note(packet, "table", full, tuple(key[copy]), hit.get(copy), p4_traffic.short(match[1]), arguments)
        elif match := re.match(r".*?\((\d+)\) Primitive (mark_to_drop|drop)", text):
            dropped[copy] = int(match[1])
        elif match := re.match(r"Transmitting packet of size (\d+) out of port (\d+)", text):
            steps.note(packet, "sent", int(match[2]), int(match[1]))
        elif text.startswith("Dropping packet at the end of"):
            steps.note(packet, "dropped", dropped.get(copy))
    return steps.found


def tables_by_end(known, name):
    return next((table for table in known if name and p4_traffic.short(table) == name), None)


def traced_steps(text, states, tables):
    """Steps of our trace: of the parser's states those that the compiler has not merged with others, and of the tables
    those that are not hidden."""
    steps, pending = Steps(), {}
    for line in text.splitlines():
        found = re.match(r"packet (\d+): (.*)", line)
        if not found:
            continue
        packet, text = int(found[1]), found[2]
        if match := re.match(r"state (\S+)", text):
            if match[1] in states:
                steps.note(packet, "state", match[1])
        elif match := re.match(r"table (\S+?): (?:(.*): )?(hit|miss|default|member)(?:, (.*))?$", text):
            name, key, kind, action = match.groups()
            if kind in ("hit", "miss"):
                pending = dict(key=tuple(int(value, 16) for value in re.findall(r"=0x([0-9a-f]+)", key or "")), hit=kind)
            if kind == "miss" or kind == "hit" and re.match(r"(group|member) \d+", action):
                continue
            if kind == "default" and pending.get("hit") != "miss":
                pending = dict(key=(), hit="miss")
            words = re.match(r"([\w.]+)\((.*)\)", action)
            name_of_action = p4_traffic.short(words[1]) if words else "NoAction"
            arguments = tuple(int(value, 16) for value in re.findall(r"=0x([0-9a-f]+)", words[2])) if words else ()
            if name in tables:
                steps.note(packet, "table", name, pending["key"], pending["hit"], name_of_action, arguments)
            pending = {}
        elif match := re.match(r"port (\d+): (\d+) bytes leave", text):
            steps.note(packet, "sent", int(match[1]), int(match[2]))
        elif match := re.match(r"dropped: `egress_spec`.*?(?:\(.*:(\d+)\))?$", text):
            steps.note(packet, "dropped", int(match[1]) if match[1] else None)
    return steps.found


def trace(case):
    """Steps of each packet in bmv2's log and in our trace."""
    case.bmv2(case.args.logging, paced=True, log="trace")
    environment = dict(os.environ, LD_PRELOAD=case.args.pace, PACE="monotonic")
    traced = subprocess.run(case.words() + ["--trace", "1", "--on", case.args.on], env=environment, capture_output=True, text=True, check=True).stdout
    (case.folder / "trace.txt").write_text(traced)
    tables = [table["preamble"]["name"] for table in case.info["tables"]]
    states = {state["name"] for state in case.program["parsers"][0]["parse_states"]}
    theirs = logged_steps((case.folder / "bmv2.log").read_text(errors="replace"), tables)
    ours = traced_steps(traced, states, set(tables))
    kinds, examples, equal, invalid = collections.Counter(), [], 0, 0
    for packet in sorted(theirs.keys() | ours.keys()):
        left, right = theirs[packet] - ours[packet], ours[packet] - theirs[packet]
        equal += not left and not right
        found = remove_invalid(left, right)
        invalid += found
        kinds.update(step[0] for step in (left + right).elements())
        if left or right:
            examples.append(dict(packet=packet, bmv2=[list(step) for step in left], ours=[list(step) for step in right]))
    steps = collections.Counter(step[0] for found in theirs.values() for step in found.elements())
    (case.folder / "steps.json").write_text(json.dumps(examples, indent=1))
    return dict(packets=len(case.packets), equal=equal, keys_of_invalid_headers=invalid, unexplained=len(examples), steps=steps, different=kinds, examples=examples[:EXAMPLES])


def remove_invalid(left, right):
    """Removes look-ups that differ only where bmv2's key has 0, its value for fields of invalid headers; gives their number."""
    removed = 0
    for theirs in list(left):
        for ours in list(right):
            if theirs[0] == ours[0] == "table" and theirs[1] == ours[1] and theirs[3:] == ours[3:] and all(a in (0, b) for a, b in zip(theirs[2], ours[2])):
                del left[theirs], right[ours]
                removed += 1
                break
    return removed


# What `--define` changes: a file, a line in it, and what comes behind that line.
DEFINITIONS = [
    ("src/bm_sim/phv.cpp", "PHV::reset() {", "  reset_headers();"),
    ("src/bm_sim/core/primitives.cpp", "assign_header::operator ()(Header &dst, const Header &src) {", "  for (size_t at = 0; !src.is_valid() && at < dst.size(); at++)\n    if (!dst[at].is_VL()) dst[at].set(src[at]);"),
]


def define(sources):
    for name, line, behind in DEFINITIONS:
        path = sources / name
        text = path.read_text()
        if line not in text or behind in text:
            raise SystemExit(f"{path}: another version, or changed already")
        path.write_text(text.replace(line, f"{line}\n{behind}", 1))


PARTS = {"output": output, "throughput": throughput, "trace": trace}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--define", type=pathlib.Path)
    parser.add_argument("--bmv2", type=pathlib.Path)
    parser.add_argument("--defined", type=pathlib.Path)
    parser.add_argument("--logging", type=pathlib.Path)
    parser.add_argument("--sources", type=pathlib.Path)
    parser.add_argument("--parts", default="output")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--thrift-port", type=int, default=9191)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--packets", type=int, default=100_000)
    parser.add_argument("--on", default="native")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench/results/p4-bmv2.json"))
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()
    if args.define:
        return define(args.define)
    if not args.bmv2 or not args.sources:
        parser.error("--bmv2 and --sources are missing")
    unknown = [name for name in args.programs.split(",") if name not in PROGRAMS]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(PROGRAMS)}")
    with tempfile.TemporaryDirectory() as folder:
        kept = args.keep or pathlib.Path(folder)
        args.pace = str(pathlib.Path(folder) / "pace.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", args.pace, ROOT / "bench/p4_bmv2_pace.c", "-ldl"], check=True)
        figures = record.head("bench/p4_bmv2.py")
        # What other runs have found stays.
        figures["programs"] = json.loads(args.output.read_text())["programs"] if args.output.exists() else {}
        for name in args.programs.split(","):
            own = kept / name
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir(parents=True)
            case = Case(args, name, own.resolve())
            rows = figures["programs"].setdefault(name, {})
            for part in args.parts.split(","):
                command = f"bench/p4_bmv2.py --parts {part} --programs {name} --packets {args.packets} --seed {args.seed} --on {args.on}"
                rows[part] = dict(when=figures["when"], command=command, **PARTS[part](case))
                print(name, part, {key: value for key, value in rows[part].items() if not key.endswith("examples")}, file=sys.stderr)
            record.write(args.output, figures)


if __name__ == "__main__":
    main()
