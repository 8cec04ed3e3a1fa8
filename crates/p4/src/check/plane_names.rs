//! Names for the control plane: absolute ones have to differ. Source: P4_16 1.2.5, section 20.3.3.

use rustc_hash::FxHashSet;

use crate::ast::{AnnotationBody, AnnotationTree, DeclarationKind, DeclarationTree};
use crate::lex::TokenKind;
use crate::source::{SourceName, Symbol};

/// Absolute names of tables and actions.
#[derive(Debug, Default)]
pub(crate) struct PlaneNameTable {
    names: FxHashSet<(bool, Symbol)>,
    /// A table with an absolute name was added since the last call of `take_table`.
    has_table: bool,
}

impl PlaneNameTable {
    /// Adds a declaration; gives its name if another one has it.
    pub(crate) fn add(&mut self, declaration: &DeclarationTree, is_local: bool) -> Option<Symbol> {
        let is_table = match &declaration.kind {
            DeclarationKind::Action(..) => false,
            DeclarationKind::Table(_) => true,
            _ => return None,
        };
        let name = absolute_name(&declaration.name, &declaration.annotations, is_local)?;
        self.has_table |= is_table;
        // Programs that were translated from P4_14 declare the core library's action again.
        let is_taken = &*name != "NoAction" && !self.names.insert((is_table, name.clone()));
        is_taken.then_some(name)
    }

    /// Tells if a table was added since the last call.
    pub(crate) fn take_table(&mut self) -> bool {
        std::mem::take(&mut self.has_table)
    }
}

/// Name for the control plane that does not depend on the place of a declaration.
fn absolute_name(name: &SourceName, annotations: &[AnnotationTree], is_local: bool) -> Option<Symbol> {
    let annotation = annotations.iter().find(|annotation| &*annotation.name.text == "name");
    let given = annotation.and_then(|annotation| match &annotation.body {
        AnnotationBody::Unstructured(tokens) => match tokens.first().map(|token| &token.kind) {
            Some(TokenKind::Text(text)) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    });
    let given = given.unwrap_or_else(|| name.text.clone());
    match given.strip_prefix('.') {
        Some(absolute) => Some(absolute.into()),
        None => (!is_local).then_some(given),
    }
}
