//! The abstract result of every operation contains the concrete one.

use millstream_isa::absint::{AbstractDomain, Scalar, Tnum, VerifierRules};
use millstream_isa::generation::{KernelRange, VerifierGeneration};
use millstream_isa::semantics::{self, ConcreteDomain, Domain, eval};
use millstream_isa::*;
use proptest::prelude::*;

/// Values near which intervals end.
fn edge() -> impl Strategy<Value = u64> {
    let near = proptest::sample::select(
        &[0u64, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX, u64::MAX << 32][..],
    );
    prop_oneof![
        (near, -3i64..=3).prop_map(|(x, d)| x.wrapping_add_signed(d)),
        any::<u64>(),
        any::<u32>().prop_map(u64::from),
        0u64..70,
    ]
}

/// A set with one of its members.
fn member() -> impl Strategy<Value = (Scalar, u64)> {
    let around = prop_oneof![Just(0u64), 0u64..200, any::<u32>().prop_map(u64::from), any::<u64>()];
    (edge(), around.clone(), around, any::<u64>(), any::<u64>(), 0u8..6).prop_map(
        |(x, down, up, m1, m2, kind)| {
            let set = match kind {
                0 => Scalar::constant(x),
                1 => Scalar::range(x.saturating_sub(down), x.saturating_add(up)),
                2 => {
                    let (min, max) =
                        ((x as i64).saturating_sub_unsigned(down), (x as i64).saturating_add_unsigned(up));
                    Scalar::signed_range(min, max)
                }
                3 => Scalar::known_bits(Tnum::new(x, m1 & m2)),
                4 => {
                    let range = Scalar::range(x.saturating_sub(down), x.saturating_add(up));
                    range.intersect(&Scalar::known_bits(Tnum::new(x, m1))).expect("both contain x")
                }
                _ => Scalar::UNKNOWN,
            };
            (set, x)
        },
    )
}

