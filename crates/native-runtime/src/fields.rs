//! Fields of packets' descriptors that a program accesses.
//!
//! A descriptor always has the packet's location. The other fields have a place in descriptors
//! (`DescriptorLayout`), and are written, only if somebody accesses them: the code, by loads from
//! the context, a helper that it calls, or the caller of the program.
//!
//! Invariant: if a context escapes (into memory, or to a helper that is not known here) all fields count as
//! accessed, at the offsets of `struct xdp_md`.

use millstream_ir::{Func, Function, Inst, Module, Op, Prov, Type, Value};
use millstream_isa::helpers::id;
use serde::{Deserialize, Serialize};

/// Fields that a program accesses, beside the packet's location.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DescriptorFieldSet(u8);

/// Helpers that store the target in the descriptor.
const REDIRECTS: [i32; 2] = [id::REDIRECT, id::REDIRECT_MAP];
/// Helpers that move the ends of the packet.
const ADJUSTS: [i32; 3] = [id::XDP_ADJUST_HEAD, id::XDP_ADJUST_META, id::XDP_ADJUST_TAIL];
/// Helpers that need only the packet's location; and the tail call, since the programs that it reaches are in
/// the module, too.
const NO_MORE: [i32; 5] =
    [id::XDP_GET_BUFF_LEN, id::XDP_LOAD_BYTES, id::XDP_STORE_BYTES, id::PERF_EVENT_OUTPUT, id::TAIL_CALL];

impl DescriptorFieldSet {
    /// Only the packet's location.
    pub const NONE: DescriptorFieldSet = DescriptorFieldSet(0);
    /// Extent of the room around the packet, and its metadata.
    pub const ROOM: DescriptorFieldSet = DescriptorFieldSet(1);
    /// The interface, or the source of a graph, from which it was received.
    pub const INGRESS: DescriptorFieldSet = DescriptorFieldSet(2);
    /// The queue of the interface.
    pub const QUEUE: DescriptorFieldSet = DescriptorFieldSet(4);
    /// Redirect target.
    pub const TARGET: DescriptorFieldSet = DescriptorFieldSet(8);
    /// The packet that it is a copy of.
    pub const ORIGIN: DescriptorFieldSet = DescriptorFieldSet(16);
    /// The program's verdict; graphs have none, they send packets.
    pub const VERDICT: DescriptorFieldSet = DescriptorFieldSet(32);
    /// All of them, accessed by code that knows them by their offsets in `struct xdp_md`.
    pub const FIXED: DescriptorFieldSet = DescriptorFieldSet(64);
    /// All of them.
    pub const ALL: DescriptorFieldSet = DescriptorFieldSet(127);
    /// Fields that are written when a packet is received.
    pub(crate) const RECEIVED: DescriptorFieldSet = DescriptorFieldSet(15);

    /// Fields that the functions of a module access, if it is entered by these programs, and those that are
    /// read after they return.
    pub fn of(module: &Module, programs: impl IntoIterator<Item = Func>) -> DescriptorFieldSet {
        if !programs.into_iter().all(|program| takes_context(module, program, 0)) {
            return DescriptorFieldSet::ALL;
        }
        let of = |func: &Function| {
            let insts = func.insts_in_order().map(|(_, inst)| of_inst(module, func, inst));
            insts.fold(DescriptorFieldSet::NONE, DescriptorFieldSet::and)
        };
        let ops =
            || module.funcs.values().flat_map(|f| f.insts_in_order().map(|(_, inst)| &f.insts[inst].op));
        let sends = ops().any(|op| matches!(op, Op::Emit {}));
        let answer = if sends { DescriptorFieldSet::NONE } else { DescriptorFieldSet::VERDICT };
        module.funcs.values().map(of).fold(answer, DescriptorFieldSet::and)
    }

    /// Union of both sets.
    #[must_use]
    pub const fn and(self, other: DescriptorFieldSet) -> DescriptorFieldSet {
        DescriptorFieldSet(self.0 | other.0)
    }

    /// Returns true if this set includes the other.
    pub const fn has(self, other: DescriptorFieldSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Intersection of both sets.
    #[must_use]
    pub(crate) const fn of_these(self, others: DescriptorFieldSet) -> DescriptorFieldSet {
        DescriptorFieldSet(self.0 & others.0)
    }

    /// Conversion to a number below 128.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn of_bits(bits: u8) -> DescriptorFieldSet {
        // Fixed fields imply all fields.
        if bits & DescriptorFieldSet::FIXED.0 != 0 {
            DescriptorFieldSet::ALL
        } else {
            DescriptorFieldSet(bits)
        }
    }
}

fn is_context(func: &Function, value: Value) -> bool {
    func.types[value] == Type::Ptr(Prov::Ctx)
}

