//! Functions: values, instructions, blocks, stack objects.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use smallvec::SmallVec;

use crate::entities::*;
use crate::op::{Op, ResultKind};
use crate::types::Type;

/// Definition of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// The result of an instruction.
    Inst(Inst),
    /// A parameter of a block, by position.
    Param(Block, u16),
}

/// A branch target with the arguments for its parameters.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BlockCall {
    /// The target.
    pub block: Block,
    /// One argument a parameter.
    pub args: SmallVec<[Value; 4]>,
}

impl BlockCall {
    /// A target without arguments.
    pub fn new(block: Block) -> Self {
        BlockCall { block, args: SmallVec::new() }
    }

    /// A target with arguments.
    pub fn with(block: Block, args: impl IntoIterator<Item = Value>) -> Self {
        BlockCall { block, args: args.into_iter().collect() }
    }
}

/// An instruction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct InstData {
    /// Its operation.
    pub op: Op,
    /// Its arguments.
    pub args: SmallVec<[Value; 3]>,
    /// Branch targets: for a branch the taken one first.
    pub targets: SmallVec<[BlockCall; 2]>,
    /// Its result, if the operation has one.
    pub result: PackedOption<Value>,
    /// Index of the source line record it stems from in [`Function::locs`] order; `u32::MAX` if none.
    pub loc: u32,
}

/// Parameters and instructions of a block.
#[derive(Clone, Debug, Default)]
pub struct BlockData {
    /// Parameters.
    pub params: Vec<Value>,
    /// Instructions, the last a terminator.
    pub insts: Vec<Inst>,
}

/// A stack object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotData {
    /// Bytes.
    pub size: u32,
    /// Alignment in bytes, a power of two up to 8.
    pub align: u32,
    /// Fixed offset from the frame pointer (negative), where the layout must be kept.
    pub fixed: Option<i32>,
}

/// Linkage of a function: its possible callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// A program that the kernel calls, of this `enum bpf_prog_type`.
    Program {
        /// Program type number.
        prog_type: u32,
    },
    /// Verified on its own; the prototype is part of its interface.
    Global,
    /// Verified in the context of each caller.
    Static,
    /// As a static function, with callers that the module does not show: in files that this one is to be
    /// linked with.
    Hidden,
}

impl Linkage {
    /// Returns true if the kernel verifies such a function in the context of each caller, so that it may be
    /// inlined.
    pub fn is_local(&self) -> bool {
        matches!(self, Linkage::Static | Linkage::Hidden)
    }
}

/// A function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Symbol name.
    pub name: String,
    /// Its possible callers.
    pub linkage: Linkage,
    /// True if callers may use its result.
    pub returns: bool,
    /// Blocks in layout order; the first is the entry, whose parameters are the function's.
    pub layout: Vec<Block>,
    /// All blocks.
    pub blocks: PrimaryMap<Block, BlockData>,
    /// All instructions.
    pub insts: PrimaryMap<Inst, InstData>,
    /// Definitions of all values.
    pub defs: PrimaryMap<Value, ValueDef>,
    /// Types of all values.
    pub types: SecondaryMap<Value, Type>,
    /// Stack objects.
    pub slots: PrimaryMap<Slot, SlotData>,
    /// Source line records that instructions refer to by index: opaque to the IR, owned by the front end.
    pub locs: Vec<u32>,
}

impl Function {
    /// A function without blocks.
    pub fn new(name: impl Into<String>, linkage: Linkage) -> Self {
        Function {
            name: name.into(),
            linkage,
            returns: true,
            layout: Vec::new(),
            blocks: PrimaryMap::new(),
            insts: PrimaryMap::new(),
            defs: PrimaryMap::new(),
            types: SecondaryMap::with_default(Type::Any),
            slots: PrimaryMap::new(),
            locs: Vec::new(),
        }
    }

    /// The entry block.
    ///
    /// # Panics
    /// If the function has no block.
    pub fn entry(&self) -> Block {
        self.layout[0]
    }

    /// Appends an empty block to the layout.
    pub fn add_block(&mut self) -> Block {
        let block = self.blocks.push(BlockData::default());
        self.layout.push(block);
        block
    }

    /// Appends a parameter to a block.
    pub fn add_param(&mut self, block: Block, ty: Type) -> Value {
        let index = self.blocks[block].params.len() as u16;
        let value = self.defs.push(ValueDef::Param(block, index));
        self.types[value] = ty;
        self.blocks[block].params.push(value);
        value
    }

    /// Makes an instruction that is in no block yet, with a result of type `ty` if the operation has one.
    pub fn make_inst(
        &mut self,
        op: Op,
        args: impl IntoIterator<Item = Value>,
        targets: impl IntoIterator<Item = BlockCall>,
        ty: Type,
    ) -> Inst {
        let has_result = op.result_kind() == ResultKind::Value;
        let inst = self.insts.push(InstData {
            op,
            args: args.into_iter().collect(),
            targets: targets.into_iter().collect(),
            result: None.into(),
            loc: u32::MAX,
        });
        if has_result {
            let value = self.defs.push(ValueDef::Inst(inst));
            self.types[value] = ty;
            self.insts[inst].result = value.into();
        }
        inst
    }

    /// Removes the instruction at a position of a block, and moves those behind it to a block of their own
    /// that is not in the layout yet. The result of the instruction becomes a parameter of that block.
    pub fn split_block_at(&mut self, block: Block, at: usize) -> Block {
        let rest = self.blocks[block].insts.split_off(at + 1);
        let removed = self.blocks[block].insts.pop();
        let behind = self.blocks.push(BlockData::default());
        self.blocks[behind].insts = rest;
        if let Some(result) = removed.and_then(|inst| self.result(inst)) {
            self.blocks[behind].params.push(result);
            self.defs[result] = ValueDef::Param(behind, 0);
        }
        behind
    }

