use millstream_isa::semantics::{Domain, Prim};

use super::*;
use crate::term::{Sort, signed};

const BITS: u32 = 6;
const ALL: u64 = mask(BITS);

/// Comparisons of terms over a number with constants, and the result of each for all values of the number.
fn tests(terms: &mut TermPool, x: TermId) -> Vec<(RangeTest, Vec<bool>)> {
    let mut out = Vec::new();
    for cond in [
        Cond::Eq,
        Cond::Ne,
        Cond::Lt,
        Cond::Le,
        Cond::Gt,
        Cond::Ge,
        Cond::Slt,
        Cond::Sle,
        Cond::Sgt,
        Cond::Sge,
    ] {
        for k in [0, 1, 5, 31, 32, 33, 47, 63] {
            for (by, wide) in [(0, false), (3, false), (40, false), (0, true)] {
                let c = terms.constant(BITS, by);
                let mut t = terms.prim(Prim::Add, BITS, &x, &c);
                let bits = if wide { 2 * BITS } else { BITS };
                t = terms.zero_extend_to(t, bits);
                let says = |v: u64| {
                    let v = (v + by) & ALL;
                    let (a, b) = (signed(bits, v), signed(bits, k));
                    match cond {
                        Cond::Eq => v == k,
                        Cond::Ne => v != k,
                        Cond::Lt => v < k,
                        Cond::Le => v <= k,
                        Cond::Gt => v > k,
                        Cond::Ge => v >= k,
                        Cond::Slt => a < b,
                        Cond::Sle => a <= b,
                        Cond::Sgt => a > b,
                        _ => a >= b,
                    }
                };
                let test = RangeTest::new(terms, cond, t, k).expect("a comparison with a constant");
                out.push((test, (0..=ALL).map(says).collect()));
            }
        }
    }
    out
}

#[test]
fn a_comparison_holds_for_the_values_that_are_said() {
    let mut terms = TermPool::new(1 << 16);
    let x = terms.var("x", Sort::Bits(BITS as u8));
    for (test, says) in tests(&mut terms, x) {
        assert_eq!(test.number, x);
        for (value, said) in says.into_iter().enumerate() {
            let within =
                test.sets.each_ref().map(|s| s.iter().any(|(a, b)| (*a..=*b).contains(&(value as u64))));
            assert_eq!(within, [said, !said], "{:?} at {value}", test.sets);
        }
    }
}

#[test]
fn decides_what_all_values_that_are_left_agree_on_and_nothing_else() {
    let mut terms = TermPool::new(1 << 16);
    let x = terms.var("x", Sort::Bits(BITS as u8));
    let all = tests(&mut terms, x);
    for (n, (first, one)) in all.iter().enumerate() {
        for (second, two) in all.iter().skip(n % 37).step_by(37) {
            let [mut a, mut b] = [ValueRanges::default(), ValueRanges::default()];
            a.assume(first, true);
            b.assume(second, false);
            let (both, either) = (a.meet(&b), a.join(&b));
            for (asked, answers) in all.iter().skip(n % 11).step_by(11) {
                let agreed = |among: &dyn Fn(usize) -> bool| {
                    let mut here = (0..=ALL as usize).filter(|v| among(*v)).map(|v| answers[v]);
                    let answer = here.next()?;
                    here.all(|other| other == answer).then_some(answer)
                };
                assert_eq!(both.decide(asked), agreed(&|v| one[v] && !two[v]));
                assert_eq!(either.decide(asked), agreed(&|v| one[v] || !two[v]));
            }
        }
    }
}

#[test]
fn what_comes_again_is_an_instance_only_within_the_ranges() {
    let mut terms = TermPool::new(1 << 16);
    let x = terms.var("x", Sort::Bits(BITS as u8));
    let mut range = |limit| {
        let mut out = ValueRanges::default();
        out.assume(
            &RangeTest::new(&mut terms, Cond::Lt, x, limit).expect("a comparison with a constant"),
            true,
        );
        out
    };
    let (small, large) = (range(5), range(9));
    let none = ValueRanges::default();
    assert_eq!(large.generalized(&small, true, |x, _| Some(x)), (large.clone(), true));
    assert_eq!(small.generalized(&large, true, |x, _| Some(x)), (none.clone(), false));
    assert_eq!(small.generalized(&large, false, |x, _| Some(x)), (large.clone(), false));
    assert_eq!(small.generalized(&large, false, |_, _| None), (none.clone(), false));
    assert_eq!(small.generalized(&none, false, |x, _| Some(x)), (none.clone(), false));
}

