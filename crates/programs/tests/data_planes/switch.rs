//! The switch in the kernel against IEEE 802.1Q: frames in, frames, verdicts and stations out.

use std::collections::HashMap;

use crate::rig::{INGRESS, Rig, Verdict};
use millstream_programs::SWITCH;
use millstream_programs::packet::{EthernetFrame, MacAddress};
use millstream_programs::switch::{
    BridgePort, COUNTERS, EVENTS, FdbDestination, FdbEntry, PORTS, STATIONS, StpState, SwitchConfig,
    SwitchEvent, SwitchModel, SwitchOutcome, VLAN_COUNTERS, VlanLayout, VlanMode, flows, generate,
    station_key,
};
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;

const HERE: MacAddress = [2, 0, 0, 0, 0, 2];
const THERE: MacAddress = [2, 0, 0, 0, 0, 1];
const OTHER: u32 = 2;

fn trunk(native: Option<u16>, vlans: &[u16]) -> VlanMode {
    VlanMode::Trunk { native, vlans: vlans.to_vec() }
}

fn port(port: u32, mode: VlanMode) -> BridgePort {
    BridgePort { port, state: StpState::Forwarding, mode }
}

fn station(mac: MacAddress, vlan: u16, place: FdbDestination) -> FdbEntry {
    FdbEntry { mac, vlan, place, is_static: false, seen: 0 }
}

/// A switch of two ports in these modes, which knows where [`THERE`] is.
fn rig(here: VlanMode, there: VlanMode) -> Option<Rig> {
    let ports = vec![port(INGRESS, here), port(OTHER, there)];
    let stations = [10, 20].map(|vlan| station(THERE, vlan, FdbDestination::Port(OTHER))).to_vec();
    Rig::new(&SWITCH, &SwitchConfig { ports, stations }.entries().unwrap())
}

fn learned(rig: &Rig, mac: MacAddress, vlan: u16) -> Option<FdbEntry> {
    let key = station_key(mac, vlan);
    rig.map(STATIONS).lookup(&key).unwrap().and_then(|value| FdbEntry::decode(&key, &value))
}

fn frame(vlan: Option<u16>) -> EthernetFrame {
    EthernetFrame {
        dst_mac: THERE,
        src_mac: HERE,
        vlan,
        length: if vlan.is_some() { 68 } else { 64 },
        ..EthernetFrame::default()
    }
}

/// The frame comes out as it went in, with this verdict, and the event is counted.
fn left_alone(rig: &Rig, frame: &[u8], verdict: Verdict, event: SwitchEvent) {
    let before = rig.sum(EVENTS, event as u32, 0);
    assert_eq!(rig.run(frame), (verdict, frame.to_vec()), "{event:?}");
    assert_eq!(rig.sum(EVENTS, event as u32, 0), before + 1, "{event:?} is not counted");
}

#[test]
fn tags_are_pushed_and_popped_as_the_ports_want() {
    let both = [10, 20];
    let cases = [
        (VlanMode::Access(10), None, VlanMode::Access(10), None, "access to access"),
        (VlanMode::Access(10), None, trunk(None, &both), Some(10), "access to trunk"),
        (VlanMode::Access(10), Some(0), trunk(None, &both), Some(10), "priority tag to trunk"),
        (VlanMode::Access(10), Some(0), VlanMode::Access(10), None, "priority tag to access"),
        (trunk(None, &both), Some(20), VlanMode::Access(20), None, "trunk to access"),
        (trunk(None, &both), Some(20), trunk(None, &both), Some(20), "trunk to trunk"),
        (trunk(Some(10), &both), None, trunk(None, &both), Some(10), "native to tagged"),
        (trunk(None, &both), Some(10), trunk(Some(10), &both), None, "tagged to native"),
        (trunk(Some(10), &both), None, trunk(Some(20), &both), Some(10), "native to another native"),
        (trunk(None, &both), Some(0x6000 | 20), trunk(None, &both), Some(0x6000 | 20), "priority is kept"),
        (
            trunk(Some(20), &both),
            Some(0x6000),
            trunk(None, &both),
            Some(0x6000 | 20),
            "priority of the native VLAN",
        ),
    ];
    for (here, came, there, left, what) in cases {
        let Some(rig) = rig(here, there) else { return };
        let expected = frame(left).to_bytes();
        assert_eq!(rig.run(&frame(came).to_bytes()), (Verdict::Redirect, expected.clone()), "{what}");
        let sent = [2, 3].map(|word| rig.sum(COUNTERS, OTHER, word));
        assert_eq!(sent, [1, expected.len() as u64], "{what}: what the egress port counts");
    }
}

