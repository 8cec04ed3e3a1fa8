//! v1model: a parser function, an ingress function (checksum verification, ingress control) and an egress function
//! (egress control, checksum computation, deparser), with the traffic manager between the last two. The parser is
//! apart because a clone of an ingress packet is parsed and goes on to egress.

use std::rc::Rc;

use millstream_ir::{AluOp, Function, Linkage, Op, Prov, Type};
use millstream_p4::ast::{AnnotationBody, DeclarationKind, DeclarationTree, ParameterSyntax};
use millstream_p4::expression::{CallArgument, ExpressionKind, TypeSyntaxKind};
use millstream_p4::{SourceSpan, Symbol, TokenKind};

use crate::arguments::matched;
use crate::emitter::{Address, Emitter};
use crate::error::{Lowered, refuse};
use crate::lowerer::{Flow, Lowerer, OutputBuffer, PacketAccess, ParserFlow};
use crate::pipeline::{FieldList, PipelineStage, StateField};
use crate::scope::{Binding, BlockInstance, Instance, Scope};
use crate::types::{RecordType, RuntimeType};
use crate::values::Place;

/// Fields of the engine, 32 bits each: bytes that the parser read, and what the program asked for.
const ENGINE_FIELDS: [&str; 15] = [
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
];

/// Smallest and largest buffer of a deparser, in bytes.
const BUFFER_SIZES: (u32, u32) = (256, 65_536);

/// The blocks of a v1model program.
struct SwitchBlocks<'p> {
    parser: Rc<BlockInstance<'p>>,
    verify: Rc<BlockInstance<'p>>,
    ingress: Rc<BlockInstance<'p>>,
    egress: Rc<BlockInstance<'p>>,
    compute: Rc<BlockInstance<'p>>,
    deparser: Rc<BlockInstance<'p>>,
}

/// Types of headers and of the program's metadata.
struct StateTypes {
    headers: RuntimeType,
    metadata: RuntimeType,
    standard: RuntimeType,
}

fn parameters(declaration: &DeclarationTree) -> &[ParameterSyntax] {
    match &declaration.kind {
        DeclarationKind::Control(control) => &control.parameters,
        DeclarationKind::Parser(parser) => &parser.parameters,
        _ => &[],
    }
}

/// Lowers the program's `main`.
pub(crate) fn lower_switch<'p>(l: &mut Lowerer<'p>) -> Lowered<()> {
    let blocks = switch_blocks(l)?;
    let types = state_types(l, &blocks)?;
    let engine = ENGINE_FIELDS.map(|name| (Symbol::from(name), RuntimeType::Bits(32, false)));
    let engine = RuntimeType::Struct(Rc::new(RecordType::new(None, 0, engine)));
    let state = RecordType::new(
        None,
        0,
        [
            (Symbol::from("standard_metadata"), types.standard.clone()),
            (Symbol::from("engine"), engine),
            (Symbol::from("metadata"), types.metadata.clone()),
            (Symbol::from("headers"), types.headers.clone()),
        ],
    );
    let state = RuntimeType::Struct(Rc::new(state));
    describe_state(l, &state);
    stage(l, "parser", &state, |l, places| run_parser(l, &blocks.parser, places))?;
    stage(l, "ingress", &state, |l, places| {
        run_control(l, &blocks.verify, places)?;
        run_control(l, &blocks.ingress, places)
    })?;
    stage(l, "egress", &state, |l, places| {
        run_control(l, &blocks.egress, places)?;
        run_control(l, &blocks.compute, places)?;
        run_deparser(l, &blocks.deparser, places)
    })
}

