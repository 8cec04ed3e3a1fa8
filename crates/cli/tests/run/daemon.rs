//! `millstream daemon` as a user runs it: many programs, orders, reloads, restarts, and failures.

mod browser;
mod bundles;
mod otlp;
mod page;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_isa::MapType;
use millstream_kernel::{
    KernelMap, KernelProgram, Link, MapSpec, Namespace, PacketSocket, UpdateMode, XdpMode, create_veth,
    delete_interface, interface_index, probe, replace_xdp_netlink, set_up, set_up_pair, testing, xdp_program,
};
use millstream_lab::rig::TEST_PORT;
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::router;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use serde_json::Value;

use crate::kill::{End, asked, keep};
use crate::messages::says;
use crate::session::{Place, ended};

/// A daemon in a namespace. Ended by SIGTERM when dropped, since it has many pins.
struct Daemon<'n> {
    namespace: &'n Namespace,
    socket: PathBuf,
    child: Child,
}

impl<'n> Daemon<'n> {
    /// Starts one with a configuration, and waits until it listens.
    fn start(namespace: &'n Namespace, place: &Place, config: &str) -> Daemon<'n> {
        Daemon::with(namespace, place, config, &[])
    }

    /// The same, with further flags.
    fn with(namespace: &'n Namespace, place: &Place, config: &str, flags: &[&str]) -> Daemon<'n> {
        let file = place.files.join("daemon.toml");
        std::fs::write(&file, configuration(place, config)).unwrap();
        let socket = place.files.join("daemon.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command
            .args(["daemon", "--config"])
            .arg(file)
            .arg("--socket")
            .arg(&socket)
            .args(flags)
            .stdout(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn().unwrap()).unwrap();
        let mut first = [0; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut first).expect("it says that it listens");
        Daemon { namespace, socket, child }
    }

    fn ask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).arg("--socket").arg(&self.socket);
        ended(self.namespace, &mut command)
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).unwrap()
    }

    /// Status of a program.
    fn program(&self, name: &str) -> Value {
        let status = self.status();
        let found = status["programs"].as_array().unwrap().iter().find(|p| p["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {status}")).clone()
    }

    /// Waits until a program's status meets a condition.
    #[track_caller]
    fn until(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let now = self.program(name);
            if wanted(&now) {
                return now;
            }
            assert!(start.elapsed() < Duration::from_secs(300), "{name} is not {what}: {now}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn until_state(&self, name: &str, state: &str) -> Value {
        self.until(name, state, |p| p["state"] == state)
    }

    /// Recorded events, as JSON lines.
    fn history(&self) -> String {
        String::from_utf8(self.ask(&["history", "--json", "-n", "1000"]).stdout).unwrap()
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for its end; returns the exit code.
    fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal("-TERM");
            let _ = self.child.wait();
        }
    }
}

/// A configuration with this place's pins; ROUTER stands for the router's object.
fn configuration(place: &Place, text: &str) -> String {
    let router = place.files.join("router.o").display().to_string();
    format!("pins = {:?}\n{}", place.pins, text.replace("ROUTER", &router))
}

/// An entry of a router.
fn router_on(name: &str, interfaces: &[&str]) -> String {
    format!("[[program]]\nname = {name:?}\nobject = \"ROUTER\"\ninterfaces = {interfaces:?}\n")
}

/// A namespace with veth pairs, named by one end each.
fn namespace(names: &[&str]) -> Namespace {
    let namespace = Namespace::new().unwrap();
    namespace.enter(|| names.iter().for_each(|name| pair(name))).unwrap();
    namespace
}

fn pair(name: &str) {
    set_up_pair(create_veth(name, &format!("{name}x"), 1).unwrap()).unwrap();
}

/// The program on an interface.
fn on_hook(namespace: &Namespace, name: &str) -> Option<u32> {
    namespace.enter(|| xdp_program(interface_index(name).unwrap()).unwrap()).unwrap()
}

