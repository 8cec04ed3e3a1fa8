//! One run: frames, control, operations.

use cranelift_entity::EntityRef;
use millstream_ir::{
    Block, BlockCall, Func, Function, Inst, InstData, KeyLayout, Map, Op, PacketVerdict, Slot, Table, Value,
    op_group,
};
use millstream_isa::semantics::{self, ConcreteDomain, eval};
use millstream_isa::{AtomicOp, ByteOrder, Size};
use rustc_hash::FxHashMap;

use super::IrInterpreter;
use super::table::match_table;
use crate::helpers::{self, CallbackCaller, HelperOutcome, UNDEFINED};
use crate::machine::{MAX_FRAMES, STACK_SIZE};
use crate::packet::ContextKind;
use crate::{Fault, MachineState, MapKind};

/// Loops that one `may_goto` allows (`BPF_MAX_LOOPS`).
const MAY_GOTO_BUDGET: u64 = 1 << 23;

/// One run, and its position, or the place of its fault.
pub(super) struct IrRun<'a> {
    interpreter: &'a IrInterpreter<'a>,
    limit: u64,
    depth: usize,
    place: (Func, Block, Inst),
    /// Memory of stack objects that are in no frame now, by size.
    free: FxHashMap<u32, Vec<u64>>,
}

/// The values of one activation of a function.
struct IrFrame<'a> {
    func: &'a Function,
    values: Vec<u64>,
    /// Address of each stack object.
    slots: Vec<u64>,
    /// Remaining budget of each `may_goto`.
    budgets: FxHashMap<Inst, u64>,
}

/// Successor of an instruction.
enum IrSuccessor {
    Fall,
    Goto(usize),
    Return(u64),
    TailCall(usize),
}

impl IrFrame<'_> {
    fn get(&self, value: Value) -> u64 {
        self.values[value.index()]
    }

    fn args(&self, data: &InstData) -> Vec<u64> {
        data.args.iter().map(|&v| self.get(v)).collect()
    }

    /// Sets the parameters of a target, all at once.
    fn enter(&mut self, target: &BlockCall) {
        let args: Vec<u64> = target.args.iter().map(|&v| self.get(v)).collect();
        self.set_params(target.block, &args);
    }

    fn set_params(&mut self, block: Block, args: &[u64]) {
        for (&param, &arg) in self.func.blocks[block].params.iter().zip(args) {
            self.values[param.index()] = arg;
        }
    }
}

impl CallbackCaller for IrRun<'_> {
    fn call(&mut self, machine: &mut MachineState, function: u64, args: [u64; 5]) -> Result<u64, Fault> {
        let fault = Fault::Function(function);
        let (_, index) = MachineState::function_at(function).ok_or(fault.clone())?;
        let func = Func::new(index);
        if !self.interpreter.module.funcs.is_valid(func) {
            return Err(fault);
        }
        self.nested(machine, func, &args)
    }
}

impl<'a> IrRun<'a> {
    pub(super) fn new(interpreter: &'a IrInterpreter<'a>, machine: &MachineState, func: Func) -> Self {
        let limit = machine.executed.saturating_add(machine.fuel);
        let place = (func, Block::new(0), Inst::new(usize::MAX >> 33));
        IrRun { interpreter, limit, depth: 0, place, free: FxHashMap::default() }
    }

    pub(super) fn place(&self) -> (Func, Block, Inst) {
        self.place
    }

    /// Runs a function from within another.
    fn nested(&mut self, machine: &mut MachineState, func: Func, args: &[u64]) -> Result<u64, Fault> {
        let place = self.place;
        let value = self.function(machine, func, args)?;
        self.place = place;
        Ok(value)
    }

    /// Runs a function in a frame of its own, and the programs that it tail-calls after it.
    pub(super) fn function(
        &mut self,
        machine: &mut MachineState,
        func: Func,
        args: &[u64],
    ) -> Result<u64, Fault> {
        if self.depth >= MAX_FRAMES {
            return Err(Fault::Depth);
        }
        self.depth += 1;
        let mut next = (func, args.to_vec());
        loop {
            let (func, args) = next;
            let mut frame = self.frame(machine, func)?;
            let end = self.blocks(machine, &mut frame, func, &args)?;
            self.release(&frame);
            match end {
                IrSuccessor::TailCall(program) => {
                    let target = self.interpreter.programs.get(program);
                    let target = target.ok_or(Fault::Function(program as u64))?;
                    next = (*target, vec![machine.context_address()]);
                }
                IrSuccessor::Return(value) => {
                    self.depth -= 1;
                    return Ok(value);
                }
                IrSuccessor::Fall | IrSuccessor::Goto(_) => return Err(Fault::End),
            }
        }
    }

