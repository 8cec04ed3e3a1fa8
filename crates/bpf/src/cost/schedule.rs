//! A small out-of-order machine: instructions are issued in order, so many at a time, each starts when its
//! operands and its unit are there, and they retire in order.
//!
//! Every time is the greatest of earlier ones plus a constant, so that more work never ends earlier.

use millstream_isa::MapType;
use millstream_isa::helpers::id;
use millstream_isa::{AluOp, AtomicOp, Callee, Insn, Operand, Reg, Size, SwapKind, Width};

use super::table::{CostModel, ExecutionUnit, InsnTiming, Kind};

/// From the arguments to the result of a call that the kernel puts in line, at least: a load and some
/// arithmetic.
const INLINED: u32 = 6000;
const UNITS: usize = 7;

/// State of the machine: the operations in flight, and the times at which they are done, in thousandths of a
/// cycle.
#[derive(Clone)]
pub(super) struct CpuScoreboard {
    ready: [u32; 11],
    /// The maps that registers hold, one more than their type's number; 0 for none that is known.
    maps: [u8; 11],
    /// For each eight-byte word of the stack below the frame pointer, the time of the last store and the
    /// bytes it wrote.
    stack: [StackStore; 64],
    busy: [u32; UNITS],
    issued: u32,
    retired: u32,
}

#[derive(Clone, Copy, Default)]
struct StackStore {
    at: u32,
    /// The bytes of the last store.
    bytes: u8,
}

impl Default for CpuScoreboard {
    fn default() -> CpuScoreboard {
        let stack = [StackStore::default(); 64];
        CpuScoreboard { ready: [0; 11], maps: [0; 11], stack, busy: [0; UNITS], issued: 0, retired: 0 }
    }
}

/// The part of the stack that an instruction accesses, if its address is relative to the frame pointer.
#[derive(Clone, Copy)]
struct StackAccess {
    word: u8,
    bytes: u8,
}

impl StackAccess {
    fn of(insn: Insn) -> Option<StackAccess> {
        let (size, base, off) = match insn {
            Insn::Load { size, src, off, .. } => (size, src, off),
            Insn::Store { size, dst, off, .. } => (size, dst, off),
            _ => return None,
        };
        // Other bases have displacements of any size.
        let at = i32::from(off) + 512;
        if base != Reg::R10 || !(0..512).contains(&at) {
            return None;
        }
        let bytes = match size {
            Size::Dw => 0xff,
            _ => ((1u32 << size.bytes()) - 1) << (at % 8),
        };
        Some(StackAccess { word: (at / 8) as u8, bytes: bytes as u8 })
    }
}

impl CpuScoreboard {
    /// Time so far: the share given by [`CostModel::latency_share`] until results have come, the rest until
    /// everything was issued and every unit could take more. Later work overlaps with operations still in
    /// flight.
    pub(super) fn elapsed(&self, table: &CostModel) -> u64 {
        let issued = self.busy.iter().fold(self.issued, |a, &b| a.max(b));
        let part = u64::from(table.latency_share());
        (u64::from(self.retired.max(issued)) * part + u64::from(issued) * (1000 - part)) / 1000
    }

    /// Makes now the beginning of time, so that times stay small. Operations that have completed are over at
    /// the beginning.
    pub(super) fn rebase(&mut self) {
        let now = self.issued;
        let written = self.stack.iter_mut().map(|w| &mut w.at);
        for time in self.ready.iter_mut().chain(&mut self.busy).chain(written) {
            *time = time.saturating_sub(now);
        }
        self.issued = 0;
        self.retired = self.retired.saturating_sub(now);
    }

    /// The register holds a map of this type.
    pub(super) fn holds_map(&mut self, reg: Reg, map_type: MapType) {
        self.maps[reg.index()] = u8::try_from(map_type.0 + 1).unwrap_or(0);
    }

    /// A taken branch, or a jump: work fetched before goes on meanwhile.
    pub(super) fn jumps(&mut self, table: &CostModel) {
        let t = table.timing(Kind::Jump);
        let busy = &mut self.busy[t.unit as usize];
        *busy = self.issued.max(*busy).saturating_add(t.each);
    }