/// Waits until one program is on both interfaces, for at most a minute; returns true if it is. Profiles and
/// variants take turns there, and go onto one interface after the other.
fn share_a_program(namespace: &Namespace, one: &str, other: &str) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        let found = on_hook(namespace, one);
        if found.is_some() && found == on_hook(namespace, other) {
            return true;
        }
    }
    false
}

/// Directory of pins of one of the daemon's programs.
fn pins_of(place: &Place, name: &str) -> PathBuf {
    let start = format!("{name}_");
    let all = std::fs::read_dir(&place.pins).unwrap().flatten();
    all.map(|e| e.path()).find(|p| p.file_name().unwrap().to_string_lossy().starts_with(&start)).unwrap()
}

#[test]
fn many_programs_are_kept_and_one_that_fails_disturbs_no_other() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0", "dm1", "dm2", "dm3"]);
    let place = Place::new("daemon_many");
    let theirs = probe::constant_xdp(2).unwrap();
    let dm3 = namespace.enter(|| interface_index("dm3").unwrap()).unwrap();
    let link = namespace.enter(|| Link::attach_xdp(&theirs, dm3, XdpMode::Native).unwrap()).unwrap();
    let config =
        [router_on("core", &["dm0", "dm1"]), router_on("edge", &["dm2"]), router_on("taken", &["dm3"])];
    let mut daemon = Daemon::start(&namespace, &place, &config.concat());
    daemon.until_state("core", "running");
    daemon.until_state("edge", "running");
    let taken = daemon.until_state("taken", "failed");
    assert!(taken["reason"].as_str().unwrap().contains("EBUSY"), "{taken}");
    assert!(taken["advice"].to_string().contains("another program is on this interface"), "{taken}");
    assert_eq!(daemon.ask(&["status"]).status.code(), Some(1), "one has failed");
    // One program on both interfaces of `core`, another on `edge`; theirs stays.
    assert!(share_a_program(&namespace, "dm0", "dm1"));
    assert_ne!(on_hook(&namespace, "dm0"), on_hook(&namespace, "dm2"));
    assert_eq!(on_hook(&namespace, "dm3"), Some(theirs.id().unwrap()));
    // As soon as it has gone, the failed one has its place.
    drop(link);
    says(&daemon.ask(&["resume", "taken"]), 0, &[]);
    daemon.until_state("taken", "running");
    says(&daemon.ask(&["stop", "edge"]), 0, &[]);
    assert!(on_hook(&namespace, "dm2").is_none() && on_hook(&namespace, "dm0").is_some());
    says(&daemon.ask(&["pause", "edge"]), 1, &["edge: it is stopped"]);
    says(&daemon.ask(&["pause", "nobody"]), 1, &["no program \"nobody\"", "core, edge, taken"]);
    says(&daemon.ask(&["resume", "edge"]), 0, &[]);
    daemon.until_state("edge", "running");
    says(&daemon.ask(&["stop"]), 0, &[]);
    assert_eq!(daemon.ended(), Some(0));
    for name in ["dm0", "dm1", "dm2", "dm3"] {
        assert_eq!(on_hook(&namespace, name), None, "{name}");
    }
    assert_eq!((place.pinned(), daemon.socket.exists()), (Vec::new(), false));
    says(&daemon.ask(&["status"]), 1, &["no daemon answers", "millstream daemon"]);
}

