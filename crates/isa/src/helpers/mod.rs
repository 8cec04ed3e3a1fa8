//! The helper functions of Linux 6.18: names, argument kinds, results and effects.
//!
//! One row a helper in `table`; a helper's id is its row. Callers assume the worst about facts that a row
//! does not state: an id above the table has no [`Helper`], and callers treat it as opaque.
//!
//! Source: the `bpf_func_proto` definitions of `kernel/bpf/helpers.c`, `kernel/trace/bpf_trace.c` and
//! `net/core/filter.c`, `bpf_helper_changes_pkt_data`, and the names of `__BPF_FUNC_MAPPER`.

pub mod id;
mod table;

/// Argument that a helper expects in one of `r1` to `r5`.
///
/// `read` and `write` say what the helper may do to memory behind a pointer. A memory argument that is only
/// written need not be initialised, and may be written in part or not at all when the helper fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgKind {
    /// A scalar, or a pointer taken as one.
    Any,
    /// Read only if the format string asks for it; may be uninitialised (`trace_printk`).
    Optional,
    /// The program's context, unmodified.
    Ctx,
    /// The context or null.
    CtxOrNull,
    /// The context in some program types, a socket in others.
    CtxOrSock,
    /// A map, as `ld_imm64` gives it (or the result of a lookup in a map of maps).
    ConstMap,
    /// Memory of the map's key size, read.
    MapKey,
    /// Memory of the map's value size, read.
    MapValue,
    /// Memory of the map's value size, read, or null.
    MapValueOrNull,
    /// Memory of the map's value size, written.
    MapValueOut,
    /// Memory whose size is the next argument.
    Mem {
        /// The helper reads it.
        read: bool,
        /// The helper writes it.
        write: bool,
        /// Null is allowed (the size is then 0).
        null: bool,
    },
    /// Memory of a fixed number of bytes.
    Fixed {
        /// The size.
        bytes: u8,
        /// The helper reads it.
        read: bool,
        /// The helper writes it.
        write: bool,
    },
    /// The size of the preceding memory; the verifier must know it is above 0.
    Size,
    /// The size of the preceding memory; may be 0.
    SizeOrZero,
    /// A size that the verifier must know exactly, for memory that the helper returns.
    AllocSize,
    /// A NUL-terminated string in a frozen read-only map.
    ConstStr,
    /// A callback: `ld_imm64` of a function of this program.
    Func,
    /// Stack memory handed to the callback, or null.
    StackOrNull,
    /// A `struct bpf_spin_lock` in a map value.
    SpinLock,
    /// A `struct bpf_timer` in a map value.
    Timer,
    /// A kernel pointer slot in a map value.
    KptrSlot,
    /// A `struct bpf_dynptr` on the stack, initialised.
    Dynptr,
    /// A `struct bpf_dynptr` on the stack, to be initialised.
    DynptrOut,
    /// A socket of any kind.
    Sock,
    /// A socket or null.
    SockOrNull,
    /// A kernel object by BTF type.
    Btf,
    /// A kernel object by BTF type, or null.
    BtfOrNull,
    /// A per-CPU kernel variable.
    PercpuBtf,
    /// A record that `ringbuf_reserve` gave.
    RingbufRecord,
}

impl ArgKind {
    /// The helper may read memory through this argument.
    pub const fn reads_memory(self) -> bool {
        match self {
            ArgKind::Mem { read, .. } | ArgKind::Fixed { read, .. } => read,
            ArgKind::MapKey
            | ArgKind::MapValue
            | ArgKind::MapValueOrNull
            | ArgKind::ConstStr
            | ArgKind::StackOrNull
            | ArgKind::SpinLock
            | ArgKind::Timer
            | ArgKind::KptrSlot
            | ArgKind::Dynptr
            | ArgKind::RingbufRecord => true,
            _ => false,
        }
    }

    /// The helper may write memory through this argument.
    pub const fn writes_memory(self) -> bool {
        match self {
            ArgKind::Mem { write, .. } | ArgKind::Fixed { write, .. } => write,
            ArgKind::MapValueOut
            | ArgKind::StackOrNull
            | ArgKind::SpinLock
            | ArgKind::Timer
            | ArgKind::KptrSlot
            | ArgKind::Dynptr
            | ArgKind::DynptrOut
            | ArgKind::RingbufRecord => true,
            _ => false,
        }
    }

    /// The argument is an address (or may be null), not a number.
    pub const fn is_pointer(self) -> bool {
        !matches!(
            self,
            ArgKind::Any | ArgKind::Optional | ArgKind::Size | ArgKind::SizeOrZero | ArgKind::AllocSize
        )
    }
}

