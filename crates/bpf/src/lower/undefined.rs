//! Registers that nobody has given a value. Undefined values that somebody reads become zeros, the others
//! vanish; no function returns the address of a stack by accident; and the last check, that no register and
//! no spill slot is read which is not written on every path to the read.
//!
//! The kernel rejects such a read even where the value does not matter. At the entry only the registers of
//! the function's own parameters are written: `r2` to `r5` hold nothing that a program may read.

use millstream_ir::Function;
use millstream_isa::{AluOp, Insn, Operand, Reg, Size, Width};

use super::LowerError;
use super::code::{EmittedBlock, EmittedInsn, Terminator, successors};
use super::register_sets::{RegSet, effect, live_in_sets, live_out, register_summary, term_reads};

/// Makes undefined values zeros where their registers are read, and drops them elsewhere.
pub(super) fn materialize_undefined(func: &Function, blocks: &mut [EmittedBlock]) {
    if !blocks.iter().any(|b| b.body.iter().any(|e| e.undef)) {
        return;
    }
    let sums: Vec<(RegSet, RegSet)> = blocks.iter().map(register_summary).collect();
    let live = live_in_sets(blocks, &sums);
    for b in 0..blocks.len() {
        let unread = if matches!(blocks[b].term, Terminator::Return) && !func.returns { 1 } else { 0 };
        let mut now = live_out(blocks, &live, b) & !unread;
        let mut keep = vec![true; blocks[b].body.len()];
        for (e, keep) in blocks[b].body.iter_mut().zip(&mut keep).rev() {
            let (reads, writes) = effect(e);
            *keep = !(e.undef && writes & now == 0);
            e.undef = false;
            now = if *keep { now & !writes | reads } else { now };
        }
        let mut it = keep.iter();
        blocks[b].body.retain(|_| *it.next().unwrap_or(&true));
    }
}

/// Clears `r0` where a function without a result may leave an address of a stack in it, for the kernel
/// refuses to return one even to a caller that does not look.
pub(super) fn clear_results(func: &Function, blocks: &mut [EmittedBlock]) {
    if func.returns {
        return;
    }
    // Registers that may hold such an address, on entry of each block; any parameter may.
    let params = func.blocks[func.entry()].params.len();
    let mut before: Vec<Option<RegSet>> = vec![None; blocks.len()];
    before[0] = Some((1..=params).fold(0, |set, n| set | 1 << n));
    let mut work = vec![0];
    while let Some(b) = work.pop() {
        let after = addresses_after(&blocks[b], before[b].unwrap_or(0));
        for s in successors(blocks[b].term) {
            let met = before[s].unwrap_or(0) | after;
            if before[s] != Some(met) {
                before[s] = Some(met);
                work.push(s);
            }
        }
    }
    for (block, before) in blocks.iter_mut().zip(before) {
        let returns = matches!(block.term, Terminator::Return);
        if returns && before.is_some_and(|before| addresses_after(block, before) & 1 != 0) {
            let insn = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Imm(0) };
            let loc = block.loc;
            block.body.push(EmittedInsn { insn, sym: None, core: None, loc, args: 0, undef: false });
        }
    }
}

/// Registers that may hold an address of a stack at the end of a block, given those on its entry.
fn addresses_after(block: &EmittedBlock, before: RegSet) -> RegSet {
    block.body.iter().fold(before, |held, e| {
        let holds = |r: Reg| r == Reg::R10 || held & 1 << r.index() != 0;
        let set = |dst: Reg, yes: bool| held & !(1 << dst.index()) | u16::from(yes) << dst.index();
        match e.insn {
            Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => set(dst, holds(src)),
            Insn::Alu { width: Width::W64, op: AluOp::Add | AluOp::Sub, dst, src } => {
                set(dst, holds(dst) || matches!(src, Operand::Reg(src) if holds(src)))
            }
            // A spilled value, stored here or by a caller.
            Insn::Load { size: Size::Dw, dst, src, .. } => set(dst, holds(src)),
            _ => held & !effect(e).1,
        }
    })
}

/// Registers and spill slots that are written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InitializedSet {
    regs: RegSet,
    slots: u64,
}

/// Checks that all that is read was written, whichever way led there.
pub(super) fn check(func: &Function, blocks: &[EmittedBlock], spills: &[i32]) -> Result<(), LowerError> {
    let params = func.blocks[func.entry()].params.len();
    let args = (1..=params).fold(0, |set, n| set | 1 << n);
    let mut before: Vec<Option<InitializedSet>> = vec![None; blocks.len()];
    before[0] = Some(InitializedSet { regs: args, slots: 0 });
    let mut work = vec![0];
    while let Some(b) = work.pop() {
        let Some(mut now) = before[b] else { continue };
        let undefined = |what: String| LowerError::Undefined { function: func.name.clone(), what };
        for e in &blocks[b].body {
            step(&mut now, e, spills).map_err(undefined)?;
        }
        let returns_nothing = matches!(blocks[b].term, Terminator::Return) && !func.returns;
        let reads = if returns_nothing { 0 } else { term_reads(blocks[b].term) };
        read(now.regs, reads).map_err(undefined)?;
        for s in successors(blocks[b].term) {
            let met = match before[s] {
                None => now,
                Some(old) => InitializedSet { regs: old.regs & now.regs, slots: old.slots & now.slots },
            };
            if before[s] != Some(met) {
                before[s] = Some(met);
                work.push(s);
            }
        }
    }
    Ok(())
}

