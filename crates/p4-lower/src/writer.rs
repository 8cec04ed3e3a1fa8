//! Byte strings that are made of values: deparsed headers, inputs of hashes and checksums, digests.

use millstream_ir::{AluOp, Cond, Size, Value};
use millstream_p4::SourceSpan;
use millstream_p4::expression::CallArgument;

use crate::calls::argument;
use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::packets::flattened;
use crate::types::{PREFIX, RuntimeType};
use crate::values::{Operand, Place, Scalar};

/// A byte string that is being written.
pub(crate) struct ByteString {
    /// Place of the next byte.
    at: Address,
    /// Bytes in front of `at`, as far as they are known.
    fixed: u32,
    /// Bytes of varbits.
    variable: Option<Value>,
    /// Bits that do not fill a byte yet.
    pending: Vec<Value>,
    bits: u32,
}

impl ByteString {
    pub(crate) fn new(at: Address) -> ByteString {
        ByteString { at, fixed: 0, variable: None, pending: Vec::new(), bits: 0 }
    }
}

impl<'p> Lowerer<'p> {
    /// Appends a scalar.
    fn append_scalar(&mut self, string: &mut ByteString, value: &Scalar) {
        let width = value.width();
        if width == 0 {
            return;
        }
        string.pending = match string.bits {
            0 => value.words.clone(),
            bits => self.emitter.joined((&string.pending, bits), (&value.words, width)),
        };
        string.bits += width;
        if string.bits.is_multiple_of(8) {
            self.flush(string);
        }
    }

    fn flush(&mut self, string: &mut ByteString) {
        let bytes = string.bits / 8;
        self.emitter.store_packed(string.at, bytes, &string.pending);
        string.at = string.at.plus(bytes);
        string.fixed += bytes;
        (string.pending, string.bits) = (Vec::new(), 0);
    }

    /// Fills the last byte with zeros.
    pub(crate) fn pad(&mut self, string: &mut ByteString) {
        let rest = string.bits % 8;
        if rest != 0 {
            let zero = self.number(0, 8 - rest);
            self.append_scalar(string, &zero);
        }
    }

    /// Appends an object; invalid headers are left out.
    pub(crate) fn append(&mut self, string: &mut ByteString, place: &Place, span: SourceSpan) -> Lowered<()> {
        for part in flattened(place) {
            match &part.value_type {
                RuntimeType::Varbit(_) => self.append_variable(string, &part, span)?,
                RuntimeType::Header(_) => {
                    for field in part.fields() {
                        self.append(string, &field, span)?;
                    }
                }
                other if other.is_scalar() => {
                    let value = self.emitter.load_scalar(&part);
                    self.append_scalar(string, &value);
                }
                _ => return refuse(span, "a value of this type cannot be made a byte string"),
            }
        }
        Ok(())
    }

    /// Appends the value of an expression.
    pub(crate) fn append_operand(
        &mut self,
        string: &mut ByteString,
        operand: &Operand,
        span: SourceSpan,
    ) -> Lowered<()> {
        match operand {
            Operand::Scalar(scalar) => {
                self.append_scalar(string, scalar);
                Ok(())
            }
            Operand::Memory(place) => self.append(string, place, span),
            _ => refuse(span, "this has no value"),
        }
    }

    fn append_variable(&mut self, string: &mut ByteString, place: &Place, span: SourceSpan) -> Lowered<()> {
        if string.bits != 0 {
            return refuse(span, "a value of variable size has to begin at a whole byte");
        }
        let bits = self.emitter.load(place.address, Size::W);
        let bytes = self.emitter.alu_with(AluOp::Rsh, bits, 3);
        self.emitter.copy_bytes(place.address.plus(PREFIX), string.at, bytes);
        string.at = self.emitter.moved(string.at, bytes);
        string.variable = Some(match string.variable {
            Some(before) => self.emitter.alu(AluOp::Add, before, bytes),
            None => bytes,
        });
        Ok(())
    }

    /// Bytes of the string.
    pub(crate) fn length_of(&mut self, string: &ByteString) -> Value {
        let fixed = self.emitter.constant(u64::from(string.fixed));
        match string.variable {
            Some(variable) => self.emitter.alu(AluOp::Add, fixed, variable),
            None => fixed,
        }
    }

    /// Makes a byte string of a value: its address and length.
    pub(crate) fn byte_string(&mut self, operand: &Operand, span: SourceSpan) -> Lowered<(Address, Value)> {
        let bits = match operand {
            Operand::Scalar(scalar) => scalar.width(),
            Operand::Memory(place) => place.value_type.packed_bits(),
            _ => 0,
        };
        let slot = self.emitter.slot(bits.div_ceil(8).next_multiple_of(8) + 8);
        let start = Address::slot(slot);
        let mut string = ByteString::new(start);
        self.append_operand(&mut string, operand, span)?;
        self.pad(&mut string);
        let length = self.length_of(&string);
        Ok((start, length))
    }

    /// `emit` of a packet.
    pub(crate) fn emit_call(&mut self, arguments: &'p [CallArgument], span: SourceSpan) -> Lowered<Operand> {
        let expression = argument(arguments, 0, span)?;
        let operand = self.operand(expression, None)?;
        match operand {
            Operand::Memory(place) => self.emit(&place, span)?,
            Operand::Scalar(scalar) => {
                let place = self.emitter.variable(scalar.value_type.clone());
                self.emitter.store_scalar(&place, &scalar);
                self.emit_packed(&place, span)?;
            }
            _ => return refuse(span, "this cannot be emitted"),
        }
        Ok(Operand::Nothing)
    }

    fn emit(&mut self, place: &Place, span: SourceSpan) -> Lowered<()> {
        match &place.value_type {
            RuntimeType::Header(_) => {
                let valid = self.emitter.validity(place);
                let behind = self.emitter.split(valid);
                self.emit_packed(place, span)?;
                self.emitter.jump(behind);
                self.emitter.enter(behind);
                Ok(())
            }
            RuntimeType::Stack(..) => place.elements().iter().try_for_each(|part| self.emit(part, span)),
            RuntimeType::Struct(_) | RuntimeType::Union(_) => {
                place.fields().iter().try_for_each(|part| self.emit(part, span))
            }
            _ => self.emit_packed(place, span),
        }
    }

    /// Appends a header's fields to the output.
    fn emit_packed(&mut self, place: &Place, span: SourceSpan) -> Lowered<()> {
        let Some(output) = self.output.clone() else {
            return refuse(span, "`emit` is only supported in a deparser");
        };
        let bits = place.value_type.packed_bits();
        let used = self.emitter.load_scalar(&output.length);
        let most = self.emitter.constant(u64::from(bits.div_ceil(8)));
        let end = self.emitter.alu(AluOp::Add, used.words[0], most);
        let fits = self.emitter.compare_with(Cond::Le, end, u64::from(output.capacity));
        let full = self.emitter.split(fits);
        let good = self.emitter.block;
        self.emitter.enter(full);
        self.emitter.jump(output.overflow);
        self.emitter.enter(good);
        let at = self.emitter.moved(output.bytes.address, used.words[0]);
        let mut string = ByteString::new(at);
        self.append(&mut string, place, span)?;
        if string.bits != 0 {
            return refuse(
                span,
                format!("a header of {bits} bits cannot be emitted: bytes have to be whole"),
            );
        }
        let length = self.length_of(&string);
        let total = self.emitter.alu(AluOp::Add, used.words[0], length);
        self.emitter.store_scalar(&output.length, &Scalar::bits(vec![total], 32));
        Ok(())
    }
}
