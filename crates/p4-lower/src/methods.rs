//! Calls of methods: of headers, stacks, tables, packets, parsers, controls and externs.

use millstream_ir::{AluOp, Cond, Size};
use millstream_p4::expression::{CallArgument, ExpressionKind, ExpressionTree, TypeSyntax};
use millstream_p4::{SourceName, SourceSpan};

use crate::calls::argument;
use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::scope::{Binding, Instance};
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar};

impl<'p> Lowerer<'p> {
    pub(crate) fn method_call(
        &mut self,
        base: &'p ExpressionTree,
        member: &'p SourceName,
        types: &'p [TypeSyntax],
        arguments: &'p [CallArgument],
        span: SourceSpan,
    ) -> Lowered<Operand> {
        if let ExpressionKind::Name(name) = &base.kind
            && !name.is_global
            && let Some((Binding::Table(declaration), found)) = self.scope.find(&name.name.text)
        {
            return self.apply_table(declaration, found, arguments, span);
        }
        if let Some(instance) = self.find_instance(base) {
            return match &*instance {
                Instance::PacketIn => self.packet_method(&member.text, types, arguments, span),
                Instance::PacketOut => self.emit_call(arguments, span),
                Instance::Block(block) => self.apply_block(block, arguments, span),
                Instance::Extern(kind, number) => {
                    self.extern_method(kind, *number, &member.text, arguments, span)
                }
                Instance::ValueSet(_) => refuse(span, "a value set has no methods"),
            };
        }
        let place = self.memory(base, None)?;
        if &*member.text == "setValid" {
            self.forget_siblings(base, &place)?;
        }
        self.value_method(&place, &member.text, arguments, span)
    }

    fn value_method(
        &mut self,
        place: &Place,
        member: &str,
        arguments: &'p [CallArgument],
        span: SourceSpan,
    ) -> Lowered<Operand> {
        match (member, &place.value_type) {
            ("isValid", _) => {
                let valid = self.emitter.validity(place);
                return Ok(Operand::Scalar(Scalar::truth(valid)));
            }
            ("setValid", RuntimeType::Header(_)) => self.emitter.store_constant(place.address, Size::B, 1),
            ("setInvalid", _) => self.emitter.clear(place),
            ("push_front", RuntimeType::Stack(..)) => {
                let count = self.known_size(argument(arguments, 0, span)?)?;
                self.move_stack(place, count, true);
            }
            ("pop_front", RuntimeType::Stack(..)) => {
                let count = self.known_size(argument(arguments, 0, span)?)?;
                self.move_stack(place, count, false);
            }
            ("minSizeInBits" | "maxSizeInBits" | "minSizeInBytes" | "maxSizeInBytes", value_type) => {
                let bits = value_type.packed_bits();
                let size = if member.ends_with("Bits") { bits } else { bits.div_ceil(8) };
                return Ok(Operand::Scalar(self.number(u64::from(size), 32)));
            }
            _ => return refuse(span, format!("the method `{member}` is not supported here")),
        }
        Ok(Operand::Nothing)
    }

    /// Moves the elements of a stack to higher or lower indexes; elements that get no value become invalid.
    fn move_stack(&mut self, stack: &Place, count: u32, is_push: bool) {
        let elements = stack.elements();
        let total = elements.len();
        let by = (count as usize).min(total);
        let e = &mut self.emitter;
        if is_push {
            for at in (by..total).rev() {
                e.copy(&elements[at - by], &elements[at]);
            }
            elements[..by].iter().for_each(|element| e.clear(element));
        } else {
            for at in by..total {
                e.copy(&elements[at], &elements[at - by]);
            }
            elements[total - by..].iter().for_each(|element| e.clear(element));
        }
        let next = e.load(stack.address, Size::W);
        let moved = match is_push {
            true => {
                let sum = e.alu_with(AluOp::Add, next, by as u64);
                let is_over = e.compare_with(Cond::Gt, sum, total as u64);
                let most = e.constant(total as u64);
                e.select(is_over, most, sum)
            }
            false => {
                let is_under = e.compare_with(Cond::Lt, next, by as u64);
                let difference = e.alu_with(AluOp::Sub, next, by as u64);
                let zero = e.constant(0);
                e.select(is_under, zero, difference)
            }
        };
        e.store(stack.address, Size::W, moved);
    }

    /// `next` or `last` of a stack; outside of it the parser stops with an error.
    pub(crate) fn stack_end(&mut self, stack: &Place, member: &str, span: SourceSpan) -> Lowered<Place> {
        let RuntimeType::Stack(element, count) = &stack.value_type else {
            return refuse(span, "this is no stack");
        };
        let next = self.emitter.load(stack.address, Size::W);
        let e = &mut self.emitter;
        let (index, is_inside) = match member {
            "next" => (next, e.compare_with(Cond::Lt, next, u64::from(*count))),
            _ => {
                let last = e.alu_with(AluOp::Sub, next, 1);
                (last, e.compare_with(Cond::Lt, last, u64::from(*count)))
            }
        };
        self.require(is_inside, "StackOutOfBounds", span)?;
        let address = self.element_address(stack, index, element);
        Ok(Place::new(address, (**element).clone()))
    }
}
