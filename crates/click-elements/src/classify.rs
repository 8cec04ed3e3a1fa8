//! `Classifier`: by bytes at offsets. Many patterns become a match table ([`super::match_table`]), whose key
//! consists of words at multiples of four.

use std::collections::BTreeMap;

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, HandlerAccess, SpannedText, words};

use super::match_table::{
    MatchFormula, MatchRules, ReadWindow, RuleSegment, TableWord, WordConstraint, different, equal, parts,
};
use millstream_click::decision_program::{ProgramFormula, WordTest, program_text};

const fn class(
    name: &'static str,
    about: &'static str,
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports: "1/-", processing: "h/h", ..ElementClass::filter(name, about, &[], make) }
        .and(at("PATTERN"))
}

pub(super) const CLASSES: &[ElementClass] = &[
    class(
        "Classifier",
        "Sends packets to the output of the first pattern that their bytes match.",
        classifier,
    ),
    class("CTXDispatcher", DISPATCHES, dispatcher),
    class("FlowContextDispatcher", DISPATCHES, dispatcher),
    class("FlowDispatcher", DISPATCHES, dispatcher),
];

const DISPATCHES: &str =
    "Sends packets to the output of the first pattern that their bytes match, or drops them.";

/// Bytes at an offset, under a mask.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PatternClause {
    negated: bool,
    offset: u32,
    value: Vec<u8>,
    mask: Vec<u8>,
}

/// Patterns and where packets of each leave, in order; a pattern without clauses matches all.
struct Classifier {
    patterns: Vec<Vec<PatternClause>>,
    /// An output, or none where packets of the pattern are dropped.
    outputs: Vec<Option<u32>>,
    parts: Vec<RuleSegment<PatternWord>>,
}

/// A word of a table's key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PatternWord {
    /// Four bytes from an offset on; those that do not exist are zero.
    Bytes(u32),
    /// 1 if the packet has so many bytes.
    Reach(u32),
}

/// Bytes of a word.
const WORD: u32 = 4;

impl TableWord for PatternWord {
    fn bits(self) -> u32 {
        match self {
            PatternWord::Bytes(_) => 8 * WORD,
            PatternWord::Reach(_) => 1,
        }
    }

    fn name(self) -> String {
        match self {
            PatternWord::Bytes(offset) => format!("{offset}"),
            PatternWord::Reach(bytes) => format!("{bytes} bytes"),
        }
    }
}

/// One output an argument.
pub(super) fn outputs_are(setup: &ElementSetup<'_>, patterns: usize) -> Result<(), Error> {
    match setup.outputs as usize == patterns {
        true => Ok(()),
        false => {
            let message =
                format!("{patterns} patterns and {} outputs: there must be one each", setup.outputs);
            Err(Error::new(setup.arguments.span(), message))
        }
    }
}

fn classifier(setup: &mut ElementSetup<'_>) -> ElementResult {
    let arguments = setup.arguments.rest();
    outputs_are(setup, arguments.len())?;
    let patterns = arguments.iter().map(pattern).collect::<Result<Vec<_>, _>>()?;
    for (at, argument) in arguments.iter().enumerate() {
        setup.handler(format!("pattern{at}"), HandlerAccess::Text(argument.text.clone()));
    }
    let rules: Vec<_> =
        (0..).map(Some).zip(patterns.iter().map(|clauses| program_formula(clauses))).collect();
    setup.handler("program", HandlerAccess::Text(program_text(&rules)));
    let outputs = (0..patterns.len() as u32).map(Some).collect();
    Ok(Box::new(Classifier::of(patterns, outputs)))
}

