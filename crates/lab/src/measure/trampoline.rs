//! The trampoline: a program that calls one of many copies, and before that may put the packet's bytes back.

use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use millstream_isa::MapType;
use millstream_kernel::{ArrayMapping, AttachType, KernelMap, KernelProgram, MapSpec, UpdateMode};

use crate::code::{shared, value, xdp_as};
use crate::error::Result;

/// `XDP_REDIRECT`.
pub(crate) const REDIRECT: u32 = 4;
/// Copies that a trampoline can call.
pub const MAX_COPIES: usize = 256;
/// Return value of the trampoline if the call does not reach the copy.
pub(super) const FELL_THROUGH: u32 = 99;
/// Bytes of a packet that can be put back between runs.
pub const RESTORED: usize = 96;

const SLOT: usize = 0;
const POSITION: usize = 8;

/// Load attributes that all copies share so that they can be called: a program array takes programs that were
/// loaded alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadAttributes {
    /// The attach type that was stated at load.
    pub attach: AttachType,
    /// The flags at load.
    pub flags: u32,
}

/// Packets from which the trampoline writes the bytes back, one after the other.
#[derive(Debug)]
pub(crate) struct PacketRestorer {
    map: KernelMap,
    _memory: ArrayMapping,
    packets: usize,
    len: usize,
}

impl PacketRestorer {
    /// Puts back the first bytes, an even number and at most [`RESTORED`], of packets of one length.
    pub(crate) fn new(packets: &[Vec<u8>]) -> Result<Self> {
        let shortest = packets.iter().map(Vec::len).min().unwrap_or(0);
        let len = shortest.min(RESTORED) & !1;
        let stride = len.next_multiple_of(8);
        let (map, memory) = shared("ms_restore", stride * packets.len())?;
        for (i, packet) in packets.iter().enumerate() {
            memory.write(i * stride, &packet[..len]);
        }
        Ok(PacketRestorer { map, _memory: memory, packets: packets.len(), len })
    }

    fn text(&self, state: &KernelMap) -> String {
        let stride = self.len.next_multiple_of(8);
        let mut text = format!("r5 = {}\n", value(&self.map, 0));
        if self.packets > 1 {
            text += &format!(
                "r7 = {}
                r8 = *(u64 *)(r7 +{POSITION})
                if r8 < {} goto inside
                r8 = 0
                inside:
                r2 = r8
                r2 += 1
                *(u64 *)(r7 +{POSITION}) = r2
                r8 *= {stride}
                r5 += r8\n",
                value(state, 0),
                self.packets
            );
        }
        text += "r2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\n";
        text += &format!("r4 = r2\nr4 += {}\nif r4 > r3 goto call\n", self.len);
        let mut at = 0;
        while at < self.len {
            // Stores as wide as the fields of Ethernet and IPv4, so that a load of a field takes its bytes
            // from one store that is still under way, not from two.
            let width = if matches!(at, 4 | 10 | 12) || self.len - at < 4 { 2 } else { 4 };
            let bits = 8 * width;
            text += &format!("r1 = *(u{bits} *)(r5 +{at})\n*(u{bits} *)(r2 +{at}) = r1\n");
            at += width;
        }
        text + "call:\n"
    }
}

/// The table of copies and the number of the one that is called.
#[derive(Debug)]
pub(crate) struct TrampolineTable {
    pub(crate) programs: KernelMap,
    state: KernelMap,
    memory: ArrayMapping,
    alike: LoadAttributes,
}

impl TrampolineTable {
    pub(crate) fn new(alike: LoadAttributes) -> Result<Self> {
        let programs = KernelMap::create(&MapSpec {
            name: "ms_copies",
            map_type: MapType::PROG_ARRAY,
            key_size: 4,
            value_size: 4,
            max_entries: MAX_COPIES as u32,
            ..MapSpec::default()
        })?;
        let (state, memory) = shared("ms_slot", 16)?;
        Ok(TrampolineTable { programs, state, memory, alike })
    }

    /// Makes the trampoline call this copy from now on.
    pub(crate) fn select(&self, slot: usize) {
        self.memory.atomic_u32(SLOT).store(slot as u32, Ordering::Relaxed);
    }

    /// Loads a trampoline.
    pub(crate) fn trampoline(&self, restore: Option<&PacketRestorer>) -> Result<KernelProgram> {
        let restore = restore.map_or(String::new(), |r| r.text(&self.state));
        let text = format!(
            "r6 = r1
            {restore}
            r4 = {}
            r3 = *(u32 *)(r4 +0)
            r1 = r6
            r2 = map[fd:{}]
            call tail_call
            r0 = {FELL_THROUGH}
            exit",
            value(&self.state, SLOT),
            self.programs.as_fd().as_raw_fd()
        );
        xdp_as("ms_trampoline", &text, self.alike.attach, self.alike.flags)
    }
}

/// Loads a program that only gives a verdict, and can be called beside others that are alike. A redirected
/// frame must have a destination: the kernel would throw it away, which does not happen to the frames of
/// other programs. So `port` is the interface that it goes to, by way of a map, where frames are real.
///
/// # Errors
/// If the kernel refuses an operation.
pub fn empty(verdict: u32, port: Option<u32>, alike: LoadAttributes) -> Result<KernelProgram> {
    let Some(port) = port.filter(|_| verdict == REDIRECT) else {
        return xdp_as("ms_empty", &format!("r0 = {verdict}\nexit"), alike.attach, alike.flags);
    };
    let ports = KernelMap::create(&MapSpec {
        name: "ms_ports",
        map_type: MapType::DEVMAP,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        ..MapSpec::default()
    })?;
    ports.update(&0u32.to_ne_bytes(), &port.to_ne_bytes(), UpdateMode::Any)?;
    let map = ports.as_fd().as_raw_fd();
    let text = format!("r1 = map[fd:{map}]\nr2 = 0\nr3 = 0\ncall redirect_map\nexit");
    xdp_as("ms_empty", &text, alike.attach, alike.flags)
}
