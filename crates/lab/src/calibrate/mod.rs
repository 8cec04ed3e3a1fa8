//! Cost on this machine of each kind of instruction that the kernel's JIT emits, and of calls.
//!
//! Programs that repeat one thing are measured beside one that does not, all in the same generations by the
//! protocol of [`measure`](mod@crate::measure): a chain in which each needs the result of the last gives the
//! latency, instructions that need nothing of each other the time from one to the next. A chain of exclusive
//! ors defines the cycle. Figures are medians over generations; their scatter is the distance between the
//! quartiles.

mod streams;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd};

use millstream_isa::asm::assemble;
use millstream_isa::{MapType, encode_all};
use millstream_kernel::{
    AttachType, KernelMap, KernelProgram, LoadError, MapSpec, ProgramSpec, ProgramType, UpdateMode, map_flags,
};

use millstream_rng::Rng;

use crate::code::value;
use crate::environment::{Environment, fit_for_timing};
use crate::error::{Error, Result};
use crate::measure::{
    LoadAttributes, MeasuredSide, MeasurementPlan, MeasurementResult, TestRunHarness, measure,
};
use crate::stats::quantile;
use streams::{InsnStream, MeasuredProperty, STREAMS};

/// Copies of each program in a generation.
const COPIES: usize = 3;
/// Bytes of a value in all maps.
const VALUE: u32 = 64;
/// Elements of the maps, at most; a trie has as many routes.
const ENTRIES: u32 = 1024;
/// The key that is in all maps: 32, as a prefix length too, and an address.
const KEY: [u8; 8] = [32, 0, 0, 0, 5, 0, 0, 0];

/// A figure in cycles.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CycleEstimate {
    /// The median over generations.
    pub cycles: f64,
    /// The distance between the quartiles.
    pub spread: f64,
}

/// Measurements of one name of the table.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OpTiming {
    /// From operands to result, or a call.
    pub latency: Option<CycleEstimate>,
    /// From one to the next, independent one.
    pub each: Option<CycleEstimate>,
}

/// A calibrated machine.
#[derive(Clone, Debug)]
pub struct MachineCalibration {
    /// On what, and when.
    pub environment: Environment,
    /// Nanoseconds of a cycle.
    pub cycle_ns: f64,
    /// The figures, in the order in which they are defined.
    pub rows: Vec<(String, OpTiming)>,
    /// Names that this kernel does not take.
    pub refused: Vec<String>,
    /// Generations; each gave one figure.
    pub generations: usize,
    /// Timed runs.
    pub runs: usize,
    /// The share of runs that something disturbed.
    pub disturbed: f64,
}

/// Measures for some seconds on a CPU.
///
/// # Errors
/// If the machine does not permit it, or was too busy for a single generation.
pub fn calibrate(seconds: f64, cpu: usize) -> Result<MachineCalibration> {
    fit_for_timing()?;
    let maps = CalibrationMaps::new()?;
    let mut refused = Vec::new();
    let mut streams: Vec<&InsnStream> = Vec::new();
    for stream in STREAMS {
        match maps.load(Some(stream)) {
            Ok(_) => streams.push(stream),
            Err(Error::Load { source: LoadError::Rejected(_), .. }) => refused.push(name(stream.what)),
            Err(e) => return Err(e),
        }
    }
    let packet = vec![0u8; 64];
    let alike = LoadAttributes { attach: AttachType::XDP, flags: 0 };
    let mut harness = TestRunHarness::new(alike, &[packet], false, cpu)?;
    let mut sides = vec![MeasuredSide::new("setup", || maps.load(None))];
    sides.extend(streams.iter().map(|&s| MeasuredSide::new(name(s.what), || maps.load(Some(s)))));
    let plan = MeasurementPlan { copies: COPIES, generation: 1.0, ..MeasurementPlan::test_run(seconds) };
    let measured = measure(&mut harness, &mut sides, &plan)?;
    drop(sides);
    Ok(calibration(&streams, &measured, refused))
}

