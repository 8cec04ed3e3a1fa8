//! Address and port translation: `IPRewriter` and its kin. Source: RFC 2663, RFC 5508, RFC 1624.
//!
//! A flow has two entries in a table, one per direction. The key is the part of an arriving packet that tells
//! flows apart ([`FlowKeyKind`]); the value is what it becomes, what the change adds to the checksums, the
//! output, and the time of the last packet. Time is checked when a packet comes: an entry is treated as
//! absent if the time of both directions has run out. The table evicts the least recently used entry, so that
//! it is never full.
//!
//! Addresses and ports are handled as they lie in memory.

mod apply;
mod classes;
mod errors;
mod ftp;
mod input;
mod mapper;
mod sack;
mod slots;
mod spec;

use millstream_ir::{Block, Size, Value};
use millstream_isa::{AluOp, Cond};

pub(super) use self::classes::CLASSES;
use self::input::{InputSpec, input_specs};
use self::slots::{FlowSlots, mapping_capacity, sharer, slots};
use self::spec::{AllocationOrder, AllocationRange, RewritePattern};
use super::flows::managed_time;
use super::ip::{header, header_length};
use super::transport::{ICMP, TCP, UDP};
use millstream_click::arguments::{SECOND, boolean, ip, seconds};
use millstream_click::build::{EEXIST, ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementCodegen, ElementResult};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, HandlerAccess, TableFormat, TableOperation};

/// Types of echo requests and their answers.
const ECHO: i64 = 8;
const ECHO_REPLY: i64 = 0;
/// Entries unless said otherwise: 65,536 flows.
const USUAL_ENTRIES: u64 = 1 << 17;
/// When entries are old, in seconds: of UDP, of TCP, of TCP that has ended.
const USUAL_TIMEOUTS: [(&str, u64); 3] =
    [("UDP_TIMEOUT", 300), ("TCP_TIMEOUT", 86_400), ("TCP_DONE_TIMEOUT", 240)];
/// Addresses, ports, protocol.
const KEY: [Size; 3] = [Size::Dw, Size::W, Size::W];
/// Value of an entry: its fields ([`MappingEntry`]), flags, and the time of the last packet.
const FLOW: [Size; 7] = [Size::Dw, Size::W, Size::W, Size::W, Size::H, Size::H, Size::Dw];
/// The same, and behind it the flow's slot, doubled, and one more for answers.
const SLOTTED_FLOW: [Size; 8] = [Size::Dw, Size::W, Size::W, Size::W, Size::H, Size::H, Size::Dw, Size::Dw];
/// Offset of that.
const SLOT: i32 = 32;
/// The bits of a key's protocol that are a protocol's; above these is the number of a rewriter.
const PROTOCOL: i64 = 0xff;
/// In an entry's flags: this direction has ended.
const DONE: i64 = 1;
/// In an entry's flags: it is of answers, whose paint is in the upper byte.
const PAINTED: i64 = 2;

/// The ports that it gives out, the first and how many more.
const TRANSLATED_PORTS: (u16, u16) = (1024, 64_511);

/// Part of a packet that tells flows apart and is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlowKeyKind {
    /// Addresses, and ports of TCP and UDP.
    Ports,
    /// Addresses, and identifiers of echo requests and their answers. The identifier stands where the source
    /// port of requests is and the destination port of answers; the other port is greater by one, so that a
    /// request is never an answer.
    Echoes,
    /// Both addresses.
    Pairs,
    /// The source's address, and the destination's of packets that come back. The other address is 0.
    Hosts,
}

/// A rewriter's flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RewriterFlows {
    table: ElementHashTable,
    kind: FlowKeyKind,
    /// Nanoseconds after which entries are old: of UDP, of TCP, of TCP that has ended.
    timeouts: [u64; 3],
    /// Number of the rewriter in its keys, if it shares the table of another one; else 0.
    sharer: i64,
    /// Slots of its flows, if it has few mappings.
    slots: Option<FlowSlots>,
}

#[derive(Clone)]
pub(crate) struct IpRewriter {
    flows: RewriterFlows,
    protocols: &'static [i64],
    inputs: Vec<InputSpec>,
    outputs: u32,
    /// True if the destination annotation becomes the packet's new destination.
    annotates: bool,
    /// True if answers get the paint of the packet that began their flow.
    paints: bool,
    /// Table of the growth of streams that a mapper in front has changed, if there is one.
    deltas: Option<ElementHashTable>,
}

