//! Admission of flows to a rewriter with few mappings, as Click does it: a young flow is guaranteed its place
//! for some time behind each packet, and a full table evicts the flow that would end first of those that are
//! not guaranteed any more. Without such a flow, no new one is admitted.
//!
//! Each flow has a slot of an array beside its two entries. A new flow goes through all slots, so that only
//! rewriters with a few hundred mappings are handled like that; larger ones evict the flow that was not used
//! for longest.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use super::{FlowKeyKind, FlowTuple, KEY, RewriteContext, RewriterFlows};
use crate::transport::TCP;
use millstream_click::arguments::{SECOND, seconds, unsigned};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::{ElementSetup, Error, SpannedText};

/// Flows at most.
const MOST_FLOWS: u64 = 1024;
/// Time that a flow is guaranteed behind a packet, unless said otherwise.
const USUAL_GUARANTEE: u64 = 5 * SECOND;
/// Times to live of TCP flows without data of both sides, and of datagrams.
const USUAL_TIMEOUT: u64 = 300 * SECOND;

/// Keys of both directions (addresses, ports, protocol), flags, and the times up to which the flow is
/// guaranteed and after which it ends.
const SLOT: [Size; 8] = [Size::Dw; 8];
const PROTOCOL: i32 = 16;
const REPLY: i32 = 24;
const FLAGS: i32 = 40;
const GUARANTEED: i32 = 48;
const EXPIRY: i32 = 56;
/// Flags: data of the flow and of its answers, and that it has ended.
const DATA: i64 = 1;
const REPLY_DATA: i64 = 2;
const BOTH_DATA: i64 = DATA | REPLY_DATA;
const DONE: i64 = 4;
const REPLY_DONE: i64 = 8;
const BOTH_DONE: i64 = DONE | REPLY_DONE;
/// An answer has come; the slot is taken; and from here on, packets so far, up to [`STREAMING`].
const ANSWERED: i64 = 16;
const TAKEN: i64 = 32;
const PACKETS: i64 = 8;
/// Datagrams of a flow with answers from which on it is a stream.
const STREAMING: i64 = 3;
/// No slot.
const NONE: i64 = -1;

/// Slots of the flows of a rewriter, and the times of these, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSlots {
    slots: ElementHashTable,
    capacity: i64,
    /// The protocol whose flows have data and ends: TCP, or none where all are datagrams.
    tcp: i64,
    /// Offsets of the numbers of flows, and of flows that were not admitted.
    pub(super) count: u32,
    pub(super) failures: u32,
    /// TCP, TCP that has ended, TCP without data of both sides; datagrams, streams of these.
    timeouts: [u64; 5],
    /// Of TCP and of datagrams.
    guarantees: [u64; 2],
}

/// The rewriter whose mappings an element shares, and their number, if the argument says them.
pub(super) struct MappingCapacity {
    pub(super) owner: String,
    pub(super) flows: Option<u64>,
}

/// Reads MAPPING_CAPACITY: a number, or the name of another rewriter whose mappings are shared.
pub(super) fn mapping_capacity(setup: &mut ElementSetup<'_>) -> Result<MappingCapacity, Error> {
    let own = setup.element.name.clone();
    let text = setup.arguments.keyword("MAPPING_CAPACITY").or_else(|| setup.arguments.keyword("CAPACITY"));
    let Some(text) = text else { return Ok(MappingCapacity { owner: own, flows: None }) };
    let Some(other) = setup.named(&text.text) else {
        return Ok(MappingCapacity { owner: own, flows: Some(unsigned(&text, 1 << 28)?) });
    };
    let said = other.arguments.iter().find_map(|argument| {
        let number = argument.text.strip_prefix("MAPPING_CAPACITY")?.trim();
        Some(SpannedText { text: number.to_owned(), span: argument.span })
    });
    let owner = other.name.clone();
    let flows = said.map(|text| unsigned(&text, 1 << 28)).transpose()?;
    if flows.is_none_or(|flows| flows > MOST_FLOWS) {
        let message = format!("mappings are shared where there are {MOST_FLOWS} at most");
        return Err(Error::new(text.span, message));
    }
    Ok(MappingCapacity { owner, flows })
}

