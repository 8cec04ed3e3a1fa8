//! Blocks in their order to bytecode: jumps, relocations, source lines.
//!
//! The kernel puts several instructions in the place of one when it loads a program, and moves jump targets
//! accordingly: a 16-bit jump that is nearly full is then refused ("cannot be patched due to 16-bit range").
//! So distances are measured in the slots that the code may have in the kernel ([`patched`]).

use millstream_ir::{Cond, Function, Linkage, Width};
use millstream_isa::helpers::id;
use millstream_isa::{AluOp, Callee, Insn, Operand, Reg, Size};

use super::code::{EmittedBlock, SrcOperand, Terminator};
use super::{LowerError, LoweredFunction};

/// End of a block in its place: instructions with the block they jump to.
#[derive(Clone, Copy, Debug)]
pub(super) enum TerminatorInsn {
    Exit,
    Goto(usize),
    If { cond: Cond, width: Width, dst: Reg, src: SrcOperand, to: usize },
    May(usize),
}

#[inline]
pub(super) fn endings(term: Terminator, next: Option<usize>, far: bool) -> [Option<TerminatorInsn>; 3] {
    let goto = |t: usize| (Some(t) != next).then_some(TerminatorInsn::Goto(t));
    match term {
        Terminator::Return => [Some(TerminatorInsn::Exit), None, None],
        Terminator::Jump(t) => [goto(t), None, None],
        Terminator::MayGoto { taken, fall } => [Some(TerminatorInsn::May(taken)), goto(fall), None],
        Terminator::Branch { cond, width, dst, src, taken, fall } => {
            let branch = |cond, to| Some(TerminatorInsn::If { cond, width, dst, src, to });
            match (cond.negated(), far) {
                // Over a long jump: the near side is the one that is skipped to.
                (_, true) => {
                    [branch(cond, taken), Some(TerminatorInsn::Goto(fall)), Some(TerminatorInsn::Goto(taken))]
                }
                (Some(not), false) if Some(taken) == next => [branch(not, fall), None, None],
                _ => [branch(cond, taken), goto(fall), None],
            }
        }
    }
}

fn ending_slots(term: Terminator, next: Option<usize>, far: bool) -> i64 {
    endings(term, next, far).iter().flatten().count() as i64
}

/// The longest 16-bit jump that is used, in slots after the kernel's patching: a tenth of the range is left
/// for what [`patched`] does not know.
const REACH: i64 = 29_500;

/// Slots that an instruction may have once the kernel has patched it, at most. From `convert_ctx_accesses`
/// and `do_misc_fixups` of `kernel/bpf/verifier.c`, `bpf_convert_ctx_access` of `net/core/filter.c` and
/// `map_gen_lookup` of maps, Linux 6.18.
fn patched(insn: Insn, converts_context: bool) -> i64 {
    let more = match insn {
        Insn::Call(Callee::Helper(id::MAP_LOOKUP_ELEM)) => 9,
        Insn::Call(Callee::Helper(id::LOOP)) => 24,
        Insn::Call(Callee::Helper(_) | Callee::Kfunc { .. }) => 8,
        Insn::LegacyLoad { .. } => 15,
        Insn::MayGoto { .. } => 6,
        Insn::Alu {
            op: AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, src: Operand::Reg(_), ..
        } => 8,
        Insn::AddrSpaceCast { .. } => 2,
        // A field of the context, as far as anybody can tell here.
        Insn::Load { src, off: 0..=255, size, .. } if converts_context && src != Reg::R10 => {
            if size == Size::B { 2 } else { 4 }
        }
        Insn::Store { dst, off: 0..=255, .. } if converts_context && dst != Reg::R10 => 3,
        _ => 0,
    };
    insn.slots() as i64 + more
}

/// Returns true if the kernel rewrites a function's accesses to the context. Those of probes and of
/// tracepoints stay.
fn converts_context(func: &Function) -> bool {
    const KPROBE: u32 = 2;
    const TRACEPOINT: u32 = 5;
    const RAW_TRACEPOINT: u32 = 17;
    !matches!(func.linkage, Linkage::Program { prog_type: KPROBE | TRACEPOINT | RAW_TRACEPOINT })
}

