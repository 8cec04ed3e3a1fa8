//! Result of every instruction, written once, generic over the domain of values.
//!
//! A [`Domain`] supplies bit vectors with a handful of primitive operations, as SMT-LIB's theory of bit
//! vectors has them; the functions here say what BPF makes of these: masked shift counts, division by zero,
//! zero extension of 32-bit results, sign extension, byte order. [`ConcreteDomain`] gives the interpreter and
//! constant folding, [`AbstractDomain`](crate::absint::AbstractDomain) gives known bits and ranges, terms
//! give a prover.
//!
//! Registers are 64-bit values, which have no byte order. Operations that are relative to the host's order are
//! those of a little-endian host: programs of other hosts are [read](crate::RawInsn::from_bytes_in) accordingly.
//!
//! Source: `Documentation/bpf/standardization/instruction-set.rst` (RFC 9669) and `kernel/bpf/core.c`.

mod concrete;

pub use concrete::{ConcreteDomain, eval};

use crate::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};

/// A primitive operation on two bit vectors of the same width, giving one of that width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Prim {
    /// Sum, modulo 2^width.
    Add,
    /// Difference, modulo 2^width.
    Sub,
    /// Product, modulo 2^width.
    Mul,
    /// Unsigned quotient; any value where the divisor is 0.
    UDiv,
    /// Unsigned remainder; any value where the divisor is 0.
    URem,
    /// Signed quotient, rounded to zero, the least value by -1 being itself; any value where the divisor is
    /// 0.
    SDiv,
    /// Signed remainder, of the dividend's sign; any value where the divisor is 0.
    SRem,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Left shift; the count is below the width.
    Shl,
    /// Logical right shift; the count is below the width.
    LShr,
    /// Arithmetic right shift; the count is below the width.
    AShr,
}

/// A primitive comparison of two bit vectors of the same width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pred {
    /// Equal.
    Eq,
    /// Unsigned less.
    Ult,
    /// Unsigned less or equal.
    Ule,
    /// Signed less.
    Slt,
    /// Signed less or equal.
    Sle,
}

/// A domain of values: bit vectors of width 8, 16, 32 or 64, and truth values.
///
/// Widths are given with each operation, so that a domain of plain integers need not store them. All
/// operations are total.
pub trait Domain {
    /// A bit vector.
    type V: Clone;
    /// A truth value.
    type B: Clone;

    /// The constant `value`, whose bits from `bits` on are ignored.
    fn constant(&mut self, bits: u32, value: u64) -> Self::V;
    /// A primitive operation at width `bits`.
    fn prim(&mut self, op: Prim, bits: u32, a: &Self::V, b: &Self::V) -> Self::V;
    /// A primitive comparison at width `bits`.
    fn compare(&mut self, pred: Pred, bits: u32, a: &Self::V, b: &Self::V) -> Self::B;
    /// The opposite truth value.
    fn not(&mut self, a: &Self::B) -> Self::B;
    /// `then` where `c` holds, else `other`; both of width `bits`.
    fn select(&mut self, bits: u32, c: &Self::B, then: &Self::V, other: &Self::V) -> Self::V;
    /// The low `to` bits of a vector of `from` bits; `to <= from`.
    fn truncate(&mut self, from: u32, to: u32, a: &Self::V) -> Self::V;
    /// Zero extension from `from` to `to` bits; `from <= to`.
    fn zero_extend(&mut self, from: u32, to: u32, a: &Self::V) -> Self::V;
    /// Sign extension from `from` to `to` bits; `from <= to`.
    fn sign_extend(&mut self, from: u32, to: u32, a: &Self::V) -> Self::V;
}

/// A 32-bit immediate as the 64-bit operand it stands for.
pub fn immediate<D: Domain>(d: &mut D, imm: i32) -> D::V {
    d.constant(64, imm as i64 as u64)
}

/// Narrows a register to the width of an operation.
fn narrow<D: Domain>(d: &mut D, width: Width, a: &D::V) -> D::V {
    match width {
        Width::W32 => d.truncate(64, 32, a),
        Width::W64 => a.clone(),
    }
}

