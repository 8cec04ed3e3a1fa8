//! Types of values with all names resolved.

use millstream_p4::ast::DeclarationKind;
use millstream_p4::expression::{ExpressionTree, TypeSyntax, TypeSyntaxKind};
use millstream_p4::{ConstantValue, NominalId, NominalKind, TypeId, ValueType};
use rustc_hash::FxHashMap;

use crate::info::program::ProgramIndex;

/// Most types within types; deeper ones are unknown.
const DEEPEST_TYPE: u32 = 64;

/// A type of a value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum DataType {
    Bits(u32),
    SignedBits(u32),
    VariableBits(u32),
    Bool,
    ErrorCode,
    Nominal(NominalId, Vec<DataType>),
    Tuple(Vec<DataType>),
    Stack(Box<DataType>, u32),
    /// A type that has no values when packets run.
    Unknown,
}

/// Type arguments by the names of the parameters.
pub(crate) type TypeArguments = FxHashMap<String, DataType>;

impl<'p> ProgramIndex<'p> {
    /// Resolves a type as it is written.
    pub(crate) fn data_type(&self, syntax: &TypeSyntax, arguments: &TypeArguments) -> DataType {
        self.written_type(syntax, arguments, DEEPEST_TYPE)
    }

    fn written_type(&self, syntax: &TypeSyntax, arguments: &TypeArguments, depth: u32) -> DataType {
        let Some(depth) = depth.checked_sub(1) else { return DataType::Unknown };
        let sized = |size: &ExpressionTree, make: fn(u32) -> DataType| {
            self.size(size).map_or(DataType::Unknown, make)
        };
        let all = |list: &[TypeSyntax]| list.iter().map(|t| self.written_type(t, arguments, depth)).collect();
        match &syntax.kind {
            TypeSyntaxKind::Bool => DataType::Bool,
            TypeSyntaxKind::ErrorCode => DataType::ErrorCode,
            TypeSyntaxKind::Bits(None) => DataType::Bits(1),
            TypeSyntaxKind::Bits(Some(width)) => sized(width, DataType::Bits),
            TypeSyntaxKind::SignedBits(width) => sized(width, DataType::SignedBits),
            TypeSyntaxKind::VariableBits(width) => sized(width, DataType::VariableBits),
            TypeSyntaxKind::Tuple(elements) => DataType::Tuple(all(elements)),
            TypeSyntaxKind::Stack(element, size) => match self.size(size) {
                Some(size) => DataType::Stack(Box::new(self.written_type(element, arguments, depth)), size),
                None => DataType::Unknown,
            },
            TypeSyntaxKind::Named(name) => match arguments.get(&*name.name.text) {
                Some(argument) if !name.is_global => argument.clone(),
                _ => self.named_type(&name.name.text, Vec::new(), arguments, depth),
            },
            TypeSyntaxKind::Specialized(name, list) => {
                self.named_type(&name.name.text, all(list), arguments, depth)
            }
            _ => DataType::Unknown,
        }
    }

    fn named_type(&self, name: &str, list: Vec<DataType>, arguments: &TypeArguments, depth: u32) -> DataType {
        match self.find(name).map(|declaration| &declaration.kind) {
            Some(DeclarationKind::TypeAlias(target)) => self.written_type(target, arguments, depth),
            _ => self.nominal(name).map_or(DataType::Unknown, |id| DataType::Nominal(id, list)),
        }
    }

    fn size(&self, size: &ExpressionTree) -> Option<u32> {
        match self.program.facts.constant(size.id)? {
            ConstantValue::Number(value) => u32::try_from(value).ok(),
            _ => None,
        }
    }

    /// Resolves a type that the checker found.
    pub(crate) fn found_type(&self, id: TypeId, arguments: &TypeArguments) -> DataType {
        self.type_within(id, arguments, DEEPEST_TYPE)
    }

    fn type_within(&self, id: TypeId, arguments: &TypeArguments, depth: u32) -> DataType {
        let Some(depth) = depth.checked_sub(1) else { return DataType::Unknown };
        let all = |list: &[TypeId]| list.iter().map(|id| self.type_within(*id, arguments, depth)).collect();
        match self.program.types.kind(id) {
            ValueType::Bits(width) => DataType::Bits(*width),
            ValueType::SignedBits(width) => DataType::SignedBits(*width),
            ValueType::VariableBits(width) => DataType::VariableBits(*width),
            ValueType::Bool => DataType::Bool,
            ValueType::ErrorCode => DataType::ErrorCode,
            ValueType::Nominal(nominal, list) => DataType::Nominal(*nominal, all(list)),
            ValueType::Tuple(list) | ValueType::ListExpression(list) => DataType::Tuple(all(list)),
            ValueType::Stack(element, size) => {
                DataType::Stack(Box::new(self.type_within(*element, arguments, depth)), *size)
            }
            ValueType::Parameter(_, name) => arguments.get(&**name).cloned().unwrap_or(DataType::Unknown),
            _ => DataType::Unknown,
        }
    }

    /// Fields of a struct, header or header union.
    pub(crate) fn fields(&self, id: NominalId, list: &[DataType]) -> Vec<(&'p str, DataType)> {
        let nominal = self.program.types.nominal(id);
        let NominalKind::Aggregate(_, fields) = &nominal.kind else { return Vec::new() };
        let mut arguments = TypeArguments::default();
        for (parameter, argument) in nominal.type_parameters.iter().zip(list) {
            if let ValueType::Parameter(_, name) = self.program.types.kind(*parameter) {
                arguments.insert(name.to_string(), argument.clone());
            }
        }
        let resolve = |(name, id): &'p (_, TypeId)| -> (&'p str, DataType) {
            let name: &millstream_p4::Symbol = name;
            (name, self.found_type(*id, &arguments))
        };
        fields.iter().map(resolve).collect()
    }

    /// Type below the types that `type` made.
    pub(crate) fn underlying(&self, data_type: &DataType) -> DataType {
        let mut current = data_type.clone();
        for _ in 0..DEEPEST_TYPE {
            let DataType::Nominal(id, _) = &current else { return current };
            let NominalKind::NewType(inner) = self.program.types.nominal(*id).kind else { return current };
            current = self.found_type(inner, &TypeArguments::default());
        }
        DataType::Unknown
    }

    /// Width in bits, for types that controllers write as bytes.
    pub(crate) fn width(&self, data_type: &DataType) -> Option<u32> {
        match self.underlying(data_type) {
            DataType::Bits(width) | DataType::SignedBits(width) => Some(width),
            DataType::VariableBits(_) => Some(0),
            DataType::Bool => Some(1),
            DataType::Nominal(id, _) => match &self.program.types.nominal(id).kind {
                NominalKind::Enumeration(Some(underlying), _) => {
                    self.width(&self.found_type(*underlying, &TypeArguments::default()))
                }
                _ => None,
            },
            _ => None,
        }
    }
}
