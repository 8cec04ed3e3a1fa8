//! Takes compound elements apart: statements to a [`Graph`].
//!
//! Every compound element and group becomes two joints, for its inputs and its outputs; connections end and
//! begin at joints until all is expanded, and are then followed through them.
//!
//! Invariants: scopes are lexical (a definition keeps the classes and variables that were visible at its
//! position, so none is recursive); the number of elements and connections, and the text that variables
//! become, are limited, whatever the definitions multiply to.

mod class_names;
mod expand;

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ast::{
    ArrowKind, ClassExpr, CompoundOverload, ConnectionEndpoint, ElementRef, SpannedName, Statement,
};
use crate::config::{ConfigVariables, ExpansionBudget, SpannedText, arguments, balanced, substitute};
use crate::error::{ConfigSpan, Error};
use crate::graph::{Element, ElementConnection, ElementPort, Graph};
use crate::parse::parse;

const MOST_ELEMENTS: usize = 1 << 16;
const MOST_CONNECTIONS: usize = 1 << 18;
/// Elements that are made and taken back, since a definition did not fit, count, too.
const MOST_MADE: usize = 1 << 18;

/// A class as it is visible somewhere.
#[derive(Clone)]
enum VisibleClass<'a> {
    Primitive(String),
    Compound(Rc<CompoundClass<'a>>),
}

/// A compound class with all that was visible where it was written.
struct CompoundClass<'a> {
    alternatives: &'a [CompoundOverload],
    /// Meaning of `...`.
    before: Option<VisibleClass<'a>>,
    scope: ClassScope<'a>,
    /// One of [`STANDARD`]: places in it are none in the configuration.
    standard: bool,
}

/// Elements that are others put together.
const STANDARD: &str = include_str!("standard.click");

#[derive(Clone, Default)]
struct ClassScope<'a> {
    classes: FxHashMap<String, VisibleClass<'a>>,
    variables: ConfigVariables,
}

enum FlatNode {
    Element(Element),
    Joint,
}

/// An element in a scope: where connections to it end, and where those from it begin.
#[derive(Clone, Copy)]
struct NodePair {
    input: usize,
    output: usize,
}

/// A compound element that is to be expanded.
struct PendingCompound<'a> {
    name: String,
    class: VisibleClass<'a>,
    config: SpannedName,
    ends: NodePair,
    span: ConfigSpan,
}

/// The state of one scope that is being read.
struct ScopeFrame<'a> {
    prefix: String,
    scope: ClassScope<'a>,
    names: FxHashMap<String, NodePair>,
    /// Names that are declared anywhere in the scope.
    declared: FxHashSet<&'a str>,
    /// Meanings of `input` and `output`, innermost last.
    ports: Vec<NodePair>,
    pending: Vec<PendingCompound<'a>>,
    count: usize,
}

/// An endpoint with the ports it offers to either side.
struct ResolvedEndpoint {
    ends: NodePair,
    inputs: Option<Vec<u32>>,
    outputs: Option<Vec<u32>>,
    /// True if its ports are those of a group, which are not written.
    is_group: bool,
    span: ConfigSpan,
}

#[derive(Default)]
struct Flattener {
    nodes: Vec<FlatNode>,
    connections: Vec<ElementConnection>,
    requirements: Vec<SpannedText>,
    depth: usize,
    /// Elements that were ever made.
    made: usize,
    /// Bytes that variables may still become.
    text: ExpansionBudget,
    /// Statements that do not connect as they say; reading goes on behind them.
    mismatches: Vec<Error>,
}

/// Makes the graph of a configuration. `variables` are those that come from outside; they win over `define`.
///
/// # Errors
/// The first thing that does not fit.
pub fn flatten(statements: &[Statement], variables: &[(String, String)]) -> Result<Graph, Error> {
    class_names::check(statements)?;
    let standard = parse(STANDARD)?;
    let mut scope = ClassScope {
        variables: variables.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect(),
        ..ClassScope::default()
    };
    scope.classes = standard_classes(&standard);
    let outside: FxHashSet<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
    let mut flattener = Flattener::default();
    flattener.defines(statements, &mut scope, &outside)?;
    flattener.scope(statements, String::new(), scope, None)?;
    flattener.finish()
}

