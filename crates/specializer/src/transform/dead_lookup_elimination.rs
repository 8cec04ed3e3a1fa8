//! Lookups whose results make no difference: a classifier that has found nothing for one field need not look
//! at the others.
//!
//! The code after the lookup is evaluated for two runs at once, which differ only in the result of the
//! lookup. Where they part, because a branch depends on it, nothing visible to others may happen before they
//! have met again; values that then depend on the path taken differ. They have met when no other block is
//! left to be visited: blocks are visited in reverse postorder, and a loop ends the analysis. Bytes of the
//! stack that only one run may have written differ until both have written them.
//!
//! Invariant: a lookup that is reported needless has the same effects after it, in the same order, whatever
//! it finds.

use std::collections::BTreeMap;

use millstream_ir::{
    AluOp, Block, BlockCall, Cfg, Cond, Function, Inst, Map, MemFlags, Module, Op, Prov, Slot, Type, Value,
    Width,
};
use millstream_isa::semantics::eval;
use millstream_passes::{EffectSummaries, ModuleInfo, call_effects};
use rustc_hash::{FxHashMap, FxHashSet};

use super::abstract_key::key_bytes;
use super::eval::{AbstractValue, AssumedResults, arithmetic, read};
use super::plan::{FieldConstant, MapContents};
use super::site::{LookupKey, lookup};
use super::stack_key::stack_address;

/// Instructions that are looked at behind one lookup.
const MOST: usize = 4_000;

/// A value in both runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PairedValue {
    /// This constant.
    Const(i64),
    /// The value of the source, the same in both.
    Same(Value),
    /// This many bytes into the result of one of these lookups.
    Found(usize, i64),
    /// Perhaps not the same.
    Differs,
}

/// Possible results of lookups.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PossibleResults {
    /// The maps, and the values as far as they are known.
    pub(super) values: Vec<(Map, Option<Vec<u8>>)>,
    /// True if the result may be null.
    pub(super) or_null: bool,
    /// True if the other run may have another one.
    pub(super) differs: bool,
}

/// A function, and the knowledge about it.
pub(super) struct EliminationContext<'a> {
    pub(super) module: &'a Module,
    pub(super) func: &'a Function,
    pub(super) cfg: &'a Cfg,
    pub(super) contents: &'a dyn MapContents,
    pub(super) fields: &'a [FieldConstant],
    pub(super) assumed: &'a AssumedResults,
}

/// Two runs in progress.
struct PairedExecution<'a, 'o> {
    on: &'o EliminationContext<'a>,
    /// Values before the lookup.
    before: &'o dyn Fn(Value, &mut Vec<PossibleResults>) -> PairedValue,
    held: Vec<PossibleResults>,
    values: FxHashMap<Value, PairedValue>,
    /// Blocks to come, by their place in reverse postorder.
    pending: BTreeMap<u32, Block>,
    /// True if the runs may be in different places.
    parted: bool,
    /// Bytes of the stack that may differ.
    stack: FxHashSet<(Slot, i64)>,
    /// Values that one of them returned while they were apart.
    returned: Option<Vec<PairedValue>>,
    summaries: EffectSummaries,
}

impl<'a> EliminationContext<'a> {
    /// Returns true if the result of a lookup makes no difference. `before` gives the values before the
    /// lookup.
    pub(super) fn is_result_unused(
        &self,
        (block, inst): (Block, Inst),
        before: &dyn Fn(Value, &mut Vec<PossibleResults>) -> PairedValue,
    ) -> bool {
        let (Some(looked), Some(result)) =
            (lookup(self.module, self.func, self.cfg, inst), self.func.result(inst))
        else {
            return false;
        };
        let mut runs = PairedExecution {
            on: self,
            before,
            held: Vec::new(),
            values: FxHashMap::default(),
            pending: BTreeMap::new(),
            parted: false,
            stack: FxHashSet::default(),
            returned: None,
            summaries: EffectSummaries::default(),
        };
        if runs.is_seen(inst) {
            return false;
        }
        runs.held.push(PossibleResults { values: vec![(looked.map, None)], or_null: true, differs: true });
        runs.values.insert(result, PairedValue::Found(0, 0));
        let Some(at) = self.func.blocks[block].insts.iter().position(|i| *i == inst) else { return false };
        runs.block(block, at + 1).and_then(|()| runs.rest()).is_some()
    }
}

