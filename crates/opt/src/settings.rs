//! Load-time settings by name: constants of an object set as a loader would set them.

use millstream_btf::{Btf, KindTag, TypeId, TypeKind, ValueError};
use millstream_object::{MapId, MapOrigin, Object, ObjectError};
use serde::Serialize;

/// A setting: a variable of constant data and the text of its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadSetting {
    /// Name of the variable.
    pub name: String,
    /// Its value: see [`Btf::parse_value`].
    pub value: String,
}

/// A variable that was set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SettledVariable {
    /// Its name.
    pub name: String,
    /// Its section.
    pub section: String,
    /// The value, as people read it.
    pub value: String,
}

/// Why a setting was refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The text has no `=`.
    #[error("`{0}` is no setting: write NAME=VALUE")]
    NoValue(String),
    /// No constant has this name.
    #[error("there is no constant `{name}`{nearest}")]
    NoVariable {
        /// The name.
        name: String,
        /// The most similar constant and its type, as the end of the sentence; empty if there is none.
        nearest: String,
    },
    /// The variable can change while programs run.
    #[error("`{name}` is in section {section}: only constants (.rodata, `const volatile`) can be set")]
    NotConstant {
        /// The variable.
        name: String,
        /// Its section.
        section: String,
    },
    /// Several sections have a variable of this name.
    #[error("`{name}` is in sections {first} and {second}")]
    Ambiguous {
        /// The variable.
        name: String,
        /// A section that has it.
        first: String,
        /// Another one.
        second: String,
    },
    /// The text is no value of the variable's type.
    #[error("`{name}` is of type {ty}: {source}")]
    BadValue {
        /// The variable.
        name: String,
        /// Its type.
        ty: String,
        /// The reason.
        source: ValueError,
    },
    /// The object does not take the value.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

impl std::str::FromStr for LoadSetting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<LoadSetting, SettingError> {
        let parts = text.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let (name, value) = parts
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| SettingError::NoValue(text.to_owned()))?;
        Ok(LoadSetting { name: name.to_owned(), value: value.to_owned() })
    }
}

/// A variable of global data.
struct DataVariable<'a> {
    map: MapId,
    origin: MapOrigin,
    section: &'a str,
    name: &'a str,
    offset: u32,
    size: u32,
}

/// Sets constants of an object to their final values; of two settings of one variable, the last counts.
///
/// # Errors
/// [`SettingError`] for the first setting that names no constant, or has no value of its type.
pub fn apply_settings(
    object: &mut Object,
    settings: &[LoadSetting],
) -> Result<Vec<SettledVariable>, SettingError> {
    let mut done = Vec::with_capacity(settings.len());
    for setting in settings {
        let variable = find_constant(object, &setting.name)?;
        let (ty, bytes) = encode(object, &variable, &setting.value)?;
        let value = match object.btf.as_ref().zip(ty) {
            Some((btf, ty)) => btf.value_text(ty, &bytes),
            None => setting.value.clone(),
        };
        let (map, offset, section) = (variable.map, variable.offset, variable.section.to_owned());
        object.settle(map, offset, &bytes)?;
        done.push(SettledVariable { name: setting.name.clone(), section, value });
    }
    Ok(done)
}

fn data_variables(object: &Object) -> impl Iterator<Item = DataVariable<'_>> {
    let global = object.maps.iter().enumerate().filter(|(_, m)| m.origin.is_global());
    global.flat_map(|(n, m)| {
        m.variables.iter().map(move |v| DataVariable {
            map: MapId(n as u32),
            origin: m.origin,
            section: &m.section,
            name: &v.name,
            offset: v.offset,
            size: v.size,
        })
    })
}

fn find_constant<'a>(object: &'a Object, name: &str) -> Result<DataVariable<'a>, SettingError> {
    let mut found = data_variables(object).filter(|v| v.name == name);
    let Some(variable) = found.next() else {
        return Err(SettingError::NoVariable { name: name.to_owned(), nearest: nearest(object, name) });
    };
    if let Some(other) = found.next() {
        let (first, second) = (variable.section.to_owned(), other.section.to_owned());
        return Err(SettingError::Ambiguous { name: name.to_owned(), first, second });
    }
    if variable.origin != MapOrigin::Rodata {
        return Err(SettingError::NotConstant {
            name: name.to_owned(),
            section: variable.section.to_owned(),
        });
    }
    Ok(variable)
}

/// The type of a variable and the bytes of a value. Without types, small variables are unsigned integers.
fn encode(
    object: &Object,
    variable: &DataVariable<'_>,
    text: &str,
) -> Result<(Option<TypeId>, Vec<u8>), SettingError> {
    let ty = object.btf.as_ref().and_then(|btf| Some((btf, type_of(btf, variable.name)?)));
    let bytes = match ty {
        Some((btf, ty)) => btf.parse_value(ty, text),
        None => millstream_btf::parse_untyped(variable.size, text, object.byte_order()),
    };
    let fits = |bytes: &Vec<u8>| bytes.len() == variable.size as usize;
    let bytes = bytes.and_then(|bytes| if fits(&bytes) { Ok(bytes) } else { Err(ValueError::NoForm) });
    let bytes = bytes.map_err(|source| SettingError::BadValue {
        name: variable.name.to_owned(),
        ty: type_text(object, variable),
        source,
    })?;
    Ok((ty.map(|(_, ty)| ty), bytes))
}

fn type_of(btf: &Btf, name: &str) -> Option<TypeId> {
    match btf.ty(btf.find(KindTag::Var, name)?).ok()?.kind {
        TypeKind::Var { ty, .. } => Some(ty),
        _ => None,
    }
}

fn type_text(object: &Object, variable: &DataVariable<'_>) -> String {
    let named = object.btf.as_ref().and_then(|btf| Some(btf.c_name(type_of(btf, variable.name)?)));
    named.unwrap_or_else(|| format!("unknown, {} bytes", variable.size))
}

/// The constant whose name takes the fewest edits, with its type, if that are not most of its letters.
fn nearest(object: &Object, name: &str) -> String {
    let constants = data_variables(object).filter(|v| v.origin == MapOrigin::Rodata);
    let closeness = |v: &DataVariable<'_>| {
        let contained = !name.is_empty() && v.name.contains(name);
        (if contained { 0 } else { edits(v.name, name) }, v.name.len())
    };
    let close = |v: &DataVariable<'_>| closeness(v).0 <= name.len().max(v.name.len()) / 2;
    let best = constants.min_by_key(closeness).filter(close);
    best.map_or_else(String::new, |v| {
        format!(": the nearest is `{}` of type {}", v.name, type_text(object, &v))
    })
}

/// Number of insertions, deletions and substitutions between two names (Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}