fn rewriter(setup: &mut ElementSetup<'_>, kind: FlowKeyKind, protocols: &'static [i64]) -> ElementResult {
    let all = setup.arguments.keyword("TIMEOUT").map(|text| seconds(&text)).transpose()?;
    let mut timeouts = [0; 3];
    for (timeout, (name, usual)) in timeouts.iter_mut().zip(USUAL_TIMEOUTS) {
        let usual = match kind {
            FlowKeyKind::Ports => usual,
            FlowKeyKind::Echoes => 300,
            FlowKeyKind::Pairs | FlowKeyKind::Hosts => 7200,
        };
        *timeout = setup.arguments.keyword_or(name, all.unwrap_or(usual * SECOND), seconds)?;
    }
    let annotates = setup.arguments.keyword_or("DST_ANNO", true, boolean)?;
    let paints = reply_annotation(setup)?;
    let capacity = mapping_capacity(setup)?;
    let entries = capacity.flows.map_or(USUAL_ENTRIES, |flows| (2 * flows).max(2));
    let slots = if kind == FlowKeyKind::Ports { slots(setup, &capacity, timeouts)? } else { None };
    let sharer = sharer(setup, &capacity, kind);
    let specs = setup.arguments.rest();
    if specs.len() != setup.inputs as usize {
        let message =
            format!("{} specifications and {} inputs: there must be one each", specs.len(), setup.inputs);
        return Err(Error::new(setup.arguments.span(), message));
    }
    let inputs = input_specs(setup, kind, &specs)?;
    setup.handler("patterns", HandlerAccess::Text(inputs.iter().map(|input| format!("{input}\n")).collect()));
    let value = if slots.is_some() { &SLOTTED_FLOW[..] } else { &FLOW };
    let table = setup.shared_table(Some(&capacity.owner), "flows", &KEY, value, 0, entries as u32);
    let flows = RewriterFlows { table, kind, timeouts, sharer, slots };
    known_flows(setup, flows);
    let deltas = ftp::deltas_of(setup);
    let rewriter = IpRewriter { flows, protocols, inputs, outputs: setup.outputs, annotates, paints, deltas };
    setup.publish(rewriter.clone());
    Ok(Box::new(rewriter))
}

/// Returns true if answers are to be annotated with the paint of their flow's first packet.
fn reply_annotation(setup: &mut ElementSetup<'_>) -> Result<bool, Error> {
    match setup.arguments.keyword("REPLY_ANNO") {
        None => Ok(false),
        Some(text) if text.text == "PAINT" => Ok(true),
        Some(text) => {
            let message = format!("REPLY_ANNO {} is not supported: the paint alone is kept", text.text);
            Err(Error::new(text.span, message))
        }
    }
}

/// Says where the flows are, for other elements and for handlers.
fn known_flows(setup: &mut ElementSetup<'_>, flows: RewriterFlows) {
    let map = setup.map_name(&flows.table);
    if let Some(slots) = flows.slots {
        setup.handler("size", HandlerAccess::Number(slots.count));
        setup.handler("mapping_failures", HandlerAccess::Number(slots.failures));
    }
    let verbs = [
        ("table", TableOperation::List),
        ("tcp_table", TableOperation::List),
        ("udp_table", TableOperation::List),
        ("size", TableOperation::Count),
        ("table_size", TableOperation::Count),
        ("clear", TableOperation::Clear),
    ];
    // Slots are not given back by clearing a table.
    let own = |(name, verb): &&(&'static str, TableOperation)| {
        flows.slots.is_none() || *name != "size" && *verb != TableOperation::Clear
    };
    let verbs: Vec<_> = verbs.iter().filter(own).copied().collect();
    setup.table_handlers(&map, TableFormat::Flows, &verbs);
    setup.publish(flows);
}

/// Each flow from one address, its port the one behind the last that was given out.
fn translator(setup: &mut ElementSetup<'_>) -> ElementResult {
    let source = ip(&setup.arguments.need("SIP")?, setup.arguments.names)?;
    let next = setup.number();
    let source_port = Some(TRANSLATED_PORTS);
    let pattern = RewritePattern {
        source: Some(source),
        source_port,
        choice: AllocationOrder::Next,
        next,
        ..RewritePattern::default()
    };
    let table = setup.evicting_table("flows", &KEY, &FLOW, 0, USUAL_ENTRIES as u32);
    let inputs = vec![InputSpec::Flow { pattern, outputs: [0, 0] }];
    let managed = managed_time(setup)?;
    let timeouts = USUAL_TIMEOUTS.map(|(_, seconds)| managed.unwrap_or(seconds * SECOND));
    let flows = RewriterFlows { table, kind: FlowKeyKind::Ports, timeouts, sharer: 0, slots: None };
    known_flows(setup, flows);
    let (protocols, outputs) = (&[TCP, UDP], setup.outputs);
    let (annotates, paints) = (true, false);
    Ok(Box::new(IpRewriter { flows, protocols, inputs, outputs, annotates, paints, deltas: None }))
}

/// Addresses and ports of a flow, each pair as it lies in memory.
#[derive(Clone, Copy)]
struct FlowTuple {
    addresses: Value,
    ports: Value,
}

