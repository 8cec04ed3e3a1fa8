//! State of the lowering: program, module, current function, scope and targets of control flow.
//!
//! Constructs are lowered by functions over [`Lowerer`]. Constructs that contain each other, as expressions and
//! calls do, reach each other by methods of [`Lowerer`], so that their modules do not import each other.

pub(crate) mod calls;
pub(crate) mod expressions;
pub(crate) mod externs;
pub(crate) mod statements;
pub(crate) mod table_specs;

use std::rc::Rc;

use millstream_ir::{
    AluOp, AtomicOp, Block, Func, KeyLayout, KeyPiece, Map, MapDecl, Module, Op, Prov, Size, Type, Value,
};
use millstream_p4::ast::{BlockSyntax, DeclarationKind, DeclarationTree, ParameterSyntax, StatementTree};
use millstream_p4::expression::{CallArgument, ExpressionTree, TypeSyntax};
use millstream_p4::{CompiledProgram, SourceSpan, Symbol};
use num_bigint::BigUint;
use rustc_hash::FxHashMap;

use crate::arguments::GivenArguments;
use crate::emitter::Emitter;
use crate::error::{LowerError, Lowered, refuse};
use crate::lowerer::calls::CopyOuts;
use crate::pipeline::{MarkKind, ObjectKind, ObjectSpec, Pipeline, SourceLine, TraceMark, TraceMarks};
use crate::scope::{BlockInstance, Instance, Scope};
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar, Target};

/// Most instructions of a function.
const MOST_INSTRUCTIONS: usize = 1_000_000;
/// Most bytes of the stack objects of a function.
const MOST_STACK_BYTES: u64 = 16 << 20;
/// Most bytes of an array.
const MOST_ARRAY_BYTES: u64 = 1 << 28;
/// Deepest nesting of calls.
const DEEPEST_CALL: usize = 64;
/// Deepest nesting of types and constants.
const DEEPEST_REFERENCE: usize = 128;

/// Map type numbers of the kernel.
pub(crate) const HASH_MAP: u32 = 1;
pub(crate) const ARRAY_MAP: u32 = 2;
pub(crate) const PREFIX_MAP: u32 = 11;
pub(crate) const RING_BUFFER: u32 = 27;

/// Targets of statements that leave a body.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) returns: Block,
    pub(crate) result: Option<Place>,
    pub(crate) exits: Block,
    /// `exit` was lowered.
    pub(crate) uses_exit: bool,
    /// Loops: targets of `break` and `continue`.
    pub(crate) loops: Vec<(Block, Block)>,
}

/// A parser that is being lowered.
#[derive(Clone, Debug)]
pub(crate) struct ParserFlow {
    pub(crate) states: FxHashMap<Symbol, Block>,
    pub(crate) accept: Block,
    pub(crate) reject: Block,
    /// Number of states entered, in parsers with loops.
    pub(crate) steps: Option<Place>,
}

/// The packet within a function.
#[derive(Clone, Debug)]
pub(crate) struct PacketAccess {
    pub(crate) data: Value,
    pub(crate) end: Value,
    /// Bytes that were read: `bit<32>`.
    pub(crate) cursor: Place,
    /// Error of the parser.
    pub(crate) error: Place,
}

/// Buffer of a deparser.
#[derive(Clone, Debug)]
pub(crate) struct OutputBuffer {
    pub(crate) bytes: Place,
    /// Bytes that were written: `bit<32>`.
    pub(crate) length: Place,
    pub(crate) capacity: u32,
    /// Bytes that are copied to the packet, where those differ: `bit<32>`.
    pub(crate) kept: Option<Place>,
    /// Target when the buffer is full.
    pub(crate) overflow: Block,
}

/// The program that is lowered, and its declarations by name.
pub(crate) struct LoweredSource<'p> {
    pub(crate) program: &'p CompiledProgram,
    pub(crate) globals: FxHashMap<Symbol, Vec<&'p DeclarationTree>>,
    pub(crate) errors: FxHashMap<Symbol, u64>,
}

/// Data of the packet in the stage that is being lowered.
#[derive(Default)]
pub(crate) struct StageState {
    pub(crate) parser: Option<ParserFlow>,
    pub(crate) packet: Option<PacketAccess>,
    pub(crate) output: Option<OutputBuffer>,
    /// Fields of the engine: `engine.NAME`.
    pub(crate) engine: Option<Place>,
    pub(crate) standard: Option<Place>,
}

