//! Checks that no element has the name of a class that was used before, in any definition.

use rustc_hash::FxHashSet;

use super::{chained, declared};
use crate::ast::{ClassExpr, CompoundOverload, ElementRef, SpannedName, Statement};
use crate::error::Error;

/// Classes that were used so far, and elements with such names.
#[derive(Default)]
struct ClassNames<'a> {
    used: FxHashSet<&'a str>,
    errors: Vec<Error>,
}

/// Checks the names of all elements, those of compound elements that are never used included.
pub(super) fn check(statements: &[Statement]) -> Result<(), Error> {
    let mut names = ClassNames::default();
    names.scope(statements);
    chained(names.errors)
}

impl<'a> ClassNames<'a> {
    fn scope(&mut self, statements: &'a [Statement]) {
        let mut own = FxHashSet::default();
        declared(statements, &mut own);
        self.statements(statements, &own);
    }

    fn statements(&mut self, statements: &'a [Statement], own: &FxHashSet<&'a str>) {
        for statement in statements {
            match statement {
                Statement::Connection { first, rest } => {
                    for endpoint in first.iter().chain(rest.iter().flat_map(|(_, all)| all)) {
                        self.element(&endpoint.what, own);
                    }
                }
                Statement::Class { class, .. } => self.class(class),
                Statement::Define(_) | Statement::Require(_) | Statement::Provide(_) => {}
            }
        }
    }

    fn element(&mut self, element: &'a ElementRef, own: &FxHashSet<&'a str>) {
        match element {
            ElementRef::Word(name) => {
                let name = name.text.as_str();
                if !own.contains(name) && !["input", "output"].contains(&name) {
                    self.used.insert(name);
                }
            }
            ElementRef::Declared(name, class) => {
                self.class(class);
                self.declaration(name);
            }
            ElementRef::Anonymous(class) => self.class(class),
            ElementRef::Group(statements) => self.statements(statements, own),
            ElementRef::Implied => {}
        }
    }

    fn declaration(&mut self, name: &SpannedName) {
        if self.used.contains(name.text.as_str()) {
            let message = format!("class '{}' used as element name", name.text);
            self.errors.push(Error::new(name.span, message));
        }
    }

    fn class(&mut self, class: &'a ClassExpr) {
        match class {
            ClassExpr::Named(name, _) => drop(self.used.insert(&name.text)),
            ClassExpr::Compound(alternatives, _) => {
                for alternative in alternatives {
                    if let CompoundOverload::Body { statements, .. } = alternative {
                        self.scope(statements);
                    }
                }
            }
        }
    }
}
