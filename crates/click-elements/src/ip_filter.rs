//! `IPClassifier` and `IPFilter`: packets by expressions like tcpdump's.
//!
//! An expression becomes control flow: each test is a branch; `and`, `or` and `not` determine the targets of
//! its sides. Conditions that tests of ports and ICMP types need (the protocol, the first fragment, a header
//! that exists) are part of each test. Many rules become a match table instead ([`super::match_table`]).

mod parse;

use std::collections::{BTreeMap, BTreeSet};

use millstream_ir::{Block, Prov, Type, Value};
use millstream_isa::{AluOp, Cond};

use super::classify::outputs_are;
use super::ip::header_length;
use super::match_table::{
    MatchFormula, MatchRules, ReadWindow, RuleSegment, TableWord, WordConstraint, compared, different, equal,
    parts,
};
use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::decision_program::{
    IP_HEADER, LINK_HEADER, ProgramFormula, TRANSPORT_HEADER, WordTest, program_text,
};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, at, moot};
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, HandlerAccess, SpannedText, words};
use parse::{FieldTest, FilterExpression, FilterField, expression};
pub(super) use parse::{NUMBERED, PORTS};

const fn class(
    name: &'static str,
    about: &'static str,
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    const CACHING: &[ArgumentSpec] = &[moot(
        "CACHING",
        IgnoredValueKind::Truth,
        "what a packet matches is decided for each packet, which gives the same",
    )];
    ElementClass { ports: "1/-", processing: "h/h", ..ElementClass::filter(name, about, CACHING, make) }
}

pub(super) const CLASSES: &[ElementClass] = &[
    class("IPClassifier", "Sends packets to the output of the first pattern that they match.", classifier)
        .and(at("PATTERN")),
    class(
        "IPFilter",
        "Sends packets to an output, or drops them, by the first rule that they match.",
        filter,
    )
    .and(at("ACTION PATTERN")),
];

/// Bytes of an Ethernet header.
const ETHER_HEADER: i32 = 14;

struct IpFilter {
    /// Output (none for packets that are dropped), and the condition.
    rules: Vec<(Option<u32>, FilterExpression)>,
    parts: Vec<RuleSegment<FilterWord>>,
    /// Results of the tables' rules: an output each, or none.
    actions: Vec<Option<u32>>,
}

/// A word of a table's key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum FilterWord {
    /// A field under a mask; zero where it is not there.
    Field(FilterField, u32),
    /// 1 if there are so many bytes behind the IP header, in a first fragment.
    Reach(u32),
}

impl TableWord for FilterWord {
    fn bits(self) -> u32 {
        match self {
            FilterWord::Field(
                FilterField::Link { bytes, .. }
                | FilterField::Header { bytes, .. }
                | FilterField::Transport { bytes, .. },
                _,
            ) => 8 * bytes,
            FilterWord::Reach(_) => 1,
        }
    }

    fn name(self) -> String {
        match self {
            FilterWord::Field(FilterField::Link { offset, bytes }, _) => format!("ether[{offset}:{bytes}]"),
            FilterWord::Field(FilterField::Header { offset, bytes }, _) => format!("ip[{offset}:{bytes}]"),
            FilterWord::Field(FilterField::Transport { offset, bytes }, _) => {
                format!("transp[{offset}:{bytes}]")
            }
            FilterWord::Reach(bytes) => format!("transp of {bytes} bytes"),
        }
    }
}

impl IpFilter {
    fn new(rules: Vec<(Option<u32>, FilterExpression)>) -> IpFilter {
        let actions: BTreeSet<Option<u32>> = rules.iter().map(|(output, _)| *output).collect();
        let actions: Vec<Option<u32>> = actions.into_iter().collect();
        let number = |output| actions.partition_point(|known| *known < output) as u32;
        let asked: Vec<_> =
            rules.iter().map(|(output, rule)| (formula(rule, true), number(*output))).collect();
        IpFilter { parts: parts(&asked), rules, actions }
    }
}

