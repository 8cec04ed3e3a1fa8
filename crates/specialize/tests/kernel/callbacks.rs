//! Callbacks of `bpf_loop` that cannot be loops of the program: the kernel gives up on all the turns.

use std::time::Duration;

use millstream_kernel::{TestRun, UpdateMode, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::MapEntry;
use millstream_programs::router;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_specialize::live::details::LookupMethod;
use millstream_specialize::{DetachPolicy, LiveSession, variant_compiler};
use millstream_specializer::transform::SampleMode;
use millstream_specializer::variant::VariantCompiler;

use crate::fixtures;
use crate::replay::rule;
use crate::routed::{Routed, alone, generation, settings};
use crate::shadow_tables::run_until;

/// Each turn may or may not match one of this many rules: the verifier follows every count at every turn.
const MANY: [&str; 3] = ["-DNUMBERED", "-DRULES=500", "-DENOUGH=100"];
const RULES: u32 = 500;
const DROP: u32 = 1;
const TX: u32 = 3;

/// Frames from 100 sources.
fn flows() -> WeightedFlows {
    let config = router::generate(10, &[1], 4, 1);
    let mut flows = router::flows(&config, 1_000, FlowLocality::NONE, 1);
    for (n, frame) in (0u32..).zip(&mut flows.packets) {
        frame[26..30].copy_from_slice(&(n % 100).to_be_bytes());
    }
    flows
}

/// Half of these rules match sources below 64, a few match all.
fn rules() -> impl Iterator<Item = MapEntry> {
    (0..RULES)
        .map(|n| if n % 2 == 0 { rule(n, 0, if n < 50 { 0 } else { 64 }) } else { rule(n, 1 << 20, 1 << 20) })
}

/// Verdict of the rules on a frame from a source.
fn verdict(source: u32) -> u32 {
    // 25 rules match all sources, 225 more those below 64.
    if source < 64 { DROP } else { TX }
}

#[test]
fn what_is_refused_as_a_loop_is_made_with_the_call() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("callbacks", &MANY) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let calling = compiler.calling().expect("there is a callback that can be a loop");
    assert!(calling.calling().is_none());
    let session = millstream_loader::ObjectLoader::new(compiler.object()).prepare().expect("maps");
    let load = |compiler: &VariantCompiler| {
        let made = compiler.instrumented(&[], SampleMode::Count, &[]).expect("made");
        session.load(compiler.program(), &made.linked)
    };
    let refused = load(&compiler).expect_err("it is too much for this kernel");
    assert!(refused.rejection().is_some(), "{refused}");
    load(calling).expect("what the callback does is followed once");
    let Some(few) = fixtures::read("acl", &[]) else { return };
    assert!(variant_compiler(&few, None).expect("prepared").calling().is_none(), "it has no callback");
}

/// A session finds that out by itself, and specialises the rest of the program.
#[test]
fn a_session_goes_on_with_the_call() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("callbacks", &MANY) else { return };
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let flows = flows();
    rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let config = router::generate(1, &[1], 1, 1);
    let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(100_000.0) };
    let act = || {
        let mut live =
            LiveSession::load(&compiler, settings("callbacks", Duration::from_millis(200))).expect("loaded");
        for entry in rules() {
            let map = live.map(entry.map).expect("the map");
            map.update(&entry.key, &entry.value, UpdateMode::Any).expect("an entry");
        }
        let exempt = live.map("exempt").expect("the map").try_clone().expect("a descriptor");
        let put = |source: u32, verdict: u32| {
            exempt.update(&source.to_ne_bytes(), &verdict.to_ne_bytes(), UpdateMode::Any).expect("an entry");
        };
        put(7, TX);
        put(90, DROP);
        live.attach(&[rig.test_port()]).expect("attached");
        let check = |live: &LiveSession<'_>, others: &[(u32, u32)]| {
            for frame in &flows.packets[..100] {
                let source = u32::from_be_bytes(frame[26..30].try_into().expect("an address"));
                let other = others.iter().find(|(of, _)| *of == source).map(|(_, verdict)| *verdict);
                let out = live.current().test_run(&TestRun::packet(frame)).expect("a test run");
                assert_eq!(out.retval, other.unwrap_or(verdict(source)), "from {source}");
            }
        };
        run_until(&it, &mut live, |r| generation(r).is_some());
        assert!(std::ptr::eq(live.compiler(), compiler.calling().expect("the form with the call")));
        let lookups = live.details().expect("details").lookups;
        assert!(lookups.iter().any(|l| l.map == "exempt" && l.how != LookupMethod::Map), "{lookups:?}");
        let missed = live.guard().missed();
        check(&live, &[(7, TX), (90, DROP)]);
        assert_eq!(live.guard().missed(), missed, "all by specialised code");
        put(8, TX);
        check(&live, &[(7, TX), (8, TX), (90, DROP)]);
        run_until(&it, &mut live, |r| generation(r).is_some());
        check(&live, &[(7, TX), (8, TX), (90, DROP)]);
        live.finish(DetachPolicy::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}
