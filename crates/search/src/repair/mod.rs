//! Edits of a function that make a verifier accept it, and change nothing on the runs that it defines.
//!
//! Two kinds: a *guard* is a check that is expected never to fail. If it fails, the program leaves. Other
//! edits say the same in a form that the verifier follows. An edit names its place by a line of the function
//! as the edits before it have left it, so that a list of edits can be applied again to the original with
//! another [`GuardExit`].
//!
//! Invariant: an edit proves nothing. That guards never fail is proven by comparing two forms whose guards
//! leave with different markers: if both do the same on every run, no guard is ever left through.

mod access;
mod blocks;
mod code;
mod guards;
mod pointers;
mod sites;

use millstream_isa::{Cond, Reg};
use millstream_object::{FuncId, Object};

use code::FunctionUnderRepair;

pub use code::GuardExit;
pub use guards::PacketEndField;
pub use sites::{RangeCheckSite, loop_headers, slot_line};

/// An edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairEdit {
    /// A number or a pointer is compared with a constant; the program leaves if the condition holds.
    Guard {
        /// The register and its place.
        site: RangeCheckSite,
        /// The condition.
        cond: Cond,
        /// The constant.
        value: i32,
    },
    /// A packet pointer plus `bytes` is compared with the end of the packet; the program leaves if it is
    /// above.
    GuardPacket {
        /// The pointer and its place.
        site: RangeCheckSite,
        /// Bytes from the pointer that are accessed.
        bytes: i32,
        /// The end.
        end: PacketEndField,
    },
    /// A counter of the rounds of a loop; the program leaves if they are more than `most`.
    GuardRounds {
        /// The function.
        func: u32,
        /// First line of the loop.
        line: usize,
        /// Greatest number of rounds.
        most: i32,
    },
    /// A register gets a value at the beginning of the function, and after calls if these change it.
    Initialize {
        /// The function.
        func: u32,
        /// The register.
        register: Reg,
    },
    /// An access is made in parts.
    SplitAccess {
        /// The function.
        func: u32,
        /// Its line.
        line: usize,
        /// Bytes of each part.
        part: u8,
    },
    /// A moved pointer is moved back before an access, by a constant that becomes part of the access.
    MoveBack {
        /// The function.
        func: u32,
        /// Line of the access.
        line: usize,
        /// Distance from the pointer's origin.
        by: i16,
    },
    /// The block that contains a line is made once for each block from which it is reached.
    Duplicate {
        /// The function.
        func: u32,
        /// The line.
        line: usize,
    },
    /// Code that nothing reaches is removed.
    DropUnreachable {
        /// The function.
        func: u32,
    },
    /// An addition to a pointer is moved behind the null check that follows it.
    DelayAddition {
        /// The function.
        func: u32,
        /// Its line.
        line: usize,
    },
}

impl RepairEdit {
    /// The function.
    pub fn func(&self) -> u32 {
        match self {
            RepairEdit::Guard { site, .. } | RepairEdit::GuardPacket { site, .. } => site.func,
            RepairEdit::GuardRounds { func, .. }
            | RepairEdit::Initialize { func, .. }
            | RepairEdit::SplitAccess { func, .. }
            | RepairEdit::MoveBack { func, .. }
            | RepairEdit::Duplicate { func, .. }
            | RepairEdit::DropUnreachable { func }
            | RepairEdit::DelayAddition { func, .. } => *func,
        }
    }

    /// The line before or at which it is made; the first for edits of a whole function.
    pub fn line(&self) -> usize {
        match self {
            RepairEdit::Guard { site, .. } | RepairEdit::GuardPacket { site, .. } => site.line,
            RepairEdit::GuardRounds { line, .. }
            | RepairEdit::SplitAccess { line, .. }
            | RepairEdit::MoveBack { line, .. }
            | RepairEdit::Duplicate { line, .. }
            | RepairEdit::DelayAddition { line, .. } => *line,
            RepairEdit::Initialize { .. } | RepairEdit::DropUnreachable { .. } => 0,
        }
    }

    /// Returns true if it is right only if something is so on every run: that a check holds, or that a
    /// register is not read before it is set.
    pub fn is_assumption(&self) -> bool {
        matches!(
            self,
            RepairEdit::Guard { .. }
                | RepairEdit::GuardPacket { .. }
                | RepairEdit::GuardRounds { .. }
                | RepairEdit::Initialize { .. }
        )
    }

    /// The object with the edit, and the slots of the guard's exit at the end of the function; [`None`] if the
    /// function has no such place, or no room.
    pub fn apply(&self, object: &Object, exit: GuardExit) -> Option<Object> {
        let mut function = FunctionUnderRepair::new(object, self.func(), exit)?;
        match *self {
            RepairEdit::Guard { site, cond, value } => {
                guards::guard(&mut function, site.line, site.register, cond, value)
            }
            RepairEdit::GuardPacket { site, bytes, end } => {
                guards::guard_packet(&mut function, site, bytes, end)
            }
            RepairEdit::GuardRounds { line, most, .. } => guards::guard_rounds(&mut function, line, most),
            RepairEdit::Initialize { register, .. } => guards::initialize(&mut function, register),
            RepairEdit::SplitAccess { line, part, .. } => access::split_access(&mut function, line, part),
            RepairEdit::MoveBack { line, by, .. } => pointers::move_back(&mut function, line, by),
            RepairEdit::Duplicate { line, .. } => blocks::duplicate(&mut function, line),
            RepairEdit::DropUnreachable { .. } => blocks::drop_unreachable(&mut function),
            RepairEdit::DelayAddition { line, .. } => blocks::delay_addition(&mut function, line),
        }?;
        let mut edited = object.clone();
        edited.replace_function(FuncId(self.func()), function.finish()).ok()?;
        Some(edited)
    }
}