/// Steps over an instruction; fails with a description if it reads something unwritten.
fn step(now: &mut InitializedSet, e: &EmittedInsn, spills: &[i32]) -> Result<(), String> {
    let (reads, writes) = effect(e);
    read(now.regs, reads)?;
    // Slots beyond those of a frame are not followed.
    let slot = |off: i16| {
        let number = spills.iter().position(|s| *s == i32::from(off)).filter(|n| *n < 64);
        number.map_or(0, |n| 1u64 << n)
    };
    match e.insn {
        Insn::Load { size: Size::Dw, src: Reg::R10, off, .. } if slot(off) & !now.slots != 0 => {
            return Err(format!("the spill slot at {off}"));
        }
        Insn::Store { size: Size::Dw, dst: Reg::R10, off, src: Operand::Reg(_) } => now.slots |= slot(off),
        _ => {}
    }
    now.regs = match e.insn {
        // The call writes its result to r0 and clobbers the argument registers.
        Insn::Call(_) | Insn::LegacyLoad { .. } => now.regs & !writes | 1,
        _ => now.regs | writes,
    };
    Ok(())
}

fn read(written: RegSet, reads: RegSet) -> Result<(), String> {
    let missing = reads & !written;
    if missing == 0 { Ok(()) } else { Err(format!("r{}", missing.trailing_zeros())) }
}

#[cfg(test)]
mod tests {
    use millstream_ir::text::parse_module;
    use millstream_isa::asm::assemble;

    use super::*;
    use crate::lower::{CHOICES, LoweredFunction, LoweringStrategy, lower, lower_with};