    fn frame(&mut self, machine: &mut MachineState, func: Func) -> Result<IrFrame<'a>, Fault> {
        let func = &self.interpreter.module.funcs[func];
        machine.clear_frame(self.depth - 1);
        let slots: Vec<Slot> = func.slots.keys().collect();
        let slots = slots.into_iter().map(|slot| self.slot_address(machine, func, slot));
        Ok(IrFrame {
            func,
            slots: slots.collect::<Result<_, _>>()?,
            values: vec![UNDEFINED; func.defs.len()],
            budgets: FxHashMap::default(),
        })
    }

    /// A fixed object lies in the machine's frame; any other in memory of its own.
    fn slot_address(
        &mut self,
        machine: &mut MachineState,
        func: &Function,
        slot: Slot,
    ) -> Result<u64, Fault> {
        let data = &func.slots[slot];
        let within = |offset: i32| offset < 0 && offset >= -(STACK_SIZE as i32);
        if let Some(offset) = data.fixed.filter(|&offset| within(offset)) {
            return Ok(MachineState::frame_pointer(self.depth - 1).wrapping_add_signed(i64::from(offset)));
        }
        if let Some(addr) = self.free.get_mut(&data.size).and_then(Vec::pop) {
            machine.bytes(addr, u64::from(data.size), true)?.fill(0);
            return Ok(addr);
        }
        match machine.add_memory(vec![0; data.size as usize]) {
            0 => Err(Fault::Depth),
            addr => Ok(addr),
        }
    }

    fn release(&mut self, frame: &IrFrame<'_>) {
        for (slot, data) in &frame.func.slots {
            let addr = frame.slots[slot.index()];
            if !matches!(crate::MemoryLocation::of(addr), Some(crate::MemoryLocation::Stack(..))) {
                self.free.entry(data.size).or_default().push(addr);
            }
        }
    }

    fn blocks(
        &mut self,
        machine: &mut MachineState,
        frame: &mut IrFrame<'_>,
        id: Func,
        args: &[u64],
    ) -> Result<IrSuccessor, Fault> {
        let func = frame.func;
        let mut block = *func.layout.first().ok_or(Fault::End)?;
        frame.set_params(block, args);
        'blocks: loop {
            for &inst in &func.blocks[block].insts {
                self.place = (id, block, inst);
                if machine.executed >= self.limit {
                    return Err(Fault::Fuel(machine.fuel));
                }
                machine.executed += 1;
                match self.step(machine, frame, inst)? {
                    IrSuccessor::Fall => {}
                    IrSuccessor::Goto(which) => {
                        let target = &func.insts[inst].targets[which];
                        frame.enter(target);
                        block = target.block;
                        continue 'blocks;
                    }
                    end => return Ok(end),
                }
            }
            return Err(Fault::End);
        }
    }

    fn step(
        &mut self,
        machine: &mut MachineState,
        frame: &mut IrFrame<'_>,
        inst: Inst,
    ) -> Result<IrSuccessor, Fault> {
        let data = &frame.func.insts[inst];
        if data.op.is_terminator() {
            return self.terminator(frame, inst);
        }
        let value = match &data.op {
            Op::Helper { id } => match helpers::call_helper(machine, *id, call_args(frame, data), self)? {
                HelperOutcome::Return(value) => value,
                HelperOutcome::TailCall(program) => return Ok(IrSuccessor::TailCall(program)),
            },
            Op::LegacyLoad { size, offset } => {
                let index = data.args.get(1).map_or(0, |&v| frame.get(v) as i64);
                match helpers::packet::legacy_load(machine, index.wrapping_add(i64::from(*offset)), *size)? {
                    Some(value) => value,
                    None => return Ok(IrSuccessor::Return(0)),
                }
            }
            _ => self.operation(machine, frame, data)?,
        };
        if let Some(result) = data.result.expand() {
            frame.values[result.index()] = value;
        }
        Ok(IrSuccessor::Fall)
    }

    fn terminator(&mut self, frame: &mut IrFrame<'_>, inst: Inst) -> Result<IrSuccessor, Fault> {
        let data = &frame.func.insts[inst];
        Ok(match &data.op {
            Op::Jump {} => IrSuccessor::Goto(0),
            Op::Branch { cond, width } => {
                let taken = eval::cond(*cond, *width, frame.get(data.args[0]), frame.get(data.args[1]));
                IrSuccessor::Goto(usize::from(!taken))
            }
            Op::MayGoto {} => {
                let left = frame.budgets.entry(inst).or_insert(MAY_GOTO_BUDGET);
                *left = left.saturating_sub(1);
                IrSuccessor::Goto(usize::from(*left != 0))
            }
            Op::Return {} => IrSuccessor::Return(data.args.first().map_or(0, |&v| frame.get(v))),
            _ => return Err(Fault::Instruction(data.op.mnemonic())),
        })
    }

    /// Operations that go on with the next instruction; the result is 0 where there is none.
    fn operation(
        &mut self,
        machine: &mut MachineState,
        frame: &IrFrame<'_>,
        data: &InstData,
    ) -> Result<u64, Fault> {
        let arg = |i: usize| frame.get(data.args[i]);
        let order = machine.byte_order();
        Ok(match &data.op {
            Op::Alu { op, width } => eval::alu(*op, *width, arg(0), arg(1)),
            Op::Neg { width } => eval::neg(*width, arg(0)),
            Op::Zext {} => eval::mov(millstream_isa::Width::W32, arg(0)),
            Op::Sext { bits, width } => eval::movsx(*width, u32::from(*bits), arg(0)),
            Op::Swap { kind, bits } => eval::swap(*kind, u32::from(*bits), arg(0)),
            Op::Cmp { cond, width } => u64::from(eval::cond(*cond, *width, arg(0), arg(1))),
            Op::Select {} => arg(if arg(0) != 0 { 1 } else { 2 }),
            Op::MapLookup { map, key } => {
                let key = self.pieces(*map, key, &frame.args(data), order, |m| m.key_size);
                self.lookup(machine, *map, &key)?
            }
            Op::MapDelete { map, key } => {
                let key = self.pieces(*map, key, &frame.args(data), order, |m| m.key_size);
                machine.maps.delete(self.interpreter.linked_map(*map)?, &key) as u64
            }
            Op::MapUpdate { map, key, value } => {
                let (keys, rest) = data.args.split_at(key.len());
                let of = |vs: &[Value]| vs.iter().map(|&v| frame.get(v)).collect::<Vec<_>>();
                let key = self.pieces(*map, key, &of(keys), order, |m| m.key_size);
                let value = self.pieces(*map, value, &of(rest), order, |m| m.value_size);
                let flags = frame.get(data.args[data.args.len() - 1]);
                let (map, cpu) = (self.interpreter.linked_map(*map)?, machine.env.cpu);
                machine.maps.update(map, &key, &value, flags, Some(cpu)) as u64
            }
            Op::TableMatch { table } => self.match_table(*table, &frame.args(data))?,
            Op::Kfunc { ext } => {
                helpers::call_kfunc(machine, self.symbol(*ext)? as i32, call_args(frame, data))?
            }
            Op::Call { func } => self.nested(machine, *func, &frame.args(data))?,
            Op::CallIndirect {} => {
                let mut args = [0; 5];
                frame.args(data)[1..].iter().zip(&mut args).for_each(|(&from, to)| *to = from);
                self.call(machine, arg(0), args)?
            }
            Op::Emit {} => machine.emit_packet(arg(0), arg(1)).map(|()| 0)?,
            Op::ClonePacket {} => machine.clone_packet(arg(0))?,
            Op::Hold { end } => machine.enqueue_packet(arg(0), arg(1), *end).map(|()| 0)?,
            Op::SetBounds {} => machine.set_bounds(arg(0), arg(1), arg(2)).map(|()| 0)?,
            Op::Pull {} => machine.pull_packet(arg(0)),
            op_group!(constant) => self.constant(machine, frame, &data.op)?,
            op_group!(access) => memory(machine, frame, data)?,
            Op::AddrSpaceCast { .. } | Op::Helper { .. } | Op::LegacyLoad { .. } | op_group!(terminator) => {
                return Err(Fault::Instruction(data.op.mnemonic()));
            }
        })
    }

    fn constant(&self, machine: &mut MachineState, frame: &IrFrame<'_>, op: &Op) -> Result<u64, Fault> {
        Ok(match op {
            Op::Const { value } | Op::CoreConst { local: value, .. } => *value as u64,
            Op::Undef {} => UNDEFINED,
            Op::MapAddr { map } => MachineState::map_address(self.interpreter.linked_map(*map)?),
            Op::MapValueAddr { map, offset } => {
                MachineState::value_address_of(self.interpreter.linked_map(*map)?, *offset)
            }
            Op::FuncAddr { func } => MachineState::function_address(0, func.index()),
            Op::ExternAddr { ext } => self.symbol(*ext)? as u64,
            Op::StackAddr { slot, offset } => {
                frame.slots[slot.index()].wrapping_add_signed(i64::from(*offset))
            }
            Op::Verdict { verdict } => verdict_number(machine.context_kind(), *verdict)?,
            op => return Err(Fault::Instruction(op.mnemonic())),
        })
    }

    fn symbol(&self, ext: millstream_ir::Extern) -> Result<i64, Fault> {
        self.interpreter.externs.get(&ext).copied().ok_or(Fault::Unlinked("a kernel symbol"))
    }

    /// A key or value of its pieces.
    fn pieces(
        &self,
        map: Map,
        layout: &KeyLayout,
        values: &[u64],
        order: ByteOrder,
        size: impl Fn(&millstream_ir::MapDecl) -> u32,
    ) -> Vec<u8> {
        let mut bytes = vec![0; self.interpreter.module.maps.get(map).map_or(0, size) as usize];
        for (piece, value) in layout.iter().zip(values) {
            let (from, len) = (usize::from(piece.offset), piece.size.bytes() as usize);
            let stored = semantics::stored(&mut ConcreteDomain, piece.size, value);
            if let Some(part) = bytes.get_mut(from..from + len) {
                order.put(stored, part);
            }
        }
        bytes
    }

    /// Address of the value at a key, or of the inner map; 0 where there is none.
    fn lookup(&self, machine: &mut MachineState, map: Map, key: &[u8]) -> Result<u64, Fault> {
        let map = self.interpreter.linked_map(map)?;
        if machine.maps.spec(map).is_some_and(|spec| MapKind::is_map_of_maps(spec.kind)) {
            return Ok(machine.maps.inner(map, key).map_or(0, MachineState::map_address));
        }
        let cpu = machine.env.cpu;
        let offset = machine.maps.lookup(map, key, cpu);
        Ok(offset.map_or(0, |offset| MachineState::value_address(map, offset)))
    }

    fn match_table(&self, table: Table, key: &[u64]) -> Result<u64, Fault> {
        let table = self.interpreter.module.tables.get(table).ok_or(Fault::Unlinked("a match table"))?;
        Ok(match_table(table, key).map_or(-1, |entry| i64::from(table.result(entry))) as u64)
    }
}