impl PairedExecution<'_, '_> {
    /// Everything behind the first block. `None` if the runs differ.
    fn rest(&mut self) -> Option<()> {
        let mut left = MOST;
        while let Some((_, block)) = self.pending.pop_first() {
            if self.pending.is_empty() && self.returned.is_none() {
                self.parted = false;
            }
            left = left.checked_sub(self.on.func.blocks[block].insts.len())?;
            self.block(block, 0)?;
        }
        Some(())
    }

    fn block(&mut self, block: Block, next: usize) -> Option<()> {
        let func = self.on.func;
        for &inst in &func.blocks[block].insts[next..] {
            match func.insts[inst].op {
                Op::Jump {} => self.goes(block, &func.insts[inst].targets[0])?,
                Op::Branch { cond, width } => self.branch(block, inst, cond, width)?,
                Op::Return {} => self.returns(inst)?,
                _ if func.insts[inst].op.is_terminator() => return None,
                _ => self.inst(inst)?,
            }
        }
        Some(())
    }

    fn of(&mut self, value: Value) -> PairedValue {
        match self.values.get(&value) {
            Some(known) => *known,
            None => {
                let known = (self.before)(value, &mut self.held);
                self.values.insert(value, known);
                known
            }
        }
    }

    fn differs(&self, both: PairedValue) -> bool {
        match both {
            PairedValue::Differs => true,
            PairedValue::Found(held, _) => self.held[held].differs,
            PairedValue::Const(_) | PairedValue::Same(_) => false,
        }
    }

    fn args(&mut self, inst: Inst) -> Vec<PairedValue> {
        self.on.func.insts[inst].args.iter().map(|v| self.of(*v)).collect()
    }

    /// Returns true if an instruction has effects that others can see.
    fn is_seen(&self, inst: Inst) -> bool {
        let Module { maps, tables, externs, cores, .. } = self.on.module;
        let info = ModuleInfo::of(maps, tables, externs, cores, &self.summaries);
        let effects = call_effects(self.on.func, inst, &info);
        // What functions do is not asked.
        matches!(self.on.func.insts[inst].op, Op::Call { .. })
            || effects.writes
            || effects.calls
            || effects.moves_packet
    }

    fn inst(&mut self, inst: Inst) -> Option<()> {
        let args = self.args(inst);
        if self.stored(inst, &args) {
            return Some(());
        }
        let differs = args.iter().any(|arg| self.differs(*arg)) || self.reads_other(inst);
        let is_seen = self.is_seen(inst);
        if is_seen && (self.parted || differs) {
            return None;
        }
        let Some(result) = self.on.func.result(inst) else { return Some(()) };
        let known = match self.on.func.insts[inst].op {
            _ if is_seen => None,
            Op::Load { size, sext, offset, flags } if flags == MemFlags::default() => self
                .loaded(args[0], i64::from(offset), |bytes, at| read(bytes, at, size, sext))
                .map(PairedValue::Const),
            Op::Alu { op: AluOp::Add, width: Width::W64 } => match args[..] {
                [PairedValue::Found(held, at), PairedValue::Const(by)]
                | [PairedValue::Const(by), PairedValue::Found(held, at)] => {
                    Some(PairedValue::Found(held, at.checked_add(by)?))
                }
                _ => computed(&self.on.func.insts[inst].op, &args),
            },
            Op::MapLookup { .. } | Op::Helper { .. } => self.found(inst, &args, differs),
            ref op => computed(op, &args),
        };
        let unknown = if differs { PairedValue::Differs } else { PairedValue::Same(result) };
        self.values.insert(result, known.unwrap_or(unknown));
        Some(())
    }

