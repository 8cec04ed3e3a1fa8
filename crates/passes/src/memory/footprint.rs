//! Footprints: which bytes, counted from an address, are accessed through it.
//!
//! Invariant: every access to stack memory of the function that happens through a value lies in that value's
//! footprint; what cannot be followed has the footprint of all memory.

use cranelift_entity::{PrimaryMap, SecondaryMap};
use millstream_ir::{
    AluOp, Block, Cfg, DomTree, ExternKind, Func, Function, Inst, Map, MapDecl, Module, Op, Prov, Value,
    Width,
};
use millstream_isa::helpers::{ArgKind, Helper};
use rustc_hash::FxHashMap;

use super::bounds::{SignedRange, bounds};

const FAR: i64 = 1 << 40;

/// Returns true if a CO-RE relocation gives the displacement of an access.
fn has_relocated_displacement(op: &Op) -> bool {
    matches!(op, Op::Load { flags, .. } | Op::Store { flags, .. } if flags.core.is_some())
}

/// A range of bytes, empty where `lo >= hi`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ByteSpan {
    /// First byte.
    pub(crate) lo: i64,
    /// One past the last.
    pub(crate) hi: i64,
}

impl ByteSpan {
    /// No byte.
    pub(crate) const EMPTY: ByteSpan = ByteSpan { lo: FAR, hi: -FAR };
    /// All bytes.
    pub(crate) const ALL: ByteSpan = ByteSpan { lo: -FAR, hi: FAR };
    /// Everything from the address on.
    pub(crate) const UPWARD: ByteSpan = ByteSpan { lo: 0, hi: FAR };

    /// The bytes `[lo, hi)`.
    pub(crate) const fn new(lo: i64, hi: i64) -> ByteSpan {
        ByteSpan { lo, hi }
    }

    /// Returns true if there is no byte in it.
    pub(crate) const fn is_empty(self) -> bool {
        self.lo >= self.hi
    }

    /// The least range that holds both.
    pub(crate) fn hull(self, other: ByteSpan) -> ByteSpan {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        ByteSpan { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    /// Moved by an amount between the two bounds.
    pub(crate) fn shifted(self, (lo, hi): SignedRange) -> ByteSpan {
        if self.is_empty() {
            return self;
        }
        let limit = |v: i64| v.clamp(-FAR, FAR);
        // A bound at the limit stays there.
        let lo = if self.lo == -FAR { -FAR } else { limit(self.lo.saturating_add(lo)) };
        let hi = if self.hi == FAR { FAR } else { limit(self.hi.saturating_add(hi)) };
        ByteSpan { lo, hi }
    }

    /// Returns true if it has no lower bound.
    pub(crate) const fn open_below(self) -> bool {
        !self.is_empty() && self.lo <= -FAR
    }
}

/// Effect of one use of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressUse {
    /// Accesses these bytes.
    Touch(ByteSpan),
    /// Makes another address, further on by an amount between the bounds.
    Derive(Value, SignedRange),
}

/// Footprints of the parameters of all functions.
pub(crate) type ParamSpans = SecondaryMap<Func, Vec<ByteSpan>>;

/// Everything that decides the effect of a use.
pub(crate) struct FootprintAnalysis<'a> {
    pub(crate) module: &'a Module,
    pub(crate) func: &'a Function,
    pub(crate) callees: &'a ParamSpans,
    pub(crate) cfg: Cfg,
    pub(crate) dom: DomTree,
    // Values that may be an address into a stack object.
    tracked: SecondaryMap<Value, bool>,
    blocks: SecondaryMap<Inst, Option<Block>>,
}

