//! Data that a program keeps of a packet beside its bytes: the annotations that are used, the blocks where
//! they are constant, and those that lie in memory while the packet waits.
//!
//! Annotations are values on the edges between elements ([`crate::packet`]): unused ones cost nothing, and
//! constant ones are folded. Memory is needed only while a packet waits, at the beginning of its buffer. So
//! the graph is compiled once without it ([`live_annotations`]), to see which annotations are used behind
//! which wait, and then with room for these alone. Each takes as many bytes as its values have
//! ([`MetadataLayout`]): the longest first, so that none lies across a boundary, and of one length the most
//! used. All of them fit into the part of buffers in front of packets and their headers, and into one cache
//! line of it. In front of each wait, the annotations that are used behind it are written.
//!
//! A value is used if an instruction needs it that does more than compute: a branch, a store, a call. An
//! instruction that computes an unused value does not count.

use std::cmp::Reverse;

use millstream_ir::{Block, Function, Inst, Op, Prov, Size, Type, Value, ValueDef};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::ElementPort;
use crate::packet::{FIRST_NOTE, NOTE_NAMES, NOTE_SIZES, NOTES, TYPES, USUAL_NOTES};

/// Use of an annotation by a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnnotationUsage {
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
    /// Its place while the packet waits: bytes from the beginning of the data that is kept then.
    pub kept_at: Option<u32>,
    /// Bytes of it there.
    pub kept_bytes: u32,
    /// Number of inputs at which packets go on and in front of which it is written.
    pub kept_for: usize,
}

/// A field of the packet's context, which whoever receives the packet fills in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContextField {
    /// Its offset in `struct xdp_md`, in bytes; a word.
    pub offset: i32,
    /// Instructions that read it for others to look at.
    pub reads: usize,
}

/// Data that a program keeps of a packet beside its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MetadataUsage {
    /// Inputs of elements that packets can reach.
    pub inputs: usize,
    /// Of the context.
    pub fields: Vec<ContextField>,
    /// All annotations, most looked-at first.
    pub annotations: Vec<AnnotationUsage>,
    /// Bytes of the buffer of a packet that waits; 0 if none does.
    pub kept: u32,
    /// Inputs at which packets go on that have waited.
    pub resumptions: usize,
}

/// Fields of `struct xdp_md` that graphs know, by where they are: data, end, room in front, source, queue.
const FIELDS: [i32; 5] = [0, 4, 8, 12, 16];

/// Bytes at the beginning of each buffer that packets never use, wherever their heads are moved to:
/// `sizeof(struct xdp_frame)`. The data that is kept is at their end.
pub(crate) const RESERVED: u32 = 40;
const _: () = {
    let (mut all, mut note) = (4, 0);
    while note < USUAL_NOTES {
        all += NOTE_SIZES[note].bytes();
        note += 1;
    }
    assert!(all <= RESERVED, "the usual annotations and the number of an input must fit");
};
/// Size of the kept data is a multiple of this, so that it begins where a word may begin.
const WORD: u32 = 4;

/// Data that is kept of a packet that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MetadataLayout {
    /// The number of the input at which it goes on: its size, and where it is.
    pub(crate) number: (Size, i32),
    /// Annotations: which, their sizes, and where they are.
    pub(crate) notes: Vec<(usize, Size, i32)>,
    pub(crate) bytes: u32,
    /// Which of them are looked at behind an input; all, where it is not said.
    later: FxHashMap<ElementPort, [bool; NOTES]>,
}

/// A packet that waits: the input at which it goes on, and the values of its annotations.
pub(crate) type HeldPacket = (ElementPort, [Value; NOTES]);

impl MetadataLayout {
    /// These annotations, most looked-at first, of packets that go on at so many inputs.
    pub(crate) fn packed(
        notes: &[usize],
        inputs: usize,
        later: FxHashMap<ElementPort, [bool; NOTES]>,
    ) -> MetadataLayout {
        let number = match inputs {
            0..=0x100 => Size::B,
            0x101..=0x1_0000 => Size::H,
            _ => Size::W,
        };
        let each = notes.iter().map(|&note| (Some(note), NOTE_SIZES[note]));
        // The number is read first.
        let mut all: Vec<(Option<usize>, Size)> = [(None, number)].into_iter().chain(each).collect();
        all.sort_by_key(|(_, size)| Reverse(size.bytes()));
        let mut kept = MetadataLayout { number: (number, 0), notes: Vec::new(), bytes: 0, later };
        for (note, size) in all {
            let at = kept.bytes as i32;
            match note {
                None => kept.number = (size, at),
                Some(note) => kept.notes.push((note, size, at)),
            }
            kept.bytes += size.bytes();
        }
        kept.bytes = kept.bytes.next_multiple_of(WORD);
        kept
    }

    /// No annotations.
    pub(crate) fn nothing() -> MetadataLayout {
        MetadataLayout { number: (Size::W, 0), notes: Vec::new(), bytes: WORD, later: FxHashMap::default() }
    }

    /// Returns true if an annotation is used behind an input.
    pub(crate) fn is_live_at(&self, input: ElementPort, note: usize) -> bool {
        self.later.get(&input).is_none_or(|notes| notes[note])
    }
}

/// Values that are looked at.
struct ObservedValues(FxHashSet<Value>);

impl ObservedValues {
    /// Those that code looks at, and others.
    fn at(func: &Function, others: impl IntoIterator<Item = Value>) -> ObservedValues {
        let mut into: FxHashMap<Block, Vec<(Block, usize)>> = FxHashMap::default();
        let mut open: Vec<Value> = others.into_iter().collect();
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
        ObservedValues(found)
    }
}

