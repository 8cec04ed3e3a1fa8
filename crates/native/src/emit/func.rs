//! One function: blocks, values and operations.

use std::collections::BTreeMap;
use std::fmt::Write;

use cranelift_entity::EntityRef;
use millstream_ir::{
    AluOp, AtomicOp, Block, Cfg, Func, Function, Inst, InstData, Op, PacketVerdict, Prov, Type, Value, Width,
    op_group,
};
use millstream_isa::Size;
use millstream_isa::semantics;

use super::code::LlvmTextBuilder;
use super::debug_lines::{self, DebugLocation, DebugScope};
use super::keys::StoreBoundaries;
use super::{CodegenUnit, EmitError, maps};
use millstream_native_runtime::packet::DescriptorField;

/// Kinds of memory that do not overlap.
pub(super) const METADATA: &str = "!0 = !{!\"millstream\"}
!1 = !{!\"packet\", !0, i64 0}
!2 = !{!\"context\", !0, i64 0}
!3 = !{!\"map value\", !0, i64 0}
!4 = !{!1, !1, i64 0}
!5 = !{!2, !2, i64 0}
!6 = !{!3, !3, i64 0}
!7 = !{}
";

/// Bytes of stack objects of a pipeline's function that are in its frame; the others have memory of their
/// own, since a pipeline has one worker and its functions do not call themselves.
const MOST_FRAME_BYTES: u32 = 128 << 10;

/// Iterations that a `may_goto` allows.
const MAY_GOTO_BUDGET: u64 = 1 << 23;

/// Arguments of a block from one predecessor: the label of the block that the edge leaves, and the operands.
type PhiIncoming = (String, Vec<String>);

/// A function under construction.
pub(super) struct FunctionEmitter<'a> {
    pub(super) unit: &'a CodegenUnit<'a>,
    pub(super) func: &'a Function,
    /// Its name; and, unless it is a slice, its number.
    symbol: String,
    id: Option<Func>,
    /// Fetching stage, if it is a slice ([`crate::prefetch`]).
    pub(super) stage: Option<u32>,
    pub(super) code: LlvmTextBuilder,
    /// Allocations, which belong in the function's entry block.
    entry: String,
    /// Objects that are not in the function's frame.
    globals: String,
    allocations: u32,
    edges: BTreeMap<Block, Vec<PhiIncoming>>,
    pub(super) seams: StoreBoundaries,
}

/// Writes a function and, if its address is taken, the form that the runtime calls.
pub(super) fn emit(unit: &CodegenUnit<'_>, id: Func) -> Result<String, EmitError> {
    let func = &unit.module.funcs[id];
    let mut emitter = FunctionEmitter::new(unit, func, format!("fn{}", id.index()));
    emitter.id = Some(id);
    if func.layout.is_empty() {
        return Err(emitter.cannot(&Op::Call { func: id }, "its body is not in this object"));
    }
    emitter.function()
}

/// Writes a stage of a slice, `i64 @slice{stage}(ptr worker, ptr packet)`.
pub(super) fn slice(unit: &CodegenUnit<'_>, func: &Function, stage: u32) -> Result<String, EmitError> {
    let mut emitter = FunctionEmitter::new(unit, func, format!("slice{stage}"));
    emitter.stage = Some(stage);
    emitter.function()
}

fn label(block: Block) -> String {
    format!("b{}", block.index())
}

pub(super) fn name(value: Value) -> String {
    format!("%v{}", value.index())
}

impl<'a> FunctionEmitter<'a> {
    fn new(unit: &'a CodegenUnit<'a>, func: &'a Function, symbol: String) -> FunctionEmitter<'a> {
        FunctionEmitter {
            unit,
            func,
            symbol,
            id: None,
            stage: None,
            code: LlvmTextBuilder::default(),
            entry: String::new(),
            globals: String::new(),
            allocations: 0,
            edges: BTreeMap::new(),
            seams: StoreBoundaries::new(func),
        }
    }
}

impl FunctionEmitter<'_> {
    pub(super) fn cannot(&self, op: &Op, why: &'static str) -> EmitError {
        EmitError::Op { func: self.func.name.clone(), op: op.mnemonic().to_owned(), why }
    }

    fn is_ptr(&self, value: Value) -> bool {
        self.func.types[value].prov().is_some()
    }

    fn type_of(&self, value: Value) -> &'static str {
        if self.is_ptr(value) { "ptr" } else { "i64" }
    }

    fn function(&mut self) -> Result<String, EmitError> {
        let params = self.func.blocks[self.func.entry()].params.clone();
        self.slots();
        let order = Cfg::new(self.func).rpo;
        let mut bodies = Vec::new();
        for &block in &order {
            self.code.text.clear();
            self.code.label = label(block);
            for &inst in &self.func.blocks[block].insts {
                let from = self.code.text.len();
                self.inst(inst)?;
                if self.unit.located {
                    let behind = self.scope().at(Some(self.place_of(inst)));
                    debug_lines::mark(&mut self.code.text, from, &behind);
                }
            }
            bodies.push(std::mem::take(&mut self.code.text));
        }
        let list: String = params.iter().map(|&p| format!(", {} {}", self.type_of(p), name(p))).collect();
        let scope = if self.unit.located { self.scope().attached() } else { String::new() };
        let mut out = std::mem::take(&mut self.globals);
        let _ = writeln!(out, "define internal i64 @{}(ptr %w{list}) nounwind{scope} {{", self.symbol);
        out.push_str(&self.entry);
        let _ = writeln!(out, "  br label %{}", label(self.func.entry()));
        for (block, body) in order.iter().zip(bodies) {
            let _ = writeln!(out, "{}:", label(*block));
            out.push_str(&self.phis(*block)?);
            out.push_str(&body);
        }
        out.push_str("}\n");
        out.push_str(&self.callback(&params));
        Ok(out)
    }

    /// Makes the stack objects.
    fn slots(&mut self) {
        let mut used = 0u32;
        for (at, slot) in self.func.slots.values().enumerate() {
            let (size, align) = (slot.size.max(1), slot.align.max(1));
            let object = format!("[{size} x i8]");
            used = used.saturating_add(size.next_multiple_of(align));
            let _ = match self.unit.is_pipeline() && used > MOST_FRAME_BYTES {
                true => {
                    let name = format!("@{}s{at}", self.symbol);
                    let _ = writeln!(
                        self.globals,
                        "{name} = internal global {object} zeroinitializer, align {align}"
                    );
                    writeln!(self.entry, "  %s{at} = getelementptr i8, ptr {name}, i64 0")
                }
                false => writeln!(self.entry, "  %s{at} = alloca {object}, align {align}"),
            };
        }
    }

    fn scope(&self) -> DebugScope {
        match (self.stage, self.id) {
            (Some(stage), _) => DebugScope::Slice(stage),
            (None, id) => DebugScope::Function(id.unwrap_or(self.unit.entry)),
        }
    }

    /// Source place of an instruction.
    fn place_of(&self, inst: Inst) -> DebugLocation {
        let id = self.id.unwrap_or(self.unit.entry);
        DebugLocation::of(id, &self.func.insts[inst], self.unit.module.funcs.len(), self.stage.is_some())
    }

    /// The block's parameters, as phis of the arguments on each edge.
    fn phis(&self, block: Block) -> Result<String, EmitError> {
        let mut out = String::new();
        let edges = self.edges.get(&block).map_or(&[][..], Vec::as_slice);
        if block == self.func.entry() {
            return match edges.is_empty() {
                true => Ok(out),
                false => Err(self.cannot(&Op::Jump {}, "it goes back to the function's beginning")),
            };
        }
        for (i, &param) in self.func.blocks[block].params.iter().enumerate() {
            let from: Vec<String> =
                edges.iter().map(|(label, args)| format!("[ {}, %{label} ]", args[i])).collect();
            let _ = writeln!(out, "  {} = phi {} {}", name(param), self.type_of(param), from.join(", "));
        }
        Ok(out)
    }

    /// The form with five argument registers.
    fn callback(&self, params: &[Value]) -> String {
        let Some(id) = self.id else { return String::new() };
        let taken = self.unit.module.funcs.values().any(|f| {
            f.insts_in_order()
                .any(|(_, inst)| matches!(f.insts[inst].op, Op::FuncAddr { func } if func == id))
        });
        if !taken || params.len() > 5 {
            return String::new();
        }
        let id = id.index();
        let mut out =
            format!("define internal i64 @cb{id}(ptr %w, i64 %a0, i64 %a1, i64 %a2, i64 %a3, i64 %a4) {{\n");
        let mut passed = String::new();
        for (i, &param) in params.iter().enumerate() {
            match self.is_ptr(param) {
                true => {
                    let _ = writeln!(out, "  %p{i} = inttoptr i64 %a{i} to ptr");
                    let _ = write!(passed, ", ptr %p{i}");
                }
                false => {
                    let _ = write!(passed, ", i64 %a{i}");
                }
            }
        }
        let _ = write!(out, "  %r = call i64 @fn{id}(ptr %w{passed})\n  ret i64 %r\n}}\n");
        if self.unit.located { debug_lines::in_scope(&out, DebugScope::Caller(Func::new(id))) } else { out }
    }

    /// The value as a 64-bit integer.
    pub(super) fn int(&mut self, value: Value) -> String {
        if let Some(constant) = self.func.as_const(value) {
            return constant.to_string();
        }
        match self.is_ptr(value) {
            true => self.code.value(&format!("ptrtoint ptr {} to i64", name(value))),
            false => name(value),
        }
    }

    /// The value as a pointer.
    pub(super) fn ptr(&mut self, value: Value) -> String {
        if self.is_ptr(value) {
            return name(value);
        }
        let int = self.int(value);
        self.code.value(&format!("inttoptr i64 {int} to ptr"))
    }

    /// The value converted to the type of another value.
    fn like(&mut self, value: Value, other: Value) -> String {
        if self.is_ptr(other) { self.ptr(value) } else { self.int(value) }
    }

    /// Defines a result from an integer operand.
    pub(super) fn define_int(&mut self, result: Option<Value>, operand: &str) {
        let Some(result) = result else { return };
        let text = match self.is_ptr(result) {
            true => format!("inttoptr i64 {operand} to ptr"),
            false => format!("add i64 {operand}, 0"),
        };
        self.code.named(&name(result), &text);
    }

    /// Defines a result from a pointer operand.
    pub(super) fn define_ptr(&mut self, result: Option<Value>, operand: &str) {
        let Some(result) = result else { return };
        let text = match self.is_ptr(result) {
            true => format!("getelementptr i8, ptr {operand}, i64 0"),
            false => format!("ptrtoint ptr {operand} to i64"),
        };
        self.code.named(&name(result), &text);
    }

    fn inst(&mut self, inst: Inst) -> Result<(), EmitError> {
        let data = &self.func.insts[inst];
        if data.op.is_terminator() {
            return self.terminator(inst);
        }
        let result = data.result.expand();
        match &data.op {
            Op::Const { value } | Op::CoreConst { local: value, .. } => {
                self.define_int(result, &value.to_string());
            }
            Op::Undef {} => self.define_int(result, "0"),
            Op::MapAddr { map } => {
                let address = self.map(*map)?.address.to_string();
                self.define_int(result, &address);
            }
            Op::MapValueAddr { map, offset } => {
                let info = self.map(*map)?;
                let first = info.first_value;
                let first = first.ok_or_else(|| self.cannot(&data.op, "the map has no values in memory"))?;
                let address = (first + u64::from(*offset)).to_string();
                match info.own {
                    0 => self.define_int(result, &address),
                    own => {
                        let first = self.code.value(&format!("inttoptr i64 {address} to ptr"));
                        let mine = format!("{first}.own");
                        self.code.text.push_str(&maps::own_copy(own, &first, &mine));
                        self.define_ptr(result, &mine);
                    }
                }
            }
            Op::FuncAddr { func } => {
                let callee = format!("@cb{}", func.index());
                self.define_ptr(result, &callee);
            }
            Op::StackAddr { slot, offset } => {
                let text = format!("getelementptr i8, ptr %s{}, i64 {offset}", slot.index());
                let at = self.code.value(&text);
                self.define_ptr(result, &at);
            }
            Op::Verdict { verdict } => self.define_int(result, &verdict_number(*verdict).to_string()),
            Op::Alu { op, width } => self.alu(*op, *width, data),
            Op::Select {} => self.select(data),
            Op::MapLookup { .. } | Op::MapUpdate { .. } | Op::MapDelete { .. } => self.map_op(data)?,
            Op::Helper { id } => self.helper(*id, data)?,
            Op::Call { func } => self.call(*func, data),
            Op::TableMatch { table } => self.match_table(*table, data),
            Op::CallIndirect {} => self.call_indirect(data),
            Op::Neg { width } => self.unary(data, |code, a| semantics::neg(code, *width, a)),
            Op::Zext {} => self.unary(data, |code, a| semantics::mov(code, Width::W32, a)),
            Op::Sext { bits, width } => {
                self.unary(data, |code, a| semantics::movsx(code, *width, u32::from(*bits), a));
            }
            Op::Swap { kind, bits } => {
                self.unary(data, |code, a| semantics::swap(code, *kind, u32::from(*bits), a));
            }
            Op::Cmp { cond, width } => {
                let (a, b) = (self.int(data.args[0]), self.int(data.args[1]));
                let truth = semantics::cond(&mut self.code, *cond, *width, &a, &b);
                let value = self.code.value(&format!("zext i1 {truth} to i64"));
                self.define_int(result, &value);
            }
            Op::SetBounds {} => self.set_bounds(data.args[0], data.args[1], data.args[2]),
            Op::Emit {} => self.send(data.args[0], data.args[1]),
            Op::ClonePacket {} => self.clone_packet(data.args[0], result),
            Op::Hold { end } => self.hold(data.args[0], data.args[1], *end),
            Op::Pull {} => self.pull(data.args[0], result),
            op_group!(access) => self.memory(data)?,
            Op::ExternAddr { .. }
            | Op::AddrSpaceCast { .. }
            | Op::LegacyLoad { .. }
            | Op::Kfunc { .. }
            | op_group!(terminator) => {
                return Err(self.cannot(&data.op, "it is not for packet programs of this kind"));
            }
        }
        Ok(())
    }

    /// An operation on one integer.
    fn unary(&mut self, data: &InstData, operation: impl FnOnce(&mut LlvmTextBuilder, &String) -> String) {
        let operand = self.int(data.args[0]);
        let value = operation(&mut self.code, &operand);
        self.define_int(data.result.expand(), &value);
    }

    fn alu(&mut self, op: AluOp, width: Width, data: &InstData) {
        let result = data.result.expand();
        let (a, b) = (data.args[0], data.args[1]);
        let adds = op == AluOp::Add && width == Width::W64 && result.is_some_and(|r| self.is_ptr(r));
        // Emitted as address arithmetic, so that LLVM knows the underlying object.
        if adds && (self.is_ptr(a) != self.is_ptr(b)) {
            let (base, offset) = if self.is_ptr(a) { (a, b) } else { (b, a) };
            let (base, offset) = (self.ptr(base), self.int(offset));
            let at = self.code.value(&format!("getelementptr i8, ptr {base}, i64 {offset}"));
            return self.define_ptr(result, &at);
        }
        let (a, b) = (self.int(a), self.int(b));
        let value = semantics::alu(&mut self.code, op, width, &a, &b);
        self.define_int(result, &value);
    }

    fn select(&mut self, data: &InstData) {
        let Some(result) = data.result.expand() else { return };
        let truth = self.int(data.args[0]);
        let (yes, no) = (self.like(data.args[1], result), self.like(data.args[2], result));
        let truth = self.code.value(&format!("icmp ne i64 {truth}, 0"));
        let ty = self.type_of(result);
        self.code.named(&name(result), &format!("select i1 {truth}, {ty} {yes}, {ty} {no}"));
    }

    /// The address of an access, and the kind of memory that it touches.
    fn place(&mut self, data: &InstData, offset: i32) -> (String, &'static str) {
        let base = self.ptr(data.args[0]);
        let at = self.code.value(&format!("getelementptr i8, ptr {base}, i64 {offset}"));
        let kind = match self.func.types[data.args[0]] {
            Type::Ptr(Prov::Packet | Prov::PacketMeta | Prov::PacketEnd) => ", !tbaa !4",
            Type::Ptr(Prov::Ctx) => ", !tbaa !5",
            Type::Ptr(Prov::MapValue(_) | Prov::MapValueOrNull(_)) => ", !tbaa !6",
            _ => "",
        };
        (at, kind)
    }

    /// A field of the packet's descriptor, loaded from its place.
    fn field(&mut self, data: &InstData, field: DescriptorField) -> Result<(), EmitError> {
        let sext = matches!(data.op, Op::Load { sext: true, .. });
        let value = match (self.unit.layout.offset(field), field) {
            (Some(offset), _) => self.load(data, Size::W, offset as i32),
            // Value for programs that are not in a device map.
            (None, DescriptorField::Egress) => "0".to_owned(),
            (None, _) => return Err(self.cannot(&data.op, "its descriptors are to have no such field")),
        };
        let value = semantics::loaded(&mut self.code, Size::W, sext, &value);
        self.define_int(data.result.expand(), &value);
        Ok(())
    }

    /// Accesses to memory.
    fn memory(&mut self, data: &InstData) -> Result<(), EmitError> {
        let base = data.args.first().map(|&v| self.func.types[v]);
        match (base, &data.op) {
            (Some(Type::Ptr(Prov::Btf)), Op::Load { .. }) => {
                return Err(self.cannot(&data.op, "it reads a kernel object"));
            }
            // The state of a packet is plain memory.
            (Some(Type::Ptr(Prov::Ctx)), _) if self.unit.is_pipeline() => {}
            (Some(Type::Ptr(Prov::Ctx)), Op::Load { size, offset, .. }) => {
                let field = DescriptorField::of_context(*offset).filter(|_| *size == Size::W);
                return self.field(
                    data,
                    field.ok_or_else(|| self.cannot(&data.op, "no such field of the context"))?,
                );
            }
            (Some(Type::Ptr(Prov::Ctx)), Op::Store { .. }) => {
                return Err(self.cannot(&data.op, "the context is not to be written"));
            }
            _ => {}
        }
        let result = data.result.expand();
        match &data.op {
            Op::Load { size, sext, offset, .. } => {
                let value = self.load(data, *size, *offset);
                let value = semantics::loaded(&mut self.code, *size, *sext, &value);
                self.define_int(result, &value);
            }
            Op::LoadAcquire { size, offset } => {
                let value = match self.in_order(data) {
                    true => {
                        let (at, _) = self.place(data, *offset);
                        let (bits, align) = (size.bits(), size.bytes());
                        self.code.value(&format!("load atomic i{bits}, ptr {at} acquire, align {align}"))
                    }
                    false => self.load(data, *size, *offset),
                };
                let value = semantics::loaded(&mut self.code, *size, false, &value);
                self.define_int(result, &value);
            }
            Op::Store { size, offset, .. } | Op::StoreRelease { size, offset } => {
                let value = self.int(data.args[1]);
                let value = semantics::stored(&mut self.code, *size, &value);
                if matches!(data.op, Op::StoreRelease { .. }) && self.in_order(data) {
                    let (at, _) = self.place(data, *offset);
                    let (bits, align) = (size.bits(), size.bytes());
                    self.code.line(&format!("store atomic i{bits} {value}, ptr {at} release, align {align}"));
                } else {
                    self.store(data, *size, *offset, &value);
                }
            }
            Op::Atomic { op, size, offset } | Op::AtomicFetch { op, size, offset } => {
                let operand = self.int(data.args[1]);
                self.atomic(data, *op, *size, *offset, &operand, "0");
            }
            Op::CmpXchg { size, offset } => {
                let (expected, new) = (self.int(data.args[1]), self.int(data.args[2]));
                self.atomic(data, AtomicOp::CmpXchg, *size, *offset, &new, &expected);
            }
            op => return Err(self.cannot(op, "it is not for packet programs of this kind")),
        }
        Ok(())
    }

    fn load(&mut self, data: &InstData, size: Size, offset: i32) -> String {
        let (at, kind) = self.place(data, offset);
        let value = self.code.value(&format!("load i{}, ptr {at}, align 1{kind}", size.bits()));
        // Stack memory that was never written has an arbitrary value in BPF; in LLVM it must not decide a
        // branch.
        match kind.is_empty() {
            true => self.code.value(&format!("freeze i{} {value}", size.bits())),
            false => value,
        }
    }

    fn store(&mut self, data: &InstData, size: Size, offset: i32, value: &str) {
        let (at, kind) = self.place(data, offset);
        self.code.line(&format!("store i{} {value}, ptr {at}, align 1{kind}", size.bits()));
    }

    fn atomic(
        &mut self,
        data: &InstData,
        op: AtomicOp,
        size: Size,
        offset: i32,
        operand: &str,
        expected: &str,
    ) {
        if self.in_order(data) {
            return self.atomic_in_order(data, op, size, offset, operand, expected);
        }
        let old = self.load(data, size, offset);
        let (operand, expected) = (operand.to_owned(), expected.to_owned());
        let done = semantics::atomic(&mut self.code, op, size, &old, &operand, &expected);
        self.store(data, size, offset, &done.memory);
        self.define_int(data.result.expand(), &done.fetched);
    }

    /// Returns true if other workers see the memory of an access, so that ordering matters.
    fn in_order(&self, data: &InstData) -> bool {
        let own = |ty| matches!(ty, Type::Ptr(Prov::Stack | Prov::Packet | Prov::PacketMeta | Prov::Ctx));
        self.unit.shared && !data.args.first().is_some_and(|&base| own(self.func.types[base]))
    }

    fn atomic_in_order(
        &mut self,
        data: &InstData,
        op: AtomicOp,
        size: Size,
        offset: i32,
        operand: &str,
        expected: &str,
    ) {
        let (at, _) = self.place(data, offset);
        let (bits, align) = (size.bits(), size.bytes());
        let (operand, expected) = (operand.to_owned(), expected.to_owned());
        let operand = semantics::stored(&mut self.code, size, &operand);
        let word = match op {
            AtomicOp::Add => "add",
            AtomicOp::Or => "or",
            AtomicOp::And => "and",
            AtomicOp::Xor => "xor",
            AtomicOp::Xchg => "xchg",
            AtomicOp::CmpXchg => {
                let expected = semantics::stored(&mut self.code, size, &expected);
                let both = self.code.value(&format!(
                    "cmpxchg ptr {at}, i{bits} {expected}, i{bits} {operand} seq_cst seq_cst, align {align}"
                ));
                let old = self.code.value(&format!("extractvalue {{ i{bits}, i1 }} {both}, 0"));
                return self.fetched(data, size, &old);
            }
        };
        let old =
            self.code.value(&format!("atomicrmw {word} ptr {at}, i{bits} {operand} seq_cst, align {align}"));
        self.fetched(data, size, &old);
    }

    fn fetched(&mut self, data: &InstData, size: Size, old: &str) {
        let old = semantics::loaded(&mut self.code, size, false, &old.to_owned());
        self.define_int(data.result.expand(), &old);
    }

    /// Space for `size` bytes in the function's frame.
    pub(super) fn allocate(&mut self, size: u32) -> String {
        self.allocations += 1;
        let at = format!("%m{}", self.allocations);
        let _ = writeln!(self.entry, "  {at} = alloca [{} x i8], align 8", size.max(1));
        at
    }

    fn terminator(&mut self, inst: Inst) -> Result<(), EmitError> {
        let data = &self.func.insts[inst];
        match &data.op {
            Op::Jump {} => {
                let to = self.edge(inst, 0);
                self.code.line(&format!("br label %{to}"));
            }
            Op::Branch { cond, width } => {
                let (a, b) = (self.int(data.args[0]), self.int(data.args[1]));
                let truth = semantics::cond(&mut self.code, *cond, *width, &a, &b);
                self.branch(inst, &truth);
            }
            Op::MayGoto {} => {
                let budget = self.allocate(8);
                let _ = writeln!(self.entry, "  store i64 {MAY_GOTO_BUDGET}, ptr {budget}, align 8");
                let left = self.code.value(&format!("load i64, ptr {budget}, align 8"));
                let left = self.code.value(&format!("sub i64 {left}, 1"));
                self.code.line(&format!("store i64 {left}, ptr {budget}, align 8"));
                // Below zero it stays spent.
                let spent = self.code.value(&format!("icmp sle i64 {left}, 0"));
                self.branch(inst, &spent);
            }
            Op::Return {} => {
                let value = data.args.first().map_or_else(|| "0".to_owned(), |&v| self.int(v));
                self.code.line(&format!("ret i64 {value}"));
            }
            // Never reached by a verified program. If it is, its packet is dropped.
            _ => self.code.line("ret i64 0"),
        }
        Ok(())
    }

    /// A branch on a truth value. Two edges to one block must have different labels.
    fn branch(&mut self, inst: Inst, truth: &str) {
        let targets = &self.func.insts[inst].targets;
        let twice = targets[0].block == targets[1].block;
        let yes = self.edge(inst, 0);
        let no = match twice {
            true => self.code.fresh_label("e"),
            false => self.edge(inst, 1),
        };
        self.code.line(&format!("br i1 {truth}, label %{yes}, label %{no}"));
        if twice {
            self.code.begin(&no);
            let to = self.edge(inst, 1);
            self.code.line(&format!("br label %{to}"));
        }
    }

    /// Records the arguments of an edge, and returns its target label.
    fn edge(&mut self, inst: Inst, which: usize) -> String {
        let target = &self.func.insts[inst].targets[which];
        let params = self.func.blocks[target.block].params.clone();
        let args = target.args.iter().zip(&params).map(|(&arg, &param)| self.like(arg, param)).collect();
        self.edges.entry(target.block).or_default().push((self.code.label.clone(), args));
        label(target.block)
    }
}

/// The number of a verdict in `enum xdp_action`.
fn verdict_number(verdict: PacketVerdict) -> u32 {
    match verdict {
        PacketVerdict::Aborted => 0,
        PacketVerdict::Drop => 1,
        PacketVerdict::Pass => 2,
        PacketVerdict::Tx => 3,
        PacketVerdict::Redirect => 4,
    }
}
