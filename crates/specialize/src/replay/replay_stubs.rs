//! Replacements of helpers in a replay: answers that are the same on all sides, and records of outgoing
//! effects.
//!
//! Calls of such helpers become calls of functions that are appended to the program, so nothing else of it
//! moves. Time and random numbers come from memory that is set before each packet. Events, traces and
//! redirections go to a ring buffer; a redirection is made as well, because its answer depends on maps, and a
//! test run sends nothing. For a redirection through a map, key and flags are kept; the map is not.
//!
//! Invariant: a program that has been through [`ReplayStubs::rewrite`] changes nothing but its maps and its
//! packet.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

use millstream_isa::helpers::{Helper, HelperEffects};
use millstream_isa::{Callee, Insn, MapType, RawInsn, asm, decode_all, encode_all};
use millstream_kernel::{ArrayMapping, KernelMap, MapSpec, RingBuffer, shared_memory};

use super::ReplayError;

/// Offset of the time that the clocks show, in nanoseconds.
const TIME: usize = 0;
/// Offset of the state of the random numbers.
const RANDOM: usize = 8;
/// Bytes of records that one packet may leave.
const ROOM: u32 = 1 << 18;

/// Helpers with effects that stay in the replay's own maps, or that nobody sees.
const HARMLESS: &[&str] = &[
    "tail_call",
    "ringbuf_output",
    "ringbuf_reserve",
    "ringbuf_submit",
    "ringbuf_discard",
    "ringbuf_reserve_dynptr",
    "ringbuf_submit_dynptr",
    "ringbuf_discard_dynptr",
    "for_each_map_elem",
    "loop",
    "sk_lookup_tcp",
    "sk_lookup_udp",
    "skc_lookup_tcp",
    "sk_release",
    "spin_lock",
    "spin_unlock",
    "get_netns_cookie",
    "tcp_gen_syncookie",
    "tcp_raw_gen_syncookie_ipv4",
    "tcp_raw_gen_syncookie_ipv6",
];

/// Memory and records of one side.
#[derive(Debug)]
pub(super) struct ReplayStubs {
    script: KernelMap,
    memory: ArrayMapping,
    told: KernelMap,
    ring: RingBuffer,
}

impl ReplayStubs {
    pub(super) fn new() -> Result<ReplayStubs, ReplayError> {
        let (script, memory) = shared_memory("ms.script", 16)?;
        let told = KernelMap::create(&MapSpec {
            name: "ms.told",
            map_type: MapType::RINGBUF,
            max_entries: ROOM,
            ..MapSpec::default()
        })?;
        Ok(ReplayStubs { memory, ring: told.ring_buffer()?, script, told })
    }

    /// Sets the time that the clocks show to the next packet, and the seed of its random numbers.
    pub(super) fn set(&self, time: u64, random: u64) {
        self.memory.atomic_u64(TIME).store(time, Ordering::Relaxed);
        self.memory.atomic_u64(RANDOM).store(random, Ordering::Relaxed);
    }

    /// Appends the records since the last call, each behind its length.
    pub(super) fn take_records(&mut self, out: &mut Vec<u8>) {
        records(&mut self.ring, out);
    }

    /// Rewrites a program so that all its external effects go through these aids; also returns the starts of
    /// the added functions.
    pub(super) fn rewrite(&self, slots: &[u64]) -> Result<(Vec<u64>, Vec<u32>), ReplayError> {
        let mut raws: Vec<RawInsn> = slots.iter().map(|s| RawInsn::from_bytes(s.to_ne_bytes())).collect();
        let decoded = decode_all(&raws).map_err(|e| ReplayError::Program(e.to_string()))?;
        let mut placed: Vec<(i32, usize)> = Vec::new();
        for (at, insn) in decoded {
            let Insn::Call(callee) = insn else { continue };
            let id = match callee {
                Callee::Helper(id) => id,
                Callee::Kfunc { .. } => return Err(ReplayError::Effect("a kernel function".to_owned())),
                _ => continue,
            };
            let helper = Helper::get(id).ok_or_else(|| ReplayError::Effect(format!("helper {id}")))?;
            let Some(text) = self.stand_in(helper.name) else {
                if helper.effects.contains(HelperEffects::EXTERNAL) && !HARMLESS.contains(&helper.name) {
                    return Err(ReplayError::Effect(format!("bpf_{}", helper.name)));
                }
                continue;
            };
            let start = match placed.iter().find(|(of, _)| *of == id) {
                Some((_, start)) => *start,
                None => {
                    let insns = asm::assemble(&text).map_err(|e| ReplayError::Program(e.to_string()))?;
                    placed.push((id, raws.len()));
                    raws.extend(encode_all(&insns));
                    placed[placed.len() - 1].1
                }
            };
            // Programs are far shorter than 2^31.
            let call = Insn::Call(Callee::Local((start - at - 1) as i32));
            raws[at..=at].copy_from_slice(&encode_all(&[call]));
        }
        let starts = placed.iter().map(|(_, start)| *start as u32).collect();
        Ok((raws.iter().map(|r| u64::from_ne_bytes(r.to_bytes())).collect(), starts))
    }

