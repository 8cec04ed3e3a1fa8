//! The rule language: terms over IR operations, read from the files under `rules/`.
//!
//! One rule a line, `;` starts a comment:
//!
//! ```text
//! (lshr.64 !(shl.64 x #k) #k) => (and.64 x {low (sub 64 k)})   if (ge k 33) (lt k 64)
//! ```
//!
//! On the left `x` binds a value, `#k` a constant, a number stands for itself, `!` in front of a term demands that
//! it has no other use; `.64` and `.32` are widths, `.w` and `.v` bind one, `?c` binds a condition. On the right
//! `{...}` is a constant computed at compile time, `(not ...)` the opposite condition, `true` and `false` known ones.
//! After `if` stand tests of constants, types and the target.

use millstream_ir::{AluOp, Attr, Cond, SwapKind, Width};

/// A width that is given or bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WidthPat {
    Fixed(Width),
    Var(usize),
}

/// A condition that is given or bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CondPat {
    Fixed(Cond),
    Bound,
}

/// The operation at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    Alu(AluOp, WidthPat),
    Neg(WidthPat),
    Zext,
    Sext(u8, WidthPat),
    Swap(SwapKind, u8),
    Cmp(CondPat, WidthPat),
    Select,
}

impl Head {
    /// The width at which constants among its operands are read.
    pub(crate) fn width(self) -> WidthPat {
        match self {
            Head::Alu(_, w) | Head::Neg(w) | Head::Cmp(_, w) => w,
            _ => WidthPat::Fixed(Width::W64),
        }
    }

    /// Whether its two operands may be exchanged.
    pub(crate) fn commutes(self) -> bool {
        match self {
            Head::Alu(op, _) => {
                matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor)
            }
            Head::Cmp(CondPat::Fixed(cond), _) => matches!(cond, Cond::Eq | Cond::Ne | Cond::Set),
            _ => false,
        }
    }
}

/// What a rule looks for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Pattern {
    Value(usize),
    Const(usize),
    Number(i64),
    Node { head: Head, once: bool, args: Vec<Pattern> },
}

/// A constant computed from bound ones.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Expr {
    Const(usize),
    Number(i64),
    Apply(Func, Vec<Expr>),
}

/// What a rule puts in place.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Build {
    Value(usize),
    Const(Expr),
    Node(Head, Vec<Build>),
    Not(Box<Build>),
    Truth(bool),
}

/// What must hold besides.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Test {
    /// The value's type is an integer of at most so many bits.
    Bits(usize, Expr),
    /// The value's type is an integer.
    Int(usize),
    /// The expression is not zero.
    Holds(Expr),
    /// The target has `movsx` and unconditional byte swap.
    V4,
    /// The target has 32-bit compare-and-branch.
    Jmp32,
}

macro_rules! functions {
    ($($variant:ident $name:literal |$($arg:ident),*| $value:expr;)*) => {
        /// A function of 64-bit words.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Func { $($variant),* }

        impl Func {
            fn parse(name: &str) -> Option<(Func, usize)> {
                match name { $($name => Some((Func::$variant, [$(stringify!($arg)),*].len())),)* _ => None }
            }

            /// Applies it to as many arguments as it takes.
            pub(crate) fn apply(self, args: &[u64]) -> u64 {
                match (self, args) {
                    $((Func::$variant, &[$($arg),*]) => $value,)*
                    _ => unreachable!("the parser counts arguments"),
                }
            }
        }
    };
}

functions! {
    Add "add" |a, b| a.wrapping_add(b);
    Sub "sub" |a, b| a.wrapping_sub(b);
    And "and" |a, b| a & b;
    Or "or" |a, b| a | b;
    Xor "xor" |a, b| a ^ b;
    Not "not" |a| !a;
    Neg "neg" |a| a.wrapping_neg();
    Shl "shl" |a, b| a.checked_shl(b as u32).unwrap_or(0);
    Shr "shr" |a, b| a.checked_shr(b as u32).unwrap_or(0);
    Log2 "log2" |a| u64::from(a.checked_ilog2().unwrap_or(0));
    // The low `n` bits set.
    Low "low" |n| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    Swap16 "swap16" |a| u64::from((a as u16).swap_bytes());
    Swap32 "swap32" |a| u64::from((a as u32).swap_bytes());
    Pow2 "pow2" |a| u64::from(a.is_power_of_two());
    Eq "eq" |a, b| u64::from(a == b);
    Ne "ne" |a, b| u64::from(a != b);
    Lt "lt" |a, b| u64::from(a < b);
    Le "le" |a, b| u64::from(a <= b);
    Gt "gt" |a, b| u64::from(a > b);
    Ge "ge" |a, b| u64::from(a >= b);
    // Fits the signed 32-bit immediate of an instruction.
    Imm "imm" |a| u64::from(a as i64 == i64::from(a as i32));
}