fn calibration(
    streams: &[&InsnStream],
    measured: &MeasurementResult,
    refused: Vec<String>,
) -> MachineCalibration {
    // Nanoseconds of one repetition of each stream in each generation.
    let repetition = |g: &Vec<f64>, at: usize| (g[at + 1] - g[0]) / streams[at].repetitions() as f64;
    let mut rows: Vec<(String, OpTiming)> = Vec::new();
    for (at, stream) in streams.iter().enumerate() {
        let mut cycles: Vec<f64> = measured
            .generations
            .iter()
            .map(|g| {
                (repetition(g, at) / repetition(g, 0) - deducted(stream, &rows)).max(0.0)
                    / f64::from(stream.of)
            })
            .collect();
        let [low, median, high] = [0.25, 0.5, 0.75].map(|q| quantile(&mut cycles, q));
        let figure = Some(CycleEstimate { cycles: median, spread: high - low });
        let name = name(stream.what);
        if rows.last().is_none_or(|(last, _)| *last != name) {
            rows.push((name, OpTiming::default()));
        }
        if let Some((_, row)) = rows.last_mut() {
            match stream.what {
                MeasuredProperty::Each(_) => row.each = figure,
                _ => row.latency = figure,
            }
        }
    }
    let mut cycle: Vec<f64> = measured.generations.iter().map(|g| repetition(g, 0)).collect();
    MachineCalibration {
        environment: Environment::now(),
        cycle_ns: quantile(&mut cycle, 0.5),
        rows,
        refused,
        generations: measured.generations.len(),
        runs: measured.runs,
        disturbed: measured.disturbed_share(),
    }
}

/// Cost of the rest of a repetition, in cycles, from earlier measurements.
fn deducted(stream: &InsnStream, rows: &[(String, OpTiming)]) -> f64 {
    let latency = |name: &str| rows.iter().find(|(n, _)| n == name).and_then(|(_, row)| row.latency);
    stream.less.iter().filter_map(|k| latency(k.name())).map(|f| f.cycles).sum()
}

/// The name in the table.
fn name(what: MeasuredProperty) -> String {
    match what {
        MeasuredProperty::Latency(kind) | MeasuredProperty::Each(kind) => kind.name().into(),
        MeasuredProperty::Helper(name) => format!("helper/{name}"),
        MeasuredProperty::Lookup(map_type) => format!("lookup/{map_type}"),
    }
}

impl MachineCalibration {
    /// The table as text, which `millstream_bpf::cost::CostModel` reads.
    pub fn text(&self) -> String {
        let e = &self.environment;
        let mut out = format!(
            "# Times of machine instructions and calls, in cycles: `{}`.\n# {}, {}, kernel {}. A cycle is {:.3} ns.\n\
             # {} generations, {} runs, {:.0} % of them disturbed. Medians; \
             scatter is the distance between quartiles.\n",
            e.command,
            e.when,
            e.cpu,
            e.kernel,
            self.cycle_ns,
            self.generations,
            self.runs,
            self.disturbed * 100.0
        );
        for name in &self.refused {
            let _ = writeln!(out, "# {name}: not taken by this kernel");
        }
        let _ = writeln!(out, "#\n# {:<28} {:>9} {:>9}   scatter of both", "name", "latency", "each");
        for (name, row) in &self.rows {
            let [latency, each] =
                [row.latency, row.each].map(|f| f.map_or("-".into(), |f| format!("{:.2}", f.cycles)));
            let [s, t] =
                [row.latency, row.each].map(|f| f.map_or("-".into(), |f| format!("{:.2}", f.spread)));
            let _ = writeln!(out, "{name:<30} {latency:>9} {each:>9}   # {s} {t}");
        }
        out
    }
}

/// Maps that the programs use.
struct CalibrationMaps {
    value: KernelMap,
    by_type: BTreeMap<u32, KernelMap>,
}

