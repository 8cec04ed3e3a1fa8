//! Caches of tables that the data plane writes: they agree with the tables, whoever writes.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use millstream_kernel::{
    KernelProgram, Link, TestRun, UpdateMode, XdpMode, query_xdp, replace_xdp_netlink, testing,
};
use millstream_lab::os::monotonic_ns;
use millstream_lab::subject::InsnCounts;
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_loader::ObjectLoader;
use millstream_object::Object;
use millstream_programs::nat::{self, CONNECTIONS, NatFlow, NatTranslation, ProtocolMix};
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{NAT, SWITCH, switch};
use millstream_rng::Rng;
use millstream_specialize::caches::EntryCaches;
use millstream_specialize::live::details::LookupMethod;
use millstream_specialize::replay::sample::PacketSample;
use millstream_specialize::{DetachPolicy, LiveSession, SessionReport, variant_compiler};
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::LookupPlan;

use crate::offline::{INGRESS, Made, Offline, compiler};
use crate::routed::{End, alone, generation, keep_fast, settings};

/// Traffic of this many TCP connections.
fn tcp(config: &nat::NatConfig, count: usize) -> nat::NatTraffic {
    nat::traffic(config, count, ProtocolMix { tcp: 100, udp: 0 }, FlowLocality::NONE, 1)
}

