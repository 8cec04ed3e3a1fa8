//! What a program keeps of a packet beside its bytes: which annotations anybody looks at, where they are constant, and which lie in memory
//! while the packet waits.
//!
//! Annotations are values on the edges between elements ([`crate::packet`]): what nobody looks at costs nothing, and what is constant
//! is folded. Memory is needed only where a packet waits, at the beginning of its buffer: so the graph is compiled once without
//! it ([`needed_later`]), to see which annotations are looked at behind a wait, and then with room for these alone, most looked-at first, a word each.
//!
//! A value is looked at if an instruction needs it that does more than compute: a branch, a store, a call. Computing what is not looked at
//! itself is no look.

use millstream_ir::{Block, Function, Inst, Op, Prov, Type, Value, ValueDef};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::packet::{FIRST_NOTE, NOTE_NAMES, NOTES, TYPES};

/// How a program uses an annotation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// Its name.
    pub name: &'static str,
    /// Bytes of its value.
    pub bytes: u32,
    /// Instructions that look at it.
    pub uses: usize,
    /// Inputs of elements behind which it is looked at.
    pub live: usize,
    /// At how many of these it is a constant.
    pub constant: usize,
    /// Where it lies while the packet waits: bytes from the beginning of what is kept then.
    pub kept_at: Option<u32>,
}

/// A field of the packet's descriptor, which whoever receives the packet fills in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Where it is, in bytes.
    pub offset: u32,
    /// Bytes of it.
    pub bytes: u32,
    /// Instructions that read it for others to look at.
    pub reads: usize,
}

/// What a program keeps of a packet beside its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Inputs of elements that packets can reach.
    pub inputs: usize,
    /// Of the descriptor.
    pub fields: Vec<Field>,
    /// All annotations, most looked-at first.
    pub annotations: Vec<Annotation>,
    /// Bytes of the buffer of a packet that waits; 0 if none does.
    pub kept: u32,
}

/// Fields of the descriptor, of 4 bytes each: those of `struct xdp_md` that graphs know.
const FIELDS: [(&str, u32); 5] =
    [("data", 0), ("end", 4), ("room in front", 8), ("ingress", 12), ("queue", 16)];

/// Bytes of what is kept in front of the annotations: where the packet goes on.
pub(crate) const KEPT_HEAD: u32 = 4;
/// Bytes of an annotation that is kept.
pub(crate) const KEPT_EACH: u32 = 4;

/// Values that are looked at.
struct Looked(FxHashSet<Value>);

impl Looked {
    fn at(func: &Function) -> Looked {
        let mut into: FxHashMap<Block, Vec<(Block, usize)>> = FxHashMap::default();
        let mut open = Vec::new();
        for &block in &func.layout {
            for (at, target) in func.targets(block).iter().enumerate() {
                into.entry(target.block).or_default().push((block, at));
            }
            let effects = |inst: &&Inst| {
                let op = &func.insts[**inst].op;
                op.is_terminator() || !op.effects().is_removable()
            };
            for &inst in func.blocks[block].insts.iter().filter(effects) {
                open.extend(func.insts[inst].args.iter().copied());
            }
        }
        let mut found = FxHashSet::default();
        while let Some(value) = open.pop() {
            if !found.insert(value) {
                continue;
            }
            match func.defs[value] {
                ValueDef::Inst(inst) => open.extend(func.insts[inst].args.iter().copied()),
                ValueDef::Param(block, at) => {
                    let edges = into.get(&block).map_or(&[][..], Vec::as_slice);
                    open.extend(
                        edges.iter().map(|&(from, target)| func.targets(from)[target].args[at as usize]),
                    );
                }
            }
        }
        Looked(found)
    }
}

/// The annotations of a packet that arrives at a block.
fn notes(func: &Function, block: Block) -> &[Value] {
    func.blocks[block].params.get(FIRST_NOTE..FIRST_NOTE + NOTES).unwrap_or_default()
}

/// Which annotations are looked at behind these blocks, most looked-at in the whole program first.
pub(crate) fn needed_later(func: &Function, blocks: impl Iterator<Item = Block>) -> Vec<usize> {
    let looked = Looked::at(func);
    let mut needed = [false; NOTES];
    for block in blocks {
        for (needed, value) in needed.iter_mut().zip(notes(func, block)) {
            *needed |= looked.0.contains(value);
        }
    }
    let uses = uses(func, &func.layout);
    let mut all: Vec<usize> = (0..NOTES).filter(|&note| needed[note]).collect();
    all.sort_by_key(|&note| (std::cmp::Reverse(uses[note]), note));
    all
}

