//! Redundant packet bounds checks: a check of no more bytes than one that dominates it found, on the same
//! base value, is decided; so is one of at least as many bytes as one that failed.
//!
//! The verifier gives the range that a check proves to every pointer with the base's identity, so that the
//! accesses behind the removed check stay covered by the one that is left.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, Cfg, Cond, DomTree, Function, Inst, Op, Prov, Type, Value, Width};
use rustc_hash::FxHashMap;

use crate::manager::{FuncPass, PassContext};
use crate::rewrite::{make_jump, swapped};

const NAME: &str = "packet-checks";

/// Removes redundant packet bounds checks.
pub(crate) struct PacketChecks;

impl FuncPass for PacketChecks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "remove packet bounds checks that another one covers"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let mut checks = find_checks(func);
        if checks.values().flatten().count() < 2 {
            return false;
        }
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let mut known = ProvenBounds::default();
        let mut changed = false;
        let mut work = vec![(func.entry(), None)];
        while let Some((block, leave)) = work.pop() {
            if let Some(mark) = leave {
                known.forget(mark);
                continue;
            }
            work.push((block, Some(known.undo.len())));
            if let [pred] = cfg.preds[block][..]
                && let Some(check) = checks[pred]
            {
                let first = func.insts[check.term].targets.first().is_some_and(|t| t.block == block);
                known.learn(&check, first);
            }
            if let Some(check) = checks[block]
                && let Some(beyond) = known.decide(&check)
                && cx.fuel(NAME)
            {
                let side = usize::from(beyond != check.taken_if_beyond);
                let target = func.insts[check.term].targets[side].clone();
                make_jump(func, check.term, target);
                checks[block] = None;
                changed = true;
            }
            work.extend(dom.children(block).iter().rev().map(|&b| (b, None)));
        }
        changed
    }
}

/// A branch on whether `base + bytes` lies beyond the end of the packet.
#[derive(Clone, Copy)]
struct BoundsCheck {
    term: Inst,
    base: Value,
    end: Value,
    bytes: i64,
    // Whether the first side is the one for which it does.
    taken_if_beyond: bool,
}

fn find_checks(func: &Function) -> SecondaryMap<Block, Option<BoundsCheck>> {
    let mut checks = SecondaryMap::with_default(None);
    for &block in &func.layout {
        checks[block] = func.terminator(block).and_then(|term| as_check(func, term));
    }
    checks
}

fn as_check(func: &Function, term: Inst) -> Option<BoundsCheck> {
    let data = &func.insts[term];
    let Op::Branch { cond, width: Width::W64 } = data.op else { return None };
    let is_end = |v: Value| func.types[v] == Type::Ptr(Prov::PacketEnd);
    let (pointer, end, cond) = match (data.args[0], data.args[1]) {
        (p, end) if is_end(end) && !is_end(p) => (p, end, cond),
        (end, p) if is_end(end) && !is_end(p) => (p, end, swapped(cond)),
        _ => return None,
    };
    if data.targets[0].block == data.targets[1].block || func.types[pointer] != Type::Ptr(Prov::Packet) {
        return None;
    }
    let (base, offset) = split(func, pointer);
    // p > end: the byte before p is outside; p >= end: the byte at p is.
    let (bytes, taken_if_beyond) = match cond {
        Cond::Gt => (offset, true),
        Cond::Le => (offset, false),
        Cond::Ge => (offset.checked_add(1)?, true),
        Cond::Lt => (offset.checked_add(1)?, false),
        _ => return None,
    };
    Some(BoundsCheck { term, base, end, bytes, taken_if_beyond })
}

/// A pointer as base and constant.
fn split(func: &Function, pointer: Value) -> (Value, i64) {
    let (mut base, mut offset) = (pointer, 0i64);
    while let Some(inst) = func.def_inst(base) {
        let data = &func.insts[inst];
        let Op::Alu { op: AluOp::Add, width: Width::W64 } = data.op else { break };
        let Some(constant) = func.as_const(data.args[1]) else { break };
        let Some(sum) = offset.checked_add(constant) else { break };
        (base, offset) = (data.args[0], sum);
    }
    (base, offset)
}

/// Bytes that are there, and bytes that are more than there are.
#[derive(Clone, Copy)]
struct CheckedBounds {
    least: i64,
    beyond: i64,
}

const NOTHING: CheckedBounds = CheckedBounds { least: i64::MIN, beyond: i64::MAX };

#[derive(Default)]
struct ProvenBounds {
    room: FxHashMap<(Value, Value), CheckedBounds>,
    undo: Vec<((Value, Value), CheckedBounds)>,
}

impl ProvenBounds {
    fn of(&self, check: &BoundsCheck) -> CheckedBounds {
        self.room.get(&(check.base, check.end)).copied().unwrap_or(NOTHING)
    }

    fn learn(&mut self, check: &BoundsCheck, first_side: bool) {
        let old = self.of(check);
        let mut new = old;
        if first_side == check.taken_if_beyond {
            new.beyond = new.beyond.min(check.bytes);
        } else {
            new.least = new.least.max(check.bytes);
        }
        self.undo.push(((check.base, check.end), old));
        self.room.insert((check.base, check.end), new);
    }

    fn forget(&mut self, mark: usize) {
        for (key, room) in self.undo.drain(mark..).rev() {
            self.room.insert(key, room);
        }
    }

    /// Outcome of the check, if it is known: true if the packet is too short.
    fn decide(&self, check: &BoundsCheck) -> Option<bool> {
        let room = self.of(check);
        if check.bytes <= room.least {
            Some(false)
        } else if check.bytes >= room.beyond {
            Some(true)
        } else {
            None
        }
    }
}
