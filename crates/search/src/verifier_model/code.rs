//! A function's lines with the facts about them that do not depend on the path.

use millstream_isa::helpers::{ArgKind, Helper, HelperEffects};
use millstream_isa::{AluOp, AtomicOp, Callee, Insn, LegacyMode, Operand, Reg, Size, Width};
use millstream_object::{FuncId, Linkage, Object, RelocKind};

use super::frame::{FRAME, slot_of};
use crate::code::FunctionCode;

/// Registers that a call changes.
pub(super) const SCRATCH: [Reg; 6] = [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// An instruction of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkLine {
    pub(super) insn: Insn,
    /// The line that a jump or branch goes to.
    pub(super) target: Option<usize>,
    pub(super) reloc: Option<RelocKind>,
    /// A number that is known only when the program is loaded.
    pub(super) open: bool,
    /// States are compared and kept here.
    pub(super) prune: bool,
    /// A state is always kept here.
    pub(super) checkpoint: bool,
}

/// Registers and stack slots that may still be read, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LiveSet {
    pub(super) regs: u16,
    pub(super) slots: u64,
}

/// A function of the program.
#[derive(Debug)]
pub(super) struct WalkedFunction {
    pub(super) lines: Vec<WalkLine>,
    /// Live at the beginning of each line.
    pub(super) live: Vec<LiveSet>,
}

impl WalkedFunction {
    pub(super) fn new(object: &Object, func: u32) -> Option<WalkedFunction> {
        let code = FunctionCode::new(object.functions.get(func as usize)?)?;
        let mut lines = lines_of(object, &code);
        mark_prune_points(object, &mut lines);
        let live = liveness(object, &code, &lines);
        Some(WalkedFunction { lines, live })
    }
}

/// Registers that are live before each line of a function, a bit each.
pub(crate) fn live_registers(object: &Object, func: u32) -> Option<Vec<u16>> {
    Some(WalkedFunction::new(object, func)?.live.iter().map(|live| live.regs).collect())
}

/// Returns true if a function is verified with the caller's state.
pub(super) fn is_static(object: &Object, func: FuncId) -> bool {
    object.functions.get(func.index()).is_some_and(|f| f.linkage == Linkage::Static || f.hidden)
}

/// The helper that a line calls.
pub(super) fn helper_of(insn: Insn) -> Option<&'static Helper> {
    if let Insn::Call(Callee::Helper(id)) = insn { Helper::get(id) } else { None }
}

fn lines_of(object: &Object, code: &FunctionCode) -> Vec<WalkLine> {
    let first = |block: usize| code.blocks.get(block).map(|b| b.first as usize);
    let line = |l: &crate::code::CodeLine| WalkLine {
        insn: l.insn,
        target: l.target.and_then(first),
        reloc: l.reloc,
        open: l.core.is_some(),
        prune: false,
        checkpoint: calls_back(object, l.insn, l.reloc),
    };
    code.lines().map(line).collect()
}

/// Returns true if a call has the kernel call a function of the program, or begins a round of an iterator.
fn calls_back(object: &Object, insn: Insn, reloc: Option<RelocKind>) -> bool {
    let helper = helper_of(insn).is_some_and(|h| h.effects.contains(HelperEffects::CALLBACK));
    let next = match (insn, reloc) {
        (Insn::Call(_), Some(RelocKind::Extern(e))) => object
            .externs
            .get(e.index())
            .is_some_and(|e| e.name.starts_with("bpf_iter_") && e.name.ends_with("_next")),
        _ => false,
    };
    helper || next || matches!(insn, Insn::MayGoto { .. })
}

fn mark_prune_points(object: &Object, lines: &mut [WalkLine]) {
    let mut points = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        points.extend(line.target);
        let called = match (line.insn, line.reloc) {
            (Insn::Call(_), Some(RelocKind::Call(to))) => Some(is_static(object, to)),
            _ => None,
        };
        match line.insn {
            Insn::Branch { .. } | Insn::MayGoto { .. } => points.push(n),
            _ if line.checkpoint => points.push(n),
            _ => {}
        }
        if let Some(by_path) = called {
            points.push(n + 1);
            points.extend(by_path.then_some(n));
        }
    }
    points.push(0);
    points.into_iter().for_each(|n| {
        if let Some(line) = lines.get_mut(n) {
            line.prune = true;
        }
    });
}

/// Relation of a register to the function's own frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameReference {
    /// It holds no address in the frame.
    None,
    /// The frame's upper end, plus a constant.
    At(i64),
    /// An address at or above this offset.
    From(i64),
}

impl FrameReference {
    fn offset(self) -> Option<i64> {
        if let FrameReference::At(offset) = self { Some(offset) } else { None }
    }