#[test]
fn a_daemon_that_was_killed_is_taken_over_by_the_next() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0", "dm1"]);
    let place = Place::new("daemon_killed");
    let config = router_on("core", &["dm0", "dm1"]);
    let mut daemon = Daemon::start(&namespace, &place, &config);
    daemon.until_state("core", "running");
    let map = || KernelMap::from_pin(&pins_of(&place, "core").join("maps/routes")).unwrap();
    let (key, id) =
        (router::route_key(millstream_programs::Ipv4Prefix::new([10, 0, 0, 0].into(), 8)), map().id());
    map().update(&key, &[1, 0, 0, 0], UpdateMode::Any).unwrap();
    daemon.child.kill().unwrap();
    daemon.ended();
    assert!(on_hook(&namespace, "dm0").is_some() && on_hook(&namespace, "dm1").is_some());
    // Its socket is still there, and nobody listens.
    assert!(daemon.socket.exists());
    says(&daemon.ask(&["status"]), 1, &["no daemon answers"]);
    let mut next = Daemon::start(&namespace, &place, &config);
    next.until_state("core", "running");
    assert!(next.history().contains("\"took_over\":true"), "{}", next.history());
    assert_eq!((map().id(), map().lookup(&key).unwrap()), (id, Some(vec![1, 0, 0, 0])), "its maps go on");
    next.signal("-TERM");
    assert_eq!(next.ended(), Some(0));
    assert_eq!((on_hook(&namespace, "dm0"), on_hook(&namespace, "dm1")), (None, None));
    assert_eq!(place.pinned(), Vec::<String>::new());
}

/// It cannot be taken over: one of the pinned maps is not the object's.
#[test]
fn stop_gives_back_what_a_killed_daemon_left_also_if_it_cannot_be_taken_over() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0", "dm1"]);
    let place = Place::new("daemon_left");
    let theirs = probe::constant_xdp(2).unwrap();
    let dm1 = namespace.enter(|| interface_index("dm1").unwrap()).unwrap();
    let put = |new: Option<&KernelProgram>, old: Option<&KernelProgram>| {
        namespace.enter(|| replace_xdp_netlink(dm1, new, old, XdpMode::Native).unwrap()).unwrap();
    };
    put(Some(&theirs), None);
    let config =
        [router_on("own", &["dm0"]), router_on("adopted", &["dm1"]), "adopt = 'any'\n".into()].concat();
    let mut killed = Daemon::start(&namespace, &place, &config);
    killed.until_state("own", "running");
    killed.until_state("adopted", "running");
    killed.child.kill().unwrap();
    killed.ended();
    let left = [on_hook(&namespace, "dm0"), on_hook(&namespace, "dm1")];
    let spec =
        MapSpec { map_type: MapType::HASH, key_size: 4, value_size: 4, max_entries: 1, ..MapSpec::default() };
    let other = KernelMap::create(&spec).unwrap();
    for name in ["own", "adopted"] {
        let pin = pins_of(&place, name).join("maps").join(router::ROUTES);
        std::fs::remove_file(&pin).unwrap();
        other.pin(&pin).unwrap();
    }
    let mut daemon = Daemon::start(&namespace, &place, &config);
    for name in ["own", "adopted"] {
        let failed = daemon.until_state(name, "failed");
        assert!(failed["reason"].as_str().unwrap().contains("routes"), "{failed}");
    }
    assert_eq!([on_hook(&namespace, "dm0"), on_hook(&namespace, "dm1")], left, "packets go on");
    says(&daemon.ask(&["stop", "own"]), 0, &[]);
    assert_eq!(on_hook(&namespace, "dm0"), None);
    says(&daemon.ask(&["stop"]), 0, &[]);
    assert_eq!(daemon.ended(), Some(0));
    assert_eq!(on_hook(&namespace, "dm1"), Some(theirs.id().unwrap()));
    assert_eq!(place.pinned(), Vec::<String>::new());
    put(None, Some(&theirs));
}

