//! The functions of constants that a rule may use, written once over a domain: integers when a rule is
//! applied, terms when it is proven.

use millstream_isa::semantics::{self, Domain, Pred, Prim};
use millstream_isa::{SwapKind, Width};

macro_rules! functions {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal $count:literal;)*) => {
        /// A function of 64-bit words. Truth values are 0 and 1.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Func { $($(#[doc = $doc])* $variant),* }

        impl Func {
            /// All of them.
            pub const ALL: &'static [Func] = &[$(Func::$variant),*];

            /// Its name in a rule.
            pub const fn name(self) -> &'static str {
                match self { $(Func::$variant => $name),* }
            }

            /// Number of arguments.
            pub const fn arity(self) -> usize {
                match self { $(Func::$variant => $count),* }
            }
        }
    };
}

functions! {
    /// Sum.
    Add "add" 2;
    /// Difference.
    Sub "sub" 2;
    /// Product.
    Mul "mul" 2;
    /// Bitwise and.
    And "and" 2;
    /// Bitwise or.
    Or "or" 2;
    /// Bitwise exclusive or.
    Xor "xor" 2;
    /// Complement.
    Not "not" 1;
    /// Two's complement negation.
    Neg "neg" 1;
    /// Left shift; 0 from 64 on.
    Shl "shl" 2;
    /// Logical right shift; 0 from 64 on.
    Shr "shr" 2;
    /// The number of the highest bit that is set; 0 of 0.
    Log2 "log2" 1;
    /// The low `n` bits set, all from 64 on.
    Low "low" 1;
    /// The low 16 bits in the other byte order.
    Swap16 "swap16" 1;
    /// The low 32 bits in the other byte order.
    Swap32 "swap32" 1;
    /// All 64 bits in the other byte order.
    Swap64 "swap64" 1;
    /// Sign extension of the low 8 bits.
    Sext8 "sext8" 1;
    /// Sign extension of the low 16 bits.
    Sext16 "sext16" 1;
    /// Sign extension of the low 32 bits.
    Sext32 "sext32" 1;
    /// The low 32 bits.
    Zext "zext" 1;
    /// One if exactly one bit is set, else zero.
    Pow2 "pow2" 1;
    /// Equal.
    Eq "eq" 2;
    /// Not equal.
    Ne "ne" 2;
    /// Unsigned less.
    Lt "lt" 2;
    /// Unsigned less or equal.
    Le "le" 2;
    /// Unsigned greater.
    Gt "gt" 2;
    /// Unsigned greater or equal.
    Ge "ge" 2;
    /// Signed less.
    Slt "slt" 2;
    /// Signed less or equal.
    Sle "sle" 2;
    /// Fits the signed 32-bit immediate of an instruction.
    Imm "imm" 1;
}

impl Func {
    /// The function of this name.
    pub fn parse(name: &str) -> Option<Func> {
        Func::ALL.iter().copied().find(|f| f.name() == name)
    }

    /// Applies it to as many arguments as it takes; missing ones count as zeros.
    pub fn apply<D: Domain>(self, d: &mut D, args: &[D::V]) -> D::V {
        let zero = d.constant(64, 0);
        let a = args.first().cloned().unwrap_or_else(|| zero.clone());
        let b = args.get(1).cloned().unwrap_or_else(|| zero.clone());
        match self {
            Func::Add => d.prim(Prim::Add, 64, &a, &b),
            Func::Sub => d.prim(Prim::Sub, 64, &a, &b),
            Func::Mul => d.prim(Prim::Mul, 64, &a, &b),
            Func::And => d.prim(Prim::And, 64, &a, &b),
            Func::Or => d.prim(Prim::Or, 64, &a, &b),
            Func::Xor => d.prim(Prim::Xor, 64, &a, &b),
            Func::Neg => d.prim(Prim::Sub, 64, &zero, &a),
            Func::Not => {
                let ones = d.constant(64, u64::MAX);
                d.prim(Prim::Xor, 64, &a, &ones)
            }
            Func::Shl => shift(d, Prim::Shl, &a, &b),
            Func::Shr => shift(d, Prim::LShr, &a, &b),
            Func::Log2 => log2(d, &a),
            Func::Low => {
                let one = d.constant(64, 1);
                let power = shift(d, Prim::Shl, &one, &a);
                d.prim(Prim::Sub, 64, &power, &one)
            }
            Func::Swap16 => semantics::swap(d, SwapKind::Swap, 16, &a),
            Func::Swap32 => semantics::swap(d, SwapKind::Swap, 32, &a),
            Func::Swap64 => semantics::swap(d, SwapKind::Swap, 64, &a),
            Func::Sext8 => semantics::movsx(d, Width::W64, 8, &a),
            Func::Sext16 => semantics::movsx(d, Width::W64, 16, &a),
            Func::Sext32 => semantics::movsx(d, Width::W64, 32, &a),
            Func::Zext => semantics::mov(d, Width::W32, &a),
            _ => {
                let holds = self.holds(d, &a, &b);
                let one = d.constant(64, 1);
                d.select(64, &holds, &one, &zero)
            }
        }
    }

