//! Emission: allocated machine instructions to blocks of bytecode.

use millstream_ir::{Cfg, Core, Function, Width};
use millstream_isa::{AluOp, AtomicOp, Callee, Insn, LegacyMode, Operand, Pseudo, Reg, Size};
use regalloc2::{Allocation, Block, Edit, Function as _, InstOrEdit, Output};

use super::LowerError;
use super::code::{EmittedBlock, EmittedInsn, SrcOperand, Terminator};
use super::frame::{self, StackLayout};
use super::mir::*;
use crate::lift::RelocTarget;

/// The blocks of a function, and its frame.
pub(super) fn emit(
    func: &Function,
    cfg: &Cfg,
    mir: &MFunc,
    out: &Output,
) -> Result<(Vec<EmittedBlock>, StackLayout), LowerError> {
    let frame = StackLayout::new(func, cfg, mir, out);
    if frame.size > frame::MOST {
        return Err(LowerError::Stack { function: func.name.clone(), bytes: frame.size });
    }
    let blocks = (0..mir.blocks.len()).map(|b| translate(mir, out, &frame, b)).collect();
    Ok((blocks, frame))
}

fn reg(alloc: Allocation) -> Reg {
    // Every operand demands a register, so the allocator gave one of r0 to r9.
    alloc.as_reg().and_then(|p| Reg::new(p.hw_enc() as u8)).unwrap_or(Reg::R10)
}

fn translate(mir: &MFunc, out: &Output, frame: &StackLayout, b: usize) -> EmittedBlock {
    let block = &mir.blocks[b];
    let ids = mir.block_insns(Block::new(b));
    let mut code =
        EmittedBlock { body: Vec::with_capacity(ids.len()), term: Terminator::Return, loc: u32::MAX };
    let succs: Vec<usize> = block.succs.iter().map(|s| s.index()).collect();
    let mut regs: Vec<Reg> = Vec::new();
    let mut loc = mir.insts.get(ids.first().index()).map_or(u32::MAX, |i| i.loc);
    for step in out.block_insts_and_edits(mir, Block::new(b)) {
        match step {
            InstOrEdit::Edit(Edit::Move { from, to }) => {
                if let Some(insn) = move_insn(frame, *from, *to) {
                    code.body.push(EmittedInsn { insn, sym: None, core: None, loc, args: 0, undef: false });
                }
            }
            InstOrEdit::Inst(inst) => {
                let data = &mir.insts[inst.index()];
                loc = data.loc;
                regs.clear();
                regs.extend(out.inst_allocs(inst).iter().map(|&a| reg(a)));
                let mut sink = InsnSink { body: &mut code.body, frame, loc };
                sink.inst(&data.op, &regs);
                if let Some(term) = end(&data.op, &regs, &succs) {
                    code.term = term;
                    code.loc = loc;
                }
            }
        }
    }
    code
}

fn move_insn(frame: &StackLayout, from: Allocation, to: Allocation) -> Option<Insn> {
    match (frame.spill(from), frame.spill(to)) {
        (None, None) if from == to => None,
        (None, None) => Some(Insn::Mov { width: Width::W64, dst: reg(to), src: Operand::Reg(reg(from)) }),
        (Some(off), _) => Some(Insn::Load { size: Size::Dw, sext: false, dst: reg(to), src: Reg::R10, off }),
        (None, Some(off)) => {
            Some(Insn::Store { size: Size::Dw, dst: Reg::R10, off, src: Operand::Reg(reg(from)) })
        }
    }
}

struct InsnSink<'a> {
    body: &'a mut Vec<EmittedInsn>,
    frame: &'a StackLayout,
    loc: u32,
}