#[test]
fn interfaces_may_come_and_go() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0"]);
    let place = Place::new("daemon_gone");
    let daemon = Daemon::start(&namespace, &place, &router_on("core", &["dm0", "dm1"]));
    let core = daemon.until_state("core", "running");
    assert_eq!(core["missing"], serde_json::json!(["dm1"]));
    let both = |p: &Value| p["interfaces"].as_array().unwrap().len() == 2;
    let alone = |p: &Value| p["interfaces"].as_array().unwrap().len() == 1;
    namespace.enter(|| pair("dm1")).unwrap();
    daemon.until("core", "on both", both);
    assert!(share_a_program(&namespace, "dm0", "dm1"));
    let map = KernelMap::from_pin(&pins_of(&place, "core").join("maps/routes")).unwrap();
    let remove = |name: &str| {
        namespace.enter(|| delete_interface(interface_index(name).unwrap()).unwrap()).unwrap();
    };
    remove("dm0");
    daemon.until("core", "on one", alone);
    assert_eq!(daemon.program("core")["state"], "running");
    remove("dm1");
    let waiting = daemon.until_state("core", "waiting");
    assert!(waiting["reason"].as_str().unwrap().contains("dm0, dm1"), "{waiting}");
    namespace.enter(|| ["dm0", "dm1"].iter().for_each(|name| pair(name))).unwrap();
    daemon.until("core", "on both again", |p| p["state"] == "running" && both(p));
    let again = KernelMap::from_pin(&pins_of(&place, "core").join("maps/routes")).unwrap();
    assert_eq!(map.id(), again.id(), "its tables are kept");
}

#[test]
fn a_configuration_is_read_again_and_what_is_as_it_was_goes_on() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0", "dm1", "dm2"]);
    let place = Place::new("daemon_reload");
    let daemon =
        Daemon::start(&namespace, &place, &[router_on("a", &["dm0"]), router_on("b", &["dm1"])].concat());
    daemon.until_state("a", "running");
    daemon.until_state("b", "running");
    // A program that is ended and started has new maps.
    let routes = || KernelMap::from_pin(&pins_of(&place, "a").join("maps/routes")).unwrap().id();
    let (a, file) = (routes(), place.files.join("daemon.toml"));
    let write = |text: &str| std::fs::write(&file, configuration(&place, text)).unwrap();
    write("nonsense = 1\n");
    says(&daemon.ask(&["reload"]), 1, &["daemon.toml:2", "nonsense", "all stays as it was"]);
    assert_eq!(daemon.program("b")["state"], "running");
    write(&[router_on("a", &["dm0"]), router_on("c", &["dm2"])].concat());
    daemon.signal("-HUP");
    let start = Instant::now();
    while daemon.status()["programs"][1]["name"] != "c" {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", daemon.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.until_state("c", "running");
    assert_eq!((routes(), on_hook(&namespace, "dm1")), (a, None), "a goes on, b is gone");
    assert!(on_hook(&namespace, "dm0").is_some() && on_hook(&namespace, "dm2").is_some());
}

#[test]
fn what_cannot_be_used_is_refused() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0"]);
    let place = Place::new("daemon_input");
    let daemon = Daemon::start(&namespace, &place, &router_on("core", &["dm0"]));
    let run = |args: &[&str], socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.arg("daemon").args(args).arg("--socket").arg(socket);
        ended(&namespace, &mut command)
    };
    let object = format!("dm0={}", place.files.join("router.o").display());
    says(&run(&["--program", &object], &daemon.socket), 1, &["another daemon", "millstream stop"]);
    let file = place.files.join("router.o");
    says(&run(&["--program", &object], &file), 2, &["no socket", "--socket"]);
    says(&run(&["--program", "dm0"], &file), 2, &["--program dm0", "IFACE=OBJECT"]);
    let config = place.files.join("wrong.toml");
    std::fs::write(
        &config,
        "\n[[program]]\nobject = 'router.o'\ninterfaces = ['dm0']\nexclude = ['nomap']\n",
    )
    .unwrap();
    let config = config.to_str().unwrap();
    says(&run(&["--check", "--config", config], &file), 2, &["no map \"nomap\"", "routes"]);
    std::fs::write(config, "\n[[program]]\ninterfaces = ['dm0']\n").unwrap();
    says(&run(&["--check", "--config", config], &file), 2, &["wrong.toml:2", "object"]);
    assert_eq!(daemon.program("core")["name"], "core", "it is not disturbed");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&daemon.socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "only its owner may ask");
}

