//! Expressions: values, places, aggregates.

use millstream_ir::{AluOp, Cond, Size, Value};
use millstream_p4::expression::{ExpressionKind, ExpressionTree, QualifiedName};
use millstream_p4::{ConstantValue, SourceName};

use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::methods::stack_end;
use crate::scope::Binding;
use crate::types::{PREFIX, RuntimeType, element_size};
use crate::values::{Operand, Place, Scalar, Target};

impl<'p> Lowerer<'p> {
    /// Lowers an expression whose value is a scalar. A number without a width takes the type of `hint`.
    pub(crate) fn scalar(
        &mut self,
        expression: &'p ExpressionTree,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Scalar> {
        self.check_size(expression.span)?;
        let own = self.type_of(expression)?;
        let target = match (&own, hint) {
            (RuntimeType::Integer | RuntimeType::Other, Some(hint)) if hint.is_scalar() => hint.clone(),
            (RuntimeType::Integer, _) => RuntimeType::Bits(64, false),
            _ => own,
        };
        if let Some(value) = self.program.facts.constant(expression.id).cloned()
            && let Some(scalar) = self.constant_scalar(&value, &target)
        {
            return Ok(scalar);
        }
        match &expression.kind {
            ExpressionKind::Number(number) => {
                let value = ConstantValue::Number(number.value.clone());
                match self.constant_scalar(&value, &target) {
                    Some(scalar) => Ok(scalar),
                    None => refuse(expression.span, "this number has no type at run time"),
                }
            }
            ExpressionKind::Default => {
                Ok(Scalar { words: self.emitter.zero_words(target.width().unwrap_or(0)), value_type: target })
            }
            ExpressionKind::Unary(operator, value) => self.unary(*operator, value, &target),
            ExpressionKind::Binary(operator, left, right) => {
                self.binary(*operator, (left, right), &target, expression.span)
            }
            ExpressionKind::Ternary(parts) => self.ternary(parts, &target),
            ExpressionKind::Cast(_, value) => {
                let value = self.scalar(value, Some(&target))?;
                Ok(self.converted(value, &target))
            }
            ExpressionKind::Slice(_) | ExpressionKind::WidthSlice(_) => self.slice(expression),
            _ => self.scalar_of_operand(expression, &target),
        }
    }

    fn scalar_of_operand(&mut self, expression: &'p ExpressionTree, target: &RuntimeType) -> Lowered<Scalar> {
        let operand = match &expression.kind {
            ExpressionKind::Call(function, types, arguments) => {
                self.call(function, types, arguments, expression.span, Some(target))?
            }
            ExpressionKind::Member(base, member) => match self.member_of_call(base, member)? {
                Some(scalar) => Operand::Scalar(scalar),
                None => self.operand_in_memory(expression, target)?,
            },
            _ => self.operand_in_memory(expression, target)?,
        };
        match operand {
            Operand::Scalar(scalar) => Ok(scalar),
            _ => refuse(expression.span, "this expression has no scalar value"),
        }
    }

    fn operand_in_memory(
        &mut self,
        expression: &'p ExpressionTree,
        target: &RuntimeType,
    ) -> Lowered<Operand> {
        if let Some(place) = self.target_of(expression)? {
            return Ok(self.read_target(&place));
        }
        if let ExpressionKind::Name(name) = &expression.kind
            && let Some((value, scope)) = self.constant_of(name)
        {
            let lowered =
                self.deeper(expression.span, |l| l.in_scope(scope, |l| l.scalar(value, Some(target))));
            return lowered.map(Operand::Scalar);
        }
        refuse(expression.span, "this expression is not supported")
    }

    /// Members that are no fields: parts of the result of a table, and sizes of stacks.
    fn member_of_call(
        &mut self,
        base: &'p ExpressionTree,
        member: &'p SourceName,
    ) -> Lowered<Option<Scalar>> {
        if let ExpressionKind::Call(function, types, arguments) = &base.kind
            && matches!(&*member.text, "hit" | "miss")
            && let Operand::Applied { hit, .. } = self.call(function, types, arguments, base.span, None)?
        {
            let value = if &*member.text == "hit" { hit } else { self.emitter.not(hit) };
            return Ok(Some(Scalar::truth(value)));
        }
        let RuntimeType::Stack(_, count) = self.type_of(base)? else { return Ok(None) };
        match &*member.text {
            "size" => Ok(Some(self.number(u64::from(count), 32))),
            "lastIndex" => {
                let stack = self.memory(base, None)?;
                let next = self.emitter.load(stack.address, Size::W);
                let last = self.emitter.alu_with(AluOp::Sub, next, 1);
                Ok(Some(Scalar::bits(self.emitter.masked(vec![last], 32), 32)))
            }
            _ => Ok(None),
        }
    }