    /// The truth value that those functions give which give one; whether it is not zero, of the others.
    fn holds<D: Domain>(self, d: &mut D, a: &D::V, b: &D::V) -> D::B {
        match self {
            Func::Eq => d.compare(Pred::Eq, 64, a, b),
            Func::Lt => d.compare(Pred::Ult, 64, a, b),
            Func::Le => d.compare(Pred::Ule, 64, a, b),
            Func::Gt => d.compare(Pred::Ult, 64, b, a),
            Func::Ge => d.compare(Pred::Ule, 64, b, a),
            Func::Slt => d.compare(Pred::Slt, 64, a, b),
            Func::Sle => d.compare(Pred::Sle, 64, a, b),
            Func::Imm => {
                let narrow = semantics::movsx(d, Width::W64, 32, a);
                d.compare(Pred::Eq, 64, a, &narrow)
            }
            Func::Pow2 => {
                // a ^ (a - 1) is above a - 1 for powers of two and 0 only; of 0 it is not.
                let one = d.constant(64, 1);
                let less = d.prim(Prim::Sub, 64, a, &one);
                let both = d.prim(Prim::Xor, 64, a, &less);
                d.compare(Pred::Ult, 64, &less, &both)
            }
            _ => {
                let equal = d.compare(Pred::Eq, 64, a, b);
                d.not(&equal)
            }
        }
    }
}

/// A shift whose count is not masked: from 64 on, nothing is left.
fn shift<D: Domain>(d: &mut D, op: Prim, a: &D::V, count: &D::V) -> D::V {
    let (zero, width) = (d.constant(64, 0), d.constant(64, 64));
    let within = d.compare(Pred::Ult, 64, count, &width);
    let most = d.constant(64, 63);
    let masked = d.prim(Prim::And, 64, count, &most);
    let shifted = d.prim(op, 64, a, &masked);
    d.select(64, &within, &shifted, &zero)
}

/// The number of the highest bit, by halves.
fn log2<D: Domain>(d: &mut D, a: &D::V) -> D::V {
    let mut rest = a.clone();
    let mut sum = d.constant(64, 0);
    for step in [32u32, 16, 8, 4, 2, 1] {
        let least = d.constant(64, 1 << step);
        let below = d.compare(Pred::Ult, 64, &rest, &least);
        let by = d.constant(64, u64::from(step));
        let (moved, more) = (d.prim(Prim::LShr, 64, &rest, &by), d.prim(Prim::Add, 64, &sum, &by));
        rest = d.select(64, &below, &rest, &moved);
        sum = d.select(64, &below, &sum, &more);
    }
    sum
}

#[cfg(test)]
mod tests {
    use millstream_isa::semantics::ConcreteDomain;

    use super::Func;

    #[test]
    fn functions_of_integers_give_what_their_names_say() {
        let cases = [
            (Func::Log2, [0x8000_0000_0000_0000, 0], 63),
            (Func::Log2, [1, 0], 0),
            (Func::Log2, [0, 0], 0),
            (Func::Pow2, [0, 0], 0),
            (Func::Pow2, [1, 0], 1),
            (Func::Pow2, [6, 0], 0),
            (Func::Pow2, [1 << 63, 0], 1),
            (Func::Pow2, [u64::MAX, 0], 0),
            (Func::Low, [0, 0], 0),
            (Func::Low, [33, 0], 0x1_ffff_ffff),
            (Func::Low, [64, 0], u64::MAX),
            (Func::Low, [1 << 40, 0], u64::MAX),
            (Func::Shl, [3, 63], 1 << 63),
            (Func::Shl, [3, 64], 0),
            (Func::Shl, [3, 1 << 32], 0),
            (Func::Imm, [0x8000_0000, 0], 0),
            (Func::Imm, [0xffff_ffff_8000_0000, 0], 1),
            (Func::Swap32, [0x1122_3344_5566_7788, 0], 0x8877_6655),
            (Func::Slt, [u64::MAX, 0], 1),
            (Func::Ne, [4, 4], 0),
        ];
        for (func, args, expected) in cases {
            assert_eq!(func.apply(&mut ConcreteDomain, &args), expected, "{func:?} of {args:x?}");
        }
    }
}
