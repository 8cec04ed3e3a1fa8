//! One function for the whole way of a v1model packet that goes to one port: parser, ingress, the traffic
//! manager's work for such a packet, and egress.
//!
//! The state of the packet is a stack object of the function. The functions of the pipeline are inlined into
//! it, so that headers and metadata stay in registers, and what nobody reads is not computed. A packet that
//! is to be cloned, resubmitted or replicated behind ingress, or cloned or recirculated behind egress, is handed
//! over: its state is copied to memory, and the switch goes on with it.
//!
//! A clone behind egress begins with the packet as it was in front of egress, which the caller still has. So a
//! program whose ingress encrypts packets and whose egress clones has no such function.
//!
//! The same function is made in a second form, as a program that runs batches: it takes a packet's descriptor and
//! gives a verdict ([`add_batch_program`]). There the bodies of the pipeline's functions take the place of their
//! calls, so that the fetching of look-ups ahead sees all look-ups of a packet at once.

use millstream_ir::{
    Block, BlockCall, Cond, Func, Function, Linkage, MemFlags, Module, Op, Prov, Size, SlotData, Type, Value,
    Width,
};
use millstream_isa::helpers::id;
use millstream_p4_lower::{Architecture, Pipeline, StateField};
use millstream_p4_switch::{DROP_PORT, UnicastOutcome};
use millstream_passes::inline_calls;

use crate::refusal::BatchRefusal;

/// Largest state of a packet, in bytes, that is kept in a stack object.
const LARGEST_STATE: u32 = 4096;
/// Result of the function for a packet that is handed over behind ingress.
const HANDED_OVER: u64 = 0;
/// Result for a dropped packet.
const DROPPED: u64 = 1;
/// Result for a packet that leaves; the port is at [`PORT_SHIFT`], its length at most at [`LENGTH_SHIFT`].
const SENT: u64 = 2;
/// Result for a packet that is handed over behind egress; the port is at [`PORT_SHIFT`].
const HANDED_OVER_BEHIND_EGRESS: u64 = 3;
const PORT_SHIFT: i64 = 8;
const LENGTH_SHIFT: i64 = 32;

/// `BPF_PROG_TYPE_XDP`, whose context a packet's descriptor is.
const XDP: u32 = 6;
/// `XDP_DROP`.
const XDP_DROP: u64 = 1;
/// Offsets in the context: the packet's first byte, its end, and the interface that it came from.
const CONTEXT_FIELDS: [i32; 3] = [0, 4, 12];
/// Number of the interface for port 0: interfaces are counted from 1.
pub(crate) const FIRST_INTERFACE: u64 = 1;
/// Ports have 9 bits.
const PORT_MASK: u64 = 511;

/// Meaning of a result of the function: the outcome, and the length to which the packet is cut.
pub(crate) fn outcome(result: u64) -> (UnicastOutcome, usize) {
    let (port, length) = ((result as u32) >> PORT_SHIFT, (result >> LENGTH_SHIFT) as usize);
    match result & 0xff {
        HANDED_OVER => (UnicastOutcome::BehindIngress, usize::MAX),
        SENT => (UnicastOutcome::Sent(u64::from(port)), length),
        HANDED_OVER_BEHIND_EGRESS => (UnicastOutcome::BehindEgress(u64::from(port)), usize::MAX),
        _ => (UnicastOutcome::Dropped, usize::MAX),
    }
}

/// Fields that the switch sets for a packet that arrives.
const INPUTS: [&str; 4] = ["ingress_port", "packet_length", "instance_type", "ingress_global_timestamp"];

/// Fields by which a program asks for more than one port, or for another length of the packet: the function that
/// may ask, as its position among parser, ingress and egress, and the word for it.
const REQUESTS: [(&str, usize, &str); 8] = [
    ("engine.clone_ingress", 1, "clones packets in ingress"),
    ("engine.resubmit", 1, "resubmits packets"),
    ("standard_metadata.mcast_grp", 0, "replicates packets by multicast groups"),
    ("standard_metadata.mcast_grp", 1, "replicates packets by multicast groups"),
    ("engine.clone_egress", 2, "clones packets in egress"),
    ("engine.recirculate", 2, "recirculates packets"),
    ("engine.truncates", 1, "truncates packets"),
    ("engine.truncates", 2, "truncates packets"),
];

