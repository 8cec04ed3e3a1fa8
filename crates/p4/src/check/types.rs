//! Types of values, each kept once: equal types have equal numbers.

use crate::ast::{AggregateKind, ParameterDirection};
use rustc_hash::FxHashMap;

use crate::check::constants::ConstantValue;
pub use crate::check::numbers::{NominalId, TypeId};
use crate::source::{SourceSpan, Symbol};

/// A type.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ValueType {
    /// Type of what is wrong; it fits everywhere, so that an error is reported once.
    Unknown,
    /// `void`
    Void,
    /// `bool`
    Bool,
    /// `string`
    Text,
    /// `int`, a number without a width that is known when the program is compiled.
    Integer,
    /// `error`
    ErrorCode,
    /// `match_kind`
    MatchKind,
    /// `bit<W>`
    Bits(u32),
    /// `int<W>`
    SignedBits(u32),
    /// `varbit<W>`
    VariableBits(u32),
    /// A declared type with its type arguments.
    Nominal(NominalId, Vec<TypeId>),
    /// A header stack, or another array.
    Stack(TypeId, u32),
    /// `tuple<...>`
    Tuple(Vec<TypeId>),
    /// `list<T>`
    List(TypeId),
    /// A type parameter.
    Parameter(u32, Symbol),
    /// A type that is being inferred.
    Inferred(u32),
    /// A list of expressions, which becomes a tuple, struct, header, list or stack.
    ListExpression(Vec<TypeId>),
    /// Names with values, which become a struct or header; the mark says that `...` ends it.
    RecordExpression(Vec<(Symbol, TypeId)>, bool),
    /// `...`
    DefaultValue,
    /// `{#}`
    InvalidHeader,
    /// Sets of values.
    Set(TypeId),
    /// An action.
    Action,
    /// A table; and what its application gives, and the action that ran.
    Table(u32),
    /// Result of the application of a table.
    TableResult(u32),
    /// The action that a table ran.
    TableAction(u32),
}

/// A declared type.
#[derive(Clone, Debug)]
pub struct NominalType {
    /// Name.
    pub name: Symbol,
    /// Place of the name.
    pub span: SourceSpan,
    /// Type parameters, as types.
    pub type_parameters: Vec<TypeId>,
    /// Kind and parts.
    pub kind: NominalKind,
}

/// Kinds of declared types.
#[derive(Clone, Debug)]
pub enum NominalKind {
    /// A struct, header or header union, with its fields.
    Aggregate(AggregateKind, Vec<(Symbol, TypeId)>),
    /// An enumeration: the type of its values, if it has one, and its members.
    Enumeration(Option<TypeId>, Vec<(Symbol, Option<ConstantValue>)>),
    /// `type`
    NewType(TypeId),
    /// An extern: constructors and methods.
    Extern(Vec<MethodType>),
    /// A parser or control, or the type of one.
    Block(BlockType),
    /// A package, with the parameters of its constructor.
    Package(Vec<ParameterType>),
}

/// A parser or control.
#[derive(Clone, Debug)]
pub struct BlockType {
    /// A parser, not a control.
    pub is_parser: bool,
    /// Parameters of `apply`.
    pub parameters: Vec<ParameterType>,
    /// Parameters of the constructor; types without a body have none.
    pub constructor: Option<Vec<ParameterType>>,
}

/// A method or constructor of an extern.
#[derive(Clone, Debug)]
pub struct MethodType {
    /// The program implements it.
    pub is_abstract: bool,
    /// An abstract method that the program may leave out.
    pub is_optional: bool,
    /// It makes an instance.
    pub is_constructor: bool,
    /// Name, parameters and result.
    pub signature: FunctionType,
}

/// Signature of a function.
#[derive(Clone, Debug)]
pub struct FunctionType {
    /// Name.
    pub name: Symbol,
    /// Place of the name.
    pub span: SourceSpan,
    /// Type parameters, as types.
    pub type_parameters: Vec<TypeId>,
    /// Parameters.
    pub parameters: Vec<ParameterType>,
    /// Type of the result.
    pub result: TypeId,
}