/// Reads the arguments about admission. Without slots, only those are accepted that need none.
pub(super) fn slots(
    setup: &mut ElementSetup<'_>,
    capacity: &MappingCapacity,
    [udp, tcp, done]: [u64; 3],
) -> Result<Option<FlowSlots>, Error> {
    let asked = ["TCP_NODATA_TIMEOUT", "UDP_STREAMING_TIMEOUT", "STREAMING_TIMEOUT"]
        .map(|name| (name, setup.arguments.keyword(name)));
    let guarantees =
        ["GUARANTEE", "TCP_GUARANTEE", "UDP_GUARANTEE"].map(|name| (name, setup.arguments.keyword(name)));
    let flows = capacity.flows.filter(|flows| *flows <= MOST_FLOWS && setup.is_timed());
    let Some(flows) = flows else {
        let nothing = |name: &str, text: &SpannedText| name.ends_with("GUARANTEE") && seconds(text) == Ok(0);
        let said = asked.iter().chain(&guarantees).filter_map(|(name, text)| Some((*name, text.as_ref()?)));
        return match said.into_iter().find(|(name, text)| !nothing(name, text)) {
            Some((name, text)) => {
                let message =
                    format!("{name} is for rewriters with a MAPPING_CAPACITY of {MOST_FLOWS} at most");
                Err(Error::new(text.span, message).help(
                    "a larger table evicts the flow that was not used for longest, however young it is",
                ))
            }
            None => Ok(None),
        };
    };
    let time = |text: &Option<SpannedText>, usual| text.as_ref().map_or(Ok(usual), seconds);
    let [(_, no_data), (_, udp_stream), (_, stream)] = &asked;
    let streaming = time(stream, time(udp_stream, udp)?)?;
    let timeouts = [tcp, done, time(no_data, USUAL_TIMEOUT)?, udp, streaming];
    let [(_, all), (_, of_tcp), (_, of_udp)] = &guarantees;
    let usual = time(all, USUAL_GUARANTEE)?;
    let guarantees = [time(of_tcp, usual)?, time(of_udp, usual)?];
    let owner = &capacity.owner;
    let count = setup.shared_number(&format!("{owner}.mappings"));
    let slots = setup.shared_array(owner, "slots", &[Size::W], &SLOT, flows.max(1) as u32);
    setup.require_single_worker("its mappings are few, and all of its flows share them");
    let failures = setup.number();
    let tcp = if setup.element.class == "UDPRewriter" { NONE } else { TCP };
    let capacity = flows.max(1) as i64;
    Ok(Some(FlowSlots { slots, capacity, tcp, count, failures, timeouts, guarantees }))
}

/// Flags of the flow by a packet: data and the end of TCP.
fn flags_of(
    code: &mut ElementBuilder<'_, '_>,
    passage: &RewriteContext,
    (tcp, is_reply): (i64, bool),
) -> Value {
    let (segment, on, zero) = (code.block(), code.block(), code.int(0));
    let flags = code.number_param(on);
    let number = code.number_of(tcp);
    code.branch_with(Cond::Eq, passage.protocol, number, (segment, &[]), (on, &[zero]));
    code.switch_to_block(segment);
    let beyond = code.at(passage.transport, 14);
    code.check(Cond::Le, beyond, passage.packet.end, |code| code.jump(on, &[zero]));
    let total = code.half(passage.header, 2);
    let headers = code.sub(passage.transport, passage.header);
    let offset = code.byte(passage.transport, 12);
    let words = code.with(AluOp::Rsh, offset, 4);
    let own = code.with(AluOp::Lsh, words, 2);
    let headers = code.add(headers, own);
    let (data, reply_data) = if is_reply { (REPLY_DATA, REPLY_DONE) } else { (DATA, DONE) };
    let (data, none) = (code.int(data), code.int(0));
    let has_data = code.compare(Cond::Gt, total, headers);
    let data = code.select(has_data, data, none);
    let bits = code.byte(passage.transport, 13);
    let (end, reset) = (code.with(AluOp::And, bits, 1), code.with(AluOp::And, bits, 4));
    let (ended, both) = (code.int(reply_data), code.int(BOTH_DONE));
    let is_end = code.compare(Cond::Ne, end, none);
    let ended = code.select(is_end, ended, none);
    let is_reset = code.compare(Cond::Ne, reset, none);
    let ended = code.select(is_reset, both, ended);
    let all = code.alu(AluOp::Or, data, ended);
    code.jump(on, &[all]);
    code.switch_to_block(on);
    flags
}