/// Objects of the program, and what their methods need to know.
#[derive(Default)]
pub(crate) struct LoweredObjects<'p> {
    pub(crate) global_objects: FxHashMap<Symbol, Rc<crate::scope::Instance<'p>>>,
    /// Types of the values of registers, by number of the object.
    pub(crate) register_types: FxHashMap<usize, RuntimeType>,
    /// Algorithms and types of the results of hashes.
    pub(crate) extern_notes: Vec<(&'static str, RuntimeType)>,
    /// Bounds and types of random numbers.
    pub(crate) random_ranges: Vec<(BigUint, BigUint, RuntimeType)>,
    /// Colors that direct meters gave, by number of the object.
    pub(crate) colors: FxHashMap<usize, Place>,
    /// Sums of incremental checksums.
    pub(crate) sums: Vec<Option<Place>>,
    pub(crate) table_parts: Vec<crate::scope::TableParts<'p>>,
}

pub(crate) struct Lowerer<'p> {
    pub(crate) source: LoweredSource<'p>,
    pub(crate) options: crate::LowerOptions,
    pub(crate) module: Module,
    pub(crate) pipeline: Pipeline,
    pub(crate) emitter: Emitter,
    pub(crate) scope: Rc<Scope<'p>>,
    pub(crate) root: Rc<Scope<'p>>,
    pub(crate) flow: Flow,
    pub(crate) stage: StageState,
    /// Functions of the module that compute hashes, by name.
    pub(crate) routines: FxHashMap<&'static str, Func>,
    /// Types without type parameters.
    pub(crate) known_types: FxHashMap<millstream_p4::TypeId, RuntimeType>,
    pub(crate) objects: LoweredObjects<'p>,
    /// Line records, by file and line.
    lines: FxHashMap<(Symbol, u32), u32>,
    pub(crate) depth: usize,
    /// Nesting of types and constants that are being resolved.
    references: usize,
}

impl<'p> Lowerer<'p> {
    pub(crate) fn new(program: &'p CompiledProgram) -> Lowerer<'p> {
        let mut globals: FxHashMap<Symbol, Vec<&DeclarationTree>> = FxHashMap::default();
        let mut errors = FxHashMap::default();
        let mut names = Vec::new();
        for declaration in &program.declarations {
            if let DeclarationKind::Errors(list) = &declaration.kind {
                for name in list {
                    errors.entry(name.text.clone()).or_insert_with(|| {
                        names.push(name.text.to_string());
                        names.len() as u64 - 1
                    });
                }
            }
            globals.entry(declaration.name.text.clone()).or_default().push(declaration);
        }
        let emitter = Emitter::new(millstream_ir::Function::new("none", millstream_ir::Linkage::Static));
        let root = Scope::new(None);
        let block = emitter.block;
        Lowerer {
            source: LoweredSource { program, globals, errors },
            options: crate::LowerOptions::default(),
            module: Module::default(),
            pipeline: Pipeline { errors: names, ..Pipeline::default() },
            emitter,
            scope: root.clone(),
            root,
            flow: Flow { returns: block, result: None, exits: block, uses_exit: false, loops: Vec::new() },
            stage: StageState::default(),
            objects: LoweredObjects::default(),
            routines: FxHashMap::default(),
            known_types: FxHashMap::default(),
            lines: FxHashMap::default(),
            depth: 0,
            references: 0,
        }
    }

    /// Lowers something in another scope.
    pub(crate) fn in_scope<T>(
        &mut self,
        scope: Rc<Scope<'p>>,
        lower: impl FnOnce(&mut Self) -> Lowered<T>,
    ) -> Lowered<T> {
        let outer = std::mem::replace(&mut self.scope, scope);
        let result = lower(self);
        self.scope = outer;
        result
    }

    /// Lowers something in a new scope within the current one.
    pub(crate) fn nested<T>(&mut self, lower: impl FnOnce(&mut Self) -> Lowered<T>) -> Lowered<T> {
        let scope = Scope::new(Some(self.scope.clone()));
        self.in_scope(scope, lower)
    }

    /// Lowers the body of something that is called.
    pub(crate) fn called<T>(
        &mut self,
        span: SourceSpan,
        lower: impl FnOnce(&mut Self) -> Lowered<T>,
    ) -> Lowered<T> {
        self.check_size(span)?;
        if self.depth >= DEEPEST_CALL {
            return refuse(span, format!("calls nested more than {DEEPEST_CALL} deep are not supported"));
        }
        self.depth += 1;
        let result = lower(self);
        self.depth -= 1;
        result
    }

    /// Resolves something that may refer to others of its kind: types, constants.
    pub(crate) fn deeper<T>(
        &mut self,
        span: SourceSpan,
        lower: impl FnOnce(&mut Self) -> Lowered<T>,
    ) -> Lowered<T> {
        if self.references >= DEEPEST_REFERENCE {
            let message = format!("types and constants nested more than {DEEPEST_REFERENCE} deep");
            return refuse(span, message + " are not supported");
        }
        self.references += 1;
        let result = lower(self);
        self.references -= 1;
        result
    }

    pub(crate) fn check_size(&self, span: SourceSpan) -> Lowered<()> {
        if self.emitter.size() > MOST_INSTRUCTIONS {
            return refuse(span, format!("the code has more than {MOST_INSTRUCTIONS} instructions"));
        }
        match self.emitter.stack_bytes > MOST_STACK_BYTES {
            true => refuse(span, format!("the variables take more than {MOST_STACK_BYTES} bytes")),
            false => Ok(()),
        }
    }

    /// Notes the line of the instructions that follow.
    pub(crate) fn mark_line(&mut self, span: SourceSpan) {
        let place = self.source.program.sources.place(span);
        let key = (Symbol::from(place.path.as_str()), place.line);
        let next = self.pipeline.lines.len() as u32;
        let record = *self.lines.entry(key).or_insert(next);
        if record == next {
            self.pipeline.lines.push(SourceLine { path: place.path, line: place.line });
        }
        self.emitter.set_line(record);
    }

    /// Tells a trace, if the program is lowered for one, that this place was reached.
    pub(crate) fn mark(&mut self, kind: MarkKind, span: SourceSpan) {
        if !self.options.traces {
            return;
        }
        let place = self.source.program.sources.place(span);
        let mark = TraceMark { kind, line: SourceLine { path: place.path, line: place.line } };
        let mut trace = match self.pipeline.trace.take() {
            Some(trace) => trace,
            None => TraceMarks { map: self.add_map("p4.trace", HASH_MAP, (4, 1), 1), marks: Vec::new() },
        };
        let number = self.emitter.constant(trace.marks.len() as u64);
        self.array_element(trace.map, Some(number));
        trace.marks.push(mark);
        self.pipeline.trace = Some(trace);
    }

    pub(crate) fn global(&self, name: &str) -> Option<&'p DeclarationTree> {
        self.source.globals.get(name)?.first().copied()
    }

