//! SSA construction.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use millstream_ir::context;
use millstream_ir::{
    Block, BlockCall, Cond, Core, Function, Linkage, MemFlags, Module, Op, Prov, Slot, SlotData, Type, Value,
};
use millstream_isa::helpers::{Helper, RetKind};
use millstream_isa::{AluOp, AtomicOp, Callee, Insn, LegacyMode, Operand, Pseudo, Reg, Size, Width};

use super::scan::{BytecodeCfg, LocatedInsn, call_args};
use super::{BytecodeFunction, LiftError, RelocTarget, Signature};

/// The frame as the kernel gives it: 512 bytes below the frame pointer.
const FRAME: u32 = 512;

pub(super) fn build(
    source: &BytecodeFunction,
    scan: &BytecodeCfg,
    module: &Module,
    sigs: &dyn Fn(&RelocTarget) -> Signature,
    own: Signature,
) -> Result<Function, LiftError> {
    let mut func = Function::new(source.name.clone(), source.linkage.clone());
    func.returns = own.returns;
    let entry = func.add_block();
    let mut blocks = vec![PackedOption::default(); scan.runs.len()];
    let entered_again = scan.rpo.iter().any(|&r| scan.runs[r].succs.contains(&0));
    for (run, block) in blocks.iter_mut().enumerate() {
        if scan.runs[run].reachable {
            *block = if run == 0 && !entered_again { entry } else { func.add_block() }.into();
        }
    }
    let frame = func.slots.push(SlotData { size: FRAME, align: 8, fixed: Some(-(FRAME as i32)) });
    let mut builder = FunctionLifter {
        source,
        scan,
        module,
        sigs,
        own,
        func,
        blocks,
        out: vec![[None; 10]; scan.runs.len()],
        regs: [None; 10],
        block: entry,
        loc: u32::MAX,
        frame,
        fp: PackedOption::default(),
        undef: PackedOption::default(),
        init: 0,
    };
    builder.prologue(entry, entered_again);
    builder.run()?;
    builder.finish();
    let mut func = builder.func;
    prune_params(&mut func);
    trim_frame(&mut func, frame);
    Ok(func)
}

struct FunctionLifter<'a> {
    source: &'a BytecodeFunction,
    scan: &'a BytecodeCfg,
    module: &'a Module,
    sigs: &'a dyn Fn(&RelocTarget) -> Signature,
    own: Signature,
    func: Function,
    blocks: Vec<PackedOption<Block>>,
    /// Values of the registers at the end of each run.
    out: Vec<[Option<Value>; 10]>,
    /// Values of the registers here.
    regs: [Option<Value>; 10],
    block: Block,
    loc: u32,
    frame: Slot,
    fp: PackedOption<Value>,
    undef: PackedOption<Value>,
    /// Registers surely written here.
    init: u16,
}

