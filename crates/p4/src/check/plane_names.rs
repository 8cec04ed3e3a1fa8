//! Names for the control plane: absolute ones have to differ. Source: P4_16 1.2.5, section 20.3.3.

use crate::ast::{AnnotationBody, AnnotationTree, DeclarationKind, DeclarationTree, SourceName};
use crate::check::{CheckedPart, TypeChecker};
use crate::lex::TokenKind;
use crate::source::Symbol;

impl TypeChecker<'_> {
    /// Checks that no other action or table has the absolute name of a declaration.
    pub(crate) fn check_plane_name(&mut self, declaration: &DeclarationTree) {
        let is_table = match &declaration.kind {
            DeclarationKind::Action(..) => false,
            DeclarationKind::Table(_) => true,
            _ => return,
        };
        let is_local = self.part != CheckedPart::TopLevel;
        let Some(name) = absolute_name(&declaration.name, &declaration.annotations, is_local) else { return };
        self.has_absolute_table |= is_table;
        // Programs that were translated from P4_14 declare the core library's action again.
        if &*name != "NoAction" && !self.plane_names.insert((is_table, name.clone())) {
            let message = format!("another declaration has the name `{name}` for the control plane");
            self.error(declaration.name.span, message);
        }
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
