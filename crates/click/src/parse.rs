//! Reads configurations. Source: click(5).

use crate::ast::{
    ArrowKind, ClassExpr, CompoundOverload, ConnectionEndpoint, ElementRef, FormalParameter, IgnoredSpan,
    SpannedName, Statement,
};
use crate::error::{ConfigSpan, Error};
use crate::lex::{Lexer, Token};

/// Braces and groups inside each other, at most.
const DEEPEST: u32 = 64;
/// The highest port number.
const MOST_PORTS: u32 = 1024;

const KEYWORDS: [&str; 4] = ["elementclass", "define", "require", "provide"];

/// Reads a configuration.
///
/// # Errors
/// The first thing that is no statement.
pub fn parse(text: &str) -> Result<Vec<Statement>, Error> {
    let mut parser = ConfigParser {
        lexer: Lexer::new(text),
        now: (Token::End, ConfigSpan::default()),
        before: 0,
        depth: 0,
    };
    parser.advance()?;
    let statements = parser.statements()?;
    match parser.now.0 {
        Token::End => Ok(statements),
        _ => Err(parser.unexpected("a statement")),
    }
}

struct ConfigParser<'t> {
    lexer: Lexer<'t>,
    now: (Token<'t>, ConfigSpan),
    /// End of the previous token.
    before: usize,
    depth: u32,
}

impl<'t> ConfigParser<'t> {
    fn advance(&mut self) -> Result<(), Error> {
        self.before = self.now.1.end;
        self.now = self.lexer.next()?;
        Ok(())
    }

    fn is(&self, mark: &str) -> bool {
        matches!(self.now.0, Token::Mark(m) if m == mark)
    }