fn of_inst(module: &Module, func: &Function, inst: Inst) -> DescriptorFieldSet {
    let data = &func.insts[inst];
    let mut contexts = (0..data.args.len()).filter(|&at| is_context(func, data.args[at])).peekable();
    let has_any = contexts.peek().is_some();
    match &data.op {
        Op::Load { size, offset, .. } if has_any => of_load(*offset, size.bytes() as i32),
        // A copy has all fields of the original, in a buffer of its own; a waiting packet has annotations at
        // the beginning of its buffer.
        Op::ClonePacket {} => DescriptorFieldSet::ROOM.and(DescriptorFieldSet::ORIGIN),
        Op::Hold { .. } | Op::Pull { .. } => DescriptorFieldSet::ROOM,
        Op::SetBounds {} | Op::Emit {} | Op::Cmp { .. } | Op::Branch { .. } => handed_on(func, inst),
        Op::Helper { id } if REDIRECTS.contains(id) => DescriptorFieldSet::TARGET,
        Op::Helper { id } if ADJUSTS.contains(id) => DescriptorFieldSet::ROOM,
        Op::Helper { id } if NO_MORE.contains(id) => DescriptorFieldSet::NONE,
        Op::Call { func: callee } if contexts.all(|at| takes_context(module, *callee, at)) => {
            DescriptorFieldSet::NONE
        }
        _ if has_any => DescriptorFieldSet::ALL,
        _ => handed_on(func, inst),
    }
}

/// Fields accessed through a context that is passed to block parameters: none, as long as these are known to
/// be a context.
fn handed_on(func: &Function, inst: Inst) -> DescriptorFieldSet {
    let is_lost = func.insts[inst].targets.iter().any(|target| {
        let params = &func.blocks[target.block].params;
        target.args.iter().zip(params).any(|(&arg, &param)| is_context(func, arg) && !is_context(func, param))
    });
    if is_lost { DescriptorFieldSet::ALL } else { DescriptorFieldSet::NONE }
}

/// Returns true if a function takes a context as this parameter.
fn takes_context(module: &Module, callee: Func, at: usize) -> bool {
    let callee = &module.funcs[callee];
    let first = callee.layout.first().map(|&block| &callee.blocks[block].params);
    first.and_then(|params| params.get(at)).is_some_and(|&param| is_context(callee, param))
}

/// Fields read by a load of this many bytes of the context; fields of `struct xdp_md` have four bytes each.
fn of_load(offset: i32, bytes: i32) -> DescriptorFieldSet {
    match (offset, bytes) {
        // The last one is the egress interface, which only programs in device maps receive.
        (0 | 4 | 20, 4) => DescriptorFieldSet::NONE,
        (8, 4) => DescriptorFieldSet::ROOM,
        (12, 4) => DescriptorFieldSet::INGRESS,
        (16, 4) => DescriptorFieldSet::QUEUE,
        _ => DescriptorFieldSet::ALL,
    }
}

#[cfg(test)]
mod tests {
    use millstream_ir::text::parse_module;
    use millstream_ir::{Linkage, MemFlags, Size};

    use super::*;

    /// Fields of a program that loads from the context at this offset and calls this helper with it.
    fn of(offset: i32, helper: Option<i32>) -> DescriptorFieldSet {
        let mut module = Module::default();
        let mut func = Function::new("program", Linkage::Program { prog_type: 6 });
        let block = func.add_block();
        let context = func.add_param(block, Type::Ptr(Prov::Ctx));
        let mut at = func.at_end(block);
        let load = Op::Load { size: Size::W, sext: false, offset, flags: MemFlags::default() };
        let mut value = at.value(load, [context], Type::I64);
        if let Some(id) = helper {
            value = at.value(Op::Helper { id }, [context, value], Type::I64);
        }
        at.effect(Op::Return {}, [value], []);
        let program = module.funcs.push(func);
        DescriptorFieldSet::of(&module, [program])
    }

    /// Adds the fields of any program that returns a verdict.
    fn verdict_and(other: DescriptorFieldSet) -> DescriptorFieldSet {
        DescriptorFieldSet::VERDICT.and(other)
    }

    #[test]
    fn fields_are_looked_at_by_loads_and_helpers() {
        assert_eq!([of(0, None), of(4, None), of(20, None)], [DescriptorFieldSet::VERDICT; 3]);
        let fields = [DescriptorFieldSet::ROOM, DescriptorFieldSet::INGRESS, DescriptorFieldSet::QUEUE]
            .map(verdict_and);
        assert_eq!([of(8, None), of(12, None), of(16, None)], fields);
        assert_eq!(of(2, None), DescriptorFieldSet::ALL, "no field");
        assert_eq!(of(12, Some(44)), verdict_and(DescriptorFieldSet::INGRESS.and(DescriptorFieldSet::ROOM)));
        assert_eq!(
            [of(0, Some(23)), of(0, Some(189)), of(0, Some(12))],
            [DescriptorFieldSet::TARGET, DescriptorFieldSet::NONE, DescriptorFieldSet::NONE].map(verdict_and)
        );
        assert_eq!(of(0, Some(25)), DescriptorFieldSet::VERDICT);
        assert_eq!(of(0, Some(7)), DescriptorFieldSet::ALL, "a helper that is not known here");
    }

    #[test]
    fn a_context_that_cannot_be_followed_has_all_fields_looked_at() {
        let text = |param: &str, then: &str| {
            let text = format!(
                "fn0 \"program\" static returns {{\nblock0(v0: {param}):\n  v1: i64 = const.2\n\
                 {then}\n  return v1\n}}\n"
            );
            let module = parse_module(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            let programs: Vec<Func> = module.funcs.keys().collect();
            DescriptorFieldSet::of(&module, programs)
        };
        assert_eq!(text("ptr(ctx)", ""), DescriptorFieldSet::VERDICT);
        assert_eq!(text("any", ""), DescriptorFieldSet::ALL, "it is not known to be one");
        assert_eq!(text("ptr(ctx)", "  v2: i64 = alu.add.w64 v0, v1"), DescriptorFieldSet::ALL);
    }
}