fn switch_blocks<'p>(l: &mut Lowerer<'p>) -> Lowered<SwitchBlocks<'p>> {
    let Some(main) = l.global("main") else {
        return refuse(SourceSpan::default(), "the program has no `main`");
    };
    let DeclarationKind::Instance(syntax) = &main.kind else {
        return refuse(main.span, "`main` is no instance");
    };
    let name = match &syntax.object_type.kind {
        TypeSyntaxKind::Named(name) | TypeSyntaxKind::Specialized(name, _) => &name.name,
        _ => return refuse(main.span, "`main` is no package"),
    };
    if &*name.text != "V1Switch" {
        return refuse(name.span, format!("the architecture of `{}` is not supported", name.text));
    }
    let declared = l.global(&name.text);
    let Some(DeclarationKind::Package(_, parameters)) = declared.map(|d| &d.kind) else {
        return refuse(name.span, "`V1Switch` is no package");
    };
    let Some(places) = matched(parameters, &syntax.arguments) else {
        return refuse(main.span, "the arguments of `V1Switch` do not match its parameters");
    };
    let mut blocks = Vec::new();
    for place in places {
        blocks.push(block_argument(l, place, main.span)?);
    }
    match <[Rc<BlockInstance<'p>>; 6]>::try_from(blocks) {
        Ok([parser, verify, ingress, egress, compute, deparser]) => {
            Ok(SwitchBlocks { parser, verify, ingress, egress, compute, deparser })
        }
        Err(_) => refuse(main.span, "`V1Switch` needs six blocks"),
    }
}

fn block_argument<'p>(
    l: &mut Lowerer<'p>,
    argument: Option<&'p CallArgument>,
    span: SourceSpan,
) -> Lowered<Rc<BlockInstance<'p>>> {
    let Some(value) = argument.and_then(|argument| argument.value.as_ref()) else {
        return refuse(span, "a block is missing");
    };
    let instance = match &value.kind {
        ExpressionKind::Construct(syntax, arguments) => {
            let path = match &syntax.kind {
                TypeSyntaxKind::Named(name) | TypeSyntaxKind::Specialized(name, _) => {
                    type_path(l, &name.name.text)
                }
                _ => String::new(),
            };
            l.instantiate(syntax, arguments, path, value.span)?
        }
        _ => l.instance_of(value)?,
    };
    match &*instance {
        Instance::Block(block) => Ok(block.clone()),
        _ => refuse(value.span, "this is no parser or control"),
    }
}

/// Name for the control plane of a block that has no instance name: that of its type.
fn type_path(l: &Lowerer<'_>, name: &str) -> String {
    match l.global(name) {
        Some(declaration) => crate::instances::plane_name("", &declaration.annotations, &declaration.name),
        None => name.to_owned(),
    }
}

fn state_types<'p>(l: &mut Lowerer<'p>, blocks: &SwitchBlocks<'p>) -> Lowered<StateTypes> {
    let declaration = blocks.parser.declaration;
    let [_, headers, metadata, standard] = parameters(declaration) else {
        return refuse(declaration.span, "the parser needs four parameters");
    };
    l.in_scope(blocks.parser.arguments.clone(), |l| {
        Ok(StateTypes {
            headers: l.type_of_syntax(&headers.declared_type)?,
            metadata: l.type_of_syntax(&metadata.declared_type)?,
            standard: l.type_of_syntax(&standard.declared_type)?,
        })
    })
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
    let name = l.program.types.nominal(nominal).name.clone();
    let Some(DeclarationKind::Aggregate(aggregate)) = l.global(&name).map(|d| &d.kind) else {
        return;
    };
    for (syntax, field) in aggregate.fields.iter().zip(&record.fields) {
        let range = (start + field.offset, field.field_type.size());
        for annotation in syntax.annotations.iter().filter(|a| &*a.name.text == "field_list") {
            let AnnotationBody::Unstructured(tokens) = &annotation.body else { continue };
            for token in tokens {
                if let TokenKind::Number(text) = &token.kind
                    && let Ok(number) = text.parse::<u64>()
                {
                    add_to_list(l, number, range);
                }
            }
        }
        field_lists(l, &field.field_type, start + field.offset);
    }
}

fn add_to_list(l: &mut Lowerer<'_>, number: u64, range: (u32, u32)) {
    match l.pipeline.field_lists.iter_mut().find(|list| list.number == number) {
        Some(list) => list.ranges.push(range),
        None => l.pipeline.field_lists.push(FieldList { number, ranges: vec![range] }),
    }
}