impl FlowSlots {
    /// Writes flags and times of a slot behind a packet.
    fn renew(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        (protocol, now): (Value, Value),
        slot: Value,
        flags: Value,
    ) {
        let [tcp, done, no_data, udp, streaming] = self.timeouts.map(|time| code.int(time as i64));
        let has = |code: &mut ElementBuilder<'_, '_>, bits: i64| {
            let (set, all) = (code.with(AluOp::And, flags, bits), code.int(bits));
            code.compare(Cond::Eq, set, all)
        };
        let (ended, data, answered) = (has(code, BOTH_DONE), has(code, BOTH_DATA), has(code, ANSWERED));
        let of_tcp = code.select(data, tcp, no_data);
        let of_tcp = code.select(ended, done, of_tcp);
        let (packets, enough) = (code.with(AluOp::Rsh, flags, PACKETS), code.int(STREAMING));
        let many = code.compare(Cond::Ge, packets, enough);
        let of_stream = code.select(many, streaming, udp);
        let of_udp = code.select(answered, of_stream, udp);
        let number = code.number_of(self.tcp);
        let is_tcp = code.compare(Cond::Eq, protocol, number);
        let timeout = code.select(is_tcp, of_tcp, of_udp);
        let [tcp, udp] = self.guarantees.map(|time| code.int(time as i64));
        let guarantee = code.select(is_tcp, tcp, udp);
        let (until, expiry) = (code.add(now, guarantee), code.add(now, timeout));
        code.set_wide(slot, FLAGS, flags);
        code.set_wide(slot, GUARANTEED, until);
        code.set_wide(slot, EXPIRY, expiry);
    }

    /// Notes a packet of a known flow. `place` is what [`Self::admit`] gave, doubled, and one more for answers.
    pub(super) fn note(&self, code: &mut ElementBuilder<'_, '_>, passage: &RewriteContext, place: Value) {
        let on = code.block();
        let index = code.with(AluOp::Rsh, place, 1);
        let slot = code.find(&self.slots, &[index]);
        code.check_int(Cond::Ne, slot, 0, |code| code.jump(on, &[]));
        let (forward, reply) =
            (flags_of(code, passage, (self.tcp, false)), flags_of(code, passage, (self.tcp, true)));
        let reply = code.with(AluOp::Or, reply, ANSWERED);
        let (odd, zero) = (code.with(AluOp::And, place, 1), code.int(0));
        let is_reply = code.compare(Cond::Ne, odd, zero);
        let new = code.select(is_reply, reply, forward);
        let old = code.wide(slot, FLAGS);
        let flags = code.alu(AluOp::Or, old, new);
        let (packets, enough) = (code.with(AluOp::Rsh, flags, PACKETS), code.int(STREAMING));
        let more = code.with(AluOp::Add, flags, 1 << PACKETS);
        let many = code.compare(Cond::Ge, packets, enough);
        let flags = code.select(many, flags, more);
        self.renew(code, (passage.protocol, passage.now), slot, flags);
        code.jump(on, &[]);
        code.switch_to_block(on);
    }

