//! Values of any type, as registers hold them. Source: P4Runtime specification 1.4, section 8.5.

use crate::entities::bytestrings::{canonical_bytes, canonical_signed_bytes};
use crate::entities::error::EntityError;
use crate::proto::config::v1::*;
use crate::proto::v1::{
    P4Data, P4Header, P4HeaderStack, P4HeaderUnion, P4HeaderUnionStack, P4StructLike, P4Varbit, p4_data::Data,
};

/// Most parts of a value.
const MOST_PARTS: usize = 1 << 16;

/// Most types within types.
const DEEPEST_TYPE: usize = 64;

/// Reads a value of a type, and gives its canonical form.
///
/// # Errors
/// If the value has another shape than the type, or a number does not fit.
pub(crate) fn read_data(
    spec: &P4DataTypeSpec,
    data: &P4Data,
    types: &P4TypeInfo,
) -> Result<P4Data, EntityError> {
    DataReader { types, depth: 0 }.value(spec, data)
}

struct DataReader<'t> {
    types: &'t P4TypeInfo,
    depth: usize,
}

impl DataReader<'_> {
    fn value(&mut self, spec: &P4DataTypeSpec, data: &P4Data) -> Result<P4Data, EntityError> {
        self.depth += 1;
        let value = self.value_within(spec, data);
        self.depth -= 1;
        value
    }

    fn value_within(&mut self, spec: &P4DataTypeSpec, data: &P4Data) -> Result<P4Data, EntityError> {
        use p4_data_type_spec::TypeSpec;
        let wrong = || EntityError::invalid("the value does not have the type of the register");
        let (Some(spec), Some(data)) = (&spec.type_spec, &data.data) else { return Err(wrong()) };
        if self.depth > DEEPEST_TYPE {
            return Err(wrong());
        }
        let value = match (spec, data) {
            (TypeSpec::Bitstring(spec), data) => bits(spec, data).unwrap_or_else(|| Err(wrong()))?,
            (TypeSpec::Bool(_), Data::Bool(value)) => Data::Bool(*value),
            (TypeSpec::Tuple(spec), Data::Tuple(value)) => {
                Data::Tuple(self.members(spec.members.iter(), value)?)
            }
            (TypeSpec::Struct(name), Data::Struct(value)) => {
                let spec = self.types.structs.get(&name.name).ok_or_else(wrong)?;
                let members: Option<Vec<_>> = spec.members.iter().map(|m| m.type_spec.as_ref()).collect();
                Data::Struct(self.members(members.ok_or_else(wrong)?.into_iter(), value)?)
            }
            (TypeSpec::Header(name), Data::Header(value)) => Data::Header(self.header(name, value)?),
            (TypeSpec::HeaderUnion(name), Data::HeaderUnion(value)) => {
                Data::HeaderUnion(self.union(name, value)?)
            }
            (TypeSpec::HeaderStack(spec), Data::HeaderStack(value)) => {
                let name = spec.header.as_ref().ok_or_else(wrong)?;
                check_count(value.entries.len(), spec.size)?;
                let entries = value.entries.iter().map(|entry| self.header(name, entry));
                Data::HeaderStack(P4HeaderStack { entries: entries.collect::<Result<_, _>>()? })
            }
            (TypeSpec::HeaderUnionStack(spec), Data::HeaderUnionStack(value)) => {
                let name = spec.header_union.as_ref().ok_or_else(wrong)?;
                check_count(value.entries.len(), spec.size)?;
                let entries = value.entries.iter().map(|entry| self.union(name, entry));
                Data::HeaderUnionStack(P4HeaderUnionStack { entries: entries.collect::<Result<_, _>>()? })
            }
            (TypeSpec::Enum(name), Data::Enum(member)) => {
                let spec = self.types.enums.get(&name.name).ok_or_else(wrong)?;
                let is_known = spec.members.iter().any(|known| known.name == *member);
                is_known.then(|| Data::Enum(member.clone())).ok_or_else(wrong)?
            }
            (TypeSpec::Error(_), Data::Error(member)) => {
                let known = self.types.error.as_ref().is_some_and(|spec| spec.members.contains(member));
                known.then(|| Data::Error(member.clone())).ok_or_else(wrong)?
            }
            (TypeSpec::SerializableEnum(name), Data::EnumValue(value)) => {
                let spec = self.types.serializable_enums.get(&name.name).ok_or_else(wrong)?;
                let width = spec.underlying_type.as_ref().map_or(0, |spec| spec.bitwidth.unsigned_abs());
                Data::EnumValue(canonical_bytes(value, width)?)
            }
            (TypeSpec::NewType(name), data) => return self.new_type(name, data),
            _ => return Err(wrong()),
        };
        Ok(P4Data { data: Some(value) })
    }

    fn members<'s>(
        &mut self,
        specs: impl ExactSizeIterator<Item = &'s P4DataTypeSpec>,
        value: &P4StructLike,
    ) -> Result<P4StructLike, EntityError> {
        if specs.len() != value.members.len() {
            return Err(EntityError::invalid("the value has another number of members than its type"));
        }
        let members = specs.zip(&value.members).map(|(spec, member)| self.value(spec, member));
        Ok(P4StructLike { members: members.collect::<Result<_, _>>()? })
    }

    fn header(&self, name: &P4NamedType, value: &P4Header) -> Result<P4Header, EntityError> {
        let wrong = || EntityError::invalid(format!("the value is no header of type `{}`", name.name));
        let spec = self.types.headers.get(&name.name).ok_or_else(wrong)?;
        let expected = if value.is_valid { spec.members.len() } else { 0 };
        if value.bitstrings.len() != expected {
            return Err(wrong());
        }
        let field = |(member, bytes): (&p4_header_type_spec::Member, &Vec<u8>)| {
            use p4_bitstring_like_type_spec::TypeSpec;
            match member.type_spec.as_ref().and_then(|spec| spec.type_spec.as_ref()) {
                Some(TypeSpec::Bit(spec)) => canonical_bytes(bytes, spec.bitwidth.unsigned_abs()),
                Some(TypeSpec::Int(spec)) => canonical_signed_bytes(bytes, spec.bitwidth.unsigned_abs()),
                Some(TypeSpec::Varbit(spec)) if bytes.len() as u64 * 8 <= spec.max_bitwidth as u64 => {
                    Ok(bytes.clone())
                }
                _ => Err(wrong()),
            }
        };
        let bitstrings = spec.members.iter().zip(&value.bitstrings).map(field);
        Ok(P4Header { is_valid: value.is_valid, bitstrings: bitstrings.collect::<Result<_, _>>()? })
    }

    fn union(&self, name: &P4NamedType, value: &P4HeaderUnion) -> Result<P4HeaderUnion, EntityError> {
        let wrong = || EntityError::invalid(format!("the value is no header union of type `{}`", name.name));
        let spec = self.types.header_unions.get(&name.name).ok_or_else(wrong)?;
        let Some(header) = value.valid_header.as_ref().filter(|_| !value.valid_header_name.is_empty()) else {
            return match value.valid_header_name.is_empty() && value.valid_header.is_none() {
                true => Ok(P4HeaderUnion::default()),
                false => Err(wrong()),
            };
        };
        let member = spec.members.iter().find(|member| member.name == value.valid_header_name);
        let header_type = member.and_then(|member| member.header.as_ref()).ok_or_else(wrong)?;
        let valid_header = Some(self.header(header_type, header)?);
        Ok(P4HeaderUnion { valid_header_name: value.valid_header_name.clone(), valid_header })
    }

    fn new_type(&mut self, name: &P4NamedType, data: &Data) -> Result<P4Data, EntityError> {
        use p4_new_type_spec::Representation;
        use p4_new_type_translation::SdnType;
        let wrong = || EntityError::invalid(format!("the value does not have the type `{}`", name.name));
        let spec = self.types.new_types.get(&name.name).and_then(|spec| spec.representation.as_ref());
        let value = match spec.ok_or_else(wrong)? {
            Representation::OriginalType(original) => {
                let data = P4Data { data: Some(data.clone()) };
                return self.value(original, &data);
            }
            Representation::TranslatedType(translated) => match (&translated.sdn_type, data) {
                (Some(SdnType::SdnBitwidth(width)), Data::Bitstring(bytes)) => {
                    canonical_bytes(bytes, width.unsigned_abs())?
                }
                (Some(SdnType::SdnString(_)), Data::Bitstring(bytes)) => bytes.clone(),
                _ => return Err(wrong()),
            },
        };
        Ok(P4Data { data: Some(Data::Bitstring(value)) })
    }
}