/// The classes of [`STANDARD`]. Those of a configuration with the same names win.
fn standard_classes(statements: &[Statement]) -> FxHashMap<String, VisibleClass<'_>> {
    let mut classes = FxHashMap::default();
    for statement in statements {
        if let Statement::Class { name, class: ClassExpr::Compound(alternatives, _) } = statement {
            let definition =
                CompoundClass { alternatives, before: None, scope: ClassScope::default(), standard: true };
            classes.insert(name.text.clone(), VisibleClass::Compound(Rc::new(definition)));
        }
    }
    classes
}

/// Names that statements declare, those in groups included.
fn declared<'a>(statements: &'a [Statement], into: &mut FxHashSet<&'a str>) {
    for statement in statements {
        let Statement::Connection { first, rest } = statement else { continue };
        for endpoint in first.iter().chain(rest.iter().flat_map(|(_, all)| all)) {
            match &endpoint.what {
                ElementRef::Declared(name, _) => drop(into.insert(&name.text)),
                ElementRef::Group(inner) => declared(inner, into),
                _ => {}
            }
        }
        if is_declaration(first, rest) {
            into.extend(first.iter().filter_map(|e| match &e.what {
                ElementRef::Word(name) => Some(name.text.as_str()),
                _ => None,
            }));
        }
    }
}

/// Returns true if a statement is `a, b, c :: CLASS`.
fn is_declaration(first: &[ConnectionEndpoint], rest: &[(ArrowKind, Vec<ConnectionEndpoint>)]) -> bool {
    let Some((last, names)) = first.split_last() else { return false };
    let bare = |e: &ConnectionEndpoint| e.inputs.is_none() && e.outputs.is_none();
    rest.is_empty()
        && matches!(last.what, ElementRef::Declared(..))
        && names.iter().all(|e| bare(e) && matches!(e.what, ElementRef::Word(_)))
}

impl Flattener {
    fn joint(&mut self) -> usize {
        self.nodes.push(FlatNode::Joint);
        self.nodes.len() - 1
    }

    /// Reads the definitions of a scope, which hold in all of it.
    fn defines(
        &mut self,
        statements: &[Statement],
        scope: &mut ClassScope<'_>,
        fixed: &FxHashSet<&str>,
    ) -> Result<(), Error> {
        let mut seen = FxHashSet::default();
        for statement in statements {
            let Statement::Define(config) = statement else { continue };
            for argument in expand(config, &ConfigVariables::default(), &mut self.text)? {
                let mut parts = argument.text.splitn(2, |c: char| c.is_ascii_whitespace());
                let name = parts.next().and_then(|n| n.strip_prefix('$')).filter(|n| !n.is_empty());
                let name = name.ok_or_else(|| Error::new(argument.span, "expected `$NAME VALUE`"))?;
                if !seen.insert(name.to_owned()) {
                    return Err(Error::new(
                        argument.span,
                        format!("`${name}` is defined twice in this scope"),
                    ));
                }
                if fixed.contains(name) {
                    continue;
                }
                let value =
                    SpannedName { text: parts.next().unwrap_or("").trim().to_owned(), span: argument.span };
                let (value, _) = substitute(&value, &scope.variables, &mut self.text)?;
                scope.variables.insert(name.to_owned(), value.into());
            }
        }
        Ok(())
    }

