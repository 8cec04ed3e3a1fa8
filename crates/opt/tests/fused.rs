//! Fused chains behave as the chains: in the interpreter, a dispatcher with generated programs in its stubs is
//! compared with the programs run one after the other, as the dispatcher's constants say.
//!
//! `MILLSTREAM_PACKETS` is the number of packets over all chains (20,000 by default).

#[path = "../../object/tests/objects/common.rs"]
mod objects;

use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram};
use millstream_interp::{ContextKind, MachineState, MapConfig, MapContents, MapId as MachineMap, MapKind};
use millstream_isa::asm::assemble;
use millstream_isa::{MapType, encode_all};
use millstream_kernel::{TestRun, testing};
use millstream_loader::ObjectLoader;
use millstream_object::{
    AttachType, ChainComponent, Extern, ExternKind, FuncId, FuseError, FusedProgram, LoadableProgram,
    MapDefinition, MapId, MapOrigin, Object, ObjectMap, Pinning, ProgramType, Reloc, RelocKind, fuse,
};
use millstream_opt::{OptimizeOptions, optimize_chain};
use millstream_rng::Rng;

const PACKETS: u64 = 20_000;
const PER_CHAIN: u64 = 500;
/// Instructions of a fused program for each of the chain, at most.
const BAR: f64 = 0.8;
const PASS: u32 = 2;
/// Offsets in the dispatcher's constants.
const COUNT: u32 = 2;
const ACTIONS: u32 = 4;

/// A map of a component. Each has the same shape but for its type.
fn map(name: &str, map_type: MapType, value_size: u32) -> ObjectMap {
    let spec =
        MapDefinition { map_type, key_size: 4, value_size, max_entries: 8, ..MapDefinition::default() };
    ObjectMap {
        name: name.to_owned(),
        section: ".maps".to_owned(),
        origin: MapOrigin::Btf,
        spec,
        inner: None,
        initial: Vec::new(),
        data: None,
        variables: Vec::new(),
    }
}

/// An object of these instructions, in which `map[fd:N]` is map number N.
fn object(name: &str, text: &str, maps: Vec<ObjectMap>) -> Object {
    let insns = encode_all(&assemble(text).expect("it assembles"));
    let loads = insns.iter().enumerate().filter(|(_, i)| i.code == 0x18 && i.src == 1);
    let references =
        loads.map(|(at, i)| Reloc { insn: at as u32, kind: RelocKind::Map(MapId(i.imm as u32)) });
    let loadable = LoadableProgram {
        name: name.to_owned(),
        license: "GPL".to_owned(),
        program_type: ProgramType::XDP,
        attach_type: AttachType(0),
        references: references.collect(),
        insns,
        maps,
        settled: Vec::new(),
        btf: None,
        func_info: Vec::new(),
        line_info: Vec::new(),
    };
    loadable.into_object().expect("an object")
}

/// A component that derives its verdict from a byte of the packet, counts verdicts, and may write the packet, move
/// its start, and call another function or program.
fn component(number: usize, calls_others: bool, rng: &mut Rng) -> Object {
    let mut text = "r6 = r1\nr7 = 2\n".to_owned();
    if rng.below(3) == 0 {
        let by = [-8, -4, 2, 4][rng.below(4) as usize];
        text += &format!("r2 = {by}\ncall bpf_xdp_adjust_head\n");
    }
    let (byte, factor, shift) = (rng.below(40), 1 + rng.below(250), rng.below(5));
    text += &format!(
        "r2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\nr4 = r2\nr4 += {}\nif r4 > r3 goto count\n\
        r7 = *(u8 *)(r2 +{byte})\nr7 *= {factor}\nr7 >>= {shift}\nr7 &= 7\n",
        byte + 1
    );
    if rng.below(2) == 0 {
        text += &format!("r5 = *(u8 *)(r2 +{0})\nr5 += r7\n*(u8 *)(r2 +{0}) = r5\n", rng.below(byte + 1));
    }
    text += "count:\n*(u32 *)(r10 -4) = r7\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\n\
        if r0 == 0 goto counted\nr1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\ncounted:\n";
    if calls_others {
        text += "r1 = r6\nr2 = map[fd:1]\nr3 = r7\ncall bpf_tail_call\n";
    }
    let (odd, verdict) = (rng.below(8), [-1, 31, 33, 7][rng.below(4) as usize]);
    text += &format!("r0 = r7\nif r7 != {odd} goto end\nr0 = {verdict}\nend:\n");
    text += if rng.below(2) == 0 { "exit\n" } else { "r1 = r0\ncall keep\nexit\nkeep:\nr0 = r1\nexit\n" };
    let maps = vec![map("verdicts", MapType::ARRAY, 8), map("programs", MapType::PROG_ARRAY, 4)];
    object(&format!("component{number}"), &text, maps)
}

