//! Facts about registers and stack at each instruction: a forward dataflow analysis over the blocks of a
//! function.
//!
//! Numbers are [`Scalar`]s, which the kernel's verifier tracks, too, so that it can see the facts on which
//! proofs rest. Addresses have the space into which they point. Two registers with one `id` hold the same
//! value (numbers) or count from the same base (addresses). At a merge point, ids that differ are replaced by
//! a new one, so that an id never outlives a round of a loop.

use std::collections::{BTreeMap, BTreeSet};

use millstream_isa::absint::Scalar;
use millstream_isa::{Insn, MapType, Reg};
use millstream_object::{FuncId, Object, ProgramType};
use millstream_prove::window::AddressSpace;

use crate::code::FunctionCode;
use crate::transfer;

/// The space of the context.
pub(crate) const CONTEXT: AddressSpace = AddressSpace::Other(0);
/// The space of the packet.
pub(crate) const PACKET: AddressSpace = AddressSpace::Other(1);

/// The space of the values of a map.
pub(crate) fn values_of(map: u32) -> AddressSpace {
    AddressSpace::Other(2 + map)
}

/// Bytes of a frame.
pub(crate) const FRAME: usize = 512;
/// Visits of a block after which ranges are widened.
const PATIENCE: usize = 6;

/// Abstract value of a register.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum RegisterKind {
    /// Uninitialised: must not be read.
    Uninit,
    /// A number.
    Number(Scalar),
    /// An address: the distance in bytes from the base that the id names, or from the upper end of the frame.
    Address(AddressSpace, i64),
    /// An unknown address in the frame.
    Frame,
    /// The address of a value of a space, or null.
    Maybe(AddressSpace),
    /// A map.
    Map(u32),
    /// Anything that may be read.
    Other,
}

/// A register, and the name of its value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct RegisterFact {
    pub(crate) kind: RegisterKind,
    pub(crate) id: u32,
}

/// A byte of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StackCell {
    /// Never written.
    Uninit,
    /// Written.
    Unknown,
    /// This byte.
    Byte(u8),
}

/// Facts at one place.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct AbstractState {
    pub(crate) regs: [RegisterFact; 11],
    pub(crate) stack: Vec<StackCell>,
    /// Values of 8 bytes that were stored whole, by offset.
    pub(crate) spills: BTreeMap<i16, RegisterFact>,
}

/// Kind of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContextType {
    Xdp,
    Skb,
    Other,
}

/// A map: its type, and the sizes of keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapSizes {
    pub(crate) kind: MapType,
    pub(crate) key: u32,
    pub(crate) value: u32,
}

/// Facts from outside the function that the analysis needs.
#[derive(Clone, Debug)]
pub(crate) struct FunctionContext {
    pub(crate) context: ContextType,
    /// True if the function is a program, which gets the context and returns 32 bits.
    pub(crate) program: bool,
    /// The maps.
    pub(crate) maps: Vec<MapSizes>,
    /// Look-ups whose results are used without a test for null, by the ids of their results: they are not
    /// null, since the kernel has accepted the function.
    pub(crate) found: BTreeSet<u32>,
}

impl FunctionContext {
    pub(crate) fn new(object: &Object, func: FuncId) -> FunctionContext {
        let program = object.programs.iter().find(|p| p.func == func);
        let map = |m: &millstream_object::ObjectMap| MapSizes {
            kind: m.spec.map_type,
            key: m.spec.key_size,
            value: m.spec.value_size,
        };
        FunctionContext {
            context: program.map_or(ContextType::Other, |p| context(p.kind.program_type)),
            program: program.is_some(),
            maps: object.maps.iter().map(map).collect(),
            found: BTreeSet::new(),
        }
    }
}

fn context(kind: ProgramType) -> ContextType {
    use ProgramType as P;
    match kind {
        P::XDP => ContextType::Xdp,
        P::SCHED_CLS | P::SCHED_ACT | P::SOCKET_FILTER | P::CGROUP_SKB | P::SK_SKB => ContextType::Skb,
        P::LWT_IN | P::LWT_OUT | P::LWT_XMIT | P::LWT_SEG6LOCAL | P::FLOW_DISSECTOR => ContextType::Skb,
        _ => ContextType::Other,
    }
}

impl AbstractState {
    /// The state at the entry of a function.
    pub(crate) fn entry(world: &FunctionContext) -> AbstractState {
        let mut regs = [RegisterFact { kind: RegisterKind::Uninit, id: 0 }; 11];
        for (n, fact) in regs.iter_mut().enumerate() {
            fact.id = joined(usize::MAX >> 8, n);
            fact.kind = match n {
                1 if world.program => RegisterKind::Address(CONTEXT, 0),
                1..=5 if !world.program => RegisterKind::Other,
                10 => RegisterKind::Address(AddressSpace::Stack, 0),
                _ => RegisterKind::Uninit,
            };
        }
        AbstractState { regs, stack: vec![StackCell::Uninit; FRAME], spills: BTreeMap::new() }
    }