#[test]
fn questions_that_are_none_get_an_answer() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0"]);
    let place = Place::new("daemon_protocol");
    let daemon = Daemon::start(&namespace, &place, &router_on("core", &["dm0"]));
    let ask = |line: &[u8]| {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut answer).unwrap();
        answer
    };
    for (line, words) in [
        (&b"nonsense\n"[..], "not understood"),
        (b"{\"schema\":2,\"command\":\"dance\"}\n", "not understood"),
        (b"{\"schema\":99,\"command\":\"status\"}\n", "schema 99"),
        (&[b'x'; 65_536][..], "too long"),
    ] {
        let answer = ask(line);
        assert!(answer.contains("\"answer\":\"refused\"") && answer.contains(words), "{answer}");
    }
    assert!(ask(b"{\"schema\":2,\"command\":\"status\"}\n").contains("\"answer\":\"status\""));
}

/// With traffic: specialised code is rolled back at once, stays so, and comes back; nothing is lost.
#[test]
fn a_specialised_program_is_rolled_back_and_comes_back() {
    if !testing::require() {
        return;
    }
    with_traffic("daemon_live", roll_back_and_resume);
}

/// Resources of a daemon while its programs stay as they are.
#[test]
fn what_a_daemon_costs_is_known() {
    if !testing::require() {
        return;
    }
    let seconds = asked("MILLSTREAM_STEADY").unwrap_or(1);
    let steady = Duration::from_secs(seconds);
    let figures = with_traffic("daemon_cost", |daemon| {
        daemon.until("core", "specialised", |p| p["generation"].as_u64() > Some(0) && p["guard"] == "valid");
        std::thread::sleep(steady);
        let [before, after] = [0, seconds].map(|wait| {
            std::thread::sleep(Duration::from_secs(wait));
            (Instant::now(), processor_time(daemon.child.id()))
        });
        let share = (after.1 - before.1) / (after.0 - before.0).as_secs_f64();
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
        let bytes = |what: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(what)).unwrap();
            1024 * line.trim_start_matches(':').trim_end_matches("kB").trim().parse::<u64>().unwrap()
        };
        serde_json::json!({
            "seconds": seconds,
            "cpu_share": share,
            "anonymous_bytes": bytes("RssAnon"),
            "file_bytes": bytes("RssFile"),
            "shared_bytes": bytes("RssShmem"),
        })
    });
    keep("daemon-cost.json", &figures);
    // `bench/bars.py` has the limit.
    assert!(
        figures["cpu_share"].as_f64() >= Some(0.0) && figures["anonymous_bytes"].as_u64() > Some(0),
        "{figures}"
    );
}