/// Adds the program of batches to a module, whose functions of the pipeline lose their bodies.
///
/// # Errors
/// [`BatchRefusal`] if a packet of the program may need the switch.
pub(crate) fn add_batch_program(module: &mut Module, pipeline: &Pipeline) -> Result<Func, BatchRefusal> {
    let stage = |name| pipeline.stages.iter().find(|stage| stage.name == name).map(|stage| stage.func);
    let [Some(parser), Some(ingress), Some(egress)] = ["parser", "ingress", "egress"].map(stage) else {
        return Err(BatchRefusal::Architecture);
    };
    let stages = [parser, ingress, egress];
    if pipeline.state.size > LARGEST_STATE {
        return Err(BatchRefusal::State { bytes: pipeline.state.size, most: LARGEST_STATE });
    }
    for (name, at, what) in REQUESTS {
        let field = pipeline.state.field(name).ok_or(BatchRefusal::Architecture)?;
        if accesses(&module.funcs[stages[at]], field, false) {
            return Err(BatchRefusal::Request { what });
        }
    }
    let time = pipeline.state.field("standard_metadata.ingress_global_timestamp");
    let others = ["enq_timestamp", "egress_global_timestamp"];
    let others = others.iter().map(|name| pipeline.state.field(&format!("standard_metadata.{name}")));
    let mut times = others.chain([time]).flatten();
    let reads_time =
        times.any(|field| stages.iter().any(|stage| accesses(&module.funcs[*stage], field, true)));
    let bodies = stages.map(|stage| (stage, with_state_in(&module.funcs[stage], Prov::Stack)));
    let mut func = Function::new("batch", Linkage::Program { prog_type: XDP });
    let entry = func.add_block();
    let context = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let slot = func.slots.push(SlotData { size: pipeline.state.size.max(1), align: 8, fixed: None });
    let caller = UnicastCaller::Batch { reads_time };
    let mut builder = UnicastBuilder { func, block: entry, pipeline, caller, context, local: context };
    builder.local = builder.value(Op::StackAddr { slot, offset: 0 }, &[], Type::Ptr(Prov::Stack));
    let [first, behind, _] = CONTEXT_FIELDS;
    let data = builder.context_field(first, Type::Ptr(Prov::Packet));
    let end = builder.context_field(behind, Type::Ptr(Prov::PacketEnd));
    builder.body(stages, data, end).ok_or(BatchRefusal::Architecture)?;
    let mut func = builder.func;
    for (stage, body) in bodies {
        inline_calls(&mut func, stage, &body);
        module.funcs[stage] = empty_function(&module.funcs[stage].name);
    }
    for data in func.insts.values_mut().filter(|data| data.op == Op::SetBounds {}) {
        data.args[0] = context;
    }
    Ok(module.funcs.push(func))
}

/// A function that nobody calls.
fn empty_function(name: &str) -> Function {
    let mut func = Function::new(name, Linkage::Static);
    let entry = func.add_block();
    let mut at = func.at_end(entry);
    let nothing = at.iconst(0);
    at.effect(Op::Return {}, [nothing], []);
    func
}

/// Returns true if a function reads this field of the state; or else if it writes anything but 0 there.
fn accesses(func: &Function, field: &StateField, reads: bool) -> bool {
    let (from, to) = (i64::from(field.offset), i64::from(field.offset + bytes_of(field.bits)));
    func.insts_in_order().any(|(_, inst)| {
        let data = &func.insts[inst];
        let (offset, size) = match data.op {
            Op::Load { offset, size, .. } if reads => (i64::from(offset), i64::from(size.bytes())),
            Op::Store { offset, size, .. } if !reads => (i64::from(offset), i64::from(size.bytes())),
            _ => return false,
        };
        let is_state = data.args.first().is_some_and(|base| func.types[*base] == Type::Ptr(Prov::Ctx));
        let clears = !reads && data.args.get(1).is_some_and(|value| func.as_const(*value) == Some(0));
        is_state && !clears && offset < to && from < offset + size
    })
}