/// How many instructions use each annotation where it arrived, but for handing it on.
fn uses(func: &Function, blocks: &[Block]) -> [usize; NOTES] {
    let mut of: FxHashMap<Value, usize> = FxHashMap::default();
    for &block in blocks {
        of.extend(notes(func, block).iter().enumerate().map(|(note, &value)| (value, note)));
    }
    let mut uses = [0; NOTES];
    for (_, inst) in func.insts_in_order() {
        for value in &func.insts[inst].args {
            if let Some(&note) = of.get(value) {
                uses[note] += 1;
            }
        }
    }
    uses
}

/// What is known of a block's parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    Constant(i64),
    Varies,
}

impl Known {
    fn and(self, other: Known) -> Known {
        match (self, other) {
            (Known::Nothing, known) | (known, Known::Nothing) => known,
            (a, b) if a == b => a,
            _ => Known::Varies,
        }
    }
}

/// Parameters that have one constant on all ways.
fn constants(func: &Function) -> FxHashMap<Value, Known> {
    let mut known: FxHashMap<Value, Known> = FxHashMap::default();
    let mut changed = true;
    while changed {
        changed = false;
        for target in func.layout.iter().flat_map(|&block| func.targets(block)) {
            for (&arg, &param) in target.args.iter().zip(&func.blocks[target.block].params) {
                let new = match (func.as_const(arg), func.defs[arg]) {
                    (Some(value), _) => Known::Constant(value),
                    (None, ValueDef::Param(..)) => known.get(&arg).copied().unwrap_or(Known::Nothing),
                    _ => Known::Varies,
                };
                let before = known.get(&param).copied().unwrap_or(Known::Nothing);
                let after = before.and(new);
                changed |= after != before;
                known.insert(param, after);
            }
        }
    }
    known
}

/// The layout of a program whose elements' inputs are these blocks and which keeps these annotations.
pub(crate) fn layout(func: &Function, inputs: &[Block], kept: &[usize], waits: bool) -> Layout {
    let (looked, known, uses) = (Looked::at(func), constants(func), uses(func, inputs));
    let annotation = |note: usize| {
        let values = inputs.iter().filter_map(|&block| notes(func, block).get(note));
        let live: Vec<&Value> = values.filter(|value| looked.0.contains(*value)).collect();
        let constant = |value: &&&Value| matches!(known.get(**value), Some(Known::Constant(_)));
        let place = kept.iter().position(|kept| *kept == note);
        Annotation {
            name: NOTE_NAMES[note],
            bytes: match TYPES[FIRST_NOTE + note] {
                Type::I1 => 1,
                _ => 8,
            },
            uses: uses[note],
            live: live.len(),
            constant: live.iter().filter(constant).count(),
            kept_at: place.map(|at| KEPT_HEAD + KEPT_EACH * at as u32),
        }
    };
    let mut annotations: Vec<Annotation> = (0..NOTES).map(annotation).collect();
    annotations.sort_by_key(|a| std::cmp::Reverse((a.live > 0, a.uses)));
    let fields =
        FIELDS.map(|(name, offset)| Field { name, offset, bytes: 4, reads: reads(func, &looked, offset) });
    let kept = if waits { KEPT_HEAD + KEPT_EACH * kept.len() as u32 } else { 0 };
    Layout { inputs: inputs.len(), fields: fields.to_vec(), annotations, kept }
}

/// Loads of a field of the descriptor that somebody looks at.
fn reads(func: &Function, looked: &Looked, field: u32) -> usize {
    let is_read = |inst: Inst| {
        let data = &func.insts[inst];
        let (Op::Load { offset, .. }, Some(base)) = (&data.op, data.args.first()) else { return false };
        let result = data.result.expand().is_some_and(|result| looked.0.contains(&result));
        result && func.types[*base] == Type::Ptr(Prov::Ctx) && *offset == field as i32
    };
    func.insts_in_order().filter(|&(_, inst)| is_read(inst)).count()
}
