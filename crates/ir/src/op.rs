//! The operations, each declared once.
//!
//! The declaration gives the enum, its mnemonics, the names of attributes and arguments, the kind of result
//! and the effects; printer and parser (`text`) follow from it through [`Attr`]. See
//! `docs/how-to-add-an-op.md`.

use smallvec::SmallVec;

use crate::entities::*;
use crate::types::{Prov, Type};
use crate::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};

/// Effects of an operation beside its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Reads memory (stack, packet, map values, context, kernel objects).
    pub reads: bool,
    /// Writes memory.
    pub writes: bool,
    /// Has an effect beside memory: a call, an emitted packet, a lock.
    pub calls: bool,
    /// Packet pointers made before are invalid after it.
    pub moves_packet: bool,
    /// Ends a block.
    pub terminates: bool,
}

impl Effects {
    /// Neither reads nor writes nor calls.
    pub const PURE: Effects =
        Effects { reads: false, writes: false, calls: false, moves_packet: false, terminates: false };
    /// Reads memory.
    pub const READS: Effects = Effects { reads: true, ..Effects::PURE };
    /// Writes memory.
    pub const WRITES: Effects = Effects { writes: true, ..Effects::PURE };
    /// Reads and writes memory.
    pub const READS_WRITES: Effects = Effects { reads: true, writes: true, ..Effects::PURE };
    /// An opaque call that leaves the packet where it is.
    pub const CALL: Effects = Effects { reads: true, writes: true, calls: true, ..Effects::PURE };
    /// A call of which nothing is known.
    pub const OPAQUE: Effects = Effects { moves_packet: true, ..Effects::CALL };
    /// Ends a block and does nothing else.
    pub const TERM: Effects = Effects { terminates: true, ..Effects::PURE };

    /// Returns true if the operation may be removed when its result is unused, and merged with one that has
    /// equal operands.
    pub const fn is_pure(self) -> bool {
        !(self.reads || self.writes || self.calls || self.moves_packet || self.terminates)
    }

    /// Returns true if the operation may be removed when its result is unused.
    pub const fn is_removable(self) -> bool {
        !(self.writes || self.calls || self.moves_packet || self.terminates)
    }
}

/// Place of a piece of a key or value in its memory object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyPiece {
    /// Byte offset in the key or value.
    pub offset: u16,
    /// Bytes, as one store.
    pub size: Size,
}

/// The layout of a key or value that is given as values: one piece an argument, ascending, without overlap.
/// Bytes that no piece covers are undefined.
pub type KeyLayout = SmallVec<[KeyPiece; 2]>;

/// Fate of a packet; the back end chooses the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketVerdict {
    /// Drop, as an error.
    Aborted,
    /// Drop.
    Drop,
    /// Hand to the stack.
    Pass,
    /// Send out of the port on which it came.
    Tx,
    /// Send to the target of a preceding redirect.
    Redirect,
}

/// An end of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QueueEnd {
    /// The end from which packets are taken.
    Front,
    /// Behind all others.
    Back,
}

/// Attributes of a memory access beside base and displacement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemFlags {
    /// The displacement (and size) is subject to this CO-RE relocation: its final value is unknown, and the
    /// access must be neither merged, split, widened nor removed in favour of another.
    pub core: Option<Core>,
    /// Must be kept, in order, as it stands.
    pub volatile: bool,
}

/// Kind of an operation's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultKind {
    /// No result.
    None,
    /// A result whose type is stated with the value.
    Value,
}

