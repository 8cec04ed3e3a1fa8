//! Runs BPF instructions.
//!
//! All of the instruction set, calls of local functions, callbacks and tail calls. `r1` to `r5` are clobbered
//! by every call, so that a program that relies on them differs from one that does not.

use millstream_isa::semantics::{self, ConcreteDomain, eval};
use millstream_isa::{Callee, DecodeError, Insn, LegacyMode, Operand, Pseudo, RawInsn, Reg, decode};

use crate::helpers::{self, CallbackCaller, HelperOutcome, UNDEFINED};
use crate::machine::MAX_FRAMES;
use crate::{ExecutionError, Fault, MachineState};

/// Loops that one `may_goto` allows (`BPF_MAX_LOOPS`).
const MAY_GOTO_BUDGET: u64 = 1 << 23;

/// A decoded program. Constants that stand for maps are addresses of the machine it was linked for.
#[derive(Clone, Debug)]
pub struct DecodedProgram {
    /// By slot; `None` in the second slot of `ld_imm64`.
    insns: Vec<Option<Insn>>,
}

impl DecodedProgram {
    /// Decodes a program.
    ///
    /// # Errors
    /// The first slot that is no instruction.
    pub fn new(slots: &[RawInsn]) -> Result<DecodedProgram, DecodeError> {
        let mut insns = vec![None; slots.len()];
        let mut at = 0;
        while at < slots.len() {
            let insn = decode(slots, at)?;
            insns[at] = Some(insn);
            at += insn.slots();
        }
        Ok(DecodedProgram { insns })
    }

    /// A program of decoded instructions.
    pub fn from_insns(program: &[Insn]) -> DecodedProgram {
        let mut insns = Vec::with_capacity(program.len());
        for insn in program {
            insns.push(Some(*insn));
            insns.resize(insns.len() + insn.slots() - 1, None);
        }
        DecodedProgram { insns }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.insns.len()
    }

    /// Returns true if there are no instructions.
    pub fn is_empty(&self) -> bool {
        self.insns.is_empty()
    }

    /// Replaces each `ld_imm64` that stands for something by the constant that `address` gives for it: slot,
    /// kind, encoded constant. `None` leaves it. See [`MachineState::map_address`] and
    /// [`MachineState::value_address_of`].
    pub fn link(&mut self, mut address: impl FnMut(usize, Pseudo, u64) -> Option<u64>) {
        for (slot, insn) in self.insns.iter_mut().enumerate() {
            if let Some(Insn::LoadImm64 { pseudo, imm, .. }) = insn
                && *pseudo != Pseudo::None
                && let Some(value) = address(slot, *pseudo, *imm)
            {
                (*pseudo, *imm) = (Pseudo::None, value);
            }
        }
    }
}

/// Runs programs that may tail-call one another.
#[derive(Clone, Copy, Debug)]
pub struct BytecodeInterpreter<'a> {
    programs: &'a [DecodedProgram],
}

impl<'a> BytecodeInterpreter<'a> {
    /// An interpreter of these programs; values of program arrays are their indices.
    pub fn new(programs: &'a [DecodedProgram]) -> BytecodeInterpreter<'a> {
        BytecodeInterpreter { programs }
    }

    /// Runs a program with these arguments in `r1` to `r5` and gives `r0`.
    ///
    /// # Errors
    /// The fault and where it happened.
    pub fn run(
        &self,
        machine: &mut MachineState,
        program: usize,
        args: [u64; 5],
    ) -> Result<u64, ExecutionError> {
        machine.tail_calls = 0;
        let limit = machine.executed.saturating_add(machine.fuel);
        let mut run = BytecodeRun { programs: self.programs, limit, depth: 0, program, slot: 0 };
        run.function(machine, program, 0, args).map_err(|fault| ExecutionError {
            program: run.program,
            slot: run.slot,
            fault,
        })
    }

    /// Runs a program on the machine's context.
    ///
    /// # Errors
    /// The fault and where it happened.
    pub fn run_context(&self, machine: &mut MachineState, program: usize) -> Result<u64, ExecutionError> {
        let context = machine.context_address();
        self.run(machine, program, [context, 0, 0, 0, 0])
    }
}

/// One run. `program` and `slot` are its position, or the place of its fault.
struct BytecodeRun<'a> {
    programs: &'a [DecodedProgram],
    limit: u64,
    depth: usize,
    program: usize,
    slot: usize,
}

/// The registers of one frame.
struct BytecodeFrame {
    regs: [u64; 11],
    /// Remaining budget of each `may_goto`, by slot.
    budgets: Vec<(usize, u64)>,
}

/// Successor of an instruction.
enum BytecodeSuccessor {
    /// The instruction that follows.
    Fall,
    /// This many slots from there.
    Jump(i64),
    /// Out of the frame.
    Return(u64),
    /// To another program, in this frame.
    TailCall(usize),
}