/// Adds the function to a module. `None` if the program cannot have one.
pub(crate) fn add_unicast(module: &mut Module, pipeline: &Pipeline) -> Option<Func> {
    let stage = |name| pipeline.stages.iter().find(|stage| stage.name == name).map(|stage| stage.func);
    let (parser, ingress, egress) = (stage("parser")?, stage("ingress")?, stage("egress")?);
    let is_small = pipeline.architecture == Architecture::V1Model && pipeline.state.size <= LARGEST_STATE;
    let encrypts = |func: Func| {
        let func = &module.funcs[func];
        func.insts_in_order().any(|(_, inst)| func.insts[inst].op == Op::Helper { id: id::AES_128_CTR })
    };
    let clones = match pipeline.state.field("engine.clone_egress") {
        Some(field) => accesses(&module.funcs[egress], field, false),
        None => true,
    };
    if !is_small || clones && encrypts(ingress) {
        return None;
    }
    let [parser, ingress, egress] = [parser, ingress, egress].map(|func| with_local_state(module, func));
    let mut func = Function::new("unicast", Linkage::Global);
    let entry = func.add_block();
    let context = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let data = func.add_param(entry, Type::Ptr(Prov::Packet));
    let end = func.add_param(entry, Type::Ptr(Prov::PacketEnd));
    let slot = func.slots.push(SlotData { size: pipeline.state.size.max(1), align: 8, fixed: None });
    let caller = UnicastCaller::Switch;
    let mut builder = UnicastBuilder { func, block: entry, pipeline, caller, context, local: context };
    builder.local = builder.value(Op::StackAddr { slot, offset: 0 }, &[], Type::Ptr(Prov::Stack));
    builder.body([parser, ingress, egress], data, end)?;
    Some(module.funcs.push(builder.func))
}

/// A copy of a function for a state that is a stack object of the caller.
fn with_local_state(module: &mut Module, func: Func) -> Func {
    let mut copy = with_state_in(&module.funcs[func], Prov::Mem);
    copy.name.push_str(".unicast");
    copy.linkage = Linkage::Static;
    module.funcs.push(copy)
}

/// A copy of a function whose state is in this kind of memory.
fn with_state_in(func: &Function, memory: Prov) -> Function {
    let mut copy = func.clone();
    for ty in copy.types.values_mut().filter(|ty| **ty == Type::Ptr(Prov::Ctx)) {
        *ty = Type::Ptr(memory);
    }
    copy
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

/// Caller of the function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnicastCaller {
    /// A switch, with a packet's state.
    Switch,
    /// The loop over a batch, with a packet's descriptor.
    Batch {
        /// True if the program reads the time.
        reads_time: bool,
    },
}

