//! Aggregates: copies between layouts, comparison, and targets of assignments.

use std::rc::Rc;

use millstream_ir::{AluOp, Cond, Size, Value};

use crate::emitter::{Address, Emitter};
use crate::error::Lowered;
use crate::lowerer::Lowerer;
use crate::types::{PREFIX, RecordType, RuntimeType, element_size};
use crate::values::{Operand, Place, Scalar, Target, chunks};

/// Tells if aggregates can be copied byte by byte.
fn is_same_layout(from: &RuntimeType, to: &RuntimeType) -> bool {
    let same_fields = |a: &RecordType, b: &RecordType| {
        a.fields.len() == b.fields.len()
            && a.fields
                .iter()
                .zip(&b.fields)
                .all(|(a, b)| a.offset == b.offset && is_same_layout(&a.field_type, &b.field_type))
    };
    match (from, to) {
        (RuntimeType::Struct(a), RuntimeType::Struct(b))
        | (RuntimeType::Header(a), RuntimeType::Header(b))
        | (RuntimeType::Union(a), RuntimeType::Union(b)) => Rc::ptr_eq(a, b) || same_fields(a, b),
        (RuntimeType::Stack(a, m), RuntimeType::Stack(b, n)) => m == n && is_same_layout(a, b),
        (RuntimeType::Varbit(a), RuntimeType::Varbit(b)) => a == b,
        _ => from.width().is_some() && from.width() == to.width(),
    }
}