impl BytecodeFrame {
    fn new(depth: usize, args: [u64; 5]) -> BytecodeFrame {
        let mut regs = [UNDEFINED; 11];
        regs[1..6].copy_from_slice(&args);
        regs[10] = MachineState::frame_pointer(depth);
        BytecodeFrame { regs, budgets: Vec::new() }
    }

    fn get(&self, reg: Reg) -> u64 {
        self.regs[reg.index()]
    }

    fn set(&mut self, reg: Reg, value: u64) -> Result<(), Fault> {
        if reg == Reg::R10 {
            return Err(Fault::FramePointer);
        }
        self.regs[reg.index()] = value;
        Ok(())
    }

    fn operand(&self, src: Operand) -> u64 {
        match src {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(imm) => semantics::immediate(&mut ConcreteDomain, imm),
        }
    }

    fn address(&self, base: Reg, off: i16) -> u64 {
        self.get(base).wrapping_add_signed(i64::from(off))
    }

    fn args(&self) -> [u64; 5] {
        let [_, a, b, c, d, e, ..] = self.regs;
        [a, b, c, d, e]
    }

    /// The state after a call.
    fn returned(&mut self, value: u64) {
        self.regs[1..6].fill(UNDEFINED);
        self.regs[0] = value;
    }

    /// Returns true if a `may_goto` leaves its loop.
    fn spent(&mut self, slot: usize) -> bool {
        let at = self.budgets.iter().position(|(at, _)| *at == slot).unwrap_or_else(|| {
            self.budgets.push((slot, MAY_GOTO_BUDGET));
            self.budgets.len() - 1
        });
        let left = &mut self.budgets[at].1;
        *left = left.saturating_sub(1);
        *left == 0
    }
}

impl CallbackCaller for BytecodeRun<'_> {
    fn call(&mut self, machine: &mut MachineState, function: u64, args: [u64; 5]) -> Result<u64, Fault> {
        let (program, slot) = MachineState::function_at(function).ok_or(Fault::Function(function))?;
        let (at, from) = (self.program, self.slot);
        let value = self.function(machine, program, slot, args)?;
        (self.program, self.slot) = (at, from);
        Ok(value)
    }
}