    fn take(&mut self, mark: &str) -> Result<bool, Error> {
        let found = self.is(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, mark: &str) -> Result<(), Error> {
        if self.take(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    fn unexpected(&self, expected: &str) -> Error {
        Error::new(self.now.1, format!("expected {expected}, found {}", self.now.0.describe()))
    }

    fn word(&mut self, what: &str) -> Result<SpannedName, Error> {
        let Token::Word(text) = self.now.0 else { return Err(self.unexpected(what)) };
        let name = SpannedName { text: text.to_owned(), span: self.now.1 };
        if text.split('/').any(|part| part.bytes().all(|b| b.is_ascii_digit())) {
            return Err(Error::new(name.span, format!("`{text}` is no name: a part of it is a number")));
        }
        if KEYWORDS.contains(&text) {
            return Err(Error::new(name.span, format!("`{text}` is a keyword and no name")));
        }
        self.advance()?;
        Ok(name)
    }

    /// The configuration string, if a parenthesis is next.
    fn config(&mut self) -> Result<Option<SpannedName>, Error> {
        if !self.is("(") {
            return Ok(None);
        }
        let (text, span) = self.lexer.config()?;
        self.now.1.end = span.end + 1;
        self.advance()?;
        Ok(Some(SpannedName { text: text.to_owned(), span }))
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth == DEEPEST {
            return Err(Error::new(self.now.1, "compound elements and groups are nested too deeply"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn statements(&mut self) -> Result<Vec<Statement>, Error> {
        let mut statements = Vec::new();
        loop {
            while self.take(";")? {}
            match self.now.0 {
                Token::End | Token::Mark("}" | ")" | "||") => return Ok(statements),
                Token::Word("elementclass") => statements.push(self.element_class()?),
                Token::Word(word @ ("define" | "require")) => {
                    self.advance()?;
                    let config = self.config()?.ok_or_else(|| self.unexpected("`(`"))?;
                    let is_define = word == "define";
                    statements.push(if is_define {
                        Statement::Define(config)
                    } else {
                        Statement::Require(config)
                    });
                }
                Token::Word("provide") => {
                    self.advance()?;
                    let name = self.word("the name of what is provided")?;
                    statements.push(Statement::Provide(name));
                }
                _ => statements.push(self.connection()?),
            }
        }
    }

    fn element_class(&mut self) -> Result<Statement, Error> {
        self.advance()?;
        let name = self.word("the name of the class")?;
        let class = match self.now.0 {
            Token::Mark("{") => ClassExpr::Compound(self.alternatives()?, None),
            _ => ClassExpr::Named(self.word("`{` or the name of a class")?, None),
        };
        Ok(Statement::Class { name, class })
    }

    fn connection(&mut self) -> Result<Statement, Error> {
        let first = self.endpoints()?;
        let mut rest = Vec::new();
        loop {
            let arrow = match self.now.0 {
                Token::Mark("->") => ArrowKind::One,
                Token::Mark("=>") => ArrowKind::Many,
                _ => break,
            };
            self.advance()?;
            rest.push((arrow, self.endpoints()?));
        }
        let bare = |e: &ConnectionEndpoint| e.what == ElementRef::Implied;
        if let Some(end) = first.iter().find(|e| rest.is_empty() && bare(e)) {
            return Err(Error::new(
                end.span.0,
                format!("expected a statement, found {}", self.now.0.describe()),
            ));
        }
        let inner = rest.len().saturating_sub(1);
        if let Some(end) = rest[..inner].iter().flat_map(|(_, all)| all).find(|e| bare(e)) {
            return Err(Error::new(end.span.0, "an element is missing between two arrows"));
        }
        Ok(Statement::Connection { first, rest })
    }

    fn endpoints(&mut self) -> Result<Vec<ConnectionEndpoint>, Error> {
        let mut all = vec![self.endpoint()?];
        while self.take(",")? {
            all.push(self.endpoint()?);
        }
        Ok(all)
    }

    fn endpoint(&mut self) -> Result<ConnectionEndpoint, Error> {
        let start = self.now.1;
        let inputs = self.ports()?;
        let what = self.what()?;
        // Ports of an element that is not named are those of `input` or `output`: one list.
        let outputs = if what == ElementRef::Implied { None } else { self.ports()? };
        let end = if what == ElementRef::Implied { start.end } else { self.before };
        Ok(ConnectionEndpoint {
            inputs,
            what,
            outputs,
            span: IgnoredSpan(ConfigSpan { start: start.start, end }),
        })
    }

    fn what(&mut self) -> Result<ElementRef, Error> {
        Ok(match self.now.0 {
            Token::Word(word) if !KEYWORDS.contains(&word) => {
                let name = self.word("an element")?;
                match self.now.0 {
                    Token::Mark("::") => {
                        self.advance()?;
                        ElementRef::Declared(name, self.class()?)
                    }
                    Token::Mark("(") => ElementRef::Anonymous(ClassExpr::Named(name, self.config()?)),
                    _ => ElementRef::Word(name),
                }
            }
            Token::Mark("{") => ElementRef::Anonymous(self.class()?),
            Token::Mark("(") => {
                self.advance()?;
                let statements = self.nested(Self::statements)?;
                self.expect(")")?;
                ElementRef::Group(statements)
            }
            _ => ElementRef::Implied,
        })
    }

    fn class(&mut self) -> Result<ClassExpr, Error> {
        match self.now.0 {
            Token::Mark("{") => {
                let alternatives = self.alternatives()?;
                Ok(ClassExpr::Compound(alternatives, self.config()?))
            }
            _ => {
                let name = self.word("an element class")?;
                Ok(ClassExpr::Named(name, self.config()?))
            }
        }
    }

    fn alternatives(&mut self) -> Result<Vec<CompoundOverload>, Error> {
        self.expect("{")?;
        let mut all = Vec::new();
        loop {
            if self.take("...")? {
                all.push(CompoundOverload::Before);
            } else {
                all.push(self.nested(Self::alternative)?);
            }
            if !self.take("||")? {
                self.expect("}")?;
                return Ok(all);
            }
        }
    }

    fn alternative(&mut self) -> Result<CompoundOverload, Error> {
        let mut parameters = Vec::new();
        if self.starts_parameters()? {
            while !self.take("|")? {
                parameters.push(self.parameter()?);
                if !self.is("|") {
                    self.expect(",")?;
                }
            }
        }
        Ok(CompoundOverload::Body { parameters, statements: self.statements()? })
    }

    /// Returns true if parameters come next: a bar, a variable, or a word and a variable.
    fn starts_parameters(&mut self) -> Result<bool, Error> {
        Ok(match self.now.0 {
            Token::Mark("|") | Token::Variable(_) => true,
            Token::Word(_) => {
                let mut ahead = self.lexer.clone();
                matches!(ahead.next(), Ok((Token::Variable(_), _)))
            }
            _ => false,
        })
    }

    fn parameter(&mut self) -> Result<FormalParameter, Error> {
        let keyword = match self.now.0 {
            Token::Word(word) => {
                self.advance()?;
                Some(word.to_owned())
            }
            _ => None,
        };
        let Token::Variable(text) = self.now.0 else {
            return Err(self.unexpected("a parameter like `$name`"));
        };
        let variable = SpannedName { text: text.to_owned(), span: self.now.1 };
        self.advance()?;
        Ok(FormalParameter { keyword, variable })
    }

    /// A list of ports in brackets, if one is next; an empty one stands for as many as there are to connect.
    fn ports(&mut self) -> Result<Option<Vec<u32>>, Error> {
        if !self.take("[")? {
            return Ok(None);
        }
        let mut ports = Vec::new();
        if self.take("]")? {
            return Ok(Some(ports));
        }
        loop {
            let from = self.port()?;
            let to = if self.take("-")? { self.port()? } else { from };
            ports.extend(from..=to);
            if !self.take(",")? {
                break;
            }
        }
        self.expect("]")?;
        Ok(Some(ports))
    }

    fn port(&mut self) -> Result<u32, Error> {
        let number = match self.now.0 {
            Token::Word(word) => word.parse().ok().filter(|n| *n < MOST_PORTS),
            _ => None,
        };
        let number = number.ok_or_else(|| self.unexpected(&format!("a port number below {MOST_PORTS}")))?;
        self.advance()?;
        Ok(number)
    }
}
