//! Calls of methods: of externs, headers, stacks, tables, parsers and controls, and sizes.

use crate::SourceSpan;
use crate::ast::AggregateKind;
use crate::check::{CheckedPart, TypeChecker, TypedValue, calls, members};
use crate::expression::{CallArgument, ExpressionKind, ExpressionTree, TypeSyntax};
use crate::source::SourceName;
use num_bigint::BigInt;

use crate::check::calls::{CallSite, CalleeKind, matched};
use crate::check::coercion::substitution;
use crate::check::constants::ConstantValue;
use crate::check::types::{
    BOOL, FunctionType, INTEGER, MethodType, NominalKind, TypeId, UNKNOWN, VOID, ValueType,
};

pub(crate) fn method_call(
    checker: &mut TypeChecker<'_>,
    base: &ExpressionTree,
    member: &SourceName,
    call: CallSite<'_>,
) -> TypedValue {
    let value = checker.expression(base);
    let type_id = checker.types.shallow(value.type_id);
    if let Some(size) = size_call(checker, type_id, member, call) {
        return size;
    }
    match checker.types.kind(type_id).clone() {
        ValueType::Unknown => {
            for argument in call.arguments.iter().filter_map(|a| a.value.as_ref()) {
                checker.expression(argument);
            }
            TypedValue::unknown()
        }
        ValueType::Stack(..) => stack_call(checker, &value, member, call),
        ValueType::Table(table) => table_call(checker, table, member, call),
        ValueType::Nominal(nominal, arguments) => {
            let declared = checker.types.nominal(nominal).clone();
            match declared.kind {
                NominalKind::Extern(methods) => {
                    let map = substitution(&declared.type_parameters, &arguments);
                    extern_call(checker, type_id, &methods, member, &map, call)
                }
                NominalKind::Block(_) => block_call(checker, type_id, member, call),
                NominalKind::Aggregate(kind, _) => header_call(checker, kind, &value, member, call),
                _ => members::no_member(checker, type_id, member, &[]),
            }
        }
        _ => members::no_member(checker, type_id, member, &[]),
    }
}

fn extern_call(
    checker: &mut TypeChecker<'_>,
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
        return members::no_member(checker, type_id, member, &names);
    }
    let fits = |method: &&&MethodType| matched(&method.signature.parameters, call.arguments).is_some();
    let fitting: Vec<&&MethodType> = named.iter().filter(fits).collect();
    match (&fitting[..], &named[..]) {
        ([one], _) => method_result(checker, type_id, &one.signature, owner, call),
        ([], [one]) => method_result(checker, type_id, &one.signature, owner, call),
        ([], _) => {
            checker.error(member.span, format!("no method `{}` takes these arguments", member.text));
            TypedValue::unknown()
        }
        _ => {
            checker.error(member.span, format!("several methods `{}` take these arguments", member.text));
            TypedValue::unknown()
        }
    }
}

fn method_result(
    checker: &mut TypeChecker<'_>,
    type_id: TypeId,
    signature: &FunctionType,
    owner: &rustc_hash::FxHashMap<TypeId, TypeId>,
    call: CallSite<'_>,
) -> TypedValue {
    let value = calls::check_call(checker, signature, owner, call);
    if checker.types.name(type_id) == "packet_in" {
        check_packet_method(checker, &signature.name, &value, call);
    }
    value
}

/// Checks that `extract` reads headers, and that sizes suit them.
fn check_packet_method(checker: &mut TypeChecker<'_>, name: &str, value: &TypedValue, call: CallSite<'_>) {
    let first = call.arguments.first().and_then(|argument| argument.value.as_ref());
    match (name, first.and_then(|header| checker.facts.type_id(header.id))) {
        ("extract", Some(header)) => check_extracted(checker, header, call),
        ("lookahead", _) if variable_fields(checker, value.type_id) > 0 => {
            checker.error(call.span, "`lookahead` reads values of a fixed size");
        }
        _ => {}
    }
}

fn check_extracted(checker: &mut TypeChecker<'_>, header: TypeId, call: CallSite<'_>) {
    let kind = checker.types.kind(header).clone();
    if matches!(kind, ValueType::Unknown | ValueType::Parameter(..)) {
        return;
    }
    let expected = call.arguments.len().saturating_sub(1);
    match checker.fields(header) {
        Some((AggregateKind::Header, _)) if variable_fields(checker, header) == expected => {}
        Some((AggregateKind::Header, _)) if expected == 0 => {
            checker.error(call.span, "a header with a field of variable size needs the size");
        }
        Some((AggregateKind::Header, _)) => {
            checker.error(call.span, "a header of a given size has one field of variable size");
        }
        _ => {
            let name = checker.types.name(header);
            checker.error(call.span, format!("`extract` reads headers, and `{name}` is none"));
        }
    }
}

/// Number of fields of variable size.
fn variable_fields(checker: &mut TypeChecker<'_>, id: TypeId) -> usize {
    let fields = checker.fields(id).map(|(_, fields)| fields).unwrap_or_default();
    fields
        .iter()
        .filter(|(_, field)| matches!(checker.types.kind(*field), ValueType::VariableBits(_)))
        .count()
}

/// Checks `apply` of a parser or control.
pub(crate) fn block_call(
    checker: &mut TypeChecker<'_>,
    type_id: TypeId,
    member: &SourceName,
    call: CallSite<'_>,
) -> TypedValue {
    let Some((block, _)) = checker.block(type_id).filter(|_| &*member.text == "apply") else {
        return members::no_member(checker, type_id, member, &["apply".to_owned()]);
    };
    let is_allowed = match block.is_parser {
        true => checker.part == CheckedPart::ParserState,
        false => checker.part == CheckedPart::ControlApply,
    };
    if !is_allowed {
        let place = if block.is_parser { "states of parsers" } else { "the `apply` blocks of controls" };
        checker.error(call.span, format!("`apply` is only allowed in {place} here"));
    }
    if !call.types.is_empty() {
        checker.error(call.span, "`apply` takes no type arguments");
    }
    if calls::check_arguments(checker, CalleeKind::Block, &block.parameters, call.arguments, call.span) {
        calls::check_run_time_parameters(checker, &block.parameters, call.span);
    }
    TypedValue::computed(VOID)
}

