//! Looks for a packet and map contents on which two programs differ, without a solver.
//!
//! Packets are frames of the usual kinds, mutated, with constants of the programs put into them. Maps start
//! empty; keys that a program looks up in vain are inserted, with values of all sorts, and it runs again, so
//! that it gets beyond its first lookup.

use std::time::Instant;

use millstream_interp::{KERNEL_MEMORY, MapKeyValue};
use millstream_isa::{Insn, Operand};

use crate::program::ProofProgram;
use crate::replay::{OutcomeDifference, ReplayHarness, ReplayInput};

/// Rounds of filling in keys.
const ROUNDS: usize = 5;
/// Words that are set in a context of unknown layout.
const WORDS: usize = 24;
/// Longest packet.
const LONGEST: usize = 300;

/// A small generator of random numbers (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct ExplorerRng(u64);

impl ExplorerRng {
    pub(crate) fn new(seed: u64) -> ExplorerRng {
        ExplorerRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
}

/// A source of scenes for two programs.
pub(crate) struct InputGenerator<'a> {
    stage: &'a ReplayHarness<'a>,
    constants: Vec<u64>,
    /// Offsets at which the programs read packets and values.
    offsets: Vec<usize>,
    rng: ExplorerRng,
    /// Process that runs the program in the current scene, as the program reads it: settings may ask for just
    /// these values.
    process: [u32; 4],
}

