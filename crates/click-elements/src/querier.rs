//! `ARPQuerier`, `IP6NDSolicitor`: Ethernet addresses of next hops, asked for and remembered. Source: RFC
//! 826; RFC 1122, 2.3.2; RFC 4861, 7.1 and 7.2.
//!
//! A packet whose next hop is not known is kept in the table's entry, the latest for each hop, and the buffer
//! that carried it leaves as the question; the answer, when it comes, becomes the packet that was kept. So no
//! packet waits in a batch's buffers, and as many packets leave or are dropped as came.

use millstream_ir::{Prov, Size, Type, Value};
use millstream_isa::{AluOp, Cond};

use super::basic::nothing;
use super::ip6_error::{set_sum, set_words};
use super::ip6_neighbours::{self as neighbours, WHOLE};
use millstream_click::arguments::{boolean, ether, ip, ip6, net, prefix_text, seconds, unsigned};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, at, key, moot, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{Element, ElementSetup, Error, SpannedText, TableFormat, TableOperation};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass {
        ports: "1-2/1-2",
        processing: "h/h",
        ..ElementClass::filter(
            "ARPQuerier",
            "Puts Ethernet headers in front, with addresses that it asks for.",
            ARGUMENTS,
            querier,
        )
    },
    ElementClass {
        ports: "0/0",
        processing: "a",
        ..ElementClass::filter("ARPTable", "Is the table of all queriers that name it.", TABLE, table)
    },
    ElementClass {
        ports: "1-2/1-2",
        processing: "h/h",
        ..ElementClass::filter(
            "IP6NDSolicitor",
            "Puts Ethernet headers in front, with addresses that it asks for.",
            &[at("IP"), at("ETH")],
            solicitor,
        )
    },
];

const ARGUMENTS: &[ArgumentSpec] = &[
    at("IP"),
    at("ETH"),
    key("TIMEOUT"),
    key("ENTRY_CAPACITY"),
    key("TABLE"),
    key("BROADCAST"),
    moot("CAPACITY", IgnoredValueKind::Number(1, u64::MAX), ONE_WAITS),
    refused_but("ENTRY_PACKET_CAPACITY", &["1"], ONE_WAITS),
    moot("CAPACITY_SLIM_FACTOR", IgnoredValueKind::Number(1, u64::MAX), ONE_WAITS),
    key("POLL_TIMEOUT"),
    key("BROADCAST_POLL"),
    moot("CACHE", IgnoredValueKind::Truth, "the table is looked up for each packet, which gives the same"),
];
const TABLE: &[ArgumentSpec] = &[
    moot("CAPACITY", IgnoredValueKind::Number(1, u64::MAX), ONE_WAITS),
    key("ENTRY_CAPACITY"),
    refused_but("ENTRY_PACKET_CAPACITY", &["1"], ONE_WAITS),
    moot("CAPACITY_SLIM_FACTOR", IgnoredValueKind::Number(1, u64::MAX), ONE_WAITS),
    key("TIMEOUT"),
];
const ONE_WAITS: &str = "one packet waits for each hop, the latest (RFC 1122, 2.3.2.2)";

/// Hops that are known or asked for at a time, unless said otherwise.
const USUAL_ENTRIES: u64 = 1024;
/// Nanoseconds for which an answer holds, unless said otherwise; and those between two questions.
const USUAL_TIMEOUT: u64 = 300_000_000_000;
const NEIGHBOUR_TIMEOUT: u64 = 120_000_000_000;
const BETWEEN: i64 = 100_000_000;
/// Nanoseconds between questions behind so many without an answer, as in Click. Their number is in the upper
/// two bytes of the word with the hop's Ethernet address.
const MANY: i64 = 10;
const BETWEEN_MANY: i64 = 2_000_000_000;
const QUESTIONS: i64 = 48;
const MOST_QUESTIONS: i64 = 255;
/// The hop's Ethernet address, when it answered, when it was asked (0 for never), how long the packet is that
/// waits, when it answered or, before that, when it was put in.
const ENTRY: [Size; 5] = [Size::Dw; 5];
const ANSWERED: i32 = 8;
/// The first four bits of addresses of groups.
const GROUPS: i64 = 14;
const ASKED: i32 = 16;
const LENGTH: i32 = 24;
const SINCE: i32 = 32;
/// The packet that waits is behind that.
const KEPT: i32 = 40;
/// Longer packets do not wait.
const LONGEST: i64 = 1536;

