//! v1model: a parser function, an ingress function (checksum verification, ingress control) and an egress function
//! (egress control, checksum computation, deparser), with the traffic manager between the last two. The parser is
//! apart because a clone of an ingress packet is parsed and goes on to egress.

use std::rc::Rc;

use millstream_ir::{AluOp, Function, Linkage, Op, Prov, Type};
use millstream_p4::ast::{AnnotationBody, DeclarationKind, DeclarationTree, ParameterSyntax};
use millstream_p4::expression::{CallArgument, ExpressionKind, TypeSyntaxKind};
use millstream_p4::{SourceSpan, Symbol, TokenKind};

use crate::calls::matched;
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

impl<'p> Lowerer<'p> {
    /// Lowers the program's `main`.
    pub(crate) fn v1model(&mut self) -> Lowered<()> {
        let blocks = self.switch_blocks()?;
        let types = self.state_types(&blocks)?;
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
        self.describe_state(&state);
        self.stage("parser", &state, |l, places| l.run_parser(&blocks.parser, places))?;
        self.stage("ingress", &state, |l, places| {
            l.run_control(&blocks.verify, places)?;
            l.run_control(&blocks.ingress, places)
        })?;
        self.stage("egress", &state, |l, places| {
            l.run_control(&blocks.egress, places)?;
            l.run_control(&blocks.compute, places)?;
            l.run_deparser(&blocks.deparser, places)
        })
    }

    fn switch_blocks(&mut self) -> Lowered<SwitchBlocks<'p>> {
        let Some(main) = self.global("main") else {
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
        let declared = self.global(&name.text);
        let Some(DeclarationKind::Package(_, parameters)) = declared.map(|d| &d.kind) else {
            return refuse(name.span, "`V1Switch` is no package");
        };
        let Some(places) = matched(parameters, &syntax.arguments) else {
            return refuse(main.span, "the arguments of `V1Switch` do not match its parameters");
        };
        let mut blocks = Vec::new();
        for place in places {
            blocks.push(self.block_argument(place, main.span)?);
        }
        match <[Rc<BlockInstance<'p>>; 6]>::try_from(blocks) {
            Ok([parser, verify, ingress, egress, compute, deparser]) => {
                Ok(SwitchBlocks { parser, verify, ingress, egress, compute, deparser })
            }
            Err(_) => refuse(main.span, "`V1Switch` needs six blocks"),
        }
    }

