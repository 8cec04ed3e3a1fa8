//! Packets chosen by an attacker to make a session's specialised code useless: the loss, compared with the
//! original under the same packets.
//!
//! The switch is attacked, since anybody's packets fill its table: by stations whose keys all have one slot
//! of a cache, in turn, and by a new source address in each frame, so that each adds an entry and invalidates
//! all copies. Only the session itself knows which keys share a slot; an attacker with the same program and
//! our code knows it of his own session only.

use std::cell::Cell;
use std::time::Duration;

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::stats::{self, RatioEstimate};
use millstream_lab::workload::BuiltinWorkload;
use millstream_lab::{RigConfig, TrafficSequence};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{MapEntry, SWITCH, switch};
use millstream_rng::Rng;
use millstream_specialize::{LiveSession, SessionReport};
use millstream_specializer::variant::VariantCompiler;
use serde::Serialize;

use crate::bars::{asked, keep};
use crate::data_planes::{Placed, Plane, in_turn};
use crate::offline::compiler;

/// Stations of one slot on either side.
const COLLIDING: usize = 32;
/// Frames in the order that repeats.
const ORDER: usize = 1 << 14;
/// Duration of usual traffic before the session is checked for a variant at work, and the number of times, at
/// most.
const USUAL: (Duration, usize) = (Duration::from_millis(500), 60);

/// Slices of an attack during which a session may notice that its code is useless, make other variants and
/// compare them with the original.
const ANSWERED: u32 = 4;

/// Cost of an attack.
#[derive(Debug, Serialize)]
struct Attacked {
    attack: &'static str,
    slice_s: f64,
    generations: usize,
    /// Nanoseconds a packet, the rig included: without a session, and with one that was at work before the
    /// attack began.
    at_once: Vec<(f64, f64)>,
    at_once_ratio: RatioEstimate,
    /// The same once a session has had time to answer ([`ANSWERED`]).
    later: Vec<(f64, f64)>,
    later_ratio: RatioEstimate,
}

/// Frames of an attack, and the stations that they name.
struct Chosen {
    attack: &'static str,
    frames: Vec<Vec<u8>>,
    stations: Vec<(Vec<u8>, Vec<u8>)>,
}

#[test]
fn what_chosen_packets_cost_is_bounded() {
    if !testing::require() {
        return;
    }
    let all = [Example::known_slot, Example::guessed_slot, Example::new_sources].map(attacked);
    keep("attacks.json", &all);
    for found in all {
        // How much is lost is a figure for `bench/bars.py`.
        assert!(found.at_once_ratio.ratio.is_finite() && found.later_ratio.ratio.is_finite(), "{found:?}");
        assert!(found.generations >= found.at_once.len(), "nothing was attacked: {found:?}");
    }
}

/// A frame of the usual traffic, and the entries of the stations that it names.
struct Example {
    frame: Vec<u8>,
    vlan: [u8; 2],
    source: Vec<u8>,
    destination: Vec<u8>,
}

impl Example {
    fn of(placed: &Placed<'_>) -> Example {
        let frame = placed.load.flows.packets[0].clone();
        let station = |mac: &[u8]| -> &MapEntry {
            let is = |e: &&MapEntry| e.map == switch::STATIONS && e.key.starts_with(mac);
            placed.load.entries.iter().find(is).expect("a known station")
        };
        let (to, from) = (station(&frame[..6]), station(&frame[6..12]));
        let vlan = [to.key[6], to.key[7]];
        Example { vlan, source: from.value.clone(), destination: to.value.clone(), frame }
    }

    fn key(&self, mac: [u8; 6]) -> Vec<u8> {
        [&mac[..], &self.vlan].concat()
    }

    fn between(&self, to: &[u8], from: &[u8]) -> Vec<u8> {
        [&to[..6], &from[..6], &self.frame[12..]].concat()
    }

    /// Stations of one slot of the session's own cache.
    fn known_slot(&self, session: &VariantCompiler) -> Chosen {
        Chosen { attack: "one slot, known", ..self.one_slot(session) }
    }

    /// Stations of one slot of another session's cache.
    fn guessed_slot(&self, _: &VariantCompiler) -> Chosen {
        Chosen { attack: "one slot, guessed", ..self.one_slot(&compiler(&SWITCH)) }
    }