/// Result that a helper leaves in `r0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RetKind {
    /// A 64-bit integer.
    Int,
    /// Nothing: `r0` is undefined afterwards.
    Void,
    /// A value of the map in the first argument (or an inner map, or a socket, by map type), or null.
    MapValueOrNull,
    /// A value of the map in the first argument, never null.
    MapValue,
    /// A socket or null.
    SockOrNull,
    /// A TCP socket or null.
    TcpSockOrNull,
    /// Memory of the size in the [`ArgKind::AllocSize`] argument, or null.
    MemOrNull,
    /// A kernel object.
    Btf,
    /// A kernel object or null.
    BtfOrNull,
}

impl RetKind {
    /// The result is an address, or null.
    pub const fn is_pointer(self) -> bool {
        !matches!(self, RetKind::Int | RetKind::Void)
    }

    /// The result must be compared with null before use.
    pub const fn nullable(self) -> bool {
        matches!(
            self,
            RetKind::MapValueOrNull
                | RetKind::SockOrNull
                | RetKind::TcpSockOrNull
                | RetKind::MemOrNull
                | RetKind::BtfOrNull
        )
    }
}

/// Effects of a helper beyond memory that its arguments point to. A set of the constants below.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HelperEffects(u16);

impl HelperEffects {
    /// The result depends on the arguments and the memory they point to, or on facts that do not change while
    /// the program runs (the CPU number, the current task).
    pub const PURE: HelperEffects = HelperEffects(0);
    /// The result may differ between two calls with nothing in between: time, randomness.
    pub const VOLATILE: HelperEffects = HelperEffects(1);
    /// Reads contents of maps.
    pub const READS_MAP: HelperEffects = HelperEffects(2);
    /// Changes contents of maps, or the program's map values through pointers given out earlier.
    pub const WRITES_MAP: HelperEffects = HelperEffects(4);
    /// Reads the packet, its metadata or the context.
    pub const READS_PACKET: HelperEffects = HelperEffects(8);
    /// Changes the packet, its metadata or the context.
    pub const WRITES_PACKET: HelperEffects = HelperEffects(16);
    /// All packet pointers are void afterwards (`bpf_helper_changes_pkt_data`).
    pub const MOVES_PACKET: HelperEffects = HelperEffects(32);
    /// Changes something outside the program: redirect target, sockets, events, another program's view.
    pub const EXTERNAL: HelperEffects = HelperEffects(64);
    /// Calls a function of this program, and so has all effects of that function too.
    pub const CALLBACK: HelperEffects = HelperEffects(128);
    /// The result (or an out-argument) is a reference to be released.
    pub const ACQUIRES: HelperEffects = HelperEffects(256);
    /// Releases the reference in an argument.
    pub const RELEASES: HelperEffects = HelperEffects(512);
    /// Begins or ends a locked region: nothing moves across it.
    pub const LOCK: HelperEffects = HelperEffects(1024);
    /// Does not return when it succeeds.
    pub const TAIL_CALL: HelperEffects = HelperEffects(2048);
    /// May be called without saving `r1` to `r5` (`bpf_fastcall`).
    pub const FASTCALL: HelperEffects = HelperEffects(4096);

    /// Both sets together.
    pub const fn or(self, other: HelperEffects) -> HelperEffects {
        HelperEffects(self.0 | other.0)
    }

    /// Returns true if all of `other` is in this set.
    pub const fn contains(self, other: HelperEffects) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if some of `other` is in this set.
    pub const fn intersects(self, other: HelperEffects) -> bool {
        self.0 & other.0 != 0
    }

    /// The effects that forbid removing a call whose result is not used.
    pub const OBSERVABLE: HelperEffects = HelperEffects::WRITES_MAP
        .or(HelperEffects::WRITES_PACKET)
        .or(HelperEffects::MOVES_PACKET)
        .or(HelperEffects::EXTERNAL)
        .or(HelperEffects::CALLBACK)
        .or(HelperEffects::ACQUIRES)
        .or(HelperEffects::RELEASES)
        .or(HelperEffects::LOCK)
        .or(HelperEffects::TAIL_CALL);
}

/// One helper function.
#[derive(Clone, Copy, Debug)]
pub struct Helper {
    /// Name without the `bpf_` prefix.
    pub name: &'static str,
    /// The arguments, in `r1` onwards; at most 5.
    pub args: &'static [ArgKind],
    /// The result.
    pub ret: RetKind,
    /// Effects other than through memory arguments.
    pub effects: HelperEffects,
}