/// Handlers, as Click's `ARPTable` has them.
const HANDLERS: &[(&str, TableOperation)] = &[
    ("table", TableOperation::List),
    ("count", TableOperation::Count),
    ("length", TableOperation::Waiting),
    ("lookup", TableOperation::Find),
    ("insert", TableOperation::Set),
    ("delete", TableOperation::Remove),
    ("clear", TableOperation::Clear),
];

/// Why one worker only.
const WAITING: &str =
    "packets that wait for an answer lie in its table, and would be read there while others are written";

/// Bytes of an Ethernet header, and of an ARP packet for IP with it.
const HEADER: i64 = 14;
const ARP: i64 = 42;
/// Room in front of a packet that was kept.
const ROOM: i64 = 128;

/// The advertisement of a neighbour, and the option in it, both bytes of each at once.
const ADVERTISED: i64 = 136 << 8;
const LINK_ADDRESS: i64 = 0x0201;

/// This host's address, by which protocol hops are asked.
#[derive(Clone, Copy)]
enum LocalAddress {
    Arp(u32),
    Neighbour(u128),
}

impl LocalAddress {
    /// The packet's next hop, as the table's key.
    fn hop(self, packet: PacketValues) -> Vec<Value> {
        match self {
            LocalAddress::Arp(_) => vec![packet.note(Annotation::Destination)],
            LocalAddress::Neighbour(_) => packet.destination6().to_vec(),
        }
    }

    /// Reason for dropping answers: no packet waited for them, or they are not answers.
    fn taken(self) -> &'static str {
        match self {
            LocalAddress::Arp(_) => "arp_reply",
            LocalAddress::Neighbour(_) => "advertisement",
        }
    }

    fn no_answer(self) -> &'static str {
        match self {
            LocalAddress::Arp(_) => "no_arp_reply",
            LocalAddress::Neighbour(_) => "no_advertisement",
        }
    }

    /// The type of frames that carry packets.
    fn ethertype(self) -> [u8; 2] {
        match self {
            LocalAddress::Arp(_) => [8, 0],
            LocalAddress::Neighbour(_) => [0x86, 0xdd],
        }
    }
}

struct NeighborQuerier {
    hops: ElementHashTable,
    own: LocalAddress,
    ether: [u8; 6],
    /// The address of all hosts of the network.
    broadcast: u32,
    timeout: u64,
    /// Age from which on an entry is asked for again although it still holds, if it is; and whether all hosts
    /// are asked then, not only the one that had answered.
    poll: Option<u64>,
    polls_all: bool,
    queries: u32,
    responses: u32,
}

fn querier(setup: &mut ElementSetup<'_>) -> ElementResult {
    let own = setup.arguments.need("IP")?;
    let names = setup.arguments.names;
    let address = ip(&own, names).or_else(|error| written_net(&own).map(|net| net.0).ok_or(error))?;
    if address == 0 {
        return Err(Error::new(own.span, "without an address of its own it would drop all packets"));
    }
    let mask = written_net(&own).or_else(|| net(&own, names).ok()).map_or(u32::MAX, |(_, mask)| mask);
    let broadcast = if mask == u32::MAX { u32::MAX } else { address | !mask };
    let broadcast = setup.arguments.keyword_or("BROADCAST", broadcast, |text| ip(text, names))?;
    // A name may have values of both kinds.
    let ether = ether(&setup.arguments.next("ETH").unwrap_or(own), names)?;
    let table = setup.arguments.keyword("TABLE");
    let table = table.map(|text| shared_table(setup, &text)).transpose()?;
    let said = |name: &str| table.as_ref().and_then(|table| argument_of(table, name));
    let timeout = setup.arguments.keyword("TIMEOUT").or_else(|| said("TIMEOUT"));
    let timeout = timeout.map_or(Ok(USUAL_TIMEOUT), |text| seconds(&text))?;
    let entries = setup.arguments.keyword("ENTRY_CAPACITY").or_else(|| said("ENTRY_CAPACITY"));
    let entries = capacity(entries)?;
    // Click polls after a minute. Here that is only done on request, since it takes copies of packets.
    let poll = setup.arguments.keyword_or("POLL_TIMEOUT", 0, seconds)?;
    let polls_all = setup.arguments.keyword_or("BROADCAST_POLL", false, boolean)?;
    let table = table.map(|table| table.name);
    let hops = setup.shared_table(table.as_deref(), "hops", &[Size::W], &ENTRY, LONGEST as u32, entries);
    let [queries, responses] = counted(setup, &hops, TableFormat::Hops { timeout, bytes: 4 });
    Ok(Box::new(NeighborQuerier {
        hops,
        own: LocalAddress::Arp(address),
        ether,
        broadcast,
        timeout,
        poll: Some(poll).filter(|poll| *poll > 0),
        polls_all,
        queries,
        responses,
    }))
}

