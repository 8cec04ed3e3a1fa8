use millstream_isa::semantics::{Domain, Prim};

use super::*;
use crate::term::{Sort, signed};

const BITS: u32 = 6;
const ALL: u64 = mask(BITS);

/// Comparisons of what is made of a number with constants, and what each says of all values of the number.
fn tests(terms: &mut Terms, x: T) -> Vec<(Test, Vec<bool>)> {
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
                let test = Test::new(terms, cond, t, k).expect("a comparison with a constant");
                out.push((test, (0..=ALL).map(says).collect()));
            }
        }
    }
    out
}

#[test]
fn a_comparison_holds_for_the_values_that_are_said() {
    let mut terms = Terms::new(1 << 16);
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
    let mut terms = Terms::new(1 << 16);
    let x = terms.var("x", Sort::Bits(BITS as u8));
    let all = tests(&mut terms, x);
    for (n, (first, one)) in all.iter().enumerate() {
        for (second, two) in all.iter().skip(n % 37).step_by(37) {
            let [mut a, mut b] = [Ranges::default(), Ranges::default()];
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
    let mut terms = Terms::new(1 << 16);
    let x = terms.var("x", Sort::Bits(BITS as u8));
    let mut range = |limit| {
        let mut out = Ranges::default();
        out.assume(&Test::new(&mut terms, Cond::Lt, x, limit).expect("a comparison with a constant"), true);
        out
    };
    let (small, large) = (range(5), range(9));
    let none = Ranges::default();
    assert_eq!(large.generalized(&small, true, |x, _| Some(x)), (large.clone(), true));
    assert_eq!(small.generalized(&large, true, |x, _| Some(x)), (none.clone(), false));
    assert_eq!(small.generalized(&large, false, |x, _| Some(x)), (large.clone(), false));
    assert_eq!(small.generalized(&large, false, |_, _| None), (none.clone(), false));
    assert_eq!(small.generalized(&none, false, |x, _| Some(x)), (none.clone(), false));
}
