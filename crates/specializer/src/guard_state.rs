//! Layout of the guard's state: offsets in its value, and the bits of the token by which variants run.
//!
//! The guard, the variants that trust it and the session share this value, one entry of a memory-mapped
//! array. `programs/guard/guard.h` has the same layout.

/// Offset of the token in the guard's value.
pub const TOKEN: u32 = 0;
/// Maps that can be watched, without inner maps.
pub const MAPS: u32 = 64;
/// Offset of the times of first packets, one word for each recent generation.
const FIRST_PACKET: u32 = 8;
/// Generations whose first packets have a word of their own.
const RECENT: u32 = 4;
/// Offset of the number of writes.
pub const VERSION: u32 = 40;
/// Offset of the count of calls that were inside when the guard was attached.
pub const STRAYS: usize = 48;
/// Offset of the count of calls whose target changed between entry and return.
pub const LATE: usize = 56;
/// Offset of the count of events that did not fit the ring.
pub const UNSENT: usize = 64;
/// Offset of the number of the thread whose programs are the session's own.
pub const SESSION_THREAD: usize = 72;
/// Offset of the start time of that thread.
pub const SESSION_START: usize = 80;
/// Offset of the count of packets that found another generation approved than their own, if variants count
/// them.
pub const MISSED: u32 = 88;
/// Offset of the number of writes when the contents of program arrays were last found to match their
/// placeholders.
pub const CHAINED: u32 = 96;
/// Offset of the count of calls after which somebody new may be able to write.
pub const STRANGERS: usize = 104;
/// Offset of the word that has the number of the standby generation in the upper half, and its slot in the
/// lower one.
pub const STANDBY: u32 = 112;
/// Offset of the number of the session's process.
pub const SESSION_PROCESS: usize = 120;
/// Offset of the counts of begun and finished writes of each map, two words a map.
pub const FIRST_MAP: usize = 128;
/// Offset of the sizes of the keys that events contain, half a word a map.
pub const KEY_SIZES: usize = FIRST_MAP + 16 * MAPS as usize;
/// Bit of a token by which no generation may run.
pub const REVOKED: u64 = 1 << 62;
/// Offset of the marks that a write of a map makes in the token, one word a map.
pub const MARKS: usize = KEY_SIZES + 4 * MAPS as usize;
/// Maps that specialised code can do without one by one.
pub const SLOTS: u32 = 14;
/// Number of the first bit of a token that says that a map is behind.
const BEHIND: u32 = 2;
/// Number of the first bit of a token that says that a map with a slot is unwritten.
const UNWRITTEN: u32 = 16;
/// Only maps with slots were written.
pub const ALL_UNWRITTEN: u64 = 1 << 31;
/// All bits that a look sets; they may change without consequence for packets.
pub const LOOK: u64 = ALL_UNWRITTEN | DeoptMask::ALL.unwritten();

/// Offset of the time of a generation's first packet, which the generation itself writes.
pub const fn first_packet(generation: u32) -> u32 {
    FIRST_PACKET + 8 * (generation % RECENT)
}

/// Bytes of the state.
pub(crate) const STATE_SIZE: u32 = MARKS as u32 + 8 * MAPS;

/// Maps that specialised code can do without, by their slots: a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeoptMask(u32);

impl DeoptMask {
    /// None of them.
    pub const NONE: DeoptMask = DeoptMask(0);
    /// All that there are.
    pub const ALL: DeoptMask = DeoptMask((1 << SLOTS) - 1);

    /// The slot of this number, which must be below [`SLOTS`].
    pub const fn one(number: u32) -> DeoptMask {
        DeoptMask(1 << number & DeoptMask::ALL.0)
    }

    /// Union of both.
    #[must_use]
    pub const fn and(self, other: DeoptMask) -> DeoptMask {
        DeoptMask(self.0 | other.0)
    }

    /// Returns true if it has all of another.
    pub const fn has(self, other: DeoptMask) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns true if it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Bits of a token that say that they are behind.
    pub const fn behind(self) -> u64 {
        (self.0 as u64) << BEHIND
    }

    /// Bits of a token that say that they are unwritten.
    pub const fn unwritten(self) -> u64 {
        (self.0 as u64) << UNWRITTEN
    }

    /// The maps with slots that a token does not say to be unwritten.
    pub const fn written(token: u64) -> DeoptMask {
        DeoptMask((!token & DeoptMask::ALL.unwritten()) as u32 >> UNWRITTEN)
    }
}

/// Value of the guard's token while packets may run a generation's code and read this side of its twins, no
/// map being behind.
pub const fn token(generation: u32, side: u32) -> u64 {
    (generation as u64) << 32 | side as u64
}

#[cfg(test)]
mod tests {
    use millstream_btf::KindTag;
    use millstream_object::Object;

    use super::*;

    #[test]
    fn offsets_are_those_of_the_guards_own_types() {
        let guard = millstream_programs::GUARD;
        let object = Object::parse(guard.name, guard.object).expect("our own");
        let btf = object.btf.as_ref().expect("it has types");
        let state = btf.find(KindTag::Struct, "guard_state").expect("the value of its map");
        assert_eq!(btf.size_of(state), Ok(STATE_SIZE.into()));
        for (name, offset) in [
            ("token", TOKEN as usize),
            ("first_packet", FIRST_PACKET as usize),
            ("version", VERSION as usize),
            ("strays", STRAYS),
            ("late", LATE),
            ("unsent", UNSENT),
            ("session_thread", SESSION_THREAD),
            ("session_start", SESSION_START),
            ("missed", MISSED as usize),
            ("chained", CHAINED as usize),
            ("strangers", STRANGERS),
            ("standby", STANDBY as usize),
            ("session_process", SESSION_PROCESS),
            ("maps", FIRST_MAP),
            ("key_sizes", KEY_SIZES),
            ("marks", MARKS),
        ] {
            let field = btf.field(state, name).expect("readable").expect(name);
            assert_eq!(field.bit_offset as usize, 8 * offset, "{name}");
        }
    }
}
