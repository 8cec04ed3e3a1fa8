//! Constants and values on which both sides are compared before anything is proven.

use millstream_ir::random::SeededRng;
use millstream_ir::{AluOp, Width};
use millstream_passes::rules::{NAMES, PatternOp, RulePattern, WidthPat};

use super::eval::RuleEnv;
use super::lhs::{LeftHandSide, truths};

/// Values tried with each choice of constants.
const VECTORS: usize = 14;

/// A choice of constants and width, with values and the left side's results for them.
#[derive(Clone, Debug)]
pub(crate) struct RuleSample {
    pub(crate) env: RuleEnv,
    pub(crate) values: Vec<[u64; NAMES]>,
    pub(crate) left: Vec<u64>,
}

/// Role of a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConstantRole {
    /// It is not there.
    Absent,
    /// A count of a shift at this width.
    Count(WidthPat),
    /// Any other operand at this width.
    Word(WidthPat),
}

/// The roles of the constants of a pattern.
pub(crate) fn roles(pattern: &RulePattern) -> [ConstantRole; NAMES] {
    let mut out = [ConstantRole::Absent; NAMES];
    look(pattern, WidthPat::Fixed(Width::W64), false, &mut out);
    out
}

fn look(pattern: &RulePattern, width: WidthPat, count: bool, out: &mut [ConstantRole; NAMES]) {
    match pattern {
        RulePattern::Const(i) => {
            out[*i] = match (count, out[*i]) {
                (true, _) => ConstantRole::Count(width),
                // The narrowest place decides the range of the constant.
                (false, ConstantRole::Word(WidthPat::Fixed(Width::W32))) => out[*i],
                (false, ConstantRole::Count(_)) => out[*i],
                (false, _) => ConstantRole::Word(width),
            }
        }
        RulePattern::Node { head, args, .. } => {
            let shift = matches!(head, PatternOp::Alu(AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, _));
            for (k, arg) in args.iter().enumerate() {
                look(arg, head.width(), shift && k == 1, out);
            }
        }
        _ => {}
    }
}

const COUNTS: [u64; 18] = [1, 2, 3, 4, 7, 8, 15, 16, 24, 31, 32, 33, 40, 48, 56, 60, 63, 0];
const WORDS: [u64; 30] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    31,
    0x80,
    0xff,
    0xf0,
    0x0f00,
    0xff00,
    0xffff,
    0x8000,
    0x1_0000,
    0xff_ffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX,
    -2i64 as u64,
    -8i64 as u64,
    -16i64 as u64,
    -256i64 as u64,
    -65536i64 as u64,
    i64::MIN as u64,
    i32::MIN as i64 as u64,
];

/// Samples of a shape.
pub(crate) fn samples(shape: &LeftHandSide, random: &mut SeededRng) -> Vec<RuleSample> {
    let roles = roles(&shape.pattern);
    let count = match roles.iter().filter(|r| **r != ConstantRole::Absent).count() {
        0 => 1,
        1 => 40,
        2 => 130,
        _ => 260,
    };
    let named = uses_width(&shape.pattern);
    if count == 1 {
        let widths = if named { &[Width::W64, Width::W32][..] } else { &[Width::W64][..] };
        let env = |width: &Width| RuleEnv { values: [0; NAMES], consts: [0; NAMES], width: *width };
        return widths.iter().map(|w| sample(shape, env(w), random)).collect();
    }
    let mut out: Vec<RuleSample> = Vec::new();
    for n in 0..3 * count {
        let width = if named && n % 2 == 1 { Width::W32 } else { Width::W64 };
        let consts = constants(&roles, width, if named { n / 2 } else { n }, random);
        if out.len() < count && out.iter().all(|s| s.env.consts != consts || s.env.width != width) {
            out.push(sample(shape, RuleEnv { values: [0; NAMES], consts, width }, random));
        }
    }
    out
}

/// Returns true if a pattern leaves its width open.
pub(crate) fn uses_width(pattern: &RulePattern) -> bool {
    match pattern {
        RulePattern::Node { head, args, .. } => {
            let named = match head {
                PatternOp::Alu(_, w) | PatternOp::Neg(w) | PatternOp::Sext(_, w) | PatternOp::Cmp(_, w) => {
                    matches!(w, WidthPat::Var(_))
                }
                _ => false,
            };
            named || args.iter().any(uses_width)
        }
        _ => false,
    }
}