/// The annotations of a packet that arrives at a block.
fn notes(func: &Function, block: Block) -> &[Value] {
    func.blocks[block].params.get(FIRST_NOTE..FIRST_NOTE + NOTES).unwrap_or_default()
}

/// Annotations to keep, by code that keeps none: those that are used behind these inputs, at which packets go
/// on that have waited. A packet that waits once more keeps for the second wait the same as for the first.
pub(crate) fn live_annotations(
    func: &Function,
    inputs: &[(ElementPort, Block)],
    held: &[HeldPacket],
) -> MetadataLayout {
    let mut later: FxHashMap<ElementPort, [bool; NOTES]> = FxHashMap::default();
    loop {
        let again = held.iter().flat_map(|(port, values)| {
            let needed = later.get(port).copied().unwrap_or_default();
            values.iter().zip(needed).filter(|(_, needed)| *needed).map(|(value, _)| *value)
        });
        let looked = ObservedValues::at(func, again.collect::<Vec<_>>());
        let needed = |block| {
            let mut needed = [false; NOTES];
            for (needed, value) in needed.iter_mut().zip(notes(func, block)) {
                *needed = looked.0.contains(value);
            }
            needed
        };
        let found = inputs.iter().map(|&(port, block)| (port, needed(block))).collect();
        if found == later {
            break;
        }
        later = found;
    }
    let uses = uses(func, &func.layout);
    let mut all: Vec<usize> = (0..NOTES).filter(|&note| later.values().any(|needed| needed[note])).collect();
    all.sort_by_key(|&note| (Reverse(uses[note]), note));
    match all.is_empty() {
        true => MetadataLayout::nothing(),
        false => MetadataLayout::packed(&all, inputs.len(), later),
    }
}

/// Numbers of instructions that use each annotation of an arriving packet, except for passing it on.
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

/// Knowledge about a block's parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConstantLattice {
    Nothing,
    Constant(i64),
    Varies,
}

impl ConstantLattice {
    fn and(self, other: ConstantLattice) -> ConstantLattice {
        match (self, other) {
            (ConstantLattice::Nothing, known) | (known, ConstantLattice::Nothing) => known,
            (a, b) if a == b => a,
            _ => ConstantLattice::Varies,
        }
    }
}

/// Parameters that have one constant on all ways.
fn constants(func: &Function) -> FxHashMap<Value, ConstantLattice> {
    let mut known: FxHashMap<Value, ConstantLattice> = FxHashMap::default();
    let mut changed = true;
    while changed {
        changed = false;
        for target in func.layout.iter().flat_map(|&block| func.targets(block)) {
            for (&arg, &param) in target.args.iter().zip(&func.blocks[target.block].params) {
                let new = match (func.as_const(arg), func.defs[arg]) {
                    (Some(value), _) => ConstantLattice::Constant(value),
                    (None, ValueDef::Param(..)) => {
                        known.get(&arg).copied().unwrap_or(ConstantLattice::Nothing)
                    }
                    _ => ConstantLattice::Varies,
                };
                let before = known.get(&param).copied().unwrap_or(ConstantLattice::Nothing);
                let after = before.and(new);
                changed |= after != before;
                known.insert(param, after);
            }
        }
    }
    known
}

/// The layout of a program with these blocks as its elements' inputs, which keeps these annotations of
/// packets that go on at `resumptions`.
pub(crate) fn layout(
    func: &Function,
    inputs: &[Block],
    kept: &MetadataLayout,
    resumptions: &[ElementPort],
) -> MetadataUsage {
    let (looked, known, uses) = (ObservedValues::at(func, []), constants(func), uses(func, inputs));
    let annotation = |note: usize| {
        let values = inputs.iter().filter_map(|&block| notes(func, block).get(note));
        let live: Vec<&Value> = values.filter(|value| looked.0.contains(*value)).collect();
        let constant = |value: &&&Value| matches!(known.get(**value), Some(ConstantLattice::Constant(_)));
        let place = kept.notes.iter().find(|(kept, ..)| *kept == note);
        AnnotationUsage {
            name: NOTE_NAMES[note],
            bytes: match TYPES[FIRST_NOTE + note] {
                Type::I1 => 1,
                _ => 8,
            },
            uses: uses[note],
            live: live.len(),
            constant: live.iter().filter(constant).count(),
            kept_at: place.map(|(_, _, at)| *at as u32),
            kept_bytes: place.map_or(0, |(_, size, _)| size.bytes()),
            kept_for: resumptions
                .iter()
                .filter(|port| place.is_some() && kept.is_live_at(**port, note))
                .count(),
        }
    };
    let mut annotations: Vec<AnnotationUsage> = (0..NOTES).map(annotation).collect();
    annotations.sort_by_key(|a| Reverse((a.live > 0, a.uses)));
    let fields = FIELDS.map(|offset| ContextField { offset, reads: reads(func, &looked, offset) });
    let kept = if resumptions.is_empty() { 0 } else { kept.bytes };
    let resumptions = resumptions.len();
    MetadataUsage { inputs: inputs.len(), fields: fields.to_vec(), annotations, kept, resumptions }
}

/// Loads of a field of the context that somebody looks at.
fn reads(func: &Function, looked: &ObservedValues, field: i32) -> usize {
    let is_read = |inst: Inst| {
        let data = &func.insts[inst];
        let (Op::Load { offset, .. }, Some(base)) = (&data.op, data.args.first()) else { return false };
        let result = data.result.expand().is_some_and(|result| looked.0.contains(&result));
        result && func.types[*base] == Type::Ptr(Prov::Ctx) && *offset == field
    };
    func.insts_in_order().filter(|&(_, inst)| is_read(inst)).count()
}