/// Which of its addresses an entry says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MappedAddresses {
    Both,
    Source,
    Destination,
}

impl MappedAddresses {
    /// A pair of addresses; the other one is 0, if there is another.
    fn of(self, code: &mut ElementBuilder<'_, '_>, addresses: Value) -> Value {
        match self {
            MappedAddresses::Both => addresses,
            MappedAddresses::Source => code.with(AluOp::And, addresses, LOW),
            MappedAddresses::Destination => code.with(AluOp::And, addresses, !LOW),
        }
    }

    /// The addresses of an entry; the other address, which is 0 there, is that of `rest`.
    fn whole(self, code: &mut ElementBuilder<'_, '_>, said: Value, rest: Value) -> Value {
        let rest = match self {
            MappedAddresses::Both => return said,
            MappedAddresses::Source => MappedAddresses::Destination.of(code, rest),
            MappedAddresses::Destination => MappedAddresses::Source.of(code, rest),
        };
        code.alu(AluOp::Or, said, rest)
    }
}

/// Of a pair of addresses, the source's.
const LOW: i64 = 0xffff_ffff;

impl RewriterFlows {
    fn key(flow: FlowTuple, protocol: Value) -> [Value; 3] {
        [flow.addresses, flow.ports, protocol]
    }

    /// The protocol in keys, with the number of the rewriter.
    fn key_protocol(self, code: &mut ElementBuilder<'_, '_>, protocol: Value) -> Value {
        if self.sharer == 0 { protocol } else { code.with(AluOp::Or, protocol, self.sharer * (PROTOCOL + 1)) }
    }

    /// In which ways packets of this kind are looked up.
    fn sides(self) -> &'static [MappedAddresses] {
        match self.kind {
            FlowKeyKind::Hosts => &[MappedAddresses::Source, MappedAddresses::Destination],
            FlowKeyKind::Ports | FlowKeyKind::Echoes | FlowKeyKind::Pairs => &[MappedAddresses::Both],
        }
    }

    /// Finds the entry of a flow. Goes to `missing` if there is none, and to `gone` if the time
    /// of both directions has run out.
    fn current(
        self,
        code: &mut ElementBuilder<'_, '_>,
        flow: FlowTuple,
        (protocol, now): (Value, Value),
        missing: Block,
        gone: Block,
    ) -> Value {
        let entry = code.find(&self.table, &Self::key(flow, protocol));
        code.check_int(Cond::Ne, entry, 0, |code| code.jump(missing, &[]));
        if self.slots.is_some() {
            // A flow ends when its slot is given to another one.
            return entry;
        }
        let (fresh, old) = (code.block(), code.block());
        self.branch_on_age(code, (protocol, now), entry, fresh, old);
        code.switch_to_block(old);
        // Its answers may keep it alive.
        let to = MappingEntry::read(code, entry).to;
        let back = reversed(code, to);
        let answer = code.find(&self.table, &Self::key(back, protocol));
        code.check_int(Cond::Ne, answer, 0, |code| code.jump(gone, &[]));
        self.branch_on_age(code, (protocol, now), answer, fresh, gone);
        code.switch_to_block(fresh);
        entry
    }

    /// Branches to `old` if an entry's time has run out, else to `fresh`.
    fn branch_on_age(
        self,
        code: &mut ElementBuilder<'_, '_>,
        (protocol, now): (Value, Value),
        entry: Value,
        fresh: Block,
        old: Block,
    ) {
        let last = code.wide(entry, 24);
        let age = code.sub(now, last);
        let [udp, tcp, done] = self.timeouts.map(|t| code.int(t as i64));
        let flags = code.short(entry, 22);
        let (zero, flags) = (code.int(0), code.with(AluOp::And, flags, DONE));
        let ended = code.compare(Cond::Ne, flags, zero);
        let limit = code.select(ended, done, tcp);
        let number = code.int(UDP);
        let is_udp = code.compare(Cond::Eq, protocol, number);
        let limit = code.select(is_udp, udp, limit);
        code.branch(Cond::Le, age, limit, fresh, old);
    }
}

/// The paint for a packet of an entry: of answers it is that of the packet that began the flow.
fn reply_paint(code: &mut ElementBuilder<'_, '_>, entry: Value, own: Value) -> Value {
    let (flags, zero) = (code.short(entry, 22), code.int(0));
    let (painted, paint) = (code.with(AluOp::And, flags, PAINTED), code.with(AluOp::Rsh, flags, 8));
    let is_painted = code.compare(Cond::Ne, painted, zero);
    code.select(is_painted, paint, own)
}

