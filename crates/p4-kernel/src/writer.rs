//! Emission of code that this crate adds.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Func, Function, Map, MemFlags, Op, Prov, Size, SlotData, Type, Value,
    Width,
};

/// Appends instructions to blocks of a function.
pub(crate) struct CodeWriter<'f> {
    pub(crate) func: &'f mut Function,
    /// Block that is being filled.
    pub(crate) block: Block,
    /// Line record of the instructions.
    pub(crate) line: u32,
}

impl<'f> CodeWriter<'f> {
    pub(crate) fn new(func: &'f mut Function, block: Block) -> CodeWriter<'f> {
        CodeWriter { func, block, line: u32::MAX }
    }

    pub(crate) fn value(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        let mut cursor = self.func.at_end(self.block);
        cursor.loc = self.line;
        cursor.value(op, args.iter().copied(), ty)
    }

    pub(crate) fn effect(&mut self, op: Op, args: &[Value], targets: &[BlockCall]) {
        let mut cursor = self.func.at_end(self.block);
        cursor.loc = self.line;
        cursor.effect(op, args.iter().copied(), targets.iter().cloned());
    }

    pub(crate) fn constant(&mut self, value: u64) -> Value {
        self.value(Op::Const { value: value as i64 }, &[], Type::I64)
    }

    pub(crate) fn alu(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        self.value(Op::Alu { op, width: Width::W64 }, &[a, b], Type::I64)
    }

    pub(crate) fn alu_with(&mut self, op: AluOp, a: Value, b: u64) -> Value {
        let b = self.constant(b);
        self.alu(op, a, b)
    }

    /// A pointer that is moved by a number of bytes.
    pub(crate) fn moved(&mut self, base: Value, bytes: Value) -> Value {
        let ty = self.func.types[base];
        self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, bytes], ty)
    }

    pub(crate) fn moved_by(&mut self, base: Value, bytes: u32) -> Value {
        let bytes = self.constant(u64::from(bytes));
        self.moved(base, bytes)
    }

    pub(crate) fn load(&mut self, base: Value, offset: i32, size: Size) -> Value {
        let ty = match size {
            Size::B => Type::I8,
            Size::H => Type::I16,
            Size::W => Type::I32,
            Size::Dw => Type::I64,
        };
        self.load_as(base, offset, size, ty)
    }

    pub(crate) fn load_as(&mut self, base: Value, offset: i32, size: Size, ty: Type) -> Value {
        self.value(Op::Load { size, sext: false, offset, flags: MemFlags::default() }, &[base], ty)
    }

    pub(crate) fn store(&mut self, base: Value, offset: i32, size: Size, value: Value) {
        self.effect(Op::Store { size, offset, flags: MemFlags::default() }, &[base, value], &[]);
    }

    /// A stack object of some bytes, and its address.
    pub(crate) fn stack(&mut self, size: u32) -> Value {
        let slot = self.func.slots.push(SlotData { size: size.max(1), align: 8, fixed: None });
        self.value(Op::StackAddr { slot, offset: 0 }, &[], Type::Ptr(Prov::Stack))
    }

    pub(crate) fn helper(&mut self, id: i32, args: &[Value]) -> Value {
        self.value(Op::Helper { id }, args, Type::I64)
    }

    pub(crate) fn map(&mut self, map: Map) -> Value {
        self.value(Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)))
    }

    pub(crate) fn call(&mut self, func: Func, args: &[Value]) -> Value {
        self.value(Op::Call { func }, args, Type::I64)
    }

    /// Looks up a key in memory: the value's address, or null.
    pub(crate) fn lookup(&mut self, map: Map, key: Value) -> Value {
        let address = self.map(map);
        let op = Op::Helper { id: millstream_isa::helpers::id::MAP_LOOKUP_ELEM };
        self.value(op, &[address, key], Type::Ptr(Prov::MapValueOrNull(map)))
    }

    /// Looks up a key of 32 bits.
    pub(crate) fn lookup_word(&mut self, map: Map, key: Value) -> Value {
        let at = self.stack(4);
        self.store(at, 0, Size::W, key);
        self.lookup(map, at)
    }

    pub(crate) fn new_block(&mut self) -> Block {
        self.func.add_block()
    }

    pub(crate) fn enter(&mut self, block: Block) {
        self.block = block;
    }

    pub(crate) fn jump(&mut self, block: Block, args: &[Value]) {
        self.effect(Op::Jump {}, &[], &[BlockCall::with(block, args.iter().copied())]);
    }

    pub(crate) fn branch(&mut self, cond: Cond, (a, b): (Value, Value), yes: Block, no: Block) {
        let op = Op::Branch { cond, width: Width::W64 };
        self.effect(op, &[a, b], &[BlockCall::new(yes), BlockCall::new(no)]);
    }

    /// Goes on only if a value compares so with a constant, and otherwise to `other`.
    pub(crate) fn require(&mut self, cond: Cond, value: Value, constant: u64, other: Block) {
        let next = self.new_block();
        let constant = self.constant(constant);
        self.branch(cond, (value, constant), next, other);
        self.enter(next);
    }

    pub(crate) fn leave(&mut self, value: u64) {
        let value = self.constant(value);
        self.effect(Op::Return {}, &[value], &[]);
    }

    /// Runs code for each multiple of 8 below a number of bytes.
    pub(crate) fn word_loop(&mut self, bytes: u32, body: impl FnOnce(&mut CodeWriter<'_>, Value)) {
        let (head, inside, behind) = (self.new_block(), self.new_block(), self.new_block());
        let counter = self.func.add_param(head, Type::I64);
        let zero = self.constant(0);
        self.jump(head, &[zero]);
        self.enter(head);
        let end = self.constant(u64::from(bytes.next_multiple_of(8)));
        self.branch(Cond::Lt, (counter, end), inside, behind);
        self.enter(inside);
        body(self, counter);
        let next = self.alu_with(AluOp::Add, counter, 8);
        self.jump(head, &[next]);
        self.enter(behind);
    }
}
