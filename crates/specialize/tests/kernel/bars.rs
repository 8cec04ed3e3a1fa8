//! The bars that a router on live traffic must clear: no stale packet after any update, however it is made,
//! and no lost packet in any swap. Both are counted where frames come back.
//!
//! CI makes some hundred updates and swaps. `bench/run.sh` asks for as many as the bars say (by
//! `MILLSTREAM_UPDATES` and `MILLSTREAM_SWAPS`), and keeps the figures (`MILLSTREAM_RESULTS`, a directory).

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_kernel::{KernelMap, UpdateMode, testing};
use millstream_lab::StalenessMonitor;
use millstream_lab::environment::Environment;
use millstream_programs::Ipv4Prefix;
use millstream_programs::router::{self, NextHop, RouterModel};
use millstream_specialize::SessionReport;
use serde::Serialize;

use crate::guard::update_by_int80;
use crate::routed::{Beside, HOPS, Wanted, generation, latest, routed};

/// A count from the environment, for more runs than CI makes.
pub(crate) fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// Keeps figures, if the environment asks for that.
pub(crate) fn keep(name: &str, figures: &impl Serialize) {
    #[derive(Serialize)]
    struct Kept<'f, F> {
        schema: u32,
        environment: Environment,
        figures: &'f F,
    }
    let kept = Kept { schema: 1, environment: Environment::now(), figures };
    let text = serde_json::to_string_pretty(&kept).expect("figures");
    eprintln!("{name}: {text}");
    if let Ok(directory) = std::env::var("MILLSTREAM_RESULTS") {
        std::fs::write(PathBuf::from(directory).join(name), text + "\n").expect("the results' directory");
    }
}

/// Ways to change what the router does with one flow.
#[derive(Clone, Copy, Debug, Serialize)]
enum Way {
    /// The route's next hop, by one element.
    Element,
    /// The same, as one element of a batch.
    Batch,
    /// The route goes, so that a shorter one counts, and comes back.
    Delete,
    /// The next hop's address.
    NextHop,
    /// By the system call of 32-bit processes.
    Entry32,
    /// By another process that opened the map's pin.
    Process,
    /// By `bpftool`, by the map's id.
    Tool,
}

const WAYS: [Way; 7] =
    [Way::Element, Way::Batch, Way::Delete, Way::NextHop, Way::Entry32, Way::Process, Way::Tool];

/// The hottest flow, and the current state of its route.
struct Updater<'t> {
    beside: &'t Beside<'t>,
    far: &'t StalenessMonitor,
    destination: [u8; 4],
    prefix: Ipv4Prefix,
    /// A shorter prefix with the same address.
    wider: Ipv4Prefix,
    hops: Vec<NextHop>,
    hop: u32,
    process: OtherProcess,
    made: [u64; WAYS.len()],
}

impl<'t> Updater<'t> {
    fn new(beside: &'t Beside<'t>, far: &'t StalenessMonitor) -> Self {
        let hottest = beside.flows.weights.iter().enumerate().max_by_key(|(_, w)| **w).expect("flows").0;
        let frame = &beside.flows.packets[hottest];
        let destination: [u8; 4] = frame[30..34].try_into().expect("an address");
        let prefix = RouterModel::new(beside.config).route_of(frame).expect("a route");
        let hop = beside.config.routes.iter().rfind(|r| r.prefix == prefix).expect("the route").next_hop;
        // The longest that is shorter and that no route has.
        let free = |len: &u8| {
            !beside.config.routes.iter().any(|r| r.prefix == Ipv4Prefix::new(destination.into(), *len))
        };
        let len = (0..prefix.length()).rev().find(free).expect("a free length");
        Updater {
            beside,
            far,
            destination,
            prefix,
            wider: Ipv4Prefix::new(destination.into(), len),
            hops: beside.config.next_hops.clone(),
            hop,
            process: OtherProcess::start(&beside.routes),
            made: [0; WAYS.len()],
        }
    }

    fn set(&self, prefix: Ipv4Prefix, hop: u32) {
        let key = router::route_key(prefix);
        self.beside.routes.update(&key, &hop.to_ne_bytes(), UpdateMode::Any).expect("a route");
    }

