//! Rules as text.

use std::fmt;

use millstream_isa::absint::Scalar;
use millstream_isa::asm::assemble;
use millstream_isa::{AluOp, Insn};
use millstream_prove::window::{AddressSpace, EntryFact, WindowStep};
use millstream_text_store::{StoreError, StoreFormat};

use super::{
    CONSTANT, ConstOperand, PeepholeRule, PeepholeRuleSet, RuleConstant, RuleInsn, imm, insn_of, with_imm,
    with_insn,
};

/// Header of stores of rules for windows.
const WINDOWS: StoreFormat = StoreFormat { title: "; millstream window rules, format ", format: 1 };
/// Placeholder for a constant while an instruction is text.
const MARK: u64 = 0x5eed_0a7e;
/// Names of constants.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Operations of computed constants.
const OPS: [AluOp; 8] =
    [AluOp::Add, AluOp::Sub, AluOp::And, AluOp::Or, AluOp::Xor, AluOp::Lsh, AluOp::Rsh, AluOp::Mul];

impl fmt::Display for RuleConstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.then {
            None => write!(f, "{{{}}}", NAMES[self.of]),
            Some((op, ConstOperand::Const(n))) => {
                write!(f, "{{{} {} {}}}", NAMES[self.of], op.symbol(), NAMES[n])
            }
            Some((op, ConstOperand::Literal(k))) => write!(f, "{{{} {} {k}}}", NAMES[self.of], op.symbol()),
        }
    }
}

impl fmt::Display for RuleInsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut insn = insn_of(&self.step);
        if let Some(marked) = self.imm.and_then(|_| with_imm(insn, MARK)) {
            insn = marked;
        }
        let mut text = insn.to_string();
        if let Some(expr) = self.imm {
            for mark in [format!("{MARK:#x}"), MARK.to_string()] {
                text = text.replace(&mark, &expr.to_string());
            }
        }
        f.write_str(text.split(" goto").next().unwrap_or(&text))
    }
}

fn side(f: &mut fmt::Formatter<'_>, items: &[RuleInsn]) -> fmt::Result {
    for (n, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if n == 0 { "" } else { "; " })?;
    }
    Ok(())
}

fn range(f: &mut fmt::Formatter<'_>, s: &Scalar) -> fmt::Result {
    let (min, max) = s.unsigned();
    let (low, high) = s.signed();
    match (min, max) {
        (0, u64::MAX) if low > i64::MIN => write!(f, "[{low}..{high}]"),
        _ => write!(f, "[{min:#x},{max:#x}]"),
    }
}

fn space(s: AddressSpace, id: u32, at: i64) -> String {
    match s {
        AddressSpace::Stack => format!("s{at:+}"),
        AddressSpace::Other(n) => format!("p{n}.{id}{at:+}"),
    }
}

impl fmt::Display for PeepholeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        side(f, &self.left)?;
        f.write_str(" => ")?;
        side(f, &self.right)?;
        f.write_str(" @")?;
        for (n, s) in self.consts.iter().enumerate() {
            write!(f, " {}:", NAMES[n])?;
            range(f, s)?;
        }
        for (n, known) in self.regs.iter().enumerate().take(10) {
            match known {
                EntryFact::Nothing => {}
                EntryFact::Number(_, id) if *id >= CONSTANT => {
                    write!(f, " r{n}={{{}}}", NAMES[(*id - CONSTANT) as usize])?;
                }
                EntryFact::Number(s, id) => {
                    write!(f, " r{n}:n{id}")?;
                    range(f, s)?;
                }
                EntryFact::Value(id) => write!(f, " r{n}:v{id}")?,
                EntryFact::Address(s, id, at) => write!(f, " r{n}:{}", space(*s, *id, *at))?,
            }
        }
        for look in &self.looks {
            f.write_str(" @")?;
            for (n, bits) in look.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                match *bits {
                    u64::MAX => write!(f, " r{n}")?,
                    bits => write!(f, " r{n}/{bits:#x}")?,
                }
            }
        }
        write!(f, " @ {}, fires {}", self.origin, self.fires)
    }
}

impl PeepholeRuleSet {
    /// The store as text.
    pub fn text(&self) -> String {
        let body: String = self.rules().iter().map(|rule| format!("{rule}\n")).collect();
        WINDOWS.with_checksum("", &body)
    }

    /// Returns true if a text claims to be such a store.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(WINDOWS.title)
    }

    /// Reads a store.
    ///
    /// # Errors
    /// [`StoreError`] if it is damaged, or for the first line that is not a rule.
    pub fn parse(name: &str, text: &str) -> Result<PeepholeRuleSet, StoreError> {
        PeepholeRuleSet::read(name, WINDOWS.read_verified(name, text)?.1, 3)
    }

    /// Reads a store regardless of its checksum, to prove it and write it again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn parse_unsealed(name: &str, text: &str) -> Result<PeepholeRuleSet, StoreError> {
        PeepholeRuleSet::read(name, WINDOWS.read_unverified(name, text)?.1, 2)
    }

    fn read(name: &str, text: &str, first: usize) -> Result<PeepholeRuleSet, StoreError> {
        let mut rules = Vec::new();
        let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with(';'));
        for (n, line) in lines {
            let fail = || StoreError::Rule {
                name: name.into(),
                line: first + n,
                message: format!("no rule of windows: `{line}`"),
            };
            let rule = parse_rule(line).ok_or_else(fail)?;
            rules.push(PeepholeRule { name: format!("{name}:{}", first + n), ..rule });
        }
        Ok(PeepholeRuleSet::new(rules))
    }
}

