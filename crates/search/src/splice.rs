//! A replacement in its function: its insertion, and the lesson learnt from it.

use millstream_isa::Insn;
use millstream_prove::window::WindowStep;

use crate::code::{CodeLine, FunctionCode};
use crate::rules::RuleCandidate;
use crate::window::{FunctionAnalysis, InsnWindow, WindowSpan, chain, cut};

/// A replacement, and variants without the instructions with which both sides begin or end.
pub(crate) fn rule_candidate(
    f: &FunctionAnalysis<'_>,
    window: &InsnWindow,
    steps: &[WindowStep],
) -> RuleCandidate {
    let (mut window, mut steps) = (window.clone(), steps.to_vec());
    let mut out = RuleCandidate::default();
    loop {
        out.variants.push((window.place.clone(), window.steps.clone(), steps.clone()));
        let plain = |s: Option<&WindowStep>| matches!(s, Some(WindowStep::Do(_) | WindowStep::Opaque(..)));
        let span = window.span;
        let shorter = if plain(steps.last()) && steps.last() == window.steps.last() {
            steps.pop();
            WindowSpan { count: span.count - 1, ..span }
        } else if plain(steps.first()) && steps.first() == window.steps.first() {
            steps.remove(0);
            let Some(&(block, line)) = chain(f.code, span.block, span.line, span.count).get(1) else {
                return out;
            };
            WindowSpan { block, line, count: span.count - 1, ..span }
        } else {
            return out;
        };
        match cut(f, shorter) {
            Some(next) => window = next,
            None => return out,
        }
    }
}

/// The function with a window replaced.
pub(crate) fn replaced(code: &FunctionCode, window: &InsnWindow, steps: &[WindowStep]) -> FunctionCode {
    let mut out = code.clone();
    let places = chain(code, window.span.block, window.span.line, window.span.count);
    let mut exits = window.lines.iter().filter(|l| matches!(l.insn, Insn::Branch { .. }));
    let own = |step: &WindowStep| window.steps.iter().position(|w| w == step).map(|n| window.lines[n]);
    let mut blocks: Vec<usize> = places.iter().map(|p| p.0).collect();
    blocks.dedup();
    let mut new: Vec<Vec<CodeLine>> = vec![Vec::new(); blocks.len()];
    let mut at = 0;
    for step in steps {
        let line = match step {
            WindowStep::Do(insn) => CodeLine::new(*insn),
            WindowStep::Opaque(_, insn) => own(step).unwrap_or(CodeLine::new(*insn)),
            WindowStep::Exit(_, insn) => {
                CodeLine { insn: *insn, ..exits.next().copied().unwrap_or(window.lines[0]) }
            }
        };
        new[at].push(line);
        if matches!(step, WindowStep::Exit(..)) {
            at += 1;
        }
    }
    for (n, &b) in blocks.iter().enumerate().rev() {
        let range: Vec<usize> = places.iter().filter(|p| p.0 == b).map(|p| p.1).collect();
        let (Some(&from), Some(&to)) = (range.first(), range.last()) else { continue };
        let mut lines = std::mem::take(&mut new[n]);
        // The source line of the first replaced instruction stays.
        let source = code.blocks[b].lines[from..=to].iter().find_map(|l| l.source);
        if let Some(first) = lines.first_mut() {
            first.source = first.source.or(source);
        }
        out.blocks[b].lines.splice(from..=to, lines);
    }
    out.link();
    out
}
