//! Reads rules, and refuses what cannot be applied: names that nothing binds, operations with too few
//! operands.

use millstream_ir::{AluOp, Attr, Cond, SwapKind, Width};

use super::func::Func;
use super::rule::{
    CondPat, ConstExpr, NAMES, PatternOp, RewriteRule, RuleCondition, RulePattern, RuleReplacement, WidthPat,
};

/// Deepest nesting.
const DEEPEST: usize = 12;

/// Reads a rule file.
///
/// # Errors
/// A sentence with file and line.
pub fn parse(file: &str, text: &str) -> Result<Vec<RewriteRule>, String> {
    let mut rules = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split(';').next().unwrap_or_default().trim();
        if !line.is_empty() {
            let name = format!("{file}:{}", number + 1);
            let rule = parse_rule(line).map_err(|message| format!("{name}: {message}"))?;
            rules.push(RewriteRule { name, ..rule });
        }
    }
    Ok(rules)
}

/// Reads one rule, without a name.
///
/// # Errors
/// A sentence.
pub fn parse_rule(line: &str) -> Result<RewriteRule, String> {
    let mut parser = RuleParser { tokens: tokens(line), ..RuleParser::default() };
    let pattern = parser.pattern()?;
    let RulePattern::Node { .. } = pattern else { return Err("the left side is no operation".into()) };
    parser.expect("=>")?;
    let build = parser.build()?;
    let mut tests = Vec::new();
    if parser.eat("if") {
        while parser.at < parser.tokens.len() {
            tests.push(parser.test()?);
        }
    }
    if let Some(token) = parser.tokens.get(parser.at) {
        return Err(format!("`{token}` after the rule"));
    }
    Ok(RewriteRule { name: String::new(), pattern, build, tests, learnt: false })
}

/// Words and marks. What separates them is a byte each, so that cuts are between characters.
fn tokens(line: &str) -> Vec<&str> {
    let mut out = Vec::with_capacity(line.len() / 2);
    let mut word = 0;
    for (at, byte) in line.bytes().enumerate() {
        let mark = matches!(byte, b'(' | b')' | b'{' | b'}' | b'!');
        if mark || byte.is_ascii_whitespace() {
            if word < at {
                out.push(&line[word..at]);
            }
            if mark {
                out.push(&line[at..=at]);
            }
            word = at + 1;
        }
    }
    if word < line.len() {
        out.push(&line[word..]);
    }
    out
}

#[derive(Default)]
struct RuleParser<'t> {
    tokens: Vec<&'t str>,
    at: usize,
    depth: usize,
    values: Vec<&'t str>,
    consts: Vec<&'t str>,
    widths: [bool; 2],
    cond: bool,
}