/// A parameter.
#[derive(Clone, Debug)]
pub struct ParameterType {
    /// Name.
    pub name: Symbol,
    /// Direction.
    pub direction: ParameterDirection,
    /// Type.
    pub type_id: TypeId,
    /// Type of the default value.
    pub default_type: Option<TypeId>,
    /// It has a default value, or is annotated `@optional`.
    pub is_optional: bool,
}

/// All types of a program.
#[derive(Debug)]
pub struct TypeTable {
    kinds: Vec<ValueType>,
    index: FxHashMap<ValueType, TypeId>,
    /// Declared types.
    pub nominals: Vec<NominalType>,
    /// Types that are inferred, as far as they are known.
    pub(crate) inferred: Vec<Option<TypeId>>,
    next_parameter: u32,
}

/// Numbers of types that are needed often.
pub(crate) const UNKNOWN: TypeId = TypeId(0);
pub(crate) const VOID: TypeId = TypeId(1);
pub(crate) const BOOL: TypeId = TypeId(2);
pub(crate) const TEXT: TypeId = TypeId(3);
pub(crate) const INTEGER: TypeId = TypeId(4);
pub(crate) const ERROR_CODE: TypeId = TypeId(5);
pub(crate) const MATCH_KIND: TypeId = TypeId(6);
pub(crate) const ACTION: TypeId = TypeId(7);
pub(crate) const DEFAULT_VALUE: TypeId = TypeId(8);
pub(crate) const INVALID_HEADER: TypeId = TypeId(9);

/// Longest name of a type in a message.
const LONGEST_NAME: usize = 120;

impl TypeTable {
    pub(crate) fn new() -> TypeTable {
        let mut table = TypeTable {
            kinds: Vec::new(),
            index: FxHashMap::default(),
            nominals: Vec::new(),
            inferred: Vec::new(),
            next_parameter: 0,
        };
        use ValueType::*;
        for kind in
            [Unknown, Void, Bool, Text, Integer, ErrorCode, MatchKind, Action, DefaultValue, InvalidHeader]
        {
            table.add(kind);
        }
        table
    }

    /// Returns the number of a type.
    pub(crate) fn add(&mut self, kind: ValueType) -> TypeId {
        if let Some(id) = self.index.get(&kind) {
            return *id;
        }
        let id = TypeId(self.kinds.len() as u32);
        self.kinds.push(kind.clone());
        self.index.insert(kind, id);
        id
    }

    /// Returns a type.
    pub fn kind(&self, id: TypeId) -> &ValueType {
        &self.kinds[id.0 as usize]
    }

    /// Returns a declared type.
    pub fn nominal(&self, id: NominalId) -> &NominalType {
        &self.nominals[id.0 as usize]
    }

    pub(crate) fn add_nominal(&mut self, nominal: NominalType) -> NominalId {
        self.nominals.push(nominal);
        NominalId(self.nominals.len() as u32 - 1)
    }

    /// Makes a type parameter.
    pub(crate) fn parameter(&mut self, name: Symbol) -> TypeId {
        self.next_parameter += 1;
        self.add(ValueType::Parameter(self.next_parameter, name))
    }

    /// Makes a type that is to be inferred.
    pub(crate) fn infer(&mut self) -> TypeId {
        self.inferred.push(None);
        self.add(ValueType::Inferred(self.inferred.len() as u32 - 1))
    }

    /// Follows inferred types to what is known, at the outermost level.
    pub fn shallow(&self, mut id: TypeId) -> TypeId {
        while let ValueType::Inferred(variable) = self.kind(id) {
            match self.inferred[*variable as usize] {
                Some(known) => id = known,
                None => return id,
            }
        }
        id
    }

    /// Replaces types by others, and inferred types by what is known.
    pub(crate) fn substitute(&mut self, id: TypeId, map: &FxHashMap<TypeId, TypeId>) -> TypeId {
        let mut known = map.clone();
        self.replace(id, &mut known)
    }

    /// Replaces inferred types by what is known.
    pub(crate) fn resolve(&mut self, id: TypeId) -> TypeId {
        self.replace(id, &mut FxHashMap::default())
    }

