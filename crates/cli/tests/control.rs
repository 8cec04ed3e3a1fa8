//! `millstream control` as an operator uses it: data planes are attached, changed, tended and detached, with
//! frames that go through them.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use millstream_kernel::{Namespace, PacketSocket, create_veth, set_up_pair, testing};
use millstream_programs::packet::{EthernetFrame, MacAddress, TransportHeader};
use serde_json::{Value, json};

/// Time limit for a frame.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time to wait for a frame that must not come.
const SILENCE: Duration = Duration::from_millis(300);

/// A data plane of a test, in a namespace with so many veth pairs: `inN`, where it runs, and `outN`.
struct Bench {
    plane: &'static str,
    namespace: Namespace,
    /// At the outer ends.
    sockets: Vec<PacketSocket>,
    pins: PathBuf,
    config: PathBuf,
}

impl Bench {
    fn new(plane: &'static str, pairs: usize) -> Option<Bench> {
        if !testing::require() {
            return None;
        }
        let namespace = Namespace::new().unwrap();
        let make = |n: usize| {
            let (inner, outer) = create_veth(&format!("in{n}"), &format!("out{n}"), 1).unwrap();
            set_up_pair((inner, outer)).unwrap();
            PacketSocket::open(outer).unwrap()
        };
        let prepare = || {
            // Otherwise the stack sends frames of its own, from which a switch learns.
            for scope in ["all", "default"] {
                let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
            (0..pairs).map(make).collect()
        };
        let sockets = namespace.enter(prepare).unwrap();
        let unique = format!("millstream-test-{plane}-{}", std::process::id());
        let pins = PathBuf::from("/sys/fs/bpf").join(&unique);
        let config = std::env::temp_dir().join(unique + ".json");
        Some(Bench { plane, namespace, sockets, pins, config })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(["control", self.plane, "--pin"]).arg(&self.pins).args(arguments);
        command
    }

    /// A command of `control` inside the namespace.
    fn run(&self, arguments: &[&str]) -> Output {
        self.namespace.enter(|| self.command(arguments).output().unwrap()).unwrap()
    }

    fn good(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    /// `up` or `set` with this configuration.
    fn configure(&self, arguments: &[&str], config: &Value) {
        std::fs::write(&self.config, config.to_string()).unwrap();
        self.good(&[arguments, &[self.config.to_str().unwrap()]].concat());
    }

    fn up(&self, config: &Value) {
        // Generic: frames then leave through devices that have no program of their own.
        self.configure(&["up", "--mode", "generic"], config);
    }

    /// The entries that `list` prints.
    fn list(&self) -> Value {
        let output = self.good(&["list", "--json"]);
        let mut document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["schema"], 1);
        document["entries"].take()
    }

    fn show(&self) -> Value {
        let report: Value = serde_json::from_slice(&self.good(&["show", "--json"]).stdout).unwrap();
        assert_eq!((&report["schema"], &report["plane"]), (&2.into(), &self.plane.into()));
        report
    }

    fn tend(&self) -> Tender {
        let spawn = || self.command(&["maintain"]).stderr(Stdio::inherit()).spawn().unwrap();
        Tender(self.namespace.enter(spawn).unwrap())
    }

    fn send(&self, pair: usize, frame: &[u8]) {
        self.sockets[pair].send(frame).unwrap();
    }

    /// The next frame of these stations at an outer end, if one comes.
    fn receive(&self, pair: usize, patience: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            while let Some(frame) = self.sockets[pair].receive().unwrap() {
                // Skips frames of the stack itself.
                if frame[..6] == [0xff; 6] || frame[0] == 2 && frame[6] == 2 {
                    return Some(frame);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.config);
        if self.pins.exists() {
            let _ = self.run(&["down"]);
        }
    }
}

/// A tender that ends with the test.
struct Tender(Child);

impl Drop for Tender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mac(n: u8) -> MacAddress {
    [2, 0, 0, 0, 0, n]
}

fn text(mac: MacAddress) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

#[test]
fn a_place_for_pins_that_a_stranger_made_first_is_refused() {
    let Some(bench) = Bench::new("router", 1) else { return };
    std::fs::create_dir(&bench.pins).unwrap();
    std::os::unix::fs::chown(&bench.pins, Some(54_321), None).unwrap();
    let config = json!({"ports": ["in0"], "routes": {"10.0.0.0/8": "hole"}, "next_hops": {"hole": "drop"}});
    std::fs::write(&bench.config, config.to_string()).unwrap();
    for arguments in [&["up", bench.config.to_str().unwrap()][..], &["show"], &["down"]] {
        let output = bench.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {said}");
        assert!(said.contains("user 54321") && said.contains("mode=0700"), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(&bench.pins).unwrap().count(), 0);
    std::fs::remove_dir(&bench.pins).unwrap();
    // Of the user's own it is closed to others.
    bench.up(&config);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&bench.pins).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o700);
}

#[test]
fn a_router_is_put_up_changed_and_taken_down() {
    let Some(bench) = Bench::new("router", 1) else { return };
    let config = |via: u8| {
        json!({"ports": ["in0"], "routes": {"198.18.0.0/15": "next", "10.0.0.0/8": "hole"},
            "next_hops": {"next": {"via": text(mac(via)), "dev": "in0", "from": text(mac(9))}, "hole": "drop"}})
    };
    bench.up(&config(7));
    let again = bench.run(&["up", bench.config.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(2), "it is up");

    let frame = EthernetFrame::default().to_bytes();
    for via in [7, 8] {
        bench.send(0, &frame);
        let back = bench.receive(0, PATIENCE).expect("forwarded");
        assert_eq!((&back[..6], &back[6..12], back[22]), (&mac(via)[..], &mac(9)[..], 63));
        // The same again with the other next hop, under way between the two.
        bench.configure(&["set"], &config(8));
    }
    bench.send(0, &EthernetFrame { dst: [10, 0, 0, 1].into(), ..EthernetFrame::default() }.to_bytes());
    assert_eq!(bench.receive(0, SILENCE), None, "a blackhole");
    let report = bench.show();
    assert_eq!(report["tables"], json!({"routes": 2, "next_hops": 2}), "{report:#}");
    assert_eq!(report["ports"][0]["interface"], "in0");
    assert_eq!(report["ports"][0]["tx_packets"], 2, "{report:#}");
    assert_eq!(report["counts"]["blackhole"], 1, "{report:#}");
    assert!(String::from_utf8_lossy(&bench.good(&["show"]).stdout).contains("blackhole"));
    let routes = bench.list();
    assert_eq!(
        (&routes[0]["route"], &routes[0]["via"]),
        (&"10.0.0.0/8".into(), &"drop".into()),
        "{routes:#}"
    );
    assert_eq!(
        (&routes[1]["route"], &routes[1]["via"], &routes[1]["dev"]),
        (&"198.18.0.0/15".into(), &text(mac(8)).into(), &"in0".into()),
        "{routes:#}"
    );

    bench.good(&["down"]);
    assert!(!bench.pins.exists());
    bench.send(0, &frame);
    assert_eq!(bench.receive(0, SILENCE), None, "nobody forwards");
    assert_eq!(bench.run(&["show"]).status.code(), Some(2));
    assert_eq!(bench.run(&["down"]).status.code(), Some(2));
}

#[test]
fn a_switch_floods_learns_and_forgets() {
    let Some(bench) = Bench::new("switch", 4) else { return };
    bench.up(&json!({"ports": {"in0": {"access": 10}, "in1": {"access": 10}, "in2": {"access": 20},
        "in3": {"trunk": [10, 20]}}}));
    let tender = bench.tend();
    let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();

    // Until the tender listens, a frame to all is lost.
    let hello = EthernetFrame { dst_mac: [0xff; 6], src_mac: mac(1), ..EthernetFrame::default() }.to_bytes();
    let deadline = Instant::now() + PATIENCE;
    let first = loop {
        bench.send(0, &hello);
        if let Some(frame) = bench.receive(1, SILENCE) {
            break frame;
        }
        assert!(Instant::now() < deadline, "nothing was flooded");
    };
    assert_eq!(first, hello);
    assert_eq!(bench.receive(3, PATIENCE), Some(tagged(&hello)), "with the tag of its VLAN");
    assert_eq!(bench.receive(2, SILENCE), None, "another VLAN");
    while bench.receive(1, SILENCE).is_some() || bench.receive(3, SILENCE).is_some() {}

    // Nobody knows the second station yet; its answer to the first goes straight there.
    let question = EthernetFrame { dst_mac: mac(2), src_mac: mac(1), ..EthernetFrame::default() }.to_bytes();
    bench.send(0, &question);
    assert_eq!(bench.receive(1, PATIENCE), Some(question.clone()));
    assert_eq!(bench.receive(3, PATIENCE), Some(tagged(&question)));
    let answer =
        tagged(&EthernetFrame { dst_mac: mac(1), src_mac: mac(2), ..EthernetFrame::default() }.to_bytes());
    bench.send(3, &answer);
    assert_eq!(bench.receive(0, PATIENCE), Some([&answer[..12], &answer[16..]].concat()), "without its tag");
    assert_eq!(bench.receive(1, SILENCE), None);
    bench.send(0, &question);
    assert_eq!(bench.receive(3, PATIENCE), Some(tagged(&question)));
    assert_eq!(bench.receive(1, SILENCE), None, "known now");

    let report = bench.show();
    assert_eq!(report["tables"]["stations"], 2, "{report:#}");
    assert_eq!(
        (&report["counts"]["learned"], &report["counts"]["flood_unknown"]),
        (&2.into(), &1.into()),
        "{report:#}"
    );
    let stations = bench.list();
    let station = |n: usize| json!([stations[n]["mac"], stations[n]["vlan"], stations[n]["dev"]]);
    assert_eq!(station(0), json!([text(mac(1)), 10, "in0"]), "{stations:#}");
    assert_eq!(station(1), json!([text(mac(2)), 10, "in3"]), "{stations:#}");
    drop(tender);
    bench.good(&["maintain", "--once", "--age", "3600"]);
    assert_eq!(bench.show()["tables"]["stations"], 2);
    std::thread::sleep(Duration::from_millis(50));
    bench.good(&["maintain", "--once", "--age", "0"]);
    assert_eq!(bench.show()["tables"]["stations"], 0);
}

#[test]
fn a_firewalls_rules_are_swapped_as_a_whole() {
    let Some(bench) = Bench::new("firewall", 1) else { return };
    let config = |action: &str| {
        let rules = [format!("{action} udp 198.18.0.0/16 any 198.19.0.0/16 9-10")];
        json!({"ports": ["in0"], "rules": rules, "default": "drop", "forward": {"in0": "in0"}})
    };
    bench.up(&config("drop"));
    let frame = EthernetFrame::default().to_bytes();
    bench.send(0, &frame);
    assert_eq!(bench.receive(0, SILENCE), None);
    assert_eq!(bench.show()["busiest"][0], json!({"kind": "rule", "index": 0, "packets": 1, "bytes": 64}));
    bench.configure(&["set"], &config("accept"));
    bench.send(0, &frame);
    assert_eq!(bench.receive(0, PATIENCE), Some(frame));
    assert_eq!(
        bench.list(),
        json!([{"rule": 0, "action": "accept", "packets": 1, "bytes": 64}]),
        "only what matched"
    );
    let report = bench.show();
    assert_eq!(
        (&report["counts"]["accepted"], &report["counts"]["dropped"]),
        (&1.into(), &Value::Null),
        "{report:#}"
    );
}

#[test]
fn a_nat_translates_and_forgets_what_is_idle() {
    let Some(bench) = Bench::new("nat", 2) else { return };
    bench.up(
        &json!({"inside": ["in0"], "outside": ["in1"], "rules": {"10.0.0.0/8": {"first": 0, "count": 1}},
        "externals": [{"address": "203.0.113.1", "ports": [5000, 5000], "via": text(mac(7)), "dev": "in1",
            "from": text(mac(9))}],
        "timeouts": {"udp": 0}}),
    );
    let inside = EthernetFrame { src: [10, 0, 0, 1].into(), ..EthernetFrame::default() };
    bench.send(0, &inside.to_bytes());
    let outside = bench.receive(1, PATIENCE).expect("translated");
    assert_eq!((&outside[26..30], &outside[34..36]), (&[203, 0, 113, 1][..], &5000u16.to_be_bytes()[..]));
    let back = EthernetFrame {
        src: inside.dst,
        dst: [203, 0, 113, 1].into(),
        transport: TransportHeader::Udp { src: 9, dst: 5000 },
        ..EthernetFrame::default()
    };
    bench.send(1, &back.to_bytes());
    let returned = bench.receive(0, PATIENCE).expect("translated back");
    assert_eq!((&returned[30..34], &returned[36..38]), (&[10, 0, 0, 1][..], &1024u16.to_be_bytes()[..]));
    assert_eq!(bench.show()["tables"]["connections"], 2);
    let translated = bench.list();
    let end = |name: &str| translated[0][name].as_str().unwrap_or_default().to_owned();
    assert_eq!((end("protocol"), end("inside")), ("udp".into(), "10.0.0.1:1024".into()), "{translated:#}");
    assert_eq!(end("external"), "203.0.113.1:5000");
    std::thread::sleep(Duration::from_millis(50));
    bench.good(&["maintain", "--once"]);
    assert_eq!(bench.show()["tables"]["connections"], 0);
}

#[test]
fn a_balancer_follows_its_configuration() {
    let Some(bench) = Bench::new("balancer", 1) else { return };
    let config = |real: &str| {
        let reals = json!([{"address": real}]);
        json!({"ports": ["in0"], "gateway": text(mac(7)), "reals": reals, "services":
            [{"address": "198.19.0.1", "port": 9, "protocol": "udp", "stateless": true, "reals": [[0, 1]]}]})
    };
    bench.up(&config("192.0.2.1"));
    for real in [1, 2] {
        bench.send(0, &EthernetFrame::default().to_bytes());
        let outer = bench.receive(0, PATIENCE).expect("balanced");
        assert_eq!((&outer[..6], outer[23], &outer[30..34]), (&mac(7)[..], 4, &[192, 0, 2, real][..]));
        bench.configure(&["set"], &config("192.0.2.2"));
    }
    let report = bench.show();
    assert_eq!(
        (&report["tables"]["vips4"], &report["busiest"][0]["packets"]),
        (&1.into(), &2.into()),
        "{report:#}"
    );
}

#[test]
fn what_cannot_be_put_up_leaves_nothing() {
    let Some(bench) = Bench::new("router", 1) else { return };
    std::fs::write(&bench.config, r#"{"ports": ["in0", "none"], "next_hops": {}, "routes": {}}"#).unwrap();
    let output = bench.run(&["up", bench.config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none"), "{output:?}");
    assert!(!bench.pins.exists());
    std::fs::write(&bench.config, r#"{"ports": ["in0"], "next_hops": {}, "routes": {}}"#).unwrap();
    bench.good(&["up", bench.config.to_str().unwrap()]);
}

#[test]
fn the_object_is_one_that_other_commands_take() {
    let path = std::env::temp_dir().join(format!("millstream-test-{}.bpf.o", std::process::id()));
    let millstream = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).arg(&path).output().unwrap()
    };
    assert!(millstream(&["control", "switch", "object"]).status.success());
    let inspected = millstream(&["inspect"]);
    std::fs::remove_file(&path).unwrap();
    assert!(String::from_utf8_lossy(&inspected.stdout).contains("switch_frame"), "{inspected:?}");
}
