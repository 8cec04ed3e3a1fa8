//! Packets: `extract`, `lookahead`, `advance`, `length`.
//!
//! The cursor counts whole bytes: headers, variable parts and `advance` have to be multiples of 8 bits, as on
//! the reference software switch.

use millstream_ir::{AluOp, Cond, Op, Size, Type, Value, Width};
use millstream_p4::SourceSpan;
use millstream_p4::expression::{ExpressionKind, ExpressionTree, TypeSyntax};

use crate::arguments::{GivenArguments, argument};
use crate::emitter::{Address, Emitter};
use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::parser_errors;
use crate::types::{PREFIX, RuntimeType};
use crate::values::{Operand, Place, Scalar, Target, chunks};

impl Emitter {
    /// Loads a number of `bytes` bytes in packet order.
    pub(crate) fn load_packed(&mut self, at: Address, bytes: u32) -> Vec<Value> {
        let head = bytes % 8;
        let mut words = Vec::new();
        for word in (0..bytes / 8).rev() {
            let value = self.load(at.plus(head + 8 * word), Size::Dw);
            words.push(self.swapped(value, Size::Dw));
        }
        let mut top: Option<Value> = None;
        for (offset, size) in chunks(head) {
            let value = self.load(at.plus(offset), size);
            let value = self.swapped(value, size);
            top = Some(match top {
                Some(before) => {
                    let moved = self.alu_with(AluOp::Lsh, before, u64::from(8 * size.bytes()));
                    self.alu(AluOp::Or, moved, value)
                }
                None => value,
            });
        }
        words.extend(top);
        if words.is_empty() {
            words.push(self.constant(0));
        }
        words
    }

    /// Stores a number of `bytes` bytes in packet order.
    pub(crate) fn store_packed(&mut self, at: Address, bytes: u32, words: &[Value]) {
        let head = bytes % 8;
        for word in 0..bytes / 8 {
            let Some(value) = words.get((bytes / 8 - 1 - word) as usize) else { continue };
            let value = self.swapped(*value, Size::Dw);
            self.store(at.plus(head + 8 * word), Size::Dw, value);
        }
        let Some(top) = words.get((bytes / 8) as usize) else { return };
        for (offset, size) in chunks(head) {
            let left = head - offset - size.bytes();
            let value = self.alu_with(AluOp::Rsh, *top, u64::from(8 * left));
            let value = match size {
                Size::B => value,
                _ => self.swapped(value, size),
            };
            self.store(at.plus(offset), size, value);
        }
    }

    /// Copies a number of bytes that is not known, eight at once while so many are left.
    pub(crate) fn copy_words(&mut self, from: Address, to: Address, count: Value) {
        let whole = self.and(count, !7);
        let rest = self.and(count, 7);
        self.counted_loop(whole, 8, |e, offset| {
            let (source, target) = (e.moved(from, offset), e.moved(to, offset));
            let word = e.load(source, Size::Dw);
            e.store(target, Size::Dw, word);
        });
        let (from, to) = (self.moved(from, whole), self.moved(to, whole));
        self.copy_bytes(from, to, rest);
    }

    /// Copies a number of bytes that is not known.
    pub(crate) fn copy_bytes(&mut self, from: Address, to: Address, count: Value) {
        self.counted_loop(count, 1, |e, offset| {
            let (source, target) = (e.moved(from, offset), e.moved(to, offset));
            let byte = e.load(source, Size::B);
            e.store(target, Size::B, byte);
        });
    }
}

pub(crate) fn packet_method<'p>(
    l: &mut Lowerer<'p>,
    method: &str,
    types: &'p [TypeSyntax],
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    match (method, arguments.len()) {
        ("extract", 1 | 2) => extract(l, types, arguments, span)?,
        ("lookahead", _) => return lookahead(l, types, span),
        ("advance", 1) => {
            let bits = l.scalar(argument(arguments, 0, span)?, Some(&RuntimeType::Bits(32, false)))?;
            let bytes = whole_bytes(l, bits.words[0], span)?;
            reserve(l, bytes, "PacketTooShort", span)?;
            move_cursor(l, bytes, span)?;
        }
        ("length", 0) => {
            let packet = l.packet(span)?;
            let length = l.emitter.value(
                Op::Alu { op: AluOp::Sub, width: Width::W64 },
                &[packet.end, packet.data],
                Type::I64,
            );
            return Ok(Operand::Scalar(Scalar::bits(vec![length], 32)));
        }
        _ => return refuse(span, format!("the method `{method}` is not supported here")),
    }
    Ok(Operand::Nothing)
}

