//! The abstract result of every operation contains the concrete one.

use millstream_isa::absint::{Abstract, Scalar, Tnum, refine};
use millstream_isa::semantics::{self, Concrete, Domain, eval};
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
    fn arithmetic((a, x) in member(), (b, y) in member()) {
        for op in AluOp::ALL {
            for width in [Width::W32, Width::W64] {
                let result = semantics::alu(&mut Abstract, op, width, &a, &b);
                let concrete = eval::alu(op, width, x, y);
                prop_assert!(result.contains(concrete), "{:?} {:?} {:?} {:?} {:#x}", op, width, a, b, concrete);
            }
        }
    }

    #[test]
    fn moves_and_swaps((a, x) in member()) {
        let d = &mut Abstract;
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
        let d = &mut Abstract;
        for size in Size::ALL {
            let (memory, bytes) = (d.truncate(64, size.bits(), &old), Concrete.truncate(64, size.bits(), &x));
            for sext in [false, true] {
                let loaded = semantics::loaded(&mut Concrete, size, sext, &bytes);
                prop_assert!(semantics::loaded(d, size, sext, &memory).contains(loaded));
            }
            for op in AtomicOp::ALL {
                let result = semantics::atomic(d, op, size, &memory, &src, &r0);
                let concrete = semantics::atomic(&mut Concrete, op, size, &bytes, &y, &z);
                prop_assert!(result.memory.contains(concrete.memory));
                prop_assert!(result.fetched.contains(concrete.fetched));
            }
        }
    }

    #[test]
    fn branches((a, x) in member(), (b, y) in member()) {
        for cond in Cond::ALL {
            for width in [Width::W32, Width::W64] {
                let taken = eval::cond(cond, width, x, y);
                let decided = semantics::cond(&mut Abstract, cond, width, &a, &b);
                prop_assert!(decided.is_none_or(|d| d == taken), "{:?} {:?} {:?} {:?}", cond, width, a, b);
                let learnt = refine(cond, width, taken, &a, &b);
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
        if let Some(both) = a.intersect(&b) {
            prop_assert!(!(a.contains(y) && b.contains(y)) || both.contains(y));
        } else {
            prop_assert!(!b.contains(x) && !a.contains(y));
        }
    }
}

#[test]
fn widening_ends() {
    let mut state = Scalar::constant(0);
    let one = Scalar::constant(1);
    for round in 0.. {
        let next =
            state.widen(&state.join(&semantics::alu(&mut Abstract, AluOp::Add, Width::W64, &state, &one)));
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
    let (below, _) = refine(Cond::Gt, Width::W64, false, &any, &limit).unwrap();
    assert_eq!(below.unsigned(), (0, 56));
    assert_eq!(below.bits().max(), 63);
    let scaled = semantics::alu(&mut Abstract, AluOp::Lsh, Width::W64, &below, &Scalar::constant(3));
    assert_eq!(scaled.unsigned(), (0, 448));
    let masked = semantics::alu(&mut Abstract, AluOp::And, Width::W64, &any, &Scalar::constant(7));
    assert_eq!(masked.unsigned(), (0, 7));
}

#[test]
fn what_the_verifier_cannot_see_is_unknown() {
    let d = &mut Abstract;
    let byte = Scalar::of_width(8);
    let modulo = semantics::alu(d, AluOp::Mod, Width::W64, &byte, &Scalar::constant(8));
    assert_eq!(modulo, Scalar::UNKNOWN);
    let shifted = semantics::alu(d, AluOp::Lsh, Width::W64, &Scalar::constant(1), &byte);
    assert_eq!(shifted, Scalar::UNKNOWN);
    // A signed bound above leaves negative values.
    let (signed, _) = refine(Cond::Sgt, Width::W64, false, &Scalar::UNKNOWN, &Scalar::constant(56)).unwrap();
    assert_eq!(signed.unsigned(), (0, u64::MAX));
}

#[test]
fn contradictions_are_found() {
    let byte = Scalar::of_width(8);
    assert_eq!(refine(Cond::Gt, Width::W64, true, &byte, &Scalar::constant(255)), None);
    assert_eq!(refine(Cond::Eq, Width::W64, true, &byte, &Scalar::constant(256)), None);
    assert_eq!(refine(Cond::Ne, Width::W64, true, &Scalar::constant(1), &Scalar::constant(1)), None);
    assert_eq!(
        semantics::cond(&mut Abstract, Cond::Lt, Width::W64, &byte, &Scalar::constant(256)),
        Some(true)
    );
}