impl CalibrationMaps {
    fn new() -> Result<CalibrationMaps> {
        // The address of a value can be had only of an array of one element.
        let value = map(MapType::ARRAY, 1, None)?;
        let inner = map(MapType::ARRAY, ENTRIES, None)?;
        let mut by_type = BTreeMap::new();
        for map_type in STREAMS.iter().filter_map(InsnStream::map_type) {
            let inner = map_type.is_map_of_maps().then_some(&inner);
            let map = map(map_type, ENTRIES, inner)?;
            let key = &KEY[..map.info().key_size as usize];
            match inner {
                Some(inner) => map.update_fd(key, inner.as_fd())?,
                // Its elements are devices, and there are none to send to.
                None if map_type == MapType::DEVMAP => {}
                None => map.update_all_cpus(key, &[0; VALUE as usize], UpdateMode::Any)?,
            }
            if map_type == MapType::LPM_TRIE {
                fill(&map)?;
            }
            by_type.insert(map_type.0, map);
        }
        Ok(CalibrationMaps { value, by_type })
    }

    fn load(&self, stream: Option<&InsnStream>) -> Result<KernelProgram> {
        const NAME: &str = "ms_calibrate";
        let map = stream.and_then(InsnStream::map_type).and_then(|t| self.by_type.get(&t.0));
        let map = map.map_or(String::new(), |m| format!("map[fd:{}]", m.as_fd().as_raw_fd()));
        let text = InsnStream::program(stream, &value(&self.value, 0), &map);
        let insns = assemble(&text).map_err(|source| Error::Assemble { name: NAME, source })?;
        let slots: Vec<u64> = encode_all(&insns).iter().map(|r| u64::from_ne_bytes(r.to_bytes())).collect();
        let spec = ProgramSpec {
            name: NAME,
            program_type: ProgramType::XDP,
            expected_attach: AttachType::XDP,
            insns: &slots,
            license: "GPL",
            ..ProgramSpec::default()
        };
        KernelProgram::load(&spec).map_err(|source| Error::Load { name: NAME, source })
    }
}

/// Routes, so that a lookup walks down a trie.
fn fill(trie: &KernelMap) -> Result<()> {
    let mut rng = Rng::new(1);
    for _ in 1..trie.info().max_entries {
        let [a, b, c, ..] = rng.below(1 << 24).to_le_bytes();
        trie.update(&[24, 0, 0, 0, a % 8, b, c, 0], &[0; VALUE as usize], UpdateMode::Any)?;
    }
    Ok(())
}

fn map(map_type: MapType, max_entries: u32, inner: Option<&KernelMap>) -> Result<KernelMap> {
    let trie = map_type == MapType::LPM_TRIE;
    Ok(KernelMap::create(&MapSpec {
        name: "ms_calibrate",
        map_type,
        key_size: if trie { 8 } else { 4 },
        value_size: if inner.is_some() || map_type == MapType::DEVMAP { 4 } else { VALUE },
        max_entries,
        flags: if trie { map_flags::NO_PREALLOC } else { 0 },
        inner,
        ..MapSpec::default()
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_bpf::cost::CostModel;
    use millstream_kernel::testing;

    #[test]
    fn what_is_written_is_read_as_a_table() {
        let figure = |cycles| Some(CycleEstimate { cycles, spread: 0.01 });
        let row = |latency, each| OpTiming { latency, each };
        let calibration = MachineCalibration {
            environment: Environment::now(),
            cycle_ns: 0.3,
            rows: vec![
                ("mul".into(), row(figure(4.0), figure(1.5))),
                ("branch".into(), row(None, figure(0.25))),
                ("helper/ktime_get_ns".into(), row(figure(77.5), None)),
                ("lookup/lpm_trie".into(), row(figure(99.0), None)),
            ],
            refused: vec!["fetch-loop".into()],
            generations: 1,
            runs: 2,
            disturbed: 0.5,
        };
        let table = CostModel::parse(&calibration.text()).unwrap();
        use millstream_bpf::cost::Kind;
        let mul = table.timing(Kind::Mul);
        assert_eq!((mul.latency, mul.each, table.timing(Kind::Branch).each), (4000, 1500, 250));
        assert_eq!(
            (table.helper(5), table.lookup(Some(millstream_isa::MapType::LPM_TRIE))),
            (77_500, 99_000)
        );
    }

    #[test]
    fn the_kernel_takes_all_streams() {
        if !testing::require() {
            return;
        }
        let maps = CalibrationMaps::new().unwrap();
        for stream in STREAMS {
            let loaded = maps.load(Some(stream));
            assert!(loaded.is_ok(), "{:?}: {:?}", stream.what, loaded.err());
        }
    }
}