/// One rewrite.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Where it stands, for the messages of tests.
    #[cfg(test)]
    pub(crate) name: String,
    pub(crate) pattern: Pattern,
    pub(crate) build: Build,
    pub(crate) tests: Vec<Test>,
}

/// Reads a rule file.
///
/// # Errors
/// A sentence with file and line. The files are part of this crate and a test reads them all.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split(';').next().unwrap_or_default().trim();
        if !line.is_empty() {
            let name = format!("{file}:{}", number + 1);
            let rule = parse_rule(line).map_err(|message| format!("{name}: {message}"))?;
            rules.push(Rule {
                #[cfg(test)]
                name,
                ..rule
            });
        }
    }
    Ok(rules)
}

fn parse_rule(line: &str) -> Result<Rule, String> {
    let mut parser = Parser { tokens: tokens(line), at: 0, values: Vec::new(), consts: Vec::new() };
    let pattern = parser.pattern()?;
    parser.expect("=>")?;
    let build = parser.build()?;
    let mut tests = Vec::new();
    if parser.eat("if") {
        while parser.at < parser.tokens.len() {
            tests.push(parser.test()?);
        }
    }
    if parser.at != parser.tokens.len() {
        return Err(format!("`{}` after the rule", parser.tokens[parser.at]));
    }
    Ok(Rule {
        #[cfg(test)]
        name: String::new(),
        pattern,
        build,
        tests,
    })
}

fn tokens(line: &str) -> Vec<String> {
    let spaced: String = line
        .chars()
        .flat_map(|c| match c {
            '(' | ')' | '{' | '}' | '!' => vec![' ', c, ' '],
            other => vec![other],
        })
        .collect();
    spaced.split_whitespace().map(str::to_string).collect()
}

struct Parser {
    tokens: Vec<String>,
    at: usize,
    values: Vec<String>,
    consts: Vec<String>,
}

