//! A configuration as it was written, and its printed form, which reads as the same again.

use std::fmt::{self, Display, Formatter};

use crate::error::ConfigSpan;

/// A word with its place. Equality is of the word alone.
#[derive(Clone, Debug, Default)]
pub struct SpannedName {
    /// The word.
    pub text: String,
    /// Position in the configuration.
    pub span: ConfigSpan,
}

impl PartialEq for SpannedName {
    fn eq(&self, other: &SpannedName) -> bool {
        self.text == other.text
    }
}

impl Eq for SpannedName {}

/// A statement. Configuration strings are kept as they were written, as a [`SpannedName`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Statement {
    /// Declarations and connections: groups of endpoints and the arrows between them.
    Connection {
        /// The first endpoints.
        first: Vec<ConnectionEndpoint>,
        /// Arrow and endpoints, in order.
        rest: Vec<(ArrowKind, Vec<ConnectionEndpoint>)>,
    },
    /// `elementclass NAME { ... }`, or `elementclass NAME OTHER`.
    Class {
        /// The new name.
        name: SpannedName,
        /// The class it names.
        class: ClassExpr,
    },
    /// `define(...)`.
    Define(SpannedName),
    /// `require(...)`.
    Require(SpannedName),
    /// `provide ...`.
    Provide(SpannedName),
}

/// Matching of the two sides of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrowKind {
    /// `->`: one to one, many to one, one to many.
    One,
    /// `=>`: port by port.
    Many,
}

/// An element in a connection with the ports that are used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionEndpoint {
    /// In front.
    pub inputs: Option<Vec<u32>>,
    /// The element.
    pub what: ElementRef,
    /// Behind.
    pub outputs: Option<Vec<u32>>,
    /// Position in the configuration.
    pub span: IgnoredSpan,
}

/// A place that equality does not look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct IgnoredSpan(pub ConfigSpan);

impl PartialEq for IgnoredSpan {
    fn eq(&self, _: &IgnoredSpan) -> bool {
        true
    }
}

impl Eq for IgnoredSpan {}

/// An element at an end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ElementRef {
    /// Nothing: `input` at a connection's beginning, `output` at its end.
    Implied,
    /// An element that was declared, or a class without configuration.
    Word(SpannedName),
    /// `NAME :: CLASS`.
    Declared(SpannedName, ClassExpr),
    /// A class with configuration or a compound element, without a name.
    Anonymous(ClassExpr),
    /// `( ... )`.
    Group(Vec<Statement>),
}

/// A class of elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClassExpr {
    /// By name.
    Named(SpannedName, Option<SpannedName>),
    /// In braces.
    Compound(Vec<CompoundOverload>, Option<SpannedName>),
}

/// One definition of an overloaded compound element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompoundOverload {
    /// `...`: the previous meaning of the name.
    Before,
    /// Parameters and statements.
    Body {
        /// Parameters in order.
        parameters: Vec<FormalParameter>,
        /// Contents.
        statements: Vec<Statement>,
    },
}

/// A parameter of a compound element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormalParameter {
    /// The keyword, `__REST__` among them, or none for one by position.
    pub keyword: Option<String>,
    /// The variable, without dollar sign.
    pub variable: SpannedName,
}

fn list<T>(f: &mut Formatter<'_>, items: &[T], between: &str, each: impl Fn(&T) -> String) -> fmt::Result {
    f.write_str(&items.iter().map(each).collect::<Vec<_>>().join(between))
}

/// Prints a configuration.
pub fn print(statements: &[Statement]) -> String {
    statements.iter().map(|s| format!("{s};\n")).collect()
}

fn config(f: &mut Formatter<'_>, config: &Option<SpannedName>) -> fmt::Result {
    config.as_ref().map_or(Ok(()), |c| write!(f, "({})", c.text))
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Statement::Connection { first, rest } => {
                list(f, first, ", ", ToString::to_string)?;
                for (arrow, endpoints) in rest {
                    f.write_str(if *arrow == ArrowKind::One { " -> " } else { " => " })?;
                    list(f, endpoints, ", ", ToString::to_string)?;
                }
                Ok(())
            }
            Statement::Class { name, class } => write!(f, "elementclass {} {class}", name.text),
            Statement::Define(config) => write!(f, "define({})", config.text),
            Statement::Require(config) => write!(f, "require({})", config.text),
            Statement::Provide(word) => write!(f, "provide {}", word.text),
        }
    }
}

impl Display for ConnectionEndpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ports = |ports: &Option<Vec<u32>>| {
            let list = |ports: &Vec<u32>| {
                format!("[{}]", ports.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
            };
            ports.as_ref().map_or(String::new(), list)
        };
        write!(f, "{}{}{}", ports(&self.inputs), self.what, ports(&self.outputs))
    }
}

impl Display for ElementRef {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ElementRef::Implied => Ok(()),
            ElementRef::Word(name) => f.write_str(&name.text),
            ElementRef::Declared(name, class) => write!(f, "{} :: {class}", name.text),
            ElementRef::Anonymous(class) => write!(f, "{class}"),
            ElementRef::Group(statements) => {
                f.write_str("(")?;
                list(f, statements, "; ", ToString::to_string)?;
                f.write_str(")")
            }
        }
    }
}

impl Display for ClassExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ClassExpr::Named(name, arguments) => {
                f.write_str(&name.text)?;
                config(f, arguments)
            }
            ClassExpr::Compound(alternatives, arguments) => {
                f.write_str("{ ")?;
                list(f, alternatives, " || ", ToString::to_string)?;
                f.write_str(" }")?;
                config(f, arguments)
            }
        }
    }
}

impl Display for CompoundOverload {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            CompoundOverload::Before => f.write_str("..."),
            CompoundOverload::Body { parameters, statements } => {
                list(f, parameters, ", ", |p| {
                    let keyword = p.keyword.as_ref().map_or(String::new(), |k| format!("{k} "));
                    format!("{keyword}${}", p.variable.text)
                })?;
                f.write_str("| ")?;
                list(f, statements, "; ", ToString::to_string)
            }
        }
    }
}
