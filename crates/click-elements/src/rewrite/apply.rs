//! Packets of flows that are known are changed.

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use super::{ECHO, FlowKeyKind, IpRewriter, MappingEntry, RewriteContext, TCP, UDP, folded};
use crate::transport::sum_bytes;
use millstream_click::build::ElementBuilder;
use millstream_click::packet::Annotation;

impl IpRewriter {
    /// Changes the packet as the entry says, and sends it on.
    pub(super) fn apply(&self, code: &mut ElementBuilder<'_, '_>, passage: &RewriteContext) {
        let params: Vec<Value> = (0..7).map(|_| code.number_param(passage.apply)).collect();
        let (entry, destination, paint) = (MappingEntry::of(&params), params[5], params[6]);
        let header = passage.header;
        code.set_raw(8, header, 12, entry.to.addresses);
        adjust(code, header, 10, entry.sums[0]);
        let packet = passage.packet.with(Annotation::Destination, destination).with(Annotation::Paint, paint);
        let on = code.block();
        match self.flows.kind {
            FlowKeyKind::Ports => segment(code, passage, &entry, on),
            FlowKeyKind::Echoes => echo(code, passage, &entry, on),
            FlowKeyKind::Pairs | FlowKeyKind::Hosts => addressed(code, passage, &entry, on),
        }
        code.switch_to_block(on);
        for port in 1..self.outputs {
            code.check_int(Cond::Ne, entry.output, i64::from(port), |code| code.out(port, packet));
        }
        code.out(0, packet);
    }
}

/// Ports and the checksum that is of them.
fn segment(code: &mut ElementBuilder<'_, '_>, passage: &RewriteContext, entry: &MappingEntry, on: Block) {
    let RewriteContext { packet, transport, protocol, .. } = *passage;
    let (tcp, udp) = (code.block(), code.block());
    let number = code.int(TCP);
    code.branch(Cond::Eq, protocol, number, tcp, udp);
    code.switch_to_block(tcp);
    // A segment that is cut off before its checksum keeps its ports: the checksum could not be corrected, and
    // the peer leaves such a segment alone, too.
    let (whole, beyond) = (code.block(), code.at(transport, 18));
    code.branch(Cond::Le, beyond, packet.end, whole, on);
    code.switch_to_block(whole);
    code.set_raw(4, transport, 0, entry.to.ports);
    adjust(code, transport, 16, entry.sums[1]);
    code.jump(on, &[]);
    code.switch_to_block(udp);
    code.set_raw(4, transport, 0, entry.to.ports);
    datagram(code, passage, entry, on);
}

/// The checksum of a datagram, if it has one.
fn datagram(code: &mut ElementBuilder<'_, '_>, passage: &RewriteContext, entry: &MappingEntry, on: Block) {
    let transport = passage.transport;
    let (sum, zero, summed) = (code.raw(2, transport, 6), code.int(0), code.block());
    code.branch(Cond::Ne, sum, zero, summed, on);
    code.switch_to_block(summed);
    adjust(code, transport, 6, entry.sums[1]);
    code.jump(on, &[]);
}

/// The identifier: of a request's new form it is the source port, of an answer's the destination port.
fn echo(code: &mut ElementBuilder<'_, '_>, passage: &RewriteContext, entry: &MappingEntry, on: Block) {
    let message = passage.transport;
    let (kind, number) = (code.byte(message, 0), code.int(ECHO));
    let is_request = code.compare(Cond::Eq, kind, number);
    let (low, high) =
        (code.with(AluOp::And, entry.to.ports, 0xffff), code.with(AluOp::Rsh, entry.to.ports, 16));
    let identifier = code.select(is_request, low, high);
    code.set_raw(2, message, 4, identifier);
    adjust(code, message, 2, entry.sums[1]);
    // The sum of a message of zeros is the other zero.
    let (sum, zero, none) = (code.raw(2, message, 2), code.int(0), code.block());
    code.branch(Cond::Eq, sum, zero, none, on);
    code.switch_to_block(none);
    let bytes = code.sub(passage.packet.end, message);
    let rest = sum_bytes(code, message, bytes, zero);
    let nothing = code.block();
    code.branch(Cond::Eq, rest, zero, nothing, on);
    code.switch_to_block(nothing);
    code.write(message, 2, &[0xff, 0xff]);
    code.jump(on, &[]);
}

/// The checksum behind addresses, of TCP and UDP if it is there.
fn addressed(code: &mut ElementBuilder<'_, '_>, passage: &RewriteContext, entry: &MappingEntry, on: Block) {
    let RewriteContext { packet, header, transport, protocol, .. } = *passage;
    let fragment = code.half(header, 6);
    let offset = code.with(AluOp::And, fragment, 0x1fff);
    code.check_int(Cond::Eq, offset, 0, |code| code.jump(on, &[]));
    let (tcp, other, udp) = (code.block(), code.block(), code.block());
    let [tcp_number, udp_number] = [TCP, UDP].map(|number| code.int(number));
    code.branch(Cond::Eq, protocol, tcp_number, tcp, other);
    code.switch_to_block(tcp);
    let (whole, beyond) = (code.block(), code.at(transport, 18));
    code.branch(Cond::Le, beyond, packet.end, whole, on);
    code.switch_to_block(whole);
    adjust(code, transport, 16, entry.sums[1]);
    code.jump(on, &[]);
    code.switch_to_block(other);
    code.branch(Cond::Eq, protocol, udp_number, udp, on);
    code.switch_to_block(udp);
    let (whole, beyond) = (code.block(), code.at(transport, 8));
    code.branch(Cond::Le, beyond, packet.end, whole, on);
    code.switch_to_block(whole);
    datagram(code, passage, entry, on);
}

/// Adds an entry's amount to a checksum.
fn adjust(code: &mut ElementBuilder<'_, '_>, base: Value, offset: i32, added: Value) {
    let sum = code.raw(2, base, offset);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    let sum = code.add(sum, added);
    let sum = folded(code, sum);
    code.set_raw(2, base, offset, sum);
}
