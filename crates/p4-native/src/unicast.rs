//! One function for the whole way of a v1model packet that goes to one port: parser, ingress, the traffic
//! manager's work for such a packet, and egress.
//!
//! The state of the packet is a stack object of the function. The functions of the pipeline are inlined into
//! it, so that headers and metadata stay in registers, and what nobody reads is not computed. A packet that
//! is to be cloned, resubmitted or replicated behind ingress is handed over: its state is copied to memory,
//! and the switch goes on with it.
//!
//! Programs whose egress clones or recirculates have no such function: the switch needs the packet as it was
//! in front of the deparser.

use millstream_ir::{
    Block, BlockCall, Cond, Func, Function, Linkage, MemFlags, Module, Op, Prov, Size, SlotData, Type, Value,
    Width,
};
use millstream_p4_lower::{Architecture, Pipeline, StateField};
use millstream_p4_switch::{DROP_PORT, UnicastOutcome};

/// Largest state of a packet, in bytes, that is kept in a stack object.
const LARGEST_STATE: u32 = 4096;
/// Result of the function for a packet that is handed over behind ingress.
const HANDED_OVER: u64 = 0;
/// Result for a dropped packet.
const DROPPED: u64 = 1;
/// Result for a packet that leaves; the port is at [`PORT_SHIFT`], its length at most at [`LENGTH_SHIFT`].
const SENT: u64 = 2;
const PORT_SHIFT: i64 = 8;
const LENGTH_SHIFT: i64 = 32;

/// Meaning of a result of the function: the outcome, and the length to which the packet is cut.
pub(crate) fn outcome(result: u64) -> (UnicastOutcome, usize) {
    let (port, length) = ((result as u32) >> PORT_SHIFT, (result >> LENGTH_SHIFT) as usize);
    match result & 0xff {
        HANDED_OVER => (UnicastOutcome::BehindIngress, usize::MAX),
        SENT => (UnicastOutcome::Sent(u64::from(port)), length),
        _ => (UnicastOutcome::Dropped, usize::MAX),
    }
}

/// Fields that the switch sets for a packet that arrives.
const INPUTS: [&str; 4] = ["ingress_port", "packet_length", "instance_type", "ingress_global_timestamp"];

/// Adds the function to a module. `None` if the program cannot have one.
pub(crate) fn add_unicast(module: &mut Module, pipeline: &Pipeline) -> Option<Func> {
    let stage = |name| pipeline.stages.iter().find(|stage| stage.name == name).map(|stage| stage.func);
    let (parser, ingress, egress) = (stage("parser")?, stage("ingress")?, stage("egress")?);
    let is_small = pipeline.architecture == Architecture::V1Model && pipeline.state.size <= LARGEST_STATE;
    let asks = |name: &str| match pipeline.state.field(&format!("engine.{name}")) {
        Some(field) => stores_to(&module.funcs[egress], field.offset),
        None => true,
    };
    if !is_small || asks("clone_egress") || asks("recirculate") {
        return None;
    }
    let [parser, ingress, egress] = [parser, ingress, egress].map(|func| with_local_state(module, func));
    let mut func = Function::new("unicast", Linkage::Global);
    let entry = func.add_block();
    let context = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let data = func.add_param(entry, Type::Ptr(Prov::Packet));
    let end = func.add_param(entry, Type::Ptr(Prov::PacketEnd));
    let slot = func.slots.push(SlotData { size: pipeline.state.size.max(1), align: 8, fixed: None });
    let mut builder = UnicastBuilder { func, block: entry, pipeline, context, local: context };
    builder.local = builder.value(Op::StackAddr { slot, offset: 0 }, &[], Type::Ptr(Prov::Stack));
    builder.body([parser, ingress, egress], data, end)?;
    Some(module.funcs.push(builder.func))
}

/// Returns true if a function writes this field of the state.
fn stores_to(func: &Function, offset: u32) -> bool {
    func.insts_in_order().any(|(_, inst)| {
        let data = &func.insts[inst];
        let is_state = |value: &Value| func.types[*value] == Type::Ptr(Prov::Ctx);
        let reaches = |at: i32| at == offset as i32;
        matches!(data.op, Op::Store { offset, .. } if reaches(offset))
            && data.args.first().is_some_and(is_state)
    })
}

