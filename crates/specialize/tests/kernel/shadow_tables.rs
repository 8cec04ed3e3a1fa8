//! Twins in a session on live traffic: the program on the hook answers by the current routes whenever a write
//! has returned, whoever else writes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use millstream_ir::Map as IrMap;
use millstream_kernel::{KernelMap, KernelProgram, TestRun, UpdateMode, testing};
use millstream_programs::Ipv4Prefix;
use millstream_programs::packet::checksum;
use millstream_programs::router::{self, NextHop};
use millstream_rng::Rng;
use millstream_specialize::shadow_tables::ShadowTables;
use millstream_specialize::{LiveSession, SessionReport};
use millstream_specializer::changes::ShadowUpdate;
use millstream_specializer::transform::{PerfectHashTable, RowLayout, ShadowTable};

use crate::routed::{Beside, HOPS, Routed, Wanted, attached, generation, routed};

/// Writes, each followed by a look at what is on the hook.
const WRITES: u32 = 200;
/// Looks of either kind, at least.
const ENOUGH: u32 = 4;
/// Destinations of each look.
const LOOKS: usize = 12;
/// The bits of addresses that vary: few, so that prefixes overlap, and in every byte.
const VARIES: u32 = 0x0103_0303;

fn address(rng: &mut Rng) -> Ipv4Addr {
    Ipv4Addr::from(0x1000_0000 | rng.next_u32() & VARIES)
}

fn frame_to(template: &[u8], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = template.to_vec();
    frame[30..34].copy_from_slice(&address.octets());
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..34], 0);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The next hop that a program gives a frame; `None` if it does not forward it.
fn hop_given(program: &KernelProgram, frame: &[u8]) -> Option<[u8; 6]> {
    const TX: u32 = 3;
    const REDIRECT: u32 = 4;
    let out = program.test_run(&TestRun::packet(frame)).expect("a test run");
    matches!(out.retval, TX | REDIRECT).then(|| out.data[..6].try_into().expect("a frame"))
}

/// The routes, as known to the test.
struct Known {
    routes: BTreeMap<(u8, Ipv4Addr), u32>,
    hops: Vec<[u8; 6]>,
}

impl Known {
    fn new(beside: &Beside<'_>) -> Self {
        let routes = &beside.config.routes;
        Known {
            routes: routes.iter().map(|r| ((r.prefix.length(), r.prefix.address()), r.next_hop)).collect(),
            hops: beside.config.next_hops.iter().map(link_address).collect(),
        }
    }

    fn hop(&self, address: Ipv4Addr) -> Option<[u8; 6]> {
        let longest = (0..=32)
            .rev()
            .find_map(|length| self.routes.get(&(length, Ipv4Prefix::new(address, length).address())));
        longest.map(|hop| self.hops[*hop as usize])
    }

    /// A new route, another next hop for one, or one less: of any length, the default route and hosts among
    /// them.
    fn change(&mut self, map: &KernelMap, rng: &mut Rng) {
        let length = match rng.below(8) {
            0 => 0,
            1 => 32,
            _ => rng.below(33) as u8,
        };
        let prefix = Ipv4Prefix::new(address(rng), length);
        let at = (length, prefix.address());
        if self.routes.contains_key(&at) && rng.below(2) == 0 {
            self.routes.remove(&at);
            assert!(map.delete(&router::route_key(prefix)).expect("a route less"));
        } else {
            let hop = rng.below(u64::from(HOPS)) as u32;
            self.routes.insert(at, hop);
            map.update(&router::route_key(prefix), &hop.to_ne_bytes(), UpdateMode::Any).expect("a route");
        }
    }
}

fn link_address(hop: &NextHop) -> [u8; 6] {
    let NextHop::Forward { dst_mac, .. } = hop else { panic!("a next hop") };
    *dst_mac
}

/// Writes routes that no frame takes, in bursts, with pauses in which twins are brought up to date.
fn disturb(routes: &KernelMap, stop: &AtomicBool) {
    let mut rng = Rng::new(77);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..rng.below(40) {
            let prefix = Ipv4Prefix::new(Ipv4Addr::from(0xcb00_0000 | rng.next_u32() & 0xff), 32);
            let hop = rng.below(u64::from(HOPS)) as u32;
            routes.update(&router::route_key(prefix), &hop.to_ne_bytes(), UpdateMode::Any).expect("a route");
        }
        std::thread::sleep(Duration::from_millis(rng.below(300)));
    }
}

/// Checks the answers of the program on the hook; returns true if specialised code was approved before, and
/// after.
fn look(beside: &Beside<'_>, known: &Known, rng: &mut Rng) -> (bool, bool) {
    let before = beside.approved();
    let program = beside.on_hook();
    for _ in 0..LOOKS {
        let to = address(rng);
        let given = hop_given(&program, &frame_to(&beside.flows.packets[0], to));
        assert_eq!(given, known.hop(to), "to {to}");
    }
    (before, beside.approved())
}

