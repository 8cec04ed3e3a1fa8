//! Conversion between initial values of windows and the variables that stand for them.

use std::fmt;

use super::*;
use crate::sweep::cone;
use crate::term::TermNode;

/// The terms whose values show a difference of two windows.
pub(super) fn wanted(terms: &TermPool, claim: TermId) -> Vec<TermId> {
    let mut out = Vec::new();
    for t in cone(terms, &[claim]) {
        match terms.node(t) {
            TermNode::App(..) if matches!(terms.sort(t), Sort::Bits(_)) => out.push(t),
            TermNode::Select(_, _, f) => out.extend([t, *f]),
            _ => {}
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

pub(super) fn valuation(
    terms: &TermPool,
    place: &WindowContext,
    wanted: &[TermId],
    value: impl Fn(TermId) -> Option<u64>,
) -> InitialValues {
    let mut out = InitialValues::default();
    let mut named: BTreeMap<&str, u64> = BTreeMap::new();
    for &t in wanted {
        let Some(v) = value(t) else { continue };
        match terms.node(t) {
            TermNode::App(f, _) => {
                let name = terms.name(*f);
                if let Some(at) = name.strip_prefix("stack ").and_then(|n| n.parse().ok()) {
                    out.stack.insert(at, v as u8);
                } else {
                    named.insert(name, v);
                }
            }
            TermNode::Select(m, _, f) => {
                if let (TermNode::App(s, _), Some(at)) = (terms.node(*m), value(*f).or(terms.value(*f)))
                    && let Some(space) = terms.name(*s).strip_prefix("space ").and_then(|n| n.parse().ok())
                {
                    out.memory.push((space, at, v as u8));
                }
            }
            _ => {}
        }
    }
    for (slot, known) in out.regs.iter_mut().zip(&place.entry.regs) {
        *slot = match known {
            EntryFact::Nothing => None,
            EntryFact::Number(s, n) => {
                named.get(format!("number {n}").as_str()).map(|v| v & s.bits().mask() | s.bits().value())
            }
            EntryFact::Value(n) => named.get(format!("value {n}").as_str()).copied(),
            EntryFact::Address(AddressSpace::Stack, _, _) => None,
            EntryFact::Address(_, n, d) => {
                named.get(format!("base {n}").as_str()).map(|v| v.wrapping_add(*d as u64))
            }
        };
    }
    out
}

impl fmt::Display for InitialValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regs = self.regs.iter().enumerate().filter_map(|(n, v)| Some(format!("r{n} = {:#x}", (*v)?)));
        let stack = self.stack.iter().map(|(at, byte)| format!("byte {at} of the frame = {byte:#x}"));
        let memory = self.memory.iter().map(|(_, at, byte)| format!("byte at {at:#x} = {byte:#x}"));
        f.write_str(&regs.chain(stack).chain(memory).collect::<Vec<_>>().join(", "))
    }
}

/// The values of variables in an example.
pub(super) fn given(place: &WindowContext, values: &InitialValues) -> BTreeMap<String, u64> {
    let named = place.entry.regs.iter().zip(values.regs).filter_map(|(known, value)| match (known, value?) {
        (EntryFact::Number(_, n), v) => Some((format!("number {n}"), v)),
        (EntryFact::Value(n), v) => Some((format!("value {n}"), v)),
        (EntryFact::Address(AddressSpace::Other(_), n, d), v) => {
            Some((format!("base {n}"), v.wrapping_sub(*d as u64)))
        }
        _ => None,
    });
    named.collect()
}
