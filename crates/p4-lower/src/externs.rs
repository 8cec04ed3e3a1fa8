//! Externs of the core library and of v1model.

use std::rc::Rc;

use millstream_ir::{AluOp, Cond, Op, Prov, Size, Type, Value, Width};
use millstream_isa::helpers::id;
use millstream_p4::ConstantValue;
use millstream_p4::expression::ExpressionTree;
use millstream_p4::{SourceSpan, Symbol};

use crate::arguments::{GivenArguments, argument};
use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::hashes::{hash_of, random_word, wide_identity};
use crate::keys::scalar_widths;
use crate::lowerer::Lowerer;
use crate::meters::{self, METER_SIZE, metered_units};
use crate::pipeline::{DROP_PORT, EVENT_DIGEST, EVENT_MESSAGE, MarkKind, MessageSpec, ObjectKind};
use crate::portable::{call_method, make_extern, output_action};
use crate::requests::packet_operation;
use crate::scope::Instance;
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar, Target};
use crate::writer::byte_string;

/// `bpf_ringbuf_output`
const RING_OUTPUT_HELPER: i32 = 130;
/// `DROP` among the actions of a uBPF program.
const UBPF_DROP: u64 = 1;
/// A block of AES.
const BLOCK: RuntimeType = RuntimeType::Bits(8 * BLOCK_BYTES, false);
const BLOCK_BYTES: u32 = 16;
const WORD: RuntimeType = RuntimeType::Bits(32, false);

