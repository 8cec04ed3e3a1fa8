//! Comparing programs: which is faster on these packets, by how much, and how certain the result is.

use serde::Serialize;

use millstream_kernel::KernelProgram;
use millstream_rng::Rng;

use crate::error::{Error, Result};
use crate::image::InsnRange;
use crate::measure::{
    LiveHarness, MeasuredSide, MeasurementPlan, MeasurementResult, TestRunHarness, TimingHarness,
    check_packets, measure,
};
use crate::rig::TestRig;
use crate::stats::{RatioEstimate, judge};
use crate::subject::{InsnCounts, ProgramUnderTest};
use crate::verify::answers;

/// Way of running the programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimingMode {
    /// By `BPF_PROG_TEST_RUN`, packets put back.
    TestRun,
    /// By live frames on the rig.
    Live,
}

/// One program of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct SideReport {
    /// Its name.
    pub name: String,
    /// Median time, nanoseconds per packet, harness included.
    pub ns: f64,
    /// Without the empty program's time; for orientation, since execution overlaps.
    pub net_ns: f64,
    /// Bytes of machine code.
    pub jited_bytes: u32,
    /// Instructions of the machine code, executed or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jited_instructions: Option<usize>,
    /// BPF instructions executed a packet, by our interpreter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executed_instructions: Option<f64>,
    /// Instructions of the machine code executed a packet, without those of helpers ([`crate::image`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executed_jited: Option<InsnRange>,
    /// Against the first program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_first: Option<RatioEstimate>,
    /// Packets that it answers otherwise than the first does, of those compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers_differ: Option<usize>,
}

/// A comparison, with all that is needed to judge it.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// Way in which the programs were run.
    pub mode: TimingMode,
    /// Duration and resolution.
    pub plan: MeasurementPlan,
    /// The programs; the others are compared with the first.
    pub sides: Vec<SideReport>,
    /// Median time of an empty program of the same verdict: the harness.
    pub empty_ns: f64,
    /// The verdict that the empty program gives.
    pub empty_verdict: u32,
    /// Complete generations.
    pub generations: usize,
    /// Generations that had to be dropped.
    pub dropped: usize,
    /// Timed runs.
    pub runs: usize,
    /// The share of runs that took 15 % longer than their copy's floor.
    pub disturbed: f64,
    /// Distinct packets.
    pub packets: usize,
}

impl ComparisonReport {
    /// Reasons not to rely on this run.
    pub fn reliability_warnings(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.disturbed > 0.6 {
            doubts.push(format!(
                "{:.0} % of the runs were disturbed: measure again later",
                100.0 * self.disturbed
            ));
        }
        if self.dropped > 0 {
            doubts.push(format!("{} generations were dropped: measure again alone", self.dropped));
        }
        doubts
    }
}

/// Properties of a side that are known before it is timed.
struct SideProfile {
    jited_bytes: u32,
    counted: InsnCounts,
    verdicts: Vec<u32>,
    packets: Vec<Vec<u8>>,
}

