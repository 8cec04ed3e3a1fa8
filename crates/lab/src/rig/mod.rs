//! The rig: a veth pair in a namespace of its own, with traffic from the kernel.
//!
//! The generator is run by `BPF_PROG_TEST_RUN` with live frames and redirects each frame to
//! [`GENERATOR_PORT`]; it arrives at [`TEST_PORT`], where the program under test runs natively. Frames that
//! it transmits come back to the generator's end, where a program counts and drops them (without a program of
//! its own a veth device takes no frame). A second pair takes the frames that a program redirects to
//! [`SECOND_PORT`], to the same end. The generator stays attached to the loopback, because a test run of a
//! program that is attached nowhere waits for two updates of the XDP dispatcher.
//!
//! Everything runs on the CPU of the sending thread: the receiver works in the softirq of the generator's
//! call. So nothing is lost, and the time of a send is the sum of generator, devices and program under test.
//! (Linux before 6.5 may leave the receiver to ksoftirqd, to which the sending thread gives way there.)
//!
//! Loss is exact: the generator counts the frames it makes, the device of the program under test those it
//! receives.
//!
//! Invariant: a rig leaves nothing behind when dropped, and only the name of its namespace when killed, which
//! the next rig removes ([`crate::stale_resources`]).

mod capture;
mod generator;
mod napi;
mod ports;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_kernel::{
    KernelProgram, Link, Namespace, TestOutput, TestRun, XdpMode, create_veth, probe, set_up_pair,
};

use serde::Serialize;

pub use capture::FrameLatencies;
pub use generator::{MAX_FRAME, MIN_FRAME, TrafficSequence};
pub use napi::NapiThread;
pub use ports::{GENERATOR_PORT, SECOND_PORT, TEST_PORT};

use crate::error::{Error, Result};
use crate::os;
use crate::stale_resources::{self, NamespaceName};
use capture::{FrameCapture, LatencyProbe};
use generator::FrameGenerator;
use ports::{FrameSink, SECOND_PEER, device_counts};

const LOOPBACK: u32 = 1;
/// Frames a call of the generator loop: some milliseconds, within which it notices that it is to stop.
const CHUNK: u32 = 16_384;
/// Frames in one burst of a paced sender: half the capacity of a veth's ring.
const MAX_BURST: f64 = 128.0;
/// About how long a call of the paced generator takes, in seconds: much longer than beginning and ending it.
const CALL: f64 = 0.05;
/// Shorter waits are spun away: the timer would be late by as much.
const SLEEP: Duration = Duration::from_micros(200);
/// Longest wait for frames that are under way.
const DRAIN: Duration = Duration::from_millis(200);

/// Configuration of a rig.
#[derive(Clone, Debug)]
pub struct RigConfig {
    /// The CPU that sends and receives; the last one allowed if not said.
    pub cpu: Option<usize>,
    /// Number of CPUs that send and receive, each by queues of its own; all send the same frames, from other
    /// places of the order on.
    pub lanes: usize,
    /// Frames a batch, 1 to 256. Latency is the place in the batch.
    pub batch: u32,
    /// Put the time into each frame's metadata, for latencies. Costs about 45 ns per frame.
    pub stamps: bool,
    /// Send before all other work of the machine (nice -20), and receive so where a thread does; keep to a
    /// rate by waiting in the kernel, not by the clock of a process.
    pub urgent: bool,
}

impl Default for RigConfig {
    fn default() -> Self {
        RigConfig { cpu: None, lanes: 1, batch: 64, stamps: false, urgent: false }
    }
}

/// Frames sent, and the time they took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendResult {
    /// Frames.
    pub packets: u64,
    /// Nanoseconds by `CLOCK_MONOTONIC_RAW`.
    pub ns: u64,
}

impl SendResult {
    /// Nanoseconds a frame.
    pub fn ns_per_packet(&self) -> f64 {
        self.ns as f64 / self.packets.max(1) as f64
    }
}