    fn join(self, other: FrameReference) -> FrameReference {
        match (self, other) {
            (
                FrameReference::At(a) | FrameReference::From(a),
                FrameReference::At(b) | FrameReference::From(b),
            ) => {
                if self == other {
                    self
                } else {
                    FrameReference::From(a.min(b))
                }
            }
            _ => FrameReference::None,
        }
    }

    /// The slots of an access.
    fn slots(self, off: i16, bytes: i64) -> u64 {
        match self {
            FrameReference::None => 0,
            FrameReference::At(at) => slots(at + i64::from(off), bytes),
            FrameReference::From(at) => slots(at + i64::from(off), -at),
        }
    }
}

/// Relations of all registers.
type FrameReferences = [FrameReference; 11];

/// Relations at the beginning of each block.
fn frame_references(code: &FunctionCode) -> Vec<FrameReferences> {
    let mut at: Vec<Option<FrameReferences>> = vec![None; code.blocks.len()];
    let mut entry = [FrameReference::None; 11];
    entry[10] = FrameReference::At(0);
    if let Some(first) = at.first_mut() {
        *first = Some(entry);
    }
    let mut work = vec![0usize];
    while let Some(n) = work.pop() {
        let (Some(block), Some(Some(mut now))) = (code.blocks.get(n), at.get(n).copied()) else { continue };
        block.lines.iter().for_each(|line| follow(line.insn, &mut now));
        for &to in &block.next {
            let Some(known) = at.get_mut(to) else { continue };
            let joined = known.map_or(now, |k| std::array::from_fn(|r| k[r].join(now[r])));
            if *known != Some(joined) {
                *known = Some(joined);
                work.push(to);
            }
        }
    }
    at.into_iter().map(|o| o.unwrap_or([FrameReference::None; 11])).collect()
}

fn follow(insn: Insn, now: &mut FrameReferences) {
    let (dst, to) = match insn {
        Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => (dst, now[src.index()]),
        Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Operand::Imm(k) } => {
            match now[dst.index()] {
                FrameReference::At(offset) => (dst, FrameReference::At(offset + i64::from(k))),
                other => (dst, other),
            }
        }
        Insn::Alu { width: Width::W64, op: AluOp::Add | AluOp::Sub, dst, src: Operand::Reg(src) } => {
            match (now[dst.index()], now[src.index()]) {
                (FrameReference::At(at) | FrameReference::From(at), _)
                | (_, FrameReference::At(at) | FrameReference::From(at)) => (dst, FrameReference::From(at)),
                _ => (dst, FrameReference::None),
            }
        }
        Insn::Call(_) | Insn::LegacyLoad { .. } => {
            SCRATCH.iter().for_each(|r| now[r.index()] = FrameReference::None);
            return;
        }
        insn => match written(insn) {
            Some(dst) => (dst, FrameReference::None),
            None => return,
        },
    };
    now[dst.index()] = to;
}

