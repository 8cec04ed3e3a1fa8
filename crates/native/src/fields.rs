//! Fields of packets' descriptors that a program accesses.
//!
//! A descriptor always has the packet's location. The other fields have a place in descriptors
//! ([`crate::Layout`]), and are written, only if somebody accesses them: the code, by loads from the context,
//! a helper that it calls, or the caller of the program.
//!
//! Invariant: if a context escapes (into memory, or to a helper that is not known here) all fields count as
//! accessed, at the offsets of `struct xdp_md`.

use millstream_ir::{Func, Function, Inst, Module, Op, Prov, Type, Value};
use serde::{Deserialize, Serialize};

/// Fields that a program accesses, beside the packet's location.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fields(u8);

/// `bpf_redirect`, `bpf_redirect_map`: they store the target in the descriptor.
const REDIRECTS: [i32; 2] = [23, 51];
/// `bpf_xdp_adjust_head`, `bpf_xdp_adjust_meta`, `bpf_xdp_adjust_tail`.
const ADJUSTS: [i32; 3] = [44, 54, 65];
/// `bpf_xdp_get_buff_len`, `bpf_xdp_load_bytes`, `bpf_xdp_store_bytes`, `bpf_perf_event_output`: these need
/// only the packet's location. `bpf_tail_call`: the programs that it reaches are in the module, too.
const NO_MORE: [i32; 5] = [188, 189, 190, 25, 12];

impl Fields {
    /// Only the packet's location.
    pub const NONE: Fields = Fields(0);
    /// Extent of the room around the packet, and its metadata.
    pub const ROOM: Fields = Fields(1);
    /// The interface, or the source of a graph, from which it was received.
    pub const INGRESS: Fields = Fields(2);
    /// The queue of the interface.
    pub const QUEUE: Fields = Fields(4);
    /// Redirect target.
    pub const TARGET: Fields = Fields(8);
    /// The packet that it is a copy of.
    pub const ORIGIN: Fields = Fields(16);
    /// The program's verdict; graphs have none, they send packets.
    pub const VERDICT: Fields = Fields(32);
    /// All of them, accessed by code that knows them by their offsets in `struct xdp_md`.
    pub const FIXED: Fields = Fields(64);
    /// All of them.
    pub const ALL: Fields = Fields(127);
    /// Fields that are written when a packet is received.
    pub(crate) const RECEIVED: Fields = Fields(15);

    /// Fields that the functions of a module access, if it is entered by these programs, and those that are
    /// read after they return.
    pub(crate) fn of(module: &Module, programs: impl IntoIterator<Item = Func>) -> Fields {
        if !programs.into_iter().all(|program| takes_context(module, program, 0)) {
            return Fields::ALL;
        }
        let of = |func: &Function| {
            let insts = func.insts_in_order().map(|(_, inst)| of_inst(module, func, inst));
            insts.fold(Fields::NONE, Fields::and)
        };
        let ops =
            || module.funcs.values().flat_map(|f| f.insts_in_order().map(|(_, inst)| &f.insts[inst].op));
        let sends = ops().any(|op| matches!(op, Op::Emit {}));
        let answer = if sends { Fields::NONE } else { Fields::VERDICT };
        module.funcs.values().map(of).fold(answer, Fields::and)
    }

    /// Union of both sets.
    #[must_use]
    pub const fn and(self, other: Fields) -> Fields {
        Fields(self.0 | other.0)
    }

    /// Returns true if this set includes the other.
    pub const fn has(self, other: Fields) -> bool {
        self.0 & other.0 == other.0
    }

    /// Intersection of both sets.
    #[must_use]
    pub(crate) const fn of_these(self, others: Fields) -> Fields {
        Fields(self.0 & others.0)
    }

    /// Conversion to a number below 128.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn of_bits(bits: u8) -> Fields {
        // Fixed fields imply all fields.
        if bits & Fields::FIXED.0 != 0 { Fields::ALL } else { Fields(bits) }
    }
}

fn is_context(func: &Function, value: Value) -> bool {
    func.types[value] == Type::Ptr(Prov::Ctx)
}

