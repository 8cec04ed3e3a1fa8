//! Statements that access memory: stack, map values, fields of the context, packets.

use super::*;

impl Body<'_> {
    /// A place to access: base, displacement, size.
    pub(super) fn place(&mut self, writable: bool) -> Option<(Reg, i32, Size)> {
        let size = self.size();
        let bytes = size.bytes() as i32;
        if self.one_in(3)
            && let Some((at, room)) = self.pick(&self.buffers.clone())
        {
            let off = self.rng.below((room / bytes) as u64) as i32 * bytes;
            return Some((Reg::R10, at + off, size));
        }
        let good = |k: Kind| {
            k.area().is_some_and(|a| a.room() >= bytes && !(writable && a.space == Space::Constant))
        };
        let base = self.reg(good)?;
        let area = self.state.of(base).area()?;
        // Stack and values want alignment where displacements alone decide it.
        let low = area.lo + (bytes - area.lo.rem_euclid(bytes)) % bytes;
        let count = (area.hi - low) / bytes;
        if count <= 0 || area.varied && area.space.is_stack() && size != Size::Dw {
            return None;
        }
        Some((base, low + self.rng.below(count as u64) as i32 * bytes, size))
    }

    pub(super) fn access(&mut self) -> Done {
        if self.one_in(2) {
            let (base, off, size) = self.place(false)?;
            let dst = self.free(|_| true)?;
            self.code.load(size, dst, base, off);
            let max = u64::MAX >> (64 - size.bits());
            self.state.set(dst, Kind::Number(max));
        } else {
            let (base, off, size) = self.place(true)?;
            let src = if self.one_in(3) { None } else { self.reg(Kind::is_number) };
            let src = src.map_or_else(|| Operand::Imm(self.imm()), Operand::Reg);
            self.code.store(size, base, off, src);
        }
        Some(())
    }

    pub(super) fn atomic(&mut self) -> Done {
        let size = if self.one_in(2) { Size::W } else { Size::Dw };
        let bytes = size.bytes() as i32;
        let good = |k: Kind| {
            k.area().is_some_and(|a| {
                !a.varied && a.room() >= 8 && matches!(a.space, Space::Value | Space::Outer | Space::Own)
            })
        };
        let dst = self.reg(good)?;
        let area = self.state.of(dst).area()?;
        let low = (area.lo + 7) & !7;
        let count = (area.hi - low) / bytes;
        if count <= 0 {
            return None;
        }
        let off = (low + self.rng.below(count as u64) as i32 * bytes) as i16;
        let src = self.reg(Kind::is_number)?;
        let ops =
            [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg, AtomicOp::CmpXchg];
        let op = self.pick(&ops)?;
        let fetch = matches!(op, AtomicOp::Xchg | AtomicOp::CmpXchg) || self.one_in(3);
        let overwritten = if op == AtomicOp::CmpXchg { Reg::R0 } else { src };
        if fetch && self.locked & 1 << overwritten.index() != 0 {
            return None;
        }
        if op == AtomicOp::CmpXchg && !self.state.of(Reg::R0).is_number() {
            return None;
        }
        self.code.put(Insn::Atomic { op, fetch, size, dst, src, off });
        if fetch {
            self.state.set(overwritten, Kind::ANY);
        }
        Some(())
    }

    /// A field of the context.
    pub(super) fn field(&mut self) -> Done {
        let ctx = self.context()?;
        let dst = self.free(|_| true)?;
        let written = self.one_in(3);
        match self.flavour {
            Flavour::Xdp => {
                let off = [12, 16][self.below(2)];
                self.code.load(Size::W, dst, ctx, off);
            }
            // len, protocol, mark, queue_mapping, ifindex, cb
            Flavour::Tc if written => {
                let off = [8, 48, 52, 56, 60, 64][self.below(6)];
                let value = self.number()?;
                self.code.store(Size::W, ctx, off, Operand::Reg(value));
                return Some(());
            }
            Flavour::Tc => {
                let off = [0, 8, 16, 48, 52, 56, 60, 64][self.below(8)];
                self.code.load(Size::W, dst, ctx, off);
            }
        }
        self.state.set(dst, Kind::Number(u64::from(u32::MAX)));
        Some(())
    }

    /// The context in some register.
    pub(super) fn context(&mut self) -> Option<Reg> {
        if let Some(reg) = self.reg(|k| k == Kind::Context) {
            return Some(reg);
        }
        let cell = self.state.cells.iter().position(|k| *k == Kind::Context)?;
        let reg = self.free(|_| true)?;
        let at = self.cell_at(cell);
        self.code.load(Size::Dw, reg, Reg::R10, at);
        self.state.set(reg, Kind::Context);
        Some(reg)
    }

    /// The offsets of data and its end in the context.
    pub(super) fn bounds(&self) -> (i32, i32) {
        match self.flavour {
            Flavour::Xdp => (0, 4),
            Flavour::Tc => (76, 80),
        }
    }

    /// A pointer into the packet, and a check of the number of bytes that are there.
    pub(super) fn packet(&mut self) -> Done {
        let known = self.reg(|k| k.area().is_some_and(|a| a.space == Space::Packet));
        let (data, end) = self.bounds();
        let pointer = match known.filter(|_| self.rng.below(2) == 0) {
            Some(pointer) => pointer,
            None => {
                let ctx = self.context()?;
                let pointer = self.free(|r| r != ctx)?;
                self.code.load(Size::W, pointer, ctx, data);
                let area = Area::new(Space::Packet, 0);
                self.state.set(pointer, Kind::Pointer(area));
                pointer
            }
        };
        let area = self.state.of(pointer).area()?;
        let limit = match self.reg(|k| k == Kind::End).filter(|_| self.rng.below(3) != 0) {
            Some(limit) => limit,
            None => {
                let ctx = self.context()?;
                if ctx == pointer {
                    return None;
                }
                let limit = self.free(|r| r != pointer && r != ctx)?;
                self.code.load(Size::W, limit, ctx, end);
                self.state.set(limit, Kind::End);
                limit
            }
        };
        if self.one_in(8) {
            // The length as a number.
            let dst = self.free(|r| r != pointer && r != limit)?;
            self.code.copy(dst, limit);
            self.code.alu(Width::W64, AluOp::Sub, dst, Operand::Reg(pointer));
            self.state.set(dst, Kind::ANY);
            return Some(());
        }
        let more = [1, 2, 4, 8, 14, 20, 34, 42, 54][self.below(9)];
        let probe = self.free(|r| r != pointer && r != limit)?;
        self.code.address(probe, pointer, more);
        self.state.set(probe, Kind::Pointer(Area { hi: 0, lo: 0, ..area }));
        let checked = Area { lo: area.lo.min(0), hi: area.hi.max(more), ..area };
        let (cond, dst, src, good_taken) = match self.rng.below(4) {
            0 => (Cond::Gt, probe, limit, false),
            1 => (Cond::Lt, limit, probe, false),
            2 => (Cond::Le, probe, limit, true),
            _ => (Cond::Ge, limit, probe, true),
        };
        let (good, rest) = (self.code.label(), self.code.label());
        if good_taken {
            self.code.branch(Width::W64, cond, dst, Operand::Reg(src), good);
        } else {
            let bad = self.code.label();
            self.code.branch(Width::W64, cond, dst, Operand::Reg(src), bad);
            self.code.jump(good);
            self.code.here(bad);
        }
        let before = self.state.clone();
        if self.depth > 3 || self.rng.below(3) != 0 {
            // Without the bytes there is nothing to do.
            self.short_of();
            self.code.here(good);
            self.code.here(rest);
            self.state = before;
            self.state.set(pointer, Kind::Pointer(checked));
        } else {
            self.nested(3);
            self.code.jump(rest);
            let bad_side = std::mem::replace(&mut self.state, before);
            self.code.here(good);
            self.state.set(pointer, Kind::Pointer(checked));
            self.nested(6);
            self.code.here(rest);
            self.state.meet(&bad_side);
        }
        Some(())
    }
}