    /// Finds a slot for a new flow, evicting another one if it must; gives its number. Ends with the packet
    /// dropped if there is none.
    pub(super) fn admit(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        flows: &RewriterFlows,
        [flow, answers]: [FlowTuple; 2],
    ) -> Value {
        let (head, full, take, refuse) = (code.block(), code.block(), code.block(), code.block());
        let [at, best, earliest] = [0; 3].map(|_: i64| code.number_param(head));
        let [worst, worst_expiry] = [0; 2].map(|_: i64| code.number_param(full));
        let index = code.number_param(take);
        let (zero, none, never) = (code.int(0), code.number_of(NONE), code.number_of(i64::MAX));
        code.jump(head, &[zero, none, never]);
        code.switch_to_block(head);
        code.check_int(Cond::Lt, at, self.capacity, |code| code.jump(full, &[best, earliest]));
        let slot = code.find(&self.slots, &[at]);
        code.check_int(Cond::Ne, slot, 0, |code| code.jump(full, &[best, earliest]));
        let flags = code.wide(slot, FLAGS);
        let taken = code.with(AluOp::And, flags, TAKEN);
        code.check_int(Cond::Ne, taken, 0, |code| {
            code.count_by_one(self.count);
            code.jump(take, &[at]);
        });
        let next = code.with(AluOp::Add, at, 1);
        let guaranteed = code.wide(slot, GUARANTEED);
        code.check(Cond::Le, guaranteed, passage.now, |code| code.jump(head, &[next, best, earliest]));
        let expiry = code.wide(slot, EXPIRY);
        let is_earlier = code.compare(Cond::Lt, expiry, earliest);
        let (best, earliest) = (code.select(is_earlier, at, best), code.select(is_earlier, expiry, earliest));
        code.jump(head, &[next, best, earliest]);
        code.switch_to_block(refuse);
        code.count_by_one(self.failures);
        code.drop(passage.packet, "no_mapping_free");
        code.switch_to_block(full);
        code.check(Cond::Ne, worst, none, |code| code.jump(refuse, &[]));
        self.check_expiry(code, passage, worst_expiry, refuse);
        self.evict(code, flows, worst, refuse);
        code.jump(take, &[worst]);
        code.switch_to_block(take);
        let slot = code.find(&self.slots, &[index]);
        code.check_int(Cond::Ne, slot, 0, |code| code.jump(refuse, &[]));
        for (offset, tuple) in [(0, flow), (REPLY, answers)] {
            code.set_wide(slot, offset, tuple.addresses);
            code.set_wide(slot, offset + 8, tuple.ports);
        }
        code.set_wide(slot, PROTOCOL, passage.key_protocol);
        let flags = flags_of(code, passage, (self.tcp, false));
        let flags = code.with(AluOp::Or, flags, TAKEN | 1 << PACKETS);
        self.renew(code, (passage.protocol, passage.now), slot, flags);
        index
    }

    /// Refuses a flow that is not guaranteed and would end before all others.
    fn check_expiry(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        passage: &RewriteContext,
        other: Value,
        refuse: millstream_ir::Block,
    ) {
        let [_, _, no_data, udp, _] = self.timeouts.map(|time| code.int(time as i64));
        let [tcp_guarantee, udp_guarantee] = self.guarantees.map(|time| code.int(time as i64));
        let (number, zero) = (code.number_of(self.tcp), code.int(0));
        let is_tcp = code.compare(Cond::Eq, passage.protocol, number);
        let (timeout, guarantee) =
            (code.select(is_tcp, no_data, udp), code.select(is_tcp, tcp_guarantee, udp_guarantee));
        let expiry = code.add(passage.now, timeout);
        let (guaranteed, never) = (code.compare(Cond::Ne, guarantee, zero), code.number_of(i64::MAX));
        let expiry = code.select(guaranteed, never, expiry);
        code.check(Cond::Le, other, expiry, |code| code.jump(refuse, &[]));
    }

    /// Deletes both entries of the flow in a slot.
    fn evict(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        flows: &RewriterFlows,
        index: Value,
        refuse: millstream_ir::Block,
    ) {
        let slot = code.find(&self.slots, &[index]);
        code.check_int(Cond::Ne, slot, 0, |code| code.jump(refuse, &[]));
        let protocol = code.wide(slot, PROTOCOL);
        for offset in [0, REPLY] {
            let (addresses, ports) = (code.wide(slot, offset), code.wide(slot, offset + 8));
            code.delete_entry(&flows.table, &[addresses, ports, protocol]);
        }
    }
}

/// Number that tells the flows of rewriters apart which share a table: 0 for the owner of the table.
pub(super) fn sharer(setup: &ElementSetup<'_>, capacity: &MappingCapacity, kind: FlowKeyKind) -> i64 {
    let own = &setup.element.name;
    if capacity.owner == *own || kind != FlowKeyKind::Ports {
        return 0;
    }
    setup.elements().iter().position(|element| element.name == *own).map_or(0, |at| at as i64 + 1)
}

const _: () = assert!(KEY.len() == 3);
