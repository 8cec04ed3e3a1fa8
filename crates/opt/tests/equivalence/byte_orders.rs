//! The data planes on a big-endian machine: clang compiles them for it, the interpreter runs them as they are
//! and optimized beside those for a little-endian one, on the same frames and tables.
//!
//! Tables are given in little-endian order, and exchanged by the types of their maps.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use millstream_btf::{Btf, TypeId, TypeKind};
use millstream_interp::{MachineState, MapContents, MapId};
use millstream_isa::ByteOrder;
use millstream_object::{Object, ObjectMap};
use millstream_opt::{OptimizeOptions, ValidationResult, optimize, validate};
use millstream_programs::{BALANCER, DataPlaneProgram, FIREWALL, MapEntry, NAT, ROUTER, SWITCH};
use millstream_prove::ProofLimits;
use millstream_rng::Rng;

use crate::frames::{self, Seen};
use crate::interpreted::InterpretedProgram;
use crate::planes::{self, State};

/// Frames for each state of the tables.
const FRAMES: usize = 1_500;

/// The program as clang compiles it for a big-endian machine, without the programs' build script.
fn big_endian(name: &str) -> Object {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.o", std::process::id()));
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let status = Command::new(&clang)
        .current_dir(&root)
        .args(["-O2", "-g", "-target", "bpfeb", "-mcpu=v3", "-fno-strict-aliasing", "-idirafter", &headers])
        .args(["-Iprograms/include", "-c", &format!("programs/{name}/{name}.bpf.c"), "-o"])
        .arg(&out)
        .status()
        .unwrap_or_else(|e| panic!("{clang}: {e}"));
    assert!(status.success(), "{clang} rejects {name}");
    let data = std::fs::read(&out).expect("what clang wrote");
    std::fs::remove_file(&out).expect("our own file");
    Object::parse(name, &data).expect("an object")
}

/// Places of all numbers of a type that are of the machine's order.
fn numbers(btf: &Btf, id: TypeId, start: usize, places: &mut Vec<Range<usize>>) {
    if matches!(btf.name(id), "__be16" | "__be32" | "__be64") {
        return;
    }
    let size = |id: TypeId| btf.size_of(id).expect("a size") as usize;
    match btf.ty(id).expect("a type").kind {
        // All fields of a union are numbers of its size.
        TypeKind::Int(_) | TypeKind::Enum(_) | TypeKind::Union(_) => places.push(start..start + size(id)),
        TypeKind::Typedef(to) | TypeKind::Const(to) | TypeKind::Volatile(to) => {
            numbers(btf, to, start, places)
        }
        TypeKind::Array(array) => {
            let element = size(array.element);
            (0..array.len as usize).for_each(|i| numbers(btf, array.element, start + i * element, places));
        }
        TypeKind::Struct(fields) => {
            for member in fields.members {
                numbers(btf, member.ty, start + member.bit_offset as usize / 8, places);
            }
        }
        kind => panic!("a table with a {kind:?}"),
    }
}

/// Keys or values of a map, for a machine of the other byte order.
struct ByteExchange {
    size: usize,
    numbers: Vec<Range<usize>>,
}

impl ByteExchange {
    fn new(object: &Object, ty: Option<TypeId>, size: u32) -> ByteExchange {
        let (mut numbers, size) = (Vec::new(), size as usize);
        match (&object.btf, ty) {
            (Some(btf), Some(ty)) => self::numbers(btf, ty, 0, &mut numbers),
            // Maps of interfaces have no types, and numbers alone.
            _ => numbers.extend((0..size).step_by(4).map(|at| at..at + 4)),
        }
        ByteExchange { size, numbers }
    }

    /// Those of the map's keys and values.
    fn of_map(object: &Object, map: &ObjectMap) -> [ByteExchange; 2] {
        let spec = &map.spec;
        [(spec.key_type, spec.key_size), (spec.value_type, spec.value_size)]
            .map(|(ty, size)| ByteExchange::new(object, ty, size))
    }

    /// Exchanges the bytes of all numbers of one key, or of a value for each processor.
    fn apply(&self, bytes: &mut [u8]) {
        for copy in bytes.chunks_mut(self.size.next_multiple_of(8)) {
            self.numbers.iter().for_each(|place| copy[place.clone()].reverse());
        }
    }
}

/// Entries of maps in the other byte order.
fn all_exchanged(object: &Object, entries: &[MapEntry]) -> Vec<MapEntry> {
    let maps: HashMap<_, _> =
        object.maps.iter().map(|map| (map.name.as_str(), ByteExchange::of_map(object, map))).collect();
    let mut others = entries.to_vec();
    for other in &mut others {
        let [keys, values] = &maps[other.map];
        keys.apply(&mut other.key);
        values.apply(&mut other.value);
    }
    others
}