    /// Reads the statements of a scope and expands its elements.
    fn scope<'a>(
        &mut self,
        statements: &'a [Statement],
        prefix: String,
        scope: ClassScope<'a>,
        ports: Option<NodePair>,
    ) -> Result<(), Error> {
        let mut frame = ScopeFrame {
            prefix,
            scope,
            names: FxHashMap::default(),
            declared: FxHashSet::default(),
            ports: ports.into_iter().collect(),
            pending: Vec::new(),
            count: 0,
        };
        declared(statements, &mut frame.declared);
        self.statements(statements, &mut frame)?;
        // In Click's order: those inside compound elements come last.
        let is_primitive =
            |pending: &PendingCompound<'_>| matches!(pending.class, VisibleClass::Primitive(_));
        let (primitive, compound): (Vec<_>, Vec<_>) = frame.pending.into_iter().partition(is_primitive);
        for pending in primitive.into_iter().chain(compound) {
            self.expand(pending)?;
        }
        Ok(())
    }

    fn statements<'a>(
        &mut self,
        statements: &'a [Statement],
        frame: &mut ScopeFrame<'a>,
    ) -> Result<(), Error> {
        for statement in statements {
            match statement {
                Statement::Connection { first, rest } => self.connection(first, rest, frame)?,
                Statement::Class { name, class } => {
                    let class = visible(class, &name.text, &frame.scope);
                    frame.scope.classes.insert(name.text.clone(), class);
                }
                Statement::Require(config) => {
                    let required = expand(config, &frame.scope.variables, &mut self.text)?;
                    balanced(&required, config.span)?;
                    self.requirements.extend(required);
                }
                Statement::Define(_) | Statement::Provide(_) => {}
            }
        }
        Ok(())
    }

    fn connection<'a>(
        &mut self,
        first: &'a [ConnectionEndpoint],
        rest: &'a [(ArrowKind, Vec<ConnectionEndpoint>)],
        frame: &mut ScopeFrame<'a>,
    ) -> Result<(), Error> {
        if is_declaration(first, rest)
            && let Some((last, names)) = first.split_last()
            && let ElementRef::Declared(_, class) = &last.what
        {
            for endpoint in names {
                if let ElementRef::Word(name) = &endpoint.what {
                    self.declare(name, class, frame)?;
                }
            }
        }
        let declares = is_declaration(first, rest);
        let from = if declares { first.len() - 1 } else { 0 };
        let mut left = self.sides(&first[from..], frame, 0, rest.len())?;
        for (at, (arrow, endpoints)) in rest.iter().enumerate() {
            let right = self.sides(endpoints, frame, at + 1, rest.len())?;
            self.connect(*arrow, &left, &right)?;
            left = right;
        }
        Ok(())
    }

    fn sides<'a>(
        &mut self,
        endpoints: &'a [ConnectionEndpoint],
        frame: &mut ScopeFrame<'a>,
        at: usize,
        last: usize,
    ) -> Result<Vec<ResolvedEndpoint>, Error> {
        endpoints.iter().map(|e| self.side(e, frame, at, last)).collect()
    }

    /// An endpoint of group `at` of a connection whose last group is `last`.
    fn side<'a>(
        &mut self,
        endpoint: &'a ConnectionEndpoint,
        frame: &mut ScopeFrame<'a>,
        at: usize,
        last: usize,
    ) -> Result<ResolvedEndpoint, Error> {
        let span = endpoint.span.0;
        let (mut inputs, mut outputs) = (endpoint.inputs.clone(), endpoint.outputs.clone());
        let around = || frame.ports.last().copied();
        let outside = || {
            Error::new(span, "syntax error near '->'")
                .help("nothing is named here, and there is no compound element around it")
        };
        let ends = match &endpoint.what {
            ElementRef::Implied if at == 0 => {
                outputs = inputs.take();
                let ends = around().ok_or_else(outside)?;
                NodePair { input: usize::MAX, output: ends.input }
            }
            ElementRef::Implied => {
                let ends = around().ok_or_else(outside)?;
                NodePair { input: ends.output, output: usize::MAX }
            }
            ElementRef::Word(name) => self.word(name, frame)?,
            ElementRef::Declared(name, class) => self.declare(name, class, frame)?,
            ElementRef::Anonymous(class) => self.anonymous(class, span, frame)?,
            ElementRef::Group(statements) => {
                let ends = NodePair { input: self.joint(), output: self.joint() };
                frame.ports.push(ends);
                self.statements(statements, frame)?;
                frame.ports.pop();
                inputs.get_or_insert((0..self.used(ends.input, |c| c.from)).collect());
                outputs.get_or_insert((0..self.used(ends.output, |c| c.to)).collect());
                ends
            }
        };
        if at > 0 && ends.input == usize::MAX {
            return Err(Error::new(span, "`input` has no inputs"));
        }
        if at < last && ends.output == usize::MAX {
            return Err(Error::new(span, "`output` has no outputs"));
        }
        let is_group = matches!(endpoint.what, ElementRef::Group(_));
        Ok(ResolvedEndpoint { ends, inputs, outputs, is_group, span })
    }

    /// Ports of a joint that connections on one of its sides use: the highest number and one.
    fn used(&self, joint: usize, side: impl Fn(&ElementConnection) -> ElementPort) -> u32 {
        self.connections
            .iter()
            .map(side)
            .filter(|p| p.element == joint)
            .map(|p| p.port + 1)
            .max()
            .unwrap_or(0)
    }

    fn word<'a>(&mut self, name: &'a SpannedName, frame: &mut ScopeFrame<'a>) -> Result<NodePair, Error> {
        if let Some(ends) = frame.names.get(&name.text) {
            return Ok(*ends);
        }
        if let (Some(ports), "input" | "output") = (frame.ports.last(), name.text.as_str()) {
            return Ok(match name.text.as_str() {
                "input" => NodePair { input: usize::MAX, output: ports.input },
                _ => NodePair { input: ports.output, output: usize::MAX },
            });
        }
        if frame.declared.contains(name.text.as_str()) {
            // Declared later: its class is known then.
            let ends = NodePair { input: self.joint(), output: self.joint() };
            frame.names.insert(name.text.clone(), ends);
            return Ok(ends);
        }
        let class = frame.scope.classes.get(&name.text).cloned();
        let class = class.unwrap_or_else(|| VisibleClass::Primitive(name.text.clone()));
        let config = SpannedName { text: String::new(), span: name.span };
        self.make(Err(&name.text), class, config, name.span, frame)
    }

    fn declare<'a>(
        &mut self,
        name: &'a SpannedName,
        class: &'a ClassExpr,
        frame: &mut ScopeFrame<'a>,
    ) -> Result<NodePair, Error> {
        let (class, config) = class_of(class, frame);
        self.make(Ok(name), class, config, name.span, frame)
    }

    fn anonymous<'a>(
        &mut self,
        class: &'a ClassExpr,
        span: ConfigSpan,
        frame: &mut ScopeFrame<'a>,
    ) -> Result<NodePair, Error> {
        let stem = if let ClassExpr::Named(name, _) = class { name.text.as_str() } else { "" };
        let (class, config) = class_of(class, frame);
        self.make(Err(stem), class, config, span, frame)
    }

    /// Makes an element with this name, or without a name and of this class. One that was referred to before
    /// has joints already, which then lead to it.
    fn make<'a>(
        &mut self,
        name: Result<&SpannedName, &str>,
        class: VisibleClass<'a>,
        config: SpannedName,
        span: ConfigSpan,
        frame: &mut ScopeFrame<'a>,
    ) -> Result<NodePair, Error> {
        self.made += 1;
        if self.nodes.len() >= MOST_ELEMENTS || self.made > MOST_MADE {
            return Err(Error::new(span, format!("more than {MOST_ELEMENTS} elements")));
        }
        frame.count += 1;
        let local = name.map_or_else(|stem| format!("{stem}@{}", frame.count), |n| n.text.clone());
        let name = name.ok();
        let before = name.and_then(|n| frame.names.get(&n.text).copied());
        let again = before.is_some_and(|_| name.is_some_and(|n| !frame.declared.remove(n.text.as_str())));
        if again {
            let error = Error::new(span, format!("redeclaration of element '{local}'"));
            let before = frame.pending.iter().find(|other| other.name == format!("{}{local}", frame.prefix));
            return Err(match before {
                Some(before) => {
                    error.note(before.span, format!("element '{local}' previously declared here"))
                }
                None => error,
            });
        }
        frame.declared.remove(local.as_str());
        let ends = before.unwrap_or_else(|| NodePair { input: self.joint(), output: self.joint() });
        let pending = PendingCompound {
            name: format!("{}{local}", frame.prefix),
            class,
            config: resolved(config, frame, &mut self.text)?,
            ends,
            span,
        };
        frame.names.insert(local, ends);
        frame.pending.push(pending);
        Ok(ends)
    }

    fn connect(
        &mut self,
        arrow: ArrowKind,
        left: &[ResolvedEndpoint],
        right: &[ResolvedEndpoint],
    ) -> Result<(), Error> {
        let span = left[0].span.to(right[right.len() - 1].span);
        // `[]` is as many ports as the other side has.
        let expands = |ports: &Option<Vec<u32>>| ports.as_ref().is_some_and(Vec::is_empty);
        let ends = left.iter().map(|s| &s.outputs).chain(right.iter().map(|s| &s.inputs));
        if ends.filter(|ports| expands(ports)).count() > 1 {
            let message = "at most one expandable port allowed per connection";
            self.mismatches.push(Error::new(span, message));
            return Ok(());
        }
        let count = |sides: &[ResolvedEndpoint], ports: fn(&ResolvedEndpoint) -> &Option<Vec<u32>>| match (
            arrow, sides,
        ) {
            (ArrowKind::Many, [one]) if ports(one).as_ref().is_none_or(Vec::is_empty) => None,
            _ => Some(sides.iter().map(|s| ports(s).as_ref().map_or(1, Vec::len)).sum::<usize>()),
        };
        let (outputs, inputs) = (count(left, |s| &s.outputs), count(right, |s| &s.inputs));
        let sequence = outputs.or(inputs).unwrap_or(1).max(inputs.unwrap_or(0));
        let from = list(left, sequence, outputs.is_none(), |s| (s.ends.output, &s.outputs));
        let to = list(right, sequence, inputs.is_none(), |s| (s.ends.input, &s.inputs));
        let pairs: Vec<(ElementPort, ElementPort)> = match arrow {
            ArrowKind::Many if from.len() == to.len() => from.into_iter().zip(to).collect(),
            ArrowKind::One if from.len() == 1 || to.len() == 1 => {
                from.iter().flat_map(|f| to.iter().map(|t| (*f, *t))).collect()
            }
            // Ports of groups that are the same number on both sides go one to one.
            ArrowKind::One if from.len() == to.len() && is_between_groups(left, right) => {
                from.into_iter().zip(to).collect()
            }
            _ => {
                let (n, m) = (from.len(), to.len());
                self.mismatches.push(match arrow {
                    ArrowKind::One => Error::new(span, "syntax error: many-to-many connections require '=>'")
                        .help("`=>` connects as many outputs to as many inputs, one by one"),
                    ArrowKind::Many => {
                        let message = format!("connection mismatch: {n} outputs connected to {m} inputs");
                        Error::new(span, message)
                    }
                });
                return Ok(());
            }
        };
        if self.connections.len() + pairs.len() > MOST_CONNECTIONS {
            return Err(Error::new(span, format!("more than {MOST_CONNECTIONS} connections")));
        }
        self.connections.extend(pairs.into_iter().map(|(from, to)| ElementConnection { from, to, span }));
        Ok(())
    }

    /// Follows connections through joints.
    fn finish(mut self) -> Result<Graph, Error> {
        chained(std::mem::take(&mut self.mismatches))?;
        let mut next: FxHashMap<ElementPort, Vec<(ElementPort, ConfigSpan)>> = FxHashMap::default();
        for c in &self.connections {
            next.entry(c.from).or_default().push((c.to, c.span));
        }
        let mut place = vec![usize::MAX; self.nodes.len()];
        let mut graph = Graph { requirements: self.requirements, ..Graph::default() };
        for (at, node) in self.nodes.into_iter().enumerate() {
            if let FlatNode::Element(element) = node {
                place[at] = graph.elements.len();
                graph.elements.push(element);
            }
        }
        let mut made = FxHashSet::default();
        for c in self.connections.iter().filter(|c| place[c.from.element] != usize::MAX) {
            let from = ElementPort { element: place[c.from.element], port: c.from.port };
            // The place is that of the first connection that was written, behind the element's own joint.
            let (mut open, mut seen) = (vec![(c.to, None)], FxHashSet::default());
            while let Some((to, span)) = open.pop() {
                if !seen.insert(to) {
                    continue;
                }
                if place[to.element] == usize::MAX {
                    let further = next.get(&to).map_or(&[][..], Vec::as_slice).iter().rev();
                    open.extend(further.map(|(to, written)| (*to, span.or(Some(*written)))));
                    continue;
                }
                let to = ElementPort { element: place[to.element], port: to.port };
                if made.insert((from, to)) {
                    graph.connections.push(ElementConnection { from, to, span: span.unwrap_or(c.span) });
                }
            }
            if graph.connections.len() > MOST_CONNECTIONS {
                return Err(Error::new(c.span, format!("more than {MOST_CONNECTIONS} connections")));
            }
        }
        Ok(graph)
    }
}

