//! A configuration as it was written, and its printed form, which reads as the same again.

use std::fmt::{self, Display, Formatter};

use crate::error::Span;

/// A word with its place. Equality is of the word alone.
#[derive(Clone, Debug, Default)]
pub struct Name {
    /// The word.
    pub text: String,
    /// Position in the configuration.
    pub span: Span,
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.text == other.text
    }
}

impl Eq for Name {}

/// A statement. Configuration strings are kept as they were written, as a [`Name`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Statement {
    /// Declarations and connections: groups of endpoints and the arrows between them.
    Connection {
        /// The first endpoints.
        first: Vec<Endpoint>,
        /// Arrow and endpoints, in order.
        rest: Vec<(Arrow, Vec<Endpoint>)>,
    },
    /// `elementclass NAME { ... }`, or `elementclass NAME OTHER`.
    Class {
        /// The new name.
        name: Name,
        /// The class it names.
        class: Class,
    },
    /// `define(...)`.
    Define(Name),
    /// `require(...)`.
    Require(Name),
    /// `provide ...`.
    Provide(Name),
}

/// Matching of the two sides of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrow {
    /// `->`: one to one, many to one, one to many.
    One,
    /// `=>`: port by port.
    Many,
}

/// An element in a connection with the ports that are used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// In front.
    pub inputs: Option<Vec<u32>>,
    /// The element.
    pub what: What,
    /// Behind.
    pub outputs: Option<Vec<u32>>,
    /// Position in the configuration.
    pub span: Where,
}

/// A place that equality does not look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Where(pub Span);

impl PartialEq for Where {
    fn eq(&self, _: &Where) -> bool {
        true
    }
}

impl Eq for Where {}

/// An element at an end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// Nothing: `input` at a connection's beginning, `output` at its end.
    Implied,
    /// An element that was declared, or a class without configuration.
    Word(Name),
    /// `NAME :: CLASS`.
    Declared(Name, Class),
    /// A class with configuration or a compound element, without a name.
    Anonymous(Class),
    /// `( ... )`.
    Group(Vec<Statement>),
}

/// A class of elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Class {
    /// By name.
    Named(Name, Option<Name>),
    /// In braces.
    Compound(Vec<Alternative>, Option<Name>),
}

/// One definition of an overloaded compound element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Alternative {
    /// `...`: the previous meaning of the name.
    Before,
    /// Parameters and statements.
    Body {
        /// Parameters in order.
        parameters: Vec<Parameter>,
        /// Contents.
        statements: Vec<Statement>,
    },
}

/// A parameter of a compound element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// The keyword, `__REST__` among them, or none for one by position.
    pub keyword: Option<String>,
    /// The variable, without dollar sign.
    pub variable: Name,
}

fn list<T>(f: &mut Formatter<'_>, items: &[T], between: &str, each: impl Fn(&T) -> String) -> fmt::Result {
    f.write_str(&items.iter().map(each).collect::<Vec<_>>().join(between))
}

/// Prints a configuration.
pub fn print(statements: &[Statement]) -> String {
    statements.iter().map(|s| format!("{s};\n")).collect()
}

fn config(f: &mut Formatter<'_>, config: &Option<Name>) -> fmt::Result {
    config.as_ref().map_or(Ok(()), |c| write!(f, "({})", c.text))
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Statement::Connection { first, rest } => {
                list(f, first, ", ", ToString::to_string)?;
                for (arrow, endpoints) in rest {
                    f.write_str(if *arrow == Arrow::One { " -> " } else { " => " })?;
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

impl Display for Endpoint {
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

impl Display for What {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            What::Implied => Ok(()),
            What::Word(name) => f.write_str(&name.text),
            What::Declared(name, class) => write!(f, "{} :: {class}", name.text),
            What::Anonymous(class) => write!(f, "{class}"),
            What::Group(statements) => {
                f.write_str("(")?;
                list(f, statements, "; ", ToString::to_string)?;
                f.write_str(")")
            }
        }
    }
}

impl Display for Class {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Class::Named(name, arguments) => {
                f.write_str(&name.text)?;
                config(f, arguments)
            }
            Class::Compound(alternatives, arguments) => {
                f.write_str("{ ")?;
                list(f, alternatives, " || ", ToString::to_string)?;
                f.write_str(" }")?;
                config(f, arguments)
            }
        }
    }
}

impl Display for Alternative {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Alternative::Before => f.write_str("..."),
            Alternative::Body { parameters, statements } => {
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
