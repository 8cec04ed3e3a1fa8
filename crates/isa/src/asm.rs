//! An assembler for the text that [`disasm`](crate::disasm) writes, with labels.
//!
//! ```
//! use millstream_isa::asm::assemble;
//! let insns = assemble("
//!     r0 = 0
//! again:
//!     r0 += 1
//!     if r0 < 0xa goto again   ; ten times
//!     exit
//! ").unwrap();
//! assert_eq!(insns.len(), 4);
//! assert_eq!(insns[2].to_string(), "if r0 < 0xa goto pc-2");
//! ```
//!
//! One instruction a line. A line may open with a slot number and an opcode as dumps have them (`12: (bf)`);
//! both are ignored. Comments start with `;` or `//`. `label:` names the next instruction. Numbers are
//! decimal or `0x`. `r1 = 0x5` is `ld_imm64`, `r1 = 5` a move; ` ll` after a number makes it `ld_imm64` too.

use std::collections::HashMap;

use crate::helpers::Helper;
use crate::{AluOp, AtomicOp, Callee, Cond, Insn, LegacyMode, Operand, Pseudo, Reg, Size, SwapKind, Width};

/// Error in a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct AsmError {
    /// Line, from 1.
    pub line: usize,
    /// Expected or found input.
    pub what: String,
}

/// Assembles a program.
///
/// # Errors
/// The first line that is no instruction, names no label, or whose jump is out of reach.
pub fn assemble(text: &str) -> Result<Vec<Insn>, AsmError> {
    let mut parsed = Vec::new();
    let mut labels = HashMap::new();
    let mut slot = 0;
    for (at, line) in text.lines().enumerate() {
        let fail = |what| AsmError { line: at + 1, what };
        let mut line = strip_comment(line).trim();
        if let Some(label) = line.strip_suffix(':').filter(|label| is_name(label)) {
            if labels.insert(label, slot).is_some() {
                return Err(fail(format!("label `{label}` is defined twice")));
            }
            continue;
        }
        line = strip_prefix(line);
        if line.is_empty() {
            continue;
        }
        let one = AsmCursor::new(line).insn().map_err(fail)?;
        slot += one.insn.slots();
        parsed.push((at + 1, one));
    }
    let mut slot = 0;
    let mut out = Vec::with_capacity(parsed.len());
    for (line, one) in parsed {
        slot += one.insn.slots();
        out.push(one.resolve(slot, &labels).map_err(|what| AsmError { line, what })?);
    }
    Ok(out)
}

fn strip_comment(line: &str) -> &str {
    let end = [line.find(';'), line.find("//")].into_iter().flatten().min();
    &line[..end.unwrap_or(line.len())]
}

/// Drops the slot number and the opcode of a dump.
fn strip_prefix(line: &str) -> &str {
    let Some((number, rest)) = line.split_once(':') else { return line };
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return line;
    }
    let rest = rest.trim_start();
    let opcode = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    match opcode {
        Some((code, rest)) if code.len() == 2 && u8::from_str_radix(code, 16).is_ok() => rest.trim_start(),
        _ => rest,
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b"_.$".contains(&b))
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_.$".contains(&b))
}

/// An instruction whose target may still be a name.
struct ParsedInsn<'a> {
    insn: Insn,
    label: Option<&'a str>,
}

impl ParsedInsn<'_> {
    /// Fills in the distance from slot `next`, which follows the instruction.
    fn resolve(mut self, next: usize, labels: &HashMap<&str, usize>) -> Result<Insn, String> {
        let Some(label) = self.label else { return Ok(self.insn) };
        let target = labels.get(label).ok_or_else(|| format!("no label `{label}`"))?;
        let distance = *target as i64 - next as i64;
        let far = || format!("label `{label}` is {distance} slots away, too far");
        let short = i16::try_from(distance).map_err(|_| far());
        let long_distance = i32::try_from(distance).map_err(|_| far());
        match &mut self.insn {
            Insn::Jump { off, long: false } => *off = i32::from(short?),
            Insn::Jump { off, long: true } | Insn::Call(Callee::Local(off)) => *off = long_distance?,
            Insn::Branch { off, .. } | Insn::MayGoto { off } => *off = short?,
            other => return Err(format!("`{other}` takes no label")),
        }
        Ok(self.insn)
    }
}

