"""Specializes a program on a veth pair of this network namespace: session.py OBJECT PINS."""

import json
import subprocess
import sys
import time

import millstream

elf = open(sys.argv[1], "rb").read()
for command in ["link add name left type veth peer name right", "link set left up", "link set right up"]:
    subprocess.run(["ip", *command.split()], check=True)
end = time.monotonic() + 60
with millstream.Session(elf, ["left"], pins=sys.argv[2], milliseconds=100) as session:
    kinds = set()
    while not {"attached", "status"} <= kinds and time.monotonic() < end:
        if session.wait(10):
            report = session.next()
            if report:
                kinds.add(report["event"])
    print(json.dumps(sorted(kinds)))
assert b"xdp" not in subprocess.run(["ip", "link", "show", "left"], check=True, capture_output=True).stdout
print('"stopped": true')