    /// Stations whose keys have one slot of the cache that a session would make of this program.
    fn one_slot(&self, compiler: &VariantCompiler) -> Chosen {
        let mut rng = Rng::new(3);
        let is_table = |map: &millstream_ir::Map| compiler.declaration(*map).name == switch::STATIONS;
        let of = compiler.cacheable().find(is_table).expect("stations may have a cache");
        let cache = compiler.cache_for(of).expect("it has room");
        let wanted = cache.slot(&self.key(station_mac(&mut rng)));
        let mut alike =
            std::iter::repeat_with(|| self.key(station_mac(&mut rng))).filter(|k| cache.slot(k) == wanted);
        let pairs: Vec<[Vec<u8>; 2]> =
            (0..COLLIDING).map(|_| [(); 2].map(|()| alike.next().expect("endless"))).collect();
        let frames = pairs.iter().map(|[to, from]| self.between(to, from)).collect();
        let entries = pairs
            .into_iter()
            .flat_map(|[to, from]| [(to, self.destination.clone()), (from, self.source.clone())]);
        Chosen { attack: "one slot", frames, stations: entries.collect() }
    }

    /// Each frame from an unknown station.
    fn new_sources(&self, _: &VariantCompiler) -> Chosen {
        let mut rng = Rng::new(4);
        let frames = (0..ORDER).map(|_| self.between(&self.frame[..6], &station_mac(&mut rng))).collect();
        Chosen { attack: "new sources", frames, stations: Vec::new() }
    }
}

/// Address of a single station, not of a group.
fn station_mac(rng: &mut Rng) -> [u8; 6] {
    let [mut first, b, c, d, e, f, ..] = rng.next_u64().to_le_bytes();
    first &= 0xfe;
    [first, b, c, d, e, f]
}

/// With a session and without, in turn, each time from the start.
fn attacked(chosen: fn(&Example, &VariantCompiler) -> Chosen) -> Attacked {
    let slice = Duration::from_secs(asked("MILLSTREAM_POINT_SECONDS", 1));
    let mut attack = "";
    let pairs = in_turn(asked("MILLSTREAM_SLICES", 1) as usize, |with| {
        let plane = Plane {
            name: "attacks",
            builtin: BuiltinWorkload::generated(SWITCH, 1_000),
            flows: 10_000,
            locality: FlowLocality::HIGH,
            seed: 1,
            rig: RigConfig::default(),
        };
        plane.placed(
            |settings| settings.pace.interval = Duration::from_millis(500),
            |placed, live| {
                let chosen = chosen(&Example::of(placed), live.compiler());
                attack = chosen.attack;
                under_attack(placed, live, &chosen, with, slice)
            },
        )
    });
    let generations = pairs.iter().map(|(_, with)| with.generations).sum();
    let [at_once, later]: [Vec<(f64, f64)>; 2] = [|s: &Suffered| s.at_once, |s: &Suffered| s.later]
        .map(|of| pairs.iter().map(|(without, with)| (of(without), of(with))).collect());
    let judge = |pairs: &[(f64, f64)]| stats::judge(pairs, &mut Rng::new(1));
    let (at_once_ratio, later_ratio) = (judge(&at_once), judge(&later));
    let slice_s = slice.as_secs_f64();
    Attacked { attack, slice_s, generations, at_once, at_once_ratio, later, later_ratio }
}

/// Nanoseconds a packet.
struct Suffered {
    generations: usize,
    at_once: f64,
    later: f64,
}

/// Usual traffic until there is a variant, then the attack.
fn under_attack(
    placed: &Placed<'_>,
    live: &mut LiveSession<'_>,
    chosen: &Chosen,
    with: bool,
    slice: Duration,
) -> Suffered {
    let stations = live.map(switch::STATIONS).expect("the table");
    for (key, value) in &chosen.stations {
        stations.update(key, value, UpdateMode::Any).expect("a station");
    }
    let usual = placed.load.flows.packets.len() as u32;
    let packets: Vec<Vec<u8>> = placed.load.flows.packets.iter().chain(&chosen.frames).cloned().collect();
    let attack: Vec<u32> = (0..ORDER as u32).map(|n| usual + n % chosen.frames.len() as u32).collect();
    let flows = WeightedFlows { weights: vec![1; packets.len()], packets };
    placed.rig.load_traffic(&TrafficSequence::new(&flows, placed.order)).expect("traffic");
    let generations = Cell::new(0);
    let mut tell = |r: &SessionReport| {
        generations.set(generations.get() + usize::from(matches!(r, SessionReport::Specialised { .. })));
    };
    let mut session = with.then_some(live);
    for _ in 0..USUAL.1 {
        placed.send(session.as_deref_mut(), USUAL.0, &mut tell, || ());
        if session.is_none() || generations.get() > 0 {
            break;
        }
    }
    placed.rig.reorder(&attack).expect("the order of the attack");
    let at_once = placed.spent(session.as_deref_mut(), slice, &mut tell);
    if let Some(live) = &mut session {
        placed.send(Some(live), ANSWERED * slice, &mut tell, || ());
    }
    let later = placed.spent(session, slice, &mut tell);
    Suffered { generations: generations.get(), at_once, later }
}