struct UnicastBuilder<'p> {
    func: Function,
    block: Block,
    pipeline: &'p Pipeline,
    caller: UnicastCaller,
    /// The state in memory of the caller, or the packet's descriptor.
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
        self.begin(data, end);
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
        if self.caller == UnicastCaller::Switch {
            self.hand_over_behind_egress(port)?;
        }
        let still = self.get("standard_metadata.egress_spec")?;
        self.leave_if_dropped(still, dropped);
        self.sent(port)?;
        self.block = dropped;
        self.finish_dropped();
        self.block = handed;
        match self.caller {
            UnicastCaller::Switch => {
                let behind_ingress = self.constant(HANDED_OVER);
                self.hand_over(behind_ingress);
            }
            // Only a failed assertion leads here.
            UnicastCaller::Batch { .. } => self.finish_dropped(),
        }
        Some(())
    }

    fn finish_dropped(&mut self) {
        let result = self.constant(match self.caller {
            UnicastCaller::Switch => DROPPED,
            UnicastCaller::Batch { .. } => XDP_DROP,
        });
        self.finish(result);
    }

    fn context_field(&mut self, offset: i32, ty: Type) -> Value {
        let op = Op::Load { size: Size::W, sext: false, offset, flags: MemFlags::default() };
        self.value(op, &[self.context], ty)
    }

    /// Value of an input; `None` for 0.
    fn input(&mut self, name: &str, data: Value, end: Value) -> Option<Value> {
        match (self.caller, name) {
            (UnicastCaller::Switch, _) => {
                let (offset, size) = self.field(&format!("standard_metadata.{name}"))?;
                Some(self.load(self.context, offset, size))
            }
            (_, "ingress_port") => {
                let interface = self.context_field(CONTEXT_FIELDS[2], Type::I64);
                let (first, mask) = (self.constant(FIRST_INTERFACE), self.constant(PORT_MASK));
                let port = self.alu(millstream_ir::AluOp::Sub, interface, first);
                Some(self.alu(millstream_ir::AluOp::And, port, mask))
            }
            (_, "packet_length") => Some(self.alu(millstream_ir::AluOp::Sub, end, data)),
            (UnicastCaller::Batch { reads_time: true }, "ingress_global_timestamp") => {
                let now = self.value(Op::Helper { id: id::KTIME_GET_COARSE_NS }, &[], Type::I64);
                let thousand = self.constant(1000);
                Some(self.alu(millstream_ir::AluOp::Div, now, thousand))
            }
            _ => None,
        }
    }

    /// Clears the state, and sets the inputs.
    fn begin(&mut self, data: Value, end: Value) {
        let zero = self.constant(0);
        for (offset, size) in pieces(self.pipeline) {
            self.store(self.local, offset, size, zero);
        }
        for name in INPUTS {
            if let Some(value) = self.input(name, data, end) {
                self.set(&format!("standard_metadata.{name}"), value);
            }
        }
    }

    /// The traffic manager: an empty queue, and no time in it.
    fn between(&mut self, port: Value, data: Value, end: Value) -> Option<()> {
        let time = self.input("ingress_global_timestamp", data, end);
        let zero = self.constant(0);
        let length = self.alu(millstream_ir::AluOp::Sub, end, data);
        for name in ["enq_timestamp", "egress_global_timestamp"] {
            if let Some(time) = time {
                self.set(&format!("standard_metadata.{name}"), time);
            }
        }
        for (name, value) in [
            ("standard_metadata.enq_qdepth", zero),
            ("standard_metadata.deq_timedelta", zero),
            ("standard_metadata.deq_qdepth", zero),
            ("standard_metadata.egress_port", port),
            ("standard_metadata.egress_spec", zero),
            ("standard_metadata.packet_length", length),
            ("engine.clone_egress", zero),
            ("engine.recirculate", zero),
        ] {
            self.set(name, value);
        }
        Some(())
    }

    fn sent(&mut self, port: Value) -> Option<()> {
        if let UnicastCaller::Batch { .. } = self.caller {
            let (first, flags) = (self.constant(FIRST_INTERFACE), self.constant(0));
            let interface = self.alu(millstream_ir::AluOp::Add, port, first);
            let verdict = self.value(Op::Helper { id: id::REDIRECT }, &[interface, flags], Type::I64);
            self.finish(verdict);
            return Some(());
        }
        let (cuts, length) = (self.get("engine.truncates")?, self.get("engine.truncated_length")?);
        let (zero, most) = (self.constant(0), self.constant(u64::from(u32::MAX)));
        let cuts = self.value(Op::Cmp { cond: Cond::Ne, width: Width::W64 }, &[cuts, zero], Type::I1);
        let length = self.value(Op::Select {}, &[cuts, length, most], Type::I64);
        let length_shift = self.constant(LENGTH_SHIFT as u64);
        let length = self.alu(millstream_ir::AluOp::Lsh, length, length_shift);
        let sent = self.with_port(SENT, port);
        let result = self.alu(millstream_ir::AluOp::Or, length, sent);
        self.finish(result);
        Some(())
    }

    /// Hands a packet over that is to be cloned or recirculated, and goes on with others.
    fn hand_over_behind_egress(&mut self, port: Value) -> Option<()> {
        let handed = self.func.add_block();
        self.leave_if_any(&["engine.clone_egress", "engine.recirculate"], handed)?;
        let behind = std::mem::replace(&mut self.block, handed);
        let result = self.with_port(HANDED_OVER_BEHIND_EGRESS, port);
        self.hand_over(result);
        self.block = behind;
        Some(())
    }

    /// A result with a port.
    fn with_port(&mut self, code: u64, port: Value) -> Value {
        let (shift, code) = (self.constant(PORT_SHIFT as u64), self.constant(code));
        let port = self.alu(millstream_ir::AluOp::Lsh, port, shift);
        self.alu(millstream_ir::AluOp::Or, port, code)
    }

    /// Copies the state to memory of the caller, and ends the function.
    fn hand_over(&mut self, result: Value) {
        for (offset, size) in pieces(self.pipeline) {
            let value = self.load(self.local, offset, size);
            self.store(self.context, offset, size, value);
        }
        self.finish(result);
    }
}