    fn function(text: &str) -> Function {
        let module = parse_module(text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        module.funcs.values().next().expect("there is one").clone()
    }

    fn block(text: &str, term: Terminator) -> EmittedBlock {
        let body = assemble(text).expect("it assembles");
        let emitted = |insn| EmittedInsn { insn, sym: None, core: None, loc: 0, args: 0, undef: false };
        EmittedBlock { body: body.into_iter().map(emitted).collect(), term, loc: 0 }
    }

    /// A program whose value is undefined on one of two ways, with so many others alive that it is spilled.
    fn undefined_on_one_way(others: usize) -> String {
        let mut text = String::from(
            "fn0 \"f\" program(6) returns {\nblock0(v0: ptr(ctx)):\n  v1: any = undef\n  \
             v2: i32 = load.w.u.12.plain v0\n",
        );
        let loaded: Vec<usize> = (3..3 + others).collect();
        for v in &loaded {
            text += &format!("  v{v}: i32 = load.w.u.16.plain v0\n");
        }
        text += "  v100: i64 = const.7\n  br.eq.w64 v2, v100, block1(v1), block1(v2)\nblock1(v101: any):\n";
        text += "  v102: i64 = helper.5\n  v103: i64 = alu.add.w64 v101, v102\n";
        let mut sum = 103;
        for v in &loaded {
            text += &format!("  v{}: i64 = alu.xor.w64 v{sum}, v{v}\n", 200 + v);
            sum = 200 + v;
        }
        text + &format!("  return v{sum}\n}}\n")
    }

    /// Registers read that nobody wrote, on straight lines and over branches, read off the bytecode alone.
    fn reads_unwritten(code: &LoweredFunction) -> Option<String> {
        let places: Vec<usize> = code
            .insns
            .iter()
            .scan(0, |at, i| {
                let here = *at;
                *at += i.slots();
                Some(here)
            })
            .collect();
        let index =
            |slot: i64| places.iter().position(|p| *p as i64 == slot).expect("jumps lead to instructions");
        let mut before: Vec<Option<u16>> = vec![None; code.insns.len()];
        before[0] = Some(1 << 1 | 1 << 10);
        let mut work = vec![0];
        while let Some(n) = work.pop() {
            let (insn, now) = (code.insns[n], before[n].expect("it was reached"));
            let (reads, writes) = crate::cost::operands(insn);
            let reads = if insn == Insn::Exit { 1 } else { reads };
            if reads & !now != 0 {
                return Some(format!("{n}: {insn}"));
            }
            let now = if matches!(insn, Insn::Call(_)) { now & !0x3f | 1 } else { now | writes };
            let next = match insn {
                Insn::Exit => vec![],
                Insn::Jump { off, .. } => vec![index(places[n] as i64 + 1 + i64::from(off))],
                Insn::Branch { off, .. } => vec![n + 1, index(places[n] as i64 + 1 + i64::from(off))],
                _ => vec![n + 1],
            };
            for s in next {
                let met = before[s].map_or(now, |old| old & now);
                if before[s] != Some(met) {
                    before[s] = Some(met);
                    work.push(s);
                }
            }
        }
        None
    }

    #[test]
    fn an_undefined_value_is_no_read_of_an_argument_register() {
        for others in 0..9 {
            let func = function(&undefined_on_one_way(others));
            for choice in 0..CHOICES.len() {
                let code =
                    lower_with(&func, LoweringStrategy::default().with(choice)).expect("it can be lowered");
                assert_eq!(reads_unwritten(&code), None, "{others} others:\n{:#?}", code.insns);
            }
        }
    }

    #[test]
    fn what_nobody_reads_is_not_made() {
        let func = function(
            "fn0 \"f\" program(6) returns {\nblock0(v0: ptr(ctx)):\n  v1: any = undef\n  v2: i64 = const.1\n  \
             v3: i32 = load.w.u.12.plain v0\n  br.eq.w64 v3, v2, block1(v1), block2\nblock1(v4: any):\n  \
             jump block2\nblock2:\n  return v2\n}\n",
        );
        assert!(lower(&func).expect("it can be lowered").insns.len() <= 4);
    }

    #[test]
    fn nobody_returns_the_address_of_a_stack_by_accident() {
        let func = |returns: &str| {
            function(&format!(
                "fn0 \"f\" static{returns} {{\nblock0(v0: any, v1: any):\n  {}\n}}\n",
                match returns {
                    "" => "return",
                    _ => "return v0",
                }
            ))
        };
        let cleared = |returns: &str, text: &str| {
            let mut blocks = vec![block(text, Terminator::Jump(1)), block("r2 = 0", Terminator::Return)];
            clear_results(&func(returns), &mut blocks);
            blocks[1].body.len() == 2
        };
        assert!(cleared("", "r0 = r1"), "an argument may be an address in a caller's frame");
        assert!(cleared("", "r3 = r10\nr3 += -8\nr0 = r3"));
        assert!(cleared("", "*(u64 *)(r10 -8) = r1\nr0 = *(u64 *)(r10 -8)"));
        assert!(!cleared("", "r0 = r1\nr0 = *(u32 *)(r0 +0)"));
        assert!(!cleared("", "r0 = r1\ncall bpf_ktime_get_ns#5"));
        assert!(!cleared("", "w0 = w1"));
        assert!(!cleared(" returns", "r0 = r1"), "what it returns is what the program wants");
    }

    #[test]
    fn a_value_without_a_definition_on_every_way_is_refused() {
        // The definition is in one side of a branch, the use behind both.
        let func = function(
            "fn0 \"f\" program(6) returns {\nblock0(v0: ptr(ctx)):\n  v1: i32 = load.w.u.12.plain v0\n  \
             v2: i64 = const.1\n  br.eq.w64 v1, v2, block1, block2\nblock1:\n  \
             v3: i32 = load.w.u.16.plain v0\n  jump block2\nblock2:\n  return v3\n}\n",
        );
        let refused = lower(&func);
        assert!(matches!(refused, Err(LowerError::Invalid { .. })), "{refused:?}");
    }

    #[test]
    fn code_that_reads_what_was_not_written_is_refused() {
        let func = function(
            "fn0 \"f\" program(6) returns {\nblock0(v0: ptr(ctx)):\n  v1: i64 = const.0\n  return v1\n}\n",
        );
        let checked = |blocks: &[EmittedBlock]| check(&func, blocks, &[-8, -16]).map_err(|e| e.to_string());
        let branch = Terminator::Branch {
            cond: millstream_ir::Cond::Eq,
            width: Width::W64,
            dst: Reg::R1,
            src: super::super::code::SrcOperand::Imm(0),
            taken: 1,
            fall: 2,
        };
        let join = |one: &str, end: &str| {
            let blocks = [
                block("r0 = 0", branch),
                block(one, Terminator::Jump(3)),
                block("r6 = 1\n*(u64 *)(r10 -8) = r6", Terminator::Jump(3)),
                block(end, Terminator::Return),
            ];
            checked(&blocks)
        };
        assert_eq!(join("r6 = 2\n*(u64 *)(r10 -8) = r6", "r0 = r6\nr7 = *(u64 *)(r10 -8)"), Ok(()));
        assert!(join("r7 = 2", "r0 = r6").unwrap_err().contains("r6"));
        assert!(join("r6 = 2", "r7 = *(u64 *)(r10 -8)").unwrap_err().contains("slot at -8"));
        assert!(checked(&[block("*(u64 *)(r10 -8) = r5", Terminator::Return)]).unwrap_err().contains("r5"));
        assert!(checked(&[block("r1 = 0", Terminator::Return)]).unwrap_err().contains("r0"));
        assert!(checked(&[block("r6 = r1\ncall bpf_ktime_get_ns#5\nr0 = r1", Terminator::Return)]).is_err());
    }
}
