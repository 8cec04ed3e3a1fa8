//! Types as P4Info has them. Source: P4Runtime specification 1.4, section 6.5.

use millstream_p4::ast::{AggregateKind, AnnotationTree, DeclarationKind, DeclarationTree, FieldSyntax};
use millstream_p4::{ConstantValue, NominalId, NominalKind, SourceSpan, SourceToken, TokenKind};
use num_bigint::BigInt;

use crate::info::InfoError;
use crate::info::annotations::{self, find_annotation, name_annotation, parse_number};
use crate::info::data_types::{DataType, TypeArguments};
use crate::info::program::ProgramIndex;
use crate::info::scope::joined;
use crate::proto::config::v1::*;

/// Annotation that gives the type that controllers see in place of another.
const TRANSLATION: &str = "p4runtime_translation";

/// Describes types, and keeps those that have names.
pub(crate) struct TypeDescriber<'w, 'p> {
    pub(crate) index: &'w ProgramIndex<'p>,
    /// Types with names so far; none if no object was described that may have one.
    pub(crate) info: Option<P4TypeInfo>,
}

/// Field of a header whose structs were replaced by their fields.
pub(crate) struct HeaderField<'p> {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    pub(crate) annotations: Vec<&'p AnnotationTree>,
}

impl<'p> TypeDescriber<'_, 'p> {
    pub(crate) fn info(&mut self) -> &mut P4TypeInfo {
        self.info.get_or_insert_default()
    }

    /// Name of a type that `type` made.
    pub(crate) fn new_type_name(&self, data_type: &DataType) -> Option<P4NamedType> {
        let DataType::Nominal(id, _) = data_type else { return None };
        let nominal = self.index.program.types.nominal(*id);
        matches!(nominal.kind, NominalKind::NewType(_)).then(|| named(&nominal.name))
    }

    /// Name of a declared type for the control plane; its type arguments are part of it.
    pub(crate) fn type_name(&self, id: NominalId, arguments: &[DataType]) -> String {
        let declaration = self.index.nominal_declaration(id);
        match declaration.and_then(|declaration| name_annotation(&declaration.annotations)) {
            Some(given) => joined("", &given),
            None => self.specialized_name(id, arguments),
        }
    }

    fn specialized_name(&self, id: NominalId, arguments: &[DataType]) -> String {
        let mut name = self.index.program.types.nominal(id).name.to_string();
        for argument in arguments {
            name.push('_');
            self.add_type_text(argument, &mut name);
        }
        name
    }

    /// Adds a type argument to the name of a type, without brackets and blanks.
    fn add_type_text(&self, data_type: &DataType, name: &mut String) {
        match data_type {
            DataType::Bits(width) => name.push_str(&format!("bit{width}")),
            DataType::SignedBits(width) => name.push_str(&format!("int{width}")),
            DataType::VariableBits(width) => name.push_str(&format!("varbit{width}")),
            DataType::Bool => name.push_str("bool"),
            DataType::ErrorCode => name.push_str("error"),
            DataType::Nominal(id, arguments) => name.push_str(&self.specialized_name(*id, arguments)),
            DataType::Tuple(elements) => {
                name.push_str("tuple");
                for (at, element) in elements.iter().enumerate() {
                    if at > 0 {
                        name.push('_');
                    }
                    self.add_type_text(element, name);
                }
            }
            DataType::Stack(element, size) => {
                self.add_type_text(element, name);
                name.push_str(&format!("[{size}]"));
            }
            DataType::Unknown => {}
        }
    }

    /// Width in bits that controllers see: that of a translation, and none for strings and errors.
    pub(crate) fn plane_width(&self, data_type: &DataType) -> Option<u32> {
        use p4_new_type_translation::SdnType;
        if let DataType::Nominal(id, _) = data_type
            && let Some(declaration) = self.index.nominal_declaration(*id)
            && let Some(annotation) = find_annotation(&declaration.annotations, TRANSLATION)
            && let Some(translation) = translation(annotation)
        {
            return Some(match translation.sdn_type {
                Some(SdnType::SdnBitwidth(width)) => width.unsigned_abs(),
                _ => 0,
            });
        }
        match data_type {
            DataType::ErrorCode => Some(0),
            _ => self.index.width(data_type),
        }
    }

    /// Describes a type.
    ///
    /// # Errors
    /// If P4Info has no form for it.
    pub(crate) fn describe(
        &mut self,
        data_type: &DataType,
        span: SourceSpan,
    ) -> Result<P4DataTypeSpec, InfoError> {
        use p4_data_type_spec::TypeSpec;
        let spec = match data_type {
            DataType::Bits(_) | DataType::SignedBits(_) | DataType::VariableBits(_) => {
                TypeSpec::Bitstring(self.bits(data_type, span)?)
            }
            DataType::Bool => TypeSpec::Bool(P4BoolType {}),
            DataType::ErrorCode => {
                let members = self.index.errors.iter().map(|name| (*name).to_owned()).collect();
                self.info().error.get_or_insert(P4ErrorTypeSpec { members });
                TypeSpec::Error(P4ErrorType {})
            }
            DataType::Tuple(elements) => {
                let members = elements.iter().map(|element| self.describe(element, span));
                TypeSpec::Tuple(P4TupleTypeSpec { members: members.collect::<Result<_, _>>()? })
            }
            DataType::Stack(element, size) => self.stack(element, *size, span)?,
            DataType::Nominal(id, arguments) => self.nominal(*id, arguments, span)?,
            DataType::Unknown => return Err(self.index.unsupported(span, "this type")),
        };
        Ok(P4DataTypeSpec { type_spec: Some(spec) })
    }

    /// Describes a type of bits, of which headers are made.
    fn bits(&self, data_type: &DataType, span: SourceSpan) -> Result<P4BitstringLikeTypeSpec, InfoError> {
        use p4_bitstring_like_type_spec::TypeSpec;
        let type_spec = match self.index.underlying(data_type) {
            DataType::SignedBits(width) => TypeSpec::Int(P4IntTypeSpec { bitwidth: width as i32 }),
            DataType::VariableBits(width) => {
                TypeSpec::Varbit(P4VarbitTypeSpec { max_bitwidth: width as i32 })
            }
            other => match self.index.width(&other) {
                Some(width) => TypeSpec::Bit(P4BitTypeSpec { bitwidth: width as i32 }),
                None => return Err(self.index.unsupported(span, "a field of this type in a header")),
            },
        };
        Ok(P4BitstringLikeTypeSpec { type_spec: Some(type_spec), ..Default::default() })
    }

    fn stack(
        &mut self,
        element: &DataType,
        size: u32,
        span: SourceSpan,
    ) -> Result<p4_data_type_spec::TypeSpec, InfoError> {
        use p4_data_type_spec::TypeSpec;
        let size = i32::try_from(size).unwrap_or(i32::MAX);
        match self.describe(element, span)?.type_spec {
            Some(TypeSpec::Header(header)) => {
                Ok(TypeSpec::HeaderStack(P4HeaderStackTypeSpec { header: Some(header), size }))
            }
            Some(TypeSpec::HeaderUnion(union)) => {
                Ok(TypeSpec::HeaderUnionStack(P4HeaderUnionStackTypeSpec { header_union: Some(union), size }))
            }
            _ => Err(self.index.unsupported(span, "an array of this type")),
        }
    }

    fn nominal(
        &mut self,
        id: NominalId,
        arguments: &[DataType],
        span: SourceSpan,
    ) -> Result<p4_data_type_spec::TypeSpec, InfoError> {
        use p4_data_type_spec::TypeSpec;
        let name = self.type_name(id, arguments);
        let reference = named(&name);
        let declaration = self.index.nominal_declaration(id);
        let annotations = declaration.map(|d| &d.annotations[..]).unwrap_or_default();
        match &self.index.program.types.nominal(id).kind {
            NominalKind::Aggregate(kind, _) => self.aggregate(*kind, id, arguments, span),
            NominalKind::Enumeration(None, _) => {
                if !self.info().enums.contains_key(&name) {
                    let spec = self.enumeration(declaration);
                    self.info().enums.insert(name, spec);
                }
                Ok(TypeSpec::Enum(reference))
            }
            NominalKind::Enumeration(Some(underlying), members) => {
                if !self.info().serializable_enums.contains_key(&name) {
                    let underlying = self.index.found_type(*underlying, &TypeArguments::default());
                    let spec = self.serializable(&underlying, members);
                    self.info().serializable_enums.insert(name, spec);
                }
                Ok(TypeSpec::SerializableEnum(reference))
            }
            NominalKind::NewType(_) => {
                if !self.info().new_types.contains_key(&name) {
                    let spec = self.new_type(id, annotations, span)?;
                    self.info().new_types.insert(name, spec);
                }
                Ok(TypeSpec::NewType(reference))
            }
            _ => Err(self.index.unsupported(span, "a value of this type")),
        }
    }

    fn aggregate(
        &mut self,
        kind: AggregateKind,
        id: NominalId,
        arguments: &[DataType],
        span: SourceSpan,
    ) -> Result<p4_data_type_spec::TypeSpec, InfoError> {
        use p4_data_type_spec::TypeSpec;
        let name = self.type_name(id, arguments);
        let reference = named(&name);
        match kind {
            AggregateKind::Struct => {
                if !self.info().structs.contains_key(&name) {
                    // The place is taken, so that a type within itself is described once.
                    self.info().structs.insert(name.clone(), P4StructTypeSpec::default());
                    let members = self.struct_members(id, arguments, span)?;
                    self.info().structs.insert(name, P4StructTypeSpec { members, ..Default::default() });
                }
                Ok(TypeSpec::Struct(reference))
            }
            AggregateKind::Header => {
                if !self.info().headers.contains_key(&name) {
                    let member = |field: HeaderField<'_>| {
                        let type_spec = Some(self.bits(&field.data_type, span)?);
                        Ok(p4_header_type_spec::Member { name: field.name, type_spec })
                    };
                    let fields = self.header_fields(id, arguments);
                    let members = fields.into_iter().map(member).collect::<Result<_, InfoError>>()?;
                    self.info().headers.insert(name, P4HeaderTypeSpec { members, ..Default::default() });
                }
                Ok(TypeSpec::Header(reference))
            }
            AggregateKind::HeaderUnion => {
                if !self.info().header_unions.contains_key(&name) {
                    let mut members = Vec::new();
                    for (name, data_type, _) in self.named_fields(id, arguments) {
                        let header = match self.describe(&data_type, span)?.type_spec {
                            Some(TypeSpec::Header(header)) => Some(header),
                            _ => None,
                        };
                        members.push(p4_header_union_type_spec::Member { name, header });
                    }
                    let spec = P4HeaderUnionTypeSpec { members, ..Default::default() };
                    self.info().header_unions.insert(name, spec);
                }
                Ok(TypeSpec::HeaderUnion(reference))
            }
        }
    }

    fn struct_members(
        &mut self,
        id: NominalId,
        arguments: &[DataType],
        span: SourceSpan,
    ) -> Result<Vec<p4_struct_type_spec::Member>, InfoError> {
        let fields = self.named_fields(id, arguments);
        let member = |(name, data_type, _): (String, DataType, _)| {
            let type_spec = Some(self.describe(&data_type, span)?);
            Ok(p4_struct_type_spec::Member { name, type_spec })
        };
        fields.into_iter().map(member).collect()
    }

    /// Fields with their names for the control plane.
    fn named_fields(
        &self,
        id: NominalId,
        arguments: &[DataType],
    ) -> Vec<(String, DataType, Option<&'p FieldSyntax>)> {
        let syntax = match self.index.nominal_declaration(id).map(|declaration| &declaration.kind) {
            Some(DeclarationKind::Aggregate(syntax)) => &syntax.fields[..],
            _ => &[],
        };
        let fields = self.index.fields(id, arguments).into_iter().enumerate();
        let named = |(at, (name, data_type)): (usize, (&'p str, DataType))| {
            let field: Option<&'p FieldSyntax> = syntax.get(at);
            let given = field.and_then(|field| name_annotation(&field.annotations));
            (joined("", given.as_deref().unwrap_or(name)), data_type, field)
        };
        fields.map(named).collect()
    }

    /// Fields of a header; those of structs within it have the names of both, joined by dots.
    pub(crate) fn header_fields(&self, id: NominalId, arguments: &[DataType]) -> Vec<HeaderField<'p>> {
        let mut fields = Vec::new();
        self.add_header_fields(id, arguments, ("", &[]), &mut fields);
        fields
    }

    fn add_header_fields(
        &self,
        id: NominalId,
        arguments: &[DataType],
        (prefix, outer): (&str, &[&'p AnnotationTree]),
        fields: &mut Vec<HeaderField<'p>>,
    ) {
        for (name, data_type, syntax) in self.named_fields(id, arguments) {
            let own = syntax.map(|syntax| &syntax.annotations[..]).unwrap_or_default();
            let mut annotations: Vec<&AnnotationTree> = own.iter().collect();
            let is_new = |a: &&&AnnotationTree| own.iter().all(|other| other.name.text != a.name.text);
            annotations.extend(outer.iter().filter(is_new));
            let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            let inner = match &data_type {
                DataType::Nominal(inner, list) => Some((*inner, list.clone())),
                _ => None,
            };
            match inner.filter(|(inner, _)| self.is_aggregate(*inner)) {
                Some((inner, list)) => {
                    self.add_header_fields(inner, &list, (&name, &annotations), fields);
                }
                None => fields.push(HeaderField { name, data_type, annotations }),
            }
        }
    }

    fn is_aggregate(&self, id: NominalId) -> bool {
        matches!(self.index.program.types.nominal(id).kind, NominalKind::Aggregate(..))
    }

    fn enumeration(&self, declaration: Option<&DeclarationTree>) -> P4EnumTypeSpec {
        let names = match declaration.map(|declaration| &declaration.kind) {
            Some(DeclarationKind::Enumeration(_, members)) => &members[..],
            _ => &[],
        };
        let member = |name: &str| p4_enum_type_spec::Member { name: name.into(), ..Default::default() };
        let members = names.iter().map(|(name, _)| member(&name.text)).collect();
        P4EnumTypeSpec { members, ..Default::default() }
    }

    fn serializable(
        &self,
        underlying: &DataType,
        members: &[(millstream_p4::Symbol, Option<ConstantValue>)],
    ) -> P4SerializableEnumTypeSpec {
        let width = self.index.width(underlying).unwrap_or(0);
        let member = |(name, value): &(millstream_p4::Symbol, Option<ConstantValue>)| {
            let value = match value {
                Some(ConstantValue::Number(value)) => padded_bytes(value, width),
                _ => Vec::new(),
            };
            p4_serializable_enum_type_spec::Member { name: name.to_string(), value, ..Default::default() }
        };
        P4SerializableEnumTypeSpec {
            underlying_type: Some(P4BitTypeSpec { bitwidth: width as i32 }),
            members: members.iter().map(member).collect(),
            ..Default::default()
        }
    }

    fn new_type(
        &mut self,
        id: NominalId,
        annotations: &[AnnotationTree],
        span: SourceSpan,
    ) -> Result<P4NewTypeSpec, InfoError> {
        use p4_new_type_spec::Representation;
        let lists = annotations::annotation_lists(self.index, annotations, &[TRANSLATION])?;
        let underlying = self.index.underlying(&DataType::Nominal(id, Vec::new()));
        let representation = match find_annotation(annotations, TRANSLATION) {
            Some(annotation) => {
                if !matches!(underlying, DataType::Bits(_)) {
                    return Err(self.index.unsupported(span, "the translation of a type that is not bit<W>"));
                }
                let expected = "a string, and `string` or a number of bits";
                let error = || annotations::broken_annotation(self.index, annotation, expected);
                Representation::TranslatedType(translation(annotation).ok_or_else(error)?)
            }
            None => Representation::OriginalType(self.describe(&underlying, span)?),
        };
        Ok(P4NewTypeSpec {
            annotations: lists.annotations,
            structured_annotations: lists.structured,
            representation: Some(representation),
            ..Default::default()
        })
    }
}

/// Reads `@p4runtime_translation(URI, TYPE)`: the type is `string`, a number of bits, or `bit<W>`.
fn translation(annotation: &AnnotationTree) -> Option<P4NewTypeTranslation> {
    use p4_new_type_translation::{SdnString, SdnType};
    let millstream_p4::ast::AnnotationBody::Unstructured(tokens) = &annotation.body else { return None };
    let [uri, comma, controller @ ..] = &tokens[..] else { return None };
    let TokenKind::Text(uri) = &uri.kind else { return None };
    let width = |token: &SourceToken| match &token.kind {
        TokenKind::Number(digits) => parse_number(digits).and_then(|width| i32::try_from(width).ok()),
        _ => None,
    };
    let sdn_type = match controller {
        [word] if word.word_or_mark() == "string" => SdnType::SdnString(SdnString {}),
        [number] => SdnType::SdnBitwidth(width(number)?),
        [bit, open, number, close]
            if [bit, open, close].map(SourceToken::word_or_mark) == ["bit", "<", ">"] =>
        {
            SdnType::SdnBitwidth(width(number)?)
        }
        _ => return None,
    };
    (comma.word_or_mark() == ",")
        .then(|| P4NewTypeTranslation { uri: uri.to_string(), sdn_type: Some(sdn_type) })
}

/// Reference to a type by name.
pub(crate) fn named(name: &str) -> P4NamedType {
    P4NamedType { name: name.into() }
}

/// Bytes of a number in all bytes of its width, as p4c writes them.
pub(crate) fn padded_bytes(value: &BigInt, width: u32) -> Vec<u8> {
    let length = width.div_ceil(8).max(1) as usize;
    let (_, bytes) = value.to_bytes_be();
    let start = bytes.len().saturating_sub(length);
    let mut padded = vec![0; length.saturating_sub(bytes.len())];
    padded.extend_from_slice(&bytes[start..]);
    padded
}