/// Reads a number; other shapes have none.
fn bits(spec: &P4BitstringLikeTypeSpec, data: &Data) -> Option<Result<Data, EntityError>> {
    use p4_bitstring_like_type_spec::TypeSpec;
    Some(match (spec.type_spec.as_ref()?, data) {
        (TypeSpec::Bit(spec), Data::Bitstring(bytes)) => {
            canonical_bytes(bytes, spec.bitwidth.unsigned_abs()).map(Data::Bitstring)
        }
        (TypeSpec::Int(spec), Data::Bitstring(bytes)) => {
            canonical_signed_bytes(bytes, spec.bitwidth.unsigned_abs()).map(Data::Bitstring)
        }
        (TypeSpec::Varbit(spec), Data::Varbit(value)) => {
            let width = u32::try_from(value.bitwidth).ok().filter(|_| value.bitwidth <= spec.max_bitwidth)?;
            let bitstring = match (width, &value.bitstring[..]) {
                (0, []) => Ok(Vec::new()),
                (_, bytes) => canonical_bytes(bytes, width),
            };
            bitstring.map(|bitstring| Data::Varbit(P4Varbit { bitstring, bitwidth: value.bitwidth }))
        }
        _ => return None,
    })
}

fn check_count(count: usize, size: i32) -> Result<(), EntityError> {
    match usize::try_from(size) == Ok(count) {
        true => Ok(()),
        false => Err(EntityError::invalid(format!("the stack has {count} elements and its type {size}"))),
    }
}

