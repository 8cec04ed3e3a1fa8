//! Insertion of range checks into a function: places where a number becomes part of an address or a size, and
//! the check before it.

use millstream_isa::helpers::{ArgKind, Helper};
use millstream_isa::{AluOp, Callee, Cond, Insn, Operand, Reg, Width};
use millstream_object::{FuncId, Object};

use crate::code::{CodeLine, FunctionCode, InsnBlock};

/// A number that a verifier may want to be bounded: a register before a line of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeCheckSite {
    /// The function.
    pub func: u32,
    /// The instruction before which the number is checked, counted in instructions.
    pub line: usize,
    /// The register.
    pub register: Reg,
}

impl RangeCheckSite {
    /// The numbers on which the instruction in a slot depends: those that are added to the address that it
    /// uses, and the sizes that it passes to a helper.
    pub fn before_slot(object: &Object, func: u32, slot: usize) -> Vec<RangeCheckSite> {
        let Some(code) = object.functions.get(func as usize).and_then(FunctionCode::new) else {
            return Vec::new();
        };
        let lines: Vec<CodeLine> = code.lines().copied().collect();
        let Some(line) = line_of(&lines, slot) else { return Vec::new() };
        let numbers = match lines.get(line).map(|l| l.insn) {
            Some(Insn::Alu {
                width: Width::W64,
                op: AluOp::Add | AluOp::Sub,
                dst,
                src: Operand::Reg(src),
            }) => {
                vec![(line, src), (line, dst)]
            }
            Some(Insn::Load { src: base, .. } | Insn::LoadAcquire { src: base, .. }) => {
                added_to(&lines, line, base)
            }
            Some(
                Insn::Store { dst: base, .. }
                | Insn::Atomic { dst: base, .. }
                | Insn::StoreRelease { dst: base, .. },
            ) => added_to(&lines, line, base),
            Some(Insn::Call(Callee::Helper(id))) => sizes(id).map(|r| (line, r)).collect(),
            _ => Vec::new(),
        };
        numbers.into_iter().map(|(line, register)| RangeCheckSite { func, line, register }).collect()
    }

    /// The slot of the line.
    pub fn slot(&self, object: &Object) -> Option<usize> {
        let code = FunctionCode::new(object.functions.get(self.func as usize)?)?;
        Some(code.lines().take(self.line).map(|l| l.insn.slots()).sum())
    }

    /// An object in which the program ends with result 0 if the number is above `most`; [`None`] if the
    /// function cannot be changed.
    pub fn check(&self, object: &Object, most: i32) -> Option<Object> {
        let mut code = FunctionCode::new(object.functions.get(self.func as usize)?)?;
        let block = code.blocks.iter().rposition(|b| b.first as usize <= self.line)?;
        let first = code.blocks.get(block)?.first as usize;
        let rest = code.blocks.get_mut(block)?.lines.split_off(self.line - first);
        let source = rest
            .first()?
            .source
            .or_else(|| code.blocks[..=block].iter().flat_map(|b| &b.lines).rev().find_map(|l| l.source));
        for line in code.blocks.iter_mut().flat_map(|b| &mut b.lines) {
            line.target = line.target.map(|to| if to > block { to + 1 } else { to });
        }
        let rest = rest
            .into_iter()
            .map(|l| CodeLine { target: l.target.map(|to| if to > block { to + 1 } else { to }), ..l });
        let tail = InsnBlock { lines: rest.collect(), ..InsnBlock::default() };
        code.blocks.insert(block + 1, tail);
        let end = code.blocks.len();
        let insn = Insn::Branch {
            width: Width::W64,
            cond: Cond::Gt,
            dst: self.register,
            src: Operand::Imm(most),
            off: 0,
        };
        let check = CodeLine { target: Some(end), source, ..CodeLine::new(insn) };
        code.blocks.get_mut(block)?.lines.push(check);
        let zero = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Imm(0) };
        let leave = [zero, Insn::Exit].map(|insn| CodeLine { source, ..CodeLine::new(insn) });
        code.blocks.push(InsnBlock { lines: leave.to_vec(), ..InsnBlock::default() });
        code.link();
        let mut checked = object.clone();
        checked.replace_function(FuncId(self.func), code.function()).ok()?;
        Some(checked)
    }
}

fn line_of(lines: &[CodeLine], slot: usize) -> Option<usize> {
    let mut at = 0;
    lines.iter().position(|l| {
        let found = slot < at + l.insn.slots();
        at += l.insn.slots();
        found
    })
}

/// Registers that hold sizes of memory for a helper.
fn sizes(helper: i32) -> impl Iterator<Item = Reg> {
    let args = Helper::get(helper).map_or(&[][..], |h| h.args);
    let sized = |kind: &ArgKind| matches!(kind, ArgKind::Size | ArgKind::SizeOrZero);
    (1u8..).zip(args).filter(move |(_, kind)| sized(kind)).filter_map(|(n, _)| Reg::new(n))
}

/// The numbers that were last added to a base, with the lines of the additions; the last first.
fn added_to(lines: &[CodeLine], before: usize, base: Reg) -> Vec<(usize, Reg)> {
    let mut found = Vec::new();
    let mut base = base;
    for (n, line) in lines.iter().enumerate().take(before).rev() {
        match line.insn {
            Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Operand::Reg(src) } if dst == base => {
                found.extend([(n, src), (n, dst)]);
            }
            Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } if dst == base => base = src,
            Insn::Exit => break,
            _ => {}
        }
    }
    found
}