/// The frame with these TCP flags.
fn flagged(frame: &[u8], flags: u8) -> PacketSample {
    let mut packet = frame.to_vec();
    packet[14 + 20 + 13] = flags;
    PacketSample { packet, context: Vec::new() }
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN: u8 = 0x11;

/// A SYN on a closed connection begins another, so a program that has not seen the FIN recorded by another
/// packet behaves differently.
#[test]
fn writers_that_do_not_count_are_found_out() {
    if !testing::require() {
        return;
    }
    let config = nat::generate(INGRESS, 2, 1, 1);
    let frames = tcp(&config, 200).outbound.packets;
    let compiler = compiler(&NAT);
    let entries = config.entries().expect("entries");
    let (profiles, _) = Offline::new(&compiler, &entries).profile(&frames);
    // No connection is old: a program with only an old copy would look up a connection that was idle for long
    // each time.
    let plane = Offline::new(&compiler, &entries);
    let life = [SYN, ACK, FIN, SYN, ACK];
    let samples: Vec<PacketSample> =
        life.iter().flat_map(|f| frames.iter().map(|p| flagged(p, *f))).collect();
    for counts in [true, false] {
        plane.is_the_same_if(counts, &profiles, &samples, |plan| {
            assert!(plan.caches.iter().any(|c| !c.writers.is_empty()), "{:?}", plan.caches);
        });
    }
}

/// The source port of the answer to a frame that came in at a port.
fn port(program: &KernelProgram, frame: &[u8], ingress: u32) -> u16 {
    let mut context = vec![0; 24];
    context[4..8].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
    context[12..16].copy_from_slice(&ingress.to_ne_bytes());
    let run = TestRun { context: &context, ..TestRun::packet(frame) };
    let out = program.test_run(&run).expect("a test run");
    u16::from_be_bytes(out.data[34..36].try_into().expect("two bytes"))
}

/// Another port for a connection, in its entry of the outbound direction.
fn move_to(map: &millstream_kernel::KernelMap, (flow, connection): &(NatFlow, NatTranslation), port: u16) {
    let mut moved = *connection;
    moved.port = port;
    let value = moved.encode();
    map.update(&flow.encode(), &value, UpdateMode::Any).expect("an entry");
}

fn shapes(made: &Made) -> EntryCaches {
    EntryCaches::new(made.caches.iter().map(|c| (c.of, c.shape))).expect("memory")
}

/// The daemon's count of writers decides if copies are made and used.
#[test]
fn copies_are_used_only_while_nobody_is_counted_in() {
    if !testing::require() {
        return;
    }
    let config = nat::generate(INGRESS, 2, 1, 1);
    let traffic = tcp(&config, 100);
    let compiler = compiler(&NAT);
    let mut plane = Offline::new(&compiler, &config.entries().expect("entries"));
    plane.write(&traffic.entries(monotonic_ns()));
    let (profiles, _) = plane.profile(&traffic.outbound.packets);
    let made = plane.variant(&profiles, Tier::Thorough, |_| ()).expect("a variant");
    let mut caches = shapes(&made);
    let program = plane.at_work(&made, &caches);
    let map = plane.session.map_by_name(CONNECTIONS).expect("the table");
    let frame = &traffic.outbound.packets[7];
    let entry = traffic.mappings[7].directions(monotonic_ns())[0];
    assert_eq!(port(&program, frame, INGRESS), entry.1.port);
    // Somebody is counted in from the beginning.
    move_to(map, &entry, 7_001);
    assert_eq!(port(&program, frame, INGRESS), 7_001);
    assert_eq!(caches.cold(), Duration::ZERO, "no copies are made that could be waited for");
    caches.close();
    assert_eq!(port(&program, frame, INGRESS), 7_001);
    move_to(map, &entry, 7_002);
    assert_eq!(port(&program, frame, INGRESS), 7_001, "a copy answers: the table is not asked");
    caches.forget();
    assert_eq!(port(&program, frame, INGRESS), 7_002, "no copy of before");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(caches.cold(), Duration::ZERO, "most copies that there can be have been made");
    caches.open();
    move_to(map, &entry, 7_003);
    assert_eq!(port(&program, frame, INGRESS), 7_003);
    caches.settle();
    assert_eq!(port(&program, frame, INGRESS), 7_003);
    move_to(map, &entry, 7_004);
    assert_eq!(port(&program, frame, INGRESS), 7_003, "after a grace period there are copies again");
}

/// A map of least recent use evicts the same entries, with lookups answered by copies or not.
#[test]
fn recent_use_is_what_it_was() {
    if !testing::require() {
        return;
    }
    // New stations push others out, several times as many as there is room for.
    let config = switch::generate(4_000, &[INGRESS, 2], &[10], switch::VlanLayout::Access, 1);
    let flows = switch::flows(&config, INGRESS, 400, FlowLocality::HIGH, 2);
    let compiler = compiler(&SWITCH);
    let plane = Offline::new(&compiler, &config.entries().expect("entries"));
    let (profiles, _) = plane.profile(&flows.packets);
    let (mut rng, mut station) = (Rng::new(5), 0);
    let mut samples = Vec::new();
    for n in flows.sequence(3, 60_000) {
        let mut packet = flows.packets[n as usize].clone();
        // An unknown station sends two frames, so that its entry has been used as well.
        match samples.len() % 3 {
            0 => station = rng.next_u32(),
            1 => {}
            _ => station = u32::from_ne_bytes(packet[8..12].try_into().expect("four bytes")),
        }
        packet[8..12].copy_from_slice(&station.to_ne_bytes());
        samples.push(PacketSample { packet, context: Vec::new() });
    }
    for counts in [true, false] {
        plane.is_the_same_if(counts, &profiles, &samples, |plan| {
            assert!(!plan.caches.is_empty(), "{plan:?}");
        });
    }
}

/// A session, while packets flow and the control plane moves connections: each answer after a write is the
/// new one.
#[test]
fn no_answer_is_stale_beside_a_session() {
    if !testing::require() {
        return;
    }
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let config = nat::generate(rig.test_port(), rig.second_port(), 4, 1);
    let traffic = tcp(&config, 1_000);
    let sequence = traffic.outbound.sequence(1, 1 << 13);
    rig.load_traffic(&TrafficSequence::new(&traffic.outbound, &sequence)).expect("traffic");
    let object = Object::parse(NAT.name, NAT.object).expect("our own object");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let (told, stop) = (Mutex::new(Vec::<SessionReport>::new()), AtomicBool::new(false));
    rig.namespace()
        .enter(|| {
            let mut live =
                LiveSession::load(&compiler, settings("caches", Duration::from_millis(200))).expect("loaded");
            for entry in config.entries().expect("entries").iter().chain(&traffic.entries(monotonic_ns())) {
                let map = live.map(entry.map).expect(entry.map);
                map.update(&entry.key, &entry.value, UpdateMode::Any).expect(entry.map);
            }
            live.attach(&[rig.test_port()]).expect("attached");
            let table = live.map(CONNECTIONS).expect("the table").try_clone().expect("a descriptor");
            std::thread::scope(|scope| {
                scope.spawn(|| rig.generator_loop(&stop, Some(200_000.0)));
                let script = scope.spawn(|| {
                    let _end = End(&stop);
                    moved(&rig, &traffic, &table, &told)
                });
                live.run(&stop, &mut |r| told.lock().expect("no panic").push(r.clone())).expect("runs");
                script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
            let details = live.details().expect("details");
            let cached = details.lookups.iter().filter(|l| l.how == LookupMethod::Cache);
            assert!(cached.clone().any(|l| l.map == CONNECTIONS), "{:?}", details.lookups);
            // Detached, copies of the variant do what it does at work.
            live.detach().expect("taken off");
            let often: Vec<Vec<u8>> = (0..200).map(|n| traffic.outbound.packets[n % 10].clone()).collect();
            let (original, variant) = counted(&mut live, &often, rig.test_port());
            let calls = |c: InsnCounts| c.map_calls.expect("all is modelled");
            assert!(calls(variant) < calls(original) - 0.5, "{variant:?} {original:?}");
            // Connections that nobody knows, from other ports, each once: calls are counted once they are
            // known, copies and all.
            let new = |frame: &Vec<u8>| [&frame[..34], &[frame[34] ^ 0x40], &frame[35..]].concat();
            let new: Vec<Vec<u8>> = traffic.outbound.packets.iter().take(50).map(new).collect();
            let (original, variant) = counted(&mut live, &new, rig.test_port());
            assert!(calls(variant) < calls(original) - 0.5, "{variant:?} {original:?}");
            live.finish(DetachPolicy::Restored).expect("finished");
        })
        .expect("in the namespace");
    assert_eq!(rig.counts().expect("counts").lost(), 0, "packets were lost");
}

/// Counts what original and variant of a detached session execute. Calls of other processes that the guard
/// cannot resolve revoke the variant, on a machine where much runs beside this: then the session goes on until
/// it has approved it again.
fn counted(live: &mut LiveSession<'_>, packets: &[Vec<u8>], ingress: u32) -> (InsnCounts, InsnCounts) {
    for _ in 0..20 {
        if let (original, Some(variant)) = live.counted(packets, ingress).expect("counted") {
            return (original, variant);
        }
        let stop = AtomicBool::new(false);
        live.attach(&[ingress]).expect("attached");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _end = End(&stop);
                std::thread::sleep(Duration::from_secs(1));
            });
            live.run(&stop, &mut |_| {}).expect("runs");
        });
        live.detach().expect("taken off");
    }
    panic!("each time somebody revoked the variant before it was counted");
}

