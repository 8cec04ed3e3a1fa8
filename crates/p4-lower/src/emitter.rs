//! Emission of instructions into a function: blocks, constants, memory.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Func, FuncCursor, Function, MemFlags, Op, Prov, Size, Slot, SlotData,
    SwapKind, Type, Value, Width,
};

/// A function that is being made.
pub(crate) struct Emitter {
    pub(crate) func: Function,
    /// Block that is being filled.
    pub(crate) block: Block,
    /// Bytes of all stack objects.
    pub(crate) stack_bytes: u64,
    /// Line record of the instructions that follow.
    line: u32,
}

/// Base of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressBase {
    Slot(Slot),
    Pointer(Value),
}

/// An address: a base, and bytes behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) base: AddressBase,
    pub(crate) offset: i32,
}

impl Address {
    pub(crate) fn slot(slot: Slot) -> Address {
        Address { base: AddressBase::Slot(slot), offset: 0 }
    }

    pub(crate) fn pointer(value: Value) -> Address {
        Address { base: AddressBase::Pointer(value), offset: 0 }
    }

    #[must_use]
    pub(crate) fn plus(self, bytes: u32) -> Address {
        Address { offset: self.offset.saturating_add(bytes as i32), ..self }
    }
}

impl Emitter {
    pub(crate) fn new(mut func: Function) -> Emitter {
        let block = func.add_block();
        Emitter { func, block, stack_bytes: 0, line: u32::MAX }
    }

