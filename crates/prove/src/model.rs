//! Converts a solver's counterexample, values of terms, to a packet, a context and entries of maps.

use rustc_hash::FxHashMap;

use crate::program::MapSignature;
use crate::replay::ReplayInput;
use crate::solver::SolverModel;
use crate::state::initial_memory;
use crate::term::{ENTRY, FOUND, MATCH, Sort, TermId, TermNode, TermPool};
use crate::value::MemorySpace;

/// Largest packet that is put together.
const LONGEST: u64 = 9000;

/// Calls that identify the process that runs the program.
const PROCESS: [&str; 2] = ["bpf_get_current_pid_tgid ", "bpf_get_current_uid_gid "];

/// The terms whose values determine the scene.
pub(crate) fn wanted(terms: &TermPool, cone: &[TermId]) -> Vec<TermId> {
    let mut out = Vec::new();
    for t in cone {
        if !matches!(terms.sort(*t), Sort::Bool | Sort::Bits(_)) {
            continue;
        }
        match terms.node(*t) {
            TermNode::App(_, args) => {
                out.push(*t);
                out.extend(args.iter().filter(|a| matches!(terms.sort(**a), Sort::Bits(_))));
            }
            TermNode::Select(_, o, f) => out.extend([*t, *o, *f]),
            _ => {}
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// The scene that a model describes; everything that it leaves open is zero.
pub(crate) fn scene(
    terms: &mut TermPool,
    cone: &[TermId],
    model: &SolverModel,
    maps: &[MapSignature],
) -> ReplayInput {
    let roots = roots(terms, maps);
    let value = |t: TermId, terms: &TermPool| terms.value(t).or_else(|| model.get(&t).copied());
    let mut scene = ReplayInput { time: 1 << 30, seed: 1, ..ReplayInput::default() };
    // Bytes of memories before the program runs, by object and offset.
    let mut bytes: FxHashMap<(MemorySpace, u64), Vec<(u64, u8)>> = FxHashMap::default();
    let mut found: Vec<(MemorySpace, Vec<u8>, Box<[TermId]>)> = Vec::new();
    let mut entries: FxHashMap<(MemorySpace, Box<[TermId]>), u64> = FxHashMap::default();
    for t in cone {
        let Some(v) = value(*t, terms) else { continue };
        match terms.node(*t) {
            TermNode::Select(m, o, f) => {
                let (Some(space), Some(o), Some(f)) = (roots.get(m), value(*o, terms), value(*f, terms))
                else {
                    continue;
                };
                bytes.entry((*space, o)).or_default().push((f, v as u8));
            }
            TermNode::App(f, args) => {
                let name = terms.name(*f);
                if name == "result"
                    && let [event] = args[..]
                    && let TermNode::App(call, _) = terms.node(event)
                    && let Some(which) = PROCESS.iter().position(|p| terms.name(*call).starts_with(p))
                {
                    scene.process[which] = v;
                } else if name == "packet length" {
                    scene.packet.resize(v.min(LONGEST) as usize, 0);
                } else if let Some(space) = name.strip_prefix(FOUND).and_then(|n| named(n, maps)) {
                    if v == 1 {
                        found.push((space, key(terms, args, &value), args.clone()));
                    }
                } else if let Some(space) =
                    name.strip_prefix(ENTRY).or(name.strip_prefix(MATCH)).and_then(|n| named(n, maps))
                {
                    entries.insert((space, args.clone()), v);
                }
            }
            _ => {}
        }
    }
    for ((space, object), list) in &bytes {
        match space {
            MemorySpace::Packet => {
                for (at, byte) in list {
                    if let Some(place) = scene.packet.get_mut(*at as usize) {
                        *place = *byte;
                    }
                }
            }
            MemorySpace::Context => scene.context.extend(list.iter().map(|(at, byte)| (*at as usize, *byte))),
            // Arrays and global data: the object is the index.
            MemorySpace::Map(m) if matches!(maps[*m as usize].number, 2 | 6) => {
                let map = &maps[*m as usize];
                let start = map.data.clone().filter(|_| *object == 0);
                let index = terms.forms().order.bytes_of_u32(*object as u32);
                scene.entries.push((*m as usize, (index.to_vec(), laid(start, map, list))));
            }
            _ => {}
        }
    }
    for (space, key, args) in found {
        let MemorySpace::Map(m) = space else { continue };
        let object = entries.get(&(space, args)).copied().unwrap_or(0);
        let list = bytes.get(&(space, object)).cloned().unwrap_or_default();
        scene.entries.push((m as usize, (key, laid(None, &maps[m as usize], &list))));
    }
    scene.context.sort_unstable();
    scene.entries.sort();
    scene
}

/// The memories that are there before a program runs.
fn roots(terms: &mut TermPool, maps: &[MapSignature]) -> FxHashMap<TermId, MemorySpace> {
    let spaces = [MemorySpace::Packet, MemorySpace::Context]
        .into_iter()
        .chain((0..maps.len() as u32).map(MemorySpace::Map));
    spaces.map(|s| (initial_memory(terms, s), s)).collect()
}

fn named(name: &str, maps: &[MapSignature]) -> Option<MemorySpace> {
    (0..maps.len() as u32).map(MemorySpace::Map).find(|s| format!("{s:?}") == name)
}

/// The bytes of a key. A lookup has the state of the entries as its first argument, and then eight bytes in
/// each.
fn key(terms: &TermPool, args: &[TermId], value: &impl Fn(TermId, &TermPool) -> Option<u64>) -> Vec<u8> {
    let parts = args.iter().skip(1);
    parts
        .flat_map(|a| {
            let n = terms.bits(*a) as usize / 8;
            let mut bytes = vec![0; n];
            terms.forms().order.put(value(*a, terms).unwrap_or(0), &mut bytes);
            bytes
        })
        .collect()
}

fn laid(start: Option<Vec<u8>>, map: &MapSignature, list: &[(u64, u8)]) -> Vec<u8> {
    let mut out = start.unwrap_or_else(|| vec![0; map.value_size as usize]);
    for (at, byte) in list {
        if let Some(place) = out.get_mut(*at as usize) {
            *place = *byte;
        }
    }
    out
}