/// Bytes of a number of bits, which has to be a multiple of 8.
fn whole_bytes(l: &mut Lowerer<'_>, bits: Value, span: SourceSpan) -> Lowered<Value> {
    let e = &mut l.emitter;
    let rest = e.and(bits, 7);
    let bytes = e.alu_with(AluOp::Rsh, bits, 3);
    if l.emitter.known(rest) != Some(0) {
        let is_whole = l.emitter.compare_with(Cond::Eq, rest, 0);
        parser_errors::require(l, is_whole, "ParserInvalidArgument", span)?;
    }
    Ok(bytes)
}

/// Makes sure that bytes are left, and gives the address of the first one.
fn reserve(l: &mut Lowerer<'_>, bytes: Value, error: &str, span: SourceSpan) -> Lowered<Address> {
    let packet = l.packet(span)?;
    let cursor = l.emitter.load_scalar(&packet.cursor);
    let start = l.emitter.offset_pointer(packet.data, cursor.words[0]);
    let end = l.emitter.offset_pointer(start, bytes);
    let fits = l.emitter.compare(Cond::Le, end, packet.end);
    parser_errors::require(l, fits, error, span)?;
    Ok(Address::pointer(start))
}

fn move_cursor(l: &mut Lowerer<'_>, bytes: Value, span: SourceSpan) -> Lowered<()> {
    let packet = l.packet(span)?;
    let cursor = l.emitter.load_scalar(&packet.cursor);
    let moved = l.emitter.alu(AluOp::Add, cursor.words[0], bytes);
    l.emitter.store_scalar(&packet.cursor, &Scalar::bits(vec![moved], 32));
    Ok(())
}

fn lookahead<'p>(l: &mut Lowerer<'p>, types: &'p [TypeSyntax], span: SourceSpan) -> Lowered<Operand> {
    let Some(syntax) = types.first() else {
        return refuse(span, "`lookahead` needs its type argument here");
    };
    let value_type = l.type_of_syntax(syntax)?;
    let bits = value_type.packed_bits();
    let bytes = l.emitter.constant(u64::from(bits.div_ceil(8)));
    let at = reserve(l, bytes, "PacketTooShort", span)?;
    let packed = l.emitter.load_packed(at, bits.div_ceil(8));
    let place = l.emitter.variable(value_type);
    let total = bits.div_ceil(8) * 8;
    unpack(l, &place, &packed, (total, total), span)?;
    Ok(match place.value_type.is_scalar() {
        true => Operand::Scalar(l.emitter.load_scalar(&place)),
        false => Operand::Memory(place),
    })
}

/// Sets an object from bits: `at` bits of the total of `words` are left. Gives what is left behind.
fn unpack(
    l: &mut Lowerer<'_>,
    place: &Place,
    words: &[Value],
    (at, total): (u32, u32),
    span: SourceSpan,
) -> Lowered<u32> {
    if let Some(width) = place.value_type.width() {
        let words = l.emitter.bits_from(words, at - width, width);
        let value = Scalar { words, value_type: place.value_type.clone() };
        l.emitter.store_scalar(place, &value);
        return Ok(at - width);
    }
    if let RuntimeType::Header(_) = place.value_type {
        l.emitter.store_constant(place.address, Size::B, 1);
    }
    let parts = match &place.value_type {
        RuntimeType::Stack(..) => place.elements(),
        RuntimeType::Struct(_) | RuntimeType::Header(_) => place.fields(),
        _ => return refuse(span, "`lookahead` of this type is not supported"),
    };
    let mut left = at;
    for part in parts {
        left = unpack(l, &part, words, (left, total), span)?;
    }
    Ok(left)
}

fn extract<'p>(
    l: &mut Lowerer<'p>,
    types: &'p [TypeSyntax],
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<()> {
    let variable = match arguments.get(1).copied().flatten() {
        Some(bits) => Some(l.scalar(bits, Some(&RuntimeType::Bits(32, false)))?.words[0]),
        None => None,
    };
    let Some(expression) = arguments.first().copied().flatten() else {
        let Some(syntax) = types.first() else {
            return refuse(span, "`extract` of `_` needs its type argument");
        };
        let skipped = l.type_of_syntax(syntax)?;
        let skipped = l.emitter.variable(skipped);
        return extract_header(l, &skipped, variable, span);
    };
    let target = l.target_of(expression)?;
    let Some(Target::Memory(header)) = target else {
        return refuse(expression.span, "`extract` needs a header");
    };
    if !matches!(header.value_type, RuntimeType::Header(_)) {
        return refuse(expression.span, "only headers can be extracted");
    }
    forget_siblings(l, expression, &header)?;
    extract_header(l, &header, variable, span)?;
    fill_next(l, expression)
}

