//! Text of a classifier as a list of steps, in the form of Click's handler `program`.
//!
//! A step compares four bytes under a mask, and names the step or output behind each answer. The text describes
//! the rules; code is made of these in another way.

use std::fmt::Write as _;

/// Offset of the Ethernet header in the numbers of steps.
pub const LINK_HEADER: u32 = 2;
/// Offset of the IP header, likewise.
pub const IP_HEADER: u32 = 256;
/// Offset of the header behind that, likewise.
pub const TRANSPORT_HEADER: u32 = 512;

/// Comparison of four bytes at a multiple of four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordTest {
    /// Offset of the bytes.
    pub offset: u32,
    /// Bits that are compared.
    pub mask: u32,
    /// Wanted value of these bits.
    pub value: u32,
}

impl WordTest {
    /// The comparison of so many bytes at an offset, if they lie in one word. The offset and the first word
    /// begin at a multiple of four.
    pub fn of_bytes(offset: u32, bytes: u32, mask: u32, value: u32) -> Option<WordTest> {
        let behind = 4u32.checked_sub(offset % 4 + bytes)?;
        let all = u32::MAX.checked_shr(32 - 8 * bytes)?;
        let shifted = |bits: u32| (bits & all) << (8 * behind);
        Some(WordTest { offset: offset & !3, mask: shifted(mask), value: shifted(value) })
    }

    /// Returns true if another comparison holds whenever this one does.
    fn implies(self, other: WordTest) -> bool {
        self.offset == other.offset && other.mask & !self.mask == 0 && self.value & other.mask == other.value
    }
}

/// Condition of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramFormula {
    /// Always or never.
    Constant(bool),
    /// A comparison.
    Test(WordTest),
    /// The contrary.
    Not(Box<ProgramFormula>),
    /// All of these.
    All(Vec<ProgramFormula>),
    /// One of these, at least.
    Any(Vec<ProgramFormula>),
}

impl ProgramFormula {
    /// All of some conditions. A comparison that holds whenever an earlier one does is left out.
    pub fn all(parts: Vec<ProgramFormula>) -> ProgramFormula {
        let mut known: Vec<WordTest> = Vec::new();
        let mut kept = Vec::new();
        for part in parts {
            if let ProgramFormula::Test(test) = part {
                if known.iter().any(|known| known.implies(test)) {
                    continue;
                }
                known.push(test);
            }
            kept.push(part);
        }
        ProgramFormula::All(kept)
    }
}

/// Destination of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StepTarget {
    Step(usize),
    Output(u32),
    Drop,
}

/// Steps, the last one first.
#[derive(Default)]
struct DecisionSteps {
    all: Vec<(WordTest, [StepTarget; 2])>,
}

impl DecisionSteps {
    /// The step for a formula with these targets; fewer steps if some are not needed.
    fn add(&mut self, formula: &ProgramFormula, yes: StepTarget, no: StepTarget) -> StepTarget {
        match formula {
            _ if yes == no => yes,
            ProgramFormula::Constant(true) => yes,
            ProgramFormula::Constant(false) => no,
            ProgramFormula::Not(inner) => self.add(inner, no, yes),
            ProgramFormula::All(inner) => inner.iter().rev().fold(yes, |next, part| self.add(part, next, no)),
            ProgramFormula::Any(inner) => inner.iter().rev().fold(no, |next, part| self.add(part, yes, next)),
            ProgramFormula::Test(test) => {
                let step = (*test, [yes, no]);
                let known = self.all.iter().position(|known| *known == step);
                StepTarget::Step(known.unwrap_or_else(|| {
                    self.all.push(step);
                    self.all.len() - 1
                }))
            }
        }
    }

    /// The steps behind one, each once, in order.
    fn order(&self, first: usize) -> Vec<usize> {
        let (mut all, mut open) = (Vec::new(), vec![first]);
        while let Some(step) = open.pop() {
            if !all.contains(&step) {
                all.push(step);
                let next = self.all[step].1.iter().filter_map(|target| match target {
                    StepTarget::Step(step) => Some(*step),
                    StepTarget::Output(_) | StepTarget::Drop => None,
                });
                open.extend(next);
            }
        }
        // A step comes in front of those that it leads to: it was made behind them.
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }
}

/// The text of rules, each with its output, or none for packets that are dropped. Packets of no rule are
/// dropped.
pub fn program_text(rules: &[(Option<u32>, ProgramFormula)]) -> String {
    let mut steps = DecisionSteps::default();
    let target = |output: &Option<u32>| output.map_or(StepTarget::Drop, StepTarget::Output);
    let first = rules
        .iter()
        .rev()
        .fold(StepTarget::Drop, |next, (output, formula)| steps.add(formula, target(output), next));
    let mut text = String::new();
    let StepTarget::Step(first) = first else {
        return format!("all->{}\nsafe length 0\nalignment offset 0\n", target_text(first, &[]));
    };
    let order = steps.order(first);
    let mut safe = 0;
    for (number, step) in order.iter().enumerate() {
        let (WordTest { offset, mask, value }, [yes, no]) = steps.all[*step];
        let [yes, no] = [yes, no].map(|target| target_text(target, &order));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{number:2} {offset:3}/{value:08x}%{mask:08x}  yes->{yes}  no->{no}");
        safe = safe.max(offset + 4 - mask.trailing_zeros() / 8);
    }
    text + &format!("safe length {safe}\nalignment offset 0\n")
}

fn target_text(target: StepTarget, order: &[usize]) -> String {
    match target {
        StepTarget::Step(step) => {
            format!("step {}", order.iter().position(|known| *known == step).unwrap_or_default())
        }
        StepTarget::Output(output) => format!("[{output}]"),
        StepTarget::Drop => "[X]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{IP_HEADER, ProgramFormula, WordTest, program_text};

    fn test(offset: u32, bytes: u32, value: u32) -> ProgramFormula {
        ProgramFormula::Test(WordTest::of_bytes(offset, bytes, u32::MAX, value).expect("in one word"))
    }

    #[test]
    fn steps_are_compared_words_with_the_lengths_that_they_need() {
        let rules = [(Some(0), test(1, 1, 1)), (Some(1), ProgramFormula::Constant(true))];
        let text = " 0   0/00010000%00ff0000  yes->[0]  no->[1]\nsafe length 2\nalignment offset 0\n";
        assert_eq!(program_text(&rules), text);
        let both = ProgramFormula::All(vec![test(IP_HEADER + 9, 1, 6), test(IP_HEADER + 12, 4, 7)]);
        let text = " 0 264/00060000%00ff0000  yes->step 1  no->[X]\n \
             1 268/00000007%ffffffff  yes->[2]  no->[X]\nsafe length 272\nalignment offset 0\n";
        assert_eq!(program_text(&[(Some(2), both)]), text);
    }

    #[test]
    fn rules_that_make_no_difference_have_no_steps() {
        let rules = [(Some(0), test(0, 4, 1)), (Some(0), ProgramFormula::Constant(true))];
        assert_eq!(program_text(&rules), "all->[0]\nsafe length 0\nalignment offset 0\n");
        assert_eq!(program_text(&[]), "all->[X]\nsafe length 0\nalignment offset 0\n");
    }
}
