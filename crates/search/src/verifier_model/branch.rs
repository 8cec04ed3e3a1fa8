//! Branches: which sides can be taken, and what each side teaches.

use millstream_isa::absint::Scalar;
use millstream_isa::{AluOp, Cond, Insn, Operand, Reg, Width, semantics};

use super::frame::VerifierFrame;
use super::register::{AT_END, BEYOND_END, PointerTarget, RegisterValue, VerifierPointer, VerifierRegister};
use super::rules::WalkRules;
use super::step::operand;

/// The two sides of a branch.
pub(super) struct BranchSides {
    /// The state on the side that jumps, and on the other; [`None`] if it cannot be taken.
    pub(super) taken: Option<Vec<VerifierFrame>>,
    pub(super) other: Option<Vec<VerifierFrame>>,
    /// Registers whose exact numbers decided the branch.
    pub(super) precise: u16,
    /// Registers that were refined together.
    pub(super) linked: u16,
}

/// Follows a branch both ways, as far as the verifier does.
pub(super) fn sides(rules: &WalkRules, frames: &[VerifierFrame], insn: &Insn) -> BranchSides {
    let mut out = BranchSides { taken: None, other: None, precise: 0, linked: 0 };
    let (Insn::Branch { width, cond, dst, src, .. }, Some(frame)) = (*insn, frames.last()) else {
        return out;
    };
    let (a, b) = (frame.get(dst), operand(frame, src));
    let null_test = matches!(cond, Cond::Eq | Cond::Ne) && width == Width::W64 && is_zero(&b);
    let mut made = [Some(frames.to_vec()), Some(frames.to_vec())];
    match (a.value, b.value) {
        (RegisterValue::Pointer(p), _) if null_test && !p.nullable => {
            made[usize::from(cond == Cond::Ne)] = None;
        }
        (RegisterValue::Pointer(_), _) if null_test => {
            for (n, side) in made.iter_mut().enumerate() {
                let null = (cond == Cond::Eq) == (n == 0);
                side.iter_mut().flatten().for_each(|f| learn_null(f, a.id, null));
            }
        }
        (RegisterValue::Pointer(p), RegisterValue::Pointer(q)) if width == Width::W64 => {
            compare_with_end(&mut made, cond, (a, p), (b, q), (dst, src));
        }
        (RegisterValue::Number(x), RegisterValue::Number(y)) => {
            for (n, side) in made.iter_mut().enumerate() {
                let refined = rules.domain.refine(cond, width, n == 0, &x, &y);
                let (Some(frames), Some((x, y))) = (side.as_mut(), refined) else {
                    *side = None;
                    continue;
                };
                refine(rules, frames, (dst, a), x);
                if let Operand::Reg(r) = src {
                    refine(rules, frames, (r, b), y);
                }
            }
            let registers = 1 << dst.index() | if let Operand::Reg(r) = src { 1 << r.index() } else { 0u16 };
            if made.iter().flatten().count() < 2 {
                out.precise = registers;
            } else if rules.follows_needs {
                let of = |id: u32| {
                    let same = |n: &usize| id != 0 && frame.regs[*n].is_number() && frame.regs[*n].id == id;
                    (0..10usize).filter(same).fold(0u16, |bits, n| bits | 1 << n)
                };
                out.linked = of(a.id) | of(b.id);
            }
        }
        _ => {}
    }
    let [taken, other] = made;
    (out.taken, out.other) = (taken, other);
    out
}

fn is_zero(b: &VerifierRegister) -> bool {
    b.is_number() && b.scalar().as_constant() == Some(0)
}

/// A pointer that may be null is, or is not.
fn learn_null(frame: &mut VerifierFrame, id: u32, null: bool) {
    let nullable = |v: &VerifierRegister| v.as_pointer().filter(|p| v.id == id && p.nullable);
    frame.change(
        |v| nullable(v).is_some(),
        |v| {
            *v = match nullable(v) {
                // Without a lock or reference in it, the name counts no more.
                Some(p) if !null => VerifierRegister::pointer(VerifierPointer { nullable: false, ..p }, 0),
                _ => VerifierRegister::number(Scalar::constant(0)),
            };
        },
    );
}

