//! Places of a function where an edit may help: numbers that become part of an address or a size, and loops.

use millstream_isa::helpers::{ArgKind, Helper};
use millstream_isa::{AluOp, Callee, Insn, Operand, Reg, Width};
use millstream_object::Object;

use crate::code::{CodeLine, FunctionCode};

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
            Some(Insn::Exit) => vec![(line, Reg::R0)],
            _ => Vec::new(),
        };
        numbers.into_iter().map(|(line, register)| RangeCheckSite { func, line, register }).collect()
    }

    /// The slot of the line.
    pub fn slot(&self, object: &Object) -> Option<usize> {
        let code = FunctionCode::new(object.functions.get(self.func as usize)?)?;
        Some(code.lines().take(self.line).map(|l| l.insn.slots()).sum())
    }
}

/// The line of a function at a slot.
pub fn slot_line(object: &Object, func: u32, slot: usize) -> Option<(usize, Insn)> {
    let code = FunctionCode::new(object.functions.get(func as usize)?)?;
    let lines: Vec<CodeLine> = code.lines().copied().collect();
    let line = line_of(&lines, slot)?;
    Some((line, lines.get(line)?.insn))
}

/// First lines of the loops of a function, those that contain a line first, of these the innermost.
pub fn loop_headers(object: &Object, func: u32, line: usize) -> Vec<usize> {
    let Some(code) = object.functions.get(func as usize).and_then(FunctionCode::new) else {
        return Vec::new();
    };
    let mut loops: Vec<(bool, usize, usize)> = Vec::new();
    for (n, block) in code.blocks.iter().enumerate() {
        for &to in block.next.iter().filter(|to| **to <= n) {
            let first = code.blocks[to].first as usize;
            let end = block.first as usize + block.lines.len();
            loops.push((!(first..end).contains(&line), end - first, first));
        }
    }
    loops.sort_unstable();
    let mut headers: Vec<usize> = Vec::new();
    for (_, _, first) in loops {
        if !headers.contains(&first) {
            headers.push(first);
        }
    }
    headers
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