/// The program that tail calls reach: it shortens the packet by its start.
fn called() -> Object {
    let text = "r2 = 6\ncall bpf_xdp_adjust_head\nr0 += 3\nexit\n";
    object("called", text, Vec::new())
}

/// The dispatcher with constants for these chain masks.
fn dispatcher(masks: &[u32]) -> Option<Object> {
    let mut object = objects::read("dispatcher", &[])?;
    let constants = object.maps.iter().position(|m| m.origin == MapOrigin::Rodata).expect("constants");
    let constants = MapId(constants as u32);
    let size = object.maps[constants.index()].spec.value_size;
    let mut bytes = object.maps[constants.index()].data.clone().expect("constants have data");
    bytes[COUNT as usize] = masks.len() as u8;
    for (n, mask) in masks.iter().enumerate() {
        let at = ACTIONS as usize + 4 * n;
        bytes[at..at + 4].copy_from_slice(&mask.to_le_bytes());
    }
    assert_eq!(bytes.len(), size as usize);
    object.settle(constants, 0, &bytes).expect("it may be set");
    Some(object)
}

fn stub(host: &Object, n: usize) -> FuncId {
    let name = format!("prog{n}");
    FuncId(host.functions.iter().position(|f| f.name == name).expect("a stub") as u32)
}

/// The components in the stubs, in order.
fn chain<'a>(host: &Object, components: &'a [Object]) -> Vec<ChainComponent<'a>> {
    let placed = components.iter().enumerate();
    placed.map(|(n, object)| ChainComponent { target: stub(host, n), object, program: FuncId(0) }).collect()
}

fn fuse_all(host: &Object, components: &[Object]) -> Result<FusedProgram, FuseError> {
    fuse(host, host.programs[0].func, &chain(host, components))
}

/// A program of an object, with its maps by the numbers of a machine.
fn decoded(object: &Object, function: FuncId, maps: &[MapId]) -> DecodedProgram {
    let mut linked = object.link(function).expect("it links");
    for reloc in &linked.relocs {
        let is_value = matches!(reloc.kind, RelocKind::MapValue { .. });
        linked.insns[reloc.insn as usize].src = if is_value { 2 } else { 1 };
    }
    let mut program = DecodedProgram::new(&linked.insns).expect("valid");
    program.link(|slot, _, _| match linked.relocs.iter().find(|r| r.insn as usize == slot)?.kind {
        RelocKind::Map(map) => Some(MachineState::map_address(MachineMap(maps[map.index()].0))),
        RelocKind::MapValue { map, offset } => {
            Some(MachineState::value_address_of(MachineMap(maps[map.index()].0), offset))
        }
        _ => None,
    });
    program
}

/// A machine with the maps of a fused program; slots 1, 3 and 5 of program arrays have the program of this number.
fn machine(object: &Object, called: u32) -> MachineState {
    let mut machine = MachineState::new(ContextKind::Xdp);
    for (n, map) in object.maps.iter().enumerate() {
        let s = &map.spec;
        let kind = MapKind::from_number(s.map_type.0).expect("a kind that is modelled");
        let (key_size, value_size, max_entries, flags) = (s.key_size, s.value_size, s.max_entries, s.flags);
        machine.maps.add(MapConfig { kind, key_size, value_size, max_entries, flags }, 1).expect("room");
        let id = MachineMap(n as u32);
        if let Some(data) = &map.data {
            machine.maps.set(id, &[0; 4], data, 0).expect("constants");
        }
        for slot in [1u32, 3, 5].into_iter().filter(|_| s.map_type == MapType::PROG_ARRAY) {
            machine.maps.set(id, &slot.to_le_bytes(), &called.to_le_bytes(), 0).expect("a slot");
        }
    }
    machine
}