/// Positions of the blocks.
struct BlockOffsets {
    /// Their first slots.
    start: Vec<i64>,
    /// The same once the kernel has patched the code.
    patched: Vec<i64>,
    /// Whose branch is so far that it must go over a long jump.
    far: Vec<bool>,
}

impl BlockOffsets {
    fn new(func: &Function, blocks: &[EmittedBlock], order: &[usize], closed: &[bool]) -> BlockOffsets {
        let converts = converts_context(func);
        let sum = |slots: &dyn Fn(Insn) -> i64| -> Vec<i64> {
            blocks.iter().map(|b| b.body.iter().map(|e| slots(e.insn)).sum()).collect()
        };
        let (slots, most) = (sum(&|i| i.slots() as i64), sum(&|i| patched(i, converts)));
        let none = || vec![0i64; blocks.len()];
        let mut places = BlockOffsets { start: none(), patched: none(), far: vec![false; blocks.len()] };
        loop {
            let (mut at, mut then) = (0, 0);
            for (i, &b) in order.iter().enumerate() {
                (places.start[b], places.patched[b]) = (at, then);
                let term = blocks[b].term;
                let ends = ending_slots(term, fallen_to(order, i, closed), places.far[b]);
                at += slots[b] + ends;
                then += most[b] + ends + if let Terminator::MayGoto { .. } = term { 6 } else { 0 };
            }
            let mut changed = false;
            for (i, &b) in order.iter().enumerate() {
                let Terminator::Branch { taken, fall, .. } = blocks[b].term else { continue };
                let from = places.patched[b] + most[b] + 1;
                let next = order.get(i + 1).copied();
                let to = if Some(taken) == next { fall } else { taken };
                if !places.far[b] && !places.reaches(from, to) {
                    places.far[b] = true;
                    changed = true;
                }
            }
            if !changed {
                return places;
            }
        }
    }

    /// Reports whether a 16-bit jump reaches a block from a slot of the patched code.
    fn reaches(&self, from: i64, to: usize) -> bool {
        (self.patched[to] - from).abs() <= REACH
    }
}

/// The block that the block at this place may fall to.
fn fallen_to(order: &[usize], place: usize, closed: &[bool]) -> Option<usize> {
    if closed[order[place]] { None } else { order.get(place + 1).copied() }
}

/// The bytecode of blocks in a given order; `closed` ones jump to the next one.
pub(super) fn assemble(
    func: &Function,
    blocks: &[EmittedBlock],
    order: &[usize],
    closed: &[bool],
) -> Result<LoweredFunction, LowerError> {
    let places = BlockOffsets::new(func, blocks, order, closed);
    let converts = converts_context(func);
    let mut out = LoweredFunction::default();
    let mut at = 0u32;
    let mut line = LineRecorder { first: blocks.iter().find_map(first_loc), last: u32::MAX };
    for (i, &b) in order.iter().enumerate() {
        let mut then = places.patched[b];
        for e in &blocks[b].body {
            then += patched(e.insn, converts);
            line.note(&mut out, at, e.loc);
            out.syms.extend(e.sym.map(|s| (at, s)));
            out.cores.extend(e.core.map(|c| (at, c)));
            out.insns.push(e.insn);
            at += e.insn.slots() as u32;
        }
        let ends = endings(blocks[b].term, fallen_to(order, i, closed), places.far[b]);
        for (n, end) in ends.iter().flatten().enumerate() {
            line.note(&mut out, at, blocks[b].loc);
            let distance = |t: usize| JumpDistance {
                off: places.start[t] - i64::from(at) - 1,
                near: places.reaches(then + 1, t),
            };
            let skip = places.far[b] && n == 0;
            out.insns.push(jump(*end, &distance, skip, func)?);
            at += 1;
            then += 1;
        }
    }
    Ok(out)
}

/// Distance of a jump.
struct JumpDistance {
    off: i64,
    /// True if 16 bits are enough, now and in the kernel.
    near: bool,
}

