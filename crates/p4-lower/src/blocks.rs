//! Parts of all architectures: blocks of the package, state of a packet, functions of the pipeline.

use std::rc::Rc;

use millstream_ir::{AluOp, Function, Linkage, Op, Prov, Type, Value};
use millstream_p4::ast::{AnnotationBody, DeclarationKind, DeclarationTree, ParameterSyntax};
use millstream_p4::expression::{CallArgument, ExpressionKind, TypeSyntax, TypeSyntaxKind};
use millstream_p4::{SourceSpan, Symbol, TokenKind, number_literal};

use crate::arguments::matched;
use crate::emitter::{Address, Emitter};
use crate::error::{Lowered, refuse};
use crate::instances;
use crate::lowerer::{Flow, Lowerer, OutputBuffer, PacketAccess, ParserFlow, calls};
use crate::pipeline::{Architecture, FieldList, OutputArea, PipelineStage, StateField};
use crate::scope::{Binding, BlockInstance, Instance, Scope};
use crate::types::{RecordType, RuntimeType};
use crate::values::Place;

/// Fields of the engine, 32 bits each: bytes that the parser read, and what the program asked for.
const ENGINE_FIELDS: [&str; 18] = [
    "cursor",
    "clone_ingress",
    "clone_ingress_session",
    "clone_ingress_list",
    "clone_egress",
    "clone_egress_session",
    "clone_egress_list",
    "resubmit",
    "resubmit_list",
    "recirculate",
    "recirculate_list",
    "truncates",
    "truncated_length",
    "assertion_failed",
    "deparser_overflow",
    "rejected",
    "output_length",
    "output_copied",
];

/// Smallest and largest buffer of a deparser, in bytes.
const BUFFER_SIZES: (u32, u32) = (256, 65_536);

/// A parser or control of a package.
pub(crate) type PackageBlock<'p> = Rc<BlockInstance<'p>>;

/// Name of the package of `main`.
pub(crate) fn main_package<'p>(l: &Lowerer<'p>) -> Lowered<&'p millstream_p4::SourceName> {
    let Some(main) = l.global("main") else {
        return refuse(SourceSpan::default(), "the program has no `main`");
    };
    let DeclarationKind::Instance(syntax) = &main.kind else {
        return refuse(main.span, "`main` is no instance");
    };
    match &syntax.object_type.kind {
        TypeSyntaxKind::Named(name) | TypeSyntaxKind::Specialized(name, _) => Ok(&name.name),
        _ => refuse(main.span, "`main` is no package"),
    }
}

/// Parsers and controls of `main`, also those of packages within it, in order.
pub(crate) fn package_blocks<'p, const N: usize>(l: &mut Lowerer<'p>) -> Lowered<[PackageBlock<'p>; N]> {
    let Some(main) = l.global("main") else {
        return refuse(SourceSpan::default(), "the program has no `main`");
    };
    let DeclarationKind::Instance(syntax) = &main.kind else {
        return refuse(main.span, "`main` is no instance");
    };
    let mut blocks = Vec::new();
    collect_blocks(l, &syntax.object_type, &syntax.arguments, (String::new(), main.span), &mut blocks)?;
    match <[PackageBlock<'p>; N]>::try_from(blocks) {
        Ok(blocks) => Ok(blocks),
        Err(_) => refuse(main.span, format!("the package needs {N} parsers and controls")),
    }
}

/// Collects the blocks of an object of a package, or makes the block that it is.
fn collect_blocks<'p>(
    l: &mut Lowerer<'p>,
    syntax: &'p TypeSyntax,
    arguments: &'p [CallArgument],
    (path, span): (String, SourceSpan),
    blocks: &mut Vec<PackageBlock<'p>>,
) -> Lowered<()> {
    let name = match &syntax.kind {
        TypeSyntaxKind::Named(name) | TypeSyntaxKind::Specialized(name, _) => &name.name.text,
        _ => return refuse(span, "this is no part of a package"),
    };
    match l.global(name).map(|declaration| &declaration.kind) {
        Some(DeclarationKind::Package(_, parameters)) => {
            let Some(places) = matched(parameters, arguments) else {
                return refuse(span, "the arguments do not match the parameters of the package");
            };
            for place in places {
                let Some(value) = place.and_then(|argument| argument.value.as_ref()) else {
                    return refuse(span, "an argument of the package is missing");
                };
                match &value.kind {
                    ExpressionKind::Construct(syntax, arguments) => {
                        let place = (String::new(), value.span);
                        l.deeper(value.span, |l| collect_blocks(l, syntax, arguments, place, blocks))?;
                    }
                    ExpressionKind::Name(name) => {
                        let Some(declaration) = l.global(&name.name.text) else {
                            return refuse(value.span, "this instance is not known");
                        };
                        let DeclarationKind::Instance(syntax) = &declaration.kind else {
                            return refuse(value.span, "this is no instance");
                        };
                        let path = declaration.name.text.to_string();
                        let place = (path, value.span);
                        let (object_type, arguments) = (&syntax.object_type, &syntax.arguments);
                        l.deeper(value.span, |l| collect_blocks(l, object_type, arguments, place, blocks))?;
                    }
                    _ => return refuse(value.span, "this is no part of a package"),
                }
            }
            Ok(())
        }
        Some(DeclarationKind::Extern(_)) => Ok(()),
        _ => {
            let path = if path.is_empty() { type_path(l, name) } else { path };
            let instance = instances::instantiate(l, syntax, arguments, path, span)?;
            match &*instance {
                Instance::Block(block) => blocks.push(block.clone()),
                _ => return refuse(span, "this is no parser or control"),
            }
            Ok(())
        }
    }
}