/// Refines a number and all that are linked to it.
fn refine(
    rules: &WalkRules,
    frames: &mut [VerifierFrame],
    (r, known): (Reg, VerifierRegister),
    value: Scalar,
) {
    if known.id != 0 {
        let update = |copy: &mut VerifierRegister| {
            let by = Scalar::constant((i64::from(copy.delta) - i64::from(known.delta)) as u64);
            copy.value = RegisterValue::Number(match copy.delta == known.delta {
                true => value,
                false => semantics::alu(&mut { rules.domain }, AluOp::Add, Width::W64, &value, &by),
            });
        };
        frames.iter_mut().for_each(|f| f.change(|copy| copy.is_number() && copy.id == known.id, update));
    }
    if let Some(frame) = frames.last_mut()
        && frame.get(r).is_number()
    {
        frame.set(r, VerifierRegister { value: RegisterValue::Number(value), ..frame.get(r) });
    }
}

/// A comparison of a packet pointer with the end of the packet (`try_match_pkt_pointers`,
/// `is_pkt_ptr_branch_taken`).
fn compare_with_end(
    made: &mut [Option<Vec<VerifierFrame>>; 2],
    cond: Cond,
    (a, p): (VerifierRegister, VerifierPointer),
    (b, q): (VerifierRegister, VerifierPointer),
    (dst, src): (Reg, Operand),
) {
    let Operand::Reg(src) = src else { return };
    let packet = |p: VerifierPointer| p.target == PointerTarget::Packet;
    let end = |p: VerifierPointer| p.target == PointerTarget::PacketEnd;
    let (reg, known, pointer, cond) = if packet(p) && end(q) {
        (dst, a, p, cond)
    } else if end(p) && packet(q) {
        (src, b, q, mirrored(cond))
    } else {
        return;
    };
    // On which side the pointer is within the packet, and whether the other side includes the end.
    let (good, strict) = match cond {
        Cond::Gt => (1, false),
        Cond::Ge => (1, true),
        Cond::Lt => (0, true),
        Cond::Le => (0, false),
        _ => return,
    };
    if pointer.range < 0 {
        let beyond = match (pointer.range, strict) {
            (BEYOND_END, _) => true,
            (AT_END, true) => true,
            _ => return,
        };
        if beyond {
            made[good] = None;
        }
        return;
    }
    if let Some(frames) = &mut made[good] {
        bless(frames, known.id, &pointer, i64::from(strict));
    }
    if let Some(frame) = made[1 - good].as_mut().and_then(|f| f.last_mut())
        && let Some(p) = frame.get(reg).as_pointer()
    {
        let range = if strict { AT_END } else { BEYOND_END };
        frame.set(reg, VerifierRegister::pointer(VerifierPointer { range, ..p }, frame.get(reg).id));
    }
}

fn mirrored(cond: Cond) -> Cond {
    match cond {
        Cond::Gt => Cond::Lt,
        Cond::Ge => Cond::Le,
        Cond::Lt => Cond::Gt,
        Cond::Le => Cond::Ge,
        other => other,
    }
}

/// Sets the number of bytes known to exist behind all pointers of one name.
fn bless(frames: &mut [VerifierFrame], id: u32, checked: &VerifierPointer, more: i64) {
    let most = checked.variable.unsigned().1;
    let range = checked.off + more;
    if range <= 0 || range > 0xffff || most > 0xffff {
        return;
    }
    let range = range as i32;
    let shorter = |p: &VerifierPointer| p.target == PointerTarget::Packet && (0..range).contains(&p.range);
    for frame in frames {
        frame.change(
            |v| v.id == id && v.as_pointer().is_some_and(|p| shorter(&p)),
            |v| {
                if let RegisterValue::Pointer(p) = &mut v.value {
                    p.range = range;
                }
            },
        );
    }
}