#[test]
fn what_a_port_does_not_take_is_dropped() {
    let refused = |here: VlanMode, vlan, what| {
        let Some(rig) = rig(here, trunk(None, &[10, 20])) else { return };
        left_alone(&rig, &frame(vlan).to_bytes(), Verdict::Drop, SwitchEvent::NotAdmitted);
        assert_eq!(learned(&rig, HERE, vlan.unwrap_or(10)), None, "{what}: nothing is learned from it");
    };
    refused(VlanMode::Access(10), Some(10), "a tag on an access port");
    refused(trunk(None, &[10]), None, "no tag on a trunk without a native VLAN");
    refused(trunk(None, &[10]), Some(20), "a VLAN that is not a member");
    refused(trunk(None, &[10]), Some(0), "a priority tag on a trunk without a native VLAN");
}

#[test]
fn vlans_are_separate() {
    let Some(rig) = rig(trunk(None, &[10, 20]), VlanMode::Access(10)) else { return };
    left_alone(&rig, &frame(Some(20)).to_bytes(), Verdict::Drop, SwitchEvent::EgressFiltered);
    assert_eq!(rig.run(&frame(Some(10)).to_bytes()).0, Verdict::Redirect);
    assert_eq!([0, 1].map(|word| rig.sum(VLAN_COUNTERS, 10, word)), [1, 68]);
    rig.map(STATIONS).delete(&station_key(THERE, 10)).unwrap();
    left_alone(&rig, &frame(Some(10)).to_bytes(), Verdict::Pass, SwitchEvent::FloodUnknown);
}

#[test]
fn learns_refreshes_and_follows_stations() {
    let Some(rig) = rig(VlanMode::Access(10), VlanMode::Access(10)) else { return };
    let bytes = frame(None).to_bytes();
    rig.run(&bytes);
    let first = learned(&rig, HERE, 10).expect("the sender is learned");
    assert_eq!((first.place, first.is_static), (FdbDestination::Port(INGRESS), false));
    assert!(first.seen > 0);
    assert_eq!(rig.sum(EVENTS, SwitchEvent::Learned as u32, 0), 1);
    rig.run(&bytes);
    assert_eq!(learned(&rig, HERE, 10), Some(first), "nothing is written within a second");
    rig.apply(&[FdbEntry { seen: first.seen - 2_000_000_000, ..first }.entry()]);
    rig.run(&bytes);
    assert!(learned(&rig, HERE, 10).unwrap().seen >= first.seen, "refreshed after that");
    rig.apply(&[station(HERE, 10, FdbDestination::Port(OTHER)).entry()]);
    rig.run(&bytes);
    assert_eq!(learned(&rig, HERE, 10).unwrap().place, FdbDestination::Port(INGRESS), "it has moved");
    assert_eq!(rig.sum(EVENTS, SwitchEvent::Moved as u32, 0), 1);
    assert_eq!(rig.sum(EVENTS, SwitchEvent::Learned as u32, 0), 1);
}

#[test]
fn static_stations_stay() {
    let Some(rig) = rig(VlanMode::Access(10), VlanMode::Access(10)) else { return };
    let fixed = FdbEntry { is_static: true, ..station(HERE, 10, FdbDestination::Port(OTHER)) };
    rig.apply(&[fixed.entry()]);
    left_alone(&rig, &frame(None).to_bytes(), Verdict::Drop, SwitchEvent::StaticMoved);
    assert_eq!(learned(&rig, HERE, 10), Some(fixed));
}

#[test]
fn copies_and_control_frames_are_the_stacks() {
    let Some(rig) = rig(VlanMode::Access(10), VlanMode::Access(10)) else { return };
    let to = |dst_mac: MacAddress| EthernetFrame { dst_mac, ..frame(None) }.to_bytes();
    left_alone(&rig, &to([0xff; 6]), Verdict::Pass, SwitchEvent::FloodGroup);
    left_alone(&rig, &to([1, 0, 0x5e, 0, 0, 1]), Verdict::Pass, SwitchEvent::FloodGroup);
    left_alone(&rig, &to([2, 9, 9, 9, 9, 9]), Verdict::Pass, SwitchEvent::FloodUnknown);
    for last in [0, 2, 0x0e, 0x0f] {
        left_alone(&rig, &to([1, 0x80, 0xc2, 0, 0, last]), Verdict::Pass, SwitchEvent::LinkLocal);
    }
    left_alone(&rig, &to([1, 0x80, 0xc2, 0, 0, 0x10]), Verdict::Pass, SwitchEvent::FloodGroup);
    rig.apply(&[station([2, 7, 7, 7, 7, 7], 10, FdbDestination::Local).entry()]);
    left_alone(&rig, &to([2, 7, 7, 7, 7, 7]), Verdict::Pass, SwitchEvent::Local);
    left_alone(&rig, &to(HERE), Verdict::Drop, SwitchEvent::SamePort);
    let from_group = EthernetFrame { src_mac: [3, 0, 0, 0, 0, 1], ..frame(None) }.to_bytes();
    left_alone(&rig, &from_group, Verdict::Drop, SwitchEvent::BadSource);
}