/// Halves exchanged: the flow of the answers.
fn reversed(code: &mut ElementBuilder<'_, '_>, flow: FlowTuple) -> FlowTuple {
    let half = |code: &mut ElementBuilder<'_, '_>, pair, bits: i64| {
        let (high, low) = (code.with(AluOp::Rsh, pair, bits), code.with(AluOp::And, pair, (1 << bits) - 1));
        let low = code.with(AluOp::Lsh, low, bits);
        code.alu(AluOp::Or, high, low)
    };
    FlowTuple { addresses: half(code, flow.addresses, 32), ports: half(code, flow.ports, 16) }
}

/// A packet on its way through the element.
struct RewriteContext {
    packet: PacketValues,
    header: Value,
    transport: Value,
    /// As the header says, and as keys do.
    protocol: Value,
    key_protocol: Value,
    now: Value,
    /// Block that changes packets; its parameters are those of [`MappingEntry`], the destination annotation
    /// and the paint.
    apply: Block,
}

/// Contents of an entry.
struct MappingEntry {
    to: FlowTuple,
    /// Amounts to add to the checksums of IP, and of TCP or UDP.
    sums: [Value; 2],
    output: Value,
}

impl MappingEntry {
    fn values(&self) -> [Value; 5] {
        [self.to.addresses, self.to.ports, self.sums[0], self.sums[1], self.output]
    }

    fn of(values: &[Value]) -> MappingEntry {
        let to = FlowTuple { addresses: values[0], ports: values[1] };
        MappingEntry { to, sums: [values[2], values[3]], output: values[4] }
    }

    /// The one in a table.
    fn read(code: &mut ElementBuilder<'_, '_>, entry: Value) -> MappingEntry {
        MappingEntry {
            to: FlowTuple { addresses: code.wide(entry, 0), ports: code.field(entry, 8) },
            sums: [code.field(entry, 12), code.field(entry, 16)],
            output: code.short(entry, 20),
        }
    }
}

impl ElementCodegen for IpRewriter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let spec = self.inputs.get(port as usize).cloned().unwrap_or(InputSpec::Drop);
        let header = header(code, packet);
        let protocol = code.byte(header, 9);
        let kind = self.flows.kind;
        let foreign = match kind {
            FlowKeyKind::Ports => Some(self.ours(code, packet, header, protocol)),
            FlowKeyKind::Echoes => Some(echoes(code, packet, header, protocol)),
            FlowKeyKind::Pairs | FlowKeyKind::Hosts => None,
        };
        let length = header_length(code, header);
        let transport = code.plus(header, length);
        let apply = code.block();
        let now = code.time();
        let key_protocol = match kind {
            FlowKeyKind::Ports => self.flows.key_protocol(code, protocol),
            FlowKeyKind::Echoes => code.int(ICMP),
            FlowKeyKind::Pairs | FlowKeyKind::Hosts => code.int(0),
        };
        let passage = RewriteContext { packet, header, transport, protocol, key_protocol, now, apply };
        let addresses = code.raw(8, header, 12);
        let ports = match kind {
            FlowKeyKind::Ports => code.raw(4, transport, 0),
            FlowKeyKind::Echoes => echo_ports(code, transport),
            FlowKeyKind::Pairs | FlowKeyKind::Hosts => code.int(0),
        };
        for side in self.flows.sides() {
            let flow = FlowTuple { addresses: side.of(code, addresses), ports };
            let missing = code.block();
            self.known(code, &passage, flow, *side, missing);
            code.switch_to_block(missing);
        }
        if kind == FlowKeyKind::Echoes {
            // Answers begin no flow.
            let kind = code.byte(transport, 0);
            code.check_int(Cond::Eq, kind, ECHO, |code| match spec {
                InputSpec::Pass(output) => code.out(output, packet),
                _ => code.drop(packet, "no_mapping"),
            });
        }
        match spec {
            InputSpec::Drop => code.drop(packet, "no_mapping"),
            InputSpec::Pass(output) => code.out(output, packet),
            InputSpec::Flow { pattern, outputs } => {
                let flow = FlowTuple { addresses: self.flows.sides()[0].of(code, addresses), ports };
                self.begin(code, &passage, flow, pattern, outputs);
            }
            InputSpec::Mapped(ref mapper) => {
                let flow = FlowTuple { addresses: self.flows.sides()[0].of(code, addresses), ports };
                let blocks: Vec<Block> = mapper.patterns.iter().map(|_| code.block()).collect();
                let source = code.word(header, 12);
                mapper.choose(code, source, &blocks);
                for ((pattern, outputs), block) in mapper.patterns.iter().zip(blocks) {
                    code.switch_to_block(block);
                    self.begin(code, &passage, flow, *pattern, *outputs);
                }
            }
        }
        code.switch_to_block(apply);
        self.apply(code, &passage);
        let Some(foreign) = foreign else { return };
        code.switch_to_block(foreign);
        let reason = if kind == FlowKeyKind::Ports { "not_tcp_or_udp" } else { "no_echo" };
        match spec {
            InputSpec::Pass(output) => code.out(output, packet),
            _ => code.drop(packet, reason),
        }
    }
}

