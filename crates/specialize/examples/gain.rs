//! Measures the gain of a specialised variant on live traffic: `gain builtin:router:2592 high thorough 10`.
//!
//! Runs one of our data planes on the laboratory's rig, profiles it with the instrumented variant, makes the
//! variant that a session would make (`quick`, `thorough`, or either with `-plain`: without twins, or
//! `-uncached`), and measures original and variant against one another. A fifth argument names a file of
//! prefixes, one a line, for the router.

use std::collections::BTreeSet;
use std::time::Instant;

use millstream_kernel::KernelMap;
use millstream_lab::compare::{ComparisonReport as Compared, compare_live};
use millstream_lab::measure::MeasurementPlan as Measure;
use millstream_lab::subject::ProgramUnderTest;
use millstream_lab::workload::{BuiltinWorkload, Workload, locality};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_object::{MapId, Object};
use millstream_programs::router::{self, Route};
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;
use millstream_specialize::caches::EntryCaches;
use millstream_specialize::shadow_tables::ShadowTables;
use millstream_specialize::snapshot::{MapSnapshot, cacheable, sources};
use millstream_specialize::{profile, variant_compiler};
use millstream_specializer::policy::{self, LookupStrategy, PlanInputs, Tier};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{LookupSite, SampleMode, SiteId};
use millstream_specializer::variant::VariantCompiler;
use millstream_specializer::variant::{Variant, VariantRequest};

type BoxedResult<T> = Result<T, Box<dyn std::error::Error>>;

const FLOWS: usize = 10_000;
const SEED: u64 = 42;

fn main() -> BoxedResult<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |n: usize, default: &str| args.get(n).cloned().unwrap_or_else(|| default.to_owned());
    let builtin: BuiltinWorkload = arg(0, "builtin:router:2592").parse()?;
    let (locality, mode, seconds) = (locality(&arg(1, "high"))?, arg(2, "thorough"), arg(3, "10").parse()?);
    let rig = TestRig::new(RigConfig::default())?;
    let load = match args.get(4) {
        Some(file) => prefixes(&std::fs::read_to_string(file)?, rig.test_port(), locality)?,
        None => builtin.workload([rig.test_port(), rig.second_port()], FLOWS, locality)?,
    };
    println!("{}", load.description);
    let object = Object::parse(builtin.program.name, builtin.program.object)?;
    let compiler = variant_compiler(&object, Some(builtin.program.function))?;
    let original =
        ProgramUnderTest::prepare("original", compiler.object(), Some(builtin.program.function), None)?;
    original.apply(&load.entries, rig.namespace())?;
    let sequence = load.flows.sequence(1, 65_536);
    rig.load_traffic(&TrafficSequence::new(&load.flows, &sequence))?;
    let (object, twins, caches) = specialised(&compiler, &original, &rig, &mode)?;
    let function = Some(builtin.program.function);
    let specialised =
        ProgramUnderTest::prepare_with("specialised", &object, function, Some(&original), |mut loader| {
            for (place, map) in places(&compiler, &twins, &caches) {
                loader = loader.reuse_map(&compiler.object().maps[place.index()].name, map.try_clone()?)?;
            }
            Ok(loader)
        })?;
    let sample: Vec<Vec<u8>> =
        sequence[..256].iter().map(|&n| load.flows.packets[n as usize].clone()).collect();
    let plan = Measure { generation: 3.0, ..Measure::live(seconds) };
    let report = compare_live(&[original, specialised], &rig, &sample, 3, plan)?;
    tell(&report);
    Ok(())
}

/// A router with these routes.
fn prefixes(text: &str, port: u32, locality: FlowLocality) -> BoxedResult<Workload> {
    let mut rng = Rng::new(SEED);
    let mut config = router::generate(1, &[port], 8, SEED);
    let hops = config.next_hops.len() as u64;
    config.routes = text
        .lines()
        .filter(|l| !l.contains(':'))
        .map(|l| Ok(Route { prefix: l.trim().parse()?, next_hop: rng.below(hops) as u32 }))
        .collect::<BoxedResult<_>>()?;
    let flows = router::flows(&config, FLOWS, locality, SEED + 1);
    let description = format!("{} routes, {} flows", config.routes.len(), flows.packets.len());
    Ok(Workload { entries: config.entries()?, flows, description })
}