/// Widens the result of an operation to a register: 32-bit results are zero-extended.
fn widen<D: Domain>(d: &mut D, width: Width, a: D::V) -> D::V {
    match width {
        Width::W32 => d.zero_extend(32, 64, &a),
        Width::W64 => a,
    }
}

/// `a op b`: the new value of the destination register.
pub fn alu<D: Domain>(d: &mut D, op: AluOp, width: Width, a: &D::V, b: &D::V) -> D::V {
    let bits = width.bits();
    let (a, b) = (narrow(d, width, a), narrow(d, width, b));
    let value = match op {
        AluOp::Add => d.prim(Prim::Add, bits, &a, &b),
        AluOp::Sub => d.prim(Prim::Sub, bits, &a, &b),
        AluOp::Mul => d.prim(Prim::Mul, bits, &a, &b),
        AluOp::Or => d.prim(Prim::Or, bits, &a, &b),
        AluOp::And => d.prim(Prim::And, bits, &a, &b),
        AluOp::Xor => d.prim(Prim::Xor, bits, &a, &b),
        AluOp::Lsh => shift(d, Prim::Shl, bits, &a, &b),
        AluOp::Rsh => shift(d, Prim::LShr, bits, &a, &b),
        AluOp::Arsh => shift(d, Prim::AShr, bits, &a, &b),
        AluOp::Div => quotient(d, Prim::UDiv, bits, &a, &b),
        AluOp::SDiv => quotient(d, Prim::SDiv, bits, &a, &b),
        AluOp::Mod => remainder(d, Prim::URem, bits, &a, &b),
        AluOp::SMod => remainder(d, Prim::SRem, bits, &a, &b),
    };
    widen(d, width, value)
}

/// Shift counts are taken modulo the width.
fn shift<D: Domain>(d: &mut D, op: Prim, bits: u32, a: &D::V, b: &D::V) -> D::V {
    let mask = d.constant(bits, u64::from(bits - 1));
    let count = d.prim(Prim::And, bits, b, &mask);
    d.prim(op, bits, a, &count)
}

/// Division by zero gives 0.
fn quotient<D: Domain>(d: &mut D, op: Prim, bits: u32, a: &D::V, b: &D::V) -> D::V {
    let zero = d.constant(bits, 0);
    let by_zero = d.compare(Pred::Eq, bits, b, &zero);
    let value = d.prim(op, bits, a, b);
    d.select(bits, &by_zero, &zero, &value)
}

/// The remainder modulo zero is the dividend.
fn remainder<D: Domain>(d: &mut D, op: Prim, bits: u32, a: &D::V, b: &D::V) -> D::V {
    let zero = d.constant(bits, 0);
    let by_zero = d.compare(Pred::Eq, bits, b, &zero);
    let value = d.prim(op, bits, a, b);
    d.select(bits, &by_zero, a, &value)
}

/// `-a`
pub fn neg<D: Domain>(d: &mut D, width: Width, a: &D::V) -> D::V {
    let zero = d.constant(64, 0);
    alu(d, AluOp::Sub, width, &zero, a)
}

/// A move: the 32-bit one zero-extends.
pub fn mov<D: Domain>(d: &mut D, width: Width, a: &D::V) -> D::V {
    let low = narrow(d, width, a);
    widen(d, width, low)
}

/// `(s8)a`, `(s16)a`, `(s32)a`: the low `bits` bits sign-extended to `width`, then zero-extended.
pub fn movsx<D: Domain>(d: &mut D, width: Width, bits: u32, a: &D::V) -> D::V {
    let low = d.truncate(64, bits, a);
    let value = d.sign_extend(bits, width.bits(), &low);
    widen(d, width, value)
}

/// A byte order operation on the low `bits` bits; the result is zero-extended.
pub fn swap<D: Domain>(d: &mut D, kind: SwapKind, bits: u32, a: &D::V) -> D::V {
    let low = d.truncate(64, bits, a);
    let value = match kind {
        SwapKind::ToLe => low,
        SwapKind::ToBe | SwapKind::Swap => reverse_bytes(d, bits, &low),
    };
    d.zero_extend(bits, 64, &value)
}

