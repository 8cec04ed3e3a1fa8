//! Knowledge of the generator about registers and the stack, as the kernel's verifier would have it.

use millstream_isa::Reg;

/// Memory that a pointer leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    Packet,
    /// A value of a map, or global data.
    Value,
    /// A constant of read-only global data.
    Constant,
    /// A buffer in the frame of a caller.
    Outer,
    /// A buffer in this function's own frame.
    Own,
}

impl Space {
    pub(crate) fn is_stack(self) -> bool {
        matches!(self, Space::Outer | Space::Own)
    }
}

/// A pointer and the bytes that may be accessed through it: displacements from `lo` up to `hi`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    pub(crate) space: Space,
    pub(crate) lo: i32,
    pub(crate) hi: i32,
    /// True if a variable was added, so that nothing more is.
    pub(crate) varied: bool,
}

impl Area {
    pub(crate) fn new(space: Space, size: i32) -> Area {
        Area { space, lo: 0, hi: size, varied: false }
    }

    pub(crate) fn room(self) -> i32 {
        self.hi - self.lo
    }

    /// The area seen from `delta` bytes further on.
    pub(crate) fn moved(self, delta: i32) -> Area {
        Area { lo: self.lo - delta, hi: self.hi - delta, ..self }
    }
}

/// Contents of a register or a word of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Nothing that may be read.
    Nothing,
    /// A number, at most this.
    Number(u64),
    Context,
    /// The end of the packet.
    End,
    Pointer(Area),
}

impl Kind {
    pub(crate) const ANY: Kind = Kind::Number(u64::MAX);

    pub(crate) fn area(self) -> Option<Area> {
        match self {
            Kind::Pointer(area) => Some(area),
            _ => None,
        }
    }

    pub(crate) fn is_number(self) -> bool {
        matches!(self, Kind::Number(_))
    }

    fn of_packet(self) -> bool {
        self == Kind::End || self.area().is_some_and(|a| a.space == Space::Packet)
    }

    /// Knowledge where two paths meet.
    fn met(self, other: Kind) -> Kind {
        match (self, other) {
            (Kind::Number(a), Kind::Number(b)) => Kind::Number(a.max(b)),
            (Kind::Pointer(a), Kind::Pointer(b)) if a.space == b.space => {
                let (lo, hi) = (a.lo.max(b.lo), a.hi.min(b.hi));
                Kind::Pointer(Area { space: a.space, lo: lo.min(hi), hi, varied: a.varied || b.varied })
            }
            (a, b) if a == b => a,
            _ => Kind::Nothing,
        }
    }
}

/// Registers and words of the stack at a place.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) regs: [Kind; 10],
    pub(crate) cells: Vec<Kind>,
}

impl State {
    pub(crate) fn of(&self, reg: Reg) -> Kind {
        self.regs[reg.index()]
    }

    pub(crate) fn set(&mut self, reg: Reg, kind: Kind) {
        self.regs[reg.index()] = kind;
    }

    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Kind> {
        self.regs.iter_mut().chain(&mut self.cells)
    }

    pub(crate) fn meet(&mut self, other: &State) {
        for (mine, theirs) in self.regs.iter_mut().zip(&other.regs) {
            *mine = mine.met(*theirs);
        }
        for (mine, theirs) in self.cells.iter_mut().zip(&other.cells) {
            *mine = mine.met(*theirs);
        }
    }

    /// Forgets the registers that a call overwrites.
    pub(crate) fn called(&mut self, result: Kind, moves_packet: bool) {
        self.regs[1..=5].fill(Kind::Nothing);
        self.regs[0] = result;
        if moves_packet {
            self.all().filter(|k| k.of_packet()).for_each(|k| *k = Kind::Nothing);
        }
    }
}
