//! The kernel's word on a generated program, before and after.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use millstream_kernel::{KernelMap, KernelProgram, TestOutput, TestRun, UpdateMode};
use millstream_loader::Session;
use millstream_object::{FuncId, MapId, Object};
use millstream_opt::{OptimizeOptions, optimize};
use millstream_rng::Rng;

use super::body::Flavour;
use super::program::Generated;
use super::template::Maps;

/// Packets that each version sees.
const PACKETS: usize = 8;
/// Bytes of `struct __sk_buff`.
const SKB: usize = 192;

/// Verdict on one program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The kernel does not take it as it was generated.
    Refused(String),
    Equal,
    /// It is not taken any more.
    Rejected(String),
    /// It does something else.
    Different(String),
    /// It could not be optimized.
    Failed(String),
}

impl Verdict {
    pub(crate) fn is_fault(&self) -> bool {
        matches!(self, Verdict::Rejected(_) | Verdict::Different(_) | Verdict::Failed(_))
    }
}

/// All that can be seen of runs.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    outputs: Vec<(u32, Vec<u8>, Vec<u8>)>,
    maps: Vec<Vec<Option<Vec<u8>>>>,
}

pub(crate) fn judge(session: &Session<'_>, maps: Maps, generated: &Generated, seed: u64) -> Verdict {
    let before = match load(session, &generated.object, &generated.programs) {
        Ok(programs) => programs,
        Err(why) => return Verdict::Refused(why),
    };
    let made = catch_unwind(AssertUnwindSafe(|| optimize(&generated.object, &OptimizeOptions::default())));
    let optimized = match made {
        Ok(Ok(optimized)) => optimized,
        Ok(Err(e)) => return Verdict::Failed(e.to_string()),
        Err(_) => return Verdict::Failed("panic".to_owned()),
    };
    let after = match load(session, &optimized.object, &generated.programs) {
        Ok(programs) => programs,
        Err(why) => return Verdict::Rejected(why),
    };
    let [first, second] = [before, after].map(|p| run(session, maps, generated.flavour, &p, seed));
    if first == second {
        return Verdict::Equal;
    }
    let place = first.outputs.iter().zip(&second.outputs).position(|(a, b)| a != b);
    Verdict::Different(match place {
        Some(n) => {
            let [a, b] = [&first.outputs[n], &second.outputs[n]];
            format!(
                "packet {n}: returned {:#x} and {:#x}, same packet {}, same context {}",
                a.0,
                b.0,
                a.1 == b.1,
                a.2 == b.2
            )
        }
        None => "maps hold other values in the end".to_owned(),
    })
}

fn load(session: &Session<'_>, object: &Object, programs: &[FuncId]) -> Result<Vec<KernelProgram>, String> {
    let one = |func: &FuncId| {
        let linked = object.link(*func).map_err(|e| e.to_string())?;
        session.load(*func, &linked).map_err(|e| format!("{e:?}"))
    };
    programs.iter().map(one).collect()
}

fn run(session: &Session<'_>, maps: Maps, flavour: Flavour, programs: &[KernelProgram], seed: u64) -> Seen {
    let map = |id: MapId| session.map(id).expect("the template's maps are made");
    let mut rng = Rng::new(!seed);
    fill(&mut rng, maps, &map);
    let chain = map(maps.chains[usize::from(flavour == Flavour::Tc)]);
    for slot in 0u32..4 {
        let key = slot.to_ne_bytes();
        match programs.get(slot as usize + 1) {
            Some(program) => chain.update_fd(&key, program.as_fd()).expect("a slot is filled"),
            None => drop(chain.delete(&key).expect("a slot is emptied")),
        }
    }
    let mut outputs = Vec::new();
    let mut out = TestOutput::default();
    let context = if flavour == Flavour::Tc { vec![0; SKB] } else { Vec::new() };
    for _ in 0..PACKETS {
        let packet = packet(&mut rng);
        let test = TestRun { context: &context, ..TestRun::packet(&packet) };
        match programs[0].test_run_into(&test, &mut out) {
            Ok(()) => outputs.push((out.retval, out.data.clone(), out.context.clone())),
            Err(e) => outputs.push((u32::MAX, e.to_string().into_bytes(), Vec::new())),
        }
    }
    let keys: Vec<Vec<u8>> = (0u64..16).map(|k| k.to_ne_bytes().to_vec()).collect();
    let content = |id: MapId, keys: &[Vec<u8>]| -> Vec<Option<Vec<u8>>> {
        keys.iter().map(|key| map(id).lookup(key).expect("a map can be read")).collect()
    };
    let narrow = |n: u32| -> Vec<Vec<u8>> { (0..n).map(|k| k.to_ne_bytes().to_vec()).collect() };
    let maps = vec![
        content(maps.slots, &narrow(4)),
        content(maps.flows, &keys),
        content(maps.counts, &narrow(2)),
        content(maps.totals, &narrow(1)),
    ];
    Seen { outputs, maps }
}

/// The same contents for every version of a program.
fn fill<'m>(rng: &mut Rng, maps: Maps, map: &impl Fn(MapId) -> &'m KernelMap) {
    let value = |rng: &mut Rng| -> Vec<u8> { (0..6).flat_map(|_| rng.next_u64().to_ne_bytes()).collect() };
    for slot in 0u32..4 {
        let bytes = value(rng);
        map(maps.slots).update(&slot.to_ne_bytes(), &bytes, UpdateMode::Any).expect("an array's value");
    }
    for slot in 0u32..2 {
        let bytes = value(rng);
        map(maps.counts)
            .update_all_cpus(&slot.to_ne_bytes(), &bytes, UpdateMode::Any)
            .expect("a value a CPU");
    }
    for key in 0u64..16 {
        let bytes = value(rng);
        if key < 8 && rng.below(2) == 0 {
            map(maps.flows).update(&key.to_ne_bytes(), &bytes, UpdateMode::Any).expect("an entry");
        } else {
            map(maps.flows).delete(&key.to_ne_bytes()).expect("an entry is removed");
        }
    }
    map(maps.totals).update(&0u32.to_ne_bytes(), &[0; 64], UpdateMode::Any).expect("global data");
}

fn packet(rng: &mut Rng) -> Vec<u8> {
    let length = [14, 20, 34, 42, 54, 60, 64, 100, 200, 400][rng.below(10) as usize];
    let small = rng.below(2) == 0;
    let byte = |rng: &mut Rng| if small { rng.below(8) as u8 } else { rng.next_u32() as u8 };
    let mut packet: Vec<u8> = (0..length).map(|_| byte(rng)).collect();
    if rng.below(2) == 0 {
        packet[12..14].copy_from_slice(&[8, 0]);
    }
    packet
}