/// Arguments of a helper or kernel function; absent ones are 0.
fn call_args(frame: &IrFrame<'_>, data: &InstData) -> [u64; 5] {
    let mut args = [0; 5];
    data.args.iter().zip(&mut args).for_each(|(&from, to)| *to = frame.get(from));
    args
}

/// Accesses to memory; the first argument is the base.
fn memory(machine: &mut MachineState, frame: &IrFrame<'_>, data: &InstData) -> Result<u64, Fault> {
    let arg = |i: usize| frame.get(data.args[i]);
    let at = |offset: i32| arg(0).wrapping_add_signed(i64::from(offset));
    let d = &mut ConcreteDomain;
    Ok(match &data.op {
        Op::Load { size, sext, offset, .. } => {
            let bytes = machine.read(at(*offset), *size)?;
            semantics::loaded(d, *size, *sext, &bytes)
        }
        Op::LoadAcquire { size, offset } => {
            let bytes = machine.read(at(*offset), *size)?;
            semantics::loaded(d, *size, false, &bytes)
        }
        Op::Store { size, offset, .. } | Op::StoreRelease { size, offset } => {
            machine.write(at(*offset), *size, semantics::stored(d, *size, &arg(1)))?;
            0
        }
        Op::Atomic { op, size, offset } | Op::AtomicFetch { op, size, offset } => {
            atomic(machine, *op, *size, at(*offset), arg(1), 0)?
        }
        Op::CmpXchg { size, offset } => {
            atomic(machine, AtomicOp::CmpXchg, *size, at(*offset), arg(2), arg(1))?
        }
        op => return Err(Fault::Instruction(op.mnemonic())),
    })
}