type AsmResult<T> = Result<T, String>;

/// A cursor over one line.
struct AsmCursor<'a> {
    rest: &'a str,
}

impl<'a> AsmCursor<'a> {
    fn new(text: &'a str) -> AsmCursor<'a> {
        AsmCursor { rest: text }
    }

    /// Takes `token` after spaces, if it is next.
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Takes the word `token`, if it is next and ends there.
    fn eat_word(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) if !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, token: &str) -> AsmResult<()> {
        if self.eat(token) { Ok(()) } else { Err(format!("expected `{token}` at `{}`", self.rest.trim())) }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c| !keep(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn word(&mut self) -> &'a str {
        self.take_while(|c| c.is_ascii_alphanumeric() || "_.$-".contains(c))
    }

    /// A number with its sign, and whether it was written in hexadecimal.
    fn number(&mut self) -> AsmResult<(i128, bool)> {
        let negative = self.eat("-");
        if !negative {
            self.eat("+");
        }
        let hex = self.eat("0x");
        let digits = self.take_while(|c| c.is_ascii_hexdigit());
        let value = u64::from_str_radix(digits, if hex { 16 } else { 10 })
            .map_err(|_| format!("expected a number at `{digits}{}`", self.rest))?;
        let value = i128::from(value);
        Ok((if negative { -value } else { value }, hex))
    }

    fn narrow<T: TryFrom<i128>>(&mut self) -> AsmResult<T> {
        let (value, _) = self.number()?;
        T::try_from(value).map_err(|_| format!("{value} does not fit"))
    }

    /// A 32-bit immediate, signed, or the bits of one.
    fn imm(&mut self) -> AsmResult<i32> {
        let (value, _) = self.number()?;
        as_imm(value)
    }

    fn reg(&mut self) -> AsmResult<(Width, Reg)> {
        let at = self.rest.trim();
        self.try_reg().ok_or_else(|| format!("expected a register at `{at}`"))
    }

    fn try_reg(&mut self) -> Option<(Width, Reg)> {
        let start = self.rest;
        let word = self.take_while(|c| c.is_ascii_alphanumeric());
        let found = word.split_at_checked(1).and_then(|(kind, number)| {
            let width = match kind {
                "r" => Width::W64,
                "w" => Width::W32,
                _ => return None,
            };
            Some((width, Reg::new(number.parse().ok()?)?))
        });
        if found.is_none() {
            self.rest = start;
        }
        found
    }

    fn full_reg(&mut self) -> AsmResult<Reg> {
        match self.reg()? {
            (Width::W64, reg) => Ok(reg),
            (Width::W32, reg) => Err(format!("expected r{0}, not w{0}", reg.number())),
        }
    }

    /// A register of this width, or an immediate.
    fn operand(&mut self, width: Width) -> AsmResult<Operand> {
        match self.try_reg() {
            Some((found, reg)) if found == width => Ok(Operand::Reg(reg)),
            Some(_) => Err("operands of different widths".to_owned()),
            None => Ok(Operand::Imm(self.imm()?)),
        }
    }

    /// `(u32 *)`: the size, and whether it is signed.
    fn size(&mut self) -> AsmResult<(Size, bool)> {
        self.expect("(")?;
        let word = self.word();
        let (kind, bits) = word.split_at_checked(1).ok_or("expected a type")?;
        let size =
            bits.parse().ok().filter(|bits| bits % 8 == 0).and_then(|bits: u32| Size::from_bytes(bits / 8));
        let size = size.filter(|_| kind == "u" || kind == "s").ok_or_else(|| format!("no type `{word}`"))?;
        self.expect("*")?;
        self.expect(")")?;
        Ok((size, kind == "s"))
    }

    /// `(u32 *)(r1 +4)`, unsigned.
    fn memory(&mut self) -> AsmResult<(Size, Reg, i16)> {
        let (size, signed) = self.size()?;
        let (base, off) = self.address()?;
        if signed { Err("only plain loads are signed".to_owned()) } else { Ok((size, base, off)) }
    }

    fn address(&mut self) -> AsmResult<(Reg, i16)> {
        self.expect("(")?;
        let base = self.full_reg()?;
        let off = if self.rest.trim_start().starts_with(')') { 0 } else { self.narrow()? };
        self.expect(")")?;
        Ok((base, off))
    }

    /// `pc+4`, `+4` or a label.
    fn target<T: TryFrom<i128> + Default>(&mut self) -> AsmResult<(T, Option<&'a str>)> {
        let rest = self.rest.trim_start();
        let relative = rest.strip_prefix("pc").unwrap_or(rest);
        if relative.starts_with(['+', '-']) {
            self.rest = relative;
            return Ok((self.narrow()?, None));
        }
        let label = self.word();
        if is_name(label) { Ok((T::default(), Some(label))) } else { Err(format!("no target `{label}`")) }
    }

    /// The whole line.
    fn insn(mut self) -> AsmResult<ParsedInsn<'a>> {
        let parsed = self.any()?;
        let rest = self.rest.trim();
        if rest.is_empty() { Ok(parsed) } else { Err(format!("unexpected `{rest}`")) }
    }