impl Lowerer<'_> {
    /// Copies an aggregate, also between a tuple and a struct or header.
    pub(crate) fn assign_place(&mut self, from: &Place, to: &Place) -> Lowered<()> {
        if is_same_layout(&from.value_type, &to.value_type) {
            self.emitter.copy(from, to);
            return Ok(());
        }
        if let (RuntimeType::Varbit(a), RuntimeType::Varbit(b)) = (&from.value_type, &to.value_type) {
            let bytes = |bits: u32| bits.div_ceil(8).next_multiple_of(8);
            let size = PREFIX + bytes(*a).min(bytes(*b));
            for (offset, part) in chunks(size) {
                let word = self.emitter.load(from.address.plus(offset), part);
                self.emitter.store(to.address.plus(offset), part, word);
            }
            return Ok(());
        }
        if from.value_type.is_scalar() && to.value_type.is_scalar() {
            let value = self.emitter.load_scalar(from);
            let value = self.converted(value, &to.value_type);
            self.emitter.store_scalar(to, &value);
            return Ok(());
        }
        if let RuntimeType::Header(_) = to.value_type {
            self.emitter.store_constant(to.address, Size::B, 1);
        }
        let pairs = match &to.value_type {
            RuntimeType::Stack(..) => from.fields().into_iter().zip(to.elements()).collect::<Vec<_>>(),
            _ => from.fields().into_iter().zip(to.fields()).collect(),
        };
        for (source, target) in pairs {
            self.assign_place(&source, &target)?;
        }
        Ok(())
    }

    /// Changes width and kind of a scalar.
    pub(crate) fn converted(&mut self, value: Scalar, to: &RuntimeType) -> Scalar {
        let Some(width) = to.width() else { return value };
        let from = value.width();
        let words = match from == width {
            true => value.words,
            false => self.emitter.resized(&value.words, from, width, value.value_type.is_signed()),
        };
        Scalar { words, value_type: to.clone() }
    }

    /// Compares two objects of the same type.
    pub(crate) fn equal_places(&mut self, a: &Place, b: &Place) -> Value {
        match &a.value_type {
            RuntimeType::Header(_) => {
                let e = &mut self.emitter;
                let (left, right) = (e.validity(a), e.validity(b));
                let same = e.compare(Cond::Eq, left, right);
                let invalid = e.not(left);
                let equal = self.equal_lists(&a.fields(), &b.fields());
                let e = &mut self.emitter;
                let content = e.either(invalid, equal);
                e.both(same, content)
            }
            RuntimeType::Stack(..) => self.equal_lists(&a.elements(), &b.elements()),
            RuntimeType::Varbit(width) => self.equal_varbits(a, b, *width),
            other if other.is_scalar() => {
                let (left, right) = (self.emitter.load_scalar(a), self.emitter.load_scalar(b));
                self.emitter.equal_words(&left.words, &right.words)
            }
            _ => self.equal_lists(&a.fields(), &b.fields()),
        }
    }

    fn equal_lists(&mut self, a: &[Place], b: &[Place]) -> Value {
        let mut result = self.emitter.truth(true);
        for (a, b) in a.iter().zip(b) {
            let equal = self.equal_places(a, b);
            result = self.emitter.both(result, equal);
        }
        result
    }

    /// Bytes behind the length of a varbit are zero.
    fn equal_varbits(&mut self, a: &Place, b: &Place, width: u32) -> Value {
        let e = &mut self.emitter;
        let mut result = e.truth(true);
        for offset in (0..PREFIX + width.div_ceil(8)).step_by(8) {
            let left = e.load(a.address.plus(offset), Size::Dw);
            let right = e.load(b.address.plus(offset), Size::Dw);
            let equal = e.compare(Cond::Eq, left, right);
            result = e.both(result, equal);
        }
        result
    }

    /// Reads a target.
    pub(crate) fn read_target(&mut self, target: &Target) -> Operand {
        match target {
            Target::Memory(place) if place.value_type.is_scalar() => {
                Operand::Scalar(self.emitter.load_scalar(place))
            }
            Target::Memory(place) => Operand::Memory(place.clone()),
            Target::Bits(place, low, width) => {
                let whole = self.emitter.load_scalar(place);
                let words = self.emitter.bits_from(&whole.words, *low, *width);
                Operand::Scalar(Scalar::bits(words, *width))
            }
            Target::BitsAt(place, low, width) => {
                let whole = self.emitter.load_scalar(place);
                let format = (whole.width(), false);
                let words = self.emitter.shifted_by(&whole.words, &[*low], format, false);
                let words = self.emitter.bits_from(&words, 0, *width);
                Operand::Scalar(Scalar::bits(words, *width))
            }
            Target::Ignored => Operand::Nothing,
        }
    }

    /// Writes a scalar of the target's type.
    pub(crate) fn write_scalar(&mut self, target: &Target, value: &Scalar) {
        match target {
            Target::Memory(place) => self.emitter.store_scalar(place, value),
            Target::Bits(place, low, width) => {
                let low = self.emitter.constant(u64::from(*low));
                self.write_bits(place, low, *width, value);
            }
            Target::BitsAt(place, low, width) => self.write_bits(place, *low, *width, value),
            Target::Ignored => {}
        }
    }

    fn write_bits(&mut self, place: &Place, low: Value, width: u32, value: &Scalar) {
        let e = &mut self.emitter;
        let whole = e.load_scalar(place);
        let total = whole.width();
        let ones = e.zero_words(width);
        let ones = e.complement(&ones, width);
        let shift = |e: &mut Emitter, words: &[Value]| {
            let wide = e.resized(words, width, total, false);
            match e.known(low) {
                Some(low) => e.shifted_up(&wide, low as u32, total),
                None => e.shifted_by(&wide, &[low], (total, false), true),
            }
        };
        let (mask, new) = (shift(e, &ones), shift(e, &value.words));
        let keep = e.complement(&mask, total);
        let kept = e.bitwise(AluOp::And, &whole.words, &keep);
        let words = e.bitwise(AluOp::Or, &kept, &new);
        e.store_scalar(place, &Scalar { words, value_type: whole.value_type });
    }

    /// Address of an element whose index is not known, and not above the number of elements.
    pub(crate) fn element_address(&mut self, stack: &Place, index: Value, element: &RuntimeType) -> Address {
        let bytes = self.emitter.alu_with(AluOp::Mul, index, u64::from(element_size(element)));
        self.emitter.moved(stack.address.plus(PREFIX), bytes)
    }
}
