//! The function being edited: insertion of lines, free registers and free stack.

use millstream_isa::helpers::id;
use millstream_isa::{Callee, Insn, Operand, Reg, Size, Width};
use millstream_object::{LineInfo, NewFunction, Object};

use crate::code::{CodeLine, FunctionCode, InsnBlock};
use crate::verifier_edits::{FRAME, lowest_offset};
use crate::verifier_model::live_registers;

/// Result of a guard that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardExit {
    /// The program ends with result 0.
    Leave,
    /// The program does something that no other run does, and that differs from marker to marker.
    Marker(i32),
}

/// A register that lines may use, and the slot in which its value is kept meanwhile if it is needed later.
#[derive(Clone, Copy, Debug)]
pub(super) struct BorrowedRegister {
    pub(super) register: Reg,
    slot: Option<i16>,
}

impl BorrowedRegister {
    pub(super) fn save(self) -> Option<Insn> {
        Some(store(self.slot?, self.register))
    }

    pub(super) fn restore(self) -> Option<Insn> {
        Some(fill(self.register, self.slot?))
    }
}

pub(super) fn store(off: i16, register: Reg) -> Insn {
    Insn::Store { size: Size::Dw, dst: Reg::R10, off, src: Operand::Reg(register) }
}

pub(super) fn fill(dst: Reg, off: i16) -> Insn {
    Insn::Load { size: Size::Dw, sext: false, dst, src: Reg::R10, off }
}

pub(super) fn set(dst: Reg, value: i32) -> Insn {
    Insn::Mov { width: Width::W64, dst, src: Operand::Imm(value) }
}

pub(super) fn copy(dst: Reg, src: Reg) -> Insn {
    Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) }
}

/// A function being edited.
pub(super) struct FunctionUnderRepair {
    pub(super) code: FunctionCode,
    pub(super) exit: GuardExit,
    /// True if it is a program, which gets the context.
    pub(super) is_program: bool,
    /// Registers that are live before each line.
    live: Vec<u16>,
    /// Lowest offset of the frame in use.
    lowest: Option<i64>,
    /// Lines for the beginning.
    entry: Vec<Insn>,
}

impl FunctionUnderRepair {
    pub(super) fn new(object: &Object, func: u32, exit: GuardExit) -> Option<FunctionUnderRepair> {
        let function = object.functions.get(func as usize).filter(|f| !f.removed && f.kept.is_none())?;
        let code = FunctionCode::new(function)?;
        let lowest = lowest_offset(&code).map(|low| low.div_euclid(8) * 8);
        Some(FunctionUnderRepair {
            live: live_registers(object, func)?,
            is_program: object.programs.iter().any(|p| p.func.0 == func),
            code,
            exit,
            lowest,
            entry: Vec::new(),
        })
    }

    /// The block of a line, and the line's number in it.
    pub(super) fn place(&self, line: usize) -> Option<(usize, usize)> {
        let block = self.code.blocks.iter().rposition(|b| b.first as usize <= line)?;
        let at = line - self.code.blocks.get(block)?.first as usize;
        (at < self.code.blocks.get(block)?.lines.len()).then_some((block, at))
    }

    pub(super) fn insn(&self, line: usize) -> Option<Insn> {
        let (block, at) = self.place(line)?;
        Some(self.code.blocks.get(block)?.lines.get(at)?.insn)
    }

    fn source(&self, block: usize, at: usize) -> Option<LineInfo> {
        let block_lines = self.code.blocks.get(..=block)?;
        let lines = block_lines.split_last()?;
        let own = lines.0.lines.get(..=at).or(lines.0.lines.get(..))?;
        own.iter().rev().chain(lines.1.iter().rev().flat_map(|b| b.lines.iter().rev())).find_map(|l| l.source)
    }

    /// Inserts lines before a line of a block; jumps to the block run them, too.
    pub(super) fn insert(&mut self, block: usize, at: usize, insns: &[Insn]) -> Option<()> {
        let source = self.source(block, at);
        let lines = insns.iter().map(|insn| CodeLine { source, ..CodeLine::new(*insn) });
        let block = self.code.blocks.get_mut(block)?;
        (at <= block.lines.len()).then(|| drop(block.lines.splice(at..at, lines)))
    }