    /// One instruction more.
    pub(super) fn run(&mut self, table: &CostModel, insn: Insn) {
        let Some(mut kind) = kind(insn) else { return };
        let (reads, writes) = operands(insn);
        let mut inputs = 0;
        for r in bits(reads) {
            inputs = inputs.max(self.ready[r]);
        }
        let memory = StackAccess::of(insn);
        if let (Insn::Load { .. }, Some(m)) = (insn, memory) {
            let w = self.stack[usize::from(m.word)];
            if w.bytes & m.bytes != 0 {
                kind = if w.bytes & m.bytes == m.bytes { Kind::Forward } else { Kind::Stall };
                inputs = inputs.max(w.at);
            }
        }
        let t = table.timing(kind);
        if t.unit == ExecutionUnit::All {
            self.calls(self.call(table, insn, t), inputs, writes);
        } else {
            self.issued = self.issued.saturating_add(t.uops * 1_000_000 / table.width());
            self.beside(t, inputs, writes);
        }
        if let (Insn::Store { .. }, Some(m)) = (insn, memory) {
            let at = self.issued.max(inputs).saturating_add(t.latency);
            self.stack[usize::from(m.word)] = StackStore { at, bytes: m.bytes };
        }
        self.keep_maps(insn, writes);
    }

    /// Schedules an operation that runs beside others.
    fn beside(&mut self, t: InsnTiming, inputs: u32, writes: u16) {
        let (load, store) = (ExecutionUnit::Load as usize, ExecutionUnit::Store as usize);
        let unit = t.unit;
        let memory = unit == ExecutionUnit::Memory;
        let busy = if memory { self.busy[load].max(self.busy[store]) } else { self.busy[unit as usize] };
        let start = self.issued.max(inputs).max(busy);
        let free = self.issued.max(busy).saturating_add(t.each);
        if memory {
            (self.busy[load], self.busy[store]) = (free, free);
        } else {
            self.busy[unit as usize] = free;
        }
        let done = start.saturating_add(t.latency);
        for r in bits(writes) {
            self.ready[r] = done;
        }
        self.retired = self.retired.max(done);
    }

    /// A call. Nothing is known of its body, only the time until the next instruction can issue. Operations
    /// in flight go on meanwhile.
    fn calls(&mut self, length: u32, inputs: u32, writes: u16) {
        let done = self.issued.max(inputs).saturating_add(length.max(INLINED));
        self.issued = self.issued.saturating_add(length);
        self.retired = self.retired.max(done);
        for r in bits(writes) {
            self.ready[r] = done;
        }
    }

    /// Duration of a call.
    fn call(&self, table: &CostModel, insn: Insn, otherwise: InsnTiming) -> u32 {
        match insn {
            Insn::Call(Callee::Helper(id::MAP_LOOKUP_ELEM)) => {
                table.lookup(self.maps[1].checked_sub(1).map(|t| MapType(t.into())))
            }
            Insn::Call(Callee::Helper(id)) if id != id::TAIL_CALL => table.helper(id),
            _ => otherwise.latency,
        }
    }

    fn keep_maps(&mut self, insn: Insn, writes: u16) {
        let copied = match insn {
            Insn::Mov { src: Operand::Reg(src), .. } => self.maps[src.index()],
            _ => 0,
        };
        for r in bits(writes) {
            self.maps[r] = copied;
        }
    }
}

fn bits(set: u16) -> impl Iterator<Item = usize> {
    let mut rest = set;
    std::iter::from_fn(move || {
        let r = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (r < 11).then_some(r)
    })
}