impl Parser {
    fn next(&mut self) -> Result<String, String> {
        let token = self.tokens.get(self.at).cloned().ok_or("the rule ends early")?;
        self.at += 1;
        Ok(token)
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.tokens.get(self.at).is_some_and(|t| t == token);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(format!("expected `{token}` at token {}", self.at + 1)) }
    }

    fn pattern(&mut self) -> Result<Pattern, String> {
        let once = self.eat("!");
        if self.eat("(") {
            let head = parse_head(&self.next()?)?;
            let mut args = Vec::new();
            while !self.eat(")") {
                args.push(self.pattern()?);
            }
            return Ok(Pattern::Node { head, once, args });
        }
        let token = self.next()?;
        if let Some(number) = parse_number(&token) {
            return Ok(Pattern::Number(number));
        }
        Ok(match token.strip_prefix('#') {
            Some(name) => Pattern::Const(index_of(&mut self.consts, name)),
            None => Pattern::Value(index_of(&mut self.values, &token)),
        })
    }

    fn build(&mut self) -> Result<Build, String> {
        if self.eat("(") {
            let word = self.next()?;
            if word == "not" {
                let inner = self.build()?;
                self.expect(")")?;
                return Ok(Build::Not(Box::new(inner)));
            }
            let head = parse_head(&word)?;
            let mut args = Vec::new();
            while !self.eat(")") {
                args.push(self.build()?);
            }
            return Ok(Build::Node(head, args));
        }
        if self.eat("{") {
            let expr = self.expr("}")?;
            return Ok(Build::Const(expr));
        }
        let token = self.next()?;
        match token.as_str() {
            "true" => return Ok(Build::Truth(true)),
            "false" => return Ok(Build::Truth(false)),
            _ => {}
        }
        if let Some(number) = parse_number(&token) {
            return Ok(Build::Const(Expr::Number(number)));
        }
        Ok(Build::Value(self.value(&token)?))
    }

    fn value(&self, name: &str) -> Result<usize, String> {
        self.values.iter().position(|v| v == name).ok_or_else(|| format!("`{name}` is not bound"))
    }

    /// A function application up to `close`, or a single constant.
    fn expr(&mut self, close: &str) -> Result<Expr, String> {
        let word = self.next()?;
        let Some((func, count)) = Func::parse(&word) else {
            let atom = self.atom(&word)?;
            self.expect(close)?;
            return Ok(atom);
        };
        let mut args = Vec::new();
        while !self.eat(close) {
            args.push(self.operand()?);
        }
        if args.len() != count {
            return Err(format!("`{word}` takes {count} arguments"));
        }
        Ok(Expr::Apply(func, args))
    }

    fn operand(&mut self) -> Result<Expr, String> {
        if self.eat("(") {
            return self.expr(")");
        }
        let word = self.next()?;
        self.atom(&word)
    }

    fn atom(&self, word: &str) -> Result<Expr, String> {
        if let Some(number) = parse_number(word) {
            return Ok(Expr::Number(number));
        }
        let at = self.consts.iter().position(|c| c == word);
        at.map(Expr::Const).ok_or_else(|| format!("`{word}` is no bound constant"))
    }

    fn test(&mut self) -> Result<Test, String> {
        self.expect("(")?;
        let word = self.tokens.get(self.at).cloned().unwrap_or_default();
        let test = match word.as_str() {
            "bits" => {
                self.at += 1;
                let name = self.next()?;
                Test::Bits(self.value(&name)?, self.operand()?)
            }
            "int" => {
                self.at += 1;
                let name = self.next()?;
                Test::Int(self.value(&name)?)
            }
            "v4" => {
                self.at += 1;
                Test::V4
            }
            "jmp32" => {
                self.at += 1;
                Test::Jmp32
            }
            _ => return Ok(Test::Holds(self.expr(")")?)),
        };
        self.expect(")")?;
        Ok(test)
    }
}

fn index_of(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|n| n == name).unwrap_or_else(|| {
        names.push(name.to_string());
        names.len() - 1
    })
}

fn parse_number(token: &str) -> Option<i64> {
    match token.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(|n| n as i64),
        None => token.parse().ok(),
    }
}

fn parse_head(token: &str) -> Result<Head, String> {
    let (name, width) = match token.split_once('.') {
        Some((name, width)) => (name, Some(parse_width(width)?)),
        None => (token, None),
    };
    let wide = || width.ok_or_else(|| format!("`{token}` lacks a width"));
    if name == "?c" {
        return Ok(Head::Cmp(CondPat::Bound, wide()?));
    }
    for (prefix, kind) in [("be", SwapKind::ToBe), ("le", SwapKind::ToLe), ("bswap", SwapKind::Swap)] {
        if let Some(Ok(bits)) = name.strip_prefix(prefix).map(str::parse) {
            return Ok(Head::Swap(kind, bits));
        }
    }
    if let Some(bits) = name.strip_prefix("sext") {
        return Ok(Head::Sext(bits.parse().map_err(|_| format!("`{token}` lacks its bits"))?, wide()?));
    }
    match name {
        "zext" => Ok(Head::Zext),
        "select" => Ok(Head::Select),
        "neg" => Ok(Head::Neg(wide()?)),
        _ => match (AluOp::parse(name), Cond::parse(name)) {
            (Ok(op), _) => Ok(Head::Alu(op, wide()?)),
            (_, Ok(cond)) => Ok(Head::Cmp(CondPat::Fixed(cond), wide()?)),
            _ => Err(format!("`{token}` is no operation")),
        },
    }
}

fn parse_width(token: &str) -> Result<WidthPat, String> {
    Ok(match token {
        "64" => WidthPat::Fixed(Width::W64),
        "32" => WidthPat::Fixed(Width::W32),
        "w" => WidthPat::Var(0),
        "v" => WidthPat::Var(1),
        _ => return Err(format!("`{token}` is no width")),
    })
}
