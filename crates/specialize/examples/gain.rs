//! What a specialised variant gains on live traffic: `gain builtin:router:2592 high hot:64 10`.
//!
//! Profiles one of our data planes on the laboratory's rig with the instrumented variant, specialises it on what its
//! maps hold, and measures original and variant against one another. Modes: `hot:N`, `whole`,
//! `weighted`, `twin:N`.

use std::ops::Range;

use millstream_bpf::lower::lower;
use millstream_bpf::module::{Lifted, func as func_of, lift_object, new_function};
use millstream_ir::usage::{Access, Usage};
use millstream_ir::{Func, Map};
use millstream_lab::compare::{Report as Compared, on_the_rig};
use millstream_lab::measure::Plan as Measure;
use millstream_lab::subject::Subject;
use millstream_lab::workload::{Builtin, locality};
use millstream_lab::{Rig, RigConfig, Traffic};
use millstream_object::{FuncId, MapOrigin, MapSpec, MapType, Object};
use millstream_passes::Target;
use millstream_specialize::transform::{
    Budget, Contents, Entry, Fallback, Guard, Lookup, Plan, Site, SitePlan, Sketch, Twin, finish, instrument,
    prepare, sites, specialize,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const SLOTS: u32 = 1024;
/// Room in the twin.
const GROUPS: u32 = 4096;
const LPM_TRIE: u32 = 11;
const ARRAY: u32 = 2;
const HASH: u32 = 1;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |n: usize, default: &str| args.get(n).cloned().unwrap_or_else(|| default.to_owned());
    let builtin: Builtin = arg(0, "builtin:router:2592").parse()?;
    let (locality, mode, seconds) = (locality(&arg(1, "high"))?, arg(2, "hot:64"), arg(3, "10").parse()?);
    let rig = Rig::new(RigConfig::default())?;
    let load = builtin.workload([rig.test_port(), rig.second_port()], 10_000, locality)?;
    println!("{}", load.description);
    let mut object = Object::parse(builtin.program.name, builtin.program.object)?;
    for (name, kind, value_size, max_entries) in [
        ("ms_guard", ARRAY, 8, 1),
        ("ms_twin", ARRAY, Twin::size(GROUPS), 1),
        ("ms_sketch", 6, 64, 16 * SLOTS),
    ] {
        object.maps.push(runtime_map(name, kind, value_size, max_entries));
    }
    let original = Subject::prepare("original", &object, Some(builtin.program.function), None)?;
    original.apply(&load.entries, rig.namespace())?;
    let sequence = load.flows.sequence(1, 65_536);
    rig.load_traffic(&Traffic::new(&load.flows, &sequence))?;

    let func = func_of(original.func());
    let mut prepared = lift_object(&object)?;
    prepare(&mut prepared.module, &mut passes())?;
    let oracle = Oracle { subject: &original, prepared: &prepared, usage: Usage::new(&prepared.module) };
    let wanted = oracle.wanted(func);
    let plans = oracle.profile(&rig, &object, func, &wanted, &mode)?;
    let map_at = |name: &str| object.maps.iter().position(|m| m.name == name).unwrap_or(0) as u32;
    let plan = Plan {
        guard: Some(Guard {
            map: Map::from_u32(map_at("ms_guard")),
            offset: 0,
            version: 0,
            sides: 1,
            first_packet: None,
            missed: None,
        }),
        fallback: Fallback::InPlace,
        sites: plans,
        fields: Vec::new(),
        budget: Budget::default(),
    };
    let start = std::time::Instant::now();
    let mut lifted = prepared.clone();
    let report = specialize(&mut lifted.module, func, &plan, &oracle)?;
    println!("specialised in {:?}: {report:?}", start.elapsed());
    let variant = lowered(&object, lifted)?;
    println!("made in {:?}", start.elapsed());
    let specialised =
        Subject::prepare("specialised", &variant, Some(builtin.program.function), Some(&original))?;
    let sample: Vec<Vec<u8>> =
        sequence[..256].iter().map(|&n| load.flows.packets[n as usize].clone()).collect();
    let plan = Measure { generation: 3.0, ..Measure::live(seconds) };
    let report = on_the_rig(&[original, specialised], &rig, &sample, 3, plan)?;
    tell(&report);
    Ok(())
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

fn passes() -> millstream_passes::Session {
    millstream_passes::Session::new(Target::bpf(3))
}

fn runtime_map(name: &str, kind: u32, value_size: u32, max_entries: u32) -> millstream_object::Map {
    millstream_object::Map {
        name: name.to_owned(),
        section: ".maps".to_owned(),
        origin: MapOrigin::Btf,
        spec: MapSpec { map_type: MapType(kind), key_size: 4, value_size, max_entries, ..MapSpec::default() },
        inner: None,
        initial: Vec::new(),
        data: None,
        variables: Vec::new(),
    }
}

/// The object with these functions.
fn lowered(object: &Object, mut lifted: Lifted) -> Outcome<Object> {
    finish(&mut lifted.module, &mut passes())?;
    let mut object = object.clone();
    for (id, body) in &lifted.module.funcs {
        if !body.layout.is_empty() {
            let code = lower(body)?;
            object.replace_function(FuncId(id.as_u32()), new_function(&lifted, &code))?;
        }
    }
    Ok(object)
}

/// What the maps hold, and which of them the program only reads.
struct Oracle<'a> {
    subject: &'a Subject<'a>,
    prepared: &'a Lifted,
    usage: Usage,
}