/// Contents of all tables in little-endian order, with their names.
fn contents<'a>(object: &'a Object, machine: &mut MachineState) -> Vec<(&'a str, MapContents)> {
    let mut all = Vec::new();
    for (at, map) in object.maps.iter().enumerate().filter(|(_, m)| !m.origin.is_global()) {
        let mut contents = machine.maps.contents(MapId(at as u32));
        if object.byte_order() == ByteOrder::Big {
            let [keys, values] = ByteExchange::of_map(object, map);
            match &mut contents {
                MapContents::Values { bytes, order, .. } => {
                    values.apply(bytes);
                    *order = ByteOrder::Little;
                }
                MapContents::Entries(entries) => {
                    for (key, value) in entries.iter_mut() {
                        keys.apply(key);
                        values.apply(value);
                    }
                    entries.sort();
                }
            }
        }
        all.push((map.name.as_str(), contents));
    }
    all.sort_by_key(|(name, _)| *name);
    all
}

/// Programs that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedPrograms {
    /// Those for both machines.
    All,
    /// Those for the big-endian one: what a program does depends on the machine's order, as hashes of words do.
    BigEndian,
}

/// Runs the same frames over the same tables on both machines.
fn check(program: &DataPlaneProgram, compared: ComparedPrograms, state: fn(&mut Rng) -> State) {
    let little = Object::parse(program.name, program.object).expect("our own object");
    let big = big_endian(program.name);
    assert_eq!(big.byte_order(), ByteOrder::Big);
    let options = OptimizeOptions { keep_longer: true, ..OptimizeOptions::default() };
    let optimized = optimize(&big, &options).expect("optimized");
    let written = optimized.object.write().expect("written");
    let optimized = Object::parse(program.name, &written).expect("what was written");
    let first = if compared == ComparedPrograms::All { &little } else { &big };
    let objects = [first, &big, &optimized];
    let programs = objects.map(|object| InterpretedProgram::new(object, program.function));
    let mut rng = Rng::new(0xb16);
    for _ in 0..2 {
        let state = state(&mut rng);
        let in_order = |entries: &[MapEntry], object: &Object| match object.byte_order() {
            ByteOrder::Little => entries.to_vec(),
            ByteOrder::Big => all_exchanged(object, entries),
        };
        let mut machines =
            [0, 1, 2].map(|n: usize| programs[n].machine(&in_order(&state.entries, objects[n])));
        let (mut seen, mut now) = (Seen::default(), 1_000_000_000_000);
        for _ in 0..FRAMES {
            if rng.below(16) == 0 {
                now += [1_000, 1_000_000_000, 8_000_000_000_000][rng.below(3) as usize];
                programs.iter().zip(&mut machines).for_each(|(p, m)| p.set_clock(m, now));
            }
            if rng.below(64) == 0 && !state.writes.is_empty() {
                let write = &state.writes[rng.below(state.writes.len() as u64) as usize];
                for ((program, machine), object) in programs.iter().zip(&mut machines).zip(objects) {
                    program.apply(machine, &in_order(write, object));
                }
            }
            let frame = frames::disturbed(&state.frame(&mut rng), &seen, &mut rng);
            let mut outcomes = programs.iter().zip(&mut machines).map(|(p, m)| p.run(m, &frame));
            let first = outcomes.next().expect("three programs");
            for (who, other) in ["big-endian", "big-endian, optimized"].iter().zip(outcomes) {
                assert_eq!(first, other, "{who}, for {frame:02x?}");
            }
            if first.0 >= 3 {
                seen.sent.clone_from(&first.1);
            }
            seen.last = frame;
        }
        let [first, others @ ..] = [0, 1, 2].map(|n: usize| contents(objects[n], &mut machines[n]));
        for other in others {
            assert_eq!(first.len(), other.len(), "{}", program.name);
            for ((name, contents), (other_name, other)) in first.iter().zip(&other) {
                let difference = (contents != other).then(|| contents.difference(other));
                assert_eq!((*name, difference), (*other_name, None), "{}", program.name);
            }
        }
    }
}

#[test]
fn a_router_for_a_big_endian_machine_does_the_same() {
    check(&ROUTER, ComparedPrograms::All, planes::router);
}

#[test]
fn a_switch_for_a_big_endian_machine_does_the_same() {
    check(&SWITCH, ComparedPrograms::All, planes::switch);
}

#[test]
fn a_nat_for_a_big_endian_machine_does_what_it_did() {
    check(&NAT, ComparedPrograms::BigEndian, planes::nat);
}

#[test]
fn a_firewall_for_a_big_endian_machine_does_the_same() {
    check(&FIREWALL, ComparedPrograms::All, planes::firewall);
}

#[test]
fn a_balancer_for_a_big_endian_machine_does_what_it_did() {
    check(&BALANCER, ComparedPrograms::BigEndian, planes::balancer);
}

#[test]
fn results_for_big_endian_machines_are_proven() {
    let object = big_endian(ROUTER.name);
    let options = OptimizeOptions::default();
    let optimized = optimize(&object, &options).expect("optimized");
    let proofs =
        validate(&object, &optimized, &options, None, &ProofLimits::default()).expect("linked and compared");
    for proof in proofs {
        assert!(matches!(proof.verdict, ValidationResult::Equivalent), "{proof:?}");
    }
}