    /// The result of an instruction.
    pub fn result(&self, inst: Inst) -> Option<Value> {
        self.insts[inst].result.expand()
    }

    /// The instruction that defines a value, unless it is a parameter.
    pub fn def_inst(&self, value: Value) -> Option<Inst> {
        match self.defs[value] {
            ValueDef::Inst(inst) => Some(inst),
            ValueDef::Param(..) => None,
        }
    }

    /// The operation that defines a value, unless it is a parameter.
    pub fn def_op(&self, value: Value) -> Option<&Op> {
        self.def_inst(value).map(|inst| &self.insts[inst].op)
    }

    /// The value, if it is a constant.
    pub fn as_const(&self, value: Value) -> Option<i64> {
        match self.def_op(value)? {
            Op::Const { value } => Some(*value),
            _ => None,
        }
    }

    /// The terminator of a block, if it has one.
    pub fn terminator(&self, block: Block) -> Option<Inst> {
        let last = *self.blocks[block].insts.last()?;
        self.insts[last].op.is_terminator().then_some(last)
    }

    /// The targets of a block's terminator.
    pub fn targets(&self, block: Block) -> &[BlockCall] {
        self.terminator(block).map_or(&[], |t| &self.insts[t].targets)
    }

    /// Every instruction in layout order, with its block.
    pub fn insts_in_order(&self) -> impl Iterator<Item = (Block, Inst)> + '_ {
        self.layout.iter().flat_map(|&b| self.blocks[b].insts.iter().map(move |&i| (b, i)))
    }

    /// Calls `f` on every argument of an instruction, branch arguments included.
    pub fn for_each_use(&self, inst: Inst, mut f: impl FnMut(Value)) {
        let data = &self.insts[inst];
        data.args.iter().copied().for_each(&mut f);
        data.targets.iter().flat_map(|t| t.args.iter().copied()).for_each(f);
    }

    /// Number of uses of each value.
    pub fn use_counts(&self) -> SecondaryMap<Value, u32> {
        let mut counts = SecondaryMap::with_capacity(self.defs.len());
        for (_, inst) in self.insts_in_order() {
            self.for_each_use(inst, |v| counts[v] += 1);
        }
        counts
    }

    /// Replaces each value by the one in `subst`, following chains, in all instructions.
    pub fn substitute(&mut self, subst: &SecondaryMap<Value, PackedOption<Value>>) {
        let resolve = |mut v: Value| {
            while let Some(next) = subst[v].expand() {
                v = next;
            }
            v
        };
        for &block in &self.layout {
            for &inst in &self.blocks[block].insts {
                let data = &mut self.insts[inst];
                data.args.iter_mut().for_each(|v| *v = resolve(*v));
                data.targets.iter_mut().flat_map(|t| t.args.iter_mut()).for_each(|v| *v = resolve(*v));
            }
        }
    }

    /// Removes parameter `index` of `block`, and the argument of every branch to it.
    pub fn remove_param(&mut self, block: Block, index: usize) {
        self.blocks[block].params.remove(index);
        for (i, &p) in self.blocks[block].params.iter().enumerate() {
            self.defs[p] = ValueDef::Param(block, i as u16);
        }
        for i in 0..self.layout.len() {
            if let Some(term) = self.terminator(self.layout[i]) {
                for target in self.insts[term].targets.iter_mut().filter(|t| t.block == block) {
                    target.args.remove(index);
                }
            }
        }
    }

    /// A cursor that appends to `block`.
    pub fn at_end(&mut self, block: Block) -> FuncCursor<'_> {
        let at = self.blocks[block].insts.len();
        FuncCursor { func: self, block, at, loc: u32::MAX }
    }

    /// A cursor that inserts before position `at` of `block`.
    pub fn at(&mut self, block: Block, at: usize) -> FuncCursor<'_> {
        FuncCursor { func: self, block, at, loc: u32::MAX }
    }
}

/// Inserts instructions at a place in a block.
pub struct FuncCursor<'f> {
    /// The function.
    pub func: &'f mut Function,
    /// The block.
    pub block: Block,
    /// Position in the block where the next instruction goes.
    pub at: usize,
    /// Source line record of the inserted instructions.
    pub loc: u32,
}

impl FuncCursor<'_> {
    /// Inserts an instruction.
    pub fn inst(
        &mut self,
        op: Op,
        args: impl IntoIterator<Item = Value>,
        targets: impl IntoIterator<Item = BlockCall>,
        ty: Type,
    ) -> Inst {
        let inst = self.func.make_inst(op, args, targets, ty);
        self.func.insts[inst].loc = self.loc;
        self.func.blocks[self.block].insts.insert(self.at, inst);
        self.at += 1;
        inst
    }

    /// Inserts an instruction that has a result.
    ///
    /// # Panics
    /// If the operation has none.
    pub fn value(&mut self, op: Op, args: impl IntoIterator<Item = Value>, ty: Type) -> Value {
        let inst = self.inst(op, args, [], ty);
        self.func.result(inst).expect("the operation has a result")
    }

    /// Inserts a constant.
    pub fn iconst(&mut self, value: i64) -> Value {
        self.value(Op::Const { value }, [], Type::I64)
    }

    /// Inserts a terminator or another instruction without result.
    pub fn effect(
        &mut self,
        op: Op,
        args: impl IntoIterator<Item = Value>,
        targets: impl IntoIterator<Item = BlockCall>,
    ) -> Inst {
        self.inst(op, args, targets, Type::Any)
    }
}
