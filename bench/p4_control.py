#!/usr/bin/env python3
"""Entry writes through P4Runtime: how many a second, and whether packets meanwhile are lost or see old entries.

    bench/p4_control.py [--routes FILE[.gz]] [--entries N] [--batch N] [--on EXECUTION] [--rate N]
                        [--millstream PATH] [--output FILE]

Three parts, each with a switch of its own in a network namespace of its own:

    exact    N entries of one exact key are inserted into programs/p4/l2.p4, and as many are modified
    lpm      N prefixes of FILE, one at the beginning of a line (else generated ones), into programs/p4/ipv4.p4
    traffic  the same prefixes, while packets to those that are in already come at RATE a second (raw sockets). After
             each batch one of its routes gets another port, and when that write has returned a packet follows: it must
             leave by the new port. At the end each packet has to have left, by one port.

Requests of --batch updates are made before the clock runs. Needs root and the Python packages grpcio and p4runtime.
Figures of a busy machine say nothing about rates; that no packet is lost or stale has to hold on any.
"""

import argparse
import ipaddress
import os
import pathlib
import queue
import random
import socket
import struct
import subprocess
import sys
import threading
import time

# The package p4 is meant, not the script of that name beside this one.
sys.path.append(sys.path.pop(0))

import grpc
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from google.protobuf import text_format

import record

ROOT = pathlib.Path(__file__).resolve().parent.parent
ADDRESS = "127.0.0.1:9559"
TYPE = 0x0800
# Bytes of Ethernet and IPv4 headers, before the number that a packet carries.
HEADERS = 34
# linux/socket.h: larger than the limit for others.
SO_RCVBUFFORCE = 33


class Switch:
    """A switch with three ports, and its controller."""

    def __init__(self, millstream, program, execution):
        for port in range(3):
            ends = [f"s{port}", f"h{port}"]
            subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
            for end in ends:
                subprocess.run(["ip", "link", "set", end, "up"], check=True)
        path = ROOT / "programs/p4" / f"{program}.p4"
        text = subprocess.run([millstream, "p4", "info", path], check=True, capture_output=True, text=True).stdout
        self.info = text_format.Parse(text, p4info_pb2.P4Info())
        ports = [word for port in range(3) for word in ("-i", f"{port}@s{port}")]
        command = [millstream, "p4", "run", path, "--grpc", ADDRESS, "--device-id", "1", "--on", execution, *ports]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.channel = grpc.insecure_channel(ADDRESS, options=[("grpc.max_send_message_length", -1)])
        grpc.channel_ready_future(self.channel).result(timeout=30)
        # Takes requests that are bytes already: the clock is not to run while Python makes them.
        self.write = self.channel.unary_unary(
            "/p4.v1.P4Runtime/Write", response_deserializer=p4runtime_pb2.WriteResponse.FromString
        )
        self.requests = queue.Queue()
        stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.stream = stub.StreamChannel(iter(self.requests.get, None))
        first = p4runtime_pb2.StreamMessageRequest()
        first.arbitration.device_id = 1
        first.arbitration.election_id.low = 1
        self.requests.put(first)
        answer = next(self.stream)
        if answer.arbitration.status.code != 0:
            sys.exit(f"error: the switch has another primary controller: {answer}")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Ends the switch; its exit code must be 0."""
        self.requests.put(None)
        self.channel.close()
        self.process.terminate()
        code = self.process.wait(30)
        for port in range(3):
            subprocess.run(["ip", "link", "del", f"s{port}"], check=True)
        if code != 0 and error is None:
            sys.exit(f"error: the switch ended with exit code {code}")

    def table(self, wanted):
        """A table's first key, and its first action with a parameter."""
        table = next(t for t in self.info.tables if t.preamble.alias == wanted)
        actions = [a for a in self.info.actions if a.params and a.preamble.id in {r.id for r in table.action_refs}]
        return table.preamble.id, table.match_fields[0], actions[0]

    def requests_of(self, kind, table, entries, batch):
        """Write requests for entries, as bytes: a value of the key, a prefix length or none, a port."""
        table, field, action = self.table(table)
        made = []
        for start in range(0, len(entries), batch):
            request = p4runtime_pb2.WriteRequest(device_id=1)
            request.election_id.low = 1
            for value, length, port in entries[start : start + batch]:
                update = request.updates.add(type=kind)
                entry = update.entity.table_entry
                entry.table_id = table
                match = entry.match.add(field_id=field.id)
                data = value.to_bytes((field.bitwidth + 7) // 8, "big")
                if length is None:
                    match.exact.value = data
                else:
                    match.lpm.value, match.lpm.prefix_len = data, length
                entry.action.action.action_id = action.preamble.id
                entry.action.action.params.add(param_id=action.params[0].id, value=port.to_bytes(2, "big"))
            made.append(request.SerializeToString())
        return made

    def rate(self, requests, count):
        """Entries a second."""
        start = time.monotonic()
        for request in requests:
            self.write(request)
        return count / (time.monotonic() - start)


def prefixes(path, count):
    """Routes of a file, each once, or generated ones of the usual lengths."""
    if path is None:
        draw = random.Random(1)
        lengths = draw.choices([24, 22, 23, 20, 21, 19, 16], [60, 12, 10, 6, 5, 4, 3], k=2 * count)
        found = dict.fromkeys((draw.getrandbits(32) >> (32 - n) << (32 - n), n) for n in lengths)
        return list(found)[:count]
    networks = (ipaddress.ip_network(prefix, strict=False) for prefix in record.prefixes(path))
    # The default route is the table's default action.
    found = dict.fromkeys((int(net.network_address), net.prefixlen) for net in networks if net.prefixlen)
    return list(found)[:count]


class Traffic:
    """Packets into port 0, each with a number; what leaves by ports 1 and 2 is noted."""

    def __init__(self):
        self.out = self.opened("h0")
        self.sent = 0
        self.left = {}
        self.twice = 0
        self.stopped = False
        self.lock = threading.Lock()
        # Opened before anything is sent.
        outputs = [(port, self.opened(f"h{port}")) for port in (1, 2)]
        self.readers = [threading.Thread(target=self.read, args=output) for output in outputs]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def opened(interface):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TYPE))
        opened.bind((interface, TYPE))
        opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        opened.settimeout(0.2)
        return opened

    def send(self, address):
        """Sends a packet; returns its number."""
        with self.lock:
            number = self.sent
            self.sent += 1
            header = struct.pack("!BBHHHBBHII", 0x45, 0, 60, 0, 0, 64, 17, 0, 0x0A000001, address)
            self.out.send(bytes(12) + TYPE.to_bytes(2, "big") + header + struct.pack("!Q", number) + bytes(32))
        return number

    def read(self, port, taken):
        while not self.stopped:
            try:
                packet = taken.recv(2048)
            except TimeoutError:
                continue
            (number,) = struct.unpack_from("!Q", packet, HEADERS)
            self.twice += number in self.left
            self.left[number] = port

    def ended(self):
        """Waits until what was sent has left, or two seconds without a packet."""
        seen, since = -1, time.monotonic()
        while len(self.left) < self.sent and time.monotonic() - since < 2:
            if len(self.left) != seen:
                seen, since = len(self.left), time.monotonic()
            time.sleep(0.05)
        self.stopped = True
        for reader in self.readers:
            reader.join()


