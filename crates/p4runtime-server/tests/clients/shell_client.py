"""Controller of p4runtime-shell (0.0.6), without a terminal: python3 shell_client.py ADDR:PORT P4INFO CONFIG INTERFACE

INTERFACE is the other end of port 1 of the switch, which runs `entities.p4`.
"""

import socket
import sys

import p4runtime_sh.shell as sh

ADDRESS, INFO, CONFIG, INTERFACE = sys.argv[1:5]


def frame(dst, src="000000000009", rest="88b5"):
    return bytes.fromhex(dst + src + rest) + bytes(46)


def entry(table, action, match, priority=None, **arguments):
    made = sh.TableEntry(table)(action=action)
    for field, value in match.items():
        made.match[field] = value
    for name, value in arguments.items():
        made.action[name] = value
    if priority is not None:
        made.priority = priority
    made.insert()
    return made


def count(entity):
    return len(list(entity.read()))


def tables():
    station = entry("I.stations", "I.forward", {"h.ethernet.dst": "00:00:00:00:00:01"}, port="2")
    station.action["port"] = "3"
    station.modify()
    entry("I.stations", "I.to_controller", {"h.ethernet.dst": "00:00:00:00:00:03"})
    limited = sh.TableEntry("I.limited")(action="I.limit")
    limited.match["h.ethernet.src"] = "00:00:00:00:00:09"
    limited.meter_config.cir, limited.meter_config.cburst = 100, 10
    limited.meter_config.pir, limited.meter_config.pburst = 200, 20
    limited.insert()
    entry("I.routes", "I.forward", {"h.ipv4.dst": "10.1.0.0/16"}, port="2")
    match = {"h.ipv4.src": "10.0.0.0&&&255.0.0.0", "h.ipv4.protocol": "6..17", "h.ipv4.ttl": "1"}
    entry("I.filter", "I.drop", match, priority=7)
    default = sh.TableEntry("I.routes")(action="I.drop", is_default=True)
    default.modify()
    for table, entries in [("stations", 2), ("limited", 1), ("routes", 1), ("filter", 1)]:
        found = count(sh.TableEntry("I." + table))
        assert found == entries, (table, found)
    try:
        station.insert()
        raise AssertionError("an entry was inserted twice")
    except Exception as error:
        assert "ALREADY_EXISTS" in str(error), error


def profiles():
    for profile, table in [("I.hops", "I.next_hops"), ("I.choices", "I.spread")]:
        member = sh.ActionProfileMember(profile)(member_id=1, action="I.forward")
        member.action["port"] = "7"
        member.insert()
    group = sh.ActionProfileGroup("I.choices")(group_id=1)
    group.add(1)
    group.insert()
    hop = sh.TableEntry("I.next_hops")(member_id=1)
    hop.match["h.ipv4.tos"] = "4"
    hop.insert()
    spread = sh.TableEntry("I.spread")(group_id=1)
    spread.match["h.ethernet.src"] = "00:00:00:00:00:07&&&00:00:00:00:00:ff"
    spread.priority = 3
    spread.insert()
    once = sh.Action("I.forward")
    once["port"] = "2"
    several = sh.TableEntry("I.sprayed")(oneshot=sh.Oneshot("I.sprayed").add(once, weight=2))
    several.match["h.ethernet.src"] = "00:00:00:00:00:08"
    several.insert()
    assert count(sh.ActionProfileMember("I.choices")) == 1 and count(sh.ActionProfileGroup("I.choices")) == 1
    assert count(sh.TableEntry("I.spread")) == 1 and count(sh.TableEntry("I.next_hops")) == 1
    assert count(sh.TableEntry("I.sprayed")) == 1


def arrays():
    counter = sh.CounterEntry("I.by_port")(index=2)
    counter.packet_count, counter.byte_count = 5, 500
    counter.modify()
    meter = sh.MeterEntry("I.rates")(index=1)
    meter.cir, meter.cburst, meter.pir, meter.pburst = 10, 10, 20, 20
    meter.modify()
    [found] = [c for c in sh.CounterEntry("I.by_port")(index=2).read()]
    assert found.packet_count == 5, found
    assert count(sh.CounterEntry("I.by_port")) == 8 and count(sh.MeterEntry("I.rates")) == 8
    assert count(sh.DirectCounterEntry("I.hits")) == 2 and count(sh.DirectMeterEntry("I.limits")) == 1
    if hasattr(sh, "RegisterEntry"):
        assert count(sh.RegisterEntry("I.seen")) == 4


def replication():
    group = sh.MulticastGroupEntry(1)
    group.add(1, 1).add(2, 1)
    group.insert()
    session = sh.CloneSessionEntry(3)
    session.add(5, 1)
    session.insert()
    assert count(sh.MulticastGroupEntry()) == 1 and count(sh.CloneSessionEntry()) == 1


def streams():
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind((INTERFACE, 0))
    wire.settimeout(10)
    digest = sh.DigestEntry("station_t")
    digest.max_list_size = 1
    digest.insert()
    packets, lists = sh.PacketIn(), sh.DigestList()
    wire.send(frame("000000000003"))
    got = []
    packets.sniff(lambda message: got.append(message), timeout=3)
    assert got and got[0].packet.payload[:6] == bytes.fromhex("000000000003"), got
    messages = list(lists.sniff(timeout=3))
    assert messages, "no digest"
    out = sh.PacketOut(frame("000000000abc"), egress_port="1", padding="0")
    out.send()
    while wire.recv(2048)[:6] != bytes.fromhex("000000000abc"):
        pass


def main():
    config = sh.FwdPipeConfig(INFO, CONFIG)
    sh.setup(device_id=1, grpc_addr=ADDRESS, election_id=(0, 1), config=config)
    tables()
    profiles()
    arrays()
    replication()
    streams()
    for made in sh.TableEntry("I.stations").read():
        made.delete()
    assert count(sh.TableEntry("I.stations")) == 0
    sh.teardown()
    print("p4runtime-shell: done")


main()