/// The register that an instruction other than a call writes.
pub(crate) fn written(insn: Insn) -> Option<Reg> {
    match insn {
        Insn::Alu { dst, .. }
        | Insn::Mov { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::AddrSpaceCast { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. }
        | Insn::LoadAcquire { dst, .. } => Some(dst),
        Insn::Atomic { op: AtomicOp::CmpXchg, .. } => Some(Reg::R0),
        Insn::Atomic { fetch: true, src, .. } => Some(src),
        _ => None,
    }
}

/// Live registers and slots before each line: a backward dataflow.
fn liveness(object: &Object, code: &FunctionCode, lines: &[WalkLine]) -> Vec<LiveSet> {
    let references = frame_references(code);
    // The relations before each line.
    let mut known: Vec<FrameReferences> = Vec::with_capacity(lines.len());
    for (block, at) in code.blocks.iter().zip(references) {
        let mut now = at;
        for line in &block.lines {
            known.push(now);
            follow(line.insn, &mut now);
        }
    }
    let mut live = vec![LiveSet::default(); lines.len()];
    loop {
        let mut changed = false;
        for block in code.blocks.iter().rev() {
            let mut now = LiveSet::default();
            for &to in &block.next {
                let first = code.blocks.get(to).and_then(|b| live.get(b.first as usize));
                let Some(first) = first.copied() else { continue };
                now.regs |= first.regs;
                now.slots |= first.slots;
            }
            for i in (0..block.lines.len()).rev() {
                let n = block.first as usize + i;
                let (Some(line), Some(offsets)) = (lines.get(n), known.get(n)) else { continue };
                live_before(object, (line, &lines[block.first as usize..n]), offsets, &mut now);
                changed |= live[n] != now;
                live[n] = now;
            }
        }
        if !changed {
            return live;
        }
    }
}

fn slots(from: i64, bytes: i64) -> u64 {
    let to = (from + bytes).min(0);
    let mut bits = 0;
    let mut at = from.max(-FRAME);
    while at < to {
        bits |= slot_of(at).map_or(0, |n| 1 << n);
        at = (at.div_euclid(8) + 1) * 8;
    }
    bits
}

fn live_before(
    object: &Object,
    (line, earlier): (&WalkLine, &[WalkLine]),
    offsets: &FrameReferences,
    live: &mut LiveSet,
) {
    let bit = |r: Reg| 1u16 << r.index();
    let operand = |o: Operand| if let Operand::Reg(r) = o { bit(r) } else { 0 };
    if let Some(dst) = written(line.insn) {
        live.regs &= !bit(dst);
    }
    live.regs |= match line.insn {
        Insn::Alu { dst, src, .. } => bit(dst) | operand(src),
        Insn::Mov { src, .. } => operand(src),
        Insn::MovSx { src, .. } | Insn::AddrSpaceCast { src, .. } => bit(src),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => bit(dst),
        Insn::Load { src, size, off, .. } | Insn::LoadAcquire { src, size, off, .. } => {
            live.slots |= offsets[src.index()].slots(off, size.bytes().into());
            bit(src)
        }
        Insn::Store { size, dst, off, src } => {
            if let Some(at) = offsets[dst.index()].offset()
                && size == Size::Dw
            {
                live.slots &= !slots(at + i64::from(off), 8);
            }
            bit(dst) | operand(src)
        }
        Insn::StoreRelease { dst, src, .. } => bit(dst) | bit(src),
        Insn::Atomic { op, dst, src, off, size, .. } => {
            live.slots |= offsets[dst.index()].slots(off, size.bytes().into());
            bit(dst) | bit(src) | if op == AtomicOp::CmpXchg { 1 } else { 0 }
        }
        Insn::LegacyLoad { mode, .. } => {
            live.regs &= !0x3f;
            bit(Reg::R6) | if let LegacyMode::Ind(r) = mode { bit(r) } else { 0 }
        }
        Insn::Branch { dst, src, .. } => bit(dst) | operand(src),
        Insn::Call(_) => {
            live.regs &= !0x3f;
            read_by_call(object, (line, earlier), offsets, live)
        }
        Insn::Exit => {
            *live = LiveSet::default();
            1
        }
        Insn::LoadImm64 { .. } | Insn::Jump { .. } | Insn::MayGoto { .. } => 0,
    };
}

/// Arguments that a call reads, and the stack slots behind them.
fn read_by_call(
    object: &Object,
    (line, earlier): (&WalkLine, &[WalkLine]),
    offsets: &FrameReferences,
    live: &mut LiveSet,
) -> u16 {
    let helper = helper_of(line.insn);
    let map = match definition(earlier, Reg::R1).and_then(|l| l.reloc) {
        Some(RelocKind::Map(m)) => object.maps.get(m.index()),
        _ => None,
    };
    #[expect(clippy::needless_range_loop, reason = "the number of a register")]
    for n in 1..=5usize {
        let at = match offsets[n] {
            FrameReference::None => continue,
            FrameReference::At(at) | FrameReference::From(at) => at,
        };
        let key = || map.map_or(-at, |m| m.spec.key_size.into());
        let value = || map.map_or(-at, |m| m.spec.value_size.into());
        let bytes = match helper.map(|h| h.args.get(n - 1)) {
            // It is not known how much another function reads.
            None => -at,
            Some(None) => continue,
            Some(Some(ArgKind::MapKey)) => key(),
            Some(Some(ArgKind::MapValue | ArgKind::MapValueOrNull)) => value(),
            Some(Some(ArgKind::Fixed { bytes, read: true, .. })) => i64::from(*bytes),
            Some(Some(ArgKind::Mem { read: true, .. })) => {
                let size = Reg::new(n as u8 + 1).and_then(|r| definition(earlier, r));
                match size.map(|l| l.insn) {
                    Some(Insn::Mov { src: Operand::Imm(k), .. }) => k.into(),
                    _ => -at,
                }
            }
            Some(Some(kind)) if kind.reads_memory() => -at,
            Some(Some(_)) => continue,
        };
        live.slots |= slots(at, bytes);
    }
    match helper {
        Some(h) => (1..=h.args.len().min(5)).fold(0, |bits, n| bits | 1 << n),
        None => 0b11_1110,
    }
}

/// The line of a block that wrote a register last, if no call did.
fn definition(earlier: &[WalkLine], r: Reg) -> Option<&WalkLine> {
    let last =
        earlier.iter().rev().find(|l| matches!(l.insn, Insn::Call(_)) || written(l.insn) == Some(r))?;
    (written(last.insn) == Some(r)).then_some(last)
}
