//! Measures the gain of a specialised variant on live traffic: `gain builtin:router:2592 high thorough 10`.
//!
//! Runs one of our data planes on the laboratory's rig, profiles it with the instrumented variant, makes the
//! variant that a session would make (`quick`, `thorough`, or either with `-plain`: without twins, or
//! `-uncached`), and measures original and variant against one another. A fifth argument names a file of
//! prefixes, one a line, for the router.

use std::collections::BTreeSet;
use std::time::Instant;

use millstream_kernel::Map;
use millstream_lab::compare::{Report as Compared, on_the_rig};
use millstream_lab::measure::Plan as Measure;
use millstream_lab::subject::Subject;
use millstream_lab::workload::{Builtin, Workload, locality};
use millstream_lab::{Rig, RigConfig, Traffic};
use millstream_object::{MapId, Object};
use millstream_programs::rng::Rng;
use millstream_programs::router::{self, Route};
use millstream_programs::traffic::Locality;
use millstream_specialize::Compiler;
use millstream_specialize::caches::Caches;
use millstream_specialize::contents::{Observed, cacheable, sources};
use millstream_specialize::policy::{self, Known, Put, Tier};
use millstream_specialize::profile::{self, SiteProfile};
use millstream_specialize::transform::{Keep, Site, SiteId};
use millstream_specialize::twins::Twins;
use millstream_specialize::variant::{Variant, Wanted};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const FLOWS: usize = 10_000;
const SEED: u64 = 42;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |n: usize, default: &str| args.get(n).cloned().unwrap_or_else(|| default.to_owned());
    let builtin: Builtin = arg(0, "builtin:router:2592").parse()?;
    let (locality, mode, seconds) = (locality(&arg(1, "high"))?, arg(2, "thorough"), arg(3, "10").parse()?);
    let rig = Rig::new(RigConfig::default())?;
    let load = match args.get(4) {
        Some(file) => prefixes(&std::fs::read_to_string(file)?, rig.test_port(), locality)?,
        None => builtin.workload([rig.test_port(), rig.second_port()], FLOWS, locality)?,
    };
    println!("{}", load.description);
    let object = Object::parse(builtin.program.name, builtin.program.object)?;
    let compiler = Compiler::new(&object, Some(builtin.program.function))?;
    let original = Subject::prepare("original", compiler.object(), Some(builtin.program.function), None)?;
    original.apply(&load.entries, rig.namespace())?;
    let sequence = load.flows.sequence(1, 65_536);
    rig.load_traffic(&Traffic::new(&load.flows, &sequence))?;
    let (object, twins, caches) = specialised(&compiler, &original, &rig, &mode)?;
    let function = Some(builtin.program.function);
    let specialised =
        Subject::prepare_with("specialised", &object, function, Some(&original), |mut loader| {
            for (place, map) in places(&compiler, &twins, &caches) {
                loader = loader.reuse_map(&compiler.object().maps[place.index()].name, map.try_clone()?)?;
            }
            Ok(loader)
        })?;
    let sample: Vec<Vec<u8>> =
        sequence[..256].iter().map(|&n| load.flows.packets[n as usize].clone()).collect();
    let plan = Measure { generation: 3.0, ..Measure::live(seconds) };
    let report = on_the_rig(&[original, specialised], &rig, &sample, 3, plan)?;
    tell(&report);
    Ok(())
}

/// A router with these routes.
fn prefixes(text: &str, port: u32, locality: Locality) -> Outcome<Workload> {
    let mut rng = Rng::new(SEED);
    let mut config = router::generate(1, &[port], 8, SEED);
    let hops = config.next_hops.len() as u64;
    config.routes = text
        .lines()
        .filter(|l| !l.contains(':'))
        .map(|l| Ok(Route { prefix: l.trim().parse()?, next_hop: rng.below(hops) as u32 }))
        .collect::<Outcome<_>>()?;
    let flows = router::flows(&config, FLOWS, locality, SEED + 1);
    let description = format!("{} routes, {} flows", config.routes.len(), flows.packets.len());
    Ok(Workload { entries: config.entries()?, flows, description })
}