/// Moves connections once there is a variant, and asks what is on the hook at once.
fn moved(
    rig: &TestRig,
    traffic: &nat::NatTraffic,
    table: &millstream_kernel::KernelMap,
    told: &Mutex<Vec<SessionReport>>,
) {
    let start = Instant::now();
    while !told.lock().expect("no panic").iter().any(|r| generation(r).is_some()) {
        assert!(start.elapsed() < Duration::from_secs(60), "no generation: {told:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    for n in 0..400u16 {
        let at = usize::from(n) * 7 % traffic.mappings.len();
        let entry = traffic.mappings[at].directions(monotonic_ns())[0];
        let ingress = rig.test_port();
        let held = rig.namespace().enter(|| query_xdp(ingress)).expect("the namespace");
        let id = held.expect("an answer").expect("a program is there").program_id;
        let program = KernelProgram::from_id(id).expect("a descriptor");
        let answer = || {
            let port = || port(&program, &traffic.outbound.packets[at], ingress);
            rig.namespace().enter(port).expect("the namespace")
        };
        // It has a copy now, if copies are made.
        answer();
        move_to(table, &entry, 20_000 + n);
        assert_eq!(answer(), 20_000 + n, "stale");
        std::thread::sleep(Duration::from_millis(u64::from(n % 9)));
    }
    // The last write is answered as well.
    std::thread::sleep(Duration::from_millis(200));
}

/// A packet that writes by one pointer to an entry and reads by another sees its own write; writes in
/// functions are counted as well.
#[test]
fn a_packet_sees_what_it_has_written_itself() {
    if !testing::require() {
        return;
    }
    let Some(object) = crate::fixtures::read("twice", &[]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let mut rng = Rng::new(1);
    let samples: Vec<PacketSample> = (0..4_000)
        .map(|_| {
            let mut packet = vec![0; 64];
            packet[26..30].copy_from_slice(&rng.next_u32().to_ne_bytes());
            PacketSample { packet, context: Vec::new() }
        })
        .collect();
    let frames: Vec<Vec<u8>> = samples.iter().map(|s| s.packet.clone()).collect();
    let (profiles, _) = Offline::new(&compiler, &[]).profile(&frames);
    for counts in [true, false] {
        // Entries come anew with each plane.
        let plane = Offline::new(&compiler, &[]);
        plane.is_the_same_if(counts, &profiles, &samples, |plan| {
            assert!(plan.caches.iter().any(|c| c.callees().count() == 1), "{:?}", plan.caches);
        });
    }
}

/// A copy that a packet still reads is not overwritten when it looks up another entry with the same slot.
#[test]
fn copies_that_a_packet_holds_stay() {
    if !testing::require() {
        return;
    }
    let Some(object) = crate::fixtures::read("pair", &[]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let of = compiler.cacheable().next().expect("a map that is written");
    let cache = compiler.cache_for(of).expect("it can have a cache");
    let wanted = cache.slot(&[0; 4]);
    let keys: Vec<[u8; 4]> =
        (0u32..).map(u32::to_ne_bytes).filter(|key| cache.slot(key) == wanted).take(8).collect();
    let pairs = keys.iter().flat_map(|from| keys.iter().map(move |to| [*from, *to].concat()));
    let frames: Vec<Vec<u8>> = pairs
        .cycle()
        .take(1_000)
        .map(|pair| {
            let mut packet = vec![0; 64];
            packet[26..34].copy_from_slice(&pair);
            packet
        })
        .collect();
    let (profiles, _) = Offline::new(&compiler, &[]).profile(&frames);
    let samples: Vec<PacketSample> =
        frames.into_iter().map(|packet| PacketSample { packet, context: Vec::new() }).collect();
    Offline::new(&compiler, &[]).is_the_same_if(true, &profiles, &samples, |plan| {
        let cached = plan.sites.iter().filter(|s| s.lookup == LookupPlan::Cached).count();
        assert_eq!(cached, 2, "{:?}", plan.sites);
    });
}

/// A copy of the program that stays attached elsewhere writes the same tables without counting: there are no
/// caches beside it. Once it has gone there are; if it comes back by a call that no guard sees, they go at
/// the next check of the interfaces.
#[test]
fn beside_a_copy_of_the_program_elsewhere_nothing_is_cached() {
    if !testing::require() {
        return;
    }
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let (port, other) = (rig.test_port(), rig.second_port());
    let config = nat::generate(port, other, 4, 1);
    let traffic = tcp(&config, 1_000);
    rig.load_traffic(&TrafficSequence::new(&traffic.outbound, &traffic.outbound.sequence(1, 1 << 13)))
        .expect("traffic");
    let object = Object::parse(NAT.name, NAT.object).expect("our own object");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let act = || {
        let theirs = ObjectLoader::new(&object).load().expect("loaded");
        for entry in config.entries().expect("entries").iter().chain(&traffic.entries(monotonic_ns())) {
            let map = theirs.session.map_by_name(entry.map).expect(entry.map);
            map.update(&entry.key, &entry.value, UpdateMode::Any).expect(entry.map);
        }
        let program = &theirs.programs[0].1;
        let _first = Link::attach_xdp(program, port, XdpMode::Any).expect("attached");
        let second = Link::attach_xdp(program, other, XdpMode::Any).expect("attached");
        let start = || {
            let mut wanted = settings("copies", Duration::from_millis(200));
            wanted.adopt = vec![port];
            let mut live = LiveSession::load(&compiler, wanted).expect("loaded");
            let report = live.attach(&[port]).expect("attached");
            let SessionReport::Attached { refused, .. } = report else { panic!("{report:?}") };
            (live, refused)
        };
        let of_connections = |refused: &[(String, String)]| {
            let told = refused.iter().find(|(map, _)| map == CONNECTIONS);
            told.map(|(_, why)| why.clone()).unwrap_or_default()
        };
        let (live, refused) = start();
        assert!(of_connections(&refused).contains("attached elsewhere"), "{refused:?}");
        live.finish(DetachPolicy::Restored).expect("finished");
        drop(second);
        let (mut live, refused) = start();
        assert_eq!(of_connections(&refused), "");
        live.check_place(&mut |r| panic!("{r:?}")).expect("it is there");
        keep_fast(&rig, &mut live, |r| generation(r).is_some());
        let cached = |live: &LiveSession<'_>| {
            let details = live.details().expect("details");
            details.lookups.iter().any(|l| l.map == CONNECTIONS && l.how == LookupMethod::Cache)
        };
        assert!(cached(&live));
        replace_xdp_netlink(other, Some(program), None, XdpMode::Any).expect("attached");
        let mut told = Vec::new();
        live.check_place(&mut |r| told.push(r.clone())).expect("it is there");
        let why = "attached elsewhere";
        let gone =
            |r: &SessionReport| matches!(r, SessionReport::Withdrawn { reason, .. } if reason.contains(why));
        assert!(told.iter().any(gone), "{told:?}");
        replace_xdp_netlink(other, None, Some(program), XdpMode::Any).expect("taken off");
        live.finish(DetachPolicy::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}