/// Type of a parameter of a block.
pub(crate) fn parameter_type<'p>(
    l: &mut Lowerer<'p>,
    block: &PackageBlock<'p>,
    index: usize,
) -> Lowered<RuntimeType> {
    let Some(parameter) = parameters(block.declaration).get(index) else {
        return refuse(block.declaration.span, "a parameter is missing");
    };
    l.in_scope(block.arguments.clone(), |l| l.type_of_syntax(&parameter.declared_type))
}

/// Lays out the state of a packet: the engine's fields and those of the architecture.
pub(crate) fn packet_state<const N: usize>(
    l: &mut Lowerer<'_>,
    fields: [(&str, RuntimeType); N],
) -> RuntimeType {
    let engine = ENGINE_FIELDS.map(|name| (Symbol::from(name), RuntimeType::Bits(32, false)));
    let error = (Symbol::from("parser_error"), RuntimeType::Enumeration(None));
    let engine = RecordType::new(None, 0, engine.into_iter().chain([error]));
    let engine = (Symbol::from("engine"), RuntimeType::Struct(Rc::new(engine)));
    let fields = fields.into_iter().map(|(name, value_type)| (Symbol::from(name), value_type));
    let state = RecordType::new(None, 0, [engine].into_iter().chain(fields));
    let state = RuntimeType::Struct(Rc::new(state));
    describe_state(l, &state);
    state
}

/// Name for the control plane of a block that has no instance name: that of its type.
fn type_path(l: &Lowerer<'_>, name: &str) -> String {
    match l.global(name) {
        Some(declaration) => crate::instances::plane_name("", &declaration.annotations, &declaration.name),
        None => name.to_owned(),
    }
}

fn parameters(declaration: &DeclarationTree) -> &[ParameterSyntax] {
    match &declaration.kind {
        DeclarationKind::Control(control) => &control.parameters,
        DeclarationKind::Parser(parser) => &parser.parameters,
        _ => &[],
    }
}

fn describe_state(l: &mut Lowerer<'_>, state: &RuntimeType) {
    let mut fields = Vec::new();
    describe(state, String::new(), 0, &mut fields);
    l.pipeline.state.size = state.size();
    l.pipeline.state.fields = fields;
    let metadata = state.record().and_then(|record| record.field("metadata")).cloned();
    if let Some(metadata) = metadata {
        field_lists(l, &metadata.field_type, metadata.offset);
    }
}

/// Collects fields with `@field_list` annotations.
fn field_lists(l: &mut Lowerer<'_>, value_type: &RuntimeType, start: u32) {
    let RuntimeType::Struct(record) = value_type else { return };
    let Some(nominal) = record.nominal else { return };
    let name = l.source.program.types.nominal(nominal).name.clone();
    let Some(DeclarationKind::Aggregate(aggregate)) = l.global(&name).map(|d| &d.kind) else {
        return;
    };
    for (syntax, field) in aggregate.fields.iter().zip(&record.fields) {
        let range = (start + field.offset, field.field_type.size());
        for annotation in syntax.annotations.iter().filter(|a| &*a.name.text == "field_list") {
            let AnnotationBody::Unstructured(tokens) = &annotation.body else { continue };
            for token in tokens {
                if let Some(number) = list_number(l, &token.kind) {
                    add_to_list(l, number, range);
                }
            }
        }
        field_lists(l, &field.field_type, start + field.offset);
    }
}

