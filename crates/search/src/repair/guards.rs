//! Guards: comparisons with constants, with the end of the packet, and of the rounds of a loop.

use millstream_isa::{AluOp, Cond, Insn, Operand, Reg, Size, Width};

use super::code::{FunctionUnderRepair, copy, fill, set, store};
use super::sites::RangeCheckSite;

/// Field of a context that holds the end of what may be read through a packet pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketEndField {
    /// Offset in the context.
    pub off: i16,
    /// Its size.
    pub size: Size,
}

fn branch(cond: Cond, dst: Reg, src: Operand) -> Insn {
    Insn::Branch { width: Width::W64, cond, dst, src, off: 0 }
}

fn add(dst: Reg, by: i32) -> Insn {
    Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Operand::Imm(by) }
}

pub(super) fn guard(
    function: &mut FunctionUnderRepair,
    line: usize,
    register: Reg,
    cond: Cond,
    value: i32,
) -> Option<()> {
    function.insert_guard(line, &[], branch(cond, register, Operand::Imm(value)), &[])
}

/// The end is read from the context, which is kept on the stack from the beginning of the program.
pub(super) fn guard_packet(
    function: &mut FunctionUnderRepair,
    site: RangeCheckSite,
    bytes: i32,
    end: PacketEndField,
) -> Option<()> {
    let base = site.register;
    let context = kept_context(function)?;
    let limit = function.borrow(site.line, &[base])?;
    let pointer = function.borrow(site.line, &[base, limit.register])?;
    let (l, p) = (limit.register, pointer.register);
    let mut before: Vec<Insn> = limit.save().into_iter().chain(pointer.save()).collect();
    before.extend([
        fill(l, context),
        Insn::Load { size: end.size, sext: false, dst: l, src: l, off: end.off },
        copy(p, base),
        add(p, bytes),
    ]);
    let behind: Vec<Insn> = limit.restore().into_iter().chain(pointer.restore()).collect();
    function.insert_guard(site.line, &before, branch(Cond::Gt, p, Operand::Reg(l)), &behind)
}

/// A slot that holds the context from the beginning of the program.
fn kept_context(function: &mut FunctionUnderRepair) -> Option<i16> {
    if !function.is_program {
        return None;
    }
    let kept = |insn: Option<Insn>| match insn {
        Some(Insn::Store { size: Size::Dw, dst: Reg::R10, off, src: Operand::Reg(Reg::R1) }) => Some(off),
        _ => None,
    };
    let writes = |slot: i16| {
        let covers = |insn: Insn| match insn {
            Insn::Store { dst: Reg::R10, off, .. } => (slot..slot + 8).contains(&off),
            _ => false,
        };
        function.code.lines().filter(|l| covers(l.insn)).count()
    };
    let first = function.code.lines().next().map(|l| l.insn);
    if let Some(slot) = kept(first).filter(|slot| writes(*slot) == 1) {
        return Some(slot);
    }
    let slot = function.free_slot()?;
    function.at_entry(store(slot, Reg::R1));
    Some(slot)
}

pub(super) fn guard_rounds(function: &mut FunctionUnderRepair, line: usize, most: i32) -> Option<()> {
    if let Some(counter) = function.unused_register() {
        function.at_entry(set(counter, 0));
        let too_many = branch(Cond::Gt, counter, Operand::Imm(most));
        return function.insert_guard(line, &[add(counter, 1)], too_many, &[]);
    }
    let slot = function.free_slot()?;
    let counter = function.borrow(line, &[])?;
    let c = counter.register;
    function.at_entry(Insn::Store { size: Size::Dw, dst: Reg::R10, off: slot, src: Operand::Imm(0) });
    let mut before: Vec<Insn> = counter.save().into_iter().collect();
    before.extend([fill(c, slot), add(c, 1), store(slot, c)]);
    let behind: Vec<Insn> = counter.restore().into_iter().collect();
    function.insert_guard(line, &before, branch(Cond::Gt, c, Operand::Imm(most)), &behind)
}

/// Calls change `r0` to `r5`. Their values are lost to the program then, whatever they are.
pub(super) fn initialize(function: &mut FunctionUnderRepair, register: Reg) -> Option<()> {
    let value = set(register, function.arbitrary());
    let is_argument = match function.is_program {
        true => register == Reg::R1,
        false => (1..6).contains(&register.index()),
    };
    if !is_argument {
        function.at_entry(value);
    }
    if (1..6).contains(&register.index()) {
        for block in 0..function.code.blocks.len() {
            let lines = function.code.blocks.get(block)?.lines.iter().enumerate();
            let calls = lines.filter(|(_, l)| matches!(l.insn, Insn::Call(_))).map(|(n, _)| n);
            for at in calls.collect::<Vec<usize>>().into_iter().rev() {
                function.insert(block, at + 1, &[value])?;
            }
        }
    }
    Some(())
}
