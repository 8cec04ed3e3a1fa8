//! The generator: a program that fills each live frame from a table of templates and redirects it.
//!
//! Frames are recycled without being rewritten, so every byte of a frame is written each time. The order is a
//! sequence of template numbers, drawn beforehand, so that drawing costs nothing at run time. Code is made
//! for the templates at hand: if all have one length, the copy is straight.
//!
//! A second program does the same at a rate: it waits, inside the kernel's call, before the first frame of
//! each burst. A call for each burst could not: beginning and ending it takes longer than most bursts.

use std::sync::atomic::Ordering;

use millstream_kernel::{ArrayMapping, KernelMap, KernelProgram};
use millstream_programs::traffic::WeightedFlows;

use crate::code::{copy, copy_frame, shared, value, xdp};
use crate::error::{Error, Result};

/// Longest frame that a live-frame test run takes, with room for its own bookkeeping in the page.
pub const MAX_FRAME: usize = 3_000;
/// Shortest: an Ethernet header.
pub const MIN_FRAME: usize = 14;

/// Offsets in the state that the generator shares with us.
const GENERATED: usize = 0;
const POSITION: usize = 8;
/// Of the paced program: frames that are left of the burst, when the next is due, and how long one takes.
const LEFT: usize = 16;
const DUE: usize = 24;
const GAP: usize = 32;
const STATE: usize = 40;

/// Traffic to be sent: frames, and the order in which they are sent.
#[derive(Clone, Copy, Debug)]
pub struct TrafficSequence<'a> {
    /// The frames.
    pub frames: &'a [Vec<u8>],
    /// Indices into `frames`. At its end it starts again.
    pub sequence: &'a [u32],
}

impl<'a> TrafficSequence<'a> {
    /// The frames of a set of flows in this order.
    pub fn new(flows: &'a WeightedFlows, sequence: &'a [u32]) -> Self {
        TrafficSequence { frames: &flows.packets, sequence }
    }

    fn check(&self) -> Result<()> {
        let unusable = |what: String| Err(Error::Unusable(what));
        if self.frames.is_empty() || self.sequence.is_empty() {
            return unusable("traffic without frames".into());
        }
        if let Some(f) = self.frames.iter().find(|f| !(MIN_FRAME..=MAX_FRAME).contains(&f.len())) {
            return unusable(format!("a frame of {} bytes; {MIN_FRAME} to {MAX_FRAME} can be sent", f.len()));
        }
        match self.sequence.iter().find(|&&i| i as usize >= self.frames.len()) {
            Some(i) => unusable(format!("the sequence names frame {i} of {}", self.frames.len())),
            None => Ok(()),
        }
    }
}

/// Layout of the templates in memory.
#[derive(Clone, Copy, Debug)]
struct TemplateLayout {
    /// Longest frame.
    longest: usize,
    /// True if all have the same length.
    equal: bool,
    /// Bytes from one template to the next. Unless all are as long, a template begins with its length.
    stride: usize,
}

impl TemplateLayout {
    fn of(frames: &[Vec<u8>]) -> Self {
        let longest = frames.iter().map(Vec::len).max().unwrap_or(0);
        let equal = frames.iter().all(|f| f.len() == longest);
        let stride = longest.next_multiple_of(8) + if equal { 0 } else { 8 };
        TemplateLayout { longest, equal, stride }
    }
}

/// A loaded generator with its memory.
#[derive(Debug)]
pub(crate) struct FrameGenerator {
    pub(crate) program: KernelProgram,
    /// The same at a rate, in bursts; not there where the kernel knows no loops of unknown length (before
    /// 6.9).
    pub(crate) paced: Option<KernelProgram>,
    state: ArrayMapping,
    sequence: ArrayMapping,
    sequence_len: usize,
    frames: usize,
    /// Input of a test run: all frames start as this.
    pub(crate) base: Vec<u8>,
}

impl FrameGenerator {
    /// A generator that redirects to interface `to`. With `stamps`, each frame carries the time in its
    /// metadata. With `burst`, there is also a paced one, which sends `burst` frames at once.
    pub(crate) fn new(
        traffic: &TrafficSequence<'_>,
        to: u32,
        stamps: bool,
        burst: Option<u32>,
    ) -> Result<Self> {
        traffic.check()?;
        let layout = TemplateLayout::of(traffic.frames);
        let (state_map, state) = shared("ms_gen_state", STATE)?;
        let (template_map, templates) = shared("ms_gen_frames", layout.stride * traffic.frames.len())?;
        for (i, frame) in traffic.frames.iter().enumerate() {
            let mut at = i * layout.stride;
            if !layout.equal {
                templates.write(at, &(frame.len() as u64).to_ne_bytes());
                at += 8;
            }
            templates.write(at, frame);
        }
        let (sequence_map, sequence) = shared("ms_gen_sequence", 4 * traffic.sequence.len())?;
        write_sequence(&sequence, traffic.sequence);
        let maps = [&state_map, &sequence_map, &template_map];
        let text = |wait: &str| text(&layout, traffic, maps, to, stamps, wait);
        let paced = burst.and_then(|burst| {
            let paced = xdp("ms_generate", &text(&pace(burst)));
            paced.inspect_err(|e| tracing::debug!("no paced generator: {}", e.error_chain())).ok()
        });
        Ok(FrameGenerator {
            program: xdp("ms_generate", &text(""))?,
            paced,
            state,
            sequence,
            sequence_len: traffic.sequence.len(),
            frames: traffic.frames.len(),
            base: vec![0; layout.longest],
        })
    }