impl FunctionLifter<'_> {
    fn error(&self, l: &LocatedInsn, what: impl Into<String>) -> LiftError {
        LiftError {
            function: self.source.name.clone(),
            slot: l.slot as usize,
            what: what.into(),
            dependent: false,
        }
    }

    fn prologue(&mut self, entry: Block, separate: bool) {
        let mut regs = [None; 10];
        for n in 0..self.own.args {
            let is_ctx = n == 0 && matches!(self.source.linkage, Linkage::Program { .. });
            let ty = if is_ctx { Type::Ptr(Prov::Ctx) } else { Type::Any };
            regs[n as usize + 1] = Some(self.func.add_param(entry, ty));
        }
        self.block = entry;
        let fp =
            self.value(Op::StackAddr { slot: self.frame, offset: FRAME as i32 }, [], Type::Ptr(Prov::Stack));
        self.fp = fp.into();
        self.undef = self.value(Op::Undef {}, [], Type::Any).into();
        self.regs = regs;
        if separate && let Some(first) = self.blocks[0].expand() {
            let live = self.live_in(0);
            let args: Vec<Value> = live.iter().map(|&r| self.reg_or_undef(&regs, r)).collect();
            self.func.at_end(entry).effect(Op::Jump {}, [], [BlockCall::with(first, args)]);
        }
    }

    fn live_in(&self, run: usize) -> Vec<usize> {
        (0..10).filter(|r| self.scan.runs[run].live_in & (1 << r) != 0).collect()
    }

    fn reg_or_undef(&self, regs: &[Option<Value>; 10], reg: usize) -> Value {
        regs[reg].or(self.undef.expand()).expect("the prologue made the undefined value")
    }

    fn run(&mut self) -> Result<(), LiftError> {
        let mut preds = vec![Vec::new(); self.scan.runs.len()];
        for &r in &self.scan.rpo {
            for &s in &self.scan.runs[r].succs {
                preds[s].push(r);
            }
        }
        for &r in &self.scan.rpo {
            let Some(block) = self.blocks[r].expand() else { continue };
            self.block = block;
            self.init = self.scan.runs[r].init_in;
            let is_function_entry = block == self.func.entry();
            if !is_function_entry {
                self.regs = match preds[r].as_slice() {
                    [only] if r != 0 => self.out[*only],
                    _ => self.join(r),
                };
            }
            for i in self.scan.runs[r].insns.clone() {
                self.insn(&self.scan.insns[i], r)?;
            }
            self.out[r] = self.regs;
            if self.func.terminator(block).is_none() {
                let target = self.target(self.scan.runs[r].succs[0]);
                self.effect(Op::Jump {}, [], [target]);
            }
        }
        Ok(())
    }

    /// A parameter for each live register of a run with several predecessors.
    fn join(&mut self, run: usize) -> [Option<Value>; 10] {
        let mut regs = [None; 10];
        for reg in self.live_in(run) {
            regs[reg] = Some(self.func.add_param(self.block, Type::Any));
        }
        regs
    }

    fn target(&self, run: usize) -> BlockCall {
        BlockCall::new(self.blocks[run].expand().expect("successors of reachable runs are reachable"))
    }

    /// Fills in the branch arguments, now that every run's final values are known.
    fn finish(&mut self) {
        for &r in &self.scan.rpo {
            let Some(block) = self.blocks[r].expand() else { continue };
            let Some(term) = self.func.terminator(block) else { continue };
            for (i, &s) in self.scan.runs[r].succs.iter().enumerate() {
                let target = self.func.insts[term].targets[i].block;
                if self.func.blocks[target].params.is_empty() {
                    continue;
                }
                let args: Vec<Value> =
                    self.live_in(s).iter().map(|&reg| self.reg_or_undef(&self.out[r], reg)).collect();
                self.func.insts[term].targets[i].args.extend(args);
            }
        }
    }

    fn value(&mut self, op: Op, args: impl IntoIterator<Item = Value>, ty: Type) -> Value {
        let mut cursor = self.func.at_end(self.block);
        cursor.loc = self.loc;
        cursor.value(op, args, ty)
    }

    fn effect(
        &mut self,
        op: Op,
        args: impl IntoIterator<Item = Value>,
        targets: impl IntoIterator<Item = BlockCall>,
    ) {
        let mut cursor = self.func.at_end(self.block);
        cursor.loc = self.loc;
        cursor.effect(op, args, targets);
    }

    fn iconst(&mut self, value: i64) -> Value {
        self.value(Op::Const { value }, [], Type::I64)
    }

    fn get(&self, reg: Reg) -> Value {
        let fp = self.fp.expand();
        if reg == Reg::R10 {
            return fp.expect("the prologue made the frame pointer");
        }
        self.reg_or_undef(&self.regs, reg.index())
    }

    fn set(&mut self, reg: Reg, value: Value) {
        if reg != Reg::R10 {
            self.regs[reg.index()] = Some(value);
            self.init |= 1 << reg.index();
        }
    }

    fn core(&self, l: &LocatedInsn) -> Option<Core> {
        self.source.cores.get(&l.slot).copied()
    }

    /// The second operand, as a value; a relocated constant stays symbolic.
    fn operand(&mut self, l: &LocatedInsn, src: Operand, width: Width) -> Value {
        match src {
            Operand::Reg(r) => self.get(r),
            Operand::Imm(imm) => {
                let value = match width {
                    Width::W64 => i64::from(imm),
                    Width::W32 => i64::from(imm as u32),
                };
                match self.core(l) {
                    Some(core) => {
                        let op = Op::CoreConst { core, local: i64::from(imm), wide: false };
                        self.value(op, [], Type::I64)
                    }
                    None => self.iconst(value),
                }
            }
        }
    }

    fn insn(&mut self, l: &LocatedInsn, run: usize) -> Result<(), LiftError> {
        if let Some((_, &rec)) = self.source.lines.range(..=l.slot).next_back() {
            self.loc = rec;
        }
        match l.insn {
            Insn::Alu { width, op, dst, src } => {
                let a = self.get(dst);
                let b = self.operand(l, src, width);
                let ty = alu_type(op, width, self.func.types[a], self.func.types[b]);
                let v = self.value(Op::Alu { op, width }, [a, b], ty);
                self.set(dst, v);
            }
            Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => {
                let v = self.get(src);
                self.set(dst, v);
            }
            Insn::Mov { width: Width::W32, dst, src: Operand::Reg(src) } => {
                self.unary(Op::Zext {}, dst, src, Type::I32);
            }
            Insn::Mov { width, dst, src } => {
                let v = self.operand(l, src, width);
                self.set(dst, v);
            }
            Insn::MovSx { width, bits, dst, src } => {
                self.unary(Op::Sext { bits, width }, dst, src, Type::int(width.bits()));
            }
            Insn::AddrSpaceCast { dst, src, imm } => {
                self.unary(Op::AddrSpaceCast { spaces: imm }, dst, src, Type::Any);
            }
            Insn::Neg { width, dst } => self.unary(Op::Neg { width }, dst, dst, Type::int(width.bits())),
            Insn::Swap { kind, bits, dst } => {
                self.unary(Op::Swap { kind, bits }, dst, dst, Type::int(u32::from(bits)));
            }
            Insn::LoadImm64 { dst, pseudo, imm, .. } => self.load_imm64(l, dst, pseudo, imm)?,
            Insn::Call(callee) => self.call(l, callee)?,
            Insn::Jump { .. } => {
                let target = self.target(self.scan.runs[run].succs[0]);
                self.effect(Op::Jump {}, [], [target]);
            }
            Insn::Branch { width, cond, dst, src, .. } => self.branch(l, run, width, cond, dst, src),
            Insn::MayGoto { .. } => {
                let targets = self.scan.runs[run].succs.iter().map(|&s| self.target(s)).collect::<Vec<_>>();
                self.effect(Op::MayGoto {}, [], targets);
            }
            Insn::Exit => {
                let value = self.own.returns.then(|| self.get(Reg::R0));
                self.effect(Op::Return {}, value, []);
            }
            _ => self.memory(l),
        }
        Ok(())
    }

    fn unary(&mut self, op: Op, dst: Reg, src: Reg, ty: Type) {
        let v = self.get(src);
        let v = self.value(op, [v], ty);
        self.set(dst, v);
    }

    fn branch(&mut self, l: &LocatedInsn, run: usize, width: Width, cond: Cond, dst: Reg, src: Operand) {
        let a = self.get(dst);
        let b = self.operand(l, src, width);
        let targets = self.scan.runs[run].succs.iter().map(|&s| self.target(s)).collect::<Vec<_>>();
        self.effect(Op::Branch { cond, width }, [a, b], targets);
    }

    fn memory(&mut self, l: &LocatedInsn) {
        let flags = MemFlags { core: self.core(l), volatile: false };
        match l.insn {
            Insn::Load { size, sext, dst, src, off } => {
                let base = self.get(src);
                let ty = self.load_type(base, size, sext, off);
                let v = self.value(Op::Load { size, sext, offset: off.into(), flags }, [base], ty);
                self.set(dst, v);
            }
            Insn::Store { size, dst, off, src } => {
                let base = self.get(dst);
                let value = match src {
                    Operand::Reg(r) => self.get(r),
                    Operand::Imm(imm) => self.iconst(imm.into()),
                };
                self.effect(Op::Store { size, offset: off.into(), flags }, [base, value], []);
            }
            Insn::Atomic { op, fetch, size, dst, src, off } => {
                self.atomic(op, fetch, size, dst, src, off.into());
            }
            Insn::LoadAcquire { size, dst, src, off } => {
                let base = self.get(src);
                let ty = Type::int(size.bits());
                let v = self.value(Op::LoadAcquire { size, offset: off.into() }, [base], ty);
                self.set(dst, v);
            }
            Insn::StoreRelease { size, dst, src, off } => {
                let (base, value) = (self.get(dst), self.get(src));
                self.effect(Op::StoreRelease { size, offset: off.into() }, [base, value], []);
            }
            Insn::LegacyLoad { size, mode, imm } => {
                let index = if let LegacyMode::Ind(r) = mode { Some(self.get(r)) } else { None };
                let args = std::iter::once(self.get(Reg::R6)).chain(index);
                let args: Vec<Value> = args.collect();
                let ty = Type::int(size.bits());
                let v = self.value(Op::LegacyLoad { size, offset: imm }, args, ty);
                self.clobber_args();
                self.set(Reg::R0, v);
            }
            _ => unreachable!("`insn` handles what is no memory access"),
        }
    }

    fn atomic(&mut self, op: AtomicOp, fetch: bool, size: Size, dst: Reg, src: Reg, offset: i32) {
        let (base, value) = (self.get(dst), self.get(src));
        let ty = Type::int(size.bits());
        if op == AtomicOp::CmpXchg {
            let expected = self.get(Reg::R0);
            let v = self.value(Op::CmpXchg { size, offset }, [base, expected, value], ty);
            self.set(Reg::R0, v);
        } else if fetch {
            let v = self.value(Op::AtomicFetch { op, size, offset }, [base, value], ty);
            self.set(src, v);
        } else {
            self.effect(Op::Atomic { op, size, offset }, [base, value], []);
        }
    }

    fn load_imm64(&mut self, l: &LocatedInsn, dst: Reg, pseudo: Pseudo, imm: u64) -> Result<(), LiftError> {
        let sym = self.source.syms.get(&l.slot).copied();
        let (op, ty) = match (sym, self.core(l), pseudo) {
            (Some(RelocTarget::Map(map)), ..) => (Op::MapAddr { map }, Type::Ptr(Prov::Map(map))),
            (Some(RelocTarget::MapValue(map, offset)), ..) => {
                (Op::MapValueAddr { map, offset }, Type::Ptr(Prov::MapValue(map)))
            }
            (Some(RelocTarget::Func(func)), ..) => (Op::FuncAddr { func }, Type::Ptr(Prov::Func)),
            (Some(RelocTarget::Extern(ext)), ..) => (Op::ExternAddr { ext }, Type::Any),
            (None, Some(core), _) => (Op::CoreConst { core, local: imm as i64, wide: true }, Type::I64),
            (None, None, Pseudo::None) => (Op::Const { value: imm as i64 }, Type::I64),
            (None, None, _) => return Err(self.error(l, format!("{pseudo:?} without a relocation"))),
        };
        let v = self.value(op, [], ty);
        self.set(dst, v);
        Ok(())
    }

    fn call(&mut self, l: &LocatedInsn, callee: Callee) -> Result<(), LiftError> {
        let count = call_args(l.slot, callee, self.source, self.sigs, self.init);
        let mut args: Vec<Value> = (1..=count).map(|n| self.reg_or_undef(&self.regs, n as usize)).collect();
        let sym = self.source.syms.get(&l.slot).copied();
        let (op, ty) = match (callee, sym) {
            (Callee::Helper(id), None) => (Op::Helper { id }, self.helper_type(id, &args)),
            (Callee::Local(_), Some(RelocTarget::Func(func))) => (Op::Call { func }, Type::Any),
            (Callee::Kfunc { .. } | Callee::Local(_) | Callee::Helper(_), Some(RelocTarget::Extern(ext))) => {
                (Op::Kfunc { ext }, Type::Any)
            }
            (Callee::Register(reg), None) => {
                args.insert(0, self.get(reg));
                (Op::CallIndirect {}, Type::Any)
            }
            _ => return Err(self.error(l, "call without a relocation that says of what")),
        };
        let v = self.value(op, args, ty);
        self.clobber_args();
        self.set(Reg::R0, v);
        Ok(())
    }

    fn clobber_args(&mut self) {
        self.regs[1..=5].fill(None);
        self.init &= !0b11_1110;
    }

    fn helper_type(&self, id: i32, args: &[Value]) -> Type {
        let Some(helper) = Helper::get(id) else { return Type::Any };
        let map = args.first().and_then(|&a| match self.func.types[a] {
            Type::Ptr(Prov::Map(map)) => Some(map),
            _ => None,
        });
        match (helper.ret, map) {
            (RetKind::Int, _) => Type::I64,
            (RetKind::MapValueOrNull, Some(map)) => match self.module.maps[map].inner {
                Some(_) => Type::Any,
                None => Type::Ptr(Prov::MapValueOrNull(map)),
            },
            (RetKind::MapValue, Some(map)) => Type::Ptr(Prov::MapValue(map)),
            (RetKind::MemOrNull, _) => Type::Ptr(Prov::Mem),
            _ => Type::Any,
        }
    }

    fn load_type(&self, base: Value, size: Size, sext: bool, off: i16) -> Type {
        let plain = match (sext, size) {
            (false, Size::Dw) => Type::Any,
            (true, _) => Type::I64,
            _ => Type::int(size.bits()),
        };
        let own = match self.source.linkage {
            Linkage::Program { prog_type } => Some(prog_type),
            _ => None,
        };
        match (self.func.types[base], own) {
            (Type::Ptr(Prov::Ctx), Some(prog_type)) => {
                context::field(prog_type, off.into(), size).map_or(plain, Type::Ptr)
            }
            // The base may be the context, handed over by a caller or filled from the stack: what looks like
            // a word of 32 bits is then a pointer.
            (Type::Any | Type::Ptr(Prov::Ctx), _) if context::may_be_pointer(own, off.into(), size) => {
                Type::Any
            }
            _ => plain,
        }
    }
}