impl InsnSink<'_> {
    fn put(&mut self, insn: Insn) {
        self.put_with(insn, None, None);
    }

    fn put_with(&mut self, insn: Insn, sym: Option<RelocTarget>, core: Option<Core>) {
        self.body.push(EmittedInsn { insn, sym, core, loc: self.loc, args: 0, undef: false });
    }

    /// Base register and displacement; takes the base from the front of `regs` if it is in one.
    fn address(&self, base: AddressBase, offset: i32, regs: &mut &[Reg]) -> (Reg, i16) {
        match base {
            AddressBase::Reg => {
                let r = regs[0];
                *regs = &regs[1..];
                (r, offset as i16)
            }
            AddressBase::Frame(slot, at) => (Reg::R10, (self.frame.slots[slot] + at + offset) as i16),
        }
    }

    fn inst(&mut self, op: &MOp, regs: &[Reg]) {
        match *op {
            MOp::Args | MOp::Jump | MOp::Branch { .. } | MOp::MayGoto | MOp::Return => {}
            MOp::Unreachable => self.put(imm_insn(Reg::R0, 0)),
            MOp::Alu { op, width, imm, core } => {
                let src = imm.map_or_else(|| Operand::Reg(regs[1]), Operand::Imm);
                self.put_with(Insn::Alu { width, op, dst: regs[0], src }, None, core);
            }
            MOp::Neg { width } => self.put(Insn::Neg { width, dst: regs[0] }),
            MOp::Swap { kind, bits } => self.put(Insn::Swap { kind, bits, dst: regs[0] }),
            MOp::Copy => {
                if regs[0] != regs[1] {
                    self.put(Insn::Mov { width: Width::W64, dst: regs[1], src: Operand::Reg(regs[0]) });
                }
            }
            MOp::Zext => {
                self.put(Insn::Mov { width: Width::W32, dst: regs[1], src: Operand::Reg(regs[0]) });
            }
            MOp::Sext { bits, width } => self.put(Insn::MovSx { width, bits, dst: regs[1], src: regs[0] }),
            MOp::Cast { spaces } => self.put(Insn::AddrSpaceCast { dst: regs[1], src: regs[0], imm: spaces }),
            MOp::Call { target } => self.call(target, regs),
            MOp::Undef | MOp::Imm { .. } | MOp::Sym { .. } | MOp::CoreImm { .. } | MOp::Lea { .. } => {
                self.constant(op, regs[0]);
            }
            _ => self.memory(op, regs),
        }
    }

    /// Emits a value that does not depend on the place where it is made.
    fn constant(&mut self, op: &MOp, dst: Reg) {
        match *op {
            MOp::Undef => {
                let insn = Insn::Mov { width: Width::W64, dst, src: Operand::Imm(0) };
                self.body.push(EmittedInsn {
                    insn,
                    sym: None,
                    core: None,
                    loc: self.loc,
                    args: 0,
                    undef: true,
                });
            }
            MOp::Imm { value } => self.put(imm_insn(dst, value)),
            MOp::Sym { sym } => {
                let insn = Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm: 0, off: 0 };
                self.put_with(insn, Some(sym), None);
            }
            MOp::CoreImm { core, local, wide } => {
                let insn = if wide {
                    Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm: local as u64, off: 0 }
                } else {
                    Insn::Mov { width: Width::W64, dst, src: Operand::Imm(local as i32) }
                };
                self.put_with(insn, None, Some(core));
            }
            MOp::Lea { slot, offset } => {
                let imm = self.frame.slots[slot] + offset;
                self.put(Insn::Mov { width: Width::W64, dst, src: Operand::Reg(Reg::R10) });
                if imm != 0 {
                    self.put(Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Operand::Imm(imm) });
                }
            }
            _ => unreachable!("no constant: {op:?}"),
        }
    }

    /// Emits an access to memory.
    fn memory(&mut self, op: &MOp, regs: &[Reg]) {
        let mut regs = regs;
        match *op {
            MOp::Load { size, sext, base, offset, core } => {
                let (src, off) = self.address(base, offset, &mut regs);
                self.put_with(Insn::Load { size, sext, dst: regs[0], src, off }, None, core);
            }
            MOp::Store { size, base, offset, imm, core } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                let src = imm.map_or_else(|| Operand::Reg(regs[0]), Operand::Imm);
                self.put_with(Insn::Store { size, dst, off, src }, None, core);
            }
            MOp::Atomic { op, size, base, offset } | MOp::AtomicFetch { op, size, base, offset } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                let fetch = regs.len() > 1;
                self.put(Insn::Atomic { op, fetch, size, dst, src: regs[0], off });
            }
            MOp::CmpXchg { size, base, offset } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                self.put(Insn::Atomic { op: AtomicOp::CmpXchg, fetch: true, size, dst, src: regs[0], off });
            }
            MOp::LoadAcquire { size, base, offset } => {
                let (src, off) = self.address(base, offset, &mut regs);
                self.put(Insn::LoadAcquire { size, dst: regs[0], src, off });
            }
            MOp::StoreRelease { size, base, offset } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                self.put(Insn::StoreRelease { size, dst, src: regs[0], off });
            }
            MOp::Legacy { size, offset, indexed } => {
                let mode = if indexed { LegacyMode::Ind(regs[1]) } else { LegacyMode::Abs };
                let args = regs[..1 + usize::from(indexed)].iter().fold(0, |set, r| set | 1 << r.index());
                let insn = Insn::LegacyLoad { size, mode, imm: offset };
                self.body.push(EmittedInsn {
                    insn,
                    sym: None,
                    core: None,
                    loc: self.loc,
                    args,
                    undef: false,
                });
            }
            _ => unreachable!("no access to memory: {op:?}"),
        }
    }

    fn call(&mut self, target: CallTarget, regs: &[Reg]) {
        let (callee, sym) = match target {
            CallTarget::Helper(id) => (Callee::Helper(id), None),
            CallTarget::Sym(sym @ RelocTarget::Extern(_)) => {
                (Callee::Kfunc { btf_id: -1, fd_idx: 0 }, Some(sym))
            }
            CallTarget::Sym(sym) => (Callee::Local(-1), Some(sym)),
            CallTarget::Indirect => (Callee::Register(regs[0]), None),
        };
        let args = regs.iter().filter(|r| **r != Reg::R0 || target == CallTarget::Indirect);
        let args = args.fold(0, |set, r| set | 1 << r.index());
        let insn = Insn::Call(callee);
        self.body.push(EmittedInsn { insn, sym, core: None, loc: self.loc, args, undef: false });
    }
}

/// The terminator that an instruction makes, if it ends a block.
fn end(op: &MOp, regs: &[Reg], succs: &[usize]) -> Option<Terminator> {
    Some(match *op {
        MOp::Jump => Terminator::Jump(succs[0]),
        MOp::Branch { cond, width, imm } => {
            let src = imm.map_or_else(|| SrcOperand::Reg(regs[1]), SrcOperand::Imm);
            Terminator::Branch { cond, width, dst: regs[0], src, taken: succs[0], fall: succs[1] }
        }
        MOp::MayGoto => Terminator::MayGoto { taken: succs[0], fall: succs[1] },
        MOp::Return | MOp::Unreachable => Terminator::Return,
        _ => return None,
    })
}

/// The shortest instruction that sets a register to a constant.
fn imm_insn(dst: Reg, value: i64) -> Insn {
    if let Ok(imm) = i32::try_from(value) {
        Insn::Mov { width: Width::W64, dst, src: Operand::Imm(imm) }
    } else if let Ok(imm) = u32::try_from(value) {
        Insn::Mov { width: Width::W32, dst, src: Operand::Imm(imm as i32) }
    } else {
        Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm: value as u64, off: 0 }
    }
}