impl BytecodeRun<'_> {
    /// Runs a function in a frame of its own.
    fn function(
        &mut self,
        machine: &mut MachineState,
        program: usize,
        slot: usize,
        args: [u64; 5],
    ) -> Result<u64, Fault> {
        if self.depth >= MAX_FRAMES {
            return Err(Fault::Depth);
        }
        machine.clear_frame(self.depth);
        let mut frame = BytecodeFrame::new(self.depth, args);
        self.depth += 1;
        (self.program, self.slot) = (program, slot);
        loop {
            let code = self.programs.get(self.program).ok_or(Fault::Function(self.program as u64))?;
            let insn = code.insns.get(self.slot).ok_or(Fault::End)?;
            let insn = insn.ok_or(Fault::Jump(self.slot as i64))?;
            if machine.executed >= self.limit {
                return Err(Fault::Fuel(machine.fuel));
            }
            machine.executed += 1;
            if let Some(visits) = machine.visits.get_mut(self.slot) {
                *visits += 1;
            }
            match self.step(machine, &mut frame, insn)? {
                BytecodeSuccessor::Fall => self.slot += insn.slots(),
                BytecodeSuccessor::Jump(off) => {
                    let target = (self.slot + insn.slots()) as i64 + off;
                    self.slot = usize::try_from(target).map_err(|_| Fault::Jump(target))?;
                }
                BytecodeSuccessor::Return(value) => {
                    self.depth -= 1;
                    return Ok(value);
                }
                BytecodeSuccessor::TailCall(program) => {
                    let context = machine.context_address();
                    machine.clear_frame(self.depth - 1);
                    frame = BytecodeFrame::new(self.depth - 1, [context, 0, 0, 0, 0]);
                    (self.program, self.slot) = (program, 0);
                }
            }
        }
    }

    fn step(
        &mut self,
        machine: &mut MachineState,
        frame: &mut BytecodeFrame,
        insn: Insn,
    ) -> Result<BytecodeSuccessor, Fault> {
        let d = &mut ConcreteDomain;
        match insn {
            Insn::Alu { width, op, dst, src } => {
                let value = eval::alu(op, width, frame.get(dst), frame.operand(src));
                frame.set(dst, value)?;
            }
            Insn::Mov { width, dst, src } => frame.set(dst, eval::mov(width, frame.operand(src)))?,
            Insn::MovSx { width, bits, dst, src } => {
                frame.set(dst, eval::movsx(width, u32::from(bits), frame.get(src)))?;
            }
            Insn::Neg { width, dst } => frame.set(dst, eval::neg(width, frame.get(dst)))?,
            Insn::Swap { kind, bits, dst } => {
                frame.set(dst, eval::swap(kind, u32::from(bits), frame.get(dst)))?
            }
            Insn::LoadImm64 { dst, pseudo, imm, .. } => frame.set(dst, self.constant(pseudo, imm)?)?,
            Insn::Load { size, sext, dst, src, off } => {
                let bytes = machine.read(frame.address(src, off), size)?;
                frame.set(dst, semantics::loaded(d, size, sext, &bytes))?;
            }
            Insn::Store { size, dst, off, src } => {
                let bytes = semantics::stored(d, size, &frame.operand(src));
                machine.write(frame.address(dst, off), size, bytes)?;
            }
            Insn::Atomic { op, fetch, size, dst, src, off } => {
                let addr = frame.address(dst, off);
                let old = machine.read(addr, size)?;
                let result = semantics::atomic(d, op, size, &old, &frame.get(src), &frame.get(Reg::R0));
                machine.write(addr, size, result.memory)?;
                if fetch {
                    let into = if op == millstream_isa::AtomicOp::CmpXchg { Reg::R0 } else { src };
                    frame.set(into, result.fetched)?;
                }
            }
            Insn::LoadAcquire { size, dst, src, off } => {
                let bytes = machine.read(frame.address(src, off), size)?;
                frame.set(dst, semantics::loaded(d, size, false, &bytes))?;
            }
            Insn::StoreRelease { size, dst, src, off } => {
                let bytes = semantics::stored(d, size, &frame.get(src));
                machine.write(frame.address(dst, off), size, bytes)?;
            }
            Insn::AddrSpaceCast { .. } => return Err(Fault::Instruction("addr_space_cast")),
            Insn::LegacyLoad { size, mode, imm } => {
                let base = match mode {
                    LegacyMode::Abs => 0,
                    LegacyMode::Ind(reg) => frame.get(reg) as i64,
                };
                match helpers::packet::legacy_load(machine, base.wrapping_add(i64::from(imm)), size)? {
                    Some(value) => frame.returned(value),
                    None => return Ok(BytecodeSuccessor::Return(0)),
                }
            }
            Insn::Jump { off, .. } => return Ok(BytecodeSuccessor::Jump(i64::from(off))),
            Insn::Branch { width, cond, dst, src, off } => {
                let taken = eval::cond(cond, width, frame.get(dst), frame.operand(src));
                return Ok(if taken {
                    BytecodeSuccessor::Jump(i64::from(off))
                } else {
                    BytecodeSuccessor::Fall
                });
            }
            Insn::MayGoto { off } => {
                return Ok(if frame.spent(self.slot) {
                    BytecodeSuccessor::Jump(i64::from(off))
                } else {
                    BytecodeSuccessor::Fall
                });
            }
            Insn::Call(callee) => return self.call_insn(machine, frame, callee),
            Insn::Exit => return Ok(BytecodeSuccessor::Return(frame.get(Reg::R0))),
        }
        Ok(BytecodeSuccessor::Fall)
    }

    fn constant(&self, pseudo: Pseudo, imm: u64) -> Result<u64, Fault> {
        match pseudo {
            Pseudo::None => Ok(imm),
            Pseudo::Func => {
                let target = self.slot as i64 + 1 + i64::from(imm as i32);
                let target = usize::try_from(target).map_err(|_| Fault::Jump(target))?;
                Ok(MachineState::function_address(self.program, target))
            }
            Pseudo::MapFd | Pseudo::MapIdx => Err(Fault::Unlinked("a map")),
            Pseudo::MapValue | Pseudo::MapIdxValue => Err(Fault::Unlinked("a map value")),
            Pseudo::BtfId => Err(Fault::Unlinked("a kernel symbol")),
        }
    }

    fn call_insn(
        &mut self,
        machine: &mut MachineState,
        frame: &mut BytecodeFrame,
        callee: Callee,
    ) -> Result<BytecodeSuccessor, Fault> {
        let args = frame.args();
        let value = match callee {
            Callee::Helper(id) => match helpers::call_helper(machine, id, args, self)? {
                HelperOutcome::Return(value) => value,
                HelperOutcome::TailCall(program) => return Ok(BytecodeSuccessor::TailCall(program)),
            },
            Callee::Kfunc { btf_id, .. } => helpers::call_kfunc(machine, btf_id, args)?,
            Callee::Register(reg) => {
                let target = frame.get(reg);
                // A number that is no address is a helper's, as RFC 9669's predecessors had it.
                if let Some(id) =
                    i32::try_from(target).ok().filter(|_| MachineState::function_at(target).is_none())
                {
                    return self.call_insn(machine, frame, Callee::Helper(id));
                }
                self.call(machine, target, args)?
            }
            Callee::Local(off) => {
                let target = self.slot as i64 + 1 + i64::from(off);
                let slot = usize::try_from(target).map_err(|_| Fault::Jump(target))?;
                let (at, from) = (self.program, self.slot);
                let value = self.function(machine, self.program, slot, args)?;
                (self.program, self.slot) = (at, from);
                value
            }
        };
        frame.returned(value);
        Ok(BytecodeSuccessor::Fall)
    }
}

#[cfg(test)]
mod tests;
