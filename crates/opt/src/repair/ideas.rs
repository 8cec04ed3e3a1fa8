//! Edits that may help against a rejection, by its reason and its instruction.

use millstream_isa::{AluOp, Cond, Insn, Operand, Reg, Size, Width};
use millstream_kernel::Rejection;
use millstream_object::{EntryProgram, Object, ProgramType};
use millstream_search::{PacketEndField, RangeCheckSite, RepairEdit, loop_headers, slot_line};

/// Greatest numbers of rounds that are tried in turn.
const ROUNDS: [i32; 9] = [4, 8, 16, 32, 64, 128, 256, 1_024, 4_096];

/// Advice for a result that is accepted but not proven.
pub(super) const NOT_PROVEN: &str = "the kernel accepts the program with these checks, but it is not proven \
that they never fail: write them into the source, where you can say what happens if they do";

/// The place and the reason of a rejection.
#[derive(Clone, Debug)]
pub(super) struct RejectedPlace {
    pub(super) reason: String,
    /// The function.
    pub(super) func: u32,
    /// Slot of the function.
    pub(super) slot: Option<usize>,
    /// Line of the function.
    pub(super) line: Option<usize>,
    pub(super) insn: Option<Insn>,
    /// Slots of the function.
    length: usize,
}

impl RejectedPlace {
    pub(super) fn new(object: &Object, program: &EntryProgram, rejection: &Rejection) -> RejectedPlace {
        let reason = rejection.reason().to_owned();
        let linked = object.link(program.func).ok();
        let named = reason.strip_prefix("unreachable insn ").and_then(|n| n.trim().parse().ok());
        let at = rejection.slot().or(named);
        let within = at.and_then(|slot| {
            let functions = &linked.as_ref()?.functions;
            let (start, func) = *functions.iter().take_while(|(start, _)| *start as usize <= slot).last()?;
            Some((func.0, slot - start as usize))
        });
        let func = within.map_or(program.func.0, |(func, _)| func);
        let slot = within.map(|(_, slot)| slot);
        let found = slot.and_then(|slot| slot_line(object, func, slot));
        let length = object.functions.get(func as usize).map_or(0, |f| f.insns.len());
        RejectedPlace { reason, func, slot, line: found.map(|f| f.0), insn: found.map(|f| f.1), length }
    }

    /// Returns true if a slot, in a function that has grown, lies in the exit of a guard.
    pub(super) fn is_exit(&self, slot: Option<usize>, grown: usize) -> bool {
        slot.is_some_and(|slot| slot >= self.length + grown)
    }

    /// Returns true if a rejection of a form with edits is at the same instruction, or at what the edits
    /// inserted before it.
    pub(super) fn is_same(&self, now: &RejectedPlace, edits: &[RepairEdit]) -> bool {
        let (Some(was), Some(at)) = (self.slot, now.slot) else { return self.reason == now.reason };
        let exits = 2 * edits
            .iter()
            .filter(|e| e.is_assumption() && !matches!(e, RepairEdit::Initialize { .. }))
            .count();
        let grown = (now.length.saturating_sub(exits)).saturating_sub(self.length);
        let first = edits.iter().map(RepairEdit::line).min().unwrap_or(0);
        let inserted = first..(first + grown).max(first);
        at == was + grown && self.reason == now.reason
            || inserted.contains(&at)
                && grown > 0
                && at <= was + grown
                && !matches!(edits, [RepairEdit::Initialize { .. }])
            || at == was + grown
                && edits.iter().any(|e| matches!(e, RepairEdit::Guard { cond: Cond::Gt, .. }))
            || self.is_exit(Some(at), grown) && exits > 0
    }

    /// The instruction and its source line.
    pub(super) fn describe(&self, object: &Object) -> Option<String> {
        let function = object.functions.get(self.func as usize)?;
        let slot = self.slot?;
        let line = function.line_info.iter().take_while(|l| l.insn as usize <= slot).last();
        let source =
            line.and_then(|l| Some(format!(" ({}:{})", object.btf.as_ref()?.str(l.file).trim(), l.line)));
        Some(format!("`{}`, slot {slot} of {}{}", self.insn?, function.name, source.unwrap_or_default()))
    }

    fn says(&self, words: &[&str]) -> bool {
        words.iter().any(|w| self.reason.contains(w))
    }