fn of_inst(module: &Module, func: &Function, inst: Inst) -> Fields {
    let data = &func.insts[inst];
    let mut contexts = (0..data.args.len()).filter(|&at| is_context(func, data.args[at])).peekable();
    let has_any = contexts.peek().is_some();
    match &data.op {
        Op::Load { size, offset, .. } if has_any => of_load(*offset, size.bytes() as i32),
        // A copy has all fields of the original, in a buffer of its own; a waiting packet has annotations at
        // the beginning of its buffer.
        Op::ClonePacket {} => Fields::ROOM.and(Fields::ORIGIN),
        Op::Hold { .. } | Op::Pull { .. } => Fields::ROOM,
        Op::SetBounds {} | Op::Emit {} | Op::Cmp { .. } | Op::Branch { .. } => handed_on(func, inst),
        Op::Helper { id } if REDIRECTS.contains(id) => Fields::TARGET,
        Op::Helper { id } if ADJUSTS.contains(id) => Fields::ROOM,
        Op::Helper { id } if NO_MORE.contains(id) => Fields::NONE,
        Op::Call { func: callee } if contexts.all(|at| takes_context(module, *callee, at)) => Fields::NONE,
        _ if has_any => Fields::ALL,
        _ => handed_on(func, inst),
    }
}

/// Fields accessed through a context that is passed to block parameters: none, as long as these are known to
/// be a context.
fn handed_on(func: &Function, inst: Inst) -> Fields {
    let is_lost = func.insts[inst].targets.iter().any(|target| {
        let params = &func.blocks[target.block].params;
        target.args.iter().zip(params).any(|(&arg, &param)| is_context(func, arg) && !is_context(func, param))
    });
    if is_lost { Fields::ALL } else { Fields::NONE }
}

/// Returns true if a function takes a context as this parameter.
fn takes_context(module: &Module, callee: Func, at: usize) -> bool {
    let callee = &module.funcs[callee];
    let first = callee.layout.first().map(|&block| &callee.blocks[block].params);
    first.and_then(|params| params.get(at)).is_some_and(|&param| is_context(callee, param))
}

/// Fields read by a load of this many bytes of the context; fields of `struct xdp_md` have four bytes each.
fn of_load(offset: i32, bytes: i32) -> Fields {
    match (offset, bytes) {
        // The last one is the egress interface, which only programs in device maps receive.
        (0 | 4 | 20, 4) => Fields::NONE,
        (8, 4) => Fields::ROOM,
        (12, 4) => Fields::INGRESS,
        (16, 4) => Fields::QUEUE,
        _ => Fields::ALL,
    }
}

#[cfg(test)]
mod tests {
    use millstream_ir::text::parse_module;
    use millstream_ir::{Linkage, MemFlags, Size};

    use super::*;

    /// Fields of a program that loads from the context at this offset and calls this helper with it.
    fn of(offset: i32, helper: Option<i32>) -> Fields {
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
        Fields::of(&module, [program])
    }

    /// Adds the fields of any program that returns a verdict.
    fn verdict_and(other: Fields) -> Fields {
        Fields::VERDICT.and(other)
    }

    #[test]
    fn fields_are_looked_at_by_loads_and_helpers() {
        assert_eq!([of(0, None), of(4, None), of(20, None)], [Fields::VERDICT; 3]);
        let fields = [Fields::ROOM, Fields::INGRESS, Fields::QUEUE].map(verdict_and);
        assert_eq!([of(8, None), of(12, None), of(16, None)], fields);
        assert_eq!(of(2, None), Fields::ALL, "no field");
        assert_eq!(of(12, Some(44)), verdict_and(Fields::INGRESS.and(Fields::ROOM)));
        assert_eq!(
            [of(0, Some(23)), of(0, Some(189)), of(0, Some(12))],
            [Fields::TARGET, Fields::NONE, Fields::NONE].map(verdict_and)
        );
        assert_eq!(of(0, Some(25)), Fields::VERDICT);
        assert_eq!(of(0, Some(7)), Fields::ALL, "a helper that is not known here");
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
            Fields::of(&module, programs)
        };
        assert_eq!(text("ptr(ctx)", ""), Fields::VERDICT);
        assert_eq!(text("any", ""), Fields::ALL, "it is not known to be one");
        assert_eq!(text("ptr(ctx)", "  v2: i64 = alu.add.w64 v0, v1"), Fields::ALL);
    }
}