    pub(crate) fn add_map(&mut self, name: &str, kind: u32, sizes: (u32, u32), max_entries: u32) -> Map {
        self.module.maps.push(MapDecl {
            name: name.to_owned(),
            kind,
            key_size: sizes.0,
            value_size: sizes.1,
            max_entries,
            flags: 0,
            global: None,
            inner: None,
        })
    }

    /// Adds an array of elements of `value_size` bytes.
    pub(crate) fn add_array(
        &mut self,
        name: &str,
        value_size: u32,
        size: u32,
        span: SourceSpan,
    ) -> Lowered<Map> {
        let bytes = u64::from(value_size) * u64::from(size);
        if bytes > MOST_ARRAY_BYTES {
            return refuse(span, format!("`{name}` needs {bytes} bytes, the most are {MOST_ARRAY_BYTES}"));
        }
        Ok(self.add_map(name, ARRAY_MAP, (4, value_size), size.max(1)))
    }

    pub(crate) fn add_object(
        &mut self,
        name: String,
        kind: ObjectKind,
        map: Option<Map>,
        size: u32,
    ) -> usize {
        self.pipeline.objects.push(ObjectSpec { name, kind, map, size });
        self.pipeline.objects.len() - 1
    }

    /// The ring buffer of digests and messages.
    pub(crate) fn events(&mut self) -> Map {
        match self.pipeline.events {
            Some(map) => map,
            None => {
                let map = self.add_map("p4.events", RING_BUFFER, (0, 0), 1 << 20);
                self.pipeline.events = Some(map);
                map
            }
        }
    }

    pub(crate) fn packet(&self, span: SourceSpan) -> Lowered<PacketAccess> {
        let message = "the packet cannot be used here".to_owned();
        self.stage.packet.clone().ok_or(LowerError { span, message })
    }

    /// A field of the engine.
    pub(crate) fn engine_field(&self, name: &str, span: SourceSpan) -> Lowered<Place> {
        let field = self.stage.engine.as_ref().and_then(|engine| engine.field(name));
        let message = format!("this architecture does not have `{name}`");
        field.ok_or(LowerError { span, message })
    }

    pub(crate) fn set_engine(&mut self, name: &str, value: Scalar, span: SourceSpan) -> Lowered<()> {
        let place = self.engine_field(name, span)?;
        let value = self.converted(value, &place.value_type);
        self.emitter.store_scalar(&place, &value);
        Ok(())
    }

    pub(crate) fn number(&mut self, value: u64, width: u32) -> Scalar {
        let word = self.emitter.constant(value);
        let words = self.emitter.masked(vec![word], width);
        let words = self.emitter.resized(&words, width.min(64), width, false);
        Scalar::bits(words, width)
    }

    /// Looks up an element of an array; its index is 0 if none is given.
    pub(crate) fn array_element(&mut self, map: Map, index: Option<Value>) -> Value {
        let index = index.unwrap_or_else(|| self.emitter.constant(0));
        let key: KeyLayout = std::iter::once(KeyPiece { offset: 0, size: Size::W }).collect();
        self.emitter.value(Op::MapLookup { map, key }, &[index], Type::Ptr(Prov::MapValueOrNull(map)))
    }