    /// The register that the reason begins with.
    fn named_register(&self) -> Option<Reg> {
        let digits: String =
            self.reason.strip_prefix('R')?.chars().take_while(char::is_ascii_digit).collect();
        Reg::new(digits.parse().ok()?)
    }

    pub(super) fn is_misaligned(&self) -> bool {
        self.says(&["misaligned"])
    }

    fn is_too_complex(&self) -> bool {
        self.says(&["too complex", "too large. Processed", "infinite loop", "back-edge"])
    }
}

/// Edits of which one may help, weakest first.
#[derive(Clone, Debug)]
pub(super) struct RepairIdea {
    /// An edit that is made in any case.
    pub(super) first: Option<RepairEdit>,
    /// Edits of which one is made.
    pub(super) alternatives: Vec<RepairEdit>,
    /// True if the first one is taken that is proven at once.
    pub(super) proven: bool,
}

impl RepairIdea {
    fn one(edit: RepairEdit) -> RepairIdea {
        RepairIdea { first: None, alternatives: vec![edit], proven: false }
    }

    /// The weakest bound, if bounds are tried.
    pub(super) fn rank(&self) -> Option<i32> {
        match self.alternatives.first() {
            Some(RepairEdit::Guard { cond: Cond::Gt, value, .. }) => Some(*value),
            _ => None,
        }
    }
}

/// An edit as it is when another one was made before it at the same line.
pub(super) fn behind(first: RepairEdit, edit: RepairEdit) -> RepairEdit {
    match edit {
        RepairEdit::Guard { site, cond, value } if first.func() == site.func && first.line() <= site.line => {
            RepairEdit::Guard { site: RangeCheckSite { line: site.line + 1, ..site }, cond, value }
        }
        other => other,
    }
}

/// Ways to make a whole program again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WholeForm {
    /// Numbers are forgotten where paths meet.
    Forget,
    /// The sides of branches are swapped.
    ExploreOther,
    /// Functions are moved into their callers.
    Inlined,
}

/// Ways to make a whole program again that may help against a rejection.
pub(super) fn whole_forms(place: &RejectedPlace) -> Vec<WholeForm> {
    if place.says(&["combined stack size", "call stack of", "frames is too deep"]) {
        vec![WholeForm::Inlined]
    } else if place.is_too_complex() {
        vec![WholeForm::Forget, WholeForm::ExploreOther]
    } else {
        Vec::new()
    }
}

/// Edits of single places that may help against a rejection, the likeliest first.
pub(super) fn edits(object: &Object, program: &EntryProgram, place: &RejectedPlace) -> Vec<RepairIdea> {
    let func = place.func;
    if place.says(&["unreachable insn"]) {
        return vec![RepairIdea::one(RepairEdit::DropUnreachable { func })];
    }
    if place.says(&["!read_ok"]) {
        let register = place.named_register();
        return register
            .map(|register| RepairIdea::one(RepairEdit::Initialize { func, register }))
            .into_iter()
            .collect();
    }
    let Some(line) = place.line else { return Vec::new() };
    let rounds = |ascending: bool| rounds(object, func, line, ascending);
    if place.is_too_complex() {
        return rounds(true);
    }
    if let Some(ideas) = pointer_edits(place, line) {
        return ideas;
    }
    let mut ideas = Vec::new();
    if place.says(&["outside of the packet", "invalid access to packet"]) {
        ideas.extend(packet_guards(program, place, line));
    }
    ideas.extend(number_guards(object, place));
    if place.says(&[
        "invalid write to stack",
        "invalid read from stack",
        "invalid access to map value",
        "memory range",
    ]) {
        ideas.extend(rounds(false));
    }
    ideas
}