/// Fates of the frames, since the rig was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FrameCounts {
    /// Made by the generator.
    pub sent: u64,
    /// Given to the program under test.
    pub received: u64,
    /// Transmitted by the program under test and counted at the other end.
    pub returned: u64,
    /// Bytes of these.
    pub returned_bytes: u64,
    /// Transmitted by the program under test and lost for want of room at the other end.
    pub lost_returning: u64,
}

impl FrameCounts {
    /// Frames lost on the way to the program under test or back. Frames that the program drops are not lost.
    pub fn lost(&self) -> u64 {
        self.sent - self.received.min(self.sent) + self.lost_returning
    }
}

impl std::ops::Sub for FrameCounts {
    type Output = FrameCounts;

    fn sub(self, before: FrameCounts) -> FrameCounts {
        FrameCounts {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            returned: self.returned - before.returned,
            returned_bytes: self.returned_bytes - before.returned_bytes,
            lost_returning: self.lost_returning - before.lost_returning,
        }
    }
}

/// Result of [`TestRig::capture`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureResult {
    /// Frames sent.
    pub sent: usize,
    /// Frames that came back, in order where one port sent them.
    pub frames: Vec<Vec<u8>>,
}

/// A veth pair with a generator at one end and the program under test at the other.
#[derive(Debug)]
pub struct TestRig {
    config: RigConfig,
    /// Of each lane the CPU.
    cpus: Vec<usize>,
    // Fields are dropped in this order: first links and programs, then the name, last the namespace.
    test_link: Mutex<Option<Link>>,
    sink_links: [Link; 2],
    sink: FrameSink,
    traffic: Mutex<Option<LoadedTraffic>>,
    /// Frames made by generators that were replaced.
    retired: AtomicU64,
    generator_port: u32,
    test_port: u32,
    second_port: u32,
    name: NamespaceName,
    namespace: Namespace,
}

#[derive(Debug)]
struct LoadedTraffic {
    /// One a lane.
    generators: Vec<Arc<FrameGenerator>>,
    /// Of the first.
    link: Link,
}

impl LoadedTraffic {
    fn generated(&self) -> u64 {
        self.generators.iter().map(|g| g.generated()).sum()
    }
}

impl TestRig {
    /// Makes a rig. Removes the leftovers of a killed one.
    ///
    /// # Errors
    /// `EPERM` without the capabilities (`millstream doctor` says which), or if the kernel refuses an
    /// operation.
    pub fn new(config: RigConfig) -> Result<Self> {
        for path in stale_resources::clean()? {
            tracing::info!("removed what a killed laboratory left: {}", path.display());
        }
        if !(1..=256).contains(&config.batch) {
            return Err(Error::Unusable(format!(
                "batches of {} frames; 1 to 256 are possible",
                config.batch
            )));
        }
        if matches!(probe::live_frames(), probe::ProbeOutcome::No(_)) {
            return Err(Error::Missing { what: "test runs that send live frames", since: "5.18" });
        }
        let cpus = lanes(&config)?;
        let namespace = Namespace::new()?;
        let sink = FrameSink::new()?;
        let (name, ports, sink_links) = namespace.enter(|| {
            let name = NamespaceName::new()?;
            silence();
            // One queue a lane: one ring, hence packets in order.
            let queues = cpus.len() as u32;
            let (a, b) = create_veth(GENERATOR_PORT, TEST_PORT, queues)?;
            let (c, d) = create_veth(SECOND_PORT, SECOND_PEER, queues)?;
            let link = |port| Link::attach_xdp(&sink.program, port, XdpMode::Native);
            let links = [link(a)?, link(d)?];
            set_up_pair((a, b))?;
            set_up_pair((c, d))?;
            Ok::<_, Error>((name, [a, b, c], links))
        })??;
        let [generator_port, test_port, second_port] = ports;
        Ok(TestRig {
            config,
            cpus,
            test_link: Mutex::new(None),
            sink_links,
            sink,
            traffic: Mutex::new(None),
            retired: AtomicU64::new(0),
            generator_port,
            test_port,
            second_port,
            name,
            namespace,
        })
    }

    /// The interface of the program under test, by index in the rig's namespace. Its name is [`TEST_PORT`].
    pub fn test_port(&self) -> u32 {
        self.test_port
    }

