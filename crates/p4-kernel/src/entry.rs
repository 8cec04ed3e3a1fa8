//! The entry program: makes a packet's state, runs the functions of the pipeline, and decides what becomes of
//! the packet, as the traffic manager of the architecture does.

use millstream_ir::{
    AluOp, Block, Cond, Func, Function, Linkage, Map, Op, PacketVerdict, Prov, Size, Type, Value,
};
use millstream_isa::helpers::id;
use millstream_p4_lower::{Architecture, Pipeline};
use millstream_p4_switch::DROP_PORT;

use crate::error::KernelBuildError;
use crate::hook::{KernelHook, SKB_LENGTH};
use crate::memory::{DECIDED_NO_FRAME, DECIDED_PORT, PacketMemory, RECORD_DECIDED, RECORD_PORT};
use crate::writer::CodeWriter;

/// Largest state that is cleared without a loop, in bytes.
const STRAIGHT_CLEAR: u32 = 512;

/// Parts of the entry program.
pub(crate) struct EntryParts<'p> {
    pub(crate) pipeline: &'p Pipeline,
    pub(crate) hook: KernelHook,
    pub(crate) memory: PacketMemory,
    /// Hash map from the index of an interface to its port.
    pub(crate) ports: Map,
    /// Map from a port to the interface: of devices for XDP, a hash map for TC.
    pub(crate) devices: Map,
    /// Per-CPU array with room for a payload that moves; TC only.
    pub(crate) payload: Map,
}

/// The program while it is made.
pub(crate) struct EntryWriter<'p, 'f> {
    pub(crate) parts: &'p EntryParts<'p>,
    pub(crate) writer: CodeWriter<'f>,
    pub(crate) context: Value,
    pub(crate) state: Value,
    /// Port that the packet came from.
    port: Value,
    /// Blocks that end the program, by the verdict.
    aborted: Block,
    pub(crate) dropped: Block,
    /// Notes that the kernel makes no frame of the packet's new length, and drops it.
    pub(crate) no_frame: Block,
}

/// Makes the entry program, with this name.
///
/// # Errors
/// [`KernelBuildError`] if the program lacks a function, or its architecture is not supported.
pub(crate) fn entry_program(name: &str, parts: &EntryParts<'_>) -> Result<Function, KernelBuildError> {
    let linkage = Linkage::Program { prog_type: parts.hook.program_type().0 };
    let mut func = Function::new(name, linkage);
    let block = func.add_block();
    let context = func.add_param(block, Type::Ptr(Prov::Ctx));
    let mut writer = CodeWriter::new(&mut func, block);
    let (aborted, dropped, no_frame) = (writer.new_block(), writer.new_block(), writer.new_block());
    let zero = writer.constant(0);
    let state = writer.lookup_word(parts.memory.map, zero);
    writer.require(Cond::Ne, state, 0, aborted);
    let mut entry = EntryWriter { parts, writer, context, state, port: zero, aborted, dropped, no_frame };
    entry.clear_state();
    entry.find_port();
    match parts.pipeline.architecture {
        Architecture::V1Model => entry.run_switch()?,
        Architecture::Filter => entry.run_filter()?,
        Architecture::Xdp => entry.run_xdp()?,
        Architecture::Ubpf => entry.run_ubpf()?,
        Architecture::Psa => return Err(KernelBuildError::NoStage("filter")),
    }
    entry.leave_blocks();
    Ok(func)
}

impl EntryWriter<'_, '_> {
    fn clear_state(&mut self) {
        let (state, size) = (self.state, self.parts.memory.state_size);
        let zero = self.writer.constant(0);
        if size > STRAIGHT_CLEAR {
            self.writer.word_loop(size, |writer, offset| {
                let at = writer.moved(state, offset);
                writer.store(at, 0, Size::Dw, zero);
            });
        } else {
            for word in 0..size / 8 {
                self.writer.store(state, 8 * word as i32, Size::Dw, zero);
            }
        }
        self.writer.store(state, self.parts.memory.record as i32, Size::Dw, zero);
    }

    /// Port of the interface, which is its index if the control plane has not said one.
    fn find_port(&mut self) {
        let offset = self.parts.hook.context().ingress_ifindex;
        let writer = &mut self.writer;
        let index = writer.load(self.context, offset, Size::W);
        let found = writer.lookup_word(self.parts.ports, index);
        let (known, behind) = (writer.new_block(), writer.new_block());
        let other = writer.new_block();
        let port = writer.func.add_param(behind, Type::I64);
        let null = writer.constant(0);
        writer.branch(Cond::Ne, (found, null), known, other);
        writer.enter(known);
        let number = writer.load(found, 0, Size::W);
        writer.jump(behind, &[number]);
        writer.enter(other);
        writer.jump(behind, &[index]);
        writer.enter(behind);
        self.port = port;
    }

