//! Statements that call: lookups and other helpers, functions, tail calls, callbacks.

use super::*;

impl Body<'_> {
    pub(super) fn map(&mut self, dst: Reg, map: MapId) {
        self.code.relocated(dst, RelocKind::Map(map));
    }

    /// A key in a buffer, whose address goes into `r2`.
    pub(super) fn key(&mut self, wide: bool, most: i32) -> Done {
        let fit: Vec<(i32, i32)> = self.buffers.iter().copied().filter(|b| b.1 >= 8).collect();
        let (at, _) = self.pick(&fit)?;
        let size = if wide { Size::Dw } else { Size::W };
        if self.one_in(3) {
            let imm = self.rng.below(most as u64 + 1) as i32;
            self.code.store(size, Reg::R10, at, Operand::Imm(imm));
        } else {
            let key = self.bounded(if most >= 3 { 7 } else { 1 })?;
            self.code.store(size, Reg::R10, at, Operand::Reg(key));
        }
        self.code.address(Reg::R2, Reg::R10, at);
        Some(())
    }

    pub(super) fn calls_allowed(&self) -> bool {
        self.locked & 0b11_1111 == 0
    }

    pub(super) fn lookup(&mut self) -> Done {
        if !self.calls_allowed() {
            return None;
        }
        let (map, wide, most) = match self.rng.below(4) {
            0 | 1 => (self.maps.slots, false, 3),
            2 => (self.maps.flows, true, 7),
            _ => (self.maps.counts, false, 1),
        };
        self.key(wide, most)?;
        self.map(Reg::R1, map);
        self.code.helper(1);
        self.state.called(Kind::Nothing, false);
        let value = match self.free(|_| true).filter(|_| self.rng.below(2) == 0) {
            Some(dst) if dst != Reg::R0 => {
                self.code.copy(dst, Reg::R0);
                dst
            }
            _ => Reg::R0,
        };
        self.state.set(value, Kind::Nothing);
        let found = Kind::Pointer(Area::new(Space::Value, VALUE));
        let (yes, rest) = (self.code.label(), self.code.label());
        self.code.branch(Width::W64, Cond::Ne, value, Operand::Imm(0), yes);
        let before = self.state.clone();
        if self.one_in(3) {
            self.short_of();
            self.code.here(yes);
            self.state = before;
            self.state.set(value, found);
            return Some(());
        }
        self.nested(3);
        self.code.jump(rest);
        let none = std::mem::replace(&mut self.state, before);
        self.code.here(yes);
        self.state.set(value, found);
        self.nested(6);
        self.code.here(rest);
        self.state.meet(&none);
        Some(())
    }

    pub(super) fn update_or_delete(&mut self) -> Done {
        if !self.calls_allowed() {
            return None;
        }
        let delete = self.one_in(3);
        if !delete && !self.buffers.iter().any(|b| b.1 >= VALUE) {
            return None;
        }
        self.key(true, 7)?;
        if !delete {
            self.buffer(3, VALUE)?;
            self.code.set(Reg::R4, 0);
        }
        let flows = self.maps.flows;
        self.map(Reg::R1, flows);
        self.code.helper(if delete { 3 } else { 2 });
        self.state.called(Kind::ANY, false);
        Some(())
    }

    /// The address of global data.
    pub(super) fn global(&mut self) -> Done {
        let dst = self.free(|_| true)?;
        let constant = self.one_in(3);
        let (map, size, space) = match constant {
            true => (self.maps.settings, SETTINGS, Space::Constant),
            false => (self.maps.totals, TOTALS, Space::Value),
        };
        let offset = 8 * self.rng.below(size as u64 / 8) as i32;
        self.code.relocated(dst, RelocKind::MapValue { map, offset: offset as u32 });
        self.state.set(dst, Kind::Pointer(Area { lo: 0, hi: size - offset, space, varied: false }));
        Some(())
    }

    /// Returns true if pointers into the packet may become invalid here: not in loops, where a later round
    /// may use them.
    pub(super) fn may_move(&self) -> bool {
        self.plan.moves_packet && self.loops == 0
    }

    pub(super) fn call(&mut self) -> Done {
        if !self.calls_allowed() {
            return None;
        }
        let callees: Vec<usize> = (0..self.plan.callees.len())
            .filter(|&c| self.may_move() || !self.plan.callees[c].moves_packet)
            .collect();
        let callee = self.plan.callees[self.pick(&callees)?].clone();
        for kind in &callee.args {
            let can = match *kind {
                Kind::Pointer(area) if area.space == Space::Outer => {
                    self.buffers.iter().any(|b| b.1 >= area.hi) || self.can_be_argument(|k| suits(k, *kind))
                }
                Kind::Number(_) => true,
                kind => self.can_be_argument(|k| suits(k, kind)),
            };
            if !can {
                return None;
            }
        }
        let mut returned = Kind::ANY;
        for (n, kind) in callee.args.iter().enumerate() {
            let given = match *kind {
                Kind::Pointer(area) if area.space == Space::Outer => {
                    let own = self.buffers.iter().any(|b| b.1 >= area.hi);
                    if own && (self.one_in(2) || !self.can_be_argument(|k| suits(k, *kind))) {
                        self.buffer(n + 1, area.hi);
                        *kind
                    } else {
                        self.argument(n + 1, |k| suits(k, *kind)).unwrap_or(Kind::Nothing)
                    }
                }
                Kind::Number(max) => match self.argument(n + 1, |k| matches!(k, Kind::Number(m) if m <= max))
                {
                    Some(given) => given,
                    None => {
                        let imm = self.rng.below(max.min(100) + 1) as i32;
                        self.code.set(register(n + 1), imm);
                        *kind
                    }
                },
                kind => self.argument(n + 1, |k| suits(k, kind)).unwrap_or(Kind::Nothing),
            };
            if callee.returns == Some(n) {
                returned = given;
            }
        }
        self.code.relocated(Reg::R0, RelocKind::Call(callee.func));
        self.state.called(returned, callee.moves_packet);
        Some(())
    }

    pub(super) fn other_helper(&mut self) -> Done {
        if !self.calls_allowed() {
            return None;
        }
        match self.rng.below(6) {
            0 => {
                self.code.helper(8);
                self.state.called(Kind::ANY, false);
            }
            1 => {
                // Time goes on, so that nothing but its being past may matter.
                self.code.helper(5);
                self.code.alu(Width::W64, AluOp::Rsh, Reg::R0, Operand::Imm(63));
                self.state.called(Kind::Number(1), false);
            }
            2 => {
                let bytes = 4 * (1 + self.rng.below(4) as i32);
                self.buffer(1, bytes)?;
                self.code.set(Reg::R2, bytes);
                self.buffer(3, bytes)?;
                self.code.set(Reg::R4, bytes);
                let imm = self.imm();
                self.code.set(Reg::R5, imm);
                self.code.helper(28);
                self.state.called(Kind::ANY, false);
            }
            3 | 4 => {
                let bytes = 1 + self.rng.below(24) as i32;
                if !self.buffers.iter().any(|b| b.1 >= 24) || !self.can_be_argument(|k| k == Kind::Context) {
                    return None;
                }
                self.argument(1, |k| k == Kind::Context)?;
                let at = self.rng.below(40) as i32;
                self.code.set(Reg::R2, at);
                self.buffer(3, 24)?;
                self.code.set(Reg::R4, bytes);
                self.code.helper(if self.flavour == Flavour::Xdp { 189 } else { 26 });
                self.state.called(Kind::ANY, false);
            }
            _ => {
                if !self.may_move() {
                    return None;
                }
                self.argument(1, |k| k == Kind::Context)?;
                let front = self.one_in(2);
                match self.flavour {
                    Flavour::Xdp if front => {
                        let by = [4, -8, 14, -14][self.below(4)];
                        self.code.set(Reg::R2, by);
                        self.code.helper(44);
                    }
                    Flavour::Xdp => {
                        let by = [-4, 8, -1][self.below(3)];
                        self.code.set(Reg::R2, by);
                        self.code.helper(65);
                    }
                    Flavour::Tc => {
                        self.code.set(Reg::R2, 34);
                        self.code.helper(39);
                    }
                }
                self.state.called(Kind::ANY, true);
            }
        }
        Some(())
    }

    pub(super) fn tail_call(&mut self) -> Done {
        if !self.plan.tail_calls || !self.calls_allowed() || self.loops > 0 {
            return None;
        }
        // Two of them in a row are few programs' way.
        if self.rng.below(2) != 0 {
            return None;
        }
        self.argument(1, |k| k == Kind::Context)?;
        let chain = self.maps.chains[usize::from(self.flavour == Flavour::Tc)];
        let next = self.plan.next_link;
        let index = next + self.rng.below((4 - next) as u64) as i32;
        self.code.set(Reg::R3, index);
        self.map(Reg::R2, chain);
        self.code.helper(12);
        self.state.called(Kind::Nothing, false);
        Some(())
    }

    pub(super) fn callback(&mut self) -> Done {
        let func = self.plan.callback?;
        if !self.calls_allowed() || self.loops > 0 || !self.buffers.iter().any(|b| b.1 >= 24) {
            return None;
        }
        let times = 1 + self.rng.below(5) as i32;
        self.code.set(Reg::R1, times);
        self.code.relocated(Reg::R2, RelocKind::FuncAddr(func));
        self.buffer(3, 24)?;
        self.code.set(Reg::R4, 0);
        self.code.helper(181);
        self.state.called(Kind::ANY, false);
        Some(())
    }
}
