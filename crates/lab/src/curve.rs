//! Latency and loss over offered load, with sender and receiver on CPUs of their own.
//!
//! The receiving interface polls in a kernel thread on another CPU, as with a card whose interrupts go there:
//! only so can the program under test fall behind. Frames come in bursts of a batch; the ring between the two
//! holds 256. Frames for which the ring had no room are lost. These figures show behaviour under load; they
//! scatter by a fifth, and are not for ratios.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::error::Result;
use crate::os;
use crate::rig::{FrameLatencies, NapiThread, SendResult, TestRig};

/// Steps of the search for the highest rate without loss: to 1/256 of the capacity.
const STEPS: usize = 8;
/// Runs at most before the first point: of the capacity, and of the search.
pub const MOST_SEARCH_RUNS: usize = 1 + STEPS;

/// Result at one offered load.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LoadPoint {
    /// Frames a second that were to be sent, in millions.
    pub target_mpps: f64,
    /// Those that were sent.
    pub offered_mpps: f64,
    /// Those that the program under test got.
    pub received_mpps: f64,
    /// The share that was lost.
    pub loss: f64,
    /// Time from generator to return, from a run of its own at the same rate, whose stamps cost the generator
    /// time.
    pub latency: FrameLatencies,
}

/// Loss and latency over load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LoadCurve {
    /// CPU of the sender.
    pub sender_cpu: usize,
    /// CPU of the receiver.
    pub receiver_cpu: usize,
    /// The share of the time in which the receiver had frames, and other work of the machine ran in its
    /// place.
    pub receiver_wait_share: f64,
    /// Frames a burst.
    pub batch: u32,
    /// Highest rate that the program under test receives, with losses allowed, in millions of frames a
    /// second.
    pub capacity_mpps: f64,
    /// The highest rate found at which none was lost.
    pub loss_free_mpps: f64,
    /// By rising load.
    pub points: Vec<LoadPoint>,
}

impl LoadCurve {
    /// Reasons not to rely on the curve.
    pub fn reliability_warning(&self) -> Option<String> {
        const DISTURBED: f64 = 0.05;
        (self.receiver_wait_share > DISTURBED).then(|| {
            format!(
                "under load, the receiver waited for other work in {:.0} % of the time: measure again alone",
                100.0 * self.receiver_wait_share
            )
        })
    }
}

/// Draws the curve with `points` loads up to 1.2 times the capacity, `seconds` each. Both rigs have the
/// same program and traffic; `stamped` has stamps.
///
/// # Errors
/// If there is no second CPU, or the kernel refuses an operation.
pub fn curve(plain: &TestRig, stamped: &TestRig, points: usize, seconds: f64) -> Result<LoadCurve> {
    let receivers = [plain.receive_in_thread()?, stamped.receive_in_thread()?];
    let waited = || receivers.iter().map(NapiThread::run_delay).sum::<u64>();
    let (start, waited_before) = (os::now_ns(), waited());
    let offer = |rig: &TestRig, rate| offered(rig, rate, seconds);
    let (sent, received, _) = offer(plain, None)?;
    let capacity = received as f64 / sent.ns as f64 * 1e9;
    let mut out = LoadCurve {
        sender_cpu: plain.cpu(),
        receiver_cpu: receivers[0].cpu,
        receiver_wait_share: 0.0,
        batch: plain.batch(),
        capacity_mpps: capacity / 1e6,
        loss_free_mpps: loss_free(plain, capacity, seconds)? / 1e6,
        points: Vec::new(),
    };
    for i in 1..=points {
        if os::interrupted() {
            break;
        }
        let rate = 1.2 * capacity * i as f64 / points as f64;
        let (sent, received, lost) = offer(plain, Some(rate))?;
        let latency = stamped.latencies_while(|| offer(stamped, Some(rate)).map(drop))?;
        let mpps = |frames: u64| frames as f64 / sent.ns as f64 * 1e3;
        out.points.push(LoadPoint {
            target_mpps: rate / 1e6,
            offered_mpps: mpps(sent.packets),
            received_mpps: mpps(received),
            loss: lost as f64 / sent.packets.max(1) as f64,
            latency,
        });
    }
    out.receiver_wait_share = (waited() - waited_before) as f64 / (os::now_ns() - start) as f64;
    Ok(out)
}

/// Sends at a rate for a time. Returns the frames sent, received and lost.
fn offered(rig: &TestRig, rate: Option<f64>, seconds: f64) -> Result<(SendResult, u64, u64)> {
    let before = rig.counts()?;
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs_f64(seconds));
            stop.store(true, Ordering::Relaxed);
        });
        rig.generator_loop(&stop, rate)
    })?;
    let counts = rig.counts()? - before;
    Ok((sent, counts.received, counts.lost()))
}

/// By bisection: a rate is good if nothing is lost at it.
fn loss_free(rig: &TestRig, capacity: f64, seconds: f64) -> Result<f64> {
    let (mut good, mut bad) = (0.0, 1.2 * capacity);
    for _ in 0..STEPS {
        let rate = (good + bad) / 2.0;
        let (sent, _, lost) = offered(rig, Some(rate), seconds)?;
        if lost == 0 {
            // The rate that was reached: a sender that cannot keep up proves no higher rate.
            good = f64::max(good, sent.packets as f64 / sent.ns as f64 * 1e9);
        } else {
            bad = rate;
        }
        if good >= bad || lost == 0 && good < 0.95 * rate {
            break;
        }
    }
    Ok(good)
}