    /// Sets the expected hop. Nothing is judged until the change has returned.
    fn expect(&self, hop: u32) {
        let NextHop::Forward { dst_mac, .. } = self.hops[hop as usize] else { panic!("a next hop") };
        self.far.expect(self.destination, dst_mac);
    }

    /// Changes the hop of the flow. The expectation is the result of the change.
    fn update(&mut self, way: Way) {
        let new = (self.hop + 1) % HOPS;
        let (key, value) = (router::route_key(self.prefix), new.to_ne_bytes());
        match way {
            Way::NextHop => return self.change_address(),
            Way::Delete => return self.delete(new),
            _ => self.expect(new),
        }
        match way {
            Way::Batch => {
                let others =
                    self.beside.config.routes.iter().rev().filter(|r| r.prefix != self.prefix).take(15);
                let mut keys: Vec<u8> = others.clone().flat_map(|r| router::route_key(r.prefix)).collect();
                let mut values: Vec<u8> = others.flat_map(|r| r.next_hop.to_ne_bytes()).collect();
                keys.extend(key);
                values.extend(value);
                self.beside.routes.update_batch(&keys, &values).expect("a batch");
            }
            Way::Entry32 => match update_by_int80(&self.beside.routes, &key, &value) {
                0 => {}
                // This kernel does not have that entry point.
                _ => self.set(self.prefix, new),
            },
            Way::Process => self.process.update(&key, &value),
            Way::Tool => by_tool(&self.beside.routes, &key, &value),
            Way::Element | Way::Delete | Way::NextHop => self.set(self.prefix, new),
        }
        self.far.resume_counting();
        self.hop = new;
    }

    /// The route goes: the wider one counts, with another next hop.
    fn delete(&mut self, new: u32) {
        self.set(self.wider, new);
        self.expect(new);
        assert!(self.beside.routes.delete(&router::route_key(self.prefix)).expect("deleted"), "no route");
        self.far.resume_counting();
        std::thread::sleep(Duration::from_millis(1));
        let next = (new + 1) % HOPS;
        self.expect(next);
        self.set(self.prefix, next);
        self.far.resume_counting();
        self.hop = next;
    }

    /// The next hop takes another link-layer address.
    fn change_address(&mut self) {
        let NextHop::Forward { dst_mac, .. } = &mut self.hops[self.hop as usize] else {
            panic!("a next hop")
        };
        dst_mac[5] = dst_mac[5].wrapping_add(0x10);
        let value = self.hops[self.hop as usize].encode();
        self.expect(self.hop);
        self.beside.next_hops.update(&self.hop.to_ne_bytes(), &value, UpdateMode::Any).expect("a next hop");
        self.far.resume_counting();
    }
}

fn by_tool(map: &KernelMap, key: &[u8], value: &[u8]) {
    let words = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>();
    let mut tool = Command::new("bpftool");
    tool.args(["map", "update", "id", &map.id().to_string(), "key"]).args(words(key));
    let done = tool.arg("value").args(words(value)).status().expect("bpftool");
    assert!(done.success(), "bpftool map update");
}

/// This test's program in a second process, which opens the map by its pin and writes it on request.
struct OtherProcess {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    pin: PathBuf,
}

const PIN: &str = "MILLSTREAM_TEST_PIN";
const DONE: &str = "written";

impl OtherProcess {
    fn start(map: &KernelMap) -> Self {
        let pin = PathBuf::from(format!("/sys/fs/bpf/millstream_bars_{}", std::process::id()));
        map.pin(&pin).expect("pinned");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["bars::writes_when_told_to", "--exact", "--nocapture"])
            .env(PIN, &pin)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let (orders, answers) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        OtherProcess { child, orders, answers: BufReader::new(answers), pin }
    }

    fn update(&mut self, key: &[u8], value: &[u8]) {
        let order = serde_json::to_string(&(key, value)).expect("bytes");
        writeln!(self.orders, "{order}").expect("it reads");
        let mut line = String::new();
        while line.trim_end() != DONE {
            line.clear();
            assert!(
                self.answers.read_line(&mut line).expect("it answers") > 0,
                "the other process has ended"
            );
        }
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.pin);
    }
}

