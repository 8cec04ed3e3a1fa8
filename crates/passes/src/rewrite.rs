//! Small tools that several passes share.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use millstream_ir::{Block, BlockCall, Cond, Function, Inst, Op, Type, Value, ValueDef};
use smallvec::SmallVec;

/// Values to be replaced by others.
#[derive(Default)]
pub(crate) struct ValueSubst {
    to: SecondaryMap<Value, PackedOption<Value>>,
    any: bool,
}

impl ValueSubst {
    /// Replaces `from` by `to`.
    pub(crate) fn insert(&mut self, from: Value, to: Value) {
        let to = self.resolve(to);
        if from != to {
            self.to[from] = to.into();
            self.any = true;
        }
    }

    /// Returns the value that replaces `value`.
    pub(crate) fn resolve(&self, mut value: Value) -> Value {
        while let Some(next) = self.to[value].expand() {
            value = next;
        }
        value
    }

    /// Rewrites every use in the function; `true` if there was anything to replace.
    pub(crate) fn apply(&self, func: &mut Function) -> bool {
        if self.any {
            func.substitute(&self.to);
        }
        self.any
    }
}

/// Returns true if a value of type `new` may stand where one of type `old` stood: no user learns less from
/// its type.
pub(crate) fn fits(new: Type, old: Type) -> bool {
    match (new.int_bits(), old.int_bits()) {
        (Some(new), Some(old)) => new <= old,
        (_, None) => new == old || old == Type::Any,
        (None, Some(old)) => old == 64 && new == Type::Any,
    }
}

/// Turns a terminator into a jump.
pub(crate) fn make_jump(func: &mut Function, term: Inst, target: BlockCall) {
    let data = &mut func.insts[term];
    data.op = Op::Jump {};
    data.args.clear();
    data.targets = SmallVec::from_iter([target]);
}

/// The condition with its operands exchanged.
pub(crate) const fn swapped(cond: Cond) -> Cond {
    match cond {
        Cond::Eq => Cond::Eq,
        Cond::Ne => Cond::Ne,
        Cond::Set => Cond::Set,
        Cond::Gt => Cond::Lt,
        Cond::Ge => Cond::Le,
        Cond::Lt => Cond::Gt,
        Cond::Le => Cond::Ge,
        Cond::Sgt => Cond::Slt,
        Cond::Sge => Cond::Sle,
        Cond::Slt => Cond::Sgt,
        Cond::Sle => Cond::Sge,
    }
}

/// The opposite condition; `jset` has none.
pub(crate) const fn negated(cond: Cond) -> Option<Cond> {
    Some(match cond {
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
        Cond::Set => return None,
        Cond::Gt => Cond::Le,
        Cond::Ge => Cond::Lt,
        Cond::Lt => Cond::Ge,
        Cond::Le => Cond::Gt,
        Cond::Sgt => Cond::Sle,
        Cond::Sge => Cond::Slt,
        Cond::Slt => Cond::Sge,
        Cond::Sle => Cond::Sgt,
    })
}

/// Number of edges into each reachable block.
pub(crate) fn edge_counts(func: &Function) -> SecondaryMap<Block, u32> {
    let mut counts: SecondaryMap<Block, u32> = SecondaryMap::new();
    for &block in &func.layout {
        for target in func.targets(block) {
            counts[target.block] += 1;
        }
    }
    counts
}

/// Removes the block parameters that `keep` rejects, and the arguments for them.
pub(crate) fn keep_params(func: &mut Function, keep: impl Fn(Value) -> bool) {
    for i in 0..func.layout.len() {
        let Some(term) = func.terminator(func.layout[i]) else { continue };
        let mut targets = std::mem::take(&mut func.insts[term].targets);
        for target in &mut targets {
            let mut params = func.blocks[target.block].params.iter();
            target.args.retain(|_| params.next().is_some_and(|&p| keep(p)));
        }
        func.insts[term].targets = targets;
    }
    for i in 0..func.layout.len() {
        let block = func.layout[i];
        let mut params = std::mem::take(&mut func.blocks[block].params);
        params.retain(|&p| keep(p));
        for (index, &param) in params.iter().enumerate() {
            func.defs[param] = ValueDef::Param(block, index as u16);
        }
        func.blocks[block].params = params;
    }
}