/// The prefix in the argument, with all bits of its address.
fn written_net(text: &SpannedText) -> Option<(u32, u32)> {
    prefix_text(&text.text).filter(|_| text.text.contains('/'))
}

/// The element whose table several queriers share.
fn shared_table(setup: &ElementSetup<'_>, text: &SpannedText) -> Result<Element, Error> {
    Ok(setup.needed(text, "`ARPTable`", &["ARPTable"])?.clone())
}

/// The value of an argument of another element that is given by name.
fn argument_of(element: &Element, name: &str) -> Option<SpannedText> {
    element.arguments.iter().find_map(|argument| {
        let value = argument.text.strip_prefix(name)?.strip_prefix(char::is_whitespace)?;
        Some(SpannedText { text: value.trim().to_owned(), span: argument.span })
    })
}

/// Number of hops that are known or asked for at a time; 0 is the usual one.
fn capacity(text: Option<SpannedText>) -> Result<u32, Error> {
    let entries = text.map_or(Ok(0), |text| unsigned(&text, 1 << 20))?;
    Ok(if entries == 0 { USUAL_ENTRIES as u32 } else { entries as u32 })
}

/// A table that queriers name: with its handlers.
fn table(setup: &mut ElementSetup<'_>) -> ElementResult {
    let timeout = setup.arguments.keyword_or("TIMEOUT", USUAL_TIMEOUT, seconds)?;
    let entries = capacity(setup.arguments.keyword("ENTRY_CAPACITY"))?;
    let hops = setup.shared_table(None, "hops", &[Size::W], &ENTRY, LONGEST as u32, entries);
    setup.require_single_worker(WAITING);
    let map = setup.map_name(&hops);
    setup.table_handlers(&map, TableFormat::Hops { timeout, bytes: 4 }, HANDLERS);
    nothing(setup)
}

fn solicitor(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let own = LocalAddress::Neighbour(ip6(&setup.arguments.need("IP")?, names)?);
    let ether = ether(&setup.arguments.need("ETH")?, names)?;
    let hops = setup.evicting_table("hops", &[Size::W; 4], &ENTRY, LONGEST as u32, USUAL_ENTRIES as u32);
    let [queries, responses] =
        counted(setup, &hops, TableFormat::Hops { timeout: NEIGHBOUR_TIMEOUT, bytes: 16 });
    Ok(Box::new(NeighborQuerier {
        hops,
        own,
        ether,
        broadcast: u32::MAX,
        timeout: NEIGHBOUR_TIMEOUT,
        poll: None,
        polls_all: false,
        queries,
        responses,
    }))
}

/// Handlers of a table of hops, and the counters of questions and answers.
fn counted(setup: &mut ElementSetup<'_>, hops: &ElementHashTable, form: TableFormat) -> [u32; 2] {
    setup.require_single_worker(WAITING);
    let map = setup.map_name(hops);
    setup.table_handlers(&map, form, HANDLERS);
    ["queries", "responses"].map(|name| setup.counter(name))
}

impl ElementCodegen for NeighborQuerier {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        match port {
            0 => self.send(code, packet),
            _ => self.learn(code, packet),
        }
    }
}

