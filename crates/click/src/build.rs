//! Generates code for elements, as blocks of the function of the whole graph.
//!
//! Invariants: an [`ElementBuilder`] is in a block that has no terminator yet; [`ElementBuilder::out`] and
//! [`ElementBuilder::drop`] terminate it. Numbers are in host order: loads and stores of packet fields change
//! the byte order.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Func, FuncCursor, KeyPiece, Map, MemFlags, Op, PacketVerdict, Prov,
    QueueEnd, Size, SwapKind, TableDecl, Type, Value, Width,
};
use millstream_isa::helpers::id;

use crate::graph::ElementPort;
use crate::graph_compiler::GraphCompiler;
use crate::handlers::{HandlerAccess, SettingValue};
pub use crate::hash_table::ElementHashTable;
use crate::layout::MetadataLayout;
use crate::packet::{Annotation, FIRST_NOTE, NOTES, PacketValues, TYPES};
use crate::program::QUEUE;

/// The one annotation that is an address; it is kept as the distance from the packet's first byte.
const NETWORK: usize = Annotation::Network as usize;

/// Rounds through the graph that a packet may make. (One whose time to live counts down makes at most 255.)
const MOST_ROUNDS: i64 = 1 << 16;

/// Value of the flags of `bpf_perf_event_output` that selects the current CPU.
const OWN_PLACE: i64 = 0xffff_ffff;

/// `BPF_NOEXIST`, and the error of an update if the key exists.
const NOEXIST: i64 = 1;
/// `EEXIST`, as an update gives it.
pub const EEXIST: i64 = -17;

/// Pieces one behind the other.
fn layout(sizes: &[Size]) -> millstream_ir::KeyLayout {
    let mut offset = 0;
    let piece = |size: &Size| {
        let piece = KeyPiece { offset, size: *size };
        offset += size.bytes() as u16;
        piece
    };
    sizes.iter().map(piece).collect()
}

/// Code of one element.
pub struct ElementBuilder<'c, 'g> {
    pub(crate) compiler: &'c mut GraphCompiler<'g>,
    pub(crate) element: usize,
    at: Block,
}

impl<'c, 'g> ElementBuilder<'c, 'g> {
    pub(crate) fn new(compiler: &'c mut GraphCompiler<'g>, element: usize, at: Block) -> Self {
        ElementBuilder { compiler, element, at }
    }

    /// The block that is being written.
    pub fn current_block(&self) -> Block {
        self.at
    }