    fn cursor(&mut self) -> FuncCursor<'_> {
        let mut cursor = self.func.at_end(self.block);
        cursor.loc = self.line;
        cursor
    }

    /// Sets the line record of the instructions that follow, by its number.
    pub(crate) fn set_line(&mut self, record: u32) {
        if self.func.locs.last() != Some(&record) {
            self.func.locs.push(record);
        }
        self.line = self.func.locs.len() as u32 - 1;
    }

    pub(crate) fn size(&self) -> usize {
        self.func.insts.len()
    }

    pub(crate) fn value(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.cursor().value(op, args.iter().copied(), ty)
    }

    pub(crate) fn effect(&mut self, op: Op, args: &[Value]) {
        self.cursor().effect(op, args.iter().copied(), []);
    }

    pub(crate) fn constant(&mut self, value: u64) -> Value {
        self.value(Op::Const { value: value as i64 }, &[], Type::I64)
    }

    pub(crate) fn truth(&mut self, value: bool) -> Value {
        self.value(Op::Const { value: i64::from(value) }, &[], Type::I1)
    }

    pub(crate) fn known(&self, value: Value) -> Option<u64> {
        self.func.as_const(value).map(|value| value as u64)
    }

    /// 64-bit arithmetic; constants and neutral operands are folded.
    pub(crate) fn alu(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        match (self.known(a), self.known(b)) {
            (Some(a), Some(b)) => {
                if let Some(value) = folded(op, a, b) {
                    return self.constant(value);
                }
            }
            (_, Some(0)) if matches!(op, AluOp::Or | AluOp::Lsh | AluOp::Rsh | AluOp::Add | AluOp::Sub) => {
                return a;
            }
            (Some(0), _) if matches!(op, AluOp::Or | AluOp::Add) => return b,
            (_, Some(u64::MAX)) if op == AluOp::And => return a,
            _ => {}
        }
        self.value(Op::Alu { op, width: Width::W64 }, &[a, b], Type::I64)
    }

    pub(crate) fn alu_with(&mut self, op: AluOp, a: Value, b: u64) -> Value {
        let b = self.constant(b);
        self.alu(op, a, b)
    }

    pub(crate) fn and(&mut self, a: Value, mask: u64) -> Value {
        self.alu_with(AluOp::And, a, mask)
    }

    pub(crate) fn compare(&mut self, cond: Cond, a: Value, b: Value) -> Value {
        self.value(Op::Cmp { cond, width: Width::W64 }, &[a, b], Type::I1)
    }

    pub(crate) fn compare_with(&mut self, cond: Cond, a: Value, b: u64) -> Value {
        let b = self.constant(b);
        self.compare(cond, a, b)
    }

    /// A truth value of a word that is 0 or 1.
    pub(crate) fn as_truth(&mut self, value: Value) -> Value {
        match self.func.types[value] {
            Type::I1 => value,
            _ => self.compare_with(Cond::Ne, value, 0),
        }
    }

    pub(crate) fn select(&mut self, truth: Value, yes: Value, no: Value) -> Value {
        let truth = self.as_truth(truth);
        self.value(Op::Select {}, &[truth, yes, no], Type::I64)
    }

    pub(crate) fn not(&mut self, truth: Value) -> Value {
        self.compare_with(Cond::Eq, truth, 0)
    }

    pub(crate) fn both(&mut self, a: Value, b: Value) -> Value {
        self.value(Op::Alu { op: AluOp::And, width: Width::W64 }, &[a, b], Type::I1)
    }

    pub(crate) fn either(&mut self, a: Value, b: Value) -> Value {
        self.value(Op::Alu { op: AluOp::Or, width: Width::W64 }, &[a, b], Type::I1)
    }

    /// Swaps between the byte order of the host and that of packets.
    pub(crate) fn swapped(&mut self, value: Value, size: Size) -> Value {
        match size {
            Size::B => value,
            _ => {
                let bits = size.bytes() as u8 * 8;
                self.value(Op::Swap { kind: SwapKind::ToBe, bits }, &[value], Type::I64)
            }
        }
    }

    pub(crate) fn slot(&mut self, size: u32) -> Slot {
        self.stack_bytes += u64::from(size.max(1));
        self.func.slots.push(SlotData { size: size.max(1), align: 8, fixed: None })
    }

    /// The address as a pointer.
    pub(crate) fn pointer(&mut self, at: Address) -> Value {
        match at.base {
            AddressBase::Slot(slot) => {
                self.value(Op::StackAddr { slot, offset: at.offset }, &[], Type::Ptr(Prov::Stack))
            }
            AddressBase::Pointer(base) if at.offset == 0 => base,
            AddressBase::Pointer(base) => {
                let offset = self.constant(i64::from(at.offset) as u64);
                self.offset_pointer(base, offset)
            }
        }
    }

    /// Moves a pointer by a number of bytes; the result keeps its provenance.
    pub(crate) fn offset_pointer(&mut self, base: Value, bytes: Value) -> Value {
        let ty = self.func.types[base];
        self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, bytes], ty)
    }

    fn base_of(&mut self, at: Address) -> (Value, i32) {
        match at.base {
            AddressBase::Slot(_) => (self.pointer(at), 0),
            AddressBase::Pointer(base) => (base, at.offset),
        }
    }

    pub(crate) fn load(&mut self, at: Address, size: Size) -> Value {
        let (base, offset) = self.base_of(at);
        let ty = match size {
            Size::B => Type::I8,
            Size::H => Type::I16,
            Size::W => Type::I32,
            Size::Dw => Type::I64,
        };
        self.value(Op::Load { size, sext: false, offset, flags: MemFlags::default() }, &[base], ty)
    }

    pub(crate) fn store(&mut self, at: Address, size: Size, value: Value) {
        let (base, offset) = self.base_of(at);
        self.effect(Op::Store { size, offset, flags: MemFlags::default() }, &[base, value]);
    }

    pub(crate) fn store_constant(&mut self, at: Address, size: Size, value: u64) {
        let value = self.constant(value);
        self.store(at, size, value);
    }

    pub(crate) fn new_block(&mut self) -> Block {
        self.func.add_block()
    }

    pub(crate) fn enter(&mut self, block: Block) {
        self.block = block;
    }

    pub(crate) fn jump(&mut self, block: Block) {
        self.cursor().effect(Op::Jump {}, [], [BlockCall::new(block)]);
    }

    pub(crate) fn jump_with(&mut self, block: Block, args: &[Value]) {
        let target = BlockCall::with(block, args.iter().copied());
        self.cursor().effect(Op::Jump {}, [], [target]);
    }

    /// Ends the block with a jump, and goes on in a block that nothing reaches.
    pub(crate) fn leave_to(&mut self, block: Block) {
        self.jump(block);
        let dead = self.new_block();
        self.enter(dead);
    }

    pub(crate) fn branch(&mut self, cond: Cond, a: Value, b: Value, yes: Block, no: Block) {
        let op = Op::Branch { cond, width: Width::W64 };
        self.cursor().effect(op, [a, b], [BlockCall::new(yes), BlockCall::new(no)]);
    }

    pub(crate) fn branch_if(&mut self, truth: Value, yes: Block, no: Block) {
        let zero = self.constant(0);
        self.branch(Cond::Ne, truth, zero, yes, no);
    }

    /// Branches to a new block if the condition holds, or the pointer is not null, and returns the block of the
    /// other case, which is entered later.
    pub(crate) fn split(&mut self, truth: Value) -> Block {
        let (yes, no) = (self.new_block(), self.new_block());
        self.branch_if(truth, yes, no);
        self.enter(yes);
        no
    }

    /// Runs code only if a condition holds.
    pub(crate) fn when<T>(&mut self, truth: Value, code: impl FnOnce(&mut Emitter) -> T) -> T {
        let behind = self.split(truth);
        let result = code(self);
        self.jump(behind);
        self.enter(behind);
        result
    }

    pub(crate) fn call(&mut self, func: Func, args: &[Value]) -> Value {
        self.value(Op::Call { func }, args, Type::Any)
    }

    pub(crate) fn helper(&mut self, id: i32, args: &[Value]) -> Value {
        self.value(Op::Helper { id }, args, Type::I64)
    }

    pub(crate) fn parameter(&mut self, block: Block, ty: Type) -> Value {
        self.func.add_param(block, ty)
    }

    pub(crate) fn finish(self) -> Function {
        self.func
    }
}

fn folded(op: AluOp, a: u64, b: u64) -> Option<u64> {
    Some(match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::And => a & b,
        AluOp::Or => a | b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh if b < 64 => a << b,
        AluOp::Rsh if b < 64 => a >> b,
        _ => return None,
    })
}
