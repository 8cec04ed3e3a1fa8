//! The body of one function: statements that keep the verifier's rules, drawn at random.

mod calls;
mod memory;

use millstream_isa::{AluOp, AtomicOp, Cond, Insn, Operand, Reg, Size, SwapKind, Width};
use millstream_object::{FuncId, MapId, NewFunction, RelocKind};
use millstream_rng::Rng;

use super::code::Code;
use super::state::{Area, Kind, Space, State};
use super::template::Maps;

/// Bytes of a value of the template's maps.
const VALUE: i32 = 48;
/// Bytes of global data.
const TOTALS: i32 = 64;
/// Bytes of read-only global data.
const SETTINGS: i32 = 32;

/// Types of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flavour {
    Xdp,
    Tc,
}

/// A function that others call.
#[derive(Clone, Debug)]
pub(crate) struct Callee {
    pub(crate) func: FuncId,
    pub(crate) args: Vec<Kind>,
    /// The argument that it returns, or a number.
    pub(crate) returns: Option<usize>,
    pub(crate) moves_packet: bool,
}

/// Signature of a function, and the operations that it may use.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) args: Vec<Kind>,
    pub(crate) returns: Option<usize>,
    /// Bytes of the frame.
    pub(crate) frame: i32,
    pub(crate) callees: Vec<Callee>,
    pub(crate) callback: Option<FuncId>,
    /// True for a callback, whose result is 0 or 1.
    pub(crate) is_callback: bool,
    pub(crate) tail_calls: bool,
    /// The first entry of the program array that it may call: chains end.
    pub(crate) next_link: i32,
    pub(crate) moves_packet: bool,
    pub(crate) statements: u32,
}

pub(crate) struct Body<'a> {
    rng: &'a mut Rng,
    plan: &'a Plan,
    flavour: Flavour,
    maps: Maps,
    code: Code,
    state: State,
    /// Buffers in the frame: displacement from the frame pointer and size.
    buffers: Vec<(i32, i32)>,
    locked: u16,
    locked_cells: u64,
    left: u32,
    depth: u32,
    loops: u32,
}

type Done = Option<()>;

