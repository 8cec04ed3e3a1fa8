//! `Classifier`: by bytes at offsets.

use millstream_ir::Block;
use millstream_isa::{AluOp, Cond};

use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::config::{Text, words};
use crate::error::Error;
use crate::packet::Packet;

pub(super) const CLASSES: &[Class] = &[Class {
    name: "Classifier",
    ports: "1/-",
    processing: "h/h",
    arguments: &[],
    ignored: &[],
    passes_all: false,
    make: classifier,
}];

/// Bytes at an offset, under a mask.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Clause {
    negated: bool,
    offset: u32,
    value: Vec<u8>,
    mask: Vec<u8>,
}

/// One pattern an output; a pattern without clauses matches all.
struct Classifier {
    patterns: Vec<Vec<Clause>>,
}

/// One output an argument.
pub(super) fn outputs_are(setup: &Setup<'_>, patterns: usize) -> Result<(), Error> {
    match setup.outputs as usize == patterns {
        true => Ok(()),
        false => {
            let message =
                format!("{patterns} patterns and {} outputs: there must be one each", setup.outputs);
            Err(Error::new(setup.arguments.span(), message))
        }
    }
}

fn classifier(setup: &mut Setup<'_>) -> Made {
    let arguments = setup.arguments.rest();
    outputs_are(setup, arguments.len())?;
    let patterns = arguments.iter().map(pattern).collect::<Result<_, _>>()?;
    Ok(Box::new(Classifier { patterns }))
}

fn pattern(argument: &Text) -> Result<Vec<Clause>, Error> {
    if argument.text == "-" {
        return Ok(Vec::new());
    }
    let all = words(argument);
    if all.is_empty() {
        return Err(Error::new(argument.span, "an empty pattern; `-` matches everything"));
    }
    let mut clauses = Vec::new();
    let mut negated = false;
    for word in &all {
        let (text, bang) =
            word.text.strip_prefix('!').map_or((word.text.as_str(), false), |rest| (rest, true));
        negated |= bang;
        if text.is_empty() {
            continue;
        }
        let clause = clause(text, negated).ok_or_else(|| {
            Error::new(word.span, format!("`{}` is no clause like 12/0806 or 33/02%12", word.text))
                .help("offset in decimal, value and mask in as many hexadecimal digits, an even number; `?` is any digit")
        })?;
        clauses.push(clause);
        negated = false;
    }
    Ok(clauses)
}

fn clause(text: &str, negated: bool) -> Option<Clause> {
    let (offset, rest) = text.split_once('/')?;
    let (value, mask) = rest.split_once('%').map_or((rest, None), |(value, mask)| (value, Some(mask)));
    let offset = offset.parse().ok().filter(|o| *o < 1 << 16)?;
    let any = |c: char| if c == '?' { Some(0) } else { c.to_digit(16).map(|_| 15) };
    let digit = |c: char| if c == '?' { Some(0) } else { c.to_digit(16).map(|d| d as u8) };
    let mut masks = bytes(value, any)?;
    if let Some(mask) = mask {
        let given = bytes(mask, |c| c.to_digit(16).map(|d| d as u8)).filter(|m| m.len() == masks.len())?;
        masks.iter_mut().zip(given).for_each(|(m, g)| *m &= g);
    }
    let mut value = bytes(value, digit)?;
    value.iter_mut().zip(&masks).for_each(|(v, m)| *v &= m);
    Some(Clause { negated, offset, value, mask: masks })
}

fn bytes(text: &str, digit: impl Fn(char) -> Option<u8>) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.chars().map(digit).collect::<Option<_>>()?;
    let even = !digits.is_empty() && digits.len().is_multiple_of(2);
    even.then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

impl Behaviour for Classifier {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        for (port, pattern) in self.patterns.iter().enumerate() {
            let next = code.block();
            for clause in pattern {
                if clause.negated {
                    let passed = code.block();
                    test(code, packet, clause, passed);
                    code.jump(next, &[]);
                    code.go(passed);
                } else {
                    test(code, packet, clause, next);
                }
            }
            code.out(port as u32, packet);
            code.go(next);
        }
        code.drop(packet, "no_pattern");
    }
}

/// Goes on where the packet has what a clause says, else to `no`. A packet that is too short has not.
fn test(code: &mut Code<'_, '_>, packet: Packet, clause: &Clause, no: Block) {
    let used = clause.mask.iter().rposition(|m| *m != 0).map_or(0, |last| last + 1);
    let beyond = code.at(packet.data, i64::from(clause.offset) + used as i64);
    let long = code.block();
    code.branch(Cond::Le, beyond, packet.end, long, no);
    code.go(long);
    let mut at = 0;
    while at < used {
        let len = [8, 4, 2, 1].into_iter().find(|n| at + n <= used).unwrap_or(1);
        let number = |bytes: &[u8]| {
            let mut raw = [0; 8];
            raw[..len].copy_from_slice(&bytes[at..at + len]);
            i64::from_le_bytes(raw)
        };
        let (value, mask) = (number(&clause.value), number(&clause.mask));
        if mask != 0 {
            let raw = code.raw(len, packet.data, (clause.offset as usize + at) as i32);
            let whole = clause.mask[at..at + len].iter().all(|m| *m == 0xff);
            let raw = if whole { raw } else { code.with(AluOp::And, raw, mask) };
            let (value, same) = (code.int(value), code.block());
            code.branch(Cond::Eq, raw, value, same, no);
            code.go(same);
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::clause;

    #[test]
    fn clauses_have_masks_and_wildcards() {
        let c = clause("33/?2%1f", false).expect("a clause");
        assert_eq!((c.offset, c.value, c.mask), (33, vec![2], vec![0x0f]));
        for bad in ["12/080", "12", "12/08%0", "x/08", "12/", "12/08%0g"] {
            assert_eq!(clause(bad, false), None, "{bad}");
        }
    }
}