fn reverse_bytes<D: Domain>(d: &mut D, bits: u32, a: &D::V) -> D::V {
    let byte = d.constant(bits, 0xff);
    let mut out = d.constant(bits, 0);
    for at in (0..bits).step_by(8) {
        let from = d.constant(bits, u64::from(at));
        let to = d.constant(bits, u64::from(bits - 8 - at));
        let moved = d.prim(Prim::LShr, bits, a, &from);
        let one = d.prim(Prim::And, bits, &moved, &byte);
        let placed = d.prim(Prim::Shl, bits, &one, &to);
        out = d.prim(Prim::Or, bits, &out, &placed);
    }
    out
}

/// Decides the branch `if a cond b`: true if it is taken.
pub fn cond<D: Domain>(d: &mut D, cond: Cond, width: Width, a: &D::V, b: &D::V) -> D::B {
    let bits = width.bits();
    let (a, b) = (narrow(d, width, a), narrow(d, width, b));
    match cond {
        Cond::Eq => d.compare(Pred::Eq, bits, &a, &b),
        Cond::Lt => d.compare(Pred::Ult, bits, &a, &b),
        Cond::Le => d.compare(Pred::Ule, bits, &a, &b),
        Cond::Gt => d.compare(Pred::Ult, bits, &b, &a),
        Cond::Ge => d.compare(Pred::Ule, bits, &b, &a),
        Cond::Slt => d.compare(Pred::Slt, bits, &a, &b),
        Cond::Sle => d.compare(Pred::Sle, bits, &a, &b),
        Cond::Sgt => d.compare(Pred::Slt, bits, &b, &a),
        Cond::Sge => d.compare(Pred::Sle, bits, &b, &a),
        Cond::Ne => {
            let equal = d.compare(Pred::Eq, bits, &a, &b);
            d.not(&equal)
        }
        Cond::Set => {
            let common = d.prim(Prim::And, bits, &a, &b);
            let zero = d.constant(bits, 0);
            let none = d.compare(Pred::Eq, bits, &common, &zero);
            d.not(&none)
        }
    }
}

/// The register after a load of `bytes`, a vector of the access's width.
pub fn loaded<D: Domain>(d: &mut D, size: Size, sext: bool, bytes: &D::V) -> D::V {
    if sext { d.sign_extend(size.bits(), 64, bytes) } else { d.zero_extend(size.bits(), 64, bytes) }
}

/// The value that a store of register `a` puts into memory, a vector of the access's width.
pub fn stored<D: Domain>(d: &mut D, size: Size, a: &D::V) -> D::V {
    d.truncate(64, size.bits(), a)
}

/// The outcome of an atomic operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtomicResult<V> {
    /// Contents of memory afterwards, of the access's width.
    pub memory: V,
    /// The old value, zero-extended to 64 bits: the result of the fetching forms.
    pub fetched: V,
}

/// An atomic operation on memory that holds `old` (of the access's width) with operand `src` and, for
/// `CmpXchg`, the expected value `r0`.
pub fn atomic<D: Domain>(
    d: &mut D,
    op: AtomicOp,
    size: Size,
    old: &D::V,
    src: &D::V,
    r0: &D::V,
) -> AtomicResult<D::V> {
    let bits = size.bits();
    let src = d.truncate(64, bits, src);
    let memory = match op {
        AtomicOp::Add => d.prim(Prim::Add, bits, old, &src),
        AtomicOp::Or => d.prim(Prim::Or, bits, old, &src),
        AtomicOp::And => d.prim(Prim::And, bits, old, &src),
        AtomicOp::Xor => d.prim(Prim::Xor, bits, old, &src),
        AtomicOp::Xchg => src,
        AtomicOp::CmpXchg => {
            let expected = d.truncate(64, bits, r0);
            let same = d.compare(Pred::Eq, bits, old, &expected);
            d.select(bits, &same, &src, old)
        }
    };
    AtomicResult { memory, fetched: d.zero_extend(bits, 64, old) }
}
