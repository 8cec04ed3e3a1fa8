//! Checks of a module's declarations.

use super::VerifyError;
use crate::module::{FieldDecl, FieldMatch, MatchKind, Module, TableDecl};

pub(super) fn verify(module: &Module) -> Vec<VerifyError> {
    let mut errors = Vec::new();
    let mut error = |message| errors.push(VerifyError { func: None, block: None, inst: None, message });
    for (id, map) in &module.maps {
        if let Some(inner) = map.inner.filter(|&inner| inner == id || !module.maps.is_valid(inner)) {
            error(format!("{id}: {inner} cannot be its inner map"));
        }
    }
    for (id, table) in &module.tables {
        if let Some(field) = table.fields.iter().find(|f| f.bits == 0) {
            error(format!("{id}: field \"{}\" is empty", field.name));
        }
        if !table.results.is_empty() && table.results.len() != table.entries.len() {
            error(format!("{id}: {} results of {} entries", table.results.len(), table.entries.len()));
        }
        if let Some(result) = table.results.iter().find(|result| **result >> 30 != 0) {
            error(format!("{id}: result {result} is not below 2^30"));
        }
        for (i, entry) in table.entries.iter().enumerate() {
            if let Err(message) = entry_error(table, entry) {
                error(format!("{id}: entry {i}: {message}"));
            }
        }
    }
    errors
}

fn entry_error(table: &TableDecl, entry: &[FieldMatch]) -> Result<(), String> {
    if entry.len() != table.fields.len() {
        return Err(format!("{} fields instead of {}", entry.len(), table.fields.len()));
    }
    entry.iter().zip(&table.fields).try_for_each(|(m, field)| {
        field_error(m, field).map_err(|message| format!("field \"{}\": {message}", field.name))
    })
}

fn field_error(m: &FieldMatch, field: &FieldDecl) -> Result<(), String> {
    let kind = match m {
        FieldMatch::Exact(value) => {
            words_error(value, field)?;
            MatchKind::Exact
        }
        FieldMatch::Prefix(value, bits) => {
            words_error(value, field)?;
            if *bits > field.bits {
                return Err(format!("a prefix of {bits} bits in a field of {}", field.bits));
            }
            MatchKind::Prefix
        }
        FieldMatch::Range(a, b) | FieldMatch::Ternary(a, b) => {
            words_error(a, field)?;
            words_error(b, field)?;
            match m {
                FieldMatch::Range(..) if a > b => return Err("the range is empty".into()),
                FieldMatch::Range(..) => MatchKind::Range,
                _ => MatchKind::Ternary,
            }
        }
    };
    if kind == field.kind { Ok(()) } else { Err(format!("{kind:?} where {:?} is declared", field.kind)) }
}

/// The words must be as many as the field has, and no wider in sum.
fn words_error(words: &[u64], field: &FieldDecl) -> Result<(), String> {
    if words.len() != field.words() {
        return Err(format!("{} words instead of {}", words.len(), field.words()));
    }
    let top_bits = field.bits - 64 * (field.words() as u32 - 1);
    if top_bits < 64 && words[0] >> top_bits != 0 {
        return Err(format!("a value wider than {} bits", field.bits));
    }
    Ok(())
}