fn jump(
    end: TerminatorInsn,
    distance: &dyn Fn(usize) -> JumpDistance,
    skip: bool,
    func: &Function,
) -> Result<Insn, LowerError> {
    let too_far = || LowerError::TooFar { function: func.name.clone() };
    let short = |to: usize| {
        let JumpDistance { off, near } = distance(to);
        i16::try_from(off).ok().filter(|_| near).ok_or_else(too_far)
    };
    Ok(match end {
        TerminatorInsn::Exit => Insn::Exit,
        TerminatorInsn::Goto(t) => {
            let JumpDistance { off, near } = distance(t);
            Insn::Jump { off: i32::try_from(off).map_err(|_| too_far())?, long: !near }
        }
        TerminatorInsn::May(t) => Insn::MayGoto { off: short(t)? },
        TerminatorInsn::If { cond, width, dst, src, to } => {
            let src = match src {
                SrcOperand::Reg(r) => Operand::Reg(r),
                SrcOperand::Imm(i) => Operand::Imm(i),
            };
            let off = if skip { 1 } else { short(to)? };
            Insn::Branch { width, cond, dst, src, off }
        }
    })
}

fn first_loc(code: &EmittedBlock) -> Option<u32> {
    code.body.iter().map(|e| e.loc).chain([code.loc]).find(|&l| l != u32::MAX)
}

/// Source lines: a record wherever the line changes, and at the first instruction.
struct LineRecorder {
    first: Option<u32>,
    last: u32,
}

impl LineRecorder {
    fn note(&mut self, out: &mut LoweredFunction, at: u32, loc: u32) {
        let loc = if loc == u32::MAX { self.first.take().unwrap_or(self.last) } else { loc };
        self.first = None;
        if loc != self.last {
            out.lines.push((at, loc));
            self.last = loc;
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_isa::asm::assemble as assembled;

    use super::*;
    use crate::lower::code::EmittedInsn;

    /// A branch over so many instructions, the bytecode of the function that it is in.
    fn over(insn: &str, count: usize, prog_type: u32) -> LoweredFunction {
        let linkage = Linkage::Program { prog_type };
        let func = Function::new("f".to_owned(), linkage);
        let insn = assembled(insn).expect("it assembles")[0];
        let emitted = EmittedInsn { insn, sym: None, core: None, loc: 0, args: 0, undef: false };
        let block = |body: Vec<EmittedInsn>, term| EmittedBlock { body, term, loc: 0 };
        let (cond, width, dst) = (Cond::Eq, Width::W64, Reg::R1);
        let branch = Terminator::Branch { cond, width, dst, src: SrcOperand::Imm(0), taken: 2, fall: 1 };
        let blocks = [
            block(vec![], branch),
            block(vec![emitted; count], Terminator::Jump(2)),
            block(vec![], Terminator::Return),
        ];
        assemble(&func, &blocks, &[0, 1, 2], &[false; 3]).expect("it can be assembled")
    }

    fn is_long(code: &LoweredFunction) -> bool {
        code.insns.iter().any(|i| matches!(i, Insn::Jump { long: true, .. }))
    }

    #[test]
    fn a_jump_has_room_for_what_the_kernel_puts_in_between() {
        const XDP: u32 = 6;
        const KPROBE: u32 = 2;
        assert!(!is_long(&over("r0 += 1", 29_000, XDP)));
        assert!(is_long(&over("r0 += 1", 30_000, XDP)), "nothing is left");
        assert!(!is_long(&over("call bpf_map_lookup_elem#1", 2_900, XDP)));
        assert!(is_long(&over("call bpf_map_lookup_elem#1", 3_000, XDP)), "each lookup becomes up to ten");
        assert!(
            is_long(&over("r2 = *(u32 *)(r1 + 4)", 8_000, XDP)),
            "fields of the context become loads of others"
        );
        assert!(!is_long(&over("r2 = *(u32 *)(r1 + 4)", 8_000, KPROBE)), "but not those of probes");
        assert!(!is_long(&over("r2 = *(u32 *)(r10 - 4)", 29_000, XDP)));
        assert!(is_long(&over("r2 /= r3", 3_400, KPROBE)));
    }

    #[test]
    fn the_far_side_of_a_branch_is_reached_by_a_long_jump() {
        let code = over("r0 += 1", 40_000, 6);
        assert!(matches!(code.insns[0], Insn::Branch { off: 1, .. }));
        assert_eq!(code.insns[1], Insn::Jump { off: 1, long: false });
        assert_eq!(code.insns[2], Insn::Jump { off: 40_000, long: true });
    }
}
