//! Puts the definition that fits in the place of a compound element.
//!
//! Invariant: a definition that was tried and does not fit leaves no node, connection or requirement.

use rustc_hash::FxHashSet;

use super::{ClassScope, FlatNode, Flattener, PendingCompound, VisibleClass, exact};
use crate::ast::{CompoundOverload, FormalParameter, Statement};
use crate::config::{ConfigVariables, SpannedText, arguments, balanced, words};
use crate::error::{ConfigSpan, Error};
use crate::graph::{Element, ElementConnection, ElementPort};

const DEEPEST: usize = 64;

impl Flattener {
    /// Expands an element by the definition of its class.
    pub(super) fn expand<'a>(&mut self, pending: PendingCompound<'a>) -> Result<(), Error> {
        if self.depth == DEEPEST {
            return Err(Error::new(pending.span, "compound elements are nested too deeply"));
        }
        self.depth += 1;
        let wanted = (self.used(pending.ends.input, |c| c.to), self.used(pending.ends.output, |c| c.from));
        let mut reasons = Vec::new();
        let found = self.class(&pending, &pending.class, wanted, &mut reasons)?;
        self.depth -= 1;
        if found {
            return Ok(());
        }
        let (inputs, outputs) = wanted;
        let what = format!("`{}` is used with {inputs} inputs and {outputs} outputs", pending.name);
        Err(Error::new(pending.span, format!("{what}, for which its class has no definition"))
            .help(reasons.join("; ")))
    }

    /// Expands by a class if a definition of it fits; reasons say why others do not.
    fn class<'a>(
        &mut self,
        pending: &PendingCompound<'a>,
        class: &VisibleClass<'a>,
        wanted: (u32, u32),
        reasons: &mut Vec<String>,
    ) -> Result<bool, Error> {
        let definition = match class {
            VisibleClass::Primitive(class) => {
                self.primitive(pending, class, wanted)?;
                return Ok(true);
            }
            VisibleClass::Compound(definition) => definition.clone(),
        };
        for alternative in definition.alternatives {
            let CompoundOverload::Body { parameters, statements } = alternative else {
                if let Some(before) = &definition.before
                    && self.class(pending, before, wanted, reasons)?
                {
                    return Ok(true);
                }
                continue;
            };
            match bind(parameters, pending) {
                Ok(bound) => {
                    let mut scope = definition.scope.clone();
                    scope.variables.extend(bound);
                    let first = (self.nodes.len(), self.connections.len());
                    if self.body(statements, scope, pending, wanted, reasons)? {
                        if definition.standard {
                            self.place(first, pending.span);
                        }
                        return Ok(true);
                    }
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Ok(false)
    }

    /// Says of nodes and connections from `first` on that they were written at this place.
    fn place(&mut self, first: (usize, usize), span: ConfigSpan) {
        for node in &mut self.nodes[first.0..] {
            if let FlatNode::Element(element) = node {
                element.span = span;
                element.arguments.iter_mut().for_each(|argument| argument.span = span);
            }
        }
        self.connections[first.1..].iter_mut().for_each(|connection| connection.span = span);
    }

    fn primitive(
        &mut self,
        pending: &PendingCompound<'_>,
        class: &str,
        wanted: (u32, u32),
    ) -> Result<(), Error> {
        let arguments = arguments(&pending.config.text, pending.config.span, exact(&pending.config));
        balanced(&arguments, pending.config.span)?;
        let element =
            Element { name: pending.name.clone(), class: class.to_owned(), arguments, span: pending.span };
        self.nodes.push(FlatNode::Element(element));
        let (node, span) = (self.nodes.len() - 1, pending.span);
        let port = |element, port| ElementPort { element, port };
        let inputs = (0..wanted.0).map(|p| (port(pending.ends.input, p), port(node, p)));
        let outputs = (0..wanted.1).map(|p| (port(node, p), port(pending.ends.output, p)));
        self.connections.extend(inputs.chain(outputs).map(|(from, to)| ElementConnection { from, to, span }));
        Ok(())
    }

    /// Expands one definition; takes it back and gives `false` if it has other ports than are wanted.
    fn body<'a>(
        &mut self,
        statements: &'a [Statement],
        mut scope: ClassScope<'a>,
        pending: &PendingCompound<'_>,
        wanted: (u32, u32),
        reasons: &mut Vec<String>,
    ) -> Result<bool, Error> {
        let before = (self.nodes.len(), self.connections.len(), self.requirements.len());
        self.defines(statements, &mut scope, &FxHashSet::default())?;
        self.scope(statements, format!("{}/", pending.name), scope, Some(pending.ends))?;
        let new = &self.connections[before.1..];
        let ports = |joint: usize, side: fn(&ElementConnection) -> ElementPort| -> FxHashSet<u32> {
            new.iter().map(side).filter(|p| p.element == joint).map(|p| p.port).collect()
        };
        let (inputs, outputs) = (ports(pending.ends.input, |c| c.from), ports(pending.ends.output, |c| c.to));
        let number = |ports: &FxHashSet<u32>| ports.iter().max().map_or(0, |p| p + 1);
        let has = (number(&inputs), number(&outputs));
        if (inputs.len(), outputs.len()) != (has.0 as usize, has.1 as usize) {
            return Err(Error::new(pending.span, "ports of a compound element must be used without gaps"));
        }
        if has == wanted {
            return Ok(true);
        }
        reasons.push(format!("a definition has {} inputs and {} outputs", has.0, has.1));
        self.nodes.truncate(before.0);
        self.connections.truncate(before.1);
        self.requirements.truncate(before.2);
        Ok(false)
    }
}

/// Gives parameters their values, or says why the arguments do not fit.
fn bind(parameters: &[FormalParameter], pending: &PendingCompound<'_>) -> Result<ConfigVariables, String> {
    let mut given = arguments(&pending.config.text, pending.config.span, false);
    let mut bound = ConfigVariables::default();
    for parameter in parameters {
        let (variable, keyword) = (&parameter.variable.text, parameter.keyword.as_deref());
        let value = match keyword {
            Some("__REST__") => {
                let rest: Vec<String> = given.drain(..).map(|a| a.text).collect();
                rest.join(", ")
            }
            Some(keyword) => {
                let first = |a: &SpannedText| words(a).first().is_some_and(|w| w.text == keyword);
                let at = given
                    .iter()
                    .position(first)
                    .ok_or_else(|| format!("the argument {keyword} is missing"))?;
                given.remove(at).text[keyword.len()..].trim().to_owned()
            }
            None if given.is_empty() => return Err(format!("the argument for `${variable}` is missing")),
            None => given.remove(0).text,
        };
        bound.insert(variable.clone(), value.into());
    }
    match given.first() {
        Some(extra) => Err(format!("there is no parameter for the argument `{}`", extra.text)),
        None => Ok(bound),
    }
}