    /// Returns true if an instruction is a store to the stack, which is not visible to others; records the
    /// bytes that it writes.
    fn stored(&mut self, inst: Inst, args: &[PairedValue]) -> bool {
        let data = &self.on.func.insts[inst];
        let Op::Store { size, offset, .. } = data.op else { return false };
        let Some((slot, at)) = stack_address(self.on.func, data.args[0]) else { return false };
        let bytes = (0..i64::from(size.bytes())).map(|n| (slot, at + i64::from(offset) + n));
        if self.parted || self.differs(args[1]) {
            self.stack.extend(bytes);
        } else if self.pending.is_empty() {
            for byte in bytes {
                self.stack.remove(&byte);
            }
        }
        true
    }

    /// Returns true if an instruction may read bytes of the stack that differ.
    fn reads_other(&self, inst: Inst) -> bool {
        let (func, data) = (self.on.func, &self.on.func.insts[inst]);
        if self.stack.is_empty() {
            return false;
        }
        let differs = |pointer: Value, bytes: Option<(i64, u32)>| match (stack_address(func, pointer), bytes)
        {
            (Some((slot, at)), Some((by, size))) => {
                (0..i64::from(size)).any(|n| self.stack.contains(&(slot, at + by + n)))
            }
            (Some((slot, _)), None) => self.stack.iter().any(|(other, _)| *other == slot),
            (None, _) => matches!(func.types[pointer], Type::Any | Type::Ptr(Prov::Stack)),
        };
        match data.op {
            Op::Load { size, offset, .. } => differs(data.args[0], Some((i64::from(offset), size.bytes()))),
            Op::Helper { .. } => match lookup(self.on.module, func, self.on.cfg, inst) {
                Some(looked) => differs(data.args[1], Some((0, self.on.module.maps[looked.map].key_size))),
                None => data.args.iter().any(|pointer| differs(*pointer, None)),
            },
            // What functions read by pointers that lie in memory is not asked.
            Op::Call { .. } => true,
            ref op if op.effects().reads => data.args.iter().any(|pointer| differs(*pointer, None)),
            _ => false,
        }
    }

    /// The result of a load, if all possible values give the same.
    fn loaded(&self, base: PairedValue, by: i64, read: impl Fn(&[u8], u32) -> Option<i64>) -> Option<i64> {
        let PairedValue::Found(held, at) = base else { return None };
        let at = u32::try_from(at.checked_add(by)?).ok()?;
        let of = |(map, bytes): &(Map, Option<Vec<u8>>)| match bytes {
            Some(bytes) => read(bytes, at),
            None => {
                let fields = self.on.fields.iter().filter(|f| f.map == *map && f.offset <= at);
                fields.filter_map(|f| read(&f.bytes, at - f.offset)).next()
            }
        };
        let mut all = self.held[held].values.iter().map(of);
        let first = all.next()??;
        all.all(|one| one == Some(first)).then_some(first)
    }

    /// The result of another lookup, as far as it is known.
    fn found(&mut self, inst: Inst, args: &[PairedValue], differs: bool) -> Option<PairedValue> {
        let on = self.on;
        let looked = lookup(on.module, on.func, on.cfg, inst)?;
        let assumed = on.assumed.get(&inst).cloned();
        if assumed.is_none() && (differs || looked.object.is_some()) {
            return None;
        }
        let constant = || {
            let LookupKey::Values(layout) = looked.key else { return None };
            let value = |n: usize| if let PairedValue::Const(c) = args[n] { Some(c) } else { None };
            on.contents.lookup(looked.map, &key_bytes(layout, on.module.maps[looked.map].key_size, value)?)
        };
        let bytes = match assumed.or_else(constant) {
            Some(None) => return Some(PairedValue::Const(0)),
            Some(Some(bytes)) => Some(bytes),
            None => None,
        };
        let or_null = bytes.is_none();
        let known = on.contents.constant(looked.map, 0..on.module.maps[looked.map].value_size);
        let bytes = bytes.filter(|_| known);
        self.held.push(PossibleResults { values: vec![(looked.map, bytes)], or_null, differs: false });
        Some(PairedValue::Found(self.held.len() - 1, 0))
    }