fn constants(roles: &[ConstantRole; NAMES], width: Width, at: usize, random: &mut SeededRng) -> [u64; NAMES] {
    let mut out = [0; NAMES];
    for i in 0..NAMES {
        let (pat, count) = match roles[i] {
            ConstantRole::Absent => continue,
            ConstantRole::Count(pat) => (pat, true),
            ConstantRole::Word(pat) => (pat, false),
        };
        let width = match pat {
            WidthPat::Fixed(width) => width,
            WidthPat::Var(_) => width,
        };
        let free = match (count, i) {
            (true, 0) => COUNTS[at % COUNTS.len()],
            (false, 0) => WORDS[at % WORDS.len()],
            (true, _) => COUNTS[random.below(COUNTS.len() as u64) as usize],
            (false, _) => WORDS[random.below(WORDS.len() as u64) as usize],
        };
        let free = if !count && random.below(6) == 0 { random.boundary_biased_word() } else { free };
        let value = if i > 0 && random.below(5) < 3 { related(&out[..i], random) } else { free };
        out[i] = match (count, width) {
            (true, _) => value % u64::from(width.bits()),
            (false, Width::W32) => value & 0xffff_ffff,
            (false, Width::W64) => value,
        };
    }
    out
}

/// A constant that has to do with those before it.
fn related(before: &[u64], random: &mut SeededRng) -> u64 {
    let p = before[random.below(before.len() as u64) as usize];
    let q = before[random.below(before.len() as u64) as usize];
    let low = |n: u64| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    let word = WORDS[random.below(WORDS.len() as u64) as usize];
    match random.below(18) {
        0 | 1 => p,
        2 => !p,
        3 => p.wrapping_neg(),
        4 => p & word,
        5 => p | word,
        6 => word & !p,
        7 => low(p),
        8 => !low(p),
        9 => 64u64.wrapping_sub(p),
        10 => 32u64.wrapping_sub(p),
        11 => p.wrapping_add(1),
        12 => p.wrapping_sub(1),
        13 => p.wrapping_add(q),
        14 => word.checked_shl(p as u32).unwrap_or(0),
        15 => u64::MAX.checked_shr(p as u32).unwrap_or(0),
        16 => p & word & q,
        _ => low(64u64.wrapping_sub(p)),
    }
}

/// The values of a sample, and the left side's results.
pub(crate) fn sample(shape: &LeftHandSide, env: RuleEnv, random: &mut SeededRng) -> RuleSample {
    let mut values = Vec::with_capacity(VECTORS);
    for n in 0..VECTORS {
        values.push(vector(shape, env, n, random));
    }
    let left = values.iter().map(|v| env.with(v).pattern(&shape.pattern)).collect();
    RuleSample { env, values, left }
}

fn vector(shape: &LeftHandSide, env: RuleEnv, n: usize, random: &mut SeededRng) -> [u64; NAMES] {
    let mut values = [0; NAMES]
        .map(|_: u64| if n.is_multiple_of(3) { random.word() } else { random.boundary_biased_word() });
    match n {
        0 => values = [u64::MAX, random.word(), 0, u64::MAX],
        1 => values[1] = values[0],
        2 => values = [0, u64::MAX, random.word(), 0],
        // Near the constant that it is compared with.
        3..=6 => {
            let i = random.below(2) as usize;
            values[i] = env.consts[random.below(3) as usize].wrapping_add(random.below(3)).wrapping_sub(1);
        }
        7 => values[1] = values[0].wrapping_add(random.below(3)).wrapping_sub(1),
        8 => values[0] = i64::MIN as u64 | random.below(4),
        _ => {}
    }
    let mut env = env.with(&values);
    for (i, truth) in truths(&shape.pattern).into_iter().enumerate() {
        if truth {
            env.values[i] = (random.word() >> 20) & 1;
        }
    }
    shape.tests.iter().for_each(|test| env.satisfy(test));
    env.values
}
