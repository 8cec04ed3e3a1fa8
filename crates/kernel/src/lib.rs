//! The kernel side: the only crate that calls bpf(2).
//!
//! Descriptions are apart from things in the kernel: a [`MapSpec`] or [`ProgramSpec`] is plain data, while a
//! [`KernelMap`], [`KernelProgram`], [`Link`] or [`KernelBtf`] owns a file descriptor. Dropping the latter
//! closes the descriptor, and with it goes the object, unless something else (a pin, a link, a program) holds
//! it.
//!
//! Instructions are raw 8-byte slots; this crate knows no ISA, no ELF and no IR. Features are probed
//! ([`probe`]), never guessed from a kernel version. Every failure names the system call, the operation and,
//! where known, a remedy ([`KernelError::hint`]).
//!
//! Architecture Invariant: no other crate issues bpf(2), rtnetlink or mmap of a map. `unsafe` code is
//! therefore allowed in the modules `sys`, `grace`, `mapping`, `ringbuf`, `netlink`, `netns`, `packet` and
//! `tap` of this crate, each block with its reason, and denied in the others.
//!
//! Sources: `include/uapi/linux/bpf.h`, `kernel/bpf/syscall.c`, `net/bpf/test_run.c` and `net/core/dev.c` of
//! Linux 6.18.

mod btf;
mod cpus;
mod error;
mod extension;
mod foreign_load;
mod grace;
mod hook;
mod iface;
mod info;
mod link;
mod load;
mod log_text;
mod map;
mod map_batch;
mod mapping;
mod netlink;
mod netns;
mod packet;
mod pinned;
pub mod probe;
mod program;
mod ringbuf;
mod sys;
mod tap;
mod tc;
pub mod testing;
mod testrun;
mod types;
mod xdp;

pub use btf::KernelBtf;
pub use cpus::{cpu_numbers, possible_cpus};
pub use error::{KernelError, Result, errno_name};
pub use extension::ExtensionPlace;
pub use foreign_load::{ForeignCode, ForeignLoad, ForeignLoadError, PROGRAM_LOAD, ReadMemory};
pub use grace::grace_period;
pub use hook::Hook;
pub use iface::{
    NetInterface, addresses, create_veth, delete_interface, gateways, interface, interface_index, interfaces,
    set_address, set_down, set_mtu, set_up, set_up_pair,
};
pub use info::{
    BtfInfo, LinkDetail, LinkInfo, MapInfo, ProgramInfo, btf_ids, link_ids, map_ids, program_ids,
};
pub use link::{Link, XdpMode};
pub use load::{LoadError, ProgramSpec, RecordInfo, Rejection, VerifierStats};
pub use map::{KernelMap, MapSpec, UpdateMode};
pub use map_batch::BatchEntries;
pub use mapping::{ArrayMapping, shared_memory};
pub use netns::Namespace;
pub use packet::{LONGEST as LONGEST_FRAME, PacketSocket};
pub use pinned::{MOUNT, PinDirError, check_pin, check_pin_dir, create_pin_dir};
pub use program::{KernelProgram, run_time_statistics};
pub use ringbuf::RingBuffer;
pub use tap::Tap;
pub use tc::{TcFilter, TcxState, add_clsact, filters, has_tcx, query_tcx, remove_empty_clsact};
pub use testrun::{TestOutput, TestRun};
pub use types::{AttachType, LinkType, ProgramType, map_flags, prog_flags};
pub use xdp::{XdpHolder, XdpState, query_xdp, replace_xdp_netlink, xdp_program};
