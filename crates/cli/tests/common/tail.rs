//! An XDP program that looks at the ends of packets.

use std::path::Path;

use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use millstream_lab::pcap::CaptureReader;

/// Sends a packet of ethertype 0x88b5 back with its last eight bytes inverted, and drops others. It loads and
/// stores them by helpers, and expects `data_end` behind them.
const SOURCE: &str = "r6 = r1
r2 = *(u32 *)(r1 +0)
r7 = *(u32 *)(r1 +4)
r3 = r2
r3 += 14
if r3 > r7 goto drop
r0 = *(u16 *)(r2 +12)
if r0 != 0xb588 goto drop
r7 -= r2
call xdp_get_buff_len#188
if r0 != r7 goto drop
r8 = r0
r8 += -8
r1 = r6
r2 = r8
r3 = r10
r3 += -8
r4 = 8
call xdp_load_bytes#189
if r0 != 0 goto drop
r1 = *(u64 *)(r10 -8)
r1 ^= -1
*(u64 *)(r10 -8) = r1
r1 = r6
r2 = r8
r3 = r10
r3 += -8
r4 = 8
call xdp_store_bytes#190
if r0 != 0 goto drop
r0 = 3
exit
drop:
r0 = 1
exit";

/// The program as a raw program file, whose name must end with `_xdp.insns`.
pub(crate) fn program() -> Vec<u8> {
    encode_all(&assemble(SOURCE).unwrap()).into_iter().flat_map(RawInsn::to_bytes).collect()
}

/// A packet of this length for the program, with other bytes in each place.
pub(crate) fn packet(number: usize, length: usize) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    packet.extend((14..length).map(|at| (at * 7 + at / 251 + number) as u8));
    packet
}

/// The packet as the program sends it.
pub(crate) fn answer(packet: &[u8]) -> Vec<u8> {
    let mut answer = packet.to_vec();
    let end = answer.len() - 8;
    answer[end..].iter_mut().for_each(|byte| *byte = !*byte);
    answer
}

/// The packets of a capture, of any length.
pub(crate) fn captured(path: &str) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(Path::new(path)).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record() {
        packets.push(record.bytes.to_vec());
    }
    packets
}