    /// The interface [`SECOND_PORT`], by index in the rig's namespace.
    pub fn second_port(&self) -> u32 {
        self.second_port
    }

    /// The generator's interface, by index in the rig's namespace.
    pub fn generator_port(&self) -> u32 {
        self.generator_port
    }

    /// The namespace, for whoever attaches by himself.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The name of the namespace, as `ip netns exec` takes it.
    pub fn name(&self) -> String {
        self.name.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Frames a batch.
    pub fn batch(&self) -> u32 {
        self.config.batch
    }

    /// From now on, the test port polls in a kernel thread on another CPU than the sender's, and gives that
    /// CPU. Then frames can be lost. Needs a program at the test port; detaching it ends this.
    ///
    /// # Errors
    /// If there is no other CPU or no program, or the kernel refuses an operation.
    pub fn receive_in_thread(&self) -> Result<NapiThread> {
        let other = os::allowed_cpus().into_iter().find(|c| !self.cpus.contains(c));
        let other =
            other.ok_or_else(|| Error::Unusable("receiving on another CPU needs a second one".into()))?;
        let before = napi::threads()?;
        self.namespace.enter(|| napi::set_threaded(TEST_PORT))??;
        let new: Vec<u32> = napi::threads()?.into_iter().filter(|pid| !before.contains(pid)).collect();
        for &pid in &new {
            os::pin_thread(pid, other).map_err(|e| Error::io(format!("moving thread {pid}"), e))?;
            if self.config.urgent {
                os::raise_priority(pid);
            }
        }
        match new[..] {
            [thread] => Ok(NapiThread { cpu: other, thread }),
            _ => Err(Error::Unusable(format!(
                "{} polling threads came up, not one: is a program attached?",
                new.len()
            ))),
        }
    }

    /// The CPU that sends; of several the first.
    pub fn cpu(&self) -> usize {
        self.cpus[0]
    }

    /// Attaches the program under test, natively, in the place of the one before.
    ///
    /// # Errors
    /// If the kernel refuses the program, for example one that is not XDP.
    pub fn attach(&self, program: &KernelProgram) -> Result<()> {
        let mut held = lock(&self.test_link);
        match &*held {
            Some(link) => link.replace_any(program)?,
            None => {
                let port = self.test_port;
                *held = Some(self.namespace.enter(|| Link::attach_xdp(program, port, XdpMode::Native))??);
            }
        }
        Ok(())
    }

    /// Detaches the program under test.
    pub fn detach(&self) {
        *lock(&self.test_link) = None;
    }

    /// Loads frames and their order. Senders that are at work go on with these after their present call.
    ///
    /// # Errors
    /// If a frame cannot be sent, or the kernel refuses an operation.
    pub fn load_traffic(&self, traffic: &TrafficSequence<'_>) -> Result<()> {
        let paced = self.config.urgent.then_some(self.config.batch);
        let lane = |lane: usize| {
            let generator = FrameGenerator::new(traffic, self.generator_port, self.config.stamps, paced)?;
            generator.begin_at(lane * traffic.sequence.len() / self.cpus.len());
            Ok(Arc::new(generator))
        };
        let generators = (0..self.cpus.len()).map(lane).collect::<Result<Vec<_>>>()?;
        let program = &generators[0].program;
        let mut held = lock(&self.traffic);
        match &mut *held {
            Some(loaded) => {
                loaded.link.replace_any(program)?;
                self.retired.fetch_add(loaded.generated(), Ordering::Relaxed);
                loaded.generators = generators;
            }
            None => {
                let link =
                    self.namespace.enter(|| Link::attach_xdp(program, LOOPBACK, XdpMode::Generic))??;
                *held = Some(LoadedTraffic { generators, link });
            }
        }
        Ok(())
    }

    /// Attaches another generator where generators are attached.
    fn put_on_loopback(&self, program: &KernelProgram) -> Result<()> {
        match &*lock(&self.traffic) {
            Some(loaded) => Ok(loaded.link.replace_any(program)?),
            None => Ok(()),
        }
    }

    /// Gives the frames another order, of the same length, from the next frame on, also while they are being
    /// sent.
    ///
    /// # Errors
    /// If no traffic is loaded, or the sequence does not fit it.
    pub fn reorder(&self, sequence: &[u32]) -> Result<()> {
        self.generators()?.iter().try_for_each(|generator| generator.reorder(sequence))
    }

    /// Starts the sequence again from its first frame.
    ///
    /// # Errors
    /// If no traffic is loaded.
    pub fn rewind(&self) -> Result<()> {
        for (lane, generator) in self.generators()?.iter().enumerate() {
            generator.begin_at(lane * generator.order() / self.cpus.len());
        }
        Ok(())
    }

    /// Sends `n` frames.
    ///
    /// # Errors
    /// If no traffic is loaded, or the kernel refuses an operation.
    pub fn send(&self, n: u32) -> Result<SendResult> {
        self.until_received(self.enter(|sender| sender.send(n))?)
    }

    /// Waits for frames that are under way after a send, so that a detachment afterwards loses none of them.
    fn until_received(&self, sent: Result<SendResult>) -> Result<SendResult> {
        if os::may_be_in_flight() {
            self.counts()?;
        }
        sent
    }

    /// Sends until `stop`, as many frames as go on all lanes, or `rate` frames per second on the first. For a
    /// thread of its own.
    ///
    /// # Errors
    /// As for [`TestRig::send`].
    pub fn generator_loop(&self, stop: &AtomicBool, rate: Option<f64>) -> Result<SendResult> {
        self.until_received(self.generate(stop, rate))
    }

    fn generate(&self, stop: &AtomicBool, rate: Option<f64>) -> Result<SendResult> {
        if let Some(rate) = rate {
            return self.enter(|sender| sender.send_paced(stop, rate))?;
        }
        std::thread::scope(|scope| {
            let lane = |lane| move || self.enter_lane(lane, |sender| sender.send_until(stop))?;
            let others: Vec<_> = (1..self.cpus.len()).map(|n| scope.spawn(lane(n))).collect();
            let mut total = lane(0)()?;
            for other in others {
                let sent = other.join().map_err(|_| Error::Unusable("a sender came to grief".into()))??;
                total = SendResult { packets: total.packets + sent.packets, ns: total.ns.max(sent.ns) };
            }
            Ok(total)
        })
    }

    /// Runs `f` in a thread in the rig's namespace, tied to its (first) CPU, with the means to send.
    ///
    /// # Errors
    /// If the thread cannot be brought there.
    pub fn enter<R: Send>(&self, f: impl FnOnce(&mut FrameSender<'_>) -> R + Send) -> Result<R> {
        self.enter_lane(0, f)
    }

    fn enter_lane<R: Send>(
        &self,
        lane: usize,
        f: impl FnOnce(&mut FrameSender<'_>) -> R + Send,
    ) -> Result<R> {
        let cpu = self.cpus[lane];
        self.namespace.enter(|| {
            os::pin_to_cpu(cpu).map_err(|e| Error::io(format!("moving to CPU {cpu}"), e))?;
            match self.config.urgent {
                true => os::raise_sender_priority(),
                false => os::prepare_sender(),
            }
            Ok(f(&mut FrameSender { rig: self, lane, output: TestOutput::default() }))
        })?
    }

    /// Sends `n` frames from the sequence's beginning, and returns the frames that come back, at most
    /// `longest` bytes of each.
    ///
    /// # Errors
    /// As for [`TestRig::send`].
    pub fn capture(&self, n: u32, longest: usize) -> Result<CaptureResult> {
        let capture = FrameCapture::new(&self.sink, n as usize, longest)?;
        self.rewind()?;
        let sent = self.instead_of_the_sink(&capture.program, || self.send(n))?.packets as usize;
        Ok(CaptureResult { sent, frames: capture.frames() })
    }

    /// Sends `n` frames and says how long those were under way that came back. For a rig with
    /// [`RigConfig::stamps`]; the program under test must leave metadata alone.
    ///
    /// # Errors
    /// As for [`TestRig::send`].
    pub fn latencies(&self, n: u32) -> Result<FrameLatencies> {
        self.latencies_while(|| self.send(n).map(drop))
    }

    /// As [`TestRig::latencies`], for frames sent while `f` runs.
    ///
    /// # Errors
    /// Errors of `f`, and those of [`TestRig::send`].
    pub fn latencies_while(&self, f: impl FnOnce() -> Result<()>) -> Result<FrameLatencies> {
        if !self.config.stamps {
            return Err(Error::Unusable("a rig without stamps has no latencies".into()));
        }
        let watch = LatencyProbe::new(&self.sink)?;
        self.instead_of_the_sink(&watch.program, f)?;
        Ok(watch.latencies())
    }

    /// Puts a program into the sink's place for good: frames are no longer counted as returned.
    pub(crate) fn replace_sink(&self, program: &KernelProgram) -> Result<()> {
        for link in &self.sink_links {
            link.replace_any(program)?;
        }
        Ok(())
    }

    /// Puts a program into the sink's place for as long as `f` takes, and until all frames came back.
    fn instead_of_the_sink<R>(&self, program: &KernelProgram, f: impl FnOnce() -> Result<R>) -> Result<R> {
        for link in &self.sink_links {
            link.replace_any(program)?;
        }
        let result = f().and_then(|r| self.counts().map(|_| r));
        for link in &self.sink_links {
            link.replace_any(&self.sink.program)?;
        }
        result
    }

    /// Fates of the frames so far. Waits a little for those that are under way; call it when no one sends.
    ///
    /// # Errors
    /// If the devices' counters cannot be read.
    pub fn counts(&self) -> Result<FrameCounts> {
        self.namespace.enter(|| {
            let end = os::now_ns() + DRAIN.as_nanos() as u64;
            loop {
                let counts = self.counts_now()?;
                let dropped = device_counts(TEST_PORT)?.rx_dropped;
                let under_way = counts.sent > counts.received + dropped;
                if !under_way || os::now_ns() > end {
                    // One more look, for frames on their way back.
                    return self.counts_now();
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        })?
    }

    /// The counters as they stand; for a thread in the namespace.
    fn counts_now(&self) -> Result<FrameCounts> {
        let device = device_counts(TEST_PORT)?;
        let (returned, returned_bytes) = self.sink.counts();
        let current = lock(&self.traffic).as_ref().map_or(0, LoadedTraffic::generated);
        Ok(FrameCounts {
            sent: self.retired.load(Ordering::Relaxed) + current,
            received: device.rx_packets,
            returned,
            returned_bytes,
            lost_returning: device.tx_dropped + device_counts(SECOND_PORT)?.tx_dropped,
        })
    }

    fn generators(&self) -> Result<Vec<Arc<FrameGenerator>>> {
        let held = lock(&self.traffic);
        let loaded = held.as_ref().ok_or_else(|| Error::Unusable("no traffic is loaded".into()))?;
        Ok(loaded.generators.clone())
    }
}

/// Sends from a thread in the rig's namespace.
#[derive(Debug)]
pub struct FrameSender<'a> {
    rig: &'a TestRig,
    lane: usize,
    output: TestOutput,
}

impl FrameSender<'_> {
    /// Sends `n` frames; fewer if a signal cuts it short.
    ///
    /// # Errors
    /// If no traffic is loaded, or the kernel refuses an operation.
    pub fn send(&mut self, n: u32) -> Result<SendResult> {
        let generator = self.generator()?;
        self.send_by(&generator, &generator.program, n)
    }

    fn generator(&self) -> Result<Arc<FrameGenerator>> {
        Ok(self.rig.generators()?.swap_remove(self.lane))
    }

    fn send_by(&mut self, generator: &FrameGenerator, program: &KernelProgram, n: u32) -> Result<SendResult> {
        let run = TestRun {
            data: &generator.base,
            repeat: n,
            live_frames: true,
            batch: self.rig.config.batch,
            ..TestRun::default()
        };
        let before = generator.generated();
        let start = os::now_ns();
        let result = program.test_run_into(&run, &mut self.output);
        let ns = os::now_ns() - start;
        match result {
            Err(e) if e.errno() != Some(libc::EINTR) => Err(e.into()),
            _ => Ok(SendResult { packets: generator.generated() - before, ns }),
        }
    }

    /// Fates of the frames so far, without waiting.
    ///
    /// # Errors
    /// If the devices' counters cannot be read.
    pub fn counts(&self) -> Result<FrameCounts> {
        self.rig.counts_now()
    }

    fn send_until(&mut self, stop: &AtomicBool) -> Result<SendResult> {
        let mut total = SendResult::default();
        while !stop.load(Ordering::Relaxed) {
            add(&mut total, self.send(CHUNK)?);
        }
        Ok(total)
    }

    /// At a rate: by the paced generator, or in calls that are made when they are due.
    fn send_paced(&mut self, stop: &AtomicBool, rate: f64) -> Result<SendResult> {
        if !(rate.is_finite() && rate > 0.0) {
            return Err(Error::Unusable(format!("a rate of {rate} frames per second")));
        }
        let generator = self.generator()?;
        let Some(paced) = &generator.paced else { return self.send_by_clock(stop, rate) };
        let batch = self.rig.config.batch;
        // Some calls per second, so that `stop` is noticed; each of whole bursts.
        let bursts = (CALL * rate / f64::from(batch)).clamp(1.0, f64::from(CHUNK / batch)) as u32;
        generator.set_gap((f64::from(batch) / rate * 1e9) as u64);
        self.rig.put_on_loopback(paced)?;
        let (mut total, start) = (SendResult::default(), os::now_ns());
        let sent = (|| {
            while !stop.load(Ordering::Relaxed) {
                add(&mut total, self.send_by(&generator, paced, bursts * batch)?);
            }
            Ok(())
        })();
        total.ns = os::now_ns() - start;
        self.rig.put_on_loopback(&generator.program)?;
        sent.map(|()| total)
    }

    /// A batch as soon as one is due. Behind its time, it sends on without a pause, so that bursts stay small
    /// where the sender keeps up.
    fn send_by_clock(&mut self, stop: &AtomicBool, rate: f64) -> Result<SendResult> {
        let (mut total, start) = (SendResult::default(), os::now_ns());
        let batch = f64::from(self.rig.config.batch);
        while !stop.load(Ordering::Relaxed) {
            let due = (os::now_ns() - start) as f64 * rate / 1e9 - total.packets as f64;
            if due >= batch {
                add(&mut total, self.send(due.min(MAX_BURST.max(batch)) as u32)?);
                continue;
            }
            let wait = Duration::from_nanos(((batch - due) / rate * 1e9) as u64);
            if wait > SLEEP {
                std::thread::sleep((wait - SLEEP / 2).min(Duration::from_millis(10)));
            }
            std::hint::spin_loop();
        }
        total.ns = os::now_ns() - start;
        Ok(total)
    }
}

/// The CPU of each lane. A frame's queue is its CPU's number, by the number of queues.
fn lanes(config: &RigConfig) -> Result<Vec<usize>> {
    let allowed = os::allowed_cpus();
    let Some(first) = config.cpu.or_else(|| allowed.last().copied()) else {
        return Err(Error::Unusable("no CPU may be used".into()));
    };
    os::allowed(first)?;
    let mut cpus = vec![first];
    for cpu in allowed.into_iter().rev() {
        if cpus.len() < config.lanes && cpus.iter().all(|other| other % config.lanes != cpu % config.lanes) {
            cpus.push(cpu);
        }
    }
    match cpus.len() == config.lanes {
        true => Ok(cpus),
        false => Err(Error::Unusable(format!("{} lanes, where {} can be had", config.lanes, cpus.len()))),
    }
}

fn add(total: &mut SendResult, more: SendResult) {
    total.packets += more.packets;
    total.ns += more.ns;
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the stack from sending packets of its own (router solicitations, group reports), which would be
/// counted. A kernel without IPv6 has nothing to say and no such files.
fn silence() {
    for scope in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
    }
}
