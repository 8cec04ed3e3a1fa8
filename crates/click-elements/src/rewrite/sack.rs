//! Selective acknowledgements of a stream that has grown. Source: RFC 2018, 3.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::{RewriteContext, changes, exchanged};
use millstream_click::build::ElementBuilder;

/// Kinds of TCP options.
const END: i64 = 0;
const NO_OPERATION: i64 = 1;
const SACK: i64 = 5;
/// Bytes of a TCP header without options, and of a sequence number.
const HEADER: i64 = 20;
const NUMBER: i64 = 4;

/// The number that a byte that is acknowledged was sent with.
pub(super) type Renumbering<'n> = &'n dyn Fn(&mut ElementBuilder<'_, '_>, Value) -> Value;

/// Gives the selective acknowledgements of a segment the numbers that the stream had before it grew.
pub(super) fn renumber_sacks(
    code: &mut ElementBuilder<'_, '_>,
    passage: &RewriteContext,
    acknowledged: Renumbering<'_>,
) {
    let transport = passage.transport;
    let (head, done) = (code.block(), code.block());
    let offset = code.byte(transport, 12);
    let words = code.with(AluOp::Rsh, offset, 4);
    let length = code.with(AluOp::Lsh, words, 2);
    let end = code.plus(transport, length);
    code.check(Cond::Le, end, passage.packet.end, |code| code.jump(done, &[]));
    let first = code.at(transport, HEADER);
    let at = code.packet_param(head);
    code.jump(head, &[first]);
    code.switch_to_block(head);
    let numbers = code.at(at, 2);
    code.check(Cond::Le, numbers, end, |code| code.jump(done, &[]));
    let kind = code.byte(at, 0);
    code.check_int(Cond::Ne, kind, END, |code| code.jump(done, &[]));
    code.check_int(Cond::Ne, kind, NO_OPERATION, |code| {
        let next = code.at(at, 1);
        code.jump(head, &[next]);
    });
    let bytes = code.byte(at, 1);
    code.check_int(Cond::Ge, bytes, 2, |code| code.jump(done, &[]));
    let next = code.plus(at, bytes);
    code.check(Cond::Le, next, end, |code| code.jump(done, &[]));
    code.check_int(Cond::Eq, kind, SACK, |code| code.jump(head, &[next]));
    let each = code.block();
    let place = code.packet_param(each);
    code.jump(each, &[numbers]);
    code.switch_to_block(each);
    let following = code.at(place, NUMBER);
    code.check(Cond::Le, following, next, |code| code.jump(head, &[next]));
    renumber_at(code, transport, place, acknowledged);
    code.jump(each, &[following]);
    code.switch_to_block(done);
}

/// Exchanges one number, and corrects the checksum.
fn renumber_at(
    code: &mut ElementBuilder<'_, '_>,
    transport: Value,
    place: Value,
    acknowledged: Renumbering<'_>,
) {
    let (old, number) = (code.raw(4, place, 0), code.word(place, 0));
    let new = acknowledged(code, number);
    let raw = code.swapped(32, new);
    // Bytes at an odd distance count in the other order.
    let (distance, zero) = (code.sub(place, transport), code.int(0));
    let odd = code.with(AluOp::And, distance, 1);
    let is_even = code.compare(Cond::Eq, odd, zero);
    let words = changes(code, old, raw, 2).into_iter().map(|pair| {
        pair.map(|word| {
            let other = code.swapped(16, word);
            code.select(is_even, word, other)
        })
    });
    let words: Vec<[Value; 2]> = words.collect();
    let sum = code.raw(2, transport, 16);
    let sum = exchanged(code, sum, &words);
    code.set_raw(2, transport, 16, sum);
    code.set_word(place, 0, new);
}