    /// A constant, or a constructor's parameter: its expression, and the scope of that.
    pub(crate) fn constant_of(
        &self,
        name: &QualifiedName,
    ) -> Option<(&'p ExpressionTree, std::rc::Rc<crate::scope::Scope<'p>>)> {
        if !name.is_global
            && let Some((Binding::Constant(value, _, scope), found)) = self.scope.find(&name.name.text)
        {
            return Some((value, scope.unwrap_or(found)));
        }
        match &self.global(&name.name.text)?.kind {
            millstream_p4::ast::DeclarationKind::Constant(_, value) => Some((value, self.root.clone())),
            _ => None,
        }
    }

    /// Lowers an expression of any type.
    pub(crate) fn operand(
        &mut self,
        expression: &'p ExpressionTree,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Operand> {
        let own = self.type_of(expression)?;
        let is_list = matches!(
            expression.kind,
            ExpressionKind::List(_)
                | ExpressionKind::Record(..)
                | ExpressionKind::Default
                | ExpressionKind::Invalid
                | ExpressionKind::KeysetTuple(_)
        );
        let value_type = match (&own, hint) {
            (RuntimeType::Integer | RuntimeType::Other, Some(hint)) => hint.clone(),
            (_, Some(hint)) if is_list => hint.clone(),
            _ => own,
        };
        if value_type.is_scalar() || value_type == RuntimeType::Integer {
            return self.scalar(expression, Some(&value_type)).map(Operand::Scalar);
        }
        if let ExpressionKind::Call(function, types, arguments) = &expression.kind {
            return self.call(function, types, arguments, expression.span, Some(&value_type));
        }
        if !is_list && let Some(Target::Memory(place)) = self.target_of(expression)? {
            return Ok(Operand::Memory(place));
        }
        if value_type.size() == 0 {
            return refuse(expression.span, "a value of this type is not supported here");
        }
        let place = self.emitter.variable(value_type);
        self.lower_into(expression, &place)?;
        Ok(Operand::Memory(place))
    }

    /// Lowers an expression to an object in memory.
    pub(crate) fn memory(
        &mut self,
        expression: &'p ExpressionTree,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Place> {
        match self.operand(expression, hint)? {
            Operand::Memory(place) => Ok(place),
            Operand::Scalar(scalar) => {
                let place = self.emitter.variable(scalar.value_type.clone());
                self.emitter.store_scalar(&place, &scalar);
                Ok(place)
            }
            _ => refuse(expression.span, "this expression has no value"),
        }
    }

    /// Lowers an expression into an object that it does not read.
    pub(crate) fn lower_into(&mut self, expression: &'p ExpressionTree, place: &Place) -> Lowered<()> {
        if place.value_type.is_scalar() {
            let value = self.scalar(expression, Some(&place.value_type))?;
            let value = self.converted(value, &place.value_type);
            self.emitter.store_scalar(place, &value);
            return Ok(());
        }
        match &expression.kind {
            ExpressionKind::List(items) | ExpressionKind::KeysetTuple(items) => self.list_into(items, place),
            ExpressionKind::Record(fields, _) => self.record_into(fields, place),
            ExpressionKind::Invalid | ExpressionKind::Default => {
                self.emitter.clear(place);
                Ok(())
            }
            ExpressionKind::Cast(_, value) => self.lower_into(value, place),
            ExpressionKind::Ternary(parts) => {
                let condition = self.scalar(&parts[0], None)?;
                let (otherwise, behind) = (self.emitter.split(condition.words[0]), self.emitter.new_block());
                self.lower_into(&parts[1], place)?;
                self.emitter.jump(behind);
                self.emitter.enter(otherwise);
                self.lower_into(&parts[2], place)?;
                self.emitter.jump(behind);
                self.emitter.enter(behind);
                Ok(())
            }
            _ => {
                let from = self.memory(expression, Some(&place.value_type))?;
                self.assign_place(&from, place)
            }
        }
    }