    /// The function that replaces a helper.
    fn stand_in(&self, helper: &str) -> Option<String> {
        let word = |at| format!("map[fd:{}][0]+{at}", self.script.as_fd().as_raw_fd());
        Some(match helper {
            "ktime_get_ns" | "ktime_get_boot_ns" | "ktime_get_coarse_ns" | "ktime_get_tai_ns" => {
                format!("r0 = {}\nr0 = *(u64 *)(r0 +0)\nexit", word(TIME))
            }
            // Knuth's generator of 64 bits.
            "get_prandom_u32" => format!(
                "r1 = {}
                r0 = *(u64 *)(r1 +0)
                r2 = 0x5851f42d4c957f2d ll
                r0 *= r2
                r2 = 0x14057b7ef767814f ll
                r0 += r2
                *(u64 *)(r1 +0) = r0
                r0 >>= 32
                exit",
                word(RANDOM)
            ),
            "trace_printk" | "trace_vprintk" => "r0 = 0\nexit".to_owned(),
            "perf_event_output" => {
                let data = self.tell("r2 = r6\nr3 = r7");
                format!("r6 = r4\nr7 = r5\n{}{data}r0 = 0\nexit", self.note(helper, &["r3"]))
            }
            "redirect" | "redirect_peer" => self.and_call(helper, &["r1", "r2"]),
            "redirect_map" => self.and_call(helper, &["r2", "r3"]),
            "redirect_neigh" => self.and_call(helper, &["r1", "r4"]),
            _ => return None,
        })
    }

    /// Records some arguments, then calls the helper itself, which has four at most.
    fn and_call(&self, helper: &str, noted: &[&str]) -> String {
        let arguments = Helper::by_name(helper).map_or(0, |(_, h)| h.args.len());
        let each = |text: fn(usize) -> String| (1..=arguments).map(text).collect::<String>();
        let save = each(|n| format!("r{} = r{n}\n", n + 5));
        let restore = each(|n| format!("r{n} = r{}\n", n + 5));
        format!("{save}{}{restore}call {helper}\nexit", self.note(helper, noted))
    }

    /// Records the helper's number and these registers.
    fn note(&self, helper: &str, registers: &[&str]) -> String {
        let id = Helper::by_name(helper).map_or(0, |(id, _)| id);
        let size = 8 * (registers.len() + 1);
        let mut text = String::new();
        for (n, register) in registers.iter().enumerate() {
            text += &format!("*(u64 *)(r10 -{}) = {register}\n", 8 * (n + 1));
        }
        text += &format!("r1 = {id}\n*(u64 *)(r10 -{size}) = r1\n");
        text + &self.tell(&format!("r2 = r10\nr2 += -{size}\nr3 = {size}"))
    }

    /// Writes the bytes that `data` puts into r2 and r3 as a record.
    fn tell(&self, data: &str) -> String {
        let fd = self.told.as_fd().as_raw_fd();
        format!("{data}\nr1 = map[fd:{fd}]\nr4 = 0\ncall ringbuf_output\n")
    }
}

/// The finished records of a ring, each behind its length.
pub(super) fn records(ring: &mut RingBuffer, out: &mut Vec<u8>) {
    ring.drain(|record| {
        out.extend((record.len() as u32).to_ne_bytes());
        out.extend(record);
    });
}