    /// Inserts a block; what was there and behind it moves.
    pub(super) fn insert_block(&mut self, at: usize, block: InsnBlock) {
        for target in self.code.blocks.iter_mut().flat_map(|b| &mut b.lines).filter_map(|l| l.target.as_mut())
        {
            *target += usize::from(*target >= at);
        }
        self.code.blocks.insert(at, block);
    }

    /// Inserts lines and a branch that leaves the function before a line, and lines behind the branch.
    pub(super) fn insert_guard(
        &mut self,
        line: usize,
        before: &[Insn],
        fails: Insn,
        behind: &[Insn],
    ) -> Option<()> {
        let (block, at) = self.place(line)?;
        let source = self.source(block, at);
        let new = |insn: &Insn| CodeLine { source, ..CodeLine::new(*insn) };
        // The new block is there before lines move into it, so that their targets are counted with it.
        self.insert_block(block + 1, InsnBlock::default());
        let rest = self.code.blocks.get_mut(block)?.lines.split_off(at);
        self.code.blocks.get_mut(block + 1)?.lines = behind.iter().map(new).chain(rest).collect();
        let exit = self.code.blocks.len();
        let head = &mut self.code.blocks.get_mut(block)?.lines;
        head.extend(before.iter().map(new));
        head.push(CodeLine { target: Some(exit), ..new(&fails) });
        let lines = self.exit_lines().iter().map(new).collect();
        self.code.blocks.push(InsnBlock { lines, ..InsnBlock::default() });
        Some(())
    }

    /// Instructions of a guard's exit. The result of a function may be ignored, so that a marker there is a
    /// call that others see.
    fn exit_lines(&self) -> Vec<Insn> {
        match self.exit {
            GuardExit::Leave => vec![set(Reg::R0, 0), Insn::Exit],
            GuardExit::Marker(marker) if self.is_program => vec![set(Reg::R0, marker), Insn::Exit],
            GuardExit::Marker(marker) => vec![
                set(Reg::R1, marker),
                set(Reg::R2, 0),
                Insn::Call(Callee::Helper(id::REDIRECT)),
                set(Reg::R0, 0),
                Insn::Exit,
            ],
        }
    }

    /// Value of what should not matter.
    pub(super) fn arbitrary(&self) -> i32 {
        if let GuardExit::Marker(marker) = self.exit { marker } else { 0 }
    }

    /// A slot of the stack that nothing uses.
    pub(super) fn free_slot(&mut self) -> Option<i16> {
        let slot = self.lowest.map(|low| low - 8).filter(|slot| *slot >= -FRAME)?;
        self.lowest = Some(slot);
        i16::try_from(slot).ok()
    }

    /// Adds a line to the beginning of the function.
    pub(super) fn at_entry(&mut self, insn: Insn) {
        self.entry.push(insn);
    }

    /// A register for lines before a line, other than some.
    pub(super) fn borrow(&mut self, line: usize, not: &[Reg]) -> Option<BorrowedRegister> {
        let live = *self.live.get(line)?;
        let usable = |r: &Reg| !not.contains(r);
        let registers = || (0..10).filter_map(Reg::new).filter(usable);
        if let Some(register) = registers().find(|r| live & (1 << r.index()) == 0 && r.index() < 6) {
            return Some(BorrowedRegister { register, slot: None });
        }
        let register = registers().find(|r| live & (1 << r.index()) != 0)?;
        Some(BorrowedRegister { register, slot: Some(self.free_slot()?) })
    }

    /// A callee-saved register that the function does not use.
    pub(super) fn unused_register(&self) -> Option<Reg> {
        let all = self.live.iter().fold(0, |all, live| all | live);
        let is_written =
            |r: Reg| self.code.lines().any(|l| crate::verifier_model::written(l.insn) == Some(r));
        (6..10).filter_map(Reg::new).find(|r| all & (1 << r.index()) == 0 && !is_written(*r))
    }

    pub(super) fn is_dead(&self, line: usize, r: Reg) -> bool {
        self.live.get(line).is_some_and(|live| live & (1 << r.index()) == 0)
    }

    /// The function's new contents.
    pub(super) fn finish(mut self) -> NewFunction {
        if !self.entry.is_empty() {
            let source = self.source(0, 0);
            let lines = self.entry.iter().map(|insn| CodeLine { source, ..CodeLine::new(*insn) }).collect();
            self.insert_block(0, InsnBlock { lines, ..InsnBlock::default() });
        }
        self.code.link();
        self.code.function()
    }
}