    fn cursor(&mut self) -> FuncCursor<'_> {
        self.compiler.func.at_end(self.at)
    }

    fn value(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.cursor().value(op, args.iter().copied(), ty)
    }

    fn effect(&mut self, op: Op, args: &[Value]) {
        self.cursor().effect(op, args.iter().copied(), []);
    }

    /// A constant, or the place of an argument.
    pub fn int(&mut self, value: i64) -> Value {
        match self.compiler.argument(self.element, value) {
            None => self.cursor().iconst(value),
            Some(place) => self.remembered(place),
        }
    }

    /// A constant truth value.
    pub fn truth(&mut self, value: bool) -> Value {
        self.value(Op::Const { value: i64::from(value) }, &[], Type::I1)
    }

    /// An operation of 64 bits.
    pub fn alu(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        self.value(Op::Alu { op, width: Width::W64 }, &[a, b], Type::I64)
    }

    /// A sum.
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.alu(AluOp::Add, a, b)
    }

    /// A difference.
    pub fn sub(&mut self, a: Value, b: Value) -> Value {
        self.alu(AluOp::Sub, a, b)
    }

    /// An operation with a constant.
    pub fn with(&mut self, op: AluOp, a: Value, b: i64) -> Value {
        let b = self.int(b);
        self.alu(op, a, b)
    }

    /// An address in the packet.
    pub fn plus(&mut self, base: Value, offset: Value) -> Value {
        self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, offset], Type::Ptr(Prov::Packet))
    }

    /// An address in the packet at a constant distance.
    pub fn at(&mut self, base: Value, offset: i64) -> Value {
        let offset = self.int(offset);
        self.plus(base, offset)
    }

    /// An address as the end of the packet.
    pub fn end(&mut self, base: Value, offset: Value) -> Value {
        self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, offset], Type::Ptr(Prov::PacketEnd))
    }

    fn load(&mut self, size: Size, base: Value, offset: i32) -> Value {
        let op = Op::Load { size, sext: false, offset, flags: MemFlags::default() };
        self.value(op, &[base], Type::int(8 * size.bytes()))
    }

    fn store(&mut self, size: Size, base: Value, offset: i32, value: Value) {
        self.effect(Op::Store { size, offset, flags: MemFlags::default() }, &[base, value]);
    }

    fn swap(&mut self, bits: u8, value: Value) -> Value {
        self.value(Op::Swap { kind: SwapKind::ToBe, bits }, &[value], Type::int(u32::from(bits)))
    }

    /// 1, 2, 4 or 8 bytes of the packet as they lie in memory.
    pub fn raw(&mut self, bytes: usize, base: Value, offset: i32) -> Value {
        let size = match bytes {
            1 => Size::B,
            2 => Size::H,
            4 => Size::W,
            _ => Size::Dw,
        };
        self.load(size, base, offset)
    }

    /// 1, 2 or 4 bytes of the packet.
    pub fn number(&mut self, bytes: u32, base: Value, offset: i32) -> Value {
        match bytes {
            1 => self.byte(base, offset),
            2 => self.half(base, offset),
            _ => self.word(base, offset),
        }
    }

    /// Makes room in front of the packet, or drops it: the new first byte.
    pub fn push(&mut self, packet: PacketValues, base: Value, bytes: i64) -> Value {
        let data = self.at(base, -bytes);
        let room = self.bound(packet.handle, 8, Type::Ptr(Prov::Packet));
        self.check(Cond::Ge, data, room, |code| code.drop(packet, "no_headroom"));
        data
    }

    /// A byte of the packet.
    pub fn byte(&mut self, base: Value, offset: i32) -> Value {
        self.load(Size::B, base, offset)
    }

    /// 16 bits of the packet.
    pub fn half(&mut self, base: Value, offset: i32) -> Value {
        let raw = self.load(Size::H, base, offset);
        self.swap(16, raw)
    }

    /// 32 bits of the packet.
    pub fn word(&mut self, base: Value, offset: i32) -> Value {
        let raw = self.load(Size::W, base, offset);
        self.swap(32, raw)
    }

    /// Writes a byte of the packet.
    pub fn set_byte(&mut self, base: Value, offset: i32, value: Value) {
        self.store(Size::B, base, offset, value);
    }

    /// Writes 16 bits of the packet.
    pub fn set_half(&mut self, base: Value, offset: i32, value: Value) {
        let raw = self.swap(16, value);
        self.store(Size::H, base, offset, raw);
    }

    /// Writes 32 bits of the packet.
    pub fn set_word(&mut self, base: Value, offset: i32, value: Value) {
        let raw = self.swap(32, value);
        self.store(Size::W, base, offset, raw);
    }

    /// Writes 2, 4 or 8 bytes as they are to lie in memory.
    pub fn set_raw(&mut self, bytes: usize, base: Value, offset: i32, value: Value) {
        let size = match bytes {
            2 => Size::H,
            4 => Size::W,
            _ => Size::Dw,
        };
        self.store(size, base, offset, value);
    }

    /// The low 16 or 32 bits in the other byte order.
    pub fn swapped(&mut self, bits: u8, value: Value) -> Value {
        self.swap(bits, value)
    }

    /// Exchanges `bytes` bytes, at most 8, at two offsets.
    pub fn exchange(&mut self, base: Value, a: i32, b: i32, bytes: i32) {
        let both = [self.pieces(base, a, bytes), self.pieces(base, b, bytes)];
        for (pieces, to) in both.into_iter().zip([b, a]) {
            for (at, size, value) in pieces {
                self.store(size, base, to + at, value);
            }
        }
    }

    /// Copies bytes inside the packet: through registers, so that places may overlap.
    pub fn copy(&mut self, to: Value, to_offset: i32, from: Value, from_offset: i32, bytes: i32) {
        let pieces = self.pieces(from, from_offset, bytes);
        for (at, size, value) in pieces {
            self.store(size, to, to_offset + at, value);
        }
    }

    /// Bytes as values: offset, size and value of each.
    fn pieces(&mut self, base: Value, offset: i32, bytes: i32) -> Vec<(i32, Size, Value)> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < bytes {
            let size = match bytes - at {
                8.. => Size::Dw,
                4.. => Size::W,
                2.. => Size::H,
                _ => Size::B,
            };
            pieces.push((at, size, self.load(size, base, offset + at)));
            at += size.bytes() as i32;
        }
        pieces
    }

    /// Writes constant bytes.
    pub fn write(&mut self, base: Value, offset: i32, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (size, len) = match bytes.len() - at {
                8.. => (Size::Dw, 8),
                4.. => (Size::W, 4),
                2.. => (Size::H, 2),
                _ => (Size::B, 1),
            };
            let mut raw = [0; 8];
            raw[..len].copy_from_slice(&bytes[at..at + len]);
            let value = self.int(i64::from_le_bytes(raw));
            self.store(size, base, offset + at as i32, value);
            at += len;
        }
    }

    /// A name for a match table of the element.
    pub fn table_name(&self) -> String {
        let element = &self.compiler.element_name(self.element);
        let taken = |name: &String| self.compiler.module.tables.values().any(|table| table.name == *name);
        let mut names = (1..).map(|n| if n == 1 { element.clone() } else { format!("{element}.{n}") });
        names.find(|name| !taken(name)).unwrap_or_default()
    }

    /// Looks a key up in a match table. Gives the action's number, or -1.
    pub fn match_table(&mut self, table: TableDecl, key: &[Value]) -> Value {
        let table = self.compiler.module.tables.push(table);
        self.value(Op::TableMatch { table }, key, Type::I64)
    }

    /// The truth of a comparison.
    pub fn compare(&mut self, cond: Cond, a: Value, b: Value) -> Value {
        self.value(Op::Cmp { cond, width: Width::W64 }, &[a, b], Type::I1)
    }

    /// One of two values.
    pub fn select(&mut self, truth: Value, yes: Value, no: Value) -> Value {
        let ty = self.compiler.func.types[yes].join(self.compiler.func.types[no]);
        self.value(Op::Select {}, &[truth, yes, no], ty)
    }

    /// A new block.
    pub fn block(&mut self) -> Block {
        self.compiler.func.add_block()
    }

    /// A parameter of a block.
    pub fn param(&mut self, block: Block, ty: Type) -> Value {
        self.compiler.func.add_param(block, ty)
    }

    /// Goes on writing in another block.
    pub fn switch_to_block(&mut self, block: Block) {
        self.at = block;
    }

    /// Ends the block with a branch.
    pub fn branch(&mut self, cond: Cond, a: Value, b: Value, yes: Block, no: Block) {
        let targets = [BlockCall::new(yes), BlockCall::new(no)];
        self.cursor().effect(Op::Branch { cond, width: Width::W64 }, [a, b], targets);
    }

    /// As [`Self::branch`], with arguments for each side.
    pub fn branch_with(
        &mut self,
        cond: Cond,
        a: Value,
        b: Value,
        yes: (Block, &[Value]),
        no: (Block, &[Value]),
    ) {
        let targets = [yes, no].map(|(block, args)| BlockCall::with(block, args.iter().copied()));
        self.cursor().effect(Op::Branch { cond, width: Width::W64 }, [a, b], targets);
    }

    /// Ends the block with a jump.
    pub fn jump(&mut self, block: Block, args: &[Value]) {
        self.cursor().effect(Op::Jump {}, [], [BlockCall::with(block, args.iter().copied())]);
    }

    /// Goes on where the comparison holds; elsewhere runs `otherwise`, which must end the block.
    pub fn check(&mut self, cond: Cond, a: Value, b: Value, otherwise: impl FnOnce(&mut Self)) {
        let (yes, no) = (self.block(), self.block());
        self.branch(cond, a, b, yes, no);
        self.switch_to_block(no);
        otherwise(self);
        self.switch_to_block(yes);
    }

    /// As [`Self::check`], with a constant.
    pub fn check_int(&mut self, cond: Cond, a: Value, b: i64, otherwise: impl FnOnce(&mut Self)) {
        let b = self.int(b);
        self.check(cond, a, b, otherwise);
    }

    /// Runs `then` if the comparison holds, and goes on with its results; otherwise with `other`.
    pub fn when(
        &mut self,
        cond: Cond,
        a: Value,
        b: Value,
        other: &[Value],
        then: impl FnOnce(&mut Self) -> Vec<Value>,
    ) -> Vec<Value> {
        let (yes, on) = (self.block(), self.block());
        let types: Vec<Type> = other.iter().map(|&v| self.compiler.func.types[v]).collect();
        let params = types.iter().map(|&ty| self.compiler.func.add_param(on, ty)).collect();
        let targets = [BlockCall::new(yes), BlockCall::with(on, other.iter().copied())];
        self.cursor().effect(Op::Branch { cond, width: Width::W64 }, [a, b], targets);
        self.switch_to_block(yes);
        let values = then(self);
        self.jump(on, &values);
        self.switch_to_block(on);
        params
    }

    /// Adds zeros behind the packet, or drops it.
    pub fn lengthened(&mut self, packet: PacketValues, bytes: Value) -> PacketValues {
        let distance = self.sub(packet.note(Annotation::Network), packet.data);
        self.publish(packet);
        let error = self.value(Op::Helper { id: id::XDP_ADJUST_TAIL }, &[packet.handle, bytes], Type::I64);
        self.check_int(Cond::Eq, error, 0, |code| code.drop(packet, "no_tailroom"));
        self.found_again(packet.handle, distance, packet)
    }

    /// A packet whose bytes may have moved: reads its bounds from the descriptor again, and sets the network
    /// header to this distance.
    fn found_again(&mut self, handle: Value, distance: Value, packet: PacketValues) -> PacketValues {
        let data = self.bound(handle, 0, Type::Ptr(Prov::Packet));
        let end = self.bound(handle, 4, Type::Ptr(Prov::PacketEnd));
        let network = self.plus(data, distance);
        PacketValues { handle, ..packet.bounded(data, end).with(Annotation::Network, network) }
    }

    /// Drops the packet unless it has `bytes` bytes from `base` on.
    pub fn need(&mut self, packet: PacketValues, base: Value, bytes: i64, reason: &'static str) {
        let beyond = self.at(base, bytes);
        self.check(Cond::Le, beyond, packet.end, |code| code.drop(packet, reason));
    }

    /// The packet's length.
    pub fn length(&mut self, packet: PacketValues) -> Value {
        self.sub(packet.end, packet.data)
    }

    /// The address of bytes of a map's one value.
    pub fn cell(&mut self, map: Map, offset: u32) -> Value {
        self.value(Op::MapValueAddr { map, offset }, &[], Type::Ptr(Prov::MapValue(map)))
    }

    /// The address of bytes of the element's state.
    fn state(&mut self, offset: u32) -> Value {
        let map = self.compiler.state_layout.map;
        self.cell(map, offset)
    }

    /// The value of this type that is published under the name of an element.
    pub fn published_by<T: Clone + 'static>(&self, element: &str) -> Option<T> {
        self.compiler.values.get(element)
    }

    /// The value of this type that is published for the element.
    pub fn published<T: Clone + 'static>(&self) -> Option<T> {
        self.published_by(&self.compiler.element_name(self.element))
    }

    /// The input that an output is connected to.
    pub fn target(&self, port: u32) -> Option<ElementPort> {
        self.compiler.target(ElementPort { element: self.element, port })
    }

    /// An input of the element.
    pub fn input(&self, port: u32) -> ElementPort {
        ElementPort { element: self.element, port }
    }

    /// The block of an input of the element.
    pub fn input_block(&mut self, port: u32) -> Block {
        let input = self.input(port);
        self.compiler.block_of(input)
    }

    /// A setting of the element.
    pub fn setting(&mut self, setting: SettingValue) -> Value {
        match (setting, self.compiler.settings) {
            (SettingValue::Live(offset), Some(map)) => {
                let address = self.cell(map, offset);
                self.load(Size::Dw, address, 0)
            }
            (SettingValue::Live(_), None) => self.int(0),
            (SettingValue::Fixed(value), _) => self.int(value),
        }
    }

    /// Generates the effect of writing a handler. Returns true if that is its whole effect.
    pub fn write_handler(&mut self, handler: &str, value: &str) -> bool {
        let Some(access) = self.compiler.writable.get(handler).cloned() else { return false };
        match access {
            HandlerAccess::Setting(at, takes) => {
                let Some(value) = takes.parse(value) else { return false };
                self.set_setting(at, value);
            }
            HandlerAccess::Sets(all) => all.iter().for_each(|(at, value)| self.set_setting(*at, *value)),
            HandlerAccess::Zero { words, .. } => {
                for word in words {
                    let zero = self.int(0);
                    self.set(word, zero);
                }
            }
            _ => return false,
        }
        true
    }

    fn set_setting(&mut self, offset: u32, value: i64) {
        if let Some(map) = self.compiler.settings {
            let (address, value) = (self.cell(map, offset), self.int(value));
            self.store(Size::Dw, address, 0, value);
        }
    }

    /// Writes an Ethernet address that is a number.
    pub fn set_ether(&mut self, base: Value, offset: i32, address: Value) {
        let high = self.with(AluOp::Rsh, address, 16);
        self.set_word(base, offset, high);
        self.set_half(base, offset + 4, address);
    }

    /// Four words of the packet, one behind the other.
    pub fn words(&mut self, base: Value, offset: i32) -> [Value; 4] {
        [0, 4, 8, 12].map(|at| self.word(base, offset + at))
    }

    /// Adds to a counter of the element's state.
    pub fn count(&mut self, offset: u32, by: Value) {
        let address = self.state(offset);
        let before = self.load(Size::Dw, address, 0);
        let after = self.add(before, by);
        self.store(Size::Dw, address, 0, after);
    }

    /// Adds one to a counter of the element's state.
    pub fn count_by_one(&mut self, offset: u32) {
        let one = self.int(1);
        self.count(offset, one);
    }

    /// Sets a number of the element's state.
    pub fn set(&mut self, offset: u32, number: Value) {
        let address = self.state(offset);
        self.store(Size::Dw, address, 0, number);
    }

    /// A number of the element's state.
    pub fn get(&mut self, offset: u32) -> Value {
        let address = self.state(offset);
        self.load(Size::Dw, address, 0)
    }

    /// Looks up the longest prefix of an address in a table: the address of gateway and output, or null.
    pub fn longest(&mut self, map: Map, address: Value) -> Value {
        let key = [KeyPiece { offset: 0, size: Size::W }, KeyPiece { offset: 4, size: Size::W }];
        let (bits, raw) = (self.int(32), self.swap(32, address));
        let op = Op::MapLookup { map, key: key.into_iter().collect() };
        self.value(op, &[bits, raw], Type::Ptr(Prov::MapValueOrNull(map)))
    }

    /// Looks up the longest prefix of an address of IPv6, as [`Self::longest`] does.
    pub fn longest6(&mut self, map: Map, address: [Value; 4]) -> Value {
        let bits = self.int(128);
        let words = address.map(|word| self.swap(32, word));
        let key: Vec<Value> = std::iter::once(bits).chain(words).collect();
        let op = Op::MapLookup { map, key: layout(&[Size::W; 5]) };
        self.value(op, &key, Type::Ptr(Prov::MapValueOrNull(map)))
    }

    /// Looks up in a table: the entry's address, or null.
    pub fn find(&mut self, table: &ElementHashTable, key: &[Value]) -> Value {
        let op = Op::MapLookup { map: table.map, key: layout(table.key) };
        self.value(op, key, Type::Ptr(Prov::MapValueOrNull(table.map)))
    }

    /// Puts an entry into a table. Gives 0 or an error.
    pub fn update_entry(&mut self, table: &ElementHashTable, key: &[Value], value: &[Value]) -> Value {
        self.put(table, key, value, 0)
    }

    /// As [`Self::update_entry`], unless another worker has been there: [`EEXIST`] then.
    pub fn insert_if_absent(&mut self, table: &ElementHashTable, key: &[Value], value: &[Value]) -> Value {
        self.put(table, key, value, NOEXIST)
    }

    fn put(&mut self, table: &ElementHashTable, key: &[Value], value: &[Value], flags: i64) -> Value {
        let op = Op::MapUpdate { map: table.map, key: layout(table.key), value: layout(table.value) };
        let flags = self.int(flags);
        let args: Vec<Value> = key.iter().chain(value).copied().chain([flags]).collect();
        self.value(op, &args, Type::I64)
    }

    /// Removes an entry from a table.
    pub fn delete_entry(&mut self, table: &ElementHashTable, key: &[Value]) {
        let op = Op::MapDelete { map: table.map, key: layout(table.key) };
        self.value(op, key, Type::I64);
    }

    /// Nanoseconds of the coarse clock.
    pub fn time(&mut self) -> Value {
        self.value(Op::Helper { id: id::KTIME_GET_COARSE_NS }, &[], Type::I64)
    }

    /// Nanoseconds of the fine clock.
    pub fn fine_time(&mut self) -> Value {
        self.value(Op::Helper { id: id::KTIME_GET_NS }, &[], Type::I64)
    }

    /// A random number of 32 bits.
    pub fn random(&mut self) -> Value {
        self.value(Op::Helper { id: id::GET_PRANDOM_U32 }, &[], Type::I64)
    }

    /// The number of the worker at work.
    pub fn worker(&mut self) -> Value {
        self.value(Op::Helper { id: id::GET_SMP_PROCESSOR_ID }, &[], Type::I64)
    }

    /// A constant that does not stem from an argument, even if an argument has the same value.
    pub fn number_of(&mut self, value: i64) -> Value {
        self.cursor().iconst(value)
    }

    /// Puts a record into an array of events: these numbers, which are put together in the state, and so many
    /// bytes of the packet from an address on.
    pub fn record(
        &mut self,
        map: Map,
        (scratch, words): (u32, &[Value]),
        packet: PacketValues,
        (from, bytes): (Value, Value),
    ) {
        for (at, word) in words.iter().enumerate() {
            self.set(scratch + 8 * at as u32, *word);
        }
        // The record begins where the packet begins.
        self.publish(packet.bounded(from, packet.end));
        let events = self.value(Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)));
        let high = self.number_of(32);
        let length = self.alu(AluOp::Lsh, bytes, high);
        let own = self.number_of(OWN_PLACE);
        let flags = self.alu(AluOp::Or, length, own);
        let (numbers, size) = (self.state(scratch), self.number_of(8 * words.len() as i64));
        let args = [packet.handle, events, flags, numbers, size];
        self.value(Op::Helper { id: id::PERF_EVENT_OUTPUT }, &args, Type::I64);
        self.publish(packet);
    }

    /// A number as a parameter of a block.
    pub fn number_param(&mut self, block: Block) -> Value {
        self.param(block, Type::I64)
    }

    /// An address in the packet as a parameter of a block.
    pub fn packet_param(&mut self, block: Block) -> Value {
        self.param(block, Type::Ptr(Prov::Packet))
    }

    /// An address in a map's value.
    pub fn offset(&mut self, value: Value, offset: i64, map: Map) -> Value {
        let offset = self.int(offset);
        self.offset_by(value, offset, map)
    }

    /// An address in a map's value, at a distance that is known at run time only.
    pub fn offset_by(&mut self, value: Value, offset: Value, map: Map) -> Value {
        let add = Op::Alu { op: AluOp::Add, width: Width::W64 };
        self.value(add, &[value, offset], Type::Ptr(Prov::MapValue(map)))
    }

    /// Copies a number of bytes that is known at run time only, between packet and map's value.
    pub fn copy_bytes(&mut self, to: Value, from: Value, bytes: Value) {
        let zero = self.int(0);
        let mut start = zero;
        for (size, step) in [(Size::Dw, 8), (Size::B, 1)] {
            let (head, body, done) = (self.block(), self.block(), self.block());
            let at = self.number_param(head);
            self.jump(head, &[start]);
            self.switch_to_block(head);
            let next = self.with(AluOp::Add, at, step);
            self.branch(Cond::Le, next, bytes, body, done);
            self.switch_to_block(body);
            let [source, target] = [from, to].map(|base| {
                let ty = self.compiler.func.types[base];
                self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, at], ty)
            });
            let piece = self.load(size, source, 0);
            self.store(size, target, 0, piece);
            self.jump(head, &[next]);
            self.switch_to_block(done);
            start = at;
        }
    }

    /// 64 bits of a map's value.
    pub fn wide(&mut self, value: Value, offset: i32) -> Value {
        self.load(Size::Dw, value, offset)
    }

    /// Writes 64 bits of a map's value.
    pub fn set_wide(&mut self, value: Value, offset: i32, number: Value) {
        self.store(Size::Dw, value, offset, number);
    }

    /// 16 bits of a map's value, in the machine's order.
    pub fn short(&mut self, value: Value, offset: i32) -> Value {
        self.load(Size::H, value, offset)
    }

    /// Writes 16 bits of a map's value, in the machine's order.
    pub fn set_short(&mut self, value: Value, offset: i32, number: Value) {
        self.store(Size::H, value, offset, number);
    }

    /// 32 bits of a map's value, in the machine's order.
    pub fn field(&mut self, value: Value, offset: i32) -> Value {
        self.load(Size::W, value, offset)
    }

    /// Calls a function that takes a packet's descriptor, which is up to date then.
    pub fn call(&mut self, func: Func, packet: PacketValues) -> Value {
        self.publish(packet);
        self.value(Op::Call { func }, &[packet.handle], Type::I64)
    }

    /// The packet as the rest of the world sees it: its descriptor is brought up to date.
    fn publish(&mut self, packet: PacketValues) {
        self.effect(Op::SetBounds {}, &[packet.handle, packet.data, packet.end]);
    }

    /// Ends with the packet on an output. An output that is not connected drops it.
    pub fn out(&mut self, port: u32, packet: PacketValues) {
        let from = ElementPort { element: self.element, port };
        if let Some((pullers, turn)) = self.compiler.pullers(from) {
            let packet = self.rounded(from, packet);
            return self.by_turns(&pullers, turn, packet);
        }
        match self.compiler.target(from) {
            Some(to) => {
                let packet = self.rounded(from, packet);
                if let Some(output) = self.compiler.lane(to) {
                    return self.leave_for(output, to, packet);
                }
                if self.compiler.general.annotations {
                    self.keep(packet, |_, _| true);
                }
                if let Some((place, dispatch)) = self.compiler.connection(to) {
                    let mut values = packet.values().to_vec();
                    values.push(self.remembered(place));
                    return self.jump(dispatch, &values);
                }
                let block = self.compiler.block_of(to);
                self.jump(block, &packet.values());
            }
            None => self.drop(packet, "unconnected"),
        }
    }

    /// A number that is read from memory, and known beforehand.
    fn remembered(&mut self, (map, offset): (Map, u32)) -> Value {
        let address = self.cell(map, offset);
        self.load(Size::Dw, address, 0)
    }

    /// Ends with the packet at the input whose turn it is to pull.
    fn by_turns(&mut self, inputs: &[ElementPort], noted: u32, packet: PacketValues) {
        let turn = self.get(noted);
        let next = self.with(AluOp::Add, turn, 1);
        let next = self.with(AluOp::Mod, next, inputs.len() as i64);
        self.set(noted, next);
        for (at, input) in inputs.iter().enumerate() {
            let (at, on) = (self.int(at as i64), self.block());
            match self.compiler.lane(*input) {
                Some(output) => {
                    let own = self.block();
                    self.branch(Cond::Eq, turn, at, own, on);
                    self.switch_to_block(own);
                    self.leave_for(output, *input, packet);
                }
                None => {
                    let block = self.compiler.block_of(*input);
                    self.branch_with(Cond::Eq, turn, at, (block, &packet.values()), (on, &[]));
                }
            }
            self.switch_to_block(on);
        }
        // The turn is always one of these inputs.
        self.drop(packet, "unconnected");
    }

    /// Counts a round if an output leads back, and drops packets that go round for ever. (Copies need no
    /// count: each takes one of a batch's buffers, which are limited.)
    fn rounded(&mut self, from: ElementPort, packet: PacketValues) -> PacketValues {
        if !self.compiler.is_back_edge(from) {
            return packet;
        }
        let rounds = self.with(AluOp::Add, packet.note(Annotation::Rounds), 1);
        self.check_int(Cond::Lt, rounds, MOST_ROUNDS, |code| code.drop(packet, "endless"));
        packet.with(Annotation::Rounds, rounds)
    }

    /// The input that output 0 leads to, if the elements behind it belong to another stage.
    pub fn next_stage(&mut self) -> Option<ElementPort> {
        let from = ElementPort { element: self.element, port: 0 };
        let alone = self.compiler.general.stages
            && !self.compiler.is_back_edge(from)
            && self.compiler.pullers(from).is_none();
        self.compiler.target(from).filter(|_| alone)
    }

    /// Returns true if an output is connected.
    pub fn connected(&self, port: u32) -> bool {
        self.compiler.target(ElementPort { element: self.element, port }).is_some()
    }

    /// Ends with the packet dropped, and counted.
    pub fn drop(&mut self, _packet: PacketValues, reason: &'static str) {
        let offset = self.compiler.drop_counter(self.element, reason);
        let one = self.int(1);
        self.count(offset, one);
        self.finish();
    }

    /// Ends with the packet sent out of an output of the program.
    pub fn send(&mut self, output: u32, packet: PacketValues) {
        self.publish(packet);
        let output = self.int(i64::from(output));
        self.effect(Op::Emit {}, &[packet.handle, output]);
        self.finish();
    }

    fn finish(&mut self) {
        let finish = self.compiler.finish;
        self.jump(finish, &[]);
    }

    /// A copy of the packet, to be worked on after this one on output `port`; those that are copied last come
    /// first.
    pub fn fork(&mut self, port: u32, packet: PacketValues) {
        let from = ElementPort { element: self.element, port };
        // Outputs that packets are copied to are connected: `resolve` sees to that.
        if let Some(target) = self.compiler.target(from) {
            self.fork_to(target, packet, |_, copy| copy);
        }
    }

    /// A copy of the packet, changed by `change`, to be processed after this one at an input. The change must
    /// not terminate the block.
    pub fn fork_to(
        &mut self,
        target: ElementPort,
        packet: PacketValues,
        change: impl FnOnce(&mut Self, PacketValues) -> PacketValues,
    ) {
        self.publish(packet);
        self.compiler.wiring.flow.record_copy(target);
        let copy = self.value(Op::ClonePacket {}, &[packet.handle], Type::Ptr(Prov::Ctx));
        let zero = self.int(0);
        let (held, none, on) = (self.block(), self.block(), self.block());
        self.branch(Cond::Eq, copy, zero, none, held);
        self.switch_to_block(none);
        let offset = self.compiler.drop_counter(self.element, "no_buffer");
        let uncloned = self.compiler.state_layout.uncloned;
        let one = self.int(1);
        self.count(offset, one);
        self.count(uncloned, one);
        self.jump(on, &[]);
        self.switch_to_block(held);
        let distance = self.sub(packet.note(Annotation::Network), packet.data);
        let own = self.found_again(copy, distance, packet);
        let changed = change(self, own);
        self.hold(changed, target);
        self.jump(on, &[]);
        self.switch_to_block(on);
    }

    /// Puts a packet in front of those that wait, with the annotations that are looked at behind that.
    fn hold(&mut self, packet: PacketValues, target: ElementPort) {
        self.publish(packet);
        self.keep_for(target, packet);
        let queue = self.cursor().iconst(QUEUE);
        self.effect(Op::Hold { end: QueueEnd::Front }, &[packet.handle, queue]);
    }

    /// Address of a packet's saved annotations: at the beginning of its buffer, in front of the headroom.
    fn kept_at(&mut self, handle: Value) -> Value {
        let room = self.bound(handle, 8, Type::Ptr(Prov::Packet));
        let bytes = i64::from(self.compiler.waiting.kept.bytes);
        self.at(room, -bytes)
    }

    /// Writes annotations down, those that are kept and that `is_kept` says. Gives the place.
    fn keep(&mut self, packet: PacketValues, is_kept: impl Fn(&MetadataLayout, usize) -> bool) -> Value {
        let base = self.kept_at(packet.handle);
        let kept = self.compiler.waiting.kept.clone();
        for &(note, size, offset) in kept.notes.iter().filter(|(note, ..)| is_kept(&kept, *note)) {
            let value = match note {
                NETWORK => self.sub(packet.notes[note], packet.data),
                _ => packet.notes[note],
            };
            self.store(size, base, offset, value);
        }
        base
    }

    /// Writes down where a packet goes on that is to wait, and the annotations that are looked at there.
    fn keep_for(&mut self, target: ElementPort, packet: PacketValues) {
        self.compiler.waiting.held.push((target, packet.notes));
        let base = self.keep(packet, |kept, note| kept.is_live_at(target, note));
        let number = i64::from(self.compiler.resume_point(target));
        let (number, (size, offset)) = (self.cursor().iconst(number), self.compiler.waiting.kept.number);
        self.store(size, base, offset, number);
    }

    /// Ends with the packet for the stage behind queues, where it goes on at an input.
    pub fn send_to_stage(&mut self, target: ElementPort, packet: PacketValues) {
        let output = self.compiler.boundary.queues;
        self.compiler.boundary.passing_on.insert(self.element);
        self.leave_for(output, target, packet);
    }

    /// Ends with the packet sent out of an output behind those of the program, from which it comes in again
    /// and goes on at an input.
    fn leave_for(&mut self, output: u32, target: ElementPort, packet: PacketValues) {
        self.keep_for(target, packet);
        self.send(output, packet);
    }

    /// Ends with the packet on output 0, as the first of those that wait there, if packets do.
    pub fn out_in_front(&mut self, packet: PacketValues) {
        let from = ElementPort { element: self.element, port: 0 };
        let lane = self.compiler.target(from).and_then(|to| Some((to, self.compiler.lane(to)?)));
        match lane {
            // The front of a lane is the output behind that of the lane.
            Some((to, output)) => self.leave_for(output + 1, to, packet),
            None => self.out(0, packet),
        }
    }

    /// Ends with the packet put aside until whoever runs the program hands it back: it goes on at an input
    /// that the element has declared for this.
    pub fn wait_at(&mut self, port: u32, packet: PacketValues) {
        let to = self.input(port);
        match self.compiler.lane(to) {
            Some(output) => self.leave_for(output, to, packet),
            None => self.drop(packet, "unconnected"),
        }
    }

    /// The handle of a packet that was held, which is not null behind this: that goes to `none`.
    pub fn pull(&mut self, none: Block) -> Value {
        let queue = self.int(QUEUE);
        let handle = self.value(Op::Pull {}, &[queue], Type::Ptr(Prov::Ctx));
        let zero = self.int(0);
        let some = self.block();
        self.branch(Cond::Eq, handle, zero, none, some);
        self.switch_to_block(some);
        handle
    }

    /// A packet that was held or passed on: where to go on, and the packet.
    pub fn resumed(&mut self, handle: Value) -> (Value, PacketValues) {
        let zero = self.int(0);
        let data = self.bound(handle, 0, Type::Ptr(Prov::Packet));
        let end = self.bound(handle, 4, Type::Ptr(Prov::PacketEnd));
        let kept = self.compiler.waiting.kept.clone();
        let base = self.kept_at(handle);
        let number = self.load(kept.number.0, base, kept.number.1);
        // Annotations that are never read may have any value.
        let no = self.truth(false);
        let mut notes = [zero; NOTES];
        for (note, value) in notes.iter_mut().enumerate() {
            match TYPES[FIRST_NOTE + note] {
                Type::I1 => *value = no,
                Type::Ptr(_) => *value = data,
                _ => {}
            }
        }
        for (note, size, offset) in kept.notes {
            let sext = note == NETWORK;
            let load = Op::Load { size, sext, offset, flags: MemFlags::default() };
            let raw = self.value(load, &[base], if sext { Type::I64 } else { Type::int(8 * size.bytes()) });
            notes[note] = match TYPES[FIRST_NOTE + note] {
                Type::I1 => self.compare(Cond::Ne, raw, zero),
                Type::Ptr(_) => self.plus(data, raw),
                _ => raw,
            };
        }
        (number, PacketValues { handle, data, end, notes })
    }

    /// A bound of a packet as its descriptor has it.
    pub fn bound(&mut self, handle: Value, offset: i32, ty: Type) -> Value {
        let op = Op::Load { size: Size::W, sext: false, offset, flags: MemFlags::default() };
        self.value(op, &[handle], ty)
    }

    /// Ends the program.
    pub fn emit_return(&mut self) {
        let verdict = self.value(Op::Verdict { verdict: PacketVerdict::Drop }, &[], Type::I64);
        self.effect(Op::Return {}, &[verdict]);
    }
}