#[test]
fn conditions_are_settled_by_what_is_known_of_other_slices_as_all_values_that_are_left_agree() {
    let mut terms = TermPool::new(1 << 16);
    let x = terms.var("x", Sort::Bits(BITS as u8));
    // Comparisons of slices of the number, and of the number itself minus a constant, as conditions, and the
    // values for which they hold.
    let mut conditions: Vec<(TermId, Vec<bool>)> = Vec::new();
    for (by, hi, lo) in [(0, 5, 0), (0, 3, 0), (0, 5, 2), (0, 4, 3), (0, 1, 1), (20, 5, 0), (20, 5, 1)] {
        let c = terms.constant(BITS, by);
        let moved = terms.prim(Prim::Sub, BITS, &x, &c);
        let slice = terms.extract(moved, hi, lo);
        let of = move |v: u64| (v.wrapping_sub(by) & ALL) >> lo & mask(hi - lo + 1);
        for k in [0, 1, 2, 5, 11].into_iter().filter(|k| *k <= mask(hi - lo + 1)) {
            let constant = terms.constant(hi - lo + 1, k);
            let equal = terms.equal(slice, constant);
            let less = terms.compare_terms(Pred::Ult, slice, constant);
            conditions.push((equal, (0..=ALL).map(|v| of(v) == k).collect()));
            conditions.push((less, (0..=ALL).map(|v| of(v) < k).collect()));
        }
    }
    let mut settled = [0, 0];
    for (first, one) in &conditions {
        for holds in [true, false] {
            let first = if holds { *first } else { terms.not(*first) };
            let mut ranges = ValueRanges::default();
            ranges.assume_literals(&mut terms, first);
            for (asked, answers) in &conditions {
                let left: Vec<bool> =
                    (0..=ALL as usize).filter(|v| one[*v] == holds).map(|v| answers[v]).collect();
                let agreed = left.iter().all(|a| a == &left[0]) && !left.is_empty();
                let out = ranges.settle(&mut terms, *asked);
                if let Some(said) = terms.known(out) {
                    assert!(left.iter().all(|a| *a == said), "wrongly said to be {said}");
                }
                settled[0] += usize::from(agreed);
                settled[1] += usize::from(agreed && terms.known(out).is_some());
            }
        }
    }
    assert!(settled[1] * 10 > settled[0] * 9, "{settled:?}");
}

#[test]
fn comparisons_of_two_numbers_are_settled_as_all_pairs_that_are_left_agree() {
    const SMALL: u64 = 12;
    let mut terms = TermPool::new(1 << 18);
    let [x, y] = ["x", "y"].map(|name| terms.var(name, Sort::Bits(4)));
    let pairs: Vec<(u64, u64)> = (0..16).flat_map(|a| (0..16).map(move |b| (a, b))).collect();
    // Sums of 4 bits overflow, those of 16 bits do not.
    let mut conditions: Vec<((u32, u64), TermId, Vec<bool>)> = Vec::new();
    for (bits, factor, first, second) in [
        (16, 1, 0, 0),
        (16, 1, 6, 0),
        (16, 1, 3, 0),
        (16, 1, 0, 4),
        (16, 1, 0, 7),
        (16, 1, SMALL, 1),
        (16, 2, 0, 0),
        (16, 2, 5, 0),
        (16, 2, 0, 5),
        (4, 1, 3, 0),
        (4, 1, 0, 3),
    ] {
        let side = |terms: &mut TermPool, t: TermId, factor: u64, by: u64| {
            let t = terms.zero_extend_to(t, bits);
            let (factor, by) = (terms.constant(bits, factor), terms.constant(bits, by));
            let product = terms.prim(Prim::Mul, bits, &t, &factor);
            terms.prim(Prim::Add, bits, &product, &by)
        };
        let (a, b) = (side(&mut terms, x, factor, first), side(&mut terms, y, 1, second));
        let value = |a: u64, b: u64| ((factor * a + first) & mask(bits), (b + second) & mask(bits));
        let less = terms.compare_terms(Pred::Ult, a, b);
        let values: Vec<(u64, u64)> = pairs.iter().map(|(a, b)| value(*a, *b)).collect();
        conditions.push(((bits, factor), less, values.iter().map(|(a, b)| a < b).collect()));
        let greater = terms.compare_terms(Pred::Ult, b, a);
        conditions.push(((bits, factor), greater, values.iter().map(|(a, b)| b < a).collect()));
    }
    let mut settled = [0, 0];
    for (kind, first, one) in &conditions {
        for holds in [true, false] {
            let first = if holds { *first } else { terms.not(*first) };
            let mut ranges = ValueRanges::default();
            ranges.assume_literals(&mut terms, first);
            for (other, asked, answers) in &conditions {
                let left: Vec<bool> =
                    (0..pairs.len()).filter(|v| one[*v] == holds).map(|v| answers[v]).collect();
                let out = ranges.settle(&mut terms, *asked);
                if let Some(said) = terms.known(out) {
                    assert!(left.iter().all(|a| *a == said), "wrongly said to be {said}");
                }
                // Of sums that do not overflow and have the same coefficients, the difference is known.
                let is_known = kind == other && kind.0 == 16;
                let agreed = is_known && left.iter().all(|a| a == &left[0]) && !left.is_empty();
                settled[0] += usize::from(agreed);
                settled[1] += usize::from(agreed && terms.known(out).is_some());
            }
        }
    }
    assert!(settled[0] > 100 && settled[1] * 10 > settled[0] * 9, "{settled:?}");
}