impl<'a> FootprintAnalysis<'a> {
    /// Follows addresses through the function: those of its own objects, and its parameters if `params`.
    pub(crate) fn new(
        module: &'a Module,
        func: &'a Function,
        callees: &'a ParamSpans,
        params: bool,
    ) -> FootprintAnalysis<'a> {
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let mut uses = FootprintAnalysis {
            module,
            func,
            callees,
            cfg,
            dom,
            tracked: SecondaryMap::with_capacity(func.defs.len()),
            blocks: SecondaryMap::with_capacity(func.insts.len()),
        };
        for (block, inst) in func.insts_in_order() {
            uses.blocks[inst] = Some(block);
        }
        if params {
            for &param in &func.blocks[func.entry()].params {
                uses.tracked[param] = true;
            }
        }
        uses.track();
        uses
    }

    fn track(&mut self) {
        let mut changed = true;
        while changed {
            changed = false;
            for i in 0..self.cfg.rpo.len() {
                let block = self.cfg.rpo[i];
                for &inst in &self.func.blocks[block].insts {
                    changed |= self.track_inst(inst);
                }
            }
        }
    }

    fn track_inst(&mut self, inst: Inst) -> bool {
        let data = &self.func.insts[inst];
        let mut changed = false;
        if let Some(result) = data.result.expand() {
            let follows = match data.op {
                Op::StackAddr { .. } => true,
                Op::Alu { op: AluOp::Add | AluOp::Sub, width: Width::W64 } => {
                    data.args.iter().any(|&a| self.tracked[a])
                }
                Op::Select {} => data.args[1..].iter().any(|&a| self.tracked[a]),
                _ => false,
            };
            changed |= follows && !self.tracked[result];
            self.tracked[result] |= follows;
        }
        for target in &data.targets {
            for (i, &arg) in target.args.iter().enumerate() {
                let param = self.func.blocks[target.block].params[i];
                changed |= self.tracked[arg] && !self.tracked[param];
                self.tracked[param] |= self.tracked[arg];
            }
        }
        changed
    }

    /// Effect of the use of a tracked value as argument `index` of an instruction.
    pub(crate) fn argument(&self, inst: Inst, index: usize) -> AddressUse {
        let data = &self.func.insts[inst];
        let other = |i: usize| data.args[i];
        match &data.op {
            op if let Some((offset, size)) = op.access() => {
                let at = i64::from(offset);
                // The loader changes a relocated displacement: it may lie anywhere, even behind what the
                // types of the object's own BTF would have there.
                let is_known = index == 0 && !has_relocated_displacement(op);
                AddressUse::Touch(if is_known {
                    ByteSpan::new(at, at + i64::from(size.bytes()))
                } else {
                    ByteSpan::ALL
                })
            }
            Op::Alu { op: op @ (AluOp::Add | AluOp::Sub), width: Width::W64 } => {
                self.sum(inst, *op, index, other(1 - index))
            }
            Op::Select {} if index > 0 => match data.result.expand() {
                Some(result) => AddressUse::Derive(result, (0, 0)),
                None => AddressUse::Touch(ByteSpan::EMPTY),
            },
            Op::Branch { .. } | Op::Cmp { .. } => {
                let both = self.tracked[other(1 - index)];
                AddressUse::Touch(if both { ByteSpan::ALL } else { ByteSpan::EMPTY })
            }
            Op::Helper { id } => AddressUse::Touch(match self.callback_span(inst, *id, index) {
                Some(span) => span,
                None => helper_span(&self.module.maps, self.func, inst, *id, index),
            }),
            Op::Call { func } => {
                AddressUse::Touch(self.callees[*func].get(index).copied().unwrap_or(ByteSpan::ALL))
            }
            Op::Kfunc { ext } => AddressUse::Touch(match &self.module.externs[*ext] {
                decl if decl.kind == ExternKind::Kfunc => kfunc_span(&decl.name, index),
                // A function of another object, which may be verified with what surrounds its arguments.
                _ => ByteSpan::ALL,
            }),
            _ => AddressUse::Touch(ByteSpan::ALL),
        }
    }

    /// The footprint of memory that a helper hands to a callback: that of the callback's parameter.
    fn callback_span(&self, inst: Inst, id: i32, index: usize) -> Option<ByteSpan> {
        let helper = Helper::get(id)?;
        if helper.args.get(index) != Some(&ArgKind::StackOrNull) {
            return None;
        }
        let param = match helper.name {
            "loop" | "user_ringbuf_drain" => 1,
            "find_vma" => 2,
            "for_each_map_elem" => 3,
            _ => return None,
        };
        let args = &self.func.insts[inst].args;
        let callback = args.iter().find_map(|&a| match self.func.def_op(a) {
            Some(Op::FuncAddr { func }) => Some(*func),
            _ => None,
        })?;
        // A callback without that parameter does not look at the memory.
        Some(self.callees[callback].get(param).copied().unwrap_or(ByteSpan::EMPTY))
    }

    fn sum(&self, inst: Inst, op: AluOp, index: usize, other: Value) -> AddressUse {
        let Some(result) = self.func.result(inst) else { return AddressUse::Touch(ByteSpan::EMPTY) };
        let subtracted = op == AluOp::Sub && index == 1;
        if self.tracked[other] || subtracted {
            return AddressUse::Touch(ByteSpan::ALL);
        }
        let block = self.blocks[inst];
        let known = block.and_then(|b| bounds(self.func, &self.cfg, &self.dom, other, b));
        let (lo, hi) = known.unwrap_or((-FAR, FAR));
        match op {
            AluOp::Sub => AddressUse::Derive(result, (hi.saturating_neg(), lo.saturating_neg())),
            _ => AddressUse::Derive(result, (lo, hi)),
        }
    }

    /// Calls `f` on each use of a tracked value that control can reach: the value and the effect of the use.
    pub(crate) fn each(&self, mut f: impl FnMut(Value, AddressUse)) {
        for &block in &self.cfg.rpo {
            for &inst in &self.func.blocks[block].insts {
                let data = &self.func.insts[inst];
                for (i, &arg) in data.args.iter().enumerate() {
                    if self.tracked[arg] {
                        f(arg, self.argument(inst, i));
                    }
                }
                for target in &data.targets {
                    for (i, &arg) in target.args.iter().enumerate() {
                        if self.tracked[arg] {
                            f(arg, AddressUse::Derive(self.func.blocks[target.block].params[i], (0, 0)));
                        }
                    }
                }
            }
        }
    }

    /// Footprints of all tracked values, over everything that is derived from them.
    pub(crate) fn spans(&self) -> SecondaryMap<Value, ByteSpan> {
        let mut spans: SecondaryMap<Value, ByteSpan> = SecondaryMap::with_default(ByteSpan::EMPTY);
        let mut sources: FxHashMap<Value, Vec<(Value, SignedRange)>> = FxHashMap::default();
        self.each(|value, what| match what {
            AddressUse::Touch(span) => spans[value] = spans[value].hull(span),
            AddressUse::Derive(to, by) => sources.entry(to).or_default().push((value, by)),
        });
        let mut work: Vec<Value> = sources.keys().copied().collect();
        work.sort_unstable();
        let mut visits: SecondaryMap<Value, u32> = SecondaryMap::new();
        while let Some(value) = work.pop() {
            for &(from, by) in sources.get(&value).map_or(&[][..], |s| s) {
                let new = spans[from].hull(spans[value].shifted(by));
                if new == spans[from] {
                    continue;
                }
                visits[from] += 1;
                spans[from] = if visits[from] > WIDEN_AFTER { widen(spans[from], new) } else { new };
                work.push(from);
            }
        }
        spans
    }
}