/// A copy of a function for a state that is a stack object of the caller.
fn with_local_state(module: &mut Module, func: Func) -> Func {
    let mut copy = module.funcs[func].clone();
    copy.name.push_str(".unicast");
    copy.linkage = Linkage::Static;
    for ty in copy.types.values_mut().filter(|ty| **ty == Type::Ptr(Prov::Ctx)) {
        *ty = Type::Ptr(Prov::Mem);
    }
    module.funcs.push(copy)
}

/// Scalars of a state, and words of what no scalar covers: offset and size.
fn pieces(pipeline: &Pipeline) -> Vec<(u32, Size)> {
    let mut fields: Vec<(u32, u32)> =
        pipeline.state.fields.iter().map(|field| (field.offset, bytes_of(field.bits))).collect();
    fields.sort_unstable();
    fields.push((pipeline.state.size, 0));
    let (mut pieces, mut done) = (Vec::new(), 0);
    for (offset, bytes) in fields {
        // Between the scalars, and then the scalar, unless it overlaps the one before.
        for end in [offset, offset + bytes] {
            while done < end {
                let size = [Size::Dw, Size::W, Size::H, Size::B]
                    .into_iter()
                    .find(|size| done.is_multiple_of(size.bytes()) && done + size.bytes() <= end)
                    .unwrap_or(Size::B);
                pieces.push((done, size));
                done += size.bytes();
            }
        }
    }
    pieces
}

/// Bytes of a scalar in a state.
fn bytes_of(bits: u32) -> u32 {
    match bits {
        0..=8 => 1,
        9..=16 => 2,
        17..=32 => 4,
        _ => 8 * bits.div_ceil(64),
    }
}

struct UnicastBuilder<'p> {
    func: Function,
    block: Block,
    pipeline: &'p Pipeline,
    /// The state in memory of the caller.
    context: Value,
    /// The state in the stack object.
    local: Value,
}