/// Processor time of a process in seconds, exact to 10 ms.
fn processor_time(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name may hold anything, so count from its closing bracket.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|f| f.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

/// Fills the tables of a running router.
fn fill(place: &Place, program: &str, config: &router::RouterConfig) {
    for entry in config.entries().unwrap() {
        let map = KernelMap::from_pin(&pins_of(place, program).join("maps").join(entry.map)).unwrap();
        map.update(&entry.key, &entry.value, UpdateMode::Any).unwrap();
    }
}

/// Sends a frame of each flow a millisecond, at most, from an interface while `act` runs.
fn under_load(namespace: &Namespace, interface: &str, flows: &WeightedFlows, act: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let send = || {
            let socket = PacketSocket::open(interface_index(interface).unwrap()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                // A full queue is no fault of the daemon.
                flows.packets.iter().for_each(|frame| drop(socket.send(frame)));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        scope.spawn(move || namespace.enter(send).unwrap());
        let _end = End(&stop);
        act();
    });
}

/// A daemon with a router of 2,000 routes and traffic, of which nothing is lost.
fn with_traffic<R>(name: &str, act: impl FnOnce(&Daemon<'_>) -> R) -> R {
    let place = Place::new(name);
    let rig = TestRig::new(RigConfig::default()).unwrap();
    let config = router::generate(2_000, &[rig.test_port()], 16, 1);
    let flows = router::flows(&config, 1_000, FlowLocality::HIGH, 1);
    let sequence = flows.sequence(1, 1 << 14);
    rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).unwrap();
    let text = format!("{}interval-ms = 200\n", router_on("core", &[TEST_PORT]));
    let daemon = Daemon::start(rig.namespace(), &place, &text);
    daemon.until_state("core", "running");
    fill(&place, "core", &config);
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| rig.generator_loop(&stop, Some(200_000.0)).unwrap());
        let _end = End(&stop);
        act(&daemon)
    });
    let counts = rig.counts().unwrap();
    assert_eq!(counts.lost(), 0, "{counts:?}");
    result
}

fn roll_back_and_resume(daemon: &Daemon<'_>) {
    let specialised = |p: &Value| p["generation"].as_u64() > Some(0) && p["guard"] == "valid";
    daemon.until("core", "specialised", specialised);
    let fast = on_hook(daemon.namespace, TEST_PORT);
    says(&daemon.ask(&["rollback", "core"]), 0, &[]);
    let now = daemon.program("core");
    assert_eq!((now["state"].as_str(), now["generation"].as_u64()), (Some("rolled_back"), Some(0)), "{now}");
    assert_ne!(on_hook(daemon.namespace, TEST_PORT), fast);
    // The rollback lasts.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(daemon.program("core")["generation"].as_u64(), Some(0));
    says(&daemon.ask(&["resume"]), 0, &[]);
    daemon.until("core", "specialised again", specialised);
    daemon.until("core", "taking packets", |p| p["specialised"].as_u64() > Some(0));
    let top = String::from_utf8(daemon.ask(&["top", "--once"]).stdout).unwrap();
    // The router's lookups of routes are answered by a twin; its key is shown as an address.
    for words in
        ["routes", "shadow table", "hottest keys of", "% of a core", TEST_PORT, "running", "slots: original"]
    {
        assert!(top.contains(words), "{words:?} is not in\n{top}");
    }
    says(&daemon.ask(&["pause", "core"]), 0, &[]);
    let paused = daemon.program("core");
    assert!(paused["state"] == "paused" && paused["generation"].as_u64() > Some(0), "{paused}");
    let history = daemon.history();
    for event in ["\"specialised\"", "\"withdrawn\"", "\"rolled_back\"", "\"paused\""] {
        assert!(history.contains(event), "{event} is not in {history}");
    }
}