impl Helper {
    /// The helper of this id; `None` if 6.18 has none.
    pub fn get(id: i32) -> Option<&'static Helper> {
        let at = usize::try_from(id).ok().filter(|at| *at > 0)?;
        table::HELPERS.get(at)
    }

    /// The id and helper of this name, with or without `bpf_`.
    pub fn by_name(name: &str) -> Option<(i32, &'static Helper)> {
        let name = name.strip_prefix("bpf_").unwrap_or(name);
        Helper::all().find(|(_, helper)| helper.name == name)
    }

    /// All helpers with their ids, ascending.
    pub fn all() -> impl Iterator<Item = (i32, &'static Helper)> {
        (0i32..).zip(table::HELPERS.iter()).skip(1)
    }

    /// All packet pointers are void after a call.
    pub const fn may_change_packet(&self) -> bool {
        self.effects.contains(HelperEffects::MOVES_PACKET)
    }

    /// May read memory through an argument.
    pub fn reads_memory(&self) -> bool {
        self.args.iter().any(|arg| arg.reads_memory())
    }

    /// May write memory through an argument.
    pub fn writes_memory(&self) -> bool {
        self.args.iter().any(|arg| arg.writes_memory())
    }

    /// Returns true if the helper writes every byte of the memory that it only writes, also when it fails:
    /// with the data read, or with zeros.
    ///
    /// Helpers that copy strings leave the bytes behind the string as they were, and `xdp_load_bytes`
    /// everything when it fails. `copy_from_user_task` leaves it when its flags are not 0.
    pub fn fills_memory(&self) -> bool {
        const FILLING: [&str; 9] = [
            "probe_read",
            "probe_read_user",
            "probe_read_kernel",
            "get_current_comm",
            "skb_load_bytes",
            "skb_load_bytes_relative",
            "perf_event_read_value",
            "perf_prog_read_value",
            "copy_from_user",
        ];
        FILLING.contains(&self.name)
    }

    /// Returns true if older verifiers, which read no unwritten stack, want the memory written before the call that
    /// the helper only writes: their rows do not say that it is uninitialised.
    pub fn wants_written_memory(&self) -> bool {
        const WANTING: [&str; 10] = [
            "d_path",
            "get_func_arg",
            "get_func_ret",
            "kallsyms_lookup_name",
            "read_branch_records",
            "snprintf",
            "snprintf_btf",
            "strtol",
            "strtoul",
            "sysctl_get_name",
        ];
        WANTING.contains(&self.name)
    }

    /// A call may go if neither its result nor the memory it writes is used.
    ///
    /// A lookup in an LRU map refreshes the entry's recency all the same: ask the map's type first.
    pub fn removable(&self) -> bool {
        !self.effects.intersects(HelperEffects::OBSERVABLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_rows() {
        let at = |id: i32| Helper::get(id).map(|h| h.name);
        assert_eq!(at(0), None);
        assert_eq!(at(1), Some("map_lookup_elem"));
        assert_eq!(at(51), Some("redirect_map"));
        assert_eq!(at(100), Some("tcp_check_syncookie"));
        assert_eq!(at(130), Some("ringbuf_output"));
        assert_eq!(at(163), Some("check_mtu"));
        assert_eq!(at(181), Some("loop"));
        assert_eq!(at(211), Some("cgrp_storage_delete"));
        assert_eq!(at(212), None);
        assert_eq!(Helper::by_name("bpf_redirect").map(|(id, _)| id), Some(23));
    }

    #[test]
    fn a_size_follows_each_sized_memory_and_nothing_else() {
        for (id, helper) in Helper::all() {
            assert!(helper.args.len() <= 5, "{id} {}", helper.name);
            for (i, arg) in helper.args.iter().enumerate() {
                let sized = matches!(arg, ArgKind::Mem { .. });
                let next = helper.args.get(i + 1);
                let size = matches!(next, Some(ArgKind::Size | ArgKind::SizeOrZero));
                assert_eq!(sized, size, "{id} {} argument {}", helper.name, i + 1);
            }
        }
    }

    #[test]
    fn what_fills_memory_has_memory_that_it_only_writes() {
        let filling: Vec<&Helper> = Helper::all().map(|(_, h)| h).filter(|h| h.fills_memory()).collect();
        assert_eq!(filling.len(), 9);
        for helper in filling {
            assert!(helper.args.iter().any(|a| a.writes_memory() && !a.reads_memory()), "{}", helper.name);
        }
    }

    #[test]
    fn names_are_unique() {
        for (id, helper) in Helper::all() {
            assert_eq!(Helper::by_name(helper.name).map(|(found, _)| found), Some(id), "{}", helper.name);
        }
    }
}