impl NeighborQuerier {
    /// Sends a packet to its next hop, or asks for that.
    fn send(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        let (now, hop, zero) = (code.time(), self.own.hop(packet), code.int(0));
        let found = code.find(&self.hops, &hop);
        let (known, new) = (code.block(), code.block());
        let entry = code.param(known, Type::Ptr(Prov::MapValue(self.hops.map)));
        code.branch_with(Cond::Ne, found, zero, (known, &[found]), (new, &[]));
        code.switch_to_block(new);
        self.without_asking(code, packet, &hop);
        let error = code.update_entry(&self.hops, &hop, &[zero, zero, zero, zero, now]);
        code.check_int(Cond::Eq, error, 0, |code| code.drop(packet, "no_room_for_hop"));
        let made = code.find(&self.hops, &hop);
        code.check_int(Cond::Ne, made, 0, |code| code.drop(packet, "no_room_for_hop"));
        code.jump(known, &[made]);

        code.switch_to_block(known);
        let (fresh, unknown) = (code.block(), code.block());
        let answered = code.wide(entry, ANSWERED);
        let age = code.sub(now, answered);
        code.check_int(Cond::Ne, answered, 0, |code| code.jump(unknown, &[]));
        let most = code.int(self.timeout as i64);
        // Entries that were there before the first packet may be younger than its time.
        code.branch(Cond::Sle, age, most, fresh, unknown);
        code.switch_to_block(fresh);
        if let Some(poll) = self.poll {
            self.poll(code, packet, entry, (now, age, poll));
        }
        self.encapsulate(code, packet, entry);
        code.switch_to_block(unknown);
        self.keep(code, packet, entry);
        let asked = code.wide(entry, ASKED);
        let (ask, lately) = (code.block(), code.block());
        code.branch(Cond::Eq, asked, zero, ask, lately);
        code.switch_to_block(lately);
        let since = code.sub(now, asked);
        let ether = code.wide(entry, 0);
        let (questions, many) = (code.with(AluOp::Rsh, ether, QUESTIONS), code.int(MANY));
        let is_many = code.compare(Cond::Ge, questions, many);
        let [few, many] = [BETWEEN, BETWEEN_MANY].map(|time| code.int(time));
        let between = code.select(is_many, many, few);
        code.check(Cond::Lt, since, between, |code| code.jump(ask, &[]));
        code.drop(packet, "waits_for_hop");
        code.switch_to_block(ask);
        code.set_wide(entry, ASKED, now);
        let ether = code.wide(entry, 0);
        let (questions, most) = (code.with(AluOp::Rsh, ether, QUESTIONS), code.int(MOST_QUESTIONS));
        let more = code.with(AluOp::Add, ether, 1 << QUESTIONS);
        let is_most = code.compare(Cond::Ge, questions, most);
        let ether = code.select(is_most, ether, more);
        code.set_wide(entry, 0, ether);
        match self.own {
            LocalAddress::Arp(address) => self.ask(code, packet, address, hop[0], None),
            LocalAddress::Neighbour(address) => self.solicit(code, packet, address),
        }
    }

    /// Asks for a known hop again if its entry has this age; the packet goes on as a copy then. Ends in that
    /// case.
    fn poll(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        entry: Value,
        (now, age, poll): (Value, Value, u64),
    ) {
        let (LocalAddress::Arp(address), Some(behind)) = (self.own, code.target(0)) else { return };
        let (old, due, on) = (code.block(), code.block(), code.block());
        let (most, between) = (code.int(poll as i64), code.int(BETWEEN));
        code.branch(Cond::Sgt, age, most, old, on);
        code.switch_to_block(old);
        let (asked, zero) = (code.wide(entry, ASKED), code.int(0));
        let (since, is_first) = (code.sub(now, asked), code.compare(Cond::Eq, asked, zero));
        let since = code.select(is_first, between, since);
        code.branch(Cond::Ge, since, between, due, on);
        code.switch_to_block(due);
        code.set_wide(entry, ASKED, now);
        let hop = code.wide(entry, 0);
        code.fork_to(behind, packet, |code, copy| {
            let data = code.push(copy, copy.data, HEADER);
            set_raw_ether(code, data, hop);
            self.finish_header(code, data);
            copy.bounded(data, copy.end)
        });
        let to = (!self.polls_all).then_some(hop);
        self.ask(code, packet, address, packet.note(Annotation::Destination), to);
        code.switch_to_block(on);
    }