/// With the privileges of the unit, its files read-only where the unit makes them so, and with notification
/// that it is ready.
#[test]
fn the_rights_of_the_systemd_unit_are_enough() {
    if !testing::require() {
        return;
    }
    let unit = include_str!("../../../../dist/systemd/millstream.service");
    let set = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let rights = |set: &str| {
        let each = set.split(' ').map(|c| c.strip_prefix("CAP_").unwrap().to_lowercase());
        each.fold("-all".to_owned(), |all, name| format!("{all},+{name}"))
    };
    let namespace = namespace(&["dm0"]);
    let theirs = probe::constant_xdp(2).unwrap();
    let dm0 = namespace.enter(|| interface_index("dm0").unwrap()).unwrap();
    let put = |new: Option<&KernelProgram>, old: Option<&KernelProgram>| {
        namespace.enter(|| replace_xdp_netlink(dm0, new, old, XdpMode::Native).unwrap()).unwrap();
    };
    put(Some(&theirs), None);
    let place = Place::new("daemon_unit");
    let config = place.files.join("daemon.toml");
    let entry = router_on("core", &["dm0"]) + "adopt = 'any'\n";
    std::fs::write(&config, configuration(&place, &entry)).unwrap();
    let (socket, ready) = (place.files.join("daemon.sock"), place.files.join("ready.sock"));
    let manager = UnixDatagram::bind(&ready).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let line = format!(
        "mount --make-rprivate / && mount --bind {files} {files} && mount -o remount,bind,ro / && \
         exec setpriv --no-new-privs --inh-caps=-all --bounding-set={rights} {bin} daemon \
         --config {config} --socket {socket}",
        files = place.files.display(),
        rights = rights(set),
        bin = env!("CARGO_BIN_EXE_millstream"),
        config = config.display(),
        socket = socket.display(),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &line]).env("NOTIFY_SOCKET", &ready).stdout(Stdio::null());
    let child = namespace.enter(|| command.spawn().unwrap()).unwrap();
    let mut daemon = Daemon { namespace: &namespace, socket, child };
    let mut told = [0; 64];
    let n = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..n], b"READY=1");
    let core =
        daemon.until("core", "running or failed", |p| p["state"] == "running" || p["state"] == "failed");
    assert_eq!(core["state"], "running", "{core}");
    assert_ne!(on_hook(&namespace, "dm0"), Some(theirs.id().unwrap()));
    says(&daemon.ask(&["stop"]), 0, &[]);
    let n = manager.recv(&mut told).unwrap();
    assert_eq!((&told[..n], daemon.ended()), (&b"STOPPING=1"[..], Some(0)));
    assert_eq!(on_hook(&namespace, "dm0"), Some(theirs.id().unwrap()));
    put(None, Some(&theirs));
}

#[test]
fn metrics_say_what_the_status_says() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["dm0"]);
    namespace.enter(|| set_up(interface_index("lo").unwrap()).unwrap()).unwrap();
    let place = Place::new("daemon_metrics");
    let config = format!("metrics = \"127.0.0.1:9471\"\n{}", router_on("core", &["dm0"]));
    let daemon = Daemon::start(&namespace, &place, &config);
    daemon.until_state("core", "running");
    daemon.until("core", "told of", |p| p["guard"] == "off");
    says(&daemon.ask(&["rollback"]), 0, &[]);
    let text = scrape(&namespace, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("text/plain; version=0.0.4"), "{text}");
    let of = |name: &str| {
        let value =
            |line: &str| line.strip_prefix(name)?.strip_prefix("{program=\"core\"} ")?.parse::<f64>().ok();
        text.lines().find_map(value).unwrap_or_else(|| panic!("{name} is not in {text}"))
    };
    for (name, value) in [
        ("millstream_up", 0.0),
        ("millstream_interfaces", 1.0),
        ("millstream_generation", 0.0),
        ("millstream_guard_valid", 0.0),
        ("millstream_rollbacks_total", 1.0),
        ("millstream_installs_total", 0.0),
        ("millstream_compile_seconds_count", 0.0),
        ("millstream_write_response_seconds_count", 0.0),
    ] {
        assert_eq!(of(name), value, "{name}");
    }
    assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    assert!(scrape(&namespace, "/other").starts_with("HTTP/1.1 404"));
    let taken = place.files.join("other.sock");
    let mut second = Command::new(env!("CARGO_BIN_EXE_millstream"));
    let object = format!("dm1={}", place.files.join("router.o").display());
    second.args(["daemon", "--program", &object, "--metrics", "127.0.0.1:9471", "--socket"]).arg(taken);
    says(&ended(&namespace, &mut second), 1, &["127.0.0.1:9471", "--metrics"]);
}

/// The daemon's whole answer to `GET`, with its head.
fn scrape(namespace: &Namespace, path: &str) -> String {
    let ask = || {
        let mut stream = TcpStream::connect("127.0.0.1:9471").unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    namespace.enter(ask).unwrap()
}