/// Code of [`OtherProcess`]; does nothing by itself.
#[test]
fn writes_when_told_to() {
    let Ok(pin) = std::env::var(PIN) else { return };
    let map = KernelMap::from_pin(pin.as_ref()).expect("a pinned map");
    for line in std::io::stdin().lines() {
        let order: (Vec<u8>, Vec<u8>) = serde_json::from_str(&line.expect("a line")).expect("an order");
        map.update(&order.0, &order.1, UpdateMode::Any).expect("an update");
        // A line of its own, whatever the test harness has printed.
        println!("\n{DONE}");
    }
}

/// Pseudo-random pauses, so that updates fall into every phase of an answer.
struct Pauses(u64);

impl Pauses {
    fn next(&mut self, mean: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        mean.mul_f64((self.0 >> 11) as f64 / (1u64 << 52) as f64)
    }
}

/// Result of updates at one rate.
#[derive(Debug, Serialize)]
struct Updates {
    routes: usize,
    flows: usize,
    mean_pause_ms: f64,
    updates: u64,
    by_way: Vec<(Way, u64)>,
    seconds: f64,
    /// True if the routes had a twin; otherwise hot ones were in code.
    twins: bool,
    /// Share of the packets that took specialised code.
    specialised: f64,
    generations: usize,
    confirmed: usize,
    refreshed: usize,
    sent: u64,
    lost: u64,
    far_end: millstream_lab::StalenessCounts,
}

/// Packets so far, and those that took specialised code, as last reported.
fn packets(told: &[SessionReport]) -> (u64, u64) {
    match latest(told) {
        Some(SessionReport::Status { packets, specialised, .. }) => (*packets, specialised.unwrap_or(0)),
        _ => (0, 0),
    }
}

/// Rate of updates.
#[derive(Clone, Copy)]
struct Rhythm {
    /// Mean of the pauses between them.
    pause: Duration,
    /// After this many there is time for an answer.
    answered: u64,
    /// One of this many is made by `bpftool`: a process of its own for each is slow.
    tool: u64,
}

const TEN_A_SECOND: Rhythm = Rhythm { pause: Duration::from_millis(100), answered: 25, tool: 40 };
const OFTEN: Rhythm = Rhythm { pause: Duration::from_millis(8), ..TEN_A_SECOND };
const FLOOD: Rhythm = Rhythm { pause: Duration::from_micros(100), answered: 500, tool: 4_000 };

/// Makes `count` updates of all kinds under load.
fn updates(wanted: &Wanted, count: u64, rhythm: Rhythm) -> Updates {
    let ran = routed(
        wanted,
        |rig| StalenessMonitor::new(rig).expect("a far end"),
        |beside, far| {
            beside.until("a generation", |r| generation(r).is_some());
            let mut updater = Updater::new(beside, far);
            let mut pauses = Pauses(0x9e37_79b9_7f4a_7c15);
            let before = packets(&beside.told());
            let start = Instant::now();
            for n in 0..count {
                std::thread::sleep(pauses.next(rhythm.pause));
                if n % rhythm.answered == 0 {
                    beside.until_approved(Duration::from_secs(10));
                }
                let tool = WAYS.len() - 1;
                let way = if n % rhythm.tool == 0 { tool } else { n as usize % tool };
                updater.update(WAYS[way]);
                updater.made[way] += 1;
            }
            // The last one is judged too.
            std::thread::sleep(Duration::from_millis(100));
            (updater.made, start.elapsed(), before, far.counts())
        },
    );
    let (made, time, before, far_end) = ran.result;
    let after = packets(&ran.told);
    Updates {
        routes: wanted.routes,
        flows: wanted.flows,
        twins: wanted.twins,
        mean_pause_ms: rhythm.pause.as_secs_f64() * 1e3,
        updates: made.iter().sum(),
        by_way: WAYS.into_iter().zip(made).collect(),
        seconds: time.as_secs_f64(),
        specialised: (after.1.saturating_sub(before.1)) as f64 / (after.0 - before.0).max(1) as f64,
        generations: ran.told.iter().filter_map(generation).count(),
        confirmed: ran.told.iter().filter(|r| matches!(r, SessionReport::Confirmed { .. })).count(),
        refreshed: ran.told.iter().filter(|r| matches!(r, SessionReport::Refreshed { .. })).count(),
        sent: ran.counts.sent,
        lost: ran.counts.lost(),
        far_end,
    }
}