fn contents(machine: &mut MachineState, maps: usize) -> Vec<MapContents> {
    (0..maps as u32).map(|n| machine.maps.contents(MachineMap(n))).collect()
}

/// Instructions that a chain and its fused program have executed.
#[derive(Default)]
struct ExecutedCounts {
    chain: u64,
    fused: u64,
}

/// Compares a chain of this many programs with its fused program.
fn compare(programs: usize, packets: u64, rng: &mut Rng, counts: &mut ExecutedCounts) -> Option<()> {
    let masks: Vec<u32> = (0..programs).map(|_| rng.next_u32() | rng.next_u32()).collect();
    let host = dispatcher(&masks)?;
    let caller = rng.below(2 * programs as u64) as usize;
    let components: Vec<Object> = (0..programs).map(|n| component(n, n == caller, rng)).collect();
    let FusedProgram { object: fused, maps } =
        fuse_all(&host, &components).expect("a chain that can be fused");
    let options = OptimizeOptions { verify_ir: true, ..OptimizeOptions::default() };
    let optimized = optimize_chain(&host, host.programs[0].func, &chain(&host, &components), &options);
    let optimized = optimized.expect("it can be optimized").object;

    let all: Vec<MapId> = (0..fused.maps.len() as u32).map(MapId).collect();
    let main = fused.programs[0].func;
    let called = decoded(&called(), FuncId(0), &[]);
    let mut chain: Vec<_> =
        components.iter().zip(&maps).map(|(object, maps)| decoded(object, FuncId(0), maps)).collect();
    chain.push(called.clone());
    let linked = [decoded(&fused, main, &all), called.clone()];
    let optimized = [decoded(&optimized, main, &all), called];
    let mut machines = [machine(&fused, programs as u32), machine(&fused, 1), machine(&fused, 1)];
    for _ in 0..packets {
        let packet: Vec<u8> = (0..14 + rng.below(80)).map(|_| rng.next_u32() as u8).collect();
        let mut run = |n: usize, programs: &[DecodedProgram], program: usize, starts: bool| {
            let machine = &mut machines[n];
            if starts {
                machine.reset(&packet);
            }
            BytecodeInterpreter::new(programs).run_context(machine, program).expect("no fault") as u32
        };
        let mut expected = PASS;
        for (n, mask) in masks.iter().enumerate() {
            let verdict = run(0, &chain, n, n == 0);
            if 1u32.wrapping_shl(verdict) & mask == 0 {
                expected = verdict;
                break;
            }
        }
        assert_eq!([run(1, &linked, 0, true), run(2, &optimized, 0, true)], [expected; 2]);
        let [chain, linked, optimized] = &machines;
        assert_eq!(chain.packet.bytes(), linked.packet.bytes());
        assert_eq!(chain.packet.bytes(), optimized.packet.bytes());
    }
    // A linked chain executes what the kernel's does: replacement costs no instruction.
    counts.chain += machines[1].executed;
    counts.fused += machines[2].executed;
    let [chain, linked, optimized] = machines.each_mut().map(|m| contents(m, 1 + 2 * programs));
    // The last program array and its values are numbers of programs, which differ.
    let is_counter = |n: &usize| fused.maps[*n].spec.map_type != MapType::PROG_ARRAY;
    for n in (0..fused.maps.len().min(chain.len())).filter(is_counter) {
        assert_eq!(chain[n], linked[n], "{}", fused.maps[n].name);
        assert_eq!(chain[n], optimized[n], "{}", fused.maps[n].name);
    }
    Some(())
}

#[test]
fn fused_chains_behave_as_the_chains() {
    let given = std::env::var("MILLSTREAM_PACKETS").ok();
    let packets: u64 = given.map_or(PACKETS, |n| n.parse().expect("a number"));
    let mut rng = Rng::new(0xf05e);
    let mut done = 0;
    let mut counts = ExecutedCounts::default();
    while done < packets {
        for programs in 2..=10 {
            let per_chain = PER_CHAIN.max(packets / 180);
            if compare(programs, per_chain, &mut rng, &mut counts).is_none() {
                return;
            }
            done += per_chain;
        }
    }
    let share = counts.fused as f64 / counts.chain as f64;
    println!("{done} packets, {} and {} instructions: {share:.3}", counts.chain, counts.fused);
    assert!(share <= BAR, "{share:.3} of the chain's instructions");
}

