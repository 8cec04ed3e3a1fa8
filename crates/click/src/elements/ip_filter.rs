//! `IPClassifier` and `IPFilter`: packets by expressions like tcpdump's.
//!
//! An expression becomes control flow: each test is a branch; `and`, `or` and `not` determine the targets of
//! its sides. Conditions that tests of ports and ICMP types need (the protocol, the first fragment, a header
//! that exists) are part of each test. Many rules become a match table instead ([`super::table`]).

mod parse;

use std::collections::{BTreeMap, BTreeSet};

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use super::classify::outputs_are;
use super::ip::header_length;
use super::table::{Demand, Formula, Part, Rules, Window, Word, compared, different, equal, parts};
use crate::arguments::{boolean, unsigned};
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::config::{Text, words};
use crate::error::Error;
use crate::handlers::Access;
use crate::keyword::{Argument, Kind, at, moot};
use crate::packet::Packet;
pub(super) use parse::NUMBERED;
use parse::{Expression, Field, Test, expression};

const fn class(name: &'static str, about: &'static str, make: fn(&mut Setup<'_>) -> Made) -> Class {
    const CACHING: &[Argument] = &[moot(
        "CACHING",
        Kind::Truth,
        "what a packet matches is decided for each packet, which gives the same",
    )];
    Class { ports: "1/-", processing: "h/h", ..Class::filter(name, about, CACHING, make) }
}

pub(super) const CLASSES: &[Class] = &[
    class("IPClassifier", "Sends packets to the output of the first pattern that they match.", classifier)
        .and(at("PATTERN")),
    class(
        "IPFilter",
        "Sends packets to an output, or drops them, by the first rule that they match.",
        filter,
    )
    .and(at("ACTION PATTERN")),
];

struct Filter {
    /// Output (none for packets that are dropped), and the condition.
    rules: Vec<(Option<u32>, Expression)>,
    parts: Vec<Part<Key>>,
    /// Results of the tables' rules: an output each, or none.
    actions: Vec<Option<u32>>,
}

/// A word of a table's key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    /// A field under a mask; zero where it is not there.
    Field(Field, u32),
    /// 1 if there are so many bytes behind the IP header, in a first fragment.
    Reach(u32),
}

impl Word for Key {
    fn bits(self) -> u32 {
        match self {
            Key::Field(Field::Header { bytes, .. } | Field::Transport { bytes, .. }, _) => 8 * bytes,
            Key::Reach(_) => 1,
        }
    }

    fn name(self) -> String {
        match self {
            Key::Field(Field::Header { offset, bytes }, _) => format!("ip[{offset}:{bytes}]"),
            Key::Field(Field::Transport { offset, bytes }, _) => format!("transp[{offset}:{bytes}]"),
            Key::Reach(bytes) => format!("transp of {bytes} bytes"),
        }
    }
}

impl Filter {
    fn new(rules: Vec<(Option<u32>, Expression)>) -> Filter {
        let actions: BTreeSet<Option<u32>> = rules.iter().map(|(output, _)| *output).collect();
        let actions: Vec<Option<u32>> = actions.into_iter().collect();
        let number = |output| actions.partition_point(|known| *known < output) as u32;
        let asked: Vec<_> =
            rules.iter().map(|(output, rule)| (formula(rule, true), number(*output))).collect();
        Filter { parts: parts(&asked), rules, actions }
    }
}

/// An expression, or the opposite of one.
fn formula(expression: &Expression, holds: bool) -> Option<Formula<Key>> {
    let all = |inner: &[Expression]| inner.iter().map(|part| formula(part, holds)).collect::<Option<_>>();
    Some(match expression {
        Expression::Constant(truth) => Formula::Constant(*truth == holds),
        Expression::Not(inner) => formula(inner, !holds)?,
        Expression::All(inner) if holds => Formula::All(all(inner)?),
        Expression::Any(inner) if !holds => Formula::All(all(inner)?),
        Expression::All(inner) | Expression::Any(inner) => Formula::Any(all(inner)?),
        Expression::Test(test) => test_formula(test, holds)?,
    })
}