    /// Frames made so far.
    pub(crate) fn generated(&self) -> u64 {
        self.state.atomic_u64(GENERATED).load(Ordering::Relaxed)
    }

    /// Sets the duration of a burst of the paced program, in ns. It begins with the next frame.
    pub(crate) fn set_gap(&self, ns: u64) {
        let set = |offset, value| self.state.atomic_u64(offset).store(value, Ordering::Relaxed);
        set(GAP, ns);
        set(LEFT, 0);
        set(DUE, 0);
    }

    /// Goes on from this place of the sequence.
    pub(crate) fn begin_at(&self, place: usize) {
        self.state.atomic_u64(POSITION).store(place as u64, Ordering::Relaxed);
    }

    /// Length of the sequence.
    pub(crate) fn order(&self) -> usize {
        self.sequence_len
    }

    /// Another order of the same frames, from the next frame on.
    pub(crate) fn reorder(&self, sequence: &[u32]) -> Result<()> {
        if sequence.len() != self.sequence_len {
            let have = self.sequence_len;
            return Err(Error::Unusable(format!("a sequence of {}, where {have} are sent", sequence.len())));
        }
        if let Some(i) = sequence.iter().find(|&&i| i as usize >= self.frames) {
            return Err(Error::Unusable(format!("the sequence names frame {i} of {}", self.frames)));
        }
        write_sequence(&self.sequence, sequence);
        Ok(())
    }
}

fn write_sequence(memory: &ArrayMapping, sequence: &[u32]) {
    for (i, &frame) in sequence.iter().enumerate() {
        memory.atomic_u32(4 * i).store(frame, Ordering::Relaxed);
    }
}

fn text(
    layout: &TemplateLayout,
    traffic: &TrafficSequence<'_>,
    maps: [&KernelMap; 3],
    to: u32,
    stamps: bool,
    wait: &str,
) -> String {
    let [state, sequence, templates] = maps;
    let mut text = String::from("r6 = r1\n");
    text += &format!("r7 = {}\n{wait}", value(state, 0));
    // The position is ours alone; the comparison is the wrap-around and the verifier's bound in one.
    text += &format!("r8 = *(u64 *)(r7 +{POSITION})\n");
    text += &format!("if r8 < {} goto inside\nr8 = 0\ninside:\n", traffic.sequence.len());
    text += &format!("r1 = r8\nr1 += 1\n*(u64 *)(r7 +{POSITION}) = r1\n");
    text += &format!("r1 = *(u64 *)(r7 +{GENERATED})\nr1 += 1\n*(u64 *)(r7 +{GENERATED}) = r1\n");
    text += &format!("r8 <<= 2\nr1 = {}\nr1 += r8\nr8 = *(u32 *)(r1 +0)\n", value(sequence, 0));
    text += &format!("if r8 >= {} goto fail\n", traffic.frames.len());
    text += &format!("r8 *= {}\nr1 = {}\nr8 += r1\n", layout.stride, value(templates, 0));
    if layout.equal {
        if stamps {
            text += &stamp();
        }
        text += "r2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\n";
        text += &format!("r4 = r2\nr4 += {}\nif r4 > r3 goto fail\n", layout.longest);
        text += &copy("r2", "r8", 0, "r5", layout.longest);
    } else {
        text += &format!("r2 = *(u64 *)(r8 +0)\nr8 += 8\nr2 -= {}\n", layout.longest);
        text += "if r2 == 0 goto sized\nr1 = r6\ncall xdp_adjust_tail\nif r0 != 0 goto fail\nsized:\n";
        if stamps {
            text += &stamp();
        }
        text += "r2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\n";
        text += &copy_frame("r2", "r8", layout.longest);
    }
    text += &format!("r1 = {to}\nr2 = 0\ncall redirect\nexit\nfail:\nr0 = 1\nexit\n");
    text
}

/// Waits before the first frame of a burst until it is due. A delay of more than a burst is not made up for,
/// since that would be a longer burst.
fn pace(burst: u32) -> String {
    format!(
        "r1 = *(u64 *)(r7 +{LEFT})
        if r1 != 0 goto burst
        wait:
        call ktime_get_ns
        r1 = *(u64 *)(r7 +{DUE})
        if r0 >= r1 goto due
        may_goto due
        goto wait
        due:
        r2 = *(u64 *)(r7 +{GAP})
        r3 = r0
        r3 -= r1
        if r3 <= r2 goto punctual
        r1 = r0
        punctual:
        r1 += r2
        *(u64 *)(r7 +{DUE}) = r1
        r1 = {burst}
        burst:
        r1 -= 1
        *(u64 *)(r7 +{LEFT}) = r1
        "
    )
}

/// The time, in the eight bytes before the frame: metadata goes with a frame from device to device, and no
/// program that does not ask for it sees it.
fn stamp() -> String {
    "call ktime_get_ns
    r9 = r0
    r1 = r6
    r2 = -8
    call xdp_adjust_meta
    if r0 != 0 goto fail
    r2 = *(u32 *)(r6 +8)
    r3 = *(u32 *)(r6 +0)
    r4 = r2
    r4 += 8
    if r4 > r3 goto fail
    *(u64 *)(r2 +0) = r9
    "
    .into()
}