    fn block_argument(
        &mut self,
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
                        self.type_path(&name.name.text)
                    }
                    _ => String::new(),
                };
                self.instantiate(syntax, arguments, path, value.span)?
            }
            _ => self.instance_of(value)?,
        };
        match &*instance {
            Instance::Block(block) => Ok(block.clone()),
            _ => refuse(value.span, "this is no parser or control"),
        }
    }

    /// Name for the control plane of a block that has no instance name: that of its type.
    fn type_path(&self, name: &str) -> String {
        match self.global(name) {
            Some(declaration) => {
                crate::instances::plane_name("", &declaration.annotations, &declaration.name)
            }
            None => name.to_owned(),
        }
    }

    fn state_types(&mut self, blocks: &SwitchBlocks<'p>) -> Lowered<StateTypes> {
        let declaration = blocks.parser.declaration;
        let [_, headers, metadata, standard] = parameters(declaration) else {
            return refuse(declaration.span, "the parser needs four parameters");
        };
        self.in_scope(blocks.parser.arguments.clone(), |l| {
            Ok(StateTypes {
                headers: l.type_of_syntax(&headers.declared_type)?,
                metadata: l.type_of_syntax(&metadata.declared_type)?,
                standard: l.type_of_syntax(&standard.declared_type)?,
            })
        })
    }

    fn describe_state(&mut self, state: &RuntimeType) {
        let mut fields = Vec::new();
        describe(state, String::new(), 0, &mut fields);
        self.pipeline.state.size = state.size();
        self.pipeline.state.fields = fields;
        let metadata = state.record().and_then(|record| record.field("metadata")).cloned();
        if let Some(metadata) = metadata {
            self.field_lists(&metadata.field_type, metadata.offset);
        }
    }

    /// Collects fields with `@field_list` annotations.
    fn field_lists(&mut self, value_type: &RuntimeType, start: u32) {
        let RuntimeType::Struct(record) = value_type else { return };
        let Some(nominal) = record.nominal else { return };
        let name = self.program.types.nominal(nominal).name.clone();
        let Some(DeclarationKind::Aggregate(aggregate)) = self.global(&name).map(|d| &d.kind) else {
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
                        self.add_to_list(number, range);
                    }
                }
            }
            self.field_lists(&field.field_type, start + field.offset);
        }
    }

    fn add_to_list(&mut self, number: u64, range: (u32, u32)) {
        match self.pipeline.field_lists.iter_mut().find(|list| list.number == number) {
            Some(list) => list.ranges.push(range),
            None => self.pipeline.field_lists.push(FieldList { number, ranges: vec![range] }),
        }
    }

    /// Makes a function of the pipeline.
    fn stage(
        &mut self,
        name: &str,
        state: &RuntimeType,
        body: impl FnOnce(&mut Self, &Place) -> Lowered<()>,
    ) -> Lowered<()> {
        let mut emitter = Emitter::new(Function::new(name, Linkage::Global));
        let entry = emitter.block;
        let context = emitter.parameter(entry, Type::Ptr(Prov::Ctx));
        let data = emitter.parameter(entry, Type::Ptr(Prov::Packet));
        let end = emitter.parameter(entry, Type::Ptr(Prov::PacketEnd));
        let leave = emitter.new_block();
        self.emitter = emitter;
        self.flow = Flow { returns: leave, result: None, exits: leave, uses_exit: false, loops: Vec::new() };
        let places = Place::new(Address::pointer(context), state.clone());
        let field = |path: &[&str]| path.iter().try_fold(places.clone(), |place, name| place.field(name));
        let (Some(engine), Some(cursor)) = (field(&["engine"]), field(&["engine", "cursor"])) else {
            return refuse(SourceSpan::default(), "no state of the engine");
        };
        let Some(error) = field(&["standard_metadata", "parser_error"]) else {
            return refuse(SourceSpan::default(), "no field for the error of the parser");
        };
        self.engine = Some(engine);
        self.standard = field(&["standard_metadata"]);
        self.packet = Some(PacketAccess { data, end, cursor, error });
        body(self, &places)?;
        self.emitter.jump(leave);
        self.emitter.enter(leave);
        let zero = self.emitter.constant(0);
        self.emitter.effect(Op::Return {}, &[zero]);
        let none = Emitter::new(Function::new("none", Linkage::Static));
        let function = std::mem::replace(&mut self.emitter, none).finish();
        let func = self.module.funcs.push(function);
        self.pipeline.stages.push(PipelineStage { name: name.to_owned(), func });
        Ok(())
    }

    /// Binds the parameters of a block to the state, by type.
    fn bind_state(&mut self, block: &Rc<BlockInstance<'p>>, state: &Place) -> Lowered<Rc<Scope<'p>>> {
        let scope = Scope::of_owner(Some(block.arguments.clone()), Some(block.clone()));
        let mut names = ["headers", "metadata", "standard_metadata"].into_iter();
        for parameter in parameters(block.declaration) {
            let value_type = self.in_scope(scope.clone(), |l| l.type_of_syntax(&parameter.declared_type))?;
            let binding = match value_type {
                RuntimeType::Object(id, _) => {
                    let is_input = &*self.program.types.nominal(id).name == "packet_in";
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

    fn run_control(&mut self, block: &Rc<BlockInstance<'p>>, state: &Place) -> Lowered<()> {
        let scope = self.bind_state(block, state)?;
        let behind = self.emitter.new_block();
        let flow = Flow { returns: behind, result: None, exits: behind, uses_exit: false, loops: Vec::new() };
        let outer = std::mem::replace(&mut self.flow, flow);
        let declaration = block.declaration;
        self.called(declaration.span, |l| l.in_scope(scope, |l| l.block_body(declaration)))?;
        self.flow = outer;
        self.emitter.jump(behind);
        self.emitter.enter(behind);
        Ok(())
    }

    fn run_parser(&mut self, block: &Rc<BlockInstance<'p>>, state: &Place) -> Lowered<()> {
        let reject = self.emitter.new_block();
        let accept = self.emitter.block;
        let flow = ParserFlow { states: Default::default(), accept, reject, steps: None };
        self.parser = Some(flow);
        self.run_control(block, state)?;
        self.parser = None;
        // A packet that is rejected goes on to the controls, with the error in its metadata.
        self.emitter.jump(reject);
        self.emitter.enter(reject);
        Ok(())
    }

    /// Runs the deparser into a buffer, and puts what it wrote in front of the payload.
    fn run_deparser(&mut self, block: &Rc<BlockInstance<'p>>, state: &Place) -> Lowered<()> {
        let span = block.declaration.span;
        let bits = state.field("headers").map_or(0, |headers| headers.value_type.packed_bits());
        let capacity = bits.div_ceil(8).saturating_mul(2).clamp(BUFFER_SIZES.0, BUFFER_SIZES.1);
        let slot = self.emitter.slot(capacity + 8);
        let bytes = Place::new(Address::slot(slot), RuntimeType::Other);
        let length = self.emitter.variable(RuntimeType::Bits(32, false));
        let overflow = self.emitter.new_block();
        self.output = Some(OutputBuffer { bytes: bytes.clone(), length: length.clone(), capacity, overflow });
        self.run_control(block, state)?;
        self.output = None;
        let packet = self.packet(span)?;
        let cursor = self.emitter.load_scalar(&packet.cursor);
        let written = self.emitter.load_scalar(&length);
        let e = &mut self.emitter;
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
        let one = self.number(1, 32);
        self.set_engine("deparser_overflow", one, span)?;
        self.emitter.jump(done);
        self.emitter.enter(done);
        self.pipeline.headroom = capacity;
        Ok(())
    }
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