/// The first of several errors, if there is one: each names the next.
fn chained(mut errors: Vec<Error>) -> Result<(), Error> {
    let Some(last) = errors.pop() else { return Ok(()) };
    Err(errors.into_iter().rev().fold(last, |next, one| {
        let (span, message) = (next.span, next.message);
        one.note(span, message)
    }))
}

/// Returns true if one endpoint is connected with one, and a group is among them.
fn is_between_groups(left: &[ResolvedEndpoint], right: &[ResolvedEndpoint]) -> bool {
    matches!((left, right), ([one], [other]) if one.is_group || other.is_group)
}

/// The ports of one side, in order. `sequence` of one element where it is `implied`.
fn list<'s>(
    sides: &'s [ResolvedEndpoint],
    sequence: usize,
    implied: bool,
    ports: impl Fn(&'s ResolvedEndpoint) -> (usize, &'s Option<Vec<u32>>),
) -> Vec<ElementPort> {
    sides
        .iter()
        .flat_map(|side| {
            let (element, named) = ports(side);
            let numbers = match named {
                Some(numbers) if !numbers.is_empty() => numbers.clone(),
                _ if implied => (0..sequence as u32).collect(),
                _ => vec![0],
            };
            numbers.into_iter().map(move |port| ElementPort { element, port })
        })
        .collect()
}