    /// Ends for hops that are never asked for and not in the table: none, all and groups.
    fn without_asking(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, hop: &[Value]) {
        let any = hop[1..].iter().fold(hop[0], |any, word| code.alu(AluOp::Or, any, *word));
        code.check_int(Cond::Ne, any, 0, |code| code.drop(packet, "no_destination"));
        let LocalAddress::Arp(_) = self.own else { return };
        for all in [u32::MAX, self.broadcast] {
            code.check_int(Cond::Ne, hop[0], i64::from(all), |code| {
                let data = code.push(packet, packet.data, HEADER);
                code.write(data, 0, &[0xff; 6]);
                self.encapsulated(code, packet, data);
            });
        }
        let class = code.with(AluOp::Rsh, hop[0], 28);
        code.check_int(Cond::Ne, class, GROUPS, |code| {
            let data = code.push(packet, packet.data, HEADER);
            let group = code.with(AluOp::And, hop[0], 0x007f_ffff);
            code.write(data, 0, &[1, 0]);
            // The third byte of such an address is 0x5e, and its last 23 bits are the group's.
            let last = code.with(AluOp::Or, group, 0x5e00_0000);
            code.set_word(data, 2, last);
            self.encapsulated(code, packet, data);
        });
    }

    /// Puts the header for a hop in front, and ends.
    fn encapsulate(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, entry: Value) {
        let data = code.push(packet, packet.data, HEADER);
        let hop = code.wide(entry, 0);
        set_raw_ether(code, data, hop);
        self.encapsulated(code, packet, data);
    }

    /// Ends with a packet whose Ethernet header begins at `data` and has its destination already.
    fn encapsulated(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, data: Value) {
        self.finish_header(code, data);
        code.out(0, packet.bounded(data, packet.end));
    }

    /// Writes source and type of the Ethernet header at `data`.
    fn finish_header(&self, code: &mut ElementBuilder<'_, '_>, data: Value) {
        code.write(data, 6, &[self.ether.as_slice(), &self.own.ethertype()].concat());
    }

    /// Copies the packet into a hop's entry, in place of one that waits there.
    fn keep(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, entry: Value) {
        let (length, zero) = (code.length(packet), code.int(0));
        let most = code.int(LONGEST);
        let fits = code.compare(Cond::Le, length, most);
        let length = code.select(fits, length, zero);
        code.set_wide(entry, LENGTH, length);
        let to = code.offset(entry, i64::from(KEPT), self.hops.map);
        code.copy_bytes(to, packet.data, length);
    }

    /// Makes the packet a question for a hop, and ends. It goes to all hosts, or to this Ethernet address.
    fn ask(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        address: u32,
        hop: Value,
        to: Option<Value>,
    ) {
        let data = code.bound(packet.handle, 8, Type::Ptr(Prov::Packet));
        let address = address.to_be_bytes();
        let head =
            [&[0xff; 6][..], &self.ether, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &self.ether, &address, &[0; 6]];
        code.write(data, 0, &head.concat());
        code.set_word(data, 38, hop);
        if let Some(to) = to {
            set_raw_ether(code, data, to);
        }
        self.asked(code, packet, data, ARP);
    }