impl Oracle<'_> {
    fn kernel_map(&self, map: Map) -> Option<&millstream_kernel::Map> {
        self.subject.session().map_by_name(&self.prepared.module.maps[map].name)
    }

    fn is_read_only(&self, map: Map) -> bool {
        let decl = &self.prepared.module.maps[map];
        let known = matches!(decl.kind, HASH | ARRAY | LPM_TRIE) && !decl.name.starts_with("ms_");
        known && self.usage.of_module(map).access(decl) == Access::ReadOnly
    }

    fn wanted(&self, func: Func) -> Vec<Site> {
        let mut all = sites(&self.prepared.module, func);
        all.retain(|s| s.is_comparable() && s.key_size <= 48 && self.is_read_only(s.map));
        all.truncate(16);
        all
    }

    /// Runs the instrumented variant on some traffic and reads what it wrote.
    fn profile(
        &self,
        rig: &Rig,
        object: &Object,
        func: Func,
        wanted: &[Site],
        mode: &str,
    ) -> Outcome<Vec<SitePlan>> {
        let sketch = object.maps.iter().position(|m| m.name == "ms_sketch").unwrap_or(0);
        let sketch = Sketch { map: Map::from_u32(sketch as u32), slots: SLOTS };
        let mut lifted = self.prepared.clone();
        let ids: Vec<_> = wanted.iter().map(|s| s.id).collect();
        instrument(&mut lifted.module, func, &ids, &sketch)?;
        let instrumented = lowered(object, lifted)?;
        let name = &object.functions[func.as_u32() as usize].name;
        let subject = Subject::prepare("instrumented", &instrumented, Some(name), Some(self.subject))?;
        rig.attach(&subject.load()?)?;
        rig.send(100_000)?;
        rig.detach();
        let slots = self.subject.session().map_by_name("ms_sketch").ok_or("no sketch")?;
        let mut plans = Vec::new();
        for (n, site) in wanted.iter().enumerate() {
            let hot = self.recorded(slots, n as u32, site)?;
            plans.push(SitePlan { site: site.id, lookup: self.lookup(site, hot, mode)? });
        }
        Ok(plans)
    }

    fn recorded(&self, slots: &millstream_kernel::Map, number: u32, site: &Site) -> Outcome<Vec<Entry>> {
        let mut found: std::collections::HashMap<Vec<u8>, u64> = std::collections::HashMap::new();
        for slot in number * SLOTS..(number + 1) * SLOTS {
            let value = slots.lookup(&slot.to_ne_bytes())?.ok_or("no slot")?;
            for cpu in value.chunks(64) {
                let count = u64::from_ne_bytes(cpu[..8].try_into()?);
                let start = Sketch::KEY as usize;
                if count > 0 {
                    *found.entry(cpu[start..start + site.key_size as usize].to_vec()).or_insert(0) += count;
                }
            }
        }
        let mut entries = Vec::new();
        for (key, heat) in found {
            let value = self.kernel_map(site.map).ok_or("no map")?.lookup(&key)?;
            entries.push(Entry { key, value, heat });
        }
        entries.sort_by(|a, b| b.heat.cmp(&a.heat).then_with(|| a.key.cmp(&b.key)));
        println!("{:?} in {}: {} keys", site.id, self.prepared.module.maps[site.map].name, entries.len());
        Ok(entries)
    }

    /// The twin of the site's map, filled; the plain lookup behind the hot keys if it has none.
    fn twin(&self, site: &Site, hot: Vec<Entry>) -> Outcome<Lookup> {
        let entries = self.kernel_map(site.map).ok_or("no map")?.entries()?;
        let maps = &self.prepared.module.maps;
        let map = maps.iter().find(|(_, d)| d.name == "ms_twin").ok_or("no map for a twin")?.0;
        let Some(twin) = Twin::of(entries.iter()).filter(|t| t.groups() <= GROUPS) else {
            return Ok(Lookup::Hot(hot));
        };
        let mut bytes = twin.bytes();
        bytes.resize(Twin::size(GROUPS) as usize, 0);
        let there = self.subject.session().map_by_name("ms_twin").ok_or("no map for a twin")?;
        there.update(&[0; 4], &bytes, millstream_kernel::UpdateMode::Any)?;
        Ok(Lookup::Twin { map, hot })
    }

    fn lookup(&self, site: &Site, mut hot: Vec<Entry>, mode: &str) -> Outcome<Lookup> {
        let most = |text: &str| text.strip_prefix("hot:").map(str::parse::<usize>);
        if let Some(n) = most(mode) {
            hot.truncate(n?);
            return Ok(Lookup::Hot(hot));
        }
        let entries = self.kernel_map(site.map).ok_or("no map")?.entries()?;
        if let Some(n) = mode.strip_prefix("twin:").map(str::parse::<usize>) {
            hot.truncate(n?);
            return self.twin(site, hot);
        }
        let entry =
            |(key, value): (&[u8], &[u8])| Entry { key: key.to_vec(), value: Some(value.to_vec()), heat: 0 };
        let mut whole: Vec<Entry> = entries.iter().map(entry).collect();
        if mode == "weighted" && self.prepared.module.maps[site.map].kind == LPM_TRIE {
            whole.extend(hot.into_iter().filter(|e| e.value.is_some()));
        }
        Ok(Lookup::Whole(whole))
    }
}

impl Contents for Oracle<'_> {
    fn lookup(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>> {
        if !self.is_read_only(map) {
            return None;
        }
        self.kernel_map(map)?.lookup(key).ok()
    }

    fn constant(&self, map: Map, _: Range<u32>) -> bool {
        self.is_read_only(map)
    }
}