    fn branch(&mut self, block: Block, inst: Inst, cond: Cond, width: Width) -> Option<()> {
        let data = &self.on.func.insts[inst];
        let args = self.args(inst);
        let is_null = |both: PairedValue| both == PairedValue::Const(0);
        let pointer = match args[..] {
            [PairedValue::Found(held, 0), other] | [other, PairedValue::Found(held, 0)] if is_null(other) => {
                Some(held)
            }
            _ => None,
        };
        let taken = match (&args[..], pointer, cond) {
            (&[PairedValue::Const(a), PairedValue::Const(b)], ..) => {
                Some(eval::cond(cond, width, a as u64, b as u64))
            }
            (_, Some(held), Cond::Eq) if !self.held[held].or_null => Some(false),
            (_, Some(held), Cond::Ne) if !self.held[held].or_null => Some(true),
            _ => None,
        };
        if let Some(taken) = taken {
            return self.goes(block, &data.targets[usize::from(!taken)]);
        }
        self.parted |= args.iter().any(|arg| self.differs(*arg));
        let tested = data.args.iter().copied().find(|v| matches!(self.of(*v), PairedValue::Found(..)));
        for (n, target) in data.targets.iter().enumerate() {
            // Where it is not null, it is one of those that were found.
            let there = match cond {
                Cond::Eq => n == 1,
                Cond::Ne => n == 0,
                _ => false,
            };
            let refined = pointer.filter(|_| there).zip(tested).map(|(held, value)| {
                let known = PossibleResults { or_null: false, ..self.held[held].clone() };
                self.held.push(known);
                (value, PairedValue::Found(self.held.len() - 1, 0))
            });
            self.goes_with(block, target, refined)?;
        }
        Some(())
    }

    fn goes(&mut self, from: Block, target: &BlockCall) -> Option<()> {
        self.goes_with(from, target, None)
    }

    fn goes_with(
        &mut self,
        from: Block,
        target: &BlockCall,
        refined: Option<(Value, PairedValue)>,
    ) -> Option<()> {
        let (here, there) = (self.on.cfg.rpo_index[from], self.on.cfg.rpo_index[target.block]);
        if there <= here {
            return None;
        }
        let is_new = self.pending.insert(there, target.block).is_none();
        for (&arg, &param) in target.args.iter().zip(&self.on.func.blocks[target.block].params) {
            let new = match refined {
                Some((value, known)) if value == arg => known,
                _ => self.of(arg),
            };
            let merged = match self.values.get(&param) {
                Some(&old) if !is_new => self.merged(old, new, param),
                _ => new,
            };
            self.values.insert(param, merged);
        }
        Some(())
    }

    /// The value of a parameter that gets one value from each of two edges.
    fn merged(&mut self, a: PairedValue, b: PairedValue, param: Value) -> PairedValue {
        match (a, b) {
            _ if a == b => a,
            (PairedValue::Found(x, at), PairedValue::Found(y, by)) if at == by => {
                let (x, y) = (self.held[x].clone(), self.held[y].clone());
                let differs = self.parted || x.differs || y.differs;
                let values = [x.values, y.values].concat();
                self.held.push(PossibleResults { values, or_null: x.or_null || y.or_null, differs });
                PairedValue::Found(self.held.len() - 1, at)
            }
            _ if self.parted || self.differs(a) || self.differs(b) => PairedValue::Differs,
            _ => PairedValue::Same(param),
        }
    }

    fn returns(&mut self, inst: Inst) -> Option<()> {
        let given = self.args(inst);
        if given.iter().any(|both| self.differs(*both)) {
            return None;
        }
        if !self.parted {
            return Some(());
        }
        match &self.returned {
            Some(before) => (*before == given).then_some(()),
            None => {
                self.returned = Some(given);
                Some(())
            }
        }
    }
}

/// The result of arithmetic, where it is known.
fn computed(op: &Op, args: &[PairedValue]) -> Option<PairedValue> {
    let constant = |both: &PairedValue| {
        if let PairedValue::Const(c) = both { AbstractValue::Const(*c) } else { AbstractValue::None }
    };
    let args: Vec<AbstractValue> = args.iter().map(constant).collect();
    match arithmetic(op, &args)? {
        AbstractValue::Const(value) => Some(PairedValue::Const(value)),
        _ => None,
    }
}
