//! Timing by `BPF_PROG_TEST_RUN`: no devices, so differences of a fifth of a nanosecond show.
//!
//! The trampoline is attached to the loopback of a private namespace, else each run would wait for two updates of
//! the XDP dispatcher. The kernel does not put a packet back between repeats; where programs write, or where there
//! are several packets, the trampoline does. It does so right before the program reads the bytes: loads that straddle
//! two of its stores pay for that, so programs with 8-byte loads of a packet are better compared on the live rig.

use millstream_kernel::{Link, Map, Namespace, Program, TestOutput, TestRun, XdpMode};

use super::trampoline::{Alike, FELL_THROUGH, RESTORED, Restore, Table};
use super::{Harness, Timer, Work};
use crate::error::{Error, Result};
use crate::os;

const LOOPBACK: u32 = 1;
/// Length of a timed run in nanoseconds: shorter than most disturbances are apart.
const RUN_NS: f64 = 50_000.0;
/// Enough to warm code and branches of one copy.
const WARM: u32 = 100;

/// Test runs on packets.
#[derive(Debug)]
pub struct TestRunHarness {
    // The link goes before its namespace.
    link: Option<Link>,
    trampoline: Option<Program>,
    table: Table,
    restore: Option<Restore>,
    packet: Vec<u8>,
    cpu: usize,
    /// Go before all else that the machine does.
    hurried: bool,
    namespace: Namespace,
}

impl TestRunHarness {
    /// A harness for programs that were loaded alike, on these packets, in turn, on this CPU.
    ///
    /// # Errors
    /// If the packets cannot be put back: differing lengths, differences beyond [`RESTORED`].
    pub fn new(alike: Alike, packets: &[Vec<u8>], restore: bool, cpu: usize) -> Result<Self> {
        let Some(packet) = packets.first().cloned() else {
            return Err(Error::Unusable("no packet to run on".into()));
        };
        let differ = |p: &Vec<u8>| {
            p.len() != packet.len() || p[p.len().min(RESTORED)..] != packet[packet.len().min(RESTORED)..]
        };
        if packets.iter().any(differ) {
            return Err(Error::Unusable(format!(
                "packets that differ in length or beyond byte {RESTORED} cannot take turns in a \
                 test run; use the live rig"
            )));
        }
        let restore = if restore || packets.len() > 1 { Some(Restore::new(packets)?) } else { None };
        let namespace = Namespace::new()?;
        Ok(TestRunHarness {
            link: None,
            trampoline: None,
            table: Table::new(alike)?,
            restore,
            packet,
            cpu,
            hurried: true,
            namespace,
        })
    }

    /// Leaves the thread its priority, for machines that have other work to do.
    pub fn unhurried(mut self) -> Self {
        self.hurried = false;
        self
    }
}

impl Harness for TestRunHarness {
    fn renew(&mut self) -> Result<()> {
        // Where the trampoline lands differs from generation to generation, too.
        self.link = None;
        let program = self.table.trampoline(self.restore.as_ref())?;
        let link = self.namespace.enter(|| Link::attach_xdp(&program, LOOPBACK, XdpMode::Generic))??;
        (self.link, self.trampoline) = (Some(link), Some(program));
        Ok(())
    }

    fn table(&self) -> &Map {
        &self.table.programs
    }

    fn time(&self, work: Work<'_>) -> Result<()> {
        let Some(program) = &self.trampoline else {
            return Err(Error::Unusable("no generation was begun".into()));
        };
        self.namespace.enter(|| {
            os::pin_to_cpu(self.cpu).map_err(|e| Error::io(format!("moving to CPU {}", self.cpu), e))?;
            if self.hurried {
                os::hurry(os::THIS_THREAD);
            }
            let output = TestOutput::default();
            work(&mut Runs { program, table: &self.table, packet: &self.packet, output })
        })?
    }
}

struct Runs<'a> {
    program: &'a Program,
    table: &'a Table,
    packet: &'a [u8],
    output: TestOutput,
}

impl Timer for Runs<'_> {
    fn select(&mut self, slot: usize) {
        self.table.select(slot);
    }

    fn run(&mut self, packets: u32) -> Result<f64> {
        let run = TestRun {
            data: self.packet,
            repeat: packets,
            data_room: self.packet.len() + 256,
            ..TestRun::default()
        };
        uncut(|| {
            let start = os::now_ns();
            self.program.test_run_into(&run, &mut self.output)?;
            Ok((os::now_ns() - start) as f64 / f64::from(packets))
        })
    }

    fn calibrate(&mut self) -> Result<u32> {
        let mut best = f64::INFINITY;
        for _ in 0..20 {
            best = best.min(self.run(500)?);
        }
        if self.output.retval == FELL_THROUGH {
            return Err(Error::Unusable("the tail call does not reach the program".into()));
        }
        Ok((RUN_NS / best) as u32 + 1)
    }

    fn warm(&self) -> u32 {
        WARM
    }

    fn least(&self) -> u32 {
        WARM
    }
}

/// Does a run again that a signal cut short (a stop, a resize of the terminal), unless the user wants to end.
pub(crate) fn uncut<T>(mut run: impl FnMut() -> millstream_kernel::Result<T>) -> Result<T> {
    loop {
        match run() {
            Err(e) if e.errno() == Some(libc::EINTR) && !os::interrupted() => {}
            result => return Ok(result?),
        }
    }
}

/// Results of a program on packets, as far as they matter for repeating it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The verdict for each packet.
    pub verdicts: Vec<u32>,
    /// Each packet afterwards.
    pub packets: Vec<Vec<u8>>,
    /// True if any packet was written to.
    pub writes: bool,
}

/// Runs a program once on each packet and returns the results; refuses programs that cannot be repeated.
///
/// # Errors
/// If the program changes a packet's length, or writes beyond what can be put back.
pub fn check_packets(name: &str, program: &Program, packets: &[Vec<u8>]) -> Result<Answers> {
    let mut answers = Answers { verdicts: Vec::new(), packets: Vec::new(), writes: false };
    for packet in packets {
        let out = uncut(|| program.test_run(&TestRun::packet(packet)))?;
        let restored = packet.len().min(RESTORED) & !1;
        if out.data.len() != packet.len() {
            return Err(Error::Unusable(format!(
                "{name} changes the packet's length, so that test runs would drift; use the live rig"
            )));
        }
        if out.data[restored..] != packet[restored..] {
            return Err(Error::Unusable(format!(
                "{name} writes beyond byte {restored} of the packet, which cannot be put back; use the live rig"
            )));
        }
        answers.writes |= out.data != *packet;
        answers.verdicts.push(out.retval);
        answers.packets.push(out.data);
    }
    Ok(answers)
}
