//! The judge finds differences and saves them to a file that reproduces them, passes equal programs, and
//! leaves no trace that others could see.

use millstream_isa::RawInsn;
use millstream_kernel::testing;
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{BALANCER, FIREWALL, MapEntry, NAT, ROUTER, SWITCH};
use millstream_programs::{balancer, firewall, nat, router, switch};
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::variant_compiler;
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::lookup_plan::{HotEntries, LookupPlan};

use crate::fixtures;
use crate::offline::{INGRESS, Offline, compiler};

fn routed(routes: usize) -> (router::RouterConfig, Vec<Vec<u8>>) {
    let config = router::generate(routes, &[INGRESS], 16, 1);
    let flows = router::flows(&config, 500, FlowLocality::HIGH, 1);
    let frames = flows.sequence(1, 4000).into_iter().map(|at| flows.packets[at as usize].clone()).collect();
    (config, frames)
}

#[test]
fn packets_are_kept_as_they_came() {
    if !testing::require() {
        return;
    }
    let (config, frames) = routed(50);
    let compiler = compiler(&ROUTER);
    let plane = Offline::new(&compiler, &config.entries().expect("entries"));
    let (profiles, samples) = plane.profile(&frames);
    assert!(samples.len() >= 16, "{} packets", samples.len());
    assert!(samples.iter().all(|s| frames.contains(&s.packet)), "as they were before the program");
    assert!(
        profiles.iter().any(|p| p.total == frames.len() as u64),
        "and the keys are written down as before"
    );
    let (_, few) = plane.profile(&frames[..5]);
    let kept: Vec<_> = few.into_iter().map(|s| s.packet).collect();
    assert_eq!(kept, frames[..5], "the first fill the slots, and none stay of before");
}

#[test]
fn a_router_that_looks_up_less_passes() {
    if !testing::require() {
        return;
    }
    let (config, frames) = routed(2_592);
    let compiler = compiler(&ROUTER);
    let mut plane = Offline::new(&compiler, &config.entries().expect("entries"));
    let (profiles, samples) = plane.profile(&frames);
    let made = plane.variant(&profiles, Tier::Quick, |_| ()).expect("a variant");
    let judged = plane.judge(&made, &samples).expect("judged");
    assert!(judged.packets >= 512 && judged.varies.is_empty(), "{judged:?}");
    assert!(matches!(judged.finding, ReplayVerdict::Same(Some(_))), "{judged:?}");
    let [before, now] = plane.map_calls(&made, &frames[..1_000]);
    assert!(now < before, "{now} calls per packet, {before} before");
}