#[cfg(test)]
mod tests {
    use millstream_kernel::{KernelProgram, ProgramSpec, ProgramType, TestRun, testing};

    use super::*;

    fn slots(text: &str) -> Vec<u64> {
        let insns = asm::assemble(text).expect("it assembles");
        encode_all(&insns).iter().map(|r| u64::from_ne_bytes(r.to_bytes())).collect()
    }

    fn run(aids: &ReplayStubs, text: &str) -> u32 {
        let (insns, _) = aids.rewrite(&slots(text)).expect("it can be replayed");
        let spec = ProgramSpec {
            name: "ms_aided",
            program_type: ProgramType::XDP,
            insns: &insns,
            license: "GPL",
            ..ProgramSpec::default()
        };
        let program = KernelProgram::load(&spec).expect("accepted");
        program.test_run(&TestRun::packet(&[0; 64])).expect("a test run").retval
    }

    #[test]
    fn clocks_and_random_numbers_are_as_they_are_set() {
        if !testing::require() {
            return;
        }
        let aids = ReplayStubs::new().expect("maps");
        let clocks = "call ktime_get_ns\nr6 = r0\ncall ktime_get_coarse_ns\nr0 += r6\nexit";
        aids.set(1000, 0);
        assert_eq!(run(&aids, clocks), 2000);
        let random = "call get_prandom_u32\nr6 = r0\ncall get_prandom_u32\nr0 ^= r6\nexit";
        aids.set(0, 7);
        let first = run(&aids, random);
        aids.set(0, 7);
        assert_eq!(run(&aids, random), first);
        aids.set(0, 8);
        assert_ne!(run(&aids, random), first, "and not always the same");
    }

    #[test]
    fn what_would_go_out_is_written_down_with_its_arguments() {
        if !testing::require() {
            return;
        }
        let mut aids = ReplayStubs::new().expect("maps");
        let mut told = |text: &str| {
            let (verdict, mut out) = (run(&aids, text), Vec::new());
            aids.take_records(&mut out);
            (verdict, out)
        };
        let there = |port: u32| format!("r1 = {port}\nr2 = 0\ncall redirect\nexit");
        let (verdict, record) = told(&there(7));
        assert_eq!((verdict, record.len()), (4, 4 + 24), "the redirection is answered as always");
        assert_ne!(record, told(&there(8)).1);
        assert_eq!(record, told(&there(7)).1);
        let traced = "*(u64 *)(r10 -8) = 0x21\nr1 = r10\nr1 += -8\nr2 = 2\ncall trace_printk\nr0 = 2\nexit";
        assert_eq!(told(traced), (2, Vec::new()), "nothing is printed");
    }

    #[test]
    fn events_are_kept_with_their_bytes() {
        if !testing::require() {
            return;
        }
        let mut aids = ReplayStubs::new().expect("maps");
        let spec = MapSpec { name: "ms_events", map_type: MapType::PERF_EVENT_ARRAY, ..MapSpec::default() };
        let events = KernelMap::create(&MapSpec { key_size: 4, value_size: 4, max_entries: 64, ..spec });
        let events = events.expect("a map");
        let fd = events.as_fd().as_raw_fd();
        let text = |byte: u8| {
            format!(
                "*(u8 *)(r10 -1) = {byte}\nr2 = map[fd:{fd}]\nr3 = 0xffffffff ll\nr4 = r10\nr4 += -1\nr5 = 1\n\
                 call perf_event_output\nexit"
            )
        };
        let mut out = Vec::new();
        assert_eq!(run(&aids, &text(0x5a)), 0);
        aids.take_records(&mut out);
        assert_eq!(out.len(), 4 + 16 + 4 + 1);
        assert_eq!(out.last(), Some(&0x5a));
    }

    #[test]
    fn what_cannot_be_kept_inside_is_refused() {
        if !testing::require() {
            return;
        }
        let aids = ReplayStubs::new().expect("maps");
        let refused = aids.rewrite(&slots("r2 = 1\nr3 = 0\ncall clone_redirect\nexit"));
        assert!(matches!(refused, Err(ReplayError::Effect(what)) if what == "bpf_clone_redirect"));
    }
}
