//! Addresses as a root and a constant displacement.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Function, Inst, Map, Op, Size, Slot, Value, ValueDef, Width};

/// Base that an address is counted from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum AddressRoot {
    /// A stack object.
    Slot(Slot),
    /// The single value of a map of global data.
    Global(Map),
    /// A value that is no sum with a constant.
    Value(Value),
}

/// A root and a displacement in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RootedAddress {
    /// The root.
    pub(crate) root: AddressRoot,
    /// Bytes from the root.
    pub(crate) offset: i64,
}

impl RootedAddress {
    /// The address `delta` bytes further on.
    pub(crate) fn plus(self, delta: i64) -> RootedAddress {
        RootedAddress { offset: self.offset.wrapping_add(delta), ..self }
    }

    /// The slot, if the root is one.
    pub(crate) fn slot(self) -> Option<Slot> {
        match self.root {
            AddressRoot::Slot(slot) => Some(slot),
            _ => None,
        }
    }
}

/// Resolved addresses of all values of a function.
pub(crate) struct ResolvedAddresses {
    known: SecondaryMap<Value, Option<RootedAddress>>,
}

impl ResolvedAddresses {
    /// Resolves every result of the function.
    pub(crate) fn new(func: &Function) -> ResolvedAddresses {
        let mut this = ResolvedAddresses { known: SecondaryMap::with_capacity(func.defs.len()) };
        for (_, inst) in func.insts_in_order() {
            if let Some(value) = func.result(inst) {
                this.resolve(func, value);
            }
        }
        this
    }

    /// The address that a value is. A value that is no sum is its own root.
    pub(crate) fn of(&self, value: Value) -> RootedAddress {
        self.known[value].unwrap_or(RootedAddress { root: AddressRoot::Value(value), offset: 0 })
    }

    /// The address that a load, store or atomic accesses.
    pub(crate) fn accessed(&self, func: &Function, inst: Inst) -> Option<(RootedAddress, Size)> {
        let (offset, size) = func.insts[inst].op.access()?;
        Some((self.of(func.insts[inst].args[0]).plus(i64::from(offset)), size))
    }

    fn resolve(&mut self, func: &Function, value: Value) {
        let mut chain = Vec::new();
        let mut at = value;
        let mut addr = loop {
            if let Some(known) = self.known[at] {
                break known;
            }
            match step(func, at) {
                AddressStep::Base(root, offset) => break RootedAddress { root, offset },
                AddressStep::Sum(base, delta) => {
                    chain.push((at, delta));
                    at = base;
                }
            }
        };
        self.known[at] = Some(addr);
        for (value, delta) in chain.into_iter().rev() {
            addr = addr.plus(delta);
            self.known[value] = Some(addr);
        }
    }
}

enum AddressStep {
    Base(AddressRoot, i64),
    Sum(Value, i64),
}

fn step(func: &Function, value: Value) -> AddressStep {
    let ValueDef::Inst(inst) = func.defs[value] else {
        return AddressStep::Base(AddressRoot::Value(value), 0);
    };
    let data = &func.insts[inst];
    match data.op {
        Op::StackAddr { slot, offset } => AddressStep::Base(AddressRoot::Slot(slot), i64::from(offset)),
        Op::MapValueAddr { map, offset } => AddressStep::Base(AddressRoot::Global(map), i64::from(offset)),
        Op::Alu { op: AluOp::Add, width: Width::W64 } => {
            match (func.as_const(data.args[0]), func.as_const(data.args[1])) {
                (_, Some(c)) => AddressStep::Sum(data.args[0], c),
                (Some(c), _) => AddressStep::Sum(data.args[1], c),
                _ => AddressStep::Base(AddressRoot::Value(value), 0),
            }
        }
        Op::Alu { op: AluOp::Sub, width: Width::W64 } => match func.as_const(data.args[1]) {
            Some(c) => AddressStep::Sum(data.args[0], c.wrapping_neg()),
            None => AddressStep::Base(AddressRoot::Value(value), 0),
        },
        _ => AddressStep::Base(AddressRoot::Value(value), 0),
    }
}