/// An expression, or the opposite of one.
fn formula(expression: &FilterExpression, holds: bool) -> Option<MatchFormula<FilterWord>> {
    let all =
        |inner: &[FilterExpression]| inner.iter().map(|part| formula(part, holds)).collect::<Option<_>>();
    Some(match expression {
        FilterExpression::Constant(truth) => MatchFormula::Constant(*truth == holds),
        FilterExpression::Not(inner) => formula(inner, !holds)?,
        FilterExpression::All(inner) if holds => MatchFormula::All(all(inner)?),
        FilterExpression::Any(inner) if !holds => MatchFormula::All(all(inner)?),
        FilterExpression::All(inner) | FilterExpression::Any(inner) => MatchFormula::Any(all(inner)?),
        FilterExpression::Test(test) => test_formula(test, holds)?,
    })
}

/// The demands of a test on words, or of its negation. A field that does not exist is zero: if zero would
/// match, it also demands that the field exists.
fn test_formula(test: &FieldTest, holds: bool) -> Option<MatchFormula<FilterWord>> {
    // Words of tables are at the IP header and behind it.
    if matches!(test.field, FilterField::Link { .. }) {
        return None;
    }
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
    let all = u64::MAX >> (64 - FilterWord::Field(test.field, u32::MAX).bits());
    let (mask, value) = (u64::from(test.mask) & all, u64::from(test.value));
    let (word, demands) = match cond {
        Cond::Eq => (FilterWord::Field(test.field, u32::MAX), equal(value, mask)),
        Cond::Ne => (FilterWord::Field(test.field, u32::MAX), different(value, mask, all)),
        // The value is compared under the mask, but all bits of the field are looked at.
        _ => (
            FilterWord::Field(test.field, if mask == all { u32::MAX } else { test.mask }),
            compared(cond, value, all)?,
        ),
    };
    let zero = demands.iter().any(|demand| demand.takes_zero());
    let found = MatchFormula::one_of(word, demands);
    let FilterField::Transport { offset, bytes } = test.field else { return Some(found) };
    let reach = FilterWord::Reach((offset as u32) + bytes);
    Some(match (holds, zero) {
        (true, true) => {
            MatchFormula::All(vec![MatchFormula::Demand(reach, WordConstraint::Masked(1, 1)), found])
        }
        (false, false) => {
            MatchFormula::Any(vec![MatchFormula::Demand(reach, WordConstraint::Masked(0, 1)), found])
        }
        _ => found,
    })
}

/// The rules as the handler `program` has them, if all of their tests are comparisons of words.
fn program(rules: &[(Option<u32>, FilterExpression)]) -> Option<String> {
    let rules: Option<Vec<_>> =
        rules.iter().map(|(output, rule)| Some((*output, program_formula(rule)?))).collect();
    Some(program_text(&rules?))
}

fn program_formula(expression: &FilterExpression) -> Option<ProgramFormula> {
    let all = |inner: &[FilterExpression]| inner.iter().map(program_formula).collect::<Option<Vec<_>>>();
    Some(match expression {
        FilterExpression::Constant(truth) => ProgramFormula::Constant(*truth),
        FilterExpression::Not(inner) => ProgramFormula::Not(Box::new(program_formula(inner)?)),
        FilterExpression::All(inner) => ProgramFormula::all(all(inner)?),
        FilterExpression::Any(inner) => ProgramFormula::Any(all(inner)?),
        FilterExpression::Test(test) => {
            let (base, offset, bytes) = match test.field {
                FilterField::Link { offset, bytes } => (LINK_HEADER, offset, bytes),
                FilterField::Header { offset, bytes } => (IP_HEADER, offset, bytes),
                FilterField::Transport { offset, bytes } => (TRANSPORT_HEADER, offset, bytes),
            };
            let offset = base.checked_add_signed(offset)?;
            let word = ProgramFormula::Test(WordTest::of_bytes(offset, bytes, test.mask, test.value)?);
            match test.cond {
                Cond::Eq => word,
                Cond::Ne => ProgramFormula::Not(Box::new(word)),
                _ => return None,
            }
        }
    })
}