impl<'a> InputGenerator<'a> {
    pub(crate) fn new(
        stage: &'a ReplayHarness<'a>,
        programs: [&ProofProgram; 2],
        seed: u64,
    ) -> InputGenerator<'a> {
        let (mut constants, mut offsets) = (vec![0, 1, u64::MAX], vec![0, 12, 14, 23]);
        for insn in programs.iter().flat_map(|p| p.insns.iter().flatten()) {
            match *insn {
                Insn::Branch { src: Operand::Imm(imm), .. } => {
                    constants.extend([-1, 0, 1].map(|d| (imm as i64).wrapping_add(d) as u64));
                    // In network byte order, as it stands in a packet, if it was compared that way.
                    constants.push(u64::from((imm as u32).swap_bytes()));
                    constants.push(u64::from((imm as u16).swap_bytes()));
                }
                Insn::Alu { src: Operand::Imm(imm), .. } => constants.push(imm as i64 as u64),
                Insn::Load { off, .. } => offsets.extend(usize::try_from(off).ok()),
                _ => {}
            }
        }
        constants.sort_unstable();
        constants.dedup();
        offsets.sort_unstable();
        offsets.dedup();
        InputGenerator { stage, constants, offsets, rng: ExplorerRng::new(seed), process: [0; 4] }
    }

    /// Tries scenes until one shows a difference.
    pub(crate) fn search(
        &mut self,
        tries: usize,
        deadline: Instant,
    ) -> Option<(ReplayInput, OutcomeDifference)> {
        for _ in 0..tries {
            if Instant::now() >= deadline {
                return None;
            }
            let scene = self.scene();
            let found = self.fill(scene);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Runs a scene, then again with entries for keys that were missed.
    pub(crate) fn fill(&mut self, mut scene: ReplayInput) -> Option<(ReplayInput, OutcomeDifference)> {
        for _ in 0..ROUNDS {
            let mut missed = Vec::new();
            if let Some(difference) = self.stage.compare(&scene, &mut missed) {
                return Some((scene, difference));
            }
            missed.sort();
            missed.dedup();
            let before = scene.entries.len();
            for (map, key) in missed {
                if self.rng.below(4) != 0 {
                    let value = self.value(map);
                    scene.entries.push((map, (key, value)));
                }
            }
            if scene.entries.len() == before {
                return None;
            }
        }
        None
    }

    fn scene(&mut self) -> ReplayInput {
        let mut scene = ReplayInput {
            packet: self.packet(),
            time: self.rng.next() >> [4, 20, 30][self.rng.below(3)],
            seed: self.rng.next(),
            ..ReplayInput::default()
        };
        if self.stage.has_raw_context() {
            self.process = [(); 4].map(|()| match self.rng.below(3) {
                0 => 0,
                1 => self.constant() as u32,
                _ => (self.rng.next() >> 33) as u32 & 0xffff,
            });
            let [thread, group, user, users] = self.process.map(u64::from);
            scene.process = [group << 32 | thread, users << 32 | user];
        }
        for _ in 0..self.rng.below(8) {
            let (at, byte) = (self.rng.below(64), self.rng.next() as u8);
            scene.context.push((at, byte));
        }
        if self.stage.has_raw_context() {
            for word in 0..self.rng.below(WORDS) {
                let number = match self.rng.below(4) {
                    0 => self.constant(),
                    1 => self.rng.next() & 0xffff,
                    _ => KERNEL_MEMORY | self.rng.next() >> 36 << 6,
                };
                let bytes = self.stage.order.bytes_of_u64(number).into_iter().enumerate();
                scene.context.extend(bytes.map(|(n, byte)| (8 * word + n, byte)));
            }
        }
        for (number, map) in self.stage.maps.iter().enumerate() {
            let entries = map.max_entries.clamp(1, 8) as usize;
            // Arrays have entries that are never missed; programs and maps stored in some are not made up.
            let held = !matches!(map.number, 1 | 2 | 5 | 6 | 9 | 10 | 14 | 16 | 25);
            let kept = map.data.is_some() && (!map.settled.is_empty() || self.rng.below(2) == 0);
            if held || kept || map.key_size != 4 || map.value_size == 0 {
                continue;
            }
            for _ in 0..self.rng.below(entries + 1) {
                let key = self.stage.order.bytes_of_u32(self.rng.below(entries) as u32).to_vec();
                let entry: MapKeyValue = (key, self.value(number));
                scene.entries.push((number, entry));
            }
        }
        scene
    }

    fn constant(&mut self) -> u64 {
        if self.stage.has_raw_context() && self.rng.below(4) == 0 {
            return u64::from(self.process[self.rng.below(4)]);
        }
        self.constants[self.rng.below(self.constants.len())]
    }

    /// Writes a constant or a random number at an offset that programs read.
    fn disturb(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let number = if self.rng.below(3) == 0 { self.rng.next() } else { self.constant() };
        let base = [0, 14, 34, 54][self.rng.below(4)];
        let at = match self.rng.below(3) {
            0 => self.rng.below(bytes.len()),
            1 => base + self.offsets[self.rng.below(self.offsets.len())],
            _ => self.offsets[self.rng.below(self.offsets.len())],
        };
        let n = [1, 2, 4, 8][self.rng.below(4)];
        let swap = self.rng.below(2) == 0;
        let all = number.to_le_bytes();
        for i in 0..n {
            let byte = if swap { all[n - 1 - i] } else { all[i] };
            if let Some(place) = bytes.get_mut(at + i) {
                *place = byte;
            }
        }
    }

    fn packet(&mut self) -> Vec<u8> {
        let mut bytes = vec![0u8; LONGEST];
        for b in &mut bytes {
            *b = self.rng.next() as u8;
        }
        let start = FRAMES[self.rng.below(FRAMES.len())];
        if self.rng.below(8) != 0 {
            bytes[12..12 + start.len()].copy_from_slice(start);
        }
        for _ in 0..self.rng.below(5) {
            self.disturb(&mut bytes);
        }
        let length = match self.rng.below(4) {
            0 => 14 + self.rng.below(80),
            1 => 60,
            _ => 60 + self.rng.below(LONGEST - 60),
        };
        bytes.truncate(length);
        if self.rng.below(4) != 0 {
            mend(&mut bytes);
        }
        bytes
    }

    fn value(&mut self, map: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; self.stage.maps[map].value_size as usize];
        match self.rng.below(4) {
            0 => {}
            1 => bytes.fill_with(|| self.rng.next() as u8),
            _ => {
                for _ in 0..=self.rng.below(4) {
                    self.disturb(&mut bytes);
                }
            }
        }
        bytes
    }
}

/// Corrects the checksum of an IPv4 header.
fn mend(frame: &mut [u8]) {
    let at = if frame.get(12) == Some(&0x81) { 18 } else { 14 };
    if frame.get(at - 2..at) != Some(&[8, 0]) {
        return;
    }
    let Some(header) = frame.get_mut(at..at + 20) else { return };
    header[10..12].fill(0);
    let sum = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

/// Bytes after the addresses of usual frames: IPv4 with TCP, UDP and ICMP, IPv6 with the same, a VLAN tag,
/// ARP.
const FRAMES: [&[u8]; 8] = [
    &[0x08, 0, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6],
    &[0x08, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17],
    &[0x08, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 1],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 6, 64],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 17, 64],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 58, 255],
    &[0x81, 0, 0, 7, 0x08, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17],
    &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1],
];