    fn list_into(&mut self, items: &'p [ExpressionTree], place: &Place) -> Lowered<()> {
        self.emitter.clear(place);
        if let RuntimeType::Header(_) = place.value_type {
            self.emitter.store_constant(place.address, Size::B, 1);
        }
        let parts = match place.value_type {
            RuntimeType::Stack(..) => place.elements(),
            _ => place.fields(),
        };
        for (item, part) in items.iter().zip(&parts) {
            self.lower_into(item, part)?;
        }
        if let RuntimeType::Stack(..) = place.value_type {
            self.emitter.store_constant(place.address, Size::W, 0);
        }
        Ok(())
    }

    fn record_into(&mut self, fields: &'p [(SourceName, ExpressionTree)], place: &Place) -> Lowered<()> {
        self.emitter.clear(place);
        if let RuntimeType::Header(_) = place.value_type {
            self.emitter.store_constant(place.address, Size::B, 1);
        }
        for (name, value) in fields {
            match place.field(&name.text) {
                Some(field) => self.lower_into(value, &field)?,
                None => return refuse(name.span, format!("there is no field `{}`", name.text)),
            }
        }
        Ok(())
    }

    /// Finds the object that an expression names; constants have none.
    pub(crate) fn target_of(&mut self, expression: &'p ExpressionTree) -> Lowered<Option<Target>> {
        match &expression.kind {
            ExpressionKind::Name(name) => self.named_target(name),
            ExpressionKind::Member(base, member) => self.member_target(base, member),
            ExpressionKind::Index(base, index) => self.index_target(base, index),
            ExpressionKind::Slice(parts) => {
                let (high, low) = (self.known_size(&parts[1])?, self.known_size(&parts[2])?);
                let width = high.saturating_sub(low) + 1;
                Ok(self.target_of(&parts[0])?.and_then(|target| bits_of(target, low, width)))
            }
            ExpressionKind::WidthSlice(parts) => {
                let width = self.known_size(&parts[2])?;
                let Some(base) = self.target_of(&parts[0])? else { return Ok(None) };
                if let Ok(low) = self.known_size(&parts[1]) {
                    return Ok(bits_of(base, low, width));
                }
                let low = self.scalar(&parts[1], Some(&RuntimeType::Bits(32, false)))?;
                match base {
                    Target::Memory(place) => Ok(Some(Target::BitsAt(place, low.words[0], width))),
                    _ => refuse(expression.span, "a range with an unknown position within a range"),
                }
            }
            _ => Ok(None),
        }
    }

    fn named_target(&mut self, name: &'p QualifiedName) -> Lowered<Option<Target>> {
        let found = match name.is_global {
            true => None,
            false => self.scope.find(&name.name.text),
        };
        if let Some((Binding::Variable(place), _)) = found {
            return Ok(Some(Target::Memory(place)));
        }
        let Some((value, scope)) = self.constant_of(name) else { return Ok(None) };
        let value_type = self.constant_type(name)?;
        if value_type.size() == 0 || value_type.is_scalar() {
            return Ok(None);
        }
        let place = self.emitter.variable(value_type);
        self.deeper(name.name.span, |l| l.in_scope(scope, |l| l.lower_into(value, &place)))?;
        Ok(Some(Target::Memory(place)))
    }

    fn constant_type(&mut self, name: &'p QualifiedName) -> Lowered<RuntimeType> {
        if let Some((Binding::Constant(_, value_type, _), _)) = self.scope.find(&name.name.text) {
            return Ok(value_type);
        }
        match self.global(&name.name.text).map(|declaration| &declaration.kind) {
            Some(millstream_p4::ast::DeclarationKind::Constant(syntax, _)) => {
                let root = self.root.clone();
                self.in_scope(root, |l| l.type_of_syntax(syntax))
            }
            _ => Ok(RuntimeType::Other),
        }
    }