const WIDEN_AFTER: u32 = 16;

/// Depth of calls that the kernel takes.
const CALL_DEPTH: u32 = 8;

fn widen(old: ByteSpan, new: ByteSpan) -> ByteSpan {
    ByteSpan {
        lo: if new.lo < old.lo { -FAR } else { new.lo },
        hi: if new.hi > old.hi { FAR } else { new.hi },
    }
}

/// Computes the footprints of the parameters of every function.
pub(crate) fn param_spans(module: &Module) -> ParamSpans {
    let mut all = ParamSpans::new();
    for (id, func) in &module.funcs {
        if !func.layout.is_empty() {
            let params = func.blocks[func.entry()].params.len();
            // The kernel checks a call of a global function against its prototype alone.
            let start = if func.linkage.is_local() { ByteSpan::EMPTY } else { ByteSpan::UPWARD };
            all[id] = vec![start; params];
        }
    }
    // Calls of a depth that the kernel takes settle within as many rounds. Deeper ones and cycles are widened.
    // A footprint that was widened stays so: it would be found anew in each round.
    for round in 0.. {
        let mut changed = false;
        for (id, func) in &module.funcs {
            if !func.linkage.is_local() || func.layout.is_empty() {
                continue;
            }
            let spans = FootprintAnalysis::new(module, func, &all, true).spans();
            let new: Vec<ByteSpan> = func.blocks[func.entry()].params.iter().map(|&p| spans[p]).collect();
            let widened = round > CALL_DEPTH && new != all[id];
            let new = if widened { vec![ByteSpan::ALL; new.len()] } else { new };
            changed |= new != all[id];
            all[id] = new;
        }
        if !changed {
            break;
        }
    }
    all
}

