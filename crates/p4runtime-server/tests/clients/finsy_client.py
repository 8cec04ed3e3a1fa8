"""Controller of finsy (0.30): python3 finsy_client.py ADDR:PORT P4INFO CONFIG INTERFACE [CA]

INTERFACE is the other end of port 1 of the switch, which runs `entities.p4`; CA turns TLS on.
"""

import asyncio
import socket
import sys
from pathlib import Path

import finsy as fy
from finsy.p4entity import P4ValueSetMember

ADDRESS, INFO, CONFIG, INTERFACE = sys.argv[1:5]
AUTHORITY = sys.argv[5] if len(sys.argv) > 5 else None


def frame(dst, src=9, kind=0x88B5, payload=bytes(46)):
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + kind.to_bytes(2, "big") + payload


async def all_of(switch, entities):
    return [entity async for entity in switch.read(entities)]


async def first(stream):
    async for item in stream:
        return item


def written():
    """One entity of each kind that controllers insert."""
    forward = lambda port: fy.Action("forward", port=port)
    return [
        +fy.P4MulticastGroupEntry(1, replicas=[2, 3]),
        +fy.P4CloneSessionEntry(3, replicas=[2]),
        +fy.P4TableEntry("stations", match=fy.Match({"h.ethernet.dst": 1}), action=forward(2)),
        +fy.P4TableEntry("stations", match=fy.Match({"h.ethernet.dst": 2}), action=fy.Action("flood", group=1)),
        +fy.P4TableEntry("stations", match=fy.Match({"h.ethernet.dst": 3}), action=fy.Action("to_controller")),
        +fy.P4TableEntry(
            "limited",
            match=fy.Match({"h.ethernet.src": 9}),
            action=fy.Action("limit"),
            meter_config=fy.P4MeterConfig(cir=100, cburst=10, pir=200, pburst=20),
        ),
        +fy.P4TableEntry("routes", match=fy.Match({"h.ipv4.dst": "10.1.0.0/16"}), action=forward(2)),
        +fy.P4TableEntry(
            "filter",
            match=fy.Match({"h.ipv4.src": "10.0.0.0/8", "h.ipv4.protocol": "6...17", "h.ipv4.ttl": 1}),
            action=fy.Action("drop"),
            priority=7,
        ),
        +fy.P4ActionProfileMember("hops", member_id=1, action=forward(2)),
        +fy.P4TableEntry("next_hops", match=fy.Match({"h.ipv4.tos": 4}), action=fy.IndirectAction(member_id=1)),
        +fy.P4ActionProfileMember("choices", member_id=1, action=forward(2)),
        +fy.P4ActionProfileMember("choices", member_id=2, action=forward(3)),
        +fy.P4ActionProfileGroup(
            "choices", group_id=1, members=[fy.P4Member(1, weight=1), fy.P4Member(2, weight=1)]
        ),
        +fy.P4TableEntry(
            "spread",
            match=fy.Match({"h.ethernet.src": "0x7/&0xff"}),
            action=fy.IndirectAction(group_id=1),
            priority=3,
        ),
        +fy.P4TableEntry(
            "sprayed",
            match=fy.Match({"h.ethernet.src": 8}),
            action=fy.IndirectAction([(2, forward(2)), (1, forward(3))]),
        ),
        +fy.P4DigestEntry("station_t", max_list_size=1, max_timeout_ns=0, ack_timeout_ns=10**9),
    ]