    /// First byte and end of the packet as they are now.
    pub(crate) fn packet(&mut self) -> (Value, Value) {
        let layout = self.parts.hook.context();
        let data = self.writer.load_as(self.context, layout.data, Size::W, Type::Ptr(Prov::Packet));
        let end = self.writer.load_as(self.context, layout.data_end, Size::W, Type::Ptr(Prov::PacketEnd));
        (data, end)
    }

    /// Makes all bytes of the packet accessible at once.
    fn pull_packet(&mut self) {
        if self.parts.hook == KernelHook::Tc {
            let length = self.writer.load(self.context, SKB_LENGTH, Size::W);
            self.writer.helper(id::SKB_PULL_DATA, &[self.context, length]);
        }
    }

    pub(crate) fn length(&mut self, (data, end): (Value, Value)) -> Value {
        self.writer.alu(AluOp::Sub, end, data)
    }

    fn place(&self, name: &str) -> Option<(i32, Size)> {
        let field = self.parts.pipeline.state.field(name)?;
        let size = match field.bits {
            0..=8 => Size::B,
            9..=16 => Size::H,
            17..=32 => Size::W,
            _ => Size::Dw,
        };
        Some((field.offset as i32, size))
    }

    /// Reads a field of the state; one that the architecture does not have is 0.
    pub(crate) fn get(&mut self, name: &str) -> Value {
        match self.place(name) {
            Some((offset, size)) => self.writer.load(self.state, offset, size),
            None => self.writer.constant(0),
        }
    }

    /// Writes a field of the state, if it is there.
    fn put(&mut self, name: &str, value: Value) {
        if let Some((offset, size)) = self.place(name) {
            self.writer.store(self.state, offset, size, value);
        }
    }

    /// Writes the port that the packet came from to a field. A port that does not fit, such as the index of an
    /// interface without an entry, would be another one there: the packet is dropped, as an error.
    fn put_port(&mut self, name: &str) {
        let bits = self.parts.pipeline.state.field(name).map_or(u32::BITS, |field| field.bits);
        if bits < u32::BITS {
            self.writer.require(Cond::Lt, self.port, 1 << bits, self.aborted);
        }
        self.put(name, self.port);
    }

    fn put_constant(&mut self, name: &str, value: u64) {
        let value = self.writer.constant(value);
        self.put(name, value);
    }

    /// Calls a function of the pipeline.
    fn run(&mut self, name: &'static str, (data, end): (Value, Value)) -> Result<(), KernelBuildError> {
        let func = self.stage(name)?;
        let result = self.writer.call(func, &[self.state, data, end]);
        self.writer.require(Cond::Eq, result, 0, self.dropped);
        Ok(())
    }

    fn stage(&self, name: &'static str) -> Result<Func, KernelBuildError> {
        let found = self.parts.pipeline.stages.iter().find(|stage| stage.name == name);
        found.map(|stage| stage.func).ok_or(KernelBuildError::NoStage(name))
    }

    /// Drops the packet if a field is not zero.
    fn drop_if(&mut self, names: &[&str]) {
        for name in names {
            let value = self.get(name);
            self.writer.require(Cond::Eq, value, 0, self.dropped);
        }
    }

    fn run_filter(&mut self) -> Result<(), KernelBuildError> {
        self.pull_packet();
        let packet = self.packet();
        self.run("filter", packet)?;
        self.drop_if(&["engine.assertion_failed", "engine.rejected"]);
        let accept = self.get("accept");
        self.writer.require(Cond::Ne, accept, 0, self.dropped);
        self.finish(self.port, PacketVerdict::Pass);
        Ok(())
    }

    fn run_xdp(&mut self) -> Result<(), KernelBuildError> {
        self.pull_packet();
        let packet = self.packet();
        self.put_port("input.input_port");
        self.run("filter", packet)?;
        self.drop_if(&["engine.assertion_failed", "engine.rejected", "engine.deparser_overflow"]);
        self.put_output();
        let action = self.get("output.output_action");
        let verdicts = [(2, PacketVerdict::Pass), (3, PacketVerdict::Tx), (4, PacketVerdict::Redirect)];
        for (number, verdict) in verdicts {
            let (this, next) = (self.writer.new_block(), self.writer.new_block());
            let constant = self.writer.constant(number);
            self.writer.branch(Cond::Eq, (action, constant), this, next);
            self.writer.enter(this);
            let port = match verdict {
                PacketVerdict::Redirect => self.get("output.output_port"),
                _ => self.port,
            };
            self.finish(port, verdict);
            self.writer.enter(next);
        }
        self.writer.jump(self.dropped, &[]);
        Ok(())
    }