/// The kind of machine operation that an instruction becomes; `None` if it becomes nothing.
fn kind(insn: Insn) -> Option<Kind> {
    Some(match insn {
        Insn::Alu { width, op, src, .. } => match (op, src) {
            (AluOp::Mul, _) => Kind::Mul,
            (AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, _) => match width {
                Width::W32 => Kind::Div32,
                Width::W64 => Kind::Div64,
            },
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(_)) => Kind::Shift,
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Reg(_)) => Kind::ShiftBy,
            _ => Kind::Alu,
        },
        Insn::Mov { src: Operand::Reg(_), .. } => Kind::Move,
        Insn::Mov { .. } | Insn::LoadImm64 { .. } => Kind::Constant,
        Insn::MovSx { .. } | Insn::AddrSpaceCast { .. } | Insn::Neg { .. } => Kind::Alu,
        Insn::Swap { kind: SwapKind::ToLe, bits, .. } => match bits {
            64 => return None,
            32 => Kind::Move,
            _ => Kind::Alu,
        },
        Insn::Swap { bits, .. } => match bits {
            16 => Kind::Swap16,
            32 => Kind::Swap32,
            _ => Kind::Swap64,
        },
        Insn::Load { .. } | Insn::LoadAcquire { .. } => Kind::Load,
        Insn::Store { .. } | Insn::StoreRelease { .. } => Kind::Store,
        Insn::Atomic { op, fetch, .. } => match (op, fetch) {
            (AtomicOp::Xchg | AtomicOp::CmpXchg, _) | (AtomicOp::Add, true) => Kind::Fetch,
            (_, true) => Kind::FetchLoop,
            (_, false) => Kind::Atomic,
        },
        Insn::LegacyLoad { .. } | Insn::MayGoto { .. } => Kind::Call,
        Insn::Branch { .. } => Kind::Branch,
        Insn::Call(Callee::Helper(id::MAP_LOOKUP_ELEM)) => Kind::Lookup,
        Insn::Call(Callee::Helper(id::TAIL_CALL)) => Kind::Tail,
        // The frame of the function that is called is counted there.
        Insn::Call(Callee::Local(_)) | Insn::Jump { .. } | Insn::Exit => return None,
        Insn::Call(_) => Kind::Call,
    })
}

/// The registers that an instruction reads and writes, as bits.
pub(crate) fn operands(insn: Insn) -> (u16, u16) {
    let bit = |r: Reg| 1u16 << r.index();
    let op = |o: Operand| if let Operand::Reg(r) = o { bit(r) } else { 0 };
    match insn {
        Insn::Alu { dst, src, .. } => (bit(dst) | op(src), bit(dst)),
        Insn::Mov { dst, src, .. } => (op(src), bit(dst)),
        Insn::MovSx { dst, src, .. } | Insn::AddrSpaceCast { dst, src, .. } => (bit(src), bit(dst)),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => (bit(dst), bit(dst)),
        Insn::LoadImm64 { dst, .. } => (0, bit(dst)),
        Insn::Load { dst, src, .. } | Insn::LoadAcquire { dst, src, .. } => (bit(src), bit(dst)),
        Insn::Store { dst, src, .. } => (bit(dst) | op(src), 0),
        Insn::StoreRelease { dst, src, .. } => (bit(dst) | bit(src), 0),
        Insn::Atomic { op: AtomicOp::CmpXchg, dst, src, .. } => (bit(dst) | bit(src) | 1, 1),
        Insn::Atomic { fetch, dst, src, .. } => (bit(dst) | bit(src), if fetch { bit(src) } else { 0 }),
        Insn::Branch { dst, src, .. } => (bit(dst) | op(src), 0),
        Insn::LegacyLoad { .. } => (1 << 6, 0x3f),
        Insn::Call(_) => (0, 0x3f),
        Insn::Jump { .. } | Insn::MayGoto { .. } | Insn::Exit => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_stack_is_no_word_of_it() {
        let load = |size, src, off| Insn::Load { size, sext: false, dst: Reg::R0, src, off };
        for off in [i16::MIN, -601, -513, 0, i16::MAX] {
            for base in [Reg::R1, Reg::R10] {
                assert!(StackAccess::of(load(Size::B, base, off)).is_none(), "{base:?} {off}");
            }
        }
        let last = StackAccess::of(load(Size::H, Reg::R10, -2)).expect("the last word");
        assert_eq!((last.word, last.bytes), (63, 0b1100_0000));
    }
}