#[test]
fn chains_that_one_program_cannot_be_are_refused() {
    let Some(host) = dispatcher(&[!0, !0]) else { return };
    let mut rng = Rng::new(1);
    let (quiet, caller) = (component(0, false, &mut rng), component(1, true, &mut rng));
    let refusal = |components: &[Object]| fuse_all(&host, components).expect_err("refused").to_string();

    let both = refusal(&[caller.clone(), caller.clone()]);
    assert!(both.contains("both make tail calls"), "{both}");
    let mut closed = quiet.clone();
    closed.license = "Proprietary".into();
    assert!(refusal(&[closed]).contains("licence"));
    let mut of_tc = quiet.clone();
    of_tc.programs[0].kind.program_type = ProgramType::SCHED_CLS;
    assert!(refusal(&[of_tc]).contains("another type"));
    let mut of_frags = host.clone();
    of_frags.programs[0].kind.frags = true;
    let error = fuse_all(&of_frags, std::slice::from_ref(&quiet)).expect_err("refused").to_string();
    assert!(error.contains("several buffers"), "{error}");
    let mut frozen = quiet.clone();
    frozen.frozen = Some("its types cannot be read".into());
    assert!(refusal(&[frozen]).contains("its types cannot be read"));

    let twice = ChainComponent { target: stub(&host, 0), object: &quiet, program: FuncId(0) };
    let error = fuse(&host, host.programs[0].func, &[twice, twice]).expect_err("refused");
    assert!(error.to_string().contains("two programs replace it"), "{error}");
    let mut with_extern = quiet.clone();
    let kind = ExternKind::Ksym { type_id: None };
    with_extern.externs.push(Extern { name: "jiffies".into(), kind, weak: false });
    assert!(refusal(&[with_extern]).contains("kernel variables"));
    let main = ChainComponent { target: host.programs[0].func, ..twice };
    let error = fuse(&host, host.programs[0].func, &[main]).expect_err("refused");
    assert!(error.to_string().contains("it is not global"), "{error}");
}

#[test]
fn maps_that_are_pinned_by_one_name_are_one() {
    let Some(host) = dispatcher(&[!0, !0]) else { return };
    let pinned = |entries: u32| {
        let mut object = component(0, false, &mut Rng::new(2));
        object.maps[0].spec.pinning = Pinning::ByName;
        object.maps[0].spec.max_entries = entries;
        object
    };
    let fused = fuse_all(&host, &[pinned(8), pinned(8)]).expect("one map");
    assert_eq!(fused.maps[0][0], fused.maps[1][0]);
    assert_ne!(fused.maps[0][1], fused.maps[1][1]);
    let error = fuse_all(&host, &[pinned(8), pinned(16)]).expect_err("two sizes");
    assert_eq!(error, FuseError::PinnedMaps("verdicts".into()));
}

/// A frame of this EtherType, of the least length.
fn frame(ether_type: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
    frame
}