/// The demands of a test on words, or of its negation. A field that does not exist is zero: if zero would
/// match, it also demands that the field exists.
fn test_formula(test: &Test, holds: bool) -> Option<Formula<Key>> {
    let cond = match (test.cond, holds) {
        (cond, true) => cond,
        (Cond::Eq, false) => Cond::Ne,
        (Cond::Ne, false) => Cond::Eq,
        (Cond::Lt, false) => Cond::Ge,
        (Cond::Ge, false) => Cond::Lt,
        (Cond::Gt, false) => Cond::Le,
        (Cond::Le, false) => Cond::Gt,
        _ => return None,
    };
    let all = u64::MAX >> (64 - Key::Field(test.field, u32::MAX).bits());
    let (mask, value) = (u64::from(test.mask) & all, u64::from(test.value));
    let (word, demands) = match cond {
        Cond::Eq => (Key::Field(test.field, u32::MAX), equal(value, mask)),
        Cond::Ne => (Key::Field(test.field, u32::MAX), different(value, mask, all)),
        // The value is compared under the mask, but all bits of the field are looked at.
        _ => (
            Key::Field(test.field, if mask == all { u32::MAX } else { test.mask }),
            compared(cond, value, all)?,
        ),
    };
    let zero = demands.iter().any(|demand| demand.takes_zero());
    let found = Formula::one_of(word, demands);
    let Field::Transport { offset, bytes } = test.field else { return Some(found) };
    let reach = Key::Reach((offset as u32) + bytes);
    Some(match (holds, zero) {
        (true, true) => Formula::All(vec![Formula::Demand(reach, Demand::Masked(1, 1)), found]),
        (false, false) => Formula::Any(vec![Formula::Demand(reach, Demand::Masked(0, 1)), found]),
        _ => found,
    })
}

fn classifier(setup: &mut Setup<'_>) -> Made {
    let arguments = setup.arguments.rest();
    outputs_are(setup, arguments.len())?;
    let rule = |(at, text): (usize, &Text)| {
        Ok((Some(at as u32), expression(&words(text), text, setup.arguments.names)?))
    };
    let rules = arguments.iter().enumerate().map(rule).collect::<Result<_, Error>>()?;
    for (at, text) in arguments.iter().enumerate() {
        setup.handler(format!("pattern{at}"), Access::Text(text.text.clone()));
    }
    Ok(Box::new(Filter::new(rules)))
}

fn filter(setup: &mut Setup<'_>) -> Made {
    setup.arguments.keyword_or("CACHING", false, boolean)?;
    let mut rules = Vec::new();
    for argument in setup.arguments.rest() {
        let all = words(&argument);
        let Some((action, pattern)) = all.split_first() else {
            return Err(Error::new(argument.span, "an empty rule"));
        };
        let most = u64::from(setup.outputs.max(1) - 1);
        let output = match action.text.as_str() {
            "allow" => Some(0),
            "drop" | "deny" => None,
            _ => Some(
                unsigned(action, most)
                    .map_err(|e| e.help("a rule begins with allow, drop, deny or an output"))?
                    as u32,
            ),
        };
        setup.handler(format!("rule{}", rules.len()), Access::Text(argument.text.clone()));
        rules.push((output, expression(pattern, &argument, setup.arguments.names)?));
    }
    Ok(Box::new(Filter::new(rules)))
}

impl Behaviour for Filter {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let header = super::ip::header(code, packet);
        let length = header_length(code, header);
        let seen = Seen { packet, header, transport: code.plus(header, length) };
        let act = |code: &mut Code<'_, '_>, output: Option<u32>| match output {
            Some(output) => code.out(output, packet),
            None => code.drop(packet, "denied"),
        };
        for part in &self.parts {
            match part {
                Part::Table(rules) => {
                    let words = seen.words(code, rules);
                    rules.choose(code, &words, &self.actions, act);
                }
                Part::Linear(range) => {
                    for (output, expression) in &self.rules[range.clone()] {
                        let (yes, no) = (code.block(), code.block());
                        decide(code, &seen, expression, yes, no);
                        code.go(yes);
                        act(code, *output);
                        code.go(no);
                    }
                }
            }
        }
        code.drop(packet, "no_rule");
    }
}