#[test]
fn spanning_tree_states_are_kept() {
    let Some(rig) = rig(VlanMode::Access(10), VlanMode::Access(10)) else { return };
    let set = |at, state| {
        let port = BridgePort { port: at, state, mode: VlanMode::Access(10) };
        rig.map(PORTS).update(&at.to_ne_bytes(), &port.encode(), Default::default()).unwrap();
    };
    let (bytes, bpdu) = (
        frame(None).to_bytes(),
        EthernetFrame { dst_mac: [1, 0x80, 0xc2, 0, 0, 0], ..frame(None) }.to_bytes(),
    );
    set(INGRESS, StpState::Blocking);
    left_alone(&rig, &bytes, Verdict::Drop, SwitchEvent::Blocked);
    left_alone(&rig, &bpdu, Verdict::Pass, SwitchEvent::LinkLocal);
    assert_eq!(learned(&rig, HERE, 10), None);
    set(INGRESS, StpState::Learning);
    left_alone(&rig, &bytes, Verdict::Drop, SwitchEvent::Blocked);
    assert!(learned(&rig, HERE, 10).is_some());
    set(INGRESS, StpState::Forwarding);
    assert_eq!(rig.run(&bytes).0, Verdict::Redirect);
    for state in [StpState::Disabled, StpState::Blocking, StpState::Learning] {
        set(OTHER, state);
        left_alone(&rig, &bytes, Verdict::Drop, SwitchEvent::EgressFiltered);
    }
    set(INGRESS, StpState::Disabled);
    left_alone(&rig, &bytes, Verdict::Pass, SwitchEvent::NoPort);
}

#[test]
fn frames_that_end_early_are_dropped() {
    let Some(rig) = rig(trunk(None, &[10]), VlanMode::Access(10)) else { return };
    let bytes = frame(Some(10)).to_bytes();
    // The kernel makes no shorter test frame than an Ethernet header.
    for length in 14..18 {
        left_alone(&rig, &bytes[..length], Verdict::Drop, SwitchEvent::Runt);
    }
}

/// 4,096 stations, known and unknown frames with all kinds of tags, against the model.
#[test]
fn agrees_with_the_model() {
    for layout in [VlanLayout::Access, VlanLayout::Trunk, VlanLayout::Uplink] {
        // Fewer stations than fit: the map evicts before it is full, which the model does not.
        let config = generate(2048, &[INGRESS, OTHER, 3], &[10, 20], layout, 1);
        let Some(rig) = Rig::new(&SWITCH, &config.entries().unwrap()) else { return };
        let mut model = SwitchModel::new(&config);
        let mut rng = Rng::new(5);
        let mut outcomes: HashMap<_, u32> = HashMap::new();
        for mut bytes in flows(&config, INGRESS, 3000, FlowLocality::NONE, 2).packets {
            for at in [0, 1, 5, 6, 7, 12, 15] {
                if rng.below(12) == 0 {
                    bytes[at] = rng.next_u32() as u8;
                }
            }
            let outcome = model.process(INGRESS, &bytes);
            let expected = match outcome.clone() {
                SwitchOutcome::Forward { frame, .. } => (Verdict::Redirect, frame),
                SwitchOutcome::Stack(_) => (Verdict::Pass, bytes.clone()),
                SwitchOutcome::Drop(_) => (Verdict::Drop, bytes.clone()),
            };
            assert_eq!(rig.run(&bytes), expected, "{bytes:02x?}: {outcome:?}");
            *outcomes.entry(expected.0 as u8).or_default() += 1;
        }
        assert_eq!(outcomes.len(), 3, "{layout:?}: the frames reach every verdict, not only {outcomes:?}");
    }
}