/// Compares by test runs on these packets in turn, in the maps' present state.
///
/// # Errors
/// If a program cannot be repeated on the packets, or something else is running XDP programs.
pub fn compare_test_runs(
    subjects: &[ProgramUnderTest<'_>],
    packets: &[Vec<u8>],
    cpu: usize,
    plan: MeasurementPlan,
) -> Result<ComparisonReport> {
    const LOOPBACK: u32 = 1;
    let mut before = Vec::new();
    let mut writes = false;
    for subject in subjects {
        let program = subject.load()?;
        let answers = check_packets(&subject.name, &program, packets)?;
        writes |= answers.writes;
        before.push(SideProfile {
            jited_bytes: program.info()?.jited_len,
            counted: subject.count(packets, LOOPBACK)?,
            verdicts: answers.verdicts,
            packets: answers.packets,
        });
    }
    let verdict = common(before.first().map_or(&[], |b| &b.verdicts));
    let mut harness = TestRunHarness::new(alike(subjects)?, packets, writes, cpu)?;
    let empty = EmptyProgram { attributes: alike(subjects)?, verdict, rig: None };
    finish(TimingMode::TestRun, &mut harness, subjects, before, empty, packets.len(), plan)
}

/// Compares on a rig that has its traffic. `sample` are packets of it, for counts of instructions.
///
/// # Errors
/// If a frame is lost, or something else is running XDP programs.
pub fn compare_live(
    subjects: &[ProgramUnderTest<'_>],
    rig: &TestRig,
    sample: &[Vec<u8>],
    verdict: u32,
    plan: MeasurementPlan,
) -> Result<ComparisonReport> {
    let mut before = Vec::new();
    for subject in subjects {
        let program = subject.load()?;
        let counted = subject.count(sample, rig.test_port())?;
        let (verdicts, packets) = answers(rig, &program, sample)?.into_iter().unzip();
        before.push(SideProfile { jited_bytes: program.info()?.jited_len, counted, verdicts, packets });
    }
    let mut harness = LiveHarness::new(rig, alike(subjects)?)?;
    let empty = EmptyProgram { attributes: alike(subjects)?, verdict, rig: Some(rig) };
    finish(TimingMode::Live, &mut harness, subjects, before, empty, sample.len(), plan)
}

/// The program beside the others that does nothing.
struct EmptyProgram<'r> {
    attributes: crate::measure::LoadAttributes,
    verdict: u32,
    /// Rig of a comparison with real frames.
    rig: Option<&'r TestRig>,
}

impl EmptyProgram<'_> {
    fn load(&self) -> Result<KernelProgram> {
        let load = |port| crate::measure::empty(self.verdict, port, self.attributes);
        match self.rig {
            None => load(None),
            // The map of ports takes interfaces of the namespace at hand alone.
            Some(rig) => rig.namespace().enter(|| load(Some(rig.second_port())))?,
        }
    }
}

fn finish(
    mode: TimingMode,
    harness: &mut dyn TimingHarness,
    subjects: &[ProgramUnderTest<'_>],
    before: Vec<SideProfile>,
    empty: EmptyProgram<'_>,
    packets: usize,
    plan: MeasurementPlan,
) -> Result<ComparisonReport> {
    let mut sides: Vec<MeasuredSide<'_>> =
        subjects.iter().map(|s| MeasuredSide::new(&s.name, || s.load())).collect();
    sides.push(MeasuredSide::new("empty", || empty.load()));
    let measured = measure(harness, &mut sides, &plan)?;
    let names = subjects.iter().map(|s| s.name.clone()).collect();
    Ok(report(mode, plan, &measured, names, &before, empty.verdict, packets))
}

fn report(
    mode: TimingMode,
    plan: MeasurementPlan,
    measured: &MeasurementResult,
    names: Vec<String>,
    before: &[SideProfile],
    empty_verdict: u32,
    packets: usize,
) -> ComparisonReport {
    let mut rng = Rng::new(plan.seed ^ 1);
    let empty_ns = measured.median(names.len());
    let sides = names.into_iter().zip(before).enumerate().map(|(i, (name, b))| {
        let differ = || {
            let first = &before[0];
            let pairs = b.verdicts.iter().zip(&b.packets).zip(first.verdicts.iter().zip(&first.packets));
            pairs.filter(|(ours, theirs)| ours != theirs).count()
        };
        SideReport {
            name,
            ns: measured.median(i),
            net_ns: measured.median(i) - empty_ns,
            jited_bytes: b.jited_bytes,
            jited_instructions: b.counted.image_instructions,
            executed_instructions: b.counted.executed,
            executed_jited: b.counted.image_executed,
            against_first: (i > 0).then(|| judge(&measured.pairs(0, i), &mut rng)),
            answers_differ: (i > 0).then(differ),
        }
    });
    ComparisonReport {
        mode,
        plan,
        sides: sides.collect(),
        empty_ns,
        empty_verdict,
        generations: measured.generations.len(),
        dropped: measured.dropped,
        runs: measured.runs,
        disturbed: measured.disturbed_share(),
        packets,
    }
}

fn alike(subjects: &[ProgramUnderTest<'_>]) -> Result<crate::measure::LoadAttributes> {
    let Some(first) = subjects.first() else { return Err(Error::Unusable("nothing to measure".into())) };
    match subjects.iter().find(|s| s.alike() != first.alike()) {
        None => Ok(first.alike()),
        Some(other) => Err(Error::Unusable(format!(
            "{} and {} differ in attach type or in taking frames of several buffers",
            first.name, other.name
        ))),
    }
}

/// The most frequent verdict.
pub fn common(verdicts: &[u32]) -> u32 {
    let count = |v: u32| verdicts.iter().filter(|x| **x == v).count();
    verdicts.iter().copied().max_by_key(|v| count(*v)).unwrap_or(1)
}