/// Edits against reasons that name a kind of pointer, or how it is used; [`None`] for other reasons.
fn pointer_edits(place: &RejectedPlace, line: usize) -> Option<Vec<RepairIdea>> {
    let func = place.func;
    if place.says(&["_or_null", "null-check it first"]) {
        let tested = place.named_register().or(place.insn.and_then(base_of));
        let guard = |register| {
            RepairIdea::one(RepairEdit::Guard {
                site: RangeCheckSite { func, line, register },
                cond: Cond::Eq,
                value: 0,
            })
        };
        let delayed = RepairIdea::one(RepairEdit::DelayAddition { func, line });
        let first = place.says(&["null-check it first"]).then_some(delayed);
        return Some(first.into_iter().chain(tested.map(guard)).collect());
    }
    if place.says(&["dereference of modified ctx"]) {
        let by = number_behind(&place.reason, "off=").and_then(|n| i16::try_from(n).ok());
        return Some(
            by.map(|by| RepairIdea::one(RepairEdit::MoveBack { func, line, by })).into_iter().collect(),
        );
    }
    if place.says(&["cannot be used with different pointers"]) {
        return Some(vec![RepairIdea::one(RepairEdit::Duplicate { func, line })]);
    }
    if place.says(&["misaligned stack access off 0+0+"])
        && let Some(part) = aligned_part(&place.reason)
    {
        return Some(vec![RepairIdea::one(RepairEdit::SplitAccess { func, line, part })]);
    }
    None
}

/// Guards of numbers: an upper bound, or an upper bound with a multiple, or with a lower bound.
fn number_guards(object: &Object, place: &RejectedPlace) -> Vec<RepairIdea> {
    let Some(slot) = place.slot else { return Vec::new() };
    let sites = RangeCheckSite::before_slot(object, place.func, slot);
    let bounds = bounds(object);
    let guard = |site, cond, value| RepairEdit::Guard { site, cond, value };
    let upper = |site: RangeCheckSite| bounds.iter().map(|b| guard(site, Cond::Gt, *b)).collect::<Vec<_>>();
    let idea = |first, site| RepairIdea { first, alternatives: upper(site), proven: false };
    let mut ideas: Vec<RepairIdea> = Vec::new();
    if place.is_misaligned() {
        ideas.extend(
            sites.iter().flat_map(|s| [1, 3, 7].map(|bits| RepairIdea::one(guard(*s, Cond::Set, bits)))),
        );
    }
    ideas.extend(sites.iter().map(|site| idea(None, *site)));
    if matches!(place.insn, Some(Insn::Call(_))) {
        let named = |s: &&RangeCheckSite| place.named_register().is_none_or(|r| r == s.register);
        let low = |site: &RangeCheckSite| RepairIdea::one(guard(*site, Cond::Lt, 1));
        ideas.extend(sites.iter().filter(named).map(low));
        ideas.extend(sites.iter().filter(named).map(|site| idea(Some(guard(*site, Cond::Lt, 1)), *site)));
    }
    ideas
}

/// Guards of the packet pointer of an access: against the packet's end, then against its begin, which ends the
/// metadata.
fn packet_guards(program: &EntryProgram, place: &RejectedPlace, line: usize) -> Vec<RepairIdea> {
    let (Some(insn), Some(ends)) = (place.insn, packet_ends(program.kind.program_type)) else {
        return Vec::new();
    };
    let (Some(register), Some((off, size))) = (base_of(insn), extent_of(insn)) else { return Vec::new() };
    let site = RangeCheckSite { func: place.func, line, register };
    let bytes = i32::from(off) + size.bytes() as i32;
    if bytes <= 0 {
        return Vec::new();
    }
    ends.into_iter().map(|end| RepairIdea::one(RepairEdit::GuardPacket { site, bytes, end })).collect()
}

/// Fields of the context with the packet's end and begin (`struct xdp_md`, `__sk_buff`, `sk_msg_md`).
fn packet_ends(kind: ProgramType) -> Option<[PacketEndField; 2]> {
    use ProgramType as P;
    let (end, begin, size) = match kind {
        P::XDP => (4, 0, Size::W),
        P::SCHED_CLS
        | P::SCHED_ACT
        | P::CGROUP_SKB
        | P::SK_SKB
        | P::LWT_IN
        | P::LWT_OUT
        | P::LWT_XMIT
        | P::LWT_SEG6LOCAL
        | P::FLOW_DISSECTOR => (80, 76, Size::W),
        P::SK_MSG => (8, 0, Size::Dw),
        _ => return None,
    };
    Some([end, begin].map(|off| PacketEndField { off, size }))
}

/// Guards of the rounds of loops: ascending, each to be proven, or the weakest that is accepted.
fn rounds(object: &Object, func: u32, line: usize, ascending: bool) -> Vec<RepairIdea> {
    let guard = |line, most| RepairEdit::GuardRounds { func, line, most };
    let each = |line| {
        let alternatives = match ascending {
            true => ROUNDS.iter().map(|most| guard(line, *most)).collect(),
            false => (1..=64).rev().map(|most| guard(line, most)).collect(),
        };
        RepairIdea { first: None, alternatives, proven: ascending }
    };
    loop_headers(object, func, line).into_iter().take(3).map(each).collect()
}