fn atomic(
    machine: &mut MachineState,
    op: AtomicOp,
    size: Size,
    addr: u64,
    src: u64,
    expected: u64,
) -> Result<u64, Fault> {
    let old = machine.read(addr, size)?;
    let result = semantics::atomic(&mut ConcreteDomain, op, size, &old, &src, &expected);
    machine.write(addr, size, result.memory)?;
    Ok(result.fetched)
}

/// The number of a verdict: of `enum xdp_action`, or for `__sk_buff` of `TC_ACT_*`, which cannot send back.
fn verdict_number(context: ContextKind, verdict: PacketVerdict) -> Result<u64, Fault> {
    Ok(match (context, verdict) {
        (ContextKind::Skb, PacketVerdict::Aborted | PacketVerdict::Drop) => 2,
        (ContextKind::Skb, PacketVerdict::Pass) => 0,
        (ContextKind::Skb, PacketVerdict::Redirect) => 7,
        (ContextKind::Skb, PacketVerdict::Tx) => return Err(Fault::Instruction("verdict.tx")),
        (_, PacketVerdict::Aborted) => 0,
        (_, PacketVerdict::Drop) => 1,
        (_, PacketVerdict::Pass) => 2,
        (_, PacketVerdict::Tx) => 3,
        (_, PacketVerdict::Redirect) => 4,
    })
}