#[test]
fn the_original_does_what_it_does_and_is_timed() {
    if !testing::require() {
        return;
    }
    let (config, frames) = routed(200);
    let compiler = compiler(&ROUTER);
    let plane = Offline::new(&compiler, &config.entries().expect("entries"));
    let (_, samples) = plane.profile(&frames);
    // The ratio depends on the load of the machine.
    match plane.judge(&plane.unchanged(), &samples).expect("judged").finding {
        ReplayVerdict::Same(Some(ratio)) => assert!(ratio.ratio > 0.0, "{ratio:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_variant_that_lies_is_found_and_written_down() {
    if !testing::require() {
        return;
    }
    let (config, frames) = routed(200);
    let compiler = compiler(&ROUTER);
    let plane = Offline::new(&compiler, &config.entries().expect("entries"));
    let (profiles, samples) = plane.profile(&frames);
    let made = plane.variant(&profiles, Tier::Quick, |plan| {
        let site = plane.compiler.sites().iter().find(|s| compiler.declaration(s.map).name == router::ROUTES);
        let site = site.expect("its lookup").id;
        let (key, _) = &profiles.iter().find(|p| p.site == site).expect("a profile").keys[0];
        let value = Some(u32::MAX.to_ne_bytes().to_vec());
        let wrong = vec![millstream_specializer::transform::LookupEntry { key: key.clone(), value, heat: 1 }];
        let planned = plan.sites.iter_mut().find(|s| s.site == site).expect("a plan");
        planned.lookup = LookupPlan::Hot(HotEntries { entries: wrong });
    });
    let judged = plane.judge(&made.expect("a variant"), &samples).expect("judged");
    let ReplayVerdict::Different(difference) = judged.finding else { panic!("not found: {judged:?}") };
    let directory = std::env::temp_dir().join(format!("millstream-judge-{}", std::process::id()));
    let paths =
        [difference.write(&directory).expect("written"), difference.write(&directory).expect("again")];
    assert_ne!(paths[0], paths[1], "none takes another's place");
    let text = std::fs::read_to_string(&paths[0]).expect("there");
    let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    std::fs::remove_dir_all(&directory).expect("removed");
    assert_eq!(read["program"], ROUTER.function);
    let packets = read["packets"].as_array().expect("packets");
    let last = packets.last().expect("the packet that shows it")["packet"].as_str().expect("hexadecimal");
    assert!(frames.iter().any(|f| f.iter().map(|b| format!("{b:02x}")).collect::<String>() == last));
    assert!(read["maps"].as_array().expect("maps").iter().any(|m| m["name"] == router::ROUTES));
    assert!(read["candidate"].as_array().is_some_and(|c| c.len() > 20));
}

/// Its connections change with every packet, it reads clocks, and none of it reaches the maps that others
/// see.
#[test]
fn a_program_with_state_is_judged_apart() {
    if !testing::require() {
        return;
    }
    let config = nat::generate(INGRESS, 2, 1, 1);
    let traffic = nat::traffic(&config, 200, nat::ProtocolMix { tcp: 80, udp: 20 }, FlowLocality::HIGH, 1);
    let compiler = compiler(&NAT);
    let plane = Offline::new(&compiler, &config.entries().expect("entries"));
    let (_, samples) = plane.profile(&traffic.outbound.packets);
    let held = |name| {
        let map = plane.session.map_by_name(name).expect(name);
        let mut all: Vec<(Vec<u8>, Vec<u8>)> =
            map.entries().expect("readable").iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        all.sort_unstable();
        all
    };
    let before = held(nat::CONNECTIONS);
    let judged = plane.judge(&plane.unchanged(), &samples).expect("judged");
    assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{judged:?}");
    assert!(judged.varies.is_empty(), "clocks and random numbers answer all alike: {judged:?}");
    assert_eq!(held(nat::CONNECTIONS), before);
}

/// Clocks and random numbers answer callbacks as they answer the program.
#[test]
fn callbacks_that_draw_and_look_at_the_clock_are_judged() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("callbacks", &["-DSAMPLED"]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let rules = (0..128u32).map(|n| rule(n, n % 8, 7));
    let exempt = (0..4u32).map(|n| MapEntry::new("exempt", n.to_ne_bytes().to_vec(), vec![n as u8, 0, 0, 0]));
    let plane = Offline::new(&compiler, &rules.chain(exempt).collect::<Vec<_>>());
    let frame = |n: u32| [&[0; 26][..], &(n % 40).to_be_bytes(), &[0; 30]].concat();
    let (profiles, samples) = plane.profile(&(0..2_000).map(frame).collect::<Vec<_>>());
    let made = plane.variant(&profiles, Tier::Quick, |_| ()).expect("a variant");
    for right in [&plane.unchanged(), &made] {
        let judged = plane.compare(right, &samples, true, 2_000).expect("judged");
        assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.varies.is_empty(), "{judged:?}");
    }
    // It looks at the clock where the original draws.
    let (is_helper, mut wrong) = (|insn: &RawInsn| insn.code == 0x85 && insn.src == 0, plane.unchanged());
    let drawn = wrong.linked.insns.iter_mut().filter(|insn| is_helper(insn) && insn.imm == 7);
    assert_eq!(drawn.map(|insn| insn.imm = 5).count(), 1);
    let judged = plane.compare(&wrong, &samples, true, 2_000).expect("judged");
    assert!(matches!(judged.finding, ReplayVerdict::Different(_)), "{judged:?}");
}

/// A rule of the fixture `callbacks`.
pub(crate) fn rule(n: u32, source: u32, mask: u32) -> MapEntry {
    MapEntry::new("rules", n.to_ne_bytes().to_vec(), [source.to_ne_bytes(), mask.to_ne_bytes()].concat())
}

/// Variants of our data planes, as a session would make them, do the same as the originals.
#[test]
fn what_is_made_of_our_data_planes_does_the_same() {
    if !testing::require() {
        return;
    }
    let mut rules = firewall::generate(firewall::RuleSetKind::AccessList, 450, 1);
    rules.forward = firewall::AcceptTarget::Hairpin;
    let services = balancer::generate(balancer::ServiceMix::Mixed, 8, 20, 3);
    let stations = switch::generate(200, &[INGRESS, 2], &[10, 20], switch::VlanLayout::Trunk, 1);
    let cases = [
        (
            &FIREWALL,
            rules.entries().expect("entries"),
            firewall::flows(&rules, 300, FlowLocality::HIGH, 2, |_| true).packets,
        ),
        (
            &BALANCER,
            services.entries().expect("entries"),
            balancer::flows(&services, 300, FlowLocality::HIGH, 2).packets,
        ),
        (
            &SWITCH,
            stations.entries().expect("entries"),
            switch::flows(&stations, INGRESS, 300, FlowLocality::HIGH, 2).packets,
        ),
    ];
    for (program, entries, frames) in cases {
        let compiler = compiler(program);
        let plane = Offline::new(&compiler, &entries);
        let (profiles, samples) = plane.profile(&frames);
        let made = plane.variant(&profiles, Tier::Quick, |_| ()).expect("a variant");
        assert!(!made.report.sites.is_empty(), "{}", program.name);
        // With caches as well: there is enough stack.
        let judged = plane.judge(&made, &samples).expect(program.name);
        assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{}: {judged:?}", program.name);
        assert!(judged.varies.is_empty(), "{}: {judged:?}", program.name);
    }
}