/// The object that a session would compile for this traffic, and its twins.
fn specialised(
    compiler: &Compiler,
    original: &Subject<'_>,
    rig: &Rig,
    mode: &str,
) -> Outcome<(Object, Twins, Caches)> {
    let (sources, refused) = sources(compiler, original.session(), &BTreeSet::new());
    println!("not specialised on: {refused:?}");
    // The original runs beside it and does not maintain its caches: their gain is right, their contents are not.
    let cached: BTreeSet<_> = match mode.contains("-uncached") {
        true => BTreeSet::new(),
        false => cacheable(compiler, original.session()).into_keys().collect(),
    };
    let eligible = |s: &&Site| policy::eligible(s, &sources) || policy::cacheable(s, &cached);
    let wanted: Vec<&Site> = compiler.sites().iter().filter(eligible).collect();
    let profiles = profiled(compiler, original, rig, &wanted)?;
    let tier = if mode.starts_with("quick") { Tier::Quick } else { Tier::Thorough };
    let mut unfit: BTreeSet<SiteId> = BTreeSet::new();
    if mode.ends_with("-plain") {
        unfit.extend(wanted.iter().map(|s| s.id));
    }
    let start = Instant::now();
    let observed = Observed::new(&sources);
    let known = Known { compiler, profiles: &profiles, observed: &observed, unfit: &unfit, cached: &cached };
    let mut planned = policy::plan(&known, compiler.guard(0, false), tier);
    for site in compiler.sites() {
        let looked_up = profiles.iter().find(|p| p.site == site.id).map_or(0, |p| p.total);
        let put = planned.keys.get(&site.id).map_or_else(|| "as it is".to_owned(), what);
        println!("{} of {}: {looked_up} times, {put}", site.id.0, compiler.declaration(site.map).name);
    }
    let twins = Twins::new(std::mem::take(&mut planned.twins))?;
    let rooms = twins.rooms().collect();
    let made = compiler.specialised(&Wanted {
        plan: &planned.plan,
        contents: &observed,
        rooms: &rooms,
        callees: &[],
        joins: &[],
    })?;
    println!("made in {:?}, the code in {:?}: {:?}", start.elapsed(), made.time, made.report);
    let mut object = made.object;
    let mut caches = Caches::new(planned.plan.caches.iter().map(|c| (c.of, c.shape)))?;
    caches.close();
    for (place, map) in places(compiler, &twins, &caches) {
        object.maps[place.index()].spec.value_size = map.info().value_size;
    }
    Ok((object, twins, caches))
}

/// The maps with twins and caches, and in whose place they are.
fn places<'m>(
    compiler: &'m Compiler,
    twins: &'m Twins,
    caches: &'m Caches,
) -> impl Iterator<Item = (MapId, &'m Map)> {
    let twins = twins.maps().filter_map(|(of, map)| Some((compiler.twin(of)?, map)));
    twins.chain(caches.maps().filter_map(|(of, map)| Some((compiler.cache(of)?, map))))
}

fn what(put: &Put) -> String {
    match put {
        Put::Hot(keys) => format!("{} hot keys", keys.len()),
        Put::Whole => "the whole map".to_owned(),
        Put::Twin => "a twin".to_owned(),
        Put::Cached => "a cache".to_owned(),
    }
}

/// Runs the instrumented variant on some traffic and reads what it wrote.
fn profiled(
    compiler: &Compiler,
    original: &Subject<'_>,
    rig: &Rig,
    wanted: &[&Site],
) -> Outcome<Vec<SiteProfile>> {
    let ids: Vec<SiteId> = wanted.iter().map(|s| s.id).collect();
    let Variant { object, .. } = compiler.instrumented(&ids, Keep::Count, &[])?;
    let name = &compiler.object().functions[compiler.program().index()].name;
    let subject = Subject::prepare("instrumented", &object, Some(name), Some(original))?;
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
    println!("{} generations, disturbed {:.2}; {:?}", report.generations, report.disturbed, report.doubts());
}