/// Bounds to try, the weakest first: powers of two less one, and what is left of map values and frames.
pub(super) fn bounds(object: &Object) -> Vec<i32> {
    let sizes = object.maps.iter().map(|m| m.spec.value_size).filter(|size| *size <= 1 << 16);
    let ends = sizes.flat_map(|size| (0..=8).map(move |less| size as i32 - less));
    let mut bounds: Vec<i32> = (0..=16).map(|k| (1i32 << k) - 1).chain(ends).chain(0..512).collect();
    bounds.retain(|b| *b >= 0);
    bounds.sort_unstable_by_key(|b| std::cmp::Reverse(*b));
    bounds.dedup();
    bounds
}

/// The register through which an instruction accesses memory, or that it adds to.
fn base_of(insn: Insn) -> Option<Reg> {
    match insn {
        Insn::Load { src, .. } | Insn::LoadAcquire { src, .. } => Some(src),
        Insn::Store { dst, .. } | Insn::Atomic { dst, .. } | Insn::StoreRelease { dst, .. } => Some(dst),
        Insn::Alu {
            width: Width::W64,
            op: AluOp::Add | AluOp::Sub,
            dst,
            src: Operand::Imm(_) | Operand::Reg(_),
        } => Some(dst),
        _ => None,
    }
}

fn extent_of(insn: Insn) -> Option<(i16, Size)> {
    match insn {
        Insn::Load { off, size, .. } | Insn::Store { off, size, .. } | Insn::Atomic { off, size, .. } => {
            Some((off, size))
        }
        _ => None,
    }
}

/// The number behind a word of a reason.
fn number_behind(reason: &str, word: &str) -> Option<i64> {
    let rest = &reason[reason.find(word)? + word.len()..];
    let end = rest.char_indices().find(|(n, c)| !(c.is_ascii_digit() || *n == 0 && *c == '-'));
    rest[..end.map_or(rest.len(), |(n, _)| n)].parse().ok()
}

/// Bytes of the largest part in which a misaligned access to the stack is aligned.
fn aligned_part(reason: &str) -> Option<u8> {
    let offset = number_behind(reason, "off 0+0+")?;
    let size = number_behind(reason, "size ")?;
    let part = 1i64 << offset.unsigned_abs().trailing_zeros().min(2);
    u8::try_from(part.min(size / 2).max(1)).ok()
}

/// Advice to the programmer, by the reason.
pub(super) fn advice(place: &RejectedPlace) -> &'static str {
    let says = |words: &[&str]| place.says(words);
    if says(&["outside of the packet", "invalid access to packet"]) {
        "compare the pointer that is used, plus the bytes that are read, with data_end, directly before the access"
    } else if says(&["_or_null", "null-check it first"]) {
        "compare the pointer itself with NULL before it is used or added to, not a copy that was changed"
    } else if says(&["invalid mem access 'scalar'"]) {
        "the pointer is none any more: a helper moved the packet, or it was read back from memory in parts; \
         read it again from the context and check it again"
    } else if says(&["8193 jumps", "too large. Processed"]) {
        "give the loop a constant bound, use bpf_loop(), or make the block a global function, which is verified once"
    } else if says(&["infinite loop", "back-edge"]) {
        "count the rounds in a variable of its own and compare it with a constant"
    } else if says(&["combined stack size", "call stack of"]) {
        "move large buffers to an element of a per-CPU array, or make functions inline"
    } else if says(&["invalid write to stack", "invalid read from stack", "variable-offset"]) {
        "compare the index with the size of the buffer directly before the access, or mask it with a power of \
         two less one"
    } else if says(&["map value", "map_value", "unbounded", "min value is negative"]) {
        "compare the index or size, as an unsigned number, with a constant directly before it is used"
    } else if says(&["modified ctx", "variable ctx"]) {
        "read fields of the context by their names, with a constant offset"
    } else if says(&["!read_ok"]) {
        "give the variable a value where it is declared"
    } else {
        "see the verifier's log (`millstream verify --log-lines 40`) for the state before the instruction"
    }
}
