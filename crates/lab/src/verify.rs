//! Checks that the rig gives back the frames that it should.
//!
//! The expected frames come from the caller, or from the answers of the program to the same frames one by one
//! (`BPF_PROG_TEST_RUN`, coming in at the same interface). Frames that it transmits or redirects must come
//! back, each as often as it was sent; all others must not. The order is not compared: programs with two
//! ports have two queues.

use std::collections::HashMap;

use millstream_kernel::{KernelProgram, TestRun};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::measure::{REDIRECT, retry_interrupted};
use crate::rig::{TestRig, TrafficSequence};

/// `XDP_TX`.
const TX: u32 = 3;

/// A verdict, and the frame as the program left it.
pub type ProgramOutput = (u32, Vec<u8>);

/// Comparison of the returned frames with the expected ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FrameVerification {
    /// Frames sent.
    pub sent: usize,
    /// Frames that should have come back.
    pub expected: usize,
    /// Frames that came back.
    pub returned: usize,
    /// Of the expected, those that did not come back, or not as they should be.
    pub missing: usize,
    /// Of those that came back, those that should not have.
    pub unexpected: usize,
}

impl FrameVerification {
    /// Returns true if no frame is missing or unexpected.
    pub fn is_good(&self) -> bool {
        self.missing == 0 && self.unexpected == 0
    }
}

/// Answers of a program to each frame coming in at the rig's test port. Attaches it there: only an interface
/// with a program has a receive queue to come in by.
///
/// # Errors
/// If the kernel refuses an operation.
pub fn answers(rig: &TestRig, program: &KernelProgram, frames: &[Vec<u8>]) -> Result<Vec<ProgramOutput>> {
    rig.attach(program)?;
    let port = rig.test_port();
    rig.namespace().enter(|| frames.iter().map(|frame| answer(program, frame, port)).collect())?
}

fn answer(program: &KernelProgram, frame: &[u8], port: u32) -> Result<ProgramOutput> {
    // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let words = [0, frame.len() as u32, 0, port, 0, 0];
    let context: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let run = TestRun { context: &context, ..TestRun::packet(frame) };
    let out = retry_interrupted(|| program.test_run(&run))?;
    Ok((out.retval, out.data))
}

/// The verdicts of a program on frames, by test runs without a rig.
///
/// # Errors
/// If the kernel refuses an operation.
pub fn verdicts(program: &KernelProgram, frames: &[Vec<u8>]) -> Result<Vec<u32>> {
    let verdict =
        |frame: &Vec<u8>| Ok(retry_interrupted(|| program.test_run(&TestRun::packet(frame)))?.retval);
    frames.iter().map(verdict).collect()
}

/// Reports whether a frame with this verdict is transmitted or redirected.
pub fn is_sent(verdict: u32) -> bool {
    matches!(verdict, TX | REDIRECT)
}

/// Sends the first `count` frames of the traffic's sequence through the program that is attached, and
/// compares the returned frames with its answers.
///
/// # Errors
/// If the kernel refuses an operation, or a signal cut the sending short.
pub fn verify(
    rig: &TestRig,
    traffic: &TrafficSequence<'_>,
    answers: &[ProgramOutput],
    count: usize,
) -> Result<FrameVerification> {
    let sent = traffic.sequence.iter().cycle().take(count);
    let due: Vec<&[u8]> = sent
        .map(|&i| &answers[i as usize])
        .filter(|(verdict, _)| matches!(*verdict, TX | REDIRECT))
        .map(|(_, frame)| frame.as_slice())
        .collect();
    verify_against(rig, &due, count)
}

/// Sends the first `count` frames of the traffic's sequence through the program that is attached, and
/// compares the returned frames with `due`, those that must come back.
///
/// # Errors
/// As for [`verify`].
pub fn verify_against(rig: &TestRig, due: &[&[u8]], count: usize) -> Result<FrameVerification> {
    let longest = due.iter().map(|f| f.len()).max().unwrap_or(0);
    let came = rig.capture(count as u32, longest + 64)?;
    if came.sent != count {
        return Err(Error::Unusable("the sending was interrupted".into()));
    }
    let (missing, unexpected) = difference(due, &came.frames);
    Ok(FrameVerification {
        sent: count,
        expected: due.len(),
        returned: came.frames.len(),
        missing,
        unexpected,
    })
}

/// Numbers of frames of each that are not in the other, with multiplicity.
fn difference(expected: &[&[u8]], got: &[Vec<u8>]) -> (usize, usize) {
    let mut balance: HashMap<&[u8], i64> = HashMap::new();
    for frame in expected {
        *balance.entry(frame).or_default() += 1;
    }
    for frame in got {
        *balance.entry(frame).or_default() -= 1;
    }
    let sum = |sign: i64| balance.values().map(|n| (n * sign).max(0) as usize).sum();
    (sum(1), sum(-1))
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn frames_are_compared_with_their_multiplicity() {
        let (a, b): (&[u8], &[u8]) = (&[1], &[2]);
        assert_eq!(difference(&[a, a, b], &[vec![2], vec![1], vec![1]]), (0, 0));
        assert_eq!(difference(&[a, a], &[vec![1]]), (1, 0));
        assert_eq!(difference(&[a], &[vec![2]]), (1, 1));
        assert_eq!(difference(&[], &[vec![2], vec![2]]), (0, 2));
    }
}