fn table_call(
    checker: &mut TypeChecker<'_>,
    table: u32,
    member: &SourceName,
    call: CallSite<'_>,
) -> TypedValue {
    if &*member.text != "apply" {
        let type_id = checker.types.add(ValueType::Table(table));
        return members::no_member(checker, type_id, member, &["apply".to_owned()]);
    }
    if checker.part != CheckedPart::ControlApply {
        checker.error(call.span, "a table can only be applied in the `apply` block of a control");
    }
    calls::check_arguments(checker, CalleeKind::Block, &[], call.arguments, call.span);
    TypedValue::computed(checker.types.add(ValueType::TableResult(table)))
}

fn header_call(
    checker: &mut TypeChecker<'_>,
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
            return members::no_member(
                checker,
                value.type_id,
                member,
                &names[..if is_struct { 0 } else { 3 }],
            );
        }
    };
    if result == VOID && !value.is_writable {
        checker.error(member.span, "this header cannot be written");
    }
    calls::check_arguments(checker, CalleeKind::Function, &[], call.arguments, call.span);
    TypedValue::computed(result)
}

fn stack_call(
    checker: &mut TypeChecker<'_>,
    value: &TypedValue,
    member: &SourceName,
    call: CallSite<'_>,
) -> TypedValue {
    if !matches!(&*member.text, "push_front" | "pop_front") {
        return members::no_member(
            checker,
            value.type_id,
            member,
            &["push_front".to_owned(), "pop_front".to_owned()],
        );
    }
    if !value.is_writable {
        checker.error(member.span, "this stack cannot be written");
    }
    match call.arguments {
        [argument] if argument.value.is_some() => {
            if let Some(count) = &argument.value {
                checker.known_size(count, "the number of elements", 0, u32::MAX);
            }
        }
        _ => checker.error(call.span, "this method takes the number of elements"),
    }
    TypedValue::computed(VOID)
}

/// Sizes of types, which are known.
pub(crate) fn size_call(
    checker: &mut TypeChecker<'_>,
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
    if !has_size(checker, type_id) {
        return None;
    }
    if !call.arguments.is_empty() || !call.types.is_empty() {
        checker.error(call.span, "sizes take no arguments");
    }
    let bits = type_size(checker, type_id, is_largest);
    let size = bits.map(|bits| if is_bytes { bits.div_ceil(8) } else { bits });
    let constant = size.map(|size| ConstantValue::Number(BigInt::from(size)));
    Some(TypedValue::known(INTEGER, constant))
}

fn has_size(checker: &TypeChecker<'_>, type_id: TypeId) -> bool {
    use ValueType::*;
    let kind = checker.types.kind(checker.types.shallow(type_id));
    !matches!(
        kind,
        Void | Text | Integer | MatchKind | ErrorCode | Set(_) | Table(_) | List(_) | TableResult(_)
    ) && checker.is_data(type_id)
}

/// Least or greatest number of bits, unless a type parameter decides it.
fn type_size(checker: &mut TypeChecker<'_>, type_id: TypeId, is_largest: bool) -> Option<u64> {
    let type_id = checker.types.shallow(type_id);
    match checker.types.kind(type_id).clone() {
        ValueType::Bits(width) | ValueType::SignedBits(width) => Some(width.into()),
        ValueType::VariableBits(width) => Some(if is_largest { width.into() } else { 0 }),
        ValueType::Bool => Some(1),
        ValueType::Stack(element, size) => {
            Some(type_size(checker, element, is_largest)?.saturating_mul(size.into()))
        }
        ValueType::Tuple(elements) => elements
            .into_iter()
            .try_fold(0u64, |sum, e| Some(sum.saturating_add(type_size(checker, e, is_largest)?))),
        ValueType::Nominal(nominal, _) => match checker.types.nominal(nominal).kind.clone() {
            NominalKind::NewType(inner) => type_size(checker, inner, is_largest),
            NominalKind::Enumeration(Some(under), _) => type_size(checker, under, is_largest),
            NominalKind::Aggregate(kind, _) => {
                let (_, fields) = checker.fields(type_id)?;
                let sizes: Option<Vec<u64>> =
                    fields.into_iter().map(|(_, field)| type_size(checker, field, is_largest)).collect();
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

pub(crate) fn call(
    checker: &mut TypeChecker<'_>,
    function: &ExpressionTree,
    types: &[TypeSyntax],
    arguments: &[CallArgument],
    span: SourceSpan,
) -> TypedValue {
    let call = CallSite { types, arguments, span };
    match &function.kind {
        ExpressionKind::Name(name) => calls::named_call(checker, name, call),
        ExpressionKind::Member(base, member) => method_call(checker, base, member, call),
        ExpressionKind::TypeMember(target, member) => type_call(checker, target, member, call),
        _ => {
            checker.error(function.span, "this cannot be called");
            TypedValue::unknown()
        }
    }
}

fn type_call(
    checker: &mut TypeChecker<'_>,
    target: &TypeSyntax,
    member: &SourceName,
    call: CallSite<'_>,
) -> TypedValue {
    let type_id = checker.type_of(target);
    if let Some(value) = size_call(checker, type_id, member, call) {
        return value;
    }
    members::no_member(checker, type_id, member, &[])
}
