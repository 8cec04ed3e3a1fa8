//! `promote-spills`: turns spill slots that hold addresses of the stack into values.
//!
//! An address that is stored escapes, so nothing is known of who accesses the frame: neither `split-stack`
//! nor `mem2reg` touch it then. Here the words that stack addresses are stored to are promoted on trial. If,
//! with the addresses followed to where they really go, no access is left that could reach the promoted
//! words, the trial was right: the first access to reach them in the original would have to be there after
//! the trial, too.

use millstream_ir::{Cfg, DomTree, Func, Function, Module, Op, Size};
use millstream_isa::ByteOrder;

use super::address::ResolvedAddresses;
use super::footprint::{AddressUse, FootprintAnalysis, ParamSpans, param_spans};
use super::promote::{SlotPromotion, SlotSlice, SlotSlices};
use super::types::refine_types;
use crate::manager::{ModulePass, PassSession};

const NAME: &str = "promote-spills";

/// The pass.
pub(crate) struct PromoteSpills;

impl ModulePass for PromoteSpills {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "promote spilled addresses of the stack to values"
    }

    fn run(&self, module: &mut Module, session: &mut PassSession) -> bool {
        if module.funcs.values().all(|f| f.slots.is_empty()) {
            return false;
        }
        let spans = param_spans(module);
        let ids: Vec<Func> = module.funcs.keys().collect();
        let order = session.target.byte_order;
        let mut changed = false;
        for id in ids {
            if let Some(better) = promoted(module, &module.funcs[id], &spans, order)
                && session.fuel(NAME)
            {
                module.funcs[id] = better;
                changed = true;
            }
        }
        changed
    }
}

/// The function with its spilled addresses as values, if that is right.
fn promoted(module: &Module, func: &Function, spans: &ParamSpans, order: ByteOrder) -> Option<Function> {
    if func.layout.is_empty() {
        return None;
    }
    let cfg = Cfg::new(func);
    let pieces = spills(func);
    if pieces.is_empty() || !cfg.preds[func.entry()].is_empty() {
        return None;
    }
    let mut trial = func.clone();
    let dom = DomTree::new(&trial, &cfg);
    SlotPromotion::new(&trial, SlotSlices::of(func, pieces.clone()), order).run(&mut trial, &cfg, &dom);
    refine_types(&mut trial, &cfg);
    untouched(module, &trial, spans, &pieces).then_some(trial)
}

/// Words that stack addresses are stored to, and that all accesses with known addresses access as words.
fn spills(func: &Function) -> Vec<SlotSlice> {
    let addresses = ResolvedAddresses::new(func);
    let mut pieces: Vec<SlotSlice> = Vec::new();
    for (_, inst) in func.insts_in_order() {
        let data = &func.insts[inst];
        if let Op::Store { size: Size::Dw, .. } = data.op
            && addresses.of(data.args[1]).slot().is_some()
            && let Some((addr, size)) = addresses.accessed(func, inst)
            && let Some(slot) = addr.slot()
        {
            let piece = SlotSlice { slot, lo: addr.offset, size };
            if !pieces.contains(&piece) {
                pieces.push(piece);
            }
        }
    }
    for (_, inst) in func.insts_in_order() {
        let Some((addr, size)) = addresses.accessed(func, inst) else { continue };
        let hi = addr.offset + i64::from(size.bytes());
        let plain = match func.insts[inst].op {
            Op::Load { flags, .. } | Op::Store { flags, .. } => !flags.volatile && flags.core.is_none(),
            _ => false,
        };
        pieces.retain(|p| {
            let apart = Some(p.slot) != addr.slot() || hi <= p.lo || p.hi() <= addr.offset;
            apart || (plain && addr.offset == p.lo && size == p.size)
        });
    }
    pieces
}

/// Returns true if no use of an address can reach the pieces.
fn untouched(module: &Module, func: &Function, params: &ParamSpans, pieces: &[SlotSlice]) -> bool {
    let uses = FootprintAnalysis::new(module, func, params, false);
    let spans = uses.spans();
    let addresses = ResolvedAddresses::new(func);
    let reaches = |value, what| {
        let addr = addresses.of(value);
        let Some(slot) = addr.slot() else { return false };
        let span = match what {
            AddressUse::Touch(span) => span,
            // Uses of an address that is known as exactly are looked at by themselves.
            AddressUse::Derive(to, _) if addresses.of(to).slot().is_some() => return false,
            AddressUse::Derive(to, by) => spans[to].shifted(by),
        };
        let (lo, hi) = (addr.offset.saturating_add(span.lo), addr.offset.saturating_add(span.hi));
        !span.is_empty() && pieces.iter().any(|p| p.slot == slot && lo < p.hi() && p.lo < hi)
    };
    !func.insts_in_order().any(|(_, inst)| {
        let data = &func.insts[inst];
        let argument = |(i, &arg)| reaches(arg, uses.argument(inst, i));
        let passed = data.targets.iter().any(|target| {
            let params = &func.blocks[target.block].params;
            target.args.iter().zip(params).any(|(&arg, &p)| reaches(arg, AddressUse::Derive(p, (0, 0))))
        });
        data.args.iter().enumerate().any(argument) || passed
    })
}