/// Counts the element of a stack that `next` named.
fn fill_next<'p>(l: &mut Lowerer<'p>, expression: &'p ExpressionTree) -> Lowered<()> {
    let ExpressionKind::Member(base, member) = &expression.kind else { return Ok(()) };
    match l.type_of(base)? {
        RuntimeType::Stack(..) if &*member.text == "next" => {
            let stack = l.memory(base, None)?;
            let next = l.emitter.load(stack.address, Size::W);
            let next = l.emitter.alu_with(AluOp::Add, next, 1);
            l.emitter.store(stack.address, Size::W, next);
            Ok(())
        }
        _ => fill_next(l, base),
    }
}

/// Makes the other members of a header union invalid.
pub(crate) fn forget_siblings<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
    header: &Place,
) -> Lowered<()> {
    let ExpressionKind::Member(base, _) = &expression.kind else { return Ok(()) };
    let RuntimeType::Union(_) = l.type_of(base)? else { return Ok(()) };
    let union = l.memory(base, None)?;
    for member in union.fields() {
        if member.address != header.address {
            l.emitter.clear(&member);
        }
    }
    Ok(())
}

fn extract_header(
    l: &mut Lowerer<'_>,
    header: &Place,
    variable: Option<Value>,
    span: SourceSpan,
) -> Lowered<()> {
    let fields = header.fields();
    let varbits = fields.iter().filter(|f| matches!(f.value_type, RuntimeType::Varbit(_))).count();
    if varbits > 1 {
        return refuse(span, "a header with several fields of variable size is not supported");
    }
    let fixed: u32 = fields.iter().filter_map(|field| field_bits(&field.value_type)).sum();
    if !fixed.is_multiple_of(8) {
        return refuse(span, format!("a header of {fixed} bits is not supported: bytes have to be whole"));
    }
    let extra = match (varbits, variable) {
        (1, Some(bits)) => {
            let bytes = whole_bytes(l, bits, span)?;
            let limit = fields.iter().find_map(|field| match field.value_type {
                RuntimeType::Varbit(width) => Some(width),
                _ => None,
            });
            let fits = l.emitter.compare_with(Cond::Le, bits, u64::from(limit.unwrap_or(0)));
            parser_errors::require(l, fits, "HeaderTooShort", span)?;
            bytes
        }
        _ => l.emitter.constant(0),
    };
    let fixed_bytes = l.emitter.constant(u64::from(fixed / 8));
    let total = l.emitter.alu(AluOp::Add, fixed_bytes, extra);
    let mut at = reserve(l, total, "PacketTooShort", span)?;
    let mut group: Vec<Place> = Vec::new();
    let mut bits = 0;
    for field in fields.iter().flat_map(flattened) {
        if let RuntimeType::Varbit(_) = field.value_type {
            if bits != 0 {
                return refuse(span, "a field of variable size has to begin at a whole byte");
            }
            extract_variable(l, &field, at, (variable, extra));
            at = l.emitter.moved(at, extra);
            continue;
        }
        bits += field.value_type.width().unwrap_or(0);
        group.push(field);
        if bits % 8 == 0 {
            extract_group(l, &group, at, bits);
            at = at.plus(bits / 8);
            (group, bits) = (Vec::new(), 0);
        }
    }
    l.emitter.store_constant(header.address, Size::B, 1);
    move_cursor(l, total, span)
}

/// Fields that together have whole bytes.
fn extract_group(l: &mut Lowerer<'_>, group: &[Place], at: Address, bits: u32) {
    if bits == 0 {
        return;
    }
    let words = l.emitter.load_packed(at, bits / 8);
    let mut left = bits;
    for field in group {
        let width = field.value_type.width().unwrap_or(0);
        left -= width;
        let words = l.emitter.bits_from(&words, left, width);
        let value = Scalar { words, value_type: field.value_type.clone() };
        l.emitter.store_scalar(field, &value);
    }
}

fn extract_variable(l: &mut Lowerer<'_>, field: &Place, at: Address, (bits, bytes): (Option<Value>, Value)) {
    l.emitter.clear(field);
    if let Some(bits) = bits {
        l.emitter.store(field.address, Size::W, bits);
        l.emitter.copy_bytes(at, field.address.plus(PREFIX), bytes);
    }
}

/// Bits of a field whose size is known.
fn field_bits(value_type: &RuntimeType) -> Option<u32> {
    match value_type {
        RuntimeType::Varbit(_) => None,
        other => Some(other.packed_bits()),
    }
}

/// Scalars and varbits of a field in order.
pub(crate) fn flattened(place: &Place) -> Vec<Place> {
    match &place.value_type {
        RuntimeType::Struct(_) => place.fields().iter().flat_map(flattened).collect(),
        RuntimeType::Stack(..) => place.elements().iter().flat_map(flattened).collect(),
        _ => vec![place.clone()],
    }
}