    /// Makes the packet a neighbour solicitation for its next hop, and ends. It goes to the multicast group
    /// of hosts whose address ends as the hop's.
    fn solicit(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, address: u128) {
        let data = code.bound(packet.handle, 8, Type::Ptr(Prov::Packet));
        let hop = packet.destination6();
        let last = code.with(AluOp::Or, hop[3], 0xff00_0000);
        code.write(data, 0, &[0x33, 0x33]);
        code.set_word(data, 2, last);
        let (own, option) = (address.to_be_bytes(), [1, 1]);
        code.write(data, 6, &[&self.ether[..], &[0x86, 0xdd], &neighbours::HEAD, &own].concat());
        code.write(data, neighbours::DESTINATION, &[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        code.set_word(data, neighbours::DESTINATION + 12, last);
        code.write(data, neighbours::KIND, &[135, 0, 0, 0, 0, 0, 0, 0]);
        set_words(code, data, neighbours::TARGET, hop);
        code.write(data, neighbours::OPTION, &[&option, &self.ether[..]].concat());
        let (header, bytes) = (code.at(data, HEADER), code.int(neighbours::MESSAGE));
        set_sum(code, header, bytes);
        self.asked(code, packet, data, WHOLE);
    }

    /// Sends a question of a length that begins at `data`.
    fn asked(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, data: Value, length: i64) {
        let (length, one) = (code.int(length), code.int(1));
        let end = code.end(data, length);
        code.count(self.queries, one);
        let port = u32::from(code.connected(1));
        let is_arp = code.truth(matches!(self.own, LocalAddress::Arp(_)));
        let network = code.at(data, HEADER);
        let question = packet.bounded(data, end).with(Annotation::Network, network);
        code.out(port, question.with(Annotation::HasNetwork, is_arp));
    }

    /// The hop that an answer is about, and its Ethernet address. Drops packets that are not answers.
    fn answered(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> (Vec<Value>, Value) {
        let data = packet.data;
        match self.own {
            LocalAddress::Arp(_) => {
                code.need(packet, data, ARP, "too_short");
                // ARP of IP over Ethernet, an answer, of one station.
                for (offset, wanted) in [(12, 0x0806_0001), (16, 0x0800_0604)] {
                    let word = code.word(data, offset);
                    code.check_int(Cond::Eq, word, wanted, |code| code.drop(packet, self.own.no_answer()));
                }
                let (operation, first) = (code.half(data, 20), code.byte(data, 22));
                code.check_int(Cond::Eq, operation, 2, |code| code.drop(packet, self.own.no_answer()));
                let group = code.with(AluOp::And, first, 1);
                code.check_int(Cond::Eq, group, 0, |code| code.drop(packet, self.own.no_answer()));
                (vec![code.word(data, 28)], ether_at(code, data, 22))
            }
            LocalAddress::Neighbour(_) => {
                code.need(packet, data, WHOLE, "too_short");
                let fields =
                    [(12, 0x86dd), (neighbours::KIND, ADVERTISED), (neighbours::OPTION, LINK_ADDRESS)];
                for (offset, wanted) in fields {
                    let found = code.half(data, offset);
                    code.check_int(Cond::Eq, found, wanted, |code| code.drop(packet, self.own.no_answer()));
                }
                // The message was not forwarded.
                let hops = code.byte(data, 21);
                code.check_int(Cond::Eq, hops, i64::from(u8::MAX), |code| {
                    code.drop(packet, self.own.no_answer())
                });
                let hop = code.words(data, neighbours::TARGET);
                (hop.to_vec(), ether_at(code, data, neighbours::OPTION + 2))
            }
        }
    }

    /// Records the addresses of an answer, and makes it the packet that waited for it.
    fn learn(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        let (hop, ether) = self.answered(code, packet);
        let (now, one, zero) = (time_of_answer(code), code.int(1), code.int(0));
        code.count(self.responses, one);
        let entry = code.find(&self.hops, &hop);
        code.check_int(Cond::Ne, entry, 0, |code| {
            code.update_entry(&self.hops, &hop, &[ether, now, zero, zero, now]);
            code.drop(packet, self.own.taken());
        });
        let length = code.wide(entry, LENGTH);
        for (at, value) in [(0, ether), (ANSWERED, now), (ASKED, zero), (LENGTH, zero), (SINCE, now)] {
            code.set_wide(entry, at, value);
        }
        code.check_int(Cond::Ne, length, 0, |code| code.drop(packet, self.own.taken()));
        let room = code.bound(packet.handle, 8, Type::Ptr(Prov::Packet));
        let data = code.at(room, ROOM);
        let from = code.offset(entry, i64::from(KEPT), self.hops.map);
        code.copy_bytes(data, from, length);
        let end = code.end(data, length);
        let is_ip = code.truth(matches!(self.own, LocalAddress::Arp(_)));
        let kept = packet.bounded(data, end).with(Annotation::Network, data);
        self.encapsulate(code, kept.with(Annotation::HasNetwork, is_ip), entry);
    }
}

/// The time, which is not 0: an entry with that has no answer.
fn time_of_answer(code: &mut ElementBuilder<'_, '_>) -> Value {
    let (now, zero, one) = (code.time(), code.int(0), code.int(1));
    let begins = code.compare(Cond::Eq, now, zero);
    code.select(begins, one, now)
}

/// Writes an Ethernet address that an entry has.
fn set_raw_ether(code: &mut ElementBuilder<'_, '_>, data: Value, ether: Value) {
    let rest = code.with(AluOp::Rsh, ether, 32);
    code.set_raw(4, data, 0, ether);
    code.set_raw(2, data, 4, rest);
}

/// An Ethernet address, as an entry has it.
fn ether_at(code: &mut ElementBuilder<'_, '_>, data: Value, offset: i32) -> Value {
    let (low, high) = (code.raw(4, data, offset), code.raw(2, data, offset + 4));
    let high = code.with(AluOp::Lsh, high, 32);
    code.alu(AluOp::Or, high, low)
}