macro_rules! ops {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident $mnemonic:literal { $($(#[doc = $fdoc:literal])* $field:ident : $fty:ty),* $(,)? }
            ($($arg:ident),* $(; $rest:ident ..)?) -> $result:ident, $effects:expr;
    )*) => {
        /// An operation with its attributes. Arguments, targets and result are in [`crate::InstData`].
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Op {
            $( $(#[doc = $doc])* $name { $($(#[doc = $fdoc])* $field: $fty),* }, )*
        }

        impl Op {
            /// The word in the text form.
            pub const fn mnemonic(&self) -> &'static str {
                match self { $( Op::$name { .. } => $mnemonic, )* }
            }

            /// Names of the fixed arguments.
            pub const fn arg_names(&self) -> &'static [&'static str] {
                match self { $( Op::$name { .. } => &[$(stringify!($arg)),*], )* }
            }

            /// Returns true if further arguments may follow the fixed ones.
            pub const fn is_variadic(&self) -> bool {
                match self { $( Op::$name { .. } => ops!(@rest $($rest)?), )* }
            }

            /// Kind of the result, or none.
            pub const fn result_kind(&self) -> ResultKind {
                match self { $( Op::$name { .. } => ResultKind::$result, )* }
            }

            /// Effects of the operation itself; those of a call may be narrowed by the callee.
            pub const fn effects(&self) -> Effects {
                match self { $( Op::$name { .. } => $effects, )* }
            }

            /// Prints the attributes in order, each by [`Attr::print`].
            pub fn print_attrs(&self, out: &mut Vec<String>) {
                match self { $( Op::$name { $($field),* } => { $( out.push($field.print()); )* let _ = &out; } )* }
            }

            /// Builds an operation from its mnemonic and its attributes in order.
            ///
            /// # Errors
            /// A sentence that says which attribute is missing, surplus or malformed.
            pub fn parse(mnemonic: &str, attrs: &[&str]) -> Result<Op, String> {
                let mut attrs = attrs.iter();
                let op = match mnemonic {
                    $( $mnemonic => Op::$name { $(
                        $field: <$fty as Attr>::parse(attrs.next().ok_or_else(
                            || format!("`{mnemonic}` lacks its attribute `{}`", stringify!($field)))?)?
                    ),* }, )*
                    other => return Err(format!("unknown operation `{other}`")),
                };
                match attrs.next() {
                    Some(extra) => Err(format!("`{mnemonic}` has no attribute `{extra}`")),
                    None => Ok(op),
                }
            }

            /// Mnemonic, one-line description and argument names of every operation, for documentation.
            pub const ALL: &'static [(&'static str, &'static str, &'static [&'static str])] = &[
                $( ($mnemonic, concat!($($doc),*), &[$(stringify!($arg)),*]), )*
            ];
        }
    };
    (@rest) => { false };
    (@rest $rest:ident) => { true };
}

ops! {
    /// A 64-bit constant.
    Const "const" { /// Its value.
        value: i64 } () -> Value, Effects::PURE;
    /// An undefined word: any bits.
    Undef "undef" {} () -> Value, Effects::PURE;
    /// A constant that a CO-RE relocation supplies at load time.
    CoreConst "core_const" { /// The relocation.
        core: Core, /// Value in the object's own BTF, to be encoded.
        local: i64, /// Encoded as `ld_imm64`.
        wide: bool } () -> Value, Effects::PURE;
    /// The address of a map object.
    MapAddr "map_addr" { /// The map.
        map: Map } () -> Value, Effects::PURE;
    /// The address of a byte of the single value of an array map (global data).
    MapValueAddr "map_value_addr" { /// The map.
        map: Map, /// Byte offset in the value.
        offset: u32 } () -> Value, Effects::PURE;
    /// The address of a function, for callbacks.
    FuncAddr "func_addr" { /// The function.
        func: Func } () -> Value, Effects::PURE;
    /// The address or value of an external symbol.
    ExternAddr "extern_addr" { /// The symbol.
        ext: Extern } () -> Value, Effects::PURE;
    /// The address of a byte of a stack object.
    StackAddr "stack_addr" { /// The object.
        slot: Slot, /// Byte offset from its start; may lie outside.
        offset: i32 } () -> Value, Effects::PURE;
    /// The fate of the packet, as the number that the target uses for it.
    Verdict "verdict" { /// The verdict.
        verdict: PacketVerdict } () -> Value, Effects::PURE;

    /// Two-operand arithmetic. Of width 32 it reads low halves and zero-extends.
    Alu "alu" { /// The operation.
        op: AluOp, /// Its width.
        width: Width } (a, b) -> Value, Effects::PURE;
    /// Two's complement negation.
    Neg "neg" { /// Its width.
        width: Width } (a) -> Value, Effects::PURE;
    /// The low half, zero-extended.
    Zext "zext" {} (a) -> Value, Effects::PURE;
    /// Sign-extends the low bits.
    Sext "sext" { /// Bits taken: 8, 16 or 32.
        bits: u8, /// Width of the result; the rest is zero.
        width: Width } (a) -> Value, Effects::PURE;
    /// Changes the byte order of the low bits and zero-extends.
    Swap "swap" { /// Relative to the host, or not.
        kind: SwapKind, /// 16, 32 or 64.
        bits: u8 } (a) -> Value, Effects::PURE;
    /// Converts between address spaces (arena).
    AddrSpaceCast "addr_space_cast" { /// The two spaces as encoded.
        spaces: i32 } (a) -> Value, Effects::PURE;
    /// A comparison as a truth value.
    Cmp "cmp" { /// The condition.
        cond: Cond, /// Width of the comparison.
        width: Width } (a, b) -> Value, Effects::PURE;
    /// `yes` where the truth value is 1, else `no`.
    Select "select" {} (truth, yes, no) -> Value, Effects::PURE;

    /// Reads memory at base + offset.
    Load "load" { /// Bytes read.
        size: Size, /// Sign-extend to 64 bits.
        sext: bool, /// Displacement.
        offset: i32, /// Constraints.
        flags: MemFlags } (base) -> Value, Effects::READS;
    /// Writes memory at base + offset.
    Store "store" { /// Bytes written.
        size: Size, /// Displacement.
        offset: i32, /// Constraints.
        flags: MemFlags } (base, value) -> None, Effects::WRITES;
    /// Atomic read-modify-write without result.
    Atomic "atomic" { /// The operation.
        op: AtomicOp, /// Bytes accessed.
        size: Size, /// Displacement.
        offset: i32 } (base, value) -> None, Effects::READS_WRITES;
    /// Atomic read-modify-write that gives the old value.
    AtomicFetch "atomic_fetch" { /// The operation.
        op: AtomicOp, /// Bytes accessed.
        size: Size, /// Displacement.
        offset: i32 } (base, value) -> Value, Effects::READS_WRITES;
    /// Atomic compare and exchange; gives the old value.
    CmpXchg "cmpxchg" { /// Bytes accessed.
        size: Size, /// Displacement.
        offset: i32 } (base, expected, value) -> Value, Effects::READS_WRITES;
    /// Load with acquire order.
    LoadAcquire "load_acquire" { /// Bytes read.
        size: Size, /// Displacement.
        offset: i32 } (base) -> Value, Effects::READS_WRITES;
    /// Store with release order.
    StoreRelease "store_release" { /// Bytes written.
        size: Size, /// Displacement.
        offset: i32 } (base, value) -> None, Effects::READS_WRITES;
    /// Legacy packet load; leaves the program when out of bounds.
    LegacyLoad "legacy_load" { /// Bytes read, in network order.
        size: Size, /// Constant part of the offset.
        offset: i32 } (ctx; index ..) -> Value, Effects::CALL;

    /// Looks up a key given as values; null where absent.
    MapLookup "map_lookup" { /// The map.
        map: Map, /// Layout of the key.
        key: KeyLayout } (; key_values ..) -> Value, Effects::CALL;
    /// Inserts or replaces: key pieces, then value pieces, then flags.
    MapUpdate "map_update" { /// The map.
        map: Map, /// Layout of the key.
        key: KeyLayout, /// Layout of the value.
        value: KeyLayout } (; key_value_flags ..) -> Value, Effects::CALL;
    /// Deletes a key given as values.
    MapDelete "map_delete" { /// The map.
        map: Map, /// Layout of the key.
        key: KeyLayout } (; key_values ..) -> Value, Effects::CALL;
    /// The result of the first entry of a match table that the fields match, or -1.
    TableMatch "table_match" { /// The table.
        table: Table } (; fields ..) -> Value, Effects::READS;

    /// Calls a helper by number.
    Helper "helper" { /// Number, as in `enum bpf_func_id`.
        id: i32 } (; args ..) -> Value, Effects::OPAQUE;
    /// Calls a kernel function.
    Kfunc "kfunc" { /// The symbol.
        ext: Extern } (; args ..) -> Value, Effects::OPAQUE;
    /// Calls a function of this module.
    Call "call" { /// The function.
        func: Func } (; args ..) -> Value, Effects::OPAQUE;
    /// Calls the function whose address is given.
    CallIndirect "call_indirect" {} (callee; args ..) -> Value, Effects::OPAQUE;

    /// Emits the packet to a port and goes on; the packet may not be used after.
    Emit "emit" {} (packet, port) -> None, Effects::OPAQUE;
    /// A copy of the packet.
    ClonePacket "clone_packet" {} (packet) -> Value, Effects::CALL;
    /// Keeps the packet for later: ownership goes to a queue.
    Hold "hold" { /// At which end of it.
        end: QueueEnd } (packet, queue) -> None, Effects::OPAQUE;
    /// Takes the packet at the front of a queue, or null.
    Pull "pull" {} (queue) -> Value, Effects::CALL;
    /// Makes a packet begin and end at addresses in its buffer.
    SetBounds "set_bounds" {} (packet, data, end) -> None, Effects::CALL;

    /// Goes to the target.
    Jump "jump" {} () -> None, Effects::TERM;
    /// Goes to the first target if the condition holds, else to the second.
    Branch "br" { /// The condition.
        cond: Cond, /// Width of the comparison.
        width: Width } (a, b) -> None, Effects::TERM;
    /// Goes to the first target when the loop's budget is spent, else to the second.
    MayGoto "may_goto" {} () -> None, Effects { writes: true, ..Effects::TERM };
    /// Leaves the function.
    Return "return" {} (; value ..) -> None, Effects::TERM;
    /// Never reached.
    Unreachable "unreachable" {} () -> None, Effects::TERM;
}

/// The pattern of a group of operations, for matches without a default arm.
///
/// If a default would be wrong for some operation, matches name all of them, most by group. So a new
/// operation does not compile until each of these places has decided on it, or until it is in a group that is
/// right for it everywhere.
#[macro_export]
macro_rules! op_group {
    (constant) => {
        $crate::Op::Const { .. }
            | $crate::Op::Undef {}
            | $crate::Op::CoreConst { .. }
            | $crate::Op::MapAddr { .. }
            | $crate::Op::MapValueAddr { .. }
            | $crate::Op::FuncAddr { .. }
            | $crate::Op::ExternAddr { .. }
            | $crate::Op::StackAddr { .. }
            | $crate::Op::Verdict { .. }
    };
    (arithmetic) => {
        $crate::Op::Alu { .. }
            | $crate::Op::Neg { .. }
            | $crate::Op::Zext {}
            | $crate::Op::Sext { .. }
            | $crate::Op::Swap { .. }
            | $crate::Op::AddrSpaceCast { .. }
            | $crate::Op::Cmp { .. }
            | $crate::Op::Select {}
    };
    (access) => {
        $crate::Op::Load { .. }
            | $crate::Op::Store { .. }
            | $crate::Op::Atomic { .. }
            | $crate::Op::AtomicFetch { .. }
            | $crate::Op::CmpXchg { .. }
            | $crate::Op::LoadAcquire { .. }
            | $crate::Op::StoreRelease { .. }
    };
    (table) => {
        $crate::Op::MapLookup { .. }
            | $crate::Op::MapUpdate { .. }
            | $crate::Op::MapDelete { .. }
            | $crate::Op::TableMatch { .. }
    };
    (call) => {
        $crate::Op::Helper { .. }
            | $crate::Op::Kfunc { .. }
            | $crate::Op::Call { .. }
            | $crate::Op::CallIndirect {}
    };
    (packet) => {
        $crate::Op::LegacyLoad { .. }
            | $crate::Op::Emit {}
            | $crate::Op::ClonePacket {}
            | $crate::Op::Hold { .. }
            | $crate::Op::Pull {}
            | $crate::Op::SetBounds {}
    };
    (terminator) => {
        $crate::Op::Jump {}
            | $crate::Op::Branch { .. }
            | $crate::Op::MayGoto {}
            | $crate::Op::Return {}
            | $crate::Op::Unreachable {}
    };
}

impl Op {
    /// Returns true if it ends a block.
    pub const fn is_terminator(&self) -> bool {
        self.effects().terminates
    }

    /// Displacement and size of an access to memory at the first argument; `None` for other operations.
    pub const fn access(&self) -> Option<(i32, Size)> {
        match *self {
            Op::Load { offset, size, .. }
            | Op::Store { offset, size, .. }
            | Op::Atomic { offset, size, .. }
            | Op::AtomicFetch { offset, size, .. }
            | Op::CmpXchg { offset, size }
            | Op::LoadAcquire { offset, size }
            | Op::StoreRelease { offset, size } => Some((offset, size)),
            op_group!(constant) | op_group!(arithmetic) | op_group!(table) | op_group!(call) => None,
            op_group!(packet) | op_group!(terminator) => None,
        }
    }

    /// Returns true if it reads or writes memory at its first argument.
    pub const fn is_access(&self) -> bool {
        self.access().is_some()
    }

    /// The displacement of such an access, unless a relocation will overwrite it.
    pub const fn displacement_mut(&mut self) -> Option<&mut i32> {
        match self {
            Op::Load { flags: MemFlags { core: Some(_), .. }, .. }
            | Op::Store { flags: MemFlags { core: Some(_), .. }, .. } => None,
            Op::Load { offset, .. }
            | Op::Store { offset, .. }
            | Op::Atomic { offset, .. }
            | Op::AtomicFetch { offset, .. }
            | Op::CmpXchg { offset, .. }
            | Op::LoadAcquire { offset, .. }
            | Op::StoreRelease { offset, .. } => Some(offset),
            op_group!(constant) | op_group!(arithmetic) | op_group!(table) | op_group!(call) => None,
            op_group!(packet) | op_group!(terminator) => None,
        }
    }

    /// Number of branch targets.
    pub const fn target_count(&self) -> usize {
        match self {
            Op::Jump {} => 1,
            Op::Branch { .. } | Op::MayGoto {} => 2,
            Op::Return {} | Op::Unreachable {} => 0,
            op_group!(constant) | op_group!(arithmetic) | op_group!(access) | op_group!(table) => 0,
            op_group!(call) | op_group!(packet) => 0,
        }
    }
}

/// An attribute's text form: one token without white space, comma or full stop at its end.
pub trait Attr: Sized {
    /// The token.
    fn print(&self) -> String;
    /// Reads the token.
    ///
    /// # Errors
    /// A sentence that says what was expected.
    fn parse(token: &str) -> Result<Self, String>;
}

macro_rules! keyword_attr {
    ($ty:ident { $($variant:ident $word:literal),* $(,)? }) => {
        impl Attr for $ty {
            fn print(&self) -> String {
                match self { $( $ty::$variant => $word, )* }.to_string()
            }
            fn parse(token: &str) -> Result<Self, String> {
                Ok(match token {
                    $( $word => $ty::$variant, )*
                    _ => return Err(format!("`{token}` is none of {}", [$($word),*].join(", "))),
                })
            }
        }
    };
}

keyword_attr!(AluOp { Add "add", Sub "sub", Mul "mul", Div "udiv", SDiv "sdiv", Mod "umod", SMod "smod",
    Or "or", And "and", Xor "xor", Lsh "shl", Rsh "lshr", Arsh "ashr" });
keyword_attr!(Width { W32 "w32", W64 "w64" });
keyword_attr!(Size { B "b", H "h", W "w", Dw "dw" });
keyword_attr!(Cond { Eq "eq", Ne "ne", Gt "ugt", Ge "uge", Lt "ult", Le "ule", Sgt "sgt", Sge "sge",
    Slt "slt", Sle "sle", Set "set" });
keyword_attr!(SwapKind { ToLe "le", ToBe "be", Swap "swap" });
keyword_attr!(AtomicOp { Add "add", Or "or", And "and", Xor "xor", Xchg "xchg", CmpXchg "cmpxchg" });
keyword_attr!(PacketVerdict { Aborted "aborted", Drop "drop", Pass "pass", Tx "tx", Redirect "redirect" });

keyword_attr!(QueueEnd { Front "front", Back "back" });

macro_rules! number_attr {
    ($($ty:ty),*) => { $(
        impl Attr for $ty {
            fn print(&self) -> String {
                self.to_string()
            }
            fn parse(token: &str) -> Result<Self, String> {
                token.parse().map_err(|_| format!("`{token}` is no {}", stringify!($ty)))
            }
        }
    )* };
}

number_attr!(i64, i32, u32, u8);

impl Attr for bool {
    fn print(&self) -> String {
        if *self { "s" } else { "u" }.to_string()
    }
    fn parse(token: &str) -> Result<Self, String> {
        match token {
            "s" => Ok(true),
            "u" => Ok(false),
            _ => Err(format!("`{token}` is neither s nor u")),
        }
    }
}

macro_rules! entity_attr {
    ($($ty:ident $prefix:literal),*) => { $(
        impl Attr for $ty {
            fn print(&self) -> String {
                self.to_string()
            }
            fn parse(token: &str) -> Result<Self, String> {
                token.strip_prefix($prefix).and_then(|n| n.parse().ok()).map($ty::from_u32)
                    .ok_or_else(|| format!("`{token}` is no {}N", $prefix))
            }
        }
    )* };
}

entity_attr!(Map "map", Table "table", Func "fn", Extern "extern", Core "core", Slot "ss");

impl Attr for MemFlags {
    fn print(&self) -> String {
        match (self.core, self.volatile) {
            (None, false) => "plain".to_string(),
            (None, true) => "volatile".to_string(),
            (Some(core), false) => core.to_string(),
            (Some(core), true) => format!("volatile+{core}"),
        }
    }
    fn parse(token: &str) -> Result<Self, String> {
        let (volatile, rest) = match token.strip_prefix("volatile") {
            Some(rest) => (true, rest.strip_prefix('+').unwrap_or(rest)),
            None => (false, token),
        };
        let core = if rest.is_empty() || rest == "plain" { None } else { Some(Core::parse(rest)?) };
        Ok(MemFlags { core, volatile })
    }
}

impl Attr for KeyLayout {
    fn print(&self) -> String {
        let pieces: Vec<String> = self.iter().map(|p| format!("{}@{}", p.size.print(), p.offset)).collect();
        format!("[{}]", pieces.join("+"))
    }
    fn parse(token: &str) -> Result<Self, String> {
        let inner = token.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let inner = inner.ok_or_else(|| format!("`{token}` is no layout like [w@0+h@4]"))?;
        inner.split('+').filter(|p| !p.is_empty()).map(parse_piece).collect()
    }
}

fn parse_piece(text: &str) -> Result<KeyPiece, String> {
    let (size, offset) = text.split_once('@').ok_or_else(|| format!("`{text}` is no piece like w@4"))?;
    let offset = offset.parse().map_err(|_| format!("`{offset}` is no offset"))?;
    Ok(KeyPiece { offset, size: Size::parse(size)? })
}

impl Attr for Type {
    fn print(&self) -> String {
        match self {
            Type::I1 => "i1".into(),
            Type::I8 => "i8".into(),
            Type::I16 => "i16".into(),
            Type::I32 => "i32".into(),
            Type::I64 => "i64".into(),
            Type::Any => "any".into(),
            Type::Ptr(p) => format!("ptr({})", print_prov(*p)),
        }
    }
    fn parse(token: &str) -> Result<Self, String> {
        Ok(match token {
            "i1" => Type::I1,
            "i8" => Type::I8,
            "i16" => Type::I16,
            "i32" => Type::I32,
            "i64" => Type::I64,
            "any" => Type::Any,
            _ => {
                let inner = token.strip_prefix("ptr(").and_then(|t| t.strip_suffix(')'));
                Type::Ptr(parse_prov(inner.ok_or_else(|| format!("`{token}` is no type"))?)?)
            }
        })
    }
}

fn print_prov(prov: Prov) -> String {
    match prov {
        Prov::Ctx => "ctx".into(),
        Prov::Packet => "packet".into(),
        Prov::PacketEnd => "packet_end".into(),
        Prov::PacketMeta => "packet_meta".into(),
        Prov::Stack => "stack".into(),
        Prov::MapValue(m) => format!("value:{m}"),
        Prov::MapValueOrNull(m) => format!("value?:{m}"),
        Prov::Map(m) => m.to_string(),
        Prov::Func => "func".into(),
        Prov::Btf => "btf".into(),
        Prov::Mem => "mem".into(),
    }
}

fn parse_prov(text: &str) -> Result<Prov, String> {
    Ok(match text {
        "ctx" => Prov::Ctx,
        "packet" => Prov::Packet,
        "packet_end" => Prov::PacketEnd,
        "packet_meta" => Prov::PacketMeta,
        "stack" => Prov::Stack,
        "func" => Prov::Func,
        "btf" => Prov::Btf,
        "mem" => Prov::Mem,
        _ => match text.split_once(':') {
            Some(("value", map)) => Prov::MapValue(Map::parse(map)?),
            Some(("value?", map)) => Prov::MapValueOrNull(Map::parse(map)?),
            _ => Prov::Map(Map::parse(text)?),
        },
    })
}
