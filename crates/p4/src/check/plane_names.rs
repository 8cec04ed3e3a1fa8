//! Names for the control plane: absolute ones have to differ. Source: P4_16 1.2.5, section 20.3.3.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ast::{AnnotationBody, AnnotationTree, DeclarationKind, DeclarationTree};
use crate::check::types::NominalId;
use crate::lex::TokenKind;
use crate::source::{SourceName, Symbol};

/// Absolute names of tables and actions.
#[derive(Debug, Default)]
pub(crate) struct PlaneNameTable {
    names: FxHashSet<(bool, Symbol)>,
    /// A table with an absolute name was added since the last control ended.
    has_table: bool,
    /// Controls that have such tables, and if there is an instance.
    controls: FxHashMap<NominalId, bool>,
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

    /// Ends a control, to which the tables since the last one belong.
    pub(crate) fn end_control(&mut self, control: NominalId) {
        if std::mem::take(&mut self.has_table) {
            self.controls.insert(control, false);
        }
    }

    /// Adds an instance; tells if it is the second of a control that has tables with absolute names.
    pub(crate) fn add_instance(&mut self, block: NominalId) -> bool {
        self.controls.get_mut(&block).is_some_and(|has_instance| std::mem::replace(has_instance, true))
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