/// Number of a field list: a literal, or the name of a constant.
fn list_number(l: &mut Lowerer<'_>, token: &TokenKind) -> Option<u64> {
    match token {
        TokenKind::Number(text) => u64::try_from(number_literal(text).ok()?.value).ok(),
        TokenKind::Word(name) => match &l.global(name)?.kind {
            DeclarationKind::Constant(_, value) => u64::try_from(l.known_number(value).ok()?).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn add_to_list(l: &mut Lowerer<'_>, number: u64, range: (u32, u32)) {
    match l.pipeline.field_lists.iter_mut().find(|list| list.number == number) {
        Some(list) => list.ranges.push(range),
        None => l.pipeline.field_lists.push(FieldList { number, ranges: vec![range] }),
    }
}

/// Makes a function of the pipeline.
pub(crate) fn stage<'p>(
    l: &mut Lowerer<'p>,
    name: &str,
    state: &RuntimeType,
    body: impl FnOnce(&mut Lowerer<'p>, &Place) -> Lowered<()>,
) -> Lowered<()> {
    let mut emitter = Emitter::new(Function::new(name, Linkage::Global));
    let entry = emitter.block;
    let context = emitter.parameter(entry, Type::Ptr(Prov::Ctx));
    let data = emitter.parameter(entry, Type::Ptr(Prov::Packet));
    let end = emitter.parameter(entry, Type::Ptr(Prov::PacketEnd));
    let leave = emitter.new_block();
    l.emitter = emitter;
    l.flow = Flow { returns: leave, result: None, exits: leave, uses_exit: false, loops: Vec::new() };
    let places = Place::new(Address::pointer(context), state.clone());
    let field = |path: &[&str]| path.iter().try_fold(places.clone(), |place, name| place.field(name));
    let (Some(engine), Some(cursor)) = (field(&["engine"]), field(&["engine", "cursor"])) else {
        return refuse(SourceSpan::default(), "no state of the engine");
    };
    let error = field(&["standard_metadata", "parser_error"]).or_else(|| field(&["engine", "parser_error"]));
    let Some(error) = error else {
        return refuse(SourceSpan::default(), "no field for the error of the parser");
    };
    l.stage.engine = Some(engine);
    l.stage.standard = field(&["standard_metadata"]);
    l.stage.packet = Some(PacketAccess { data, end, cursor, error });
    body(l, &places)?;
    l.emitter.jump(leave);
    l.emitter.enter(leave);
    let zero = l.emitter.constant(0);
    l.emitter.effect(Op::Return {}, &[zero]);
    let none = Emitter::new(Function::new("none", Linkage::Static));
    let function = std::mem::replace(&mut l.emitter, none).finish();
    let func = l.module.funcs.push(function);
    // Their memory was the function's.
    l.objects.colors.clear();
    l.objects.sums.fill(None);
    l.pipeline.stages.push(PipelineStage { name: name.to_owned(), func });
    Ok(())
}

/// Binds the parameters of a block to fields of the state, in order; packets are objects.
fn bind_state<'p>(
    l: &mut Lowerer<'p>,
    block: &Rc<BlockInstance<'p>>,
    state: &Place,
    names: &[&str],
) -> Lowered<Rc<Scope<'p>>> {
    let scope = Scope::of_owner(Some(block.arguments.clone()), Some(block.clone()));
    let mut names = names.iter();
    for parameter in parameters(block.declaration) {
        let value_type = l.in_scope(scope.clone(), |l| l.type_of_syntax(&parameter.declared_type))?;
        let binding = match value_type {
            RuntimeType::Object(id, _) => {
                let is_input = &*l.source.program.types.nominal(id).name == "packet_in";
                let instance = if is_input { Instance::PacketIn } else { Instance::PacketOut };
                Binding::Instance(Rc::new(instance))
            }
            _ => match names.next().and_then(|name| state.field(name)) {
                Some(place) => Binding::Variable(place),
                None => return refuse(parameter.name.span, "this parameter is not supported"),
            },
        };
        scope.bind(parameter.name.text.clone(), binding);
    }
    Ok(scope)
}

/// Runs a control, or a parser up to its end.
pub(crate) fn run_control<'p>(
    l: &mut Lowerer<'p>,
    block: &Rc<BlockInstance<'p>>,
    state: &Place,
    names: &[&str],
) -> Lowered<()> {
    let scope = bind_state(l, block, state, names)?;
    let behind = l.emitter.new_block();
    let flow = Flow { returns: behind, result: None, exits: behind, uses_exit: false, loops: Vec::new() };
    let outer = std::mem::replace(&mut l.flow, flow);
    let declaration = block.declaration;
    l.called(declaration.span, |l| l.in_scope(scope, |l| calls::block_body(l, declaration)))?;
    l.flow = outer;
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

/// Runs a parser. A packet that is rejected goes on to the controls with the error in its metadata; or it
/// leaves the function, marked as rejected.
pub(crate) fn run_parser<'p>(
    l: &mut Lowerer<'p>,
    block: &Rc<BlockInstance<'p>>,
    state: &Place,
    names: &[&str],
    keeps_rejected: bool,
) -> Lowered<()> {
    let reject = l.emitter.new_block();
    let accept = l.emitter.block;
    let flow = ParserFlow { states: Default::default(), accept, reject, steps: None };
    l.stage.parser = Some(flow);
    run_control(l, block, state, names)?;
    l.stage.parser = None;
    let behind = l.emitter.new_block();
    l.emitter.jump(behind);
    l.emitter.enter(reject);
    if keeps_rejected {
        l.emitter.jump(behind);
    } else {
        let one = l.number(1, 32);
        l.set_engine("rejected", one, block.declaration.span)?;
        l.emitter.jump(l.flow.exits);
    }
    l.emitter.enter(behind);
    Ok(())
}