/// Adds the handler `program`, if the rules have that form.
fn add_program(setup: &mut ElementSetup<'_>, rules: &[(Option<u32>, FilterExpression)]) {
    if let Some(text) = program(rules) {
        setup.handler("program", HandlerAccess::Text(text));
    }
}

fn classifier(setup: &mut ElementSetup<'_>) -> ElementResult {
    let arguments = setup.arguments.rest();
    outputs_are(setup, arguments.len())?;
    let rule = |(at, text): (usize, &SpannedText)| {
        Ok((Some(at as u32), expression(&words(text), text, setup.arguments.names)?))
    };
    let rules = arguments.iter().enumerate().map(rule).collect::<Result<Vec<_>, Error>>()?;
    add_program(setup, &rules);
    for (at, text) in arguments.iter().enumerate() {
        setup.handler(format!("pattern{at}"), HandlerAccess::Text(text.text.clone()));
    }
    Ok(Box::new(IpFilter::new(rules)))
}

fn filter(setup: &mut ElementSetup<'_>) -> ElementResult {
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
        setup.handler(format!("rule{}", rules.len()), HandlerAccess::Text(argument.text.clone()));
        rules.push((output, expression(pattern, &argument, setup.arguments.names)?));
    }
    add_program(setup, &rules);
    Ok(Box::new(IpFilter::new(rules)))
}

impl ElementCodegen for IpFilter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = super::ip::header(code, packet);
        let length = header_length(code, header);
        let seen = HeaderValues { packet, header, transport: code.plus(header, length) };
        let act = |code: &mut ElementBuilder<'_, '_>, output: Option<u32>| match output {
            Some(output) => code.out(output, packet),
            None => code.drop(packet, "denied"),
        };
        for part in &self.parts {
            match part {
                RuleSegment::Table(rules) => {
                    let words = seen.words(code, rules);
                    rules.choose(code, &words, &self.actions, act);
                }
                RuleSegment::Linear(range) => {
                    for (output, expression) in &self.rules[range.clone()] {
                        let (yes, no) = (code.block(), code.block());
                        decide(code, &seen, expression, yes, no);
                        code.switch_to_block(yes);
                        act(code, *output);
                        code.switch_to_block(no);
                    }
                }
            }
        }
        code.drop(packet, "no_rule");
    }
}

/// Values that tests read.
struct HeaderValues {
    packet: PacketValues,
    header: Value,
    transport: Value,
}

