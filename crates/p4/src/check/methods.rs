//! Calls of methods: of externs, headers, stacks, tables, parsers and controls, and sizes.

use crate::ast::AggregateKind;
use crate::source::SourceName;
use num_bigint::BigInt;

use crate::check::calls::{CallSite, CalleeKind, matched};
use crate::check::coercion::substitution;
use crate::check::constants::ConstantValue;
use crate::check::types::{
    BOOL, FunctionType, INTEGER, MethodType, NominalKind, TypeId, UNKNOWN, VOID, ValueType,
};
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::expression::ExpressionTree;

impl TypeChecker<'_> {
    pub(crate) fn method_call(
        &mut self,
        base: &ExpressionTree,
        member: &SourceName,
        call: CallSite<'_>,
    ) -> TypedValue {
        let value = self.expression(base);
        let type_id = self.types.shallow(value.type_id);
        if let Some(size) = self.size_call(type_id, member, call) {
            return size;
        }
        match self.types.kind(type_id).clone() {
            ValueType::Unknown => {
                for argument in call.arguments.iter().filter_map(|a| a.value.as_ref()) {
                    self.expression(argument);
                }
                TypedValue::unknown()
            }
            ValueType::Stack(..) => self.stack_call(&value, member, call),
            ValueType::Table(table) => self.table_call(table, member, call),
            ValueType::Nominal(nominal, arguments) => {
                let declared = self.types.nominal(nominal).clone();
                match declared.kind {
                    NominalKind::Extern(methods) => {
                        let map = substitution(&declared.type_parameters, &arguments);
                        self.extern_call(type_id, &methods, member, &map, call)
                    }
                    NominalKind::Block(_) => self.block_call(type_id, member, call),
                    NominalKind::Aggregate(kind, _) => self.header_call(kind, &value, member, call),
                    _ => self.no_member(type_id, member, &[]),
                }
            }
            _ => self.no_member(type_id, member, &[]),
        }
    }

    fn extern_call(
        &mut self,
        type_id: TypeId,
        methods: &[MethodType],
        member: &SourceName,
        owner: &rustc_hash::FxHashMap<TypeId, TypeId>,
        call: CallSite<'_>,
    ) -> TypedValue {
        let named: Vec<&MethodType> =
            methods.iter().filter(|m| !m.is_constructor && m.signature.name == member.text).collect();
        if named.is_empty() {
            let names: Vec<String> = methods.iter().map(|method| method.signature.name.to_string()).collect();
            return self.no_member(type_id, member, &names);
        }
        let fits = |method: &&&MethodType| matched(&method.signature.parameters, call.arguments).is_some();
        let fitting: Vec<&&MethodType> = named.iter().filter(fits).collect();
        match (&fitting[..], &named[..]) {
            ([one], _) => self.method_result(type_id, &one.signature, owner, call),
            ([], [one]) => self.method_result(type_id, &one.signature, owner, call),
            ([], _) => {
                self.error(member.span, format!("no method `{}` takes these arguments", member.text));
                TypedValue::unknown()
            }
            _ => {
                self.error(member.span, format!("several methods `{}` take these arguments", member.text));
                TypedValue::unknown()
            }
        }
    }

    fn method_result(
        &mut self,
        type_id: TypeId,
        signature: &FunctionType,
        owner: &rustc_hash::FxHashMap<TypeId, TypeId>,
        call: CallSite<'_>,
    ) -> TypedValue {
        let value = self.check_call(signature, owner, call);
        if self.types.name(type_id) == "packet_in" {
            self.check_packet_method(&signature.name, &value, call);
        }
        value
    }

    /// Checks that `extract` reads headers, and that sizes suit them.
    fn check_packet_method(&mut self, name: &str, value: &TypedValue, call: CallSite<'_>) {
        let first = call.arguments.first().and_then(|argument| argument.value.as_ref());
        match (name, first.and_then(|header| self.facts.type_id(header.id))) {
            ("extract", Some(header)) => self.check_extracted(header, call),
            ("lookahead", _) if self.variable_fields(value.type_id) > 0 => {
                self.error(call.span, "`lookahead` reads values of a fixed size");
            }
            _ => {}
        }
    }

    fn check_extracted(&mut self, header: TypeId, call: CallSite<'_>) {
        let kind = self.types.kind(header).clone();
        if matches!(kind, ValueType::Unknown | ValueType::Parameter(..)) {
            return;
        }
        let expected = call.arguments.len().saturating_sub(1);
        match self.fields(header) {
            Some((AggregateKind::Header, _)) if self.variable_fields(header) == expected => {}
            Some((AggregateKind::Header, _)) if expected == 0 => {
                self.error(call.span, "a header with a field of variable size needs the size");
            }
            Some((AggregateKind::Header, _)) => {
                self.error(call.span, "a header of a given size has one field of variable size");
            }
            _ => {
                let name = self.types.name(header);
                self.error(call.span, format!("`extract` reads headers, and `{name}` is none"));
            }
        }
    }

    /// Number of fields of variable size.
    fn variable_fields(&mut self, id: TypeId) -> usize {
        let fields = self.fields(id).map(|(_, fields)| fields).unwrap_or_default();
        fields
            .iter()
            .filter(|(_, field)| matches!(self.types.kind(*field), ValueType::VariableBits(_)))
            .count()
    }

    /// Checks `apply` of a parser or control.
    pub(crate) fn block_call(
        &mut self,
        type_id: TypeId,
        member: &SourceName,
        call: CallSite<'_>,
    ) -> TypedValue {
        let Some((block, _)) = self.block(type_id).filter(|_| &*member.text == "apply") else {
            return self.no_member(type_id, member, &["apply".to_owned()]);
        };
        let is_allowed = match block.is_parser {
            true => self.part == CheckedPart::ParserState,
            false => self.part == CheckedPart::ControlApply,
        };
        if !is_allowed {
            let place = if block.is_parser { "states of parsers" } else { "the `apply` blocks of controls" };
            self.error(call.span, format!("`apply` is only allowed in {place} here"));
        }
        if !call.types.is_empty() {
            self.error(call.span, "`apply` takes no type arguments");
        }
        if self.check_arguments(CalleeKind::Block, &block.parameters, call.arguments, call.span) {
            self.check_run_time_parameters(&block.parameters, call.span);
        }
        TypedValue::computed(VOID)
    }

    fn table_call(&mut self, table: u32, member: &SourceName, call: CallSite<'_>) -> TypedValue {
        if &*member.text != "apply" {
            let type_id = self.types.add(ValueType::Table(table));
            return self.no_member(type_id, member, &["apply".to_owned()]);
        }
        if self.part != CheckedPart::ControlApply {
            self.error(call.span, "a table can only be applied in the `apply` block of a control");
        }
        self.check_arguments(CalleeKind::Block, &[], call.arguments, call.span);
        TypedValue::computed(self.types.add(ValueType::TableResult(table)))
    }

    fn header_call(
        &mut self,
        kind: AggregateKind,
        value: &TypedValue,
        member: &SourceName,
        call: CallSite<'_>,
    ) -> TypedValue {
        let (is_header, is_struct) = (kind == AggregateKind::Header, kind == AggregateKind::Struct);
        let result = match &*member.text {
            "isValid" if !is_struct => BOOL,
            "setValid" | "setInvalid" if is_header => VOID,
            _ => {
                let names = ["isValid", "setValid", "setInvalid"].map(str::to_owned);
                return self.no_member(value.type_id, member, &names[..if is_struct { 0 } else { 3 }]);
            }
        };
        if result == VOID && !value.is_writable {
            self.error(member.span, "this header cannot be written");
        }
        self.check_arguments(CalleeKind::Function, &[], call.arguments, call.span);
        TypedValue::computed(result)
    }

    fn stack_call(&mut self, value: &TypedValue, member: &SourceName, call: CallSite<'_>) -> TypedValue {
        if !matches!(&*member.text, "push_front" | "pop_front") {
            return self.no_member(value.type_id, member, &["push_front".to_owned(), "pop_front".to_owned()]);
        }
        if !value.is_writable {
            self.error(member.span, "this stack cannot be written");
        }
        match call.arguments {
            [argument] if argument.value.is_some() => {
                if let Some(count) = &argument.value {
                    self.known_size(count, "the number of elements", 0, u32::MAX);
                }
            }
            _ => self.error(call.span, "this method takes the number of elements"),
        }
        TypedValue::computed(VOID)
    }

    /// Sizes of types, which are known.
    pub(crate) fn size_call(
        &mut self,
        type_id: TypeId,
        member: &SourceName,
        call: CallSite<'_>,
    ) -> Option<TypedValue> {
        let (is_largest, is_bytes) = match &*member.text {
            "minSizeInBits" => (false, false),
            "minSizeInBytes" => (false, true),
            "maxSizeInBits" => (true, false),
            "maxSizeInBytes" => (true, true),
            _ => return None,
        };
        if type_id == UNKNOWN {
            return Some(TypedValue::unknown());
        }
        if !self.has_size(type_id) {
            return None;
        }
        if !call.arguments.is_empty() || !call.types.is_empty() {
            self.error(call.span, "sizes take no arguments");
        }
        let bits = self.size(type_id, is_largest);
        let size = bits.map(|bits| if is_bytes { bits.div_ceil(8) } else { bits });
        let constant = size.map(|size| ConstantValue::Number(BigInt::from(size)));
        Some(TypedValue::known(INTEGER, constant))
    }

    fn has_size(&self, type_id: TypeId) -> bool {
        use ValueType::*;
        let kind = self.types.kind(self.types.shallow(type_id));
        !matches!(
            kind,
            Void | Text | Integer | MatchKind | ErrorCode | Set(_) | Table(_) | List(_) | TableResult(_)
        ) && self.is_data(type_id)
    }

    /// Least or greatest number of bits, unless a type parameter decides it.
    fn size(&mut self, type_id: TypeId, is_largest: bool) -> Option<u64> {
        let type_id = self.types.shallow(type_id);
        match self.types.kind(type_id).clone() {
            ValueType::Bits(width) | ValueType::SignedBits(width) => Some(width.into()),
            ValueType::VariableBits(width) => Some(if is_largest { width.into() } else { 0 }),
            ValueType::Bool => Some(1),
            ValueType::Stack(element, size) => {
                Some(self.size(element, is_largest)?.saturating_mul(size.into()))
            }
            ValueType::Tuple(elements) => elements
                .into_iter()
                .try_fold(0u64, |sum, e| Some(sum.saturating_add(self.size(e, is_largest)?))),
            ValueType::Nominal(nominal, _) => match self.types.nominal(nominal).kind.clone() {
                NominalKind::NewType(inner) => self.size(inner, is_largest),
                NominalKind::Enumeration(Some(under), _) => self.size(under, is_largest),
                NominalKind::Aggregate(kind, _) => {
                    let (_, fields) = self.fields(type_id)?;
                    let sizes: Option<Vec<u64>> =
                        fields.into_iter().map(|(_, field)| self.size(field, is_largest)).collect();
                    let sizes = sizes?;
                    Some(match (kind, is_largest) {
                        (AggregateKind::HeaderUnion, true) => sizes.into_iter().max().unwrap_or(0),
                        (AggregateKind::HeaderUnion, false) => sizes.into_iter().min().unwrap_or(0),
                        _ => sizes.into_iter().fold(0, u64::saturating_add),
                    })
                }
                _ => None,
            },
            _ => None,
        }
    }
}