/// Runs the deparser into a buffer, and puts what it wrote in front of the payload.
pub(crate) fn run_deparser<'p>(
    l: &mut Lowerer<'p>,
    block: &Rc<BlockInstance<'p>>,
    state: &Place,
    names: &[&str],
) -> Lowered<()> {
    let span = block.declaration.span;
    let fields = names.iter().filter_map(|name| state.field(name));
    let bits = fields.fold(0u32, |sum, field| sum.saturating_add(field.value_type.packed_bits()));
    let capacity = bits.div_ceil(8).saturating_mul(2).clamp(BUFFER_SIZES.0, BUFFER_SIZES.1);
    let address = match l.options.keeps_output {
        true => {
            let offset = l.pipeline.state.size;
            l.pipeline.state.output = Some(OutputArea { offset, capacity });
            state.address.plus(offset)
        }
        false => Address::slot(l.emitter.slot(capacity + 8)),
    };
    let bytes = Place::new(address, RuntimeType::Other);
    let length = l.emitter.variable(RuntimeType::Bits(32, false));
    let overflow = l.emitter.new_block();
    let cuts = l.pipeline.architecture == Architecture::Ubpf;
    let kept = cuts.then(|| l.emitter.variable(RuntimeType::Bits(32, false)));
    let output =
        OutputBuffer { bytes: bytes.clone(), length: length.clone(), capacity, kept: kept.clone(), overflow };
    l.stage.output = Some(output);
    run_control(l, block, state, names)?;
    l.stage.output = None;
    let written = l.emitter.load_scalar(&length);
    let copied = l.emitter.load_scalar(kept.as_ref().unwrap_or(&length));
    match l.options.keeps_output {
        true => {
            l.set_engine("output_length", written, span)?;
            l.set_engine("output_copied", copied, span)?;
        }
        false => put_in_front(l, state, bytes.address, (written.words[0], copied.words[0]), span)?,
    }
    let e = &mut l.emitter;
    let done = e.new_block();
    e.jump(done);
    e.enter(overflow);
    let one = l.number(1, 32);
    l.set_engine("deparser_overflow", one, span)?;
    l.emitter.jump(done);
    l.emitter.enter(done);
    l.pipeline.headroom = l.pipeline.headroom.max(capacity);
    Ok(())
}

/// Puts bytes in front of the payload: moves the packet's start there, and copies them.
fn put_in_front(
    l: &mut Lowerer<'_>,
    state: &Place,
    bytes: Address,
    (written, copied): (Value, Value),
    span: SourceSpan,
) -> Lowered<()> {
    let packet = l.packet(span)?;
    let cursor = l.emitter.load_scalar(&packet.cursor);
    let e = &mut l.emitter;
    let payload = e.offset_pointer(packet.data, cursor.words[0]);
    let ty = e.func.types[payload];
    let op = Op::Alu { op: AluOp::Sub, width: millstream_ir::Width::W64 };
    let start = e.value(op, &[payload, written], ty);
    let context = e.pointer(state.address);
    e.effect(Op::SetBounds {}, &[context, start, packet.end]);
    e.copy_words(bytes, Address::pointer(start), copied);
    Ok(())
}

/// Lists the scalars of a type.
fn describe(value_type: &RuntimeType, name: String, offset: u32, fields: &mut Vec<StateField>) {
    if let Some(bits) = value_type.width() {
        fields.push(StateField { name, offset, bits });
        return;
    }
    let join = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    if let RuntimeType::Header(_) = value_type {
        fields.push(StateField { name: join("$valid$"), offset, bits: 1 });
    }
    if let Some(record) = value_type.record() {
        for field in &record.fields {
            describe(&field.field_type, join(&field.name), offset + field.offset, fields);
        }
    }
    if let RuntimeType::Stack(element, count) = value_type {
        let size = crate::types::element_size(element);
        for index in 0..*count {
            let at = offset + crate::types::PREFIX + index * size;
            describe(element, format!("{name}[{index}]"), at, fields);
        }
    }
}