    fn replace(&mut self, id: TypeId, known: &mut FxHashMap<TypeId, TypeId>) -> TypeId {
        if let Some(replaced) = known.get(&id) {
            return *replaced;
        }
        use ValueType::*;
        let kind = match self.kind(id).clone() {
            Inferred(_) => {
                let shallow = self.shallow(id);
                if shallow == id {
                    return id;
                }
                let replaced = self.replace(shallow, known);
                known.insert(id, replaced);
                return replaced;
            }
            Nominal(nominal, arguments) => Nominal(nominal, self.replace_all(arguments, known)),
            Stack(element, size) => Stack(self.replace(element, known), size),
            Tuple(elements) => Tuple(self.replace_all(elements, known)),
            List(element) => List(self.replace(element, known)),
            ListExpression(elements) => ListExpression(self.replace_all(elements, known)),
            RecordExpression(fields, rest) => {
                let fields = fields.into_iter().map(|(name, id)| (name, self.replace(id, known)));
                RecordExpression(fields.collect(), rest)
            }
            Set(element) => Set(self.replace(element, known)),
            _ => return id,
        };
        let replaced = self.add(kind);
        known.insert(id, replaced);
        replaced
    }

    fn replace_all(&mut self, list: Vec<TypeId>, known: &mut FxHashMap<TypeId, TypeId>) -> Vec<TypeId> {
        list.into_iter().map(|id| self.replace(id, known)).collect()
    }

    /// Name of a type, for messages.
    pub fn name(&self, id: TypeId) -> String {
        let mut text = String::new();
        self.write_name(id, &mut text);
        if text.len() > LONGEST_NAME {
            text.truncate(text.floor_char_boundary(LONGEST_NAME));
            text.push_str("...");
        }
        text
    }

    fn write_name(&self, id: TypeId, text: &mut String) {
        if text.len() > LONGEST_NAME {
            return;
        }
        match self.kind(self.shallow(id)) {
            ValueType::Bits(width) => text.push_str(&format!("bit<{width}>")),
            ValueType::SignedBits(width) => text.push_str(&format!("int<{width}>")),
            ValueType::VariableBits(width) => text.push_str(&format!("varbit<{width}>")),
            ValueType::Nominal(nominal, arguments) => {
                text.push_str(&self.nominal(*nominal).name);
                if !arguments.is_empty() {
                    self.write_names("<", arguments, ">", text);
                }
            }
            ValueType::Stack(element, size) => {
                self.write_name(*element, text);
                text.push_str(&format!("[{size}]"));
            }
            ValueType::Tuple(elements) => self.write_names("tuple<", elements, ">", text),
            ValueType::List(element) => self.write_names("list<", &[*element], ">", text),
            ValueType::Parameter(_, name) => text.push_str(name),
            ValueType::ListExpression(elements) => self.write_names("{", elements, "}", text),
            ValueType::RecordExpression(fields, _) => {
                let names: Vec<&str> = fields.iter().map(|(name, _)| &**name).collect();
                text.push_str(&format!("{{{}}}", names.join(", ")));
            }
            ValueType::Set(element) => self.write_names("set<", &[*element], ">", text),
            other => text.push_str(simple_name(other)),
        }
    }

    fn write_names(&self, open: &str, list: &[TypeId], close: &str, text: &mut String) {
        text.push_str(open);
        for (index, id) in list.iter().enumerate() {
            if index > 0 {
                text.push_str(", ");
            }
            self.write_name(*id, text);
        }
        text.push_str(close);
    }
}

fn simple_name(kind: &ValueType) -> &'static str {
    match kind {
        ValueType::Void => "void",
        ValueType::Bool => "bool",
        ValueType::Text => "string",
        ValueType::Integer => "int",
        ValueType::ErrorCode => "error",
        ValueType::MatchKind => "match_kind",
        ValueType::DefaultValue => "...",
        ValueType::InvalidHeader => "{#}",
        ValueType::Action => "action",
        ValueType::Table(_) => "table",
        ValueType::TableResult(_) => "result of a table",
        ValueType::TableAction(_) => "action of a table",
        _ => "a type that is not known",
    }
}