    /// Adds a packet and its bytes to a counter.
    pub(crate) fn count(&mut self, base: Value, offset: i32, bytes: Value) {
        let one = self.emitter.constant(1);
        let add = |offset| Op::Atomic { op: AtomicOp::Add, size: Size::Dw, offset };
        self.emitter.effect(add(offset), &[base, one]);
        self.emitter.effect(add(offset + 8), &[base, bytes]);
    }

    /// Bytes of the packet as it came.
    pub(crate) fn packet_bytes(&mut self) -> Value {
        match &self.stage.packet {
            Some(packet) => {
                let (data, end) = (packet.data, packet.end);
                self.emitter.alu(AluOp::Sub, end, data)
            }
            None => self.emitter.constant(0),
        }
    }

    /// Lowers a call.
    pub(crate) fn call(
        &mut self,
        function: &'p ExpressionTree,
        types: &'p [TypeSyntax],
        arguments: &'p [CallArgument],
        span: SourceSpan,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Operand> {
        calls::call(self, function, types, arguments, span, hint)
    }

    /// Binds parameters: by reference where no other argument can overlap, else by copies.
    pub(crate) fn bind_parameters(
        &mut self,
        parameters: &'p [ParameterSyntax],
        arguments: &'p [CallArgument],
        scope: &Rc<Scope<'p>>,
        by_reference: bool,
        span: SourceSpan,
    ) -> Lowered<CopyOuts> {
        calls::bind_parameters(self, parameters, arguments, scope, by_reference, span)
    }

    /// Lowers a body in place of a call.
    pub(crate) fn inlined(
        &mut self,
        scope: Rc<Scope<'p>>,
        copies: CopyOuts,
        result: Option<Place>,
        span: SourceSpan,
        body: impl FnOnce(&mut Lowerer<'p>) -> Lowered<()>,
    ) -> Lowered<Operand> {
        calls::inlined(self, scope, copies, result, span, body)
    }

    /// Applies a parser or control.
    pub(crate) fn apply_block(
        &mut self,
        block: &Rc<BlockInstance<'p>>,
        arguments: &'p [CallArgument],
        span: SourceSpan,
    ) -> Lowered<Operand> {
        calls::apply_block(self, block, arguments, span)
    }

    /// Lowers an expression whose value is a scalar. A number without a width takes the type of `hint`.
    pub(crate) fn scalar(
        &mut self,
        expression: &'p ExpressionTree,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Scalar> {
        expressions::scalar(self, expression, hint)
    }

    /// Lowers an expression of any type.
    pub(crate) fn operand(
        &mut self,
        expression: &'p ExpressionTree,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Operand> {
        expressions::operand(self, expression, hint)
    }

    /// Lowers an expression to an object in memory.
    pub(crate) fn memory(
        &mut self,
        expression: &'p ExpressionTree,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Place> {
        expressions::memory(self, expression, hint)
    }

    /// Lowers an expression into an object that it does not read.
    pub(crate) fn lower_into(&mut self, expression: &'p ExpressionTree, place: &Place) -> Lowered<()> {
        expressions::lower_into(self, expression, place)
    }

    /// Finds the object that an expression names; constants have none.
    pub(crate) fn target_of(&mut self, expression: &'p ExpressionTree) -> Lowered<Option<Target>> {
        expressions::target_of(self, expression)
    }

    /// Makes an instance of an extern.
    pub(crate) fn extern_instance(
        &mut self,
        kind: &Symbol,
        types: Vec<RuntimeType>,
        arguments: &GivenArguments<'p>,
        path: String,
        span: SourceSpan,
    ) -> Lowered<Rc<Instance<'p>>> {
        externs::extern_instance(self, kind, types, arguments, path, span)
    }

    /// Lowers the statements of a block.
    pub(crate) fn block(&mut self, block: &'p BlockSyntax) -> Lowered<()> {
        statements::lower_block(self, block)
    }

    pub(crate) fn statements(&mut self, statements: &'p [StatementTree]) -> Lowered<()> {
        statements::statements(self, statements)
    }

    /// Declares a variable, constant, instance, action or table.
    pub(crate) fn declare(&mut self, declaration: &'p DeclarationTree) -> Lowered<()> {
        statements::declare(self, declaration)
    }

    /// Makes a value set; its key is the value's scalars, each at its alignment.
    pub(crate) fn value_set(
        &mut self,
        syntax: &'p TypeSyntax,
        size: &'p ExpressionTree,
        name: String,
    ) -> Lowered<std::rc::Rc<Instance<'p>>> {
        table_specs::value_set(self, syntax, size, name)
    }
}