/// Makes a function of the pipeline.
fn stage<'p>(
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
    let Some(error) = field(&["standard_metadata", "parser_error"]) else {
        return refuse(SourceSpan::default(), "no field for the error of the parser");
    };
    l.engine = Some(engine);
    l.standard = field(&["standard_metadata"]);
    l.packet = Some(PacketAccess { data, end, cursor, error });
    body(l, &places)?;
    l.emitter.jump(leave);
    l.emitter.enter(leave);
    let zero = l.emitter.constant(0);
    l.emitter.effect(Op::Return {}, &[zero]);
    let none = Emitter::new(Function::new("none", Linkage::Static));
    let function = std::mem::replace(&mut l.emitter, none).finish();
    let func = l.module.funcs.push(function);
    l.pipeline.stages.push(PipelineStage { name: name.to_owned(), func });
    Ok(())
}

/// Binds the parameters of a block to the state, by type.
fn bind_state<'p>(
    l: &mut Lowerer<'p>,
    block: &Rc<BlockInstance<'p>>,
    state: &Place,
) -> Lowered<Rc<Scope<'p>>> {
    let scope = Scope::of_owner(Some(block.arguments.clone()), Some(block.clone()));
    let mut names = ["headers", "metadata", "standard_metadata"].into_iter();
    for parameter in parameters(block.declaration) {
        let value_type = l.in_scope(scope.clone(), |l| l.type_of_syntax(&parameter.declared_type))?;
        let binding = match value_type {
            RuntimeType::Object(id, _) => {
                let is_input = &*l.program.types.nominal(id).name == "packet_in";
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

fn run_control<'p>(l: &mut Lowerer<'p>, block: &Rc<BlockInstance<'p>>, state: &Place) -> Lowered<()> {
    let scope = bind_state(l, block, state)?;
    let behind = l.emitter.new_block();
    let flow = Flow { returns: behind, result: None, exits: behind, uses_exit: false, loops: Vec::new() };
    let outer = std::mem::replace(&mut l.flow, flow);
    let declaration = block.declaration;
    l.called(declaration.span, |l| l.in_scope(scope, |l| l.block_body(declaration)))?;
    l.flow = outer;
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

fn run_parser<'p>(l: &mut Lowerer<'p>, block: &Rc<BlockInstance<'p>>, state: &Place) -> Lowered<()> {
    let reject = l.emitter.new_block();
    let accept = l.emitter.block;
    let flow = ParserFlow { states: Default::default(), accept, reject, steps: None };
    l.parser = Some(flow);
    run_control(l, block, state)?;
    l.parser = None;
    // A packet that is rejected goes on to the controls, with the error in its metadata.
    l.emitter.jump(reject);
    l.emitter.enter(reject);
    Ok(())
}

/// Runs the deparser into a buffer, and puts what it wrote in front of the payload.
fn run_deparser<'p>(l: &mut Lowerer<'p>, block: &Rc<BlockInstance<'p>>, state: &Place) -> Lowered<()> {
    let span = block.declaration.span;
    let bits = state.field("headers").map_or(0, |headers| headers.value_type.packed_bits());
    let capacity = bits.div_ceil(8).saturating_mul(2).clamp(BUFFER_SIZES.0, BUFFER_SIZES.1);
    let slot = l.emitter.slot(capacity + 8);
    let bytes = Place::new(Address::slot(slot), RuntimeType::Other);
    let length = l.emitter.variable(RuntimeType::Bits(32, false));
    let overflow = l.emitter.new_block();
    l.output = Some(OutputBuffer { bytes: bytes.clone(), length: length.clone(), capacity, overflow });
    run_control(l, block, state)?;
    l.output = None;
    let packet = l.packet(span)?;
    let cursor = l.emitter.load_scalar(&packet.cursor);
    let written = l.emitter.load_scalar(&length);
    let e = &mut l.emitter;
    let payload = e.offset_pointer(packet.data, cursor.words[0]);
    let ty = e.func.types[payload];
    let op = Op::Alu { op: AluOp::Sub, width: millstream_ir::Width::W64 };
    let start = e.value(op, &[payload, written.words[0]], ty);
    let context = e.pointer(state.address);
    e.effect(Op::SetBounds {}, &[context, start, packet.end]);
    e.copy_bytes(bytes.address, Address::pointer(start), written.words[0]);
    let done = e.new_block();
    e.jump(done);
    e.enter(overflow);
    let one = l.number(1, 32);
    l.set_engine("deparser_overflow", one, span)?;
    l.emitter.jump(done);
    l.emitter.enter(done);
    l.pipeline.headroom = capacity;
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