/// A pattern as the handler `program` has it: a test for each word that it looks at.
fn program_formula(clauses: &[PatternClause]) -> ProgramFormula {
    let clause = |clause: &PatternClause| {
        let mut words: BTreeMap<u32, WordTest> = BTreeMap::new();
        for ((at, value), mask) in (clause.offset..).zip(&clause.value).zip(&clause.mask) {
            let offset = at & !3;
            let word = words.entry(offset).or_insert(WordTest { offset, mask: 0, value: 0 });
            let shift = 8 * (3 - at % 4);
            word.mask |= u32::from(*mask) << shift;
            word.value |= u32::from(*value & *mask) << shift;
        }
        let all = words.into_values().filter(|word| word.mask != 0).map(ProgramFormula::Test).collect();
        let all = ProgramFormula::All(all);
        if clause.negated { ProgramFormula::Not(Box::new(all)) } else { all }
    };
    ProgramFormula::All(clauses.iter().map(clause).collect())
}

/// A classifier of MiddleClick's contexts: patterns with an output or `drop` behind them; without these, the
/// output behind the highest so far.
fn dispatcher(setup: &mut ElementSetup<'_>) -> ElementResult {
    let last = setup.outputs.max(1) - 1;
    let (mut patterns, mut outputs, mut next) = (Vec::new(), Vec::new(), 0);
    for argument in setup.arguments.rest() {
        let mut all = words(&argument);
        let given = match all.last() {
            Some(word) if all.len() > 1 && word.text == "drop" => Some(None),
            // Outputs beyond the last one do not exist: such packets are dropped, too.
            Some(word) if all.len() > 1 && !word.text.contains('/') => {
                Some(Some(unsigned(word, 255)? as u32).filter(|output| *output <= last))
            }
            _ => None,
        };
        if given.is_some() {
            all.pop();
        }
        // A second slash has a mask behind it.
        let masked =
            |word: &SpannedText| word.text.replacen('/', "\0", 1).replacen('/', "%", 1).replace('\0', "/");
        let text = all.iter().map(masked).collect::<Vec<_>>().join(" ");
        patterns.push(pattern(&SpannedText { text, span: argument.span })?);
        let rest = argument.text == "-" && next > last;
        let output = given.unwrap_or(if rest { None } else { Some(next.min(last)) });
        next = output.map_or(next, |output| next.max(output + 1));
        outputs.push(output);
    }
    // Packets of no pattern leave by the last output, if no pattern has it.
    if next <= last && !patterns.iter().any(Vec::is_empty) {
        patterns.push(Vec::new());
        outputs.push(Some(last));
    }
    Ok(Box::new(Classifier::of(patterns, outputs)))
}

impl Classifier {
    fn of(patterns: Vec<Vec<PatternClause>>, outputs: Vec<Option<u32>>) -> Classifier {
        let asked = |(port, pattern): (usize, &Vec<PatternClause>)| {
            (Some(MatchFormula::All(pattern.iter().map(PatternClause::formula).collect())), port as u32)
        };
        let asked: Vec<_> = patterns.iter().enumerate().map(asked).collect();
        Classifier { parts: parts(&asked), patterns, outputs }
    }
}

fn pattern(argument: &SpannedText) -> Result<Vec<PatternClause>, Error> {
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
            Error::new(word.span, format!("`{}` is no clause like 12/0806 or 33/02%12", word.text)).help(
                "offset in decimal, value and mask in as many hexadecimal digits, \
                 an even number; `?` is any digit",
            )
        })?;
        clauses.push(clause);
        negated = false;
    }
    Ok(clauses)
}

fn clause(text: &str, negated: bool) -> Option<PatternClause> {
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
    // A pattern that tests no bits matches packets of any length.
    let offset = if masks.iter().all(|mask| *mask == 0) { 0 } else { offset };
    Some(PatternClause { negated, offset, value, mask: masks })
}

fn bytes(text: &str, digit: impl Fn(char) -> Option<u8>) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.chars().map(digit).collect::<Option<_>>()?;
    let even = !digits.is_empty() && digits.len().is_multiple_of(2);
    even.then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

impl PatternClause {
    /// Bytes that the packet must have.
    fn used(&self) -> usize {
        self.mask.iter().rposition(|m| *m != 0).map_or(0, |last| last + 1)
    }