impl UnicastBuilder<'_> {
    fn value(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.func.at_end(self.block).value(op, args.iter().copied(), ty)
    }

    fn constant(&mut self, value: u64) -> Value {
        self.value(Op::Const { value: value as i64 }, &[], Type::I64)
    }

    fn alu(&mut self, op: millstream_ir::AluOp, a: Value, b: Value) -> Value {
        self.value(Op::Alu { op, width: Width::W64 }, &[a, b], Type::I64)
    }

    fn load(&mut self, base: Value, offset: u32, size: Size) -> Value {
        let ty = match size {
            Size::B => Type::I8,
            Size::H => Type::I16,
            Size::W => Type::I32,
            Size::Dw => Type::I64,
        };
        let op = Op::Load { size, sext: false, offset: offset as i32, flags: MemFlags::default() };
        self.value(op, &[base], ty)
    }

    fn store(&mut self, base: Value, offset: u32, size: Size, value: Value) {
        let op = Op::Store { size, offset: offset as i32, flags: MemFlags::default() };
        self.func.at_end(self.block).effect(op, [base, value], []);
    }

    /// A field of up to 64 bits.
    fn field(&self, name: &str) -> Option<(u32, Size)> {
        let StateField { offset, bits, .. } = self.pipeline.state.field(name)?;
        let size = match bytes_of(*bits) {
            1 => Size::B,
            2 => Size::H,
            4 => Size::W,
            _ => Size::Dw,
        };
        Some((*offset, size))
    }

    fn get(&mut self, name: &str) -> Option<Value> {
        let (offset, size) = self.field(name)?;
        Some(self.load(self.local, offset, size))
    }

    /// Sets a field, if the architecture file of the program has it.
    fn set(&mut self, name: &str, value: Value) {
        if let Some((offset, size)) = self.field(name) {
            self.store(self.local, offset, size, value);
        }
    }

    fn call(&mut self, func: Func, data: Value, end: Value) {
        let state = self.local;
        self.value(Op::Call { func }, &[state, data, end], Type::I64);
    }

    /// Goes to another block if the condition holds, and on in a new one otherwise.
    fn leave_if(&mut self, cond: Cond, a: Value, b: Value, to: Block) {
        let behind = self.func.add_block();
        let targets = [BlockCall::with(to, []), BlockCall::with(behind, [])];
        let op = Op::Branch { cond, width: Width::W64 };
        self.func.at_end(self.block).effect(op, [a, b], targets);
        self.block = behind;
    }

    /// Goes to another block if one of these fields is not 0.
    fn leave_if_any(&mut self, names: &[&str], to: Block) -> Option<()> {
        let mut all = self.get(names.first()?)?;
        for name in &names[1..] {
            let next = self.get(name)?;
            all = self.alu(millstream_ir::AluOp::Or, all, next);
        }
        let zero = self.constant(0);
        self.leave_if(Cond::Ne, all, zero, to);
        Some(())
    }

    fn leave_if_dropped(&mut self, port: Value, to: Block) {
        let none = self.constant(DROP_PORT);
        self.leave_if(Cond::Eq, port, none, to);
    }

    fn finish(&mut self, result: Value) {
        self.func.at_end(self.block).effect(Op::Return {}, [result], []);
    }

    fn body(&mut self, [parser, ingress, egress]: [Func; 3], data: Value, end: Value) -> Option<()> {
        let (handed, dropped) = (self.func.add_block(), self.func.add_block());
        self.begin();
        self.call(parser, data, end);
        self.call(ingress, data, end);
        let requests = ["assertion_failed", "clone_ingress", "resubmit"].map(|name| format!("engine.{name}"));
        let requests = requests.iter().map(String::as_str).chain(["standard_metadata.mcast_grp"]);
        self.leave_if_any(&requests.collect::<Vec<_>>(), handed)?;
        let port = self.get("standard_metadata.egress_spec")?;
        self.leave_if_dropped(port, dropped);
        self.between(port, data, end)?;
        self.call(egress, data, end);
        self.leave_if_any(&["engine.assertion_failed", "engine.deparser_overflow"], dropped)?;
        let still = self.get("standard_metadata.egress_spec")?;
        self.leave_if_dropped(still, dropped);
        self.sent(port)?;
        self.block = dropped;
        let result = self.constant(DROPPED);
        self.finish(result);
        self.block = handed;
        self.hand_over();
        Some(())
    }

    /// Clears the state, and sets the inputs.
    fn begin(&mut self) {
        let zero = self.constant(0);
        for (offset, size) in pieces(self.pipeline) {
            self.store(self.local, offset, size, zero);
        }
        for name in INPUTS {
            if let Some((offset, size)) = self.field(&format!("standard_metadata.{name}")) {
                let value = self.load(self.context, offset, size);
                self.store(self.local, offset, size, value);
            }
        }
    }

    /// The traffic manager: an empty queue, and no time in it.
    fn between(&mut self, port: Value, data: Value, end: Value) -> Option<()> {
        let (offset, size) = self.field("standard_metadata.ingress_global_timestamp")?;
        let time = self.load(self.context, offset, size);
        let zero = self.constant(0);
        let length = self.alu(millstream_ir::AluOp::Sub, end, data);
        for (name, value) in [
            ("standard_metadata.enq_timestamp", time),
            ("standard_metadata.enq_qdepth", zero),
            ("standard_metadata.deq_timedelta", zero),
            ("standard_metadata.deq_qdepth", zero),
            ("standard_metadata.egress_port", port),
            ("standard_metadata.egress_spec", zero),
            ("standard_metadata.packet_length", length),
            ("standard_metadata.egress_global_timestamp", time),
            ("engine.clone_egress", zero),
        ] {
            self.set(name, value);
        }
        Some(())
    }

    fn sent(&mut self, port: Value) -> Option<()> {
        let (cuts, length) = (self.get("engine.truncates")?, self.get("engine.truncated_length")?);
        let (zero, most) = (self.constant(0), self.constant(u64::from(u32::MAX)));
        let cuts = self.value(Op::Cmp { cond: Cond::Ne, width: Width::W64 }, &[cuts, zero], Type::I1);
        let length = self.value(Op::Select {}, &[cuts, length, most], Type::I64);
        let (length_shift, port_shift) =
            (self.constant(LENGTH_SHIFT as u64), self.constant(PORT_SHIFT as u64));
        let length = self.alu(millstream_ir::AluOp::Lsh, length, length_shift);
        let port = self.alu(millstream_ir::AluOp::Lsh, port, port_shift);
        let code = self.constant(SENT);
        let result = self.alu(millstream_ir::AluOp::Or, length, port);
        let result = self.alu(millstream_ir::AluOp::Or, result, code);
        self.finish(result);
        Some(())
    }

    /// Copies the state to memory of the caller.
    fn hand_over(&mut self) {
        for (offset, size) in pieces(self.pipeline) {
            let value = self.load(self.local, offset, size);
            self.store(self.context, offset, size, value);
        }
        let result = self.constant(HANDED_OVER);
        self.finish(result);
    }
}