    fn member_target(&mut self, base: &'p ExpressionTree, member: &'p SourceName) -> Lowered<Option<Target>> {
        let base_type = self.type_of(base)?;
        if let RuntimeType::Stack(..) = base_type {
            return match &*member.text {
                "next" | "last" => {
                    let stack = self.memory(base, None)?;
                    stack_end(self, &stack, &member.text, member.span).map(|p| Some(Target::Memory(p)))
                }
                _ => Ok(None),
            };
        }
        if base_type.record().is_none() {
            return Ok(None);
        }
        let place = self.memory(base, None)?;
        match place.field(&member.text) {
            Some(field) => Ok(Some(Target::Memory(field))),
            None => refuse(member.span, format!("there is no field `{}`", member.text)),
        }
    }

    fn index_target(
        &mut self,
        base: &'p ExpressionTree,
        index: &'p ExpressionTree,
    ) -> Lowered<Option<Target>> {
        let place = self.memory(base, None)?;
        let known = self.known(index).is_some().then(|| self.known_size(index)).transpose()?;
        let (element, count) = match &place.value_type {
            RuntimeType::Stack(element, count) => (element.clone(), *count),
            _ => {
                let field = known.and_then(|known| place.field_at(known as usize));
                return match field {
                    Some(field) => Ok(Some(Target::Memory(field))),
                    None => refuse(index.span, "there is no element of this index"),
                };
            }
        };
        if let Some(known) = known
            && let Some(place) = place.element(known)
        {
            return Ok(Some(Target::Memory(place)));
        }
        let hint = RuntimeType::Bits(32, false);
        let index = self.scalar(index, Some(&hint))?;
        let e = &mut self.emitter;
        let mut position = index.words[0];
        for word in &index.words[1..] {
            let is_far = e.compare_with(Cond::Ne, *word, 0);
            let beyond = e.constant(u64::from(count));
            position = e.select(is_far, beyond, position);
        }
        let inside = e.compare_with(Cond::Lt, position, u64::from(count));
        let spare = e.constant(u64::from(count));
        let position = e.select(inside, position, spare);
        let outside = e.not(inside);
        let spare_place =
            Place::new(place.address.plus(PREFIX + count * element_size(&element)), (*element).clone());
        e.when(outside, |e| e.clear(&spare_place));
        let address = self.element_address(&place, position, &element);
        Ok(Some(Target::Memory(Place::new(address, (*element).clone()))))
    }

    /// Address of an element whose index is not known, and not above the number of elements.
    pub(crate) fn element_address(&mut self, stack: &Place, index: Value, element: &RuntimeType) -> Address {
        let bytes = self.emitter.alu_with(AluOp::Mul, index, u64::from(element_size(element)));
        self.emitter.moved(stack.address.plus(PREFIX), bytes)
    }

    fn slice(&mut self, expression: &'p ExpressionTree) -> Lowered<Scalar> {
        if let Some(target) = self.target_of(expression)? {
            return match self.read_target(&target) {
                Operand::Scalar(scalar) => Ok(scalar),
                _ => refuse(expression.span, "a range of bits of this value is not supported"),
            };
        }
        let (base, low, width) = match &expression.kind {
            ExpressionKind::Slice(parts) => {
                let (high, low) = (self.known_size(&parts[1])?, self.known_size(&parts[2])?);
                (self.scalar(&parts[0], None)?, self.number(u64::from(low), 32), high.saturating_sub(low) + 1)
            }
            ExpressionKind::WidthSlice(parts) => {
                let width = self.known_size(&parts[2])?;
                let base = self.scalar(&parts[0], None)?;
                (base, self.scalar(&parts[1], Some(&RuntimeType::Bits(32, false)))?, width)
            }
            _ => return refuse(expression.span, "this is no range of bits"),
        };
        let e = &mut self.emitter;
        let words = match e.known(low.words[0]) {
            Some(low) => e.bits_from(&base.words, low as u32, width),
            None => {
                let shifted = e.shifted_by(&base.words, &low.words, (base.width(), false), false);
                e.bits_from(&shifted, 0, width)
            }
        };
        Ok(Scalar::bits(words, width))
    }
}

/// Bits of a target that is a scalar.
fn bits_of(target: Target, low: u32, width: u32) -> Option<Target> {
    Some(match target {
        Target::Memory(place) if place.value_type.is_scalar() => Target::Bits(place, low, width),
        Target::Bits(place, outer, _) => Target::Bits(place, outer + low, width),
        _ => return None,
    })
}
