//! Text of LLVM's IR, instruction by instruction; the semantics of instructions come from
//! [`millstream_isa::semantics`], of which [`LlvmTextBuilder`] is one more domain.

use std::fmt::Write;

use millstream_isa::semantics::{Domain, Pred, Prim};

/// A growing basic block sequence. Operands are text: a literal or a name.
#[derive(Debug, Default)]
pub(super) struct LlvmTextBuilder {
    pub(super) text: String,
    /// Label of the current block.
    pub(super) label: String,
    next: u32,
}

impl LlvmTextBuilder {
    /// Writes an instruction without result.
    pub(super) fn line(&mut self, text: &str) {
        self.text.push_str("  ");
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Writes an instruction with a result of a new name.
    pub(super) fn value(&mut self, text: &str) -> String {
        self.next += 1;
        let name = format!("%t{}", self.next);
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "  {name} = {text}");
        name
    }

    /// Writes an instruction with a result of this name.
    pub(super) fn named(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.text, "  {name} = {text}");
    }

    /// A label that no other block has.
    pub(super) fn fresh_label(&mut self, stem: &str) -> String {
        self.next += 1;
        format!("{stem}{}", self.next)
    }

    /// Begins a block.
    pub(super) fn begin(&mut self, label: &str) {
        let _ = writeln!(self.text, "{label}:");
        self.label = label.to_owned();
    }

    /// A quotient or remainder; if the divisor is zero the result is arbitrary but defined by LLVM.
    fn divide(&mut self, op: Prim, bits: u32, a: &str, b: &str) -> String {
        let zero = self.value(&format!("icmp eq i{bits} {b}, 0"));
        let signed = matches!(op, Prim::SDiv | Prim::SRem);
        if !signed {
            let by = self.value(&format!("select i1 {zero}, i{bits} 1, i{bits} {b}"));
            let word = if op == Prim::UDiv { "udiv" } else { "urem" };
            return self.value(&format!("{word} i{bits} {a}, {by}"));
        }
        // Division by -1 is negation, which overflows where division would trap.
        let minus = self.value(&format!("icmp eq i{bits} {b}, -1"));
        let odd = self.value(&format!("or i1 {zero}, {minus}"));
        let by = self.value(&format!("select i1 {odd}, i{bits} 1, i{bits} {b}"));
        let (word, other) = match op {
            Prim::SDiv => ("sdiv", self.value(&format!("sub i{bits} 0, {a}"))),
            _ => ("srem", "0".to_owned()),
        };
        let value = self.value(&format!("{word} i{bits} {a}, {by}"));
        self.value(&format!("select i1 {minus}, i{bits} {other}, i{bits} {value}"))
    }

    fn cast(&mut self, word: &str, from: u32, to: u32, a: &str) -> String {
        if from == to { a.to_owned() } else { self.value(&format!("{word} i{from} {a} to i{to}")) }
    }
}

impl Domain for LlvmTextBuilder {
    type V = String;
    type B = String;

    fn constant(&mut self, bits: u32, value: u64) -> String {
        let value = if bits == 64 { value } else { value & ((1 << bits) - 1) };
        value.to_string()
    }

    fn prim(&mut self, op: Prim, bits: u32, a: &String, b: &String) -> String {
        let word = match op {
            Prim::Add => "add",
            Prim::Sub => "sub",
            Prim::Mul => "mul",
            Prim::And => "and",
            Prim::Or => "or",
            Prim::Xor => "xor",
            Prim::Shl => "shl",
            Prim::LShr => "lshr",
            Prim::AShr => "ashr",
            Prim::UDiv | Prim::URem | Prim::SDiv | Prim::SRem => return self.divide(op, bits, a, b),
        };
        self.value(&format!("{word} i{bits} {a}, {b}"))
    }

    fn compare(&mut self, pred: Pred, bits: u32, a: &String, b: &String) -> String {
        let word = match pred {
            Pred::Eq => "eq",
            Pred::Ult => "ult",
            Pred::Ule => "ule",
            Pred::Slt => "slt",
            Pred::Sle => "sle",
        };
        self.value(&format!("icmp {word} i{bits} {a}, {b}"))
    }

    fn not(&mut self, a: &String) -> String {
        self.value(&format!("xor i1 {a}, true"))
    }

    fn select(&mut self, bits: u32, c: &String, then: &String, other: &String) -> String {
        self.value(&format!("select i1 {c}, i{bits} {then}, i{bits} {other}"))
    }

    fn truncate(&mut self, from: u32, to: u32, a: &String) -> String {
        self.cast("trunc", from, to, a)
    }

    fn zero_extend(&mut self, from: u32, to: u32, a: &String) -> String {
        self.cast("zext", from, to, a)
    }

    fn sign_extend(&mut self, from: u32, to: u32, a: &String) -> String {
        self.cast("sext", from, to, a)
    }
}