/// Value that all cells of a register have first: zeros, and headers that are not valid. Types that are not
/// described, within themselves or too large have none.
pub(crate) fn zero_data(spec: &P4DataTypeSpec, types: &P4TypeInfo) -> Option<P4Data> {
    let mut parts = MOST_PARTS;
    zero_value(spec, types, &mut parts, DEEPEST_TYPE)
}

fn zero_value(spec: &P4DataTypeSpec, types: &P4TypeInfo, parts: &mut usize, depth: usize) -> Option<P4Data> {
    use p4_data_type_spec::TypeSpec;
    let depth = depth.checked_sub(1)?;
    *parts = parts.checked_sub(1)?;
    let mut all = |specs: Vec<&P4DataTypeSpec>| {
        let members = specs.into_iter().map(|spec| zero_value(spec, types, parts, depth));
        Some(P4StructLike { members: members.collect::<Option<_>>()? })
    };
    let value = match spec.type_spec.as_ref()? {
        TypeSpec::Bitstring(spec) => match spec.type_spec.as_ref()? {
            p4_bitstring_like_type_spec::TypeSpec::Varbit(_) => Data::Varbit(P4Varbit::default()),
            _ => Data::Bitstring(vec![0]),
        },
        TypeSpec::Bool(_) => Data::Bool(false),
        TypeSpec::Tuple(spec) => Data::Tuple(all(spec.members.iter().collect())?),
        TypeSpec::Struct(name) => {
            let members = types.structs.get(&name.name)?.members.iter().map(|m| m.type_spec.as_ref());
            Data::Struct(all(members.collect::<Option<_>>()?)?)
        }
        TypeSpec::Header(name) => types.headers.get(&name.name).map(|_| Data::Header(P4Header::default()))?,
        TypeSpec::HeaderUnion(name) => {
            types.header_unions.get(&name.name).map(|_| Data::HeaderUnion(P4HeaderUnion::default()))?
        }
        TypeSpec::HeaderStack(spec) => {
            let size = usize::try_from(spec.size).ok()?;
            *parts = parts.checked_sub(size)?;
            Data::HeaderStack(P4HeaderStack { entries: vec![P4Header::default(); size] })
        }
        TypeSpec::HeaderUnionStack(spec) => {
            let size = usize::try_from(spec.size).ok()?;
            *parts = parts.checked_sub(size)?;
            Data::HeaderUnionStack(P4HeaderUnionStack { entries: vec![P4HeaderUnion::default(); size] })
        }
        TypeSpec::Enum(name) => Data::Enum(types.enums.get(&name.name)?.members.first()?.name.clone()),
        TypeSpec::Error(_) => Data::Error(types.error.as_ref()?.members.first()?.clone()),
        TypeSpec::SerializableEnum(name) => {
            types.serializable_enums.get(&name.name).map(|_| Data::EnumValue(vec![0]))?
        }
        TypeSpec::NewType(name) => {
            use p4_new_type_spec::Representation;
            match types.new_types.get(&name.name)?.representation.as_ref()? {
                Representation::OriginalType(spec) => return zero_value(spec, types, parts, depth),
                Representation::TranslatedType(_) => Data::Bitstring(vec![0]),
            }
        }
    };
    Some(P4Data { data: Some(value) })
}