    fn run_ubpf(&mut self) -> Result<(), KernelBuildError> {
        self.pull_packet();
        let packet = self.packet();
        let length = self.length(packet);
        self.put("standard_metadata.packet_length", length);
        self.put_port("standard_metadata.input_port");
        self.put_constant("standard_metadata.output_action", 2);
        self.run("filter", packet)?;
        self.drop_if(&["engine.assertion_failed", "engine.deparser_overflow"]);
        let rejected = self.get("engine.rejected");
        let (passes, accepted) = (self.writer.new_block(), self.writer.new_block());
        let zero = self.writer.constant(0);
        self.writer.branch(Cond::Eq, (rejected, zero), accepted, passes);
        self.writer.enter(passes);
        self.finish(self.port, PacketVerdict::Pass);
        self.writer.enter(accepted);
        self.put_output();
        self.truncate();
        let action = self.get("standard_metadata.output_action");
        for (number, verdict) in [(2, PacketVerdict::Pass), (3, PacketVerdict::Redirect)] {
            let (this, next) = (self.writer.new_block(), self.writer.new_block());
            let constant = self.writer.constant(number);
            self.writer.branch(Cond::Eq, (action, constant), this, next);
            self.writer.enter(this);
            let port = match verdict {
                PacketVerdict::Redirect => self.get("standard_metadata.output_port"),
                _ => self.port,
            };
            self.finish(port, verdict);
            self.writer.enter(next);
        }
        self.writer.jump(self.dropped, &[]);
        Ok(())
    }

    fn run_switch(&mut self) -> Result<(), KernelBuildError> {
        self.pull_packet();
        let packet = self.packet();
        let length = self.length(packet);
        let time = self.microseconds();
        self.put_port("standard_metadata.ingress_port");
        self.put("standard_metadata.packet_length", length);
        self.put("standard_metadata.ingress_global_timestamp", time);
        self.run("parser", packet)?;
        self.run("ingress", packet)?;
        self.drop_if(&["engine.assertion_failed"]);
        let port = self.get("standard_metadata.egress_spec");
        self.writer.require(Cond::Ne, port, DROP_PORT, self.dropped);
        let time = self.microseconds();
        self.put("standard_metadata.enq_timestamp", time);
        self.put("standard_metadata.egress_global_timestamp", time);
        self.put("standard_metadata.egress_port", port);
        self.put_constant("standard_metadata.egress_spec", 0);
        self.run("egress", packet)?;
        self.drop_if(&["engine.assertion_failed", "engine.deparser_overflow"]);
        let port = self.get("standard_metadata.egress_spec");
        self.writer.require(Cond::Ne, port, DROP_PORT, self.dropped);
        self.put_output();
        self.truncate();
        let port = self.get("standard_metadata.egress_port");
        self.finish(port, PacketVerdict::Redirect);
        Ok(())
    }

    fn microseconds(&mut self) -> Value {
        let time = self.writer.helper(id::KTIME_GET_NS, &[]);
        self.writer.alu_with(AluOp::Div, time, 1000)
    }

    /// Notes the port, and ends the program.
    fn finish(&mut self, port: Value, verdict: PacketVerdict) {
        let record = self.parts.memory.record as i32;
        self.writer.store(self.state, record + RECORD_PORT as i32, Size::W, port);
        self.decide(DECIDED_PORT);
        match (self.parts.hook, verdict) {
            (KernelHook::Xdp, PacketVerdict::Redirect) => {
                let (map, zero) = (self.writer.map(self.parts.devices), self.writer.constant(0));
                let result = self.writer.helper(id::REDIRECT_MAP, &[map, port, zero]);
                self.writer.effect(Op::Return {}, &[result], &[]);
            }
            (KernelHook::Tc, PacketVerdict::Redirect | PacketVerdict::Tx) => {
                let device = self.writer.lookup_word(self.parts.devices, port);
                self.writer.require(Cond::Ne, device, 0, self.dropped);
                let index = self.writer.load(device, 0, Size::W);
                let zero = self.writer.constant(0);
                let result = self.writer.helper(id::REDIRECT, &[index, zero]);
                self.writer.effect(Op::Return {}, &[result], &[]);
            }
            _ => self.writer.leave(self.parts.hook.verdict(verdict)),
        }
    }

    /// Notes what was decided.
    fn decide(&mut self, decision: u32) {
        let at = (self.parts.memory.record + RECORD_DECIDED) as i32;
        let value = self.writer.constant(u64::from(decision));
        self.writer.store(self.state, at, Size::W, value);
    }

    fn leave_blocks(&mut self) {
        self.writer.enter(self.no_frame);
        self.decide(DECIDED_NO_FRAME);
        self.writer.jump(self.dropped, &[]);
        for (block, verdict) in [(self.aborted, PacketVerdict::Aborted), (self.dropped, PacketVerdict::Drop)]
        {
            self.writer.enter(block);
            self.writer.leave(self.parts.hook.verdict(verdict));
        }
    }
}