def under_traffic(switch, routes, batch, rate):
    """Loads the routes under traffic; the account of the packets."""
    routes = [(value, length, 1) for value, length in routes]
    # Looked up where no longer prefix is: the account knows each packet's port by its own route alone.
    inner = {(value >> (32 - n) << (32 - n), n) for value, length, _ in routes for n in range(1, length)}
    leaves = [route for route in routes if route[:2] not in inner]
    requests = switch.requests_of(p4runtime_pb2.Update.INSERT, "routes", routes, batch)
    place = {route[:2]: at for at, route in enumerate(routes)}
    modified, traffic, done, known, asked = {}, Traffic(), threading.Event(), [], {}

    def background():
        draw, next_at = random.Random(2), time.monotonic()
        while not done.is_set():
            if known:
                traffic.send(draw.choice(known))
            next_at += 1 / rate
            time.sleep(max(0.0, next_at - time.monotonic()))

    sender = threading.Thread(target=background)
    sender.start()
    by_batch = {}
    for leaf in leaves:
        by_batch.setdefault(place[leaf[:2]] // batch, []).append(leaf)
    start = time.monotonic()
    for number, request in enumerate(requests):
        switch.write(request)
        here = by_batch.get(number, [])
        if not here:
            continue
        # One route changes its port; packets of the background go to another.
        value, length, _ = here[0]
        (change,) = switch.requests_of(p4runtime_pb2.Update.MODIFY, "routes", [(value, length, 2)], 1)
        switch.write(change)
        asked[traffic.send(value | 1 if length < 32 else value)] = 2
        modified[value] = length
        known.extend(leaf[0] for leaf in here[1:2])
    seconds = time.monotonic() - start
    done.set()
    sender.join()
    traffic.ended()
    return {
        "routes": len(routes),
        "seconds": round(seconds, 2),
        "modified": len(modified),
        "packets": traffic.sent,
        "lost": traffic.sent - len(traffic.left),
        "twice": traffic.twice,
        "stale": sum(traffic.left.get(number, port) != port for number, port in asked.items()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--routes", type=pathlib.Path)
    parser.add_argument("--entries", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=2_000)
    parser.add_argument("--on", default="native", choices=["native", "optimized", "interpreter"])
    parser.add_argument("--millstream", default=str(ROOT / "target/release/millstream"))
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    if os.environ.get("P4_CONTROL_NAMESPACE") != "1":
        environment = {**os.environ, "P4_CONTROL_NAMESPACE": "1"}
        os.execvpe("unshare", ["unshare", "-n", sys.executable, *sys.argv], environment)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    routes = prefixes(options.routes, options.entries)
    source = "--routes FILE.gz " if options.routes else ""
    insert, modify = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY
    report = record.head(f"bench/p4_control.py {source}--entries {options.entries} --on {options.on}")
    report |= {"on": options.on, "batch": options.batch, "rates": {}}

    def rates(program, table, entries):
        with Switch(options.millstream, program, options.on) as switch:
            for name, kind in (("insert", insert), ("modify", modify)):
                requests = switch.requests_of(kind, table, entries, options.batch)
                report["rates"][f"{table} {name}"] = round(switch.rate(requests, len(entries)))

    addresses = [0x020000000000 + at * 2654435761 % (1 << 40) for at in range(options.entries)]
    rates("l2", "destination", [(address, None, 1 + at % 2) for at, address in enumerate(addresses)])
    rates("ipv4", "routes", [(value, length, 1) for value, length in routes])
    with Switch(options.millstream, "ipv4", options.on) as switch:
        report["traffic"] = under_traffic(switch, routes, options.batch, options.rate)
    record.keep(report, options.output)
    return 1 if report["traffic"]["lost"] or report["traffic"]["stale"] or report["traffic"]["twice"] else 0


if __name__ == "__main__":
    sys.exit(main())
