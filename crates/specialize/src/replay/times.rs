//! Times of both programs, on the packets that were kept, by the laboratory's harness.
//!
//! Programs are timed as they are, with the helpers that they call, on the maps of their replay. A test run
//! takes packets of one length, so those of the commonest length are taken; the bytes beyond those that the
//! harness restores are the same in all. A program that changes a packet's length, or is no XDP program,
//! cannot be timed in this way.

use std::time::{Duration, Instant};

use millstream_kernel::AttachType;
use millstream_lab::measure::{
    LoadAttributes, MeasuredSide, MeasurementPlan, RESTORED, TestRunHarness, check_packets, measure_windows,
};
use millstream_lab::stats::{RatioEstimate, judge};
use millstream_lab::{Error, Result};
use millstream_loader::ProgramError;
use millstream_object::LinkedProgram;
use millstream_rng::Rng;

use super::sample::PacketSample;
use super::sandbox::ReplaySandbox;
use super::{PacketKind, ReplayCase};

/// Packets that take turns.
const PACKETS: usize = 128;
/// Pairs of times, each from a window of [`WINDOW`] seconds.
const WINDOWS: usize = 12;
const WINDOW: f64 = 0.03;
/// Copies of each, so that the comparison does not depend on their places in memory alone.
const COPIES: usize = 3;
/// Loading time from which a program is long: its place in memory matters little, and copies would take
/// seconds.
const SLOW: Duration = Duration::from_millis(100);

/// Time of the candidate over that of the original.
pub(super) fn ratio(
    case: &ReplayCase<'_, '_>,
    sides: &[ReplaySandbox<'_>; 3],
    samples: &[PacketSample],
    cpu: usize,
) -> Result<RatioEstimate> {
    if case.compiler.packet_kind() != Some(PacketKind::Xdp) {
        return Err(Error::Unusable("only XDP programs are timed by test runs".to_owned()));
    }
    let kind = &case.compiler.described().kind;
    let attach = kind.attach_type.map_or(AttachType::XDP, |a| AttachType(a.0));
    let alike = LoadAttributes { attach, flags: kind.load_flags() };
    let (func, name) = (case.compiler.program(), &case.compiler.described().name);
    let failed = |source: ProgramError| Error::Program { name: name.clone(), source: Box::new(source) };
    let load =
        |side: &ReplaySandbox<'_>, linked: &LinkedProgram| side.session().load(func, linked).map_err(failed);
    let original = case.compiler.object().link(func)?;
    let packets = alike_packets(samples);
    let start = Instant::now();
    let mut first = [Some(load(&sides[0], &original)?), None];
    let writes = first[0].as_ref().map(|it| check_packets(name, it, &packets)).transpose()?;
    let mut slowest = start.elapsed();
    if slowest < SLOW {
        let start = Instant::now();
        first[1] = Some(load(&sides[2], case.candidate)?);
        slowest = slowest.max(start.elapsed());
    }
    let copies = if slowest < SLOW { COPIES } else { 1 };
    let mut harness =
        TestRunHarness::new(alike, &packets, writes.is_some_and(|w| w.writes), cpu)?.with_default_priority();
    let [mut original_first, mut candidate_first] = first;
    let mut measured = [
        MeasuredSide::new("the original", || {
            original_first.take().map_or_else(|| load(&sides[0], &original), Ok)
        }),
        MeasuredSide::new("the candidate", || {
            candidate_first.take().map_or_else(|| load(&sides[2], case.candidate), Ok)
        }),
    ];
    let plan = MeasurementPlan { copies, generation: WINDOW, ..MeasurementPlan::test_run(0.0) };
    let found = measure_windows(&mut harness, &mut measured, &plan, WINDOWS, case.goes_on.0)?;
    Ok(judge(&found.pairs(0, 1), &mut Rng::new(plan.seed)))
}

/// Packets of the commonest length.
fn alike_packets(samples: &[PacketSample]) -> Vec<Vec<u8>> {
    let mut lengths: Vec<usize> = samples.iter().map(|s| s.packet.len()).collect();
    lengths.sort_unstable();
    let commonest = lengths.chunk_by(|a, b| a == b).max_by_key(|run| run.len());
    let length = commonest.and_then(<[usize]>::first).copied().unwrap_or(0);
    let mut packets: Vec<Vec<u8>> =
        samples.iter().map(|s| &s.packet).filter(|p| p.len() == length).take(PACKETS).cloned().collect();
    if let Some((first, others)) = packets.split_first_mut() {
        let rest = RESTORED.min(length);
        others.iter_mut().for_each(|p| p[rest..].copy_from_slice(&first[rest..]));
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commonest_length_is_taken_and_ends_alike() {
        let sample =
            |length: usize, byte: u8| PacketSample { packet: vec![byte; length], context: Vec::new() };
        let packets =
            alike_packets(&[sample(60, 1), sample(200, 2), sample(200, 3), sample(60, 4), sample(200, 5)]);
        assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [200, 200, 200]);
        assert_eq!(packets.iter().map(|p| p[0]).collect::<Vec<_>>(), [2, 3, 5]);
        assert!(packets.iter().all(|p| p[RESTORED..] == packets[0][RESTORED..]));
        assert!(alike_packets(&[]).is_empty());
    }
}