/// Bytes that a helper accesses through argument `index`, counted from it.
pub(crate) fn helper_span(
    maps: &PrimaryMap<Map, MapDecl>,
    func: &Function,
    inst: Inst,
    id: i32,
    index: usize,
) -> ByteSpan {
    let Some(kind) = Helper::get(id).and_then(|h| h.args.get(index)) else { return ByteSpan::ALL };
    let args = &func.insts[inst].args;
    let map = || called_map(func, inst).and_then(|m| maps.get(m));
    let sized = |bytes: Option<u32>| bytes.map_or(ByteSpan::UPWARD, |b| ByteSpan::new(0, i64::from(b)));
    match *kind {
        ArgKind::MapKey => sized(map().map(|m| m.key_size)),
        ArgKind::MapValue | ArgKind::MapValueOrNull | ArgKind::MapValueOut => {
            sized(map().map(|m| m.value_size))
        }
        ArgKind::Mem { .. } => match args.get(index + 1).and_then(|&s| func.as_const(s)) {
            Some(n) if (0..=FAR).contains(&n) => ByteSpan::new(0, n),
            _ => ByteSpan::UPWARD,
        },
        ArgKind::Fixed { bytes, .. } => ByteSpan::new(0, i64::from(bytes)),
        ArgKind::Dynptr | ArgKind::DynptrOut => ByteSpan::new(0, 16),
        _ => ByteSpan::ALL,
    }
}

/// The map in the first constant-map argument, where it is known.
pub(crate) fn called_map(func: &Function, inst: Inst) -> Option<Map> {
    let Op::Helper { id } = func.insts[inst].op else { return None };
    let index = Helper::get(id)?.args.iter().position(|a| *a == ArgKind::ConstMap)?;
    map_of(func, *func.insts[inst].args.get(index)?)
}

/// The map whose address a value is.
pub(crate) fn map_of(func: &Function, value: Value) -> Option<Map> {
    match (func.def_op(value), func.types[value].prov()) {
        (Some(Op::MapAddr { map }), _) => Some(*map),
        (_, Some(Prov::Map(map))) => Some(map),
        _ => None,
    }
}

/// Sizes of objects that kernel functions keep on the stack, by the functions' names.
fn kfunc_span(name: &str, index: usize) -> ByteSpan {
    if index != 0 {
        return ByteSpan::UPWARD;
    }
    let name = name.split("___").next().unwrap_or(name);
    match name {
        "bpf_iter_num_new" | "bpf_iter_num_next" | "bpf_iter_num_destroy" => ByteSpan::new(0, 8),
        _ => ByteSpan::UPWARD,
    }
}