    pub(crate) fn get(&self, r: Reg) -> RegisterFact {
        self.regs[r.index()]
    }

    /// Joins the state of another path to a block. `widen` widens ranges that grow.
    fn join(&mut self, other: &AbstractState, block: usize, widen: bool) -> bool {
        let before = self.clone();
        for (n, (a, b)) in self.regs.iter_mut().zip(&other.regs).enumerate() {
            *a = join(*a, *b, joined(block, n), widen);
        }
        for (a, b) in self.stack.iter_mut().zip(&other.stack) {
            *a = match (*a, *b) {
                (x, y) if x == y => x,
                (StackCell::Uninit, _) | (_, StackCell::Uninit) => StackCell::Uninit,
                _ => StackCell::Unknown,
            };
        }
        self.spills.retain(|at, _| other.spills.contains_key(at));
        for (at, a) in &mut self.spills {
            *a = join(*a, other.spills[at], joined(block, 16 + (-*at as usize) / 8), widen);
        }
        *self != before
    }
}

/// The id of a value at a merge point.
fn joined(block: usize, place: usize) -> u32 {
    1 << 31 | (block as u32 & 0xff_ffff) << 7 | place as u32
}

fn join(a: RegisterFact, b: RegisterFact, id: u32, widen: bool) -> RegisterFact {
    let id = if a.id == b.id { a.id } else { id };
    let kind = match (a.kind, b.kind) {
        (x, y)
            if x == y && (id == a.id || !matches!(x, RegisterKind::Address(AddressSpace::Other(_), _))) =>
        {
            x
        }
        (RegisterKind::Uninit, _) | (_, RegisterKind::Uninit) => RegisterKind::Uninit,
        (RegisterKind::Number(x), RegisterKind::Number(y)) => {
            RegisterKind::Number(if widen { x.widen(&y) } else { x.join(&y) })
        }
        (
            RegisterKind::Address(AddressSpace::Stack, _) | RegisterKind::Frame,
            RegisterKind::Address(AddressSpace::Stack, _) | RegisterKind::Frame,
        ) => RegisterKind::Frame,
        (RegisterKind::Address(s, x), RegisterKind::Address(t, y)) if s == t => {
            // Two offsets from one base are two places: the new base is neither.
            let id = if a.id == b.id && x != y { id ^ 1 << 30 } else { id };
            return RegisterFact { kind: RegisterKind::Address(s, 0), id };
        }
        (RegisterKind::Maybe(s), RegisterKind::Maybe(t)) if s == t => RegisterKind::Maybe(s),
        _ => RegisterKind::Other,
    };
    RegisterFact { kind, id }
}

/// Facts at the beginning of each block; [`None`] if it is unreachable. Records in `world` the look-ups that
/// always succeed.
pub(crate) fn analyze(code: &FunctionCode, world: &mut FunctionContext) -> Vec<Option<AbstractState>> {
    world.found.clear();
    loop {
        let facts = flow(code, world);
        let known = world.found.len();
        for (n, block) in code.blocks.iter().enumerate() {
            let Some(mut state) = facts[n].clone() else { continue };
            for (i, line) in block.lines.iter().enumerate() {
                if let Insn::Load { src: base, .. } | Insn::Store { dst: base, .. } = line.insn
                    && let RegisterFact { kind: RegisterKind::Maybe(_), id } = state.get(base)
                {
                    world.found.insert(id);
                }
                transfer::step(&mut state, line, world, block.first + i as u32);
            }
        }
        if world.found.len() == known {
            return facts;
        }
    }
}

fn flow(code: &FunctionCode, world: &FunctionContext) -> Vec<Option<AbstractState>> {
    let mut at: Vec<Option<AbstractState>> = vec![None; code.blocks.len()];
    let mut visits = vec![0usize; code.blocks.len()];
    at[0] = Some(AbstractState::entry(world));
    let mut todo = std::collections::BTreeSet::from([0usize]);
    while let Some(n) = todo.pop_first() {
        let Some(mut state) = at[n].clone() else { continue };
        for (i, line) in code.blocks[n].lines.iter().enumerate() {
            transfer::step(&mut state, line, world, code.blocks[n].first + i as u32);
        }
        for &to in &code.blocks[n].next {
            let Some(out) = transfer::along(&state, code, n, to) else { continue };
            let changed = match &mut at[to] {
                None => {
                    at[to] = Some(out);
                    true
                }
                Some(known) => {
                    visits[to] += 1;
                    known.join(&out, to, visits[to] > PATIENCE)
                }
            };
            if changed {
                todo.insert(to);
            }
        }
    }
    at
}