fn no_packet_is_stale(file: &str, wanted: &Wanted, count: u64, rhythm: Rhythm) -> Updates {
    let figures = updates(wanted, count, rhythm);
    keep(file, &figures);
    let far = figures.far_end;
    assert_eq!(far.stale, 0, "stale packets: {figures:?}");
    assert!(far.fresh > figures.updates, "hardly a packet was judged: {figures:?}");
    assert_eq!(far.unstamped, 0, "packets without a time: {figures:?}");
    assert_eq!(figures.lost, 0, "packets were lost: {figures:?}");
    // What is asked for by a twin alone is answered by it; with other changes in between, by a new
    // generation.
    assert!(figures.refreshed + figures.generations > 4, "specialised code did not come back: {figures:?}");
    figures
}

#[test]
fn no_packet_is_stale_when_twins_follow() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { stamps: true, ..Wanted::new("follow", 200) };
    let figures = no_packet_is_stale("updates-twins.json", &wanted, asked("MILLSTREAM_UPDATES", 400), OFTEN);
    assert!(figures.refreshed > 3, "no twin followed: {figures:?}");
}

/// A hundred times as many as elsewhere, with hardly a pause, so that most come while an earlier one is being
/// answered.
#[test]
fn no_packet_is_stale_in_a_flood_of_updates() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { stamps: true, ..Wanted::new("flood", 200) };
    no_packet_is_stale("updates-flood.json", &wanted, 100 * asked("MILLSTREAM_UPDATES", 200), FLOOD);
}

#[test]
fn no_packet_is_stale_when_code_is_made_anew() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { stamps: true, twins: false, ..Wanted::new("anew", 200) };
    no_packet_is_stale("updates-code.json", &wanted, asked("MILLSTREAM_UPDATES", 400), OFTEN);
}

#[test]
fn no_packet_is_stale_at_ten_updates_a_second() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { stamps: true, flows: 10_000, ..Wanted::new("ten", 2_592) };
    let count = (asked("MILLSTREAM_UPDATES", 400) / 5).max(50);
    let figures = no_packet_is_stale("updates-ten-a-second.json", &wanted, count, TEN_A_SECOND);
    // How large a part is a matter of time: `bench/bars.py` holds the bar of nine in ten.
    assert!(figures.specialised > 0.0, "no packet took specialised code: {figures:?}");
}

/// Result of swaps.
#[derive(Debug, Serialize)]
struct Swaps {
    swaps: u64,
    seconds: f64,
    generations: usize,
    sent: u64,
    received: u64,
    returned: u64,
    lost: u64,
}

#[test]
fn no_packet_is_lost_in_any_swap() {
    if !testing::require() {
        return;
    }
    let count = asked("MILLSTREAM_SWAPS", 100);
    let swaps = |r: &SessionReport| match r {
        SessionReport::Status { swaps, .. } => *swaps,
        _ => 0,
    };
    let wanted = Wanted { interval: Duration::from_millis(10), twins: false, ..Wanted::new("swaps", 200) };
    let ran = routed(
        &wanted,
        |_| (),
        |beside, ()| {
            let start = Instant::now();
            let mut route = 0;
            // Each look at the traffic swaps twice, and an update of a hot route brings a new generation.
            while !beside.told().iter().any(|r| swaps(r) >= count) {
                assert!(start.elapsed() < Duration::from_secs(600), "too slow");
                beside.set_route(route % beside.config.routes.len(), route as u32 % HOPS);
                route += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
            start.elapsed()
        },
    );
    let figures = Swaps {
        swaps: ran.told.iter().map(swaps).max().unwrap_or(0),
        seconds: ran.result.as_secs_f64(),
        generations: ran.told.iter().filter_map(generation).count(),
        sent: ran.counts.sent,
        received: ran.counts.received,
        returned: ran.counts.returned,
        lost: ran.counts.lost(),
    };
    keep("swaps.json", &figures);
    assert!(figures.swaps >= count && figures.generations > 0, "{figures:?}");
    assert_eq!(figures.lost, 0, "{figures:?}");
    assert_eq!(figures.sent, figures.received, "{figures:?}");
    assert_eq!(figures.sent, figures.returned, "{figures:?}");
}