#[test]
fn files_of_fused_programs_have_the_same_programs_and_maps() {
    let Some(host) = dispatcher(&[1 << PASS, !0]) else { return };
    let compiled = ["0x800", "0x806"].map(|ether_type| {
        objects::read("component", &[&format!("-DETHERTYPE={ether_type}"), "-DVERDICT=XDP_DROP"])
            .expect("clang is here")
    });
    let program = compiled[0].programs[0].func;
    let mut chain = chain(&host, &compiled);
    chain.iter_mut().for_each(|c| c.program = program);
    let main = host.programs[0].func;
    let plain = fuse(&host, main, &chain).expect("a chain that can be fused").object;
    let optimized =
        optimize_chain(&host, main, &chain, &OptimizeOptions::default()).expect("it is optimized").object;
    for object in [plain, optimized] {
        let file = object.write().expect("it has a file");
        let read = Object::parse("fused.o", &file).expect("it can be read");
        assert!(read.notes.is_empty() && read.frozen.is_none(), "{:?}", read.notes);
        let again = &read.programs[0];
        assert_eq!((again.name.as_str(), read.license.as_str()), ("dispatch", "GPL"));
        let shapes = |o: &Object| {
            let shape = |m: &ObjectMap| {
                let s = &m.spec;
                (m.section.clone(), s.map_type, s.key_size, s.value_size, s.max_entries, m.data.clone())
            };
            let mut all: Vec<_> = o.maps.iter().map(shape).collect();
            all.sort_unstable_by(|a, b| (&a.0, a.1.0, &a.5).cmp(&(&b.0, b.1.0, &b.5)));
            all
        };
        assert_eq!(shapes(&object), shapes(&read));
        let (linked, relinked) = (object.link(main).expect("links"), read.link(again.func).expect("links"));
        assert_eq!(linked.insns.len(), relinked.insns.len());
        assert_eq!(linked.func_info.len(), relinked.func_info.len());
        assert_eq!(linked.line_info.len(), relinked.line_info.len());
        let named = |o: &Object, r: &Reloc| match r.kind {
            RelocKind::Map(map) => (r.insn, o.maps[map.index()].spec.map_type, 0),
            RelocKind::MapValue { map, offset } => (r.insn, o.maps[map.index()].spec.map_type, offset),
            other => panic!("{other:?} in a linked program"),
        };
        let relocs = |o: &Object, l: &millstream_object::LinkedProgram| {
            l.relocs.iter().map(|r| named(o, r)).collect::<Vec<_>>()
        };
        assert_eq!(relocs(&object, &linked), relocs(&read, &relinked));
    }
}

#[test]
fn programs_without_a_file_are_not_written() {
    let error = component(0, false, &mut Rng::new(3)).write().expect_err("no file");
    assert!(error.to_string().contains("no file"), "{error}");
}

#[test]
fn kernels_accept_fused_programs_and_each_component_has_its_maps() {
    if !testing::require() {
        return;
    }
    const DROP: u32 = 1;
    const TX: u32 = 3;
    // The first passes on what it drops, the second ends the chain with anything but PASS.
    let Some(host) = dispatcher(&[1 << PASS | 1 << DROP, 1 << PASS, !0]) else { return };
    let flags = [("0x800", "XDP_DROP"), ("0x86dd", "XDP_TX"), ("0x806", "XDP_TX")];
    let compiled = flags.map(|(ether_type, verdict)| {
        objects::read("component", &[&format!("-DETHERTYPE={ether_type}"), &format!("-DVERDICT={verdict}")])
            .expect("clang is here")
    });
    let program = compiled[0].programs[0].func;
    let mut chain = chain(&host, &compiled);
    chain.iter_mut().for_each(|c| c.program = program);
    let main = host.programs[0].func;
    let plain = fuse(&host, main, &chain).expect("a chain that can be fused");
    let optimized =
        optimize_chain(&host, main, &chain, &OptimizeOptions::default()).expect("it is optimized");
    for FusedProgram { object, maps } in [plain, optimized] {
        let session = ObjectLoader::new(&object).prepare().expect("maps are made");
        let linked = object.link(main).expect("it links");
        assert!(!linked.func_info.is_empty(), "the types of functions are kept");
        let loaded = session.load(main, &linked).expect("the kernel accepts it");
        let verdict =
            |ether_type| loaded.test_run(&TestRun::packet(&frame(ether_type))).expect("a test run").retval;
        assert_eq!([0x800, 0x86dd, 0x806, 0x88cc].map(verdict), [PASS, TX, PASS, PASS]);
        let lengths = |n: usize| {
            let map = compiled[n].maps.iter().position(|m| m.name == "lengths").expect("its map");
            let map = session.map(maps[n][map]).expect("it was made");
            map.lookup(&1u32.to_ne_bytes())
                .expect("it is read")
                .map(|v| u64::from_ne_bytes(v.try_into().unwrap()))
        };
        // The class is added up over the calls of the callback: 0 + 1 + 2 + 3.
        assert_eq!([0, 1, 2].map(lengths), [Some(24), Some(24), Some(18)]);
    }
}
