//! `IPClassifier` and `IPFilter`: packets by expressions like tcpdump's.
//!
//! An expression becomes control flow: each test is a branch, `and`, `or` and `not` say where its sides go. What ports and
//! ICMP types need (the protocol, the first fragment, a header that is there) is part of each test.

mod parse;

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use super::classify::outputs_are;
use super::ip::header_length;
use crate::arguments::{boolean, unsigned};
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::config::{Text, words};
use crate::error::Error;
use crate::packet::Packet;
pub(super) use parse::PROTOCOLS;
use parse::{Expression, Field, Test, expression};

const fn class(name: &'static str, make: fn(&mut Setup<'_>) -> Made) -> Class {
    Class {
        name,
        ports: "1/-",
        processing: "h/h",
        arguments: &["CACHING"],
        ignored: &[],
        passes_all: false,
        make,
    }
}

pub(super) const CLASSES: &[Class] = &[class("IPClassifier", classifier), class("IPFilter", filter)];

struct Filter {
    /// Output, or none for those that are dropped, and what must hold.
    rules: Vec<(Option<u32>, Expression)>,
}

fn classifier(setup: &mut Setup<'_>) -> Made {
    let arguments = setup.arguments.rest();
    outputs_are(setup, arguments.len())?;
    let rule = |(at, text): (usize, &Text)| {
        Ok((Some(at as u32), expression(&words(text), text, setup.arguments.names)?))
    };
    let rules = arguments.iter().enumerate().map(rule).collect::<Result<_, Error>>()?;
    Ok(Box::new(Filter { rules }))
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
        rules.push((output, expression(pattern, &argument, setup.arguments.names)?));
    }
    Ok(Box::new(Filter { rules }))
}

impl Behaviour for Filter {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let header = super::ip::header(code, packet);
        let length = header_length(code, header);
        let seen = Seen { packet, header, transport: code.plus(header, length) };
        for (output, expression) in &self.rules {
            let (yes, no) = (code.block(), code.block());
            decide(code, &seen, expression, yes, no);
            code.go(yes);
            match output {
                Some(output) => code.out(*output, packet),
                None => code.drop(packet, "denied"),
            }
            code.go(no);
        }
        code.drop(packet, "no_rule");
    }
}

/// What tests look at.
struct Seen {
    packet: Packet,
    header: Value,
    transport: Value,
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
        Field::Length => code.sub(seen.packet.end, seen.header),
    };
    let value =
        if test.mask == u32::MAX { value } else { code.with(AluOp::And, value, i64::from(test.mask)) };
    let b = code.int(i64::from(test.value));
    code.branch(test.cond, value, b, yes, no);
}