async def entities(switch):
    await switch.delete_all()
    await switch.write(written())
    assert len(await all_of(switch, fy.P4TableEntry("stations"))) == 3
    for table in ["limited", "routes", "filter", "next_hops", "spread", "sprayed"]:
        assert len(await all_of(switch, fy.P4TableEntry(table))) == 1, table
    found = await all_of(switch, fy.P4TableEntry("filter"))
    assert found[0].priority == 7 and found[0].action.name.endswith("drop"), found
    for kind, count in [
        (fy.P4MulticastGroupEntry(), 1),
        (fy.P4CloneSessionEntry(), 1),
        (fy.P4ActionProfileMember("choices"), 2),
        (fy.P4ActionProfileGroup("choices"), 1),
        (fy.P4DigestEntry("station_t"), 1),
        (fy.P4RegisterEntry("seen"), 4),
        (fy.P4CounterEntry("by_port"), 8),
        (fy.P4MeterEntry("rates"), 8),
        (fy.P4DirectCounterEntry("hits"), 3),
        (fy.P4DirectMeterEntry(table_entry=fy.P4TableEntry("limited")), 1),
    ]:
        read = await all_of(switch, kind)
        assert len(read) == count, (kind, read)
    await switch.modify(
        [
            fy.P4RegisterEntry("seen", index=1, data=77),
            fy.P4CounterEntry("by_port", index=2, data=fy.P4CounterData(packet_count=5, byte_count=500)),
            fy.P4MeterEntry("rates", index=1, config=fy.P4MeterConfig(cir=10, cburst=10, pir=20, pburst=20)),
            fy.P4ValueSetEntry("ip_types", members=[P4ValueSetMember(0x0800)]),
        ]
    )
    [values] = await all_of(switch, fy.P4ValueSetEntry("ip_types", members=[]))
    assert len(values.members) == 1, values
    [register] = await all_of(switch, fy.P4RegisterEntry("seen", index=1))
    [counter] = await all_of(switch, fy.P4CounterEntry("by_port", index=2))
    assert register.data == 77 and counter.data.packet_count == 5, (register, counter)
    try:
        await switch.insert([fy.P4TableEntry("stations", match=fy.Match({"h.ethernet.dst": 1}), action=fy.Action("drop"))])
        raise AssertionError("an entry was inserted twice")
    except fy.P4ClientError as error:
        print("refused:", error.details[0].message)


async def packets(switch):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind((INTERFACE, 0))
    incoming = asyncio.ensure_future(first(switch.read_packets()))
    digests = asyncio.ensure_future(first(switch.read_digests("station_t")))
    idle = asyncio.ensure_future(first(switch.read_idle_timeouts()))
    await asyncio.sleep(0.1)
    wire.send(frame(3))
    packet = await asyncio.wait_for(incoming, 10)
    assert packet.payload[:14] == frame(3)[:14] and packet["ingress_port"] == 1, packet
    digest = await asyncio.wait_for(digests, 10)
    assert digest.data[0]["address"] == 9 and digest.data[0]["port"] == 1, digest
    await switch.write([fy.P4DigestListAck(digest.digest_id, digest.list_id)])
    wire.setblocking(False)
    loop = asyncio.get_running_loop()
    await switch.write([fy.P4PacketOut(frame(0xABC), egress_port=1, padding=0)])
    while True:
        got = await asyncio.wait_for(loop.sock_recv(wire, 2048), 10)
        if got[:6] == (0xABC).to_bytes(6, "big"):
            break
    await switch.insert(
        [
            fy.P4TableEntry(
                "stations", match=fy.Match({"h.ethernet.dst": 5}), action=fy.Action("drop"), idle_timeout_ns=50_000_000
            )
        ]
    )
    notice = await asyncio.wait_for(idle, 10)
    assert notice.table_entry[0].match["dst"] == 5, notice
    [entry] = await all_of(
        switch,
        fy.P4DirectCounterEntry(table_entry=fy.P4TableEntry("stations", match=fy.Match({"h.ethernet.dst": 3}))),
    )
    assert entry.data.packet_count >= 1, entry


async def main():
    options = fy.SwitchOptions(p4info=Path(INFO), p4blob=Path(CONFIG), device_id=1)
    if AUTHORITY:
        options = options(channel_credentials=fy.GRPCCredentialsTLS(cacert=Path(AUTHORITY), cert=None, private_key=None))
    async with fy.Switch("sw1", ADDRESS, options) as switch:
        assert switch.is_primary
        await entities(switch)
        await packets(switch)
        async with fy.Switch("sw2", ADDRESS, options(initial_election_id=5)) as backup:
            assert not backup.is_primary and len(await all_of(backup, fy.P4TableEntry("stations"))) == 4
            try:
                await backup.delete_all()
                raise AssertionError("a backup controller wrote")
            except fy.P4ClientError as error:
                print("refused:", error.message)
        await switch.delete_all()
        assert not await all_of(switch, fy.P4TableEntry("stations"))
    print("finsy: done")


asyncio.run(main())