/// `SCALE` multiplies the number of cases, for longer runs.
fn cases(n: u32) -> ProptestConfig {
    let scale = std::env::var("SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    ProptestConfig { cases: n * scale, failure_persistence: None, ..Default::default() }
}

#[test]
fn a_width_is_the_range_of_its_values() {
    for bits in 1..=64 {
        assert_eq!(Scalar::of_width(bits), Scalar::range(0, u64::MAX >> (64 - bits)), "{bits}");
    }
}

proptest! {
    #![proptest_config(cases(100_000))]

    #[test]
    fn members_are_members((set, x) in member()) {
        prop_assert!(set.contains(x), "{:?} {:#x}", set, x);
    }

    #[test]
    fn of_a_set_and_one_value_that_value_is_left_or_nothing((set, _) in member(), y in edge()) {
        let left = set.contains(y).then(|| Scalar::constant(y));
        prop_assert_eq!(set.intersect(&Scalar::constant(y)), left);
    }

    #[test]
    fn arithmetic((a, x) in member(), (b, y) in member(), mut d in domain()) {
        for op in AluOp::ALL {
            for width in [Width::W32, Width::W64] {
                let result = semantics::alu(&mut d, op, width, &a, &b);
                let concrete = eval::alu(op, width, x, y);
                prop_assert!(result.contains(concrete), "{:?} {:?} {:?} {:?} {:#x}", op, width, a, b, concrete);
            }
        }
    }

    #[test]
    fn moves_and_swaps((a, x) in member(), mut d in domain()) {
        for width in [Width::W32, Width::W64] {
            prop_assert!(d.neg(width, &a).contains(eval::neg(width, x)));
        }
        for kind in [SwapKind::ToLe, SwapKind::ToBe, SwapKind::Swap] {
            for bits in [16, 32, 64] {
                prop_assert!(d.swap(kind, bits, &a).contains(eval::swap(kind, bits, x)));
            }
        }
        let d = &mut d;
        for width in [Width::W32, Width::W64] {
            prop_assert!(semantics::mov(d, width, &a).contains(eval::mov(width, x)));
            prop_assert!(semantics::neg(d, width, &a).contains(eval::neg(width, x)));
            for bits in [8, 16, 32] {
                let result = semantics::movsx(d, width, bits, &a);
                prop_assert!(result.contains(eval::movsx(width, bits, x)), "{:?} {} {:?}", width, bits, a);
            }
        }
        for kind in [SwapKind::ToLe, SwapKind::ToBe, SwapKind::Swap] {
            for bits in [16, 32, 64] {
                prop_assert!(semantics::swap(d, kind, bits, &a).contains(eval::swap(kind, bits, x)));
            }
        }
    }

    #[test]
    fn loads_and_atomics((old, x) in member(), (src, y) in member(), (r0, z) in member()) {
        let d = &mut AbstractDomain::default();
        for size in Size::ALL {
            let (memory, bytes) = (d.truncate(64, size.bits(), &old), ConcreteDomain.truncate(64, size.bits(), &x));
            for sext in [false, true] {
                let loaded = semantics::loaded(&mut ConcreteDomain, size, sext, &bytes);
                prop_assert!(semantics::loaded(d, size, sext, &memory).contains(loaded));
            }
            for op in AtomicOp::ALL {
                let result = semantics::atomic(d, op, size, &memory, &src, &r0);
                let concrete = semantics::atomic(&mut ConcreteDomain, op, size, &bytes, &y, &z);
                prop_assert!(result.memory.contains(concrete.memory));
                prop_assert!(result.fetched.contains(concrete.fetched));
            }
        }
    }

    #[test]
    fn branches((a, x) in member(), (b, y) in member(), mut d in domain()) {
        for cond in Cond::ALL {
            for width in [Width::W32, Width::W64] {
                let taken = eval::cond(cond, width, x, y);
                let decided = semantics::cond(&mut d, cond, width, &a, &b);
                prop_assert!(decided.is_none_or(|d| d == taken), "{:?} {:?} {:?} {:?}", cond, width, a, b);
                let learnt = d.refine(cond, width, taken, &a, &b);
                prop_assert!(learnt.is_some(), "{:?} {:?} {:?} {:?}", cond, width, a, b);
                if let Some((c, d)) = learnt {
                    prop_assert!(c.contains(x) && d.contains(y), "{:?} {:?} {:?} {:?}", cond, width, c, d);
                }
            }
        }
    }

    #[test]
    fn joins_contain_both((a, x) in member(), (b, y) in member()) {
        let (join, widened) = (a.join(&b), a.widen(&b));
        prop_assert!(join.contains(x) && join.contains(y) && widened.contains(x) && widened.contains(y));
        if let Some(both) = AbstractDomain::new(VerifierRules::LINUX_5_10).intersect(&a, &b) {
            prop_assert!(!(a.contains(y) && b.contains(y)) || both.contains(y));
        }
        if let Some(both) = a.intersect(&b) {
            prop_assert!(!(a.contains(y) && b.contains(y)) || both.contains(y));
        } else {
            prop_assert!(!b.contains(x) && !a.contains(y));
        }
    }
}

fn domain() -> impl Strategy<Value = AbstractDomain> {
    proptest::sample::select(VerifierGeneration::ALL.map(|g| AbstractDomain::new(g.knowledge())).to_vec())
}

/// The greatest value that each generation, the oldest first, deduces for a body applied to a byte, a word
/// and a whole register.
fn greatest(body: impl Fn(&mut AbstractDomain, Scalar, Scalar, Scalar) -> Scalar) -> Vec<u64> {
    let each = VerifierGeneration::ALL.into_iter().map(|g| AbstractDomain::new(g.knowledge()));
    let operands = [8, 32, 64].map(Scalar::of_width);
    each.map(|mut d| body(&mut d, operands[0], operands[1], operands[2]).unsigned().1).collect()
}

/// Linux 5.10, 6.1, 6.12, 6.18 and 7.2: their answers on bounds that newer verifiers find by themselves.
#[test]
fn older_verifiers_know_less() {
    const ANY: u64 = u64::MAX;
    let c = Scalar::constant;
    let alu = semantics::alu::<AbstractDomain>;
    let masked = |d: &mut AbstractDomain, x: &Scalar, mask| alu(d, AluOp::And, Width::W64, x, &c(mask));
    let swapped = greatest(|d, byte, _, _| d.swap(SwapKind::ToBe, 16, &byte));
    assert_eq!(swapped, [ANY, ANY, ANY, 0xff00, 0xff00]);
    let negated = greatest(|d, byte, _, _| d.neg(Width::W64, &d.neg(Width::W64, &byte)));
    assert_eq!(negated, [ANY, ANY, ANY, 255, 255]);
    for op in [AluOp::Or, AluOp::Xor] {
        let combined = greatest(|d, byte, _, _| {
            let high = masked(d, &byte, 0xf0);
            let low = masked(d, &byte, 0x0f);
            alu(d, op, Width::W64, &high, &low)
        });
        assert_eq!(combined, [ANY, ANY, 255, 255, 255], "{op:?}");
        let with_constant = greatest(|d, byte, _, _| alu(d, op, Width::W64, &byte, &c(0x100)));
        assert_eq!(with_constant, [0x1ff; 5], "{op:?}");
    }
    let product = greatest(|d, byte, _, _| alu(d, AluOp::Mul, Width::W64, &byte, &byte));
    assert_eq!(product, [ANY, ANY, 65_025, 65_025, 65_025]);
    let stepped = greatest(|d, byte, _, _| {
        let (some, _) = d.refine(Cond::Eq, Width::W64, false, &byte, &c(0)).unwrap();
        alu(d, AluOp::Sub, Width::W64, &some, &c(1))
    });
    assert_eq!(stepped, [ANY, ANY, 254, 254, 254]);
    let less = |taken| {
        move |d: &mut AbstractDomain, byte: Scalar, word: Scalar, _| {
            d.refine(Cond::Lt, Width::W64, taken, &word, &byte).map_or(word, |s| s.0)
        }
    };
    assert_eq!(greatest(less(true)), [0xffff_ffff, 0xffff_ffff, 254, 254, 254]);
    let equal = |width| {
        move |d: &mut AbstractDomain, byte: Scalar, word: Scalar, _| {
            d.refine(Cond::Eq, width, true, &word, &byte).unwrap().0
        }
    };
    assert_eq!(greatest(equal(Width::W64)), [255; 5]);
    assert_eq!(greatest(equal(Width::W32)), [0xffff_ffff, 0xffff_ffff, 255, 255, 255]);
    // A check of the low half of what may have an upper one, then its extension: every verifier follows that.
    let extended = greatest(|d, _, _, any| {
        let (low, _) = d.refine(Cond::Gt, Width::W32, false, &any, &c(255)).unwrap();
        semantics::mov(d, Width::W32, &low)
    });
    assert_eq!(extended, [255; 5]);
    // None knows the width of a quotient, not even of a 32-bit one.
    let quotient = greatest(|d, byte, _, _| alu(d, AluOp::Div, Width::W32, &byte, &c(3)));
    assert_eq!(quotient, [ANY; 5]);
}

/// A comparison at one width makes older verifiers forget the bounds at the other.
#[test]
fn older_verifiers_forget_bounds_of_the_other_width() {
    let limits = |d: AbstractDomain| {
        let (low, _) =
            d.refine(Cond::Gt, Width::W64, false, &Scalar::UNKNOWN, &Scalar::constant(1 << 40)).unwrap();
        let (both, _) = d.refine(Cond::Gt, Width::W32, false, &low, &Scalar::constant(9)).unwrap();
        both.unsigned().1
    };
    let classic = limits(AbstractDomain::new(VerifierRules::LINUX_5_10));
    assert_eq!(classic >> 40, 1, "only known bits are kept: {classic:#x}");
    assert_eq!(classic & 0xffff_ffff, 15);
    assert_eq!(limits(AbstractDomain::default()), 1 << 40);
}

/// Facts common to all generations of a range are those of its oldest.
#[test]
fn facts_of_an_older_verifier_hold_for_newer_ones() {
    let common = KernelRange::ALL.common_knowledge();
    assert!(VerifierGeneration::ALL.into_iter().all(|g| common.is_within(g.knowledge())));
}

#[test]
fn widening_ends() {
    let mut state = Scalar::constant(0);
    let one = Scalar::constant(1);
    for round in 0.. {
        let next = state.widen(&state.join(&semantics::alu(
            &mut AbstractDomain::default(),
            AluOp::Add,
            Width::W64,
            &state,
            &one,
        )));
        if next == state {
            break;
        }
        state = next;
        assert!(round < 100, "still growing: {state:?}");
    }
    assert_eq!(state.unsigned(), (0, u64::MAX));
}

#[test]
fn a_check_bounds_an_index() {
    let any = Scalar::UNKNOWN;
    let limit = Scalar::constant(56);
    let (below, _) = AbstractDomain::default().refine(Cond::Gt, Width::W64, false, &any, &limit).unwrap();
    assert_eq!(below.unsigned(), (0, 56));
    assert_eq!(below.bits().max(), 63);
    let scaled =
        semantics::alu(&mut AbstractDomain::default(), AluOp::Lsh, Width::W64, &below, &Scalar::constant(3));
    assert_eq!(scaled.unsigned(), (0, 448));
    let masked =
        semantics::alu(&mut AbstractDomain::default(), AluOp::And, Width::W64, &any, &Scalar::constant(7));
    assert_eq!(masked.unsigned(), (0, 7));
}

#[test]
fn what_the_verifier_cannot_see_is_unknown() {
    let d = &mut AbstractDomain::default();
    let byte = Scalar::of_width(8);
    let modulo = semantics::alu(d, AluOp::Mod, Width::W64, &byte, &Scalar::constant(8));
    assert_eq!(modulo, Scalar::UNKNOWN);
    let shifted = semantics::alu(d, AluOp::Lsh, Width::W64, &Scalar::constant(1), &byte);
    assert_eq!(shifted, Scalar::UNKNOWN);
    // A signed bound above leaves negative values.
    let (signed, _) = AbstractDomain::default()
        .refine(Cond::Sgt, Width::W64, false, &Scalar::UNKNOWN, &Scalar::constant(56))
        .unwrap();
    assert_eq!(signed.unsigned(), (0, u64::MAX));
}

#[test]
fn contradictions_are_found() {
    let byte = Scalar::of_width(8);
    assert_eq!(
        AbstractDomain::default().refine(Cond::Gt, Width::W64, true, &byte, &Scalar::constant(255)),
        None
    );
    assert_eq!(
        AbstractDomain::default().refine(Cond::Eq, Width::W64, true, &byte, &Scalar::constant(256)),
        None
    );
    assert_eq!(
        AbstractDomain::default().refine(
            Cond::Ne,
            Width::W64,
            true,
            &Scalar::constant(1),
            &Scalar::constant(1)
        ),
        None
    );
    assert_eq!(
        semantics::cond(&mut AbstractDomain::default(), Cond::Lt, Width::W64, &byte, &Scalar::constant(256)),
        Some(true)
    );
}