    fn any(&mut self) -> AsmResult<ParsedInsn<'a>> {
        let plain = |insn| ParsedInsn { insn, label: None };
        if self.eat_word("exit") {
            return Ok(plain(Insn::Exit));
        }
        if self.eat_word("goto") {
            let (off, label) = self.target::<i16>()?;
            return Ok(ParsedInsn { insn: Insn::Jump { off: i32::from(off), long: false }, label });
        }
        if self.eat_word("gotol") {
            let (off, label) = self.target()?;
            return Ok(ParsedInsn { insn: Insn::Jump { off, long: true }, label });
        }
        if self.eat_word("may_goto") {
            let (off, label) = self.target()?;
            return Ok(ParsedInsn { insn: Insn::MayGoto { off }, label });
        }
        if self.eat_word("if") {
            return self.branch();
        }
        if self.eat_word("callx") {
            return Ok(plain(Insn::Call(Callee::Register(self.full_reg()?))));
        }
        if self.eat_word("call") {
            return self.call();
        }
        if self.eat_word("lock") {
            return self.locked().map(plain);
        }
        if self.eat_word("store_release") {
            return self.store_release().map(plain);
        }
        if self.eat("*") {
            return self.store().map(plain);
        }
        let (width, dst) = self.reg()?;
        if self.eat("=") { self.assignment(width, dst).map(plain) } else { self.alu(width, dst).map(plain) }
    }

    fn branch(&mut self) -> AsmResult<ParsedInsn<'a>> {
        let (width, dst) = self.reg()?;
        let symbol = self.take_while(|c| "=!<>s&".contains(c));
        let cond = Cond::ALL.into_iter().find(|cond| cond.symbol() == symbol);
        let cond = cond.ok_or_else(|| format!("no condition `{symbol}`"))?;
        let src = self.operand(width)?;
        self.expect("goto")?;
        let (off, label) = self.target()?;
        Ok(ParsedInsn { insn: Insn::Branch { width, cond, dst, src, off }, label })
    }

    fn call(&mut self) -> AsmResult<ParsedInsn<'a>> {
        let rest = self.rest.trim_start();
        if rest.starts_with("pc") || !rest.contains('#') && Helper::by_name(rest.trim()).is_none() {
            let (off, label) = self.target()?;
            return Ok(ParsedInsn { insn: Insn::Call(Callee::Local(off)), label });
        }
        let name = self.word();
        let id = if self.eat("#") { Some(self.narrow()?) } else { None };
        let callee = match (name, id, Helper::by_name(name)) {
            ("kernel-function", Some(btf_id), _) => {
                let fd_idx = if self.eat("off:") { self.narrow()? } else { 0 };
                Callee::Kfunc { btf_id, fd_idx }
            }
            ("unknown", Some(id), _) => Callee::Helper(id),
            (_, None, Some((id, _))) => Callee::Helper(id),
            (_, Some(id), Some((known, _))) if id == known => Callee::Helper(id),
            _ => return Err(format!("no helper `{name}` of this number")),
        };
        Ok(ParsedInsn { insn: Insn::Call(callee), label: None })
    }

    fn alu(&mut self, width: Width, dst: Reg) -> AsmResult<Insn> {
        let symbol = self.take_while(|c| "+-*/s%|&^<>=".contains(c));
        let op = AluOp::ALL.into_iter().find(|op| symbol.strip_suffix('=') == Some(op.symbol()));
        let op = op.ok_or_else(|| format!("no operator `{symbol}`"))?;
        Ok(Insn::Alu { width, op, dst, src: self.operand(width)? })
    }

    /// Parses the right side of `r1 =`.
    fn assignment(&mut self, width: Width, dst: Reg) -> AsmResult<Insn> {
        let start = self.rest;
        if self.eat("-") {
            if let Some(src) = self.try_reg() {
                let same = src == (width, dst);
                return if same {
                    Ok(Insn::Neg { width, dst })
                } else {
                    Err("negation is in place".to_owned())
                };
            }
            self.rest = start;
        }
        if self.eat("*") {
            return self.load(dst);
        }
        if self.eat("(") {
            return self.movsx(width, dst);
        }
        if let Some((found, src)) = self.try_reg() {
            let same = found == width;
            return if same {
                Ok(Insn::Mov { width, dst, src: Operand::Reg(src) })
            } else {
                Err("widths differ".into())
            };
        }
        if start.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') {
            return self.immediate(width, dst);
        }
        self.function(dst)
    }

    fn immediate(&mut self, width: Width, dst: Reg) -> AsmResult<Insn> {
        let (value, hex) = self.number()?;
        let wide = self.eat_word("ll") || hex;
        if width == Width::W64 && wide {
            let imm = u64::try_from(value).or_else(|_| i64::try_from(value).map(|v| v as u64));
            let imm = imm.map_err(|_| format!("{value} does not fit"))?;
            return Ok(Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm, off: self.off_field()? });
        }
        Ok(Insn::Mov { width, dst, src: Operand::Imm(as_imm(value)?) })
    }

    fn off_field(&mut self) -> AsmResult<i16> {
        if self.eat("off:") { self.narrow() } else { Ok(0) }
    }

    /// `r1 = *` has been read.
    fn load(&mut self, dst: Reg) -> AsmResult<Insn> {
        let (size, sext) = self.size()?;
        if !self.eat("skb") {
            let (src, off) = self.address()?;
            return Ok(Insn::Load { size, sext, dst, src, off });
        }
        self.expect("[")?;
        let mode = match self.try_reg() {
            Some((_, reg)) => {
                self.expect("+")?;
                LegacyMode::Ind(reg)
            }
            None => LegacyMode::Abs,
        };
        let imm = self.imm()?;
        self.expect("]")?;
        if dst == Reg::R0 {
            Ok(Insn::LegacyLoad { size, mode, imm })
        } else {
            Err("packet loads go to r0".into())
        }
    }

    /// `r1 = (` has been read.
    fn movsx(&mut self, width: Width, dst: Reg) -> AsmResult<Insn> {
        let bits = match self.word() {
            "s8" => 8,
            "s16" => 16,
            "s32" if width == Width::W64 => 32,
            other => return Err(format!("no sign extension from `{other}`")),
        };
        self.expect(")")?;
        let (found, src) = self.reg()?;
        if found == width { Ok(Insn::MovSx { width, bits, dst, src }) } else { Err("widths differ".into()) }
    }

    /// An assignment from something that opens with a word.
    fn function(&mut self, dst: Reg) -> AsmResult<Insn> {
        let word = self.word();
        match word {
            "map" | "btf" | "subprog" => self.symbol(word, dst),
            "addr_space_cast" => {
                self.expect("(")?;
                let src = self.full_reg()?;
                self.expect(",")?;
                let from: u16 = self.narrow()?;
                self.expect(",")?;
                let to: u16 = self.narrow()?;
                self.expect(")")?;
                Ok(Insn::AddrSpaceCast { dst, src, imm: (u32::from(from) << 16 | u32::from(to)) as i32 })
            }
            "load_acquire" => {
                self.expect("(")?;
                let (size, src, off) = self.memory()?;
                self.expect(")")?;
                Ok(Insn::LoadAcquire { size, dst, src, off })
            }
            _ if word.starts_with("atomic") => self.atomic(word, dst),
            _ => self.swap(word, dst),
        }
    }

    fn swap(&mut self, word: &str, dst: Reg) -> AsmResult<Insn> {
        for kind in [SwapKind::ToLe, SwapKind::ToBe, SwapKind::Swap] {
            let bits = match word.strip_prefix(kind.name()) {
                Some("16") => 16,
                Some("32") => 32,
                Some("64") => 64,
                _ => continue,
            };
            let src = self.full_reg()?;
            return if src == dst {
                Ok(Insn::Swap { kind, bits, dst })
            } else {
                Err("byte swaps are in place".into())
            };
        }
        Err(format!("no instruction `{word}`"))
    }

    /// `map[fd:3]`, `map[idx:3][0]+8`, `btf[7]`, `subprog[+5]`, whose first word has been read.
    fn symbol(&mut self, word: &str, dst: Reg) -> AsmResult<Insn> {
        self.expect("[")?;
        let pseudo = match word {
            "btf" => Pseudo::BtfId,
            "subprog" => Pseudo::Func,
            _ if self.eat("fd:") => Pseudo::MapFd,
            _ if self.eat("idx:") => Pseudo::MapIdx,
            _ => return Err("expected `fd:` or `idx:`".to_owned()),
        };
        let low: i32 = self.narrow()?;
        self.expect("]")?;
        let pseudo = match pseudo {
            Pseudo::MapFd if self.eat("[0]") => Pseudo::MapValue,
            Pseudo::MapIdx if self.eat("[0]") => Pseudo::MapIdxValue,
            other => other,
        };
        let high: u32 = if self.eat("+") { self.narrow()? } else { 0 };
        let imm = u64::from(low as u32) | u64::from(high) << 32;
        Ok(Insn::LoadImm64 { dst, pseudo, imm, off: self.off_field()? })
    }

    /// `atomic64_fetch_add((u64 *)(r1 +0), r2)`, whose name has been read.
    fn atomic(&mut self, word: &str, dst: Reg) -> AsmResult<Insn> {
        let name = word.strip_prefix("atomic").unwrap_or(word);
        let (wide, name) = name.strip_prefix("64").map_or((false, name), |name| (true, name));
        let name = name.strip_prefix('_').map(|name| name.strip_prefix("fetch_").unwrap_or(name));
        let op = AtomicOp::ALL.into_iter().find(|op| Some(op.name()) == name);
        let op = op.ok_or_else(|| format!("no atomic operation `{word}`"))?;
        self.expect("(")?;
        let (size, base, off) = self.memory()?;
        self.expect(",")?;
        if op == AtomicOp::CmpXchg {
            self.expect("r0")?;
            self.expect(",")?;
        }
        let src = self.full_reg()?;
        self.expect(")")?;
        let expected = if op == AtomicOp::CmpXchg { Reg::R0 } else { src };
        if dst != expected || wide != (size == Size::Dw) || size.bytes() < 4 {
            return Err(format!("`{word}` gives {expected} and its name says its size"));
        }
        Ok(Insn::Atomic { op, fetch: true, size, dst: base, src, off })
    }

    /// `lock` has been read.
    fn locked(&mut self) -> AsmResult<Insn> {
        self.expect("*")?;
        let (size, dst, off) = self.memory()?;
        let symbol = self.take_while(|c| "+|&^=".contains(c));
        let op = AtomicOp::ALL
            .into_iter()
            .find(|op| op.symbol().is_some() && symbol.strip_suffix('=') == op.symbol());
        let op = op.ok_or_else(|| format!("no atomic operator `{symbol}`"))?;
        if size.bytes() < 4 {
            return Err("atomics are of 4 or 8 bytes".to_owned());
        }
        Ok(Insn::Atomic { op, fetch: false, size, dst, src: self.full_reg()?, off })
    }

    fn store_release(&mut self) -> AsmResult<Insn> {
        self.expect("(")?;
        let (size, dst, off) = self.memory()?;
        self.expect(",")?;
        let src = self.full_reg()?;
        self.expect(")")?;
        Ok(Insn::StoreRelease { size, dst, src, off })
    }

    /// `*` has been read.
    fn store(&mut self) -> AsmResult<Insn> {
        let (size, dst, off) = self.memory()?;
        self.expect("=")?;
        Ok(Insn::Store { size, dst, off, src: self.operand(Width::W64)? })
    }
}

/// A 32-bit immediate, from -2^31 to 2^32 - 1.
fn as_imm(value: i128) -> AsmResult<i32> {
    let imm = i32::try_from(value).or_else(|_| u32::try_from(value).map(|v| v as i32));
    imm.map_err(|_| format!("{value} does not fit in 32 bits"))
}
