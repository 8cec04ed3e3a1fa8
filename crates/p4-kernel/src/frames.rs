//! Changes of a frame's length at the end of the entry program: the deparser's bytes in front of the payload,
//! and truncation.

use millstream_ir::{AluOp, Cond, Size, Value};
use millstream_isa::helpers::id;

use crate::entry::EntryWriter;
use crate::hook::{KernelHook, SKB_LENGTH};

/// Longest payload that a TC program moves, in bytes: a power of two.
pub(crate) const MOST_PAYLOAD: u32 = 16 << 10;

impl EntryWriter<'_, '_> {
    /// Puts what the deparser wrote in front of the payload.
    pub(crate) fn put_output(&mut self) {
        let Some(output) = self.parts.pipeline.state.output else { return };
        let (cursor, length) = (self.get("engine.cursor"), self.get("engine.output_length"));
        let copied = self.get("engine.output_copied");
        match self.parts.hook {
            KernelHook::Xdp => {
                let moved = self.writer.alu(AluOp::Sub, cursor, length);
                let result = self.writer.helper(id::XDP_ADJUST_HEAD, &[self.context, moved]);
                self.writer.require(Cond::Eq, result, 0, self.no_frame);
            }
            KernelHook::Tc => {
                // The packet's own bytes stay where a uBPF program cut its headers.
                let kept = self.writer.alu(AluOp::Sub, length, copied);
                let from = self.writer.alu(AluOp::Sub, cursor, kept);
                self.move_payload(from, copied);
            }
        }
        let (some, behind) = (self.writer.new_block(), self.writer.new_block());
        let zero = self.writer.constant(0);
        self.writer.branch(Cond::Ne, (copied, zero), some, behind);
        self.writer.enter(some);
        let size = self.bounded_size(copied, output.capacity.next_power_of_two());
        let bytes = self.writer.moved_by(self.state, output.offset);
        let result = match self.parts.hook {
            KernelHook::Xdp => self.writer.helper(id::XDP_STORE_BYTES, &[self.context, zero, bytes, size]),
            KernelHook::Tc => {
                self.writer.helper(id::SKB_STORE_BYTES, &[self.context, zero, bytes, size, zero])
            }
        };
        self.writer.require(Cond::Eq, result, 0, self.dropped);
        self.writer.jump(behind, &[]);
        self.writer.enter(behind);
    }

    /// A size of at least 1 and at most `most`, a power of two, as the verifier can see.
    fn bounded_size(&mut self, size: Value, most: u32) -> Value {
        let less = self.writer.alu_with(AluOp::Sub, size, 1);
        let less = self.writer.alu_with(AluOp::And, less, u64::from(most - 1));
        self.writer.alu_with(AluOp::Add, less, 1)
    }

    /// Moves the payload of a socket buffer behind room for the deparser's bytes, and sets the new length.
    fn move_payload(&mut self, cursor: Value, length: Value) {
        let (moves, behind) = (self.writer.new_block(), self.writer.new_block());
        self.writer.branch(Cond::Ne, (cursor, length), moves, behind);
        self.writer.enter(moves);
        let total = self.writer.load(self.context, SKB_LENGTH, Size::W);
        let payload = self.writer.alu(AluOp::Sub, total, cursor);
        let target = self.writer.alu(AluOp::Add, payload, length);
        let (some, resized) = (self.writer.new_block(), self.writer.new_block());
        let zero = self.writer.constant(0);
        let limit = self.writer.new_block();
        self.writer.branch(Cond::Ne, (payload, zero), limit, resized);
        self.writer.enter(limit);
        let most = self.writer.constant(u64::from(MOST_PAYLOAD));
        self.writer.branch(Cond::Le, (payload, most), some, self.no_frame);
        self.writer.enter(some);
        let size = self.bounded_size(payload, MOST_PAYLOAD);
        let room = self.writer.lookup_word(self.parts.payload, zero);
        self.writer.require(Cond::Ne, room, 0, self.dropped);
        let result = self.writer.helper(id::SKB_LOAD_BYTES, &[self.context, cursor, room, size]);
        self.writer.require(Cond::Eq, result, 0, self.dropped);
        let result = self.writer.helper(id::SKB_CHANGE_TAIL, &[self.context, target, zero]);
        self.writer.require(Cond::Eq, result, 0, self.no_frame);
        let result = self.writer.helper(id::SKB_STORE_BYTES, &[self.context, length, room, size, zero]);
        self.writer.require(Cond::Eq, result, 0, self.dropped);
        self.writer.jump(behind, &[]);
        self.writer.enter(resized);
        let result = self.writer.helper(id::SKB_CHANGE_TAIL, &[self.context, target, zero]);
        self.writer.require(Cond::Eq, result, 0, self.no_frame);
        self.writer.jump(behind, &[]);
        self.writer.enter(behind);
    }

    /// Cuts the packet, if the program asked for it.
    pub(crate) fn truncate(&mut self) {
        let asked = self.get("engine.truncates");
        let (cuts, behind) = (self.writer.new_block(), self.writer.new_block());
        let zero = self.writer.constant(0);
        self.writer.branch(Cond::Ne, (asked, zero), cuts, behind);
        self.writer.enter(cuts);
        let wanted = self.get("engine.truncated_length");
        let length = match self.parts.hook {
            KernelHook::Xdp => {
                let packet = self.packet();
                self.length(packet)
            }
            KernelHook::Tc => self.writer.load(self.context, SKB_LENGTH, Size::W),
        };
        let shorter = self.writer.new_block();
        self.writer.branch(Cond::Lt, (wanted, length), shorter, behind);
        self.writer.enter(shorter);
        let result = match self.parts.hook {
            KernelHook::Xdp => {
                let change = self.writer.alu(AluOp::Sub, wanted, length);
                self.writer.helper(id::XDP_ADJUST_TAIL, &[self.context, change])
            }
            KernelHook::Tc => self.writer.helper(id::SKB_CHANGE_TAIL, &[self.context, wanted, zero]),
        };
        self.writer.require(Cond::Eq, result, 0, self.no_frame);
        self.writer.jump(behind, &[]);
        self.writer.enter(behind);
    }
}