/// Number of looks that found specialised code approved before and after, and of those that did not. On a
/// busy machine answers are late: then there are more writes, each with time for an answer.
fn write_and_look(beside: &Beside<'_>) -> (u32, u32) {
    let mut rng = Rng::new(5);
    let mut known = Known::new(beside);
    let (mut approved, mut revoked) = (0, 0);
    let begin = Instant::now();
    for n in 0.. {
        let enough = approved >= ENOUGH && revoked >= ENOUGH || begin.elapsed() > Duration::from_secs(120);
        if n >= WRITES && enough {
            break;
        }
        known.change(&beside.routes, &mut rng);
        let start = Instant::now();
        loop {
            let found = look(beside, &known, &mut rng);
            approved += u32::from(found == (true, true));
            revoked += u32::from(found == (false, false));
            // Now and then long enough for an answer to the write.
            if n < WRITES && n % 8 != 0 || found.1 || start.elapsed() > Duration::from_secs(3) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    (approved, revoked)
}

#[test]
fn what_is_on_the_hook_knows_every_write_that_returned() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted::new("twins", 200);
    let ran = routed(
        &wanted,
        |_| (),
        |beside, ()| {
            beside.until("a generation", |r| generation(r).is_some());
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| disturb(&beside.routes, &done));
                let looks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write_and_look(beside)));
                done.store(true, Ordering::Relaxed);
                other.join().expect("no panic");
                looks.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        },
    );
    let (approved, revoked) = ran.result;
    assert!(
        approved >= ENOUGH && revoked >= ENOUGH,
        "looks at specialised code: {approved}, at the original: {revoked}"
    );
    assert_eq!(ran.counts.lost(), 0, "packets were lost");
    let refreshed = ran.told.iter().filter(|r| matches!(r, SessionReport::Refreshed { .. })).count();
    assert!(refreshed > 3, "{refreshed} times brought up to date");
}

/// Time after which a session has hung: far more than it needs on a busy machine.
const HANG: Duration = Duration::from_secs(300);

/// Runs a session until a report satisfies `wanted`.
pub(crate) fn run_until(
    it: &Routed<'_>,
    live: &mut LiveSession<'_>,
    wanted: impl Fn(&SessionReport) -> bool,
) {
    let stop = AtomicBool::new(false);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !ended.load(Ordering::Relaxed) && start.elapsed() < HANG {
                std::thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::Relaxed);
        });
        it.run(live, &stop, |r| {
            if wanted(r) {
                ended.store(true, Ordering::Relaxed);
                stop.store(true, Ordering::Relaxed);
            }
        });
        assert!(ended.load(Ordering::Relaxed), "not told within {HANG:?}");
    });
}

#[test]
fn until_its_twin_is_in_step_a_map_is_looked_up_itself() {
    if !testing::require() {
        return;
    }
    attached(
        &Wanted::new("step", 200),
        |_| (),
        |it, live, ()| {
            run_until(it, live, |r| generation(r).is_some());
            let frame = &it.flows.packets[0];
            let prefix = router::RouterModel::new(it.config).route_of(frame).expect("a route");
            let old = it.config.routes.iter().rfind(|r| r.prefix == prefix).expect("the route").next_hop;
            // The next hop given, and true if the original's code gave it.
            let answer = |live: &LiveSession<'_>| {
                let before = live.guard().missed();
                let hop = hop_given(live.current(), frame);
                (hop, live.guard().missed() > before)
            };
            let hop = |n: u32| Some(link_address(&it.config.next_hops[(n % HOPS) as usize]));
            assert_eq!(answer(live), (hop(old), false), "the twin answers");
            for n in 1..4 {
                let routes = live.map(router::ROUTES).expect("routes");
                let value = ((old + n) % HOPS).to_ne_bytes();
                routes.update(&router::route_key(prefix), &value, UpdateMode::Any).expect("a route");
                // Nobody answers yet.
                for _ in 0..3 {
                    assert_eq!(
                        answer(live),
                        (hop(old + n), false),
                        "the map itself answers, and the rest is code"
                    );
                }
                if n == 3 {
                    // Contents that are in code elsewhere have changed: none of it counts any more.
                    let next_hops = live.map(router::NEXT_HOPS).expect("next hops");
                    let id = ((old + n) % HOPS).to_ne_bytes();
                    let value = next_hops.lookup(&id).expect("an answer").expect("a next hop");
                    next_hops.update(&id, &value, UpdateMode::Any).expect("a next hop");
                    assert_eq!(answer(live), (hop(old + n), true), "the original answers");
                }
                run_until(it, live, |r| matches!(r, SessionReport::Refreshed { write_ns: Some(_), .. }));
                assert_eq!(answer(live), (hop(old + n), false), "the twin answers again");
            }
        },
    );
}

/// A write that changes nothing needs no other side, and so no grace period; one that changes something does.
#[test]
fn what_packets_read_already_is_not_written_again() {
    if !testing::require() {
        return;
    }
    let (map, row) = (IrMap::new(0), RowLayout { key: 4, value: 8 });
    let entry = |n: u32, value: u64| (n.to_ne_bytes().to_vec(), Some(value.to_ne_bytes().to_vec()));
    let entries: Vec<_> = (0..100).map(|n| entry(n, 7)).collect();
    let given = entries.iter().filter_map(|(key, value)| Some((key.as_slice(), value.as_deref()?)));
    let twin = ShadowTable::Rows(PerfectHashTable::of(row, given, entries.len(), 1 << 20).expect("it fits"));
    let mut twins = ShadowTables::new(BTreeMap::from([(map, twin)])).expect("memory");
    let change = |entry| BTreeMap::from([(map, ShadowUpdate::Keys(vec![entry]))]);
    let first = twins.side();
    assert_eq!(twins.write(change(entry(3, 7))).expect("it fits"), (first, 0), "nothing has changed");
    let (other, written) = twins.write(change(entry(3, 8))).expect("it fits");
    assert!(other != first && written > 0, "another side has it");
    // Until that is approved, packets read the old contents.
    let (again, _) = twins.write(change(entry(3, 8))).expect("it fits");
    assert_eq!(again, other);
    twins.switch_side(other);
    assert_eq!(twins.write(change(entry(3, 8))).expect("it fits"), (other, 0));
}