    /// Its demands on words. Bytes that do not exist are zero: if zero would match, it also demands that they
    /// exist.
    fn formula(&self) -> MatchFormula<PatternWord> {
        let used = self.used();
        let mut words: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (at, (value, mask)) in
            self.value.iter().zip(&self.mask).enumerate().filter(|(_, (_, mask))| **mask != 0)
        {
            let at = self.offset + at as u32;
            let (known, shift) = (words.entry(at / WORD * WORD).or_default(), 8 * (WORD - 1 - at % WORD));
            known.0 |= u64::from(*value) << shift;
            known.1 |= u64::from(*mask) << shift;
        }
        let demand = |(offset, (value, mask)): (u32, (u64, u64))| {
            let demands =
                if self.negated { different(value, mask, u64::from(u32::MAX)) } else { equal(value, mask) };
            MatchFormula::one_of(PatternWord::Bytes(offset), demands)
        };
        let mut asked: Vec<MatchFormula<PatternWord>> = words.into_iter().map(demand).collect();
        if used == 0 || self.value[used - 1] == 0 {
            let reach = PatternWord::Reach(self.offset + used as u32);
            asked.push(MatchFormula::Demand(reach, WordConstraint::Masked(u64::from(!self.negated), 1)));
        }
        if self.negated { MatchFormula::Any(asked) } else { MatchFormula::All(asked) }
    }
}

impl Classifier {
    /// Ends with the packet of a pattern where that leads.
    fn leave(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, pattern: u32) {
        match self.outputs.get(pattern as usize).copied().flatten() {
            Some(output) => code.out(output, packet),
            None => code.drop(packet, "dropped_by_pattern"),
        }
    }

    /// The words of the key of a table.
    fn words(
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        rules: &MatchRules<PatternWord>,
    ) -> BTreeMap<PatternWord, Value> {
        let all = rules.words();
        let word = |key: &PatternWord| {
            if let PatternWord::Bytes(offset) = key { Some((*offset, WORD)) } else { None }
        };
        let reach = |key: &PatternWord| if let PatternWord::Reach(bytes) = key { Some(*bytes) } else { None };
        let fields: Vec<(u32, u32)> = all.iter().filter_map(word).collect();
        let needs: Vec<u32> = all.iter().filter_map(reach).collect();
        let window = ReadWindow { base: packet.data, packet, whole: false };
        let read = window.read(code, &fields, &needs, |_| None);
        // Words come before numbers of bytes in the order of keys, too.
        all.into_iter().zip(read).collect()
    }

    /// Patterns of outputs, one by one.
    fn in_order(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        ports: std::ops::Range<usize>,
    ) {
        for (port, pattern) in self.patterns.iter().enumerate().take(ports.end).skip(ports.start) {
            let next = code.block();
            for clause in pattern {
                if clause.negated {
                    let passed = code.block();
                    test(code, packet, clause, passed);
                    code.jump(next, &[]);
                    code.switch_to_block(passed);
                } else {
                    test(code, packet, clause, next);
                }
            }
            self.leave(code, packet, port as u32);
            code.switch_to_block(next);
        }
    }
}

impl ElementCodegen for Classifier {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let all: Vec<u32> = (0..self.patterns.len() as u32).collect();
        for part in &self.parts {
            match part {
                RuleSegment::Linear(ports) => self.in_order(code, packet, ports.clone()),
                RuleSegment::Table(rules) => {
                    let words = Self::words(code, packet, rules);
                    rules.choose(code, &words, &all, |code, pattern| self.leave(code, packet, pattern));
                }
            }
        }
        code.drop(packet, "no_pattern");
    }
}

/// Goes on if the packet matches a clause, else to `no`. A packet that is too short does not match.
fn test(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, clause: &PatternClause, no: Block) {
    let used = clause.used();
    let beyond = code.at(packet.data, i64::from(clause.offset) + used as i64);
    let long = code.block();
    code.branch(Cond::Le, beyond, packet.end, long, no);
    code.switch_to_block(long);
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
            code.switch_to_block(same);
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
        assert_eq!(clause("22/80%00", true).map(|c| c.offset), Some(0));
        for bad in ["12/080", "12", "12/08%0", "x/08", "12/", "12/08%0g"] {
            assert_eq!(clause(bad, false), None, "{bad}");
        }
    }
}