/// Values that tests read.
struct Seen {
    packet: Packet,
    header: Value,
    transport: Value,
}

impl Seen {
    /// The words of the key of a table.
    fn words(&self, code: &mut Code<'_, '_>, rules: &Rules<Key>) -> BTreeMap<Key, Value> {
        let all = rules.words();
        let behind = |key: &Key| match key {
            Key::Field(Field::Transport { offset, bytes }, _) => Some((*offset as u32, *bytes)),
            _ => None,
        };
        let reach = |key: &Key| if let Key::Reach(bytes) = key { Some(*bytes) } else { None };
        let fields: BTreeSet<(u32, u32)> = all.iter().filter_map(behind).collect();
        let fields: Vec<(u32, u32)> = fields.into_iter().collect();
        let needs: Vec<u32> = all.iter().filter_map(reach).collect();
        let mut read = Vec::new();
        if fields.len() + needs.len() > 0 {
            let fragment = code.half(self.header, 6);
            let window = Window { base: self.transport, packet: self.packet, whole: true };
            read = window.read(code, &fields, &needs, |code| {
                let (first, none) = (code.block(), code.block());
                let distance = code.with(AluOp::And, fragment, 0x1fff);
                let zero = code.int(0);
                code.branch(Cond::Eq, distance, zero, first, none);
                code.go(first);
                Some(none)
            });
        }
        let (fields_read, needs_read) = read.split_at(fields.len());
        let place = |wanted: (u32, u32)| fields.iter().position(|field| *field == wanted);
        let mut words = BTreeMap::new();
        for key in all {
            let value = match key {
                Key::Field(Field::Header { offset, bytes }, _) => code.number(bytes, self.header, offset),
                Key::Field(Field::Transport { offset, bytes }, _) => {
                    fields_read[place((offset as u32, bytes)).unwrap_or_default()]
                }
                Key::Reach(bytes) => needs_read[needs.iter().position(|n| *n == bytes).unwrap_or_default()],
            };
            let masked = match key {
                Key::Field(_, mask) if mask != u32::MAX => code.with(AluOp::And, value, i64::from(mask)),
                _ => value,
            };
            words.insert(key, masked);
        }
        words
    }
}

/// Goes to one of two blocks, as an expression holds.
fn decide(code: &mut Code<'_, '_>, seen: &Seen, expression: &Expression, yes: Block, no: Block) {
    match expression {
        Expression::Constant(true) => code.jump(yes, &[]),
        Expression::Constant(false) => code.jump(no, &[]),
        Expression::Not(inner) => decide(code, seen, inner, no, yes),
        Expression::All(inner) => {
            for part in inner {
                let next = code.block();
                decide(code, seen, part, next, no);
                code.go(next);
            }
            code.jump(yes, &[]);
        }
        Expression::Any(inner) => {
            for part in inner {
                let next = code.block();
                decide(code, seen, part, yes, next);
                code.go(next);
            }
            code.jump(no, &[]);
        }
        Expression::Test(test) => decide_test(code, seen, test, yes, no),
    }
}

fn decide_test(code: &mut Code<'_, '_>, seen: &Seen, test: &Test, yes: Block, no: Block) {
    let pass = |code: &mut Code<'_, '_>, cond: Cond, a: Value, b: i64| {
        let (next, b) = (code.block(), code.int(b));
        code.branch(cond, a, b, next, no);
        code.go(next);
    };
    let value = match test.field {
        Field::Header { offset, bytes } => code.number(bytes, seen.header, offset),
        Field::Transport { offset, bytes } => {
            let fragment = code.half(seen.header, 6);
            let distance = code.with(AluOp::And, fragment, 0x1fff);
            pass(code, Cond::Eq, distance, 0);
            let beyond = code.at(seen.transport, i64::from(offset) + i64::from(bytes));
            let long = code.block();
            code.branch(Cond::Le, beyond, seen.packet.end, long, no);
            code.go(long);
            code.number(bytes, seen.transport, offset)
        }
    };
    let value =
        if test.mask == u32::MAX { value } else { code.with(AluOp::And, value, i64::from(test.mask)) };
    let b = code.int(i64::from(test.value));
    code.branch(test.cond, value, b, yes, no);
}