impl<'t> RuleParser<'t> {
    fn next(&mut self) -> Result<&'t str, String> {
        let token = self.tokens.get(self.at).copied().ok_or("the rule ends early")?;
        self.at += 1;
        Ok(token)
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.tokens.get(self.at).is_some_and(|t| *t == token);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(format!("expected `{token}` at token {}", self.at + 1)) }
    }

    fn deeper<R>(&mut self, read: impl FnOnce(&mut Self) -> Result<R, String>) -> Result<R, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("nested deeper than {DEEPEST}"));
        }
        let out = read(self)?;
        self.depth -= 1;
        Ok(out)
    }

    fn pattern(&mut self) -> Result<RulePattern, String> {
        let once = self.eat("!");
        if self.eat("(") {
            let word = self.next()?;
            let head = parse_head(word)?;
            self.bind(head);
            let mut args = Vec::new();
            while !self.eat(")") {
                args.push(self.deeper(Self::pattern)?);
            }
            counted(word, head.arity(), args.len())?;
            return Ok(RulePattern::Node { head, once, args });
        }
        let token = self.next()?;
        if let Some(number) = parse_number(token) {
            return Ok(RulePattern::Number(number));
        }
        Ok(match token.strip_prefix('#') {
            Some(name) => RulePattern::Const(index_of(&mut self.consts, name)?),
            None => RulePattern::Value(index_of(&mut self.values, token)?),
        })
    }

    fn bind(&mut self, head: PatternOp) {
        if let Some(WidthPat::Var(i)) = head.widths() {
            self.widths[i] = true;
        }
        self.cond |= matches!(head, PatternOp::Cmp(CondPat::Bound, _));
    }

    fn is_bound(&self, head: PatternOp) -> bool {
        let width = !matches!(head.widths(), Some(WidthPat::Var(i)) if !self.widths[i]);
        width && (self.cond || !matches!(head, PatternOp::Cmp(CondPat::Bound, _)))
    }

    fn build(&mut self) -> Result<RuleReplacement, String> {
        if self.eat("(") {
            return self.deeper(Self::build_node);
        }
        if self.eat("{") {
            return Ok(RuleReplacement::Const(self.expr("}")?));
        }
        let token = self.next()?;
        match token {
            "true" => return Ok(RuleReplacement::Truth(true)),
            "false" => return Ok(RuleReplacement::Truth(false)),
            _ => {}
        }
        if let Some(number) = parse_number(token) {
            return Ok(RuleReplacement::Const(ConstExpr::Number(number)));
        }
        Ok(RuleReplacement::Value(self.value(token)?))
    }

    fn build_node(&mut self) -> Result<RuleReplacement, String> {
        let word = self.next()?;
        if word == "not" {
            let inner = self.build()?;
            self.expect(")")?;
            if !matches!(inner, RuleReplacement::Node(PatternOp::Cmp(..), _)) {
                return Err("`not` is of comparisons".into());
            }
            return Ok(RuleReplacement::Not(Box::new(inner)));
        }
        let head = parse_head(word)?;
        if !self.is_bound(head) {
            return Err(format!("`{word}` names a width or condition that is not bound"));
        }
        let mut args = Vec::new();
        while !self.eat(")") {
            let arg = self.build()?;
            if matches!(arg, RuleReplacement::Not(_)) {
                return Err("`not` stands at the root only".into());
            }
            args.push(arg);
        }
        counted(word, head.arity(), args.len())?;
        Ok(RuleReplacement::Node(head, args))
    }

    fn value(&self, name: &str) -> Result<usize, String> {
        self.values.iter().position(|v| *v == name).ok_or_else(|| format!("`{name}` is not bound"))
    }

    fn next_value(&mut self) -> Result<usize, String> {
        let name = self.next()?;
        self.value(name)
    }

    /// A function application up to `close`, or a single constant.
    fn expr(&mut self, close: &str) -> Result<ConstExpr, String> {
        let word = self.next()?;
        let Some(func) = Func::parse(word) else {
            let atom = self.atom(word)?;
            self.expect(close)?;
            return Ok(atom);
        };
        let mut args = Vec::new();
        while !self.eat(close) {
            args.push(self.operand()?);
        }
        counted(word, func.arity(), args.len())?;
        Ok(ConstExpr::Apply(func, args))
    }

    fn operand(&mut self) -> Result<ConstExpr, String> {
        if self.eat("(") {
            return self.deeper(|parser| parser.expr(")"));
        }
        let word = self.next()?;
        self.atom(word)
    }

    fn atom(&self, word: &str) -> Result<ConstExpr, String> {
        if let Some(number) = parse_number(word) {
            return Ok(ConstExpr::Number(number));
        }
        if let Some(at) = self.consts.iter().position(|c| *c == word) {
            return Ok(ConstExpr::Const(at));
        }
        match word {
            "w" if self.widths[0] => Ok(ConstExpr::Bits(0)),
            "v" if self.widths[1] => Ok(ConstExpr::Bits(1)),
            _ => Err(format!("`{word}` is no bound constant")),
        }
    }

    fn test(&mut self) -> Result<RuleCondition, String> {
        self.expect("(")?;
        let word = self.tokens.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        let test = match word {
            "bits" => RuleCondition::Bits(self.next_value()?, self.operand()?),
            "int" => RuleCondition::Int(self.next_value()?),
            "zeros" => RuleCondition::Zeros(self.next_value()?, self.operand()?),
            "ones" => RuleCondition::Ones(self.next_value()?, self.operand()?),
            "atmost" => RuleCondition::AtMost(self.next_value()?, self.operand()?),
            "atleast" => RuleCondition::AtLeast(self.next_value()?, self.operand()?),
            "disjoint" => RuleCondition::Disjoint(self.next_value()?, self.next_value()?),
            "nowrap" => RuleCondition::NoWrap(self.next_value()?, self.next_value()?),
            "v4" => RuleCondition::V4,
            "jmp32" => RuleCondition::Jmp32,
            _ => {
                self.at -= 1;
                return Ok(RuleCondition::Holds(self.expr(")")?));
            }
        };
        self.expect(")")?;
        Ok(test)
    }
}

fn counted(word: &str, expected: usize, found: usize) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("`{word}` takes {expected} operands")) }
}

fn index_of<'t>(names: &mut Vec<&'t str>, name: &'t str) -> Result<usize, String> {
    if let Some(at) = names.iter().position(|n| *n == name) {
        return Ok(at);
    }
    if names.len() == NAMES {
        return Err(format!("more than {NAMES} values or constants"));
    }
    names.push(name);
    Ok(names.len() - 1)
}

fn parse_number(token: &str) -> Option<i64> {
    match token.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(|n| n as i64),
        None => token.parse().ok(),
    }
}

fn parse_head(token: &str) -> Result<PatternOp, String> {
    let (name, width) = match token.split_once('.') {
        Some((name, width)) => (name, Some(parse_width(width)?)),
        None => (token, None),
    };
    let wide = || width.ok_or_else(|| format!("`{token}` lacks a width"));
    let bits = |digits: &str| digits.parse().map_err(|_| format!("`{token}` lacks its bits"));
    if name == "?c" {
        return Ok(PatternOp::Cmp(CondPat::Bound, wide()?));
    }
    for (prefix, kind) in [("be", SwapKind::ToBe), ("le", SwapKind::ToLe), ("bswap", SwapKind::Swap)] {
        if let Some(Ok(bits @ (16 | 32 | 64))) = name.strip_prefix(prefix).map(str::parse) {
            return Ok(PatternOp::Swap(kind, bits));
        }
    }
    if let Some(digits) = name.strip_prefix("sext") {
        return match bits(digits)? {
            bits @ (8 | 16 | 32) => Ok(PatternOp::Sext(bits, wide()?)),
            _ => Err(format!("`{token}` extends no such width")),
        };
    }
    match name {
        "zext" => Ok(PatternOp::Zext),
        "select" => Ok(PatternOp::Select),
        "neg" => Ok(PatternOp::Neg(wide()?)),
        _ => match AluOp::parse(name) {
            Ok(op) => Ok(PatternOp::Alu(op, wide()?)),
            Err(_) => match Cond::parse(name) {
                Ok(cond) => Ok(PatternOp::Cmp(CondPat::Fixed(cond), wide()?)),
                Err(_) => Err(format!("`{token}` is no operation")),
            },
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