fn alu_type(op: AluOp, width: Width, a: Type, b: Type) -> Type {
    if width == Width::W32 {
        return Type::I32;
    }
    match (op, a, b) {
        (AluOp::Add, Type::Ptr(_), t) if t.is_int() => a,
        (AluOp::Add, t, Type::Ptr(_)) if t.is_int() => b,
        (AluOp::Sub, Type::Ptr(_), t) if t.is_int() => a,
        (AluOp::Add | AluOp::Sub, _, _) if !(a.is_int() && b.is_int()) => Type::Any,
        _ => Type::I64,
    }
}

/// Removes parameters that are always the same value, or themselves.
fn prune_params(func: &mut Function) {
    let mut incoming: SecondaryMap<Block, Vec<(millstream_ir::Inst, usize)>> = SecondaryMap::new();
    for &block in &func.layout {
        if let Some(term) = func.terminator(block) {
            for (i, target) in func.insts[term].targets.iter().enumerate() {
                incoming[target.block].push((term, i));
            }
        }
    }
    let mut subst: SecondaryMap<Value, PackedOption<Value>> = SecondaryMap::new();
    loop {
        let mut changed = false;
        for &block in &func.layout[1..] {
            for (i, &param) in func.blocks[block].params.iter().enumerate() {
                if subst[param].is_some() {
                    continue;
                }
                if let Some(only) = only_source(func, &incoming[block], i, param, &subst) {
                    subst[param] = only.into();
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    func.substitute(&subst);
    for b in 1..func.layout.len() {
        let block = func.layout[b];
        let keep: Vec<bool> = func.blocks[block].params.iter().map(|&p| subst[p].is_none()).collect();
        if keep.iter().all(|&k| k) {
            continue;
        }
        for &(term, t) in &incoming[block] {
            let mut it = keep.iter();
            func.insts[term].targets[t].args.retain(|_| *it.next().unwrap_or(&true));
        }
        let mut it = keep.iter();
        func.blocks[block].params.retain(|_| *it.next().unwrap_or(&true));
        for (i, &p) in func.blocks[block].params.iter().enumerate() {
            func.defs[p] = millstream_ir::ValueDef::Param(block, i as u16);
        }
    }
}

fn only_source(
    func: &Function,
    incoming: &[(millstream_ir::Inst, usize)],
    index: usize,
    param: Value,
    subst: &SecondaryMap<Value, PackedOption<Value>>,
) -> Option<Value> {
    let mut only = None;
    for &(term, t) in incoming {
        let mut arg = func.insts[term].targets[t].args[index];
        while let Some(next) = subst[arg].expand() {
            arg = next;
        }
        if arg == param || only == Some(arg) {
            continue;
        }
        if only.is_some() {
            return None;
        }
        only = Some(arg);
    }
    only
}

/// Shrinks the frame to the bytes that the function refers to, so that spills find room below it. Where an
/// address in it is computed in a way that is not followed here, it stays whole.
fn trim_frame(func: &mut Function, frame: Slot) {
    let mut reach: SecondaryMap<Value, Option<i64>> = SecondaryMap::new();
    let mut lowest = 0;
    for &block in &func.layout.clone() {
        for &inst in &func.blocks[block].insts {
            let data = &func.insts[inst];
            let at = |i: usize| data.args.get(i).and_then(|&v| reach[v]);
            match &data.op {
                Op::StackAddr { slot, offset } if *slot == frame => {
                    if let Some(v) = data.result.expand() {
                        reach[v] = Some(i64::from(*offset) - i64::from(FRAME));
                    }
                    continue;
                }
                Op::Alu { op: AluOp::Add, width: Width::W64 } if at(0).is_some() => {
                    if let (Some(base), Some(c)) = (at(0), func.as_const(data.args[1])) {
                        if let Some(v) = data.result.expand() {
                            reach[v] = Some(base + c);
                        }
                        continue;
                    }
                }
                Op::Load { offset, .. } | Op::LoadAcquire { offset, .. } if at(0).is_some() => {
                    lowest = lowest.min(at(0).unwrap_or(0) + i64::from(*offset));
                    continue;
                }
                Op::Store { offset, .. }
                | Op::Atomic { offset, .. }
                | Op::AtomicFetch { offset, .. }
                | Op::CmpXchg { offset, .. }
                | Op::StoreRelease { offset, .. }
                    if at(0).is_some() =>
                {
                    lowest = lowest.min(at(0).unwrap_or(0) + i64::from(*offset));
                    lowest = data.args[1..].iter().filter_map(|&a| reach[a]).fold(lowest, i64::min);
                    continue;
                }
                _ => {}
            }
            // Any other use: the object that starts there, and what lies above it.
            let mut used = lowest;
            func.for_each_use(inst, |v| used = reach[v].map_or(used, |at| used.min(at)));
            lowest = used;
        }
    }
    let size = (-lowest).clamp(0, i64::from(FRAME)) as i32;
    let size = (size + 7) & !7;
    let delta = FRAME as i32 - size;
    let fixed = (size > 0).then_some(-size);
    func.slots[frame] = SlotData { size: size as u32, align: 8, fixed };
    for inst in func.insts.values_mut() {
        if let Op::StackAddr { slot, offset } = &mut inst.op
            && *slot == frame
        {
            *offset -= delta;
        }
    }
}