/// Goes on with echo requests and their answers. All others go to the block that is given back.
fn echoes(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value, protocol: Value) -> Block {
    let foreign = code.block();
    code.check_int(Cond::Eq, protocol, ICMP, |code| code.jump(foreign, &[]));
    let fragment = code.half(header, 6);
    let offset = code.with(AluOp::And, fragment, 0x1fff);
    code.check_int(Cond::Eq, offset, 0, |code| code.jump(foreign, &[]));
    let length = header_length(code, header);
    let message = code.plus(header, length);
    let beyond = code.at(message, 6);
    code.check(Cond::Le, beyond, packet.end, |code| code.jump(foreign, &[]));
    let (kind, handled) = (code.byte(message, 0), code.block());
    for number in [ECHO, ECHO_REPLY] {
        let (number, next) = (code.int(number), code.block());
        code.branch(Cond::Eq, kind, number, handled, next);
        code.switch_to_block(next);
    }
    code.jump(foreign, &[]);
    code.switch_to_block(handled);
    foreign
}

/// The pair that takes the place of ports for an echo request or its answer ([`FlowKeyKind::Echoes`]).
fn echo_ports(code: &mut ElementBuilder<'_, '_>, message: Value) -> Value {
    let (kind, identifier) = (code.byte(message, 0), code.raw(2, message, 4));
    let request = with_identifier(code, identifier);
    let answer = reversed(code, FlowTuple { addresses: request, ports: request }).ports;
    let number = code.int(ECHO);
    let is_request = code.compare(Cond::Eq, kind, number);
    code.select(is_request, request, answer)
}

/// The ports of a request with this identifier.
fn with_identifier(code: &mut ElementBuilder<'_, '_>, identifier: Value) -> Value {
    let next = code.with(AluOp::Add, identifier, 1);
    let next = code.with(AluOp::And, next, 0xffff);
    let next = code.with(AluOp::Lsh, next, 16);
    code.alu(AluOp::Or, identifier, next)
}

impl IpRewriter {
    /// Goes on with packets that have ports of a protocol that is handled here. All others go to the block
    /// that is given back.
    fn ours(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        header: Value,
        protocol: Value,
    ) -> Block {
        let (foreign, handled) = (code.block(), code.block());
        for number in self.protocols {
            let (number, next) = (code.int(*number), code.block());
            code.branch(Cond::Eq, protocol, number, handled, next);
            code.switch_to_block(next);
        }
        code.jump(foreign, &[]);
        code.switch_to_block(handled);
        let fragment = code.half(header, 6);
        let offset = code.with(AluOp::And, fragment, 0x1fff);
        code.check_int(Cond::Eq, offset, 0, |code| code.jump(foreign, &[]));
        let length = header_length(code, header);
        let ports = code.plus(header, length);
        let beyond = code.at(ports, 8);
        code.check(Cond::Le, beyond, packet.end, |code| code.jump(foreign, &[]));
        foreign
    }

    fn key(&self, passage: &RewriteContext, flow: FlowTuple) -> [Value; 3] {
        RewriterFlows::key(flow, passage.key_protocol)
    }

    /// Looks the flow up, and has the packet changed if it is known and not too old.
    fn known(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        flow: FlowTuple,
        side: MappedAddresses,
        missing: Block,
    ) {
        let gone = code.block();
        let asked = (passage.key_protocol, passage.now);
        let entry = self.flows.current(code, flow, asked, missing, gone);
        code.set_wide(entry, 24, passage.now);
        if let Some(slots) = self.flows.slots {
            let place = code.wide(entry, SLOT);
            slots.note(code, passage, place);
        }
        if self.flows.kind == FlowKeyKind::Ports {
            self.note_end(code, passage, entry);
        }
        let found = MappingEntry::read(code, entry);
        if let Some(deltas) = &self.deltas {
            ftp::renumber(code, passage, deltas, flow, found.to);
        }
        let own = passage.packet.note(Annotation::Paint);
        let paint = if self.paints { reply_paint(code, entry, own) } else { own };
        self.have_changed(code, passage, &found, (side, paint));
        if self.flows.slots.is_some() {
            // No flow with a slot is too old.
            code.switch_to_block(gone);
            return code.jump(missing, &[]);
        }
        code.switch_to_block(gone);
        let to = MappingEntry::read(code, entry).to;
        let back = reversed(code, to);
        for flow in [flow, back] {
            let key = self.key(passage, flow);
            code.delete_entry(&self.flows.table, &key);
        }
        code.jump(missing, &[]);
    }