impl<'p> Lowerer<'p> {
    /// Makes an instance of an extern.
    pub(crate) fn extern_instance(
        &mut self,
        kind: &Symbol,
        types: Vec<RuntimeType>,
        arguments: &GivenArguments<'p>,
        path: String,
        span: SourceSpan,
    ) -> Lowered<Rc<Instance<'p>>> {
        let number = match &**kind {
            "counter" => {
                let size = self.known_size(argument(arguments, 0, span)?)?;
                let map = self.add_array(&path, 16, size, span)?;
                self.add_object(path, ObjectKind::Counter, Some(map), size)
            }
            "direct_counter" => self.add_object(path, ObjectKind::Counter, None, 0),
            "meter" => {
                let size = self.known_size(argument(arguments, 0, span)?)?;
                let counts_bytes = self.is_member(argument(arguments, 1, span)?, "bytes");
                let map = self.add_array(&path, METER_SIZE, size, span)?;
                self.add_object(path, ObjectKind::Meter { counts_bytes }, Some(map), size)
            }
            "direct_meter" | "DirectMeter" => {
                let kind = argument(arguments, 0, span)?;
                let counts_bytes = self.is_member(kind, "bytes") || self.is_member(kind, "BYTES");
                let number = self.add_object(path, ObjectKind::Meter { counts_bytes }, None, 0);
                let color = self.emitter.variable(WORD);
                self.colors.insert(number, color);
                number
            }
            "action_selector" | "ActionSelector" => {
                let algorithm = self.algorithm_name(argument(arguments, 0, span)?)?.to_owned();
                let size = self.known_size(argument(arguments, 1, span)?)?.max(1);
                self.add_object(path, ObjectKind::ActionSelector { algorithm }, None, size)
            }
            "register" => {
                let Some(value_type) = types.first().filter(|t| t.size() > 0) else {
                    return refuse(span, "a register of this type is not supported");
                };
                let size = self.known_size(argument(arguments, 0, span)?)?;
                let bytes = value_type.size().next_multiple_of(8);
                let map = self.add_array(&path, bytes, size, span)?;
                let initial = Default::default();
                let kind = ObjectKind::Register { bits: value_type.width(), initial };
                let number = self.add_object(path, kind, Some(map), size);
                self.register_types.insert(number, value_type.clone());
                number
            }
            "action_profile" | "ActionProfile" => {
                let size = self.known_size(argument(arguments, 0, span)?)?;
                self.add_object(path, ObjectKind::ActionProfile, None, size)
            }
            "Checksum16" => 0,
            _ => make_extern(self, kind, &types, arguments, path, span)?,
        };
        Ok(Rc::new(Instance::Extern(kind.clone(), number)))
    }

    pub(crate) fn is_member(&mut self, expression: &'p ExpressionTree, name: &str) -> bool {
        matches!(self.known(expression), Some(ConstantValue::Member(_, member)) if &*member == name)
    }

    pub(crate) fn extern_method(
        &mut self,
        kind: &str,
        number: usize,
        method: &str,
        arguments: &GivenArguments<'p>,
        span: SourceSpan,
    ) -> Lowered<Operand> {
        match (kind, method) {
            ("counter", "count") => {
                let found = self.object_element(number, argument(arguments, 0, span)?, span)?;
                let bytes = self.packet_bytes();
                let behind = self.emitter.split(found);
                self.count(found, 0, bytes);
                self.emitter.jump(behind);
                self.emitter.enter(behind);
            }
            // The entry that was hit is counted by the lookup itself.
            ("direct_counter", "count") => {}
            ("meter", "execute_meter") => self.execute_meter(number, arguments, span)?,
            ("direct_meter", "read") => {
                let Some(color) = self.colors.get(&number).cloned() else {
                    return refuse(span, "this meter belongs to no table");
                };
                self.give(argument(arguments, 0, span)?, &Operand::Memory(color))?;
            }
            ("register", "read") => self.read_register(number, arguments, span)?,
            ("register", "write") => self.write_register(number, arguments, span)?,
            ("Checksum16", "get") => {
                let data = self.operand(argument(arguments, 0, span)?, None)?;
                let sum = hash_of(self, "csum16", &data, false, span)?;
                return Ok(Operand::Scalar(self.converted(sum, &RuntimeType::Bits(16, false))));
            }
            _ => return call_method(self, (kind, number), method, arguments, span),
        }
        Ok(Operand::Nothing)
    }

    /// Address of an element of an object's array, or null.
    pub(crate) fn object_element(
        &mut self,
        number: usize,
        index: &'p ExpressionTree,
        span: SourceSpan,
    ) -> Lowered<Value> {
        let index = self.scalar(index, Some(&WORD))?;
        let Some(map) = self.pipeline.objects[number].map else {
            return refuse(span, "this object has no elements");
        };
        let e = &mut self.emitter;
        // An index above 32 bits is beyond every array.
        let mut low = index.words[0];
        let high = e.alu_with(AluOp::Rsh, low, 32);
        let none = e.constant(u64::from(u32::MAX));
        low = e.select(high, none, low);
        for word in &index.words[1..] {
            low = e.select(*word, none, low);
        }
        Ok(self.array_element(map, Some(low)))
    }

    fn register_place(&mut self, number: usize, element: Value, span: SourceSpan) -> Lowered<Place> {
        match self.register_types.get(&number) {
            Some(value_type) => Ok(Place::new(Address::pointer(element), value_type.clone())),
            None => refuse(span, "this is no register"),
        }
    }

    /// Writes a register; an index outside of it does nothing.
    pub(crate) fn write_register(
        &mut self,
        number: usize,
        arguments: &GivenArguments<'p>,
        span: SourceSpan,
    ) -> Lowered<()> {
        let found = self.object_element(number, argument(arguments, 0, span)?, span)?;
        let place = self.register_place(number, found, span)?;
        let value = self.memory(argument(arguments, 1, span)?, Some(&place.value_type))?;
        let behind = self.emitter.split(found);
        self.assign_place(&value, &place)?;
        self.emitter.jump(behind);
        self.emitter.enter(behind);
        Ok(())
    }

    /// A copy of the value at an index of a register; zero outside of it.
    pub(crate) fn register_value(
        &mut self,
        number: usize,
        index: &'p ExpressionTree,
        span: SourceSpan,
    ) -> Lowered<Place> {
        let found = self.object_element(number, index, span)?;
        let place = self.register_place(number, found, span)?;
        let local = self.emitter.variable(place.value_type.clone());
        let behind = self.emitter.split(found);
        self.assign_place(&place, &local)?;
        self.emitter.jump(behind);
        self.emitter.enter(behind);
        Ok(local)
    }

    fn read_register(
        &mut self,
        number: usize,
        arguments: &GivenArguments<'p>,
        span: SourceSpan,
    ) -> Lowered<()> {
        let local = self.register_value(number, argument(arguments, 1, span)?, span)?;
        self.give(argument(arguments, 0, span)?, &Operand::Memory(local))
    }

    /// Color of the packet by a meter of an array, with a color and units that may be given; green outside of
    /// it.
    pub(crate) fn metered(
        &mut self,
        number: usize,
        index: &'p ExpressionTree,
        (color, units): (Option<Value>, Option<Value>),
        span: SourceSpan,
    ) -> Lowered<Value> {
        let ObjectKind::Meter { counts_bytes } = self.pipeline.objects[number].kind else {
            return refuse(span, "this is no meter");
        };
        let found = self.object_element(number, index, span)?;
        let units = units.unwrap_or_else(|| metered_units(self, counts_bytes));
        let local = self.emitter.variable(WORD);
        let behind = self.emitter.split(found);
        let color = meters::run_meter(&mut self.emitter, Address::pointer(found), units, color);
        self.emitter.store(local.address, Size::W, color);
        self.emitter.jump(behind);
        self.emitter.enter(behind);
        Ok(self.emitter.load_scalar(&local).words[0])
    }

    fn execute_meter(
        &mut self,
        number: usize,
        arguments: &GivenArguments<'p>,
        span: SourceSpan,
    ) -> Lowered<()> {
        let color = self.metered(number, argument(arguments, 0, span)?, (None, None), span)?;
        let color = Operand::Scalar(Scalar::bits(vec![color], 32));
        self.give(argument(arguments, 1, span)?, &color)
    }

    /// Writes the value of an `out` argument.
    pub(crate) fn give(&mut self, expression: &'p ExpressionTree, value: &Operand) -> Lowered<()> {
        let Some(target) = self.target_of(expression)? else {
            return refuse(expression.span, "this cannot be written");
        };
        let scalar = match (value, &target) {
            (Operand::Scalar(scalar), _) => scalar.clone(),
            (Operand::Memory(from), Target::Memory(to)) if !to.value_type.is_scalar() => {
                return self.assign_place(from, to);
            }
            (Operand::Memory(from), _) if from.value_type.is_scalar() => self.emitter.load_scalar(from),
            _ => return refuse(expression.span, "this has no value"),
        };
        let scalar = self.converted(scalar, &crate::statements::target_type(&target));
        self.write_scalar(&target, &scalar);
        Ok(())
    }

    /// Calls an extern function.
    pub(crate) fn extern_function(
        &mut self,
        name: &str,
        arguments: &GivenArguments<'p>,
        span: SourceSpan,
    ) -> Lowered<Operand> {
        let at = |index| argument(arguments, index, span);
        match name {
            "verify" => {
                let truth = self.scalar(at(0)?, None)?;
                let good = self.emitter.new_block();
                let failed = self.emitter.new_block();
                self.emitter.branch_if(truth.words[0], good, failed);
                self.emitter.enter(failed);
                self.mark(MarkKind::ParserError("verify".to_owned()), span);
                let code = self.scalar(at(1)?, None)?;
                self.stop_parser(code.words[0], span)?;
                self.emitter.enter(good);
            }
            "static_assert" => return Ok(Operand::Scalar(Scalar::truth(self.emitter.truth(true)))),
            "mark_to_drop" => {
                self.mark(MarkKind::Drop, span);
                let Some(standard) = self.standard.clone() else {
                    return refuse(span, "`mark_to_drop` is not supported here");
                };
                if standard.field("output_action").is_some() {
                    output_action(self, UBPF_DROP, span)?;
                }
                let standard = match arguments.is_empty() {
                    true => standard,
                    false => self.memory(at(0)?, None)?,
                };
                for (field, value) in [("egress_spec", DROP_PORT), ("mcast_grp", 0)] {
                    if let Some(place) = standard.field(field) {
                        let value = self.number(value, place.value_type.width().unwrap_or(0));
                        self.emitter.store_scalar(&place, &value);
                    }
                }
            }
            "assert" | "assume" => {
                let truth = self.scalar(at(0)?, None)?;
                let failed = self.emitter.not(truth.words[0]);
                let behind = self.emitter.split(failed);
                let one = self.number(1, 32);
                self.set_engine("assertion_failed", one, span)?;
                self.emitter.jump(behind);
                self.emitter.enter(behind);
            }
            "truncate" => {
                let length = self.scalar(at(0)?, Some(&WORD))?;
                let one = self.number(1, 32);
                self.set_engine("truncates", one, span)?;
                self.set_engine("truncated_length", length, span)?;
            }
            "aes_128_ctr" => self.encrypt(arguments, span)?,
            "random" => self.random(arguments, span)?,
            "hash" => self.hash(arguments, span)?,
            "log_msg" => self.log_message(arguments, span)?,
            "digest" => {
                let data = self.operand(at(1)?, None)?;
                let bits = self.fields_of(&data);
                let name = format!("digest.{}", self.pipeline.objects.len());
                let number = self.add_object(name, ObjectKind::Digest { bits }, None, 0);
                self.send_event(EVENT_DIGEST, number as u64, &data, span)?;
            }
            _ => return packet_operation(self, name, arguments, span),
        }
        Ok(Operand::Nothing)
    }

    /// Encrypts the packet behind what the parser extracted.
    fn encrypt(&mut self, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
        if !self.options.has_ciphers {
            return refuse(span, "`aes_128_ctr` is not supported in the kernel");
        }
        let packet = self.packet(span)?;
        let mut blocks = Vec::new();
        for index in 0..2 {
            let block = self.scalar(argument(arguments, index, span)?, Some(&BLOCK))?;
            let place = Address::slot(self.emitter.slot(BLOCK_BYTES));
            self.emitter.store_packed(place, BLOCK_BYTES, &block.words);
            blocks.push(self.emitter.pointer(place));
        }
        let cursor = self.emitter.load_scalar(&packet.cursor);
        let e = &mut self.emitter;
        let payload = e.offset_pointer(packet.data, cursor.words[0]);
        let length = e.alu(AluOp::Sub, packet.end, payload);
        let call = Op::Helper { id: id::AES_128_CTR };
        e.value(call, &[payload, length, blocks[0], blocks[1]], Type::I64);
        Ok(())
    }

    /// Name of a known hash algorithm of v1model or PSA, as in v1model.
    pub(crate) fn algorithm_name(&mut self, expression: &'p ExpressionTree) -> Lowered<&'static str> {
        let Some(ConstantValue::Member(_, name)) = self.known(expression) else {
            let message = "the hash algorithm has to be known when the program is compiled";
            return refuse(expression.span, message);
        };
        Ok(match &*name {
            "identity" | "IDENTITY" => "identity",
            "crc32" | "CRC32" | "TARGET_DEFAULT" => "crc32",
            "crc32_custom" | "CRC32_CUSTOM" => "crc32_custom",
            "crc16" | "CRC16" => "crc16",
            "crc16_custom" | "CRC16_CUSTOM" => "crc16_custom",
            "csum16" | "ONES_COMPLEMENT16" => "csum16",
            "xor16" => "xor16",
            "lookup3" => "lookup3",
            "random" => "random",
            other => {
                return refuse(expression.span, format!("the hash algorithm `{other}` is not supported"));
            }
        })
    }

    fn random(&mut self, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
        let result = self.type_of(argument(arguments, 0, span)?)?;
        if result.width().is_none_or(|width| width > 64) {
            return refuse(span, "random numbers of more than 64 bits are not supported");
        }
        let low = self.scalar(argument(arguments, 1, span)?, Some(&result))?;
        let high = self.scalar(argument(arguments, 2, span)?, Some(&result))?;
        let word = random_word(self);
        let e = &mut self.emitter;
        let span_of = e.alu(AluOp::Sub, high.words[0], low.words[0]);
        let count = e.alu_with(AluOp::Add, span_of, 1);
        let rest = e.value(Op::Alu { op: AluOp::Mod, width: Width::W64 }, &[word.words[0], count], Type::I64);
        let value = e.alu(AluOp::Add, low.words[0], rest);
        self.give(argument(arguments, 0, span)?, &Operand::Scalar(Scalar::bits(vec![value], 64)))
    }

    /// `base + hash % max`; a `max` of 0 gives the base.
    fn hash(&mut self, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
        let algorithm = self.algorithm_name(argument(arguments, 1, span)?)?;
        if arguments.len() == 3 {
            // The uBPF model has neither base nor bound.
            let data = self.operand(argument(arguments, 2, span)?, None)?;
            let value = hash_of(self, algorithm, &data, false, span)?;
            return self.give(argument(arguments, 0, span)?, &Operand::Scalar(value));
        }
        let wide = RuntimeType::Bits(64, false);
        let base = self.scalar(argument(arguments, 2, span)?, Some(&wide))?;
        let data = self.operand(argument(arguments, 3, span)?, None)?;
        let most = self.scalar(argument(arguments, 4, span)?, Some(&wide))?;
        let target = self.type_of(argument(arguments, 0, span)?)?;
        if algorithm == "identity" && target.width().is_some_and(|width| width > 64) {
            let value = wide_identity(self, &data, &base, &most, span)?;
            return self.give(argument(arguments, 0, span)?, &Operand::Scalar(value));
        }
        let (base, most) = (self.converted(base, &wide), self.converted(most, &wide));
        let hash = hash_of(self, algorithm, &data, false, span)?;
        let value = self.hash_within(&base, &hash, &most);
        self.give(argument(arguments, 0, span)?, &Operand::Scalar(value))
    }

    pub(crate) fn hash_within(&mut self, base: &Scalar, hash: &Scalar, most: &Scalar) -> Scalar {
        let e = &mut self.emitter;
        let op = Op::Alu { op: AluOp::Mod, width: Width::W64 };
        let rest = e.value(op, &[hash.words[0], most.words[0]], Type::I64);
        let is_empty = e.compare_with(Cond::Eq, most.words[0], 0);
        let zero = e.constant(0);
        let rest = e.select(is_empty, zero, rest);
        let value = e.alu(AluOp::Add, base.words[0], rest);
        Scalar::bits(vec![value], 64)
    }

    fn log_message(&mut self, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
        let text = match self.known(argument(arguments, 0, span)?) {
            Some(ConstantValue::Text(text)) => text.to_string(),
            _ => return refuse(span, "the message has to be known when the program is compiled"),
        };
        let data = match arguments.get(1).copied().flatten() {
            Some(value) => self.operand(value, None)?,
            None => Operand::Scalar(Scalar::bits(self.emitter.zero_words(0), 0)),
        };
        let bits = self.fields_of(&data);
        let number = self.pipeline.messages.len() as u64;
        self.pipeline.messages.push(MessageSpec { text, bits });
        self.send_event(EVENT_MESSAGE, number, &data, span)
    }

    /// Widths of the fields of a digest.
    fn fields_of(&self, operand: &Operand) -> Vec<u32> {
        let mut widths = Vec::new();
        match operand {
            Operand::Scalar(scalar) => widths.push(scalar.width()),
            Operand::Memory(place) => {
                scalar_widths(&place.value_type, &mut widths);
            }
            _ => {}
        }
        widths
    }

    /// Writes a record to the ring buffer of events.
    pub(crate) fn send_event(
        &mut self,
        kind: u32,
        number: u64,
        data: &Operand,
        span: SourceSpan,
    ) -> Lowered<()> {
        let map = self.events();
        let header = self.number((number << 32) | u64::from(kind), 64);
        let (start, length) = byte_string(self, data, span)?;
        let bits = match data {
            Operand::Scalar(scalar) => scalar.width(),
            Operand::Memory(place) => place.value_type.packed_bits(),
            _ => 0,
        };
        let e = &mut self.emitter;
        let slot = e.slot(8 + bits.div_ceil(8).next_multiple_of(8));
        let record = Address::slot(slot);
        e.store(record, Size::Dw, header.words[0]);
        e.copy_bytes(start, record.plus(8), length);
        let pointer = e.pointer(record);
        let ring = e.value(Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)));
        let total = e.alu_with(AluOp::Add, length, 8);
        let flags = e.constant(0);
        e.helper(RING_OUTPUT_HELPER, &[ring, pointer, total, flags]);
        Ok(())
    }
}