fn parse_rule(line: &str) -> Option<PeepholeRule> {
    let (left, rest) = line.split_once(" => ")?;
    let mut parts = rest.split(" @");
    let right = parts.next()?;
    let known = parts.next()?;
    let mut looks: Vec<&str> = parts.collect();
    let (origin, fires) = looks.pop()?.trim().rsplit_once(", fires ")?;
    let mut rule = PeepholeRule {
        left: parse_side(left)?,
        right: parse_side(right)?,
        consts: Vec::new(),
        regs: [EntryFact::Nothing; 11],
        name: String::new(),
        looks: looks.into_iter().map(parse_look).collect::<Option<_>>()?,
        origin: origin.to_owned(),
        fires: fires.trim().parse().ok()?,
    };
    rule.regs[10] = EntryFact::Address(AddressSpace::Stack, 0, 0);
    for word in known.split_whitespace() {
        parse_known(word, &mut rule)?;
    }
    let exprs = rule.left.iter().chain(&rule.right).filter_map(|i| i.imm);
    let named = exprs.flat_map(|e| {
        let arg = if let Some((_, ConstOperand::Const(n))) = e.then { n } else { e.of };
        [e.of, arg]
    });
    let complete = named.max().is_none_or(|n| n < rule.consts.len());
    // Constants of a left side are read from a window, so they cannot be computed.
    let plain = rule.left.iter().all(|i| i.imm.is_none_or(|e| e.then.is_none()));
    let exits = rule.left.iter().filter(|i| matches!(i.step, WindowStep::Exit(..))).count();
    (complete && plain && rule.looks.len() == exits + 1 && !rule.left.is_empty()).then_some(rule)
}

fn parse_side(text: &str) -> Option<Vec<RuleInsn>> {
    let mut exits = 0;
    text.split("; ").filter(|t| !t.trim().is_empty()).map(|t| parse_item(t.trim(), &mut exits)).collect()
}

fn parse_item(text: &str, exits: &mut u32) -> Option<RuleInsn> {
    let (plain, expr) = match text.split_once('{') {
        Some((before, rest)) => {
            let (inside, after) = rest.split_once('}')?;
            (format!("{before}{MARK:#x}{after}"), Some(parse_expr(inside)?))
        }
        None => (text.to_owned(), None),
    };
    let branch = plain.starts_with("if ");
    let whole = if branch { format!("{plain} goto out\nout:\nexit") } else { plain };
    let mut insn = *assemble(&whole).ok()?.first()?;
    if let Insn::Branch { off, .. } = &mut insn {
        *off = 0;
    }
    let marked = imm(&insn) == Some(MARK);
    if marked != expr.is_some() {
        return None;
    }
    if marked {
        insn = with_imm(insn, 0)?;
    }
    let step = if branch { WindowStep::Exit(*exits, insn) } else { WindowStep::Do(insn) };
    *exits += u32::from(branch);
    Some(RuleInsn { step: with_insn(step, insn), imm: expr })
}

fn constant(name: &str) -> Option<usize> {
    NAMES.iter().position(|n| *n == name)
}

fn parse_expr(text: &str) -> Option<RuleConstant> {
    let mut words = text.split(' ');
    let of = constant(words.next()?)?;
    let Some(symbol) = words.next() else { return Some(RuleConstant { of, then: None }) };
    let op = OPS.into_iter().find(|op| op.symbol() == symbol)?;
    let arg = words.next()?;
    let arg =
        constant(arg).map(ConstOperand::Const).or_else(|| arg.parse().ok().map(ConstOperand::Literal))?;
    Some(RuleConstant { of, then: Some((op, arg)) })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn parse_range(text: &str) -> Option<Scalar> {
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    if let Some((low, high)) = inside.split_once("..") {
        let (low, high) = (low.parse().ok()?, high.parse().ok()?);
        return (low <= high).then(|| Scalar::signed_range(low, high));
    }
    let (min, max) = inside.split_once(',')?;
    let (min, max) = (hex(min)?, hex(max)?);
    (min <= max).then(|| Scalar::range(min, max))
}

fn register(text: &str) -> Option<usize> {
    let n: usize = text.strip_prefix('r')?.parse().ok()?;
    (n < 10).then_some(n)
}

fn parse_known(word: &str, rule: &mut PeepholeRule) -> Option<()> {
    if let Some((reg, name)) = word.split_once("={") {
        let n = constant(name.strip_suffix('}')?)?;
        rule.regs[register(reg)?] = EntryFact::Number(Scalar::UNKNOWN, CONSTANT + n as u32);
        return Some(());
    }
    let (name, what) = word.split_once(':')?;
    if let Some(n) = constant(name) {
        (n == rule.consts.len()).then_some(())?;
        rule.consts.push(parse_range(what)?);
        return Some(());
    }
    let (kind, rest) = (what.get(..1)?, what.get(1..)?);
    rule.regs[register(name)?] = match kind {
        "n" => {
            let (id, range) = rest.split_at(rest.find('[')?);
            EntryFact::Number(parse_range(range)?, id.parse().ok().filter(|id| *id < CONSTANT)?)
        }
        "v" => EntryFact::Value(rest.parse().ok()?),
        "s" => EntryFact::Address(AddressSpace::Stack, 0, rest.parse().ok()?),
        "p" => {
            let (s, rest) = rest.split_once('.')?;
            let (id, at) = rest.split_at(rest.find(['+', '-'])?);
            EntryFact::Address(AddressSpace::Other(s.parse().ok()?), id.parse().ok()?, at.parse().ok()?)
        }
        _ => return None,
    };
    Some(())
}

fn parse_look(text: &str) -> Option<[u64; 11]> {
    let mut out = [0; 11];
    for word in text.split_whitespace() {
        let (reg, bits) = match word.split_once('/') {
            Some((reg, bits)) => (reg, hex(bits)?),
            None => (word, u64::MAX),
        };
        out[register(reg)?] = bits;
    }
    Some(out)
}