    /// Ends with the packet changed as an entry says.
    fn have_changed(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        entry: &MappingEntry,
        (side, paint): (MappedAddresses, Value),
    ) {
        let rest = code.raw(8, passage.header, 12);
        let addresses = side.whole(code, entry.to.addresses, rest);
        let destination = match side {
            // An address that is not changed is not annotated, either.
            MappedAddresses::Both | MappedAddresses::Destination if self.annotates => {
                let destination = code.with(AluOp::Rsh, addresses, 32);
                code.swapped(32, destination)
            }
            _ => passage.packet.note(Annotation::Destination),
        };
        let mut values = entry.values().to_vec();
        values[0] = addresses;
        values.extend([destination, paint]);
        code.jump(passage.apply, &values);
    }

    /// Records that a TCP segment ends its direction or begins it again.
    fn note_end(&self, code: &mut ElementBuilder<'_, '_>, passage: &RewriteContext, entry: Value) {
        let (on, tcp, flags) = (code.block(), code.block(), code.block());
        let number = code.int(TCP);
        code.branch(Cond::Eq, passage.protocol, number, tcp, on);
        code.switch_to_block(tcp);
        let beyond = code.at(passage.transport, 14);
        code.branch(Cond::Le, beyond, passage.packet.end, flags, on);
        code.switch_to_block(flags);
        let bits = code.byte(passage.transport, 13);
        // FIN or RST, SYN.
        let (end, begin) = (code.with(AluOp::And, bits, 5), code.with(AluOp::And, bits, 2));
        let (set, other, clear) = (code.block(), code.block(), code.block());
        let zero = code.int(0);
        code.branch(Cond::Ne, end, zero, set, other);
        code.switch_to_block(set);
        let flags = self.other_flags(code, entry);
        let done = code.with(AluOp::Or, flags, DONE);
        code.set_short(entry, 22, done);
        code.jump(on, &[]);
        code.switch_to_block(other);
        code.branch(Cond::Ne, begin, zero, clear, on);
        code.switch_to_block(clear);
        let flags = self.other_flags(code, entry);
        code.set_short(entry, 22, flags);
        code.jump(on, &[]);
        code.switch_to_block(on);
    }

    /// An entry's flags but for [`DONE`]: there are others only if answers are painted.
    fn other_flags(&self, code: &mut ElementBuilder<'_, '_>, entry: Value) -> Value {
        if !self.paints {
            return code.int(0);
        }
        let flags = code.short(entry, 22);
        code.with(AluOp::And, flags, !DONE & 0xffff)
    }

    /// Begins a flow with the packet that is its first.
    fn begin(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        flow: FlowTuple,
        pattern: RewritePattern,
        outputs: [u32; 2],
    ) {
        let forward = self.install(code, passage, flow, pattern, outputs);
        let paint = passage.packet.note(Annotation::Paint);
        self.have_changed(code, passage, &forward, (self.flows.sides()[0], paint));
    }

    /// Chooses the new form of a flow, and records both directions; gives the one in which it begins.
    fn install(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        flow: FlowTuple,
        pattern: RewritePattern,
        outputs: [u32; 2],
    ) -> MappingEntry {
        let choose = code.block();
        code.jump(choose, &[]);
        code.switch_to_block(choose);
        let to = self.become_by(code, passage, flow, pattern);
        let [ip, transport] = differences(code, self.flows.kind, flow, to);
        let zero = code.int(0);
        let sums = |code: &mut ElementBuilder<'_, '_>, forward: bool| {
            [ip, transport].map(|difference| {
                let value = if forward { code.with(AluOp::Xor, difference, 0xffff) } else { difference };
                let added = code.with(AluOp::Add, value, 0xffff);
                let same = code.compare(Cond::Eq, difference, zero);
                code.select(same, zero, added)
            })
        };
        let (there, back) = (sums(code, true), sums(code, false));
        let (answers, answered) = (reversed(code, to), reversed(code, flow));
        let [output, reply] = outputs.map(|port| code.int(i64::from(port)));
        let forward = MappingEntry { to, sums: there, output };
        let reply = MappingEntry { to: answered, sums: back, output: reply };
        let chosen = pattern.varied().is_some();
        let slot = self.flows.slots.map(|slots| {
            let index = slots.admit(code, passage, &self.flows, [flow, answers]);
            code.with(AluOp::Lsh, index, 1)
        });
        let reply_slot = slot.map(|slot| code.with(AluOp::Or, slot, 1));
        // Whoever has the answers has the port: of workers that chose the same one, the others choose again.
        let mut flags = zero;
        if self.paints {
            let paint = code.with(AluOp::Lsh, passage.packet.note(Annotation::Paint), 8);
            flags = code.with(AluOp::Or, paint, PAINTED);
        }
        self.note(code, passage, answers, (&reply, flags, reply_slot), chosen.then_some(choose));
        self.note_forward(code, passage, [flow, answers], (&forward, zero, slot));
        forward
    }