/// The object that a session would compile for this traffic, and its twins.
fn specialised(
    compiler: &VariantCompiler,
    original: &ProgramUnderTest<'_>,
    rig: &TestRig,
    mode: &str,
) -> BoxedResult<(Object, ShadowTables, EntryCaches)> {
    let (sources, refused) = sources(compiler, original.session(), &BTreeSet::new());
    println!("not specialised on: {refused:?}");
    // The original runs beside it and does not maintain its caches: their gain is right, their contents are
    // not.
    let cached: BTreeSet<_> = match mode.contains("-uncached") {
        true => BTreeSet::new(),
        false => cacheable(compiler, original.session()).into_keys().collect(),
    };
    let eligible = |s: &&LookupSite| policy::eligible(s, &sources) || policy::cacheable(s, &cached);
    let wanted: Vec<&LookupSite> = compiler.sites().iter().filter(eligible).collect();
    let profiles = profiled(compiler, original, rig, &wanted)?;
    let tier = if mode.starts_with("quick") { Tier::Quick } else { Tier::Thorough };
    let mut unfit: BTreeSet<SiteId> = BTreeSet::new();
    if mode.ends_with("-plain") {
        unfit.extend(wanted.iter().map(|s| s.id));
    }
    let start = Instant::now();
    let observed = MapSnapshot::new(&sources);
    let known =
        PlanInputs { compiler, profiles: &profiles, observed: &observed, unfit: &unfit, cached: &cached };
    let mut planned = policy::plan(&known, compiler.guard(0, false), tier);
    for site in compiler.sites() {
        let looked_up = profiles.iter().find(|p| p.site == site.id).map_or(0, |p| p.total);
        let put = planned.keys.get(&site.id).map_or_else(|| "as it is".to_owned(), what);
        println!("{} of {}: {looked_up} times, {put}", site.id.0, compiler.declaration(site.map).name);
    }
    let twins = ShadowTables::new(std::mem::take(&mut planned.twins))?;
    let rooms = twins.rooms().collect();
    let made = compiler.specialised(&VariantRequest {
        plan: &planned.plan,
        contents: &observed,
        rooms: &rooms,
        callees: &[],
        joins: &[],
    })?;
    println!("made in {:?}, the code in {:?}: {:?}", start.elapsed(), made.time, made.report);
    let mut object = made.object;
    let mut caches = EntryCaches::new(planned.plan.caches.iter().map(|c| (c.of, c.shape)))?;
    caches.close();
    for (place, map) in places(compiler, &twins, &caches) {
        object.maps[place.index()].spec.value_size = map.info().value_size;
    }
    Ok((object, twins, caches))
}

/// The maps with twins and caches, and in whose place they are.
fn places<'m>(
    compiler: &'m VariantCompiler,
    twins: &'m ShadowTables,
    caches: &'m EntryCaches,
) -> impl Iterator<Item = (MapId, &'m KernelMap)> {
    let twins = twins.maps().filter_map(|(of, map)| Some((compiler.twin(of)?, map)));
    twins.chain(caches.maps().filter_map(|(of, map)| Some((compiler.cache(of)?, map))))
}

fn what(put: &LookupStrategy) -> String {
    match put {
        LookupStrategy::Hot(keys) => format!("{} hot keys", keys.len()),
        LookupStrategy::Whole => "the whole map".to_owned(),
        LookupStrategy::Twin => "a twin".to_owned(),
        LookupStrategy::Cached => "a cache".to_owned(),
    }
}

/// Runs the instrumented variant on some traffic and reads what it wrote.
fn profiled(
    compiler: &VariantCompiler,
    original: &ProgramUnderTest<'_>,
    rig: &TestRig,
    wanted: &[&LookupSite],
) -> BoxedResult<Vec<SiteProfile>> {
    let ids: Vec<SiteId> = wanted.iter().map(|s| s.id).collect();
    let Variant { object, .. } = compiler.instrumented(&ids, SampleMode::Count, &[])?;
    let name = &compiler.object().functions[compiler.program().index()].name;
    let subject = ProgramUnderTest::prepare("instrumented", &object, Some(name), Some(original))?;
    rig.attach(&subject.load()?)?;
    rig.send(100_000)?;
    rig.detach();
    let sketch = original.session().map(compiler.sketch()).ok_or("no sketch")?;
    Ok(profile::read(sketch, wanted, compiler.slots())?)
}

fn tell(report: &Compared) {
    for side in &report.sides {
        println!(
            "{}: {:.1} ns, net {:.1} ns, {} jited bytes, {:?} instructions",
            side.name, side.ns, side.net_ns, side.jited_bytes, side.executed_instructions
        );
    }
    println!(
        "empty {:.1} ns, net ratio {:.3}, {:?}",
        report.empty_ns,
        report.sides[1].net_ns / report.sides[0].net_ns,
        report.sides[1].against_first
    );
    println!(
        "{} generations, disturbed {:.2}; {:?}",
        report.generations,
        report.disturbed,
        report.reliability_warnings()
    );
}