impl HeaderValues {
    /// The words of the key of a table.
    fn words(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        rules: &MatchRules<FilterWord>,
    ) -> BTreeMap<FilterWord, Value> {
        let all = rules.words();
        let behind = |key: &FilterWord| match key {
            FilterWord::Field(FilterField::Transport { offset, bytes }, _) => Some((*offset as u32, *bytes)),
            _ => None,
        };
        let reach = |key: &FilterWord| if let FilterWord::Reach(bytes) = key { Some(*bytes) } else { None };
        let fields: BTreeSet<(u32, u32)> = all.iter().filter_map(behind).collect();
        let fields: Vec<(u32, u32)> = fields.into_iter().collect();
        let needs: Vec<u32> = all.iter().filter_map(reach).collect();
        let mut read = Vec::new();
        if fields.len() + needs.len() > 0 {
            let fragment = code.half(self.header, 6);
            let window = ReadWindow { base: self.transport, packet: self.packet, whole: true };
            read = window.read(code, &fields, &needs, |code| {
                let (first, none) = (code.block(), code.block());
                let distance = code.with(AluOp::And, fragment, 0x1fff);
                let zero = code.int(0);
                code.branch(Cond::Eq, distance, zero, first, none);
                code.switch_to_block(first);
                Some(none)
            });
        }
        let (fields_read, needs_read) = read.split_at(fields.len());
        let place = |wanted: (u32, u32)| fields.iter().position(|field| *field == wanted);
        let mut words = BTreeMap::new();
        for key in all {
            let value = match key {
                FilterWord::Field(FilterField::Link { offset, bytes }, _) => {
                    code.number(bytes, self.header, offset - ETHER_HEADER)
                }
                FilterWord::Field(FilterField::Header { offset, bytes }, _) => {
                    code.number(bytes, self.header, offset)
                }
                FilterWord::Field(FilterField::Transport { offset, bytes }, _) => {
                    fields_read[place((offset as u32, bytes)).unwrap_or_default()]
                }
                FilterWord::Reach(bytes) => {
                    needs_read[needs.iter().position(|n| *n == bytes).unwrap_or_default()]
                }
            };
            let masked = match key {
                FilterWord::Field(_, mask) if mask != u32::MAX => {
                    code.with(AluOp::And, value, i64::from(mask))
                }
                _ => value,
            };
            words.insert(key, masked);
        }
        words
    }
}

/// Goes to one of two blocks, as an expression holds.
fn decide(
    code: &mut ElementBuilder<'_, '_>,
    seen: &HeaderValues,
    expression: &FilterExpression,
    yes: Block,
    no: Block,
) {
    match expression {
        FilterExpression::Constant(true) => code.jump(yes, &[]),
        FilterExpression::Constant(false) => code.jump(no, &[]),
        FilterExpression::Not(inner) => decide(code, seen, inner, no, yes),
        FilterExpression::All(inner) => {
            for part in inner {
                let next = code.block();
                decide(code, seen, part, next, no);
                code.switch_to_block(next);
            }
            code.jump(yes, &[]);
        }
        FilterExpression::Any(inner) => {
            for part in inner {
                let next = code.block();
                decide(code, seen, part, yes, next);
                code.switch_to_block(next);
            }
            code.jump(no, &[]);
        }
        FilterExpression::Test(test) => decide_test(code, seen, test, yes, no),
    }
}

fn decide_test(
    code: &mut ElementBuilder<'_, '_>,
    seen: &HeaderValues,
    test: &FieldTest,
    yes: Block,
    no: Block,
) {
    let pass = |code: &mut ElementBuilder<'_, '_>, cond: Cond, a: Value, b: i64| {
        let (next, b) = (code.block(), code.int(b));
        code.branch(cond, a, b, next, no);
        code.switch_to_block(next);
    };
    let value = match test.field {
        FilterField::Link { offset, bytes } => {
            let (there, room) = (code.block(), code.bound(seen.packet.handle, 8, Type::Ptr(Prov::Packet)));
            let link = code.at(seen.header, -i64::from(ETHER_HEADER));
            code.branch(Cond::Ge, link, room, there, no);
            code.switch_to_block(there);
            code.number(bytes, link, offset)
        }
        FilterField::Header { offset, bytes } => code.number(bytes, seen.header, offset),
        FilterField::Transport { offset, bytes } => {
            let fragment = code.half(seen.header, 6);
            let distance = code.with(AluOp::And, fragment, 0x1fff);
            pass(code, Cond::Eq, distance, 0);
            let beyond = code.at(seen.transport, i64::from(offset) + i64::from(bytes));
            let long = code.block();
            code.branch(Cond::Le, beyond, seen.packet.end, long, no);
            code.switch_to_block(long);
            code.number(bytes, seen.transport, offset)
        }
    };
    let value =
        if test.mask == u32::MAX { value } else { code.with(AluOp::And, value, i64::from(test.mask)) };
    let b = code.int(i64::from(test.value));
    code.branch(test.cond, value, b, yes, no);
}