    /// Writes the direction in which a flow begins down, unless its answers look the same.
    fn note_forward(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        [flow, answers]: [FlowTuple; 2],
        entry: (&MappingEntry, Value, Option<Value>),
    ) {
        let (differs, on) = (code.block(), code.block());
        let ports = code.block();
        code.branch(Cond::Ne, flow.addresses, answers.addresses, differs, ports);
        code.switch_to_block(ports);
        code.branch(Cond::Ne, flow.ports, answers.ports, differs, on);
        code.switch_to_block(differs);
        self.note(code, passage, flow, entry, None);
        code.jump(on, &[]);
        code.switch_to_block(on);
    }

    /// Writes a direction down, or goes to `again` if it is there by now.
    fn note(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        flow: FlowTuple,
        (entry, flags, slot): (&MappingEntry, Value, Option<Value>),
        again: Option<Block>,
    ) {
        let key = self.key(passage, flow);
        let [addresses, ports, ip, transport, output] = entry.values();
        let mut value = vec![addresses, ports, ip, transport, output, flags, passage.now];
        value.extend(slot);
        let error = match again {
            Some(_) => code.insert_if_absent(&self.flows.table, &key, &value),
            None => code.update_entry(&self.flows.table, &key, &value),
        };
        code.check_int(Cond::Eq, error, 0, |code| {
            if let Some(again) = again {
                code.check_int(Cond::Ne, error, EEXIST, |code| code.jump(again, &[]));
            }
            code.drop(passage.packet, "no_room_for_flow");
        });
    }

    /// The new form of a flow by a pattern. Ends with the packet dropped if all choices are taken.
    fn become_by(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        flow: FlowTuple,
        pattern: RewritePattern,
    ) -> FlowTuple {
        let mut to = flow;
        let raw = |address: u32| i64::from(address.swap_bytes());
        if let Some(source) = pattern.source {
            to.addresses = with_source(code, to.addresses, |code| code.int(raw(source)));
        }
        if let Some(destination) = pattern.destination {
            let rest = code.with(AluOp::And, to.addresses, LOW);
            to.addresses = code.with(AluOp::Or, rest, raw(destination) << 32);
        }
        if let Some(port) = pattern.destination_port.filter(|_| self.flows.kind == FlowKeyKind::Ports) {
            let rest = code.with(AluOp::And, to.ports, 0xffff);
            to.ports = code.with(AluOp::Or, rest, i64::from(port.swap_bytes()) << 16);
        }
        match (pattern.varied(), pattern.source_port) {
            (Some(varied), _) => self.free(code, passage, to, varied, pattern),
            (None, Some((port, _))) => {
                let port = code.int(i64::from(port));
                FlowTuple { ports: self.with_port(code, to.ports, port), ..to }
            }
            (None, None) => to,
        }
    }

    /// Ports with another source port or identifier, which is a number.
    fn with_port(&self, code: &mut ElementBuilder<'_, '_>, ports: Value, port: Value) -> Value {
        match self.flows.kind {
            FlowKeyKind::Echoes => {
                let identifier = code.swapped(16, port);
                with_identifier(code, identifier)
            }
            _ => with_source_port(code, ports, port),
        }
    }

    /// The flow with one of several source ports, identifiers or addresses, one that no other has.
    fn free(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        to: FlowTuple,
        varied: AllocationRange,
        pattern: RewritePattern,
    ) -> FlowTuple {
        let more = varied.more();
        let all = more + 1;
        let (search, found) = (code.block(), code.block());
        let (tried, at) = (code.number_param(search), code.number_param(search));
        let chosen = code.number_param(found);
        let zero = code.int(0);
        if let (AllocationOrder::Own, AllocationRange::Port(first, _)) = (pattern.choice, varied) {
            let own = code.with(AluOp::And, to.ports, 0xffff);
            let own = code.swapped(16, own);
            let place = code.with(AluOp::Sub, own, i64::from(first));
            let (inside, outside) = (code.block(), code.block());
            let last = code.int(more);
            code.branch(Cond::Le, place, last, inside, outside);
            code.switch_to_block(inside);
            let other = self.answered(code, passage, to, varied, place);
            code.check_int(Cond::Ne, other, 0, |code| code.jump(found, &[place]));
            code.jump(outside, &[]);
            code.switch_to_block(outside);
        }
        let start = match pattern.choice {
            AllocationOrder::Next => {
                let next = code.get(pattern.next);
                let last = code.int(more);
                let beyond = code.compare(Cond::Gt, next, last);
                code.select(beyond, zero, next)
            }
            _ => {
                let random = code.random();
                code.with(AluOp::Mod, random, all)
            }
        };
        code.jump(search, &[zero, start]);
        code.switch_to_block(search);
        let none = match varied {
            AllocationRange::Port(..) => "no_free_port",
            AllocationRange::Address(..) => "no_free_address",
        };
        code.check_int(Cond::Lt, tried, all, |code| code.drop(passage.packet, none));
        let other = self.answered(code, passage, to, varied, at);
        code.check_int(Cond::Ne, other, 0, |code| code.jump(found, &[at]));
        let (again, on) = (code.with(AluOp::Add, tried, 1), code.with(AluOp::Add, at, 1));
        let last = code.int(more);
        let beyond = code.compare(Cond::Gt, on, last);
        let on = code.select(beyond, zero, on);
        code.jump(search, &[again, on]);
        code.switch_to_block(found);
        let next = code.with(AluOp::Add, chosen, 1);
        code.set(pattern.next, next);
        self.choice(code, to, varied, chosen)
    }