impl Body<'_> {
    /// Generates a function.
    pub(crate) fn generate(rng: &mut Rng, plan: &Plan, flavour: Flavour, maps: Maps) -> NewFunction {
        let cells = (rng.below(7) as i32 + 2).min(plan.frame / 8);
        let mut buffers = Vec::new();
        let mut low = -8 * cells;
        while plan.frame + low >= 8 && buffers.len() < 4 {
            let room = plan.frame + low;
            let wish = [8, 16, 24, 48, 64, 128, 200][rng.below(7) as usize];
            let size = if buffers.len() == 3 { room } else { wish.min(room) } & !7;
            low -= size;
            buffers.push((low, size));
        }
        let mut state = State { regs: [Kind::Nothing; 10], cells: vec![Kind::Nothing; cells as usize] };
        for (n, kind) in plan.args.iter().enumerate() {
            state.regs[n + 1] = *kind;
        }
        let mut body = Body {
            rng,
            plan,
            flavour,
            maps,
            code: Code::default(),
            state,
            buffers,
            locked: 0,
            locked_cells: 0,
            left: plan.statements,
            depth: 0,
            loops: 0,
        };
        body.prologue();
        while body.left > 0 {
            body.statement();
        }
        body.leave();
        body.code.finish()
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.rng.below(from.len() as u64) as usize]) }
    }

    fn imm(&mut self) -> i32 {
        match self.rng.below(6) {
            0 => self.rng.next_u32() as i32,
            1 => 0,
            2 => -(self.rng.below(200) as i32),
            3 => 1 << self.rng.below(31),
            _ => self.rng.below(256) as i32,
        }
    }

    fn size(&mut self) -> Size {
        Size::ALL[self.below(4)]
    }

    fn cell_at(&self, cell: usize) -> i32 {
        -8 * (cell as i32 + 1)
    }

    fn prologue(&mut self) {
        // Arguments that are kept for later: the context and the value to be returned always.
        for n in 0..self.plan.args.len() {
            let reg = register(n + 1);
            let must = Some(n) == self.plan.returns || self.plan.args[n] == Kind::Context;
            if must || self.one_in(2) {
                let free: Vec<usize> =
                    (0..self.state.cells.len()).filter(|c| self.locked_cells & 1 << c == 0).collect();
                if let Some(cell) = self.pick(&free) {
                    self.spill(reg, cell);
                    self.locked_cells |= if must { 1 << cell } else { 0 };
                }
                if !must || self.one_in(2) {
                    let saved = register(6 + self.below(4));
                    self.code.copy(saved, reg);
                    self.state.set(saved, self.state.of(reg));
                }
            }
        }
        for n in 0..self.buffers.len() {
            let (at, size) = self.buffers[n];
            let zero = if self.one_in(2) { self.free(|r| r.index() != 0) } else { None };
            let source = match zero {
                Some(reg) => {
                    let imm = self.imm();
                    self.code.set(reg, imm);
                    self.state.set(reg, Kind::ANY);
                    Operand::Reg(reg)
                }
                None => Operand::Imm(0),
            };
            for word in (0..size).step_by(8) {
                self.code.store(Size::Dw, Reg::R10, at + word, source);
            }
        }
    }

    fn spill(&mut self, reg: Reg, cell: usize) {
        let at = self.cell_at(cell);
        self.code.store(Size::Dw, Reg::R10, at, Operand::Reg(reg));
        self.state.cells[cell] = self.state.of(reg);
    }

    /// A register that may be overwritten.
    fn free(&mut self, good: impl Fn(Reg) -> bool) -> Option<Reg> {
        let free: Vec<Reg> =
            (0..10).filter(|r| self.locked & 1 << r == 0).map(register).filter(|r| good(*r)).collect();
        self.pick(&free)
    }

    fn reg(&mut self, good: impl Fn(Kind) -> bool) -> Option<Reg> {
        let fit: Vec<Reg> = (0..10).map(register).filter(|r| good(self.state.of(*r))).collect();
        self.pick(&fit)
    }

    /// A number in a register.
    fn number(&mut self) -> Option<Reg> {
        if let Some(reg) = self.reg(Kind::is_number).filter(|_| self.rng.below(8) != 0) {
            return Some(reg);
        }
        let reg = self.free(|_| true)?;
        let imm = self.imm();
        self.code.set(reg, imm);
        self.state.set(reg, if imm >= 0 { Kind::Number(imm as u64) } else { Kind::ANY });
        Some(reg)
    }

    /// A number below a power of two, in a register of its own.
    fn bounded(&mut self, mask: i32) -> Option<Reg> {
        let from = self.number()?;
        let reg = self.free(|r| r != from)?;
        let width = if self.one_in(2) { Width::W32 } else { Width::W64 };
        self.code.put(Insn::Mov { width, dst: reg, src: Operand::Reg(from) });
        self.code.alu(width, AluOp::And, reg, Operand::Imm(mask));
        self.state.set(reg, Kind::Number(mask as u64));
        Some(reg)
    }

    /// Puts something of a kind into an argument register: from a saved register or the stack, so that
    /// arguments that are in place are not lost.
    fn argument(&mut self, n: usize, good: impl Fn(Kind) -> bool) -> Option<Kind> {
        let saved: Vec<usize> = [0, 6, 7, 8, 9].into_iter().filter(|&r| good(self.state.regs[r])).collect();
        let cells: Vec<usize> = (0..self.state.cells.len()).filter(|&c| good(self.state.cells[c])).collect();
        let dst = register(n);
        if let Some(r) = self.pick(&saved).filter(|_| cells.is_empty() || self.rng.below(2) == 0) {
            self.code.copy(dst, register(r));
            return Some(self.state.regs[r]);
        }
        let cell = self.pick(&cells)?;
        let at = self.cell_at(cell);
        self.code.load(Size::Dw, dst, Reg::R10, at);
        Some(self.state.cells[cell])
    }

    fn can_be_argument(&self, good: impl Fn(Kind) -> bool) -> bool {
        [0, 6, 7, 8, 9].into_iter().any(|r| good(self.state.regs[r]))
            || self.state.cells.iter().any(|k| good(*k))
    }

    /// The address of a buffer of some bytes in an argument register.
    fn buffer(&mut self, n: usize, bytes: i32) -> Option<(i32, i32)> {
        let fit: Vec<(i32, i32)> = self.buffers.iter().copied().filter(|b| b.1 >= bytes).collect();
        let (at, size) = self.pick(&fit)?;
        let skip = 8 * self.rng.below(((size - bytes) / 8 + 1) as u64) as i32;
        self.code.address(register(n), Reg::R10, at + skip);
        Some((at + skip, size - skip))
    }

    /// Room for the arguments of a call: they must not be locked, which they never are.
    fn statement(&mut self) {
        self.left -= 1;
        let done = match self.rng.below(40) {
            0..=5 => self.arithmetic(),
            6 | 7 => self.unary(),
            8 => self.copy(),
            9..=11 => self.spill_or_fill(),
            12..=16 => self.access(),
            17 => self.atomic(),
            18 | 19 => self.field(),
            20 | 21 => self.packet(),
            22 | 23 => self.vary(),
            24 => self.move_pointer(),
            25 | 26 => self.lookup(),
            27 => self.update_or_delete(),
            28 => self.global(),
            29 | 30 => self.choice(),
            31 => self.repeat(),
            32 | 33 => self.call(),
            34 => self.other_helper(),
            35 => self.tail_call(),
            36 => self.callback(),
            37 => self.fold(),
            38 => self.own_address(),
            _ => self.leave_sometimes(),
        };
        // What cannot be done here costs nothing but its turn.
        let _ = done;
    }

    fn arithmetic(&mut self) -> Done {
        let dst = self.number()?;
        if self.locked & 1 << dst.index() != 0 {
            return None;
        }
        let width = if self.one_in(2) { Width::W32 } else { Width::W64 };
        let ops = [
            AluOp::Add,
            AluOp::Sub,
            AluOp::Mul,
            AluOp::Div,
            AluOp::Mod,
            AluOp::Or,
            AluOp::And,
            AluOp::Xor,
            AluOp::Lsh,
            AluOp::Rsh,
            AluOp::Arsh,
        ];
        let op = self.pick(&ops)?;
        let src = if self.one_in(2) { self.reg(Kind::is_number).map(Operand::Reg) } else { None };
        let shift = matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
        let src = match src.filter(|_| !shift || self.rng.below(4) == 0) {
            Some(src) => src,
            None if shift => Operand::Imm(self.rng.below(u64::from(width.bits())) as i32),
            None => match (op, self.imm()) {
                (AluOp::Div | AluOp::Mod, 0) => Operand::Imm(7),
                (_, imm) => Operand::Imm(imm),
            },
        };
        self.code.alu(width, op, dst, src);
        let max = match (op, src) {
            (AluOp::And, Operand::Imm(imm)) if imm >= 0 => imm as u64,
            _ => u64::MAX,
        };
        self.state.set(dst, Kind::Number(max));
        Some(())
    }

    fn unary(&mut self) -> Done {
        let dst = self.number()?;
        if self.locked & 1 << dst.index() != 0 {
            return None;
        }
        let width = if self.one_in(2) { Width::W32 } else { Width::W64 };
        match self.rng.below(3) {
            0 => self.code.put(Insn::Neg { width, dst }),
            1 => {
                let bits = [16, 32, 64][self.below(3)];
                let kind = if self.one_in(2) { SwapKind::ToBe } else { SwapKind::ToLe };
                self.code.put(Insn::Swap { kind, bits, dst });
            }
            _ => self.code.put(Insn::Mov { width: Width::W32, dst, src: Operand::Reg(dst) }),
        }
        self.state.set(dst, Kind::ANY);
        Some(())
    }

    fn copy(&mut self) -> Done {
        let src = self.reg(|k| k != Kind::Nothing)?;
        let dst = self.free(|r| r != src)?;
        self.code.copy(dst, src);
        self.state.set(dst, self.state.of(src));
        Some(())
    }

    fn spill_or_fill(&mut self) -> Done {
        let cells = 0..self.state.cells.len();
        if self.one_in(2) {
            let free: Vec<usize> = cells.filter(|c| self.locked_cells & 1 << c == 0).collect();
            let cell = self.pick(&free)?;
            let reg = self.reg(|k| k != Kind::Nothing)?;
            self.spill(reg, cell);
        } else {
            let full: Vec<usize> = cells.filter(|&c| self.state.cells[c] != Kind::Nothing).collect();
            let cell = self.pick(&full)?;
            let dst = self.free(|_| true)?;
            let at = self.cell_at(cell);
            self.code.load(Size::Dw, dst, Reg::R10, at);
            self.state.set(dst, self.state.cells[cell]);
        }
        Some(())
    }

    /// Leaves the function, with any contents of registers.
    fn short_of(&mut self) {
        match self.plan.returns {
            Some(n) => self.result(Some(n)),
            None => self.code.set(Reg::R0, if self.plan.is_callback { 1 } else { 2 }),
        }
        self.code.exit();
    }

    fn nested(&mut self, most: u64) {
        self.depth += 1;
        let count = self.rng.below(most + 1) as u32;
        if self.depth < 6 {
            for _ in 0..count.min(self.left) {
                if self.left > 0 {
                    self.statement();
                }
            }
        }
        self.depth -= 1;
    }

    /// Adds a bounded number to a pointer.
    fn vary(&mut self) -> Done {
        let good =
            |k: Kind| k.area().is_some_and(|a| !a.varied && (a.space == Space::Packet || a.room() >= 16));
        let base = self.reg(good)?;
        let area = self.state.of(base).area()?;
        let mask = match (area.space, area.room()) {
            (Space::Packet, _) => [0x3c, 0x1f, 0x78, 0xff][self.below(4)],
            (_, 64..) => [0x38, 0x18, 8][self.below(3)],
            (_, 32..) => [0x18, 8][self.below(2)],
            _ => 8,
        };
        if area.lo > 0 {
            return None;
        }
        let index = self.bounded(mask)?;
        if self.state.of(base).area() != Some(area) {
            return None;
        }
        let dst = self.free(|r| r != base && r != index)?;
        // The sum with the number on the left is a pointer too, but for the stack.
        let swapped = !area.space.is_stack() && self.one_in(3);
        let (first, second) = if swapped { (index, base) } else { (base, index) };
        self.code.copy(dst, first);
        self.code.alu(Width::W64, AluOp::Add, dst, Operand::Reg(second));
        let sum = match area.space {
            Space::Packet => Area { lo: 0, hi: 0, varied: true, ..area },
            _ => Area { lo: 0, hi: area.hi - mask, varied: true, ..area },
        };
        self.state.set(dst, Kind::Pointer(sum));
        Some(())
    }

    /// Adds a constant to a pointer.
    fn move_pointer(&mut self) -> Done {
        let base = self.reg(|k| k.area().is_some_and(|a| a.room() > 8))?;
        let area = self.state.of(base).area()?;
        let dst = self.free(|_| true)?;
        let delta = 8 * self.rng.below((area.room() / 8) as u64) as i32;
        if dst == base {
            self.code.alu(Width::W64, AluOp::Add, dst, Operand::Imm(delta));
        } else {
            self.code.address(dst, base, delta);
        }
        self.state.set(dst, Kind::Pointer(area.moved(delta)));
        Some(())
    }

    /// The address of a buffer of the own frame in a register.
    fn own_address(&mut self) -> Done {
        let (at, size) = self.pick(&self.buffers.clone())?;
        let dst = self.free(|_| true)?;
        self.code.address(dst, Reg::R10, at);
        self.state.set(dst, Kind::Pointer(Area::new(Space::Own, size)));
        Some(())
    }

    /// Two sides; the state that they have in common goes on.
    fn choice(&mut self) -> Done {
        let dst = self.number()?;
        let conds = [
            Cond::Eq,
            Cond::Ne,
            Cond::Gt,
            Cond::Ge,
            Cond::Lt,
            Cond::Le,
            Cond::Sgt,
            Cond::Slt,
            Cond::Sge,
            Cond::Sle,
            Cond::Set,
        ];
        let cond = self.pick(&conds)?;
        let width = if self.one_in(2) { Width::W32 } else { Width::W64 };
        let src = if self.one_in(3) { self.reg(Kind::is_number) } else { None };
        let src = src.map_or_else(|| Operand::Imm(self.imm()), Operand::Reg);
        let (other, rest) = (self.code.label(), self.code.label());
        self.code.branch(width, cond, dst, src, other);
        let before = self.state.clone();
        self.nested(6);
        let first = std::mem::replace(&mut self.state, before);
        if self.one_in(3) {
            self.code.here(other);
            self.state.meet(&first);
        } else {
            self.code.jump(rest);
            self.code.here(other);
            self.nested(6);
            self.code.here(rest);
            self.state.meet(&first);
        }
        Some(())
    }

    /// A loop that is counted in a saved register.
    fn repeat(&mut self) -> Done {
        if self.loops >= 2 {
            return None;
        }
        let counter = self.free(|r| r.index() >= 6)?;
        let times = if self.loops == 0 { 1 + self.below(6) } else { 1 + self.below(3) } as i32;
        self.code.set(counter, 0);
        let (locked, locked_cells) = (self.locked, self.locked_cells);
        self.state.set(counter, Kind::Nothing);
        // A register that a round may overwrite is a number when the next begins, or nothing.
        let mut carried = [false; 10];
        for (r, carried) in carried.iter_mut().enumerate() {
            let keep = r >= 6 && (locked & 1 << r != 0 || self.one_in(2));
            if keep {
                self.locked |= 1 << r;
                continue;
            }
            *carried = self.state.regs[r].is_number() && self.one_in(2);
            self.state.regs[r] = if *carried { Kind::ANY } else { Kind::Nothing };
        }
        self.locked |= 1 << counter.index();
        let mut carried_cells = vec![false; self.state.cells.len()];
        for (c, carried) in carried_cells.iter_mut().enumerate() {
            let kept = self.state.cells[c] != Kind::Nothing && self.rng.below(2) == 0;
            if locked_cells & 1 << c != 0 || kept {
                self.locked_cells |= 1 << c;
                continue;
            }
            *carried = self.state.cells[c].is_number();
            self.state.cells[c] = if *carried { Kind::ANY } else { Kind::Nothing };
        }
        let head = self.code.label();
        self.code.here(head);
        self.loops += 1;
        self.nested(8);
        self.loops -= 1;
        for r in (0..10).filter(|&r| carried[r]) {
            if !self.state.regs[r].is_number() {
                self.code.set(register(r), r as i32);
                self.state.regs[r] = Kind::ANY;
            }
        }
        for c in (0..carried_cells.len()).filter(|&c| carried_cells[c]) {
            if !self.state.cells[c].is_number() {
                let at = self.cell_at(c);
                self.code.store(Size::Dw, Reg::R10, at, Operand::Imm(c as i32));
                self.state.cells[c] = Kind::ANY;
            }
        }
        self.code.alu(Width::W64, AluOp::Add, counter, Operand::Imm(1));
        self.code.branch(Width::W64, Cond::Lt, counter, Operand::Imm(times), head);
        self.state.set(counter, Kind::Number(times as u64));
        (self.locked, self.locked_cells) = (locked, locked_cells);
        Some(())
    }

    /// Makes a number seen: into global data.
    fn fold(&mut self) -> Done {
        let number = self.reg(Kind::is_number)?;
        let at = self.free(|r| r != number)?;
        let offset = 8 * self.rng.below(TOTALS as u64 / 8) as i32;
        let map = self.maps.totals;
        self.code.relocated(at, RelocKind::MapValue { map, offset: offset as u32 });
        let op = if self.one_in(2) { AtomicOp::Add } else { AtomicOp::Xor };
        self.code.put(Insn::Atomic { op, fetch: false, size: Size::Dw, dst: at, src: number, off: 0 });
        let area = Area { lo: 0, hi: TOTALS - offset, space: Space::Value, varied: false };
        self.state.set(at, Kind::Pointer(area));
        Some(())
    }

    fn leave_sometimes(&mut self) -> Done {
        if self.depth == 0 || self.rng.below(3) != 0 {
            return None;
        }
        let number = self.reg(Kind::is_number)?;
        let goes_on = self.code.label();
        let imm = self.imm();
        self.code.branch(Width::W64, Cond::Ne, number, Operand::Imm(imm), goes_on);
        let before = self.state.clone();
        self.leave();
        self.code.here(goes_on);
        self.state = before;
        Some(())
    }

    /// Puts the returned value into `r0`.
    fn result(&mut self, returned: Option<usize>) {
        let Some(n) = returned else { return };
        let kind = self.plan.args[n];
        // Its word is locked, and still holds its old value.
        let cell = self.state.cells.iter().position(|k| *k == kind).unwrap_or(0);
        let at = self.cell_at(cell);
        self.code.load(Size::Dw, Reg::R0, Reg::R10, at);
    }

    /// Returns what there is.
    fn leave(&mut self) {
        if self.plan.returns.is_some() {
            self.result(self.plan.returns);
        } else if let Some(number) = self.reg(Kind::is_number) {
            self.code.copy(Reg::R0, number);
            if self.plan.is_callback {
                self.code.alu(Width::W64, AluOp::And, Reg::R0, Operand::Imm(1));
            }
        } else {
            self.code.set(Reg::R0, 1);
        }
        self.code.exit();
    }
}

/// Returns true if a value of a kind will do for an argument of a kind.
fn suits(given: Kind, wanted: Kind) -> bool {
    match (given, wanted) {
        (Kind::Pointer(given), Kind::Pointer(wanted)) => {
            let space =
                given.space == wanted.space || wanted.space == Space::Outer && given.space == Space::Own;
            space && !given.varied && given.lo <= wanted.lo && given.hi >= wanted.hi
        }
        (Kind::Number(given), Kind::Number(wanted)) => given <= wanted,
        (given, wanted) => given == wanted && given != Kind::Nothing,
    }
}

pub(crate) fn register(n: usize) -> Reg {
    Reg::new(n as u8).expect("a register")
}