/// A class as the scope sees it.
fn visible<'a>(class: &'a ClassExpr, name: &str, scope: &ClassScope<'a>) -> VisibleClass<'a> {
    match class {
        ClassExpr::Named(name, _) => scope
            .classes
            .get(&name.text)
            .cloned()
            .unwrap_or_else(|| VisibleClass::Primitive(name.text.clone())),
        ClassExpr::Compound(alternatives, _) => {
            let before = scope.classes.get(name).cloned();
            let before =
                before.or_else(|| (!name.is_empty()).then(|| VisibleClass::Primitive(name.to_owned())));
            VisibleClass::Compound(Rc::new(CompoundClass {
                alternatives,
                before,
                scope: scope.clone(),
                standard: false,
            }))
        }
    }
}

fn class_of<'a>(class: &'a ClassExpr, frame: &ScopeFrame<'a>) -> (VisibleClass<'a>, SpannedName) {
    let config = match class {
        ClassExpr::Named(name, config) => {
            config.clone().unwrap_or_else(|| SpannedName { text: String::new(), span: name.span })
        }
        ClassExpr::Compound(_, config) => config.clone().unwrap_or_default(),
    };
    (visible(class, "", &frame.scope), config)
}

/// A configuration string with its variables replaced.
fn resolved(
    config: SpannedName,
    frame: &ScopeFrame<'_>,
    budget: &mut ExpansionBudget,
) -> Result<SpannedName, Error> {
    let (text, _) = substitute(&config, &frame.scope.variables, budget)?;
    Ok(SpannedName { text, span: config.span })
}

/// Returns true if positions in a string are positions in the configuration: no variable was replaced in it.
fn exact(config: &SpannedName) -> bool {
    config.text.len() == config.span.end - config.span.start
}

fn expand(
    config: &SpannedName,
    variables: &ConfigVariables,
    budget: &mut ExpansionBudget,
) -> Result<Vec<SpannedText>, Error> {
    let (text, changed) = substitute(config, variables, budget)?;
    Ok(arguments(&text, config.span, !changed))
}