    /// The flow with choice number `place`.
    fn choice(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        to: FlowTuple,
        varied: AllocationRange,
        place: Value,
    ) -> FlowTuple {
        match varied {
            AllocationRange::Port(first, _) => {
                let port = code.with(AluOp::Add, place, i64::from(first));
                FlowTuple { ports: self.with_port(code, to.ports, port), ..to }
            }
            AllocationRange::Address(first, _) => {
                let addresses = with_source(code, to.addresses, |code| {
                    let address = code.with(AluOp::Add, place, i64::from(first));
                    code.swapped(32, address)
                });
                FlowTuple { addresses, ..to }
            }
        }
    }

    /// The entry that answers would find if the flow had choice number `place`.
    fn answered(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        to: FlowTuple,
        varied: AllocationRange,
        place: Value,
    ) -> Value {
        let to = self.choice(code, to, varied, place);
        let back = reversed(code, to);
        let key = self.key(passage, back);
        code.find(&self.flows.table, &key)
    }
}

/// Addresses with another source, as it lies in memory.
fn with_source(
    code: &mut ElementBuilder<'_, '_>,
    addresses: Value,
    source: impl FnOnce(&mut ElementBuilder<'_, '_>) -> Value,
) -> Value {
    let rest = code.with(AluOp::Rsh, addresses, 32);
    let rest = code.with(AluOp::Lsh, rest, 32);
    let source = source(code);
    code.alu(AluOp::Or, rest, source)
}

/// Ports with another source port, which is a number.
fn with_source_port(code: &mut ElementBuilder<'_, '_>, ports: Value, port: Value) -> Value {
    let rest = code.with(AluOp::And, ports, 0xffff_0000);
    let port = code.swapped(16, port);
    code.alu(AluOp::Or, rest, port)
}

/// Changes of the checksums of IP, and of TCP, UDP or echoes, between two flows: RFC 1624's equation 3, word
/// by word, on zero.
fn differences(
    code: &mut ElementBuilder<'_, '_>,
    kind: FlowKeyKind,
    from: FlowTuple,
    to: FlowTuple,
) -> [Value; 2] {
    let zero = code.int(0);
    let addresses = changes(code, from.addresses, to.addresses, 4);
    let ip = exchanged(code, zero, &addresses);
    let transport = match kind {
        FlowKeyKind::Ports => {
            let ports = changes(code, from.ports, to.ports, 2);
            exchanged(code, ip, &ports)
        }
        // ICMP has no pseudo header.
        FlowKeyKind::Echoes => {
            let identifier = changes(code, from.ports, to.ports, 1);
            exchanged(code, zero, &identifier)
        }
        FlowKeyKind::Pairs | FlowKeyKind::Hosts => ip,
    };
    [ip, transport]
}

/// The first so many 16-bit words of two values.
fn changes(code: &mut ElementBuilder<'_, '_>, from: Value, to: Value, words: i64) -> Vec<[Value; 2]> {
    let word = |code: &mut ElementBuilder<'_, '_>, value, at: i64| {
        let value = code.with(AluOp::Rsh, value, 16 * at);
        code.with(AluOp::And, value, 0xffff)
    };
    (0..words).map(|at| [word(code, from, at), word(code, to, at)]).collect()
}

/// A checksum after words that it covers were exchanged: RFC 1624, equation 3, word by word.
fn exchanged(code: &mut ElementBuilder<'_, '_>, sum: Value, changes: &[[Value; 2]]) -> Value {
    let mut sum = sum;
    for [old, new] in changes {
        let (kept, gone) = (code.with(AluOp::Xor, sum, 0xffff), code.with(AluOp::Xor, *old, 0xffff));
        let total = code.add(kept, gone);
        let total = code.add(total, *new);
        sum = folded(code, total);
    }
    sum
}

/// The complement of a sum of a few 16-bit words, with its carries.
fn folded(code: &mut ElementBuilder<'_, '_>, sum: Value) -> Value {
    let (low, high) = (code.with(AluOp::And, sum, 0xffff), code.with(AluOp::Rsh, sum, 16));
    let sum = code.add(low, high);
    let carry = code.with(AluOp::Rsh, sum, 16);
    let sum = code.add(sum, carry);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    code.with(AluOp::And, sum, 0xffff)
}
